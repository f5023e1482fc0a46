#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use netraid_cluster::mediator::PlanMember;
use netraid_control::units::AgentId;

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
