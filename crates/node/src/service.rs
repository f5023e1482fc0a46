//! One connection of a target, and the commands that it carries.

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use netraid_block::{Buf, IoError, Pool, SgList, narrow};
use netraid_iscsi_proto::{
    chap::Challenge,
    framing::{Broken, Side},
    machine::{Digests, Fatal, Payload, Placement, TaskId},
    negotiation::SessionType,
    pdu::{Bhs, LunField},
    target::{Connection, ConnectionId, Counters, Event, RefusedLogin, Seat, Setup},
};
use netraid_planted::{Planted, planted};
use netraid_scsi::{InitiatorPort, Nexus, NexusId, UnitAttention};

use crate::{
    outside::{Entry, Guest, LoggedIn, Outside},
    slot::{Slot, Stage},
};

/// What a target serves to one initiator: the machine of a connection with the places of its commands.
///
/// It is driven as the module `machine` of `netraid-iscsi-proto` says, with what it reaches as a parameter; there is nothing
/// to be polled but what is to be sent. Ends and what was sent are told one by one, and then that some were.
pub struct Service<O: Outside> {
    pub(crate) machine: Connection,
    pub(crate) slots: Vec<Slot<O::Lun>>,
    pub(crate) connection: ConnectionId,
    pub(crate) nexus: NexusId,
    pool: Pool,
    /// The login waits to be judged.
    is_judged_later: bool,
    /// Number of the last grant that was asked for.
    pub(crate) asked: u32,
    /// By LUN: the incarnation of it that this session is known to use.
    pub(crate) used: Vec<u64>,
    /// Tasks that wait for the background work of a LUN.
    pub(crate) waiting: Vec<(u16, TaskId)>,
}

/// A service, to which its connection's [`netraid_iscsi_proto::framing::Incoming`] gives what is received.
pub struct Receiver<'a, O: Outside> {
    service: &'a mut Service<O>,
    outside: &'a mut O,
    now: Duration,
}

impl<O: Outside> Service<O> {
    /// A connection that was just accepted, and has its seat from `Node::open`. What is written lies in buffers of `pool`.
    #[must_use]
    pub fn new(
        now: Duration,
        seat: Seat,
        setup: Arc<Setup>,
        challenge: Challenge,
        pool: Pool,
    ) -> Self {
        let connection = seat.id();
        let machine = Connection::new(now, seat, setup, challenge);
        let slots = (0..machine.task_count()).map(|_| Slot::default()).collect();
        Self {
            machine,
            slots,
            connection,
            nexus: NexusId(connection.0),
            pool,
            is_judged_later: false,
            asked: 0,
            used: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// What the machine counts.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.machine.counters()
    }

    /// The login, once it was refused.
    #[must_use]
    pub const fn refused_login(&self) -> Option<&RefusedLogin> {
        self.machine.refused_login()
    }

    /// Whether the peer's next PDU may be taken; else send first.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.machine.wants_input()
    }

    /// Whether all is said: the connection is to be flushed and closed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.machine.is_finished()
    }

    /// Whether no command is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    /// The commands that have a place, with the tags by which the initiator knows them.
    pub fn commands(&self) -> impl Iterator<Item = (TaskId, u32)> + '_ {
        let tasks = (0..self.slots.len()).filter_map(|index| self.machine.task_at(index));
        tasks.filter_map(|task| Some((task, self.machine.tag_of(task)?)))
    }

    /// How long each buffer is into which the data of a command comes.
    pub fn buffer_lens(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots.iter().filter_map(|slot| slot.data_out.as_ref()).map(|data| data.len())
    }

    /// Where what is received `now` goes.
    pub const fn receiver<'a>(&'a mut self, outside: &'a mut O, now: Duration) -> Receiver<'a, O> {
        Receiver { service: self, outside, now }
    }

    /// The next PDU to send: header, data segment, digests.
    pub fn poll_transmit(&mut self) -> Option<(Bhs, SgList, Digests)> {
        let transmit = self.machine.poll_transmit()?;
        let body = match transmit.payload {
            Payload::None => SgList::new(),
            Payload::Control(bytes) => Buf::copy_from(&bytes).into(),
            Payload::Task { task, offset, len } => self.data_in(task, offset, len),
        };
        Some((transmit.header, body, transmit.digests))
    }

    /// What was to be sent was taken.
    pub fn handle_transmitted(&mut self, outside: &mut O) {
        self.handle_events(outside);
    }

    /// What was submitted, stored or waited for has ended; once for each.
    pub fn handle_completed(
        &mut self,
        outside: &mut O,
        task: usize,
        result: Result<SgList, IoError>,
    ) {
        self.take_end(outside, task, result);
    }

    /// Some ends were taken.
    pub fn handle_ends_taken(&mut self, outside: &mut O) {
        self.handle_events(outside);
    }

    /// Another connection, the pacer or whoever judges logins has something for this one.
    pub fn handle_wake(&mut self, outside: &mut O) {
        self.machine.handle_wake(&mut outside.node());
        self.take_entry(outside);
        self.take_grants(outside);
        self.handle_events(outside);
        outside.wake_others();
    }

    /// The target ends: the initiator is asked to log out.
    pub fn handle_shutdown(&mut self, outside: &mut O, now: Duration) {
        self.machine.handle_shutdown(now);
        self.handle_events(outside);
    }

    /// When [`Self::handle_timeout`] is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.machine.next_timeout()
    }

    /// Time has passed; whether bytes have moved since this was called last, and whether some wait to be sent.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_timeout(
        &mut self,
        outside: &mut O,
        now: Duration,
        (have_moved, do_wait): (bool, bool),
    ) -> Result<(), Fatal> {
        self.machine.handle_progress(now, have_moved, do_wait);
        self.machine.handle_timeout(now)?;
        self.handle_events(outside);
        Ok(())
    }

    /// The connection is over; commands that are at devices go on until they have ended.
    pub fn handle_disconnect(&mut self, outside: &mut O) {
        if planted(Planted::DeviceLeftWithConnection) {
            self.slots.iter_mut().for_each(|slot| slot.leave(outside));
        }
        self.machine.handle_disconnect();
        self.handle_events(outside);
    }

    /// No command waits any longer for what may take hours. All that is still under way is to be awaited then.
    pub fn abandon_waits(&mut self, outside: &mut O) {
        for (lun, task) in self.waiting.drain(..) {
            outside.abandon(task, lun);
        }
    }

    /// What was under way has ended: the session has. Whoever has its place next finds nothing of it.
    pub fn end(&mut self, outside: &mut O) {
        self.slots.iter_mut().for_each(|slot| slot.clear(outside));
        outside.units().remove_nexus(self.nexus);
        outside.leave();
        outside.node().closed(self.connection);
        outside.wake_others();
    }

    fn data_in(&self, task: TaskId, offset: u32, len: u32) -> SgList {
        let (offset, len): (usize, usize) = (narrow(offset), narrow(len));
        match &self.slots[task.index()].stage {
            Stage::Answered(data) => data.slice(offset..offset + len),
            Stage::Free | Stage::Begun(..) => {
                unreachable!("{task:?} sends before it was answered")
            }
        }
    }

    pub(crate) fn handle_events(&mut self, outside: &mut O) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Command { task, lun, cdb, data_out_max, .. } => {
                    self.handle_command(outside, task, lun, &cdb, data_out_max);
                }
                Event::AskStanding => self.ask_standing(outside),
                Event::AskGrant { task, len, executes } => {
                    self.ask_grant(outside, task, len, executes);
                }
                Event::Submit { task } => self.handle_submit(outside, task),
                Event::Release { task } => self.slots[task.index()].clear(outside),
                Event::Reset { lun: None } => outside.units().handle_reset(),
                Event::Reset { lun: Some(lun) } => {
                    let field = LunField::from_number(lun).0;
                    if let Some(unit) = outside.units().unit_mut(field) {
                        unit.handle_reset();
                    }
                }
                Event::Cleared { lun } => {
                    let field = LunField::from_number(lun).0;
                    let attention = UnitAttention::CommandsClearedByAnother;
                    if let Some(unit) = outside.units().unit_mut(field) {
                        match planted(Planted::ClearedToldToOthers) {
                            true => unit.raise(attention, Some(self.nexus)),
                            false => unit.raise_for(attention, self.nexus),
                        }
                    }
                }
                Event::Preempted { task } => self.handle_preempted(outside, task),
                Event::Settled => {
                    self.machine.handle_wake(&mut outside.node());
                    outside.wake_others();
                }
                Event::LoggedIn { initiator, isid, session, chap, .. } => {
                    if session == SessionType::Normal {
                        self.make_known(outside, &initiator, isid);
                    }
                    outside.log_in(LoggedIn { initiator, session, chap });
                }
            }
        }
        if !self.waiting.is_empty() {
            self.abandon_waits_of_aborted(outside);
        }
    }

    /// Makes the session's nexus known to its logical units; commands of one that is not are answered with BUSY.
    fn make_known(&self, outside: &mut O, initiator: &str, isid: [u8; 6]) {
        let Some(port) = InitiatorPort::new(initiator, isid) else { return };
        let mut units = outside.units();
        units.add_nexus(self.nexus, &Nexus::new(port));
        if let Some(view) = outside.guest().and_then(Guest::view) {
            units.set_view(0, self.nexus, view.clone());
        }
    }

    /// Asks who the initiator is, that gave a name and a proof.
    fn ask_standing(&mut self, outside: &mut O) {
        let entry = match self.machine.claim() {
            Some(claim) => outside.judge(&claim),
            None => Entry::Refused,
        };
        self.take_judgement(outside, entry);
    }

    /// A login goes on when it is known whether it is let in.
    fn take_entry(&mut self, outside: &mut O) {
        if !self.is_judged_later {
            return;
        }
        let entry = match self.machine.claim() {
            Some(_) => outside.poll_entry(),
            None => Entry::Refused,
        };
        self.take_judgement(outside, entry);
    }

    fn take_judgement(&mut self, outside: &mut O, entry: Entry) {
        self.is_judged_later = entry == Entry::Later;
        let standing = match entry {
            Entry::Later => return,
            Entry::Exhausted => return self.machine.handle_shortage(),
            Entry::Refused => None,
            Entry::Granted(standing) => Some(standing),
        };
        match outside.take_denial().filter(|_| standing.is_none()) {
            Some(told) => self.machine.handle_denied(&mut outside.node(), &told),
            None => self.machine.handle_standing(&mut outside.node(), standing),
        }
        outside.wake_others();
    }

    /// Nobody waits for the answers of tasks that were aborted.
    #[cold]
    fn abandon_waits_of_aborted(&self, outside: &mut O) {
        for (lun, task) in &self.waiting {
            if self.machine.is_aborted(*task) {
                outside.abandon(*task, *lun);
            }
        }
    }
}

impl<O: Outside> Side for Receiver<'_, O> {
    fn receive_digests(&self) -> Digests {
        self.service.machine.receive_digests()
    }

    fn wants_input(&self) -> bool {
        self.service.machine.wants_input()
    }

    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, Broken> {
        self.service.machine.handle_header(self.now, bhs)?;
        self.service.handle_events(self.outside);
        Ok(self.service.machine.placement())
    }

    fn buffer(&mut self, task: TaskId) -> &mut [u8] {
        let Service { slots, pool, .. } = &mut *self.service;
        let slot = &mut slots[task.index()];
        let len = slot.data_out_len;
        slot.data_out.get_or_insert_with(|| pool.get(len))
    }

    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), Broken> {
        let Self { service, outside, now } = self;
        match control {
            Some(data) => {
                service.machine.handle_control(*now, &mut outside.node(), data)?;
                // What is reset should be so before others hear of it.
                service.handle_events(outside);
                outside.wake_others();
            }
            None => {
                service.machine.handle_data();
                service.handle_events(outside);
            }
        }
        Ok(())
    }

    fn handle_bad_digest(&mut self, bhs: &Bhs) -> Result<(), Broken> {
        self.service.machine.handle_bad_digest(bhs);
        self.service.handle_events(self.outside);
        Ok(())
    }
}
