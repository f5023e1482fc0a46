//! Reads that are late, and reads that go past slow members.

#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "numbers are small here")]

use std::collections::BTreeMap;

use crate::support::{LEVELS, World};
use netraid_block::{ErrorKind, Op, SgList};
use netraid_raid::{
    logged::{Action, IoId},
    member::{MemberIndex, MemberSet},
};
use rand::Rng as _;

impl World {
    /// Ends requests until only reads of this member's home are under way; which those are.
    fn hold_reads_of(&mut self, member: usize) -> Vec<Action> {
        let data = self.regions.data.offset;
        let mut held = Vec::new();
        self.poll();
        while !self.under_way.is_empty() {
            let action = self.under_way.remove(0);
            if let Action::Read { member: of, offset, .. } = &action
                && of.as_usize() == member
                && *offset >= data
            {
                held.push(action);
                continue;
            }
            let (io, result) = self.effect(action);
            self.machine.handle_io_done(io, result);
            self.poll();
        }
        held
    }

    fn end(&mut self, action: Action) {
        let (io, result) = self.effect(action);
        self.machine.handle_io_done(io, result);
        self.poll();
    }

    fn take_end(&mut self, id: u64) -> Option<Vec<u8>> {
        let at = self.completed.iter().position(|(one, _)| *one == id)?;
        Some(self.completed.swap_remove(at).1.unwrap().to_contiguous().to_vec())
    }
}

fn io_of(action: &Action) -> IoId {
    let Action::Read { io, .. } = action else { panic!("{action:?}") };
    *io
}

fn only(member: usize) -> MemberSet {
    MemberSet::from_iter([MemberIndex(member as u8)])
}

#[test]
fn a_read_that_is_late_is_answered_without_its_member_which_may_answer_later_or_fail() {
    for (level, members) in LEVELS {
        for member in 0..members {
            let mut world = World::new(level, members);
            let blocks = world.model.len();
            let reads: Vec<u64> = (0..blocks).map(|at| world.begin(Op::Read, at, 1, 0)).collect();
            let held = world.hold_reads_of(member);
            let waiting =
                reads.iter().filter(|id| !world.completed.iter().any(|(one, _)| one == *id));
            let waiting = waiting.count() as u64;
            let told: u64 = held.iter().map(|read| world.machine.handle_late(io_of(read))).sum();
            let again: u64 = held.iter().map(|read| world.machine.handle_late(io_of(read))).sum();
            let each = if matches!(level.number(), 1 | 10) {
                1
            } else {
                u64::from(world.geometry.data_columns())
            };
            assert_eq!((told, again), (waiting * each, 0), "{level:?}");

            let more = world.hold_reads_of(member);
            assert!(more.is_empty(), "{level:?}: the late member is asked for more: {more:?}");
            for (at, id) in reads.into_iter().enumerate() {
                let found =
                    world.take_end(id).unwrap_or_else(|| panic!("{level:?}: block {at} waits"));
                assert!(found.iter().all(|byte| *byte == world.model[at]), "{level:?}: block {at}");
            }
            // What it brings concerns nobody: right, wrong, or an unreadable block.
            for (at, action) in held.into_iter().enumerate() {
                let (io, right) = world.effect(action);
                let len = right.as_ref().map_or(0, SgList::len);
                let result = match at % 3 {
                    0 => right,
                    1 => Ok(SgList::zeroes(len)),
                    _ => Err(ErrorKind::Medium.into()),
                };
                world.machine.handle_io_done(io, result);
            }
            world.poll();
            assert!(world.machine.failure().is_none());
            world.read_all();
            world.write(0, blocks, 77);
            world.idle();
            world.read_all();
            world.assert_clean();
        }
    }
}

#[test]
fn what_is_computed_from_wrong_bytes_answers_nobody_and_the_late_read_is_waited_for() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let block = 1;
        let (member, offset, stripe, column, _) = world.home(block);
        for other in (0..world.geometry.members()).filter(|other| *other != column) {
            let other = world.geometry.member_of(stripe, other).as_usize();
            world.flip(other, offset + 9);
        }
        let id = world.begin(Op::Read, block, 1, 0);
        let held = world.hold_reads_of(member);
        let [read] = &held[..] else { panic!("{held:?}") };
        assert!(world.machine.handle_late(io_of(read)) > 0);
        assert!(world.hold_reads_of(member).is_empty());
        assert_eq!(world.take_end(id), None, "{level:?}: nothing right has come");
        world.end(held.into_iter().next().unwrap());
        world.settle();
        assert_eq!(world.take_end(id).unwrap(), vec![world.model[block]; 4096]);
    }
}

#[test]
fn nobody_goes_elsewhere_where_the_others_do_not_have_it() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let survives = (members - usize::from(world.geometry.data_columns())).min(2);
        // As many away as can be without the member of block 0, then it is late.
        let (member, ..) = world.home(0);
        let mut away = Vec::new();
        for other in (0..members).filter(|other| *other != member) {
            let left: MemberSet = world
                .geometry
                .member_indices()
                .filter(|one| one.as_usize() != other && !away.contains(&one.as_usize()))
                .collect();
            if world.geometry.can_serve_from(left) {
                away.push(other);
            }
        }
        assert!(away.len() >= survives.min(1), "{level:?}");
        world.away.extend(away);
        world.reopen();
        let id = world.begin(Op::Read, 0, 1, 0);
        let held = world.hold_reads_of(member);
        for read in &held {
            world.machine.handle_late(io_of(read));
        }
        let more = world.hold_reads_of(member);
        assert!(!held.is_empty() && more.is_empty(), "{level:?}");
        assert_eq!(world.take_end(id), None, "{level:?}");
        held.into_iter().for_each(|read| world.end(read));
        world.settle();
        assert_eq!(world.take_end(id).unwrap(), vec![world.model[0]; 4096], "{level:?}");
    }
}

#[test]
fn a_slow_member_is_asked_for_what_the_others_do_not_have_and_for_probes() {
    for (level, members) in LEVELS {
        for member in 0..members {
            let mut world = World::new(level, members);
            let blocks = world.model.len();
            world.machine.handle_slow(only(member));
            for at in 0..blocks {
                let id = world.begin(Op::Read, at, 1, 0);
                let held = world.hold_reads_of(member);
                assert!(held.is_empty(), "{level:?}: block {at} of slow member {member}");
                assert_eq!(world.take_end(id).unwrap(), vec![world.model[at]; 4096]);
            }
            // Writes go to it, and to bring them home nothing is read from it.
            for at in (0..blocks).step_by(3) {
                let content = world.model[at] ^ 0x55;
                world.write(at, 1, content);
            }
            world.machine.handle_idle();
            assert!(world.hold_reads_of(member).is_empty(), "{level:?}: to bring home");
            world.idle();

            // One read goes to it, and answers as any other does.
            world.machine.handle_probe(MemberIndex(member as u8));
            let mut probes = 0;
            for at in 0..blocks {
                let id = world.begin(Op::Read, at, 1, 0);
                let held = world.hold_reads_of(member);
                probes += held.len();
                held.into_iter().for_each(|read| world.end(read));
                world.settle();
                assert_eq!(world.take_end(id).unwrap(), vec![world.model[at]; 4096]);
            }
            assert_eq!(probes, 1, "{level:?}");

            // What the others lack it is asked for all the same.
            let (other, ..) = world.home(0);
            world.machine.handle_slow(MemberSet::from_iter(world.geometry.member_indices()));
            let id = world.begin(Op::Read, 0, 1, 0);
            let held = world.hold_reads_of(other);
            assert!(!held.is_empty(), "{level:?}");
            held.into_iter().for_each(|read| world.end(read));
            world.settle();
            assert_eq!(world.take_end(id).unwrap(), vec![world.model[0]; 4096]);
            world.machine.handle_slow(MemberSet::EMPTY);
            world.assert_clean();
        }
    }
}

/// Reads and writes of the same blocks, rounds, and slow members, while reads are late and requests end in any order: a read
/// brings what was there when it began, or what was written since.
#[test]
fn what_late_reads_bring_was_there_while_they_were_under_way() {
    let mut hedged = 0;
    for seed in 0..6_u64 {
        for (level, members) in LEVELS {
            let mut world = World::new(level, members);
            (0..seed).for_each(|_| assert!(world.rng.random::<u64>() > 0));
            let blocks = world.model.len();
            // All that a block may hold: what the last write before left, and what came since.
            let mut may: Vec<Vec<u8>> = world.model.iter().map(|content| vec![*content]).collect();
            let mut reads: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
            let mut writes: BTreeMap<u64, (usize, usize, u8)> = BTreeMap::new();
            for round in 0..3000_u32 {
                match world.rng.random_range(0..20) {
                    0..=4 if reads.len() < 8 => {
                        let count = world.rng.random_range(1..=6);
                        let at = world.rng.random_range(0..=blocks - count);
                        let id = world.begin(Op::Read, at, count, 0);
                        reads.insert(id, (at, count));
                    }
                    5..=6 if writes.len() < 3 => {
                        let count = world.rng.random_range(1..=6);
                        let at = world.rng.random_range(0..=blocks - count);
                        let meets = |(other, len, _): &(usize, usize, u8)| {
                            at < other + len && *other < at + count
                        };
                        if writes.values().any(meets) {
                            continue;
                        }
                        let content = (round % 250 + 1) as u8;
                        let id = world.begin(Op::Write, at, count, content);
                        may[at..at + count].iter_mut().for_each(|block| block.push(content));
                        writes.insert(id, (at, count, content));
                    }
                    7 => world.machine.handle_idle(),
                    8 => {
                        let member = world.rng.random_range(0..members);
                        let slow = if world.rng.random() { only(member) } else { MemberSet::EMPTY };
                        world.machine.handle_slow(slow);
                        world.machine.handle_probe(MemberIndex(member as u8));
                    }
                    9..=11 => {
                        let late: Vec<IoId> = world
                            .under_way
                            .iter()
                            .filter(|action| matches!(action, Action::Read { .. }))
                            .map(io_of)
                            .collect();
                        if !late.is_empty() {
                            let at = world.rng.random_range(0..late.len());
                            hedged += world.machine.handle_late(late[at]);
                        }
                    }
                    _ => drop(world.step()),
                }
                world.poll();
                for (id, result) in std::mem::take(&mut world.completed) {
                    if let Some((at, count, content)) = writes.remove(&id) {
                        result.unwrap();
                        // Reads that are under way may have what was there before.
                        let is_read = reads
                            .values()
                            .any(|(other, len)| *other < at + count && at < other + len);
                        for block in &mut may[at..at + count] {
                            if !is_read {
                                *block = vec![content];
                            }
                        }
                        continue;
                    }
                    let (at, count) = reads.remove(&id).unwrap();
                    let found = result.unwrap().to_contiguous();
                    for (block, bytes) in (at..at + count).zip(found.chunks(4096)) {
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn block {block}");
                        assert!(may[block].contains(&bytes[0]), "{level:?} {seed}: block {block}");
                    }
                }
            }
            world.settle();
            world.machine.handle_slow(MemberSet::EMPTY);
            world.completed.clear();
            world.idle();
            for (block, may) in may.iter().enumerate() {
                let found = world.read(block).unwrap();
                assert!(may.contains(&found), "{level:?} {seed}: block {block} at the end");
            }
            world.model = (0..blocks).map(|block| world.read(block).unwrap()).collect();
            world.assert_clean();
        }
    }
    assert!(hedged > 1000, "{hedged}");
}
