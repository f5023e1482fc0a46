//! EXTENDED COPY and RECEIVE COPY RESULTS: copies between the logical units of one target
//! (SPC-4, sections 6.4 and 6.17).
//!
//! A copy reads a piece from its source, writes it to its destination, and so on; each as a
//! request to that logical unit. The nexus that asks must have access to both.

use alloc::boxed::Box;

use netraid_block::{IoError, Op, RequestFlags, SgList};

use super::{Place, TargetDevice};
use crate::{
    cdb::{Access, Command, CopyQuestion, Extent},
    copy::{
        COPIES_MAX, CopyList, CopyResult, Cscd, ListIdUsage, PIECE_LEN_MAX, Piece, Pieces, Segment,
        operating_parameters, parameter_len_max,
    },
    inquiry::decode_designators,
    sense::{Additional, Sense, SenseKey, Status},
    unit::{MediumRequest, NexusId, Refusal, Response, Step, Task, WriteSlot},
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

/// Why a copy does not go on.
enum Stop {
    /// With this sense data.
    Failed(Sense),
    /// Another command is in the way; nothing was copied.
    Busy,
}

impl From<Sense> for Stop {
    fn from(sense: Sense) -> Self {
        Self::Failed(sense)
    }
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
        Step::DataOut { len: parameter_len }
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
                Err(Stop::Busy) if copy.written == 0 => {
                    let nexus = task.nexus();
                    self.copy_aborted(nexus, copy);
                    return Step::Respond(Response::status(Status::Busy));
                }
                Err(Stop::Busy) => {
                    let sense = failed_segment(Additional::THIRD_PARTY_FAILURE);
                    return Step::Respond(self.end_copy(task, copy, Err(sense)));
                }
                Err(Stop::Failed(sense)) => {
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
        let slot = place.unit.enter_write(*to_at, len).ok_or(Stop::Busy)?;
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
        let segment = u16::try_from(copy.at).unwrap_or(u16::MAX);
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

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use netraid_block::{Buf, DeviceInfo, ErrorKind};

    use super::*;
    use crate::{
        cdb::build,
        copy::lists::{block_to_block, identification, list},
        sense::SenseFormat,
        unit::{
            Identity, UnitConfig, encode_lun,
            tests::{config, nexus},
        },
    };

    const NEXUS: NexusId = NexusId(1);
    const OTHER: NexusId = NexusId(2);

    /// Two logical units over plain bytes; the second has blocks of the given length.
    struct Bench {
        target: TargetDevice,
        media: [Vec<u8>; 2],
        requests: usize,
        fail_at: Option<usize>,
    }

    impl Bench {
        fn new(block_len: u32) -> Self {
            let second = UnitConfig {
                identity: Identity::for_lun("iqn.2026-01.org.example:t", 1),
                info: DeviceInfo { block_len, ..config().info },
                ..config()
            };
            let mut target = TargetDevice::new([config(), second]);
            for (id, number) in [(NEXUS, 1), (OTHER, 2)] {
                assert!(target.add_nexus(id, &nexus(number)));
                for lun in [0, 1] {
                    let tur = build::test_unit_ready();
                    let _ = target.handle_command(id, encode_lun(lun), &tur, 0);
                }
            }
            let len = usize::try_from(config().info.capacity).unwrap();
            let media = [1, 2].map(|seed| (0..len).map(|at| mix(at, seed)).collect());
            Self { target, media, requests: 0, fail_at: None }
        }

        /// Runs a command of `nexus` to LUN 0.
        fn run(&mut self, nexus: NexusId, cdb: &[u8], data: &[u8]) -> Response {
            let lun = encode_lun(0);
            let announced = u32::try_from(data.len()).unwrap();
            let (mut task, mut step) = self.target.handle_command(nexus, lun, cdb, announced);
            loop {
                step = match step {
                    Step::Respond(response) => return response,
                    Step::DataOut { len } => {
                        let sent = &data[..data.len().min(len as usize)];
                        self.target.handle_data_out(&mut task, Buf::copy_from(sent).into())
                    }
                    Step::Submit(request) => {
                        let result = self.execute(0, request);
                        self.target.handle_medium_done(&mut task, result)
                    }
                    Step::Wait | Step::Persist(_) | Step::Abort { .. } => panic!("{step:?}"),
                    Step::SubmitTo { lun, request } => {
                        let result = self.execute(lun, request);
                        self.target.handle_medium_done(&mut task, result)
                    }
                }
            }
        }

        fn execute(&mut self, lun: u16, request: MediumRequest) -> Result<SgList, IoError> {
            self.requests += 1;
            if self.fail_at == Some(self.requests) {
                return Err(ErrorKind::Medium.into());
            }
            let [start, len] =
                [request.offset, request.len].map(|value| usize::try_from(value).unwrap());
            assert!(len <= PIECE_LEN_MAX as usize);
            let medium = &mut self.media[usize::from(lun)][start..start + len];
            match request.op {
                Op::Read => Ok(Buf::copy_from(medium).into()),
                Op::Write => {
                    request.data.copy_to(medium);
                    Ok(SgList::new())
                }
                op @ (Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents) => {
                    unreachable!("{op:?}")
                }
            }
        }

        fn copy(&mut self, parameters: &[u8]) -> Response {
            self.run(NEXUS, &extended_copy(parameters.len()), parameters)
        }

        fn failure(&mut self, parameters: &[u8]) -> Sense {
            let response = self.copy(parameters);
            assert_eq!(response.status, Status::CheckCondition);
            assert_eq!(self.target.copies, 0);
            Sense::decode(&response.sense).unwrap()
        }

        fn results(&mut self, nexus: NexusId, action: u8, list_id: u8) -> Response {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1], cdb[2], cdb[13]) = (0x84, action, list_id, 255);
            self.run(nexus, &cdb, &[])
        }
    }

    fn mix(at: usize, seed: usize) -> u8 {
        at.wrapping_mul(31).wrapping_add(at >> 9).wrapping_mul(seed).to_le_bytes()[0]
    }

    fn extended_copy(parameter_len: usize) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&u32::try_from(parameter_len).unwrap().to_be_bytes());
        cdb
    }

    fn naa(lun: u16) -> u64 {
        let target = "iqn.2026-01.org.example:t";
        0x3 << 60 | Identity::for_lun(target, lun).naa
    }

    fn both() -> [Vec<u8>; 2] {
        [0, 1].map(|lun| {
            let mut descriptor = identification(naa(lun));
            // No claim about the length of blocks.
            descriptor[28..32].fill(0);
            descriptor
        })
    }

    #[test]
    fn blocks_go_from_one_unit_to_another_and_back() {
        let mut bench = Bench::new(512);
        let original = bench.media.clone();
        let segments =
            [block_to_block((0, 10), (1, 100), 2000), block_to_block((1, 0), (0, 3000), 7)];
        let response = bench.copy(&list(3, &both(), &segments));
        assert_eq!(response.status, Status::Good);
        let mut expected = original.clone();
        expected[1][100 * 512..2100 * 512].copy_from_slice(&original[0][10 * 512..2010 * 512]);
        expected[0][3000 * 512..3007 * 512].copy_from_slice(&original[1][..7 * 512]);
        assert!(bench.media == expected);
        let status = bench.results(NEXUS, 0, 3).data_in.to_contiguous();
        let written = u32::try_from(2007 * 512).unwrap().to_be_bytes();
        assert_eq!((&status[..8], &status[8..]), (&[0, 0, 0, 8, 1, 0, 2, 0][..], &written[..]));
    }

    #[test]
    fn a_block_count_is_in_blocks_of_the_source_unless_dc_says_otherwise() {
        for (dc, len) in [(0, 8 * 512), (2, 8 * 4096)] {
            let mut bench = Bench::new(4096);
            let original = bench.media.clone();
            let mut segment = block_to_block((0, 0), (1, 1), 8);
            segment[1] = dc;
            assert_eq!(bench.copy(&list(0, &both(), &[segment])).status, Status::Good);
            let mut expected = original.clone();
            expected[1][4096..4096 + len].copy_from_slice(&original[0][..len]);
            assert!(bench.media == expected, "DC {dc}");
        }
    }

    #[test]
    fn parts_of_blocks_are_refused() {
        let mut bench = Bench::new(4096);
        let sense = bench.failure(&list(0, &both(), &[block_to_block((0, 0), (1, 1), 7)]));
        assert_eq!(sense.additional, Additional::UNEXPECTED_INEXACT_SEGMENT);
        let mut wrong = both();
        wrong[1][28..32].copy_from_slice(&512_u32.to_be_bytes());
        let sense = bench.failure(&list(0, &wrong, &[block_to_block((0, 0), (1, 1), 8)]));
        assert_eq!(sense.additional, Additional::INCORRECT_COPY_TARGET_TYPE);
        assert_eq!(bench.requests, 0);
    }

    #[test]
    fn the_failing_segment_is_named_and_can_be_asked_after() {
        let mut bench = Bench::new(512);
        let good = block_to_block((0, 0), (1, 0), 1);
        for (bad, additional) in [
            (block_to_block((0, 0), (1, 4095), 2), Additional::NONE),
            (block_to_block((0, u64::MAX), (1, 0), 1), Additional::NONE),
            (block_to_block((0, 0), (2, 0), 1), Additional::COPY_TARGET_NOT_REACHABLE),
        ] {
            let sense = bench.failure(&list(9, &both(), &[good.clone(), bad]));
            assert_eq!((sense.key, sense.additional), (SenseKey::CopyAborted, additional));
            assert_eq!(sense.command_specific, Some(1));
            let details = bench.results(NEXUS, 4, 9).data_in.to_contiguous();
            assert_eq!(details[60..], sense.encode(SenseFormat::Fixed));
            let status = bench.results(NEXUS, 0, 9).data_in.to_contiguous();
            assert_eq!(status[4..7], [2, 0, 1]);
        }
        let unknown = identification(77);
        let sense = bench.failure(&list(9, &[unknown], &[block_to_block((0, 0), (0, 8), 1)]));
        assert_eq!(sense.additional, Additional::COPY_TARGET_NOT_REACHABLE);
    }

    #[test]
    fn a_device_that_fails_ends_the_copy() {
        for fail_at in [1, 2, 3] {
            let mut bench = Bench::new(512);
            bench.fail_at = Some(fail_at);
            let sense = bench.failure(&list(0, &both(), &[block_to_block((0, 0), (1, 0), 2000)]));
            assert_eq!(sense.additional, Additional::THIRD_PARTY_FAILURE);
            assert_eq!(bench.requests, fail_at);
        }
    }

    #[test]
    fn a_reservation_and_write_protection_hold_for_both_ends() {
        let mut bench = Bench::new(512);
        let (_, step) =
            bench.target.handle_command(OTHER, encode_lun(1), &[0x16, 0, 0, 0, 0, 0], 0);
        assert!(matches!(step, Step::Respond(Response { status: Status::Good, .. })));
        for segment in [block_to_block((0, 0), (1, 0), 1), block_to_block((1, 0), (0, 0), 1)] {
            let sense = bench.failure(&list(0, &both(), &[segment]));
            assert_eq!(sense.additional, Additional::THIRD_PARTY_FAILURE);
        }
        let (_, step) =
            bench.target.handle_command(OTHER, encode_lun(0), &[0x16, 0, 0, 0, 0, 0], 0);
        assert!(matches!(step, Step::Respond(Response { status: Status::Good, .. })));
        let own = list(0, &both(), &[block_to_block((0, 0), (0, 9), 1)]);
        assert_eq!(bench.copy(&own).status, Status::ReservationConflict);
        assert_eq!(bench.requests, 0);

        let mut bench = Bench::new(512);
        let info = DeviceInfo { read_only: true, ..config().info };
        assert!(bench.target.handle_changed(1, info));
        let sense = bench.failure(&list(0, &both(), &[block_to_block((0, 0), (1, 0), 1)]));
        assert_eq!(sense.additional, Additional::THIRD_PARTY_FAILURE);
        let from = list(0, &both(), &[block_to_block((1, 0), (0, 0), 1)]);
        assert_eq!(bench.copy(&from).status, Status::Good);
    }

    #[test]
    fn compare_and_write_keeps_off_the_destination_until_the_copy_has_ended() {
        let mut bench = Bench::new(512);
        let parameters = list(0, &both(), &[block_to_block((0, 0), (1, 0), 8)]);
        let cdb = extended_copy(parameters.len());
        let (mut task, step) = bench.target.handle_command(NEXUS, encode_lun(0), &cdb, 0);
        assert!(matches!(step, Step::DataOut { .. }), "{step:?}");
        let data = Buf::copy_from(&parameters).into();
        let step = bench.target.handle_data_out(&mut task, data);
        assert!(matches!(step, Step::SubmitTo { lun: 0, .. }), "{step:?}");
        let mut compare = vec![0; 16];
        (compare[0], compare[9], compare[13]) = (0x89, 7, 1);
        let attempt = |target: &mut TargetDevice| {
            let lun = encode_lun(1);
            let (mut other, step) = target.handle_command(OTHER, lun, &compare, 1024);
            assert!(matches!(step, Step::DataOut { .. }), "{step:?}");
            let step = target.handle_data_out(&mut other, Buf::copy_from(&[0; 1024]).into());
            target.handle_abort(other);
            step
        };
        let step = attempt(&mut bench.target);
        assert!(matches!(step, Step::Respond(Response { status: Status::Busy, .. })), "{step:?}");
        bench.target.handle_abort(task);
        assert_eq!(bench.target.copies, 0);
        let step = attempt(&mut bench.target);
        assert!(matches!(step, Step::Submit(_)), "{step:?}");
        assert_eq!(bench.results(NEXUS, 0, 0).status, Status::CheckCondition, "forgotten");
    }

    #[test]
    fn a_unit_that_goes_away_ends_the_copy() {
        let mut bench = Bench::new(512);
        let parameters = list(0, &both(), &[block_to_block((0, 0), (1, 0), 8)]);
        let cdb = extended_copy(parameters.len());
        let (mut task, _) = bench.target.handle_command(NEXUS, encode_lun(0), &cdb, 0);
        let data = Buf::copy_from(&parameters).into();
        let step = bench.target.handle_data_out(&mut task, data);
        assert!(matches!(step, Step::SubmitTo { lun: 0, .. }), "{step:?}");
        bench.target.retire(1);
        bench.target.remove(1);
        let read = Buf::copy_from(&[0; 4096]).into();
        let step = bench.target.handle_medium_done(&mut task, Ok(read));
        let Step::Respond(response) = step else { panic!("{step:?}") };
        let sense = Sense::decode(&response.sense).unwrap();
        assert_eq!(sense.additional, Additional::COPY_TARGET_NOT_REACHABLE);
        assert_eq!(bench.target.copies, 0);
    }

    #[test]
    fn a_copy_that_found_its_destination_busy_can_be_asked_for_again() {
        let mut bench = Bench::new(512);
        let mut compare = vec![0; 16];
        (compare[0], compare[13]) = (0x89, 1);
        let lun = encode_lun(1);
        let (mut other, _) = bench.target.handle_command(OTHER, lun, &compare, 1024);
        let zeros = Buf::copy_from(&[0; 1024]).into();
        let step = bench.target.handle_data_out(&mut other, zeros);
        assert!(matches!(step, Step::Submit(_)), "{step:?}");
        let parameters = list(3, &both(), &[block_to_block((0, 0), (1, 0), 8)]);
        assert_eq!(bench.copy(&parameters).status, Status::Busy);
        bench.target.handle_abort(other);
        assert_eq!(bench.copy(&parameters).status, Status::Good);
    }

    #[test]
    fn a_unit_that_is_being_erased_is_not_copied() {
        let mut bench = Bench::new(512);
        let parameters = list(0, &both(), &[block_to_block((1, 0), (0, 0), 4000)]);
        let cdb = extended_copy(parameters.len());
        let (mut task, _) = bench.target.handle_command(NEXUS, encode_lun(0), &cdb, 0);
        let data = Buf::copy_from(&parameters).into();
        let step = bench.target.handle_data_out(&mut task, data);
        let Step::SubmitTo { lun: 1, request } = step else { panic!("{step:?}") };
        let piece = Buf::copy_from(&vec![0; usize::try_from(request.len).unwrap()]);
        let step = bench.target.handle_medium_done(&mut task, Ok(piece.into()));
        assert!(matches!(step, Step::SubmitTo { lun: 0, .. }), "{step:?}");
        let erase = [0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0];
        let (_, step) = bench.target.handle_command(OTHER, encode_lun(1), &erase, 0);
        assert!(matches!(step, Step::Wait), "{step:?}");
        let step = bench.target.handle_medium_done(&mut task, Ok(SgList::new()));
        let Step::Respond(response) = step else { panic!("copies what is erased: {step:?}") };
        let sense = Sense::decode(&response.sense).unwrap();
        assert_eq!(sense.additional, Additional::THIRD_PARTY_FAILURE);
    }

    #[test]
    fn copies_at_once_are_bounded() {
        let mut bench = Bench::new(512);
        let cdb = extended_copy(100);
        let mut tasks = Vec::new();
        for _ in 0..COPIES_MAX {
            let (task, step) = bench.target.handle_command(NEXUS, encode_lun(0), &cdb, 100);
            assert!(matches!(step, Step::DataOut { len: 100 }), "{step:?}");
            tasks.push(task);
        }
        assert_eq!(bench.run(OTHER, &cdb, &[0; 100]).status, Status::Busy);
        bench.target.handle_abort(tasks.remove(0));
        let (_, step) = bench.target.handle_command(OTHER, encode_lun(0), &cdb, 100);
        assert!(matches!(step, Step::DataOut { .. }), "{step:?}");
    }

    #[test]
    fn an_empty_list_is_no_error_and_a_long_one_is() {
        let mut bench = Bench::new(512);
        assert_eq!(bench.copy(&[]).status, Status::Good);
        let sense = bench.failure(&vec![0; parameter_len_max() + 1]);
        assert_eq!(sense.additional, Additional::PARAMETER_LIST_LENGTH_ERROR);
        assert_eq!(bench.results(NEXUS, 3, 0).status, Status::Good);
        assert_eq!(bench.results(NEXUS, 0, 200).status, Status::CheckCondition);
    }
}
