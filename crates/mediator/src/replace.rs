//! What a writer says of its volume: how long data is, and which member is lost.

use std::sync::Arc;

use netraid_block::narrow;
use netraid_cluster::{
    Code, Problem,
    agent::{NewSegment, Operation, space_of},
    mediator::{Entry, Kind, Mode, Replace, SetState, TransferPlan},
    now,
};
use netraid_control::{
    booking::{Outcome, Part},
    ledger::{Hold, Purpose},
    placement::{self, Vacancy},
    raise::Told,
    units::{AgentId, PlanId, Rate, Resources, SegmentId},
};
use netraid_raid::member::MemberIndex;
use rusqlite::Connection;

use crate::{
    book::{HOLD_MS, Work, book},
    core::Core,
    create::{domain, entry, make_segment, silent, unavailable},
    names,
    open::{Opened, raise_one, rates_part},
    plan,
    renew::{own, renew_opened},
    store::{Sql, change, look},
    volume::{self, Member, SegmentState, Volume},
};

/// How many agents are tried.
const ATTEMPTS_MAX: usize = 3;

/// A plan of the caller's that may write, with what it is of.
fn writer(connection: &Connection, id: PlanId, owner: Option<u64>) -> Sql<Result<Opened, Problem>> {
    let plan = match own(connection, id, owner)? {
        Ok(plan) => plan,
        Err(problem) => return Ok(Err(problem)),
    };
    let refuse = |why: &str| Ok(Err(Problem::new(Code::Conflict, format!("plan {id} {why}"))));
    if plan.record.mode != Mode::Write {
        return refuse("reads only");
    }
    let found = (Volume::load(connection, plan.volume)?, names::by_id(connection, plan.volume)?);
    let (Some(volume), Some(name)) = found else {
        return refuse("is of what is gone");
    };
    if !volume.lease.holders().any(|(_, holder)| holder.plan == id) {
        return refuse("is shut out: others have the volume");
    }
    let Some(path) = names::path_of(connection, volume.id)? else {
        return refuse("is of what is gone");
    };
    Ok(Ok(Opened { plan, volume, name, path }))
}

/// Stores what became of a volume that is open for writing.
pub(crate) async fn set_state(
    core: &Arc<Core>,
    owner: Option<u64>,
    id: PlanId,
    state: SetState,
) -> Result<Entry, Problem> {
    let has_length = state.length_bytes.is_some();
    let stored = change(&core.store, move |connection| {
        let mut opened = match writer(connection, id, owner)? {
            Ok(opened) => opened,
            Err(problem) => return Ok(Err(problem)),
        };
        let Opened { volume, name, .. } = &mut opened;
        if let Some(length) = state.length_bytes {
            if name.kind != Kind::Data || length > name.capacity_bytes {
                let (capacity, detail) = (name.capacity_bytes, "data alone has a length");
                let detail = format!("length {length}: {detail}, of at most {capacity} here");
                return Ok(Err(Problem::invalid(detail)));
            }
            name.length_bytes = length;
            name.changed = now();
        }
        let members =
            volume.record.placed.as_mut().map_or(&mut [][..], |placed| &mut placed.members);
        for member in members.iter_mut() {
            member.is_fresh &= !state.rebuilt.contains(&member.segment);
        }
        let is_whole = !members.iter().any(|member| member.is_fresh);
        if is_whole && !state.rebuilt.is_empty() {
            volume::drop_former(connection, volume.id)?;
        }
        volume.record.is_formatted |= state.formatted;
        name.update(connection)?;
        volume.save(connection)?;
        Ok(Ok(opened))
    });
    let opened = stored.await?;
    if has_length {
        relabel(core, &opened.volume, &opened.path.label(), opened.name.length_bytes);
    }
    Ok(entry(core, &opened.name, opened.path.text(), Some(&opened.volume)))
}

/// Lets segments say the new length or name as well. It is of use only to whoever has lost the mediator's
/// store: nobody waits for it.
pub(crate) fn relabel(core: &Core, volume: &Volume, path: &str, length_bytes: u64) {
    let Some(placed) = &volume.record.placed else { return };
    for (at, member) in placed.members.iter().enumerate() {
        if let Some(label) = volume.label(at, path, length_bytes) {
            let operation = Operation::SetLabel { segment: member.segment, label };
            tokio::spawn(core.agents.ask(member.agent, operation));
        }
    }
}

/// Puts a segment elsewhere in the place of one that is lost, with the plan's rates, and answers with
/// what holds from then on.
pub(crate) async fn replace(
    core: &Arc<Core>,
    owner: Option<u64>,
    id: PlanId,
    replace: Replace,
) -> Result<TransferPlan, Problem> {
    let busy = || Problem::new(Code::Conflict, format!("plan {id} is under way; ask again"));
    let _plan = core.busy_plans.enter(id).ok_or_else(busy)?;
    let opened = look(&core.store, move |connection| writer(connection, id, owner)).await?;
    let _volume = core.busy_volumes.enter(opened.volume.id).ok_or_else(busy)?;
    let at = usize::from(replace.member);
    let old = opened.placed()?.members.get(at).copied();
    let none = || Problem::invalid(format!("there is no member {at}"));
    let old = old.ok_or_else(none)?;
    if old.segment != replace.segment {
        return renew_opened(core, opened).await;
    }
    let new = make(core, &opened, at).await?;
    let segment = new.segment;
    let replaced =
        change(&core.store, move |connection| take_place(connection, id, owner, at, old, new));
    match replaced.await {
        Ok(opened) => renew_opened(core, opened).await,
        Err(problem) => {
            drop_spare(core, segment).await;
            Err(problem)
        }
    }
}

/// A segment that is ready to be a member.
async fn make(core: &Arc<Core>, opened: &Opened, at: usize) -> Result<Member, Problem> {
    let placed = opened.placed()?;
    let rate = opened.plan.record.rate;
    let rates = if rate > Rate::ZERO { opened.resources()? } else { None };
    let space = Resources { space_bytes: placed.member_bytes, ..Resources::default() };
    let need = space.checked_add(rates.unwrap_or_default()).unwrap_or(space);
    core.agents.refresh(core.agents.ids()).await;
    let mut tried: Vec<AgentId> = placed.agents().collect();
    let mut last = None;
    for _ in 0..ATTEMPTS_MAX {
        let (agent, purpose) = match choose(core, opened, at, need, &tried) {
            Ok(chosen) => chosen,
            Err(problem) => return Err(last.unwrap_or(problem)),
        };
        // Two members of one agent would be lost together.
        assert!(!tried.contains(&agent), "agent {agent} has a member, or was tried");
        tried.push(agent);
        let segment = SegmentId(rand::random());
        let new = Member { agent, segment, is_fresh: true };
        let part = rates.map(|resources| plan::Part { agent, segment, resources });
        let hold = Hold {
            id: space_of(segment),
            segment,
            generation: None,
            purpose,
            resources: space,
            for_ms: HOLD_MS,
        };
        let mut parts = vec![Part { agent, hold, lease_ms: None }];
        let generation = opened.volume.lease.generation();
        parts.extend(part.map(|part| rates_part(&opened.plan, generation, &part, purpose)));
        let (volume, plan) = (opened.volume.id, opened.plan.id);
        match book(core, &parts, Work::Replace { volume, plan, new, part }).await {
            Outcome::Booked => {}
            Outcome::Refused(agent, fault) => {
                last = Some(unavailable(core, agent, &fault));
                continue;
            }
            Outcome::TooLate(agent) => {
                last = Some(silent(core, agent));
                continue;
            }
            Outcome::NotStored => return Err(crate::store::refusal(core.store.is_full())),
        }
        match fill(core, opened, at, new).await {
            Ok(()) => return Ok(new),
            Err(problem) => last = Some(problem),
        }
        drop_spare(core, segment).await;
    }
    Err(last.unwrap_or_else(|| Problem::new(Code::Unavailable, "agents refuse; ask again")))
}

async fn fill(core: &Core, opened: &Opened, at: usize, new: Member) -> Result<(), Problem> {
    let placed = opened.placed()?;
    let label = opened.volume.label(at, &opened.path.label(), opened.name.length_bytes);
    let label = label.ok_or_else(|| Problem::internal("no label"))?;
    let (segment, len_bytes) = (new.segment, placed.member_bytes);
    let made = make_segment(core, new.agent, NewSegment { segment, len_bytes, label }).await;
    made.map_err(|unmade| unmade.problem(core))?;
    match raise_one(core, new, (opened.volume.id, &opened.volume.lease)).await {
        (Told::Raised, _) => Ok(()),
        (_, Some(fault)) => Err(unavailable(core, new.agent, &fault)),
        (_, None) => Err(silent(core, new.agent)),
    }
}

/// Where a member goes. What agents keep for rebuilding is used where clients have too little.
fn choose(
    core: &Core,
    opened: &Opened,
    at: usize,
    need: Resources,
    tried: &[AgentId],
) -> Result<(AgentId, Purpose), Problem> {
    let placed = opened.placed()?;
    let geometry = placed.geometry()?;
    let members: Vec<AgentId> = placed.agents().collect();
    let place = MemberIndex(narrow(at));
    let layout = &opened.volume.record.layout;
    let vacancy = Vacancy {
        geometry: &geometry,
        members: &members,
        lost: std::iter::once(place).collect(),
        place,
        need,
        spread: domain(layout),
        may_share: layout.may_share,
    };
    let mut agents = core.agents.placement();
    for agent in agents.iter_mut().filter(|agent| tried.contains(&agent.id)) {
        agent.usable = false;
    }
    if let Ok(found) = placement::replace(&vacancy, &agents) {
        return Ok((found.agent, Purpose::Client));
    }
    for agent in &mut agents {
        let status = core.agents.status(agent.id);
        agent.left = status.map_or(agent.left, |status| status.left_for_rebuild);
    }
    match placement::replace(&vacancy, &agents) {
        Ok(found) => Ok((found.agent, Purpose::Rebuild)),
        Err(why) => Err(Problem::new(Code::Short, why.to_string())),
    }
}

/// Puts the new segment in the old one's place, if the plan still may.
fn take_place(
    connection: &Connection,
    id: PlanId,
    owner: Option<u64>,
    at: usize,
    old: Member,
    new: Member,
) -> Sql<Result<Opened, Problem>> {
    let mut opened = match writer(connection, id, owner)? {
        Ok(opened) => opened,
        Err(problem) => return Ok(Err(problem)),
    };
    let placed = opened.volume.record.placed.as_mut();
    let member = placed.and_then(|placed| placed.members.get_mut(at));
    let Some(member) = member.filter(|member| member.segment == old.segment) else {
        return Ok(Err(Problem::new(Code::Conflict, "the member has changed meanwhile")));
    };
    assert_ne!(old.segment, new.segment, "another segment takes its place");
    *member = new;
    opened.volume.save(connection)?;
    volume::set_segment(connection, new.segment, SegmentState::Live)?;
    volume::set_segment(connection, old.segment, SegmentState::Former)?;
    opened.plan.record.parts.retain(|part| part.segment != old.segment);
    if !opened.plan.record.agents.contains(&new.agent) {
        opened.plan.record.agents.push(new.agent);
    }
    opened.plan.save(connection)?;
    Ok(Ok(opened))
}

/// Gives up a segment that was to be a member.
async fn drop_spare(core: &Core, segment: SegmentId) {
    let dropped = core
        .store
        .write(move |connection| volume::set_segment(connection, segment, SegmentState::Gone));
    // Else the next start does it.
    let _ = dropped.await;
    core.wake.notify_one();
}
