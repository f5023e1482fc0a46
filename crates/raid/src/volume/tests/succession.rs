//! A member in sync is copied to another device: what goes to which of the two, against bytes.

use alloc::collections::BTreeMap;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::*;

const MEMBER: MemberIndex = MemberIndex(1);
const NEW: &str = "new";
/// Blocks of the member; a byte of each is looked at.
const BLOCKS: usize = 12;
const BLOCK: u64 = 512;
const BLOCK_BYTES: usize = 512;
/// Where labels are: of the member's device alone.
const LABEL: u64 = BLOCKS as u64 * BLOCK;

/// What befalls a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fall {
    None,
    NewDies,
    OldDies,
    BothDie,
    Unwanted,
    Closes,
    MachineFails,
}

const FALLS: [Fall; 7] = [
    Fall::None,
    Fall::NewDies,
    Fall::OldDies,
    Fall::BothDie,
    Fall::Unwanted,
    Fall::Closes,
    Fall::MachineFails,
];

/// What the machine does with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Write(u8),
    /// Its bytes are read to be copied.
    Fetch,
    /// They are written to the new device.
    Give,
    Read,
    Flush,
    Label,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Copying,
    Whole,
}

/// A volume that copies a member, its machine, and the two devices.
struct World {
    rig: Rig,
    rng: StdRng,
    /// By device: the old one and the new one.
    bytes: [[u8; BLOCKS + 1]; 2],
    dead: [bool; 2],
    /// With the device that each is for.
    in_flight: Vec<(Tag, usize, Op, u64, Vec<u8>)>,
    ios: BTreeMap<usize, (usize, Doing)>,
    /// What was acknowledged to the machine.
    acknowledged: [u8; BLOCKS],
    copied: [bool; BLOCKS],
    stage: Stage,
    /// Blocks with a write under way when the member left: what they have on the new device is open.
    open: Vec<usize>,
    has_place: bool,
    is_let_go: bool,
    has_parted: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut rig = Rig::opened();
        let mut bytes = [[0; BLOCKS + 1]; 2];
        (0..BLOCKS).for_each(|block| bytes[0][block] = rng.random());
        let mut acknowledged = [0; BLOCKS];
        acknowledged.copy_from_slice(&bytes[0][..BLOCKS]);
        rig.machine().leaves_by_error = Some(MEMBER.0);
        rig.volume.handle_replace(MEMBER, NEW, Expect::Unused).unwrap();
        assert_eq!(
            rig.seen(),
            [Seen::Join { member: 1, expect: Expect::Unused, ends_former: false }]
        );
        rig.volume.handle_joined(MEMBER, candidate(NEW));
        assert_eq!(rig.seen(), [Seen::Joined(1, Ok(()))]);
        rig.calls();
        Self {
            rig,
            rng,
            bytes,
            dead: [false; 2],
            in_flight: Vec::new(),
            ios: BTreeMap::new(),
            acknowledged,
            copied: [false; BLOCKS],
            stage: Stage::Copying,
            open: Vec::new(),
            has_place: false,
            is_let_go: false,
            has_parted: false,
        }
    }

    fn is_copying(&self) -> bool {
        let is_live = self.rig.volume.machine().states[1].is_live();
        is_live && self.rig.volume.successor(MEMBER).is_some()
    }

    fn free_block(&mut self) -> Option<usize> {
        let block = self.rng.random_range(0..BLOCKS);
        self.ios.values().all(|(other, _)| *other != block).then_some(block)
    }

    fn ask(&mut self, block: usize, doing: Doing, data: Option<u8>) {
        let io = (0..).find(|io| !self.ios.contains_key(io)).unwrap();
        let to = match doing {
            Doing::Give => To::Successor(1),
            Doing::Label => To::Member,
            Doing::Write(_) | Doing::Fetch | Doing::Read | Doing::Flush => To::Both,
        };
        let (op, len) = match doing {
            Doing::Write(_) | Doing::Give | Doing::Label => (Op::Write, BLOCK),
            Doing::Fetch | Doing::Read => (Op::Read, BLOCK),
            Doing::Flush => (Op::Flush, 0),
        };
        let data = data.map(|byte| Buf::copy_from(&[byte; BLOCK_BYTES]).into());
        let (data, offset) = (data.unwrap_or_default(), block as u64 * BLOCK);
        self.ios.insert(io, (block, doing));
        let (io, member, fua) = (IoId(io), MEMBER, false);
        self.rig.machine().actions.push_back(Do::Submit {
            io,
            member,
            op,
            offset,
            len,
            fua,
            data,
            to,
        });
        self.pump();
    }

    fn pump(&mut self) {
        while let Some(action) = self.rig.volume.poll(self.rig.now) {
            match action {
                Action::Submit { tag, op, offset, data, .. } => {
                    let device = usize::from(tag.is_for_successor() || self.has_place);
                    let is_label = op == Op::Write && offset == LABEL;
                    assert!(!is_label || device == 0, "its label for the new one");
                    self.in_flight.push((tag, device, op, offset, flat(&data)));
                }
                Action::Part(member) => {
                    assert_eq!(member, MEMBER);
                    self.has_parted = true;
                    // What is under way may be on the new device, or not.
                    let is_write = |(_, doing): &&(usize, Doing)| matches!(doing, Doing::Write(_));
                    let writes = self.ios.values().filter(is_write);
                    self.open = writes.map(|(block, _)| *block).collect();
                }
                Action::Take(member) => {
                    assert!(member == MEMBER && self.has_parted && !self.is_let_go);
                    let late = self.in_flight.iter().any(|(_, device, ..)| *device == 1);
                    assert!(!late, "it has the place, and writes from before are under way");
                    self.has_place = true;
                    let closed = (0..BLOCKS).filter(|block| !self.open.contains(block));
                    for block in closed.filter(|_| self.stage == Stage::Whole) {
                        let wanted = self.acknowledged[block];
                        assert_eq!(self.bytes[1][block], wanted, "{block} of the new device");
                    }
                }
                Action::LetGo(_) => self.is_let_go = true,
                Action::Tell(_) | Action::Joined { .. } => {}
                other @ (Action::Complete { .. }
                | Action::Cut(_)
                | Action::Reopen { .. }
                | Action::LookFor(_)
                | Action::AskForSpare { .. }
                | Action::Join { .. }
                | Action::Opened(_)) => panic!("{other:?}"),
            }
        }
        for call in self.rig.calls() {
            if let Call::IoDone(io, result) = call {
                self.hear(io.0, result);
            }
        }
    }

    fn hear(&mut self, io: usize, result: Result<Vec<u8>, IoError>) {
        let (block, doing) = self.ios.remove(&io).unwrap();
        if let Err(error) = &result {
            // Nobody waits for what is asked of a member that has left.
            let has_left = !self.rig.machine().states[1].is_live();
            let is_over = has_left || self.rig.machine().failure.is_some();
            assert!(is_over, "{doing:?}: {error}");
            return;
        }
        match doing {
            Doing::Write(byte) => {
                let has_left = !self.rig.machine().states[1].is_live();
                assert!(has_left || self.bytes[0][block] == byte, "the member lacks {block}");
                let new = self.is_copying();
                assert!(!new || self.bytes[1][block] == byte, "the new device lacks {block}");
                if has_left {
                    return;
                }
                self.acknowledged[block] = byte;
            }
            Doing::Read => assert_eq!(result.unwrap()[0], self.acknowledged[block], "{block}"),
            Doing::Fetch if self.is_copying() => {
                self.ask(block, Doing::Give, Some(result.unwrap()[0]));
            }
            Doing::Give => self.copied[block] = true,
            Doing::Flush if self.is_copying() => {
                if self.copied.iter().all(|copied| *copied) {
                    self.stage = Stage::Whole;
                }
            }
            Doing::Fetch | Doing::Flush | Doing::Label => {}
        }
    }

    /// The end of any request under way.
    fn end(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.in_flight.len());
        let (tag, device, op, offset, data) = self.in_flight.swap_remove(at);
        let block = narrow::<_, usize>(offset / BLOCK);
        let result = match op {
            _ if self.dead[device] => Err(ErrorKind::Unreachable.into()),
            Op::Write => {
                self.bytes[device][block] = data[0];
                no_data()
            }
            Op::Read => Ok(Buf::copy_from(&[self.bytes[device][block]; BLOCK_BYTES]).into()),
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => no_data(),
        };
        self.rig.volume.handle_io_done(self.rig.now, tag, Some(0), result);
        self.pump();
    }

    fn step(&mut self) {
        let serves = self.rig.machine().states[1].is_live() && self.rig.volume.life == Life::Open;
        let is_asked = self.ios.len() > 6 || !serves || self.rig.machine().failure.is_some();
        match self.rng.random_range(0..10) {
            0..5 => self.end(),
            _ if is_asked => {}
            5..7 => {
                if let Some(block) = self.free_block() {
                    let byte = self.rng.random();
                    self.ask(block, Doing::Write(byte), Some(byte));
                }
            }
            7 => {
                if let Some(block) = self.free_block() {
                    self.ask(block, Doing::Read, None);
                }
            }
            8 if self.free(BLOCKS) => self.ask(BLOCKS, Doing::Label, Some(1)),
            _ if !self.is_copying() => {}
            _ if self.stage == Stage::Whole => {
                if self.rng.random_ratio(1, 6) {
                    self.rig.say(1, MemberState::Faulty);
                    self.pump();
                }
            }
            _ if self.copied.iter().all(|copied| *copied) => {
                if self.free(BLOCKS) {
                    self.ask(BLOCKS, Doing::Flush, None);
                }
            }
            _ => {
                if let Some(block) = self.free_block().filter(|block| !self.copied[*block]) {
                    self.ask(block, Doing::Fetch, None);
                }
            }
        }
    }

    fn free(&self, block: usize) -> bool {
        self.ios.values().all(|(other, _)| *other != block)
    }

    fn befall(&mut self, fall: Fall) {
        match fall {
            Fall::None => {}
            Fall::NewDies => self.dead[1] = true,
            Fall::OldDies => self.dead[0] = true,
            Fall::BothDie => self.dead = [true, true],
            Fall::Unwanted => {
                let ends = self.is_copying();
                assert_eq!(self.rig.volume.handle_end_copy(MEMBER, "not wanted"), ends);
            }
            Fall::Closes => self.rig.volume.handle_close(),
            Fall::MachineFails => self.rig.fail(),
        }
        self.pump();
    }
}

#[test]
fn both_devices_have_what_was_written_whatever_happens_in_whichever_order() {
    let (mut placed, mut let_go, mut left) = (0, 0, 0);
    for seed in 0..3000_u64 {
        let mut world = World::new(seed);
        let fall = FALLS[narrow::<_, usize>(seed % FALLS.len() as u64)];
        let at = world.rng.random_range(0..300);
        for step in 0..2000 {
            if step == at {
                world.befall(fall);
            }
            world.step();
        }
        while !world.in_flight.is_empty() {
            world.end();
        }
        assert!(world.ios.is_empty(), "seed {seed}, {fall:?}: {:?} never end", world.ios);
        assert!(world.rig.volume.successions.is_quiet(), "seed {seed}");
        match fall {
            Fall::None => assert!(world.has_place && !world.is_let_go, "seed {seed}"),
            Fall::OldDies => assert!(world.has_place, "seed {seed}"),
            Fall::NewDies | Fall::BothDie | Fall::Unwanted | Fall::Closes | Fall::MachineFails => {}
        }
        placed += u32::from(world.has_place);
        let_go += u32::from(world.is_let_go);
        let calls = &world.rig.machine().states[1];
        left += u32::from(!calls.is_live());
    }
    assert!(placed > 500 && let_go > 300 && left > 200, "{placed} {let_go} {left}");
}

/// A volume that copies member 1 to another device.
fn copying() -> Rig {
    let mut rig = Rig::opened();
    rig.volume.handle_replace(MEMBER, NEW, Expect::Unused).unwrap();
    rig.seen();
    rig.volume.handle_joined(MEMBER, candidate(NEW));
    assert_eq!(rig.seen(), [Seen::Joined(1, Ok(()))]);
    assert_eq!(rig.calls(), [Call::Successor(1, [9; 16])]);
    rig
}

#[test]
fn one_member_is_copied_at_a_time_and_its_successor_has_no_other_place() {
    let mut rig = copying();
    let mut replace = |member, address: &str| {
        rig.volume.handle_replace(MemberIndex(member), address, Expect::Anything)
    };
    assert_eq!(replace(1, "third"), Err(JoinError::Joining(MEMBER)));
    assert_eq!(replace(2, "third"), Err(JoinError::Joining(MEMBER)));
    assert_eq!(replace(2, NEW), Err(JoinError::Joining(MEMBER)));
    assert_eq!(rig.join(1, "third", Expect::Anything), Err(JoinError::Joining(MEMBER)));
    // One that is away may be replaced meanwhile.
    rig.leave(2);
    assert_eq!(rig.join(2, NEW, Expect::Anything), Err(JoinError::Joining(MEMBER)));
    assert_eq!(rig.join(2, "third", Expect::Anything), Ok(()));
}

#[test]
fn a_member_without_a_log_or_not_in_sync_is_set_aside_for_its_successor() {
    for has_log in [false, true] {
        let mut rig = Rig::opened_with(|script, _| script.has_log = has_log);
        if has_log {
            rig.say(1, MemberState::CatchingUp);
            rig.seen();
        }
        rig.volume.handle_replace(MEMBER, NEW, Expect::Unused).unwrap();
        rig.seen();
        rig.volume.handle_joined(MEMBER, candidate(NEW));
        assert_eq!(rig.seen(), [Seen::Part(1), Seen::Take(1)], "{has_log}");
    }
}

#[test]
fn a_member_that_leaves_while_it_is_copied_is_replaced_when_nothing_is_under_way_to_its_successor()
{
    let mut rig = copying();
    let sent = rig.submit(0, 1, (Op::Write, 0, 512));
    assert_eq!(sent.len(), 2);
    rig.command_fail(1).unwrap();
    assert_eq!(rig.seen(), [Seen::Part(1)]);
    assert_eq!(rig.command_fail(1), Err(JoinError::Joining(MEMBER)));
    // The successor answers last: it was asked first.
    for one in sent.into_iter().rev() {
        assert!(rig.seen().is_empty(), "{one:?} is under way");
        rig.volume.handle_io_done(rig.now, one.tag, None, no_data());
    }
    assert_eq!(rig.seen(), [Seen::Take(1)]);
}

#[test]
fn an_error_of_the_member_is_passed_on_at_once_and_what_its_successor_answers_then_meets_no_other_request()
 {
    let mut rig = copying();
    let [new, own] = &rig.submit(0, 1, (Op::Write, 0, 512))[..] else { panic!("two devices") };
    assert!(new.tag.is_for_successor() && !own.tag.is_for_successor());
    rig.calls();
    rig.volume.handle_io_done(rig.now, own.tag, None, Err(ErrorKind::Unreachable.into()));
    // This machine goes on with the member: the same range may be written again, which an older write must not follow.
    let end = Call::IoDone(IoId(0), Err(ErrorKind::Unreachable.into()));
    assert_eq!(rig.calls(), [end, Call::SuccessorGone(1)]);
    assert_eq!(rig.seen(), [Seen::LetGo(1)]);
    // Another copy begins only when that has been answered.
    let again = |rig: &mut Rig| rig.volume.handle_replace(MEMBER, "third", Expect::Unused);
    assert_eq!(again(&mut rig), Err(JoinError::Joining(MEMBER)));
    let sent = rig.submit(0, 1, (Op::Write, 0, 512));
    assert_eq!(sent.len(), 1);
    rig.volume.handle_io_done(rig.now, new.tag, None, no_data());
    assert!(rig.calls().is_empty(), "the member's own device has not answered");
    rig.volume.handle_io_done(rig.now, sent[0].tag, None, no_data());
    assert_eq!(rig.calls(), [Call::IoDone(IoId(0), Ok(Vec::new()))]);
    assert_eq!(again(&mut rig), Ok(()));
}

#[test]
fn a_device_that_is_ready_while_another_member_is_copied_is_given_back() {
    let mut rig = Rig::opened();
    rig.say(2, MemberState::CatchingUp);
    rig.volume.handle_replace(MEMBER, NEW, Expect::Unused).unwrap();
    rig.volume.handle_joined(MEMBER, candidate(NEW));
    rig.seen();
    // It is prepared while its member catches up, and is to be copied when it is ready.
    rig.volume.handle_replace(MemberIndex(2), "third", Expect::Unused).unwrap();
    rig.say(2, MemberState::InSync);
    rig.seen();
    rig.volume.handle_joined(MemberIndex(2), candidate("third"));
    assert_eq!(rig.seen(), [Seen::LetGo(2), Seen::Joined(2, Err(JoinError::Joining(MEMBER)))]);
    assert_eq!(rig.volume.successor(MEMBER), Some(NEW));
}

#[test]
fn a_successor_that_does_not_answer_ends_the_copy_and_the_write_that_waits_for_it() {
    let mut rig = copying();
    let [new, own] = &rig.submit(0, 1, (Op::Write, 0, 512))[..] else { panic!("two devices") };
    rig.volume.handle_io_done(rig.now, own.tag, None, no_data());
    rig.calls();
    let longest = crate::slowness::Deadlines::default().write.1;
    while rig.volume.successor(MEMBER).is_some() {
        assert!(rig.now <= longest * 2, "it is waited for");
        rig.now = rig.volume.next_timeout();
        let looks = rig.looks.clone();
        rig.volume.handle_timeout(rig.now, &looks);
    }
    assert!(rig.now >= longest, "given up after {:?}", rig.now);
    assert!(rig.seen().contains(&Seen::LetGo(1)));
    let end = Call::IoDone(IoId(0), Ok(Vec::new()));
    assert!(rig.calls().contains(&end), "the member has answered");
    let told = rig.volume.stats(MEMBER).last_error.clone().unwrap();
    assert!(told.contains("replace the member again"), "{told}");
    rig.volume.handle_io_done(rig.now, new.tag, None, no_data());
    assert!(rig.volume.successions.is_quiet());
}

#[test]
fn a_successor_that_fails_when_the_member_has_left_does_not_take_the_place() {
    let mut rig = copying();
    let [new, own] = &rig.submit(0, 1, (Op::Write, 0, 512))[..] else { panic!("two devices") };
    rig.say(1, MemberState::Faulty);
    assert_eq!(rig.seen(), [Seen::Part(1)]);
    assert_eq!(rig.volume.successor(MEMBER), Some(NEW));
    rig.volume.handle_io_done(rig.now, own.tag, None, Err(ErrorKind::Aborted.into()));
    rig.volume.handle_io_done(rig.now, new.tag, None, Err(ErrorKind::Unreachable.into()));
    assert_eq!(rig.seen(), [Seen::LetGo(1)]);
    // So the member comes back by itself.
    assert_eq!(rig.volume.successor(MEMBER), None);
}

#[test]
fn a_successor_that_has_lost_its_cache_ends_the_copy_and_no_write() {
    let mut rig = copying();
    let sent = rig.submit(0, 1, (Op::Write, 0, 512));
    for one in sent {
        let losses = u64::from(one.tag.is_for_successor());
        rig.volume.handle_io_done(rig.now, one.tag, Some(losses), no_data());
    }
    assert_eq!(rig.seen(), [Seen::LetGo(1)]);
    let calls = rig.calls();
    assert!(calls.contains(&Call::SuccessorGone(1)), "{calls:?}");
    assert!(calls.contains(&Call::IoDone(IoId(0), Ok(Vec::new()))), "{calls:?}");
    assert_eq!(rig.volume.successor(MEMBER), None);
}
