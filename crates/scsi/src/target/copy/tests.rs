//! Copies between two logical units.

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
                Step::DataOut { len, .. } => {
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
    let segments = [block_to_block((0, 10), (1, 100), 2000), block_to_block((1, 0), (0, 3000), 7)];
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
    let (_, step) = bench.target.handle_command(OTHER, encode_lun(1), &[0x16, 0, 0, 0, 0, 0], 0);
    assert!(matches!(step, Step::Respond(Response { status: Status::Good, .. })));
    for segment in [block_to_block((0, 0), (1, 0), 1), block_to_block((1, 0), (0, 0), 1)] {
        let sense = bench.failure(&list(0, &both(), &[segment]));
        assert_eq!(sense.additional, Additional::THIRD_PARTY_FAILURE);
    }
    let (_, step) = bench.target.handle_command(OTHER, encode_lun(0), &[0x16, 0, 0, 0, 0, 0], 0);
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
        assert!(matches!(step, Step::DataOut { len: 100, .. }), "{step:?}");
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
