//! READ and WRITE in all their forms: ranges, stability, protection, failures.

use super::*;

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
fn stability_is_asked_for_where_it_is_owed() {
    let mut bench = Bench::new();
    let data = [1; 512];
    bench.good(&build::write(extent(0, 1), false, false), &data);
    bench.good(&build::write(extent(0, 1), true, false), &data);
    assert_eq!(write_cache_off(&mut bench).status, Status::Good);
    bench.good(&build::write(extent(0, 1), false, false), &data);
    bench.good(&build::write_same_16(extent(0, 1), true), &[0; 512]);
    bench.good(&build::synchronize_cache(false), &[]);
    let flags: Vec<_> = bench.submitted.iter().map(|(op, .., fua)| (*op, *fua)).collect();
    let expected = [
        (Op::Write, false),
        (Op::Write, true),
        // Of what was written before the cache was switched off.
        (Op::Flush, false),
        (Op::Write, true),
        (Op::WriteZeroes, true),
        (Op::Flush, false),
    ];
    assert_eq!(flags, expected);
}

/// Turns the write cache off.
fn write_cache_off(bench: &mut Bench) -> Response {
    let mut list = bench.good(&build::mode_sense_6(0x08, 255), &[]);
    let caching = list.len() - 20;
    list[caching + 2] = 0;
    bench.run(&cdb(&[0x15, 0x10, 0, 0, u8::try_from(list.len()).unwrap()]), &list)
}

#[test]
fn what_the_write_cache_holds_is_made_stable_when_it_is_switched_off() {
    let mut bench = Bench::new();
    assert_eq!(write_cache_off(&mut bench).status, Status::Good);
    assert_eq!(bench.submitted, [(Op::Flush, 0, 0, false)]);
}

#[test]
fn a_write_cache_whose_flush_failed_is_flushed_by_who_switches_it_off_again() {
    let mut bench = Bench::new();
    bench.fail_next = Some(ErrorKind::Device);
    assert_eq!(write_cache_off(&mut bench).status, Status::CheckCondition);
    assert_eq!(write_cache_off(&mut bench).status, Status::Good);
    assert_eq!(bench.submitted, [(Op::Flush, 0, 0, false); 2]);
}

// SBC-3, section 5.11: FUA set to one reads from the medium, not what is newer in a cache.
#[test]
fn a_read_with_fua_waits_until_the_cache_is_on_the_medium() {
    let read = cdb(&[0x28, 0x08, 0, 0, 0, 3, 0, 0, 2]);
    let mut bench = Bench::new();
    bench.medium[3 * 512..5 * 512].fill(9);
    assert_eq!(bench.good(&read, &[]), [9; 1024]);
    assert_eq!(bench.submitted, [(Op::Flush, 0, 0, false), (Op::Read, 1536, 1024, false)]);

    bench.submitted.clear();
    bench.fail_next = Some(ErrorKind::Device);
    assert_eq!(bench.run(&read, &[]).status, Status::CheckCondition);
    assert_eq!(bench.submitted, [(Op::Flush, 0, 0, false)], "it is not read from the cache");

    bench.submitted.clear();
    bench.good(&build::read(extent(3, 2), false), &[]);
    assert_eq!(bench.submitted, [(Op::Read, 1536, 1024, false)], "without FUA");

    let info = DeviceInfo { volatile_cache: false, ..config().info };
    let mut bench = Bench::with(UnitConfig { info, ..config() });
    bench.good(&read, &[]);
    assert_eq!(bench.submitted, [(Op::Read, 1536, 1024, false)], "without a volatile cache");
}

#[test]
fn a_read_with_fua_counts_its_memory_before_it_begins() {
    let mut bench = Bench::new();
    let (task, step) = bench.unit.handle_command(NEXUS, &cdb(&[0x28, 8, 0, 0, 0, 0, 0, 0, 2]), 0);
    assert!(matches!(step, Step::Submit(MediumRequest { op: Op::Flush, .. })));
    assert_eq!(task.read_len(), 1024);
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

/// No block is cached here, so none of the ranges fits into a cache: GOOD, whether at once (IMMED)
/// or after reading, and never CONDITION MET (SBC-3, sections 5.9 and 5.10).
#[test]
fn pre_fetch_checks_its_range_and_promises_nothing() {
    let mut bench = Bench::new();
    for immediate in [0x00, 0x02] {
        // Of 4096 blocks the last 16, and one more.
        for (blocks, fits) in [(0, true), (16, true), (17, false)] {
            for cdb in [
                cdb(&[0x34, immediate, 0, 0, 0x0f, 0xf0, 0, 0, blocks]),
                cdb(&[0x90, immediate, 0, 0, 0, 0, 0, 0, 0x0f, 0xf0, 0, 0, 0, blocks]),
            ] {
                let response = bench.run(&cdb, &[]);
                let told = Sense::decode(&response.sense).map(|sense| sense.additional);
                let wanted = (!fits).then_some(Additional::LBA_OUT_OF_RANGE);
                assert_eq!((told, response.status == Status::Good), (wanted, fits), "{cdb:x?}");
            }
        }
    }
    assert!(bench.submitted.is_empty());
}
