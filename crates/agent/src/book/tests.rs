//! What is taken back when a store does not take it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use netraid_cluster::{
    agent::{Done, FaultCode, Label, NewSegment, Operation, space_of},
    mediator::Kind,
};
use netraid_control::{
    ledger::{Commit, Hold, Ledger, Limits, Purpose},
    token::SKEW_MS,
    units::{
        AllotmentId, Generation, MediatorId, Moment, PlanId, Rate, Resources, SegmentId, VolumeId,
    },
};

use super::{Book, Rows, Step, Then};
use crate::view::View;

const NOW: Moment = Moment(1_000_000);
const MEDIATOR: MediatorId = MediatorId([1; 16]);
const SEGMENT: SegmentId = SegmentId([2; 16]);
const PLAN: PlanId = PlanId([3; 16]);
const LEN: u64 = 1 << 20;

fn book() -> (Book, Arc<View>) {
    let capacity = Resources { space_bytes: 8 * LEN, device: Rate(100), network: Rate(100) };
    let ledger = Ledger::new(capacity, Resources::default(), Limits::default());
    let view = Arc::new(View::default());
    let shared = Arc::clone(&view);
    (Book::new(ledger, Rows::default(), Vec::new(), HashSet::new(), shared), view)
}

fn ask(book: &mut Book, operation: Operation) -> Result<Done, FaultCode> {
    let done = book.apply(NOW, MEDIATOR, operation);
    done.map(|Step { done, .. }| done).map_err(|fault| fault.code)
}

fn store(book: &mut Book) {
    book.settle();
    assert!(book.take_batch().is_some());
    book.handle_stored();
}

fn revoke(until: Moment) -> Operation {
    Operation::EndPlan { plan: PLAN, revoked_until: Some(until) }
}

#[test]
fn a_plan_is_taken_back_until_its_tokens_have_ended_by_any_clock() {
    let (mut book, view) = book();
    let key = (MEDIATOR, PLAN);
    let is_out = || view.read().revoked.contains_key(&key);
    let until = NOW.after_ms(60_000);
    ask(&mut book, revoke(until)).unwrap();
    assert!(is_out());
    let batch = book.take_batch().unwrap();
    assert_eq!(batch.revoked, [(key, Some(until))]);
    // It was not stored: it keeps out all the same, and is stored when it is asked again.
    book.handle_store_failed();
    assert!(is_out() && book.take_batch().is_none());
    ask(&mut book, revoke(NOW)).unwrap();
    assert_eq!(book.take_batch().unwrap().revoked, [(key, Some(until))]);
    book.handle_stored();
    book.expire(Moment(until.after_ms(SKEW_MS).0 - 1));
    assert!(is_out() && book.take_batch().is_none());
    book.expire(until.after_ms(SKEW_MS));
    assert!(!is_out());
    assert_eq!(book.take_batch().unwrap().revoked, [(key, None)]);
    book.handle_stored();
    // A clock that is wrong keeps nobody out for years.
    assert_eq!(ask(&mut book, revoke(NOW.after_ms(1 << 40))), Err(FaultCode::Invalid));
    assert!(!is_out());
}

/// However many plans somebody has taken back, what one of them has ends.
#[test]
fn a_plan_ends_also_when_no_more_can_be_kept_out() {
    let (mut book, view) = with_segment();
    let rates = Resources { space_bytes: 0, device: Rate(10), network: Rate(10) };
    booked(&mut book, AllotmentId(PLAN.0), rates);
    let until = NOW.after_ms(60_000);
    let end = |number: u32| {
        let mut plan = [9; 16];
        plan[..4].copy_from_slice(&number.to_be_bytes());
        Operation::EndPlan { plan: PlanId(plan), revoked_until: Some(until) }
    };
    for number in 0..u32::try_from(crate::revoked::REVOKED_MAX).unwrap() {
        ask(&mut book, end(number)).unwrap();
    }
    let Step { then, .. } = book.apply(NOW, MEDIATOR, revoke(until)).unwrap();
    let Then::End(PLAN, Err(refused)) = then else { panic!("{then:?}") };
    assert_eq!(refused.code, FaultCode::Busy);
    assert_eq!(book.settle(), [(MEDIATOR, PLAN)], "its sessions end");
    assert!(view.read().booked.is_empty());
    // Another mediator's have their own bound.
    let other = MediatorId([7; 16]);
    let Step { then, .. } = book.apply(NOW, other, revoke(until)).unwrap();
    assert!(matches!(then, Then::End(PLAN, Ok(()))));
    // When those have ended there is room.
    book.expire(until.after_ms(SKEW_MS));
    let later = until.after_ms(SKEW_MS + 60_000);
    let Step { then, .. } = book.apply(until.after_ms(SKEW_MS), MEDIATOR, revoke(later)).unwrap();
    assert!(matches!(then, Then::End(PLAN, Ok(()))));
}

fn create() -> Operation {
    let label = Label {
        version: 1,
        volume: VolumeId([4; 16]),
        path: "/a".to_owned(),
        kind: Kind::Data,
        member: 0,
        members: 1,
        level: 0,
        chunk_len: 65536,
        logged: false,
        capacity_bytes: LEN,
        length_bytes: LEN,
        generation: Generation(0),
        share: None,
        wrapped_key: None,
        sealed_path: None,
        more: BTreeMap::new(),
    };
    Operation::CreateSegment(NewSegment { segment: SEGMENT, len_bytes: LEN, label })
}

fn booked(book: &mut Book, id: AllotmentId, resources: Resources) {
    let (segment, purpose) = (SEGMENT, Purpose::Client);
    let generation = (resources.space_bytes == 0).then_some(Generation(1));
    let hold = Hold { id, segment, generation, purpose, resources, for_ms: 1000 };
    let Done::Booked(held) = ask(book, Operation::Hold(hold)).unwrap() else { panic!() };
    let for_ms = (resources.space_bytes == 0).then_some(1000);
    ask(book, Operation::Commit(Commit { id, serial: held.serial, for_ms })).unwrap();
}

/// A book with a segment, all stored.
fn with_segment() -> (Book, Arc<View>) {
    let (mut book, view) = book();
    booked(&mut book, space_of(SEGMENT), Resources { space_bytes: LEN, ..Resources::default() });
    ask(&mut book, create()).unwrap();
    assert!(view.read().segments.is_empty(), "nobody sees it before it is made");
    book.finish_making((MEDIATOR, SEGMENT), true).unwrap();
    assert_eq!(view.read().segments.len(), 1);
    store(&mut book);
    (book, view)
}

#[test]
fn a_segment_that_was_not_stored_is_not_there() {
    let (mut book, view) = book();
    booked(&mut book, space_of(SEGMENT), Resources { space_bytes: LEN, ..Resources::default() });
    store(&mut book);
    ask(&mut book, create()).unwrap();
    book.finish_making((MEDIATOR, SEGMENT), true).unwrap();
    book.settle();
    let batch = book.take_batch().unwrap();
    assert_eq!(batch.segments.len(), 1);
    book.handle_store_failed();
    assert!(view.read().segments.is_empty());
    assert_eq!(book.left().segments, 0);
    // Its space is: that was stored before.
    assert_eq!(book.left().clients.space_bytes, 7 * LEN);
    // One whose file is being made while the store fails is not there either.
    ask(&mut book, create()).unwrap();
    book.handle_store_failed();
    assert!(book.finish_making((MEDIATOR, SEGMENT), true).is_err());
    assert!(book.take_batch().is_none());
}

#[test]
fn a_generation_stays_and_a_removal_does_not_when_they_were_not_stored() {
    let (mut book, view) = with_segment();
    let raise_for = |to, taken_by| Operation::RaiseGeneration {
        segment: SEGMENT,
        generation: Generation(to),
        taken_by,
    };
    let raise = |to| raise_for(to, PLAN);
    let raised = |to, taken_by| Ok(Done::Raised { generation: Generation(to), taken_by });
    ask(&mut book, raise(5)).unwrap();
    book.settle();
    assert!(book.take_batch().is_some());
    // While that is on its way, the segment is to go.
    ask(&mut book, Operation::RemoveSegment { segment: SEGMENT }).unwrap();
    assert!(view.read().segments.is_empty());
    book.handle_store_failed();
    let shown = view.read().segments[&(MEDIATOR, SEGMENT)];
    assert_eq!(shown.generation, Generation(5), "who was kept out stays out");
    // Asked again, it is stored again.
    assert_eq!(ask(&mut book, raise(5)), raised(5, PLAN));
    // Whoever else is given that number hears for whom it was taken, and changes nothing.
    let other = PlanId([0xEE; 16]);
    assert_eq!(ask(&mut book, raise_for(5, other)), raised(5, PLAN));
    assert_eq!(ask(&mut book, raise_for(4, other)), raised(5, PLAN));
    let batch = book.take_batch().unwrap();
    let row = batch.segments[0].1.as_ref().unwrap();
    assert_eq!((row.generation, row.removing), (Generation(5), false));
}

#[test]
fn rates_are_shown_to_logins_as_long_as_they_are_booked() {
    let (mut book, view) = with_segment();
    let rates = Resources { space_bytes: 0, device: Rate(10), network: Rate(10) };
    booked(&mut book, AllotmentId(PLAN.0), rates);
    assert!(book.settle().is_empty());
    assert_eq!(view.read().booked[&(MEDIATOR, PLAN)].rate, Rate(10));
    store(&mut book);
    ask(&mut book, Operation::EndPlan { plan: PLAN, revoked_until: None }).unwrap();
    assert_eq!(book.settle(), [(MEDIATOR, PLAN)]);
    assert!(view.read().booked.is_empty());
    // It was not given back after all.
    book.handle_store_failed();
    assert_eq!(view.read().booked.len(), 1);
    book.expire(NOW.after_ms(5000));
    assert_eq!(book.settle(), [(MEDIATOR, PLAN)]);
}
