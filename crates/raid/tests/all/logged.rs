//! The array with a log over members in memory, against a flat byte vector: requests in flight
//! together, member requests that end in any order, crashes with what was under way done or not,
//! members that go and come back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::print_stdout, reason = "seeds and traces are for who looks for a fault")]

use std::collections::BTreeMap;

use netraid_block::{Buf, IoError, Op, Pool, SgList};
use netraid_raid::{
    format::{Format, format},
    geometry::Level,
    label::{Holder, Label},
    logged::{
        Action, Event, FoundMember, IoId, Limits, LoggedArray, MemberCaps, OpenConfig, RequestId,
        UserRequest,
    },
    member::{MemberIndex, MemberState},
    regions::{LABEL_OFFSETS, LoggedShape},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

const CHUNK: u32 = 8192;

struct World {
    rng: StdRng,
    disks: Vec<Vec<u8>>,
    machine: Option<LoggedArray>,
    under_way: Vec<Action>,
    /// For each 4 KiB block: the contents that it may have.
    allowed: Vec<Vec<u8>>,
    users: BTreeMap<u64, UserRequest>,
    /// What each read may see, by block, and whether anything was written there meanwhile.
    reads: BTreeMap<u64, (Vec<Vec<u8>>, bool)>,
    next_user: u64,
    next_content: u8,
    /// Requests of members that are away end with an error.
    away: Vec<bool>,
    /// Members that do not count: away, or not caught up.
    lacking: std::collections::BTreeSet<u8>,
    opened: bool,
    closed: bool,
}

fn caps() -> MemberCaps {
    MemberCaps { volatile_cache: true, can_discard: true }
}

impl World {
    fn new(seed: u64, level: Level, members: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let shape = LoggedShape {
            level,
            members,
            chunk_len: CHUNK,
            block_len: 512,
            logical_stripes: 8,
            physical_stripes: 11,
            log_blocks: 64,
            format: Format::Two,
        };
        let layout = shape.layout().unwrap();
        let uuids: Vec<[u8; 16]> = (0..members).map(|_| rng.random()).collect();
        let images = format(Format::Two, layout, "test", [7; 16], &uuids, 99);
        let mut disks = Vec::new();
        for images in images {
            let mut disk = vec![0; usize::try_from(layout.0.data.end()).unwrap()];
            // Old bytes everywhere.
            rng.fill(&mut disk[..]);
            for (offset, image) in images {
                let at = usize::try_from(offset).unwrap();
                disk[at..at + image.len()].copy_from_slice(&image);
            }
            disks.push(disk);
        }
        let blocks = usize::try_from(layout.1.capacity() / 4096).unwrap();
        Self {
            rng,
            away: vec![false; members],
            disks,
            machine: None,
            under_way: Vec::new(),
            allowed: vec![vec![0]; blocks],
            users: BTreeMap::new(),
            reads: BTreeMap::new(),
            next_user: 0,
            next_content: 0,
            lacking: std::collections::BTreeSet::new(),
            opened: false,
            closed: false,
        }
    }

    fn found(&self, member: usize) -> Option<FoundMember> {
        let labels = (0..2).filter_map(|copy| {
            let at = usize::try_from(LABEL_OFFSETS[copy]).unwrap();
            Label::decode(&self.disks[member][at..at + 4096], copy).ok()
        });
        let label = labels.max_by_key(|label| (label.generation, label.epoch))?;
        Some(FoundMember { caps: caps(), label, checkpoint: None })
    }

    fn open(&mut self) {
        let members = (0..self.disks.len())
            .map(|m| if self.away[m] { None } else { self.found(m) })
            .collect();
        let config = OpenConfig {
            members,
            holder: Holder::default(),
            max_io_len: 4 << 20,
            pool: Pool::new(),
            limits: Limits {
                sum_pages: 0,
                dirty_blocks: 1000,
                stripes_at_once: 4,
                ..Limits::default()
            },
        };
        self.opened = false;
        self.closed = false;
        self.machine = Some(LoggedArray::open(config).unwrap());
    }

    fn drain(&mut self) {
        let mut completed = Vec::new();
        {
            let machine = self.machine.as_mut().unwrap();
            while let Some(action) = machine.poll_action() {
                match action {
                    Action::Complete { request, result } => completed.push((request, result)),
                    other => self.under_way.push(other),
                }
            }
            while let Some(event) = machine.poll_event() {
                trace(|| format!("event {event:?}"));
                match event {
                    Event::Opened => {
                        self.opened = true;
                        let label = machine.label();
                        let lacks =
                            |m: &u8| label.members[usize::from(*m)].state != MemberState::InSync;
                        self.lacking =
                            (0..u8::try_from(label.members.len()).unwrap()).filter(lacks).collect();
                    }
                    Event::CaughtUp(member) => {
                        self.lacking.remove(&member.0);
                    }
                    Event::Closed => self.closed = true,
                    _ => {}
                }
            }
        }
        for (request, result) in completed {
            self.user_done(request, result);
        }
    }

    fn user_done(&mut self, id: RequestId, result: Result<SgList, IoError>) {
        let user = self.users.remove(&id.0).expect("completed once");
        let data = result.unwrap_or_else(|error| panic!("a user's request failed: {error}"));
        let first = usize::try_from(user.offset / 4096).unwrap();
        let count = usize::try_from(user.len / 4096).unwrap();
        match user.op {
            Op::Read => {
                let (sets, disturbed) = self.reads.remove(&id.0).unwrap();
                let bytes = data.to_contiguous();
                for at in 0..count {
                    let block = &bytes[at * 4096..at * 4096 + 4096];
                    assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                    let allowed = &sets[at];
                    assert!(
                        allowed.contains(&block[0]),
                        "block {} reads {}, allowed {allowed:?}",
                        first + at,
                        block[0]
                    );
                    if !disturbed {
                        self.allowed[first + at] = vec![block[0]];
                    }
                }
            }
            Op::Write | Op::WriteZeroes => {
                for at in first..first + count {
                    let overlapped = self.users.values().any(|other| {
                        matches!(other.op, Op::Write | Op::WriteZeroes)
                            && other.offset < (at + 1) as u64 * 4096
                            && at as u64 * 4096 < other.offset + other.len
                    });
                    if !overlapped {
                        // The order of writes in flight together is anybody's; the last one alone
                        // counts when it was alone.
                        let content =
                            if user.op == Op::Write { user.data.parts()[0][0] } else { 0 };
                        if self.allowed[at].len() == 2 {
                            self.allowed[at] = vec![content];
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        self.drain();
        if self.under_way.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.under_way.len());
        let action = self.under_way.swap_remove(at);
        self.execute(action);
    }

    fn execute(&mut self, action: Action) {
        let (io, result) = self.effect(action);
        self.machine.as_mut().unwrap().handle_io_done(io, result);
    }

    fn effect(&mut self, action: Action) -> (IoId, Result<SgList, IoError>) {
        trace(|| match &action {
            Action::Read { member, offset, len, .. } => format!("read  {member} {offset} {len}"),
            Action::Write { member, offset, data, fua, .. } => {
                let bytes = data.to_contiguous();
                let blocks: Vec<String> = bytes
                    .chunks(4096)
                    .map(|block| format!("{:02x}{:02x}", block[0], block[block.len() - 1]))
                    .collect();
                format!("write {member} {offset} {} fua={fua} {blocks:?}", data.len())
            }
            other => format!("{other:?}"),
        });
        let gone = || Err(netraid_block::ErrorKind::Unreachable.into());
        match action {
            Action::Read { io, member, offset, len } => {
                if self.away[member.as_usize()] {
                    return (io, gone());
                }
                let at = usize::try_from(offset).unwrap();
                let disk = &self.disks[member.as_usize()];
                (io, Ok(Buf::copy_from(&disk[at..at + len as usize]).into()))
            }
            Action::Write { io, member, offset, data, .. } => {
                if self.away[member.as_usize()] {
                    return (io, gone());
                }
                let at = usize::try_from(offset).unwrap();
                let len = data.len();
                data.copy_to(&mut self.disks[member.as_usize()][at..at + len]);
                (io, Ok(SgList::new()))
            }
            Action::Flush { io, member } | Action::Discard { io, member, .. } => {
                (io, if self.away[member.as_usize()] { gone() } else { Ok(SgList::new()) })
            }
            Action::Complete { .. } => unreachable!(),
        }
    }

    fn user(&mut self) {
        let capacity = self.allowed.len() as u64;
        let id = self.next_user;
        self.next_user += 1;
        let count = if self.rng.random_range(0..3) == 0 {
            self.rng.random_range(1..=12)
        } else {
            self.rng.random_range(1..=2)
        };
        let first = self.rng.random_range(0..capacity);
        let count = count.min(capacity - first);
        let op = match self.rng.random_range(0..10) {
            0..=3 => Op::Read,
            4..=7 => Op::Write,
            8 => Op::WriteZeroes,
            _ => Op::Flush,
        };
        let mut data = SgList::new();
        let (mut offset, mut len) = (first * 4096, count * 4096);
        let mut content = 0;
        match op {
            Op::Write => {
                self.next_content = self.next_content % 250 + 1;
                content = self.next_content;
                let bytes = vec![content; usize::try_from(len).unwrap()];
                data = Buf::copy_from(&bytes).into();
            }
            Op::Flush => (offset, len) = (0, 0),
            _ => {}
        }
        if matches!(op, Op::Write | Op::WriteZeroes) {
            for block in first..first + count {
                self.allowed[usize::try_from(block).unwrap()].push(content);
            }
        }
        let user = UserRequest { op, offset, len, fua: self.rng.random_range(0..8) == 0, data };
        self.begin(id, user);
    }

    fn begin(&mut self, id: u64, user: UserRequest) {
        let changes = |user: &UserRequest| matches!(user.op, Op::Write | Op::WriteZeroes);
        let overlap = |one: &UserRequest, two: &UserRequest| {
            one.offset < two.offset + two.len && two.offset < one.offset + one.len
        };
        if changes(&user) {
            let content = if user.op == Op::Write { user.data.parts()[0][0] } else { 0 };
            for (read, (sets, disturbed)) in &mut self.reads {
                let read = &self.users[read];
                if overlap(read, &user) {
                    *disturbed = true;
                    sets.iter_mut().for_each(|set| set.push(content));
                }
            }
        } else if user.op == Op::Read {
            let first = usize::try_from(user.offset / 4096).unwrap();
            let count = usize::try_from(user.len / 4096).unwrap();
            let disturbed = self.users.values().any(|one| changes(one) && overlap(one, &user));
            self.reads.insert(id, (self.allowed[first..first + count].to_vec(), disturbed));
        }
        self.users.insert(id, user.clone());
        self.machine.as_mut().unwrap().handle_request(RequestId(id), user);
    }

    /// The engine dies: what was under way happens or does not.
    fn crash(&mut self) {
        trace(|| "crash".to_owned());
        self.machine = None;
        self.users.clear();
        self.reads.clear();
        for action in core::mem::take(&mut self.under_way) {
            if self.rng.random_range(0..2) == 0 {
                let _ = self.effect(action);
            }
        }
    }

    fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            self.drain();
            if done(self) {
                return;
            }
            if let Some(error) = self.machine.as_ref().unwrap().failure() {
                panic!("failed: {error}");
            }
            assert!(!self.under_way.is_empty(), "stuck: {:#?}", self.machine);
            self.step();
        }
        panic!("no end");
    }

    fn read_all(&mut self) {
        for block in 0..self.allowed.len() as u64 {
            let id = self.next_user;
            self.next_user += 1;
            let data = SgList::new();
            let user =
                UserRequest { op: Op::Read, offset: block * 4096, len: 4096, fua: false, data };
            self.begin(id, user);
            self.run_until(|world| world.users.is_empty());
        }
    }
}

fn run(seed: u64, level: Level, members: usize, losses: usize) {
    let mut world = World::new(seed, level, members);
    world.open();
    for _ in 0..6 {
        let deep = world.rng.random_range(0..3);
        for _ in 0..deep {
            // A crash inside recovery.
            for _ in 0..world.rng.random_range(0..60) {
                world.step();
            }
            world.crash();
            world.open();
        }
        world.run_until(|world| world.opened);
        world.read_all();
        let mut steps = 0;
        while steps < 400 {
            steps += 1;
            if world.users.len() < 6 && world.rng.random_range(0..3) == 0 {
                world.user();
            }
            world.step();
            let here = world.away.iter().filter(|away| **away).count();
            if losses > here && world.rng.random_range(0..150) == 0 {
                if world.lacking.len() < losses {
                    let member = world.rng.random_range(0..members);
                    world.away[member] = true;
                    world.lacking.insert(u8::try_from(member).unwrap());
                    let machine = world.machine.as_mut().unwrap();
                    machine.handle_gone(MemberIndex(u8::try_from(member).unwrap()), "gone");
                }
            } else if here > 0 && world.rng.random_range(0..60) == 0 {
                let member = world.away.iter().position(|away| *away).unwrap();
                // Nothing of before may be in flight.
                let is_its = |action: &Action| match action {
                    Action::Read { member: m, .. }
                    | Action::Write { member: m, .. }
                    | Action::Flush { member: m, .. }
                    | Action::Discard { member: m, .. } => m.as_usize() == member,
                    Action::Complete { .. } => false,
                };
                let (its, rest): (Vec<_>, Vec<_>) =
                    core::mem::take(&mut world.under_way).into_iter().partition(is_its);
                world.under_way = rest;
                its.into_iter().for_each(|action| world.execute(action));
                world.away[member] = false;
                let found = world.found(member).unwrap();
                let machine = world.machine.as_mut().unwrap();
                machine.handle_return(MemberIndex(u8::try_from(member).unwrap()), found);
            }
        }
        if world.rng.random_range(0..4) == 0 {
            world.run_until(|world| world.users.is_empty());
            world.machine.as_mut().unwrap().handle_close();
            world.run_until(|world| world.closed);
        }
        world.crash();
        world.open();
    }
    world.run_until(|world| world.opened);
    world.read_all();
}

/// With NETRAID_TRACE every event of a run is printed.
fn trace(text: impl FnOnce() -> String) {
    if std::env::var_os("NETRAID_TRACE").is_some() {
        println!("{}", text());
    }
}

fn runs() -> u64 {
    std::env::var("NETRAID_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(20)
}

fn first() -> u64 {
    std::env::var("NETRAID_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn level_5_keeps_what_it_acknowledged() {
    for seed in first()..first() + runs() {
        println!("seed {seed}");
        run(seed, Level::Raid5, 4, 1);
    }
}

#[test]
fn level_1_keeps_what_it_acknowledged() {
    for seed in first()..first() + runs() {
        println!("seed {seed}");
        run(seed, Level::Raid1, 3, 2);
    }
}

#[test]
fn level_6_keeps_what_it_acknowledged() {
    for seed in first()..first() + runs() {
        println!("seed {seed}");
        run(seed, Level::Raid6, 5, 2);
    }
}

#[test]
fn level_10_keeps_what_it_acknowledged() {
    for seed in first()..first() + runs() {
        println!("seed {seed}");
        run(seed, Level::Raid10, 4, 1);
    }
}
