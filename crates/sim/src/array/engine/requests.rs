//! Member requests of an engine: from the volume to the sessions, and their ends.

use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op, SgList};
use netraid_raid::{member::MemberIndex, volume::Tag};

use super::{Context, Engine, Notice, Stage};
use crate::{array::machine::Machine, target::Command, time::Time};

/// Users' requests in flight, at least, when an engine dies that serves.
const CROWD_MIN: u64 = 4;
/// Longest that commands wait for their end whose session is lost.
const LINGER_MAX: Duration = Duration::from_millis(40);

impl<M: Machine> Engine<M> {
    pub(super) fn submit(
        &mut self,
        context: &mut Context<'_>,
        tag: Tag,
        (op, offset, len): (Op, u64, u64),
        fua: bool,
        data: SgList,
    ) {
        let (id, now) = (self.id, context.around.now);
        self.actions += 1;
        // Who serves dies in the middle of something.
        let is_busy = !self.is_recovered || self.crowd >= CROWD_MIN;
        let number = self.actions;
        if !self.is_recovered && self.is_watched(number, op, offset) {
            context.notices.push_back((id, Notice::Watched));
        }
        if is_busy && self.dies.as_mut().is_some_and(|dies| dies.comes(number, op, offset)) {
            self.is_dying = true;
            context.notices.push_back((id, Notice::Dies));
            return;
        }
        let member = tag.member().as_usize();
        let describe = || {
            let fua = if fua { " with FUA" } else { "" };
            format!("{:#x}: {op:?}{fua} of member {member}, {len} bytes at {offset:#x}", tag.0)
        };
        context.trace.note(now, || format!("engine {}: {}", id.0, describe()));
        context.trace.mix(&[4, member as u64, offset, len]);
        let block = u64::from(self.fittings.block_len);
        let limit = u64::from(self.fittings.transfer_len);
        let is_sound = offset.is_multiple_of(block)
            && len.is_multiple_of(block)
            && offset.checked_add(len).is_some_and(|end| end <= self.fittings.capacity)
            && (len <= limit || op == Op::Discard)
            && (len > 0 || op == Op::Flush)
            && self.places.get(member).is_some_and(|place| place.has);
        let (first, count) = (offset / block, len / block);
        let command = match op {
            Op::Read if is_sound => Command::Read { first, count },
            Op::Write if is_sound => Command::Write { first, data, fua },
            Op::Flush if is_sound => Command::Flush,
            Op::Discard if is_sound => Command::Discard { first, count },
            Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => {
                let text = format!("a member request that no device would do: {}", describe());
                context.notices.push_back((id, Notice::Nonsense(text)));
                return;
            }
        };
        self.outstanding += 1;
        let session = &mut self.sessions[member];
        if session.is_fenced() {
            self.ended.push_back((tag, ErrorKind::Fenced.into()));
        } else if !session.submit(&mut context.around, tag, command) {
            self.ended.push_back((tag, ErrorKind::Unreachable.into()));
        }
    }

    pub(super) fn end_io(&mut self, time: Duration, tag: Tag, result: Result<SgList, IoError>) {
        let Stage::Open(volume) = &mut self.stage else { return };
        let member = tag.member().as_usize();
        let losses = self.places[member].has.then(|| self.sessions[member].cache_losses());
        self.outstanding -= 1;
        if !M::HAS_LOG
            && let (Some(losses), Ok(_)) = (losses, &result)
        {
            // Without a log only requests tell.
            self.places[member].losses_shown = losses;
        }
        volume.handle_io_done(time, tag, losses, result);
    }

    /// A session is lost: the volume hears of its commands at once, or after it has looked at the members.
    pub(super) fn lose(
        &mut self,
        context: &mut Context<'_>,
        member: usize,
        ios: Vec<Tag>,
        reason: &'static str,
    ) {
        if let Some(reopening) = &mut self.reopening {
            reopening.lose(member);
        }
        if let Stage::Opening { found, .. } | Stage::Asking { found } = &mut self.stage {
            found[member] = None;
            self.sessions[member].find_again();
        }
        if context.around.dice.one_in(2) {
            let wait = context.around.dice.time_in(&(Duration::ZERO..=LINGER_MAX));
            let until = context.around.now.after(wait);
            self.lingering.extend(ios.into_iter().map(|tag| (until, tag)));
        } else {
            self.end_all(ios);
        }
        self.end_attempt(member, reason);
    }

    pub(super) fn end_all(&mut self, ios: Vec<Tag>) {
        self.ended.extend(ios.into_iter().map(|tag| (tag, ErrorKind::Unreachable.into())));
    }

    /// What waits for its end of a member's lost session ends now.
    pub(super) fn end_lingering(&mut self, member: MemberIndex) {
        let is_its = |entry: &(Time, Tag)| entry.1.member() == member;
        let (its, others) = self.lingering.iter().copied().partition(is_its);
        self.lingering = others;
        let its: Vec<(Time, Tag)> = its;
        self.end_all(its.into_iter().map(|(_, tag)| tag).collect());
    }

    /// A member was set aside: nothing more reaches it.
    pub(super) fn part(&mut self, context: &mut Context<'_>, member: MemberIndex) {
        let at = member.as_usize();
        let ios = match context.around.dice.one_in(2) {
            true => self.sessions[at].leave(&mut context.around),
            false => self.sessions[at].stop(&mut context.around),
        };
        self.end_all(ios);
        self.end_lingering(member);
        self.places[at].has = false;
        self.has_lost_one = true;
        context.notices.push_back((self.id, Notice::Gone(at)));
    }
}
