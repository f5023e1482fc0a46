//! The medium of a device that no array's machine has yet: read and written piece by piece by whoever makes or opens an
//! array, or prepares a device for a member's place.
//!
//! Invariants: what [`write_stable`] has written is stable, also where the device lost its cache meanwhile; a device in
//! which anything is that [`check_unused`] cannot explain is not called unused.
//!
//! Straight-line code that waits for answers of the device and for nothing else. Not here: when that is done, and in
//! which order ([`crate::opening`], [`crate::volume::preparing`]).

use alloc::{string::String, vec::Vec};

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError, Op, RequestFlags, SgList};

use crate::{
    access::{Failure, checkpoint_of, label_of},
    label::{LABEL_LEN, Label, LabelError, Uuid},
    mark,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, PAGE_LEN, Regions, SIGNATURE_LEN},
};

/// Times that something is written to a device that loses its cache before it is flushed.
const STABLE_TRIES_MAX: usize = 4;
/// Bytes of log and tables whose space is reserved by one request.
const RESERVED_AT_ONCE: u64 = 16 << 20;
/// Bytes that are proven to be writable at the end of the data.
const END_LEN: u64 = 4096;

/// A device, as whoever has sessions to it reaches it.
pub trait Medium {
    /// Why something cannot be, as whoever has the sessions says it.
    type Error: Failure;

    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// How often the device has lost its cache since the sessions began.
    fn cache_losses(&self) -> u64;

    /// Sends a request of at most `max_transfer_len` bytes, and waits for its end: the bytes of a read.
    fn request(
        &self,
        what: (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) -> impl Future<Output = Result<SgList, IoError>>;

    /// Whether anybody has reserved the device; `ErrorKind::Unsupported` where it has no reservations.
    fn is_reserved(&self) -> impl Future<Output = Result<bool, IoError>>;

    /// The device failed in this.
    fn failure(&self, what: &'static str, reason: IoError) -> Self::Error;

    /// The device is in use: this is there.
    fn in_use(&self, what: String) -> Self::Error;
}

/// Reads bytes, by as many requests as that takes.
///
/// # Errors
/// The device's, as something that failed in `what`.
pub async fn read<M: Medium>(
    device: &M,
    offset: u64,
    len: u64,
    what: &'static str,
) -> Result<Buf, M::Error> {
    read_bytes(device, offset, len).await.map_err(|reason| device.failure(what, reason))
}

/// The newest valid copy of the label, or why there is none.
///
/// # Errors
/// The device's; a copy that cannot be read for its medium's sake counts as one that is not there.
pub async fn label<M: Medium>(device: &M) -> Result<Result<Label, LabelError>, M::Error> {
    let mut copies = Vec::new();
    for offset in LABEL_OFFSETS {
        if offset + LABEL_LEN as u64 > device.info().capacity {
            return Ok(Err(LabelError::Absent));
        }
        match read_bytes(device, offset, LABEL_LEN as u64).await {
            Ok(bytes) => copies.push(Some(bytes)),
            Err(reason) if reason.kind() == ErrorKind::Medium => copies.push(None),
            Err(reason) => return Err(device.failure("reading the label", reason)),
        }
    }
    Ok(label_of(copies.iter().map(Option::as_deref)))
}

/// The counter of the newest checkpoint that this array, with a log, has here; none where none can be read.
pub async fn checkpoint<M: Medium>(device: &M, array: Uuid) -> Option<u64> {
    let mut slots = Vec::new();
    for offset in CHECKPOINT_OFFSETS {
        slots.push(read_bytes(device, offset, PAGE_LEN.into()).await.ok());
    }
    checkpoint_of(array, slots.iter().map(Option::as_deref))
}

/// Writes all of `writes`, and makes them stable: again from the first one when the device has lost its cache before
/// it was flushed, 4 times at most.
///
/// # Errors
/// The device's, as something that failed in `what`, and when it loses its cache each time.
pub async fn write_stable<M: Medium>(
    device: &M,
    writes: &[(u64, Buf)],
    what: &'static str,
) -> Result<(), M::Error> {
    let flags = RequestFlags::default();
    for _ in 0..STABLE_TRIES_MAX {
        let losses = device.cache_losses();
        for (offset, bytes) in writes {
            let write = (Op::Write, *offset, bytes.len() as u64);
            let written = device.request(write, flags, bytes.clone().into()).await;
            written.map_err(|reason| device.failure(what, reason))?;
        }
        let flushed = device.request((Op::Flush, 0, 0), flags, SgList::new()).await;
        flushed.map_err(|reason| device.failure("flushing", reason))?;
        if device.cache_losses() == losses {
            return Ok(());
        }
    }
    let text = alloc::format!("lost its cache before each of {STABLE_TRIES_MAX} flushes");
    Err(device.failure(what, IoError::with_detail(ErrorKind::Device, text)))
}

/// Proves that the device takes writes and makes them stable, where the labels are and at the end of the data: it is
/// given the bytes that are there.
///
/// # Errors
/// When it does not; its bytes are what they were. A place that the device cannot read proves nothing, and is no error:
/// a write may mend it.
pub async fn prove_writable<M: Medium>(device: &M, data_end: u64) -> Result<(), M::Error> {
    let labels = LABEL_OFFSETS.map(|offset| (offset, LABEL_LEN as u64));
    let end = (data_end.saturating_sub(END_LEN), END_LEN);
    let mut there = Vec::new();
    for (offset, len) in labels.into_iter().chain([end]) {
        match read_bytes(device, offset, len).await {
            Ok(bytes) => there.push((offset, bytes)),
            Err(reason) if reason.kind() == ErrorKind::Medium => {}
            Err(reason) => {
                return Err(device.failure("reading what is to be overwritten", reason));
            }
        }
    }
    write_stable(device, &there, "proving that it takes writes").await
}

/// Has a device that may allocate space only when it is written, allocate what an array with a log cannot do without:
/// then one that runs out of space refuses what users write, and nothing else. Everything there reads as zeros
/// afterwards.
///
/// # Errors
/// The device's.
pub async fn reserve_tables<M: Medium>(device: &M, regions: &Regions) -> Result<(), M::Error> {
    if !reserves_tables(device) {
        return Ok(());
    }
    let flags = RequestFlags { no_unmap: true, fua: false };
    let (mut offset, end) = (regions.labels.end(), regions.log.end());
    while offset < end {
        // A slow device has its deadline for each part.
        let len = (end - offset).min(RESERVED_AT_ONCE);
        let part = device.request((Op::WriteZeroes, offset, len), flags, SgList::new()).await;
        let what = "reserving space for the log and the tables";
        part.map_err(|reason| device.failure(what, reason))?;
        offset += len;
    }
    Ok(())
}

/// Whether [`reserve_tables`] writes anything.
pub fn reserves_tables<M: Medium>(device: &M) -> bool {
    device.info().can_discard
}

/// Refuses a device on which there is anything, with its name where that is known, or that somebody has reserved.
///
/// # Errors
/// As [`Medium::in_use`] says it, and the device's.
pub async fn check_unused<M: Medium>(device: &M) -> Result<(), M::Error> {
    match check_empty(device).await {
        Err(error) if !error.is_conflict() => Err(error),
        // What is reserved may not even be readable.
        Ok(()) | Err(_) if is_reserved(device).await? => {
            Err(device.in_use("a reservation of another host or engine".into()))
        }
        end => end,
    }
}

async fn is_reserved<M: Medium>(device: &M) -> Result<bool, M::Error> {
    match device.is_reserved().await {
        Err(reason) if reason.kind() == ErrorKind::Unsupported => Ok(false),
        end => end.map_err(|reason| device.failure("looking for reservations", reason)),
    }
}

async fn check_empty<M: Medium>(device: &M) -> Result<(), M::Error> {
    match label(device).await? {
        Ok(label) => {
            let what = alloc::format!("member {} of array '{}'", label.index, label.name);
            return Err(device.in_use(what));
        }
        Err(LabelError::Absent) => {}
        Err(other) => return Err(device.in_use(alloc::format!("a netraid label ({other})"))),
    }
    let capacity = device.info().capacity;
    let len = SIGNATURE_LEN.min(capacity);
    let head = read(device, 0, len, "looking for signatures").await?;
    let tail = read(device, capacity - len, len, "looking for signatures").await?;
    match found(&head, &tail) {
        Some(what) => Err(device.in_use(what.into())),
        None => Ok(()),
    }
}

/// What is on a disk without a label, by its first and its last bytes; none where it is unused.
fn found(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let place = |offset: u64| {
        let offset = usize::try_from(offset).ok()?;
        head.get(offset..)?.get(..LABEL_LEN)
    };
    let copies = LABEL_OFFSETS.map(place);
    let first = copies[0];
    // Whoever has used the device since has not left both marks, or has put something else there.
    let is_begun = copies[0] == copies[1] && first.is_some_and(mark::is_begun);
    if is_begun && signature(head).is_none() {
        return None;
    }
    // A test mark is what is left of a look at it that was interrupted; a begun mark alone, of a beginning.
    let is_marked = first.is_some_and(|first| mark::is_test(first) || mark::is_begun(first));
    let rest = if is_marked { &head[LABEL_LEN..] } else { head };
    if rest.iter().chain(tail).all(|byte| *byte == 0) {
        return None;
    }
    Some(signature(head).unwrap_or("data of unknown kind"))
}

/// What the first bytes of a disk are usually known by: offset, bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 11] = [
    (0, b"NETRAID\n", "a member of a netraid array"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an xfs file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a gpt partition table"),
    (512, b"LABELONE", "an lvm physical volume"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "an md member (metadata 1.2)"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "an md member (metadata 1.1)"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (luks)"),
    (4086, b"SWAPSPACE2", "swap space"),
    (510, &[0x55, 0xaa], "a boot sector or partition table"),
];

/// What the first bytes of a disk say that is on it, where that is something well known.
#[must_use]
pub fn signature(head: &[u8]) -> Option<&'static str> {
    let carried = |(offset, bytes, _): &&(usize, &[u8], &str)| {
        head.get(*offset..offset + bytes.len()) == Some(*bytes)
    };
    SIGNATURES.iter().find(carried).map(|(_, _, name)| *name)
}

async fn read_bytes<M: Medium>(device: &M, offset: u64, len: u64) -> Result<Buf, IoError> {
    let (flags, limit) = (RequestFlags::default(), u64::from(device.info().max_transfer_len));
    let mut all = SgList::new();
    let mut at = 0;
    while at < len {
        let part = (len - at).min(limit);
        all.append(device.request((Op::Read, offset + at, part), flags, SgList::new()).await?);
        at += part;
    }
    Ok(all.to_contiguous())
}

#[cfg(test)]
mod tests;
