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
    member::{MemberIndex, MemberState},
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
    /// What stable labels say.
    pub(super) stable: Option<Label>,
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

    /// Begins to exclude a member; false when the array fails by it.
    pub(super) fn exclude(&mut self, member: MemberIndex, reason: &str) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let mut rest = self.in_sync();
        rest.remove(member);
        if !self.can_serve_from(rest) {
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
        entry.state = MemberState::Faulty;
        self.log.joining.remove(member);
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
            for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
                let writes = targets.iter().map(|member| {
                    let label = Label { index: member, ..label.clone() };
                    let data = Buf::copy_from(&label.encode(copy)).into();
                    self.write_label(member, offset, data)
                });
                for end in join_all(writes).await {
                    whole &= end.is_ok();
                }
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
            state.labels.stable = Some(label);
            state.excluded(&leaving);
            state.waiters.wake(Change::Labels);
        }
    }
}
