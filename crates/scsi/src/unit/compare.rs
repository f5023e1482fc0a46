//! Commands that read before they write, or instead: VERIFY, WRITE AND VERIFY, COMPARE AND WRITE
//! and ORWRITE (SBC-3, sections 5.29 to 5.40, 5.2 and 5.7).
//!
//! Invariant: between the read and the write of one of these no other write of its range is
//! under way.

use netraid_block::{Buf, BufMut, SgList};

use super::{
    LogicalUnit, Response, Step, Task,
    medium::{State, check_complete, submit_write},
    respond_good,
};
use crate::{
    cdb::{ByteCheck, DataOut, Extent},
    sense::{Additional, Sense, SenseKey, Status},
};

impl LogicalUnit {
    pub(super) fn start_verify(
        &mut self,
        task: &mut Task,
        extent: Extent,
        check: ByteCheck,
    ) -> Result<Step, Sense> {
        let command = DataOut::Verify { extent, check };
        match check {
            ByteCheck::Medium => {
                self.check_range(extent)?;
                let (offset, len) = self.bytes_of(extent);
                Ok(self.scan_next(task, offset, offset + len))
            }
            ByteCheck::Compare => {
                self.check_transfer(task, extent)?;
                self.collect(task, command, extent.blocks)
            }
            ByteCheck::CompareOne => {
                self.check_range(extent)?;
                self.collect(task, command, extent.blocks.min(1))
            }
        }
    }

    pub(super) fn verify(
        &mut self,
        task: &mut Task,
        extent: Extent,
        check: ByteCheck,
        data: SgList,
    ) -> Result<Step, Sense> {
        let (offset, len) = self.bytes_of(extent);
        if check == ByteCheck::CompareOne {
            check_complete(&data, u64::from(self.config.info.block_len))?;
            let block = Buf::copy_from(&data.to_contiguous());
            return Ok(self.repeat_next(task, block, offset, offset + len));
        }
        check_complete(&data, len)?;
        task.state = State::Compare { expected: data };
        Ok(task.read(offset, len))
    }

    /// Reads the next piece of a VERIFY that compares nothing.
    pub(super) fn scan_next(&mut self, task: &mut Task, next: u64, end: u64) -> Step {
        let len = self.piece(next, end);
        if len == 0 {
            return respond_good();
        }
        task.state = State::Scan { next: next + len, end };
        task.read(next, len)
    }

    /// Reads the next piece whose blocks all have to equal one.
    pub(super) fn repeat_next(&mut self, task: &mut Task, block: Buf, next: u64, end: u64) -> Step {
        let len = self.piece(next, end);
        if len == 0 {
            return respond_good();
        }
        task.state = State::CompareOne { block, next: next + len, end };
        task.read(next, len)
    }

    fn piece(&self, next: u64, end: u64) -> u64 {
        (end - next).min(u64::from(self.transfer_max() * self.config.info.block_len))
    }

    /// A piece of a VERIFY is read.
    pub(super) fn compared(&self, task: &Task, read: &SgList, expected: &SgList) -> Step {
        match first_difference(read, expected) {
            None => respond_good(),
            Some(at) => Step::Respond(self.check(&self.miscompare_at(task, at))),
        }
    }

    pub(super) fn compared_one(
        &mut self,
        task: &mut Task,
        read: &SgList,
        block: Buf,
        next: u64,
        end: u64,
    ) -> Step {
        let bytes = read.to_contiguous();
        let differs = bytes.chunks(block.len()).position(|part| part != &*block);
        match differs {
            None => self.repeat_next(task, block, next, end),
            Some(index) => {
                Step::Respond(self.check(&self.miscompare_at(task, index * block.len())))
            }
        }
    }

    /// Where VERIFY found a difference: INFORMATION is the block's address (SPC-4, section 4.5.3).
    fn miscompare_at(&self, task: &Task, at: usize) -> Sense {
        let offset = task.reading.0 + at as u64;
        miscompare(offset / u64::from(self.config.info.block_len))
    }

    pub(super) fn write_and_verify(
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

    pub(super) fn start_compare_and_write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        fua: bool,
    ) -> Result<Step, Sense> {
        self.check_writable()?;
        self.check_range(extent)?;
        if extent.blocks > u32::from(self.compare_and_write_max()) {
            return Err(Sense::invalid_cdb(13, None));
        }
        self.check_announced(task, extent.blocks * 2)?;
        self.collect(task, DataOut::CompareAndWrite { extent, fua }, extent.blocks * 2)
    }

    pub(super) fn compare_and_write(
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
        Ok(task.read(offset, len))
    }

    /// What COMPARE AND WRITE compares is read; writes when it is as expected.
    pub(super) fn compared_and_write(
        &mut self,
        task: &mut Task,
        read: &SgList,
        data: &SgList,
        offset: u64,
        fua: bool,
    ) -> Step {
        let half = data.len() / 2;
        if let Some(at) = first_difference(read, &data.slice(0..half)) {
            // INFORMATION is the offset in the data-out buffer (SBC-3, section 5.2).
            return Step::Respond(self.check(&miscompare(at as u64)));
        }
        task.state = State::Last { writing: true };
        submit_write(offset, data.slice(half..half * 2), self.through(fua))
    }

    pub(super) fn or_write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        fua: bool,
    ) -> Result<Step, Sense> {
        let (offset, len) = self.bytes_of(extent);
        check_complete(&data, len)?;
        if !self.enter(task, offset, len, true) {
            return Ok(Step::Respond(Response::status(Status::Busy)));
        }
        task.state = State::OrWrite { data, offset, fua };
        Ok(task.read(offset, len))
    }

    /// What ORWRITE changes is read.
    pub(super) fn or_write_read(
        &mut self,
        task: &mut Task,
        read: &SgList,
        data: &SgList,
        offset: u64,
        fua: bool,
    ) -> Step {
        let mut merged = BufMut::zeroed(data.len());
        read.copy_to(&mut merged);
        let bits = data.to_contiguous();
        merged.iter_mut().zip(bits.iter()).for_each(|(byte, bits)| *byte |= bits);
        task.state = State::Last { writing: true };
        submit_write(offset, merged.freeze().into(), self.through(fua))
    }
}

const fn miscompare(information: u64) -> Sense {
    Sense::new(SenseKey::Miscompare, Additional::MISCOMPARE_DURING_VERIFY)
        .with_information(information)
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
