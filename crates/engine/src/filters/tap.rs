//! A request whose end somebody sees, and may change, before its submitter does.

use std::sync::{Arc, Mutex, PoisonError};

use netraid_block::{Complete, Completion, IoError, Request, SgList};

/// Who sees the end.
pub(super) trait Tap: Send + 'static {
    /// The request ended with `result`; ends it for its submitter.
    fn end(self, result: Result<SgList, IoError>, completion: Completion);
}

struct Tapped<T>(Mutex<Option<(T, Completion)>>);

impl<T: Tap> Complete for Tapped<T> {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((tap, completion)) = taken {
            tap.end(result, completion);
        }
    }
}

/// The same request; its end goes through `tap`, also if it is dropped.
pub(super) fn tap(request: Request, tap: impl Tap) -> Request {
    let Request { op, offset, len, flags, data, completion } = request;
    let tapped = Arc::new(Tapped(Mutex::new(Some((tap, completion)))));
    Request { op, offset, len, flags, data, completion: Completion::new(tapped, 0) }
}
