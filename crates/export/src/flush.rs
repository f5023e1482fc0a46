//! The last request of an export: everything that was written becomes stable.

use std::sync::{Arc, Mutex, PoisonError};

use netraid_block::{
    Complete, Completion, Device, ErrorKind, IoError, Op, Request, RequestFlags, SgList,
};
use tokio::sync::oneshot;

struct Flushed(Mutex<Option<oneshot::Sender<Result<SgList, IoError>>>>);

impl Complete for Flushed {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // Nobody waits any more.
            let _ = sender.send(result);
        }
    }
}

/// Flushes the device and awaits the end.
pub(crate) async fn flush(device: &Device) -> Result<(), IoError> {
    if device.info().read_only {
        return Ok(());
    }
    let (sender, receiver) = oneshot::channel();
    let completion = Completion::new(Arc::new(Flushed(Mutex::new(Some(sender)))), 0);
    let (flags, data) = (RequestFlags::default(), SgList::new());
    device.submit(Request { op: Op::Flush, offset: 0, len: 0, flags, data, completion });
    match receiver.await {
        Ok(result) => result.map(drop),
        Err(_) => Err(ErrorKind::Aborted.into()),
    }
}
