//! What has to hold, and who says so when it does not.

use std::collections::{BTreeMap, BTreeSet};

use netraid_control::{
    lease::Access,
    ledger::State,
    units::{AllotmentId, Generation, Moment, PlanId, SegmentId, VolumeId},
};

use super::{
    agent::Agent,
    mediator::{Mediator, initiator, is_fit},
    messages::{Granted, GrantedPart},
    plan::SKEW_MS,
};

/// What a client was given.
#[derive(Debug, Clone)]
pub struct Seen {
    /// By whom.
    pub mediator: usize,
    /// Whose it is.
    pub client: usize,
    /// What.
    pub granted: Granted,
    /// Until when its client counts on it.
    pub end_ms: u64,
    /// Its client gave it back: what it had under way has ended.
    pub is_released: bool,
    /// Its client knows that it is over.
    pub is_lost: bool,
}

/// An agent, as a check sees it.
pub struct Seat<'a> {
    /// The agent.
    pub agent: &'a Agent,
    /// Whether it is up.
    pub is_up: bool,
    /// Its clock.
    pub now: Moment,
}

/// All that was given.
#[derive(Debug, Default)]
pub struct Ledgers {
    seen: BTreeMap<PlanId, Seen>,
    /// Volumes that somebody asked to take over, and from which generation.
    taken_over_from: BTreeSet<(VolumeId, Generation)>,
    /// Plans for which a volume is to be taken over, and agents that were up since that was asked for.
    take_overs: BTreeMap<PlanId, BTreeSet<usize>>,
    /// Plans that were usable until their end, or are.
    pub granted: u64,
    /// Generations of volumes from which they were to be taken over.
    pub taken_over: u64,
}

impl Ledgers {
    /// A client was given a plan, or it goes on.
    ///
    /// # Errors
    /// When others may have written between.
    pub fn note(&mut self, seen: Seen) -> Result<(), String> {
        match self.seen.get_mut(&seen.granted.plan) {
            Some(before) if before.granted.generation != seen.granted.generation => {
                return Err(format!("plan {} goes on at another generation", seen.granted.plan));
            }
            Some(before) => {
                before.granted = seen.granted;
                before.end_ms = before.end_ms.max(seen.end_ms);
            }
            None => {
                self.granted += 1;
                self.seen.insert(seen.granted.plan, seen);
            }
        }
        Ok(())
    }

    /// A client gave a plan back.
    pub fn note_released(&mut self, plan: PlanId) {
        if let Some(seen) = self.seen.get_mut(&plan) {
            seen.is_released = true;
        }
    }

    /// A mediator was asked to take a volume over for a plan; these agents are up.
    pub fn note_take_over(
        &mut self,
        (volume, from): (VolumeId, Generation),
        plan: PlanId,
        up: &[bool],
    ) {
        let up = (0..up.len()).filter(|at| up[*at]);
        self.take_overs.entry(plan).or_default().extend(up);
        self.taken_over += u64::from(self.taken_over_from.insert((volume, from)));
    }

    /// Whether somebody who had seen it asked for that, and its mediator let them.
    fn was_taken_over(&self, seen: &Seen, mediators: &[Mediator]) -> bool {
        let (volume, plan) = (seen.granted.volume, seen.granted.plan);
        let row = mediators[seen.mediator].store.tables.volumes.get(&volume);
        let generation = seen.granted.generation;
        let row = row.filter(|row| row.lease.generation() == generation);
        let mut holders = row.into_iter().flat_map(|row| row.lease.holders());
        self.taken_over_from.contains(&(volume, generation))
            && !holders.any(|(_, holder)| holder.plan == plan)
    }

    /// A mediator has taken a volume from a holder, for a plan.
    ///
    /// # Errors
    /// When so few agents were up since it was asked for that the taker would be refused.
    pub fn note_fenced(
        &mut self,
        (volume, plan): (VolumeId, PlanId),
        up: &[bool],
        mediator: &Mediator,
    ) -> Result<(), String> {
        let asked = self.take_overs.remove(&plan).unwrap_or_default();
        let Some(row) = mediator.store.tables.volumes.get(&volume) else { return Ok(()) };
        let there = (0..up.len()).filter(|at| up[*at] || asked.contains(at)).collect();
        match is_fit(row, &there) {
            true => Ok(()),
            false => Err(format!(
                "volume {volume} was taken from its holder for plan {plan}, with agents {there:?} alone"
            )),
        }
    }

    /// Agents that are up, of which a mediator may hear for whoever asked to take something over.
    pub fn note_up(&mut self, agent: usize) {
        for up in self.take_overs.values_mut() {
            up.insert(agent);
        }
    }

    /// A client was told that its plan is over, or saw its end.
    ///
    /// # Errors
    /// When it was promised for longer.
    pub fn note_lost(
        &mut self,
        now_ms: u64,
        plan: PlanId,
        mediators: &[Mediator],
    ) -> Result<(), String> {
        let Some(seen) = self.seen.get(&plan) else { return Ok(()) };
        if now_ms < seen.end_ms && !self.was_taken_over(seen, mediators) {
            return Err(format!("plan {plan} was ended before its time, {}", seen.end_ms));
        }
        if let Some(seen) = self.seen.get_mut(&plan) {
            seen.is_lost = true;
        }
        Ok(())
    }

    /// Whether every plan is usable, and no two write.
    ///
    /// # Errors
    /// When not.
    pub fn check(
        &mut self,
        now_ms: u64,
        seats: &[Seat<'_>],
        mediators: &[Mediator],
    ) -> Result<(), String> {
        // Beyond that no clock takes its tokens.
        self.seen.retain(|_, seen| seen.end_ms + 4 * SKEW_MS > now_ms);
        for seen in self.seen.values() {
            let counts = now_ms < seen.end_ms && !seen.is_released && !seen.is_lost;
            if counts && !self.was_taken_over(seen, mediators) {
                let mediator = &mediators[seen.mediator];
                for part in &seen.granted.parts {
                    usable(seen, part, &seats[part.agent], mediator)?;
                }
            }
        }
        self.check_writers(seats)
    }

    fn check_writers(&self, seats: &[Seat<'_>]) -> Result<(), String> {
        let admitted = |seen: &Seen| -> BTreeSet<usize> {
            let name = initiator(seen.client);
            let parts = seen.granted.parts.iter().filter(|part| {
                let seat = &seats[part.agent];
                seat.is_up && seat.agent.admit(seat.now, &name, part).is_ok()
            });
            parts.map(|part| part.agent).collect()
        };
        let mut by_volume: BTreeMap<VolumeId, Vec<(&Seen, BTreeSet<usize>)>> = BTreeMap::new();
        for seen in self.seen.values().filter(|seen| !seen.is_released) {
            by_volume.entry(seen.granted.volume).or_default().push((seen, admitted(seen)));
        }
        for plans in by_volume.values() {
            for (at, (one, by_one)) in plans.iter().enumerate() {
                for (other, by_other) in &plans[..at] {
                    let writes = |seen: &Seen| seen.granted.access == Access::Write;
                    if !writes(one) && !writes(other) {
                        continue;
                    }
                    let both = by_one.intersection(by_other).next().is_some();
                    let serve = one.granted.serve_min;
                    if both || (by_one.len() >= serve && by_other.len() >= serve) {
                        let (one, other) = (one.granted.plan, other.granted.plan);
                        return Err(format!(
                            "two at once: plan {one} by {by_one:?}, plan {other} by {by_other:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

fn usable(
    seen: &Seen,
    part: &GrantedPart,
    seat: &Seat<'_>,
    mediator: &Mediator,
) -> Result<(), String> {
    let plan = seen.granted.plan;
    if !seat.is_up {
        return Ok(());
    }
    match seat.agent.admit(seat.now, &initiator(seen.client), part) {
        Ok(grant) if grant.token().rates.floor == part.floor => {}
        Ok(grant) => return Err(format!("plan {plan}: another floor, {:?}", grant.token().rates)),
        Err(why) => {
            return Err(format!("plan {plan} does not open at agent {}: {why}", part.agent));
        }
    }
    if !seat.agent.has_booked(seat.now, mediator.id, seen.granted.generation, part) {
        return Err(format!("plan {plan}: its rates are not booked at agent {}", part.agent));
    }
    Ok(())
}

/// Whether agents that have rates of a plan that is not there any more were told so, or are to be told:
/// that rates end by themselves is for mediators that are lost.
///
/// # Errors
/// When not.
pub fn check_told(agents: &[Agent], mediators: &[Mediator]) -> Result<(), String> {
    for mediator in mediators {
        let tables = &mediator.store.tables;
        let plans = tables.plans.values().flat_map(|plan| &plan.parts).map(|part| part.allotment);
        let records = tables.records.values().flat_map(|record| &record.parts);
        let known: BTreeSet<AllotmentId> =
            plans.chain(records.map(|part| part.allotment)).collect();
        for (at, agent) in agents.iter().enumerate() {
            let rates = agent.entries(mediator.id).filter(|entry| {
                entry.resources.space_bytes == 0 && matches!(entry.state, State::Committed { .. })
            });
            for entry in rates.filter(|entry| !known.contains(&entry.id)) {
                if !agent.was_told(mediator.id, entry.id) {
                    return Err(format!("agent {at} was never told that {entry:?} is over"));
                }
            }
        }
    }
    Ok(())
}

/// Whether agents have exactly what mediators think, when all is over.
///
/// # Errors
/// When not.
pub fn check_end(agents: &[Agent], mediators: &[Mediator]) -> Result<(), String> {
    for mediator in mediators {
        let tables = &mediator.store.tables;
        if let Some((id, record)) = tables.records.first_key_value() {
            return Err(format!("a decision is left: {id} {:?}", record.decision));
        }
        if let Some((id, _)) = tables.plans.first_key_value() {
            return Err(format!("plan {id} is left"));
        }
        if let Some((id, _)) = tables.volumes.iter().find(|(_, volume)| !volume.is_ready) {
            return Err(format!("volume {id} was never made"));
        }
        for (at, agent) in agents.iter().enumerate() {
            let members = tables.volumes.values().flat_map(|volume| &volume.members);
            let own = members.filter(|member| member.agent == at);
            let (mut spaces, mut segments) = (BTreeSet::new(), BTreeSet::new());
            for member in own {
                spaces.insert(member.space);
                segments.insert(member.segment);
            }
            let there: BTreeSet<AllotmentId> =
                agent.entries(mediator.id).map(|entry| entry.id).collect();
            if there != spaces {
                let entries: Vec<_> = agent.entries(mediator.id).collect();
                return Err(format!("agent {at} has {entries:?}, and should have {spaces:?}"));
            }
            let there: BTreeSet<SegmentId> = agent.segments(mediator.id).collect();
            if there != segments {
                return Err(format!("agent {at} has {there:?}, and should have {segments:?}"));
            }
        }
    }
    Ok(())
}
