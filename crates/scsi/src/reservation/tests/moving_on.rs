//! REGISTER AND MOVE.

use super::*;

fn bed() -> Bed {
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.reserve(A, 1, WE);
    bed
}

#[test]
fn a_reservation_moves_with_a_registration() {
    for (unregister, keys) in [(0, vec![1, 5]), (2, vec![5])] {
        let mut bed = bed();
        let list = moving(1, 5, unregister, &port(B).transport_id());
        assert_eq!(bed.out_list(A, REGISTER_AND_MOVE, 0, &list), End::Good);
        assert_eq!((bed.keys(), bed.reservation()), (keys, Some((5, WE))));
        assert!(bed.may_write(B) && !bed.may_write(A));
    }
}

#[test]
fn who_is_registered_gets_the_new_key() {
    let mut bed = bed();
    bed.register(B, 2);
    let list = moving(1, 5, 0, &port(B).transport_id());
    assert_eq!(bed.out_list(A, REGISTER_AND_MOVE, 0, &list), End::Good);
    assert_eq!((bed.keys(), bed.reservation()), (vec![1, 5], Some((5, WE))));
}

#[test]
fn only_the_holder_moves_and_never_all_registrants() {
    let mut bed = bed();
    bed.register(B, 2);
    let to = port(C).transport_id();
    assert_eq!(bed.out_list(B, REGISTER_AND_MOVE, 0, &moving(2, 5, 0, &to)), INVALID_CDB);
    assert_eq!(bed.out_list(A, REGISTER_AND_MOVE, 0, &moving(9, 5, 0, &to)), End::Conflict);
    assert_eq!(bed.out_list(C, REGISTER_AND_MOVE, 0, &moving(0, 5, 0, &to)), End::Conflict);
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.reserve(A, 1, EAAR);
    assert_eq!(bed.out_list(A, REGISTER_AND_MOVE, 0, &moving(1, 5, 0, &to)), End::Conflict);
}

#[test]
fn the_destination_is_checked() {
    let mut bed = bed();
    let to = port(B).transport_id();
    let mut other_port = moving(1, 5, 0, &to);
    other_port[19] = 2;
    let own = moving(1, 5, 0, &port(A).transport_id());
    for list in [other_port, own, moving(1, 0, 0, &to)] {
        assert_eq!(bed.out_list(A, REGISTER_AND_MOVE, 0, &list), INVALID_LIST);
    }
    assert_eq!(bed.out_list(A, REGISTER_AND_MOVE, 0, &list(1, 5, 0)), WRONG_LEN);
}
