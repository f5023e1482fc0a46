use std::vec;

use super::*;
use crate::fencing::Removes;

/// A device with reservations, as SPC-4 has them.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) keys: Vec<u64>,
    is_reserved: bool,
    has_no_abort: bool,
    /// It takes registrations and does not keep them.
    forgets: bool,
    /// It has no reservations.
    has_none: bool,
    /// It fails at CLEAR.
    cannot_clear: bool,
    /// A removal of another's registration is done, and its answer fails so.
    removal_fails: Option<ErrorKind>,
    /// What it says instead, at which question, once.
    fails_at: Option<(Ask, ErrorKind)>,
    /// Somebody registers with this key when so many questions were answered.
    pub(crate) comes: Option<(usize, u64)>,
    pub(crate) asked: Vec<Ask>,
}

const OWN: u64 = 0x4e52_aaaa_aa00_0001;
const DEAD: u64 = 0x4e52_aaaa_aa77_7701;
const ALIVE: u64 = 0x4e52_bbbb_bb77_7701;
const STRANGER: u64 = 0x0000_0000_0000_1234;

fn fence(removes: Removes) -> Fence {
    Fence { key: NonZeroU64::new(OWN).unwrap(), removes, former: None }
}

fn key(key: u64) -> NonZeroU64 {
    NonZeroU64::new(key).unwrap()
}

impl Device {
    pub(crate) fn with(keys: &[u64]) -> Self {
        Self { keys: keys.to_vec(), is_reserved: !keys.is_empty(), ..Self::default() }
    }

    fn answer(&mut self, ask: Ask) -> Answer {
        if let Some((_, key)) = self.comes.take_if(|(at, _)| *at == self.asked.len()) {
            self.keys.push(key);
        }
        self.asked.push(ask);
        if let Some((_, kind)) = self.fails_at.take_if(|(at, _)| *at == ask) {
            return Answer::Failed(kind.into());
        }
        match ask {
            Ask::Keys if self.has_none => return Answer::Failed(ErrorKind::Unsupported.into()),
            Ask::Keys => return Answer::Keys { keys: self.keys.clone(), is_cut: false },
            Ask::Reservation => return Answer::Reservation(self.is_reserved.then_some(true)),
            Ask::Presence => return Answer::Presence(true),
            Ask::Register { key, ignore } => {
                let is_own =
                    |known: &u64| [OWN, key.get()].iter().any(|own| known & !0b11 == own & !0b11);
                if !ignore && !self.keys.iter().any(is_own) {
                    return Answer::Failed(ErrorKind::Fenced.into());
                }
                self.keys.retain(|known| !is_own(known));
                if !self.forgets {
                    self.keys.push(key.get());
                }
            }
            Ask::Unregister => self.keys.retain(|known| known & !0b11 != OWN & !0b11),
            Ask::Reserve(_) => self.is_reserved = true,
            Ask::Release(_) => self.is_reserved = false,
            Ask::Preempt { aborts: true, .. } if self.has_no_abort => {
                return Answer::Failed(ErrorKind::Unsupported.into());
            }
            Ask::Preempt { other, .. } if !self.keys.contains(&other.get()) => {
                return Answer::Failed(ErrorKind::Fenced.into());
            }
            Ask::Preempt { other, .. } => {
                self.keys.retain(|known| *known != other.get());
                self.is_reserved = true;
                if let Some(kind) = self.removal_fails {
                    return Answer::Failed(kind.into());
                }
            }
            Ask::Clear(_) if self.cannot_clear => {
                return Answer::Failed(ErrorKind::Timeout.into());
            }
            Ask::Clear(_) => (self.keys, self.is_reserved) = (Vec::new(), false),
        }
        Answer::Done
    }
}

/// Goes on to the end: how that is, how the engine stands then, and what was told.
pub(crate) fn run(
    mut steps: Steps,
    device: &mut Device,
) -> (Result<(), FenceError>, Standing, Vec<Notice>) {
    let mut notices = Vec::new();
    for _ in 0..1000 {
        match steps.poll() {
            Step::Ask(ask) => steps.answer(device.answer(ask)),
            Step::Tell(notice) => notices.push(notice),
            Step::Done(end) => return (end, steps.standing(), notices),
        }
    }
    panic!("it goes in circles: {:?}", device.asked)
}

#[test]
fn a_member_is_exclusive_when_nobody_else_is_registered_and_it_is_reserved() {
    for others in [vec![], vec![DEAD], vec![DEAD, DEAD ^ 0x0100_0000]] {
        let mut device = Device::with(&others);
        let removes = if others.len() > 1 { Removes::Engines } else { Removes::Own };
        let steps = Steps::fence(Standing::default(), fence(removes));
        let (end, standing, notices) = run(steps, &mut device);
        assert_eq!((end, notices), (Ok(()), vec![]));
        assert!(standing.exclusive && device.is_reserved);
        assert_eq!(device.keys, [standing.registered.unwrap().get()], "beside {others:x?}");
    }
}

#[test]
fn nothing_is_disturbed_where_somebody_may_be_alive() {
    for other in [ALIVE, STRANGER] {
        let mut device = Device::with(&[other]);
        let steps = Steps::fence(Standing::default(), fence(Removes::Own));
        let (end, standing, _) = run(steps, &mut device);
        assert_eq!(end, Err(FenceError::Reserved { key: other }));
        assert_eq!((standing, device.asked), (Standing::default(), vec![Ask::Keys]));
    }
}

#[test]
fn who_may_be_alive_and_was_removed_is_remembered_when_the_member_is_given_back() {
    let mut device = Device::with(&[ALIVE]);
    let steps = Steps::fence(Standing::default(), fence(Removes::All));
    let (end, standing, _) = run(steps, &mut device);
    assert!(end.is_ok() && standing.is_wary && standing.exclusive);
    let (_, standing, _) = run(Steps::renounce(standing), &mut device);
    assert_eq!((standing.exclusive, standing.registered), (false, None));
    assert_eq!(device.keys, [VACANT.get()]);
}

#[test]
fn a_member_that_nobody_else_had_is_free_when_it_is_given_back() {
    let mut device = Device::default();
    let (_, standing, _) = run(Steps::fence(Standing::default(), fence(Removes::Own)), &mut device);
    let (_, standing, _) = run(Steps::renounce(standing), &mut device);
    assert!(standing == Standing::default() && device.keys.is_empty() && !device.is_reserved);
}

#[test]
fn who_only_reads_registers_beside_others_and_reserves_and_clears_nothing() {
    const READER: u64 = OWN & !0b11;
    const OTHER: u64 = 0x4e52_cccc_cc00_0100;
    let reader = Fence { key: key(READER), removes: Removes::Own, former: None };
    let attend = || Steps::attend(Standing::default(), reader);
    for others in [vec![], vec![OTHER], vec![VACANT.get()], vec![STRANGER]] {
        let mut device = Device { keys: others.clone(), ..Device::default() };
        let (end, standing, _) = run(attend(), &mut device);
        assert_eq!((end, standing.registered), (Ok(()), Some(key(READER))), "{others:x?}");
        assert!(device.keys.contains(&READER) && !device.is_reserved && !standing.exclusive);
        let (_, standing, _) = run(Steps::renounce(standing), &mut device);
        assert_eq!((&device.keys, standing), (&others, Standing::default()));
        assert!(!device.asked.contains(&Ask::Clear(key(READER))), "a writer may have come");
    }
    let mut device = Device::with(&[ALIVE]);
    let (end, standing, _) = run(attend(), &mut device);
    assert_eq!((end, standing), (Err(FenceError::Reserved { key: ALIVE }), Standing::default()));
    assert_eq!(device.keys, [ALIVE]);
    let mut device = Device { has_none: true, ..Device::default() };
    device.fails_at =
        Some((Ask::Register { key: key(READER), ignore: true }, ErrorKind::Unsupported));
    let (end, _, notices) = run(attend(), &mut device);
    assert_eq!(end, Ok(()), "it is read without");
    assert_eq!(notices, [Notice::ReaderNotRegistered(ErrorKind::Unsupported.into())]);
    // Who cannot register would not hear of a writer.
    for kind in [ErrorKind::Device, ErrorKind::Timeout] {
        let fails_at = Some((Ask::Register { key: key(READER), ignore: true }, kind));
        let mut device = Device { fails_at, ..Device::default() };
        let end = run(attend(), &mut device).0;
        assert!(matches!(end, Err(FenceError::Failed { .. })), "{end:?}");
    }
    let mut device = Device { forgets: true, ..Device::default() };
    assert_eq!(run(attend(), &mut device).0, Err(FenceError::Forgetful));
}

#[test]
fn however_many_readers_come_a_writer_is_not_kept_away_and_leaves_them_no_reservation() {
    let mut device = Device::default();
    let mut steps = Steps::fence(Standing::default(), fence(Removes::Own));
    let mut come = 0;
    let end = loop {
        match steps.poll() {
            Step::Ask(ask @ Ask::Preempt { .. }) if come < 20 => {
                steps.answer(device.answer(ask));
                come += 1;
                device.keys.push(0x4e52_cccc_cc00_0100 + (come << 8));
            }
            Step::Ask(ask) => {
                if come == 0 && matches!(ask, Ask::Register { .. }) {
                    device.keys.push(0x4e52_cccc_cc00_0100);
                }
                steps.answer(device.answer(ask));
            }
            Step::Tell(_) => {}
            Step::Done(end) => break end,
        }
    };
    assert!(end.is_ok() && come == 20, "{end:?}");
    device.keys.push(0x4e52_cccc_cc00_0100);
    run(Steps::renounce(steps.standing()), &mut device).0.unwrap();
    assert!(device.keys.is_empty() && !device.is_reserved);
}

#[test]
fn readers_are_removed_by_who_writes_whenever_they_come() {
    const OTHER: u64 = 0x4e52_cccc_cc00_0100;
    for comes_at in 0..8 {
        let mut device = Device { comes: Some((comes_at, OTHER)), ..Device::default() };
        let known = BTreeSet::from([VACANT.get()]);
        let (end, standing, _) =
            run(Steps::fence_again(Standing::default(), fence(Removes::Own), known), &mut device);
        assert!(end.is_ok() && standing.exclusive && !standing.is_wary, "{comes_at}: {end:?}");
    }
}

#[test]
fn who_came_after_it_was_looked_is_not_removed() {
    let known = || BTreeSet::from([DEAD, VACANT.get()]);
    for removes in [Removes::Own, Removes::Engines, Removes::All] {
        let fence_known = || Steps::fence_known(Standing::default(), fence(removes), known());
        let mut device = Device::with(&[DEAD, VACANT.get()]);
        let (end, standing, _) = run(fence_known(), &mut device);
        assert!(end.is_ok() && standing.exclusive && standing.is_wary, "{removes:?}: {end:?}");
        let asks = device.asked.len();

        for (comes_at, key) in (0..asks).flat_map(|at| [(at, ALIVE), (at, OWN ^ 0xff_0000)]) {
            let comes = Some((comes_at, key));
            let mut device = Device { comes, ..Device::with(&[DEAD, VACANT.get()]) };
            let (end, standing, _) = run(fence_known(), &mut device);
            assert!(device.keys.contains(&key), "{removes:?} {comes_at}: {:x?}", device.asked);
            let is_removed =
                |ask: &Ask| matches!(ask, Ask::Preempt { other, .. } if other.get() == key);
            assert!(!device.asked.iter().any(is_removed));
            if end.is_ok() {
                assert!(comes_at >= asks - 1, "nobody looked after it came: {comes_at}");
                continue;
            }
            assert_eq!(end, Err(FenceError::Overtaken { key }), "{removes:?} {comes_at}");
            assert!(!standing.exclusive);
            if comes_at == 0 {
                assert_eq!((standing, &device.asked[..]), (Standing::default(), &[Ask::Keys][..]));
            }
            // Who came has the device as if this engine had never been there.
            let has_removed = device.asked.iter().any(|ask| matches!(ask, Ask::Preempt { .. }));
            assert!(run(Steps::renounce(standing), &mut device).0.is_ok());
            let mut expected = vec![DEAD, VACANT.get(), key];
            if !has_removed {
                expected.sort_unstable();
                device.keys.sort_unstable();
                assert_eq!(device.keys, expected, "{removes:?} {comes_at}");
            }
        }
    }
}

#[test]
fn who_was_announced_and_is_removed_meanwhile_removes_nobody() {
    let known = || BTreeSet::from([ALIVE]);
    for removes in [Removes::Engines, Removes::All] {
        let announce = Steps::announce(Standing::default(), fence(removes), known());
        let mut device = Device::with(&[ALIVE]);
        let (end, announced, _) = run(announce, &mut device);
        assert!(end.is_ok() && !announced.exclusive && !announced.is_wary, "{removes:?}: {end:?}");
        assert!(Fence::tells_of_removed(announced.registered.unwrap()));
        let own = announced.registered.unwrap().get();
        assert_eq!((device.keys.clone(), device.asked.len()), (vec![ALIVE, own], 1));

        // Nobody has found it there: it has the array.
        let fence_known = || Steps::fence_known(announced, fence(removes), known());
        let (end, standing, _) = run(fence_known(), &mut device);
        assert!(end.is_ok() && standing.exclusive && standing.is_wary, "{removes:?}: {end:?}");
        assert_eq!(device.keys, [own]);

        // Who takes over finds it, before the first question or after it.
        for removed_at in [0, 1] {
            let mut device = Device::with(&[ALIVE, own]);
            let mut steps = fence_known();
            let end = loop {
                if device.asked.len() == removed_at {
                    device.keys = vec![ALIVE];
                }
                match steps.poll() {
                    Step::Ask(ask) => steps.answer(device.answer(ask)),
                    Step::Tell(_) => {}
                    Step::Done(end) => break end,
                }
            };
            assert_eq!(end, Err(FenceError::Overtaken { key: ALIVE }), "{removes:?} {removed_at}");
            assert_eq!(device.keys, [ALIVE], "{:x?}", device.asked);
        }
    }
}

#[test]
fn who_is_fenced_once_more_finds_predecessors_and_leaves_who_came_after() {
    let first = |others: &[u64]| {
        let mut device = Device::with(others);
        let steps = Steps::fence(Standing::default(), fence(Removes::Engines));
        let (end, standing, _) = run(steps, &mut device);
        assert!(end.is_ok() && standing.exclusive);
        (device, standing)
    };
    let known = || BTreeSet::from(Fence::keys_of(ALIVE));
    let again = |standing| Steps::fence_again(standing, fence(Removes::Engines), known());
    let own = |standing: Standing| standing.registered.unwrap().get();

    let (mut device, standing) = first(&[ALIVE]);
    assert!(standing.is_wary);
    assert_eq!(run(again(standing), &mut device).1, standing);

    // A predecessor has registered here, or removed this engine, before it was shut out everywhere else; and that it may
    // be alive is told from then on.
    for is_removed in [false, true] {
        let (mut device, standing) = first(&[]);
        device.keys = if is_removed { vec![ALIVE] } else { vec![own(standing), ALIVE] };
        let (end, now, _) = run(again(standing), &mut device);
        assert!(end.is_ok() && now.exclusive && now.is_wary, "{is_removed}: {end:?}");
        assert_eq!(device.keys, [fence(Removes::Own).key(true).get()]);
    }

    // Another one has taken the array over meanwhile, and serves.
    let newer = ALIVE ^ 0xff_0000;
    for keys in [vec![newer], vec![OWN, newer]] {
        let (mut device, standing) = first(&[]);
        device.keys = keys;
        let (end, _, _) = run(again(standing), &mut device);
        assert_eq!(end, Err(FenceError::Overtaken { key: newer }));
        assert!(device.keys.contains(&newer));
    }

    // One that was fenced is never used without.
    let (mut device, standing) = first(&[ALIVE]);
    let register = Ask::Register { key: standing.registered.unwrap(), ignore: true };
    device.fails_at = Some((register, ErrorKind::Device));
    assert!(run(again(standing), &mut device).0.is_err());
}

#[test]
fn who_was_only_announced_leaves_nothing_behind() {
    for goes_on in [true, false] {
        let mut device = Device::with(&[ALIVE]);
        let known = BTreeSet::from([ALIVE]);
        let announce = Steps::announce(Standing::default(), fence(Removes::Own), known.clone());
        let (_, mut standing, _) = run(announce, &mut device);
        if goes_on {
            let steps = Steps::fence_known(standing, fence(Removes::Own), known);
            let (end, now, _) = run(steps, &mut device);
            assert_eq!(end, Err(FenceError::Reserved { key: ALIVE }));
            standing = now;
        }
        run(Steps::renounce(standing), &mut device).0.unwrap();
        assert_eq!(device.keys, [ALIVE], "{goes_on}");
    }
}

#[test]
fn who_comes_between_again_and_again_wins() {
    let mut device = Device::with(&[DEAD]);
    let mut steps = Steps::fence(Standing::default(), fence(Removes::Own));
    let end = loop {
        match steps.poll() {
            Step::Ask(ask @ Ask::Preempt { .. }) => {
                steps.answer(device.answer(ask));
                device.keys.push(DEAD);
            }
            Step::Ask(ask) => steps.answer(device.answer(ask)),
            Step::Tell(_) => {}
            Step::Done(end) => break end,
        }
    };
    assert_eq!(end, Err(FenceError::Contended));
    assert!(!steps.standing().exclusive && steps.standing().registered.is_some());
}

#[test]
fn a_device_that_forgets_registrations_cannot_be_fenced() {
    let mut device = Device { forgets: true, ..Device::default() };
    let (end, standing, _) =
        run(Steps::fence(Standing::default(), fence(Removes::Own)), &mut device);
    assert_eq!(end, Err(FenceError::Forgetful));
    assert!(!standing.exclusive);
}

#[test]
fn a_device_without_reservations_is_used_without_unless_somebody_is_registered() {
    let register = Ask::Register { key: key(OWN), ignore: true };
    for (fails_at, others, goes_on) in [
        ((Ask::Keys, ErrorKind::Unsupported), vec![], true),
        ((register, ErrorKind::Unsupported), vec![], true),
        ((register, ErrorKind::Device), vec![], true),
        ((register, ErrorKind::Device), vec![DEAD], false),
        ((register, ErrorKind::Unsupported), vec![DEAD], false),
        ((register, ErrorKind::Fenced), vec![], false),
        ((register, ErrorKind::InvalidRequest), vec![], true),
        // Who does not answer may have reservations, and may be held by somebody who comes next.
        ((register, ErrorKind::Timeout), vec![], false),
        ((register, ErrorKind::Unreachable), vec![], false),
        ((register, ErrorKind::Aborted), vec![], false),
        ((Ask::Reservation, ErrorKind::Timeout), vec![], false),
    ] {
        let mut device = Device { fails_at: Some(fails_at), ..Device::with(&others) };
        // Who has no reservations has no keys to tell.
        device.has_none = fails_at.0 == Ask::Keys;
        let steps = Steps::fence(Standing::default(), fence(Removes::Own));
        let (end, standing, notices) = run(steps, &mut device);
        assert_eq!(end.is_ok(), goes_on, "{fails_at:?} beside {others:x?}");
        assert!(!standing.exclusive);
        let is_told = matches!(notices[..], [Notice::NotFenced(_)]);
        assert_eq!(is_told, goes_on);
        assert_eq!(standing.registered.is_some(), !goes_on, "what may be there is known");
    }
}

#[test]
fn a_device_whose_removal_of_another_did_not_end_is_not_used_unfenced() {
    for kind in [ErrorKind::Timeout, ErrorKind::Unreachable, ErrorKind::Device] {
        let mut device = Device { removal_fails: Some(kind), ..Device::with(&[DEAD]) };
        let steps = Steps::fence(Standing::default(), fence(Removes::Own));
        let (end, standing, notices) = run(steps, &mut device);
        assert!(
            matches!(&end, Err(FenceError::Failed { reason, .. }) if reason.kind() == kind),
            "{end:?}"
        );
        assert!(!standing.exclusive && notices.is_empty());
        assert_eq!(
            device.keys,
            [standing.registered.unwrap().get()],
            "nobody else is registered any more"
        );
    }
}

#[test]
fn without_preempt_and_abort_a_reservation_is_released_before_another_is_removed() {
    let mut device = Device { has_no_abort: true, ..Device::with(&[DEAD]) };
    let (end, standing, notices) =
        run(Steps::fence(Standing::default(), fence(Removes::Own)), &mut device);
    assert!(end.is_ok() && standing.exclusive);
    assert_eq!(notices, [Notice::NothingAborted]);
    let (own, other) = (key(OWN), key(DEAD));
    let expected = [
        Ask::Preempt { key: own, other, aborts: true },
        Ask::Release(own),
        Ask::Preempt { key: own, other, aborts: false },
        Ask::Reserve(own),
    ];
    assert!(device.asked.windows(4).any(|asked| asked == expected), "{:?}", device.asked);
}

#[test]
fn whether_a_member_is_still_ones_own_is_asked_in_its_own_place() {
    let mut device = Device::default();
    let (_, standing, _) = run(Steps::fence(Standing::default(), fence(Removes::Own)), &mut device);
    assert!(run(Steps::check(standing), &mut device).0.is_ok());
    device.keys = vec![ALIVE];
    let (end, _, _) = run(Steps::check(standing), &mut device);
    assert!(
        matches!(end, Err(FenceError::Failed { reason, .. }) if reason.kind() == ErrorKind::Fenced)
    );
    device.asked.clear();
    assert!(run(Steps::check(Standing::default()), &mut device).0.is_ok());
    assert!(device.asked.is_empty(), "it was never fenced");
}

#[test]
fn what_cannot_be_taken_over_is_cleared_by_who_seizes_it() {
    let all = Fence::against_all(1);
    let mut device = Device::default();
    let (end, standing, _) = run(Steps::seize(Standing::default(), all), &mut device);
    assert!(end.is_ok() && standing == Standing::default(), "nobody is there");
    let preempt = |device: &mut Device| {
        let other = key(STRANGER);
        let own = all.key(true);
        device.fails_at = Some((Ask::Preempt { key: own, other, aborts: true }, ErrorKind::Device));
    };
    let mut device = Device::with(&[STRANGER]);
    preempt(&mut device);
    let (end, standing, _) = run(Steps::seize(Standing::default(), all), &mut device);
    assert!(end.is_ok() && standing.registered.is_none(), "{end:?}");
    assert!(device.keys.is_empty() && !device.is_reserved);
}

#[test]
fn an_engine_that_is_away_or_pushed_aside_takes_nothing_back() {
    let mut steps = Steps::renounce(Standing { registered: Some(key(OWN)), ..Standing::default() });
    assert_eq!(steps.poll(), Step::Ask(Ask::Presence));
    steps.answer(Answer::Presence(false));
    assert_eq!(steps.poll(), Step::Done(Ok(())));
}

#[test]
fn who_seizes_a_device_gives_back_what_could_not_be_cleared_and_waits_for_a_removal() {
    let all = Fence::against_all(1);
    let own = all.key(true);
    let preempt = Ask::Preempt { key: own, other: key(STRANGER), aborts: true };
    let mut device = Device::with(&[STRANGER]);
    device.fails_at = Some((preempt, ErrorKind::Timeout));
    let (end, standing, _) = run(Steps::seize(Standing::default(), all), &mut device);
    assert!(end.is_err(), "what was under way may still be written");
    assert_eq!(standing.registered, Some(own));
    let mut device = Device::with(&[STRANGER]);
    device.fails_at = Some((preempt, ErrorKind::Device));
    device.cannot_clear = true;
    let (end, standing, _) = run(Steps::seize(Standing::default(), all), &mut device);
    assert!(end.is_err());
    assert_eq!(standing.registered, Some(own), "it is to be given back");
    device.cannot_clear = false;
    assert!(run(Steps::set_free(standing), &mut device).0.is_ok());
    assert!(device.keys.is_empty());
}

#[test]
fn who_may_be_alive_is_shut_out_with_preempt_and_abort_or_not_at_all() {
    let mut keys = [0; crate::fencing::SILENT_KEYS_MAX];
    keys[0] = ALIVE;
    let silent = Removes::Silent { proven: [None; 2], keys };
    let try_out = || Steps::try_out(Standing::default(), fence(silent));
    let fenced = |standing| Steps::fence(standing, fence(silent));

    let mut device = Device::with(&[ALIVE]);
    let (end, standing, _) = run(try_out(), &mut device);
    assert_eq!((end, device.keys.clone()), (Ok(()), vec![ALIVE, OWN]));
    assert!(!standing.exclusive && !standing.is_wary);
    let (end, standing, _) = run(fenced(standing), &mut device);
    assert!(end.is_ok() && standing.exclusive && standing.is_wary && device.keys.len() == 1);

    // Who was tried out is as it was, once the registration is given back.
    for mut device in [
        Device { has_no_abort: true, ..Device::with(&[ALIVE]) },
        Device { has_none: true, ..Device::default() },
    ] {
        let before = device.keys.clone();
        let (end, standing, _) = run(try_out(), &mut device);
        assert_eq!(end, Err(FenceError::CannotShutOut));
        run(Steps::renounce(standing), &mut device).0.unwrap();
        assert_eq!(device.keys, before);
    }
    let mut device = Device { has_no_abort: true, ..Device::with(&[ALIVE]) };
    let (end, standing, _) = run(fenced(Standing::default()), &mut device);
    assert!(end == Err(FenceError::CannotShutOut) && !standing.exclusive);
    assert!(device.keys.contains(&ALIVE), "it was not removed");

    // Another run of the same lock, and a stranger, were not judged.
    for other in [ALIVE ^ 0x100, STRANGER] {
        let mut device = Device::with(&[ALIVE, other]);
        let end = run(try_out(), &mut device).0;
        assert_eq!(end, Err(FenceError::Reserved { key: other }));
        assert_eq!(device.asked, [Ask::Keys]);
    }
}
