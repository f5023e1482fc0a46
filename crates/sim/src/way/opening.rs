//! How an engine opens the array, in straight-line code: it looks at the labels, decides by the product's functions,
//! takes over and fences the members that it will use, and looks at their labels again.
//!
//! The order is that of the engine's shell. Whose lock is held is the world's to know: an engine starts on a machine
//! when no other one of that machine lives.

use std::collections::BTreeSet;

use netraid_block::Pool;
use netraid_raid::{
    array::{ArrayMachine, MemberCaps, OpenConfig},
    assemble::{AssembleError, Assembly, Found, Permissions, assemble, misplaced},
    executor::Executor,
    fencing::{Fence, Removes, key_of_dead_holder, outlives},
    label::{Holder, Label},
    logged::{FoundMember, Limits, LoggedArray, OpenConfig as LoggedConfig},
    member::{MemberIndex, MemberSet, MemberState},
    testimony::judge,
    volume::{Logged, Plain, PlainOrLogged, logged_caps},
    written::{WrittenBits, liars},
};

use super::{
    device::{Connected, Failure, address},
    script::{Desk, join_all},
};

/// Who opens the array, and how.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) this: Holder,
    /// Where its members are, in order.
    pub(super) hosts: Vec<usize>,
    /// The machine that has it open is dead.
    pub(super) take_over: bool,
    /// An administrator's word, against all doubts.
    pub(super) force: bool,
    pub(super) limits: Limits,
    pub(super) max_io_len: u32,
    pub(super) pool: Pool,
}

/// Everything that the engine starts with.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) machine: PlainOrLogged,
    pub(super) members: Vec<Option<Connected>>,
    pub(super) fence: Fence,
    /// Devices that are not part of the array now.
    pub(super) unused: Vec<Connected>,
    /// Members that are left out, because the others contradict what they say.
    pub(super) liars: Vec<(MemberIndex, usize)>,
    /// It took parity as it was.
    pub(super) trusts_parity: bool,
}

/// Connects to the hosts, weighs their labels, takes them over, and makes the machine.
pub(super) async fn open(desk: Desk, options: Options) -> Result<Opened, Failure> {
    let visits = options.hosts.iter().map(|host| Connected::visit(desk.clone(), *host));
    let mut connected = Vec::new();
    for (host, end) in options.hosts.iter().zip(join_all(visits).await) {
        match end {
            Ok(member) => connected.push(member),
            Err(failure) => desk.note(format!("host {host}: no visit: {failure}")),
        }
    }
    let decided = decide_and_load(&desk, &options, &mut connected).await;
    let started = match decided {
        Ok(decided) => start(&options, connected, decided),
        Err(failure) => Err((failure, connected)),
    };
    match started {
        Ok(opened) => Ok(opened),
        Err((failure, mut connected)) => {
            join_all(connected.iter_mut().map(Connected::leave)).await;
            Err(failure)
        }
    }
}

/// What was decided about members that answered.
struct Decided {
    assembly: Assembly,
    fence: Fence,
    written: Option<WrittenBits>,
    places: Vec<Option<usize>>,
    labels: Vec<Option<(Label, Option<u64>)>>,
    liars: Vec<(MemberIndex, usize)>,
}

async fn decide_and_load(
    desk: &Desk,
    options: &Options,
    connected: &mut [Connected],
) -> Result<Decided, Failure> {
    let mut found = read_labels(desk, connected).await?;
    let strangers = leave_out_misplaced(options, &mut found, connected);
    let Fenced { mut assembly, fence, mut places } =
        decide_and_fence(desk, options, connected, &found).await?;
    let mut forgers = Vec::new();
    let written = match assembly.label.log {
        Some(_) => None,
        None => {
            let (written, left_out) =
                load_written(&mut assembly, &mut places, connected, options.force).await?;
            forgers = left_out;
            Some(written)
        }
    };
    let label =
        |place: &Option<usize>| place.map(|at| (found[at].1.label.clone(), found[at].1.checkpoint));
    let labels = assembly.found.iter().map(label).collect();
    let liar = |(at, _): &(usize, _)| (found[*at].1.label.index, connected[found[*at].0].host);
    let is_free = |(index, _): &(MemberIndex, usize)| {
        assembly.found.get(index.as_usize()).is_some_and(Option::is_none)
    };
    let liars = assembly.liars.iter().map(liar).filter(is_free);
    let liars = liars.chain(forgers).chain(strangers).collect();
    Ok(Decided { assembly, fence, written, places, labels, liars })
}

/// What was decided of labels, and holds: nobody else can change them any more.
struct Fenced {
    assembly: Assembly,
    fence: Fence,
    places: Vec<Option<usize>>,
}

async fn decide_and_fence(
    desk: &Desk,
    options: &Options,
    connected: &mut [Connected],
    found: &[(usize, Found)],
) -> Result<Fenced, Failure> {
    let mut unfenced = MemberSet::EMPTY;
    let mut has_sessions = BTreeSet::new();
    loop {
        let assembly = decide(options, found, unfenced)?;
        let places: Vec<Option<usize>> =
            assembly.found.iter().map(|place| place.map(|at| found[at].0)).collect();
        let new: Vec<usize> =
            places.iter().flatten().copied().filter(|at| has_sessions.insert(*at)).collect();
        let truth = &found[assembly.truth].1.label;
        let removes = |own| removes(options, [truth, own]);
        let fence = Fence::new(truth, &options.this, removes(truth), desk.random());
        let mut failed = take_over(desk, options, connected, &new, truth, found, fence).await?;
        if failed.is_empty() {
            let fence_of = |at| fence.with(removes(own_label(found, at).unwrap_or(truth)));
            failed = exclude_others(connected, &places, fence_of).await?;
        }
        if failed.is_empty() {
            failed = find_changed(connected, &places, truth, found).await?;
        }
        if failed.is_empty() {
            return Ok(Fenced { assembly, fence, places });
        }
        for (at, failure) in failed {
            let index = member_at(&places, at);
            unfenced.insert(index);
            if assembly.label.geometry.can_serve_from(unfenced) {
                return Err(failure);
            }
            desk.note(format!("member {index} is left out: {failure}"));
            connected[at].leave().await;
        }
    }
}

fn member_at(places: &[Option<usize>], at: usize) -> MemberIndex {
    let place = places.iter().position(|place| *place == Some(at));
    let Some(index) = place.and_then(|place| u8::try_from(place).ok()).map(MemberIndex) else {
        unreachable!("connection {at} is used, and is of no member")
    };
    index
}

async fn take_over(
    desk: &Desk,
    options: &Options,
    connected: &mut [Connected],
    places: &[usize],
    truth: &Label,
    found: &[(usize, Found)],
    fence: Fence,
) -> Result<Vec<(usize, Failure)>, Failure> {
    let sessions = places.iter().map(|at| {
        let former = fence.former_machines(own_label(found, *at), &options.this);
        let (desk, host) = (desk.clone(), connected[*at].host);
        let who = (options.this.machine_id, truth.array_uuid);
        async move { (*at, Connected::take_over(desk, host, who, &former).await) }
    });
    let (mut failed, mut refused) = (Vec::new(), None);
    for (at, end) in join_all(sessions).await {
        match end {
            Ok(session) => {
                let visit = core::mem::replace(&mut connected[at], session);
                visit.close().await;
            }
            Err(failure) if failure.is_conflict() => refused = Some(failure),
            Err(failure) => failed.push((at, failure)),
        }
    }
    refused.map_or(Ok(failed), Err)
}

fn own_label(found: &[(usize, Found)], at: usize) -> Option<&Label> {
    found.iter().find(|(one, _)| *one == at).map(|(_, found)| &found.label)
}

/// Whose registrations at a member may be removed, by the label that decides and the member's own.
fn removes(options: &Options, labels: [&Label; 2]) -> Removes {
    match (options.force, options.take_over) {
        (true, _) => Removes::All,
        (false, true) => Removes::Engines,
        (false, false) => {
            Removes::Holders(labels.map(|label| key_of_dead_holder(label, &options.this)))
        }
    }
}

async fn exclude_others(
    connected: &mut [Connected],
    places: &[Option<usize>],
    fence_of: impl Fn(usize) -> Fence,
) -> Result<Vec<(usize, Failure)>, Failure> {
    let members = connected.iter_mut().enumerate();
    let members = members.filter(|(at, _)| places.contains(&Some(*at)));
    let ends = join_all(members.map(|(at, member)| {
        let fence = fence_of(at);
        async move { (at, member.fence(fence).await.map_err(Failure::from)) }
    }));
    let mut failed = Vec::new();
    for (at, end) in ends.await {
        match end {
            Ok(()) => {}
            Err(failure @ (Failure::Io(..) | Failure::Forgetful)) if !failure.is_conflict() => {
                failed.push((at, failure));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(failed)
}

/// The members that the array will use whose labels are not what was decided on, or cannot be read any more.
async fn find_changed(
    connected: &[Connected],
    places: &[Option<usize>],
    truth: &Label,
    found: &[(usize, Found)],
) -> Result<Vec<(usize, Failure)>, Failure> {
    let used = places.iter().flatten().copied();
    let labels = join_all(used.map(|at| {
        let connected = &connected[at];
        async move { (at, connected.label().await) }
    }))
    .await;
    let (mut others, mut is_changed, mut are_fenced) = (truth.in_sync(), false, true);
    let mut failed = Vec::new();
    for (at, now) in labels {
        let failure = match now {
            Ok(Ok(now)) if own_label(found, at) == Some(&now) => {
                others.remove(member_at(places, at));
                are_fenced &= connected[at].standing.exclusive;
                continue;
            }
            Ok(Ok(now)) => {
                is_changed = true;
                Failure::LabelChanged(now.generation, now.epoch)
            }
            Ok(Err(reason)) => {
                is_changed = true;
                Failure::Label(reason)
            }
            Err(failure) if failure.is_conflict() => return Err(failure),
            Err(failure) => failure,
        };
        failed.push((at, failure));
    }
    match is_changed && (!are_fenced || truth.geometry.can_serve_from(others)) {
        true => Err(Failure::Changed),
        false => Ok(failed),
    }
}

/// Makes the machine; gives the members back when it cannot go on with them.
fn start(
    options: &Options,
    connected: Vec<Connected>,
    decided: Decided,
) -> Result<Opened, (Failure, Vec<Connected>)> {
    let Decided { assembly, fence, written, places, labels, liars } = decided;
    let mut connected: Vec<Option<Connected>> = connected.into_iter().map(Some).collect();
    let members: Vec<Option<Connected>> =
        places.iter().map(|place| place.and_then(|at| connected[at].take())).collect();
    let caps =
        |one: &Option<Connected>| one.as_ref().map_or_else(MemberCaps::default, Connected::caps);
    let caps: Vec<MemberCaps> = members.iter().map(caps).collect();
    let limits = members.iter().flatten().map(|member| member.info.max_transfer_len);
    let merged = limits.min().unwrap_or(options.max_io_len).min(options.max_io_len);
    let max_io_len = merged.max(assembly.label.geometry.chunk_len());
    let holder = options.this.clone();
    let here = assembly.label.geometry.member_indices().filter(|index| {
        assembly.label.state(*index) == MemberState::InSync && members[index.as_usize()].is_some()
    });
    let trusts_parity = written.is_some() && assembly.needs_parity(here.collect());
    let machine = match written {
        Some(written) => {
            let trust_parity = options.force;
            let config = OpenConfig { read_only: false, trust_parity, holder, caps, max_io_len };
            let machine = ArrayMachine::open(&assembly, written, config);
            let executor = Executor::new(options.pool.clone());
            PlainOrLogged::Plain(Box::new(Plain::new(machine, executor)))
        }
        None => {
            let found = caps.into_iter().zip(labels).map(|(caps, label)| {
                let (label, checkpoint) = label?;
                Some(FoundMember { caps: logged_caps(caps), label, checkpoint })
            });
            let config = LoggedConfig {
                members: found.collect(),
                holder,
                max_io_len,
                pool: options.pool.clone(),
                limits: options.limits,
            };
            match LoggedArray::open(config) {
                Ok(machine) => {
                    PlainOrLogged::Logged(Box::new(Logged::new(machine, false, max_io_len)))
                }
                Err(reason) => {
                    let all = members.into_iter().chain(connected).flatten().collect();
                    return Err((Failure::Machine("its machine", reason), all));
                }
            }
        }
    };
    let unused = connected.into_iter().flatten().collect();
    Ok(Opened { machine, members, fence, unused, liars, trusts_parity })
}

async fn read_labels(desk: &Desk, connected: &[Connected]) -> Result<Vec<(usize, Found)>, Failure> {
    let mut found = Vec::new();
    let labels = join_all(connected.iter().map(|member| async move {
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
            Ok(Err(reason)) => desk.note(format!("host {}: {reason}", member.host)),
            Err(failure) => desk.note(format!("host {}: {failure}", member.host)),
        }
    }
    if found.is_empty() { Err(Failure::NoLabels) } else { Ok(found) }
}

/// Takes labels away that are not of the member that they stand for; of which these are.
fn leave_out_misplaced(
    options: &Options,
    found: &mut Vec<(usize, Found)>,
    connected: &[Connected],
) -> Vec<(MemberIndex, usize)> {
    let place = |at: usize| {
        let place = options.hosts.iter().position(|host| *host == connected[at].host);
        MemberIndex(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX))
    };
    let labels: Vec<(MemberIndex, &Label)> =
        found.iter().map(|(at, found)| (place(*at), &found.label)).collect();
    let misplaced = misplaced(&labels);
    let mut left_out = Vec::new();
    for at in misplaced.into_iter().rev() {
        let (connection, _) = found.remove(at);
        left_out.push((place(connection), connected[connection].host));
    }
    left_out
}

/// Weighs the labels against each other; members that are `unfit` are left out.
fn decide(
    options: &Options,
    found: &[(usize, Found)],
    unfit: MemberSet,
) -> Result<Assembly, Failure> {
    let found: Vec<Found> = found.iter().map(|(_, found)| found.clone()).collect();
    let truth = truth(&found).ok_or(Failure::NoLabels)?;
    let permissions = Permissions {
        clean_close: None,
        read_only: false,
        holder_is_dead: outlives(&options.this, &truth.holder) || options.take_over,
        force: options.force,
        unfit,
    };
    assemble(&found, permissions).map_err(Failure::Assemble)
}

/// The label that is believed; the newest where it is not clear which one that is, which is told later.
fn truth(found: &[Found]) -> Option<&Label> {
    let newest = found.iter().max_by_key(|f| (f.label.generation, f.label.epoch))?;
    let labels: Vec<&Label> = found.iter().map(|found| &found.label).collect();
    let checkpoints: Vec<Option<u64>> = found.iter().map(|found| found.checkpoint).collect();
    Some(judge(&labels, &checkpoints).map_or(&newest.label, |verdict| labels[verdict.truth]))
}

/// The written bits of an array without a log; and members that lie about them, who are left out.
async fn load_written(
    assembly: &mut Assembly,
    places: &mut [Option<usize>],
    connected: &[Connected],
    force: bool,
) -> Result<(WrittenBits, Vec<(MemberIndex, usize)>), Failure> {
    let label = &assembly.label;
    let region = label.regions.written;
    let (uuid, stripes) = (label.array_uuid, label.geometry.stripes());
    let mut written = WrittenBits::new(uuid, stripes);
    let len = written.pages() * 2 * u64::from(netraid_raid::regions::PAGE_LEN);
    let (mut last_failure, mut read) = (None, Vec::new());
    for (index, place) in (0..).map(MemberIndex).zip(&*places) {
        let Some(at) = place.filter(|_| label.state(index) == MemberState::InSync) else {
            continue;
        };
        match connected[at].read(region.offset, len, "reading the written bits").await {
            Ok(bytes) => read.push((index, at, bytes)),
            Err(failure) => last_failure = Some(failure),
        }
    }
    let regions: Vec<(MemberIndex, &[u8])> =
        read.iter().map(|(index, _, bytes)| (*index, &bytes[..])).collect();
    let liars = liars(uuid, stripes, &region, &regions)
        .map_err(|_| Failure::WrittenBits("two members disagree"))?;
    let honest = read.iter().filter(|(index, ..)| !liars.contains(*index));
    let rest: MemberSet = honest.clone().map(|(index, ..)| *index).collect();
    if !liars.is_empty() && !label.geometry.can_serve_from(rest) {
        return Err(Failure::WrittenBits("too few agree"));
    }
    if !liars.is_empty() && !force && assembly.needs_parity(rest) {
        let (name, missing) = (label.name.clone(), address(0));
        return Err(Failure::Assemble(AssembleError::UncleanDegraded { name, missing }));
    }
    honest.for_each(|(.., bytes)| written.offer_all(&region, bytes));
    let mut left_out = Vec::new();
    for (index, at, _) in read.iter().filter(|(index, ..)| liars.contains(*index)) {
        places[index.as_usize()] = None;
        left_out.push((*index, connected[*at].host));
    }
    for (index, _) in &left_out {
        assembly.found[index.as_usize()] = None;
        let entry = &mut assembly.label.members[index.as_usize()];
        (entry.state, entry.rebuilt_stripes) = (MemberState::Missing, 0);
    }
    match (written.first_missing(), last_failure) {
        (None, _) => Ok((written, left_out)),
        (Some(_), Some(failure)) => Err(failure),
        (Some(_), None) => Err(Failure::WrittenBits("a page is on no member")),
    }
}
