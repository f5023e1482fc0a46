//! Opening an array: what the steps of [`netraid_raid::opening`] ask is asked here, and what they say of places is told
//! with addresses.

use futures_util::future::join_all;
use netraid_block::{DeviceInfo, IoError, Pool};
use netraid_raid::{
    access,
    assemble::{AssembleError, Assembly, CleanClose},
    fencing::Fence,
    member::MemberIndex,
    opening::{self, Answer, Ask, Engine, Note, OpenError, Options, Refused, Step, Steps, Survey},
    reach::Dial as _,
    volume::PlainOrLogged,
};

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
    /// What the array may keep in memory.
    pub caches: Caches,
    /// Bytes of users' large reads that are under way at once, of two reads at least; found by trying when none.
    pub reads_under_way: Option<u64>,
}

/// Everything that the driver starts with.
pub(super) struct Opened {
    pub(super) machine: PlainOrLogged,
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
    const fn steps(&self) -> Options {
        let Self { read_only, take_over, force, clean_close, is_placed, .. } = *self;
        Options { read_only, take_over, force, clean_close, is_placed }
    }
}

/// Opens the array that `members` make up.
pub(super) async fn open(
    options: OpenOptions,
    members: Vec<MemberConfig>,
    pool: &Pool,
) -> Result<Opened, ArrayError> {
    let mut devices = Devices::new(members, pool);
    let limits = options.caches.limits();
    let this = this_holder(None);
    let engine = Engine { this, random: rand::random(), pool: pool.clone(), limits };
    let steps = Steps::open(options.steps(), devices.addresses(), engine);
    let (opened, lock) = devices.go(steps).await?;
    let opening::Opened { machine, info, can_read_ahead, fence, places, liars, unused, notes } =
        opened;
    let read_ahead = options.caches.read_ahead_len().filter(|_| can_read_ahead);
    let liar = |(member, at): (MemberIndex, usize)| (member, devices.config(at));
    Ok(Opened {
        machine,
        read_ahead,
        reads_under_way: options.reads_under_way,
        liars: liars.into_iter().map(liar).collect(),
        notes: notes.into_iter().map(|note| devices.text(note)).collect(),
        members: places.into_iter().map(|place| place.map(|at| devices.take(at))).collect(),
        lock,
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
    let (surveyed, _) = devices.go(Steps::survey(devices.addresses())).await?;
    let Survey { assembly, places, notes } = surveyed;
    let addresses = places.into_iter().map(|place| place.map(|at| devices.address(at))).collect();
    let notes = notes.into_iter().map(|note| devices.text(note)).collect();
    Ok((assembly, addresses, notes))
}

/// The devices that were given, by place.
struct Devices(Vec<Reached>);

impl Devices {
    fn new(members: Vec<MemberConfig>, pool: &Pool) -> Self {
        let reached =
            members.into_iter().map(|config| Reached::new(Dialer { config, pool: pool.clone() }));
        Self(reached.collect())
    }

    /// Does what the steps ask, to their end; with the lock that they have taken.
    async fn go<T>(
        &mut self,
        mut steps: Steps<ArrayError, T>,
    ) -> Result<(T, Option<ArrayLock>), ArrayError> {
        let mut lock = None;
        loop {
            let answer = match steps.poll() {
                Step::Ask(Ask::Each(asks)) => Answer::Each(self.each(asks).await),
                Step::Ask(Ask::Lock(label)) => Answer::Lock(ArrayLock::take(&label).map(|taken| {
                    let id = taken.id();
                    lock = Some(taken);
                    id
                })),
                Step::Done(Ok(end)) => return Ok((*end, lock)),
                Step::Done(Err(refused)) => return Err(self.refusal(*refused)),
            };
            steps.answer(answer);
        }
    }

    /// Asks devices, all at once.
    async fn each(&mut self, asks: Vec<(usize, access::Ask)>) -> Vec<access::Answer<ArrayError>> {
        let mut devices: Vec<Option<&mut Reached>> = self.0.iter_mut().map(Some).collect();
        let asked = asks.into_iter().map(|(at, ask)| {
            let Some(device) = devices[at].take() else {
                unreachable!("the device at place {at} is asked twice at once")
            };
            device.ask(ask)
        });
        join_all(asked).await
    }

    fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|device| device.dial().address()).collect()
    }

    fn address(&self, at: usize) -> String {
        self.0[at].dial().address()
    }

    fn config(&self, at: usize) -> MemberConfig {
        self.0[at].dial().config.clone()
    }

    /// The sessions to a device.
    fn take(&mut self, at: usize) -> Connected {
        self.0[at].take_sessions()
    }

    /// Why the array is not opened, with addresses.
    fn refusal(&self, refused: Refused<ArrayError>) -> ArrayError {
        let Refused { error, notes } = refused;
        let notes = || -> String {
            notes.into_iter().map(|note| format!("; {}", self.text(note))).collect()
        };
        match error {
            OpenError::NoLabels => ArrayError::NoLabels(notes()),
            OpenError::Assemble(reason) => ArrayError::Assemble { reason, notes: notes() },
            OpenError::Machine(reason) => {
                let text = format!("{reason}{}", notes());
                ArrayError::Failed(IoError::with_detail(reason.kind(), text))
            }
            error @ (OpenError::Failed(_)
            | OpenError::NotClosed { .. }
            | OpenError::Unfit(..)
            | OpenError::NotFenced(..)
            | OpenError::Label(..)
            | OpenError::LabelChanged { .. }
            | OpenError::Changed { .. }
            | OpenError::WrittenBits { .. }
            | OpenError::WrittenBitsDisagree { .. }
            | OpenError::Forged { .. }) => self.error(error),
        }
    }

    /// Why something is not opened, with addresses.
    fn error(&self, error: OpenError<ArrayError>) -> ArrayError {
        let address = |at| self.address(at);
        match error {
            OpenError::Failed(error) => error,
            OpenError::NoLabels => ArrayError::NoLabels(String::new()),
            OpenError::Assemble(reason) => ArrayError::Assemble { reason, notes: String::new() },
            OpenError::NotClosed { name } => ArrayError::NotClosed(name),
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
            Note::Replaced(at, member) => format!(
                "{}: was member {member}, has been replaced; leave its address out",
                address(at),
            ),
            Note::NotCurrent(at, member) => format!(
                "{}: was member {member}, is not up to date; `netraid rebuild` takes it back",
                address(at),
            ),
        }
    }
}
