//! Which task has which initiator task tag.
//!
//! A hash table of fixed size with open addressing: at least half of it is empty, so that a search
//! looks at one or two entries, whatever the queue depth. An initiator that picks its tags to fall
//! together slows itself: no search looks at more entries than it has tasks.

use alloc::vec::Vec;

use crate::{machine::TaskId, pdu::NO_TAG};

/// Invariant: between the entry where a tag's search begins and the tag's own none is empty.
#[derive(Debug)]
pub(super) struct Tags {
    /// A power of two of them; those whose tag is [`NO_TAG`] are empty.
    entries: Vec<(u32, TaskId)>,
}

impl Tags {
    /// No tags, with room for `count`.
    pub(super) fn new(count: u16) -> Self {
        let len = (2 * usize::from(count)).next_power_of_two();
        Self { entries: alloc::vec![(NO_TAG, TaskId(0)); len] }
    }

    pub(super) fn find(&self, itt: u32) -> Option<TaskId> {
        let (known, task) = self.entries[self.place(itt)];
        (known == itt && itt != NO_TAG).then_some(task)
    }

    /// Notes a tag; false when another task has it, or it is none. There are no more at a time than
    /// the table was made for.
    pub(super) fn insert(&mut self, itt: u32, task: TaskId) -> bool {
        let entry = self.place(itt);
        let is_free = itt != NO_TAG && self.entries[entry].0 == NO_TAG;
        if is_free {
            self.entries[entry] = (itt, task);
        }
        is_free
    }

    /// Forgets a tag, if it is known.
    pub(super) fn remove(&mut self, itt: u32) {
        let mut hole = self.place(itt);
        let mut at = self.after(hole);
        // What follows moves up, unless its own search begins after the hole.
        while self.entries[at].0 != NO_TAG {
            if self.steps(self.start(self.entries[at].0), at) >= self.steps(hole, at) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.entries[hole].0 = NO_TAG;
    }

    /// The entry of this tag, or else the empty one where its search ends.
    fn place(&self, itt: u32) -> usize {
        let mut at = self.start(itt);
        while self.entries[at].0 != itt && self.entries[at].0 != NO_TAG {
            at = self.after(at);
        }
        at
    }

    /// Where the search for a tag begins. Most initiators count their tags in the upper or the
    /// lower half: both matter.
    fn start(&self, itt: u32) -> usize {
        let mixed = itt.wrapping_mul(0x9e37_79b1);
        (mixed ^ mixed >> 16) as usize & (self.entries.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    fn steps(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_until_they_are_removed() {
        let mut tags = Tags::new(4);
        assert_eq!(tags.find(7), None);
        assert!(tags.insert(7, TaskId(3)));
        assert_eq!((tags.find(7), tags.find(8)), (Some(TaskId(3)), None));
        tags.remove(7);
        assert_eq!(tags.find(7), None);
    }

    #[test]
    fn no_tag_is_never_found() {
        let mut tags = Tags::new(1);
        assert_eq!(tags.find(NO_TAG), None);
        tags.remove(NO_TAG);
        assert!(tags.insert(1, TaskId(0)));
        assert_eq!(tags.find(NO_TAG), None);
    }

    #[test]
    fn removal_leaves_tags_findable_that_began_at_the_same_entry() {
        // Full to the brim, from every order of insertion and removal that a step makes.
        for (first, step) in
            (0..64).flat_map(|first| [1, 5, 64, 0x1_0000].map(|step| (first, step)))
        {
            let mut tags = Tags::new(8);
            let itt = |n: u16| u32::from(n).wrapping_mul(step).wrapping_add(first);
            assert!((0..8).all(|n| tags.insert(itt(n), TaskId(n))));
            for gone in [3, 0, 7, 1, 6, 2, 5, 4] {
                assert_eq!(tags.find(itt(gone)), Some(TaskId(gone)));
                tags.remove(itt(gone));
                assert_eq!(tags.find(itt(gone)), None);
                assert!(tags.insert(itt(gone), TaskId(gone + 100)));
                let all = (0..8).filter(|n| tags.find(itt(*n)).is_some()).count();
                assert_eq!(all, 8, "first {first} step {step} gone {gone}");
            }
        }
    }

    #[test]
    fn a_tag_is_taken_once() {
        let mut tags = Tags::new(2);
        assert!(tags.insert(7, TaskId(0)));
        assert!(!tags.insert(7, TaskId(1)) && !tags.insert(NO_TAG, TaskId(1)));
        assert_eq!(tags.find(7), Some(TaskId(0)));
    }
}
