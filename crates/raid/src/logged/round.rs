//! Rounds: bring home what is in the log, and let the log begin later.
//!
//! Invariants: nothing is written home before the PARITY record that says so is stable; the tail
//! moves to a round's cut when everything below it is home or void, stable, and in the tables.
//!
//! A row that was never written holds nothing that its check blocks must go with: it may be written
//! home before its PARITY. So it is known that there is space for it before anything is logged.

use alloc::vec::Vec;
use core::ops::Range;

use futures_util::future::join_all;
use netraid_block::{ErrorKind, IoError, SgList, narrow};

use super::{
    Rule,
    carry::Stuck,
    dirty::Dirty,
    io::IoKind,
    locks::Purpose,
    log::Remaps,
    space::Aim,
    state::State,
    tasks::{Array, Change},
};
use crate::{
    bytes,
    checkpoint::{Checkpoint, ListName},
    checksum::Home,
    code::{Code, ColumnSet},
    log::{Basis, Position, Record},
    planted::{Planted, planted},
};

/// Which rounds were asked for, begun, and ended.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    wanted: u64,
    begun: u64,
    done: u64,
    /// What the next one is to reach.
    aim: Aim,
}

impl State {
    /// Asks for a round that begins after now, and lets the log begin later; for none while that is
    /// known to be in vain.
    pub(super) fn want_round(&mut self) -> u64 {
        if self.space.is_blocked() {
            return self.rounds.wanted;
        }
        self.rounds.aim = self.rounds.aim.max(Aim::Room);
        self.try_round()
    }

    /// Asks for a round that begins after now; it may leave the log's beginning where it is.
    pub(super) fn try_round(&mut self) -> u64 {
        if self.rounds.wanted == self.rounds.begun {
            self.rounds.wanted += 1;
            self.waiters.wake(Change::Round);
        }
        self.rounds.wanted
    }

    pub(super) fn dirty_of(&self, logical: u32) -> Vec<(u32, Dirty)> {
        let first = self.layout.first_block(logical);
        let blocks = first..first + u64::from(self.layout.stripe_blocks());
        let dirty = self.dirty.range(blocks);
        dirty.map(|(block, dirty)| (narrow(block - first), dirty.clone())).collect()
    }
}

/// A row as it will be.
struct NewRow {
    row: u32,
    basis: Vec<Basis>,
    /// CRC32C of check blocks that are logged with it; none where these are copies.
    check_sums: Vec<u32>,
    /// All columns that change, data before checks, and CRC32C of each.
    columns: Vec<(u8, SgList, u32)>,
    /// Its first contents.
    first: bool,
}

impl Array {
    /// Runs rounds for as long as the array is open.
    pub(super) async fn serve_rounds(self) {
        loop {
            self.until(Change::Round, |state| {
                (state.rounds.wanted > state.rounds.begun).then(|| {
                    state.rounds.begun = state.rounds.wanted;
                })
            })
            .await;
            let _operation = self.operation();
            if let Err(error) = self.round().await {
                self.state().fail(error);
                return;
            }
            let mut state = self.state();
            let done = state.rounds.begun;
            state.rounds.done = done;
            state.waiters.wake(Change::Round);
        }
    }

    /// Has a round begin after now, and waits for its end.
    pub(super) async fn next_round(&self) {
        let want = |state: &mut State| (!state.space.is_blocked()).then(|| state.want_round());
        let number = self.until(Change::Round, want).await;
        self.until(Change::Round, |state| (state.rounds.done >= number).then_some(())).await;
    }

    /// Has a round with that aim begin after now, and waits for its end.
    pub(super) async fn round_to(&self, aim: Aim) {
        let number = {
            let mut state = self.state();
            state.rounds.aim = aim;
            state.try_round()
        };
        self.until(Change::Round, |state| (state.rounds.done >= number).then_some(())).await;
    }

    async fn round(&self) -> Result<(), IoError> {
        let (cut, aim) = {
            let mut state = self.state();
            state.space.begin_round();
            let aim = core::mem::take(&mut state.rounds.aim);
            (state.writer().acked_link(), aim)
        };
        let cut = match aim {
            Aim::Try | Aim::Room => {
                let stuck = self.bring_home(cut.end).await?;
                let to = self.state().pass(&stuck, aim, cut);
                let Some(cut) = to else { return Ok(()) };
                self.carry(stuck, cut.end).await?;
                cut
            }
            Aim::Reclaim | Aim::Renew => {
                let to = self.state().renewed_to(aim, cut);
                let Some(cut) = to else { return Ok(()) };
                let again = self.state().logged_again_for(cut.end);
                self.log_again(again).await?;
                cut
            }
        };
        self.state().end_stuck();
        let closed = {
            let mut state = self.state();
            state.round += 1;
            state.round - 1
        };
        let snapshot = self.take_snapshot(closed);
        // What the snapshot says, and what voids or supersedes DATA below the cut, becomes stable.
        let skip = planted(Planted::PageBeforeStable) && !snapshot.is_empty();
        if !skip && !planted(Planted::TailWithoutFlush) {
            self.flush_for(Rule::ImagesAfterFlush).await;
        }
        if planted(Planted::SlotReusedBeforeTailStable) {
            self.state().begin_log_at(cut.end);
        }
        let _tables = self.lock_tables().await;
        if !snapshot.is_empty() {
            self.write_snapshot(snapshot).await;
            if !planted(Planted::CheckpointBeforeImages) && !planted(Planted::TailWithoutFlush) {
                self.flush_for(Rule::CheckpointAfterImages).await;
            }
        }
        let checkpoint = {
            let state = self.state();
            Checkpoint {
                generation: state.label.generation,
                counter: state.checkpoint.counter + 1,
                round: closed,
                tail: cut,
                stripe_images: state.count_images(|images| images.newest.counter),
                list: if planted(Planted::ListForgotten) {
                    ListName::NONE
                } else {
                    state.checkpoint.list
                },
            }
        };
        self.write_checkpoint(&checkpoint).await;
        let mut state = self.state();
        state.checkpoint = checkpoint;
        state.stripe_images.iter_mut().for_each(|images| images.counted = images.newest.counter);
        state.begin_log_at(cut.end);
        let stable = state.writer().stable();
        state.end_limbo(stable);
        state.waiters.wake(Change::Room);
        Ok(())
    }

    /// Brings home every block that is dirty from below `cut`; answers those that it cannot, by
    /// logical stripe.
    async fn bring_home(&self, cut: Position) -> Result<Vec<(u32, Stuck)>, IoError> {
        let mut from = 0;
        let mut stuck = Vec::new();
        let oldest_first = self.state().oldest_first(cut);
        if let Some(stripes) = oldest_first {
            // Several at a time would take from each other what is enough for one.
            for logical in stripes {
                let left = self.destage(logical, cut).await?;
                stuck.extend(left.map(|left| (logical, left)));
            }
            return Ok(stuck);
        }
        loop {
            let mut stripes = Vec::new();
            {
                let state = self.state();
                let per_stripe = u64::from(state.layout.stripe_blocks());
                while stripes.len() < state.layout.limits.stripes_at_once {
                    let Some(block) = state.dirty.next_below(from, cut) else { break };
                    let logical = block / per_stripe;
                    from = (logical + 1) * per_stripe;
                    stripes.push(narrow(logical));
                }
            }
            if stripes.is_empty() {
                return Ok(stuck);
            }
            let work = stripes
                .into_iter()
                .map(|logical| async move { (logical, self.destage(logical, cut).await) });
            for (logical, end) in join_all(work).await {
                stuck.extend(end?.map(|stuck| (logical, stuck)));
            }
        }
    }

    /// Brings home a logical stripe's dirty blocks, if any are from below `cut`; answers those that
    /// it cannot.
    async fn destage(&self, logical: u32, cut: Position) -> Result<Option<Stuck>, IoError> {
        loop {
            if let Some(stuck) = self.state().is_in_vain(logical) {
                return Ok(Some(stuck));
            }
            let rewrite = self.state().is_to_be_rewritten(logical);
            let to = if rewrite { Some(self.allocate_for_round(logical).await) } else { None };
            let _lock = if planted(Planted::NoHomeLock) {
                None
            } else {
                Some(self.lock(logical, Purpose::Home).await)
            };
            let (dirty, upto, physical) = {
                let mut state = self.state();
                (state.dirty_of(logical), state.acked(), state.stripes.find(logical))
            };
            if dirty.iter().all(|(_, dirty)| dirty.position >= cut) {
                return Ok(None);
            }
            return match (physical, to) {
                (Some(physical), None) => self.update_in_place(logical, physical, dirty).await,
                (None, Some(to)) => {
                    match self.rewrite(logical, None, to, dirty.clone(), upto).await {
                        Ok(()) => Ok(None),
                        Err(why) if why.kind() == ErrorKind::NoSpace => {
                            self.state().space.note_try();
                            let blocks = dirty.iter().map(|(block, _)| *block).collect();
                            Ok(Some(Stuck { blocks, why }))
                        }
                        Err(error) => Err(error),
                    }
                }
                (Some(from), Some(to)) => {
                    match self.rewrite(logical, Some(from), to, dirty.clone(), upto).await {
                        Ok(()) => Ok(None),
                        // Some of it is lost: what can be brought home is, row by row. Or a
                        // member has no space for another place.
                        Err(_) => self.update_in_place(logical, from, dirty).await,
                    }
                }
                // It was given back while we waited.
                (None, None) => continue,
            };
        }
    }

    /// New contents of some blocks of a stripe where it is. The caller has locked its home.
    async fn update_in_place(
        &self,
        logical: u32,
        physical: u32,
        dirty: Vec<(u32, Dirty)>,
    ) -> Result<Option<Stuck>, IoError> {
        let _pin = self.pin(physical);
        let _sums = self.sums(physical).await;
        let (rows, round, first_block) = {
            let mut state = self.state();
            let round = state.round;
            // Before anything is logged: whoever comes back meanwhile is told.
            state.touch(physical);
            (state.layout.rows, round, state.layout.first_block(logical))
        };
        let mut by_row: alloc::collections::BTreeMap<u32, Vec<(u8, Dirty)>> =
            alloc::collections::BTreeMap::new();
        for (block, dirty) in &dirty {
            let column = narrow(block / rows);
            by_row.entry(block % rows).or_default().push((column, dirty.clone()));
        }
        let news = by_row.into_iter().map(|(row, dirty)| async move {
            (row, self.new_row(logical, (physical, row), dirty).await)
        });
        let mut new_rows = Vec::new();
        let mut stuck: Option<Stuck> = None;
        let mut leave = |row: u32, why: IoError| {
            let blocks = dirty.iter().map(|(block, _)| *block);
            let of_row = blocks.filter(|block| block % rows == row);
            let stuck = stuck.get_or_insert_with(|| Stuck { blocks: Vec::new(), why });
            stuck.blocks.extend(of_row);
        };
        for (row, new) in join_all(news).await {
            match new {
                Ok(new) => new_rows.push(new),
                Err(why) => leave(row, why),
            }
        }
        let (first, other): (Vec<NewRow>, Vec<NewRow>) =
            new_rows.into_iter().partition(|new| new.first);
        let mut new_rows = other;
        loop {
            match self.write_home(physical, &first, IoKind::Home).await {
                Ok(()) => new_rows.extend(first),
                Err(why) if self.set_aside_who_is_full(&why).await => continue,
                Err(why) => first.iter().for_each(|new| leave(new.row, why.clone())),
            }
            break;
        }
        if new_rows.is_empty() {
            return Ok(stuck);
        }
        let records = new_rows.iter().map(|new| {
            let record = Record::Parity {
                stripe: u64::from(physical),
                row: new.row,
                round,
                checks: new.check_sums.clone(),
                basis: new.basis.clone(),
            };
            let logged = new.check_sums.len();
            let mut payload = SgList::new();
            for (_, check, _) in &new.columns[new.columns.len() - logged..] {
                payload.append(check.clone());
            }
            self.log_record(record, payload, Remaps::Moved)
        });
        join_all(records).await;
        if !planted(Planted::HomeBeforeParityStable) {
            self.flush_for(Rule::HomeAfterParity).await;
        }
        let written = new_rows.iter().filter(|new| !new.first);
        self.write_home(physical, written, IoKind::Write).await?;
        let mut state = self.state();
        for new in &new_rows {
            state.set_new_sums(physical, new);
        }
        for (block, dirty) in dirty {
            if stuck.as_ref().is_none_or(|stuck| !stuck.blocks.contains(&block)) {
                state.dirty.remove(first_block + u64::from(block), dirty.position);
            }
        }
        state.waiters.wake(Change::Room);
        Ok(stuck)
    }

    /// Writes what changes of some rows to their places.
    async fn write_home(
        &self,
        physical: u32,
        rows: impl IntoIterator<Item = &NewRow>,
        kind: IoKind,
    ) -> Result<(), IoError> {
        let writes = self.writes(kind);
        for new in rows {
            for (column, data, _) in &new.columns {
                let (member, offset) = self.state().home(physical, *column, new.row);
                writes.add(member, offset, data.clone());
            }
        }
        writes.end().await
    }

    /// What a row becomes with new contents of some of its data columns.
    async fn new_row(
        &self,
        logical: u32,
        (physical, row): (u32, u32),
        dirty: Vec<(u8, Dirty)>,
    ) -> Result<NewRow, IoError> {
        let (code, pool, old, readable, checksum, first_block, rows) = {
            let state = self.state();
            let layout = &state.layout;
            let old = match state.row_sums(physical, row) {
                // Where all is new, nobody needs to know what there was.
                Err(_) if dirty.len() == usize::from(layout.code.data_columns()) => None,
                found => found?,
            };
            let first_block = layout.first_block(logical);
            let readable = state.readable_columns(physical);
            let pool = layout.pool.clone();
            (layout.code, pool, old, readable, layout.checksum, first_block, layout.rows)
        };
        let home = |column: u8| Home { physical, row, column };
        let data_columns = code.data_columns();
        let mut new: Vec<(u8, SgList)> = Vec::with_capacity(dirty.len());
        for (column, dirty) in &dirty {
            let block = first_block + u64::from(u32::from(*column) * rows + row);
            new.push((*column, dirty.contents(checksum, block, home(*column))?));
        }
        let mut basis: Vec<Basis> = dirty
            .iter()
            .map(|(column, dirty)| Basis {
                column: *column,
                crc: checksum.brought_home(home(*column), dirty.sum),
                position: Some(dirty.position),
                zeroes: dirty.data.is_none(),
            })
            .collect();
        let is_new = |column: u8| dirty.iter().any(|(one, _)| *one == column);
        let others: Vec<u8> = (0..data_columns).filter(|column| !is_new(*column)).collect();
        let first = old.is_none();
        let checks: Vec<SgList> = if first {
            for column in others {
                new.push((column, checksum.zeroes(home(column), 1)));
                let crc = checksum.of_zeroes(home(column));
                basis.push(Basis { column, crc, position: None, zeroes: true });
            }
            new.sort_by_key(|(column, _)| *column);
            let all: Vec<SgList> = new.iter().map(|(_, data)| data.clone()).collect();
            bytes::checks(&pool, &code, &all).into_vec()
        } else if code.is_copies() || code.check_columns() == 0 {
            Vec::new()
        } else if is_update_cheaper(code, &others, &dirty, readable) {
            match self.updated_checks(physical, row, &new).await {
                Ok(checks) => checks,
                // What is lost may be just what is new.
                Err(_) => self.whole_checks(physical, row, &new, &others).await?,
            }
        } else {
            match self.whole_checks(physical, row, &new, &others).await {
                Ok(checks) => checks,
                Err(_) => self.updated_checks(physical, row, &new).await?,
            }
        };
        let sum_of = |column: u8| {
            let known = basis.iter().find(|one| one.column == column);
            known.map_or_else(|| unreachable!("a new column without a basis"), |one| one.crc)
        };
        let with_sum = |(column, data): (u8, SgList)| (column, data, sum_of(column));
        let mut columns: Vec<(u8, SgList, u32)> = new.into_iter().map(with_sum).collect();
        let mut check_sums = Vec::new();
        if code.is_copies() {
            for check in data_columns..code.columns() {
                let weighs = |column: u8| code.check_weight(check, column) != 0;
                let source = columns.iter().find(|(one, ..)| *one < data_columns && weighs(*one));
                let copy = source.map(|(_, data, sum)| {
                    (check, data.clone(), checksum.brought_home(home(check), *sum))
                });
                columns.extend(copy);
            }
        } else {
            for (check, data) in (data_columns..code.columns()).zip(checks) {
                let sum = checksum.of_column(home(check), &data)[0];
                check_sums.push(sum);
                columns.push((check, data, sum));
            }
        }
        Ok(NewRow { row, basis, check_sums, columns, first })
    }

    /// Check blocks from all data columns: those that change, and what the others hold.
    async fn whole_checks(
        &self,
        physical: u32,
        row: u32,
        new: &[(u8, SgList)],
        others: &[u8],
    ) -> Result<Vec<SgList>, IoError> {
        let (code, pool) = {
            let state = self.state();
            (state.layout.code, state.layout.pool.clone())
        };
        let reads = others.iter().map(|column| self.fetch_old(physical, *column, row..row + 1));
        let mut all = new.to_vec();
        for (column, data) in others.iter().zip(join_all(reads).await) {
            all.push((*column, data?));
        }
        all.sort_by_key(|(column, _)| *column);
        let all: Vec<SgList> = all.into_iter().map(|(_, data)| data).collect();
        Ok(bytes::checks(&pool, &code, &all).into_vec())
    }

    /// What parity is computed from.
    async fn fetch_old(
        &self,
        physical: u32,
        column: u8,
        rows: Range<u32>,
    ) -> Result<SgList, IoError> {
        let is_readable = || self.state().readable_columns(physical).contains(column);
        if planted(Planted::UnverifiedUpdate)
            && is_readable()
            && let Ok(data) = self.read_column(physical, column, rows.clone(), true).await
        {
            return Ok(data);
        }
        self.fetch(physical, column, rows, &mut Vec::new()).await
    }

    /// Check blocks from the old ones and what changes.
    async fn updated_checks(
        &self,
        physical: u32,
        row: u32,
        new: &[(u8, SgList)],
    ) -> Result<Vec<SgList>, IoError> {
        let (code, pool) = {
            let state = self.state();
            (state.layout.code, state.layout.pool.clone())
        };
        let rows: Range<u32> = row..row + 1;
        let wanted: Vec<u8> = new
            .iter()
            .map(|(column, _)| *column)
            .chain(code.data_columns()..code.columns())
            .collect();
        let reads = wanted.iter().map(|column| self.fetch_old(physical, *column, rows.clone()));
        let mut old = Vec::new();
        for data in join_all(reads).await {
            old.push(data?);
        }
        let (old_data, old_checks) = old.split_at(new.len());
        let mut checks = Vec::new();
        for (check, old_check) in (code.data_columns()..).zip(old_checks) {
            let deltas: Vec<(u8, &SgList, &SgList)> = new
                .iter()
                .zip(old_data)
                .map(|((column, new), old)| (code.check_weight(check, *column), old, new))
                .collect();
            checks.push(bytes::update(&pool, old_check, &deltas).into());
        }
        Ok(checks)
    }

    /// Writes a stripe, with its dirty blocks, to a free place. The caller has locked its home.
    async fn rewrite(
        &self,
        logical: u32,
        from: Option<u32>,
        to: super::write::Allocated,
        dirty: Vec<(u32, Dirty)>,
        upto: Position,
    ) -> Result<(), IoError> {
        let (rows, data_columns) = {
            let state = self.state();
            (state.layout.rows, state.layout.code.data_columns())
        };
        let _pin = from.map(|from| self.pin(from));
        let _sums = match from {
            Some(from) => Some(self.sums(from).await),
            None => None,
        };
        let mut written = alloc::vec![false; rows as usize];
        for (block, _) in &dirty {
            written[(block % rows) as usize] = true;
        }
        if let Some(from) = from {
            let state = self.state();
            for row in 0..rows {
                written[row as usize] |= state.row_sums(from, row)?.is_some();
            }
        }
        let columns = (0..data_columns).map(|column| {
            let places = (logical, from, to.physical);
            self.column_with(places, column, &written, &dirty)
        });
        let mut data = Vec::new();
        for column in join_all(columns).await {
            data.push(column?);
        }
        self.replace(logical, to, &data, written, upto, (Remaps::Moved, from.is_some())).await
    }

    /// A data column's written rows: dirty blocks over what is at home.
    async fn column_with(
        &self,
        (logical, from, to): (u32, Option<u32>, u32),
        column: u8,
        written: &[bool],
        dirty: &[(u32, Dirty)],
    ) -> Result<SgList, IoError> {
        let rows: u32 = narrow(written.len());
        let (checksum, first_block) = {
            let state = self.state();
            (state.layout.checksum, state.layout.first_block(logical))
        };
        let blocks = (0..rows).filter(|row| written[*row as usize]).map(|row| async move {
            let block = u32::from(column) * rows + row;
            let new = dirty.binary_search_by_key(&block, |(block, _)| *block).ok();
            let home = Home { physical: to, row, column };
            match (new.map(|at| &dirty[at].1), from) {
                (Some(dirty), _) => dirty.contents(checksum, first_block + u64::from(block), home),
                (None, Some(from)) => self.fetch(from, column, row..row + 1, &mut Vec::new()).await,
                (None, None) => Ok(checksum.zeroes(home, 1)),
            }
        });
        let mut whole = SgList::new();
        for block in join_all(blocks).await {
            whole.append(block?);
        }
        Ok(whole)
    }
}

/// Whether reading old data and checks takes fewer requests than reading all other columns.
fn is_update_cheaper(
    code: Code,
    others: &[u8],
    dirty: &[(u8, Dirty)],
    readable: ColumnSet,
) -> bool {
    let checks = code.data_columns()..code.columns();
    let update_reads = dirty.iter().map(|(column, _)| *column).chain(checks);
    // A column that cannot be read costs all others.
    let cost = |column: u8| if readable.contains(column) { 1 } else { u32::from(code.columns()) };
    let update: u32 = update_reads.map(cost).sum();
    let all: u32 = others.iter().map(|column| cost(*column)).sum();
    update < all
}

impl State {
    /// Whether a round writes a stripe as a whole elsewhere: it is nowhere, or much of it changes.
    fn is_to_be_rewritten(&self, logical: u32) -> bool {
        if self.stripes.find(logical).is_none() {
            return true;
        }
        let first = self.layout.first_block(logical);
        let blocks = u64::from(self.layout.stripe_blocks());
        let dirty = self.dirty.range(first..first + blocks).count() as u64;
        dirty * 2 >= blocks && self.may_set_aside()
    }

    fn set_new_sums(&mut self, physical: u32, new: &NewRow) {
        let columns = usize::from(self.layout.geometry.members());
        let old = self.row_sums(physical, new.row).ok().flatten();
        assert_eq!(old.is_none(), new.first, "row {} of stripe {physical}", new.row);
        let mut sums = old.unwrap_or_else(|| alloc::vec![0; columns]);
        for (column, _, sum) in &new.columns {
            sums[usize::from(*column)] = *sum;
        }
        self.set_row_sums(physical, new.row, Some(&sums));
    }
}
