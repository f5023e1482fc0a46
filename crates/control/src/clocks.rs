//! How far the clock of an agent is from its mediator's, by what it says with its heartbeats, and what comes of that.
//!
//! A heartbeat takes time: what it says is older when it is read, and its sender's clock seems to be behind. So of the
//! last heartbeats the one counts by which the clock is most ahead: that one took the least.

use alloc::{format, string::String};
use core::fmt;

use crate::{token::SKEW_MS, units::Moment};

/// From how many milliseconds on a difference is told.
pub const TOLD_MS: u64 = 2000;
/// Heartbeats that are looked at together.
const BEATS: usize = 3;

/// How far a clock is from the mediator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Milliseconds by which it is ahead; less than zero where it is behind.
    pub ahead_ms: i64,
}

impl Difference {
    /// Of a clock that showed `theirs` when the mediator's showed `ours`, or a little before.
    #[must_use]
    pub fn between(theirs: Moment, ours: Moment) -> Self {
        // Clamped: nobody is off by more.
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let ahead_ms = match theirs >= ours {
            true => ms(theirs.since_ms(ours)),
            false => -ms(ours.since_ms(theirs)),
        };
        Self { ahead_ms }
    }

    /// Whether people are told.
    #[must_use]
    pub const fn is_told(self) -> bool {
        self.ahead_ms.unsigned_abs() > TOLD_MS
    }

    /// Whether an agent with such a clock refuses logins that it should take: it takes a token for one that does not
    /// hold yet, or for one that has ended while its client counts on it.
    #[must_use]
    pub const fn refuses_logins(self) -> bool {
        self.ahead_ms.unsigned_abs() > SKEW_MS
    }
}

/// What is said of a clock, and what helps.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.ahead_ms < 0 { "behind" } else { "ahead of" };
        let by = seconds(self.ahead_ms.unsigned_abs());
        write!(f, "its clock is {by} s {way} the mediator's")?;
        match self.refuses_logins() {
            true => write!(
                f,
                ", {} s at most may be: logins with good tokens are refused there",
                SKEW_MS / 1000
            )?,
            false => write!(f, "; from {} s on logins are refused", SKEW_MS / 1000)?,
        }
        f.write_str(
            "; set the clocks of both hosts (`timedatectl set-ntp true`, or `chronyc makestep`)",
        )
    }
}

/// Seconds with one digit behind the point where that says anything, and thousands apart.
pub(crate) fn seconds(ms: u64) -> String {
    if ms < 100_000 {
        return format!("{}.{}", ms / 1000, ms / 100 % 10);
    }
    let digits = format!("{}", ms.saturating_add(500) / 1000);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The clock of one agent, by its last heartbeats.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    /// The newest last.
    seen: [Option<i64>; BEATS],
    is_told: bool,
}

/// What is new of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// It is off by so much: people are to be told.
    Off(Difference),
    /// It was, and is right again.
    Right,
}

impl Clock {
    /// A heartbeat said this; none of an agent that does not say what its clock shows.
    pub fn handle_beat(&mut self, said: Option<Difference>) -> Option<News> {
        let Some(said) = said else {
            *self = Self::default();
            return None;
        };
        self.seen.rotate_left(1);
        self.seen[BEATS - 1] = Some(said.ahead_ms);
        let difference = self.difference()?;
        // One that seems to be behind may only be late, as long as there is nothing to compare it with.
        let is_known = difference.ahead_ms >= 0 || self.seen.iter().all(Option::is_some);
        match (difference.is_told() && is_known, self.is_told) {
            (true, false) => {
                self.is_told = true;
                Some(News::Off(difference))
            }
            (false, true) => {
                self.is_told = false;
                Some(News::Right)
            }
            (true, true) | (false, false) => None,
        }
    }

    /// How far it is off, as well as that is known; none while it did not say anything.
    #[must_use]
    pub fn difference(&self) -> Option<Difference> {
        self.seen.iter().flatten().max().map(|ahead_ms| Difference { ahead_ms: *ahead_ms })
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    fn ahead(ahead_ms: i64) -> Option<Difference> {
        Some(Difference { ahead_ms })
    }

    #[test]
    fn a_heartbeat_that_was_late_is_no_clock_that_is_behind() {
        let mut clock = Clock::default();
        for late in [-5, -4000, -30_000, -7, -9000, -9000, -20] {
            assert_eq!(clock.handle_beat(ahead(late)), None, "{late}");
        }
        // The first one of all may be late as well.
        let mut clock = Clock::default();
        assert_eq!(clock.handle_beat(ahead(-9000)), None);
        assert_eq!(clock.handle_beat(ahead(-9000)), None);
        assert_eq!(clock.handle_beat(ahead(-3)), None);
    }

    #[test]
    fn a_clock_that_is_off_is_told_once_and_that_it_is_right_again_too() {
        let mut clock = Clock::default();
        assert_eq!(
            clock.handle_beat(ahead(3_600_000)),
            Some(News::Off(Difference { ahead_ms: 3_600_000 }))
        );
        assert_eq!(clock.handle_beat(ahead(3_599_000)), None);
        assert_eq!(clock.difference(), ahead(3_600_000));
        let set: std::vec::Vec<_> = (0..3).map(|_| clock.handle_beat(ahead(-2))).collect();
        assert_eq!(set, [None, None, Some(News::Right)]);

        let mut clock = Clock::default();
        let behind: std::vec::Vec<_> = (0..4).map(|_| clock.handle_beat(ahead(-12_000))).collect();
        assert_eq!(behind, [None, None, Some(News::Off(Difference { ahead_ms: -12_000 })), None]);
        // An older program took its place, which says nothing of its clock.
        assert_eq!(clock.handle_beat(None), None);
        assert_eq!(clock.difference(), None);
    }

    #[test]
    fn what_is_said_has_the_value_the_limit_and_the_remedy() {
        let told = |ahead_ms| Difference { ahead_ms }.to_string();
        let far = told(3_600_000);
        assert!(
            far.starts_with("its clock is 3,600 s ahead of the mediator's, 10 s at most"),
            "{far}"
        );
        assert!(far.contains("refused") && far.contains("chronyc makestep"), "{far}");
        let near = told(-2500);
        assert!(
            near.starts_with("its clock is 2.5 s behind the mediator's; from 10 s on"),
            "{near}"
        );
        for (ahead_ms, is_told, refuses) in [
            (2000, false, false),
            (-2001, true, false),
            (10_000, true, false),
            (-10_001, true, true),
        ] {
            let difference = Difference { ahead_ms };
            assert_eq!((difference.is_told(), difference.refuses_logins()), (is_told, refuses));
        }
        let between = |theirs, ours| Difference::between(Moment(theirs), Moment(ours)).ahead_ms;
        assert_eq!((between(7, 5), between(5, 7), between(u64::MAX, 0)), (2, -2, i64::MAX));
    }
}
