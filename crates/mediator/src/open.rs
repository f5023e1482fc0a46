//! Transfer plans: the lease first, then its generation on the agents, then rates, then tokens.
//!
//! Whatever fails takes the plan back. Tokens leave when all that they rest on is stored, here and on
//! the agents.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use netraid_block::narrow;
use netraid_cluster::{
    Code, Problem,
    access::{Bearer, Role},
    agent::{Done, Fault, FaultCode, Operation, rates_of},
    mediator::{Mode, Offer, Open, PlanMember, RATE_MAX, TransferPlan, check_rates},
    now,
};
use netraid_control::{
    booking::{self, Outcome},
    derived::{Ranges, Rights, Terms},
    fencing::{self, Unfit},
    lease::{Access, LeaseState, READERS_OF_ONE_MAX, Request, TERM_MS_MAX},
    ledger::{Hold, Purpose},
    placement::Load,
    promise,
    raise::{Said, Told},
    text,
    token::{Initiator, Rates, SKEW_MS, Token},
    units::{AgentId, Generation, Moment, PlanId, Rate, Resources, VolumeId},
};
use netraid_raid::member::{MemberIndex, MemberSet};
use rusqlite::Connection;

use crate::{
    access::{self, Caller},
    book::{self, HOLD_MS, Work, book},
    clients,
    core::{BusyGuard, Core},
    create::{entry, refusal, silent, unavailable},
    end::end_plan,
    link::AskError,
    lock,
    names::{self, Name, Path},
    plan::{self, Part, Plan, Record},
    renew::{renew_lease, renew_opened},
    store::{Sql, change},
    takeover,
    volume::{Member, Placed, State, Volume, members_that},
};

/// How long one agent is waited for: others of the volume may be enough.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(3);
/// How long a request of the same plan is waited for, in looks of [`LOOK`].
const LOOKS_MAX: u32 = 100;
/// From one look to the next.
const LOOK: Duration = Duration::from_millis(100);
/// How often rates are booked anew when agents refuse what they said they have.
const ATTEMPTS_MAX: usize = 3;
/// Bytes of an iSCSI name (RFC 7143, section 4.2.7.1).
const INITIATOR_LEN_MAX: usize = 223;
/// Plans of one bearer token that were closed and whose tokens have not ended, at most: half of what an agent
/// can keep out.
const CLOSED_OF_ONE_MAX: usize = 1 << 15;
/// The longest that a client can be told.
const FOR_MS_MAX: u64 = TERM_MS_MAX - SKEW_MS;
/// Of all tokens: what is left over is shared evenly.
const WEIGHT: u16 = 100;

/// A plan with what it is of.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) plan: Plan,
    pub(crate) volume: Volume,
    pub(crate) name: Name,
    pub(crate) path: Path,
}

impl Opened {
    pub(crate) fn placed(&self) -> Result<&Placed, Problem> {
        let placed = self.volume.record.placed.as_ref();
        placed.ok_or_else(|| Problem::internal("a plan of what lies nowhere"))
    }

    /// How many members may be lost while the rate is there.
    pub(crate) fn lost(&self) -> Result<u8, Problem> {
        let tolerance = narrow(self.placed()?.geometry()?.tolerance());
        let survives = self.volume.record.layout.survives.min(tolerance);
        Ok(if self.plan.record.degraded { survives } else { 0 })
    }

    /// What each member has to give for the plan's rate.
    pub(crate) fn resources(&self) -> Result<Option<Resources>, Problem> {
        let rate = promise::booked(self.plan.record.rate, self.lost()? > 0);
        let rates = self.load()?.rates(rate);
        Ok(rates.map(|(device, network)| Resources { space_bytes: 0, device, network }))
    }

    pub(crate) fn load(&self) -> Result<Load, Problem> {
        let kind = self.volume.record.kind;
        self.placed()?.load(kind, self.plan.record.request_bytes, self.lost()?)
    }
}

/// Gives a plan, or says what could be had.
pub(crate) async fn open(
    core: &Arc<Core>,
    caller: &Caller,
    open: Open,
) -> Result<TransferPlan, Problem> {
    let path = Path::new(&open.path, open.upload)?;
    let for_ms = check(core, &open)?;
    let id = open.plan.unwrap_or_else(|| PlanId(rand::random()));
    let _busy = alone_with(core, id).await?;
    let owner = (caller.id, caller.role);
    let paths = [path.clone()];
    // Who may only read shuts nobody out.
    let may_end = caller.role != Role::Reader && !open.take_over;
    let follows = may_end && clients::are_gone(core, &path, open.mode).await?;
    let mut take_over = match open.take_over || follows {
        true => takeover::judge(core, (&path, id), &open, for_ms).await?,
        false => None,
    };
    if follows && take_over.is_some() {
        // They may have been heard of since.
        if clients::are_gone(core, &path, open.mode).await? {
            tracing::warn!("{path} is taken over: the clients that have it are silent");
            core.note(
                caller,
                &format!("take {path} over from silent clients"),
                &Ok::<_, Problem>(()),
            );
        } else {
            take_over = None;
        }
    }
    let begun = change(&core.store, move |connection| {
        begin(connection, (&path, take_over), &open, id, owner, for_ms)
    });
    let (mut opened, is_new) = match begun.await {
        Ok(begun) => begun,
        Err(problem) => return Err(clients::with_holder(core, problem, &paths).await),
    };
    if !is_new {
        return renew_opened(core, opened).await;
    }
    let granted = match prepare(core, &mut opened).await {
        Ok(reachable) => issue(core, &opened, reachable),
        Err(problem) => Err(problem),
    };
    if granted.is_err() {
        take_back(core, opened.plan).await?;
    }
    granted
}

/// Alone with a plan from then on: a request that was sent before, and whose client asks again, is waited for.
async fn alone_with(core: &Core, id: PlanId) -> Result<BusyGuard<PlanId>, Problem> {
    for _ in 0..LOOKS_MAX {
        if let Some(busy) = core.busy_plans.enter(id) {
            return Ok(busy);
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(Problem::new(Code::Unavailable, format!("plan {id} is under way; ask again")))
}

/// Takes back a plan that is not given: its lease is free, and what agents have for it ends. Those that
/// do not answer are told again in the background, as are all where this is not stored.
async fn take_back(core: &Arc<Core>, plan: Plan) -> Result<(), Problem> {
    let id = plan.id;
    let left = change(&core.store, move |connection| {
        // Nobody has its tokens, also where nothing more was to be stored for it.
        if let Some(plan) = Plan::load(connection, id)?
            && plan.state == plan::State::Open
        {
            plan::set_state(connection, id, plan::State::Opening)?;
        }
        book::abandon(connection, id)?;
        Plan::load(connection, id).map(Ok)
    });
    let left = left.await;
    let ending = match &left {
        Ok(left) => left.clone(),
        Err(_) => Some(plan),
    };
    if let Some(plan) = ending {
        let _ = tokio::time::timeout(ASK_LIMIT, end_plan(core, plan)).await;
    }
    left.map(drop)
}

fn check(core: &Core, open: &Open) -> Result<u64, Problem> {
    let Open { initiator, rate, limit, .. } = open;
    check_rates(*rate, *limit).map_err(|wrong| Problem::invalid(wrong.to_string()))?;
    if initiator.is_empty() || initiator.len() > INITIATOR_LEN_MAX {
        let detail = format!("an initiator's name has 1 to {INITIATOR_LEN_MAX} bytes");
        return Err(Problem::invalid(detail));
    }
    text::check(initiator, INITIATOR_LEN_MAX)
        .map_err(|why| Problem::invalid(format!("the initiator's name {why}")))?;
    let for_ms = open.for_ms.unwrap_or(core.term_ms);
    match for_ms {
        1..=FOR_MS_MAX => Ok(for_ms),
        _ => Err(Problem::invalid(format!("a plan lasts 1 to {FOR_MS_MAX} ms"))),
    }
}

/// Gives the lease, in one change with the plan; or finds the plan that was given before.
fn begin(
    connection: &Connection,
    (path, take_over): (&Path, Option<Generation>),
    open: &Open,
    id: PlanId,
    (owner, role): (u64, Role),
    for_ms: u64,
) -> Sql<Result<(Opened, bool), Problem>> {
    let name = match names::find(connection, path)? {
        Ok(name) => name,
        Err(problem) => return Ok(Err(problem)),
    };
    if open.id.is_some_and(|id| id != name.id) {
        return Ok(Err(names::other(path)));
    }
    if let Err(problem) = names::check_kind(&name, path, open.kind) {
        return Ok(Err(problem));
    }
    let Some(mut volume) = Volume::load(connection, name.id)? else {
        let detail = format!("{path} is a directory, and has no bytes; `netraid ls` lists it");
        return Ok(Err(Problem::invalid(detail)));
    };
    let Some(placed) = volume.record.placed.clone().filter(|_| volume.state == State::Ready) else {
        return Ok(Err(Problem::invalid(format!("{path} has no bytes: there is nothing to open"))));
    };
    let access = match open.mode {
        Mode::Read => Access::Read,
        Mode::Write => Access::Write,
    };
    if !access::is_good(connection, owner)? {
        return Ok(Err(taken_back()));
    }
    let before = Plan::load(connection, id)?;
    if let Some(plan) = before {
        let record = &plan.record;
        let is_same = plan.volume == volume.id
            && plan.owner == owner
            && plan.state == plan::State::Open
            && (record.mode, &record.initiator, record.rate)
                == (open.mode, &open.initiator, open.rate)
            && record.close_key == open.close_key.as_ref().map(Bearer::digest);
        if !is_same {
            let detail = format!("plan {id} is something else, or over; take a new one");
            return Ok(Err(Problem::new(Code::Conflict, detail)));
        }
        return renew_lease(connection, plan).map(|opened| Ok((opened?, false)));
    }
    let own = Plan::count_of(connection, volume.id, owner)?;
    if access == Access::Read && role != Role::Admin && own >= READERS_OF_ONE_MAX {
        let detail = format!(
            "{own} plans of the same bearer token read {path}, and no more may; close one, or use \
             another access file"
        );
        return Ok(Err(Problem::new(Code::Conflict, detail)));
    }
    let closed = Plan::count_closed(connection, owner)?;
    if closed >= CLOSED_OF_ONE_MAX {
        let detail = format!(
            "{closed} plans of the same bearer token were closed whose tokens have not ended, and no more \
             may; ask for shorter plans (for_ms), or again in a while"
        );
        return Ok(Err(Problem::new(Code::Conflict, detail)));
    }
    let mut record = Record::new(open, for_ms, placed.agents().collect());
    record.clean_close = volume.clean_close().cloned();
    let request = Request { plan: id, access, term_ms: record.lease_ms(), take_over };
    let (lease, granted) = match volume.lease.open(now(), &request) {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(Problem::new(Code::Conflict, error.to_string()))),
    };
    for (_, old) in volume.lease.holders() {
        if !lease.holders().any(|(_, new)| new.plan == old.plan) {
            plan::set_state(connection, old.plan, plan::State::Ending)?;
        }
    }
    volume.lease = lease;
    // With the generation goes what is known of the one before.
    volume.save_lease(connection)?;
    // Nothing more is to be stored for it.
    let is_done = open.rate == Rate::ZERO && !granted.must_raise;
    let state = if is_done { plan::State::Open } else { plan::State::Opening };
    let plan = Plan { id, volume: volume.id, owner, until: granted.until, state, record };
    plan.insert(connection)?;
    Ok(Ok((Opened { plan, volume, name, path: path.clone() }, true)))
}

fn taken_back() -> Problem {
    Problem::new(Code::Unauthorized, "the bearer token has ended, or was taken back")
}

/// What tokens need: the generation on the agents, and rates. Says which members can be used.
async fn prepare(core: &Arc<Core>, opened: &mut Opened) -> Result<MemberSet, Problem> {
    let reachable = reach(core, opened).await?;
    let id = opened.plan.id;
    if opened.plan.record.rate > Rate::ZERO {
        book_rates(core, opened, reachable).await?;
    }
    if opened.plan.state == plan::State::Opening {
        change(&core.store, move |connection| finish_opening(connection, id)).await?;
    }
    opened.plan.state = plan::State::Open;
    Ok(reachable)
}

/// All that a plan's tokens need is there. Refuses when the plan was ended meanwhile.
fn finish_opening(connection: &Connection, id: PlanId) -> Sql<Result<(), Problem>> {
    match Plan::load(connection, id)?.map(|plan| plan.state) {
        Some(plan::State::Opening) => plan::set_state(connection, id, plan::State::Open)?,
        Some(plan::State::Open) => {}
        Some(plan::State::Ending | plan::State::Closed) | None => {
            let detail = format!("plan {id} was ended while it was being opened; ask again");
            return Ok(Err(Problem::new(Code::Conflict, detail)));
        }
    }
    Ok(Ok(()))
}

/// Members that can be used: whose agents are there, and have the generation. Refuses when they are
/// too few to serve, or when those that do not have it are enough for somebody who was shut out.
async fn reach(core: &Arc<Core>, opened: &mut Opened) -> Result<MemberSet, Problem> {
    let (reachable, left_out) = raise_for(core, opened).await?;
    let named = named(core, &left_out);
    let volume = &opened.volume;
    let generation = volume.lease.generation();
    let quiet_at = volume.lease.quiet_at();
    let refused = match fencing::judge(&opened.placed()?.geometry()?, reachable) {
        Ok(()) => return Ok(reachable),
        Err(refused) => refused,
    };
    let Unfit::Unfenced { late, all } = refused else {
        return Err(Problem::new(Code::Unavailable, format!("{refused}{named}")));
    };
    if !volume.lease.is_raised() && now() < quiet_at {
        let detail = format!(
            "{late} of {all} agents do not know generation {} yet, and serve whoever had the volume \
             before, who may go on until {} ms since 1970{named}; ask again when they can be reached, or \
             then",
            generation.0, quiet_at.0
        );
        return Err(Problem::new(Code::Unavailable, detail));
    }
    Ok(reachable)
}

pub(crate) fn has(set: MemberSet, at: usize) -> bool {
    u8::try_from(at).is_ok_and(|at| set.contains(MemberIndex(at)))
}

/// Agents that answer, and are left out all the same.
#[derive(Debug, Default)]
struct LeftOut {
    contradicting: Vec<AgentId>,
    refusing: Vec<(AgentId, Fault)>,
}

/// What is said of agents that contradict the volume's generation or refuse it; nothing of none.
fn named(core: &Core, left_out: &LeftOut) -> String {
    let refusals = left_out.refusing.iter();
    let refusals: String =
        refusals.map(|(agent, fault)| format!(" ({})", refusal(core, *agent, fault))).collect();
    let names: Vec<String> = left_out.contradicting.iter().map(ToString::to_string).collect();
    let contradicting = match names.is_empty() {
        true => String::new(),
        false => format!(
            " (agent {} contradicts the volume's generation, and is left out: retire it, or look at what \
             runs there)",
            names.join(", agent ")
        ),
    };
    format!("{contradicting}{refusals}")
}

/// Members whose agents are there, and have the generation, one that they have seen for nobody else; and
/// agents that answer without that.
async fn raise_for(core: &Arc<Core>, opened: &mut Opened) -> Result<(MemberSet, LeftOut), Problem> {
    let is_known = lock(&core.known).contains(&opened.volume.id);
    let members = opened.placed()?.members.clone();
    if opened.volume.lease.is_raised() && is_known {
        let there = members_that(&members, |_, member| core.agents.is_reachable(member.agent));
        return Ok((there, LeftOut::default()));
    }
    // Each turn but the last one believes an agent that was not believed before.
    for _ in 0..=members.len() {
        let Raised { confirmed, surpassed, contradicting, refusing } =
            raise(core, &opened.volume).await;
        let Some(seen) = surpassed.iter().map(|(_, seen)| *seen).max() else {
            return Ok((confirmed, LeftOut { contradicting, refusing }));
        };
        let (id, plan) = (opened.volume.id, opened.plan.id);
        for (agent, _) in surpassed {
            lock(&core.beliefs).believe(id, agent);
        }
        let lifted = change(&core.store, move |connection| lift(connection, id, plan, seen));
        opened.volume = lifted.await?;
        opened.plan.record.clean_close = None;
    }
    Err(Problem::new(Code::Unavailable, "agents do not agree on a generation; ask again"))
}

/// Takes a generation that no agent has seen, for a plan that nobody has tokens of.
fn lift(
    connection: &Connection,
    id: VolumeId,
    plan: PlanId,
    seen: Generation,
) -> Sql<Result<Volume, Problem>> {
    let gone = || Problem::new(Code::Conflict, "it was opened or removed meanwhile; ask again");
    let volume = Volume::load(connection, id)?;
    let is_its = |volume: &Volume| volume.lease.holders().any(|(_, holder)| holder.plan == plan);
    let Some(mut volume) = volume.filter(is_its) else { return Ok(Err(gone())) };
    let lease = match volume.lease.surpassed(now(), seen, plan) {
        Ok(lease) => lease,
        Err(spent) => return Ok(Err(Problem::new(Code::Conflict, spent.to_string()))),
    };
    for (_, old) in volume.lease.holders().filter(|(_, old)| old.plan != plan) {
        plan::set_state(connection, old.plan, plan::State::Ending)?;
    }
    volume.lease = lease;
    volume.save_lease(connection)?;
    forget_close(connection, plan)?;
    Ok(Ok(volume))
}

/// How a volume was left is known from a time before others had it: a plan must not rest on that.
pub(crate) fn forget_close(connection: &Connection, id: PlanId) -> Sql<()> {
    if let Some(mut plan) = Plan::load(connection, id)?
        && plan.record.clean_close.take().is_some()
    {
        plan.save(connection)?;
    }
    Ok(())
}

/// What agents say to a generation.
#[derive(Debug, Default)]
pub(crate) struct Raised {
    /// Members whose agents have it.
    pub(crate) confirmed: MemberSet,
    /// Agents that have one which the store does not know, and which.
    pub(crate) surpassed: Vec<(AgentId, Generation)>,
    /// Agents that say what cannot be, or what they were believed before.
    pub(crate) contradicting: Vec<AgentId>,
    /// Agents that refuse to take it, and why.
    pub(crate) refusing: Vec<(AgentId, Fault)>,
}

/// Raises a volume's generation on its agents.
pub(crate) async fn raise(core: &Core, volume: &Volume) -> Raised {
    let members = volume.record.placed.as_ref().map_or(&[][..], |placed| &placed.members);
    let generation = volume.lease.generation();
    let one = |member: &Member| raise_one(core, *member, (volume.id, &volume.lease));
    let (told, faults): (Vec<_>, Vec<_>) =
        join_all(members.iter().map(one)).await.into_iter().unzip();
    let confirmed = members_that(members, |at, _| told[at] == Told::Raised);
    let all = told.iter().all(|told| *told == Told::Raised);
    let refusing = members.iter().zip(faults);
    let refusing = refusing.filter_map(|(member, fault)| Some((member.agent, fault?))).collect();
    let mut raised = Raised { confirmed, refusing, ..Raised::default() };
    for (member, told) in members.iter().zip(told) {
        match told {
            Told::Surpassed(seen) => raised.surpassed.push((member.agent, seen)),
            Told::Contradicts => raised.contradicting.push(member.agent),
            Told::Raised | Told::Nothing => {}
        }
    }
    if let Some((agent, seen)) = raised.surpassed.iter().max_by_key(|(_, seen)| *seen) {
        tracing::warn!(
            "volume {}: agent {agent} has generation {}, the store {}: the store is an older copy, or \
             the agent lies; opening the volume anew goes beyond that",
            volume.id,
            seen.0,
            generation.0
        );
    }
    if all {
        lock(&core.known).insert(volume.id);
    }
    if all && !volume.lease.is_raised() {
        let id = volume.id;
        let stored = change(&core.store, move |connection| {
            if let Some(mut volume) = Volume::load(connection, id)? {
                volume.lease = volume.lease.raised(generation);
                volume.save_lease(connection)?;
            }
            Ok(Ok(()))
        });
        // It only saves asking again.
        let _ = stored.await;
    }
    raised
}

/// Raises the generation of one member. Why its agent refuses is told as well, if it does.
pub(crate) async fn raise_one(
    core: &Core,
    member: Member,
    (volume, lease): (VolumeId, &LeaseState),
) -> (Told, Option<Fault>) {
    let Member { agent, segment, .. } = member;
    let (generation, taken_by) = (lease.generation(), lease.taken_by());
    let operation = Operation::RaiseGeneration { segment, generation, taken_by };
    let asked = core.agents.ask(agent, operation);
    let (said, fault) = match tokio::time::timeout(ASK_LIMIT, asked).await {
        Ok(Ok(Done::Raised { generation, taken_by })) => {
            (Some(Said { generation, taken_by }), None)
        }
        Ok(Err(AskError::Fault(fault))) => (None, Some(fault)),
        _ => (None, None),
    };
    let mut beliefs = lock(&core.beliefs);
    let told = beliefs.judge((volume, agent), lease, said);
    if told == Told::Contradicts && beliefs.name(volume, agent) {
        tracing::error!(
            "agent {agent}: segment {segment}: says generation {}, and generation {} is in force: it is \
             taken for one that does not answer; retire it, or look at what runs there",
            said.map_or(0, |said| said.generation.0),
            generation.0
        );
    }
    (told, fault)
}

/// Books the plan's rate on all members that can be used.
async fn book_rates(
    core: &Arc<Core>,
    opened: &mut Opened,
    mut reachable: MemberSet,
) -> Result<(), Problem> {
    let lost = opened.lost()?;
    let load = opened.load()?;
    let rate = opened.plan.record.rate;
    let members = opened.placed()?.members.clone();
    let resources = opened.resources()?;
    let mut last = Problem::new(Code::Unavailable, "agents refuse; ask again");
    for _ in 0..ATTEMPTS_MAX {
        let missing = members.len() - narrow::<_, usize>(reachable.len());
        if missing > usize::from(lost) {
            let detail = format!(
                "{missing} of {} agents cannot be reached, and the rate is not promised without \
                 them; ask again, or for a promise that holds meanwhile",
                members.len()
            );
            return Err(Problem::new(Code::Unavailable, detail));
        }
        let on: Vec<Member> =
            (0..).zip(&members).filter(|(at, _)| has(reachable, *at)).map(|(_, on)| *on).collect();
        let Some(resources) = resources else {
            let why = "no agent has such rates";
            return Err(short(core, (&load, lost > 0), &on, (why, &nothing_freed)));
        };
        let parts = plan_parts(&on, resources);
        let work = Work::Open { plan: opened.plan.id, parts: parts.clone() };
        match book(core, &booking_parts(opened, &parts), work).await {
            Outcome::Booked => {
                opened.plan.record.parts = parts;
                return Ok(());
            }
            Outcome::Refused(agent, fault) if fault.code == FaultCode::Short => {
                let is_free = release(core, opened.plan.id, &on).await;
                core.agents.refresh(on.iter().map(|member| member.agent)).await;
                let why = refusal(core, agent, &fault);
                last = short(core, (&load, lost > 0), &on, (&why, &nothing_freed));
                let most = last.offer.as_ref().map_or(Rate::ZERO, |offer| offer.rate);
                // A release that is late would take away what is booked next.
                if most < rate || !is_free {
                    return Err(last);
                }
            }
            Outcome::Refused(agent, fault) => {
                last = unavailable(core, agent, &fault);
                // Only an agent that is away is left out: the others promise the rate without it.
                if fault.code != FaultCode::Failed || core.agents.is_reachable(agent) {
                    return Err(last);
                }
                reachable = (0..)
                    .map(MemberIndex)
                    .zip(&members)
                    .filter(|(at, member)| reachable.contains(*at) && member.agent != agent)
                    .map(|(at, _)| at)
                    .collect();
            }
            Outcome::TooLate(agent) => {
                return Err(silent(core, agent));
            }
            Outcome::NotStored => {
                return Err(crate::store::refusal(core.store.is_full()));
            }
        }
    }
    Err(last)
}

/// Releases what members have booked for a plan that others refuse: it would count against what can be
/// offered. Whether all of them have.
async fn release(core: &Core, plan: PlanId, members: &[Member]) -> bool {
    let one =
        |member: &Member| core.agents.ask(member.agent, Operation::Release { id: rates_of(plan) });
    let all = join_all(members.iter().map(one));
    let released = tokio::time::timeout(ASK_LIMIT, all).await;
    released.is_ok_and(|all| all.iter().all(Result::is_ok))
}

pub(crate) fn plan_parts(members: &[Member], resources: Resources) -> Vec<Part> {
    let part = |member: &Member| Part { agent: member.agent, segment: member.segment, resources };
    members.iter().map(part).collect()
}

/// What is to be booked for a plan.
pub(crate) fn booking_parts(opened: &Opened, parts: &[Part]) -> Vec<booking::Part> {
    let (plan, generation) = (&opened.plan, opened.volume.lease.generation());
    let part = |part: &Part| rates_part(plan, generation, part, Purpose::Client);
    parts.iter().map(part).collect()
}

pub(crate) fn rates_part(
    plan: &Plan,
    generation: Generation,
    part: &Part,
    purpose: Purpose,
) -> booking::Part {
    booking::Part {
        agent: part.agent,
        hold: Hold {
            id: rates_of(plan.id),
            segment: part.segment,
            generation: Some(generation),
            purpose,
            resources: part.resources,
            for_ms: HOLD_MS,
        },
        lease_ms: Some(plan.record.lease_ms()),
    }
}

const fn nothing_freed(_: &Member) -> Resources {
    Resources { space_bytes: 0, device: Rate::ZERO, network: Rate::ZERO }
}

/// The refusal of a rate, with the most that the members have left, and what is `freed` for it.
pub(crate) fn short(
    core: &Core,
    (load, is_degraded): (&Load, bool),
    members: &[Member],
    (why, freed): (&str, &dyn Fn(&Member) -> Resources),
) -> Problem {
    let left = |member: &Member| {
        let status = core.agents.status(member.agent);
        let left = status.map_or(Resources::default(), |status| status.left);
        let most = load.most(&left.checked_add(freed(member)).unwrap_or(left));
        promise::promised(most, is_degraded)
    };
    let scarce = members.iter().map(|member| (left(member), member.agent)).min();
    let (rate, agent) = scarce.map_or((Rate::ZERO, None), |(rate, agent)| (rate, Some(agent)));
    let mut reasons = Vec::new();
    if let Some(agent) = agent {
        reasons.push(format!("agent {agent} has the least left of this volume's"));
    }
    Problem { code: Code::Short, detail: why.to_owned(), offer: Some(Offer { rate, reasons }) }
}

/// Signs the tokens of a plan.
pub(crate) fn issue(
    core: &Core,
    opened: &Opened,
    reachable: MemberSet,
) -> Result<TransferPlan, Problem> {
    let (plan, volume, placed) = (&opened.plan, &opened.volume, opened.placed()?);
    assert_eq!(plan.volume, volume.id, "tokens of plan {} for what it is of", plan.id);
    let is_held = volume.lease.holders().any(|(_, holder)| holder.plan == plan.id);
    assert!(is_held, "plan {} gets tokens of a volume that it has not", plan.id);
    let record = &plan.record;
    let limit = match record.limit {
        // More than a token can say is no limit.
        Some(limit) => {
            let of_member = opened.load()?.rates(limit).map(|(device, _)| device);
            of_member.filter(|limit| *limit <= RATE_MAX)
        }
        None => None,
    };
    let generation = volume.lease.generation();
    let rights = match record.mode {
        Mode::Write => Rights::ALL,
        // A client that reads makes sure of nothing, but may ask.
        Mode::Read => Rights::READ.and(Rights::FLUSH),
    };
    let now = now();
    let ring = lock(&core.keys).clone();
    let member = |(at, member): (usize, &Member)| {
        let booked = record.booked(member.segment);
        let floor = booked.device;
        let limit = limit.map(|limit| limit.max(floor).max(Rate(1)));
        let terms = Terms {
            ranges: Ranges::WHOLE,
            rights,
            append_only: false,
            generation,
            expires: plan.until,
        };
        let token = Token {
            mediator: core.id,
            key: Default::default(),
            agent: member.agent,
            segment: member.segment,
            plan: plan.id,
            initiator: Initiator::named(&record.initiator),
            terms,
            rates: Rates { floor, limit, weight: WEIGHT },
            not_before: Moment(now.0.min(plan.until.0.saturating_sub(1))),
        };
        let credentials =
            token.issue(&ring, now).map_err(|error| Problem::internal(error.to_string()))?;
        let place = core.agents.place(member.agent);
        Ok(PlanMember {
            agent: member.agent,
            segment: member.segment,
            portal: place.portal,
            target: place.target,
            chap_name: credentials.name,
            chap_secret: credentials.secret.expose().to_owned(),
            rate: floor,
            reachable: has(reachable, at),
            fresh: member.is_fresh,
        })
    };
    let members = placed.members.iter().enumerate().map(member).collect::<Result<_, Problem>>()?;
    // A promise of which too much has ended meanwhile is none.
    let unbooked = placed.members.iter().filter(|member| {
        record.rate > Rate::ZERO && record.booked(member.segment) == Resources::default()
    });
    let holds = unbooked.count() <= usize::from(opened.lost()?);
    Ok(TransferPlan {
        plan: plan.id,
        entry: entry(core, &opened.name, opened.path.text(), Some(volume)),
        mode: record.mode,
        generation,
        for_ms: record.for_ms,
        rate: if holds { record.rate } else { Rate::ZERO },
        members,
        clean_close: record.clean_close.clone(),
    })
}
