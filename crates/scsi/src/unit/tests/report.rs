//! What is told of the unit and its commands.

use super::*;

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

/// Reporting option 011b (SPC-4, section 6.34.1) ignored a service action where there are none.
#[test]
fn a_service_action_of_a_command_that_has_none_is_not_supported() {
    let mut bench = Bench::new();
    let mut either = |opcode: u8, action: u8| {
        bench.good(&cdb(&[0xa3, 0x0c, 3, opcode, 0, action, 0, 0, 1, 0]), &[])[1] & 0x07
    };
    // TEST UNIT READY; READ CAPACITY (16), whose is 10h.
    assert_eq!((either(0x00, 0), either(0x00, 1)), (3, 1));
    assert_eq!((either(0x9e, 0x10), either(0x9e, 0x11), either(0x9e, 0)), (3, 1, 1));
}

#[test]
fn what_a_device_cannot_do_is_neither_reported_nor_taken() {
    let plain = UnitConfig {
        info: DeviceInfo { can_discard: false, ..config().info },
        atomic_len: 0,
        can_sanitize: false,
        ..config()
    };
    let sanitizes = UnitConfig { can_sanitize: true, ..plain.clone() };
    let unknown = (Additional::INVALID_COMMAND_OPERATION_CODE, None);
    // UNMAP, WRITE ATOMIC (16), SANITIZE: OVERWRITE and BLOCK ERASE.
    for (config, opcode, action, refused) in [
        (plain.clone(), 0x42, None, Some(unknown)),
        (plain.clone(), 0x9c, None, Some(unknown)),
        (plain.clone(), 0x48, Some(0x01), Some(unknown)),
        (plain, 0x48, Some(0x02), Some(unknown)),
        (sanitizes, 0x48, Some(0x02), Some((Additional::INVALID_FIELD_IN_CDB, Some(1)))),
        (config(), 0x42, None, None),
        (config(), 0x9c, None, None),
        (config(), 0x48, Some(0x02), None),
    ] {
        let mut bench = Bench::with(config);
        let byte = action.unwrap_or(0);
        let report = cdb(&[0xa3, 0x0c, 3, opcode, 0, byte, 0, 0, 1, 0]);
        let supported = bench.good(&report, &[])[1] & 0x07 == 3;
        let response = bench.run(&cdb(&[opcode, byte]), &[]);
        let sense = Sense::decode(&response.sense);
        let told = sense.map(|sense| (sense.additional, sense.field.map(|field| field.byte)));
        assert_eq!((supported, told), (refused.is_none(), refused), "{opcode:#x} {action:?}");
    }
}
