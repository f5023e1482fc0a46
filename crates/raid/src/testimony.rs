//! Which of the labels of one array are believed when they contradict each other: a member may say
//! anything under a right checksum.
//!
//! Engines write each label to all members that it calls live, and nothing rests on a label that one of
//! them lacks. So a label counts only while the members that it calls in sync, less those of them that
//! are here and say otherwise, can serve; members that are away get the benefit of the doubt. The newest
//! label that counts is the truth. Who says something newer lies, unless that is near enough to be an
//! update that was cut short.
//!
//! Without a log a device that was set aside does not come back as the one that it was. So an opening that has it in
//! sync all the same has found that the label which sets it aside was never complete, and knew of labels that it has
//! overwritten since: its word counts, when more members have it than may lie.
//!
//! A mirror can serve alone, so its label counts whatever the others say. Of three mirrors or more, those that it
//! calls in sync outvote it, unless it has a later checkpoint than they have: then they are older images. Of
//! two, the lead of its numbers is bounded: what is beyond the bound is never believed against as many others.

use alloc::vec::Vec;
use core::{cmp::Reverse, fmt};

mod needed;

pub(crate) use needed::is_needed;

use crate::{
    label::{Label, Uuid},
    member::{MemberIndex, MemberSet},
};

/// How many openings, or changes, a label may be ahead of one that was away, or set back: at one a
/// millisecond, 49 days.
pub const LEAD_MAX: u64 = 1 << 32;
/// How many openings in a row may have been cut short before all members had their label.
const CUT_SHORT_MAX: u64 = 64;

/// Generation and epoch: larger ones are newer.
pub type Age = (u64, u64);

/// What labels add up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Which label is the truth, by its place in what was judged.
    pub truth: usize,
    /// The largest generation that is no lie: whoever opens the array takes a larger one.
    pub generation: u64,
    /// Who lies.
    pub liars: Vec<Liar>,
}

impl Verdict {
    /// The lie of the label at this place; none when it is believed.
    #[must_use]
    pub fn lie(&self, at: usize) -> Option<Lie> {
        self.liars.iter().find(|liar| liar.at == at).map(|liar| liar.lie)
    }
}

/// A label that is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liar {
    /// Its place in what was judged.
    pub at: usize,
    /// What it says, and the others do not.
    pub lie: Lie,
}

/// What a label says that is contradicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// A generation and an epoch that the others know nothing of.
    Age {
        /// What it says.
        says: Age,
        /// What the others say.
        others: Age,
    },
    /// Of one generation and epoch another thing than the others say.
    Contents {
        /// The generation and epoch.
        age: Age,
    },
    /// Another shape of the array than the others say.
    Shape,
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Age { says, others } => write!(
                f,
                "its label says generation {}, epoch {}, of which the other members know nothing: \
                 they say generation {}, epoch {}",
                says.0, says.1, others.0, others.1,
            ),
            Self::Contents { age } => write!(
                f,
                "its label and those of the other members contradict each other about generation {}, \
                 epoch {}",
                age.0, age.1,
            ),
            Self::Shape => f.write_str(
                "its label gives the array another shape than those of the other members",
            ),
        }
    }
}

/// Two labels that contradict each other, and none of the others can tell which of them lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unclear {
    /// The first leads by more than any label can.
    #[error(
        "generation {}, epoch {} against generation {}, epoch {}: more than {LEAD_MAX} apart",
        says.0, says.1, others.0, others.1
    )]
    Lead {
        /// Place of the label that leads.
        first: usize,
        /// Place of one that it leads.
        second: usize,
        /// What the first says.
        says: Age,
        /// What the second says.
        others: Age,
    },
    /// The first says what the second knows nothing of, and is needed.
    #[error(
        "generation {}, epoch {} against generation {}, epoch {}",
        says.0, says.1, others.0, others.1
    )]
    Age {
        /// Place of the label that leads.
        first: usize,
        /// Place of one that it leads.
        second: usize,
        /// What the first says.
        says: Age,
        /// What the second says.
        others: Age,
    },
    /// They are of one generation and epoch, and say different things.
    #[error("both are of generation {}, epoch {}, and say different things", age.0, age.1)]
    Contents {
        /// Place of one.
        first: usize,
        /// Place of the other.
        second: usize,
        /// The generation and epoch.
        age: Age,
    },
    /// They give the array different shapes.
    #[error("they give the array different shapes")]
    Shape {
        /// Place of one.
        first: usize,
        /// Place of the other.
        second: usize,
    },
}

impl Unclear {
    /// The places of the two.
    #[must_use]
    pub const fn places(&self) -> (usize, usize) {
        match self {
            Self::Lead { first, second, .. }
            | Self::Age { first, second, .. }
            | Self::Contents { first, second, .. }
            | Self::Shape { first, second } => (*first, *second),
        }
    }
}

/// Weighs labels of one array against each other. At least one is given. `checkpoints` are the counters of the newest
/// checkpoints of the members that have them, in the same order, where they are known.
///
/// # Errors
/// When two of them contradict each other, and the others cannot tell which one lies.
///
/// # Panics
/// When none is given.
pub fn judge(labels: &[&Label], checkpoints: &[Option<u64>]) -> Result<Verdict, Unclear> {
    assert!(!labels.is_empty(), "no label is judged");
    let shaped = of_one_shape(labels)?;
    let court = Court { labels, checkpoints, shaped };
    let mut order: Vec<Candidate> = court.shaped.iter().map(|at| court.candidate(*at)).collect();
    order.sort_by_key(Candidate::rank);
    let mut chosen = None;
    for candidate in &order {
        if court.stands(candidate)? {
            chosen = Some(candidate.at);
            break;
        }
    }
    let newest = &order[0];
    if chosen.is_none()
        && let Some(second) = court.contradicts(newest)
    {
        return Err(court.unclear(newest.at, second));
    }
    // Where nothing stands and nothing is denied, nothing can serve, and whoever asks finds that out.
    let truth = chosen.unwrap_or(newest.at);
    Ok(court.verdict(truth, chosen.is_some()))
}

/// What was found of one shape.
struct Court<'a> {
    labels: &'a [&'a Label],
    checkpoints: &'a [Option<u64>],
    /// Places of labels that are of the shape that counts.
    shaped: Vec<usize>,
}

/// A label that may be the truth.
struct Candidate {
    at: usize,
    age: Age,
    /// How many labels say the same.
    holders: usize,
    /// Members that the label calls in sync and whose own labels say otherwise: labels of the same age, older ones,
    /// and newer ones that are no update of this label.
    against: Vec<usize>,
}

impl Candidate {
    /// What is looked at first: the newest, and of one age what most say, and what nobody denies.
    fn rank(&self) -> (Reverse<Age>, Reverse<usize>, usize) {
        (Reverse(self.age), Reverse(self.holders), self.against.len())
    }
}

impl Court<'_> {
    fn candidate(&self, at: usize) -> Candidate {
        let label = self.labels[at];
        let same = |other: &&usize| says_the_same(label, self.labels[**other]);
        let denies = |other: &usize| {
            let other = self.labels[*other];
            let is_other = other.index != label.index && is_called_in_sync(label, other);
            // Newer labels were judged before this one, and did not count. A newer label that is no update of this
            // label lies, and its member supports nothing.
            let may_deny = age(other) <= age(label) || !may_be_update(other, label);
            is_other && may_deny && !says_the_same(label, other)
        };
        let is_void = |other: &usize| {
            self.labels[*other].generation < label.generation && self.was_never_complete(*other)
        };
        let denies = |other: &usize| denies(other) && !is_void(other);
        Candidate {
            at,
            age: age(label),
            holders: self.shaped.iter().filter(same).count(),
            against: self.shaped.iter().copied().filter(denies).collect(),
        }
    }

    /// Whether a label counts, in spite of those that say otherwise.
    fn stands(&self, candidate: &Candidate) -> Result<bool, Unclear> {
        let label = self.labels[candidate.at];
        if !label.geometry.can_serve_from(label.in_sync()) {
            // No engine goes on without so many.
            return Ok(false);
        }
        if self.was_never_complete(candidate.at) {
            return Ok(false);
        }
        let (mut rest, mut here) = (label.in_sync(), 0);
        for other in self.shaped.iter().filter(|at| rest.contains(self.labels[**at].index)) {
            here += usize::from(!candidate.against.contains(other));
        }
        candidate.against.iter().for_each(|other| rest.remove(self.labels[*other].index));
        if self.is_outvoted(candidate) {
            return Ok(false);
        }
        if !label.geometry.can_serve_from(rest) {
            // Of as many the one as the other, the older may be what is left where the newer was spoiled.
            let one_behind = |other: &usize| {
                let other = self.labels[*other];
                age(other) < candidate.age && may_be_update(label, other)
            };
            let is_split = candidate.against.len() <= here;
            // But such a label sets no member aside that is here and in sync by the older label: the members set
            // aside and those whose newer label was spoiled are together more than the level bears.
            let is_set_aside = |other: &usize| {
                let other = self.labels[*other];
                let was_in_sync = |of: &usize| is_called_in_sync(self.labels[*of], other);
                !is_called_in_sync(label, other)
                    && age(other) < candidate.age
                    && may_be_update(label, other)
                    && candidate.against.iter().any(was_in_sync)
            };
            let sets_aside = self.shaped.iter().any(is_set_aside);
            if !is_split || sets_aside || !candidate.against.iter().all(one_behind) {
                return Ok(false);
            }
        }
        let others = || self.shaped.iter().copied();
        let is_far = |other: &usize| is_beyond(age(self.labels[*other]), candidate.age);
        if let Some(second) = others().find(is_far) {
            let (far, near): (Vec<usize>, Vec<usize>) = others().partition(is_far);
            let members: MemberSet = far.iter().map(|other| self.labels[*other].index).collect();
            if far.len() > near.len() && label.geometry.can_serve_from(members) {
                return Ok(false);
            }
            let (first, says, others) = (candidate.at, candidate.age, age(self.labels[second]));
            return Err(Unclear::Lead { first, second, says, others });
        }
        // As many say the one as the other.
        let rival = |other: &&usize| {
            let rival = self.candidate(**other);
            (rival.age, rival.holders) == (candidate.age, candidate.holders)
                && rival.against.contains(&candidate.at)
        };
        match candidate.against.iter().find(rival) {
            Some(second) => {
                let (first, age) = (candidate.at, candidate.age);
                Err(Unclear::Contents { first, second: *second, age })
            }
            None => match self.speaks_for_the_absent(candidate) {
                Some(second) => Err(self.unclear(candidate.at, second)),
                None => Ok(true),
            },
        }
    }

    /// The place of a label that the candidate contradicts, of a member that the candidate calls in sync.
    fn contradicts(&self, candidate: &Candidate) -> Option<usize> {
        let label = self.labels[candidate.at];
        let denies = |other: &usize| !may_be_update(label, self.labels[*other]);
        candidate.against.iter().copied().find(denies)
    }

    /// The place of an older label that contradicts the candidate, where the members that are here and agree with the
    /// candidate are too few to serve from, and those with the older label are enough. The candidate rests on
    /// members that are away or were replaced, so nobody can tell whether the candidate lies.
    fn speaks_for_the_absent(&self, candidate: &Candidate) -> Option<usize> {
        let label = self.labels[candidate.at];
        let is_with = |other: &&usize| {
            let is_behind = || may_be_update(label, self.labels[**other]);
            is_called_in_sync(label, self.labels[**other])
                && (!candidate.against.contains(other) || is_behind())
        };
        let with = self.shaped.iter().filter(is_with);
        let with: MemberSet = with.map(|other| self.labels[*other].index).collect();
        if label.geometry.can_serve_from(with) {
            return None;
        }
        self.shaped.iter().copied().find(|other| {
            let older = self.labels[*other];
            age(older) < candidate.age
                && !may_be_update(label, older)
                && label.geometry.can_serve_from(self.voters(label, *other))
        })
    }

    /// The members whose labels say the same as the label at the place `of`, and may vote against `label`. A member that
    /// `label` calls away may not: its label is old because of that. A device that `label` does not know may have
    /// been replaced: it votes only with a log, where its checkpoint tells.
    fn voters(&self, label: &Label, of: usize) -> MemberSet {
        let may_vote = |one: &usize| {
            let voter = self.labels[*one];
            let is_known = identity(label, voter.index) == identity(voter, voter.index);
            let is_called = label.in_sync().contains(voter.index);
            if is_known { is_called } else { label.log.is_some() }
        };
        self.same(of).filter(may_vote).map(|one| self.labels[one].index).collect()
    }

    /// The places of those that say the same as the one at a place.
    fn same(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        let same = move |other: &usize| says_the_same(self.labels[of], self.labels[*other]);
        self.shaped.iter().copied().filter(same)
    }

    fn unclear(&self, first: usize, second: usize) -> Unclear {
        let (says, others) = (age(self.labels[first]), age(self.labels[second]));
        match says == others {
            true => Unclear::Contents { first, second, age: says },
            false => Unclear::Age { first, second, says, others },
        }
    }

    /// Whether more members than have this label, and enough to serve from, have one and the same label that is
    /// older, though this label calls them in sync: the update after theirs was never complete.
    ///
    /// The members with the older label may be older images, too, put back to one and the same time. Then the member
    /// with the newest label has a later checkpoint than they have. And the next label counts where it sets a
    /// member aside that is away: else nobody could tell whether the member that is away has something newer.
    fn is_outvoted(&self, candidate: &Candidate) -> bool {
        let label = self.labels[candidate.at];
        let checkpoint = |of| self.same(of).filter_map(|at| *self.checkpoints.get(at)?).max();
        let is_later = |of: usize| match (checkpoint(candidate.at), checkpoint(of)) {
            (Some(own), Some(other)) => own > other,
            (own, other) if own.is_some() || other.is_some() => own.is_some(),
            // An array without a log has no checkpoints.
            _ => label.log.is_some(),
        };
        candidate.against.iter().any(|other| {
            let others = self.voters(label, *other);
            let older = self.labels[*other];
            age(older) < candidate.age
                && !(may_be_update(label, older) && self.sets_aside_absent(label, older))
                && others.len() as usize > candidate.holders
                && label.geometry.can_serve_from(others)
                && !is_later(*other)
        })
    }

    /// Whether openings since, without a log, have found that a label was not on all members that it calls in sync: they
    /// call a member in sync that it calls away. More members say so than may lie, and one of them should have had it.
    fn was_never_complete(&self, at: usize) -> bool {
        let label = self.labels[at];
        if label.log.is_some() {
            return false;
        }
        let goes_back = |later: &&Label| {
            let was_away = |member: MemberIndex| {
                !label.state(member).is_live() && identity(label, member) == identity(later, member)
            };
            later.generation > label.generation
                && follows(age(later), age(label), false)
                && later.in_sync().iter().any(was_away)
        };
        let labels = self.shaped.iter().map(|at| self.labels[*at]);
        let witnesses: Vec<&Label> = labels.filter(goes_back).collect();
        let should_have_had_it = |witness: &&Label| is_called_in_sync(label, witness);
        witnesses.len() as u64 > u64::from(label.geometry.tolerance())
            && witnesses.iter().any(should_have_had_it)
    }

    /// Whether a label sets a member aside that an older one has in sync and that is not here.
    fn sets_aside_absent(&self, label: &Label, older: &Label) -> bool {
        let is_here = |member| {
            self.shaped.iter().any(|at| {
                let one = self.labels[*at];
                one.index == member && is_called_in_sync(older, one)
            })
        };
        let (now, before) = (label.in_sync(), older.in_sync());
        before.iter().any(|member| !now.contains(member) && !is_here(member))
    }

    fn verdict(&self, truth: usize, is_clear: bool) -> Verdict {
        let label = self.labels[truth];
        let others = age(label);
        let mut verdict = Verdict { truth, generation: others.0, liars: Vec::new() };
        for (at, other) in self.labels.iter().enumerate() {
            let says = age(other);
            if !self.shaped.contains(&at) {
                verdict.liars.push(Liar { at, lie: Lie::Shape });
            } else if !is_clear || says < others {
                // Who is behind was away, or is what it was once.
            } else if says > others {
                if may_be_update(other, label) {
                    verdict.generation = verdict.generation.max(says.0);
                } else {
                    verdict.liars.push(Liar { at, lie: Lie::Age { says, others } });
                }
            } else if other.index != label.index
                && is_called_in_sync(label, other)
                && !says_the_same(label, other)
            {
                verdict.liars.push(Liar { at, lie: Lie::Contents { age: says } });
            }
        }
        verdict
    }
}

/// Places of the labels that agree about the array's shape: of what most members say, if these can
/// serve.
fn of_one_shape(labels: &[&Label]) -> Result<Vec<usize>, Unclear> {
    let alike = |at: usize| -> Vec<usize> {
        (0..labels.len()).filter(|other| is_of_one_shape(labels[at], labels[*other])).collect()
    };
    let first = alike(0);
    if first.len() == labels.len() {
        return Ok(first);
    }
    let groups = (0..labels.len()).map(alike);
    let most = groups.max_by_key(Vec::len).unwrap_or_default();
    let members: MemberSet = most.iter().map(|at| labels[*at].index).collect();
    let is_most = most.len() * 2 > labels.len();
    let one = most.first().copied().unwrap_or(0);
    if is_most && labels[one].geometry.can_serve_from(members) {
        return Ok(most);
    }
    let other = (0..labels.len()).find(|at| !is_of_one_shape(labels[one], labels[*at]));
    Err(Unclear::Shape { first: one, second: other.unwrap_or(one) })
}

/// Whether two labels of one array agree about what never changes.
#[must_use]
pub fn is_of_one_shape(one: &Label, other: &Label) -> bool {
    let log = |label: &Label| label.log.as_ref().map(|log| (log.format, log.checksum, log.salt));
    one.geometry == other.geometry && one.regions == other.regions && log(one) == log(other)
}

const fn age(label: &Label) -> Age {
    (label.generation, label.epoch)
}

/// Whether a label may be the update after another one, which was cut short. No update calls a member in sync that the
/// label before it called away: it catches up first.
fn may_be_update(later: &Label, earlier: &Label) -> bool {
    let mut in_sync = later.in_sync().iter();
    let is_leveled = later.log.is_some();
    follows(age(later), age(earlier), is_leveled)
        && in_sync.all(|member| earlier.state(member).is_live())
}

/// Whether a label of one age may be of the update after one of another age, or of openings since that were cut
/// short. Where labels `are_leveled` when an array is opened, as with a log, these are of one epoch at most;
/// without, each may have been of another one.
pub(crate) const fn follows(later: Age, earlier: Age, are_leveled: bool) -> bool {
    let (generations, epochs) =
        (later.0.saturating_sub(earlier.0), later.1.saturating_sub(earlier.1));
    let most = if are_leveled { 1 } else { generations.saturating_add(1) };
    generations <= CUT_SHORT_MAX && epochs <= most
}

/// Whether an age is so far behind another one that the latter is not believed.
const fn is_beyond(behind: Age, ahead: Age) -> bool {
    ahead.0.saturating_sub(behind.0) > LEAD_MAX || ahead.1.saturating_sub(behind.1) > LEAD_MAX
}

/// Whether two labels are copies of one for different members.
pub(crate) fn says_the_same(one: &Label, other: &Label) -> bool {
    age(one) == age(other) && *one == Label { index: one.index, ..other.clone() }
}

/// Whether a label calls the member in sync that has another one.
fn is_called_in_sync(label: &Label, other: &Label) -> bool {
    let index = other.index;
    label.in_sync().contains(index) && identity(label, index) == identity(other, index)
}

/// Which device a label says that a member is.
fn identity(label: &Label, member: MemberIndex) -> Uuid {
    label.members[member.as_usize()].uuid
}

#[cfg(test)]
mod tests;
