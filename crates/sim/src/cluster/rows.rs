//! What a mediator stores: volumes, plans and bookings, in transactions.

use std::collections::{BTreeMap, VecDeque};

use netraid_control::{
    booking::Record,
    lease::{Access, LeaseState},
    units::{AllotmentId, Generation, PlanId, Rate, SegmentId, VolumeId},
};
use netraid_raid::geometry::Geometry;

use crate::dice::Dice;

/// A volume.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its shape.
    pub geometry: Geometry,
    /// Its members in their order.
    pub members: Vec<Member>,
    /// Who has it.
    pub lease: LeaseState,
    /// Its segments are there.
    pub is_ready: bool,
}

/// A member of a volume.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Whose.
    pub agent: usize,
    /// Its segment.
    pub segment: SegmentId,
    /// The space of that.
    pub space: AllotmentId,
}

/// A transfer plan.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Of which volume.
    pub volume: VolumeId,
    /// Whose.
    pub client: usize,
    /// For what.
    pub access: Access,
    /// What each member gives.
    pub floor: Rate,
    /// The generation of its tokens.
    pub generation: Generation,
    /// What is booked, once it is.
    pub parts: Vec<Part>,
    /// Its client was given it, or may be.
    pub is_granted: bool,
}

/// A member's part of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Whose.
    pub agent: usize,
    /// Of which segment.
    pub segment: SegmentId,
    /// What is booked.
    pub allotment: AllotmentId,
}

/// All that is stored.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// By id.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// By id.
    pub plans: BTreeMap<PlanId, Transfer>,
    /// Decisions that are not carried out yet.
    pub records: BTreeMap<PlanId, Record>,
}

/// A row as it is to be; none for gone.
#[derive(Debug, Clone)]
pub enum Row {
    /// Of volumes.
    Volume(VolumeId, Option<Volume>),
    /// Of plans.
    Plan(PlanId, Option<Transfer>),
    /// Of bookings.
    Record(PlanId, Option<Record>),
}

fn set<K: Ord, V>(table: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => table.insert(key, value),
        None => table.remove(&key),
    };
}

impl Tables {
    fn apply(&mut self, row: Row) {
        match row {
            Row::Volume(id, value) => set(&mut self.volumes, id, value),
            Row::Plan(id, value) => set(&mut self.plans, id, value),
            Row::Record(id, value) => set(&mut self.records, id, value),
        }
    }
}

/// A store: what was written is read at once, and survives a crash once it is synced.
#[derive(Debug, Default)]
pub struct Store {
    /// What was written.
    pub tables: Tables,
    durable: Tables,
    tail: VecDeque<Vec<Row>>,
    written: u64,
    synced: u64,
}

impl Store {
    /// Writes rows in one transaction; its number.
    pub fn write(&mut self, rows: Vec<Row>) -> u64 {
        for row in &rows {
            self.tables.apply(row.clone());
        }
        self.tail.push_back(rows);
        self.written += 1;
        self.written
    }

    /// The number of the last transaction.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// The number of the last that is synced.
    #[must_use]
    pub const fn synced(&self) -> u64 {
        self.synced
    }

    /// Transactions that are not synced.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.tail.len()
    }

    /// The oldest so many of them are.
    pub fn handle_synced(&mut self, count: usize) {
        for rows in self.tail.drain(..count) {
            rows.into_iter().for_each(|row| self.durable.apply(row));
            self.synced += 1;
        }
    }

    /// Of what is not synced any first part stays.
    pub fn crash(&mut self, dice: &mut Dice) {
        let kept = dice.index(self.tail.len() + 1);
        for rows in self.tail.drain(..).take(kept) {
            rows.into_iter().for_each(|row| self.durable.apply(row));
        }
        self.tables = self.durable.clone();
        self.synced = self.written;
    }
}
