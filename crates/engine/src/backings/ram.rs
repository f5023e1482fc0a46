//! A volume in memory: extents that are allocated when they are first written, and freed when
//! nothing in them is mapped any more.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use netraid_block::{
    BlockDevice, BufMut, DeviceInfo, ErrorKind, IoError, Op, Pool, Request, SgList,
    extents::Extents,
};

use smallvec::SmallVec;

use super::{BackingError, check_promised, describe};

/// Memory is allocated in extents of this length; what is mapped is known by the unit.
const EXTENT_LEN: usize = 1 << 20;
/// The smallest logical block.
const UNIT_LEN: usize = 512;
const UNITS: usize = EXTENT_LEN / UNIT_LEN;
/// Most extents that are looked at for one question about what is mapped.
const LOOKED_AT_MAX: usize = 4096;
/// Extents are shared by volumes of several sizes in segments of this many.
const SEGMENT_EXTENTS: usize = 1024;
const SEGMENT_LEN: u64 = (EXTENT_LEN * SEGMENT_EXTENTS) as u64;

/// The table of extents is in memory for the whole size: 64 bytes each at most.
const SIZE_MAX: u64 = 4 << 40;

type Segment = [RwLock<Extent>; SEGMENT_EXTENTS];

/// The extents of one request, locked; a transfer of 2 MiB touches three.
type Held<T> = SmallVec<[T; 4]>;

/// No bytes until it is first written; reads as zeros until then.
#[derive(Default)]
struct Extent {
    /// Begins at a page, as the buffers do that are copied from and to: where one of two is some bytes
    /// further into its page, `rep movsb` has a tenth of its speed on some processors.
    bytes: Option<BufMut>,
    /// A bit for each unit, or none when there are no bytes.
    mapped: Vec<u64>,
}

/// Invariant: a unit that is not mapped holds zeros.
pub(super) struct Ram {
    info: DeviceInfo,
    segments: Box<[Arc<Segment>]>,
    pool: Pool,
}

impl Ram {
    pub(super) fn new(
        size: u64,
        block_len: u32,
        read_only: bool,
        pool: Pool,
    ) -> Result<Self, BackingError> {
        let info = DeviceInfo { read_only, ..describe("ram", size, block_len, false)? };
        let segments = segments(&[], size)?;
        Ok(Self { info, segments, pool })
    }

    /// The same memory as a volume of another size; of a smaller one the rest is cleared.
    pub(super) fn resized(&self, size: u64) -> Result<Self, BackingError> {
        let capacity = self.info.capacity;
        let info = DeviceInfo { capacity: size, ..self.info.clone() };
        if size < capacity {
            let cut = self.clear(size, capacity - size);
            cut.map_err(|_| BackingError::TooLarge { name: "ram".into(), size: capacity })?;
        }
        let segments = segments(&self.segments, size)?;
        Ok(Self { info, segments, pool: self.pool.clone() })
    }

    /// Bytes of memory that are allocated for the volume's contents.
    pub(super) fn used_bytes(&self) -> u64 {
        let extents = self.segments.iter().flat_map(|segment| segment.iter());
        extents.map(|extent| read_lock(extent).bytes().len() as u64).sum()
    }

    fn extent(&self, number: usize) -> &RwLock<Extent> {
        &self.segments[number / SEGMENT_EXTENTS][number % SEGMENT_EXTENTS]
    }

    fn read(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        let mut buf = self.pool.get(to_usize(len)?);
        let mut rest = &mut *buf;
        // All are held at once, so that no write is seen in part.
        let mut held: Held<RwLockReadGuard<'_, Extent>> = Held::new();
        for (extent, ..) in pieces(to_usize(offset)?, rest.len()) {
            held.push(read_lock(self.extent(extent)));
        }
        let pieces = pieces(to_usize(offset)?, rest.len());
        for ((_, start, part_len), extent) in pieces.zip(&held) {
            let (part, after) = rest.split_at_mut(part_len);
            match extent.bytes().get(start..start + part_len) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
            rest = after;
        }
        assert!(rest.is_empty(), "all that is read was there");
        drop(held);
        Ok(buf.freeze().into())
    }

    /// Writes all of it, at one moment, or nothing when there is no memory.
    fn write(&self, offset: u64, data: &SgList) -> Result<SgList, IoError> {
        let mut at = to_usize(offset)?;
        let (first, start) = (at / EXTENT_LEN, at % EXTENT_LEN);
        if (1..=EXTENT_LEN - start).contains(&data.len()) {
            // Nearly always, so it has no need of a list.
            let mut extent = write_lock(self.extent(first));
            let mut rest = extent.map(start, data.len())?;
            for buf in data.parts() {
                let (part, after) = rest.split_at_mut(buf.len());
                part.copy_from_slice(buf);
                rest = after;
            }
            return Ok(SgList::new());
        }
        // In ascending order, as everybody takes them.
        let mut held: Held<RwLockWriteGuard<'_, Extent>> = Held::new();
        for (extent, start, part_len) in pieces(at, data.len()) {
            let mut extent = write_lock(self.extent(extent));
            extent.map(start, part_len)?;
            held.push(extent);
        }
        for buf in data.parts() {
            let mut rest = &**buf;
            for (extent, start, part_len) in pieces(at, rest.len()) {
                let (part, after) = rest.split_at(part_len);
                held[extent - first].bytes_mut()[start..start + part_len].copy_from_slice(part);
                rest = after;
            }
            at += buf.len();
        }
        Ok(SgList::new())
    }

    /// Makes a range read as zeros, and unmaps it.
    fn clear(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        for (extent, start, part_len) in pieces(to_usize(offset)?, to_usize(len)?) {
            write_lock(self.extent(extent)).unmap(start, part_len);
        }
        Ok(SgList::new())
    }

    /// Makes a range read as zeros and keeps memory for it.
    fn zero(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        for (extent, start, part_len) in pieces(to_usize(offset)?, to_usize(len)?) {
            write_lock(self.extent(extent)).map(start, part_len)?.fill(0);
        }
        Ok(SgList::new())
    }

    fn extents(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        let mut found = Extents::new();
        let pieces = pieces(to_usize(offset)?, to_usize(len)?);
        for (extent, start, part_len) in pieces.take(LOOKED_AT_MAX) {
            if !read_lock(self.extent(extent)).describe(start, part_len, &mut found) {
                break;
            }
        }
        Ok(found.encode())
    }
}

impl BlockDevice for Ram {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    /// Requests end before this returns.
    fn submit(&self, request: Request) {
        check_promised(&self.info, &request);
        let Request { op, offset, len, flags, data, completion } = request;
        completion.finish(match op {
            Op::Read => self.read(offset, len),
            Op::Write => self.write(offset, &data),
            Op::WriteZeroes if flags.no_unmap => self.zero(offset, len),
            Op::Discard | Op::WriteZeroes => self.clear(offset, len),
            Op::Flush => Ok(SgList::new()),
            Op::Extents => self.extents(offset, len),
        });
    }
}

impl Extent {
    fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_deref_mut().unwrap_or_default()
    }

    /// Tells which units of a range are mapped; false when the answer is full.
    fn describe(&self, start: usize, len: usize, found: &mut Extents) -> bool {
        if self.bytes.is_none() {
            return found.push(len as u64, false);
        }
        let is_mapped = |unit: usize| self.mapped[unit / 64] & 1 << (unit % 64) != 0;
        (start / UNIT_LEN..(start + len) / UNIT_LEN)
            .all(|unit| found.push(UNIT_LEN as u64, is_mapped(unit)))
    }

    /// The bytes of a range, which are mapped from now on.
    fn map(&mut self, start: usize, len: usize) -> Result<&mut [u8], IoError> {
        if self.bytes.is_none() {
            let no_memory = || IoError::with_detail(ErrorKind::NoSpace, "ram: no memory left");
            self.bytes = Some(BufMut::try_zeroed(EXTENT_LEN).ok_or_else(no_memory)?);
            self.mapped = vec![0; UNITS / 64];
        }
        for (word, bits) in words(start, len) {
            self.mapped[word] |= bits;
        }
        Ok(&mut self.bytes_mut()[start..start + len])
    }

    /// Fills a range with zeros, and unmaps it.
    fn unmap(&mut self, start: usize, len: usize) {
        let Some(bytes) = self.bytes_mut().get_mut(start..start + len) else { return };
        if len < EXTENT_LEN {
            bytes.fill(0);
        }
        // Blocks are whole units, so that no byte beside the range is in one of these.
        for (word, bits) in words(start, len) {
            self.mapped[word] &= !bits;
        }
        if self.mapped.iter().all(|word| *word == 0) {
            *self = Self::default();
        }
    }
}

/// The words of a map that the units of a range are in, each with the range's bits in it.
fn words(start: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (start / UNIT_LEN, (start + len).div_ceil(UNIT_LEN));
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.saturating_sub(word * 64);
        let to = (end - word * 64).min(64);
        (word, u64::MAX >> (64 - (to - from)) << from)
    })
}

/// The segments of a volume of `size` bytes, the first of which are those given.
fn segments(given: &[Arc<Segment>], size: u64) -> Result<Box<[Arc<Segment>]>, BackingError> {
    let too_large = || BackingError::TooLarge { name: "ram".into(), size };
    if size > SIZE_MAX {
        return Err(too_large());
    }
    let count = usize::try_from(size.div_ceil(SEGMENT_LEN)).map_err(|_| too_large())?;
    let mut segments = Vec::new();
    segments.try_reserve_exact(count).map_err(|_| too_large())?;
    segments.extend(given.iter().take(count).cloned());
    segments.resize_with(count, || Arc::new(std::array::from_fn(|_| RwLock::default())));
    Ok(segments.into())
}

fn read_lock(extent: &RwLock<Extent>) -> RwLockReadGuard<'_, Extent> {
    extent.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock(extent: &RwLock<Extent>) -> RwLockWriteGuard<'_, Extent> {
    extent.write().unwrap_or_else(PoisonError::into_inner)
}

/// The parts of a range in each extent: its number, the first byte in it, and how many.
fn pieces(mut at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = at + len;
    std::iter::from_fn(move || {
        let start = at % EXTENT_LEN;
        let part_len = (EXTENT_LEN - start).min(end - at);
        let piece = (part_len > 0).then_some((at / EXTENT_LEN, start, part_len));
        at += part_len;
        piece
    })
}

/// Ranges were checked against a capacity that fits, so this never fails.
fn to_usize(value: u64) -> Result<usize, IoError> {
    usize::try_from(value).map_err(|_| ErrorKind::OutOfRange.into())
}
