//! The target's machines under peers that do what they like: several connections to one node over
//! two logical units, every PDU possible, requests to the medium that end in any order.
//!
//! What has to hold: no panic; each task is released exactly once, and submitted at most once;
//! only bytes that a command names are written, and only with the bytes that its initiator sent
//! for them; Data-In stays within what was asked for; when a task management function is answered,
//! nothing that it names is under way; data in memory stays within its budget; and afterwards
//! everything has ended, and a well-behaved session is served.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use arbitrary::Arbitrary;
use netraid_block::{Buf, DeviceInfo, ErrorKind, Op, SgList};
use netraid_iscsi_proto::{
    chap::{Algorithm, Credentials, Secret},
    initiator::{self, Session, TaskEnd},
    machine::{Fatal, Payload, Placement, TaskId},
    negotiation::{SessionType, Wishes},
    pdu::{
        Bhs, DataIn, DataOut, LoginRequest, LogoutReason, LogoutRequest, LunField, NO_TAG, NopOut,
        Opcode, R2t, ScsiCommand, TaskFunction, TaskRequest, TaskResponse, TaskResponseCode,
        TextRequest,
    },
    serial::Serial,
    target::{
        Challenge, Connection, ConnectionId, Event, Limits, Link, Node, Outcome, Plan, Setup,
    },
    text,
};
use netraid_scsi::{
    Identity, InitiatorPort, MediumRequest, Nexus, NexusId, Reservations, Step, TargetDevice, Task,
    UnitAttention, UnitConfig,
    cdb::{self, build},
};

use crate::{named, operations, pattern};

const TARGET: &str = "iqn.2026-01.org.example:target";
const BLOCK_LEN: usize = 512;
const BLOCKS: usize = 40;
const DATA_BUDGET: usize = 10 << 10;
const LIMITS: Limits =
    Limits { sessions_max: 4, visitors_max: 3, visitors_per_source_max: 2, data_budget: 16 << 10 };
/// Sessions, visitors, and as many again that were told to leave.
const CONNECTIONS_MAX: usize = 10;
const CHALLENGE: Challenge = Challenge { identifier: 7, bytes: [9; 32] };

/// SCSI status RESERVATION CONFLICT (SAM-5, section 5.3.1).
const RESERVATION_CONFLICT: u8 = 0x18;

/// Bytes of a header that are replaced.
type Changes = Vec<(u8, u8)>;

#[derive(Debug, Arbitrary)]
enum Operation {
    Connect { from: u8 },
    LogIn { at: u8, isid: u8, sizes: u8, tsih: u8 },
    LoginPdu { at: u8, flags: u8, isid: u8, keys: Vec<(u8, u8)>, changes: Changes },
    Command(Command),
    Answer { at: u8, which: u8, len: u16, changes: Changes },
    Manage { at: u8, function: u8, lun: u8, back: u8, changes: Changes },
    Nop { at: u8, len: u16, changes: Changes },
    Text { at: u8, keys: Vec<(u8, u8)>, more: bool, follow: bool, changes: Changes },
    LogOut { at: u8, changes: Changes },
    Raw { at: u8, bytes: [u8; 16], opcode: u8, len: u16 },
    BadDigest { at: u8 },
    Transmit { at: u8, count: u8 },
    Complete { which: u8, failure: u8 },
    Wake { which: u8 },
    Pass { at: u8, ms: u16 },
    Disconnect { at: u8 },
    Shutdown { at: u8 },
}

#[derive(Debug, Arbitrary)]
struct Command {
    at: u8,
    kind: u8,
    lun: u8,
    lba: u8,
    blocks: u8,
    flags: u8,
    len: u16,
    /// Another expected length than the CDB's.
    expected: Option<u16>,
    changes: Changes,
    cdb_changes: Changes,
}

/// What the peer knows of an R2T, or of data that it may send unasked.
struct Asked {
    lun: LunField,
    itt: u32,
    ttt: u32,
    at: u32,
    end: u32,
    data_sn: u32,
}

/// What the shell keeps of one task.
#[derive(Default)]
struct Slot {
    /// Of this command; 0 is nobody's.
    generation: u64,
    submitted: bool,
    tag: u32,
    cdb: [u8; 16],
    lun: Option<u16>,
    expected_in: u32,
    task: Option<Task>,
    request: Option<MediumRequest>,
    data_out_len: usize,
    data_out: Option<Vec<u8>>,
    data_in: SgList,
    in_sent: u32,
}

/// One connection: the machine with its shell, and the peer.
struct Served {
    id: ConnectionId,
    machine: Connection,
    slots: Vec<Slot>,
    gone: bool,
    peer: Peer,
}

#[derive(Default)]
struct Peer {
    cmd_sn: u32,
    max_cmd_sn: Option<Serial>,
    next_itt: u32,
    asked: VecDeque<Asked>,
    /// Generations that a task management function with this tag names; none when two had it.
    managing: BTreeMap<u32, Option<Vec<u64>>>,
}

/// A request that is at the medium.
struct InFlight {
    connection: ConnectionId,
    task: TaskId,
    generation: u64,
    lun: u16,
    request: MediumRequest,
}

struct World {
    now: Duration,
    setup: Arc<Setup>,
    node: Node,
    units: TargetDevice,
    media: Vec<Vec<u8>>,
    served: Vec<Served>,
    in_flight: Vec<InFlight>,
    wakes: Vec<ConnectionId>,
    next_generation: u64,
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let Some((mode, input)) = input.split_first() else { return };
    let mut world = World::new(*mode);
    for operation in operations(input, 400) {
        world.perform(operation);
        world.check();
    }
    world.end();
    world.serve_somebody();
}

fn unit(lun: u16, read_only: bool) -> UnitConfig {
    UnitConfig {
        info: DeviceInfo {
            capacity: (BLOCKS * BLOCK_LEN) as u64,
            block_len: BLOCK_LEN as u32,
            optimal_len: 4096,
            max_transfer_len: 16 << 10,
            read_only,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        },
        discard_zeroes: true,
        physical_len: 4096,
        atomic_len: 2048,
        // Work that outlives its command is for the target `scsi_device`.
        can_sanitize: false,
        removable: lun == 1,
        identity: Identity::for_lun(TARGET, lun),
        reservations: Reservations::default(),
    }
}

fn credentials() -> Credentials {
    let secret = Secret::new(*b"0123456789abcdef").expect("a length that is possible");
    Credentials { user: "joe".into(), secret }
}

impl World {
    fn new(mode: u8) -> Self {
        let mut setup = Setup::new(TARGET.into());
        setup.chap = (mode & 1 != 0).then(credentials);
        setup.wishes = Wishes {
            max_recv_len: 2048,
            max_burst_len: 3072,
            first_burst_len: 1536,
            initial_r2t: mode & 2 != 0,
            immediate_data: mode & 4 == 0,
            max_outstanding_r2t: 1 + u32::from(mode >> 3 & 3),
            ..Wishes::default()
        };
        setup.queue_depth = 6;
        setup.data_budget = DATA_BUDGET as u64;
        let mut world = Self {
            now: Duration::from_secs(1),
            setup: Arc::new(setup),
            node: Node::new(LIMITS),
            units: TargetDevice::new([unit(0, false), unit(1, mode & 32 != 0)]),
            media: vec![vec![0; BLOCKS * BLOCK_LEN]; 2],
            served: Vec::new(),
            in_flight: Vec::new(),
            wakes: Vec::new(),
            next_generation: 1,
        };
        world.connect(0);
        world.log_in(0, 1, 0, 0);
        world
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Connect { from } => self.connect(from),
            Operation::LogIn { at, isid, sizes, tsih } => self.log_in(at, isid, sizes, tsih),
            Operation::LoginPdu { at, flags, isid, keys, changes } => {
                let mut text = Vec::new();
                keys.iter().take(12).for_each(|(key, value)| push_key(&mut text, *key, *value));
                let request =
                    login(flags & 0x80 != 0, flags & 0x40 != 0, flags >> 2 & 3, flags & 3);
                let request = LoginRequest { isid: [0x80, 0, 0, 0, 0, isid % 4], ..request };
                self.send(at, request.encode(), &changes, Some(&text));
            }
            Operation::Command(command) => self.command(&command),
            Operation::Answer { at, which, len, changes } => self.answer(at, which, len, &changes),
            Operation::Manage { at, function, lun, back, changes } => {
                self.manage(at, function, lun, back, &changes);
            }
            Operation::Nop { at, len, changes } => {
                let itt = self.itt(at);
                let (lun, ttt) = (LunField::default(), NO_TAG);
                let nop = NopOut { immediate: len & 1 != 0, lun, itt, ttt };
                let data = vec![7; usize::from(len) % 3000];
                self.send(at, nop.encode(), &changes, Some(&data));
            }
            Operation::Text { at, keys, more, follow, changes } => {
                let mut text = Vec::new();
                keys.iter().take(40).for_each(|(key, value)| push_key(&mut text, *key, *value));
                let itt = self.itt(at);
                let (lun, ttt) = (LunField::default(), if follow { 3 } else { NO_TAG });
                let request = TextRequest { immediate: false, last: !more, more, lun, itt, ttt };
                self.send(at, request.encode(), &changes, Some(&text));
            }
            Operation::LogOut { at, changes } => {
                let (reason, itt) = (LogoutReason::CloseSession, self.itt(at));
                let request = LogoutRequest { immediate: false, reason, itt, cid: 1 };
                self.send(at, request.encode(), &changes, Some(&[]));
            }
            Operation::Raw { at, bytes, opcode, len } => {
                let mut bhs = Bhs([0; 48]);
                bhs.0[8..24].copy_from_slice(&bytes);
                bhs.0[1] = bytes[0];
                bhs.0[0] = opcode & 0x7f;
                let bhs = bhs.with_data_len(u32::from(len) % 4096);
                self.send(at, bhs, &Vec::new(), None);
            }
            Operation::BadDigest { at } => {
                if let Some(index) = self.index(at)
                    && self.served[index].machine.wants_input()
                {
                    let bhs = NopOut::ping(5).encode();
                    self.served[index].machine.handle_bad_digest(&bhs);
                    self.handle_events(index);
                }
            }
            Operation::Transmit { at, count } => {
                if let Some(index) = self.index(at) {
                    (0..=count).take_while(|_| self.transmit(index)).for_each(drop);
                }
            }
            Operation::Complete { which, failure } => self.complete(which, failure),
            Operation::Wake { which } => self.wake(usize::from(which)),
            Operation::Pass { at, ms } => {
                self.now += Duration::from_millis(u64::from(ms));
                if let Some(index) = self.index(at)
                    && self.served[index].machine.handle_timeout(self.now).is_err()
                {
                    self.drop_connection(index);
                }
            }
            Operation::Disconnect { at } => {
                if let Some(index) = self.index(at) {
                    self.drop_connection(index);
                }
            }
            Operation::Shutdown { at } => {
                if let Some(index) = self.index(at) {
                    let now = self.now;
                    self.served[index].machine.handle_shutdown(now);
                    self.handle_events(index);
                }
            }
        }
        self.reap();
    }

    /// The connection that an operation means, if there is one and its socket is still there.
    fn index(&self, at: u8) -> Option<usize> {
        let index = usize::from(at).checked_rem(self.served.len())?;
        (!self.served[index].gone).then_some(index)
    }

    fn itt(&mut self, at: u8) -> u32 {
        let Some(index) = self.index(at) else { return 0 };
        let peer = &mut self.served[index].peer;
        peer.next_itt += 1;
        peer.next_itt
    }

    fn connect(&mut self, from: u8) {
        if self.served.len() >= CONNECTIONS_MAX {
            return;
        }
        let peer = SocketAddr::from(([192, 0, 2, from % 3], 5));
        let link = Link::new(peer, SocketAddr::from(([127, 0, 0, 1], 3260)));
        let Some(seat) = self.node.open(link) else { return };
        let id = seat.id();
        let machine = Connection::new(self.now, seat, self.setup.clone(), CHALLENGE);
        let slots = (0..machine.task_count()).map(|_| Slot::default()).collect();
        let peer = Peer { cmd_sn: 1, ..Peer::default() };
        self.served.push(Served { id, machine, slots, gone: false, peer });
    }

    /// A whole login as it should be.
    fn log_in(&mut self, at: u8, isid: u8, sizes: u8, tsih: u8) {
        let mut first = Vec::new();
        text::push(&mut first, "InitiatorName", "iqn.2026-01.org.example:i");
        text::push(&mut first, "TargetName", TARGET);
        let mut keys = Vec::new();
        if sizes & 1 != 0 {
            text::push(&mut keys, "MaxRecvDataSegmentLength", "512");
        }
        text::push(&mut keys, "InitialR2T", if sizes & 2 != 0 { "Yes" } else { "No" });
        text::push(&mut keys, "ImmediateData", if sizes & 4 != 0 { "No" } else { "Yes" });
        text::push(&mut keys, "MaxOutstandingR2T", if sizes & 8 != 0 { "1" } else { "3" });
        text::push(&mut keys, "HeaderDigest", if sizes & 16 != 0 { "CRC32C" } else { "None" });
        if sizes & 32 != 0 {
            text::push(&mut keys, "SessionType", "Discovery");
        }
        let rounds: Vec<(LoginRequest, Vec<u8>)> = if self.setup.chap.is_some() {
            text::push(&mut first, "AuthMethod", "CHAP");
            let algorithm = Algorithm::PREFERENCE[usize::from(sizes >> 7)];
            let answer = algorithm.answer(7, &credentials().secret, &CHALLENGE.bytes);
            let (mut second, mut third) = (Vec::new(), Vec::new());
            text::push(&mut second, "CHAP_A", &algorithm.number().to_string());
            text::push(&mut third, "CHAP_N", "joe");
            text::push(&mut third, "CHAP_R", &text::to_hex(&answer));
            vec![
                (login(false, false, 0, 0), first),
                (login(false, false, 0, 0), second),
                (login(true, false, 0, 1), third),
                (login(true, false, 1, 3), keys),
            ]
        } else {
            first.extend(keys);
            vec![(login(true, false, 1, 3), first)]
        };
        for (request, text) in rounds {
            let isid = [0x80, 0, 0, 0, 0, isid % 4];
            let request = LoginRequest { isid, tsih: u16::from(tsih) % 4, ..request };
            self.send(at, request.encode(), &Vec::new(), Some(&text));
            if let Some(index) = self.index(at) {
                while self.transmit(index) {}
            }
        }
    }

    fn command(&mut self, command: &Command) {
        let Some(index) = self.index(command.at) else { return };
        let itt = self.itt(command.at);
        let (lba, blocks) = (command.lba, command.blocks % 14);
        let (mut cdb, moved, write) = write_cdb(command.kind, lba, blocks, command.flags);
        for (at, value) in command.cdb_changes.iter().take(2) {
            cdb[usize::from(*at) % 16] = *value;
        }
        let expected = command.expected.map_or(moved, u32::from);
        let first_burst = 1536.min(expected);
        let len = if write { u32::from(command.len).min(first_burst).min(2048) } else { 0 };
        let last = !write || command.flags & 0x80 == 0;
        let lun = LunField::from_number(u16::from(command.lun % 3));
        let request = ScsiCommand {
            immediate: command.flags & 0x40 != 0,
            last,
            read: !write && expected > 0,
            write,
            attribute: command.flags >> 3 & 7,
            lun,
            itt,
            expected_len: expected,
            cdb,
        };
        if !last {
            let asked = Asked { lun, itt, ttt: NO_TAG, at: len, end: first_burst, data_sn: 0 };
            self.served[index].peer.asked.push_back(asked);
        }
        self.send(command.at, request.encode().with_data_len(len), &command.changes, None);
    }

    /// Sends some of the data that was asked for.
    fn answer(&mut self, at: u8, which: u8, len: u16, changes: &Changes) {
        let Some(index) = self.index(at) else { return };
        let asked = &mut self.served[index].peer.asked;
        let Some(which) = usize::from(which).checked_rem(asked.len()) else { return };
        let one = &mut asked[which];
        let left = one.end.saturating_sub(one.at);
        // Often all that is left.
        let len = if len & 1 != 0 { left } else { left.min(u32::from(len)) }.min(2048);
        let last = len == left;
        let Asked { lun, itt, ttt, at: offset, data_sn, .. } = *one;
        one.at += len;
        one.data_sn += 1;
        if last {
            asked.remove(which);
        }
        let pdu = DataOut { last, lun, itt, ttt, data_sn, offset };
        self.send(at, pdu.encode().with_data_len(len), changes, None);
    }

    fn manage(&mut self, at: u8, function: u8, lun: u8, back: u8, changes: &Changes) {
        let itt = self.itt(at);
        let lun = LunField::from_number(u16::from(lun % 3));
        let function = match function % 10 {
            0 => TaskFunction::AbortTask,
            1 => TaskFunction::AbortTaskSet,
            2 => TaskFunction::ClearAca,
            3 => TaskFunction::ClearTaskSet,
            4 | 5 => TaskFunction::LogicalUnitReset,
            6 => TaskFunction::TargetWarmReset,
            7 => TaskFunction::TargetColdReset,
            8 => TaskFunction::TaskReassign,
            _ => TaskFunction::Unknown(99),
        };
        let referenced_itt = itt.saturating_sub(u32::from(back % 8));
        let immediate = back & 0x80 == 0;
        let ref_cmd_sn = 0;
        let request = TaskRequest { immediate, function, lun, itt, referenced_itt, ref_cmd_sn };
        self.send(at, request.encode(), changes, None);
    }

    /// Sends a PDU with some bytes changed. Without `text` its data segment is as long as its
    /// header says, and of the pattern.
    fn send(&mut self, at: u8, bhs: Bhs, changes: &Changes, text: Option<&[u8]>) {
        let Some(index) = self.index(at) else { return };
        let served = &mut self.served[index];
        let mut bhs = match text {
            Some(text) => bhs.with_data_len(text.len() as u32),
            None => bhs,
        };
        let cmd_sn = Serial(served.peer.cmd_sn);
        if bhs.opcode() == Some(Opcode::DataOut) {
            bhs.stamp_exp_stat_sn(Serial(0));
        } else {
            bhs.stamp_command(cmd_sn, Serial(0));
        }
        for (at, value) in changes.iter().take(3) {
            bhs.0[usize::from(*at) % 48] = *value;
        }
        if !served.machine.wants_input() {
            return;
        }
        let numbered = !matches!(bhs.opcode(), Some(Opcode::DataOut | Opcode::LoginRequest));
        let open = served.peer.max_cmd_sn.is_none_or(|max| !max.before(cmd_sn));
        if numbered && !bhs.immediate() && open && bhs.cmd_sn() == cmd_sn {
            served.peer.cmd_sn += 1;
        }
        if self.receive(index, &bhs, text).is_err() {
            self.drop_connection(index);
        }
    }

    fn receive(&mut self, index: usize, bhs: &Bhs, text: Option<&[u8]>) -> Result<(), Fatal> {
        if bhs.opcode() == Some(Opcode::TaskRequest) {
            self.note_management(index, bhs);
        }
        let (now, served) = (self.now, &mut self.served[index]);
        served.machine.handle_header(now, bhs)?;
        self.handle_events_of(index, Some(bhs));
        let len = bhs.data_len() as usize;
        let served = &mut self.served[index];
        match served.machine.placement() {
            Placement::Control => {
                let data: Vec<u8> = match text {
                    Some(text) => {
                        text.iter().copied().chain([0].into_iter().cycle()).take(len).collect()
                    }
                    None => (0..len).map(|at| pattern(bhs.itt(), at)).collect(),
                };
                served.machine.handle_control(now, &mut self.node, &data)?;
            }
            Placement::Task { task, offset, len: placed } => {
                assert!(placed as usize <= len, "more is placed than came");
                let slot = &mut served.slots[task.index()];
                assert!(slot.generation != 0, "data for a task that is gone");
                let wanted = slot.data_out_len;
                let data = slot.data_out.get_or_insert_with(|| vec![0; wanted]);
                // The bytes of the PDU: of the offset that its header says.
                let from = match bhs.opcode() {
                    Some(Opcode::DataOut) => DataOut::parse(bhs).offset,
                    _ => 0,
                };
                let range = offset as usize..offset as usize + placed as usize;
                for (at, byte) in data[range].iter_mut().enumerate() {
                    *byte = pattern(bhs.itt(), from as usize + at);
                }
                served.machine.handle_data();
            }
            Placement::Discard => served.machine.handle_data(),
        }
        self.handle_events(index);
        Ok(())
    }

    /// Notes which commands have to be over when a function is answered.
    fn note_management(&mut self, index: usize, bhs: &Bhs) {
        let request = TaskRequest::parse(bhs);
        let own = self.served[index].id;
        let number = request.lun.number();
        let named = |id: ConnectionId, slot: &Slot| match request.function {
            TaskFunction::AbortTask => id == own && slot.tag == request.referenced_itt,
            TaskFunction::AbortTaskSet => id == own && slot.lun == number,
            TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => slot.lun == number,
            TaskFunction::TargetWarmReset => true,
            TaskFunction::TargetColdReset => id == own,
            TaskFunction::ClearAca | TaskFunction::TaskReassign | TaskFunction::Unknown(_) => false,
        };
        let mut names = Vec::new();
        for served in &self.served {
            let live = served.slots.iter().filter(|slot| slot.generation != 0);
            names.extend(live.filter(|slot| named(served.id, slot)).map(|slot| slot.generation));
        }
        let managing = &mut self.served[index].peer.managing;
        let known = managing.contains_key(&request.itt);
        managing.insert(request.itt, (!known).then_some(names));
    }

    fn handle_events(&mut self, index: usize) {
        self.handle_events_of(index, None);
    }

    fn handle_events_of(&mut self, index: usize, bhs: Option<&Bhs>) {
        while let Some(event) = self.served[index].machine.poll_event() {
            let served = &mut self.served[index];
            match event {
                Event::Command { task, lun, cdb, data_out_max, data_in_max } => {
                    let slot = &mut served.slots[task.index()];
                    assert!(slot.generation == 0, "the place of {task:?} is taken");
                    let tag = bhs.map_or(0, Bhs::itt);
                    let generation = self.next_generation;
                    self.next_generation += 1;
                    let lun_number = lun.number();
                    *slot = Slot {
                        generation,
                        tag,
                        cdb,
                        lun: lun_number,
                        expected_in: data_in_max,
                        ..Slot::default()
                    };
                    self.begin(index, task, lun, &cdb, data_out_max);
                }
                Event::Submit { task } => {
                    let slot = &mut served.slots[task.index()];
                    assert!(slot.generation != 0 && !slot.submitted, "{task:?} cannot begin");
                    slot.submitted = true;
                    let step = match slot.request.take() {
                        Some(request) => Step::Submit(request),
                        None => {
                            let data = slot.data_out.take().unwrap_or_default();
                            assert_eq!(data.len(), slot.data_out_len, "not all data came");
                            for (at, byte) in data.iter().enumerate() {
                                assert_eq!(*byte, pattern(slot.tag, at), "byte {at} is wrong");
                            }
                            let scsi_task = slot.task.as_mut().expect("it was begun");
                            let list = if data.is_empty() {
                                SgList::new()
                            } else {
                                Buf::copy_from(&data).into()
                            };
                            self.units.handle_data_out(scsi_task, list)
                        }
                    };
                    self.go_on(index, task, step);
                }
                Event::Release { task } => {
                    let slot = std::mem::take(&mut served.slots[task.index()]);
                    assert!(slot.generation != 0, "{task:?} is released twice");
                    let own = slot.generation;
                    let runs = self.in_flight.iter().any(|one| one.generation == own);
                    assert!(!runs, "{task:?} is released while the medium works for it");
                    if let Some(task) = slot.task {
                        self.units.handle_abort(task);
                    }
                }
                Event::Reset { lun: None } => self.units.handle_reset(),
                Event::Reset { lun: Some(lun) } => {
                    if let Some(unit) = self.units.unit_mut(LunField::from_number(lun).0) {
                        unit.handle_reset();
                    }
                }
                Event::Cleared { lun } => {
                    let nexus = NexusId(served.id.0);
                    if let Some(unit) = self.units.unit_mut(LunField::from_number(lun).0) {
                        unit.raise_for(UnitAttention::CommandsClearedByAnother, nexus);
                    }
                }
                Event::Preempted { task } => {
                    if let Some(scsi_task) = &mut served.slots[task.index()].task {
                        let step = self.units.handle_aborted(scsi_task);
                        self.go_on(index, task, step);
                    }
                }
                Event::Settled => served.machine.handle_wake(&mut self.node),
                Event::LoggedIn { initiator, isid, session, .. } => {
                    let port = InitiatorPort::new(&initiator, isid);
                    if let (SessionType::Normal, Some(port)) = (session, port) {
                        self.units.add_nexus(NexusId(served.id.0), &Nexus::new(port));
                    }
                }
            }
        }
        while let Some(id) = self.node.poll_wake() {
            // As a notification: one that was not taken yet stands for all.
            if !self.wakes.contains(&id) {
                self.wakes.push(id);
            }
        }
    }

    fn begin(&mut self, index: usize, task: TaskId, lun: LunField, cdb: &[u8], announced: u32) {
        let served = &mut self.served[index];
        let nexus = NexusId(served.id.0);
        let (scsi_task, step) = self.units.handle_command(nexus, lun.0, cdb, announced);
        let slot = &mut served.slots[task.index()];
        slot.task = Some(scsi_task);
        let plan = match step {
            Step::Respond(_) => return self.go_on(index, task, step),
            Step::DataOut { len, memory } => {
                assert!(len > 0, "asks for no data");
                slot.data_out_len = len.min(announced) as usize;
                let data_out = slot.data_out_len as u32;
                Plan { data_out, data_out_total: u64::from(len), memory }
            }
            Step::Submit(request) => {
                let memory = if request.op == Op::Read { request.len } else { 0 };
                slot.request = Some(request);
                Plan { data_out: 0, data_out_total: 0, memory }
            }
            Step::Wait | Step::SubmitTo { .. } | Step::Persist(_) | Step::Abort { .. } => {
                unreachable!("{task:?} goes on before its data came")
            }
        };
        served.machine.handle_plan(task, plan);
    }

    fn go_on(&mut self, index: usize, task: TaskId, step: Step) {
        let served = &mut self.served[index];
        let slot = &mut served.slots[task.index()];
        match step {
            Step::Submit(request) => {
                check_request(slot, &request);
                let lun = slot.lun.expect("a unit has a number");
                let (connection, generation) = (served.id, slot.generation);
                self.in_flight.push(InFlight { connection, task, generation, lun, request });
            }
            Step::SubmitTo { lun, request } => {
                assert!(matches!(slot.cdb[0], 0x83), "{:#x} reaches LUN {lun}", slot.cdb[0]);
                let (connection, generation) = (served.id, slot.generation);
                self.in_flight.push(InFlight { connection, task, generation, lun, request });
            }
            Step::Persist(bytes) => {
                let scsi_task = slot.task.as_mut().expect("it is under way");
                // A store that fails now and then.
                let stored = !bytes.len().is_multiple_of(7) || bytes.is_empty();
                let step = self.units.handle_persisted(scsi_task, stored);
                self.go_on(index, task, step);
            }
            Step::Abort { nexuses } => {
                let sessions: Vec<_> = nexuses.iter().map(|one| ConnectionId(one.0)).collect();
                let lun = slot.lun.expect("a unit has a number");
                served.machine.handle_preempt(&mut self.node, task, lun, &sessions);
            }
            Step::Wait => unreachable!("no unit can be sanitized"),
            Step::Respond(response) => {
                let data_in = response.data_in.len() as u64;
                slot.data_in = response.data_in;
                let (status, sense) = (response.status as u8, response.sense);
                served.machine.handle_outcome(task, Outcome { status, sense, data_in });
            }
            Step::DataOut { .. } => unreachable!("{task:?} asks for its data twice"),
        }
    }

    /// Ends one of the requests at the medium.
    fn complete(&mut self, which: u8, failure: u8) {
        let Some(which) = usize::from(which).checked_rem(self.in_flight.len()) else { return };
        let InFlight { connection, task, lun, request, .. } = self.in_flight.remove(which);
        let MediumRequest { op, offset, len, data, .. } = request;
        let medium = &mut self.media[usize::from(lun)];
        let range = offset as usize..(offset + len) as usize;
        let result = match (failure, op) {
            (1, _) => Err(ErrorKind::Medium.into()),
            (2, _) => Err(ErrorKind::NoSpace.into()),
            (3, _) => Err(ErrorKind::Timeout.into()),
            (4, _) => Err(ErrorKind::Fenced.into()),
            (_, Op::Read) => Ok(Buf::copy_from(&medium[range]).into()),
            (_, Op::Write) => {
                data.copy_to(&mut medium[range]);
                Ok(SgList::new())
            }
            (_, Op::WriteZeroes | Op::Discard) => {
                medium[range].fill(0);
                Ok(SgList::new())
            }
            (_, Op::Flush | Op::Extents) => Ok(SgList::new()),
        };
        let index = self.served.iter().position(|served| served.id == connection);
        let index = index.expect("a connection waits for its requests");
        let served = &mut self.served[index];
        let scsi_task = served.slots[task.index()].task.as_mut().expect("it is under way");
        let step = self.units.handle_medium_done(scsi_task, result);
        if matches!(step, Step::Submit(_) | Step::SubmitTo { .. })
            && served.machine.is_aborted(task)
        {
            served.machine.handle_outcome(task, Outcome::default());
        } else {
            self.go_on(index, task, step);
        }
        self.handle_events(index);
    }

    fn wake(&mut self, which: usize) {
        let Some(which) = which.checked_rem(self.wakes.len()) else { return };
        let id = self.wakes.remove(which);
        let Some(index) = self.served.iter().position(|served| served.id == id) else { return };
        self.served[index].machine.handle_wake(&mut self.node);
        self.handle_events(index);
    }

    /// Takes one PDU from the target, as the peer; false when there is none.
    fn transmit(&mut self, index: usize) -> bool {
        let served = &mut self.served[index];
        let Some(transmit) = served.machine.poll_transmit() else { return false };
        let (bhs, len) = (transmit.header, transmit.header.data_len());
        match &transmit.payload {
            Payload::None => assert_eq!(len, 0),
            Payload::Control(data) => assert_eq!(len as usize, data.len()),
            Payload::Task { task, offset, len: part } => {
                assert_eq!(len, *part);
                let slot = &mut served.slots[task.index()];
                assert!(slot.generation != 0 && len > 0 && len <= 1 << 20);
                assert_eq!(*offset, slot.in_sent, "data-in has a gap");
                slot.in_sent += len;
                assert!(slot.in_sent as usize <= slot.data_in.len(), "data-in that is not there");
                assert!(slot.in_sent <= slot.expected_in, "more data-in than expected");
                assert_eq!(DataIn::parse(&bhs).itt, slot.tag, "data-in of another command");
            }
        }
        served.peer.max_cmd_sn = Some(bhs.max_cmd_sn());
        if bhs.opcode() == Some(Opcode::R2t) {
            let R2t { lun, itt, ttt, offset, len, .. } = R2t::parse(&bhs);
            assert!(len > 0 && len <= 262_144, "asks for {len} bytes");
            let asked = Asked { lun, itt, ttt, at: offset, end: offset + len, data_sn: 0 };
            served.peer.asked.push_back(asked);
        }
        if bhs.opcode() == Some(Opcode::TaskResponse) {
            let response = TaskResponse::parse(&bhs);
            let named = served.peer.managing.remove(&response.itt).flatten();
            if let (TaskResponseCode::Complete, Some(named)) = (response.code, named) {
                let runs = self.in_flight.iter().find(|one| named.contains(&one.generation));
                assert!(runs.is_none(), "answered while what it names is under way");
            }
        }
        self.handle_events(index);
        true
    }

    fn drop_connection(&mut self, index: usize) {
        let served = &mut self.served[index];
        served.gone = true;
        served.machine.handle_disconnect();
        self.handle_events(index);
    }

    /// Takes away connections that have ended, as the shell does.
    fn reap(&mut self) {
        for index in (0..self.served.len()).rev() {
            if !self.served[index].gone && self.served[index].machine.is_finished() {
                self.drop_connection(index);
            }
            if !self.served[index].gone || !self.served[index].machine.is_idle() {
                continue;
            }
            let served = self.served.remove(index);
            for slot in &served.slots {
                assert!(slot.generation == 0, "a task of a lost session is never released");
            }
            self.units.remove_nexus(NexusId(served.id.0));
            self.node.closed(served.id);
            while let Some(id) = self.node.poll_wake() {
                if !self.wakes.contains(&id) {
                    self.wakes.push(id);
                }
            }
        }
    }

    fn check(&self) {
        assert!(self.node.session_count() <= CONNECTIONS_MAX);
        for served in &self.served {
            let held = served.slots.iter().filter_map(|slot| slot.data_out.as_ref());
            let (mut sum, mut largest) = (0, 0);
            for data in held {
                sum += data.len();
                largest = largest.max(data.len());
            }
            assert!(sum <= DATA_BUDGET.max(largest), "{sum} bytes of data-out are held");
            assert!(served.peer.asked.len() < 5000);
        }
    }

    /// All peers go away, and the medium gets done.
    fn end(&mut self) {
        for index in 0..self.served.len() {
            if !self.served[index].gone {
                self.drop_connection(index);
            }
        }
        for _ in 0..1000 {
            self.reap();
            if self.served.is_empty() {
                break;
            }
            self.complete(0, 0);
            self.wake(0);
        }
        assert!(self.served.is_empty(), "a connection does not end");
        assert!(self.in_flight.is_empty());
        assert_eq!(self.node.session_count(), 0);
        self.wakes.clear();
    }

    /// A session as it should be: what it writes it reads again.
    fn serve_somebody(&mut self) {
        self.units.handle_reset();
        let name = "iqn.2026-01.org.example:good".into();
        let mut setup = initiator::Setup::new(name, Some(TARGET.into()), [0x80, 9, 9, 9, 0, 0]);
        setup.chap = self.setup.chap.clone();
        setup.queue_depth = 4;
        let mut session = Session::new(self.now, Arc::new(setup));
        self.connect(0);
        let mut data = vec![0; 4 * BLOCK_LEN];
        self.converse(&mut session, &mut data);
        let extent = cdb::Extent { lba: 3, blocks: 4 };
        let ask = build::test_unit_ready();
        let all: Vec<_> =
            (0..8).map(|_| self.execute(&mut session, &ask, 0, &mut [], false)).collect();
        if all.contains(&RESERVATION_CONFLICT) {
            // Persistent reservations outlive whoever made them.
            return;
        }
        assert!(all.contains(&0), "the unit does not become ready");
        let mut out: Vec<u8> = (0..data.len()).map(|at| pattern(1, at)).collect();
        let len = out.len() as u32;
        let write = build::write(extent, false, false);
        let written = self.execute(&mut session, &write, len, &mut out, true);
        if written == RESERVATION_CONFLICT {
            return;
        }
        assert_eq!(written, 0, "write");
        let read = build::read(extent, false);
        assert_eq!(self.execute(&mut session, &read, len, &mut data, false), 0, "read");
        assert_eq!(data, out);
        session.logout(self.now);
        self.converse(&mut session, &mut data);
        let mut ended = false;
        while let Some(event) = session.poll_event() {
            ended |= event == initiator::Event::LoggedOut;
        }
        assert!(ended, "the logout is not answered");
    }

    fn execute(
        &mut self,
        session: &mut Session,
        cdb: &[u8],
        len: u32,
        data: &mut [u8],
        write: bool,
    ) -> u8 {
        while session.poll_event().is_some() {}
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let (read_len, write_len) = if write { (0, len) } else { (len, 0) };
        let lun = LunField::from_number(0);
        assert!(session.capacity() > 0, "no login");
        let command = initiator::Command { lun, cdb: padded, read_len, write_len };
        session.submit(self.now, command);
        self.converse(session, data);
        while let Some(event) = session.poll_event() {
            if let initiator::Event::Completed { end: TaskEnd::Status { status, .. }, .. } = event {
                return status;
            }
        }
        panic!("a command does not end");
    }

    /// Carries PDUs between a good initiator and the last connection until there are no more.
    fn converse(&mut self, session: &mut Session, data: &mut [u8]) {
        for _ in 0..1000 {
            let mut any = false;
            while let Some(transmit) = session.poll_transmit() {
                any = true;
                let bytes = match &transmit.payload {
                    Payload::None => Vec::new(),
                    Payload::Control(bytes) => bytes.clone(),
                    Payload::Task { offset, len, .. } => {
                        data[*offset as usize..][..*len as usize].to_vec()
                    }
                };
                let machine = &mut self.served[0].machine;
                machine.handle_header(self.now, &transmit.header).expect("a good request");
                self.handle_events_of(0, Some(&transmit.header));
                let served = &mut self.served[0];
                match served.machine.placement() {
                    Placement::Control => {
                        let node = &mut self.node;
                        served.machine.handle_control(self.now, node, &bytes).expect("good");
                    }
                    Placement::Task { task, offset, len } => {
                        let slot = &mut served.slots[task.index()];
                        slot.tag = 1;
                        let wanted = slot.data_out_len;
                        let into = slot.data_out.get_or_insert_with(|| vec![0; wanted]);
                        into[offset as usize..][..len as usize]
                            .copy_from_slice(&bytes[..len as usize]);
                        served.machine.handle_data();
                    }
                    Placement::Discard => served.machine.handle_data(),
                }
                self.handle_events(0);
            }
            while !self.in_flight.is_empty() {
                self.complete(0, 0);
            }
            while let Some(transmit) = self.served[0].machine.poll_transmit() {
                any = true;
                let bytes = match &transmit.payload {
                    Payload::None => Vec::new(),
                    Payload::Control(bytes) => bytes.clone(),
                    Payload::Task { task, offset, len } => {
                        let list = &self.served[0].slots[task.index()].data_in;
                        list.slice(*offset as usize..(*offset + *len) as usize)
                            .to_contiguous()
                            .to_vec()
                    }
                };
                self.handle_events(0);
                session.handle_header(self.now, &transmit.header).expect("a good response");
                match session.placement() {
                    Placement::Control => session.handle_control(&bytes).expect("good"),
                    Placement::Task { offset, len, .. } => {
                        data[offset as usize..][..len as usize]
                            .copy_from_slice(&bytes[..len as usize]);
                        session.handle_data();
                    }
                    Placement::Discard => session.handle_data(),
                }
            }
            if !any {
                return;
            }
        }
        panic!("the exchange does not end");
    }
}

fn login(transit: bool, more: bool, current_stage: u8, next_stage: u8) -> LoginRequest {
    LoginRequest {
        transit,
        more,
        current_stage,
        next_stage,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 0, 0, 0, 0, 1],
        tsih: 0,
        itt: 1,
        cid: 1,
    }
}

/// A key that means something to a login or a text request, with a value that may.
fn push_key(out: &mut Vec<u8>, key: u8, value: u8) {
    const KEYS: [&str; 26] = [
        "InitiatorName",
        "TargetName",
        "SessionType",
        "AuthMethod",
        "CHAP_A",
        "CHAP_N",
        "CHAP_R",
        "CHAP_I",
        "CHAP_C",
        "HeaderDigest",
        "DataDigest",
        "MaxRecvDataSegmentLength",
        "MaxBurstLength",
        "FirstBurstLength",
        "InitialR2T",
        "ImmediateData",
        "MaxOutstandingR2T",
        "MaxConnections",
        "DefaultTime2Wait",
        "DefaultTime2Retain",
        "ErrorRecoveryLevel",
        "DataPDUInOrder",
        "DataSequenceInOrder",
        "SendTargets",
        "IFMarker",
        "X-org.example.z",
    ];
    const VALUES: [&str; 22] = [
        "",
        TARGET,
        "Normal",
        "Discovery",
        "CHAP,None",
        "None",
        "5",
        "7,5",
        "joe",
        "0x00",
        "All",
        "CRC32C,None",
        "CRC32C",
        "Yes",
        "No",
        "512",
        "16777215",
        "0",
        "4294967296",
        "-1",
        "0b////",
        "iqn.2026-01.org.example:i",
    ];
    let key = KEYS[usize::from(key) % KEYS.len()];
    match VALUES.get(usize::from(value)) {
        Some(known) => text::push(out, key, known),
        None if value < 128 => text::push(out, key, &"9".repeat(usize::from(value))),
        None => text::push(out, key, &"a".repeat(usize::from(value) * 8)),
    }
}

/// A CDB, the bytes that it moves, and whether they go to the target.
fn write_cdb(kind: u8, lba: u8, blocks: u8, flags: u8) -> ([u8; 16], u32, bool) {
    let mut cdb = [0; 16];
    let bytes = u32::from(blocks) * BLOCK_LEN as u32;
    let check = (flags & 1) << 1;
    let (moved, write) = match kind % 22 {
        0 => (0, false),
        1 | 2 => {
            (cdb[0], cdb[5], cdb[8]) = (0x28, lba, blocks);
            (bytes, false)
        }
        3..=6 => {
            (cdb[0], cdb[5], cdb[8]) = (0x2a, lba, blocks);
            (bytes, true)
        }
        7 => {
            (cdb[0], cdb[9], cdb[13]) = (0x8a, lba, blocks);
            (bytes, true)
        }
        8 => {
            (cdb[0], cdb[9], cdb[13]) = (0x89, lba, blocks % 4);
            (u32::from(blocks % 4) * 2 * BLOCK_LEN as u32, true)
        }
        9 => {
            (cdb[0], cdb[1], cdb[9], cdb[13]) = (0x93, flags & 9, lba, blocks);
            (BLOCK_LEN as u32, true)
        }
        10 => {
            (cdb[0], cdb[1], cdb[5], cdb[8]) = (0x2e, check, lba, blocks);
            (bytes, true)
        }
        11 => {
            (cdb[0], cdb[1], cdb[5], cdb[8]) = (0x2f, check, lba, blocks);
            (if check == 0 { 0 } else { bytes }, check != 0)
        }
        12 => {
            (cdb[0], cdb[8]) = (0x42, 24);
            (24, true)
        }
        13 => {
            (cdb[0], cdb[1], cdb[4]) = (0x15, 0x10, blocks);
            (u32::from(blocks), true)
        }
        14 => {
            cdb[0] = 0x35;
            (0, false)
        }
        15 => {
            (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x12, flags & 1, lba, 255);
            (255, false)
        }
        16 => {
            (cdb[0], cdb[2], cdb[4]) = (0x1a, 0x3f, 255);
            (255, false)
        }
        17 => {
            (cdb[0], cdb[9]) = (0xa0, 255);
            (255, false)
        }
        19 => {
            (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, flags % 8, lba % 16, 24);
            (24, true)
        }
        20 => {
            (cdb[0], cdb[1], cdb[8]) = (0x5e, flags % 5, 255);
            (255, false)
        }
        18 => {
            (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10 + (flags & 2), 64);
            (64, false)
        }
        _ => {
            cdb[0] = if flags & 1 == 0 { 0x16 } else { 0x17 };
            (0, false)
        }
    };
    (cdb, moved, write)
}

/// A request that changes the medium changes what its command names, to what the command brings.
fn check_request(slot: &Slot, request: &MediumRequest) {
    let MediumRequest { op, offset, len, data, .. } = request;
    let end = offset.checked_add(*len).expect("no end");
    assert!(end <= (BLOCKS * BLOCK_LEN) as u64, "{op:?} past the end");
    assert_eq!(data.len() as u64, if *op == Op::Write { *len } else { 0 });
    let range = named(&slot.cdb, BLOCK_LEN as u64, (BLOCKS * BLOCK_LEN) as u64);
    let opcode = slot.cdb[0];
    match op {
        Op::Read | Op::Flush | Op::Extents => return,
        Op::Discard | Op::WriteZeroes if opcode == 0x42 => return,
        // SANITIZE names everything, and brings a pattern of its own.
        Op::Write | Op::Discard | Op::WriteZeroes if opcode == 0x48 => return,
        Op::Write | Op::Discard | Op::WriteZeroes => {}
    }
    let inside = range.start <= *offset && end <= range.end;
    assert!(inside, "{opcode:#x} of {range:?} changes {offset} to {end}");
    if *op == Op::Write {
        let bytes = data.to_contiguous();
        let start = (offset - range.start) as usize;
        for (at, byte) in bytes.iter().enumerate() {
            let from = match opcode {
                0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c => start + at,
                0x41 | 0x93 => (start + at) % BLOCK_LEN,
                0x89 => (range.end - range.start) as usize + start + at,
                // ORWRITE: what was there counts too.
                0x8b => return,
                _ => panic!("{opcode:#x} writes"),
            };
            assert_eq!(*byte, pattern(slot.tag, from), "{opcode:#x}: byte {at}");
        }
    }
}
