//! A scripted iSCSI target: it answers at once what it is not told to hold, to refuse or to ignore.

use alloc::{
    collections::{BTreeMap, VecDeque},
    string::{String, ToString},
    vec::Vec,
};

use core::mem;

use netraid_block::{Portal, SgList};
use netraid_iscsi_proto::{
    negotiation::{DigestPolicy, Negotiation, SessionType, Wishes},
    pdu::{
        AsyncEvent, AsyncMessage, Bhs, DataIn, DataOut, LoginRequest, LoginResponse, LogoutRequest,
        LogoutResponse, LunField, NO_TAG, NopIn, NopOut, Opcode, R2t, ScsiCommand, ScsiResponse,
        TaskRequest, TaskResponse, TaskResponseCode,
    },
    serial::Serial,
    text,
};

use super::medium::{Answer, Isid, Medium};

/// Commands that the target takes at once.
const WINDOW: u32 = 128;

/// What becomes of who comes to a portal.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Door {
    Open,
    /// Nobody listens.
    Refuses,
    /// Nothing is heard of the attempt to connect.
    Lost,
    /// Who connects hears nothing.
    Mute,
    /// A login ends with this status.
    Denies(u16),
    /// A login is sent elsewhere.
    Redirects {
        to: String,
        permanent: bool,
    },
}

/// What all connections share.
pub(super) struct Target {
    pub(super) medium: Medium,
    pub(super) doors: BTreeMap<String, Door>,
    /// Portal group by portal; 1 where none is said.
    pub(super) groups: BTreeMap<String, u16>,
    /// Commands with these operation codes wait.
    pub(super) holds: Vec<u8>,
    /// How often commands with an operation code end so, instead of being carried out.
    pub(super) refusals: Vec<(u8, u32, Answer)>,
    /// How aborts are answered, where they are.
    pub(super) aborts: Option<TaskResponseCode>,
    pub(super) answers_logout: bool,
    /// Nothing is read from any connection.
    pub(super) is_silent: bool,
    /// The data of writes is asked for, so much at a time, where the target does so by itself.
    pub(super) asks: Option<u32>,
    /// Who is to log in proves himself.
    pub(super) wants_chap: bool,
    /// Logins by anything else than MD5 are refused after the proof.
    pub(super) md5_only: bool,
    /// Connections that the initiator has left, and whose commands may go on.
    pub(super) orphans: Vec<Conn>,
    /// Every login that came through: whose, where.
    pub(super) logins: Vec<(Isid, String)>,
}

impl Target {
    pub(super) fn new(medium: Medium) -> Self {
        Self {
            medium,
            doors: BTreeMap::new(),
            groups: BTreeMap::new(),
            holds: Vec::new(),
            refusals: Vec::new(),
            aborts: Some(TaskResponseCode::Complete),
            answers_logout: true,
            is_silent: false,
            asks: None,
            wants_chap: false,
            md5_only: false,
            orphans: Vec::new(),
            logins: Vec::new(),
        }
    }

    pub(super) fn door(&self, portal: &Portal) -> Door {
        self.doors.get(&portal.host).cloned().unwrap_or(Door::Open)
    }

    pub(super) fn refuse(&mut self, opcode: u8, times: u32, answer: Answer) {
        self.refusals.push((opcode, times, answer));
    }

    /// Carries out a command, or refuses it.
    fn execute(&mut self, isid: Isid, task: &Task) -> Answer {
        let opcode = task.cdb[0];
        if let Some(refusal) = self.refusals.iter_mut().find(|one| one.0 == opcode && one.1 > 0) {
            refusal.1 -= 1;
            return refusal.2.clone();
        }
        self.medium.execute(isid, &task.cdb, &task.data)
    }

    /// What was left under way in connections that the initiator has left is carried out.
    pub(super) fn carry_out_orphans(&mut self) {
        for mut conn in mem::take(&mut self.orphans) {
            for task in mem::take(&mut conn.tasks) {
                // What is told by an answer that never arrives, it would tell nobody.
                let told = self.medium.attentions.get(&conn.isid);
                let tells = told.is_some_and(|told| !told.is_empty());
                if task.is_whole() && !task.is_carried_out && !tells {
                    self.medium.execute(conn.isid, &task.cdb, &task.data);
                }
            }
        }
    }
}

/// A command that has come.
pub(super) struct Task {
    pub(super) itt: u32,
    pub(super) cdb: [u8; 16],
    /// What it has sent so far.
    pub(super) data: Vec<u8>,
    /// What it is to send.
    wants: u32,
    /// What it is to read.
    expected: u32,
    /// Bytes that were asked for, and how often.
    asked: u32,
    r2t_sn: u32,
    /// Bytes that were sent to it, and in how many PDUs.
    sent: u32,
    data_sn: u32,
    /// It waits, whatever is held.
    pub(super) is_stuck: bool,
    /// It was carried out, and not answered.
    pub(super) is_carried_out: bool,
}

impl Task {
    pub(super) fn is_whole(&self) -> bool {
        self.data.len() == self.wants as usize
    }
}

/// A connection as the target has it.
pub(super) struct Conn {
    pub(super) portal: Portal,
    group: u16,
    pub(super) isid: Isid,
    pub(super) is_full: bool,
    /// The end of the session was asked for.
    pub(super) is_ending: bool,
    negotiation: Negotiation,
    stat_sn: Serial,
    exp_cmd_sn: Serial,
    input: VecDeque<(Bhs, Vec<u8>)>,
    pub(super) tasks: Vec<Task>,
    pub(super) output: VecDeque<(Bhs, Vec<u8>)>,
    /// Aborts that were not answered.
    aborts: Vec<TaskRequest>,
    /// The algorithm of the proof that is asked for.
    algorithm: u32,
}

/// What a connection tells who holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum News {
    Nothing,
    /// A session has begun.
    LoggedIn,
}

impl Conn {
    pub(super) fn new(portal: Portal, group: u16, asks: bool) -> Self {
        let wishes = Wishes {
            first_burst_len: 1 << 20,
            initial_r2t: true,
            immediate_data: !asks,
            header_digest: DigestPolicy::Never,
            data_digest: DigestPolicy::Never,
            ..Wishes::default()
        };
        Self {
            portal,
            group,
            isid: [0; 6],
            is_full: false,
            is_ending: false,
            negotiation: Negotiation::new(wishes),
            stat_sn: Serial(1),
            exp_cmd_sn: Serial(1),
            input: VecDeque::new(),
            tasks: Vec::new(),
            output: VecDeque::new(),
            aborts: Vec::new(),
            algorithm: 0,
        }
    }

    /// Whether a login of `other` ends this session.
    pub(super) fn is_replaced_by(&self, other: &Self) -> bool {
        self.is_full && self.isid == other.isid && self.group == other.group
    }

    pub(super) fn push_input(&mut self, header: Bhs, body: &SgList) {
        self.input.push_back((header, body.to_contiguous().to_vec()));
    }

    /// Reads what has come, and answers what is to be answered.
    pub(super) fn serve(&mut self, target: &mut Target) -> News {
        let mut news = News::Nothing;
        if target.is_silent || target.door(&self.portal) == Door::Mute {
            return news;
        }
        while let Some((header, body)) = self.input.pop_front() {
            if self.take(target, &header, &body) == News::LoggedIn {
                news = News::LoggedIn;
            }
        }
        let mut at = 0;
        while at < self.tasks.len() {
            if target.holds.contains(&self.tasks[at].cdb[0]) || self.tasks[at].is_stuck {
                at += 1;
            } else if self.tasks[at].is_whole() {
                self.carry_out(target, at);
            } else {
                let rest = self.tasks[at].wants - self.tasks[at].asked;
                let len = rest.min(target.asks.unwrap_or(1 << 18));
                if len > 0 && self.tasks[at].asked as usize == self.tasks[at].data.len() {
                    self.ask(at, len);
                }
                at += 1;
            }
        }
        news
    }

    /// Carries out and answers a command that waits.
    pub(super) fn carry_out(&mut self, target: &mut Target, at: usize) {
        let answer = target.execute(self.isid, &self.tasks[at]);
        self.answer(at, answer);
    }

    /// Answers a command that waits.
    pub(super) fn answer(&mut self, at: usize, answer: Answer) {
        let task = self.tasks.remove(at);
        let Answer { status, sense, data } = answer;
        let rest = data.get(task.sent as usize..).unwrap_or_default();
        let rest = &rest[..rest.len().min((task.expected - task.sent) as usize)];
        if !rest.is_empty() {
            let residual = task.expected - task.sent - u32::try_from(rest.len()).unwrap();
            let pdu = DataIn {
                last: true,
                has_status: true,
                overflow: false,
                underflow: residual > 0,
                status,
                itt: task.itt,
                data_sn: task.data_sn,
                offset: task.sent,
                residual,
            };
            return self.send(pdu.encode(), rest.to_vec(), true);
        }
        let sense = match u16::try_from(sense.len()).unwrap() {
            0 => Vec::new(),
            len => [len.to_be_bytes().to_vec(), sense].concat(),
        };
        let residual = if status == 0 { task.expected - task.sent } else { 0 };
        let pdu = ScsiResponse {
            overflow: false,
            underflow: residual > 0,
            response: 0,
            status,
            itt: task.itt,
            exp_data_sn: task.data_sn,
            residual,
        };
        self.send(pdu.encode(), sense, true);
    }

    /// Sends a part of what a command reads.
    pub(super) fn send_part(&mut self, at: usize, part: &[u8]) {
        let task = &mut self.tasks[at];
        let pdu = DataIn {
            last: true,
            has_status: false,
            overflow: false,
            underflow: false,
            status: 0,
            itt: task.itt,
            data_sn: task.data_sn,
            offset: task.sent,
            residual: 0,
        };
        task.data_sn += 1;
        task.sent += u32::try_from(part.len()).unwrap();
        self.send(pdu.encode(), part.to_vec(), false);
    }

    /// Asks for a part of what a command writes.
    pub(super) fn ask(&mut self, at: usize, len: u32) {
        let task = &mut self.tasks[at];
        let (itt, ttt, r2t_sn, offset) = (task.itt, 1, task.r2t_sn, task.asked);
        task.r2t_sn += 1;
        task.asked += len;
        let pdu = R2t { lun: LunField::from_number(0), itt, ttt, r2t_sn, offset, len };
        self.send(pdu.encode(), Vec::new(), false);
    }

    /// Asks for the end of the session.
    pub(super) fn ask_for_logout(&mut self) {
        self.is_ending = true;
        let lun = LunField::from_number(0);
        let event = AsyncEvent::LogoutRequested;
        let pdu = AsyncMessage { event, lun, parameter1: 0, parameter2: 0, parameter3: 5 };
        self.send(pdu.encode(), Vec::new(), true);
    }

    fn send(&mut self, mut header: Bhs, body: Vec<u8>, counts: bool) {
        header.stamp_stat_sn(self.stat_sn);
        header.stamp_window(self.exp_cmd_sn, self.exp_cmd_sn.plus(WINDOW - 1));
        if counts {
            self.stat_sn = self.stat_sn.next();
        }
        let header = header.with_data_len(u32::try_from(body.len()).unwrap());
        self.output.push_back((header, body));
    }

    fn take(&mut self, target: &mut Target, header: &Bhs, body: &[u8]) -> News {
        let opcode = header.opcode().unwrap();
        if opcode == Opcode::LoginRequest {
            self.exp_cmd_sn = header.cmd_sn();
            return self.log_in(target, &LoginRequest::parse(header), body);
        }
        assert!(self.is_full, "{opcode:?} before the login");
        if opcode == Opcode::ScsiCommand {
            assert_eq!(header.cmd_sn(), self.exp_cmd_sn, "commands come in order");
            self.exp_cmd_sn = self.exp_cmd_sn.next();
            self.take_command(&ScsiCommand::parse(header), body);
        } else if opcode == Opcode::DataOut {
            let pdu = DataOut::parse(header);
            if let Some(task) = self.tasks.iter_mut().find(|task| task.itt == pdu.itt) {
                assert_eq!(pdu.offset as usize, task.data.len());
                task.data.extend_from_slice(body);
            }
        } else if opcode == Opcode::TaskRequest {
            self.abort(target, &TaskRequest::parse(header));
        } else if opcode == Opcode::LogoutRequest {
            if target.answers_logout {
                let itt = LogoutRequest::parse(header).itt;
                let (response, time2wait_s, time2retain_s) = (0, 0, 0);
                let pdu = LogoutResponse { response, itt, time2wait_s, time2retain_s };
                self.send(pdu.encode(), Vec::new(), true);
            }
        } else if opcode == Opcode::NopOut {
            let itt = NopOut::parse(header).itt;
            let pdu = NopIn { lun: LunField::from_number(0), itt, ttt: NO_TAG };
            self.send(pdu.encode(), Vec::new(), true);
        } else {
            panic!("{opcode:?} is not expected");
        }
        News::Nothing
    }

    fn take_command(&mut self, command: &ScsiCommand, body: &[u8]) {
        let expected_len = command.expected_len;
        self.tasks.push(Task {
            itt: command.itt,
            cdb: command.cdb,
            data: body.to_vec(),
            wants: if command.write { expected_len } else { 0 },
            expected: if command.read { expected_len } else { 0 },
            asked: u32::try_from(body.len()).unwrap(),
            r2t_sn: 0,
            sent: 0,
            data_sn: 0,
            is_stuck: false,
            is_carried_out: false,
        });
    }

    fn abort(&mut self, target: &Target, request: &TaskRequest) {
        let Some(code) = target.aborts else { return self.aborts.push(*request) };
        if code == TaskResponseCode::Complete {
            self.tasks.retain(|task| task.itt != request.referenced_itt);
        }
        let pdu = TaskResponse { code, itt: request.itt };
        self.send(pdu.encode(), Vec::new(), true);
    }

    /// Answers the aborts that were not answered.
    pub(super) fn answer_aborts(&mut self, target: &Target) {
        for request in mem::take(&mut self.aborts) {
            self.abort(target, &request);
        }
    }

    fn log_in(&mut self, target: &mut Target, request: &LoginRequest, body: &[u8]) -> News {
        self.isid = request.isid;
        let mut out = Vec::new();
        match target.door(&self.portal) {
            Door::Denies(status) => {
                self.answer_login(request, false, status, out);
                return News::Nothing;
            }
            Door::Redirects { to, permanent } => {
                text::push(&mut out, "TargetAddress", &to);
                self.answer_login(request, false, if permanent { 0x0102 } else { 0x0101 }, out);
                return News::Nothing;
            }
            Door::Open | Door::Refuses | Door::Lost | Door::Mute => {}
        }
        let pairs = text::parse(body).unwrap();
        if pairs.iter().any(|(key, _)| *key == "InitiatorName") {
            text::push(&mut out, "TargetPortalGroupTag", &self.group.to_string());
        }
        if request.current_stage == 0 {
            self.prove(target, request, &pairs, out);
            return News::Nothing;
        }
        for (key, value) in pairs {
            if !["InitiatorName", "TargetName", "SessionType"].contains(&key) {
                self.negotiation.answer(key, value, SessionType::Normal, &mut out).unwrap();
            }
        }
        self.negotiation.declare(&mut out);
        self.answer_login(request, true, 0, out);
        self.is_full = true;
        target.logins.push((self.isid, self.portal.host.clone()));
        target.medium.greet(self.isid);
        News::LoggedIn
    }

    fn prove(
        &mut self,
        target: &Target,
        request: &LoginRequest,
        pairs: &[(&str, &str)],
        mut out: Vec<u8>,
    ) {
        let (mut transit, mut status) = (false, 0);
        if text::value(pairs, "AuthMethod").is_some() {
            text::push(&mut out, "AuthMethod", if target.wants_chap { "CHAP" } else { "None" });
        } else if let Some(list) = text::value(pairs, "CHAP_A") {
            let first = list.split(',').next().and_then(text::number);
            self.algorithm = first.unwrap();
            text::push(&mut out, "CHAP_A", &self.algorithm.to_string());
            text::push(&mut out, "CHAP_I", "1");
            text::push(&mut out, "CHAP_C", "0x0102030405060708");
        } else {
            assert!(text::value(pairs, "CHAP_R").is_some());
            transit = true;
            status = if target.md5_only && self.algorithm != 5 { 0x0200 } else { 0 };
        }
        self.answer_login(request, transit, status, out);
    }

    fn answer_login(&mut self, request: &LoginRequest, transit: bool, status: u16, out: Vec<u8>) {
        let pdu = LoginResponse {
            transit,
            more: false,
            current_stage: request.current_stage,
            next_stage: if transit { request.next_stage } else { 0 },
            version_active: 0,
            isid: request.isid,
            tsih: 1,
            itt: request.itt,
            status,
        };
        self.send(pdu.encode(), out, true);
    }
}
