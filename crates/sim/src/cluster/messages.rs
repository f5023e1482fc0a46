//! What they say to each other.

use netraid_control::{
    lease::Access,
    ledger::{Commit, Hold},
    token::Credentials,
    units::{AllotmentId, Generation, PlanId, Rate, SegmentId, VolumeId},
};
use netraid_raid::geometry::Level;

/// Who takes part, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// An agent.
    Agent(usize),
    /// A mediator.
    Mediator(usize),
    /// A client.
    Client(usize),
}

/// What travels.
#[derive(Debug, Clone)]
pub enum Message {
    /// From a mediator to an agent.
    Ask(Ask),
    /// From an agent to a mediator.
    Reply(Reply),
    /// From a client to a mediator.
    Request(Request),
    /// From a mediator to a client.
    Answer(Answer),
}

/// What a mediator asks of an agent.
#[derive(Debug, Clone, Copy)]
pub enum Ask {
    /// Keep something free.
    Hold(Hold),
    /// Put it to use.
    Commit(Commit),
    /// Put rates to use at once, for so many milliseconds.
    Book(Hold, u64),
    /// Give it back; a segment goes with its space.
    Release(AllotmentId),
    /// Prolong rates.
    Renew {
        /// Whose.
        plan: PlanId,
        /// Which renewal of the plan.
        round: u64,
        /// Which rates.
        id: AllotmentId,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
    /// Raise a segment's generation; make the segment if it has space and is not there.
    Raise(SegmentId, Generation),
    /// Say that it is there, for a plan that is to take a volume over.
    Look(PlanId),
}

/// What an agent answers.
#[derive(Debug, Clone, Copy)]
pub enum Reply {
    /// Held, by that serial.
    Held(AllotmentId, u64),
    /// Not held, or not booked.
    Refused(AllotmentId),
    /// Committed, or booked at once.
    Committed(AllotmentId),
    /// Not there.
    Absent(AllotmentId),
    /// Nothing of it is left.
    Released(AllotmentId),
    /// Renewed, or not.
    Renewed {
        /// Whose.
        plan: PlanId,
        /// Which renewal.
        round: u64,
        /// Which rates.
        id: AllotmentId,
        /// Whether they are there.
        is_there: bool,
    },
    /// The segment's generation is at least this.
    Raised(SegmentId, Generation),
    /// It is there.
    There(PlanId),
}

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
pub enum Request {
    /// Make a volume.
    Create {
        /// Its id, drawn by the client.
        volume: VolumeId,
        /// Its bytes.
        size_bytes: u64,
        /// Its level and number of members.
        shape: (Level, usize),
    },
    /// Remove a volume that nobody has.
    Delete(VolumeId),
    /// Open one.
    Open(Open),
    /// Prolong a plan.
    Renew {
        /// Which.
        plan: PlanId,
        /// Counted by the client.
        round: u64,
        /// The generation that the client has it at: a request that came late may have opened it
        /// again since, with others between.
        generation: Generation,
    },
    /// Give a plan back.
    Release(PlanId),
}

/// Asks for a plan.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// Its id, drawn by the client.
    pub plan: PlanId,
    /// Of which volume.
    pub volume: VolumeId,
    /// For what.
    pub access: Access,
    /// How fast.
    pub rate: Rate,
    /// From which generation it is taken over, if it is.
    pub take_over: Option<Generation>,
}

/// What a mediator answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The volume is there.
    Created(VolumeId),
    /// It is not, and was not made.
    NotCreated(VolumeId),
    /// The volume is gone, or somebody has it.
    Deleted(VolumeId, bool),
    /// Here is the plan.
    Opened(Box<Granted>),
    /// There is none; the generation at which others have the volume, if they do.
    NotOpened(PlanId, Option<Generation>),
    /// The plan goes on.
    Renewed(u64, Box<Granted>),
    /// It does not.
    Gone(PlanId),
    /// It was given back.
    Released(PlanId),
}

/// A transfer plan, as a client has it.
#[derive(Debug, Clone)]
pub struct Granted {
    /// Which one.
    pub plan: PlanId,
    /// Of which volume.
    pub volume: VolumeId,
    /// For what.
    pub access: Access,
    /// At which generation.
    pub generation: Generation,
    /// Members without which the volume cannot be served.
    pub serve_min: usize,
    /// What each member of those that take part gives.
    pub parts: Vec<GrantedPart>,
}

/// A member's part of it.
#[derive(Debug, Clone)]
pub struct GrantedPart {
    /// Which agent.
    pub agent: usize,
    /// What is booked there.
    pub allotment: AllotmentId,
    /// How much is promised there.
    pub floor: Rate,
    /// What opens it.
    pub credentials: Credentials,
}
