use alloc::{format, rc::Rc, vec::Vec};
use core::{
    cell::{Cell, RefCell},
    future::pending,
    pin::pin,
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt;
use netraid_block::{Buf, IoError, Op, RequestFlags, SgList};

use super::*;
use crate::fencing::Fence;

const ARRAY: Uuid = [7; 16];
const MACHINE: Uuid = [1; 16];
const FORMER: Uuid = [2; 16];

/// A device that reads as zeros, and what it saw.
#[derive(Debug, Default)]
struct Seen {
    said: RefCell<Vec<String>>,
    losses: Cell<u64>,
    relied: Cell<Option<u64>>,
    /// It loses its cache at the next flush.
    loses_at_flush: Cell<bool>,
    /// It loses its cache when a visit is closed.
    loses_at_close: Cell<bool>,
    /// No session is made by this machine's present identity.
    refuses: Cell<bool>,
    /// It does not answer a registration.
    is_silent: Cell<bool>,
}

#[derive(Debug, Clone)]
struct Line {
    seen: Rc<Seen>,
    info: DeviceInfo,
    name: String,
    hold: Hold,
}

struct Way(Rc<Seen>);

impl Seen {
    fn say(&self, text: String) {
        self.said.borrow_mut().push(text);
    }
}

impl Medium for Line {
    type Error = IoError;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn cache_losses(&self) -> u64 {
        self.seen.losses.get()
    }

    async fn request(
        &self,
        (op, _, len): (Op, u64, u64),
        _: RequestFlags,
        _: SgList,
    ) -> Result<SgList, IoError> {
        if op == Op::Flush && self.seen.loses_at_flush.take() {
            self.seen.losses.set(self.seen.losses.get() + 1);
        }
        match op {
            Op::Read => Ok(Buf::zeroes(usize::try_from(len).unwrap()).into()),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => {
                Ok(SgList::new())
            }
        }
    }

    async fn is_reserved(&self) -> Result<bool, IoError> {
        Ok(false)
    }

    fn failure(&self, _: &'static str, reason: IoError) -> IoError {
        reason
    }

    fn in_use(&self, what: String) -> IoError {
        unreachable!("{what}")
    }
}

impl Sessions for Line {
    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }

    fn address(&self) -> String {
        self.name.clone()
    }

    async fn ask(&self, ask: steps::Ask) -> steps::Answer {
        match ask {
            steps::Ask::Keys => steps::Answer::Keys { keys: [5].into(), is_cut: true },
            steps::Ask::Register { .. } if self.seen.is_silent.get() => pending().await,
            steps::Ask::Register { .. } => steps::Answer::Done,
            steps::Ask::Presence => steps::Answer::Presence(true),
            steps::Ask::Unregister => {
                self.seen.say("unregister".into());
                steps::Answer::Done
            }
            other @ (steps::Ask::Reservation
            | steps::Ask::Reserve(_)
            | steps::Ask::Release(_)
            | steps::Ask::Preempt { .. }
            | steps::Ask::Clear(_)) => unreachable!("{other:?}"),
        }
    }

    fn tell(&self, notice: Notice) {
        unreachable!("{notice:?}");
    }

    fn rely_on(&self, cache_losses: u64) {
        self.seen.relied.set(Some(cache_losses));
    }

    fn note_leaving(&self) {
        self.seen.say("leaving".into());
    }

    async fn close(&self) {
        self.seen.say(format!("close {}", self.name));
        if self.seen.loses_at_close.take() {
            self.seen.losses.set(self.seen.losses.get() + 1);
        }
    }
}

impl Dial for Way {
    type Sessions = Line;

    async fn dial(&self, isid: Option<[u8; 6]>) -> Result<Line, IoError> {
        let name = match isid {
            None => "visit".into(),
            Some(isid) if isid == engine_isid(MACHINE, ARRAY, self.place()) => "today's".into(),
            Some(isid) if isid == engine_isid(FORMER, ARRAY, self.place()) => "former".into(),
            Some(isid) => format!("{isid:?}"),
        };
        self.0.say(format!("dial {name}"));
        if self.0.refuses.get() && name == "today's" {
            return Err(netraid_block::ErrorKind::Unreachable.into());
        }
        let info = DeviceInfo {
            capacity: 4 << 20,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: false,
            can_map: false,
        };
        Ok(Line { seen: self.0.clone(), info, name, hold: Hold::default() })
    }

    fn machine(&self) -> Uuid {
        MACHINE
    }

    fn place(&self) -> impl Iterator<Item = u8> {
        core::iter::once(9)
    }

    fn address(&self) -> String {
        "way".into()
    }
}

fn device() -> (Rc<Seen>, Reached<Way>) {
    let seen = Rc::new(Seen::default());
    (seen.clone(), Reached::new(Way(seen)))
}

fn ask(device: &mut Reached<Way>, what: Ask) -> Answer<IoError> {
    device.ask(what).now_or_never().unwrap()
}

fn take_over() -> Ask {
    Ask::TakeOver { array: ARRAY, former: [FORMER].into() }
}

#[test]
fn what_a_machine_had_under_way_by_a_former_identity_ends_before_it_takes_over() {
    let (seen, mut device) = device();
    assert!(matches!(ask(&mut device, Ask::Visit), Answer::Device(_)));
    assert!(matches!(ask(&mut device, take_over()), Answer::Device(_)));
    let said = ["dial visit", "dial former", "close former", "dial today's", "close visit"];
    assert_eq!(*seen.said.borrow(), said);
    assert_eq!(device.take_sessions().name, "today's");
}

#[test]
fn a_visit_stays_where_the_device_cannot_be_taken_over() {
    let (seen, mut device) = device();
    ask(&mut device, Ask::Visit);
    seen.refuses.set(true);
    assert!(matches!(ask(&mut device, take_over()), Answer::Failed(_)));
    assert_eq!(device.sessions().map(|sessions| &*sessions.name), Some("visit"));
    let Answer::Keys { keys, is_cut: true } = ask(&mut device, Ask::Keys) else {
        panic!("no keys")
    };
    assert_eq!(keys, [5]);
    assert!(matches!(ask(&mut device, Ask::Close), Answer::Done));
    assert!(device.sessions().is_none());
}

#[test]
fn a_cache_that_is_lost_once_there_are_sessions_counts() {
    let (seen, mut device) = device();
    seen.losses.set(2);
    assert!(matches!(ask(&mut device, Ask::Visit), Answer::Device(_)));
    seen.losses.set(3);
    seen.loses_at_close.set(true);
    // The former identity's session is closed first; the loss is before the sessions that stay.
    assert!(matches!(ask(&mut device, take_over()), Answer::Device(_)));
    seen.losses.set(5);
    assert!(matches!(ask(&mut device, Ask::Label), Answer::Label(_)));
    assert_eq!(device_of(device.sessions().unwrap()).cache_losses, 4);
    assert_eq!(seen.relied.take(), Some(4));
}

#[test]
fn a_cache_that_is_lost_while_the_visit_is_closed_counts() {
    let (seen, mut device) = device();
    assert!(matches!(ask(&mut device, Ask::Visit), Answer::Device(_)));
    seen.loses_at_close.set(true);
    let take_over = Ask::TakeOver { array: ARRAY, former: BTreeSet::new() };
    assert!(matches!(ask(&mut device, take_over), Answer::Device(_)));
    assert_eq!((seen.losses.get(), device_of(device.sessions().unwrap()).cache_losses), (1, 0));
}

#[test]
fn a_device_that_is_proven_to_take_writes_is_relied_on_anew() {
    let (seen, mut device) = device();
    assert!(matches!(ask(&mut device, take_over()), Answer::Device(_)));
    seen.losses.set(4);
    seen.loses_at_flush.set(true);
    let proven = ask(&mut device, Ask::ProveWritable { data_end: 2 << 20 });
    assert!(matches!(proven, Answer::Done));
    // What was lost while it was proven counts.
    assert_eq!((seen.losses.get(), device_of(device.sessions().unwrap()).cache_losses), (5, 4));
    assert_eq!(seen.relied.take(), Some(4));
}

#[test]
fn a_registration_that_is_not_answered_is_there_to_be_given_back() {
    let (seen, mut device) = device();
    assert!(matches!(ask(&mut device, take_over()), Answer::Device(_)));
    let mut sessions = device.take_sessions();
    seen.is_silent.set(true);
    let asked = Fence::against_all(1);
    {
        let announce = |standing| Steps::announce(standing, asked, BTreeSet::new());
        let mut announcing = pin!(carry_out(&mut sessions, announce));
        let poll = announcing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll, Poll::Pending);
    }
    assert_eq!(sessions.hold().standing.registered, Some(asked.key(false)));
}

#[test]
fn a_device_is_given_back_before_its_sessions_end() {
    let (seen, mut device) = device();
    assert!(matches!(ask(&mut device, take_over()), Answer::Device(_)));
    let announce = Ask::Announce { fence: Fence::against_all(1), known: BTreeSet::new() };
    assert!(matches!(ask(&mut device, announce), Answer::Fenced { exclusive: false }));
    seen.said.borrow_mut().clear();
    assert!(matches!(ask(&mut device, Ask::Leave), Answer::Done));
    assert_eq!(*seen.said.borrow(), ["leaving", "unregister", "close today's"]);
    assert!(device.sessions().is_none());
}
