//! What a token allows: the rule of a derived device.
//!
//! A derived device is a LUN that is computed from a segment. It shows chosen ranges of the
//! segment one after the other, as its own bytes from 0 on, and nothing else: its capacity is the
//! sum of their lengths, so that even how large the segment is stays hidden. A rule that names no
//! range shows the whole segment as it is.
//!
//! ```text
//! segment   |......|RRRR|.........|SSSSSS|....|
//!                  \    \         /      /
//! derived           |RRRR|SSSSSS|
//! ```
//!
//! [`Rule::judge`] says of each request whether it may happen, and where in the segment: a request
//! that spans ranges goes to the segment in pieces, at most [`RANGES_MAX`]. It is pure, and neither
//! allocates nor waits. Whoever asks knows the segment's generation, its end and the time at that
//! moment, so that a raised generation denies the next request of a session that is running.
//!
//! *Append-only*: a write begins where the segment ends, which is at most at the derived device's
//! own end; nothing that was written is changed, discarded or zeroed. The end is the segment's, kept
//! by its owner and the same for all who write to it: when a write is let through it grows to
//! [`Pieces::end`], before the next request is judged. When that write fails, and no other was let
//! through since, the owner sets the end back, so that it may be tried again.
//!
//! A rule is judged in the target's policy slot where offsets stay as they are, and by the device
//! that wraps the segment where they do not. Persistent reservations leave the medium alone, and are
//! asked for apart ([`Rule::may_reserve`]).

use core::fmt;

use netraid_block::Op;

use crate::units::{Generation, Moment};

/// Most ranges of a derived device.
pub const RANGES_MAX: usize = 4;
/// Ranges begin and end at multiples of so many bytes.
pub const SECTOR_LEN: u64 = 512;
/// Sectors are counted in 48 bits.
const SECTORS_MAX: u64 = (1 << 48) - 1;

/// What may be done.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Reading, and asking what is mapped.
    pub const READ: Self = Self(1);
    /// Writing.
    pub const WRITE: Self = Self(1 << 1);
    /// Discarding, and making zeros.
    pub const DISCARD: Self = Self(1 << 2);
    /// Making writes stable.
    pub const FLUSH: Self = Self(1 << 3);
    /// Persistent reservations: registering, reserving, preempting.
    pub const RESERVE: Self = Self(1 << 4);
    /// All of these.
    pub const ALL: Self = Self((1 << 5) - 1);

    const NAMES: [(Self, &str); 5] = [
        (Self::READ, "read"),
        (Self::WRITE, "write"),
        (Self::DISCARD, "discard"),
        (Self::FLUSH, "flush"),
        (Self::RESERVE, "reserve"),
    ];

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of these are among them.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The right that an operation takes.
    #[must_use]
    pub const fn for_op(op: Op) -> Self {
        match op {
            Op::Read | Op::Extents => Self::READ,
            Op::Write => Self::WRITE,
            Op::Discard | Op::WriteZeroes => Self::DISCARD,
            Op::Flush => Self::FLUSH,
        }
    }

    /// As they stand in a token: bit 0 read, 1 write, 2 discard, 3 flush, 4 reserve.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The rights with these bits; none when there are unknown ones.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = Self::NAMES.iter().filter(|(right, _)| self.contain(*right));
        f.debug_set().entries(held.map(|(_, name)| name)).finish()
    }
}

/// Bytes of a segment, or of a derived device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteRange {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

impl ByteRange {
    /// The first byte behind it; the last number there is when that is beyond it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Ranges of a segment in ascending order, none of which is empty or overlaps another; at most
/// [`RANGES_MAX`]. None at all stand for the whole segment.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Ranges {
    /// Zeros behind `count`.
    list: [ByteRange; RANGES_MAX],
    count: usize,
}

impl Ranges {
    /// The whole segment.
    pub const WHOLE: Self = Self { list: [ByteRange { offset: 0, len: 0 }; RANGES_MAX], count: 0 };

    /// These ranges.
    ///
    /// # Errors
    /// When there are too many, or one is empty, not in whole sectors, too far, or does not begin
    /// behind the one before it.
    pub fn new(ranges: &[ByteRange]) -> Result<Self, RangesError> {
        let mut new = Self::WHOLE;
        if ranges.len() > RANGES_MAX {
            return Err(RangesError::TooMany(ranges.len()));
        }
        let mut end = 0;
        for (place, range) in new.list.iter_mut().zip(ranges) {
            let ByteRange { offset, len } = *range;
            if len == 0 {
                return Err(RangesError::Empty { offset });
            }
            if !offset.is_multiple_of(SECTOR_LEN) || !len.is_multiple_of(SECTOR_LEN) {
                return Err(RangesError::Unaligned { offset, len });
            }
            let range_end = offset.checked_add(len);
            if range_end.is_none_or(|end| end / SECTOR_LEN > SECTORS_MAX) {
                return Err(RangesError::Far { offset, len });
            }
            if offset < end {
                return Err(RangesError::Order { offset, end });
            }
            end = range.end();
            *place = *range;
        }
        new.count = ranges.len();
        Ok(new)
    }

    /// The ranges; none for the whole segment.
    #[must_use]
    pub fn as_slice(&self) -> &[ByteRange] {
        &self.list[..self.count]
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Why ranges are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangesError {
    /// More than there is room for.
    #[error("{0} ranges; a derived device has at most {RANGES_MAX}")]
    TooMany(usize),
    /// No bytes.
    #[error("the range at {offset} is empty; leave it out")]
    Empty {
        /// Where it begins.
        offset: u64,
    },
    /// Not in whole sectors.
    #[error("the range of {len} bytes at {offset} is not in whole sectors of {SECTOR_LEN} bytes")]
    Unaligned {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
    },
    /// It ends too far away.
    #[error("the range of {len} bytes at {offset} ends beyond sector {SECTORS_MAX}")]
    Far {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
    },
    /// It begins before the one ahead of it ends.
    #[error("the range at {offset} begins before the one ahead of it ends, at {end}; sort them")]
    Order {
        /// Where it begins.
        offset: u64,
        /// Where the one ahead of it ends.
        end: u64,
    },
}

/// What is granted on a segment, as a token says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Which of its bytes.
    pub ranges: Ranges,
    /// What may be done with them.
    pub rights: Rights,
    /// Whether they may only be written behind what is written.
    pub append_only: bool,
    /// The segment's generation for which this holds: no other.
    pub generation: Generation,
    /// It holds before this moment, by the clock of who judges.
    pub expires: Moment,
}

/// The rule of a derived device: terms that fit a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    terms: Terms,
    /// At least one.
    shown: Ranges,
    capacity: u64,
}

/// Why terms are no rule for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// They name bytes that it does not have.
    #[error("the ranges end at {end}, the segment at {capacity}")]
    Beyond {
        /// Where the last range ends.
        end: u64,
        /// The segment's bytes.
        capacity: u64,
    },
    /// They do not begin and end with its blocks.
    #[error("the range of {} bytes at {} is not in whole blocks of {block_len} bytes", range.len, range.offset)]
    Blocks {
        /// The range.
        range: ByteRange,
        /// Bytes of a logical block.
        block_len: u32,
    },
    /// The segment itself cannot be shown.
    #[error("a segment of {capacity} bytes: {why}")]
    Segment {
        /// The segment's bytes.
        capacity: u64,
        /// Why not.
        why: RangesError,
    },
}

/// What a segment is like at the moment of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentNow {
    /// Its generation.
    pub generation: Generation,
    /// Behind its last byte that was ever written. Only append-only rules look at it.
    pub end: u64,
}

/// What a rule says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may happen, at these places of the segment.
    Allow(Pieces),
    /// It must not.
    Deny(Denial),
}

/// Why a request was denied: for the audit log. Its sender learns that it was, and no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The rule itself holds no more.
    #[error(transparent)]
    Lapsed(#[from] Lapsed),
    /// There is no right to it.
    #[error("{needed:?} is not among the rights {held:?}")]
    Right {
        /// What it takes.
        needed: Rights,
        /// What there is.
        held: Rights,
    },
    /// Past the derived device's last byte.
    #[error("{} bytes at {} are not on the device of {capacity} bytes", range.len, range.offset)]
    Beyond {
        /// What was asked for.
        range: ByteRange,
        /// The derived device's bytes.
        capacity: u64,
    },
    /// It changes what is written, or leaves a hole.
    #[error("append-only: a write at {offset}, not at the end, which is at {end}")]
    NotAtEnd {
        /// Where it begins, in the derived device.
        offset: u64,
        /// Where that ends.
        end: u64,
    },
    /// It takes away what is written.
    #[error("append-only: nothing is discarded or made zeros")]
    AppendOnly,
}

/// Why something that was granted holds no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lapsed {
    /// Its time is over.
    #[error("expired at {} ms", at.0)]
    Expired {
        /// When.
        at: Moment,
    },
    /// The segment has another generation.
    #[error("granted for generation {}, the segment is at {}", granted.0, current.0)]
    Fenced {
        /// For which it was granted.
        granted: Generation,
        /// What the segment has.
        current: Generation,
    },
    /// The segment is not there.
    #[error("the segment is not there")]
    Absent,
}

/// Places of a segment that one request of a derived device goes to, in order; none for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Pieces {
    list: [ByteRange; RANGES_MAX],
    count: usize,
}

impl Pieces {
    /// The pieces.
    #[must_use]
    pub fn as_slice(&self) -> &[ByteRange] {
        &self.list[..self.count]
    }

    /// Behind the last of their bytes; 0 when there are none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.as_slice().last().map_or(0, ByteRange::end)
    }

    fn push(&mut self, piece: ByteRange) {
        self.list[self.count] = piece;
        self.count += 1;
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl Rule {
    /// The rule of these terms for a segment of so many bytes, in blocks of `block_len`.
    ///
    /// # Errors
    /// When they do not fit it.
    pub fn new(terms: Terms, capacity: u64, block_len: u32) -> Result<Self, RuleError> {
        let whole = [ByteRange { offset: 0, len: capacity }];
        let shown = if terms.ranges.as_slice().is_empty() {
            Ranges::new(&whole).map_err(|why| RuleError::Segment { capacity, why })?
        } else {
            terms.ranges
        };
        let (mut end, mut sum) = (0, 0);
        for range in shown.as_slice() {
            let block = u64::from(block_len);
            if !range.offset.is_multiple_of(block) || !range.len.is_multiple_of(block) {
                return Err(RuleError::Blocks { range: *range, block_len });
            }
            end = range.end();
            sum += range.len;
        }
        if end > capacity {
            return Err(RuleError::Beyond { end, capacity });
        }
        Ok(Self { terms, shown, capacity: sum })
    }

    /// The terms.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Bytes of the derived device.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether it may be changed in no way.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        let rights = self.terms.rights;
        let discards = rights.contain(Rights::DISCARD) && !self.terms.append_only;
        !rights.contain(Rights::WRITE) && !discards
    }

    /// Whether the rule holds at all.
    ///
    /// # Errors
    /// When it has expired, or the segment has another generation.
    pub fn holds(&self, generation: Generation, now: Moment) -> Result<(), Lapsed> {
        if now >= self.terms.expires {
            return Err(Lapsed::Expired { at: self.terms.expires });
        }
        if generation != self.terms.generation {
            return Err(Lapsed::Fenced { granted: self.terms.generation, current: generation });
        }
        Ok(())
    }

    /// Whether a request to the derived device may happen, and where in the segment. A flush has
    /// neither offset nor length, and is of the whole segment.
    #[must_use]
    pub fn judge(&self, op: Op, range: ByteRange, segment: SegmentNow, now: Moment) -> Verdict {
        match self.pieces(op, range, segment, now) {
            Ok(pieces) => Verdict::Allow(pieces),
            Err(denial) => Verdict::Deny(denial),
        }
    }

    /// Whether persistent reservations may be made and changed.
    ///
    /// # Errors
    /// When not.
    pub fn may_reserve(&self, generation: Generation, now: Moment) -> Result<(), Denial> {
        self.holds(generation, now)?;
        self.check_right(Rights::RESERVE)
    }

    fn pieces(
        &self,
        op: Op,
        range: ByteRange,
        segment: SegmentNow,
        now: Moment,
    ) -> Result<Pieces, Denial> {
        self.holds(segment.generation, now)?;
        self.check_right(Rights::for_op(op))?;
        if op == Op::Flush {
            return Ok(Pieces::default());
        }
        let end = range.offset.checked_add(range.len);
        if end.is_none_or(|end| end > self.capacity) {
            return Err(Denial::Beyond { range, capacity: self.capacity });
        }
        if self.terms.append_only && op.changes() {
            self.check_append(op, range.offset, segment.end)?;
        }
        Ok(self.translate(range))
    }

    fn check_right(&self, needed: Rights) -> Result<(), Denial> {
        let held = self.terms.rights;
        if held.contain(needed) { Ok(()) } else { Err(Denial::Right { needed, held }) }
    }

    fn check_append(&self, op: Op, offset: u64, segment_end: u64) -> Result<(), Denial> {
        if op != Op::Write {
            return Err(Denial::AppendOnly);
        }
        let shown = self.shown.as_slice().iter();
        let end = shown.map(|range| segment_end.saturating_sub(range.offset).min(range.len)).sum();
        if offset == end { Ok(()) } else { Err(Denial::NotAtEnd { offset, end }) }
    }

    /// Where bytes of the derived device are in the segment. They are on it.
    fn translate(&self, wanted: ByteRange) -> Pieces {
        let mut pieces = Pieces::default();
        let (mut rest, mut skip) = (wanted.len, wanted.offset);
        for range in self.shown.as_slice() {
            let here = range.len.saturating_sub(skip).min(rest);
            if here > 0 {
                pieces.push(ByteRange { offset: range.offset + skip, len: here });
                rest -= here;
            }
            skip = skip.saturating_sub(range.len);
        }
        assert_eq!(rest, 0, "bytes past the end of a derived device");
        let end = self.shown.as_slice().last().map_or(0, ByteRange::end);
        assert!(pieces.end() <= end, "no piece is behind what is granted");
        pieces
    }
}

#[cfg(test)]
mod tests;
