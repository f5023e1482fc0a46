//! Members that are another thing when they are asked again while an array is opened.

use netraid_raid::{
    label::{LABEL_LEN, Label},
    regions::LABEL_OFFSETS,
};
use netraid_scsi::{Additional, SenseKey};

use super::{fencing::PERSISTENT_RESERVE_IN, *};
use crate::iscsi::meddler::Meddler;

/// Its label is another one from the second look on, once that is `armed`.
struct Unsteady {
    device: Device,
    /// Where labels are read from then.
    later: Device,
    armed: std::sync::atomic::AtomicBool,
    looks: AtomicU32,
}

impl BlockDevice for Unsteady {
    fn info(&self) -> DeviceInfo {
        self.device.info().clone()
    }

    fn submit(&self, request: Request) {
        let is_look = request.op == Op::Read && LABEL_OFFSETS.contains(&request.offset);
        let copies = u32::try_from(LABEL_OFFSETS.len()).unwrap();
        let is_later = is_look
            && self.armed.load(Ordering::Relaxed)
            && self.looks.fetch_add(1, Ordering::Relaxed) >= copies;
        if is_later { self.later.submit(request) } else { self.device.submit(request) }
    }
}

impl Unsteady {
    /// Arms it: its label is now `first`, and `then` from the second look on.
    async fn arm(&self, first: impl Fn(&mut Label), then: impl Fn(&mut Label)) {
        let bytes = completions::read(&self.device, LABEL_OFFSETS[0], LABEL_LEN as u64).await;
        let label = Label::decode(&bytes.unwrap().to_contiguous(), 0).unwrap();
        for (device, change) in
            [(&self.device, &first as &dyn Fn(&mut Label)), (&self.later, &then)]
        {
            let mut label = label.clone();
            change(&mut label);
            for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
                write_at(device, offset, &label.encode(copy)).await;
            }
        }
        self.looks.store(0, Ordering::Relaxed);
        self.armed.store(true, Ordering::Relaxed);
    }
}

/// An array all of whose members may be made unsteady.
async fn unsteady(
    level: Level,
    count: usize,
) -> (Vec<Member>, Vec<MemberConfig>, Vec<Arc<Unsteady>>) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let ram = || backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
    let one = || {
        let (armed, looks) = (false.into(), 0.into());
        let device = Arc::new(Unsteady { device: ram(), later: ram(), armed, looks });
        let name = format!("{NAME}-unsteady{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        (Member::start(Device::new(device.clone()), &name, listen), device)
    };
    let (targets, devices): (Vec<Member>, Vec<_>) = (0..count).map(|_| one()).unzip();
    let configs: Vec<MemberConfig> = targets.iter().map(|target| target.config.clone()).collect();
    create(options(level), configs.clone(), Pool::new()).await.unwrap();
    (targets, configs, devices)
}

const SAME: fn(&mut Label) = |_| {};
const NEXT: fn(&mut Label) = |label| (label.generation, label.epoch) = (2, label.epoch + 1);

/// Opens what has to be degraded, writes it, and says what is told of it.
async fn open_degraded(configs: &[MemberConfig]) -> Vec<String> {
    let array = open(configs).await;
    assert_eq!(array.handle().status().await.unwrap().state, "degraded");
    let notes = array.notes().to_vec();
    write(array.device(), 1).await;
    verify(array.device(), 1).await;
    array.close().await.unwrap();
    notes
}

#[tokio::test]
async fn a_member_whose_label_is_another_one_at_the_second_look_is_left_out() {
    let (_targets, configs, devices) = unsteady(Level::Raid5, 3).await;
    devices[1].arm(SAME, NEXT).await;
    let notes = open_degraded(&configs).await;
    let address = configs[1].address();
    let told = |note: &String| {
        note.contains(&address)
            && note.contains("epoch 2")
            && note.ends_with("left out as member 1")
    };
    assert!(notes.iter().any(told), "{notes:?}");
}

#[tokio::test]
async fn a_member_that_has_no_label_at_the_second_look_is_left_out() {
    let (_targets, configs, devices) = unsteady(Level::Raid5, 3).await;
    devices[2].arm(SAME, NEXT).await;
    for offset in LABEL_OFFSETS {
        write_at(&devices[2].later, offset, &[0; 4096]).await;
    }
    let notes = open_degraded(&configs).await;
    assert!(notes.iter().any(|note| note.ends_with("left out as member 2")), "{notes:?}");
}

/// As they are when another engine opens the array at the same time.
#[tokio::test]
async fn labels_that_change_on_so_many_members_that_another_engine_may_serve_keep_the_array_shut() {
    for (level, count, changed) in [
        (Level::Raid5, 3, &[0, 1][..]),
        (Level::Raid5, 4, &[1, 2, 3]),
        (Level::Raid5, 3, &[0, 1, 2]),
        (Level::Raid1, 2, &[1]),
        (Level::Raid1, 3, &[0]),
    ] {
        let (_targets, configs, devices) = unsteady(level, count).await;
        for at in changed {
            devices[*at].arm(SAME, NEXT).await;
        }
        let end = Array::open(OpenOptions::default(), configs, Pool::new()).await;
        assert!(matches!(end, Err(ArrayError::Changed { .. })), "{level:?} {changed:?}: {end:?}");
    }
}

#[tokio::test]
async fn a_label_that_was_not_believed_may_change() {
    let (_targets, configs, devices) = unsteady(Level::Raid5, 3).await;
    devices[1].arm(|label| label.generation = 1 << 50, |label| label.generation = 1 << 51).await;
    let notes = open_degraded(&configs).await;
    assert!(notes.iter().any(|note| note.contains("is left out as member 1: its label says")));
}

/// Two older images, which call in sync what those with the newest label do. One of these two cannot be fenced: without
/// it, what has the newest label cannot serve, and the older images can.
#[tokio::test]
async fn an_array_with_a_log_that_nobody_can_speak_for_without_who_is_left_out_is_an_error() {
    let (targets, mut configs) = members(4).await;
    let options = CreateOptions { log: Log::On(Some(4 << 20)), ..options(Level::Raid6) };
    create(options, configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    array.close().await.unwrap();
    let images = [all_of(&targets[2].device).await, all_of(&targets[3].device).await];
    for seed in 2..5 {
        let array = open(&configs).await;
        write(array.device(), seed).await;
        array.close().await.unwrap();
    }
    for (image, target) in images.iter().zip(&targets[2..]) {
        for (at, piece) in (0_u64..).step_by(PIECE).zip(image.chunks(PIECE)) {
            write_at(&target.device, at, piece).await;
        }
    }
    let true_one = configs[1].clone();
    let address = format!("{}:{}", true_one.uri.host, true_one.uri.port).parse().unwrap();
    let portal = Meddler::start(address).await;
    let not_ready = Additional { asc: 0x04, ascq: 0x03 };
    portal.refuse_always(PERSISTENT_RESERVE_IN, false, SenseKey::NotReady, not_ready);
    (configs[1].uri.host, configs[1].uri.port) =
        (portal.address.ip().to_string(), portal.address.port());

    let error = Array::open(OpenOptions::default(), configs.clone(), Pool::new()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ArrayError::Failed(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("contradict each other"), "{text}");
    assert!(text.contains("it is left out as member 1"), "{text}");
    // All were given back.
    for config in configs.iter().filter(|config| config.uri != configs[1].uri) {
        let remote = Remote::connect(InitiatorConfig::new(config.uri.clone()), Pool::new()).await;
        assert!(remote.unwrap().reservation_keys().await.unwrap().keys.is_empty());
    }
}

/// Members, one of which lets one session in, and never another one.
async fn one_that_lets_in_once(level: Level) -> (Vec<Member>, Vec<MemberConfig>, Meddler) {
    let (targets, mut configs) = members(if level == Level::Raid5 { 3 } else { 2 }).await;
    create(options(level), configs.clone(), Pool::new()).await.unwrap();
    let address = format!("{}:{}", configs[1].uri.host, configs[1].uri.port).parse().unwrap();
    let portal = Meddler::start(address).await;
    portal.let_in(Some(1));
    (configs[1].uri.host, configs[1].uri.port) =
        (portal.address.ip().to_string(), portal.address.port());
    (targets, configs, portal)
}

#[tokio::test]
async fn a_member_that_refuses_the_second_login_is_left_out() {
    let (_targets, configs, portal) = one_that_lets_in_once(Level::Raid5).await;
    let notes = open_degraded(&configs).await;
    assert!(notes.iter().any(|note| note.ends_with("left out as member 1")), "{notes:?}");
    // Another engine could serve from half of a mirror alone, and would not be shut out.
    drop(portal);
    let (_targets, configs, _portal) = one_that_lets_in_once(Level::Raid1).await;
    let end = Array::open(OpenOptions::default(), configs.clone(), Pool::new()).await;
    assert!(matches!(end, Err(ArrayError::Member(_))), "{end:?}");
    // The other one is given back.
    let alone = OpenOptions { force: true, ..OpenOptions::default() };
    let array = Array::open(alone, configs[..1].to_vec(), Pool::new()).await.unwrap();
    array.close().await.unwrap();
}
