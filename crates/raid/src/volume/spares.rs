//! Spares: devices that take the places of members that stay away, by themselves.
//!
//! A member that does not take part is waited for, since one that comes back has to be told only what it missed. One that
//! was set aside by command, or whose device fails, does not come back by itself: a spare takes its place at the next look.
//!
//! A spare must be unused, or have had the place before: an array that was attached while such a member was away knows its
//! address only as that of a spare. Both are tried in turns.
//!
//! Invariants: a spare is asked for as anybody would ask for a device by command ([`super::joining`]), one at a time, and
//! never while another device is on its way; and no member that takes part is ever replaced. A spare that was tried in both
//! ways is left alone for [`AGAIN_AFTER`]; why it does not take the place is told once.

use alloc::{format, string::String, vec::Vec};
use core::time::Duration;

use super::{Action, Event, Expect, JoinError, Look, Volume, joining::Joining, machine::Machine};
use crate::member::MemberIndex;

/// From one attempt with a spare that was not taken to the next one.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// From one attempt with any spare to the next one: members are looked for meanwhile.
const NEXT_AFTER: Duration = Duration::from_secs(5);

/// Devices that may take the places of members.
#[derive(Debug, Default)]
pub(super) struct Spares {
    after: Duration,
    /// In the order in which they are taken.
    free: Vec<Spare>,
    /// Since when each member does not take part.
    away_since: Vec<Option<Duration>>,
    /// The spare that was asked for, by its number.
    asked: Option<usize>,
    /// When one may be asked for again.
    not_before: Duration,
}

#[derive(Debug)]
struct Spare {
    number: usize,
    address: String,
    /// What it is to be at the next attempt.
    expect: Expect,
    /// When it is asked for at the earliest.
    not_before: Duration,
    /// It was not taken: when the next attempt may be is not known yet.
    is_refused: bool,
    /// Why it was not taken last.
    told: Option<String>,
}

impl Spares {
    /// Takes note of who takes part.
    fn note(&mut self, now: Duration, takes_part: impl Iterator<Item = bool>) {
        let before =
            core::mem::take(&mut self.away_since).into_iter().chain(core::iter::repeat(None));
        let since = |(takes_part, before): (bool, Option<Duration>)| {
            (!takes_part).then(|| before.unwrap_or(now))
        };
        self.away_since = takes_part.zip(before).map(since).collect();
        for spare in &mut self.free {
            if core::mem::take(&mut spare.is_refused) {
                spare.not_before = now + AGAIN_AFTER;
            }
        }
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// The devices at these addresses take the places of members that have been away for so long. They are known by their
    /// place in this list.
    pub fn set_spares(&mut self, after: Duration, addresses: Vec<String>) {
        let spare = |(number, address)| Spare {
            number,
            address,
            expect: Expect::Unused,
            not_before: Duration::ZERO,
            is_refused: false,
            told: None,
        };
        let free = addresses.into_iter().enumerate().map(spare).collect();
        self.spares = Spares { after, free, ..Spares::default() };
    }

    /// Where the spares are that have taken no place.
    pub fn spares(&self) -> impl Iterator<Item = &str> {
        let all = self.spares.free.iter().map(|spare| spare.address.as_str());
        all.filter(|address| !self.places.iter().any(|place| place.is_at(address)))
    }

    /// Asks for a spare, where a member has been away for long enough.
    pub(super) fn look_for_spare(&mut self, now: Duration, looks: &[Look]) {
        if self.spares.free.is_empty() {
            return;
        }
        let members = self.machine.geometry().member_indices();
        let takes_part: Vec<bool> = members
            .map(|member| self.state(member).is_live() || self.places[member.as_usize()].is_awaited)
            .collect();
        self.spares.note(now, takes_part.into_iter());
        // The labels that let a device take a place would meet members that are about to leave.
        let is_free = matches!(self.joining, Joining::Nobody) && now >= self.spares.not_before;
        if !is_free || !self.suspects(looks).is_empty() {
            return;
        }
        let is_due = |member: &MemberIndex| {
            let since = self.spares.away_since[member.as_usize()];
            let returns = self.places[member.as_usize()].returning.by_itself;
            since.is_some_and(|since| !returns || now >= since + self.spares.after)
        };
        let Some(member) = self.machine.geometry().member_indices().find(is_due) else { return };
        let is_free = |spare: &&Spare| {
            let is_elsewhere = !self.places.iter().any(|place| place.is_at(&spare.address));
            spare.not_before <= now && is_elsewhere
        };
        let Some(spare) = self.spares.free.iter().find(is_free) else { return };
        let (number, address, expect) = (spare.number, spare.address.clone(), spare.expect);
        if self.check_join(member, &address, expect).is_err() {
            return;
        }
        self.spares.not_before = now + NEXT_AFTER;
        self.spares.asked = Some(number);
        self.actions.push_back(Action::AskForSpare { number });
        self.begin_join(member, expect);
    }

    /// The member for which a spare waits is back itself.
    pub(super) fn let_spare_go(&mut self, member: MemberIndex) {
        let waits = matches!(self.joining, Joining::Asked { member: one, .. } if one == member);
        if waits && self.spares.asked.take().is_some() {
            self.answer_join(member, Err(JoinError::Serves(member)));
        }
    }

    /// What became of the spare that was asked for; `refusal` is why it did not take the member's place. Of a spare that
    /// is not wanted any more nothing is to be said.
    pub fn handle_spare(&mut self, member: MemberIndex, refusal: Option<String>) {
        let asked = self.spares.asked.take();
        let at = self.spares.free.iter().position(|spare| Some(spare.number) == asked);
        let Some(at) = at else { return };
        let Some(reason) = refusal else {
            let Spare { address, .. } = self.spares.free.remove(at);
            return self.tell(Event::Notice(format!(
                "spare {address} has taken the place of member {member}; give its address for that member when the array \
                 is attached again"
            )));
        };
        let spare = &mut self.spares.free[at];
        // It may have had the place before, and be away or back.
        let was_unused = spare.expect == Expect::Unused;
        spare.expect = if was_unused { Expect::Former } else { Expect::Unused };
        spare.is_refused = !was_unused;
        if was_unused && spare.told.as_ref() != Some(&reason) {
            let address = &spare.address;
            let text =
                format!("spare {address} does not take the place of member {member}: {reason}");
            spare.told = Some(reason);
            self.tell(Event::Notice(text));
        }
    }
}
