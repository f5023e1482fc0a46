//! The limits of VPD page B0h, each on both sides (SBC-3, section 6.6.4).

use super::*;
use crate::{cdb::length_field, limits::BlockLimits};

/// A large medium of 4096-byte blocks, of which nothing is kept.
struct Wide {
    unit: LogicalUnit,
    limits: BlockLimits,
}

impl Wide {
    fn new() -> Self {
        let mut wide = config();
        wide.info.block_len = 4096;
        wide.info.capacity = 1 << 40;
        wide.info.max_transfer_len = 40 * 4096;
        wide.atomic_len = 7 * 4096;
        let mut unit = LogicalUnit::new(wide);
        assert!(unit.add_nexus(NEXUS, &nexus(7)));
        let _power_on = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
        let (_, step) = unit.handle_command(NEXUS, &build::inquiry(Some(0xb0), 255), 0);
        let Step::Respond(page) = step else { panic!("{step:?}") };
        let limits = BlockLimits::decode(&page.data_in.to_contiguous()).unwrap();
        Self { unit, limits }
    }

    /// Whether a command is taken; else the byte of its CDB that is wrong.
    fn take(&mut self, cdb: &[u8], blocks_out: u32) -> Result<(), Option<u16>> {
        let (task, step) = self.unit.handle_command(NEXUS, cdb, blocks_out * 4096);
        self.unit.handle_abort(task);
        match step {
            Step::DataOut { .. } | Step::Submit(_) => Ok(()),
            Step::Respond(response) => {
                let sense = Sense::decode(&response.sense).unwrap();
                assert_eq!(sense.additional, Additional::INVALID_FIELD_IN_CDB, "{cdb:x?}");
                Err(sense.field.map(|field| field.byte))
            }
            step @ (Step::SubmitTo { .. } | Step::Wait | Step::Persist(_) | Step::Abort { .. }) => {
                panic!("{step:?}")
            }
        }
    }
}

/// A CDB of this operation code, flags in byte 1, and number of blocks.
fn of_blocks(opcode: u8, flags: u8, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    let at = usize::from(length_field(opcode));
    let [.., high, low] = blocks.to_be_bytes();
    match opcode {
        0x08 | 0x0a | 0x89 => cdb[at] = low,
        0x28..=0x5f | 0x9c => cdb[at..at + 2].copy_from_slice(&[high, low]),
        _ => cdb[at..at + 4].copy_from_slice(&blocks.to_be_bytes()),
    }
    cdb
}

#[test]
fn transfers_are_bounded() {
    let mut wide = Wide::new();
    let most = wide.limits.transfer_max;
    assert_eq!(most, 40);
    for (opcode, flags) in [
        (0x08, 0),
        (0x28, 0),
        (0xa8, 0),
        (0x88, 0),
        (0x0a, 0),
        (0x2a, 0),
        (0xaa, 0),
        (0x8a, 0),
        (0x2e, 0),
        (0xae, 2),
        (0x8e, 0),
        (0x2f, 0),
        (0xaf, 2),
        (0x8f, 6),
        (0x8b, 0),
    ] {
        // VERIFY, of which no block or one is sent, is a transfer too (SBC-3, section 6.6.4).
        assert_eq!(wide.take(&of_blocks(opcode, flags, most), most), Ok(()), "{opcode:#x}");
        let refused = wide.take(&of_blocks(opcode, flags, most + 1), most + 1);
        assert_eq!(refused, Err(Some(length_field(opcode))), "{opcode:#x}");
    }
}

#[test]
fn comparing_and_writing_is_bounded() {
    let mut wide = Wide::new();
    let most = u32::from(wide.limits.compare_and_write_max);
    assert_eq!(most, 40, "no more than a transfer");
    assert_eq!(wide.take(&of_blocks(0x89, 0, most), most * 2), Ok(()));
    assert_eq!(wide.take(&of_blocks(0x89, 0, most + 1), most * 2 + 2), Err(Some(13)));
    let unit = LogicalUnit::new(config());
    assert_eq!(unit.compare_and_write_max(), 255, "what its CDB can say");
}

#[test]
fn atomic_writes_are_bounded() {
    let mut wide = Wide::new();
    let most = wide.limits.atomic_max;
    assert_eq!(most, 7);
    assert_eq!(wide.take(&of_blocks(0x9c, 0, most), most), Ok(()));
    assert_eq!(wide.take(&of_blocks(0x9c, 0, most + 1), most + 1), Err(Some(12)));
}

#[test]
fn writing_the_same_is_bounded() {
    let mut wide = Wide::new();
    let most = u32::try_from(wide.limits.write_same_max).unwrap();
    for (flags, blocks_out) in [(0x00, 1), (0x08, 1), (0x01, 0), (0x09, 0)] {
        assert_eq!(wide.take(&of_blocks(0x93, flags, most), blocks_out), Ok(()));
        let refused = wide.take(&of_blocks(0x93, flags, most + 1), blocks_out);
        assert_eq!(refused, Err(Some(10)), "{flags:#x}");
    }
    // All that its CDB can say.
    assert_eq!(wide.take(&of_blocks(0x41, 0, 0xffff), 1), Ok(()));
}

#[test]
fn the_ranges_of_an_unmap_are_counted() {
    let mut bench = Bench::new();
    let limits = bench.good(&build::inquiry(Some(0xb0), 255), &[]);
    let most = BlockLimits::decode(&limits).unwrap().unmap_extents_max as usize;
    for (count, fits) in [(most, true), (most + 1, false)] {
        let list = build::unmap_list(&vec![extent(1, 1); count]);
        let response = bench.run(&build::unmap(u16::try_from(list.len()).unwrap()), &list);
        assert_eq!(response.status == Status::Good, fits, "{count}");
    }
    assert_eq!(bench.submitted.len(), most);
}

#[test]
fn thin_provisioning_is_told_alike_everywhere() {
    for (can_discard, discard_zeroes) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let mut thin = config();
        thin.info.can_discard = can_discard;
        thin.discard_zeroes = discard_zeroes;
        let mut bench = Bench::with(thin);
        let provisioning = bench.good(&build::inquiry(Some(0xb2), 255), &[])[5];
        let capacity = bench.good(&build::read_capacity_16(32), &[])[14];
        let limits = bench.good(&build::inquiry(Some(0xb0), 255), &[]);
        let limits = BlockLimits::decode(&limits).unwrap();
        let (all, zeros) = (can_discard, can_discard && discard_zeroes);
        // LBPU, LBPWS and LBPWS10; LBPME and LBPRZ (SBC-3, sections 6.6.6 and 5.16).
        assert_eq!((provisioning & 0xe0 == 0xe0, provisioning & 0x1c == 0x04), (all, zeros));
        assert_eq!((capacity & 0x80 != 0, capacity & 0x40 != 0), (all, zeros));
        assert_eq!((limits.unmap_blocks_max > 0, limits.unmap_extents_max > 0), (all, all));
        let list = build::unmap_list(&[extent(1, 1)]);
        let unmap = bench.run(&build::unmap(24), &list).status;
        let same = bench.run(&build::write_same_16(extent(1, 1), true), &[0; 512]).status;
        assert_eq!((unmap == Status::Good, same == Status::Good), (all, all));
    }
}
