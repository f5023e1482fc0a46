//! The array's log: small writes go there and are acknowledged, rounds bring them home.
//!
//! What a batch is, who gets it, and what is acknowledged, production's own writer says
//! ([`netraid_raid::log::LogWriter`]). A write takes room in the log first; where there is none it waits
//! for a round. Whole stripes are written, and then the log says so. A round takes the stripes with dirty blocks in
//! waves: what check data needs is read, the new check data is logged, all members flush, and blocks and check data
//! are written home; a stripe of which half or more is dirty is written as a whole. Then tables and a checkpoint are
//! written, and the log begins later.
//!
//! Not modelled: that a whole stripe goes to another place (it is written where it was), locks of blocks, blocks of
//! which a write has only a part.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netraid_block::narrow;
use netraid_raid::{
    bytes,
    copies::Copies,
    gathering::Gathering,
    geometry::Geometry,
    log::{Basis, Link, LogKey, LogWriter, Position, Record, Ring, segment},
    member::{MemberIndex, MemberSet},
};

use super::{Event, Phase, Request, World, log_requests::Kind};
use crate::{
    config::{Config, Log},
    layout::{Access, BLOCK},
};

/// Stripes of one wave of a round, as in production.
const STRIPES_AT_ONCE: usize = 128;
/// Blocks that a record of one block takes at most.
const BLOCKS_OF_DATA: u64 = 2;
/// Checksums on a page of the tables.
const SUMS_PER_PAGE: u64 = 1024;

/// Who waits for room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) request: usize,
    pub(super) need: Need,
}

/// What room is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// Blocks of the volume.
    Data { first: u64, blocks: u64 },
    /// Whole stripes.
    Stripes(u64),
}

/// A round under way.
#[derive(Debug)]
struct Round {
    cut: Position,
    /// Stripes that are still to be brought home.
    stripes: VecDeque<u64>,
    /// Of the wave.
    under_way: usize,
    /// Pages of the tables that have changed.
    pages: BTreeSet<u64>,
    step: Step,
}

/// What a round does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    BringingHome,
    /// What is below the cut becomes stable.
    Flushing,
    WritingTables,
    FlushingTables,
    WritingCheckpoint,
}

#[derive(Debug)]
pub(super) struct LogState {
    writer: LogWriter<usize>,
    log: Log,
    copies: Copies,
    members: MemberSet,
    /// Where the log is on each disk.
    base: u64,
    stripe_blocks: u64,
    rows: u32,
    columns: u8,
    is_copies: bool,
    /// Blocks of the log that bring a block home, or a stripe to another place.
    home_blocks: u64,
    promised: u64,
    becoming_dirty: u64,
    /// Blocks of the volume that are in the log and not home.
    dirty: BTreeMap<u64, Position>,
    queue: VecDeque<Wish>,
    is_round_wanted: bool,
    round: Option<Round>,
    pub(super) gathering: Gathering<usize>,
    /// Who waits for the flush that is under way, and for the next one.
    flushing: Option<Vec<Waiter>>,
    flush_next: Vec<Waiter>,
    /// Whether what has gathered is about to leave.
    is_due: bool,
}

/// Who waits for a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    Home(usize),
    Round,
}

impl LogState {
    /// The log of an array, if it has one.
    pub(super) fn of(config: &Config, geometry: &Geometry) -> Option<Self> {
        let log = config.log.filter(|_| geometry.tolerance() > 0)?;
        let ring = Ring::new(log.bytes / u64::from(BLOCK));
        let key = LogKey { array_uuid: Default::default(), salt: 0 };
        let begin = (Position(0), Position(0), Link { end: Position(0), crc: 0 });
        let rows = geometry.chunk_len() / BLOCK;
        let is_copies = netraid_raid::code::Code::new(geometry).is_copies();
        // As production reserves it.
        let sums = u64::from(rows) * u64::from(geometry.members()) * 4;
        let remap = (256 + sums + u64::from(rows)).div_ceil(u64::from(BLOCK));
        let checks = if is_copies { 0 } else { u64::from(geometry.check_columns()) };
        let copies = Copies::new(geometry);
        Some(Self {
            writer: LogWriter::new(ring, key, 1, copies, begin),
            log,
            copies,
            members: geometry.member_indices().skip(config.away).collect(),
            base: u64::from(geometry.chunk_len()) * geometry.stripes(),
            stripe_blocks: geometry.stripe_data_len() / u64::from(BLOCK),
            rows,
            columns: geometry.members(),
            is_copies,
            home_blocks: remap.max(1 + checks),
            promised: 0,
            becoming_dirty: 0,
            dirty: BTreeMap::new(),
            queue: VecDeque::new(),
            is_round_wanted: false,
            round: None,
            gathering: Gathering::new(geometry.stripe_data_len()),
            flushing: None,
            flush_next: Vec::new(),
            is_due: false,
        })
    }

    /// Blocks that are free for users.
    fn room(&self) -> u64 {
        let dirty = self.dirty.len() as u64 + self.becoming_dirty;
        self.writer.room().saturating_sub(self.promised + self.home_blocks * dirty)
    }

    /// Blocks of a piece of a write that goes to the log, as production cuts it.
    pub(super) fn piece_blocks(&self) -> u64 {
        let share = self.log.bytes / u64::from(BLOCK) / 32;
        share.clamp(1, u64::from(netraid_raid::log::LOGGED_BLOCKS_MAX))
    }

    /// Blocks that are kept for records of so many whole stripes.
    fn promise(&self, stripes: u64) -> u64 {
        stripes * (self.home_blocks + 1)
    }

    /// Takes the room that the first in the queue waits for; none when there is not enough.
    fn grant(&mut self) -> Option<Wish> {
        let wish = *self.queue.front()?;
        let (data, promised) = match wish.need {
            Need::Data { blocks, .. } => (blocks, blocks * BLOCKS_OF_DATA),
            Need::Stripes(stripes) => (0, self.promise(stripes)),
        };
        let dirty = self.dirty.len() as u64 + self.becoming_dirty + data;
        let needed = promised + data * self.home_blocks;
        if needed > self.room() || dirty > u64::from(self.log.dirty_blocks) {
            self.is_round_wanted = true;
            return None;
        }
        self.queue.pop_front();
        match wish.need {
            Need::Data { .. } => self.becoming_dirty += data,
            Need::Stripes(_) => self.promised += promised,
        }
        Some(wish)
    }

    /// Blocks of DATA, each a record.
    fn push_data(&mut self, request: usize, first: u64, blocks: u64) {
        for block in first..first + blocks {
            let record = Record::Data { block, crc: 0 };
            self.writer.push(record, bytes::zeroes(BLOCK as usize), request);
        }
    }

    /// Says where whole stripes are now.
    fn push_remaps(&mut self, request: usize, stripes: Range<u64>) {
        for stripe in stripes {
            let sums = vec![0; self.rows as usize * usize::from(self.columns)];
            let written = vec![true; self.rows as usize];
            let void_upto = self.writer.acked();
            let record = Record::Remap { stripe, to: Some(stripe), void_upto, written, sums };
            self.writer.push(record, Default::default(), request);
        }
    }

    /// The new check data of a row of which so many blocks change.
    fn push_parity(&mut self, request: usize, stripe: u64, row: u32, changed: usize) {
        let checks = if self.is_copies { 0 } else { self.copies.count() - 1 };
        let one = Basis { column: 0, crc: 0, position: None, zeroes: false };
        let record = Record::Parity {
            stripe,
            row,
            round: 0,
            checks: vec![0; usize::from(checks)],
            basis: vec![one; changed],
        };
        let payload = bytes::zeroes(usize::from(checks) * BLOCK as usize);
        self.writer.push(record, payload, request);
    }

    /// What a record says counts now.
    fn apply(&mut self, position: Position, record: &Record) {
        match record {
            Record::Data { block, .. } => {
                self.becoming_dirty -= 1;
                self.dirty.insert(*block, position);
            }
            Record::Remap { stripe, void_upto, .. } => {
                let first = stripe * self.stripe_blocks;
                let blocks = first..first + self.stripe_blocks;
                let voided = self.dirty.range(blocks).filter(|(_, at)| **at < *void_upto);
                let voided: Vec<u64> = voided.map(|(block, _)| *block).collect();
                for block in voided {
                    self.dirty.remove(&block);
                }
                if let Some(round) = &mut self.round {
                    round.pages.insert(stripe * u64::from(self.rows) / SUMS_PER_PAGE);
                }
            }
            Record::Parity { .. } | Record::Zeroes { .. } | Record::Open { .. } => (),
        }
        let blocks = self.log.bytes / u64::from(BLOCK);
        let is_little = self.writer.used() > blocks / 2 || self.room() < blocks / 4;
        if is_little || self.dirty.len() as u64 > u64::from(self.log.dirty_blocks) / 2 {
            self.is_round_wanted = true;
        }
    }

    /// Dirty blocks of a stripe, counted from its first, with their positions.
    fn dirty_of(&self, stripe: u64) -> Vec<(u32, Position)> {
        let first = stripe * self.stripe_blocks;
        let within = |block: u64| narrow(block - first);
        let blocks = self.dirty.range(first..first + self.stripe_blocks);
        blocks.map(|(block, position)| (within(*block), *position)).collect()
    }

    /// The members that hold one of so many things that are not striped.
    fn holders(&self, number: u64) -> Vec<usize> {
        let holders = self.copies.among(number, self.members);
        holders.iter().map(MemberIndex::as_usize).collect()
    }
}

impl World<'_> {
    fn log(&mut self) -> &mut LogState {
        match &mut self.log {
            Some(log) => log,
            None => unreachable!("a record of an array without a log"),
        }
    }

    /// Waits for room in the log, and goes on when there is.
    pub(super) fn want_room(&mut self, wish: Wish) {
        self.log().queue.push_back(wish);
        self.drive_log();
    }

    /// Gives room; what else can be done then follows as soon as the client is not busy.
    pub(super) fn drive_log(&mut self) {
        while let Some(Wish { request, need }) = self.log().grant() {
            match need {
                Need::Data { first, blocks } => self.log().push_data(request, first, blocks),
                Need::Stripes(_) => self.compute(request),
            }
        }
        // As production's loop, which sends when it has taken all that had come.
        let (now, due) = (self.agenda.now(), self.client.busy_until);
        if !self.log().is_due {
            self.log().is_due = true;
            self.agenda.put_at(due.max(now), Event::LogDue);
        }
    }

    /// Sends what has gathered, and begins a round if one is wanted.
    pub(super) fn handle_log_due(&mut self) {
        self.log().is_due = false;
        loop {
            let (members, log) = (self.log().members, self.log());
            let Some(batch) = log.writer.poll_batch(members, MemberSet::EMPTY) else { break };
            let (offset, position) = (log.base + batch.offset, batch.position);
            let disks: Vec<usize> = batch.members.iter().map(MemberIndex::as_usize).collect();
            let len = narrow(batch.into_data().len());
            let writes = disks.iter().map(|disk| Access { disk: *disk, offset, len }).collect();
            self.begin_internal(Kind::Batch { position }, writes);
        }
        let log = self.log();
        if log.is_round_wanted && log.round.is_none() {
            log.is_round_wanted = false;
            self.begin_round();
        }
    }

    /// All members have a batch.
    pub(super) fn batch_written(&mut self, position: Position) {
        let log = self.log();
        for disk in log.holders(segment(position)) {
            let member = MemberIndex(narrow(disk));
            log.writer.handle_written(position, member);
        }
        while let Some(acked) = self.log().writer.poll_acked() {
            self.log().apply(acked.position, &acked.record);
            self.waited(acked.tag);
        }
        self.drive_log();
    }

    /// A whole stripe of a user's is written.
    pub(super) fn stripe_written(&mut self, request: usize, user: usize) {
        let stripes = self.requests.remove(request).stripes;
        let log = self.log();
        log.promised -= log.promise(1);
        log.push_remaps(user, stripes);
        self.drive_log();
    }

    fn begin_round(&mut self) {
        let log = self.log();
        let cut = log.writer.acked();
        let stripes: BTreeSet<u64> =
            log.dirty.keys().map(|block| block / log.stripe_blocks).collect();
        log.round = Some(Round {
            cut,
            stripes: stripes.into_iter().collect(),
            under_way: 0,
            pages: BTreeSet::new(),
            step: Step::BringingHome,
        });
        self.next_wave();
    }

    /// Begins the next stripes of a round, or what follows them.
    fn next_wave(&mut self) {
        let log = self.log();
        let Some(round) = &mut log.round else { return };
        let count = round.stripes.len().min(STRIPES_AT_ONCE);
        let wave: Vec<u64> = round.stripes.drain(..count).collect();
        round.under_way = wave.len();
        if wave.is_empty() {
            round.step = Step::Flushing;
            return self.want_flush(Waiter::Round);
        }
        wave.into_iter().for_each(|stripe| self.begin_home(stripe));
    }

    /// Brings a stripe's dirty blocks home.
    fn begin_home(&mut self, stripe: u64) {
        let model = self.model;
        let layout = model.layout(self.presence);
        let log = self.log();
        let dirty = log.dirty_of(stripe);
        let blocks: Vec<u32> = dirty.iter().map(|(block, _)| *block).collect();
        let rows: BTreeSet<u32> = blocks.iter().map(|block| block % log.rows).collect();
        let is_whole = blocks.len() as u64 * 2 >= log.stripe_blocks;
        let per_page = SUMS_PER_PAGE / u64::from(log.columns);
        if let Some(round) = &mut log.round {
            let first = stripe * u64::from(log.rows);
            round.pages.extend(rows.iter().map(|row| (first + u64::from(*row)) / per_page));
        }
        let (plan, changed) = if is_whole {
            (layout.rewrite(stripe, &blocks), Vec::new())
        } else {
            layout.bring_home(stripe, &blocks)
        };
        let kind = Kind::Home { is_whole };
        let mut request = Request { kind, ..Request::new(false, plan) };
        request.stripes = stripe..stripe + 1;
        request.rows = rows.into_iter().zip(changed).collect();
        request.dirty = dirty;
        let request = self.requests.insert(request);
        self.begin_reads(request);
    }

    /// New check data of a stripe is there: it is logged, or the stripe is written.
    pub(super) fn home_computed(&mut self, request: usize, is_whole: bool) {
        if is_whole {
            return self.send_writes(request);
        }
        let state = &mut self.requests[request];
        let (stripe, rows) = (state.stripes.start, core::mem::take(&mut state.rows));
        state.waits = narrow(rows.len());
        for (row, changed) in rows {
            self.log().push_parity(request, stripe, row, changed);
        }
        self.drive_log();
    }

    /// The log says what a stripe becomes.
    pub(super) fn home_logged(&mut self, request: usize, is_whole: bool) {
        if is_whole {
            return self.end(request);
        }
        self.want_flush(Waiter::Home(request));
    }

    /// A stripe of a round has been written.
    pub(super) fn home_written(&mut self, request: usize, is_whole: bool) {
        if !is_whole {
            return self.end(request);
        }
        let state = &mut self.requests[request];
        (state.phase, state.waits) = (Phase::Reading, 1);
        let stripes = state.stripes.clone();
        self.log().push_remaps(request, stripes);
        self.drive_log();
    }

    /// A stripe's blocks are home.
    pub(super) fn home_ended(&mut self, stripe: u64, dirty: &[(u32, Position)]) {
        let log = self.log();
        for (block, position) in dirty {
            let block = stripe * log.stripe_blocks + u64::from(*block);
            if log.dirty.get(&block) == Some(position) {
                log.dirty.remove(&block);
            }
        }
        let Some(round) = &mut log.round else { return };
        round.under_way -= 1;
        if round.under_way == 0 {
            self.next_wave();
        }
        self.drive_log();
    }

    /// Has all members flush; one flush is for all that wait when it begins.
    fn want_flush(&mut self, who: Waiter) {
        self.log().flush_next.push(who);
        self.begin_flush();
    }

    fn begin_flush(&mut self) {
        let log = self.log();
        if log.flushing.is_some() || log.flush_next.is_empty() {
            return;
        }
        log.flushing = Some(core::mem::take(&mut log.flush_next));
        let upto = log.writer.acked();
        self.begin_internal(Kind::Flush { upto }, Vec::new());
    }

    pub(super) fn flushed(&mut self, upto: Position) {
        let log = self.log();
        log.writer.handle_stable(upto);
        for who in log.flushing.take().unwrap_or_default() {
            match who {
                Waiter::Home(request) => self.send_writes(request),
                Waiter::Round => self.next_step(),
            }
        }
        self.begin_flush();
    }

    /// What a round did after its waves is done.
    pub(super) fn next_step(&mut self) {
        let members: Vec<usize> = self.log().members.iter().map(MemberIndex::as_usize).collect();
        let log = self.log();
        let (base, end) = (log.base, log.base + log.log.bytes);
        let Some(round) = &mut log.round else { return };
        match round.step {
            Step::BringingHome => (),
            Step::Flushing => {
                round.step = Step::WritingTables;
                let pages = core::mem::take(&mut round.pages);
                if pages.is_empty() {
                    round.step = Step::FlushingTables;
                    return self.next_step();
                }
                let places = |page: u64| {
                    let holders = log.holders(page);
                    let offset = end + page * u64::from(BLOCK);
                    holders.into_iter().map(move |disk| Access { disk, offset, len: BLOCK })
                };
                let writes: Vec<Access> = pages.into_iter().flat_map(places).collect();
                self.begin_internal(Kind::Tables, writes);
            }
            Step::WritingTables => {
                round.step = Step::FlushingTables;
                self.want_flush(Waiter::Round);
            }
            Step::FlushingTables => {
                round.step = Step::WritingCheckpoint;
                // Beside the log, on all members.
                let offset = base.saturating_sub(u64::from(BLOCK));
                let writes = members.iter().map(|disk| Access { disk: *disk, offset, len: BLOCK });
                let writes = writes.collect();
                self.begin_internal(Kind::Tables, writes);
            }
            Step::WritingCheckpoint => {
                let cut = round.cut;
                log.round = None;
                log.writer.handle_tail(cut);
                self.drive_log();
            }
        }
    }
}
