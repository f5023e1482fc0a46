//! PREEMPT and PREEMPT AND ABORT.

use super::*;

fn three(kind: Option<u8>) -> Bed {
    let mut bed = Bed::new();
    for (nexus, key) in [(A, 1), (B, 2), (C, 3)] {
        bed.register(nexus, key);
    }
    if let Some(kind) = kind {
        bed.reserve(A, 1, kind);
    }
    bed
}

#[test]
fn the_holders_key_takes_the_reservation_over() {
    for kind in [WE, EA, WERO, EARO] {
        let mut bed = three(Some(kind));
        assert_eq!(bed.out(B, PREEMPT, kind, 2, 1), End::Good);
        assert_eq!((bed.keys(), bed.reservation()), (vec![2, 3], Some((2, kind))));
        assert_eq!(bed.attentions(A), [Additional::REGISTRATIONS_PREEMPTED]);
        assert_eq!((bed.attentions(B), bed.attentions(C)), (vec![], vec![]));
        assert!(bed.aborted.is_empty());
    }
}

#[test]
fn another_type_is_told_to_those_who_stay() {
    let mut bed = three(Some(WERO));
    assert_eq!(bed.out(B, PREEMPT, EA, 2, 1), End::Good);
    assert_eq!(bed.reservation(), Some((2, EA)));
    assert_eq!(bed.attentions(C), [Additional::RESERVATIONS_RELEASED]);
}

#[test]
fn a_holder_may_preempt_itself_to_change_the_type() {
    let mut bed = three(Some(WE));
    assert_eq!(bed.out(A, PREEMPT, EARO, 1, 1), End::Good);
    assert_eq!((bed.keys(), bed.reservation()), (vec![1, 2, 3], Some((1, EARO))));
}

#[test]
fn another_key_only_removes_registrations() {
    for kind in TYPES.map(Some).into_iter().chain([None]) {
        let mut bed = three(kind);
        let before = bed.reservation();
        assert_eq!(bed.out(B, PREEMPT, WE, 2, 3), End::Good);
        assert_eq!((bed.keys(), bed.reservation()), (vec![1, 2], before));
        assert_eq!(bed.attentions(C), [Additional::REGISTRATIONS_PREEMPTED]);
        assert_eq!(bed.attentions(A), []);
    }
}

#[test]
fn a_key_that_nobody_has_conflicts_and_zero_is_invalid() {
    for kind in [None, Some(WE), Some(EARO)] {
        let mut bed = three(kind);
        assert_eq!(bed.out(B, PREEMPT, WE, 2, 9), End::Conflict);
        assert_eq!(bed.out(B, PREEMPT, WE, 2, 0), INVALID_LIST);
        assert_eq!(bed.out(B, PREEMPT, WE, 9, 1), End::Conflict, "not the own key");
    }
}

#[test]
fn zero_preempts_all_registrants() {
    for kind in [WEAR, EAAR] {
        let mut bed = three(Some(kind));
        assert_eq!(bed.out(B, PREEMPT, EA, 2, 0), End::Good);
        assert_eq!((bed.keys(), bed.reservation()), (vec![2], Some((2, EA))));
        assert_eq!(bed.attentions(A), [Additional::REGISTRATIONS_PREEMPTED]);
        assert_eq!(bed.attentions(C), [Additional::REGISTRATIONS_PREEMPTED]);
    }
}

#[test]
fn the_last_of_all_registrants_may_remove_itself() {
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.reserve(A, 1, EAAR);
    assert_eq!(bed.out(A, PREEMPT, EAAR, 1, 1), End::Good);
    assert_eq!((bed.keys(), bed.reservation()), (vec![], None));
    assert!(bed.may_write(C));
}

#[test]
fn an_invalid_type_preempts_no_reservation() {
    let mut bed = three(Some(WE));
    assert_eq!(bed.out(B, PREEMPT, 2, 2, 1), INVALID_CDB);
    assert_eq!(bed.reservation(), Some((1, WE)));
}

#[test]
fn preempt_and_abort_aborts_whom_it_preempts() {
    let mut bed = three(Some(WE));
    bed.unit.remove_nexus(id(A));
    bed.arrive(A);
    assert_eq!(bed.out(B, PREEMPT_AND_ABORT, WE, 2, 1), End::Good);
    assert_eq!(bed.aborted, [id(A)]);
    assert_eq!(bed.out(B, PREEMPT_AND_ABORT, WE, 2, 2), End::Good);
    assert_eq!(bed.aborted, [id(A)], "nobody but itself has that key");
}

/// Begins a PERSISTENT RESERVE OUT, up to where its change is stored.
fn begin_to_store(bed: &mut Bed, nexus: u8, action: u8, kind: u8, list: &[u8]) -> Task {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let (mut task, _) = bed.unit.handle_command(id(nexus), &cdb, 24);
    let step = bed.unit.handle_data_out(&mut task, Buf::copy_from(list).into());
    assert!(matches!(step, Step::Persist(_)), "{step:?}");
    task
}

#[test]
fn whoever_comes_while_a_preemption_is_stored_is_aborted_by_it() {
    let mut bed = Bed::new();
    for (nexus, key) in [(A, 1), (B, 2)] {
        assert_eq!(bed.out_list(nexus, REGISTER, 0, &list(0, key, 1)), End::Good);
    }
    bed.reserve(A, 1, WE);
    bed.unit.remove_nexus(id(A));
    let mut task = begin_to_store(&mut bed, B, PREEMPT_AND_ABORT, WE, &list(2, 1, 0));
    // A comes back, and what it writes is at the device when the change is stored.
    let again = NexusId(100);
    assert!(bed.unit.add_nexus(again, &tests::nexus(A)));
    let (_, told) = bed.unit.handle_command(again, &build::test_unit_ready(), 0);
    assert!(matches!(told, Step::Respond(_)));
    let write = build::write(BLOCK, false, false);
    let (mut early, _) = bed.unit.handle_command(again, &write, 512);
    let step = bed.unit.handle_data_out(&mut early, Buf::copy_from(&[0; 512]).into());
    assert!(matches!(step, Step::Submit(_)), "{step:?}");
    let step = bed.unit.handle_persisted(&mut task, true);
    let Step::Abort { nexuses } = step else { panic!("GOOD before its write ended: {step:?}") };
    assert_eq!(nexuses, [again]);
}

#[test]
fn reserve_and_sanitize_wait_while_a_change_is_stored() {
    let mut bed = Bed::new();
    let mut task = begin_to_store(&mut bed, A, REGISTER, 0, &list(0, 1, 1));
    assert_eq!(bed.end(B, &[0x16, 0, 0, 0, 0, 0], &[]), End::Busy);
    assert_eq!(bed.end(B, &[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0], &[]), End::Busy);
    let step = bed.unit.handle_persisted(&mut task, true);
    assert!(matches!(step, Step::Respond(Response { status: Status::Good, .. })), "{step:?}");
    assert_eq!(bed.out(A, REGISTER, 0, 1, 0), End::Good, "nothing stands in its way");
}

#[test]
fn a_command_of_several_writes_stops_when_its_nexus_was_preempted() {
    let unmap = [&[0, 38, 0, 32, 0, 0, 0, 0][..], &[0; 11], &[1], &[0; 4]].concat();
    let unmap = [&unmap[..], &[0; 7], &[9, 0, 0, 0, 1, 0, 0, 0, 0]].concat();
    // WRITE SAME (16), UNMAP, ORWRITE and COMPARE AND WRITE.
    let cases: [(&[u8], Vec<u8>); 4] = [
        (&[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0, 0, 0], vec![7; 512]),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 40, 0], unmap),
        (&[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], vec![7; 512]),
        (&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], vec![0; 1024]),
    ];
    for (cdb, data) in cases {
        let mut bed = three(Some(WE));
        let announced = u32::try_from(data.len()).unwrap();
        let (mut task, _) = bed.unit.handle_command(id(A), cdb, announced);
        let step = bed.unit.handle_data_out(&mut task, Buf::copy_from(&data).into());
        let Step::Submit(request) = step else { panic!("{:#x}: {step:?}", cdb[0]) };
        assert_eq!(bed.out(B, PREEMPT, WE, 2, 1), End::Good);
        let read = vec![0; usize::try_from(request.len.min(512)).unwrap()];
        let step = bed.unit.handle_medium_done(&mut task, Ok(Buf::copy_from(&read).into()));
        let Step::Respond(response) = step else { panic!("{:#x} goes on", cdb[0]) };
        assert_eq!(response.status, Status::ReservationConflict, "{:#x}", cdb[0]);
    }
}

#[test]
fn who_is_away_has_nothing_to_abort_and_hears_of_it_later() {
    let mut bed = three(Some(WE));
    bed.unit.remove_nexus(id(A));
    assert_eq!(bed.out(B, PREEMPT_AND_ABORT, WE, 2, 1), End::Good);
    assert!(bed.aborted.is_empty());
    assert!(bed.unit.add_nexus(id(A), &tests::nexus(A)));
    let told = bed.attentions(A);
    assert_eq!(told, [Additional::NEXUS_LOSS, Additional::REGISTRATIONS_PREEMPTED]);
    assert!(!bed.may_write(A));
}
