//! Opening an array: what the steps of [`netraid_raid::opening`] ask is asked here, and what they say of places is told
//! with addresses.

use std::time::Duration;

use futures_util::future::join_all;
use netraid_block::{DeviceInfo, IoError, Pool};
use netraid_raid::{
    access,
    assemble::{AssembleError, Assembly, CleanClose},
    fencing::Fence,
    label::{Holder, Label, Uuid},
    member::MemberIndex,
    opening::{
        self, Answer, Ask, Continues, Engine, Note, OpenError, Options, Refused, Silent, Step,
        Steps, Survey,
    },
    reach::Dial as _,
    volume::PlainOrLogged,
};
use tokio::sync::watch;

use super::{
    Caches,
    error::ArrayError,
    lock::{ArrayLock, hex, this_holder},
    member::{Connected, Dialer, MemberConfig, Reached},
};

/// How to open an array.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
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
    /// or of another array than most, is none where the others can serve, as if its member was away; and labels of another array of
    /// the same name that was made and never opened count as none.
    pub is_placed: bool,
    /// It is not opened for writing without a member that took part last.
    pub wants_all: bool,
    /// What the array may keep in memory.
    pub caches: Caches,
    /// Bytes of users' large reads that are under way at once, of two reads at least; found by trying when none.
    pub reads_under_way: Option<u64>,
    /// How long users' requests wait for members where those that are left cannot serve; zero: the array fails at once.
    /// An array without a log, or that is read only, always does.
    pub pause: Duration,
    /// Members are told once a second that this engine is alive, for one that stands by.
    pub heartbeats: bool,
    /// The engine that was found silent while this one stood by; it is taken over where it can be shut out.
    pub silent: Option<Silent>,
}

/// Everything that the driver starts with.
pub(super) struct Opened {
    pub(super) machine: PlainOrLogged,
    /// That of the labels by which it was opened.
    pub(super) generation: u64,
    /// This engine, as its labels name their holder.
    pub(super) engine: Uuid,
    /// Bytes of memory for what is read ahead; none: nothing is.
    pub(super) read_ahead: Option<u64>,
    /// None: found by trying.
    pub(super) reads_under_way: Option<u64>,
    pub(super) members: Vec<Option<Connected>>,
    /// Held until the array is closed; none when it is read only.
    pub(super) lock: Option<ArrayLock>,
    /// How members are fenced; none when it is read only.
    pub(super) fence: Option<Fence>,
    pub(super) info: DeviceInfo,
    /// What an administrator should know, one line each.
    pub(super) notes: Vec<String>,
    /// Sessions to devices that are not part of the array now.
    pub(super) unused: Vec<Connected>,
    /// Members that are left out, because the others contradict what they say: how they are reached.
    pub(super) liars: Vec<(MemberIndex, MemberConfig)>,
}

impl OpenOptions {
    const fn steps(&self, spares: usize) -> Options {
        let Self { read_only, take_over, force, clean_close, is_placed, wants_all, silent, .. } =
            *self;
        let continues = None;
        Options {
            read_only,
            take_over,
            force,
            clean_close,
            is_placed,
            continues,
            wants_all,
            spares,
            silent,
        }
    }

    /// The same for the engine that has had the array open all the time, and goes on with it: nobody's word against
    /// doubts of long ago counts any more.
    fn steps_to_go_on(&self, known: Continues) -> Options {
        let Self { read_only, is_placed, .. } = *self;
        Options { read_only, is_placed, continues: Some(known), ..Options::default() }
    }
}

/// Opens the array that `members` make up, and those of the `spares` that took places of theirs.
pub(super) async fn open(
    options: OpenOptions,
    (mut members, spares): (Vec<MemberConfig>, &[MemberConfig]),
    pool: &Pool,
    stop: &watch::Receiver<bool>,
) -> Result<Opened, ArrayError> {
    let mut lock = None;
    let steps = options.steps(spares.len());
    members.extend_from_slice(spares);
    let mut devices = Devices::new(members, pool);
    devices.stop = Some(stop.clone());
    let opened = carry_out(options, (this_holder(None), steps), devices, &mut lock, pool).await?;
    Ok(Opened { lock, ..opened })
}

/// Opens the array anew that this engine has had open all the time, and whose `lock` it holds; so it does whatever comes
/// of it.
pub(super) async fn open_anew(
    options: OpenOptions,
    known: Continues,
    members: Vec<Given>,
    pool: &Pool,
    lock: &mut Option<ArrayLock>,
) -> Result<Opened, ArrayError> {
    let this = Holder { engine_id: known.engine, ..this_holder(None) };
    let steps = options.steps_to_go_on(known);
    carry_out(options, (this, steps), Devices::but_some(members, pool), lock, pool).await
}

/// Opens an array by these steps; `lock` is its lock, if it is held.
async fn carry_out(
    options: OpenOptions,
    (this, steps): (Holder, Options),
    mut devices: Devices,
    lock: &mut Option<ArrayLock>,
    pool: &Pool,
) -> Result<Opened, ArrayError> {
    let limits = options.caches.limits();
    let engine = Engine { this, random: rand::random(), pool: pool.clone(), limits };
    let steps = Steps::open(steps, devices.addresses(), engine);
    let opened = devices.open(steps, lock).await?;
    let opening::Opened {
        machine,
        info,
        can_read_ahead,
        generation,
        engine,
        fence,
        places,
        liars,
        unused,
        notes,
    } = opened;
    let read_ahead = options.caches.read_ahead_len().filter(|_| can_read_ahead);
    let liar = |(member, at): (MemberIndex, usize)| (member, devices.config(at));
    Ok(Opened {
        machine,
        generation,
        engine,
        read_ahead,
        reads_under_way: options.reads_under_way,
        liars: liars.into_iter().map(liar).collect(),
        notes: notes.into_iter().map(|note| devices.text(note)).collect(),
        members: places.into_iter().map(|place| place.map(|at| devices.take(at))).collect(),
        lock: None,
        fence,
        info,
        unused: unused.into_iter().map(|at| devices.take(at)).collect(),
    })
}

/// What the labels of `members` add up to: the array, the addresses of its members in order where they are there, and
/// what an administrator should know. Nothing is changed.
pub(super) async fn weigh(
    members: Vec<MemberConfig>,
    pool: &Pool,
) -> Result<(Assembly, Vec<Option<String>>, Vec<String>), ArrayError> {
    let mut devices = Devices::new(members, pool);
    let surveyed = devices.go(Steps::survey(devices.addresses()), &mut None).await?;
    let Survey { assembly, places, notes } = surveyed;
    let addresses = places.into_iter().map(|place| place.map(|at| devices.address(at))).collect();
    let notes = notes.into_iter().map(|note| devices.text(note)).collect();
    Ok((assembly, addresses, notes))
}

/// Takes the lock of the array with this label, where it is not held; which file it is.
fn take_lock(label: &Label, lock: &mut Option<ArrayLock>) -> Result<(u64, u64), ArrayError> {
    let held = match lock.take() {
        Some(held) if held.is_of(label) => held,
        Some(_) | None => ArrayLock::take(label)?,
    };
    Ok(lock.insert(held).id())
}

/// A device that is given for its place among the others, which it keeps also where it is not looked for.
pub(super) struct Given {
    pub(super) config: MemberConfig,
    pub(super) is_looked_for: bool,
}

/// The devices that were given, by place.
struct Devices {
    all: Vec<Reached>,
    /// By place.
    are_looked_for: Vec<bool>,
    /// Tells that the array is not to be opened any more.
    stop: Option<watch::Receiver<bool>>,
}

impl Devices {
    fn new(members: Vec<MemberConfig>, pool: &Pool) -> Self {
        let given = |config| Given { config, is_looked_for: true };
        Self::but_some(members.into_iter().map(given).collect(), pool)
    }

    fn but_some(given: Vec<Given>, pool: &Pool) -> Self {
        let are_looked_for = given.iter().map(|one| one.is_looked_for).collect();
        let reached = given.into_iter().map(|Given { config, .. }| {
            let pool = pool.clone();
            Reached::new(Dialer { config, pool })
        });
        Self { all: reached.collect(), are_looked_for, stop: None }
    }

    /// The same as [`Self::go`], to an early end where it is to stop.
    async fn open(
        &mut self,
        steps: Steps<ArrayError, opening::Opened<ArrayError>>,
        lock: &mut Option<ArrayLock>,
    ) -> Result<opening::Opened<ArrayError>, ArrayError> {
        let stop = self.stop.clone();
        let is_stopped = || stop.as_ref().is_some_and(|stop| *stop.borrow());
        let heed = |steps: &Steps<_, _>| {
            if is_stopped() {
                steps.stop()
            }
        };
        self.carry_out(steps, lock, heed).await
    }

    /// Does what the steps ask, to their end; `lock` is the lock that is held, or that they have taken.
    async fn go<T>(
        &mut self,
        steps: Steps<ArrayError, T>,
        lock: &mut Option<ArrayLock>,
    ) -> Result<T, ArrayError> {
        self.carry_out(steps, lock, |_| {}).await
    }

    async fn carry_out<T>(
        &mut self,
        mut steps: Steps<ArrayError, T>,
        lock: &mut Option<ArrayLock>,
        heed: impl Fn(&Steps<ArrayError, T>),
    ) -> Result<T, ArrayError> {
        loop {
            heed(&steps);
            let answer = match steps.poll() {
                Step::Ask(Ask::Each(asks)) => Answer::Each(self.each(asks).await),
                Step::Ask(Ask::Lock(label)) => Answer::Lock(take_lock(&label, lock)),
                Step::Done(Ok(end)) => return Ok(*end),
                Step::Done(Err(refused)) => return Err(self.refusal(*refused)),
            };
            steps.answer(answer);
        }
    }

    /// Asks devices, all at once.
    async fn each(&mut self, asks: Vec<(usize, access::Ask)>) -> Vec<access::Answer<ArrayError>> {
        let mut devices: Vec<Option<&mut Reached>> = self.all.iter_mut().map(Some).collect();
        let asked = asks.into_iter().map(|(at, ask)| {
            let Some(device) = devices[at].take() else {
                unreachable!("the device at place {at} is asked twice at once")
            };
            let is_looked_for = self.are_looked_for[at];
            async move {
                match is_looked_for {
                    true => device.ask(ask).await,
                    false => {
                        let address = device.dial().address();
                        access::Answer::Failed(ArrayError::SetAside { address })
                    }
                }
            }
        });
        join_all(asked).await
    }

    fn addresses(&self) -> Vec<String> {
        self.all.iter().map(|device| device.dial().address()).collect()
    }

    fn address(&self, at: usize) -> String {
        self.all[at].dial().address()
    }

    fn config(&self, at: usize) -> MemberConfig {
        self.all[at].dial().config.clone()
    }

    /// The sessions to a device.
    fn take(&mut self, at: usize) -> Connected {
        self.all[at].take_sessions()
    }

    /// Why the array is not opened, with addresses.
    fn refusal(&self, refused: Refused<ArrayError>) -> ArrayError {
        let Refused { error, notes } = refused;
        let notes = || -> String {
            notes.into_iter().map(|note| format!("; {}", self.text(note))).collect()
        };
        match error {
            OpenError::NoLabels => ArrayError::NoLabels(notes()),
            OpenError::Fewer { name, members } => {
                ArrayError::Fewer { name, members, notes: notes() }
            }
            OpenError::Assemble(reason) => ArrayError::Assemble { reason, notes: notes() },
            OpenError::Machine(reason) => {
                let text = format!("{reason}{}", notes());
                ArrayError::Failed(IoError::with_detail(reason.kind(), text))
            }
            error @ (OpenError::Failed(_)
            | OpenError::Stopped
            | OpenError::NotClosed { .. }
            | OpenError::NotShutOut { .. }
            | OpenError::Unfit(..)
            | OpenError::NotFenced(..)
            | OpenError::Label(..)
            | OpenError::LabelChanged { .. }
            | OpenError::Changed { .. }
            | OpenError::WrittenBits { .. }
            | OpenError::WrittenBitsDisagree { .. }
            | OpenError::Forged { .. }
            | OpenError::Behind { .. }
            | OpenError::MadeAnew { .. }
            | OpenError::TakenOver { .. }) => self.error(error),
        }
    }

    /// Why something is not opened, with addresses.
    fn error(&self, error: OpenError<ArrayError>) -> ArrayError {
        let address = |at| self.address(at);
        match error {
            OpenError::Failed(error) => error,
            OpenError::Stopped => ArrayError::Closing,
            OpenError::NoLabels => ArrayError::NoLabels(String::new()),
            OpenError::Fewer { name, members } => {
                ArrayError::Fewer { name, members, notes: String::new() }
            }
            OpenError::Assemble(reason) => ArrayError::Assemble { reason, notes: String::new() },
            OpenError::NotClosed { name } => ArrayError::NotClosed(name),
            OpenError::NotShutOut { name, holder, members } => {
                ArrayError::NotShutOut { name, holder, members }
            }
            OpenError::Unfit(at, unfit) => ArrayError::unfit(address(at), unfit),
            OpenError::NotFenced(at, error) => ArrayError::not_fenced(address(at), error),
            OpenError::Label(at, reason) => ArrayError::Label { address: address(at), reason },
            OpenError::LabelChanged { place, generation, epoch } => {
                ArrayError::LabelChanged { address: address(place), generation, epoch }
            }
            OpenError::Changed { name, places } => {
                ArrayError::Changed { name, members: places.into_iter().map(address).collect() }
            }
            OpenError::WrittenBits { page } => ArrayError::WrittenBits { page },
            OpenError::WrittenBitsDisagree { first, second } => {
                let (first, second) = (address(first), address(second));
                ArrayError::WrittenBitsDisagree { first, second }
            }
            OpenError::Forged { name, place } => {
                let reason = AssembleError::UncleanDegraded { name, missing: address(place) };
                let notes = "; its written bits are far ahead of those of the others".to_owned();
                ArrayError::Assemble { reason, notes }
            }
            OpenError::Machine(reason) => ArrayError::Failed(reason),
            OpenError::Behind { name, generation, epoch } => {
                ArrayError::Behind { name, generation, epoch }
            }
            OpenError::MadeAnew { name } => ArrayError::MadeAnew { name },
            OpenError::TakenOver { name, holder, generation } => {
                ArrayError::TakenOver { name, holder, generation }
            }
        }
    }

    /// What an administrator should know, as a line.
    fn text(&self, note: Note<ArrayError>) -> String {
        let address = |at| self.address(at);
        match note {
            Note::Failed(error) => error.to_string(),
            Note::NoLabel(at, reason) => format!("{}: {reason}", address(at)),
            Note::NeverOpened { place, name } => {
                format!("{}: of another array '{name}', which was never opened", address(place))
            }
            Note::ForeignSpare { place, name } => {
                format!("{}: is no spare, but a member of array '{name}'", address(place))
            }
            Note::Misplaced { place, member, says, name, array } => format!(
                "{}: is left out as member {member}: its label says that it is member {says} of array \
                 '{name}' ({})",
                address(place),
                hex(&array),
            ),
            Note::LeftOut(member, error) => {
                format!("{}; it is left out as member {member}", self.error(error))
            }
            Note::Liar { place, member, lie } => format!(
                "{0}: is left out as member {member}: {lie}; find out why, then \
                 `netraid replace SOCKET {member} {0} --force` makes it anew from the others",
                address(place),
            ),
            Note::Forger { place, member } => format!(
                "{0}: is left out as member {member}: its written bits are far ahead of those of the other \
                 members; find out why, then `netraid replace SOCKET {member} {0} --force` makes it anew \
                 from the others",
                address(place),
            ),
            Note::NotFenced(at) => format!(
                "{}: not fenced, since it has no persistent reservations: make sure that no other engine \
                 writes to it",
                address(at),
            ),
            Note::Replaced { place, member, is_served: true } => format!(
                "{}: was member {member}, has been replaced; leave its address out",
                address(place),
            ),
            Note::Replaced { place, member, is_served: false } => format!(
                "{}: was member {member}, has been replaced; give the address of the device that took its place \
                 instead",
                address(place),
            ),
            Note::NotCurrent(at, member) => format!(
                "{}: was member {member}, is not up to date; `netraid rebuild` takes it back",
                address(at),
            ),
        }
    }
}
