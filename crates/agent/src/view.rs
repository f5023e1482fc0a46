//! What logins and callers are held against: a copy of what the keeper and the memberships decide, for
//! threads that must not wait for them.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use netraid_cluster::access::TokenDigest;
use netraid_control::{
    clocks::Difference,
    keys::{Key, KeyError, KeyId, Keyring, Ring},
    ledger::{Allotment, State},
    token::{SKEW_MS, SegmentInfo, Token},
    units::{MediatorId, Moment, Rate, SegmentId},
};

use crate::records::{self, PlanKey};

/// Sessions of a key that was taken back are long over after this, in milliseconds.
const WITHDRAWN_MS: u64 = 10 * 60 * 1000;

/// Shared by all that ask; held for a look only.
#[derive(Debug, Default)]
pub(crate) struct View(RwLock<Known>);

#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Segments that may be served.
    pub(crate) segments: HashMap<records::Key, SegmentInfo>,
    /// Rates that are booked, by plan.
    pub(crate) booked: HashMap<PlanKey, BookedRate>,
    /// Plans that their mediator took back, until their tokens have ended.
    pub(crate) revoked: HashMap<PlanKey, Moment>,
    pub(crate) keys: Keyring,
    /// Keys that their mediator took back before they ended, and when.
    withdrawn: HashMap<(MediatorId, KeyId), Moment>,
    /// Who says which bearer token.
    pub(crate) callers: HashMap<TokenDigest, Caller>,
    /// How far this agent's clock is from each mediator's, as that said last.
    pub(crate) clocks: HashMap<MediatorId, Difference>,
}

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A mediator: for its own.
    Mediator(MediatorId),
    /// Who may read the agent's directory.
    Owner,
}

/// A committed allotment of rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BookedRate {
    pub(crate) segment: SegmentId,
    pub(crate) rate: Rate,
    pub(crate) until: Moment,
}

impl View {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Takes a mediator's keys in the place of those that it had.
    ///
    /// # Errors
    /// When there are too many mediators.
    pub(crate) fn set_keys(
        &mut self,
        mediator: MediatorId,
        ring: Ring<Key>,
        now: Moment,
    ) -> Result<(), KeyError> {
        let before = self.ring(mediator).map_or(&[][..], Ring::held);
        let is_withdrawn = |id| ring.held().iter().all(|held| held.id != id);
        // One that is about to end is gone because a mediator whose clock is ahead let it end.
        let soon = now.after_ms(SKEW_MS);
        let withdrawn = before.iter().filter(|held| held.until > soon && is_withdrawn(held.id));
        let withdrawn: Vec<_> = withdrawn.map(|held| ((mediator, held.id), now)).collect();
        // A mediator that goes on from an older store may use a number again, of another key.
        self.withdrawn.retain(|(whose, id), at| {
            let is_back = *whose == mediator && ring.held().iter().any(|held| held.id == *id);
            !is_back && now.since_ms(*at) < WITHDRAWN_MS
        });
        self.withdrawn.extend(withdrawn);
        self.keys.set(mediator, ring)
    }

    /// Whether a session that a token let in may go on: its mediator has keys here, and has taken back
    /// neither the one that signed it nor its plan. A key that ended by itself is no reason: sessions are prolonged.
    pub(crate) fn stands(&self, token: &Token) -> bool {
        self.ring(token.mediator).is_some()
            && !self.withdrawn.contains_key(&(token.mediator, token.key))
            && !self.revoked.contains_key(&(token.mediator, token.plan))
    }

    /// How far this agent's clock is from a mediator's, where that is known.
    pub(crate) fn off(&self, mediator: MediatorId) -> Option<Difference> {
        self.clocks.get(&mediator).copied()
    }

    pub(crate) fn ring(&self, mediator: MediatorId) -> Option<&Ring<Key>> {
        self.keys.rings().find(|(whose, _)| *whose == mediator).map(|(_, ring)| ring)
    }
}

impl BookedRate {
    /// What an allotment lets a plan have; none when it is only held, or of space.
    pub(crate) const fn of(entry: &Allotment) -> Option<Self> {
        match entry.state {
            State::Committed { until: Some(until) } => {
                Some(Self { segment: entry.segment, rate: entry.resources.device, until })
            }
            State::Committed { until: None } | State::Held { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use netraid_control::{
        keys::{Held, RootKey},
        units::AgentId,
    };

    use super::*;

    const MEDIATOR: MediatorId = MediatorId([1; 16]);

    /// Keys by number, and when they end.
    fn ring(keys: &[(u32, u64)]) -> Ring<Key> {
        let mut roots = Ring::default();
        for (id, until_ms) in keys {
            let (id, until) = (KeyId(*id), Moment(*until_ms));
            roots.add(Held { id, from: Moment(0), until, key: RootKey::new(&[7; 32]) }).unwrap();
        }
        roots.of_agent(MEDIATOR, AgentId([2; 16]))
    }

    fn is_withdrawn(known: &Known, id: u32) -> bool {
        known.withdrawn.contains_key(&(MEDIATOR, KeyId(id)))
    }

    #[test]
    fn a_key_that_ended_by_the_clock_of_its_mediator_was_not_taken_back() {
        let mut known = Known::default();
        let end = 1_000_000;
        known.set_keys(MEDIATOR, ring(&[(1, end), (2, end * 9)]), Moment(0)).unwrap();
        // The agent's clock is behind.
        let now = Moment(end - SKEW_MS);
        known.set_keys(MEDIATOR, ring(&[(2, end * 9)]), now).unwrap();
        assert!(!is_withdrawn(&known, 1));
        known.set_keys(MEDIATOR, ring(&[(3, end * 9)]), now).unwrap();
        assert!(is_withdrawn(&known, 2));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_key() {
        let mut known = Known::default();
        let end = 1 << 40;
        known.set_keys(MEDIATOR, ring(&[(1, end), (2, end)]), Moment(0)).unwrap();
        known.set_keys(MEDIATOR, ring(&[(1, end)]), Moment(1)).unwrap();
        assert!(is_withdrawn(&known, 2));
        known.set_keys(MEDIATOR, ring(&[(1, end), (2, end)]), Moment(2)).unwrap();
        assert!(!is_withdrawn(&known, 2) && !is_withdrawn(&known, 1));
    }
}
