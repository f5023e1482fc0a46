//! What [`Op::Extents`](crate::Op::Extents) answers: which bytes of a range are mapped.
//!
//! An answer is runs of bytes from the start of the range, in order and without gaps. Neighbours
//! differ, so it is as short as it can be; it holds at most [`RUNS_MAX`] runs, and may end before
//! the range does: the asker goes on behind it. It is at least one run long unless the range is
//! empty. Unmapped bytes read as zeros and take no space; bytes that are mapped may be zeros too.
//!
//! Within one process an answer travels as the bytes of an [`SgList`]: eight for each run, little
//! endian, the length in the lower 63 bits and the flag in the highest.

use alloc::vec::Vec;

use crate::{Buf, ErrorKind, IoError, SgList};

/// Most runs of one answer.
pub const RUNS_MAX: usize = 512;

const RUN_LEN: usize = 8;
const MAPPED: u64 = 1 << 63;

/// Neighbouring bytes that are all mapped or all unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of bytes: above zero, below 2^63.
    pub len: u64,
    /// Whether space is taken for them.
    pub mapped: bool,
}

/// An answer in the making, or one that was decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    runs: Vec<Run>,
}

impl Extents {
    /// No runs yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// One run: the whole range alike.
    #[must_use]
    pub fn all(len: u64, mapped: bool) -> Self {
        let mut extents = Self::new();
        extents.push(len, mapped);
        extents
    }

    /// Appends `len` bytes, as part of the last run where they are alike. False when the answer
    /// is full and they were left out: it ends here.
    ///
    /// # Panics
    /// When the answer would describe 2^63 bytes or more: no device is that large.
    pub fn push(&mut self, len: u64, mapped: bool) -> bool {
        assert!(len < MAPPED - self.len(), "runs are shorter than 2^63 bytes");
        let full = self.runs.len() == RUNS_MAX;
        match self.runs.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.mapped == mapped => last.len += len,
            _ if full => return false,
            _ => self.runs.push(Run { len, mapped }),
        }
        true
    }

    /// The runs in order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Bytes that all runs describe together.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// Whether nothing is described.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The answer as a request's result.
    #[must_use]
    pub fn encode(&self) -> SgList {
        if self.runs.is_empty() {
            return SgList::new();
        }
        let word = |run: &Run| run.len | if run.mapped { MAPPED } else { 0 };
        let bytes: Vec<u8> = self.runs.iter().flat_map(|run| u64::to_le_bytes(word(run))).collect();
        Buf::copy_from(&bytes).into()
    }

    /// Reads the answer to a question about `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] when it is no whole number of runs, has more than [`RUNS_MAX`] or
    /// none, holds an empty run or neighbours that are alike, or reaches past `len`.
    pub fn decode(answer: &SgList, len: u64) -> Result<Self, IoError> {
        let fail = || IoError::with_detail(ErrorKind::Device, "malformed answer about extents");
        if !answer.len().is_multiple_of(RUN_LEN) || answer.len() > RUNS_MAX * RUN_LEN {
            return Err(fail());
        }
        let mut extents = Self { runs: Vec::with_capacity(answer.len() / RUN_LEN) };
        let mut left = len;
        for bytes in answer.to_contiguous().as_chunks::<RUN_LEN>().0 {
            let word = u64::from_le_bytes(*bytes);
            let run = Run { len: word & !MAPPED, mapped: word & MAPPED != 0 };
            let alike = extents.runs.last().is_some_and(|last| last.mapped == run.mapped);
            if run.len == 0 || alike {
                return Err(fail());
            }
            left = left.checked_sub(run.len).ok_or_else(fail)?;
            extents.runs.push(run);
        }
        if extents.is_empty() && len > 0 { Err(fail()) } else { Ok(extents) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn raw(words: &[u64]) -> SgList {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Buf::copy_from(&bytes).into()
    }

    #[test]
    fn neighbours_that_are_alike_are_one_run() {
        let mut extents = Extents::new();
        for (len, mapped) in [(512, true), (512, true), (0, false), (4096, true), (1024, false)] {
            assert!(extents.push(len, mapped));
        }
        let runs = [Run { len: 5120, mapped: true }, Run { len: 1024, mapped: false }];
        assert_eq!(extents.runs(), runs);
        assert_eq!(extents.len(), 6144);
        assert_eq!(Extents::decode(&extents.encode(), 6144).unwrap(), extents);
        assert_eq!(Extents::decode(&extents.encode(), 1 << 40).unwrap(), extents, "ends early");
    }

    #[test]
    fn an_answer_is_bounded() {
        let mut extents = Extents::new();
        for index in 0..RUNS_MAX {
            assert!(extents.push(512, index % 2 == 0));
        }
        assert!(!extents.push(512, true));
        assert!(extents.push(512, false), "the last run still grows");
        assert_eq!(extents.len(), (RUNS_MAX as u64 + 1) * 512);
        assert_eq!(Extents::decode(&extents.encode(), extents.len()).unwrap(), extents);
        let long: Vec<u64> = (0..=RUNS_MAX as u64).map(|index| 512 | (index % 2) << 63).collect();
        assert!(Extents::decode(&raw(&long[1..]), 1 << 40).is_ok());
        assert!(Extents::decode(&raw(&long), 1 << 40).is_err());
    }

    #[test]
    fn an_empty_range_has_an_empty_answer() {
        assert!(Extents::all(0, true).is_empty());
        assert!(Extents::decode(&Extents::new().encode(), 0).unwrap().is_empty());
    }

    #[test]
    fn malformed_answers_are_refused() {
        let bad = vec![
            raw(&[]),
            raw(&[0]),
            raw(&[MAPPED]),
            raw(&[512, 512]),
            raw(&[MAPPED | 4096, 513]),
            raw(&[u64::MAX]),
            Buf::copy_from(&[0, 2, 0, 0, 0, 0, 0]).into(),
        ];
        for answer in bad {
            let error = Extents::decode(&answer, 4608).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device);
        }
        assert!(Extents::decode(&raw(&[MAPPED | 4096, 512]), 4608).is_ok());
    }
}
