//! Which writes are under way, so that COMPARE AND WRITE is not interrupted (SBC-3, section 5.2).
//!
//! Invariant: while a compare-and-write holds a range, no other write of that range is under
//! way. A write only pays for a free place in a table; only a compare-and-write searches it.

use alloc::vec::Vec;
use core::ops::Range;

/// Most writes of one logical unit under way at once.
const WRITES_MAX: usize = 4096;

/// A place in the table, given back when the write has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

#[derive(Debug)]
struct Entry {
    /// Empty when the place is free.
    range: Range<u64>,
    exclusive: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    entries: Vec<Entry>,
    free: Vec<usize>,
    exclusive_count: usize,
}

impl Exclusion {
    /// Enters a write of the bytes `range`; `None` when it has to be tried again later.
    pub(crate) fn enter(&mut self, range: Range<u64>, exclusive: bool) -> Option<Slot> {
        let contended = exclusive || self.exclusive_count > 0;
        if contended && self.conflicts(&range, exclusive) {
            return None;
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.entries.len() < WRITES_MAX => {
                self.entries.push(Entry { range: 0..0, exclusive: false });
                self.entries.len() - 1
            }
            None => return None,
        };
        self.exclusive_count += usize::from(exclusive);
        self.entries[at] = Entry { range, exclusive };
        Some(Slot(at))
    }

    pub(crate) fn leave(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0];
        self.exclusive_count -= usize::from(entry.exclusive);
        *entry = Entry { range: 0..0, exclusive: false };
        self.free.push(slot.0);
    }

    fn conflicts(&self, range: &Range<u64>, exclusive: bool) -> bool {
        self.entries.iter().any(|entry| {
            let overlaps = entry.range.start < range.end && range.start < entry.range.end;
            overlaps && (exclusive || entry.exclusive)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_ranges_keep_others_out_and_plain_writes_do_not() {
        let mut table = Exclusion::default();
        let plain = table.enter(0..10, false).unwrap();
        let other = table.enter(5..15, false).unwrap();
        assert_eq!(table.enter(9..12, true), None, "a write is under way");
        let exclusive = table.enter(20..30, true).unwrap();
        assert_eq!(table.enter(29..31, false), None);
        assert_eq!(table.enter(25..26, true), None);
        let beside = table.enter(30..31, false).unwrap();
        for slot in [plain, other, exclusive, beside] {
            table.leave(slot);
        }
        assert!(table.enter(0..100, true).is_some());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Exclusion::default();
        let slots: Vec<_> = (0..WRITES_MAX).map(|_| table.enter(0..1, false)).collect();
        assert!(slots.iter().all(Option::is_some));
        assert_eq!(table.enter(0..1, false), None);
    }
}
