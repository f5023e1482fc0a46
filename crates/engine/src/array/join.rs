//! Another device, or a returned one, for a member's place: how it is reached, and what it is asked beside the running
//! array.

use futures_util::future::join_all;
use netraid_block::{Pool, TargetUri};
use netraid_iscsi_proto::chap::Secret;
use netraid_raid::{
    assemble::AssembleError,
    fencing::Fence,
    label::Label,
    member::MemberIndex,
    reach::{Dial as _, Sessions as _},
    volume::{
        Expect, NotFormer, PlainOrLogged,
        preparing::{self, Answer, Ask, Locked, Other, Refusal, Step, Steps},
    },
};

use super::{
    ArrayError,
    create::shows_mark,
    driver::{Driver, Reply},
    lock::{ArrayLock, this_holder},
    member::{Connected, Dialer, MemberConfig, Reached},
};

/// A device that may take a member's place, with the label of a member that is back; or why it may not.
pub(super) struct Joined {
    pub(super) member: MemberIndex,
    pub(super) device: Result<(Connected, Option<Label>), ArrayError>,
}

/// What came of looking for a member.
pub(super) struct Returned {
    pub(super) member: MemberIndex,
    pub(super) end: Result<(Connected, Option<Label>), ArrayError>,
}

/// A device that is wanted to take a member's place.
pub(super) struct Asked {
    pub(super) config: MemberConfig,
    pub(super) by: AskedBy,
}

/// Who asks for a device.
pub(super) enum AskedBy {
    /// Somebody, who waits for the answer.
    Command(Reply),
    /// The volume, for a spare.
    Volume,
}

impl Asked {
    /// Answers a command; the volume is told by whoever has it.
    pub(super) fn answer(self, result: Result<(), ArrayError>) {
        if let AskedBy::Command(reply) = self.by {
            // Nobody waits for the answer any more.
            let _ = reply.send(result);
        }
    }
}

impl Joined {
    /// The array has closed: the device is given back.
    pub(super) async fn let_go(self) {
        if let Ok((mut connected, _)) = self.device {
            connected.leave().await;
        }
    }
}

impl Returned {
    /// The array has closed: the device is given back.
    pub(super) async fn let_go(self) {
        if let Ok((mut connected, _)) = self.end {
            connected.leave().await;
        }
    }
}

impl Driver {
    /// How to reach a device that is to take the place of a member, by index or address.
    pub(super) fn prepare_replacement(
        &self,
        member: &str,
        with: &str,
        handed: Option<Secret>,
    ) -> Result<(MemberIndex, MemberConfig), ArrayError> {
        let member = self.find(member)?;
        Ok((member, self.config_for(member, TargetUri::parse(with)?, handed)?))
    }

    /// The address with its user's secret, which may be `handed`, and with the sessions and the deadline that
    /// the array's members have. What they have to prove, their successor has to prove, too.
    fn config_for(
        &self,
        member: MemberIndex,
        uri: TargetUri,
        handed: Option<Secret>,
    ) -> Result<MemberConfig, ArrayError> {
        let own = self.slots[member.as_usize()].config.as_ref();
        let any = self.slots.iter().filter_map(|slot| slot.config.as_ref());
        let like = own.into_iter().chain(any);
        let mut config = MemberConfig::new(uri, None);
        // As the member itself was reached, where that is known.
        if let Some(first) = like.clone().next() {
            config.request_timeout = first.request_timeout;
            config.digests = first.digests;
            config.allow_none = first.allow_none;
            config.sessions = first.sessions;
        }
        for other in like.clone() {
            if config.mutual.is_none() {
                config.mutual.clone_from(&other.mutual);
            }
            if config.keyring.is_none() {
                config.keyring.clone_from(&other.keyring);
            }
        }
        // An address's own secret counts, and without a user there is nobody whom a secret proves.
        let handed = handed.filter(|_| config.uri.user.is_some() && config.uri.secret.is_none());
        config.secret = match (handed, &config.keyring) {
            (Some(handed), _) => Some(handed),
            (None, Some(keyring)) => keyring.secret_of(&config.uri)?,
            // No target is shown what proves another user.
            (None, None) => like
                .filter(|other| config.uri.user.is_some() && other.uri.user == config.uri.user)
                .find_map(|other| other.secret.clone()),
        };
        Ok(config)
    }
}

/// The running array that a device is to join.
pub(super) struct Beside {
    array: preparing::Beside,
    /// The devices that serve.
    others: Vec<Connected>,
}

impl Beside {
    /// The array of this machine, which has its `lock` and keeps others out by `fence`, with these others of its
    /// members.
    pub(super) fn new(
        machine: &PlainOrLogged,
        lock: Option<&ArrayLock>,
        fence: Option<Fence>,
        others: Vec<Connected>,
    ) -> Self {
        let (label, max_io_len) = (machine.label(), machine.max_io_len());
        let array = preparing::Beside { label, max_io_len, this: this_holder(lock), fence };
        Self { array, others }
    }
}

/// Makes a session to a device for the array, when it is what is expected; with the label of a
/// member of an array with a log that is back. What is asked of it, and in which order, is in
/// [`netraid_raid::volume::preparing`].
pub(super) async fn join(
    config: MemberConfig,
    member: MemberIndex,
    expect: Expect,
    beside: &Beside,
    pool: Pool,
) -> Result<(Connected, Option<Label>), ArrayError> {
    let mut device = Reached::new(Dialer { config, pool });
    let mut steps = Steps::new(member, expect, beside.array.clone());
    // Held until this ends.
    let mut _former_lock = None;
    loop {
        let answer = match steps.poll() {
            Step::Ask(Ask::Device(ask)) => Answer::Device(device.ask(ask).await),
            Step::Ask(Ask::Others) => Answer::Others(check(&beside.others).await),
            Step::Ask(Ask::Lock(label)) => Answer::Lock(match ArrayLock::take(&label) {
                Ok(lock) => {
                    _former_lock = Some(lock);
                    Locked::Taken
                }
                Err(ArrayError::Locked { .. }) => Locked::Held,
                Err(_) => Locked::Impossible,
            }),
            Step::Done(Ok(label)) => {
                let mut device = device.take_sessions();
                if expect != Expect::Former
                    && let Err(error) = check_other(&device, &beside.others).await
                {
                    device.leave().await;
                    return Err(error);
                }
                return Ok((device, label.map(|label| *label)));
            }
            Step::Done(Err(refusal)) => {
                return Err(refused(refusal, device.dial().address(), member, beside));
            }
        };
        steps.answer(answer);
    }
}

/// Asks all that serve whether they are this engine's still.
async fn check(others: &[Connected]) -> Vec<Other> {
    let checked = others.iter().map(async |other| {
        let end = other.check_fenced().await;
        Other { exclusive: other.hold.standing.exclusive, end, is_fenced: other.remote.is_fenced() }
    });
    join_all(checked).await
}

/// Refuses a new device that is one of those which serve, or are to, by another address: one that a member is copied to has no
/// label yet by which it could be known.
async fn check_other(device: &Connected, others: &[Connected]) -> Result<(), ArrayError> {
    let identity = device.remote.identity();
    for other in others.iter().filter(|other| other.remote.identity() == identity) {
        if shows_mark(device, other).await? {
            let (first, second) = (other.address(), device.address());
            return Err(ArrayError::Twice { first, second });
        }
    }
    Ok(())
}

/// Why the device at `address` may not take a member's place, with addresses.
fn refused(
    refusal: Refusal<ArrayError>,
    address: String,
    member: MemberIndex,
    beside: &Beside,
) -> ArrayError {
    match refusal {
        Refusal::Failed(error) => error,
        Refusal::NotFenced(error) => ArrayError::not_fenced(address, error),
        Refusal::NotHolder { other, error } => {
            ArrayError::not_fenced(beside.others[other].address(), error)
        }
        Refusal::Unfit(unfit) => ArrayError::unfit(address, unfit),
        Refusal::Serves(member) => ArrayError::Serves { address, member },
        Refusal::OpenHere { name } => ArrayError::OpenHere { address, name },
        Refusal::NotFormer(NotFormer::NotThatMember) => {
            ArrayError::NotThatMember { address, member }
        }
        Refusal::NotFormer(NotFormer::WentOn) => {
            let name = beside.array.label.name.clone();
            let first = "the members that serve".to_owned();
            let reason = AssembleError::Diverged { name, first, second: address };
            ArrayError::Assemble { reason, notes: String::new() }
        }
    }
}
