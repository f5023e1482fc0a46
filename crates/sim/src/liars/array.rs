//! An array over disks in memory: each member request is done when it is asked for.

use std::collections::BTreeMap;

use netraid_block::{Buf, IoError, Op, Pool, SgList, narrow};
use netraid_raid::{
    label::{Holder, Label},
    logged::{
        Action, Event, FoundMember, Limits, LoggedArray, MemberCaps, NewDevice, OpenConfig,
        RequestId, ScrubCommand, ScrubOptions, UserRequest,
    },
    member::{MemberIndex, MemberState},
    regions::LABEL_OFFSETS,
};

use super::lies::newest_checkpoint;
use crate::disk::Disk;

/// Bytes of a block of the volume, and of everything that stands on members.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of a disk's logical block.
pub(super) const SECTOR: u64 = 512;

/// An array that is open.
pub(super) struct Array {
    machine: LoggedArray,
    disks: Vec<Disk>,
    next_request: u64,
    is_closed: bool,
    ended: Option<Result<SgList, IoError>>,
    /// Why the machine left members out.
    pub(super) left_out: BTreeMap<usize, String>,
}

impl Array {
    /// Opens the array that is on these disks.
    ///
    /// # Errors
    /// Why it does not open, and the disks.
    pub(super) fn open(disks: Vec<Disk>) -> Result<Self, (String, Vec<Disk>)> {
        let caps = MemberCaps::default();
        let found = |disk: &Disk| {
            let label = label(disk)?;
            let checkpoint = newest_checkpoint(disk, &label).map(|newest| newest.counter);
            Some(FoundMember { caps, label, checkpoint })
        };
        let machine = LoggedArray::open(OpenConfig {
            members: disks.iter().map(found).collect(),
            holder: Holder { name: "simulation".into(), ..Holder::default() },
            max_io_len: 1 << 20,
            pool: Pool::new(),
            limits: Limits::default(),
        });
        let machine = match machine {
            Ok(machine) => machine,
            Err(error) => return Err((error.to_string(), disks)),
        };
        let (is_closed, ended, left_out) = (false, None, BTreeMap::new());
        let mut array = Self { machine, disks, next_request: 0, is_closed, ended, left_out };
        array.run();
        match array.machine.failure() {
            Some(error) => Err((error.to_string(), array.disks)),
            None => Ok(array),
        }
    }

    /// Blocks of the volume.
    pub(super) fn blocks(&self) -> u64 {
        self.machine.capacity() / BLOCK
    }

    pub(super) fn label(&self) -> Label {
        self.machine.label()
    }

    pub(super) fn is_in_sync(&self, member: usize) -> bool {
        self.machine.member_state(index(member)) == MemberState::InSync
    }

    /// One request to its end.
    pub(super) fn request(
        &mut self,
        op: Op,
        first: u64,
        count: u64,
        data: &[u8],
    ) -> Result<SgList, String> {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let (offset, len) = (first * BLOCK, count * BLOCK);
        let data = SgList::from(Buf::copy_from(data));
        self.machine.handle_request(id, UserRequest { op, offset, len, fua: false, data });
        self.run();
        let ended = self.ended.take().ok_or("a request does not end")?;
        ended.map_err(|error| error.to_string())
    }

    /// Brings everything home.
    pub(super) fn idle(&mut self) {
        self.machine.handle_idle();
        self.run();
    }

    /// Reads all that there is.
    pub(super) fn scrub(&mut self) -> Result<(), String> {
        let start = ScrubCommand::Start(ScrubOptions::default());
        self.machine.handle_scrub(start).map_err(|error| error.to_string())?;
        self.machine.handle_scrub_allowance(u32::MAX);
        self.run();
        Ok(())
    }

    /// Puts an empty disk in a member's place, and writes it.
    pub(super) fn replace(&mut self, member: usize, uuid: u64) {
        self.disks[member] = Disk::new(*self.disks[member].shape());
        let mut bytes = [0xee; 16];
        bytes[..8].copy_from_slice(&uuid.to_le_bytes());
        let device = NewDevice { uuid: bytes, caps: MemberCaps::default() };
        self.machine.handle_replace(index(member), device);
        self.run();
    }

    /// Closes it; whether it closed in good order.
    pub(super) fn close(mut self) -> Result<Vec<Disk>, String> {
        self.machine.handle_close();
        self.run();
        match self.machine.failure() {
            Some(error) => Err(error.to_string()),
            None if self.is_closed => Ok(self.disks),
            None => Err("it does not close".into()),
        }
    }

    /// The disks as they are when the engine dies now.
    pub(super) fn crash(self) -> Vec<Disk> {
        self.disks
    }

    fn run(&mut self) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.act(action);
            }
            let Some(event) = self.machine.poll_event() else { return };
            self.is_closed |= event == Event::Closed;
            if let Event::Member { member, reason, .. } = event
                && reason.starts_with("left out")
            {
                self.left_out.insert(member.as_usize(), reason);
            }
        }
    }

    fn act(&mut self, action: Action) {
        let (io, end) = match action {
            Action::Complete { result, .. } => {
                self.ended = Some(result);
                return;
            }
            Action::Read { io, member, offset, len } => {
                let data = read(&self.disks[member.as_usize()], offset, len.into());
                (io, Buf::copy_from(&data).into())
            }
            Action::Write { io, member, offset, data, fua, .. } => {
                self.disks[member.as_usize()].write(offset / SECTOR, &data, fua);
                (io, SgList::new())
            }
            Action::Flush { io, .. } | Action::Discard { io, .. } => (io, SgList::new()),
        };
        self.machine.handle_io_done(io, Ok(end));
    }
}

pub(super) fn index(member: usize) -> MemberIndex {
    MemberIndex(narrow(member))
}

/// Bytes of a disk, none of whose blocks is bad.
pub(super) fn read(disk: &Disk, offset: u64, len: u64) -> Vec<u8> {
    let data = disk.read(offset / SECTOR..(offset + len) / SECTOR);
    data.map(|data| data.to_contiguous().to_vec()).unwrap_or_default()
}

/// The newest copy of a member's label.
pub(super) fn label(disk: &Disk) -> Option<Label> {
    let read = |copy: usize| Label::decode(&read(disk, LABEL_OFFSETS[copy], BLOCK), copy).ok();
    (0..2).filter_map(read).max_by_key(|label| (label.generation, label.epoch))
}
