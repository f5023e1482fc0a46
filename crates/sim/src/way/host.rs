//! A host: one disk, and a target program that serves it, whose connections are the product's services.
//!
//! A write has its effect at some moment between its coming to the disk and its end, and those that are there at a time end
//! in any order. A flush makes stable what had ended when it came. A program that dies leaves each request at the disk
//! carried out, torn, or not; a power loss takes the cache too.
//!
//! Invariant: after a program has died nothing of it reaches the disk, as after a process whose last system call has ended.

use core::{net::SocketAddr, ops::RangeInclusive, time::Duration};
use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc};

use netraid_block::{DeviceInfo, Op, Pool, narrow};
use netraid_iscsi_proto::{
    chap::Challenge,
    target::{ConnectionId, Limits, Link, Node, Realm, Setup},
};
use netraid_node::{Gate, Service};
use netraid_scsi::{Identity, MediumRequest, Reservations, UnitAttention, UnitConfig};
use rand::RngCore as _;

use self::segments::SegmentDesk;
use super::{
    agent::{Agent, Visitor},
    counts::{Count, Counts},
    desk::{Desk, Event},
    interface::{DiskConfig, EngineId, HostConfig, HostId, LineId, StreamId},
    line::{PORT, target_name},
    reach::{Begun, LUN, Reach, ServedLun, ServedRealm, Shared, Work},
    served::Served,
    stream::{End, Streams},
};
use crate::{
    dice::Dice,
    disk::{Disk, Fill},
    time::Time,
};

mod segments;
mod works;

/// One request in so many straggles while some do.
const STRAGGLES_ONE_IN: u32 = 4;

/// One host.
pub(super) struct Host {
    id: HostId,
    config: HostConfig,
    pub(super) disk: Disk,
    /// Tells apart the disks that it had.
    disk_number: u64,
    /// What was stored of reservations.
    kept: Vec<u8>,
    /// What a disk that keeps all reservations had when its last program ended.
    remembered: Option<Reservations>,
    is_on: bool,
    program: Option<Program>,
    /// How many programs there were.
    programs: u32,
    /// How many LUNs there were.
    incarnations: u64,
    hung_until: Time,
    slowness: u32,
    /// So many of the sessions that are made again are brief.
    brief: u32,
    is_failing: bool,
    /// Some requests take as long as this says.
    straggling: Option<RangeInclusive<Duration>>,
    /// The device is held, and was left by all commands: it may be another one.
    is_taken_away: bool,
    /// What is at the disk.
    works: BTreeMap<u64, AtDisk>,
    next_work: u64,
    dice: Dice,
    pool: Pool,
    agent: Option<Rc<Agent>>,
    segments: SegmentDesk,
}

/// A target program that runs.
struct Program {
    number: u32,
    shared: Rc<Shared>,
    setup: Arc<Setup>,
    served: BTreeMap<ConnectionId, Served>,
}

/// Something at the disk.
struct AtDisk {
    connection: ConnectionId,
    task: usize,
    engine: EngineId,
    line: LineId,
    is_outsider: bool,
    stream: StreamId,
    work: Work,
    /// Of an agent's host: the session that it is of.
    visitor: Option<Rc<Visitor>>,
}

/// How a program dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Program,
    Power,
}

impl Host {
    /// A host that has power, and no program yet.
    pub(super) fn new(id: HostId, config: HostConfig, pool: Pool, dice: Dice) -> Self {
        let agent = config.agent.clone();
        let agent = agent.map(|agent| Rc::new(Agent::new(agent, device_info(&config.disk))));
        Self {
            id,
            disk: Disk::new(config.disk.shape),
            config,
            disk_number: 0,
            kept: Vec::new(),
            remembered: None,
            is_on: true,
            program: None,
            programs: 0,
            incarnations: 0,
            hung_until: Time::START,
            slowness: 1,
            brief: 0,
            is_failing: false,
            straggling: None,
            is_taken_away: false,
            works: BTreeMap::new(),
            next_work: 0,
            dice,
            pool,
            agent,
            segments: SegmentDesk::default(),
        }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) const fn is_serving(&self) -> bool {
        self.program.is_some()
    }

    pub(super) const fn portals(&self) -> u16 {
        self.config.portals
    }

    pub(super) fn under_way(&self) -> usize {
        self.works.len()
    }

    pub(super) const fn hung_until(&self) -> Time {
        self.hung_until
    }

    pub(super) const fn set_slowness(&mut self, times: u32) {
        self.slowness = times;
    }

    pub(super) const fn set_brief(&mut self, count: u32) {
        self.brief = count;
    }

    /// Whether a session that is made again is brief.
    pub(super) const fn next_is_brief(&mut self) -> bool {
        let is_brief = self.brief > 0;
        self.brief = self.brief.saturating_sub(1);
        is_brief
    }

    pub(super) const fn set_failing(&mut self, is_failing: bool) {
        self.is_failing = is_failing;
    }

    /// One request in a few takes as long as this says.
    pub(super) fn set_straggling(&mut self, times: Option<RangeInclusive<Duration>>) {
        self.straggling = times;
    }

    pub(super) fn hang(&mut self, desk: &mut Desk, until: Time) {
        desk.count(Count::Hung);
        self.hung_until = self.hung_until.max(until);
    }

    pub(super) fn set_held(&mut self, desk: &mut Desk, is_held: bool) {
        if let Some(lun) = self.lun() {
            lun.house().set(if is_held { Gate::Held } else { Gate::Open });
        }
        self.look_at_gate(desk);
    }

    /// The LUN leaves its target.
    pub(super) fn remove_lun(&mut self, desk: &mut Desk) {
        let (Some(program), Some(lun)) = (&self.program, self.lun()) else { return };
        program.shared.realm().units.borrow_mut().retire(LUN);
        lun.house().set(Gate::Leaving);
        // It may have been held, and taken away for that.
        self.is_taken_away = false;
        self.look_at_gate(desk);
    }

    /// The LUN is there again, and nobody is registered, unless it has not left yet.
    pub(super) fn add_lun(&mut self, desk: &mut Desk) -> bool {
        let unit = self.unit(None);
        let Some(program) = &self.program else { return true };
        let shared = &program.shared;
        let realm = shared.realm();
        if realm.lun.borrow().is_some() {
            return false;
        }
        let added = realm.units.borrow_mut().add(LUN, unit);
        assert!(added.is_ok(), "{:?}: its LUN is taken: {added:?}", self.id);
        self.is_taken_away = false;
        self.incarnations += 1;
        let lun = ServedLun::new(self.incarnations, self.config.persists);
        *realm.lun.borrow_mut() = Some(lun);
        shared.node.borrow_mut().add_lun(realm.id, LUN);
        desk.watch.note_program_over(self.id, false);
        true
    }

    fn lun(&self) -> Option<ServedLun> {
        self.program.as_ref()?.shared.realm().lun.borrow().clone()
    }

    /// A device that is held or leaves is taken away once its gatehouse says that no command is there.
    fn look_at_gate(&mut self, desk: &mut Desk) {
        let gate = self.lun().map(|lun| (lun.house().gate(), lun.house().running()));
        let Some((gate @ (Gate::Held | Gate::Leaving), running)) = gate else {
            self.is_taken_away = false;
            return;
        };
        if running > 0 || core::mem::replace(&mut self.is_taken_away, true) {
            return;
        }
        let is_request = |at: &AtDisk| at.work.is_request();
        assert!(
            !self.works.values().any(is_request),
            "{:?}: a device is taken away under a request",
            self.id
        );
        if gate == Gate::Held {
            return desk.count(Count::TakenAway);
        }
        if self.agent.is_some() {
            return self.close_device(desk);
        }
        desk.count(Count::LunRemoved);
        if let Some(program) = &self.program {
            let realm = program.shared.realm();
            realm.units.borrow_mut().remove(LUN);
            *realm.lun.borrow_mut() = None;
            program.shared.node.borrow_mut().remove_lun(realm.id, LUN);
        }
    }

    /// Another disk is in the place of this one; no program runs.
    pub(super) fn replace_disk(&mut self) {
        self.disk = Disk::new(self.config.disk.shape);
        self.disk_number += 1;
        self.kept.clear();
        self.remembered = None;
    }

    /// Power returns, and the program starts where there is none.
    pub(super) fn start(&mut self, desk: &mut Desk, streams: &mut Streams) {
        if !core::mem::replace(&mut self.is_on, true) {
            streams.reset_left(desk, self.id);
        }
        if self.program.is_some() {
            return;
        }
        desk.count(Count::Started);
        self.hung_until = desk.now();
        self.programs += 1;
        self.incarnations += 1;
        let mut setup = Setup::new(target_name(self.id));
        setup.wishes.max_recv_len = self.config.max_recv_len;
        setup.queue_depth = self.config.queue_depth;
        setup.ping_interval = self.config.ping_interval;
        setup.ping_timeout = self.config.ping_timeout;
        setup.asks_standing = self.agent.is_some();
        let remembered = self.remembered.take();
        if remembered.is_some() {
            desk.count(Count::Remembered);
        }
        let shared = Shared {
            realm: RefCell::new(ServedRealm::new(Realm::HOME)),
            node: RefCell::new(Node::new(Limits::DEFAULT)),
            begun: RefCell::default(),
            agent: self.agent.clone(),
            wakes: RefCell::default(),
        };
        // That of an agent is served once it is opened.
        if self.agent.is_none() {
            self.serve_disk(&shared, shared.realm(), remembered);
        }
        self.program = Some(Program {
            number: self.programs,
            shared: Rc::new(shared),
            setup: Arc::new(setup),
            served: BTreeMap::new(),
        });
    }

    /// The disk is the LUN of this realm from now on.
    fn serve_disk(
        &self,
        shared: &Shared,
        realm: Rc<ServedRealm>,
        remembered: Option<Reservations>,
    ) {
        let added = realm.units.borrow_mut().add(LUN, self.unit(remembered));
        assert!(added.is_ok(), "{:?}: its LUN is taken: {added:?}", self.id);
        let lun = ServedLun::new(self.incarnations, self.config.persists);
        *realm.lun.borrow_mut() = Some(lun);
        shared.node.borrow_mut().add_lun(realm.id, LUN);
        *shared.realm.borrow_mut() = realm;
    }

    fn unit(&self, remembered: Option<Reservations>) -> UnitConfig {
        let shape = self.config.disk.shape;
        let reservations = if let Some(remembered) = remembered {
            remembered
        } else if self.config.persists {
            let kept = Reservations::decode(&self.kept);
            let Ok(kept) = kept else { unreachable!("{kept:?}: what was stored is read") };
            kept
        } else {
            Reservations::new(false)
        };
        let number = (self.id.0 as u64) << 32 | self.disk_number;
        let serial = format!("{number:016x}");
        UnitConfig {
            info: device_info(&self.config.disk),
            discard_zeroes: shape.fill == Fill::Zeroes,
            physical_len: shape.block_len.max(4096),
            removable: false,
            atomic_len: 0,
            can_sanitize: false,
            identity: Identity::with_serial(&target_name(self.id), &serial),
            reservations,
        }
    }

    /// The program dies, or the power fails.
    pub(super) fn die(&mut self, desk: &mut Desk, streams: &mut Streams, loss: Loss) {
        self.is_taken_away = false;
        self.end_works(desk, streams);
        self.remembered = self.reservations();
        let keeps = self.remembered.is_some() || !self.kept.is_empty();
        desk.watch.note_program_over(self.id, keeps);
        self.end_segments();
        if let Some(program) = self.program.take() {
            desk.counts += counts_of(&program.shared.node.borrow());
            for served in program.served.into_values() {
                let Some(stream) = served.die(desk) else { continue };
                match loss {
                    Loss::Program => streams.break_off(desk, stream, End::Host),
                    Loss::Power => streams.abandon(desk, stream, End::Host),
                }
            }
        }
        match loss {
            Loss::Program => desk.count(Count::Killed),
            Loss::Power => {
                desk.count(Count::PowerLost);
                if self.disk.unstable_blocks() > 0 {
                    desk.count(Count::PowerLostDirty);
                }
                self.lose_cache(desk);
                self.is_on = false;
            }
        }
    }

    /// What is registered at a disk that keeps that; all sessions have ended.
    fn reservations(&self) -> Option<Reservations> {
        let program = self.program.as_ref().filter(|_| self.config.remembers)?;
        let realm = program.shared.realm();
        let mut units = realm.units.borrow_mut();
        let unit = units.unit_mut([0; 8])?;
        let sessions: Vec<_> = unit.claimants().collect();
        sessions.into_iter().for_each(|session| unit.remove_nexus(session));
        let reservations = unit.reservations().clone();
        (reservations.registration_count() > 0).then_some(reservations)
    }

    /// The disk is reset by itself: its cache is lost, sessions go on, and each is told. Writes that are under way go
    /// on after that. False when the device takes no commands now, or something is read.
    pub(super) fn reset(&mut self, desk: &mut Desk) -> bool {
        // A flush that waits outside would be answered as if nothing had been lost.
        let is_open = self.lun().is_some_and(|lun| lun.house().gate() == Gate::Open);
        // A read that goes on would bring what was lost, and nobody would be told before it ends.
        let is_read = |at: &AtDisk| at.work.op() == Some(Op::Read);
        let is_fit = is_open && !self.works.values().any(is_read);
        let Some(program) = self.program.as_ref().filter(|_| is_fit) else { return false };
        // A target that was reset by somebody's task management function says so otherwise, and its cache is kept (SBC-3).
        if let Some(unit) = program.shared.realm().units.borrow_mut().unit_mut([0; 8]) {
            unit.raise(UnitAttention::PowerOn, None);
        }
        desk.count(Count::Reset);
        if self.disk.unstable_blocks() > 0 {
            desk.count(Count::ResetDirty);
        }
        self.lose_cache(desk);
        true
    }

    /// A connection that was made comes to the program.
    pub(super) fn accept(&mut self, desk: &mut Desk, streams: &mut Streams, stream: StreamId) {
        let Some(dialled) = streams.get_mut(stream) else { return };
        let Some(program) = &mut self.program else {
            if self.is_on {
                return streams.break_off(desk, stream, End::Host);
            }
            return streams.abandon(desk, stream, End::Host);
        };
        let (engine, line, portal) = (dialled.engine, dialled.line, dialled.portal);
        let peer = SocketAddr::from(([10, 1, 0, narrow(engine.0 % 250 + 1)], 40_000));
        let own = SocketAddr::from(([10, 2, 0, narrow(self.id.0 % 250 + 1)], PORT + portal));
        let seat = program.shared.node.borrow_mut().open(Link::new(peer, own));
        program.shared.gather_wakes();
        let Some(seat) = seat else {
            return streams.close(desk, stream, End::Host);
        };
        let id = seat.id();
        dialled.served = Some((program.number, id));
        let mut challenge = Challenge { identifier: 0, bytes: [0; _] };
        self.dice.fill_bytes(&mut challenge.bytes);
        let (now, setup) = (desk.clock(), program.setup.clone());
        let service = Service::new(now, seat, setup, challenge, self.pool.clone());
        let reach = Reach::new(program.shared.clone(), id);
        let place = (self.id, program.number);
        let quirks = self.config.disk.quirks;
        let (from, ends) = ((engine, line, stream), (service, reach));
        let mut served = Served::new(place, id, from, ends, quirks);
        served.is_outsider = desk.watch.is_outsider(line);
        served.wake(desk);
        program.served.insert(id, served);
        self.collect(desk);
    }

    /// A connection may read or write, if it is one of this program.
    pub(super) fn wake(&mut self, desk: &mut Desk, number: u32, id: ConnectionId) {
        if let Some(served) = self.served(number, id) {
            served.wake(desk);
        }
    }

    /// A connection's driver runs.
    pub(super) fn serve(
        &mut self,
        desk: &mut Desk,
        streams: &mut Streams,
        (number, id): (u32, ConnectionId),
    ) {
        let (hung_until, now) = (self.hung_until, desk.now());
        let Some(program) = self.program.as_mut().filter(|program| program.number == number) else {
            return;
        };
        let Some(served) = program.served.get_mut(&id) else { return };
        if let Some(agent) = &self.agent {
            agent.set_clock(desk.clock());
        }
        if hung_until > now {
            return served.put_off(desk, hung_until);
        }
        let engine = served.engine;
        let is_alone = self.works.values().all(|work| work.engine == engine);
        if served.run(desk, streams, is_alone)
            && let Some(served) = program.served.remove(&id)
        {
            let is_at_disk = |at: &AtDisk| at.connection == id && at.visitor.is_some();
            let is_left = self.works.values().any(is_at_disk);
            assert!(!is_left, "{:?}: {id:?} ends under a command at the disk", self.id);
            served.end(desk);
        }
        self.collect(desk);
    }

    /// Something at the disk ends.
    pub(super) fn handle_done(&mut self, desk: &mut Desk, streams: &Streams, number: u64) {
        if self.hung_until > desk.now() {
            desk.agenda.put_at(self.hung_until, Event::Done(self.id, number));
            return;
        }
        let Some(at) = self.works.remove(&number) else { return };
        let result = self.carry_out(desk, streams, &at);
        let program = self.programs;
        if let Some(served) = self.served(program, at.connection) {
            served.handle_end(desk, at.task, result);
        }
    }

    /// An administrator ends all sessions.
    pub(super) fn drop_sessions(&mut self, desk: &mut Desk) {
        if let Some(program) = &self.program {
            let mut node = program.shared.node.borrow_mut();
            let all: Vec<u16> = node.sessions().map(|session| session.tsih).collect();
            for tsih in all {
                // It is there: the node has just told of it.
                let _ = node.drop_session(tsih);
            }
            drop(node);
            program.shared.gather_wakes();
        }
        self.collect(desk);
    }

    /// What the program that runs has counted.
    pub(super) fn counts(&self) -> Counts {
        let program = self.program.as_ref();
        program.map_or_else(Counts::default, |program| counts_of(&program.shared.node.borrow()))
    }

    /// What has ended and left is over: nothing of it may be at the disk.
    fn note_over(&self) {
        let over = self.agent.as_ref().map(|agent| agent.newly_over()).unwrap_or_default();
        for id in over {
            let is_there = self.works.values().any(|at| at.connection == id);
            assert!(!is_there, "{:?}: {id:?} is over, and a request of it is at the disk", self.id);
        }
    }

    fn served(&mut self, number: u32, id: ConnectionId) -> Option<&mut Served> {
        let program = self.program.as_mut().filter(|program| program.number == number)?;
        program.served.get_mut(&id)
    }

    /// What connections have begun goes to the disk, and those run that are to be woken.
    fn collect(&mut self, desk: &mut Desk) {
        let Some(program) = &mut self.program else { return };
        for id in program.shared.wakes.take() {
            if let Some(served) = program.served.get_mut(&id) {
                served.handle_woken(desk);
            }
        }
        let begun = program.shared.begun.take();
        for Begun { connection, task, what: work } in begun {
            let Some(served) = program.served.get(&connection) else { continue };
            let Served { engine, line, stream, is_outsider, .. } = *served;
            if let Work::Request(MediumRequest { op: Op::Flush, .. }) = &work
                && !self.is_failing
            {
                self.disk.flush();
                desk.watch.note_flush(self.id);
            }
            let mut time = works::work_time(&self.config, &mut self.dice, &work) * self.slowness;
            if let Some(times) = self.straggling.as_ref().filter(|_| work.is_request())
                && self.dice.one_in(STRAGGLES_ONE_IN)
            {
                desk.count(Count::Straggled);
                time = self.dice.time_in(times);
            }
            assert!(
                !self.is_taken_away || !work.is_request(),
                "{:?}: a request comes to a device that is taken away",
                self.id
            );
            if let Some(agent) = &self.agent
                && let Some(wrong) = works::wrong_to(agent, connection, &work)
            {
                unreachable!("{:?}: {wrong}", self.id);
            }
            let visitor = self.agent.as_ref().and_then(|agent| agent.visitor(connection));
            let number = self.next_work;
            self.next_work += 1;
            self.works.insert(
                number,
                AtDisk { connection, task, engine, line, is_outsider, stream, work, visitor },
            );
            desk.agenda.put_in(time, Event::Done(self.id, number));
        }
        self.look_at_gate(desk);
        self.note_over();
        self.look_at_segments(desk);
    }
}

/// What a disk is as a device.
fn device_info(disk: &DiskConfig) -> DeviceInfo {
    DeviceInfo {
        capacity: u64::from(disk.shape.block_len) * disk.shape.blocks,
        block_len: disk.shape.block_len,
        optimal_len: 4096,
        max_transfer_len: disk.max_transfer_len,
        read_only: false,
        volatile_cache: disk.shape.volatile_cache,
        can_discard: disk.can_discard,
        can_map: false,
    }
}

/// What a program's connections have counted.
fn counts_of(node: &Node) -> Counts {
    let counters = node.counters();
    let mut counts = Counts::default();
    counts.add_many(Count::LoggedIn, counters.logins.get());
    counts.add_many(Count::Reinstated, counters.reinstatements.get());
    counts.add_many(Count::TaskFunction, counters.task_functions.get());
    counts.add_many(Count::TaskFunctionFailed, counters.task_functions_failed.get());
    counts.add_many(Count::TaskAborted, counters.aborted_tasks.get());
    counts.add_many(Count::SessionDropped, counters.dropped_sessions.get());
    counts.add_many(Count::Rejected, counters.rejected_pdus.get());
    counts
}
