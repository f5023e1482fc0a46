//! What guests are answered, and whether it is right: what is in the blocks, as far as that is known.

use core::time::Duration;

use netraid_block::{ErrorKind, IoError};
use netraid_remote::OrderId;

use super::{
    BLOCK_LEN, Guests, Happening, at,
    guest::{Asked, Command, filled},
};
use crate::way::{cases::Case, interface::LineId};

/// How a target says that a grant does not allow something.
const NO_ACCESS: &str = "access denied";

impl Guests {
    pub(super) fn hear_answer(
        &mut self,
        line: LineId,
        order: OrderId,
        result: Result<Vec<u8>, IoError>,
    ) {
        let now = self.now();
        let Some(visit) = self.visits.get_mut(&line) else { return };
        let Some(asked) = visit.asked.take_if(|asked| asked.order == order) else { return };
        let (needed, is_of_now) = (asked.command.needs(), visit.is_of(self.generation));
        let (may_be, is_granted) = (asked.may_be, visit.is_granted(needed, now));
        let is_extended = now > visit.terms.expires;
        self.note(|| format!("{line:?}: {asked:?} ends: {:?}", result.as_ref().map(Vec::len)));
        match (may_be, result) {
            (false, Ok(_)) => self.fail(format!("{line:?}: it was not granted: {asked:?}")),
            (false, Err(why)) => self.cases.add(match asked.is_late {
                _ if !is_denial(&why) => Case::GuestFailed,
                true => Case::DeniedLate,
                false => Case::DeniedRight,
            }),
            (true, Err(why)) if is_granted && !is_trouble(&why) => {
                self.fail(format!("{line:?}: it was granted: {asked:?}, and refused: {why}"));
            }
            (true, Err(why)) => {
                self.cases.add(Case::GuestFailed);
                match is_denial(&why) && is_of_now {
                    true => self.restore(&asked),
                    false => self.doubt(line, &asked),
                }
            }
            // Others may have written there since.
            (true, Ok(_)) if !is_of_now => self.cases.add(Case::GuestDoneBeforeFence),
            (true, Ok(bytes)) => {
                if is_extended {
                    self.cases.add(Case::GuestDoneExtended);
                }
                self.hear_done(line, &asked, &bytes);
            }
        }
        // An instant that all share would say nothing of those between.
        let wait = Duration::from_micros(self.dice.below(20_000));
        self.net.put_in(wait, Happening::Next(line));
    }

    /// What a guest had the right to was done.
    pub(super) fn hear_done(&mut self, line: LineId, asked: &Asked, bytes: &[u8]) {
        self.cases.add(match asked.command {
            Command::Read => Case::GuestRead,
            Command::Write => Case::GuestWrote,
            Command::Flush => Case::GuestFlushed,
            Command::Register => Case::GuestRegistered,
        });
        if asked.command == Command::Write {
            asked.blocks.iter().for_each(|block| self.contents[at(*block)] = Some(asked.number));
        }
        if asked.command != Command::Read {
            return;
        }
        let parts = bytes.chunks_exact(BLOCK_LEN as usize);
        if parts.len() != asked.blocks.len() {
            return self.fail(format!("{line:?}: {} bytes for {asked:?}", bytes.len()));
        }
        for (block, part) in asked.blocks.iter().zip(parts) {
            let known = self.contents[at(*block)].filter(|_| !self.is_doubtful[at(*block)]);
            let Some(number) = known else { continue };
            if part != filled(number, BLOCK_LEN) {
                return self.fail(format!("{line:?} reads in block {block} not what it wrote"));
            }
            self.cases.add(Case::GuestCompared);
        }
    }

    /// A write that was not answered may still land.
    pub(super) fn doubt(&mut self, line: LineId, asked: &Asked) {
        // Of what was fenced nothing lands once the segment has drained: that is what is tried here.
        let is_of_now = self.visits.get(&line).is_some_and(|visit| visit.is_of(self.generation));
        if asked.command != Command::Write || !asked.may_be || !(is_of_now || self.is_draining) {
            return;
        }
        asked.blocks.iter().for_each(|block| self.is_doubtful[at(*block)] = true);
    }

    /// What might still land has landed, or never will.
    pub(super) fn end_doubts(&mut self) {
        for (is_doubtful, contents) in self.is_doubtful.iter_mut().zip(&mut self.contents) {
            if core::mem::take(is_doubtful) {
                *contents = None;
            }
        }
    }

    /// A write was denied: what was known is still there.
    pub(super) fn restore(&mut self, asked: &Asked) {
        if asked.command == Command::Write {
            for (block, before) in asked.blocks.iter().zip(&asked.before) {
                self.contents[at(*block)] = *before;
            }
        }
    }
}

/// Whether a target says that a grant does not allow something.
pub(super) fn is_denial(why: &IoError) -> bool {
    why.to_string().contains(NO_ACCESS)
}

/// Whether a request may end so that was granted: its session is gone, or somebody has ended it.
pub(super) fn is_trouble(why: &IoError) -> bool {
    matches!(why.kind(), ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Aborted)
}
