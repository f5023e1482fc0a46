//! The initiator's machine against a target that answers what it likes, when it likes.
//!
//! What has to hold: no panic; each command that was submitted ends at most once, and exactly once
//! unless the session is lost; what came is placed within the command's buffer, from its start and
//! without gaps; what is sent was asked for, or may go unasked; and a target that falls silent is
//! given up.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use arbitrary::Arbitrary;
use netraid_iscsi_proto::{
    initiator::{Command, Event, Session, Setup, TaskEnd},
    machine::{Payload, Placement, TaskId},
    pdu::{
        AsyncEvent, AsyncMessage, Bhs, DataIn, DataOut, LoginResponse, LogoutResponse, LunField,
        NO_TAG, NopIn, Opcode, R2t, Reject, RejectReason, ScsiCommand, ScsiResponse, TaskResponse,
        TaskResponseCode, TextResponse,
    },
    serial::Serial,
    text,
};

use crate::{
    operations,
    wire::{Changes, INITIATOR, TARGET, change, credentials, padded, push_key, wishes},
};

#[derive(Debug, Arbitrary)]
enum Operation {
    Submit { write: bool, len: u16 },
    Abort { which: u8 },
    LogOut,
    Login { flags: u8, status: u8, keys: Vec<(u8, u8)>, changes: Changes },
    DataIn { which: u8, len: u16, flags: u8, changes: Changes },
    Ask { which: u8, len: u16, flags: u8, changes: Changes },
    Respond { which: u8, status: u8, flags: u8, residual: u16, sense: u8, changes: Changes },
    Managed { which: u8, code: u8, changes: Changes },
    Nop { answer: bool, len: u16, changes: Changes },
    Announce { event: u8, changes: Changes },
    Reject { changes: Changes },
    Text { flags: u8, len: u16, changes: Changes },
    LoggedOut { changes: Changes },
    Raw { bytes: [u8; 16], opcode: u8, len: u16 },
    Transmit { count: u8 },
    Window { more: u8 },
    Pass { ms: u16 },
}

/// A command that was submitted and has not ended.
struct Live {
    task: TaskId,
    read_len: u32,
    write_len: u32,
    received: u32,
    /// Ranges that may be sent, by tag; what may go unasked has the reserved one.
    asked: Vec<(u32, u32, u32)>,
}

/// A command as the target knows it.
struct Known {
    itt: u32,
    lun: LunField,
    read_len: u32,
    write_len: u32,
    data_sn: u32,
    r2t_sn: u32,
    received: u32,
    asked: u32,
}

struct World {
    now: Duration,
    session: Session,
    places: Vec<Option<Live>>,
    known: Vec<Known>,
    aborts: VecDeque<u32>,
    stat_sn: u32,
    exp_cmd_sn: u32,
    window: u32,
    login_stage: (u8, u8, bool),
    lost: bool,
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let Some((mode, input)) = input.split_first() else { return };
    let mut world = World::new(*mode);
    for operation in operations(input, 400) {
        if world.lost {
            return;
        }
        world.perform(operation);
    }
    if !world.lost {
        world.fall_silent();
    }
}

impl World {
    fn new(mode: u8) -> Self {
        let target = (mode & 1 == 0).then(|| TARGET.to_string());
        let name = INITIATOR.to_string();
        let mut setup = Setup::new(name, target, [0x80, 0, 0, 0, 0, 1]);
        setup.wishes = wishes(mode);
        setup.queue_depth = 6;
        if mode & 32 != 0 {
            setup.chap = Some(credentials());
            // `log_in` is of a target that wants no secret.
            setup.allow_none = mode & 64 == 0;
        }
        let session = Session::new(Duration::ZERO, Arc::new(setup));
        let places = (0..session.task_count()).map(|_| None).collect();
        let mut world = Self {
            now: Duration::ZERO,
            session,
            places,
            known: Vec::new(),
            aborts: VecDeque::new(),
            stat_sn: 1,
            exp_cmd_sn: 1,
            window: 8,
            login_stage: (1, 3, true),
            lost: false,
        };
        while world.transmit() {}
        if mode & 64 == 0 {
            world.log_in(mode);
        }
        world
    }

    /// A login as it should be; with a secret, a target that wants none.
    fn log_in(&mut self, mode: u8) {
        let (stage, _, _) = self.login_stage;
        if stage == 0 {
            let mut keys = Vec::new();
            text::push(&mut keys, "AuthMethod", "None");
            self.send(login(true, 0, 1), &Vec::new(), &keys);
            while self.transmit() {}
            self.send(login(true, 0, 1), &Vec::new(), &[]);
            while self.transmit() {}
        }
        let mut keys = Vec::new();
        if mode & 128 != 0 {
            text::push(&mut keys, "MaxRecvDataSegmentLength", "512");
        }
        text::push(&mut keys, "InitialR2T", if mode & 2 != 0 { "Yes" } else { "No" });
        self.send(login(true, 1, 3), &Vec::new(), &keys);
        while self.transmit() {}
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Submit { write, len } => self.submit(write, u32::from(len) % 9000),
            Operation::Abort { which } => {
                let live: Vec<_> = self.places.iter().flatten().map(|live| live.task).collect();
                if let Some(which) = usize::from(which).checked_rem(live.len()) {
                    self.session.abort(live[which]);
                    self.handle_events();
                }
            }
            Operation::LogOut => {
                self.session.logout(self.now);
                self.handle_events();
            }
            Operation::Login { flags, status, keys, changes } => {
                let mut data = Vec::new();
                keys.iter().take(12).for_each(|(key, value)| push_key(&mut data, *key, *value));
                let (stage, next, _) = self.login_stage;
                let transit = flags & 1 != 0;
                let response = LoginResponse {
                    transit,
                    more: flags & 2 != 0,
                    current_stage: if flags & 4 != 0 { flags >> 4 & 3 } else { stage },
                    next_stage: if transit { next } else { 0 },
                    version_active: 0,
                    isid: [0x80, 0, 0, 0, 0, 1],
                    tsih: 1,
                    itt: 0xff01,
                    status: if status < 200 { 0 } else { u16::from(status) << 2 },
                };
                self.send(response.encode(), &changes, &data);
            }
            Operation::DataIn { which, len, flags, changes } => {
                self.data_in(which, len, flags, &changes);
            }
            Operation::Ask { which, len, flags, changes } => {
                self.ask(which, len, flags, &changes);
            }
            Operation::Respond { which, status, flags, residual, sense, changes } => {
                let Some(index) = usize::from(which).checked_rem(self.known.len()) else { return };
                let known = self.known.remove(index);
                let response = ScsiResponse {
                    overflow: flags & 1 != 0,
                    underflow: flags & 2 != 0,
                    response: flags >> 2 & 1,
                    status,
                    itt: known.itt,
                    exp_data_sn: known.data_sn,
                    residual: u32::from(residual),
                };
                let mut data = u16::from(sense).to_be_bytes().to_vec();
                data.resize(usize::from(sense), 0x70);
                self.send(response.encode(), &changes, &data);
            }
            Operation::Managed { which, code, changes } => {
                let Some(index) = usize::from(which).checked_rem(self.aborts.len()) else { return };
                let Some(itt) = self.aborts.remove(index) else { return };
                let code = match code % 4 {
                    0 | 1 => TaskResponseCode::Complete,
                    2 => TaskResponseCode::NoTask,
                    _ => TaskResponseCode::Rejected,
                };
                self.send(TaskResponse { code, itt }.encode(), &changes, &[]);
            }
            Operation::Nop { answer, len, changes } => {
                let (itt, ttt) = if answer { (0xff04, NO_TAG) } else { (NO_TAG, 77) };
                let nop = NopIn { lun: LunField::default(), itt, ttt };
                self.send(nop.encode(), &changes, &vec![1; usize::from(len) % 2100]);
            }
            Operation::Announce { event, changes } => {
                let event = match event % 6 {
                    0 => AsyncEvent::Sense,
                    1 => AsyncEvent::LogoutRequested,
                    2 => AsyncEvent::ConnectionDropped,
                    3 => AsyncEvent::SessionDropped,
                    4 => AsyncEvent::Renegotiate,
                    _ => AsyncEvent::Other(event),
                };
                let lun = LunField::default();
                let message =
                    AsyncMessage { event, lun, parameter1: 1, parameter2: 1, parameter3: 1 };
                self.send(message.encode(), &changes, &[]);
            }
            Operation::Reject { changes } => {
                let reject = Reject { reason: RejectReason::Protocol };
                self.send(reject.encode(), &changes, &[0; 48]);
            }
            Operation::Text { flags, len, changes } => {
                let (last, more) = (flags & 1 != 0, flags & 2 != 0);
                let ttt = if last && !more { NO_TAG } else { 5 };
                let mut data = Vec::new();
                text::push(&mut data, "TargetName", "iqn.x");
                text::push(&mut data, "TargetAddress", "[::1]:3260,1");
                data.resize(usize::from(len) % 2049, b'a');
                let response = TextResponse { last, more, itt: 0xff03, ttt };
                self.send(response.encode(), &changes, &data);
            }
            Operation::LoggedOut { changes } => {
                let response =
                    LogoutResponse { response: 0, itt: 0xff02, time2wait_s: 0, time2retain_s: 0 };
                self.send(response.encode(), &changes, &[]);
            }
            Operation::Raw { bytes, opcode, len } => {
                let mut bhs = Bhs([0; 48]);
                bhs.0[8..24].copy_from_slice(&bytes);
                (bhs.0[0], bhs.0[1]) = (opcode & 0x3f, bytes[0]);
                self.send(bhs, &Vec::new(), &vec![b'='; usize::from(len) % 4096]);
            }
            Operation::Transmit { count } => {
                (0..=count).take_while(|_| self.transmit()).for_each(drop);
            }
            Operation::Window { more } => self.window = u32::from(more),
            Operation::Pass { ms } => {
                self.now += Duration::from_millis(u64::from(ms));
                self.lost = self.session.handle_timeout(self.now).is_err();
            }
        }
    }

    fn submit(&mut self, write: bool, len: u32) {
        if self.session.capacity() == 0 {
            return;
        }
        let (read_len, write_len) = if write { (0, len) } else { (len, 0) };
        let lun = LunField::from_number(0);
        let command = Command { lun, cdb: [0; 16], read_len, write_len };
        let task = self.session.submit(self.now, command);
        let place = &mut self.places[task.index()];
        assert!(place.is_none(), "the place of {task:?} is taken");
        *place = Some(Live { task, read_len, write_len, received: 0, asked: Vec::new() });
    }

    fn data_in(&mut self, which: u8, len: u16, flags: u8, changes: &Changes) {
        let Some(index) = usize::from(which).checked_rem(self.known.len()) else { return };
        let known = &mut self.known[index];
        let left = known.read_len.saturating_sub(known.received);
        let len = u32::from(len).min(left.saturating_add(u32::from(flags >> 7))).min(2048);
        let pdu = DataIn {
            last: flags & 1 != 0,
            has_status: flags & 2 != 0,
            overflow: flags & 4 != 0,
            underflow: flags & 8 != 0,
            status: flags & 0x10,
            itt: known.itt,
            data_sn: known.data_sn,
            offset: known.received,
            residual: u32::from(flags),
        };
        known.received += len;
        known.data_sn += 1;
        if pdu.has_status {
            self.known.remove(index);
        }
        self.send(pdu.encode(), changes, &vec![0xda; len as usize]);
    }

    fn ask(&mut self, which: u8, len: u16, flags: u8, changes: &Changes) {
        let Some(index) = usize::from(which).checked_rem(self.known.len()) else { return };
        let known = &mut self.known[index];
        let left = known.write_len.saturating_sub(known.asked);
        let len = u32::from(len).min(left.saturating_add(u32::from(flags >> 7)));
        let (lun, itt, r2t_sn, offset) = (known.lun, known.itt, known.r2t_sn, known.asked);
        let r2t = R2t { lun, itt, ttt: 100 + r2t_sn, r2t_sn, offset, len };
        known.asked += len;
        known.r2t_sn += 1;
        self.send(r2t.encode(), changes, &[]);
    }

    fn send(&mut self, bhs: Bhs, changes: &Changes, data: &[u8]) {
        let mut bhs = bhs.with_data_len(data.len() as u32);
        bhs.stamp_stat_sn(Serial(self.stat_sn));
        bhs.stamp_window(
            Serial(self.exp_cmd_sn),
            Serial(self.exp_cmd_sn.wrapping_add(self.window)),
        );
        change(&mut bhs, changes);
        let has_status = match bhs.opcode() {
            Some(Opcode::R2t) | None => false,
            Some(Opcode::DataIn) => DataIn::parse(&bhs).has_status,
            Some(Opcode::NopIn) => bhs.itt() != NO_TAG,
            Some(_) => true,
        };
        if has_status {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
        if !self.session.wants_input() {
            return;
        }
        // What it asks for may be sent from now on.
        if bhs.opcode() == Some(Opcode::R2t) {
            let R2t { itt, ttt, offset, len, .. } = R2t::parse(&bhs);
            if let Some(live) = self.place_of(itt) {
                live.asked.push((ttt, offset, len));
            }
        }
        if self.session.handle_header(self.now, &bhs).is_err() {
            self.lost = true;
            return;
        }
        self.handle_events();
        let len = bhs.data_len() as usize;
        let lost = match self.session.placement() {
            Placement::Control => self.session.handle_control(&padded(data, len)).is_err(),
            Placement::Task { task, offset, len: placed } => {
                let live = self.places[task.index()].as_mut().expect("data for a gone command");
                assert!(placed as usize <= len);
                assert_eq!(offset, live.received, "data is placed with a gap");
                live.received += placed;
                assert!(live.received <= live.read_len, "data is placed past the buffer");
                self.session.handle_data();
                false
            }
            Placement::Discard => {
                self.session.handle_data();
                false
            }
        };
        self.lost |= lost;
        self.handle_events();
    }

    /// The live command with this tag, whose low half is its place.
    fn place_of(&mut self, itt: u32) -> Option<&mut Live> {
        self.places.get_mut((itt & 0xffff) as usize)?.as_mut()
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Completed { task, end } => {
                    let live = self.places[task.index()].take().expect("a command ended twice");
                    if let TaskEnd::Status { received, sent, sense, .. } = end {
                        assert_eq!(received, live.received, "other bytes are told than came");
                        assert!(sent <= live.write_len && sense.len() <= 65535);
                    }
                }
                Event::LoggedOut | Event::LoginFailed(_) => self.lost = true,
                Event::Found(targets) => assert!(targets.len() <= 4096),
                Event::LoggedIn | Event::AbortFailed(_) | Event::Ending => {}
            }
        }
    }

    /// Takes one PDU, as the target; false when there is none.
    fn transmit(&mut self) -> bool {
        let Some(transmit) = self.session.poll_transmit() else { return false };
        let (bhs, len) = (transmit.header, transmit.header.data_len());
        let params = self.session.params().clone();
        match &transmit.payload {
            Payload::None => assert_eq!(len, 0),
            Payload::Control(data) => assert_eq!(len as usize, data.len()),
            Payload::Task { task, offset, len: part } => {
                assert_eq!(len, *part);
                assert!(len > 0 && len <= params.max_send_len, "{len} bytes in one PDU");
                let live = self.places[task.index()].as_ref().expect("data of a gone command");
                let end = offset.checked_add(len).expect("no end");
                assert!(end <= live.write_len, "sends what is not there");
                if bhs.opcode() == Some(Opcode::DataOut) {
                    let DataOut { ttt, offset: told, .. } = DataOut::parse(&bhs);
                    assert_eq!(told, *offset);
                    let asked = live.asked.iter().any(|(tag, at, len)| {
                        *tag == ttt
                            && at <= offset
                            && u64::from(end) <= u64::from(*at) + u64::from(*len)
                    });
                    let unasked = ttt == NO_TAG && !params.initial_r2t;
                    assert!(asked || (unasked && end <= params.first_burst_len), "not asked for");
                } else {
                    assert!(params.immediate_data && end <= params.first_burst_len);
                }
            }
        }
        match bhs.opcode() {
            Some(Opcode::ScsiCommand) => {
                let command = ScsiCommand::parse(&bhs);
                let (itt, lun, expected) = (command.itt, command.lun, command.expected_len);
                let (read_len, write_len) =
                    if command.write { (0, expected) } else { (expected, 0) };
                assert!(self.place_of(itt).is_some(), "sends a command that has ended");
                let asked = if command.last { len } else { params.first_burst_len.min(write_len) };
                let known = Known {
                    itt,
                    lun,
                    read_len,
                    write_len,
                    data_sn: 0,
                    r2t_sn: 0,
                    received: 0,
                    asked,
                };
                self.known.push(known);
                self.exp_cmd_sn = bhs.cmd_sn().next().0;
            }
            Some(Opcode::TaskRequest) => self.aborts.push_back(bhs.itt()),
            Some(Opcode::LoginRequest) => {
                let stages = bhs.0[1];
                self.login_stage = (stages >> 2 & 3, stages & 3, stages & 0x80 != 0);
                self.exp_cmd_sn = bhs.cmd_sn().0;
            }
            _ => {}
        }
        self.handle_events();
        true
    }

    /// The target says nothing more, but takes everything: the session gives it up.
    fn fall_silent(&mut self) {
        for _ in 0..10_000 {
            while self.transmit() {}
            let Some(at) = self.session.next_timeout() else {
                panic!("waits for ever with {} commands", self.places.iter().flatten().count());
            };
            self.now = self.now.max(at);
            if self.session.handle_timeout(self.now).is_err() {
                return;
            }
            self.handle_events();
            if self.lost {
                return;
            }
        }
        panic!("a silent target is not given up");
    }
}

fn login(transit: bool, current_stage: u8, next_stage: u8) -> Bhs {
    let isid = [0x80, 0, 0, 0, 0, 1];
    let (more, version_active, tsih, itt, status) = (false, 0, 1, 0xff01, 0);
    LoginResponse {
        transit,
        more,
        current_stage,
        next_stage,
        version_active,
        isid,
        tsih,
        itt,
        status,
    }
    .encode()
}
