//! The label: what a member says about itself and its array. Two copies a member, written one
//! after the other with the first stable before the second begins, so that one is always whole.
//! Byte map: docs/formats/array.md.
//!
//! Does not decide anything: [`crate::assemble`] weighs labels against each other.

use alloc::{string::String, vec::Vec};

use netraid_block::narrow;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    checksum::ChecksumKind,
    crc,
    format::Format,
    geometry::{Geometry, GeometryError, Level},
    lack::Lack,
    log::{Begin, Beginnings, Position},
    member::{MEMBERS_MAX, MemberIndex, MemberSet, MemberState},
    regions::{LABEL_OFFSETS, Region, Regions},
};

/// Bytes of a label.
pub const LABEL_LEN: usize = 4096;
/// The generation of labels that were written when an array was made.
pub const FIRST_GENERATION: u64 = 1;
/// Longest name of an array, in bytes.
pub const NAME_LEN_MAX: usize = 63;

const MAGIC: [u8; 8] = *b"NETRAID\n";
/// 0 until the format is declared final: nothing promises that it stays readable.
const VERSION: u16 = 1;
/// No array lives to be opened or changed so often; a label with more is forged.
pub(crate) const COUNTER_MAX: u64 = 1 << 60;
/// Incompatible feature: unwritten stripes are marked by the written region and read as zeros.
const WRITTEN_BITS: u64 = 1;
/// Incompatible feature: the array has a log, and a table says where each stripe is.
const LOGGED: u64 = 2;
/// Incompatible feature: tables, checkpoints and this label are of [`Format::Two`].
const INTERVALS: u64 = 4;
/// Layouts that a label has room for, beside that of its own fields.
const LAYOUTS_MAX: usize = 8;

/// Computes CRC32C (Castagnoli), seeded with the structure's place so that a copy elsewhere fails.
pub(crate) fn crc32c(place: u64, parts: &[&[u8]]) -> u32 {
    let seed = crc::append(0, &place.to_le_bytes());
    parts.iter().fold(seed, |crc, part| crc::append(crc, part))
}

/// A random 16-byte identity, as RFC 9562 writes them.
pub type Uuid = [u8; 16];

/// Who has the array open for writing, or had it last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// Random for each run of the engine; zeros: nobody.
    pub engine_id: Uuid,
    /// The machine: its machine-id, mixed with what tells its hardware from a clone's.
    pub machine_id: Uuid,
    /// The machine's boot.
    pub boot_id: Uuid,
    /// The machine's name, at most 31 bytes are kept.
    pub name: String,
    /// Device and inode of the lock file that it held on its machine.
    pub lock: (u64, u64),
}

/// What the label says of each member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberEntry {
    /// The member's identity; a replacement gets a new one.
    pub uuid: Uuid,
    /// Its state.
    pub state: MemberState,
    /// Last checkpoint that the member took part in (reserved for the log).
    pub last_checkpoint: u64,
    /// While catching up: stripes below this one are rebuilt and stable. 0 in an array with a
    /// log.
    pub rebuilt_stripes: u64,
    /// In an array with a log: what the member lacks. Nothing in one without.
    pub lack: Lack,
}

/// What the label of an array with a log says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLabel {
    /// What its tables can say.
    pub format: Format,
    /// What its blocks are checked by.
    pub checksum: ChecksumKind,
    /// Random, drawn when the array was made; users of the volume never learn it.
    pub salt: u64,
    /// Which generation owns which part of the log.
    pub beginnings: Beginnings,
}

/// How the array was left; the number is the one on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Closure {
    /// Open for writing, or its engine died: parity of written stripes may not match.
    Open = 0,
    /// Closed before a resync had ended: parity of written stripes may not match.
    Unsynced = 1,
    /// Closed, and everything acknowledged is in place and redundant.
    Clean = 2,
}

/// A member's label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The array's identity.
    pub array_uuid: Uuid,
    /// The array's name.
    pub name: String,
    /// The member that carries this label.
    pub index: MemberIndex,
    /// The array's shape.
    pub geometry: Geometry,
    /// What is where on each member.
    pub regions: Regions,
    /// Raised by every opening for writing.
    pub generation: u64,
    /// Raised by every change of the label within a generation, never reset.
    pub epoch: u64,
    /// Who has the array open.
    pub holder: Holder,
    /// How the array was left.
    pub closure: Closure,
    /// All members in order.
    pub members: Vec<MemberEntry>,
    /// Its log, when it has one.
    pub log: Option<LogLabel>,
    /// Features that this version does not know but may ignore.
    pub compatible: u64,
    /// Features that this version does not know and that forbid writing.
    pub read_only_compatible: u64,
}

/// Why bytes are no label that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// No label was ever written here.
    #[error("no netraid label")]
    Absent,
    /// The checksum does not match.
    #[error("label is corrupt: checksum {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// What the label carries.
        found: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// Written by another version.
    #[error("label has version {0}, this program knows {VERSION}; use a version that knows it")]
    Version(u16),
    /// Features that must be known to read it.
    #[error("label has incompatible features {0:#x} that are not known here; use a later version")]
    Features(u64),
    /// The array has something that this version does not know, in a place that the format has for it.
    #[error("the array has {0}, which this program does not know; use a later version")]
    Later(&'static str),
    /// A field with an impossible value, although the checksum matches.
    #[error("label field {0} is invalid")]
    Field(&'static str),
    /// An impossible shape, although the checksum matches.
    #[error("label describes an impossible array: {0}")]
    Geometry(#[from] GeometryError),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRegion {
    offset: U64,
    len: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawMember {
    uuid: Uuid,
    state: u8,
    reserved: [u8; 7],
    progress: [u8; 16],
}

/// A member's progress in an array without a log.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRebuild {
    last_checkpoint: U64,
    rebuilt_stripes: U64,
}

/// A member's progress in an array with a log.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawLack {
    left: U32,
    left_again: U32,
    mark: U32,
    caught_up: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawBegin {
    generation: U64,
    position: U64,
}

/// A layout of columns beside that of the label's own fields; zeros: there is none. Of docs/decisions/0014.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawLayout {
    bytes: [u8; 48],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    len: U16,
    crc: U32,
    compatible: U64,
    read_only_compatible: U64,
    incompatible: U64,
    array_uuid: Uuid,
    name: [u8; NAME_LEN_MAX + 1],
    level: u8,
    member_count: u8,
    index: u8,
    closure: u8,
    chunk_len: U32,
    block_len: U32,
    reserved: U32,
    stripes: U64,
    generation: U64,
    epoch: U64,
    regions: [RawRegion; 8],
    engine_id: Uuid,
    machine_id: Uuid,
    boot_id: Uuid,
    holder_name: [u8; 32],
    log_salt: U64,
    begin_count: U32,
    log_reserved: [u8; 20],
    members: [RawMember; MEMBERS_MAX],
    lock_device: U64,
    lock_inode: U64,
    begins: [RawBegin; Beginnings::MAX],
    checksum: u8,
    checksum_reserved: [u8; 7],
    layouts: [RawLayout; LAYOUTS_MAX],
    free: [u8; 216],
}

const _: () = assert!(size_of::<Raw>() == LABEL_LEN, "a label fills its slot");

impl Label {
    /// Whether the array was ever opened for writing.
    #[must_use]
    pub const fn was_opened(&self) -> bool {
        self.generation > FIRST_GENERATION
    }

    /// Members that it calls in sync.
    #[must_use]
    pub fn in_sync(&self) -> MemberSet {
        let members = (0..).map(MemberIndex).zip(&self.members);
        let in_sync = members.filter(|(_, entry)| entry.state == MemberState::InSync);
        in_sync.map(|(member, _)| member).collect()
    }

    /// The state of one member.
    ///
    /// # Panics
    /// When the array has no such member.
    #[must_use]
    pub fn state(&self, member: MemberIndex) -> MemberState {
        self.members[member.as_usize()].state
    }

    /// The bytes of copy `copy` (0 or 1).
    ///
    /// # Panics
    /// When the label breaks its own limits.
    #[must_use]
    pub fn encode(&self, copy: usize) -> Vec<u8> {
        let geometry = &self.geometry;
        assert_eq!(self.members.len(), usize::from(geometry.members()), "one entry a member");
        assert!(self.name.len() <= NAME_LEN_MAX, "name too long");
        let last = self.generation.max(self.epoch);
        assert!(last <= COUNTER_MAX, "a label that nobody could read: {last} beyond {COUNTER_MAX}");
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.len = 4096.into();
        raw.compatible = self.compatible.into();
        raw.read_only_compatible = self.read_only_compatible.into();
        raw.incompatible = match self.log.as_ref().map(|log| log.format) {
            None => WRITTEN_BITS,
            Some(Format::One) => LOGGED,
            Some(Format::Two) => LOGGED | INTERVALS,
        }
        .into();
        raw.array_uuid = self.array_uuid;
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        raw.level = geometry.level().number();
        raw.member_count = geometry.members();
        raw.index = self.index.0;
        raw.closure = self.closure as u8;
        raw.chunk_len = geometry.chunk_len().into();
        raw.block_len = geometry.block_len().into();
        raw.stripes = geometry.stripes().into();
        raw.generation = self.generation.into();
        raw.epoch = self.epoch.into();
        for (raw, region) in raw.regions.iter_mut().zip(self.regions.in_order()) {
            *raw = RawRegion { offset: region.offset.into(), len: region.len.into() };
        }
        raw.engine_id = self.holder.engine_id;
        raw.machine_id = self.holder.machine_id;
        raw.boot_id = self.holder.boot_id;
        raw.lock_device = self.holder.lock.0.into();
        raw.lock_inode = self.holder.lock.1.into();
        let name = truncated(&self.holder.name, raw.holder_name.len() - 1);
        raw.holder_name[..name.len()].copy_from_slice(name.as_bytes());
        for (raw, entry) in raw.members.iter_mut().zip(&self.members) {
            *raw = RawMember::from_entry(entry, self.log.is_some());
        }
        if let Some(log) = &self.log {
            raw.checksum = log.checksum.number();
            raw.log_salt = log.salt.into();
            let begins = log.beginnings.as_slice();
            raw.begin_count = narrow::<_, u32>(begins.len()).into();
            for (raw, begin) in raw.begins.iter_mut().zip(begins) {
                let (generation, position) = (begin.generation.into(), begin.position.0.into());
                *raw = RawBegin { generation, position };
            }
        }
        raw.crc = crc32c(LABEL_OFFSETS[copy], &[raw.as_bytes()]).into();
        raw.as_bytes().to_vec()
    }

    /// Reads copy `copy` (0 or 1) of a label.
    ///
    /// # Errors
    /// When the bytes are no label, are corrupt, or need a later version.
    pub fn decode(bytes: &[u8], copy: usize) -> Result<Self, LabelError> {
        let mut raw = Raw::read_from_bytes(bytes).map_err(|_| LabelError::Field("len"))?;
        if raw.magic != MAGIC {
            return Err(LabelError::Absent);
        }
        let found = raw.crc.get();
        raw.crc = 0.into();
        let computed = crc32c(LABEL_OFFSETS[copy], &[raw.as_bytes()]);
        if found != computed {
            return Err(LabelError::Checksum { found, computed });
        }
        if raw.version.get() != VERSION {
            return Err(LabelError::Version(raw.version.get()));
        }
        match raw.incompatible.get() & !(WRITTEN_BITS | LOGGED | INTERVALS) {
            0 => raw.interpret(),
            unknown => Err(LabelError::Features(unknown)),
        }
    }
}

impl Raw {
    fn interpret(&self) -> Result<Label, LabelError> {
        let level = Level::from_number(self.level).ok_or(LabelError::Field("level"))?;
        let mut regions = Regions::default();
        for (region, raw) in regions.in_order_mut().into_iter().zip(&self.regions) {
            *region = Region { offset: raw.offset.get(), len: raw.len.get() };
            if region.offset.checked_add(region.len).is_none_or(|end| end > 1 << 60) {
                return Err(LabelError::Field("regions"));
            }
        }
        let geometry = Geometry::new(
            level,
            usize::from(self.member_count),
            self.chunk_len.get(),
            self.block_len.get(),
            self.stripes.get(),
            regions.data.offset,
        )?;
        let format = self.format()?;
        let order = regions.in_order();
        let room = match format {
            Some(format) => regions.hold_logged(&geometry, format),
            None => regions.hold(&geometry),
        };
        if !room || order.windows(2).any(|pair| pair[0].end() > pair[1].offset) {
            return Err(LabelError::Field("regions"));
        }
        if self.generation.get().max(self.epoch.get()) > COUNTER_MAX {
            return Err(LabelError::Field("generation"));
        }
        if self.index >= self.member_count {
            return Err(LabelError::Field("index"));
        }
        let entries = self.members.iter().take(usize::from(self.member_count));
        Ok(Label {
            array_uuid: self.array_uuid,
            name: text(&self.name).ok_or(LabelError::Field("name"))?,
            index: MemberIndex(self.index),
            geometry,
            regions,
            generation: self.generation.get(),
            epoch: self.epoch.get(),
            holder: Holder {
                engine_id: self.engine_id,
                machine_id: self.machine_id,
                boot_id: self.boot_id,
                name: text(&self.holder_name).unwrap_or_default(),
                lock: (self.lock_device.get(), self.lock_inode.get()),
            },
            closure: match self.closure {
                0 => Closure::Open,
                1 => Closure::Unsynced,
                2 => Closure::Clean,
                _ => return Err(LabelError::Field("closure")),
            },
            members: entries
                .map(|raw| raw.interpret(format.is_some()))
                .collect::<Result<_, _>>()?,
            log: format.map(|format| self.log(format)).transpose()?,
            compatible: self.compatible.get(),
            read_only_compatible: self.read_only_compatible.get(),
        })
    }
}

impl Raw {
    /// The format of an array with a log; none of one without.
    fn format(&self) -> Result<Option<Format>, LabelError> {
        let features = self.incompatible.get();
        match (features & LOGGED != 0, features & INTERVALS != 0) {
            (false, false) => Ok(None),
            (true, false) => Ok(Some(Format::One)),
            (true, true) => Ok(Some(Format::Two)),
            (false, true) => Err(LabelError::Field("features")),
        }
    }

    fn checksum(&self, format: Format) -> Result<ChecksumKind, LabelError> {
        match format {
            Format::One => Ok(ChecksumKind::Crc32c),
            Format::Two => ChecksumKind::from_number(self.checksum)
                .ok_or(LabelError::Later("another kind of checksums")),
        }
    }

    fn log(&self, format: Format) -> Result<LogLabel, LabelError> {
        let checksum = self.checksum(format)?;
        let is_wider = self.layouts.as_bytes().iter().any(|byte| *byte != 0);
        if format == Format::Two && is_wider {
            return Err(LabelError::Later("stripes of another width"));
        }
        let count = self.begin_count.get() as usize;
        let begins = self.begins.get(..count).ok_or(LabelError::Field("beginnings"))?;
        let begin = |raw: &RawBegin| Begin {
            generation: raw.generation.get(),
            position: Position(raw.position.get()),
        };
        let begins: Vec<Begin> = begins.iter().map(begin).collect();
        let is_possible = |begin: &Begin| {
            begin.generation <= self.generation.get() && begin.position.0 <= COUNTER_MAX
        };
        if !begins.iter().all(is_possible) {
            return Err(LabelError::Field("beginnings"));
        }
        let beginnings = Beginnings::new(begins).map_err(LabelError::Field)?;
        Ok(LogLabel { format, checksum, salt: self.log_salt.get(), beginnings })
    }
}

impl RawMember {
    fn from_entry(entry: &MemberEntry, is_logged: bool) -> Self {
        let lack = entry.lack;
        let progress = if is_logged {
            zerocopy::transmute!(RawLack {
                left: lack.left.into(),
                left_again: lack.left_again.into(),
                mark: lack.mark.into(),
                caught_up: lack.caught_up.into(),
            })
        } else {
            zerocopy::transmute!(RawRebuild {
                last_checkpoint: entry.last_checkpoint.into(),
                rebuilt_stripes: entry.rebuilt_stripes.into(),
            })
        };
        Self { uuid: entry.uuid, state: entry.state as u8, reserved: [0; 7], progress }
    }

    fn interpret(&self, is_logged: bool) -> Result<MemberEntry, LabelError> {
        let mut entry = MemberEntry {
            uuid: self.uuid,
            state: MemberState::from_u8(self.state).ok_or(LabelError::Field("state"))?,
            last_checkpoint: 0,
            rebuilt_stripes: 0,
            lack: Lack::NOTHING,
        };
        if is_logged {
            let raw: RawLack = zerocopy::transmute!(self.progress);
            entry.lack = Lack {
                left: raw.left.get(),
                left_again: raw.left_again.get(),
                mark: raw.mark.get(),
                caught_up: raw.caught_up.get(),
            };
        } else {
            let raw: RawRebuild = zerocopy::transmute!(self.progress);
            entry.last_checkpoint = raw.last_checkpoint.get();
            entry.rebuilt_stripes = raw.rebuilt_stripes.get();
        }
        Ok(entry)
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    core::str::from_utf8(&bytes[..end]).ok().map(String::from)
}

/// As much of `name` as fits into `len` bytes.
fn truncated(name: &str, len: usize) -> &str {
    let mut end = name.len().min(len);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::regions::{Wish, plan, plan_logged};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    pub(crate) fn sample(level: Level, members: usize) -> Label {
        let wish = Wish { level, members, chunk_len: 4096, block_len: 512 };
        let (regions, geometry) = plan(&wish, 8 << 20).unwrap();
        let entry = |at| MemberEntry {
            uuid: [at; 16],
            state: MemberState::InSync,
            last_checkpoint: 0,
            rebuilt_stripes: 0,
            lack: Lack::NOTHING,
        };
        Label {
            array_uuid: [9; 16],
            name: "tank".into(),
            index: MemberIndex(0),
            geometry,
            regions,
            generation: 3,
            epoch: 7,
            holder: Holder { name: "host".into(), ..Holder::default() },
            closure: Closure::Clean,
            members: (1..).take(members).map(entry).collect(),
            log: None,
            compatible: 0,
            read_only_compatible: 0,
        }
    }

    #[test]
    fn a_label_reads_back_and_every_damaged_byte_is_noticed() {
        for (label, copy) in [(sample(Level::Raid5, 64), 0), (logged_sample(Level::Raid5, 64), 1)] {
            let bytes = label.encode(copy);
            assert_eq!(Label::decode(&bytes, copy).unwrap(), label);
            assert!(matches!(Label::decode(&bytes, 1 - copy), Err(LabelError::Checksum { .. })));
            let mut rng = StdRng::seed_from_u64(4);
            for at in 0..LABEL_LEN {
                let mut bad = bytes.clone();
                bad[at] ^= rng.random_range(1..=255_u8);
                assert!(Label::decode(&bad, copy).is_err(), "byte {at}");
            }
        }
    }

    /// One of an array with a log that has been through a few things.
    pub(crate) fn logged_sample(level: Level, members: usize) -> Label {
        let wish = Wish { level, members, chunk_len: 4096, block_len: 512 };
        let (regions, geometry) = plan_logged(&wish, 64 << 20, None).unwrap();
        let begin = |at| Begin { generation: at + 2, position: Position(at * 1000) };
        let beginnings = Beginnings::new((0..Beginnings::MAX as u64).map(begin).collect()).unwrap();
        let mut label = Label {
            geometry,
            regions,
            generation: 40,
            log: Some(LogLabel {
                format: Format::Two,
                checksum: ChecksumKind::Crc32c,
                salt: 0x0123_4567_89ab_cdef,
                beginnings,
            }),
            ..sample(level, members)
        };
        let last = label.members.len() - 1;
        label.members[last].state = MemberState::CatchingUp;
        label.members[last].lack = Lack { left: 3, left_again: 9, mark: 100, caught_up: 50 };
        label.members[0].lack = Lack::since(7);
        label
    }

    fn with_right_checksum(bytes: &mut [u8]) {
        bytes[12..16].fill(0);
        let crc = crc32c(0, &[bytes]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn a_label_of_an_array_with_a_log_reads_back() {
        for (level, members) in [(Level::Raid0, 1), (Level::Raid1, 3), (Level::Raid5, 64)] {
            let label = logged_sample(level, members);
            for copy in [0, 1] {
                assert_eq!(Label::decode(&label.encode(copy), copy).unwrap(), label);
            }
            for format in [Format::One, Format::Two] {
                let beginnings = Beginnings::default();
                let log = LogLabel { format, checksum: ChecksumKind::Crc32c, salt: 0, beginnings };
                let new = Label { log: Some(log), ..label.clone() };
                assert_eq!(Label::decode(&new.encode(0), 0).unwrap(), new);
            }
        }
        // An array with a log does not pass for one without.
        let mut plain = logged_sample(Level::Raid5, 5).encode(0);
        assert_eq!(plain[32], 6);
        plain[32] = 1;
        with_right_checksum(&mut plain);
        assert_eq!(Label::decode(&plain, 0), Err(LabelError::Field("regions")));
        let mut unknown = sample(Level::Raid5, 5).encode(0);
        unknown[32] = 9;
        with_right_checksum(&mut unknown);
        assert_eq!(Label::decode(&unknown, 0), Err(LabelError::Features(8)));
        unknown[32] = 5;
        with_right_checksum(&mut unknown);
        assert_eq!(Label::decode(&unknown, 0), Err(LabelError::Field("features")));
    }

    #[test]
    fn what_a_later_version_has_put_into_its_place_is_named() {
        const CHECKSUM: usize = 3488;
        const LAYOUTS: usize = 3496;
        const FREE: usize = 3880;
        let good = logged_sample(Level::Raid5, 5);
        let with = |at: usize| {
            let mut bytes = good.encode(0);
            bytes[at] = 7;
            with_right_checksum(&mut bytes);
            Label::decode(&bytes, 0)
        };
        let later = LabelError::Later;
        assert_eq!(with(CHECKSUM), Err(later("another kind of checksums")));
        for at in [LAYOUTS, FREE - 1] {
            assert_eq!(with(at), Err(later("stripes of another width")), "byte {at}");
        }
        assert_eq!(with(FREE), Ok(good.clone()));
        // In the format before, these bytes say nothing.
        let log = good.log.clone().map(|log| LogLabel { format: Format::One, ..log });
        let before = Label { log, ..good };
        let mut bytes = before.encode(0);
        bytes[CHECKSUM..FREE].fill(7);
        with_right_checksum(&mut bytes);
        assert_eq!(Label::decode(&bytes, 0), Ok(before));
    }

    #[test]
    fn beginnings_that_cannot_be_are_refused() {
        const COUNT: usize = 376;
        const BEGINS: usize = 2976;
        let good = logged_sample(Level::Raid5, 5);
        let forged = |at: usize, value: u64| {
            let mut bytes = good.encode(0);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            with_right_checksum(&mut bytes);
            Label::decode(&bytes, 0)
        };
        assert_eq!(forged(COUNT, 32).unwrap(), good);
        assert_eq!(forged(COUNT, 31).unwrap().log.unwrap().beginnings.as_slice().len(), 31);
        let last = BEGINS + 31 * 16;
        for (at, value) in [
            (COUNT, 33),
            (COUNT, u64::from(u32::MAX)),
            // Generations that fall, or that the array does not have yet; positions likewise.
            (BEGINS, 3),
            (last, 41),
            (BEGINS + 8, 1001),
            (last + 8, (1 << 60) + 1),
        ] {
            let error = forged(at, value).unwrap_err();
            assert!(matches!(error, LabelError::Field(_)), "{value} at {at}: {error}");
        }
        assert!(forged(last, 40).is_ok() && forged(last + 8, 1 << 60).is_ok());
    }

    #[test]
    fn nonsense_with_a_right_checksum_is_an_error_and_no_panic() {
        let mut rng = StdRng::seed_from_u64(5);
        let good =
            [sample(Level::Raid5, 5), logged_sample(Level::Raid5, 5)].map(|one| one.encode(0));
        let mut read = [0; 2];
        for turn in 0..40_000 {
            let mut bytes = good[turn % 2].clone();
            for _ in 0..rng.random_range(1..6) {
                let at = rng.random_range(16..700);
                let at = if rng.random_ratio(1, 5) { rng.random_range(2960..3488) } else { at };
                bytes[at] = rng.random();
            }
            with_right_checksum(&mut bytes);
            if let Ok(label) = Label::decode(&bytes, 0) {
                assert_eq!(Label::decode(&label.encode(0), 0).unwrap(), label);
                read[usize::from(label.log.is_some())] += 1;
            }
        }
        assert!(read.iter().all(|count| *count > 500), "{read:?}");
        assert_eq!(Label::decode(&[0; LABEL_LEN], 0), Err(LabelError::Absent));
    }
}
