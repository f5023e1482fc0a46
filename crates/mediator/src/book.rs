//! Runs bookings: what the machine asks for is done, and what comes of it is told to the machine.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use netraid_cluster::{
    agent::{Done, Fault, FaultCode, Operation, rates_of, space_of},
    now,
    store::StoreError,
};
use netraid_control::{
    booking::{Action, Booking, Decision, Outcome, Part, Record},
    units::{AgentId, AllotmentId, PlanId, Rate, VolumeId},
};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    core::Core,
    link::AskError,
    plan::{self, Plan},
    store::{Sql, decode, encode, usable},
    volume::{self, Member, Placed, SegmentState, Volume},
};

/// How long agents keep what is held for a booking that was not decided.
pub(crate) const HOLD_MS: u64 = 20_000;
/// How long a booking waits for an agent.
const PATIENCE_MS: u64 = 4_000;
/// How long what was decided is asked for, after a restart or in the background.
const PATIENCE_RESUMED_MS: u64 = 60_000;
/// Agents that are told what they may forget are waited for so long.
const LET_GO_LIMIT: Duration = Duration::from_secs(5);
/// From a decision that could not be stored to the next attempt.
const STORE_RETRY: Duration = Duration::from_millis(200);

/// What a booking is for: stored beside it, and done in the transactions that store its decisions.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Work {
    /// Space of a new volume.
    Create { volume: VolumeId, placed: Placed },
    /// Rates of a new plan, which is stored already: they are booked at once.
    Open { plan: PlanId, parts: Vec<plan::Part> },
    /// Rates of a plan anew, where they had ended.
    Again { plan: PlanId, parts: Vec<plan::Part> },
    /// Space, and the plan's rates, in the place of a lost member.
    Replace { volume: VolumeId, plan: PlanId, new: Member, part: Option<plan::Part> },
}

impl Work {
    /// Whether a part that is to be booked is one of this, by its agent, its segment, and the name that goes with
    /// these.
    fn has(&self, part: &Part) -> bool {
        let hold = &part.hold;
        let of_member =
            |member: &Member| (member.agent, member.segment) == (part.agent, hold.segment);
        let of_rates = |rates: &plan::Part| {
            (rates.agent, rates.segment) == (part.agent, hold.segment)
                && rates.resources == hold.resources
        };
        let is_space = hold.id == space_of(hold.segment) && part.lease_ms.is_none();
        let is_of = |plan: PlanId| hold.id == rates_of(plan) && part.lease_ms.is_some();
        match self {
            Self::Create { placed, .. } => is_space && placed.members.iter().any(of_member),
            Self::Open { plan, parts } | Self::Again { plan, parts } => {
                is_of(*plan) && parts.iter().any(of_rates)
            }
            Self::Replace { plan, new, part: rates, .. } => {
                let has_rates = is_of(*plan) && rates.as_ref().is_some_and(of_rates);
                has_rates || (is_space && of_member(new))
            }
        }
    }

    /// All agents hold what was asked, and are about to be told to commit.
    fn handle_decided(&self, connection: &Connection) -> Sql<()> {
        match self {
            Self::Create { volume, placed } => {
                let Some(mut volume) = Volume::load(connection, *volume)? else { return Ok(()) };
                volume.record.placed = Some(placed.clone());
                volume.save(connection)?;
                placed.members.iter().try_for_each(|member| {
                    volume::insert_segment(connection, volume.id, member, SegmentState::Live)
                })
            }
            Self::Replace { volume, new, .. } => {
                volume::insert_segment(connection, *volume, new, SegmentState::Spare)
            }
            Self::Open { .. } | Self::Again { .. } => Ok(()),
        }
    }

    /// All agents have committed. Whether what it was for is there.
    fn handle_booked(&self, connection: &Connection) -> Sql<bool> {
        match self {
            Self::Create { volume, .. } => {
                let Some(mut volume) = Volume::load(connection, *volume)? else {
                    return Ok(false);
                };
                volume.state = volume::State::Booked;
                volume.save(connection)?;
            }
            Self::Open { plan, parts } | Self::Again { plan, parts } => {
                let Some(mut plan) = Plan::load(connection, *plan)? else { return Ok(false) };
                plan.record.parts.retain(|old| !parts.iter().any(|new| new.agent == old.agent));
                plan.record.parts.extend(parts);
                if plan.state == plan::State::Opening {
                    plan.state = plan::State::Open;
                }
                plan.save(connection)?;
            }
            Self::Replace { plan, new, part, .. } => {
                // After a restart nobody goes on with it: then the segment is to be removed.
                let is_wanted = volume::is_spare(connection, new.segment)?;
                let plan = Plan::load(connection, *plan)?.filter(|_| is_wanted);
                let (Some(mut plan), Some(part)) = (plan, part) else { return Ok(false) };
                plan.record.parts.retain(|old| old.agent != part.agent);
                plan.record.parts.push(*part);
                plan.record.agents.push(part.agent);
                plan.save(connection)?;
            }
        }
        Ok(true)
    }

    /// All agents have released it.
    fn handle_released(&self, connection: &Connection) -> Sql<()> {
        match self {
            Self::Create { placed, .. } => placed
                .members
                .iter()
                .try_for_each(|member| volume::delete_segment(connection, member.segment)),
            Self::Open { plan, .. } => abandon(connection, *plan),
            Self::Replace { new, .. } => volume::delete_segment(connection, new.segment),
            Self::Again { .. } => Ok(()),
        }
    }
}

/// Takes back a plan whose tokens nobody has. What agents have for it is to be ended: then it is
/// forgotten.
pub(crate) fn abandon(connection: &Connection, id: PlanId) -> Sql<()> {
    let Some(mut plan) = Plan::load(connection, id)? else { return Ok(()) };
    if plan.state != plan::State::Opening {
        return Ok(());
    }
    if let Some(mut volume) = Volume::load(connection, plan.volume)? {
        // It could not be written to: it is as it was before.
        volume.release(id, plan.record.clean_close.clone());
        volume.save_lease(connection)?;
    }
    if plan.record.rate > Rate::ZERO {
        (plan.state, plan.record.is_unissued) = (plan::State::Ending, true);
        return plan.save(connection);
    }
    plan::delete(connection, id)
}

fn store_record(connection: &Connection, record: &Record, work: &Work) -> Sql<()> {
    match record.decision {
        // Nothing is left to be done: no record of it is needed. What was decided is booked, whatever it
        // was for; what is booked at once ends with that.
        Decision::Booked => {
            let is_there = work.handle_booked(connection)?;
            let was_decided = forget(connection, record.id)?;
            return match is_there || was_decided {
                true => Ok(()),
                false => Err(rusqlite::Error::QueryReturnedNoRows),
            };
        }
        Decision::Commit => work.handle_decided(connection)?,
        Decision::Release => {}
    }
    let sql = "INSERT OR REPLACE INTO bookings VALUES (?1, ?2, ?3)";
    let values = params![record.id.0, encode(record)?, encode(work)?];
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

/// Whether there was one.
fn forget(connection: &Connection, id: PlanId) -> Sql<bool> {
    let sql = "DELETE FROM bookings WHERE id = ?1";
    connection.prepare_cached(sql)?.execute([id.0]).map(|count| count > 0)
}

/// Bookings that are stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) usable: Vec<(Record, Work)>,
    /// There are others, which are set aside: what they are for cannot be told from what nobody works on.
    pub(crate) has_aside: bool,
}

impl Stored {
    /// Whether it may be that a plan is opened by one.
    pub(crate) fn may_open(&self, id: PlanId) -> bool {
        let is_its = |work: &Work| matches!(work, Work::Open { plan, .. } if *plan == id);
        self.has_aside || self.usable.iter().any(|(_, work)| is_its(work))
    }

    /// Whether it may be that a volume is made by one.
    pub(crate) fn may_make(&self, id: VolumeId) -> bool {
        let is_its = |work: &Work| matches!(work, Work::Create { volume, .. } if *volume == id);
        self.has_aside || self.usable.iter().any(|(_, work)| is_its(work))
    }
}

/// All that are stored.
pub(crate) fn stored(connection: &Connection) -> Sql<Stored> {
    let mut query = connection.prepare("SELECT id, record, work FROM bookings")?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok((decode(row.get_ref(1)?.as_str()?)?, decode(row.get_ref(2)?.as_str()?)?))
    };
    let (usable, aside) = usable(&mut query, [], "bookings", read)?;
    Ok(Stored { usable, has_aside: aside > 0 })
}

/// How a booking ended for whoever wants it.
pub(crate) type Booked = Outcome<Fault>;

/// Books all parts or none. What has to be done after that is known goes on by itself; but a plan whose
/// rates are not booked is ended by the caller.
pub(crate) async fn book(core: &Arc<Core>, parts: &[Part], work: Work) -> Booked {
    // Else the transaction that stores the booking would give away what nobody has booked.
    for part in parts {
        assert!(work.has(part), "{part:?} is booked for {work:?}");
    }
    let id = PlanId(rand::random());
    let booking = match work {
        Work::Open { .. } => Booking::leased(now(), id, parts, PATIENCE_MS),
        Work::Create { .. } | Work::Again { .. } | Work::Replace { .. } => {
            Booking::new(now(), id, parts, PATIENCE_MS)
        }
    };
    let last = parts.last().map_or(AgentId([0; 16]), |part| part.agent);
    // When the driver ends without a word, the store is broken.
    start(core, booking, work).await.unwrap_or(Outcome::TooLate(last))
}

/// Goes on with a booking that was stored.
pub(crate) fn resume(
    core: &Arc<Core>,
    record: &Record,
    work: Work,
) -> Option<oneshot::Receiver<Booked>> {
    let booking = Booking::resume(now(), record, PATIENCE_RESUMED_MS)?;
    Some(start(core, booking, work))
}

fn start(core: &Arc<Core>, booking: Booking<Fault>, work: Work) -> oneshot::Receiver<Booked> {
    let (sender, receiver) = oneshot::channel();
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let _counted = core.bookings.count();
        Driver { core: &core, booking, work, flying: FuturesUnordered::new() }.run(sender).await;
    });
    receiver
}

/// What came of an action.
enum Event {
    Held(AgentId, AllotmentId, Result<Done, AskError>),
    Committed(AgentId, AllotmentId, Result<Done, AskError>),
    Leased(AgentId, AllotmentId, Result<Done, AskError>),
    Released(AgentId, AllotmentId, Result<Done, AskError>),
    Stored(Result<(), StoreError>),
    Forgotten(PlanId, Result<(), StoreError>),
}

struct Driver<'a> {
    core: &'a Arc<Core>,
    booking: Booking<Fault>,
    work: Work,
    flying: FuturesUnordered<BoxFuture<'static, Event>>,
}

impl Driver<'_> {
    async fn run(mut self, sender: oneshot::Sender<Booked>) {
        let mut sender = Some(sender);
        loop {
            while let Some(action) = self.booking.poll_action() {
                let event = self.execute(action);
                self.flying.push(event);
            }
            if let Some(outcome) = self.booking.outcome()
                && let Some(sender) = sender.take()
            {
                // Nobody may wait any more.
                let _ = sender.send(outcome.clone());
            }
            if self.booking.is_over() {
                break;
            }
            let timeout = self.booking.next_timeout();
            let wait = timeout.map(|at| Duration::from_millis(at.since_ms(now()).max(1)));
            tokio::select! {
                Some(event) = self.flying.next(), if !self.flying.is_empty() => {
                    if !self.handle(event) {
                        return;
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {
                    self.booking.handle_timeout(now());
                }
                else => return,
            }
        }
        let last = async {
            while let Some(event) = self.flying.next().await {
                if !self.handle(event) {
                    return;
                }
                while let Some(action) = self.booking.poll_action() {
                    let event = self.execute(action);
                    self.flying.push(event);
                }
            }
        };
        let _ = tokio::time::timeout(LET_GO_LIMIT, last).await;
    }

    fn execute(&self, action: Action) -> BoxFuture<'static, Event> {
        let agents = &self.core.agents;
        match action {
            Action::Hold(agent, hold) => {
                let asked = agents.ask(agent, Operation::Hold(hold));
                async move { Event::Held(agent, hold.id, asked.await) }.boxed()
            }
            Action::Commit(agent, commit) => {
                let asked = agents.ask(agent, Operation::Commit(commit));
                async move { Event::Committed(agent, commit.id, asked.await) }.boxed()
            }
            Action::Book(agent, hold, lease_ms) => {
                let asked = agents.ask(agent, Operation::Book { hold, lease_ms });
                async move { Event::Leased(agent, hold.id, asked.await) }.boxed()
            }
            Action::Release(agent, id) => {
                let asked = agents.ask(agent, Operation::Release { id });
                async move { Event::Released(agent, id, asked.await) }.boxed()
            }
            Action::Store(record) => {
                let work = self.work.clone();
                let stored =
                    move |connection: &Connection| store_record(connection, &record, &work);
                let stored = self.core.store.write(stored);
                async move {
                    let stored = stored.await;
                    if stored.is_err() {
                        // What has to be stored is tried for ever; not as fast as that goes.
                        tokio::time::sleep(STORE_RETRY).await;
                    }
                    Event::Stored(stored)
                }
                .boxed()
            }
            Action::Forget(id) => {
                let work = self.work.clone();
                let forgotten = self.core.store.write(move |connection| {
                    work.handle_released(connection)?;
                    forget(connection, id).map(drop)
                });
                async move { Event::Forgotten(id, forgotten.await) }.boxed()
            }
        }
    }

    /// Whether to go on: not when it is not certain what is stored.
    fn handle(&mut self, event: Event) -> bool {
        let now = now();
        match event {
            Event::Held(agent, id, Ok(Done::Booked(allotment))) => {
                self.booking.handle_held(now, agent, id, allotment.serial);
            }
            Event::Held(agent, id, Err(AskError::Fault(fault)))
            | Event::Leased(agent, id, Err(AskError::Fault(fault)))
                if is_final(&fault) =>
            {
                self.booking.handle_refused(now, agent, id, fault);
            }
            Event::Held(agent, id, Err(AskError::Lost(detail)))
            | Event::Leased(agent, id, Err(AskError::Lost(detail)))
                if !self.core.agents.is_reachable(agent) =>
            {
                let fault = Fault { code: FaultCode::Failed, detail };
                self.booking.handle_refused(now, agent, id, fault);
            }
            // Asked again when it is time; why it failed is told if that is in vain.
            Event::Held(agent, id, Err(AskError::Fault(fault)))
            | Event::Committed(agent, id, Err(AskError::Fault(fault)))
            | Event::Leased(agent, id, Err(AskError::Fault(fault)))
                if fault.code != FaultCode::Absent =>
            {
                self.booking.handle_failed(agent, id, fault);
            }
            Event::Committed(agent, id, Ok(_)) | Event::Leased(agent, id, Ok(_)) => {
                self.booking.handle_committed(now, agent, id);
            }
            Event::Committed(agent, id, Err(AskError::Fault(fault)))
                if fault.code == FaultCode::Absent =>
            {
                self.booking.handle_absent(agent, id);
            }
            Event::Released(agent, id, Ok(_)) => self.booking.handle_released(now, agent, id),
            // Asked again when it is time.
            Event::Held(..) | Event::Committed(..) | Event::Leased(..) | Event::Released(..) => {}
            Event::Stored(Ok(())) => self.booking.handle_stored(now),
            Event::Stored(Err(
                StoreError::Failed(why) | StoreError::Full(why) | StoreError::Unreadable(why),
            )) => {
                tracing::error!("a booking is not stored: {why}");
                self.booking.handle_store_failed(now);
            }
            Event::Stored(Err(StoreError::Broken(_))) => return false,
            Event::Forgotten(_, Ok(())) => {}
            // It stays until the next start, which releases again what is released.
            Event::Forgotten(id, Err(error)) => tracing::warn!("booking {id}: {error}"),
        }
        true
    }
}

/// Whether asking again is in vain.
pub(crate) const fn is_final(fault: &Fault) -> bool {
    match fault.code {
        FaultCode::Short
        | FaultCode::Absent
        | FaultCode::Conflict
        | FaultCode::Invalid
        | FaultCode::Draining
        | FaultCode::Full => true,
        FaultCode::Busy | FaultCode::Failed => false,
    }
}
