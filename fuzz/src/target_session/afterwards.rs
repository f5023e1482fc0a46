//! Afterwards: a session as it should be.

use std::sync::Arc;

use netraid_iscsi_proto::{
    initiator::{self, Session, TaskEnd},
    machine::{Payload, Placement},
    pdu::LunField,
};
use netraid_scsi::cdb::{self, build};

use super::{BLOCK_LEN, RESERVATION_CONFLICT, World};
use crate::{pattern, wire::TARGET};

impl World {
    /// A session as it should be: what it writes it reads again.
    pub(super) fn serve_somebody(&mut self) {
        self.units.handle_reset();
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
                let machine = &mut self.served[0].machine;
                machine.handle_header(self.now, &transmit.header).expect("a good request");
                self.handle_events_of(0, Some(&transmit.header));
                let served = &mut self.served[0];
                match served.machine.placement() {
                    Placement::Control => {
                        let node = &mut self.node;
                        served.machine.handle_control(self.now, node, &bytes).expect("good");
                    }
                    Placement::Task { task, offset, len } => {
                        let slot = &mut served.slots[task.index()];
                        slot.tag = 1;
                        let wanted = slot.data_out_len;
                        let into = slot.data_out.get_or_insert_with(|| vec![0; wanted]);
                        into[offset as usize..][..len as usize]
                            .copy_from_slice(&bytes[..len as usize]);
                        served.machine.handle_data();
                    }
                    Placement::Discard => served.machine.handle_data(),
                }
                self.handle_events(0);
            }
            while !self.in_flight.is_empty() {
                self.complete(0, 0);
            }
            while let Some(transmit) = self.served[0].machine.poll_transmit() {
                any = true;
                let bytes = match &transmit.payload {
                    Payload::None => Vec::new(),
                    Payload::Control(bytes) => bytes.clone(),
                    Payload::Task { task, offset, len } => {
                        let list = &self.served[0].slots[task.index()].data_in;
                        list.slice(*offset as usize..(*offset + *len) as usize)
                            .to_contiguous()
                            .to_vec()
                    }
                };
                self.handle_events(0);
                session.handle_header(self.now, &transmit.header).expect("a good response");
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
}
