//! What is kept of a logical unit's identity, so that it stays as long as the bytes do, and which
//! identity a unit has: see docs/formats/identity.md.

use alloc::{
    string::{String, ToString as _},
    vec::Vec,
};
use core::fmt;

use crc::{CRC_32_ISCSI, Crc};
use netraid_block::narrow;

use crate::inquiry::SERIAL_LEN_MAX;

const MAGIC: &[u8; 8] = b"NRIDENT\n";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 48;
const CRC_AT: usize = 12;
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

const FLAG_FILE: u8 = 0x01;
const FLAG_BORN: u8 = 0x02;

/// Longest record in bytes.
pub const KEPT_LEN_MAX: usize = HEADER_LEN + SERIAL_LEN_MAX;

/// A moment of the wall clock: seconds since 1970, and nanoseconds.
pub type Moment = (i64, u32);

/// Which file the bytes are in: no copy of it has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// Its number in its file system.
    pub inode: u64,
    /// When it was made, where the file system tells.
    pub born: Option<Moment>,
}

impl Birth {
    /// Whether both are one file's: by the moments where both have one, because some file systems
    /// number their files anew with each mount.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.born, other.born) {
            (Some(one), Some(two)) => one == two,
            (None, _) | (_, None) => self.inode == other.inode,
        }
    }
}

/// What is kept of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptIdentity {
    /// The serial number, from which the NAA designator follows.
    pub serial: String,
    /// The file that it is the identity of; none for a device that is known by its own name.
    pub birth: Option<Birth>,
}

/// Why a kept identity cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptError {
    /// The bytes are no identity at all.
    Foreign,
    /// They are of a version that this program does not know.
    Version(u16),
    /// They were damaged or cut off.
    Damaged,
}

impl fmt::Display for KeptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "holds no identity"),
            Self::Version(found) => {
                write!(f, "holds an identity of format version {found}, known is {VERSION}")
            }
            Self::Damaged => write!(f, "holds an identity that is damaged"),
        }
    }
}

impl core::error::Error for KeptError {}

/// Whether `text` can be a serial number: 1 to 64 letters, digits, and `-`, `.`, `_`, `:`.
#[must_use]
pub fn is_serial(text: &str) -> bool {
    let possible = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (1..=SERIAL_LEN_MAX).contains(&text.len()) && text.chars().all(possible)
}

impl KeptIdentity {
    /// The bytes to keep.
    ///
    /// # Panics
    /// When the serial number is none by [`is_serial`]: nobody could read it again.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(is_serial(&self.serial), "{:?} is no serial number", self.serial);
        let mut out = Vec::with_capacity(KEPT_LEN_MAX);
        let born = self.birth.and_then(|birth| birth.born);
        let flags = if self.birth.is_some() { FLAG_FILE } else { 0 }
            | if born.is_some() { FLAG_BORN } else { 0 };
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([narrow(self.serial.len()), flags]);
        out.extend([0; 12]);
        out.extend(self.birth.map_or(0, |birth| birth.inode).to_le_bytes());
        let (seconds, nanoseconds) = born.unwrap_or_default();
        out.extend(seconds.to_le_bytes());
        out.extend(nanoseconds.to_le_bytes());
        out.resize(HEADER_LEN, 0);
        out.extend(self.serial.bytes());
        let sum = CRC32C.checksum(&out).to_le_bytes();
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&sum);
        out
    }

    /// Reads what [`Self::encode`] made.
    ///
    /// # Errors
    /// When it is something else, is damaged, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, KeptError> {
        if bytes.get(..MAGIC.len()) != Some(MAGIC) {
            return Err(KeptError::Foreign);
        }
        let version = le(bytes, 8).map(u16::from_le_bytes).ok_or(KeptError::Damaged)?;
        if version != VERSION {
            return Err(KeptError::Version(version));
        }
        Self::read(bytes).ok_or(KeptError::Damaged)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let sum = le(bytes, CRC_AT).map(u32::from_le_bytes)?;
        let mut whole = bytes.to_vec();
        whole.get_mut(CRC_AT..CRC_AT + 4)?.fill(0);
        let [len, flags] = le(bytes, 10)?;
        let serial = core::str::from_utf8(bytes.get(HEADER_LEN..)?).ok()?;
        if CRC32C.checksum(&whole) != sum || serial.len() != usize::from(len) || !is_serial(serial)
        {
            return None;
        }
        let inode = le(bytes, 24).map(u64::from_le_bytes)?;
        let seconds = le(bytes, 32).map(i64::from_le_bytes)?;
        let nanoseconds = le(bytes, 40).map(u32::from_le_bytes)?;
        let born = (flags & FLAG_BORN != 0).then_some((seconds, nanoseconds));
        let birth = (flags & FLAG_FILE != 0).then_some(Birth { inode, born });
        Some(Self { serial: serial.to_string(), birth })
    }
}

fn le<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    crate::bytes::array(bytes, at)
}

/// What is known when a unit's identity is chosen.
#[derive(Debug, Clone, Default)]
pub struct Circumstances<'a> {
    /// The serial number that its owner gave.
    pub given: Option<&'a str>,
    /// What was kept.
    pub kept: Option<KeptIdentity>,
    /// The file that the bytes are in, if they are in one.
    pub birth: Option<Birth>,
    /// When that file was last changed in any way, where that is known; it was made no later.
    pub changed: Option<Moment>,
    /// Whether the bytes are new: nobody can have seen them.
    pub is_new: bool,
    /// Since when identities are kept where the file is, or on its machine; none when that is not known.
    pub since: Option<Moment>,
    /// The serial number that programs gave which kept none.
    pub derived: &'a str,
    /// Whether no other bytes have `derived`, or had it.
    pub derived_is_own: bool,
    /// A serial number that nobody has.
    pub random: &'a str,
}

/// Where the chosen identity comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The owner gave it.
    Given,
    /// It was kept.
    Kept,
    /// It is the one of a program that kept none.
    Derived,
    /// It was made now, for bytes that nobody has seen.
    New,
    /// It was made now, for the copy of a file that has another.
    Copied,
    /// It was made now, for a file that is younger than what kept none.
    Later,
    /// It was made now, because the derived one may be another disk's.
    Unsure,
}

/// The identity that a unit has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What is to be kept.
    pub identity: KeptIdentity,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether that is not kept yet.
    pub is_to_be_kept: bool,
}

/// Chooses a unit's identity. One that was seen stays, and no two disks have the same: a copy of a
/// file gets its own, and so does a file that took another one's place.
#[must_use]
pub fn choose(known: &Circumstances<'_>) -> Choice {
    let birth = known.birth;
    let made = birth.and_then(|birth| birth.born).or(known.changed);
    let may_be_seen = match (known.since, made) {
        // In the same tick of the clock it is the later one.
        (Some(since), Some(made)) => made < since,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let is_own = |kept: &KeptIdentity| match (&kept.birth, &birth) {
        (Some(one), Some(two)) => one.is_same(two) && !known.is_new,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let (serial, origin) = match (known.given, &known.kept) {
        (Some(given), _) => (given, Origin::Given),
        (None, Some(kept)) if is_own(kept) => (kept.serial.as_str(), Origin::Kept),
        // The file before it was removed.
        (None, Some(_)) if known.is_new => (known.random, Origin::New),
        (None, Some(_)) => (known.random, Origin::Copied),
        (None, None) if known.is_new => (known.random, Origin::New),
        (None, None) if !may_be_seen => (known.random, Origin::Later),
        (None, None) if known.derived_is_own => (known.derived, Origin::Derived),
        (None, None) => (known.random, Origin::Unsure),
    };
    let identity = KeptIdentity { serial: serial.to_string(), birth };
    let is_to_be_kept = known.kept.as_ref() != Some(&identity);
    Choice { identity, origin, is_to_be_kept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: Birth = Birth { inode: 12, born: Some((100, 5)) };

    fn known<'a>() -> Circumstances<'a> {
        Circumstances {
            birth: Some(FILE),
            derived: "derived",
            derived_is_own: true,
            random: "random",
            ..Circumstances::default()
        }
    }

    fn kept(serial: &str, birth: Option<Birth>) -> KeptIdentity {
        KeptIdentity { serial: serial.into(), birth }
    }

    fn chosen(known: &Circumstances<'_>) -> (String, Origin) {
        let Choice { identity, origin, .. } = choose(known);
        (identity.serial, origin)
    }

    #[test]
    fn what_was_kept_of_a_file_is_its_own_and_no_copys() {
        let mine = Circumstances { kept: Some(kept("mine", Some(FILE))), ..known() };
        assert_eq!(chosen(&mine), ("mine".into(), Origin::Kept));
        assert!(!choose(&mine).is_to_be_kept);
        // Another number of the same file: some file systems count anew with each mount.
        let again = Birth { inode: 99, ..FILE };
        let again = Circumstances { birth: Some(again), ..mine.clone() };
        assert_eq!(chosen(&again), ("mine".into(), Origin::Kept));
        // The same number, another file.
        let copy = Birth { born: Some((200, 0)), ..FILE };
        let copy = Circumstances { birth: Some(copy), ..mine.clone() };
        assert_eq!(chosen(&copy), ("random".into(), Origin::Copied));
        assert!(choose(&copy).is_to_be_kept);
        let other = Circumstances {
            kept: Some(kept("mine", Some(Birth { inode: 12, born: None }))),
            birth: Some(Birth { inode: 13, born: None }),
            ..known()
        };
        assert_eq!(chosen(&other), ("random".into(), Origin::Copied));
        let new = Circumstances { is_new: true, ..mine };
        assert_eq!(chosen(&new), ("random".into(), Origin::New));
    }

    #[test]
    fn what_may_have_been_seen_before_anything_was_kept_stays() {
        assert_eq!(chosen(&known()), ("derived".into(), Origin::Derived));
        assert!(choose(&known()).is_to_be_kept);
        let since = |since| Circumstances { since: Some(since), ..known() };
        assert_eq!(chosen(&since((100, 6))), ("derived".into(), Origin::Derived));
        // A file with the number of one that was removed.
        assert_eq!(chosen(&since((100, 5))), ("random".into(), Origin::Later));
        // Where the file system does not say when it was made, it was before the last change.
        let undated = |changed| Circumstances {
            birth: Some(Birth { born: None, ..FILE }),
            changed,
            ..since((100, 6))
        };
        assert_eq!(chosen(&undated(Some((100, 5)))), ("derived".into(), Origin::Derived));
        assert_eq!(chosen(&undated(Some((100, 6)))), ("random".into(), Origin::Later));
        assert_eq!(chosen(&undated(None)), ("random".into(), Origin::Later));
        let new = Circumstances { is_new: true, ..known() };
        assert_eq!(chosen(&new), ("random".into(), Origin::New));
        let unsure = Circumstances { derived_is_own: false, ..known() };
        assert_eq!(chosen(&unsure), ("random".into(), Origin::Unsure));
    }

    #[test]
    fn what_the_owner_gives_goes_before_all_and_is_kept() {
        let given =
            Circumstances { given: Some("given"), kept: Some(kept("mine", Some(FILE))), ..known() };
        assert_eq!(chosen(&given), ("given".into(), Origin::Given));
        assert!(choose(&given).is_to_be_kept);
        let again = Circumstances { kept: Some(kept("given", Some(FILE))), ..given };
        assert!(!choose(&again).is_to_be_kept);
    }

    #[test]
    fn a_disk_is_known_by_its_name_alone() {
        let disk = Circumstances { birth: None, kept: Some(kept("mine", None)), ..known() };
        assert_eq!(chosen(&disk), ("mine".into(), Origin::Kept));
        // A loop device that shows another file now.
        let other = Circumstances { kept: Some(kept("mine", Some(FILE))), ..disk };
        assert_eq!(chosen(&other), ("random".into(), Origin::Copied));
    }

    #[test]
    fn bytes_are_as_the_format_says() {
        let bytes = kept("ab", Some(FILE)).encode();
        assert_eq!(bytes.len(), 50);
        assert_eq!(bytes[..12], *b"NRIDENT\n\x01\0\x02\x03");
        assert_eq!((bytes[24], bytes[32], bytes[40]), (12, 100, 5));
        assert_eq!(bytes[48..], *b"ab");
    }

    #[test]
    fn what_is_no_identity_is_refused() {
        let bytes = kept("ab", None).encode();
        assert_eq!(KeptIdentity::decode(&bytes).unwrap(), kept("ab", None));
        assert_eq!(KeptIdentity::decode(b""), Err(KeptError::Foreign));
        for at in 10..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x20;
            assert_eq!(KeptIdentity::decode(&bad), Err(KeptError::Damaged), "{at}");
            assert_eq!(KeptIdentity::decode(&bytes[..at]), Err(KeptError::Damaged), "{at}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(KeptIdentity::decode(&newer), Err(KeptError::Version(2)));
        for bad in ["", "a b", "a,b", "a/b", &"a".repeat(65)] {
            assert!(!is_serial(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_identity_survives_its_bytes(
            serial in "[a-zA-Z0-9._:-]{1,64}",
            inode: u64,
            born in proptest::option::of((any::<i64>(), any::<u32>())),
        ) {
            for birth in [None, Some(Birth { inode, born })] {
                let one = kept(&serial, birth);
                prop_assert_eq!(KeptIdentity::decode(&one.encode()), Ok(one));
            }
        }

        #[test]
        fn any_bytes_decode_without_panic(mut data in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = KeptIdentity::decode(&data);
            for (to, from) in data.iter_mut().zip(b"NRIDENT\n\x01\0") {
                *to = *from;
            }
            let _ = KeptIdentity::decode(&data);
        }
    }
}
