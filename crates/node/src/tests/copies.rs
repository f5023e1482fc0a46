//! Copies between LUNs.

use super::{
    site::{Bars, FakeGuest},
    *,
};
use crate::{Gate, Moment, Place};
use netraid_block::Op;
use netraid_scsi::Identity;

/// A list that says: one block of LUN 0 to LUN 1.
pub(super) fn list() -> Vec<u8> {
    let mut list = vec![0; 16];
    // No list identifier; two descriptors of 32 bytes, a segment of 28.
    (list[1], list[3], list[11]) = (0x18, 64, 28);
    for lun in [0, 1] {
        let naa = 0x3 << 60 | Identity::for_lun(TARGET, lun).naa;
        let mut descriptor = vec![0; 32];
        descriptor[0] = 0xe4;
        descriptor[4..8].copy_from_slice(&[1, 3, 0, 8]);
        descriptor[8..16].copy_from_slice(&naa.to_be_bytes());
        list.extend(descriptor);
    }
    list.extend([0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 1]);
    list.extend([0; 16]);
    list
}

/// The command whose list this is.
pub(super) fn cdb_of(list: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, u8::try_from(list.len()).unwrap());
    cdb
}

fn copy(session: &mut Session) -> u32 {
    let list = list();
    session.command(0, &cdb_of(&list), (0, list.len()), &list)
}

/// A copy whose next request goes to LUN 1.
fn half_a_copy() -> (Rc<Site>, Session, u32) {
    let site = Site::new();
    let mut session = session(&site, 1);
    let tag = copy(&mut session);
    seen(&site);
    (site, session, tag)
}

#[test]
fn a_copy_enters_each_lun_for_its_requests_there() {
    let (site, mut session, tag) = half_a_copy();
    assert_eq!(site.running(), [1, 0]);
    session.finish(Ok(()));
    let look = Seen::Look(1, Moment::BeforeRequest, false);
    let submit = Seen::Submit(1, Op::Write, Place::Same);
    assert_eq!(seen(&site), [Seen::Leave(0), Seen::Enter(1), look, submit]);
    session.finish(Ok(()));
    assert_eq!((session.status(tag), site.running()), (GOOD, [0, 0]));
}

#[test]
fn a_copy_that_is_refused_leaves_what_it_entered() {
    for gate in [Gate::Held, Gate::Leaving] {
        let (site, mut session, tag) = half_a_copy();
        site.lun(1).state.house.set(gate);
        session.finish(Ok(()));
        let seen = seen(&site);
        assert!(seen.contains(&Seen::Enter(1)) && !was_submitted(&seen), "{seen:?}");
        assert_eq!(site.running(), [0, 0]);
        assert_ne!(session.status(tag), GOOD);
    }
}

#[test]
fn a_copy_does_not_reach_whoever_has_the_number_of_its_lun_now() {
    let (site, mut session, tag) = half_a_copy();
    site.are_replaced.set(true);
    session.finish(Ok(()));
    assert!(!was_submitted(&seen(&site)));
    assert_eq!(site.running(), [0, 0]);
    assert_eq!(session.answer(tag).status, CHECK_CONDITION);
}

#[test]
fn a_grant_judges_the_requests_of_a_copy_and_counts_them() {
    let site = Site::new();
    let mut session = session(&site, 1);
    session.outside.guest = Some(FakeGuest::new(&site));
    let tag = copy(&mut session);
    assert_eq!(session.outside.grant().running.get(), 1);
    session.outside.grant().bars.set(Bars::What(Moment::BeforeRequest));
    seen(&site);
    session.finish(Ok(()));
    assert!(!was_submitted(&seen(&site)));
    assert_ne!(session.status(tag), GOOD);
    assert_eq!((session.outside.grant().running.get(), site.running()), (0, [0, 0]));
}

#[test]
fn the_end_that_a_failed_request_of_a_copy_moved_is_taken_back() {
    let site = Site::new();
    let mut session = session(&site, 1);
    session.outside.guest = Some(FakeGuest::new(&site));
    copy(&mut session);
    session.outside.grant().appended.set(Some((0, 512)));
    session.finish(Ok(()));
    session.finish(Err(ErrorKind::Medium));
    assert!(seen(&site).contains(&Seen::TakeBack(0, 512)));
}

#[test]
fn whoever_resets_a_lun_waits_for_the_copy_that_is_there() {
    let (site, mut session, _) = half_a_copy();
    session.finish(Ok(()));
    let function = session.manage(TaskFunction::LogicalUnitReset, 1, 0);
    assert!(session.functions.is_empty(), "the copy still writes to LUN 1");
    session.finish(Ok(()));
    assert_eq!(session.functions, [(function, TaskResponseCode::Complete)]);
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn a_copy_that_was_aborted_does_not_go_on() {
    let (site, mut session, tag) = half_a_copy();
    let function = session.manage(TaskFunction::AbortTask, 0, tag);
    session.finish(Ok(()));
    assert!(!was_submitted(&seen(&site)));
    assert_eq!(session.functions, [(function, TaskResponseCode::Complete)]);
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn a_copy_of_a_session_that_broke_off_leaves_where_it_was() {
    let (site, mut session, _) = half_a_copy();
    session.finish(Ok(()));
    assert_eq!(site.running(), [0, 1]);
    session.service.end(&mut session.outside);
    assert_eq!(site.running(), [0, 0]);
}
