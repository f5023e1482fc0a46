//! The parameter list of EXTENDED COPY (LID1) (SPC-4, section 6.4.3): which logical units take
//! part, and which blocks go where.
//!
//! Understood are identification descriptors (E4h) and segments from block device to block device
//! (02h). Nothing is copied unless all of the list is right.

use alloc::vec::Vec;

use netraid_block::narrow;

use crate::{
    bytes::{be16, be32, be64},
    sense::{Additional, Sense},
};

/// Most descriptors of logical units in one list.
pub(super) const CSCDS_MAX: usize = 16;
/// Most segments in one list.
pub(super) const SEGMENTS_MAX: usize = 64;
/// Longest segment in bytes: what its block count can say, in the longest blocks.
pub(crate) const SEGMENT_LEN_MAX: u32 = 0xffff * 4096;
/// Longest descriptors of one list, in bytes.
pub(super) const DESCRIPTORS_LEN_MAX: usize =
    CSCDS_MAX * CSCD_LEN + SEGMENTS_MAX * BLOCK_TO_BLOCK_LEN;

/// Descriptor type of an identification descriptor (SPC-4, section 6.4.5.4).
pub(super) const TYPE_IDENTIFICATION: u8 = 0xe4;
/// Descriptor type of a segment from block device to block device (SPC-4, section 6.4.6.5).
pub(super) const TYPE_BLOCK_TO_BLOCK: u8 = 0x02;

const HEADER_LEN: usize = 16;
const CSCD_LEN: usize = 32;
const BLOCK_TO_BLOCK_LEN: usize = 28;
const DESIGNATOR_LEN_MAX: usize = 20;

/// Longest parameter list that is looked at, in bytes.
pub(crate) const fn parameter_len_max() -> usize {
    HEADER_LEN + DESCRIPTORS_LEN_MAX
}

/// What becomes of a list identifier (SPC-4, table 112).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListIdUsage {
    /// The copy can be asked after, while it runs and afterwards.
    Kept,
    /// The copy has no identifier.
    None,
}

/// A logical unit that takes part in a copy: a copy source or copy destination (CSCD).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cscd {
    pub(crate) code_set: u8,
    pub(crate) association: u8,
    pub(crate) kind: u8,
    pub(crate) value: Vec<u8>,
    /// Its logical block in bytes, as the initiator believes; not said when 0.
    pub(crate) block_len: u32,
}

/// Blocks to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Index of the source among the CSCDs.
    pub(crate) source: u16,
    /// Index of the destination among the CSCDs.
    pub(crate) destination: u16,
    pub(crate) source_lba: u64,
    pub(crate) destination_lba: u64,
    pub(crate) blocks: u16,
    /// Whether `blocks` counts blocks of the destination, not of the source (DC).
    pub(crate) counts_destination: bool,
}

/// A parameter list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyList {
    pub(crate) list_id: u8,
    pub(crate) usage: ListIdUsage,
    pub(crate) cscds: Vec<Cscd>,
    pub(crate) segments: Vec<Segment>,
}

impl CopyList {
    /// Reads a parameter list that is not empty.
    ///
    /// # Errors
    /// The sense data that SPC-4 wants for the first thing that is wrong.
    pub(crate) fn parse(list: &[u8]) -> Result<Self, Sense> {
        let cut_off = Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
        let header = list.get(..HEADER_LEN).ok_or(cut_off)?;
        let cscds_len = usize::from(be16(header, 2).ok_or(cut_off)?);
        let segments_len = be32(header, 8).and_then(|len| usize::try_from(len).ok());
        let segments_len = segments_len.ok_or(cut_off)?;
        if be32(header, 12) != Some(0) {
            return Err(pointed(Additional::INLINE_DATA_LENGTH_EXCEEDED, 12));
        }
        if cscds_len.saturating_add(segments_len) > DESCRIPTORS_LEN_MAX {
            return Err(cut_off);
        }
        let (list_id, usage) = list_id(header)?;
        if !cscds_len.is_multiple_of(CSCD_LEN) {
            return Err(Sense::invalid_parameter(2));
        }
        if cscds_len / CSCD_LEN > CSCDS_MAX {
            return Err(pointed(Additional::TOO_MANY_TARGET_DESCRIPTORS, 2));
        }
        let cscds_end = HEADER_LEN + cscds_len;
        let body = list.get(..cscds_end + segments_len).ok_or(cut_off)?;
        let cscds = body[HEADER_LEN..cscds_end]
            .chunks_exact(CSCD_LEN)
            .enumerate()
            .map(|(index, descriptor)| cscd(descriptor, HEADER_LEN + index * CSCD_LEN))
            .collect::<Result<_, _>>()?;
        let segments = segments(body, cscds_end)?;
        Ok(Self { list_id, usage, cscds, segments })
    }
}

fn list_id(header: &[u8]) -> Result<(u8, ListIdUsage), Sense> {
    let list_id = header[0];
    match header[1] >> 3 & 0x03 {
        // Held data does not exist, so that keeping it and discarding it are one.
        0b00 | 0b10 => Ok((list_id, ListIdUsage::Kept)),
        0b11 if list_id == 0 => Ok((0, ListIdUsage::None)),
        0b11 => Err(Sense::invalid_parameter(0)),
        _ => Err(Sense::invalid_parameter(1)),
    }
}

/// Reads an identification descriptor at byte `at` of the list. The obsolete fields LU ID TYPE and
/// NUL are not looked at.
fn cscd(descriptor: &[u8], at: usize) -> Result<Cscd, Sense> {
    if descriptor[0] != TYPE_IDENTIFICATION {
        return Err(pointed(Additional::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE, at));
    }
    // Only block devices are reached, whose peripheral device type is 0.
    if descriptor[1] & 0x1f != 0 {
        return Err(pointed(Additional::INVALID_FIELD_IN_PARAMETER_LIST, at + 1));
    }
    let len = usize::from(descriptor[7]);
    if len > DESIGNATOR_LEN_MAX {
        return Err(pointed(Additional::INVALID_FIELD_IN_PARAMETER_LIST, at + 7));
    }
    Ok(Cscd {
        code_set: descriptor[4] & 0x0f,
        association: descriptor[5] >> 4 & 0x03,
        kind: descriptor[5] & 0x0f,
        value: descriptor[8..8 + len].to_vec(),
        block_len: be32(descriptor, 28).unwrap_or(0) & 0x00ff_ffff,
    })
}

fn segments(body: &[u8], start: usize) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    let mut at = start;
    while at < body.len() {
        if segments.len() == SEGMENTS_MAX {
            return Err(pointed(Additional::TOO_MANY_SEGMENT_DESCRIPTORS, at));
        }
        if body[at] != TYPE_BLOCK_TO_BLOCK {
            return Err(pointed(Additional::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE, at));
        }
        let cut_off = Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
        let descriptor = body.get(at..at + BLOCK_TO_BLOCK_LEN).ok_or(cut_off)?;
        if be16(descriptor, 2) != Some(0x18) {
            return Err(pointed(Additional::INVALID_FIELD_IN_PARAMETER_LIST, at + 2));
        }
        segments.push(Segment {
            counts_destination: descriptor[1] & 0x02 != 0,
            source: be16(descriptor, 4).ok_or(cut_off)?,
            destination: be16(descriptor, 6).ok_or(cut_off)?,
            blocks: be16(descriptor, 10).ok_or(cut_off)?,
            source_lba: be64(descriptor, 12).ok_or(cut_off)?,
            destination_lba: be64(descriptor, 20).ok_or(cut_off)?,
        });
        at += BLOCK_TO_BLOCK_LEN;
    }
    Ok(segments)
}

/// An illegal request that points to a byte of the list, which is no longer than
/// [`parameter_len_max`].
fn pointed(additional: Additional, at: usize) -> Sense {
    Sense { additional, ..Sense::invalid_parameter(narrow(at)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    /// An identification descriptor with this NAA designator.
    pub(crate) fn identification(naa: u64) -> Vec<u8> {
        let mut out = vec![0; CSCD_LEN];
        out[0] = TYPE_IDENTIFICATION;
        out[4..8].copy_from_slice(&[1, 3, 0, 8]);
        out[8..16].copy_from_slice(&naa.to_be_bytes());
        out[28..32].copy_from_slice(&512_u32.to_be_bytes());
        out
    }

    /// A segment from block device to block device.
    pub(crate) fn block_to_block(
        (source, source_lba): (u16, u64),
        (destination, destination_lba): (u16, u64),
        blocks: u16,
    ) -> Vec<u8> {
        let mut out = vec![TYPE_BLOCK_TO_BLOCK, 0, 0, 0x18];
        for value in [source, destination, 0, blocks] {
            out.extend(value.to_be_bytes());
        }
        out.extend(source_lba.to_be_bytes());
        out.extend(destination_lba.to_be_bytes());
        out
    }

    /// A parameter list of these descriptors.
    pub(crate) fn list(list_id: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
        let (cscds, segments) = (cscds.concat(), segments.concat());
        let mut out = vec![0; HEADER_LEN];
        out[0] = list_id;
        out[2..4].copy_from_slice(&u16::try_from(cscds.len()).unwrap().to_be_bytes());
        out[8..12].copy_from_slice(&u32::try_from(segments.len()).unwrap().to_be_bytes());
        out.extend(cscds);
        out.extend(segments);
        out
    }

    fn usual() -> Vec<u8> {
        list(7, &[identification(1)], &[block_to_block((0, 5), (0, 1 << 33), 9)])
    }

    fn refusal(list: &[u8]) -> Sense {
        CopyList::parse(list).unwrap_err()
    }

    fn pointer(sense: Sense) -> (Additional, u16) {
        (sense.additional, sense.field.unwrap().byte)
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let read = CopyList::parse(&usual()).unwrap();
        assert_eq!((read.list_id, read.usage), (7, ListIdUsage::Kept));
        assert_eq!((read.cscds[0].kind, read.cscds[0].block_len), (3, 512));
        let Segment { source_lba, destination_lba, blocks, .. } = read.segments[0];
        assert_eq!((source_lba, destination_lba, blocks), (5, 1 << 33, 9));
    }

    #[test]
    fn a_list_that_is_cut_anywhere_is_refused() {
        let whole = usual();
        for len in 1..whole.len() {
            let sense = refusal(&whole[..len]);
            assert_eq!(sense.additional, Additional::PARAMETER_LIST_LENGTH_ERROR, "{len}");
        }
    }

    #[test]
    fn both_sides_of_the_descriptor_limits() {
        let segment = block_to_block((0, 0), (0, 1), 1);
        let cscds = |count| vec![identification(1); count];
        let segments = |count| vec![segment.clone(); count];
        assert!(CopyList::parse(&list(0, &cscds(16), &segments(64))).is_ok());
        let sense = refusal(&list(0, &cscds(17), &segments(1)));
        assert_eq!(sense.additional, Additional::TOO_MANY_TARGET_DESCRIPTORS);
        let sense = refusal(&list(0, &cscds(1), &segments(65)));
        assert_eq!(sense.additional, Additional::TOO_MANY_SEGMENT_DESCRIPTORS);
        let sense = refusal(&list(0, &cscds(17), &segments(65)));
        assert_eq!(sense.additional, Additional::PARAMETER_LIST_LENGTH_ERROR);
    }

    #[test]
    fn what_is_not_understood_is_pointed_to() {
        let mut other = usual();
        other[16] = 0xe0;
        let unsupported = Additional::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE;
        assert_eq!(pointer(refusal(&other)), (unsupported, 16));
        let mut other = usual();
        other[48] = 0x03;
        let unsupported = Additional::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE;
        assert_eq!(pointer(refusal(&other)), (unsupported, 48));
        let invalid = Additional::INVALID_FIELD_IN_PARAMETER_LIST;
        for (at, value, field) in
            [(1, 0x08, 1), (1, 0x18, 0), (3, 33, 2), (17, 1, 17), (23, 21, 23)]
        {
            let mut other = usual();
            other[at] = value;
            assert_eq!(pointer(refusal(&other)), (invalid, field), "byte {at}");
        }
        let mut other = usual();
        other[15] = 1;
        let exceeded = Additional::INLINE_DATA_LENGTH_EXCEEDED;
        assert_eq!(pointer(refusal(&other)), (exceeded, 12));
    }

    proptest! {
        #[test]
        fn any_list_is_read_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            near in any::<bool>(),
        ) {
            if near && bytes.len() > 16 {
                let usual = usual();
                let len = bytes.len().min(24);
                bytes[..len].copy_from_slice(&usual[..len]);
            }
            if let Ok(list) = CopyList::parse(&bytes) {
                prop_assert!(list.cscds.len() <= CSCDS_MAX && list.segments.len() <= SEGMENTS_MAX);
            }
        }
    }
}
