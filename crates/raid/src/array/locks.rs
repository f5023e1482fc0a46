//! Row locks: who may change, or reconstruct from, which rows of a stripe.
//!
//! Locks of one stripe are granted in the order in which they were asked for, as soon as no
//! earlier one overlaps. So overlapping writes happen in their order, and disjoint rows of a
//! stripe, whose parity is independent, do not wait for each other.

use alloc::{collections::BTreeMap, vec::Vec};

use super::op::OpId;
use crate::geometry::Rows;

#[derive(Debug)]
struct Entry {
    op: OpId,
    rows: Rows,
    held: bool,
}

/// All locks, held and waited for.
#[derive(Debug, Default)]
pub(super) struct Locks {
    stripes: BTreeMap<u64, Vec<Entry>>,
}

impl Locks {
    /// Asks for `rows` of `stripe`; returns whether the lock is held at once.
    pub(super) fn acquire(&mut self, op: OpId, stripe: u64, rows: Rows) -> bool {
        let entries = self.stripes.entry(stripe).or_default();
        let held = !entries.iter().any(|other| overlap(&other.rows, &rows));
        entries.push(Entry { op, rows, held });
        held
    }

    /// Whether somebody holds a lock on any of `rows` of `stripe`.
    pub(super) fn is_held(&self, stripe: u64, rows: &Rows) -> bool {
        let held = |entry: &Entry| entry.held && overlap(&entry.rows, rows);
        self.stripes.get(&stripe).is_some_and(|entries| entries.iter().any(held))
    }

    /// Gives up the lock of `op` and adds those that hold theirs now to `granted`.
    pub(super) fn release(&mut self, op: OpId, stripe: u64, granted: &mut impl Extend<OpId>) {
        let Some(entries) = self.stripes.get_mut(&stripe) else { return };
        entries.retain(|entry| entry.op != op);
        for at in 0..entries.len() {
            let (earlier, rest) = entries.split_at_mut(at);
            let entry = &mut rest[0];
            if !entry.held && !earlier.iter().any(|other| overlap(&other.rows, &entry.rows)) {
                entry.held = true;
                granted.extend([entry.op]);
            }
        }
        if entries.is_empty() {
            self.stripes.remove(&stripe);
        }
    }
}

fn overlap(one: &Rows, two: &Rows) -> bool {
    one.start < two.end && two.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_rows_are_served_in_order_and_disjoint_ones_at_once() {
        let mut locks = Locks::default();
        assert!(locks.acquire(OpId(1), 5, 0..10));
        assert!(locks.acquire(OpId(2), 5, 10..20));
        assert!(!locks.acquire(OpId(3), 5, 5..15));
        assert!(!locks.acquire(OpId(4), 5, 14..16), "does not overtake an earlier waiter");
        assert!(locks.acquire(OpId(5), 6, 5..15));
        let mut granted = Vec::new();
        locks.release(OpId(1), 5, &mut granted);
        assert!(granted.is_empty());
        locks.release(OpId(2), 5, &mut granted);
        assert_eq!(granted, [OpId(3)]);
        locks.release(OpId(3), 5, &mut granted);
        assert_eq!(granted, [OpId(3), OpId(4)]);
    }
}
