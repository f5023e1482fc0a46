//! The device that a member is copied to: writes wait for it, too, and nobody needs it.
//!
//! It is late when it has answered nothing for as long as a write or a flush that is late may take; and when one has taken
//! as long as any may.

use core::time::Duration;

use netraid_block::Op;

use super::{
    ClassRequests, Due, FLUSHES, MemberRequests, READ_CLASSES, SMALL_MAX, SentRequest, Slowness,
    WRITES,
};
use crate::array::IoId;

impl Slowness {
    /// A request is sent to the device that a member is copied to. One that changes much at once may take as long as a flush.
    pub fn note_sent_to_successor(
        &mut self,
        now: Duration,
        io: IoId,
        (op, len): (Op, u64),
    ) -> SentRequest {
        let class = match op {
            Op::Read | Op::Write => WRITES + usize::from(len > SMALL_MAX),
            Op::Flush | Op::WriteZeroes | Op::Discard | Op::Extents => FLUSHES,
        };
        let at = self.own_time_to_tick(now);
        self.successor.send(class, io, at)
    }

    /// Such a request has ended; `is_answer` when the device answered it. One of a device that was forgotten since says nothing.
    ///
    /// # Panics
    /// When it was not under way.
    pub fn note_successor_done(
        &mut self,
        now: Duration,
        SentRequest { class, number, epoch }: SentRequest,
        is_answer: bool,
    ) {
        let own = self.own_time(now);
        let requests = &mut self.successor;
        if requests.epoch != epoch {
            return;
        }
        let took = own.saturating_sub(requests.classes[class].end(number));
        if is_answer {
            requests.classes[class].times.add(took);
            requests.answered_at = own;
        }
    }

    /// No member is copied to that device any more.
    pub fn forget_successor(&mut self) {
        let epoch = self.successor.epoch.wrapping_add(1);
        self.successor = MemberRequests::new(epoch, &self.deadlines);
    }

    /// Whether the device is late.
    pub(super) fn poll_successor(&mut self, own: Duration) -> Option<Due> {
        self.successor.note_late(own);
        let (sent, due) = ClassRequests::due_first(&self.successor.classes[READ_CLASSES..])?;
        let took = own.saturating_sub(sent);
        // Requests sent together end one after the other.
        let silence = own.saturating_sub(self.successor.answered_at).min(took);
        let is_late = silence >= due - sent || took >= self.deadlines.write.1;
        is_late.then_some(Due::SuccessorLate(took))
    }
}
