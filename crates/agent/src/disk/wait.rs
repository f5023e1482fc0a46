//! Requests to a device by who may block.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use netraid_block::{Complete, Completion, Device, IoError, Op, Request, RequestFlags, SgList};

/// Requests that are under way at a time.
const WAVE_MAX: usize = 32;

#[derive(Default)]
struct Wave {
    ended: Mutex<Vec<Result<SgList, IoError>>>,
    changed: Condvar,
}

impl Complete for Wave {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        self.changed.notify_all();
    }
}

impl Wave {
    /// How all `count` requests have ended.
    fn wait(&self, count: usize) -> Vec<Result<SgList, IoError>> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |ended: &mut Vec<_>| ended.len() < count;
        let mut ended =
            self.changed.wait_while(ended, waits).unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut ended)
    }
}

/// Reads a range of a device.
pub(super) fn read(device: &Device, offset: u64, len: u64) -> Result<SgList, IoError> {
    one(device, Op::Read, offset, len)
}

/// Makes all stable that was written.
pub(super) fn flush(device: &Device) -> Result<(), IoError> {
    one(device, Op::Flush, 0, 0).map(drop)
}

/// Writes here and there; all of it has ended then, and the first error counts.
pub(super) fn write_all(device: &Device, writes: Vec<(u64, SgList)>) -> Result<(), IoError> {
    let mut writes = writes.into_iter();
    let mut first = Ok(());
    loop {
        let wave = Arc::new(Wave::default());
        let mut count = 0;
        for (offset, data) in writes.by_ref().take(WAVE_MAX) {
            let len = data.len() as u64;
            let completion = Completion::new(Arc::clone(&wave) as Arc<dyn Complete>, 0);
            let flags = RequestFlags::default();
            device.submit(Request { op: Op::Write, offset, len, flags, data, completion });
            count += 1;
        }
        if count == 0 {
            return first;
        }
        for ended in wave.wait(count) {
            first = first.and(ended.map(drop));
        }
    }
}

fn one(device: &Device, op: Op, offset: u64, len: u64) -> Result<SgList, IoError> {
    let wave = Arc::new(Wave::default());
    let completion = Completion::new(Arc::clone(&wave) as Arc<dyn Complete>, 0);
    let flags = RequestFlags::default();
    device.submit(Request { op, offset, len, flags, data: SgList::new(), completion });
    wave.wait(1).pop().unwrap_or_else(|| Ok(SgList::new()))
}
