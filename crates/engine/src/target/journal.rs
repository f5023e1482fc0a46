//! What is said in the log of peers, who may be many and fast: a bounded number of lines at a time.

use std::time::Duration;

use super::cells::Guarded;

/// Lines within one window.
const LINES_MAX: u32 = 20;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts the lines of all connections of a target.
#[derive(Debug, Default)]
pub(super) struct Journal(Guarded<Window>);

#[derive(Debug, Default)]
struct Window {
    from: Duration,
    told: u32,
    left_out: u64,
}

impl Journal {
    /// Whether one more line may be logged at `now`, the time since the target began; else it is
    /// counted as left out, which is told with the next window's first line.
    pub(super) fn may_tell(&self, now: Duration) -> bool {
        let mut window = self.0.lock();
        if now.saturating_sub(window.from) >= WINDOW {
            if window.left_out > 0 {
                tracing::warn!("{} more lines about peers were left out", window.left_out);
            }
            *window = Window { from: now, ..Window::default() };
        }
        let may = window.told < LINES_MAX;
        if may {
            window.told += 1;
        } else {
            window.left_out += 1;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_window() {
        let journal = Journal::default();
        let at = Duration::from_secs;
        let told = (0..100).filter(|_| journal.may_tell(at(3))).count();
        assert_eq!(told, LINES_MAX as usize);
        assert!(!journal.may_tell(WINDOW - Duration::from_nanos(1)));
        assert_eq!(journal.0.lock().left_out, 81);
        assert!(journal.may_tell(WINDOW));
        assert_eq!(journal.0.lock().left_out, 0, "told");
    }
}
