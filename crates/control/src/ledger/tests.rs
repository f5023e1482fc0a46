use std::{string::ToString, vec, vec::Vec};

use super::*;
use crate::units::Rate;

pub(super) fn mediator(at: u8) -> MediatorId {
    MediatorId([at; 16])
}

pub(super) fn id(at: u8) -> AllotmentId {
    AllotmentId([at; 16])
}

pub(super) fn segment(at: u8) -> SegmentId {
    SegmentId([at; 16])
}

pub(super) fn some(space_bytes: u64, device: u64, network: u64) -> Resources {
    Resources { space_bytes, device: Rate(device), network: Rate(network) }
}

const NOW: Moment = Moment(1_000_000);

const CAPACITY: Resources = Resources { space_bytes: 1_000, device: Rate(100), network: Rate(100) };

fn ledger() -> Ledger {
    Ledger::new(CAPACITY, Resources::default(), Limits::default())
}

fn asks(at: u8, resources: Resources) -> Hold {
    Hold {
        id: id(at),
        segment: segment(at),
        generation: None,
        purpose: Purpose::Client,
        resources,
        for_ms: 5_000,
    }
}

/// Holds and commits, space without end and rates for ten seconds.
fn book(ledger: &mut Ledger, whose: u8, hold: &Hold) -> Allotment {
    let whose = mediator(whose);
    let serial = ledger.hold(NOW, whose, hold).unwrap().allotment.serial;
    let for_ms = (hold.resources.space_bytes == 0).then_some(10_000);
    ledger.commit(NOW, whose, &Commit { id: hold.id, serial, for_ms }).unwrap().allotment
}

fn store_all(ledger: &mut Ledger) -> Vec<Change> {
    let mut changes = Vec::new();
    while let Some((order, change)) = ledger.poll_change() {
        changes.push(change);
        ledger.handle_stored(order);
    }
    changes
}

#[test]
fn what_is_held_ends_by_itself_and_a_commit_after_that_books_nothing() {
    let mut ledger = ledger();
    let held = ledger.hold(NOW, mediator(1), &asks(1, some(0, 60, 60))).unwrap().allotment;
    let end = NOW.after_ms(5_000);
    assert_eq!(held.state, State::Held { until: end });
    assert_eq!(ledger.next_timeout(NOW), Some(end));
    let commit = Commit { id: id(1), serial: held.serial, for_ms: Some(10_000) };
    assert_eq!(ledger.commit(end, mediator(1), &commit), Err(LeaseError::Absent { id: id(1) }));
    ledger.expire(Moment(end.0 - 1));
    assert_eq!(ledger.booked().entries, 1);
    ledger.expire(end);
    assert_eq!(ledger.booked(), Booked::default());
    assert_eq!(ledger.next_timeout(end), None);
}

#[test]
fn a_lease_ends_unless_it_is_renewed_and_a_renewal_never_shortens() {
    let mut ledger = ledger();
    book(&mut ledger, 1, &asks(1, some(0, 60, 60)));
    let later = NOW.after_ms(9_999);
    let until = |ms| State::Committed { until: Some(later.after_ms(ms)) };
    let renewed = ledger.renew(later, mediator(1), id(1), 10_000).unwrap().allotment;
    assert_eq!(renewed.state, until(10_000));
    let delayed = ledger.renew(later, mediator(1), id(1), 10).unwrap().allotment;
    assert_eq!(delayed.state, until(10_000));
    assert_eq!(
        ledger.renew(later.after_ms(10_000), mediator(1), id(1), 10),
        Err(LeaseError::Absent { id: id(1) })
    );
}

#[test]
fn a_refusal_says_what_there_is_too_little_of_and_when_that_may_change() {
    let mut ledger = ledger();
    book(&mut ledger, 1, &asks(1, some(900, 0, 0)));
    book(&mut ledger, 1, &asks(2, some(0, 60, 30)));
    let refused = ledger.hold(NOW, mediator(2), &asks(1, some(0, 50, 50))).unwrap_err();
    let expected = Short {
        asked: some(0, 50, 50),
        left: some(100, 40, 70),
        overbooked: Resources::default(),
        frees_at: Some(NOW.after_ms(10_000)),
    };
    assert_eq!(refused, HoldError::Short(expected));
    assert_eq!(expected.lack(), some(0, 10, 0));
    assert_eq!(
        refused.to_string(),
        "too little is left: 50 bytes a second of the devices asked, 40 left; \
         nothing ends by itself before 1010000 ms since 1970; ask for less, later, or elsewhere"
    );
    // Of space nothing ends by itself.
    let refused = ledger.hold(NOW, mediator(2), &asks(1, some(101, 0, 0))).unwrap_err();
    assert!(matches!(refused, HoldError::Short(Short { frees_at: None, .. })), "{refused}");
    ledger.hold(NOW, mediator(2), &asks(1, some(100, 0, 0))).unwrap();
}

#[test]
fn one_mediator_neither_reaches_nor_hinders_another_by_the_same_ids() {
    let mut ledger = ledger();
    let first = book(&mut ledger, 1, &asks(1, some(0, 60, 60)));
    assert_eq!(
        ledger.commit(
            NOW,
            mediator(2),
            &Commit { id: id(1), serial: first.serial, for_ms: Some(1) }
        ),
        Err(LeaseError::Absent { id: id(1) })
    );
    assert_eq!(ledger.renew(NOW, mediator(2), id(1), 1), Err(LeaseError::Absent { id: id(1) }));
    assert_eq!(ledger.release(mediator(2), id(1)).unwrap().entries, 0);
    assert_eq!(ledger.release_segment(mediator(2), segment(1), None).unwrap().entries, 0);
    assert_eq!(ledger.page(mediator(2), None).count(), 0);
    let second = book(&mut ledger, 2, &asks(1, some(0, 40, 40)));
    assert!(ledger.entries().eq([&first, &second]));
    let of_each: Vec<_> = ledger.mediators().collect();
    let one = |resources| Booked { entries: 1, resources };
    let expected = [(mediator(1), one(some(0, 60, 60))), (mediator(2), one(some(0, 40, 40)))];
    assert_eq!(of_each, expected);
}

#[test]
fn delayed_copies_of_a_hold_and_its_commit_book_nothing_after_the_release() {
    let mut ledger = ledger();
    let hold = asks(1, some(700, 0, 0));
    let serial = ledger.hold(NOW, mediator(1), &hold).unwrap().allotment.serial;
    let commit = Commit { id: id(1), serial, for_ms: None };
    ledger.commit(NOW, mediator(1), &commit).unwrap();
    assert_eq!(ledger.release(mediator(1), id(1)).unwrap().entries, 1);
    // In the same millisecond even.
    ledger.hold(NOW, mediator(1), &hold).unwrap();
    assert_eq!(ledger.commit(NOW, mediator(1), &commit), Err(LeaseError::Absent { id: id(1) }));
    ledger.expire(NOW.after_ms(5_000));
    assert_eq!(ledger.booked().entries, 0);

    // After a restart that found nothing stored, too.
    let mut ledger =
        Ledger::restore(CAPACITY, Resources::default(), Limits::default(), []).unwrap();
    let later = NOW.after_ms(1);
    ledger.hold(later, mediator(1), &hold).unwrap();
    assert!(ledger.commit(later, mediator(1), &commit).is_err());
}

#[test]
fn space_lasts_until_it_is_released_and_rates_never_so_long() {
    let mut ledger = ledger();
    let of = |at, serial, for_ms| Commit { id: id(at), serial, for_ms };
    let space = ledger.hold(NOW, mediator(1), &asks(1, some(1, 0, 0))).unwrap().allotment.serial;
    let rates = ledger.hold(NOW, mediator(1), &asks(2, some(0, 1, 0))).unwrap().allotment.serial;
    assert_eq!(
        ledger.commit(NOW, mediator(1), &of(1, space, Some(10))),
        Err(LeaseError::SpaceWithEnd { id: id(1) })
    );
    assert_eq!(
        ledger.commit(NOW, mediator(1), &of(2, rates, None)),
        Err(LeaseError::RatesWithoutEnd { id: id(2) })
    );
    let longest_ms = Limits::default().lease_ms;
    for asked_ms in [0, longest_ms + 1] {
        assert_eq!(
            ledger.commit(NOW, mediator(1), &of(2, rates, Some(asked_ms))),
            Err(TermError { asked_ms, longest_ms }.into())
        );
    }
    for neither in [some(1, 1, 0), some(1, 0, 1), some(0, 0, 0)] {
        assert_eq!(
            ledger.hold(NOW, mediator(1), &asks(3, neither)),
            Err(HoldError::Mixed { id: id(3) })
        );
    }
}

#[test]
fn what_is_over_makes_room_in_the_order_of_the_store() {
    let mut ledger = ledger();
    ledger.hold(NOW, mediator(1), &asks(1, some(0, 30, 0))).unwrap();
    ledger.hold(NOW.after_ms(1), mediator(1), &asks(2, some(0, 30, 0))).unwrap();
    ledger.hold(NOW.after_ms(2), mediator(1), &asks(3, some(0, 30, 0))).unwrap();
    store_all(&mut ledger);
    let later = NOW.after_ms(6_000);
    let held = ledger.hold(later, mediator(2), &asks(1, some(0, 70, 0))).unwrap();
    assert!(!ledger.is_stored(held.order));
    // Only what was in the way goes, and it goes first.
    let gone = |at| Change::Remove { mediator: mediator(1), id: id(at) };
    assert_eq!(store_all(&mut ledger), [gone(1), gone(2), Change::Put(held.allotment)]);
    assert!(ledger.is_stored(held.order));
    assert_eq!(ledger.booked().resources, some(0, 100, 0));
}

#[test]
fn an_answer_waits_for_what_it_rests_on_and_a_failed_store_takes_all_of_it_back() {
    let mut ledger = ledger();
    let hold = asks(1, some(0, 60, 60));
    let first = ledger.hold(NOW, mediator(1), &hold).unwrap();
    let (order, _) = ledger.poll_change().unwrap();
    // The same again, before it is stored, may not be answered either.
    let again = ledger.hold(NOW, mediator(1), &hold).unwrap();
    assert_eq!(again, first);
    assert!(!ledger.is_stored(again.order));
    ledger.handle_stored(order);
    assert!(ledger.is_stored(again.order));

    let released = ledger.release(mediator(1), id(1)).unwrap();
    let second = ledger.hold(NOW, mediator(2), &asks(1, some(0, 90, 90))).unwrap();
    ledger.poll_change().unwrap();
    ledger.handle_store_failed();
    assert!(ledger.entries().eq([&first.allotment]));
    assert_eq!(ledger.left(Purpose::Client), some(1_000, 40, 40));
    assert_eq!(ledger.poll_change(), None);
    // What is stored later does not let their answers pass.
    let third = ledger.hold(NOW, mediator(2), &asks(1, some(0, 30, 30))).unwrap();
    store_all(&mut ledger);
    assert!(ledger.is_stored(third.order));
    assert!(!ledger.is_stored(released.order) && !ledger.is_stored(second.order));
}

#[test]
#[should_panic(expected = "stored before it was to be")]
fn what_was_not_handed_out_cannot_be_stored() {
    let mut ledger = ledger();
    let held = ledger.hold(NOW, mediator(1), &asks(1, some(1, 0, 0))).unwrap();
    ledger.handle_stored(held.order);
}

#[test]
fn a_store_that_is_behind_stops_changes_and_nothing_else() {
    let mut ledger = ledger();
    let held = ledger.hold(NOW, mediator(1), &asks(1, some(0, 1, 1))).unwrap().allotment;
    let commit = Commit { id: id(1), serial: held.serial, for_ms: Some(1) };
    ledger.commit(NOW, mediator(1), &commit).unwrap();
    for ms in 2..10_000 {
        if let Err(error) = ledger.renew(NOW, mediator(1), id(1), ms) {
            assert_eq!((error, ms), (LeaseError::Busy(Busy { limit: 4096 }), 4096));
            break;
        }
    }
    assert!(ledger.release(mediator(1), id(1)).is_err());
    assert!(ledger.hold(NOW, mediator(1), &asks(2, some(1, 0, 0))).is_err());
    assert_eq!(ledger.next_timeout(NOW.after_ms(9_999)), None);
    ledger.expire(NOW.after_ms(9_999));
    // Nothing is to be changed for these.
    assert!(ledger.renew(NOW, mediator(1), id(1), 1).is_ok());
    assert_eq!(ledger.release(mediator(1), id(9)).unwrap().entries, 0);
    assert_eq!(store_all(&mut ledger).len(), 4096);
    assert_eq!(ledger.release(mediator(1), id(1)).unwrap().entries, 1);
}

#[test]
fn with_less_than_is_booked_everything_stays_and_no_more_of_that_is_booked() {
    let mut ledger = ledger();
    let space = book(&mut ledger, 1, &asks(1, some(900, 0, 0)));
    let rates = book(&mut ledger, 1, &asks(2, some(0, 60, 60)));
    let less = some(1_000, 50, 200);
    let stored: Vec<_> = ledger.entries().copied().collect();
    let restored = Ledger::restore(less, Resources::default(), Limits::default(), stored).unwrap();
    ledger.set_capacity(less, Resources::default());
    for mut ledger in [restored, ledger] {
        assert!(ledger.entries().eq([&space, &rates]));
        assert_eq!(ledger.overbooked(), some(0, 10, 0));
        assert_eq!(ledger.left(Purpose::Client), some(100, 0, 140));
        let refused = ledger.hold(NOW, mediator(2), &asks(3, some(0, 1, 1))).unwrap_err();
        assert!(refused.to_string().contains("the agent has less than is booked already"));
        ledger.hold(NOW, mediator(2), &asks(4, some(100, 0, 0))).unwrap();
        ledger.hold(NOW, mediator(2), &asks(5, some(0, 0, 140))).unwrap();
        ledger.renew(NOW.after_ms(1), mediator(1), id(2), 10_000).unwrap();
    }
}

#[test]
fn what_is_kept_for_rebuilding_is_not_given_to_clients() {
    let kept = some(100, 20, 20);
    let mut ledger = Ledger::new(CAPACITY, kept, Limits::default());
    assert_eq!(ledger.left(Purpose::Client), some(900, 80, 80));
    assert_eq!(ledger.left(Purpose::Rebuild), CAPACITY);
    assert!(ledger.hold(NOW, mediator(1), &asks(1, some(0, 81, 0))).is_err());
    book(&mut ledger, 1, &asks(1, some(0, 70, 70)));
    let rebuild = Hold { purpose: Purpose::Rebuild, ..asks(2, some(0, 25, 20)) };
    ledger.hold(NOW, mediator(1), &rebuild).unwrap();
    // More than was kept is missing elsewhere then; less is not given away.
    assert_eq!(ledger.left(Purpose::Client), some(900, 5, 10));
    assert_eq!(ledger.left(Purpose::Rebuild), some(1_000, 5, 10));
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_last() {
    let mut ledger = ledger();
    let wrong = NOW.after_ms(1_000_000_000);
    for at in 1..3 {
        let hold = asks(at, some(0, 10, 10));
        let serial = ledger.hold(wrong, mediator(1), &hold).unwrap().allotment.serial;
        if at == 1 {
            let commit = Commit { id: id(at), serial, for_ms: Some(10_000) };
            ledger.commit(wrong, mediator(1), &commit).unwrap();
        }
    }
    assert_eq!(ledger.next_timeout(NOW), Some(NOW));
    ledger.expire(NOW);
    let Limits { hold_ms, lease_ms, .. } = Limits::default();
    assert_eq!(ledger.next_timeout(NOW), Some(NOW.after_ms(hold_ms)));
    ledger.expire(NOW.after_ms(hold_ms));
    assert_eq!(ledger.next_timeout(NOW), Some(NOW.after_ms(lease_ms)));
    ledger.expire(NOW.after_ms(lease_ms));
    assert_eq!(ledger.booked().entries, 0);
}

#[test]
fn a_raised_generation_frees_what_older_plans_had() {
    let mut ledger = ledger();
    let plan = |at, generation| Hold {
        segment: segment(1),
        generation: Some(Generation(generation)),
        ..asks(at, some(0, 10, 10))
    };
    book(&mut ledger, 1, &asks(1, some(500, 0, 0)));
    book(&mut ledger, 1, &plan(2, 4));
    book(&mut ledger, 1, &plan(3, 5));
    let freed = ledger.release_segment(mediator(1), segment(1), Some(Generation(5))).unwrap();
    assert_eq!(freed.entries, 1);
    let left: Vec<_> = ledger.page(mediator(1), None).map(|entry| entry.id).collect();
    assert_eq!(left, [id(1), id(3)]);
    assert_eq!(ledger.release_segment(mediator(1), segment(1), None).unwrap().entries, 2);
    assert_eq!(ledger.booked(), Booked::default());
}

#[test]
fn a_list_comes_in_pages_of_one_mediator() {
    let mut ledger = ledger();
    for at in [3, 1, 0xff, 2, 0] {
        for whose in 0..3 {
            book(&mut ledger, whose, &asks(at, some(0, 1, 1)));
        }
    }
    let (mut pages, mut after) = (Vec::new(), None);
    for _ in 0..4 {
        let page: Vec<_> = ledger.page(mediator(1), after).take(2).map(|it| it.id).collect();
        after = page.last().copied();
        pages.push(page);
    }
    assert_eq!(pages, [vec![id(0), id(1)], vec![id(2), id(3)], vec![id(0xff)], vec![]]);
}

#[test]
fn entries_that_do_not_fit_together_are_no_ledger() {
    let mut whole = ledger();
    let space = book(&mut whole, 1, &asks(1, some(900, 0, 0)));
    let rates = book(&mut whole, 1, &asks(2, some(0, 60, 60)));
    let restore = |entries: &[Allotment]| {
        let entries = entries.iter().copied();
        Ledger::restore(CAPACITY, Resources::default(), Limits::default(), entries).err()
    };
    assert_eq!(restore(&[rates, space]), None);
    let (mediator, one) = (mediator(1), id(1));
    assert_eq!(restore(&[space, space]), Some(RestoreError::Twice { mediator, id: one }));
    let huge = Allotment { id: id(3), resources: some(u64::MAX, 0, 0), ..space };
    assert_eq!(restore(&[space, huge]), Some(RestoreError::TooLarge { mediator, id: id(3) }));
    for impossible in [
        Allotment { resources: some(1, 1, 1), ..space },
        Allotment { resources: some(0, 0, 0), ..space },
        Allotment { resources: some(0, 1, 1), ..space },
        Allotment { state: State::Committed { until: Some(NOW) }, ..space },
    ] {
        assert_eq!(restore(&[impossible]), Some(RestoreError::Impossible { mediator, id: one }));
    }
}

#[test]
fn an_id_that_stands_for_something_else_is_refused() {
    let mut ledger = ledger();
    let hold = asks(1, some(0, 10, 10));
    let stands = book(&mut ledger, 1, &hold);
    for other in [
        Hold { segment: segment(2), ..hold },
        Hold { generation: Some(Generation(0)), ..hold },
        Hold { purpose: Purpose::Rebuild, ..hold },
        Hold { resources: some(0, 10, 9), ..hold },
    ] {
        let refused = Err(HoldError::Different(Box::new(stands)));
        assert_eq!(ledger.hold(NOW, mediator(1), &other), refused);
    }
    let longer = Hold { for_ms: 6_000, ..hold };
    assert_eq!(ledger.hold(NOW, mediator(1), &longer).unwrap().allotment, stands);
}
