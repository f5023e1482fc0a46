//! What is booked, and which segments there are: the ledger, a table of segments, and what of them the
//! store does not have yet. No input or output, no clock; the [`keeper`](crate::keeper) owns the one there is.
//!
//! What is not durable counts at once for all that follows. When the store did not take it, all of it
//! is taken back, but for generations: a higher one only keeps more out.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use netraid_cluster::agent::{
    Done, Fault, FaultCode, Label, LabelError, NewSegment, Operation, space_of,
};
use netraid_control::{
    lease::nobody,
    ledger::{Allotment, Change, Hold, HoldError, LeaseError, Ledger, Order, Purpose},
    token::{SKEW_MS, SegmentInfo},
    units::{AllotmentId, Generation, MediatorId, Moment, PlanId, Resources, SegmentId},
};

use crate::{
    records::{Batch, Key, PlanKey, SegmentRow},
    revoked::RevokedPlans,
    view::{BookedRate, View},
};

/// Logical block of a segment, in bytes.
pub(crate) const BLOCK_LEN: u32 = 512;
/// Segments are of whole ones.
const SEGMENT_UNIT: u64 = 4096;
/// Sectors of a segment are counted in 48 bits.
const SEGMENT_LEN_MAX: u64 = 1 << 56;
/// The longest that sessions of a plan go on without its tokens: a day.
const EXTENSION_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// One turn ends so much that is over, and more in the next.
const EXPIRE_TURNS: usize = 8;

/// What an operation came to, and what is to happen before its answer leaves.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) done: Done,
    pub(crate) then: Then,
}

/// What is to happen outside of the book.
#[derive(Debug, Clone)]
pub(crate) enum Then {
    Nothing,
    /// Before it is stored.
    Make(NewSegment),
    WriteLabel(SegmentId, u64, Label),
    Raise(SegmentId, Generation),
    Remove(SegmentId),
    Extend(PlanId, Moment),
    /// And whether its tokens are kept out from now on, where that was asked for.
    End(PlanId, Result<(), Fault>),
}

#[derive(Debug)]
struct Segment {
    row: SegmentRow,
    /// Its file is being made: nobody knows of it yet.
    is_made: bool,
    /// Its data is not there any more.
    is_lost: bool,
}

/// The segments of which a store has rows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<(Key, SegmentRow)>,
    /// Those that cannot be served.
    pub(crate) lost: HashSet<Key>,
    /// Those whose rows cannot be read: they are there, and nothing is done with them.
    pub(crate) aside: HashSet<Key>,
}

/// What stood there before a change that is not durable.
type Before = BTreeMap<Key, Option<SegmentRow>>;

pub(crate) struct Book {
    ledger: Ledger,
    segments: BTreeMap<Key, Segment>,
    /// Segments that nobody makes, changes or removes, as their rows cannot be read.
    aside: HashSet<Key>,
    revoked: RevokedPlans,
    draining: HashSet<MediatorId>,
    /// Changes of the ledger for the next batch, and the last one's order.
    polled: Vec<Change>,
    last: Option<Order>,
    changed: Before,
    /// The same of the batch that is being stored.
    storing: Before,
    storing_last: Option<Order>,
    /// Plans whose rates have ended, and whose sessions have not.
    ended: Vec<(MediatorId, PlanId)>,
    view: Arc<View>,
}

/// What is left of the agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) clients: Resources,
    pub(crate) rebuilds: Resources,
    pub(crate) segments: u64,
}

impl Book {
    /// The book of which a store holds this.
    pub(crate) fn new(
        ledger: Ledger,
        Rows { rows, lost, aside }: Rows,
        revoked: Vec<(PlanKey, Moment)>,
        draining: HashSet<MediatorId>,
        view: Arc<View>,
    ) -> Self {
        let segment =
            |(key, row)| (key, Segment { row, is_made: true, is_lost: lost.contains(&key) });
        let book = Self {
            ledger,
            segments: rows.into_iter().map(segment).collect(),
            aside,
            revoked: RevokedPlans::new(revoked),
            draining,
            polled: Vec::new(),
            last: None,
            changed: Before::new(),
            storing: Before::new(),
            storing_last: None,
            ended: Vec::new(),
            view,
        };
        book.show_all();
        book
    }

    /// Carries out an operation of a mediator, as far as that is done here.
    pub(crate) fn apply(
        &mut self,
        now: Moment,
        mediator: MediatorId,
        operation: Operation,
    ) -> Result<Step, Fault> {
        let only = |done| Ok(Step { done, then: Then::Nothing });
        self.check_aside(mediator, &operation)?;
        match operation {
            Operation::Hold(hold) => only(Done::Booked(self.hold(now, mediator, &hold)?)),
            Operation::Commit(commit) => {
                let answer = self.ledger.commit(now, mediator, &commit).map_err(lease_fault)?;
                only(Done::Booked(answer.allotment))
            }
            Operation::Book { hold, lease_ms } => {
                check_name(&hold)?;
                let answer = self.ledger.book(now, mediator, &hold, lease_ms);
                only(Done::Booked(answer.map_err(hold_fault)?.allotment))
            }
            Operation::Renew { id, for_ms } => {
                let answer = self.ledger.renew(now, mediator, id, for_ms).map_err(lease_fault)?;
                only(Done::Booked(answer.allotment))
            }
            Operation::Release { id } => only(Done::Released(self.release(mediator, id)?)),
            Operation::CreateSegment(new) => self.create(mediator, new),
            Operation::SetLabel { segment, label } => {
                let key = (mediator, segment);
                let there = self.segments.get(&key);
                let label = kept_label(label, there.map(|there| &there.row))?;
                self.known(key)?;
                self.touch(key);
                let row = &mut self.known(key)?.row;
                row.label.clone_from(&label);
                let then = Then::WriteLabel(segment, row.len_bytes, label);
                Ok(Step { done: Done::Done, then })
            }
            Operation::RaiseGeneration { segment, generation, taken_by } => {
                self.raise(mediator, segment, (generation, taken_by))
            }
            Operation::RemoveSegment { segment } => self.begin_removal(mediator, segment),
            Operation::ExtendPlan { plan, until } => {
                check_extension(now, until)?;
                Ok(Step { done: Done::Done, then: Then::Extend(plan, until) })
            }
            Operation::EndPlan { plan, revoked_until } => {
                let until = check_until(now, revoked_until)?;
                // What it has ends also where its tokens cannot be kept out yet.
                let revoked = until.map_or(Ok(()), |until| self.revoke((mediator, plan), until));
                self.ledger.release(mediator, AllotmentId(plan.0)).map_err(busy)?;
                Ok(Step { done: Done::Done, then: Then::End(plan, revoked) })
            }
        }
    }

    /// The file of a segment is there, or not: then the segment is not either.
    pub(crate) fn finish_making(&mut self, key: Key, is_made: bool) -> Result<(), Fault> {
        let gone = || fault(FaultCode::Failed, format!("segment {} was not made", key.1));
        let segment = self.segments.get_mut(&key).ok_or_else(gone)?;
        if segment.is_made {
            return Ok(());
        }
        if !is_made {
            self.segments.remove(&key);
            return Err(gone());
        }
        segment.is_made = true;
        self.changed.entry(key).or_insert(None);
        self.show(key);
        Ok(())
    }

    /// The data of a segment is gone: so is all that is booked for it.
    pub(crate) fn finish_removal(&mut self, key: Key) -> Result<u64, Fault> {
        let released = self.ledger.release_segment(key.0, key.1, None).map_err(busy)?;
        if let Some(segment) = self.segments.get(&key) {
            assert!(segment.row.removing, "segment {} goes without being removed", key.1);
            self.touch(key);
            self.segments.remove(&key);
            self.show(key);
        }
        Ok(released.entries as u64)
    }

    /// Segments whose removal was begun.
    pub(crate) fn removing(&self) -> Vec<Key> {
        let removing = self.segments.iter().filter(|(_, segment)| segment.row.removing);
        removing.map(|(key, _)| *key).collect()
    }

    pub(crate) fn set_draining(&mut self, mediator: MediatorId, is_draining: bool) {
        if is_draining {
            self.draining.insert(mediator);
        } else {
            self.draining.remove(&mediator);
        }
    }

    /// Releases what a mediator has that is gone for good, but for space with data in it; how many
    /// segments those are.
    pub(crate) fn forget(&mut self, mediator: MediatorId) -> Result<u64, Fault> {
        self.draining.remove(&mediator);
        let ids: Vec<_> = self.ledger.page(mediator, None).map(|entry| entry.id).collect();
        for id in ids {
            let key = (mediator, SegmentId(id.0));
            if !self.segments.contains_key(&key) && !self.aside.contains(&key) {
                self.ledger.release(mediator, id).map_err(busy)?;
            }
        }
        Ok(self.count_segments(mediator))
    }

    /// How many segments a mediator has, those whose rows are set aside among them.
    pub(crate) fn count_segments(&self, mediator: MediatorId) -> u64 {
        let own = self.segments.range((mediator, SegmentId([0; 16]))..);
        let own = own.take_while(|((whose, _), _)| *whose == mediator).count();
        let aside = self.aside.iter().filter(|(whose, _)| *whose == mediator).count();
        (own + aside) as u64
    }

    /// A mediator's allotments, and whether there are more.
    pub(crate) fn ledger_page(
        &self,
        mediator: MediatorId,
        after: Option<AllotmentId>,
        limit: usize,
    ) -> (Vec<Allotment>, bool) {
        let mut page = self.ledger.page(mediator, after).copied();
        let entries = page.by_ref().take(limit).collect();
        (entries, page.next().is_some())
    }

    /// A mediator's segments, each with whether its data was there when the agent started, and whether
    /// there are more.
    pub(crate) fn segment_page(
        &self,
        mediator: MediatorId,
        after: Option<SegmentId>,
        limit: usize,
    ) -> (Vec<(SegmentId, SegmentRow, bool)>, bool) {
        let from = (mediator, after.unwrap_or(SegmentId([0; 16])));
        let own = self.segments.range(from..).take_while(|((whose, _), _)| *whose == mediator);
        let own = own.filter(|((_, id), segment)| Some(*id) != after && segment.is_made);
        let mut page = own.map(|((_, id), segment)| (*id, segment.row.clone(), !segment.is_lost));
        let entries = page.by_ref().take(limit).collect();
        (entries, page.next().is_some())
    }

    pub(crate) fn left(&self) -> Left {
        Left {
            clients: self.ledger.left(Purpose::Client),
            rebuilds: self.ledger.left(Purpose::Rebuild),
            segments: self.segments.len() as u64,
        }
    }

    /// Removes what is over.
    pub(crate) fn expire(&mut self, now: Moment) {
        self.forget_revoked(now);
        for _ in 0..EXPIRE_TURNS {
            if self.ledger.next_timeout(now).is_none_or(|next| next > now) {
                return;
            }
            self.ledger.expire(now);
        }
    }

    pub(crate) fn next_timeout(&self, now: Moment) -> Option<Moment> {
        self.ledger.next_timeout(now)
    }

    /// Takes notice of what the ledger changed; plans whose sessions are to end.
    pub(crate) fn settle(&mut self) -> Vec<(MediatorId, PlanId)> {
        let polled = self.polled.len();
        while let Some((order, change)) = self.ledger.poll_change() {
            assert!(self.last < Some(order), "changes are stored in their order");
            self.last = Some(order);
            self.polled.push(change);
        }
        if self.polled.len() > polled {
            let mut view = self.view.write();
            for change in &self.polled[polled..] {
                match change {
                    Change::Put(entry) => {
                        if let Some(booked) = BookedRate::of(entry) {
                            let key = (entry.mediator, PlanId(entry.id.0));
                            view.booked.insert(key, booked);
                        }
                    }
                    Change::Remove { mediator, id } => {
                        let key = (*mediator, PlanId(id.0));
                        self.ended.extend(view.booked.remove(&key).map(|_| key));
                    }
                }
            }
        }
        std::mem::take(&mut self.ended)
    }

    /// What is to be stored next; none when all is durable. Nothing else may be under way.
    pub(crate) fn take_batch(&mut self) -> Option<Batch> {
        assert!(self.storing.is_empty() && self.storing_last.is_none(), "one batch at a time");
        if self.polled.is_empty() && self.changed.is_empty() && !self.revoked.is_changed() {
            return None;
        }
        self.storing = std::mem::take(&mut self.changed);
        self.storing_last = self.last.take();
        let row = |key| self.segments.get(key).map(|segment| segment.row.clone());
        let segments = self.storing.keys().map(|key| (*key, row(key))).collect();
        let changes = std::mem::take(&mut self.polled);
        Some(Batch { changes, segments, revoked: self.revoked.take_changed() })
    }

    pub(crate) fn handle_stored(&mut self) {
        self.storing.clear();
        if let Some(order) = self.storing_last.take() {
            self.ledger.handle_stored(order);
        }
    }

    /// Takes back all that is not durable.
    pub(crate) fn handle_store_failed(&mut self) {
        self.ledger.handle_store_failed();
        self.polled.clear();
        (self.last, self.storing_last) = (None, None);
        let (changed, storing) =
            (std::mem::take(&mut self.changed), std::mem::take(&mut self.storing));
        for (key, before) in changed.into_iter().chain(storing) {
            let there = self.segments.remove(&key);
            let Some(mut row) = before else { continue };
            let (mut is_made, mut is_lost) = (true, false);
            if let Some(there) = there {
                if there.row.generation > row.generation {
                    row.generation = there.row.generation;
                    row.taken_by = there.row.taken_by;
                }
                (is_made, is_lost) = (there.is_made, there.is_lost);
            }
            self.segments.insert(key, Segment { row, is_made, is_lost });
        }
        self.segments.retain(|_, segment| segment.is_made);
        self.show_all();
    }

    fn hold(&mut self, now: Moment, mediator: MediatorId, hold: &Hold) -> Result<Allotment, Fault> {
        check_name(hold)?;
        // Rates are of segments that are there: who uses them, or takes them elsewhere, needs those.
        let is_new = hold.resources.space_bytes > 0;
        if is_new && self.ledger.get(mediator, hold.id).is_none() {
            self.check_draining(mediator)?;
        }
        Ok(self.ledger.hold(now, mediator, hold).map_err(hold_fault)?.allotment)
    }

    fn release(&mut self, mediator: MediatorId, id: AllotmentId) -> Result<u64, Fault> {
        if self.segments.contains_key(&(mediator, SegmentId(id.0))) {
            let detail = format!("allotment {id}: there is a segment in it; remove that");
            return Err(fault(FaultCode::Conflict, detail));
        }
        Ok(self.ledger.release(mediator, id).map_err(busy)?.entries as u64)
    }

    fn create(&mut self, mediator: MediatorId, new: NewSegment) -> Result<Step, Fault> {
        let NewSegment { segment: id, len_bytes, label } = new;
        let key = (mediator, id);
        let label = kept_label(label, self.segments.get(&key).map(|there| &there.row))?;
        if len_bytes == 0 || !len_bytes.is_multiple_of(SEGMENT_UNIT) || len_bytes > SEGMENT_LEN_MAX
        {
            let limit = format!("multiples of {SEGMENT_UNIT} up to {SEGMENT_LEN_MAX} may be");
            return Err(fault(FaultCode::Invalid, format!("{len_bytes} bytes: {limit}")));
        }
        if self.segments.contains_key(&key) {
            self.touch(key);
        }
        if let Some(there) = self.segments.get_mut(&key) {
            let conflict = |why| Err(fault(FaultCode::Conflict, format!("segment {id}: {why}")));
            if there.row.removing {
                return conflict("is being removed; ask for that again".to_owned());
            }
            if there.row.len_bytes != len_bytes {
                return conflict(format!("has {} bytes already", there.row.len_bytes));
            }
            there.row.label.clone_from(&label);
            let done = Done::Generation(there.row.generation);
            return Ok(Step { done, then: Then::WriteLabel(id, len_bytes, label) });
        }
        self.check_draining(mediator)?;
        let space = self.ledger.get(mediator, space_of(id)).filter(|entry| entry.until().is_none());
        let booked = space.map_or(0, |entry| entry.resources.space_bytes);
        if space.is_none() {
            let detail = format!("segment {id}: its space is not committed; do that first");
            return Err(fault(FaultCode::Absent, detail));
        }
        if booked < len_bytes {
            let detail = format!("segment {id}: {len_bytes} bytes in a space of {booked}");
            return Err(fault(FaultCode::Conflict, detail));
        }
        let row = SegmentRow {
            len_bytes,
            generation: Generation(0),
            taken_by: nobody(),
            removing: false,
            label: label.clone(),
        };
        self.segments.insert(key, Segment { row, is_made: false, is_lost: false });
        let new = NewSegment { segment: id, len_bytes, label };
        Ok(Step { done: Done::Generation(Generation(0)), then: Then::Make(new) })
    }

    fn raise(
        &mut self,
        mediator: MediatorId,
        segment: SegmentId,
        wanted: (Generation, PlanId),
    ) -> Result<Step, Fault> {
        let key = (mediator, segment);
        let row = &self.known(key)?.row;
        let current = (row.generation, row.taken_by);
        // Who had it first keeps it.
        let (generation, taken_by) = if wanted.0 > current.0 { wanted } else { current };
        assert!(generation >= current.0, "generations never fall");
        // What is booked for older ones goes also when a store failed half way before.
        self.ledger.release_segment(mediator, segment, Some(generation)).map_err(busy)?;
        // Asked again, it is stored again: a store may have refused it before.
        self.touch(key);
        let row = &mut self.known(key)?.row;
        (row.generation, row.taken_by) = (generation, taken_by);
        self.show(key);
        let done = Done::Raised { generation, taken_by };
        Ok(Step { done, then: Then::Raise(segment, generation) })
    }

    /// Lets the tokens of a plan open nothing until they have ended.
    fn revoke(&mut self, key: PlanKey, until: Moment) -> Result<(), Fault> {
        let stands = self.revoked.insert(key, until)?;
        self.view.write().revoked.insert(key, stands);
        Ok(())
    }

    fn forget_revoked(&mut self, now: Moment) {
        let ended = self.revoked.forget_ended(now);
        if !ended.is_empty() {
            let mut view = self.view.write();
            for key in ended {
                view.revoked.remove(&key);
            }
        }
    }

    fn begin_removal(&mut self, mediator: MediatorId, segment: SegmentId) -> Result<Step, Fault> {
        let key = (mediator, segment);
        self.touch(key);
        if let Some(there) = self.segments.get_mut(&key) {
            there.row.removing = true;
            self.show(key);
        }
        Ok(Step { done: Done::Released(0), then: Then::Remove(segment) })
    }

    /// Nobody knows what a row says that is set aside: whatever would change its segment, or give its space to another
    /// one, waits until it can be read.
    fn check_aside(&self, mediator: MediatorId, operation: &Operation) -> Result<(), Fault> {
        let segment = match operation {
            Operation::CreateSegment(new) => new.segment,
            Operation::SetLabel { segment, .. }
            | Operation::RaiseGeneration { segment, .. }
            | Operation::RemoveSegment { segment } => *segment,
            Operation::Release { id } => SegmentId(id.0),
            Operation::Hold(_)
            | Operation::Commit(_)
            | Operation::Book { .. }
            | Operation::Renew { .. }
            | Operation::ExtendPlan { .. }
            | Operation::EndPlan { .. } => return Ok(()),
        };
        if !self.aside.contains(&(mediator, segment)) {
            return Ok(());
        }
        let detail = format!(
            "segment {segment}: the row of it in the agent's store (table segments, mediator {mediator}) is set aside, \
             as this agent (netraid {}) cannot read it, and nothing is done with the segment: start the program that \
             wrote the row, or mend it, and start the agent again",
            env!("CARGO_PKG_VERSION")
        );
        Err(fault(FaultCode::Conflict, detail))
    }

    fn check_draining(&self, mediator: MediatorId) -> Result<(), Fault> {
        match self.draining.contains(&mediator) {
            true => Err(fault(FaultCode::Draining, "the agent drains: nothing new is made on it")),
            false => Ok(()),
        }
    }

    /// A segment that is not being removed.
    fn known(&mut self, key: Key) -> Result<&mut Segment, Fault> {
        let found = self.segments.get_mut(&key).filter(|segment| !segment.row.removing);
        found.ok_or_else(|| fault(FaultCode::Absent, format!("segment {} is not there", key.1)))
    }

    /// Before a segment changes: it is to be stored, and what it was is kept until it is. One that is
    /// being made is stored when it is.
    fn touch(&mut self, key: Key) {
        if let Some(there) = self.segments.get(&key).filter(|there| there.is_made) {
            self.changed.entry(key).or_insert_with(|| Some(there.row.clone()));
        }
    }

    /// Shows logins how a segment is.
    fn show(&self, key: Key) {
        let mut view = self.view.write();
        match self.segments.get(&key).and_then(Segment::info) {
            Some(info) => view.segments.insert(key, info),
            None => view.segments.remove(&key),
        };
    }

    fn show_all(&self) {
        let shown = |(key, segment): (&Key, &Segment)| Some((*key, segment.info()?));
        let booked = |entry: &Allotment| {
            Some(((entry.mediator, PlanId(entry.id.0)), BookedRate::of(entry)?))
        };
        let mut view = self.view.write();
        view.segments = self.segments.iter().filter_map(shown).collect();
        view.booked = self.ledger.entries().filter_map(booked).collect();
        view.revoked = self.revoked.iter().collect();
    }
}

impl Segment {
    /// What a token is held against; none of what is not served.
    fn info(&self) -> Option<SegmentInfo> {
        (self.is_made && !self.is_lost && !self.row.removing).then_some(SegmentInfo {
            generation: self.row.generation,
            capacity: self.row.len_bytes,
            block_len: BLOCK_LEN,
        })
    }
}

pub(crate) fn fault(code: FaultCode, detail: impl Into<String>) -> Fault {
    Fault { code, detail: detail.into() }
}

fn check_extension(now: Moment, until: Moment) -> Result<(), Fault> {
    if until.since_ms(now) > EXTENSION_MS_MAX {
        let limit = format!("{EXTENSION_MS_MAX} ms from now at most; are clocks right?");
        return Err(fault(FaultCode::Invalid, format!("until {} ms: {limit}", until.0)));
    }
    Ok(())
}

/// Until when tokens are to be kept out that have not ended.
fn check_until(now: Moment, until: Option<Moment>) -> Result<Option<Moment>, Fault> {
    let until = until.filter(|until| until.after_ms(SKEW_MS) > now);
    until.map(|until| check_extension(now, until).map(|()| until)).transpose()
}

/// A label as it is kept in the place of the one that a row has, if it may be.
fn kept_label(label: Label, row: Option<&SegmentRow>) -> Result<Label, Fault> {
    let told = |error: LabelError| fault(FaultCode::Invalid, error.to_string());
    // Limits are of what comes in: a later program may have put more there.
    label.check().map_err(told)?;
    Ok(match row {
        Some(row) => label.keeping(&row.label),
        None => label,
    })
}

/// The space of a segment has its name, and nothing else does.
fn check_name(hold: &Hold) -> Result<(), Fault> {
    let space = space_of(hold.segment);
    if (hold.resources.space_bytes > 0) != (hold.id == space) {
        let detail = format!(
            "allotment {}: the space of segment {} is allotment {space}, and nothing else is",
            hold.id, hold.segment
        );
        return Err(fault(FaultCode::Invalid, detail));
    }
    Ok(())
}

fn hold_fault(error: HoldError) -> Fault {
    let code = match error {
        HoldError::Short(_) | HoldError::TooMany { .. } => FaultCode::Short,
        HoldError::Different(_) => FaultCode::Conflict,
        HoldError::Mixed { .. } | HoldError::Space { .. } | HoldError::Term(_) => {
            FaultCode::Invalid
        }
        HoldError::Busy(_) => FaultCode::Busy,
    };
    fault(code, error.to_string())
}

fn lease_fault(error: LeaseError) -> Fault {
    let code = match error {
        LeaseError::Absent { .. } => FaultCode::Absent,
        LeaseError::Held { .. } => FaultCode::Conflict,
        LeaseError::RatesWithoutEnd { .. }
        | LeaseError::SpaceWithEnd { .. }
        | LeaseError::Term(_) => FaultCode::Invalid,
        LeaseError::Busy(_) => FaultCode::Busy,
    };
    fault(code, error.to_string())
}

fn busy(error: netraid_control::ledger::Busy) -> Fault {
    fault(FaultCode::Busy, error.to_string())
}

#[cfg(test)]
mod tests;
