//! What a volume's bytes are kept in: memory, or a file.
//!
//! A backing is a [`Device`] that reads as zeros where nothing was written, and where ranges were
//! discarded. It keeps no state beside the bytes, and never answers for bytes that it could not
//! store. Who submits bounds the number of requests in flight.

mod error;
mod file;
mod ram;

use std::sync::Arc;

pub use error::BackingError;
pub use file::{FileOptions, file};
use netraid_block::{Device, DeviceInfo, Pool};

use self::ram::Ram;

/// Largest read or write in bytes; also the largest buffer that a pool keeps.
const TRANSFER_LEN_MAX: u32 = 2 << 20;
/// Memory and files are kept in pages of this many bytes.
const OPTIMAL_LEN: u32 = 4096;

/// A volume of `size` bytes in memory, in blocks of `block_len` bytes, which ends with the
/// process. Requests end before `submit` returns.
///
/// # Errors
/// When `size` is not a positive multiple of `block_len`, or `block_len` not 512 or 4096.
pub fn ram(size: u64, block_len: u32, pool: Pool) -> Result<Device, BackingError> {
    Ok(Device::new(Arc::new(Ram::new(size, block_len, pool)?)))
}

/// Checks a geometry and describes it.
fn describe(
    name: &str,
    size: u64,
    block_len: u32,
    volatile_cache: bool,
) -> Result<DeviceInfo, BackingError> {
    if ![512, 4096].contains(&block_len) {
        return Err(BackingError::BlockLen { name: name.into(), block_len });
    }
    if size == 0 || !size.is_multiple_of(u64::from(block_len)) {
        return Err(BackingError::Size { name: name.into(), size, block_len });
    }
    Ok(DeviceInfo {
        capacity: size,
        block_len,
        optimal_len: OPTIMAL_LEN,
        max_transfer_len: TRANSFER_LEN_MAX,
        read_only: false,
        volatile_cache,
        can_discard: true,
        can_map: true,
    })
}

#[cfg(test)]
mod tests;
