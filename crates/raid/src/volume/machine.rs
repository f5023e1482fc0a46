//! What a volume asks of an array's machine, whatever its kind.

use alloc::{string::String, vec::Vec};

use netraid_block::{IoError, Op, RequestFlags, SgList};

use super::{either::Progress, interface::Event};
use crate::{
    array::{CommandError, IoId, MemberCaps, RequestId},
    faults::Fault,
    geometry::Geometry,
    label::{Label, Uuid},
    log::Position,
    logged::{AtomicWrite, LoggedArray, To, Unstable},
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
};

/// The machine of an array, in a volume.
///
/// [`crate::array::ArrayMachine`] and [`LoggedArray`] say what each method does.
#[allow(missing_docs, reason = "the methods of the machines of arrays")]
pub trait Machine {
    fn has_log(&self) -> bool;
    fn is_read_only(&self) -> bool;
    fn geometry(&self) -> &Geometry;
    fn member_state(&self, member: MemberIndex) -> MemberState;
    fn failure(&self) -> Option<IoError>;

    /// Whether the array is open, may write, has not failed, and serves without all of these members.
    fn can_lose_all(&self, members: MemberSet) -> bool;
    fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError>;

    /// Whether a device must not be handed over yet.
    fn labels_pending(&self) -> bool;

    fn handle_request(
        &mut self,
        id: RequestId,
        what: (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    );
    /// Blocks of 4 KiB that may be written at once, in several ranges; 0 where that cannot be.
    ///
    /// What is written in place may be left in part by a crash.
    fn atomic_blocks_max(&self) -> u32 {
        0
    }
    fn handle_atomic_write(&mut self, id: RequestId, write: AtomicWrite) {
        unreachable!("request {}: {write:?} was made for another array", id.0)
    }
    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>);

    /// A read is late: what waits for it is to be had from other members as well. How many reads that sends.
    fn handle_late(&mut self, io: IoId) -> u64 {
        let _ = io;
        0
    }
    /// These members are slow: what can be had from the others is not read from them.
    fn handle_slow(&mut self, members: MemberSet) {
        let _ = members;
    }
    /// The next read that would go past a slow member goes to it, and to the others as well.
    fn handle_probe(&mut self, member: MemberIndex) {
        let _ = member;
    }

    /// What the array can do.
    fn state(&self) -> ArrayState;
    /// Whether the array may be opened anew once enough members are back, where it failed for want of them.
    fn can_be_opened_anew(&self) -> bool {
        false
    }
    /// Whether stable labels say that a member takes no part.
    fn is_excluded(&self, member: MemberIndex) -> bool {
        !self.member_state(member).is_live()
    }
    /// What was acknowledged and is not stable.
    ///
    /// # Errors
    /// It has changed in memory.
    fn unstable(&self) -> Result<Unstable, IoError> {
        Ok(Unstable::default())
    }
    /// Everything below this position of the log was found when the array was opened; none before that is known.
    fn recovered_upto(&self) -> Option<Position> {
        None
    }

    /// Sets a member aside by command.
    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError>;

    /// A member has lost what was not stable on it, or does not answer.
    fn handle_gone(&mut self, member: MemberIndex, reason: &str);

    /// Takes a device in a member's place; with a `label` it is the member's own, which is back.
    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        label: Option<Label>,
    ) -> Result<(), CommandError>;

    /// Copies a member that is in sync to a device that is to take its place; see [`LoggedArray::handle_successor`].
    fn handle_successor(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
    ) -> Result<(), CommandError> {
        let _ = (uuid, caps);
        unreachable!("member {member} of an array without a log is not copied")
    }
    /// That device has left; see [`LoggedArray::handle_successor_gone`].
    fn handle_successor_gone(&mut self, member: MemberIndex) {
        let _ = member;
    }

    /// The identities of the array and of a member, where these are known.
    fn identity(&self, member: MemberIndex) -> Option<(Uuid, Uuid)> {
        let _ = member;
        None
    }

    /// Which engine its labels name, and their generation, where these are known.
    fn holder(&self) -> Option<(Uuid, u64)> {
        None
    }

    /// How far rebuilds, catch-ups or a resync are: what is done now comes first.
    fn progress(&self) -> Vec<Progress> {
        Vec::new()
    }

    /// Another engine has opened the array for writing, and this one only reads: it fails with this error.
    fn handle_overtaken(&mut self, error: IoError);

    /// Nobody asked for anything for a while: what is in the log is brought home.
    fn handle_idle(&mut self);

    /// What was written a while ago is made stable, also when nobody asks for it.
    fn handle_age(&mut self);
    fn handle_close(&mut self);

    /// The machine that can be scrubbed, if it may write.
    fn scrubbed(&mut self) -> Option<&mut LoggedArray>;

    /// What is to be sent or ended next; what is to be computed has been.
    fn poll_action(&mut self) -> Option<Do>;
    fn poll_event(&mut self) -> Option<Told>;
}

/// What a machine asks for.
#[derive(Debug)]
pub enum Do {
    /// Send a request to a member.
    Submit {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// What to do.
        op: Op,
        /// First byte on it.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Must be stable when it ends.
        fua: bool,
        /// What to write.
        data: SgList,
        /// Which of the devices in the member's place it is for, while there are two.
        to: To,
    },
    /// End a user's request.
    Complete {
        /// Which.
        request: RequestId,
        /// Its end.
        result: Result<SgList, IoError>,
    },
}

impl Do {
    pub(super) fn submit(io: IoId, member: MemberIndex, op: Op, (offset, len): (u64, u64)) -> Self {
        let (data, to) = (SgList::new(), To::Both);
        Self::Submit { io, member, op, offset, len, fua: false, data, to }
    }

    pub(super) fn write(
        io: IoId,
        member: MemberIndex,
        offset: u64,
        fua: bool,
        data: SgList,
    ) -> Self {
        let (op, len, to) = (Op::Write, data.len() as u64, To::Both);
        Self::Submit { io, member, op, offset, len, fua, data, to }
    }
}

/// What happened in a machine.
#[derive(Debug)]
pub enum Told {
    /// It takes requests.
    Opened,
    /// It asks for nothing more: everything is stable and the labels say so, or it failed.
    Closed,
    /// A member's state changed; or its device that is back was not taken, and it is as before.
    Member {
        /// Which.
        member: MemberIndex,
        /// To what.
        state: MemberState,
        /// Why.
        reason: String,
    },
    /// Something was found wrong with what a member has: it is counted.
    Found {
        /// Which.
        member: MemberIndex,
        /// What.
        fault: Fault,
        /// How many blocks or writes.
        count: u64,
    },
    /// What concerns people and logs alone.
    Other(Event),
}
