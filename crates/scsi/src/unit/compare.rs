//! Commands that read before they write, or instead: VERIFY, WRITE AND VERIFY, COMPARE AND WRITE
//! and ORWRITE (SBC-3, sections 5.29 to 5.40, 5.2 and 5.7).
//!
//! Invariant: between the read and the write of one of these no other write of its range is
//! under way.

use netraid_block::{BufMut, SgList};

use super::{
    LogicalUnit, Step, Stop, Task,
    medium::{Expected, State, check_complete, submit_write},
    respond_good,
};
use crate::{
    cdb::{ByteCheck, DataOut, Extent},
    sense::{Additional, Sense, SenseKey},
};

impl LogicalUnit {
    pub(super) fn start_verify(
        &mut self,
        task: &mut Task,
        extent: Extent,
        check: ByteCheck,
    ) -> Result<Step, Stop> {
        self.check_transfer(task, extent)?;
        let out = DataOut::Verify { extent, check };
        match check {
            ByteCheck::Medium if extent.blocks == 0 => Ok(respond_good()),
            ByteCheck::Medium => {
                let (offset, len) = self.bytes_of(extent);
                task.state = State::Verify(Expected::Anything);
                Ok(task.read(offset, len))
            }
            ByteCheck::Compare => self.collect(task, out, extent.blocks, extent.blocks),
            ByteCheck::CompareOne => self.collect(task, out, extent.blocks.min(1), extent.blocks),
        }
    }

    pub(super) fn verify(
        &mut self,
        task: &mut Task,
        extent: Extent,
        check: ByteCheck,
        data: SgList,
    ) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        let expected = if check == ByteCheck::CompareOne {
            check_complete(&data, u64::from(self.info().block_len))?;
            Expected::Every(data.to_contiguous())
        } else {
            check_complete(&data, len)?;
            Expected::All(data)
        };
        task.state = State::Verify(expected);
        Ok(task.read(offset, len))
    }

    /// What a VERIFY or WRITE AND VERIFY verifies is read.
    pub(super) fn verified(
        &self,
        task: &Task,
        read: &SgList,
        expected: &Expected,
    ) -> Result<Step, Stop> {
        match expected {
            Expected::Anything => {}
            Expected::Every(block) => {
                self.check_equal(task, read, core::iter::repeat(&**block))?;
            }
            Expected::All(all) => self.check_equal(task, read, parts(all))?,
        }
        Ok(respond_good())
    }

    /// Where they differ: INFORMATION is the block's address (SPC-4, section 4.5.3).
    fn check_equal<'a>(
        &self,
        task: &Task,
        read: &SgList,
        expected: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Sense> {
        let Some(at) = first_difference(task, read, expected) else { return Ok(()) };
        Err(miscompare((task.reading.0 + at) / u64::from(self.info().block_len)))
    }

    pub(super) fn write_and_verify(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        check: ByteCheck,
    ) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        let data = self.whole_blocks(data, len);
        let len = data.len() as u64;
        if len == 0 {
            return Ok(respond_good());
        }
        self.enter(task, offset, len, false)?;
        let expected = match check {
            ByteCheck::Compare => Expected::All(data.clone()),
            ByteCheck::Medium | ByteCheck::CompareOne => Expected::Anything,
        };
        task.state = State::WriteAndVerify { offset, len, expected };
        Ok(submit_write(offset, data, true))
    }

    pub(super) fn start_compare_and_write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        fua: bool,
    ) -> Result<Step, Stop> {
        self.check_writable()?;
        self.check_range(extent)?;
        if extent.blocks > u32::from(self.compare_and_write_max()) {
            return Err(Sense::invalid_cdb(13, None).into());
        }
        self.check_announced(task, extent.blocks * 2)?;
        let out = DataOut::CompareAndWrite { extent, fua };
        self.collect(task, out, extent.blocks * 2, extent.blocks)
    }

    pub(super) fn compare_and_write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        fua: bool,
    ) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        check_complete(&data, len * 2)?;
        self.enter(task, offset, len, true)?;
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
    ) -> Result<Step, Stop> {
        let half = data.len() / 2;
        if let Some(at) = first_difference(task, read, parts(&data.slice(0..half))) {
            // INFORMATION is the offset in the data-out buffer (SBC-3, section 5.2).
            return Err(miscompare(at).into());
        }
        Ok(self.last_write(task, offset, data.slice(half..half * 2), fua))
    }

    pub(super) fn or_write(
        &mut self,
        task: &mut Task,
        extent: Extent,
        data: SgList,
        fua: bool,
    ) -> Result<Step, Stop> {
        let (offset, len) = self.bytes_of(extent);
        check_complete(&data, len)?;
        self.enter(task, offset, len, true)?;
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
        let mut rest = &mut merged[..];
        for part in parts(data) {
            let (bytes, behind) = rest.split_at_mut(part.len());
            bytes.iter_mut().zip(part).for_each(|(byte, bits)| *byte |= bits);
            rest = behind;
        }
        self.last_write(task, offset, merged.freeze().into(), fua)
    }
}

const fn miscompare(information: u64) -> Sense {
    Sense::new(SenseKey::Miscompare, Additional::MISCOMPARE_DURING_VERIFY)
        .with_information(information)
}

fn parts(list: &SgList) -> impl Iterator<Item = &[u8]> {
    list.parts().iter().map(|part| &**part)
}

/// Where what a task has read differs first from bytes that are no fewer; none of them is copied.
fn first_difference<'a>(
    task: &Task,
    read: &SgList,
    mut expected: impl Iterator<Item = &'a [u8]>,
) -> Option<u64> {
    assert_eq!(read.len() as u64, task.reading.1, "a read has all its bytes");
    let mut at = 0;
    let mut wanted: &[u8] = &[];
    for mut part in parts(read) {
        while !part.is_empty() {
            if wanted.is_empty() {
                wanted = expected.next()?;
            }
            let len = part.len().min(wanted.len());
            let ((left, more), (right, behind)) = (part.split_at(len), wanted.split_at(len));
            if left != right {
                let place = left.iter().zip(right).position(|(one, other)| one != other)?;
                return Some(at + place as u64);
            }
            (part, wanted) = (more, behind);
            at += len as u64;
        }
    }
    None
}
