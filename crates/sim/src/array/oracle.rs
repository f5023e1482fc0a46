//! What the volume may hold: for each sector the writes whose contents a read may return.
//!
//! A write that was acknowledged replaces what had ended before it was submitted. One that was in
//! flight when its engine died took effect or never will: which of them is open until the first
//! read, and then for ever. A power failure of all members brings back what no stable write has
//! replaced. A write of a whole block is seen in all of its sectors or in none.
//!
//! It counts moments of its own, one for each thing that it is told.

use core::ops::Range;
use std::collections::BTreeSet;

use netraid_block::{SgList, narrow};

mod groups;
mod torn;

use groups::Groups;
use torn::Torn;

use super::content::{self, SECTOR_LEN, SECTORS_PER_BLOCK, WriteId};

/// A moment, in things that the oracle was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

const NEVER: Moment = Moment(u64::MAX);

/// Which engine serves a request; numbers only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u32);

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// New contents.
    Data,
    /// Zeros.
    Zeroes,
    /// Zeros, or what was there.
    Discard,
}

#[derive(Debug, Clone)]
struct Write {
    change: Change,
    sectors: Range<u64>,
    engine: EngineId,
    submitted: Moment,
    /// Nothing that it does takes effect later: it was answered, or another engine has opened the
    /// array since.
    ended: Moment,
    is_acked: bool,
    is_stable: bool,
    fua: bool,
    /// A read has shown that it never took effect.
    is_denied: bool,
    /// Which writes took effect together with it, or not at all.
    group: Option<u32>,
}

/// A write that may be what a sector holds.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    write: WriteId,
    /// A read that is submitted later cannot return it, unless all power fails.
    replaced: Moment,
    /// Not even a power failure brings it back; only reads that began before that may see it.
    is_buried: bool,
    /// It was there when the array was opened: stable, if it is there at all.
    is_base: bool,
}

/// A read, a flush or a write with an error that nothing explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong(pub String);

/// The sectors of the volume.
#[derive(Debug, Clone)]
pub struct Oracle {
    sectors: Vec<Vec<Candidate>>,
    /// By number; the first is the zeros of the beginning.
    writes: Vec<Write>,
    /// Acknowledged, and not known to be stable.
    unstable: Vec<WriteId>,
    /// Reads that have not ended, by when they were submitted.
    reads: BTreeSet<Moment>,
    now: Moment,
    /// Who serves.
    serving: EngineId,
    /// All power failed since the array was opened: what was not flushed may be gone.
    is_cold: bool,
    /// Sectors whose contents a read has settled.
    settled: u64,
    /// Writes of which all take effect, or none.
    groups: Groups,
    /// Of an array without a log.
    torn: Option<Torn>,
}

impl Oracle {
    /// A volume of so many sectors that reads zeros.
    #[must_use]
    pub fn new(sectors: u64) -> Self {
        let zeros = Write {
            change: Change::Zeroes,
            sectors: 0..sectors,
            engine: EngineId(0),
            submitted: Moment(0),
            ended: Moment(0),
            is_acked: true,
            is_stable: true,
            fua: false,
            is_denied: false,
            group: None,
        };
        let first =
            Candidate { write: WriteId(0), replaced: NEVER, is_buried: false, is_base: true };
        Self {
            sectors: (0..sectors).map(|_| vec![first]).collect(),
            writes: vec![zeros],
            unstable: Vec::new(),
            reads: BTreeSet::new(),
            now: Moment(0),
            serving: EngineId(0),
            is_cold: false,
            settled: 0,
            groups: Groups::default(),
            torn: None,
        }
    }

    /// Sectors of the volume.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Whether there are no sectors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// How often a read left fewer contents possible than there were before it.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.settled
    }

    /// A write is about to be submitted.
    pub fn begin_write(
        &mut self,
        engine: EngineId,
        change: Change,
        sectors: Range<u64>,
        fua: bool,
    ) -> WriteId {
        let submitted = self.tick();
        let id = WriteId(narrow(self.writes.len()));
        let oldest = self.reads.first().copied().unwrap_or(NEVER);
        for candidates in &mut self.sectors[span(&sectors)] {
            if candidates.len() > 1 {
                candidates.retain(|one| !one.is_buried || one.replaced > oldest);
            }
            let one = Candidate { write: id, replaced: NEVER, is_buried: false, is_base: false };
            candidates.push(one);
        }
        self.torn.iter_mut().for_each(|torn| torn.begin_write(id));
        self.writes.push(Write {
            change,
            sectors,
            engine,
            submitted,
            ended: NEVER,
            is_acked: false,
            is_stable: false,
            fua,
            is_denied: false,
            group: None,
        });
        id
    }

    /// A write of several ranges is about to be submitted: all of them take effect, or none. Each range has a number
    /// of its own, and all end together.
    pub fn begin_atomic_write(
        &mut self,
        engine: EngineId,
        ranges: &[Range<u64>],
        fua: bool,
    ) -> Vec<WriteId> {
        let begin = |range: &Range<u64>| self.begin_write(engine, Change::Data, range.clone(), fua);
        let ids: Vec<WriteId> = ranges.iter().map(begin).collect();
        let group = self.groups.begin();
        ids.iter().for_each(|id| self.writes[id.0 as usize].group = Some(group));
        ids
    }

    /// A write was acknowledged, or ended with an error: then it may or may not have taken effect.
    ///
    /// # Errors
    /// When a read has shown that it had not taken effect, and never could.
    pub fn end_write(&mut self, id: WriteId, is_acked: bool) -> Result<(), Wrong> {
        let now = self.tick();
        let write = &mut self.writes[id.0 as usize];
        write.ended = write.ended.min(now);
        if !is_acked {
            return Ok(());
        }
        // A discard may leave some of its sectors as they were: that these were read so says nothing of the others.
        if write.is_denied && write.change != Change::Discard {
            let text = format!("{} was acknowledged after it was read as lost", name(id));
            return Err(Wrong(text));
        }
        write.is_acked = true;
        let (change, fua, sectors) = (write.change, write.fua, write.sectors.clone());
        if change == Change::Discard {
            return Ok(());
        }
        self.torn.iter_mut().for_each(|torn| torn.end_write(now, &sectors));
        if !self.is_cold {
            let submitted = self.writes[id.0 as usize].submitted;
            for candidates in &mut self.sectors[span(&sectors)] {
                for other in candidates {
                    if self.writes[other.write.0 as usize].ended < submitted {
                        other.replaced = other.replaced.min(now);
                    }
                }
            }
        }
        if fua {
            self.make_stable(id)
        } else {
            self.unstable.push(id)
        }
        Ok(())
    }

    /// A flush is about to be submitted.
    pub fn begin_flush(&mut self) -> Moment {
        self.tick()
    }

    /// A flush that was submitted then was acknowledged.
    pub fn end_flush(&mut self, submitted: Moment) {
        self.tick();
        self.torn.iter_mut().for_each(|torn| torn.end_flush(submitted));
        for id in core::mem::take(&mut self.unstable) {
            if self.writes[id.0 as usize].ended < submitted {
                self.make_stable(id);
            } else {
                self.unstable.push(id);
            }
        }
    }

    /// All power failed, or that of more members than the level survives: nothing that was not
    /// flushed is promised.
    pub const fn lose_power(&mut self) {
        self.is_cold = true;
    }

    /// Another engine has opened the array: all that earlier ones did has taken effect, or never
    /// will.
    pub fn open(&mut self, engine: EngineId) {
        if let Some(mut torn) = self.torn.take() {
            self.open_without_log(engine, &mut torn);
            self.torn = Some(torn);
            return;
        }
        let now = self.tick();
        self.serving = engine;
        for write in &mut self.writes {
            if write.engine != engine {
                write.ended = write.ended.min(now);
            }
        }
        let all = core::mem::take(&mut self.is_cold);
        self.groups.open(all);
        for candidates in &mut self.sectors {
            candidates.retain(|one| one.replaced == NEVER || all && !one.is_buried);
            for one in candidates {
                *one = Candidate { replaced: NEVER, is_base: true, ..*one };
            }
        }
        self.unstable.clear();
        self.reads.clear();
    }

    /// Whoever serves goes on after a pause, in which power may have failed: all that was acknowledged is there, but for
    /// these sectors, whose contents are lost. Nothing reads them before they are written anew; but for whoever opens the
    /// array anew, they are as they were left by the failure.
    pub fn resume(&mut self, lost: &[Range<u64>]) {
        let now = self.tick();
        let was_cold = core::mem::take(&mut self.is_cold);
        let writes = &self.writes;
        let is_lost = |write: &WriteId| {
            let sectors = &writes[write.0 as usize].sectors;
            lost.iter().any(|range| range.start < sectors.end && sectors.start < range.end)
        };
        let (gone, left): (Vec<WriteId>, Vec<WriteId>) =
            self.unstable.iter().partition(|write| is_lost(write));
        self.unstable = left;
        let groups = gone.iter().filter_map(|write| writes[write.0 as usize].group);
        groups.for_each(|group| self.groups.lose(group));
        for (sector, candidates) in (0..).zip(&mut self.sectors) {
            if lost.iter().any(|range| range.contains(&sector)) {
                for one in candidates.iter_mut().filter(|one| !one.is_buried) {
                    one.replaced = NEVER;
                }
            } else if was_cold {
                // What earlier engines had acknowledged may be gone since this one opened the array.
                let is_own = |write: &Write| write.engine == self.serving && write.is_acked;
                let acked = candidates.iter().filter_map(|one| {
                    let write = &writes[one.write.0 as usize];
                    let counts = is_own(write) && write.change != Change::Discard;
                    counts.then_some(write.submitted)
                });
                let Some(last) = acked.max() else { continue };
                for one in candidates.iter_mut() {
                    if writes[one.write.0 as usize].ended < last {
                        one.replaced = one.replaced.min(now);
                    }
                }
            }
        }
    }

    /// A read is about to be submitted.
    pub fn begin_read(&mut self) -> Moment {
        let now = self.tick();
        self.reads.insert(now);
        now
    }

    /// A read of sectors from `first` on has ended.
    ///
    /// # Errors
    /// When it returned what cannot be there.
    pub fn end_read(
        &mut self,
        engine: EngineId,
        submitted: Moment,
        first: u64,
        data: &SgList,
    ) -> Result<(), Wrong> {
        self.tick();
        self.reads.remove(&submitted);
        let data = data.to_contiguous();
        let mut found = Vec::with_capacity(data.len() / SECTOR_LEN);
        let is_lost = |sector| {
            let is_torn = self.torn.as_ref().is_some_and(|it| it.is_lost(sector, submitted));
            is_torn || self.is_discarded_beneath(engine, submitted, sector)
        };
        for (sector, bytes) in (first..).zip(data.chunks_exact(SECTOR_LEN)) {
            found.push(match is_lost(sector) {
                true => None,
                false => Some(self.recognise(sector, bytes)?),
            });
        }
        if engine != self.serving || self.is_cold {
            return Ok(());
        }
        for (sector, write) in (first..).zip(&found) {
            if let Some(write) = write {
                self.settle(sector, *write, submitted)?;
            }
        }
        if self.torn.is_some() {
            return Ok(());
        }
        let found: Vec<WriteId> = found.into_iter().flatten().collect();
        self.check_blocks(first, &found)
    }

    /// Whether the volume may hold this when the array is opened anew now, perhaps after a failure
    /// of all power, and with parity as it is. Nothing is settled by that.
    ///
    /// # Errors
    /// When it may not.
    pub fn check_volume(
        &self,
        data: &SgList,
        after_power_failure: bool,
        trusts_parity: bool,
    ) -> Result<(), Wrong> {
        let mut copy = self.clone();
        if after_power_failure {
            copy.lose_power();
        }
        let engine = EngineId(u32::MAX);
        copy.open(engine);
        if trusts_parity {
            copy.lose_torn_stripes();
        }
        let submitted = copy.begin_read();
        copy.end_read(engine, submitted, 0, data)
    }

    /// What a sector may hold, for messages.
    #[must_use]
    pub fn describe(&self, sector: u64) -> String {
        let one = |candidate: &Candidate| {
            let write = &self.writes[candidate.write.0 as usize];
            let state = match (write.is_stable, write.is_acked, write.ended == NEVER) {
                (true, ..) => "stable",
                (_, true, _) => "acknowledged",
                (.., true) => "in flight",
                (.., false) => "unanswered",
            };
            let kind = match write.change {
                Change::Data => "",
                Change::Zeroes => " (zeros)",
                Change::Discard => " (discard)",
            };
            let is_replaced = if candidate.replaced == NEVER { "" } else { ", replaced" };
            format!("{}{kind} {state}{is_replaced}", name(candidate.write))
        };
        let list: Vec<String> = self.sectors[index(sector)].iter().map(one).collect();
        list.join("; ")
    }

    /// Whether a successor of the engine has discarded a sector since then. Without a log the engine reads in place, and a
    /// device returns whatever it likes for what was discarded.
    fn is_discarded_beneath(&self, engine: EngineId, since: Moment, sector: u64) -> bool {
        if engine == self.serving || self.torn.is_none() {
            return false;
        }
        let later = self.writes.iter().rev().take_while(|write| write.submitted > since);
        let mut discards = later.filter(|write| write.change == Change::Discard);
        discards.any(|write| write.engine != engine && write.sectors.contains(&sector))
    }

    fn tick(&mut self) -> Moment {
        self.now.0 += 1;
        self.now
    }

    fn make_stable(&mut self, id: WriteId) {
        let now = self.now;
        let write = &mut self.writes[id.0 as usize];
        write.is_stable = true;
        let (submitted, sectors) = (write.submitted, write.sectors.clone());
        self.torn.iter_mut().for_each(|torn| torn.make_stable(&sectors));
        for candidates in &mut self.sectors[span(&sectors)] {
            for other in candidates {
                if self.writes[other.write.0 as usize].ended < submitted {
                    other.is_buried = true;
                    other.replaced = other.replaced.min(now);
                }
            }
        }
    }

    /// Which write the bytes are from, if anybody ever wrote them there.
    fn recognise(&self, sector: u64, bytes: &[u8]) -> Result<WriteId, Wrong> {
        let write = content::recognise(bytes, sector);
        let was_here = |id: &WriteId| {
            self.writes.get(id.0 as usize).is_some_and(|write| {
                (id.0 == 0 || write.change == Change::Data) && write.sectors.contains(&sector)
            })
        };
        write.filter(was_here).ok_or_else(|| {
            let text = content::describe(bytes);
            Wrong(format!("sector {sector} reads {text}; possible are: {}", self.describe(sector)))
        })
    }

    /// The contents that a candidate stands for.
    fn content(&self, id: WriteId) -> WriteId {
        match self.writes[id.0 as usize].change {
            Change::Data => id,
            Change::Zeroes | Change::Discard => WriteId::ZEROES,
        }
    }

    /// A read that was submitted then returned `found`.
    fn settle(&mut self, sector: u64, found: WriteId, submitted: Moment) -> Result<(), Wrong> {
        if let Some(group) = self.writes[found.0 as usize].group {
            let write = &self.writes[found.0 as usize];
            // What an opening has found is stable.
            let is_kept = write.is_stable || write.engine != self.serving;
            self.groups.see(group, is_kept).map_err(|why| self.torn_write(found, why))?;
        }
        if let [only] = self.sectors[index(sector)].as_slice()
            && self.content(only.write) == found
            && only.replaced > submitted
        {
            return Ok(());
        }
        let (mut is_possible, mut only_base) = (false, true);
        let mut newest_end = Moment(0);
        for one in &self.sectors[index(sector)] {
            if self.content(one.write) == found && one.replaced > submitted {
                is_possible = true;
                only_base &= one.is_base;
                newest_end = newest_end.max(self.writes[one.write.0 as usize].ended);
            }
        }
        if !is_possible {
            let text = if found == WriteId::ZEROES { "zeros".into() } else { name(found) };
            let possible = self.describe(sector);
            return Err(Wrong(format!("sector {sector} reads {text}; possible are: {possible}")));
        }
        let mut denied: Vec<WriteId> = Vec::new();
        let mut candidates = core::mem::take(&mut self.sectors[index(sector)]);
        let before = candidates.len();
        candidates.retain_mut(|one| {
            let is_over = self.writes[one.write.0 as usize].ended < submitted;
            // A write that ended with an error in this engine's time may still take effect when the
            // array is opened again.
            let write = &self.writes[one.write.0 as usize];
            let is_decided = write.is_acked || write.engine != self.serving;
            if self.content(one.write) == found || !is_over || !is_decided {
                return true;
            }
            one.replaced = one.replaced.min(self.now);
            let is_gone = one.is_base && only_base;
            // It may also have come before what is there now.
            if is_gone && write.submitted > newest_end {
                self.writes[one.write.0 as usize].is_denied = true;
                denied.push(one.write);
            }
            !is_gone
        });
        self.settled += u64::from(candidates.len() < before);
        self.sectors[index(sector)] = candidates;
        for write in denied {
            if let Some(group) = self.writes[write.0 as usize].group {
                self.groups.deny(group).map_err(|why| self.torn_write(write, why))?;
            }
        }
        Ok(())
    }

    fn torn_write(&self, write: WriteId, why: &str) -> Wrong {
        let group = self.writes[write.0 as usize].group;
        let is_its = |one: &usize| self.writes[*one].group == group;
        let all: Vec<usize> = (0..self.writes.len()).filter(is_its).collect();
        Wrong(format!("of writes {all:?} at once, {} {why}", name(write)))
    }

    /// Whole blocks are old or new.
    fn check_blocks(&mut self, first: u64, found: &[WriteId]) -> Result<(), Wrong> {
        let blocks =
            first / SECTORS_PER_BLOCK..(first + found.len() as u64).div_ceil(SECTORS_PER_BLOCK);
        for block in blocks {
            let here = block * SECTORS_PER_BLOCK..(block + 1) * SECTORS_PER_BLOCK;
            let seen = |sector: u64| found.get(usize::try_from(sector.checked_sub(first)?).ok()?);
            let mut newest: Option<WriteId> = None;
            for write in here.clone().filter_map(seen).filter(|write| **write != WriteId::ZEROES) {
                let is_whole = self.covers(*write, &here);
                if is_whole && newest.is_none_or(|newest| newest < *write) {
                    newest = Some(*write);
                }
            }
            let Some(newest) = newest else { continue };
            for sector in here {
                self.check_block(sector, newest, seen(sector).copied())?;
            }
        }
        Ok(())
    }

    /// A sector of a block in which another sector holds what `newest` wrote to all of it.
    fn check_block(
        &mut self,
        sector: u64,
        newest: WriteId,
        found: Option<WriteId>,
    ) -> Result<(), Wrong> {
        if let ([only], Some(found)) = (self.sectors[index(sector)].as_slice(), found)
            && only.write == newest
            && found == newest
        {
            return Ok(());
        }
        let submitted = self.writes[newest.0 as usize].submitted;
        if let Some(found) = found.filter(|found| *found != newest) {
            let is_new = |one: &Candidate| {
                self.content(one.write) == found
                    && self.writes[one.write.0 as usize].ended >= submitted
            };
            if !self.sectors[index(sector)].iter().any(is_new) {
                let text = format!(
                    "sector {sector} reads {}, though {} to its whole block is seen beside it",
                    name(found),
                    name(newest)
                );
                return Err(Wrong(text));
            }
        }
        let newest_is_base =
            self.sectors[index(sector)].iter().any(|one| one.write == newest && one.is_base);
        let (writes, now) = (&mut self.writes, self.now);
        self.sectors[index(sector)].retain_mut(|one| {
            let write = &mut writes[one.write.0 as usize];
            if write.ended >= submitted {
                return true;
            }
            one.replaced = one.replaced.min(now);
            !(one.is_base && newest_is_base)
        });
        Ok(())
    }

    fn covers(&self, write: WriteId, sectors: &Range<u64>) -> bool {
        let whole = &self.writes[write.0 as usize].sectors;
        whole.start <= sectors.start && sectors.end <= whole.end
    }
}

fn name(write: WriteId) -> String {
    format!("w{}", write.0)
}

#[track_caller]
fn index(sector: u64) -> usize {
    narrow(sector)
}

fn span(sectors: &Range<u64>) -> Range<usize> {
    index(sectors.start)..index(sectors.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const A: EngineId = EngineId(1);
    pub(super) const B: EngineId = EngineId(2);
    pub(super) const C: EngineId = EngineId(3);

    fn oracle() -> Oracle {
        let mut oracle = Oracle::new(64);
        oracle.open(A);
        oracle
    }

    pub(super) fn write(oracle: &mut Oracle, sectors: Range<u64>) -> WriteId {
        oracle.begin_write(oracle.serving, Change::Data, sectors, false)
    }

    pub(super) fn acked(oracle: &mut Oracle, sectors: Range<u64>) -> WriteId {
        let id = write(oracle, sectors);
        oracle.end_write(id, true).unwrap();
        id
    }

    pub(super) fn flush(oracle: &mut Oracle) {
        let submitted = oracle.begin_flush();
        oracle.end_flush(submitted);
    }

    fn bytes(id: WriteId, sectors: Range<u64>) -> SgList {
        if id == WriteId::ZEROES {
            return netraid_block::BufMut::zeroed(
                usize::try_from(sectors.end - sectors.start).unwrap() * SECTOR_LEN,
            )
            .freeze()
            .into();
        }
        content::make(id, sectors.start, sectors.end - sectors.start).into()
    }

    /// Whether a read that begins and ends now may return what that write wrote.
    pub(super) fn reads(oracle: &mut Oracle, sectors: Range<u64>, id: WriteId) -> bool {
        let submitted = oracle.begin_read();
        let data = bytes(id, sectors.clone());
        oracle.end_read(oracle.serving, submitted, sectors.start, &data).is_ok()
    }

    pub(super) const ZEROES: WriteId = WriteId::ZEROES;

    #[test]
    fn what_is_acknowledged_is_read_and_nothing_else() {
        let mut oracle = oracle();
        assert!(reads(&mut oracle, 0..8, ZEROES));
        let old = acked(&mut oracle, 0..8);
        assert!(!reads(&mut oracle, 0..8, ZEROES));
        let new = acked(&mut oracle, 0..8);
        assert!(!reads(&mut oracle, 0..8, old) && reads(&mut oracle, 0..8, new));
    }

    #[test]
    fn bytes_that_are_torn_or_elsewhere_are_wrong() {
        let mut oracle = oracle();
        let id = acked(&mut oracle, 0..16);
        let submitted = oracle.begin_read();
        assert!(oracle.end_read(A, submitted, 0, &bytes(id, 8..16)).is_err());
        let mut torn = bytes(id, 0..1).to_contiguous().to_vec();
        torn[300] ^= 1;
        let torn = netraid_block::Buf::copy_from(&torn).into();
        assert!(oracle.end_read(A, submitted, 0, &torn).is_err());
        assert!(oracle.end_read(A, submitted, 40, &bytes(WriteId(1), 40..41)).is_err());
    }

    #[test]
    fn of_two_writes_at_once_either_may_win_but_only_one() {
        for winner in 0..2 {
            let mut oracle = oracle();
            let both = [write(&mut oracle, 0..8), write(&mut oracle, 0..8)];
            both.iter().for_each(|id| oracle.end_write(*id, true).unwrap());
            assert!(reads(&mut oracle, 0..8, both[winner]));
            assert!(!reads(&mut oracle, 0..8, both[1 - winner]));
            assert!(!reads(&mut oracle, 0..8, ZEROES));
        }
    }

    #[test]
    fn a_read_may_return_what_was_there_when_it_was_submitted() {
        let mut oracle = oracle();
        let old = acked(&mut oracle, 0..8);
        let submitted = oracle.begin_read();
        let new = acked(&mut oracle, 0..8);
        assert!(oracle.end_read(A, submitted, 0, &bytes(old, 0..8)).is_ok());
        assert!(oracle.end_read(A, submitted, 0, &bytes(new, 0..8)).is_ok());
        assert!(!reads(&mut oracle, 0..8, old));
    }

    #[test]
    fn a_crash_keeps_what_was_acknowledged_and_settles_the_rest_at_the_first_read() {
        for wins in [false, true] {
            let mut oracle = oracle();
            let old = acked(&mut oracle, 0..8);
            let unanswered = write(&mut oracle, 0..8);
            oracle.open(B);
            assert!(!reads(&mut oracle, 0..8, ZEROES));
            let (first, other) = if wins { (unanswered, old) } else { (old, unanswered) };
            assert!(reads(&mut oracle, 0..8, first));
            assert!(!reads(&mut oracle, 0..8, other), "it has un-happened");
            oracle.lose_power();
            oracle.open(C);
            assert!(!reads(&mut oracle, 0..8, other), "what an opening found is stable");
            assert!(reads(&mut oracle, 0..8, first));
        }
    }

    #[test]
    fn what_a_reader_saw_survives_a_crash_even_when_it_was_not_acknowledged() {
        let mut oracle = oracle();
        let seen = write(&mut oracle, 0..8);
        assert!(reads(&mut oracle, 0..8, seen));
        oracle.open(B);
        assert!(!reads(&mut oracle, 0..8, ZEROES));
        assert!(reads(&mut oracle, 0..8, seen));
    }

    #[test]
    fn all_power_lost_brings_back_what_was_not_replaced_by_something_stable() {
        let flushed_or_not = |flushes: bool| {
            let mut oracle = oracle();
            let older = acked(&mut oracle, 0..8);
            let old = acked(&mut oracle, 0..8);
            flush(&mut oracle);
            let new = acked(&mut oracle, 0..8);
            if flushes {
                flush(&mut oracle);
            }
            oracle.lose_power();
            oracle.open(B);
            let candidates = [ZEROES, older, old, new];
            candidates.map(|id| oracle.sectors[0].iter().any(|one| oracle.content(one.write) == id))
        };
        assert_eq!(flushed_or_not(false), [false, false, true, true]);
        assert_eq!(flushed_or_not(true), [false, false, false, true]);
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_submitted() {
        let mut oracle = oracle();
        let late = write(&mut oracle, 0..8);
        let submitted = oracle.begin_flush();
        oracle.end_write(late, true).unwrap();
        oracle.end_flush(submitted);
        oracle.lose_power();
        oracle.open(B);
        assert!(reads(&mut oracle, 0..8, ZEROES));
    }

    #[test]
    fn fua_is_stable_by_itself() {
        let mut oracle = oracle();
        let id = oracle.begin_write(A, Change::Data, 0..8, true);
        oracle.end_write(id, true).unwrap();
        oracle.lose_power();
        oracle.open(B);
        assert!(!reads(&mut oracle, 0..8, ZEROES));
    }

    #[test]
    fn whole_blocks_are_old_or_new() {
        let mut oracle = oracle();
        let old = acked(&mut oracle, 0..16);
        let new = write(&mut oracle, 0..16);
        oracle.open(B);
        let submitted = oracle.begin_read();
        let mut mixed = bytes(new, 0..8);
        mixed.append(bytes(old, 8..16));
        assert!(oracle.end_read(B, submitted, 0, &mixed).is_ok(), "blocks, each by itself");
        let mut oracle = self::oracle();
        let old = acked(&mut oracle, 0..8);
        let new = write(&mut oracle, 0..8);
        oracle.open(B);
        let submitted = oracle.begin_read();
        let mut mixed = bytes(new, 0..3);
        mixed.append(bytes(old, 3..8));
        assert!(oracle.end_read(B, submitted, 0, &mixed).is_err());
    }

    #[test]
    fn one_sector_of_a_new_block_settles_the_others() {
        let mut oracle = oracle();
        acked(&mut oracle, 0..8);
        let new = write(&mut oracle, 0..8);
        oracle.open(B);
        assert!(reads(&mut oracle, 2..3, new));
        assert!(!reads(&mut oracle, 5..6, WriteId(1)));
        assert!(reads(&mut oracle, 5..6, new));
    }

    #[test]
    fn a_discard_leaves_what_was_there_or_zeros() {
        let mut oracle = oracle();
        let old = acked(&mut oracle, 0..8);
        let discard = oracle.begin_write(A, Change::Discard, 0..8, false);
        oracle.end_write(discard, true).unwrap();
        let possible = oracle.sectors[0].iter().filter(|one| one.replaced == NEVER);
        assert_eq!(possible.count(), 2);
        assert!(reads(&mut oracle, 0..8, ZEROES));
        assert!(!reads(&mut oracle, 0..8, old), "it was read as zeros");
        let zeroes = oracle.begin_write(A, Change::Zeroes, 8..16, false);
        oracle.end_write(zeroes, true).unwrap();
        assert!(reads(&mut oracle, 8..16, ZEROES));
    }

    #[test]
    fn an_engine_that_was_taken_over_cannot_acknowledge_what_was_read_as_lost() {
        for is_read_as_lost in [false, true] {
            let mut oracle = oracle();
            let old = acked(&mut oracle, 0..8);
            let late = write(&mut oracle, 0..8);
            oracle.open(B);
            let first = if is_read_as_lost { old } else { late };
            assert!(reads(&mut oracle, 0..8, first));
            assert_eq!(oracle.end_write(late, true).is_err(), is_read_as_lost);
        }
        let mut oracle = oracle();
        let late = write(&mut oracle, 0..8);
        oracle.open(B);
        let new = acked(&mut oracle, 0..8);
        assert!(oracle.end_write(late, true).is_ok(), "it may have come before");
        assert!(reads(&mut oracle, 0..8, new) && !reads(&mut oracle, 0..8, late));
    }

    #[test]
    fn after_a_pause_what_is_lost_may_be_old_or_new_for_the_next_engine_and_all_else_is_there() {
        for is_lost in [false, true] {
            let mut oracle = oracle();
            let old = acked(&mut oracle, 0..8);
            flush(&mut oracle);
            oracle.lose_power();
            let new = acked(&mut oracle, 0..8);
            let lost: Vec<Range<u64>> = is_lost.then_some(0..8).into_iter().collect();
            oracle.resume(&lost);
            flush(&mut oracle);
            oracle.open(B);
            assert_eq!(reads(&mut oracle, 0..8, old), is_lost);
            assert_eq!(reads(&mut oracle, 0..8, new), !is_lost, "what was read does not change");
        }
    }

    #[test]
    fn a_discard_that_left_a_sector_as_it_was_is_acknowledged_by_an_engine_that_was_taken_over() {
        let mut oracle = oracle();
        let old = acked(&mut oracle, 0..16);
        let discard = oracle.begin_write(A, Change::Discard, 4..16, false);
        oracle.open(B);
        assert!(reads(&mut oracle, 4..8, old), "a part of a block stays as it was");
        assert!(reads(&mut oracle, 8..16, ZEROES), "a whole block is given back");
        assert!(oracle.end_write(discard, true).is_ok());
    }

    #[test]
    fn a_failed_write_may_still_appear_until_the_array_is_opened_again() {
        let mut oracle = oracle();
        let failed = write(&mut oracle, 0..8);
        oracle.end_write(failed, false).unwrap();
        assert!(reads(&mut oracle, 0..8, ZEROES));
        oracle.open(B);
        assert!(reads(&mut oracle, 0..8, failed));
        assert!(!reads(&mut oracle, 0..8, ZEROES));
    }
}
