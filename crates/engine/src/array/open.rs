//! Opening an array: straight-line work before the machine takes over.

use super::{
    Caches,
    error::ArrayError,
    lock::{ArrayLock, hex, this_holder},
    member::{Connected, MemberConfig},
    slots::caps,
    written,
};
use std::collections::BTreeSet;

use futures_util::future::join_all;
use netraid_block::{DeviceInfo, IoError, Pool};
use netraid_raid::{
    access::{Failure as _, Needs},
    array::{ArrayMachine, MemberCaps, OpenConfig},
    assemble::{
        AssembleError, Assembly, CleanClose, Found, Permissions, assemble, choose_array, misplaced,
    },
    executor::Executor,
    fencing::{Fence, Removes, key_of_dead_holder},
    label::{Holder, Label, Uuid},
    logged::{FoundMember, LoggedArray, OpenConfig as LoggedConfig},
    member::{MemberIndex, MemberSet, MemberState},
    testimony::judge,
    volume::{Logged, Plain, PlainOrLogged, logged_caps},
    written::WrittenBits,
};

/// Largest request to a member, in bytes; neighbours are merged up to it.
const MEMBER_IO_LEN_MAX: u32 = 1 << 20;

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

/// Connects to `members`, weighs their labels, takes the lock, and loads the written bits.
pub(super) async fn open(
    options: OpenOptions,
    members: Vec<MemberConfig>,
    pool: &Pool,
) -> Result<Opened, ArrayError> {
    let mut notes = Vec::new();
    let connect = |config: MemberConfig| Connected::visit(config, pool.clone());
    let mut connected: Vec<Connected> = Vec::new();
    for (place, end) in join_all(members.into_iter().map(connect)).await.into_iter().enumerate() {
        match end {
            Ok(member) => connected.push(Connected { place, ..member }),
            Err(error) => notes.push(error.to_string()),
        }
    }
    match weigh(options, connected, &mut notes, pool).await {
        Ok(opened) => Ok(Opened { notes, ..opened }),
        Err((error, mut connected)) => {
            join_all(connected.iter_mut().map(Connected::leave)).await;
            Err(error)
        }
    }
}

/// Goes on with the members that answered; gives them back when the array cannot be opened.
async fn weigh(
    options: OpenOptions,
    connected: Vec<Connected>,
    notes: &mut Vec<String>,
    pool: &Pool,
) -> Result<Opened, (ArrayError, Vec<Connected>)> {
    let mut connected = connected;
    match decide_and_load(options, &mut connected, notes, pool).await {
        Ok(decided) => start(options, connected, decided, pool).map_err(|(reason, connected)| {
            let text = format!("{reason}{}", joined(notes));
            (ArrayError::Failed(IoError::with_detail(reason.kind(), text)), connected)
        }),
        Err(error) => Err((error, connected)),
    }
}

/// What was decided about members that answered.
struct Decided {
    assembly: Assembly,
    lock: Option<ArrayLock>,
    fence: Option<Fence>,
    /// None with a log.
    written: Option<WrittenBits>,
    /// For each member in order: its place among those that answered.
    places: Vec<Option<usize>>,
    /// For each member in order: its label, and the counter of its newest checkpoint.
    labels: Vec<Option<(Label, Option<u64>)>>,
    /// Members that are left out, because the others contradict what they say.
    liars: Vec<(MemberIndex, MemberConfig)>,
}

async fn decide_and_load(
    options: OpenOptions,
    connected: &mut [Connected],
    notes: &mut Vec<String>,
    pool: &Pool,
) -> Result<Decided, ArrayError> {
    let mut found = read_labels(connected, notes).await?;
    let mut strangers = Vec::new();
    if options.is_placed {
        leave_out_unopened(&mut found, notes);
        strangers = leave_out_misplaced(&mut found, connected, notes);
    }
    let Fenced { mut assembly, lock, fence, mut places } =
        decide_and_fence(options, connected, &found, notes, pool).await?;
    for at in &assembly.stale {
        let (_, found) = &found[*at];
        let index = found.label.index;
        let is_served = assembly.found.get(index.as_usize()).is_some_and(Option::is_some);
        let what_to_do = match is_served {
            true => "has been replaced; leave its address out",
            false => "is not up to date; `netraid rebuild` takes it back",
        };
        notes.push(format!("{}: was member {index}, {what_to_do}", found.address));
    }
    let mut forgers = Vec::new();
    let written = match assembly.label.log {
        Some(_) => None,
        None => {
            let (written, left_out) =
                written::load(&mut assembly, &mut places, connected, notes, options.force).await?;
            forgers = left_out;
            Some(written)
        }
    };
    let label =
        |place: &Option<usize>| place.map(|at| (found[at].1.label.clone(), found[at].1.checkpoint));
    let labels = assembly.found.iter().map(label).collect();
    let liar = |(at, _): &(usize, _)| {
        let (connection, Found { label, .. }) = &found[*at];
        (label.index, connected[*connection].config.clone())
    };
    let forger = |at: &usize| {
        let found = found.iter().find(|(connection, _)| connection == at);
        found.map(|(at, Found { label, .. })| (label.index, connected[*at].config.clone()))
    };
    let forgers = forgers.iter().filter_map(forger);
    // The place of a member that is there is not the liar's.
    let is_free = |(index, _): &(MemberIndex, _)| {
        assembly.found.get(index.as_usize()).is_some_and(Option::is_none)
    };
    let liars = assembly.liars.iter().map(liar).filter(is_free).chain(forgers).chain(strangers);
    // More members may be given, or told of, than the array has: nobody comes back to such a place.
    let is_place = |(index, _): &(MemberIndex, _)| index.as_usize() < assembly.found.len();
    let liars = liars.filter(is_place).collect();
    Ok(Decided { assembly, lock, fence, written, places, labels, liars })
}

/// What was decided of labels, and holds: nobody else can change them any more.
struct Fenced {
    assembly: Assembly,
    lock: Option<ArrayLock>,
    fence: Option<Fence>,
    places: Vec<Option<usize>>,
}

/// Decides, and makes the members that the array will use its own alone. A member that refuses the array's sessions,
/// whose answers about reservations are of no use, or whose label is another one by then, is left out, and it is
/// decided again: what its label said counts all the same. Where such members alone are enough to serve from, another
/// engine may be doing so unfenced, and the array is not opened.
async fn decide_and_fence(
    options: OpenOptions,
    connected: &mut [Connected],
    found: &[(usize, Found)],
    notes: &mut Vec<String>,
    pool: &Pool,
) -> Result<Fenced, ArrayError> {
    let (mut lock, mut unfenced) = (None, MemberSet::EMPTY);
    let mut has_sessions = BTreeSet::new();
    loop {
        let before = notes.len();
        let (assembly, held) = decide(options, connected, found, (lock, unfenced), notes)?;
        if assembly.label.log.is_some() && options.read_only && assembly.unclean {
            return Err(ArrayError::NotClosed(assembly.label.name));
        }
        let places: Vec<Option<usize>> =
            assembly.found.iter().map(|place| place.map(|at| found[at].0)).collect();
        let Some(held) = held else {
            return Ok(Fenced { assembly, lock: None, fence: None, places });
        };

        let new: Vec<Option<usize>> =
            places.iter().map(|place| place.filter(|at| has_sessions.insert(*at))).collect();
        let truth = &found[assembly.truth].1.label;
        let this = this_holder(Some(&held));
        let removes = |own| removes(options, &this, [truth, own]);
        let fence = Fence::new(truth, &this, removes(truth), rand::random());
        let former = |at| fence.former_machines(own_label(found, at), &this);
        let mut failed = take_over(connected, &new, &truth.array_uuid, former, pool).await?;
        if failed.is_empty() {
            let fence_of = |at| {
                let own = own_label(found, at).unwrap_or(truth);
                fence.with(removes(own))
            };
            failed = exclude_others(connected, &places, fence_of, notes).await?;
        }
        if failed.is_empty() {
            failed = find_changed(connected, &places, truth, found).await?;
        }
        if failed.is_empty() {
            return Ok(Fenced { assembly, lock: Some(held), fence: Some(fence), places });
        }

        notes.truncate(before);
        for (at, error) in failed {
            let index = member_at(&places, at);
            unfenced.insert(index);
            if assembly.label.geometry.can_serve_from(unfenced) {
                return Err(error);
            }
            notes.push(format!("{error}; it is left out as member {index}"));
            connected[at].leave().await;
        }
        lock = Some(held);
    }
}

/// The member that the connection `at` is to.
fn member_at(places: &[Option<usize>], at: usize) -> MemberIndex {
    let place = places.iter().position(|place| *place == Some(at));
    let Some(index) = place.and_then(|place| u8::try_from(place).ok()).map(MemberIndex) else {
        unreachable!("connection {at} is used, and is of no member")
    };
    index
}

/// Makes the sessions that the array will use, now that its lock is held. What a dead predecessor
/// of this machine had under way ends before, by whichever `former` identity of the machine. Members that do not let them in are given back, with why.
///
/// # Errors
/// When one says that somebody else has the array now.
async fn take_over(
    connected: &mut [Connected],
    places: &[Option<usize>],
    array: &Uuid,
    former: impl Fn(usize) -> BTreeSet<Uuid>,
    pool: &Pool,
) -> Result<Vec<(usize, ArrayError)>, ArrayError> {
    let places = places.iter().flatten();
    let configs = places.map(|at| (*at, connected[*at].config.clone(), former(*at)));
    let sessions = configs.map(async |(at, config, former)| {
        (at, Connected::take_over(config, array, &former, pool.clone()).await)
    });
    let (mut failed, mut refused) = (Vec::new(), None);
    for (at, end) in join_all(sessions).await {
        match end {
            Ok(session) => {
                let visit = std::mem::replace(&mut connected[at], session);
                visit.remote.close().await;
            }
            Err(error) if error.is_conflict() => refused = Some(error),
            Err(error) => failed.push((at, error)),
        }
    }
    refused.map_or(Ok(failed), Err)
}

/// The label of the device that answered as number `at`, when it was read.
fn own_label(found: &[(usize, Found)], at: usize) -> Option<&Label> {
    found.iter().find(|(one, _)| *one == at).map(|(_, found)| &found.label)
}

/// Whose registrations at a member may be removed, by the label that decides and the member's own.
fn removes(options: OpenOptions, this: &Holder, labels: [&Label; 2]) -> Removes {
    let key = |label: &Label| key_of_dead_holder(label, this);
    match options {
        OpenOptions { force: true, .. } => Removes::All,
        OpenOptions { take_over: true, .. } => Removes::Engines,
        // Others may be opening it just now.
        OpenOptions { .. } => Removes::Holders(labels.map(key)),
    }
}

/// Fences the members, all of them; says which ones cannot be. Those that fail at it are given back.
///
/// # Errors
/// When somebody else is registered at one, or has reserved it.
async fn exclude_others(
    connected: &mut [Connected],
    places: &[Option<usize>],
    fence_of: impl Fn(usize) -> Fence,
    notes: &mut Vec<String>,
) -> Result<Vec<(usize, ArrayError)>, ArrayError> {
    let members = connected.iter_mut().enumerate();
    let members = members.filter(|(at, _)| places.contains(&Some(*at)));
    // Each to its end: what was registered must be known, to be taken back when one fails.
    let ends = join_all(members.map(async |(at, member)| {
        let end = member.fence(fence_of(at)).await;
        let end = end.map_err(|error| ArrayError::not_fenced(member.address(), error));
        (at, end.map(|()| (!member.standing.exclusive).then(|| member.address())))
    }));
    let mut failed = Vec::new();
    for (at, end) in ends.await {
        match end {
            Ok(None) => {}
            Ok(Some(address)) => notes.push(format!(
                "{address}: not fenced, since it has no persistent reservations: make sure that no \
                 other engine writes to it"
            )),
            Err(error @ (ArrayError::Io { .. } | ArrayError::Forgetful { .. }))
                if !error.is_conflict() =>
            {
                failed.push((at, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(failed)
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
    connected: &[Connected],
    places: &[Option<usize>],
    truth: &Label,
    found: &[(usize, Found)],
) -> Result<Vec<(usize, ArrayError)>, ArrayError> {
    let used = places.iter().flatten();
    let labels = join_all(used.map(async |at| (*at, connected[*at].label().await))).await;
    let (mut others, mut is_changed, mut are_fenced) = (truth.in_sync(), false, true);
    let mut failed = Vec::new();
    for (at, now) in labels {
        let address = || connected[at].address();
        let error = match now {
            Ok(Ok(now)) if own_label(found, at) == Some(&now) => {
                others.remove(member_at(places, at));
                are_fenced &= connected[at].standing.exclusive;
                continue;
            }
            Ok(Ok(now)) => {
                is_changed = true;
                let (generation, epoch) = (now.generation, now.epoch);
                ArrayError::LabelChanged { address: address(), generation, epoch }
            }
            Ok(Err(reason)) => {
                is_changed = true;
                ArrayError::Label { address: address(), reason }
            }
            Err(error) if error.is_conflict() => return Err(error),
            Err(error) => error,
        };
        failed.push((at, error));
    }
    match is_changed && (!are_fenced || truth.geometry.can_serve_from(others)) {
        true => {
            let members = failed.iter().map(|(at, _)| connected[*at].address()).collect();
            Err(ArrayError::Changed { name: truth.name.clone(), members })
        }
        false => Ok(failed),
    }
}

/// Makes the machine; gives the members back when it cannot go on with them. It weighs the labels of those alone that
/// it has, and without those that were left out, it may not be clear any more which one counts.
fn start(
    options: OpenOptions,
    connected: Vec<Connected>,
    decided: Decided,
    pool: &Pool,
) -> Result<Opened, (IoError, Vec<Connected>)> {
    let Decided { assembly, lock, fence, written, places, labels, liars } = decided;
    let mut connected: Vec<Option<Connected>> = connected.into_iter().map(Some).collect();
    let members: Vec<Option<Connected>> =
        places.iter().map(|place| place.and_then(|at| connected[at].take())).collect();
    let found: Vec<MemberCaps> =
        members.iter().map(|one| one.as_ref().map_or_else(MemberCaps::default, caps)).collect();
    let limits = members.iter().flatten().map(|m| m.device.info().max_transfer_len);
    let merged = limits.min().unwrap_or(MEMBER_IO_LEN_MAX).min(MEMBER_IO_LEN_MAX);
    let max_io_len = merged.max(assembly.label.geometry.chunk_len());
    let volatile_cache = found.iter().any(|caps| caps.volatile_cache);
    let info = device_info(&assembly, options.read_only, volatile_cache);
    let holder = this_holder(lock.as_ref());
    // Who only reads does not keep others from writing. With a log, whose tables are read once, that shows
    // old bytes anyway; without one each read shows what is there, and goes on doing so.
    let may_change = options.read_only && written.is_some();
    let read_ahead = options.caches.read_ahead_len().filter(|_| !may_change);
    let machine = match written {
        Some(written) => {
            let (read_only, trust_parity) = (options.read_only, options.force);
            let caps = found;
            let config = OpenConfig { read_only, trust_parity, holder, caps, max_io_len };
            let machine = ArrayMachine::open(&assembly, written, config);
            PlainOrLogged::Plain(Box::new(Plain::new(machine, Executor::new(pool.clone()))))
        }
        None => {
            let machine =
                start_logged(options, &assembly, labels, found, (holder, max_io_len), pool);
            match machine {
                Ok(machine) => PlainOrLogged::Logged(Box::new(machine)),
                Err(reason) => {
                    let all = members.into_iter().chain(connected);
                    return Err((reason, all.flatten().collect()));
                }
            }
        }
    };
    let unused = connected.into_iter().flatten().collect();
    let (notes, reads_under_way) = (Vec::new(), options.reads_under_way);
    Ok(Opened {
        machine,
        read_ahead,
        reads_under_way,
        members,
        lock,
        fence,
        info,
        notes,
        unused,
        liars,
    })
}

/// The machine of an array with a log, of members whose labels and devices these are.
fn start_logged(
    options: OpenOptions,
    assembly: &Assembly,
    labels: Vec<Option<(Label, Option<u64>)>>,
    found: Vec<MemberCaps>,
    (holder, max_io_len): (Holder, u32),
    pool: &Pool,
) -> Result<Logged, IoError> {
    // Who is not in sync cannot catch up when nothing is written.
    let serves =
        |at: usize| !options.read_only || assembly.label.members[at].state == MemberState::InSync;
    let caps_and_labels = found.into_iter().zip(labels).enumerate();
    let members = caps_and_labels.map(|(at, (caps, label))| {
        let (label, checkpoint) = label.filter(|_| serves(at))?;
        Some(FoundMember { caps: logged_caps(caps), label, checkpoint })
    });
    let config = LoggedConfig {
        members: members.collect(),
        holder,
        max_io_len,
        pool: pool.clone(),
        limits: options.caches.limits(),
    };
    Ok(Logged::new(LoggedArray::open(config)?, options.read_only, max_io_len))
}

/// Labels with the place of their member among those that answered.
pub(super) async fn read_labels(
    connected: &[Connected],
    notes: &mut Vec<String>,
) -> Result<Vec<(usize, Found)>, ArrayError> {
    let mut found = Vec::new();
    let labels = join_all(connected.iter().map(async |member| {
        let label = member.label().await;
        let checkpoint = match &label {
            Ok(Ok(label)) if label.log.is_some() => member.checkpoint(label.array_uuid).await,
            Ok(_) | Err(_) => None,
        };
        (label, checkpoint)
    }));
    for (at, (member, (label, checkpoint))) in connected.iter().zip(labels.await).enumerate() {
        match label {
            Ok(Ok(label)) => {
                found.push((at, Found { address: member.address(), label, checkpoint }));
            }
            Ok(Err(reason)) => notes.push(format!("{}: {reason}", member.address())),
            Err(error) => notes.push(error.to_string()),
        }
    }
    match found.is_empty() {
        true => Err(ArrayError::NoLabels(joined(notes))),
        false => Ok(found),
    }
}

/// Takes labels of arrays whose making was cut short from those of the one that is opened.
fn leave_out_unopened(found: &mut Vec<(usize, Found)>, notes: &mut Vec<String>) {
    let Some(chosen) = choose_array(found.iter().map(|(_, found)| &found.label)) else { return };
    found.retain(|(_, Found { address, label, .. })| {
        let is_its = label.array_uuid == chosen;
        if !is_its {
            let name = &label.name;
            notes.push(format!("{address}: of another array '{name}', which was never opened"));
        }
        is_its
    });
}

/// Takes labels away that are not of the member that they stand for; of which these are.
fn leave_out_misplaced(
    found: &mut Vec<(usize, Found)>,
    connected: &[Connected],
    notes: &mut Vec<String>,
) -> Vec<(MemberIndex, MemberConfig)> {
    // Clamped: more members may be given than any array has, and no label says so high a place.
    let place = |at: usize| MemberIndex(u8::try_from(at).unwrap_or(u8::MAX));
    let labels: Vec<(MemberIndex, &Label)> =
        found.iter().map(|(at, found)| (place(connected[*at].place), &found.label)).collect();
    let misplaced = misplaced(&labels);
    let mut left_out = Vec::new();
    for at in misplaced.into_iter().rev() {
        let (connection, Found { address, label, .. }) = found.remove(at);
        let index = place(connected[connection].place);
        notes.push(format!(
            "{address}: is left out as member {index}: its label says that it is member {} of array '{}' ({})",
            label.index,
            label.name,
            hex(&label.array_uuid),
        ));
        left_out.push((index, connected[connection].config.clone()));
    }
    left_out
}

/// Weighs the labels against each other, and what the devices can do against what the array needs. The lock
/// is taken where it is not held yet; members that are `unfit` are left out.
pub(super) fn decide(
    options: OpenOptions,
    connected: &[Connected],
    found: &[(usize, Found)],
    (lock, unfit): (Option<ArrayLock>, MemberSet),
    notes: &mut Vec<String>,
) -> Result<(Assembly, Option<ArrayLock>), ArrayError> {
    let connections: Vec<usize> = found.iter().map(|(at, _)| *at).collect();
    let found: Vec<Found> = found.iter().map(|(_, found)| found.clone()).collect();
    let fail = |reason: AssembleError, notes: &[String]| {
        let notes = joined(notes);
        ArrayError::Assemble { reason, notes }
    };
    let truth = truth(&found).ok_or_else(|| fail(AssembleError::Nothing, notes))?;
    let lock = match (lock, options.read_only) {
        (_, true) => None,
        (Some(held), false) => Some(held),
        (None, false) => Some(ArrayLock::take(truth)?),
    };
    let ours = lock.as_ref().is_some_and(|lock| lock.outlives(&truth.holder));
    let mut permissions = Permissions {
        clean_close: options.clean_close,
        read_only: options.read_only,
        holder_is_dead: ours || options.take_over,
        force: options.force,
        unfit,
    };
    let mut assembly = assemble(&found, permissions).map_err(|reason| fail(reason, notes))?;
    let geometry = assembly.label.geometry;
    let needs = Needs {
        capacity: assembly.label.regions.data.end(),
        transfer_len: geometry.chunk_len(),
        block_len: geometry.block_len(),
        writes: !options.read_only,
    };
    for (index, place) in (0..).map(MemberIndex).zip(&assembly.found) {
        let Some(at) = *place else { continue };
        if let Err(error) = connected[connections[at]].check_fit(&needs) {
            permissions.unfit.insert(index);
            notes.push(format!("{error}; it is left out as member {index}"));
        }
    }
    if !permissions.unfit.is_empty() {
        assembly = assemble(&found, permissions).map_err(|reason| fail(reason, notes))?;
    }
    for (at, lie) in &assembly.liars {
        let Found { address, label, .. } = &found[*at];
        let index = label.index;
        notes.push(format!(
            "{address}: is left out as member {index}: {lie}; find out why, then \
             `netraid replace SOCKET {index} {address} --force` makes it anew from the others"
        ));
    }
    Ok((assembly, lock))
}

/// The label that is believed; the newest where it is not clear which one that is, which is told later.
fn truth(found: &[Found]) -> Option<&Label> {
    let newest = found.iter().max_by_key(|f| (f.label.generation, f.label.epoch))?;
    let labels: Vec<&Label> = found.iter().map(|found| &found.label).collect();
    let checkpoints: Vec<Option<u64>> = found.iter().map(|found| found.checkpoint).collect();
    Some(judge(&labels, &checkpoints).map_or(&newest.label, |verdict| labels[verdict.truth]))
}

fn joined(notes: &[String]) -> String {
    notes.iter().map(|note| format!("; {note}")).collect()
}

fn device_info(assembly: &Assembly, read_only: bool, volatile_cache: bool) -> DeviceInfo {
    /// Largest request that the array takes at once.
    const TRANSFER_LEN_MAX: u32 = 32 << 20;
    let geometry = assembly.label.geometry;
    DeviceInfo {
        capacity: geometry.capacity(),
        block_len: geometry.block_len(),
        optimal_len: u32::try_from(geometry.stripe_data_len()).unwrap_or(geometry.chunk_len()),
        max_transfer_len: TRANSFER_LEN_MAX,
        read_only,
        volatile_cache,
        can_discard: true,
        can_map: false,
    }
}
