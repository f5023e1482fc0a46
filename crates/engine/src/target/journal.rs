//! What is said in the log of peers, who may be many and fast: a bounded number of lines at a time.

use std::{cell::Cell, time::Duration};

/// Lines within one window.
const LINES_MAX: u32 = 20;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts the lines of all connections of a target.
#[derive(Debug, Default)]
pub(super) struct Journal {
    from: Cell<Duration>,
    told: Cell<u32>,
    left_out: Cell<u64>,
}

impl Journal {
    /// Whether one more line may be logged at `now`, the time since the target began; else it is
    /// counted as left out, which is told with the next window's first line.
    pub(super) fn may_tell(&self, now: Duration) -> bool {
        if now.saturating_sub(self.from.get()) >= WINDOW {
            self.from.set(now);
            self.told.set(0);
            let left_out = self.left_out.take();
            if left_out > 0 {
                tracing::warn!("{left_out} more lines about peers were left out");
            }
        }
        let may = self.told.get() < LINES_MAX;
        if may {
            self.told.set(self.told.get() + 1);
        } else {
            self.left_out.set(self.left_out.get() + 1);
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
        assert_eq!(journal.left_out.get(), 81);
        assert!(journal.may_tell(WINDOW));
        assert_eq!(journal.left_out.get(), 0, "told");
    }
}
