//! What labels add up to: which array, which members are current, whether it may be opened.
//!
//! The label with the largest (generation, epoch) is the truth; a member counts as in sync only
//! when the truth says so, whatever its own label says. So a member that was set aside and comes
//! back is never read as if it were current.

use alloc::{string::String, vec::Vec};
use core::fmt::Write;

use crate::{
    label::{Closure, Label},
    member::{MemberIndex, MemberSet, MemberState},
};

/// One member's label and the name under which the user gave the member.
#[derive(Debug, Clone)]
pub struct Found {
    /// The member's address, for messages.
    pub address: String,
    /// Its label.
    pub label: Label,
}

/// What the opener knows beside the labels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Permissions {
    /// Nothing will be written.
    pub read_only: bool,
    /// The holder in the labels is this machine, and its lock is ours now: it is dead.
    pub holder_is_dead: bool,
    /// An administrator's word that overrides doubts about other writers and about parity.
    pub force: bool,
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
    let truth = found
        .iter()
        .max_by_key(|found| (found.label.generation, found.label.epoch))
        .ok_or(AssembleError::Nothing)?;
    check_together(found, truth)?;
    check_one_history(found, truth)?;
    check_log(&truth.label)?;
    let mut assembly = place(found, truth)?;
    let here: MemberSet = assembly.current().collect();
    check_enough(&assembly, truth, here)?;
    check_exclusive(&assembly, truth, here, permissions)?;
    for index in truth.label.geometry.member_indices() {
        let entry = &mut assembly.label.members[index.as_usize()];
        if entry.state.is_live() && assembly.found[index.as_usize()].is_none() {
            entry.state = MemberState::Missing;
            entry.rebuilt_stripes = 0;
        }
    }
    Ok(assembly)
}

impl Assembly {
    /// Members that are here and in sync.
    fn current(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        self.label.geometry.member_indices().filter(|index| {
            self.found[index.as_usize()].is_some()
                && self.label.state(*index) == MemberState::InSync
        })
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

fn check_together(found: &[Found], truth: &Found) -> Result<(), AssembleError> {
    for other in found {
        let (one, two) = (&truth.label, &other.label);
        if one.array_uuid != two.array_uuid {
            return Err(AssembleError::DifferentArrays {
                first: truth.address.clone(),
                first_name: one.name.clone(),
                second: other.address.clone(),
                second_name: two.name.clone(),
            });
        }
        let salt = |label: &Label| label.log.as_ref().map(|log| log.salt);
        let alike = one.geometry == two.geometry && one.regions == two.regions;
        if !alike || salt(one) != salt(two) {
            return Err(AssembleError::Disagree {
                name: one.name.clone(),
                first: truth.address.clone(),
                second: other.address.clone(),
            });
        }
    }
    Ok(())
}

/// Refuses a member that went on serving after it had set the newest one aside.
fn check_one_history(found: &[Found], truth: &Found) -> Result<(), AssembleError> {
    match found.iter().find(|other| has_diverged(&truth.label, &other.label)) {
        None => Ok(()),
        Some(other) => Err(AssembleError::Diverged {
            name: truth.label.name.clone(),
            first: truth.address.clone(),
            second: other.address.clone(),
        }),
    }
}

/// Whether a member with the label `other` went on serving after it had set aside the one with the
/// label `newest`. Without a log, a member that was rebuilt since has another identity, so an old
/// word about it does not count. With a log it keeps its identity: there the old word does not
/// count when a member was in sync for both, since nobody goes on without all of those.
#[must_use]
pub fn has_diverged(newest: &Label, other: &Label) -> bool {
    let in_sync = |label: &Label| -> MemberSet {
        let indices = label.geometry.member_indices();
        indices.filter(|index| label.state(*index) == MemberState::InSync).collect()
    };
    let at = newest.index.as_usize();
    let (truth, told) = (&newest.members[at], &other.members[at]);
    let set_aside = matches!(told.state, MemberState::Faulty | MemberState::Missing);
    let (ours, theirs) = (in_sync(newest), in_sync(other));
    told.uuid == truth.uuid
        && set_aside
        && ours.contains(newest.index)
        && theirs.contains(other.index)
        && (newest.log.is_none() || theirs.iter().all(|member| !ours.contains(member)))
}

fn place(found: &[Found], truth: &Found) -> Result<Assembly, AssembleError> {
    let label = truth.label.clone();
    let mut places: Vec<Option<usize>> = alloc::vec![None; label.members.len()];
    let mut stale = Vec::new();
    for (at, member) in found.iter().enumerate() {
        let index = member.label.index;
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
    let unclean = label.closure != Closure::Clean;
    Ok(Assembly { label, found: places, stale, unclean })
}

fn check_enough(assembly: &Assembly, truth: &Found, here: MemberSet) -> Result<(), AssembleError> {
    let geometry = &truth.label.geometry;
    if geometry.can_serve_from(here) {
        return Ok(());
    }
    let needed = u32::from(geometry.members()) - geometry.tolerance();
    Err(AssembleError::TooFew {
        name: truth.label.name.clone(),
        current: here.len(),
        members: geometry.members(),
        level: geometry.level().number(),
        needed,
        missing: describe_absent(assembly, here),
    })
}

fn check_exclusive(
    assembly: &Assembly,
    truth: &Found,
    here: MemberSet,
    permissions: Permissions,
) -> Result<(), AssembleError> {
    let label = &truth.label;
    let name = || label.name.clone();
    if label.read_only_compatible != 0 && !permissions.read_only {
        let features = label.read_only_compatible;
        return Err(AssembleError::ReadOnlyFeatures { name: name(), features });
    }
    if permissions.force {
        return Ok(());
    }
    let geometry = &label.geometry;
    let in_sync = |index: &MemberIndex| label.state(*index) == MemberState::InSync;
    let away: MemberSet =
        geometry.member_indices().filter(in_sync).filter(|index| !here.contains(*index)).collect();
    let holder = || match label.holder.name.as_str() {
        "" => String::from("unknown"),
        name => name.into(),
    };
    let generation = label.generation;
    // That the last holder known here is dead does not say what the absent ones saw after it.
    if !away.is_empty() && geometry.can_serve_from(away) {
        let missing = describe_absent(assembly, here);
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
    let parity_lags = label.log.is_none() && parity_matters(label);
    if assembly.unclean && assembly.lacks_members(here) && parity_lags {
        let missing = describe_absent(assembly, here);
        return Err(AssembleError::UncleanDegraded { name: name(), missing });
    }
    Ok(())
}

/// Whether a missing member's data is computed from parity; mirrors hold whole copies.
fn parity_matters(label: &Label) -> bool {
    label.geometry.check_columns() > 0 && label.geometry.data_columns() > 1
}

fn describe_absent(assembly: &Assembly, here: MemberSet) -> String {
    let mut text = String::new();
    for index in assembly.label.geometry.member_indices().filter(|index| !here.contains(*index)) {
        let why = match (assembly.found[index.as_usize()], assembly.label.state(index)) {
            (None, MemberState::InSync) => "not here",
            (_, state) => state.name(),
        };
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}member {index} ({why})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        geometry::Level,
        label::tests::{logged_sample, sample},
        lack::Lack,
    };

    fn labels(level: Level, members: u8) -> Vec<Found> {
        labelled(&sample(level, usize::from(members)))
    }

    /// With a log, and nobody away.
    fn in_sync(level: Level, members: usize) -> Label {
        let mut label = logged_sample(level, members);
        for entry in &mut label.members {
            (entry.state, entry.lack) = (MemberState::InSync, Lack::NOTHING);
        }
        label
    }

    fn labelled(label: &Label) -> Vec<Found> {
        let members = label.geometry.members();
        let one = |at| {
            let label = Label { index: MemberIndex(at), ..label.clone() };
            Found { address: alloc::format!("m{at}"), label }
        };
        (0..members).map(one).collect()
    }

    fn set_aside(found: &mut [Found], who: usize) {
        for (at, found) in found.iter_mut().enumerate() {
            if at != who {
                found.label.members[who].state = MemberState::Faulty;
                found.label.epoch += 1;
            }
        }
    }

    #[test]
    fn a_member_that_was_set_aside_is_not_current_when_it_comes_back() {
        let mut found = labels(Level::Raid5, 4);
        set_aside(&mut found, 2);
        let assembly = assemble(&found, Permissions::default()).unwrap();
        assert_eq!((assembly.stale.as_slice(), assembly.found[2]), (&[2][..], None));
        assert_eq!(assembly.label.state(MemberIndex(2)), MemberState::Faulty);
    }

    #[test]
    fn with_a_log_a_member_that_was_away_has_its_place_and_does_not_count() {
        let mut found = labelled(&in_sync(Level::Raid5, 4));
        set_aside(&mut found, 2);
        let assembly = assemble(&found, Permissions::default()).unwrap();
        assert_eq!((assembly.stale.as_slice(), assembly.found[2]), (&[][..], Some(2)));
        assert_eq!(assembly.label.state(MemberIndex(2)), MemberState::Faulty);
        found.remove(0);
        let few = assemble(&found, Permissions::default()).unwrap_err();
        assert!(matches!(few, AssembleError::TooFew { current: 2, .. }), "{few}");
    }

    #[test]
    fn with_a_log_an_old_word_of_a_member_that_has_caught_up_is_no_second_history() {
        let mut found = labelled(&in_sync(Level::Raid6, 4));
        // Member 3 was set aside, then member 2, which never heard that 3 is back.
        found[2].label.members[3].state = MemberState::Faulty;
        found[2].label.epoch += 1;
        for other in [0, 1, 3] {
            found[other].label.members[2].state = MemberState::Faulty;
            found[other].label.epoch += 4;
        }
        assert!(assemble(&found, Permissions::default()).is_ok());
        // Two halves of a mirror that went on alone are two histories, log or not.
        let mut found = labelled(&in_sync(Level::Raid1, 2));
        found[0].label.members[1].state = MemberState::Faulty;
        found[0].label.epoch += 1;
        found[1].label.members[0].state = MemberState::Missing;
        found[1].label.generation += 1;
        let error = assemble(&found, Permissions::default()).unwrap_err();
        assert!(matches!(error, AssembleError::Diverged { .. }), "{error}");
    }

    #[test]
    fn pairs_of_a_level_10_decide_what_is_enough_and_who_could_have_gone_on() {
        let label = in_sync(Level::Raid10, 4);
        let all = labelled(&label);
        let pick = |members: &[u8]| -> Vec<Found> {
            members.iter().map(|member| all[usize::from(*member)].clone()).collect()
        };
        let halves: Vec<[u8; 2]> = (0..4).flat_map(|a| (a + 1..4).map(move |b| [a, b])).collect();
        let force = Permissions { force: true, ..Permissions::default() };
        let opened = halves.iter().filter(|half| assemble(&pick(*half), force).is_ok()).count();
        assert_eq!(opened, 4, "one of each pair");
        for half in halves {
            assert!(assemble(&pick(&half), Permissions::default()).is_err(), "{half:?}");
        }
        assert!(assemble(&pick(&[0, 1, 2]), Permissions::default()).is_ok());
    }

    #[test]
    fn a_level_that_needs_a_log_is_not_assembled_without_one() {
        for level in [Level::Raid6, Level::Raid10] {
            let refused = assemble(&labels(level, 4), Permissions::default()).unwrap_err();
            assert!(matches!(refused, AssembleError::NoLog { .. }), "{refused}");
        }
    }

    #[test]
    fn a_replaced_member_is_not_taken_for_its_replacement() {
        let mut found = labels(Level::Raid5, 4);
        for other in [0, 1, 3] {
            found[other].label.members[2].uuid = [77; 16];
            found[other].label.epoch += 1;
        }
        assert_eq!(assemble(&found, Permissions::default()).unwrap().stale, [2]);
    }

    #[test]
    fn one_side_of_a_mirror_alone_does_not_open() {
        let mut found = labels(Level::Raid1, 2);
        set_aside(&mut found, 1);
        let stale = found.pop().unwrap();
        assert!(assemble(&found, Permissions::default()).is_ok(), "the survivor knows");
        let error = assemble(core::slice::from_ref(&stale), Permissions::default()).unwrap_err();
        assert!(matches!(error, AssembleError::Contested { .. }), "{error}");
        let dead = Permissions { holder_is_dead: true, ..Permissions::default() };
        let error = assemble(core::slice::from_ref(&stale), dead).unwrap_err();
        assert!(
            matches!(error, AssembleError::Contested { .. }),
            "a dead holder is no proof: {error}"
        );
        let force = Permissions { force: true, ..Permissions::default() };
        assert!(assemble(&[stale], force).is_ok());
    }

    #[test]
    fn two_halves_that_went_on_without_each_other_are_not_mixed() {
        let mut found = labels(Level::Raid1, 2);
        found[0].label.members[1].state = MemberState::Faulty;
        found[0].label.epoch += 1;
        found[1].label.members[0].state = MemberState::Missing;
        found[1].label.generation += 1;
        let error = assemble(&found, Permissions::default()).unwrap_err();
        assert!(matches!(error, AssembleError::Diverged { .. }), "{error}");
    }

    #[test]
    fn too_few_foreign_and_doubled_members_are_refused() {
        let mut found = labels(Level::Raid5, 4);
        let few = assemble(&found[..2], Permissions::default()).unwrap_err();
        assert!(
            few.to_string().contains("2 of 4") && few.to_string().contains("member 3"),
            "{few}"
        );
        found[3].label.index = MemberIndex(1);
        assert!(matches!(
            assemble(&found, Permissions::default()),
            Err(AssembleError::Twice { index: MemberIndex(1), .. })
        ));
        found[3].label.array_uuid = [5; 16];
        let different = assemble(&found, Permissions::default());
        assert!(matches!(different, Err(AssembleError::DifferentArrays { .. })));
    }

    #[test]
    fn an_unclean_array_opens_only_on_proof_and_with_all_its_parity() {
        let mut found = labels(Level::Raid5, 4);
        found.iter_mut().for_each(|found| found.label.closure = Closure::Open);
        let held = assemble(&found, Permissions::default()).unwrap_err();
        assert!(matches!(held, AssembleError::Held { .. }));
        let dead = Permissions { holder_is_dead: true, ..Permissions::default() };
        assert!(assemble(&found, dead).unwrap().unclean);
        let error = assemble(&found[..3], dead).unwrap_err();
        assert!(matches!(error, AssembleError::UncleanDegraded { .. }));
    }

    #[test]
    fn a_log_says_what_parity_should_be_when_a_member_is_away() {
        let mut label = Label { closure: Closure::Open, ..logged_sample(Level::Raid5, 4) };
        label.members[3].state = MemberState::InSync;
        let found = labelled(&label);
        let dead = Permissions { holder_is_dead: true, ..Permissions::default() };
        assert!(assemble(&found[..3], dead).unwrap().unclean);
    }

    #[test]
    fn labels_that_differ_in_the_log_are_not_of_one_array() {
        let (logged, plain) = (logged_sample(Level::Raid5, 4), sample(Level::Raid5, 4));
        type Change = fn(&mut Option<crate::label::LogLabel>);
        let changes: [Change; 2] = [|log| log.as_mut().unwrap().salt ^= 1, |log| *log = None];
        for change in changes {
            let mut found = labelled(&logged);
            change(&mut found[2].label.log);
            let error = assemble(&found, Permissions::default()).unwrap_err();
            assert!(matches!(error, AssembleError::Disagree { .. }), "{error}");
        }
        assert!(assemble(&labelled(&plain), Permissions::default()).is_ok());
    }

    use alloc::string::ToString;
}
