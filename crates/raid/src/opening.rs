//! An array is opened: its devices are looked at, their labels are weighed, and those that the array will use become this
//! engine's alone, before the machine starts.
//!
//! ```text
//! visit ─▶ labels ─▶ weigh ─▶ lock ─▶ take over ─▶ fence ─▶ labels again ─▶ written bits ─▶ machine
//!                      ▲                                          │
//!                      └───────── without who fails at it ◀───────┘
//! ```
//!
//! Before an engine is taken over because it was silent, all members are tried out ([`silent`]): nobody is removed where that would
//! come to nothing. Members are fenced twice, the second time when all are. Devices are known by the places at which they were given; who
//! drives the steps has their addresses. Several are asked at once.
//!
//! Invariants: nothing is taken over before the array's lock is held; who only reads locks, takes over and fences nothing,
//! and registers beside others that read;
//! no registration of who may be alive is removed but by an administrator's word; a device that was taken over and is
//! not used is given back; every turn leaves out a member more.
//!
//! Steps are straight-line code that waits for answers. Not here: what labels add up to ([`crate::assemble`]), and whose
//! registrations may be removed ([`crate::fencing`]).

mod bits;
mod labels;
mod own;
mod silent;
mod start;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, collections::BTreeSet, string::String, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering};

use netraid_block::{DeviceInfo, IoError, Pool};
pub use silent::Silent;

use crate::{
    access::{self, Failure, Unfit},
    assemble::{AssembleError, Assembly, CleanClose},
    fencing::{Fence, steps::FenceError},
    label::{Holder, Label, LabelError, Uuid},
    logged::Limits,
    member::{MemberIndex, MemberSet},
    talk::{Next, Talk, Work},
    testimony::Lie,
    volume::PlainOrLogged,
};

/// How to open an array.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Write nothing.
    pub read_only: bool,
    /// The machine that has it open is dead.
    pub take_over: bool,
    /// An administrator's word, against all doubts.
    pub force: bool,
    /// How the array was closed, from somebody who knows that nobody had it open to write since: half of
    /// a mirror opens then without the other.
    pub clean_close: Option<CleanClose>,
    /// Whoever gives the members knows that they are of one array, in their order: a label of another index,
    /// or of another array than most, is none where the others can serve, as if its member was away; and labels of
    /// another array of the same name that was made and never opened count as none.
    pub is_placed: bool,
    /// The engine has had the array open all the time, and goes on with it.
    pub continues: Option<Continues>,
    /// It is not opened for writing without a member that took part last: somebody may only have forgotten it.
    pub wants_all: bool,
    /// So many of the last devices are spares: each is a member where its label says that it took a place of this
    /// array, and nothing else otherwise.
    pub spares: usize,
    /// The engine that was found silent by who stands by for it: it counts as dead, where no label was written since, and where the
    /// members at which it is shut out leave it too few to serve from.
    pub silent: Option<Silent>,
}

/// What an engine knows of an array that it has had open all the time: nobody else may have had it meanwhile, and what it
/// goes on with is not older.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continues {
    /// The array.
    pub array: Uuid,
    /// The engine's identity, as in labels.
    pub engine: Uuid,
    /// The generation of its labels.
    pub generation: u64,
    /// The epoch of the last label that was stable on all members that took part.
    pub epoch: u64,
}

impl Continues {
    /// By the last label that was stable on all members that took part.
    #[must_use]
    pub const fn of(label: &Label) -> Self {
        let Label { array_uuid: array, generation, epoch, .. } = *label;
        Self { array, engine: label.holder.engine_id, generation, epoch }
    }
}

/// The engine that opens an array.
#[derive(Debug)]
pub struct Engine {
    /// Who it is; what it locks is told by [`Answer::Lock`].
    pub this: Holder,
    /// What is random in its key of reservations.
    pub random: u64,
    /// Where computed bytes are put.
    pub pool: Pool,
    /// What an array with a log may use.
    pub limits: Limits,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Each of these devices, by its place, all at once; each one once at most.
    Each(Vec<(usize, access::Ask)>),
    /// This machine: for the lock of the array with this label, to be held as long as the array is open.
    Lock(Box<Label>),
}

/// What is answered.
#[derive(Debug)]
pub enum Answer<E> {
    /// By the devices, in the order in which they were asked.
    Each(Vec<access::Answer<E>>),
    /// By this machine: which file it locked.
    Lock(Result<(u64, u64), E>),
}

/// What is to be done next; `T` is what it comes to.
#[derive(Debug)]
pub enum Step<E, T> {
    /// Ask that, and give [`Steps::answer`].
    Ask(Ask),
    /// Nothing more.
    Done(Result<Box<T>, Box<Refused<E>>>),
}

/// Everything that whoever runs the array starts with.
#[derive(Debug)]
pub struct Opened<E> {
    /// The array.
    pub machine: PlainOrLogged,
    /// What its volume is.
    pub info: DeviceInfo,
    /// What users may read next can be read before they ask for it.
    pub can_read_ahead: bool,
    /// That of the labels by which it was opened.
    pub generation: u64,
    /// This engine, as its labels will name their holder.
    pub engine: Uuid,
    /// How members are fenced; none when it is read only.
    pub fence: Option<Fence>,
    /// For each member in order: its device.
    pub places: Vec<Option<usize>>,
    /// Members that are left out because the others contradict what they say, with their devices.
    pub liars: Vec<(MemberIndex, usize)>,
    /// Devices that were visited and are not used now: their sessions are to be ended.
    pub unused: Vec<usize>,
    /// What an administrator should know.
    pub notes: Vec<Note<E>>,
}

/// What labels add up to.
#[derive(Debug)]
pub struct Survey<E> {
    /// The array, as it would be if it was opened for reading.
    pub assembly: Assembly,
    /// For each member in order: its device.
    pub places: Vec<Option<usize>>,
    /// What an administrator should know.
    pub notes: Vec<Note<E>>,
}

/// An array that is not opened.
#[derive(Debug)]
pub struct Refused<E> {
    /// Why.
    pub error: OpenError<E>,
    /// What else an administrator should know.
    pub notes: Vec<Note<E>>,
}

/// Why an array, or one of its members, cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError<E> {
    /// A device failed, or this machine has no lock.
    Failed(E),
    /// No device has a label.
    NoLabels,
    /// The labels do not add up.
    Assemble(AssembleError),
    /// Something in the log must be written first, and it is to be opened for reading.
    NotClosed {
        /// Name of the array.
        name: String,
    },
    /// A device could not do what the array needs.
    Unfit(usize, Unfit),
    /// A device could not be made this engine's.
    NotFenced(usize, FenceError),
    /// A device has no label any more.
    Label(usize, LabelError),
    /// A device has another label than before.
    LabelChanged {
        /// Where.
        place: usize,
        /// What its label says now.
        generation: u64,
        /// What its label says now.
        epoch: u64,
    },
    /// Another engine may have had the array meanwhile.
    Changed {
        /// Name of the array.
        name: String,
        /// Devices whose labels are others now, or cannot be read any more.
        places: Vec<usize>,
    },
    /// A page of written bits has no valid copy.
    WrittenBits {
        /// Which page.
        page: u64,
    },
    /// Written bits that cannot both be the array's.
    WrittenBitsDisagree {
        /// One device.
        first: usize,
        /// Another.
        second: usize,
    },
    /// The parity of an array that was not closed is needed in place of a device whose written bits are far ahead of
    /// those of the others.
    Forged {
        /// Name of the array.
        name: String,
        /// The device.
        place: usize,
    },
    /// An engine that is silent, and not proven to be dead, could go on with members at which it cannot be shut out.
    NotShutOut {
        /// Name of the array.
        name: String,
        /// Who has it open, by the labels.
        holder: String,
        /// The members.
        members: MemberSet,
    },
    /// Members that took part last are not there, or are left out.
    Fewer {
        /// Name of the array.
        name: String,
        /// Which.
        members: MemberSet,
    },
    /// It is not to be opened any more.
    Stopped,
    /// The machine cannot go on with the members that are left.
    Machine(IoError),
    /// The labels are older than the last one of the engine that goes on: those that have it are away.
    Behind {
        /// Name of the array.
        name: String,
        /// What the newest label says.
        generation: u64,
        /// What the newest label says.
        epoch: u64,
    },
    /// The devices are members of another array by now.
    MadeAnew {
        /// Name of that array.
        name: String,
    },
    /// Another engine has had the array since it was opened here.
    TakenOver {
        /// Name of the array.
        name: String,
        /// Who had it.
        holder: String,
        /// The generation that its labels show.
        generation: u64,
    },
}

/// What an administrator should know of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note<E> {
    /// It cannot be reached or read.
    Failed(E),
    /// It has no label.
    NoLabel(usize, LabelError),
    /// It is of another array, which was never opened.
    NeverOpened {
        /// Where.
        place: usize,
        /// Name of that array.
        name: String,
    },
    /// It is no spare, but a member of another array.
    ForeignSpare {
        /// Where.
        place: usize,
        /// Name of that array.
        name: String,
    },
    /// It stands for a member, and its label is of another one.
    Misplaced {
        /// Where.
        place: usize,
        /// The member that it stands for.
        member: MemberIndex,
        /// The member that its label says.
        says: MemberIndex,
        /// Name of the array that its label says.
        name: String,
        /// The identity of that array.
        array: Uuid,
    },
    /// It is left out as a member, with why.
    LeftOut(MemberIndex, OpenError<E>),
    /// It is left out as a member, because the others contradict its label.
    Liar {
        /// Where.
        place: usize,
        /// Which member.
        member: MemberIndex,
        /// About what.
        lie: Lie,
    },
    /// It is left out as a member, because its written bits are far ahead of those of the others.
    Forger {
        /// Where.
        place: usize,
        /// Which member.
        member: MemberIndex,
    },
    /// It has no reservations.
    NotFenced(usize),
    /// It was a member, and another device has its place; whether that one is there.
    Replaced {
        /// Where.
        place: usize,
        /// Which member it was.
        member: MemberIndex,
        /// Whether the other device is there.
        is_served: bool,
    },
    /// It was a member, and is not up to date.
    NotCurrent(usize, MemberIndex),
}

/// Steps with all devices.
pub struct Steps<E, T> {
    work: Work<Ask, Answer<E>, End<E, T>>,
    is_stopped: Arc<AtomicBool>,
}

type End<E, T> = Result<Box<T>, Box<Refused<E>>>;

impl<E: Failure> Steps<E, Opened<E>> {
    /// Opens the array of the devices with these names, which errors tell.
    #[must_use]
    pub fn open(options: Options, names: Vec<String>, engine: Engine) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopped);
        let code = |talk| async move {
            let mut opening = Opening::new(talk, options, names, engine.this.clone());
            opening.is_stopped = stop;
            match opening.open(engine).await {
                Ok(opened) => Ok(Box::new(Opened { notes: opening.notes, ..opened })),
                Err(error) => {
                    opening.leave_all().await;
                    Err(Box::new(Refused { error, notes: opening.notes }))
                }
            }
        };
        Self { work: Work::new(code), is_stopped }
    }

    /// The array is not to be opened any more: the steps go on to give back what they took, and end with [`OpenError::Stopped`], where
    /// they have not come to their end.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

impl<E: Failure> Steps<E, Survey<E>> {
    /// Weighs the labels of the devices with these names, which errors tell, and changes nothing.
    #[must_use]
    pub fn survey(names: Vec<String>) -> Self {
        let code = |talk| async move {
            let options = Options { read_only: true, ..Options::default() };
            let mut opening = Opening::new(talk, options, names, Holder::default());
            match opening.survey().await {
                Ok((assembly, places)) => {
                    Ok(Box::new(Survey { assembly, places, notes: opening.notes }))
                }
                Err(error) => Err(Box::new(Refused { error, notes: opening.notes })),
            }
        };
        Self { work: Work::new(code), is_stopped: Arc::default() }
    }
}

impl<E: Failure, T> Steps<E, T> {
    /// What is to be done next.
    ///
    /// # Panics
    /// After [`Step::Done`].
    pub fn poll(&mut self) -> Step<E, T> {
        match self.work.poll() {
            Next::Ask(ask) => Step::Ask(ask),
            Next::Done(end) => Step::Done(end),
        }
    }

    /// Takes the answer to what was asked.
    ///
    /// # Panics
    /// When nothing was; [`Self::poll`] panics after an answer to something else.
    pub fn answer(&mut self, answer: Answer<E>) {
        self.work.answer(answer);
    }
}

/// An array that is being opened.
struct Opening<E> {
    talk: Talk<Ask, Answer<E>>,
    options: Options,
    /// Of the devices by place, for messages.
    names: Vec<String>,
    /// This engine, with its lock once it has it.
    this: Holder,
    has_lock: bool,
    notes: Vec<Note<E>>,
    /// By place; none where there is no session.
    devices: Vec<Option<Device>>,
    /// Places at which keys of reservations were read before anything was fenced there.
    keys_read: BTreeSet<usize>,
    /// These keys, and the others of the same engines.
    known: BTreeSet<u64>,
    /// It is not to be opened any more.
    is_stopped: Arc<AtomicBool>,
}

/// A device to which there is a session.
struct Device {
    info: DeviceInfo,
    /// Sessions are the array's, and not a visit.
    is_taken_over: bool,
    /// Only this engine may write to it.
    exclusive: bool,
}

impl<E: Failure> Opening<E> {
    fn new(talk: Talk<Ask, Answer<E>>, options: Options, names: Vec<String>, this: Holder) -> Self {
        let devices = names.iter().map(|_| None).collect();
        let (keys_read, known) = (BTreeSet::new(), BTreeSet::new());
        Self {
            talk,
            options,
            names,
            this,
            has_lock: false,
            notes: Vec::new(),
            devices,
            keys_read,
            known,
            is_stopped: Arc::default(),
        }
    }

    async fn open(&mut self, engine: Engine) -> Result<Opened<E>, OpenError<E>> {
        self.visit().await;
        let mut found = self.read_labels().await?;
        self.leave_out_foreign_spares(&mut found);
        let mut strangers = Vec::new();
        if self.options.is_placed {
            self.leave_out_unopened(&mut found);
            strangers = self.leave_out_misplaced(&mut found);
        }
        let mut held = self.weigh_and_fence(&found, engine.random).await?;
        self.check_stopped()?;
        self.note_stale(&held.assembly, &found);
        let (written, forgers) = match held.assembly.label.log {
            Some(_) => (None, Vec::new()),
            None => {
                let (written, forgers) = self.load_written(&mut held).await?;
                (Some(written), forgers)
            }
        };
        self.check_all_there(&found[held.assembly.truth].1.label, &held.places)?;
        self.give_back_unused(&held.places).await;
        let liars = start::liars(&held.assembly, &found, forgers, strangers);
        let labels = |place: &Option<usize>| {
            let found = found.iter().find(|(at, _)| Some(*at) == *place);
            found.map(|(_, found)| (found.label.clone(), found.checkpoint))
        };
        let labels = held.places.iter().map(labels).collect();
        self.start(held, (written, labels), liars, engine)
    }

    async fn survey(&mut self) -> Result<(Assembly, Vec<Option<usize>>), OpenError<E>> {
        self.visit().await;
        let found = self.read_labels().await;
        self.each(self.reached(), |_| access::Ask::Close).await;
        let found = found?;
        let assembly = self.weigh(&found, crate::member::MemberSet::EMPTY).await?;
        let places = labels::places(&assembly, &found);
        Ok((assembly, places))
    }

    /// # Errors
    /// When the array is not to be opened any more.
    fn check_stopped(&self) -> Result<(), OpenError<E>> {
        match self.is_stopped.load(Ordering::Relaxed) {
            true => Err(OpenError::Stopped),
            false => Ok(()),
        }
    }

    /// Ends the sessions to members that the array will not use after all.
    async fn give_back_unused(&mut self, used: &[Option<usize>]) {
        let is_unused = |at: &usize| {
            let is_taken_over = self.devices[*at].as_ref().is_some_and(|one| one.is_taken_over);
            is_taken_over && !used.contains(&Some(*at))
        };
        let unused = self.reached().into_iter().filter(is_unused).collect();
        self.leave(unused).await;
    }

    async fn leave_all(&mut self) {
        self.leave(self.reached()).await;
    }

    async fn leave(&mut self, places: Vec<usize>) {
        for (at, _) in self.each(places, |_| access::Ask::Leave).await {
            self.devices[at] = None;
        }
    }

    /// Places of devices to which there are sessions.
    fn reached(&self) -> Vec<usize> {
        (0..self.devices.len()).filter(|at| self.devices[*at].is_some()).collect()
    }

    /// Asks devices, all at once.
    async fn each(
        &self,
        places: Vec<usize>,
        ask: impl Fn(usize) -> access::Ask,
    ) -> Vec<(usize, access::Answer<E>)> {
        if places.is_empty() {
            return Vec::new();
        }
        debug_assert!(places.iter().collect::<BTreeSet<_>>().len() == places.len());
        let asks: Vec<(usize, access::Ask)> = places.iter().map(|at| (*at, ask(*at))).collect();
        let answers = match self.talk.ask(Ask::Each(asks)).await {
            Answer::Each(answers) => answers,
            Answer::Lock(end) => panic!("asked devices, the answer is about a lock: {end:?}"),
        };
        assert_eq!(answers.len(), places.len(), "one answer a device");
        places.into_iter().zip(answers).collect()
    }

    /// Takes the lock of the array with this label, where it is not held yet.
    async fn lock(&mut self, truth: &Label) -> Result<(), OpenError<E>> {
        if self.has_lock {
            return Ok(());
        }
        self.this.lock = match self.talk.ask(Ask::Lock(Box::new(truth.clone()))).await {
            Answer::Lock(end) => end.map_err(OpenError::Failed)?,
            Answer::Each(answers) => panic!("asked for a lock, devices answer {answers:?}"),
        };
        self.has_lock = true;
        Ok(())
    }
}
