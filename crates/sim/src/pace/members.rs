//! How long members take, and what befalls them.

use core::time::Duration;

use crate::dice::Dice;

/// What befalls one member, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    /// Answers as usual.
    Usual,
    /// Takes so many times as long.
    Slow(u32),
    /// Answers nothing before this ends.
    Hung,
    /// Some of its answers take so many times as long.
    Uneven(u32),
}

/// A member, as the model has it.
#[derive(Debug)]
pub(super) struct Member {
    /// What it takes for a request, on average.
    usual: Duration,
    pub(super) mood: Mood,
    /// Since when it has this mood, of the engine's own time.
    pub(super) since: Duration,
    /// Something befell it alone at some time.
    pub(super) befell: bool,
    /// It takes part.
    pub(super) is_whole: bool,
    /// It is asked for a sign of life.
    pub(super) is_asked: bool,
    /// Requests that wait until it no longer hangs.
    pub(super) held: Vec<u64>,
}

impl Member {
    pub(super) fn new(dice: &mut Dice) -> Self {
        Self {
            usual: Duration::from_micros(600 + dice.below(300)),
            mood: Mood::Usual,
            since: Duration::ZERO,
            befell: false,
            is_whole: true,
            is_asked: false,
            held: Vec::new(),
        }
    }

    /// How long it takes for a request that comes now, when all are so many times as slow; none: until it no longer hangs.
    pub(super) fn takes(&self, dice: &mut Dice, all: u32) -> Option<Duration> {
        let percent = 80 + u32::try_from(dice.below(40)).unwrap_or(0);
        let once = self.usual * percent / 100 * all;
        match self.mood {
            Mood::Usual => Some(once),
            Mood::Slow(times) => Some(once * times),
            Mood::Uneven(times) => Some(if dice.one_in(12) { once * times } else { once }),
            Mood::Hung => None,
        }
    }

    /// Whether it has kept every read waiting for longer than any that is in time, for so long.
    pub(super) fn keeps_waiting(&self, own: Duration, long: Duration) -> bool {
        let is_late = match self.mood {
            Mood::Hung => true,
            Mood::Slow(times) => self.usual * times / 2 > Duration::from_millis(600),
            Mood::Usual | Mood::Uneven(_) => false,
        };
        is_late && own.saturating_sub(self.since) > long
    }

    /// Whether its answers may be late now.
    pub(super) fn is_odd(&self) -> bool {
        self.mood != Mood::Usual
    }
}
