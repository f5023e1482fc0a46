//! VERIFY, COMPARE AND WRITE and ORWRITE.

use super::*;

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
    assert!(matches!(step, Step::DataOut { len: 1024, memory: 512 }));
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
    // BYTCHK 11b (SBC-3, section 5.29).
    let verify = cdb(&[0x2f, 0x06, 0, 0, 0, 1, 0, 0x02, 0x00]);
    bench.good(&verify, &[7; 512]);
    bench.medium[500 * 512 + 3] = 6;
    let sense = bench.sense(&verify, &[7; 512]);
    assert_eq!((sense.key, sense.information), (SenseKey::Miscompare, Some(500)));
    let reserved = bench.sense(&cdb(&[0x2e, 0x06, 0, 0, 0, 1, 0, 0, 1]), &[7; 512]);
    assert_eq!(reserved.field.map(|field| (field.byte, field.bit)), Some((1, Some(2))));
}

/// A command is taken when there is memory for all that it holds at a time: these held up to twice
/// as much besides, uncounted.
#[test]
fn what_a_command_holds_is_told_before_its_data_is_taken() {
    let mut large = config();
    large.info.capacity = 1 << 30;
    let mut unit = LogicalUnit::new(large);
    assert!(unit.add_nexus(NEXUS, &nexus(7)));
    let _power_on = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
    let compare = |blocks| cdb(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, blocks]);
    let sixteen = |code, flags, [high, low]: [u8; 2]| {
        cdb(&[code, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low])
    };
    // A transfer is at most 512 blocks, a buffer of WRITE SAME 128.
    for (cdb, len, memory) in [
        (sixteen(0x8a, 0, [0, 9]), 9, 0),
        (sixteen(0x8e, 0x00, [0, 9]), 9, 0),
        (sixteen(0x8e, 0x02, [0, 9]), 9, 9),
        (sixteen(0x8f, 0x02, [0, 9]), 9, 9),
        (sixteen(0x8f, 0x06, [0x01, 0xff]), 1, 511),
        (sixteen(0x8f, 0x06, [0x02, 0x00]), 1, 512),
        (compare(9), 18, 9),
        (sixteen(0x8b, 0, [0, 9]), 9, 18),
        (sixteen(0x93, 0, [0, 127]), 1, 127),
        (sixteen(0x93, 0, [0, 128]), 1, 128),
        (sixteen(0x93, 0, [0, 129]), 1, 128),
    ] {
        let (task, step) = unit.handle_command(NEXUS, &cdb, len * 512);
        let Step::DataOut { len: asked, memory: held } = step else { panic!("{cdb:x?}: {step:?}") };
        assert_eq!((asked, held), (len * 512, memory * 512), "{cdb:x?}");
        unit.handle_abort(task);
    }
}

#[test]
fn what_is_compared_may_come_in_any_parts() {
    let data: Vec<u8> = (0..1024_u32).map(|at| (at % 251) as u8).collect();
    for cuts in [vec![1024], vec![1, 510, 2, 511], vec![512, 512], vec![700, 324]] {
        for wrong in [None, Some(0), Some(511), Some(512), Some(1023)] {
            let mut unit = LogicalUnit::new(config());
            assert!(unit.add_nexus(NEXUS, &nexus(7)));
            let _power_on = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
            let verify = cdb(&[0x2f, 0x02, 0, 0, 0, 1, 0, 0, 2]);
            let (mut task, _) = unit.handle_command(NEXUS, &verify, 1024);
            let _read = unit.handle_data_out(&mut task, Buf::copy_from(&data).into());
            let mut medium = data.clone();
            wrong.into_iter().for_each(|at: usize| medium[at] ^= 1);
            let mut rest = &medium[..];
            let parts = cuts.iter().map(|len| {
                let (part, behind) = rest.split_at(*len);
                rest = behind;
                Buf::copy_from(part)
            });
            let step = unit.handle_medium_done(&mut task, Ok(parts.collect()));
            let Step::Respond(response) = step else { panic!("{step:?}") };
            let told = Sense::decode(&response.sense).and_then(|sense| sense.information);
            assert_eq!(told, wrong.map(|at| 1 + at as u64 / 512), "{cuts:?} {wrong:?}");
        }
    }
}
