//! WRITE SAME, UNMAP and GET LBA STATUS.

use super::*;

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
