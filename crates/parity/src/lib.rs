//! Parity over many sources in one pass, with the widest vectors that the processor has: XOR,
//! and P and Q ([`dual`]); and checksums ([`crc`]).
//!
//! Invariant: every kernel gives the bytes of its plain definition ([`reference`], [`field`]). No
//! allocation; buffers need no alignment.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod crc;
pub mod dual;
pub mod field;

/// Sources that one pass over the destination takes; more are folded in further passes.
const SOURCES_PER_PASS: usize = 8;

/// Sets `dst` to the XOR of all `sources`; to zeros when there are none.
///
/// # Panics
/// When a source's length differs from the destination's.
pub fn xor(dst: &mut [u8], sources: &[&[u8]]) {
    assert!(sources.iter().all(|source| source.len() == dst.len()), "sources of one length");
    let mut passes = sources.chunks(SOURCES_PER_PASS);
    match passes.next() {
        None => dst.fill(0),
        Some(first) => pass::<true>(dst, first),
    }
    passes.for_each(|more| pass::<false>(dst, more));
}

/// Adds `source` to `dst`.
pub(crate) fn add(dst: &mut [u8], source: &[u8]) {
    pass::<false>(dst, &[source]);
}

/// The byte-by-byte definition of [`xor`], to test the kernels against.
///
/// # Panics
/// When a source is shorter than the destination.
pub fn reference(dst: &mut [u8], sources: &[&[u8]]) {
    for (at, byte) in dst.iter_mut().enumerate() {
        *byte = sources.iter().fold(0, |sum, source| sum ^ source[at]);
    }
}

/// One pass over up to eight sources; `FIRST` replaces the destination instead of adding to it.
fn pass<const FIRST: bool>(dst: &mut [u8], sources: &[&[u8]]) {
    match *sources {
        [a] => dispatch::<1, FIRST>(dst, [a]),
        [a, b] => dispatch::<2, FIRST>(dst, [a, b]),
        [a, b, c] => dispatch::<3, FIRST>(dst, [a, b, c]),
        [a, b, c, d] => dispatch::<4, FIRST>(dst, [a, b, c, d]),
        [a, b, c, d, e] => dispatch::<5, FIRST>(dst, [a, b, c, d, e]),
        [a, b, c, d, e, f] => dispatch::<6, FIRST>(dst, [a, b, c, d, e, f]),
        [a, b, c, d, e, f, g] => dispatch::<7, FIRST>(dst, [a, b, c, d, e, f, g]),
        [a, b, c, d, e, f, g, h] => dispatch::<8, FIRST>(dst, [a, b, c, d, e, f, g, h]),
        _ => unreachable!("chunks of one to eight sources"),
    }
}

#[cfg(target_arch = "x86_64")]
cpufeatures::new!(avx2, "avx2");

fn dispatch<const N: usize, const FIRST: bool>(dst: &mut [u8], sources: [&[u8]; N]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::get() {
        // SAFETY: the processor has AVX2, as just asked; the function has no other precondition.
        #[allow(unsafe_code)]
        unsafe {
            kernel_avx2::<N, FIRST>(dst, sources);
        }
        return;
    }
    kernel::<N, FIRST>(dst, sources);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn kernel_avx2<const N: usize, const FIRST: bool>(dst: &mut [u8], sources: [&[u8]; N]) {
    kernel::<N, FIRST>(dst, sources);
}

/// A plain loop that the compiler turns into vector code of the enclosing function's features.
#[inline(always)]
fn kernel<const N: usize, const FIRST: bool>(dst: &mut [u8], sources: [&[u8]; N]) {
    let len = dst.len();
    let sources = sources.map(|source| &source[..len]);
    for at in 0..len {
        let mut sum = if FIRST { 0 } else { dst[at] };
        for source in sources {
            sum ^= source[at];
        }
        dst[at] = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn kernels_agree_with_the_reference(
            bytes in prop::collection::vec(any::<u8>(), 0..6000),
            count in 0_usize..20,
            skew in 0_usize..64,
        ) {
            let len = (bytes.len() / count.max(1)).saturating_sub(skew);
            let sources: Vec<&[u8]> = (0..count).map(|at| &bytes[at * len..(at + 1) * len]).collect();
            let (mut fast, mut slow) = (std::vec![1; len], std::vec![2; len]);
            xor(&mut fast, &sources);
            reference(&mut slow, &sources);
            prop_assert_eq!(fast, slow);
        }
    }
}
