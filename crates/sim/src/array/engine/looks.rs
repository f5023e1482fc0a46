//! What the volume of an engine sees of the sessions to its members, and when.

use core::time::Duration;

use netraid_raid::{
    member::MemberSet,
    volume::{Look, Report},
};

use super::{Context, Engine, Place, Stage, index};
use crate::array::{machine::Machine, session::Session};

/// From one look of the volume at its members to the next one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a request may take, in the volume's time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl<M: Machine> Engine<M> {
    /// Whether the volume has seen that a member has lost its cache as often as it has, and could have set it aside.
    #[must_use]
    pub fn has_seen_losses(&self, member: usize, power_failures: u64) -> bool {
        let session = &self.sessions[member];
        session.is_ready()
            && session.power_failures() == power_failures
            && session.cache_losses() == self.places[member].losses_shown
    }

    /// Looks at the members when the volume is to.
    pub(super) fn look(&mut self, context: &mut Context<'_>) {
        let time = self.time(context);
        let looks = self.look_at_sessions();
        let Stage::Open(volume) = &mut self.stage else { return };
        if volume.next_timeout() > time {
            return;
        }
        let is_look = self.look_at <= time;
        if is_look {
            self.look_at = time + LOOK_EVERY;
            self.note_what_is_shown();
        }
        let Stage::Open(volume) = &mut self.stage else { return };
        volume.handle_timeout(time, &looks);
        if is_look {
            self.looks += 1;
            for session in &mut self.sessions {
                session.ping(&mut context.around);
            }
            self.administer();
        }
    }

    /// Takes note of the lost caches that the volume sees at a look, where it is to do something about them: all its
    /// members are there, and it can do without those that have lost theirs.
    fn note_what_is_shown(&mut self) {
        let Stage::Open(volume) = &self.stage else { return };
        let machine = volume.machine();
        let mut places = self.places.iter().zip(&self.sessions);
        let all_are_there = places.all(|(place, session)| !place.has || session.is_ready());
        let has_lost = |at: &usize| {
            let place = &self.places[*at];
            place.has && self.sessions[*at].cache_losses() != place.losses_then
        };
        let lost: MemberSet = (0..self.places.len()).filter(has_lost).map(index).collect();
        if self.is_recovered && all_are_there && machine.can_lose_all(lost) {
            for (place, session) in self.places.iter_mut().zip(&self.sessions) {
                place.losses_shown = session.cache_losses();
            }
        }
    }

    /// What there is to see in the members' places now.
    pub(super) fn look_at_sessions(&self) -> Vec<Look> {
        let places = self.places.iter().zip(&self.sessions);
        let report = |session: &Session| Report {
            is_fenced: session.is_fenced(),
            is_connected: session.is_ready(),
            is_gone: false,
            signs: session.signs(),
            cache_losses: session.cache_losses(),
            reconnects: 0,
            request_timeout: REQUEST_TIMEOUT,
            failure: "the connection is lost".into(),
        };
        let look = |(place, session): (&Place, &Session)| Look {
            report: place.has.then(|| report(session)),
            is_leaving: session.is_leaving(),
        };
        places.map(look).collect()
    }
}
