//! Labels: who takes part. One update at a time: copy 0 on every live member, with FUA, and then
//! copy 1.
//!
//! Invariant: a member that failed counts as gone, for writers, flushes and the log, when labels
//! that say so are stable on all others, and not before.

use alloc::vec::Vec;

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind};

use super::{
    Rule,
    state::State,
    tasks::{Array, Change},
};
use crate::{
    label::Label,
    lack::Lack,
    member::{MemberIndex, MemberSet, MemberState},
    planted::{Planted, planted},
    regions::LABEL_OFFSETS,
};

#[derive(Debug, Default)]
pub(super) struct LabelUpdates {
    /// Number of the last update that was asked for.
    asked: u64,
    /// Number of the last one that is stable.
    done: u64,
    /// No member that takes part is more than one update behind: the next may be written.
    pub(super) level: bool,
    /// Who is in sync, says the label that is being written.
    under_way: Option<MemberSet>,
    /// What stable labels say.
    pub(super) stable: Option<Label>,
    /// The members that were given those. One that is back since gets the next ones.
    pub(super) given: MemberSet,
}

impl LabelUpdates {
    /// The number of the last update, when none is under way.
    pub(super) fn quiet(&self) -> Option<u64> {
        (self.asked == self.done).then_some(self.done)
    }
}

impl State {
    /// Asks for the labels to be written as they are now; answers when [`LabelUpdates::done`].
    pub(super) fn ask_for_labels(&mut self) -> u64 {
        self.labels.asked += 1;
        self.waiters.wake(Change::Labels);
        self.labels.asked
    }

    /// Whether the array can serve without a member, and will not be taken for what it was by whoever
    /// finds that one and not the others.
    ///
    /// Who opens an array refuses when others that its newest label calls in sync could carry it alone.
    /// So one that left must have heard of those that go on, where it could carry the array: of one
    /// that has just caught up it may not have.
    pub(super) fn can_go_on_without(&self, member: MemberIndex) -> bool {
        self.can_go_on_without_all([member].into_iter().collect())
    }

    /// The same for several members that leave together.
    pub(super) fn can_go_on_without_all(&self, members: MemberSet) -> bool {
        let mut rest = self.in_sync();
        members.iter().for_each(|member| rest.remove(member));
        let leaves =
            |one: &MemberIndex| members.contains(*one) || self.members[one.as_usize()].leaving;
        let gone = self.layout.geometry.member_indices().filter(leaves);
        let told = gone.map(|one| self.members[one.as_usize()].told);
        let is_safe = |told: MemberSet| {
            let (mut go_on, mut left) = (told, told);
            told.iter().for_each(|one| match rest.contains(one) {
                true => left.remove(one),
                false => go_on.remove(one),
            });
            self.can_serve_from(go_on) || !self.can_serve_from(left)
        };
        // A label that is under way may have come to them, or not.
        self.can_serve_from(rest) && told.chain(self.labels.under_way).all(is_safe)
    }

    /// Begins to exclude a member; false when the array fails by it.
    pub(super) fn exclude(&mut self, member: MemberIndex, reason: &str) -> bool {
        if self.failed.is_some() {
            return false;
        }
        if !self.can_go_on_without(member) {
            self.fail_without(member, reason);
            return false;
        }
        let at = member.as_usize();
        let round = if planted(Planted::PowerCycleIgnored) {
            self.round += 1;
            self.round - 1
        } else {
            self.checkpoint.round
        };
        let stable = self.labels.stable.as_ref().map_or(Lack::ALL, |label| label.members[at].lack);
        let entry = &mut self.label.members[at];
        entry.lack = match entry.state {
            MemberState::InSync => Lack::since(round),
            MemberState::CatchingUp | MemberState::Faulty | MemberState::Missing => {
                stable.leave_again(round)
            }
        };
        entry.state.change(MemberState::Faulty);
        self.log.joining.remove(member);
        self.leave_successor(member);
        self.members[at].leaving = true;
        self.members[at].incarnation += 1;
        self.members[at].unflushed = false;
        self.tell_member(member, reason);
        self.ask_for_labels();
        if planted(Planted::AckBeforeLabels) {
            self.log_member_gone(member);
        }
        // Who waits for what it has to do with that member looks again.
        self.waiters.wake(Change::Operations);
        true
    }

    /// Stable labels exclude these members: nobody waits for them any more.
    fn excluded(&mut self, members: &[MemberIndex]) {
        for member in members {
            self.members[member.as_usize()].leaving = false;
            self.log_member_gone(*member);
            for wait in core::mem::take(&mut self.members[member.as_usize()].deferred) {
                self.settle(wait, Ok(netraid_block::SgList::new()));
            }
        }
    }
}

impl Array {
    /// Changes the labels and waits until all live members have them, stable.
    pub(super) async fn update_labels(&self, change: impl FnOnce(&mut Label)) {
        let number = {
            let mut state = self.state();
            change(&mut state.label);
            state.ask_for_labels()
        };
        self.until(Change::Labels, |state| (state.labels.done >= number).then_some(())).await;
    }

    /// Writes one copy of the labels; answers whether all have it.
    pub(super) async fn write_labels_once(
        &self,
        label: &Label,
        copy: usize,
        targets: MemberSet,
    ) -> bool {
        let told = label.in_sync();
        self.state().labels.under_way = Some(told);
        let writes = targets.iter().map(|member| async move {
            let label = Label { index: member, ..label.clone() };
            let data = Buf::copy_from(&label.encode(copy)).into();
            let end = self.write_label(member, LABEL_OFFSETS[copy], data).await;
            if end.is_ok() {
                self.state().members[member.as_usize()].told = told;
            }
            end.is_ok()
        });
        let ends = join_all(writes).await;
        self.state().labels.under_way = None;
        ends.into_iter().all(|is_there| is_there)
    }

    /// Writes labels for as long as the array is open.
    pub(super) async fn write_labels(self) {
        self.until(Change::Labels, |state| state.labels.level.then_some(())).await;
        loop {
            let asked = |state: &mut State| (state.labels.asked > state.labels.done).then_some(());
            self.until(Change::Labels, asked).await;
            let (number, label, targets, leaving) = {
                let mut state = self.state();
                state.label.epoch += 1;
                let leaving: Vec<MemberIndex> = state
                    .layout
                    .geometry
                    .member_indices()
                    .filter(|one| state.members[one.as_usize()].leaving)
                    .collect();
                (state.labels.asked, state.label.clone(), state.live(), leaving)
            };
            let mut whole = true;
            for copy in 0..LABEL_OFFSETS.len() {
                whole &= self.write_labels_once(&label, copy, targets).await;
            }
            if !whole {
                // Somebody failed meanwhile: that is to be in the labels too.
                let mut state = self.state();
                if state.labels.asked == number {
                    let text = "a label could not be written and no member failed";
                    state.fail(netraid_block::IoError::with_detail(ErrorKind::Device, text));
                    return;
                }
                state.rules.note(Rule::LabelsAgain);
                continue;
            }
            let mut state = self.state();
            state.labels.done = number;
            (state.labels.stable, state.labels.given) = (Some(label), targets);
            state.excluded(&leaving);
            state.waiters.wake(Change::Labels);
        }
    }
}
