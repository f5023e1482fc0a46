//! An array of bytes in memory, with the machine around it: for tests that damage a place and look at
//! what comes of it.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use netraid_block::{Buf, ErrorKind, IoError, Op, Pool, SgList};
use netraid_raid::{
    format::{Format, format},
    geometry::{Geometry, Level},
    label::{Holder, Label},
    logged::{
        Action, Event, FoundMember, IoId, Limits, LoggedArray, MemberCaps, OpenConfig, RequestId,
        ScrubCommand, ScrubEvent, ScrubMember, ScrubOptions, ScrubStatus, UserRequest,
    },
    member::MemberIndex,
    pages::TablePages,
    regions::{LABEL_OFFSETS, LoggedShape, Regions},
    sums::{SumLayout, SumPage},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

pub const CHUNK: u32 = 16_384;
pub const ROWS: u32 = CHUNK / 4096;
pub const UUID: [u8; 16] = [7; 16];
pub const LEVELS: [(Level, usize); 4] =
    [(Level::Raid1, 3), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid10, 4)];

/// What becomes of writes to a member.
#[derive(Clone, Copy, PartialEq)]
pub enum Trick {
    /// Those that begin in a range of bytes are said to be done, and are not.
    Lose(usize, u64, u64),
    /// The next one that begins in a range lands further on by so many bytes.
    Misdirect(usize, u64, u64, u64),
}

pub struct World {
    pub rng: StdRng,
    pub disks: Vec<Vec<u8>>,
    pub regions: Regions,
    pub geometry: Geometry,
    pub machine: LoggedArray,
    pub under_way: Vec<Action>,
    /// What each block of the volume holds, in each byte.
    pub model: Vec<u8>,
    pub events: Vec<Event>,
    pub completed: Vec<(u64, Result<SgList, IoError>)>,
    pub next_user: u64,
    pub away: BTreeSet<usize>,
    /// Blocks of members that cannot be read until they are written.
    pub bad: BTreeSet<(usize, u64)>,
    pub trick: Option<Trick>,
    /// By member: blocks that take space on it.
    taken: Vec<BTreeSet<u64>>,
    /// Members that have no more space than for so many blocks.
    pub full: BTreeMap<usize, usize>,
}

/// What the members of a world hold.
#[derive(Clone)]
pub struct Media {
    disks: Vec<Vec<u8>>,
    taken: Vec<BTreeSet<u64>>,
    full: BTreeMap<usize, usize>,
}

pub fn open(disks: &[Vec<u8>], away: &BTreeSet<usize>) -> LoggedArray {
    let members = (0..disks.len())
        .map(|member| {
            let labels = (0..2).filter_map(|copy| {
                let at = LABEL_OFFSETS[copy] as usize;
                Label::decode(&disks[member][at..at + 4096], copy).ok()
            });
            let label = labels.max_by_key(|label| (label.generation, label.epoch))?;
            let caps = MemberCaps { volatile_cache: true, can_discard: true };
            (!away.contains(&member)).then_some(FoundMember { caps, label, checkpoint: None })
        })
        .collect();
    LoggedArray::open(OpenConfig {
        members,
        holder: Holder::default(),
        max_io_len: 4 << 20,
        pool: Pool::new(),
        limits: Limits {
            sum_pages: 2,
            dirty_blocks: 1000,
            stripes_at_once: 4,
            ..Limits::default()
        },
    })
    .unwrap()
}

impl World {
    /// An array whose volume holds something else in each block, all of it at home.
    pub fn new(level: Level, members: usize) -> Self {
        let mut world = Self::empty(level, members);
        for block in 0..world.model.len() {
            world.write(block, 1, (block % 250 + 1) as u8);
        }
        world.idle();
        world
    }

    pub fn empty(level: Level, members: usize) -> Self {
        Self::with_log(level, members, 8, 64)
    }

    /// An empty array of so many stripes, whose log has so many blocks.
    pub fn with_log(level: Level, members: usize, stripes: u64, log_blocks: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(5);
        let shape = LoggedShape {
            level,
            members,
            chunk_len: CHUNK,
            block_len: 512,
            logical_stripes: stripes,
            physical_stripes: stripes + 3,
            log_blocks,
            format: Format::Two,
        };
        let layout = shape.layout().unwrap();
        let uuids: Vec<[u8; 16]> = (0..members).map(|_| rng.random()).collect();
        let mut disks = Vec::new();
        for images in format(Format::Two, layout, "test", UUID, &uuids, 99) {
            let mut disk = vec![0; layout.0.data.end() as usize];
            // Old bytes everywhere.
            rng.fill(&mut disk[..]);
            for (offset, image) in images {
                disk[offset as usize..offset as usize + image.len()].copy_from_slice(&image);
            }
            disks.push(disk);
        }
        let machine = open(&disks, &BTreeSet::new());
        let mut world = Self {
            rng,
            disks,
            regions: layout.0,
            geometry: layout.1,
            machine,
            under_way: Vec::new(),
            model: vec![0; (layout.1.capacity() / 4096) as usize],
            events: Vec::new(),
            completed: Vec::new(),
            next_user: 0,
            away: BTreeSet::new(),
            bad: BTreeSet::new(),
            trick: None,
            taken: vec![BTreeSet::new(); members],
            full: BTreeMap::new(),
        };
        world.settle();
        assert!(world.events.contains(&Event::Opened));
        world
    }

    /// The engine dies, when nothing is under way, and another one opens the array.
    pub fn reopen(&mut self) {
        assert!(self.under_way.is_empty());
        self.machine = open(&self.disks, &self.away);
        self.events.clear();
        self.settle();
        assert!(self.events.contains(&Event::Opened), "{:?}", self.machine.failure());
    }

    /// The engine dies, and the next one when so many requests of its opening have ended; what is
    /// under way then does not land. Whether it was still opening.
    pub fn crash_in_opening(&mut self, steps: usize) -> bool {
        self.machine = open(&self.disks, &self.away);
        self.events.clear();
        let is_short = (0..steps).all(|_| self.step());
        self.under_way.clear();
        is_short && !self.events.contains(&Event::Opened)
    }

    /// What members hold.
    pub fn media(&self) -> Media {
        Media { disks: self.disks.clone(), taken: self.taken.clone(), full: self.full.clone() }
    }

    /// Members hold again what they held then.
    pub fn restore(&mut self, media: &Media) {
        let Media { disks, taken, full } = media.clone();
        (self.disks, self.taken, self.full) = (disks, taken, full);
    }

    pub fn poll(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Complete { request, result } => self.completed.push((request.0, result)),
                other => self.under_way.push(other),
            }
        }
        while let Some(event) = self.machine.poll_event() {
            self.events.push(event);
        }
    }

    /// One request to a member ends, whichever.
    pub fn step(&mut self) -> bool {
        self.poll();
        if self.under_way.is_empty() {
            return false;
        }
        let at = self.rng.random_range(0..self.under_way.len());
        let action = self.under_way.swap_remove(at);
        let (io, result) = self.effect(action);
        self.machine.handle_io_done(io, result);
        self.poll();
        true
    }

    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("no end");
    }

    pub fn effect(&mut self, action: Action) -> (IoId, Result<SgList, IoError>) {
        let (io, member) = match &action {
            Action::Read { io, member, .. }
            | Action::Write { io, member, .. }
            | Action::Flush { io, member }
            | Action::Discard { io, member, .. } => (*io, member.as_usize()),
            Action::Complete { .. } => unreachable!(),
        };
        if self.away.contains(&member) {
            return (io, Err(ErrorKind::Unreachable.into()));
        }
        match action {
            Action::Read { offset, len, .. } => {
                let blocks = offset / 4096..(offset + u64::from(len)).div_ceil(4096);
                if blocks.clone().any(|block| self.bad.contains(&(member, block))) {
                    return (io, Err(ErrorKind::Medium.into()));
                }
                let at = offset as usize;
                (io, Ok(Buf::copy_from(&self.disks[member][at..at + len as usize]).into()))
            }
            Action::Write { mut offset, data, .. } => {
                match self.trick {
                    Some(Trick::Lose(m, from, to))
                        if m == member && (from..to).contains(&offset) =>
                    {
                        return (io, Ok(SgList::new()));
                    }
                    Some(Trick::Misdirect(m, from, to, by))
                        if m == member && (from..to).contains(&offset) =>
                    {
                        self.trick = None;
                        offset += by;
                    }
                    _ => {}
                }
                let blocks = offset / 4096..(offset + data.len() as u64) / 4096;
                if !self.has_space(member, blocks.clone()) {
                    return (io, Err(ErrorKind::NoSpace.into()));
                }
                for block in blocks {
                    self.bad.remove(&(member, block));
                    self.taken[member].insert(block);
                }
                let at = offset as usize;
                data.copy_to(&mut self.disks[member][at..at + data.len()]);
                (io, Ok(SgList::new()))
            }
            Action::Discard { offset, len, .. } => {
                let blocks = offset / 4096..(offset + len) / 4096;
                let freed = blocks.filter(|block| self.taken[member].remove(block)).count();
                if let Some(space) = self.full.get_mut(&member) {
                    *space += freed;
                }
                (io, Ok(SgList::new()))
            }
            _ => (io, Ok(SgList::new())),
        }
    }

    /// Whether a member that may be full can write blocks; tables and log have their space.
    fn has_space(&mut self, member: usize, blocks: std::ops::Range<u64>) -> bool {
        let is_new = |block: &u64| {
            *block * 4096 >= self.regions.data.offset && !self.taken[member].contains(block)
        };
        let more = blocks.filter(is_new).count();
        let Some(space) = self.full.get_mut(&member) else { return true };
        let left = space.checked_sub(more);
        *space = left.unwrap_or(*space);
        left.is_some()
    }

    pub fn begin(&mut self, op: Op, block: usize, count: usize, content: u8) -> u64 {
        let id = self.next_user;
        self.next_user += 1;
        let len = count * 4096;
        let data = if op == Op::Write {
            Buf::copy_from(&vec![content; len]).into()
        } else {
            SgList::new()
        };
        let (offset, len) = (block as u64 * 4096, len as u64);
        let user = UserRequest { op, offset, len, fua: false, data };
        self.machine.handle_request(RequestId(id), user);
        id
    }

    pub fn finish(&mut self, id: u64) -> Result<SgList, IoError> {
        self.settle();
        let at = self.completed.iter().position(|(one, _)| *one == id).expect("it completed");
        self.completed.swap_remove(at).1
    }

    pub fn write(&mut self, block: usize, count: usize, content: u8) {
        let id = self.begin(Op::Write, block, count, content);
        self.finish(id).unwrap();
        self.model[block..block + count].fill(content);
    }

    pub fn read(&mut self, block: usize) -> Result<u8, IoError> {
        let id = self.begin(Op::Read, block, 1, 0);
        let data = self.finish(id)?.to_contiguous();
        assert!(data.iter().all(|byte| *byte == data[0]), "a torn block");
        Ok(data[0])
    }

    pub fn read_all(&mut self) {
        for block in 0..self.model.len() {
            assert_eq!(self.read(block).unwrap(), self.model[block], "block {block}");
        }
    }

    pub fn idle(&mut self) {
        for _ in 0..2 {
            self.machine.handle_idle();
            self.settle();
        }
    }

    pub fn ended(&self) -> Option<ScrubStatus> {
        self.events.iter().find_map(|event| match event {
            Event::Scrub(ScrubEvent::Ended(status)) => Some(status.clone()),
            _ => None,
        })
    }

    pub fn scrub_with(&mut self, options: ScrubOptions) -> ScrubStatus {
        self.events.clear();
        self.machine.handle_scrub(ScrubCommand::Start(options)).unwrap();
        self.machine.handle_scrub_allowance(u32::MAX);
        self.settle();
        let status = self.ended().unwrap_or_else(|| {
            panic!("no end: {:?}, {:?}", self.machine.failure(), self.machine.usage())
        });
        assert!(status.is_complete());
        assert_eq!(Some(&status), self.machine.scrub_status().as_ref());
        status
    }

    pub fn scrub(&mut self) -> ScrubStatus {
        self.scrub_with(ScrubOptions::default())
    }

    /// Scrubs what is damaged on one member: it says so, of that member alone, tells the place,
    /// and a second scrub finds nothing.
    pub fn assert_repairs(&mut self, member: usize, place: u64, expected: ScrubMember) {
        let status = self.scrub();
        assert_eq!(status.members[member], expected, "{status:?}");
        let others = status.members.iter().enumerate().filter(|(at, _)| *at != member);
        others.for_each(|(at, one)| assert_eq!(*one, ScrubMember::default(), "member {at}"));
        let is_told = self.events.iter().any(|event| {
            matches!(event, Event::Repaired { member: named, offset, len }
                if named.as_usize() == member
                    && (*offset..offset + len).contains(&place))
        });
        assert!(is_told, "byte {place} of member {member}: {:?}", self.events);
        self.assert_clean();
        self.read_all();
    }

    pub fn assert_clean(&mut self) {
        let status = self.scrub();
        assert_eq!((status.wrong(), status.unrepaired()), (0, 0), "{:?}", self.events);
    }

    pub fn flip(&mut self, member: usize, offset: u64) {
        self.disks[member][offset as usize] ^= 0x10;
    }

    /// Where a block of the volume is: member and offset of its first copy in the order of columns,
    /// its physical stripe, column and row.
    pub fn home(&self, block: usize) -> (usize, u64, u64, u8, u32) {
        let wanted = vec![self.model[block]; 4096];
        let data_columns = self.geometry.data_columns();
        for stripe in 0..self.regions.physical_stripes(&self.geometry) {
            let column_of = block as u32 / ROWS % u32::from(data_columns);
            let column = column_of as u8;
            let row = block as u32 % ROWS;
            let member = self.geometry.member_of(stripe, column).as_usize();
            let offset = self.geometry.member_offset(stripe, row * 4096);
            if self.disks[member][offset as usize..offset as usize + 4096] == wanted {
                return (member, offset, stripe, column, row);
            }
        }
        panic!("block {block} is nowhere");
    }

    /// Where check column `at` of a block's row is.
    pub fn check(&self, block: usize, at: u8) -> (usize, u64) {
        let (_, offset, stripe, ..) = self.home(block);
        let column = self.geometry.data_columns() + at;
        (self.geometry.member_of(stripe, column).as_usize(), offset)
    }

    pub fn sum_layout(&self) -> SumLayout {
        SumLayout::new(self.geometry.members(), ROWS)
    }

    pub fn sum_pages(&self) -> TablePages {
        self.regions.sum_pages(&self.geometry)
    }

    /// Offset of the slot with the newest image of a page of checksums on a member.
    pub fn newest_sums(&self, page: u64, holder: MemberIndex) -> (u64, SumPage) {
        let offset = self.sum_pages().offset(page, holder);
        let slots = [offset, offset + 4096].into_iter().filter_map(|at| {
            let bytes = &self.disks[holder.as_usize()][at as usize..at as usize + 4096];
            SumPage::decode(bytes, self.sum_layout(), UUID, at).ok().map(|page| (at, page))
        });
        slots.max_by_key(|(_, page)| page.counter).expect("an image")
    }

    pub fn all_sum_holders(&self) -> Vec<(u64, MemberIndex)> {
        let stripes = self.regions.physical_stripes(&self.geometry);
        let pages = self.sum_layout().pages(stripes);
        let table = self.sum_pages();
        (0..pages)
            .flat_map(|page| {
                table.holders(page).iter().map(move |one| (page, one)).collect::<Vec<_>>()
            })
            .collect()
    }
}
