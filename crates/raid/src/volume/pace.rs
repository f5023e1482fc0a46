//! Scrub and rebuild: commands, and the rate. The machine reads and repairs; this says when it may go
//! on.

use core::time::Duration;

use super::{Machine, Volume};
use crate::logged::{ScrubCommand, ScrubOptions, ScrubRefusal};

/// How often stripes are allowed.
const EVERY: Duration = Duration::from_millis(20);
/// Bytes a second, unless told otherwise.
const RATE: u64 = 100 << 20;
/// What was not used for so long is forgotten.
const BURST: Duration = Duration::from_millis(200);
/// Stripes at a time when no rate holds it back.
const AT_ONCE: u32 = 4;
/// Parts of a second that time is counted in.
const SECOND: u128 = 1_000_000_000;

/// How fast a scrub or a rebuild goes: a bucket that fills with time, of bytes to read.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second; 0: no limit.
    rate: u64,
    /// What may be read now: bytes times [`SECOND`].
    credit: u128,
    filled: Duration,
    /// When something is allowed next, while it runs.
    next: Option<Duration>,
}

/// What a scrub is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubOrder {
    /// Begin.
    Start {
        /// The first physical stripe.
        from: u32,
        /// Take rows whose checksums are lost as they are, when parity confirms them.
        trust_parity: bool,
    },
    /// Wait.
    Pause,
    /// Go on.
    Resume,
    /// End.
    Stop,
}

/// Why a scrub does not do as it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScrubError {
    /// There is nothing to scrub by.
    #[error("only an array with a log that is open for writing can be scrubbed")]
    NotWritable,
    /// The machine refuses.
    #[error("{}", .0.text())]
    Refused(ScrubRefusal),
}

impl Default for Pace {
    fn default() -> Self {
        Self { rate: RATE, credit: 0, filled: Duration::ZERO, next: None }
    }
}

impl Pace {
    /// When something is to be allowed, while it runs.
    pub(super) const fn next(&self) -> Option<Duration> {
        self.next
    }

    /// Whether something is to be allowed now; the next time is set then.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.next.is_some_and(|next| next <= now);
        if is_due {
            self.next = Some(now + EVERY);
        }
        is_due
    }

    const fn begin(&mut self, now: Duration) {
        (self.credit, self.filled, self.next) = (0, now, Some(now));
    }

    pub(super) const fn end(&mut self) {
        self.next = None;
    }

    /// How many stripes of so many bytes may be read beside those that were allowed and are not
    /// read yet.
    fn stripes(&mut self, now: Duration, stripe_len: u64, left: u64) -> u32 {
        if self.rate == 0 {
            return u32::MAX;
        }
        let (rate, stripe) = (u128::from(self.rate), u128::from(stripe_len) * SECOND);
        let passed = now.saturating_sub(self.filled).as_nanos();
        self.filled = now;
        // One stripe is allowed at any rate, some time.
        let most = (rate * BURST.as_nanos()).max(stripe);
        let unused = u128::from(left) * stripe;
        self.credit = (self.credit + passed * rate).min(most.saturating_sub(unused));
        // Clamped: no array has more stripes than that.
        let stripes = u32::try_from(self.credit / stripe).unwrap_or(u32::MAX);
        self.credit -= u128::from(stripes) * stripe;
        stripes
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// Orders a scrub, which reads so many bytes a second from all members together; as many as before when no
    /// `rate` is given, and as many as it can when it is 0.
    ///
    /// # Errors
    /// When there is nothing to scrub by, or the machine refuses.
    pub fn handle_scrub(
        &mut self,
        now: Duration,
        order: ScrubOrder,
        rate: Option<u64>,
    ) -> Result<(), ScrubError> {
        let machine = self.machine.scrubbed().ok_or(ScrubError::NotWritable)?;
        let limit = rate.unwrap_or(self.scrub_pace.rate);
        let stripes_at_once = if limit == 0 { AT_ONCE } else { 1 };
        let command = match order {
            ScrubOrder::Start { from, trust_parity } => {
                ScrubCommand::Start(ScrubOptions { from, stripes_at_once, trust_parity })
            }
            ScrubOrder::Pause => ScrubCommand::Pause,
            ScrubOrder::Resume => ScrubCommand::Resume,
            ScrubOrder::Stop => ScrubCommand::Stop,
        };
        machine.handle_scrub(command).map_err(ScrubError::Refused)?;
        self.scrub_pace.rate = limit;
        if matches!(order, ScrubOrder::Start { .. }) {
            self.scrub_pace.begin(now);
        }
        Ok(())
    }

    /// Members that lack something catch up at so many bytes a second of the volume's stripes; as
    /// fast as they can when none. An array without a log knows no limit.
    pub fn handle_rebuild_limit(&mut self, now: Duration, rate: Option<u64>) {
        let Some(machine) = self.machine.scrubbed() else { return };
        machine.handle_catch_up_allowance(rate.map(|_| 0));
        match rate {
            Some(rate) => {
                self.rebuild_pace.rate = rate.max(1);
                // Who is told a limit again and again goes on with what its time has given.
                if self.rebuild_pace.next.is_none() {
                    self.rebuild_pace.begin(now);
                }
            }
            None => self.rebuild_pace.end(),
        }
    }

    /// Lets members catch up as far as their rate allows.
    pub(super) fn allow_rebuild(&mut self, now: Duration) {
        let Some(machine) = self.machine.scrubbed() else { return };
        let left = machine.catch_up_allowance().unwrap_or(0);
        let stripe_len = machine.scrub_stripe_len();
        let stripes = self.rebuild_pace.stripes(now, stripe_len, left.into());
        machine.handle_catch_up_allowance(Some(stripes));
    }

    /// Lets a scrub go as far as its rate allows.
    pub(super) fn allow_scrub(&mut self, now: Duration) {
        let Some(machine) = self.machine.scrubbed() else { return };
        let Some(status) = machine.scrub_status().filter(|status| status.running) else {
            return self.scrub_pace.end();
        };
        if status.paused {
            return;
        }
        let stripe_len = machine.scrub_stripe_len();
        let stripes = self.scrub_pace.stripes(now, stripe_len, status.allowance);
        if stripes > 0 && status.allowance < u64::from(u32::MAX) {
            machine.handle_scrub_allowance(stripes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_allowed_than_the_rate_and_what_was_not_used_is_forgotten() {
        let start = Duration::from_secs(7);
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut pace = Pace { rate: 1000, filled: start, ..Pace::default() };
        assert_eq!(pace.stripes(at(0), 100, 0), 0);
        let allowed: u32 = (1..=100).map(|tick| pace.stripes(at(tick * 20), 100, 0)).sum();
        assert!((19..=20).contains(&allowed), "{allowed} in two seconds");
        // A fifth of a second's is kept, however long nobody took anything.
        assert_eq!(pace.stripes(at(10_000), 100, 0), 2);
        // What was allowed and is not used counts.
        assert_eq!(pace.stripes(at(20_000), 100, 2), 0);
        assert_eq!(pace.stripes(at(30_000), 100, 1), 1);
        // A stripe longer than that is allowed in the time that it takes.
        let mut pace = Pace { rate: 1000, filled: start, ..Pace::default() };
        let ticks = (1..).find(|tick| pace.stripes(at(tick * 20), 5000, 0) == 1);
        assert!((250..=252).contains(&ticks.unwrap()), "{ticks:?}");
        assert_eq!(Pace { rate: 0, ..Pace::default() }.stripes(start, 1, 0), u32::MAX);
    }

    #[test]
    fn what_runs_is_due_at_once_and_then_after_each_interval() {
        let mut pace = Pace::default();
        assert!(pace.next().is_none() && !pace.is_due(Duration::MAX));
        let now = Duration::from_secs(3);
        pace.begin(now);
        assert!(pace.is_due(now) && !pace.is_due(now));
        assert_eq!(pace.next(), Some(now + EVERY));
        pace.end();
        assert!(!pace.is_due(now + EVERY));
    }
}
