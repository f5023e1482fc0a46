//! From a lease to a plan: agents raise their segments, book, and the client gets its tokens;
//! and what prolongs it.

use std::collections::BTreeSet;

use netraid_control::{
    booking::{Booking, Part as BookingPart},
    derived::{Ranges, Rights, Terms},
    lease::{Access, OpenError, Request as LeaseRequest},
    placement::{Load, Traffic},
    token::{Initiator, Rates, Token},
    units::{AllotmentId, Generation, Moment, PlanId, Rate, Resources, SegmentId, VolumeId},
};
use netraid_raid::geometry::Geometry;

use super::{
    Answer, Ask, Looking, Mediator, Open, PATIENCE_MS, Part, Planted, RETRY_MS, Raising, Renewing,
    Row, SKEW_MS, TERM_MS, Then, Transfer, booking_of, hold, is_fit, serve_min,
};
use crate::cluster::messages::{Granted, GrantedPart};

/// The name of a client's initiator.
#[must_use]
pub(crate) fn initiator(client: usize) -> String {
    format!("iqn.2026-01.example:client-{client}")
}

/// What each member gives for a plan.
fn floor_of(geometry: &Geometry, rate: Rate) -> Rate {
    let traffic = Traffic { request_bytes: 1 << 20, gathered: true, lost: 1 };
    Load::new(geometry, &traffic).rates(rate).map_or(rate, |(device, _)| device)
}

impl Mediator {
    /// A client wants a plan.
    pub(super) fn open(&mut self, now: Moment, client: usize, open: &Open) {
        if let Some(plan) = self.store.tables.plans.get(&open.plan) {
            if plan.is_granted {
                self.answer_granted(now, client, open.plan, None);
            }
            return;
        }
        let row = self.store.tables.volumes.get(&open.volume).filter(|row| row.is_ready).cloned();
        let takes_over = row.as_ref().is_some_and(|row| {
            let conflict = row.lease.conflict(now, open.access);
            conflict.is_some_and(|conflict| open.take_over == Some(conflict.generation))
        });
        if takes_over && self.planted != Some(Planted::FencedUnasked) {
            self.look(now, client, open);
            return;
        }
        // The holder has gone meanwhile: nobody has to be shut out for this plan any more.
        self.looking.remove(&open.plan);
        self.give(now, client, open);
    }

    /// Asks agents whether they are there: nobody is shut out for somebody who would be refused.
    fn look(&mut self, now: Moment, client: usize, open: &Open) {
        self.looking.entry(open.plan).or_insert_with(|| Looking {
            client,
            open: *open,
            answered: BTreeSet::new(),
            ask_at: now,
            give_up_at: now.after_ms(PATIENCE_MS),
        });
        self.advance_looking(now, open.plan);
    }

    pub(super) fn advance_looking(&mut self, now: Moment, id: PlanId) {
        let Some(looking) = self.looking.get_mut(&id) else { return };
        let volume = self.store.tables.volumes.get(&looking.open.volume);
        let Some(volume) = volume.filter(|_| now < looking.give_up_at) else {
            let client = looking.client;
            self.looking.remove(&id);
            self.answer(client, Answer::NotOpened(id, None));
            return;
        };
        if is_fit(volume, &looking.answered) {
            let (client, open) = (looking.client, looking.open);
            self.looking.remove(&id);
            self.give(now, client, &open);
            return;
        }
        if now < looking.ask_at {
            return;
        }
        looking.ask_at = now.after_ms(RETRY_MS);
        let agents: Vec<usize> = volume.members.iter().map(|member| member.agent).collect();
        for agent in agents {
            self.ask(agent, Ask::Look(id));
        }
    }

    /// Gives the lease, if it can be had.
    fn give(&mut self, now: Moment, client: usize, open: &Open) {
        let row = self.store.tables.volumes.get(&open.volume).filter(|row| row.is_ready).cloned();
        // What it had under that id is being released.
        let is_known = self.store.tables.records.contains_key(&open.plan);
        let Some(mut volume) = row.filter(|_| !is_known) else {
            self.answer(client, Answer::NotOpened(open.plan, None));
            return;
        };
        let request = LeaseRequest {
            plan: open.plan,
            access: open.access,
            term_ms: TERM_MS + self.margin_ms(),
            take_over: open.take_over,
        };
        let conflict = volume.lease.conflict(now, open.access);
        let has_holder = conflict.is_some_and(|conflict| conflict.holder.plan != open.plan);
        let (lease, granted) = match volume.lease.open(now, &request) {
            Ok(opened) => {
                self.taken_over.extend(has_holder.then_some((open.volume, open.plan)));
                opened
            }
            Err(why) => {
                let generation = match why {
                    OpenError::Conflict(conflict) => Some(conflict.generation),
                    OpenError::Different { .. }
                    | OpenError::TooMany
                    | OpenError::Term(_)
                    | OpenError::Spent(_) => None,
                };
                self.answer(client, Answer::NotOpened(open.plan, generation));
                return;
            }
        };
        let floor = floor_of(&volume.geometry, open.rate);
        volume.lease = lease;
        let mut rows = Vec::new();
        for plan in self.plans_of(open.volume) {
            if !volume.lease.holders().any(|(_, holder)| holder.plan == plan) {
                self.drop_plan(plan, false, &mut rows);
            }
        }
        let plan = Transfer {
            volume: open.volume,
            client,
            access: open.access,
            floor,
            generation: granted.generation,
            parts: Vec::new(),
            is_granted: false,
        };
        if self.planted == Some(Planted::LeaseNotStored) {
            // In memory alone.
            self.store.tables.volumes.insert(open.volume, volume);
        } else {
            rows.push(Row::Volume(open.volume, Some(volume)));
        }
        rows.push(Row::Plan(open.plan, Some(plan)));
        self.write(rows, Some(Then::Raise(open.plan)));
    }

    /// How much longer than its client was told a plan lasts: clocks differ by so much.
    const fn margin_ms(&self) -> u64 {
        match self.planted {
            Some(Planted::NoMargin) => 0,
            _ => SKEW_MS,
        }
    }

    /// Agents raise the segments of a plan's volume, where they have to.
    pub(super) fn raise_for(&mut self, now: Moment, id: PlanId) {
        let tables = &self.store.tables;
        let Some(plan) = tables.plans.get(&id) else { return };
        let Some(volume) = tables.volumes.get(&plan.volume) else { return };
        let Ok((_, granted)) = volume.lease.renew(now, id, 1) else { return };
        let members: BTreeSet<usize> = volume.members.iter().map(|member| member.agent).collect();
        if !granted.must_raise || self.planted == Some(Planted::NotRaised) {
            self.book(id, &members);
            return;
        }
        let raising = Raising {
            volume: plan.volume,
            generation: plan.generation,
            plan: Some(id),
            missing: members,
            ask_at: now,
            give_up_at: now.after_ms(PATIENCE_MS),
        };
        self.raising.insert(id, raising);
        self.advance_raising(now, id);
    }

    /// A new volume's segments are made.
    pub(super) fn make(&mut self, now: Moment, id: VolumeId) {
        let Some(volume) = self.store.tables.volumes.get(&id).filter(|row| !row.is_ready) else {
            return;
        };
        let raising = Raising {
            volume: id,
            generation: Generation(0),
            plan: None,
            missing: volume.members.iter().map(|member| member.agent).collect(),
            ask_at: now,
            give_up_at: Moment(u64::MAX),
        };
        self.raising.insert(booking_of(id), raising);
        self.advance_raising(now, booking_of(id));
    }

    /// An agent has raised a segment.
    pub(super) fn raised(
        &mut self,
        now: Moment,
        agent: usize,
        segment: SegmentId,
        generation: Generation,
    ) {
        let volumes = &self.store.tables.volumes;
        let mut changed = Vec::new();
        for (id, raising) in &mut self.raising {
            let members = volumes.get(&raising.volume).map(|row| &row.members);
            let is_its = members
                .into_iter()
                .flatten()
                .any(|member| (member.agent, member.segment) == (agent, segment));
            if is_its && generation >= raising.generation && raising.missing.remove(&agent) {
                changed.push(*id);
            }
        }
        for id in changed {
            self.advance_raising(now, id);
        }
    }

    pub(super) fn advance_raising(&mut self, now: Moment, id: PlanId) {
        let Some(raising) = self.raising.get_mut(&id) else { return };
        let Some(volume) = self.store.tables.volumes.get(&raising.volume).cloned() else {
            self.raising.remove(&id);
            return;
        };
        if raising.missing.is_empty() || now >= raising.give_up_at {
            self.end_raising(id);
            return;
        }
        if now < raising.ask_at {
            return;
        }
        raising.ask_at = now.after_ms(RETRY_MS);
        let generation = raising.generation;
        let missing = raising.missing.clone();
        for member in volume.members.iter().filter(|member| missing.contains(&member.agent)) {
            self.ask(member.agent, Ask::Raise(member.segment, generation));
        }
    }

    fn end_raising(&mut self, id: PlanId) {
        let Some(raising) = self.raising.remove(&id) else { return };
        let Some(mut volume) = self.store.tables.volumes.get(&raising.volume).cloned() else {
            return;
        };
        let all = volume.members.iter().map(|member| member.agent);
        let there: BTreeSet<usize> = all.filter(|agent| !raising.missing.contains(agent)).collect();
        let is_enough = match self.planted {
            Some(Planted::RaisedTooFew) => !there.is_empty(),
            _ => is_fit(&volume, &there),
        };
        let mut rows = Vec::new();
        if raising.missing.is_empty() {
            volume.lease = volume.lease.raised(raising.generation);
            volume.is_ready = true;
            rows.push(Row::Volume(raising.volume, Some(volume)));
            self.write(rows, None);
        } else if !is_enough {
            self.give_up_plan(id, &mut rows);
            self.write(rows, None);
            return;
        }
        match raising.plan {
            Some(plan) => self.book(plan, &there),
            None => {
                if let Some(client) = self.creators.remove(&raising.volume) {
                    self.answer(client, Answer::Created(raising.volume));
                }
            }
        }
    }

    /// The rates of a plan are to be booked on these agents: where, is stored first.
    fn book(&mut self, id: PlanId, agents: &BTreeSet<usize>) {
        let tables = &self.store.tables;
        let Some(mut plan) = tables.plans.get(&id).cloned() else { return };
        let Some(volume) = tables.volumes.get(&plan.volume).cloned() else { return };
        for member in volume.members.iter().filter(|member| agents.contains(&member.agent)) {
            let mut name = self.draw();
            if self.planted == Some(Planted::NamesAgain) {
                name = id.0;
            }
            let (agent, segment, allotment) = (member.agent, member.segment, AllotmentId(name));
            plan.parts.push(Part { agent, segment, allotment });
        }
        self.write(vec![Row::Plan(id, Some(plan))], Some(Then::Book(id)));
    }

    /// Books the rates of a plan where it says.
    pub(super) fn book_stored(&mut self, now: Moment, id: PlanId) {
        let Some(plan) = self.store.tables.plans.get(&id) else { return };
        let each = Resources { space_bytes: 0, device: plan.floor, network: plan.floor };
        let lease_ms = Some(TERM_MS + self.margin_ms());
        let generation = Some(plan.generation);
        let part = |part: &Part| {
            let hold = hold(part.allotment, part.segment, generation, each);
            BookingPart { agent: self.agents[part.agent], hold, lease_ms }
        };
        let parts: Vec<BookingPart> = plan.parts.iter().map(part).collect();
        self.bookings.insert(id, Booking::leased(now, id, &parts, PATIENCE_MS));
        self.drive(now, id);
    }

    /// What a client is given: at first, or again.
    pub(super) fn answer_granted(
        &mut self,
        now: Moment,
        client: usize,
        id: PlanId,
        round: Option<u64>,
    ) {
        let granted = self.granted(now, id);
        let answer = match (granted, round) {
            (Some(granted), None) => Answer::Opened(Box::new(granted)),
            (Some(granted), Some(round)) => Answer::Renewed(round, Box::new(granted)),
            (None, None) => Answer::NotOpened(id, None),
            (None, Some(_)) => Answer::Gone(id),
        };
        self.answer(client, answer);
    }

    fn granted(&self, now: Moment, id: PlanId) -> Option<Granted> {
        let plan = self.store.tables.plans.get(&id)?;
        let volume = self.store.tables.volumes.get(&plan.volume)?;
        let (_, holder) = volume.lease.holders().find(|(_, holder)| holder.plan == id)?;
        if holder.until <= now {
            return None;
        }
        let rights = match plan.access {
            Access::Read => Rights::READ,
            Access::Write => Rights::ALL,
        };
        let parts = plan.parts.iter().map(|part| {
            let token = Token {
                mediator: self.id,
                key: netraid_control::keys::KeyId(1),
                agent: self.agents[part.agent],
                segment: part.segment,
                plan: id,
                initiator: Initiator::named(&initiator(plan.client)),
                terms: Terms {
                    ranges: Ranges::WHOLE,
                    rights,
                    append_only: false,
                    generation: plan.generation,
                    expires: holder.until,
                },
                rates: Rates { floor: plan.floor, limit: None, weight: 1 },
                not_before: now,
            };
            let credentials = token.issue(&self.roots, now).ok()?;
            Some(GrantedPart {
                agent: part.agent,
                allotment: part.allotment,
                floor: plan.floor,
                credentials,
            })
        });
        Some(Granted {
            plan: id,
            volume: plan.volume,
            access: plan.access,
            generation: plan.generation,
            serve_min: serve_min(&volume.geometry),
            parts: parts.collect::<Option<_>>()?,
        })
    }

    /// A client wants a plan to go on.
    pub(super) fn renew(
        &mut self,
        now: Moment,
        client: usize,
        id: PlanId,
        round: u64,
        generation: Generation,
    ) {
        let tables = &self.store.tables;
        let across = self.planted == Some(Planted::RenewedAcross);
        let plan = tables.plans.get(&id).filter(|plan| plan.is_granted);
        let plan = plan.filter(|plan| across || plan.generation == generation).cloned();
        let volume = plan.as_ref().and_then(|plan| tables.volumes.get(&plan.volume)).cloned();
        let (Some(plan), Some(mut volume)) = (plan, volume) else {
            self.answer(client, Answer::Gone(id));
            return;
        };
        let term_ms = TERM_MS + self.margin_ms();
        let Ok((lease, _)) = volume.lease.renew(now, id, term_ms) else {
            self.answer(client, Answer::Gone(id));
            return;
        };
        volume.lease = lease;
        self.write(vec![Row::Volume(plan.volume, Some(volume))], None);
        let missing: BTreeSet<AllotmentId> = match self.renewing.get(&id) {
            Some(under_way) if under_way.round == round => under_way.missing.clone(),
            Some(_) | None => plan.parts.iter().map(|part| part.allotment).collect(),
        };
        for part in plan.parts.iter().filter(|part| missing.contains(&part.allotment)) {
            let ask = Ask::Renew { plan: id, round, id: part.allotment, for_ms: term_ms };
            self.ask(part.agent, ask);
        }
        self.renewing.insert(id, Renewing { round, missing });
    }

    /// An agent prolonged something, or could not.
    pub(super) fn renewed(
        &mut self,
        now: Moment,
        id: PlanId,
        round: u64,
        allotment: AllotmentId,
        is_there: bool,
    ) {
        let Some(plan) = self.store.tables.plans.get(&id).cloned() else { return };
        let Some(renewing) = self.renewing.get_mut(&id).filter(|one| one.round == round) else {
            return;
        };
        if !is_there {
            let mut rows = Vec::new();
            self.drop_plan(id, false, &mut rows);
            self.write(rows, None);
            self.answer(plan.client, Answer::Gone(id));
            return;
        }
        renewing.missing.remove(&allotment);
        if renewing.missing.is_empty() {
            self.renewing.remove(&id);
            self.answer_granted(now, plan.client, id, Some(round));
        }
    }
}
