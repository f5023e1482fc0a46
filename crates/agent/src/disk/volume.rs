//! A segment as a device: its bytes are in extents of the disk, and what was never written reads as zeros.
//!
//! What was written before goes to the disk as it is, by the request's own completion. The first write of a granule
//! has the rest of it filled with zeros, and only when all of that has ended does the granule count as
//! written; whoever else writes it for the first time waits for that, or two would wipe out each other's bytes. Zeros for
//! whole granules, and discards, take the mark away, and the disk is told where it can make use of that.
//!
//! Invariant: of a granule that is marked, all bytes on the disk are of the segment that has it now. A flush, or a
//! write with FUA, is answered when the marks that it rests on are durable: before that, the scribe
//! writes them.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use netraid_block::{
    BlockDevice, Complete, Completion, DeviceInfo, IoError, Op, Request, RequestFlags, SgList,
    extents::Extents, narrow,
};

use super::{Shared, geometry::GRANULE_LEN, scribe::Pen};

/// Runs of granules of one request that the disk is told to forget; of more it is told nothing.
const FORGOTTEN_RUNS_MAX: usize = 64;
/// Granules that one answer about extents tells of, at most.
const MAPPED_MAX: usize = 1 << 16;

/// A segment that is open.
pub(super) struct Volume {
    shared: Arc<Shared>,
    pen: Arc<Pen>,
    /// In the order of the segment.
    extents: Box<[u32]>,
    info: DeviceInfo,
    /// Granules whose mark is about to change, and who waits for that.
    changing: Mutex<Vec<Change>>,
    next_change: AtomicUsize,
}

struct Change {
    id: usize,
    /// First and last granule of the segment.
    range: (u64, u64),
    waiting: Vec<Request>,
}

/// The way to it, as a device.
pub(super) struct Handle(pub(super) Arc<Volume>);

/// A request of which parts are under way.
struct Parts {
    volume: Arc<Volume>,
    left: AtomicUsize,
    /// What each of them has read, and the first error.
    ended: Mutex<(Vec<SgList>, Option<IoError>)>,
    then: Mutex<Option<Then>>,
}

/// What is done when all parts have ended well.
struct Then {
    completion: Completion,
    /// The change that has ended.
    change: Option<usize>,
    /// Granules that are written now, as the disk counts them.
    written: Vec<u64>,
    /// Answered once it is durable.
    is_fua: bool,
}

/// A part of a request to the disk.
struct Part {
    op: Op,
    offset: u64,
    len: u64,
    flags: RequestFlags,
    data: SgList,
}

impl Volume {
    pub(super) fn new(
        shared: Arc<Shared>,
        pen: Arc<Pen>,
        extents: &[u32],
        len_bytes: u64,
    ) -> Arc<Self> {
        let geometry = &shared.geometry;
        let is_known = |extent: &u32| *extent < geometry.extents;
        let has_all = extents.len() as u64 == geometry.extents_of(len_bytes);
        assert!(has_all && extents.iter().all(is_known), "a segment of {len_bytes} bytes has all");
        let info = DeviceInfo {
            capacity: len_bytes,
            read_only: false,
            // Marks are written by flushes.
            volatile_cache: true,
            can_discard: true,
            can_map: true,
            ..shared.device.info().clone()
        };
        Arc::new(Self {
            shared,
            pen,
            extents: extents.into(),
            info,
            changing: Mutex::default(),
            next_change: AtomicUsize::new(0),
        })
    }

    fn submit(self: &Arc<Self>, request: Request) {
        let Request { op, offset, len, ref data, .. } = request;
        let is_within = offset.checked_add(len).is_some_and(|end| end <= self.info.capacity);
        assert!(is_within, "{op:?} of {len} bytes at {offset} behind {}", self.info.capacity);
        let carried = if op == Op::Write { len } else { 0 };
        assert!(data.len() as u64 == carried, "{op:?} of {len} bytes with {}", data.len());
        match request.op {
            Op::Flush if !self.shared.granules.is_unstable() => self.shared.device.submit(request),
            Op::Flush => self.pen.settle(request.completion),
            // Nothing of nothing.
            _ if request.len == 0 => request.completion.finish(Ok(SgList::new())),
            Op::Read => self.read(request),
            Op::Write => self.write(request),
            Op::Discard | Op::WriteZeroes => self.zero(request),
            Op::Extents => {
                let answer = self.mapped(request.offset, request.len).encode();
                request.completion.finish(Ok(answer));
            }
        }
    }

    fn read(self: &Arc<Self>, request: Request) {
        let Request { offset, len, .. } = request;
        let (first, last) = granules_of(offset, len);
        let count = (first..=last).filter(|granule| self.is_written(*granule)).count() as u64;
        if count == 0 {
            return request.completion.finish(Ok(SgList::zeroes(narrow(len))));
        }
        if count > last - first
            && let Some(offset) = self.place(offset, len)
        {
            return self.shared.device.submit(Request { offset, ..request });
        }
        let mut parts = Vec::new();
        for (at, len) in Self::pieces(offset, len) {
            parts.push(if self.is_written(at / GRANULE_LEN) {
                Part { op: Op::Read, ..Part::of(Op::Read, self.offset(at), len) }
            } else {
                let zeroes = SgList::zeroes(narrow(len));
                Part { data: zeroes, ..Part::of(Op::Write, 0, 0) }
            });
        }
        self.carry_out(parts, Then::answer(request.completion));
    }

    fn write(self: &Arc<Self>, request: Request) {
        let Request { offset, len, flags, .. } = request;
        let (first, last) = granules_of(offset, len);
        let is_written = (first..=last).all(|granule| self.is_written(granule));
        let is_durable =
            || (first..=last).all(|at| self.shared.granules.is_stable(self.granule(at)));
        if is_written
            && (!flags.fua || is_durable())
            && let Some(offset) = self.place(offset, len)
        {
            return self.shared.device.submit(Request { offset, ..request });
        }
        self.write_first(request);
    }

    /// Writes where something was not written before, is not durable, or is not in one piece.
    fn write_first(self: &Arc<Self>, request: Request) {
        let (offset, end) = (request.offset, request.offset + request.len);
        let (first, last) = granules_of(offset, request.len);
        let mut changing = self.changing();
        let mut fresh = (first..=last).filter(|granule| !self.is_written(*granule));
        let range = fresh.next().map(|first| (first, fresh.next_back().unwrap_or(first)));
        let change = match range {
            None => None,
            Some(range) => match changing.iter_mut().find(|change| change.touches(range)) {
                Some(change) => return change.waiting.push(request),
                None => Some(self.begin_change(&mut changing, range)),
            },
        };
        let fresh = range.map_or(0..0, |(first, last)| first..last + 1);
        let fresh: Vec<u64> = fresh.filter(|granule| !self.is_written(*granule)).collect();
        drop(changing);
        let mut parts = Vec::new();
        for granule in &fresh {
            let (from, to) = (granule * GRANULE_LEN, (granule + 1) * GRANULE_LEN);
            for (from, to) in [(from, offset.clamp(from, to)), (end.clamp(from, to), to)] {
                if from < to {
                    let zeroes = Part::of(Op::WriteZeroes, self.offset(from), to - from);
                    // What is behind it may be written at once: there is nothing to give back.
                    let flags = RequestFlags { no_unmap: true, fua: false };
                    parts.push(Part { flags, ..zeroes });
                }
            }
        }
        let mut runs_len = 0;
        for (at, len) in self.runs(offset, request.len) {
            runs_len += len;
            let from: usize = narrow(at - offset);
            let data = request.data.slice(from..from + narrow::<_, usize>(len));
            parts.push(Part { data, ..Part::of(Op::Write, self.offset(at), len) });
        }
        assert_eq!(runs_len, request.len, "all of a write is written");
        let written = fresh.into_iter().map(|granule| self.granule(granule)).collect();
        let (completion, is_fua) = (request.completion, request.flags.fua);
        self.carry_out(parts, Then { completion, change, written, is_fua });
    }

    /// Has a range read as zeros. A granule that is being written for the first time may end either way.
    fn zero(self: &Arc<Self>, request: Request) {
        let (offset, end) = (request.offset, request.offset + request.len);
        let whole = (offset.div_ceil(GRANULE_LEN), self.whole_end(end));
        let mut parts = Vec::new();
        let mut changing = self.changing();
        let mut marked = (whole.0..whole.1).filter(|granule| self.is_written(*granule));
        let range = marked.next().map(|first| (first, marked.next_back().unwrap_or(first)));
        let mut change = None;
        if let Some(range) = range {
            if let Some(change) = changing.iter_mut().find(|change| change.touches(range)) {
                return change.waiting.push(request);
            }
            let marked: Vec<u64> =
                (range.0..=range.1).filter(|granule| self.is_written(*granule)).collect();
            change = Some(self.begin_change(&mut changing, range));
            for granule in &marked {
                self.shared.granules.clear_written(self.granule(*granule));
            }
            if !request.flags.no_unmap {
                parts = self.forgotten(&marked);
            }
        }
        drop(changing);
        // What is left of the first and of the last granule.
        let (head, tail) = (whole.0 * GRANULE_LEN, whole.1 * GRANULE_LEN);
        let edges = match head < tail {
            true => [(offset, head), (tail, end)],
            false => [(offset, end.min(head)), (end.min(head), end)],
        };
        for (from, to) in edges.into_iter().filter(|(from, to)| from < to) {
            for (at, len) in Self::pieces(from, to - from) {
                if self.is_written(at / GRANULE_LEN) {
                    let flags = RequestFlags { no_unmap: request.flags.no_unmap, fua: false };
                    let zeroes = Part::of(Op::WriteZeroes, self.offset(at), len);
                    parts.push(Part { flags, ..zeroes });
                }
            }
        }
        let (completion, is_fua) = (request.completion, request.flags.fua);
        self.carry_out(parts, Then { completion, change, written: Vec::new(), is_fua });
    }

    /// Behind the last granule that ends at `end` or before; the last one of the segment may be shorter.
    fn whole_end(&self, end: u64) -> u64 {
        if end == self.info.capacity { end.div_ceil(GRANULE_LEN) } else { end / GRANULE_LEN }
    }

    /// Tells the disk that granules are not used, where it can make use of that.
    fn forgotten(&self, granules: &[u64]) -> Vec<Part> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for granule in granules.iter().map(|granule| self.granule(*granule)) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == granule => *count += 1,
                _ => runs.push((granule, 1)),
            }
        }
        if !self.shared.device.info().can_discard || runs.len() > FORGOTTEN_RUNS_MAX {
            return Vec::new();
        }
        let start = self.shared.geometry.data_offset();
        let part = |(first, count): (u64, u64)| {
            Part::of(Op::WriteZeroes, start + first * GRANULE_LEN, count * GRANULE_LEN)
        };
        runs.into_iter().map(part).collect()
    }

    fn mapped(&self, offset: u64, len: u64) -> Extents {
        let mut found = Extents::new();
        for (at, len) in Self::pieces(offset, len).take(MAPPED_MAX) {
            if !found.push(len, self.is_written(at / GRANULE_LEN)) {
                break;
            }
        }
        found
    }

    fn begin_change(&self, changing: &mut Vec<Change>, range: (u64, u64)) -> usize {
        let id = self.next_change.fetch_add(1, Ordering::Relaxed);
        changing.push(Change { id, range, waiting: Vec::new() });
        id
    }

    /// Ends a change; who waited for it begins again.
    fn end_change(self: &Arc<Self>, id: usize) {
        let mut changing = self.changing();
        let Some(at) = changing.iter().position(|change| change.id == id) else {
            unreachable!("change {id} ends twice")
        };
        let waiting = changing.swap_remove(at).waiting;
        drop(changing);
        for request in waiting {
            self.submit(request);
        }
    }

    fn changing(&self) -> MutexGuard<'_, Vec<Change>> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits parts, of which there may be none; then what is to be done.
    fn carry_out(self: &Arc<Self>, parts: Vec<Part>, then: Then) {
        let all = Arc::new(Parts {
            volume: Arc::clone(self),
            // One for those that are not submitted yet.
            left: AtomicUsize::new(parts.len() + 1),
            ended: Mutex::new((vec![SgList::new(); parts.len()], None)),
            then: Mutex::new(Some(then)),
        });
        for (tag, part) in (0..).zip(parts) {
            let completion = Completion::new(Arc::clone(&all) as Arc<dyn Complete>, tag);
            if part.len == 0 {
                completion.finish(Ok(part.data));
                continue;
            }
            let Part { op, offset, len, flags, data } = part;
            let request = Request { op, offset, len, flags, data, completion };
            self.shared.device.submit(request);
        }
        all.count_down();
    }

    /// A range of the segment in parts, each in one granule.
    fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let (end, mut at) = (offset + len, offset);
        std::iter::from_fn(move || {
            let from = at;
            at = ((from / GRANULE_LEN + 1) * GRANULE_LEN).min(end);
            (from < end).then(|| (from, at - from))
        })
    }

    /// A range of the segment in parts, each in one piece on the disk.
    fn runs(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (at, len) in Self::pieces(offset, len) {
            match runs.last_mut() {
                Some((from, known)) if self.offset(*from) + *known == self.offset(at) => {
                    *known += len;
                }
                _ => runs.push((at, len)),
            }
        }
        runs
    }

    /// Where a range is on the disk; none when it is not in one piece.
    fn place(&self, offset: u64, len: u64) -> Option<u64> {
        let shift = self.shared.geometry.extent_len.trailing_zeros();
        let (first, last) = (offset >> shift, (offset + len - 1) >> shift);
        let mut next = self.extent(first);
        for at in first + 1..=last {
            next += 1;
            if self.extent(at) != next {
                return None;
            }
        }
        Some(self.offset(offset))
    }

    /// Where a byte is on the disk.
    fn offset(&self, at: u64) -> u64 {
        let geometry = &self.shared.geometry;
        let shift = geometry.extent_len.trailing_zeros();
        geometry.extent_offset(self.extent(at >> shift)) + (at & (geometry.extent_len - 1))
    }

    fn extent(&self, ordinal: u64) -> u32 {
        self.extents[narrow::<_, usize>(ordinal)]
    }

    /// A granule of the segment, as the disk counts them.
    fn granule(&self, granule: u64) -> u64 {
        let per_extent = self.shared.geometry.granules();
        let shift = per_extent.trailing_zeros();
        u64::from(self.extent(granule >> shift)) * per_extent + (granule & (per_extent - 1))
    }

    fn is_written(&self, granule: u64) -> bool {
        self.shared.granules.is_written(self.granule(granule))
    }
}

impl BlockDevice for Handle {
    fn info(&self) -> DeviceInfo {
        self.0.info.clone()
    }

    fn submit(&self, request: Request) {
        self.0.submit(request);
    }
}

impl Complete for Parts {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(data) => ended.0[narrow::<_, usize>(tag)] = data,
            Err(error) => {
                ended.1.get_or_insert(error);
            }
        }
        drop(ended);
        self.count_down();
    }
}

impl Parts {
    fn count_down(&self) {
        let left = self.left.fetch_sub(1, Ordering::AcqRel);
        assert!(left > 0, "a part of a request ends twice");
        if left > 1 {
            return;
        }
        let then = self.then.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Then { completion, change, written, is_fua }) = then else {
            unreachable!("a request ends twice")
        };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (parts, error) = std::mem::take(&mut *ended);
        drop(ended);
        if error.is_none() {
            for granule in written {
                self.volume.shared.granules.set_written(granule);
            }
        }
        match error {
            Some(error) => completion.finish(Err(error)),
            None if is_fua => self.volume.pen.settle(completion),
            None => {
                let mut data = SgList::new();
                parts.into_iter().for_each(|part| data.append(part));
                completion.finish(Ok(data));
            }
        }
        if let Some(id) = change {
            self.volume.end_change(id);
        }
    }
}

impl Then {
    const fn answer(completion: Completion) -> Self {
        Self { completion, change: None, written: Vec::new(), is_fua: false }
    }
}

impl Part {
    fn of(op: Op, offset: u64, len: u64) -> Self {
        Self { op, offset, len, flags: RequestFlags::default(), data: SgList::new() }
    }
}

impl Change {
    const fn touches(&self, (first, last): (u64, u64)) -> bool {
        first <= self.range.1 && self.range.0 <= last
    }
}

/// First and last granule of a range that is not empty.
const fn granules_of(offset: u64, len: u64) -> (u64, u64) {
    (offset / GRANULE_LEN, (offset + len - 1) / GRANULE_LEN)
}
