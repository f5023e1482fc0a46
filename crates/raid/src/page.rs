//! What all pages of metadata have in common: the header, and what has to be right before anything
//! else in them is believed. Byte map: docs/formats/array.md.
//!
//! Invariant: a page that decodes was written as this kind, in this version, for this array, to
//! this place.

use alloc::vec::Vec;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    label::{Uuid, crc32c},
    lack::ROUND_MAX,
    regions::{PAGE_LEN, PAGE_PAYLOAD_LEN},
};

/// No array lives to write so many images, or so long a log; larger numbers are forged.
pub(crate) const COUNTER_MAX: u64 = 1 << 60;

/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = (PAGE_LEN - PAGE_PAYLOAD_LEN) as usize;

/// Why bytes are no page of the kind that should be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// No such page of this array stands here, or it is torn.
    #[error("no {0} of this array")]
    Absent(&'static str),
    /// Written by another version.
    #[error(
        "a {what} has version {found}, this program knows {known}; use a version that knows it"
    )]
    Version {
        /// What kind of page.
        what: &'static str,
        /// Its version.
        found: u16,
        /// The version of this program.
        known: u16,
    },
    /// It has something that this version does not know.
    #[error("a {what} has {more}, which this program does not know; use a later version")]
    Later {
        /// What kind of page.
        what: &'static str,
        /// What it has.
        more: &'static str,
    },
    /// A field with an impossible value, although the checksum matches.
    #[error("the {field} of a {what} is impossible")]
    Field {
        /// What kind of page.
        what: &'static str,
        /// Which field.
        field: &'static str,
    },
}

/// A kind of page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// What its pages begin with.
    pub(crate) magic: [u8; 8],
    /// The version that is written and read.
    pub(crate) version: u16,
    /// Its name in errors.
    pub(crate) what: &'static str,
    /// Bytes of a page, its header included.
    pub(crate) len: u32,
}

/// What a page says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct About {
    /// What its kind wants to be sure of.
    pub(crate) detail: u16,
    /// Which page of its kind.
    pub(crate) index: u64,
    /// Raised with each image; of two the larger counts.
    pub(crate) counter: u64,
    /// The round that the image was taken at the end of.
    pub(crate) round: u32,
    /// How many images of it, this one included, no checkpoint had counted when it was taken.
    pub(crate) uncounted: u32,
}

/// Which image of a page: of two the larger is newer.
///
/// The counter alone does not tell: an image that was cut short has the counter of the one that counts, and
/// stays where a later write of it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ImageKey {
    /// The image's counter; 0: there is no image.
    pub(crate) counter: u64,
    /// The round that the image was taken at the end of.
    pub(crate) round: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U16,
    detail: U16,
    crc: U32,
    array_uuid: Uuid,
    index: U64,
    counter: U64,
    round: U32,
    uncounted: U32,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN, "a payload follows its header");
const CRC_AT: usize = core::mem::offset_of!(RawHeader, crc);

impl Kind {
    /// The image that goes to `place`, an offset on the members.
    ///
    /// # Panics
    /// When the payload is longer than a page has room for.
    pub(crate) fn encode(
        &self,
        about: About,
        array_uuid: Uuid,
        place: u64,
        payload: &[u8],
    ) -> Vec<u8> {
        let len = self.len as usize;
        assert!(payload.len() <= len - HEADER_LEN, "{} bytes", payload.len());
        let header = RawHeader {
            magic: self.magic,
            version: self.version.into(),
            detail: about.detail.into(),
            crc: 0.into(),
            array_uuid,
            index: about.index.into(),
            counter: about.counter.into(),
            round: about.round.into(),
            uncounted: about.uncounted.into(),
            reserved: [0; 8],
        };
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(len, 0);
        let crc = crc32c(place, &[&bytes]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads an image that stands at `place`; answers its payload.
    ///
    /// # Errors
    /// When it is no page of this kind of that array at that place.
    pub(crate) fn decode<'a>(
        &self,
        bytes: &'a [u8],
        array_uuid: Uuid,
        place: u64,
    ) -> Result<(About, &'a [u8]), PageError> {
        let absent = PageError::Absent(self.what);
        let (header, payload) = RawHeader::ref_from_prefix(bytes).map_err(|_| absent)?;
        // Looked at first: what was never written is told apart without a checksum.
        let is_ours = bytes.len() == self.len as usize
            && header.magic == self.magic
            && header.array_uuid == array_uuid;
        let crc = |bytes: &[u8]| crc32c(place, &[&bytes[..CRC_AT], &[0; 4], &bytes[CRC_AT + 4..]]);
        if !is_ours || header.crc.get() != crc(bytes) {
            return Err(absent);
        }
        let (what, found, known) = (self.what, header.version.get(), self.version);
        if found != known {
            return Err(PageError::Version { what, found, known });
        }
        if header.counter.get() > COUNTER_MAX {
            return Err(self.field("counter"));
        }
        if header.round.get() > ROUND_MAX {
            return Err(self.field("round"));
        }
        if u64::from(header.uncounted.get()) > header.counter.get() {
            return Err(self.field("number of uncounted images"));
        }
        let about = About {
            detail: header.detail.get(),
            index: header.index.get(),
            counter: header.counter.get(),
            round: header.round.get(),
            uncounted: header.uncounted.get(),
        };
        Ok((about, payload))
    }

    /// The checksum in the header of an image that was encoded, or decodes.
    ///
    /// # Panics
    /// When the image is shorter than its header.
    pub(crate) fn crc_of(&self, image: &[u8]) -> u32 {
        let crc: [u8; 4] = core::array::from_fn(|at| image[CRC_AT + at]);
        u32::from_le_bytes(crc)
    }

    /// A field that is impossible.
    pub(crate) const fn field(&self, field: &'static str) -> PageError {
        PageError::Field { what: self.what, field }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::string::ToString;

    const KIND: Kind =
        Kind { magic: *b"NRTESTS\n", version: 3, what: "page of tests", len: PAGE_LEN };
    const ABOUT: About = About {
        detail: 7,
        index: 1 << 50,
        counter: COUNTER_MAX,
        round: ROUND_MAX,
        uncounted: u32::MAX,
    };
    const ABSENT: PageError = PageError::Absent("page of tests");

    /// The same image, changed, under a checksum that is right again.
    pub(crate) fn forge(image: &[u8], place: u64, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = image.to_vec();
        change(&mut bytes);
        bytes[CRC_AT..CRC_AT + 4].fill(0);
        let crc = crc32c(place, &[&bytes]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_page_is_read_at_its_place_in_its_array_and_nowhere_else() {
        let payload = [9; PAGE_PAYLOAD_LEN as usize];
        for payload in [&payload[..], &[], b"abc"] {
            let image = KIND.encode(ABOUT, [1; 16], 4096, payload);
            let (about, read) = KIND.decode(&image, [1; 16], 4096).unwrap();
            assert_eq!((about, &read[..payload.len()]), (ABOUT, payload));
            assert_eq!(read.len(), PAGE_PAYLOAD_LEN as usize);
            assert!(read[payload.len()..].iter().all(|byte| *byte == 0));
            assert_eq!(KIND.decode(&image, [1; 16], 8192), Err(ABSENT));
            assert_eq!(KIND.decode(&image, [2; 16], 4096), Err(ABSENT));
            let other = Kind { magic: *b"NROTHER\n", ..KIND };
            assert_eq!(other.decode(&image, [1; 16], 4096), Err(ABSENT));
        }
    }

    #[test]
    fn a_page_with_any_byte_changed_or_missing_is_none() {
        let image = KIND.encode(ABOUT, [1; 16], 4096, b"contents");
        for at in 0..image.len() {
            for bit in [0, 7] {
                let mut bad = image.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(KIND.decode(&bad, [1; 16], 4096), Err(ABSENT), "byte {at}");
            }
        }
        let longer = [&image[..], &[0]].concat();
        for bad in [&image[..4095], &image[1..], &image[..64], &image[..63], &[], &longer] {
            assert_eq!(KIND.decode(bad, [1; 16], 4096), Err(ABSENT));
        }
    }

    #[test]
    fn another_version_is_named_and_a_counter_that_is_forged_is_refused() {
        let image = KIND.encode(ABOUT, [1; 16], 4096, &[]);
        let newer = forge(&image, 4096, |bytes| bytes[8] = 4);
        let error = KIND.decode(&newer, [1; 16], 4096).unwrap_err();
        assert_eq!(error, PageError::Version { what: "page of tests", found: 4, known: 3 });
        assert!(error.to_string().contains("version 4"));
        let beyond = About { counter: COUNTER_MAX + 1, ..ABOUT };
        let image = KIND.encode(beyond, [1; 16], 4096, &[]);
        assert_eq!(KIND.decode(&image, [1; 16], 4096), Err(KIND.field("counter")));
        let more = KIND.encode(About { counter: 2, uncounted: 3, ..ABOUT }, [1; 16], 4096, &[]);
        let error = KIND.field("number of uncounted images");
        assert_eq!(KIND.decode(&more, [1; 16], 4096), Err(error));
    }
}
