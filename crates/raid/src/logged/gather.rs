//! Writes in a row are written as whole stripes ([`crate::gathering`] says which), instead of in parts through
//! the log.
//!
//! Invariant: nobody's error is another's: where a stripe that several share cannot be written, everybody writes what
//! is their own.
//!
//! Not here: how a stripe is written.

use alloc::vec::Vec;
use core::ops::Range;

use futures_util::future::join;
use netraid_block::{ErrorKind, IoError, SgList, narrow};

use super::{
    Rule, UserRequest,
    state::{BLOCK, State},
    tasks::Array,
    waits::{Ticket, WaitId},
};
use crate::gathering::Share;

/// What a write left of a stripe's first bytes, and where it waits.
#[derive(Debug)]
pub(super) struct LeftPart {
    wait: WaitId,
    data: SgList,
}

/// The end of a write that waits for others.
struct Left {
    /// Byte of the volume where it begins.
    from: u64,
    ticket: Ticket,
}

impl Array {
    /// Serves a write.
    pub(super) async fn write(&self, user: &UserRequest) -> Result<(), IoError> {
        let range = user.offset..user.offset + user.len;
        let share = self.state().gathering.begin(&range);
        let end = if share.taken.is_empty() && share.left.is_none() {
            self.perform_range(user, range.clone()).await.map(drop)
        } else {
            let left = share.left.map(|from| self.leave(user, from));
            alloc::boxed::Box::pin(self.write_shared(user, share, left)).await
        };
        let mut state = self.state();
        let given_up = state.gathering.end(&range);
        state.give_up(given_up);
        end
    }

    /// Leaves the end of a write where others may go on.
    fn leave(&self, user: &UserRequest, from: u64) -> Left {
        let ticket = self.ticket();
        let mut state = self.state();
        let data = user.data.slice(in_memory(from - user.offset)..user.data.len());
        let part = LeftPart { wait: ticket.id(), data };
        state.gathering.leave(from, user.offset + user.len, part);
        if from.is_multiple_of(state.stripe_len()) {
            state.rules.note(Rule::LeftBeginning);
        }
        drop(state);
        Left { from, ticket }
    }

    /// A write that has its first or its last stripe in common with others.
    async fn write_shared(
        &self,
        user: &UserRequest,
        share: Share<LeftPart>,
        left: Option<Left>,
    ) -> Result<(), IoError> {
        let whole = user.offset + user.len;
        let Share { own: Range { start, end }, taken, .. } = share;
        let first = async {
            if taken.is_empty() || self.write_taken(user, start, taken).await {
                return Ok(());
            }
            self.perform_range(user, user.offset..start).await.map(drop)
        };
        let (first, rest) = join(first, self.perform_range(user, start..end)).await;
        let was_taken = match left {
            Some(left) => self.was_taken(left, end > user.offset).await,
            None => true,
        };
        if !was_taken {
            self.perform_range(user, end..whole).await?;
        }
        first.and(rest.map(drop))
    }

    /// Writes the whole stripe that ends at a byte and of which others left the beginning, and tells them; false when that failed,
    /// and everybody has to write what is their own.
    async fn write_taken(&self, user: &UserRequest, end: u64, taken: Vec<LeftPart>) -> bool {
        let (logical, len) = {
            let mut state = self.state();
            state.rules.note(Rule::Gathered);
            let len = state.stripe_len();
            (narrow(end / len - 1), len)
        };
        let mut data = SgList::new();
        let mut waits = Vec::with_capacity(taken.len());
        for part in taken {
            data.append(part.data);
            waits.push(part.wait);
        }
        data.append(user.data.slice(0..in_memory(end - user.offset)));
        assert_eq!(data.len() as u64, len, "what gathers is a whole stripe");
        let end = self.write_full(logical, data).await.map(|()| SgList::new());
        let mut state = self.state();
        waits.into_iter().for_each(|wait| state.waits.settle(wait, end.clone()));
        end.is_ok()
    }

    /// Waits until it is known whether others took what was left. Who did something else in the meantime waits
    /// for nobody who has not come yet.
    async fn was_taken(&self, left: Left, gives_up: bool) -> bool {
        let Left { from, ticket } = left;
        if gives_up {
            let (mut state, own) = (self.state(), ticket.id());
            let given_up = state.gathering.end_own(from, |part| part.wait == own);
            state.give_up(given_up);
        }
        ticket.answer().await.is_ok()
    }
}

impl State {
    /// Bytes of a logical stripe.
    pub(super) fn stripe_len(&self) -> u64 {
        u64::from(self.layout.stripe_blocks()) * u64::from(BLOCK)
    }

    fn give_up(&mut self, parts: Vec<LeftPart>) {
        for part in parts {
            self.waits.settle(part.wait, Err(ErrorKind::Aborted.into()));
        }
    }
}

/// A length that is that of a part of a request's data.
#[track_caller]
fn in_memory(len: u64) -> usize {
    narrow(len)
}
