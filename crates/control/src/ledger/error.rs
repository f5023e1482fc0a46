//! What is refused, and why.

use alloc::boxed::Box;
use core::fmt;

use super::Allotment;
use crate::units::{AllotmentId, MediatorId, Moment, Resources};

/// Why nothing is held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// There is not enough.
    #[error(transparent)]
    Short(#[from] Short),
    /// There are as many allotments as there may be.
    #[error("{whose} {limit} allotments, and may have no more; release what is not needed")]
    TooMany {
        /// Who has so many.
        whose: Whose,
        /// How many that is.
        limit: usize,
    },
    /// The id stands for something else.
    #[error("allotment {} is something else already; take a new id", .0.id)]
    Different(Box<Allotment>),
    /// It is made of what cannot be booked in one.
    #[error(
        "allotment {id} is of nothing, or of space and rates at once; \
         hold space and rates by an id each"
    )]
    Mixed {
        /// The id asked for.
        id: AllotmentId,
    },
    /// Space is held before it is committed: nobody releases it by itself.
    #[error("allotment {id} is of space; hold it, then commit it")]
    Space {
        /// The id asked for.
        id: AllotmentId,
    },
    /// It is to last too long, or not at all.
    #[error(transparent)]
    Term(#[from] TermError),
    /// The store is behind.
    #[error(transparent)]
    Busy(#[from] Busy),
}

/// Why something is not committed or not renewed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// It is not there: never was, was released, has ended, or what is held by that id is not the
    /// hold that was meant.
    #[error("allotment {id} is not there, or not any more; hold it again")]
    Absent {
        /// The id asked for.
        id: AllotmentId,
    },
    /// It is held only, and that is not prolonged.
    #[error("allotment {id} is held, not committed; commit it before it ends")]
    Held {
        /// The id asked for.
        id: AllotmentId,
    },
    /// Rates for ever would be lost with a mediator that is lost.
    #[error("allotment {id} is of rates, which are for a time; say for how long, and renew it")]
    RatesWithoutEnd {
        /// The id asked for.
        id: AllotmentId,
    },
    /// Space that ended by itself would be given away with the data in it.
    #[error("allotment {id} is of space, which has no end; release it when the segment is gone")]
    SpaceWithEnd {
        /// The id asked for.
        id: AllotmentId,
    },
    /// It is to last too long, or not at all.
    #[error(transparent)]
    Term(#[from] TermError),
    /// The store is behind.
    #[error(transparent)]
    Busy(#[from] Busy),
}

/// Too little is left of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct Short {
    /// What was asked for.
    pub asked: Resources,
    /// What could be had of each.
    pub left: Resources,
    /// What is booked beyond what the agent has, because it has less than when it booked that.
    pub overbooked: Resources,
    /// The earliest moment at which something of that kind, space or rates, ends by itself, if
    /// anything does: unless something is released, asking again before is in vain.
    pub frees_at: Option<Moment>,
}

impl Short {
    /// How much there is too little of each; nothing of what there is enough of.
    #[must_use]
    pub const fn lack(&self) -> Resources {
        self.asked.saturating_sub(self.left)
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, left, lack) = (self.asked, self.left, self.lack());
        f.write_str("too little is left:")?;
        let parts = [
            ("bytes of space", asked.space_bytes, left.space_bytes, lack.space_bytes),
            ("bytes a second of the devices", asked.device.0, left.device.0, lack.device.0),
            ("bytes a second of the network", asked.network.0, left.network.0, lack.network.0),
        ];
        for (name, asked, left, _) in parts.into_iter().filter(|(.., lack)| *lack > 0) {
            write!(f, " {asked} {name} asked, {left} left;")?;
        }
        if self.overbooked != Resources::default() {
            f.write_str(" the agent has less than is booked already;")?;
        }
        match self.frees_at {
            Some(Moment(ms)) => write!(f, " nothing ends by itself before {ms} ms since 1970;")?,
            None => f.write_str(" nothing ends by itself;")?,
        }
        f.write_str(" ask for less, later, or elsewhere")
    }
}

/// Who has too many allotments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// All mediators together.
    Agent,
    /// The one that asked.
    Mediator,
    /// The one that asked, for this segment.
    Segment,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "the agent has",
            Self::Mediator => "the mediator has",
            Self::Segment => "the segment has",
        })
    }
}

/// A time that may not be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked_ms} ms were asked for; from 1 to {longest_ms} ms may be")]
pub struct TermError {
    /// The time asked for, in milliseconds.
    pub asked_ms: u64,
    /// The longest, in milliseconds.
    pub longest_ms: u64,
}

/// So much waits to be stored that nothing more is taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{limit} changes or more wait to be stored; ask again")]
pub struct Busy {
    /// As many may wait.
    pub limit: usize,
}

/// Why stored allotments are no ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// One stands there twice.
    #[error(
        "allotment {id} of mediator {mediator} is stored twice; \
         this is no ledger that was written by an agent: restore the store from a copy"
    )]
    Twice {
        /// Whose it is.
        mediator: MediatorId,
        /// Its name.
        id: AllotmentId,
    },
    /// One could not have been booked.
    #[error(
        "allotment {id} of mediator {mediator} is nothing that is ever booked: space is without \
         end, rates are with one; restore the store from a copy"
    )]
    Impossible {
        /// Whose it is.
        mediator: MediatorId,
        /// Its name.
        id: AllotmentId,
    },
    /// They are more than can be counted.
    #[error(
        "with allotment {id} of mediator {mediator} more is booked than 64 bits can count; \
         restore the store from a copy"
    )]
    TooLarge {
        /// Whose it is.
        mediator: MediatorId,
        /// Its name.
        id: AllotmentId,
    },
}
