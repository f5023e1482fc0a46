//! What peers send, and what they take.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
};

use netraid_iscsi_proto::{
    chap::Algorithm,
    framing::{Broken, Side as _},
    machine::Placement,
    pdu::{
        Bhs, DataIn, DataOut, LoginRequest, LunField, NO_TAG, Opcode, R2t, ScsiCommand,
        TaskFunction, TaskRequest, TaskResponse, TaskResponseCode,
    },
    serial::Serial,
    target::{ConnectionId, Link},
    text,
};
use netraid_node::Service;

use super::{
    CHALLENGE, CONNECTIONS_MAX, Command, Served, World,
    outside::{self, CopyOrder, Flying, Reach},
    requests::{login, write_cdb},
};
use crate::{
    pattern,
    wire::{Changes, INITIATOR, TARGET, change, credentials, padded},
};

/// What the peer knows of an R2T, or of data that it may send unasked.
pub(super) struct Asked {
    lun: LunField,
    itt: u32,
    ttt: u32,
    at: u32,
    end: u32,
    data_sn: u32,
}

#[derive(Default)]
pub(super) struct Peer {
    pub(super) cmd_sn: u32,
    pub(super) max_cmd_sn: Option<Serial>,
    pub(super) next_itt: u32,
    pub(super) asked: VecDeque<Asked>,
    /// Generations that a task management function with this tag names, and requests of copies that
    /// it waits for; none when two had it.
    pub(super) managing: BTreeMap<u32, Option<Vec<u64>>>,
    /// By tag: data that is no pattern.
    brought: BTreeMap<u32, (Vec<u8>, Option<CopyOrder>)>,
}

impl Peer {
    /// What comes with the command of this tag.
    pub(super) fn bring(&mut self, tag: u32, data: Vec<u8>, copy: Option<CopyOrder>) {
        self.brought.insert(tag, (data, copy));
    }

    fn byte(&self, tag: u32, at: usize) -> u8 {
        match self.brought.get(&tag) {
            Some((data, _)) => data.get(at).copied().unwrap_or_default(),
            None => pattern(tag, at),
        }
    }
}

impl World {
    pub(super) fn connect(&mut self, from: u8) {
        if self.served.len() >= CONNECTIONS_MAX {
            return;
        }
        let peer = SocketAddr::from(([192, 0, 2, from % 3], 5));
        let link = Link::new(peer, SocketAddr::from(([127, 0, 0, 1], 3260)));
        let seat = self.shared.node.borrow_mut().open(link);
        self.shared.gather_wakes();
        let Some(seat) = seat else { return };
        let id = seat.id();
        let (setup, pool) = (self.setup.clone(), self.pool.clone());
        let service = Service::new(self.now, seat, setup, CHALLENGE, pool);
        let reach = Reach::new(self.shared.clone(), id);
        let peer = Peer { cmd_sn: 1, ..Peer::default() };
        self.served.push(Served { id, service, reach, gone: false, is_broken: false, peer });
    }

    /// A whole login as it should be. Who is judged late waits for that, or goes on at once.
    pub(super) fn log_in(&mut self, at: u8, isid: u8, sizes: u8, tsih: u8) {
        let mut first = Vec::new();
        text::push(&mut first, "InitiatorName", INITIATOR);
        text::push(&mut first, "TargetName", TARGET);
        let mut keys = Vec::new();
        if sizes & 1 != 0 {
            text::push(&mut keys, "MaxRecvDataSegmentLength", "512");
        }
        text::push(&mut keys, "InitialR2T", if sizes & 2 != 0 { "Yes" } else { "No" });
        text::push(&mut keys, "ImmediateData", if sizes & 4 != 0 { "No" } else { "Yes" });
        text::push(&mut keys, "MaxOutstandingR2T", if sizes & 8 != 0 { "1" } else { "3" });
        text::push(&mut keys, "HeaderDigest", if sizes & 16 != 0 { "CRC32C" } else { "None" });
        if sizes & 32 != 0 {
            text::push(&mut keys, "SessionType", "Discovery");
        }
        let rounds: Vec<(LoginRequest, Vec<u8>)> = if !self.setup.chap.is_empty() {
            text::push(&mut first, "AuthMethod", "CHAP");
            let algorithm = Algorithm::PREFERENCE[usize::from(sizes >> 7)];
            let answer = algorithm.answer(7, &credentials().secret, &CHALLENGE.bytes);
            let (mut second, mut third) = (Vec::new(), Vec::new());
            text::push(&mut second, "CHAP_A", &algorithm.number().to_string());
            text::push(&mut third, "CHAP_N", "joe");
            text::push(&mut third, "CHAP_R", &text::to_hex(&answer));
            vec![
                (login(false, false, 0, 0), first),
                (login(false, false, 0, 0), second),
                (login(true, false, 0, 1), third),
                (login(true, false, 1, 3), keys),
            ]
        } else {
            first.extend(keys);
            vec![(login(true, false, 1, 3), first)]
        };
        let isid_byte = isid;
        for (request, text) in rounds {
            let isid = [0x80, 0, 0, 0, 0, isid % 4];
            let request = LoginRequest { isid, tsih: u16::from(tsih) % 4, ..request };
            self.send(at, request.encode(), &Vec::new(), Some(&text));
            if isid_byte & 0x40 == 0 {
                self.admit(at, 0);
                self.wake_own(at);
            }
            if let Some(index) = self.index(at) {
                while self.transmit(index) {}
            }
        }
    }

    /// What woke a connection that is about to be judged is heard of.
    fn wake_own(&mut self, at: u8) {
        if !self.shared.setting.get().judges_late {
            return;
        }
        let Some(index) = self.index(at) else { return };
        let id = self.served[index].id;
        let which = self.shared.wakes.borrow().iter().position(|woken| *woken == id);
        if let Some(which) = which {
            self.wake(which);
        }
    }

    pub(super) fn command(&mut self, command: &Command) {
        let Some(index) = self.index(command.at) else { return };
        let itt = self.itt(command.at);
        let (lba, blocks) = (command.lba, command.blocks % 14);
        let (mut cdb, moved, write) = write_cdb(command.kind, lba, blocks, command.flags);
        for (at, value) in command.cdb_changes.iter().take(2) {
            cdb[usize::from(*at) % 16] = *value;
        }
        let expected = command.expected.map_or(moved, u32::from);
        let first_burst = 1536.min(expected);
        let len = if write { u32::from(command.len).min(first_burst).min(2048) } else { 0 };
        let last = !write || command.flags & 0x80 == 0;
        let lun = LunField::from_number(u16::from(command.lun % 3));
        let request = ScsiCommand {
            immediate: command.flags & 0x40 != 0,
            last,
            read: !write && expected > 0,
            write,
            attribute: command.flags >> 3 & 7,
            lun,
            itt,
            expected_len: expected,
            cdb,
        };
        if !last {
            let asked = Asked { lun, itt, ttt: NO_TAG, at: len, end: first_burst, data_sn: 0 };
            self.served[index].peer.asked.push_back(asked);
        }
        self.send(command.at, request.encode().with_data_len(len), &command.changes, None);
    }

    /// Sends some of the data that was asked for.
    pub(super) fn answer(&mut self, at: u8, which: u8, len: u16, changes: &Changes) {
        let Some(index) = self.index(at) else { return };
        let asked = &mut self.served[index].peer.asked;
        let Some(which) = usize::from(which).checked_rem(asked.len()) else { return };
        let one = &mut asked[which];
        let left = one.end.saturating_sub(one.at);
        // Often all that is left.
        let len = if len & 1 != 0 { left } else { left.min(u32::from(len)) }.min(2048);
        let last = len == left;
        let Asked { lun, itt, ttt, at: offset, data_sn, .. } = *one;
        one.at += len;
        one.data_sn += 1;
        if last {
            asked.remove(which);
        }
        let pdu = DataOut { last, lun, itt, ttt, data_sn, offset };
        self.send(at, pdu.encode().with_data_len(len), changes, None);
    }

    pub(super) fn manage(&mut self, at: u8, function: u8, lun: u8, back: u8, changes: &Changes) {
        let itt = self.itt(at);
        let lun = LunField::from_number(u16::from(lun % 3));
        let function = match function % 10 {
            0 => TaskFunction::AbortTask,
            1 => TaskFunction::AbortTaskSet,
            2 => TaskFunction::ClearAca,
            3 => TaskFunction::ClearTaskSet,
            4 | 5 => TaskFunction::LogicalUnitReset,
            6 => TaskFunction::TargetWarmReset,
            7 => TaskFunction::TargetColdReset,
            8 => TaskFunction::TaskReassign,
            _ => TaskFunction::Unknown(99),
        };
        let referenced_itt = itt.saturating_sub(u32::from(back % 8));
        let immediate = back & 0x80 == 0;
        let ref_cmd_sn = 0;
        let request = TaskRequest { immediate, function, lun, itt, referenced_itt, ref_cmd_sn };
        self.send(at, request.encode(), changes, None);
    }

    /// Sends a PDU with some bytes changed. Without `text` its data segment is as long as its
    /// header says, and of the pattern.
    pub(super) fn send(&mut self, at: u8, bhs: Bhs, changes: &Changes, text: Option<&[u8]>) {
        let Some(index) = self.index(at) else { return };
        let served = &mut self.served[index];
        let mut bhs = match text {
            Some(text) => bhs.with_data_len(text.len() as u32),
            None => bhs,
        };
        let cmd_sn = Serial(served.peer.cmd_sn);
        if bhs.opcode() == Some(Opcode::DataOut) {
            bhs.stamp_exp_stat_sn(Serial(0));
        } else {
            bhs.stamp_command(cmd_sn, Serial(0));
        }
        change(&mut bhs, changes);
        if !served.service.wants_input() {
            return;
        }
        let numbered = !matches!(bhs.opcode(), Some(Opcode::DataOut | Opcode::LoginRequest));
        let open = served.peer.max_cmd_sn.is_none_or(|max| !max.before(cmd_sn));
        if numbered && !bhs.immediate() && open && bhs.cmd_sn() == cmd_sn {
            served.peer.cmd_sn += 1;
        }
        if self.receive(index, &bhs, text).is_err() {
            self.drop_connection(index);
        }
    }

    fn receive(&mut self, index: usize, bhs: &Bhs, text: Option<&[u8]>) -> Result<(), Broken> {
        if bhs.opcode() == Some(Opcode::TaskRequest) {
            self.note_management(index, bhs);
        }
        let (now, Served { service, reach, peer, .. }) = (self.now, &mut self.served[index]);
        if bhs.opcode() == Some(Opcode::ScsiCommand) {
            let copy = peer.brought.get(&bhs.itt()).and_then(|(_, copy)| *copy);
            reach.expect(bhs, copy);
        }
        let placement = service.receiver(reach, now).handle_header(bhs)?;
        self.look(index);
        let Served { service, reach, peer, .. } = &mut self.served[index];
        let len = bhs.data_len() as usize;
        match placement {
            Placement::Control => {
                let data: Vec<u8> = match text {
                    Some(text) => padded(text, len),
                    None => (0..len).map(|at| pattern(bhs.itt(), at)).collect(),
                };
                service.receiver(reach, now).handle_segment(Some(&data))?;
            }
            Placement::Task { task, offset, len: placed } => {
                assert!(placed as usize <= len, "more is placed than came");
                let command = reach.commands.get_mut(&task.index()).expect("its task is there");
                // The bytes of the PDU: of the offset that its header says.
                let from = match bhs.opcode() {
                    Some(Opcode::DataOut) => DataOut::parse(bhs).offset,
                    _ => 0,
                };
                assert_eq!((command.tag, command.received), (bhs.itt(), offset as usize));
                assert_eq!(from, offset, "data goes to another place");
                let range = offset as usize..offset as usize + placed as usize;
                command.received = range.end;
                let mut receiver = service.receiver(reach, now);
                let into = &mut receiver.buffer(task)[range.clone()];
                for (at, byte) in range.zip(into) {
                    *byte = peer.byte(bhs.itt(), at);
                }
                receiver.handle_segment(None)?;
            }
            Placement::Discard => service.receiver(reach, now).handle_segment(None)?,
        }
        self.look(index);
        Ok(())
    }
}

impl World {
    fn note_management(&mut self, index: usize, bhs: &Bhs) {
        let request = TaskRequest::parse(bhs);
        let own = self.served[index].id;
        let number = request.lun.number();
        let named = |id: ConnectionId, command: &outside::Command| match request.function {
            TaskFunction::AbortTask => id == own && command.tag == request.referenced_itt,
            TaskFunction::AbortTaskSet => id == own && command.lun == number,
            TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => command.lun == number,
            TaskFunction::TargetWarmReset => true,
            TaskFunction::TargetColdReset => id == own,
            TaskFunction::ClearAca | TaskFunction::TaskReassign | TaskFunction::Unknown(_) => false,
        };
        let mut names = Vec::new();
        for served in &self.served {
            let live = served.reach.commands.values();
            names.extend(live.filter(|one| named(served.id, one)).map(|one| one.generation));
        }
        let visited = |one: &&Flying| match request.function {
            TaskFunction::AbortTaskSet => one.connection == own && one.visits(number),
            TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => one.visits(number),
            TaskFunction::AbortTask
            | TaskFunction::TargetWarmReset
            | TaskFunction::TargetColdReset
            | TaskFunction::ClearAca
            | TaskFunction::TaskReassign
            | TaskFunction::Unknown(_) => false,
        };
        let flying = self.shared.flying.borrow();
        names.extend(flying.iter().filter(visited).map(|one| one.number));
        let managing = &mut self.served[index].peer.managing;
        let known = managing.contains_key(&request.itt);
        managing.insert(request.itt, (!known).then_some(names));
    }
}

impl World {
    /// Takes one PDU from the target, as the peer; false when there is none.
    pub(super) fn transmit(&mut self, index: usize) -> bool {
        let taken = self.take_pdu(index);
        self.transmitted(index);
        taken
    }

    pub(super) fn transmitted(&mut self, index: usize) {
        let served = &mut self.served[index];
        served.service.handle_transmitted(&mut served.reach);
        self.look(index);
    }

    /// The same, without a word to the service that it was taken.
    pub(super) fn take_pdu(&mut self, index: usize) -> bool {
        let served = &mut self.served[index];
        let Some((bhs, body, _)) = served.service.poll_transmit() else { return false };
        let len = bhs.data_len();
        assert_eq!(len as usize, body.len());
        if bhs.opcode() == Some(Opcode::DataIn) && len > 0 {
            check_data_in(&mut served.reach, &bhs, &body.to_contiguous());
        }
        served.peer.max_cmd_sn = Some(bhs.max_cmd_sn());
        if bhs.opcode() == Some(Opcode::R2t) {
            let R2t { lun, itt, ttt, offset, len, .. } = R2t::parse(&bhs);
            assert!(len > 0 && len <= 262_144, "asks for {len} bytes");
            let asked = Asked { lun, itt, ttt, at: offset, end: offset + len, data_sn: 0 };
            served.peer.asked.push_back(asked);
        }
        if bhs.opcode() == Some(Opcode::TaskResponse) {
            let response = TaskResponse::parse(&bhs);
            let named = served.peer.managing.remove(&response.itt).flatten();
            if let (TaskResponseCode::Complete, Some(named)) = (response.code, named) {
                let flying = self.shared.flying.borrow();
                let is_named =
                    |one: &Flying| named.contains(&one.generation) || named.contains(&one.number);
                let runs = flying.iter().any(is_named);
                assert!(!runs, "answered while what it names is under way");
            }
        }
        true
    }
}

/// Data-In comes in order, and is no more than its initiator takes; what was read is what the
/// medium gave.
fn check_data_in(reach: &mut Reach, bhs: &Bhs, body: &[u8]) {
    let DataIn { itt, offset, .. } = DataIn::parse(bhs);
    let command = reach.with_tag(itt).expect("data-in of a command that is there");
    assert_eq!(offset, command.in_sent, "data-in has a gap");
    command.in_sent += body.len() as u32;
    assert!(command.in_sent <= command.expected_in, "more data-in than expected");
    let is_read = matches!(command.cdb[0], 0x08 | 0x28 | 0xa8 | 0x88);
    if let Some(read) = command.latest.as_ref().filter(|_| is_read) {
        let range = offset as usize..command.in_sent as usize;
        assert_eq!(read.slice(range).to_contiguous()[..], *body, "what was read");
    }
}
