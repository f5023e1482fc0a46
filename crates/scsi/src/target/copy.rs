//! EXTENDED COPY and RECEIVE COPY RESULTS: copies between the logical units of one target
//! (SPC-4, sections 6.4 and 6.17).
//!
//! A copy reads a piece from its source, writes it to its destination, and so on; each as a
//! request to that logical unit. The nexus that asks must have access to both.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use netraid_block::{IoError, Op, RequestFlags, SgList, narrow};

use super::{Place, TargetDevice};
use crate::{
    cdb::{Access, Command, CopyQuestion, Extent},
    copy::{
        COPIES_MAX, CopyList, CopyResult, Cscd, ListIdUsage, PIECE_LEN_MAX, Piece, Pieces, Segment,
        operating_parameters, parameter_len_max,
    },
    inquiry::decode_designators,
    sense::{Additional, Sense, SenseKey, Status},
    unit::{MediumRequest, NexusId, Refusal, Response, Step, Stop, Task, WriteSlot},
};

/// A copy under way: what its task holds.
#[derive(Debug)]
pub(crate) struct Copy {
    list: CopyList,
    /// The segment that is being copied.
    at: usize,
    current: Option<Current>,
    written: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The parameter list has not come yet.
    Collect,
    /// A piece is being read.
    Read(Piece),
    /// A piece is being written.
    Write(Piece),
}

/// A segment under way.
#[derive(Debug)]
struct Current {
    source: UnitRef,
    destination: UnitRef,
    pieces: Pieces,
    fua: bool,
    /// Keeps COMPARE AND WRITE away from the destination.
    slot: WriteSlot,
}

/// A logical unit by LUN, and which of those that had it one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UnitRef {
    lun: u16,
    incarnation: u64,
}

impl TargetDevice {
    /// Begins one of the two commands, for the logical unit of this LUN.
    pub(super) fn handle_copy_command(
        &mut self,
        lun: u16,
        mut task: Task,
        cdb: &[u8],
    ) -> (Task, Step) {
        let nexus = task.nexus();
        let Some(place) = self.serving(lun) else { return (task, Step::Respond(gone())) };
        let command = match place.unit.admit(nexus, cdb) {
            Ok((command, _)) => command,
            Err(response) => return (task, Step::Respond(response)),
        };
        (task.lun, task.incarnation) = (lun, place.incarnation);
        let step = if let Command::ExtendedCopy { parameter_len } = command {
            self.collect_copy(&mut task, parameter_len)
        } else if let Command::ReceiveCopyResults { question, list_id, allocation_len } = command {
            Step::Respond(match self.copy_results(nexus, question, list_id) {
                Ok(data) => Response::data(&data, allocation_len),
                Err(sense) => self.check(&task, &sense),
            })
        } else {
            // Its operation code led here.
            Step::Respond(self.check(&task, &internal()))
        };
        (task, step)
    }

    /// Goes on with the parameter list of a copy.
    #[cold]
    pub(super) fn copy_data(&mut self, task: &mut Task, data: &SgList) -> Step {
        let Some(mut copy) = task.copy.take() else { unreachable!("{task:?} is no copy") };
        if copy.stage != Stage::Collect {
            self.copies -= 1;
            return Step::Respond(self.check(task, &internal()));
        }
        match CopyList::parse(&data.to_contiguous()) {
            Ok(list) => copy.list = list,
            Err(sense) => {
                self.copies -= 1;
                return Step::Respond(self.check(task, &sense));
            }
        }
        let CopyList { list_id, usage, .. } = copy.list;
        if usage == ListIdUsage::Kept && !self.records.begin(task.nexus(), list_id) {
            self.copies -= 1;
            let sense = Sense::illegal(Additional::OPERATION_IN_PROGRESS);
            return Step::Respond(self.check(task, &sense));
        }
        self.copy_on(task, copy)
    }

    /// Goes on with the end of one of a copy's requests.
    #[cold]
    pub(super) fn copy_done(&mut self, task: &mut Task, result: Result<SgList, IoError>) -> Step {
        let Some(mut copy) = task.copy.take() else { unreachable!("{task:?} is no copy") };
        let stage = copy.stage;
        let (Some(current), Ok(data)) = (&copy.current, result) else {
            return Step::Respond(self.end_copy(
                task,
                copy,
                Err(failed_segment(Additional::THIRD_PARTY_FAILURE)),
            ));
        };
        match stage {
            Stage::Read(piece) => {
                assert_eq!(data.len() as u64, piece.len, "a read has all its bytes");
                let (lun, fua) = (current.destination.lun, current.fua);
                if let Err(sense) = self.check_copy(task, current.destination, Access::Write) {
                    return Step::Respond(self.end_copy(task, copy, Err(sense)));
                }
                copy.stage = Stage::Write(piece);
                task.copy = Some(copy);
                let flags = RequestFlags { fua, no_unmap: false };
                let (offset, len) = (piece.destination, piece.len);
                let request = MediumRequest { op: Op::Write, offset, len, flags, data };
                Step::SubmitTo { lun, request }
            }
            Stage::Write(piece) => {
                copy.written += piece.len;
                self.copy_on(task, copy)
            }
            Stage::Collect => Step::Respond(self.end_copy(task, copy, Err(internal()))),
        }
    }

    /// Whether the logical unit of this LUN is still the one for which a copy's next request is, that
    /// [`Step::SubmitTo`] gave.
    #[must_use]
    pub fn may_visit(&mut self, task: &Task, lun: u16) -> bool {
        let current = task.copy.as_ref().and_then(|copy| copy.current.as_ref());
        let Some(current) = current else { return false };
        let mut units = [current.source, current.destination].into_iter();
        let unit = units.find(|unit| unit.lun == lun);
        unit.is_some_and(|unit| self.place_of(unit).is_some())
    }

    /// Ends a copy whose next request is not to be submitted.
    #[cold]
    pub(super) fn copy_refused(&mut self, task: &mut Task, refusal: Refusal) -> Response {
        let Some(copy) = task.copy.take() else { unreachable!("{task:?} is no copy") };
        let additional = match refusal {
            Refusal::AccessDenied | Refusal::Busy => Additional::THIRD_PARTY_FAILURE,
            Refusal::Gone => Additional::COPY_TARGET_NOT_REACHABLE,
        };
        self.end_copy(task, copy, Err(failed_segment(additional)))
    }

    /// Gives a copy back that gets no response; its request has ended.
    #[cold]
    pub(super) fn copy_aborted(&mut self, nexus: NexusId, mut copy: Box<Copy>) {
        self.release_segment(&mut copy);
        self.copies -= 1;
        // Before its parameters came it has no identifier.
        if copy.list.usage == ListIdUsage::Kept {
            self.records.end(nexus, copy.list.list_id, None);
        }
    }

    fn collect_copy(&mut self, task: &mut Task, parameter_len: u32) -> Step {
        if parameter_len == 0 {
            return Step::Respond(Response::status(Status::Good));
        }
        if u64::from(parameter_len) > parameter_len_max() as u64 {
            let sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
            return Step::Respond(self.check(task, &sense));
        }
        if self.copies >= COPIES_MAX {
            return Step::Respond(Response::status(Status::Busy));
        }
        self.copies += 1;
        let (cscds, segments) = Default::default();
        let list = CopyList { list_id: 0, usage: ListIdUsage::None, cscds, segments };
        let stage = Stage::Collect;
        task.copy = Some(Box::new(Copy { list, at: 0, current: None, written: 0, stage }));
        Step::DataOut { len: parameter_len, memory: u64::from(PIECE_LEN_MAX) }
    }

    /// Submits the next read, or ends the copy.
    fn copy_on(&mut self, task: &mut Task, mut copy: Box<Copy>) -> Step {
        loop {
            if let Some(current) = &mut copy.current {
                if let Some(piece) = current.pieces.next() {
                    let lun = current.source.lun;
                    if let Err(sense) = self.check_copy(task, current.source, Access::Read) {
                        return Step::Respond(self.end_copy(task, copy, Err(sense)));
                    }
                    copy.stage = Stage::Read(piece);
                    task.copy = Some(copy);
                    let (offset, len) = (piece.source, piece.len);
                    let (flags, data) = (RequestFlags::default(), SgList::new());
                    let request = MediumRequest { op: Op::Read, offset, len, flags, data };
                    return Step::SubmitTo { lun, request };
                }
                self.release_segment(&mut copy);
                copy.at += 1;
            }
            let Some(segment) = copy.list.segments.get(copy.at).copied() else {
                return Step::Respond(self.end_copy(task, copy, Ok(())));
            };
            match self.begin_segment(task.nexus(), &copy.list, segment) {
                Ok(Some(current)) => copy.current = Some(current),
                Ok(None) => copy.at += 1,
                Err(Stop::Status(_)) if copy.written == 0 => {
                    let nexus = task.nexus();
                    self.copy_aborted(nexus, copy);
                    return Step::Respond(Response::status(Status::Busy));
                }
                Err(Stop::Status(_)) => {
                    let sense = failed_segment(Additional::THIRD_PARTY_FAILURE);
                    return Step::Respond(self.end_copy(task, copy, Err(sense)));
                }
                Err(Stop::Check(sense)) => {
                    return Step::Respond(self.end_copy(task, copy, Err(sense)));
                }
            }
        }
    }

    /// Checks a segment and enters the write of its destination; none when it has no blocks.
    fn begin_segment(
        &mut self,
        nexus: NexusId,
        list: &CopyList,
        segment: Segment,
    ) -> Result<Option<Current>, Stop> {
        let unreachable = || failed_segment(Additional::COPY_TARGET_NOT_REACHABLE);
        let cscd = |index: u16| list.cscds.get(usize::from(index)).ok_or_else(unreachable);
        let (from, to) = (cscd(segment.source)?, cscd(segment.destination)?);
        let source = self.find_unit(from).ok_or_else(unreachable)?;
        let destination = self.find_unit(to).ok_or_else(unreachable)?;
        let counted = if segment.counts_destination { destination } else { source };
        let block_len = |device: &mut Self, unit| {
            device.place_of(unit).map(|place| place.unit.block_len()).ok_or_else(unreachable)
        };
        let len = u64::from(segment.blocks) * u64::from(block_len(self, counted)?);
        let (from_block, to_block) = (block_len(self, source)?, block_len(self, destination)?);
        for (cscd, block_len) in [(from, from_block), (to, to_block)] {
            if ![0, block_len].contains(&cscd.block_len) {
                return Err(failed_segment(Additional::INCORRECT_COPY_TARGET_TYPE).into());
            }
        }
        if len == 0 {
            return Ok(None);
        }
        if !len.is_multiple_of(u64::from(from_block.max(to_block))) {
            // Padding is not offered (SPC-4, section 6.4.6.5, PAD and CAT).
            return Err(failed_segment(Additional::UNEXPECTED_INEXACT_SEGMENT).into());
        }
        let extent = |lba, block_len: u32| -> Result<Extent, Stop> {
            let blocks = u32::try_from(len / u64::from(block_len));
            Ok(Extent { lba, blocks: blocks.map_err(|_| internal())? })
        };
        let from_extent = extent(segment.source_lba, from_block)?;
        let to_extent = extent(segment.destination_lba, to_block)?;
        let place = self.place_of(source).ok_or_else(unreachable)?;
        let from_at = place.unit.copy_offset(nexus, from_extent, Access::Read);
        let source_max = place.unit.transfer_len_max();
        let place = self.place_of(destination).ok_or_else(unreachable)?;
        let to_at = place.unit.copy_offset(nexus, to_extent, Access::Write);
        let (Ok(from_at), Ok(to_at)) = (&from_at, &to_at) else {
            // A range that does not exist needs no other device to fail (as a bad index).
            let outside = [&from_at, &to_at].into_iter().any(
                |end| matches!(end, Err(sense) if sense.additional == Additional::LBA_OUT_OF_RANGE),
            );
            let why = if outside { Additional::NONE } else { Additional::THIRD_PARTY_FAILURE };
            return Err(failed_segment(why).into());
        };
        let largest = PIECE_LEN_MAX.min(source_max).min(place.unit.transfer_len_max());
        let piece_len = u64::from(largest / from_block.max(to_block) * from_block.max(to_block));
        let fua = place.unit.must_write_through();
        let slot = place.unit.enter_write(nexus, *to_at, len).ok_or(Stop::BUSY)?;
        let pieces = Pieces::new(*from_at, *to_at, len, piece_len, source == destination);
        Ok(Some(Current { source, destination, pieces, fua, slot }))
    }

    fn release_segment(&mut self, copy: &mut Copy) {
        let Some(Current { destination, slot, .. }) = copy.current.take() else { return };
        if let Some(place) = self.place_of(destination) {
            place.unit.leave_write(slot);
        }
    }

    fn end_copy(
        &mut self,
        task: &Task,
        mut copy: Box<Copy>,
        result: Result<(), Sense>,
    ) -> Response {
        self.release_segment(&mut copy);
        self.copies -= 1;
        let segment = narrow(copy.at);
        let response = match result {
            Ok(()) => Response::status(Status::Good),
            // The number of the segment (SPC-4, section 6.4.4).
            Err(sense) => self.check(task, &sense.with_command_specific(u64::from(segment))),
        };
        if copy.list.usage == ListIdUsage::Kept {
            let failed = response.status != Status::Good;
            let failure = failed.then(|| (response.status.code(), response.sense.clone()));
            let result = CopyResult { segments: segment, written: copy.written, failure };
            self.records.end(task.nexus(), copy.list.list_id, Some(result));
        }
        response
    }

    fn copy_results(
        &self,
        nexus: NexusId,
        question: CopyQuestion,
        list_id: u8,
    ) -> Result<alloc::vec::Vec<u8>, Sense> {
        let unknown = Sense::invalid_cdb(2, None);
        match question {
            CopyQuestion::OperatingParameters => Ok(operating_parameters()),
            CopyQuestion::Status => self.records.status(nexus, list_id).ok_or(unknown),
            CopyQuestion::FailedSegment => {
                self.records.failed_segment(nexus, list_id).ok_or(unknown)
            }
        }
    }

    /// The logical unit that a descriptor names by one of its own designators (VPD page 83h).
    fn find_unit(&self, cscd: &Cscd) -> Option<UnitRef> {
        if cscd.association != 0 {
            return None;
        }
        self.luns().find_map(|lun| {
            let place = self.places.get(usize::from(lun))?.as_deref()?;
            let designators = decode_designators(&place.unit.identity().identification_page())?;
            let named = designators.iter().any(|designator| {
                designator.association == 0
                    && designator.kind == cscd.kind
                    && designator.code_set == cscd.code_set
                    && designator.value == cscd.value
            });
            named.then_some(UnitRef { lun, incarnation: place.incarnation })
        })
    }

    /// Whether a copy may still use a logical unit: it is there and ready, and no reservation keeps
    /// the copy's nexus out (SPC-4, section 6.4.1).
    fn check_copy(&mut self, task: &Task, unit: UnitRef, access: Access) -> Result<(), Sense> {
        let place = self.place_of(unit);
        let place = place.ok_or(failed_segment(Additional::COPY_TARGET_NOT_REACHABLE))?;
        if !place.unit.admits_copy(task.nexus(), access) {
            return Err(failed_segment(Additional::THIRD_PARTY_FAILURE));
        }
        Ok(())
    }

    fn place_of(&mut self, unit: UnitRef) -> Option<&mut Place> {
        let place = self.places.get_mut(usize::from(unit.lun))?.as_deref_mut()?;
        (place.incarnation == unit.incarnation).then_some(place)
    }

    /// CHECK CONDITION in the format that the task's logical unit was told to use.
    fn check(&mut self, task: &Task, sense: &Sense) -> Response {
        match self.unit_of(task) {
            Some(unit) => unit.check(sense),
            None => Response::check(sense),
        }
    }
}

const fn failed_segment(additional: Additional) -> Sense {
    Sense::new(SenseKey::CopyAborted, additional)
}

const fn internal() -> Sense {
    Sense::new(SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE)
}

fn gone() -> Response {
    Response::check(&Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED))
}
