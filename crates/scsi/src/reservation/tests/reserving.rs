//! RESERVE, RELEASE and CLEAR, and whom a reservation keeps out.

use super::*;

#[test]
fn access_follows_the_type() {
    // (type, registered may read, write; stranger may read, write)
    for (kind, registered, stranger) in [
        (WE, (true, false), (true, false)),
        (EA, (false, false), (false, false)),
        (WERO, (true, true), (true, false)),
        (EARO, (true, true), (false, false)),
        (WEAR, (true, true), (true, false)),
        (EAAR, (true, true), (false, false)),
    ] {
        let mut bed = Bed::new();
        bed.register(A, 1);
        bed.register(B, 2);
        bed.reserve(A, 1, kind);
        assert_eq!((bed.may_read(A), bed.may_write(A)), (true, true), "holder of {kind}");
        assert_eq!((bed.may_read(B), bed.may_write(B)), registered, "registered, {kind}");
        assert_eq!((bed.may_read(C), bed.may_write(C)), stranger, "stranger, {kind}");
    }
}

#[test]
fn commands_that_only_ask_are_never_kept_out() {
    // SPC-4, table 66; SBC-3, table 13.
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.reserve(A, 1, EA);
    let asking: [&[u8]; 8] = [
        &build::test_unit_ready(),
        &build::inquiry(None, 36),
        &build::report_luns(64),
        &build::read_capacity_10(),
        &build::read_capacity_16(32),
        &[0x03, 0, 0, 0, 18, 0],
        &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0],
        &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0],
    ];
    for cdb in asking {
        assert_eq!(bed.end(C, cdb, &[]), End::Good, "{cdb:02x?}");
    }
    let mode: [&[u8]; 2] =
        [&build::mode_sense_6(0x3f, 255), &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]];
    for cdb in mode {
        assert_eq!(bed.end(C, cdb, &[]), End::Conflict, "{cdb:02x?}");
    }
    // START is allowed, STOP is not; so are ALLOW and PREVENT.
    assert_eq!(bed.end(C, &[0x1b, 0, 0, 0, 1, 0], &[]), End::Good);
    assert_eq!(bed.end(C, &[0x1b, 0, 0, 0, 0, 0], &[]), End::Conflict);
    assert_eq!(bed.end(C, &[0x1e, 0, 0, 0, 0, 0], &[]), End::Good);
    assert_eq!(bed.end(C, &[0x1e, 0, 0, 0, 1, 0], &[]), End::Conflict);
}

#[test]
fn a_write_whose_data_comes_after_the_reservation_does_not_reach_the_medium() {
    let mut bed = Bed::new();
    bed.register(A, 1);
    let write = build::write(BLOCK, false, false);
    let (mut task, _) = bed.unit.handle_command(id(B), &write, 512);
    bed.reserve(A, 1, WE);
    let data = SgList::from(Buf::copy_from(&[0; 512]));
    let Step::Respond(response) = bed.unit.handle_data_out(&mut task, data) else { panic!() };
    assert_eq!(response.status, Status::ReservationConflict);
}

#[test]
fn reserve_is_for_the_registered_with_their_key() {
    for kind in TYPES {
        let mut bed = Bed::new();
        assert_eq!(bed.out(A, RESERVE, kind, 0, 0), End::Conflict, "not registered");
        bed.register(A, 1);
        assert_eq!(bed.out(A, RESERVE, kind, 2, 0), End::Conflict, "another key");
        bed.reserve(A, 1, kind);
        bed.reserve(A, 1, kind);
        let key = if kind >= WEAR { 0 } else { 1 };
        assert_eq!(bed.reservation(), Some((key, kind)));
        let other = if kind == WE { EA } else { WE };
        assert_eq!(bed.out(A, RESERVE, other, 1, 0), End::Conflict, "another type");
        bed.register(B, 2);
        let theirs = bed.out(B, RESERVE, kind, 2, 0);
        // Of all registrants everybody is a holder (SPC-4, section 5.13.10).
        assert_eq!(theirs, if kind >= WEAR { End::Good } else { End::Conflict });
    }
}

#[test]
fn scope_and_type_are_checked() {
    let mut bed = Bed::new();
    bed.register(A, 1);
    for kind in [0, 2, 4, 9, 15, 0x10 | WE] {
        assert_eq!(bed.out(A, RESERVE, kind, 1, 0), INVALID_CDB, "{kind:#x}");
    }
}

#[test]
fn release_is_for_the_holder_with_its_type() {
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.register(B, 2);
    assert_eq!(bed.out(A, RELEASE, WE, 1, 0), End::Good, "nothing is reserved");
    bed.reserve(A, 1, WE);
    assert_eq!(bed.out(C, RELEASE, WE, 0, 0), End::Conflict, "not registered");
    assert_eq!(bed.out(B, RELEASE, WE, 2, 0), End::Good, "without effect");
    assert_eq!(bed.reservation(), Some((1, WE)));
    let wrong = End::Sense(SenseKey::IllegalRequest, Additional::INVALID_RELEASE);
    assert_eq!(bed.out(A, RELEASE, EA, 1, 0), wrong);
    assert_eq!(bed.out(A, RELEASE, WE, 9, 0), End::Conflict, "another key");
    assert_eq!(bed.out(A, RELEASE, WE, 1, 0), End::Good);
    assert_eq!(bed.reservation(), None);
    assert_eq!(bed.keys(), [1, 2]);
}

#[test]
fn a_release_is_told_to_the_registered_where_they_had_access() {
    // SPC-4, section 5.13.11.2.2.
    for kind in TYPES {
        let mut bed = Bed::new();
        bed.register(A, 1);
        bed.register(B, 2);
        bed.reserve(A, 1, kind);
        assert_eq!(bed.out(A, RELEASE, kind, 1, 0), End::Good);
        let told = bed.attentions(B);
        let wanted = if kind >= WERO { vec![Additional::RESERVATIONS_RELEASED] } else { vec![] };
        assert_eq!(told, wanted, "{kind}");
        assert_eq!((bed.attentions(A), bed.attentions(C)), (vec![], vec![]));
    }
}

#[test]
fn a_holder_that_unregisters_releases() {
    // SPC-4, section 5.13.11.3: told for registrants only.
    for kind in TYPES {
        let mut bed = Bed::new();
        bed.register(A, 1);
        bed.register(B, 2);
        bed.reserve(A, 1, kind);
        assert_eq!(bed.out(A, REGISTER, 0, 1, 0), End::Good);
        let left = bed.reservation();
        let only = matches!(kind, WERO | EARO);
        assert_eq!(left, (kind >= WEAR).then_some((0, kind)), "{kind}");
        let wanted = if only { vec![Additional::RESERVATIONS_RELEASED] } else { vec![] };
        assert_eq!(bed.attentions(B), wanted, "{kind}");
        assert_eq!(bed.out(B, REGISTER, 0, 2, 0), End::Good);
        assert_eq!(bed.reservation(), None, "the last registrant went");
    }
}

#[test]
fn clear_ends_it_all_and_is_told() {
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.register(B, 2);
    bed.reserve(A, 1, WE);
    assert_eq!(bed.out(C, CLEAR, 0, 0, 0), End::Conflict);
    assert_eq!(bed.out(B, CLEAR, 0, 2, 0), End::Good);
    assert_eq!((bed.keys(), bed.reservation()), (vec![], None));
    assert_eq!(bed.attentions(A), [Additional::RESERVATIONS_PREEMPTED]);
    assert_eq!((bed.attentions(B), bed.attentions(C)), (vec![], vec![]));
}
