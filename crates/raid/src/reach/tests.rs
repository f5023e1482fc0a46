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
            steps::Ask::Keys => steps::Answer::Keys { keys: Vec::new(), is_cut: false },
            steps::Ask::Register { .. } if self.seen.is_silent.get() => pending().await,
            other => unreachable!("{other:?}"),
        }
    }

    fn tell(&self, notice: Notice) {
        unreachable!("{notice:?}");
    }

    fn rely_on(&self, cache_losses: u64) {
        self.seen.relied.set(Some(cache_losses));
    }

    fn note_leaving(&self) {}

    async fn close(&self) {
        self.seen.say(format!("close {}", self.name));
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
fn a_cache_that_is_lost_after_the_first_look_counts_until_the_device_is_proven_anew() {
    let (seen, mut device) = device();
    seen.losses.set(3);
    ask(&mut device, take_over());
    seen.losses.set(4);
    ask(&mut device, Ask::Label);
    // What was read may not be there any more: requests are to end unsent.
    assert_eq!(device_of(device.sessions().unwrap()).cache_losses, 3);
    assert_eq!(seen.relied.take(), Some(3));

    assert!(matches!(ask(&mut device, Ask::ProveWritable { data_end: 2 << 20 }), Answer::Done));
    seen.losses.set(5);
    assert_eq!(device_of(device.sessions().unwrap()).cache_losses, 4);
    assert_eq!(seen.relied.take(), Some(4));
}

#[test]
fn a_registration_that_is_not_answered_is_there_to_be_given_back() {
    let (seen, mut device) = device();
    ask(&mut device, take_over());
    let mut sessions = device.take_sessions();
    seen.is_silent.set(true);
    let asked = Fence::against_all(1);
    {
        let steps = Steps::announce(Standing::default(), asked, BTreeSet::new());
        let mut fencing = pin!(fence(&mut sessions, steps));
        let poll = fencing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll, Poll::Pending);
    }
    assert_eq!(sessions.hold().standing.registered, Some(asked.key(false)));
}
