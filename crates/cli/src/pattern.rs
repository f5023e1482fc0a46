//! Incompressible data that can be made again from a seed and a place, so that whoever reads it
//! back needs no copy of it.

/// Bytes that are made as one piece.
pub(crate) const BLOCK_LEN: usize = 4096;

/// Fills `bytes`, which lie at `offset` (a multiple of [`BLOCK_LEN`]), from `seed`.
pub(crate) fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    for (block, index) in bytes.chunks_mut(BLOCK_LEN).zip(offset / BLOCK_LEN as u64..) {
        let mut state = mix(seed ^ mix(index));
        // Words of a fixed length: the compiler keeps several in the making at once.
        let (words, rest) = block.as_chunks_mut();
        for word in words {
            state = state.wrapping_add(GOLDEN);
            *word = mix(state).to_le_bytes();
        }
        let last = mix(state.wrapping_add(GOLDEN)).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The first place where `bytes`, which lie at `offset`, differ from what [`fill`] makes.
pub(crate) fn first_difference(seed: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut expected = [0; BLOCK_LEN];
    let mut at = offset;
    for block in bytes.chunks(BLOCK_LEN) {
        let expected = &mut expected[..block.len()];
        fill(seed, at, expected);
        if block != expected {
            let place = block.iter().zip(expected).position(|(found, wanted)| found != wanted);
            return Some(at + place.unwrap_or_default() as u64);
        }
        at += BLOCK_LEN as u64;
    }
    None
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finisher of the SplitMix64 generator: a bijection of 64 bits that leaves no pattern.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_can_be_made_alone() {
        let mut whole = vec![0; 4 * BLOCK_LEN];
        fill(7, 8192, &mut whole);
        let mut part = vec![0; BLOCK_LEN];
        fill(7, 8192 + 2 * 4096, &mut part);
        assert_eq!(part, whole[2 * BLOCK_LEN..3 * BLOCK_LEN]);
        assert_eq!(first_difference(7, 8192, &whole), None);
        whole[5000] ^= 1;
        assert_eq!(first_difference(7, 8192, &whole), Some(8192 + 5000));
        assert!(first_difference(8, 8192, &whole).is_some());
        let mut odd = [0; 21];
        fill(7, 8192, &mut odd);
        assert_eq!(odd, whole[..21]);
    }

    #[test]
    fn bytes_are_spread_evenly() {
        let mut bytes = vec![0; 1 << 20];
        fill(1, 0, &mut bytes);
        let mut counts = [0_u32; 256];
        bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        // 4096 expected of each; six standard deviations are 384.
        assert!(counts.iter().all(|count| count.abs_diff(4096) < 384), "{counts:?}");
    }
}
