//! REGISTER, REGISTER AND IGNORE EXISTING KEY, and what PERSISTENT RESERVE IN tells.

use super::*;

#[test]
fn register_wants_the_own_key_and_zero_of_a_stranger() {
    let mut bed = Bed::new();
    assert_eq!(bed.out(A, REGISTER, 0, 5, 1), End::Conflict, "not registered yet");
    bed.register(A, 1);
    assert_eq!(bed.out(A, REGISTER, 0, 0, 2), End::Conflict, "registered by now");
    assert_eq!(bed.out(A, REGISTER, 0, 1, 2), End::Good);
    assert_eq!(bed.keys(), [2]);
}

#[test]
fn register_and_ignore_replaces_any_key() {
    let mut bed = Bed::new();
    for (key, keys) in [(7, vec![7]), (8, vec![8]), (0, vec![])] {
        assert_eq!(bed.out(A, REGISTER_AND_IGNORE, 0, 99, key), End::Good);
        assert_eq!(bed.keys(), keys);
    }
}

#[test]
fn a_stranger_who_registers_no_key_changes_nothing() {
    let mut bed = Bed::new();
    assert_eq!(bed.out(A, REGISTER, 0, 0, 0), End::Good);
    assert_eq!((bed.keys(), bed.generation()), (vec![], 0));
}

#[test]
fn the_generation_counts_what_the_standard_says() {
    // SPC-4, section 6.15.2.
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.register(B, 2);
    assert_eq!(bed.generation(), 2);
    bed.reserve(A, 1, WE);
    assert_eq!(bed.out(A, RELEASE, WE, 1, 0), End::Good);
    assert_eq!(bed.out(A, REGISTER, 0, 9, 1), End::Conflict);
    assert_eq!(bed.generation(), 2);
    assert_eq!(bed.out(A, PREEMPT, WE, 1, 2), End::Good);
    assert_eq!(bed.out(A, CLEAR, 0, 1, 0), End::Good);
    assert_eq!(bed.generation(), 4);
}

#[test]
fn registrations_survive_sessions_and_resets() {
    let mut bed = Bed::new();
    bed.register(A, 1);
    bed.reserve(A, 1, EA);
    bed.unit.remove_nexus(id(A));
    bed.unit.handle_reset();
    assert!(!{
        bed.attentions(B);
        bed.may_read(B)
    });
    assert!(bed.unit.add_nexus(NexusId(50), &tests::nexus(A)));
    while bed.attention(50).is_some() {}
    // The port is the same, the session another one.
    let (_, step) = bed.unit.handle_command(NexusId(50), &build::read(BLOCK, false), 0);
    assert!(!matches!(step, Step::Respond(_)), "{step:?}");
}

#[test]
fn registrations_are_bounded() {
    let mut bed = Bed::new();
    let ids: Vec<_> = (0..u16::try_from(REGISTRATIONS_MAX).unwrap() - 1)
        .map(|at| {
            let [high, low] = at.to_be_bytes();
            InitiatorPort::new("iqn.x", [1, 0, 0, 0, high, low]).unwrap().transport_id()
        })
        .collect();
    let full = bed.out_list(A, REGISTER, 0, &with_ports(0, 1, &ids));
    assert_eq!(full, End::Good);
    let more = bed.out(B, REGISTER, 0, 0, 2);
    let full = Additional::INSUFFICIENT_REGISTRATION_RESOURCES;
    assert_eq!(more, End::Sense(SenseKey::IllegalRequest, full));
    assert_eq!(bed.out(A, REGISTER, 0, 1, 0), End::Good);
    bed.register(B, 2);
}

#[test]
fn spec_i_pt_registers_all_or_none() {
    let mut bed = Bed::new();
    bed.register(C, 3);
    let ids = [port(B).transport_id(), port(C).transport_id()];
    assert_eq!(bed.out_list(A, REGISTER, 0, &with_ports(0, 1, &ids)), INVALID_LIST);
    assert_eq!(bed.keys(), [3]);
    assert_eq!(bed.out_list(A, REGISTER, 0, &with_ports(0, 1, &ids[..1])), End::Good);
    assert_eq!(bed.keys(), [3, 1, 1]);
    bed.reserve(B, 1, EA);
    assert!(bed.may_write(B));
}

#[test]
fn spec_i_pt_names_an_initiator_by_all_its_known_ports() {
    let mut bed = Bed::new();
    let mut id = vec![0x05, 0, 0, 28];
    id.extend(b"iqn.2026-01.org.example:i");
    id.resize(32, 0);
    // All ports of the bed are of this initiator, the issuer's own too.
    assert_eq!(bed.out_list(A, REGISTER, 0, &with_ports(0, 1, &[id.clone()])), INVALID_LIST);
    id[4..].fill(0);
    id[4..9].copy_from_slice(b"iqn.z");
    assert_eq!(bed.out_list(A, REGISTER, 0, &with_ports(0, 1, &[id])), INVALID_LIST, "unknown");
}

#[test]
fn spec_i_pt_is_for_register_of_a_stranger_alone() {
    let mut bed = Bed::new();
    let ids = [port(B).transport_id()];
    bed.register(A, 1);
    assert_eq!(bed.out_list(A, REGISTER, 0, &with_ports(1, 2, &ids)), INVALID_LIST);
    let flagged = list(1, 2, 0x08);
    assert_eq!(bed.out_list(A, REGISTER_AND_IGNORE, 0, &flagged), INVALID_LIST);
    assert_eq!(bed.out_list(A, RESERVE, WE, &flagged), INVALID_LIST);
}

#[test]
fn lists_have_their_length() {
    let mut bed = Bed::new();
    for (action, len) in [(REGISTER, 23), (REGISTER, 25), (RESERVE, 0), (RESERVE, 25)] {
        assert_eq!(bed.out_list(A, action, WE, &vec![0; len]), WRONG_LEN, "{action} {len}");
    }
    let cut = with_ports(0, 1, &[port(B).transport_id()]);
    assert_eq!(bed.out_list(A, REGISTER, 0, &cut[..cut.len() - 4]), WRONG_LEN);
    // Less data comes than the CDB says.
    assert_eq!(bed.end(A, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 20]), WRONG_LEN);
}

#[test]
fn full_status_names_ports_and_holders() {
    let mut bed = Bed::new();
    assert_eq!(bed.out_list(A, REGISTER, 0, &list(0, 0x11, 0x04)), End::Good);
    bed.register(B, 0x22);
    bed.reserve(B, 0x22, WERO);
    let data = bed.input(3);
    let (first, id) = (&data[8..], port(A).transport_id());
    assert_eq!(first[..16], [0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0x02, 0, 0, 0]);
    assert_eq!(first[16..24], [0, 0, 0, 1, 0, 0, 0, u8::try_from(id.len()).unwrap()]);
    assert_eq!(first[24..24 + id.len()], id);
    let second = &first[24 + id.len()..];
    assert_eq!((second[7], second[12], second[13]), (0x22, 0x01, WERO));
    assert_eq!(second[24..], port(B).transport_id());
}

#[test]
fn capabilities_say_whether_state_can_persist() {
    // SPC-4, table 190: CRH, SIP_C, ATP_C, PTPL_C; TMV, PTPL_A; the mask of types.
    let mut bed = Bed::new();
    assert_eq!(bed.input(2), [0, 8, 0x1d, 0x80, 0xea, 0x01, 0, 0]);
    assert_eq!(bed.out_list(A, REGISTER, 0, &list(0, 1, 0x01)), End::Good);
    assert_eq!(bed.input(2)[3], 0x81);
    assert_eq!(Bed::with(Reservations::new(false)).input(2)[2], 0x1c);
}

#[test]
fn a_session_that_comes_back_to_its_registration_counts_on_the_unit() {
    let mut bed = Bed::new();
    let claimants = |bed: &Bed| bed.unit.claimants().collect::<Vec<_>>();
    assert_eq!(claimants(&bed), [], "sessions that only asked");
    assert_eq!(bed.out(A, REGISTER, 0, 0, 7), End::Good);
    assert_eq!(claimants(&bed), [id(A)]);

    // The session ends, and another one of the same nexus comes.
    bed.unit.remove_nexus(id(A));
    assert_eq!(claimants(&bed), []);
    bed.arrive(A);
    assert_eq!(claimants(&bed), [id(A)]);

    assert_eq!(bed.out(A, REGISTER, 0, 7, 0), End::Good);
    assert_eq!(claimants(&bed), []);
    assert_eq!(bed.end(B, &[0x16, 0, 0, 0, 0, 0], &[]), End::Good);
    assert_eq!(claimants(&bed), [id(B)], "the holder of RESERVE (6)");
}
