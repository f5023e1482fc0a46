//! What members say that is not so: every structure has its right checksum.

use netraid_block::{Buf, SgList, narrow};
use netraid_raid::{
    checkpoint::Checkpoint,
    format::Format,
    label::Label,
    lack::ROUND_MAX,
    log::{Begin, Beginnings, LOG_BLOCK_LEN, Link, Position},
    member::MemberState,
    pages::TablePages,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, Region},
    stripes::{Entry, StripePage},
    sums::{SumLayout, SumPage},
};

use super::{
    array::{BLOCK, SECTOR, index, label, read},
    lists, log,
};
use crate::{dice::Dice, disk::Disk};

/// A kind of lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lie {
    /// A label of a generation, or an epoch, that never was.
    Age,
    /// A newer label that calls the others faulty.
    OthersFaulty,
    /// The next label, as if it had been cut short, that calls up to half of the members faulty; and nothing is left
    /// of a region of that member.
    SomeFaulty,
    /// The next label, as if it had been cut short, by which a new generation has begun in the log.
    Begun,
    /// A label that is ahead by a little, and no checkpoint.
    NoCheckpoint,
    /// A label that says that the log begins where it never was.
    LogPosition,
    /// A label of another shape.
    Shape,
    /// A checkpoint beyond the next one.
    CheckpointAhead,
    /// The newest checkpoint, with another tail and round.
    CheckpointContents,
    /// The next checkpoint, as if it had been under way, with another tail and round.
    CheckpointNext,
    /// The checkpoint before the newest, with a round that never was.
    CheckpointBehind,
    /// A later image of a page of the stripe table, that puts stripes elsewhere.
    StripesAhead,
    /// The newest image of such a page, with other contents.
    StripesContents,
    /// The next image of such a page, as if its round had been cut short.
    StripesNext,
    /// An image of a page of the stripe table that was never written.
    StripesUnwritten,
    /// The newest image of a page of checksums, with a counter, or of a round, that never was.
    SumsAhead,
    /// A head beyond the end of the log that says that all before it was stable.
    LogStable,
    /// A batch beyond the end of the log whose PARITY names DATA that is not in the log.
    LogHomeless,
    /// The last batch of the log with other contents, and a head of the same checksum.
    LogTwin,
    /// The list of snapshots that counts, with other contents and a head of the same checksum.
    ListTwin,
    /// The newest checkpoint, naming another list.
    ListName,
    /// The next checkpoint, as if it had been under way, naming another list.
    ListNext,
    /// A later list, which no checkpoint names.
    ListUnnamed,
    /// All of an older image, with a label that is ahead of everybody's.
    OlderImage,
}

impl Lie {
    /// All that are told of what a member has now.
    pub const ALL: [Self; 23] = [
        Self::Age,
        Self::OthersFaulty,
        Self::SomeFaulty,
        Self::Begun,
        Self::NoCheckpoint,
        Self::LogPosition,
        Self::Shape,
        Self::CheckpointAhead,
        Self::CheckpointContents,
        Self::CheckpointNext,
        Self::CheckpointBehind,
        Self::StripesAhead,
        Self::StripesContents,
        Self::StripesNext,
        Self::StripesUnwritten,
        Self::SumsAhead,
        Self::LogStable,
        Self::LogHomeless,
        Self::LogTwin,
        Self::ListTwin,
        Self::ListName,
        Self::ListNext,
        Self::ListUnnamed,
    ];

    /// Whether it cannot be told from something that was cut short, and does no harm.
    #[must_use]
    pub const fn is_harmless(self) -> bool {
        matches!(
            self,
            Self::SomeFaulty
                | Self::Begun
                | Self::NoCheckpoint
                | Self::CheckpointNext
                | Self::CheckpointBehind
                | Self::StripesNext
                | Self::StripesUnwritten
                | Self::LogHomeless
                | Self::ListNext
                | Self::ListUnnamed
        )
    }

    /// Whether it is told by the few members that have copies of one thing, not by all of them.
    #[must_use]
    pub const fn is_told_by_holders(self) -> bool {
        matches!(self, Self::StripesContents | Self::LogTwin)
    }

    /// Whether it is told when what it is about is read, and by its own numbers: no other member is needed.
    #[must_use]
    pub const fn is_told_when_read(self) -> bool {
        matches!(self, Self::SumsAhead)
    }

    /// Has a member say it; false when there is nothing to say it of.
    pub(super) fn tell(self, disks: &mut [Disk], liar: usize, dice: &mut Dice) -> bool {
        let Some(truth) = label(&disks[liar]) else { return false };
        let ends = log::ends_of_batches(disks, &truth);
        match self {
            Self::Age | Self::OthersFaulty | Self::LogPosition | Self::Shape => {
                let mut lie = truth;
                self.change_label(&mut lie, dice);
                for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
                    write(&mut disks[liar], offset, &lie.encode(copy));
                }
                true
            }
            Self::SomeFaulty | Self::Begun | Self::NoCheckpoint => {
                self.change_more(&mut disks[liar], truth, dice);
                true
            }
            Self::CheckpointAhead
            | Self::CheckpointContents
            | Self::CheckpointNext
            | Self::CheckpointBehind => {
                self.change_checkpoint(&mut disks[liar], &truth, &ends, dice)
            }
            Self::StripesUnwritten => forge_stripes(disks, liar, &truth, dice),
            Self::StripesAhead | Self::StripesContents | Self::StripesNext => {
                self.change_stripes(&mut disks[liar], &truth, dice)
            }
            Self::SumsAhead => forge_sums(&mut disks[liar], &truth, dice),
            Self::LogStable => log::forge_stable(disks, liar, &truth),
            Self::LogHomeless => log::forge_homeless(disks, liar, &truth, dice),
            Self::LogTwin => log::forge_twin(disks, liar, &truth),
            Self::ListTwin => lists::forge_twin(&mut disks[liar], &truth, dice),
            Self::ListName => lists::forge_name(&mut disks[liar], &truth, dice),
            Self::ListNext => lists::forge_next(&mut disks[liar], &truth, dice),
            Self::ListUnnamed => lists::forge_unnamed(&mut disks[liar], &truth, dice),
            Self::OlderImage => false,
        }
    }

    fn change_label(self, label: &mut Label, dice: &mut Dice) {
        let lead = [1 << 60, 1 << 40, 1000][dice.index(3)];
        let ahead = |number: u64| (number + lead).min(1 << 60);
        #[expect(clippy::wildcard_enum_match_arm, reason = "all other lies are about the age")]
        match self {
            Self::LogPosition => {
                let begin = Begin { generation: 1, position: Position(1 << 60) };
                if let (Some(log), Ok(begins)) = (&mut label.log, Beginnings::new(vec![begin])) {
                    log.beginnings = begins;
                }
            }
            Self::Shape => {
                if let Some(log) = &mut label.log {
                    log.salt ^= 1 << dice.below(64);
                }
            }
            Self::OthersFaulty => {
                let own = label.index.as_usize();
                let others = label.members.iter_mut().enumerate().filter(|(at, _)| *at != own);
                others.for_each(|(_, entry)| entry.state = MemberState::Faulty);
                match dice.index(3) {
                    0 => {}
                    1 => label.epoch = ahead(label.epoch),
                    _ => label.generation = ahead(label.generation),
                }
            }
            _ if dice.one_in(2) => label.generation = ahead(label.generation),
            _ => {
                label.epoch = ahead(label.epoch);
                label.generation += 2 * u64::from(dice.one_in(2));
            }
        }
    }

    /// Changes the label by a little, and what belongs to the lie beside it.
    fn change_more(self, disk: &mut Disk, mut lie: Label, dice: &mut Dice) {
        let is_opening = dice.one_in(2);
        lie.generation += u64::from(is_opening);
        lie.epoch += u64::from(!is_opening || dice.one_in(2));
        let members = lie.members.len();
        let mut wiped = Vec::new();
        if self == Self::SomeFaulty {
            for _ in 0..1 + dice.index(members / 2) {
                lie.members[dice.index(members)].state = MemberState::Faulty;
            }
            lie.members[lie.index.as_usize()].state = MemberState::InSync;
            let regions = lie.regions;
            wiped.push([regions.map, regions.sums, regions.log, regions.data][dice.index(4)]);
        } else if self == Self::Begun {
            if let Some(log) = &mut lie.log
                && let Some(last) = log.beginnings.as_slice().last().copied()
            {
                let position = last.position.after([0, 3, 20][dice.index(3)]);
                lie.generation = lie.generation.max(last.generation + 1);
                let mut begins = log.beginnings.as_slice().to_vec();
                begins.push(Begin { generation: lie.generation, position });
                log.beginnings = Beginnings::new(begins).unwrap_or_default();
            }
        } else {
            lie.epoch += 1;
            let slots = CHECKPOINT_OFFSETS.map(|offset| Region { offset, len: BLOCK });
            wiped.extend(slots);
        }
        for Region { offset, len } in wiped {
            for at in 0..len / BLOCK {
                write(disk, offset + at * BLOCK, &[0; LOG_BLOCK_LEN as usize]);
            }
        }
        for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
            write(disk, offset, &lie.encode(copy));
        }
    }

    fn change_checkpoint(
        self,
        disk: &mut Disk,
        label: &Label,
        ends: &[Link],
        dice: &mut Dice,
    ) -> bool {
        let Some(newest) = newest_checkpoint(disk, label) else { return false };
        let tail = Link { end: newest.tail.end.after([3, u32::MAX][dice.index(2)]), crc: 7 };
        let round = newest.round + [1, ROUND_MAX / 2][dice.index(2)];
        let changed = Checkpoint { tail, round, ..newest };
        let lie = if self == Self::CheckpointAhead {
            Checkpoint { counter: newest.counter + [1 << 59, 1000, 2][dice.index(3)], ..changed }
        } else if self == Self::CheckpointNext {
            // Where a batch ends, nothing but the others tells that it never was.
            let is_true = !ends.is_empty() && dice.one_in(2);
            let tail = if is_true { ends[dice.index(ends.len())] } else { tail };
            Checkpoint { counter: newest.counter + 1, tail, ..changed }
        } else if self == Self::CheckpointBehind {
            // As if an earlier opening had written it, or a later one.
            let generation = newest.generation + dice.below(2);
            let round = newest.round + [0, 65, 4094, ROUND_MAX / 2][dice.index(4)];
            let tail = if ends.is_empty() { newest.tail } else { ends[dice.index(ends.len())] };
            let tail = if dice.one_in(2) { newest.tail } else { tail };
            let counter = newest.counter.saturating_sub(1);
            Checkpoint { counter, generation, tail, round, ..newest }
        } else {
            changed
        };
        write(disk, lie.offset(), &lie.encode(label.array_uuid));
        true
    }

    fn change_stripes(self, disk: &mut Disk, label: &Label, dice: &mut Dice) -> bool {
        let (region, format) = (label.regions.map, format_of(label));
        let places = (0..region.len / BLOCK).map(|page| region.offset + page * BLOCK);
        let found = places.filter_map(|place| {
            let page =
                StripePage::decode(&read(disk, place, BLOCK), format, label.array_uuid, place);
            page.ok().map(|page| (place, page))
        });
        let Some((place, mut page)) = found.max_by_key(|(_, page)| page.counter) else {
            return false;
        };
        let mut entries: Vec<Entry> = page.entries.iter().collect();
        let mapped: Vec<usize> =
            (0..entries.len()).filter(|at| entries[*at].logical.is_some()).collect();
        if mapped.len() < 2 {
            return false;
        }
        let (one, two) = (mapped[dice.index(mapped.len() - 1)], mapped[mapped.len() - 1]);
        entries.swap(one, two);
        page.entries = entries.into_iter().collect();
        // The slots of a page are neighbours.
        let other = region.offset + (((place - region.offset) / BLOCK) ^ 1) * BLOCK;
        let mut place = place;
        if self == Self::StripesAhead {
            page.counter += 2 + 2 * dice.below(1 << 50);
        } else if self == Self::StripesNext {
            page.counter += 1;
            (page.round, page.uncounted) = (ROUND_MAX, 1);
            place = other;
        }
        write(disk, place, &page.encode(format, label.array_uuid, place));
        true
    }
}

/// The format of an array with a log, which all that are lied about have.
pub(super) fn format_of(label: &Label) -> Format {
    label.log.as_ref().map_or(Format::One, |log| log.format)
}

/// Puts a member back to an `image` from before, with a label whose epoch is `lead` ahead of all there are; false where
/// there is no label.
pub(super) fn put_back(disks: &mut [Disk], liar: usize, image: &Disk, lead: (u64, u64)) -> bool {
    let ages = disks.iter().filter_map(label).map(|label| (label.generation, label.epoch));
    let (Some(newest), Some(mut lie)) = (ages.max(), label(image)) else { return false };
    (lie.generation, lie.epoch) = (newest.0 + lead.0, newest.1 + lead.1);
    disks[liar] = image.clone();
    for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
        write(&mut disks[liar], offset, &lie.encode(copy));
    }
    true
}

/// An image of a page of the stripe table that has none yet: it says that stripes of another page are there.
fn forge_stripes(disks: &mut [Disk], liar: usize, label: &Label, dice: &mut Dice) -> bool {
    let (uuid, format) = (label.array_uuid, format_of(label));
    let table = TablePages::new(&label.geometry, label.regions.map.offset);
    let physical = label.regions.physical_stripes(&label.geometry);
    let pages = 0..physical.div_ceil(format.stripes_per_page().into());
    let find = |page: u64| -> Option<StripePage> {
        let slots = table.holders(page).iter().flat_map(|member| {
            let first = table.offset(page, member);
            [first, first + BLOCK].map(|place| (member.as_usize(), place))
        });
        let mut images = slots.filter_map(|(member, place)| {
            StripePage::decode(&read(&disks[member], place, BLOCK), format, uuid, place).ok()
        });
        images.find(|image| image.index == page)
    };
    let Some(like) = pages.clone().find_map(find) else { return false };
    let is_own = |page: &u64| table.holders(*page).contains(index(liar));
    let unwritten = pages.filter(is_own).find(|page| find(*page).is_none());
    let Some(page) = unwritten else { return false };
    let counter = 1 + dice.below(1 << 40);
    let round = like.round + [0, 1, ROUND_MAX / 2][dice.index(3)];
    let lie = StripePage { index: page, counter, round, uncounted: 1, ..like };
    let place = table.slot_offset(page, index(liar), counter);
    write(&mut disks[liar], place, &lie.encode(format, uuid, place));
    true
}

/// The newest image of a page of checksums, with all that it says but its number, or its round.
fn forge_sums(disk: &mut Disk, label: &Label, dice: &mut Dice) -> bool {
    let region = label.regions.sums;
    let rows = label.geometry.chunk_len() / LOG_BLOCK_LEN;
    let layout = SumLayout::new(label.geometry.members(), rows);
    let places = (0..region.len / BLOCK).map(|page| region.offset + page * BLOCK);
    let found = places.filter_map(|place| {
        let image = read(disk, place, BLOCK);
        SumPage::decode(&image, layout, label.array_uuid, place).ok().map(|page| (place, page))
    });
    let Some((place, mut page)) = found.max_by_key(|(_, page)| page.counter) else { return false };
    if dice.one_in(2) {
        page.counter += 1 << (20 + dice.below(40));
    } else {
        page.round += 5000 + narrow::<_, u32>(dice.below(1 << 20));
    }
    write(disk, place, &page.encode(label.array_uuid, place));
    true
}

pub(super) fn newest_checkpoint(disk: &Disk, label: &Label) -> Option<Checkpoint> {
    let slots = CHECKPOINT_OFFSETS.into_iter().enumerate();
    let found = slots.filter_map(|(slot, offset)| {
        Checkpoint::decode(&read(disk, offset, BLOCK), label.array_uuid, slot).ok()
    });
    found.max_by_key(|one| one.counter)
}

pub(super) fn write(disk: &mut Disk, offset: u64, bytes: &[u8]) {
    let data: SgList = Buf::copy_from(bytes).into();
    disk.write(offset / SECTOR, &data, true);
}
