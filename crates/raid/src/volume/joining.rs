//! Another device, or a returned one, in a member's place by command: prepared beside the running array, then handed
//! to its machine.
//!
//! Invariants: one device at most is on its way; a predecessor that still serves does so until its successor is there;
//! a device is handed over when stable labels exclude its predecessor, and when the machine has said of the device before
//! it whether that takes part; and what somebody asked for is answered once, but where the volume closes before a device
//! is handed over: then the shell answers.

use alloc::{borrow::ToOwned, boxed::Box, string::ToString};

use super::{Action, Candidate, Expect, JoinError, Life, Volume, machine::Machine, places::Place};
use crate::{
    array::CommandError,
    member::{MemberIndex, MemberState},
};

/// How far a device is on its way into a member's place.
#[derive(Debug)]
pub(super) enum Joining {
    /// There is none.
    Nobody,
    /// It was asked for, and waits for the attempts to find members that are away.
    Asked { member: MemberIndex, expect: Expect, copies: bool },
    /// It is prepared; a member in sync is copied to it then, or set aside for it.
    Prepared { member: MemberIndex, copies: bool },
    /// It is ready, and waits for the labels to exclude its predecessor.
    Ready { member: MemberIndex, candidate: Box<Candidate> },
    /// The machine has it, and has not said yet that it takes part.
    HandedOver { member: MemberIndex },
}

impl Joining {
    const fn member(&self) -> Option<MemberIndex> {
        match self {
            Self::Nobody => None,
            Self::Asked { member, .. }
            | Self::Prepared { member, .. }
            | Self::Ready { member, .. }
            | Self::HandedOver { member } => Some(*member),
        }
    }

    /// Whether a device is on its way into this member's place.
    pub(super) fn is_for(&self, member: MemberIndex) -> bool {
        self.member() == Some(member)
    }

    /// Whether a device is on its way, and was not handed over yet: a session to it may be made at any time.
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Prepared { .. } | Self::Ready { .. })
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// Sets a member aside by command; it does not come back by itself.
    ///
    /// # Errors
    /// When the volume is not open, another device is about to take its place, or the machine refuses.
    pub fn handle_fail(&mut self, member: MemberIndex) -> Result<(), JoinError> {
        if self.life != Life::Open {
            return Err(JoinError::NotOpen);
        }
        // It would cross the path of the device that is to take the member's place.
        let is_coming = self.is_coming(member) || self.places[member.as_usize()].is_awaited;
        if is_coming && !self.state(member).is_live() {
            return Err(JoinError::Joining(member));
        }
        self.machine.handle_fail(member)?;
        self.places[member.as_usize()].returning.by_itself = false;
        Ok(())
    }

    /// Somebody asks for the device at an address to take a member's place; one that still serves there is set aside
    /// for it. What comes of it is told by [`Action::Joined`].
    ///
    /// # Errors
    /// When the place may not be taken now; nothing is told then.
    pub fn handle_join(
        &mut self,
        member: MemberIndex,
        address: &str,
        expect: Expect,
    ) -> Result<(), JoinError> {
        self.check_join(member, address, expect)?;
        self.begin_join(member, expect);
        Ok(())
    }

    pub(super) fn begin_join(&mut self, member: MemberIndex, expect: Expect) {
        self.begin_join_so(member, expect, false);
    }

    /// The same; a member that is in sync then is copied, where that can be.
    pub(super) fn begin_join_so(&mut self, member: MemberIndex, expect: Expect, copies: bool) {
        self.joining = Joining::Asked { member, expect, copies };
        self.end_wait_for_returns();
    }

    /// Whether a device is on its way into this member's place.
    pub(super) fn is_coming(&self, member: MemberIndex) -> bool {
        self.joining.is_for(member) || self.successions.is_for(member)
    }

    /// What [`Action::Join`] asked for is ready.
    ///
    /// # Panics
    /// When no device is prepared for that member.
    pub fn handle_joined(&mut self, member: MemberIndex, candidate: Candidate) {
        let copies = self.end_preparing(member);
        if self.life != Life::Open {
            self.actions.push_back(Action::LetGo(member));
            return self.answer_join(member, Err(JoinError::NotOpen));
        }
        if copies && self.machine.has_log() && self.state(member) == MemberState::InSync {
            // Another copy may have begun while the device was prepared.
            let begun = self.check_copy(member);
            let begun = begun.and_then(|()| Ok(self.begin_copy(member, candidate)?));
            if begun.is_err() {
                self.actions.push_back(Action::LetGo(member));
            }
            return self.answer_join(member, begun);
        }
        self.joining = Joining::Ready { member, candidate: Box::new(candidate) };
        // A predecessor that still serves is set aside now.
        if self.state(member).is_live()
            && let Err(error) = self.machine.handle_fail(member)
        {
            self.actions.push_back(Action::LetGo(member));
            self.answer_join(member, Err(error.into()));
        }
    }

    /// What [`Action::Join`] asked for cannot be; whoever asked is told why by the shell.
    ///
    /// # Panics
    /// When no device is prepared for that member.
    pub fn handle_not_joined(&mut self, member: MemberIndex) {
        self.end_preparing(member);
    }

    /// Answers whether a member in sync is copied to it.
    fn end_preparing(&mut self, member: MemberIndex) -> bool {
        match core::mem::replace(&mut self.joining, Joining::Nobody) {
            Joining::Prepared { member: one, copies } if one == member => copies,
            other @ (Joining::Nobody
            | Joining::Asked { .. }
            | Joining::Prepared { .. }
            | Joining::Ready { .. }
            | Joining::HandedOver { .. }) => {
                panic!("no device is prepared for member {member}: {other:?}")
            }
        }
    }

    /// Whether the member's place may be taken now, by a device at this address.
    pub(super) fn check_join(
        &self,
        member: MemberIndex,
        address: &str,
        expect: Expect,
    ) -> Result<(), JoinError> {
        if self.life != Life::Open {
            return Err(JoinError::NotOpen);
        }
        let is_awaited = self.places[member.as_usize()].is_awaited.then_some(member);
        let is_copied = self.successions.is_for(member).then_some(member);
        let comes = self.joining.member().or(is_awaited).or(is_copied);
        if let Some(member) = comes.or_else(|| self.succeeds_at(address)) {
            return Err(JoinError::Joining(member));
        }
        if let Some(other) = self.other_place_of(address, member) {
            return Err(JoinError::Serves(other));
        }
        let state = self.state(member);
        if expect == Expect::Former && state.is_live() {
            return Err(CommandError::StillLive(member, state.name()).into());
        }
        Ok(self.machine.check_replace(member)?)
    }

    /// The place other than that of `member` that a device at this address has.
    pub(super) fn other_place_of(&self, address: &str, member: MemberIndex) -> Option<MemberIndex> {
        let others = (0..).map(MemberIndex).zip(&self.places).filter(|(at, _)| *at != member);
        let is_there = |(other, place): &(MemberIndex, &Place)| {
            let is_taken = place.device.is_some() || self.state(*other).is_live();
            is_taken && place.address.as_deref() == Some(address)
        };
        others.into_iter().find(is_there).map(|(other, _)| other)
    }

    /// Has the device prepared that was asked for, once nobody looks for members: whoever does may have this device,
    /// or be about to have it.
    pub(super) fn end_wait_for_returns(&mut self) {
        let Joining::Asked { member, expect, copies } = self.joining else { return };
        if self.some_return() {
            return;
        }
        if self.life != Life::Open {
            return self.answer_join(member, Err(JoinError::NotOpen));
        }
        self.joining = Joining::Prepared { member, copies };
        // One that still serves does so until its successor is there.
        let serves = self.state(member).is_live();
        let former = self.places[member.as_usize()].device.take_if(|_| !serves);
        let ends_former = former.is_some();
        self.actions.push_back(Action::Join { member, expect, ends_former });
    }

    /// Whether a device is ready whose predecessor the stable labels exclude.
    pub(super) fn is_to_hand_over(&self) -> bool {
        matches!(self.joining, Joining::Ready { .. }) && !self.machine.labels_pending()
    }

    /// Puts the device that is ready into its place. Whoever asked is answered when the machine says that it takes
    /// part, or does not.
    pub(super) fn hand_over(&mut self) {
        let Joining::Ready { member, candidate } =
            core::mem::replace(&mut self.joining, Joining::Nobody)
        else {
            return;
        };
        match self.take(member, *candidate) {
            Ok(()) => self.joining = Joining::HandedOver { member },
            Err(error) => self.answer_join(member, Err(error.into())),
        }
    }

    /// Gives the machine a device for a member's place, or the device back.
    pub(super) fn take(
        &mut self,
        member: MemberIndex,
        candidate: Candidate,
    ) -> Result<(), CommandError> {
        let Candidate { device, label, uuid } = candidate;
        let taken = self.machine.handle_device(member, uuid, device.caps, label);
        match &taken {
            Ok(()) => {
                let place = &mut self.places[member.as_usize()];
                let is_free = place.device.is_none() && !place.is_awaited;
                assert!(is_free, "two devices in the place of member {member}");
                place.take(device);
                self.actions.push_back(Action::Take(member));
            }
            Err(_) => self.actions.push_back(Action::LetGo(member)),
        }
        taken
    }

    /// The machine says whether a member takes part; a device that was handed over for it does now,
    /// or will not.
    pub(super) fn end_join(&mut self, member: MemberIndex, is_live: bool, reason: &str) {
        if !matches!(self.joining, Joining::HandedOver { member: one } if one == member) {
            return;
        }
        let result = if is_live { Ok(()) } else { Err(JoinError::NotTaken(reason.to_owned())) };
        self.answer_join(member, result);
    }

    /// Whether a device was handed over to a machine that has failed or closed.
    pub(super) fn will_not_take_part(&self) -> bool {
        let is_over = || self.life == Life::Closed || self.machine.failure().is_some();
        matches!(self.joining, Joining::HandedOver { .. }) && is_over()
    }

    pub(super) fn end_join_for_good(&mut self) {
        let Some(member) = self.joining.member() else { return };
        let failure = self.machine.failure().map(|failure| failure.to_string());
        self.end_join(member, false, failure.as_deref().unwrap_or("the array was closed"));
    }

    pub(super) fn answer_join(&mut self, member: MemberIndex, result: Result<(), JoinError>) {
        self.joining = Joining::Nobody;
        self.actions.push_back(Action::Joined { member, result });
    }
}
