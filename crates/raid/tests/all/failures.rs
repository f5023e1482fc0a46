//! Failures that were found and mended, each as the scenario that showed it.
#![allow(unreachable_pub, dead_code, clippy::cast_possible_truncation, clippy::unwrap_used)]

use std::collections::BTreeSet;

use crate::model::array::{Model, Pending, Shape};
use netraid_block::{BufMut, ErrorKind, Op, SgList};
use netraid_raid::{
    array::{CommandError, Event, RequestId, UserRequest},
    assemble::Permissions,
    geometry::Level,
    member::{MemberIndex, MemberSet, MemberState},
};
use rand::{SeedableRng, rngs::StdRng};

const DEAD: Permissions = Permissions {
    clean_close: None,
    read_only: false,
    holder_is_dead: true,
    force: false,
    unfit: MemberSet::EMPTY,
};
const FORCE: Permissions = Permissions {
    clean_close: None,
    read_only: false,
    holder_is_dead: false,
    force: true,
    unfit: MemberSet::EMPTY,
};

struct Scene {
    model: Model,
    rng: StdRng,
    next: u64,
}

impl Scene {
    fn new(level: Level, members: usize) -> Self {
        let shape = Shape {
            level,
            members,
            chunk_len: 4096,
            block_len: 512,
            volatile: false,
            can_discard: false,
            max_io_chunks: 4,
        };
        let mut rng = StdRng::seed_from_u64(1);
        let model = Model::create(shape, &mut rng);
        let mut scene = Self { model, rng, next: 1 };
        scene.finish_all();
        scene
    }

    fn finish_all(&mut self) {
        while !self.model.pending.is_empty() {
            self.model.finish(0, None, &mut self.rng);
        }
    }

    fn finish_reads(&mut self) {
        let is_read = |pending: &Pending| matches!(pending, Pending::Read { .. });
        while let Some(at) = self.model.pending.iter().position(is_read) {
            self.model.finish(at, None, &mut self.rng);
        }
    }

    fn submit(&mut self, op: Op, offset: u64, len: u64, byte: u8) -> RequestId {
        self.next += 1;
        let mut data = SgList::new();
        if op == Op::Write {
            let mut bytes = BufMut::zeroed(len as usize);
            bytes.fill(byte);
            data.push(bytes.freeze());
        }
        let user = UserRequest { op, offset, len, fua: false, no_unmap: false };
        self.model.submit(RequestId(self.next), user, data);
        RequestId(self.next)
    }

    fn write(&mut self, offset: u64, len: u64, byte: u8) {
        self.submit(Op::Write, offset, len, byte);
        self.finish_all();
    }

    fn write_all(&mut self, byte: u8) {
        let capacity = self.model.geometry().capacity();
        self.write(0, capacity, byte);
    }

    fn first_byte(&mut self, offset: u64) -> u8 {
        let id = self.submit(Op::Read, offset, 512, 0);
        self.finish_all();
        let (_, end) = self.model.ended.iter().find(|(ended, _)| *ended == id).unwrap();
        end.as_ref().unwrap().to_contiguous()[0]
    }

    fn reopen(&mut self, here: &[usize], permissions: Permissions) {
        self.model.events.clear();
        self.model.ended.clear();
        self.model.reopen(here, permissions).unwrap();
        self.finish_all();
    }

    fn close(&mut self) {
        self.model.machine.handle_close();
        self.model.pump();
        self.finish_all();
    }
}

/// Reads of two users are merged; one bad sector failed both.
#[test]
fn a_bad_sector_concerns_only_who_asked_for_it() {
    let mut scene = Scene::new(Level::Raid0, 2);
    scene.write(0, 32768, 7);
    let offset = scene.model.geometry().member_offset(0, 0);
    scene.model.bad.insert((0, offset / 512));
    let read =
        |offset| UserRequest { op: Op::Read, offset, len: 4096, fua: false, no_unmap: false };
    scene.model.machine.handle_request(RequestId(100), read(0));
    scene.model.machine.handle_request(RequestId(101), read(8192));
    scene.model.pump();
    assert_eq!(scene.model.pending.len(), 1, "the reads were merged");
    scene.finish_all();
    let end = |id| scene.model.ended.iter().find(|(ended, _)| *ended == id).unwrap().1.is_ok();
    assert!(!end(RequestId(100)) && end(RequestId(101)));
}

/// `--force` on an array that lacks nothing skipped the resync and called the array clean.
#[test]
fn force_does_not_skip_a_resync_that_can_be_done() {
    for level in [Level::Raid5, Level::Raid1] {
        let mut scene = Scene::new(level, 3);
        scene.write_all(1);
        scene.submit(Op::Write, 0, 4096, 7);
        scene.finish_reads();
        scene.model.finish(0, None, &mut scene.rng);
        scene.reopen(&[0, 1, 2], FORCE);
        scene.close();
        let mut seen = BTreeSet::new();
        for away in 0..3 {
            let here: Vec<usize> = (0..3).filter(|at| *at != away).collect();
            scene.reopen(&here, Permissions { read_only: true, ..FORCE });
            seen.insert(scene.first_byte(0));
        }
        assert_eq!(seen.len(), 1, "{level:?} reads {seen:?} by who is away");
    }
}

/// An array died while a member caught up, in the middle of a write of a stripe that this member had got back: whoever
/// opened it by force took its parity as it was, although it could be made to match, and later called the array optimal.
#[test]
fn force_resyncs_what_a_member_that_catches_up_has_got_back() {
    const BACK: MemberIndex = MemberIndex(1);
    let scene = || {
        let mut scene = Scene::new(Level::Raid5, 3);
        scene.write_all(1);
        scene.model.machine.handle_fail(BACK).unwrap();
        scene.model.pump();
        scene.finish_all();
        scene.model.swap_medium(1, &mut scene.rng);
        let caps = scene.model.caps();
        scene.model.machine.handle_replace(BACK, [5; 16], caps).unwrap();
        scene.model.pump();
        let rebuilt = |scene: &Scene| scene.model.machine.label().members[1].rebuilt_stripes;
        let is_meta = |pending: &Pending| matches!(pending, Pending::Write { meta: true, .. });
        while rebuilt(&scene) < 2 || scene.model.machine.labels_pending() {
            let at = scene.model.pending.iter().position(is_meta).unwrap_or(0);
            scene.model.finish(at, None, &mut scene.rng);
        }
        // Of two stripes one has data on the member, whose neighbour is written: parity stays as it was.
        let geometry = scene.model.geometry();
        let stripe = (0..2).find(|stripe| geometry.column_of(*stripe, BACK) < 2).unwrap();
        let own = geometry.column_of(stripe, BACK);
        let at = |column: u8| stripe * geometry.stripe_data_len() + u64::from(column) * 4096;
        scene.submit(Op::Write, at(1 - own), 4096, 7);
        scene.finish_reads();
        let (writer, offset) =
            (geometry.member_of(stripe, 1 - own), geometry.member_offset(stripe, 0));
        let is_data = |pending: &Pending| matches!(pending, Pending::Write { member, offset: to, .. } if (*member, *to) == (writer, offset));
        let data = scene.model.pending.iter().position(is_data).unwrap();
        scene.model.finish(data, None, &mut scene.rng);
        (scene, at(own), at(1 - own))
    };
    let (mut looked_at, own, written) = scene();
    looked_at.reopen(&[0, 1, 2], Permissions { read_only: true, ..FORCE });
    assert_eq!(looked_at.first_byte(own), 1, "computed from parity that is torn");
    assert_eq!(looked_at.first_byte(written), 7);
    let (mut scene, own, written) = scene();
    scene.reopen(&[0, 1, 2], FORCE);
    let label = scene.model.machine.label();
    assert!(label.members.iter().all(|entry| entry.state == MemberState::InSync));
    scene.close();
    for away in 0..3 {
        let here: Vec<usize> = (0..3).filter(|at| *at != away).collect();
        scene.reopen(&here, Permissions { read_only: true, ..FORCE });
        assert_eq!((scene.first_byte(own), scene.first_byte(written)), (1, 7), "without {away}");
    }
}

/// A stripe whose parity is on the member that is away has nothing that could be made to match: a block of it that could
/// not be read kept the stripe from being written ever after, and the array was never closed as clean.
#[test]
fn force_leaves_stripes_alone_whose_parity_is_away() {
    const AWAY: MemberIndex = MemberIndex(1);
    let mut scene = Scene::new(Level::Raid5, 3);
    scene.write_all(1);
    let geometry = scene.model.geometry();
    let stripe = (0..3).find(|stripe| geometry.column_of(*stripe, AWAY) == 2).unwrap();
    let first = geometry.member_of(stripe, 0);
    scene.model.bad.insert((first.0, geometry.member_offset(stripe, 0) / 512));
    scene.reopen(&[0, 2], FORCE);
    let at = stripe * geometry.stripe_data_len();
    let id = scene.submit(Op::Write, at, 512, 7);
    scene.finish_all();
    let (_, end) = scene.model.ended.iter().find(|(ended, _)| *ended == id).unwrap();
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(scene.first_byte(at), 7);
    scene.close();
    scene.reopen(&[0, 2], DEAD);
    assert_eq!(scene.first_byte(at), 7);
}

/// A stripe that could not be resynced kept all others from being rebuilt.
#[test]
fn a_rebuild_does_what_it_can_and_says_what_it_could_not() {
    let mut scene = Scene::new(Level::Raid5, 3);
    scene.write_all(5);
    scene.model.events.clear();
    scene.model.reopen(&[0, 1, 2], DEAD).unwrap();
    while !scene.model.events.contains(&Event::Opened) {
        scene.model.finish(0, None, &mut scene.rng);
    }
    scene.model.machine.handle_fail(MemberIndex(1)).unwrap();
    scene.model.pump();
    scene.finish_all();
    scene.model.swap_medium(1, &mut scene.rng);
    let caps = scene.model.caps();
    scene.model.machine.handle_replace(MemberIndex(1), [5; 16], caps).unwrap();
    scene.model.pump();
    scene.finish_all();
    let geometry = scene.model.geometry();
    // Parity of every third stripe is on the member: these can be rebuilt, and hold after a loss.
    let parity_there = |stripe: &u64| geometry.column_of(*stripe, MemberIndex(1)) == 2;
    let stripe = (0..geometry.stripes()).rfind(parity_there).unwrap();
    let row = scene.model.media[1].read(geometry.member_offset(stripe, 0), 4096);
    assert!(row.iter().all(|byte| *byte == 0), "5 XOR 5, written by the rebuild");
    let incomplete = |event: &&Event| matches!(event, Event::Incomplete { .. });
    assert!(scene.model.events.iter().any(|event| incomplete(&event)));
}

/// A read rested on a member being set aside, which the labels did not say yet: after a crash the
/// member was in sync again, with the old bytes.
#[test]
fn what_was_read_does_not_change_in_a_crash() {
    let mut scene = Scene::new(Level::Raid1, 2);
    scene.write(0, 4096, 1);
    scene.submit(Op::Write, 0, 4096, 7);
    let at = scene.model.pending.iter().position(|p| p.member().0 == 1).unwrap();
    scene.model.finish(at, None, &mut scene.rng);
    let offset = scene.model.geometry().member_offset(0, 0);
    let old = scene.model.media[0].read(offset, 4096).to_vec();
    scene.model.finish(0, Some(ErrorKind::Timeout), &mut scene.rng);
    scene.model.media[0].write(offset, &old, true);
    let read = scene.submit(Op::Read, 0, 4096, 0);
    scene.finish_reads();
    let answered = scene.model.ended.iter().any(|(id, _)| *id == read);
    assert!(!answered, "answered before the labels say who took part");
    scene.finish_all();
    assert!(scene.model.ended.iter().any(|(id, end)| *id == read && end.is_ok()));
}

/// A label composed before a replacement was written onto the replacement, which then passed for
/// the member that it had replaced.
#[test]
fn a_replacement_never_gets_a_label_of_its_predecessor() {
    let mut scene = Scene::new(Level::Raid5, 4);
    scene.write_all(3);
    // A label update is under way while member 2 is set aside and replaced.
    scene.model.machine.handle_fail(MemberIndex(1)).unwrap();
    scene.model.pump();
    scene.finish_all();
    scene.model.swap_medium(1, &mut scene.rng);
    let caps = scene.model.caps();
    scene.model.machine.handle_replace(MemberIndex(1), [5; 16], caps).unwrap();
    scene.model.pump();
    let rebuilt = |event: &Event| matches!(event, Event::Finished(_));
    while !scene.model.events.iter().any(rebuilt) {
        scene.model.finish(0, None, &mut scene.rng);
    }
    scene.model.machine.handle_fail(MemberIndex(2)).unwrap();
    scene.model.pump();
    while let Some(at) = scene.model.pending.iter().position(|p| p.member().0 == 2) {
        scene.model.finish(at, Some(ErrorKind::Aborted), &mut scene.rng);
    }
    let caps = scene.model.caps();
    let early = scene.model.machine.handle_replace(MemberIndex(2), [6; 16], caps);
    assert_eq!(early, Err(CommandError::LabelsPending), "the labels still count on the old device");
    let is_meta = |pending: &Pending| matches!(pending, Pending::Write { meta: true, .. });
    while scene.model.machine.labels_pending() {
        let at = scene.model.pending.iter().position(is_meta).unwrap();
        scene.model.finish(at, None, &mut scene.rng);
    }
    scene.model.swap_medium(2, &mut scene.rng);
    let caps = scene.model.caps();
    scene.model.machine.handle_replace(MemberIndex(2), [6; 16], caps).unwrap();
    scene.model.pump();
    // At every moment from here on a crash must not find member 2 in sync before its rebuild.
    while !scene.model.pending.is_empty() {
        let state = scene.model.machine.label().state(MemberIndex(2));
        if state != netraid_raid::member::MemberState::InSync {
            assert!(!scene.model.label_says_in_sync(2), "its own label says that it is in sync");
        }
        let at = scene.model.pending.iter().position(is_meta).unwrap_or(0);
        scene.model.finish(at, None, &mut scene.rng);
    }
    assert_eq!(scene.first_byte(0), 3);
}

#[test]
fn an_engine_that_is_fenced_at_one_member_stops_at_once() {
    for level in [Level::Raid1, Level::Raid5] {
        let mut scene = Scene::new(level, 3);
        scene.write(0, 4096, 1);
        let rewrite = scene.submit(Op::Write, 0, 4096, 2);
        let is_write = |pending: &Pending| matches!(pending, Pending::Write { .. });
        while !scene.model.pending.iter().any(is_write) {
            scene.model.finish(0, None, &mut scene.rng);
        }
        let at = scene.model.pending.iter().position(is_write).unwrap();
        let member = scene.model.pending[at].member();
        scene.model.finish(at, Some(ErrorKind::Fenced), &mut scene.rng);
        let failure = scene.model.machine.failure().unwrap();
        assert_eq!(failure.kind(), ErrorKind::Fenced, "{failure}");
        // The member is not set aside: the labels are another engine's now.
        let state = scene.model.machine.label().state(member);
        assert_eq!(state, netraid_raid::member::MemberState::InSync);
        scene.finish_all();
        assert!(!scene.model.machine.labels_pending());
        let (_, end) = scene.model.ended.iter().find(|(ended, _)| *ended == rewrite).unwrap();
        assert_eq!(end.as_ref().unwrap_err().kind(), ErrorKind::Fenced, "it was acknowledged");
    }
}
