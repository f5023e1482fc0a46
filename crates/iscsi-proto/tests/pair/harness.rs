//! [`Pair`]: one session between our initiator and our target, without sockets. Its logical unit
//! knows two commands: read (opcode 1) and write (opcode 2), each with offset and length.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use netraid_iscsi_proto::{
    initiator::{self, Command, Session, TaskEnd},
    machine::{Fatal, Payload, Placement, TaskId, Transmit},
    negotiation::Wishes,
    pdu::{Bhs, LunField},
    serial::Serial,
    target::{self, Challenge, Connection, Event, Limits, Link, Node, Outcome, Plan},
};

pub(crate) const TARGET: &str = "iqn.2026-01.org.example:target";
pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;
/// A command that the unit refuses, with sense data.
pub(crate) const BAD: u8 = 3;
pub(crate) const SENSE: &[u8] = &[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];

pub(crate) fn target_setup() -> target::Setup {
    let mut setup = target::Setup::new(TARGET.into());
    setup.portals = vec!["192.0.2.1:3260".into()];
    setup
}

pub(crate) fn initiator_setup() -> initiator::Setup {
    initiator::Setup::new("iqn.2026-01.org.example:i".into(), Some(TARGET.into()), [0x80; 6])
}

pub(crate) fn connection(node: &mut Node, setup: &target::Setup) -> Connection {
    connection_at([127, 0, 0, 1], node, setup)
}

/// A connection to the portal at this address.
pub(crate) fn connection_at(portal: [u8; 4], node: &mut Node, setup: &target::Setup) -> Connection {
    connection_to((portal, 3260).into(), node, setup)
}

pub(crate) fn connection_to(
    portal: SocketAddr,
    node: &mut Node,
    setup: &target::Setup,
) -> Connection {
    let challenge = Challenge { identifier: 7, bytes: [9; 32] };
    let peer = ([127, 0, 0, 1], 50_000).into();
    let seat = node.open(Link::new(peer, portal));
    let seat = seat.expect("room for a connection");
    Connection::new(Duration::ZERO, seat, Arc::new(setup.clone()), challenge)
}

pub(crate) fn command(opcode: u8, offset: u32, len: u32) -> Command {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&offset.to_be_bytes());
    cdb[6..10].copy_from_slice(&len.to_be_bytes());
    let lun = LunField::from_number(0);
    let (read_len, write_len) = if opcode == WRITE { (0, len) } else { (len, 0) };
    Command { lun, cdb, read_len, write_len }
}

fn field(cdb: &[u8; 16], at: usize) -> usize {
    u32::from_be_bytes(cdb[at..at + 4].try_into().unwrap()) as usize
}

/// The target's shell: buffers, and a disk.
pub(crate) struct Host {
    pub(crate) machine: Connection,
    pub(crate) disk: Vec<u8>,
    /// Commands that wait to be executed; the test says when.
    pub(crate) executing: VecDeque<TaskId>,
    pub(crate) commands: usize,
    pub(crate) resets: usize,
    pub(crate) settled: usize,
    /// Tasks whose preemption has ended.
    pub(crate) preempted: Vec<TaskId>,
    pub(crate) cleared: usize,
    /// What waits for a grant; the test gives it.
    pub(crate) asks: VecDeque<(TaskId, u32, bool)>,
    /// Times that somebody was to be judged; the test does.
    pub(crate) judged: usize,
    cdbs: Vec<[u8; 16]>,
    pub(crate) data_out: Vec<Vec<u8>>,
    data_in: Vec<Vec<u8>>,
    /// Execute at once.
    pub(crate) eager: bool,
    /// What a write holds in memory besides its data.
    pub(crate) besides: u64,
}

impl Host {
    pub(crate) fn new(machine: Connection, disk_len: usize) -> Self {
        let count = machine.task_count();
        Self {
            machine,
            disk: vec![0; disk_len],
            executing: VecDeque::new(),
            commands: 0,
            resets: 0,
            settled: 0,
            preempted: Vec::new(),
            cleared: 0,
            asks: VecDeque::new(),
            judged: 0,
            cdbs: vec![[0; 16]; count],
            data_out: vec![Vec::new(); count],
            data_in: vec![Vec::new(); count],
            eager: true,
            besides: 0,
        }
    }

    pub(crate) fn handle_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Command { task, cdb, data_out_max, .. } => {
                    self.commands += 1;
                    self.cdbs[task.index()] = cdb;
                    self.plan(task, data_out_max);
                }
                Event::AskGrant { task, len, executes } => {
                    assert!(self.asks.iter().all(|(known, ..)| *known != task), "one at a time");
                    self.asks.push_back((task, len, executes));
                }
                Event::Submit { task } if self.eager => self.execute(task),
                Event::Submit { task } => self.executing.push_back(task),
                Event::Release { task } => {
                    assert!(!self.executing.contains(&task), "released while it executes");
                    self.data_in[task.index()].clear();
                    self.asks.retain(|(asked, ..)| *asked != task);
                }
                Event::LoggedIn { .. } => {}
                Event::AskStanding => self.judged += 1,
                Event::Cleared { .. } => self.cleared += 1,
                Event::Preempted { task } => self.preempted.push(task),
                Event::Settled => self.settled += 1,
                Event::Reset { .. } => self.resets += 1,
            }
        }
    }

    /// Grants what waits longest: how many bytes, and whether for a command that is executed.
    pub(crate) fn grant(&mut self) -> Option<(u32, bool)> {
        let (task, len, executes) = self.asks.pop_front()?;
        self.machine.handle_grant(task);
        self.handle_events();
        Some((len, executes))
    }

    fn plan(&mut self, task: TaskId, data_out_max: u32) {
        let cdb = self.cdbs[task.index()];
        let len = field(&cdb, 6);
        match cdb[0] {
            WRITE => {
                let data_out = u32::try_from(len).unwrap().min(data_out_max);
                self.data_out[task.index()] = vec![0xee; data_out as usize];
                let data_out_total = len as u64;
                self.machine
                    .handle_plan(task, Plan { data_out, data_out_total, memory: self.besides });
            }
            READ => {
                let memory = len as u64;
                self.machine.handle_plan(task, Plan { data_out: 0, data_out_total: 0, memory });
            }
            _ => {
                let outcome = Outcome { status: 2, sense: SENSE.into(), data_in: 0 };
                self.machine.handle_outcome(task, outcome);
            }
        }
    }

    pub(crate) fn execute(&mut self, task: TaskId) {
        let cdb = self.cdbs[task.index()];
        let (at, len) = (field(&cdb, 2).min(self.disk.len()), field(&cdb, 6));
        let end = (at + len).min(self.disk.len());
        let mut data_in = 0;
        if cdb[0] == WRITE {
            let data = &self.data_out[task.index()];
            let end = end.min(at + data.len());
            self.disk[at..end].copy_from_slice(&data[..end - at]);
        } else {
            self.data_in[task.index()] = self.disk[at..end].to_vec();
            data_in = (end - at) as u64;
        }
        self.machine.handle_outcome(task, Outcome { status: 0, sense: Vec::new(), data_in });
    }

    pub(crate) fn receive(
        &mut self,
        now: Duration,
        node: &mut Node,
        bhs: &Bhs,
        data: &[u8],
    ) -> Result<(), Fatal> {
        self.machine.handle_header(now, bhs)?;
        self.handle_events();
        match self.machine.placement() {
            Placement::Control => self.machine.handle_control(now, node, data)?,
            Placement::Task { task, offset, len } => {
                let (offset, len) = (offset as usize, len as usize);
                self.data_out[task.index()][offset..offset + len].copy_from_slice(&data[..len]);
                self.machine.handle_data();
            }
            Placement::Discard => self.machine.handle_data(),
        }
        self.handle_events();
        Ok(())
    }

    pub(crate) fn transmit(&mut self) -> Option<(Transmit, Vec<u8>)> {
        let transmit = self.machine.poll_transmit()?;
        let data = match &transmit.payload {
            Payload::None => Vec::new(),
            Payload::Control(data) => data.clone(),
            Payload::Task { task, offset, len } => {
                self.data_in[task.index()][*offset as usize..][..*len as usize].to_vec()
            }
        };
        self.handle_events();
        Some((transmit, data))
    }
}

/// The initiator's shell: buffers.
pub(crate) struct Guest {
    pub(crate) machine: Session,
    pub(crate) data_out: Vec<Vec<u8>>,
    pub(crate) data_in: Vec<Vec<u8>>,
    pub(crate) ends: Vec<(TaskId, TaskEnd, Vec<u8>)>,
    pub(crate) events: Vec<initiator::Event>,
}

impl Guest {
    pub(crate) fn new(setup: initiator::Setup) -> Self {
        let machine = Session::new(Duration::ZERO, Arc::new(setup));
        let count = machine.task_count();
        let (data_out, data_in) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        Self { machine, data_out, data_in, ends: Vec::new(), events: Vec::new() }
    }

    pub(crate) fn submit(&mut self, now: Duration, command: Command, data: &[u8]) -> TaskId {
        let task = self.machine.submit(now, command);
        self.data_out[task.index()] = data.to_vec();
        self.data_in[task.index()] = vec![0xdd; command.read_len as usize];
        task
    }

    pub(crate) fn handle_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            if let initiator::Event::Completed { task, end } = event {
                let data = std::mem::take(&mut self.data_in[task.index()]);
                self.ends.push((task, end, data));
            } else {
                self.events.push(event);
            }
        }
    }

    pub(crate) fn receive(&mut self, now: Duration, bhs: &Bhs, data: &[u8]) -> Result<(), Fatal> {
        self.machine.handle_header(now, bhs)?;
        match self.machine.placement() {
            Placement::Control => self.machine.handle_control(data)?,
            Placement::Task { task, offset, len } => {
                let (offset, len) = (offset as usize, len as usize);
                self.data_in[task.index()][offset..offset + len].copy_from_slice(&data[..len]);
                self.machine.handle_data();
            }
            Placement::Discard => self.machine.handle_data(),
        }
        self.handle_events();
        Ok(())
    }

    pub(crate) fn transmit(&mut self) -> Option<(Transmit, Vec<u8>)> {
        let transmit = self.machine.poll_transmit()?;
        let data = match &transmit.payload {
            Payload::None => Vec::new(),
            Payload::Control(data) => data.clone(),
            Payload::Task { task, offset, len } => {
                self.data_out[task.index()][*offset as usize..][..*len as usize].to_vec()
            }
        };
        Some((transmit, data))
    }
}

/// Both sides, and what they agree on.
pub(crate) struct Pair {
    pub(crate) now: Duration,
    pub(crate) node: Node,
    pub(crate) host: Host,
    pub(crate) guest: Guest,
    /// Headers that passed, newest last, with whether the initiator sent them.
    pub(crate) trace: Vec<(bool, Bhs)>,
}

impl Pair {
    pub(crate) fn new(target: &target::Setup, initiator: initiator::Setup) -> Self {
        let mut node = Node::new(Limits::default());
        node.add_lun(netraid_iscsi_proto::target::Realm::HOME, 0);
        let machine = connection(&mut node, target);
        let host = Host::new(machine, 4 << 20);
        Self { now: Duration::ZERO, node, host, guest: Guest::new(initiator), trace: Vec::new() }
    }

    pub(crate) fn with_wishes(target: Wishes, initiator: Wishes) -> Self {
        let target = target::Setup { wishes: target, ..target_setup() };
        let mut pair =
            Self::new(&target, initiator::Setup { wishes: initiator, ..initiator_setup() });
        pair.log_in();
        pair
    }

    pub(crate) fn log_in(&mut self) {
        self.run();
        assert_eq!(self.guest.events, [initiator::Event::LoggedIn]);
        self.guest.events.clear();
    }

    /// One PDU each way; whether there was any.
    pub(crate) fn step(&mut self) -> Result<bool, Fatal> {
        let mut any = false;
        if self.host.machine.wants_input()
            && let Some((transmit, data)) = self.guest.transmit()
        {
            any = true;
            self.check(&transmit, &data, true);
            self.host.receive(self.now, &mut self.node, &transmit.header, &data)?;
        }
        if self.guest.machine.wants_input()
            && let Some((transmit, data)) = self.host.transmit()
        {
            any = true;
            self.check(&transmit, &data, false);
            self.guest.receive(self.now, &transmit.header, &data)?;
        }
        Ok(any)
    }

    /// The number of the target's next response.
    pub(crate) fn next_stat_sn(&self) -> Serial {
        let sent = self.trace.iter().rev().find(|(out, _)| !out);
        sent.map(|(_, bhs)| bhs.stat_sn().next()).expect("the target has said nothing")
    }

    /// Until nothing more is to be sent.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step().unwrap() {
                return;
            }
        }
        panic!("the exchange does not end");
    }

    fn check(&mut self, transmit: &Transmit, data: &[u8], from_initiator: bool) {
        assert_eq!(transmit.header.data_len() as usize, data.len());
        let params = self.guest.machine.params();
        let limit = if from_initiator { params.max_send_len } else { params.max_recv_len };
        assert!(data.len() <= limit.max(8192) as usize, "longer than agreed");
        self.trace.push((from_initiator, transmit.header));
    }
}
