//! Users' requests: cut into pieces of one logical stripe each, a bounded number at a time, and
//! ended when all pieces have.

use alloc::{boxed::Box, vec::Vec};
use core::{future::Future, ops::Range, pin::Pin};

use futures_util::stream::{FuturesUnordered, StreamExt};
use netraid_block::{ErrorKind, IoError, Op, SgList, narrow};

use super::{
    RequestId, UserRequest,
    log::BLOCKS_OF_DATA,
    state::{BLOCK, State},
    tasks::{Array, Change},
};
use crate::log::{LOGGED_BLOCKS_MAX, Ring};

/// Pieces of one request under way at a time; large discards have millions.
const PIECES_AT_ONCE: usize = 64;

/// A part of a request.
#[derive(Debug, Clone, Copy)]
struct Piece {
    logical: u32,
    /// Bytes of the stripe.
    from: u32,
    to: u32,
    /// Where it begins in the request.
    at: u64,
}

type End = (u64, Result<SgList, IoError>);
type Work<'a> = Pin<Box<dyn Future<Output = End> + Send + 'a>>;

/// An operation, for those who wait for all that have begun. Rounds are operations too.
pub(super) struct Operation {
    array: Array,
    number: u64,
}

impl Drop for Operation {
    fn drop(&mut self) {
        let mut state = self.array.state();
        state.operations.remove(&self.number);
        state.waiters.wake(Change::Operations);
    }
}

impl Array {
    /// Serves a user's request.
    pub(super) async fn serve(self, id: RequestId, user: UserRequest) {
        let operation = self.operation();
        let result = self.perform(&user).await;
        drop(operation);
        self.state().complete(id, result);
    }

    pub(super) fn operation(&self) -> Operation {
        let mut state = self.state();
        let number = state.next_operation;
        state.next_operation += 1;
        state.operations.insert(number);
        Operation { array: self.clone(), number }
    }

    async fn perform(&self, user: &UserRequest) -> Result<SgList, IoError> {
        if user.op == Op::Flush {
            self.flush().await;
            return Ok(SgList::new());
        }
        if user.op == Op::Extents {
            return Err(ErrorKind::Unsupported.into());
        }
        let result = if user.op == Op::Write {
            self.write(user).await.map(|()| SgList::new())
        } else {
            self.perform_range(user, user.offset..user.offset + user.len).await
        };
        if user.fua && result.is_ok() {
            self.flush().await;
        }
        result
    }

    /// The part of a request within a range of bytes of the volume.
    pub(super) async fn perform_range(
        &self,
        user: &UserRequest,
        range: Range<u64>,
    ) -> Result<SgList, IoError> {
        let Range { start: mut next, end } = range;
        if next == end {
            return Ok(SgList::new());
        }
        let first = self.state().next_piece(user, &mut next, end);
        if let Some(piece) = first
            && next >= end
        {
            return self.piece(user, piece).await.1;
        }
        self.perform_pieces(user, first, next, end).await
    }

    /// The pieces of a request from `next` to `end`, before which one may have been cut.
    async fn perform_pieces(
        &self,
        user: &UserRequest,
        mut first: Option<Piece>,
        mut next: u64,
        end: u64,
    ) -> Result<SgList, IoError> {
        let mut under_way: FuturesUnordered<Work<'_>> = FuturesUnordered::new();
        let mut answers: Vec<(u64, SgList)> = Vec::new();
        let mut failed: Option<IoError> = None;
        loop {
            while under_way.len() < PIECES_AT_ONCE && failed.is_none() {
                let following =
                    first.take().or_else(|| self.state().next_piece(user, &mut next, end));
                let Some(piece) = following else { break };
                under_way.push(Box::pin(self.piece(user, piece)));
            }
            let Some((at, end)) = under_way.next().await else { break };
            match end {
                Ok(data) => answers.push((at, data)),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        answers.sort_by_key(|(at, _)| *at);
        let mut whole = SgList::new();
        answers.into_iter().for_each(|(_, data)| whole.append(data));
        Ok(whole)
    }

    async fn piece(&self, user: &UserRequest, piece: Piece) -> End {
        let Piece { logical, from, to, at } = piece;
        let whole = self.state().is_whole(from, to);
        let end = match user.op {
            Op::Read => return (at, self.read_bytes(logical, from, to).await),
            Op::Write => {
                let start: usize = narrow(at);
                let data = user.data.slice(start..start + (to - from) as usize);
                if whole {
                    self.write_full(logical, data).await
                } else {
                    self.write_small(logical, from..to, data).await
                }
            }
            Op::WriteZeroes | Op::Discard | Op::Flush | Op::Extents => {
                if whole {
                    self.unmap(logical).await
                } else {
                    self.zero_small(logical, from..to).await
                }
            }
        };
        (at, end.map(|()| SgList::new()))
    }

    async fn read_bytes(&self, logical: u32, from: u32, to: u32) -> Result<SgList, IoError> {
        let blocks = from / BLOCK..to.div_ceil(BLOCK);
        let skip = (from - blocks.start * BLOCK) as usize;
        let data = self.read_blocks(logical, blocks).await?;
        Ok(data.slice(skip..skip + (to - from) as usize))
    }
}

impl State {
    fn is_whole(&self, from: u32, to: u32) -> bool {
        from == 0 && to == self.layout.stripe_blocks() * BLOCK
    }

    /// The next piece of a request before `end`; `next` goes beyond it.
    fn next_piece(&self, user: &UserRequest, next: &mut u64, end: u64) -> Option<Piece> {
        let stripe_len = self.stripe_len();
        let changes = user.op != Op::Read;
        loop {
            if *next >= end {
                return None;
            }
            let logical = *next / stripe_len;
            let base = logical * stripe_len;
            let (from, mut to) = (*next - base, (end - base).min(stripe_len));
            let whole = from == 0 && to == stripe_len;
            let at = *next - user.offset;
            let logical = narrow(logical);
            if matches!(user.op, Op::Discard | Op::WriteZeroes) {
                // Stripes that hold nothing are passed over, and so are parts that are too small
                // to be given back.
                let nothing = !whole && user.op == Op::Discard;
                if nothing || (whole && self.is_nowhere(logical)) {
                    *next = base + to;
                    continue;
                }
            }
            if changes && !whole {
                let most = u64::from(self.piece_blocks()) * u64::from(BLOCK);
                let aligned = from / u64::from(BLOCK) * u64::from(BLOCK);
                to = to.min(aligned + most);
            }
            *next = base + to;
            return Some(Piece { logical, from: narrow(from), to: narrow(to), at });
        }
    }

    /// Blocks of a piece that goes to the log.
    pub(super) fn piece_blocks(&self) -> u32 {
        let layout = &self.layout;
        piece_blocks(layout.ring, layout.blocks_to_bring_home(), self.kept_for_discards())
    }

    fn is_nowhere(&self, logical: u32) -> bool {
        let first = self.layout.first_block(logical);
        let blocks = first..first + u64::from(self.layout.stripe_blocks());
        self.stripes.find(logical).is_none()
            && self.dirty.range(blocks).next().is_none()
            && !self.locks.is_locked(logical)
    }
}

/// Blocks of a piece that goes to the log: a small share of it, and no more than an empty log has room for, with `home`
/// for each, which brings it home, and what is `kept` for others. A piece that never has room would have rounds begin for
/// ever.
fn piece_blocks(ring: Ring, home: u64, kept: u64) -> u32 {
    let room = ring.room_when_empty().saturating_sub(kept) / (BLOCKS_OF_DATA + home);
    let most = (ring.blocks() / 32).min(room);
    // Clamped first: the longest logs have more blocks.
    narrow(most.clamp(1, LOGGED_BLOCKS_MAX.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{log::REMAP_SUMS_MAX, logged::space::kept_for_discards};

    #[test]
    fn a_piece_has_room_in_every_empty_log_whatever_brings_it_home() {
        let most = 1 + u64::from(REMAP_SUMS_MAX) * 5 / u64::from(BLOCK);
        let mut least = u32::MAX;
        for home in 2..=most {
            // Four of the largest records are the shortest log.
            for blocks in (home * 4).max(32)..4096 {
                let ring = Ring::new(blocks);
                let kept = kept_for_discards(ring, home);
                let piece = piece_blocks(ring, home, kept);
                let needed = u64::from(piece) * (BLOCKS_OF_DATA + home) + kept;
                let room = ring.room_when_empty();
                assert!(needed <= room, "{blocks} blocks, {home} each: {needed} of {room}");
                least = least.min(piece);
            }
        }
        assert_eq!(least, 1);
        // Where stripes are of usual size, it is the share.
        let ring = Ring::new(4096);
        assert_eq!(piece_blocks(ring, 2, kept_for_discards(ring, 2)), 128);
    }
}
