//! Leases of a volume: one transfer plan may write it, or many may read it.
//!
//! What is known of a volume's leases is a [`LeaseState`], which a mediator keeps with the volume.
//! Each operation is a plain function from the state that is stored to the one to be stored in its
//! place, in one transaction; an answer leaves once that is done.
//!
//! Who has it is told by time, and that it is so by generations. A lease has an end, and [`SKEW_MS`]
//! after that others may have it: no agent takes its tokens any more, also where its clock is behind. But
//! a client that is shut out may be slow, deaf, or have a wrong clock. So the volume's generation grows
//! whenever somebody who may still have tokens is shut out: for each new writer, for readers who
//! come after a writer that did not release, and when a writer's lease is taken from it
//! ([`LeaseState::revoke`]). The mediator raises it on the agents before it hands out tokens for it
//! ([`Granted::must_raise`]), and from then on no older token opens anything ([`crate::token`]). On
//! agents that cannot be reached whoever was shut out may go on until [`LeaseState::quiet_at`], which is
//! forgotten once all agents had the generation ([`LeaseState::raised`]).
//!
//! ```text
//! open ──▶ the new state is stored ──▶ agents raise their segments ──▶ tokens leave
//!                                            `──▶ raised, stored
//! ```
//!
//! Invariants: of one generation there is one writer, or there are readers that came after it
//! released; generations never fall; nobody has a lease of a generation before the present one.
//!
//! A lease that is over stays with its plan until somebody else wants the volume, and may be renewed
//! until then: a mediator that was away for longer than a term shuts nobody out by that. When the
//! mediator's clock was set back, leases last longer than they should: [`Request::take_over`] does
//! not wait for them.
//!
//! Does not call leases back, raise anything, or know clients: whoever it names is a plan. A writer
//! that releases says that it has ended what it had under way; nobody checks that.

use alloc::{vec, vec::Vec};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    ledger::TermError,
    token::SKEW_MS,
    units::{Generation, Moment, PlanId},
};

/// The longest from one renewal to the next, in milliseconds: an hour, and what a lease lasts longer
/// than its client is told.
pub const TERM_MS_MAX: u64 = 3_600_000 + SKEW_MS;
/// Most plans that read a volume at once.
pub const READERS_MAX: usize = 256;
/// As many of them may be one client's, by its bearer token: the others' are not all taken by that.
pub const READERS_OF_ONE_MAX: usize = READERS_MAX / 2;

/// What a plan does with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It reads, beside others.
    Read,
    /// It writes, and reads, alone.
    Write,
}

/// Asks for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Who asks: a new plan; the same one when the answer was lost.
    pub plan: PlanId,
    /// For what.
    pub access: Access,
    /// How long from now, in milliseconds: 1 to [`TERM_MS_MAX`].
    pub term_ms: u64,
    /// Shuts out whoever has what conflicts, if the volume is at this generation still, which
    /// [`Conflict`] said. So nobody shuts out another than they meant, by a race or by a request
    /// that was late.
    pub take_over: Option<Generation>,
}

/// What a plan has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Granted {
    /// The generation that its tokens are to say.
    pub generation: Generation,
    /// Its tokens end then, by the mediator's clock.
    pub until: Moment,
    /// Not all agents are known to have that generation: tokens are handed out once all that are to
    /// serve do, and [`LeaseState::raised`] once all there are do.
    pub must_raise: bool,
}

/// A plan that has a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Who.
    pub plan: PlanId,
    /// Its tokens end then.
    pub until: Moment,
}

/// The leases of a volume, as a mediator stores them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseState {
    generation: Generation,
    /// For whom it was taken.
    #[serde(default = "nobody")]
    taken_by: PlanId,
    /// All agents of the volume are known to have that generation.
    is_raised: bool,
    /// Whoever was shut out may go on until then, on agents that do not have this generation.
    quiet_at: Moment,
    /// The same for those whose tokens are of this very generation: no agent refuses these, also when all have
    /// it. None in what was stored before this was told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    same_quiet_at: Option<Moment>,
    held: Held,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Held {
    Nobody,
    Writer(Holder),
    Readers(Vec<Holder>),
}

/// Who stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conflict {
    /// The volume's generation, by which it can be taken over.
    pub generation: Generation,
    /// What they do.
    pub access: Access,
    /// The one among them whose lease lasts longest.
    pub holder: Holder,
    /// How many others there are.
    pub others: usize,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = match self.access {
            Access::Read => "read",
            Access::Write => "written",
        };
        write!(f, "the volume is {does} by plan {}", self.holder.plan)?;
        if self.others > 0 {
            write!(f, " and {} others", self.others)?;
        }
        write!(f, " until {} ms since 1970, or longer", self.holder.free_at().0)?;
        let generation = self.generation.0;
        write!(
            f,
            "; ask again then, or take it over from generation {generation}: whoever has it is shut out"
        )
    }
}

/// Why there is no lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Others have what excludes it.
    #[error("{0}")]
    Conflict(Conflict),
    /// The plan has one, for something else.
    #[error("plan {plan} has the volume to {} it already; take a new plan", .access.verb())]
    Different {
        /// Who asks.
        plan: PlanId,
        /// What it has.
        access: Access,
    },
    /// As many read as may.
    #[error("{READERS_MAX} plans read the volume, and no more may; ask again when one has ended")]
    TooMany,
    /// It is to last too long, or not at all.
    #[error(transparent)]
    Term(#[from] TermError),
    /// Nobody could be shut out any more.
    #[error(transparent)]
    Spent(#[from] Spent),
}

/// Why a lease goes on no longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenewError {
    /// It is not there.
    #[error(
        "plan {plan} has no lease of the volume, or not any more: it was released, or others took \
         it after its end or by force; the volume is at generation {} now; open it again",
        .generation.0
    )]
    Gone {
        /// Who asks.
        plan: PlanId,
        /// The volume's generation now.
        generation: Generation,
    },
    /// It is to last too long, or not at all.
    #[error(transparent)]
    Term(#[from] TermError),
}

/// The last generation is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("generation {} of the volume is the last there is; copy it to a new volume", u64::MAX)]
pub struct Spent;

impl Access {
    const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Holder {
    /// From this moment on others may have it: no agent takes its tokens, whose clock is
    /// [`SKEW_MS`] behind at most.
    #[must_use]
    pub const fn free_at(&self) -> Moment {
        self.until.after_ms(SKEW_MS)
    }

    /// Whether others may have it.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.free_at() <= now
    }
}

impl Default for LeaseState {
    /// Of a new volume, whose segments are made with generation 0.
    fn default() -> Self {
        let (generation, taken_by, quiet_at) = (Generation(0), nobody(), Moment(0));
        let same_quiet_at = Some(quiet_at);
        Self { generation, taken_by, is_raised: true, quiet_at, same_quiet_at, held: Held::Nobody }
    }
}

impl LeaseState {
    /// When agents have a generation that is not this one ([`LeaseState::taken_by`]): whoever is known here is
    /// not all there are, since what is known is older than what was done. This plan, of which nobody
    /// has tokens yet, goes on with a generation that no agent has seen, if it has a lease; everybody
    /// else is shut out, known or not.
    ///
    /// # Errors
    /// When that was the last generation.
    pub fn surpassed(&self, now: Moment, seen: Generation, plan: PlanId) -> Result<Self, Spent> {
        let held = match self.find(plan) {
            Some((Access::Write, holder)) => Held::Writer(*holder),
            Some((Access::Read, holder)) => Held::Readers(vec![*holder]),
            None => Held::Nobody,
        };
        let quiet_at = self.quiet_at.max(now.after_ms(TERM_MS_MAX + SKEW_MS));
        let new = Self { generation: self.generation.max(seen), ..self.clone() };
        let new = Self { quiet_at, ..new.next(plan, held)? };
        assert!(new.generation > self.generation.max(seen), "a generation that no agent has seen");
        Ok(new)
    }

    /// Gives a lease. Asked again by the same plan, it gives what that has, prolonged.
    ///
    /// # Errors
    /// When others have what excludes it, or it may not be asked for.
    pub fn open(&self, now: Moment, request: &Request) -> Result<(Self, Granted), OpenError> {
        let Request { plan, access, term_ms, take_over } = *request;
        let until = after_term(now, term_ms)?;
        if let Some((has, _)) = self.find(plan) {
            if has != access {
                return Err(OpenError::Different { plan, access: has });
            }
            return Ok(self.prolonged(plan, until));
        }
        let take_over = take_over == Some(self.generation);
        if let Some(conflict) = self.conflict(now, access).filter(|_| !take_over) {
            return Err(OpenError::Conflict(conflict));
        }
        let holder = Holder { plan, until };
        let new = match (access, &self.held) {
            (Access::Write, _) => self.next(plan, Held::Writer(holder))?,
            // It did not release, and may not know that it is shut out.
            (Access::Read, Held::Writer(_)) => self.next(plan, Held::Readers(vec![holder]))?,
            (Access::Read, Held::Nobody) => self.with(Held::Readers(vec![holder])),
            (Access::Read, Held::Readers(readers)) => {
                let mut readers = readers.clone();
                readers.retain(|reader| !reader.is_over(now));
                if readers.len() >= READERS_MAX {
                    return Err(OpenError::TooMany);
                }
                readers.push(holder);
                self.with(Held::Readers(readers))
            }
        };
        let out: Vec<&Holder> = self.holders().map(|(_, old)| old).collect();
        let out = out.into_iter().filter(|old| new.find(old.plan).is_none()).map(Holder::free_at);
        let out = out.fold(Moment(0), Moment::max);
        let is_same = new.generation == self.generation;
        let new = new.shut_out(out, is_same);
        let has = new.find(plan).map(|(has, holder)| (has, holder.until));
        assert_eq!(has, Some((access, until)), "plan {plan} has what it was granted");
        assert!(new.generation >= self.generation, "generations never fall");
        let is_own = access == Access::Read || new.generation > self.generation;
        assert!(is_own, "each writer has a generation of its own");
        let granted = new.granted(until);
        Ok((new, granted))
    }

    /// Prolongs a lease until `term_ms` milliseconds from now, or leaves it as it was if that is
    /// longer.
    ///
    /// # Errors
    /// When the plan has none any more, or the time may not be asked for.
    pub fn renew(
        &self,
        now: Moment,
        plan: PlanId,
        term_ms: u64,
    ) -> Result<(Self, Granted), RenewError> {
        let until = after_term(now, term_ms)?;
        if self.find(plan).is_none() {
            return Err(RenewError::Gone { plan, generation: self.generation });
        }
        Ok(self.prolonged(plan, until))
    }

    /// Takes the lease of a plan, if it has one, which did not say that it has stopped and may go on:
    /// a writer is shut out by a new generation, a reader by the one of the next writer. At the last
    /// generation a writer stays, since nobody could be given the volume any more.
    #[must_use]
    pub fn revoke(&self, plan: PlanId) -> Self {
        let Some((access, holder)) = self.find(plan) else { return self.clone() };
        let new = match access {
            Access::Read => self.release(plan),
            Access::Write => self.next(plan, Held::Nobody).unwrap_or_else(|Spent| self.clone()),
        };
        let is_same = new.generation == self.generation;
        new.shut_out(holder.free_at(), is_same)
    }

    /// Gives the lease of a plan back, if it has one, which has stopped, or never had tokens.
    #[must_use]
    pub fn release(&self, plan: PlanId) -> Self {
        let mut new = self.clone();
        match &mut new.held {
            Held::Writer(writer) if writer.plan == plan => new.held = Held::Nobody,
            Held::Readers(readers) => {
                readers.retain(|reader| reader.plan != plan);
                if readers.is_empty() {
                    new.held = Held::Nobody;
                }
            }
            Held::Nobody | Held::Writer(_) => {}
        }
        assert!(new.find(plan).is_none(), "plan {plan} has given back its lease");
        new
    }

    /// All agents of the volume have this generation, durably: whoever was shut out by it is shut out
    /// everywhere. Says nothing of a later one.
    #[must_use]
    pub fn raised(&self, generation: Generation) -> Self {
        if generation < self.generation {
            return self.clone();
        }
        let quiet_at = self.same_quiet_at.unwrap_or(self.quiet_at);
        Self { is_raised: true, quiet_at, ..self.clone() }
    }

    /// The volume's generation: its agents' are at most this.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The plan for which the volume's generation was taken. Agents keep it beside the generation: one
    /// that has this generation for another plan has it from a history that is not known here.
    #[must_use]
    pub const fn taken_by(&self) -> PlanId {
        self.taken_by
    }

    /// Whether all agents of the volume are known to have that generation.
    #[must_use]
    pub const fn is_raised(&self) -> bool {
        self.is_raised
    }

    /// Until then whoever was shut out may go on, on agents that do not have the volume's
    /// generation: tokens are handed out when those are too few to serve, or at that moment.
    #[must_use]
    pub const fn quiet_at(&self) -> Moment {
        self.quiet_at
    }

    /// Who has it, also when that is over, and what they do.
    pub fn holders(&self) -> impl Iterator<Item = (Access, &Holder)> {
        let (access, holders) = match &self.held {
            Held::Nobody => (Access::Read, &[][..]),
            Held::Writer(writer) => (Access::Write, core::slice::from_ref(writer)),
            Held::Readers(readers) => (Access::Read, &readers[..]),
        };
        holders.iter().map(move |holder| (access, holder))
    }

    /// Who stands in the way of a plan that wants this now, unless it takes over.
    #[must_use]
    pub fn conflict(&self, now: Moment, wanted: Access) -> Option<Conflict> {
        let (access, holder) =
            self.excluding(now, wanted).max_by_key(|(_, holder)| holder.until)?;
        let others = self.excluding(now, wanted).count() - 1;
        Some(Conflict { generation: self.generation, access, holder: *holder, others })
    }

    /// All who stand in the way of a plan that wants this now, and what they do.
    pub fn excluding(
        &self,
        now: Moment,
        wanted: Access,
    ) -> impl Iterator<Item = (Access, &Holder)> {
        let live = self.holders().filter(move |(_, holder)| !holder.is_over(now));
        live.filter(move |(access, _)| *access == Access::Write || wanted == Access::Write)
    }

    fn find(&self, plan: PlanId) -> Option<(Access, &Holder)> {
        self.holders().find(|(_, holder)| holder.plan == plan)
    }

    /// With the lease of a plan that has one.
    fn prolonged(&self, plan: PlanId, until: Moment) -> (Self, Granted) {
        let mut new = self.clone();
        let mut stands = None;
        let holders = match &mut new.held {
            Held::Nobody => &mut [][..],
            Held::Writer(writer) => core::slice::from_mut(writer),
            Held::Readers(readers) => &mut readers[..],
        };
        for holder in holders.iter_mut().filter(|holder| holder.plan == plan) {
            holder.until = holder.until.max(until);
            stands = Some(holder.until);
        }
        let Some(stands) = stands else { panic!("plan {plan} has no lease to prolong") };
        let granted = new.granted(stands);
        (new, granted)
    }

    /// The same generation, held by these.
    const fn with(&self, held: Held) -> Self {
        let Self { generation, taken_by, is_raised, quiet_at, same_quiet_at, .. } = *self;
        Self { generation, taken_by, is_raised, quiet_at, same_quiet_at, held }
    }

    /// Somebody has no lease any more, and tokens until a moment; of this generation, or of one before.
    fn shut_out(self, until: Moment, is_same: bool) -> Self {
        let same_quiet_at = self.same_quiet_at.map(|at| if is_same { at.max(until) } else { at });
        Self { quiet_at: self.quiet_at.max(until), same_quiet_at, ..self }
    }

    /// The next generation, taken for a plan, and held by these.
    fn next(&self, taken_by: PlanId, held: Held) -> Result<Self, Spent> {
        let (generation, quiet_at) = (after(self.generation)?, self.quiet_at);
        let same_quiet_at = Some(Moment(0));
        Ok(Self { generation, taken_by, is_raised: false, quiet_at, same_quiet_at, held })
    }

    const fn granted(&self, until: Moment) -> Granted {
        Granted { generation: self.generation, until, must_raise: !self.is_raised }
    }
}

/// Whose the generation is that a volume and its segments begin with.
#[must_use]
pub const fn nobody() -> PlanId {
    PlanId([0; 16])
}

fn after(generation: Generation) -> Result<Generation, Spent> {
    generation.0.checked_add(1).map(Generation).ok_or(Spent)
}

fn after_term(now: Moment, term_ms: u64) -> Result<Moment, TermError> {
    if term_ms == 0 || term_ms > TERM_MS_MAX {
        return Err(TermError { asked_ms: term_ms, longest_ms: TERM_MS_MAX });
    }
    Ok(now.after_ms(term_ms))
}

#[cfg(test)]
mod tests;
