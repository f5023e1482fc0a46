//! Writes in a row gather to whole stripes: what several of them have of one stripe is written as one, instead
//! of in parts through the log.
//!
//! A write that goes on where another one under way ends is in a row. What such a write has of its last
//! stripe, from the stripe's first byte, is left as a beginning while something else of the row is under way.
//! Writes that go on there add to it, and who reaches the stripe's end takes it and writes it whole.
//!
//! Invariant: who left bytes waits only for what is under way and waits for nobody itself: its own other pieces, or
//! one write that ends where it begins. When that has ended, the beginning is given up, and everybody writes what is
//! their own. So a beginning takes no longer than two writes do, nobody's error is another's, and a request that
//! comes alone waits for nothing.
//!
//! Not here: how a stripe is written.

use alloc::{collections::BTreeMap, vec::Vec};

use futures_util::future::join;
use netraid_block::{ErrorKind, IoError, SgList};

use super::{
    Rule, UserRequest,
    state::{BLOCK, State},
    tasks::Array,
    waits::{Ticket, WaitId},
};

/// Writes under way, and beginnings of stripes by logical stripe.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// How many end at each byte of the volume.
    ends: BTreeMap<u64, u32>,
    /// Bytes of all of them.
    bytes: u64,
    beginnings: BTreeMap<u32, Beginning>,
}

/// The first bytes of a stripe.
#[derive(Debug)]
struct Beginning {
    data: SgList,
    /// Where those wait who left parts of them.
    waits: Vec<WaitId>,
}

/// What a write has in common with others.
#[derive(Default)]
struct Shared {
    taken: Option<Taken>,
    left: Option<Left>,
}

/// A whole stripe of which a write has the end, and others left the beginning.
struct Taken {
    logical: u32,
    data: SgList,
    waits: Vec<WaitId>,
}

/// The end of a write that waits for others.
struct Left {
    logical: u32,
    /// Byte of the volume where it begins.
    from: u64,
    ticket: Ticket,
}

impl Array {
    /// Serves a write.
    pub(super) async fn write(&self, user: &UserRequest) -> Result<(), IoError> {
        let whole = user.offset + user.len;
        let shared = self.share(user);
        let end = if shared.taken.is_none() && shared.left.is_none() {
            self.perform_range(user, user.offset..whole).await.map(drop)
        } else {
            alloc::boxed::Box::pin(self.write_shared(user, shared)).await
        };
        self.state().write_ended(user);
        end
    }

    /// Looks for what a write can do with others, and leaves its end where others may go on.
    fn share(&self, user: &UserRequest) -> Shared {
        let in_row = {
            let gathering = &mut self.state().gathering;
            *gathering.ends.entry(user.offset + user.len).or_default() += 1;
            gathering.bytes += user.len;
            gathering.ends.contains_key(&user.offset)
        };
        if !in_row || user.len == 0 {
            return Shared::default();
        }
        let taken = self.state().take(user);
        let left = if taken.is_none() { self.leave_more(user) } else { None };
        let left = left.or_else(|| self.leave_first(user));
        Shared { taken, left }
    }

    /// Adds all of a write to the beginning of a stripe, if it goes on there and does not reach its end.
    fn leave_more(&self, user: &UserRequest) -> Option<Left> {
        let logical = {
            let state = self.state();
            let logical = state.beginning_before(user)?;
            (user.offset + user.len < state.first_byte(logical) + state.stripe_len())
                .then_some(logical)?
        };
        let ticket = self.ticket();
        let mut state = self.state();
        let beginning = state.gathering.beginnings.get_mut(&logical)?;
        beginning.data.append(user.data.clone());
        beginning.waits.push(ticket.id());
        Some(Left { logical, from: user.offset, ticket })
    }

    /// Leaves what a write has of its last stripe, if it has the first byte of that. Who has nothing else to do
    /// meanwhile leaves it only where the rest can come while the write before is under way.
    fn leave_first(&self, user: &UserRequest) -> Option<Left> {
        let (logical, from) = {
            let state = self.state();
            let end = user.offset + user.len;
            let logical = u32::try_from(end / state.stripe_len()).ok()?;
            let from = state.first_byte(logical);
            let is_free = !state.gathering.beginnings.contains_key(&logical);
            let is_deep = state.gathering.bytes >= state.stripe_len() + user.len;
            let may_leave = user.offset < from || (user.offset == from && is_deep);
            (may_leave && from < end && is_free).then_some((logical, from))?
        };
        let start = usize::try_from(from - user.offset).ok()?;
        let data = user.data.slice(start..user.data.len());
        let ticket = self.ticket();
        let beginning = Beginning { data, waits: alloc::vec![ticket.id()] };
        let mut state = self.state();
        state.gathering.beginnings.insert(logical, beginning);
        state.rules.note(Rule::LeftBeginning);
        Some(Left { logical, from, ticket })
    }

    /// A write that has its first or its last stripe in common with others.
    async fn write_shared(&self, user: &UserRequest, shared: Shared) -> Result<(), IoError> {
        let whole = user.offset + user.len;
        let Shared { taken, left } = shared;
        let begin = match &taken {
            Some(taken) => {
                let state = self.state();
                state.first_byte(taken.logical) + state.stripe_len()
            }
            None => user.offset,
        };
        let end = left.as_ref().map_or(whole, |left| left.from);
        let first = async {
            let Some(taken) = taken else { return Ok(()) };
            if self.write_taken(taken).await {
                return Ok(());
            }
            self.perform_range(user, user.offset..begin).await.map(drop)
        };
        let (first, rest) = join(first, self.perform_range(user, begin..end)).await;
        let was_taken = match left {
            Some(left) => self.was_taken(left, end > user.offset).await,
            None => true,
        };
        if !was_taken {
            self.perform_range(user, end..whole).await?;
        }
        first.and(rest.map(drop))
    }

    /// Writes a whole stripe of several writes, and tells the others; false when that failed, and everybody
    /// has to write what is their own.
    async fn write_taken(&self, taken: Taken) -> bool {
        let Taken { logical, data, waits } = taken;
        let end = self.write_full(logical, data).await.map(|()| SgList::new());
        let mut state = self.state();
        waits.into_iter().for_each(|wait| state.waits.settle(wait, end.clone()));
        end.is_ok()
    }

    /// Waits until it is known whether others took what was left. Who did something else in the meantime waits
    /// for nobody who has not come yet.
    async fn was_taken(&self, left: Left, gives_up: bool) -> bool {
        let Left { logical, ticket, .. } = left;
        if gives_up {
            let mut state = self.state();
            let own = state.gathering.beginnings.get(&logical);
            if own.is_some_and(|one| one.waits.first() == Some(&ticket.id())) {
                state.give_up_beginning(logical);
            }
        }
        ticket.answer().await.is_ok()
    }
}

impl State {
    /// Bytes of a logical stripe.
    pub(super) fn stripe_len(&self) -> u64 {
        u64::from(self.layout.stripe_blocks()) * u64::from(BLOCK)
    }

    fn first_byte(&self, logical: u32) -> u64 {
        u64::from(logical) * self.stripe_len()
    }

    /// The stripe within which a write goes on where a beginning ends.
    fn beginning_before(&self, user: &UserRequest) -> Option<u32> {
        let logical = u32::try_from(user.offset / self.stripe_len()).ok()?;
        let beginning = self.gathering.beginnings.get(&logical)?;
        let end = self.first_byte(logical) + beginning.data.len() as u64;
        (end == user.offset).then_some(logical)
    }

    /// The whole stripe in which a write begins, if others left just what is before it.
    fn take(&mut self, user: &UserRequest) -> Option<Taken> {
        let logical = self.beginning_before(user)?;
        let rest = self.first_byte(logical) + self.stripe_len() - user.offset;
        if user.len < rest {
            return None;
        }
        let Beginning { mut data, waits } = self.gathering.beginnings.remove(&logical)?;
        data.append(user.data.slice(0..usize::try_from(rest).ok()?));
        assert_eq!(data.len() as u64, self.stripe_len(), "what gathers is a whole stripe");
        self.rules.note(Rule::Gathered);
        Some(Taken { logical, data, waits })
    }

    /// A write is no longer under way: nobody waits any more for what comes after it.
    fn write_ended(&mut self, user: &UserRequest) {
        let end = user.offset + user.len;
        let gathering = &mut self.gathering;
        gathering.bytes -= user.len;
        let Some(count) = gathering.ends.get_mut(&end) else {
            unreachable!("a write that ended at {end} was under way")
        };
        *count -= 1;
        if *count == 0 {
            gathering.ends.remove(&end);
        }
        // Also where another one that ends there has come since: who waits, waits for one.
        if end.is_multiple_of(self.stripe_len())
            && let Ok(logical) = u32::try_from(end / self.stripe_len())
        {
            self.give_up_beginning(logical);
        }
    }

    fn give_up_beginning(&mut self, logical: u32) {
        let Some(beginning) = self.gathering.beginnings.remove(&logical) else { return };
        for wait in beginning.waits {
            self.waits.settle(wait, Err(ErrorKind::Aborted.into()));
        }
    }
}
