//! What labels add up to: which array, which members are current, whether it may be opened.
//!
//! The label with the largest (generation, epoch) is the truth; a member counts as in sync only
//! when the truth says so, whatever its own label says. So a member that was set aside and comes
//! back is never read as if it were current. A label that others contradict is no truth
//! ([`crate::testimony`]): its member is left out.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt::Write;

use crate::{
    label::{Closure, Label, Uuid},
    member::{MemberIndex, MemberSet, MemberState},
    testimony::{Liar, Lie, Unclear, Verdict, follows, is_needed, judge, says_the_same},
};

/// One member's label and the name under which the user gave the member.
#[derive(Debug, Clone)]
pub struct Found {
    /// The member's address, for messages.
    pub address: String,
    /// Its label.
    pub label: Label,
    /// The counter of the newest checkpoint that it has, where that is known.
    pub checkpoint: Option<u64>,
}

/// What the opener knows beside the labels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Permissions {
    /// How the array was closed, from somebody who knows that nobody had it open to write since: then
    /// members that are not here can hold nothing newer than those that held everything.
    pub clean_close: Option<CleanClose>,
    /// Nothing will be written.
    pub read_only: bool,
    /// The holder in the labels is this machine, and its lock is ours now: it is dead.
    pub holder_is_dead: bool,
    /// An administrator's word that overrides doubts about other writers and about parity, and about the label of an
    /// opening that was cut short, without which too few members are left.
    pub force: bool,
    /// Members that are here, and whose devices cannot serve: they are left out.
    pub unfit: MemberSet,
}

/// How an array was left that was closed in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanClose {
    /// The generation of its labels.
    pub generation: u64,
    /// Their epoch.
    pub epoch: u64,
    /// Members that held everything.
    pub in_sync: MemberSet,
}

impl CleanClose {
    /// What a label says of that; none unless the array was closed in good order.
    #[must_use]
    pub fn of(label: &Label) -> Option<Self> {
        let Label { generation, epoch, .. } = *label;
        let is_clean = label.closure == Closure::Clean;
        is_clean.then(|| Self { generation, epoch, in_sync: label.in_sync() })
    }

    /// Whether a member with this label is as it was when the array was closed, and held everything.
    fn vouches_for(&self, label: &Label) -> bool {
        label.closure == Closure::Clean
            && (label.generation, label.epoch) == (self.generation, self.epoch)
            && self.in_sync.contains(label.index)
    }
}

/// An array that may be opened.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// The truth, with states as they now are: members that are not there are missing.
    pub label: Label,
    /// For each member in order: which of the found ones it is.
    pub found: Vec<Option<usize>>,
    /// Found, but not current: they may only come back by a rebuild. With a log, one that was away
    /// is no such one: it has its place, and its state says that it has to catch up.
    pub stale: Vec<usize>,
    /// The array was not closed: parity of written stripes may not match and is to be resynced.
    pub unclean: bool,
    /// Found, and left out, because the others contradict what they say.
    pub liars: Vec<(usize, Lie)>,
    /// Which of the found ones has the label that is the truth.
    pub truth: usize,
}

/// Why labels do not add up to an array that may be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// No member was given.
    #[error("no members were given")]
    Nothing,
    /// Labels of different arrays.
    #[error(
        "members belong to different arrays: {first} to '{first_name}', {second} to '{second_name}'; \
         give the members of one array"
    )]
    DifferentArrays {
        /// Address of one member.
        first: String,
        /// Name of its array.
        first_name: String,
        /// Address of another.
        second: String,
        /// Name of its array.
        second_name: String,
    },
    /// Labels of one array that contradict each other about its shape.
    #[error("labels disagree about the shape of array '{name}': {first} and {second}; remove one")]
    Disagree {
        /// Name of the array.
        name: String,
        /// Address of one member.
        first: String,
        /// Address of the other.
        second: String,
    },
    /// Labels of one array that contradict each other, and none can tell which one lies.
    #[error(
        "array '{name}': {first} and {second} contradict each other ({why}), and no other member can \
         tell which of them lies; {}",
        if *.is_needed {
            "without the newer label too few are left: bring the members that are away, or give --force to believe it"
        } else {
            "give the members without the one that lies, with --force"
        }
    )]
    Contradict {
        /// Name of the array.
        name: String,
        /// Address of one member.
        first: String,
        /// Address of the other.
        second: String,
        /// About what.
        why: Box<Unclear>,
        /// The newer label is of openings that were cut short, and without it too few members are left: `force` believes
        /// it.
        is_needed: bool,
    },
    /// Two addresses lead to the same member.
    #[error("{first} and {second} both carry the label of member {index}; give it once")]
    Twice {
        /// The member.
        index: MemberIndex,
        /// Address of one.
        first: String,
        /// Address of the other.
        second: String,
    },
    /// A level that is written through a log, and no log.
    #[error("array '{name}' is of level {level}, which needs a log, and has none; make it again")]
    NoLog {
        /// Name of the array.
        name: String,
        /// Level.
        level: u8,
    },
    /// More members are away than the level survives.
    #[error(
        "array '{name}' has {current} of {members} members in sync, level {level} needs {needed}; \
         not usable: {missing}"
    )]
    TooFew {
        /// Name of the array.
        name: String,
        /// Members that are here and in sync.
        current: u32,
        /// Members of the array.
        members: u8,
        /// Level.
        level: u8,
        /// Fewest members that can serve.
        needed: u32,
        /// The others, with why.
        missing: String,
    },
    /// Another engine could be serving from the members that are not here.
    #[error(
        "array '{name}': the members that are not here could hold newer data than '{holder}' left \
         here (generation {generation}), or be in use: {missing}; bring them, or give --force when \
         you know that they are older and unused"
    )]
    Contested {
        /// Name of the array.
        name: String,
        /// Who had it open last.
        holder: String,
        /// The generation that the labels show.
        generation: u64,
        /// The members that are away.
        missing: String,
    },
    /// Each of two members went on without the other.
    #[error(
        "array '{name}': {first} and {second} each say that the other was set aside: two histories; \
         choose one, and give its members alone with --force"
    )]
    Diverged {
        /// Name of the array.
        name: String,
        /// Address of the member with the newest label.
        first: String,
        /// Address of the other.
        second: String,
    },
    /// The labels say that another machine has it open.
    #[error(
        "array '{name}' is open on '{holder}' (generation {generation}), or was not closed there; \
         stop it there, or give --take-over when it is dead"
    )]
    Held {
        /// Name of the array.
        name: String,
        /// Who has it open.
        holder: String,
        /// The generation that the labels show.
        generation: u64,
    },
    /// Parity cannot be trusted and is needed.
    #[error(
        "array '{name}' was not closed and lacks members ({missing}): parity of stripes that were \
         being written may be wrong; bring the members, or give --force to accept it as it is"
    )]
    UncleanDegraded {
        /// Name of the array.
        name: String,
        /// The members that are away.
        missing: String,
    },
    /// Features that forbid writing.
    #[error("array '{name}' has features {features:#x} not known here; attach it --read-only")]
    ReadOnlyFeatures {
        /// Name of the array.
        name: String,
        /// The unknown feature bits.
        features: u64,
    },
}

/// Weighs the labels of all members that answered.
///
/// # Errors
/// When they do not belong together, too few are current, or somebody else may be writing.
pub fn assemble(found: &[Found], permissions: Permissions) -> Result<Assembly, AssembleError> {
    check_together(found)?;
    let verdict = weigh(found, permissions)?;
    let truth = &found[verdict.truth];
    check_one_history(found, &verdict)?;
    check_log(&truth.label)?;
    let mut assembly = place(found, &verdict, permissions)?;
    let here: MemberSet = assembly.current().collect();
    check_enough(&assembly, found, here)?;
    check_exclusive(found, &assembly, truth, permissions)?;
    assembly.label.generation = verdict.generation;
    for index in truth.label.geometry.member_indices() {
        let entry = &mut assembly.label.members[index.as_usize()];
        if entry.state.is_live() && assembly.found[index.as_usize()].is_none() {
            entry.state.change(MemberState::Missing);
            entry.rebuilt_stripes = 0;
        }
    }
    Ok(assembly)
}

/// The array to go on with, where labels are of several of one name and one of these at most was ever
/// opened: that one, or the one with most members. The making of the others was cut short: nothing is
/// in them. None when there is nothing to choose from, or no such choice.
#[must_use]
pub fn choose_array<'a>(labels: impl Iterator<Item = &'a Label> + Clone) -> Option<Uuid> {
    let members = |uuid| labels.clone().filter(|label| label.array_uuid == uuid).count();
    let rank = |label: &&Label| (label.was_opened(), members(label.array_uuid), label.array_uuid);
    let chosen = labels.clone().max_by_key(rank)?;
    let mut others = labels.clone().filter(|label| label.array_uuid != chosen.array_uuid);
    let is_empty = |label: &Label| !label.was_opened() && label.name == chosen.name;
    others.all(is_empty).then_some(chosen.array_uuid)
}

/// Which of these labels are not of the member that they stand for, by the word of somebody who knows where
/// each member is: labels of another index, or of another array than most. None while the others cannot serve:
/// then it may be the word that is wrong.
#[must_use]
pub fn misplaced(labels: &[(MemberIndex, &Label)]) -> Vec<usize> {
    let of = |uuid: Uuid| {
        let own = labels
            .iter()
            .filter(move |(place, label)| label.array_uuid == uuid && label.index == *place);
        own.map(|(place, _)| *place).collect::<MemberSet>()
    };
    let most = labels.iter().max_by_key(|(_, label)| of(label.array_uuid).len());
    let Some((_, most)) = most else { return Vec::new() };
    let own = of(most.array_uuid);
    if own.len() as usize * 2 <= labels.len() || !most.geometry.can_serve_from(own) {
        return Vec::new();
    }
    (0..labels.len()).filter(|at| !own.contains(labels[*at].0)).collect()
}

impl Assembly {
    /// Members that are here and in sync.
    fn current(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        self.label.geometry.member_indices().filter(|index| {
            self.found[index.as_usize()].is_some()
                && self.label.state(*index) == MemberState::InSync
        })
    }

    /// Whether what the members that are here lack would be computed from parity that may be wrong.
    #[must_use]
    pub fn needs_parity(&self, here: MemberSet) -> bool {
        let parity_lags = self.label.log.is_none() && parity_matters(&self.label);
        self.unclean && self.lacks_members(here) && parity_lags
    }

    /// Whether every member that is in sync by the labels is here and the rest of the array too.
    fn lacks_members(&self, here: MemberSet) -> bool {
        here.len() < u32::from(self.label.geometry.members())
    }
}

/// Some levels cannot do without a log.
fn check_log(label: &Label) -> Result<(), AssembleError> {
    let level = label.geometry.level();
    if label.log.is_none() && level.needs_log() {
        return Err(AssembleError::NoLog { name: label.name.clone(), level: level.number() });
    }
    Ok(())
}

/// Refuses members of several arrays.
fn check_together(found: &[Found]) -> Result<(), AssembleError> {
    let newest = found.iter().max_by_key(|found| (found.label.generation, found.label.epoch));
    let one = newest.ok_or(AssembleError::Nothing)?;
    match found.iter().find(|two| two.label.array_uuid != one.label.array_uuid) {
        None => Ok(()),
        Some(two) => Err(AssembleError::DifferentArrays {
            first: one.address.clone(),
            first_name: one.label.name.clone(),
            second: two.address.clone(),
            second_name: two.label.name.clone(),
        }),
    }
}

/// Which label is the truth, and who lies. Where the labels alone cannot tell, one may be as the array was
/// closed, by the word of somebody who knows that: then nobody has a label that is newer by more than the
/// openings since, which were cut short.
fn weigh(found: &[Found], permissions: Permissions) -> Result<Verdict, AssembleError> {
    let Some(close) = permissions.clean_close else { return weigh_labels(found, permissions) };
    let age = (close.generation, close.epoch);
    let is_possible = |one: &Found| {
        let says = (one.label.generation, one.label.epoch);
        says <= age || follows(says, age, one.label.log.is_some())
    };
    let is_known = found.iter().any(|one| close.vouches_for(&one.label));
    if !is_known || found.iter().all(is_possible) {
        return weigh_labels(found, permissions);
    }
    let (possible, others): (Vec<usize>, Vec<usize>) =
        (0..found.len()).partition(|at| is_possible(&found[*at]));
    let believed: Vec<Found> = possible.iter().map(|at| found[*at].clone()).collect();
    let mut verdict = weigh_labels(&believed, permissions)?;
    verdict.truth = possible[verdict.truth];
    verdict.liars.iter_mut().for_each(|liar| liar.at = possible[liar.at]);
    verdict.liars.extend(others.into_iter().map(|at| {
        let says = (found[at].label.generation, found[at].label.epoch);
        Liar { at, lie: Lie::Age { says, others: age } }
    }));
    Ok(verdict)
}

fn weigh_labels(found: &[Found], permissions: Permissions) -> Result<Verdict, AssembleError> {
    let labels: Vec<&Label> = found.iter().map(|found| &found.label).collect();
    let checkpoints: Vec<Option<u64>> = found.iter().map(|found| found.checkpoint).collect();
    let unclear = match judge(&labels, &checkpoints) {
        Ok(verdict) => return Ok(verdict),
        Err(unclear) => unclear,
    };
    let (first, second) = unclear.places();
    let name = labels[first].name.clone();
    let (first_address, second_address) =
        (found[first].address.clone(), found[second].address.clone());
    match (unclear, permissions.clean_close) {
        (Unclear::Shape { .. }, _) => {
            Err(AssembleError::Disagree { name, first: first_address, second: second_address })
        }
        (Unclear::Lead { says, others, .. }, Some(close))
            if found.len() == 2 && close.vouches_for(labels[second]) =>
        {
            let lie = Lie::Age { says, others };
            let generation = labels[second].generation;
            Ok(Verdict { truth: second, generation, liars: Vec::from([Liar { at: first, lie }]) })
        }
        (Unclear::Age { says, .. }, _) if permissions.force && is_needed(&labels, first) => {
            Ok(Verdict { truth: first, generation: says.0, liars: Vec::new() })
        }
        (Unclear::Lead { .. } | Unclear::Age { .. } | Unclear::Contents { .. }, _) => {
            let is_needed = matches!(unclear, Unclear::Age { .. }) && is_needed(&labels, first);
            Err(AssembleError::Contradict {
                name,
                first: first_address,
                second: second_address,
                why: Box::new(unclear),
                is_needed,
            })
        }
    }
}

/// Refuses a member that went on serving after it had set the newest one aside.
fn check_one_history(found: &[Found], verdict: &Verdict) -> Result<(), AssembleError> {
    let truth = &found[verdict.truth];
    let mut believed = found.iter().enumerate().filter(|(at, _)| verdict.lie(*at).is_none());
    let is_second = |other: &Label| {
        has_diverged(&truth.label, other)
            && !was_never_complete(found, verdict, other)
            && !came_before(found, verdict, other)
    };
    match believed.find(|(_, other)| is_second(&other.label)) {
        None => Ok(()),
        Some((_, other)) => Err(AssembleError::Diverged {
            name: truth.label.name.clone(),
            first: truth.address.clone(),
            second: other.address.clone(),
        }),
    }
}

/// Whether nobody can have gone on by the label `other`, which calls the truth's member set aside: a member that
/// both call in sync has the truth's label, or the update after it, and that calls the truth's member in sync.
///
/// Nothing rests on a label that one of those lacks that it calls in sync. Had this member had it once, the truth's
/// member would not be in sync by what it has now: without a log, who was set aside comes back as another device.
/// That the two labels call one member in sync is not enough: where it has the label `other` itself, or is away,
/// it may be the truth that was never complete.
fn was_never_complete(found: &[Found], verdict: &Verdict, other: &Label) -> bool {
    let truth = &found[verdict.truth].label;
    let in_sync_for_both = |index: MemberIndex, label: &Label| {
        let is_in_sync = |by: &&Label| {
            let entry = &by.members[index.as_usize()];
            let own = &label.members[index.as_usize()];
            entry.state == MemberState::InSync && entry.uuid == own.uuid
        };
        [truth, other].iter().all(is_in_sync)
    };
    found.iter().enumerate().any(|(at, Found { label, .. })| {
        let is_as_new = (label.generation, label.epoch) >= (truth.generation, truth.epoch);
        let kept = &label.members[truth.index.as_usize()];
        verdict.lie(at).is_none()
            && is_as_new
            && in_sync_for_both(label.index, label)
            && kept.state == MemberState::InSync
            && kept.uuid == truth.members[truth.index.as_usize()].uuid
    })
}

/// Whether the label `other` is of the truth's own history, with a log: labels of members that are here lead from the one
/// to the other, each older than the one before it, and the member that has the newer one is in sync by both. That member
/// surely had the newer label, and goes on from what it held by the older one; that a label calls some other member in
/// sync does not say that it ever reached that member. So mirrors that were set aside in turns, the truth's member first
/// of all, tell what none of them tells alone.
fn came_before(found: &[Found], verdict: &Verdict, other: &Label) -> bool {
    let truth = &found[verdict.truth].label;
    if truth.log.is_none() {
        return false;
    }
    let believed = found.iter().enumerate().filter(|(at, _)| verdict.lie(*at).is_none());
    let mut labels: Vec<&Label> = believed.map(|(_, found)| &found.label).collect();
    let age = |label: &Label| (label.generation, label.epoch);
    labels.sort_by_key(|label| core::cmp::Reverse(age(label)));
    let leads_to = |newer: &Label, older: &Label| {
        let member = newer.index;
        let uuid = |label: &Label| label.members[member.as_usize()].uuid;
        let is_of_both = newer.in_sync().contains(member)
            && older.in_sync().contains(member)
            && uuid(newer) == uuid(older);
        // Of one age are the copies of one label, or two histories.
        is_of_both && (age(older) < age(newer) || says_the_same(older, newer))
    };
    let mut history = Vec::from([truth]);
    for label in labels {
        if history.iter().any(|newer| leads_to(newer, label)) {
            history.push(label);
        }
    }
    history.iter().any(|newer| leads_to(newer, other))
}

/// Whether a member with the label `other` went on serving after it had set aside the one with the
/// label `newest`. Without a log, a member that was rebuilt since has another identity, so an old
/// word about it does not count. With a log it keeps its identity: there the old word does not
/// count when a member was in sync for both, since nobody goes on without all of those.
#[must_use]
pub fn has_diverged(newest: &Label, other: &Label) -> bool {
    let at = newest.index.as_usize();
    let (truth, told) = (&newest.members[at], &other.members[at]);
    let set_aside = matches!(told.state, MemberState::Faulty | MemberState::Missing);
    let (ours, theirs) = (newest.in_sync(), other.in_sync());
    // Nobody goes on with fewer than can serve, whatever a label says.
    let may_have_served = other.geometry.can_serve_from(theirs);
    may_have_served
        && told.uuid == truth.uuid
        && set_aside
        && ours.contains(newest.index)
        && theirs.contains(other.index)
        && (newest.log.is_none() || theirs.iter().all(|member| !ours.contains(member)))
}

fn place(
    found: &[Found],
    verdict: &Verdict,
    permissions: Permissions,
) -> Result<Assembly, AssembleError> {
    let label = found[verdict.truth].label.clone();
    let mut places: Vec<Option<usize>> = alloc::vec![None; label.members.len()];
    let mut stale = Vec::new();
    let mut liars = Vec::new();
    for (at, member) in found.iter().enumerate() {
        let index = member.label.index;
        if let Some(lie) = verdict.lie(at) {
            liars.push((at, lie));
            continue;
        }
        if permissions.unfit.contains(index) {
            continue;
        }
        let own = &member.label.members[index.as_usize()];
        let entry = &label.members[index.as_usize()];
        // With a log, one that was away is told apart from one that was not, and catches up.
        let takes_part = entry.state.is_live() || label.log.is_some();
        if own.uuid != entry.uuid || !takes_part {
            stale.push(at);
            continue;
        }
        if let Some(other) = places[index.as_usize()].replace(at) {
            let (first, second) = (found[other].address.clone(), member.address.clone());
            return Err(AssembleError::Twice { index, first, second });
        }
    }
    if label.log.is_none() {
        leave_older_images(found, &label, &mut places, &mut stale);
    }
    // An engine with the newer label that does not count may have written all the same.
    let age = |label: &Label| (label.generation, label.epoch);
    let is_newer = |at: &usize| age(&found[*at].label) > age(&label);
    let is_behind = places.iter().flatten().any(is_newer);
    let unclean = label.closure != Closure::Clean || is_behind;
    let truth = verdict.truth;
    Ok(Assembly { label, found: places, stale, unclean, liars, truth })
}

/// Takes members out of their places that are in sync or catching up by the truth, and whose own labels are from before openings that
/// were complete, where the others can serve: these were put back to an older image, and nothing else would tell what
/// they lack. With a log, its machine does so, too.
fn leave_older_images(
    found: &[Found],
    truth: &Label,
    places: &mut [Option<usize>],
    stale: &mut Vec<usize>,
) {
    let age = |label: &Label| (label.generation, label.epoch);
    let is_older = |at: &usize| {
        let own = age(&found[*at].label);
        own < age(truth) && !follows(age(truth), own, false)
    };
    let index = |at: usize| found[at].label.index;
    let is_in_sync = |at: &usize| truth.state(index(*at)) == MemberState::InSync;
    let is_live = |at: &usize| truth.state(index(*at)).is_live();
    let here: Vec<usize> = places.iter().flatten().copied().filter(is_live).collect();
    let (older, current): (Vec<usize>, Vec<usize>) = here.into_iter().partition(is_older);
    let in_sync = current.into_iter().filter(is_in_sync).map(index);
    if !truth.geometry.can_serve_from(in_sync.collect()) {
        return;
    }
    for at in older {
        places[index(at).as_usize()] = None;
        stale.push(at);
    }
}

fn check_enough(
    assembly: &Assembly,
    found: &[Found],
    here: MemberSet,
) -> Result<(), AssembleError> {
    let truth = &found[assembly.truth];
    let geometry = &truth.label.geometry;
    if geometry.can_serve_from(here) {
        return Ok(());
    }
    // Without the one that is contradicted nothing serves: then it may be the other one that lies.
    if let Some((first, lie)) = assembly.liars.first().copied() {
        let name = truth.label.name.clone();
        let (first_address, second_address) = (found[first].address.clone(), truth.address.clone());
        let second = assembly.truth;
        let why = match lie {
            Lie::Age { says, others } => Unclear::Age { first, second, says, others },
            Lie::Contents { age } => Unclear::Contents { first, second, age },
            Lie::Shape => {
                let (first, second) = (second_address, first_address);
                return Err(AssembleError::Disagree { name, first, second });
            }
        };
        let (first, second) = (first_address, second_address);
        let (why, is_needed) = (Box::new(why), false);
        return Err(AssembleError::Contradict { name, first, second, why, is_needed });
    }
    let needed = u32::from(geometry.members()) - geometry.tolerance();
    Err(AssembleError::TooFew {
        name: truth.label.name.clone(),
        current: here.len(),
        members: geometry.members(),
        level: geometry.level().number(),
        needed,
        missing: describe_absent(assembly, found, here),
    })
}

fn check_exclusive(
    found: &[Found],
    assembly: &Assembly,
    truth: &Found,
    permissions: Permissions,
) -> Result<(), AssembleError> {
    let (label, here): (&Label, MemberSet) = (&truth.label, assembly.current().collect());
    let name = || label.name.clone();
    if label.read_only_compatible != 0 && !permissions.read_only {
        let features = label.read_only_compatible;
        return Err(AssembleError::ReadOnlyFeatures { name: name(), features });
    }
    if permissions.force {
        return Ok(());
    }
    let geometry = &label.geometry;
    // Who is here and left out was heard, and has nothing newer.
    let liars = assembly.liars.iter().map(|(at, _)| found[*at].label.index);
    let heard: MemberSet = liars.chain(older_images(assembly, found)).collect();
    let is_heard = |index| heard.contains(index) || permissions.unfit.contains(index);
    let is_away = |index: &MemberIndex| !here.contains(*index) && !is_heard(*index);
    let away: MemberSet = label.in_sync().iter().filter(is_away).collect();
    let holder = || match label.holder.name.as_str() {
        "" => String::from("unknown"),
        name => name.into(),
    };
    let generation = label.generation;
    let own = |member: MemberIndex| assembly.found[member.as_usize()].map(|at| &found[at].label);
    let is_vouched = permissions
        .clean_close
        .is_some_and(|close| here.iter().filter_map(own).all(|label| close.vouches_for(label)));
    // That the last holder known here is dead does not say what the absent ones saw after it.
    if !away.is_empty() && geometry.can_serve_from(away) && !is_vouched {
        let missing = describe_absent(assembly, found, here);
        return Err(AssembleError::Contested {
            name: name(),
            holder: holder(),
            generation,
            missing,
        });
    }
    if label.closure == Closure::Open && !permissions.holder_is_dead && !permissions.read_only {
        return Err(AssembleError::Held { name: name(), holder: holder(), generation });
    }
    if assembly.needs_parity(here) {
        let missing = describe_absent(assembly, found, here);
        return Err(AssembleError::UncleanDegraded { name: name(), missing });
    }
    Ok(())
}

/// Members that are here, are the devices that the truth calls in sync, and are out of date all the same.
fn older_images(assembly: &Assembly, found: &[Found]) -> impl Iterator<Item = MemberIndex> {
    let labels = assembly.stale.iter().map(|at| &found[*at].label);
    let is_known = |label: &&Label| {
        let entry = &assembly.label.members[label.index.as_usize()];
        entry.uuid == label.members[label.index.as_usize()].uuid
    };
    labels.filter(is_known).map(|label| label.index)
}

/// Whether a missing member's data is computed from parity; mirrors hold whole copies.
fn parity_matters(label: &Label) -> bool {
    label.geometry.check_columns() > 0 && label.geometry.data_columns() > 1
}

fn describe_absent(assembly: &Assembly, found: &[Found], here: MemberSet) -> String {
    let mut text = String::new();
    let lie_of = |index| {
        let mut liars = assembly.liars.iter();
        liars.find(|(at, _)| found[*at].label.index == index).map(|(_, lie)| lie)
    };
    for index in assembly.label.geometry.member_indices().filter(|index| !here.contains(*index)) {
        let separator = if text.is_empty() { "" } else { ", " };
        let is_older = older_images(assembly, found).any(|older| older == index);
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}member {index} (");
        let _ = match (lie_of(index), assembly.found[index.as_usize()], assembly.label.state(index))
        {
            (Some(lie), ..) => write!(text, "left out: {lie}"),
            (None, None, MemberState::InSync) if is_older => {
                write!(text, "left out: its label is from long before those of the other members")
            }
            (None, None, MemberState::InSync) => write!(text, "not here"),
            (None, _, state) => write!(text, "{}", state.name()),
        };
        text.push(')');
    }
    text
}

#[cfg(test)]
mod tests;
