//! A volume in memory: extents that are allocated when they are first written.

use std::sync::{Arc, PoisonError, RwLock};

use netraid_block::{
    BlockDevice, Device, DeviceInfo, ErrorKind, IoError, Op, Pool, Request, SgList,
};

use super::{BackingError, describe};

const EXTENT_LEN: usize = 1 << 20;

/// Empty until it is first written; reads as zeros until then.
type Extent = RwLock<Vec<u8>>;

struct Ram {
    info: DeviceInfo,
    extents: Box<[Extent]>,
    pool: Pool,
}

/// A volume of `size` bytes in memory, in blocks of `block_len` bytes, which ends with the
/// process. Requests end before `submit` returns.
///
/// # Errors
/// When `size` is not a positive multiple of `block_len`, or `block_len` not 512 or 4096.
pub fn ram(size: u64, block_len: u32, pool: Pool) -> Result<Device, BackingError> {
    let info = describe("ram", size, block_len, false)?;
    let count = usize::try_from(size.div_ceil(EXTENT_LEN as u64))
        .map_err(|_| BackingError::TooLarge { name: "ram".into(), size })?;
    let mut extents: Vec<Extent> = Vec::new();
    extents
        .try_reserve_exact(count)
        .map_err(|_| BackingError::TooLarge { name: "ram".into(), size })?;
    extents.resize_with(count, Extent::default);
    Ok(Device::new(Arc::new(Ram { info, extents: extents.into(), pool })))
}

impl BlockDevice for Ram {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        let Request { op, offset, len, data, completion, .. } = request;
        completion.finish(match op {
            Op::Read => self.read(offset, len),
            Op::Write => self.write(offset, &data),
            Op::Discard | Op::WriteZeroes => self.clear(offset, len),
            Op::Flush => Ok(SgList::new()),
        });
    }
}

impl Ram {
    fn read(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        let mut buf = self.pool.get(to_usize(len)?);
        let mut rest = &mut *buf;
        for (extent, start, part_len) in pieces(to_usize(offset)?, rest.len()) {
            let (part, after) = rest.split_at_mut(part_len);
            let bytes = self.extents[extent].read().unwrap_or_else(PoisonError::into_inner);
            match bytes.get(start..start + part_len) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
            rest = after;
        }
        Ok(buf.freeze().into())
    }

    fn write(&self, offset: u64, data: &SgList) -> Result<SgList, IoError> {
        let mut at = to_usize(offset)?;
        for buf in data.parts() {
            let mut rest = &**buf;
            for (extent, start, part_len) in pieces(at, rest.len()) {
                let (part, after) = rest.split_at(part_len);
                let mut bytes =
                    self.extents[extent].write().unwrap_or_else(PoisonError::into_inner);
                if bytes.is_empty() {
                    bytes.try_reserve_exact(EXTENT_LEN).map_err(|_| {
                        IoError::with_detail(ErrorKind::NoSpace, "ram: no memory left")
                    })?;
                    bytes.resize(EXTENT_LEN, 0);
                }
                bytes[start..start + part_len].copy_from_slice(part);
                rest = after;
            }
            at += buf.len();
        }
        Ok(SgList::new())
    }

    /// Makes a range read as zeros, and gives whole extents back.
    fn clear(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        for (extent, start, part_len) in pieces(to_usize(offset)?, to_usize(len)?) {
            let mut bytes = self.extents[extent].write().unwrap_or_else(PoisonError::into_inner);
            if part_len == EXTENT_LEN {
                *bytes = Vec::new();
            } else if let Some(bytes) = bytes.get_mut(start..start + part_len) {
                bytes.fill(0);
            }
        }
        Ok(SgList::new())
    }
}

/// The parts of a range in each extent: its number, the first byte in it, and how many.
fn pieces(mut at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = at + len;
    std::iter::from_fn(move || {
        let start = at % EXTENT_LEN;
        let part_len = (EXTENT_LEN - start).min(end - at);
        let piece = (part_len > 0).then_some((at / EXTENT_LEN, start, part_len));
        at += part_len;
        piece
    })
}

/// Ranges were checked against a capacity that fits, so this never fails.
fn to_usize(value: u64) -> Result<usize, IoError> {
    usize::try_from(value).map_err(|_| ErrorKind::OutOfRange.into())
}
