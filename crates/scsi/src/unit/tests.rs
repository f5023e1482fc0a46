use std::{vec, vec::Vec};

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError, Op, SgList, extents::Extents};

use super::*;
use crate::{cdb::build, ports::InitiatorPort};

mod any_command;
mod compare;
mod fields;
mod limits;
mod ready;
mod report;
mod same;
mod sanitize;
mod transfer;
mod view;

const NEXUS: NexusId = NexusId(7);
const OTHER: NexusId = NexusId(8);
const BLOCKS: u64 = 4096;

pub(crate) fn config() -> UnitConfig {
    UnitConfig {
        info: DeviceInfo {
            capacity: BLOCKS * 512,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 18,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        },
        discard_zeroes: true,
        physical_len: 4096,
        removable: false,
        atomic_len: 4096,
        can_sanitize: true,
        reservations: Reservations::default(),
        identity: Identity::for_lun("iqn.2026-01.org.example:t", 0),
    }
}

pub(crate) fn nexus(number: u8) -> Nexus {
    let port = InitiatorPort::new("iqn.2026-01.org.example:i", [0x40, 0, 0, 0, 0, number]);
    Nexus::new(port.unwrap())
}

/// A logical unit over plain bytes; every step is done at once.
struct Bench {
    unit: LogicalUnit,
    medium: Vec<u8>,
    submitted: Vec<(Op, u64, u64, bool)>,
    fail_next: Option<ErrorKind>,
    bad_block: Option<u64>,
    kept: Option<Marker>,
    fail_keep: bool,
    /// What the device says of its map, from its first byte.
    mapped: Vec<(u64, bool)>,
}

impl Bench {
    fn with(config: UnitConfig) -> Self {
        let medium = vec![0; usize::try_from(config.info.capacity).unwrap()];
        let mut unit = LogicalUnit::new(config);
        assert!(unit.add_nexus(NEXUS, &nexus(7)));
        assert!(unit.add_nexus(OTHER, &nexus(8)));
        let (_, step) = unit.handle_command(NEXUS, &build::test_unit_ready(), 0);
        let Step::Respond(first) = step else { panic!() };
        let sense = Sense::decode(&first.sense).unwrap();
        assert_eq!(sense.additional, Additional::POWER_ON_OR_RESET);
        Self {
            unit,
            medium,
            submitted: Vec::new(),
            fail_next: None,
            bad_block: None,
            kept: None,
            fail_keep: false,
            mapped: Vec::new(),
        }
    }

    fn new() -> Self {
        Self::with(config())
    }

    fn run(&mut self, cdb: &[u8], data: &[u8]) -> Response {
        let announced = u32::try_from(data.len()).unwrap();
        let (mut task, mut step) = self.unit.handle_command(NEXUS, cdb, announced);
        loop {
            step = match step {
                Step::Respond(response) => return response,
                step @ (Step::Persist(_) | Step::Abort { .. }) => panic!("{step:?}"),
                Step::DataOut { len, .. } => {
                    let sent = data.len().min(len as usize);
                    let list = Buf::copy_from(&data[..sent]).into();
                    self.unit.handle_data_out(&mut task, list)
                }
                Step::SubmitTo { .. } => unreachable!("a unit knows no other"),
                Step::Submit(request) => {
                    let result = self.execute(request);
                    self.unit.handle_medium_done(&mut task, result)
                }
                Step::Wait => {
                    self.unit.begin_background();
                    let woken = self.work();
                    let result = woken.map(|()| SgList::new()).map_err(IoError::from);
                    self.unit.handle_medium_done(&mut task, result)
                }
            }
        }
    }

    /// Does the unit's background work; how whoever waited is woken.
    fn work(&mut self) -> Result<(), ErrorKind> {
        let mut woken = None;
        while let Some(next) = self.unit.poll_background() {
            let result = match next {
                Background::Keep(marker) => {
                    if self.fail_keep {
                        Err(ErrorKind::Device.into())
                    } else {
                        self.kept = marker;
                        Ok(SgList::new())
                    }
                }
                Background::Pause => panic!("nothing else is under way"),
                Background::Submit(request) => {
                    assert!(self.kept.is_some(), "a restart has to find this");
                    self.execute(request)
                }
                Background::Wake(result) => {
                    woken.get_or_insert(result);
                    Ok(SgList::new())
                }
            };
            self.unit.handle_background_done(result);
        }
        woken.expect("the task is woken")
    }

    fn execute(&mut self, request: MediumRequest) -> Result<SgList, IoError> {
        let MediumRequest { op, offset, len, flags, data } = request;
        self.submitted.push((op, offset, len, flags.fua));
        assert!(offset + len <= self.unit.config.info.capacity);
        assert_eq!(data.len() as u64, if op == Op::Write { len } else { 0 });
        if let Some(kind) = self.fail_next.take() {
            return Err(kind.into());
        }
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        match op {
            Op::Read
                if self
                    .bad_block
                    .is_some_and(|bad| (offset..offset + len).contains(&(bad * 512))) =>
            {
                return Err(ErrorKind::Medium.into());
            }
            Op::Read => return Ok(Buf::copy_from(&self.medium[range]).into()),
            Op::Write => data.copy_to(&mut self.medium[range]),
            Op::WriteZeroes | Op::Discard => self.medium[range].fill(0),
            Op::Flush => {}
            Op::Extents => {
                let mut answer = Extents::new();
                let mut at = 0;
                for (run, mapped) in &self.mapped {
                    at += run;
                    answer.push((at - offset.min(at)).min(*run), *mapped);
                }
                return Ok(answer.encode());
            }
        }
        Ok(SgList::new())
    }

    fn good(&mut self, cdb: &[u8], data: &[u8]) -> Vec<u8> {
        let response = self.run(cdb, data);
        assert_eq!(response.status, Status::Good, "{:?}", Sense::decode(&response.sense));
        response.data_in.to_contiguous().to_vec()
    }

    fn sense(&mut self, cdb: &[u8], data: &[u8]) -> Sense {
        let response = self.run(cdb, data);
        assert_eq!(response.status, Status::CheckCondition);
        Sense::decode(&response.sense).unwrap()
    }
}

fn extent(lba: u64, blocks: u32) -> Extent {
    Extent { lba, blocks }
}

/// READ or WRITE (6), (12) and others that the initiator side never sends.
fn cdb(bytes: &[u8]) -> Vec<u8> {
    let mut cdb = bytes.to_vec();
    cdb.resize(16, 0);
    cdb
}
