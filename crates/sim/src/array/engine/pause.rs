//! An engine whose volume pauses: its sessions end at once, and the array is opened anew of what is found by then, by the
//! steps of the product and without an administrator's word.

use core::time::Duration;

use netraid_raid::{
    member::{MemberIndex, MemberSet, MemberState},
    opening::{Continues, OpenError},
    volume::{Found as FoundPlace, NotReopened, Reopened},
};

use super::{Context, Engine, Notice, Stage, address, index};
use crate::{
    array::{
        machine::Machine,
        opened::{self, FoundDevice, Opened, Refusal},
    },
    time::Time,
};

/// How long members are looked for by one attempt.
const LOOK_FOR: Duration = Duration::from_millis(20);

/// Members are looked for.
#[derive(Debug)]
pub(super) struct Reopening {
    until: Time,
    /// By member.
    found: Vec<Option<FoundDevice>>,
    /// Has not answered yet.
    is_awaited: Vec<bool>,
}

impl Reopening {
    pub(super) const fn until(&self) -> Time {
        self.until
    }

    pub(super) fn find(&mut self, member: usize, found: FoundDevice) {
        (self.found[member], self.is_awaited[member]) = (Some(found), false);
    }

    pub(super) fn lose(&mut self, member: usize) {
        (self.found[member], self.is_awaited[member]) = (None, false);
    }
}

impl<M: Machine> Engine<M> {
    /// Whether users' requests wait for members.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether acknowledged bytes are lost that were not written anew.
    #[must_use]
    pub fn lacks_bytes(&self) -> bool {
        match &self.stage {
            Stage::Open(volume) => volume.lost().next().is_some(),
            Stage::Opening { .. } | Stage::Asking { .. } | Stage::Over => false,
        }
    }

    /// The sessions to a member end at once.
    pub(super) fn cut(&mut self, context: &mut Context<'_>, member: MemberIndex) {
        let at = member.as_usize();
        let ios = self.sessions[at].stop(&mut context.around);
        self.end_all(ios);
        self.end_lingering(member);
        self.places[at].has = false;
    }

    /// Looks for all members but these.
    pub(super) fn open_anew(&mut self, context: &mut Context<'_>, but: MemberSet) {
        let members = self.sessions.len();
        context
            .trace
            .note(context.around.now, || format!("engine {}: opens the array anew", self.id.0));
        let is_awaited: Vec<bool> = (0..members).map(|at| !but.contains(index(at))).collect();
        for (session, is_awaited) in self.sessions.iter_mut().zip(&is_awaited) {
            if *is_awaited {
                session.look(&mut context.around);
            }
        }
        let until = context.around.now.after(LOOK_FOR);
        let found = vec![None; members];
        self.reopening = Some(Reopening { until, found, is_awaited });
    }

    /// Opens the array of what was found, once everybody has answered, or has had time to.
    pub(super) fn try_to_open_anew(&mut self, context: &mut Context<'_>) {
        let Some(Reopening { until, is_awaited, .. }) = &self.reopening else { return };
        if is_awaited.contains(&true) && context.around.now < *until {
            return;
        }
        let Some(Reopening { found, .. }) = self.reopening.take() else { return };
        let (this, Some(machine)) = (self.holder(), self.machine()) else { return };
        let known = Continues::of(&machine.stable_label());
        let end = match opened::open_anew(&found, (this, known), &self.fittings) {
            Ok(opened) => self.take_opened(context, opened),
            Err(refusal) => {
                let is_final = matches!(refusal, Refusal::TakenOver { .. });
                Err(NotReopened { reason: describe(&refusal), is_final })
            }
        };
        if let Err(refused) = &end {
            context.trace.note(context.around.now, || {
                format!("engine {}: cannot go on: {}", self.id.0, refused.reason)
            });
            for session in &mut self.sessions {
                let ios = session.stop(&mut context.around);
                assert!(ios.is_empty(), "commands are under way before the array is open");
            }
            self.places.iter_mut().for_each(|place| place.has = false);
        }
        let time = self.time(context);
        let Stage::Open(volume) = &mut self.stage else { return };
        volume.handle_reopened(time, end);
    }

    fn take_opened(
        &mut self,
        context: &mut Context<'_>,
        opened: Opened,
    ) -> Result<Reopened<M>, NotReopened> {
        let Opened { machine, places, liars, .. } = opened;
        for (at, place) in places.iter().enumerate() {
            self.places[at].was_found = place.is_some();
            if place.is_some() {
                self.take_place(at);
            } else {
                let ios = self.sessions[at].stop(&mut context.around);
                assert!(ios.is_empty(), "commands are under way before the array is open");
            }
        }
        context.trace.note(context.around.now, || {
            let there: Vec<bool> = self.places.iter().map(|place| place.has).collect();
            format!("engine {}: goes on with members {there:?}", self.id.0)
        });
        let is_liar = |at: usize| liars.iter().any(|(member, _)| *member == index(at));
        let place = |at: usize| match (self.places[at].has, is_liar(at)) {
            (true, _) => FoundPlace::Device(self.device(at)),
            (false, true) => FoundPlace::Liar(address(index(at))),
            (false, false) => FoundPlace::Nobody(Some(address(index(at)))),
        };
        let found = (0..places.len()).map(place).collect();
        match M::take(machine, &places) {
            Ok(machine) => Ok(Reopened { machine, places: found }),
            Err(error) => Err(NotReopened { reason: error.to_string(), is_final: false }),
        }
    }

    /// Takes note of a pause that has begun or ended.
    pub(super) fn note_pause(&mut self, context: &mut Context<'_>) {
        let Stage::Open(volume) = &self.stage else { return };
        let is_paused = volume.is_paused();
        if core::mem::replace(&mut self.is_paused, is_paused) == is_paused {
            return;
        }
        if is_paused {
            self.places.iter_mut().for_each(|place| place.in_sync = false);
            context.notices.push_back((self.id, Notice::Paused));
        } else if volume.machine().failure().is_none() {
            let lost = volume.lost().collect();
            for (at, entry) in volume.machine().label().members.into_iter().enumerate() {
                let is_here = self.places[at].has;
                self.places[at].in_sync = is_here && entry.state == MemberState::InSync;
            }
            context.notices.push_back((self.id, Notice::Resumed(lost)));
        }
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what is told most is told in words")]
fn describe(refusal: &Refusal) -> String {
    match refusal {
        OpenError::Assemble(reason) => reason.to_string(),
        _ => format!("{refusal:?}"),
    }
}
