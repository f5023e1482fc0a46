//! Reservations as initiators see them: through commands to a logical unit.

use std::{vec, vec::Vec};

use netraid_block::{Buf, SgList};

use super::*;
use crate::{
    cdb::{Extent, build},
    sense::{SenseKey, Status},
    unit::{LogicalUnit, Response, Step, Task, UnitConfig, tests},
};

mod model;
mod moving_on;
mod old_reserve;
mod persisting;
mod preempting;
mod registering;
mod reserving;

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;
/// Who only looks.
const READER: u8 = 9;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

const WE: u8 = 1;
const EA: u8 = 3;
const WERO: u8 = 5;
const EARO: u8 = 6;
const WEAR: u8 = 7;
const EAAR: u8 = 8;
const TYPES: [u8; 6] = [WE, EA, WERO, EARO, WEAR, EAAR];

/// How a command ended: its status, or what its sense data says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Good,
    Conflict,
    Busy,
    Sense(SenseKey, Additional),
}

const INVALID_LIST: End =
    End::Sense(SenseKey::IllegalRequest, Additional::INVALID_FIELD_IN_PARAMETER_LIST);
const INVALID_CDB: End = End::Sense(SenseKey::IllegalRequest, Additional::INVALID_FIELD_IN_CDB);
const WRONG_LEN: End =
    End::Sense(SenseKey::IllegalRequest, Additional::PARAMETER_LIST_LENGTH_ERROR);

struct Bed {
    unit: LogicalUnit,
    /// What was stored last.
    stored: Vec<u8>,
    store_fails: bool,
    aborted: Vec<NexusId>,
}

fn id(nexus: u8) -> NexusId {
    NexusId(u64::from(nexus))
}

fn port(nexus: u8) -> InitiatorPort {
    tests::nexus(nexus).initiator
}

impl Bed {
    fn with(reservations: Reservations) -> Self {
        let unit = LogicalUnit::new(UnitConfig { reservations, ..tests::config() });
        let mut bed = Self { unit, stored: Vec::new(), store_fails: false, aborted: Vec::new() };
        for nexus in [A, B, C, READER] {
            bed.arrive(nexus);
        }
        bed
    }

    fn new() -> Self {
        Self::with(Reservations::new(true))
    }

    /// A session comes and hears what there is to hear at once.
    fn arrive(&mut self, nexus: u8) {
        assert!(self.unit.add_nexus(id(nexus), &tests::nexus(nexus)));
        while self.attention(nexus).is_some() {}
    }

    fn run(&mut self, nexus: u8, cdb: &[u8], data: &[u8]) -> Response {
        let announced = u32::try_from(data.len()).unwrap();
        let (mut task, mut step) = self.unit.handle_command(id(nexus), cdb, announced);
        loop {
            step = match step {
                Step::Respond(response) => return response,
                Step::DataOut { len, .. } => {
                    let sent = data.len().min(len as usize);
                    self.unit.handle_data_out(&mut task, Buf::copy_from(&data[..sent]).into())
                }
                Step::Submit(request) => {
                    let read = vec![0; usize::try_from(request.len).unwrap()];
                    self.unit.handle_medium_done(&mut task, Ok(Buf::copy_from(&read).into()))
                }
                Step::Wait | Step::SubmitTo { .. } => panic!("{step:?}"),
                Step::Persist(bytes) => {
                    if !self.store_fails {
                        self.stored = bytes;
                    }
                    self.unit.handle_persisted(&mut task, !self.store_fails)
                }
                Step::Abort { nexuses } => {
                    self.aborted.extend(nexuses);
                    self.unit.handle_aborted(&mut task)
                }
            }
        }
    }

    fn end(&mut self, nexus: u8, cdb: &[u8], data: &[u8]) -> End {
        let response = self.run(nexus, cdb, data);
        match response.status {
            Status::Good => End::Good,
            Status::ReservationConflict => End::Conflict,
            Status::Busy => End::Busy,
            Status::CheckCondition => {
                let sense = Sense::decode(&response.sense).unwrap();
                End::Sense(sense.key, sense.additional)
            }
            Status::ConditionMet
            | Status::TaskSetFull
            | Status::AcaActive
            | Status::TaskAborted => panic!("{:?}", response.status),
        }
    }

    fn out_list(&mut self, nexus: u8, action: u8, kind: u8, list: &[u8]) -> End {
        let [a, b, c, d] = u32::try_from(list.len()).unwrap().to_be_bytes();
        self.end(nexus, &[0x5f, action, kind, 0, 0, a, b, c, d, 0], list)
    }

    fn out(&mut self, nexus: u8, action: u8, kind: u8, key: u64, action_key: u64) -> End {
        self.out_list(nexus, action, kind, &list(key, action_key, 0))
    }

    fn register(&mut self, nexus: u8, key: u64) {
        assert_eq!(self.out(nexus, REGISTER, 0, 0, key), End::Good);
    }

    fn reserve(&mut self, nexus: u8, key: u64, kind: u8) {
        assert_eq!(self.out(nexus, RESERVE, kind, key, 0), End::Good);
    }

    fn input(&mut self, action: u8) -> Vec<u8> {
        let response = self.run(READER, &[0x5e, action, 0, 0, 0, 0, 0, 0x40, 0, 0], &[]);
        assert_eq!(response.status, Status::Good);
        response.data_in.to_contiguous().to_vec()
    }

    fn generation(&mut self) -> u32 {
        u32::from_be_bytes(self.input(0)[..4].try_into().unwrap())
    }

    fn keys(&mut self) -> Vec<u64> {
        let data = self.input(0);
        assert_eq!(data[4..8], u32::try_from(data.len() - 8).unwrap().to_be_bytes());
        data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
    }

    /// Key and type of the reservation.
    fn reservation(&mut self) -> Option<(u64, u8)> {
        let data = self.input(1);
        let key = data.get(8..16)?.try_into().unwrap();
        assert_eq!(data[4..8], [0, 0, 0, 16]);
        Some((u64::from_be_bytes(key), data[21]))
    }

    fn attention(&mut self, nexus: u8) -> Option<Additional> {
        let response = self.run(nexus, &build::test_unit_ready(), &[]);
        (response.status == Status::CheckCondition)
            .then(|| Sense::decode(&response.sense).unwrap().additional)
    }

    fn attentions(&mut self, nexus: u8) -> Vec<Additional> {
        std::iter::from_fn(|| self.attention(nexus)).collect()
    }

    fn may_read(&mut self, nexus: u8) -> bool {
        allowed(self.end(nexus, &build::read(BLOCK, false), &[]))
    }

    fn may_write(&mut self, nexus: u8) -> bool {
        allowed(self.end(nexus, &build::write(BLOCK, false, false), &[0; 512]))
    }
}

const BLOCK: Extent = Extent { lba: 0, blocks: 1 };

fn allowed(end: End) -> bool {
    match end {
        End::Good => true,
        End::Conflict => false,
        End::Busy | End::Sense(..) => panic!("{end:?}"),
    }
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    list[20] = flags;
    list
}

/// The list of SPEC_I_PT with these TransportIDs.
fn with_ports(key: u64, action_key: u64, ids: &[Vec<u8>]) -> Vec<u8> {
    let mut list = list(key, action_key, 0x08);
    let ids = ids.concat();
    list.extend(u32::try_from(ids.len()).unwrap().to_be_bytes());
    list.extend(ids);
    list
}

/// The list of REGISTER AND MOVE.
fn moving(key: u64, action_key: u64, flags: u8, to: &[u8]) -> Vec<u8> {
    let mut list = list(key, action_key, 0);
    list[17] = flags;
    list[19] = 1;
    list[20..24].copy_from_slice(&u32::try_from(to.len()).unwrap().to_be_bytes());
    list.extend(to);
    list
}
