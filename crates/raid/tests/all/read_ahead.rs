//! Reading ahead against flat bytes: random users over an array that ends requests in any order, with
//! whatever bytes it may.
//!
//! The array here is as unkind as the promise lets it be: beside changes in flight, a read may see the
//! old bytes or the new ones, block by block, of any moment while it is in flight; what was seen once
//! stays. A model of each block says
//! what a user's read may return: nothing older than what was acknowledged or seen before it was
//! submitted.
//!
//! NETRAID_MODEL_RUNS sets how many runs are tried, NETRAID_MODEL_SEED the first seed; a failure names its
//! seed, which replays the run.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test")]

use std::{collections::BTreeMap, ops::Range};

use netraid_block::{BufMut, ErrorKind, IoError, SgList};
use netraid_raid::{
    array::RequestId,
    geometry::{Geometry, Level},
    read_ahead::{Action, ReadAhead, Served},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Bytes of a block of the model, which begins and ends with its version.
const BLOCK: u64 = 512;
const USERS: usize = 12;
const STEPS: usize = 3000;

#[derive(Debug, Clone)]
enum Doing {
    /// With what each block may be at least; while the array has it, with what it was then.
    Read { oldest: Vec<u64>, first: Option<Vec<u64>> },
    /// To which version; whether blocks show it already.
    Change { version: u64, shown: Vec<bool> },
}

#[derive(Debug, Clone)]
struct User {
    range: Range<u64>,
    doing: Doing,
}

/// Where a user reads in a row.
struct Stream {
    next: u64,
    len: u64,
}

struct Run {
    rng: StdRng,
    ahead: ReadAhead,
    capacity: u64,
    memory: u64,
    /// What each block is now, for those who look at it outside of changes.
    blocks: Vec<u64>,
    /// What somebody has got of each block, or whose write has been acknowledged.
    known: Vec<u64>,
    version: u64,
    users: BTreeMap<u64, User>,
    /// Requests ahead that the array has.
    under_way: BTreeMap<u64, (Range<u64>, Vec<u64>)>,
    streams: Vec<Stream>,
    /// From now on no request ahead may begin.
    is_stopped: bool,
    failures: u64,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    now: u64,
    later: u64,
    again: u64,
    changed_under_way: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let chunk = 4096 << rng.random_range(0..9);
        let members = rng.random_range(3..8);
        let stripes = (6 << 20) / u64::from(chunk) / members as u64 + 1;
        let geometry = Geometry::new(Level::Raid5, members, chunk, 512, stripes, 0).unwrap();
        let memory = [0, 64 << 10, 300 << 10, 1 << 20, 16 << 20][rng.random_range(0..5)];
        let count = (geometry.capacity() / BLOCK) as usize;
        let streams = (0..rng.random_range(0..4)).map(|_| Stream { next: 0, len: BLOCK }).collect();
        Self {
            ahead: ReadAhead::new(&geometry, memory),
            capacity: geometry.capacity(),
            memory,
            blocks: vec![0; count],
            known: vec![0; count],
            version: 0,
            users: BTreeMap::new(),
            under_way: BTreeMap::new(),
            streams,
            is_stopped: false,
            failures: [0, 3, 30][rng.random_range(0..3)],
            seen: Seen::default(),
            rng,
        }
    }

    fn go(mut self) -> Seen {
        for step in 0..STEPS {
            match self.rng.random_range(0..100) {
                0..45 => self.begin(),
                45 if self.rng.random_bool(0.2) => self.ahead.drop_old(),
                46..65 => self.show(),
                _ => self.end_one(),
            }
            self.pump();
            let held: u64 = self.under_way.values().map(|(range, _)| range.end - range.start).sum();
            assert!(held <= self.memory, "{held} bytes under way at step {step}");
            if step == STEPS - 100 {
                self.ahead.stop();
                self.is_stopped = true;
            }
        }
        while !self.users.is_empty() || !self.under_way.is_empty() {
            self.end_one();
            self.pump();
        }
        assert_eq!(self.ahead.under_way(), 0);
        self.seen
    }

    fn draw_range(&mut self) -> Range<u64> {
        let start = self.rng.random_range(0..self.capacity / BLOCK);
        // Near a reader, most of the time.
        let near = self.rng.random_bool(0.7) && !self.streams.is_empty();
        let start = if near {
            let at = self.rng.random_range(0..self.streams.len());
            let next = self.streams[at].next / BLOCK;
            (next + self.rng.random_range(0..400)).saturating_sub(50) % (self.capacity / BLOCK)
        } else {
            start
        };
        let end = (start + self.rng.random_range(1..100)).min(self.capacity / BLOCK);
        start * BLOCK..end * BLOCK
    }

    /// A user begins something.
    fn begin(&mut self) {
        let Some(id) = (0..USERS as u64).find(|id| !self.users.contains_key(id)) else { return };
        if self.rng.random_bool(0.2) {
            let range = self.draw_range();
            self.begin_change(id, range);
        } else if self.streams.is_empty() || self.rng.random_bool(0.15) {
            let range = self.draw_range();
            self.begin_read(id, range);
        } else {
            let at = self.rng.random_range(0..self.streams.len());
            if self.streams[at].next >= self.capacity || self.rng.random_bool(0.01) {
                let next = self.rng.random_range(0..self.capacity / BLOCK) * BLOCK;
                let len = self.rng.random_range(1..300) * BLOCK;
                self.streams[at] = Stream { next, len };
            }
            let Stream { next, len } = self.streams[at];
            let end = (next + len).min(self.capacity);
            self.streams[at].next = end;
            self.begin_read(id, next..end);
        }
    }

    fn begin_change(&mut self, id: u64, range: Range<u64>) {
        let overlaps = |user: &User| user.range.start < range.end && range.start < user.range.end;
        // Which of two changes in flight at once comes last is another matter.
        let is_change = |user: &&User| matches!(user.doing, Doing::Change { .. });
        if self.users.values().filter(is_change).any(overlaps) {
            return;
        }
        let hit = |(one, _): &(Range<u64>, _)| one.start < range.end && range.start < one.end;
        self.seen.changed_under_way += u64::from(self.under_way.values().any(hit));
        self.ahead.handle_change(RequestId(id), range.clone());
        self.version += 1;
        let shown = vec![false; blocks(&range).len()];
        let doing = Doing::Change { version: self.version, shown };
        self.users.insert(id, User { range, doing });
    }

    fn begin_read(&mut self, id: u64, range: Range<u64>) {
        let oldest = self.known[blocks(&range)].to_vec();
        match self.ahead.handle_read(RequestId(id), range.clone()) {
            Served::ByArray => {
                let first = Some(self.blocks[blocks(&range)].to_vec());
                let doing = Doing::Read { oldest, first };
                self.users.insert(id, User { range, doing });
            }
            Served::Now(data) => {
                self.seen.now += 1;
                assert!(!self.is_stopped);
                self.check(&range, &oldest, &data);
            }
            Served::Later => {
                self.seen.later += 1;
                assert!(!self.is_stopped);
                let doing = Doing::Read { oldest, first: None };
                self.users.insert(id, User { range, doing });
            }
        }
    }

    /// Some blocks of changes in flight are new from now on.
    fn show(&mut self) {
        for user in self.users.values_mut() {
            let Doing::Change { version, shown } = &mut user.doing else { continue };
            for (at, shown) in blocks(&user.range).zip(shown) {
                if self.rng.random_bool(0.2) {
                    *shown = true;
                    self.blocks[at] = *version;
                }
            }
        }
    }

    /// The array ends one of its requests.
    fn end_one(&mut self) {
        let in_array = |(id, user): (&u64, &User)| {
            let waits = matches!(user.doing, Doing::Read { first: None, .. });
            (!waits).then_some((false, *id))
        };
        let users = self.users.iter().filter_map(in_array);
        let all: Vec<_> = users.chain(self.under_way.keys().map(|id| (true, *id))).collect();
        if all.is_empty() {
            return;
        }
        let (is_ahead, id) = all[self.rng.random_range(0..all.len())];
        if is_ahead {
            let (range, first) = self.under_way.remove(&id).unwrap();
            let fails = self.rng.random_range(0..100) < self.failures;
            let result = if fails {
                Err(IoError::from(ErrorKind::Device))
            } else {
                Ok(self.read(&range, &first))
            };
            return self.ahead.handle_ahead_done(RequestId(id), result);
        }
        let User { range, doing } = self.users.remove(&id).unwrap();
        self.ahead.handle_done(RequestId(id));
        match doing {
            Doing::Read { oldest, first } => {
                let data = self.read(&range, &first.unwrap());
                self.check(&range, &oldest, &data);
            }
            Doing::Change { version, .. } => {
                for at in blocks(&range) {
                    self.blocks[at] = version;
                    self.known[at] = version;
                }
            }
        }
    }

    /// What the array reads, with what the blocks were when it began.
    fn read(&mut self, range: &Range<u64>, first: &[u64]) -> SgList {
        let mut bytes = BufMut::zeroed((range.end - range.start) as usize);
        let (is_fresh, is_mixed) = (self.rng.random_bool(0.5), self.rng.random_bool(0.2));
        for ((block, at), first) in bytes.chunks_mut(BLOCK as usize).zip(blocks(range)).zip(first) {
            let is_fresh = if is_mixed { self.rng.random_bool(0.5) } else { is_fresh };
            let version = if is_fresh { self.blocks[at] } else { *first };
            block[..8].copy_from_slice(&version.to_le_bytes());
            block[BLOCK as usize - 8..].copy_from_slice(&version.to_le_bytes());
        }
        bytes.freeze().into()
    }

    /// A user has got these bytes.
    fn check(&mut self, range: &Range<u64>, oldest: &[u64], data: &SgList) {
        assert_eq!(data.len() as u64, range.end - range.start);
        let bytes = data.to_contiguous();
        for ((at, oldest), block) in blocks(range).zip(oldest).zip(bytes.chunks(BLOCK as usize)) {
            let version = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert_eq!(block[..8], block[BLOCK as usize - 8..], "half of block {at}");
            assert!(version >= *oldest, "block {at} is {version}, and was {oldest} before");
            assert!(version <= self.blocks[at], "block {at} is {version}, which it never was");
            self.known[at] = self.known[at].max(version);
        }
    }

    fn pump(&mut self) {
        while let Some(action) = self.ahead.poll_action() {
            match action {
                Action::Read { id, range } => {
                    assert!(ReadAhead::is_ahead(id) && !self.is_stopped);
                    assert!(range.start < range.end && range.end <= self.capacity);
                    for user in self.users.values() {
                        let apart = user.range.end <= range.start || range.end <= user.range.start;
                        assert!(apart || !matches!(user.doing, Doing::Change { .. }));
                    }
                    let first = self.blocks[blocks(&range)].to_vec();
                    assert!(self.under_way.insert(id.0, (range, first)).is_none());
                }
                Action::Answer { id, data } => {
                    let User { range, doing } = self.users.remove(&id.0).unwrap();
                    let Doing::Read { oldest, first: None } = doing else {
                        panic!("it did not wait")
                    };
                    self.check(&range, &oldest, &data);
                }
                Action::ReadAgain { id, range } => {
                    self.seen.again += 1;
                    let user = self.users.get_mut(&id.0).unwrap();
                    assert_eq!(user.range, range);
                    let Doing::Read { first, .. } = &mut user.doing else {
                        panic!("it does not read")
                    };
                    assert!(first.replace(self.blocks[blocks(&range)].to_vec()).is_none());
                }
            }
        }
    }
}

fn blocks(range: &Range<u64>) -> Range<usize> {
    (range.start / BLOCK) as usize..(range.end / BLOCK) as usize
}

#[test]
fn users_read_what_they_could_without_it() {
    let setting = |name, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let fresh = rand::random::<u64>() >> 16;
    let (runs, first) = (setting("NETRAID_MODEL_RUNS", 150), setting("NETRAID_MODEL_SEED", fresh));
    let mut total = Seen::default();
    for seed in first..first + runs {
        let Ok(seen) = std::panic::catch_unwind(|| Run::new(seed).go()) else {
            panic!("seed {seed}: replay with NETRAID_MODEL_SEED={seed} NETRAID_MODEL_RUNS=1")
        };
        total.now += seen.now;
        total.later += seen.later;
        total.again += seen.again;
        total.changed_under_way += seen.changed_under_way;
    }
    if runs >= 100 {
        let Seen { now, later, again, changed_under_way } = total;
        let least = now.min(later).min(again).min(changed_under_way);
        assert!(least > 100, "hardly anything was read ahead: {total:?}");
    }
}
