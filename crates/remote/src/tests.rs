//! The rules of a remote disk, with a target in memory that can misbehave, and a clock that jumps from one thing to
//! the next.

mod barred;
mod caches;
mod closing;
mod fencing;
mod hints;
mod lost;
mod medium;
mod opening;
mod orders;
mod portals;
mod random;
mod target;
mod time;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString as _},
    vec,
    vec::Vec,
};
use core::{mem, time::Duration};

use netraid_block::{Buf, ErrorKind, IoError, Op, Pool, Portal, RequestFlags, SgList};
use netraid_iscsi_proto::{
    framing::{Broken, Side as _},
    initiator::Setup,
    machine::Placement,
    pdu::{Bhs, Opcode, ScsiCommand, TaskResponseCode},
};
use netraid_scsi::{Additional, SenseKey, Status as Scsi};

use self::{
    medium::{Answer, Isid, Medium},
    target::{Conn, Door, News, Target},
};
use super::*;

const BLOCK: u64 = 512;
const BLOCK_LEN: usize = 512;
/// Blocks of the disk.
const BLOCKS: usize = 4096;
/// Keys of readers: from ff00h to ffffh.
const READER_KEYS: (u64, u64) = (!0xff, 0xff00);
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
/// The time of a request.
const TIME: Duration = Duration::from_secs(8);
const ISID: Isid = [0x80, 1, 2, 3, 0, 0];

const READY: u8 = 0x00;
const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;
const FLUSH: u8 = 0x35;
const UNMAP: u8 = 0x42;
const WRITE_SAME: u8 = 0x93;
const INQUIRY: u8 = 0x12;
const RESERVE_IN: u8 = 0x5e;
const RESERVE_OUT: u8 = 0x5f;
/// Service action of the last.
const CLEAR: u8 = 0x03;

/// A connection from the initiator's side.
enum Line {
    Closed,
    Connecting(Portal),
    Open(Conn),
}

/// What the target has got.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    place: usize,
    opcode: Opcode,
    /// The CDB of a command.
    cdb: [u8; 16],
}

/// A disk, its shell, and all that is on the other side.
struct World {
    remote: Remote<u32>,
    now: Duration,
    lines: Vec<Line>,
    target: Target,
    /// Connections are made when a test says so.
    is_slow: bool,
    /// Nothing is exchanged.
    is_cut_off: bool,
    /// This one's connections take for ever.
    stuck: Option<usize>,
    next_user: u32,
    /// Requests that have not ended, and since when.
    open: BTreeMap<u32, Duration>,
    ends: BTreeMap<u32, Result<Vec<u8>, IoError>>,
    orders: BTreeSet<OrderId>,
    answers: BTreeMap<OrderId, Result<Vec<u8>, IoError>>,
    events: Vec<Event>,
    opened: Option<Result<Opened, Reason>>,
    is_closed: bool,
    sent: Vec<Sent>,
    /// Connections that were to be made: whose, where, when.
    connects: Vec<(usize, String, Duration)>,
    /// Requests in the order in which they have ended.
    ended: Vec<u32>,
    /// How often the cache was lost when a request ended.
    losses_at: BTreeMap<u32, u64>,
}

fn portal(host: &str) -> Portal {
    Portal { host: host.into(), port: 3260 }
}

fn settings(portals: &[&str], sessions: u8) -> Settings {
    Settings {
        place: "disk".into(),
        lun: 0,
        portals: portals.iter().map(|host| portal(host)).collect(),
        setup: Setup::new("iqn.test:host".into(), Some("iqn.test:target".into()), ISID),
        target_proof: None,
        goes_by_plan: false,
        takes_over: false,
        sessions,
        request_timeout: TIME,
        refusal_limit: 2 * SECOND,
        login_timeout: 5 * SECOND,
        reader_keys: Some(READER_KEYS),
    }
}

impl World {
    /// With a disk that is open: one session.
    fn opened() -> Self {
        Self::opened_with(|_, _| {})
    }

    /// With a disk that is open: so many sessions at as many portals.
    fn wide(sessions: u8) -> Self {
        Self::opened_with(|settings, _| {
            let portals = ["a", "b", "c", "d"].iter().take(usize::from(sessions));
            settings.portals = portals.map(|host| portal(host)).collect();
            settings.sessions = sessions;
        })
    }

    fn opened_with(prepare: impl FnOnce(&mut Settings, &mut Target)) -> Self {
        let mut world = Self::opening_with(prepare);
        world.drive();
        assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
        world.sent.clear();
        world.events.clear();
        world
    }

    fn opening_with(prepare: impl FnOnce(&mut Settings, &mut Target)) -> Self {
        let mut settings = settings(&["a"], 1);
        let mut target = Target::new(Medium::new(BLOCKS));
        prepare(&mut settings, &mut target);
        let places = usize::from(settings.sessions) + 1;
        Self {
            remote: Remote::new(settings, Pool::new(), Duration::ZERO),
            now: Duration::ZERO,
            lines: (0..places).map(|_| Line::Closed).collect(),
            target,
            is_slow: false,
            is_cut_off: false,
            stuck: None,
            next_user: 0,
            open: BTreeMap::new(),
            ends: BTreeMap::new(),
            orders: BTreeSet::new(),
            answers: BTreeMap::new(),
            events: Vec::new(),
            opened: None,
            is_closed: false,
            sent: Vec::new(),
            connects: Vec::new(),
            ended: Vec::new(),
            losses_at: BTreeMap::new(),
        }
    }

    /// Until nothing more happens by itself without time passing.
    fn drive(&mut self) {
        for _ in 0..10_000 {
            let mut is_busy = self.execute();
            if self.remote.next_timeout().is_some_and(|at| at <= self.now) {
                self.remote.handle_timeout(self.now);
                is_busy = true;
                self.execute();
                let next = self.remote.next_timeout();
                assert!(next.is_none_or(|at| at > self.now), "{next:?} at {:?}", self.now);
            }
            if !self.is_slow {
                for place in 0..self.lines.len() {
                    is_busy |= self.connect(place);
                }
            }
            for place in 0..self.lines.len() {
                is_busy |= self.exchange(place);
            }
            if !is_busy {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Time passes.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.drive();
            match self.remote.next_timeout().filter(|at| *at <= end) {
                Some(at) => {
                    self.now = at.max(self.now);
                    self.remote.handle_timeout(self.now);
                }
                None => break,
            }
        }
        self.now = end;
        self.drive();
    }

    /// Does what the machine says.
    fn execute(&mut self) -> bool {
        let mut next = self.remote.poll();
        let is_busy = next.is_some();
        while let Some(action) = next {
            self.act(action);
            next = self.remote.poll();
        }
        is_busy
    }

    fn act(&mut self, action: Action<u32>) {
        assert!(!self.is_closed, "{action:?} after all is over");
        match action {
            Action::Connect { place, portal } => {
                let line = &mut self.lines[place.0];
                assert!(matches!(line, Line::Closed), "a second connection of {place:?}");
                self.connects.push((place.0, portal.host.clone(), self.now));
                *line = Line::Connecting(portal);
            }
            Action::Disconnect(place) => self.hang_up(place.0),
            Action::Opened(result) => {
                assert!(self.opened.replace(result).is_none(), "it opens twice");
            }
            Action::Complete { user, result } => self.end(user, result),
            Action::Answer { order, result } => {
                assert!(self.orders.remove(&order), "{order:?} ends, and was not given");
                self.answers.insert(order, result);
            }
            Action::Tell(event) => self.events.push(event),
            Action::Closed => self.is_closed = true,
        }
    }

    fn end(&mut self, user: u32, result: Result<SgList, IoError>) {
        let since = self.open.remove(&user).expect("a request ends once");
        assert!(self.now - since <= TIME * 12 + 2 * SECOND, "a request ends in time");
        let result = result.map(|data| data.to_contiguous().to_vec());
        self.ended.push(user);
        self.losses_at.insert(user, self.remote.status().cache_losses);
        assert!(self.ends.insert(user, result).is_none());
    }

    /// The initiator leaves a connection; the target goes on with what it has got.
    fn hang_up(&mut self, place: usize) {
        let line = mem::replace(&mut self.lines[place], Line::Closed);
        if let Line::Open(conn) = line
            && conn.is_full
        {
            self.target.orphans.push(conn);
        }
    }

    /// A connection is made, or not; whether anything came of it.
    fn connect(&mut self, place: usize) -> bool {
        let Line::Connecting(portal) = &self.lines[place] else { return false };
        if self.stuck == Some(place) {
            return false;
        }
        let portal = portal.clone();
        let (fresh, place) = (fresh(), Place(place));
        match self.target.door(&portal) {
            Door::Lost => return false,
            Door::Refuses => {
                self.lines[place.0] = Line::Closed;
                self.remote.handle_not_connected(self.now, place, refused());
            }
            Door::Open | Door::Mute | Door::Denies(_) | Door::Redirects { .. } => {
                let group = self.target.groups.get(&portal.host).copied().unwrap_or(1);
                let asks = self.target.asks.is_some();
                self.lines[place.0] = Line::Open(Conn::new(portal, group, asks));
                self.remote.handle_connected(self.now, place, fresh);
            }
        }
        true
    }

    /// PDUs go both ways.
    fn exchange(&mut self, place: usize) -> bool {
        if !matches!(self.lines[place], Line::Open(_)) {
            let nothing = self.remote.poll_transmit(Place(place)).is_none();
            assert!(nothing, "a PDU for place {place}, which has no connection");
            return false;
        }
        if self.is_cut_off {
            return false;
        }
        self.transmit(place) | self.deliver(place)
    }

    fn transmit(&mut self, place: usize) -> bool {
        let Line::Open(conn) = &mut self.lines[place] else { return false };
        let mut is_busy = false;
        while let Some(transmit) = self.remote.poll_transmit(Place(place)) {
            is_busy = true;
            let opcode = transmit.header.opcode().unwrap();
            let is_command = opcode == Opcode::ScsiCommand;
            let cdb =
                if is_command { ScsiCommand::parse(&transmit.header).cdb } else { [0xff; 16] };
            self.sent.push(Sent { place, opcode, cdb });
            conn.push_input(transmit.header, &transmit.body);
        }
        if conn.serve(&mut self.target) == News::LoggedIn {
            self.reinstate(place);
        }
        is_busy
    }

    /// A login ends the session that was there with the same name, and its commands.
    fn reinstate(&mut self, place: usize) {
        let Line::Open(conn) = &self.lines[place] else { return };
        self.target.orphans.retain(|other| !other.is_replaced_by(conn));
        let others = self.lines.iter().enumerate().filter(|(other, _)| *other != place);
        let gone = others
            .filter(|(_, line)| matches!(line, Line::Open(other) if other.is_replaced_by(conn)));
        let gone: Vec<usize> = gone.map(|(other, _)| other).collect();
        assert_eq!(gone, [], "a login ends a session that is in use");
    }

    fn deliver(&mut self, place: usize) -> bool {
        let Line::Open(conn) = &mut self.lines[place] else { return false };
        let pdus = mem::take(&mut conn.output);
        if pdus.is_empty() {
            return false;
        }
        let mut end = Ok(());
        for (header, body) in &pdus {
            let Some(link) = self.remote.receiver(Place(place), self.now) else { break };
            end = receive(link, header, body).map_err(|error| Reason::Lost(error.to_string()));
            if end.is_err() {
                break;
            }
        }
        self.remote.handle_received(self.now, Place(place), end);
        true
    }

    /// A connection breaks; the target goes on with what it has got.
    fn cut(&mut self, place: usize) {
        self.hang_up(place);
        let end = Err(Reason::Lost("a cable is cut".into()));
        self.remote.handle_received(self.now, Place(place), end);
    }

    /// The target restarts: all sessions are gone, with what was not flushed.
    fn restart(&mut self) {
        let open = |line: &Line| matches!(line, Line::Open(_));
        let all: Vec<usize> = (0..self.lines.len()).filter(|at| open(&self.lines[*at])).collect();
        all.into_iter().for_each(|place| self.cut(place));
        self.target.orphans.clear();
        self.target.medium.contents = self.target.medium.stable.clone();
        self.target.medium.attentions.clear();
        self.target.medium.registrations.clear();
    }

    /// A portal does something else from now on.
    fn set_door(&mut self, host: &str, door: Door) {
        self.target.doors.insert(host.into(), door);
    }

    fn conn(&mut self, place: usize) -> &mut Conn {
        match &mut self.lines[place] {
            Line::Open(conn) => conn,
            Line::Closed | Line::Connecting(_) => panic!("place {place} has no connection"),
        }
    }

    fn is_connected(&self, place: usize) -> bool {
        matches!(self.lines[place], Line::Open(_))
    }

    /// The target answers the aborts that it has not answered.
    fn answer_aborts(&mut self, place: usize) {
        self.target.aborts = Some(TaskResponseCode::Complete);
        let Line::Open(conn) = &mut self.lines[place] else { panic!("no connection") };
        conn.answer_aborts(&self.target);
        self.drive();
    }

    /// The first command that the target holds is carried out.
    fn carry_out_held(&mut self, place: usize) {
        let Line::Open(conn) = &mut self.lines[place] else { panic!("no connection") };
        conn.carry_out(&mut self.target, 0);
        self.drive();
    }

    /// A command that the target holds ends so.
    fn answer_held(&mut self, place: usize, answer: Answer) {
        self.conn(place).answer(0, answer);
        self.drive();
    }

    /// The target holds for good what it holds now, and nothing else.
    fn stick(&mut self) {
        self.target.holds.clear();
        for line in &mut self.lines {
            if let Line::Open(conn) = line {
                conn.tasks.iter_mut().for_each(|task| task.is_stuck = true);
            }
        }
    }

    /// The target carries out all that it holds.
    fn release(&mut self) {
        self.target.holds.clear();
        self.drive();
    }

    fn request(&mut self, op: Op, offset: u64, len: u64, fua: bool, data: Vec<u8>) -> u32 {
        let user = self.next_user;
        self.next_user += 1;
        self.open.insert(user, self.now);
        let data = if data.is_empty() { SgList::new() } else { Buf::copy_from(&data).into() };
        let flags = RequestFlags { fua, ..RequestFlags::default() };
        let request = Request { op, offset, len, flags, data, user };
        self.remote.handle_request(self.now, request);
        user
    }

    /// Asks for something that brings no bytes.
    fn ask(&mut self, op: Op, block: u64, blocks: u64) -> u32 {
        let user = self.request(op, block * BLOCK, blocks * BLOCK, false, Vec::new());
        self.drive();
        user
    }

    fn read(&mut self, block: u64) -> u32 {
        self.ask(Op::Read, block, 1)
    }

    fn write(&mut self, block: u64, byte: u8) -> u32 {
        let user = self.request(Op::Write, block * BLOCK, BLOCK, false, full(byte));
        self.drive();
        user
    }

    fn write_forced(&mut self, block: u64, byte: u8) -> u32 {
        let user = self.request(Op::Write, block * BLOCK, BLOCK, true, full(byte));
        self.drive();
        user
    }

    fn flush(&mut self) -> u32 {
        self.ask(Op::Flush, 0, 0)
    }

    fn order(&mut self, id: u64, order: Order) {
        self.orders.insert(OrderId(id));
        self.remote.handle_order(self.now, OrderId(id), order);
        self.drive();
    }

    /// Registers all sessions.
    fn register(&mut self, key: u64) {
        self.order(1000, Order::Register { key, ignore: true });
        assert_eq!(self.answer(1000), Ok(Vec::new()));
        self.sent.clear();
    }

    /// How an order has ended.
    fn answer(&mut self, id: u64) -> Result<Vec<u8>, ErrorKind> {
        let end = self.answers.remove(&OrderId(id)).expect("the order has ended");
        end.map_err(|error| error.kind())
    }

    fn has_ended(&self, user: u32) -> bool {
        self.ends.contains_key(&user)
    }

    fn result(&self, user: u32) -> Result<Vec<u8>, ErrorKind> {
        let end = self.ends.get(&user).expect("the request has ended");
        end.clone().map_err(|error| error.kind())
    }

    #[track_caller]
    fn assert_done(&self, user: u32) {
        assert_eq!(self.result(user), Ok(Vec::new()));
    }

    #[track_caller]
    fn assert_failed(&self, user: u32, kind: ErrorKind) {
        assert_eq!(self.result(user), Err(kind));
    }

    #[track_caller]
    fn assert_read(&mut self, block: u64, byte: u8) {
        let user = self.read(block);
        assert_eq!(self.result(user), Ok(full(byte)));
    }

    /// How many commands with this operation code the target has got.
    fn count(&self, opcode: u8) -> usize {
        self.commands().iter().filter(|command| **command == opcode).count()
    }

    /// Operation codes of the commands that the target has got.
    fn commands(&self) -> Vec<u8> {
        let commands = self.sent.iter().filter(|sent| sent.opcode == Opcode::ScsiCommand);
        commands.map(|sent| sent.cdb[0]).collect()
    }

    /// Where commands with this operation code went.
    fn places(&self, opcode: u8) -> Vec<usize> {
        let sent = self.sent.iter().filter(|sent| sent.cdb[0] == opcode);
        sent.map(|sent| sent.place).collect()
    }

    fn got(&self, opcode: Opcode) -> usize {
        self.sent.iter().filter(|sent| sent.opcode == opcode).count()
    }

    fn losses(&self) -> u64 {
        self.remote.status().cache_losses
    }

    fn told(&self, is_meant: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| is_meant(event)).count()
    }
}

/// A PDU goes to a session.
fn receive(link: &mut Link, header: &Bhs, body: &[u8]) -> Result<(), Broken> {
    match link.handle_header(header)? {
        Placement::Control => link.handle_segment(Some(body))?,
        Placement::Discard => link.handle_segment(None)?,
        Placement::Task { task, offset, len } => {
            let (at, len) = (offset as usize, len as usize);
            link.buffer(task)[at..at + len].copy_from_slice(&body[..len]);
            link.handle_segment(None)?;
        }
    }
    Ok(())
}

fn fresh() -> Fresh {
    Fresh {
        credentials: None,
        identifier: 1,
        challenge: [7; netraid_iscsi_proto::chap::CHALLENGE_LEN],
    }
}

fn refused() -> Reason {
    Reason::Connect(ConnectError { text: "nobody listens".into(), is_refusal: true })
}

/// A block of one byte.
fn full(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_LEN]
}

/// The ISID of a session.
fn isid(lane: u8) -> Isid {
    [0x80, 1, 2, 3, 0, lane]
}
