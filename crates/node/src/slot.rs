//! The place of a command, with what it has there.

use netraid_block::{BufMut, SgList};
use netraid_planted::{Planted, planted};
use netraid_scsi::{MediumRequest, Task, cdb::CommandKind};

use crate::outside::{Counted, Guest, Lun, Needs, Outside, Pacing};

/// The place of a command.
pub(crate) struct Slot<L> {
    pub(crate) stage: Stage<L>,
    pub(crate) lun: Option<L>,
    pub(crate) kind: CommandKind,
    /// What it takes that its session may lose.
    pub(crate) needs: Needs,
    /// It counts among those at the device of its LUN.
    pub(crate) has_entered: bool,
    pub(crate) share: Share,
    pub(crate) data_out_len: usize,
    pub(crate) data_out: Option<BufMut>,
}

/// How far a command is.
pub(crate) enum Stage<L> {
    /// It is nobody's.
    Free,
    /// The logical unit has it.
    Begun(Task, At<L>),
    /// It was answered, with these bytes.
    Answered(SgList),
}

/// Where a command is that has begun.
pub(crate) enum At<L> {
    /// It waits for the machine's word: the first request goes then. Where that waited for memory, what was decided when
    /// the command came may not hold any more.
    Request { request: MediumRequest, is_kept_back: bool },
    /// The same: it waits for its logical unit then.
    Background,
    /// The same: its data goes to the logical unit then.
    Data,
    /// A request is at the device of its LUN. It moved the end of what is written from here to there.
    Device { appended: Option<(u64, u64)> },
    /// A request of a copy is at the device of this LUN.
    Other { lun: L, appended: Option<(u64, u64)> },
    /// The reservations of its LUN are being stored.
    Store,
    /// It waits for the background work of its LUN.
    Waiting,
    /// It waits for the commands of nexuses that it preempted.
    Preempting,
    /// The logical unit decides.
    Unit,
}

/// What a command has of a pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Nothing,
    /// It waits for the grant of this number.
    Asked(u32),
    /// It has a place among the requests in flight.
    Placed,
}

impl<L> Default for Slot<L> {
    fn default() -> Self {
        Self {
            stage: Stage::Free,
            lun: None,
            kind: CommandKind::Other,
            needs: Needs::Nothing,
            has_entered: false,
            share: Share::Nothing,
            data_out_len: 0,
            data_out: None,
        }
    }
}

impl<L: Lun> Slot<L> {
    pub(crate) fn is_guarded(&self) -> bool {
        self.lun.as_ref().is_some_and(Lun::is_guarded)
    }

    /// The command goes to the device of its LUN; whether it was there before.
    #[inline]
    pub(crate) fn enter<O: Outside<Lun = L>>(&mut self, outside: &O) -> bool {
        let began = self.has_entered;
        if let Some(lun) = self.lun.as_ref().filter(|_| !began) {
            self.has_entered = true;
            lun.enter();
            if let Some(guest) = counted(outside) {
                guest.enter();
            }
        }
        began
    }

    /// The command is not at the device of its LUN any more.
    pub(crate) fn leave<O: Outside<Lun = L>>(&mut self, outside: &O) {
        if core::mem::take(&mut self.has_entered) {
            if let Some(lun) = &self.lun {
                lun.leave();
            }
            if let Some(guest) = counted(outside) {
                guest.leave();
            }
        }
    }

    /// The command is not among the requests in flight any more.
    pub(crate) fn give_place_back<O: Outside<Lun = L>>(&mut self, outside: &O) {
        if self.share == Share::Placed {
            self.share = Share::Nothing;
            if let Some(pacing) = outside.pacing() {
                pacing.done();
            }
        }
    }

    pub(crate) fn count<O: Outside<Lun = L>>(
        &self,
        outside: &O,
        status: netraid_scsi::Status,
        read: u64,
    ) {
        let written = self.data_out_len as u64;
        outside.count(self.lun.as_ref(), Counted { kind: self.kind, status, read, written });
    }

    /// The logical unit gets the task back of a command that is not answered.
    #[cold]
    fn abort<O: Outside<Lun = L>>(&mut self, outside: &O) {
        let stage = core::mem::replace(&mut self.stage, Stage::Free);
        let Stage::Begun(task, at) = stage else { return };
        outside.units().handle_abort(task);
        outside.count_aborted(self.lun.as_ref());
        if let At::Other { lun, .. } = at {
            leave_other(outside, &lun);
        }
    }

    /// Nothing more is wanted of the command.
    pub(crate) fn clear<O: Outside<Lun = L>>(&mut self, outside: &O) {
        if matches!(self.stage, Stage::Begun(..)) {
            self.abort(outside);
        }
        self.leave(outside);
        self.give_place_back(outside);
        if let (Share::Asked(number), Some(pacing)) = (self.share, outside.pacing()) {
            pacing.withdraw(number);
        }
        *self = Self::default();
    }
}

/// The guest whose commands at the device are counted.
fn counted<O: Outside>(outside: &O) -> Option<&O::Guest> {
    outside.guest().filter(|_| !planted(Planted::GuestUncounted))
}

/// A copy goes to the device of another LUN.
pub(crate) fn enter_other<O: Outside>(outside: &O, lun: &O::Lun) {
    lun.enter();
    if let Some(guest) = outside.guest() {
        guest.enter();
    }
}

/// A copy has left the device of another LUN.
pub(crate) fn leave_other<O: Outside>(outside: &O, lun: &O::Lun) {
    lun.leave();
    if let Some(guest) = outside.guest() {
        guest.leave();
    }
}
