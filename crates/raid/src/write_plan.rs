//! How a write keeps the check columns of a stripe true: by what it reads before.
//!
//! Plain functions of what is known of the columns, without the machine around them. What the
//! columns hold is [`crate::code`]'s.

use core::ops::Range;

/// How a segment's check columns get their new contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParityPlan {
    /// No check column is live: only data is written.
    None,
    /// All data columns are new.
    Full,
    /// Reconstruct write: from new columns and the others as they are.
    Rcw,
    /// Read-modify-write: from old and new columns and the old parity.
    Rmw,
}

/// What decides how a segment's check columns get their new contents.
#[derive(Debug)]
pub struct SegmentChoice {
    /// Data columns of the stripe.
    pub data_columns: u8,
    /// Which of them are written.
    pub written: Range<u8>,
    /// Whether any check column is on a member that takes part.
    pub check_live: bool,
    /// Whether any check column can be read.
    pub check_readable: bool,
}

impl SegmentChoice {
    /// The plan that reads least, or none when what it needs cannot be read.
    #[must_use]
    pub fn plan(&self, readable: impl Fn(u8) -> bool) -> Option<ParityPlan> {
        let written = self.written.len();
        if !self.check_live {
            return Some(ParityPlan::None);
        }
        if written == usize::from(self.data_columns) {
            return Some(ParityPlan::Full);
        }
        let others = usize::from(self.data_columns) - written;
        let mut columns = 0..self.data_columns;
        let rcw = columns.clone().all(|column| self.written.contains(&column) || readable(column));
        let rmw = self.check_readable
            && columns.all(|column| !self.written.contains(&column) || readable(column));
        match (rcw, rmw) {
            (true, true) if written + 1 < others => Some(ParityPlan::Rmw),
            (true, _) => Some(ParityPlan::Rcw),
            (false, true) => Some(ParityPlan::Rmw),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_reads_least_and_goes_around_what_cannot_be_read() {
        let plan = |written, check_readable, bad: &[u8]| {
            let choice =
                SegmentChoice { data_columns: 4, written, check_live: true, check_readable };
            choice.plan(|column| !bad.contains(&column))
        };
        assert_eq!(plan(0..4, true, &[]), Some(ParityPlan::Full));
        assert_eq!(plan(0..1, true, &[]), Some(ParityPlan::Rmw), "2 reads against 3");
        assert_eq!(plan(0..2, true, &[]), Some(ParityPlan::Rcw), "2 reads against 3");
        assert_eq!(plan(0..1, true, &[0]), Some(ParityPlan::Rcw), "the old bytes are gone");
        assert_eq!(plan(1..4, true, &[0]), Some(ParityPlan::Rmw), "the other bytes are gone");
        assert_eq!(plan(0..1, false, &[]), Some(ParityPlan::Rcw), "the old parity is gone");
        assert_eq!(plan(0..1, true, &[0, 1]), None);
        assert_eq!(plan(0..4, false, &[0, 1]), Some(ParityPlan::Full));
    }
}
