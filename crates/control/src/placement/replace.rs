//! Who takes the place of a lost member.
//!
//! The volume stays as it is: level, unit and all other members. The new one is apart from those
//! that are left as a new volume's members would be from each other.

use alloc::vec::Vec;
use core::{cmp::Reverse, fmt};

use netraid_raid::{
    geometry::Geometry,
    member::{MemberIndex, MemberSet},
};

use super::{AgentState, Domain, Lacking, Reason, pool::times, reason::ShowResources};
use crate::units::{AgentId, Resources};

/// A volume of which members are lost, and the place that is to be filled.
#[derive(Debug, Clone, Copy)]
pub struct Vacancy<'a> {
    /// The volume's shape.
    pub geometry: &'a Geometry,
    /// Whose its members are, in the array's order: as many as the shape has.
    pub members: &'a [AgentId],
    /// Those that are lost: nothing is read from them, and nobody keeps apart from them.
    pub lost: MemberSet,
    /// The one to be replaced, which is among them.
    pub place: MemberIndex,
    /// What the new one gives: space, and the rates of plans that are in force.
    pub need: Resources,
    /// What no two members may share.
    pub spread: Domain,
    /// Whether they may where there is no other way. They never share an agent.
    pub may_share: bool,
}

/// Who takes the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The new member's agent.
    pub agent: AgentId,
    /// That it shares a domain, if it does.
    pub shared: Option<Reason>,
}

/// Why nobody does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReplacement {
    /// Too many members are lost.
    #[error(
        "{lost} of {members} members are lost, which level {level} does not survive; bring one of \
         them back"
    )]
    Lost {
        /// The level's number.
        level: u8,
        /// Of how many.
        members: usize,
        /// How many.
        lost: usize,
    },
    /// The place is not lost, or the members are not those of the shape.
    #[error("member {place} of {members} is not to be replaced; name one that is lost")]
    Place {
        /// Which place.
        place: u8,
        /// How many members were named.
        members: usize,
    },
    /// All agents that take members share domains with the members that are left.
    #[error(
        "every {domain} that takes members has one already; add another {domain}, or allow members to \
         share"
    )]
    Domains {
        /// Of what kind.
        domain: Domain,
    },
    /// Those that are apart have too little left.
    #[error(
        "too little {}: {} is to be given, and of {} agents apart from the other members {} lack \
         space, {} device rate, {} network rate; add an agent, or end plans",
        .lacking.limit(), Need(.need), .lacking.agents, .lacking.space, .lacking.device,
        .lacking.network
    )]
    Left {
        /// What is to be given.
        need: Resources,
        /// What agents lack.
        lacking: Lacking,
    },
}

struct Need<'a>(&'a Resources);

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ShowResources(self.0).fmt(f)
    }
}

/// The agent that takes a lost member's place.
///
/// Among those that have what is to be given: one in a domain of its own; where there is none and
/// the caller allows it, one with which the volume survives the loss of any domain, then one in the
/// domain with fewest members; then the one that has most left, by what is scarcest; then the
/// smallest id.
///
/// # Errors
/// When nobody can: why.
pub fn replace(vacancy: &Vacancy<'_>, agents: &[AgentState]) -> Result<Replacement, NoReplacement> {
    let Vacancy { geometry, members, lost, place, need, spread, may_share } = *vacancy;
    let is_there = place.as_usize() < members.len();
    if members.len() != usize::from(geometry.members()) || !is_there || !lost.contains(place) {
        return Err(NoReplacement::Place { place: place.0, members: members.len() });
    }
    let left = Left::new(vacancy, agents);
    if !geometry.can_serve_from(left.set) {
        let (level, lost) = (geometry.level().number(), members.len() - left.agents.len());
        return Err(NoReplacement::Lost { level, members: members.len(), lost });
    }
    let mut refusal = None;
    for domain in spread.attempts(may_share) {
        let is_apart = |agent: &&AgentState| agent.usable && left.in_one(domain, agent) == 0;
        let apart: Vec<&AgentState> = agents.iter().filter(is_apart).collect();
        let able = apart.iter().filter(|agent| agent.left.holds(&need));
        let order = |agent: &&&AgentState| {
            let shared = (domain != spread)
                .then(|| (!left.survives(vacancy, agent), left.in_one(spread, agent)));
            (shared, Reverse(times(&agent.left, &need)), agent.id)
        };
        if let Some(agent) = able.min_by_key(order) {
            let has_one = left.agents.iter().any(|(_, id, _)| *id == agent.id);
            assert!(agent.usable && !has_one, "agent {} is to have two members", agent.id);
            let shared = (domain != spread).then(|| Reason::Shared {
                asked: spread,
                distinct: domain,
                most: left.most_in_one(spread, agent),
                survives: left.survives(vacancy, agent),
            });
            return Ok(Replacement { agent: agent.id, shared });
        }
        refusal = Some(match apart.is_empty() {
            true => NoReplacement::Domains { domain },
            false => NoReplacement::Left { need, lacking: lacking(&apart, &need) },
        });
    }
    Err(refusal.unwrap_or(NoReplacement::Domains { domain: spread }))
}

/// The members that are not lost.
struct Left<'a> {
    set: MemberSet,
    /// With their places. An agent that nobody knows any more is apart from all.
    agents: Vec<(MemberIndex, AgentId, Option<&'a AgentState>)>,
}

impl<'a> Left<'a> {
    fn new(vacancy: &Vacancy<'_>, agents: &'a [AgentState]) -> Self {
        let of = |index: &MemberIndex| vacancy.members.get(index.as_usize());
        let there: Vec<_> = vacancy
            .geometry
            .member_indices()
            .filter(|index| !vacancy.lost.contains(*index))
            .filter_map(|index| Some((index, *of(&index)?)))
            .map(|(index, id)| (index, id, agents.iter().find(|agent| agent.id == id)))
            .collect();
        Self { set: there.iter().map(|(index, ..)| *index).collect(), agents: there }
    }

    /// How many of them are where this agent is.
    fn in_one(&self, domain: Domain, agent: &AgentState) -> usize {
        self.agents.iter().filter(|(_, id, known)| is_with(domain, agent, *id, *known)).count()
    }

    /// How many members are in the domain that has most of them, with this agent.
    fn most_in_one(&self, domain: Domain, agent: &AgentState) -> usize {
        let known = self.agents.iter().filter_map(|(_, _, known)| *known);
        let of = |one: &AgentState| {
            self.in_one(domain, one) + usize::from(domain.of(one) == domain.of(agent))
        };
        known.map(of).max().unwrap_or(0).max(self.in_one(domain, agent) + 1)
    }

    /// Whether with this agent the volume, once whole again, survives the loss of any domain of
    /// the kind asked for; others that are lost now are lost then.
    fn survives(&self, vacancy: &Vacancy<'_>, agent: &AgentState) -> bool {
        let spread = vacancy.spread;
        let all = self.agents.iter().filter_map(|(_, _, known)| *known).chain([agent]);
        all.into_iter().all(|gone| {
            let stays = |(index, id, known): &(MemberIndex, AgentId, Option<&AgentState>)| {
                (!is_with(spread, gone, *id, *known)).then_some(*index)
            };
            let mut left: Vec<MemberIndex> = self.agents.iter().filter_map(stays).collect();
            if spread.of(agent) != spread.of(gone) {
                left.push(vacancy.place);
            }
            vacancy.geometry.can_serve_from(left.into_iter().collect())
        })
    }
}

/// Whether a member is where an agent is.
fn is_with(
    domain: Domain,
    agent: &AgentState,
    member: AgentId,
    known: Option<&AgentState>,
) -> bool {
    agent.id == member || known.is_some_and(|known| domain.of(known) == domain.of(agent))
}

fn lacking(agents: &[&AgentState], need: &Resources) -> Lacking {
    let mut lacking = Lacking { agents: agents.len(), space: 0, device: 0, network: 0 };
    for agent in agents {
        lacking.space += usize::from(agent.left.space_bytes < need.space_bytes);
        lacking.device += usize::from(agent.left.device < need.device);
        lacking.network += usize::from(agent.left.network < need.network);
    }
    lacking
}

#[cfg(test)]
mod tests;
