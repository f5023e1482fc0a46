//! The network with all that is at its ends: engines' lines, hosts, and one agenda for these and for their owner.

use core::{ops::RangeInclusive, time::Duration};
use std::collections::{BTreeMap, VecDeque};

use netraid_block::Pool;
use netraid_control::units::{Generation, Moment, PlanId};
use netraid_remote::{Order, OrderId, Request, Status};

use super::{
    counts::{Count, Counts},
    desk::{Answer, Desk, Event},
    host::{Host, Loss},
    interface::{
        Cut, Death, Effect, EngineId, Fate, HostConfig, HostId, LineConfig, LineId, Manners, News,
        Ordered, SegmentOrder, Step, StreamId, Way,
    },
    line::{AllNews, Item, Line},
    stream::{End, Streams},
    watch::Watch,
};
use crate::{
    agenda::{Agenda, Ticket},
    array::trace::{Keep, Trace},
    dice::Seed,
    disk::Disk,
    time::Time,
};

/// Times that a system dials before it gives up.
const KNOCKS_MAX: u32 = 6;
/// How soon a session breaks off that is to be brief.
const BRIEF_MAX: Duration = Duration::from_millis(10);
/// How long a network takes to say that it has no way to a host.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(3);

/// Engines, hosts and what is between them. `U` is what the owner knows a request by, `X` an event of its own.
///
/// The owner calls [`Self::step`] again and again; after each it takes [`Self::poll`] until that says nothing more.
pub struct Net<U, X> {
    seed: Seed,
    desk: Desk,
    streams: Streams,
    hosts: Vec<Host>,
    /// Until when each engine does nothing.
    engines: Vec<Time>,
    lines: Vec<Line<U>>,
    news: AllNews<U>,
    own: BTreeMap<u64, X>,
    next_own: u64,
    pool: Pool,
}

/// The agenda.
impl<U, X> Net<U, X> {
    /// A network without anybody, and how much of its trace is kept.
    #[must_use]
    pub fn new(seed: Seed, manners: Manners, keep: Keep) -> Self {
        let desk = Desk {
            agenda: Agenda::default(),
            dice: seed.dice("network"),
            manners,
            counts: Counts::default(),
            trace: Trace::new(keep),
            effects: None,
            watch: Watch::default(),
        };
        Self {
            seed,
            desk,
            streams: Streams::default(),
            hosts: Vec::new(),
            engines: Vec::new(),
            lines: Vec::new(),
            news: VecDeque::new(),
            own: BTreeMap::new(),
            next_own: 0,
            pool: Pool::new(),
        }
    }

    /// The moment.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.desk.now()
    }

    /// When the next event comes, of whichever kind.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.desk.agenda.next_time()
    }

    /// Puts down an event of the owner's.
    pub fn put_in(&mut self, wait: Duration, event: X) -> Ticket {
        let key = self.next_own;
        self.next_own += 1;
        self.own.insert(key, event);
        self.desk.agenda.put_in(wait, Event::Own(key))
    }

    /// Takes an event of the owner's off, if it has not happened.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<X> {
        match self.desk.agenda.cancel(ticket) {
            Some(Event::Own(key)) => self.own.remove(&key),
            Some(_) | None => None,
        }
    }

    /// Lets the next event happen.
    ///
    /// # Panics
    /// When what is beneath does not come to rest within a moment.
    pub fn step(&mut self) -> Step<X> {
        let Some(event) = self.desk.agenda.pop() else { return Step::Nothing };
        let Event::Own(key) = event else {
            self.happen(event);
            return Step::Beneath;
        };
        match self.own.remove(&key) {
            Some(own) => Step::Own(own),
            None => Step::Beneath,
        }
    }

    /// What a line has to tell, in the order in which it was told.
    pub fn poll(&mut self) -> Option<(LineId, News<U>)> {
        while let Some((line, item)) = self.news.pop_front() {
            match item {
                Item::Status(status) => self.lines[line.0].show(status),
                Item::News(news) => return Some((line, news)),
            }
        }
        None
    }

    /// The trace of all that happened: the same seed and the same calls give the same hash. The owner notes in it too.
    pub const fn trace(&mut self) -> &mut Trace {
        &mut self.desk.trace
    }

    /// What happened how often.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.desk.counts;
        self.hosts.iter().for_each(|host| counts += host.counts());
        counts
    }

    /// Changes how the network is, for what is sent and dialled from now on.
    pub fn set_manners(&mut self, manners: Manners) {
        self.desk.manners = manners;
    }

    fn happen(&mut self, event: Event) {
        let desk = &mut self.desk;
        let now = desk.clock();
        let time = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        match event {
            Event::Own(_) => {}
            Event::Knock(stream, times) => self.knock(stream, times),
            Event::Dialled(id, answer) => {
                desk.trace.mix(&[time, 1, id.0]);
                let Some(stream) = self.streams.get(id) else { return };
                let line = &mut self.lines[stream.line.0];
                line.handle_answer(desk, id, answer);
            }
            Event::Accept(id) => {
                desk.trace.mix(&[time, 2, id.0]);
                let Some(stream) = self.streams.get(id) else { return };
                let host = &mut self.hosts[stream.host.0];
                if host.hung_until() > desk.now() {
                    desk.agenda.put_at(host.hung_until(), event);
                    return;
                }
                host.accept(desk, &mut self.streams, id);
            }
            Event::Ready(id, end) => self.make_ready(id, end),
            Event::Drive(line) => {
                desk.trace.mix(&[time, 3, line.0 as u64]);
                let line = &mut self.lines[line.0];
                let hung_until = self.engines[line.engine.0];
                if hung_until > desk.now() {
                    return line.put_off(desk, hung_until);
                }
                line.drive(desk, &mut self.streams, &mut self.news);
            }
            Event::Serve(host, program, id) => {
                desk.trace.mix(&[time, 4, host.0 as u64, id.0]);
                self.hosts[host.0].serve(desk, &mut self.streams, (program, id));
            }
            Event::Break(id) => self.break_off(id),
            Event::Segment(host, program, turn) => {
                desk.trace.mix(&[time, 6, host.0 as u64]);
                self.hosts[host.0].handle_turn(desk, program, turn);
            }
            Event::Done(host, number) => {
                desk.trace.mix(&[time, 5, host.0 as u64, number]);
                self.hosts[host.0].handle_done(desk, &self.streams, number);
            }
        }
    }

    /// A dial comes to its host.
    fn knock(&mut self, id: StreamId, times: u32) {
        let desk = &mut self.desk;
        let Some(stream) = self.streams.get(id) else { return };
        let host = &self.hosts[stream.host.0];
        let path = (stream.engine, stream.host);
        let (line, host_id) = (stream.line, stream.host);
        if self.streams.is_parted(path) || !host.is_on() {
            if times == 0 && desk.dice.one_in(2) {
                desk.agenda.put_in(UNREACHABLE_AFTER, Event::Dialled(id, Answer::Unreachable));
            } else if times < KNOCKS_MAX {
                let wait = Duration::from_secs(1 << times.min(8));
                desk.agenda.put_in(wait, Event::Knock(id, times + 1));
            }
            if times == 0 {
                desk.count(Count::DialUnanswered);
            }
            return;
        }
        let latency = desk.latency();
        if !host.is_serving() {
            desk.count(Count::DialRefused);
            desk.agenda.put_in(latency, Event::Dialled(id, Answer::Refused));
            return;
        }
        desk.count(Count::Dialled);
        self.streams.make(id);
        let scheduling = desk.scheduling();
        desk.agenda.put_in(scheduling, Event::Accept(id));
        desk.agenda.put_in(latency, Event::Dialled(id, Answer::Made));
        if self.lines[line.0].has_opened() && self.hosts[host_id.0].next_is_brief() {
            let wait = desk.dice.time_in(&(Duration::ZERO..=BRIEF_MAX));
            desk.agenda.put_in(latency + wait, Event::Break(id));
        }
    }

    /// A connection breaks off, and both ends hear of it.
    fn break_off(&mut self, id: StreamId) {
        if self.streams.get(id).is_some() {
            self.desk.count(Count::Brief);
            let (now, lost) = (Some(Duration::ZERO), Fate::Lost);
            let cut = Cut { engine_hears: now, host_hears: now, to_host: lost, to_engine: lost };
            self.streams.cut(&mut self.desk, id, cut);
        }
    }

    /// An end of a connection may read or write.
    fn make_ready(&mut self, id: StreamId, end: End) {
        let desk = &mut self.desk;
        let Some(stream) = self.streams.get(id) else { return };
        if let Some(at) = self.streams.look_again(id, end, desk.now()) {
            // Other events are there for pieces behind it, but it may have been held.
            if !self.streams.is_readable(id, end, desk.now()) {
                desk.agenda.put_at(at, Event::Ready(id, end));
            }
        }
        match end {
            End::Engine => self.lines[stream.line.0].wake(desk),
            End::Host => {
                if let Some((program, connection)) = stream.served {
                    self.hosts[stream.host.0].wake(desk, program, connection);
                }
            }
        }
    }
}

/// Engines and their lines.
impl<U, X> Net<U, X> {
    /// A machine for an engine. One that died is taken again by [`Self::open`].
    pub fn add_engine(&mut self) -> EngineId {
        self.engines.push(Time::START);
        EngineId(self.engines.len() - 1)
    }

    /// Begins to open a host's disk; [`News::Opened`] says what came of it.
    pub fn open(&mut self, engine: EngineId, host: HostId, config: LineConfig) -> LineId {
        let id = LineId(self.lines.len());
        let dice = ["line", "order of line"].map(|it| self.seed.dice(&format!("{it} {}", id.0)));
        let portals = self.hosts[host.0].portals();
        self.desk.watch.add_line(engine, host, config.request_timeout);
        let (now, pool) = (self.desk.clock(), self.pool.clone());
        let mut line = Line::new(id, (engine, host), (config, portals), (now, pool), dice.into());
        line.wake(&mut self.desk);
        self.lines.push(line);
        id
    }

    /// Submits a request; it ends by [`News::Ended`]. After [`News::Closed`] it ends as aborted.
    ///
    /// # Panics
    /// Before [`News::Opened`].
    pub fn submit(&mut self, line: LineId, request: Request<U>) {
        self.lines[line.0].submit(&mut self.desk, request);
    }

    /// Gives an order; it ends by [`News::Answered`]. After [`News::Closed`] it ends as aborted.
    ///
    /// # Panics
    /// Before [`News::Opened`].
    pub fn order(&mut self, line: LineId, order: Order) -> OrderId {
        self.lines[line.0].order(&mut self.desk, order)
    }

    /// This side gives its registrations back, for good.
    pub fn note_leaving(&mut self, line: LineId) {
        self.lines[line.0].note_leaving(&mut self.desk);
    }

    /// Requests rely on what the disk was given when it had lost its cache so often.
    pub fn rely_on(&mut self, line: LineId, cache_losses: u64) {
        self.lines[line.0].rely_on(&mut self.desk, cache_losses);
    }

    /// No more requests come; [`News::Closed`] says when all is over.
    pub fn close(&mut self, line: LineId) {
        self.lines[line.0].close(&mut self.desk);
    }

    /// Ends the sessions at once, as if this side had died; [`News::Closed`] follows.
    pub fn cut_off(&mut self, line: LineId) {
        self.lines[line.0].cut_off(&mut self.desk);
    }

    /// What could be seen of a line's sessions when it told what was polled last.
    ///
    /// # Panics
    /// When there never was such a line.
    #[must_use]
    pub fn status(&self, line: LineId) -> &Status {
        self.lines[line.0].status()
    }

    /// Why a line had no session the last time that there was none.
    #[must_use]
    pub fn last_failure(&self, line: LineId) -> &str {
        self.lines[line.0].last_failure()
    }

    /// An engine dies with all its lines: nothing is heard of them any more, and what they sent may still arrive.
    pub fn kill_engine(&mut self, engine: EngineId, death: Death) {
        let desk = &mut self.desk;
        desk.count(match death {
            Death::Process => Count::EngineKilled,
            Death::Machine => Count::EngineLost,
        });
        for line in self.lines.iter_mut().filter(|line| line.engine == engine) {
            for stream in line.die(desk) {
                match death {
                    Death::Process => self.streams.break_off(desk, stream, End::Engine),
                    Death::Machine => self.streams.abandon(desk, stream, End::Engine),
                }
            }
        }
        let lines = &self.lines;
        self.news.retain(|(line, _)| lines[line.0].engine != engine);
    }

    /// An engine does nothing for a while (its process is stopped), then goes on.
    pub fn hang_engine(&mut self, engine: EngineId, time: Duration) {
        let until = self.desk.now().after(time);
        let hung_until = &mut self.engines[engine.0];
        *hung_until = until.max(*hung_until);
        self.desk.watch.note_hung(engine, *hung_until);
    }
}

/// Hosts.
impl<U, X> Net<U, X> {
    /// A host that has power, and whose program serves.
    pub fn add_host(&mut self, config: HostConfig) -> HostId {
        let id = HostId(self.hosts.len());
        let dice = self.seed.dice(&format!("host {}", id.0));
        let mut host = Host::new(id, config, self.pool.clone(), dice);
        self.desk.watch.add_medium(&host.disk);
        host.start(&mut self.desk, &mut self.streams);
        self.hosts.push(host);
        id
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self, host: HostId) -> &Disk {
        &self.hosts[host.0].disk
    }

    /// Its disk, to spoil or mend or replace blocks of it.
    pub fn disk_mut(&mut self, host: HostId) -> &mut Disk {
        &mut self.hosts[host.0].disk
    }

    /// Whether acknowledged writes were lost at the disk, and a session of it was not told yet that they may be.
    #[must_use]
    pub fn owes_news_of_a_loss(&self, host: HostId) -> bool {
        self.desk.watch.owes_news_of_a_loss(host)
    }

    /// Another disk is in the place of this one: the program is killed, the reservations that were kept are gone, and the
    /// program of the new disk, which has another identity, is to be started.
    pub fn replace_disk(&mut self, host: HostId) {
        self.kill(host);
        let replaced = &mut self.hosts[host.0];
        replaced.replace_disk();
        self.desk.watch.note_replaced(host, &replaced.disk);
    }

    /// The target program ends without a word. The disk keeps its cache; of the requests at it each is carried out, or
    /// torn, or not. Nobody listens until [`Self::start`].
    pub fn kill(&mut self, host: HostId) {
        self.hosts[host.0].die(&mut self.desk, &mut self.streams, Loss::Program);
    }

    /// The power fails: as [`Self::kill`], and the cache is lost, and nobody is told. Dials are not answered until
    /// [`Self::start`].
    pub fn lose_power(&mut self, host: HostId) {
        self.hosts[host.0].die(&mut self.desk, &mut self.streams, Loss::Power);
    }

    /// Power returns where there was none, and the program starts where there is none.
    pub fn start(&mut self, host: HostId) {
        self.hosts[host.0].start(&mut self.desk, &mut self.streams);
    }

    /// Whether the program runs.
    #[must_use]
    pub fn is_serving(&self, host: HostId) -> bool {
        self.hosts[host.0].is_serving()
    }

    /// The disk is reset by itself, and its cache lost, while its sessions go on; false when it takes no commands now.
    pub fn reset_disk(&mut self, host: HostId) -> bool {
        self.hosts[host.0].reset(&mut self.desk)
    }

    /// A host does nothing for a while, then goes on: connections are still made, and nobody answers.
    pub fn hang(&mut self, host: HostId, time: Duration) {
        let until = self.desk.now().after(time);
        self.hosts[host.0].hang(&mut self.desk, until);
    }

    /// Requests take so many times as long from now on.
    pub fn set_slowness(&mut self, host: HostId, times: u32) {
        self.hosts[host.0].set_slowness(times);
    }

    /// Some requests take as long as this says from now on, or none any more.
    pub fn set_straggling(&mut self, host: HostId, times: Option<RangeInclusive<Duration>>) {
        self.hosts[host.0].set_straggling(times);
    }

    /// So many of the sessions that are made again break off soon.
    pub fn set_brief(&mut self, host: HostId, count: u32) {
        self.hosts[host.0].set_brief(count);
    }

    /// All requests to the disk fail, or serve again.
    pub fn set_failing(&mut self, host: HostId, is_failing: bool) {
        self.hosts[host.0].set_failing(is_failing);
    }

    /// An administrator ends all sessions; initiators may log in again.
    pub fn drop_sessions(&mut self, host: HostId) {
        self.hosts[host.0].drop_sessions(&mut self.desk);
    }

    /// An administrator keeps requests off the device (they end as BUSY), or not any more.
    pub fn set_held(&mut self, host: HostId, is_held: bool) {
        self.hosts[host.0].set_held(&mut self.desk, is_held);
    }

    /// The LUN leaves: no command begins any more, and it is gone when those at its device have ended.
    pub fn remove_lun(&mut self, host: HostId) {
        self.hosts[host.0].remove_lun(&mut self.desk);
    }

    /// The LUN is there again; false while it has not left.
    pub fn add_lun(&mut self, host: HostId) -> bool {
        self.hosts[host.0].add_lun(&mut self.desk)
    }

    /// An agent stores that its segment has this generation: its program is told by an order.
    pub fn store_generation(&mut self, host: HostId, generation: Generation) {
        self.hosts[host.0].store_generation(generation);
    }

    /// A plan lasts until this moment at an agent's host.
    pub fn extend_plan(&mut self, host: HostId, plan: PlanId, until: Moment) {
        self.hosts[host.0].extend_plan(&self.desk, plan, until);
    }

    /// The owner of the segment of an agent's host gives an order: [`Self::poll_order`] tells by this number how it ended.
    pub fn order_segment(&mut self, host: HostId, order: SegmentOrder) -> u64 {
        self.hosts[host.0].order_segment(&mut self.desk, order)
    }

    /// An order that has ended.
    pub fn poll_order(&mut self, host: HostId) -> Option<(u64, Ordered)> {
        self.hosts[host.0].poll_order()
    }

    /// The program of an agent's host looks whose grants are over.
    pub fn watch_segment(&mut self, host: HostId) {
        self.hosts[host.0].watch_segment(&mut self.desk);
    }

    /// Requests at a disk now.
    #[must_use]
    pub fn under_way(&self, host: HostId) -> usize {
        self.hosts[host.0].under_way()
    }

    /// An engine's fencing of the disk that a line leads to has ended: it is this engine's alone, or used without that.
    pub fn note_fenced(&mut self, line: LineId, is_exclusive: bool) {
        self.desk.watch.note_fenced(line, is_exclusive);
    }

    /// What a line promises and was broken, once.
    pub fn take_violation(&mut self) -> Option<String> {
        self.desk.watch.violation()
    }

    /// Begins to keep what the media do.
    pub fn watch(&mut self) {
        self.desk.effects.get_or_insert_default();
    }

    /// What the media did since this was asked last.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.desk.effects.as_mut().map(core::mem::take).unwrap_or_default()
    }
}

/// Connections.
impl<U, X> Net<U, X> {
    /// The connections of an engine to a host that one end still has, oldest first.
    #[must_use]
    pub fn streams(&self, engine: EngineId, host: HostId) -> Vec<StreamId> {
        let streams = self.streams.iter();
        let own = streams.filter(|(_, stream)| (stream.engine, stream.host) == (engine, host));
        own.map(|(id, _)| id).collect()
    }

    /// Cuts a connection; nothing happens when it is gone.
    pub fn cut(&mut self, stream: StreamId, cut: Cut) {
        self.streams.cut(&mut self.desk, stream, cut);
    }

    /// A direction of a connection delivers nothing for a while.
    pub fn stall(&mut self, stream: StreamId, way: Way, time: Duration) {
        let until = self.desk.now().after(time);
        self.streams.stall(&mut self.desk, stream, way, until);
    }

    /// Nothing passes between an engine and a host until [`Self::heal`]; then what was sent comes.
    pub fn part(&mut self, engine: EngineId, host: HostId) {
        if self.streams.part((engine, host)) {
            self.desk.count(Count::Parted);
        }
    }

    /// See [`Self::part`].
    pub fn heal(&mut self, engine: EngineId, host: HostId) {
        self.streams.heal(&mut self.desk, (engine, host));
    }
}
