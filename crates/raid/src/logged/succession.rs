//! A new device gets everything that a member in sync has, while the member's own device goes on serving.
//!
//! From the beginning on the volume sends what the machine writes to the member to both devices ([`To::Both`]). What was
//! there before is copied as for a member that lacks everything ([`super::members`]), under the same locks: so no older
//! bytes come after newer ones. Blocks are read from the member, and computed from the others where that has them wrong.
//!
//! When everything is copied and stable, the copy is *whole*: the new device is as the member is. Then the member is excluded
//! as one that leaves, as soon as all others are in sync, and the new device takes the place as any other device does. What
//! it lacks then is what a member lacks that left at that moment.
//!
//! Invariants: the member is in sync until it leaves, and labels call no other device the member before stable labels exclude
//! it; only the very device that has a whole copy is spared the rebuild.
//!
//! Not here: which requests go to which of the two devices, and what the end of either means
//! (`crates/raid/src/volume/succession.rs`).

use alloc::format;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{
    Event, MemberCaps, NewDevice, To,
    locks::Purpose,
    members::{STRIPES_AT_ONCE, Walking},
    state::{Life, State},
    tasks::{Array, Change},
};
use crate::{
    array::CommandError,
    label::Uuid,
    lack::Lack,
    member::{MemberIndex, MemberSet, MemberState},
    stripes::{Walked, Walker},
};

/// A device that is to take the place of a member.
#[derive(Debug)]
pub(super) struct Succession {
    member: MemberIndex,
    /// No other one of this machine has it.
    number: u64,
    /// What the new device is to be called.
    uuid: Uuid,
    /// Of the member's device alone.
    caps: MemberCaps,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The device lacks something.
    Copying,
    /// It has everything, stable.
    Whole,
    /// It had when the member left, and gets nothing more until it has the place.
    Left,
}

/// The member has left, or the machine or the device: whoever saw that has told it.
struct Gone;

impl State {
    /// Begins to copy a member to another device; answers the copy's number.
    pub(super) fn begin_succession(
        &mut self,
        member: MemberIndex,
        device: NewDevice,
    ) -> Result<u64, CommandError> {
        if self.failed.is_some() || self.life != Life::Open {
            return Err(CommandError::NotWritable("not open"));
        }
        let state = self.member_state(member);
        assert!(state == MemberState::InSync, "member {member} is {}: no copy of it", state.name());
        if !self.takes_part(member) {
            return Err(CommandError::NotWritable("about to set the member aside"));
        }
        let is_over = self.succession.as_ref().is_none_or(|one| one.stage == Stage::Left);
        assert!(is_over, "two members are copied at once");
        self.successions += 1;
        let own = &mut self.members[member.as_usize()];
        let (number, stage, caps) = (self.successions, Stage::Copying, own.caps);
        // Flushed as both devices need it.
        own.caps.volatile_cache |= device.caps.volatile_cache;
        own.unflushed |= own.caps.volatile_cache;
        self.succession = Some(Succession { member, number, uuid: device.uuid, caps, stage });
        Ok(number)
    }

    /// The device that is to take a member's place is wanted no more: nothing more is copied, and the member is as before.
    pub(super) fn give_up_successor(&mut self, member: MemberIndex) {
        let Some(ended) = self.succession.take_if(|one| one.member == member) else { return };
        if ended.stage != Stage::Left {
            self.members[member.as_usize()].caps = ended.caps;
        }
        self.waiters.wake(Change::CatchUp);
        self.waiters.wake(Change::Labels);
    }

    /// A member leaves: nothing more is copied. A device with a whole copy lacks what the member lacks from now on.
    pub(super) fn leave_successor(&mut self, member: MemberIndex) {
        match &mut self.succession {
            Some(one) if one.member == member && one.stage == Stage::Whole => {
                one.stage = Stage::Left;
            }
            Some(_) | None => self.give_up_successor(member),
        }
    }

    /// What a device lacks that takes the place of a member that is not live.
    pub(super) fn lack_of_successor(&mut self, member: MemberIndex, uuid: Uuid) -> Lack {
        let ended = self.succession.take_if(|one| one.member == member);
        match ended {
            Some(one) if one.uuid == uuid && one.stage == Stage::Left => {
                self.label.members[member.as_usize()].lack
            }
            Some(_) | None => Lack::ALL,
        }
    }

    /// Whether this copy still goes on.
    pub(super) fn is_copying(&self, number: u64) -> bool {
        let is_it = |one: &Succession| one.number == number && one.stage != Stage::Left;
        let goes_on = self.succession.as_ref().is_some_and(is_it);
        goes_on && self.failed.is_none() && self.life == Life::Open
    }

    /// Whether a member may be excluded for a device that has a whole copy: all others are in sync, and do without it.
    fn may_be_succeeded(&self, member: MemberIndex) -> bool {
        let mut others: MemberSet = self.layout.geometry.member_indices().collect();
        others.remove(member);
        let in_sync = self.in_sync();
        others.iter().all(|other| in_sync.contains(other)) && self.can_go_on_without(member)
    }

    /// How far the copy of a member is, until the member leaves.
    pub(super) fn copied(&self) -> Option<(MemberIndex, Walked)> {
        let one = self.succession.as_ref().filter(|one| one.stage != Stage::Left)?;
        let walked = self.stripes.walked(Walker::Copy(one.number));
        Some((one.member, walked.unwrap_or_default()))
    }
}

impl Array {
    /// Copies a member to the device that is to take its place, and excludes the member then.
    pub(super) async fn member_succeeded(self, member: MemberIndex, number: u64) {
        // What began before the device was written to may not have written to it, and may not show yet.
        self.wait_for_operations().await;
        // Until the member leaves: how far the copy is shows so long.
        let walking = self.begin_walk(Walker::Copy(number), Lack::ALL, 0);
        if self.copy_member(&walking, member, number).await.is_ok() {
            self.exclude_for_successor(member, number).await;
        }
    }

    /// Gives the device everything that was there before it was written to, stable.
    async fn copy_member(
        &self,
        walking: &Walking,
        member: MemberIndex,
        number: u64,
    ) -> Result<(), Gone> {
        let is_still = |state: &State| state.is_copying(number);
        if !is_still(&self.state()) {
            return Err(Gone);
        }
        let lock = self.lock_tables().await;
        self.give_checkpoint(member, To::Successor(number)).await;
        drop(lock);
        self.copy_stripes(walking, member, number).await?;
        self.copy_tables(walking, (member, To::Successor(number)), is_still).await;
        let since = self.state().writer().link().end;
        while is_still(&self.state()) && self.state().writer().tail() < since {
            self.next_round().await;
        }
        self.flush().await;
        let mut state = self.state();
        if !is_still(&state) {
            return Err(Gone);
        }
        let Some(one) = &mut state.succession else { return Err(Gone) };
        one.stage = Stage::Whole;
        Ok(())
    }

    /// Excludes a member whose copy is whole, as soon as the array is not left with less than it can do without.
    async fn exclude_for_successor(&self, member: MemberIndex, number: u64) {
        let mut has_told = false;
        loop {
            let may = self.until(Change::Labels, |state| {
                if !state.is_copying(number) {
                    return Some(false);
                }
                let may = state.may_be_succeeded(member);
                if !may && !core::mem::replace(&mut has_told, true) {
                    let text = format!(
                        "the copy of member {member} is whole: it takes the place when all other members are in sync"
                    );
                    state.events.push_back(Event::Notice(text));
                }
                may.then_some(true)
            });
            if !may.await {
                return;
            }
            // The device shows that it is there still: nobody may have written anything for long.
            let lock = self.lock_tables().await;
            self.give_checkpoint(member, To::Successor(number)).await;
            drop(lock);
            let mut state = self.state();
            if state.is_copying(number) && state.may_be_succeeded(member) {
                return state.member_gone(member, "its copy is whole, and takes its place");
            }
        }
    }

    /// Copies all stripes that hold anything, as fast as members may catch up.
    async fn copy_stripes(
        &self,
        walking: &Walking,
        member: MemberIndex,
        number: u64,
    ) -> Result<(), Gone> {
        let is_still = |state: &State| state.is_copying(number);
        let physical = self.state().layout.physical;
        let mut next = 0;
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < STRIPES_AT_ONCE
                && is_still(&self.state())
                && let Some(stripe) = walking.next_stripe(&Lack::ALL, &mut next, physical)
            {
                under_way.push(self.copy_stripe((member, To::Successor(number)), stripe));
            }
            // Also when the copy has ended: what is under way keeps its stripe until it has ended.
            if under_way.next().await.is_some() {
                walking.note_stripe();
                continue;
            }
            if !is_still(&self.state()) {
                return Err(Gone);
            }
            if next >= physical {
                return Ok(());
            }
            self.catch_up_allowed(is_still).await;
        }
    }

    /// Copies what a member has of a stripe. Its blocks are right; those that nobody has right are told as lost, and left as
    /// they are on the device.
    async fn copy_stripe(&self, (member, to): (MemberIndex, To), physical: u32) {
        let Some(logical) = self.state().stripes.entry(physical).logical else { return };
        let _lock = self.lock(logical, Purpose::Home).await;
        let column = {
            let state = self.state();
            if state.stripes.find(logical) != Some(physical) {
                return;
            }
            state.layout.geometry.column_of(u64::from(physical), member)
        };
        let _pin = self.pin(physical);
        let _sums = self.sums(physical).await;
        let runs = self.state().known_runs(physical);
        for run in runs {
            self.give_run((member, to), (physical, column), run).await;
        }
    }
}
