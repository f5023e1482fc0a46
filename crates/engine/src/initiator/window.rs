//! How much of large requests is under way at a disk while small ones come, so that these wait for no stream:
//! the two networks of RAID-II, on what links there are.
//!
//! Alone, either kind is bounded by the session's room for commands only. While small ones come, large ones
//! have a window of bytes. It is the smallest with which they move as fast as with a larger one: now and then another
//! size is tried, and kept if it moves a tenth more, or a smaller one if it moves hardly less.
//!
//! Invariant: one large command may always be under way, so that none waits for ever.
//!
//! Not here: which session takes a command ([`super::actor`]).

use std::time::Duration;

use netraid_block::{Op, Request};
use tokio::time::Instant;

/// From so many bytes on, what is moved is bulk.
const BULK_LEN: u64 = 64 << 10;
/// The window is no smaller: it hides what a round trip takes on links of some gigabits.
const WINDOW_MIN: u64 = 1 << 20;
const WINDOW_MAX: u64 = 256 << 20;
/// How long after the last small request large ones are bounded.
const MEMORY: Duration = Duration::from_secs(2);
/// A rate is that of so many windows, and of no less time.
const WINDOWS: u64 = 4;
const MEASURED: Duration = Duration::from_millis(50);
/// So many rates after one trial the next one begins.
const REST: u32 = 16;

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// It goes before bulk.
    Express,
    /// Much to move: it may fill the path.
    Bulk,
}

impl Class {
    pub(super) fn of(request: &Request) -> Self {
        let moves = matches!(request.op, Op::Read | Op::Write);
        if moves && request.len >= BULK_LEN { Self::Bulk } else { Self::Express }
    }
}

/// Bytes of a command that count as bulk.
pub(super) const fn bulk_len(moves: usize) -> u64 {
    let len = moves as u64;
    if len >= BULK_LEN { len } else { 0 }
}

/// The window of one disk.
#[derive(Debug)]
pub(super) struct BulkWindow {
    /// Bytes, beside those of two of the largest commands.
    len: u64,
    largest: u64,
    /// When the last small request came, while large ones are bounded.
    express_at: Option<Instant>,
    /// Since when bytes are counted, and how many.
    since: Option<Instant>,
    moved: u64,
    /// Something waited for the window meanwhile.
    held_back: bool,
    trial: Trial,
    grows_next: bool,
}

#[derive(Debug, Clone, Copy)]
enum Trial {
    /// So many rates yet.
    Rest(u32),
    /// The rate before is measured once more, next to the trial.
    Before,
    /// Another window, instead of this one with this rate.
    Of { len: u64, rate: f64 },
}

impl Default for BulkWindow {
    fn default() -> Self {
        Self {
            len: WINDOW_MIN,
            largest: 0,
            express_at: None,
            since: None,
            moved: 0,
            held_back: false,
            trial: Trial::Rest(0),
            grows_next: true,
        }
    }
}

impl BulkWindow {
    /// A small request that moves data has come.
    pub(super) fn note_express(&mut self, now: Instant) {
        self.express_at = Some(now);
    }

    /// Whether large requests are bounded now.
    pub(super) const fn is_bounded(&self) -> bool {
        self.express_at.is_some()
    }

    /// Whether another large command may be sent when so many bytes of them are under way.
    pub(super) fn has_room(&mut self, under_way: u64) -> bool {
        let has_room = !self.is_bounded() || under_way < self.bytes();
        self.held_back |= !has_room;
        has_room
    }

    /// A large command is sent.
    pub(super) const fn begin(&mut self, len: u64) {
        if len > self.largest {
            self.largest = len;
        }
    }

    /// A large command has ended, at a time that is known only while it matters.
    pub(super) fn end(&mut self, len: u64, now: impl FnOnce() -> Instant) {
        let Some(express_at) = self.express_at else { return };
        let now = now();
        if now - express_at > MEMORY {
            *self = Self { largest: 0, express_at: None, ..Self::default() };
            return;
        }
        let since = *self.since.get_or_insert(now);
        self.moved += len;
        let took = now - since;
        if took < MEASURED || self.moved < WINDOWS * self.bytes() {
            return;
        }
        let rate = self.moved as f64 / took.as_secs_f64();
        let was_held_back = self.held_back;
        (self.since, self.moved, self.held_back) = (Some(now), 0, false);
        self.try_on(if was_held_back { Some(rate) } else { None });
    }

    fn bytes(&self) -> u64 {
        self.len.max(2 * self.largest)
    }

    /// Goes on after a rate was measured, if the window was what bounded it.
    fn try_on(&mut self, rate: Option<f64>) {
        self.trial = match (self.trial, rate) {
            (Trial::Rest(0), Some(_)) => Trial::Before,
            (Trial::Rest(left), Some(_)) => Trial::Rest(left - 1),
            (Trial::Before, Some(rate)) => {
                let len = self.bytes();
                let other = if self.grows_next { len + len / 2 } else { len - len / 3 };
                self.len = other.clamp(WINDOW_MIN, WINDOW_MAX);
                Trial::Of { len, rate }
            }
            (Trial::Of { len, rate: before }, Some(rate)) => {
                let is_better =
                    if self.grows_next { rate > before * 1.1 } else { rate > before * 0.97 };
                if is_better {
                    // The same way again, at once.
                    Trial::Before
                } else {
                    self.len = len;
                    self.grows_next = !self.grows_next;
                    Trial::Rest(REST)
                }
            }
            (Trial::Of { len, .. }, None) => {
                self.len = len;
                Trial::Rest(REST)
            }
            (Trial::Rest(_) | Trial::Before, None) => Trial::Rest(0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: u64 = 256 << 10;

    /// A path that moves `rate` bytes a second and takes `trip` there and back, in whose queue small requests wait.
    struct Path {
        rate: f64,
        trip: Duration,
        now: Instant,
        /// When each of those under way ends.
        ends: std::collections::VecDeque<Instant>,
        window: BulkWindow,
    }

    impl Path {
        fn new(rate: f64, trip: Duration) -> Self {
            let window = BulkWindow::default();
            Self { rate, trip, now: Instant::now(), ends: [].into(), window }
        }

        /// A stream of large commands without end, with a small one now and then; bytes a second of it.
        fn run(&mut self, seconds: u64, with_express: bool) -> f64 {
            let until = self.now + Duration::from_secs(seconds);
            let (began, mut moved) = (self.now, 0);
            while self.now < until {
                if with_express {
                    self.window.note_express(self.now);
                }
                while self.ends.len() < 4096
                    && self.window.has_room(self.ends.len() as u64 * COMMAND)
                {
                    self.window.begin(COMMAND);
                    let sent = self.now + self.trip;
                    let last = self.ends.back().copied().unwrap_or(sent);
                    let takes = Duration::from_secs_f64(COMMAND as f64 / self.rate);
                    self.ends.push_back(last.max(sent) + takes);
                }
                let end = self.ends.pop_front().unwrap();
                self.now = end;
                moved += COMMAND;
                self.window.end(COMMAND, || end);
            }
            moved as f64 / (self.now - began).as_secs_f64()
        }
    }

    #[test]
    fn a_stream_alone_is_not_bounded_and_is_while_small_ones_come() {
        let mut path = Path::new(25e6, Duration::from_millis(1));
        path.run(1, false);
        assert_eq!(path.ends.len(), 4095);
        path.run(200, true);
        assert!(path.ends.len() as u64 * COMMAND <= 2 * WINDOW_MIN, "{}", path.ends.len());
        // Small ones have stopped.
        path.run(4, false);
        assert_eq!(path.ends.len(), 4095);
    }

    #[test]
    fn a_short_path_keeps_the_smallest_window_and_its_rate() {
        let mut path = Path::new(25e6, Duration::from_millis(1));
        let rate = path.run(60, true);
        assert!(rate > 0.97 * 25e6, "{rate}");
        assert!(path.window.bytes() <= WINDOW_MIN * 3 / 2, "{:?}", path.window);
    }

    #[test]
    fn a_long_path_gets_the_window_that_it_needs() {
        // A gigabit over 100 ms: 12.5 MB are under way when it is full.
        let mut path = Path::new(125e6, Duration::from_millis(100));
        path.run(60, true);
        let rate = path.run(60, true);
        assert!(rate > 0.85 * 125e6, "{rate}");
        assert!(path.window.bytes() < 40 << 20, "{:?}", path.window);
        // And no more than it needs when it has become shorter.
        path.trip = Duration::from_millis(1);
        path.run(300, true);
        assert!(path.window.bytes() < 4 << 20, "{:?}", path.window);
    }

    #[test]
    fn a_command_larger_than_the_window_goes_through() {
        let mut window = BulkWindow::default();
        window.note_express(Instant::now());
        assert!(window.has_room(0));
        window.begin(8 << 20);
        assert!(window.has_room(8 << 20), "the next one is sent while this one comes");
        assert!(!window.has_room(16 << 20));
    }
}
