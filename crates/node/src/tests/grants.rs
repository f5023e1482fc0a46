//! What a token let a session in to.

use super::{
    site::{Bars, CAPACITY, FakeGuest, second_half},
    *,
};
use crate::{Moment, Needs, Place};
use netraid_block::Op;

fn guest() -> (Rc<Site>, Session) {
    let site = Site::new();
    let mut session = session(&site, 1);
    session.outside.guest = Some(FakeGuest::new(&site));
    (site, session)
}

fn bar(session: &Session, bars: Bars) {
    session.outside.grant().bars.set(bars);
}

#[test]
fn what_takes_a_right_is_denied_when_it_comes() {
    let (site, mut session) = guest();
    bar(&session, Bars::Needs);
    let mut cdb = [0; 16];
    (cdb[0], cdb[8]) = (0x5f, 24);
    let tag = session.command(0, &cdb, (0, 24), &[]);
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    assert_eq!(seen(&site)[0], Seen::May(Needs::Reserve));
    assert!(session.asked.is_empty());
}

#[test]
fn what_takes_no_right_is_not_asked_about() {
    let (site, mut session) = guest();
    bar(&session, Bars::Needs);
    assert_eq!(session.run(0, &build::test_unit_ready()).status, GOOD);
    assert!(!seen(&site).iter().any(|one| matches!(one, Seen::May(_))));
}

#[test]
fn a_right_that_was_lost_while_the_data_came_is_missed() {
    let (site, mut session) = guest();
    let mut cdb = [0; 16];
    (cdb[0], cdb[8]) = (0x5f, 24);
    let tag = session.command(0, &cdb, (0, 24), &[]);
    bar(&session, Bars::Needs);
    session.give_data(0);
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    assert!(!seen(&site).contains(&Seen::Store(Some(0))));
}

#[test]
fn a_grant_spares_the_data_of_what_it_does_not_allow() {
    let (site, mut session) = guest();
    bar(&session, Bars::What(Moment::BeforeData));
    let tag = session.announce_write(0);
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    assert!(session.asked.is_empty() && !was_submitted(&seen(&site)));
}

#[test]
fn each_request_is_judged_after_it_entered() {
    let (site, mut session) = guest();
    let tag = session.compare_and_write(0);
    let entered = [Seen::Enter(0), Seen::GuestEnters, Seen::Judge(Op::Read)];
    assert_eq!(seen(&site)[2..5], entered);
    bar(&session, Bars::What(Moment::BeforeRequest));
    session.finish(Ok(()));
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    let seen = seen(&site);
    assert!(seen.contains(&Seen::Judge(Op::Write)) && !was_submitted(&seen), "{seen:?}");
    assert_eq!((site.running(), session.outside.grant().running.get()), ([0, 0], 0));
}

#[test]
fn a_request_goes_where_its_grant_says() {
    let (site, mut session) = guest();
    let pieces = second_half();
    session.outside.guest = Some(FakeGuest::at(&site, pieces));
    session.read(0, 0);
    assert_eq!(seen(&site).last(), Some(&Seen::Submit(0, Op::Read, Place::Pieces(pieces))));
}

#[test]
fn a_guest_sees_its_part_of_the_unit() {
    let site = Site::new();
    let mut session = Session::connect(&site, setup());
    session.outside.guest = Some(FakeGuest::of_half(&site));
    session.log_in(1);
    session.hear_of_power_on();
    let answer = session.run(0, &build::read_capacity_10());
    let last = u32::from_be_bytes(answer.data[..4].try_into().unwrap());
    assert_eq!(u64::from(last) + 1, CAPACITY / 2 / 512);
}

#[test]
fn the_end_that_a_failed_request_moved_is_taken_back() {
    let failures = [Ok(()), Err(ErrorKind::Medium)];
    for (result, expected) in failures.into_iter().zip([0, 1]) {
        let (site, mut session) = guest();
        session.outside.grant().appended.set(Some((512, 1024)));
        session.write(0, 1);
        session.finish(result);
        let seen = seen(&site);
        let count = seen.iter().filter(|one| **one == Seen::TakeBack(512, 1024)).count();
        assert_eq!(count, expected, "{seen:?}");
    }
}
