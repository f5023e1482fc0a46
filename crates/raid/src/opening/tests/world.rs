//! Devices of an array that is opened, how this engine stands at them, and what they are asked.

use alloc::{vec, vec::Vec};

use netraid_block::{Buf, ErrorKind};

use super::*;
use crate::{
    fencing::has_engine,
    heartbeat::Heartbeat,
    label::Closure,
    regions::HEARTBEAT_OFFSETS,
    written::{WrittenBits, tests::region_of},
};

/// More steps than any opening has.
pub(super) const STEPS_MAX: usize = 200;
pub(super) const LOCK: (u64, u64) = (1, 77);

/// What a device is asked for, where that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Visit,
    Label,
    TakeOver,
    TryOut,
    Attend,
    Fence,
    LabelAgain,
    Read,
}

/// A device, and how this engine stands at it.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) info: DeviceInfo,
    pub(super) label: Result<Label, LabelError>,
    /// Registered by others.
    pub(super) keys: Vec<u64>,
    pub(super) has_reservations: bool,
    pub(super) heartbeat: Option<Heartbeat>,
    /// By pages: how many images of written bits it has seen.
    pub(super) images: u64,
    pub(super) fails: Option<(When, ErrorKind)>,
    pub(super) is_visited: bool,
    pub(super) is_taken_over: bool,
    pub(super) is_fenced: bool,
    pub(super) was_closed: bool,
}

/// Devices and a machine.
#[derive(Clone)]
pub(super) struct World {
    pub(super) disks: Vec<Disk>,
    /// The lock that this machine has to give.
    pub(super) lock: Result<(u64, u64), ErrorKind>,
    pub(super) has_lock: bool,
    /// What others do while the lock is taken.
    pub(super) meanwhile: Option<fn(&mut [Disk])>,
    pub(super) asked: Vec<(usize, access::Ask)>,
}

pub(super) fn this() -> Holder {
    Holder { name: "host".into(), machine_id: [5; 16], boot_id: [3; 16], ..Holder::default() }
}

/// A holder on this machine, which held this very lock.
pub(super) fn dead() -> Holder {
    Holder { lock: LOCK, ..this() }
}

pub(super) fn another_machine() -> Holder {
    Holder { name: "another".into(), machine_id: [6; 16], boot_id: [4; 16], lock: (1, 2), ..this() }
}

pub(super) fn key(holder: &Holder) -> u64 {
    key_of_holder(&[9; 16], holder) | 1
}

pub(super) fn label(level: Level, members: usize, with_log: bool) -> Label {
    let mut label = if with_log { logged_sample(level, members) } else { sample(level, members) };
    for entry in &mut label.members {
        (entry.state, entry.lack) = (MemberState::InSync, Lack::NOTHING);
    }
    label
}

impl Disk {
    pub(super) fn new(label: Label) -> Self {
        let info = DeviceInfo {
            capacity: 1 << 30,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        };
        Self {
            info,
            label: Ok(label),
            keys: vec![],
            has_reservations: true,
            heartbeat: None,
            images: 3,
            fails: None,
            is_visited: false,
            is_taken_over: false,
            is_fenced: false,
            was_closed: false,
        }
    }

    pub(super) fn label_mut(&mut self) -> &mut Label {
        self.label.as_mut().unwrap()
    }

    pub(super) fn answer(&mut self, ask: &access::Ask) -> access::Answer<IoError> {
        let when = match ask {
            access::Ask::Visit => Some(When::Visit),
            access::Ask::Label if self.is_taken_over => Some(When::LabelAgain),
            access::Ask::Label => Some(When::Label),
            access::Ask::TakeOver { .. } => Some(When::TakeOver),
            access::Ask::TryOut(_) => Some(When::TryOut),
            access::Ask::Fence(_) | access::Ask::FenceAgain { .. } => Some(When::Fence),
            access::Ask::Read { .. } => Some(When::Read),
            access::Ask::Checkpoint(_)
            | access::Ask::Keys
            | access::Ask::Close
            | access::Ask::Leave => None,
            access::Ask::Attend(_) if self.fails.is_some_and(|(at, _)| at == When::Attend) => {
                Some(When::Attend)
            }
            access::Ask::Attend(reader) => {
                let writer = self.keys.iter().find(|key| has_engine(&[**key]));
                if let Some(key) = writer.filter(|key| !reader.may_remove(**key)) {
                    return access::Answer::NotFenced(FenceError::Reserved { key: *key });
                }
                return access::Answer::Fenced { exclusive: false };
            }
            access::Ask::Unused
            | access::Ask::Announce { .. }
            | access::Ask::FenceKnown { .. }
            | access::Ask::ProveWritable { .. }
            | access::Ask::ReserveTables(_) => panic!("{ask:?} is not asked here"),
        };
        if let Some((_, kind)) = self.fails.filter(|(at, _)| Some(*at) == when) {
            let (what, reason) = ("fencing", IoError::from(kind));
            return match when {
                Some(When::TryOut | When::Attend | When::Fence) => {
                    access::Answer::NotFenced(FenceError::Failed { what, reason })
                }
                _ => access::Answer::Failed(reason),
            };
        }
        assert!(self.is_visited || *ask == access::Ask::Visit, "{ask:?} without a session");
        match ask {
            access::Ask::Label => return access::Answer::Label(self.label.clone().map(Box::new)),
            access::Ask::Checkpoint(_) => return access::Answer::Checkpoint(None),
            access::Ask::Read { offset, len, .. } if HEARTBEAT_OFFSETS.contains(offset) => {
                let mut page = vec![0; usize::try_from(*len).unwrap()];
                if let Some(beat) = self.heartbeat.filter(|beat| beat.offset() == *offset) {
                    page = beat.encode([9; 16]);
                }
                return access::Answer::Bytes(Buf::copy_from(&page));
            }
            access::Ask::Read { len, .. } => return self.read(*len),
            access::Ask::TryOut(fence) => return self.try_out(*fence),
            access::Ask::Fence(fence) | access::Ask::FenceAgain { fence, .. } => {
                return self.fence(*fence);
            }
            access::Ask::Keys => {
                return access::Answer::Keys { keys: self.keys.clone(), is_cut: false };
            }
            access::Ask::Visit => self.is_visited = true,
            access::Ask::TakeOver { .. } => self.is_taken_over = true,
            access::Ask::Close | access::Ask::Leave => {
                assert!(!self.is_fenced || *ask == access::Ask::Leave, "a registration stays");
                (self.is_visited, self.is_taken_over, self.is_fenced) = (false, false, false);
                self.was_closed = true;
                return access::Answer::Done;
            }
            access::Ask::Unused
            | access::Ask::Attend(_)
            | access::Ask::Announce { .. }
            | access::Ask::FenceKnown { .. }
            | access::Ask::ProveWritable { .. }
            | access::Ask::ReserveTables(_) => {}
        }
        access::Answer::Device(self.info.clone())
    }

    pub(super) fn read(&self, len: u64) -> access::Answer<IoError> {
        let Ok(label) = &self.label else { panic!("read without a label") };
        let stripes = label.geometry.stripes();
        let pages = WrittenBits::new(label.array_uuid, stripes).pages();
        let bytes = match self.images {
            0 => vec![0; usize::try_from(len).unwrap()],
            images => {
                let images = vec![images; usize::try_from(pages).unwrap()];
                region_of(label.array_uuid, stripes, &label.regions.written, &images)
            }
        };
        assert_eq!(bytes.len() as u64, len);
        access::Answer::Bytes(Buf::copy_from(&bytes))
    }

    fn try_out(&self, fence: Fence) -> access::Answer<IoError> {
        if let Some(key) = self.keys.iter().find(|key| !fence.may_remove(**key)) {
            return access::Answer::NotFenced(FenceError::Reserved { key: *key });
        }
        match self.has_reservations {
            true => access::Answer::Fenced { exclusive: false },
            false => access::Answer::NotFenced(FenceError::CannotShutOut),
        }
    }

    pub(super) fn fence(&mut self, fence: Fence) -> access::Answer<IoError> {
        assert!(self.is_taken_over, "fenced by a visit");
        if let Some(key) = self.keys.iter().find(|key| !fence.may_remove(**key)) {
            return access::Answer::NotFenced(FenceError::Reserved { key: *key });
        }
        self.keys.clear();
        self.is_fenced = true;
        access::Answer::Fenced { exclusive: self.has_reservations }
    }
}

impl World {
    pub(super) fn new(label: &Label) -> Self {
        let disk = |index| Disk::new(Label { index, ..label.clone() });
        let disks = label.geometry.member_indices().map(disk).collect();
        Self { disks, lock: Ok(LOCK), has_lock: false, meanwhile: None, asked: vec![] }
    }

    /// Four members of level 5.
    pub(super) fn of(with_log: bool) -> Self {
        Self::new(&label(Level::Raid5, 4, with_log))
    }

    /// It was not closed, and this is who had it.
    pub(super) fn held_by(holder: &Holder, with_log: bool) -> Self {
        let mut world = Self::of(with_log);
        world.labels(|label| (label.closure, label.holder) = (Closure::Open, holder.clone()));
        world
    }

    pub(super) fn labels(&mut self, change: impl Fn(&mut Label)) {
        self.disks.iter_mut().for_each(|disk| change(disk.label_mut()));
    }

    pub(super) fn names(&self) -> Vec<String> {
        (0..self.disks.len()).map(|at| alloc::format!("m{at}")).collect()
    }

    pub(super) fn answer(&mut self, ask: Ask) -> Answer<IoError> {
        match ask {
            Ask::Each(asks) => {
                let answers = asks.iter().map(|(at, ask)| self.disks[*at].answer(ask)).collect();
                self.asked.extend(asks);
                Answer::Each(answers)
            }
            Ask::Lock(_) => {
                assert!(!self.has_lock, "locked twice");
                self.has_lock = self.lock.is_ok();
                if let Some(change) = self.meanwhile {
                    change(&mut self.disks);
                }
                Answer::Lock(self.lock.map_err(IoError::from))
            }
        }
    }

    pub(super) fn run<T>(&mut self, mut steps: Steps<IoError, T>) -> End<IoError, T> {
        for _ in 0..STEPS_MAX {
            match steps.poll() {
                Step::Ask(ask) => {
                    let answer = self.answer(ask);
                    steps.answer(answer);
                }
                Step::Done(end) => return end,
            }
        }
        panic!("it goes in circles: {:?}", self.asked)
    }

    pub(super) fn open(&mut self, options: Options) -> End<IoError, Opened<IoError>> {
        let limits = Limits::default();
        let engine = Engine { this: this(), random: 0x12_3456_789a, pool: Pool::new(), limits };
        let steps = Steps::open(options, self.names(), engine);
        self.run(steps)
    }

    /// Why it does not open; everything was given back.
    pub(super) fn refusal(&mut self, options: Options) -> OpenError<IoError> {
        let error = self.open(options).expect_err("it opens").error;
        for (at, disk) in self.disks.iter().enumerate() {
            assert!(!disk.is_visited && !disk.is_fenced, "device {at} is not given back");
        }
        error
    }

    /// Devices of which something like this was asked, in this order.
    pub(super) fn places(&self, is_it: impl Fn(&access::Ask) -> bool) -> Vec<usize> {
        self.asked.iter().filter(|(_, ask)| is_it(ask)).map(|(at, _)| *at).collect()
    }

    pub(super) fn taken_over(&self) -> Vec<usize> {
        self.places(|ask| matches!(ask, access::Ask::TakeOver { .. }))
    }

    pub(super) fn fenced(&self) -> Vec<usize> {
        self.places(|ask| matches!(ask, access::Ask::Fence(_)))
    }

    pub(super) fn left(&self) -> Vec<usize> {
        self.places(|ask| *ask == access::Ask::Leave)
    }
}
