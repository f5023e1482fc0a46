//! What is booked, and how it is asked for.

use serde::{Deserialize, Serialize};

use crate::units::{AllotmentId, Generation, MediatorId, Moment, Resources, SegmentId};

/// What an agent has booked for a mediator: space, or rates, for one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allotment {
    /// Whose it is.
    pub mediator: MediatorId,
    /// Its name among that mediator's: another one's may be the same.
    pub id: AllotmentId,
    /// For which share of a volume.
    pub segment: SegmentId,
    /// The segment's generation that it is for, where that matters: a transfer plan's.
    pub generation: Option<Generation>,
    /// What it serves.
    pub purpose: Purpose,
    /// Space and no rates, or rates and no space.
    pub resources: Resources,
    /// Which hold began it: larger than those of all that the agent held before.
    pub serial: u64,
    /// How long it stands.
    pub state: State,
}

/// How long an allotment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Kept free until the mediator has asked all agents; gone at this moment if it does not
    /// commit before.
    Held {
        /// The first moment at which it is no longer there.
        until: Moment,
    },
    /// In use.
    Committed {
        /// The first moment at which it is no longer there unless it is renewed before; none for
        /// space, which stays until it is released.
        until: Option<Moment>,
    },
}

/// What an allotment serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Those who store and fetch.
    Client,
    /// Making redundancy whole again: it may have what is kept for that too.
    Rebuild,
}

/// Asks to keep something free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// A new one, drawn at random; the same one when the answer was lost.
    pub id: AllotmentId,
    /// For which share of a volume.
    pub segment: SegmentId,
    /// The segment's generation that it is for.
    pub generation: Option<Generation>,
    /// What it serves.
    pub purpose: Purpose,
    /// How much: space and no rates, or rates and no space.
    pub resources: Resources,
    /// How long from now, in milliseconds, at least 1.
    pub for_ms: u64,
}

/// Asks that what is held be there for use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// What was held.
    pub id: AllotmentId,
    /// The serial that the answer to the hold said. A commit that was delayed in the network and
    /// comes after a release finds no hold of that serial, even if its hold was delayed as well
    /// and stands again.
    pub serial: u64,
    /// For rates how long from now, in milliseconds, at least 1; none for space.
    pub for_ms: Option<u64>,
}

/// What is to be stored, and stands under its mediator and id from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// This, new or instead of what was there.
    Put(Allotment),
    /// Nothing.
    Remove {
        /// Whose it was.
        mediator: MediatorId,
        /// Its name.
        id: AllotmentId,
    },
}

/// Whose an allotment is, and its name among theirs: mediators cannot touch, nor find, nor
/// stand in the way of, one another's.
pub(super) type Key = (MediatorId, AllotmentId);

/// What an allotment is made of. Nothing is made of both, because they last differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Space,
    Rates,
}

impl Kind {
    /// None for nothing at all, and for both.
    pub(super) const fn of(resources: &Resources) -> Option<Self> {
        let rates = resources.device.0 > 0 || resources.network.0 > 0;
        match (resources.space_bytes > 0, rates) {
            (true, false) => Some(Self::Space),
            (false, true) => Some(Self::Rates),
            (true, true) | (false, false) => None,
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Space => Self::Rates,
            Self::Rates => Self::Space,
        }
    }
}

impl Allotment {
    pub(super) const fn key(&self) -> Key {
        (self.mediator, self.id)
    }

    /// When it ends by itself.
    #[must_use]
    pub const fn until(&self) -> Option<Moment> {
        match self.state {
            State::Held { until } => Some(until),
            State::Committed { until } => until,
        }
    }

    /// Whether it has ended by itself.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.until().is_some_and(|until| until <= now)
    }

    /// Whether it is what a hold asks for, however long.
    pub(super) fn answers(&self, hold: &Hold) -> bool {
        let Hold { id, segment, generation, purpose, resources, for_ms: _ } = *hold;
        (self.id, self.segment, self.generation, self.purpose, self.resources)
            == (id, segment, generation, purpose, resources)
    }

    /// What it is made of; none when it could not have been booked.
    pub(super) const fn kind(&self) -> Option<Kind> {
        match (Kind::of(&self.resources), self.state) {
            (Some(Kind::Space), State::Committed { until: Some(_) })
            | (Some(Kind::Rates), State::Committed { until: None }) => None,
            (kind, _) => kind,
        }
    }
}

impl Change {
    pub(super) const fn key(&self) -> Key {
        match self {
            Self::Put(allotment) => allotment.key(),
            Self::Remove { mediator, id } => (*mediator, *id),
        }
    }

    pub(super) const fn allotment(&self) -> Option<Allotment> {
        match self {
            Self::Put(allotment) => Some(*allotment),
            Self::Remove { .. } => None,
        }
    }
}
