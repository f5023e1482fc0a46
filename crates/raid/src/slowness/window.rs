//! What the longest of a member's last requests took.

use core::time::Duration;

/// How long a request is remembered at least; twice as long at most.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The longest of the last requests.
#[derive(Debug, Default)]
pub(super) struct Longest {
    /// Since `began`, and in the window before.
    now: Duration,
    before: Duration,
    began: Duration,
}

impl Longest {
    /// A request has ended that took so long.
    pub(super) fn note(&mut self, now: Duration, took: Duration) {
        if now >= self.began + REMEMBERED {
            self.before = if now < self.began + REMEMBERED * 2 { self.now } else { Duration::ZERO };
            (self.now, self.began) = (Duration::ZERO, now);
        }
        self.now = self.now.max(took);
    }

    /// What the longest took; nothing where none has ended lately.
    pub(super) fn lately(&self, now: Duration) -> Duration {
        if now < self.began + REMEMBERED {
            self.now.max(self.before)
        } else if now < self.began + REMEMBERED * 2 {
            self.now
        } else {
            Duration::ZERO
        }
    }
}
