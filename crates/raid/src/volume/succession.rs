//! A member in sync is copied to another device, its successor, which takes the place when it has everything.
//!
//! ```text
//! copying ──▶ left ──▶ joins as any other device
//! ```
//!
//! While the member is *copied*, its own device is read, and both get what is written. What the successor answers with matters
//! to nobody but the copy: an error, or an answer that is late, ends that, and whoever waits goes on with what the member's
//! device answers. When the member has *left*, because its copy is whole or because it has failed, the successor gets nothing
//! more, and joins once it has answered.
//!
//! Invariants: a request goes to each of the two devices at most once, and ends well when both have answered that were asked;
//! an answer is held against what this successor was asked, not against what another one was, or another request of the same
//! number; a device joins only when nothing that was sent to it is under way.
//!
//! Not here: what is copied, in which order, and when the member leaves for its copy ([`crate::logged`]).

use alloc::{borrow::ToOwned, boxed::Box, format, string::String};
use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op, SgList, narrow};
use slab::Slab;

use super::{
    Action, Candidate, Event, JoinError, Life, Volume,
    interface::Tag,
    joining::Joining,
    machine::Machine,
    requests::{CACHE_LOST, InFlight, Pieces},
};
use crate::{
    array::{CommandError, IoId},
    logged::To,
    member::{MemberIndex, MemberState},
    planted::{Planted, planted},
    slowness::SentRequest,
};

/// The succession of a volume, where there is one.
#[derive(Debug, Default)]
pub(super) struct Successions {
    now: Option<Box<Succession>>,
    /// How many there were.
    count: u64,
    /// What successors were asked, and have not answered; a tag has the number of one.
    asked: Slab<Asked>,
}

#[derive(Debug)]
struct Succession {
    member: MemberIndex,
    /// No other one of this volume has it.
    number: u64,
    candidate: Candidate,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Copying,
    Left,
}

/// A request to a successor.
#[derive(Debug)]
struct Asked {
    /// Of which succession.
    succession: u64,
    /// The member request that waits for it, unless that has ended.
    waits: Option<usize>,
    pieces: Pieces,
    sent: SentRequest,
}

/// To which devices a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ways {
    /// To the one in the member's place.
    pub(super) own: bool,
    /// To its successor, which takes so many bytes at once.
    pub(super) successor: Option<u32>,
}

/// What a member request waits for that went to a successor.
#[derive(Debug)]
pub(super) struct Two {
    /// What the device in the place answered; none while it is asked.
    own: Option<Result<SgList, IoError>>,
    /// The number of the request to the successor, while that is waited for.
    asked: Option<usize>,
}

impl Successions {
    /// The device that a member is copied to, or was when it left.
    fn of(&self, member: MemberIndex) -> Option<&Succession> {
        self.now.as_deref().filter(|one| one.member == member)
    }

    fn copying(&self, member: MemberIndex) -> Option<&Succession> {
        self.of(member).filter(|one| one.stage == Stage::Copying)
    }

    /// Whether another device is about to have a member's place.
    pub(super) fn is_for(&self, member: MemberIndex) -> bool {
        self.of(member).is_some()
    }

    /// Whether nothing is under way to such a device.
    pub(super) fn is_quiet(&self) -> bool {
        self.asked.is_empty()
    }

    /// Which devices a request of the machine goes to.
    pub(super) fn ways(&self, member: MemberIndex, to: To, op: Op) -> Ways {
        let own = !matches!(to, To::Successor(_));
        let Some(one) = self.copying(member) else { return Ways { own, successor: None } };
        let device = &one.candidate.device;
        let is_for_it = match to {
            To::Both => op != Op::Read && !planted(Planted::SuccessorMissesWrites),
            To::Member => false,
            To::Successor(_) => true,
        };
        let takes = op != Op::Discard || device.caps.can_discard;
        Ways { own, successor: (is_for_it && takes).then_some(device.max_transfer_len) }
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// Somebody asks for the device at an address to replace a member's. One that is in sync is copied to it, where the
    /// array has a log, and serves until the copy is whole; one that serves otherwise is set aside for it. What comes of
    /// it is told by [`Action::Joined`]: the device takes part, or is being copied to.
    ///
    /// # Errors
    /// When the place may not be taken now; nothing is told then.
    pub fn handle_replace(
        &mut self,
        member: MemberIndex,
        address: &str,
        expect: super::Expect,
    ) -> Result<(), JoinError> {
        self.check_join(member, address, expect)?;
        if self.state(member) == MemberState::InSync {
            self.check_copy(member)?;
        }
        self.begin_join_so(member, expect, true);
        Ok(())
    }

    /// The device that a member is being copied to is not wanted any more. False where the member is not copied.
    pub fn handle_end_copy(&mut self, member: MemberIndex, reason: &str) -> bool {
        let is_copied = self.successions.copying(member).is_some();
        if is_copied {
            self.end_copy(reason.to_owned());
        }
        is_copied
    }

    /// Where the device is that takes a member's place: the member is copied to it, or has left, and it does not take part yet.
    #[must_use]
    pub fn successor(&self, member: MemberIndex) -> Option<&str> {
        if let Some(one) = self.successions.of(member) {
            return Some(&one.candidate.device.address);
        }
        match &self.joining {
            Joining::Ready { member: one, candidate } if *one == member => {
                Some(&candidate.device.address)
            }
            Joining::HandedOver { member: one } if *one == member => self.address(member),
            Joining::Nobody
            | Joining::Asked { .. }
            | Joining::Prepared { .. }
            | Joining::Ready { .. }
            | Joining::HandedOver { .. } => None,
        }
    }

    /// The device that may not have another place: it is about to have one.
    pub(super) fn succeeds_at(&self, address: &str) -> Option<MemberIndex> {
        let one = self.successions.now.as_ref()?;
        (one.candidate.device.address == address).then_some(one.member)
    }

    /// Whether a member may be copied: one is at a time, and the device before must have answered everything.
    pub(super) fn check_copy(&self, member: MemberIndex) -> Result<(), JoinError> {
        let copied = self.successions.now.as_ref().map(|one| one.member);
        let is_busy = !self.successions.is_quiet();
        copied.or(is_busy.then_some(member)).map_or(Ok(()), |other| Err(JoinError::Joining(other)))
    }

    /// Has a member in sync copied to a device that is ready.
    pub(super) fn begin_copy(
        &mut self,
        member: MemberIndex,
        candidate: Candidate,
    ) -> Result<(), CommandError> {
        let (uuid, caps) = (candidate.uuid, candidate.device.caps);
        assert!(self.successions.now.is_none(), "two members are copied at once");
        assert!(self.successions.is_quiet(), "a former successor has not answered");
        self.machine.handle_successor(member, uuid, caps)?;
        let address = &candidate.device.address;
        let text =
            format!("member {member} is copied to {address}, and serves until that is whole");
        self.tell(Event::Notice(text));
        self.successions.count += 1;
        let (number, stage) = (self.successions.count, Stage::Copying);
        self.successions.now = Some(Box::new(Succession { member, number, candidate, stage }));
        Ok(())
    }

    /// The copy goes no further: the array is as before.
    pub(super) fn end_copy(&mut self, reason: String) {
        if let Some(member) = self.forget_successor(reason) {
            self.actions.push_back(Action::LetGo(member));
        }
    }

    /// The same where all sessions to the place are cut.
    pub(super) fn cut_copy(&mut self, reason: String) {
        if let Some(member) = self.forget_successor(reason) {
            self.actions.push_back(Action::Cut(member));
        }
    }

    /// Waits for nothing more that a successor was asked; answers whose it was to be.
    fn forget_successor(&mut self, reason: String) -> Option<MemberIndex> {
        let Succession { member, candidate, stage, .. } = *self.successions.now.take()?;
        self.machine.handle_successor_gone(member);
        self.slowness.forget_successor();
        let address = candidate.device.address;
        let text = match stage {
            Stage::Left => {
                format!("{address} does not take the place of member {member}: {reason}")
            }
            Stage::Copying => {
                format!(
                    "the copy of member {member} to {address} has ended, and the member stays: {reason}"
                )
            }
        };
        self.places[member.as_usize()].stats.last_error = Some(text.clone());
        self.tell(Event::Notice(text));
        let waits: alloc::vec::Vec<usize> =
            self.successions.asked.iter_mut().filter_map(|(_, asked)| asked.waits.take()).collect();
        for io in waits {
            self.hear_both(io);
        }
        Some(member)
    }

    /// A member has left, and its device has no place any more: one that it was copied to joins in its place.
    pub(super) fn succeed_who_left(&mut self, member: MemberIndex) {
        if let Some(one) = self.successions.now.as_mut().filter(|one| one.member == member) {
            one.stage = Stage::Left;
        }
    }

    /// A request to a successor has been under way for too long: nobody waits for it any more.
    pub(super) fn give_up_successor(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.end_copy(format!(
            "it has not answered a write for {took:.1} s, and all writes wait for it; replace the member again when that device \
             answers, or with another one"
        ));
    }

    /// Goes on where a succession waits for what is under way.
    pub(super) fn go_on_succession(&mut self) -> bool {
        let Some(one) = &self.successions.now else { return false };
        let member = one.member;
        if self.machine.failure().is_some() {
            self.end_copy("the array failed".into());
            return true;
        }
        if self.life != Life::Open {
            self.end_copy("the array closes".into());
            return true;
        }
        let is_ready = one.stage == Stage::Left
            && self.successions.is_quiet()
            && matches!(self.joining, Joining::Nobody);
        if is_ready && let Some(one) = self.successions.now.take() {
            let candidate = Box::new(one.candidate);
            self.joining = Joining::Ready { member, candidate };
        }
        is_ready
    }

    /// What the device in a member's place answered, where the request went to its successor as well. An error by which the
    /// member leaves waits for nobody.
    pub(super) fn hear_own(&mut self, io: usize, result: Result<SgList, IoError>) {
        let Some(entry) = &mut self.in_flight[io] else { return };
        let (member, Some(two)) = (entry.member, &mut entry.two) else { return };
        let leaves = result.as_ref().is_err_and(|error| error.kind() != ErrorKind::NoSpace);
        two.own = Some(result);
        let asked = two.asked.take_if(|_| leaves);
        if let Some(asked) = asked {
            self.successions.asked[asked].waits = None;
        }
        self.end_if_both(io);
        // The machine may write the same range again, which this request must not overtake.
        let stays = self.state(member).is_live() && self.successions.copying(member).is_some();
        if asked.is_some() && stays {
            self.end_copy("the member's own device failed what it had not answered yet".into());
        }
    }

    /// What a device answered that a member is, or was, copied to.
    pub(super) fn hear_successor(
        &mut self,
        now: Duration,
        tag: Tag,
        cache_losses: Option<u64>,
        result: Result<SgList, IoError>,
    ) {
        let at: usize = narrow(tag.io());
        let Some(asked) = self.successions.asked.get_mut(at) else {
            unreachable!("a successor answers request {at}, which it was not asked")
        };
        let Some(whole) = asked.pieces.end(narrow(tag.piece()), result) else { return };
        let Asked { succession, waits, sent, .. } = self.successions.asked.remove(at);
        self.slowness.note_successor_done(now, sent, whole.is_ok());
        // Nobody waits for a device that was let go.
        let Some(one) = self.successions.now.as_ref().filter(|one| one.number == succession) else {
            return;
        };
        let has_lost = cache_losses.is_some_and(|now| now != one.candidate.device.cache_losses);
        let end = match whole {
            Err(error) => Err(format!("{error}")),
            Ok(_) if has_lost => Err(CACHE_LOST.to_owned()),
            Ok(_) => Ok(()),
        };
        if let Err(reason) = end {
            self.end_copy(reason);
        }
        if let Some(io) = waits {
            self.hear_both(io);
        }
    }

    /// The successor is not waited for any more.
    fn hear_both(&mut self, io: usize) {
        if let Some(two) = self.in_flight[io].as_mut().and_then(|entry| entry.two.as_mut()) {
            two.asked = None;
        }
        self.end_if_both(io);
    }

    /// Ends a member request whose devices have both answered.
    fn end_if_both(&mut self, io: usize) {
        let is_over = |entry: &mut InFlight| {
            entry.two.as_ref().is_some_and(|two| two.own.is_some() && two.asked.is_none())
        };
        let Some(InFlight { member, number, is_read, two: Some(two), .. }) =
            self.in_flight[io].take_if(is_over)
        else {
            return;
        };
        let result = two.own.unwrap_or_else(|| Ok(SgList::new()));
        let place = &self.places[member.as_usize()];
        if place.number == number && place.device.is_some() {
            self.note_end_of(member, &result, is_read);
        }
        self.machine.handle_io_done(IoId(io), result);
    }

    /// Sends a member request to the device that the member is copied to, besides its own where that is asked as well.
    pub(super) fn send_to_successor(
        &mut self,
        now: Duration,
        (io, member): (usize, MemberIndex),
        Ways { own, successor }: Ways,
        what: (Op, u64, u64),
        fua: bool,
        data: SgList,
    ) {
        let (Some(limit), Some(one)) = (successor, &self.successions.now) else { return };
        let succession = one.number;
        let sent = self.slowness.note_sent_to_successor(now, IoId(io), (what.0, what.2));
        let place = self.successions.asked.vacant_entry().key();
        let tag = |piece| Tag::new(member, place, piece).for_successor();
        let pieces = Pieces::new(self.send(tag, member, limit, what, fua, data));
        let asked = Asked { succession, waits: Some(io), pieces, sent };
        assert!(self.successions.asked.insert(asked) == place, "request {place} of a successor");
        if let Some(entry) = &mut self.in_flight[io] {
            let own = if own { None } else { Some(Ok(SgList::new())) };
            entry.two = Some(Box::new(Two { own, asked: Some(place) }));
        }
    }
}
