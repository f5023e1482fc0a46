//! Afterwards: a session as it should be.

use std::sync::Arc;

use netraid_iscsi_proto::{
    framing::Side as _,
    initiator::{self, Session, TaskEnd},
    machine::{Payload, Placement},
    pdu::{Bhs, LunField, Opcode},
};
use netraid_node::Gate;
use netraid_scsi::cdb::{self, build};

use super::{BLOCK_LEN, RESERVATION_CONFLICT, World, outside::Setting};
use crate::{pattern, wire::TARGET};

impl World {
    /// A session as it should be: what it writes it reads again.
    pub(super) fn serve_somebody(&mut self) {
        self.make_usual();
        self.shared.units.borrow_mut().handle_reset();
        let name = "iqn.2026-01.org.example:good".into();
        let mut setup = initiator::Setup::new(name, Some(TARGET.into()), [0x80, 9, 9, 9, 0, 0]);
        setup.chap = self.setup.chap.first().cloned();
        setup.queue_depth = 4;
        let mut session = Session::new(self.now, Arc::new(setup));
        self.connect(0);
        let mut data = vec![0; 4 * BLOCK_LEN];
        self.converse(&mut session, &mut data);
        let extent = cdb::Extent { lba: 3, blocks: 4 };
        let ask = build::test_unit_ready();
        let all: Vec<_> =
            (0..8).map(|_| self.execute(&mut session, &ask, 0, &mut [], false)).collect();
        if all.contains(&RESERVATION_CONFLICT) {
            // Persistent reservations outlive whoever made them.
            return;
        }
        assert!(all.contains(&0), "the unit does not become ready");
        let mut out: Vec<u8> = (0..data.len()).map(|at| pattern(1, at)).collect();
        let len = out.len() as u32;
        let write = build::write(extent, false, false);
        let written = self.execute(&mut session, &write, len, &mut out, true);
        if written == RESERVATION_CONFLICT {
            return;
        }
        assert_eq!(written, 0, "write");
        let read = build::read(extent, false);
        assert_eq!(self.execute(&mut session, &read, len, &mut data, false), 0, "read");
        assert_eq!(data, out);
        session.logout(self.now);
        self.converse(&mut session, &mut data);
        let mut ended = false;
        while let Some(event) = session.poll_event() {
            ended |= event == initiator::Event::LoggedOut;
        }
        assert!(ended, "the logout is not answered");
    }

    /// A LUN 0 that serves everybody.
    fn make_usual(&mut self) {
        let before = self.shared.setting.get();
        let grants = before.grants.map(|_| (0, false));
        self.shared.setting.set(Setting { judges_late: false, grants, ..before });
        for number in [0, 1, 2] {
            if let Some(lun) = self.shared.find(number)
                && lun.house.gate() == Gate::Held
            {
                lun.house.set(Gate::Open);
            }
            self.work(number, u8::MAX, 0);
        }
        let units = self.shared.units.borrow();
        let is_erased = units.unit(0).is_some_and(|unit| unit.sanitize_state().is_some());
        drop(units);
        if is_erased {
            self.retire(0);
        }
        self.remove(0);
        match self.shared.find(0) {
            None => self.shared.add_lun(0, false),
            Some(lun) => lun.set_denied(None),
        }
    }

    fn execute(
        &mut self,
        session: &mut Session,
        cdb: &[u8],
        len: u32,
        data: &mut [u8],
        write: bool,
    ) -> u8 {
        while session.poll_event().is_some() {}
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let (read_len, write_len) = if write { (0, len) } else { (len, 0) };
        let lun = LunField::from_number(0);
        assert!(session.capacity() > 0, "no login");
        let command = initiator::Command { lun, cdb: padded, read_len, write_len };
        session.submit(self.now, command);
        self.converse(session, data);
        while let Some(event) = session.poll_event() {
            if let initiator::Event::Completed { end: TaskEnd::Status { status, .. }, .. } = event {
                return status;
            }
        }
        panic!("a command does not end");
    }

    /// Carries PDUs between a good initiator and the last connection until there are no more.
    fn converse(&mut self, session: &mut Session, data: &mut [u8]) {
        for _ in 0..1000 {
            let mut any = false;
            while let Some(transmit) = session.poll_transmit() {
                any = true;
                let bytes = match &transmit.payload {
                    Payload::None => Vec::new(),
                    Payload::Control(bytes) => bytes.clone(),
                    Payload::Task { offset, len, .. } => {
                        data[*offset as usize..][..*len as usize].to_vec()
                    }
                };
                self.take_good(&transmit.header, &bytes);
            }
            while !self.shared.pace.borrow().asked.is_empty() {
                self.grant(0);
                any = true;
            }
            while !self.shared.wakes.borrow().is_empty() {
                self.wake(0);
            }
            while !self.shared.flying.borrow().is_empty() {
                self.complete(0, 0);
            }
            while let Some((header, body, _)) = self.served[0].service.poll_transmit() {
                any = true;
                let bytes = body.to_contiguous();
                self.transmitted(0);
                session.handle_header(self.now, &header).expect("a good response");
                match session.placement() {
                    Placement::Control => session.handle_control(&bytes).expect("good"),
                    Placement::Task { offset, len, .. } => {
                        data[offset as usize..][..len as usize]
                            .copy_from_slice(&bytes[..len as usize]);
                        session.handle_data();
                    }
                    Placement::Discard => session.handle_data(),
                }
            }
            if !any {
                return;
            }
        }
        panic!("the exchange does not end");
    }

    /// Takes a PDU of the good initiator.
    fn take_good(&mut self, header: &Bhs, bytes: &[u8]) {
        let now = self.now;
        let served = &mut self.served[0];
        if header.opcode() == Some(Opcode::ScsiCommand) {
            served.reach.expect(header, None);
        }
        let mut receiver = served.service.receiver(&mut served.reach, now);
        let placement = receiver.handle_header(header).expect("a good request");
        self.look(0);
        let served = &mut self.served[0];
        let control = match placement {
            Placement::Control => Some(bytes),
            Placement::Task { task, offset, len } => {
                let command = served.reach.commands.get_mut(&task.index()).expect("it is there");
                (command.pattern, command.received) = (1, (offset + len) as usize);
                served.service.receiver(&mut served.reach, now).buffer(task)[offset as usize..]
                    [..len as usize]
                    .copy_from_slice(&bytes[..len as usize]);
                None
            }
            Placement::Discard => None,
        };
        let mut receiver = served.service.receiver(&mut served.reach, now);
        receiver.handle_segment(control).expect("good");
        self.look(0);
    }
}
