//! What a hostile peer may send, or a disk hold, and what has to hold all the same. One module a fuzz target, each
//! with one function `run` that takes an input and panics on a finding. `cargo xtask fuzz` runs
//! them by libFuzzer, through the programs in `targets/`; `tests/seeds.rs` runs the kept seeds.
//!
//! An input is read as a list of operations by `arbitrary`, so that a changed byte is another
//! conversation and seldom garbage. The harnesses use public interfaces only, and drive the
//! machines as the shells do.

pub mod array_labels;
pub mod codecs;
pub mod control_requests;
pub mod initiator_session;
pub mod logged_media;
pub mod nbd;
pub mod scsi_device;
pub mod stored_state;
pub mod target_session;
pub mod token;
mod wire;

use std::ops::Range;

use arbitrary::{Arbitrary, Unstructured};

/// Reads `T`s from an input until it is used up, at most `max`.
fn operations<'a, T: Arbitrary<'a>>(
    input: &'a [u8],
    max: usize,
) -> impl Iterator<Item = T> + use<'a, T> {
    let mut source = Unstructured::new(input);
    std::iter::from_fn(move || if source.is_empty() { None } else { source.arbitrary().ok() })
        .take(max)
}

/// The byte at `offset` of the data of the command with this tag: different for each, so that a
/// byte in a wrong place is seen.
fn pattern(tag: u32, offset: usize) -> u8 {
    let mixed = (tag ^ (offset as u32).wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b);
    (mixed >> 24) as u8 ^ offset as u8
}

/// The bytes that a CDB names, read here independently of the machine.
fn named(cdb: &[u8; 16], block_len: u64, capacity: u64) -> Range<u64> {
    let be = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let (lba, blocks) = match cdb[0] >> 5 {
        0 => (be(&cdb[1..4]) & 0x1f_ffff, if cdb[4] == 0 { 256 } else { u64::from(cdb[4]) }),
        1 | 2 => (be(&cdb[2..6]), be(&cdb[7..9])),
        5 => (be(&cdb[2..6]), be(&cdb[6..10])),
        _ if cdb[0] == 0x89 => (be(&cdb[2..10]), u64::from(cdb[13])),
        _ if cdb[0] == 0x9c => (be(&cdb[2..10]), be(&cdb[12..14])),
        _ => (be(&cdb[2..10]), be(&cdb[10..14])),
    };
    let start = lba.saturating_mul(block_len);
    // WRITE SAME of no blocks means all that follow (SBC-3, section 5.44).
    let to_the_end = matches!(cdb[0], 0x41 | 0x93) && blocks == 0;
    let end = lba.saturating_add(blocks).saturating_mul(block_len);
    start..if to_the_end { capacity } else { end }
}
