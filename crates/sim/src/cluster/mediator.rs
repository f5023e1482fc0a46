//! A mediator: the product's machines and functions, and around them what stores, sends and waits.
//!
//! ```text
//! open: lease, stored ──▶ agents raise ──▶ where it books, stored ──▶ agents book
//!                                      ──▶ plan, stored ──▶ the client has it
//! ```
//!
//! Whatever goes to a client waits until all that was written before is synced. What a booking does
//! waits as its machine says. A plan's lease, tokens and allotments last longer than its client was
//! told, by as much as clocks may differ, because each of them is counted by another clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netraid_control::{
    booking::{Action, Booking, Decision, Outcome, Part as BookingPart, Record},
    fencing,
    keys::{Ring, RootKey},
    lease::LeaseState,
    ledger::{Hold, Purpose},
    placement::{AgentState, Domain, Wanted, place},
    units::{
        AgentId, AllotmentId, Generation, MediatorId, Moment, PlanId, Rate, Resources, SegmentId,
        VolumeId,
    },
};
use netraid_raid::{
    geometry::{Geometry, Level},
    member::MemberIndex,
};
use rand::RngCore as _;

use super::{
    messages::{Answer, Ask, Message, Node, Open, Reply, Request},
    plan::{HOLD_MS, PATIENCE_MS, Planted, SKEW_MS, TERM_MS},
    rows::{Member, Part, Row, Store, Transfer, Volume},
};
use crate::dice::Dice;

mod grant;

pub(super) use grant::initiator;

/// From one asking to the next.
const RETRY_MS: u64 = 700;

/// What waits for the store.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The decision of a booking is stored.
    Booking(PlanId),
    /// That something is to be released is stored, and nothing is under way for it.
    Release(PlanId),
    /// A plan's lease is stored.
    Raise(PlanId),
    /// Where a plan's rates are to be booked is stored.
    Book(PlanId),
    /// A volume's booking is stored.
    Make(VolumeId),
}

/// Agents that raise a volume's segments.
#[derive(Debug)]
struct Raising {
    volume: VolumeId,
    generation: Generation,
    /// None when its segments are made.
    plan: Option<PlanId>,
    missing: BTreeSet<usize>,
    ask_at: Moment,
    give_up_at: Moment,
}

/// Agents that are asked whether they are there, before a holder is shut out.
#[derive(Debug)]
struct Looking {
    client: usize,
    open: Open,
    answered: BTreeSet<usize>,
    ask_at: Moment,
    give_up_at: Moment,
}

/// A renewal under way.
#[derive(Debug)]
struct Renewing {
    round: u64,
    missing: BTreeSet<AllotmentId>,
}

/// A mediator.
#[derive(Debug)]
pub struct Mediator {
    /// Its name.
    pub id: MediatorId,
    /// What it stores.
    pub store: Store,
    /// What it last heard of agents.
    pub view: Vec<AgentState>,
    roots: Ring<RootKey>,
    agents: Vec<AgentId>,
    ids: Dice,
    bookings: BTreeMap<PlanId, Booking<()>>,
    /// By plan, or by a volume that is made.
    raising: BTreeMap<PlanId, Raising>,
    /// Those who want to take a volume over.
    looking: BTreeMap<PlanId, Looking>,
    /// Volumes that were taken from a holder, and for which plan: for who checks that.
    taken_over: Vec<(VolumeId, PlanId)>,
    renewing: BTreeMap<PlanId, Renewing>,
    /// Who asked for a volume.
    creators: BTreeMap<VolumeId, usize>,
    then: VecDeque<(u64, Then)>,
    /// With the transaction that each waits for.
    outbox: VecDeque<(u64, Node, Message)>,
    planted: Option<Planted>,
}

const fn booking_of(volume: VolumeId) -> PlanId {
    PlanId(volume.0)
}

/// Fewest members of a shape that can serve, whichever.
#[must_use]
pub fn serve_min(geometry: &Geometry) -> usize {
    match geometry.level() {
        Level::Raid1 => 1,
        Level::Raid10 => usize::from(geometry.members()) / 2,
        Level::Raid0 | Level::Raid5 | Level::Raid6 => {
            usize::from(geometry.members()) - geometry.tolerance() as usize
        }
    }
}

/// Whether the agents that answer are enough to shut a holder out and to serve another.
pub(super) fn is_fit(volume: &Volume, there: &BTreeSet<usize>) -> bool {
    let indices = (0..).map(MemberIndex).zip(&volume.members);
    let answering = indices.filter(|(_, member)| there.contains(&member.agent));
    fencing::judge(&volume.geometry, answering.map(|(at, _)| at).collect()).is_ok()
}

impl Mediator {
    /// A new one, which shares keys with these agents.
    #[must_use]
    pub fn new(
        id: MediatorId,
        roots: Ring<RootKey>,
        agents: Vec<AgentId>,
        ids: Dice,
        planted: Option<Planted>,
    ) -> Self {
        Self {
            id,
            store: Store::default(),
            view: Vec::new(),
            roots,
            agents,
            ids,
            bookings: BTreeMap::new(),
            raising: BTreeMap::new(),
            looking: BTreeMap::new(),
            taken_over: Vec::new(),
            renewing: BTreeMap::new(),
            creators: BTreeMap::new(),
            then: VecDeque::new(),
            outbox: VecDeque::new(),
            planted,
        }
    }

    fn draw(&mut self) -> [u8; 16] {
        let mut id = [0; 16];
        self.ids.fill_bytes(&mut id);
        id
    }

    fn agent_at(&self, id: AgentId) -> usize {
        self.agents.iter().position(|agent| *agent == id).unwrap_or(0)
    }

    /// To an agent, at once.
    fn ask(&mut self, agent: usize, ask: Ask) {
        self.outbox.push_back((0, Node::Agent(agent), Message::Ask(ask)));
    }

    /// To a client, when all is synced that was written.
    fn answer(&mut self, client: usize, answer: Answer) {
        let at = match self.planted {
            Some(Planted::OpenBeforeStored) => 0,
            _ => self.store.written(),
        };
        self.outbox.push_back((at, Node::Client(client), Message::Answer(answer)));
    }

    fn write(&mut self, rows: Vec<Row>, then: Option<Then>) {
        let at = self.store.write(rows);
        if let Some(then) = then {
            self.then.push_back((at, then));
        }
    }

    /// A volume that was taken from a holder, and for which plan.
    pub fn poll_taken_over(&mut self) -> Option<(VolumeId, PlanId)> {
        self.taken_over.pop()
    }

    /// A message that may leave.
    pub fn poll_message(&mut self) -> Option<(Node, Message)> {
        let synced = self.store.synced();
        let at = self.outbox.iter().position(|(at, ..)| *at <= synced)?;
        let (_, to, message) = self.outbox.remove(at)?;
        Some((to, message))
    }

    /// So many transactions are synced.
    pub fn handle_synced(&mut self, now: Moment, count: usize) {
        self.store.handle_synced(count);
        while let Some((at, then)) = self.then.front().copied() {
            if at > self.store.synced() {
                break;
            }
            self.then.pop_front();
            match then {
                Then::Booking(plan) => {
                    if let Some(booking) = self.bookings.get_mut(&plan) {
                        booking.handle_stored(now);
                        self.drive(now, plan);
                    }
                }
                Then::Release(id) => {
                    if let Some(record) = self.store.tables.records.get(&id).cloned() {
                        self.resume(now, &record);
                    }
                }
                Then::Raise(plan) => self.raise_for(now, plan),
                Then::Book(plan) => self.book_stored(now, plan),
                Then::Make(volume) => self.make(now, volume),
            }
        }
    }

    /// Ends, and begins again with what is stored.
    pub fn crash(&mut self, now: Moment, dice: &mut Dice) {
        self.store.crash(dice);
        self.bookings.clear();
        self.raising.clear();
        self.looking.clear();
        self.renewing.clear();
        self.creators.clear();
        self.then.clear();
        self.outbox.clear();
        if self.planted == Some(Planted::NotResumed) {
            return;
        }
        let records: Vec<Record> = self.store.tables.records.values().cloned().collect();
        for record in records {
            self.resume(now, &record);
        }
        let tables = &self.store.tables;
        let is_booked = |plan: PlanId| tables.records.contains_key(&plan);
        let volumes = tables
            .volumes
            .iter()
            .filter(|(id, volume)| !volume.is_ready && !is_booked(booking_of(**id)));
        let making: Vec<VolumeId> = volumes.map(|(id, _)| *id).collect();
        // Nobody was given them, and nothing is decided.
        let opening = tables.plans.iter().filter(|(id, plan)| !plan.is_granted && !is_booked(**id));
        let opening: Vec<PlanId> = opening.map(|(id, _)| *id).collect();
        for volume in making {
            self.make(now, volume);
        }
        for plan in opening {
            let mut rows = Vec::new();
            self.drop_plan(plan, true, &mut rows);
            self.write(rows, None);
        }
    }

    fn resume(&mut self, now: Moment, record: &Record) {
        if let Some(booking) = Booking::resume(now, record, PATIENCE_MS) {
            self.bookings.insert(record.id, booking);
            self.drive(now, record.id);
        }
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Moment) {
        let due: Vec<PlanId> = self
            .bookings
            .iter()
            .filter(|(_, booking)| booking.next_timeout().is_some_and(|next| next <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if let Some(booking) = self.bookings.get_mut(&id) {
                booking.handle_timeout(now);
            }
            self.drive(now, id);
        }
        let raising: Vec<PlanId> = self.raising.keys().copied().collect();
        for id in raising {
            self.advance_raising(now, id);
        }
        let looking: Vec<PlanId> = self.looking.keys().copied().collect();
        for id in looking {
            self.advance_looking(now, id);
        }
        self.sweep(now);
    }

    /// Plans that are over go; their leases stay until somebody wants them.
    fn sweep(&mut self, now: Moment) {
        let tables = &self.store.tables;
        let is_over = |(id, plan): &(&PlanId, &Transfer)| {
            let volume = tables.volumes.get(&plan.volume);
            let holder = volume
                .and_then(|volume| volume.lease.holders().find(|(_, holder)| holder.plan == **id));
            plan.is_granted
                && holder.is_none_or(|(_, holder)| holder.until.after_ms(SKEW_MS) <= now)
        };
        let over: Vec<PlanId> = tables.plans.iter().filter(is_over).map(|(id, _)| *id).collect();
        for plan in over {
            let mut rows = Vec::new();
            self.drop_plan(plan, false, &mut rows);
            self.write(rows, None);
        }
    }

    /// A client asks for something.
    pub fn handle_request(&mut self, now: Moment, client: usize, request: &Request) {
        match request {
            Request::Create { volume, size_bytes, shape } => {
                self.create(now, client, *volume, *size_bytes, *shape);
            }
            Request::Delete(volume) => self.delete(now, client, *volume),
            Request::Open(open) => self.open(now, client, open),
            Request::Renew { plan, round, generation } => {
                self.renew(now, client, *plan, *round, *generation);
            }
            Request::Release(plan) => {
                self.looking.remove(plan);
                let mut rows = Vec::new();
                self.drop_plan(*plan, true, &mut rows);
                if !rows.is_empty() {
                    self.write(rows, None);
                }
                self.answer(client, Answer::Released(*plan));
            }
        }
    }

    fn create(
        &mut self,
        now: Moment,
        client: usize,
        volume: VolumeId,
        size_bytes: u64,
        (level, members): (Level, usize),
    ) {
        if let Some(row) = self.store.tables.volumes.get(&volume) {
            if row.is_ready {
                self.answer(client, Answer::Created(volume));
            }
            return;
        }
        let id = booking_of(volume);
        if self.bookings.contains_key(&id) || self.store.tables.records.contains_key(&id) {
            return;
        }
        let wanted = Wanted {
            level: Some(level),
            members: Some(members),
            survives: if level == Level::Raid0 { 0 } else { 1 },
            spread: Domain::Agent,
            chunk_len: Some(64 << 10),
            ..Wanted::new(size_bytes, Rate::ZERO)
        };
        let Ok(placed) = place(&wanted, &self.view) else {
            self.answer(client, Answer::NotCreated(volume));
            return;
        };
        let Ok(geometry) = Geometry::new(placed.level, members, placed.chunk_len, 512, 16, 0)
        else {
            unreachable!("{placed:?} is placed, and no shape")
        };
        let members: Vec<Member> = placed
            .members
            .iter()
            .map(|agent| Member {
                agent: self.agent_at(*agent),
                segment: SegmentId(self.draw_segment()),
                space: AllotmentId(self.draw()),
            })
            .collect();
        let parts: Vec<BookingPart> = members
            .iter()
            .map(|member| BookingPart {
                agent: self.agents[member.agent],
                hold: hold(member.space, member.segment, None, placed.each),
                lease_ms: None,
            })
            .collect();
        // Kept in memory until there is a decision: what is not decided was never there.
        self.creators.insert(volume, client);
        let lease = LeaseState::default();
        let row = Volume { geometry, members, lease, is_ready: false };
        self.store.tables.volumes.insert(volume, row);
        self.bookings.insert(id, Booking::new(now, id, &parts, PATIENCE_MS));
        self.drive(now, id);
    }

    /// Segments are named by random bytes, which no two mediators have in common; allotments
    /// here are, to see that it does not matter.
    fn draw_segment(&mut self) -> [u8; 16] {
        let mut id = self.draw();
        id[0] = self.id.0[0];
        id
    }

    fn delete(&mut self, now: Moment, client: usize, volume: VolumeId) {
        let Some(row) = self.store.tables.volumes.get(&volume).cloned() else {
            self.answer(client, Answer::Deleted(volume, true));
            return;
        };
        let wanted = netraid_control::lease::Access::Write;
        if !row.is_ready || row.lease.conflict(now, wanted).is_some() {
            self.answer(client, Answer::Deleted(volume, false));
            return;
        }
        let mut rows = Vec::new();
        for plan in self.plans_of(volume) {
            self.drop_plan(plan, true, &mut rows);
        }
        let id = PlanId(self.draw());
        let part = |member: &Member| netraid_control::booking::RecordPart {
            agent: self.agents[member.agent],
            allotment: member.space,
            serial: 0,
            lease_ms: None,
        };
        let parts = row.members.iter().map(part).collect();
        let record = Record { id, decision: Decision::Release, parts };
        rows.push(Row::Record(id, Some(record)));
        rows.push(Row::Volume(volume, None));
        // It is carried out once it is stored: what is released is lost.
        self.write(rows, Some(Then::Release(id)));
        self.answer(client, Answer::Deleted(volume, true));
    }

    fn plans_of(&self, volume: VolumeId) -> Vec<PlanId> {
        let own = self.store.tables.plans.iter().filter(|(_, plan)| plan.volume == volume);
        own.map(|(id, _)| *id).collect()
    }

    /// An agent answers.
    pub fn handle_reply(&mut self, now: Moment, agent: usize, reply: &Reply) {
        let from = self.agents[agent];
        match *reply {
            Reply::Held(id, serial) => {
                self.tell(now, |booking| booking.handle_held(now, from, id, serial));
            }
            Reply::Refused(id) => {
                self.tell(now, |booking| booking.handle_refused(now, from, id, ()));
            }
            Reply::Committed(id) => {
                self.tell(now, |booking| booking.handle_committed(now, from, id));
            }
            Reply::Absent(id) => self.tell(now, |booking| booking.handle_absent(from, id)),
            Reply::Released(id) => {
                self.tell(now, |booking| booking.handle_released(now, from, id));
            }
            Reply::Renewed { plan, round, id, is_there } => {
                self.renewed(now, plan, round, id, is_there);
            }
            Reply::Raised(segment, generation) => self.raised(now, agent, segment, generation),
            Reply::There(plan) => {
                if let Some(looking) = self.looking.get_mut(&plan) {
                    looking.answered.insert(agent);
                    self.advance_looking(now, plan);
                }
            }
        }
    }

    /// All bookings hear it: each knows what is its own.
    fn tell(&mut self, now: Moment, tell: impl Fn(&mut Booking<()>)) {
        let ids: Vec<PlanId> = self.bookings.keys().copied().collect();
        for id in ids {
            if let Some(booking) = self.bookings.get_mut(&id) {
                tell(booking);
            }
            self.drive(now, id);
        }
    }

    /// Does what a booking wants done, and what comes of its end.
    fn drive(&mut self, now: Moment, id: PlanId) {
        while let Some(action) = self.bookings.get_mut(&id).and_then(Booking::poll_action) {
            match action {
                Action::Hold(agent, hold) => self.ask(self.agent_at(agent), Ask::Hold(hold)),
                Action::Commit(agent, commit) => {
                    self.ask(self.agent_at(agent), Ask::Commit(commit));
                }
                Action::Book(agent, hold, lease_ms) => {
                    self.ask(self.agent_at(agent), Ask::Book(hold, lease_ms));
                }
                Action::Release(agent, allotment) => {
                    self.ask(self.agent_at(agent), Ask::Release(allotment));
                }
                Action::Store(record) => self.decide(now, record),
                Action::Forget(id) => self.write(vec![Row::Record(id, None)], None),
            }
        }
        let Some(booking) = self.bookings.get(&id) else { return };
        let is_over = booking.is_over();
        let is_booked = booking.outcome() == Some(&Outcome::Booked);
        if is_over && !is_booked {
            self.bookings.remove(&id);
            self.not_booked(id);
        } else if is_over {
            self.bookings.remove(&id);
        }
    }

    /// A booking's decision is stored with what it is for.
    fn decide(&mut self, now: Moment, record: Record) {
        let id = record.id;
        let volume = VolumeId(id.0);
        let creating = self.store.tables.volumes.get(&volume).filter(|row| !row.is_ready).cloned();
        let transfer = self.store.tables.plans.get(&id).cloned();
        let decision = record.decision;
        if creating.is_none() && decision == Decision::Commit {
            // What it was for is gone meanwhile.
            if let Some(booking) = self.bookings.get_mut(&id) {
                booking.handle_store_failed(now);
            }
            return;
        }
        let mut rows = Vec::new();
        let mut client = None;
        match decision {
            Decision::Commit => {
                rows.push(Row::Record(id, Some(record)));
                if let Some(row) = creating {
                    rows.push(Row::Volume(volume, Some(row)));
                }
            }
            Decision::Booked => {
                rows.push(Row::Record(id, None));
                if let Some(mut plan) = transfer {
                    plan.is_granted = true;
                    client = Some(plan.client);
                    rows.push(Row::Plan(id, Some(plan)));
                }
            }
            Decision::Release => {
                rows.push(Row::Record(id, Some(record)));
                if creating.is_some() {
                    rows.push(Row::Volume(volume, None));
                }
            }
        }
        let is_made = decision == Decision::Booked && client.is_none();
        self.write(rows, Some(Then::Booking(id)));
        if is_made {
            self.then.push_back((self.store.written(), Then::Make(volume)));
        }
        if let Some(client) = client {
            self.answer_granted(now, client, id, None);
        }
        if self.planted == Some(Planted::CommitBeforeStored)
            && let Some(booking) = self.bookings.get_mut(&id)
        {
            booking.handle_stored(now);
        }
    }

    /// A plan that nobody was given is none; its lease is free.
    fn give_up_plan(&mut self, id: PlanId, rows: &mut Vec<Row>) {
        let Some(plan) = self.store.tables.plans.get(&id).cloned() else { return };
        rows.push(Row::Plan(id, None));
        if let Some(mut volume) = self.store.tables.volumes.get(&plan.volume).cloned() {
            volume.lease = volume.lease.release(id);
            rows.push(Row::Volume(plan.volume, Some(volume)));
        }
        self.answer(plan.client, Answer::NotOpened(id, None));
    }

    /// A booking ended without being booked, and without a decision or after it.
    fn not_booked(&mut self, id: PlanId) {
        let volume = VolumeId(id.0);
        let mut rows = Vec::new();
        let creating = self.store.tables.volumes.get(&volume).is_some_and(|row| !row.is_ready);
        if creating {
            rows.push(Row::Volume(volume, None));
        }
        if let Some(client) = self.creators.remove(&volume) {
            self.answer(client, Answer::NotCreated(volume));
        }
        let opener = self.store.tables.plans.get(&id).map(|plan| plan.client);
        self.drop_plan(id, true, &mut rows);
        if !rows.is_empty() {
            self.write(rows, None);
        }
        if let Some(client) = opener {
            self.answer(client, Answer::NotOpened(id, None));
        }
    }

    /// Ends a plan: what it has is released, its lease too where its client gave it back. The rows
    /// are to be written at once.
    fn drop_plan(&mut self, id: PlanId, gave_back: bool, rows: &mut Vec<Row>) {
        let Some(plan) = self.store.tables.plans.get(&id).cloned() else { return };
        self.raising.remove(&id);
        self.renewing.remove(&id);
        self.bookings.remove(&id);
        rows.push(Row::Plan(id, None));
        if gave_back && let Some(mut volume) = self.store.tables.volumes.get(&plan.volume).cloned()
        {
            volume.lease = volume.lease.release(id);
            self.store.tables.volumes.insert(plan.volume, volume.clone());
            rows.push(Row::Volume(plan.volume, Some(volume)));
        }
        self.store.tables.plans.remove(&id);
        if plan.parts.is_empty() || self.planted == Some(Planted::NotTurnedRound) {
            return;
        }
        let part = |part: &Part| netraid_control::booking::RecordPart {
            agent: self.agents[part.agent],
            allotment: part.allotment,
            serial: 0,
            lease_ms: None,
        };
        let parts = plan.parts.iter().map(part).collect();
        let record = Record { id, decision: Decision::Release, parts };
        rows.push(Row::Record(id, Some(record)));
        // Once it is stored.
        self.then.push_back((self.store.written() + 1, Then::Release(id)));
    }
}

/// What is asked of an agent.
fn hold(
    id: AllotmentId,
    segment: SegmentId,
    generation: Option<Generation>,
    resources: Resources,
) -> Hold {
    Hold { id, segment, generation, purpose: Purpose::Client, resources, for_ms: HOLD_MS }
}
