//! Members that say what the others contradict: whose label, whose checkpoint counts when an array is
//! opened, and who is left out.
//!
//! Invariant: no number of a member goes onto another one, nor into this machine's counters, before it
//! was held against those of all others that are there.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use netraid_block::{ErrorKind, IoError, narrow};

use super::{
    FoundMember,
    state::State,
    tables::{ROUND_LEAD_FOUND, ROUND_LEAD_MAX, ROUNDS_OPEN_MAX},
};
use crate::{
    checkpoint::Checkpoint,
    label::{COUNTER_MAX, Label, LogLabel},
    lack::{Lack, ROUND_MAX},
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
    testimony::{LEAD_MAX, judge},
};

/// Rounds from a checkpoint to the next one, at most: each opening leaves some out, and more where openings
/// before it were cut short, one after the other, or a member says so.
const ROUNDS_PER_CHECKPOINT: u32 = ROUND_LEAD_MAX + ROUNDS_OPEN_MAX;

/// The last round from which an array is opened. What is behind it is for the rounds of one opening: ten months,
/// at ten a second.
const ROUND_LAST: u32 = ROUND_MAX - (1 << 28);

/// The last position at which the log of an array may begin when it is opened: one opening writes no exbibyte.
const POSITION_LAST: u64 = COUNTER_MAX - (1 << 48);

/// Members that are looked for at most whose copies of tables or log do not fit those of the others.
pub(super) const LIARS_MAX: u32 = 2;

/// What some members have contradicts what others have.
pub(super) fn nobody_can_tell(
    some: MemberSet,
    others: MemberSet,
    what: &str,
    error: &IoError,
) -> IoError {
    let names = |members: MemberSet| {
        let names: Vec<String> = members.iter().map(|member| member.to_string()).collect();
        names.join(", ")
    };
    let text = format!(
        "what members {} and {} have of {what} contradicts each other, and no other member can tell which \
         of them lies; leave out the one that does ({error})",
        names(some),
        names(others),
    );
    IoError::with_detail(ErrorKind::Corrupt, text)
}

/// Who is not believed.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// The largest generation that is believed.
    pub(super) generation: u64,
    /// Members that are left out, and why.
    pub(super) liars: BTreeMap<MemberIndex, String>,
}

impl Suspects {
    pub(super) fn contains(&self, member: MemberIndex) -> bool {
        self.liars.contains_key(&member)
    }
}

/// What the labels of an array's members add up to.
pub(super) struct Believed {
    pub(super) label: Label,
    pub(super) log: LogLabel,
    pub(super) suspects: Suspects,
}

/// Weighs the labels of all members, and takes those away that lie.
///
/// # Errors
/// When there is no label of an array with a log, or it is not clear which one counts.
pub(super) fn believe(members: &mut [Option<FoundMember>]) -> Result<Believed, IoError> {
    let there: Vec<usize> =
        (0..members.len()).filter(|member| members[*member].is_some()).collect();
    let labels: Vec<&Label> = members.iter().flatten().map(|found| &found.label).collect();
    let no_log = || {
        let text = "no member has the label of an array with a log";
        IoError::with_detail(ErrorKind::InvalidRequest, text)
    };
    if labels.is_empty() {
        return Err(no_log());
    }
    let checkpoints: Vec<Option<u64>> =
        members.iter().flatten().map(|found| found.checkpoint).collect();
    let verdict = judge(&labels, &checkpoints).map_err(|unclear| {
        let (first, second) = unclear.places();
        let text = format!(
            "array '{}': the labels of members {} and {} contradict each other ({unclear}), and no \
             other member can tell which of them lies; leave out the one that does",
            labels[0].name, labels[first].index, labels[second].index,
        );
        IoError::with_detail(ErrorKind::Redundancy, text)
    })?;
    let label = labels[verdict.truth].clone();
    let log = label.log.clone().ok_or_else(no_log)?;
    let mut suspects = Suspects { generation: verdict.generation, liars: BTreeMap::new() };
    for liar in &verdict.liars {
        let member = MemberIndex(narrow(there[liar.at]));
        suspects.liars.insert(member, format!("left out: {}", liar.lie));
        members[there[liar.at]] = None;
    }
    Ok(Believed { label, log, suspects })
}

/// Members whose checkpoints say what they have, and the checkpoint that they all have.
pub(super) struct Base {
    pub(super) members: MemberSet,
    pub(super) checkpoint: Checkpoint,
    /// The last round that one of them has ended.
    pub(super) last_round: u32,
}

impl State {
    /// Refuses to go on where the next numbers could not be read again.
    ///
    /// # Errors
    /// When the array was opened, its labels changed, or anything else of it was counted, too often.
    pub(super) fn check_numbers(&self) -> Result<(), IoError> {
        let most = COUNTER_MAX - LEAD_MAX;
        let numbers = [
            ("generation", self.suspects.generation, most),
            ("epoch", self.label.epoch, most),
            ("checkpoint", self.checkpoint.counter, most),
            ("round", self.round.into(), ROUND_LAST.into()),
            ("log position", self.checkpoint.tail.end.0, POSITION_LAST),
        ];
        let Some((what, number, most)) = numbers.into_iter().find(|(_, one, most)| one > most)
        else {
            return Ok(());
        };
        let text = format!(
            "array '{}' is of {what} {number}, and {most} is the last from which it can be opened; copy its \
             data to another one",
            self.label.name,
        );
        Err(IoError::with_detail(ErrorKind::Device, text))
    }

    /// Whether a member is away that the label which was found calls in sync.
    pub(super) fn is_anybody_away(&self) -> bool {
        let here = self.in_sync();
        let is_away =
            |member: &MemberIndex| !here.contains(*member) && !self.suspects.contains(*member);
        self.found_label.in_sync().iter().any(|member| is_away(&member))
    }

    /// What to do where no member that is there has what an opening needs.
    pub(super) fn remedy_of_lost_tables(&self) -> &'static str {
        if self.is_anybody_away() {
            "bring the members that are away"
        } else {
            "nobody is away: more members are damaged than the level bears, so bring devices or copies of them from \
             before the damage"
        }
    }

    /// Sets of so many of these members that may lie: the array can serve from the others.
    pub(super) fn who_may_lie(&self, members: MemberSet, size: u32) -> Vec<MemberSet> {
        let mut sets = Vec::from([MemberSet::EMPTY]);
        for _ in 0..size {
            let larger = |set: &MemberSet| {
                let set = *set;
                let last = set.iter().last();
                let later = members.iter().filter(move |one| last.is_none_or(|last| *one > last));
                later.map(move |one| {
                    let mut larger = set;
                    larger.insert(one);
                    larger
                })
            };
            sets = sets.iter().flat_map(larger).collect();
            sets.retain(|set| self.can_serve_from(members.without(*set)));
        }
        sets
    }

    /// Sets a member aside that is not believed; the array fails where it cannot serve without it. What it has
    /// counts for nothing when it comes back.
    pub(super) fn leave_out(&mut self, member: MemberIndex, why: &str) {
        let text = format!("left out: {why}");
        if self.exclude(member, &text) {
            self.label.members[member.as_usize()].lack = Lack::ALL;
            self.suspects.liars.insert(member, text);
        }
    }

    /// Which of the checkpoints that members have that are current by their labels is the one to begin from. A
    /// checkpoint is written to all members that take part, and what is in the log below its tail goes when all
    /// have it: so one that too many lack was cut short, and the one before it counts. One that is beyond that
    /// lies.
    ///
    /// # Errors
    /// When two contradict each other, and it is not clear which one lies.
    pub(super) fn choose_checkpoint(
        &self,
        checkpoints: &[(MemberIndex, Checkpoint)],
    ) -> Result<Option<Checkpoint>, IoError> {
        let mut order: Vec<&(MemberIndex, Checkpoint)> = checkpoints.iter().collect();
        let holders = |one: &Checkpoint| checkpoints.iter().filter(|(_, it)| it == one).count();
        order.sort_by_key(|(_, one)| {
            core::cmp::Reverse((one.counter, one.generation, holders(one)))
        });
        for (member, checkpoint) in order {
            if self.does_count(checkpoints, *member, checkpoint)? {
                return Ok(Some(*checkpoint));
            }
        }
        Ok(None)
    }

    /// The checkpoint before `newest`, and its holders, where more members have it, and can serve by themselves:
    /// `newest` may have been under way, and they may lack nothing.
    pub(super) fn checkpoint_before(
        &self,
        checkpoints: &[(MemberIndex, Checkpoint)],
        newest: &Checkpoint,
    ) -> Option<(Checkpoint, MemberSet)> {
        let holders = |one: &Checkpoint| -> MemberSet {
            checkpoints.iter().filter(|(_, it)| it == one).map(|(member, _)| *member).collect()
        };
        let blocks = self.layout.ring.blocks();
        let is_before = |one: &&Checkpoint| {
            one.counter + 1 == newest.counter && may_follow(newest, one, blocks)
        };
        let before = checkpoints.iter().map(|(_, one)| one).filter(is_before);
        let before = before.max_by_key(|one| holders(one).len())?;
        let own = holders(before);
        let are_more = own.len() > holders(newest).len();
        (are_more && self.can_serve_from(own)).then_some((*before, own))
    }

    /// Who takes part where this checkpoint counts; none when those that have it cannot serve.
    pub(super) fn choose_base(
        &mut self,
        checkpoints: &[(MemberIndex, Checkpoint)],
        base: Checkpoint,
    ) -> Option<Base> {
        let mut found =
            Base { members: MemberSet::EMPTY, checkpoint: base, last_round: base.round };
        for (member, one) in checkpoints {
            if is_lie(one, &base, self.layout.ring.blocks()) {
                let text = format!(
                    "left out: its checkpoint {} (log from {}, round {}) contradicts that of the others, \
                     {} (log from {}, round {})",
                    one.counter, one.tail.end, one.round, base.counter, base.tail.end, base.round,
                );
                self.suspects.liars.insert(*member, text);
            } else if one.counter + 1 >= base.counter || planted(Planted::OlderImageAccepted) {
                found.members.insert(*member);
                // No further than images are followed: what this opening writes must be believed at the next.
                let most = base.round.saturating_add(ROUND_LEAD_FOUND);
                found.last_round = found.last_round.max(one.round.min(most));
            }
        }
        let older = two_behind(checkpoints, found.members);
        if !planted(Planted::OlderImageAccepted)
            && self.can_serve_from(found.members.without(older))
        {
            found.members = found.members.without(older);
        }
        self.can_serve_from(found.members).then_some(found)
    }

    /// Whether a checkpoint counts, in spite of what others have.
    fn does_count(
        &self,
        checkpoints: &[(MemberIndex, Checkpoint)],
        member: MemberIndex,
        checkpoint: &Checkpoint,
    ) -> Result<bool, IoError> {
        let key = |one: &Checkpoint| (one.counter, one.generation);
        let denies = |one: &Checkpoint| one != checkpoint && key(one) <= key(checkpoint);
        let against = || checkpoints.iter().filter(|(_, one)| denies(one));
        let mut rest = self.label.in_sync();
        against().for_each(|(other, _)| rest.remove(*other));
        // Of as many the one as the other, the older may be what is left where the newer was spoiled.
        let deniers = against().count();
        if !self.can_serve_from(rest) && deniers > checkpoints.len() - deniers {
            return Ok(false);
        }
        // One that others have lacked twice never was, where more of them have one and the same.
        let holders = |one: &Checkpoint| -> MemberSet {
            checkpoints.iter().filter(|(_, it)| it == one).map(|(other, _)| *other).collect()
        };
        let own = holders(checkpoint).len();
        let is_outvoted = |one: &Checkpoint| {
            let others = holders(one);
            one.counter + 1 < checkpoint.counter
                && others.len() > own
                && self.can_serve_from(others)
        };
        if checkpoints.iter().any(|(_, one)| is_outvoted(one)) {
            return Ok(false);
        }
        let blocks = self.layout.ring.blocks();
        let is_far = |one: &Checkpoint| {
            let is_near =
                may_follow(checkpoint, one, blocks) || was_cut_short(one, checkpoint, blocks);
            key(one) == key(checkpoint) || !is_near
        };
        let Some((other, _)) = against().find(|(_, one)| is_far(one)) else { return Ok(true) };
        let near = checkpoints.iter().filter(|(_, one)| one == checkpoint).count();
        let far = against().filter(|(_, one)| is_far(one));
        let far: MemberSet = far.map(|(other, _)| *other).collect();
        if far.len() as usize != near {
            return Ok(near > far.len() as usize || !self.can_serve_from(far));
        }
        let text = format!(
            "array '{}': the checkpoints of members {member} and {other} contradict each other, and no \
             other member can tell which of them lies; leave out the one that does",
            self.label.name,
        );
        Err(IoError::with_detail(ErrorKind::Redundancy, text))
    }
}

/// Which of these members are older images, by a checkpoint that was cut short: one is begun when all
/// members have the one before it, so none of them lacks both.
fn two_behind(checkpoints: &[(MemberIndex, Checkpoint)], members: MemberSet) -> MemberSet {
    let here = || checkpoints.iter().filter(|(member, _)| members.contains(*member));
    let newest = here().map(|(_, one)| one.counter).max().unwrap_or(0);
    here().filter(|(_, one)| one.counter + 1 < newest).map(|(member, _)| *member).collect()
}

/// Whether a checkpoint is none that may have been under way, or be behind, where `base` counts.
fn is_lie(one: &Checkpoint, base: &Checkpoint, blocks: u64) -> bool {
    let is_ahead = one.counter > base.counter;
    let is_twin = (one.counter, one.generation) == (base.counter, base.generation);
    (is_ahead && (one.counter > base.counter + 1 || !may_follow(one, base, blocks)))
        || (is_twin && one != base)
        || one.round > base.round.saturating_add(ROUNDS_PER_CHECKPOINT)
}

/// Whether a checkpoint may be one that an earlier generation was writing when it ended, before one of
/// the same number that counts: it is the next one of what both began from.
fn was_cut_short(one: &Checkpoint, later: &Checkpoint, blocks: u64) -> bool {
    let next = Checkpoint { counter: one.counter.saturating_add(1), ..*one };
    one.counter == later.counter
        && one.generation < later.generation
        && may_follow(&next, later, blocks)
}

/// Whether a checkpoint can be later than another one: its log begins where the ring has room for what is
/// between them.
fn may_follow(later: &Checkpoint, earlier: &Checkpoint, blocks: u64) -> bool {
    let lead = later.counter.saturating_sub(earlier.counter);
    let step = later.tail.end.0.checked_sub(earlier.tail.end.0);
    let rounds = later.round.checked_sub(earlier.round);
    // Nothing changes the list here; a later version does, once a checkpoint at most.
    let lists = later.list.counter.checked_sub(earlier.list.counter);
    let is_same = later.list == earlier.list;
    lead <= LEAD_MAX
        && lists.is_some_and(|lists| is_same || (1..=lead).contains(&lists))
        && step.is_some_and(|step| step <= lead.saturating_mul(blocks))
        && rounds.is_some_and(|rounds| {
            u64::from(rounds) <= lead.saturating_mul(ROUNDS_PER_CHECKPOINT.into())
        })
}
