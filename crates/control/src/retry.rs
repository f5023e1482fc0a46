//! Whether a request that has no answer is sent again, when, and what a refusal then means: while a daemon restarts, whoever
//! asks waits for it and does nothing twice.
//!
//! Times are milliseconds of one clock of the caller's, which begins anywhere.

use sha2::{Digest as _, Sha256};

use crate::units::{RequestId, VolumeId};

/// From the first failure to the next attempt; doubled from each to the next.
const WAIT_MIN_MS: u64 = 100;
/// From one attempt to the next, at most.
const WAIT_MAX_MS: u64 = 2000;
/// Parts of a wait that lots are drawn for: many who wait for one daemon do not all come at one moment.
const LOTS: u64 = 4;

/// The id of what a request makes, in the `attempt` after so many whose making failed. Nobody chooses it: who has another
/// bearer token (`owner`) gets other ids by the same id of a request.
#[must_use]
pub fn made_by(request: RequestId, owner: u64, attempt: u32) -> VolumeId {
    let mut hash = Sha256::new();
    hash.update(b"netraid request\0");
    hash.update(owner.to_le_bytes());
    hash.update(request.0);
    hash.update(attempt.to_le_bytes());
    let mut id = [0; 16];
    id.iter_mut().zip(hash.finalize()).for_each(|(byte, hashed)| *byte = hashed);
    VolumeId(id)
}

/// Whether a request may be sent again that may have been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The second one changes nothing that the first one did not, or who asks sees by the refusal that it was done.
    Safe,
    /// It would be done twice: it is sent again only while it certainly never arrived.
    Unsent,
}

/// How a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// There was no connection: it certainly did not arrive.
    Unreached,
    /// The connection ended before there was an answer: nobody knows whether it was carried out.
    Broken,
    /// No other attempt mends it: it was refused, cannot be sent, or was waited for long enough.
    Final,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The request is sent again after so many milliseconds.
    Again {
        /// How long to wait.
        after_ms: u64,
    },
    /// The failure is the answer.
    Over,
}

/// One request until it has an answer, or its time is over.
#[derive(Debug)]
pub struct Retry {
    bound_ms: u64,
    repeat: Repeat,
    failed_at: Option<u64>,
    attempts: u32,
    may_be_done: bool,
}

impl Retry {
    /// A request that is sent again for so long after it has failed first; never where that is 0.
    #[must_use]
    pub const fn new(bound_ms: u64, repeat: Repeat) -> Self {
        Self { bound_ms, repeat, failed_at: None, attempts: 0, may_be_done: false }
    }

    /// Whether an attempt before the last one may have been carried out: then a refusal of the last one may say no more
    /// than that.
    #[must_use]
    pub const fn may_be_done(&self) -> bool {
        self.may_be_done
    }

    /// An attempt failed at this moment. `lot` is drawn anew each time.
    pub fn handle_failed(&mut self, now_ms: u64, failure: Failure, lot: u32) -> Next {
        match (failure, self.repeat) {
            (Failure::Final, _) => return Next::Over,
            (Failure::Broken, Repeat::Unsent) => {
                self.may_be_done = true;
                return Next::Over;
            }
            (Failure::Broken, Repeat::Safe) => self.may_be_done = true,
            (Failure::Unreached, _) => {}
        }
        let failed_at = *self.failed_at.get_or_insert(now_ms);
        let left_ms = self.bound_ms.saturating_sub(now_ms.saturating_sub(failed_at));
        if left_ms == 0 {
            return Next::Over;
        }
        let longest_ms = WAIT_MIN_MS.saturating_mul(1 << self.attempts.min(16)).min(WAIT_MAX_MS);
        self.attempts = self.attempts.saturating_add(1);
        let shorter_ms = longest_ms / 2 * (u64::from(lot) % LOTS) / LOTS;
        // The last attempt is made when the time is over, and not before.
        Next::Again { after_ms: (longest_ms - shorter_ms).min(left_ms) }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_request_makes_the_same_each_time_and_each_owner_and_attempt_something_else() {
        let request = RequestId([7; 16]);
        let id = made_by(request, 1, 0);
        assert_eq!(made_by(request, 1, 0), id);
        let others =
            [made_by(request, 2, 0), made_by(request, 1, 1), made_by(RequestId([8; 16]), 1, 0)];
        assert!(!others.contains(&id));
    }

    /// Moments of all attempts of a request that fails in this way each time.
    fn attempts(bound_ms: u64, repeat: Repeat, failure: Failure, lot: u32) -> Vec<u64> {
        let mut retry = Retry::new(bound_ms, repeat);
        let (mut now_ms, mut moments) = (5_000, Vec::new());
        loop {
            moments.push(now_ms - 5_000);
            match retry.handle_failed(now_ms, failure, lot) {
                Next::Again { after_ms } => now_ms += after_ms,
                Next::Over => return moments,
            }
        }
    }

    #[test]
    fn who_is_not_reached_is_asked_again_until_the_time_is_over() {
        for repeat in [Repeat::Safe, Repeat::Unsent] {
            let moments = attempts(30_000, repeat, Failure::Unreached, 0);
            assert_eq!(moments[..6], [0, 100, 300, 700, 1500, 3100]);
            assert_eq!(moments.last(), Some(&30_000), "one at the very end, and none after it");
            assert!(moments.windows(2).all(|two| two[0] < two[1] && two[1] - two[0] <= 2000));
            assert!(moments.len() < 25, "{moments:?}");
        }
        assert_eq!(attempts(0, Repeat::Safe, Failure::Unreached, 0), [0], "0: at once");
    }

    #[test]
    fn lots_make_a_wait_shorter_by_no_more_than_half() {
        let first = |lot| match Retry::new(30_000, Repeat::Safe).handle_failed(
            0,
            Failure::Unreached,
            lot,
        ) {
            Next::Again { after_ms } => after_ms,
            Next::Over => 0,
        };
        let waits: Vec<u64> = (0..8).map(first).collect();
        assert_eq!(waits, [100, 88, 75, 63, 100, 88, 75, 63]);
    }

    #[test]
    fn what_may_have_been_done_is_sent_again_only_where_that_changes_nothing() {
        let mut safe = Retry::new(30_000, Repeat::Safe);
        assert!(!safe.may_be_done());
        assert_eq!(safe.handle_failed(0, Failure::Broken, 0), Next::Again { after_ms: 100 });
        assert!(safe.may_be_done());
        // It stays so, however the next one fails.
        assert_eq!(safe.handle_failed(100, Failure::Unreached, 0), Next::Again { after_ms: 200 });
        assert!(safe.may_be_done());

        let mut unsent = Retry::new(30_000, Repeat::Unsent);
        assert_eq!(unsent.handle_failed(0, Failure::Unreached, 0), Next::Again { after_ms: 100 });
        assert!(!unsent.may_be_done());
        assert_eq!(unsent.handle_failed(100, Failure::Broken, 0), Next::Over);
        assert!(unsent.may_be_done(), "who asked is told");
    }

    #[test]
    fn a_refusal_is_never_asked_again() {
        for repeat in [Repeat::Safe, Repeat::Unsent] {
            assert_eq!(attempts(30_000, repeat, Failure::Final, 0), [0]);
        }
    }

    #[test]
    fn the_time_counts_from_the_first_failure_and_not_from_the_last() {
        let mut retry = Retry::new(1000, Repeat::Safe);
        assert_eq!(retry.handle_failed(0, Failure::Unreached, 0), Next::Again { after_ms: 100 });
        assert_eq!(retry.handle_failed(950, Failure::Broken, 0), Next::Again { after_ms: 50 });
        assert_eq!(retry.handle_failed(1000, Failure::Broken, 0), Next::Over);
        // A clock that goes back is no reason to wait for ever.
        let mut retry = Retry::new(1000, Repeat::Safe);
        assert_eq!(retry.handle_failed(500, Failure::Unreached, 0), Next::Again { after_ms: 100 });
        assert_eq!(retry.handle_failed(0, Failure::Unreached, 0), Next::Again { after_ms: 200 });
        assert_eq!(retry.handle_failed(1500, Failure::Unreached, 0), Next::Over);
    }
}
