//! Replies to reads whose data lies in several pieces: the kernel gathers them, fuser sends one piece only.
//!
//! A reply is one writev(2) to the device of the file system: a header, and the data (linux/fuse.h,
//! `fuse_out_header`). Invariant: a request has one reply, from here or from fuser: the kernel knows a request by a
//! number that it uses once, and refuses whatever comes after the first reply.
//!
//! Not here: any other request or reply.

use std::{
    io::IoSlice,
    os::fd::{AsFd, OwnedFd},
    sync::OnceLock,
};

use fuser::{Errno, ReplyData, RequestId};
use netraid_block::{Buf, Pool, SgList};
use rustix::io;
use smallvec::SmallVec;

const HEADER_LEN: usize = 16;
/// Most pieces of one call, without the header: the kernel takes 1,024 in all.
const PIECES_MAX: usize = 1023;
/// So many have their places on the stack.
const PIECES_COMMON: usize = 64;

/// A reply to a read that is owed.
#[derive(Debug)]
pub(super) struct ReadReply {
    reply: ReplyData,
    /// Of the request, as the kernel counts them.
    unique: RequestId,
}

/// The way to the kernel, once the file system is mounted.
#[derive(Debug, Default)]
pub(super) struct FuseDevice(OnceLock<OwnedFd>);

impl FuseDevice {
    /// Takes a descriptor on which fuser's threads receive all requests: the kernel takes a reply only where it
    /// gave the request.
    pub(super) fn set(&self, descriptor: OwnedFd) {
        // There is one mount, which sets it once.
        let _ = self.0.set(descriptor);
    }
}

impl ReadReply {
    pub(super) fn new(reply: ReplyData, unique: RequestId) -> Self {
        Self { reply, unique }
    }

    /// Sends what was read.
    pub(super) fn data(self, device: &FuseDevice, data: &SgList, pool: &Pool) {
        match (data.parts(), device.0.get()) {
            ([whole], _) => self.reply.data(whole),
            (pieces, Some(device)) if pieces.len() <= PIECES_MAX => {
                match send(device, self.unique, pieces) {
                    // fuser lets go of what it holds by a reply only; the kernel refuses a second one.
                    Ok(()) | Err(io::Errno::NOENT) => self.reply.error(Errno::EIO),
                    Err(error) => {
                        tracing::warn!(%error, "the kernel does not take a reply in pieces");
                        self.gathered(data, pool);
                    }
                }
            }
            _ => self.gathered(data, pool),
        }
    }

    pub(super) fn error(self, errno: Errno) {
        self.reply.error(errno);
    }

    fn gathered(self, data: &SgList, pool: &Pool) {
        let mut whole = pool.get(data.len());
        data.copy_to(&mut whole);
        self.reply.data(&whole);
    }
}

/// Sends a reply; `NOENT` when nobody waits for it any more.
fn send(device: impl AsFd, unique: RequestId, pieces: &[Buf]) -> io::Result<()> {
    let len = HEADER_LEN + pieces.iter().map(|piece| piece.len()).sum::<usize>();
    // The kernel limits a read to a few MiB.
    let len = u32::try_from(len).map_err(|_| io::Errno::INVAL)?;
    let header = header(len, unique);
    let mut slices: SmallVec<[IoSlice<'_>; PIECES_COMMON + 1]> = SmallVec::new();
    slices.push(IoSlice::new(&header));
    slices.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
    // The kernel takes all of it or nothing.
    io::writev(device, &slices).map(drop)
}

/// Length with the header, no error, and the request's number, all as the processor has them.
fn header(len: u32, unique: RequestId) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[8..].copy_from_slice(&unique.0.to_ne_bytes());
    header
}
