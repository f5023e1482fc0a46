//! Where a new volume goes: level, members, striping unit and what is booked of each agent, from
//! what is asked for and what agents have left; or why not, and the most that could be had.
//!
//! Swift's rule: a low rate gets few agents and large units, a high rate many agents and small
//! units, and nothing is taken that the request does not need. `docs/placement.md` has cases with
//! their reasons; [`Load`] has the arithmetic.
//!
//! Invariants: no agent is asked for more than it has left; no two members share a failure domain,
//! unless there is no other way and the caller allows it; the same input gives the same answer,
//! whatever the order of the agents.
//!
//! Does not book anything, and does not know what others ask for meanwhile: agents' ledgers do.
//! Of what is there already only lost members are placed anew ([`replace()`]); for a new client of
//! an old volume, [`Load`] says what its members must give.

#[cfg(test)]
mod cases;
mod load;
mod pool;
mod reason;
mod replace;
mod shape;
#[cfg(test)]
mod tests;
mod wire;

use alloc::{boxed::Box, string::String, vec, vec::Vec};
use core::fmt;

use netraid_raid::geometry::Level;
use serde::{Deserialize, Serialize};

pub use load::{Load, Traffic};
pub use reason::{Lacking, LevelWhy, MembersWhy, Reason, Why};
pub use replace::{NoReplacement, Replacement, Vacancy, replace};
pub use shape::UnitWhy;

use crate::units::{AgentId, Rate, Resources};
use pool::{Counts, Need, Pool};
use shape::{Shape, shapes};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// What the client moves, reading or writing one byte after the other; zero for a volume
    /// without a promise.
    pub rate: Rate,
    /// Bytes of the requests that it moves it in; it has enough of them in flight to keep all
    /// members busy.
    pub request_bytes: u64,
    /// Whether it moves whole stripes where its requests are as long as that, as those do who know
    /// the layout. Of others' requests the parts of stripes at both ends go through the log.
    pub gathered: bool,
    /// How many members may be lost without loss of data.
    pub survives: u8,
    /// Whether the rate is promised while so many are lost.
    pub degraded: bool,
    /// The level, if it is not to be chosen.
    #[serde(default, with = "wire::level_if_any", skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Bytes of the striping unit, if it is not to be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_len: Option<u32>,
    /// Number of members, if it is not to be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<usize>,
    /// Per cent of any agent's rates that one volume should take at most where there are other
    /// agents; 100 for the fewest members that carry the rate.
    pub share_percent: u8,
    /// What no two members may share.
    pub spread: Domain,
    /// Whether they may where there is no other way. They never share an agent.
    pub may_share: bool,
}

/// Of an agent's rates, where nobody says otherwise. Pieces that are large against what they are
/// cut from leave remains that nobody can use, and few members give much of their rate for checks.
const SHARE_PERCENT: u8 = 25;

impl Wanted {
    /// A volume as most are: moved in whole stripes by requests of 1 MiB, at that rate also while
    /// one member is lost, spread over hosts.
    #[must_use]
    pub const fn new(size_bytes: u64, rate: Rate) -> Self {
        Self {
            size_bytes,
            rate,
            request_bytes: 1 << 20,
            gathered: true,
            survives: 1,
            degraded: true,
            level: None,
            chunk_len: None,
            members: None,
            share_percent: SHARE_PERCENT,
            spread: Domain::Host,
            may_share: false,
        }
    }
}

/// What fails together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    /// An agent.
    Agent,
    /// A host, which may run several agents.
    Host,
    /// A rack.
    Rack,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Host => "host",
            Self::Rack => "rack",
        })
    }
}

impl Domain {
    /// Which one an agent is in. Agents without a label may be anywhere, so they are in one.
    fn of(self, agent: &AgentState) -> (&str, Option<AgentId>) {
        match self {
            Self::Agent => ("", Some(agent.id)),
            Self::Host => (&agent.host, None),
            Self::Rack => (&agent.rack, None),
        }
    }

    /// Kinds of domains that members may be spread over, in the order of preference.
    fn attempts(self, may_share: bool) -> Vec<Self> {
        match (may_share, self) {
            (false, _) | (true, Self::Agent) => vec![self],
            (true, Self::Host) => vec![self, Self::Agent],
            (true, Self::Rack) => vec![self, Self::Host, Self::Agent],
        }
    }
}

/// An agent as the mediator knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentState {
    /// Its id.
    pub id: AgentId,
    /// Label of its host.
    pub host: String,
    /// Label of its rack; empty where nobody said.
    pub rack: String,
    /// What is not booked.
    pub left: Resources,
    /// All that it has.
    pub total: Resources,
    /// Whether it takes new members: it is neither draining, nor retired, nor away.
    pub usable: bool,
}

/// Where a volume goes. Over a wire reasons go as their text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Level.
    #[serde(with = "wire::level")]
    pub level: Level,
    /// Bytes of the striping unit.
    pub chunk_len: u32,
    /// Whether the array has a log, and checksums: always, but at level 0.
    pub logged: bool,
    /// Members in the array's order.
    pub members: Vec<AgentId>,
    /// What is to be booked on each of them.
    pub each: Resources,
    /// Bytes of the volume that comes of it: what was asked for, and what fills the last MiB.
    pub capacity_bytes: u64,
    /// What decided.
    #[serde(serialize_with = "wire::texts")]
    pub reasons: Vec<Reason>,
}

/// The most that could be had instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The highest rate for the same size and resilience.
    pub rate: Rate,
    /// Where that would be.
    pub placement: Placement,
}

/// Why a volume goes nowhere. Over a wire that goes as its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{why}")]
pub struct Refusal {
    /// What is missing.
    #[serde(serialize_with = "wire::text")]
    pub why: Why,
    /// What could be had now; none when not even the space could, or no rate at all.
    pub offer: Option<Box<Offer>>,
    /// Whether it could be had if nothing were booked: later, perhaps.
    pub later: bool,
}

/// Where a volume of `wanted` goes.
///
/// Among what is possible: first members that share no domain, then the level that takes the least
/// space, then the fewest members none of which gives more than its share, or as many as there are
/// when none are enough for that, then the agents that have most left (`Pool::choose` says why), then
/// the smallest ids.
///
/// # Errors
/// When it cannot be had: why, and the highest rate that could be, exactly.
pub fn place(wanted: &Wanted, agents: &[AgentState]) -> Result<Placement, Box<Refusal>> {
    let attempts = wanted.spread.attempts(wanted.may_share);
    let pool = |counts| {
        let of = |domain: &Domain| Pool::new(agents, *domain, wanted.spread, counts);
        attempts.iter().map(of).collect::<Vec<_>>()
    };
    let pools = pool(Counts::Left);
    let places = pools.iter().map(Pool::domains).max().unwrap_or(0);
    let refuse = |why| Box::new(Refusal { why, offer: None, later: false });
    let shapes = shapes(wanted, places).map_err(refuse)?;
    if let Some(found) = find(wanted, wanted.rate, &shapes, &pools) {
        return Ok(found.placement(wanted, wanted.rate, &shapes));
    }
    let best = best(&shapes, &pools).filter(|(rate, _, _)| *rate > Rate::ZERO);
    let offer = best.and_then(|(rate, _, _)| {
        let placement = find(wanted, rate, &shapes, &pools)?.placement(wanted, rate, &shapes);
        Some(Box::new(Offer { rate, placement }))
    });
    let why = why(wanted.rate, &shapes, &pools, best);
    let later = find(wanted, wanted.rate, &shapes, &pool(Counts::Total)).is_some();
    Err(Box::new(Refusal { why, offer, later }))
}

/// A shape for which there are members.
struct Found<'s, 'p, 'a> {
    at: usize,
    pool: &'p Pool<'a>,
    shape: &'s Shape,
    need: Need,
    members: Vec<&'a AgentState>,
}

/// The first that carries that rate.
fn find<'s, 'p, 'a>(
    wanted: &Wanted,
    rate: Rate,
    shapes: &'s [Shape],
    pools: &'p [Pool<'a>],
) -> Option<Found<'s, 'p, 'a>> {
    let try_one = |pool: &'p Pool<'a>, at: usize, share: Option<u8>| {
        let shape = &shapes[at];
        let need = need(rate, shape, share, pool)?;
        let members = pool.choose(&need, shape.members)?;
        Some(Found { at, pool, shape, need, members })
    };
    // Who gives a number of members has decided how much each gives.
    let share = wanted.share_percent.min(100);
    let share = wanted.members.is_none().then_some(share);
    pools.iter().find_map(|pool| {
        let mut end = 0;
        shapes.chunk_by(|one, next| one.level == next.level).find_map(|of_level| {
            let range = end..end + of_level.len();
            end = range.end;
            let modest =
                share.and_then(|share| range.clone().find_map(|at| try_one(pool, at, Some(share))));
            modest.or_else(|| range.rev().find_map(|at| try_one(pool, at, None)))
        })
    })
}

/// What each member must give, if there are as many as the shape takes.
fn need(rate: Rate, shape: &Shape, share: Option<u8>, pool: &Pool<'_>) -> Option<Need> {
    let of = |each| match share {
        Some(percent) => Need::share(each, percent),
        None => Some(Need::any(each)),
    };
    let are_enough = |need: &Need| pool.domains_with(need) >= shape.members;
    if pool.domains() < shape.members || !are_enough(&of(shape.need_min(rate)?)?) {
        return None;
    }
    of(shape.need(rate)?).filter(are_enough)
}

/// The highest rate for which there are members: with which shape, and of which pool.
fn best(shapes: &[Shape], pools: &[Pool<'_>]) -> Option<(Rate, usize, usize)> {
    let mut best: Option<(Rate, usize, usize)> = None;
    for (at_pool, pool) in pools.iter().enumerate() {
        // Mostly the widest is best: others are told apart quickly then.
        for (at, shape) in shapes.iter().enumerate().rev() {
            let rate = best.map_or(Rate::ZERO, |(rate, _, _)| rate);
            if need(rate, shape, None, pool).is_none() {
                continue;
            }
            let Some(space_bytes) = shape.space_bytes() else { continue };
            let most = pool.most_rate(&shape.load, space_bytes, shape.members);
            let Some(most) = most else { continue };
            if best.is_none_or(|(rate, _, of)| most > rate || (most == rate && of == at_pool)) {
                best = Some((most, at, at_pool));
            }
        }
    }
    best
}

/// What is missing, of the shape that comes nearest.
fn why(
    rate: Rate,
    shapes: &[Shape],
    pools: &[Pool<'_>],
    best: Option<(Rate, usize, usize)>,
) -> Why {
    let Some(pool) = best.map_or(pools.last(), |(_, _, at)| pools.get(at)) else {
        return Why::Size;
    };
    // Where there is not enough space, the widest takes the least of each.
    let fits = |shape: &&Shape| shape.members <= pool.domains();
    let first_level = shapes.iter().find(fits).map(|shape| shape.level);
    let widest = shapes.iter().rfind(|shape| fits(shape) && Some(shape.level) == first_level);
    let shape = match best {
        Some((_, at, _)) => shapes.get(at),
        None => widest,
    };
    let domain = pool.domain;
    let Some(shape) = shape else {
        let least = shapes.iter().min_by_key(|shape| shape.members);
        let (level, members) =
            least.map_or((Level::Raid0, 1), |least| (least.level, least.members));
        return Why::Domains { level, members, domain, domains: pool.domains() };
    };
    let (level, members) = (shape.level, shape.members);
    match shape.need(rate) {
        Some(need) => {
            let (have, lacking) = (pool.domains_with(&Need::any(need)), pool.lacking(&need));
            Why::Left { level, members, need, domain, have, lacking }
        }
        None => Why::Beyond { level, members },
    }
}

impl Found<'_, '_, '_> {
    fn placement(&self, wanted: &Wanted, rate: Rate, shapes: &[Shape]) -> Placement {
        let Self { shape, need, members, .. } = self;
        // What must never be: it would be promised and not be there.
        assert!(members.len() == shape.members, "as many members as the shape takes");
        let able = |agent: &&AgentState| agent.usable && agent.left.holds(&need.each);
        assert!(members.iter().all(able), "members that have what is booked of them");
        let capacity_bytes = shape.capacity_bytes().unwrap_or(0);
        assert!(capacity_bytes >= wanted.size_bytes, "a volume of the size asked for");
        Placement {
            level: shape.level,
            chunk_len: shape.chunk_len,
            logged: shape.is_logged(),
            members: members.iter().map(|agent| agent.id).collect(),
            each: need.each,
            capacity_bytes,
            reasons: self.reasons(wanted, rate, shapes),
        }
    }

    fn reasons(&self, wanted: &Wanted, rate: Rate, shapes: &[Shape]) -> Vec<Reason> {
        let shape = self.shape;
        let level_why = match (wanted.level, shapes.first()) {
            (Some(_), _) => LevelWhy::Asked,
            (None, Some(first)) if first.level != shape.level => LevelWhy::Instead(first.level),
            (None, _) => LevelWhy::LeastSpace,
        };
        let mut reasons = vec![
            Reason::Level { level: shape.level, survives: wanted.survives, why: level_why },
            Reason::Members { members: shape.members, why: self.members_why(wanted, rate, shapes) },
            Reason::Unit {
                chunk_len: shape.chunk_len,
                data_columns: shape.data_columns,
                request_bytes: wanted.request_bytes,
                why: shape.unit_why,
            },
            Reason::Load {
                rate,
                each: self.need.each,
                lost: if wanted.degraded { wanted.survives } else { 0 },
                through_log_percent: shape.load.through_log_percent(),
            },
        ];
        if self.pool.domain != wanted.spread {
            let most = most_in_one(wanted.spread, &self.members);
            let survives = most <= usize::from(wanted.survives);
            let (asked, distinct) = (wanted.spread, self.pool.domain);
            reasons.push(Reason::Shared { asked, distinct, most, survives });
        }
        reasons
    }

    fn members_why(&self, wanted: &Wanted, rate: Rate, shapes: &[Shape]) -> MembersWhy {
        if wanted.members.is_some() {
            return MembersWhy::Asked;
        }
        if self.need == Need::any(self.need.each) && rate > Rate::ZERO {
            return MembersWhy::Most { share_percent: wanted.share_percent };
        }
        let before = self.at.checked_sub(1).and_then(|at| shapes.get(at));
        let fewer = before.filter(|before| before.level == self.shape.level);
        let need = fewer.and_then(|fewer| {
            let need = fewer.need(rate)?;
            Some((fewer.members, need, Need::share(need, wanted.share_percent)?))
        });
        let Some((fewer, need, share)) = need else { return MembersWhy::Least };
        let (have, domain) = (self.pool.domains_with(&share), self.pool.domain);
        MembersWhy::Fewest { fewer, need, have, domain, share_percent: wanted.share_percent }
    }
}

/// How many members are in the domain that has most of them.
fn most_in_one(domain: Domain, members: &[&AgentState]) -> usize {
    let same = |one: &&AgentState| {
        members.iter().filter(|other| domain.of(other) == domain.of(one)).count()
    };
    members.iter().map(same).max().unwrap_or(0)
}
