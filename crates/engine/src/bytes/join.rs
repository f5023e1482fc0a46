//! One request that the device sees as several.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use netraid_block::{Complete, IoError, SgList, narrow};

use super::Completer;

/// Ends a request when all its parts have ended.
pub(super) struct Join {
    consumer: Arc<Completer>,
    tag: u64,
    /// The bytes to answer of those that the parts read.
    keep: Range<u64>,
    state: Mutex<State>,
}

struct State {
    left: u64,
    parts: Vec<SgList>,
    error: Option<IoError>,
}

impl Join {
    /// Waits for the parts 0 to `count`, of which there is at least one.
    pub(super) fn new(consumer: Arc<Completer>, tag: u64, count: u64, keep: Range<u64>) -> Self {
        let parts = vec![SgList::new(); narrow(count)];
        Self { consumer, tag, keep, state: Mutex::new(State { left: count, parts, error: None }) }
    }

    fn finish(&self, parts: Vec<SgList>) -> SgList {
        let mut whole = SgList::new();
        parts.into_iter().for_each(|part| whole.append(part));
        if self.keep.is_empty() {
            return SgList::new();
        }
        whole.slice(narrow(self.keep.start)..narrow(self.keep.end))
    }
}

impl Complete for Join {
    fn complete(&self, part: u64, result: Result<SgList, IoError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(data) => state.parts[narrow::<_, usize>(part)] = data,
            Err(error) => {
                state.error.get_or_insert(error);
            }
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let parts = std::mem::take(&mut state.parts);
        let error = state.error.take();
        drop(state);
        self.consumer.complete(self.tag, error.map_or_else(|| Ok(self.finish(parts)), Err));
    }
}
