//! CRC32C (Castagnoli), by the processor's own instructions where a program asks for them by the
//! feature `hardware-crc`: the crate that knows them needs the standard library.

/// The checksum of the bytes that gave `crc`, followed by `bytes`; that of none is 0.
#[cfg(feature = "hardware-crc")]
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() >= LONG && wide::is_right() {
        return wide::append(crc, bytes);
    }
    crc32c::crc32c_append(crc, bytes)
}

/// From so many bytes on, wide instructions are faster.
#[cfg(feature = "hardware-crc")]
const LONG: usize = 1024;

/// The way by wide carry-less multiplication: twice as fast, and another one for each kind of
/// processor. What is stored depends on it, so each program has it checked before it uses it.
#[cfg(feature = "hardware-crc")]
mod wide {
    use core::sync::atomic::{AtomicU8, Ordering};

    use crc_fast::{CrcAlgorithm, Digest};

    const UNKNOWN: u8 = 0;
    const RIGHT: u8 = 1;
    const WRONG: u8 = 2;

    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

    /// Whether it computes on this processor what the plain way does.
    pub(super) fn is_right() -> bool {
        match STATE.load(Ordering::Relaxed) {
            UNKNOWN => {
                let right = check();
                STATE.store(if right { RIGHT } else { WRONG }, Ordering::Relaxed);
                right
            }
            state => state == RIGHT,
        }
    }

    pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
        // What goes in and what comes out is inverted, so that leading zeros count.
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
        digest.update(bytes);
        let [.., a, b, c, d] = digest.finalize().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    #[cold]
    fn check() -> bool {
        let mut bytes = [0_u8; 4096 + 64];
        let mut word = 1_u32;
        for byte in &mut bytes {
            // Any sequence that is no pattern will do.
            word = word.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
            *byte = word.to_le_bytes()[3];
        }
        let runs = [0..4096, 1..4097, 63..4096 + 63, 8..8 + super::LONG, 5..3000];
        runs.into_iter().all(|run| {
            let bytes = &bytes[run];
            [0, 0x1234_5678]
                .iter()
                .all(|crc| append(*crc, bytes) == crc32c::crc32c_append(*crc, bytes))
        })
    }
}

/// The checksum of the bytes that gave `crc`, followed by `bytes`; that of none is 0.
#[cfg(not(feature = "hardware-crc"))]
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    static CRC: crc::Crc<u32, crc::Table<16>> =
        crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);
    // What a digest begins with is the register, which is the checksum inverted and reflected.
    let mut digest = CRC.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::append;
    use std::vec::Vec;

    #[test]
    fn checksums_are_those_of_the_standard_however_the_bytes_are_cut() {
        // RFC 7143 A.4: 32 bytes of zeros, of ones, and counting up.
        assert_eq!(append(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(append(0, &[0xff; 32]), 0x62a8_ab43);
        let counting: [u8; 32] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        for cut in 0..=32 {
            let (one, two) = counting.split_at(cut);
            assert_eq!(append(append(0, one), two), 0x46dd_794e);
        }
        assert_eq!(append(0, &[]), 0);
    }

    #[test]
    fn long_runs_have_the_checksum_of_their_parts() {
        let bytes: Vec<u8> = (0..20_000_u32)
            .map(|at| (at.wrapping_mul(0x9e37_79b1) >> 21).to_le_bytes()[0])
            .collect();
        for (from, len) in [(0, 4096), (1, 4096), (7, 1024), (0, 1023), (3, 16_384), (9, 5001)] {
            let run = &bytes[from..from + len];
            let parts = run.chunks(100).fold(0, append);
            assert_eq!(append(0, run), parts, "{len} bytes from {from}");
            for cut in [1, 1024, 2000] {
                assert_eq!(run.chunks(cut).fold(0, append), parts, "{len} bytes in parts of {cut}");
            }
        }
    }

    #[cfg(feature = "hardware-crc")]
    #[test]
    fn wide_instructions_are_right_here() {
        assert!(super::wide::is_right());
    }
}
