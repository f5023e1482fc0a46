//! An agent: the ledger, its segments' generations, and the store below both.
//!
//! Everything that changes goes to the store in its order, and is synced in groups. An answer
//! waits until all that changed before it is synced. A crash keeps what is synced and any first part
//! of the rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netraid_control::{
    keys::Keyring,
    ledger::{Allotment, Change, HoldError, Ledger, Limits, Order, Purpose, State},
    token::{AgentView, Denied, Grant, Secret, SegmentInfo, admit},
    units::{AgentId, AllotmentId, Generation, MediatorId, Moment, Resources, SegmentId},
};

use super::{
    messages::{Ask, GrantedPart, Reply},
    plan::Planted,
};
use crate::dice::Dice;

/// What a store holds.
#[derive(Debug, Clone, Default)]
pub struct Image {
    allotments: BTreeMap<(MediatorId, AllotmentId), Allotment>,
    segments: BTreeMap<(MediatorId, SegmentId), Generation>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Ledger(Order, Change),
    Segment((MediatorId, SegmentId), Option<Generation>),
}

impl Image {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Ledger(_, Change::Put(entry)) => {
                self.allotments.insert((entry.mediator, entry.id), entry);
            }
            Op::Ledger(_, Change::Remove { mediator, id }) => {
                self.allotments.remove(&(mediator, id));
            }
            Op::Segment(key, Some(generation)) => {
                self.segments.insert(key, generation);
            }
            Op::Segment(key, None) => {
                self.segments.remove(&key);
            }
        }
    }

    /// What is wrong with it, counted by hand.
    fn overcommitted(&self, capacity: &Resources, kept: &Resources) -> Option<String> {
        let sum = |of: &dyn Fn(&&Allotment) -> bool| {
            self.allotments
                .values()
                .filter(of)
                .try_fold(Resources::default(), |sum, entry| sum.checked_add(entry.resources))
        };
        let clients = sum(&|entry| entry.purpose == Purpose::Client);
        let theirs = capacity.saturating_sub(*kept);
        let fits = |sum: Option<Resources>, all: &Resources| sum.is_some_and(|sum| all.holds(&sum));
        if fits(sum(&|_| true), capacity) && fits(clients, &theirs) {
            return None;
        }
        Some(format!("{:?} of {capacity:?}", self.allotments.values().collect::<Vec<_>>()))
    }
}

/// An agent.
#[derive(Debug)]
pub struct Agent {
    /// Its name.
    pub id: AgentId,
    /// All that it has.
    pub capacity: Resources,
    kept: Resources,
    keys: Keyring,
    ledger: Ledger,
    /// What memory holds, which the store is to hold.
    segments: BTreeMap<(MediatorId, SegmentId), Generation>,
    durable: Image,
    tail: VecDeque<Op>,
    /// Operations of this life that went to the store, and of those that are synced.
    written: u64,
    synced: u64,
    waiting: VecDeque<(u64, MediatorId, Reply)>,
    /// What it was ever told to release: no part of the product, which needs no such list.
    told: BTreeSet<(MediatorId, AllotmentId)>,
    planted: Option<Planted>,
}

const LIMITS: Limits = Limits {
    entries: 400,
    entries_per_mediator: 300,
    entries_per_segment: 40,
    hold_ms: 20_000,
    lease_ms: 120_000,
};

impl Agent {
    /// A new one.
    #[must_use]
    pub fn new(
        id: AgentId,
        capacity: Resources,
        kept: Resources,
        keys: Keyring,
        planted: Option<Planted>,
    ) -> Self {
        Self {
            id,
            capacity,
            kept,
            keys,
            ledger: Ledger::new(capacity, kept, LIMITS),
            segments: BTreeMap::new(),
            durable: Image::default(),
            tail: VecDeque::new(),
            written: 0,
            synced: 0,
            waiting: VecDeque::new(),
            told: BTreeSet::new(),
            planted,
        }
    }

    /// What clients can have yet.
    #[must_use]
    pub fn left(&self) -> Resources {
        self.ledger.left(Purpose::Client)
    }

    /// A mediator asks something.
    pub fn handle(&mut self, now: Moment, mediator: MediatorId, ask: &Ask) {
        let reply = self.carry_out(now, mediator, ask);
        self.write_changes();
        if let Some(reply) = reply {
            let at = match self.planted {
                Some(Planted::AnswerBeforeStored) => 0,
                _ => self.written,
            };
            self.waiting.push_back((at, mediator, reply));
        }
    }

    fn carry_out(&mut self, now: Moment, mediator: MediatorId, ask: &Ask) -> Option<Reply> {
        match ask {
            Ask::Hold(hold) => match self.ledger.hold(now, mediator, hold) {
                Ok(answer) => Some(Reply::Held(hold.id, answer.allotment.serial)),
                Err(HoldError::Busy(_)) => None,
                Err(_) => Some(Reply::Refused(hold.id)),
            },
            Ask::Commit(commit) => Some(match self.ledger.commit(now, mediator, commit) {
                Ok(_) => Reply::Committed(commit.id),
                Err(_) => Reply::Absent(commit.id),
            }),
            Ask::Book(hold, lease_ms) => match self.ledger.book(now, mediator, hold, *lease_ms) {
                Ok(_) => Some(Reply::Committed(hold.id)),
                Err(HoldError::Busy(_)) => None,
                Err(_) => Some(Reply::Refused(hold.id)),
            },
            Ask::Release(id) => {
                self.told.insert((mediator, *id));
                let entry = self.entry(mediator, *id).copied();
                if let Some(entry) = entry.filter(|entry| entry.resources.space_bytes > 0) {
                    self.set_segment((mediator, entry.segment), None);
                }
                self.ledger.release(mediator, *id).ok()?;
                Some(Reply::Released(*id))
            }
            Ask::Renew { plan, round, id, for_ms } => {
                let is_there = self.ledger.renew(now, mediator, *id, *for_ms).is_ok();
                Some(Reply::Renewed { plan: *plan, round: *round, id: *id, is_there })
            }
            Ask::Raise(segment, generation) => self.raise(mediator, *segment, *generation),
            Ask::Look(plan) => Some(Reply::There(*plan)),
        }
    }

    fn raise(
        &mut self,
        mediator: MediatorId,
        segment: SegmentId,
        generation: Generation,
    ) -> Option<Reply> {
        let key = (mediator, segment);
        let has_space = self.ledger.page(mediator, None).any(|entry| {
            entry.segment == segment && entry.resources.space_bytes > 0 && entry.until().is_none()
        });
        let before = self.segments.get(&key).copied();
        if before.is_none() && !has_space {
            return None;
        }
        if before.is_none_or(|before| before < generation) {
            self.ledger.release_segment(mediator, segment, Some(generation)).ok()?;
            self.set_segment(key, Some(generation));
        }
        Some(Reply::Raised(segment, generation))
    }

    fn set_segment(&mut self, key: (MediatorId, SegmentId), generation: Option<Generation>) {
        // What the ledger changed before comes before.
        self.write_changes();
        match generation {
            Some(generation) => self.segments.insert(key, generation),
            None => self.segments.remove(&key),
        };
        self.tail.push_back(Op::Segment(key, generation));
        self.written += 1;
    }

    fn write_changes(&mut self) {
        while let Some((order, change)) = self.ledger.poll_change() {
            self.tail.push_back(Op::Ledger(order, change));
            self.written += 1;
        }
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Moment) {
        for _ in 0..8 {
            if self.ledger.next_timeout(now).is_none_or(|next| next > now) {
                break;
            }
            self.ledger.expire(now);
        }
        self.write_changes();
    }

    /// How many operations a sync that begins now makes durable.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.tail.len()
    }

    /// So many operations are synced.
    pub fn handle_synced(&mut self, count: usize) {
        let mut last = None;
        for op in self.tail.drain(..count) {
            self.durable.apply(&op);
            if let Op::Ledger(order, _) = op {
                last = Some(order);
            }
            self.synced += 1;
        }
        if let Some(order) = last {
            self.ledger.handle_stored(order);
        }
    }

    /// Nothing of what waits is stored, nor will be.
    pub fn handle_sync_failed(&mut self) {
        self.tail.clear();
        self.ledger.handle_store_failed();
        self.segments = self.durable.segments.clone();
        self.written = self.synced;
        let synced = self.synced;
        self.waiting.retain(|(at, ..)| *at <= synced);
    }

    /// Answers that may leave.
    pub fn poll_reply(&mut self) -> Option<(MediatorId, Reply)> {
        let (at, ..) = self.waiting.front()?;
        if *at > self.synced {
            return None;
        }
        let (_, mediator, reply) = self.waiting.pop_front()?;
        Some((mediator, reply))
    }

    /// Ends, and begins again with what the store holds: of what was not synced any first part.
    pub fn crash(&mut self, dice: &mut Dice) {
        let kept = dice.index(self.tail.len() + 1);
        for op in self.tail.drain(..).take(kept) {
            self.durable.apply(&op);
        }
        let stored = self.durable.allotments.values().copied();
        self.ledger = match Ledger::restore(self.capacity, self.kept, LIMITS, stored) {
            Ok(ledger) => ledger,
            Err(error) => panic!("the store is no ledger: {error}"),
        };
        self.segments = self.durable.segments.clone();
        (self.written, self.synced) = (0, 0);
        self.waiting.clear();
    }

    /// What is wrong with what it has booked.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let mut image = self.durable.clone();
        for op in &self.tail {
            if let Some(fault) = image.overcommitted(&self.capacity, &self.kept) {
                return Some(fault);
            }
            image.apply(op);
        }
        image.overcommitted(&self.capacity, &self.kept)
    }

    /// All that it has for a mediator.
    pub fn entries(&self, mediator: MediatorId) -> impl Iterator<Item = &Allotment> {
        self.ledger.page(mediator, None)
    }

    /// Whether it was ever told to release something: a copy of what asked for that may come later.
    #[must_use]
    pub fn was_told(&self, mediator: MediatorId, id: AllotmentId) -> bool {
        self.told.contains(&(mediator, id))
    }

    /// A mediator's segments.
    pub fn segments(&self, mediator: MediatorId) -> impl Iterator<Item = SegmentId> {
        let own = self.segments.keys().filter(move |(whose, _)| *whose == mediator);
        own.map(|(_, segment)| *segment)
    }

    fn entry(&self, mediator: MediatorId, id: AllotmentId) -> Option<&Allotment> {
        self.ledger.page(mediator, None).find(|entry| entry.id == id)
    }

    /// A client logs in.
    ///
    /// # Errors
    /// As [`admit`].
    pub fn admit(&self, now: Moment, initiator: &str, part: &GrantedPart) -> Result<Grant, Denied> {
        let of = |mediator, segment| {
            let generation = *self.segments.get(&(mediator, segment))?;
            Some(SegmentInfo { generation, capacity: 1 << 30, block_len: 512 })
        };
        let is_revoked = |_, _| false;
        let (agent, keys) = (self.id, &self.keys);
        let view = AgentView { agent, keys, segment: &of, is_revoked: &is_revoked };
        let proves = |secret: &Secret| *secret == part.credentials.secret;
        admit(&part.credentials.name, initiator, &view, now, proves)
    }

    /// Whether what a part of a plan promises is booked.
    #[must_use]
    pub fn has_booked(
        &self,
        now: Moment,
        mediator: MediatorId,
        generation: Generation,
        part: &GrantedPart,
    ) -> bool {
        self.entry(mediator, part.allotment).is_some_and(|entry| {
            let is_committed = matches!(entry.state, State::Committed { .. });
            is_committed
                && !entry.is_over(now)
                && entry.generation == Some(generation)
                && entry.resources.device >= part.floor
                && entry.resources.network >= part.floor
        })
    }
}
