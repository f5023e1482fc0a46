//! What agents have left, by failure domain: who could be a member, and who should be.

use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::cmp::Reverse;

use super::{AgentState, Domain, Lacking, Load};
use crate::units::{Rate, Resources};

/// Fractions of a member that an agent could still be are counted in such parts.
const PART_BITS: u32 = 16;

/// One that may be a member.
struct Place<'a> {
    agent: &'a AgentState,
    /// What it can give.
    left: Resources,
    /// Its domain, of which each has one member at most.
    domain: usize,
    /// Its domain of the kind that was asked for, of which each should have as few as possible.
    wider: usize,
}

impl Place<'_> {
    const fn has(&self, need: &Need) -> bool {
        self.left.holds(&need.each) && self.agent.total.holds(&need.total)
    }
}

/// Agents that take new members.
pub(super) struct Pool<'a> {
    /// The domains of which no two members share one.
    pub(super) domain: Domain,
    wider: Domain,
    places: Vec<Place<'a>>,
    domains: usize,
}

/// What is asked of each member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// It has this left.
    pub(super) each: Resources,
    /// It has this in all: so that one volume does not take too much of it.
    pub(super) total: Resources,
}

impl Need {
    /// Of whatever has it.
    pub(super) fn any(each: Resources) -> Self {
        Self { each, total: Resources::default() }
    }

    /// Of what has rates of which this is no more than so many per cent; none when nothing has.
    pub(super) fn share(each: Resources, percent: u8) -> Option<Self> {
        let total = |rate: Rate| {
            let total = (u128::from(rate.0) * 100).div_ceil(u128::from(percent.max(1)));
            u64::try_from(total).ok().map(Rate)
        };
        let (device, network) = (total(each.device)?, total(each.network)?);
        Some(Self { each, total: Resources { space_bytes: 0, device, network } })
    }
}

/// What of an agent counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    Left,
    Total,
}

impl<'a> Pool<'a> {
    /// Those of `agents` that can be used, of which each `domain` has one member at most, and each
    /// `wider` domain as few as possible.
    pub(super) fn new(
        agents: &'a [AgentState],
        domain: Domain,
        wider: Domain,
        counts: Counts,
    ) -> Self {
        let mut names = [BTreeMap::new(), BTreeMap::new()];
        let mut number = |which: usize, key| {
            let next = names[which].len();
            *names[which].entry(key).or_insert(next)
        };
        let usable = agents.iter().filter(|agent| agent.usable);
        let places: Vec<Place<'a>> = usable
            .map(|agent| Place {
                agent,
                left: match counts {
                    Counts::Left => agent.left,
                    Counts::Total => agent.total,
                },
                domain: number(0, domain.of(agent)),
                wider: number(1, wider.of(agent)),
            })
            .collect();
        let [domains, _] = names;
        Self { domain, wider, places, domains: domains.len() }
    }

    /// How many domains there are.
    pub(super) const fn domains(&self) -> usize {
        self.domains
    }

    /// How many domains have an agent with all of `need`.
    pub(super) fn domains_with(&self, need: &Need) -> usize {
        let mut has = vec![false; self.domains];
        let able = self.places.iter().filter(|place| place.has(need));
        able.for_each(|place| has[place.domain] = true);
        has.into_iter().filter(|has| *has).count()
    }

    /// How many agents lack what of `need`.
    pub(super) fn lacking(&self, need: &Resources) -> Lacking {
        let count = |lacks: fn(&Resources, &Resources) -> bool| {
            self.places.iter().filter(|place| lacks(&place.left, need)).count()
        };
        Lacking {
            agents: self.places.len(),
            space: count(|left, need| left.space_bytes < need.space_bytes),
            device: count(|left, need| left.device < need.device),
            network: count(|left, need| left.network < need.network),
        }
    }

    /// The highest rate at which so many members can be found; none when there are too few even
    /// for their space.
    pub(super) fn most_rate(&self, load: &Load, space_bytes: u64, members: usize) -> Option<Rate> {
        let mut most: Vec<Option<Rate>> = vec![None; self.domains];
        for place in self.places.iter().filter(|place| place.left.space_bytes >= space_bytes) {
            let best = &mut most[place.domain];
            *best = (*best).max(Some(load.most(&place.left)));
        }
        most.sort_unstable_by_key(|rate| Reverse(*rate));
        most.get(members.checked_sub(1)?).copied()?
    }

    /// So many members that have all of `need`, ordered by domain and id; none when there are too
    /// few.
    ///
    /// Of the domains those that could be members most often, and in each the agent that could.
    /// Taking the fullest first leaves the most room for more of the same: where domain i could be
    /// a member c(i) times, as many volumes of N members fit one after the other as there are T
    /// with sum of min(c(i), T) >= N T, and none can do better. It also keeps the highest rate
    /// that one client can be given, which needs many agents evenly, as high as it can be.
    pub(super) fn choose(&self, need: &Need, members: usize) -> Option<Vec<&'a AgentState>> {
        let mut domains: Vec<Option<Candidate<'_, 'a>>> = Vec::new();
        domains.resize_with(self.domains, || None);
        for place in self.places.iter().filter(|place| place.has(need)) {
            let fits = times(&place.left, &need.each);
            let this = Candidate { place, times: fits >> PART_BITS, fits };
            let best = &mut domains[place.domain];
            *best = Some(match best.take() {
                None => this,
                Some(that) => {
                    let times = this.times.saturating_add(that.times);
                    let better = this.fits > that.fits
                        || (this.fits == that.fits && this.place.agent.id < that.place.agent.id);
                    Candidate { times, ..if better { this } else { that } }
                }
            });
        }
        let mut candidates: Vec<Candidate<'_, 'a>> = domains.into_iter().flatten().collect();
        if candidates.len() < members {
            return None;
        }
        candidates.sort_unstable_by_key(Candidate::order);
        let chosen = spread(candidates, members);
        let mut chosen: Vec<&Place<'a>> = chosen.iter().map(|one| one.place).collect();
        // Mirrors of level 10 are half of the members apart: in other domains, where they can be.
        chosen.sort_unstable_by_key(|place| {
            (self.wider.of(place.agent), self.domain.of(place.agent), place.agent.id)
        });
        Some(chosen.into_iter().map(|place| place.agent).collect())
    }
}

/// The best agent of a domain.
struct Candidate<'p, 'a> {
    place: &'p Place<'a>,
    /// How often its domain could be such a member.
    times: u128,
    /// How often itself, in parts.
    fits: u128,
}

impl Candidate<'_, '_> {
    fn order(&self) -> impl Ord + use<> {
        (Reverse(self.times), Reverse(self.fits), self.place.agent.id)
    }
}

/// The first `members` of them, but of each wider domain the second only after the first of all.
fn spread<'p, 'a>(candidates: Vec<Candidate<'p, 'a>>, members: usize) -> Vec<Candidate<'p, 'a>> {
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, Candidate<'p, 'a>)> = candidates
        .into_iter()
        .map(|candidate| {
            let rank = taken.entry(candidate.place.wider).or_default();
            *rank += 1;
            (*rank, candidate)
        })
        .collect();
    // Stable: in each round the order stays.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(members);
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

/// How often `need` is in `left`, by what is scarcest, in parts.
pub(super) fn times(left: &Resources, need: &Resources) -> u128 {
    let pairs = [
        (left.space_bytes, need.space_bytes),
        (left.device.0, need.device.0),
        (left.network.0, need.network.0),
    ];
    let of = |(left, need): (u64, u64)| (u128::from(left) << PART_BITS) / u128::from(need);
    pairs.into_iter().filter(|(_, need)| *need > 0).map(of).min().unwrap_or(u128::MAX)
}
