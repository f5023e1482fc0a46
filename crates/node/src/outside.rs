//! What a service reaches beyond its connection: what it shares with others, and what is done for it.

use alloc::{string::String, vec::Vec};
use core::ops::DerefMut;

use netraid_block::Op;
use netraid_control::derived::Pieces;
use netraid_iscsi_proto::{
    chap::Algorithm,
    machine::TaskId,
    negotiation::SessionType,
    target::{Claim, ConnectionId, Node, Standing},
};
use netraid_planted::{Planted, planted};
use netraid_scsi::{MediumRequest, Refusal, Status, TargetDevice, View, cdb::CommandKind};

use crate::policy::Access;

/// What a service reaches. Several threads may share what is behind it: nothing of it is held while a shell waits.
///
/// What is submitted, stored or waited for ends by [`crate::Service::handle_completed`] with the same task, once, and not
/// before the call has returned.
pub trait Outside {
    /// A LUN as this connection holds it.
    type Lun: Lun;
    /// What a token let the session in to.
    type Guest: Guest;
    /// The session's share of what the target can do.
    type Pacing: Pacing;

    /// The logical units of the session's realm.
    fn units(&self) -> impl DerefMut<Target = TargetDevice>;

    /// The same, and with them the LUN of this number: it is that of the unit as long as the units are held.
    fn units_and_lun(
        &mut self,
        number: Option<u16>,
    ) -> (impl DerefMut<Target = TargetDevice>, Option<Self::Lun>);

    /// The LUN of this number.
    fn lun(&self, number: u16) -> Option<Self::Lun>;

    /// Whether this LUN is the one that has its number; asked while the units are held.
    fn is_current(&self, lun: &Self::Lun) -> bool;

    /// All connections of the target.
    fn node(&self) -> impl DerefMut<Target = Node>;

    /// Wakes the connections for which the node has something; they call [`crate::Service::handle_wake`].
    fn wake_others(&self);

    /// What a token let the session in to; none where it was let in otherwise.
    fn guest(&self) -> Option<&Self::Guest>;

    /// The session's share, where the target has a pace.
    fn pacing(&self) -> Option<&Self::Pacing>;

    /// The initiator's name; empty before the login.
    fn initiator(&self) -> &str;

    /// Submits a request to the device of a LUN. Without LUN or device it ends as aborted.
    fn submit(
        &mut self,
        task: TaskId,
        lun: Option<&Self::Lun>,
        request: MediumRequest,
        place: &Place,
    );

    /// Stores the reservations of a LUN; ends when they are stable, or could not be stored. `lun` is none where they must
    /// not be stored: then it ends as aborted.
    fn store(&mut self, task: TaskId, lun: Option<&Self::Lun>, bytes: Vec<u8>);

    /// Waits for the background work of a LUN.
    fn wait(&mut self, task: TaskId, lun: Option<&Self::Lun>);

    /// Nobody waits for that any more: the wait ends.
    fn abandon(&mut self, task: TaskId, lun: u16);

    /// Counts a command that was answered.
    fn count(&self, lun: Option<&Self::Lun>, counted: Counted);

    /// Counts a command that got no answer.
    fn count_aborted(&self, lun: Option<&Self::Lun>);

    /// Judges who gave a name and a proof. Where the answer is known later, the connection is woken.
    fn judge(&mut self, claim: &Claim<'_>) -> Entry;

    /// What came of a judgement that was to be known later.
    fn poll_entry(&mut self) -> Entry;

    /// Why the judgement refused who has proven itself, to be told; nothing of anybody else.
    fn take_denial(&mut self) -> Option<String> {
        None
    }

    /// The session has logged in.
    fn log_in(&mut self, login: LoggedIn);

    /// The session has ended, and none of its commands runs any more: the target forgets it.
    fn leave(&mut self);
}

/// Whether a login goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It is known later.
    Later,
    /// It is refused.
    Refused,
    /// The host has run out of what it takes.
    Exhausted,
    /// It does, as this.
    Granted(Standing),
}

/// A session that has logged in.
#[derive(Debug, Clone)]
pub struct LoggedIn {
    /// The initiator's name, in lower case.
    pub initiator: String,
    /// Kind of session.
    pub session: SessionType,
    /// The CHAP digest by which the initiator proved itself; none when it did not have to.
    pub chap: Option<Algorithm>,
}

/// A LUN of a target.
pub trait Lun: Clone {
    /// Its number.
    fn number(&self) -> u16;
    /// Tells apart what had one number at different times; never 0.
    fn incarnation(&self) -> u64;
    /// Whether [`Self::refusal`] has to be asked.
    fn is_guarded(&self) -> bool;
    /// Why this access must not happen, if so, by gate and policy: see [`crate::Gatehouse::bars`].
    fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal>;
    /// Whether it is being taken away.
    fn is_leaving(&self) -> bool;
    /// A command goes to the device.
    fn enter(&self);
    /// It has left.
    fn leave(&self);
    /// Notes that a session uses the medium.
    fn add_user(&self, session: ConnectionId);
}

/// What a token let a session in to: its grant, asked at each request.
pub trait Guest {
    /// Whether a command may be carried out that is no request to the device, but takes a right.
    ///
    /// # Errors
    /// When the grant does not allow it now.
    fn may(&self, needs: Needs) -> Result<(), Barred>;

    /// Whether a request that may come later would be allowed.
    ///
    /// # Errors
    /// When the grant does not allow it now.
    fn foresee(&self, request: (Op, u64, u64)) -> Result<(), Barred>;

    /// Whether a request may go to the device now, and where; and the end of what is written before and after, where the
    /// request moved that and a failure has to take it back.
    ///
    /// # Errors
    /// When the grant does not allow it now.
    fn judge(&self, request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred>;

    /// A request has failed that moved the end of what is written from here to there.
    fn take_back(&self, before: u64, end: u64);

    /// A command goes to the device.
    fn enter(&self);

    /// It has left.
    fn leave(&self);

    /// What the logical unit looks like to the session, where that is not as it is.
    fn view(&self) -> Option<&View>;
}

/// A request must not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Barred;

/// A session's share of what a target with a pace can do.
pub trait Pacing {
    /// Something of the session waits for its grant.
    fn ask(&self, ticket: Ticket, len: u32);
    /// The next grant.
    fn take(&self) -> Option<Ticket>;
    /// A command begins whose bytes were granted before.
    fn begun(&self);
    /// A command that was granted, or has begun, has ended or is not wanted any more.
    fn done(&self);
    /// What waited does not any more; it may have been granted already.
    fn withdraw(&self, number: u32);
}

/// What waits for a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Whose connection.
    pub connection: ConnectionId,
    /// Which of its commands.
    pub task: TaskId,
    /// Which of the connection's: never used again while any is known.
    pub number: u32,
    /// A command is executed, and keeps its place until it has ended; else data is asked for, which
    /// keeps none, because its sender may be slow.
    pub executes: bool,
}

/// Where on a device a request goes, whose sender may not see it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Where it says.
    Same,
    /// There, in order.
    Pieces(Pieces),
}

impl Place {
    /// A request whose bytes are at these places.
    #[inline]
    #[must_use]
    pub fn of(request: &MediumRequest, pieces: Pieces) -> Self {
        match pieces.as_slice() {
            [] => Self::Same,
            [one] if one.offset == request.offset => Self::Same,
            [one, ..] if one.offset == request.offset && planted(Planted::SpanSentAsOne) => {
                Self::Same
            }
            _ => Self::Pieces(pieces),
        }
    }
}

/// A command that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// What it does with the medium.
    pub kind: CommandKind,
    /// How it ended.
    pub status: Status,
    /// Bytes that it read.
    pub read: u64,
    /// Bytes that came with it.
    pub written: u64,
}

/// What a command takes that leaves the medium alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Needs {
    /// No right.
    #[default]
    Nothing,
    /// It makes or changes reservations.
    Reserve,
    /// It changes how the logical unit is, for all.
    Govern,
}

impl Needs {
    /// What the command with this operation code takes.
    #[must_use]
    pub const fn of(opcode: u8) -> Self {
        match opcode {
            // RESERVE and RELEASE (6) and (10), PERSISTENT RESERVE OUT.
            0x16 | 0x17 | 0x56 | 0x57 | 0x5f => Self::Reserve,
            // FORMAT UNIT, MODE SELECT (6) and (10), START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL,
            // SANITIZE, LOG SELECT, SET TARGET PORT GROUPS and its like.
            0x04 | 0x15 | 0x55 | 0x1b | 0x1e | 0x48 | 0x4c | 0xa4 => Self::Govern,
            _ => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_a_unit_for_others_takes_a_right() {
        for opcode in [0x5f, 0x16, 0x56] {
            assert_eq!(Needs::of(opcode), Needs::Reserve);
        }
        for opcode in [0x15, 0x55, 0x1b] {
            assert_eq!(Needs::of(opcode), Needs::Govern);
        }
        // TEST UNIT READY, READ and WRITE (16), PERSISTENT RESERVE IN.
        for opcode in [0x00, 0x88, 0x8a, 0x5e] {
            assert_eq!(Needs::of(opcode), Needs::Nothing);
        }
    }
}
