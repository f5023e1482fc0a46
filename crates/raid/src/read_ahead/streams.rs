//! Which reads follow one another.

use core::ops::Range;

/// Streams that are followed at once.
const STREAMS: u32 = 8;
/// Reads in a row that make a stream of it.
const ROW_MIN: u32 = 3;
/// How far from its place a read may arrive, in its own lengths, ...
const SLACK_READS: u64 = 8;
/// ... and in bytes.
const SLACK_MAX: u64 = 1 << 20;
/// A proven stream stays in the table as if it had been used so much more recently.
const PROVEN_BONUS: u64 = 64;
/// Pieces that a reader uses before more is tried who was too slow for it.
const PATIENCE: u32 = 64;
/// How soon a reader that keeps less in flight than before is seen to, in reads.
const DEPTH_READS: u64 = 128;
/// A stream that was not used for so many reads of the volume leaves its memory to others.
const IDLE_AFTER: u64 = 512;

/// A stream, also after it has left the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamId(u32);

/// Reads that follow one another.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    /// Where its next read should begin.
    pub(super) next: u64,
    /// Up to where it was read ahead.
    pub(super) ahead: u64,
    /// Bytes that are read ahead of it.
    pub(super) window: u64,
    /// What that may be: less for who does not get there before it is old.
    window_max: u64,
    /// Pieces that were used since it could not grow.
    patience: u32,
    /// Bytes of its reads that have not ended.
    pub(super) in_flight: u64,
    /// The most that this was lately: many reads end and begin at once.
    pub(super) depth: u64,
    /// Reads that came in a row.
    row: u32,
    /// Bytes before `next` that were left out, and may come late.
    missing: u64,
    /// The read of the volume that was its last.
    used: u64,
}

impl Stream {
    const fn new(id: StreamId, next: u64, window: Range<u64>, used: u64) -> Self {
        Self {
            id,
            next,
            ahead: 0,
            window: window.start,
            window_max: window.end,
            patience: 0,
            in_flight: 0,
            depth: 0,
            row: 1,
            missing: 0,
            used,
        }
    }

    /// Whether enough reads followed one another.
    pub(super) const fn is_proven(&self) -> bool {
        self.row >= ROW_MIN
    }

    /// A read of its that does not end at once.
    pub(super) fn begin(&mut self, len: u64) {
        self.in_flight += len;
        self.depth = self.in_flight.max(self.depth - self.depth / DEPTH_READS);
    }

    /// Takes the read that follows, or one that is a little early or late; whether it is one.
    fn take(&mut self, range: &Range<u64>) -> bool {
        let len = range.end - range.start;
        let slack = slack(len);
        if range.start > self.next {
            let gap = range.start - self.next;
            if gap + self.missing > slack {
                return false;
            }
            self.missing += gap;
            self.next = range.end;
            return true;
        }
        let is_late = range.end <= self.next;
        if self.next - range.start > slack + len || (is_late && self.missing < len) {
            return false;
        }
        if is_late {
            self.missing -= len;
        }
        self.next = self.next.max(range.end);
        self.row = self.row.saturating_add(1);
        true
    }

    /// What was read ahead is not what was asked for: less of it, or none until it is proven again.
    fn shrink(&mut self, window_min: u64) {
        if self.window > window_min {
            self.window = (self.window / 2).max(window_min);
        } else {
            self.row = 0;
        }
    }
}

/// The streams that are followed.
#[derive(Debug)]
pub(super) struct Streams {
    table: [Stream; STREAMS as usize],
    /// Reads of the volume so far.
    reads: u64,
    window_min: u64,
    window_max: u64,
}

impl Streams {
    pub(super) fn new(window_min: u64, window_max: u64) -> Self {
        let mut id = 0;
        let table = [(); STREAMS as usize].map(|()| {
            let none =
                Stream { row: 0, ..Stream::new(StreamId(id), u64::MAX, window_min..window_max, 0) };
            id += 1;
            none
        });
        Self { table, reads: 0, window_min, window_max }
    }

    /// The stream that a read goes on with, or begins: its place in the table.
    pub(super) fn follow(&mut self, range: &Range<u64>) -> usize {
        self.reads += 1;
        for (place, stream) in self.table.iter_mut().enumerate() {
            if stream.take(range) {
                stream.used = self.reads;
                return place;
            }
        }
        let age = |stream: &Stream| {
            let age = self.reads - stream.used;
            if stream.is_proven() { age / PROVEN_BONUS } else { age }
        };
        let oldest = self.table.iter().enumerate().max_by_key(|(_, stream)| age(stream));
        let place = oldest.map_or(0, |(place, _)| place);
        let id = StreamId(self.table[place].id.0.wrapping_add(STREAMS));
        let window = self.window_min..self.window_max;
        self.table[place] = Stream::new(id, range.end, window, self.reads);
        place
    }

    pub(super) const fn at(&mut self, place: usize) -> &mut Stream {
        &mut self.table[place]
    }

    pub(super) fn find(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = &mut self.table[(id.0 % STREAMS) as usize];
        (stream.id == id).then_some(stream)
    }

    /// What was read ahead was asked for.
    pub(super) fn grow(&mut self, id: StreamId) {
        let window_max = self.window_max;
        if let Some(stream) = self.find(id) {
            if stream.window >= stream.window_max && stream.window_max < window_max {
                stream.patience += 1;
                if stream.patience == PATIENCE {
                    stream.patience = 0;
                    stream.window_max = (stream.window_max * 2).min(window_max);
                }
            }
            stream.window = (stream.window * 2).min(stream.window_max);
        }
    }

    /// What was read ahead was not asked for.
    pub(super) fn shrink(&mut self, id: StreamId) {
        let window_min = self.window_min;
        if let Some(stream) = self.find(id) {
            stream.shrink(window_min);
        }
    }

    /// What was read ahead from `start` is lost before it was asked for.
    pub(super) fn set_back(&mut self, id: StreamId, start: u64) {
        let window_min = self.window_min;
        if let Some(stream) = self.find(id) {
            stream.ahead = stream.ahead.min(start);
            stream.shrink(window_min);
        }
    }

    /// Nothing is read ahead of it any more from `start` on.
    pub(super) fn lower(&mut self, id: StreamId, start: u64) {
        if let Some(stream) = self.find(id) {
            stream.ahead = stream.ahead.min(start);
        }
    }

    /// What was read ahead got old before it was asked for.
    pub(super) fn slow_down(&mut self, id: StreamId) {
        let window_min = self.window_min;
        if let Some(stream) = self.find(id) {
            stream.shrink(window_min);
            (stream.window_max, stream.patience) = (stream.window, 0);
        }
    }

    /// What was read ahead could not be read: nothing more until it is proven again.
    pub(super) fn distrust(&mut self, id: StreamId) {
        let window_min = self.window_min;
        if let Some(stream) = self.find(id) {
            stream.window = window_min;
            stream.row = 0;
        }
    }

    /// Streams that are read ahead of, and in use.
    pub(super) fn active(&self) -> u64 {
        let is_active =
            |stream: &&Stream| stream.is_proven() && self.reads - stream.used < IDLE_AFTER;
        self.table.iter().filter(is_active).count() as u64
    }

    /// Whether nobody reads on there, as far as can be told from others' reads.
    pub(super) fn is_idle(&mut self, id: StreamId) -> bool {
        let reads = self.reads;
        self.find(id).is_none_or(|stream| reads - stream.used >= IDLE_AFTER)
    }
}

/// Bytes that a read of `len` may be away from its place.
pub(super) const fn slack(len: u64) -> u64 {
    let slack = len.saturating_mul(SLACK_READS);
    if slack < SLACK_MAX { slack } else { SLACK_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> Streams {
        Streams::new(100, 1000)
    }

    /// Whether the last of some reads, given as first blocks of ten bytes, makes a stream.
    fn proves(starts: &[u64]) -> bool {
        let mut streams = streams();
        let places = starts.iter().map(|start| streams.follow(&(start * 10..start * 10 + 10)));
        let Some(place) = places.last() else { return false };
        streams.at(place).is_proven()
    }

    #[test]
    fn three_reads_in_a_row_make_a_stream_also_when_some_are_late() {
        assert!(!proves(&[5, 6]));
        assert!(proves(&[5, 6, 7]));
        assert!(proves(&[5, 7, 6, 9, 8]));
        assert!(proves(&[100, 5, 200, 6, 300, 7]));
    }

    #[test]
    fn what_repeats_goes_back_or_skips_makes_none() {
        assert!(!proves(&[5, 5, 5, 5, 5]));
        assert!(!proves(&[9, 8, 7, 6, 5]));
        assert!(!proves(&[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]));
        assert!(!proves(&[0, 1000, 2, 2000, 4, 3000]));
    }

    #[test]
    fn a_stream_stays_while_others_read_at_random() {
        let mut streams = streams();
        let place = [0, 10, 20].map(|at| streams.follow(&(at..at + 10)))[0];
        let id = streams.at(place).id;
        for at in 1..200 {
            streams.follow(&(at * 10_000..at * 10_000 + 10));
        }
        assert_eq!(streams.follow(&(30..40)), place);
        assert_eq!(streams.at(place).id, id);
        for at in 1..1000 {
            streams.follow(&(at * 10_000..at * 10_000 + 10));
        }
        assert!(streams.find(id).is_none(), "it goes in the end");
    }
}
