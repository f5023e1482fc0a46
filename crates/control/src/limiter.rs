//! Who is let in to an HTTP API, who has to leave for others, and whose time is over.
//!
//! A peer is a *stranger* until one of its requests said a token that is known. Strangers get little: the
//! oldest one leaves when there is no place for a newcomer, and what they send behind a header is never
//! read. A connection that said a known token leaves for others only while it is idle. So whoever has no
//! token keeps nobody out who has one, as long as a request that is meant comes sooner than as many
//! strangers as there are places.
//!
//! Nor does whoever has one token keep others out: connections of a token that has more than a quarter of
//! the places leave for others also while they send a request or take an answer, and the bodies of one
//! token's requests hold half of the memory at most.
//!
//! ```text
//! arrive ─▶ Header ──▶ Body ──▶ Answer ──▶ Idle ─▶ Header ...
//!           header     body        │       idle        limits in time
//!                                  └─▶ Lingering
//!                                      header
//! ```
//!
//! A connection is not closed under a peer that is still sending: the answer would be lost with it. What comes
//! after the last answer is read and thrown away, so many bytes for so long.
//!
//! Whose connection it is, and how requests are read, is the shell's: it says what happened, closes what
//! [`Limiter::must_close`] names, and answers what [`Limiter::must_answer`] names.

#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use core::{fmt, net::IpAddr, time::Duration};

/// A connection that was told to leave is here for a moment still: of them there are so many at most.
const LEAVING_MAX: usize = 64;
/// Peers beyond the limits that are let in to be told so, at most.
const TOLD_MAX: usize = 16;
/// Bytes that are thrown away behind the last answer, at most: more than the longest document of any API.
const LINGER_BYTES_MAX: u64 = 16 << 20;
/// One token has so large a part of the connections, of all and of one source, before its connections leave
/// for others.
const SHARE_OF_CONNECTIONS: usize = 4;
/// The bodies of one token's requests hold so large a part of the memory at most.
const SHARE_OF_BODIES: u64 = 2;
/// How often there is something to be logged, at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// How much an API lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, at least 1.
    pub connections: usize,
    /// Connections of one source at a time, at least 1: of an IPv4 address, or of the /64 network of an
    /// IPv6 address.
    pub connections_per_source: usize,
    /// How long a connection and the header of its first request may take together, and the header of each
    /// later request from its first byte.
    pub header: Duration,
    /// How long the body of a request may take, from the end of its header.
    pub body: Duration,
    /// How long a connection may be silent between two requests, or while an answer is sent.
    pub idle: Duration,
    /// Bytes of the bodies of all requests that are held at a time.
    pub bodies_bytes: u64,
}

impl Limits {
    /// What a daemon has that is told nothing else.
    pub const DEFAULT: Self = Self {
        connections: 512,
        connections_per_source: 64,
        header: Duration::from_secs(10),
        body: Duration::from_secs(30),
        idle: Duration::from_secs(60),
        bodies_bytes: 32 << 20,
    };

    /// These limits, with no more connections than a quarter of the files and sockets that the process may
    /// have open: the rest is for what the process is for.
    #[must_use]
    pub fn within_descriptors(self, descriptors: u64) -> Self {
        // Clamped: there may be no limit.
        let quarter = usize::try_from(descriptors / 4).unwrap_or(usize::MAX).max(1);
        let connections = self.connections.min(quarter);
        let connections_per_source = self.connections_per_source.min(connections);
        Self { connections, connections_per_source, ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The digest of a known token, by which its connections are counted.
pub type TokenKey = [u8; 32];

/// A connection, by a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// What has run out, as it is said to peers and in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// There are as many connections as there may be.
    Connections(usize),
    /// The peer's address has as many connections as it may have.
    Source(usize),
    /// The bodies of requests hold as many bytes as they may.
    Bodies(u64),
    /// The body of the request took longer than it may.
    BodyTime(Duration),
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections(limit) => write!(
                f,
                "all {limit} connections of this API are in use by requests; ask again, or let it have \
                 more (--connections)"
            ),
            Self::Source(limit) => write!(
                f,
                "all {limit} connections that one address may have are in use by requests; ask again, or \
                 let addresses have more (--connections-per-source)"
            ),
            Self::Bodies(limit) => write!(
                f,
                "requests that are being read hold {limit} bytes, which is the limit; ask again, or let \
                 them hold more (--body-memory)"
            ),
            Self::BodyTime(limit) => write!(
                f,
                "the body of the request did not come within {limit:?}; send it faster, or let it take \
                 longer (--body-timeout)"
            ),
        }
    }
}

/// What becomes of a peer that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It is served; the connection beside it, if any, is to be looked after by
    /// [`Limiter::must_close`] now.
    Admitted(ConnectionId, Option<ConnectionId>),
    /// It is closed at once.
    Refused,
}

/// Why a connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Another one needs its place.
    GivesWay,
    /// The header did not come in time.
    HeaderTime,
    /// Nothing was asked, or taken of an answer, for too long.
    Idle,
    /// The peer went on sending behind the last answer, or never closed.
    Lingered,
}

/// What happened since the last report, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Peers that were closed at once.
    pub refused: u64,
    /// Peers that were let in to be told that there is no place for them.
    pub told: u64,
    /// Connections that had to leave for others.
    pub gave_way: u64,
    /// Connections that were closed, and requests that were refused, as they took too long.
    pub late: u64,
    /// Requests that were refused as the bodies of others held too much.
    pub without_memory: u64,
    /// Peers that could not be accepted, as the process had no descriptor left.
    pub without_descriptor: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.refused, "refused at once: too many are leaving for others"),
            (self.told, "refused: all places are in use by requests"),
            (self.gave_way, "closed, as others needed their places"),
            (self.late, "too slow with a header or a body"),
            (self.without_memory, "refused: the bodies of requests hold as much as they may"),
            (
                self.without_descriptor,
                "not accepted: no descriptors are left (LimitNOFILE, ulimit -n)",
            ),
        ];
        let mut parts = parts.iter().filter(|(count, _)| *count > 0);
        if let Some((count, what)) = parts.next() {
            write!(f, "{count} connections {what}")?;
        }
        parts.try_for_each(|(count, what)| write!(f, "; {count} {what}"))
    }
}

/// What a connection is doing, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Header(Duration),
    Body(Duration),
    /// The request is carried out, however long that takes.
    Answer,
    /// An answer is sent: since then nothing more of it was taken.
    Sending(Duration),
    Idle(Duration),
    /// The last answer was sent.
    Lingering(Duration),
}

#[derive(Debug)]
struct Connection {
    source: IpAddr,
    phase: Phase,
    /// The last token that it has said and that is known.
    token: Option<TokenKey>,
    /// It is told this instead of being served.
    told: Option<Shortage>,
    /// Another one has its place.
    leaves: bool,
    /// Bytes that the body of its request holds.
    body_bytes: u64,
    /// There was no room for all of the body.
    lacks_memory: bool,
    /// Bytes that were thrown away.
    lingered_bytes: u64,
}

impl Connection {
    const fn has_place(&self) -> bool {
        !self.leaves && self.told.is_none()
    }
}

/// All connections of an API.
#[derive(Debug)]
pub struct Limiter {
    limits: Limits,
    connections: BTreeMap<ConnectionId, Connection>,
    next: u64,
    body_bytes: u64,
    report: Report,
    reported: Option<Duration>,
}

impl Limiter {
    /// Nobody is there.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            connections: BTreeMap::new(),
            next: 0,
            body_bytes: 0,
            report: Report {
                refused: 0,
                told: 0,
                gave_way: 0,
                late: 0,
                without_memory: 0,
                without_descriptor: 0,
            },
            reported: None,
        }
    }

    /// The limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A peer has connected. Time is that since the API began, here and everywhere.
    pub fn arrive(&mut self, now: Duration, peer: IpAddr) -> Arrival {
        let source = source_of(peer);
        let all = self.connections.values().filter(|one| one.has_place());
        let of_source = all.clone().filter(|one| one.source == source).count();
        let shortage = if of_source >= self.limits.connections_per_source {
            Some(Shortage::Source(self.limits.connections_per_source))
        } else if all.count() >= self.limits.connections {
            Some(Shortage::Connections(self.limits.connections))
        } else {
            None
        };
        let loser = match shortage {
            None => None,
            Some(Shortage::Source(limit)) => self.loser(limit, |one| one.source == source),
            Some(_) => self.most_strange().map_or_else(
                || self.loser(self.limits.connections, |_| true),
                |source| self.loser(self.limits.connections, |one| one.source == source),
            ),
        };
        let leaving = self.connections.values().filter(|one| one.leaves).count();
        let told = match (shortage, loser) {
            (None, _) => None,
            (Some(_), Some(loser)) if leaving < LEAVING_MAX => {
                self.give_way(loser);
                None
            }
            (Some(shortage), _) => {
                let told = self.connections.values().filter(|one| one.told.is_some()).count();
                // Who waits for one that leaves comes again in a moment.
                if told >= TOLD_MAX || loser.is_some() {
                    self.report.refused += 1;
                    return Arrival::Refused;
                }
                self.report.told += 1;
                Some(shortage)
            }
        };
        let id = ConnectionId(self.next);
        self.next += 1;
        let connection = Connection {
            source,
            phase: Phase::Header(now),
            token: None,
            told,
            leaves: false,
            body_bytes: 0,
            lacks_memory: false,
            lingered_bytes: 0,
        };
        self.connections.insert(id, connection);
        Arrival::Admitted(id, loser.filter(|_| shortage.is_some()))
    }

    /// A peer could not be accepted as the process has no descriptor left: who leaves for it, if anybody can.
    pub fn handle_exhausted(&mut self) -> Option<ConnectionId> {
        self.report.without_descriptor += 1;
        let source = self.most_strange();
        let is_of_source = |one: &Connection| source.is_none_or(|source| one.source == source);
        let loser = self.loser(self.limits.connections, is_of_source)?;
        self.give_way(loser);
        Some(loser)
    }

    /// The first byte of something has come.
    pub fn handle_bytes(&mut self, now: Duration, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id)
            && matches!(one.phase, Phase::Idle(_))
        {
            one.phase = Phase::Header(now);
        }
    }

    /// The header of a request is there, with its token, if that is known. What is to be answered at
    /// once, without a look at the request; a stranger's body is not to be read either.
    pub fn handle_header(
        &mut self,
        now: Duration,
        id: ConnectionId,
        token: Option<TokenKey>,
    ) -> Option<Shortage> {
        let one = self.connections.get_mut(&id)?;
        one.token = token.or(one.token);
        one.lacks_memory = false;
        one.phase =
            if token.is_some() && one.told.is_none() { Phase::Body(now) } else { Phase::Answer };
        one.told
    }

    /// So many bytes of a body are there. False when there is no room for them: then
    /// [`Self::must_answer`] says so.
    pub fn handle_body(&mut self, id: ConnectionId, len_bytes: u64) -> bool {
        let Some(token) = self.connections.get(&id).map(|one| one.token) else { return false };
        let of_token = self.connections.values().filter(|one| one.token == token);
        let of_token: u64 = of_token.map(|one| one.body_bytes).sum();
        let Some(one) = self.connections.get_mut(&id) else { return false };
        let held = self.body_bytes.saturating_add(len_bytes);
        let is_share = of_token + len_bytes <= self.limits.bodies_bytes.div_ceil(SHARE_OF_BODIES);
        if one.lacks_memory || held > self.limits.bodies_bytes || !is_share {
            one.lacks_memory = true;
            return false;
        }
        self.body_bytes = held;
        one.body_bytes += len_bytes;
        true
    }

    /// The body is there, or nobody reads it any more.
    pub fn handle_body_end(&mut self, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id)
            && matches!(one.phase, Phase::Body(_))
            && !one.lacks_memory
        {
            one.phase = Phase::Answer;
        }
    }

    /// The answer is made, and begins to be sent.
    pub fn handle_answer(&mut self, now: Duration, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id) {
            one.phase = Phase::Sending(now);
            let bytes = core::mem::take(&mut one.body_bytes);
            assert!(bytes <= self.body_bytes, "a body goes that was not counted");
            self.body_bytes -= bytes;
        }
    }

    /// The peer has taken something.
    pub fn handle_sent(&mut self, now: Duration, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id)
            && let Phase::Sending(since) | Phase::Idle(since) = &mut one.phase
        {
            *since = now;
        }
    }

    /// The answer has been given to the connection as a whole.
    pub fn handle_answered(&mut self, now: Duration, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id) {
            one.phase = Phase::Idle(now);
        }
    }

    /// Nothing more is answered, and what the peer still sends is thrown away.
    pub fn handle_last_answered(&mut self, now: Duration, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id) {
            one.phase = Phase::Lingering(now);
        }
    }

    /// So many bytes were thrown away. False when that is enough: the connection is to be closed.
    pub fn handle_thrown_away(&mut self, id: ConnectionId, len_bytes: u64) -> bool {
        let Some(one) = self.connections.get_mut(&id) else { return false };
        one.lingered_bytes = one.lingered_bytes.saturating_add(len_bytes);
        one.lingered_bytes <= LINGER_BYTES_MAX
    }

    /// A connection has ended.
    pub fn handle_end(&mut self, id: ConnectionId) {
        if let Some(gone) = self.connections.remove(&id) {
            assert!(gone.body_bytes <= self.body_bytes, "a body goes that was not counted");
            self.body_bytes -= gone.body_bytes;
        }
    }

    /// When to ask [`Self::must_close`] and [`Self::must_answer`] again, if nothing happens before; none
    /// when that is not needed.
    #[must_use]
    pub fn next_timeout(&self, id: ConnectionId) -> Option<Duration> {
        let one = self.connections.get(&id)?;
        match one.phase {
            Phase::Header(since) | Phase::Lingering(since) => since.checked_add(self.limits.header),
            Phase::Body(since) => since.checked_add(self.limits.body),
            Phase::Answer => None,
            Phase::Sending(since) | Phase::Idle(since) => since.checked_add(self.limits.idle),
        }
    }

    /// Whether a connection is to be closed now, and why.
    pub fn must_close(&mut self, now: Duration, id: ConnectionId) -> Option<Ending> {
        let one = self.connections.get(&id)?;
        if one.leaves {
            return Some(Ending::GivesWay);
        }
        let is_over = self.next_timeout(id).is_some_and(|at| at <= now);
        let ending = match one.phase {
            Phase::Header(_) => Ending::HeaderTime,
            Phase::Sending(_) | Phase::Idle(_) => Ending::Idle,
            Phase::Lingering(_) => Ending::Lingered,
            Phase::Body(_) | Phase::Answer => return None,
        };
        if is_over {
            self.report.late += u64::from(ending == Ending::HeaderTime);
        }
        is_over.then_some(ending)
    }

    /// Whether the request that is being read is to be refused now, and why; its connection is to be closed
    /// when the answer is sent.
    pub fn must_answer(&mut self, now: Duration, id: ConnectionId) -> Option<Shortage> {
        let is_over = self.next_timeout(id).is_some_and(|at| at <= now);
        let one = self.connections.get_mut(&id)?;
        if !matches!(one.phase, Phase::Body(_)) {
            return None;
        }
        if one.lacks_memory {
            one.phase = Phase::Answer;
            self.report.without_memory += 1;
            return Some(Shortage::Bodies(self.limits.bodies_bytes));
        }
        if is_over {
            one.phase = Phase::Answer;
            self.report.late += 1;
            return Some(Shortage::BodyTime(self.limits.body));
        }
        None
    }

    /// What there is to be logged now, if anything.
    pub fn poll_report(&mut self, now: Duration) -> Option<Report> {
        let is_due = self.reported.is_none_or(|at| now.saturating_sub(at) >= REPORT_INTERVAL);
        if !is_due || self.report == Report::default() {
            return None;
        }
        self.reported = Some(now);
        Some(core::mem::take(&mut self.report))
    }

    /// Who of these leaves for another: the oldest stranger, else of the connections of a token that has more
    /// than its share of `limit` the one that makes its peer wait for longest, else who has been idle for
    /// longest.
    fn loser(&self, limit: usize, chosen: impl Fn(&Connection) -> bool) -> Option<ConnectionId> {
        let all = self.connections.iter().filter(|(_, one)| one.has_place() && chosen(one));
        let stranger = all.clone().find(|(_, one)| one.token.is_none()).map(|(id, _)| *id);
        if stranger.is_some() {
            return stranger;
        }

        let mut counts = BTreeMap::<TokenKey, usize>::new();
        for token in all.clone().filter_map(|(_, one)| one.token) {
            *counts.entry(token).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let greedy = most.filter(|(_, count)| *count > (limit / SHARE_OF_CONNECTIONS).max(1));
        let of_greedy = all.clone().filter_map(|(id, one)| match one.phase {
            _ if greedy.is_none_or(|(token, _)| one.token != Some(token)) => None,
            Phase::Answer => None,
            Phase::Header(since)
            | Phase::Body(since)
            | Phase::Sending(since)
            | Phase::Idle(since)
            | Phase::Lingering(since) => Some((since, *id)),
        });
        if let Some((_, id)) = of_greedy.min() {
            return Some(id);
        }

        let idle = all.filter_map(|(id, one)| match one.phase {
            Phase::Idle(since) | Phase::Lingering(since) => Some((since, *id)),
            Phase::Header(_) | Phase::Body(_) | Phase::Answer | Phase::Sending(_) => None,
        });
        idle.min().map(|(_, id)| id)
    }

    /// The source of which there are most strangers.
    fn most_strange(&self) -> Option<IpAddr> {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        let strangers =
            self.connections.values().filter(|one| one.has_place() && one.token.is_none());
        strangers.for_each(|one| *counts.entry(one.source).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source)
    }

    fn give_way(&mut self, id: ConnectionId) {
        if let Some(one) = self.connections.get_mut(&id) {
            one.leaves = true;
            self.report.gave_way += 1;
        }
    }
}

/// Whom connections are counted by.
fn source_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}
