//! Opens the array with some of its members, on copies of their disks, and reads all of it by the
//! machine: what a crash together with a loss at this moment would leave. Commands are done at
//! once and in order; what was in flight never happened.

use std::collections::VecDeque;

use netraid_block::{ErrorKind, IoError, Op, RequestFlags, SgList};
use netraid_raid::{
    checkpoint::Checkpoint,
    label::{Closure, Holder, LABEL_LEN, Label},
    logged::RequestId,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, PAGE_LEN},
    volume::{Do, Told},
};

use super::{
    engine::Fittings,
    machine::Machine,
    opened::{self, FoundDevice, Opened},
    plain,
};
use crate::disk::{Disk, Unreadable};

/// Most member requests: an array that needs more goes in circles.
const ACTIONS_MAX: u32 = 200_000;

/// What was read of an array.
#[derive(Debug)]
pub struct Read {
    /// All of it.
    pub data: SgList,
    /// Parity was taken as it was.
    pub trusts_parity: bool,
}

/// Why an array could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It does not open.
    Refused(String),
    /// It opened, and cannot be read.
    Unread(String),
}

/// Reads the volume; `disks` are by member, with none for those that are lost. What the product has doubts about is
/// opened by force; but it `may_refuse` what others could carry without these.
///
/// # Errors
/// Why it cannot be opened or read.
pub fn read<M: Machine>(
    disks: Vec<Option<Disk>>,
    fittings: &Fittings,
    may_refuse: bool,
) -> Result<Read, Ended> {
    let mut disks = disks;
    let found: Vec<Option<FoundDevice>> =
        disks.iter().map(|disk| disk.as_ref().map(|disk| look::<M>(disk))).collect();
    let this = || Holder { name: "subset".into(), ..Holder::default() };
    let mut trusts_parity = false;
    let opened = opened::open(&found, this(), fittings, false).or_else(|refusal| {
        let is_doubtful = opened::is_doubt_of_others(&refusal) && !may_refuse;
        let mut labels = found.iter().flatten().filter_map(|device| device.label.as_ref());
        trusts_parity = !M::HAS_LOG && labels.any(|label| label.closure != Closure::Clean);
        let is_older = opened::left_behind(&refusal).is_some();
        let is_doubt = opened::is_doubt_of_parity(&refusal) || opened::is_doubt_of_labels(&refusal);
        match is_doubtful || is_older || is_doubt {
            true => opened::open_by_force(&found, this, fittings).0,
            false => Err(refusal),
        }
    });
    let refused = |why: &dyn core::fmt::Debug| Ended::Refused(format!("{why:?}"));
    let Opened { machine, places, .. } = opened.map_err(|refusal| refused(&refusal))?;
    let mut machine = M::take(machine, &places).map_err(|error| refused(&error))?;
    let mut actions: VecDeque<Do> = VecDeque::new();
    for _ in 0..ACTIONS_MAX {
        while let Some(event) = machine.poll_event() {
            match event {
                Told::Opened => {
                    let all = (Op::Read, 0, machine.geometry().capacity());
                    let flags = RequestFlags::default();
                    machine.handle_request(RequestId(0), all, flags, SgList::new());
                }
                Told::Closed => {
                    let text = format!("it does not open: {:?}", machine.failure());
                    return Err(Ended::Refused(text));
                }
                Told::Member { .. } | Told::Found { .. } | Told::Other(_) => {}
            }
        }
        while let Some(action) = machine.poll_action() {
            actions.push_back(action);
        }
        let Some(action) = actions.pop_front() else {
            return Err(Ended::Unread("the machine waits for nothing".into()));
        };
        if let Do::Complete { result, .. } = action {
            let data =
                result.map_err(|error| Ended::Unread(format!("it cannot be read: {error}")))?;
            return Ok(Read { data, trusts_parity });
        }
        perform(&mut machine, &mut disks, action, fittings.block_len);
    }
    Err(Ended::Unread(format!("it needs more than {ACTIONS_MAX} member requests")))
}

fn perform<M: Machine>(machine: &mut M, disks: &mut [Option<Disk>], action: Do, block_len: u32) {
    let Do::Submit { io, member, op, offset, len, fua, data, .. } = action else { return };
    let block = u64::from(block_len);
    let blocks = offset / block..(offset + len) / block;
    let medium = |bad: Unreadable| {
        IoError::with_detail(ErrorKind::Medium, format!("block {} is unreadable", bad.block))
    };
    let Some(disk) = &mut disks[member.as_usize()] else {
        return machine.handle_io_done(io, Err(ErrorKind::Unreachable.into()));
    };
    let result = match op {
        Op::Read => disk.read(blocks).map_err(medium),
        Op::Write => {
            disk.write(blocks.start, &data, fua);
            Ok(SgList::new())
        }
        Op::Flush => {
            disk.flush();
            Ok(SgList::new())
        }
        Op::Discard => {
            disk.discard(blocks);
            Ok(SgList::new())
        }
        Op::WriteZeroes | Op::Extents => Err(ErrorKind::Unsupported.into()),
    };
    machine.handle_io_done(io, result);
}

/// What an opening finds on a disk.
fn look<M: Machine>(disk: &Disk) -> FoundDevice {
    let Some(label) = newest_label(disk) else { return FoundDevice::default() };
    let region = &label.regions.written;
    let written = if M::HAS_LOG { None } else { plain::written_on(disk, region) };
    let checkpoint = newest_checkpoint(disk, &label);
    FoundDevice { checkpoint, written, label: Some(Box::new(label)) }
}

/// The newest label on a disk.
pub(crate) fn newest_label(disk: &Disk) -> Option<Label> {
    let block = u64::from(disk.shape().block_len);
    let read = |(copy, offset): (usize, u64)| {
        let first = offset / block;
        let data = disk.read(first..first + LABEL_LEN as u64 / block).ok()?;
        Label::decode(&data.to_contiguous(), copy).ok()
    };
    let copies = LABEL_OFFSETS.into_iter().enumerate().filter_map(read);
    copies.max_by_key(|label| (label.generation, label.epoch))
}

/// The counter of the newest checkpoint on a disk.
fn newest_checkpoint(disk: &Disk, label: &Label) -> Option<u64> {
    let block = u64::from(disk.shape().block_len);
    let read = |(slot, offset): (usize, u64)| {
        let first = offset / block;
        let data = disk.read(first..first + u64::from(PAGE_LEN) / block).ok()?;
        let found = Checkpoint::decode(&data.to_contiguous(), label.array_uuid, slot).ok()?;
        Some(found.counter)
    };
    CHECKPOINT_OFFSETS.into_iter().enumerate().filter_map(read).max()
}
