//! A target device under any CDB with any parameter list, from several nexuses, while its logical
//! units come, change and go, and requests end in any order or fail.
//!
//! What has to hold: no panic; every command ends after a bounded number of steps; requests are
//! aligned and within the device; only a command that names bytes changes them, and nothing changes
//! a read-only device; between the read and the write of a COMPARE AND WRITE nobody else writes
//! there; sense data can be read; and afterwards nothing is held.

use std::ops::Range;

use arbitrary::Arbitrary;
use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError, Op, SgList};
use netraid_scsi::{
    Background, Identity, InitiatorPort, MediumRequest, Nexus, NexusId, Refusal, Reservations,
    Response, Sense, SenseKey, Status, Step, TargetDevice, Task, UnitAttention, UnitConfig,
    cdb::{build, table::TABLE},
    unit::encode_lun,
};

use crate::{named, operations};

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

    fn command(&mut self, command: &Command) {
        if self.active.len() >= UNDER_WAY_MAX {
            return;
        }
        let mut cdb = command.bytes;
        let row = &TABLE[usize::from(command.row) % TABLE.len()];
        if command.style & 1 == 0 {
            for (byte, mask) in cdb.iter_mut().zip(row.usage) {
                *byte &= mask;
            }
            cdb[row.usage.len()..].fill(0);
            cdb[0] = row.opcode();
            if let Some(action) = row.service_action {
                cdb[1] = cdb[1] & 0xe0 | action as u8;
            }
        }
        if command.style & 2 == 0 && cdb[0] >> 5 != 0 {
            // In range mostly.
            match cdb[0] >> 5 {
                4 => {
                    cdb[2..9].fill(0);
                    cdb[10..13].fill(0);
                }
                5 => {
                    cdb[2..5].fill(0);
                    cdb[6..9].fill(0);
                }
                _ => {
                    cdb[2..5].fill(0);
                    cdb[7] = 0;
                }
            }
        }
        let lun = number(command.lun);
        let announced = u32::from(command.announced);
        let from = nexus(command.nexus % 6);
        let (task, step) = self.device.handle_command(from, encode_lun(lun), &cdb, announced);
        let mut active = Active::new(task, from, lun, cdb);
        let step = match step {
            Step::DataOut { len, .. } => {
                assert!(len > 0, "asks for no data");
                let len = len.min(announced) as usize;
                let data = self.data_for(command, &cdb, lun, len);
                let list =
                    if data.is_empty() { SgList::new() } else { Buf::copy_from(&data).into() };
                let _ = self.device.intent(&active.task);
                self.device.handle_data_out(&mut active.task, list)
            }
            step @ (Step::Submit(_)
            | Step::SubmitTo { .. }
            | Step::Wait
            | Step::Persist(_)
            | Step::Abort { .. }
            | Step::Respond(_)) => step,
        };
        self.go_on(active, step);
    }

    /// Bytes of data-out for a command.
    fn data_for(&self, command: &Command, cdb: &[u8; 16], lun: u16, len: usize) -> Vec<u8> {
        let mut data: Vec<u8> = if command.data.is_empty() {
            vec![command.bytes[15]; len]
        } else {
            command.data.iter().copied().cycle().take(len).collect()
        };
        let Some(info) = &self.infos[usize::from(lun)] else { return data };
        if command.style & 4 != 0 {
            // As the medium is, so that comparisons succeed.
            let range = named(cdb, info.block_len.into(), info.capacity);
            let medium = &self.media[usize::from(lun)];
            let end = range.end.min(CAPACITY) as usize;
            if let Some(bytes) = medium.get(range.start.min(CAPACITY) as usize..end) {
                let len = bytes.len().min(data.len());
                data[..len].copy_from_slice(&bytes[..len]);
            }
        }
        if command.style & 8 != 0 && cdb[0] == 0x42 && data.len() >= 8 {
            // Lengths of an UNMAP list that fit, and ranges that often do.
            let descriptors = (data.len() - 8) / 16;
            data[..2].copy_from_slice(&(6 + descriptors as u16 * 16).to_be_bytes());
            data[2..4].copy_from_slice(&(descriptors as u16 * 16).to_be_bytes());
            for range in data[8..].chunks_exact_mut(16) {
                range[..7].fill(0);
                range[8..11].fill(0);
            }
        }
        if command.style & 8 != 0 && matches!(cdb[0], 0x15 | 0x55) {
            // The control page, or the caching page, with some bits.
            let header = if cdb[0] == 0x15 { 4 } else { 8 };
            data[..header.min(len)].fill(0);
            if let Some(page) = data.get_mut(header..header + 12) {
                let caching = command.bytes[14] & 1 != 0;
                page[..2].copy_from_slice(if caching { &[0x08, 0x12] } else { &[0x0a, 0x0a] });
                page[2..].fill(0);
                page[2] = command.bytes[13];
                page[4] = command.bytes[12];
            }
        }
        data
    }

    fn go_on(&mut self, mut active: Active, step: Step) {
        active.steps += 1;
        assert!(active.steps < STEPS_MAX, "{:#x} does not end", active.cdb[0]);
        match step {
            Step::Submit(request) => {
                self.check_request(&active, &request);
                active.exclusive |= active.cdb[0] == 0x89;
                active.request = Some(request);
                self.active.push(active);
            }
            Step::SubmitTo { lun, request } => {
                assert!(active.cdb[0] == 0x83, "{:#x} reaches LUN {lun}", active.cdb[0]);
                let there = self.infos.get(usize::from(lun)).and_then(Option::as_ref);
                let Some(info) = there else {
                    let _ = self.device.handle_refusal(&mut active.task, Refusal::Gone);
                    return;
                };
                let end = request.offset.checked_add(request.len).expect("no end");
                assert!(end <= info.capacity, "copies past the end");
                let writes = !matches!(request.op, Op::Read | Op::Flush | Op::Extents);
                assert!(!(writes && info.read_only), "copies to a read-only device");
                active.at = Some(lun);
                active.request = Some(request);
                self.active.push(active);
            }
            Step::Persist(bytes) => {
                let stored = !bytes.len().is_multiple_of(7) || bytes.is_empty();
                let step = self.device.handle_persisted(&mut active.task, stored);
                self.go_on(active, step);
            }
            Step::Abort { nexuses } => {
                let meant =
                    |one: &mut Active| one.lun == active.lun && nexuses.contains(&one.nexus);
                let aborted: Vec<_> = self.active.extract_if(.., meant).collect();
                for one in aborted {
                    // What is at the medium cannot be called back.
                    if let Some(request) = one.request {
                        let _ = self.execute(one.at.unwrap_or(one.lun), request, 255);
                    }
                    self.device.handle_abort(one.task);
                }
                let step = self.device.handle_aborted(&mut active.task);
                self.go_on(active, step);
            }
            Step::Wait => {
                active.waits = true;
                self.active.push(active);
            }
            Step::Respond(response) => {
                check_response(&response);
                let read = matches!(active.cdb[0], 0x08 | 0x28 | 0x88 | 0xa8);
                if read
                    && response.status == Status::Good
                    && let Some(info) = &self.infos[usize::from(active.lun)]
                {
                    let range = named(&active.cdb, info.block_len.into(), info.capacity);
                    let len = range.end - range.start;
                    assert_eq!(response.data_in.len() as u64, len, "a read of another length");
                }
            }
            Step::DataOut { .. } => panic!("{:#x} asks for its data twice", active.cdb[0]),
        }
    }

    fn check_request(&self, active: &Active, request: &MediumRequest) {
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

    fn complete(&mut self, which: u8, failure: u8) {
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
    fn work(&mut self, lun: u16, failure: u8) -> bool {
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

    fn execute(
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

fn overlap(one: &Range<u64>, two: &Range<u64>) -> bool {
    one.start < two.end && two.start < one.end
}

fn check_response(response: &Response) {
    let failed = response.status == Status::CheckCondition;
    assert_eq!(failed, !response.sense.is_empty(), "{response:?}");
    if failed {
        assert!(Sense::decode(&response.sense).is_some(), "{response:?}");
        assert!(response.sense.len() <= 252);
    }
}
