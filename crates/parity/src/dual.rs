//! P and Q over the data columns of a row, and what gives lost columns back.
//!
//! With data columns D0 to Dn-1: P is their XOR, Q the sum of 2^i times Di, in the field of
//! [`crate::field`] (H. P. Anvin, The mathematics of RAID-6). Columns are numbered as a row has
//! them: data, then P, then Q. Every column is a sum of the others times constants, so that
//! computing Q, a change of it by a difference, and every repair are [`combine`] with the
//! [`Weights`] of [`repair_weights`].

use netraid_block::narrow;

use crate::field::{self, coefficient, inverse, multiply};

/// Most data columns of a row.
pub const DATA_COLUMNS_MAX: usize = 62;

/// What each column of a row counts in a sum: data columns, then P, then Q; 0 for those that are
/// not needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights([u8; DATA_COLUMNS_MAX + 2]);

impl Weights {
    /// The weight of a column.
    ///
    /// # Panics
    /// When a row cannot have that column.
    #[must_use]
    pub const fn of(&self, column: usize) -> u8 {
        self.0[column]
    }
}

/// What to sum up to have column `wanted` of a row with `data_columns`, without using it or
/// `lost`, of which there may be one more.
///
/// # Panics
/// When there is no such column, or the two are the same.
#[must_use]
pub fn repair_weights(data_columns: usize, wanted: usize, lost: Option<usize>) -> Weights {
    assert!((1..=DATA_COLUMNS_MAX).contains(&data_columns), "{data_columns} data columns");
    assert!(wanted < data_columns + 2, "column {wanted} of {}", data_columns + 2);
    assert!(lost.is_none_or(|lost| lost < data_columns + 2 && lost != wanted), "lost {lost:?}");
    let (p, q) = (data_columns, data_columns + 1);
    let mut weights = [0; DATA_COLUMNS_MAX + 2];
    match (wanted, lost) {
        // Without P and the wanted one: all from Q.
        (wanted, Some(lost)) if lost == p && wanted < p => {
            from_q(&mut weights, data_columns, wanted);
        }
        (wanted, Some(lost)) if wanted < p && lost < p => {
            from_both(&mut weights, data_columns, wanted, lost);
        }
        (wanted, Some(lost)) if wanted == p && lost < p => {
            // P is the XOR of all data; the lost one of them comes from Q.
            from_q(&mut weights, data_columns, lost);
            (0..p).filter(|at| *at != lost).for_each(|at| weights[at] ^= 1);
        }
        (wanted, Some(lost)) if wanted == q && lost < p => {
            // Q is the weighted sum of all data; the lost one of them comes from P.
            let scale = data_coefficient(lost);
            weights[p] = scale;
            (0..p)
                .filter(|at| *at != lost)
                .for_each(|at| weights[at] = data_coefficient(at) ^ scale);
        }
        (wanted, _) if wanted == q => (0..p).for_each(|at| weights[at] = data_coefficient(at)),
        // P, or data without need of Q: the XOR of all the others.
        (wanted, _) => (0..=p).filter(|at| *at != wanted).for_each(|at| weights[at] = 1),
    }
    Weights(weights)
}

/// Data column `wanted` from Q and all other data.
fn from_q(weights: &mut [u8], data_columns: usize, wanted: usize) {
    let scale = inverse(data_coefficient(wanted));
    weights[data_columns + 1] = scale;
    for at in (0..data_columns).filter(|at| *at != wanted) {
        weights[at] = multiply(scale, data_coefficient(at));
    }
}

/// Data column `wanted` without data column `lost`: from P, Q and the rest. With x wanted and y
/// lost, x + y = P + rest and ax + by = Q + (rest weighted); so x = (b (x + y) + (ax + by)) / (a + b).
fn from_both(weights: &mut [u8], data_columns: usize, wanted: usize, lost: usize) {
    let (a, b) = (data_coefficient(wanted), data_coefficient(lost));
    let scale = inverse(a ^ b);
    weights[data_columns] = multiply(scale, b);
    weights[data_columns + 1] = scale;
    for at in (0..data_columns).filter(|at| *at != wanted && *at != lost) {
        weights[at] = multiply(scale, b ^ data_coefficient(at));
    }
}

fn data_coefficient(column: usize) -> u8 {
    // At most 61 by the asserts on every way in.
    coefficient(narrow(column))
}

/// Sets `p` to the XOR and `q` to the weighted sum of `sources`, data column 0 first, in one pass.
///
/// # Panics
/// When lengths differ.
pub fn p_and_q(p: &mut [u8], q: &mut [u8], sources: &[&[u8]]) {
    assert_eq!(p.len(), q.len(), "P and Q of one length");
    assert!(sources.iter().all(|source| source.len() == p.len()), "sources of one length");
    #[cfg(target_arch = "x86_64")]
    if crate::avx2::get() {
        // SAFETY: the processor has AVX2, as just asked; the function has no other precondition.
        #[allow(unsafe_code)]
        unsafe {
            p_and_q_avx2(p, q, sources);
        }
        return;
    }
    p_and_q_kernel(p, q, sources);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn p_and_q_avx2(p: &mut [u8], q: &mut [u8], sources: &[&[u8]]) {
    p_and_q_kernel(p, q, sources);
}

/// Bytes that are summed up over all sources before the next are begun: they stay in registers.
const LANE: usize = 128;

#[inline(always)]
fn p_and_q_kernel(p: &mut [u8], q: &mut [u8], sources: &[&[u8]]) {
    let len = p.len();
    let mut at = 0;
    while at + LANE <= len {
        let (mut sum, mut weighted) = ([0_u8; LANE], [0_u8; LANE]);
        // Horner's rule, from the last column down.
        for source in sources.iter().rev() {
            let source = &source[at..at + LANE];
            for lane in 0..LANE {
                sum[lane] ^= source[lane];
                weighted[lane] = field::double(weighted[lane]) ^ source[lane];
            }
        }
        p[at..at + LANE].copy_from_slice(&sum);
        q[at..at + LANE].copy_from_slice(&weighted);
        at += LANE;
    }
    for at in at..len {
        let (mut sum, mut weighted) = (0, 0);
        for source in sources.iter().rev() {
            sum ^= source[at];
            weighted = field::double(weighted) ^ source[at];
        }
        (p[at], q[at]) = (sum, weighted);
    }
}

/// Sets `dst` to the sum of `sources`, each times its weight.
///
/// # Panics
/// When lengths differ.
pub fn combine(dst: &mut [u8], sources: &[(u8, &[u8])]) {
    dst.fill(0);
    sources.iter().for_each(|(weight, source)| add_scaled(dst, *weight, source));
}

/// Adds `weight` times `source` to `dst`.
///
/// # Panics
/// When lengths differ.
pub fn add_scaled(dst: &mut [u8], weight: u8, source: &[u8]) {
    assert_eq!(dst.len(), source.len(), "a source of the sum's length");
    match weight {
        0 => {}
        1 => crate::add(dst, source),
        _ => {
            #[cfg(target_arch = "x86_64")]
            if crate::avx2::get() {
                // SAFETY: the processor has AVX2, as just asked, which is all that it asks for.
                #[allow(unsafe_code)]
                unsafe {
                    add_scaled_avx2(dst, weight, source);
                }
                return;
            }
            add_scaled_kernel(dst, &products(weight), source);
        }
    }
}

/// Products of a weight with all values of the lower, and of the upper, half of a byte.
fn products(weight: u8) -> [[u8; 16]; 2] {
    let mut products = [[0; 16]; 2];
    for half in 0..16_u8 {
        products[0][usize::from(half)] = multiply(weight, half);
        products[1][usize::from(half)] = multiply(weight, half << 4);
    }
    products
}

fn add_scaled_kernel(dst: &mut [u8], [low, high]: &[[u8; 16]; 2], source: &[u8]) {
    for (sum, byte) in dst.iter_mut().zip(source) {
        *sum ^= low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)];
    }
}

/// Looks 32 products up at once, by two shuffles of 16 entries.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_scaled_avx2(dst: &mut [u8], weight: u8, source: &[u8]) {
    use core::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
        _mm256_loadu_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi16,
        _mm256_storeu_si256, _mm256_xor_si256,
    };
    let products = products(weight);
    let table = |products: &[u8; 16]| {
        // SAFETY: the array has the 16 bytes that are loaded; the load needs no alignment.
        #[allow(unsafe_code)]
        let entries = unsafe { _mm_loadu_si128(products.as_ptr().cast::<__m128i>()) };
        _mm256_broadcastsi128_si256(entries)
    };
    let [low, high] = [table(&products[0]), table(&products[1])];
    let half = _mm256_set1_epi8(15);
    let mut sums = dst.chunks_exact_mut(32);
    let mut bytes = source.chunks_exact(32);
    for (sum, bytes) in sums.by_ref().zip(bytes.by_ref()) {
        // SAFETY: both chunks have 32 bytes; loads and stores need no alignment.
        #[allow(unsafe_code)]
        unsafe {
            let source = _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>());
            let lower = _mm256_and_si256(source, half);
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(source), half);
            let product =
                _mm256_xor_si256(_mm256_shuffle_epi8(low, lower), _mm256_shuffle_epi8(high, upper));
            let old = _mm256_loadu_si256(sum.as_ptr().cast::<__m256i>());
            _mm256_storeu_si256(sum.as_mut_ptr().cast::<__m256i>(), _mm256_xor_si256(old, product));
        }
    }
    add_scaled_kernel(sums.into_remainder(), &products, bytes.remainder());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    /// A row by the definition: data, P, Q.
    fn row(data: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let len = data[0].len();
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        for (column, bytes) in data.iter().enumerate() {
            for at in 0..len {
                p[at] ^= bytes[at];
                q[at] ^= multiply(data_coefficient(column), bytes[at]);
            }
        }
        data.iter().cloned().chain([p, q]).collect()
    }

    fn any_row() -> impl Strategy<Value = Vec<Vec<u8>>> {
        (1..12_usize, 0..300_usize).prop_flat_map(|(columns, len)| {
            prop::collection::vec(prop::collection::vec(any::<u8>(), len), columns)
                .prop_map(|data| row(&data))
        })
    }

    fn sum_up(row: &[Vec<u8>], weights: &Weights) -> Vec<u8> {
        let mut sum = vec![1; row[0].len()];
        let sources: Vec<(u8, &[u8])> =
            row.iter().enumerate().map(|(at, bytes)| (weights.of(at), &bytes[..])).collect();
        combine(&mut sum, &sources);
        sum
    }

    proptest! {
        #[test]
        fn p_and_q_are_those_of_the_definition(row in any_row()) {
            let data: Vec<&[u8]> = row[..row.len() - 2].iter().map(|bytes| &bytes[..]).collect();
            let len = data[0].len();
            let (mut p, mut q) = (vec![1; len], vec![2; len]);
            p_and_q(&mut p, &mut q, &data);
            prop_assert_eq!([&p, &q], [&row[data.len()], &row[data.len() + 1]]);
        }

        #[test]
        fn every_column_comes_back_without_itself_and_any_other(row in any_row()) {
            let data_columns = row.len() - 2;
            for wanted in 0..row.len() {
                for lost in (0..row.len()).map(Some).chain([None]) {
                    if lost == Some(wanted) {
                        continue;
                    }
                    let weights = repair_weights(data_columns, wanted, lost);
                    prop_assert_eq!(weights.of(wanted), 0);
                    prop_assert!(lost.is_none_or(|lost| weights.of(lost) == 0));
                    prop_assert_eq!(&sum_up(&row, &weights), &row[wanted], "{} {:?}", wanted, lost);
                }
            }
        }

        #[test]
        fn a_difference_of_data_changes_q_by_its_weight(
            row_before in any_row(), column in any::<prop::sample::Index>(), change in any::<u8>(),
        ) {
            let data_columns = row_before.len() - 2;
            let column = column.index(data_columns);
            let mut data = row_before[..data_columns].to_vec();
            let difference = vec![change; data[0].len()];
            data[column].iter_mut().for_each(|byte| *byte ^= change);
            let mut q = row_before[data_columns + 1].clone();
            let weight = repair_weights(data_columns, data_columns + 1, None).of(column);
            add_scaled(&mut q, weight, &difference);
            prop_assert_eq!(&q, &row(&data)[data_columns + 1]);
        }

        #[test]
        fn shuffles_give_the_products_of_the_tables(
            source in prop::collection::vec(any::<u8>(), 0..200), weight: u8, start: u8,
        ) {
            let (mut fast, mut slow) = (vec![start; source.len()], vec![start; source.len()]);
            add_scaled(&mut fast, weight, &source);
            for (sum, byte) in slow.iter_mut().zip(&source) {
                *sum ^= multiply(weight, *byte);
            }
            prop_assert_eq!(fast, slow);
        }
    }

    #[test]
    fn one_data_column_is_its_own_p_and_q() {
        let row = row(&[vec![7, 9]]);
        assert_eq!(row[1], [7, 9]);
        assert_eq!(row[2], [7, 9]);
    }

    #[test]
    fn the_widest_row_has_weights_for_every_pair() {
        for wanted in 0..DATA_COLUMNS_MAX {
            for lost in (0..DATA_COLUMNS_MAX).filter(|lost| *lost != wanted) {
                let weights = repair_weights(DATA_COLUMNS_MAX, wanted, Some(lost));
                assert_ne!(weights.of(DATA_COLUMNS_MAX), 0);
                assert_eq!((weights.of(wanted), weights.of(lost)), (0, 0));
            }
        }
        assert!(std::panic::catch_unwind(|| repair_weights(4, 1, Some(1))).is_err());
        assert!(std::panic::catch_unwind(|| repair_weights(4, 6, None)).is_err());
        assert!(std::panic::catch_unwind(|| repair_weights(63, 0, None)).is_err());
    }
}
