//! How a request to a block device fails.

use alloc::{borrow::Cow, string::String, sync::Arc};
use core::fmt;

/// What kind of failure ended a request; each consumer maps these to its own protocol in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request reaches past the end of the device.
    OutOfRange,
    /// Offset or length is no multiple of the logical block.
    Unaligned,
    /// The request is larger than the device takes, or its data does not match its length.
    InvalidRequest,
    /// The device does not do this operation.
    Unsupported,
    /// The device is write protected, or was opened for reading only.
    ReadOnly,
    /// The backing store has no space left; nothing was lost that was acknowledged before.
    NoSpace,
    /// The medium reported that it cannot read or write this range.
    Medium,
    /// Data did not match its checksum or its digest.
    Corrupt,
    /// Another holder excludes us (reservation conflict, newer generation).
    Fenced,
    /// No answer before the request's deadline.
    Timeout,
    /// The device cannot be reached.
    Unreachable,
    /// The device is shutting down, or dropped the request.
    Aborted,
    /// More members failed than the redundancy covers.
    Redundancy,
    /// The device reported some other failure.
    Device,
}

/// A failed request: its kind, and a text for people (object, value, limit, remedy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoError {
    kind: ErrorKind,
    detail: Option<Detail>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Detail {
    Static(&'static str),
    Shared(Arc<str>),
}

impl IoError {
    /// An error that its kind describes completely.
    #[must_use]
    pub const fn new(kind: ErrorKind) -> Self {
        Self { kind, detail: None }
    }

    /// An error with a text that names object, value, limit and remedy.
    #[must_use]
    pub fn with_detail(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = match detail.into() {
            Cow::Borrowed(text) => Detail::Static(text),
            Cow::Owned(text) => Detail::Shared(text.into()),
        };
        Self { kind, detail: Some(detail) }
    }

    /// What kind of failure this is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `context` in front of its text.
    #[must_use]
    pub fn context(self, context: &str) -> Self {
        let text: String = alloc::format!("{context}: {self}");
        Self::with_detail(self.kind, text)
    }
}

impl From<ErrorKind> for IoError {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(Detail::Static(text)) => f.write_str(text),
            Some(Detail::Shared(text)) => f.write_str(text),
            None => f.write_str(match self.kind {
                ErrorKind::OutOfRange => "request reaches past the end of the device",
                ErrorKind::Unaligned => "request is not aligned to the logical block",
                ErrorKind::InvalidRequest => "request is malformed",
                ErrorKind::Unsupported => "operation is not supported by the device",
                ErrorKind::ReadOnly => "device is read-only",
                ErrorKind::NoSpace => "no space left on the device",
                ErrorKind::Medium => "medium error",
                ErrorKind::Corrupt => "data does not match its checksum",
                ErrorKind::Fenced => "excluded by another holder",
                ErrorKind::Timeout => "no answer before the deadline",
                ErrorKind::Unreachable => "device cannot be reached",
                ErrorKind::Aborted => "request was aborted",
                ErrorKind::Redundancy => "more members failed than the redundancy covers",
                ErrorKind::Device => "device error",
            }),
        }
    }
}

impl core::error::Error for IoError {}
