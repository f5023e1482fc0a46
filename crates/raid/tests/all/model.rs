//! The array machine against a reference model: random requests, failures, medium errors,
//! replacements, stops, crashes and power losses, over members in memory.
//!
//! Every run draws new arrays. NETRAID_MODEL_RUNS sets how many are tried, NETRAID_MODEL_SEED the
//! first seed; a failure names its seed, which replays the run.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    clippy::unwrap_used
)]

pub(crate) mod array;
mod media;
mod reference;

use std::{collections::BTreeMap, io::Write as _, ops::Range};

use array::{Model, Shape};
use netraid_block::{BufMut, ErrorKind, IoError, Op, SgList};
use netraid_raid::{
    array::{Event, RequestId, UserRequest},
    assemble::{AssembleError, Permissions},
    geometry::Level,
    member::{MemberIndex, MemberState},
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use reference::{Reference, SECTOR, ZEROES};

struct InFlight {
    user: UserRequest,
    sectors: Range<usize>,
    start: u64,
    tag: u64,
}

struct Run {
    rng: StdRng,
    model: Model,
    reference: Reference,
    requests: BTreeMap<RequestId, InFlight>,
    next: u64,
    /// Faults stay within what the level survives: no request may fail.
    within_budget: bool,
    /// A request that is still in flight may have met a medium error.
    spoiled: bool,
    seen: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Totals {
    seen: BTreeMap<&'static str, u64>,
    drawn: BTreeMap<String, u64>,
    steps: u64,
}

#[test]
fn the_array_reads_as_its_reference() {
    let setting = |name, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let fresh = rand::random::<u64>() >> 16;
    let (runs, first) = (setting("NETRAID_MODEL_RUNS", 400), setting("NETRAID_MODEL_SEED", fresh));
    say(&format!("seeds {first} to {}", first + runs - 1));
    let mut totals = Totals::default();
    for seed in first..first + runs {
        let result = std::panic::catch_unwind(|| Run::new(seed).go());
        match result {
            Ok(run) => totals.add(run),
            Err(_) => {
                panic!("seed {seed}: replay with NETRAID_MODEL_SEED={seed} NETRAID_MODEL_RUNS=1")
            }
        }
    }
    say(&format!("{} steps", totals.steps));
    say(&format!("drawn: {:?}", totals.drawn));
    say(&format!("seen: {:?}", totals.seen));
    if runs >= 100 {
        for what in MUST_BE_SEEN {
            assert!(totals.seen.contains_key(what), "'{what}' never happened in {runs} runs");
        }
    }
}

/// A read of a mirror that was under way when the array failed showed a write that failed with it,
/// on the one copy that had it; after the next opening another copy decided.
#[test]
fn what_a_failing_array_still_shows_does_not_change_again() {
    Run::new(148_805_643_344_728).go();
}

/// Writes a line that is shown also when the test passes.
fn say(line: &str) {
    // The test's result does not depend on who reads this.
    let _ = writeln!(std::io::stdout(), "{line}");
}

const STEPS: u32 = 1500;

/// Every action of the machine, and every fault.
const MUST_BE_SEEN: [&str; 24] = [
    "xor",
    "member read",
    "member write",
    "member write with FUA",
    "member metadata write",
    "member flush",
    "member discard",
    "read",
    "write",
    "write with FUA",
    "flush",
    "discard",
    "zeroes",
    "member failed in a request",
    "medium error",
    "no space",
    "set aside by command",
    "replaced",
    "rebuilt",
    "resynced",
    "stopped",
    "crashed",
    "lost power",
    "array failed",
];

impl Totals {
    fn add(&mut self, run: Run) {
        for (what, count) in run.seen.iter().chain(&run.model.seen) {
            *self.seen.entry(what).or_default() += count;
        }
        let Shape { level, members, chunk_len, block_len, .. } = run.model.shape;
        for text in [
            format!("level {} of {members}", level.number()),
            format!("chunk {chunk_len}"),
            format!("block {block_len}"),
            format!("within budget {}", run.within_budget),
        ] {
            *self.drawn.entry(text).or_default() += 1;
        }
        self.steps += u64::from(STEPS);
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let level =
            *[Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid5].choose(&mut rng).unwrap();
        let members = match level {
            Level::Raid0 => rng.random_range(1..5),
            Level::Raid1 => rng.random_range(2..5),
            Level::Raid5 => rng.random_range(3..8),
            Level::Raid6 | Level::Raid10 => unreachable!("levels with a log"),
        };
        let shape = Shape {
            level,
            members,
            chunk_len: *[4096, 8192, 16384].choose(&mut rng).unwrap(),
            block_len: *[512, 4096].choose(&mut rng).unwrap(),
            volatile: rng.random(),
            can_discard: rng.random(),
            max_io_chunks: rng.random_range(1..5),
        };
        let within_budget = rng.random_bool(0.7);
        let model = Model::create(shape, &mut rng);
        let sectors = (model.geometry().capacity() / SECTOR as u64) as usize;
        Self {
            rng,
            model,
            reference: Reference::new(sectors),
            requests: BTreeMap::new(),
            next: 1,
            within_budget,
            spoiled: false,
            seen: BTreeMap::new(),
        }
    }

    fn go(mut self) -> Self {
        self.wait_open();
        for _ in 0..STEPS {
            self.step();
        }
        self.drain();
        if self.within_budget {
            self.heal();
        }
        if self.model.machine.failure().is_none() {
            self.read_everything();
        }
        if self.within_budget {
            self.read_without_each_member();
        }
        self
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn step(&mut self) {
        self.spoiled &= !(self.requests.is_empty() && self.model.bad.is_empty());
        let most = 8;
        match self.rng.random_range(0..1000) {
            0..250 if self.requests.len() < most => self.submit(),
            250..253 => self.fail_by_command(),
            253..262 => self.replace(),
            262..265 => self.stop(),
            265..268 => self.crash(false),
            268..271 => self.crash(true),
            271..274 => self.spoil_medium(),
            _ => self.finish_one(),
        }
        self.settle();
    }

    fn submit(&mut self) {
        if self.model.machine.failure().is_some() {
            return self.recover_failed();
        }
        let block = u64::from(self.model.shape.block_len);
        let capacity = self.model.geometry().capacity();
        let stripe = self.model.geometry().stripe_data_len();
        // Few stripes, so that requests meet; whole ones often.
        let span = (stripe * self.rng.random_range(2..6)).min(capacity);
        let (offset, len) = if self.rng.random_bool(0.3) {
            let first = self.rng.random_range(0..span / stripe);
            (first * stripe, stripe * self.rng.random_range(1..=span / stripe - first))
        } else {
            let first = self.rng.random_range(0..span / block);
            let most = (span / block - first).min(stripe * 2 / block);
            (first * block, self.rng.random_range(1..=most) * block)
        };
        let op = *[
            Op::Read,
            Op::Read,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes,
        ]
        .choose(&mut self.rng)
        .unwrap();
        let fua = op == Op::Write && self.rng.random_bool(0.2);
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
        let no_unmap = op == Op::WriteZeroes && self.rng.random_bool(0.3);
        self.start(UserRequest { op, offset, len, fua, no_unmap });
    }

    fn start(&mut self, user: UserRequest) {
        let sectors = (user.offset as usize / SECTOR)..((user.offset + user.len) as usize / SECTOR);
        self.next += 1;
        let (id, tag) = (RequestId(self.next), self.next);
        let tag = if user.op == Op::Write { tag } else { ZEROES };
        let start = match user.op {
            Op::Read | Op::Flush | Op::Extents => self.reference.now(),
            Op::Write | Op::Discard | Op::WriteZeroes => self.reference.begin(sectors.clone(), tag),
        };
        self.count(match (user.op, user.fua) {
            (Op::Read, _) => "read",
            (Op::Write, true) => "write with FUA",
            (Op::Write, false) => "write",
            (Op::Flush, _) => "flush",
            (Op::Discard, _) => "discard",
            (Op::WriteZeroes, _) => "zeroes",
            (Op::Extents, _) => "extents",
        });
        let mut data = SgList::new();
        if user.op == Op::Write {
            let mut bytes = BufMut::zeroed(user.len as usize);
            for (sector, bytes) in sectors.clone().zip(bytes.chunks_mut(SECTOR)) {
                reference::fill(sector, tag, bytes);
            }
            data.push(bytes.freeze());
        }
        self.requests.insert(id, InFlight { user, sectors, start, tag });
        self.model.submit(id, user, data);
    }

    /// Whether one more member may be lost without breaking the promise to users.
    fn may_lose_member(&self) -> bool {
        let label = self.model.machine.label();
        let lost = label.members.iter().filter(|m| m.state != MemberState::InSync).count() as u32;
        let synced = self.model.machine.progress().is_empty();
        let clean = self.model.bad.is_empty() && synced && !self.spoiled;
        !self.within_budget || (clean && lost < self.model.geometry().tolerance())
    }

    fn finish_one(&mut self) {
        if self.model.pending.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.model.pending.len());
        let p = if matches!(self.model.pending[at], array::Pending::Flush { .. }) {
            0.1
        } else {
            0.004
        };
        let error = if self.rng.random_bool(p) && self.may_lose_member() {
            let kind = *[ErrorKind::Timeout, ErrorKind::Unreachable, ErrorKind::NoSpace]
                .choose(&mut self.rng)
                .unwrap();
            self.count(if kind == ErrorKind::NoSpace {
                "no space"
            } else {
                "member failed in a request"
            });
            Some(kind)
        } else {
            None
        };
        self.model.finish(at, error, &mut self.rng);
    }

    /// Checks every request that has ended.
    fn settle(&mut self) {
        for (id, result) in std::mem::take(&mut self.model.ended) {
            let oldest = self.requests.values().map(|request| request.start).min();
            self.reference.horizon = oldest.unwrap_or(u64::MAX);
            let InFlight { user, sectors, start, tag } = self.requests.remove(&id).unwrap();
            match (user.op, result) {
                (_, Err(error)) => {
                    assert!(!self.within_budget, "within the budget, {user:?} failed: {error}");
                    if user.op.changes() {
                        self.reference.end_unsure(sectors, start);
                    }
                }
                (Op::Read, Ok(data)) => self.check(&sectors, start, &data),
                (Op::Flush, Ok(_)) => self.reference.flushed(start),
                (Op::Extents, Ok(_)) => unreachable!("the array does not map"),
                (Op::Discard, Ok(_)) => self.reference.end_unsure(sectors, start),
                (Op::Write | Op::WriteZeroes, Ok(_)) => {
                    debug_assert!(tag == ZEROES || user.op == Op::Write);
                    self.reference.end(sectors, start, user.fua);
                }
            }
        }
        for event in std::mem::take(&mut self.model.events) {
            match event {
                Event::Repaired { .. } => self.count("medium error"),
                Event::Finished(netraid_raid::array::Background::Resync) => self.count("resynced"),
                Event::Finished(netraid_raid::array::Background::Rebuild(_)) => {
                    self.count("rebuilt")
                }
                Event::State(netraid_raid::member::ArrayState::Failed) => {
                    self.count("array failed")
                }
                Event::Incomplete { .. } => self.count("left incomplete"),
                Event::State(_) | Event::Member { .. } | Event::Opened | Event::Closed => {}
            }
        }
    }

    fn check(&mut self, sectors: &Range<usize>, start: u64, data: &SgList) {
        let bytes = data.to_contiguous();
        assert_eq!(bytes.len(), sectors.len() * SECTOR, "a read of another length");
        for (sector, bytes) in sectors.clone().zip(bytes.chunks(SECTOR)) {
            let tag = reference::tag_of(sector, bytes);
            let result = tag.and_then(|tag| self.reference.check(sector, tag, start));
            if let Err(text) = result {
                panic!("{text}; {:?} {:?}", self.model.shape, self.model.machine.label().members);
            }
        }
    }

    fn fail_by_command(&mut self) {
        let member = MemberIndex(self.rng.random_range(0..self.model.shape.members as u8));
        if self.may_lose_member() && self.model.machine.handle_fail(member).is_ok() {
            self.count("set aside by command");
            self.model.pump();
        }
    }

    fn replace(&mut self) {
        let label = self.model.machine.label();
        let gone: Vec<usize> =
            (0..label.members.len()).filter(|at| !label.members[*at].state.is_live()).collect();
        let Some(at) = gone.choose(&mut self.rng).copied() else { return };
        let member = MemberIndex(at as u8);
        if self.model.machine.label().state(member).is_live() {
            return;
        }
        // The old device may be needed until the labels exclude it.
        if self.model.machine.labels_pending() {
            return;
        }
        self.model.swap_medium(at, &mut self.rng);
        let (uuid, caps) = (self.rng.random(), self.model.caps());
        if self.model.machine.handle_replace(member, uuid, caps).is_ok() {
            self.count("replaced");
        }
        self.model.pump();
    }

    /// Makes some sectors of one member unreadable.
    fn spoil_medium(&mut self) {
        let geometry = self.model.geometry();
        if geometry.tolerance() == 0 || !self.may_lose_member() || self.lacks_members() {
            return;
        }
        let member = self.rng.random_range(0..geometry.members());
        let offset = geometry.member_offset(self.rng.random_range(0..geometry.stripes().min(4)), 0);
        self.model.bad.insert((member, offset / 512));
        self.spoiled = true;
    }

    fn lacks_members(&self) -> bool {
        self.model.machine.state() != netraid_raid::member::ArrayState::Optimal
    }

    fn drain(&mut self) {
        self.settle();
        while !self.requests.is_empty() {
            assert!(
                !self.model.pending.is_empty(),
                "requests wait for nothing: {:?}",
                self.model.machine
            );
            let at = self.rng.random_range(0..self.model.pending.len());
            self.model.finish(at, None, &mut self.rng);
            self.settle();
        }
    }

    fn finish_all_pending(&mut self) {
        let mut left = 1_000_000;
        while !self.model.pending.is_empty() {
            let at = self.rng.random_range(0..self.model.pending.len());
            self.model.finish(at, None, &mut self.rng);
            self.settle();
            left -= 1;
            assert!(left > 0, "background work never ends");
        }
    }

    fn wait_open(&mut self) {
        while !self.model.events.contains(&Event::Opened) {
            assert!(!self.model.pending.is_empty(), "opening waits for nothing");
            let at = self.rng.random_range(0..self.model.pending.len());
            self.model.finish(at, None, &mut self.rng);
        }
        self.settle();
    }

    /// Every member whose label can be read.
    fn everyone(&self) -> Vec<usize> {
        (0..self.model.shape.members).collect()
    }

    fn stop(&mut self) {
        if self.model.machine.failure().is_some() {
            return;
        }
        self.drain();
        self.model.machine.handle_close();
        self.model.pump();
        self.finish_all_pending();
        assert!(self.closed(), "closing never ended");
        self.count("stopped");
        if self.model.machine.failure().is_none() {
            self.model.media.iter_mut().for_each(|medium| medium.lose_power(&mut self.rng));
        }
        self.reopen(Permissions::default());
    }

    fn closed(&mut self) -> bool {
        self.model.machine.label().closure != netraid_raid::label::Closure::Open
            || self.model.machine.failure().is_some()
    }

    /// The engine dies; the members go on, or lose their power too.
    fn crash(&mut self, power: bool) {
        // Parity cannot be trusted after a crash, and is needed: nothing is promised then.
        if (self.lacks_members() && self.model.shape.level != Level::Raid1)
            || self.model.machine.failure().is_some()
            || !self.model.bad.is_empty()
        {
            return;
        }
        for pending in std::mem::take(&mut self.model.pending) {
            if self.model.orphans.contains_key(&pending.io().0) {
                continue;
            }
            if let array::Pending::Write { member, offset, bytes, .. } = pending {
                self.model.media[member.as_usize()].tear(offset, &bytes, &mut self.rng);
            }
        }
        for (_, InFlight { user, sectors, start, .. }) in std::mem::take(&mut self.requests) {
            if user.op.changes() {
                self.reference.end_unsure(sectors, start);
            }
        }
        if power {
            self.model.media.iter_mut().for_each(|medium| medium.lose_power(&mut self.rng));
            self.reference.lose_power();
        }
        self.count(if power { "lost power" } else { "crashed" });
        self.reopen(Permissions { holder_is_dead: true, ..Permissions::default() });
    }

    fn reopen(&mut self, permissions: Permissions) {
        let everyone = self.everyone();
        self.model.events.clear();
        match self.model.reopen(&everyone, permissions) {
            Ok(_) => self.wait_open(),
            Err(AssembleError::UncleanDegraded { .. }) => self.accept_parity(),
            // Half of a mirror, because a replacement died before it had a label: the administrator
            // knows that nobody else has it. What it shows must be right.
            Err(AssembleError::Contested { .. }) if self.model.shape.level == Level::Raid1 => {
                let force = Permissions { force: true, ..Permissions::default() };
                self.model.reopen(&everyone, force).unwrap();
                self.wait_open();
                self.count("mirror forced");
            }
            Err(error) => panic!("cannot open again: {error}"),
        }
    }

    /// The array failed and every member is well again: what was acknowledged must be there.
    fn recover_failed(&mut self) {
        self.finish_all_pending();
        self.drain();
        self.reopen(Permissions { holder_is_dead: true, ..Permissions::default() });
    }

    /// Degraded when it died: an administrator accepts parity as it is, which may be wrong where
    /// writes were in flight. Nothing is promised of the old contents, so all is written anew.
    fn accept_parity(&mut self) {
        let everyone = self.everyone();
        let force = Permissions { force: true, ..Permissions::default() };
        self.model.reopen(&everyone, force).unwrap();
        self.wait_open();
        let len = self.model.geometry().capacity();
        self.start(UserRequest { op: Op::Write, offset: 0, len, fua: true, no_unmap: false });
        self.drain();
        self.count("parity accepted");
    }

    /// Replaces what is missing and lets background work end.
    fn heal(&mut self) {
        for _ in 0..8 {
            self.finish_all_pending();
            if !self.lacks_members() {
                break;
            }
            self.replace();
        }
        self.finish_all_pending();
        assert!(
            !self.lacks_members(),
            "members are still missing: {:?}",
            self.model.machine.label().members
        );
        assert!(self.model.machine.progress().is_empty(), "{:?}", self.model.machine);
    }

    fn read_everything(&mut self) {
        let len = self.model.geometry().capacity();
        self.start(UserRequest { op: Op::Read, offset: 0, len, fua: false, no_unmap: false });
        self.drain();
    }

    /// After a clean stop, the volume must read the same without any one member.
    fn read_without_each_member(&mut self) {
        // Bad sectors of parity would only be found by a scrub.
        self.model.bad.clear();
        self.model.machine.handle_close();
        self.model.pump();
        self.finish_all_pending();
        if self.model.geometry().tolerance() == 0 {
            return;
        }
        for away in 0..self.model.shape.members {
            let here: Vec<usize> = self.everyone().into_iter().filter(|at| *at != away).collect();
            self.model.events.clear();
            // A mirror's other half could hold newer data: an administrator knows better.
            let permissions =
                Permissions { read_only: true, force: true, ..Permissions::default() };
            let opened = self.model.reopen(&here, permissions);
            opened.unwrap_or_else(|error| panic!("without member {away}: {error}"));
            self.wait_open();
            self.read_everything();
        }
    }
}

/// Errors name what failed.
#[test]
fn a_failed_array_says_which_members_are_needed() {
    let shape = Shape {
        level: Level::Raid5,
        members: 3,
        chunk_len: 4096,
        block_len: 512,
        volatile: false,
        can_discard: false,
        max_io_chunks: 1,
    };
    let mut rng = StdRng::seed_from_u64(7);
    let mut model = Model::create(shape, &mut rng);
    while !model.pending.is_empty() {
        model.finish(0, None, &mut rng);
    }
    model.machine.handle_fail(MemberIndex(1)).unwrap();
    assert!(model.machine.handle_fail(MemberIndex(2)).is_err(), "the last redundancy is kept");
    let write = UserRequest { op: Op::Write, offset: 0, len: 4096, fua: false, no_unmap: false };
    model.pump();
    while !model.pending.is_empty() {
        model.finish(0, None, &mut rng);
    }
    model.submit(RequestId(1), write, BufMut::zeroed(4096).freeze().into());
    let at = model.pending.iter().position(|p| p.member() == MemberIndex(2)).unwrap();
    model.finish(at, Some(ErrorKind::Unreachable), &mut rng);
    while !model.pending.is_empty() {
        model.finish(0, None, &mut rng);
    }
    let error: &IoError = model.ended[0].1.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redundancy);
    assert!(error.to_string().contains("members 1, 2"), "{error}");
}
