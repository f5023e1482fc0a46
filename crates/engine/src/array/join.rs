//! Another device, or a returned one, for a member's place: connected to and checked beside the running array.

use futures_util::future::join_all;
use netraid_block::{ErrorKind, Pool, TargetUri};
use netraid_iscsi_proto::chap::Secret;
use netraid_raid::{
    assemble::AssembleError,
    fencing::{Fence, Removes, key_of_dead_holder},
    label::{Holder, Label},
    member::MemberIndex,
    volume::{self, Expect, NotFormer, PlainOrLogged, serves_as},
};

use super::{
    ArrayError,
    create::Needs,
    driver::{Driver, Reply},
    lock::{ArrayLock, this_holder},
    member::{Connected, MemberConfig},
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

/// A device that somebody wants to take a member's place.
pub(super) struct Asked {
    pub(super) config: MemberConfig,
    pub(super) reply: Reply,
}

impl Asked {
    pub(super) fn answer(self, result: Result<(), ArrayError>) {
        // Nobody waits for the answer any more.
        let _ = self.reply.send(result);
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
    label: Label,
    needs: Needs,
    /// Who has it.
    this: Holder,
    fence: Option<Fence>,
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
        let label = machine.label();
        let needs = Needs {
            capacity: label.regions.data.end(),
            transfer_len: machine.max_io_len(),
            block_len: label.geometry.block_len(),
            writes: true,
        };
        Self { label, needs, this: this_holder(lock), fence, others }
    }
}

/// Makes a session to a device for the array, when it is what is expected; with the label of a
/// member of an array with a log that is back.
pub(super) async fn join(
    config: MemberConfig,
    member: MemberIndex,
    expect: Expect,
    beside: &Beside,
    pool: Pool,
) -> Result<(Connected, Option<Label>), ArrayError> {
    let Beside { label: array, needs, this, fence, others } = beside;
    let is_holder = is_holder(others).await?;
    let connected = Connected::visit(config.clone(), pool.clone()).await?;
    let checked = async {
        needs.check(&connected)?;
        check_not_serving(&connected, array).await?;
        match expect {
            Expect::Anything => check_not_open_here(&connected, array).await,
            Expect::Unused => connected.check_unused().await.map(|()| None),
            Expect::Former => check_former(&connected, member, array).await.map(|_| None),
        }
    };
    let own = connected.label().await;
    let checked = checked.await;
    connected.remote.close().await;
    // The array that the device was of is not opened by this machine before the device is fenced.
    let _former_lock = checked?;
    // No label is written yet: the machine composes it, and that overwrites any other.
    let own = own?.ok().filter(|label| label.array_uuid == array.array_uuid);
    let former = fence.map(|fence| fence.former_machines(own.as_ref(), this)).unwrap_or_default();
    let mut connected = Connected::take_over(config, &array.array_uuid, &former, pool).await?;
    let fenced = match fence {
        Some(fence) => {
            let removes = match Removes::of(expect, is_holder) {
                Removes::Own => {
                    let own = own.as_ref().and_then(|label| key_of_dead_holder(label, this));
                    Removes::Holders([None, own])
                }
                removes @ (Removes::Holders(_) | Removes::Engines | Removes::All) => removes,
            };
            connected.fence(fence.with(removes)).await
        }
        None => Ok(()),
    };
    // Before the member that is replaced is set aside for it, and before anything of it is overwritten.
    let fenced = match fenced {
        Ok(()) if expect != Expect::Former => {
            connected.prove_writable(array.regions.data.end()).await
        }
        end => end,
    };
    let is_back = expect == Expect::Former && array.log.is_some();
    let label = match fenced {
        Ok(()) if is_back => check_former(&connected, member, array).await.map(Some),
        Ok(()) if array.log.is_some() => {
            connected.reserve_tables(&array.regions).await.map(|()| None)
        }
        end => end.map(|()| None),
    };
    match label {
        Ok(label) => Ok((connected, label)),
        Err(error) => {
            connected.leave().await;
            Err(error)
        }
    }
}

/// Whether this engine surely has the array still, by the members that are fenced. Who is fenced out
/// without having heard of it yet must not push its successor aside.
async fn is_holder(others: &[Connected]) -> Result<bool, ArrayError> {
    let ends =
        join_all(others.iter().filter(|other| other.standing.exclusive).map(async |other| {
            let end = other.check_fenced().await;
            (end, other.remote.is_fenced())
        }));
    let ends = ends.await;
    let is_holder = !ends.is_empty() && ends.iter().all(|(end, _)| end.is_ok());
    for (end, is_fenced) in ends {
        match end {
            Err(ArrayError::Io { reason, .. })
                if !is_fenced && reason.kind() != ErrorKind::Fenced => {}
            end => end?,
        }
    }
    Ok(is_holder)
}

/// Refuses a LUN that serves as another member, whatever the user says.
async fn check_not_serving(connected: &Connected, array: &Label) -> Result<(), ArrayError> {
    let label = connected.label().await?.ok();
    match label.and_then(|label| serves_as(array, &label)) {
        Some(member) => Err(ArrayError::Serves { address: connected.address(), member }),
        None => Ok(()),
    }
}

/// Refuses a member of another array that is open on this machine, whatever the user says.
async fn check_not_open_here(
    connected: &Connected,
    array: &Label,
) -> Result<Option<ArrayLock>, ArrayError> {
    match connected.label().await? {
        Ok(label) if label.array_uuid != array.array_uuid => {
            connected.check_not_open_here(&label).await
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Refuses what was not that member; with a log, also one that went on without the others.
async fn check_former(
    connected: &Connected,
    member: MemberIndex,
    array: &Label,
) -> Result<Label, ArrayError> {
    let address = connected.address();
    let label = connected.label().await?.ok();
    let not_former = match (volume::check_former(array, member, label.as_ref()), label) {
        (Ok(()), Some(label)) => return Ok(label),
        (Ok(()), None) => NotFormer::NotThatMember,
        (Err(not_former), _) => not_former,
    };
    Err(match not_former {
        NotFormer::NotThatMember => ArrayError::NotThatMember { address, member },
        NotFormer::WentOn => {
            let (name, first) = (array.name.clone(), "the members that serve".to_owned());
            let reason = AssembleError::Diverged { name, first, second: address };
            ArrayError::Assemble { reason, notes: String::new() }
        }
    })
}
