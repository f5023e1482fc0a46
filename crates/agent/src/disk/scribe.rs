//! The one who writes an agent's notes on its disk: a thread, which does one thing after the other.
//!
//! A block has two copies. The first is written, and made durable, before the second is touched: whichever
//! moment power is lost, one of both is whole, and the first counts when it is. As both are durable
//! before anything rests on them, a copy that is damaged later is made good by the other one.
//!
//! ```text
//! settle   marks taken down -> data flushed -> first copies -> flushed -> second copies -> flushed -> answered
//! make     entries with no marks, both copies -> row, both copies -> answered
//! remove   row empty, both copies -> extents free -> answered
//! ```
//!
//! Invariant: a mark that is on the disk was taken down before a flush that came before it was
//! written, so that all bytes of its granule are durable.

use std::{
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use netraid_block::{Buf, BufMut, Completion, ErrorKind, IoError, SgList};

use super::{
    Shared,
    block::{BLOCK_LEN, payload, payload_mut, seal},
    wait::{flush, write_all},
};
use crate::records::Key;

/// Marks that nobody flushes are durable after this: an agent that is killed forgets no more.
const SETTLE_INTERVAL: Duration = Duration::from_secs(2);
/// Orders that are taken together, at most.
const GROUP_MAX: usize = 4096;

enum Order {
    /// Everything that has ended is to be durable.
    Settle(Completion),
    Job(Box<dyn FnOnce(&Scribe) + Send>),
}

/// The way to the scribe. Dropping it waits until all marks are durable.
pub(super) struct Pen {
    /// Taken only by `drop`.
    sender: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) struct Scribe {
    shared: Arc<Shared>,
}

impl Pen {
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<Arc<Self>> {
        let (sender, receiver) = mpsc::channel();
        let scribe = Scribe { shared };
        let thread = thread::Builder::new().name("netraid-scribe".into());
        let thread = thread.spawn(move || scribe.run(&receiver))?;
        Ok(Arc::new(Self { sender: Some(sender), thread: Some(thread) }))
    }

    /// Has all that has ended made durable, marks too. Who asks bounds how many of these there are.
    pub(super) fn settle(&self, completion: Completion) {
        if let Some(sender) = &self.sender {
            // The scribe is gone only when it has panicked; the request then ends as aborted.
            let _ = sender.send(Order::Settle(completion));
        }
    }

    /// Waits for the scribe to do something.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Scribe) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (answer, answered) = mpsc::sync_channel(1);
        let job = Box::new(move |scribe: &Scribe| {
            let _ = answer.send(job(scribe));
        });
        // What cannot be sent is dropped, and its answer with it: that ends the wait.
        match &self.sender {
            Some(sender) => drop(sender.send(Order::Job(job))),
            None => drop(job),
        }
        answered.recv().unwrap_or_else(|_| Err("the disk is being closed".to_owned()))
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Scribe {
    fn run(self, orders: &Receiver<Order>) {
        let mut next_settling = Instant::now() + SETTLE_INTERVAL;
        loop {
            let wait = next_settling.saturating_duration_since(Instant::now());
            match orders.recv_timeout(wait) {
                Ok(first) => self.carry_out(first, orders),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= next_settling {
                self.settle_unasked();
                next_settling = Instant::now() + SETTLE_INTERVAL;
            }
        }
        self.settle_unasked();
    }

    /// Carries out an order, and those that wait to have all settled, once for all of them.
    fn carry_out(&self, first: Order, orders: &Receiver<Order>) {
        let (mut settling, mut next) = (Vec::new(), Some(first));
        let job = loop {
            match next.take() {
                Some(Order::Settle(completion)) => settling.push(completion),
                Some(Order::Job(job)) => break Some(job),
                None => break None,
            }
            if settling.len() < GROUP_MAX {
                next = orders.try_recv().ok();
            }
        };
        if !settling.is_empty() {
            let settled = self.settle();
            for completion in settling {
                completion.finish(settled.clone().map(|()| SgList::new()));
            }
        }
        if let Some(job) = job {
            job(self);
        }
    }

    /// Has a new segment in the table, durably.
    pub(super) fn make(&self, key: Key, len_bytes: u64, label: &[u8]) -> Result<(), String> {
        let geometry = &self.shared.geometry;
        let (slot, extents) = {
            let mut table = self.shared.table();
            let slot = table.allot(key, len_bytes, label).map_err(|full| full.to_string())?;
            let Some(row) = table.row(key) else { unreachable!("segment {} has a row", key.1) };
            assert_eq!(row.extents.len() as u64, geometry.extents_of(len_bytes), "all its extents");
            (slot, row.extents.clone())
        };
        for extent in &extents {
            self.shared.granules.clear_extent(*extent);
        }
        let mut blocks: Vec<u32> =
            extents.iter().map(|extent| geometry.entry_of(*extent).0).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let entries = blocks.into_iter().map(|block| self.entries(block, false)).collect();
        let written = self.write_pairs(entries).map_err(|error| error.to_string());
        written.and_then(|()| self.write_row(slot)).inspect_err(|_| {
            // Nobody knows whether the disk has it: its extents are not given to another one.
            self.shared.table().lose(key, "the disk did not take it");
        })
    }

    pub(super) fn write_label(&self, key: Key, label: &[u8]) -> Result<(), String> {
        let set = self.shared.table().set_label(key, label).map_err(|error| error.to_string())?;
        self.write_row(set.ok_or("it is not on the disk")?)
    }

    /// Takes a segment out of the table, durably; then its extents are free. Nobody uses it any more.
    pub(super) fn remove(&self, key: Key) -> Result<(), String> {
        let removed = self.shared.table().remove(key);
        let Some((slot, row)) = removed else { return Ok(()) };
        match self.write_row(slot) {
            Ok(()) => {
                let mut table = self.shared.table();
                for extent in table.release(&row) {
                    self.shared.granules.clear_extent(extent);
                }
                Ok(())
            }
            Err(error) => {
                self.shared.table().restore(slot, row);
                Err(error)
            }
        }
    }

    fn settle_unasked(&self) {
        if self.shared.granules.is_unstable()
            && let Err(error) = self.settle()
        {
            tracing::error!("the agent's disk: {error}");
        }
    }

    fn settle(&self) -> Result<(), IoError> {
        let Shared { device, granules, .. } = &*self.shared;
        let blocks = granules.begin_writing();
        // Taken down before the flush: of what is marked here, everything has ended.
        let taken: Vec<_> = blocks.iter().map(|block| self.entries(*block, true)).collect();
        let sealed: Vec<Buf> = taken.iter().map(|(_, sealed)| sealed.clone()).collect();
        let written = flush(device).and_then(|()| self.write_pairs(taken));
        for (block, sealed) in blocks.into_iter().zip(sealed) {
            if written.is_ok() {
                self.take_for_stable(block, &sealed);
            }
            granules.end_writing(block, written.is_ok());
        }
        written
    }

    fn take_for_stable(&self, block: u32, sealed: &[u8]) {
        let geometry = &self.shared.geometry;
        for (extent, word, bits) in geometry.marks(block, payload(sealed)) {
            self.shared.granules.set_stable(extent, word, bits);
        }
    }

    /// A block of entries: with the marks that count, or with those that the disk has.
    fn entries(&self, block: u32, with_new: bool) -> (u32, Buf) {
        let Shared { geometry, granules, .. } = &*self.shared;
        let words = |extent, word| match with_new {
            true => granules.written_word(extent, word),
            false => granules.stable_word(extent, word),
        };
        let mut bytes = BufMut::zeroed(BLOCK_LEN);
        self.shared.table().encode_entries(block, payload_mut(&mut bytes), words);
        self.sealed(geometry.extents_block(block), bytes)
    }

    fn write_row(&self, slot: u32) -> Result<(), String> {
        let mut bytes = BufMut::zeroed(BLOCK_LEN);
        let encoded = self.shared.table().encode_row(slot, payload_mut(&mut bytes));
        encoded.map_err(|error| error.to_string())?;
        let row = self.sealed(self.shared.geometry.row_block(slot), bytes);
        self.write_pairs(vec![row]).map_err(|error| error.to_string())
    }

    fn sealed(&self, block: u32, mut bytes: BufMut) -> (u32, Buf) {
        seal(&mut bytes, self.shared.geometry.name(block));
        (block, bytes.freeze())
    }

    /// Writes both copies of blocks, durably, the second when the first is.
    fn write_pairs(&self, blocks: Vec<(u32, Buf)>) -> Result<(), IoError> {
        let Shared { device, geometry, failed, .. } = &*self.shared;
        if blocks.is_empty() {
            return Ok(());
        }
        // What is written elsewhere is some segment's data.
        let is_one =
            |(block, bytes): &(u32, Buf)| *block < geometry.blocks() && bytes.len() == BLOCK_LEN;
        assert!(blocks.iter().all(is_one), "the table is written where it is");
        if failed.load(Ordering::Acquire) {
            let text = "a write of the disk's table failed; start the agent again";
            return Err(IoError::with_detail(ErrorKind::Device, text));
        }
        for copy in 0..2 {
            let place = |(block, bytes): &(u32, Buf)| {
                (geometry.block_offsets(*block)[copy], SgList::from(bytes.clone()))
            };
            let written = write_all(device, blocks.iter().map(place).collect());
            if let Err(error) = written.and_then(|()| flush(device)) {
                // The copies may differ now, and which one is older is only found out by opening it anew.
                failed.store(true, Ordering::Release);
                return Err(error);
            }
        }
        Ok(())
    }
}
