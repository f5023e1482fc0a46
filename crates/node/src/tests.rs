//! Services over what is in memory: each rule once.

mod copies;
mod ends;
mod gates;
mod grants;
mod logins;
mod paces;
mod preempting;
mod site;
mod waits;

use alloc::{sync::Arc, vec, vec::Vec};
use core::{net::SocketAddr, time::Duration};
use std::rc::Rc;

use netraid_block::{Buf, ErrorKind, Pool, SgList};
use netraid_iscsi_proto::{
    chap::{Algorithm, Credentials, Secret},
    framing::Side as _,
    machine::Placement,
    pdu::{
        Bhs, DataIn, DataOut, LoginRequest, LoginResponse, LunField, Opcode, R2t, ScsiCommand,
        ScsiResponse, TaskFunction, TaskRequest, TaskResponse, TaskResponseCode,
    },
    serial::Serial,
    target::{Challenge, Link, Setup},
    text,
};
use netraid_scsi::{
    Additional, MediumRequest, Sense,
    cdb::{Extent, build},
};

use self::site::{Fake, Seen, Site};
use crate::Service;

const TARGET: &str = "iqn.2026-01.org.example:target";
const BLOCK_LEN: usize = 512;
const NOW: Duration = Duration::from_secs(1);
const CHALLENGE: Challenge = Challenge { identifier: 7, bytes: [9; 32] };

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;

/// The end of a command as its initiator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u8,
    sense: Option<Additional>,
    data: Vec<u8>,
}

/// One connection of a site, and its peer.
struct Session {
    service: Service<Fake>,
    outside: Fake,
    command_sn: u32,
    tag: u32,
    data: Vec<u8>,
    ended: Vec<(u32, Answer)>,
    functions: Vec<(u32, TaskResponseCode)>,
    asked: Vec<R2t>,
    login: Option<LoginResponse>,
}

fn setup() -> Setup {
    Setup::new(TARGET.into())
}

fn credentials() -> Credentials {
    let secret = Secret::new(*b"0123456789abcdef").unwrap();
    Credentials { user: "joe".into(), secret }
}

/// A session that has logged in to a site, and heard of power on at both LUNs.
fn session(site: &Rc<Site>, number: u8) -> Session {
    session_with(site, number, setup())
}

fn session_with(site: &Rc<Site>, number: u8, setup: Setup) -> Session {
    let mut session = Session::connect(site, setup);
    session.log_in(number);
    session.hear_of_power_on();
    session
}

impl Session {
    fn connect(site: &Rc<Site>, setup: Setup) -> Self {
        let peer = SocketAddr::from(([192, 0, 2, 1], 5));
        let link = Link::new(peer, SocketAddr::from(([127, 0, 0, 1], 3260)));
        let seat = site.node.borrow_mut().open(link).unwrap();
        let outside = Fake::new(site.clone(), seat.id(), setup.paced);
        let service = Service::new(NOW, seat, Arc::new(setup), CHALLENGE, Pool::new());
        Self {
            service,
            outside,
            command_sn: 1,
            tag: 1,
            data: Vec::new(),
            ended: Vec::new(),
            functions: Vec::new(),
            asked: Vec::new(),
            login: None,
        }
    }

    fn log_in(&mut self, number: u8) {
        let mut keys = Vec::new();
        text::push(&mut keys, "InitiatorName", "iqn.2026-01.org.example:i");
        text::push(&mut keys, "TargetName", TARGET);
        text::push(&mut keys, "InitialR2T", "No");
        self.login_pdu(number, (true, 1, 3), &keys);
        assert_eq!(self.login.as_ref().map(|login| login.status), Some(0));
    }

    /// All of a login until its proof is given.
    fn prove(&mut self) {
        let mut first = Vec::new();
        text::push(&mut first, "InitiatorName", "iqn.2026-01.org.example:i");
        text::push(&mut first, "TargetName", TARGET);
        text::push(&mut first, "AuthMethod", "CHAP");
        self.login_pdu(1, (false, 0, 0), &first);
        let algorithm = Algorithm::PREFERENCE[0];
        let number = std::format!("{}", algorithm.number());
        let mut second = Vec::new();
        text::push(&mut second, "CHAP_A", &number);
        self.login_pdu(1, (false, 0, 0), &second);
        let answer = algorithm.answer(7, &credentials().secret, &CHALLENGE.bytes);
        let mut third = Vec::new();
        text::push(&mut third, "CHAP_N", "joe");
        text::push(&mut third, "CHAP_R", &text::to_hex(&answer));
        self.login = None;
        self.login_pdu(1, (true, 0, 3), &third);
    }

    fn login_pdu(&mut self, number: u8, (transit, current, next): (bool, u8, u8), keys: &[u8]) {
        let request = LoginRequest {
            transit,
            more: false,
            current_stage: current,
            next_stage: next,
            version_max: 0,
            version_min: 0,
            isid: [0x80, 0, 0, 0, 0, number],
            tsih: 0,
            itt: 1,
            cid: 1,
        };
        self.send(request.encode(), keys);
    }

    fn hear_of_power_on(&mut self) {
        for lun in [0, 1] {
            let answer = self.run(lun, &build::test_unit_ready());
            assert_eq!(answer.status, CHECK_CONDITION);
        }
        self.outside.site.seen.borrow_mut().clear();
    }

    /// Sends a PDU, and takes what is said then.
    fn send(&mut self, bhs: Bhs, data: &[u8]) {
        let mut bhs = bhs.with_data_len(u32::try_from(data.len()).unwrap());
        if bhs.opcode() == Some(Opcode::DataOut) {
            bhs.stamp_exp_stat_sn(Serial(0));
        } else {
            bhs.stamp_command(Serial(self.command_sn), Serial(0));
        }
        let counts = matches!(bhs.opcode(), Some(Opcode::ScsiCommand)) && !bhs.immediate();
        self.command_sn += u32::from(counts);
        let mut receiver = self.service.receiver(&mut self.outside, NOW);
        let placement = receiver.handle_header(&bhs).unwrap();
        let control = match placement {
            Placement::Control => Some(data),
            Placement::Task { task, offset, len } => {
                let range = offset as usize..(offset + len) as usize;
                let len = range.len();
                receiver.buffer(task)[range].copy_from_slice(&data[..len]);
                None
            }
            Placement::Discard => None,
        };
        receiver.handle_segment(control).unwrap();
        self.receive();
    }

    /// Takes what the target says.
    fn receive(&mut self) {
        while let Some((bhs, body, _)) = self.service.poll_transmit() {
            self.service.handle_transmitted(&mut self.outside);
            let bytes = body.to_contiguous();
            match bhs.opcode().unwrap() {
                Opcode::LoginResponse => self.login = Some(LoginResponse::parse(&bhs)),
                Opcode::DataIn => {
                    self.data.extend_from_slice(&bytes);
                    let pdu = DataIn::parse(&bhs);
                    if pdu.has_status {
                        self.end(pdu.itt, pdu.status, &[]);
                    }
                }
                Opcode::ScsiResponse => {
                    let pdu = ScsiResponse::parse(&bhs);
                    self.end(pdu.itt, pdu.status, &bytes);
                }
                Opcode::TaskResponse => {
                    let pdu = TaskResponse::parse(&bhs);
                    self.functions.push((pdu.itt, pdu.code));
                }
                Opcode::R2t => self.asked.push(R2t::parse(&bhs)),
                Opcode::NopOut
                | Opcode::ScsiCommand
                | Opcode::TaskRequest
                | Opcode::LoginRequest
                | Opcode::TextRequest
                | Opcode::DataOut
                | Opcode::LogoutRequest
                | Opcode::Snack
                | Opcode::NopIn
                | Opcode::TextResponse
                | Opcode::LogoutResponse
                | Opcode::AsyncMessage
                | Opcode::Reject => panic!("{bhs:?}"),
            }
        }
    }

    fn end(&mut self, tag: u32, status: u8, body: &[u8]) {
        // Two bytes of length come before the sense data.
        let sense = body.get(2..).and_then(Sense::decode).map(|sense| sense.additional);
        let data = core::mem::take(&mut self.data);
        self.ended.push((tag, Answer { status, sense, data }));
    }

    /// Sends a command; its tag.
    fn command(&mut self, lun: u16, cdb: &[u8], (read, write): (usize, usize), now: &[u8]) -> u32 {
        self.tag += 1;
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let command = ScsiCommand {
            immediate: false,
            last: true,
            read: read > 0,
            write: write > 0,
            attribute: 0,
            lun: LunField::from_number(lun),
            itt: self.tag,
            expected_len: u32::try_from(read.max(write)).unwrap(),
            cdb: padded,
        };
        self.send(command.encode(), now);
        self.tag
    }

    /// A command without data that comes with it; what it answers at once.
    fn run(&mut self, lun: u16, cdb: &[u8]) -> Answer {
        let tag = self.command(lun, cdb, (255, 0), &[]);
        self.answer(tag)
    }

    fn read(&mut self, lun: u16, lba: u64) -> u32 {
        let cdb = build::read(Extent { lba, blocks: 1 }, false);
        self.command(lun, &cdb, (BLOCK_LEN, 0), &[])
    }

    /// A write whose data comes with it.
    fn write(&mut self, lun: u16, lba: u64) -> u32 {
        let cdb = build::write(Extent { lba, blocks: 1 }, false, false);
        self.command(lun, &cdb, (0, BLOCK_LEN), &[5; BLOCK_LEN])
    }

    /// A write whose data is to be asked for.
    fn announce_write(&mut self, lun: u16) -> u32 {
        let cdb = build::write(Extent { lba: 0, blocks: 1 }, false, false);
        self.command(lun, &cdb, (0, BLOCK_LEN), &[])
    }

    /// Sends all the data that was asked for first.
    fn give_data(&mut self, byte: u8) {
        let len = self.asked[0].len;
        self.give(vec![byte; len as usize]);
    }

    /// Sends these bytes, which are all that was asked for first.
    fn give(&mut self, data: Vec<u8>) {
        let R2t { lun, itt, ttt, offset, len, .. } = self.asked.remove(0);
        assert_eq!(data.len(), len as usize);
        let pdu = DataOut { last: true, lun, itt, ttt, data_sn: 0, offset };
        self.send(pdu.encode(), &data);
    }

    /// A command that reads a block, and writes it when that is zeros.
    fn compare_and_write(&mut self, lun: u16) -> u32 {
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x89, 1);
        let mut data = vec![0; 2 * BLOCK_LEN];
        data[BLOCK_LEN..].fill(5);
        self.command(lun, &cdb, (0, 2 * BLOCK_LEN), &data)
    }

    /// PERSISTENT RESERVE OUT: write exclusive, all registrants; what is registered is to be kept.
    fn reserve_out(&mut self, action: u8, (key, other): (u8, u8)) -> u32 {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, 0x07, 24);
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (key, other, 1);
        self.command(0, &cdb, (0, 24), &list)
    }

    /// What has been under way longest ends.
    fn finish(&mut self, result: Result<(), ErrorKind>) {
        self.finish_unheard(result);
        self.receive();
    }

    /// The same, and the peer takes nothing of what is said then.
    fn finish_unheard(&mut self, result: Result<(), ErrorKind>) {
        let (task, request) = self.outside.under_way.remove(0);
        let data = match &request {
            Some(MediumRequest { op: netraid_block::Op::Read, len, .. }) => {
                Buf::zeroes(usize::try_from(*len).unwrap()).into()
            }
            Some(_) | None => SgList::new(),
        };
        let result = result.map(|()| data).map_err(Into::into);
        self.service.handle_completed(&mut self.outside, task.index(), result);
        self.service.handle_ends_taken(&mut self.outside);
    }

    fn wake(&mut self) {
        self.service.handle_wake(&mut self.outside);
        self.receive();
    }

    fn manage(&mut self, function: TaskFunction, lun: u16, referenced: u32) -> u32 {
        self.tag += 1;
        let request = TaskRequest {
            immediate: true,
            function,
            lun: LunField::from_number(lun),
            itt: self.tag,
            referenced_itt: referenced,
            ref_cmd_sn: 0,
        };
        self.send(request.encode(), &[]);
        self.tag
    }

    fn try_answer(&mut self, tag: u32) -> Option<Answer> {
        let at = self.ended.iter().position(|(ended, _)| *ended == tag)?;
        Some(self.ended.remove(at).1)
    }

    fn answer(&mut self, tag: u32) -> Answer {
        self.try_answer(tag).unwrap_or_else(|| panic!("command {tag} has not ended"))
    }

    fn status(&mut self, tag: u32) -> u8 {
        self.answer(tag).status
    }

    /// The additional sense code of a command that ended with CHECK CONDITION.
    fn sense(&mut self, tag: u32) -> Additional {
        let answer = self.answer(tag);
        assert_eq!(answer.status, CHECK_CONDITION, "{answer:?}");
        answer.sense.unwrap()
    }

    /// The connection is over, and nothing is under way.
    fn close(&mut self) {
        self.service.handle_disconnect(&mut self.outside);
        self.service.abandon_waits(&mut self.outside);
        assert!(self.outside.under_way.is_empty() && self.service.is_idle());
        self.service.end(&mut self.outside);
    }
}

/// What was seen since this was asked last.
fn seen(site: &Site) -> Vec<Seen> {
    core::mem::take(&mut site.seen.borrow_mut())
}

fn was_submitted(seen: &[Seen]) -> bool {
    seen.iter().any(|one| matches!(one, Seen::Submit { .. }))
}
