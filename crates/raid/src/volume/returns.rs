//! Members of an array with a log that were away come back by themselves: their devices are looked for again at a
//! bounded pace, and what they missed is written to them.
//!
//! Invariant: a member is handed to the machine when a new session has ended all that was under way
//! on its old one, when it is fenced, and when its label says that it is that member and did not go
//! on without the others; all of this is proven by [`Action::LookFor`].

use alloc::{format, string::String};

use super::{Action, Candidate, Event, Life, Look, Volume, machine::Machine};
use crate::{
    member::{MemberIndex, MemberState},
    planted::{Planted, planted},
};

impl<M: Machine, U> Volume<M, U> {
    /// Looks for members that are away and come back by themselves.
    pub(super) fn begin_returns(&mut self, looks: &[Look]) {
        // A member that comes back is written to, and so are all others: an array of which one more is away
        // could fail by that. And a device that is on its way may be the one that is looked for.
        let all_there =
            self.suspects(looks).is_empty() || planted(Planted::TakenBackWhileOthersAreAway);
        if self.joining.is_under_way() || !all_there {
            return;
        }
        for member in self.machine.geometry().member_indices() {
            let is_live = self.state(member).is_live();
            let is_joining = self.is_coming(member);
            let place = &mut self.places[member.as_usize()];
            let is_leaving = looks[member.as_usize()].is_leaving
                && !planted(Planted::ReturnBesideLeavingSession);
            let is_away = !is_live && place.device.is_none() && !is_joining && !is_leaving;
            let returning = &mut place.returning;
            if !is_away || !returning.by_itself || returning.attempt.is_some() {
                continue;
            }
            if returning.wait > 0 {
                returning.wait -= 1;
                continue;
            }
            // The label of a device that has got another place may not say so yet.
            let Some(address) = place.address.clone() else { continue };
            if self.other_place_of(&address, member).is_some() {
                continue;
            }
            let place = &mut self.places[member.as_usize()];
            place.returning.attempt = Some(place.number);
            self.actions.push_back(Action::LookFor(member));
        }
    }

    /// What came of [`Action::LookFor`]: the member's device is back, with its label where the array has a log; or
    /// why it could not be reached. `looks` is what there is to see in the members' places now.
    pub fn handle_returned(
        &mut self,
        member: MemberIndex,
        looks: &[Look],
        end: Result<Candidate, String>,
    ) {
        let is_live = self.state(member).is_live();
        let all_there =
            self.suspects(looks).is_empty() || planted(Planted::TakenBackWhileOthersAreAway);
        if end.is_ok() && !is_live {
            self.let_spare_go(member);
        }
        let is_joining = self.is_coming(member);
        let place = &mut self.places[member.as_usize()];
        let began = place.returning.attempt.take();
        assert!(began.is_some(), "nobody looked for member {member}");
        let is_wanted = began == Some(place.number) && place.returning.by_itself && !is_joining;
        let is_wanted = is_wanted && self.machine.failure().is_none();
        let refusal = match end {
            Ok(found) if is_wanted && !is_live && self.life == Life::Open && all_there => {
                let taken = self.take(member, found);
                taken.err().map(|error| format!("its device is not taken: {error}"))
            }
            Ok(_) => {
                self.actions.push_back(Action::LetGo(member));
                None
            }
            Err(reason) => Some(reason),
        };
        // The same reason is told once.
        if let Some(reason) = refusal {
            let told = &mut self.places[member.as_usize()].returning.told;
            if told.as_ref() != Some(&reason) {
                *told = Some(reason.clone());
                self.tell(Event::NotBack { member, reason });
            }
        }
        self.end_wait_for_returns();
    }

    /// Whether a member's device is looked for.
    pub(super) fn some_return(&self) -> bool {
        self.places.iter().any(|place| place.returning.attempt.is_some())
    }

    /// Whether a member's state lets another device take its place.
    pub(super) fn state(&self, member: MemberIndex) -> MemberState {
        self.machine.member_state(member)
    }
}
