//! The medium under the units, and their background work.

use std::ops::Range;

use netraid_block::{Buf, ErrorKind, IoError, Op, SgList};
use netraid_scsi::{Background, MediumRequest};

use super::{Active, World};
use crate::named;

impl World {
    pub(super) fn check_request(&self, active: &Active, request: &MediumRequest) {
        let MediumRequest { op, offset, len, data, .. } = request;
        let info = self.infos[usize::from(active.lun)].as_ref().expect("a unit has a device");
        let end = offset.checked_add(*len).expect("no end");
        let block_len = u64::from(info.block_len);
        assert!(end <= info.capacity, "{op:?} past the end");
        assert!(offset % block_len == 0 && len % block_len == 0, "{op:?} is not aligned");
        assert_eq!(data.len() as u64, if *op == Op::Write { *len } else { 0 });
        let opcode = active.cdb[0];
        match op {
            Op::Read => assert!(*len <= u64::from(info.max_transfer_len) && *len > 0),
            Op::Flush | Op::Extents => {}
            Op::Write | Op::WriteZeroes | Op::Discard => {
                assert!(!info.read_only, "{opcode:#x} changes a read-only device");
                assert!(*len > 0);
                assert!(*op != Op::Discard || info.can_discard, "discards what cannot");
                let range = named(&active.cdb, block_len, info.capacity);
                let inside = range.start <= *offset && end <= range.end;
                // What UNMAP names stands in its list; FORMAT UNIT and SANITIZE name everything.
                assert!(
                    inside || matches!(opcode, 0x42 | 0x04 | 0x48),
                    "{opcode:#x} of {range:?} changes {offset} to {end}"
                );
                for other in self.active.iter().filter(|other| other.lun == active.lun) {
                    let held = named(&other.cdb, block_len, info.capacity);
                    let meets = overlap(&held, &(*offset..end));
                    assert!(
                        !(other.exclusive && meets),
                        "{opcode:#x} interrupts compare-and-write"
                    );
                }
            }
        }
        if opcode == 0x89 {
            let held = named(&active.cdb, block_len, info.capacity);
            for other in self.active.iter().filter(|other| other.lun == active.lun) {
                let Some(request) = &other.request else { continue };
                let writes = matches!(request.op, Op::Write | Op::WriteZeroes | Op::Discard);
                let range = request.offset..request.offset + request.len;
                assert!(!(writes && overlap(&held, &range)), "compare-and-write amid a write");
            }
        }
    }

    pub(super) fn complete(&mut self, which: u8, failure: u8) {
        let Some(at) = self.index(which) else { return };
        if self.active[at].waits {
            self.work(self.active[at].lun, failure);
            return;
        }
        let mut active = self.active.remove(at);
        let request = active.request.take().expect("it is at the medium or waits");
        let lun = active.at.take().unwrap_or(active.lun);
        let result = self.execute(lun, request, failure);
        let step = self.device.handle_medium_done(&mut active.task, result);
        self.go_on(active, step);
    }

    /// One step of a unit's background work; false when there is none.
    pub(super) fn work(&mut self, lun: u16, failure: u8) -> bool {
        let Some(next) = self.device.poll_background(lun) else {
            let waits = self.active.iter().any(|one| one.waits && one.lun == lun);
            let serves = self.device.luns().any(|one| one == lun);
            assert!(!(waits && serves), "a command waits for work that is not there");
            // The unit leaves, and takes its work along.
            self.wake(lun, Err(ErrorKind::Aborted));
            return false;
        };
        let result = match next {
            Background::Keep(_) if failure == 0 => Err(ErrorKind::Medium.into()),
            Background::Keep(_) => Ok(SgList::new()),
            // What began before has to end first.
            Background::Pause => Ok(SgList::new()),
            Background::Submit(request) => {
                let info = self.infos[usize::from(lun)].as_ref().expect("a unit has a device");
                assert!(request.offset + request.len <= info.capacity, "erases past the end");
                assert!(!info.read_only, "erases a read-only device");
                self.execute(lun, request, failure)
            }
            Background::Wake(result) => {
                self.wake(lun, result);
                Ok(SgList::new())
            }
        };
        self.device.handle_background_done(lun, result);
        true
    }

    /// Ends the wait of commands.
    fn wake(&mut self, lun: u16, result: Result<(), ErrorKind>) {
        let waiting = |one: &mut Active| one.waits && one.lun == lun;
        let woken: Vec<_> = self.active.extract_if(.., waiting).collect();
        for mut active in woken {
            active.waits = false;
            let result = result.map(|()| SgList::new()).map_err(Into::into);
            let step = self.device.handle_medium_done(&mut active.task, result);
            self.go_on(active, step);
        }
    }

    pub(super) fn execute(
        &mut self,
        lun: u16,
        request: MediumRequest,
        failure: u8,
    ) -> Result<SgList, IoError> {
        let MediumRequest { op, offset, len, data, .. } = request;
        let medium = &mut self.media[usize::from(lun)];
        let range = offset as usize..(offset + len) as usize;
        const FAILURES: [ErrorKind; 14] = [
            ErrorKind::OutOfRange,
            ErrorKind::Unaligned,
            ErrorKind::InvalidRequest,
            ErrorKind::Unsupported,
            ErrorKind::ReadOnly,
            ErrorKind::NoSpace,
            ErrorKind::Medium,
            ErrorKind::Corrupt,
            ErrorKind::Fenced,
            ErrorKind::Timeout,
            ErrorKind::Unreachable,
            ErrorKind::Aborted,
            ErrorKind::Redundancy,
            ErrorKind::Device,
        ];
        match (FAILURES.get(usize::from(failure)), op) {
            (Some(kind), _) => Err((*kind).into()),
            (None, Op::Read) => Ok(Buf::copy_from(&medium[range]).into()),
            (None, Op::Write) => {
                data.copy_to(&mut medium[range]);
                Ok(SgList::new())
            }
            (None, Op::WriteZeroes | Op::Discard) => {
                medium[range].fill(0);
                Ok(SgList::new())
            }
            (None, Op::Flush) => Ok(SgList::new()),
            (None, Op::Extents) => {
                Ok(netraid_block::extents::Extents::all(len, failure & 1 != 0).encode())
            }
        }
    }
}

fn overlap(one: &Range<u64>, two: &Range<u64>) -> bool {
    one.start < two.end && two.start < one.end
}
