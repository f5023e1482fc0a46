//! Which segment has which extents of the disk (docs/formats/agent-disk.md). No input or output.
//!
//! An extent's entry names the row that owns it by the row's serial number, which no other row ever
//! has, and says which part of the segment it is. A row that is there makes all of its entries count at once, and one
//! that is gone makes all of them void: what is written last decides.
//!
//! Invariant: no extent has two owners. Extents of which it is not certain that nobody owns them are given to nobody.

use std::collections::{HashMap, HashSet};

use netraid_block::narrow;
use netraid_control::units::{MediatorId, SegmentId};

use super::{
    block::{PAYLOAD_LEN, get, put},
    geometry::{ENTRY_HEAD_LEN, Geometry},
};
use crate::{book::BLOCK_LEN, records::Key};

/// Where a row's label begins in its payload.
const LABEL: usize = 64;
/// Bytes of a label, at most.
pub(super) const LABEL_LEN_MAX: usize = PAYLOAD_LEN - LABEL;
/// Serial numbers begin at 1 and end before this one, which is of extents that nobody gets.
const KEPT: u64 = u64::MAX;
/// Serial numbers that a disk may leave out between two that new ones follow: no disk sees so many segments made.
/// Larger numbers behind such a gap lead nothing, so that no number on a disk brings serial numbers to their end:
/// 2^40 for each of 2^18 extents and 2^15 rows are less than 2^59.
const GAP_MAX: u64 = 1 << 40;

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
    /// Both copies of its block are damaged, or the row cannot be, or contradicts another one. It stays as it is.
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
    /// Segments of which there are rows, and none that is believed.
    contested: HashSet<Key>,
    owners: Vec<Owner>,
    free: u32,
    next_serial: u64,
    /// Serial numbers from `next_serial` to this one are on the disk nowhere.
    serial_end: u64,
}

/// Why there is no place for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("it takes {wanted} extents of the disk, and {free} are free; give less --space")]
    Extents { wanted: u64, free: u32 },
    #[error("the disk has as many segments as its table has rows, {0}; remove some")]
    Rows(usize),
    #[error(
        "the disk's table contradicts itself about this segment; format the disk anew, or give another one"
    )]
    Contested,
    #[error(transparent)]
    Label(#[from] LabelTooLong),
}

/// A label does not fit beside its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "its label has {0} bytes; {LABEL_LEN_MAX} at most fit into the disk's table: set a shorter label"
)]
pub(super) struct LabelTooLong(usize);

fn check_label(label: &[u8]) -> Result<(), LabelTooLong> {
    if label.len() > LABEL_LEN_MAX {
        return Err(LabelTooLong(label.len()));
    }
    Ok(())
}

impl Table {
    /// What blocks say: the payloads of all blocks of entries and of all rows, in order; none where it
    /// cannot be known.
    pub(super) fn load<'a>(
        geometry: Geometry,
        entries: impl Iterator<Item = Option<&'a [u8]>>,
        rows: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Self {
        let mut serials = Vec::new();
        let slots: Vec<_> = rows
            .map(|payload| {
                serials.extend(payload.map(serial_of));
                decode_row(&geometry, payload)
            })
            .collect();
        assert_eq!(slots.len(), geometry.rows as usize, "a payload for each row");
        let mut table = Self {
            geometry,
            slots,
            by_key: HashMap::new(),
            contested: HashSet::new(),
            owners: Vec::with_capacity(geometry.extents as usize),
            free: 0,
            next_serial: 1,
            serial_end: 1,
        };
        let by_serial = table.index();
        let is_damaged = table.read_entries(entries);
        table.place_extents(&by_serial);
        table.number(serials);
        let lacks_some = table.judge();
        table.release_orphans(&is_damaged, lacks_some);
        table
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

    /// Rows that cannot be read, or not be believed.
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
        if self.contested.contains(&key) {
            return Err(Full::Contested);
        }
        check_label(label)?;
        let wanted = self.geometry.extents_of(len_bytes);
        let short = Full::Extents { wanted, free: self.free };
        let count = u32::try_from(wanted).ok().filter(|count| *count <= self.free).ok_or(short)?;
        let slot = self.slots.iter().position(|slot| *slot == Slot::Empty);
        let slot = slot.ok_or(Full::Rows(self.slots.len()))?;
        let extents = self.choose(count);
        let serial = self.next_serial;
        assert!(serial < self.serial_end, "one run makes no more than 2^40 segments");
        self.next_serial += 1;
        for (ordinal, extent) in (0..).zip(&extents) {
            let owner = &mut self.owners[*extent as usize];
            assert_eq!(*owner, NOBODY, "extent {extent} has one owner");
            *owner = Owner { serial, ordinal };
        }
        self.free -= count;
        let label = label.to_vec();
        self.slots[slot] = Slot::Row(Row { key, serial, len_bytes, label, extents, lost: None });
        let slot = narrow(slot);
        self.by_key.insert(key, slot);
        Ok(slot)
    }

    /// The row's block is to say that it is gone; its extents are kept until [`Self::release`].
    pub(super) fn remove(&mut self, key: Key) -> Option<(u32, Row)> {
        let slot = self.by_key.remove(&key)?;
        match std::mem::replace(&mut self.slots[slot as usize], Slot::Empty) {
            Slot::Row(row) => Some((slot, row)),
            found @ (Slot::Empty | Slot::Damaged) => {
                unreachable!("segment {} leads to {found:?}", key.1)
            }
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
        assert!(self.free <= self.geometry.extents, "no extent is given back twice");
        let has_all = row.lost.is_some() || released.len() == row.extents.len();
        assert!(
            has_all,
            "{} of the {} extents that the row had",
            released.len(),
            row.extents.len()
        );
        released
    }

    /// A segment cannot be served any more.
    pub(super) fn lose(&mut self, key: Key, why: &'static str) {
        let slot = self.by_key.get(&key).map(|slot| *slot as usize);
        if let Some(Slot::Row(row)) = slot.and_then(|slot| self.slots.get_mut(slot)) {
            row.lost = Some(why);
        }
    }

    /// The slot of a segment that there is.
    pub(super) fn set_label(
        &mut self,
        key: Key,
        label: &[u8],
    ) -> Result<Option<u32>, LabelTooLong> {
        check_label(label)?;
        let Some(slot) = self.by_key.get(&key).copied() else { return Ok(None) };
        match &mut self.slots[slot as usize] {
            Slot::Row(row) => row.label = label.to_vec(),
            Slot::Empty | Slot::Damaged => return Ok(None),
        }
        Ok(Some(slot))
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
    pub(super) fn encode_row(&self, slot: u32, payload: &mut [u8]) -> Result<(), LabelTooLong> {
        payload.fill(0);
        let Slot::Row(row) = &self.slots[slot as usize] else { return Ok(()) };
        check_label(&row.label)?;
        put(payload, 0, &row.serial.to_le_bytes());
        put(payload, 8, &row.key.0.0);
        put(payload, 24, &row.key.1.0);
        put(payload, 40, &row.len_bytes.to_le_bytes());
        let len: u16 = narrow(row.label.len());
        put(payload, 48, &len.to_le_bytes());
        put(payload, LABEL, &row.label);
        Ok(())
    }

    /// Finds rows by serial number. Of rows that share a segment or a serial number, nobody knows which one is
    /// right: all of them are lost.
    fn index(&mut self) -> HashMap<u64, u32> {
        let (mut keys, mut serials) = (HashMap::new(), HashMap::new());
        for row in self.rows() {
            *keys.entry(row.key).or_insert(0) += 1;
            *serials.entry(row.serial).or_insert(0) += 1;
        }
        for slot in &mut self.slots {
            if let Slot::Row(row) = slot
                && (keys.get(&row.key) != Some(&1) || serials.get(&row.serial) != Some(&1))
            {
                self.contested.insert(row.key);
                *slot = Slot::Damaged;
            }
        }
        let mut by_serial = HashMap::new();
        for (slot, found) in (0..).zip(&self.slots) {
            let Slot::Row(row) = found else { continue };
            self.by_key.insert(row.key, slot);
            by_serial.insert(row.serial, slot);
        }
        by_serial
    }

    /// Reads all entries; which extents' entries are damaged.
    fn read_entries<'a>(&mut self, blocks: impl Iterator<Item = Option<&'a [u8]>>) -> Vec<bool> {
        let mut is_damaged = Vec::with_capacity(self.geometry.extents as usize);
        for payload in blocks {
            for at in 0..self.geometry.extents_per_block() {
                if self.owners.len() == self.geometry.extents as usize {
                    break;
                }
                is_damaged.push(payload.is_none());
                let at = at * self.geometry.entry_len();
                let owner = payload.map(|payload| Owner {
                    serial: u64::from_le_bytes(get(payload, at)),
                    ordinal: u32::from_le_bytes(get(payload, at + 8)),
                });
                self.owners.push(owner.unwrap_or(Owner { serial: KEPT, ordinal: 0 }));
            }
        }
        assert_eq!(self.owners.len(), self.geometry.extents as usize, "an entry for each extent");
        is_damaged
    }

    /// Gives rows the extents whose entries name them. A row takes memory for as many as do, whatever length it
    /// says.
    fn place_extents(&mut self, by_serial: &HashMap<u64, u32>) {
        let mut named: HashMap<u64, u64> = HashMap::new();
        for owner in &self.owners {
            *named.entry(owner.serial).or_default() += 1;
        }
        for slot in &mut self.slots {
            let Slot::Row(row) = slot else { continue };
            let named = named.get(&row.serial).copied().unwrap_or(0);
            let count = self.geometry.extents_of(row.len_bytes).min(named);
            row.extents = vec![u32::MAX; narrow(count)];
        }
        for (extent, owner) in (0..).zip(&self.owners) {
            let slot = by_serial.get(&owner.serial).map(|slot| *slot as usize);
            let Some(Slot::Row(row)) = slot.and_then(|slot| self.slots.get_mut(slot)) else {
                continue;
            };
            let is_within = u64::from(owner.ordinal) < self.geometry.extents_of(row.len_bytes);
            match row.extents.get_mut(owner.ordinal as usize) {
                Some(place) if *place == u32::MAX => *place = extent,
                // Some of its entries are missing, and that is found below.
                None if is_within => {}
                Some(_) | None => row.lost = Some("its extents contradict one another"),
            }
        }
    }

    /// Chooses where new serial numbers begin: behind those of all rows and entries, but for those behind a gap that no
    /// segments ever filled.
    fn number(&mut self, mut serials: Vec<u64>) {
        serials.extend(self.owners.iter().map(|owner| owner.serial));
        serials.retain(|serial| *serial != KEPT);
        serials.sort_unstable();
        let mut last = 0;
        for serial in serials {
            if serial - last > GAP_MAX {
                break;
            }
            last = serial;
        }
        self.next_serial = last + 1;
        self.serial_end = last + GAP_MAX;
    }

    /// Says which rows lack something; whether any does.
    fn judge(&mut self) -> bool {
        let mut lacks_some = self.damaged_rows() > 0;
        for slot in &mut self.slots {
            let Slot::Row(row) = slot else { continue };
            let is_short = (row.extents.len() as u64) < self.geometry.extents_of(row.len_bytes);
            if is_short || row.extents.contains(&u32::MAX) {
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

fn serial_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(get(payload, 0))
}

fn decode_row(geometry: &Geometry, payload: Option<&[u8]>) -> Slot {
    let Some(payload) = payload else { return Slot::Damaged };
    let serial = serial_of(payload);
    if serial == 0 {
        return Slot::Empty;
    }
    let len_bytes = u64::from_le_bytes(get(payload, 40));
    let label_len = usize::from(u16::from_le_bytes(get(payload, 48)));
    let count = geometry.extents_of(len_bytes);
    let is_possible = (1..=u64::from(geometry.extents)).contains(&count)
        && len_bytes.is_multiple_of(u64::from(BLOCK_LEN))
        && label_len <= LABEL_LEN_MAX
        && serial < KEPT;
    if !is_possible {
        return Slot::Damaged;
    }
    Slot::Row(Row {
        key: (MediatorId(get(payload, 8)), SegmentId(get(payload, 24))),
        serial,
        len_bytes,
        label: payload[LABEL..LABEL + label_len].to_vec(),
        extents: Vec::new(),
        lost: None,
    })
}
