//! Stripes: every block of every written row that is at home.

use alloc::vec::Vec;
use core::ops::Range;

use futures_util::future::join_all;
use netraid_block::{Buf, SgList};

use super::{Ranges, STILL_WRONG, WRITES_MAX, Wrong};
use crate::{
    bytes,
    checksum::Home,
    code::ColumnSet,
    faults::Fault,
    logged::{
        io::is_medium,
        locks::Purpose,
        state::{BLOCK, State},
        tasks::Array,
    },
    member::MemberIndex,
};

/// Bytes of a stripe that are looked at together, about.
const PIECE_LEN: u32 = 8 << 20;

/// What is known of a row's checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sums {
    NeverWritten,
    Known(Vec<u32>),
    /// Written or not, nobody knows.
    Lost,
}

/// What a member gave for a block.
#[derive(Debug, Clone)]
enum Found {
    Bytes(Buf),
    Unreadable,
    /// Its member takes no part, or has not caught up.
    Absent,
}

/// What became of rows of a stripe.
#[derive(Default)]
struct Told {
    repaired: Ranges,
    lost: Ranges,
    /// The other members have it, and the device does not take it.
    still_wrong: Ranges,
    unknown: Ranges,
    confirmed: Ranges,
}

/// A row, as it was found.
struct Row {
    physical: u32,
    row: u32,
    found: Vec<Found>,
}

impl Array {
    /// Checks a physical stripe, if anything is there.
    pub(super) async fn scrub_stripe(&self, run: u64, physical: u32) {
        let Some(logical) = self.state().stripes.entry(physical).logical else { return };
        let _operation = self.operation();
        let _lock = self.lock(logical, Purpose::Home).await;
        if self.state().stripes.find(logical) != Some(physical) {
            return;
        }
        let _pin = self.pin(physical);
        let _sums = self.sums(physical).await;
        let (rows, columns) = {
            let state = self.state();
            (state.layout.rows, u32::from(state.layout.geometry.members()))
        };
        let most = (PIECE_LEN / (columns * BLOCK)).max(1);
        let mut told = Told::default();
        let mut from = 0;
        while from < rows {
            let end = {
                let state = self.state();
                let is_there = |row: &u32| state.scrub_sums(physical, *row) != Sums::NeverWritten;
                from = (from..rows).find(|row| is_there(row)).unwrap_or(rows);
                let last = rows.min(from + most);
                (from..last).find(|row| !is_there(row)).unwrap_or(last)
            };
            if from < end {
                self.scrub_rows(run, physical, from..end, &mut told).await;
            }
            from = end;
        }
        let mut state = self.state();
        state.tell_repaired(told.repaired);
        state.tell_unrepaired(told.lost, "wrong, and cannot be had from the other members");
        state.tell_unrepaired(told.still_wrong, STILL_WRONG);
        state.tell_unrepaired(told.unknown, "its checksums are lost on all members");
        let text = "its checksums are lost on all members; its check columns confirm it, so a scrub \
                    that trusts parity would take it as it is";
        state.tell_unrepaired(told.confirmed, text);
    }

    /// Checks rows that were written, or may have been. The caller has locked their home.
    async fn scrub_rows(&self, run: u64, physical: u32, rows: Range<u32>, told: &mut Told) {
        let columns = self.state().layout.geometry.members();
        let reads = (0..columns).map(|column| self.scrub_column(physical, column, rows.clone()));
        let found = join_all(reads).await;
        if self.state().scrub_whole(run, physical, &rows, &found) {
            return;
        }
        for (at, row) in rows.enumerate() {
            let block = |blocks: &Vec<Found>| blocks[at].clone();
            let found: Vec<Found> = found.iter().map(block).collect();
            self.scrub_row(run, Row { physical, row, found }, told).await;
        }
    }

    /// A column's rows, each by itself.
    async fn scrub_column(&self, physical: u32, column: u8, rows: Range<u32>) -> Vec<Found> {
        let count = rows.len();
        if !self.state().readable_columns(physical).contains(column) {
            return alloc::vec![Found::Absent; count];
        }
        match self.read_column(physical, column, rows.clone(), false).await {
            Ok(data) => (0..count).map(|at| Found::Bytes(bytes::block(&data, at))).collect(),
            Err(error) if is_medium(&error) => {
                let each = rows.map(|row| self.read_column(physical, column, row..row + 1, false));
                let each = join_all(each).await;
                let found = each.into_iter().map(|end| match end {
                    Ok(data) => Found::Bytes(data.to_contiguous()),
                    Err(error) if is_medium(&error) => Found::Unreadable,
                    Err(_) => Found::Absent,
                });
                found.collect()
            }
            Err(_) => alloc::vec![Found::Absent; count],
        }
    }

    /// Checks a row, block by block, and writes again what can be had.
    async fn scrub_row(&self, run: u64, row: Row, told: &mut Told) {
        let sums = {
            let mut state = self.state();
            let sums = state.scrub_sums(row.physical, row.row);
            state.count_row(run, &row);
            sums
        };
        match sums {
            Sums::NeverWritten => {}
            Sums::Lost => self.scrub_lost_row(run, row, told),
            Sums::Known(sums) => self.scrub_known_row(run, row, &sums, told).await,
        }
    }

    async fn scrub_known_row(&self, run: u64, row: Row, sums: &[u32], told: &mut Told) {
        let (code, pool, checksum) = {
            let state = self.state();
            (state.layout.code, state.layout.pool.clone(), state.layout.checksum)
        };
        let sum = |column: u8, data: &[u8]| {
            checksum.at_home(Home { physical: row.physical, row: row.row, column }, data)
        };
        let right = |column: u8| match &row.found[usize::from(column)] {
            Found::Bytes(data) => sum(column, data) == sums[usize::from(column)],
            Found::Unreadable | Found::Absent => false,
        };
        let good: ColumnSet = (0..code.columns()).filter(|column| right(*column)).collect();
        // All columns, as far as they can be had with their checksums.
        let known: Vec<Option<Buf>> = (0..code.columns())
            .map(|column| match &row.found[usize::from(column)] {
                Found::Bytes(data) if good.contains(column) => Some(data.clone()),
                Found::Bytes(_) | Found::Unreadable | Found::Absent => {
                    let data = row.compute(&pool, code.recipe(column, good)?.iter().copied());
                    (sum(column, &data) == sums[usize::from(column)]).then_some(data)
                }
            })
            .collect();
        let data_columns = usize::from(code.data_columns());
        let data: Option<Vec<SgList>> =
            known[..data_columns].iter().map(|data| data.clone().map(SgList::from)).collect();
        // Of check columns that contradict the data their checksums are wrong, too.
        let checks = data.map(|data| bytes::checks(&pool, &code, &data));
        let check = |column: u8| {
            let checks = checks.as_ref()?;
            Some(checks[usize::from(column) - data_columns].to_contiguous())
        };
        let wanted: Vec<Option<Buf>> = (0..code.columns())
            .map(|column| match usize::from(column) {
                data if data < data_columns => known[data].clone(),
                _ => check(column),
            })
            .collect();
        let new_sum = |((column, wanted), old): ((u8, &Option<Buf>), &u32)| {
            wanted.as_ref().map_or(*old, |data| sum(column, data))
        };
        let new_sums: Vec<u32> = (0..).zip(&wanted).zip(sums).map(new_sum).collect();
        if new_sums != sums {
            // Whoever is away, or loses its cache now, lacks what the new checksums say.
            self.state().touch(row.physical);
        }
        for (column, wanted) in (0..).zip(wanted) {
            let is_check = usize::from(column) >= data_columns;
            let wrong = match (&row.found[usize::from(column)], &wanted) {
                (Found::Absent, Some(_)) => continue,
                (Found::Absent, None) if is_check => continue,
                (Found::Absent, None) => None,
                (Found::Unreadable, _) => Some(Wrong::Unreadable),
                (Found::Bytes(found), Some(wanted)) if found[..] == wanted[..] => continue,
                (Found::Bytes(_), None) if good.contains(column) => continue,
                (Found::Bytes(_), _) if is_check => Some(Wrong::Check),
                (Found::Bytes(_), _) => Some(Wrong::Data),
            };
            let place = (row.physical, column, row.row);
            self.scrub_block(run, place, wrong, wanted, told).await;
        }
        if new_sums != sums {
            let mut state = self.state();
            // Once more: a round may have ended since.
            state.touch(row.physical);
            state.set_row_sums(row.physical, row.row, Some(&new_sums));
            state.scrub_counts(run, |status| status.new_sums += 1);
        }
    }

    /// Writes a block again with what it should be, if that is known.
    async fn scrub_block(
        &self,
        run: u64,
        (physical, column, row): (u32, u8, u32),
        wrong: Option<Wrong>,
        wanted: Option<Buf>,
        told: &mut Told,
    ) {
        let (member, offset) = self.state().home(physical, column, row);
        if let Some(wrong) = wrong {
            self.state().scrub_found(run, member, wrong);
        }
        let Some(wanted) = wanted else {
            self.state().scrub_unrepaired(run, member, 1);
            told.lost.add(member, offset, BLOCK.into());
            return;
        };
        let mut is_lost = false;
        for _ in 0..WRITES_MAX {
            self.write_member(member, offset, wanted.clone().into()).await;
            let now = self.read_column(physical, column, row..row + 1, false).await;
            let mut state = self.state();
            match now {
                Ok(data) if data.to_contiguous()[..] == wanted[..] => {
                    state.scrub_repaired(run, member, 1);
                    told.repaired.add(member, offset, BLOCK.into());
                    return;
                }
                Err(error) if !is_medium(&error) => {
                    state.scrub_counts(run, |status| status.members[member.as_usize()].absent += 1);
                    return;
                }
                Ok(_) if !core::mem::replace(&mut is_lost, true) => {
                    state.note_fault(member, Fault::LostWrites, 1);
                }
                Ok(_) => {}
                Err(_) => {}
            }
        }
        self.state().scrub_unrepaired(run, member, 1);
        told.still_wrong.add(member, offset, BLOCK.into());
    }

    /// A row of which nobody knows whether it was written, and what it held.
    fn scrub_lost_row(&self, run: u64, row: Row, told: &mut Told) {
        let mut state = self.state();
        let (code, pool) = (state.layout.code, state.layout.pool.clone());
        let all: Option<Vec<SgList>> = row
            .found
            .iter()
            .map(|found| match found {
                Found::Bytes(data) => Some(SgList::from(data.clone())),
                Found::Unreadable | Found::Absent => None,
            })
            .collect();
        let confirmed = all.filter(|all| {
            let (data, checks) = all.split_at(usize::from(code.data_columns()));
            let right = bytes::checks(&pool, &code, data);
            let same =
                |one: &SgList, two: &SgList| one.to_contiguous()[..] == two.to_contiguous()[..];
            right.iter().zip(checks).all(|(one, two)| same(one, two))
        });
        let checksum = state.layout.checksum;
        let home = |column| Home { physical: row.physical, row: row.row, column };
        let sum = |(column, data): (u8, &SgList)| checksum.of_column(home(column), data)[0];
        let sums: Option<Vec<u32>> = confirmed.map(|all| (0..).zip(&all).map(sum).collect());
        // Zeros are right either way: what was never written reads as zeros.
        let trusted = state.scrub.options.trust_parity;
        if let Some(sums) = &sums
            && (trusted
                || (0..).zip(sums).all(|(column, sum)| *sum == checksum.of_zeroes(home(column))))
        {
            state.touch(row.physical);
            state.set_row_sums(row.physical, row.row, Some(sums));
            state.scrub_counts(run, |status| status.new_sums += 1);
            return;
        }
        for column in 0..code.columns() {
            if matches!(row.found[usize::from(column)], Found::Absent) {
                continue;
            }
            let (member, offset) = state.home(row.physical, column, row.row);
            state.scrub_unrepaired(run, member, 1);
            let ranges = if sums.is_some() { &mut told.confirmed } else { &mut told.unknown };
            ranges.add(member, offset, BLOCK.into());
        }
    }
}

impl Row {
    fn compute(&self, pool: &netraid_block::Pool, recipe: impl Iterator<Item = (u8, u8)>) -> Buf {
        let sources: Vec<(u8, SgList)> = recipe
            .filter_map(|(column, weight)| match &self.found[usize::from(column)] {
                Found::Bytes(data) => Some((weight, SgList::from(data.clone()))),
                Found::Unreadable | Found::Absent => None,
            })
            .collect();
        let refs: Vec<(u8, &SgList)> =
            sources.iter().map(|(weight, data)| (*weight, data)).collect();
        bytes::combine(pool, BLOCK as usize, &refs)
    }
}

impl State {
    fn scrub_sums(&self, physical: u32, row: u32) -> Sums {
        match self.row_sums(physical, row) {
            Ok(Some(sums)) => Sums::Known(sums),
            Ok(None) => Sums::NeverWritten,
            Err(_) => Sums::Lost,
        }
    }

    /// Counts the blocks of a row that were there, and those that were not.
    fn count_row(&mut self, run: u64, row: &Row) {
        for (column, found) in (0..).zip(&row.found) {
            let (member, _) = self.home(row.physical, column, row.row);
            self.count_block(run, member, found);
        }
    }

    fn count_block(&mut self, run: u64, member: MemberIndex, found: &Found) {
        self.scrub_counts(run, |status| match found {
            Found::Absent => status.members[member.as_usize()].absent += 1,
            Found::Bytes(_) | Found::Unreadable => status.checked_blocks += 1,
        });
    }

    /// Whether rows are all there, with their checksums, and their checks are what their data
    /// give. Counts them then.
    fn scrub_whole(
        &mut self,
        run: u64,
        physical: u32,
        rows: &Range<u32>,
        found: &[Vec<Found>],
    ) -> bool {
        let (code, pool) = (self.layout.code, self.layout.pool.clone());
        let mut columns: Vec<SgList> = Vec::new();
        for blocks in found {
            let mut column = SgList::new();
            for block in blocks {
                let Found::Bytes(data) = block else { return false };
                column.push(data.clone());
            }
            columns.push(column);
        }
        let (data, checks) = columns.split_at(usize::from(code.data_columns()));
        let right = bytes::checks(&pool, &code, data);
        let same = |one: &SgList, two: &SgList| {
            let mut blocks = 0..rows.len();
            blocks.all(|at| bytes::block(one, at)[..] == bytes::block(two, at)[..])
        };
        if !right.iter().zip(checks).all(|(one, two)| same(one, two)) {
            return false;
        }
        for (column, data) in (0..).zip(&columns) {
            let first = Home { physical, row: rows.start, column };
            for (row, sum) in rows.clone().zip(self.layout.checksum.of_column(first, data)) {
                match self.scrub_sums(physical, row) {
                    Sums::Known(sums) if sums[usize::from(column)] == sum => {}
                    Sums::NeverWritten | Sums::Known(_) | Sums::Lost => return false,
                }
            }
        }
        let count = rows.len() as u64 * columns.len() as u64;
        self.scrub_counts(run, |status| status.checked_blocks += count);
        true
    }
}
