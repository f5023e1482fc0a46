//! Against all agents, one by one, judged by the rules as they are said.

use super::super::tests::{agents, mb};
use super::*;
use netraid_raid::geometry::Level;
use proptest::prelude::*;
use std::{collections::BTreeSet, format, string::ToString, vec};

use crate::units::Rate;

const NEED: Resources =
    Resources { space_bytes: 10 << 30, device: Rate(10_000_000), network: Rate(10_000_000) };

fn shape(level: Level, members: usize) -> Geometry {
    Geometry::new(level, members, 64 << 10, 512, 100, 0).unwrap()
}

fn ids(of: &[usize]) -> Vec<AgentId> {
    of.iter().map(|at| AgentId([u8::try_from(*at).unwrap(); 16])).collect()
}

fn places(of: &[u8]) -> MemberSet {
    of.iter().copied().map(MemberIndex).collect()
}

fn six() -> Vec<AgentState> {
    agents(6, Resources { space_bytes: 100 << 30, device: mb(100), network: mb(100) })
}

#[test]
fn the_agent_with_most_left_apart_from_all_others_takes_the_place() {
    let geometry = shape(Level::Raid5, 3);
    let members = ids(&[0, 1, 2]);
    let mut cluster = six();
    cluster[1].usable = false;
    // Most left, but on the host of a member that is left.
    cluster[4].host = cluster[2].host.clone();
    cluster[4].left.space_bytes = 1 << 50;
    cluster[3].left.device = mb(40);
    let vacancy = Vacancy {
        geometry: &geometry,
        members: &members,
        lost: places(&[1]),
        place: MemberIndex(1),
        need: NEED,
        spread: Domain::Host,
        may_share: false,
    };
    let found = replace(&vacancy, &cluster).unwrap();
    assert_eq!(found, Replacement { agent: cluster[5].id, shared: None });
    // The lost member's own host is no reason to keep away.
    cluster[5].usable = false;
    cluster[3].host = cluster[1].host.clone();
    assert_eq!(replace(&vacancy, &cluster).unwrap().agent, cluster[3].id);
    cluster[3].left.device = mb(9);
    let refusal = replace(&vacancy, &cluster).unwrap_err();
    let lacking = Lacking { agents: 1, space: 0, device: 1, network: 0 };
    assert_eq!(refusal, NoReplacement::Left { need: NEED, lacking });
    assert!(refusal.to_string().starts_with("too little device rate: 10 GiB, device 10 MB/s"));
    cluster[3].usable = false;
    let refusal = replace(&vacancy, &cluster).unwrap_err();
    assert_eq!(refusal, NoReplacement::Domains { domain: Domain::Host });
    let found = replace(&Vacancy { may_share: true, ..vacancy }, &cluster).unwrap();
    assert_eq!(found.agent, cluster[4].id);
    let shared =
        Reason::Shared { asked: Domain::Host, distinct: Domain::Agent, most: 2, survives: false };
    assert_eq!(found.shared, Some(shared));
}

#[test]
fn mirrors_of_level_10_share_a_rack_with_others_than_their_own() {
    let geometry = shape(Level::Raid10, 4);
    let members = ids(&[0, 1, 2, 3]);
    let mut cluster = six();
    for (agent, rack) in cluster.iter_mut().zip(["a", "a", "b", "b", "a", "b"]) {
        agent.rack = rack.into();
    }
    // Member 0 is mirrored by member 2, in the other rack.
    cluster[0].usable = false;
    cluster[5].left = Resources { space_bytes: 1 << 50, device: mb(500), network: mb(500) };
    let vacancy = Vacancy {
        geometry: &geometry,
        members: &members,
        lost: places(&[0]),
        place: MemberIndex(0),
        need: NEED,
        spread: Domain::Rack,
        may_share: true,
    };
    let found = replace(&vacancy, &cluster).unwrap();
    assert_eq!(found.agent, cluster[4].id);
    assert!(matches!(found.shared, Some(Reason::Shared { most: 2, survives: true, .. })));
    // Also where both racks have one member each.
    cluster[3].rack = "c".into();
    let found = replace(&vacancy, &cluster).unwrap();
    assert_eq!(found.agent, cluster[4].id);
}

#[test]
fn what_cannot_be_replaced_is_refused() {
    let geometry = shape(Level::Raid5, 3);
    let members = ids(&[0, 1, 2]);
    let cluster = six();
    let vacancy = Vacancy {
        geometry: &geometry,
        members: &members,
        lost: places(&[0, 1]),
        place: MemberIndex(1),
        need: NEED,
        spread: Domain::Host,
        may_share: false,
    };
    let lost = NoReplacement::Lost { level: 5, members: 3, lost: 2 };
    assert_eq!(replace(&vacancy, &cluster), Err(lost));
    for place in [2, 3, 64, 255] {
        let wrong = Vacancy { place: MemberIndex(place), lost: places(&[1]), ..vacancy };
        let refusal = NoReplacement::Place { place, members: 3 };
        assert_eq!(replace(&wrong, &cluster), Err(refusal));
    }
    let short = Vacancy { members: &members[..2], lost: places(&[1]), ..vacancy };
    assert!(matches!(replace(&short, &cluster), Err(NoReplacement::Place { .. })));
    // A member whose agent nobody knows any more hinders nobody.
    let forgotten = Vacancy { lost: places(&[1]), ..vacancy };
    assert!(replace(&forgotten, &cluster[3..]).is_ok());
}

/// Up to nine agents, on few hosts in fewer racks, of which some are members of a volume.
#[derive(Debug, Clone)]
struct Scene {
    agents: Vec<AgentState>,
    level: Level,
    members: usize,
    lost: BTreeSet<u8>,
    spread: Domain,
    may_share: bool,
}

fn scene() -> impl Strategy<Value = Scene> {
    let agent = (0..7_u8, 0..3_u8, 1..6_u64, 1..6_u64, 1..6_u64, prop::bool::weighted(0.8));
    let level = prop_oneof![
        Just((Level::Raid1, 2)),
        Just((Level::Raid5, 3)),
        Just((Level::Raid6, 4)),
        Just((Level::Raid10, 4)),
    ];
    let lost = prop::collection::btree_set(0..4_u8, 1..3);
    let spread = prop_oneof![Just(Domain::Agent), Just(Domain::Host), Just(Domain::Rack)];
    (prop::collection::vec(agent, 4..10), level, lost, spread, any::<bool>()).prop_map(
        |(agents, (level, members), lost, spread, may_share)| {
            let of = |(at, (host, rack, space, device, network, usable)): (usize, _)| {
                let _: (u8, u8, u64, u64, u64, bool) = (host, rack, space, device, network, usable);
                let left = Resources {
                    space_bytes: (space * 5) << 30,
                    device: mb(device * 5),
                    network: mb(network * 5),
                };
                AgentState {
                    id: ids(&[at])[0],
                    host: format!("host-{host}"),
                    rack: format!("rack-{rack}"),
                    left,
                    total: left,
                    usable,
                }
            };
            let agents = agents.into_iter().enumerate().map(of).collect();
            let fits = |place: &u8| usize::from(*place) < members;
            let lost: BTreeSet<u8> = lost.into_iter().filter(fits).collect();
            Scene { agents, level, members, lost, spread, may_share }
        },
    )
}

/// How bad an agent is, the best first, by the rules; none when it cannot be.
type Badness = (usize, Option<(bool, usize)>, u64);

fn judge(scene: &Scene, agent: &AgentState) -> Option<Badness> {
    let name = |domain: Domain, of: &AgentState| match domain {
        Domain::Agent => of.id.to_string(),
        Domain::Host => of.host.clone(),
        Domain::Rack => of.rack.clone(),
    };
    let stay: Vec<usize> =
        (0..scene.members).filter(|at| !scene.lost.contains(&u8::try_from(*at).unwrap())).collect();
    let with = |domain: Domain, of: &AgentState| {
        let same = |at: &&usize| name(domain, &scene.agents[**at]) == name(domain, of);
        stay.iter().filter(same).count()
    };
    if !agent.usable || !agent.left.holds(&NEED) {
        return None;
    }
    let kinds = match (scene.spread, scene.may_share) {
        (spread, false) => vec![spread],
        (Domain::Rack, true) => vec![Domain::Rack, Domain::Host, Domain::Agent],
        (Domain::Host, true) => vec![Domain::Host, Domain::Agent],
        (Domain::Agent, true) => vec![Domain::Agent],
    };
    let rank = kinds.iter().position(|kind| with(*kind, agent) == 0)?;
    let mut team: Vec<(u8, &AgentState)> =
        stay.iter().map(|at| (u8::try_from(*at).unwrap(), &scene.agents[*at])).collect();
    team.push((*scene.lost.first().unwrap(), agent));
    let survives = team.iter().all(|(_, gone)| {
        let left =
            team.iter().filter(|(_, one)| name(scene.spread, one) != name(scene.spread, gone));
        let left: BTreeSet<u8> = left.map(|(place, _)| *place).collect();
        let missing = scene.members - left.len();
        match scene.level {
            Level::Raid10 => (0..2).all(|pair| left.contains(&pair) || left.contains(&(pair + 2))),
            Level::Raid6 => missing <= 2,
            Level::Raid5 | Level::Raid1 => missing <= 1,
            Level::Raid0 => missing == 0,
        }
    });
    let shared = (rank > 0).then(|| (!survives, with(scene.spread, agent)));
    let room = |left: u64, need: u64| left * 1000 / need;
    let most = room(agent.left.space_bytes, NEED.space_bytes)
        .min(room(agent.left.device.0, NEED.device.0))
        .min(room(agent.left.network.0, NEED.network.0));
    Some((rank, shared, u64::MAX - most))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn the_best_agent_by_the_rules_is_found_if_there_is_any(scene in scene()) {
        let Some(place) = scene.lost.first().copied() else { return Ok(()) };
        let geometry = shape(scene.level, scene.members);
        let members: Vec<AgentId> = ids(&(0..scene.members).collect::<Vec<_>>());
        let vacancy = Vacancy {
            geometry: &geometry,
            members: &members,
            lost: scene.lost.iter().copied().map(MemberIndex).collect(),
            place: MemberIndex(place),
            need: NEED,
            spread: scene.spread,
            may_share: scene.may_share,
        };
        let found = replace(&vacancy, &scene.agents);
        if let Err(NoReplacement::Lost { .. }) = found {
            prop_assert!(scene.lost.len() > 1);
            return Ok(());
        }
        let best = scene.agents.iter().filter_map(|agent| {
            Some((judge(&scene, agent)?, agent.id))
        }).min();
        prop_assert_eq!(found.clone().ok().map(|found| found.agent), best.map(|(_, id)| id));
        if let (Ok(found), Some(((rank, shared, _), _))) = (found, best) {
            let told = match found.shared {
                Some(Reason::Shared { survives, .. }) => Some(!survives),
                None | Some(_) => None,
            };
            prop_assert_eq!(told, shared.map(|(dies, _)| dies), "{}", rank);
        }
        // The order of the agents does not matter.
        let mut turned = scene.agents.clone();
        turned.reverse();
        prop_assert_eq!(replace(&vacancy, &turned), replace(&vacancy, &scene.agents));
    }
}
