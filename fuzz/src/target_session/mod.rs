//! The target's machines under peers that do what they like: several connections to one node over
//! two logical units, every PDU possible, requests to the medium that end in any order.
//!
//! What has to hold: no panic; each task is released exactly once, and submitted at most once;
//! only bytes that a command names are written, and only with the bytes that its initiator sent
//! for them; Data-In stays within what was asked for; when a task management function is answered,
//! nothing that it names is under way; data in memory stays within its budget; and afterwards
//! everything has ended, and a well-behaved session is served.
mod afterwards;
mod peer;
mod requests;
mod shell;

use std::{sync::Arc, time::Duration};

use arbitrary::Arbitrary;
use netraid_block::DeviceInfo;
use netraid_iscsi_proto::{
    pdu::{Bhs, LoginRequest, LogoutReason, LogoutRequest, LunField, NO_TAG, NopOut, TextRequest},
    target::{Challenge, Connection, ConnectionId, Limits, Node, Setup},
};
use netraid_scsi::{Identity, NexusId, Reservations, TargetDevice, UnitConfig};

use self::{
    peer::Peer,
    requests::login,
    shell::{InFlight, Slot},
};
use crate::{
    operations,
    wire::{Changes, TARGET, credentials, push_key, wishes},
};

const BLOCK_LEN: usize = 512;
const BLOCKS: usize = 40;
const DATA_BUDGET: usize = 10 << 10;
const LIMITS: Limits = Limits {
    sessions_max: 4,
    visitors_max: 3,
    visitors_per_source_max: 2,
    data_budget: 16 << 10,
    ..Limits::DEFAULT
};
/// Sessions, visitors, and as many again that were told to leave.
const CONNECTIONS_MAX: usize = 10;
const CHALLENGE: Challenge = Challenge { identifier: 7, bytes: [9; 32] };

/// SCSI status RESERVATION CONFLICT (SAM-5, section 5.3.1).
const RESERVATION_CONFLICT: u8 = 0x18;

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

/// One connection: the machine with its shell, and the peer.
struct Served {
    id: ConnectionId,
    machine: Connection,
    slots: Vec<Slot>,
    gone: bool,
    peer: Peer,
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

impl World {
    fn new(mode: u8) -> Self {
        let mut setup = Setup::new(TARGET.into());
        setup.chap = (mode & 1 != 0).then(credentials).into_iter().collect();
        // The shell judges who knows the same secret.
        setup.asks_standing = mode & 65 == 65;
        setup.wishes = wishes(mode);
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
            if !self.served[index].gone {
                continue;
            }
            let said = self.served[index].machine.poll_transmit();
            assert!(said.is_none(), "{said:?} is for nobody");
            if !self.served[index].machine.is_idle() {
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
}
