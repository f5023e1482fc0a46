//! Where things are on an agent's disk (docs/formats/agent-disk.md). No input or output.
//!
//! ```text
//! copy 1: header, extents, rows | extent 0 | extent 1 | ... | copy 2: extents, rows, header
//! ```
//!
//! Invariant: both copies and all extents are within the disk, and none touches another.

use netraid_control::units::AgentId;

use super::block::{BLOCK_LEN, DiskId, Kind, Name, PAYLOAD_LEN, get, put};

/// What reads as zeros until it is written: so many bytes.
pub(crate) const GRANULE_LEN: u64 = 1 << 20;
/// Extents are of so many bytes at least, and at most.
const EXTENT_LEN_MIN: u64 = 4 << 20;
const EXTENT_LEN_MAX: u64 = 16 << 30;
/// There are so many at most; beyond, larger ones are chosen.
pub(super) const EXTENTS_MAX: u32 = 1 << 18;
/// Segments on one disk, at most.
pub(super) const ROWS_MAX: u32 = 1 << 15;
/// Bytes of an extent's entry in front of its bits.
pub(super) const ENTRY_HEAD_LEN: usize = 16;

/// How a disk is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) disk: DiskId,
    /// Whose it is.
    pub(super) agent: AgentId,
    /// Bytes of the disk when it was formatted.
    pub(super) disk_len: u64,
    /// A power of two.
    pub(super) extent_len: u64,
    pub(super) extents: u32,
    /// Places for segments in the table.
    pub(super) rows: u32,
}

/// Why a header is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GeometryFault {
    /// The disk is shorter than it was; so long it was.
    Shrunk(u64),
    /// It says what cannot be.
    Impossible,
}

impl Geometry {
    /// Divides a disk; none when it is too small.
    pub(super) fn new(disk: DiskId, agent: AgentId, disk_len: u64) -> Option<Self> {
        let mut extent_len = EXTENT_LEN_MIN;
        while disk_len / extent_len > u64::from(EXTENTS_MAX) && extent_len < EXTENT_LEN_MAX {
            extent_len *= 2;
        }
        let with = |extents: u32| {
            let rows = extents.min(ROWS_MAX);
            Self { disk, agent, disk_len, extent_len, extents, rows }
        };
        let most = (disk_len / extent_len).min(u64::from(EXTENTS_MAX));
        let most = with(u32::try_from(most).ok().filter(|most| *most > 0)?);
        // Notes on fewer extents are shorter: what fits beside those on all of them fits.
        let between = most.second_offset()?.checked_sub(most.data_offset())?;
        let extents = (between / extent_len).min(u64::from(most.extents));
        let extents = u32::try_from(extents).ok().filter(|extents| *extents > 0)?;
        Some(with(extents)).filter(Self::fits)
    }

    /// The smallest disk that can be divided, in bytes.
    pub(super) fn disk_len_min() -> u64 {
        let fits = |mib: &u64| Self::new([0; 16], AgentId([0; 16]), mib << 20).is_some();
        (1..64).find(fits).unwrap_or(64) << 20
    }

    /// What a header's payload says of a disk that has `found_len` bytes now.
    pub(super) fn decode(
        disk: DiskId,
        payload: &[u8],
        found_len: u64,
    ) -> Result<Self, GeometryFault> {
        let found = Self {
            disk,
            agent: AgentId(get(payload, 0)),
            disk_len: u64::from_le_bytes(get(payload, 16)),
            extent_len: u64::from_le_bytes(get(payload, 24)),
            extents: u32::from_le_bytes(get(payload, 32)),
            rows: u32::from_le_bytes(get(payload, 36)),
        };
        let granule_len = u64::from_le_bytes(get(payload, 40));
        let is_possible = granule_len == GRANULE_LEN
            && found.extent_len.is_power_of_two()
            && (EXTENT_LEN_MIN..=EXTENT_LEN_MAX).contains(&found.extent_len)
            && (1..=EXTENTS_MAX).contains(&found.extents)
            && (1..=ROWS_MAX).contains(&found.rows)
            && found.fits();
        match is_possible {
            false => Err(GeometryFault::Impossible),
            true if found.disk_len > found_len => Err(GeometryFault::Shrunk(found.disk_len)),
            true => Ok(found),
        }
    }

    /// Writes a header's payload.
    pub(super) fn encode(&self, payload: &mut [u8]) {
        payload.fill(0);
        put(payload, 0, &self.agent.0);
        put(payload, 16, &self.disk_len.to_le_bytes());
        put(payload, 24, &self.extent_len.to_le_bytes());
        put(payload, 32, &self.extents.to_le_bytes());
        put(payload, 36, &self.rows.to_le_bytes());
        put(payload, 40, &GRANULE_LEN.to_le_bytes());
    }

    /// Words of 64 bits that say which granules of an extent are written.
    pub(super) const fn words(&self) -> usize {
        // At most 256: an extent has 16 GiB at most.
        #[allow(clippy::cast_possible_truncation, reason = "at most 256")]
        let words = self.granules().div_ceil(64) as usize;
        words
    }

    /// Granules of an extent.
    pub(super) const fn granules(&self) -> u64 {
        self.extent_len / GRANULE_LEN
    }

    pub(super) const fn entry_len(&self) -> usize {
        ENTRY_HEAD_LEN + 8 * self.words()
    }

    /// Extents whose entries are in one block.
    pub(super) const fn extents_per_block(&self) -> usize {
        PAYLOAD_LEN / self.entry_len()
    }

    /// Blocks of entries.
    pub(super) const fn extent_blocks(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "no more than extents")]
        let blocks = (self.extents as usize).div_ceil(self.extents_per_block()) as u32;
        blocks
    }

    /// The block, counted among blocks of entries, in which an extent's is, and which one it is there.
    pub(super) const fn entry_of(&self, extent: u32) -> (u32, usize) {
        let per_block = self.extents_per_block();
        #[allow(clippy::cast_possible_truncation, reason = "no more than extents")]
        let block = (extent as usize / per_block) as u32;
        (block, extent as usize % per_block)
    }

    /// What the payload of a block of entries says is written: extents, words of theirs, bits.
    pub(super) fn marks<'a>(
        &self,
        block: u32,
        payload: &'a [u8],
    ) -> impl Iterator<Item = (usize, usize, u64)> + use<'a> {
        let (words, first) = (self.words(), block as usize * self.extents_per_block());
        let count = (self.extents as usize).saturating_sub(first).min(self.extents_per_block());
        let entries = payload.chunks_exact(self.entry_len()).take(count).enumerate();
        entries.flat_map(move |(at, entry)| {
            let bits = move |word| get(entry, ENTRY_HEAD_LEN + 8 * word);
            (0..words).map(move |word| (first + at, word, u64::from_le_bytes(bits(word))))
        })
    }

    /// All blocks of one copy.
    pub(super) const fn blocks(&self) -> u32 {
        1 + self.extent_blocks() + self.rows
    }

    pub(super) const fn extents_block(&self, block: u32) -> u32 {
        1 + block
    }

    pub(super) const fn row_block(&self, slot: u32) -> u32 {
        1 + self.extent_blocks() + slot
    }

    /// What the block of this number is.
    pub(super) const fn name(&self, block: u32) -> Name {
        let kind = match block {
            0 => Kind::Header,
            block if block <= self.extent_blocks() => Kind::Extents,
            _ => Kind::Row,
        };
        Name { disk: self.disk, kind, index: block }
    }

    /// Where a block is, in both copies; the second header is the last block of the disk.
    pub(super) fn block_offsets(&self, block: u32) -> [u64; 2] {
        let len = BLOCK_LEN as u64;
        let end = self.disk_len / len * len;
        let from_end = u64::from(if block == 0 { 1 } else { self.blocks() + 1 - block });
        [u64::from(block) * len, end - from_end * len]
    }

    /// Where extent 0 begins.
    pub(super) const fn data_offset(&self) -> u64 {
        (self.blocks() as u64 * BLOCK_LEN as u64).next_multiple_of(GRANULE_LEN)
    }

    pub(super) const fn extent_offset(&self, extent: u32) -> u64 {
        self.data_offset() + extent as u64 * self.extent_len
    }

    /// Extents that a segment of this length takes.
    pub(super) const fn extents_of(&self, len_bytes: u64) -> u64 {
        len_bytes.div_ceil(self.extent_len)
    }

    /// Where the second copy begins.
    fn second_offset(&self) -> Option<u64> {
        let len = BLOCK_LEN as u64;
        (self.disk_len / len * len).checked_sub(u64::from(self.blocks()) * len)
    }

    fn fits(&self) -> bool {
        let all = u64::from(self.extents).checked_mul(self.extent_len);
        let end = all.and_then(|all| all.checked_add(self.data_offset()));
        end.zip(self.second_offset()).is_some_and(|(end, second)| end <= second)
    }
}

/// Where the second header of a disk of this length is.
pub(super) const fn second_header(disk_len: u64) -> Option<u64> {
    (disk_len / BLOCK_LEN as u64 * BLOCK_LEN as u64).checked_sub(BLOCK_LEN as u64)
}
