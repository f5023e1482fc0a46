//! What PARITY records of rounds that are open make of a row: contents that are in the log, to be
//! written home again.
//!
//! Invariant: what is written is what the records say, never newer DATA, so that it goes with the
//! parity that was logged with it.

use alloc::{collections::BTreeMap, vec::Vec};

use futures_util::future::join_all;
use netraid_block::{ErrorKind, IoError, SgList};

use super::{found_log::FoundLog, state::State, tasks::Array};
use crate::{
    checksum::{ChecksumKind, Home},
    code::Code,
    log::{Basis, Position, Record},
    planted::{Planted, planted},
};

/// What the PARITY records of a row say, merged.
#[derive(Default)]
pub(super) struct RowRedo {
    /// New contents by data column: block of the volume's DATA, checksum, position.
    basis: BTreeMap<u8, (SgList, u32, Option<Position>)>,
    checks: Vec<(SgList, u32)>,
}

/// Rows that are to be written home, by physical stripe and row.
pub(super) type Redo = BTreeMap<(u32, u32), RowRedo>;

impl RowRedo {
    /// Takes a PARITY record in.
    ///
    /// # Errors
    /// When the log lacks contents that it names.
    pub(super) fn add(
        &mut self,
        log: &FoundLog,
        (checksum, physical, row): (ChecksumKind, u32, u32),
        position: Position,
        (checks, basis): (&[u32], &[Basis]),
    ) -> Result<(), IoError> {
        for one in basis {
            let data = match one.position {
                Some(at) if !one.zeroes => {
                    log.payload(at, 0).map(SgList::from).ok_or_else(|| {
                        let text = alloc::format!("the log lacks DATA at {at}");
                        IoError::with_detail(ErrorKind::Corrupt, text)
                    })?
                }
                Some(_) | None => checksum.zeroes(Home { physical, row, column: one.column }, 1),
            };
            self.basis.insert(one.column, (data, one.crc, one.position));
        }
        self.checks = (0_u32..)
            .zip(checks)
            .filter_map(|(at, crc)| {
                log.payload(position, at).map(|data| (SgList::from(data), *crc))
            })
            .collect();
        Ok(())
    }

    /// All columns that change: contents and checksum.
    pub(super) fn changes(&self, code: &Code) -> Vec<(u8, SgList, u32)> {
        let mut changes = Vec::new();
        for (column, (data, crc, _)) in &self.basis {
            changes.push((*column, data.clone(), *crc));
            if code.is_copies() {
                let copies = code.data_columns()..code.columns();
                for check in copies.filter(|check| code.check_weight(*check, *column) != 0) {
                    changes.push((check, data.clone(), *crc));
                }
            }
        }
        if !code.is_copies() {
            let checks = (code.data_columns()..).zip(&self.checks);
            changes.extend(checks.map(|(check, (data, crc))| (check, data.clone(), *crc)));
        }
        changes
    }
}

impl Array {
    /// What the PARITY records of open rounds after `after` make of a row.
    pub(super) fn row_redo(
        &self,
        log: &FoundLog,
        (physical, row): (u32, u32),
        after: Position,
    ) -> Result<RowRedo, IoError> {
        let (closed, checksum) = {
            let state = self.state();
            (state.checkpoint.round, state.layout.checksum)
        };
        let mut redo = RowRedo::default();
        for (position, record) in log.parities(physical, row) {
            if let Record::Parity { round, checks, basis, .. } = record
                && position > after
                && *round > closed
            {
                redo.add(log, (checksum, physical, row), position, (checks, basis))?;
            }
        }
        Ok(redo)
    }

    /// Writes home what PARITY records of open rounds say.
    pub(super) async fn redo(&self, redo: Redo) -> Result<(), IoError> {
        let (code, columns) = {
            let state = self.state();
            (state.layout.code, usize::from(state.layout.geometry.members()))
        };
        for ((physical, row), redo) in redo {
            let _sums = self.sums(physical).await;
            let all_is_new = redo.basis.len() == usize::from(code.data_columns());
            let lost = self.state().row_sums(physical, row).err();
            if let Some(why) = lost.filter(|_| !all_is_new) {
                // Its other blocks cannot be trusted any more: what is new stays in the log.
                let basis = redo.basis.iter().map(|(column, (.., position))| (*column, *position));
                self.state().note_not_redone(physical, row, basis, &why)?;
                continue;
            }
            let mut changes = redo.changes(&code);
            if planted(Planted::RedoNewerThanBasis) {
                for change in changes.iter_mut().filter(|one| redo.basis.contains_key(&one.0)) {
                    if let Some((data, crc)) = self.state().newest(physical, row, change.0) {
                        (change.1, change.2) = (data, crc);
                    }
                }
            }
            let writes = changes.iter().map(|(column, data, _)| {
                let (member, offset) = self.state().home(physical, *column, row);
                self.write_member(member, offset, data.clone())
            });
            join_all(writes).await;
            let mut state = self.state();
            state.touch(physical);
            let old = state.row_sums(physical, row).ok().flatten();
            let mut sums = old.unwrap_or_else(|| alloc::vec![0; columns]);
            for (column, _, crc) in &changes {
                sums[usize::from(*column)] = *crc;
            }
            state.set_row_sums(physical, row, Some(&sums));
            let ends = redo.basis.iter().map(|(column, (.., position))| (*column, *position));
            state.end_dirty(physical, row, ends);
        }
        Ok(())
    }
}

impl State {
    /// A PARITY of a round that is over: its basis is home.
    pub(super) fn end_basis(&mut self, physical: u32, row: u32, basis: &[Basis]) {
        self.rules.note(super::Rule::ParityOfClosedRound);
        self.end_dirty(physical, row, basis.iter().map(|one| (one.column, one.position)));
    }

    /// DATA of a row, by column and position, that is not home although a PARITY says so: it must be
    /// logged again before that PARITY's round ends.
    fn note_not_redone(
        &mut self,
        physical: u32,
        row: u32,
        basis: impl Iterator<Item = (u8, Option<Position>)>,
        why: &IoError,
    ) -> Result<(), IoError> {
        let Some(logical) = self.stripes.entry(physical).logical else { return Ok(()) };
        let (first, rows) = (self.layout.first_block(logical), self.layout.rows);
        for (column, position) in basis {
            let block = first + u64::from(u32::from(column) * rows + row);
            if position.is_some() && self.dirty.position_of(block) == position {
                self.note_stuck(block, why)?;
            }
        }
        Ok(())
    }

    /// DATA of a row, by column and position, that is home.
    fn end_dirty(
        &mut self,
        physical: u32,
        row: u32,
        ends: impl Iterator<Item = (u8, Option<Position>)>,
    ) {
        let Some(logical) = self.stripes.entry(physical).logical else { return };
        let (first, rows) = (self.layout.first_block(logical), self.layout.rows);
        for (column, position) in ends {
            let block = first + u64::from(u32::from(column) * rows + row);
            if let Some(position) = position {
                self.dirty.remove(block, position);
            }
        }
    }

    /// The newest DATA of a block, for an error that is planted.
    fn newest(&self, physical: u32, row: u32, column: u8) -> Option<(SgList, u32)> {
        let logical = self.stripes.entry(physical).logical?;
        let first = self.layout.first_block(logical);
        let block = first + u64::from(u32::from(column) * self.layout.rows + row);
        let (_, dirty) = self.dirty.range(block..block + 1).next()?;
        dirty.data.clone().map(|data| (data.into(), dirty.sum))
    }
}
