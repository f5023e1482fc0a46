//! EXTENDED COPY (LID1): what it asks for, how far it is, and what is told of it afterwards
//! (SPC-4, sections 6.4 and 6.17).
//!
//! Here are the parts that know no logical unit: [`CopyList`] reads the parameter list, [`Pieces`]
//! cuts a segment, [`CopyRecords`] remembers how copies ended. [`crate::TargetDevice`] drives them,
//! since a copy concerns two logical units.
//!
//! Invariant: a piece is read as a whole before any of it is written, and pieces are taken in the
//! order in which overlapping ranges are copied right.

mod parameters;
mod records;

pub(crate) use self::{
    parameters::{CopyList, Cscd, ListIdUsage, SEGMENT_LEN_MAX, Segment, parameter_len_max},
    records::{CopyRecords, CopyResult, operating_parameters, third_party_copy_page},
};

#[cfg(test)]
pub(crate) use self::parameters::tests as lists;

/// Longest piece that is read and written at once, in bytes.
pub(crate) const PIECE_LEN_MAX: u32 = 1 << 20;
/// Most copies of one target under way at once; each holds one piece in memory.
pub(crate) const COPIES_MAX: usize = 16;

/// The pieces of a segment that are still to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pieces {
    source: u64,
    destination: u64,
    rest: u64,
    piece_len: u64,
    /// The last piece goes first.
    backwards: bool,
}

/// Bytes that are copied by one read and one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source: u64,
    pub(crate) destination: u64,
    pub(crate) len: u64,
}

impl Pieces {
    /// Cuts `len` bytes at `source` into pieces of at most `piece_len`, for `destination` of the
    /// same medium or another.
    pub(crate) const fn new(
        source: u64,
        destination: u64,
        len: u64,
        piece_len: u64,
        same_medium: bool,
    ) -> Self {
        // Forwards, a piece would overwrite what later ones are still to read.
        let backwards = same_medium && source < destination && destination < source + len;
        Self { source, destination, rest: len, piece_len, backwards }
    }

    pub(crate) fn next(&mut self) -> Option<Piece> {
        let len = self.rest.min(self.piece_len);
        if len == 0 {
            return None;
        }
        self.rest -= len;
        if self.backwards {
            let (source, destination) = (self.source + self.rest, self.destination + self.rest);
            return Some(Piece { source, destination, len });
        }
        let piece = Piece { source: self.source, destination: self.destination, len };
        self.source += len;
        self.destination += len;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Ranges of one medium that overlap in any way are copied as if at once.
        #[test]
        fn overlapping_ranges_are_copied_right(
            source in 0..50_usize,
            destination in 0..50_usize,
            len in 0..50_usize,
            piece_len in 1..20_u64,
        ) {
            let mut medium: Vec<u8> = (0..100).collect();
            let mut expected = medium.clone();
            expected.copy_within(source..source + len, destination);
            let mut pieces =
                Pieces::new(source as u64, destination as u64, len as u64, piece_len, true);
            while let Some(Piece { source, destination, len }) = pieces.next() {
                prop_assert!(len <= piece_len);
                let [source, destination, len] =
                    [source, destination, len].map(|value| usize::try_from(value).unwrap());
                medium.copy_within(source..source + len, destination);
            }
            prop_assert_eq!(medium, expected);
        }
    }

    #[test]
    fn nothing_has_no_pieces() {
        assert_eq!(Pieces::new(5, 5, 0, 1, true).next(), None);
        let pieces: Vec<_> = {
            let mut pieces = Pieces::new(10, 0, 5, 2, false);
            core::iter::from_fn(move || pieces.next()).map(|piece| piece.len).collect()
        };
        assert_eq!(pieces, vec![2, 2, 1]);
    }
}
