//! The administrator of an engine, and the devices that take members' places: those that come back are given to the
//! volume, others are made members anew.

use netraid_block::narrow;
use netraid_raid::{
    array,
    label::{Label, Uuid},
    logged::MemberCaps,
    member::MemberIndex,
    volume::{Candidate, Device, Expect, NotFormer, ScrubOrder, check_former},
};

use super::{Attempt, Context, Engine, Stage, address, index};
use crate::array::{machine::Machine, session::Session};

/// Looks at a member that is away after which its administrator asks for it.
const LOOKS_AWAY_MAX: u32 = 24;

impl<M: Machine> Engine<M> {
    /// A member is to be set aside.
    pub fn handle_fail(&mut self, context: &mut Context<'_>, member: usize) {
        if let Stage::Open(volume) = &mut self.stage {
            // What is refused is not to be.
            let _ = volume.handle_fail(index(member));
        }
        self.drive(context);
    }

    /// A scrub is to begin, or to be another one; `rate` is in bytes a second of the volume's time.
    pub fn handle_scrub(
        &mut self,
        context: &mut Context<'_>,
        order: ScrubOrder,
        rate: Option<u64>,
    ) {
        let time = self.time(context);
        if let Stage::Open(volume) = &mut self.stage {
            // There may be none to be paused.
            let _ = volume.handle_scrub(time, order, rate);
        }
        self.drive(context);
    }

    /// Members are to catch up at so many bytes a second of the volume's time.
    pub fn handle_rebuild_limit(&mut self, context: &mut Context<'_>, rate: Option<u64>) {
        let time = self.time(context);
        if let Stage::Open(volume) = &mut self.stage {
            volume.handle_rebuild_limit(time, rate);
        }
        self.drive(context);
    }

    /// Asks for members that do not come back by themselves.
    pub(super) fn administer(&mut self) {
        let Stage::Open(volume) = &mut self.stage else { return };
        for (member, place) in (0..).map(MemberIndex).zip(&mut self.places) {
            let is_live = volume.machine().member_state(member).is_live();
            place.looks_away = if place.has || is_live { 0 } else { place.looks_away + 1 };
            if self.is_recovered && place.looks_away > LOOKS_AWAY_MAX {
                // What is refused now is asked for at the next look.
                let _ = volume.handle_join(member, &address(member), Expect::Former);
            }
        }
    }

    /// Looks for a device that is to join, once all sessions have ended that were parted with.
    pub(super) fn begin_join(&mut self, context: &mut Context<'_>) {
        if self.sessions.iter().any(Session::is_leaving) {
            return;
        }
        for (place, session) in self.places.iter_mut().zip(&mut self.sessions) {
            if core::mem::take(&mut place.waits) {
                session.look(&mut context.around);
            }
        }
    }

    /// The device that was looked for is there. One that is not the member's is made so by the administrator.
    pub(super) fn welcome(
        &mut self,
        context: &mut Context<'_>,
        member: usize,
        label: Option<Box<Label>>,
    ) {
        let looks = self.look_at_sessions();
        let (device, new) = (self.device(member), self.new_uuid(member));
        let Stage::Open(volume) = &mut self.stage else { return };
        let (place, member) = (&mut self.places[member], index(member));
        let judged = check_former(&volume.machine().label(), member, label.as_deref());
        let former = label.map(|label| *label).filter(|_| judged.is_ok());
        let attempt = place.attempt.take();
        // One that seems to have gone on alone is made anew when the administrator has looked after it: it is an older
        // image of itself, for nothing else goes on alone here.
        let is_asked_for = matches!(attempt, Some(Attempt::Join(_)));
        let is_made_anew = judged == Err(NotFormer::NotThatMember) || is_asked_for;
        match (attempt, former) {
            (Some(Attempt::Return), Some(label)) => {
                let found = Candidate { device, label: Some(label), uuid: new };
                return volume.handle_returned(member, &looks, Ok(found));
            }
            (Some(Attempt::Join(Expect::Former)), Some(label)) => {
                let found = Candidate { device, label: Some(label), uuid: new };
                return volume.handle_joined(member, found);
            }
            (Some(Attempt::Join(Expect::Anything | Expect::Unused)), _) => {
                let found = Candidate { device, label: None, uuid: new };
                return volume.handle_joined(member, found);
            }
            (Some(Attempt::Return), None) => {
                let reason = judged.err().map(|reason| reason.to_string()).unwrap_or_default();
                volume.handle_returned(member, &looks, Err(reason));
            }
            (Some(Attempt::Join(Expect::Former)), None) => volume.handle_not_joined(member),
            (None, _) => {}
        }
        let ios = self.sessions[member.as_usize()].stop(&mut context.around);
        assert!(ios.is_empty(), "commands are under way to a device that has no place");
        if is_made_anew {
            // What is refused now is asked for when it is found again.
            let _ = volume.handle_join(member, &address(member), Expect::Anything);
        }
    }

    /// The device that was looked for cannot be had.
    pub(super) fn end_attempt(&mut self, member: usize, reason: &str) {
        // It was a session that was parted with.
        if self.places[member].waits {
            return;
        }
        let looks = self.look_at_sessions();
        let Stage::Open(volume) = &mut self.stage else { return };
        match self.places[member].attempt.take() {
            Some(Attempt::Return) => {
                volume.handle_returned(index(member), &looks, Err(reason.to_owned()));
            }
            Some(Attempt::Join(_)) => volume.handle_not_joined(index(member)),
            None => {}
        }
    }

    /// The device that a session has found, as it is now.
    pub(super) fn device(&mut self, member: usize) -> Device {
        let cache_losses = self.sessions[member].cache_losses();
        self.places[member].losses_then = cache_losses;
        let MemberCaps { volatile_cache, can_discard } = self.fittings.caps[member];
        Device {
            address: address(index(member)),
            caps: array::MemberCaps { volatile_cache, can_discard },
            max_transfer_len: self.fittings.transfer_len,
            cache_losses,
        }
    }

    fn new_uuid(&mut self, member: usize) -> Uuid {
        self.new_uuids += 1;
        let mut uuid = [0xee; 16];
        uuid[..4].copy_from_slice(&self.id.0.to_le_bytes());
        uuid[4..12].copy_from_slice(&self.new_uuids.to_le_bytes());
        uuid[12] = narrow(member);
        uuid
    }
}
