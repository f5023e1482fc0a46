//! What members say of the log that is not so.

use netraid_raid::{
    bytes, crc,
    geometry::Level,
    label::{Label, LogLabel},
    log::{Basis, Batch, LOG_BLOCK_LEN, Link, LogKey, Position, Record, Ring, head_blocks},
};

use super::{
    array::{BLOCK, read},
    forge::with_checksum,
    lies::{newest_checkpoint, write},
};
use crate::{dice::Dice, disk::Disk};

/// Where a head's checksum is.
const CRC_AT: usize = 12;
/// Bytes of a head that stand for nothing: they can give it any checksum.
const SPARE_AT: usize = 124;

/// The log of an array, where it is on each member.
struct Place<'a> {
    log: &'a LogLabel,
    key: LogKey,
    offset: u64,
    ring: Ring,
}

impl<'a> Place<'a> {
    fn new(label: &'a Label) -> Option<Self> {
        let log = label.log.as_ref()?;
        let region = label.regions.log;
        let key = LogKey { array_uuid: label.array_uuid, salt: log.salt };
        Some(Self { log, key, offset: region.offset, ring: Ring::new(region.len / BLOCK) })
    }

    fn offset(&self, position: Position) -> u64 {
        self.offset + self.ring.offset(position)
    }

    /// A batch that begins at a position, and its head's checksum.
    fn batch(&self, disk: &Disk, position: Position) -> Option<(Batch, u32)> {
        let first = read(disk, self.offset(position), BLOCK);
        let blocks = u64::from(head_blocks(&first, position, &self.key).ok()?);
        if position.0 % self.ring.blocks() + blocks > self.ring.blocks() {
            return None;
        }
        let head = read(disk, self.offset(position), blocks * BLOCK);
        Batch::decode(&head, position, &self.key).ok()
    }

    fn generation(&self, position: Position) -> u64 {
        self.log.beginnings.owner(position).unwrap_or(1)
    }
}

/// All batches that members have, from where the oldest of their checkpoints has the log begin, and what follows each.
fn batches(disks: &[Disk], label: &Label) -> Vec<(Batch, Link)> {
    let Some(place) = Place::new(label) else { return Vec::new() };
    let checkpoints = disks.iter().filter_map(|disk| newest_checkpoint(disk, label));
    let Some(first) = checkpoints.min_by_key(|one| one.tail.end) else { return Vec::new() };
    let mut found = Vec::new();
    let mut link = first.tail;
    let last = first.tail.end.0 + place.ring.blocks();
    loop {
        let next = [link.end, place.ring.turn(link.end)].into_iter().find_map(|at| {
            let mut copies = disks.iter().filter_map(|disk| place.batch(disk, at));
            copies.find(|(batch, _)| batch.previous == link && batch.end().0 <= last)
        });
        let Some((batch, crc)) = next else { return found };
        link = Link { end: batch.end(), crc };
        found.push((batch, link));
    }
}

/// Where each of these ends.
pub(super) fn ends_of_batches(disks: &[Disk], label: &Label) -> Vec<Link> {
    batches(disks, label).into_iter().map(|(_, end)| end).collect()
}

/// A head three blocks beyond the last one that there is, which says that all before it was stable. Where the log has
/// no room for that, nobody looks.
pub(super) fn forge_stable(disks: &mut [Disk], liar: usize, label: &Label) -> bool {
    let Some(place) = Place::new(label) else { return false };
    let newest = disks.iter().filter_map(|disk| newest_batch(disk, &place));
    // A head that was forged before may stand where the last one does, and be shorter.
    let Some(newest) = newest.max_by_key(Batch::end) else { return false };
    let position = newest.end().after(3);
    let tails = disks.iter().filter_map(|disk| newest_checkpoint(disk, label));
    let Some(tail) = tails.map(|one| one.tail.end).min() else { return false };
    if position.0.saturating_sub(tail.0) >= place.ring.blocks() {
        return false;
    }
    // By whoever may write there.
    let owner = place.log.beginnings.owner(position);
    let batch = Batch {
        generation: owner.unwrap_or(newest.generation),
        position,
        previous: Link { end: position, crc: 9 },
        stable_upto: position,
        acked_upto: position,
        records: vec![Record::Open { dropped: Vec::new() }],
    };
    let (bytes, _) = batch.encode(&place.key);
    write(&mut disks[liar], place.offset(position), &bytes);
    true
}

/// A whole batch where the next one would be, whose PARITY names DATA that is not in the log, or is of a round that
/// never was.
pub(super) fn forge_homeless(
    disks: &mut [Disk],
    liar: usize,
    label: &Label,
    dice: &mut Dice,
) -> bool {
    let Some(place) = Place::new(label) else { return false };
    let Some(newest) = newest_checkpoint(&disks[liar], label) else { return false };
    let end = ends_of_batches(disks, label).last().copied().unwrap_or(newest.tail);
    let is_copies = matches!(label.geometry.level(), Level::Raid1 | Level::Raid10);
    let checks = label.geometry.members() - label.geometry.data_columns();
    let checks = if is_copies { 0 } else { usize::from(checks) };
    let block = [7; LOG_BLOCK_LEN as usize];
    let crc = bytes::sum(&block);
    // Blocks before the log's beginning are in it no more.
    let position = Some(Position(newest.tail.end.0.saturating_sub(1)));
    let round = newest.round + [1, 2, 5000][dice.index(3)];
    let basis = vec![Basis { column: 0, crc, position, zeroes: false }];
    let lie = Batch {
        generation: place.generation(end.end),
        position: end.end,
        previous: end,
        stable_upto: end.end,
        acked_upto: end.end,
        records: vec![Record::Parity {
            stripe: 0,
            row: 0,
            round,
            checks: vec![crc; checks],
            basis,
        }],
    };
    let (mut image, _) = lie.encode(&place.key);
    (0..checks).for_each(|_| image.extend_from_slice(&block));
    let left = place.ring.blocks() - end.end.0 % place.ring.blocks();
    if end.end.0 == 0 || image.len() as u64 > left * BLOCK {
        return false;
    }
    write(&mut disks[liar], place.offset(end.end), &image);
    true
}

/// The last batch of the log that a member has a copy of, without its records: its head has the same checksum.
pub(super) fn forge_twin(disks: &mut [Disk], liar: usize, label: &Label) -> bool {
    let Some(place) = Place::new(label) else { return false };
    let tails = disks.iter().filter_map(|disk| newest_checkpoint(disk, label));
    let Some(tail) = tails.map(|one| one.tail.end).max() else { return false };
    let all = batches(disks, label).into_iter().filter(|(batch, _)| batch.position >= tail);
    // What the liar alone has, it may have forged before: nobody can contradict that.
    let mut own = all.filter(|(batch, end)| {
        let has = |disk: &Disk| {
            let found = place.batch(disk, batch.position);
            found.is_some_and(|found| found == (batch.clone(), end.crc))
        };
        let mut others = disks.iter().enumerate().filter(|(at, _)| *at != liar);
        has(&disks[liar]) && others.any(|(_, disk)| has(disk))
    });
    let Some((truth, Link { crc, .. })) = own.next_back() else { return false };
    let lie = Batch { records: Vec::new(), ..truth };
    if place.ring.place(lie.previous.end, lie.blocks()) != lie.position {
        return false;
    }
    let (head, _) = lie.encode(&place.key);
    let checksum = |head: &[u8]| checksum_of(head, &place.key);
    let Some(head) = with_checksum(head, (CRC_AT, SPARE_AT), crc, checksum) else { return false };
    write(&mut disks[liar], place.offset(lie.position), &head);
    true
}

/// A head's checksum, as `docs/formats/array.md` has it.
fn checksum_of(head: &[u8], key: &LogKey) -> u32 {
    let parts = [&key.salt.to_le_bytes()[..], &head[..CRC_AT], &[0; 4], &head[CRC_AT + 4..]];
    parts.iter().fold(0, |crc, part| crc::append(crc, part))
}

/// The last batch of the log that a member has.
fn newest_batch(disk: &Disk, place: &Place<'_>) -> Option<Batch> {
    let mut newest: Option<Batch> = None;
    for at in 0..place.ring.blocks() {
        let first = read(disk, place.offset + at * BLOCK, BLOCK);
        // Where it says that it stands.
        let bytes = first[40..48].try_into().unwrap_or([0; 8]);
        let position = Position(u64::from_le_bytes(bytes));
        if position.0 % place.ring.blocks() != at {
            continue;
        }
        let Some((batch, _)) = place.batch(disk, position) else { continue };
        if newest.as_ref().is_none_or(|known| known.position < batch.position) {
            newest = Some(batch);
        }
    }
    newest
}
