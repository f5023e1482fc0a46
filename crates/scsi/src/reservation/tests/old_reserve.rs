//! RESERVE and RELEASE of SPC-2.

use super::*;

const OLD_RESERVE: [[u8; 10]; 2] =
    [[0x16, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
const OLD_RELEASE: [[u8; 10]; 2] =
    [[0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]];

#[test]
fn both_forms_keep_others_out_until_released() {
    for form in [0, 1] {
        let mut bed = Bed::new();
        assert_eq!(bed.end(A, &OLD_RESERVE[form], &[]), End::Good);
        assert!(bed.may_write(A) && !bed.may_read(B));
        assert_eq!(bed.end(B, &OLD_RESERVE[form], &[]), End::Conflict);
        assert_eq!(bed.end(B, &OLD_RELEASE[form], &[]), End::Good, "without effect");
        assert!(!bed.may_read(B));
        assert_eq!(bed.end(A, &OLD_RELEASE[1 - form], &[]), End::Good);
        assert!(bed.may_write(B));
    }
}

#[test]
fn a_lost_nexus_and_a_reset_end_it() {
    let mut bed = Bed::new();
    assert_eq!(bed.end(A, &OLD_RESERVE[0], &[]), End::Good);
    bed.unit.handle_reset();
    bed.attentions(B);
    assert!(bed.may_write(B));
    bed.attentions(A);
    assert_eq!(bed.end(A, &OLD_RESERVE[0], &[]), End::Good);
    bed.unit.remove_nexus(id(A));
    assert!(bed.may_write(B));
}

#[test]
fn persistent_reservations_conflict_with_it_whoever_asks() {
    // SPC-2, section 5.5.1.
    let mut bed = Bed::new();
    assert_eq!(bed.end(A, &OLD_RESERVE[0], &[]), End::Good);
    for nexus in [A, B] {
        assert_eq!(bed.out(nexus, REGISTER, 0, 0, 1), End::Conflict);
        assert_eq!(bed.end(nexus, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]), End::Conflict);
    }
}

#[test]
fn with_registrations_it_conflicts_or_has_no_effect() {
    // SPC-4, section 5.13.3 (CRH).
    for kind in TYPES {
        let mut bed = Bed::new();
        bed.register(A, 1);
        bed.register(B, 2);
        assert_eq!(bed.end(A, &OLD_RESERVE[0], &[]), End::Conflict, "nothing is reserved");
        bed.reserve(A, 1, kind);
        for cdb in [OLD_RESERVE[0], OLD_RELEASE[0], OLD_RESERVE[1], OLD_RELEASE[1]] {
            assert_eq!(bed.end(A, &cdb, &[]), End::Good, "holder");
            let registered = if kind >= WERO { End::Good } else { End::Conflict };
            assert_eq!(bed.end(B, &cdb, &[]), registered, "{kind}");
            assert_eq!(bed.end(C, &cdb, &[]), End::Conflict);
        }
        assert_eq!(bed.may_write(B), kind >= WERO, "no effect");
    }
}
