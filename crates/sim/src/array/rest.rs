//! What is on the media when nothing is under way, read without the machine.
//!
//! From the labels, tables and chunks alone: every page of the tables is on all of its holders in
//! the same newest image, no two logical stripes have one physical stripe, every block of every
//! row that was written has its checksum, and every row is what its level says: so any subset of
//! members that the level can do without gives the same bytes. What parity is, is said here once
//! more, slowly.
//!
//! Members that are not in sync are not looked at; what they would hold is computed.

use std::collections::{BTreeMap, BTreeSet};

use netraid_block::{Buf, BufMut, SgList, narrow};
use netraid_raid::{
    bytes,
    checkpoint::{Checkpoint, ListName},
    geometry::{Geometry, Level},
    label::{Closure, Label},
    member::{MemberIndex, MemberState},
    pages::TablePages,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, LIST_LEN, PAGE_LEN},
    snapshots::SnapshotList,
    stripes::{Entries, Entry, StripePage},
    sums::{SumLayout, SumPage},
};

use super::tables::Tables;
use crate::disk::Disk;

const BLOCK: u32 = 4096;

/// Looks at everything; answers the volume as the media have it. After a clean close the labels
/// must say so too.
///
/// # Errors
/// What is not as it should be.
pub fn look(
    disks: &[&Disk],
    label: &Label,
    tables: &Tables,
    is_closed: bool,
) -> Result<SgList, String> {
    let in_sync = label.members.iter().map(|entry| entry.state == MemberState::InSync).collect();
    let media = Media { disks, label, tables, in_sync };
    media.check_labels(is_closed)?;
    let physical = media.map()?;
    let geometry = &label.geometry;
    let sums = media.sums(&physical)?;
    let mut volume = BufMut::zeroed(size(geometry.capacity()));
    let stripe_len = size(geometry.stripe_data_len());
    for (logical, physical) in physical {
        let data = &mut volume[logical as usize * stripe_len..][..stripe_len];
        for row in 0..geometry.chunk_len() / BLOCK {
            media.read_row(u64::from(physical), row, &sums, data)?;
        }
    }
    Ok(volume.freeze().into())
}

struct Media<'a> {
    disks: &'a [&'a Disk],
    label: &'a Label,
    tables: &'a Tables,
    in_sync: Vec<bool>,
}

/// Checksums by page.
type Sums = BTreeMap<u64, SumPage>;

impl Media<'_> {
    fn read(&self, member: usize, offset: u64, len: u32) -> Result<Buf, String> {
        let disk = self.disks[member];
        let block = u64::from(disk.shape().block_len);
        let blocks = offset / block..(offset + u64::from(len)) / block;
        let read = disk.read(blocks).map(|data| data.to_contiguous());
        read.map_err(|bad| format!("member {member}: block {} is unreadable", bad.block))
    }

    fn members(&self) -> impl Iterator<Item = usize> {
        (0..self.disks.len()).filter(|member| self.in_sync[*member])
    }

    fn check_labels(&self, is_closed: bool) -> Result<(), String> {
        if !self.tables.fit(self.label.log.as_ref()) {
            return Err(format!("the label is not of {:?}", self.tables.format));
        }
        let mut checkpoints = Vec::new();
        for member in self.members() {
            let mut copies = Vec::new();
            for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
                let bytes = self.read(member, offset, PAGE_LEN)?;
                let label = Label::decode(&bytes, copy);
                copies.push(label.map_err(|error| format!("member {member}: {error}"))?);
            }
            let expected = Label { index: index(member), ..self.label.clone() };
            if is_closed && copies.iter().any(|copy| *copy != expected) {
                return Err(format!("member {member}: labels {copies:?}, not {expected:?}"));
            }
            if is_closed && copies[0].closure != Closure::Clean {
                return Err(format!("member {member} is not clean after a close"));
            }
            let mut newest: Option<Checkpoint> = None;
            for (slot, offset) in CHECKPOINT_OFFSETS.into_iter().enumerate() {
                let bytes = self.read(member, offset, PAGE_LEN)?;
                let uuid = self.label.array_uuid;
                let Ok(found) = Checkpoint::decode(&bytes, uuid, slot) else { continue };
                let key = |it: &Checkpoint| (it.generation, it.counter);
                if newest.as_ref().is_none_or(|newest| key(newest) < key(&found)) {
                    newest = Some(found);
                }
            }
            checkpoints.push(newest.ok_or(format!("member {member} has no checkpoint"))?);
        }
        match checkpoints.iter().find(|one| **one != checkpoints[0]) {
            None => checkpoints.first().map_or(Ok(()), |newest| self.check_lists(newest)),
            Some(other) => Err(format!("checkpoints differ: {:?} and {other:?}", checkpoints[0])),
        }
    }

    /// The list of snapshots of before the run is named still, and on each member in sync.
    fn check_lists(&self, newest: &Checkpoint) -> Result<(), String> {
        let Some(list) = self.tables.list() else {
            let is_named = newest.list != ListName::NONE;
            return if is_named { Err(format!("{newest:?} names a list")) } else { Ok(()) };
        };
        let (_, name) = list.encode(self.label.array_uuid);
        if newest.list != name {
            return Err(format!("{newest:?} does not name {name:?}"));
        }
        for member in self.members() {
            let bytes = self.read(member, list.offset(), LIST_LEN)?;
            let found = SnapshotList::decode(&bytes, self.label.array_uuid, name.slot());
            if found != Ok((list.clone(), name)) {
                return Err(format!("member {member} lacks {name:?}: {found:?}"));
            }
        }
        Ok(())
    }

    /// The newest image of a page, the same on all holders in sync.
    fn page<T: PartialEq + core::fmt::Debug>(
        &self,
        table: &TablePages,
        page: u64,
        decode: impl Fn(&[u8], u64) -> Option<(u64, T)>,
    ) -> Result<Option<T>, String> {
        let mut images: Vec<(usize, Option<(u64, T)>)> = Vec::new();
        for holder in table.holders(page).iter().map(MemberIndex::as_usize) {
            if !self.in_sync[holder] {
                continue;
            }
            let mut newest: Option<(u64, T)> = None;
            for slot in 0..2 {
                let place = table.slot_offset(page, index(holder), slot);
                let bytes = self.read(holder, place, PAGE_LEN)?;
                let found = decode(&bytes, place);
                if newest.as_ref().map(|it| it.0) < found.as_ref().map(|it| it.0) {
                    newest = found;
                }
            }
            images.push((holder, newest));
        }
        let first = images.first().map(|(_, image)| image);
        if let Some((member, image)) = images.iter().find(|(_, image)| Some(image) != first) {
            let counter = |image: &Option<(u64, T)>| image.as_ref().map(|it| it.0);
            return Err(format!(
                "page {page} of the table at {:#x}: image {:?} on member {member}, {:?} on {}",
                table.region_offset,
                counter(image),
                first.map(counter),
                images[0].0,
            ));
        }
        Ok(images.into_iter().next().and_then(|(_, image)| image).map(|(_, page)| page))
    }

    /// Which physical stripe each logical one has.
    fn map(&self) -> Result<BTreeMap<u32, u32>, String> {
        let geometry = &self.label.geometry;
        let table = self.label.regions.stripe_pages(geometry);
        let physical_stripes = self.label.regions.physical_stripes(geometry);
        let mut map = BTreeMap::new();
        let format = self.tables.format;
        let per_page = u64::from(format.stripes_per_page());
        for number in 0..physical_stripes.div_ceil(per_page) {
            let found = self.page(&table, number, |bytes, place| {
                let page = StripePage::decode(bytes, format, self.label.array_uuid, place).ok()?;
                (page.index == number).then_some((page.counter, page.entries))
            })?;
            let first = number * per_page;
            let found: Vec<Entry> = found.iter().flat_map(Entries::iter).collect();
            for (physical, entry) in (first..physical_stripes).zip(found) {
                let Some(logical) = entry.logical else { continue };
                if u64::from(logical) >= geometry.stripes() {
                    return Err(format!("stripe {physical} holds {logical}, which is none"));
                }
                let (born, expected) = (entry.interval.born, self.tables.next_number);
                if born != expected {
                    return Err(format!("stripe {physical} is born {born}, not {expected}"));
                }
                let physical = narrow(physical);
                if let Some(other) = map.insert(logical, physical) {
                    return Err(format!("stripe {logical} is at {other} and at {physical}"));
                }
            }
        }
        Ok(map)
    }

    /// Checksums of all stripes that a logical one has. Pages of others are made the same when they
    /// are loaded.
    fn sums(&self, map: &BTreeMap<u32, u32>) -> Result<Sums, String> {
        let geometry = &self.label.geometry;
        let table = self.label.regions.sum_pages(geometry);
        let layout = sum_layout(geometry);
        let rows = 0..geometry.chunk_len() / BLOCK;
        let page_of = |physical: &u32, row| layout.place(u64::from(*physical), row).page;
        let pages_of = |physical| rows.clone().map(move |row| page_of(physical, row));
        let pages: BTreeSet<u64> = map.values().flat_map(pages_of).collect();
        let mut sums = Sums::new();
        for number in pages {
            let found = self.page(&table, number, |bytes, place| {
                let uuid = self.label.array_uuid;
                let page = SumPage::decode(bytes, layout, uuid, place).ok()?;
                (page.index == number).then_some((page.counter, page))
            })?;
            sums.extend(found.map(|page| (number, page)));
        }
        Ok(sums)
    }

    /// Puts a row's data into the stripe's, after it was checked in every way.
    fn read_row(
        &self,
        physical: u64,
        row: u32,
        sums: &Sums,
        stripe: &mut [u8],
    ) -> Result<(), String> {
        let geometry = &self.label.geometry;
        let place = sum_layout(geometry).place(physical, row);
        let Some(expected) = sums.get(&place.page).and_then(|page| page.row(place.row)) else {
            return Ok(());
        };
        let mut columns: Vec<Option<Buf>> = Vec::new();
        for column in 0..geometry.members() {
            let member = geometry.member_of(physical, column).as_usize();
            if !self.in_sync[member] {
                columns.push(None);
                continue;
            }
            let offset = geometry.member_offset(physical, row * BLOCK);
            let block = self.read(member, offset, BLOCK)?;
            let sum = bytes::sum(&block);
            if sum != expected[usize::from(column)] {
                return Err(format!(
                    "stripe {physical} row {row} column {column} (member {member}): checksum \
                     {sum:#010x}, not {:#010x}",
                    expected[usize::from(column)]
                ));
            }
            columns.push(Some(block));
        }
        let columns = complete(geometry, columns)
            .map_err(|why| format!("stripe {physical} row {row}: {why}"))?;
        for (column, block) in columns.iter().enumerate().take(geometry.data_columns().into()) {
            let sum = bytes::sum(block);
            if sum != expected[column] {
                return Err(format!("stripe {physical} row {row}: column {column} decodes wrong"));
            }
            let at = column * geometry.chunk_len() as usize + (row * BLOCK) as usize;
            stripe[at..at + BLOCK as usize].copy_from_slice(block);
        }
        Ok(())
    }
}

fn sum_layout(geometry: &Geometry) -> SumLayout {
    SumLayout::new(geometry.members(), geometry.chunk_len() / BLOCK)
}

fn index(member: usize) -> MemberIndex {
    MemberIndex(narrow(member))
}

#[track_caller]
fn size(len: u64) -> usize {
    narrow(len)
}

/// All columns of a row from those that are there, which must agree with each other.
fn complete(geometry: &Geometry, columns: Vec<Option<Buf>>) -> Result<Vec<Vec<u8>>, String> {
    let data_columns = usize::from(geometry.data_columns());
    let level = geometry.level();
    let mut known: Vec<Option<Vec<u8>>> =
        columns.iter().map(|block| block.as_ref().map(|block| block.to_vec())).collect();
    match level {
        Level::Raid0 => {}
        Level::Raid1 | Level::Raid10 => {
            for data in 0..data_columns {
                let copies: Vec<usize> = if level == Level::Raid1 {
                    (0..known.len()).collect()
                } else {
                    vec![data, data + data_columns]
                };
                let found = copies.iter().find_map(|at| known[*at].clone());
                copies.iter().for_each(|at| {
                    if known[*at].is_none() {
                        known[*at].clone_from(&found);
                    }
                });
            }
        }
        Level::Raid5 | Level::Raid6 => solve(&mut known, data_columns),
    }
    let complete: Option<Vec<Vec<u8>>> = known.into_iter().collect();
    let complete = complete.ok_or("too few columns are left")?;
    for check in data_columns..complete.len() {
        let expected = match level {
            Level::Raid10 => complete[check - data_columns].clone(),
            Level::Raid0 | Level::Raid1 | Level::Raid5 | Level::Raid6 => {
                let power = if check == data_columns || level != Level::Raid6 { 1 } else { 2 };
                weigh(&complete[..data_columns], power)
            }
        };
        if complete[check] != expected {
            return Err(format!("column {check} does not match the data columns"));
        }
    }
    Ok(complete)
}

/// The sum of columns, the one at i times `power` to the i.
fn weigh(columns: &[Vec<u8>], power: u8) -> Vec<u8> {
    let mut sum = vec![0; BLOCK as usize];
    let mut weight = 1;
    for column in columns {
        let table: [u8; 256] =
            core::array::from_fn(|byte| times(weight, u8::try_from(byte).unwrap_or(0)));
        sum.iter_mut().zip(column).for_each(|(sum, byte)| *sum ^= table[usize::from(*byte)]);
        weight = times(weight, power);
    }
    sum
}

/// Finds at most two missing columns of P and Q.
fn solve(known: &mut [Option<Vec<u8>>], data_columns: usize) {
    let zeros = vec![0; BLOCK as usize];
    let missing: Vec<usize> = (0..data_columns).filter(|at| known[*at].is_none()).collect();
    let data: Vec<Vec<u8>> =
        known[..data_columns].iter().map(|it| it.clone().unwrap_or(zeros.clone())).collect();
    let rest = |check: usize, power: u8| -> Option<Vec<u8>> {
        let check = known.get(check)?.as_ref()?;
        let sum = weigh(&data, power);
        Some(check.iter().zip(sum).map(|(check, sum)| check ^ sum).collect())
    };
    let (p, q) = (rest(data_columns, 1), rest(data_columns + 1, 2));
    match (missing.as_slice(), p, q) {
        ([one], Some(p), _) => known[*one] = Some(p),
        ([one], None, Some(q)) => {
            let factor = inverse(power_of_two(*one));
            known[*one] = Some(q.iter().map(|byte| times(factor, *byte)).collect());
        }
        ([one, other], Some(p), Some(q)) => {
            let (a, b) = (power_of_two(*one), power_of_two(*other));
            let factor = inverse(a ^ b);
            let first: Vec<u8> =
                p.iter().zip(&q).map(|(p, q)| times(factor, q ^ times(b, *p))).collect();
            known[*other] = Some(p.iter().zip(&first).map(|(p, first)| p ^ first).collect());
            known[*one] = Some(first);
        }
        _ => {}
    }
    let complete: Option<Vec<Vec<u8>>> = known[..data_columns].iter().cloned().collect();
    let Some(complete) = complete else { return };
    for (check, power) in (data_columns..known.len()).zip([1, 2]) {
        if known[check].is_none() {
            known[check] = Some(weigh(&complete, power));
        }
    }
}

/// The product in the field of 256 elements modulo x^8 + x^4 + x^3 + x^2 + 1, bit by bit.
const fn times(a: u8, b: u8) -> u8 {
    let (mut product, mut a, mut b) = (0, a, b);
    while b > 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = (a << 1) ^ (if a & 0x80 == 0 { 0 } else { 0x1d });
        b >>= 1;
    }
    product
}

fn power_of_two(exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| times(power, 2))
}

fn inverse(of: u8) -> u8 {
    (1..=255).find(|other| times(of, *other) == 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Seed;
    use rand::RngCore;

    #[test]
    fn missing_columns_are_found_and_wrong_ones_noticed() {
        for (level, members, losses) in [
            (Level::Raid1, 3, 2),
            (Level::Raid5, 4, 1),
            (Level::Raid6, 6, 2),
            (Level::Raid10, 4, 1),
        ] {
            let geometry = Geometry::new(level, members, 4096, 4096, 8, 0).unwrap();
            let mut dice = Seed(3).dice("row");
            let block = |_| {
                let mut bytes = vec![0; 4096];
                dice.fill_bytes(&mut bytes);
                bytes
            };
            let data: Vec<Vec<u8>> = (0..geometry.data_columns()).map(block).collect();
            let mut row = data.clone();
            match level {
                Level::Raid1 => row.resize(members, data[0].clone()),
                Level::Raid10 => row.extend(data.clone()),
                Level::Raid0 | Level::Raid5 | Level::Raid6 => {
                    row.push(weigh(&data, 1));
                    if level == Level::Raid6 {
                        row.push(weigh(&data, 2));
                    }
                }
            }
            for lost in 0_u32..1 << members {
                if lost.count_ones() > losses {
                    continue;
                }
                let columns = |row: &[Vec<u8>]| -> Vec<Option<Buf>> {
                    let is_there = |at: &usize| lost >> at & 1 == 0;
                    let column = |at| is_there(&at).then(|| Buf::copy_from(&row[at]));
                    (0..members).map(column).collect()
                };
                assert_eq!(complete(&geometry, columns(&row)).unwrap(), row, "{level:?} {lost:b}");
                if lost == 0 {
                    for at in 0..members {
                        let mut bad = row.clone();
                        bad[at][77] ^= 4;
                        assert!(complete(&geometry, columns(&bad)).is_err());
                    }
                }
            }
        }
    }
}
