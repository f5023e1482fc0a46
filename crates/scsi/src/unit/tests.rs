use std::{vec, vec::Vec};

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError, Op, SgList, extents::Extents};
use proptest::prelude::*;

use super::*;
use crate::{cdb::build, ports::InitiatorPort};

mod sanitize;

const NEXUS: NexusId = NexusId(7);
const OTHER: NexusId = NexusId(8);
const BLOCKS: u64 = 4096;

pub(crate) fn config() -> UnitConfig {
    UnitConfig {
        info: DeviceInfo {
            capacity: BLOCKS * 512,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 18,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        },
        discard_zeroes: true,
        physical_len: 4096,
        removable: false,
        atomic_len: 4096,
        can_sanitize: true,
        reservations: Reservations::default(),
        identity: Identity::for_lun("iqn.2026-01.org.example:t", 0),
    }
}

pub(crate) fn nexus(number: u8) -> Nexus {
    let port = InitiatorPort::new("iqn.2026-01.org.example:i", [0x40, 0, 0, 0, 0, number]);
    Nexus::new(port.unwrap())
}

/// A logical unit over plain bytes; every step is done at once.
struct Bench {
    unit: LogicalUnit,
    medium: Vec<u8>,
    submitted: Vec<(Op, u64, u64, bool)>,
    fail_next: Option<ErrorKind>,
    bad_block: Option<u64>,
    kept: Option<Marker>,
    fail_keep: bool,
    /// What the device says of its map, from its first byte.
    mapped: Vec<(u64, bool)>,
}

impl Bench {
    fn with(config: UnitConfig) -> Self {
        let medium = vec![0; usize::try_from(config.info.capacity).unwrap()];
        let mut unit = LogicalUnit::new(config);
        assert!(unit.add_nexus(NEXUS, &nexus(7)));
        assert!(unit.add_nexus(OTHER, &nexus(8)));
        let (_, step) = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
        let Step::Respond(first) = step else { panic!() };
        let sense = Sense::decode(&first.sense).unwrap();
        assert_eq!(sense.additional, Additional::POWER_ON_OR_RESET);
        Self {
            unit,
            medium,
            submitted: Vec::new(),
            fail_next: None,
            bad_block: None,
            kept: None,
            fail_keep: false,
            mapped: Vec::new(),
        }
    }

    fn new() -> Self {
        Self::with(config())
    }

    fn run(&mut self, cdb: &[u8], data: &[u8]) -> Response {
        let announced = u32::try_from(data.len()).unwrap();
        let (mut task, mut step) = self.unit.handle_command(NEXUS, cdb, announced);
        loop {
            step = match step {
                Step::Respond(response) => return response,
                step @ (Step::Persist(_) | Step::Abort { .. }) => panic!("{step:?}"),
                Step::DataOut { len } => {
                    let sent = data.len().min(len as usize);
                    let list = Buf::copy_from(&data[..sent]).into();
                    self.unit.handle_data_out(&mut task, list)
                }
                Step::SubmitTo { .. } => unreachable!("a unit knows no other"),
                Step::Submit(request) => {
                    let result = self.execute(request);
                    self.unit.handle_medium_done(&mut task, result)
                }
                Step::Wait => {
                    let woken = self.work();
                    let result = woken.map(|()| SgList::new()).map_err(IoError::from);
                    self.unit.handle_medium_done(&mut task, result)
                }
            }
        }
    }

    /// Does the unit's background work; how whoever waited is woken.
    fn work(&mut self) -> Result<(), ErrorKind> {
        let mut woken = None;
        while let Some(next) = self.unit.poll_background() {
            let result = match next {
                Background::Keep(marker) => {
                    if self.fail_keep {
                        Err(ErrorKind::Device.into())
                    } else {
                        self.kept = marker;
                        Ok(SgList::new())
                    }
                }
                Background::Pause => panic!("nothing else is under way"),
                Background::Submit(request) => {
                    assert!(self.kept.is_some(), "a restart has to find this");
                    self.execute(request)
                }
                Background::Wake(result) => {
                    woken.get_or_insert(result);
                    Ok(SgList::new())
                }
            };
            self.unit.handle_background_done(result);
        }
        woken.expect("the task is woken")
    }

    fn execute(&mut self, request: MediumRequest) -> Result<SgList, IoError> {
        let MediumRequest { op, offset, len, flags, data } = request;
        self.submitted.push((op, offset, len, flags.fua));
        assert!(offset + len <= self.unit.config.info.capacity);
        assert_eq!(data.len() as u64, if op == Op::Write { len } else { 0 });
        if let Some(kind) = self.fail_next.take() {
            return Err(kind.into());
        }
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        match op {
            Op::Read
                if self
                    .bad_block
                    .is_some_and(|bad| (offset..offset + len).contains(&(bad * 512))) =>
            {
                return Err(ErrorKind::Medium.into());
            }
            Op::Read => return Ok(Buf::copy_from(&self.medium[range]).into()),
            Op::Write => data.copy_to(&mut self.medium[range]),
            Op::WriteZeroes | Op::Discard => self.medium[range].fill(0),
            Op::Flush => {}
            Op::Extents => {
                let mut answer = Extents::new();
                let mut at = 0;
                for (run, mapped) in &self.mapped {
                    at += run;
                    answer.push((at - offset.min(at)).min(*run), *mapped);
                }
                return Ok(answer.encode());
            }
        }
        Ok(SgList::new())
    }

    fn good(&mut self, cdb: &[u8], data: &[u8]) -> Vec<u8> {
        let response = self.run(cdb, data);
        assert_eq!(response.status, Status::Good, "{:?}", Sense::decode(&response.sense));
        response.data_in.to_contiguous().to_vec()
    }

    fn sense(&mut self, cdb: &[u8], data: &[u8]) -> Sense {
        let response = self.run(cdb, data);
        assert_eq!(response.status, Status::CheckCondition);
        Sense::decode(&response.sense).unwrap()
    }
}

fn extent(lba: u64, blocks: u32) -> Extent {
    Extent { lba, blocks }
}

/// READ or WRITE (6), (12) and others that the initiator side never sends.
fn cdb(bytes: &[u8]) -> Vec<u8> {
    let mut cdb = bytes.to_vec();
    cdb.resize(16, 0);
    cdb
}

#[test]
fn a_write_takes_the_whole_blocks_of_short_data() {
    for head in [[0x2a, 0], [0x2e, 0], [0x2e, 0x02]] {
        let mut bench = Bench::new();
        let write = cdb(&[head[0], head[1], 0, 0, 0, 5, 0, 0, 3]);
        bench.good(&write, &[1; 1100]);
        let start = 5 * 512;
        assert!(bench.medium[start..start + 1024].iter().all(|byte| *byte == 1));
        assert!(bench.medium[start + 1024..].iter().all(|byte| *byte == 0));
        bench.submitted.clear();
        bench.good(&write, &[1; 100]);
        assert!(bench.submitted.is_empty(), "no whole block came");
    }
    let compare = cdb(&[0x2f, 0x02, 0, 0, 0, 5, 0, 0, 3]);
    let sense = Bench::new().sense(&compare, &[0; 1024]);
    assert_eq!(sense.additional, Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
}

#[test]
fn every_form_of_read_and_write_reaches_the_same_blocks() {
    let mut bench = Bench::new();
    let data: Vec<u8> = (0..1024_u32).map(|at| (at % 251) as u8).collect();
    let writes = [
        cdb(&[0x0a, 0, 0, 5, 2]),
        cdb(&[0x2a, 0, 0, 0, 0, 5, 0, 0, 2]),
        cdb(&[0xaa, 0, 0, 0, 0, 5, 0, 0, 0, 2]),
        cdb(&[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2]),
        cdb(&[0x2e, 0x02, 0, 0, 0, 5, 0, 0, 2]),
    ];
    for write in writes {
        bench.medium.fill(0);
        bench.good(&write, &data);
        for code in [0x08, 0x28, 0xa8, 0x88] {
            let read = match code {
                0x08 => cdb(&[code, 0, 0, 5, 2]),
                0x28 => cdb(&[code, 0, 0, 0, 0, 5, 0, 0, 2]),
                0xa8 => cdb(&[code, 0, 0, 0, 0, 5, 0, 0, 0, 2]),
                _ => cdb(&[code, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2]),
            };
            assert_eq!(bench.good(&read, &[]), data);
        }
    }
    assert_eq!(bench.good(&cdb(&[0x08, 0, 0, 0, 0]), &[]).len(), 256 * 512);
}

#[test]
fn ranges_are_checked_without_overflow() {
    let mut bench = Bench::new();
    for (lba, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1), (u64::MAX - 1, u32::MAX)] {
        for cdb in [
            build::read(extent(lba, blocks), true),
            build::write(extent(lba, blocks), false, true),
            build::write_same_16(extent(lba, blocks), false),
        ] {
            let sense = bench.sense(&cdb, &[]);
            assert_eq!(sense.additional, Additional::LBA_OUT_OF_RANGE);
        }
    }
    bench.good(&build::read(extent(BLOCKS, 0), true), &[]);
    let long = bench.sense(&build::read(extent(0, 1024), true), &[]);
    assert_eq!(long.additional, Additional::INVALID_FIELD_IN_CDB, "longer than a transfer may be");
    assert!(bench.submitted.is_empty(), "nothing wrong reaches the medium");
}

#[test]
fn reserved_bits_and_unknown_commands_are_named() {
    let mut bench = Bench::new();
    let mut read = build::read(extent(0, 1), false);
    read[1] = 0x20;
    let sense = bench.sense(&read, &[]);
    let field = sense.field.unwrap();
    assert_eq!((field.in_cdb, field.byte, field.bit), (true, 1, Some(5)));
    for unknown in [0xff, 0x5d, 0x7f, 0x85] {
        let sense = bench.sense(&cdb(&[unknown]), &[]);
        assert_eq!(sense.additional, Additional::INVALID_COMMAND_OPERATION_CODE);
    }
    let action = bench.sense(&cdb(&[0x9e, 0x1f]), &[]);
    assert_eq!(action.additional, Additional::INVALID_FIELD_IN_CDB);
}

#[test]
fn stability_is_asked_for_where_it_is_owed() {
    let mut bench = Bench::new();
    let data = [1; 512];
    bench.good(&build::write(extent(0, 1), false, false), &data);
    bench.good(&build::write(extent(0, 1), true, false), &data);
    let mut list = bench.good(&build::mode_sense_6(0x08, 255), &[]);
    let caching = list.len() - 20;
    list[caching + 2] = 0;
    let select = cdb(&[0x15, 0x10, 0, 0, u8::try_from(list.len()).unwrap()]);
    bench.good(&select, &list);
    bench.good(&build::write(extent(0, 1), false, false), &data);
    bench.good(&build::write_same_16(extent(0, 1), true), &[0; 512]);
    bench.good(&build::synchronize_cache(false), &[]);
    let flags: Vec<_> = bench.submitted.iter().map(|(op, .., fua)| (*op, *fua)).collect();
    let expected = [
        (Op::Write, false),
        (Op::Write, true),
        (Op::Write, true),
        (Op::WriteZeroes, true),
        (Op::Flush, false),
    ];
    assert_eq!(flags, expected);
}

#[test]
fn write_same_repeats_its_block() {
    let mut bench = Bench::new();
    bench.medium.fill(9);
    let block: Vec<u8> = (0..512_u32).map(|at| (at % 7) as u8).collect();
    bench.good(&build::write_same_16(extent(3, 1500), false), &block);
    assert!(bench.medium[3 * 512..1503 * 512].chunks(512).all(|part| part == block));
    assert!(bench.medium[..3 * 512].iter().chain(&bench.medium[1503 * 512..]).all(|it| *it == 9));
    assert!(bench.submitted.iter().all(|(_, _, len, _)| *len <= 1 << 18));
    let mut no_data = build::write_same_16(extent(4, 2), false);
    no_data[1] = 0x01;
    bench.good(&no_data, &[]);
    assert!(bench.medium[4 * 512..6 * 512].iter().all(|byte| *byte == 0));
}

#[test]
fn write_same_of_zero_blocks_is_refused_as_announced() {
    // SBC-3, section 5.43, with WSNZ = 1 in VPD page B0h.
    let mut bench = Bench::new();
    let limits = bench.good(&build::inquiry(Some(0xb0), 255), &[]);
    assert_eq!(limits[4] & 0x01, 0x01);
    let nothing = bench.sense(&build::write_same_16(extent(3, 0), false), &[5; 512]);
    assert_eq!(nothing.additional, Additional::INVALID_FIELD_IN_CDB);
    assert!(bench.submitted.is_empty());
}

#[test]
fn the_ranges_of_an_unmap_are_bounded_together() {
    // SBC-3, section 5.28.1: MAXIMUM UNMAP LBA COUNT, in VPD page B0h.
    let blocks = 1 << 20;
    let info = DeviceInfo { capacity: 1 << 40, ..config().info };
    let mut unit = LogicalUnit::new(UnitConfig { info, ..config() });
    assert!(unit.add_nexus(NEXUS, &nexus(7)));
    let _power_on = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
    for (more, fits) in [(0, true), (1, false)] {
        let list = build::unmap_list(&[extent(5, blocks - 9), extent(1 << 30, 9 + more)]);
        let len = u32::try_from(list.len()).unwrap();
        let unmap = build::unmap(u16::try_from(len).unwrap());
        let (mut task, step) = unit.handle_command(NEXUS, &unmap, len);
        assert!(matches!(step, Step::DataOut { .. }), "{step:?}");
        let step = unit.handle_data_out(&mut task, Buf::copy_from(&list).into());
        assert_eq!(matches!(step, Step::Submit(_)), fits, "{step:?}");
        unit.handle_abort(task);
    }
}

#[test]
fn unmap_discards_its_ranges_in_order_or_none() {
    let mut bench = Bench::new();
    let ranges = [extent(1, 2), extent(10, 0), extent(100, 50)];
    let list = build::unmap_list(&ranges);
    bench.good(&build::unmap(u16::try_from(list.len()).unwrap()), &list);
    assert_eq!(
        bench.submitted,
        [(Op::Discard, 512, 1024, false), (Op::Discard, 51200, 25600, false)]
    );
    bench.submitted.clear();
    let list = build::unmap_list(&[extent(0, 1), extent(BLOCKS, 1)]);
    let sense = bench.sense(&build::unmap(u16::try_from(list.len()).unwrap()), &list);
    assert_eq!(sense.additional, Additional::LBA_OUT_OF_RANGE);
    let many = build::unmap_list(&[extent(0, 1); 257]);
    let sense = bench.sense(&build::unmap(u16::try_from(many.len()).unwrap()), &many);
    assert_eq!(sense.additional, Additional::INVALID_FIELD_IN_PARAMETER_LIST);
    let short = bench.sense(&build::unmap(7), &[0; 7]);
    assert_eq!(short.additional, Additional::PARAMETER_LIST_LENGTH_ERROR);
    assert!(bench.submitted.is_empty());
}

#[test]
fn compare_and_write_writes_only_over_what_was_expected() {
    let mut bench = Bench::new();
    let mut caw = [0; 16];
    (caw[0], caw[9], caw[13]) = (0x89, 3, 1);
    let mut data = vec![0; 512];
    data.extend([5; 512]);
    bench.good(&caw, &data);
    assert_eq!(bench.medium[3 * 512..4 * 512], [5; 512]);
    let sense = bench.sense(&caw, &data);
    assert_eq!((sense.key, sense.information), (SenseKey::Miscompare, Some(0)));
    bench.submitted.clear();
    for announced in [&data[..512], &[data.clone(), data.clone()].concat()] {
        let sense = bench.sense(&caw, announced);
        assert_eq!(sense.additional, Additional::INVALID_FIELD_IN_CDB);
    }
    assert!(bench.submitted.is_empty());
}

#[test]
fn compare_and_write_is_not_interrupted() {
    let mut unit = LogicalUnit::new(config());
    unit.add_nexus(NEXUS, &nexus(7));
    let _ = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
    let mut caw = [0; 16];
    (caw[0], caw[9], caw[13]) = (0x89, 3, 1);
    let (mut first, step) = unit.handle_command(NEXUS, &caw, 1024);
    assert!(matches!(step, Step::DataOut { len: 1024 }));
    let step = unit.handle_data_out(&mut first, Buf::copy_from(&[0; 1024]).into());
    assert!(matches!(step, Step::Submit(_)));
    let block: SgList = Buf::copy_from(&[1; 512]).into();
    for (lba, admitted) in [(3, false), (4, true)] {
        let cdb = build::write(extent(lba, 1), false, false);
        let (mut write, _) = unit.handle_command(NEXUS, &cdb, 0);
        let step = unit.handle_data_out(&mut write, block.clone());
        match step {
            Step::Submit(_) => assert!(admitted),
            Step::Respond(response) => {
                assert!(!admitted);
                assert_eq!(response.status, Status::Busy);
            }
            Step::DataOut { .. }
            | Step::SubmitTo { .. }
            | Step::Wait
            | Step::Persist(_)
            | Step::Abort { .. } => panic!(),
        }
    }
    unit.handle_abort(first);
    let (mut write, _) = unit.handle_command(NEXUS, &build::write(extent(3, 1), false, false), 512);
    assert!(matches!(unit.handle_data_out(&mut write, block), Step::Submit(_)));
}

#[test]
fn verify_reads_and_compares() {
    let mut bench = Bench::new();
    bench.medium[512 * 2 + 7] = 1;
    let verify = |check: u8| cdb(&[0x2f, check, 0, 0, 0, 1, 0, 0, 2]);
    bench.good(&verify(0), &[]);
    assert_eq!(bench.submitted, [(Op::Read, 512, 1024, false)]);
    let mut data = vec![0; 1024];
    let sense = bench.sense(&verify(2), &data);
    assert_eq!((sense.key, sense.information), (SenseKey::Miscompare, Some(2)), "the block");
    data[519] = 1;
    bench.good(&verify(2), &data);
    let offered = bench.sense(&verify(4), &data);
    assert_eq!(offered.additional, Additional::INVALID_FIELD_IN_CDB);
    bench.fail_next = Some(ErrorKind::Medium);
    let failed = bench.sense(&verify(0), &[]);
    assert_eq!(failed.additional, Additional::UNRECOVERED_READ_ERROR);
}

#[test]
fn a_write_of_fewer_bytes_takes_whole_blocks() {
    let mut bench = Bench::new();
    bench.good(&build::write(extent(0, 4), false, false), &[1; 1300]);
    assert_eq!(bench.submitted, [(Op::Write, 0, 1024, false)]);
    bench.good(&build::write(extent(0, 4), false, false), &[1; 100]);
    assert_eq!(bench.submitted.len(), 1);
}

#[test]
fn write_protection_covers_every_command_that_changes_the_medium() {
    let mut read_only = config();
    read_only.info.read_only = true;
    let mut bench = Bench::with(read_only);
    let commands = [
        build::write(extent(0, 1), false, false),
        build::write_same_16(extent(0, 1), false),
        build::unmap(24),
        {
            let mut caw = [0; 16];
            (caw[0], caw[13]) = (0x89, 1);
            caw
        },
        {
            let mut verify = [0; 16];
            (verify[0], verify[8]) = (0x2e, 1);
            verify
        },
    ];
    for cdb in commands {
        let sense = bench.sense(&cdb, &[0; 1024]);
        assert_eq!(sense.additional, Additional::WRITE_PROTECTED, "{cdb:?}");
    }
    assert!(bench.submitted.is_empty());
    let mode = bench.good(&build::mode_sense_6(0x3f, 255), &[]);
    assert_eq!(mode[2], 0x90);
}

#[test]
fn failures_of_the_medium_are_reported_in_kind() {
    let mut bench = Bench::new();
    let write = build::write(extent(0, 1), false, false);
    for (kind, key, additional) in [
        (ErrorKind::NoSpace, SenseKey::DataProtect, Additional::SPACE_ALLOCATION_FAILED),
        (ErrorKind::Medium, SenseKey::MediumError, Additional::WRITE_ERROR),
        (ErrorKind::Timeout, SenseKey::AbortedCommand, Additional::COMMAND_TIMEOUT),
        (ErrorKind::Redundancy, SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE),
    ] {
        bench.fail_next = Some(kind);
        let sense = bench.sense(&write, &[0; 512]);
        assert_eq!((sense.key, sense.additional), (key, additional));
    }
    bench.fail_next = Some(ErrorKind::Fenced);
    assert_eq!(bench.run(&write, &[0; 512]).status, Status::ReservationConflict);
}

#[test]
fn a_reservation_keeps_others_out_until_it_ends() {
    let mut bench = Bench::new();
    let other = OTHER;
    let status =
        |unit: &mut LogicalUnit, nexus, cdb: &[u8]| match unit.handle_command(nexus, cdb, 0) {
            (_, Step::Respond(response)) => response.status,
            (_, step) => panic!("{step:?}"),
        };
    let ready = build::test_unit_ready();
    assert_eq!(status(&mut bench.unit, other, &ready), Status::CheckCondition, "power on");
    bench.good(&cdb(&[0x16]), &[]);
    assert_eq!(status(&mut bench.unit, other, &ready), Status::ReservationConflict);
    assert_eq!(status(&mut bench.unit, other, &cdb(&[0x17])), Status::Good, "without effect");
    assert_eq!(status(&mut bench.unit, other, &ready), Status::ReservationConflict);
    assert_eq!(status(&mut bench.unit, other, &build::inquiry(None, 36)), Status::Good);
    bench.unit.remove_nexus(NEXUS);
    assert_eq!(status(&mut bench.unit, other, &ready), Status::Good);
}

#[test]
fn others_learn_of_changed_mode_parameters_once() {
    let mut bench = Bench::new();
    let other = OTHER;
    let _ = bench.unit.handle_command(other, &build::test_unit_ready(), 0);
    let mut list = bench.good(&build::mode_sense_6(0x0a, 255), &[]);
    let control = list.len() - 12;
    list[control + 4] |= 0x08;
    bench.good(&cdb(&[0x15, 0x10, 0, 0, u8::try_from(list.len()).unwrap()]), &list);
    let sense = bench.sense(&build::write(extent(0, 1), false, false), &[0; 512]);
    assert_eq!(sense.additional, Additional::SOFTWARE_WRITE_PROTECTED);
    let request = cdb(&[0x03, 0, 0, 0, 252]);
    for expected in [Additional::MODE_PARAMETERS_CHANGED, Additional::NONE] {
        let (_, step) = bench.unit.handle_command(other, &request, 0);
        let Step::Respond(response) = step else { panic!() };
        let sense = Sense::decode(&response.data_in.to_contiguous()).unwrap();
        assert_eq!(sense.additional, expected);
    }
}

#[test]
fn reported_operation_codes_are_those_that_are_understood() {
    let mut bench = Bench::new();
    let all = bench.good(&cdb(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x10, 0]), &[]);
    let reported: Vec<_> = all[4..].chunks(8).map(|entry| entry[0]).collect();
    assert_eq!(all.len() - 4, usize::from(u16::from_be_bytes([all[2], all[3]])));
    for opcode in 0..=255 {
        let probe = cdb(&[opcode]);
        let response = Bench::new().run(&probe, &[]);
        let unknown = Sense::decode(&response.sense)
            .is_some_and(|sense| sense.additional == Additional::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(reported.contains(&opcode), !unknown, "{opcode:#x}");
    }
    let one = bench.good(&cdb(&[0xa3, 0x0c, 3, 0x9e, 0, 0x10, 0, 0, 0x10, 0]), &[]);
    assert_eq!((one[1], one[3], one[4]), (3, 16, 0x9e));
    let none = bench.good(&cdb(&[0xa3, 0x0c, 1, 0xc1, 0, 0, 0, 0, 0x10, 0]), &[]);
    assert_eq!(none[1], 1);
    let wrong = bench.sense(&cdb(&[0xa3, 0x0c, 1, 0x9e, 0, 0, 0, 0, 0x10, 0]), &[]);
    assert_eq!(wrong.additional, Additional::INVALID_FIELD_IN_CDB);
}

#[test]
fn answers_are_cut_to_the_allocation_length() {
    let mut bench = Bench::new();
    assert_eq!(bench.good(&build::inquiry(None, 5), &[]).len(), 5);
    assert_eq!(bench.good(&build::inquiry(Some(0xb0), 255), &[]).len(), 64);
    assert_eq!(bench.good(&build::read_capacity_16(12), &[]).len(), 12);
    assert_eq!(bench.good(&build::inquiry(None, 0), &[]).len(), 0);
}

/// The bytes that a command may change, read from its CDB and list by other means than the
/// machine's.
fn may_change(cdb: &[u8], data: &[u8]) -> Vec<core::ops::Range<u64>> {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let field = |at: core::ops::Range<usize>| cdb.get(at).map_or(0, number);
    let (lba, blocks) = match cdb.first() {
        Some(0x0a) => (field(1..4) & 0x1f_ffff, if field(4..5) == 0 { 256 } else { field(4..5) }),
        Some(0x2a | 0x2e | 0x41) => (field(2..6), field(7..9)),
        Some(0xaa | 0xae) => (field(2..6), field(6..10)),
        Some(0x8a | 0x8b | 0x8e | 0x93) => (field(2..10), field(10..14)),
        Some(0x89) => (field(2..10), field(13..14)),
        Some(0x9c) => (field(2..10), field(12..14)),
        Some(0x48) => (0, BLOCKS),
        Some(0x42) => {
            let ranges = data.get(8..).unwrap_or(&[]).chunks_exact(16);
            let range = |one: &[u8]| {
                let (lba, blocks) = (number(&one[..8]), number(&one[8..12]));
                lba.saturating_mul(512)..lba.saturating_add(blocks).saturating_mul(512)
            };
            return ranges.map(range).collect();
        }
        _ => return Vec::new(),
    };
    let range = lba.saturating_mul(512)..lba.saturating_add(blocks).saturating_mul(512);
    core::iter::once(range).collect()
}

/// A known command with only the bits that it uses, or any bytes; in range more often than not.
fn any_cdb() -> impl Strategy<Value = Vec<u8>> {
    let parts = (
        0..cdb::table::TABLE.len(),
        proptest::collection::vec(any::<u8>(), 0..24),
        any::<bool>(),
        proptest::bool::weighted(0.2),
    );
    parts.prop_map(|(row, mut cdb, near, raw)| {
        if raw {
            return cdb;
        }
        cdb.resize(16, 0);
        let row = &cdb::table::TABLE[row];
        for (byte, mask) in cdb.iter_mut().zip(row.usage) {
            *byte &= mask;
        }
        cdb[0] = row.opcode();
        if let Some(action) = row.service_action {
            cdb[1] = cdb[1] & 0xe0 | u8::try_from(action).unwrap();
        }
        if near {
            // High bytes of address and length are zero, so that many are in range.
            cdb[2..8].fill(0);
            cdb[10..12].fill(0);
        }
        cdb
    })
}

fn any_data() -> impl Strategy<Value = Vec<u8>> {
    let filled =
        |len: core::ops::Range<usize>| (len, any::<u8>()).prop_map(|(len, fill)| vec![fill; len]);
    prop_oneof![
        filled(512..513),
        filled(1024..1025),
        filled(0..1100),
        proptest::collection::vec(any::<u8>(), 0..64),
        proptest::collection::vec((0..5000_u64, 0..99_u32), 0..4).prop_map(|ranges| {
            let extents: Vec<_> = ranges.iter().map(|(lba, len)| extent(*lba, *len)).collect();
            build::unmap_list(&extents)
        }),
    ]
}

proptest! {
    /// Whatever CDBs and their data say, every command ends, and changes only what it names.
    #[test]
    fn any_command_ends_and_changes_only_what_it_names(
        commands in proptest::collection::vec((any_cdb(), any_data()), 1..5),
        removable: bool,
    ) {
        let mut bench = Bench::with(UnitConfig { removable, ..config() });
        bench.medium.iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at / 512 % 251) as u8);
        for (mut cdb, data) in commands {
            if let Some(0x42) = cdb.first() {
                let len = u16::try_from(data.len()).unwrap().to_be_bytes();
                cdb.resize(10, 0);
                cdb[7..9].copy_from_slice(&len);
            }
            let before = bench.medium.clone();
            let response = bench.run(&cdb, &data);
            prop_assert_eq!(response.status == Status::CheckCondition, !response.sense.is_empty());
            let allowed = may_change(&cdb, &data);
            let blocks = (0_u64..).zip(before.chunks(512).zip(bench.medium.chunks(512)));
            let mut changed = blocks.filter(|(_, (old, new))| old != new).map(|(at, _)| at * 512);
            let outside = changed.find(|at| !allowed.iter().any(|range| range.contains(at)));
            prop_assert_eq!(outside, None, "{:x?} changed what it does not name", cdb);
        }
    }
}

#[test]
fn or_write_sets_bits_and_clears_none() {
    let mut bench = Bench::new();
    bench.medium[512..1024].fill(0x50);
    let mut or = [0; 16];
    (or[0], or[9], or[13]) = (0x8b, 1, 1);
    bench.good(&or, &[0xa1; 512]);
    assert!(bench.medium[512..1024].iter().all(|byte| *byte == 0xf1));
    assert!(bench.medium[1024..].iter().all(|byte| *byte == 0));
    let short = bench.sense(&or, &[1; 511]);
    assert_eq!(short.additional, Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
}

#[test]
fn verify_compares_one_block_with_many() {
    let mut bench = Bench::new();
    bench.medium.fill(7);
    // BYTCHK 11b; more than one piece of reading (SBC-3, section 5.29).
    let verify = cdb(&[0x2f, 0x06, 0, 0, 0, 1, 0, 0x04, 0x00]);
    bench.good(&verify, &[7; 512]);
    bench.medium[1000 * 512 + 3] = 6;
    let sense = bench.sense(&verify, &[7; 512]);
    assert_eq!((sense.key, sense.information), (SenseKey::Miscompare, Some(1000)));
    let reserved = bench.sense(&cdb(&[0x2e, 0x06, 0, 0, 0, 1, 0, 0, 1]), &[7; 512]);
    assert_eq!(reserved.field.map(|field| (field.byte, field.bit)), Some((1, Some(2))));
}

#[test]
fn an_atomic_write_has_a_limit_and_no_boundary() {
    let mut bench = Bench::new();
    let atomic = |boundary: u8, blocks: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[11], cdb[13]) = (0x9c, 2, boundary, blocks);
        cdb
    };
    bench.good(&atomic(0, 8), &[3; 4096]);
    assert!(bench.medium[1024..5120].iter().all(|byte| *byte == 3));
    for (cdb, field) in [(atomic(0, 9), 12), (atomic(1, 8), 10)] {
        let sense = bench.sense(&cdb, &[4; 4608]);
        assert_eq!(sense.field.map(|field| field.byte), Some(field));
    }
    let mut plain = config();
    plain.atomic_len = 0;
    let sense = Bench::with(plain).sense(&atomic(0, 1), &[0; 512]);
    assert_eq!(sense.additional, Additional::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn the_first_bad_block_of_a_read_is_named() {
    let mut bench = Bench::new();
    for bad in [0, 1, 5, 62, 63] {
        bench.bad_block = Some(100 + bad);
        for cdb in
            [build::read(extent(100, 64), false).to_vec(), cdb(&[0x2f, 0, 0, 0, 0, 100, 0, 0, 64])]
        {
            let sense = bench.sense(&cdb, &[]);
            assert_eq!(sense.additional, Additional::UNRECOVERED_READ_ERROR);
            assert_eq!(sense.information, Some(100 + bad));
        }
    }
    bench.bad_block = None;
    bench.fail_next = Some(ErrorKind::Medium);
    let sense = bench.sense(&build::read(extent(100, 64), false), &[]);
    assert_eq!(sense.information, None, "it could be read afterwards");
}

#[test]
fn a_stopped_unit_asks_to_be_started() {
    let mut bench = Bench::new();
    let start_stop = |byte: u8| cdb(&[0x1b, 0, 0, 0, byte]);
    bench.good(&start_stop(0), &[]);
    assert_eq!(bench.submitted, [(Op::Flush, 0, 0, false)]);
    for refused in [build::test_unit_ready(), build::read(extent(0, 1), false)] {
        let sense = bench.sense(&refused, &[]);
        let expected = (SenseKey::NotReady, Additional::NOT_READY_START_REQUIRED);
        assert_eq!((sense.key, sense.additional), expected);
    }
    bench.good(&build::inquiry(None, 36), &[]);
    bench.good(&start_stop(1), &[]);
    bench.good(&build::test_unit_ready(), &[]);
    // A medium that cannot be removed is not ejected; only one power condition is known.
    for (byte, bit) in [(0x02, 1), (0x20, 7), (0x30, 7)] {
        let sense = bench.sense(&start_stop(byte), &[]);
        assert_eq!(sense.field.map(|field| (field.byte, field.bit)), Some((4, Some(bit))));
    }
    bench.good(&start_stop(0x10), &[]);
}

#[test]
fn an_ejected_medium_is_not_there_until_it_is_loaded() {
    let mut bench = Bench::with(UnitConfig { removable: true, ..config() });
    let other = NexusId(8);
    let _ = bench.unit.handle_command(other, &build::test_unit_ready(), 0);
    assert_eq!(bench.good(&build::inquiry(None, 36), &[])[1] & 0x80, 0x80);
    bench.good(&cdb(&[0x1b, 0, 0, 0, 0x02]), &[]);
    for refused in [build::test_unit_ready(), build::read_capacity_16(32)] {
        assert_eq!(bench.sense(&refused, &[]).additional, Additional::MEDIUM_NOT_PRESENT);
    }
    bench.good(&cdb(&[0x1b, 0, 0, 0, 0x03]), &[]);
    bench.good(&build::test_unit_ready(), &[]);
    let (_, step) = bench.unit.handle_command(other, &build::test_unit_ready(), 0);
    let Step::Respond(response) = step else { panic!() };
    let sense = Sense::decode(&response.sense).unwrap();
    assert_eq!(sense.additional, Additional::NOT_READY_TO_READY);
}

#[test]
fn removal_is_prevented_by_each_nexus_until_it_is_gone() {
    let eject = cdb(&[0x1b, 0, 0, 0, 0x02]);
    for ends in 0..4 {
        let mut bench = Bench::with(UnitConfig { removable: true, ..config() });
        let other = NexusId(8);
        let _ = bench.unit.handle_command(other, &build::test_unit_ready(), 0);
        let _ = bench.unit.handle_command(other, &cdb(&[0x1e, 0, 0, 0, 1]), 0);
        let _ = bench.unit.handle_command(other, &cdb(&[0x1e, 0, 0, 0, 1]), 0);
        bench.good(&cdb(&[0x1e, 0, 0, 0, 0]), &[]);
        let sense = bench.sense(&eject, &[]);
        assert_eq!(sense.additional, Additional::MEDIUM_REMOVAL_PREVENTED);
        match ends {
            0 => drop(bench.unit.handle_command(other, &cdb(&[0x1e, 0, 0, 0, 0]), 0)),
            1 => bench.unit.remove_nexus(other),
            2 => {
                bench.unit.handle_reset();
                bench.sense(&build::test_unit_ready(), &[]);
            }
            _ => continue,
        }
        bench.good(&eject, &[]);
    }
}

#[test]
fn lba_status_tells_what_is_mapped() {
    let mut mapping = config();
    mapping.info.can_map = true;
    let mut bench = Bench::with(mapping);
    // Bytes, as the device tells: parts of blocks are mapped ones.
    bench.mapped = vec![(1024, true), (1000, false), (100, true), (2097152 - 2124, false)];
    let get = |lba: u8, len: u8| cdb(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, len]);
    let data = bench.good(&get(0, 250), &[]);
    let told: Vec<_> = data[8..]
        .chunks(16)
        .map(|one| (one[7], u32::from_be_bytes(one[8..12].try_into().unwrap()), one[12]))
        .collect();
    assert_eq!(told, [(0, 2, 0), (2, 1, 1), (3, 2, 0), (5, 4091, 1)]);
    assert_eq!(usize::from(data[3]) + 4, data.len());
    assert_eq!(bench.good(&get(0, 24), &[]).len(), 24, "cut, and the length is of all");
    let beyond = cdb(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 24]);
    assert_eq!(bench.sense(&beyond, &[]).additional, Additional::LBA_OUT_OF_RANGE);
    let all_mapped = Bench::new().good(&get(4, 24), &[]);
    assert_eq!(all_mapped[8..], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0x0f, 0xfc, 0, 0, 0, 0]);
}

#[test]
fn defect_lists_are_empty_and_of_the_format_asked_for() {
    let mut bench = Bench::new();
    let short = bench.good(&cdb(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32]), &[]);
    assert_eq!(short, [0, 0x1d, 0, 0]);
    let long = bench.good(&cdb(&[0xb7, 0x0b, 0, 0, 0, 0, 0, 0, 0, 32]), &[]);
    assert_eq!(long, [0, 0x0b, 0, 0, 0, 0, 0, 0]);
    let sense = bench.sense(&cdb(&[0x37, 0, 0x1e, 0, 0, 0, 0, 0, 32]), &[]);
    assert_eq!(sense.field.map(|field| (field.byte, field.bit)), Some((2, Some(2))));
}

#[test]
fn task_functions_and_log_pages_are_told() {
    let mut bench = Bench::new();
    assert_eq!(bench.good(&cdb(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4]), &[])[0], 0xda);
    assert_eq!(bench.good(&cdb(&[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 255]), &[]).len(), 16);
    let log = |page: u8, subpage: u8| cdb(&[0x4d, 0, 0x40 | page, subpage, 0, 0, 0, 0, 255]);
    let pages = bench.good(&log(0, 0), &[]);
    assert_eq!(pages, [0, 0, 0, 2, 0, 0x2f]);
    for page in &pages[4..] {
        let data = bench.good(&log(*page, 0), &[]);
        assert_eq!((data[0], usize::from(data[3]) + 4), (*page, data.len()));
    }
    assert_eq!(bench.sense(&log(0x0d, 0), &[]).field.map(|field| field.byte), Some(2));
}

#[test]
fn every_page_that_is_listed_is_there() {
    let mut bench = Bench::new();
    let listed = bench.good(&build::inquiry(Some(0), 255), &[]);
    assert!(listed[4..].is_sorted(), "ascending (SPC-4, section 7.8.15)");
    for page in &listed[4..] {
        let data = bench.good(&build::inquiry(Some(*page), 1000), &[]);
        let len = usize::from(u16::from_be_bytes([data[2], data[3]]));
        assert_eq!((data[1], len + 4), (*page, data.len()));
    }
}
