//! A device is prepared for a member's place, beside the array that serves: looked at, taken over, fenced, and checked
//! again.
//!
//! Invariants: nothing is taken over before the device was found to be what is expected; no registration is removed that
//! was not there when it was looked whether this engine has the array still: others may have taken it over while sessions
//! were made, and take it over at any moment; a device that was taken over and is refused is given back.
//!
//! Steps are straight-line code that waits for answers. Not here: when a device is prepared, and what becomes of one that
//! is ([`super::joining`], [`super::returns`]).

use alloc::{boxed::Box, collections::BTreeSet, string::String, vec::Vec};

use netraid_block::ErrorKind;

use super::{Expect, NotFormer, check_former, serves_as};
use crate::{
    access::{self, Failure, Needs, Unfit},
    fencing::{Fence, Removes, has_engine, key_of_dead_holder, steps::FenceError},
    label::{Holder, Label, Uuid},
    member::MemberIndex,
    planted::{Planted, planted},
    talk::{Next, Talk, Work},
};

/// The running array that a device is to join.
#[derive(Debug, Clone)]
pub struct Beside {
    /// What its labels say.
    pub label: Label,
    /// Most bytes of a request to a member.
    pub max_io_len: u32,
    /// Who has it.
    pub this: Holder,
    /// How its members are fenced; none when they are not.
    pub fence: Option<Fence>,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Of the device.
    Device(access::Ask),
    /// Of all other devices that serve: whether each is this engine's still, by
    /// [`crate::fencing::steps::Steps::check`].
    Others,
    /// Of this machine: the lock of the array with this label, to be held until the steps are over.
    Lock(Box<Label>),
}

/// What is answered.
#[derive(Debug, Clone)]
pub enum Answer<E> {
    /// By the device.
    Device(access::Answer<E>),
    /// By the other devices.
    Others(Vec<Other>),
    /// By this machine.
    Lock(Locked),
}

/// What another device that serves answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// It was this engine's alone when it was fenced.
    pub exclusive: bool,
    /// Whether it is so still.
    pub end: Result<(), FenceError>,
    /// Somebody else is known to have it.
    pub is_fenced: bool,
}

/// What became of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// It is held now.
    Taken,
    /// Another process of this machine has it.
    Held,
    /// This machine has no such locks.
    Impossible,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Step<E> {
    /// Ask that, and give [`Steps::answer`].
    Ask(Ask),
    /// Nothing more: the device is ready, with its label where it is back and the array has a log; or why it may not
    /// have the place.
    Done(Result<Option<Box<Label>>, Refusal<E>>),
}

/// Why a device may not take a member's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal<E> {
    /// The device failed.
    Failed(E),
    /// It could not be made this engine's.
    NotFenced(FenceError),
    /// This engine does not have the array any more, or not for sure.
    NotHolder {
        /// Which one of the other devices says so.
        other: usize,
        /// What it says.
        error: FenceError,
    },
    /// It could not do what the array needs.
    Unfit(Unfit),
    /// It serves as a member.
    Serves(MemberIndex),
    /// It is a member of another array that is open on this machine.
    OpenHere {
        /// Name of that array.
        name: String,
    },
    /// It is not what the member was.
    NotFormer(NotFormer),
}

/// Steps with one device.
pub struct Steps<E>(Work<Ask, Answer<E>, End<E>>);

/// The label of a device that is back, or why a device may not take the place.
type End<E> = Result<Option<Box<Label>>, Refusal<E>>;

impl<E: Failure> Steps<E> {
    /// Prepares a device for the place of `member`.
    #[must_use]
    pub fn new(member: MemberIndex, expect: Expect, beside: Beside) -> Self {
        let code = |talk| async move {
            let place = Place { talk, member, expect, beside };
            place.prepare().await.map(|label| label.map(Box::new))
        };
        Self(Work::new(code))
    }

    /// What is to be done next.
    ///
    /// # Panics
    /// After [`Step::Done`].
    pub fn poll(&mut self) -> Step<E> {
        match self.0.poll() {
            Next::Ask(ask) => Step::Ask(ask),
            Next::Done(end) => Step::Done(end),
        }
    }

    /// Takes the answer to what was asked.
    ///
    /// # Panics
    /// When nothing was; [`Self::poll`] panics after an answer to something else.
    pub fn answer(&mut self, answer: Answer<E>) {
        self.0.answer(answer);
    }
}

/// The place that a device is prepared for.
struct Place<E> {
    talk: Talk<Ask, Answer<E>>,
    member: MemberIndex,
    expect: Expect,
    beside: Beside,
}

impl<E: Failure> Place<E> {
    async fn prepare(&self) -> Result<Option<Label>, Refusal<E>> {
        // Who is fenced out has nothing to look for at the device.
        let was_holder = self.is_holder().await?;
        let own = self.visit().await?;
        let Beside { label: array, this, fence, .. } = &self.beside;
        // No label is written yet: the machine composes it, and that overwrites any other.
        let own = own.filter(|label| label.array_uuid == array.array_uuid);
        let former = fence.map(|fence| fence.former_machines(own.as_ref(), this));
        self.take_over(array.array_uuid, former.unwrap_or_default()).await?;
        let ready = self.make_ready(own.as_ref(), was_holder).await;
        if ready.is_err() {
            // It says itself what stays.
            self.device(access::Ask::Leave).await;
        }
        ready
    }

    /// Whether this engine surely has the array still, by the members that are fenced. Who is fenced out
    /// without having heard of it yet must not push its successor aside.
    async fn is_holder(&self) -> Result<bool, Refusal<E>> {
        let others = match self.talk.ask(Ask::Others).await {
            Answer::Others(others) => others,
            other @ (Answer::Device(_) | Answer::Lock(_)) => {
                panic!("asked for the other devices, the answer is {other:?}")
            }
        };
        let others = others.into_iter().enumerate().filter(|(_, other)| other.exclusive);
        let (mut count, mut are_ours) = (0, true);
        for (at, Other { end, is_fenced, .. }) in others {
            count += 1;
            are_ours &= end.is_ok();
            match end {
                // It may be away, and whose it is then is not known.
                Err(FenceError::Failed { reason, .. })
                    if !is_fenced && reason.kind() != ErrorKind::Fenced => {}
                Err(error) => return Err(Refusal::NotHolder { other: at, error }),
                Ok(()) => {}
            }
        }
        Ok(count > 0 && are_ours)
    }

    /// Looks at the device: it is what is expected, and has this label.
    async fn visit(&self) -> Result<Option<Label>, Refusal<E>> {
        let info = self.device(access::Ask::Visit).await.device().map_err(Refusal::Failed)?;
        let needs = Needs::of(&self.beside.label, self.beside.max_io_len, true);
        let looked = match needs.check(&info) {
            Ok(()) => self.look().await,
            Err(unfit) => Err(Refusal::Unfit(unfit)),
        };
        self.device(access::Ask::Close).await;
        looked
    }

    async fn look(&self) -> Result<Option<Label>, Refusal<E>> {
        let own = self.label().await?;
        let serves = own.as_ref().and_then(|label| serves_as(&self.beside.label, label));
        // Whatever the user says.
        if let Some(member) = serves {
            return Err(Refusal::Serves(member));
        }
        match self.expect {
            Expect::Anything => self.check_not_open_here(own.as_ref()).await?,
            Expect::Unused => {
                self.device(access::Ask::Unused).await.done().map_err(Refusal::Failed)?;
            }
            Expect::Former => self.check_former(own.as_ref())?,
        }
        Ok(own)
    }

    /// Refuses a member of another array that is open on this machine, whatever the user says. That array is not
    /// opened by this machine either before the device is fenced.
    ///
    /// A device that the open array has no more is no member of it, where it was given back: no engine is registered
    /// at the device. One that could not be reached then, or has no reservations, is refused until the array stops.
    async fn check_not_open_here(&self, own: Option<&Label>) -> Result<(), Refusal<E>> {
        let is_other = |label: &&Label| label.array_uuid != self.beside.label.array_uuid;
        let Some(label) = own.filter(is_other) else { return Ok(()) };
        match self.talk.ask(Ask::Lock(Box::new(label.clone()))).await {
            // Where no lock can be taken, no array can be open.
            Answer::Lock(Locked::Taken | Locked::Impossible) => return Ok(()),
            Answer::Lock(Locked::Held) => {}
            other @ (Answer::Device(_) | Answer::Others(_)) => {
                panic!("asked for a lock, the answer is {other:?}")
            }
        }
        let keys = self.device(access::Ask::Keys).await.keys();
        match keys.is_ok_and(|(keys, is_cut)| !is_cut && !has_engine(&keys)) {
            true => Ok(()),
            false => Err(Refusal::OpenHere { name: label.name.clone() }),
        }
    }

    /// Refuses what was not that member; with a log, also one that went on without the others.
    fn check_former(&self, own: Option<&Label>) -> Result<(), Refusal<E>> {
        check_former(&self.beside.label, self.member, own).map_err(Refusal::NotFormer)
    }

    async fn take_over(&self, array: Uuid, former: BTreeSet<Uuid>) -> Result<(), Refusal<E>> {
        let ask = access::Ask::TakeOver { array, former };
        self.device(ask).await.device().map(drop).map_err(Refusal::Failed)
    }

    /// Has the device, which was taken over, be this engine's alone, and ready for what the machine writes.
    async fn make_ready(
        &self,
        own: Option<&Label>,
        was_holder: bool,
    ) -> Result<Option<Label>, Refusal<E>> {
        let array = &self.beside.label;
        if let Some(fence) = self.beside.fence {
            // Who registers after this may do so because it has taken the array over; and who registered before, and has
            // taken it over when this engine looks whose it is, finds this one registered.
            let known = self.keys().await?;
            // Who will remove nobody who may be alive, needs not be found.
            let removes_engines = match Removes::of(self.expect, was_holder) {
                Removes::Engines | Removes::All => true,
                Removes::Own | Removes::Holders(_) | Removes::Silent { .. } => false,
            };
            if removes_engines && !known.is_empty() && !planted(Planted::JoinsUnannounced) {
                let ask = access::Ask::Announce { fence, known: known.clone() };
                self.device(ask).await.fenced().map_err(Refusal::NotFenced)?;
            }
            // Making sessions takes long enough for another engine to take the array over.
            let is_holder = self.is_holder().await? && was_holder;
            let fence = fence.with(self.removes(own, is_holder));
            let ask = access::Ask::FenceKnown { fence, known };
            self.device(ask).await.fenced().map_err(Refusal::NotFenced)?;
        }
        // Before the member that is replaced is set aside for it, and before anything of it is overwritten.
        if self.expect != Expect::Former {
            let ask = access::Ask::ProveWritable { data_end: array.regions.data.end() };
            self.device(ask).await.done().map_err(Refusal::Failed)?;
        }
        match (&array.log, self.expect) {
            (None, _) => Ok(None),
            (Some(_), Expect::Former) => {
                let label = self.label().await?;
                self.check_former(label.as_ref())?;
                Ok(label)
            }
            (Some(_), Expect::Unused | Expect::Anything) => {
                let ask = access::Ask::ReserveTables(array.regions);
                self.device(ask).await.done().map_err(Refusal::Failed)?;
                Ok(None)
            }
        }
    }

    /// Whose registrations at the device may be removed.
    fn removes(&self, own: Option<&Label>, is_holder: bool) -> Removes {
        match Removes::of(self.expect, is_holder) {
            Removes::Own => {
                let own = own.and_then(|label| key_of_dead_holder(label, &self.beside.this));
                Removes::Holders([None, own])
            }
            removes @ (Removes::Holders(_)
            | Removes::Silent { .. }
            | Removes::Engines
            | Removes::All) => removes,
        }
    }

    /// The keys that are registered; none at a device without reservations.
    async fn keys(&self) -> Result<BTreeSet<u64>, Refusal<E>> {
        match self.device(access::Ask::Keys).await.keys() {
            Ok((keys, _)) => Ok(keys.into_iter().collect()),
            Err(error) if error.is_refusal() => Ok(BTreeSet::new()),
            Err(error) => Err(Refusal::Failed(error)),
        }
    }

    async fn label(&self) -> Result<Option<Label>, Refusal<E>> {
        let label = self.device(access::Ask::Label).await.label();
        label.map(Result::ok).map_err(Refusal::Failed)
    }

    async fn device(&self, ask: access::Ask) -> access::Answer<E> {
        match self.talk.ask(Ask::Device(ask)).await {
            Answer::Device(answer) => answer,
            other @ (Answer::Others(_) | Answer::Lock(_)) => {
                panic!("asked the device, the answer is {other:?}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
