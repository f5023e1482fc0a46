//! What a mediator asks of an agent, over HTTP.
//!
//! ```text
//! POST /v1/operations    [Operation]         -> [Answer], in that order
//! GET  /v1/ledger        ?after=ID&limit=N   -> LedgerPage      the mediator's own
//! GET  /v1/segments      ?after=ID&limit=N   -> SegmentPage     the mediator's own
//! GET  /v1/status                            -> AgentStatus
//! ```
//!
//! Each mediator has a bearer token of its own, which says who asks. Operations of one document are
//! carried out in their order, are durable together before the answer leaves, and fail one by one. Each
//! may be repeated: what is there already, or gone already, is an answer and no fault.
//!
//! Names are not chosen twice: the space of a segment is the allotment [`space_of`] it, and the rates
//! of a plan on any agent are the allotment [`rates_of`] it.

use netraid_control::{
    ledger::{Allotment, Commit, Hold},
    units::{AgentId, AllotmentId, Generation, Moment, PlanId, Resources, SegmentId},
};
use serde::{Deserialize, Serialize};

pub use crate::label::{
    Label, LabelError, MORE_LEN_MAX, NAME_LEN_MAX, Opaque, SEALED_PATH_LEN_MAX, WRAPPED_KEY_LEN_MAX,
};

/// Operations of one document, at most.
pub const OPERATIONS_MAX: usize = 1024;
/// Entries of one page, at most.
pub const PAGE_MAX: usize = 1000;

/// The allotment of a segment's space.
#[must_use]
pub const fn space_of(segment: SegmentId) -> AllotmentId {
    AllotmentId(segment.0)
}

/// The allotment of a plan's rates; of each agent's.
#[must_use]
pub const fn rates_of(plan: PlanId) -> AllotmentId {
    AllotmentId(plan.0)
}

/// What an agent is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Keep something free: `netraid_control::ledger`.
    Hold(Hold),
    /// Book what is held.
    Commit(Commit),
    /// Book rates at once: whoever asks has stored that it does, and ends the plan wherever they may be
    /// when it does not go on with it.
    Book {
        /// What; how long that would be held does not matter.
        hold: Hold,
        /// For how long at first: milliseconds from now.
        lease_ms: u64,
    },
    /// Prolong committed rates.
    Renew {
        /// Which.
        id: AllotmentId,
        /// Milliseconds from now.
        for_ms: u64,
    },
    /// Give back rates, or space in which nothing was made.
    Release {
        /// Which.
        id: AllotmentId,
    },
    /// Make a segment of zeros, in its space that is committed. Nothing when it is there with the same
    /// length; its label is replaced then as by [`Self::SetLabel`], its generation stays.
    CreateSegment(NewSegment),
    /// Replace a segment's label; what it says nothing of stays as [`Label::keeping`] has it.
    SetLabel {
        /// Which.
        segment: SegmentId,
        /// What it is to say.
        label: Label,
    },
    /// Let only tokens of this generation in from now on, if it is larger than the one in force: answered
    /// when nothing that was asked for under an older one can still change the segment. Rates that
    /// are booked for older ones are released. The answer says what is in force then, and for whom: when
    /// that is another plan, somebody else was given this generation.
    RaiseGeneration {
        /// Which.
        segment: SegmentId,
        /// To what.
        generation: Generation,
        /// For which plan it was taken.
        taken_by: PlanId,
    },
    /// End its sessions, remove its data, then release all that is booked for it.
    RemoveSegment {
        /// Which.
        segment: SegmentId,
    },
    /// Running sessions of this plan hold until this moment, if that is later than what their tokens
    /// say. By the agent's clock, as it is with tokens: however late this comes, it holds no longer.
    ExtendPlan {
        /// Which.
        plan: PlanId,
        /// Until when; a day from now at most.
        until: Moment,
    },
    /// End the sessions of this plan, and release its rates.
    EndPlan {
        /// Which.
        plan: PlanId,
        /// It is taken back from a client that may go on: until then, which is when its last token ends,
        /// its tokens open nothing. A day from now at most; none when its client has stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revoked_until: Option<Moment>,
    },
}

/// A segment to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSegment {
    /// Its name.
    pub segment: SegmentId,
    /// Bytes, of whole blocks of 4096; no more than its committed space.
    pub len_bytes: u64,
    /// What it is of.
    pub label: Label,
}

/// What became of an operation.
pub type Answer = Result<Done, Fault>;

/// An operation that was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// Of [`Operation::Hold`], [`Operation::Commit`] and [`Operation::Renew`]: how it stands now.
    Booked(Allotment),
    /// Of [`Operation::Release`] and [`Operation::RemoveSegment`]: so many allotments.
    Released(u64),
    /// Of [`Operation::CreateSegment`]: the generation in force.
    Generation(Generation),
    /// Of [`Operation::RaiseGeneration`]: what is in force.
    Raised {
        /// The generation.
        generation: Generation,
        /// For which plan it was taken; zeros of a segment that was never raised.
        taken_by: PlanId,
    },
    /// Of all others.
    Done,
}

/// Why an operation was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{detail}")]
pub struct Fault {
    /// For programs.
    pub code: FaultCode,
    /// For people.
    pub detail: String,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultCode {
    /// Too little is left.
    Short,
    /// What it names is not there, or not any more.
    Absent,
    /// It contradicts what is there.
    Conflict,
    /// It makes no sense.
    Invalid,
    /// The agent takes nothing new: it drains.
    Draining,
    /// The disk that has the agent's store or segments is full: nothing new is taken before there is room.
    Full,
    /// Too much waits already; ask again.
    Busy,
    /// The agent could not store or do it; its log says more. Ask again. Also whatever a later agent says that is
    /// not known here.
    #[serde(other)]
    Failed,
}

/// A part of a mediator's allotments, by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerPage {
    /// By the agent's clock.
    pub now: Moment,
    /// In order.
    pub entries: Vec<Allotment>,
    /// Whether there are more.
    pub more: bool,
}

/// A part of a mediator's segments, by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPage {
    /// In order.
    pub entries: Vec<SegmentReport>,
    /// Whether there are more.
    pub more: bool,
}

/// A segment, as its agent has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Which.
    pub segment: SegmentId,
    /// Its bytes.
    pub len_bytes: u64,
    /// What of them takes space.
    pub used_bytes: u64,
    /// In force.
    pub generation: Generation,
    /// Its data is gone on the agent, or a part of it: nobody gets in.
    #[serde(default)]
    pub is_lost: bool,
    /// What it is of.
    pub label: Label,
}

/// How an agent is. What it says of allotments is of all mediators together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Who it is.
    pub agent: AgentId,
    /// Label of its host.
    pub host: String,
    /// Label of its rack; empty where nobody said.
    pub rack: String,
    /// `http` or `https` URL of its API, without a path.
    pub api: String,
    /// Address and port at which it serves segments.
    pub portal: String,
    /// The iSCSI name under which it does.
    pub target: String,
    /// All that it has.
    pub capacity: Resources,
    /// What of that is for rebuilding only.
    pub kept: Resources,
    /// What clients can still book.
    pub left: Resources,
    /// What rebuilds can still book.
    pub left_for_rebuild: Resources,
    /// It takes nothing new.
    pub draining: bool,
    /// Its segments.
    pub segments: u64,
    /// Its sessions.
    pub sessions: u64,
}
