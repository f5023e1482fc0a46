//! A set of free stripes that gives the next one after a place quickly: a bit each, and a bit for
//! every 64 of them.

use alloc::{vec, vec::Vec};

#[derive(Debug, Clone)]
pub(super) struct FreeStripes {
    len: u32,
    count: u32,
    bits: Vec<u64>,
    /// Which words of `bits` are not zero.
    words: Vec<u64>,
}

impl FreeStripes {
    /// All of so many.
    pub(super) fn all(len: u32) -> Self {
        let words = len.div_ceil(64) as usize;
        let mut free =
            Self { len, count: 0, bits: vec![0; words], words: vec![0; words.div_ceil(64)] };
        (0..len).for_each(|stripe| free.give(stripe));
        free
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn contains(&self, stripe: u32) -> bool {
        assert!(stripe < self.len, "stripe {stripe} of {}", self.len);
        self.bits[stripe as usize / 64] >> (stripe % 64) & 1 == 1
    }

    pub(super) fn give(&mut self, stripe: u32) {
        if !self.contains(stripe) {
            let word = stripe as usize / 64;
            self.bits[word] |= 1 << (stripe % 64);
            self.words[word / 64] |= 1 << (word % 64);
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, stripe: u32) {
        if self.contains(stripe) {
            let word = stripe as usize / 64;
            self.bits[word] &= !(1 << (stripe % 64));
            if self.bits[word] == 0 {
                self.words[word / 64] &= !(1 << (word % 64));
            }
            self.count -= 1;
        }
    }

    /// Takes the first at or after `near`, or else the first of all.
    pub(super) fn take(&mut self, near: u32) -> Option<u32> {
        let stripe = self.first_from(near).or_else(|| self.first_from(0))?;
        self.remove(stripe);
        Some(stripe)
    }

    fn first_from(&self, near: u32) -> Option<u32> {
        let word = near as usize / 64;
        let here = self.bits.get(word)? & (u64::MAX << (near % 64));
        let (word, bits) = if here == 0 {
            let next = self.next_word(word + 1)?;
            (next, self.bits[next])
        } else {
            (word, here)
        };
        u32::try_from(word * 64).ok().map(|first| first + bits.trailing_zeros())
    }

    fn next_word(&self, from: usize) -> Option<usize> {
        let here = self.words.get(from / 64)? & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(from / 64 * 64 + here.trailing_zeros() as usize);
        }
        let rest = &self.words[from / 64 + 1..];
        let at = rest.iter().position(|word| *word != 0)?;
        Some((from / 64 + 1 + at) * 64 + rest[at].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    #[test]
    fn it_is_the_set_that_a_tree_would_be() {
        for len in [1, 63, 64, 65, 4096, 4097, 9000] {
            let mut rng = StdRng::seed_from_u64(len.into());
            let mut free = FreeStripes::all(len);
            let mut tree: BTreeSet<u32> = (0..len).collect();
            for _ in 0..2 * len {
                let near = rng.random_range(0..len);
                let taken = free.take(near);
                let first = tree.range(near..).next().or_else(|| tree.first()).copied();
                assert_eq!(taken, first);
                tree.retain(|stripe| Some(*stripe) != taken);
                if rng.random_range(0..3) == 0 {
                    let back = rng.random_range(0..len);
                    free.give(back);
                    tree.insert(back);
                }
                assert_eq!(free.count() as usize, tree.len());
            }
        }
    }
}
