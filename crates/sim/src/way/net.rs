//! The network with all that is at its ends: engines' lines, hosts, and one agenda for these and for their owner.

use core::{marker::PhantomData, time::Duration};

use netraid_remote::{Order, OrderId, Request, Status};

use super::{
    counts::Counts,
    interface::{
        Cut, Death, Effect, EngineId, HostConfig, HostId, LineConfig, LineId, Manners, News, Step,
        StreamId, Way,
    },
};
use crate::{
    agenda::Ticket,
    array::trace::{Keep, Trace},
    dice::Seed,
    disk::Disk,
    time::Time,
};

/// Engines, hosts and what is between them. `U` is what the owner knows a request by, `X` an event of its own.
///
/// The owner calls [`Self::step`] again and again; after each it takes [`Self::poll`] until that says nothing more.
#[derive(Debug)]
pub struct Net<U, X> {
    _owner: PhantomData<(U, X)>,
}

/// The agenda.
impl<U, X> Net<U, X> {
    /// A network without anybody, and how much of its trace is kept.
    #[must_use]
    pub fn new(seed: Seed, manners: Manners, keep: Keep) -> Self {
        let _ = (seed, manners, keep);
        Self { _owner: PhantomData }
    }

    /// The moment.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::START
    }

    /// When the next event comes, of whichever kind.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        None
    }

    /// Puts down an event of the owner's.
    pub fn put_in(&mut self, wait: Duration, event: X) -> Ticket {
        let _ = (wait, event);
        unreachable!("not yet")
    }

    /// Takes an event of the owner's off, if it has not happened.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<X> {
        let _ = ticket;
        None
    }

    /// Lets the next event happen.
    ///
    /// # Panics
    /// When what is beneath does not come to rest within a moment.
    pub fn step(&mut self) -> Step<X> {
        Step::Nothing
    }

    /// What a line has to tell, in the order in which it was told.
    pub fn poll(&mut self) -> Option<(LineId, News<U>)> {
        None
    }

    /// The trace of all that happened: the same seed and the same calls give the same hash. The owner notes in it too.
    pub fn trace(&mut self) -> &mut Trace {
        unreachable!("not yet")
    }

    /// What happened how often.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::default()
    }

    /// Changes how the network is, for what is sent and dialled from now on.
    pub fn set_manners(&mut self, manners: Manners) {
        let _ = manners;
    }
}

/// Engines and their lines.
impl<U, X> Net<U, X> {
    /// A machine for an engine. One that died is taken again by [`Self::open`].
    pub fn add_engine(&mut self) -> EngineId {
        EngineId(0)
    }

    /// Begins to open a host's disk; [`News::Opened`] says what came of it.
    pub fn open(&mut self, engine: EngineId, host: HostId, config: LineConfig) -> LineId {
        let _ = (engine, host, config);
        LineId(0)
    }

    /// Submits a request; it ends by [`News::Ended`]. After [`News::Closed`] it ends as aborted.
    ///
    /// # Panics
    /// Before [`News::Opened`].
    pub fn submit(&mut self, line: LineId, request: Request<U>) {
        let _ = (line, request);
    }

    /// Gives an order; it ends by [`News::Answered`]. After [`News::Closed`] it ends as aborted.
    ///
    /// # Panics
    /// Before [`News::Opened`].
    pub fn order(&mut self, line: LineId, order: Order) -> OrderId {
        let _ = (line, order);
        OrderId(0)
    }

    /// This side gives its registrations back, for good.
    pub fn note_leaving(&mut self, line: LineId) {
        let _ = line;
    }

    /// No more requests come; [`News::Closed`] says when all is over.
    pub fn close(&mut self, line: LineId) {
        let _ = line;
    }

    /// Ends the sessions at once, as if this side had died; [`News::Closed`] follows.
    pub fn cut_off(&mut self, line: LineId) {
        let _ = line;
    }

    /// What can be seen of a line's sessions, as last published; that of its end when it is over.
    ///
    /// # Panics
    /// When there never was such a line, or its engine has died.
    #[must_use]
    pub fn status(&self, line: LineId) -> &Status {
        let _ = line;
        unreachable!("not yet")
    }

    /// Why a line had no session the last time that there was none.
    #[must_use]
    pub fn last_failure(&self, line: LineId) -> &str {
        let _ = line;
        ""
    }

    /// An engine dies with all its lines: nothing is heard of them any more, and what they sent may still arrive.
    pub fn kill_engine(&mut self, engine: EngineId, death: Death) {
        let _ = (engine, death);
    }

    /// An engine does nothing for a while (its process is stopped), then goes on.
    pub fn hang_engine(&mut self, engine: EngineId, time: Duration) {
        let _ = (engine, time);
    }
}

/// Hosts.
impl<U, X> Net<U, X> {
    /// A host that has power, and whose program serves.
    pub fn add_host(&mut self, config: HostConfig) -> HostId {
        let _ = config;
        HostId(0)
    }

    /// Its disk.
    #[must_use]
    pub fn disk(&self, host: HostId) -> &Disk {
        let _ = host;
        unreachable!("not yet")
    }

    /// Its disk, to spoil or mend or replace blocks of it.
    pub fn disk_mut(&mut self, host: HostId) -> &mut Disk {
        let _ = host;
        unreachable!("not yet")
    }

    /// Another disk is in the place of this one: the program is killed, the reservations that were kept are gone, and the
    /// program of the new disk, which has another identity, is to be started.
    pub fn replace_disk(&mut self, host: HostId) {
        let _ = host;
    }

    /// The target program ends without a word. The disk keeps its cache; of the requests at it each is carried out, or
    /// torn, or not. Nobody listens until [`Self::start`].
    pub fn kill(&mut self, host: HostId) {
        let _ = host;
    }

    /// The power fails: as [`Self::kill`], and the cache is lost, and nobody is told. Dials are not answered until
    /// [`Self::start`].
    pub fn lose_power(&mut self, host: HostId) {
        let _ = host;
    }

    /// Power returns where there was none, and the program starts where there is none.
    pub fn start(&mut self, host: HostId) {
        let _ = host;
    }

    /// Whether the program runs.
    #[must_use]
    pub fn is_serving(&self, host: HostId) -> bool {
        let _ = host;
        true
    }

    /// A host does nothing for a while, then goes on: connections are still made, and nobody answers.
    pub fn hang(&mut self, host: HostId, time: Duration) {
        let _ = (host, time);
    }

    /// Requests take so many times as long from now on.
    pub fn set_slowness(&mut self, host: HostId, times: u32) {
        let _ = (host, times);
    }

    /// All requests to the disk fail, or serve again.
    pub fn set_failing(&mut self, host: HostId, is_failing: bool) {
        let _ = (host, is_failing);
    }

    /// An administrator ends all sessions; initiators may log in again.
    pub fn drop_sessions(&mut self, host: HostId) {
        let _ = host;
    }

    /// An administrator keeps requests off the device (they end as BUSY), or not any more.
    pub fn set_held(&mut self, host: HostId, is_held: bool) {
        let _ = (host, is_held);
    }

    /// Requests at a disk now.
    #[must_use]
    pub fn under_way(&self, host: HostId) -> usize {
        let _ = host;
        0
    }

    /// Begins to keep what the media do.
    pub fn watch(&mut self) {}

    /// What the media did since this was asked last.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        Vec::new()
    }
}

/// Connections.
impl<U, X> Net<U, X> {
    /// The connections of an engine to a host that one end still has, oldest first.
    #[must_use]
    pub fn streams(&self, engine: EngineId, host: HostId) -> Vec<StreamId> {
        let _ = (engine, host);
        Vec::new()
    }

    /// Cuts a connection; nothing happens when it is gone.
    pub fn cut(&mut self, stream: StreamId, cut: Cut) {
        let _ = (stream, cut);
    }

    /// A direction of a connection delivers nothing for a while.
    pub fn stall(&mut self, stream: StreamId, way: Way, time: Duration) {
        let _ = (stream, way, time);
    }

    /// Nothing passes between an engine and a host until [`Self::heal`]; then what was sent comes.
    pub fn part(&mut self, engine: EngineId, host: HostId) {
        let _ = (engine, host);
    }

    /// See [`Self::part`].
    pub fn heal(&mut self, engine: EngineId, host: HostId) {
        let _ = (engine, host);
    }
}
