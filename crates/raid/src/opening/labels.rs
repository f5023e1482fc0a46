//! Labels of devices: read, and weighed against each other and against what the devices can do.

use alloc::vec::Vec;

use super::{Device, Note, OpenError, Opening};
use crate::{
    access::{Ask, Failure, Needs},
    assemble::{Assembly, Found, Permissions, assemble, choose_array, misplaced},
    fencing::outlives,
    label::{Label, LabelError, Uuid},
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
    testimony::judge,
};

impl<E: Failure> Opening<E> {
    /// Makes a session to each device that can be reached.
    pub(super) async fn visit(&mut self) {
        let all = (0..self.names.len()).collect();
        for (at, answer) in self.each(all, |_| Ask::Visit).await {
            match answer.device() {
                Ok(info) => {
                    let device = Device { info, is_taken_over: false, exclusive: false };
                    self.devices[at] = Some(device);
                }
                Err(error) => self.notes.push(Note::Failed(error)),
            }
        }
    }

    /// The labels that there are, with the places of their devices.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn read_labels(&mut self) -> Result<Vec<(usize, Found)>, OpenError<E>> {
        let mut found = Vec::new();
        for (at, answer) in self.each(self.reached(), |_| Ask::Label).await {
            match answer.label() {
                Ok(Ok(label)) => {
                    let address = self.names[at].clone();
                    found.push((at, Found { address, label, checkpoint: None }));
                }
                Ok(Err(LabelError::Absent)) if self.is_spare(at) => {}
                Ok(Err(reason)) => self.notes.push(Note::NoLabel(at, reason)),
                Err(error) => self.notes.push(Note::Failed(error)),
            }
        }
        let of = |at: usize| {
            let (_, found) = &found[at];
            found.label.log.as_ref().map(|_| found.label.array_uuid)
        };
        let logged: Vec<usize> = (0..found.len()).filter(|at| of(*at).is_some()).collect();
        let places = logged.iter().map(|at| found[*at].0).collect();
        let ask = |place| {
            let array =
                found.iter().find(|(at, _)| *at == place).map(|(_, one)| one.label.array_uuid);
            Ask::Checkpoint(array.unwrap_or_default())
        };
        let answers = self.each(places, ask).await;
        for (at, (_, answer)) in logged.into_iter().zip(answers) {
            found[at].1.checkpoint = answer.checkpoint();
        }
        match found.is_empty() {
            true => Err(OpenError::NoLabels),
            false => Ok(found),
        }
    }

    fn is_spare(&self, at: usize) -> bool {
        at + self.options.spares >= self.names.len()
    }

    /// Takes labels of spares that are members of another array than the others.
    pub(super) fn leave_out_foreign_spares(&mut self, found: &mut Vec<(usize, Found)>) {
        let of_members = found.iter().filter(|(at, _)| !self.is_spare(*at));
        let arrays: Vec<Uuid> = of_members.map(|(_, found)| found.label.array_uuid).collect();
        let is_foreign =
            |at: usize, label: &Label| self.is_spare(at) && !arrays.contains(&label.array_uuid);
        let foreign = found.extract_if(.., |(at, found)| is_foreign(*at, &found.label));
        let notes =
            foreign.map(|(place, found)| Note::ForeignSpare { place, name: found.label.name });
        let notes: Vec<Note<E>> = notes.collect();
        self.notes.extend(notes);
    }

    /// Takes labels of arrays whose making was cut short from those of the one that is opened.
    pub(super) fn leave_out_unopened(&mut self, found: &mut Vec<(usize, Found)>) {
        let Some(chosen) = choose_array(found.iter().map(|(_, found)| &found.label)) else {
            return;
        };
        found.retain(|(place, Found { label, .. })| {
            let is_its = label.array_uuid == chosen;
            if !is_its {
                let name = label.name.clone();
                self.notes.push(Note::NeverOpened { place: *place, name });
            }
            is_its
        });
    }

    /// Takes labels away that are not of the member that they stand for; of which these are.
    pub(super) fn leave_out_misplaced(
        &mut self,
        found: &mut Vec<(usize, Found)>,
    ) -> Vec<(MemberIndex, usize)> {
        // Clamped: more members may be given than any array has, and no label says so high a place.
        let member = |at: usize| MemberIndex(u8::try_from(at).unwrap_or(u8::MAX));
        let labels: Vec<(MemberIndex, &Label)> =
            found.iter().map(|(at, found)| (member(*at), &found.label)).collect();
        let misplaced = misplaced(&labels);
        let mut left_out = Vec::new();
        for at in misplaced.into_iter().rev() {
            let (place, Found { label, .. }) = found.remove(at);
            let (member, says, array) = (member(place), label.index, label.array_uuid);
            self.notes.push(Note::Misplaced { place, member, says, name: label.name, array });
            left_out.push((member, place));
        }
        left_out
    }

    /// Weighs the labels against each other, and what the devices can do against what the array needs. The lock
    /// is taken where it is not held yet, and something may be written; members that are `unfit` are left out.
    pub(super) async fn weigh(
        &mut self,
        found: &[(usize, Found)],
        unfit: MemberSet,
    ) -> Result<Assembly, OpenError<E>> {
        let labels: Vec<Found> = found.iter().map(|(_, found)| found.clone()).collect();
        self.check_continues(truth(&labels))?;
        let writes = !self.options.read_only;
        if let Some(truth) = truth(&labels).filter(|_| writes) {
            self.lock(truth).await?;
        }
        let is_dead = |truth: &Label| {
            let is_silent = self.options.silent.is_some_and(|silent| silent.wrote(truth));
            self.has_lock && (outlives(&self.this, &truth.holder) || is_silent)
        };
        let mut permissions = Permissions {
            clean_close: self.options.clean_close,
            read_only: !writes,
            holder_is_dead: truth(&labels).is_some_and(is_dead) || self.options.take_over,
            force: self.options.force,
            unfit,
        };
        let mut assembly = assemble(&labels, permissions).map_err(OpenError::Assemble)?;
        let needs = Needs::of(&assembly.label, assembly.label.geometry.chunk_len(), writes);
        for (member, place) in (0..).map(MemberIndex).zip(places(&assembly, found)) {
            let Some(at) = place else { continue };
            let Some(device) = &self.devices[at] else { continue };
            if let Err(unfit) = needs.check(&device.info) {
                permissions.unfit.insert(member);
                self.notes.push(Note::LeftOut(member, OpenError::Unfit(at, unfit)));
            }
        }
        if !permissions.unfit.is_empty() {
            assembly = assemble(&labels, permissions).map_err(OpenError::Assemble)?;
        }
        for (at, lie) in &assembly.liars {
            let (place, Found { label, .. }) = &found[*at];
            self.notes.push(Note::Liar { place: *place, member: label.index, lie: *lie });
        }
        Ok(assembly)
    }

    /// Refuses an array that another engine has had since this one opened it, and one of which only members are here that
    /// were set aside before.
    fn check_continues(&self, truth: Option<&Label>) -> Result<(), OpenError<E>> {
        let (Some(known), Some(truth)) = (self.options.continues, truth) else { return Ok(()) };
        let Label { generation, epoch, .. } = *truth;
        let name = truth.name.clone();
        if truth.array_uuid != known.array {
            return Err(OpenError::MadeAnew { name });
        }
        if (generation, epoch) < (known.generation, known.epoch)
            && !planted(Planted::GoesOnWithOlderMembers)
        {
            return Err(OpenError::Behind { name, generation, epoch });
        }
        let is_other = truth.holder.engine_id != known.engine && generation > known.generation;
        if is_other && !planted(Planted::GoesOnAfterTakeOver) {
            let holder = truth.holder.name.clone();
            return Err(OpenError::TakenOver { name, holder, generation });
        }
        Ok(())
    }

    /// Tells of devices that were members and are not used.
    pub(super) fn note_stale(&mut self, assembly: &Assembly, found: &[(usize, Found)]) {
        for at in &assembly.stale {
            let (place, Found { label, .. }) = &found[*at];
            let member = label.index;
            let is_served = assembly.found.get(member.as_usize()).is_some_and(Option::is_some);
            let uuid = |label: &Label| label.members.get(member.as_usize()).map(|it| it.uuid);
            let is_replaced = is_served || uuid(label) != uuid(&assembly.label);
            let place = *place;
            self.notes.push(match is_replaced {
                true => Note::Replaced { place, member, is_served },
                false => Note::NotCurrent(place, member),
            });
        }
    }
}

/// For each member in order: its device.
pub(super) fn places(assembly: &Assembly, found: &[(usize, Found)]) -> Vec<Option<usize>> {
    assembly.found.iter().map(|place| place.map(|at| found[at].0)).collect()
}

/// The label that is believed; the newest where it is not clear which one that is, which is told later.
fn truth(found: &[Found]) -> Option<&Label> {
    let newest = found.iter().max_by_key(|f| (f.label.generation, f.label.epoch))?;
    let labels: Vec<&Label> = found.iter().map(|found| &found.label).collect();
    let checkpoints: Vec<Option<u64>> = found.iter().map(|found| found.checkpoint).collect();
    Some(judge(&labels, &checkpoints).map_or(&newest.label, |verdict| labels[verdict.truth]))
}
