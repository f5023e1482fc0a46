//! Plans that are taken back: their tokens open nothing until they have ended by any clock. No input or
//! output, no clock.
//!
//! A store that does not take one does not take it from here: it only keeps more out, and whoever asked
//! asks again.

use std::collections::{BTreeMap, BTreeSet};

use netraid_cluster::agent::{Fault, FaultCode};
use netraid_control::{
    token::SKEW_MS,
    units::{MediatorId, Moment},
};

use crate::{book::fault, records::PlanKey};

/// Plans of one mediator that are taken back and whose tokens have not ended, at most.
pub(crate) const REVOKED_MAX: usize = 1 << 16;
/// Later than anything.
const NEVER: Moment = Moment(u64::MAX);

#[derive(Debug)]
pub(crate) struct RevokedPlans {
    /// Until when tokens of each hold.
    plans: BTreeMap<PlanKey, Moment>,
    /// How many of those each mediator has.
    counts: BTreeMap<MediatorId, usize>,
    /// No later than the first of those ends.
    first_end: Moment,
    /// Those of which the store is to be told.
    changed: BTreeSet<PlanKey>,
}

impl RevokedPlans {
    /// Those of which a store knows.
    pub(crate) fn new(stored: Vec<(PlanKey, Moment)>) -> Self {
        let mut counts = BTreeMap::new();
        for ((mediator, _), _) in &stored {
            *counts.entry(*mediator).or_default() += 1;
        }
        Self {
            plans: stored.into_iter().collect(),
            counts,
            first_end: Moment(0),
            changed: BTreeSet::new(),
        }
    }

    /// Takes a plan back whose tokens have ended by `until`; until when it stands. Asked again, it is
    /// stored again: a store may have refused it before.
    ///
    /// # Errors
    /// Its mediator has too many.
    pub(crate) fn insert(&mut self, key: PlanKey, until: Moment) -> Result<Moment, Fault> {
        let is_new = !self.plans.contains_key(&key);
        let count = self.counts.entry(key.0).or_default();
        if is_new && *count >= REVOKED_MAX {
            let detail =
                format!("{REVOKED_MAX} plans are taken back already; ask again when some end");
            return Err(fault(FaultCode::Busy, detail));
        }
        *count += usize::from(is_new);
        let stands = self.plans.entry(key).or_insert(until);
        *stands = until.max(*stands);
        self.first_end = self.first_end.min(*stands);
        self.changed.insert(key);
        Ok(*stands)
    }

    /// Forgets plans whose tokens have ended by any clock, and answers them.
    pub(crate) fn forget_ended(&mut self, now: Moment) -> Vec<PlanKey> {
        let has_ended = |until: &Moment| until.after_ms(SKEW_MS) <= now;
        if !has_ended(&self.first_end) {
            return Vec::new();
        }
        let ended = self.plans.iter().filter(|(_, until)| has_ended(until));
        let ended: Vec<PlanKey> = ended.map(|(key, _)| *key).collect();
        for key in &ended {
            self.plans.remove(key);
            self.changed.insert(*key);

            let Some(count) = self.counts.get_mut(&key.0).filter(|count| **count > 0) else {
                unreachable!("a plan of mediator {} was not counted", key.0)
            };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
        self.first_end = self.plans.values().min().copied().unwrap_or(NEVER);
        ended
    }

    /// All of them, with when their tokens end.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PlanKey, Moment)> {
        self.plans.iter().map(|(key, until)| (*key, *until))
    }

    /// Whether the store is to be told of any.
    pub(crate) fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What the store is to be told: until when each stands, or that it does not any more.
    pub(crate) fn take_changed(&mut self) -> Vec<(PlanKey, Option<Moment>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|key| (key, self.plans.get(&key).copied())).collect()
    }
}
