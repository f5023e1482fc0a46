//! What may refuse a take-over: asked before anybody is shut out.
//!
//! Whoever is shut out is so for good. So agents are asked whether they answer, and what they have left,
//! before the lease is given: a refusal leaves the holder as it is. What changes between that and the
//! grant can still refuse.

use std::sync::Arc;

use netraid_cluster::{Code, Problem, mediator::Mode, mediator::Open, now};
use netraid_control::{
    fencing,
    lease::{Access, Conflict},
    units::{Generation, Moment, PlanId, Rate, Resources},
};
use rusqlite::Connection;

use crate::{
    core::Core,
    names::{self, Path},
    open::{Opened, has, short},
    plan::{self, Part, Plan, Record},
    store::{Sql, look},
    volume::{Member, State, Volume, members_that},
};

/// A volume that somebody has, who is to be shut out.
struct Held {
    /// As it would be opened.
    opened: Opened,
    /// What the plans that are to be shut out have booked: it is free then.
    freed: Vec<Part>,
    /// Who stands in the way.
    conflict: Conflict,
}

/// The generation that a volume may be taken over from, if somebody has it; none when nobody has to be
/// shut out, or whoever gives the lease refuses by itself.
///
/// # Errors
/// When the taker would be refused after the holder was shut out.
pub(crate) async fn judge(
    core: &Arc<Core>,
    (path, id): (&Path, PlanId),
    open: &Open,
    for_ms: u64,
) -> Result<Option<Generation>, Problem> {
    let (path, wanted) = (path.clone(), open.clone());
    let held =
        look(&core.store, move |connection| find(connection, (&path, id), &wanted, for_ms).map(Ok));
    let Some(Held { opened, freed, conflict }) = held.await? else { return Ok(None) };
    judge_log(&opened, &conflict)?;
    let members = &opened.placed()?.members;
    let answered = core.agents.refresh(opened.placed()?.agents()).await;
    let answering = members_that(members, |_, member| answered.contains(&member.agent));
    let unfit = fencing::judge(&opened.placed()?.geometry()?, answering);
    unfit.map_err(|unfit| refused(&unfit.to_string()))?;
    if open.rate > Rate::ZERO {
        let there = (0..).zip(members).filter(|(at, _)| has(answering, *at));
        let there: Vec<Member> = there.map(|(_, member)| *member).collect();
        judge_rates(core, &opened, &there, &freed)?;
    }
    Ok(Some(opened.volume.lease.generation()))
}

/// Whether the volume can be read at all once its holder is shut out: who only reads brings home nothing
/// of a log, and a writer's is open until that writer has closed it.
fn judge_log(opened: &Opened, conflict: &Conflict) -> Result<(), Problem> {
    let has_log = opened.placed()?.logged && opened.volume.record.is_formatted;
    if opened.plan.record.mode == Mode::Write || conflict.access == Access::Read || !has_log {
        return Ok(());
    }
    let (path, plan) = (&opened.path, conflict.holder.plan);
    let detail = format!(
        "{path} was not closed by plan {plan}, and what is in its log must be brought home before it can \
         be read; take it over to write, or wait until it is closed, or that plan ends; whoever has the \
         volume goes on"
    );
    Err(Problem::new(Code::Conflict, detail))
}

fn refused(why: &str) -> Problem {
    Problem::new(Code::Unavailable, format!("{why}; whoever has the volume goes on"))
}

/// Whether the members that answer have the rates, with those that the holder gives up.
fn judge_rates(
    core: &Core,
    opened: &Opened,
    there: &[Member],
    freed: &[Part],
) -> Result<(), Problem> {
    let (lost, all) = (opened.lost()?, opened.placed()?.members.len());
    let missing = all - there.len();
    if missing > usize::from(lost) {
        let why = format!(
            "{missing} of {all} agents cannot be reached, and the rate is not promised without them; \
             ask again, or for a promise that holds meanwhile"
        );
        return Err(refused(&why));
    }
    let freed = |member: &Member| {
        let own = freed.iter().filter(|part| part.segment == member.segment);
        own.map(|part| part.resources)
            .fold(Resources::default(), |sum, part| sum.checked_add(part).unwrap_or(sum))
    };
    let resources = opened.resources()?;
    let has_left = |member: &Member| {
        let left = core.agents.status(member.agent).map(|status| status.left).unwrap_or_default();
        let left = left.checked_add(freed(member)).unwrap_or(left);
        resources.is_some_and(|resources| left.holds(&resources))
    };
    let Some(lacks) = there.iter().find(|member| !has_left(member)) else { return Ok(()) };
    let why = format!("agent {} has too little left; whoever has the volume goes on", lacks.agent);
    Err(short(core, (&opened.load()?, lost > 0), there, (&why, &freed)))
}

/// The volume, if somebody has it who would be shut out by this.
fn find(
    connection: &Connection,
    (path, id): (&Path, PlanId),
    open: &Open,
    for_ms: u64,
) -> Sql<Option<Held>> {
    let Ok(name) = names::find(connection, path)? else { return Ok(None) };
    if names::check_kind(&name, path, open.kind).is_err() {
        return Ok(None);
    }
    let Some(volume) = Volume::load(connection, name.id)? else { return Ok(None) };
    let placed = volume.record.placed.as_ref().filter(|_| volume.state == State::Ready);
    let (Some(placed), None) = (placed, Plan::load(connection, id)?) else { return Ok(None) };
    let access = match open.mode {
        Mode::Read => Access::Read,
        Mode::Write => Access::Write,
    };
    let Some(conflict) = volume.lease.conflict(now(), access) else { return Ok(None) };
    let holders: Vec<PlanId> = volume.lease.holders().map(|(_, holder)| holder.plan).collect();
    let mut plans = Plan::of_volume(connection, volume.id)?;
    plans.retain(|plan| holders.contains(&plan.id));
    let freed = plans.into_iter().flat_map(|plan| plan.record.parts).collect();
    let record = Record::new(open, for_ms, placed.agents().collect());
    let (owner, until, state) = (0, Moment(0), plan::State::Opening);
    let plan = Plan { id, volume: volume.id, owner, until, state, record };
    let opened = Opened { plan, volume, name, path: path.clone() };
    Ok(Some(Held { opened, freed, conflict }))
}
