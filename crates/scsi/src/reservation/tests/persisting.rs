//! What is stored, and what a restart finds.

use super::*;

fn reserved() -> Bed {
    let mut bed = Bed::new();
    assert_eq!(bed.out_list(A, REGISTER, 0, &list(0, 1, 0x05)), End::Good);
    assert_eq!(bed.out_list(B, REGISTER, 0, &list(0, 2, 0x01)), End::Good);
    bed.reserve(A, 1, EA);
    bed
}

fn restart(bed: &Bed) -> Bed {
    Bed::with(Reservations::decode(&bed.stored).unwrap())
}

#[test]
fn what_was_reserved_is_so_after_a_restart() {
    let mut bed = restart(&reserved());
    assert_eq!((bed.keys(), bed.reservation()), (vec![1, 2], Some((1, EA))));
    assert_eq!(bed.generation(), 0);
    assert!(bed.may_write(A) && !bed.may_read(B) && !bed.may_read(C));
    assert_eq!(bed.input(3)[8 + 12], 0x03, "ALL_TG_PT and R_HOLDER");
    assert_eq!(bed.input(2)[3], 0x81);
}

#[test]
fn the_last_registration_decides() {
    let mut bed = reserved();
    assert_eq!(bed.out(B, REGISTER, 0, 2, 2), End::Good);
    assert!(bed.stored.is_empty(), "deactivated");
    assert_eq!(bed.reservation(), Some((1, EA)), "as long as the power lasts");
    assert_eq!(restart(&bed).reservation(), None);
}

#[test]
fn nothing_is_stored_when_nobody_asked_for_it() {
    let mut bed = Bed::new();
    bed.store_fails = true;
    bed.register(A, 1);
    bed.reserve(A, 1, WE);
    assert!(bed.stored.is_empty());
}

#[test]
fn a_change_that_cannot_be_stored_has_not_happened() {
    let mut bed = reserved();
    bed.store_fails = true;
    let failed = End::Sense(SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE);
    assert_eq!(bed.out(B, PREEMPT_AND_ABORT, EA, 2, 1), failed);
    assert_eq!((bed.keys(), bed.reservation()), (vec![1, 2], Some((1, EA))));
    assert!(bed.aborted.is_empty() && bed.attentions(A).is_empty());
    bed.store_fails = false;
    // What the store holds by now is not known: even what changes nothing is stored.
    bed.stored = vec![1];
    assert_eq!(bed.out(A, RESERVE, EA, 1, 0), End::Good);
    assert_eq!(restart(&bed).reservation(), Some((1, EA)));
}

#[test]
fn another_change_is_told_to_wait() {
    let mut bed = reserved();
    let cdb = [0x5f, CLEAR, 0, 0, 0, 0, 0, 0, 24, 0];
    let (mut task, _) = bed.unit.handle_command(id(A), &cdb, 24);
    let data = SgList::from(Buf::copy_from(&list(1, 0, 0)));
    let step = bed.unit.handle_data_out(&mut task, data);
    assert!(matches!(step, Step::Persist(_)), "{step:?}");
    assert_eq!(bed.out(B, REGISTER, 0, 2, 3), End::Busy);
    assert!(!bed.may_read(B), "not before it is stored");
    assert!(matches!(bed.unit.handle_persisted(&mut task, true), Step::Respond(_)));
    assert_eq!(bed.keys(), []);
    bed.attentions(B);
    bed.register(B, 3);
}

#[test]
fn without_a_place_aptpl_is_refused() {
    let mut bed = Bed::with(Reservations::new(false));
    assert_eq!(bed.out_list(A, REGISTER, 0, &list(0, 1, 0x01)), INVALID_LIST);
    assert_eq!(bed.keys(), []);
}

#[test]
fn damaged_bytes_are_an_error_and_never_an_empty_state() {
    let good = reserved().stored;
    assert!(Reservations::decode(&good).is_ok());
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(Reservations::decode(&bad).is_err(), "byte {at}");
    }
    for len in 1..good.len() {
        assert!(Reservations::decode(&good[..len]).is_err(), "{len} bytes");
    }
    let mut other = good.clone();
    other[8] = 2;
    assert_eq!(Reservations::decode(&other), Err(StateError::Version(2)));
    assert_eq!(Reservations::decode(b"something else"), Err(StateError::Foreign));
    assert_eq!(Reservations::decode(&[]), Ok(Reservations::new(true)));
}

#[test]
fn bytes_stand_where_the_format_says() {
    let bytes = reserved().stored;
    assert_eq!(bytes[..12], *b"NRPRSRV\n\x01\x00\x03\x00");
    assert_eq!(bytes[16..24], [u8::try_from(bytes.len()).unwrap(), 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes[32..44], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 25]);
    assert_eq!(bytes[44..52], [0x40, 0, 0, 0, 0, A, 0, 0]);
    assert_eq!(bytes[52..77], *b"iqn.2026-01.org.example:i");
}
