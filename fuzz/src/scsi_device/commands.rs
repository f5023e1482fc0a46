//! Commands with their parameter lists, step by step to their response.

use netraid_block::{Buf, Op, SgList};
use netraid_scsi::{Refusal, Response, Sense, Status, Step, cdb::table::TABLE, unit::encode_lun};

use super::{Active, CAPACITY, Command, STEPS_MAX, UNDER_WAY_MAX, World, nexus, number};
use crate::named;

impl World {
    pub(super) fn command(&mut self, command: &Command) {
        if self.active.len() >= UNDER_WAY_MAX {
            return;
        }
        let mut cdb = command.bytes;
        let row = &TABLE[usize::from(command.row) % TABLE.len()];
        if command.style & 1 == 0 {
            for (byte, mask) in cdb.iter_mut().zip(row.usage) {
                *byte &= mask;
            }
            cdb[row.usage.len()..].fill(0);
            cdb[0] = row.opcode();
            if let Some(action) = row.service_action {
                cdb[1] = cdb[1] & 0xe0 | action as u8;
            }
        }
        if command.style & 2 == 0 && cdb[0] >> 5 != 0 {
            // In range mostly.
            match cdb[0] >> 5 {
                4 => {
                    cdb[2..9].fill(0);
                    cdb[10..13].fill(0);
                }
                5 => {
                    cdb[2..5].fill(0);
                    cdb[6..9].fill(0);
                }
                _ => {
                    cdb[2..5].fill(0);
                    cdb[7] = 0;
                }
            }
        }
        let lun = number(command.lun);
        let announced = u32::from(command.announced);
        let from = nexus(command.nexus % 6);
        let (task, step) = self.device.handle_command(from, encode_lun(lun), &cdb, announced);
        let mut active = Active::new(task, from, lun, cdb);
        let step = match step {
            Step::DataOut { len, .. } => {
                assert!(len > 0, "asks for no data");
                let len = len.min(announced) as usize;
                let data = self.data_for(command, &cdb, lun, len);
                let list =
                    if data.is_empty() { SgList::new() } else { Buf::copy_from(&data).into() };
                let _ = self.device.intent(&active.task);
                self.device.handle_data_out(&mut active.task, list)
            }
            step @ (Step::Submit(_)
            | Step::SubmitTo { .. }
            | Step::Wait
            | Step::Persist(_)
            | Step::Abort { .. }
            | Step::Respond(_)) => step,
        };
        self.go_on(active, step);
    }

    /// Bytes of data-out for a command.
    fn data_for(&self, command: &Command, cdb: &[u8; 16], lun: u16, len: usize) -> Vec<u8> {
        let mut data: Vec<u8> = if command.data.is_empty() {
            vec![command.bytes[15]; len]
        } else {
            command.data.iter().copied().cycle().take(len).collect()
        };
        let Some(info) = &self.infos[usize::from(lun)] else { return data };
        if command.style & 4 != 0 {
            // As the medium is, so that comparisons succeed.
            let range = named(cdb, info.block_len.into(), info.capacity);
            let medium = &self.media[usize::from(lun)];
            let end = range.end.min(CAPACITY) as usize;
            if let Some(bytes) = medium.get(range.start.min(CAPACITY) as usize..end) {
                let len = bytes.len().min(data.len());
                data[..len].copy_from_slice(&bytes[..len]);
            }
        }
        if command.style & 8 != 0 && cdb[0] == 0x42 && data.len() >= 8 {
            // Lengths of an UNMAP list that fit, and ranges that often do.
            let descriptors = (data.len() - 8) / 16;
            data[..2].copy_from_slice(&(6 + descriptors as u16 * 16).to_be_bytes());
            data[2..4].copy_from_slice(&(descriptors as u16 * 16).to_be_bytes());
            for range in data[8..].chunks_exact_mut(16) {
                range[..7].fill(0);
                range[8..11].fill(0);
            }
        }
        if command.style & 8 != 0 && matches!(cdb[0], 0x15 | 0x55) {
            // The control page, or the caching page, with some bits.
            let header = if cdb[0] == 0x15 { 4 } else { 8 };
            data[..header.min(len)].fill(0);
            if let Some(page) = data.get_mut(header..header + 12) {
                let caching = command.bytes[14] & 1 != 0;
                page[..2].copy_from_slice(if caching { &[0x08, 0x12] } else { &[0x0a, 0x0a] });
                page[2..].fill(0);
                page[2] = command.bytes[13];
                page[4] = command.bytes[12];
            }
        }
        data
    }

    pub(super) fn go_on(&mut self, mut active: Active, step: Step) {
        active.steps += 1;
        assert!(active.steps < STEPS_MAX, "{:#x} does not end", active.cdb[0]);
        match step {
            Step::Submit(request) => {
                self.check_request(&active, &request);
                active.exclusive |= active.cdb[0] == 0x89;
                active.request = Some(request);
                self.active.push(active);
            }
            Step::SubmitTo { lun, request } => {
                assert!(active.cdb[0] == 0x83, "{:#x} reaches LUN {lun}", active.cdb[0]);
                let there = self.infos.get(usize::from(lun)).and_then(Option::as_ref);
                let Some(info) = there else {
                    let _ = self.device.handle_refusal(&mut active.task, Refusal::Gone);
                    return;
                };
                let end = request.offset.checked_add(request.len).expect("no end");
                assert!(end <= info.capacity, "copies past the end");
                let writes = !matches!(request.op, Op::Read | Op::Flush | Op::Extents);
                assert!(!(writes && info.read_only), "copies to a read-only device");
                active.at = Some(lun);
                active.request = Some(request);
                self.active.push(active);
            }
            Step::Persist(bytes) => {
                let stored = !bytes.len().is_multiple_of(7) || bytes.is_empty();
                let step = self.device.handle_persisted(&mut active.task, stored);
                self.go_on(active, step);
            }
            Step::Abort { nexuses } => {
                let meant =
                    |one: &mut Active| one.lun == active.lun && nexuses.contains(&one.nexus);
                let aborted: Vec<_> = self.active.extract_if(.., meant).collect();
                for one in aborted {
                    // What is at the medium cannot be called back.
                    if let Some(request) = one.request {
                        let _ = self.execute(one.at.unwrap_or(one.lun), request, 255);
                    }
                    self.device.handle_abort(one.task);
                }
                let step = self.device.handle_aborted(&mut active.task);
                self.go_on(active, step);
            }
            Step::Wait => {
                self.device.begin_background(active.lun);
                active.waits = true;
                self.active.push(active);
            }
            Step::Respond(response) => {
                check_response(&response);
                let read = matches!(active.cdb[0], 0x08 | 0x28 | 0x88 | 0xa8);
                if read
                    && response.status == Status::Good
                    && let Some(info) = &self.infos[usize::from(active.lun)]
                {
                    let range = named(&active.cdb, info.block_len.into(), info.capacity);
                    let len = range.end - range.start;
                    assert_eq!(response.data_in.len() as u64, len, "a read of another length");
                }
            }
            Step::DataOut { .. } => panic!("{:#x} asks for its data twice", active.cdb[0]),
        }
    }
}

pub(super) fn check_response(response: &Response) {
    let failed = response.status == Status::CheckCondition;
    assert_eq!(failed, !response.sense.is_empty(), "{response:?}");
    if failed {
        assert!(Sense::decode(&response.sense).is_some(), "{response:?}");
        assert!(response.sense.len() <= 252);
    }
}
