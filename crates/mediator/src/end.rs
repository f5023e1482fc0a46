//! What ends: plans and volumes, and all that is finished in the background.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use netraid_cluster::{
    Code, Problem,
    access::TokenDigest,
    agent::{FaultCode, Operation},
    mediator::CleanClose,
    now,
};
use netraid_control::units::{AgentId, Moment, PlanId, SegmentId, VolumeId};

use crate::{
    access, audit,
    book::{self},
    core::{BusyGuard, Core},
    create,
    link::AskError,
    lock, names,
    open::raise,
    plan::{self, Plan},
    renew::own,
    store::{change, or_aside},
    volume::{self, SegmentState, Volume},
};

/// From one look at what is left to do to the next.
const TICK: Duration = Duration::from_secs(1);
/// How long those who remove or release something wait for agents.
const FINISH_LIMIT: Duration = Duration::from_secs(4);
/// A plan that is over so long ended by itself: also where clocks are apart, and its owner slow.
const SWEEP_AFTER_MS: u64 = 30_000;
/// After its start, the mediator gives clients so long to renew what ended meanwhile.
const START_GRACE: Duration = Duration::from_secs(30);
/// Whatever an agent that did not answer still has of a plan has ended by itself so long after it.
const FORGET_AFTER_MS: u64 = 60_000;
/// From one look whether a plan is free to the next.
const BUSY_RETRY: Duration = Duration::from_millis(10);
/// Ending plans in one look: those that wait for agents that are away are among them.
const ENDING_MAX: u32 = 1024;
/// Of each kind in one look.
const LOOK_MAX: u32 = 256;

/// How a plan ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    /// Its client says so, and has stopped; and how it left the array.
    Closed(Option<CleanClose>),
    /// Its client may go on: it is shut out.
    Revoked,
}

/// Ends a plan whose client has stopped, as it says by a key that it alone has. Its lease is free at
/// once, its rates when this is over, of all agents that answer.
pub(crate) async fn close(
    core: &Arc<Core>,
    owner: Option<u64>,
    id: PlanId,
    key: TokenDigest,
    clean_close: Option<CleanClose>,
) -> Result<(), Problem> {
    let is_its = move |plan: &Plan| match plan.record.close_key {
        Some(its) if its == key => Ok(()),
        Some(_) => {
            let detail = format!("plan {id}: another key; who does not have its own may end it");
            Err(Problem::new(Code::Forbidden, detail))
        }
        None => {
            let detail = format!("plan {id} was opened without a key to close it; end it");
            Err(Problem::new(Code::Conflict, detail))
        }
    };
    finish(core, (owner, id), is_its, How::Closed(clean_close)).await
}

/// Ends a plan, whoever asks, and shuts its client out: agents that answer let a writer in no more when
/// this is over, and others wait for those that do not.
pub(crate) async fn revoke(
    core: &Arc<Core>,
    owner: Option<u64>,
    id: PlanId,
) -> Result<(), Problem> {
    finish(core, (owner, id), |_| Ok(()), How::Revoked).await
}

async fn finish(
    core: &Arc<Core>,
    (owner, id): (Option<u64>, PlanId),
    may: impl FnOnce(&Plan) -> Result<(), Problem> + Send + 'static,
    how: How,
) -> Result<(), Problem> {
    let _busy = alone(core, id).await?;
    let is_closed = matches!(how, How::Closed(_));
    let ending = change(&core.store, move |connection| {
        match own(connection, id, owner)?.and_then(|plan| may(&plan).map(|()| plan)) {
            Ok(plan) => begin_end(connection, plan, how).map(Ok),
            Err(problem) => Ok(Err(problem)),
        }
    });
    let (plan, volume) = ending.await?;
    lock(&core.clients).handle_ended(id);
    let told = async {
        let raised = async {
            if let Some(volume) = volume.filter(|volume| !volume.lease.is_raised()) {
                raise(core, &volume).await;
            }
        };
        match is_closed {
            true => end_plan(core, plan).await,
            false => drop(tokio::join!(raised, end_plan(core, plan))),
        }
    };
    let _ = tokio::time::timeout(FINISH_LIMIT, told).await;
    Ok(())
}

/// Waits for a renewal of the plan that is under way.
async fn alone(core: &Core, id: PlanId) -> Result<BusyGuard<PlanId>, Problem> {
    let began = Instant::now();
    loop {
        if let Some(guard) = core.busy_plans.enter(id) {
            return Ok(guard);
        }
        if began.elapsed() > FINISH_LIMIT {
            let detail = format!("plan {id} is under way; ask again");
            return Err(Problem::new(Code::Conflict, detail));
        }
        tokio::time::sleep(BUSY_RETRY).await;
    }
}

/// Takes back a bearer token, and all that was opened by it: when this is over, agents that answer have
/// ended its sessions and let nobody in by them; others are told when they are back.
pub(crate) async fn revoke_access(core: &Arc<Core>, id: u64) -> Result<(), Problem> {
    let ending = change(&core.store, move |connection| {
        if !access::remove(connection, id)? {
            return Ok(Err(Problem::absent(format!("there is no bearer token {id}"))));
        }
        begin_end_of_owner(connection, id).map(Ok)
    });
    let ending = ending.await?;
    core.access.handle_removed(id);
    tell_revoked(core, ending).await;
    Ok(())
}

/// Takes back all that was opened by bearer tokens which have ended.
async fn revoke_lapsed(core: &Arc<Core>) {
    for id in core.access.take_lapsed() {
        let ending =
            change(&core.store, move |connection| begin_end_of_owner(connection, id).map(Ok));
        match ending.await {
            Ok(ending) => {
                let core = Arc::clone(core);
                tokio::spawn(async move { tell_revoked(&core, ending).await });
            }
            // It is looked for again.
            Err(_) => core.access.put_back_lapsed(id),
        }
    }
}

/// Plans that are taken back together.
#[derive(Debug, Default)]
struct TakenBack {
    plans: Vec<Plan>,
    aside: Vec<plan::Aside>,
    /// As each was left by the last of its plans; none that is set aside.
    volumes: BTreeMap<VolumeId, Volume>,
}

/// Takes back all that was opened by a bearer token, whatever of it can be read: else one row of a later program would
/// keep the token in force.
fn begin_end_of_owner(
    connection: &rusqlite::Connection,
    owner: u64,
) -> rusqlite::Result<TakenBack> {
    let found = Plan::of_owner(connection, owner)?;
    let mut taken = TakenBack::default();
    for plan in found.usable {
        let (plan, volume) = begin_end(connection, plan, How::Revoked)?;
        taken.volumes.extend(volume.map(|volume| (volume.id, volume)));
        taken.plans.push(plan);
    }
    for plan in found.aside {
        plan.revoke(connection)?;
        let volume = shut_out(connection, plan.volume, plan.id)?;
        taken.volumes.extend(volume.map(|volume| (volume.id, volume)));
        taken.aside.push(plan);
    }
    Ok(taken)
}

/// Takes a volume's lease from a plan. One that is set aside ends by itself, when the plan's tokens do: until then
/// nobody else gets the volume.
fn shut_out(
    connection: &rusqlite::Connection,
    id: VolumeId,
    plan: PlanId,
) -> rusqlite::Result<Option<Volume>> {
    let volume = match or_aside(Volume::load(connection, id))? {
        Ok(volume) => volume,
        Err(why) => {
            tracing::error!(
                "plan {plan} is shut out, and its lease is left to end by itself: {why}"
            );
            None
        }
    };
    let Some(mut volume) = volume else { return Ok(None) };
    volume.lease = volume.lease.revoke(plan);
    volume.save_lease(connection)?;
    Ok(Some(volume))
}

/// Tells agents at once of plans that are taken back, the first ones first, whatever else is under way for
/// them. What of this is late or lost is told again, and the plans are forgotten, in the background.
async fn tell_revoked(core: &Arc<Core>, ending: TakenBack) {
    let TakenBack { plans, aside, volumes } = ending;
    let raised = async {
        let unraised = volumes.values().filter(|volume| !volume.lease.is_raised());
        join_all(unraised.map(|volume| raise(core, volume))).await;
    };
    let told = async {
        for some in plans.chunks(ENDING_MAX as usize) {
            join_all(some.iter().map(|plan| tell_end(core, plan))).await;
        }
        tell_ends_aside(core, &aside).await;
    };
    let _ = tokio::time::timeout(FINISH_LIMIT, async { tokio::join!(raised, told) }).await;
    core.wake.notify_one();
}

fn begin_end(
    connection: &rusqlite::Connection,
    mut plan: Plan,
    how: How,
) -> rusqlite::Result<(Plan, Option<Volume>)> {
    plan.state = plan::State::Ending;
    match how {
        How::Closed(_) => plan::set_state(connection, plan.id, plan.state)?,
        How::Revoked => {
            plan.record.revoke();
            plan.save(connection)?;
        }
    }
    let volume = match how {
        How::Closed(clean_close) => {
            let mut volume = Volume::load(connection, plan.volume)?;
            if let Some(volume) = &mut volume {
                volume.release(plan.id, clean_close);
                volume.save_lease(connection)?;
            }
            volume
        }
        How::Revoked => shut_out(connection, plan.volume, plan.id)?,
    };
    Ok((plan, volume))
}

/// Tells a plan's agents that it is over. When all know, it is forgotten as soon as its tokens open nothing.
/// Whoever calls it is alone with the plan, but for those who take it back.
pub(crate) async fn end_plan(core: &Arc<Core>, plan: Plan) {
    let left = tell_end(core, &plan).await;
    // Stored some time: until then it is ended again.
    if left.is_empty() || left != plan.record.agents {
        drop(core.store.write(move |connection| plan.note_told(connection, left)));
    }
}

/// Tells a plan's agents that it is over: those that do not know yet.
async fn tell_end(core: &Core, plan: &Plan) -> Vec<AgentId> {
    let id = plan.id;
    // Of tokens that have ended there is nothing to take back.
    let revoked_until = (plan.record.is_revoked && plan.has_tokens()).then_some(plan.until);
    let told = plan.record.untold().into_iter().map(|agent| {
        // Of an agent that is not known any more nobody has anything.
        let is_known = core.agents.link(agent).is_some();
        let is_there = core.agents.is_reachable(agent);
        let end = Operation::EndPlan { plan: id, revoked_until };
        let asked = is_there.then(|| core.agents.ask(agent, end));
        async move {
            let is_told = match asked {
                None => !is_known,
                Some(asked) => match asked.await {
                    Ok(_) => true,
                    Err(AskError::Fault(fault)) => fault.code == FaultCode::Absent,
                    Err(AskError::Lost(_)) => false,
                },
            };
            (!is_told).then_some(agent)
        }
    });
    join_all(told).await.into_iter().flatten().collect()
}

/// Tells agents that plans are over whose rows are set aside. Which agents have something of them cannot be read: all are
/// told, each once as long as this mediator runs.
async fn tell_ends_aside(core: &Core, plans: &[plan::Aside]) {
    let told = plans.iter().flat_map(move |plan| {
        let known = lock(&core.told_aside).get(&plan.id).map(|(_, told)| told.clone());
        let known = known.unwrap_or_default();
        let agents = core.agents.ids().into_iter();
        let left = agents.filter(move |agent| !known.contains(agent));
        left.filter(move |agent| core.agents.is_reachable(*agent)).map(move |agent| async move {
            let revoked_until = plan.has_tokens().then_some(plan.until);
            let end = Operation::EndPlan { plan: plan.id, revoked_until };
            let is_told = match core.agents.ask(agent, end).await {
                Ok(_) => true,
                Err(AskError::Fault(fault)) => fault.code == FaultCode::Absent,
                Err(AskError::Lost(_)) => false,
            };
            if is_told {
                let mut told = lock(&core.told_aside);
                told.entry(plan.id)
                    .or_insert_with(|| (plan.until, BTreeSet::new()))
                    .1
                    .insert(agent);
            }
        })
    });
    join_all(told.collect::<Vec<_>>()).await;
}

/// Removes what a volume has on agents that answer.
pub(crate) async fn finish_removal(core: &Arc<Core>, id: VolumeId) {
    let work = async {
        let found = core.store.read(move |connection| {
            Ok((Plan::of_volume(connection, id)?, volume::segments_of_volume(connection, id)?))
        });
        let Ok((plans, segments)) = found.await else { return };
        end_all(core, plans).await;
        remove_segments(core, id, segments).await;
    };
    let _ = tokio::time::timeout(FINISH_LIMIT, work).await;
    lock(&core.known).remove(&id);
    lock(&core.beliefs).forget(id);
    core.wake.notify_one();
}

/// Removes segments of a volume, or of what is left of it, and forgets it when it has no others.
async fn remove_segments(core: &Core, id: VolumeId, segments: Vec<(SegmentId, AgentId)>) {
    let asked = segments.into_iter().map(|(segment, agent)| {
        let asked = core.agents.ask(agent, Operation::RemoveSegment { segment });
        async move {
            let is_gone = match asked.await {
                Ok(_) => true,
                Err(AskError::Fault(fault)) => fault.code == FaultCode::Absent,
                Err(AskError::Lost(_)) => false,
            };
            is_gone.then_some(segment)
        }
    });
    let removed: Vec<SegmentId> = join_all(asked).await.into_iter().flatten().collect();
    let stored = core.store.write(move |connection| {
        removed.iter().try_for_each(|segment| volume::delete_segment(connection, *segment))?;
        volume::forget(connection, id)
    });
    // Else they are removed again.
    let _ = stored.await;
}

/// Takes back plans that nobody is opening any more, because that could not be stored.
async fn abandon_left(core: &Core) {
    let opening = core.store.read(|connection| {
        let opening =
            Plan::ended_before(connection, plan::State::Opening, Moment(u64::MAX), LOOK_MAX)?;
        Ok((opening, book::stored(connection)?))
    });
    let Ok((opening, booked)) = opening.await else { return };
    for plan in opening.into_iter().filter(|plan| !booked.may_open(plan.id)) {
        if let Some(_busy) = core.busy_plans.enter(plan.id) {
            let _ = core.store.write(move |connection| book::abandon(connection, plan.id)).await;
        }
    }
}

/// Takes back volumes that nobody is making any more, because that could not be stored.
async fn abandon_volumes(core: &Core) {
    let creating = core.store.read(|connection| {
        let creating = volume::in_state(connection, volume::State::Creating, LOOK_MAX)?;
        Ok((creating, book::stored(connection)?))
    });
    let Ok((creating, booked)) = creating.await else { return };
    for id in creating.into_iter().filter(|id| !booked.may_make(*id)) {
        let Some(_busy) = core.busy_volumes.enter(id) else { continue };
        let removed = core.store.write(move |connection| {
            let volume = Volume::load(connection, id)?;
            let is_left = volume.is_some_and(|volume| volume.state == volume::State::Creating);
            if is_left {
                names::remove(connection, id)?;
                volume::delete(connection, id)?;
            }
            Ok(is_left)
        });
        if let Ok(true) = removed.await {
            core.names.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Ends plans that are ending, some at a time, by id: so many whose agents are away, or take no more, are in
/// nobody's way. `after` is the last one of the look before.
async fn end_plans(core: &Arc<Core>, after: &mut PlanId) {
    let before = Moment(now().0.saturating_sub(FORGET_AFTER_MS));
    drop(core.store.write(move |connection| plan::forget_ended(connection, before)));
    lock(&core.told_aside).retain(|_, (until, _)| *until >= before);
    let from = *after;
    let ending = core.store.read(move |connection| Plan::ending(connection, from, ENDING_MAX));
    let Ok(plans) = ending.await else { return };
    *after = plans.next(ENDING_MAX).unwrap_or(PlanId([0; 16]));
    tokio::join!(end_all(core, plans.usable), tell_ends_aside(core, &plans.aside));
}

/// Ends those that nobody works on.
async fn end_all(core: &Arc<Core>, plans: Vec<Plan>) {
    let ended = plans.into_iter().map(|plan| async move {
        if let Some(_busy) = core.busy_plans.enter(plan.id) {
            end_plan(core, plan).await;
        }
    });
    join_all(ended).await;
}

/// Removes segments that are to be removed, of agents that answer.
async fn reap(core: &Arc<Core>) {
    let agents = core.store.read(volume::agents_with_gone).await.unwrap_or_default();
    let there = agents.into_iter().filter(|agent| core.agents.is_reachable(*agent));
    let each = there.map(|agent| async move {
        let gone =
            core.store.read(move |connection| volume::gone_segments(connection, agent, LOOK_MAX));
        let gone = gone.await.unwrap_or_default();
        let removed =
            gone.into_iter().map(|(segment, id)| remove_segments(core, id, vec![(segment, agent)]));
        join_all(removed).await;
    });
    join_all(each).await;
}

/// Goes on with all that was under way when the mediator ended.
pub(crate) async fn recover(core: &Arc<Core>) -> Result<(), Problem> {
    let bookings = core.store.read(book::stored).await.map_err(crate::store::not_stored)?;
    let mut creating = Vec::new();
    for (record, work) in bookings.usable {
        let made = match &work {
            book::Work::Create { volume, .. } => Some(*volume),
            book::Work::Open { .. } | book::Work::Again { .. } | book::Work::Replace { .. } => None,
        };
        let ended = book::resume(core, &record, work);
        if let (Some(volume), Some(ended)) = (made, ended) {
            creating.push((volume, ended));
        }
    }
    let waited: Vec<VolumeId> = creating.iter().map(|(volume, _)| *volume).collect();
    let booked = change(&core.store, move |connection| {
        let resumed = book::stored(connection)?;
        for id in volume::in_state(connection, volume::State::Creating, u32::MAX)? {
            if !waited.contains(&id) && !resumed.has_aside {
                names::remove(connection, id)?;
                volume::delete(connection, id)?;
            }
        }
        let mut opening =
            Plan::ended_before(connection, plan::State::Opening, Moment(u64::MAX), u32::MAX)?;
        opening.retain(|plan| !resumed.may_open(plan.id));
        for segment in volume::spare_segments(connection)? {
            volume::set_segment(connection, segment, SegmentState::Gone)?;
        }
        let mut booked = volume::in_state(connection, volume::State::Booked, u32::MAX)?;
        booked.retain(|id| !waited.contains(id));
        Ok(Ok((booked, opening)))
    });
    let (booked, opening) = booked.await?;
    for Plan { id, .. } in opening {
        // One that cannot be taken back, as its volume is set aside, leaves the others alone.
        let abandoned = core.store.write(move |connection| book::abandon(connection, id)).await;
        if let Err(error) = abandoned {
            tracing::error!(plan = %id, %error, "a plan that nobody opens cannot be taken back");
        }
    }
    for id in booked {
        let core = Arc::clone(core);
        tokio::spawn(async move {
            let _busy = core.busy_volumes.enter(id);
            let _ = create::finish(&core, id).await;
        });
    }
    for (id, ended) in creating {
        let core = Arc::clone(core);
        tokio::spawn(async move {
            let _busy = core.busy_volumes.enter(id);
            if let Ok(netraid_control::booking::Outcome::Booked) = ended.await {
                let _ = create::finish(&core, id).await;
                return;
            }
            let removed = core.store.write(move |connection| {
                names::remove(connection, id)?;
                volume::delete(connection, id)
            });
            let _ = removed.await;
        });
    }
    Ok(())
}

/// Looks after all that goes on by itself, until the store is broken.
pub(crate) async fn run(core: Arc<Core>) -> Problem {
    let started = Instant::now();
    let mut looks: u64 = 0;
    let mut raise_after = names::ROOT;
    let mut ended = PlanId([0; 16]);
    loop {
        let _ = tokio::time::timeout(TICK, core.wake.notified()).await;
        if core.store.is_broken() {
            return Problem::internal("the store is broken; start the mediator again");
        }
        looks += 1;
        let away = core.agents.away();
        if !away.is_empty() {
            let core = Arc::clone(&core);
            tokio::spawn(async move { core.agents.refresh(away).await });
        }
        if started.elapsed() > START_GRACE {
            sweep(&core).await;
        }
        revoke_lapsed(&core).await;
        let limited = async {
            abandon_left(&core).await;
            abandon_volumes(&core).await;
            end_plans(&core, &mut ended).await;
            reap(&core).await;
        };
        let _ = tokio::time::timeout(FINISH_LIMIT, limited).await;
        if looks.is_multiple_of(4) {
            raise_after = raise_all(&core, raise_after).await;
        }
        if let Err(problem) = core.rotate().await {
            tracing::error!("keys: {problem}");
        }
        if looks.is_multiple_of(3600) {
            let _ = core.store.write(audit::prune).await;
        }
    }
}

/// Ends plans that ended by themselves some time ago. Whoever has one may go on all the same where
/// clocks are wrong.
async fn sweep(core: &Core) {
    let before = Moment(now().0.saturating_sub(SWEEP_AFTER_MS));
    let find = move |connection: &rusqlite::Connection| {
        Plan::ended_before(connection, plan::State::Open, before, LOOK_MAX)
    };
    for Plan { id, .. } in core.store.read(find).await.unwrap_or_default() {
        // One that cannot be ended leaves the others alone.
        let swept = core.store.write(move |connection| {
            let plan = Plan::load(connection, id)?;
            let plan = plan.filter(|plan| plan.state == plan::State::Open && plan.until < before);
            plan.map_or(Ok(()), |plan| begin_end(connection, plan, How::Revoked).map(drop))
        });
        if let Err(error) = swept.await {
            tracing::error!(plan = %id, %error, "a plan whose time is over cannot be ended");
        }
    }
}

/// Raises generations on agents that were away when that was done, now that all of a volume's are
/// there; some volumes at a time, by id.
async fn raise_all(core: &Arc<Core>, after: VolumeId) -> VolumeId {
    let ids = core
        .store
        .read(move |connection| volume::unraised(connection, after, LOOK_MAX))
        .await
        .unwrap_or_default();
    for id in &ids {
        let id = *id;
        let volume = core.store.read(move |connection| Volume::load(connection, id)).await;
        let Ok(Some(volume)) = volume else { continue };
        let Some(placed) = &volume.record.placed else { continue };
        let all_there = placed.agents().all(|agent| core.agents.is_reachable(agent));
        if volume.state == volume::State::Ready && all_there {
            raise(core, &volume).await;
        }
    }
    ids.last().copied().unwrap_or(names::ROOT)
}
