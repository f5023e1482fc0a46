//! What hostile members may hold of an array with a log: batches, checkpoints, lists of snapshots, and pages of its
//! tables, valid ones with changed bytes under a right checksum. Nothing panics; what is read means
//! the same when it is written again; a walk along the log ends, and never goes past what the ring
//! holds; a table that was loaded says of no stripe two things.

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use netraid_raid::{
    checkpoint::{Checkpoint, ListName},
    format::Format,
    geometry::Level,
    log::{
        Basis, Batch, Begin, Beginnings, Bounds, Link, LogKey, Position, Record, Ring, Walk,
        head_blocks,
    },
    regions::{LIST_OFFSETS, LoggedShape},
    snapshots::{Snapshot, SnapshotList},
    stripes::{Entry, Interval, StripePage, StripeTable},
    sums::{SumLayout, SumPage},
};

use crate::operations;

/// Where the checksum of everything is.
const CRC: std::ops::Range<usize> = 12..16;
const UUID: [u8; 16] = [7; 16];
const KEY: LogKey = LogKey { array_uuid: UUID, salt: 0x5a17 };

/// Bytes that differ from what was written, and whether the checksum is right again.
#[derive(Debug, Arbitrary)]
struct Changes {
    bytes: Vec<(u16, u8)>,
    checksum: bool,
}

impl Changes {
    fn apply(&self, image: &mut [u8], place: u64) {
        for (at, value) in self.bytes.iter().take(6) {
            let at = usize::from(*at) % image.len();
            image[at] = *value;
        }
        if self.checksum || self.bytes.is_empty() {
            image[CRC].fill(0);
            let crc = crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), image);
            image[CRC].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    match kind % 5 {
        4 => lists(rest),
        0 => checkpoints(rest),
        1 => stripe_pages(rest),
        2 => sum_pages(rest),
        _ => log(rest),
    }
}

#[derive(Debug, Arbitrary)]
struct AnyCheckpoint {
    generation: u64,
    counter: u64,
    round: u32,
    tail: u64,
    stripe_images: u64,
    changes: Changes,
    list: (u64, u32),
}

fn checkpoints(input: &[u8]) {
    for one in operations::<AnyCheckpoint>(input, 20) {
        let tail = Link { end: Position(one.tail), crc: 1 };
        let (generation, counter, round) = (one.generation, one.counter, one.round);
        let stripe_images = one.stripe_images;
        let list = ListName { counter: one.list.0, crc: one.list.1 };
        let checkpoint = Checkpoint { generation, counter, round, tail, stripe_images, list };
        let mut image = checkpoint.encode(UUID);
        one.changes.apply(&mut image, checkpoint.offset());
        for slot in [0, 1] {
            let Ok(read) = Checkpoint::decode(&image, UUID, slot) else { continue };
            assert_eq!(read.slot(), slot, "a checkpoint in another's slot");
            assert!(read.round < u32::MAX - 1 && read.tail.end.0 <= 1 << 60);
            assert_eq!(Checkpoint::decode(&read.encode(UUID), UUID, slot), Ok(read));
        }
    }
}

#[derive(Debug, Arbitrary)]
struct AnyStripePage {
    index: u8,
    counter: u8,
    round: u8,
    uncounted: u8,
    /// Where, and which logical stripe.
    entries: Vec<(u16, u16, u8)>,
    changes: Changes,
}

fn stripe_pages(input: &[u8]) {
    let (logical, physical) = (900, 1100);
    let format = if input.len().is_multiple_of(2) { Format::One } else { Format::Two };
    let mut table = StripeTable::new(format, logical, physical);
    for one in operations::<AnyStripePage>(input, 20) {
        let mut entries = vec![Entry::default(); format.stripes_per_page() as usize];
        for (at, logical, round) in one.entries.iter().take(200) {
            let at = usize::from(*at) % entries.len();
            let (logical, round) = (Some(u32::from(*logical)), u32::from(*round));
            entries[at] = Entry { logical, round, interval: Interval::open(1 + round % 3) };
        }
        let (index, counter) = (u64::from(one.index % 4), u64::from(one.counter));
        let (round, uncounted) = (u32::from(one.round), u32::from(one.uncounted));
        let entries = entries.into_iter().collect();
        let page = StripePage { index, counter, round, uncounted, entries };
        let mut image = page.encode(format, UUID, 4096);
        one.changes.apply(&mut image, 4096);
        let Ok(page) = StripePage::decode(&image, format, UUID, 4096) else { continue };
        let again = page.encode(format, UUID, 4096);
        assert_eq!(StripePage::decode(&again, format, UUID, 4096).as_ref(), Ok(&page));
        assert!(page.counted(u32::from(one.round) / 2) <= page.counter);
        table.load(&page);
    }
    let mut holders = BTreeMap::new();
    for stripe in 0..logical {
        let Some(at) = table.find(stripe) else { continue };
        assert_eq!(table.entry(at).logical, Some(stripe));
        assert_eq!(holders.insert(at, stripe), None, "two stripes at {at}");
    }
    assert_eq!(table.mapped() as usize, holders.len());
    assert_eq!(table.free() + table.mapped(), physical);
}

#[derive(Debug, Arbitrary)]
struct AnyList {
    counter: u8,
    next_number: u32,
    rolling_back: u8,
    snapshots: Vec<(u8, u64, String)>,
    changes: Changes,
}

fn lists(input: &[u8]) {
    for one in operations::<AnyList>(input, 20) {
        let snapshot = |(number, capacity, name): &(u8, u64, String)| Snapshot {
            number: u32::from(*number),
            flags: 0,
            time_ms: 1,
            capacity: *capacity,
            uuid: UUID,
            name: name.chars().take(15).collect(),
        };
        let list = SnapshotList {
            counter: u64::from(one.counter) + 1,
            next_number: one.next_number,
            rolling_back: u32::from(one.rolling_back),
            snapshots: one.snapshots.iter().take(95).map(snapshot).collect(),
            has_more: false,
        };
        let (mut image, _) = list.encode(UUID);
        one.changes.apply(&mut image, list.offset());
        for (slot, place) in LIST_OFFSETS.into_iter().enumerate() {
            let Ok((read, name)) = SnapshotList::decode(&image, UUID, slot) else { continue };
            assert_eq!((read.offset(), read.counter), (place, name.counter));
            assert!(read.snapshots.iter().all(|one| one.number < read.next_number));
            if read.has_more {
                continue;
            }
            let (again, _) = read.encode(UUID);
            assert_eq!(SnapshotList::decode(&again, UUID, slot).map(|(list, _)| list), Ok(read));
        }
    }
}

#[derive(Debug, Arbitrary)]
struct AnySumPage {
    columns: u8,
    index: u64,
    counter: u8,
    rows: Vec<(u16, u32)>,
    changes: Changes,
}

fn sum_pages(input: &[u8]) {
    for one in operations::<AnySumPage>(input, 20) {
        let columns = one.columns % 64 + 1;
        let layout = SumLayout::new(columns, 16);
        let mut page = SumPage::new(layout, one.index);
        page.counter = u64::from(one.counter);
        for (row, sum) in one.rows.iter().take(50) {
            let sums = vec![*sum; usize::from(columns)];
            page.set_row(u32::from(*row) % layout.rows_per_page(), Some(&sums));
        }
        let mut image = page.encode(UUID, 0);
        one.changes.apply(&mut image, 0);
        let read = SumPage::decode(&image, layout, UUID, 0);
        if one.changes.bytes.is_empty() {
            assert_eq!(read.as_ref(), Ok(&page), "a page as it was written");
        }
        let Ok(read) = read else { continue };
        assert_eq!(SumPage::decode(&read.encode(UUID, 0), layout, UUID, 0).as_ref(), Ok(&read));
        for row in 0..layout.rows_per_page() {
            assert!(read.row(row).is_none_or(|sums| sums.len() == usize::from(columns)));
        }
    }
}

#[derive(Debug, Arbitrary)]
enum AnyRecord {
    Data { block: u16 },
    Zeroes { block: u16, count: u64 },
    Parity { stripe: u8, row: u8, round: u32, checks: u8, basis: Vec<(u8, Option<u8>)> },
    Remap { stripe: u8, to: Option<u8>, void_upto: u8, written: Vec<bool>, sums: u16 },
    Open { dropped: Vec<(u8, u8)> },
}

impl AnyRecord {
    fn record(&self) -> Record {
        match self {
            Self::Data { block } => Record::Data { block: u64::from(*block), crc: 0 },
            Self::Zeroes { block, count } => {
                Record::Zeroes { block: u64::from(*block), count: *count }
            }
            Self::Parity { stripe, row, round, checks, basis } => Record::Parity {
                stripe: u64::from(*stripe % 64),
                row: u32::from(*row % 3),
                round: *round,
                checks: vec![0; usize::from(*checks % 5)],
                basis: basis
                    .iter()
                    .take(10)
                    .map(|(column, at)| Basis {
                        column: *column,
                        crc: 1,
                        position: at.map(|at| Position(u64::from(at))),
                        zeroes: column % 2 == 0,
                    })
                    .collect(),
            },
            Self::Remap { stripe, to, void_upto, written, sums } => Record::Remap {
                stripe: u64::from(*stripe % 64),
                to: to.map(|to| u64::from(to % 64)),
                void_upto: Position(u64::from(*void_upto)),
                written: written.iter().copied().take(40).collect(),
                sums: vec![0; usize::from(*sums % 1024)],
            },
            Self::Open { dropped } => {
                let pair = |(at, stripe): &(u8, u8)| (Position(u64::from(*at)), u64::from(*stripe));
                Record::Open { dropped: dropped.iter().take(50).map(pair).collect() }
            }
        }
    }
}

#[derive(Debug, Arbitrary)]
struct AnyBatch {
    records: Vec<AnyRecord>,
    /// A new generation begins here.
    begins: bool,
    /// It stands elsewhere than it should.
    misplaced: u8,
    changes: Changes,
}

/// A chain of batches in a small ring, and the walk along it.
fn log(input: &[u8]) {
    let shape = LoggedShape {
        level: Level::Raid5,
        members: 5,
        chunk_len: 8192,
        block_len: 512,
        logical_stripes: 40,
        physical_stripes: 48,
        log_blocks: 64,
        format: Format::Two,
    };
    let (regions, geometry) = shape.layout().expect("a shape that can be");
    let (ring, bounds) = (Ring::new(64), Bounds::new(&geometry, &regions));
    let mut media: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut beginnings = Beginnings::default();
    let (mut generation, mut link) = (1, Link::default());
    beginnings.begin(Begin { generation, position: link.end });
    for one in operations::<AnyBatch>(input, 30) {
        if one.begins && beginnings.has_room() {
            generation += 1;
            beginnings.begin(Begin { generation, position: link.end });
        }
        let batch = Batch {
            generation,
            position: link.end,
            previous: link,
            stable_upto: Position(0),
            acked_upto: Position(0),
            records: one.records.iter().take(20).map(AnyRecord::record).collect(),
        };
        let blocks = batch.blocks();
        if blocks > 32 {
            continue;
        }
        let position = ring.place(link.end, blocks).after(u32::from(one.misplaced / 128));
        let batch = Batch { position, ..batch };
        let (mut head, crc) = batch.encode(&KEY);
        if one.changes.bytes.is_empty() {
            let read = Batch::decode(&head, position, &KEY).expect("a batch as it was written");
            assert_eq!(read, (batch.clone(), crc));
            link = Link { end: batch.end(), crc };
        }
        one.changes.apply(&mut head, KEY.salt);
        media.insert(ring.offset(position), head);
    }
    for tail in [Link::default(), link] {
        walk(ring, &beginnings, tail, &media, &bounds);
    }
}

fn walk(
    ring: Ring,
    beginnings: &Beginnings,
    tail: Link,
    media: &BTreeMap<u64, Vec<u8>>,
    bounds: &Bounds,
) {
    let mut walk = Walk::new(ring, beginnings, tail);
    loop {
        let here = walk.link().end;
        let next = walk.places().find_map(|place| {
            let head = media.get(&ring.offset(place))?;
            let (batch, crc) = Batch::decode(head, place, &KEY).ok()?;
            let blocks = head_blocks(&head[..4096], place, &KEY).expect("it was decoded");
            assert_eq!(blocks as usize * 4096, head.len());
            let again = batch.encode(&KEY).0;
            let (again, _) = Batch::decode(&again, place, &KEY).expect("our own batch");
            assert_eq!(again, batch);
            walk.take(&batch, crc).then_some(batch)
        });
        let Some(batch) = next else { break };
        assert_eq!(beginnings.owner(batch.position), Some(batch.generation));
        assert!(walk.link().end > here && walk.link().end.0 - tail.end.0 <= ring.blocks());
        for (position, record) in batch.records_at() {
            let end = position.0 + u64::from(record.payload_blocks());
            assert!(batch.position <= position && end <= batch.end().0);
        }
        let _ = bounds.check(&batch);
    }
}
