//! Commands that touch the medium: each becomes a short run of device requests.

use alloc::vec::Vec;

use netraid_block::{Buf, BufMut, IoError, Op, RequestFlags, SgList};

use super::{
    LogicalUnit, MediumRequest, Response, Step, Task,
    report::{UNMAP_EXTENTS_MAX, WRITE_SAME_BLOCKS_MAX},
    respond_good, sense_of,
};
use crate::{
    bytes::{be16, be32, be64},
    cdb::{ByteCheck, Command, Extent},
    sense::{Additional, Sense, SenseKey, Status},
};

/// Longest buffer that WRITE SAME repeats its block in, in bytes.
const FILL_LEN_MAX: u32 = 1 << 20;

/// Where a command is.
#[derive(Debug)]
pub(super) enum State {
    /// Its data-out is being collected.
    Collect(Command),
    /// One read is under way whose bytes go to the initiator.
    Read,
    /// One request is under way; the command has succeeded when it has.
    Last { writing: bool },
    /// The ranges of an UNMAP, last first; the request for one is under way.
    Unmap { rest: Vec<Extent> },
    /// A block is written again and again; bytes from `next` to `end` are still to come.
    Fill { pattern: Buf, next: u64, end: u64 },
    /// The medium is read piece by piece; bytes from `next` to `end` are still to come.
    Scan { next: u64, end: u64 },
    /// What is being read has to equal `expected`.
    Compare { expected: SgList },
    /// What is being read has to equal the first half of `data`; then the second is written.
    CompareAndWrite { data: SgList, offset: u64, fua: bool },
    /// A write is under way, then it is read back; compared when `expected` is given.
    WriteAndVerify { offset: u64, len: u64, expected: Option<SgList> },
    /// The response is out.
    Ended,
}

impl LogicalUnit {
    pub(super) fn start_medium(
        &mut self,
        task: &mut Task,
        command: Command,
    ) -> Result<Step, Sense> {
        match command {
            Command::Read { extent, .. } => self.start_read(task, extent),
            Command::Verify { extent, check: ByteCheck::Medium } => self.start_scan(task, extent),
            Command::Verify { extent, check: ByteCheck::Compare } => {
                self.check_transfer(extent)?;
                self.collect(task, command, extent.blocks)
            }
            Command::Write { extent, .. } | Command::WriteAndVerify { extent, .. } => {
                self.check_writable()?;
                self.check_transfer(extent)?;
                self.collect(task, command, extent.blocks)
            }
            Command::WriteSame { extent, unmap, no_data_out } => {
                self.start_write_same(task, extent, unmap, no_data_out)
            }
            Command::CompareAndWrite { extent, .. } => {
                self.check_writable()?;
                self.check_range(extent)?;
                if extent.blocks > u32::from(self.compare_and_write_max()) {
                    return Err(Sense::invalid_cdb(13, None));
                }
                self.check_announced(task, extent.blocks * 2)?;
                self.collect(task, command, extent.blocks * 2)
            }
            Command::Unmap { parameter_len } => self.start_unmap(task, parameter_len),
            Command::SynchronizeCache { extent } => {
                self.check_range(extent)?;
                Ok(self.flush(task))
            }
            Command::PreFetch { extent } => {
                self.check_range(extent)?;
                Ok(respond_good())
            }
            // What was written must outlive the stop (SBC-3, section 5.25).
            Command::StartStopUnit { start: false } => Ok(self.flush(task)),
            Command::StartStopUnit { start: true }
            | Command::TestUnitReady
            | Command::RequestSense { .. }
            | Command::Inquiry { .. }
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::ReportLuns { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::ReportSupportedOpcodes { .. }
            | Command::ModeSense(_)
            | Command::ModeSelect { .. }
            | Command::GetLbaStatus { .. }
            | Command::PreventAllowMediumRemoval
            | Command::Reserve6
            | Command::Release6 => Ok(respond_good()),
        }
    }

    /// What a task that waits for its data-out is going to do, as far as its CDB says.
    pub(crate) fn intent(&self, task: &Task) -> Option<(Op, u64, u64)> {
        let State::Collect(command) = &task.state else { return None };
        let (op, extent) = if let Command::Write { extent, .. }
        | Command::WriteAndVerify { extent, .. }
        | Command::WriteSame { extent, .. }
        | Command::CompareAndWrite { extent, .. } = command
        {
            (Op::Write, *extent)
        } else if let Command::Verify { extent, .. } = command {
            (Op::Read, *extent)
        } else {
            return None;
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
        let step = match command {
            Command::ModeSelect { long, .. } => {
                self.mode_select(task.nexus, long, &data.to_contiguous())
            }
            Command::Unmap { .. } => self.unmap(task, &data.to_contiguous()),
            Command::Write { extent, fua } => Ok(self.write(task, extent, data, fua)),
            Command::WriteSame { extent, unmap, .. } => self.write_same(task, extent, unmap, data),
            Command::WriteAndVerify { extent, check } => {
                Ok(self.write_and_verify(task, extent, data, check))
            }
            Command::Verify { extent, .. } => self.verify(task, extent, data),
            Command::CompareAndWrite { extent, fua } => {
                self.compare_and_write(task, extent, data, fua)
            }
            Command::TestUnitReady
            | Command::RequestSense { .. }
            | Command::Inquiry { .. }
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::ReportLuns { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::ReportSupportedOpcodes { .. }
            | Command::ModeSense(_)
            | Command::Read { .. }
            | Command::GetLbaStatus { .. }
            | Command::SynchronizeCache { .. }
            | Command::PreFetch { .. }
            | Command::StartStopUnit { .. }
            | Command::PreventAllowMediumRemoval
            | Command::Reserve6
            | Command::Release6 => Err(internal_failure()),
        };
        step.unwrap_or_else(|sense| Step::Respond(self.check(&sense)))
    }

    fn verify(&mut self, task: &mut Task, extent: Extent, data: SgList) -> Result<Step, Sense> {
        let (offset, len) = self.bytes_of(extent);
        check_complete(&data, len)?;
        task.state = State::Compare { expected: data };
        Ok(submit(Op::Read, offset, len))
    }

    fn compare_and_write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        fua: bool,
    ) -> Result<Step, Sense> {
        let (offset, len) = self.bytes_of(extent);
        check_complete(&data, len * 2)?;
        if !self.enter(task, offset, len, true) {
            return Ok(Step::Respond(Response::status(Status::Busy)));
        }
        task.state = State::CompareAndWrite { data, offset, fua };
        Ok(submit(Op::Read, offset, len))
    }

    fn write_and_verify(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        check: ByteCheck,
    ) -> Step {
        let (offset, len) = self.bytes_of(extent);
        let data = self.whole_blocks(data, len);
        let len = data.len() as u64;
        if len == 0 {
            return respond_good();
        }
        if !self.enter(task, offset, len, false) {
            return Step::Respond(Response::status(Status::Busy));
        }
        let expected = matches!(check, ByteCheck::Compare).then(|| data.clone());
        task.state = State::WriteAndVerify { offset, len, expected };
        submit_write(offset, data, true)
    }

    /// Goes on after a medium request that succeeded, with the bytes of a read.
    pub(super) fn medium_done(&mut self, task: &mut Task, read: SgList) -> Step {
        match core::mem::replace(&mut task.state, State::Ended) {
            State::Read => {
                Step::Respond(Response { status: Status::Good, sense: Vec::new(), data_in: read })
            }
            State::Last { .. } => respond_good(),
            State::Unmap { rest } => self.unmap_next(task, rest),
            State::Fill { pattern, next, end } => self.fill_next(task, pattern, next, end),
            State::Scan { next, end } => self.scan_next(task, next, end),
            State::Compare { expected } => match first_difference(&read, &expected) {
                None => respond_good(),
                Some(at) => Step::Respond(self.check(&miscompare(at))),
            },
            State::CompareAndWrite { data, offset, fua } => {
                let half = data.len() / 2;
                if let Some(at) = first_difference(&read, &data.slice(0..half)) {
                    return Step::Respond(self.check(&miscompare(at)));
                }
                task.state = State::Last { writing: true };
                let through = fua || !self.mode.write_cache;
                submit_write(offset, data.slice(half..half * 2), through && self.has_cache())
            }
            State::WriteAndVerify { offset, len, expected } => {
                task.state = match expected {
                    Some(expected) => State::Compare { expected },
                    None => State::Last { writing: false },
                };
                submit(Op::Read, offset, len)
            }
            State::Collect(_) | State::Ended => Step::Respond(self.check(&internal_failure())),
        }
    }

    /// The response to a medium request that failed.
    pub(super) fn failed(&self, task: &Task, error: &IoError) -> Response {
        let writing = match &task.state {
            State::Read | State::Scan { .. } | State::Compare { .. } => false,
            State::Last { writing } => *writing,
            State::Unmap { .. }
            | State::Fill { .. }
            | State::CompareAndWrite { .. }
            | State::WriteAndVerify { .. }
            | State::Collect(_)
            | State::Ended => true,
        };
        match sense_of(error.kind(), writing) {
            Some(sense) => self.check(&sense),
            None => Response::status(Status::ReservationConflict),
        }
    }

    fn start_read(&mut self, task: &mut Task, extent: Extent) -> Result<Step, Sense> {
        self.check_transfer(extent)?;
        if extent.blocks == 0 {
            return Ok(respond_good());
        }
        task.state = State::Read;
        let (offset, len) = self.bytes_of(extent);
        Ok(submit(Op::Read, offset, len))
    }

    fn start_scan(&mut self, task: &mut Task, extent: Extent) -> Result<Step, Sense> {
        self.check_range(extent)?;
        let (offset, len) = self.bytes_of(extent);
        Ok(self.scan_next(task, offset, offset + len))
    }

    fn scan_next(&mut self, task: &mut Task, next: u64, end: u64) -> Step {
        let len = (end - next).min(u64::from(self.transfer_max() * self.config.info.block_len));
        if len == 0 {
            return respond_good();
        }
        task.state = State::Scan { next: next + len, end };
        submit(Op::Read, next, len)
    }

    fn start_write_same(
        &mut self,
        task: &mut Task,
        extent: Extent,
        unmap: bool,
        no_data_out: bool,
    ) -> Result<Step, Sense> {
        self.check_writable()?;
        if unmap && !self.config.info.can_discard {
            return Err(Sense::invalid_cdb(1, Some(3)));
        }
        self.check_range(extent)?;
        // WSNZ is reported: zero does not mean the rest of the medium.
        if extent.blocks == 0 || extent.blocks > WRITE_SAME_BLOCKS_MAX {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_CDB));
        }
        self.check_announced(task, if no_data_out { 0 } else { 1 })?;
        if no_data_out {
            return Ok(self.write_zeroes(task, extent, unmap));
        }
        self.collect(task, Command::WriteSame { extent, unmap, no_data_out }, 1)
    }

    fn write_same(
        &mut self,
        task: &mut Task,
        extent: Extent,
        unmap: bool,
        data: SgList,
    ) -> Result<Step, Sense> {
        let block_len = self.config.info.block_len as usize;
        if data.len() != block_len {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT));
        }
        let block = data.to_contiguous();
        if block.iter().all(|byte| *byte == 0) {
            return Ok(self.write_zeroes(task, extent, unmap));
        }
        let (offset, len) = self.bytes_of(extent);
        if !self.enter(task, offset, len, false) {
            return Ok(Step::Respond(Response::status(Status::Busy)));
        }
        let limit = FILL_LEN_MAX.min(self.transfer_max() * self.config.info.block_len) as usize;
        let count = usize::try_from(extent.blocks).unwrap_or(usize::MAX);
        let mut pattern = BufMut::zeroed(count.min(limit / block_len).max(1) * block_len);
        pattern.chunks_exact_mut(block_len).for_each(|place| place.copy_from_slice(&block));
        Ok(self.fill_next(task, pattern.freeze(), offset, offset + len))
    }

    fn fill_next(&mut self, task: &mut Task, pattern: Buf, next: u64, end: u64) -> Step {
        let len = (end - next).min(pattern.len() as u64);
        if len == 0 {
            return respond_good();
        }
        let part = pattern.slice(0..usize::try_from(len).unwrap_or(0));
        task.state = State::Fill { pattern, next: next + len, end };
        submit_write(next, part.into(), self.must_write_through())
    }

    fn write_zeroes(&mut self, task: &mut Task, extent: Extent, unmap: bool) -> Step {
        let (offset, len) = self.bytes_of(extent);
        if !self.enter(task, offset, len, false) {
            return Step::Respond(Response::status(Status::Busy));
        }
        task.state = State::Last { writing: true };
        let flags = RequestFlags { fua: self.must_write_through(), no_unmap: !unmap };
        let op = Op::WriteZeroes;
        Step::Submit(MediumRequest { op, offset, len, flags, data: SgList::new() })
    }

    /// What a write of `len` bytes takes of its data-out. When the initiator announced less than
    /// its CDB asks for, the whole blocks are taken, and the transport reports the residual
    /// (RFC 7143, section 11.4.5).
    fn whole_blocks(&self, data: SgList, len: u64) -> SgList {
        if data.len() as u64 == len {
            return data;
        }
        let block_len = self.config.info.block_len as usize;
        let whole = data.len().min(usize::try_from(len).unwrap_or(0)) / block_len * block_len;
        data.slice(0..whole)
    }

    fn write(&mut self, task: &mut Task, extent: Extent, data: SgList, fua: bool) -> Step {
        let (offset, len) = self.bytes_of(extent);
        let data = self.whole_blocks(data, len);
        if data.is_empty() {
            return respond_good();
        }
        if !self.enter(task, offset, data.len() as u64, false) {
            return Step::Respond(Response::status(Status::Busy));
        }
        task.state = State::Last { writing: true };
        let through = (fua && self.has_cache()) || self.must_write_through();
        submit_write(offset, data, through)
    }

    fn start_unmap(&mut self, task: &mut Task, parameter_len: u16) -> Result<Step, Sense> {
        if !self.config.info.can_discard {
            return Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
        }
        self.check_writable()?;
        match parameter_len {
            0 => Ok(respond_good()),
            1..=7 => Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR)),
            _ => {
                task.state = State::Collect(Command::Unmap { parameter_len });
                Ok(Step::DataOut { len: u32::from(parameter_len) })
            }
        }
    }

    /// Reads the parameter list of UNMAP (SBC-3, section 5.28.2); nothing is unmapped unless all
    /// of it is right.
    fn unmap(&mut self, task: &mut Task, list: &[u8]) -> Result<Step, Sense> {
        let cut_off = Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
        let len = usize::from(be16(list, 2).ok_or(cut_off)?);
        let body = list.get(8..).ok_or(cut_off)?;
        // A length that reaches past the list means the list (SBC-3, section 5.28.2).
        let descriptors = body.get(..len.min(body.len())).ok_or(cut_off)?.chunks_exact(16);
        if descriptors.len() > UNMAP_EXTENTS_MAX as usize {
            return Err(Sense::invalid_parameter(2));
        }
        let mut rest = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors.rev() {
            let extent = Extent {
                lba: be64(descriptor, 0).ok_or(cut_off)?,
                blocks: be32(descriptor, 8).ok_or(cut_off)?,
            };
            self.check_range(extent)?;
            if extent.blocks != 0 {
                rest.push(extent);
            }
        }
        Ok(self.unmap_next(task, rest))
    }

    fn unmap_next(&mut self, task: &mut Task, mut rest: Vec<Extent>) -> Step {
        if let Some(slot) = task.slot.take() {
            self.exclusion.leave(slot);
        }
        let Some(extent) = rest.pop() else { return respond_good() };
        let (offset, len) = self.bytes_of(extent);
        if !self.enter(task, offset, len, false) {
            return Step::Respond(Response::status(Status::Busy));
        }
        task.state = State::Unmap { rest };
        submit(Op::Discard, offset, len)
    }

    fn flush(&self, task: &mut Task) -> Step {
        task.state = State::Last { writing: true };
        submit(Op::Flush, 0, 0)
    }

    /// Asks for `blocks` of data-out, or ends the command when that is none.
    fn collect(&self, task: &mut Task, command: Command, blocks: u32) -> Result<Step, Sense> {
        if blocks == 0 {
            return Ok(respond_good());
        }
        let len = blocks.checked_mul(self.config.info.block_len).ok_or(internal_failure())?;
        task.state = State::Collect(command);
        Ok(Step::DataOut { len })
    }

    fn check_transfer(&self, extent: Extent) -> Result<(), Sense> {
        self.check_range(extent)?;
        if extent.blocks > self.transfer_max() {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_CDB));
        }
        Ok(())
    }

    /// Refuses a command whose initiator announced other data than its CDB describes: the two
    /// disagree on what is to be written.
    fn check_announced(&self, task: &Task, blocks: u32) -> Result<(), Sense> {
        let expected = u64::from(blocks) * u64::from(self.config.info.block_len);
        if u64::from(task.announced) != expected {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_CDB));
        }
        Ok(())
    }

    /// Enters a write of these bytes; false when it has to be tried again.
    fn enter(&mut self, task: &mut Task, offset: u64, len: u64, exclusive: bool) -> bool {
        assert!(task.slot.is_none(), "a command writes one range at a time");
        task.slot = self.exclusion.enter(offset..offset + len, exclusive);
        task.slot.is_some()
    }

    const fn has_cache(&self) -> bool {
        self.config.info.volatile_cache
    }

    /// Whether the initiator switched a cache off that the device has.
    const fn must_write_through(&self) -> bool {
        self.config.info.volatile_cache && !self.mode.write_cache
    }

    /// Offset and length in bytes of a range that was checked.
    fn bytes_of(&self, extent: Extent) -> (u64, u64) {
        let block_len = u64::from(self.config.info.block_len);
        (extent.lba * block_len, u64::from(extent.blocks) * block_len)
    }
}

/// Refuses data-out of another length where a part of it means nothing.
fn check_complete(data: &SgList, len: u64) -> Result<(), Sense> {
    if data.len() as u64 != len {
        return Err(Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT));
    }
    Ok(())
}

fn submit(op: Op, offset: u64, len: u64) -> Step {
    let flags = RequestFlags::default();
    Step::Submit(MediumRequest { op, offset, len, flags, data: SgList::new() })
}

fn submit_write(offset: u64, data: SgList, fua: bool) -> Step {
    let (len, flags) = (data.len() as u64, RequestFlags { fua, no_unmap: false });
    Step::Submit(MediumRequest { op: Op::Write, offset, len, flags, data })
}

const fn internal_failure() -> Sense {
    Sense::new(SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE)
}

fn miscompare(at: usize) -> Sense {
    Sense::new(SenseKey::Miscompare, Additional::MISCOMPARE_DURING_VERIFY)
        .with_information(at as u64)
}

/// Where two equally long lists differ first.
fn first_difference(left: &SgList, right: &SgList) -> Option<usize> {
    let (left, right) = (left.to_contiguous(), right.to_contiguous());
    if left.len() != right.len() {
        return Some(left.len().min(right.len()));
    }
    if *left == *right {
        return None;
    }
    left.iter().zip(right.iter()).position(|(one, other)| one != other)
}
