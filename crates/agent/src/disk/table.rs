//! Which segment has which extents of the disk (docs/formats/agent-disk.md). No input or output.
//!
//! An extent's entry names the row that owns it by the row's serial number, which no other row ever
//! has, and says which part of the segment it is. A row that is there makes all of its entries count at once, and one
//! that is gone makes all of them void: what is written last decides.
//!
//! Invariant: no extent has two owners. Extents of which it is not certain that nobody owns them are given to nobody.

use std::collections::{HashMap, HashSet};

use netraid_control::units::{MediatorId, SegmentId};

use super::{
    block::{PAYLOAD_LEN, get, put},
    geometry::{ENTRY_HEAD_LEN, Geometry},
};
use crate::records::Key;

/// Where a row's label begins in its payload.
const LABEL: usize = 64;
/// Bytes of a label, at most.
pub(super) const LABEL_LEN_MAX: usize = PAYLOAD_LEN - LABEL;
/// Serial numbers begin at 1 and end before this one, which is of extents that nobody gets.
const KEPT: u64 = u64::MAX;

/// A segment on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) serial: u64,
    pub(super) len_bytes: u64,
    pub(super) label: Vec<u8>,
    /// In the order of the segment; where the disk does not say, [`u32::MAX`].
    pub(super) extents: Vec<u32>,
    /// Why it cannot be served.
    pub(super) lost: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Slot {
    Empty,
    Row(Row),
    /// Both copies of its block are damaged.
    Damaged,
}

/// Whose an extent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    /// 0: nobody's.
    serial: u64,
    ordinal: u32,
}

const NOBODY: Owner = Owner { serial: 0, ordinal: 0 };

/// All of it.
#[derive(Debug)]
pub(super) struct Table {
    geometry: Geometry,
    slots: Vec<Slot>,
    by_key: HashMap<Key, u32>,
    owners: Vec<Owner>,
    free: u32,
    next_serial: u64,
}

/// Why a table is not followed at all: no crash and no failing disk makes such a one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TableFault {
    #[error("rows {0} and {1} of its table are of the same segment")]
    Twice(u32, u32),
    #[error("serial numbers of its table have come to their end")]
    Serial,
}

/// Why there is no place for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("it takes {wanted} extents of the disk, and {free} are free; give less --space")]
    Extents { wanted: u64, free: u32 },
    #[error("the disk has as many segments as its table has rows, {0}; remove some")]
    Rows(usize),
}

impl Table {
    /// What blocks say: the payloads of all blocks of entries and of all rows, in order; none where it
    /// cannot be known.
    pub(super) fn load<'a>(
        geometry: Geometry,
        entries: impl Iterator<Item = Option<&'a [u8]>>,
        rows: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Result<Self, TableFault> {
        // No more than there are: whatever rows say, they take a bounded amount of memory.
        let mut left = geometry.extents as usize;
        let slots: Vec<_> = rows.map(|payload| decode_row(&geometry, payload, &mut left)).collect();
        assert_eq!(slots.len(), geometry.rows as usize, "a payload for each row");
        let mut table = Self {
            geometry,
            slots,
            by_key: HashMap::new(),
            owners: Vec::with_capacity(geometry.extents as usize),
            free: 0,
            next_serial: 1,
        };
        let by_serial = table.index()?;
        let is_damaged = table.read_entries(entries, &by_serial);
        let seen = table.owners.iter().map(|owner| owner.serial).filter(|serial| *serial != KEPT);
        let next = seen.chain(by_serial.into_keys()).max().unwrap_or(0) + 1;
        if next >= KEPT / 2 {
            return Err(TableFault::Serial);
        }
        table.next_serial = next;
        let lacks_some = table.judge();
        table.release_orphans(&is_damaged, lacks_some);
        Ok(table)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Row(row) => Some(row),
            Slot::Empty | Slot::Damaged => None,
        })
    }

    pub(super) fn row(&self, key: Key) -> Option<&Row> {
        let slot = *self.by_key.get(&key)?;
        match &self.slots[slot as usize] {
            Slot::Row(row) => Some(row),
            Slot::Empty | Slot::Damaged => None,
        }
    }

    /// Whether it is not certain that nobody owns an extent.
    pub(super) fn is_owned(&self, extent: usize) -> bool {
        self.owners[extent] != NOBODY
    }

    /// Extents that a new segment may have.
    #[cfg(test)]
    pub(super) const fn free(&self) -> u32 {
        self.free
    }

    /// Rows that cannot be read.
    pub(super) fn damaged_rows(&self) -> usize {
        self.slots.iter().filter(|slot| **slot == Slot::Damaged).count()
    }

    /// The longest run of free extents: its first, and how many.
    pub(super) fn longest_free(&self) -> (u32, u32) {
        let longest = self.free_runs().into_iter().max_by_key(|(_, len)| *len);
        longest.unwrap_or((0, 0))
    }

    /// Gives extents to a new segment, next to each other where there is such a place. Its entries are to be made
    /// durable first, its row after them.
    pub(super) fn allot(&mut self, key: Key, len_bytes: u64, label: &[u8]) -> Result<u32, Full> {
        assert!(!self.by_key.contains_key(&key), "a segment is made once");
        let wanted = self.geometry.extents_of(len_bytes);
        let short = Full::Extents { wanted, free: self.free };
        let count = u32::try_from(wanted).ok().filter(|count| *count <= self.free).ok_or(short)?;
        let slot = self.slots.iter().position(|slot| *slot == Slot::Empty);
        let slot = slot.ok_or(Full::Rows(self.slots.len()))?;
        let extents = self.choose(count);
        let serial = self.next_serial;
        assert!(serial < KEPT / 2, "nobody makes so many segments");
        self.next_serial += 1;
        for (ordinal, extent) in (0..).zip(&extents) {
            let owner = &mut self.owners[*extent as usize];
            assert_eq!(*owner, NOBODY, "extent {extent} has one owner");
            *owner = Owner { serial, ordinal };
        }
        self.free -= count;
        let label = label.to_vec();
        self.slots[slot] = Slot::Row(Row { key, serial, len_bytes, label, extents, lost: None });
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        self.by_key.insert(key, slot);
        Ok(slot)
    }

    /// The row's block is to say that it is gone; its extents are kept until [`Self::release`].
    pub(super) fn remove(&mut self, key: Key) -> Option<(u32, Row)> {
        let slot = self.by_key.remove(&key)?;
        match std::mem::replace(&mut self.slots[slot as usize], Slot::Empty) {
            Slot::Row(row) => Some((slot, row)),
            Slot::Empty | Slot::Damaged => None,
        }
    }

    /// A removal was not stored: the row is there as before.
    pub(super) fn restore(&mut self, slot: u32, row: Row) {
        assert_eq!(self.slots[slot as usize], Slot::Empty, "nobody took its place");
        self.by_key.insert(row.key, slot);
        self.slots[slot as usize] = Slot::Row(row);
    }

    /// Gives back the extents of a row that is gone, durably; which those are.
    pub(super) fn release(&mut self, row: &Row) -> Vec<u32> {
        let mut released = Vec::new();
        for (extent, owner) in (0..).zip(&mut self.owners) {
            if owner.serial == row.serial {
                *owner = NOBODY;
                self.free += 1;
                released.push(extent);
            }
        }
        released
    }

    /// A segment cannot be served any more.
    pub(super) fn lose(&mut self, key: Key, why: &'static str) {
        let slot = self.by_key.get(&key).map(|slot| *slot as usize);
        if let Some(Slot::Row(row)) = slot.and_then(|slot| self.slots.get_mut(slot)) {
            row.lost = Some(why);
        }
    }

    pub(super) fn set_label(&mut self, key: Key, label: &[u8]) -> Option<u32> {
        let slot = *self.by_key.get(&key)?;
        match &mut self.slots[slot as usize] {
            Slot::Row(row) => row.label = label.to_vec(),
            Slot::Empty | Slot::Damaged => return None,
        }
        Some(slot)
    }

    /// Writes the payload of a block of entries; `words` gives the bits of an extent.
    pub(super) fn encode_entries(
        &self,
        block: u32,
        payload: &mut [u8],
        words: impl Fn(usize, usize) -> u64,
    ) {
        payload.fill(0);
        let per_block = self.geometry.extents_per_block();
        let first = block as usize * per_block;
        let entries = payload.chunks_exact_mut(self.geometry.entry_len());
        let owners = self.owners.iter().enumerate().skip(first);
        for (entry, (extent, owner)) in entries.zip(owners) {
            put(entry, 0, &owner.serial.to_le_bytes());
            put(entry, 8, &owner.ordinal.to_le_bytes());
            for word in 0..self.geometry.words() {
                put(entry, ENTRY_HEAD_LEN + 8 * word, &words(extent, word).to_le_bytes());
            }
        }
    }

    /// Writes the payload of a row's block.
    pub(super) fn encode_row(&self, slot: u32, payload: &mut [u8]) {
        payload.fill(0);
        let Slot::Row(row) = &self.slots[slot as usize] else { return };
        assert!(row.label.len() <= LABEL_LEN_MAX, "a label fits beside its row");
        put(payload, 0, &row.serial.to_le_bytes());
        put(payload, 8, &row.key.0.0);
        put(payload, 24, &row.key.1.0);
        put(payload, 40, &row.len_bytes.to_le_bytes());
        let len = u16::try_from(row.label.len()).unwrap_or(u16::MAX);
        put(payload, 48, &len.to_le_bytes());
        put(payload, LABEL, &row.label);
    }

    fn index(&mut self) -> Result<HashMap<u64, u32>, TableFault> {
        let mut by_serial = HashMap::new();
        for (slot, found) in (0..).zip(&self.slots) {
            let Slot::Row(row) = found else { continue };
            if let Some(other) = self.by_key.insert(row.key, slot) {
                return Err(TableFault::Twice(other, slot));
            }
            if let Some(other) = by_serial.insert(row.serial, slot) {
                return Err(TableFault::Twice(other, slot));
            }
        }
        Ok(by_serial)
    }

    /// Reads all entries; which extents' entries are damaged.
    fn read_entries<'a>(
        &mut self,
        blocks: impl Iterator<Item = Option<&'a [u8]>>,
        by_serial: &HashMap<u64, u32>,
    ) -> Vec<bool> {
        let mut is_damaged = Vec::with_capacity(self.geometry.extents as usize);
        for payload in blocks {
            for at in 0..self.geometry.extents_per_block() {
                let extent = self.owners.len();
                if extent == self.geometry.extents as usize {
                    break;
                }
                is_damaged.push(payload.is_none());
                let at = at * self.geometry.entry_len();
                let owner = payload.map(|payload| Owner {
                    serial: u64::from_le_bytes(get(payload, at)),
                    ordinal: u32::from_le_bytes(get(payload, at + 8)),
                });
                let owner = owner.unwrap_or(Owner { serial: KEPT, ordinal: 0 });
                self.owners.push(owner);
                if let Some(slot) = by_serial.get(&owner.serial)
                    && let Slot::Row(row) = &mut self.slots[*slot as usize]
                {
                    let extent = u32::try_from(extent).unwrap_or(u32::MAX);
                    match row.extents.get_mut(owner.ordinal as usize) {
                        Some(place) if *place == u32::MAX => *place = extent,
                        Some(_) | None => row.lost = Some("its extents contradict one another"),
                    }
                }
            }
        }
        assert_eq!(self.owners.len(), self.geometry.extents as usize, "an entry for each extent");
        is_damaged
    }

    /// Says which rows lack something; whether any does.
    fn judge(&mut self) -> bool {
        let mut lacks_some = self.damaged_rows() > 0;
        for slot in &mut self.slots {
            let Slot::Row(row) = slot else { continue };
            if row.extents.contains(&u32::MAX) {
                lacks_some = true;
                row.lost.get_or_insert("what the disk says of some of its extents is damaged");
            }
        }
        lacks_some
    }

    /// Extents of rows that are gone, or that never came to be, are free, unless a row that cannot be read may
    /// own them. Those with damaged entries are, unless a row lacks some.
    fn release_orphans(&mut self, is_damaged: &[bool], lacks_some: bool) {
        let is_any_row_damaged = self.damaged_rows() > 0;
        let serials: HashSet<_> = self.rows().map(|row| row.serial).collect();
        for (owner, is_damaged) in self.owners.iter_mut().zip(is_damaged) {
            let is_kept = if *is_damaged { lacks_some } else { is_any_row_damaged };
            let is_orphan = !serials.contains(&owner.serial);
            if owner.serial == 0 || (is_orphan && !is_kept) {
                *owner = NOBODY;
                self.free += 1;
            }
        }
    }

    /// The first place where so many are free next to each other; else the longest places first.
    fn choose(&self, count: u32) -> Vec<u32> {
        let mut runs = self.free_runs();
        if let Some((first, _)) = runs.iter().find(|(_, len)| *len >= count) {
            return (*first..first + count).collect();
        }
        runs.sort_by_key(|(_, len)| std::cmp::Reverse(*len));
        let all = runs.into_iter().flat_map(|(first, len)| first..first + len);
        let chosen: Vec<u32> = all.take(count as usize).collect();
        assert_eq!(chosen.len(), count as usize, "as many are free as were counted");
        chosen
    }

    fn free_runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (extent, owner) in (0..).zip(&self.owners) {
            match runs.last_mut() {
                _ if *owner != NOBODY => {}
                Some((first, len)) if *first + *len == extent => *len += 1,
                _ => runs.push((extent, 1)),
            }
        }
        runs
    }
}

fn decode_row(geometry: &Geometry, payload: Option<&[u8]>, left: &mut usize) -> Slot {
    let Some(payload) = payload else { return Slot::Damaged };
    let serial = u64::from_le_bytes(get(payload, 0));
    if serial == 0 {
        return Slot::Empty;
    }
    let len_bytes = u64::from_le_bytes(get(payload, 40));
    let label_len = usize::from(u16::from_le_bytes(get(payload, 48)));
    let count = geometry.extents_of(len_bytes);
    let count = usize::try_from(count).ok().filter(|count| (1..=*left).contains(count));
    let (Some(count), true, true) = (count, label_len <= LABEL_LEN_MAX, serial < KEPT) else {
        return Slot::Damaged;
    };
    *left -= count;
    Slot::Row(Row {
        key: (MediatorId(get(payload, 8)), SegmentId(get(payload, 24))),
        serial,
        len_bytes,
        label: payload[LABEL..LABEL + label_len].to_vec(),
        extents: vec![u32::MAX; count],
        lost: None,
    })
}
