//! Another device, or a returned one, in a member's place: connected and checked beside the
//! running array, then handed to its machine.

use futures_util::future::join_all;
use netraid_block::{ErrorKind, Pool, TargetUri};
use netraid_iscsi_proto::chap::Secret;
use netraid_raid::{
    array::CommandError,
    assemble::{AssembleError, has_diverged},
    label::Label,
    member::{MemberIndex, MemberState},
};

use super::{
    ArrayError,
    create::Needs,
    driver::{Driver, Reply, has_left},
    fence::{Fence, Removes},
    lock::ArrayLock,
    member::{Connected, MemberConfig},
    open::caps,
};

/// A device that may take a member's place, or why it may not.
pub(super) struct Joined {
    member: MemberIndex,
    device: Result<(Connected, Option<Label>), ArrayError>,
    reply: Reply,
}

/// A device that somebody wants to take a member's place.
pub(super) struct Asked {
    member: MemberIndex,
    config: MemberConfig,
    expect: Expect,
    reply: Reply,
}

impl Asked {
    /// The array has closed.
    pub(super) fn refuse(self) {
        // Nobody waits for the answer any more.
        let _ = self.reply.send(Err(ArrayError::Closing));
    }
}

impl Joined {
    /// The array has closed: the device is given back.
    pub(super) async fn let_go(self) {
        if let Ok((mut connected, _)) = self.device {
            connected.leave().await;
        }
        // Nobody waits for the answer any more.
        let _ = self.reply.send(Err(ArrayError::Closing));
    }
}

/// What the device is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// Unused.
    Unused,
    /// Whatever it is.
    Anything,
    /// What the member was before.
    Former,
}

impl Expect {
    /// Whose registrations at the device may be removed, where `is_holder` is proven.
    const fn removes(self, is_holder: bool) -> Removes {
        match self {
            // This engine has the array: whoever else had it is dead.
            Self::Former if is_holder => Removes::Engines,
            Self::Unused | Self::Former => Removes::Own,
            Self::Anything => Removes::All,
        }
    }
}

impl Driver {
    /// Connects to another device for a member, at an address and with the secret that came with it, if any;
    /// a member that still serves is set aside for it.
    pub(super) fn begin_replace(
        &mut self,
        member: &str,
        (with, handed): (&str, Option<Secret>),
        force: bool,
        reply: Reply,
    ) {
        let expect = if force { Expect::Anything } else { Expect::Unused };
        let prepared = self.find(member).and_then(|member| {
            Ok((member, self.config_for(member, TargetUri::parse(with)?, handed)?))
        });
        self.begin_join(prepared, expect, reply);
    }

    /// Connects to another device for a member, whatever is on it.
    pub(super) fn begin_replace_by(
        &mut self,
        member: MemberIndex,
        with: MemberConfig,
        reply: Reply,
    ) {
        let last = MemberIndex(self.machine.geometry().members() - 1);
        let prepared = match member <= last {
            true => Ok((member, with)),
            false => Err(ArrayError::NoSuchMember { given: member.to_string(), last }),
        };
        self.begin_join(prepared, Expect::Anything, reply);
    }

    /// Connects to a member's own device again.
    pub(super) fn begin_rebuild(&mut self, member: &str, reply: Reply) {
        let prepared = self.find(member).and_then(|member| {
            let config = self.slots[member.as_usize()].config.clone();
            Ok((member, config.ok_or(ArrayError::NotGiven(member))?))
        });
        self.begin_join(prepared, Expect::Former, reply);
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
        for other in like.clone() {
            config.request_timeout = other.request_timeout;
            config.digests = other.digests;
            config.allow_none = other.allow_none;
            config.sessions = other.sessions;
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

    fn begin_join(
        &mut self,
        prepared: Result<(MemberIndex, MemberConfig), ArrayError>,
        expect: Expect,
        reply: Reply,
    ) {
        let prepared = prepared.and_then(|(member, config)| {
            self.check_join(member, &config, expect)?;
            Ok((member, config))
        });
        let (member, config) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                // Nobody waits for the answer any more.
                let _ = reply.send(Err(error));
                return;
            }
        };
        self.slots[member.as_usize()].joining = true;
        let asked = Asked { member, config, expect, reply };
        // Whoever looks for this device may have it, or be about to have it.
        if self.slots.iter().any(|slot| slot.returning.attempt.is_some()) {
            self.asked = Some(asked);
        } else {
            self.begin_join_now(asked);
        }
    }

    /// Connects to a device that somebody wants to take a member's place.
    pub(super) fn begin_join_now(&mut self, asked: Asked) {
        let Asked { member, config, expect, reply } = asked;
        let serves = self.state(member).is_live();
        let slot = &mut self.slots[member.as_usize()];
        // One that still serves does so until its successor is there.
        let old = if serves { None } else { slot.connected.take() };
        // A device that was set aside may be the one that comes: two sessions with one ISID would
        // end each other in turns, and the older one would send its writes again.
        let leaving: Vec<_> = self.slots.iter_mut().map(|slot| slot.leaving.take()).collect();
        let beside = self.beside(member);
        let (pool, sender) = (self.pool.clone(), self.joined.0.clone());
        self.joining = Some(tokio::spawn(async move {
            if let Some(mut old) = old {
                old.leave().await;
            }
            for session in leaving {
                has_left(session).await;
            }
            let device = join(config, member, expect, &beside, pool).await;
            // The array's task waits for this one, so that it is there.
            let _ = sender.send(Joined { member, device, reply }).await;
        }));
    }

    /// What a device for the place of `member` is held against.
    pub(super) fn beside(&self, member: MemberIndex) -> Beside {
        let label = self.machine.label();
        let needs = Needs {
            capacity: label.regions.data.end(),
            transfer_len: self.machine.max_io_len(),
            block_len: label.geometry.block_len(),
            writes: true,
        };
        let others = self.slots.iter().zip((0..).map(MemberIndex));
        let others = others.filter(|(_, other)| *other != member);
        let others = others.filter_map(|(slot, _)| slot.connected.clone()).collect();
        Beside { label, needs, fence: self.fence, others }
    }

    /// Refuses what would cross the path of a device that is to take the member's place.
    pub(super) fn check_not_joining(&self, member: MemberIndex) -> Result<(), ArrayError> {
        let slot = &self.slots[member.as_usize()];
        match slot.joining && !self.state(member).is_live() {
            true => Err(ArrayError::Joining { address: slot.address() }),
            false => Ok(()),
        }
    }

    /// Whether the member's place may be taken now, by a device with this configuration.
    fn check_join(
        &self,
        member: MemberIndex,
        config: &MemberConfig,
        expect: Expect,
    ) -> Result<(), ArrayError> {
        if let Some(joining) = self.slots.iter().find(|slot| slot.joining) {
            return Err(ArrayError::Joining { address: joining.address() });
        }
        for (slot, other) in self.slots.iter().zip((0..).map(MemberIndex)) {
            if slot.address() == config.address() && self.state(other).is_live() && other != member
            {
                return Err(ArrayError::Serves { address: config.address(), member: other });
            }
        }
        let state = self.state(member);
        if expect == Expect::Former && state.is_live() {
            return Err(CommandError::StillLive(member, state.name()).into());
        }
        Ok(self.machine.check_replace(member)?)
    }

    /// A device is there, or is not. A predecessor that still serves is set aside for it.
    pub(super) fn take_joined(&mut self, joined: Joined) {
        let Joined { member, device, reply } = joined;
        let serves = self.state(member).is_live();
        let ready = match device {
            Ok((connected, label)) if serves => match self.machine.handle_fail(member) {
                Ok(()) => Ok((connected, label)),
                Err(error) => {
                    self.let_go(member, connected);
                    Err(error.into())
                }
            },
            other => other,
        };
        match ready {
            Ok(device) => self.waiting = Some(Joined { member, device: Ok(device), reply }),
            Err(error) => {
                self.slots[member.as_usize()].joining = false;
                // Nobody waits for the answer any more.
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Puts the waiting device into its place: stable labels exclude the old one now. Whoever asked
    /// is answered when the machine says that it takes part, or does not.
    pub(super) fn hand_over(&mut self) {
        let Some(Joined { member, device, reply }) = self.waiting.take() else { return };
        let taken = device.and_then(|(connected, label)| {
            let caps = caps(&connected);
            match self.machine.handle_device(member, rand::random(), caps, label) {
                Ok(()) => self.slots[member.as_usize()].take(connected),
                Err(error) => {
                    self.let_go(member, connected);
                    return Err(error.into());
                }
            }
            Ok(())
        });
        match taken {
            Ok(()) => self.handed_over = Some(HandedOver { member, reply }),
            Err(error) => {
                self.slots[member.as_usize()].joining = false;
                // Nobody waits for the answer any more.
                let _ = reply.send(Err(error));
            }
        }
    }

    /// The machine says whether a member takes part; a device that was handed over for it does now,
    /// or will not.
    pub(super) fn end_join(&mut self, member: MemberIndex, is_live: bool, reason: &str) {
        let Some(waiting) = self.handed_over.take_if(|waiting| waiting.member == member) else {
            return;
        };
        self.slots[member.as_usize()].joining = false;
        let end = match is_live {
            true => Ok(()),
            false => Err(ArrayError::NotJoined { member, reason: reason.to_owned() }),
        };
        // Nobody waits for the answer any more.
        let _ = waiting.reply.send(end);
    }

    /// The array has failed or closed: a device that was handed over does not take part.
    pub(super) fn end_join_for_good(&mut self) {
        let Some(member) = self.handed_over.as_ref().map(|waiting| waiting.member) else {
            return;
        };
        let failure = self.machine.failure().map(|failure| failure.to_string());
        self.end_join(member, false, failure.as_deref().unwrap_or("the array was closed"));
    }
}

/// A device that the machine has, while it makes it part of the array.
pub(super) struct HandedOver {
    member: MemberIndex,
    reply: Reply,
}

/// The running array that a device is to join.
pub(super) struct Beside {
    label: Label,
    needs: Needs,
    fence: Option<Fence>,
    /// The devices that serve.
    others: Vec<Connected>,
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
    let Beside { label: array, needs, fence, others } = beside;
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
    let former = fence.map(|fence| fence.former_machines(own.as_ref())).unwrap_or_default();
    let mut connected = Connected::take_over(config, &array.array_uuid, &former, pool).await?;
    let fenced = match fence {
        Some(fence) => {
            let removes = match expect.removes(is_holder) {
                Removes::Own => {
                    let own = own.as_ref().and_then(|label| fence.dead_holder(label));
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
    let ends = join_all(others.iter().filter(|other| other.exclusive).map(async |other| {
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
    let Ok(label) = connected.label().await? else { return Ok(()) };
    if label.array_uuid != array.array_uuid {
        return Ok(());
    }
    let at = label.index.as_usize();
    let current = array.members.get(at).filter(|entry| entry.state.is_live());
    if current.is_some_and(|entry| entry.uuid == label.members[at].uuid) {
        return Err(ArrayError::Serves { address: connected.address(), member: label.index });
    }
    Ok(())
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
    let not_that = || ArrayError::NotThatMember { address: connected.address(), member };
    let label = connected.label().await?.map_err(|_| not_that())?;
    if label.array_uuid != array.array_uuid || label.index != member {
        return Err(not_that());
    }
    if array.log.is_none() {
        return Ok(label);
    }
    let at = member.as_usize();
    if label.members.get(at).map(|entry| entry.uuid) != Some(array.members[at].uuid) {
        return Err(not_that());
    }
    let went_on = |index| has_diverged(&Label { index, ..array.clone() }, &label);
    let is_newer = (label.generation, label.epoch) > (array.generation, array.epoch);
    let in_sync = |index: &MemberIndex| array.state(*index) == MemberState::InSync;
    if is_newer || array.geometry.member_indices().filter(in_sync).any(went_on) {
        let (name, first) = (array.name.clone(), "the members that serve".to_owned());
        let reason = AssembleError::Diverged { name, first, second: connected.address() };
        return Err(ArrayError::Assemble { reason, notes: String::new() });
    }
    Ok(label)
}
