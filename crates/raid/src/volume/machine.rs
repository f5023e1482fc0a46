//! What a volume asks of an array's machine, whatever its kind.

use alloc::string::String;

use netraid_block::{IoError, Op, RequestFlags, SgList};

use super::interface::Event;
use crate::{
    array::{CommandError, IoId, MemberCaps, RequestId},
    geometry::Geometry,
    label::{Label, Uuid},
    logged::{AtomicWrite, LoggedArray},
    member::{MemberIndex, MemberSet, MemberState},
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

    /// Whether members that are away can be set aside together, and come back by themselves. One of an array
    /// without a log would be rebuilt from the beginning, and not by itself: there only a request tells.
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
        Self::Submit { io, member, op, offset, len, fua: false, data: SgList::new() }
    }

    pub(super) fn write(
        io: IoId,
        member: MemberIndex,
        offset: u64,
        fua: bool,
        data: SgList,
    ) -> Self {
        Self::Submit { io, member, op: Op::Write, offset, len: data.len() as u64, fua, data }
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
    /// What concerns people and logs alone.
    Other(Event),
}
