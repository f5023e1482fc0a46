//! What the tables of a simulated array can say, and what they say of snapshots from before the run.
//!
//! A later version took snapshots of some arrays and deleted them: then there is a list, whose next number is not 1. Or it
//! was cut short while it took one: then some members have a list that no checkpoint names.

use netraid_block::narrow;
use netraid_raid::{
    checkpoint::Checkpoint,
    format::{Format, Image},
    label::{LogLabel, Uuid},
    regions::CHECKPOINT_OFFSETS,
    snapshots::SnapshotList,
};

use crate::dice::Seed;

/// The tables of a run's array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// What they can say.
    pub format: Format,
    /// The number that the next snapshot has: all stripes are born with it.
    pub next_number: u32,
    /// The next number in a list that no checkpoint names, on some members; 0: there is none.
    pub unnamed: u32,
}

impl Tables {
    /// The tables of a seed's array.
    #[must_use]
    pub fn of(seed: Seed) -> Self {
        let mut dice = seed.dice("tables");
        let none = Self { format: Format::One, next_number: 1, unnamed: 0 };
        if dice.one_in(3) {
            return none;
        }
        let next_number = if dice.one_in(3) { 2 + narrow::<_, u32>(dice.index(100)) } else { 1 };
        let unnamed = if dice.one_in(3) { next_number + 1 } else { 0 };
        Self { format: Format::Two, next_number, unnamed }
    }

    /// The list that the checkpoint names.
    #[must_use]
    pub fn list(&self) -> Option<SnapshotList> {
        let next_number = self.next_number;
        (next_number > 1).then_some(SnapshotList { counter: 1, next_number, ..SnapshotList::EMPTY })
    }

    /// Puts the lists into what is written on a new array's members.
    pub fn put_into(&self, seed: Seed, array_uuid: Uuid, members: &mut [Vec<Image>]) {
        let mut dice = seed.dice("lists");
        for images in members {
            if let Some(list) = self.list() {
                let (image, name) = list.encode(array_uuid);
                let is_checkpoint = |(at, _): &&mut Image| CHECKPOINT_OFFSETS.contains(at);
                for (at, bytes) in images.iter_mut().filter(is_checkpoint) {
                    let slot = usize::from(*at == CHECKPOINT_OFFSETS[1]);
                    let Ok(found) = Checkpoint::decode(bytes, array_uuid, slot) else { continue };
                    *bytes = Checkpoint { list: name, ..found }.encode(array_uuid);
                }
                images.insert(0, (list.offset(), image));
            }
            if self.unnamed > 0 && dice.one_in(2) {
                let counter = 2;
                let list =
                    SnapshotList { counter, next_number: self.unnamed, ..SnapshotList::EMPTY };
                images.insert(0, (list.offset(), list.encode(array_uuid).0));
            }
        }
    }

    /// Whether a label is of such an array, where it has a log.
    #[must_use]
    pub fn fit(&self, log: Option<&LogLabel>) -> bool {
        log.is_none_or(|log| log.format == self.format)
    }
}
