#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use netraid_block::TargetUri;
use netraid_cluster::mediator::PlanMember;
use netraid_control::units::AgentId;

use netraid_engine::control::ArrayStatus;

use super::*;

fn place() -> Place {
    let member = PlanMember {
        agent: AgentId([1; 16]),
        segment: SegmentId([2; 16]),
        portal: "127.0.0.1:3260".to_owned(),
        target: "iqn.2026-01.org.example:segment".to_owned(),
        chap_name: "token".to_owned(),
        chap_secret: "0123456789abcdef".to_owned(),
        rate: Rate::ZERO,
        reachable: true,
        fresh: true,
    };
    Place::new("/x", &member, "iqn.2026-01.org.example:client").unwrap()
}

#[test]
fn who_was_given_up_and_is_back_is_not_told_as_the_new_one() {
    let mut place = place();
    assert!(place.is_rebuilt_untold("in_sync"), "rebuilt when it was open before");
    assert!(!place.is_rebuilt_untold("rebuilding"));
    // The array has the old one still, or it is not certain what it has.
    for in_array in [Some(SegmentId([1; 16])), None] {
        place.in_array = in_array;
        assert!(!place.is_rebuilt_untold("in_sync"));
    }
    place.in_array = Some(SegmentId([2; 16]));
    place.is_untold = false;
    assert!(!place.is_rebuilt_untold("in_sync"));
}

#[test]
fn what_did_not_join_in_its_own_place_is_in_the_array_all_the_same() {
    let mut place = place();
    place.begin_join();
    assert_eq!(place.in_array, Some(place.segment));
    // In the place of another one it is not certain, until the array shows its address.
    place.in_array = Some(SegmentId([1; 16]));
    place.begin_join();
    assert_eq!(place.in_array, None);
    place.learn("iscsi://127.0.0.1:3260/iqn.2026-01.org.example:other/0");
    assert_eq!(place.in_array, None);
    place.learn("iscsi://127.0.0.1:3260/iqn.2026-01.org.example:segment/0");
    assert_eq!(place.in_array, Some(place.segment));
}

fn status(state: &str, members: [&str; 3]) -> ArrayStatus {
    let member = |(index, state): (u8, &str)| MemberStatus {
        index,
        state: state.to_owned(),
        ..MemberStatus::default()
    };
    let serves = matches!(state, "optimal" | "degraded");
    ArrayStatus {
        kind: "array".to_owned(),
        name: String::new(),
        path: None,
        uuid: String::new(),
        level: 5,
        state: state.to_owned(),
        failure: (!serves).then(|| "cannot serve without members 0, 1".to_owned()),
        read_only: false,
        capacity_bytes: 0,
        used_bytes: 0,
        chunk_bytes: 0,
        block_bytes: 0,
        generation: 1,
        epoch: 1,
        log: None,
        no_space: None,
        read_ahead: None,
        scrub: None,
        progress: None,
        progress_beside: Vec::new(),
        members: (0..).zip(members).map(member).collect(),
        spares: Vec::new(),
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

/// What is done once that is seen at some moment.
fn seen(places: &mut [Place], now: Instant, status: &ArrayStatus) -> Option<Care> {
    let condition = Condition::of(status);
    care::take_note(places, condition, &status.members, (now, false));
    let serves = condition == Condition::Serves;
    serves.then(|| care::next(places, &status.members, (now, Some(PATIENCE)))).flatten()
}

fn old_places() -> Vec<Place> {
    (0..3).map(|_| Place { fresh: false, ..place() }).collect()
}

#[test]
fn who_is_away_for_long_is_replaced_unless_another_one_may_be() {
    let (mut places, begin) = (old_places(), Instant::now());
    let lost = status("degraded", ["in_sync", "faulty", "in_sync"]);
    assert_eq!(seen(&mut places, begin, &lost), None);
    let late = begin + PATIENCE;
    let doubtful = status("degraded", ["suspect", "faulty", "in_sync"]);
    assert_eq!(seen(&mut places, late, &doubtful), None);
    assert_eq!(seen(&mut places, late, &lost), Some(Care::Ask(1)));
    // The mediator has another one in its place, which the array has not.
    places[1] = place();
    assert_eq!(seen(&mut places, late, &lost), Some(Care::Join(1)));
    let found = status("degraded", ["in_sync", "catching_up", "in_sync"]);
    assert_eq!(seen(&mut places, late, &found), None);
}

#[test]
fn nobody_is_replaced_while_the_array_pauses_and_its_time_does_not_count() {
    let (mut places, begin) = (old_places(), Instant::now());
    let lost = status("degraded", ["in_sync", "faulty", "in_sync"]);
    assert_eq!(seen(&mut places, begin, &lost), None);
    let paused = status("paused", ["suspect", "faulty", "in_sync"]);
    assert_eq!(seen(&mut places, begin + PATIENCE, &paused), None);
    places[1].fresh = true;
    assert_eq!(seen(&mut places, begin + PATIENCE, &paused), None, "also no new one");
    places[1].fresh = false;
    // It goes on without those that were not there yet.
    let resumed = begin + 2 * PATIENCE;
    let missing = status("degraded", ["in_sync", "missing", "in_sync"]);
    assert_eq!(seen(&mut places, resumed, &missing), None);
    let early = resumed + PATIENCE - Duration::from_millis(1);
    assert_eq!(seen(&mut places, early, &missing), None);
    assert_eq!(seen(&mut places, resumed + PATIENCE, &missing), Some(Care::Ask(1)));
}

#[test]
fn nobody_is_replaced_in_an_array_that_has_failed() {
    let (mut places, begin) = (old_places(), Instant::now());
    let failed = status("failed", ["faulty", "faulty", "in_sync"]);
    for late in [Duration::ZERO, 2 * PATIENCE] {
        assert_eq!(seen(&mut places, begin + late, &failed), None);
    }
}

#[test]
fn a_pause_has_the_plan_renewed_soon_and_one_in_vain_at_once() {
    use Condition::{HasFailed, Pauses, Serves};

    let asked = Instant::now();
    let (usual, now) = (asked + Duration::from_secs(150), asked + Duration::from_secs(60));
    let at =
        |before, condition, renew_at| care::renew_at((before, condition), (asked, renew_at), now);
    for (before, condition) in [(Serves, Serves), (Pauses, Serves), (Serves, HasFailed)] {
        assert_eq!(at(before, condition, usual), usual);
    }
    // It was asked for long ago: at once.
    assert!(at(Serves, Pauses, usual) <= now);
    assert!(at(Pauses, Pauses, usual) <= now);
    // Never later than it is due.
    assert_eq!(at(Pauses, Pauses, asked), asked);
    assert_eq!(at(Pauses, HasFailed, usual), now);
    // One that has failed is asked for no more often than before.
    assert_eq!(at(HasFailed, HasFailed, usual), usual);
}

#[test]
fn a_pause_is_no_refusal_of_a_segment() {
    assert_eq!(NotJoined::from(ArrayError::Paused), NotJoined::Paused);
    let refused = NotJoined::from(ArrayError::Closing);
    assert!(matches!(refused, NotJoined::Refused(_)), "{refused:?}");
}

#[test]
fn an_agent_that_is_elsewhere_is_told_to_an_array_that_has_its_segment() {
    let uri =
        |at: &str| TargetUri::parse(&format!("iscsi://{at}/iqn.2026-01.org.example:segment/0"));
    let mut place = place();
    place.in_array = Some(place.segment);
    place.config.uri = uri("127.0.0.1:3260").unwrap();
    let before = place.config.address();
    assert!(!place.is_elsewhere(&before));
    place.config.uri = uri("127.0.0.2:3260").unwrap();
    assert!(place.is_elsewhere(&before));
    // The array has another one in its place, or it is not certain which one.
    for in_array in [Some(SegmentId([1; 16])), None] {
        place.in_array = in_array;
        assert!(!place.is_elsewhere(&before));
    }
}
