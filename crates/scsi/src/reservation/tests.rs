//! Reservations as initiators see them: through commands to a logical unit.

use std::{collections::BTreeMap, vec, vec::Vec};

use netraid_block::{Buf, SgList};
use proptest::prelude::*;

use super::*;
use crate::{
    cdb::{Extent, build},
    sense::{SenseKey, Status},
    unit::{LogicalUnit, Response, Step, Task, UnitConfig, tests},
};

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;
/// Who only looks.
const READER: u8 = 9;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

const WE: u8 = 1;
const EA: u8 = 3;
const WERO: u8 = 5;
const EARO: u8 = 6;
const WEAR: u8 = 7;
const EAAR: u8 = 8;
const TYPES: [u8; 6] = [WE, EA, WERO, EARO, WEAR, EAAR];

/// How a command ended: its status, or what its sense data says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Good,
    Conflict,
    Busy,
    Sense(SenseKey, Additional),
}

const INVALID_LIST: End =
    End::Sense(SenseKey::IllegalRequest, Additional::INVALID_FIELD_IN_PARAMETER_LIST);
const INVALID_CDB: End = End::Sense(SenseKey::IllegalRequest, Additional::INVALID_FIELD_IN_CDB);
const WRONG_LEN: End =
    End::Sense(SenseKey::IllegalRequest, Additional::PARAMETER_LIST_LENGTH_ERROR);

struct Bed {
    unit: LogicalUnit,
    /// What was stored last.
    stored: Vec<u8>,
    store_fails: bool,
    aborted: Vec<NexusId>,
}

fn id(nexus: u8) -> NexusId {
    NexusId(u64::from(nexus))
}

fn port(nexus: u8) -> InitiatorPort {
    tests::nexus(nexus).initiator
}

impl Bed {
    fn with(reservations: Reservations) -> Self {
        let unit = LogicalUnit::new(UnitConfig { reservations, ..tests::config() });
        let mut bed = Self { unit, stored: Vec::new(), store_fails: false, aborted: Vec::new() };
        for nexus in [A, B, C, READER] {
            bed.arrive(nexus);
        }
        bed
    }

    fn new() -> Self {
        Self::with(Reservations::new(true))
    }

    /// A session comes and hears what there is to hear at once.
    fn arrive(&mut self, nexus: u8) {
        assert!(self.unit.add_nexus(id(nexus), &tests::nexus(nexus)));
        while self.attention(nexus).is_some() {}
    }

    fn run(&mut self, nexus: u8, cdb: &[u8], data: &[u8]) -> Response {
        let announced = u32::try_from(data.len()).unwrap();
        let (mut task, mut step) = self.unit.handle_command(id(nexus), cdb, announced);
        loop {
            step = match step {
                Step::Respond(response) => return response,
                Step::DataOut { len } => {
                    let sent = data.len().min(len as usize);
                    self.unit.handle_data_out(&mut task, Buf::copy_from(&data[..sent]).into())
                }
                Step::Submit(request) => {
                    let read = vec![0; usize::try_from(request.len).unwrap()];
                    self.unit.handle_medium_done(&mut task, Ok(Buf::copy_from(&read).into()))
                }
                Step::Wait | Step::SubmitTo { .. } => panic!("{step:?}"),
                Step::Persist(bytes) => {
                    if !self.store_fails {
                        self.stored = bytes;
                    }
                    self.unit.handle_persisted(&mut task, !self.store_fails)
                }
                Step::Abort { nexuses } => {
                    self.aborted.extend(nexuses);
                    self.unit.handle_aborted(&mut task)
                }
            }
        }
    }

    fn end(&mut self, nexus: u8, cdb: &[u8], data: &[u8]) -> End {
        let response = self.run(nexus, cdb, data);
        match response.status {
            Status::Good => End::Good,
            Status::ReservationConflict => End::Conflict,
            Status::Busy => End::Busy,
            Status::CheckCondition => {
                let sense = Sense::decode(&response.sense).unwrap();
                End::Sense(sense.key, sense.additional)
            }
            Status::ConditionMet
            | Status::TaskSetFull
            | Status::AcaActive
            | Status::TaskAborted => panic!("{:?}", response.status),
        }
    }

    fn out_list(&mut self, nexus: u8, action: u8, kind: u8, list: &[u8]) -> End {
        let [a, b, c, d] = u32::try_from(list.len()).unwrap().to_be_bytes();
        self.end(nexus, &[0x5f, action, kind, 0, 0, a, b, c, d, 0], list)
    }

    fn out(&mut self, nexus: u8, action: u8, kind: u8, key: u64, action_key: u64) -> End {
        self.out_list(nexus, action, kind, &list(key, action_key, 0))
    }

    fn register(&mut self, nexus: u8, key: u64) {
        assert_eq!(self.out(nexus, REGISTER, 0, 0, key), End::Good);
    }

    fn reserve(&mut self, nexus: u8, key: u64, kind: u8) {
        assert_eq!(self.out(nexus, RESERVE, kind, key, 0), End::Good);
    }

    fn input(&mut self, action: u8) -> Vec<u8> {
        let response = self.run(READER, &[0x5e, action, 0, 0, 0, 0, 0, 0x40, 0, 0], &[]);
        assert_eq!(response.status, Status::Good);
        response.data_in.to_contiguous().to_vec()
    }

    fn generation(&mut self) -> u32 {
        u32::from_be_bytes(self.input(0)[..4].try_into().unwrap())
    }

    fn keys(&mut self) -> Vec<u64> {
        let data = self.input(0);
        assert_eq!(data[4..8], u32::try_from(data.len() - 8).unwrap().to_be_bytes());
        data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
    }

    /// Key and type of the reservation.
    fn reservation(&mut self) -> Option<(u64, u8)> {
        let data = self.input(1);
        let key = data.get(8..16)?.try_into().unwrap();
        assert_eq!(data[4..8], [0, 0, 0, 16]);
        Some((u64::from_be_bytes(key), data[21]))
    }

    fn attention(&mut self, nexus: u8) -> Option<Additional> {
        let response = self.run(nexus, &build::test_unit_ready(), &[]);
        (response.status == Status::CheckCondition)
            .then(|| Sense::decode(&response.sense).unwrap().additional)
    }

    fn attentions(&mut self, nexus: u8) -> Vec<Additional> {
        std::iter::from_fn(|| self.attention(nexus)).collect()
    }

    fn may_read(&mut self, nexus: u8) -> bool {
        allowed(self.end(nexus, &build::read(BLOCK, false), &[]))
    }

    fn may_write(&mut self, nexus: u8) -> bool {
        allowed(self.end(nexus, &build::write(BLOCK, false, false), &[0; 512]))
    }
}

const BLOCK: Extent = Extent { lba: 0, blocks: 1 };

fn allowed(end: End) -> bool {
    match end {
        End::Good => true,
        End::Conflict => false,
        End::Busy | End::Sense(..) => panic!("{end:?}"),
    }
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    list[20] = flags;
    list
}

/// The list of SPEC_I_PT with these TransportIDs.
fn with_ports(key: u64, action_key: u64, ids: &[Vec<u8>]) -> Vec<u8> {
    let mut list = list(key, action_key, 0x08);
    let ids = ids.concat();
    list.extend(u32::try_from(ids.len()).unwrap().to_be_bytes());
    list.extend(ids);
    list
}

/// The list of REGISTER AND MOVE.
fn moving(key: u64, action_key: u64, flags: u8, to: &[u8]) -> Vec<u8> {
    let mut list = list(key, action_key, 0);
    list[17] = flags;
    list[19] = 1;
    list[20..24].copy_from_slice(&u32::try_from(to.len()).unwrap().to_be_bytes());
    list.extend(to);
    list
}

mod registering {
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
}

mod reserving {
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
            let wanted =
                if kind >= WERO { vec![Additional::RESERVATIONS_RELEASED] } else { vec![] };
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
}

mod preempting {
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
}

mod moving_on {
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
}

mod persisting {
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
}

mod old_reserve {
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
}

/// The rules once more, as simply as they can be said.
#[derive(Debug, Clone, Default)]
struct Model {
    keys: BTreeMap<u8, u64>,
    /// Type, and holder unless it is for all.
    reserved: Option<(u8, Option<u8>)>,
}

impl Model {
    fn is_holder(&self, nexus: u8) -> bool {
        match self.reserved {
            Some((_, Some(holder))) => holder == nexus,
            Some((_, None)) => self.keys.contains_key(&nexus),
            None => false,
        }
    }

    fn drop(&mut self, nexus: u8) {
        self.keys.remove(&nexus);
        let ends = match self.reserved {
            Some((_, Some(holder))) => holder == nexus,
            Some((_, None)) => self.keys.is_empty(),
            None => false,
        };
        if ends {
            self.reserved = None;
        }
    }

    fn take(&mut self, nexus: u8, kind: u8) {
        self.reserved = Some((kind, (kind < WEAR).then_some(nexus)));
    }

    fn out(&mut self, nexus: u8, action: u8, kind: u8, key: u64, other: u64) -> End {
        let own = self.keys.get(&nexus).copied();
        if action == REGISTER && own.unwrap_or(0) != key {
            return End::Conflict;
        }
        if action == REGISTER || action == REGISTER_AND_IGNORE {
            if other == 0 {
                self.drop(nexus);
            } else {
                self.keys.insert(nexus, other);
            }
            return End::Good;
        }
        if own != Some(key) {
            return End::Conflict;
        }
        match action {
            RESERVE => match self.reserved {
                None => self.take(nexus, kind),
                Some((held, _)) if held == kind && self.is_holder(nexus) => {}
                Some(_) => return End::Conflict,
            },
            RELEASE if self.is_holder(nexus) => {
                if self.reserved.is_some_and(|(held, _)| held != kind) {
                    return End::Sense(SenseKey::IllegalRequest, Additional::INVALID_RELEASE);
                }
                self.reserved = None;
            }
            CLEAR => *self = Self::default(),
            PREEMPT | PREEMPT_AND_ABORT => return self.preempt(nexus, kind, other),
            _ => {}
        }
        End::Good
    }

    fn preempt(&mut self, nexus: u8, kind: u8, other: u64) -> End {
        let for_all = matches!(self.reserved, Some((_, None)));
        if other == 0 && !for_all {
            return INVALID_LIST;
        }
        let hit: Vec<u8> = self
            .keys
            .iter()
            .filter(|(_, key)| other == 0 || **key == other)
            .map(|(n, _)| *n)
            .collect();
        if hit.is_empty() {
            return End::Conflict;
        }
        let takes = match self.reserved {
            Some((_, Some(holder))) => self.keys[&holder] == other,
            Some((_, None)) => other == 0,
            None => false,
        };
        for one in hit {
            if !takes || one != nexus {
                self.drop(one);
            }
        }
        if takes {
            self.take(nexus, kind);
        }
        End::Good
    }

    fn may(&self, nexus: u8, write: bool) -> bool {
        match self.reserved {
            None => true,
            Some((WE | WERO | WEAR, _)) if !write => true,
            Some((WE | EA, _)) => self.is_holder(nexus),
            Some(_) => self.keys.contains_key(&nexus),
        }
    }
}

proptest! {
    #[test]
    fn the_machine_does_as_the_model(
        steps in proptest::collection::vec((1..=3_u8, 0..=6_u8, 0..6_usize, 0..4_u64, 0..4_u64, any::<bool>()), 1..60)
    ) {
        let (mut bed, mut model) = (Bed::new(), Model::default());
        for (nexus, action, kind, key, other, right_key) in steps {
            let kind = TYPES[kind];
            // Mostly the right key, so that states are reached.
            let key = if right_key { model.keys.get(&nexus).copied().unwrap_or(0) } else { key };
            let wanted = model.out(nexus, action, kind, key, other);
            prop_assert_eq!(bed.out(nexus, action, kind, key, other), wanted);
            for nexus in [A, B, C] {
                bed.attentions(nexus);
            }
            let mut keys = bed.keys();
            keys.sort_unstable();
            let mut wanted: Vec<_> = model.keys.values().copied().collect();
            wanted.sort_unstable();
            prop_assert_eq!(keys, wanted);
            let wanted = model.reserved.map(|(kind, holder)| (holder.map_or(0, |h| model.keys[&h]), kind));
            prop_assert_eq!(bed.reservation(), wanted);
            for nexus in [A, B, C] {
                prop_assert_eq!(bed.may_read(nexus), model.may(nexus, false));
                prop_assert_eq!(bed.may_write(nexus), model.may(nexus, true));
            }
        }
    }

    #[test]
    fn any_parameter_list_is_answered(
        action in 0..=7_u8,
        kind in any::<u8>(),
        mut bytes in proptest::collection::vec(any::<u8>(), 24..200),
        fit in any::<bool>(),
        registered in any::<bool>(),
    ) {
        let mut bed = Bed::new();
        if registered {
            bed.register(A, 1);
            bed.reserve(A, 1, WE);
            bytes[..8].copy_from_slice(&1_u64.to_be_bytes());
        }
        if fit {
            let at = if action == REGISTER_AND_MOVE { 20 } else { 24 };
            let len = u32::try_from(bytes.len().saturating_sub(at + 4)).unwrap();
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&len.to_be_bytes());
            }
        }
        bed.out_list(A, action, kind, &bytes);
        bed.input(3);
    }

    #[test]
    fn any_stored_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Reservations::decode(&bytes);
        let mut bytes = bytes;
        bytes.splice(0..0, *b"NRPRSRV\n\x01\x00");
        prop_assert!(Reservations::decode(&bytes).is_err());
    }
}
