//! One connection of a target program: its [`Service`] and its driver, as the engine's target has one.
//!
//! Invariant: the driver does what the machine says, in the order of the engine's driver, and decides nothing.

use core::time::Duration;
use std::collections::VecDeque;

use netraid_block::{IoError, SgList};
use netraid_iscsi_proto::{
    framing::{Broken, Side},
    machine::{Digests, Fatal, Placement, TaskId},
    pdu::{Bhs, Opcode, ScsiCommand},
    target::ConnectionId,
};
use netraid_node::{Receiver, Service};

use super::{
    counts::Count,
    desk::{Alarm, Desk, Event},
    interface::{EngineId, HostId, LineId, Quirks, StreamId},
    quirks,
    reach::Reach,
    stream::{End, Streams},
    wire::{Wire, WireError},
};
use crate::time::Time;

/// The F bit of a PDU (RFC 7143, section 11.7.1).
const FINAL: u8 = 0x80;
/// Completions taken before the connection has its turn.
const COMPLETIONS_MAX: usize = 64;
/// How long what is queued may take to leave a connection that ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// What a driver may do at one moment before it has failed to come to rest.
const TURNS_MAX: usize = 100_000;

/// How far a connection is.
enum Stage {
    Conversing,
    /// It is over, and what is queued leaves until then.
    Finishing(Time),
    /// Its commands end.
    Draining,
}

/// What a driver does next.
enum Next {
    More,
    Rest,
    Over,
}

/// One connection.
pub(super) struct Served {
    id: ConnectionId,
    host: HostId,
    program: u32,
    pub(super) engine: EngineId,
    pub(super) line: LineId,
    pub(super) stream: StreamId,
    /// Its line's registration had been removed when it was accepted.
    pub(super) is_outsider: bool,
    service: Service<Reach>,
    reach: Reach,
    quirks: Quirks,
    /// The task whose answer tells of the FUA bit.
    mode_task: Option<[u8; 4]>,
    wire: Option<Box<Wire>>,
    stage: Stage,
    /// Ends that were not taken yet.
    ends: VecDeque<(usize, Result<SgList, IoError>)>,
    is_woken: bool,
    moved: u64,
    alarm: Alarm,
}

impl Served {
    pub(super) fn new(
        (host, program): (HostId, u32),
        id: ConnectionId,
        (engine, line, stream): (EngineId, LineId, StreamId),
        (service, reach): (Service<Reach>, Reach),
        quirks: Quirks,
    ) -> Self {
        Self {
            id,
            host,
            program,
            engine,
            line,
            stream,
            is_outsider: false,
            service,
            reach,
            quirks,
            mode_task: None,
            wire: Some(Box::new(Wire::new(stream, End::Host))),
            stage: Stage::Conversing,
            ends: VecDeque::new(),
            is_woken: false,
            moved: 0,
            alarm: Alarm::default(),
        }
    }

    const fn event(&self) -> Event {
        Event::Serve(self.host, self.program, self.id)
    }

    /// The driver runs as soon as it has a processor.
    pub(super) fn wake(&mut self, desk: &mut Desk) {
        let event = self.event();
        self.alarm.wake(desk, event);
    }

    /// The driver runs at this moment, and not before.
    pub(super) fn put_off(&mut self, desk: &mut Desk, until: Time) {
        let event = self.event();
        self.alarm.fire();
        self.alarm.set(desk, until, event);
    }

    /// Another connection has something for this one.
    pub(super) fn handle_woken(&mut self, desk: &mut Desk) {
        self.is_woken = true;
        self.wake(desk);
    }

    /// What was begun for a task has ended.
    pub(super) fn handle_end(
        &mut self,
        desk: &mut Desk,
        task: usize,
        result: Result<SgList, IoError>,
    ) {
        self.ends.push_back((task, result));
        self.wake(desk);
    }

    /// The program has died: the connection that it had.
    pub(super) fn die(mut self, desk: &mut Desk) -> Option<StreamId> {
        self.alarm.stop(desk);
        self.wire.map(|wire| wire.stream())
    }

    /// The session has ended: its driver is not run any more.
    pub(super) fn end(mut self, desk: &mut Desk) {
        self.alarm.stop(desk);
        self.service.abandon_waits(&mut self.reach);
        self.reach.stop();
        self.service.end(&mut self.reach);
    }

    /// Does all that is to be done now; whether the session has ended. `is_alone`: no command of another engine is at the
    /// disk.
    pub(super) fn run(&mut self, desk: &mut Desk, streams: &mut Streams, is_alone: bool) -> bool {
        self.alarm.fire();
        for _ in 0..TURNS_MAX {
            self.take_ends();
            let next = match self.stage {
                Stage::Conversing => match self.converse(desk, streams, is_alone) {
                    Ok(Next::Over) => self.finish(desk, None),
                    Ok(next) => next,
                    Err(error) => self.finish(desk, Some(&error)),
                },
                Stage::Finishing(until) => self.flush(desk, streams, until),
                Stage::Draining if self.service.is_idle() => return true,
                Stage::Draining if self.ends.is_empty() => Next::Rest,
                Stage::Draining => Next::More,
            };
            match next {
                Next::More => {}
                Next::Rest | Next::Over => return false,
            }
        }
        unreachable!("{:?} of {:?} does not come to rest at {}", self.id, self.host, desk.now());
    }

    fn take_ends(&mut self) {
        let mut count = 0;
        while count < COMPLETIONS_MAX
            && let Some((task, result)) = self.ends.pop_front()
        {
            self.service.handle_completed(&mut self.reach, task, result);
            count += 1;
        }
        if count > 0 {
            self.service.handle_ends_taken(&mut self.reach);
        }
    }

    fn converse(
        &mut self,
        desk: &mut Desk,
        streams: &mut Streams,
        is_alone: bool,
    ) -> Result<Next, WireError> {
        let Some(wire) = &mut self.wire else { return Ok(Next::Over) };
        let mode_task = &mut self.mode_task;
        transmit((&mut self.service, &mut self.reach), wire, desk, streams, mode_task)?;
        if self.service.is_finished() {
            return Ok(Next::Over);
        }
        let wants_input = self.service.wants_input();
        if wants_input && (wire.is_paused() || wire.is_ready(streams, desk.now(), true)) {
            let now = desk.clock();
            let is_late = streams.engine_has_left(self.stream);
            let inner = self.service.receiver(&mut self.reach, now);
            let (quirks, mode_task) = (self.quirks, &mut self.mode_task);
            let seen = Vec::new();
            let writes = false;
            let mut side = Noting { inner, is_alone, is_late, quirks, mode_task, seen, writes };
            let end = wire.receive(streams, desk, &mut side);
            side.seen.iter().for_each(|count| desk.count(*count));
            if side.writes {
                desk.watch.note_command(self.line);
            }
            end?;
            return Ok(Next::More);
        }
        if wire.is_ready(streams, desk.now(), false) {
            return Ok(Next::More);
        }
        if core::mem::take(&mut self.is_woken) {
            self.service.handle_wake(&mut self.reach);
            return Ok(Next::More);
        }
        let Some(at) = self.service.next_timeout() else { return Ok(Next::Rest) };
        if at <= desk.clock() {
            let changed = core::mem::replace(&mut self.moved, wire.moved()) != wire.moved();
            let moves = (changed, !wire.is_flushed());
            let timed = self.service.handle_timeout(&mut self.reach, desk.clock(), moves);
            timed.map_err(Broken::from)?;
            return Ok(Next::More);
        }
        let event = self.event();
        self.alarm.set_timer(desk, at, event);
        Ok(Next::Rest)
    }

    /// The conversation has ended.
    fn finish(&mut self, desk: &mut Desk, error: Option<&WireError>) -> Next {
        if let Some(error) = error {
            count_error(desk, error);
            desk.note(|| {
                format!("{:?} {:?} drops {:?}: {error:?}", self.host, self.id, self.stream)
            });
        }
        self.service.handle_disconnect(&mut self.reach);
        self.stage = Stage::Finishing(desk.now().after(FLUSH_LIMIT));
        Next::More
    }

    /// What is queued leaves; then the connection is closed.
    fn flush(&mut self, desk: &mut Desk, streams: &mut Streams, until: Time) -> Next {
        if let Some(wire) = &mut self.wire
            && desk.now() < until
            && matches!(wire.flush(streams, desk), Ok(false))
        {
            let event = self.event();
            self.alarm.set(desk, until, event);
            return if self.ends.is_empty() { Next::Rest } else { Next::More };
        }
        if self.wire.take().is_some() {
            streams.close(desk, self.stream, End::Host);
        }
        self.stage = Stage::Draining;
        Next::More
    }
}

/// Sends what the machine has, as far as the connection takes it.
fn transmit(
    (service, reach): (&mut Service<Reach>, &mut Reach),
    wire: &mut Wire,
    desk: &mut Desk,
    streams: &mut Streams,
    mode_task: &mut Option<[u8; 4]>,
) -> Result<(), WireError> {
    loop {
        let mut more = false;
        while wire.has_room()
            && let Some((header, body, digests)) = service.poll_transmit()
        {
            more = true;
            count_sent(desk, &header, &body);
            let body = quirks::answer(mode_task, &header, body);
            wire.outgoing().push(&header, body, digests);
        }
        service.handle_transmitted(reach);
        // A queue that was full from the start says nothing about what the machine has.
        let exhausted = wire.has_room();
        if !wire.flush(streams, desk)? || (exhausted && !more) {
            return Ok(());
        }
    }
}

/// How commands end.
fn count_sent(desk: &mut Desk, header: &Bhs, body: &SgList) {
    match header.opcode() {
        Some(Opcode::ScsiResponse) => {}
        Some(Opcode::R2t) => return desk.count(Count::R2t),
        Some(Opcode::DataIn) if header.0[1] & FINAL == 0 => return desk.count(Count::DataInMore),
        _ => return,
    }
    match header.0[3] {
        0x02 => {
            let mut bytes = [0; 5];
            if body.len() >= bytes.len() {
                body.slice(0..bytes.len()).copy_to(&mut bytes);
            }
            // Behind the length: fixed or descriptor format (SPC-4, section 4.5).
            let key = if bytes[2] & 0x7f >= 0x72 { bytes[3] } else { bytes[4] } & 0x0f;
            desk.count(if key == 6 { Count::UnitAttention } else { Count::CheckCondition });
        }
        0x08 | 0x28 => desk.count(Count::Busy),
        0x18 => desk.count(Count::Conflict),
        _ => {}
    }
}

fn count_error(desk: &mut Desk, error: &WireError) {
    match error {
        WireError::Broken(Broken::Fatal(Fatal::Silent)) => desk.count(Count::SilentPeer),
        WireError::Broken(Broken::Fatal(Fatal::LoginTimeout)) => desk.count(Count::LoginTimeout),
        WireError::Broken(Broken::Fatal(
            Fatal::Protocol(_)
            | Fatal::Oversize { .. }
            | Fatal::Rejected(_)
            | Fatal::Text(_)
            | Fatal::Negotiation(_),
        )) => desk.count(Count::ProtocolError),
        WireError::Broken(Broken::Digest(_)) => desk.count(Count::DigestError),
        WireError::Failed | WireError::Closed => {}
    }
}

/// A service's receiver, and what passes there.
struct Noting<'a> {
    inner: Receiver<'a, Reach>,
    is_alone: bool,
    is_late: bool,
    quirks: Quirks,
    mode_task: &'a mut Option<[u8; 4]>,
    seen: Vec<Count>,
    /// A command came that changes the medium.
    writes: bool,
}

impl Noting<'_> {
    fn note_command(&mut self, bhs: &Bhs) {
        if self.is_late {
            self.seen.push(Count::LateCommand);
        }
        if bhs.0[5..8] != [0; 3] {
            self.seen.push(Count::ImmediateData);
        }
        let cdb = ScsiCommand::parse(bhs).cdb;
        // WRITE (10) and (16), UNMAP, WRITE SAME (10) and (16).
        self.writes |= matches!(cdb[0], 0x2a | 0x8a | 0x42 | 0x41 | 0x93);
        // PERSISTENT RESERVE OUT, by service action (SPC-4, section 6.16).
        if cdb[0] != 0x5f {
            return;
        }
        self.seen.push(match cdb[1] & 0x1f {
            0x00 | 0x06 => Count::Register,
            0x01 => Count::Reserve,
            0x02 => Count::Release,
            0x03 => Count::Clear,
            0x04 | 0x05 if !self.is_alone => Count::PreemptUnderWay,
            0x04 | 0x05 => Count::Preempt,
            _ => return,
        });
    }
}

impl Side for Noting<'_> {
    fn receive_digests(&self) -> Digests {
        self.inner.receive_digests()
    }

    fn wants_input(&self) -> bool {
        self.inner.wants_input()
    }

    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, Broken> {
        if bhs.opcode() == Some(Opcode::ScsiCommand) {
            if let Some(function) = quirks::function_of(bhs) {
                self.seen.push(Count::ForeignFunction);
                return self.inner.handle_header(&function);
            }
            self.note_command(bhs);
            let command = quirks::command(self.quirks, bhs, self.mode_task);
            if command.is_some() {
                self.seen.push(Count::Lacked);
            }
            return self.inner.handle_header(command.as_ref().unwrap_or(bhs));
        }
        if bhs.opcode() == Some(Opcode::DataOut) {
            self.seen.push(Count::DataOut);
            if bhs.0[20..24] == [0xff; 4] {
                self.seen.push(Count::UnsolicitedDataOut);
            }
        }
        self.inner.handle_header(bhs)
    }

    fn buffer(&mut self, task: TaskId) -> &mut [u8] {
        self.inner.buffer(task)
    }

    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), Broken> {
        self.inner.handle_segment(control)
    }

    fn handle_bad_digest(&mut self, bhs: &Bhs) -> Result<(), Broken> {
        self.inner.handle_bad_digest(bhs)
    }
}
