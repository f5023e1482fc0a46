//! A target device under any CDB with any parameter list, from several nexuses, while its logical
//! units come, change and go, and requests end in any order or fail.
//!
//! What has to hold: no panic; every command ends after a bounded number of steps; requests are
//! aligned and within the device; only a command that names bytes changes them, and nothing changes
//! a read-only device; between the read and the write of a COMPARE AND WRITE nobody else writes
//! there; sense data can be read; and afterwards nothing is held.
mod commands;
mod medium;

use arbitrary::Arbitrary;
use netraid_block::{Buf, DeviceInfo};
use netraid_scsi::{
    Identity, InitiatorPort, MediumRequest, Nexus, NexusId, Refusal, Reservations, Sense, SenseKey,
    Status, Step, TargetDevice, Task, UnitAttention, UnitConfig, cdb::build, unit::encode_lun,
};

use self::commands::check_response;
use crate::operations;

const CAPACITY: u64 = 32 << 10;
/// Most steps of one command: UNMAP has 256 ranges at most.
const STEPS_MAX: u32 = 600;
const UNDER_WAY_MAX: usize = 40;

#[derive(Debug, Arbitrary)]
enum Operation {
    Command(Command),
    Complete { which: u8, failure: u8 },
    Abort { which: u8 },
    Refuse { which: u8, kind: u8 },
    Reset { lun: u8 },
    Add { lun: u8, kind: u8 },
    Retire { lun: u8 },
    Remove { lun: u8 },
    Change { lun: u8, blocks: u8 },
    Work { lun: u8, failure: u8 },
    AddNexus { nexus: u8 },
    RemoveNexus { nexus: u8 },
    Raise { attention: u8, except: u8 },
}

#[derive(Debug, Arbitrary)]
struct Command {
    nexus: u8,
    lun: u8,
    row: u8,
    bytes: [u8; 16],
    /// Bit 0: as the bytes are; bit 1: high bytes of address and length are zero; bit 2: data that
    /// compares equal; bit 3: a list that makes sense.
    style: u8,
    announced: u16,
    data: Vec<u8>,
}

struct Active {
    task: Task,
    nexus: NexusId,
    lun: u16,
    cdb: [u8; 16],
    steps: u32,
    /// What is at the medium.
    request: Option<MediumRequest>,
    /// Holds its range against other writes.
    exclusive: bool,
    /// Another LUN, at whose device the request is.
    at: Option<u16>,
    /// For the background work of its LUN.
    waits: bool,
}

impl Active {
    fn new(task: Task, nexus: NexusId, lun: u16, cdb: [u8; 16]) -> Self {
        Self {
            task,
            nexus,
            lun,
            cdb,
            steps: 0,
            request: None,
            exclusive: false,
            at: None,
            waits: false,
        }
    }
}

struct World {
    device: TargetDevice,
    media: Vec<Vec<u8>>,
    infos: Vec<Option<DeviceInfo>>,
    retired: [bool; LUNS],
    active: Vec<Active>,
}

const LUNS: usize = 4;

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let mut world = World::new();
    for operation in operations(input, 400) {
        world.perform(operation);
    }
    world.end();
}

fn config(lun: u16, kind: u8) -> UnitConfig {
    let large = kind & 1 != 0;
    UnitConfig {
        info: DeviceInfo {
            capacity: CAPACITY,
            block_len: if large { 4096 } else { 512 },
            optimal_len: 4096,
            max_transfer_len: 8 << 10,
            read_only: kind & 2 != 0,
            volatile_cache: kind & 4 == 0,
            can_discard: kind & 8 == 0,
            can_map: kind & 32 != 0,
        },
        discard_zeroes: kind & 16 == 0,
        physical_len: 4096,
        can_sanitize: true,
        atomic_len: if kind & 64 == 0 { 4096 } else { 0 },
        removable: kind & 128 != 0,
        identity: Identity::for_lun("iqn.2026-01.org.example:t", lun),
        reservations: Reservations::default(),
    }
}

impl World {
    fn new() -> Self {
        let configs = [config(0, 0), config(1, 2), config(2, 1 | 32)];
        let mut infos: Vec<_> = configs.iter().map(|one| Some(one.info.clone())).collect();
        infos.resize(LUNS, None);
        let mut world = Self {
            device: TargetDevice::new(configs),
            media: vec![vec![0; CAPACITY as usize]; LUNS],
            infos,
            retired: [false; LUNS],
            active: Vec::new(),
        };
        for number in 0..2 {
            world.add_nexus(number);
            for lun in 0..3 {
                let (_, step) =
                    world.device.handle_command(nexus(number), encode_lun(lun), &[0; 6], 0);
                assert!(matches!(step, Step::Respond(_)));
            }
        }
        world
    }

    fn add_nexus(&mut self, number: u8) {
        let isid = [0x80, 0, 0, 0, 0, number];
        if let Some(port) = InitiatorPort::new("iqn.2026-01.org.example:i", isid) {
            self.device.add_nexus(nexus(number), &Nexus::new(port));
        }
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Command(command) => self.command(&command),
            Operation::Complete { which, failure } => self.complete(which, failure),
            Operation::Abort { which } => {
                // Once the medium is done with it.
                let idle = self
                    .index(which)
                    .filter(|at| self.active[*at].request.is_none() && !self.active[*at].waits);
                if let Some(at) = idle {
                    let active = self.active.remove(at);
                    self.device.handle_abort(active.task);
                }
            }
            Operation::Refuse { which, kind } => {
                let Some(at) = self.index(which).filter(|at| !self.active[*at].waits) else {
                    return;
                };
                // In place of the submission.
                let mut active = self.active.remove(at);
                active.request = None;
                let refusal = match kind % 3 {
                    0 => Refusal::AccessDenied,
                    1 => Refusal::Busy,
                    _ => Refusal::Gone,
                };
                let _ = self.device.intent(&active.task);
                let response = self.device.handle_refusal(&mut active.task, refusal);
                check_response(&response);
            }
            Operation::Reset { lun } => {
                if let Some(unit) = self.device.unit_mut(encode_lun(number(lun))) {
                    unit.handle_reset();
                } else {
                    self.device.handle_reset();
                }
            }
            Operation::Add { lun, kind } => {
                let lun = number(lun);
                let config = config(lun, kind);
                let info = config.info.clone();
                if self.device.add(lun, config).is_ok() {
                    self.infos[usize::from(lun)] = Some(info);
                }
            }
            Operation::Retire { lun } => {
                let lun = number(lun);
                if self.device.retire(lun) {
                    self.retired[usize::from(lun)] = true;
                }
            }
            Operation::Remove { lun } => {
                let lun = number(lun);
                let busy = self.active.iter().any(|one| {
                    (one.lun == lun || one.at == Some(lun)) && (one.request.is_some() || one.waits)
                });
                if self.retired[usize::from(lun)] && !busy {
                    self.device.remove(lun);
                    self.retired[usize::from(lun)] = false;
                    self.infos[usize::from(lun)] = None;
                }
            }
            Operation::Change { lun, blocks } => {
                let lun = number(lun);
                if let Some(info) = &mut self.infos[usize::from(lun)] {
                    let mut changed = info.clone();
                    let capacity = u64::from(blocks) * u64::from(info.block_len);
                    changed.capacity = capacity.min(CAPACITY);
                    // What runs was begun on the old capacity: the device would refuse it.
                    let busy = self.active.iter().any(|one| one.lun == lun);
                    if !busy && self.device.handle_changed(lun, changed.clone()) {
                        *info = changed;
                    }
                }
            }
            Operation::Work { lun, failure } => {
                self.work(number(lun), failure);
            }
            Operation::AddNexus { nexus } => self.add_nexus(nexus % 6),
            Operation::RemoveNexus { nexus: number } => {
                self.device.remove_nexus(nexus(number % 6));
            }
            Operation::Raise { attention, except } => {
                let attention = match attention % 3 {
                    0 => UnitAttention::DeviceReset,
                    1 => UnitAttention::CapacityDataChanged,
                    _ => UnitAttention::ModeParametersChanged,
                };
                self.device.raise(attention, Some(nexus(except % 6)));
            }
        }
    }

    fn index(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.active.len())
    }

    /// All that is under way ends; then every unit takes a compare-and-write of its first block.
    fn end(&mut self) {
        for _ in 0..UNDER_WAY_MAX as u32 * STEPS_MAX {
            if self.active.is_empty() {
                break;
            }
            // What waits for others comes behind them.
            self.active.rotate_left(1);
            self.complete(0, 255);
        }
        assert!(self.active.is_empty(), "a command does not end");
        for lun in 0..LUNS as u16 {
            let ends = (0..STEPS_MAX).any(|_| !self.work(lun, 255));
            assert!(ends, "background work does not end");
        }
        self.device.handle_reset();
        let luns: Vec<u16> = self.device.luns().collect();
        self.device.remove_nexus(nexus(5));
        self.add_nexus(5);
        for lun in luns {
            let Some(info) = self.infos[usize::from(lun)].clone() else { continue };
            if info.read_only || info.capacity == 0 {
                continue;
            }
            // Loads what was ejected, once it has told what it has to tell.
            for _ in 0..8 {
                for cdb in [&build::test_unit_ready()[..], &[0x1b, 0, 0, 0, 3, 0]] {
                    let (task, step) =
                        self.device.handle_command(nexus(5), encode_lun(lun), cdb, 0);
                    let mut padded = [0; 16];
                    padded[..6].copy_from_slice(&cdb[..6]);
                    self.go_on(Active::new(task, nexus(5), lun, padded), step);
                }
                while !self.active.is_empty() {
                    self.complete(0, 255);
                }
            }
            let mut cdb = [0; 16];
            (cdb[0], cdb[13]) = (0x89, 1);
            let block = info.block_len as usize;
            let (mut task, step) =
                self.device.handle_command(nexus(5), encode_lun(lun), &cdb, info.block_len * 2);
            if let Step::Respond(response) = &step {
                let conflict = response.status == Status::ReservationConflict;
                let sense = Sense::decode(&response.sense);
                // What was not sanitized to its end is not used.
                let unsafe_medium = sense.is_some_and(|one| one.key == SenseKey::MediumError);
                assert!(conflict || unsafe_medium, "LUN {lun}: {sense:?}");
                continue;
            }
            let data: Vec<u8> =
                [&self.media[usize::from(lun)][..block], &vec![0xaa; block]].concat();
            let step = self.device.handle_data_out(&mut task, Buf::copy_from(&data).into());
            assert!(matches!(step, Step::Submit(_)), "LUN {lun}: something is held: {step:?}");
            let active = Active::new(task, nexus(5), lun, cdb);
            self.go_on(active, step);
            while !self.active.is_empty() {
                self.complete(0, 255);
            }
            assert_eq!(self.media[usize::from(lun)][0], 0xaa);
        }
    }
}

fn nexus(number: u8) -> NexusId {
    NexusId(u64::from(number))
}

fn number(lun: u8) -> u16 {
    u16::from(lun) % LUNS as u16
}
