//! Arrays with a log.

use tokio::time::timeout;

use super::*;

fn logged(level: Level, log_len: u64) -> CreateOptions {
    CreateOptions { log: Log::On(Some(log_len)), ..options(level) }
}

/// Takes little at once.
struct Small(Device);

impl BlockDevice for Small {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { max_transfer_len: 64 << 10, ..self.0.info().clone() }
    }

    fn submit(&self, request: Request) {
        self.0.submit(request);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn batches_of_the_log_go_in_pieces_to_members_that_take_less_at_once() {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut members: Vec<Member> = (0..3)
        .map(|at| {
            let ram = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
            let small = Device::new(Arc::new(Small(ram)));
            Member::start(small, &format!("{NAME}-small-{at}"), listen)
        })
        .collect();
    let configs: Vec<MemberConfig> = members.iter().map(|member| member.config.clone()).collect();
    create(logged(Level::Raid5, 4 << 20), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    let device = array.device();
    // Many at once, none a whole stripe, so that they share batches.
    let count = 256;
    let writes = (0..count).map(|at: u64| async move {
        let buf = netraid_block::Buf::copy_from(&contents(at, 4096)).into();
        completions::write(device, at * 12288, buf, false).await.unwrap();
    });
    futures_util::future::join_all(writes).await;
    let status = array.handle().status().await.unwrap();
    assert!(status.log.unwrap().dirty_bytes > 0, "nothing went through the log");
    // It fails, since they may have lost what was not flushed: what is read then comes from the
    // log's pieces.
    for member in &mut members {
        member.restart().await;
    }
    array.close().await.unwrap_err();
    let array = open(&configs).await;
    for at in 0..count {
        let read = completions::read(array.device(), at * 12288, 4096).await.unwrap();
        assert!(*read.to_contiguous() == *contents(at, 4096), "write {at}");
    }
    array.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_member_comes_back_by_itself_unless_it_was_set_aside_by_command() {
    let (mut targets, configs) = members(3).await;
    create(logged(Level::Raid5, 1 << 20), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    targets[2].restart().await;
    write(array.device(), 2).await;
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 2 }).await;
    command(&array, ControlRequest::Fail { member: "1".into() }).await;
    write(array.device(), 3).await;
    // Longer than it takes one that comes back by itself.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let status = array.handle().status().await.unwrap();
    assert_eq!((status.state.as_str(), status.members[1].state.as_str()), ("degraded", "faulty"));
    command(&array, ControlRequest::Rebuild { member: "1".into() }).await;
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 1 }).await;
    targets[0].kill().await;
    verify(array.device(), 3).await;
    array.close().await.unwrap();
}

/// Whoever looked right after the command saw the member as it was before, and took the rebuild
/// for over.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_replacement_takes_part_when_the_command_is_answered() {
    let (mut targets, configs) = members(3).await;
    create(logged(Level::Raid5, 1 << 20), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    targets[1].kill().await;
    verify(array.device(), 1).await;
    write(array.device(), 2).await;
    let spare = Member::new();
    let with = spare.config.address();
    command(
        &array,
        ControlRequest::Replace { member: "1".into(), with, secret: None, force: false },
    )
    .await;
    let state = array.handle().status().await.unwrap().members[1].state.clone();
    assert!(["catching_up", "in_sync"].contains(&state.as_str()), "{state}");
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 1 }).await;
    verify(array.device(), 2).await;
    array.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn read_only_writes_nothing_and_needs_an_array_that_was_closed() {
    let (targets, configs) = members(3).await;
    create(logged(Level::Raid5, 1 << 20), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let refused = Array::open(read_only, configs.clone(), Pool::new()).await.unwrap_err();
    assert!(matches!(refused, ArrayError::NotClosed(_)), "{refused}");
    array.close().await.unwrap();
    let media = async || {
        let len = 1 << 20;
        let mut all = Vec::new();
        for target in &targets {
            for at in 0..MEMBER_LEN / len {
                let read = completions::read(&target.device, at * len, len).await.unwrap();
                all.push(read.to_contiguous().to_vec());
            }
        }
        all
    };
    let before = media().await;
    let array = Array::open(read_only, configs.clone(), Pool::new()).await.unwrap();
    verify(array.device(), 1).await;
    array.close().await.unwrap();
    assert!(media().await == before, "a member was written to");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_array_that_is_abandoned_ends_at_once_and_is_recovered() {
    const LIMIT: Duration = Duration::from_secs(60);
    let (mut targets, configs) = members(3).await;
    create(logged(Level::Raid5, 1 << 20), configs.clone(), Pool::new()).await.unwrap();
    let mut patient = configs.clone();
    patient.iter_mut().for_each(|config| config.request_timeout = Duration::from_secs(3600));
    let array = open(&patient).await;
    write(array.device(), 1).await;
    completions::flush(array.device()).await.unwrap();
    for target in &mut targets {
        target.kill().await;
    }
    // Neither what waits for members, nor a good end of it, is waited for.
    let (device, handle) = (array.device().clone(), array.handle().clone());
    let reading = tokio::spawn(async move { completions::read(&device, 0, 4096).await });
    let closing = tokio::spawn(array.close());
    timeout(LIMIT, handle.abandon()).await.unwrap();
    assert!(timeout(LIMIT, reading).await.unwrap().unwrap().is_err());
    assert!(timeout(LIMIT, closing).await.unwrap().unwrap().is_err());
    assert!(handle.status().await.is_err());

    for target in &mut targets {
        target.restart().await;
    }
    let array = open(&configs).await;
    verify(array.device(), 1).await;
    // Its end is told to whoever asks for it later, too.
    array.handle().abandon().await;
    assert!(timeout(LIMIT, array.close()).await.unwrap().is_err());
}
