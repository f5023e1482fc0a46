//! What clients and agents ask of a mediator, over HTTP.
//!
//! ```text
//! POST   /v1/names                 Create       -> Entry       a volume, data, or a directory
//! GET    /v1/names                 ?path=&after=&limit=&uploads=  -> Page      what is in a directory
//! GET    /v1/name                  ?path=&upload=  -> Entry
//! DELETE /v1/name                  ?path=&force=&upload=&id=&kind=
//! POST   /v1/rename                Rename       -> Entry
//! POST   /v1/plans                 Open         -> TransferPlan
//! POST   /v1/plans/{id}/renew                   -> TransferPlan
//! POST   /v1/plans/{id}/beat       PlanBeat     -> PlanBeaten   its client is there
//! POST   /v1/plans/{id}/state      SetState     -> Entry       formatted; exact length
//! POST   /v1/plans/{id}/replace    Replace      -> TransferPlan
//! POST   /v1/plans/{id}/close      Close                       its client has stopped
//! DELETE /v1/plans/{id}                                        its client is shut out
//! GET    /v1/plans                 ?after=&limit=  -> PlanPage
//! GET    /v1/agents                             -> [AgentEntry]
//! POST   /v1/agents                Join         -> Joined
//! PUT    /v1/agents/{id}           Beat         -> Beaten
//! POST   /v1/agents/{id}/drain | undrain | retire   -> AgentEntry
//! POST   /v1/access                NewAccess    -> Access      a new bearer token
//! GET    /v1/access                             -> [AccessEntry]
//! DELETE /v1/access/{id}
//! GET    /v1/log                  ?since=&after=&limit=  -> LogPage     [`crate::audit`]
//! GET    /v1/check                              -> CheckReport
//! GET    /v1/status                             -> MediatorStatus
//! GET    /openapi.json
//! ```
//!
//! Whoever opens something asks for how long, and renews before that is over: the mediator answers
//! with what holds from then on. Times are durations, by the clock of whoever is told, from before it
//! asked; moments are the mediator's, to be shown.
//!
//! Whoever has stopped says so with the key that it drew when it opened, and others may have the volume
//! at once. Everybody else who may end a plan shuts its client out.

use netraid_control::{
    clients::Process,
    keys::StoredRing,
    units::{AgentId, Generation, MediatorId, Moment, PlanId, Rate, SegmentId, VolumeId},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    access::{Bearer, Role},
    agent::AgentStatus,
    documents::{WITH_BEATS, WITH_SHARES},
};

/// Entries of one page, at most.
pub const PAGE_MAX: u32 = 1000;
/// Bytes of a path, at most; of one name in it [`NAME_LEN_MAX`].
pub const PATH_LEN_MAX: usize = 4096;
/// Bytes of one name of a path, at most.
pub const NAME_LEN_MAX: usize = 255;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Names in it.
    Directory,
    /// A block volume.
    Volume,
    /// Bytes of an exact length.
    Data,
}

/// How something is to be stored, and what rate it is laid out for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Layout {
    /// Bytes a second that one client is to move; decides striping unit and members.
    #[schema(value_type = u64)]
    pub rate: Rate,
    /// Bytes of the requests it moves them in.
    pub request_bytes: u64,
    /// How many members may be lost.
    pub survives: u8,
    /// Whether the rate is to hold while so many are lost, and is booked for that.
    pub degraded: bool,
    /// 0, 1, 5, 6 or 10; chosen when none.
    pub level: Option<u8>,
    /// Bytes; chosen when none.
    pub chunk_len: Option<u32>,
    /// Number of members; chosen when none.
    pub members: Option<u16>,
    /// What no two members may share: `agent`, `host` or `rack`.
    pub spread: Spread,
    /// Whether they may where there is no other way; an agent they never share.
    pub may_share: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            rate: Rate::ZERO,
            request_bytes: 1 << 20,
            survives: 1,
            degraded: true,
            level: None,
            chunk_len: None,
            members: None,
            spread: Spread::Host,
            may_share: false,
        }
    }
}

/// What fails together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// An agent.
    Agent,
    /// A host, which may run several agents.
    Host,
    /// A rack.
    Rack,
}

/// Makes something with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Absolute: `/directory/name`.
    pub path: String,
    /// What.
    pub kind: Kind,
    /// Bytes of a volume, or that data can have; 0 for a directory, and for data without bytes.
    #[serde(default)]
    pub size_bytes: u64,
    /// How it is to be stored.
    #[serde(default)]
    pub layout: Layout,
    /// Whether missing directories above it are made.
    #[serde(default)]
    pub parents: bool,
    /// Whether it is an upload of that name: data that nobody finds by the name until [`Rename`] gives
    /// the name to it. Uploads of a directory have names of their own, which no path says, and each
    /// name has one upload at most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upload: bool,
    /// Of an upload: the one that has its name now, and is thrown away for it; whoever writes to it is
    /// fenced. Refused when the name has another one; and while what is asked for cannot be had, also
    /// with what that one has, that one stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub replaces: Option<VolumeId>,
}

/// What a name stands for, and how it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Its path.
    pub path: String,
    /// What it is.
    pub kind: Kind,
    /// Its id.
    #[schema(value_type = String)]
    pub id: VolumeId,
    /// Bytes that it can have.
    pub capacity_bytes: u64,
    /// Bytes of data, exactly; for a volume its capacity.
    pub length_bytes: u64,
    /// Milliseconds since 1970 at which it was made.
    #[schema(value_type = u64)]
    pub made: Moment,
    /// Milliseconds since 1970 at which its length was set last.
    #[schema(value_type = u64)]
    pub changed: Moment,
    /// How it is stored; none for a directory, and for what has no bytes.
    pub stored: Option<Stored>,
    /// Of an upload: bytes that the data is to have once all of it is there; none of everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_bytes: Option<u64>,
}

/// How something is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stored {
    /// 0, 1, 5, 6 or 10.
    pub level: u8,
    /// Bytes of the striping unit.
    pub chunk_len: u32,
    /// Whether the array has a log.
    pub logged: bool,
    /// Bytes of each member.
    pub member_bytes: u64,
    /// Whether the array's labels were written: before that there is nothing to read.
    pub formatted: bool,
    /// Who may write is told by this.
    #[schema(value_type = u64)]
    pub generation: Generation,
    /// In the array's order.
    pub members: Vec<StoredMember>,
    /// Why it is stored so.
    pub reasons: Vec<String>,
}

/// A member of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredMember {
    /// Who has it.
    #[schema(value_type = String)]
    pub agent: AgentId,
    /// Label of its host.
    pub host: String,
    /// Its segment.
    #[schema(value_type = String)]
    pub segment: SegmentId,
    /// Whether its agent was heard of lately.
    pub reachable: bool,
    /// Whether it took the place of a lost one, and is not known to be rebuilt.
    pub fresh: bool,
}

/// Asks for what is in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The directory; `/` is the uppermost.
    pub path: String,
    /// Names after this one; from the first when none.
    pub after: Option<String>,
    /// As many at most; 1000 when none, and at most.
    pub limit: Option<u32>,
    /// Whether uploads are listed, in the place of all else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uploads: bool,
}

/// A part of a directory, in the order of names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page {
    /// What is in it; without how it is stored.
    pub entries: Vec<Entry>,
    /// Ask for what comes after this; none at the end.
    pub next: Option<String>,
}

/// Names one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// Which.
    pub path: String,
    /// Whether it goes although somebody uses it: they are fenced.
    #[serde(default)]
    pub force: bool,
    /// Whether the upload of that name is meant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upload: bool,
    /// Removed only when it is this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub id: Option<VolumeId>,
    /// Removed only when it is of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
}

/// Gives something another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// From.
    pub from: String,
    /// To.
    pub to: String,
    /// Whether what has that name, of the same kind, is removed; it is refused otherwise.
    #[serde(default)]
    pub replace: bool,
    /// Whether that goes although somebody uses it: they are fenced.
    #[serde(default)]
    pub force: bool,
    /// Refused when `from` is anything else than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub id: Option<VolumeId>,
    /// Whether the upload of the name `from` is meant, which is data of its new name from then on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upload: bool,
}

/// What one may do with an open volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Read, beside others who do.
    Read,
    /// Read and write, alone.
    Write,
}

/// Asks for a transfer plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// What is to be opened.
    pub path: String,
    /// To do what.
    pub mode: Mode,
    /// iSCSI name of the initiator that will log in. Its tokens are good for it alone.
    pub initiator: String,
    /// Bytes a second that are to be there whatever others do; 0 for no promise.
    #[serde(default)]
    #[schema(value_type = u64)]
    pub rate: Rate,
    /// Bytes a second at most; none for no limit.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    pub limit: Option<Rate>,
    /// Bytes of the requests that it moves them in; 1 MiB when none.
    #[serde(default)]
    pub request_bytes: Option<u64>,
    /// Whether the rate is promised, and booked, while members are lost.
    #[serde(default = "yes")]
    pub degraded: bool,
    /// Milliseconds that it lasts unless it is renewed; the mediator's usual when none.
    #[serde(default)]
    pub for_ms: Option<u64>,
    /// Whether whoever has it now is fenced.
    #[serde(default)]
    pub take_over: bool,
    /// Drawn by the client, so that a request whose answer was lost gives the same plan again; one
    /// is drawn when none. After a refusal take a new one.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub plan: Option<PlanId>,
    /// Drawn by the client and kept to itself: by this it says that it has stopped ([`Close`]). A plan
    /// without can be ended only, as if its client had to be shut out.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub close_key: Option<Bearer>,
    /// Whether the upload of that name is meant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub upload: bool,
    /// Refused when the name stands for anything else than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub id: Option<VolumeId>,
    /// Refused when it is of another kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
}

/// The largest rate, and limit, that a token says, in bytes a second.
pub const RATE_MAX: Rate = Rate((1 << 48) - 1);

/// Why no plan can have such a rate and limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrongRate {
    /// More than a token says.
    #[error("{} bytes/s are the most", RATE_MAX.0)]
    TooLarge,
    /// The limit leaves less than what is promised.
    #[error("a limit below the rate, or of nothing")]
    LimitTooSmall,
}

/// Whether a plan can have this rate and limit, whatever is left of agents.
///
/// # Errors
/// When none can.
pub fn check_rates(rate: Rate, limit: Option<Rate>) -> Result<(), WrongRate> {
    if rate > RATE_MAX || limit.is_some_and(|limit| limit > RATE_MAX) {
        return Err(WrongRate::TooLarge);
    }
    if limit.is_some_and(|limit| limit < rate || limit == Rate::ZERO) {
        return Err(WrongRate::LimitTooSmall);
    }
    Ok(())
}

const fn yes() -> bool {
    true
}

/// Who moves what, where, how fast, until when.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransferPlan {
    /// Its id.
    #[schema(value_type = String)]
    pub plan: PlanId,
    /// What is open.
    pub entry: Entry,
    /// To do what.
    pub mode: Mode,
    /// The generation that it holds for.
    #[schema(value_type = u64)]
    pub generation: Generation,
    /// Milliseconds from the request that it lasts; to be renewed after a third of that.
    pub for_ms: u64,
    /// What was promised.
    #[schema(value_type = u64)]
    pub rate: Rate,
    /// Where its members are, in the array's order.
    pub members: Vec<PlanMember>,
    /// How the array was when this was granted, where its last writer closed it and said so: nobody but
    /// whoever has this plan wrote to it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_close: Option<CleanClose>,
}

/// How a writer left an array that it closed in good order, with nothing left to do. By this the rest
/// of a mirror is known to hold everything while members are away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CleanClose {
    /// The generation that the array's labels had then.
    pub generation: u64,
    /// Their epoch.
    pub epoch: u64,
    /// Segments that held everything.
    #[schema(value_type = Vec<String>)]
    pub in_sync: Vec<SegmentId>,
}

/// A member of a plan.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanMember {
    /// Whose it is.
    #[schema(value_type = String)]
    pub agent: AgentId,
    /// Its segment.
    #[schema(value_type = String)]
    pub segment: SegmentId,
    /// Address and port; LUN 0 of [`Self::target`] is the segment.
    pub portal: String,
    /// iSCSI name.
    pub target: String,
    /// CHAP name: the token.
    pub chap_name: String,
    /// CHAP secret.
    pub chap_secret: String,
    /// What is booked there, bytes a second.
    #[schema(value_type = u64)]
    pub rate: Rate,
    /// Whether its agent was heard of lately, and lets this plan in.
    pub reachable: bool,
    /// Whether it was put in the place of a lost one since the array was opened last: it is to be
    /// rebuilt.
    pub fresh: bool,
}

impl std::fmt::Debug for PlanMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { agent, segment, portal, .. } = self;
        write!(f, "PlanMember {{ {agent}, {segment}, {portal} }}")
    }
}

impl std::fmt::Debug for TransferPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { plan, generation, members, .. } = self;
        write!(f, "TransferPlan {{ {plan}, {generation:?}, {members:?} }}")
    }
}

/// Says what became of a volume that is open for writing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetState {
    /// The array's labels are written.
    #[serde(default)]
    pub formatted: bool,
    /// How many bytes data has, exactly.
    #[serde(default)]
    pub length_bytes: Option<u64>,
    /// Segments that were fresh, and are rebuilt. What is no member any more is passed over.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub rebuilt: Vec<SegmentId>,
}

/// Gives a plan back: nothing that was asked for under it is under way any more, nor ever will be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// What the client drew for that when it opened.
    #[schema(value_type = String)]
    pub key: Bearer,
    /// How it left the array, if it could write and closed that in good order; what it was told of that
    /// when it opened, if it never began to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_close: Option<CleanClose>,
}

/// Asks for a segment elsewhere in the place of one that is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// Which member, by index.
    pub member: u16,
    /// The segment that is lost: nothing happens when another has its place already.
    #[schema(value_type = String)]
    pub segment: SegmentId,
}

/// A plan in force, without what opens anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanEntry {
    /// Its id.
    #[schema(value_type = String)]
    pub plan: PlanId,
    /// What is open.
    pub path: String,
    /// To do what.
    pub mode: Mode,
    /// By which initiator.
    pub initiator: String,
    /// What was promised.
    #[schema(value_type = u64)]
    pub rate: Rate,
    /// When its tokens end unless it is renewed, by the mediator's clock.
    #[schema(value_type = u64)]
    pub until: Moment,
    /// The process that has it; none where that was not heard of since the mediator started, and for whoever does not know
    /// this field (before version 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub process: Option<Process>,
    /// Milliseconds since that was heard of last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
}

/// The client of a plan says that it is there (since version 3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanBeat {
    /// Which process it is.
    #[schema(value_type = Object)]
    pub process: Process,
}

/// The plan is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanBeaten {
    /// How often it is to be heard of, in milliseconds.
    pub beat_ms: u64,
}

/// A part of the plans, by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanPage {
    /// In order.
    pub entries: Vec<PlanEntry>,
    /// Ask for what comes after this; none at the end.
    #[schema(value_type = Option<String>)]
    pub next: Option<PlanId>,
}

/// An agent asks to be used.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// How it is.
    #[schema(value_type = Object)]
    pub status: AgentStatus,
    /// The bearer token that it wants to hear from this mediator.
    pub token: String,
    /// Whom the mediator has to trust when it calls, in PEM; none without TLS.
    pub authority: Option<String>,
}

/// An agent is taken.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Joined {
    /// Who has taken it.
    #[schema(value_type = String)]
    pub mediator: MediatorId,
    /// The bearer token that it says from now on.
    pub token: String,
    /// How often it is to be heard of, in milliseconds.
    pub beat_ms: u64,
    /// The keys that verify the mediator's tokens.
    #[schema(value_type = Object)]
    pub keys: StoredRing,
}

/// An agent says that it is there.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Beat {
    /// How it is.
    #[schema(value_type = Object)]
    pub status: AgentStatus,
    /// Tells which of the mediator's keys it has; empty for none.
    pub keys_mark: String,
    /// What its clock showed when it said so; none of one that does not say that (before version 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub clock: Option<Moment>,
}

/// What an agent is to know.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Beaten {
    /// How often it is to be heard of, in milliseconds.
    pub beat_ms: u64,
    /// New keys, in the place of all that it has of this mediator.
    #[schema(value_type = Option<Object>)]
    pub keys: Option<StoredRing>,
    /// Nothing new is made on it.
    pub draining: bool,
    /// It was retired: it may forget the mediator.
    pub retired: bool,
    /// Milliseconds by which its clock is ahead of the mediator's, less than zero where it is behind; none where it did not
    /// say what its clock shows (before version 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
}

/// An agent, as the mediator knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentEntry {
    /// What it said last.
    #[schema(value_type = Object)]
    pub status: AgentStatus,
    /// What it is.
    pub state: AgentState,
    /// Milliseconds since it was heard of last.
    pub silent_ms: u64,
    /// Segments of this mediator on it.
    pub segments: u64,
    /// The version of documents that is spoken with it; none while it was not heard of, and for whoever does not
    /// know this field (version 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<u32>,
    /// Milliseconds by which its clock is ahead of the mediator's, less than zero where it is behind; none where it does
    /// not say what its clock shows, and for whoever does not know this field (before version 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_ms: Option<i64>,
}

impl AgentEntry {
    /// As it is told to whoever speaks this version of documents.
    #[must_use]
    pub fn as_of(self, version: u32) -> Self {
        let documents = self.documents.filter(|_| version >= WITH_SHARES);
        let clock_ahead_ms = self.clock_ahead_ms.filter(|_| version >= WITH_BEATS);
        Self { documents, clock_ahead_ms, ..self }
    }
}

/// What an agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// It takes new segments.
    InService,
    /// It takes none.
    Draining,
    /// It was not heard of lately.
    Away,
}

/// Asks for a bearer token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAccess {
    /// What whoever has it may do.
    pub role: Role,
    /// Who that is, for the audit log.
    pub name: String,
    /// Milliseconds after which it is no longer good; for ever when none.
    #[serde(default)]
    pub for_ms: Option<u64>,
}

/// A bearer token, without itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessEntry {
    /// Its number.
    pub id: u64,
    /// What whoever has it may do.
    pub role: Role,
    /// Who that is.
    pub name: String,
    /// When it was made.
    #[schema(value_type = u64)]
    pub made: Moment,
    /// When it ends.
    #[schema(value_type = Option<u64>)]
    pub until: Option<Moment>,
}

/// A new bearer token: shown this once.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// What it is.
    pub entry: AccessEntry,
    /// The token.
    pub token: String,
}

/// The most that could be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Offer {
    /// Bytes a second, with all else as it was asked for.
    #[schema(value_type = u64)]
    pub rate: Rate,
    /// Why not more, and what it would be.
    pub reasons: Vec<String>,
}

/// What agents have booked against what the mediator's store says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckReport {
    /// Agents that answered.
    pub agents: u32,
    /// Agents that did not, by id.
    #[schema(value_type = Vec<String>)]
    pub silent: Vec<AgentId>,
    /// Allotments that both know.
    pub allotments: u64,
    /// Segments that both know.
    pub segments: u64,
    /// What does not agree, and is not under way.
    pub differences: Vec<Difference>,
}

/// Something on which an agent and the store do not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// On which agent.
    #[schema(value_type = String)]
    pub agent: AgentId,
    /// Kind of difference.
    pub kind: DifferenceKind,
    /// The allotment's or segment's id.
    pub id: String,
    /// What each says.
    pub detail: String,
}

/// Kinds of differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The agent has it, the store does not know it.
    Leaked,
    /// The store has it, the agent does not.
    Missing,
    /// Both have it, and not the same.
    Different,
    /// Both have it, and its data is gone on the agent: it is to be rebuilt elsewhere.
    Lost,
    /// What the agent says that it has cannot be so: it is at fault, or lies.
    Implausible,
}

/// How a mediator is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediatorStatus {
    /// Who it is.
    #[schema(value_type = String)]
    pub mediator: MediatorId,
    /// Names that there are.
    pub names: u64,
    /// Plans in force.
    pub plans: u64,
    /// Agents.
    pub agents: u32,
    /// Agents that were heard of lately.
    pub reachable: u32,
    /// Bookings under way.
    pub bookings: u64,
}
