//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL.

use super::*;

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
fn a_read_that_was_kept_back_is_refused_once_the_medium_has_stopped() {
    let mut bench = Bench::new();
    let (mut task, step) = bench.unit.handle_command(NEXUS, &build::read(extent(0, 1), false), 0);
    let Step::Submit(request) = step else { panic!("{step:?}") };
    let step = bench.unit.handle_kept_back(&mut task, request);
    let Step::Submit(request) = step else { panic!("{step:?}") };
    bench.good(&cdb(&[0x1b, 0, 0, 0, 0]), &[]);
    let step = bench.unit.handle_kept_back(&mut task, request);
    let Step::Respond(Response { status, .. }) = step else { panic!("{step:?}") };
    assert_eq!(status, Status::CheckCondition);
}
