//! Scrub and rebuild: commands, and the rate. The machine reads and repairs; this says when it may go
//! on.

use std::time::Duration;

use netraid_raid::logged::{ScrubCommand, ScrubMember, ScrubOptions, ScrubStatus as Found};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::{ArrayError, driver::Driver};
use crate::control::{ScrubAction, ScrubMemberStatus, ScrubStatus};

/// How often stripes are allowed.
const TICK: Duration = Duration::from_millis(20);
/// Bytes a second, unless told otherwise.
const RATE: u64 = 100 << 20;
/// What was not used for so long is forgotten.
const BURST: Duration = Duration::from_millis(200);
/// Stripes at a time when no rate holds it back.
const AT_ONCE: u32 = 4;
/// Parts of a second that time is counted in.
const SECOND: u128 = 1_000_000_000;
/// Bytes of a block.
const BLOCK: u64 = 4096;

/// How fast a scrub or a rebuild goes: a bucket that fills with time, of bytes to read.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second; 0: no limit.
    rate: u64,
    /// What may be read now: bytes times [`SECOND`].
    credit: u128,
    filled: Instant,
    tick: Option<Interval>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rate: RATE, credit: 0, filled: Instant::now(), tick: None }
    }
}

impl Pace {
    pub(super) const fn is_running(&self) -> bool {
        self.tick.is_some()
    }

    /// Waits for the next time to allow something; cancel safe.
    pub(super) async fn tick(&mut self) {
        match &mut self.tick {
            Some(tick) => {
                tick.tick().await;
            }
            None => std::future::pending().await,
        }
    }

    fn begin(&mut self, now: Instant) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.tick = Some(tick);
        (self.credit, self.filled) = (0, now);
    }

    pub(super) fn end(&mut self) {
        self.tick = None;
    }

    /// How many stripes of so many bytes may be read beside those that were allowed and are not
    /// read yet.
    fn stripes(&mut self, now: Instant, stripe_len: u64, left: u64) -> u32 {
        if self.rate == 0 {
            return u32::MAX;
        }
        let (rate, stripe) = (u128::from(self.rate), u128::from(stripe_len) * SECOND);
        let passed = now.duration_since(self.filled).as_nanos();
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

impl Driver {
    /// Carries out a command.
    pub(super) fn command_scrub(
        &mut self,
        action: ScrubAction,
        rate: Option<u64>,
        from: u32,
        trust_parity: bool,
    ) -> Result<(), ArrayError> {
        let Some(machine) = self.machine.scrubbed() else {
            return Err(ArrayError::Scrub(
                "only an array with a log that is open for writing can be scrubbed",
            ));
        };
        let limit = rate.unwrap_or(self.pace.rate);
        let stripes_at_once = if limit == 0 { AT_ONCE } else { 1 };
        let command = match action {
            ScrubAction::Start => {
                ScrubCommand::Start(ScrubOptions { from, stripes_at_once, trust_parity })
            }
            ScrubAction::Pause => ScrubCommand::Pause,
            ScrubAction::Resume => ScrubCommand::Resume,
            ScrubAction::Stop => ScrubCommand::Stop,
        };
        machine.handle_scrub(command).map_err(|refusal| ArrayError::Scrub(refusal.text()))?;
        self.pace.rate = limit;
        if action == ScrubAction::Start {
            self.pace.begin(Instant::now());
        }
        Ok(())
    }

    /// Members that lack something catch up at so many bytes a second of the volume's stripes; as
    /// fast as they can when none.
    pub(super) fn limit_rebuild(&mut self, rate: Option<u64>) {
        let Some(machine) = self.machine.scrubbed() else { return };
        machine.handle_catch_up_allowance(rate.map(|_| 0));
        match rate {
            Some(rate) => {
                self.rebuild_pace.rate = rate.max(1);
                self.rebuild_pace.begin(Instant::now());
            }
            None => self.rebuild_pace.end(),
        }
    }

    /// Lets members catch up as far as their rate allows.
    pub(super) fn allow_rebuild(&mut self) {
        let Some(machine) = self.machine.scrubbed() else { return };
        let left = machine.catch_up_allowance().unwrap_or(0);
        let stripe_len = machine.scrub_stripe_len();
        let stripes = self.rebuild_pace.stripes(Instant::now(), stripe_len, left.into());
        machine.handle_catch_up_allowance(Some(stripes));
    }

    /// Lets a scrub go as far as its rate allows.
    pub(super) fn allow_scrub(&mut self) {
        let Some(machine) = self.machine.scrubbed() else { return };
        let Some(status) = machine.scrub_status().filter(|status| status.running) else {
            return self.pace.end();
        };
        if status.paused {
            return;
        }
        let stripe_len = machine.scrub_stripe_len();
        let stripes = self.pace.stripes(Instant::now(), stripe_len, status.allowance);
        if stripes > 0 && status.allowance < u64::from(u32::MAX) {
            machine.handle_scrub_allowance(stripes);
        }
    }
}

/// A machine's status in the words of the control socket.
pub(super) fn shown(found: &Found, stripe_len: u64) -> ScrubStatus {
    let state = match (found.running, found.paused) {
        (true, true) => "paused",
        (true, false) => "running",
        (false, _) if found.is_complete() => "complete",
        (false, _) => "stopped",
    };
    let member = |(index, one): (u8, &ScrubMember)| ScrubMemberStatus {
        index,
        wrong_data: one.wrong_data,
        wrong_checks: one.wrong_checks,
        unreadable: one.unreadable,
        wrong_pages: one.wrong_pages,
        repaired: one.repaired,
        unrepaired: one.unrepaired,
        absent: one.absent,
    };
    ScrubStatus {
        state: state.into(),
        next: found.next,
        done_bytes: u64::from(found.next) * stripe_len,
        total_bytes: u64::from(found.total) * stripe_len,
        checked_bytes: found.checked_blocks * BLOCK,
        wrong: found.wrong(),
        repaired: found.repaired(),
        unrepaired: found.unrepaired(),
        new_sums: found.new_sums,
        members: (0..).zip(&found.members).map(member).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_allowed_than_the_rate_and_what_was_not_used_is_forgotten() {
        let start = Instant::now();
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
}
