//! What peers send, and what they take.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
};

use netraid_iscsi_proto::{
    chap::Algorithm,
    machine::{Fatal, Payload, Placement},
    pdu::{
        Bhs, DataIn, DataOut, LoginRequest, LunField, NO_TAG, Opcode, R2t, ScsiCommand,
        TaskFunction, TaskRequest, TaskResponse, TaskResponseCode,
    },
    serial::Serial,
    target::{Connection, ConnectionId, Link},
    text,
};

use super::{
    CHALLENGE, CONNECTIONS_MAX, Command, Served, World,
    requests::{login, write_cdb},
    shell::Slot,
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
    /// Generations that a task management function with this tag names; none when two had it.
    pub(super) managing: BTreeMap<u32, Option<Vec<u64>>>,
}

impl World {
    pub(super) fn connect(&mut self, from: u8) {
        if self.served.len() >= CONNECTIONS_MAX {
            return;
        }
        let peer = SocketAddr::from(([192, 0, 2, from % 3], 5));
        let link = Link::new(peer, SocketAddr::from(([127, 0, 0, 1], 3260)));
        let Some(seat) = self.node.open(link) else { return };
        let id = seat.id();
        let machine = Connection::new(self.now, seat, self.setup.clone(), CHALLENGE);
        let slots = (0..machine.task_count()).map(|_| Slot::default()).collect();
        let peer = Peer { cmd_sn: 1, ..Peer::default() };
        self.served.push(Served { id, machine, slots, gone: false, peer });
    }

    /// A whole login as it should be.
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
        for (request, text) in rounds {
            let isid = [0x80, 0, 0, 0, 0, isid % 4];
            let request = LoginRequest { isid, tsih: u16::from(tsih) % 4, ..request };
            self.send(at, request.encode(), &Vec::new(), Some(&text));
            if let Some(index) = self.index(at) {
                while self.transmit(index) {}
            }
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
        if !served.machine.wants_input() {
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

    fn receive(&mut self, index: usize, bhs: &Bhs, text: Option<&[u8]>) -> Result<(), Fatal> {
        if bhs.opcode() == Some(Opcode::TaskRequest) {
            self.note_management(index, bhs);
        }
        let (now, served) = (self.now, &mut self.served[index]);
        served.machine.handle_header(now, bhs)?;
        self.handle_events_of(index, Some(bhs));
        let len = bhs.data_len() as usize;
        let served = &mut self.served[index];
        match served.machine.placement() {
            Placement::Control => {
                let data: Vec<u8> = match text {
                    Some(text) => padded(text, len),
                    None => (0..len).map(|at| pattern(bhs.itt(), at)).collect(),
                };
                served.machine.handle_control(now, &mut self.node, &data)?;
            }
            Placement::Task { task, offset, len: placed } => {
                assert!(placed as usize <= len, "more is placed than came");
                let slot = &mut served.slots[task.index()];
                assert!(slot.generation != 0, "data for a task that is gone");
                let wanted = slot.data_out_len;
                let data = slot.data_out.get_or_insert_with(|| vec![0; wanted]);
                // The bytes of the PDU: of the offset that its header says.
                let from = match bhs.opcode() {
                    Some(Opcode::DataOut) => DataOut::parse(bhs).offset,
                    _ => 0,
                };
                let range = offset as usize..offset as usize + placed as usize;
                for (at, byte) in data[range].iter_mut().enumerate() {
                    *byte = pattern(bhs.itt(), from as usize + at);
                }
                served.machine.handle_data();
            }
            Placement::Discard => served.machine.handle_data(),
        }
        self.handle_events(index);
        Ok(())
    }
}

impl World {
    fn note_management(&mut self, index: usize, bhs: &Bhs) {
        let request = TaskRequest::parse(bhs);
        let own = self.served[index].id;
        let number = request.lun.number();
        let named = |id: ConnectionId, slot: &Slot| match request.function {
            TaskFunction::AbortTask => id == own && slot.tag == request.referenced_itt,
            TaskFunction::AbortTaskSet => id == own && slot.lun == number,
            TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => slot.lun == number,
            TaskFunction::TargetWarmReset => true,
            TaskFunction::TargetColdReset => id == own,
            TaskFunction::ClearAca | TaskFunction::TaskReassign | TaskFunction::Unknown(_) => false,
        };
        let mut names = Vec::new();
        for served in &self.served {
            let live = served.slots.iter().filter(|slot| slot.generation != 0);
            names.extend(live.filter(|slot| named(served.id, slot)).map(|slot| slot.generation));
        }
        let managing = &mut self.served[index].peer.managing;
        let known = managing.contains_key(&request.itt);
        managing.insert(request.itt, (!known).then_some(names));
    }
}

impl World {
    /// Takes one PDU from the target, as the peer; false when there is none.
    pub(super) fn transmit(&mut self, index: usize) -> bool {
        let served = &mut self.served[index];
        let Some(transmit) = served.machine.poll_transmit() else { return false };
        let (bhs, len) = (transmit.header, transmit.header.data_len());
        match &transmit.payload {
            Payload::None => assert_eq!(len, 0),
            Payload::Control(data) => assert_eq!(len as usize, data.len()),
            Payload::Task { task, offset, len: part } => {
                assert_eq!(len, *part);
                let slot = &mut served.slots[task.index()];
                assert!(slot.generation != 0 && len > 0 && len <= 1 << 20);
                assert_eq!(*offset, slot.in_sent, "data-in has a gap");
                slot.in_sent += len;
                assert!(slot.in_sent as usize <= slot.data_in.len(), "data-in that is not there");
                assert!(slot.in_sent <= slot.expected_in, "more data-in than expected");
                assert_eq!(DataIn::parse(&bhs).itt, slot.tag, "data-in of another command");
            }
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
                let runs = self.in_flight.iter().find(|one| named.contains(&one.generation));
                assert!(runs.is_none(), "answered while what it names is under way");
            }
        }
        self.handle_events(index);
        true
    }
}
