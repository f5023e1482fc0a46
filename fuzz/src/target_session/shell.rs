//! The shell: carries out what the connections order, on the units and their medium.

use netraid_block::{Buf, ErrorKind, Op, SgList};
use netraid_iscsi_proto::{
    machine::TaskId,
    negotiation::SessionType,
    pdu::{Bhs, LunField},
    target::{ConnectionId, Event, Outcome, Plan, Standing},
};
use netraid_scsi::{InitiatorPort, MediumRequest, Nexus, NexusId, Step, Task, UnitAttention};

use super::{BLOCK_LEN, BLOCKS, World};
use crate::{named, pattern, wire::credentials};

/// What the shell keeps of one task.
#[derive(Default)]
pub(super) struct Slot {
    /// Of this command; 0 is nobody's.
    pub(super) generation: u64,
    pub(super) submitted: bool,
    pub(super) tag: u32,
    pub(super) cdb: [u8; 16],
    pub(super) lun: Option<u16>,
    pub(super) expected_in: u32,
    pub(super) task: Option<Task>,
    pub(super) request: Option<MediumRequest>,
    pub(super) data_out_len: usize,
    pub(super) data_out: Option<Vec<u8>>,
    pub(super) data_in: SgList,
    pub(super) in_sent: u32,
}

/// A request that is at the medium.
pub(super) struct InFlight {
    pub(super) connection: ConnectionId,
    pub(super) task: TaskId,
    pub(super) generation: u64,
    pub(super) lun: u16,
    pub(super) request: MediumRequest,
}

impl World {
    pub(super) fn handle_events(&mut self, index: usize) {
        self.handle_events_of(index, None);
    }

    pub(super) fn handle_events_of(&mut self, index: usize, bhs: Option<&Bhs>) {
        while let Some(event) = self.served[index].machine.poll_event() {
            let served = &mut self.served[index];
            match event {
                Event::Command { task, lun, cdb, data_out_max, data_in_max } => {
                    let slot = &mut served.slots[task.index()];
                    assert!(slot.generation == 0, "the place of {task:?} is taken");
                    let tag = bhs.map_or(0, Bhs::itt);
                    let generation = self.next_generation;
                    self.next_generation += 1;
                    let lun_number = lun.number();
                    *slot = Slot {
                        generation,
                        tag,
                        cdb,
                        lun: lun_number,
                        expected_in: data_in_max,
                        ..Slot::default()
                    };
                    self.begin(index, task, lun, &cdb, data_out_max);
                }
                Event::AskStanding => {
                    let claim = served.machine.claim().expect("somebody waits");
                    let known = credentials();
                    let knows = claim.proves(&known.secret) && claim.name() == known.user;
                    let standing = knows.then(Standing::default);
                    served.machine.handle_standing(&mut self.node, standing);
                }
                // This target is not paced: nothing is asked for.
                Event::AskGrant { task, .. } => unreachable!("{task:?} asks for a grant"),
                Event::Submit { task } => {
                    let slot = &mut served.slots[task.index()];
                    assert!(slot.generation != 0 && !slot.submitted, "{task:?} cannot begin");
                    slot.submitted = true;
                    let step = match slot.request.take() {
                        Some(request) => Step::Submit(request),
                        None => {
                            let data = slot.data_out.take().unwrap_or_default();
                            assert_eq!(data.len(), slot.data_out_len, "not all data came");
                            for (at, byte) in data.iter().enumerate() {
                                assert_eq!(*byte, pattern(slot.tag, at), "byte {at} is wrong");
                            }
                            let scsi_task = slot.task.as_mut().expect("it was begun");
                            let list = if data.is_empty() {
                                SgList::new()
                            } else {
                                Buf::copy_from(&data).into()
                            };
                            self.units.handle_data_out(scsi_task, list)
                        }
                    };
                    self.go_on(index, task, step);
                }
                Event::Release { task } => {
                    let slot = std::mem::take(&mut served.slots[task.index()]);
                    assert!(slot.generation != 0, "{task:?} is released twice");
                    let own = slot.generation;
                    let runs = self.in_flight.iter().any(|one| one.generation == own);
                    assert!(!runs, "{task:?} is released while the medium works for it");
                    if let Some(task) = slot.task {
                        self.units.handle_abort(task);
                    }
                }
                Event::Reset { lun: None } => self.units.handle_reset(),
                Event::Reset { lun: Some(lun) } => {
                    if let Some(unit) = self.units.unit_mut(LunField::from_number(lun).0) {
                        unit.handle_reset();
                    }
                }
                Event::Cleared { lun } => {
                    let nexus = NexusId(served.id.0);
                    if let Some(unit) = self.units.unit_mut(LunField::from_number(lun).0) {
                        unit.raise_for(UnitAttention::CommandsClearedByAnother, nexus);
                    }
                }
                Event::Preempted { task } => {
                    if let Some(scsi_task) = &mut served.slots[task.index()].task {
                        let step = self.units.handle_aborted(scsi_task);
                        self.go_on(index, task, step);
                    }
                }
                Event::Settled => served.machine.handle_wake(&mut self.node),
                Event::LoggedIn { initiator, isid, session, .. } => {
                    let port = InitiatorPort::new(&initiator, isid);
                    if let (SessionType::Normal, Some(port)) = (session, port) {
                        self.units.add_nexus(NexusId(served.id.0), &Nexus::new(port));
                    }
                }
            }
        }
        while let Some(id) = self.node.poll_wake() {
            // As a notification: one that was not taken yet stands for all.
            if !self.wakes.contains(&id) {
                self.wakes.push(id);
            }
        }
    }

    fn begin(&mut self, index: usize, task: TaskId, lun: LunField, cdb: &[u8], announced: u32) {
        let served = &mut self.served[index];
        let nexus = NexusId(served.id.0);
        let (scsi_task, step) = self.units.handle_command(nexus, lun.0, cdb, announced);
        let slot = &mut served.slots[task.index()];
        slot.task = Some(scsi_task);
        let plan = match step {
            Step::Respond(_) => return self.go_on(index, task, step),
            Step::DataOut { len, memory } => {
                assert!(len > 0, "asks for no data");
                slot.data_out_len = len.min(announced) as usize;
                let data_out = slot.data_out_len as u32;
                Plan { data_out, data_out_total: u64::from(len), memory }
            }
            Step::Submit(request) => {
                let memory = if request.op == Op::Read { request.len } else { 0 };
                slot.request = Some(request);
                Plan { data_out: 0, data_out_total: 0, memory }
            }
            Step::Wait | Step::SubmitTo { .. } | Step::Persist(_) | Step::Abort { .. } => {
                unreachable!("{task:?} goes on before its data came")
            }
        };
        served.machine.handle_plan(task, plan);
    }

    fn go_on(&mut self, index: usize, task: TaskId, step: Step) {
        let served = &mut self.served[index];
        let slot = &mut served.slots[task.index()];
        match step {
            Step::Submit(request) => {
                check_request(slot, &request);
                let lun = slot.lun.expect("a unit has a number");
                let (connection, generation) = (served.id, slot.generation);
                self.in_flight.push(InFlight { connection, task, generation, lun, request });
            }
            Step::SubmitTo { lun, request } => {
                assert!(matches!(slot.cdb[0], 0x83), "{:#x} reaches LUN {lun}", slot.cdb[0]);
                let (connection, generation) = (served.id, slot.generation);
                self.in_flight.push(InFlight { connection, task, generation, lun, request });
            }
            Step::Persist(bytes) => {
                let scsi_task = slot.task.as_mut().expect("it is under way");
                // A store that fails now and then.
                let stored = !bytes.len().is_multiple_of(7) || bytes.is_empty();
                let step = self.units.handle_persisted(scsi_task, stored);
                self.go_on(index, task, step);
            }
            Step::Abort { nexuses } => {
                let sessions: Vec<_> = nexuses.iter().map(|one| ConnectionId(one.0)).collect();
                let lun = slot.lun.expect("a unit has a number");
                served.machine.handle_preempt(&mut self.node, task, lun, &sessions);
            }
            Step::Wait => unreachable!("no unit can be sanitized"),
            Step::Respond(response) => {
                let data_in = response.data_in.len() as u64;
                slot.data_in = response.data_in;
                let (status, sense) = (response.status as u8, response.sense);
                served.machine.handle_outcome(task, Outcome { status, sense, data_in });
            }
            Step::DataOut { .. } => unreachable!("{task:?} asks for its data twice"),
        }
    }

    /// Ends one of the requests at the medium.
    pub(super) fn complete(&mut self, which: u8, failure: u8) {
        let Some(which) = usize::from(which).checked_rem(self.in_flight.len()) else { return };
        let InFlight { connection, task, lun, request, .. } = self.in_flight.remove(which);
        let MediumRequest { op, offset, len, data, .. } = request;
        let medium = &mut self.media[usize::from(lun)];
        let range = offset as usize..(offset + len) as usize;
        let result = match (failure, op) {
            (1, _) => Err(ErrorKind::Medium.into()),
            (2, _) => Err(ErrorKind::NoSpace.into()),
            (3, _) => Err(ErrorKind::Timeout.into()),
            (4, _) => Err(ErrorKind::Fenced.into()),
            (_, Op::Read) => Ok(Buf::copy_from(&medium[range]).into()),
            (_, Op::Write) => {
                data.copy_to(&mut medium[range]);
                Ok(SgList::new())
            }
            (_, Op::WriteZeroes | Op::Discard) => {
                medium[range].fill(0);
                Ok(SgList::new())
            }
            (_, Op::Flush | Op::Extents) => Ok(SgList::new()),
        };
        let index = self.served.iter().position(|served| served.id == connection);
        let index = index.expect("a connection waits for its requests");
        let served = &mut self.served[index];
        let scsi_task = served.slots[task.index()].task.as_mut().expect("it is under way");
        let step = self.units.handle_medium_done(scsi_task, result);
        if matches!(step, Step::Submit(_) | Step::SubmitTo { .. })
            && served.machine.is_aborted(task)
        {
            served.machine.handle_outcome(task, Outcome::default());
        } else {
            self.go_on(index, task, step);
        }
        self.handle_events(index);
    }

    pub(super) fn wake(&mut self, which: usize) {
        let Some(which) = which.checked_rem(self.wakes.len()) else { return };
        let id = self.wakes.remove(which);
        let Some(index) = self.served.iter().position(|served| served.id == id) else { return };
        self.served[index].machine.handle_wake(&mut self.node);
        self.handle_events(index);
    }
}

/// A request that changes the medium changes what its command names, to what the command brings.
fn check_request(slot: &Slot, request: &MediumRequest) {
    let MediumRequest { op, offset, len, data, .. } = request;
    let end = offset.checked_add(*len).expect("no end");
    assert!(end <= (BLOCKS * BLOCK_LEN) as u64, "{op:?} past the end");
    assert_eq!(data.len() as u64, if *op == Op::Write { *len } else { 0 });
    let range = named(&slot.cdb, BLOCK_LEN as u64, (BLOCKS * BLOCK_LEN) as u64);
    let opcode = slot.cdb[0];
    match op {
        Op::Read | Op::Flush | Op::Extents => return,
        Op::Discard | Op::WriteZeroes if opcode == 0x42 => return,
        // SANITIZE names everything, and brings a pattern of its own.
        Op::Write | Op::Discard | Op::WriteZeroes if opcode == 0x48 => return,
        Op::Write | Op::Discard | Op::WriteZeroes => {}
    }
    let inside = range.start <= *offset && end <= range.end;
    assert!(inside, "{opcode:#x} of {range:?} changes {offset} to {end}");
    if *op == Op::Write {
        let bytes = data.to_contiguous();
        let start = (offset - range.start) as usize;
        for (at, byte) in bytes.iter().enumerate() {
            let from = match opcode {
                0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c => start + at,
                0x41 | 0x93 => (start + at) % BLOCK_LEN,
                0x89 => (range.end - range.start) as usize + start + at,
                // ORWRITE: what was there counts too.
                0x8b => return,
                _ => panic!("{opcode:#x} writes"),
            };
            assert_eq!(*byte, pattern(slot.tag, from), "{opcode:#x}: byte {at}");
        }
    }
}
