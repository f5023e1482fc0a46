//! The seam between every part of netraid that moves bytes: requests, buffers, errors, and
//! [`BlockDevice`].
//!
//! A device takes [`Request`]s and finishes each exactly once through the request's
//! [`Completion`]; a completion that is dropped finishes with an error, so no request is ever
//! silent. Whoever hands a request to a device goes through [`Device::submit`], which checks
//! range, alignment and flags in release builds too; devices may therefore assume valid input.
//!
//! This crate does no input or output, knows no clock and starts no thread.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod buf;
mod device;
mod error;
pub mod extents;
mod narrow;
mod redact;
mod size;
mod uri;

pub use buf::{Buf, BufMut, PAGE_LEN, Pool, SgList, ZEROES_LEN};
pub use device::{
    BlockDevice, Complete, Completion, Device, DeviceInfo, Op, Request, RequestFlags,
};
pub use error::{ErrorKind, IoError};
pub use narrow::narrow;
pub use redact::{redact_addresses, redact_message};
pub use size::{SizeError, parse_size};
pub use uri::{Portal, TargetUri, UriError, UriOptions, lun_in_addresses};
