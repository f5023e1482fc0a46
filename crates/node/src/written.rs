//! How far a segment is written, as all its sessions share it: where the next append begins.
//!
//! Invariant: of two appends at the same offset only one is carried out; and no append overwrites what another session wrote.

use alloc::vec::Vec;

/// Failed appends that are remembered, because others went on behind them; the oldest is forgotten beyond so many.
const FAILED_MAX: usize = 256;

/// The end of what is written of a segment, in bytes from its beginning.
#[derive(Debug, Default)]
pub struct Written {
    end: u64,
    /// The end of what was written by sessions that do not append: the end of all never goes back behind it.
    floor: u64,
    /// Where appends began and ended that have failed, and behind which others went on.
    failed: Vec<(u64, u64)>,
}

impl Written {
    /// The present end.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// A write of a session that does not append is on its way, up to here.
    pub fn write_to(&mut self, end: u64) {
        self.floor = self.floor.max(end);
        self.end = self.end.max(end);
    }

    /// Up to where sessions that do not append have written.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// An append from the present end is on its way, up to here.
    ///
    /// # Panics
    /// When that is before the present end.
    pub fn append_to(&mut self, end: u64) {
        assert!(end >= self.end, "an append to {end} of what is written up to {}", self.end);
        self.end = end;
    }

    /// Takes back a failed append, and with it those that have failed before, and on which it followed. Where another
    /// append follows on this one, that has to fail first.
    pub fn take_back(&mut self, from: u64, to: u64) {
        self.failed.push((from, to));
        while let Some(at) = self.failed.iter().position(|(_, to)| *to == self.end) {
            let (from, _) = self.failed.swap_remove(at);
            self.end = from.max(self.floor);
            if self.end == self.floor {
                // What failed before that was written over.
                self.failed.retain(|(_, to)| *to > self.floor);
                break;
            }
        }
        if self.failed.len() > FAILED_MAX {
            self.failed.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(ends: &[u64]) -> Written {
        let mut written = Written::default();
        ends.iter().for_each(|end| written.append_to(*end));
        written
    }

    #[test]
    fn appends_that_all_fail_are_all_taken_back_in_any_order() {
        let spans = [(0, 4), (4, 8), (8, 12)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut written = appended(&[4, 8, 12]);
            for at in order {
                let (from, to) = spans[at];
                written.take_back(from, to);
            }
            assert_eq!(written.end(), 0, "{order:?}");
        }
    }

    #[test]
    fn an_append_behind_which_another_one_went_on_stays() {
        let mut written = appended(&[4, 8]);
        written.take_back(0, 4);
        assert_eq!(written.end(), 8);
        written.append_to(12);
        written.take_back(8, 12);
        assert_eq!(written.end(), 8, "what went on behind the first one has not failed");
    }

    #[test]
    fn what_another_session_wrote_is_not_appended_over() {
        let mut written = appended(&[4, 8]);
        written.write_to(6);
        written.take_back(4, 8);
        assert_eq!(written.end(), 6);
        let mut written = appended(&[4, 8]);
        written.write_to(8);
        written.take_back(4, 8);
        written.take_back(0, 4);
        assert_eq!(written.end(), 8);
    }

    #[test]
    fn what_is_remembered_of_failed_appends_is_bounded() {
        let mut written = Written::default();
        for round in 0..10 * FAILED_MAX as u64 {
            written.append_to(2 * round + 1);
            written.append_to(2 * round + 2);
            written.take_back(2 * round, 2 * round + 1);
        }
        assert!(written.failed.len() <= FAILED_MAX);
    }
}
