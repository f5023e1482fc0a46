//! Engines with their users, hosts, and what is done to them.

use core::time::Duration;
use std::collections::BTreeMap;

use netraid_block::{Buf, ErrorKind, IoError, Op, RequestFlags, SgList, narrow};
use netraid_remote::{Event, Order, OrderId, Request};
use netraid_scsi::cdb::reserve::{self, ReservationType, ReserveOrder};

use super::{
    BLOCK_LEN, BLOCKS, Counts,
    oracle::{Moment, Oracle, Write},
};
use crate::{
    array::trace::Keep,
    dice::{Dice, Seed},
    disk::{DiskShape, Fill},
    way::{
        Cut, Death, DiskConfig, EngineId, Fate, HostConfig, HostId, LineConfig, LineId, Manners,
        Net, News, Step, Way,
    },
};

const ENGINES: usize = 3;
const HOSTS: usize = 2;
/// Blocks of a disk that one engine writes.
const SHARE: u64 = BLOCKS / ENGINES as u64;
/// Events of one run.
const EVENTS_MAX: usize = 2_000_000;
const LIFE: Duration = Duration::from_secs(8);
const KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;
const MILLI: Duration = Duration::from_millis(1);

#[derive(Debug, PartialEq)]
enum Own {
    Work(usize),
    Fault,
    Start(HostId),
    Reopen(usize, usize),
    Heal(EngineId, HostId),
    Release(HostId),
    Calm,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Gone,
    Opening,
    Registering(OrderId),
    Reserving(OrderId),
    Ready,
}

struct Session {
    line: LineId,
    phase: Phase,
    key: u64,
    under_way: usize,
    /// The victim of a preempt, and its key.
    preempt: Option<(OrderId, usize, u64)>,
    may_have_predecessor: bool,
    is_closing: bool,
}

enum Doing {
    Write(Write),
    /// A hint: what is there then may be what was there before.
    Discard(Write),
    Read {
        first: u64,
        blocks: u64,
        begun: Moment,
    },
    Flush {
        begun: Moment,
    },
}

struct Pending {
    engine: usize,
    host: usize,
    doing: Doing,
}

pub(super) struct World {
    net: Net<u64, Own>,
    dice: Dice,
    oracles: Vec<Oracle>,
    sessions: Vec<Vec<Session>>,
    by_line: BTreeMap<LineId, (usize, usize)>,
    pending: BTreeMap<u64, Pending>,
    /// Writes that nobody waits for, and that may happen still.
    orphans: Vec<(usize, usize, Write)>,
    /// Preempted, and not registered again.
    fenced: Vec<[bool; HOSTS]>,
    next_user: u64,
    next_key: u64,
    events: usize,
    is_calm: bool,
    has_failed: bool,
    width: u8,
    digests: (bool, bool),
    request_timeout: Duration,
    /// Engines use reservations: then a restart of a target, which forgets them, ends their lines.
    registers: bool,
}

impl World {
    pub(super) fn new(seed: Seed, keep: Keep) -> Self {
        let mut dice = seed.dice("world");
        let manners = Manners {
            refuse_one_in: if dice.one_in(3) { 20 } else { 0 },
            unanswered_one_in: if dice.one_in(3) { 20 } else { 0 },
            slow_one_in: if dice.one_in(3) { 10 } else { 0 },
            break_one_in: narrow(1 + dice.below(8)),
            ..Manners::default()
        };
        let mut net = Net::new(seed, manners, keep);
        net.watch();
        let width = if dice.one_in(4) { 2 } else { 1 };
        let mut oracles = Vec::new();
        for _ in 0..HOSTS {
            let shape = DiskShape {
                block_len: BLOCK_LEN,
                blocks: BLOCKS,
                volatile_cache: !dice.one_in(5),
                fill: Fill::Zeroes,
            };
            let mut config = HostConfig::new(DiskConfig::new(shape));
            config.portals = u16::from(width);
            config.persists = !dice.one_in(4);
            config.ping_interval = Duration::from_secs(1 + dice.below(3));
            config.ping_timeout = Duration::from_secs(2 + dice.below(8));
            oracles.push(Oracle::new(net.add_host(config)));
        }
        let mut world = Self {
            digests: (dice.one_in(4), dice.one_in(4)),
            registers: !dice.one_in(3),
            request_timeout: (1000 + narrow::<_, u32>(dice.below(4000))) * MILLI,
            net,
            dice,
            oracles,
            sessions: Vec::new(),
            by_line: BTreeMap::new(),
            pending: BTreeMap::new(),
            orphans: Vec::new(),
            fenced: vec![[false; HOSTS]; ENGINES],
            next_user: 0,
            next_key: 1,
            events: 0,
            is_calm: false,
            has_failed: false,
            width,
        };
        for engine in 0..ENGINES {
            world.net.add_engine();
            world.sessions.push(Vec::new());
            for _ in 0..HOSTS {
                let session = Session {
                    line: LineId(usize::MAX),
                    phase: Phase::Gone,
                    key: 0,
                    under_way: 0,
                    preempt: None,
                    may_have_predecessor: false,
                    is_closing: false,
                };
                world.sessions[engine].push(session);
            }
            for host in 0..HOSTS {
                world.open(engine, host);
            }
            world.net.put_in(MILLI, Own::Work(engine));
        }
        world
    }

    /// Users work and things break, for a while.
    pub(super) fn live(&mut self) {
        self.net.put_in(100 * MILLI, Own::Fault);
        self.net.put_in(LIFE, Own::Calm);
        while !self.is_calm {
            self.step();
        }
    }

    fn step(&mut self) -> bool {
        self.events += 1;
        assert!(self.events < EVENTS_MAX, "it does not come to rest");
        match self.net.step() {
            Step::Nothing => return false,
            Step::Beneath => {}
            Step::Own(own) => self.act(own),
        }
        while let Some((line, news)) = self.net.poll() {
            let Some((engine, host)) = self.by_line.get(&line).copied() else { continue };
            self.hear(engine, host, line, news);
        }
        for effect in self.net.take_effects() {
            let is_fenced = self.fenced[effect.engine.0][effect.host.0];
            assert!(
                !is_fenced || !effect.op.changes(),
                "{effect:?} of an engine that was preempted"
            );
        }
        true
    }

    fn act(&mut self, own: Own) {
        if !matches!(own, Own::Work(_)) {
            let now = self.net.now();
            self.net.trace().note(now, || format!("{own:?}"));
        }
        match own {
            Own::Work(engine) => {
                for host in 0..HOSTS {
                    self.work(engine, host);
                }
                if !self.is_calm {
                    let wait = self.dice.time_to_next(6 * MILLI);
                    self.net.put_in(wait, Own::Work(engine));
                }
            }
            Own::Fault => {
                if !self.is_calm {
                    self.fault();
                    let wait = self.dice.time_to_next(150 * MILLI);
                    self.net.put_in(wait, Own::Fault);
                }
            }
            Own::Start(host) => self.net.start(host),
            Own::Reopen(engine, host) => {
                if self.sessions[engine][host].phase == Phase::Gone {
                    self.open(engine, host);
                }
            }
            Own::Heal(engine, host) => self.net.heal(engine, host),
            Own::Release(host) => {
                self.net.set_held(host, false);
                self.net.set_slowness(host, 1);
                self.net.set_failing(host, false);
            }
            Own::Calm => self.is_calm = true,
        }
    }

    fn open(&mut self, engine: usize, host: usize) {
        let mut config = LineConfig::new(format!("iqn.2026-01.org.example:engine{engine}"))
            .taking_over([narrow(engine), narrow(host), 7], 1 << 8);
        config.sessions = self.width;
        config.digests = self.digests;
        config.request_timeout = self.request_timeout;
        let line = self.net.open(EngineId(engine), HostId(host), config);
        self.by_line.insert(line, (engine, host));
        self.sessions[engine][host] = Session {
            line,
            phase: Phase::Opening,
            key: 0,
            under_way: 0,
            preempt: None,
            may_have_predecessor: false,
            is_closing: false,
        };
    }

    /// The line is not used any more; it is opened again later.
    fn reopen(&mut self, engine: usize, host: usize) {
        let wait = self.dice.time_in(&(50 * MILLI..=800 * MILLI));
        self.sessions[engine][host].phase = Phase::Gone;
        self.net.put_in(wait, Own::Reopen(engine, host));
    }

    /// Ends a line and all that it has under way.
    fn cut_off(&mut self, engine: usize, host: usize) {
        let session = &mut self.sessions[engine][host];
        if session.phase != Phase::Gone && !session.is_closing {
            session.is_closing = true;
            let line = session.line;
            self.net.cut_off(line);
        }
    }

    fn hear(&mut self, engine: usize, host: usize, line: LineId, news: News<u64>) {
        if !matches!(news, News::Ended { .. }) {
            let now = self.net.now();
            self.net
                .trace()
                .note(now, || format!("engine {engine}, host {host}, {line:?}: {news:?}"));
        }
        let is_current = self.sessions[engine][host].line == line;
        match news {
            News::Opened(result) if is_current => {
                if let Ok(opened) = &result {
                    assert_eq!(opened.info.capacity, BLOCKS * u64::from(BLOCK_LEN));
                    self.take_over(engine, host);
                }
            }
            News::Ended { user, result } => self.end(user, line, result),
            News::Answered { order, result } if is_current => {
                self.answered(engine, host, order, result);
            }
            News::Told(Event::PredecessorMayRemain { .. }) if is_current => {
                self.sessions[engine][host].may_have_predecessor = true;
            }
            // As whoever uses a disk does that has lost what it kept.
            News::Told(Event::NotMade { reason, .. })
                if is_current && reason.contains("register anew") =>
            {
                self.cut_off(engine, host);
            }
            News::Closed if is_current => self.reopen(engine, host),
            News::Opened(_) | News::Answered { .. } | News::Told(_) | News::Closed => {}
        }
        let session = &self.sessions[engine][host];
        if is_current
            && !matches!(session.phase, Phase::Gone | Phase::Opening)
            && self.net.status(line).is_fenced
        {
            self.cut_off(engine, host);
        }
    }

    /// A line is open: its predecessor's writes are over.
    fn take_over(&mut self, engine: usize, host: usize) {
        if !self.sessions[engine][host].may_have_predecessor {
            let oracle = &mut self.oracles[host];
            self.orphans.retain(|(of, at, write)| {
                let is_over = (*of, *at) == (engine, host);
                if is_over {
                    oracle.end(write);
                }
                !is_over
            });
        }
        self.fenced[engine][host] = false;
        if !self.registers {
            self.sessions[engine][host].phase = Phase::Ready;
            return;
        }
        self.next_key += 1;
        let key = self.next_key;
        let session = &mut self.sessions[engine][host];
        session.key = key;
        let order = self.net.order(session.line, Order::Register { key, ignore: true });
        session.phase = Phase::Registering(order);
    }

    fn answered(
        &mut self,
        engine: usize,
        host: usize,
        order: OrderId,
        result: Result<Vec<u8>, IoError>,
    ) {
        let session = &mut self.sessions[engine][host];
        if let Some((id, victim, key)) = session.preempt
            && id == order
        {
            session.preempt = None;
            let is_same = self.sessions[victim][host].key == key;
            if result.is_ok() && is_same && victim != engine {
                self.fenced[victim][host] = true;
            }
            return;
        }
        match (session.phase, result) {
            (Phase::Registering(id), Ok(_)) if id == order => {
                let reserve = once(reserve::reserve(session.key, KIND));
                session.phase = Phase::Reserving(self.net.order(session.line, reserve));
            }
            (Phase::Reserving(id), Ok(_)) if id == order => session.phase = Phase::Ready,
            (Phase::Registering(id) | Phase::Reserving(id), Err(_)) if id == order => {
                self.cut_off(engine, host);
            }
            (
                Phase::Gone
                | Phase::Opening
                | Phase::Registering(_)
                | Phase::Reserving(_)
                | Phase::Ready,
                _,
            ) => {}
        }
    }

    fn is_ready(&self, engine: usize, host: usize) -> bool {
        let session = &self.sessions[engine][host];
        session.phase == Phase::Ready && !session.is_closing
    }

    fn work(&mut self, engine: usize, host: usize) {
        let session = &self.sessions[engine][host];
        let depth = 8;
        if !self.is_ready(engine, host) || session.under_way >= depth {
            return;
        }
        for _ in 0..=self.dice.below(3) {
            let most = if self.dice.one_in(24) { SHARE } else { 4 };
            let blocks = 1 + self.dice.below(most);
            let first = engine as u64 * SHARE + self.dice.below(SHARE - blocks + 1);
            let op = match self.dice.below(20) {
                0..9 => Op::Write,
                9..17 => Op::Read,
                17 | 18 => Op::Flush,
                _ if self.dice.one_in(2) => Op::Discard,
                _ => Op::WriteZeroes,
            };
            self.submit(engine, host, op, (first, blocks));
        }
    }

    fn submit(&mut self, engine: usize, host: usize, op: Op, (first, blocks): (u64, u64)) {
        let user = self.next_user;
        self.next_user += 1;
        let oracle = &mut self.oracles[host];
        let mut data = SgList::new();
        let doing = match op {
            Op::Write => {
                let version = user + 1;
                let words = narrow::<_, usize>(blocks) * BLOCK_LEN as usize / 8;
                data = Buf::copy_from(&version.to_le_bytes().repeat(words)).into();
                Doing::Write(oracle.begin(first, blocks, version))
            }
            Op::Discard => Doing::Discard(oracle.begin(first, blocks, 0)),
            Op::WriteZeroes => Doing::Write(oracle.begin(first, blocks, 0)),
            Op::Read => Doing::Read { first, blocks, begun: oracle.tick() },
            Op::Flush => Doing::Flush { begun: oracle.tick() },
            Op::Extents => unreachable!(),
        };
        let block_len = u64::from(BLOCK_LEN);
        let (offset, len) =
            if op == Op::Flush { (0, 0) } else { (first * block_len, blocks * block_len) };
        let fua = op == Op::Write && self.dice.one_in(8);
        let flags = RequestFlags { fua, no_unmap: false };
        self.pending.insert(user, Pending { engine, host, doing });
        let session = &mut self.sessions[engine][host];
        session.under_way += 1;
        self.net.submit(session.line, Request { op, offset, len, flags, data, user });
    }

    fn end(&mut self, user: u64, line: LineId, result: Result<SgList, IoError>) {
        let Some(Pending { engine, host, doing }) = self.pending.remove(&user) else { return };
        let losses = self.net.status(line).cache_losses;
        let session = &mut self.sessions[engine][host];
        if session.line == line {
            session.under_way -= 1;
        }
        self.has_failed |= result.is_err();
        if let Err(error) = &result {
            let now = self.net.now();
            let text = || format!("{user} of engine {engine} at host {host} by {line:?}: {error}");
            self.net.trace().note(now, text);
        }
        let oracle = &mut self.oracles[host];
        match (doing, result) {
            (Doing::Write(write), Ok(_)) => oracle.acknowledge(&write, line, losses),
            (Doing::Discard(write), Ok(_)) => oracle.end(&write),
            (Doing::Write(write) | Doing::Discard(write), Err(error))
                if matches!(error.kind(), ErrorKind::Aborted | ErrorKind::Fenced) =>
            {
                self.orphans.push((engine, host, write));
            }
            (Doing::Write(write) | Doing::Discard(write), Err(_)) => oracle.end(&write),
            (Doing::Read { first, blocks, begun }, Ok(data)) => {
                assert_eq!(data.len() as u64, blocks * u64::from(BLOCK_LEN));
                oracle.read(begun, first, &data.to_contiguous());
            }
            (Doing::Flush { begun }, Ok(_)) => oracle.flush(begun, line, losses),
            (Doing::Read { .. } | Doing::Flush { .. }, Err(_)) => {}
        }
        if user.is_multiple_of(64) {
            self.prune(host);
        }
    }

    fn prune(&mut self, host: usize) {
        let of_host = self.pending.values().filter(|pending| pending.host == host);
        let reads = of_host.filter_map(|pending| match &pending.doing {
            Doing::Read { begun, .. } => Some(*begun),
            Doing::Write(_) | Doing::Discard(_) | Doing::Flush { .. } => None,
        });
        let oldest = reads.min().unwrap_or(Moment::MAX);
        self.oracles[host].prune(oldest);
    }

    fn fault(&mut self) {
        let (engine, host) = (self.dice.index(ENGINES), self.dice.index(HOSTS));
        let (engine_id, host_id) = (EngineId(engine), HostId(host));
        let most = if self.dice.one_in(4) { 9000 } else { 1500 };
        let short = self.dice.time_in(&(MILLI..=most * MILLI));
        let what = self.dice.below(24);
        let now = self.net.now();
        self.net
            .trace()
            .note(now, || format!("fault {what}: engine {engine}, host {host}, {short:?}"));
        match what {
            0..6 => self.cut(engine_id, host_id),
            6..9 => {
                let streams = self.net.streams(engine_id, host_id);
                if let Some(stream) = self.dice.pick(&streams).copied() {
                    let way = if self.dice.one_in(2) { Way::ToHost } else { Way::ToEngine };
                    self.net.stall(stream, way, short);
                }
            }
            9 | 10 => {
                self.net.kill(host_id);
                self.end_orphans(host);
                self.net.put_in(short, Own::Start(host_id));
            }
            11 | 12 => {
                self.lose_power(host);
                self.net.put_in(short, Own::Start(host_id));
            }
            13 => self.net.hang(host_id, short),
            14 => self.net.hang_engine(engine_id, short),
            15 => self.kill_engine(engine),
            16 => {
                self.net.part(engine_id, host_id);
                self.net.put_in(short, Own::Heal(engine_id, host_id));
            }
            17 => self.net.drop_sessions(host_id),
            18 => {
                match self.dice.below(3) {
                    0 => self.net.set_held(host_id, true),
                    1 => self.net.set_failing(host_id, true),
                    _ => self.net.set_slowness(host_id, 50),
                }
                self.net.put_in(short, Own::Release(host_id));
            }
            19 => {
                let block = self.dice.below(BLOCKS);
                self.net.disk_mut(host_id).spoil(block);
            }
            20 => self.cut_off(engine, host),
            21 => self.leave(engine, host),
            _ => self.preempt(engine, host),
        }
    }

    fn lose_power(&mut self, host: usize) {
        self.net.lose_power(HostId(host));
        self.oracles[host].lose_power();
        self.end_orphans(host);
    }

    /// A program has died: what nobody waits for does not happen any more.
    fn end_orphans(&mut self, host: usize) {
        let oracle = &mut self.oracles[host];
        self.orphans.retain(|(_, at, write)| {
            if *at == host {
                oracle.end(write);
            }
            *at != host
        });
    }

    fn cut(&mut self, engine: EngineId, host: HostId) {
        let streams = self.net.streams(engine, host);
        let Some(stream) = self.dice.pick(&streams).copied() else { return };
        let mut hears = || {
            let wait = self.dice.time_in(&(Duration::ZERO..=500 * MILLI));
            (!self.dice.one_in(3)).then_some(wait)
        };
        let (engine_hears, host_hears) = (hears(), hears());
        let mut fate = || {
            let late = self.dice.time_in(&(Duration::ZERO..=4000 * MILLI));
            if self.dice.one_in(2) { Fate::Lost } else { Fate::Delivered(late) }
        };
        let (to_host, to_engine) = (fate(), fate());
        self.net.cut(stream, Cut { engine_hears, host_hears, to_host, to_engine });
    }

    fn kill_engine(&mut self, engine: usize) {
        let death = if self.dice.one_in(2) { Death::Process } else { Death::Machine };
        self.net.kill_engine(EngineId(engine), death);
        let of_it: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.engine == engine)
            .map(|(user, _)| *user)
            .collect();
        for user in of_it {
            let Some(Pending { host, doing, .. }) = self.pending.remove(&user) else { continue };
            if let Doing::Write(write) | Doing::Discard(write) = doing {
                self.orphans.push((engine, host, write));
            }
        }
        for host in 0..HOSTS {
            if self.sessions[engine][host].phase != Phase::Gone {
                self.reopen(engine, host);
            }
        }
    }

    /// An engine gives its reservation and its registration back, or those of all, and closes the disk.
    fn leave(&mut self, engine: usize, host: usize) {
        let session = &mut self.sessions[engine][host];
        if session.phase != Phase::Ready || session.is_closing {
            return;
        }
        session.is_closing = true;
        let (line, key) = (session.line, session.key);
        if !self.registers {
            return self.net.close(line);
        }
        self.net.note_leaving(line);
        if self.dice.one_in(4) {
            self.net.order(line, Order::Clear { key });
        } else {
            self.net.order(line, once(reserve::release(key, KIND)));
            self.net.order(line, Order::Register { key: 0, ignore: false });
        }
        self.net.close(line);
    }

    fn preempt(&mut self, engine: usize, host: usize) {
        let victim = (engine + 1) % ENGINES;
        let victim_key = self.sessions[victim][host].key;
        let session = &mut self.sessions[engine][host];
        let is_ready = session.phase == Phase::Ready && !session.is_closing;
        if !is_ready || session.preempt.is_some() || !self.registers {
            return;
        }
        let order = once(reserve::preempt(session.key, victim_key, KIND, true));
        let order = self.net.order(session.line, order);
        session.preempt = Some((order, victim, victim_key));
    }

    /// Everything is mended; what is on the disks is what may be there, also after a power loss.
    pub(super) fn finish(mut self) -> (u64, Counts) {
        for host in (0..HOSTS).map(HostId) {
            self.net.start(host);
            self.act(Own::Release(host));
            for engine in (0..ENGINES).map(EngineId) {
                self.net.heal(engine, host);
            }
        }
        let calm = Manners { refuse_one_in: 0, unanswered_one_in: 0, ..Manners::default() };
        self.net.set_manners(calm);
        self.settle(|world| world.pending.is_empty());
        for _ in 0..2 {
            for engine in 0..ENGINES {
                for host in 0..HOSTS {
                    self.write_and_read(engine, host);
                }
            }
            for host in 0..HOSTS {
                self.lose_power(host);
                self.net.start(HostId(host));
            }
        }
        for host in 0..HOSTS {
            self.prune(host);
            let certain = self.oracles[host].certain();
            assert_eq!(certain.len() as u64, BLOCKS, "blocks of which all is known");
        }
        (self.net.trace().hash(), self.net.counts())
    }

    /// Writes all that is an engine's, flushes it, and reads it; again when its line was lost meanwhile.
    fn write_and_read(&mut self, engine: usize, host: usize) {
        let all = (engine as u64 * SHARE, SHARE);
        for _ in 0..10 {
            self.has_failed = false;
            let losses = |world: &Self| {
                let line = world.sessions[engine][host].line;
                (line, world.net.status(line).cache_losses)
            };
            let before = losses(self);
            for op in [Op::Write, Op::Flush, Op::Read] {
                self.settle(|world| world.is_ready(engine, host));
                self.submit(engine, host, op, all);
                self.settle(|world| world.pending.is_empty());
            }
            // What a flush says of a line that has heard of a lost cache since the write is nothing.
            if !self.has_failed && losses(self) == before {
                return;
            }
        }
        panic!("engine {engine} cannot write to host {host}");
    }

    fn settle(&mut self, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) {
            assert!(self.step(), "nothing is to come, and it is not done");
        }
    }
}

fn once(order: ReserveOrder) -> Order {
    let ReserveOrder { cdb, parameters } = order;
    Order::Once { cdb, parameters, read_len: 0 }
}
