//! Stuck blocks: dirty blocks that cannot be brought home, because too much of their row is lost. Stuck
//! blocks are logged again, so that the log can begin later all the same, and they stay readable. A
//! user's write of the lost blocks sets the row right, and the next round brings the row home.
//!
//! Invariant: contents are logged again only while nobody else can change the block, so that they
//! never replace newer ones.
//!
//! Blocks that wait for space on members are logged again in the same way, as `space.rs` allows.
//!
//! Does not do: more stuck blocks than a small part of the log holds; the array fails beyond that.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use futures_util::future::join_all;
use netraid_block::{ErrorKind, IoError, SgList};

use super::{Event, dirty::Dirty, locks::Purpose, log::Note, tasks::Array};
use crate::log::{Position, Record};

/// Blocks of a stripe that a round could not bring home, and why.
pub(super) struct Stuck {
    pub(super) blocks: Vec<u32>,
    pub(super) why: IoError,
}

/// Stripes whose blocks are logged again at once: what they share batches with spares heads.
const STRIPES_AT_ONCE: usize = 256;

impl Array {
    /// Logs again what a round could not bring home: what is lost, and what waits for space from below
    /// `cut`. The caller holds no lock of these stripes.
    pub(super) async fn carry(
        &self,
        stuck: Vec<(u32, Stuck)>,
        cut: Position,
    ) -> Result<(), IoError> {
        let mut stripes = BTreeMap::new();
        for (logical, Stuck { blocks, why }) in stuck {
            let first = self.state().layout.first_block(logical);
            let again = stripes.entry(logical).or_insert_with(Vec::new);
            for block in blocks {
                let mut state = self.state();
                let number = first + u64::from(block);
                let position = state.dirty.position_of(number);
                // With the round ends what a PARITY of it says that could not be redone.
                let is_lost = why.kind() != ErrorKind::NoSpace;
                if position.is_some_and(|position| is_lost || position < cut) {
                    state.note_stuck(number, &why)?;
                    again.push(block);
                }
            }
        }
        self.log_again(stripes).await
    }

    /// Logs again what is still dirty of these blocks, by logical stripe. The caller holds no lock of
    /// these stripes.
    pub(super) async fn log_again(&self, stripes: BTreeMap<u32, Vec<u32>>) -> Result<(), IoError> {
        let stripes: Vec<(u32, Vec<u32>)> = stripes.into_iter().collect();
        for stripes in stripes.chunks(STRIPES_AT_ONCE) {
            let ends = stripes.iter().map(|(logical, blocks)| self.log_stripe(*logical, blocks));
            for end in join_all(ends).await {
                end?;
            }
        }
        Ok(())
    }

    async fn log_stripe(&self, logical: u32, blocks: &[u32]) -> Result<(), IoError> {
        let (first, last) = match (blocks.iter().min(), blocks.iter().max()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => return Ok(()),
        };
        let _lock = self.lock(logical, Purpose::Merge(first..last + 1)).await;
        let base = self.state().layout.first_block(logical);
        let mut tickets = Vec::new();
        for block in blocks {
            let number = base + u64::from(*block);
            let found = {
                let state = self.state();
                state.dirty.range(number..number + 1).next().map(|(_, dirty)| dirty.clone())
            };
            let Some(dirty) = found else { continue };
            // The log would end at a record that its payload does not fit.
            let checksum = self.state().layout.checksum;
            let payload = dirty.logged(checksum, number)?;
            let Dirty { data, sum, is_joined, .. } = dirty;
            let ticket = self.ticket();
            let (record, payload) = match payload {
                Some(payload) => (Record::Data { block: number, crc: sum }, payload.into()),
                None => (Record::Zeroes { block: number, count: 1 }, SgList::new()),
            };
            let note = Note::data(ticket.id(), data).joined(is_joined);
            self.state().push_again(record, payload, note);
            tickets.push(ticket);
        }
        for ticket in tickets {
            ticket.answer().await?;
        }
        Ok(())
    }
}

impl super::state::State {
    /// Remembers a block that cannot be brought home; the first time it is told.
    pub(super) fn note_stuck(&mut self, block: u64, why: &IoError) -> Result<(), IoError> {
        if !self.stuck.insert(block) || why.kind() == ErrorKind::NoSpace {
            return Ok(());
        }
        // As often as they are logged again, they must leave room for all else.
        let most = self.layout.ring.blocks() / 16;
        if self.stuck.len() as u64 > most {
            let text = alloc::format!(
                "more than {most} blocks cannot be brought home from the log (the last: {why})"
            );
            return Err(IoError::with_detail(ErrorKind::Redundancy, text));
        }
        let at = block * u64::from(super::state::BLOCK);
        let text = alloc::format!("new contents of byte {at} on stay in the log: {why}");
        self.events.push_back(Event::Notice(text));
        Ok(())
    }

    /// Blocks that are home, or void.
    pub(super) fn end_stuck(&mut self) {
        let dirty = &self.dirty;
        self.stuck.retain(|block| dirty.range(*block..block + 1).next().is_some());
    }

    /// Whether all that is dirty cannot be brought home.
    pub(super) fn is_rest_stuck(&self) -> bool {
        self.dirty.len() == self.stuck.len() as u64
    }
}

/// Blocks that could not be brought home when a round tried it last.
pub(super) type StuckBlocks = BTreeSet<u64>;
