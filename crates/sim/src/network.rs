//! A network: hosts, and connections that keep order as TCP does. What breaks is delay, order
//! between connections, connections that end with messages on their way, partitions, slow wires.
//!
//! Dialect: [`Network::send`], [`Network::cut`] and so on in, [`Network::poll`] out until `None`,
//! and [`Network::next_timeout`]. Invariant: what arrives at an end of a connection is a prefix of
//! what was sent to it, in order, each message once.
//!
//! It does not model packets, windows or congestion: a message takes its time on the sender's
//! wire and the receiver's ([`Station`]), then a latency.

use core::{ops::RangeInclusive, time::Duration};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    dice::Dice,
    station::{Pace, Station},
    time::Time,
};

/// A host, in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(usize);

/// A connection; numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// One of a connection's two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Who opened it.
    Opener,
    /// Who was called.
    Acceptor,
}

impl End {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Opener => Self::Acceptor,
            Self::Acceptor => Self::Opener,
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Opener => 0,
            Self::Acceptor => 1,
        }
    }
}

/// What happens at an end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<M> {
    /// A message came.
    Arrived {
        /// Through which connection.
        connection: ConnectionId,
        /// At which end.
        at: End,
        /// It.
        message: M,
    },
    /// The connection is no more; nothing comes through it after this.
    Broken {
        /// Which.
        connection: ConnectionId,
        /// Who hears of it.
        at: End,
    },
}

/// How a host is connected.
#[derive(Debug, Clone)]
pub struct Wire {
    /// What its card sends, and what it receives, each direction for itself.
    pub pace: Pace,
    /// From the end of sending to the arrival, drawn anew for each message.
    pub latency: RangeInclusive<Duration>,
}

#[derive(Debug)]
struct Host {
    wire: Wire,
    sends: Station,
    receives: Station,
}

/// One direction of a connection.
#[derive(Debug)]
struct Flow<M> {
    /// On their way, with the moment of arrival, which never falls.
    messages: VecDeque<(Time, M)>,
    /// The end hears that the connection broke, when all messages have arrived.
    breaks_at: Option<Time>,
    /// The receiver is gone, or has heard of the end.
    is_over: bool,
}

impl<M> Flow<M> {
    const fn new() -> Self {
        Self { messages: VecDeque::new(), breaks_at: None, is_over: false }
    }

    fn due(&self) -> Option<Time> {
        if self.is_over {
            return None;
        }
        self.messages.front().map(|(time, _)| *time).or(self.breaks_at)
    }
}

#[derive(Debug)]
struct Connection<M> {
    hosts: [HostId; 2],
    is_broken: bool,
    /// By the end that receives.
    flows: [Flow<M>; 2],
}

/// A network that carries messages of a kind `M`.
#[derive(Debug)]
pub struct Network<M> {
    hosts: Vec<Host>,
    connections: BTreeMap<ConnectionId, Connection<M>>,
    next_connection: u64,
    /// Pairs that do not hear each other, smaller number first.
    cuts: BTreeSet<(HostId, HostId)>,
    /// When a flow has something; entries may be stale.
    due: BTreeSet<(Time, ConnectionId, End)>,
    dice: Dice,
}

impl<M> Network<M> {
    /// A network without hosts.
    #[must_use]
    pub const fn new(dice: Dice) -> Self {
        Self {
            hosts: Vec::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            cuts: BTreeSet::new(),
            due: BTreeSet::new(),
            dice,
        }
    }

    /// Adds a host.
    pub fn add_host(&mut self, wire: Wire) -> HostId {
        self.hosts.push(Host { wire, sends: Station::new(1), receives: Station::new(1) });
        HostId(self.hosts.len() - 1)
    }

    /// Gives a host another wire; what is on its way keeps its time.
    pub fn set_wire(&mut self, host: HostId, wire: Wire) {
        self.hosts[host.0].wire = wire;
    }

    /// Connects two hosts. Whether one hears the other shows when something is sent.
    pub fn connect(&mut self, opener: HostId, acceptor: HostId) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let flows = [Flow::new(), Flow::new()];
        let connection = Connection { hosts: [opener, acceptor], is_broken: false, flows };
        self.connections.insert(id, connection);
        id
    }

    /// Who was called, while the connection is known.
    #[must_use]
    pub fn acceptor(&self, id: ConnectionId) -> Option<HostId> {
        self.connections.get(&id).map(|connection| connection.hosts[End::Acceptor.index()])
    }

    /// Sends a message of `len` bytes from one end. False when the connection is broken: then
    /// nothing was sent.
    pub fn send(&mut self, now: Time, id: ConnectionId, from: End, message: M, len: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id).filter(|one| !one.is_broken) else {
            return false;
        };
        let [sender, receiver] = [from, from.other()].map(|end| connection.hosts[end.index()].0);
        let host = &mut self.hosts[sender];
        let sent = host.sends.serve(now, host.wire.pace.time(len));
        let latency = self.dice.time_in(&host.wire.latency);
        let host = &mut self.hosts[receiver];
        // The receiving card works while the sending one does.
        let received = host.receives.serve(now, host.wire.pace.time(len));
        let to = from.other();
        let flow = &mut connection.flows[to.index()];
        let last = flow.messages.back().map_or(now, |(time, _)| *time);
        let arrival = sent.max(received).after(latency).max(last);
        flow.messages.push_back((arrival, message));
        self.note_due(id, to);
        true
    }

    /// Breaks a connection: of what is on its way in each direction a prefix still arrives, then
    /// each end hears of the break, at a time of its own within `within`.
    pub fn break_connection(&mut self, now: Time, id: ConnectionId, within: Duration) {
        let Some(connection) = self.connections.get_mut(&id).filter(|one| !one.is_broken) else {
            return;
        };
        connection.is_broken = true;
        for flow in &mut connection.flows {
            let arrive = self.dice.index(flow.messages.len() + 1);
            flow.messages.truncate(arrive);
            let last = flow.messages.back().map_or(now, |(time, _)| *time);
            flow.breaks_at = Some(last.after(self.dice.time_in(&(Duration::ZERO..=within))));
        }
        self.note_due(id, End::Opener);
        self.note_due(id, End::Acceptor);
    }

    /// A host dies: it hears nothing any more, and its peers hear that their connections broke,
    /// after a prefix of what was on its way to them.
    pub fn crash_host(&mut self, now: Time, host: HostId, within: Duration) {
        let ends = |connection: &Connection<M>| {
            [End::Opener, End::Acceptor]
                .into_iter()
                .find(|end| connection.hosts[end.index()] == host)
        };
        let its: Vec<_> = self
            .connections
            .iter()
            .filter_map(|(id, connection)| ends(connection).map(|end| (*id, end)))
            .collect();
        for (id, end) in its {
            self.break_connection(now, id, within);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.flows[end.index()].is_over = true;
            }
            self.forget_if_over(id);
        }
        self.hosts[host.0].sends.reset(now);
        self.hosts[host.0].receives.reset(now);
    }

    /// Two hosts hear nothing of each other, breaks included, until [`Self::heal`]; connections
    /// stay.
    pub fn cut(&mut self, one: HostId, other: HostId) {
        self.cuts.insert((one.min(other), one.max(other)));
    }

    /// Ends a cut: what was held arrives now, in order.
    pub fn heal(&mut self, now: Time, one: HostId, other: HostId) {
        let pair = (one.min(other), one.max(other));
        if !self.cuts.remove(&pair) {
            return;
        }
        let mut resumed = Vec::new();
        for (id, connection) in &mut self.connections {
            let [a, b] = connection.hosts;
            if (a.min(b), a.max(b)) != pair {
                continue;
            }
            for flow in &mut connection.flows {
                flow.messages.iter_mut().for_each(|(time, _)| *time = (*time).max(now));
                flow.breaks_at = flow.breaks_at.map(|time| time.max(now));
            }
            resumed.push(*id);
        }
        for id in resumed {
            self.note_due(id, End::Opener);
            self.note_due(id, End::Acceptor);
        }
    }

    /// Whether two hosts hear each other.
    #[must_use]
    pub fn is_cut(&self, one: HostId, other: HostId) -> bool {
        self.cuts.contains(&(one.min(other), one.max(other)))
    }

    /// What is on its way to an end of a connection, in its order.
    pub fn on_the_way(&self, id: ConnectionId, to: End) -> impl Iterator<Item = &M> {
        let flow = self.connections.get(&id).map(|connection| &connection.flows[to.index()]);
        flow.into_iter().flat_map(|flow| flow.messages.iter().map(|(_, message)| message))
    }

    /// When something happens next, if nothing is done before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.due.first().map(|(time, ..)| *time)
    }

    /// The next thing that has happened by now.
    pub fn poll(&mut self, now: Time) -> Option<Event<M>> {
        loop {
            let (time, id, at) = *self.due.first()?;
            if time > now {
                return None;
            }
            self.due.pop_first();
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let [a, b] = connection.hosts;
            // A flow that was cut is due again when it is healed.
            if self.cuts.contains(&(a.min(b), a.max(b))) {
                continue;
            }
            let flow = &mut connection.flows[at.index()];
            if flow.due().is_none_or(|due| due > now) {
                continue;
            }
            let event = match flow.messages.pop_front() {
                Some((_, message)) => Event::Arrived { connection: id, at, message },
                None => {
                    flow.is_over = true;
                    Event::Broken { connection: id, at }
                }
            };
            self.note_due(id, at);
            self.forget_if_over(id);
            return Some(event);
        }
    }

    fn note_due(&mut self, id: ConnectionId, at: End) {
        let connection = self.connections.get(&id);
        let due = connection.and_then(|connection| connection.flows[at.index()].due());
        self.due.extend(due.map(|time| (time, id, at)));
    }

    fn forget_if_over(&mut self, id: ConnectionId) {
        let over = |one: &Connection<M>| one.flows.iter().all(|flow| flow.is_over);
        if self.connections.get(&id).is_some_and(over) {
            self.connections.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Seed;

    const MS: Duration = Duration::from_millis(1);

    fn network(seed: u64) -> (Network<u32>, HostId, HostId) {
        let mut network = Network::new(Seed(seed).dice("network"));
        let wire = Wire { pace: Pace::INSTANT, latency: MS..=9 * MS };
        let [one, other] = [(); 2].map(|()| network.add_host(wire.clone()));
        (network, one, other)
    }

    fn run(network: &mut Network<u32>) -> Vec<(Time, Event<u32>)> {
        let mut seen = Vec::new();
        while let Some(now) = network.next_timeout() {
            while let Some(event) = network.poll(now) {
                seen.push((now, event));
            }
        }
        seen
    }

    fn messages(seen: &[(Time, Event<u32>)], of: ConnectionId, end: End) -> Vec<u32> {
        let message = |event: &Event<u32>| match event {
            Event::Arrived { connection, at, message } if (*connection, *at) == (of, end) => {
                Some(*message)
            }
            Event::Arrived { .. } | Event::Broken { .. } => None,
        };
        seen.iter().filter_map(|(_, event)| message(event)).collect()
    }

    #[test]
    fn a_connection_keeps_order_and_connections_do_not_among_themselves() {
        let mut overtaken = false;
        for seed in 0..20 {
            let (mut network, one, other) = network(seed);
            let ids = [(); 2].map(|()| network.connect(one, other));
            for number in 0..20 {
                let id = ids[number as usize % 2];
                assert!(network.send(Time::START, id, End::Opener, number, 100));
            }
            let seen = run(&mut network);
            let evens = messages(&seen, ids[0], End::Acceptor);
            assert_eq!(evens, (0..20).step_by(2).collect::<Vec<_>>());
            let all: Vec<u32> = seen
                .iter()
                .map(|(_, event)| match event {
                    Event::Arrived { message, .. } => *message,
                    Event::Broken { .. } => panic!("nothing broke"),
                })
                .collect();
            overtaken |= !all.is_sorted();
        }
        assert!(overtaken);
    }

    #[test]
    fn a_break_lets_a_prefix_arrive_and_then_tells_each_end_once() {
        let mut lengths = BTreeSet::new();
        for seed in 0..100 {
            let (mut network, one, other) = network(seed);
            let id = network.connect(one, other);
            for number in 0..4 {
                network.send(Time::START, id, End::Opener, number, 100);
                network.send(Time::START, id, End::Acceptor, 10 + number, 100);
            }
            network.break_connection(Time::START, id, 5 * MS);
            assert!(!network.send(Time::START, id, End::Opener, 99, 100));
            let seen = run(&mut network);
            let there = messages(&seen, id, End::Acceptor);
            let back = messages(&seen, id, End::Opener);
            assert_eq!(there, (0..u32::try_from(there.len()).unwrap()).collect::<Vec<_>>());
            assert_eq!(back, (10..10 + u32::try_from(back.len()).unwrap()).collect::<Vec<_>>());
            lengths.insert(there.len());
            for end in [End::Opener, End::Acceptor] {
                let broken = Event::Broken { connection: id, at: end };
                let last = seen.iter().rposition(|(_, event)| match event {
                    Event::Arrived { at, .. } | Event::Broken { at, .. } => *at == end,
                });
                assert_eq!(seen.iter().filter(|(_, event)| *event == broken).count(), 1);
                assert_eq!(last.map(|at| &seen[at].1), Some(&broken), "nothing after the break");
            }
            assert!(network.connections.is_empty());
        }
        assert_eq!(lengths.len(), 5);
    }

    #[test]
    fn a_cut_holds_everything_back_until_it_is_healed() {
        let (mut network, one, other) = network(1);
        let id = network.connect(one, other);
        network.cut(other, one);
        network.send(Time::START, id, End::Opener, 1, 100);
        network.send(Time::START, id, End::Acceptor, 2, 100);
        assert_eq!(run(&mut network), []);
        let later = Time::START.after(1000 * MS);
        network.heal(later, one, other);
        let seen = run(&mut network);
        assert!(seen.iter().all(|(time, _)| *time == later));
        assert_eq!(messages(&seen, id, End::Acceptor), [1]);
        assert_eq!(messages(&seen, id, End::Opener), [2]);
    }

    #[test]
    fn a_host_that_died_hears_nothing_and_its_peers_hear_that() {
        let (mut network, one, other) = network(2);
        let id = network.connect(one, other);
        network.send(Time::START, id, End::Acceptor, 1, 100);
        network.crash_host(Time::START, one, MS);
        let seen = run(&mut network);
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].1, Event::Broken { connection: id, at: End::Acceptor });
        assert!(network.connections.is_empty());
    }

    #[test]
    fn a_slow_wire_is_shared_by_all_connections_of_its_host() {
        let mut network = Network::new(Seed(1).dice("network"));
        let wire = |bytes_per_second| Wire {
            pace: Pace { overhead: Duration::ZERO, bytes_per_second },
            latency: MS..=MS,
        };
        let [slow, fast, third] = [1e6, 1e9, 1e9].map(|rate| network.add_host(wire(rate)));
        let ids = [fast, third].map(|host| network.connect(slow, host));
        for id in ids {
            network.send(Time::START, id, End::Opener, 0, 10_000);
        }
        let seen = run(&mut network);
        let times: Vec<_> = seen.iter().map(|(time, _)| time.since(Time::START)).collect();
        assert_eq!(times, [11 * MS, 21 * MS]);
    }
}
