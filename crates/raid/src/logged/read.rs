//! Reads: from the log's dirty blocks, and from home, verified. What a member cannot give, gives wrong, or does not give
//! in time, follows from the others.
//!
//! Invariant: a block that does not have its checksum is never given to anybody.

mod hedge;
mod plan;

use alloc::vec::Vec;
use core::ops::Range;

use futures_util::future::{join, join_all};
use netraid_block::{ErrorKind, IoError, SgList};

use self::plan::Part;
use super::{
    Event, Rule,
    locks::Purpose,
    state::{BLOCK, State},
    tasks::{Array, Change},
};
use crate::{
    bytes,
    checksum::Home,
    code::ColumnSet,
    faults::Fault,
    member::MemberIndex,
    planted::{Planted, planted},
};

/// Repairs that wait; what is found beyond that is left to a scrub.
const REPAIRS_MAX: usize = 1024;
/// A plan that was overtaken is made again so often before the stripe is locked.
const TRIES: u32 = 2;

/// What a read without a lock came to.
enum Tried {
    Read(SgList),
    /// What came does not fit what was expected.
    Overtaken,
    /// Something is to be computed from all others, which is done once, when nobody changes them.
    Absent,
}

/// A column that is wrong, and how.
type WrongColumn = (u8, Fault);

/// Rows of a column, verified.
type Had = (u8, Range<u32>, SgList);

/// Keeps a physical stripe from being used for something else.
pub(super) struct Pin {
    array: Array,
    physical: u32,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.array.state();
        state.stripes.unpin(self.physical);
        // Nobody waits for a stripe that stays where it is.
        let may_be_free = state.stripes.entry(self.physical).logical.is_none();
        if may_be_free || !state.discards.is_empty() {
            state.waiters.wake(Change::Stripes);
        }
    }
}

impl Array {
    /// Pins a stripe that is mapped or pinned.
    pub(super) fn pin(&self, physical: u32) -> Pin {
        self.state().stripes.pin(physical);
        Pin { array: self.clone(), physical }
    }

    /// A pin that was taken already, as an allocation is.
    pub(super) fn adopt_pin(&self, physical: u32) -> Pin {
        Pin { array: self.clone(), physical }
    }

    /// Blocks of a logical stripe, as they are now.
    pub(super) async fn read_blocks(
        &self,
        logical: u32,
        blocks: Range<u32>,
    ) -> Result<SgList, IoError> {
        for _ in 0..TRIES {
            match self.try_read(logical, blocks.clone()).await? {
                Tried::Read(data) => return Ok(data),
                Tried::Overtaken => {}
                Tried::Absent => break,
            }
        }
        // Overtaken, or something is wrong there: nobody changes home now.
        self.state().rules.note(Rule::LockedRead);
        let _lock = self.lock(logical, Purpose::Rely).await;
        self.read_locked(logical, blocks).await
    }

    /// Reads without a lock.
    async fn try_read(&self, logical: u32, blocks: Range<u32>) -> Result<Tried, IoError> {
        let Some((physical, _pin, _sums)) = self.place(logical).await else {
            return Ok(Tried::Read(self.state().read_unmapped(logical, blocks)));
        };
        let mut plan = {
            let mut state = self.state();
            let Some(plan) = state.plan(logical, physical, blocks)? else {
                return Ok(Tried::Overtaken);
            };
            let is_there = plan.iter().all(|part| state.has_part(physical, part));
            if !is_there || !state.are_asked(physical, &plan) {
                return Ok(Tried::Absent);
            }
            plan
        };
        if plan.len() == 1
            && let Some(only) = plan.pop()
        {
            let data = self.read_part((logical, physical), only).await;
            return Ok(data.map_or(Tried::Overtaken, Tried::Read));
        }
        let parts = plan.into_iter().map(|part| self.read_part((logical, physical), part));
        let mut whole = SgList::new();
        for part in join_all(parts).await {
            match part {
                Some(data) => whole.append(data),
                None => return Ok(Tried::Overtaken),
            }
        }
        Ok(Tried::Read(whole))
    }

    /// A part as its member has it, or as it follows from the others where that comes first; none when that is not what
    /// it should be.
    async fn read_part(&self, stripe: (u32, u32), part: Part) -> Option<SgList> {
        match part {
            Part::Ready(data) => Some(data),
            Part::Home { column, rows, sums } => self.read_home(stripe, column, rows, &sums).await,
        }
    }

    /// Reads under a lock that keeps home as it is. What can be read is, and at the same time what it
    /// takes beside that to compute what cannot: nothing is read twice.
    pub(super) async fn read_locked(
        &self,
        logical: u32,
        blocks: Range<u32>,
    ) -> Result<SgList, IoError> {
        let (physical, plan, _pin, _sums) = loop {
            let Some((physical, pin, sums)) = self.place(logical).await else {
                return Ok(self.state().read_unmapped(logical, blocks));
            };
            // A stripe that was replaced meanwhile is looked up again.
            let plan = self.state().plan(logical, physical, blocks.clone())?;
            if let Some(plan) = plan {
                break (physical, plan, pin, sums);
            }
        };
        let (is_there, beside) = {
            let state = self.state();
            let is_there = |part| state.has_part(physical, part) && !state.is_past(physical, part);
            let is_there: Vec<bool> = plan.iter().map(is_there).collect();
            let beside = state.needed_beside(physical, &plan, &is_there);
            (is_there, beside)
        };
        let beside = beside.into_iter().map(|(column, rows)| async move {
            let data = self.read_column(physical, column, rows.clone(), true).await.ok()?;
            let is_right = self.state().verify(physical, column, &rows, &data).ok()?;
            is_right.then_some((column, rows, data))
        });
        let there = plan.iter().zip(&is_there).filter(|(_, is_there)| **is_there);
        let reads = there.map(|(part, _)| async move {
            match part.home() {
                Ok(data) => Ok(data),
                Err((column, rows)) => self.fetch(physical, column, rows, &mut Vec::new()).await,
            }
        });
        let (read, beside) = join(join_all(reads), join_all(beside)).await;
        let mut read = read.into_iter();
        let mut had: Vec<Had> = beside.into_iter().flatten().collect();
        let mut parts: Vec<Option<SgList>> = Vec::with_capacity(plan.len());
        for (part, is_there) in plan.iter().zip(&is_there) {
            let data = if *is_there { read.next().transpose()? } else { None };
            if let (Some(data), Part::Home { column, rows, .. }) = (&data, part) {
                had.push((*column, rows.clone(), data.clone()));
            }
            parts.push(data);
        }
        let mut whole = SgList::new();
        for (part, data) in plan.iter().zip(parts) {
            match (data, part.home()) {
                (Some(data), _) | (None, Ok(data)) => whole.append(data),
                (None, Err((column, rows))) => {
                    whole.append(self.fetch(physical, column, rows, &mut had).await?);
                }
            }
        }
        Ok(whole)
    }

    /// Where a logical stripe is, pinned, with its checksums in memory.
    async fn place(&self, logical: u32) -> Option<(u32, Pin, super::sums::PinnedSums)> {
        let physical = self.state().stripes.find(logical)?;
        let pin = self.pin(physical);
        let sums = self.sums(physical).await;
        Some((physical, pin, sums))
    }

    /// Rows of a column, verified: read, or computed from the others. The caller holds a lock, and
    /// the stripe's checksums are pinned. What it `had` of other columns is not
    /// read again, and what it reads to compute from is added.
    pub(super) async fn fetch(
        &self,
        physical: u32,
        column: u8,
        rows: Range<u32>,
        had: &mut Vec<Had>,
    ) -> Result<SgList, IoError> {
        let mut whole = SgList::new();
        let runs = self.state().runs(physical, rows)?;
        for (run, written) in runs {
            if !written {
                whole.append(bytes::zeroes(((run.end - run.start) * BLOCK) as usize));
                continue;
            }
            whole.append(self.fetch_written(physical, column, run, had).await?);
        }
        Ok(whole)
    }

    /// Written rows of a column, computed from the others whatever its member has.
    pub(super) async fn fetch_without(
        &self,
        physical: u32,
        column: u8,
        rows: Range<u32>,
    ) -> Result<SgList, IoError> {
        let usable = self.state().usable_columns(physical, column);
        if let Some(data) =
            self.compute_run(physical, column, &rows, usable, &mut Vec::new()).await?
        {
            return Ok(data);
        }
        let mut whole = SgList::new();
        for row in rows {
            whole.append(self.fetch_row(physical, column, row).await?);
        }
        Ok(whole)
    }

    pub(super) async fn fetch_written(
        &self,
        physical: u32,
        column: u8,
        rows: Range<u32>,
        had: &mut Vec<Had>,
    ) -> Result<SgList, IoError> {
        let (is_asked, usable) = {
            let state = self.state();
            let is_asked = state.readable_columns(physical).contains(column)
                && !state.goes_past(physical, column);
            (is_asked, state.usable_columns(physical, column))
        };
        if is_asked {
            let read = self.read_column(physical, column, rows.clone(), true).await;
            if let Ok(data) = read
                && self.state().verify(physical, column, &rows, &data)?
            {
                return Ok(data);
            }
        } else if let Some(data) = self.compute_run(physical, column, &rows, usable, had).await? {
            return Ok(data);
        }
        // Row by row, each block by itself: what is wrong in one says nothing of the next.
        let mut whole = SgList::new();
        for row in rows {
            whole.append(self.fetch_row(physical, column, row).await?);
        }
        Ok(whole)
    }

    /// A column's rows computed from others, when all of these are as they should be.
    async fn compute_run(
        &self,
        physical: u32,
        column: u8,
        rows: &Range<u32>,
        readable: ColumnSet,
        had: &mut Vec<Had>,
    ) -> Result<Option<SgList>, IoError> {
        let (code, pool) = {
            let state = self.state();
            (state.layout.code, state.layout.pool.clone())
        };
        let Some(recipe) = code.recipe(column, readable) else { return Ok(None) };
        let mut sources = Vec::new();
        let mut missing = Vec::new();
        for (other, weight) in recipe.iter() {
            match rows_of(had, *other, rows) {
                Some(data) => sources.push((*weight, data)),
                None => missing.push((*other, *weight)),
            }
        }
        let reads = missing.into_iter().map(|(other, weight)| async move {
            (other, weight, self.read_column(physical, other, rows.clone(), true).await)
        });
        for (other, weight, data) in join_all(reads).await {
            match data {
                Ok(data) if self.is_right(physical, other, rows, &data)? => {
                    had.push((other, rows.clone(), data.clone()));
                    sources.push((weight, data));
                }
                Ok(_) | Err(_) => return Ok(None),
            }
        }
        let refs: Vec<(u8, &SgList)> =
            sources.iter().map(|(weight, data)| (*weight, data)).collect();
        let len = ((rows.end - rows.start) * BLOCK) as usize;
        let data: SgList = bytes::combine(&pool, len, &refs).into();
        Ok(self.is_right(physical, column, rows, &data)?.then_some(data))
    }

    /// Whether bytes that something is computed from, or that were computed, have their checksums.
    fn is_right(
        &self,
        physical: u32,
        column: u8,
        rows: &Range<u32>,
        data: &SgList,
    ) -> Result<bool, IoError> {
        let is_right = self.state().verify(physical, column, rows, data)?;
        Ok(is_right || planted(Planted::ComputedNotVerified))
    }

    /// One block, from whatever of its row is right.
    async fn fetch_row(&self, physical: u32, column: u8, row: u32) -> Result<SgList, IoError> {
        let first = self.try_fetch_row(physical, column, row).await?;
        if let Ok(data) = first {
            return Ok(data);
        }
        // A member that left meanwhile, or a block that can be read the second time, is no loss yet.
        let again = self.try_fetch_row(physical, column, row).await?;
        again.map_err(|wrong| {
            let mut state = self.state();
            state.note_wrong(physical, &wrong);
            state.unreadable(physical, row, &wrong)
        })
    }

    /// As [`Self::fetch_row`]; fails with the columns that are wrong when too many are.
    async fn try_fetch_row(
        &self,
        physical: u32,
        column: u8,
        row: u32,
    ) -> Result<Result<SgList, Vec<WrongColumn>>, IoError> {
        let rows = row..row + 1;
        let (code, pool, readable) = {
            let state = self.state();
            (state.layout.code, state.layout.pool.clone(), state.readable_columns(physical))
        };
        let reads = readable.iter().map(|other| {
            let rows = rows.clone();
            async move { (other, self.read_column(physical, other, rows, false).await) }
        });
        let mut right: Vec<(u8, SgList)> = Vec::new();
        let mut wrong = Vec::new();
        for (other, data) in join_all(reads).await {
            match data {
                Ok(data) if self.state().verify(physical, other, &rows, &data)? => {
                    right.push((other, data));
                }
                Ok(_) => wrong.push((other, Fault::WrongBlocks)),
                Err(error) if super::io::is_medium(&error) => {
                    wrong.push((other, Fault::UnreadableBlocks));
                }
                Err(_) => {}
            }
        }
        if let Some((_, data)) = right.iter().find(|(other, _)| *other == column) {
            return Ok(Ok(data.clone()));
        }
        let good: ColumnSet = right.iter().map(|(other, _)| *other).collect();
        let data = code.recipe(column, good).map(|recipe| {
            let find = |wanted: u8| right.iter().find(|(other, _)| *other == wanted);
            let refs: Vec<(u8, &SgList)> = recipe
                .iter()
                .filter_map(|(other, weight)| find(*other).map(|(_, data)| (*weight, data)))
                .collect();
            SgList::from(bytes::combine(&pool, BLOCK as usize, &refs))
        });
        let mut state = self.state();
        match data {
            Some(data) if state.verify(physical, column, &rows, &data)? => {
                state.want_repairs(physical, &wrong, row);
                Ok(Ok(data))
            }
            Some(_) | None => Ok(Err(wrong)),
        }
    }

    /// Rows of a column as its member has them. With `merge` perhaps together with others, or from what
    /// another read under way brings: the caller verifies them.
    pub(super) async fn read_column(
        &self,
        physical: u32,
        column: u8,
        rows: Range<u32>,
        merge: bool,
    ) -> Result<SgList, IoError> {
        let (member, offset) = self.state().home(physical, column, rows.start);
        let len = (rows.end - rows.start) * BLOCK;
        match merge {
            true => self.read_joined(member, offset, len).await,
            false => self.read_member(member, offset, len, false).await,
        }
    }
}

impl State {
    /// Which member has a block, and where.
    pub(super) fn home(&self, physical: u32, column: u8, row: u32) -> (MemberIndex, u64) {
        let geometry = &self.layout.geometry;
        let member = geometry.member_of(u64::from(physical), column);
        (member, geometry.member_offset(u64::from(physical), row * BLOCK))
    }

    /// Runs of rows that were all written, or all never.
    pub(super) fn runs(
        &self,
        physical: u32,
        rows: Range<u32>,
    ) -> Result<Vec<(Range<u32>, bool)>, IoError> {
        let mut runs: Vec<(Range<u32>, bool)> = Vec::new();
        for row in rows {
            let written = self.sums_of_row(physical, row)?.is_some();
            match runs.last_mut() {
                Some((run, kind)) if *kind == written => run.end = row + 1,
                _ => runs.push((row..row + 1, written)),
            }
        }
        Ok(runs)
    }

    /// Runs of rows that were written and whose checksums are known.
    pub(super) fn known_runs(&self, physical: u32) -> Vec<Range<u32>> {
        let is_known = |row: &u32| matches!(self.row_sums(physical, *row), Ok(Some(_)));
        let mut runs: Vec<Range<u32>> = Vec::new();
        for row in (0..self.layout.rows).filter(is_known) {
            match runs.last_mut() {
                Some(run) if run.end == row => run.end = row + 1,
                _ => runs.push(row..row + 1),
            }
        }
        runs
    }

    /// Whether bytes have the checksums of a column's rows.
    pub(super) fn verify(
        &self,
        physical: u32,
        column: u8,
        rows: &Range<u32>,
        data: &SgList,
    ) -> Result<bool, IoError> {
        let home = Home { physical, row: rows.start, column };
        let found = self.layout.checksum.of_column(home, data);
        for (row, found) in rows.clone().zip(found) {
            let wanted = self.sums_of_row(physical, row)?;
            if wanted.is_some_and(|sums| sums[usize::from(column)] != found) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has blocks written again that a live member has wrong.
    fn want_repairs(&mut self, physical: u32, columns: &[WrongColumn], row: u32) {
        let Some(logical) = self.stripes.entry(physical).logical else { return };
        for wrong in columns {
            let place = (logical, physical, wrong.0, row);
            // Whoever waits to be written again was counted when that was found.
            if self.repairs.contains(&place) {
                continue;
            }
            self.note_wrong(physical, &[*wrong]);
            if self.repairs.len() < REPAIRS_MAX {
                self.repairs.insert(place);
            }
        }
        self.waiters.wake(Change::Repairs);
    }

    /// Counts blocks of a row that are wrong.
    fn note_wrong(&mut self, physical: u32, columns: &[WrongColumn]) {
        for (column, fault) in columns {
            let member = self.layout.geometry.member_of(u64::from(physical), *column);
            self.note_fault(member, *fault, 1);
        }
    }

    /// Something was found wrong with what a member has.
    pub(super) fn note_fault(&mut self, member: MemberIndex, fault: Fault, count: u64) {
        if let Some(Event::Found { member: last, fault: same, count: so_far }) =
            self.events.back_mut()
            && (*last, *same) == (member, fault)
        {
            *so_far += count;
            return;
        }
        self.events.push_back(Event::Found { member, fault, count });
    }

    fn unreadable(&self, physical: u32, row: u32, wrong: &[WrongColumn]) -> IoError {
        let geometry = &self.layout.geometry;
        let readable = self.readable_columns(physical);
        let mut away = Vec::new();
        for column in 0..geometry.members() {
            if !readable.contains(column) || wrong.iter().any(|(one, _)| *one == column) {
                away.push(geometry.member_of(u64::from(physical), column));
            }
        }
        let place = geometry.member_offset(u64::from(physical), row * BLOCK);
        let mut text = match self.stripes.entry(physical).logical {
            Some(logical) => {
                let first = u64::from(logical) * geometry.stripe_data_len();
                alloc::format!("a block of bytes {first} to {}", first + geometry.stripe_data_len())
            }
            None => alloc::string::String::from("a block"),
        };
        text.push_str(" cannot be read: at byte ");
        text.push_str(&alloc::format!("{place} members"));
        for member in away {
            text.push_str(&alloc::format!(" {member}"));
        }
        text.push_str(" are absent, not caught up, or wrong");
        IoError::with_detail(ErrorKind::Redundancy, text)
    }
}

/// Rows of a column, if all of them were had.
fn rows_of(had: &[Had], column: u8, rows: &Range<u32>) -> Option<SgList> {
    let covers = |one: &&Had| one.0 == column && one.1.start <= rows.start && rows.end <= one.1.end;
    let (_, from, data) = had.iter().find(covers)?;
    let byte = |row: u32| ((row - from.start) * BLOCK) as usize;
    Some(data.slice(byte(rows.start)..byte(rows.end)))
}
