//! The target's machines under peers that do what they like: several connections to one node over
//! two logical units, every PDU possible, requests to the medium that end in any order.
//!
//! What has to hold: no panic; each task is released exactly once, and submitted at most once;
//! only bytes that a command names are written, and only with the bytes that its initiator sent
//! for them; Data-In stays within what was asked for; when a task management function is answered,
//! nothing that it names is under way; data in memory stays within its budget; nothing reaches a
//! medium whose gate is closed but what was there before, and nothing at all once nobody was there;
//! what a policy denies, or a grant that has ended, reaches none; whoever entered has left at the
//! end, and places of a pace are given back; and afterwards
//! everything has ended, and a well-behaved session is served.
//!
//! The product decides all of that (`netraid_node::Service`): `outside`, with what it names, is what it
//! reaches, and says what must not happen there; `around` moves gates, policies and grants; `peer`
//! is the other end of the wire.
mod afterwards;
mod around;
mod grant;
mod lun;
mod medium;
mod outside;
mod pace;
mod peer;
mod requests;

use std::{rc::Rc, sync::Arc, time::Duration};

use arbitrary::Arbitrary;
use netraid_block::{DeviceInfo, Pool};
use netraid_iscsi_proto::{
    framing::Side as _,
    pdu::{Bhs, LoginRequest, LogoutReason, LogoutRequest, LunField, NO_TAG, NopOut, TextRequest},
    target::{Challenge, ConnectionId, Limits, Node, Setup},
};
use netraid_node::Service;
use netraid_scsi::{Identity, Reservations, UnitConfig};

use self::{
    around::Around,
    lun::ServedLun,
    outside::{Reach, Setting, Shared},
    peer::Peer,
    requests::login,
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

/// Inputs of an extended mode have these in the place of operations.
#[derive(Debug, Arbitrary)]
enum Move {
    Peer(Operation),
    Around(Around),
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

/// One connection: the service with what it reaches, and the peer.
struct Served {
    id: ConnectionId,
    service: Service<Reach>,
    reach: Reach,
    gone: bool,
    /// A fault of the program ended it: it hears of nothing any more.
    is_broken: bool,
    peer: Peer,
}

struct World {
    now: Duration,
    setup: Arc<Setup>,
    pool: Pool,
    shared: Rc<Shared>,
    served: Vec<Served>,
    /// LUNs that were removed: nobody is at them.
    gone: Vec<Rc<ServedLun>>,
}

/// The mode has a second byte, and moves follow.
const EXTENDED: u8 = 0x80;

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let Some((mode, input)) = input.split_first() else { return };
    if mode & EXTENDED == 0 {
        let world = World::new(*mode, Setting::default());
        return world.live(operations(input, 400).map(Move::Peer));
    }
    let Some((more, input)) = input.split_first() else { return };
    let setting = Setting {
        is_late: true,
        is_paced: more & 1 != 0,
        judges_late: more & 2 != 0,
        can_sanitize: more & 4 != 0,
        grants: (more & 8 != 0).then_some((more >> 4 & 3, more & 0x40 != 0)),
    };
    // Grants are for those who prove that they have them.
    let proves = if more & 10 != 0 { 65 } else { 0 };
    World::new(mode | proves, setting).live(operations(input, 400));
}

fn unit(lun: u16, read_only: bool, can_sanitize: bool) -> UnitConfig {
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
        can_sanitize,
        removable: lun == 1,
        identity: Identity::for_lun(TARGET, lun),
        reservations: Reservations::new(true),
    }
}

impl World {
    fn new(mode: u8, setting: Setting) -> Self {
        let mut setup = Setup::new(TARGET.into());
        setup.chap = (mode & 1 != 0).then(credentials).into_iter().collect();
        // What is outside judges who knows the same secret.
        setup.asks_standing = mode & 65 == 65;
        setup.wishes = wishes(mode);
        setup.paced = setting.is_paced;
        setup.queue_depth = 6;
        setup.data_budget = DATA_BUDGET as u64;
        let shared = Shared::new(setting, Node::new(LIMITS));
        shared.add_lun(0, false);
        shared.add_lun(1, mode & 32 != 0);
        let mut world = Self {
            now: Duration::from_secs(1),
            setup: Arc::new(setup),
            pool: Pool::new(),
            shared,
            served: Vec::new(),
            gone: Vec::new(),
        };
        world.connect(0);
        world.log_in(0, 1, 0, 0);
        world
    }

    fn live(mut self, moves: impl Iterator<Item = Move>) {
        for one in moves {
            match one {
                Move::Peer(operation) => self.perform(operation),
                Move::Around(around) => self.perform_around(around),
            }
            self.reap();
            self.check();
        }
        self.end();
        self.serve_somebody();
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
                    && self.served[index].service.wants_input()
                {
                    let bhs = NopOut::ping(5).encode();
                    let served = &mut self.served[index];
                    let mut receiver = served.service.receiver(&mut served.reach, self.now);
                    receiver.handle_bad_digest(&bhs).expect("a digest is told to be wrong");
                    self.look(index);
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
                if let Some(index) = self.index(at) {
                    let (now, served) = (self.now, &mut self.served[index]);
                    let moves = (false, false);
                    if served.service.handle_timeout(&mut served.reach, now, moves).is_err() {
                        self.drop_connection(index);
                    }
                    self.look(index);
                }
            }
            Operation::Disconnect { at } => {
                if let Some(index) = self.index(at) {
                    self.drop_connection(index);
                }
            }
            Operation::Shutdown { at } => {
                if let Some(index) = self.index(at) {
                    let (now, served) = (self.now, &mut self.served[index]);
                    served.service.handle_shutdown(&mut served.reach, now);
                    self.look(index);
                }
            }
        }
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

    fn wake(&mut self, which: usize) {
        let Some(which) = which.checked_rem(self.shared.wakes.borrow().len()) else { return };
        let id = self.shared.wakes.borrow_mut().remove(which);
        let Some(index) = self.served.iter().position(|served| served.id == id) else { return };
        let served = &mut self.served[index];
        if !served.is_broken {
            served.service.handle_wake(&mut served.reach);
            self.look(index);
        }
    }

    /// Looks what a service has of commands, after each call.
    fn look(&mut self, index: usize) {
        let Served { service, reach, .. } = &mut self.served[index];
        let live: Vec<_> = service.commands().collect();
        reach.follow(&live);
        if let Some(guest) = &reach.guest {
            assert!(guest.allowed.take().is_none(), "what was allowed did not go to the device");
        }
        if !self.shared.setting.get().is_late {
            self.end_stores();
        }
    }

    fn drop_connection(&mut self, index: usize) {
        let served = &mut self.served[index];
        served.gone = true;
        served.service.handle_disconnect(&mut served.reach);
        self.look(index);
    }

    /// A fault of the program ends a connection, in the midst of what it does.
    fn break_off(&mut self, index: usize) {
        let served = &mut self.served[index];
        (served.gone, served.is_broken) = (true, true);
        served.service.abandon_waits(&mut served.reach);
    }

    /// Takes away connections that have ended, as the shell does.
    fn reap(&mut self) {
        for index in (0..self.served.len()).rev() {
            if !self.served[index].gone && self.served[index].service.is_finished() {
                self.drop_connection(index);
            }
            if self.served[index].gone && self.has_ended(index) {
                self.bury(index);
            }
        }
    }

    fn has_ended(&mut self, index: usize) -> bool {
        let served = &mut self.served[index];
        if served.is_broken {
            return !self.shared.has_flying(served.id);
        }
        let said = served.service.poll_transmit();
        assert!(said.is_none(), "something is for nobody");
        served.service.is_idle()
    }

    fn bury(&mut self, index: usize) {
        let Served { mut service, mut reach, is_broken, .. } = self.served.remove(index);
        let left = reach.commands.len();
        assert!(left == 0 || is_broken, "a task of a lost session is never released");
        service.abandon_waits(&mut reach);
        service.end(&mut reach);
    }

    fn check(&self) {
        assert!(self.shared.node.borrow().session_count() <= CONNECTIONS_MAX);
        for served in &self.served {
            let (mut sum, mut largest) = (0, 0);
            for len in served.service.buffer_lens() {
                sum += len;
                largest = largest.max(len);
            }
            assert!(sum <= DATA_BUDGET.max(largest), "{sum} bytes of data-out are held");
            assert!(served.peer.asked.len() < 5000);
        }
        self.shared.luns.borrow().iter().for_each(|lun| self.check_running(lun));
        for lun in &self.gone {
            assert_eq!(lun.house.running(), 0, "somebody is at LUN {}, which is gone", lun.number);
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
        assert!(self.shared.flying.borrow().is_empty());
        for lun in self.shared.luns.borrow().iter() {
            assert_eq!(lun.house.running(), 0, "whoever entered LUN {} has left", lun.number);
        }
        let node = self.shared.node.borrow();
        assert_eq!((node.session_count(), node.data_held()), (0, 0));
        self.shared.wakes.borrow_mut().clear();
    }
}
