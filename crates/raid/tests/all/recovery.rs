//! Crashes at moments that few random runs come to, each named for what was lost by it once.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use core::ops::Range;
use std::collections::VecDeque;

use netraid_block::{Buf, ErrorKind, Op, Pool, SgList};
use netraid_raid::{
    format::{Format, format},
    geometry::Level,
    label::{Holder, Label},
    logged::{
        Action, Event, FoundMember, IoId, Limits, LoggedArray, MemberCaps, NewDevice, OpenConfig,
        RequestId, UserRequest,
    },
    member::{MemberIndex, MemberState},
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, LoggedShape},
};

const CHUNK: usize = 65_536;
const STRIPES: u64 = 280;
const NONE: Range<u64> = 0..0;

/// An array whose requests to members are answered in order, but for those that are held back.
struct World {
    disks: Vec<Vec<u8>>,
    machine: LoggedArray,
    stripe: u64,
    queue: VecDeque<Action>,
    held: Vec<Action>,
    /// Writes to these places, and flushes, are held back.
    holds: Range<u64>,
    holds_flushes: bool,
    /// So are reads of these.
    holds_reads: Range<u64>,
    /// What member 0 cannot read, and how often it was asked for it.
    bad: Range<u64>,
    bad_reads: u64,
    checkpoints: u64,
    openings: u64,
    is_open: bool,
    notices: Vec<String>,
    next: u64,
    read: Option<u8>,
}

fn open(disks: &[Vec<u8>], openings: u64) -> LoggedArray {
    let caps = MemberCaps { volatile_cache: true, can_discard: true };
    let member = |disk: &Vec<u8>| {
        let copy = |copy: usize| {
            let at = LABEL_OFFSETS[copy] as usize;
            Label::decode(&disk[at..at + 4096], copy).ok()
        };
        let label = copy(0).into_iter().chain(copy(1));
        let label = label.max_by_key(|label| (label.generation, label.epoch))?;
        Some(FoundMember { caps, label, checkpoint: None })
    };
    LoggedArray::open(OpenConfig {
        members: disks.iter().map(member).collect(),
        // Something that stands far back in a label changes each time.
        holder: Holder { lock: (5, openings), ..Holder::default() },
        max_io_len: 4 << 20,
        pool: Pool::new(),
        limits: Limits::default(),
    })
    .unwrap()
}

impl World {
    fn new(level: Level, members: usize) -> Self {
        let shape = LoggedShape {
            level,
            members,
            chunk_len: CHUNK as u32,
            block_len: 512,
            logical_stripes: STRIPES,
            physical_stripes: STRIPES + 20,
            log_blocks: 4096,
            format: Format::Two,
        };
        let layout = shape.layout().unwrap();
        let uuids: Vec<[u8; 16]> = (0..members).map(|at| [at as u8 + 1; 16]).collect();
        let disk = |images: Vec<(u64, Vec<u8>)>| {
            let mut disk = vec![0; layout.0.data.end() as usize];
            for (offset, image) in images {
                disk[offset as usize..offset as usize + image.len()].copy_from_slice(&image);
            }
            disk
        };
        let disks: Vec<Vec<u8>> = format(Format::Two, layout, "test", [7; 16], &uuids, 99)
            .into_iter()
            .map(disk)
            .collect();
        let mut world = Self {
            machine: open(&disks, 0),
            disks,
            stripe: layout.1.stripe_data_len(),
            queue: VecDeque::new(),
            held: Vec::new(),
            holds: NONE,
            holds_flushes: false,
            holds_reads: NONE,
            bad: NONE,
            bad_reads: 0,
            checkpoints: 0,
            openings: 0,
            is_open: false,
            notices: Vec::new(),
            next: 0,
            read: None,
        };
        world.settle();
        assert!(world.is_open);
        world
    }

    /// The engine dies, with what it had sent and was not answered; another one opens the array.
    fn crash(&mut self) {
        self.queue.clear();
        self.held.clear();
        (self.holds, self.holds_flushes, self.is_open) = (NONE, false, false);
        self.openings += 1;
        self.machine = open(&self.disks, self.openings);
    }

    /// A stripe that was not flushed, of which a power failure has torn a block, and a PARITY of its
    /// row for another member's. Answers that one, who has the torn block, and where.
    fn torn_beside_parity() -> (Self, usize, usize, usize) {
        let mut world = Self::new(Level::Raid5, 3);
        world.holds_flushes = true;
        let stripe = [vec![0xc0; CHUNK], vec![0xc1; CHUNK]].concat();
        world.write(0, &stripe);
        world.settle();
        world.write(0, &[0xd0; 4096]);
        world.settle();
        world.round();
        let ((first, _), (second, at)) = (world.find(0xc0), world.find(0xc1));
        world.disks[second][at..at + 4096].fill(0);
        (world, first, second, at)
    }

    /// Stripe 0 has been somewhere else before.
    fn written_twice() -> Self {
        let mut world = Self::new(Level::Raid5, 3);
        world.fill();
        for byte in [0xa1, 0xa2] {
            world.write(0, &vec![byte; world.stripe as usize]);
            world.settle();
            world.round();
        }
        world
    }

    /// Where a member's pairs of images of the stripe table's pages are.
    fn pairs(&self, member: usize) -> Vec<usize> {
        let map = self.machine.label().regions.map;
        let starts = (map.offset as usize..map.end() as usize).step_by(8192);
        starts.filter(|at| self.disks[member][*at..*at + 7] == *b"NRSTRIP").collect()
    }

    /// Who holds such pages.
    fn holders(&self) -> Vec<usize> {
        (0..self.disks.len()).filter(|member| !self.pairs(*member).is_empty()).collect()
    }

    /// The newest image, or both, of each page that a member holds is gone.
    fn lose_pages(&mut self, member: usize, both: bool) {
        for at in self.pairs(member) {
            let disk = &mut self.disks[member];
            let newest = usize::from(disk[at + 4096 + 40] > disk[at + 40]);
            let slots = if both { 0..2 } else { newest..newest + 1 };
            disk[at + 4096 * slots.start..at + 4096 * slots.end].fill(0);
        }
    }

    fn poll(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            let holds = match &action {
                Action::Complete { result, .. } => {
                    let data = result.as_ref().unwrap().to_contiguous();
                    self.read = data.first().copied().or(self.read);
                    continue;
                }
                Action::Write { offset, .. } => {
                    self.checkpoints += u64::from(CHECKPOINT_OFFSETS.contains(offset));
                    self.holds.contains(offset)
                }
                Action::Flush { .. } => self.holds_flushes,
                Action::Read { offset, .. } => self.holds_reads.contains(offset),
                _ => false,
            };
            if holds { self.held.push(action) } else { self.queue.push_back(action) }
        }
        while let Some(event) = self.machine.poll_event() {
            self.is_open |= event == Event::Opened;
            if let Event::Notice(text) = event {
                self.notices.push(text);
            }
        }
    }

    fn step(&mut self) -> bool {
        self.poll();
        let Some(action) = self.queue.pop_front() else { return false };
        let (io, data): (IoId, SgList) = match action {
            Action::Read { io, member: MemberIndex(0), offset, len }
                if offset < self.bad.end && self.bad.start < offset + u64::from(len) =>
            {
                self.bad_reads += 1;
                self.machine.handle_io_done(io, Err(ErrorKind::Medium.into()));
                return true;
            }
            Action::Read { io, member, offset, len } => {
                let at = offset as usize;
                let bytes = &self.disks[member.as_usize()][at..at + len as usize];
                (io, Buf::copy_from(bytes).into())
            }
            Action::Write { io, member, offset, data, .. } => {
                let at = offset as usize;
                data.copy_to(&mut self.disks[member.as_usize()][at..at + data.len()]);
                (io, SgList::new())
            }
            Action::Flush { io, .. } | Action::Discard { io, .. } => (io, SgList::new()),
            Action::Complete { .. } => unreachable!(),
        };
        self.machine.handle_io_done(io, Ok(data));
        true
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    fn submit(&mut self, op: Op, offset: u64, len: u64, data: SgList) {
        let id = RequestId(self.next);
        self.next += 1;
        self.machine.handle_request(id, UserRequest { op, offset, len, fua: false, data });
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.submit(Op::Write, offset, bytes.len() as u64, Buf::copy_from(bytes).into());
    }

    fn read(&mut self, offset: u64) -> u8 {
        self.submit(Op::Read, offset, 4096, SgList::new());
        self.settle();
        self.read.unwrap()
    }

    fn fill(&mut self) {
        for stripe in 0..STRIPES {
            self.write(stripe * self.stripe, &vec![1; self.stripe as usize]);
            self.settle();
        }
        self.round();
    }

    fn round(&mut self) {
        self.machine.handle_idle();
        self.settle();
    }

    fn dirty(&self) -> u64 {
        self.machine.usage().dirty_blocks
    }

    /// Where a chunk that ends with such bytes is.
    fn find(&self, byte: u8) -> (usize, usize) {
        let is_it = |disk: &Vec<u8>, at: usize| {
            disk.get(at + 8192..at + CHUNK).is_some_and(|one| one.iter().all(|one| *one == byte))
        };
        let places = |disk: &Vec<u8>| (0..disk.len()).step_by(CHUNK).find(|at| is_it(disk, *at));
        let mut found = self.disks.iter().enumerate();
        found.find_map(|(member, disk)| places(disk).map(|at| (member, at))).unwrap()
    }

    /// A mirror of two whose first stripe was written as a whole twice, the second time without a flush; a block
    /// of that has rotted on member 0. Answers where.
    fn rotten_after_a_crash() -> (Self, usize) {
        let mut world = Self::new(Level::Raid1, 2);
        world.write(0, &vec![1; world.stripe as usize]);
        world.settle();
        world.round();
        world.holds_flushes = true;
        world.write(0, &vec![2; world.stripe as usize]);
        world.settle();
        // The head of what follows says that it was acknowledged.
        world.write(world.stripe, &[3; 4096]);
        world.settle();
        let (member, at) = world.find(2);
        assert_eq!(member, 0);
        world.disks[0][at..at + 4096].fill(0);
        (world, at)
    }

    /// Opens the array after a crash, until it has asked both members of a mirror for something in a place; the
    /// answer of member 0 comes next.
    fn crash_and_hold_reads_of(&mut self, place: Range<u64>) {
        self.crash();
        self.holds_reads = place;
        self.settle();
        assert!(!self.is_open);
        self.let_member_0_answer();
    }

    /// Of what both members of a mirror were asked for, member 0 answers next, and the other one never.
    fn let_member_0_answer(&mut self) {
        assert_eq!(self.held.len(), 2, "both are asked: {:?}", self.held);
        self.holds_reads = NONE;
        let is_of_0 = |held: &Action| matches!(held, Action::Read { member: MemberIndex(0), .. });
        self.queue.extend(core::mem::take(&mut self.held).into_iter().filter(is_of_0));
    }

    /// Of a write that is held back the first logical block arrives, and no more.
    fn tear(&mut self, action: &Action) {
        if let Action::Write { member, offset, data, .. } = action {
            let at = *offset as usize;
            let bytes = data.to_contiguous();
            self.disks[member.as_usize()][at..at + 512].copy_from_slice(&bytes[..512]);
        }
    }
}

/// A disk may take seconds to say that it cannot read a block. Of the log it was asked for such a block with every batch
/// that stands up to 64 blocks before it.
#[test]
fn a_block_of_the_log_that_cannot_be_read_is_asked_for_a_few_times_only() {
    let mut world = World::new(Level::Raid1, 2);
    world.holds_flushes = true;
    for block in 0..30 {
        world.write(block * 4096, &[block as u8 + 1; 4096]);
        world.settle();
    }
    let place = world.machine.label().regions.log.offset + 50 * 4096;
    world.bad = place..place + 4096;
    world.crash();
    world.settle();
    assert!(world.is_open && (1..=8).contains(&world.bad_reads), "{}", world.bad_reads);
    for block in 0..30 {
        assert_eq!(world.read(block * 4096), block as u8 + 1);
    }
}

/// Blocks that a round brought home although they are newer than its cut stand in the log behind the
/// tail: a recovery that took them for dirty had no room to bring all home again, and never ended.
#[test]
fn what_rounds_brought_home_beyond_their_cut_needs_no_room_after_a_crash() {
    for (level, members, newer, more) in [(Level::Raid5, 3, 4, 5), (Level::Raid6, 4, 3, 3)] {
        let mut world = World::new(level, members);
        world.fill();
        let (stripe, block) = (world.stripe, [2; 4096]);
        (0..256).for_each(|at| world.write(at * stripe, &block));
        world.settle();
        let before = world.checkpoints;
        world.machine.handle_idle();
        world.poll();
        // The round has its cut. Newer blocks of stripes that it has yet to come to.
        for at in 64..256 {
            (1..=newer).for_each(|within| world.write(at * stripe + within * 4096, &block));
        }
        while (world.dirty() > 700 || world.checkpoints > before) && world.step() {}
        for at in 0..48 {
            (1..=more).for_each(|within| world.write(at * stripe + within * 4096, &block));
        }
        while world.checkpoints == before && world.step() {}
        // The next checkpoint does not come, and users take what room there is.
        while world.checkpoints < before + 2 * members as u64 && !world.queue.is_empty() {
            world.step();
            if world.checkpoints >= before + members as u64 {
                world.holds = CHECKPOINT_OFFSETS[0]..CHECKPOINT_OFFSETS[1] + 1;
            }
        }
        world.settle();
        world.holds = CHECKPOINT_OFFSETS[0]..CHECKPOINT_OFFSETS[1] + 1;
        world.round();
        for at in 0..256 {
            (8..14).for_each(|within| world.write(at * stripe + within * 4096, &block));
        }
        world.settle();
        world.crash();
        world.settle();
        assert!(world.is_open);
        (0..5).for_each(|_| world.round());
        assert_eq!(world.dirty(), 0, "a round that does not end");
    }
}

/// A row of a stripe that was not flushed lost a block with the power, and a PARITY for another
/// column of it was in the log: the block stayed wrong, one member too early.
#[test]
fn a_lost_block_of_a_row_that_parity_names_is_mended_at_recovery() {
    let (mut world, first, second, at) = World::torn_beside_parity();
    world.crash();
    world.settle();
    assert!(world.disks[second][at..at + 4096].iter().all(|byte| *byte == 0xc1));
    world.machine.handle_gone(MemberIndex(first as u8), "lost");
    world.settle();
    assert_eq!((world.read(0), world.read(CHUNK as u64)), (0xd0, 0xc1));
}

/// The same, and the member whose change the PARITY names is lost too: only the log knew its new
/// block, and recovery forgot that before it had mended the other one.
#[test]
fn a_lost_block_is_mended_while_the_log_knows_what_an_absent_member_was_to_hold() {
    let (mut world, first, ..) = World::torn_beside_parity();
    world.disks[first].fill(0);
    world.crash();
    world.settle();
    assert_eq!((world.read(0), world.read(CHUNK as u64)), (0xd0, 0xc1));
}

/// One holder's newest image rots, and a power loss cuts the next one short: the next one had gone
/// over the newest on all holders, so that the one before it counted.
#[test]
fn a_page_that_rots_before_a_power_loss_is_not_older_after_it() {
    let mut world = World::written_twice();
    let map = world.machine.label().regions.map;
    world.crash();
    let at = map.offset as usize;
    let counter = |disk: &Vec<u8>, slot: usize| {
        let at = at + 4096 * slot;
        let is_page = disk[at..at + 7] == *b"NRSTRIP";
        is_page.then(|| u64::from_le_bytes(disk[at + 40..at + 48].try_into().unwrap()))
    };
    let holder = (0..3).find(|member| counter(&world.disks[*member], 0).is_some()).unwrap();
    let newest = [0, 1].into_iter().max_by_key(|slot| counter(&world.disks[holder], *slot));
    world.disks[holder][at + 4096 * newest.unwrap() + 100] ^= 1;
    // The crash above found it whole; this one finds it rotten.
    world.crash();
    world.settle();
    assert_eq!(world.read(0), 0xa2);
    world.write(200 * world.stripe, &[0xb1; 4096]);
    world.settle();
    world.holds = map.offset..map.offset + map.len;
    world.round();
    assert!(!world.held.is_empty());
    for action in core::mem::take(&mut world.held) {
        world.tear(&action);
    }
    world.crash();
    world.settle();
    assert_eq!(world.read(0), 0xa2);
}

/// The newest image of a page of the stripe table is lost on every holder: the one before it said
/// where stripes were then, none at all said that they are nowhere.
#[test]
fn a_stripe_table_that_lacks_a_newest_image_is_not_believed() {
    let mut world = World::written_twice();
    let before = world.disks.clone();
    for loses_both in [false, true] {
        world.disks.clone_from(&before);
        let holders = world.holders();
        for member in &holders {
            world.lose_pages(*member, loses_both);
        }
        // Of two pages, which have a holder in common.
        assert_eq!(holders.len(), 3);
        world.crash();
        world.settle();
        assert!(!world.is_open, "both: {loses_both}");
        let error = world.machine.failure().unwrap().to_string();
        assert!(error.contains("stripe table"), "{error}");
    }
    world.disks = before;
    world.crash();
    world.settle();
    assert_eq!(world.read(0), 0xa2);
}

/// An opening that is refused for what an absent member has says nowhere that it goes on without
/// that member: it did, and then nobody asked that member any more.
#[test]
fn an_opening_that_is_refused_without_a_member_leaves_it_in_the_array() {
    let mut world = World::new(Level::Raid5, 3);
    world.fill();
    world.write(0, &vec![0xa2; world.stripe as usize]);
    world.settle();
    world.round();
    let holders = world.holders();
    // One holder's copy rots, and the other holder is away for a while.
    world.lose_pages(holders[0], true);
    let away = core::mem::replace(&mut world.disks[holders[1]], vec![0; 1 << 20]);
    world.crash();
    world.settle();
    assert!(!world.is_open);
    world.disks[holders[1]] = away;
    world.crash();
    world.settle();
    assert!(world.is_open);
    assert_eq!(world.read(0), 0xa2);
}

/// A member was replaced while the newest image of a page had rotted on its other holder: both had
/// the image before it then, the array was closed, and did not open any more.
#[test]
fn a_page_that_nobody_has_is_written_again_when_a_member_catches_up() {
    let mut world = World::written_twice();
    let holders = world.holders();
    let member = MemberIndex(holders[0] as u8);
    world.machine.handle_gone(member, "lost");
    world.settle();
    world.lose_pages(holders[1], false);
    world.disks[holders[0]].fill(0);
    let caps = MemberCaps { volatile_cache: true, can_discard: true };
    world.machine.handle_replace(member, NewDevice { uuid: [9; 16], caps });
    world.settle();
    assert_eq!(world.machine.member_state(member), MemberState::InSync);
    world.machine.handle_close();
    world.settle();
    world.crash();
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
    assert_eq!(world.read(0), 0xa2);
}

/// A page of checksums was being read from the only member that was in sync, and its newest image could
/// not be: another member had come in sync meanwhile and had it, and nobody asked that one.
#[test]
fn a_page_of_checksums_that_is_read_while_a_member_comes_in_sync_is_not_lost() {
    let mut world = World::new(Level::Raid1, 2);
    world.fill();
    let last = (STRIPES - 1) * world.stripe;
    world.write(last, &[0xa1; 4096]);
    world.settle();
    world.round();
    // Member 1 is away, while something changes whose checksums stand in another page.
    let label = |copy: usize| LABEL_OFFSETS[copy] as usize..LABEL_OFFSETS[copy] as usize + 4096;
    let labels = [0, 1].map(|copy| world.disks[1][label(copy)].to_vec());
    [0, 1].into_iter().for_each(|copy| world.disks[1][label(copy)].fill(0));
    world.crash();
    world.settle();
    world.write(0, &[0xb1; 4096]);
    world.settle();
    world.round();
    for (copy, bytes) in labels.iter().enumerate() {
        world.disks[1][label(copy)].copy_from_slice(bytes);
    }
    world.crash();
    let sums = world.machine.label().regions.sums;
    let sums = sums.offset..sums.end();
    let is_copied = |action: &Action| matches!(action, Action::Write { member: MemberIndex(1), offset, .. } if sums.contains(offset));
    while !world.queue.iter().any(is_copied) {
        assert!(world.step(), "it has not caught up its tables");
    }
    // It gets its tables, and somebody reads.
    world.holds_reads = sums;
    world.submit(Op::Read, last, 4096, SgList::new());
    world.poll();
    world.holds_reads = NONE;
    let held = core::mem::take(&mut world.held);
    let [Action::Read { member: MemberIndex(0), offset, len: 8192, .. }] = held[..] else {
        panic!("{held:?}")
    };
    world.settle();
    assert_eq!(world.machine.member_state(MemberIndex(1)), MemberState::InSync);
    let counter = |slot: u64| world.disks[0][(offset + 4096 * slot) as usize + 40];
    let newest = offset + 4096 * u64::from(counter(1) > counter(0));
    world.bad = newest..newest + 4096;
    world.queue.extend(held);
    world.settle();
    assert_eq!(world.read, Some(0xa1));
}

/// All members have the newest label in copy 0 alone, and the next update tears that.
#[test]
fn label_updates_that_are_cut_short_twice_leave_an_array_that_opens() {
    let mut world = World::new(Level::Raid5, 3);
    world.crash();
    world.holds = LABEL_OFFSETS[1]..LABEL_OFFSETS[1] + 1;
    world.settle();
    assert!(!world.is_open && !world.held.is_empty());
    for _ in 0..8 {
        world.crash();
        world.holds = LABEL_OFFSETS[0]..LABEL_OFFSETS[0] + 1;
        world.settle();
        assert!(!world.is_open && !world.held.is_empty());
        for action in core::mem::take(&mut world.held) {
            match &action {
                Action::Write { member: MemberIndex(0), offset, data, .. } => {
                    let at = *offset as usize;
                    data.copy_to(&mut world.disks[0][at..at + data.len()]);
                }
                _ => world.tear(&action),
            }
        }
    }
    world.crash();
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
}

/// A mirror's only member in sync left while labels were being written that say of another one that it
/// has caught up. The array went on with that one alone; and whoever found the first one alone later
/// knew of nobody else, and went on with what that had.
#[test]
fn a_member_that_never_heard_of_another_in_sync_is_not_left_behind() {
    let mut world = World::new(Level::Raid1, 2);
    world.write(0, &[1; 4096]);
    world.settle();
    world.machine.handle_gone(MemberIndex(1), "lost");
    world.settle();
    let caps = MemberCaps { volatile_cache: true, can_discard: true };
    world.machine.handle_replace(MemberIndex(1), NewDevice { uuid: [9; 16], caps });
    world.poll();
    while world.machine.member_state(MemberIndex(1)) != MemberState::InSync && world.step() {
        world.poll();
    }
    let is_label = |action: &Action| matches!(action, Action::Write { offset, .. } if *offset == LABEL_OFFSETS[0]);
    assert!(world.queue.len() == 2 && world.queue.iter().all(is_label));
    let may_go = world.machine.check_lose(MemberIndex(0)).is_ok();
    world.queue.retain(|action| matches!(action, Action::Write { member: MemberIndex(1), .. }));
    world.machine.handle_gone(MemberIndex(0), "lost");
    world.settle();
    if world.machine.failure().is_none() {
        world.write(0, &[2; 4096]);
        world.settle();
        world.disks[1].fill(0);
        world.crash();
        world.settle();
        assert_eq!(world.read(0), 2, "it was acknowledged, and member 0 goes on without it");
    }
    assert!(!may_go, "nor may it be set aside by command");
    world.crash();
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
    assert_eq!(world.read(0), 1);
    assert!(world.machine.check_lose(MemberIndex(0)).is_ok(), "both know of each other");
}

/// A member left while a stripe was looked at whose other copy had just been read wrong: the REMAP was dropped
/// without another look, and what was acknowledged read as what was there before.
#[test]
fn a_stripe_is_looked_at_again_when_a_member_leaves_while_it_is_judged() {
    let (mut world, at) = World::rotten_after_a_crash();
    world.crash_and_hold_reads_of(at as u64..at as u64 + 1);
    // Read wrong once, and right the next time.
    world.settle();
    world.disks[0][at..at + 4096].fill(2);
    world.machine.handle_gone(MemberIndex(1), "lost");
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
    assert_eq!((world.read(0), world.notices.len()), (2, 0));
}

/// The same where the log is read: it ended before what was acknowledged.
#[test]
fn the_log_is_read_again_when_a_member_leaves_while_it_is_read() {
    let mut world = World::new(Level::Raid1, 2);
    world.holds_flushes = true;
    for byte in [5, 6, 7] {
        world.write(0, &[byte; 4096]);
        world.settle();
    }
    let log = world.machine.label().regions.log;
    let mut blocks = (log.offset as usize..log.end() as usize).step_by(4096);
    let at = blocks.find(|at| world.disks[0][*at..*at + 4096] == [5; 4096]).unwrap();
    world.disks[0][at..at + 4096].fill(0);
    world.crash_and_hold_reads_of(log.offset..log.end());
    world.settle();
    world.disks[0][at..at + 4096].fill(5);
    world.machine.handle_gone(MemberIndex(1), "lost");
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
    assert_eq!((world.read(0), world.notices.len()), (7, 0));
}

/// The same where a page of checksums is read: its rows were taken for lost.
#[test]
fn a_page_of_checksums_is_read_again_when_a_member_leaves_while_it_is_read() {
    let mut world = World::new(Level::Raid1, 2);
    world.fill();
    world.crash();
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
    let sums = world.machine.label().regions.sums;
    let place = sums.offset as usize..sums.end() as usize;
    let sound = world.disks[0][place.clone()].to_vec();
    world.disks[0][place.clone()].fill(0);
    world.holds_reads = sums.offset..sums.end();
    world.submit(Op::Read, 0, 4096, SgList::new());
    world.settle();
    world.let_member_0_answer();
    world.settle();
    world.disks[0][place].copy_from_slice(&sound);
    world.machine.handle_gone(MemberIndex(1), "lost");
    world.settle();
    assert_eq!(world.read, Some(1));
}

/// What stays wrong is more than a mirror of two bears: what was there before is read, and that is told.
#[test]
fn acknowledged_writes_that_an_opening_drops_are_told() {
    let (mut world, at) = World::rotten_after_a_crash();
    world.crash_and_hold_reads_of(at as u64..at as u64 + 1);
    world.machine.handle_gone(MemberIndex(1), "lost");
    world.settle();
    assert!(world.is_open, "{:?}", world.machine.failure());
    assert_eq!(world.read(0), 1);
    let [notice] = &world.notices[..] else { panic!("{:?}", world.notices) };
    assert!(notice.contains("acknowledged and not flushed are lost: of 1 stripe"), "{notice}");
}
