//! Gates and policies of LUNs.

use super::*;
use crate::{Gate, Moment, Place};
use netraid_block::Op;
use netraid_scsi::Status;

fn site_with(gate: Gate) -> (Rc<Site>, Session) {
    let site = Site::new();
    let session = session(&site, 1);
    site.lun(0).state.house.set(gate);
    (site, session)
}

#[test]
fn a_command_enters_before_it_looks_at_the_gate() {
    let (site, mut session) = site_with(Gate::Open);
    site.lun(0).set_policy(None);
    let tag = session.read(0, 3);
    let submit = Seen::Submit(0, Op::Read, Place::Same);
    let look = Seen::Look(0, Moment::BeforeRequest, false);
    assert_eq!(seen(&site), [Seen::Use(0), Seen::Enter(0), look, submit]);
    session.finish(Ok(()));
    assert_eq!(session.status(tag), GOOD);
    assert_eq!(seen(&site), [Seen::Leave(0), Seen::Count(Status::Good)]);
}

#[test]
fn an_open_gate_without_a_policy_is_not_asked() {
    let (site, mut session) = site_with(Gate::Open);
    session.read(0, 3);
    let submit = Seen::Submit(0, Op::Read, Place::Same);
    assert_eq!(seen(&site), [Seen::Use(0), Seen::Enter(0), submit]);
}

#[test]
fn a_held_gate_answers_busy() {
    let (site, mut session) = site_with(Gate::Held);
    let tag = session.write(0, 3);
    assert_eq!(session.status(tag), BUSY);
    assert!(!was_submitted(&seen(&site)));
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn a_gate_that_leaves_answers_logical_unit_not_supported() {
    let (site, mut session) = site_with(Gate::Leaving);
    let tag = session.read(0, 3);
    assert_eq!(session.sense(tag), Additional::LOGICAL_UNIT_NOT_SUPPORTED);
    assert!(!was_submitted(&seen(&site)));
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn what_began_before_the_gate_moved_goes_on() {
    for gate in [Gate::Held, Gate::Leaving] {
        let (site, mut session) = site_with(Gate::Open);
        let tag = session.compare_and_write(0);
        site.lun(0).state.house.set(gate);
        seen(&site);
        session.finish(Ok(()));
        let look = Seen::Look(0, Moment::BeforeRequest, true);
        assert_eq!(seen(&site), [look, Seen::Submit(0, Op::Write, Place::Same)]);
        session.finish(Ok(()));
        assert_eq!((session.status(tag), site.running()), (GOOD, [0, 0]));
    }
}

#[test]
fn a_policy_spares_the_data_of_what_it_denies() {
    let (site, mut session) = site_with(Gate::Open);
    site.lun(0).set_policy(Some(Moment::BeforeData));
    let tag = session.announce_write(0);
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    assert!(session.asked.is_empty(), "nobody asks for its data");
    assert!(!was_submitted(&seen(&site)));
}

#[test]
fn a_policy_is_asked_again_before_the_request() {
    let (site, mut session) = site_with(Gate::Open);
    site.lun(0).set_policy(Some(Moment::BeforeRequest));
    let tag = session.announce_write(0);
    session.give_data(5);
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    let seen = seen(&site);
    let looks = [Moment::BeforeData, Moment::BeforeRequest];
    for moment in looks {
        assert!(seen.contains(&Seen::Look(0, moment, false)), "{seen:?}");
    }
    assert!(!was_submitted(&seen));
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn reservations_are_stored_for_a_lun_that_was_entered() {
    let (site, mut session) = site_with(Gate::Open);
    let tag = session.reserve_out(0, (0, 7));
    assert_eq!(seen(&site), [Seen::Enter(0), Seen::Store(Some(0))]);
    session.finish(Ok(()));
    assert_eq!((session.status(tag), site.running()), (GOOD, [0, 0]));
}

#[test]
fn reservations_are_not_stored_while_their_lun_leaves() {
    let (site, mut session) = site_with(Gate::Leaving);
    let tag = session.reserve_out(0, (0, 7));
    assert_eq!(seen(&site), [Seen::Enter(0), Seen::Store(None)]);
    session.finish(Err(ErrorKind::Aborted));
    assert_eq!(session.sense(tag), Additional::INTERNAL_TARGET_FAILURE);
}

#[test]
fn a_session_is_noted_once_for_each_incarnation_of_a_lun_that_it_uses() {
    let (site, mut session) = site_with(Gate::Open);
    let mut uses = || {
        session.read(0, 1);
        session.finish(Ok(()));
        seen(&site).iter().filter(|one| **one == Seen::Use(0)).count()
    };
    assert_eq!((uses(), uses()), (1, 0));
    site.lun(0).state.incarnation.set(2);
    assert_eq!((uses(), uses()), (1, 0));
}

#[test]
fn what_leaves_the_medium_alone_uses_nothing() {
    let (site, mut session) = site_with(Gate::Held);
    let answer = session.run(0, &build::inquiry(None, 36));
    assert_eq!((answer.status, answer.data.len()), (GOOD, 36));
    assert_eq!(seen(&site), [Seen::Count(Status::Good)]);
}
