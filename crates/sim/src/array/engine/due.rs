//! When something befalls an engine: at which of its member requests.

use core::ops::Range;

use netraid_block::Op;

use super::Engine;

/// Member requests from one moment that is looked at to the next.
const WATCH_EACH: u64 = 3;

/// When something befalls an engine: instead of which of its member requests.
#[derive(Debug, Clone)]
pub struct Due {
    /// The first after so many.
    pub after: u64,
    /// And, then, near a write.
    pub near: Option<Near>,
}

/// Near which write of an engine something befalls it.
#[derive(Debug, Clone)]
pub struct Near {
    /// Bytes of a member.
    pub region: Range<u64>,
    /// Member requests from that write on; 0: instead of that write.
    pub more: u64,
    /// Member requests that are waited for that write at most.
    pub within: u64,
}

impl Due {
    /// Whether it is due instead of this request, the one of this number.
    pub(super) fn comes(&mut self, number: u64, op: Op, offset: u64) -> bool {
        if number <= self.after {
            return false;
        }
        let Some(near) = &self.near else { return true };
        let is_there = op == Op::Write && near.region.contains(&offset);
        if is_there {
            self.after = number + near.more;
            let comes_first = near.more == 0;
            self.near = None;
            return comes_first;
        }
        number > self.after.saturating_add(near.within)
    }
}

impl<M> Engine<M> {
    /// Whether this request is a moment to look at.
    pub(super) fn is_watched(&mut self, number: u64, op: Op, offset: u64) -> bool {
        let Some((due, left)) = &mut self.watched else { return false };
        if !due.comes(number, op, offset) {
            return false;
        }
        *due = Due { after: number + WATCH_EACH, near: None };
        *left -= 1;
        if *left == 0 {
            self.watched = None;
        }
        true
    }
}
