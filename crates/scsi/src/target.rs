//! A SCSI target device: its logical units, and what it answers where there is none.

mod copy;

use alloc::{boxed::Box, vec::Vec};

use netraid_block::{DeviceInfo, IoError, Op, SgList};

pub(crate) use self::copy::Copy;
use crate::{
    cdb::{self, Command, Report},
    copy::CopyRecords,
    inquiry::Identity,
    ports::Nexus,
    sense::{Additional, Sense, SenseFormat, SenseKey},
    unit::{
        Background, LogicalUnit, Marker, MediumRequest, NexusId, Refusal, Response, Step, Task,
        UnitAttention, UnitConfig, View, decode_lun, report_luns,
    },
};

/// Largest number of a LUN: what flat space addressing can say (SAM-5, section 4.7.7.3).
pub const LUN_MAX: u16 = 0x3fff;

/// The logical units behind one target name, by their LUNs, which may have gaps.
///
/// Drives as [`LogicalUnit`] does, for the LUN that each command names. Logical units come by
/// [`TargetDevice::add`] and go by [`TargetDevice::retire`], which ends their commands' coming, and
/// [`TargetDevice::remove`], once none is under way.
///
/// Invariant: a task never reaches another logical unit than the one that began it, although its
/// LUN may have been given to another meanwhile.
#[derive(Debug, Default)]
pub struct TargetDevice {
    /// By LUN; the last one is taken.
    places: Vec<Option<Box<Place>>>,
    /// Whom a logical unit that comes later has to know.
    nexuses: Vec<(NexusId, Nexus)>,
    next_incarnation: u64,
    /// Copies under way.
    copies: usize,
    records: CopyRecords,
}

/// A LUN that is taken.
#[derive(Debug)]
struct Place {
    unit: LogicalUnit,
    /// Tells apart what had one LUN at different times.
    incarnation: u64,
    /// It exists for the tasks that are under way, and for no others.
    retired: bool,
}

/// Why a logical unit cannot come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddUnitError {
    /// The LUN is above [`LUN_MAX`].
    TooLarge,
    /// There is one, or the tasks of a retired one are still under way.
    Taken,
}

impl TargetDevice {
    /// A target device with these logical units, as LUN 0, 1, and so on.
    #[must_use]
    pub fn new(units: impl IntoIterator<Item = UnitConfig>) -> Self {
        let mut device = Self::default();
        for (lun, config) in (0..=LUN_MAX).zip(units) {
            device.place(lun, config);
        }
        device
    }

    /// Number of logical units.
    #[must_use]
    pub fn unit_count(&self) -> usize {
        self.luns().count()
    }

    /// The LUNs of all logical units, ascending.
    pub fn luns(&self) -> impl Iterator<Item = u16> + '_ {
        let places = (0..=LUN_MAX).zip(&self.places);
        places.filter(|(_, place)| serves(place.as_deref())).map(|(lun, _)| lun)
    }

    /// The logical unit that the LUN field of a PDU names (SAM-5, section 4.7).
    pub fn unit_mut(&mut self, lun: [u8; 8]) -> Option<&mut LogicalUnit> {
        let place = self.serving(decode_lun(lun)?)?;
        Some(&mut place.unit)
    }

    /// The logical unit of this number; also one that takes no more commands.
    #[must_use]
    pub fn unit(&self, lun: u16) -> Option<&LogicalUnit> {
        self.places.get(usize::from(lun))?.as_ref().map(|place| &place.unit)
    }

    /// Takes a new logical unit; every nexus is told that the LUNs changed (SPC-4, section 6.33.1).
    ///
    /// # Errors
    /// When the LUN is too large or taken.
    pub fn add(&mut self, lun: u16, config: UnitConfig) -> Result<(), AddUnitError> {
        if lun > LUN_MAX {
            return Err(AddUnitError::TooLarge);
        }
        if self.places.get(usize::from(lun)).is_some_and(Option::is_some) {
            return Err(AddUnitError::Taken);
        }
        self.raise(UnitAttention::ReportedLunsChanged, None);
        self.place(lun, config);
        Ok(())
    }

    /// Commands to this LUN find no logical unit from now on, and every nexus is told; tasks that
    /// are under way go on. False when there is none.
    pub fn retire(&mut self, lun: u16) -> bool {
        let Some(place) = self.serving(lun) else { return false };
        place.retired = true;
        self.raise(UnitAttention::ReportedLunsChanged, None);
        true
    }

    /// Forgets a retired logical unit. Tasks of it that have no medium request under way may go
    /// on: they end with LOGICAL UNIT NOT SUPPORTED.
    ///
    /// # Panics
    /// When it still serves.
    pub fn remove(&mut self, lun: u16) {
        let Some(place) = self.places.get_mut(usize::from(lun)) else { return };
        assert!(!serves(place.as_deref()), "LUN {lun} is removed while it serves");
        *place = None;
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
    }

    /// The device behind a logical unit is described anew: see [`LogicalUnit::handle_changed`].
    /// False when there is none.
    pub fn handle_changed(&mut self, lun: u16, info: DeviceInfo) -> bool {
        let Some(place) = self.serving(lun) else { return false };
        place.unit.handle_changed(info);
        true
    }

    /// Makes a nexus known to every logical unit. False when one knows too many.
    pub fn add_nexus(&mut self, id: NexusId, nexus: &Nexus) -> bool {
        let added = self.units().all(|unit| unit.add_nexus(id, nexus));
        if !added {
            self.remove_nexus(id);
        } else if !self.nexuses.iter().any(|(known, _)| *known == id) {
            self.nexuses.push((id, nexus.clone()));
        }
        added
    }

    /// What a nexus sees of the device behind a logical unit: see [`LogicalUnit::set_view`]. False
    /// when there is no such logical unit.
    pub fn set_view(&mut self, lun: u16, nexus: NexusId, view: View) -> bool {
        let Some(place) = self.serving(lun) else { return false };
        place.unit.set_view(nexus, view);
        true
    }

    /// Forgets a nexus that is lost.
    pub fn remove_nexus(&mut self, nexus: NexusId) {
        self.nexuses.retain(|(known, _)| *known != nexus);
        self.records.remove_nexus(nexus);
        self.units().for_each(|unit| unit.remove_nexus(nexus));
    }

    /// Establishes a unit attention condition on every logical unit.
    pub fn raise(&mut self, attention: UnitAttention, except: Option<NexusId>) {
        self.units().for_each(|unit| unit.raise(attention, except));
    }

    /// Resets every logical unit (TARGET WARM RESET, RFC 7143 section 11.5.1).
    pub fn handle_reset(&mut self) {
        self.units().for_each(LogicalUnit::handle_reset);
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
        let Some((number, place)) = number.and_then(|lun| Some((lun, self.serving(lun)?))) else {
            return (Task::ended(nexus), Step::Respond(self.absent(cdb)));
        };
        if cdb.first() == Some(&OPCODE_REPORT_LUNS) {
            place.unit.clear_reported_luns(nexus);
            return (Task::ended(nexus), Step::Respond(self.all_luns(cdb)));
        }
        if let Some(&(OPCODE_EXTENDED_COPY | OPCODE_RECEIVE_COPY_RESULTS)) = cdb.first() {
            return self.handle_copy_command(number, Task::ended(nexus), cdb);
        }
        let (mut task, step) = place.unit.handle_command(nexus, cdb, announced);
        (task.lun, task.incarnation) = (number, place.incarnation);
        (task, step)
    }

    /// Goes on with the data-out of a task.
    pub fn handle_data_out(&mut self, task: &mut Task, data: SgList) -> Step {
        if task.copy.is_some() {
            return self.copy_data(task, &data);
        }
        match self.unit_of(task) {
            Some(unit) => unit.handle_data_out(task, data),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// Goes on with a task whose first request was kept back for a while, when it is to be
    /// submitted now.
    pub fn handle_kept_back(&mut self, task: &mut Task, request: MediumRequest) -> Step {
        match self.unit_of(task) {
            Some(unit) => unit.handle_kept_back(task, request),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// Goes on with the end of a task's medium request.
    pub fn handle_medium_done(&mut self, task: &mut Task, result: Result<SgList, IoError>) -> Step {
        if task.copy.is_some() {
            return self.copy_done(task, result);
        }
        match self.unit_of(task) {
            Some(unit) => unit.handle_medium_done(task, result),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// What a task that waits for its data-out is going to do: operation, first byte, number of
    /// bytes. `None` when its CDB does not say.
    #[must_use]
    pub fn intent(&mut self, task: &Task) -> Option<(Op, u64, u64)> {
        self.unit_of(task)?.intent(task)
    }

    /// Goes on with a task whose change of reservations was stored durably, or could not be.
    pub fn handle_persisted(&mut self, task: &mut Task, is_stored: bool) -> Step {
        match self.unit_of(task) {
            Some(unit) => unit.handle_persisted(task, is_stored),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// Goes on with a task for which the commands of preempted nexuses have ended.
    pub fn handle_aborted(&mut self, task: &mut Task) -> Step {
        match self.unit_of(task) {
            Some(unit) => unit.handle_aborted(task),
            None => Step::Respond(Response::check(&not_supported())),
        }
    }

    /// Ends a task whose medium request is not to be submitted; the response says why.
    pub fn handle_refusal(&mut self, task: &mut Task, refusal: Refusal) -> Response {
        if task.copy.is_some() {
            return self.copy_refused(task, refusal);
        }
        match self.unit_of(task) {
            Some(unit) => unit.handle_refusal(task, refusal),
            None => Response::check(&not_supported()),
        }
    }

    /// Makes a logical unit go on with a sanitize operation that did not come to its end: see
    /// [`LogicalUnit::resume_sanitize`].
    pub fn resume_sanitize(&mut self, lun: u16, marker: Marker) {
        if let Some(place) = self.serving(lun) {
            place.unit.resume_sanitize(marker);
        }
    }

    /// A task of this logical unit waits: see [`LogicalUnit::begin_background`].
    pub fn begin_background(&mut self, lun: u16) {
        if let Some(place) = self.serving(lun) {
            place.unit.begin_background();
        }
    }

    /// The next thing to do for a logical unit that belongs to no task: see
    /// [`LogicalUnit::poll_background`].
    pub fn poll_background(&mut self, lun: u16) -> Option<Background> {
        self.serving(lun)?.unit.poll_background()
    }

    /// How what [`Self::poll_background`] gave has ended; the logical unit is still the same.
    pub fn handle_background_done(&mut self, lun: u16, result: Result<SgList, IoError>) {
        if let Some(place) = self.serving(lun) {
            place.unit.handle_background_done(result);
        }
    }

    /// Gives a task back that gets no response; its medium request has ended.
    pub fn handle_abort(&mut self, mut task: Task) {
        if let Some(copy) = task.copy.take() {
            self.copy_aborted(task.nexus(), copy);
        }
        if let Some(unit) = self.unit_of(&task) {
            unit.handle_abort(task);
        }
    }

    fn place(&mut self, lun: u16, config: UnitConfig) {
        let at = usize::from(lun);
        if self.places.len() <= at {
            self.places.resize_with(at + 1, || None);
        }
        let mut unit = LogicalUnit::new(config);
        self.nexuses.iter().for_each(|(id, nexus)| {
            // As many as the others know fit into this one.
            unit.add_nexus(*id, nexus);
        });
        let incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        self.places[at] = Some(Box::new(Place { unit, incarnation, retired: false }));
    }

    fn units(&mut self) -> impl Iterator<Item = &mut LogicalUnit> {
        self.places.iter_mut().flatten().map(|place| &mut place.unit)
    }

    fn serving(&mut self, lun: u16) -> Option<&mut Place> {
        let place = self.places.get_mut(usize::from(lun))?.as_deref_mut()?;
        (!place.retired).then_some(place)
    }

    /// The logical unit that began a task, if it is still there.
    fn unit_of(&mut self, task: &Task) -> Option<&mut LogicalUnit> {
        let place = self.places.get_mut(usize::from(task.lun))?.as_deref_mut()?;
        (place.incarnation == task.incarnation).then_some(&mut place.unit)
    }

    fn all_luns(&self, cdb: &[u8]) -> Response {
        let answer = cdb::parse(cdb).and_then(|command| self.match_luns(&command));
        answer.unwrap_or_else(|sense| Response::check(&sense))
    }

    fn match_luns(&self, command: &Command) -> Result<Response, Sense> {
        let Command::Report(Report::ReportLuns { select, allocation_len }) = *command else {
            return Err(not_supported());
        };
        report_luns(self.luns(), select, allocation_len)
    }

    /// Answers a command to a LUN that does not exist (SPC-4, section 4.5.5 and SAM-5, section
    /// 4.12): INQUIRY says so, REPORT LUNS and REQUEST SENSE still work, all else is refused.
    fn absent(&self, cdb: &[u8]) -> Response {
        let command = match cdb::parse(cdb) {
            Ok(command) => command,
            Err(_) => return Response::check(&not_supported()),
        };
        if let Command::Report(Report::Inquiry { page: None, allocation_len }) = command {
            let mut data = Identity::for_lun("", 0).standard();
            // Peripheral qualifier 3, device type unknown.
            data[0] = 0x7f;
            return Response::data(&data, allocation_len);
        }
        if let Command::Report(Report::RequestSense { descriptor, allocation_len }) = command {
            let format = if descriptor { SenseFormat::Descriptor } else { SenseFormat::Fixed };
            let sense = Sense::new(SenseKey::IllegalRequest, not_supported().additional);
            return Response::data(&sense.encode(format), allocation_len);
        }
        self.match_luns(&command).unwrap_or_else(|sense| Response::check(&sense))
    }
}

fn serves(place: Option<&Place>) -> bool {
    place.is_some_and(|place| !place.retired)
}

const OPCODE_EXTENDED_COPY: u8 = 0x83;
const OPCODE_RECEIVE_COPY_RESULTS: u8 = 0x84;
const OPCODE_REPORT_LUNS: u8 = 0xa0;

const fn not_supported() -> Sense {
    Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use netraid_block::BufMut;

    use super::*;
    use crate::{
        cdb::{Extent, build},
        sense::Status,
        unit::{encode_lun, tests::config},
    };

    fn respond(step: Step) -> Response {
        let Step::Respond(response) = step else { panic!("{step:?}") };
        response
    }

    #[test]
    fn absent_units_are_told_apart_and_luns_are_listed() {
        let mut target = TargetDevice::new([config(), config()]);
        let nexus = NexusId(1);
        target.add_nexus(nexus, &crate::unit::tests::nexus(1));
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

    fn lun(number: u16) -> [u8; 8] {
        encode_lun(number)
    }

    fn block(lba: u64) -> Extent {
        Extent { lba, blocks: 1 }
    }

    fn sense_of(step: Step) -> Additional {
        Sense::decode(&respond(step).sense).unwrap().additional
    }

    fn listed(target: &mut TargetDevice, nexus: NexusId) -> Vec<u8> {
        let (_, step) = target.handle_command(nexus, lun(0), &build::report_luns(255), 0);
        let bytes = respond(step).data_in.to_contiguous();
        bytes[8..].chunks(8).map(|lun| lun[1]).collect()
    }

    /// A target of two logical units whose first nexus has heard of power on.
    fn pair() -> (TargetDevice, NexusId) {
        let mut target = TargetDevice::new([config(), config()]);
        let nexus = NexusId(1);
        assert!(target.add_nexus(nexus, &crate::unit::tests::nexus(1)));
        for number in [0, 1] {
            let (_, step) = target.handle_command(nexus, lun(number), &build::test_unit_ready(), 0);
            assert_eq!(sense_of(step), Additional::POWER_ON_OR_RESET);
        }
        (target, nexus)
    }

    #[test]
    fn a_new_lun_is_announced_on_all_others() {
        let (mut target, nexus) = pair();
        target.add(7, config()).unwrap();
        for number in [0, 1] {
            let (_, step) = target.handle_command(nexus, lun(number), &build::test_unit_ready(), 0);
            assert_eq!(sense_of(step), Additional::REPORTED_LUNS_CHANGED);
        }
        let (_, step) = target.handle_command(nexus, lun(7), &build::test_unit_ready(), 0);
        assert_eq!(sense_of(step), Additional::POWER_ON_OR_RESET);
        assert_eq!(listed(&mut target, nexus), [0, 1, 7]);
    }

    #[test]
    fn a_lun_is_given_once_and_within_the_limit() {
        let (mut target, _) = pair();
        assert_eq!(target.add(1, config()), Err(AddUnitError::Taken));
        assert_eq!(target.add(LUN_MAX + 1, config()), Err(AddUnitError::TooLarge));
        assert_eq!(target.add(LUN_MAX, config()), Ok(()));
        assert!(target.retire(LUN_MAX));
        assert_eq!(target.add(LUN_MAX, config()), Err(AddUnitError::Taken), "not yet removed");
        target.remove(LUN_MAX);
        assert_eq!(target.add(LUN_MAX, config()), Ok(()));
    }

    #[test]
    fn a_retired_lun_is_absent_for_new_commands_and_there_for_old_ones() {
        let (mut target, nexus) = pair();
        let (mut task, step) =
            target.handle_command(nexus, lun(1), &build::read(block(0), false), 0);
        assert!(matches!(step, Step::Submit(_)), "{step:?}");
        assert!(target.retire(1));
        assert!(!target.retire(1));
        let (_, step) = target.handle_command(nexus, lun(1), &build::test_unit_ready(), 0);
        assert_eq!(sense_of(step), Additional::LOGICAL_UNIT_NOT_SUPPORTED);
        assert_eq!(listed(&mut target, nexus), [0]);
        let step = target.handle_medium_done(&mut task, Ok(SgList::new()));
        assert_eq!(respond(step).status, Status::Good);
    }

    #[test]
    fn a_task_does_not_reach_the_next_unit_of_its_lun() {
        let (mut target, nexus) = pair();
        let write = build::write(block(0), false, false);
        let (mut task, step) = target.handle_command(nexus, lun(1), &write, 512);
        assert!(matches!(step, Step::DataOut { len: 512, .. }), "{step:?}");
        target.retire(1);
        target.remove(1);
        target.add(1, config()).unwrap();
        let step = target.handle_data_out(&mut task, BufMut::zeroed(512).freeze().into());
        assert_eq!(sense_of(step), Additional::LOGICAL_UNIT_NOT_SUPPORTED);
    }

    #[test]
    fn a_change_of_capacity_is_told_and_takes_effect() {
        let (mut target, nexus) = pair();
        let last = config().info.capacity / 512;
        let read = build::read(block(last), false);
        let (_, step) = target.handle_command(nexus, lun(1), &read, 0);
        assert_eq!(sense_of(step), Additional::LBA_OUT_OF_RANGE);
        let info = config().info;
        let larger = DeviceInfo { capacity: info.capacity * 2, ..info };
        assert!(target.handle_changed(1, larger.clone()));
        let (_, step) = target.handle_command(nexus, lun(1), &read, 0);
        assert_eq!(sense_of(step), Additional::CAPACITY_DATA_CHANGED);
        let (_, step) = target.handle_command(nexus, lun(1), &read, 0);
        assert!(matches!(step, Step::Submit(_)), "{step:?}");
        // The same once more is no change.
        assert!(target.handle_changed(1, larger));
        let (_, step) = target.handle_command(nexus, lun(1), &build::test_unit_ready(), 0);
        assert_eq!(respond(step).status, Status::Good);
        assert!(!target.handle_changed(2, config().info));
    }

    #[test]
    fn a_refused_request_ends_its_task_and_gives_its_place_back() {
        let (mut target, nexus) = pair();
        let write = build::write(block(0), false, false);
        for refusal in [Refusal::AccessDenied, Refusal::Busy, Refusal::Gone] {
            let (mut task, _) = target.handle_command(nexus, lun(0), &write, 512);
            let data = BufMut::zeroed(512).freeze().into();
            let step = target.handle_data_out(&mut task, data);
            assert!(matches!(step, Step::Submit(_)), "{step:?}");
            let response = target.handle_refusal(&mut task, refusal);
            match refusal {
                Refusal::Busy => assert_eq!(response.status, Status::Busy),
                Refusal::AccessDenied => {
                    let sense = Sense::decode(&response.sense).unwrap();
                    assert_eq!(sense.additional, Additional::ACCESS_DENIED);
                }
                Refusal::Gone => {
                    let sense = Sense::decode(&response.sense).unwrap();
                    assert_eq!(sense.additional, Additional::LOGICAL_UNIT_NOT_SUPPORTED);
                }
            }
        }
    }
}
