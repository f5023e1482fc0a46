//! Any commands with any data.

use proptest::prelude::*;

use super::*;

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
