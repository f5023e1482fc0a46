//! Making and removing what has a name.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use netraid_cluster::{
    Code, Problem,
    agent::{Fault, FaultCode, NewSegment, Operation, space_of},
    mediator::{Create, Entry, Kind, Layout, Named, Offer, Spread, Stored, StoredMember},
    now,
};
use netraid_control::{
    booking::{Outcome, Part},
    ledger::{Hold, Purpose},
    placement::{self, Domain, Placement, Refusal, Wanted, Why, place},
    promise,
    retry::made_by,
    units::{AgentId, Rate, RequestId, Resources, SegmentId, VolumeId},
};
use netraid_raid::geometry::Level;
use rusqlite::Connection;

use crate::{
    book::{HOLD_MS, Work, book, is_final},
    choice::Choices,
    clients,
    core::Core,
    end,
    link::AskError,
    names::{self, Name, Path},
    plan::{self, Plan},
    store::{Sql, change, look},
    volume::{self, Member, Placed, State, Volume},
};

/// How often an agent is asked to make a segment.
const ATTEMPTS_MAX: usize = 3;
/// Bytes of anything; far beyond what agents have.
const SIZE_MAX: u64 = 1 << 60;
/// Ids that one request has for what it makes: no more are used than members are chosen anew.
const IDS_MAX: u32 = 16;
/// How long a request that was sent before is waited for, in looks of [`LOOK`].
const LOOKS_MAX: u32 = 200;
/// From one look to the next.
const LOOK: Duration = Duration::from_millis(100);
/// From one attempt to make segments to the next.
const RETRY: Duration = Duration::from_millis(200);

/// A request that may be sent again, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeatable {
    pub(crate) id: RequestId,
    pub(crate) owner: u64,
}

impl Repeatable {
    fn ids(self) -> impl Iterator<Item = VolumeId> {
        (0..IDS_MAX).map(move |attempt| made_by(self.id, self.owner, attempt))
    }
}

/// Makes something with a name; what a request made that is sent again it does not make once more.
pub(crate) async fn create(
    core: &Arc<Core>,
    create: Create,
    request: Option<Repeatable>,
) -> Result<Entry, Problem> {
    let path = Path::new(&create.path, create.upload)?;
    check(&create)?;
    let Some(request) = request else { return create_new(core, (&path, &create), None).await };
    if let Some(entry) = made_before(core, &path, request).await? {
        return Ok(entry);
    }
    match create_new(core, (&path, &create), Some(request)).await {
        // The one before was still under way, and has taken the name meanwhile.
        Err(problem) if problem.code == Code::Exists => {
            made_before(core, &path, request).await?.ok_or(problem)
        }
        created => created,
    }
}

/// What a request made that was sent before; waits while it is being made.
async fn made_before(
    core: &Arc<Core>,
    path: &Path,
    request: Repeatable,
) -> Result<Option<Entry>, Problem> {
    for _ in 0..LOOKS_MAX {
        let at = path.clone();
        let found = look(&core.store, move |connection| {
            let Some((above, own)) = at.split() else { return Ok(Ok(None)) };
            let Ok(parent) = names::directory(connection, above)? else { return Ok(Ok(None)) };
            let there = names::child(connection, parent, own)?;
            let Some(name) = there.filter(|name| request.ids().any(|id| id == name.id)) else {
                return Ok(Ok(None));
            };
            let volume = Volume::load(connection, name.id)?;
            Ok(Ok(Some((name, volume))))
        });
        match found.await? {
            None => return Ok(None),
            Some((name, volume)) if !name.is_pending => {
                return Ok(Some(entry(core, &name, path.text(), volume.as_ref())));
            }
            Some(_) => tokio::time::sleep(LOOK).await,
        }
    }
    let detail = format!("{path} is still being made by a request that was sent before; ask again");
    Err(Problem::new(Code::Unavailable, detail))
}

async fn create_new(
    core: &Arc<Core>,
    (path, create): (&Path, &Create),
    request: Option<Repeatable>,
) -> Result<Entry, Problem> {
    let wanted = wanted(create)?;
    if let Some(replaced) = create.replaces {
        match throw_away(core, path, replaced, wanted.as_ref()).await {
            // The same request threw it away when it was sent before.
            Err(problem) if problem.code == Code::Absent && request.is_some() => {}
            thrown => thrown?,
        }
    }
    let mut made = Vec::new();
    let at = (path, create, request);
    let created = create_chosen(core, at, wanted.as_ref(), &mut made).await;
    if created.is_err() && !made.is_empty() {
        let unmake = change(&core.store, move |connection| {
            Ok(Ok(names::unmake_directories(connection, &made)?))
        });
        core.names.fetch_sub(unmake.await?, Ordering::Relaxed);
    }
    created
}

/// Makes it on agents that take it: where one cannot make its segment all is taken back, and others are
/// chosen. Directories that are new are `made`, whatever comes of it.
async fn create_chosen(
    core: &Arc<Core>,
    (path, create, repeatable): (&Path, &Create, Option<Repeatable>),
    wanted: Option<&Wanted>,
    made: &mut Vec<VolumeId>,
) -> Result<Entry, Problem> {
    let mut choices = Choices::default();
    loop {
        let id = new_id(core, repeatable).await?;
        let _busy = core.busy_volumes.enter(id);
        let (at, request) = (path.clone(), create.clone());
        let (name, new) =
            change(&core.store, move |connection| begin(connection, &at, &request, id)).await?;
        core.names.fetch_add(new.len() as u64 + 1, Ordering::Relaxed);
        made.extend(new);
        let Some(wanted) = wanted else {
            let upload_bytes = create.upload.then_some(0);
            return Ok(Entry { upload_bytes, ..name.entry(path.text()) });
        };

        if let Err(problem) = book_space(core, id, wanted, &mut choices).await {
            change(&core.store, move |connection| {
                names::remove(connection, id)?;
                volume::delete(connection, id)?;
                Ok(Ok(()))
            })
            .await?;
            core.names.fetch_sub(1, Ordering::Relaxed);
            return Err(problem);
        }

        let unmade = match finish(core, id).await {
            Ok((name, volume)) => return Ok(entry(core, &name, path.text(), Some(&volume))),
            Err(Unfinished::Problem(problem)) => return Err(problem),
            Err(Unfinished::Unmade(unmade)) => unmade,
        };
        let problem = unmade.problem(core);
        if !choices.handle_failed(unmade.agent, unmade.code(), problem.clone()) {
            return Err(problem);
        }
        // What it has on other agents is free before they are chosen again.
        end::finish_removal(core, id).await;
        refresh_all(core).await;
    }
}

/// The id of something new: of a request that may be sent again, the first of its own that nothing has.
async fn new_id(core: &Arc<Core>, request: Option<Repeatable>) -> Result<VolumeId, Problem> {
    let Some(request) = request else { return Ok(VolumeId(rand::random())) };
    let free = look(&core.store, move |connection| {
        for id in request.ids() {
            if names::by_id(connection, id)?.is_none() && !Volume::is_there(connection, id)? {
                return Ok(Ok(Some(id)));
            }
        }
        Ok(Ok(None))
    });
    Ok(free.await?.unwrap_or_else(|| VolumeId(rand::random())))
}

fn check(create: &Create) -> Result<(), Problem> {
    let Create { kind, size_bytes, upload, replaces, .. } = *create;
    if replaces.is_some() && !upload {
        return Err(Problem::invalid(
            "an upload alone takes the place of another; rename with `replace` for what has a name",
        ));
    }
    match kind {
        Kind::Directory | Kind::Volume if upload => Err(Problem::invalid(
            "data alone is uploaded; make a volume or a directory by its name",
        )),
        Kind::Directory if size_bytes > 0 => Err(Problem::invalid("a directory has no bytes")),
        Kind::Volume if size_bytes == 0 => Err(Problem::invalid("a volume of no bytes")),
        _ if size_bytes > SIZE_MAX => {
            Err(Problem::invalid(format!("{size_bytes} bytes, {SIZE_MAX} at most")))
        }
        Kind::Directory | Kind::Volume | Kind::Data => Ok(()),
    }
}

/// What is asked of the placement; nothing for what has no bytes.
fn wanted(create: &Create) -> Result<Option<Wanted>, Problem> {
    if create.size_bytes == 0 {
        return Ok(None);
    }
    let layout = &create.layout;
    let level = match layout.level {
        None => None,
        Some(number) => Some(Level::from_number(number).ok_or_else(|| {
            Problem::invalid(format!("there is no level {number}; 0, 1, 5, 6 and 10 are"))
        })?),
    };
    Ok(Some(Wanted {
        request_bytes: layout.request_bytes.max(1),
        gathered: create.kind == Kind::Data,
        survives: layout.survives,
        degraded: layout.degraded,
        level,
        chunk_len: layout.chunk_len,
        members: layout.members.map(usize::from),
        spread: domain(layout),
        may_share: layout.may_share,
        ..Wanted::new(create.size_bytes, promise::booked(layout.rate, is_degraded(layout)))
    }))
}

/// Whether the rate holds while members are lost.
const fn is_degraded(layout: &Layout) -> bool {
    layout.degraded && layout.survives > 0
}

pub(crate) const fn domain(layout: &Layout) -> Domain {
    match layout.spread {
        Spread::Agent => Domain::Agent,
        Spread::Host => Domain::Host,
        Spread::Rack => Domain::Rack,
    }
}

/// Takes the name; what has bytes is not seen by it yet. Says which directories are new.
fn begin(
    connection: &Connection,
    path: &Path,
    create: &Create,
    id: VolumeId,
) -> Sql<Result<(Name, Vec<VolumeId>), Problem>> {
    let Some((above, own)) = path.split() else {
        return Ok(Err(names::exists(path)));
    };
    let now = now();
    let parent = match create.parents {
        true => names::make_directories(connection, above, now, || VolumeId(rand::random()))?,
        false => names::directory(connection, above)?.map(|parent| (parent, Vec::new())),
    };
    let (parent, made) = match parent {
        Ok(parent) => parent,
        Err(problem) => return Ok(Err(problem)),
    };
    if names::child(connection, parent, own)?.is_some() {
        return Ok(Err(names::exists(path)));
    }
    let is_pending = create.size_bytes > 0;
    let name = Name { is_pending, ..Name::new(parent, own, id, create.kind, now) };
    name.insert(connection)?;
    if create.kind != Kind::Directory {
        let mut volume = Volume::new(id, create.kind, create.layout.clone());
        volume.record.upload_bytes = create.upload.then_some(create.size_bytes);
        if is_pending {
            volume.state = State::Creating;
        }
        volume.insert(connection)?;
    }
    Ok(Ok((name, made)))
}

/// Throws an upload away for another one of its name, once that is known to be had: what refuses the
/// other one leaves this one as it is, and whoever writes to it.
async fn throw_away(
    core: &Arc<Core>,
    path: &Path,
    replaced: VolumeId,
    wanted: Option<&Wanted>,
) -> Result<(), Problem> {
    let at = path.clone();
    let freed = look(&core.store, move |connection| freed_by(connection, &at, replaced)).await?;
    if let Some(wanted) = wanted {
        let with_freed = || {
            let mut agents = core.agents.placement();
            for (agent, resources) in &freed {
                for state in agents.iter_mut().filter(|state| state.id == *agent) {
                    state.left = state.left.checked_add(*resources).unwrap_or(state.left);
                }
            }
            agents
        };
        if place(wanted, &with_freed()).is_err() || wanted.rate > Rate::ZERO {
            refresh_all(core).await;
            place(wanted, &with_freed()).map_err(|refusal| refused(&refusal, wanted))?;
        }
    }
    let (path, id) = (path.text(), Some(replaced));
    remove(core, Named { path, force: true, upload: true, id, kind: None }).await
}

/// What agents have again once an upload is thrown away: the space of its members, and the rates of its
/// plans.
fn freed_by(
    connection: &Connection,
    path: &Path,
    replaced: VolumeId,
) -> Sql<Result<Vec<(AgentId, Resources)>, Problem>> {
    match names::find(connection, path)? {
        Ok(name) if name.id == replaced => {}
        Ok(_) => return Ok(Err(names::other(path))),
        Err(problem) => return Ok(Err(problem)),
    }
    let volume = Volume::load(connection, replaced)?;
    let placed = volume.and_then(|volume| volume.record.placed);
    let space = placed.iter().flat_map(|placed| {
        let space_bytes = placed.member_bytes;
        let each = Resources { space_bytes, ..Resources::default() };
        placed.members.iter().map(move |member| (member.agent, each))
    });
    let mut freed: Vec<(AgentId, Resources)> = space.collect();
    for plan in Plan::of_volume(connection, replaced)? {
        freed.extend(plan.record.parts.iter().map(|part| (part.agent, part.resources)));
    }
    Ok(Ok(freed))
}

/// Chooses members and books their space; again with what agents say anew when one refuses, without the
/// agents that the choices leave out.
async fn book_space(
    core: &Arc<Core>,
    id: VolumeId,
    wanted: &Wanted,
    choices: &mut Choices,
) -> Result<(), Problem> {
    // Rates are booked by plans only: nobody would refuse one that is not there any more.
    let mut is_fresh = wanted.rate > Rate::ZERO;
    if is_fresh {
        refresh_all(core).await;
    }
    loop {
        let placed_on = |choices: &Choices| place(wanted, &choices.usable(core.agents.placement()));
        let placement = match placed_on(choices) {
            Err(_) if !is_fresh => {
                // Nothing is refused by what was left some time ago.
                refresh_all(core).await;
                placed_on(choices)
            }
            placement => placement,
        };
        let placement = placement.map_err(|refusal| choices.refusal(refused(&refusal, wanted)))?;
        let space = Resources { space_bytes: placement.each.space_bytes, ..Resources::default() };
        let placed = placed(&placement);
        let part = |member: &Member| Part {
            agent: member.agent,
            hold: Hold {
                id: space_of(member.segment),
                segment: member.segment,
                generation: None,
                purpose: Purpose::Client,
                resources: space,
                for_ms: HOLD_MS,
            },
            lease_ms: None,
        };
        let parts: Vec<Part> = placed.members.iter().map(part).collect();
        let debit = core.agents.debit(&placement.members, space);
        let outcome = book(core, &parts, Work::Create { volume: id, placed }).await;
        core.agents.settle(debit, outcome == Outcome::Booked);
        let (agent, code, problem) = match outcome {
            Outcome::Booked => return Ok(()),
            Outcome::Refused(agent, fault) => {
                (agent, Some(fault.code), unavailable(core, agent, &fault))
            }
            Outcome::TooLate(agent) => (agent, None, silent(core, agent)),
            Outcome::NotStored => {
                return Err(crate::store::refusal(core.store.is_full()));
            }
        };
        if !choices.handle_failed(agent, code, problem.clone()) {
            return Err(problem);
        }
        refresh_all(core).await;
        is_fresh = true;
    }
}

async fn refresh_all(core: &Arc<Core>) {
    core.agents.refresh(core.agents.ids()).await;
}

/// What a client is told when an agent refuses.
pub(crate) fn unavailable(core: &Core, agent: AgentId, fault: &Fault) -> Problem {
    let code = match fault.code {
        FaultCode::Short | FaultCode::Full => Code::Short,
        FaultCode::Absent
        | FaultCode::Conflict
        | FaultCode::Invalid
        | FaultCode::Draining
        | FaultCode::Busy
        | FaultCode::Failed => Code::Unavailable,
    };
    Problem::new(code, refusal(core, agent, fault))
}

/// Which agent refuses, why, and what helps.
pub(crate) fn refusal(core: &Core, agent: AgentId, fault: &Fault) -> String {
    let remedy = match fault.code {
        FaultCode::Full => {
            format!(
                "; free space on that disk, or drain the agent (`netraid mediator drain {agent}`)"
            )
        }
        FaultCode::Short
        | FaultCode::Absent
        | FaultCode::Conflict
        | FaultCode::Invalid
        | FaultCode::Draining
        | FaultCode::Busy
        | FaultCode::Failed => String::new(),
    };
    format!("{}: {}{remedy}", core.agents.named(agent), fault.detail)
}

/// What a client is told when an agent said nothing.
pub(crate) fn silent(core: &Core, agent: AgentId) -> Problem {
    let detail = format!("{} did not answer in time; ask again", core.agents.named(agent));
    Problem::new(Code::Unavailable, detail)
}

fn placed(placement: &Placement) -> Placed {
    let member = |agent: &AgentId| Member {
        agent: *agent,
        segment: SegmentId(rand::random()),
        is_fresh: false,
    };
    Placed {
        level: placement.level.number(),
        chunk_len: placement.chunk_len,
        logged: placement.logged,
        member_bytes: placement.each.space_bytes,
        capacity_bytes: placement.capacity_bytes,
        reasons: placement.reasons.iter().map(ToString::to_string).collect(),
        members: placement.members.iter().map(member).collect(),
    }
}

fn refused(refusal: &Refusal, wanted: &Wanted) -> Problem {
    let is_degraded = wanted.degraded && wanted.survives > 0;
    let code = match refusal.why {
        Why::Size | Why::Resilience { .. } | Why::Shape(_) | Why::Beyond { .. } => Code::Invalid,
        Why::Domains { .. } | Why::Left { .. } => Code::Short,
    };
    let later = match (code, refusal.later) {
        (Code::Short, true) => "; it could be had if less were booked",
        _ => "",
    };
    let offer = refusal.offer.as_deref().map(|offer: &placement::Offer| Offer {
        rate: promise::promised(offer.rate, is_degraded),
        reasons: offer.placement.reasons.iter().map(ToString::to_string).collect(),
    });
    Problem { code, detail: format!("{}{later}", refusal.why), offer }
}

/// Why a volume whose space is booked is not there.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// An agent did not make its segment: all is taken back.
    Unmade(Unmade),
    /// Something else.
    Problem(Problem),
}

/// An agent that did not make a segment.
#[derive(Debug)]
pub(crate) struct Unmade {
    agent: AgentId,
    why: AskError,
}

impl Unmade {
    const fn code(&self) -> Option<FaultCode> {
        match &self.why {
            AskError::Fault(fault) => Some(fault.code),
            AskError::Lost(_) => None,
        }
    }

    /// What a client is told.
    pub(crate) fn problem(&self, core: &Core) -> Problem {
        match &self.why {
            AskError::Fault(fault) => unavailable(core, self.agent, fault),
            AskError::Lost(why) => {
                let detail = format!("{}: {why}; ask again", core.agents.named(self.agent));
                Problem::new(Code::Unavailable, detail)
            }
        }
    }
}

/// Makes the segments of a volume whose space is booked, and lets it be seen; or takes it back.
pub(crate) async fn finish(core: &Arc<Core>, id: VolumeId) -> Result<(Name, Volume), Unfinished> {
    let made = make_segments(core, id).await;
    let is_made = made.is_ok();
    let finished = change(&core.store, move |connection| {
        let found = (Volume::load(connection, id)?, names::by_id(connection, id)?);
        let (Some(mut volume), Some(mut name)) = found else {
            return Ok(Err(Problem::internal("a volume that is gone while it is made")));
        };
        if !is_made {
            names::remove(connection, id)?;
            volume.state = State::Removing;
            volume.save(connection)?;
            volume::drop_segments(connection, id)?;
            return Ok(Ok((name, volume)));
        }
        let capacity = volume.record.placed.as_ref().map_or(0, |placed| placed.capacity_bytes);
        name.capacity_bytes = capacity;
        name.length_bytes = if name.kind == Kind::Volume { capacity } else { 0 };
        name.is_pending = false;
        name.update(connection)?;
        volume.state = State::Ready;
        volume.save(connection)?;
        Ok(Ok((name, volume)))
    })
    .await;
    if !is_made {
        core.names.fetch_sub(1, Ordering::Relaxed);
        core.wake.notify_one();
    }
    made.and(finished.map_err(Unfinished::Problem))
}

async fn make_segments(core: &Arc<Core>, id: VolumeId) -> Result<(), Unfinished> {
    let found = core.store.read(move |connection| {
        Ok((Volume::load(connection, id)?, names::path_of(connection, id)?))
    });
    let not_stored = |error| Unfinished::Problem(crate::store::not_stored(error));
    let (volume, path) = found.await.map_err(not_stored)?;
    let gone = || Unfinished::Problem(Problem::internal("a volume that is gone while it is made"));
    let volume = volume.ok_or_else(gone)?;
    let placed = volume.record.placed.as_ref().ok_or_else(gone)?;
    let path = path.ok_or_else(gone)?.label();
    let length = if volume.record.kind == Kind::Volume { placed.capacity_bytes } else { 0 };
    let each = placed.members.iter().enumerate().map(|(at, member)| {
        let label = volume.label(at, &path, length);
        let (agent, segment, len_bytes) = (member.agent, member.segment, placed.member_bytes);
        async move {
            let new = NewSegment { segment, len_bytes, label: label.ok_or_else(gone)? };
            make_segment(core, agent, new).await.map_err(Unfinished::Unmade)
        }
    });
    futures_util::future::try_join_all(each).await.map(drop)
}

/// Makes a segment; asks again when the answer is lost.
pub(crate) async fn make_segment(
    core: &Core,
    agent: AgentId,
    new: NewSegment,
) -> Result<(), Unmade> {
    let mut tries = 0;
    loop {
        match core.agents.ask(agent, Operation::CreateSegment(new.clone())).await {
            Ok(_) => return Ok(()),
            Err(why) => {
                tries += 1;
                let is_final = matches!(&why, AskError::Fault(fault) if is_final(fault));
                if is_final || tries == ATTEMPTS_MAX {
                    return Err(Unmade { agent, why });
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// What a client sees of something.
pub(crate) fn entry(core: &Core, name: &Name, path: String, volume: Option<&Volume>) -> Entry {
    let placed = volume.and_then(|volume| Some((volume, volume.record.placed.as_ref()?)));
    let member = |member: &Member| {
        let place = core.agents.place(member.agent);
        StoredMember {
            agent: member.agent,
            host: place.host,
            segment: member.segment,
            reachable: place.is_reachable,
            fresh: member.is_fresh,
        }
    };
    let stored = placed.map(|(volume, placed)| Stored {
        level: placed.level,
        chunk_len: placed.chunk_len,
        logged: placed.logged,
        member_bytes: placed.member_bytes,
        formatted: volume.record.is_formatted,
        generation: volume.lease.generation(),
        members: placed.members.iter().map(member).collect(),
        reasons: placed.reasons.clone(),
    });
    let upload_bytes = volume.and_then(|volume| volume.record.upload_bytes);
    Entry { stored, upload_bytes, ..name.entry(path) }
}

/// Removes something with its name; what it took of agents is free when this is over, of all that
/// answer.
pub(crate) async fn remove(core: &Arc<Core>, named: Named) -> Result<(), Problem> {
    let path = Path::new(&named.path, named.upload)?;
    let paths = [path.clone()];
    let removed = change(&core.store, move |connection| begin_removal(connection, &path, &named));
    let (id, is_volume) = match removed.await {
        Ok(removed) => removed,
        Err(problem) => return Err(clients::with_holder(core, problem, &paths).await),
    };
    core.names.fetch_sub(1, Ordering::Relaxed);
    if is_volume {
        end::finish_removal(core, id).await;
    }
    Ok(())
}

fn begin_removal(
    connection: &Connection,
    path: &Path,
    named: &Named,
) -> Sql<Result<(VolumeId, bool), Problem>> {
    let conflict = |detail: String| Ok(Err(Problem::new(Code::Conflict, detail)));
    if path.split().is_none() {
        return conflict("/ cannot be removed".to_owned());
    }
    let name = match names::find(connection, path)? {
        Ok(name) => name,
        Err(problem) => return Ok(Err(problem)),
    };
    if named.id.is_some_and(|id| id != name.id) {
        return Ok(Err(names::other(path)));
    }
    if let Err(problem) = names::check_kind(&name, path, named.kind) {
        return Ok(Err(problem));
    }
    if name.kind == Kind::Directory {
        match names::anything_in(connection, name.id)? {
            Some(Name { is_upload: true, name, .. }) => {
                return conflict(format!(
                    "{path} has an upload in it, of '{name}': go on with that, or remove it (`netraid rm \
                     --upload`)"
                ));
            }
            Some(_) => return conflict(format!("{path} is not empty")),
            None => {}
        }
        names::remove(connection, name.id)?;
        return Ok(Ok((name.id, false)));
    }
    Ok(drop_named(connection, &name, path, named.force)?.map(|()| (name.id, true)))
}

/// Takes the name from a volume, and lets its plans and segments be removed. Refuses, before it changes
/// anything, while somebody uses it, unless by force.
pub(crate) fn drop_named(
    connection: &Connection,
    name: &Name,
    path: &Path,
    force: bool,
) -> Sql<Result<(), Problem>> {
    if let Some(mut volume) = Volume::load(connection, name.id)? {
        let now = now();
        let used = volume.lease.holders().find(|(_, holder)| !holder.is_over(now));
        if let (Some((_, holder)), false) = (used, force) {
            let plan = holder.plan;
            let detail = format!("{path} is open by plan {plan}; end that, or remove it by force");
            return Ok(Err(Problem::new(Code::Conflict, detail)));
        }
        for plan in Plan::of_volume(connection, name.id)? {
            plan::set_state(connection, plan.id, plan::State::Ending)?;
        }
        volume.state = State::Removing;
        volume.save(connection)?;
        volume.save_lease(connection)?;
        volume::drop_segments(connection, name.id)?;
    }
    names::remove(connection, name.id)?;
    Ok(Ok(()))
}
