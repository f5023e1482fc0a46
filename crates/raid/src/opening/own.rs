//! Devices that the array will use become this engine's alone: taken over, fenced, and looked at again.

use alloc::{collections::BTreeSet, vec::Vec};

use super::{Note, OpenError, Opening, Options, labels::places};
use crate::{
    access::{Ask, Failure},
    assemble::{AssembleError, Assembly, Found},
    fencing::{Fence, Removes, VACANT, key_of_dead_holder, steps::FenceError},
    label::{Closure, Holder, Label},
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
};

/// What was decided of labels, and holds: nobody else can change them any more.
pub(super) struct Held {
    pub(super) assembly: Assembly,
    /// For each member in order: its device.
    pub(super) places: Vec<Option<usize>>,
    /// None when nothing is written.
    pub(super) fence: Option<Fence>,
}

/// Devices that are left out, with why.
pub(super) type LeftOut<E> = Vec<(usize, OpenError<E>)>;

impl<E: Failure> Opening<E> {
    /// Decides, and makes the members that the array will use its own alone. A member that refuses the array's sessions,
    /// whose answers about reservations are of no use, or whose label is another one by then, is left out, and it is
    /// decided again: what its label said counts all the same. Where such members alone are enough to serve from, another
    /// engine may be doing so unfenced, and the array is not opened.
    pub(super) async fn weigh_and_fence(
        &mut self,
        found: &[(usize, Found)],
        random: u64,
    ) -> Result<Held, OpenError<E>> {
        let mut unfenced = MemberSet::EMPTY;
        loop {
            self.check_stopped()?;
            let before = self.notes.len();
            let assembly = self.weigh(found, unfenced).await?;
            let read_only = self.options.read_only;
            if assembly.label.log.is_some() && read_only && assembly.unclean {
                return Err(OpenError::NotClosed { name: assembly.label.name });
            }
            let places = places(&assembly, found);
            let truth = &found[assembly.truth].1.label;
            if read_only {
                self.check_not_held(&assembly, truth)?;
                // In a cluster the mediator keeps writers away from readers.
                let failed = match self.options.is_placed {
                    true => LeftOut::new(),
                    false => self.attend(&places, truth, found, random).await?,
                };
                if failed.is_empty() {
                    return Ok(Held { assembly, places, fence: None });
                }
                self.leave_out(failed, (&assembly, &places), &mut unfenced, before).await?;
                continue;
            }
            if let Err(fewer) = self.check_all_there(truth, &places) {
                self.note_stale(&assembly, found);
                return Err(fewer);
            }
            let fence = Fence::new(truth, &self.this, self.removes([truth, truth]), random);
            let failed = self.make_own(&places, fence, truth, found).await?;
            if failed.is_empty() {
                let is_exclusive = |(_, at): &(MemberIndex, usize)| {
                    self.devices[*at].as_ref().is_some_and(|device| device.exclusive)
                };
                let shut_out = members_of(&places).filter(is_exclusive);
                self.check_shut_out(truth, shut_out.map(|(member, _)| member).collect())?;
                return Ok(Held { assembly, places, fence: Some(fence) });
            }

            self.leave_out(failed, (&assembly, &places), &mut unfenced, before).await?;
        }
    }

    /// Goes on without devices that failed, of the members in `unfenced` from now on. Notes since there were `notes` are made anew.
    ///
    /// # Errors
    /// When these members alone are enough to serve from.
    async fn leave_out(
        &mut self,
        failed: LeftOut<E>,
        (assembly, places): (&Assembly, &[Option<usize>]),
        unfenced: &mut MemberSet,
        notes: usize,
    ) -> Result<(), OpenError<E>> {
        self.notes.truncate(notes);
        let at: Vec<usize> = failed.iter().map(|(at, _)| *at).collect();
        for (at, error) in failed {
            let member = member_at(places, at);
            unfenced.insert(member);
            if assembly.label.geometry.can_serve_from(*unfenced) {
                return Err(error);
            }
            self.notes.push(Note::LeftOut(member, error));
        }
        self.leave(at).await;
        Ok(())
    }

    /// Refuses to read an array without a log that somebody may have open: what is read of it once, as its written bits, grows old.
    fn check_not_held(&self, assembly: &Assembly, truth: &Label) -> Result<(), OpenError<E>> {
        let Options { take_over, force, is_placed, .. } = self.options;
        if truth.closure != Closure::Open || !assembly.unclean || take_over || force || is_placed {
            return Ok(());
        }
        let (name, holder) = (truth.name.clone(), truth.holder.name.clone());
        let generation = truth.generation;
        Err(OpenError::Assemble(AssembleError::Held { name, holder, generation }))
    }

    /// Registers this reader at the members, so that who opens the array for writing from now on ends its reads, and makes sure that
    /// nobody has done so since the labels were read; the devices at which it cannot register.
    ///
    /// # Errors
    /// When an engine that writes is registered, or has written labels.
    async fn attend(
        &self,
        places: &[Option<usize>],
        truth: &Label,
        found: &[(usize, Found)],
        random: u64,
    ) -> Result<LeftOut<E>, OpenError<E>> {
        let removes = self.removes([truth, truth]);
        let reader = Fence::of_reader(truth, &self.this, removes, random);
        let used: BTreeSet<usize> = places.iter().flatten().copied().collect();
        let used: Vec<usize> = used.into_iter().collect();
        let mut failed = LeftOut::new();
        for (at, answer) in self.each(used, |_| Ask::Attend(reader)).await {
            match answer.fenced() {
                Ok(_) => {}
                Err(error) if is_of_no_use(&error) => {
                    failed.push((at, OpenError::NotFenced(at, error)));
                }
                Err(error) => return Err(OpenError::NotFenced(at, error)),
            }
        }
        match failed.is_empty() {
            true => self.find_changed(places, truth, found).await,
            false => Ok(failed),
        }
    }

    /// Refuses an array that would go on with fewer members than took part last, where an administrator did not say that it may.
    pub(super) fn check_all_there(
        &self,
        truth: &Label,
        places: &[Option<usize>],
    ) -> Result<(), OpenError<E>> {
        let took_part = |member: &MemberIndex| truth.state(*member).is_live();
        let is_away = |member: &MemberIndex| places[member.as_usize()].is_none();
        let members = truth.geometry.member_indices().filter(took_part).filter(is_away);
        let members: MemberSet = members.collect();
        let may_be_fewer = !self.options.wants_all || self.options.force || self.options.read_only;
        if may_be_fewer || members.is_empty() {
            return Ok(());
        }
        Err(OpenError::Fewer { name: truth.name.clone(), members })
    }

    /// Takes the devices in these places over, fences them, and makes sure that their labels are what was decided on;
    /// those that fail at it.
    async fn make_own(
        &mut self,
        places: &[Option<usize>],
        fence: Fence,
        truth: &Label,
        found: &[(usize, Found)],
    ) -> Result<LeftOut<E>, OpenError<E>> {
        let failed = self.take_over(places, fence, truth, found).await?;
        if !failed.is_empty() {
            return Ok(failed);
        }
        let used: BTreeSet<usize> = places.iter().flatten().copied().collect();
        let used: Vec<usize> = used.into_iter().collect();
        self.read_keys(&used).await;
        if let Some(silent) = self.silent(truth) {
            let members: Vec<(MemberIndex, usize)> = members_of(places).collect();
            let failed = self.try_out((&silent, truth), &members, fence).await?;
            if !failed.is_empty() {
                return Ok(failed);
            }
            let failed = self.find_changed(places, truth, found).await?;
            if !failed.is_empty() {
                return Ok(failed);
            }
        }
        // From here on others are removed.
        self.check_stopped()?;
        let failed = self.exclude_others(used.clone(), fence, truth, found).await?;
        if !failed.is_empty() {
            return Ok(failed);
        }
        // A predecessor to whom one of them is to come back may have registered there before it was shut out at the
        // others: it is found the second time, which removes nobody who came after the keys were read.
        let exclusive = |at: &usize| self.devices[*at].as_ref().is_some_and(|one| one.exclusive);
        let again = used.into_iter().filter(exclusive).collect();
        if !planted(Planted::FencedOnce) {
            let failed = self.exclude_others(again, fence, truth, found).await?;
            if !failed.is_empty() {
                return Ok(failed);
            }
        }
        self.find_changed(places, truth, found).await
    }

    /// Makes the sessions that the array will use, now that its lock is held. What a dead predecessor
    /// of this machine had under way ends before, by whichever former identity of the machine.
    ///
    /// # Errors
    /// When one says that somebody else has the array now.
    async fn take_over(
        &mut self,
        places: &[Option<usize>],
        fence: Fence,
        truth: &Label,
        found: &[(usize, Found)],
    ) -> Result<LeftOut<E>, OpenError<E>> {
        let is_visit =
            |at: &usize| self.devices[*at].as_ref().is_some_and(|device| !device.is_taken_over);
        let new: Vec<usize> = places.iter().flatten().copied().filter(is_visit).collect();
        let former = |at| fence.former_machines(own_label(found, at), &self.this);
        let ask = |at| Ask::TakeOver { array: truth.array_uuid, former: former(at) };
        let (mut failed, mut refused) = (Vec::new(), None);
        for (at, answer) in self.each(new, ask).await {
            match (answer.device(), &mut self.devices[at]) {
                (Ok(info), Some(device)) => (device.info, device.is_taken_over) = (info, true),
                (Ok(_), None) => unreachable!("place {at} is taken over, and was not visited"),
                (Err(error), _) if error.is_conflict() => refused = Some(error),
                (Err(error), _) => failed.push((at, OpenError::Failed(error))),
            }
        }
        refused.map_or(Ok(failed), |error| Err(OpenError::Failed(error)))
    }

    /// Reads what is registered at those of these places at which that was not read yet: also where a member was left out
    /// since, nobody is known who came after the first time. A device that cannot tell is left out later, or has no
    /// reservations.
    async fn read_keys(&mut self, places: &[usize]) {
        let is_new = |at: &usize| !self.keys_read.contains(at);
        let new: Vec<usize> = places.iter().copied().filter(is_new).collect();
        self.keys_read.extend(&new);
        let answers = self.each(new, |_| Ask::Keys).await;
        let keys = answers.into_iter().filter_map(|(_, answer)| answer.keys().ok());
        let all = keys.flat_map(|(keys, _)| keys);
        self.known.extend(all.flat_map(Fence::keys_of).chain([VACANT.get()]));
    }

    /// Fences the members at these places; once more those that are exclusive, where nobody is removed who came after their
    /// keys were read. Says which ones cannot be.
    ///
    /// # Errors
    /// When somebody else is registered at one, or has reserved it.
    async fn exclude_others(
        &mut self,
        used: Vec<usize>,
        fence: Fence,
        truth: &Label,
        found: &[(usize, Found)],
    ) -> Result<LeftOut<E>, OpenError<E>> {
        let ask = |at| {
            let own = own_label(found, at).unwrap_or(truth);
            let fence = fence.with(self.removes([truth, own]));
            match self.devices[at].as_ref().is_some_and(|device| device.exclusive) {
                true => Ask::FenceAgain { fence, known: self.known.clone() },
                false => Ask::Fence(fence),
            }
        };
        let is_silent = self.silent(truth).is_some();
        let (mut failed, mut refused) = (Vec::new(), None);
        for (at, answer) in self.each(used, ask).await {
            let end = match answer.fenced() {
                // What the silent engine has under way may still be written there.
                Ok(false) if is_silent => Err(FenceError::CannotShutOut),
                end => end,
            };
            if let Some(device) = &mut self.devices[at] {
                device.exclusive = end == Ok(true);
            }
            match end {
                Ok(true) => {}
                Ok(false) => self.notes.push(Note::NotFenced(at)),
                Err(error) if is_of_no_use(&error) => {
                    failed.push((at, OpenError::NotFenced(at, error)));
                }
                Err(error) => refused = refused.or(Some(OpenError::NotFenced(at, error))),
            }
        }
        refused.map_or(Ok(failed), Err)
    }

    /// The members that the array will use whose labels are not what was decided on, or cannot be read any more: they
    /// were first read before the lock was held.
    ///
    /// Another engine writes its label to all members that it uses before anything rests on it. So it was none where those
    /// whose labels stayed, and to which nobody else can write any more, leave too few to serve from.
    ///
    /// # Errors
    /// When it may have been another engine.
    async fn find_changed(
        &self,
        places: &[Option<usize>],
        truth: &Label,
        found: &[(usize, Found)],
    ) -> Result<LeftOut<E>, OpenError<E>> {
        let used = places.iter().flatten().copied().collect();
        let (mut others, mut is_changed, mut are_fenced) = (truth.in_sync(), false, true);
        let mut failed = Vec::new();
        for (at, answer) in self.each(used, |_| Ask::Label).await {
            let error = match answer.label() {
                Ok(Ok(now)) if own_label(found, at) == Some(&now) => {
                    others.remove(member_at(places, at));
                    are_fenced &= self.devices[at].as_ref().is_some_and(|device| device.exclusive);
                    continue;
                }
                Ok(Ok(now)) => {
                    is_changed = true;
                    let (generation, epoch) = (now.generation, now.epoch);
                    OpenError::LabelChanged { place: at, generation, epoch }
                }
                Ok(Err(reason)) => {
                    is_changed = true;
                    OpenError::Label(at, reason)
                }
                Err(error) if error.is_conflict() => return Err(OpenError::Failed(error)),
                Err(error) => OpenError::Failed(error),
            };
            failed.push((at, error));
        }
        match is_changed && (!are_fenced || truth.geometry.can_serve_from(others)) {
            true => {
                let places = failed.iter().map(|(at, _)| *at).collect();
                Err(OpenError::Changed { name: truth.name.clone(), places })
            }
            false => Ok(failed),
        }
    }

    /// Whose registrations at a member may be removed, by the label that decides and the member's own.
    fn removes(&self, labels: [&Label; 2]) -> Removes {
        let proven = dead_holders(labels, &self.this);
        match (self.options.force, self.options.take_over, self.silent(labels[0])) {
            (true, _, _) => Removes::All,
            (false, true, _) => Removes::Engines,
            // Others may be opening it just now.
            (false, false, Some(silent)) => Removes::Silent { proven, keys: silent.keys },
            (false, false, None) => Removes::Holders(proven),
        }
    }
}

fn dead_holders(labels: [&Label; 2], this: &Holder) -> [Option<u64>; 2] {
    labels.map(|label| key_of_dead_holder(label, this))
}

/// Members that have devices, with the places of these.
fn members_of(places: &[Option<usize>]) -> impl Iterator<Item = (MemberIndex, usize)> {
    let members = (0..).map(MemberIndex).zip(places);
    members.filter_map(|(member, place)| place.map(|at| (member, at)))
}

/// Whether a device's answers about reservations are of no use, and say of nobody else that he has it.
pub(super) fn is_of_no_use(error: &FenceError) -> bool {
    match error {
        FenceError::Failed { reason, .. } => !reason.is_conflict(),
        FenceError::Forgetful | FenceError::CannotShutOut => true,
        FenceError::Reserved { .. } | FenceError::Overtaken { .. } | FenceError::Contended => false,
    }
}

/// The label that was read of the device at this place.
fn own_label(found: &[(usize, Found)], at: usize) -> Option<&Label> {
    found.iter().find(|(one, _)| *one == at).map(|(_, found)| &found.label)
}

/// The member whose device is at this place.
fn member_at(places: &[Option<usize>], at: usize) -> MemberIndex {
    let member = places.iter().position(|place| *place == Some(at));
    let Some(member) = member.and_then(|member| u8::try_from(member).ok()).map(MemberIndex) else {
        unreachable!("the device at place {at} is used, and is of no member")
    };
    member
}
