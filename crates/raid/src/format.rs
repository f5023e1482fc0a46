//! Makes an array with a log: what is written to its members, once.
//!
//! Nothing else needs to be: pages and batches of another array, or of none, do not decode for
//! this one's identity and count as never written.

use alloc::{string::String, vec::Vec};

use crate::{
    checkpoint::{Checkpoint, ListName},
    checksum::ChecksumKind,
    geometry::Geometry,
    label::{Closure, FIRST_GENERATION, Holder, Label, LogLabel, MemberEntry, NAME_LEN_MAX, Uuid},
    lack::Lack,
    log::{Beginnings, Link},
    member::{MemberIndex, MemberState},
    regions::{LABEL_OFFSETS, Regions},
};

/// What the tables of an array with a log can say; it is chosen when the array is made, and never changes.
///
/// The numbers, and what each brought, stand in docs/formats/array.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An entry of the stripe table says which stripe is there and the round that changed it last.
    One,
    /// Entries have intervals of snapshots and a layout, checkpoints name a list of snapshots, and the label has a
    /// kind of checksums. What `create` makes.
    Two,
}

impl Format {
    /// Entries of a page of the stripe table.
    #[must_use]
    pub const fn stripes_per_page(self) -> u32 {
        crate::regions::PAGE_PAYLOAD_LEN / self.entry_len()
    }

    /// Bytes of an entry of the stripe table.
    #[must_use]
    pub const fn entry_len(self) -> u32 {
        match self {
            Self::One => 8,
            Self::Two => 16,
        }
    }
}

/// An offset on a member, and what is written there.
pub type Image = (u64, Vec<u8>);

/// The label of member 0 of a new array; the others differ by their index. `salt` is random.
///
/// # Panics
/// When the name is too long, or there is not one identity for each member.
#[must_use]
pub fn first_label(
    format: Format,
    (regions, geometry): (Regions, Geometry),
    name: &str,
    array_uuid: Uuid,
    members: &[Uuid],
    salt: u64,
) -> Label {
    assert!(name.len() <= NAME_LEN_MAX, "a name of {} bytes", name.len());
    assert_eq!(members.len(), usize::from(geometry.members()), "one identity a member");
    let entry = |uuid: &Uuid| MemberEntry {
        uuid: *uuid,
        state: MemberState::InSync,
        last_checkpoint: 0,
        rebuilt_stripes: 0,
        lack: Lack::NOTHING,
    };
    Label {
        array_uuid,
        name: String::from(name),
        index: MemberIndex(0),
        geometry,
        regions,
        generation: FIRST_GENERATION,
        epoch: 1,
        holder: Holder::default(),
        closure: Closure::Clean,
        members: members.iter().map(entry).collect(),
        log: Some(LogLabel {
            format,
            checksum: ChecksumKind::Crc32c,
            salt,
            beginnings: Beginnings::default(),
        }),
        compatible: 0,
        read_only_compatible: 0,
    }
}

/// What is to be written to each member of a new array, in this order: the checkpoint, then the
/// copies of the label, of which each is made stable before the next is written. The layout is
/// what [`crate::regions::plan_logged`] and [`crate::regions::LoggedShape::layout`] give.
///
/// # Panics
/// As [`first_label`].
#[must_use]
pub fn format(
    format: Format,
    layout: (Regions, Geometry),
    name: &str,
    array_uuid: Uuid,
    members: &[Uuid],
    salt: u64,
) -> Vec<Vec<Image>> {
    let label = first_label(format, layout, name, array_uuid, members, salt);
    let checkpoint = Checkpoint {
        generation: label.generation,
        counter: 1,
        round: 0,
        tail: Link::default(),
        stripe_images: 0,
        list: ListName::NONE,
    };
    let on_member = |index| {
        let label = Label { index, ..label.clone() };
        let mut images = Vec::from([(checkpoint.offset(), checkpoint.encode(array_uuid))]);
        images.extend((0..).zip(LABEL_OFFSETS).map(|(copy, at)| (at, label.encode(copy))));
        images
    };
    label.geometry.member_indices().map(on_member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        geometry::Level,
        log::{Begin, Position, Ring},
        regions::{LoggedShape, PAGE_LEN},
    };
    use std::vec;

    #[test]
    fn a_new_array_is_labelled_on_every_member_and_its_log_begins_at_nothing() {
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
        let layout = shape.layout().unwrap();
        let members: Vec<Uuid> = (1..=5).map(|at| [at; 16]).collect();
        let images = format(Format::Two, layout, "tank", [9; 16], &members, 77);
        assert_eq!(images.len(), 5);
        for (at, images) in images.iter().enumerate() {
            let mut bytes = vec![0; usize::try_from(layout.0.labels.len).unwrap()];
            for (offset, image) in images {
                let offset = usize::try_from(*offset).unwrap();
                assert!(bytes[offset..offset + image.len()].iter().all(|byte| *byte == 0));
                bytes[offset..offset + image.len()].copy_from_slice(image);
            }
            let read =
                |offset: u64| &bytes[usize::try_from(offset).unwrap()..][..PAGE_LEN as usize];
            let labels = [0, 1].map(|copy| Label::decode(read(LABEL_OFFSETS[copy]), copy).unwrap());
            assert_eq!(labels[0], labels[1]);
            assert_eq!(labels[0].index.as_usize(), at);
            assert_eq!(labels[0].members[at].uuid, members[at]);
            assert_eq!(labels[0].geometry, layout.1);
            assert_eq!(labels[0].regions, layout.0);
            let mut log = labels[0].log.clone().unwrap();
            assert_eq!(log.salt, 77);
            // The first generation to open it begins at position 0, and nobody was there before.
            assert_eq!(log.beginnings.owner(Position(0)), None);
            log.beginnings.begin(Begin { generation: 2, position: Position(0) });
            let offset = crate::regions::CHECKPOINT_OFFSETS[1];
            let checkpoint = Checkpoint::decode(read(offset), [9; 16], 1).unwrap();
            assert_eq!((checkpoint.tail, checkpoint.round), (Link::default(), 0));
            let other = crate::regions::CHECKPOINT_OFFSETS[0];
            assert!(Checkpoint::decode(read(other), [9; 16], 0).is_err());
            assert_eq!(Ring::new(labels[0].regions.log_blocks()).batch_blocks_max(), 16);
        }
    }
}
