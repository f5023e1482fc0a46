//! Requests of an array with a log: what kinds there are, and how a user's write goes.

use core::ops::Range;

use netraid_block::narrow;
use netraid_raid::{gathering::Share, log::Position};

use super::{
    Part, Phase, Request, World,
    log::{Need, Wish},
};
use crate::layout::{Access, BLOCK, Plan};

/// Whose request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A user's.
    User,
    /// A whole stripe of a user's write.
    Whole { user: usize },
    /// A stripe of the rebuild.
    Rebuild,
    /// A batch of the log.
    Batch { position: Position },
    /// A stripe that a round brings home, as a whole or its dirty blocks.
    Home { is_whole: bool },
    /// A flush of all members.
    Flush { upto: Position },
    /// Tables, or a checkpoint.
    Tables,
}

impl World<'_> {
    /// A user's write begins: whole stripes are written, the rest goes to the log.
    pub(super) fn begin_logged_write(&mut self, request: usize) {
        let range = self.requests[request].range.clone();
        let Some(log) = &mut self.log else { unreachable!("a logged write without a log") };
        let Share { mut own, taken, left } = log.gathering.begin(&range);
        if let Some(left) = left {
            log.gathering.leave(left, range.end, request);
        }
        if !taken.is_empty() {
            // The stripe that others have begun is written like the rest.
            own.start -= self.model.geometry.stripe_data_len();
        }
        let state = &mut self.requests[request];
        (state.gathered, state.left) = (taken, left);
        // One for this, so that nothing ends before all has begun.
        state.waits = 1 + u32::from(left.is_some());
        self.write_logged(request, own);
        self.waited(request);
    }

    /// Writes whole stripes of a range, and what else there is of it to the log.
    fn write_logged(&mut self, request: usize, own: Range<u64>) {
        if own.is_empty() {
            return;
        }
        let stripe_bytes = self.model.geometry.stripe_data_len();
        let whole = own.start.div_ceil(stripe_bytes)..own.end / stripe_bytes;
        if whole.start >= whole.end {
            let middle = own.start.next_multiple_of(stripe_bytes).min(own.end);
            self.write_small(request, own.start..middle);
            return self.write_small(request, middle..own.end);
        }
        self.write_small(request, own.start..whole.start * stripe_bytes);
        self.write_small(request, whole.end * stripe_bytes..own.end);
        for stripe in whole {
            let bytes = stripe * stripe_bytes..(stripe + 1) * stripe_bytes;
            let plan = self.model.layout(self.presence).write(&bytes);
            let kind = Kind::Whole { user: request };
            let stripes = stripe..stripe + 1;
            let part = Request { kind, stripes, ..Request::new(false, plan) };
            self.requests[request].waits += 1;
            let part = self.requests.insert(part);
            self.want_room(Wish { request: part, need: Need::Stripes(1) });
        }
    }

    /// Bytes of one stripe go to the log, in pieces.
    fn write_small(&mut self, request: usize, range: Range<u64>) {
        let block = u64::from(BLOCK);
        let blocks = range.start / block..range.end.div_ceil(block);
        let most = self.log.as_ref().map_or(1, super::log::LogState::piece_blocks);
        let mut first = blocks.start;
        while !range.is_empty() && first < blocks.end {
            let count = most.min(blocks.end - first);
            self.requests[request].waits += narrow::<_, u32>(count);
            self.want_room(Wish { request, need: Need::Data { first, blocks: count } });
            first += count;
        }
    }

    /// One thing less that a request waits for.
    pub(super) fn waited(&mut self, request: usize) {
        let state = &mut self.requests[request];
        state.waits -= 1;
        match (state.kind, state.waits, state.left) {
            (Kind::User, 0, _) => self.end(request),
            // All but what it left to others, where it had anything else.
            (Kind::User, 1, Some(left)) if left > state.range.start => {
                let log = self.log.as_mut();
                let owners = log.map(|log| log.gathering.end_own(left, |owner| *owner == request));
                self.given_up(&owners.unwrap_or_default());
            }
            (Kind::Home { is_whole }, 0, _) => self.home_logged(request, is_whole),
            (
                Kind::User
                | Kind::Whole { .. }
                | Kind::Home { .. }
                | Kind::Rebuild
                | Kind::Batch { .. }
                | Kind::Flush { .. }
                | Kind::Tables,
                ..,
            ) => (),
        }
    }

    /// Nobody went on with what these had left: they write it themselves.
    fn given_up(&mut self, owners: &[usize]) {
        for request in owners.iter().copied() {
            let state = &mut self.requests[request];
            let Some(left) = state.left.take() else { continue };
            let rest = left..state.range.end;
            self.write_small(request, rest);
            self.waited(request);
        }
    }

    /// A user's write has ended: those whose beginnings it took, and those who waited for it.
    pub(super) fn logged_write_ended(&mut self, range: &Range<u64>, gathered: &[usize]) {
        for request in gathered.iter().copied() {
            self.requests[request].left = None;
            self.waited(request);
        }
        let log = self.log.as_mut();
        let owners = log.map(|log| log.gathering.end(range)).unwrap_or_default();
        self.given_up(&owners);
    }

    /// Sends what the array writes by itself; without accesses, to all members.
    pub(super) fn begin_internal(&mut self, kind: Kind, writes: Vec<Access>) {
        let is_flush = writes.is_empty();
        let plan = Plan { writes, ..Plan::default() };
        let request = self.requests.insert(Request { kind, ..Request::new(false, plan) });
        if !is_flush {
            return self.send_writes(request);
        }
        let away = self.model.config.away / self.model.config.agent.disks;
        let agents = away..self.model.config.agents();
        let state = &mut self.requests[request];
        state.phase = Phase::Writing;
        state.parts = agents.map(|agent| Part { agent, left: 1, bytes: 0 }).collect();
        state.replies_left = narrow(state.parts.len());
        self.send_commands(request);
    }
}
