//! WRITE SAME, UNMAP, and what is mapped: GET LBA STATUS (SBC-3, sections 5.43 to 5.46, 5.28 and
//! 5.6).

use alloc::vec::Vec;

use netraid_block::{Buf, BufMut, Op, RequestFlags, SgList, extents::Extents, narrow};

use super::{
    LogicalUnit, MediumRequest, Response, Step, Stop, Task,
    medium::{State, internal_failure, submit, submit_write},
    report::{UNMAP_BLOCKS_MAX, UNMAP_EXTENTS_MAX, WRITE_SAME_BLOCKS_MAX},
    respond_good,
};
use crate::{
    bytes::{be16, be32, be64},
    capacity::lba_status,
    cdb::{DataOut, Extent},
    sense::{Additional, Sense},
};

/// Longest buffer that WRITE SAME repeats its block in, in bytes.
const FILL_LEN_MAX: u32 = 1 << 16;

impl LogicalUnit {
    pub(super) fn start_write_same(
        &mut self,
        task: &mut Task,
        extent: Extent,
        unmap: bool,
        no_data_out: bool,
    ) -> Result<Step, Stop> {
        self.check_writable()?;
        if unmap && !self.info().can_discard {
            return Err(Sense::invalid_cdb(1, Some(3)).into());
        }
        self.check_range(extent)?;
        // WSNZ is reported: zero does not mean the rest of the medium.
        if extent.blocks == 0 || extent.blocks > WRITE_SAME_BLOCKS_MAX {
            return Err(task.invalid_length().into());
        }
        self.check_announced(task, if no_data_out { 0 } else { 1 })?;
        if no_data_out {
            return self.write_zeroes(task, extent, unmap);
        }
        let out = DataOut::WriteSame { extent, unmap, no_data_out };
        self.collect(task, out, 1, self.fill_blocks(extent))
    }

    pub(super) fn write_same(
        &mut self,
        task: &mut Task,
        extent: Extent,
        unmap: bool,
        data: SgList,
    ) -> Result<Step, Stop> {
        let block_len = self.info().block_len as usize;
        if data.len() != block_len {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT).into());
        }
        let block = data.to_contiguous();
        if block.iter().all(|byte| *byte == 0) {
            return self.write_zeroes(task, extent, unmap);
        }
        let (offset, len) = self.bytes_of(extent);
        self.enter(task, offset, len, false)?;
        let mut pattern = BufMut::zeroed(self.fill_blocks(extent) as usize * block_len);
        pattern.chunks_exact_mut(block_len).for_each(|place| place.copy_from_slice(&block));
        Ok(self.fill_next(task, pattern.freeze(), offset, offset + len))
    }

    /// How often WRITE SAME repeats its block in one buffer.
    fn fill_blocks(&self, extent: Extent) -> u32 {
        let most = FILL_LEN_MAX / self.info().block_len;
        extent.blocks.min(most).min(self.transfer_max()).max(1)
    }

    pub(super) fn fill_next(&mut self, task: &mut Task, pattern: Buf, next: u64, end: u64) -> Step {
        let len = (end - next).min(pattern.len() as u64);
        if len == 0 {
            return respond_good();
        }
        let part = pattern.slice(0..narrow(len));
        task.state = State::Fill { pattern, next: next + len, end };
        submit_write(next, part.into(), self.must_write_through())
    }

    fn write_zeroes(&mut self, task: &mut Task, extent: Extent, unmap: bool) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        self.enter(task, offset, len, false)?;
        task.state = State::Last { writing: true };
        let flags = RequestFlags { fua: self.must_write_through(), no_unmap: !unmap };
        let op = Op::WriteZeroes;
        Ok(Step::Submit(MediumRequest { op, offset, len, flags, data: SgList::new() }))
    }

    pub(super) fn start_unmap(
        &mut self,
        task: &mut Task,
        parameter_len: u16,
    ) -> Result<Step, Stop> {
        self.check_writable()?;
        match parameter_len {
            0 => Ok(respond_good()),
            1..=7 => Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR).into()),
            _ => {
                task.state = State::Collect(DataOut::Unmap { parameter_len });
                // The ranges, read.
                let ranges = u64::from(parameter_len / 16).min(u64::from(UNMAP_EXTENTS_MAX));
                let memory = ranges * size_of::<Extent>() as u64;
                Ok(Step::DataOut { len: u32::from(parameter_len), memory })
            }
        }
    }

    /// Reads the parameter list of UNMAP (SBC-3, section 5.28.2); nothing is unmapped unless all
    /// of it is right.
    pub(super) fn unmap(&mut self, task: &mut Task, list: &[u8]) -> Result<Step, Stop> {
        let cut_off = Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
        let len = usize::from(be16(list, 2).ok_or(cut_off)?);
        let body = list.get(8..).ok_or(cut_off)?;
        // A length that reaches past the list means the list (SBC-3, section 5.28.2).
        let descriptors = body.get(..len.min(body.len())).ok_or(cut_off)?.chunks_exact(16);
        if descriptors.len() > UNMAP_EXTENTS_MAX as usize {
            return Err(Sense::invalid_parameter(2).into());
        }
        let mut rest = Vec::with_capacity(descriptors.len());
        let mut allowed = UNMAP_BLOCKS_MAX;
        for descriptor in descriptors.rev() {
            let extent = Extent {
                lba: be64(descriptor, 0).ok_or(cut_off)?,
                blocks: be32(descriptor, 8).ok_or(cut_off)?,
            };
            self.check_range(extent)?;
            // MAXIMUM UNMAP LBA COUNT is of all ranges together (SBC-3, section 5.28.1).
            allowed = allowed.checked_sub(extent.blocks).ok_or(Sense::invalid_parameter(2))?;
            if extent.blocks != 0 {
                rest.push(extent);
            }
        }
        self.unmap_next(task, rest)
    }

    pub(super) fn unmap_next(
        &mut self,
        task: &mut Task,
        mut rest: Vec<Extent>,
    ) -> Result<Step, Stop> {
        if let Some(slot) = task.slot.take() {
            self.exclusion.leave(slot);
        }
        let Some(extent) = rest.pop() else { return Ok(respond_good()) };
        let (offset, len) = self.bytes_of(extent);
        self.enter(task, offset, len, false)?;
        task.state = State::Unmap { rest };
        Ok(submit(Op::Discard, offset, len))
    }

    pub(super) fn start_lba_status(
        &mut self,
        task: &mut Task,
        lba: u64,
        allocation_len: u32,
    ) -> Result<Step, Stop> {
        if lba >= self.blocks() {
            return Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE).into());
        }
        if !self.info().can_map {
            let data = lba_status(lba, [(self.blocks() - lba, true)]);
            return Ok(Step::Respond(Response::data(&data, allocation_len)));
        }
        task.state = State::Extents { lba, allocation_len };
        let offset = lba * u64::from(self.info().block_len);
        Ok(submit(Op::Extents, offset, self.info().capacity - offset))
    }

    pub(super) fn lba_status(
        &self,
        lba: u64,
        allocation_len: u32,
        answer: &SgList,
    ) -> Result<Step, Stop> {
        let block_len = u64::from(self.info().block_len);
        // The medium may have become smaller meanwhile.
        let len = self.blocks().saturating_sub(lba) * block_len;
        let extents = Extents::decode(answer, len).map_err(|_| internal_failure())?;
        let data = lba_status(lba, block_runs(&extents, block_len));
        Ok(Step::Respond(Response::data(&data, allocation_len)))
    }
}

/// Runs of whole blocks: one that is mapped in part is mapped. What is left of a block at the end
/// is not told.
fn block_runs(extents: &Extents, block_len: u64) -> Vec<(u64, bool)> {
    let mut out: Vec<(u64, bool)> = Vec::with_capacity(extents.runs().len());
    let mut add = |blocks: u64, mapped: bool| match out.last_mut() {
        _ if blocks == 0 => {}
        Some((last, alike)) if *alike == mapped => *last += blocks,
        _ => out.push((blocks, mapped)),
    };
    // Blocks that were told, and where the runs are, in bytes.
    let (mut told, mut at) = (0, 0);
    for run in extents.runs() {
        at += run.len;
        let end = if run.mapped { at.div_ceil(block_len) } else { at / block_len };
        if !run.mapped {
            let start = (at - run.len).div_ceil(block_len);
            add(start.saturating_sub(told), true);
            told = told.max(start);
        }
        add(end.saturating_sub(told), run.mapped);
        told = told.max(end);
    }
    out
}
