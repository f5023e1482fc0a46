//! How an engine prepares a device for a member's place beside the running array, in straight-line code, in the order of
//! the engine's shell.

use netraid_block::ErrorKind;
use netraid_raid::{
    fencing::{Fence, Removes, key_of_dead_holder},
    label::{Holder, Label},
    member::MemberIndex,
    volume::{self, Expect, NotFormer, serves_as},
};

use super::{
    script::{Desk, join_all},
    device::{Connected, Failure},
};

/// The running array that a device is to join.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) label: Label,
    pub(super) this: Holder,
    pub(super) fence: Fence,
    /// The devices that serve.
    pub(super) others: Vec<Connected>,
    pub(super) max_io_len: u32,
}

/// Makes a session to a device for the array, when it is what is expected; with the label of a member of an array with
/// a log that is back.
pub(super) async fn join(
    desk: Desk,
    host: usize,
    member: MemberIndex,
    expect: Expect,
    beside: Beside,
) -> Result<(Connected, Option<Label>), Failure> {
    let Beside { label: array, this, fence, others, max_io_len } = &beside;
    let is_holder = is_holder(others).await?;
    let visited = Connected::visit(desk.clone(), host).await?;
    let own = visited.label().await;
    let checked = check(&visited, array, member, expect, *max_io_len).await;
    visited.close().await;
    checked?;
    let own = own?.ok().filter(|label| label.array_uuid == array.array_uuid);
    let former = fence.former_machines(own.as_ref(), this);
    let who = (this.machine_id, array.array_uuid);
    let mut connected = Connected::take_over(desk, host, who, &former).await?;
    let removes = match Removes::of(expect, is_holder) {
        Removes::Own => {
            let own = own.as_ref().and_then(|label| key_of_dead_holder(label, this));
            Removes::Holders([None, own])
        }
        removes @ (Removes::Holders(_) | Removes::Engines | Removes::All) => removes,
    };
    match prepare(&mut connected, member, expect, array, fence.with(removes)).await {
        Ok(label) => Ok((connected, label)),
        Err(failure) => {
            connected.leave().await;
            Err(failure)
        }
    }
}

async fn check(
    visited: &Connected,
    array: &Label,
    member: MemberIndex,
    expect: Expect,
    max_io_len: u32,
) -> Result<(), Failure> {
    if visited.info.capacity < array.regions.data.end() {
        return Err(Failure::Unfit("its capacity"));
    }
    if visited.info.max_transfer_len < max_io_len {
        return Err(Failure::Unfit("its largest transfer"));
    }
    if visited.info.block_len > array.geometry.block_len() {
        return Err(Failure::Unfit("its logical block"));
    }
    let label = visited.label().await?.ok();
    if let Some(member) = label.and_then(|label| serves_as(array, &label)) {
        return Err(Failure::Serves(member));
    }
    match expect {
        Expect::Anything => Ok(()),
        Expect::Unused => visited.check_unused().await,
        Expect::Former => check_former(visited, member, array).await.map(drop),
    }
}

async fn prepare(
    connected: &mut Connected,
    member: MemberIndex,
    expect: Expect,
    array: &Label,
    fence: Fence,
) -> Result<Option<Label>, Failure> {
    connected.fence(fence).await?;
    if expect != Expect::Former {
        connected.prove_writable(array.regions.data.end()).await?;
    }
    if array.log.is_none() {
        return Ok(None);
    }
    if expect == Expect::Former {
        return check_former(connected, member, array).await.map(Some);
    }
    connected.reserve_tables(&array.regions).await.map(|()| None)
}

/// Whether this engine surely has the array still, by the members that are fenced.
async fn is_holder(others: &[Connected]) -> Result<bool, Failure> {
    let ends = join_all(others.iter().filter(|other| other.standing.exclusive).map(|other| async {
        let end = other.check_fenced().await;
        (end, other.is_fenced())
    }))
    .await;
    let is_holder = !ends.is_empty() && ends.iter().all(|(end, _)| end.is_ok());
    for (end, is_fenced) in ends {
        match end {
            Err(Failure::Io(_, reason)) if !is_fenced && reason.kind() != ErrorKind::Fenced => {}
            end => end?,
        }
    }
    Ok(is_holder)
}

/// Refuses what was not that member; with a log, also one that went on without the others.
async fn check_former(
    connected: &Connected,
    member: MemberIndex,
    array: &Label,
) -> Result<Label, Failure> {
    let label = connected.label().await?.ok();
    match (volume::check_former(array, member, label.as_ref()), label) {
        (Ok(()), Some(label)) => Ok(label),
        (Ok(()), None) | (Err(NotFormer::NotThatMember), _) => Err(Failure::NotThatMember),
        (Err(NotFormer::WentOn), _) => Err(Failure::WentOn),
    }
}
