//! One run: an array is used, its engine ends, members lie, and it is opened again.

use netraid_block::{Op, narrow};
use netraid_raid::{format, geometry::Level, regions::LoggedShape};

use super::{
    Counts,
    array::{Array, BLOCK, SECTOR},
    lies::{Lie, put_back},
};
use crate::{
    array::tables::Tables,
    dice::{Dice, Seed},
    disk::{Disk, DiskShape, Fill},
};

/// Engines of a run.
const LIVES: u32 = 8;
/// No number that the array has written goes beyond this.
const NUMBER_MAX: u64 = 1 << 33;

/// How a run ended.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was wrong, if anything.
    pub violation: Option<String>,
    /// What it saw.
    pub counts: Counts,
    /// What happened, line by line.
    pub lines: Vec<String>,
}

/// Runs a seed.
#[must_use]
pub fn run_one(seed: Seed) -> Outcome {
    let mut world = World::new(seed);
    let violation = world.run().err();
    Outcome { violation, counts: world.counts, lines: world.lines }
}

/// What members are put back to.
#[derive(Clone)]
struct Older {
    images: Vec<Disk>,
    /// A member was replaced since: the images know nothing of the device that has its place.
    is_before_replacement: bool,
}

struct World {
    dice: Dice,
    level: Level,
    disks: Vec<Disk>,
    /// Where those who lie are older images of themselves: the images.
    older: Option<Older>,
    /// By block of the volume: what was written last; 0 for zeros.
    contents: Vec<u64>,
    written: u64,
    replaced: u64,
    counts: Counts,
    lines: Vec<String>,
}

impl World {
    fn new(seed: Seed) -> Self {
        let mut dice = seed.dice("liars");
        let (level, members) = match dice.index(6) {
            0 => (Level::Raid1, 2 + dice.index(2)),
            1 => (Level::Raid10, 4),
            2 => (Level::Raid6, 4 + dice.index(3)),
            _ => (Level::Raid5, 3 + dice.index(3)),
        };
        let is_older = seed.dice("older images").one_in(4);
        // Of two mirrors none can tell.
        let members = if is_older { members.max(3) } else { members };
        let tables = Tables::of(seed);
        let shape = LoggedShape {
            level,
            members,
            chunk_len: 8192,
            block_len: 512,
            logical_stripes: 8,
            // More than one page of the stripe table, of which some are never written.
            physical_stripes: if seed.dice("pages").one_in(4) { 1200 } else { 11 },
            log_blocks: 64 + 16 * dice.below(4),
            format: tables.format,
        };
        #[allow(clippy::panic, reason = "a shape that this file has made up")]
        let layout = shape.layout().unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        let (regions, geometry) = layout;
        let uuids: Vec<[u8; 16]> = (1..=255).take(members).map(|at| [at; 16]).collect();
        let mut images = format::format(tables.format, layout, "liars", [0xa1; 16], &uuids, seed.0);
        tables.put_into(seed, [0xa1; 16], &mut images);
        let mut disks = Vec::new();
        for member in images {
            let blocks = regions.data.end().div_ceil(SECTOR);
            let mut disk = Disk::new(DiskShape {
                block_len: 512,
                blocks,
                volatile_cache: false,
                fill: Fill::Zeroes,
            });
            for (offset, bytes) in member {
                for (at, sector) in (0..).zip(bytes.chunks_exact(SECTOR_LEN)) {
                    disk.set(offset / SECTOR + at, sector);
                }
            }
            disks.push(disk);
        }
        let blocks = narrow(geometry.capacity() / BLOCK);
        let older = is_older.then(|| Older { images: disks.clone(), is_before_replacement: false });
        Self {
            dice,
            level,
            disks,
            older,
            contents: vec![0; blocks],
            written: 0,
            replaced: 0,
            counts: Counts::default(),
            lines: vec![format!("level {}, {members} members", level.number())],
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..LIVES {
            let array = self.open()?;
            self.use_and_end(array)?;
            let honest = self.disks.clone();
            if self.set_back() {
                continue;
            }
            let lies = match self.older.clone() {
                Some(older) => self.put_back(&older.images),
                None => self.lie(),
            };
            if lies.is_empty() {
                continue;
            }
            match Array::open(core::mem::take(&mut self.disks)) {
                Ok(array) => self.check_opened(array, &lies)?,
                Err((error, _)) => {
                    self.check_refused(&error, &lies)?;
                    self.disks = honest.clone();
                }
            }
            if self.older.is_some() {
                let is_before_replacement = self.dice.one_in(2);
                let images = if is_before_replacement { honest } else { self.disks.clone() };
                self.older = Some(Older { images, is_before_replacement });
            }
        }
        Ok(())
    }

    /// Puts as many members as the level bears back to what they were, and nothing more; whether it did.
    fn set_back(&mut self) -> bool {
        let Some(Older { images, is_before_replacement: false }) = self.older.clone() else {
            return false;
        };
        if !self.dice.one_in(3) {
            return false;
        }
        let bears = match self.level {
            Level::Raid1 => self.disks.len() - 1,
            Level::Raid6 => 2,
            Level::Raid0 | Level::Raid5 | Level::Raid10 => 1,
        };
        let mut members: Vec<usize> = (0..self.disks.len()).collect();
        self.dice.shuffle(&mut members);
        members.truncate(1 + self.dice.index(bears));
        for member in members {
            self.disks[member] = images[member].clone();
            self.lines.push(format!("member {member} is an older image"));
        }
        true
    }

    /// As many as the level bears are older images of themselves, and each says another thing.
    fn put_back(&mut self, images: &[Disk]) -> Vec<(usize, Lie)> {
        let bears = if self.level == Level::Raid6 { 2 } else { 1 };
        let mut members: Vec<usize> = (0..self.disks.len()).collect();
        self.dice.shuffle(&mut members);
        members.truncate(1 + self.dice.index(bears));
        let mut lead = 0;
        members.retain(|member| {
            lead += [2, 3, 50, 1000, 1 << 30][self.dice.index(5)];
            let generations = self.dice.below(3);
            let is_told = put_back(&mut self.disks, *member, &images[*member], (generations, lead));
            if is_told {
                self.lines.push(format!("member {member} is an older image, and leads by {lead}"));
                *self.counts.lies.entry(Lie::OlderImage).or_default() += 1;
            }
            is_told
        });
        members.into_iter().map(|member| (member, Lie::OlderImage)).collect()
    }

    /// Opens what nobody lies about.
    fn open(&mut self) -> Result<Array, String> {
        let mut array = Array::open(core::mem::take(&mut self.disks))
            .map_err(|(error, _)| format!("it does not open, and nobody lies: {error}"))?;
        if let Some((member, why)) = array.left_out.iter().next() {
            return Err(format!("member {member} does not lie, and is {why}"));
        }
        self.compare(&mut array)?;
        Ok(array)
    }

    fn use_and_end(&mut self, mut array: Array) -> Result<(), String> {
        for _ in 0..1 + self.dice.below(24) {
            self.change(&mut array)?;
        }
        let closes = self.dice.one_in(3);
        self.disks = if closes { array.close()? } else { array.crash() };
        Ok(())
    }

    fn change(&mut self, array: &mut Array) -> Result<(), String> {
        let blocks = array.blocks();
        let first = self.dice.below(blocks);
        let most = if self.dice.one_in(3) { 24 } else { 3 };
        let count = (1 + self.dice.below(most)).min(blocks - first);
        let range = narrow(first)..narrow(first + count);
        match self.dice.below(10) {
            0 => {
                array.request(Op::WriteZeroes, first, count, &[])?;
                self.contents[range].fill(0);
            }
            1 => array.idle(),
            2 => drop(array.request(Op::Flush, 0, 0, &[])?),
            _ => {
                let mut data = Vec::new();
                for block in range {
                    self.written += 1;
                    self.contents[block] = self.written;
                    data.extend_from_slice(&block_of(self.written));
                }
                array.request(Op::Write, first, count, &data)?;
            }
        }
        Ok(())
    }

    fn compare(&mut self, array: &mut Array) -> Result<(), String> {
        for (block, expected) in (0..).zip(&self.contents) {
            let data = array.request(Op::Read, block, 1, &[]);
            let data = data.map_err(|error| format!("block {block} is lost: {error}"))?;
            if data.to_contiguous()[..] != block_of(*expected) {
                return Err(format!("block {block} is not what was written"));
            }
            self.counts.reads += 1;
        }
        Ok(())
    }

    /// So many members at most lie that the others can tell.
    fn liars_max(&self) -> usize {
        match (self.level, self.disks.len()) {
            (Level::Raid6, 5..) => 2,
            _ => 1,
        }
    }

    fn lie(&mut self) -> Vec<(usize, Lie)> {
        let liars = 1 + self.dice.index(self.liars_max());
        let mut members: Vec<usize> = (0..self.disks.len()).collect();
        self.dice.shuffle(&mut members);
        let mut lies = Vec::new();
        for member in members.into_iter().take(liars) {
            let lie = Lie::ALL[self.dice.index(Lie::ALL.len())];
            // Two who say the same of what three have copies of are more than the one who is right.
            let is_told_by = |(_, other): &(usize, Lie)| other.is_told_by_holders();
            let is_doubled = lie.is_told_by_holders() && lies.iter().any(is_told_by);
            // What more was stable may be on the one that is left out, as far as the others know.
            let needs_all = [Lie::LogStable, Lie::NoCheckpoint];
            let is_told_too =
                |(_, other): &(usize, Lie)| *other != lie && needs_all.contains(other);
            let is_doubled =
                is_doubled || (needs_all.contains(&lie) && lies.iter().any(is_told_too));
            if is_doubled || self.is_open(lie) {
                continue;
            }
            if lie.tell(&mut self.disks, member, &mut self.dice) {
                self.lines.push(format!("member {member} lies: {lie:?}"));
                *self.counts.lies.entry(lie).or_default() += 1;
                lies.push((member, lie));
            }
        }
        lies
    }

    /// Whether it is known that a lie may be believed and cost data (docs/faults.md, "open").
    fn is_open(&self, lie: Lie) -> bool {
        let are_two = self.level == Level::Raid1 && self.disks.len() == 2;
        let is_known = matches!(
            lie,
            Lie::CheckpointAhead
                | Lie::CheckpointNext
                | Lie::SomeFaulty
                | Lie::Begun
                | Lie::ListNext
        );
        are_two && is_known
    }

    /// Whether the others can tell that this is a lie, of as many as are told at once: who has a copy
    /// and lies, or is left out for another lie, tells nothing of it.
    fn is_told(&self, lie: Lie, liars: usize) -> bool {
        let copies = match self.level {
            Level::Raid1 => self.disks.len(),
            Level::Raid6 => 3,
            Level::Raid0 | Level::Raid5 | Level::Raid10 => 2,
        };
        if lie.is_told_when_read() || lie == Lie::OlderImage {
            return true;
        }
        let is_mirror = self.level == Level::Raid1;
        !is_mirror && (!lie.is_told_by_holders() || copies > 1 + liars)
    }

    fn check_opened(&mut self, mut array: Array, lies: &[(usize, Lie)]) -> Result<(), String> {
        self.counts.opened += 1;
        for (member, why) in &array.left_out {
            self.lines.push(format!("member {member} is {why}"));
            self.counts.left_out += 1;
            if lies.iter().all(|(liar, _)| liar != member) {
                return Err(format!("member {member} does not lie, and is {why}"));
            }
        }
        for (member, lie) in lies {
            let is_named = array.left_out.contains_key(member);
            let is_told_now = self.is_told(*lie, lies.len()) && !lie.is_told_when_read();
            if is_told_now && !lie.is_harmless() && !is_named {
                return Err(format!("member {member} lies ({lie:?}), and nobody says so"));
            }
        }
        let label = array.label();
        let number = label.generation.max(label.epoch);
        if number > NUMBER_MAX {
            return Err(format!("the array has a number of a liar: {number}"));
        }
        self.compare(&mut array)?;
        array.scrub()?;
        let forgers = lies.iter().filter(|(_, lie)| lie.is_told_when_read());
        if let Some((member, lie)) = forgers.into_iter().find(|(one, _)| array.is_in_sync(*one)) {
            return Err(format!("member {member} lies ({lie:?}), was read, and is in sync"));
        }
        // It can be opened again as it is.
        let mut array = Array::open(array.crash())
            .map_err(|(error, _)| format!("it does not open a second time: {error}"))?;
        self.compare(&mut array)?;
        for (member, _) in lies {
            if !array.is_in_sync(*member) {
                self.replaced += 1;
                array.replace(*member, self.replaced);
            }
        }
        if let Some(member) = (0..self.disks_of(&array)).find(|member| !array.is_in_sync(*member)) {
            return Err(format!("member {member} was replaced, and is not in sync"));
        }
        self.compare(&mut array)?;
        self.disks = array.close()?;
        Ok(())
    }

    fn disks_of(&self, array: &Array) -> usize {
        array.label().members.len()
    }

    /// Where none can tell, the error names who lies.
    fn check_refused(&mut self, error: &str, lies: &[(usize, Lie)]) -> Result<(), String> {
        self.lines.push(format!("refused: {error}"));
        self.counts.refused += 1;
        // Who knows nothing of the device that has another's place may speak for the one that had it before.
        let is_before = self.older.as_ref().is_some_and(|older| older.is_before_replacement);
        if !is_before && lies.iter().all(|(_, lie)| self.is_told(*lie, lies.len())) {
            return Err(format!("it does not open because of {lies:?}: {error}"));
        }
        let names = |member: &usize| error.contains(&format!("{member}"));
        if !lies.iter().any(|(member, _)| names(member)) {
            return Err(format!("the error does not name who lies ({lies:?}): {error}"));
        }
        Ok(())
    }
}

/// Bytes of a sector and of a block, as slices count them.
const SECTOR_LEN: usize = 512;
const BLOCK_LEN: usize = 4096;
const _: () = assert!(SECTOR_LEN as u64 == SECTOR && BLOCK_LEN as u64 == BLOCK);

/// What a block holds that has this contents.
fn block_of(contents: u64) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    for bytes in block.chunks_exact_mut(8) {
        bytes.copy_from_slice(&contents.to_le_bytes());
    }
    block
}
