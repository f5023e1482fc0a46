//! A mediator's booking on several agents: on all of them or on none.
//!
//! Everything is held first. When all agents hold, the decision to commit is stored, and then all
//! are told to commit. Whoever crashes before that decision leaves holds, which end by themselves;
//! whoever crashes after it goes on from the stored [`Record`]. An agent that says that what it held
//! is gone, or that does not answer for too long, turns the decision round: that is stored too, and
//! everything is released until each agent has said that it did.
//!
//! Rates of a plan that is stored already are booked at once ([`Booking::leased`]): two steps less, and
//! whoever crashes, or ends with another outcome, ends that plan on all its agents.
//!
//! Invariants: nothing is committed before the decision, or what it is for, is stored;
//! [`Outcome::Booked`] comes when every agent has committed, and that is stored; after any other
//! outcome everything is released, as soon as the agents that hold it can be reached: here what was
//! held, by the shell what was booked at once.
//!
//! Requests may be lost, doubled and late, because the ledger's are made for that
//! ([`crate::ledger`]). The times here only say when to ask again and when to give up: that a clock
//! is wrong costs patience, never an allotment.
//!
//! Does not choose agents ([`crate::placement`]), and does not know what the booking is for: a shell
//! stores that together with the record.

use alloc::{collections::VecDeque, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    ledger::{Commit, Hold},
    units::{AgentId, AllotmentId, Moment, PlanId},
};

/// From a request that is not answered to the next one, at first and at most.
const RETRY_MS: core::ops::RangeInclusive<u64> = 200..=10_000;

/// What is wanted of one agent. An agent may have several parts, each with an id of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Of whom.
    pub agent: AgentId,
    /// What.
    pub hold: Hold,
    /// For rates how long at first, in milliseconds; none for space.
    pub lease_ms: Option<u64>,
}

/// What a store keeps of a booking, from the decision on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Which one it is.
    pub id: PlanId,
    /// What was decided.
    pub decision: Decision,
    /// All that is held.
    pub parts: Vec<RecordPart>,
}

/// What becomes of a booking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// All agents are to commit.
    Commit,
    /// All agents have committed.
    Booked,
    /// All agents are to release.
    Release,
}

/// A part, as it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordPart {
    /// By whom.
    pub agent: AgentId,
    /// Under which name.
    pub allotment: AllotmentId,
    /// By which hold.
    pub serial: u64,
    /// For rates how long at first, in milliseconds; none for space.
    pub lease_ms: Option<u64>,
}

/// What is to be done next. Whatever an agent answers comes back by a `handle`; what is not
/// answered is asked for again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask an agent to hold this.
    Hold(AgentId, Hold),
    /// Tell an agent to commit this.
    Commit(AgentId, Commit),
    /// Ask an agent to book this at once, for so many milliseconds.
    Book(AgentId, Hold, u64),
    /// Tell an agent to release this.
    Release(AgentId, AllotmentId),
    /// Store this in the place of what was stored under its id. One that is [`Decision::Booked`]
    /// goes with what the booking is for, in one transaction.
    Store(Record),
    /// Remove what was stored.
    Forget(PlanId),
}

/// How a booking ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<W> {
    /// Every agent has committed.
    Booked,
    /// An agent refused, or failed until it was too late: nothing was booked, or what was is released.
    Refused(AgentId, W),
    /// An agent said nothing in time, or what it held was gone before all had answered.
    TooLate(AgentId),
    /// The decision could not be stored: nothing was booked.
    NotStored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Holding,
    /// The decision is being stored.
    Deciding(Decision),
    Committing,
    /// All are asked to book at once.
    Leasing,
    /// Until all agents have released, as was decided.
    Releasing,
    /// Nothing was decided: what agents hold ends by itself if they do not hear of it.
    LettingGo,
    Over,
}

#[derive(Debug, Clone)]
struct PartState<W> {
    agent: AgentId,
    allotment: AllotmentId,
    lease_ms: Option<u64>,
    /// What to ask for; none after a restart, when all is held.
    hold: Option<Hold>,
    serial: Option<u64>,
    /// It has done what this phase asks for.
    is_done: bool,
    /// Why its agent did not do so when it answered last.
    failed: Option<W>,
    /// When it is asked, and how long to wait then.
    ask_at: Moment,
    wait_ms: u64,
}

/// A booking under way. `W` is why an agent refuses.
#[derive(Debug, Clone)]
pub struct Booking<W> {
    id: PlanId,
    parts: Vec<PartState<W>>,
    phase: Phase,
    /// Booked at once, for what is stored already.
    is_leased: bool,
    give_up_at: Moment,
    actions: VecDeque<Action>,
    /// An agent will not book at once: told when all others have answered, so that what ends the plan
    /// seldom overtakes a request.
    refused: Option<Outcome<W>>,
    outcome: Option<Outcome<W>>,
}

impl<W> Booking<W> {
    /// A booking that begins now, and gives up when some agent has not answered after
    /// `patience_ms`, which is less than the holds last.
    ///
    /// # Panics
    /// When there are no parts, or two of one name with one agent.
    #[must_use]
    pub fn new(now: Moment, id: PlanId, parts: &[Part], patience_ms: u64) -> Self {
        Self::begun(now, id, parts, patience_ms, Phase::Holding)
    }

    /// A booking of rates for what is stored already, with all its agents: none of it is held first.
    /// No decision but [`Decision::Booked`] is stored, and nothing is released here: unless that is the
    /// outcome, also after a restart, the shell ends what it is for on all those agents. A refusal may
    /// be followed by another booking of the same parts, or of some: what stands answers again.
    ///
    /// # Panics
    /// As [`Self::new`], and when a part has no lease.
    #[must_use]
    pub fn leased(now: Moment, id: PlanId, parts: &[Part], patience_ms: u64) -> Self {
        let unleased = parts.iter().find(|part| part.lease_ms.is_none());
        assert!(unleased.is_none(), "{unleased:?} has no end of its own");
        Self::begun(now, id, parts, patience_ms, Phase::Leasing)
    }

    /// Goes on from what was stored, after a restart. None when nothing is left to do.
    #[must_use]
    pub fn resume(now: Moment, record: &Record, patience_ms: u64) -> Option<Self> {
        let phase = match record.decision {
            Decision::Commit => Phase::Committing,
            Decision::Release => Phase::Releasing,
            Decision::Booked => return None,
        };
        let part = |part: &RecordPart| PartState {
            agent: part.agent,
            allotment: part.allotment,
            lease_ms: part.lease_ms,
            hold: None,
            serial: Some(part.serial),
            is_done: false,
            failed: None,
            ask_at: now,
            wait_ms: *RETRY_MS.start(),
        };
        let parts = record.parts.iter().map(part).collect();
        let mut this = Self::in_phase(now, record.id, parts, patience_ms, phase);
        this.go_on(now);
        Some(this)
    }

    /// Which one it is.
    #[must_use]
    pub const fn id(&self) -> PlanId {
        self.id
    }

    /// An agent holds a part, by the hold of that serial.
    pub fn handle_held(&mut self, now: Moment, agent: AgentId, id: AllotmentId, serial: u64) {
        if self.phase != Phase::Holding {
            return;
        }
        if let Some(part) = self.part(agent, id) {
            // Of a hold that ended and was made anew the later one counts.
            part.serial = part.serial.max(Some(serial));
            part.is_done = true;
        }
        self.go_on(now);
    }

    /// An agent refuses a part.
    pub fn handle_refused(&mut self, now: Moment, agent: AgentId, id: AllotmentId, why: W) {
        let phase = self.phase;
        let Some(part) = self.part(agent, id) else { return };
        match phase {
            Phase::Holding => self.let_go(now, Outcome::Refused(agent, why)),
            Phase::Leasing => {
                part.is_done = true;
                self.refused.get_or_insert(Outcome::Refused(agent, why));
                self.go_on(now);
            }
            Phase::Deciding(_)
            | Phase::Committing
            | Phase::Releasing
            | Phase::LettingGo
            | Phase::Over => {}
        }
    }

    /// An agent could not do what it was asked for, and may be able to later: it is asked again. When it
    /// is given up, this is why.
    pub fn handle_failed(&mut self, agent: AgentId, id: AllotmentId, why: W) {
        match self.phase {
            Phase::Holding | Phase::Committing | Phase::Leasing => {
                if let Some(part) = self.part(agent, id) {
                    part.failed = Some(why);
                }
            }
            Phase::Deciding(_) | Phase::Releasing | Phase::LettingGo | Phase::Over => {}
        }
    }

    /// An agent has committed a part, or booked it at once.
    pub fn handle_committed(&mut self, now: Moment, agent: AgentId, id: AllotmentId) {
        if matches!(self.phase, Phase::Committing | Phase::Leasing) {
            if let Some(part) = self.part(agent, id) {
                part.is_done = true;
            }
            self.go_on(now);
        }
    }

    /// What an agent was told to commit is not there.
    pub fn handle_absent(&mut self, agent: AgentId, id: AllotmentId) {
        if self.phase == Phase::Committing && self.part(agent, id).is_some() {
            self.turn_round(Outcome::TooLate(agent));
        }
    }

    /// An agent has nothing of a part any more.
    pub fn handle_released(&mut self, now: Moment, agent: AgentId, id: AllotmentId) {
        if matches!(self.phase, Phase::Releasing | Phase::LettingGo) {
            if let Some(part) = self.part(agent, id) {
                part.is_done = true;
            }
            self.go_on(now);
        }
    }

    /// The last record that was to be stored is.
    pub fn handle_stored(&mut self, now: Moment) {
        let Phase::Deciding(decision) = self.phase else { return };
        match decision {
            Decision::Commit => self.begin(now, Phase::Committing),
            Decision::Release => self.begin(now, Phase::Releasing),
            Decision::Booked => {
                self.phase = Phase::Over;
                self.outcome.get_or_insert(Outcome::Booked);
            }
        }
        self.go_on(now);
    }

    /// The last record that was to be stored certainly is not. When that is not certain, the only
    /// way on is [`Self::resume`] from what the store holds.
    pub fn handle_store_failed(&mut self, now: Moment) {
        match self.phase {
            Phase::Deciding(Decision::Commit) => self.let_go(now, Outcome::NotStored),
            Phase::Deciding(Decision::Booked) if self.is_leased => {
                self.let_go(now, Outcome::NotStored);
            }
            // Committed it is, or has to be released: the store must take it some time.
            Phase::Deciding(decision) => self.store(decision),
            Phase::Holding
            | Phase::Committing
            | Phase::Leasing
            | Phase::Releasing
            | Phase::LettingGo
            | Phase::Over => {}
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Moment) {
        let is_late = now >= self.give_up_at && self.parts.iter().any(|part| !part.is_done);
        match self.phase {
            Phase::Holding | Phase::Leasing if is_late => {
                let outcome = self.refused.take().unwrap_or_else(|| self.too_late());
                self.let_go(now, outcome);
            }
            Phase::Committing if is_late => {
                let outcome = self.too_late();
                self.turn_round(outcome);
            }
            Phase::Holding
            | Phase::Deciding(_)
            | Phase::Committing
            | Phase::Leasing
            | Phase::Releasing
            | Phase::LettingGo
            | Phase::Over => self.ask(now),
        }
    }

    /// When time matters next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Moment> {
        let open = self.parts.iter().filter(|part| !part.is_done).map(|part| part.ask_at).min();
        match self.phase {
            Phase::Holding | Phase::Committing | Phase::Leasing => {
                open.map(|ask_at| ask_at.min(self.give_up_at))
            }
            Phase::Releasing => open,
            Phase::Deciding(_) | Phase::LettingGo | Phase::Over => None,
        }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How it ended, once that is known; agents may still have to be told.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome<W>> {
        self.outcome.as_ref()
    }

    /// Whether there is nothing more to be done once all actions are.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over | Phase::LettingGo)
    }

    fn begun(now: Moment, id: PlanId, parts: &[Part], patience_ms: u64, phase: Phase) -> Self {
        assert!(!parts.is_empty(), "a booking of nothing");
        let part = |part: &Part| PartState {
            agent: part.agent,
            allotment: part.hold.id,
            lease_ms: part.lease_ms,
            hold: Some(part.hold),
            serial: None,
            is_done: false,
            failed: None,
            ask_at: now,
            wait_ms: *RETRY_MS.start(),
        };
        let parts: Vec<PartState<W>> = parts.iter().map(part).collect();
        for (at, one) in parts.iter().enumerate() {
            let is_same =
                |other: &PartState<W>| (other.agent, other.allotment) == (one.agent, one.allotment);
            assert!(!parts[..at].iter().any(is_same), "allotment {} twice", one.allotment);
        }
        Self::in_phase(now, id, parts, patience_ms, phase)
    }

    fn in_phase(
        now: Moment,
        id: PlanId,
        parts: Vec<PartState<W>>,
        patience_ms: u64,
        phase: Phase,
    ) -> Self {
        let mut this = Self {
            id,
            parts,
            is_leased: phase == Phase::Leasing,
            phase,
            give_up_at: now.after_ms(patience_ms),
            actions: VecDeque::new(),
            refused: None,
            outcome: None,
        };
        this.ask(now);
        this
    }

    fn part(&mut self, agent: AgentId, id: AllotmentId) -> Option<&mut PartState<W>> {
        self.parts.iter_mut().find(|part| (part.agent, part.allotment) == (agent, id))
    }

    /// The outcome when time is up: an agent that said why it failed is named before one that was silent.
    fn too_late(&mut self) -> Outcome<W> {
        let mut late = self.parts.iter_mut().filter(|part| !part.is_done);
        let failed = late.find_map(|part| Some(Outcome::Refused(part.agent, part.failed.take()?)));
        failed.unwrap_or_else(|| {
            let silent = self.parts.iter().find(|part| !part.is_done).unwrap_or(&self.parts[0]);
            Outcome::TooLate(silent.agent)
        })
    }

    fn begin(&mut self, now: Moment, phase: Phase) {
        self.phase = phase;
        for part in &mut self.parts {
            part.is_done = false;
            part.failed = None;
            part.ask_at = now;
            part.wait_ms = *RETRY_MS.start();
        }
        self.ask(now);
    }

    /// Goes to the next phase when every agent has done what this one asks for.
    fn go_on(&mut self, now: Moment) {
        if !self.parts.iter().all(|part| part.is_done) {
            return;
        }
        match self.phase {
            // Beyond that time some may be gone already.
            Phase::Holding if now >= self.give_up_at => {
                let agent = self.parts[0].agent;
                self.let_go(now, Outcome::TooLate(agent));
            }
            Phase::Holding => self.store(Decision::Commit),
            Phase::Leasing if self.refused.is_some() => {
                if let Some(refused) = self.refused.take() {
                    self.let_go(now, refused);
                }
            }
            Phase::Committing | Phase::Leasing => self.store(Decision::Booked),
            Phase::Releasing => {
                self.phase = Phase::Over;
                self.actions.push_back(Action::Forget(self.id));
            }
            Phase::Deciding(_) | Phase::LettingGo | Phase::Over => {}
        }
    }

    fn store(&mut self, decision: Decision) {
        // What is committed after a restart is known by these alone.
        let is_held = self.parts.iter().all(|part| part.serial.is_some());
        assert!(decision != Decision::Commit || is_held, "all is held that is to be committed");
        self.phase = Phase::Deciding(decision);
        let part = |part: &PartState<W>| RecordPart {
            agent: part.agent,
            allotment: part.allotment,
            serial: part.serial.unwrap_or(0),
            lease_ms: part.lease_ms,
        };
        let parts = self.parts.iter().map(part).collect();
        self.actions.push_back(Action::Store(Record { id: self.id, decision, parts }));
    }

    /// Nothing was decided, and nothing will be.
    fn let_go(&mut self, now: Moment, outcome: Outcome<W>) {
        self.outcome.get_or_insert(outcome);
        self.actions.clear();
        if self.is_leased {
            self.phase = Phase::Over;
            return;
        }
        self.begin(now, Phase::LettingGo);
    }

    fn turn_round(&mut self, outcome: Outcome<W>) {
        self.outcome.get_or_insert(outcome);
        self.actions.clear();
        self.store(Decision::Release);
    }

    /// Asks all who are due.
    fn ask(&mut self, now: Moment) {
        for part in self.parts.iter_mut().filter(|part| !part.is_done && part.ask_at <= now) {
            let action = match (self.phase, part.hold, part.serial) {
                (Phase::Holding, Some(hold), _) => Action::Hold(part.agent, hold),
                (Phase::Leasing, Some(hold), _) => {
                    let Some(lease_ms) = part.lease_ms else {
                        unreachable!("allotment {} is booked at once, without an end", hold.id)
                    };
                    Action::Book(part.agent, hold, lease_ms)
                }
                (Phase::Committing, _, Some(serial)) => {
                    let (id, for_ms) = (part.allotment, part.lease_ms);
                    Action::Commit(part.agent, Commit { id, serial, for_ms })
                }
                (Phase::Releasing | Phase::LettingGo, ..) => {
                    Action::Release(part.agent, part.allotment)
                }
                _ => continue,
            };
            self.actions.push_back(action);
            part.ask_at = now.after_ms(part.wait_ms);
            part.wait_ms = (part.wait_ms * 2).min(*RETRY_MS.end());
        }
    }
}

#[cfg(test)]
mod tests;
