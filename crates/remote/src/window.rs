//! How much of large requests is under way at a disk while small ones come, so that these wait for no stream:
//! the two networks of RAID-II, on what links there are.
//!
//! Alone, either kind is bounded by the session's room for commands only. While small ones come, large ones
//! have a window of bytes: what moves in [`DELAY`], so that nobody waits much longer behind it; or more, if the path is
//! longer, the least with which they move as fast as with more: now and then another size is tried, and kept if it
//! moves a tenth more, or a smaller one if it moves hardly less.
//!
//! Invariant: one large command may always be under way, so that none waits for ever.
//!
//! Not here: which session takes a command ([`Remote`](crate::Remote)).

use core::time::Duration;

use netraid_block::{Op, narrow};

use crate::interface::Request;

/// From so many bytes on, what is moved is bulk.
const BULK_LEN: u64 = 64 << 10;
/// How long what is in the window takes to move.
const DELAY: Duration = Duration::from_millis(10);
/// The window is no smaller: what is under way hides what happens at both ends.
const WINDOW_MIN: u64 = 1 << 20;
const WINDOW_MAX: u64 = 256 << 20;
/// So many small requests go before a large one that could be sent.
const EXPRESS_RUN: u32 = 32;
/// So many small commands go to one session before the next one is used: each waking of either side is for
/// several of them, and two links are still used by many.
const TOGETHER: usize = 32;
/// How long after the last small request large ones are bounded.
const MEMORY: Duration = Duration::from_secs(2);
/// A rate is that of so many windows, and of no less time.
const WINDOWS: u64 = 4;
const MEASURED: Duration = Duration::from_millis(50);
/// So many rates after one trial the next one begins.
const REST: u32 = 16;

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// It goes before bulk.
    Express,
    /// Much to move: it may fill the path.
    Bulk,
}

impl Class {
    pub(crate) fn of<U>(request: &Request<U>) -> Self {
        let moves = matches!(request.op, Op::Read | Op::Write | Op::WriteZeroes);
        if moves && request.len >= BULK_LEN { Self::Bulk } else { Self::Express }
    }

    /// Which goes first when so many small requests went before a large one.
    #[inline]
    pub(crate) const fn order(went_before: u32) -> [Self; 2] {
        if went_before < EXPRESS_RUN {
            [Self::Express, Self::Bulk]
        } else {
            [Self::Bulk, Self::Express]
        }
    }
}

/// A session, as far as it matters which of several takes a command.
pub(crate) struct LaneView {
    /// It can take one now.
    pub(crate) has_room: bool,
    /// It will take some.
    pub(crate) is_usable: bool,
    /// Bytes of bulk that are under way in it.
    pub(crate) bulk: u64,
    /// Commands under way.
    pub(crate) running: usize,
}

/// The window of one disk.
#[derive(Debug)]
pub(crate) struct BulkWindow {
    /// Bytes, unless what moves in the delay or two of the largest commands are more.
    len: u64,
    /// Bytes that move in the delay.
    moves: u64,
    /// The largest command of late, and since the last rate.
    largest: u64,
    seen: u64,
    /// When the last small request came, while large ones are bounded.
    express_at: Option<Duration>,
    /// Since when bytes are counted, and how many.
    since: Option<Duration>,
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
    /// Another length, instead of this one with this rate.
    Of { len: u64, rate: f64 },
}

impl Default for BulkWindow {
    fn default() -> Self {
        Self {
            len: WINDOW_MIN,
            moves: 0,
            largest: 0,
            seen: 0,
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
    #[inline]
    pub(crate) const fn note_express(&mut self, now: Duration) {
        self.express_at = Some(now);
    }

    /// Whether large requests are bounded now.
    #[inline]
    pub(crate) const fn is_bounded(&self) -> bool {
        self.express_at.is_some()
    }

    /// Bounds nothing any more when the last small request was long ago; what was learnt stays.
    pub(crate) fn look(&mut self, now: Duration) {
        if self.express_at.is_some_and(|at| now.saturating_sub(at) > MEMORY) {
            self.express_at = None;
            self.forget_rate();
        }
    }

    /// Which of `count` sessions takes a command, beginning with `turn`: each in its turn; but while large
    /// requests are bounded, they leave the first one that is usable to small ones, if another one is, and
    /// small ones go together.
    #[inline]
    pub(crate) fn lane(
        &self,
        class: Class,
        turn: usize,
        count: usize,
        view: impl Fn(usize) -> LaneView,
    ) -> Option<usize> {
        let mut lanes =
            (0..count).map(|step| (turn + step) % count).filter(|at| view(*at).has_room);
        if count == 1 || !self.is_bounded() {
            return lanes.next();
        }
        if class == Class::Express {
            // Beside the fewest bytes; and together, so that a few calls carry many.
            return lanes.min_by_key(|at| (view(*at).bulk, view(*at).running / TOGETHER, *at));
        }
        let mut usable = (0..count).filter(|at| view(*at).is_usable);
        let kept = usable.next().filter(|_| usable.next().is_some());
        lanes.find(|at| Some(*at) != kept)
    }

    /// Whether another large command may be sent when so many bytes of them are under way.
    #[inline]
    pub(crate) fn has_room(&mut self, under_way: u64) -> bool {
        let has_room = !self.is_bounded() || under_way < self.bytes();
        self.held_back |= !has_room;
        has_room
    }

    /// A large command is sent.
    #[inline]
    pub(crate) fn begin(&mut self, len: u64) {
        self.seen = self.seen.max(len);
        self.largest = self.largest.max(len);
    }

    /// A large command has ended while they are bounded, and so many bytes of others are under way.
    pub(crate) fn end(&mut self, len: u64, under_way: u64, now: Duration) {
        self.look(now);
        if under_way == 0 {
            // What comes next may come much later.
            self.forget_rate();
            return;
        }
        let Some(since) = self.since else {
            self.since = Some(now);
            return;
        };
        self.moved += len;
        let took = now.saturating_sub(since);
        if took < MEASURED || self.moved < WINDOWS * self.bytes() {
            return;
        }
        let rate = self.moved as f64 / took.as_secs_f64();
        let moves = u128::from(self.moved) * DELAY.as_nanos() / took.as_nanos();
        let was_held_back = self.held_back;
        self.forget_rate();
        self.since = Some(now);
        self.largest = core::mem::take(&mut self.seen);
        self.moves = narrow(moves.min(WINDOW_MAX.into()));
        self.try_on(if was_held_back { Some(rate) } else { None });
    }

    const fn forget_rate(&mut self) {
        (self.since, self.moved, self.held_back) = (None, 0, false);
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.len.max(self.moves).max(2 * self.largest)
    }

    /// Goes on after a rate was measured, if the window was what bounded it.
    fn try_on(&mut self, rate: Option<f64>) {
        self.trial = match (self.trial, rate) {
            (Trial::Rest(0), Some(_)) => Trial::Before,
            (Trial::Rest(left), Some(_)) => Trial::Rest(left - 1),
            (Trial::Before, Some(rate)) => {
                let (len, bytes) = (self.len, self.bytes());
                let other = if self.grows_next { bytes + bytes / 2 } else { bytes - bytes / 3 };
                self.len = other.clamp(WINDOW_MIN, WINDOW_MAX);
                if self.bytes() == bytes {
                    // There is nothing to try that way.
                    self.grows_next = !self.grows_next;
                    Trial::Rest(REST)
                } else {
                    Trial::Of { len, rate }
                }
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
        now: Duration,
        /// When each of those under way ends.
        ends: std::collections::VecDeque<Duration>,
        window: BulkWindow,
    }

    impl Path {
        fn new(rate: f64, trip: Duration) -> Self {
            let window = BulkWindow::default();
            Self { rate, trip, now: Duration::ZERO, ends: [].into(), window }
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
                self.window.look(end);
                if self.window.is_bounded() {
                    self.window.end(COMMAND, self.ends.len() as u64 * COMMAND, end);
                }
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
    fn a_fast_path_has_under_way_what_moves_in_the_delay() {
        let mut path = Path::new(1e9, Duration::from_micros(50));
        path.run(10, true);
        let bytes = path.window.bytes() as f64;
        assert!((0.8..2.0).contains(&(bytes / (1e9 * DELAY.as_secs_f64()))), "{:?}", path.window);
    }

    #[test]
    fn a_path_that_becomes_faster_gets_a_larger_window_and_keeps_it() {
        let mut path = Path::new(12.5e6, Duration::from_millis(50));
        path.run(60, true);
        path.rate = 125e6;
        path.run(120, true);
        let rate = path.run(30, true);
        assert!(rate > 0.8 * 125e6, "{rate}");
        path.run(5, false);
        let rate = path.run(1, true);
        assert!(rate > 0.7 * 125e6, "what was learnt is forgotten: {rate}");
    }

    #[test]
    fn bursts_with_pauses_teach_nothing() {
        let mut window = BulkWindow::default();
        let begun = Duration::ZERO;
        for burst in 0..1000 {
            let now = begun + burst * Duration::from_millis(100);
            window.note_express(now);
            window.begin(WINDOW_MIN);
            assert!(!window.has_room(2 * WINDOW_MIN));
            window.end(WINDOW_MIN, WINDOW_MIN, now);
            window.end(WINDOW_MIN, 0, now + Duration::from_millis(1));
        }
        assert_eq!(window.len, WINDOW_MIN);
    }

    #[test]
    fn large_requests_leave_one_session_where_another_one_takes_them() {
        let mut window = BulkWindow::default();
        let view = |has_room, is_usable, bulk| LaneView { has_room, is_usable, bulk, running: 0 };
        let lane = |window: &BulkWindow, class, turn, lanes: [(bool, bool, u64); 3]| {
            window.lane(class, turn, 3, |at| view(lanes[at].0, lanes[at].1, lanes[at].2))
        };
        let all = [(true, true, 0); 3];
        for turn in 0..3 {
            assert_eq!(lane(&window, Class::Bulk, turn, all), Some(turn));
        }
        window.note_express(Duration::ZERO);
        assert_eq!(lane(&window, Class::Bulk, 0, all), Some(1));
        assert_eq!(lane(&window, Class::Bulk, 2, all), Some(2));
        let busy = [(true, true, 0), (true, true, 9), (true, true, 9)];
        assert_eq!(lane(&window, Class::Express, 1, busy), Some(0));
        // The first one cannot be used: the next one is left to small requests.
        let first_lost = [(false, false, 0), (true, true, 0), (true, true, 0)];
        assert_eq!(lane(&window, Class::Bulk, 0, first_lost), Some(2));
        // The others are full: they wait. The others cannot be used: they do not.
        let full = [(true, true, 0), (false, true, 9), (false, true, 9)];
        assert_eq!(lane(&window, Class::Bulk, 0, full), None);
        let others_lost = [(true, true, 0), (false, false, 0), (false, false, 0)];
        assert_eq!(lane(&window, Class::Bulk, 1, others_lost), Some(0));
    }

    #[test]
    fn small_requests_fill_one_session_before_the_next() {
        let mut window = BulkWindow::default();
        window.note_express(Duration::ZERO);
        let mut running = [0; 3];
        for _ in 0..3 * TOGETHER + 1 {
            let view = |at: usize| LaneView {
                has_room: true,
                is_usable: true,
                bulk: 0,
                running: running[at],
            };
            let lane = window.lane(Class::Express, 1, 3, view).unwrap();
            running[lane] += 1;
        }
        assert_eq!(running, [TOGETHER + 1, TOGETHER, TOGETHER]);
    }

    #[test]
    fn the_bound_ends_though_nothing_large_ends() {
        let mut window = BulkWindow::default();
        let now = Duration::ZERO;
        window.note_express(now);
        window.look(now + MEMORY);
        assert!(window.is_bounded());
        window.look(now + MEMORY + Duration::from_millis(1));
        assert!(!window.is_bounded());
    }

    #[test]
    fn small_requests_go_first_but_not_for_ever() {
        assert_eq!(Class::order(0)[0], Class::Express);
        assert_eq!(Class::order(EXPRESS_RUN)[0], Class::Bulk);
    }

    #[test]
    fn a_command_larger_than_the_window_goes_through() {
        let mut window = BulkWindow::default();
        window.note_express(Duration::ZERO);
        assert!(window.has_room(0));
        window.begin(8 << 20);
        assert!(window.has_room(8 << 20), "the next one is sent while this one comes");
        assert!(!window.has_room(16 << 20));
    }
}
