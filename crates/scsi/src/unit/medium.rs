//! Commands that read and write the medium: each becomes a short run of device requests.

use alloc::{boxed::Box, vec::Vec};

use netraid_block::{Buf, ErrorKind, IoError, Op, RequestFlags, SgList, narrow};
use netraid_planted::{Planted, planted};

use super::{LogicalUnit, MediumRequest, Response, Step, Stop, Task, respond_good, sense_of};
use crate::{
    cdb::{DataOut, Extent},
    reservation::Change,
    sense::{Additional, Sense, SenseKey, Status},
};

/// Where a command is.
#[derive(Debug)]
pub(super) enum State {
    /// Its data-out is being collected.
    Collect(DataOut),
    /// One read is under way whose bytes go to the initiator.
    Read,
    /// The cache is being flushed; then `Task::reading` is read from the medium.
    FlushToRead,
    /// One request is under way; the command has succeeded when it has.
    Last { writing: bool },
    /// The ranges of an UNMAP, last first; the request for one is under way.
    Unmap { rest: Vec<Extent> },
    /// A block is written again and again; bytes from `next` to `end` are still to come.
    Fill { pattern: Buf, next: u64, end: u64 },
    /// What is being read has to be as expected.
    Verify(Expected),
    /// What is being read has to equal the first half of `data`; then the second is written.
    CompareAndWrite { data: SgList, offset: u64, fua: bool },
    /// What is being read is written again with the bits of `data` set.
    OrWrite { data: SgList, offset: u64, fua: bool },
    /// A write is under way, then it is read back.
    WriteAndVerify { offset: u64, len: u64, expected: Expected },
    /// A read failed with `error`; its first bad block is being looked for. `Task::reading` is
    /// the half that is being read, of the bytes to `end`.
    Locate { end: u64, error: ErrorKind },
    /// What is mapped behind this block is being asked for.
    Extents { lba: u64, allocation_len: u32 },
    /// The cache is being flushed before the medium stops.
    Stop { eject: bool },
    /// The logical unit works on what this task asked for, as its order of this number.
    Wait { order: u64 },
    /// A change of reservations is being stored.
    Store(Box<Change>),
    /// Commands of preempted nexuses are being aborted.
    Preempt,
    /// The response is out.
    Ended,
}

/// What a verified range is compared with.
#[derive(Debug)]
pub(super) enum Expected {
    /// Nothing: it has to be readable.
    Anything,
    /// Each block has to be this one.
    Every(Buf),
    /// All of it.
    All(SgList),
}

impl LogicalUnit {
    /// What a task that waits for its data-out is going to do, as far as its CDB says.
    pub(crate) fn intent(&self, task: &Task) -> Option<(Op, u64, u64)> {
        // Everything, although it is the logical unit that writes it.
        let everything = Some((Op::Write, 0, self.info().capacity));
        if matches!(task.state, State::Wait { .. }) {
            return everything;
        }
        let State::Collect(command) = &task.state else { return None };
        let (op, extent) = match *command {
            DataOut::Write { extent, .. }
            | DataOut::WriteAtomic { extent, .. }
            | DataOut::OrWrite { extent, .. }
            | DataOut::WriteAndVerify { extent, .. }
            | DataOut::WriteSame { extent, .. }
            | DataOut::CompareAndWrite { extent, .. } => (Op::Write, extent),
            DataOut::Verify { extent, .. } => (Op::Read, extent),
            DataOut::Sanitize(_) => return everything,
            DataOut::ModeSelect { .. }
            | DataOut::Unmap { .. }
            | DataOut::PersistentReserveOut(_) => return None,
        };
        let (offset, len) = self.bytes_of(extent);
        Some((op, offset, len))
    }

    /// Goes on with the data-out of a command.
    pub(super) fn with_data(&mut self, task: &mut Task, data: SgList) -> Step {
        let State::Collect(command) = core::mem::replace(&mut task.state, State::Ended) else {
            // Data that nothing waits for: the transport's bug, which must not reach the medium.
            return Step::Respond(self.check(&internal_failure()));
        };
        // The medium may have gone since the command came.
        if let Some(sense) = self.not_ready(task.rules) {
            return Step::Respond(self.check(&sense));
        }
        let step = match command {
            DataOut::ModeSelect { long, .. } => self.mode_select(task, long, &data.to_contiguous()),
            DataOut::PersistentReserveOut(out) => {
                self.reserve_out(task, out, &data.to_contiguous())
            }
            DataOut::Unmap { .. } => self.unmap(task, &data.to_contiguous()),
            DataOut::Write { extent, fua } => self.write(task, extent, data, fua),
            DataOut::WriteAtomic { extent, fua, .. } => self.write_atomic(task, extent, data, fua),
            DataOut::WriteSame { extent, unmap, .. } => self.write_same(task, extent, unmap, data),
            DataOut::WriteAndVerify { extent, check } => {
                self.write_and_verify(task, extent, data, check)
            }
            DataOut::Verify { extent, check } => self.verify(task, extent, check, data),
            DataOut::CompareAndWrite { extent, fua } => {
                self.compare_and_write(task, extent, data, fua)
            }
            DataOut::OrWrite { extent, fua } => self.or_write(task, extent, data, fua),
            DataOut::Sanitize(request) => self.sanitize_overwrite(task, request, &data),
        };
        self.step_of(step)
    }

    /// Goes on after a medium request that succeeded, with the bytes of a read.
    pub(super) fn medium_done(&mut self, task: &mut Task, read: SgList) -> Result<Step, Stop> {
        Ok(match core::mem::replace(&mut task.state, State::Ended) {
            State::Read => {
                Step::Respond(Response { status: Status::Good, sense: Vec::new(), data_in: read })
            }
            State::Last { .. } | State::Wait { .. } => respond_good(),
            State::FlushToRead => {
                // The medium may have gone meanwhile.
                if let Some(sense) = self.not_ready(task.rules) {
                    return Err(sense.into());
                }
                task.state = State::Read;
                let (offset, len) = task.reading;
                task.read(offset, len)
            }
            State::Unmap { rest } => self.unmap_next(task, rest)?,
            State::Fill { pattern, next, end } => self.fill_next(task, pattern, next, end),
            State::Verify(expected) => self.verified(task, &read, &expected)?,
            State::CompareAndWrite { data, offset, fua } => {
                self.compared_and_write(task, &read, &data, offset, fua)?
            }
            State::OrWrite { data, offset, fua } => {
                self.or_write_read(task, &read, &data, offset, fua)
            }
            State::WriteAndVerify { offset, len, expected } => {
                task.state = State::Verify(expected);
                task.read(offset, len)
            }
            State::Locate { end, error } => {
                let (offset, len) = task.reading;
                self.locate(task, offset + len, end, error)
            }
            State::Extents { lba, allocation_len } => {
                self.lba_status(lba, allocation_len, &read)?
            }
            State::Stop { eject } => self.stopped(eject),
            State::Collect(_) | State::Store(_) | State::Preempt | State::Ended => {
                return Err(internal_failure().into());
            }
        })
    }

    /// Goes on after a medium request that failed.
    pub(super) fn medium_failed(&mut self, task: &mut Task, error: &IoError) -> Step {
        let kind = error.kind();
        let bad_medium = matches!(kind, ErrorKind::Medium | ErrorKind::Corrupt);
        let (offset, len) = task.reading;
        let writing = match task.state {
            State::Wait { .. } => {
                return Step::Respond(self.check(&self.wait_failed(kind)));
            }
            State::Locate { error, .. } if bad_medium => {
                return self.locate_in(task, offset, len, error);
            }
            State::Read
            | State::Verify(_)
            | State::CompareAndWrite { .. }
            | State::OrWrite { .. }
                if bad_medium =>
            {
                return self.locate_in(task, offset, len, kind);
            }
            State::Read | State::Verify(_) | State::Locate { .. } | State::Extents { .. } => false,
            State::Last { writing } => writing,
            State::FlushToRead
            | State::Unmap { .. }
            | State::Fill { .. }
            | State::CompareAndWrite { .. }
            | State::OrWrite { .. }
            | State::WriteAndVerify { .. }
            | State::Stop { .. }
            | State::Collect(_)
            | State::Store(_)
            | State::Preempt
            | State::Ended => true,
        };
        Step::Respond(match sense_of(kind, writing) {
            Some(sense) => self.check(&sense),
            None => Response::status(Status::ReservationConflict),
        })
    }

    /// A read of this range failed: halves it until the first bad block is known, which the
    /// INFORMATION field names (SPC-4, section 4.5.3).
    fn locate_in(&mut self, task: &mut Task, offset: u64, len: u64, error: ErrorKind) -> Step {
        let block_len = u64::from(self.info().block_len);
        if len > block_len {
            return self.locate(task, offset, offset + len, error);
        }
        let sense = sense_of(error, false).unwrap_or(internal_failure());
        Step::Respond(self.check(&sense.with_information(offset / block_len)))
    }

    /// Reads the first half of a range in which a read failed.
    fn locate(&mut self, task: &mut Task, offset: u64, end: u64, error: ErrorKind) -> Step {
        let block_len = u64::from(self.info().block_len);
        let blocks = (end - offset) / block_len;
        if blocks == 0 {
            // It can be read now: which block it was is not known.
            let sense = sense_of(error, false).unwrap_or(internal_failure());
            return Step::Respond(self.check(&sense));
        }
        task.state = State::Locate { end, error };
        task.read(offset, blocks.div_ceil(2) * block_len)
    }

    /// With `fua` what is newer in a volatile cache goes to the medium first (SBC-3, section 5.11).
    pub(super) fn start_read(
        &mut self,
        task: &mut Task,
        extent: Extent,
        fua: bool,
    ) -> Result<Step, Stop> {
        self.check_transfer(task, extent)?;
        if extent.blocks == 0 {
            return Ok(respond_good());
        }
        let (offset, len) = self.bytes_of(extent);
        if fua && self.info().volatile_cache {
            task.reading = (offset, len);
            task.state = State::FlushToRead;
            return Ok(submit(Op::Flush, 0, 0));
        }
        task.state = State::Read;
        Ok(task.read(offset, len))
    }

    /// Any write whose data-out is what is to be written, and that holds `held` blocks besides.
    pub(super) fn start_write(
        &mut self,
        task: &mut Task,
        command: DataOut,
        extent: Extent,
        held: u32,
    ) -> Result<Step, Stop> {
        self.check_writable()?;
        self.check_transfer(task, extent)?;
        self.collect(task, command, extent.blocks, held)
    }

    pub(super) fn start_write_atomic(
        &mut self,
        task: &mut Task,
        extent: Extent,
        boundary: u16,
        fua: bool,
    ) -> Result<Step, Stop> {
        self.check_writable()?;
        self.check_range(extent)?;
        // MAXIMUM ATOMIC BOUNDARY SIZE is zero: a write is atomic as a whole.
        if boundary != 0 {
            return Err(Sense::invalid_cdb(10, None).into());
        }
        if extent.blocks > self.atomic_max() {
            return Err(task.invalid_length().into());
        }
        self.collect(task, DataOut::WriteAtomic { extent, boundary, fua }, extent.blocks, 0)
    }

    fn write_atomic(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        fua: bool,
    ) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        check_complete(&data, len)?;
        self.enter(task, offset, len, true)?;
        Ok(self.last_write(task, offset, data, fua))
    }

    pub(super) fn synchronize_cache(
        &mut self,
        task: &mut Task,
        extent: Extent,
    ) -> Result<Step, Stop> {
        self.check_range(extent)?;
        if planted(Planted::FlushAnsweredEarly) {
            return Ok(respond_good());
        }
        self.flush(task)
    }

    /// The flush after which a command has succeeded.
    pub(super) fn flush(&self, task: &mut Task) -> Result<Step, Stop> {
        task.state = State::Last { writing: true };
        Ok(submit(Op::Flush, 0, 0))
    }

    /// Nothing is read ahead into a cache of ours: that not all of it fits there is said by GOOD
    /// instead of CONDITION MET, at once or not (IMMED; SBC-3, section 5.9).
    pub(super) fn pre_fetch(&self, extent: Extent) -> Result<Step, Stop> {
        self.check_range(extent)?;
        Ok(respond_good())
    }

    /// What a write of `len` bytes takes of its data-out. When the initiator announced less than
    /// its CDB asks for, the whole blocks are taken, and the transport reports the residual
    /// (RFC 7143, section 11.4.5).
    pub(super) fn whole_blocks(&self, data: SgList, len: u64) -> SgList {
        if data.len() as u64 == len {
            return data;
        }
        let block_len = self.info().block_len as usize;
        let least: usize = narrow((data.len() as u64).min(len));
        let whole = least / block_len * block_len;
        data.slice(0..whole)
    }

    fn write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        fua: bool,
    ) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        let data = self.whole_blocks(data, len);
        if data.is_empty() {
            return Ok(respond_good());
        }
        self.enter(task, offset, data.len() as u64, false)?;
        Ok(self.last_write(task, offset, data, fua))
    }

    /// The write after which a command has succeeded.
    pub(super) fn last_write(&self, task: &mut Task, offset: u64, data: SgList, fua: bool) -> Step {
        task.state = State::Last { writing: true };
        submit_write(offset, data, self.through(fua))
    }

    /// Asks for `blocks` of data-out, or ends the command when that is none. It is going to hold
    /// `held` blocks besides.
    pub(super) fn collect(
        &self,
        task: &mut Task,
        command: DataOut,
        blocks: u32,
        held: u32,
    ) -> Result<Step, Stop> {
        if blocks == 0 {
            return Ok(respond_good());
        }
        let len = blocks.checked_mul(self.info().block_len).ok_or(internal_failure())?;
        task.state = State::Collect(command);
        let memory = u64::from(held) * u64::from(self.info().block_len);
        Ok(Step::DataOut { len, memory })
    }

    pub(super) fn check_transfer(&self, task: &Task, extent: Extent) -> Result<(), Sense> {
        self.check_range(extent)?;
        if extent.blocks > self.transfer_max() {
            return Err(task.invalid_length());
        }
        Ok(())
    }

    /// Refuses a command whose initiator announced other data than its CDB describes: the two
    /// disagree on what is to be written.
    pub(super) fn check_announced(&self, task: &Task, blocks: u32) -> Result<(), Sense> {
        let expected = u64::from(blocks) * u64::from(self.info().block_len);
        if u64::from(task.announced) != expected {
            return Err(task.invalid_length());
        }
        Ok(())
    }

    /// Enters a write of these bytes, unless it has to be tried again.
    pub(super) fn enter(
        &mut self,
        task: &mut Task,
        offset: u64,
        len: u64,
        exclusive: bool,
    ) -> Result<(), Stop> {
        assert!(task.slot.is_none(), "a command writes one range at a time");
        let range = self.on_device(offset..offset + len);
        task.slot = self.exclusion.enter(range, exclusive);
        if task.slot.is_some() { Ok(()) } else { Err(Stop::BUSY) }
    }

    /// Whether a write has to be stable when it completes.
    pub(super) fn through(&self, fua: bool) -> bool {
        let fua = fua && !planted(Planted::FuaForgotten);
        self.info().volatile_cache && (fua || !self.mode.write_cache)
    }

    /// Whether the initiator switched a cache off that the device has.
    pub(crate) fn must_write_through(&self) -> bool {
        self.info().volatile_cache && !self.mode.write_cache
    }

    /// Offset and length in bytes of a range that was checked.
    pub(super) fn bytes_of(&self, extent: Extent) -> (u64, u64) {
        let block_len = u64::from(self.info().block_len);
        (extent.lba * block_len, u64::from(extent.blocks) * block_len)
    }
}

/// Refuses data-out of another length where a part of it means nothing.
pub(super) fn check_complete(data: &SgList, len: u64) -> Result<(), Sense> {
    if data.len() as u64 != len {
        return Err(Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT));
    }
    Ok(())
}

pub(super) fn submit(op: Op, offset: u64, len: u64) -> Step {
    let flags = RequestFlags::default();
    Step::Submit(MediumRequest { op, offset, len, flags, data: SgList::new() })
}

pub(super) fn submit_write(offset: u64, data: SgList, fua: bool) -> Step {
    let (len, flags) = (data.len() as u64, RequestFlags { fua, no_unmap: false });
    Step::Submit(MediumRequest { op: Op::Write, offset, len, flags, data })
}

pub(super) const fn internal_failure() -> Sense {
    Sense::new(SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE)
}
