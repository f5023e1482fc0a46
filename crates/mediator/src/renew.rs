//! Renewals of transfer plans: the lease, then what agents that answer have of it, then new tokens.
//!
//! Rates that ended meanwhile are booked again; where that cannot be, the plan goes on without.

use std::sync::Arc;

use futures_util::future::join_all;
use netraid_cluster::{
    Code, Problem,
    agent::{FaultCode, Operation, rates_of},
    mediator::TransferPlan,
    now,
};
use netraid_control::{
    booking::Outcome,
    units::{PlanId, Rate, Resources},
};
use netraid_raid::member::MemberSet;
use rusqlite::Connection;

use crate::{
    book::{Work, book},
    core::Core,
    link::AskError,
    lock, names,
    open::{ASK_LIMIT, Opened, Raised, booking_parts, forget_close, has, issue, plan_parts, raise},
    plan::{self, Part, Plan},
    store::{Sql, change},
    volume::{Member, Volume, members_that},
};

/// Finds a plan of the caller's that is in force.
pub(crate) fn own(
    connection: &Connection,
    id: PlanId,
    owner: Option<u64>,
) -> Sql<Result<Plan, Problem>> {
    let plan = Plan::load(connection, id)?;
    let plan = plan.filter(|plan| {
        plan.state == plan::State::Open && owner.is_none_or(|owner| plan.owner == owner)
    });
    Ok(plan.ok_or_else(|| Problem::absent(format!("plan {id} is not there, or not any more"))))
}

/// Prolongs the lease of a plan, and finds what it is of.
pub(crate) fn renew_lease(connection: &Connection, mut plan: Plan) -> Sql<Result<Opened, Problem>> {
    let gone = || Problem::absent(format!("plan {} is of what is gone", plan.id));
    let (Some(mut volume), Some(name)) =
        (Volume::load(connection, plan.volume)?, names::by_id(connection, plan.volume)?)
    else {
        return Ok(Err(gone()));
    };
    let Some(path) = names::path_of(connection, volume.id)? else { return Ok(Err(gone())) };
    match volume.lease.renew(now(), plan.id, plan.record.lease_ms()) {
        Ok((lease, granted)) => {
            volume.lease = lease;
            volume.save_lease(connection)?;
            plan.until = granted.until;
            plan.save_until(connection)?;
            Ok(Ok(Opened { plan, volume, name, path }))
        }
        Err(error) => {
            plan::set_state(connection, plan.id, plan::State::Ending)?;
            Ok(Err(Problem::absent(error.to_string())))
        }
    }
}

/// Prolongs a plan: its lease, its rates, its running sessions, its tokens.
pub(crate) async fn renew(
    core: &Arc<Core>,
    owner: Option<u64>,
    id: PlanId,
) -> Result<TransferPlan, Problem> {
    let busy = core.busy_plans.enter(id);
    let under_way = || Problem::new(Code::Conflict, format!("plan {id} is under way; ask again"));
    let _busy = busy.ok_or_else(under_way)?;
    let renewed = change(&core.store, move |connection| {
        let plan = match own(connection, id, owner)? {
            Ok(plan) => plan,
            Err(problem) => return Ok(Err(problem)),
        };
        renew_lease(connection, plan)
    });
    let renewed = renewed.await?;
    lock(&core.clients).handle_sign(core.running_ms(), id);
    renew_opened(core, renewed).await
}

/// What an agent says to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewed {
    /// All of it holds.
    Yes,
    /// Its rates had ended, or were never booked.
    WithoutRates,
    /// It does not answer, or refuses to let the plan's tokens last.
    Lost,
}

pub(crate) async fn renew_opened(
    core: &Arc<Core>,
    mut opened: Opened,
) -> Result<TransferPlan, Problem> {
    let placed = opened.placed()?.clone();
    let raised = raised_again(core, &mut opened).await?;
    let one = |member: &Member| renew_on(core, &opened.plan, *member);
    let renewed = join_all(placed.members.iter().map(one)).await;
    let reachable = members_that(&placed.members, |at, _| {
        renewed[at] != Renewed::Lost && raised.is_none_or(|raised| has(raised, at))
    });
    let those = |wanted: Renewed| {
        let those = placed.members.iter().zip(&renewed);
        those.filter(move |(_, renewed)| **renewed == wanted).map(|(member, _)| *member)
    };
    let without: Vec<Member> = those(Renewed::WithoutRates).collect();
    if !without.is_empty() {
        book_again(core, &mut opened, &without).await?;
    }
    issue(core, &opened, reachable)
}

/// Members that have the plan's generation, where that is not known of all.
async fn raised_again(core: &Core, opened: &mut Opened) -> Result<Option<MemberSet>, Problem> {
    let record = &opened.plan.record;
    let is_known = record.clean_close.is_none() || lock(&core.known).contains(&opened.volume.id);
    if opened.volume.lease.is_raised() && is_known {
        return Ok(None);
    }
    let Raised { confirmed, surpassed, .. } = raise(core, &opened.volume).await;
    if !surpassed.is_empty() && opened.plan.record.clean_close.take().is_some() {
        let id = opened.plan.id;
        change(&core.store, move |connection| forget_close(connection, id).map(Ok)).await?;
    }
    Ok(Some(confirmed))
}

async fn renew_on(core: &Core, plan: &Plan, member: Member) -> Renewed {
    let agent = member.agent;
    let has_rates = plan.record.booked(member.segment) != Resources::default();
    // It may have booked rates, and its answer was lost: what stands is booked again as it stands.
    let wants_rates = plan.record.rate > Rate::ZERO;
    let extend = Operation::ExtendPlan { plan: plan.id, until: plan.until };
    let renew = Operation::Renew { id: rates_of(plan.id), for_ms: plan.record.lease_ms() };
    let extended = core.agents.ask(agent, extend);
    let renewed = wants_rates.then(|| core.agents.ask(agent, renew));
    let both = async {
        let extended = extended.await;
        let renewed = match renewed {
            Some(renewed) => Some(renewed.await),
            None => None,
        };
        (extended, renewed)
    };
    match tokio::time::timeout(ASK_LIMIT, both).await {
        Err(_) | Ok((Err(AskError::Lost(_)), _) | (_, Some(Err(AskError::Lost(_))))) => {
            Renewed::Lost
        }
        Ok((Err(AskError::Fault(fault)), _)) => {
            tracing::warn!("agent {agent} does not prolong plan {}: {fault}", plan.id);
            Renewed::Lost
        }
        Ok((_, Some(Err(AskError::Fault(fault))))) if fault.code == FaultCode::Absent => {
            Renewed::WithoutRates
        }
        Ok(_) if wants_rates && !has_rates => Renewed::WithoutRates,
        Ok(_) => Renewed::Yes,
    }
}

/// Books rates anew that had ended. Where that cannot be, the plan goes on without.
async fn book_again(
    core: &Arc<Core>,
    opened: &mut Opened,
    members: &[Member],
) -> Result<(), Problem> {
    let resources = opened.resources()?;
    let parts = resources.map_or(Vec::new(), |resources| plan_parts(members, resources));
    let id = opened.plan.id;
    let is_booked = !parts.is_empty() && {
        let work = Work::Again { plan: id, parts: parts.clone() };
        book(core, &booking_parts(opened, &parts), work).await == Outcome::Booked
    };
    let old = |part: &Part| members.iter().any(|member| member.segment == part.segment);
    opened.plan.record.parts.retain(|part| !old(part));
    if is_booked {
        opened.plan.record.parts.extend(parts);
        return Ok(());
    }
    let left = opened.plan.record.parts.clone();
    change(&core.store, move |connection| {
        if let Some(mut plan) = Plan::load(connection, id)? {
            plan.record.parts = left;
            plan.save(connection)?;
        }
        Ok(Ok(()))
    })
    .await
}
