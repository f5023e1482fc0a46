//! What a nexus sees that does not see the device as it is.

use super::*;
use crate::cdb::Extent;

/// 16 blocks from block 8 on, and 16 more from block 100 on.
fn view(read_only: bool) -> View {
    let info = DeviceInfo { capacity: 32 * 512, read_only, can_discard: false, ..config().info };
    View { info, ranges: vec![8 * 512..24 * 512, 100 * 512..116 * 512] }
}

fn bench(read_only: bool) -> Bench {
    let mut bench = Bench::with(config());
    bench.unit.set_view(NEXUS, view(read_only));
    let (_, step) = bench.unit.handle_command(OTHER, &build::test_unit_ready(), 0);
    assert!(matches!(step, Step::Respond(_)));
    bench
}

fn sense(step: Step) -> Option<Additional> {
    let Step::Respond(response) = step else { return None };
    Sense::decode(&response.sense).map(|sense| sense.additional)
}

fn read(lba: u64, blocks: u32) -> Vec<u8> {
    build::read(Extent { lba, blocks }, false).to_vec()
}

#[test]
fn each_nexus_has_its_own_capacity_and_rights() {
    let mut unit = bench(true).unit;
    let write = build::write(Extent { lba: 0, blocks: 1 }, false, false);
    for (nexus, last, writes) in [(NEXUS, 31, false), (OTHER, BLOCKS - 1, true)] {
        for (lba, good) in [(last, true), (last + 1, false)] {
            let (_, step) = unit.handle_command(nexus, &read(lba, 1), 0);
            assert_eq!(matches!(step, Step::Submit(_)), good, "{nexus:?} block {lba}");
        }
        let (_, step) = unit.handle_command(nexus, &write, 512);
        assert_eq!(matches!(step, Step::DataOut { .. }), writes, "{nexus:?}: {step:?}");
        let unmap = build::unmap(24);
        let (_, step) = unit.handle_command(nexus, &unmap, 24);
        assert_eq!(matches!(step, Step::DataOut { .. }), writes, "{nexus:?}: {step:?}");
    }
    // Who is lost is not who comes with the same number.
    unit.remove_nexus(NEXUS);
    assert!(unit.add_nexus(NEXUS, &nexus(7)));
    let (_, step) = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
    assert_eq!(sense(step), Some(Additional::NEXUS_LOSS));
    let (_, step) = unit.handle_command(NEXUS, &read(BLOCKS - 1, 1), 0);
    assert!(matches!(step, Step::Submit(_)), "{step:?}");
}

/// A comparison that began keeps writes of its bytes away, whoever sees them where.
#[test]
fn writes_meet_where_they_are_on_the_device() {
    for (lba, meets) in [(99, false), (100, true), (107, true), (108, false), (0, false)] {
        let mut unit = bench(false).unit;
        // Blocks 16 to 23 of what is seen are blocks 100 to 107 of the device.
        let mut compare = [0; 16];
        (compare[0], compare[9], compare[13]) = (0x89, 16, 8);
        let (mut task, step) = unit.handle_command(NEXUS, &compare, 8 * 1024);
        assert!(matches!(step, Step::DataOut { .. }), "{step:?}");
        let data: SgList = Buf::copy_from(&[0; 8 * 1024]).into();
        let step = unit.handle_data_out(&mut task, data);
        assert!(matches!(step, Step::Submit(_)), "{step:?}");
        let write = build::write(Extent { lba, blocks: 1 }, false, false);
        let (mut other, step) = unit.handle_command(OTHER, &write, 512);
        assert!(matches!(step, Step::DataOut { .. }), "{step:?}");
        let step = unit.handle_data_out(&mut other, Buf::copy_from(&[1; 512]).into());
        let busy = matches!(&step, Step::Respond(Response { status: Status::Busy, .. }));
        assert_eq!(busy, meets, "block {lba}: {step:?}");
    }
}
