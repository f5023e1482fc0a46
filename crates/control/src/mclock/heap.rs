//! A binary heap of flows that knows where each of them stands, so that any can be taken out.

use alloc::vec::Vec;

use netraid_block::narrow;

/// It is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// Flows by ascending key; those with the same key by number.
#[derive(Debug, Default)]
pub(super) struct Heap {
    items: Vec<(u64, u32)>,
    /// By flow: its index among the items.
    indices: Vec<u32>,
}

impl Heap {
    /// There is such a flow: nothing is allocated for it later.
    pub(super) fn make_room(&mut self, flow: u32) {
        let count = flow as usize + 1;
        self.indices.resize(count.max(self.indices.len()), NOWHERE);
        self.items.reserve(count.saturating_sub(self.items.len()));
    }

    /// The first and its key.
    pub(super) fn first(&self) -> Option<(u64, u32)> {
        self.items.first().copied()
    }

    /// Takes the first out if its key is `key` at most.
    pub(super) fn pop_until(&mut self, key: u64) -> Option<u32> {
        let (first, flow) = self.first()?;
        (first <= key && self.remove(flow)).then_some(flow)
    }

    /// Puts a flow in, which is not in it.
    pub(super) fn insert(&mut self, flow: u32, key: u64) {
        assert!(self.indices[flow as usize] == NOWHERE, "flow {flow} is in the heap twice");
        let index = self.items.len();
        self.items.push((key, flow));
        self.move_up(index);
    }

    /// Takes a flow out; false when it is not in it.
    pub(super) fn remove(&mut self, flow: u32) -> bool {
        let index = core::mem::replace(&mut self.indices[flow as usize], NOWHERE);
        if index == NOWHERE {
            return false;
        }
        let index = index as usize;
        self.items.swap_remove(index);
        if index < self.items.len() {
            let index = self.move_up(index);
            self.move_down(index);
        }
        true
    }

    /// Moves an item up to where it belongs; where that is.
    fn move_up(&mut self, mut index: usize) -> usize {
        while index > 0 && self.items[index] < self.items[(index - 1) / 2] {
            let above = (index - 1) / 2;
            self.items.swap(index, above);
            self.note(index);
            index = above;
        }
        self.note(index);
        index
    }

    fn move_down(&mut self, mut index: usize) {
        loop {
            let below = 2 * index + 1;
            let pair = below..(below + 2).min(self.items.len());
            let Some(least) = pair.min_by_key(|at| self.items[*at]) else { break };
            if self.items[index] < self.items[least] {
                break;
            }
            self.items.swap(index, least);
            self.note(index);
            index = least;
        }
        self.note(index);
    }

    fn note(&mut self, index: usize) {
        let (_, flow) = self.items[index];
        // There are no more items than flows, which have numbers of 32 bits.
        self.indices[flow as usize] = narrow(index);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_gives_what_a_sorted_set_gives(
            steps in prop::collection::vec((0_u32..12, 0_u64..8, 0_u8..3), 0..200),
        ) {
            let (mut heap, mut model) = (Heap::default(), BTreeSet::new());
            (0..12).for_each(|flow| heap.make_room(flow));
            for (flow, key, what) in steps {
                let there = model.iter().find(|(_, known)| *known == flow).copied();
                match (what, there) {
                    (0, None) => {
                        heap.insert(flow, key);
                        model.insert((key, flow));
                    }
                    (0 | 1, _) => {
                        prop_assert_eq!(heap.remove(flow), there.is_some());
                        there.iter().for_each(|item| {
                            model.remove(item);
                        });
                    }
                    _ => {
                        let first = model.first().copied().filter(|(first, _)| *first <= key);
                        prop_assert_eq!(heap.pop_until(key), first.map(|(_, flow)| flow));
                        first.iter().for_each(|item| {
                            model.remove(item);
                        });
                    }
                }
                prop_assert_eq!(heap.first(), model.first().copied());
            }
            let left: Vec<_> = core::iter::from_fn(|| heap.pop_until(u64::MAX)).collect();
            prop_assert_eq!(left, model.into_iter().map(|(_, flow)| flow).collect::<Vec<_>>());
        }
    }
}
