//! A SCSI target device: its logical units, and what it answers where there is none.

use alloc::vec::Vec;

use netraid_block::{IoError, SgList};

use crate::{
    cdb::{self, Command},
    inquiry::Identity,
    sense::{Additional, Sense, SenseFormat, SenseKey},
    unit::{
        LogicalUnit, NexusId, Response, Step, Task, UnitAttention, UnitConfig, decode_lun,
        report_luns,
    },
};

/// The logical units behind one target name, numbered from 0 without gaps.
///
/// Drives as [`LogicalUnit`] does, for the LUN that each command names.
#[derive(Debug, Default)]
pub struct TargetDevice {
    units: Vec<LogicalUnit>,
}

impl TargetDevice {
    /// A target device with these logical units.
    #[must_use]
    pub fn new(units: impl IntoIterator<Item = UnitConfig>) -> Self {
        Self { units: units.into_iter().map(LogicalUnit::new).collect() }
    }

    /// Number of logical units.
    #[must_use]
    pub fn unit_count(&self) -> usize {
        self.units.len()
    }

    /// The logical unit that the LUN field of a PDU names (SAM-5, section 4.7).
    pub fn unit_mut(&mut self, lun: [u8; 8]) -> Option<&mut LogicalUnit> {
        self.units.get_mut(usize::from(decode_lun(lun)?))
    }

    /// Makes a nexus known to every logical unit. False when one knows too many.
    pub fn add_nexus(&mut self, nexus: NexusId) -> bool {
        let added = self.units.iter_mut().all(|unit| unit.add_nexus(nexus));
        if !added {
            self.remove_nexus(nexus);
        }
        added
    }

    /// Forgets a nexus that is lost.
    pub fn remove_nexus(&mut self, nexus: NexusId) {
        self.units.iter_mut().for_each(|unit| unit.remove_nexus(nexus));
    }

    /// Establishes a unit attention condition on every logical unit.
    pub fn raise(&mut self, attention: UnitAttention, except: Option<NexusId>) {
        self.units.iter_mut().for_each(|unit| unit.raise(attention, except));
    }

    /// Resets every logical unit (TARGET WARM RESET, RFC 7143 section 11.5.1).
    pub fn handle_reset(&mut self) {
        self.units.iter_mut().for_each(LogicalUnit::handle_reset);
    }

    /// Begins a command, for which the initiator announced so many bytes of data-out; the task's
    /// first step.
    pub fn handle_command(
        &mut self,
        nexus: NexusId,
        lun: [u8; 8],
        cdb: &[u8],
        announced: u32,
    ) -> (Task, Step) {
        let number = decode_lun(lun);
        let count = u16::try_from(self.units.len()).unwrap_or(u16::MAX);
        let Some(unit) = self.unit_mut(lun) else {
            return (Task::ended(nexus), Step::Respond(absent(cdb, count)));
        };
        if cdb.first() == Some(&OPCODE_REPORT_LUNS) {
            unit.clear_reported_luns(nexus);
            return (Task::ended(nexus), Step::Respond(all_luns(cdb, count)));
        }
        let (mut task, step) = unit.handle_command(nexus, cdb, announced);
        task.lun = number.unwrap_or(0);
        (task, step)
    }

    /// Goes on with the data-out of a task.
    pub fn handle_data_out(&mut self, task: &mut Task, data: SgList) -> Step {
        match self.units.get_mut(usize::from(task.lun)) {
            Some(unit) => unit.handle_data_out(task, data),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// Goes on with the end of a task's medium request.
    pub fn handle_medium_done(&mut self, task: &mut Task, result: Result<SgList, IoError>) -> Step {
        match self.units.get_mut(usize::from(task.lun)) {
            Some(unit) => unit.handle_medium_done(task, result),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// Gives a task back that gets no response; its medium request has ended.
    pub fn handle_abort(&mut self, task: Task) {
        if let Some(unit) = self.units.get_mut(usize::from(task.lun)) {
            unit.handle_abort(task);
        }
    }
}

const OPCODE_REPORT_LUNS: u8 = 0xa0;

const fn not_supported() -> Sense {
    Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED)
}

fn all_luns(cdb: &[u8], count: u16) -> Response {
    let answer = cdb::parse(cdb).and_then(|command| match_luns(&command, count));
    answer.unwrap_or_else(|sense| Response::check(&sense))
}

fn match_luns(command: &Command, count: u16) -> Result<Response, Sense> {
    let Command::ReportLuns { select, allocation_len } = *command else {
        return Err(not_supported());
    };
    report_luns(0..count, select, allocation_len)
}

/// Answers a command to a LUN that does not exist (SPC-4, section 4.5.5 and SAM-5, section 4.12):
/// INQUIRY says so, REPORT LUNS and REQUEST SENSE still work, all else is refused.
fn absent(cdb: &[u8], count: u16) -> Response {
    let command = match cdb::parse(cdb) {
        Ok(command) => command,
        Err(_) => return Response::check(&not_supported()),
    };
    if let Command::Inquiry { page: None, allocation_len } = command {
        let mut data = Identity::for_lun("", 0).standard();
        // Peripheral qualifier 3, device type unknown.
        data[0] = 0x7f;
        return Response::data(&data, allocation_len);
    }
    if let Command::RequestSense { descriptor, allocation_len } = command {
        let format = if descriptor { SenseFormat::Descriptor } else { SenseFormat::Fixed };
        let sense = Sense::new(SenseKey::IllegalRequest, not_supported().additional);
        return Response::data(&sense.encode(format), allocation_len);
    }
    match_luns(&command, count).unwrap_or_else(|sense| Response::check(&sense))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cdb::build, sense::Status, unit::tests::config};

    fn respond(step: Step) -> Response {
        let Step::Respond(response) = step else { panic!("{step:?}") };
        response
    }

    #[test]
    fn absent_units_are_told_apart_and_luns_are_listed() {
        let mut target = TargetDevice::new([config(), config()]);
        let nexus = NexusId(1);
        let lun = |number: u8| [0, number, 0, 0, 0, 0, 0, 0];
        let mut ask = |at: u8, cdb: &[u8]| respond(target.handle_command(nexus, lun(at), cdb, 0).1);
        let inquiry = build::inquiry(None, 255);
        assert_eq!(ask(1, &inquiry).data_in.to_contiguous()[0], 0x00);
        assert_eq!(ask(2, &inquiry).data_in.to_contiguous()[0], 0x7f);
        for at in [0, 9] {
            let luns = ask(at, &build::report_luns(64));
            assert_eq!(luns.status, Status::Good);
            let bytes = luns.data_in.to_contiguous();
            assert_eq!((bytes.len(), bytes[3], bytes[17]), (24, 16, 1));
        }
        let refused = ask(2, &build::test_unit_ready());
        let sense = Sense::decode(&refused.sense).unwrap();
        assert_eq!(sense.additional, Additional::LOGICAL_UNIT_NOT_SUPPORTED);
    }
}
