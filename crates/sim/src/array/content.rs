//! What the workload writes: sectors that say which write they come from, and where they belong,
//! so that whatever is read names its origin.

use netraid_block::{Buf, BufMut, SgList, narrow};

/// Bytes of a sector, the smallest thing that is written.
pub const SECTOR_LEN: usize = 512;
/// Sectors of a block of the volume.
pub const SECTORS_PER_BLOCK: u64 = 8;

/// Which write a sector comes from; [`WriteId::ZEROES`] are zeros, whoever wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u32);

impl WriteId {
    /// Zeros.
    pub const ZEROES: Self = Self(0);
}

/// The bytes of a write of `count` sectors from `first` on.
#[must_use]
pub fn make(write: WriteId, first: u64, count: u64) -> Buf {
    let mut bytes = BufMut::zeroed(narrow::<_, usize>(count) * SECTOR_LEN);
    for (sector, bytes) in (first..).zip(bytes.chunks_exact_mut(SECTOR_LEN)) {
        for (word, value) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words(write, sector)) {
            *word = value.to_le_bytes();
        }
    }
    bytes.freeze()
}

/// Which write a sector at `sector` comes from; none when nobody can have written it there.
#[must_use]
pub fn recognise(bytes: &[u8], sector: u64) -> Option<WriteId> {
    let words_read = || bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let first = words_read().next()?;
    if first == 0 {
        return words_read().all(|word| word == 0).then_some(WriteId::ZEROES);
    }
    let write = WriteId(u32::try_from(first >> 32).ok()?);
    words(write, sector).take(SECTOR_LEN / 8).eq(words_read()).then_some(write)
}

/// What a sector claims to be, also when it is not whole or not in its place: for traces.
#[must_use]
pub fn describe(bytes: &[u8]) -> String {
    let Some(word) = bytes.first_chunk::<8>().map(|word| u64::from_le_bytes(*word)) else {
        return "nothing".into();
    };
    let sector = word & u64::from(u32::MAX);
    let write = narrow(word >> 32);
    if bytes.iter().all(|byte| *byte == 0) {
        "zeros".into()
    } else if recognise(bytes, sector) == Some(WriteId(write)) {
        format!("w{write} of sector {sector}")
    } else {
        format!("bytes that nobody wrote ({word:#018x}...)")
    }
}

/// Bytes as a list of several parts, as exports give them.
#[must_use]
pub fn scatter(bytes: &Buf, cuts: &[usize]) -> SgList {
    let mut list = SgList::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        if from < cut && cut <= bytes.len() {
            list.push(bytes.slice(from..cut));
            from = cut;
        }
    }
    list
}

/// The first word names write and sector; the others follow from it.
fn words(write: WriteId, sector: u64) -> impl Iterator<Item = u64> {
    let first = u64::from(write.0) << 32 | sector & u64::from(u32::MAX);
    let next = |word: &u64| {
        Some(word.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23) ^ 0x14057b7ef767814f)
    };
    std::iter::successors(Some(first), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_names_its_write_in_its_place_only() {
        let bytes = make(WriteId(7), 40, 3);
        for at in 0..3 {
            let sector = &bytes[at * SECTOR_LEN..(at + 1) * SECTOR_LEN];
            assert_eq!(recognise(sector, 40 + at as u64), Some(WriteId(7)));
            assert_eq!(recognise(sector, 44), None);
        }
        assert_eq!(recognise(&[0; SECTOR_LEN], 3), Some(WriteId::ZEROES));
    }

    #[test]
    fn a_single_wrong_bit_is_noticed() {
        for write in [WriteId(0), WriteId(9)] {
            let good = if write.0 == 0 { vec![0; 512] } else { make(write, 5, 1).to_vec() };
            for at in 0..SECTOR_LEN * 8 {
                let mut bad = good.clone();
                bad[at / 8] ^= 1 << (at % 8);
                assert_eq!(recognise(&bad, 5), None, "bit {at}");
            }
        }
    }

    #[test]
    fn scattered_bytes_are_the_same_bytes() {
        let bytes = make(WriteId(1), 0, 2);
        let list = scatter(&bytes, &[100, 100, 513, 5000]);
        assert_eq!(list.parts().len(), 3);
        assert_eq!(&*list.to_contiguous(), &*bytes);
    }
}
