//! Placements against exhaustive search, and against arithmetic.

use proptest::prelude::*;
use std::{collections::BTreeSet, format, string::ToString};

use super::*;

/// Agents of which each has `left`, with a host of its own.
pub(super) fn agents(count: u8, left: Resources) -> Vec<AgentState> {
    (0..count)
        .map(|at| AgentState {
            id: id(at),
            host: format!("host-{at}"),
            rack: String::new(),
            left,
            total: left,
            usable: true,
        })
        .collect()
}

pub(super) fn mb(rate: u64) -> Rate {
    Rate(rate * 1_000_000)
}

const fn id(number: u8) -> AgentId {
    AgentId([number; 16])
}

pub(super) fn book(agents: &mut [AgentState], placement: &Placement) {
    for agent in agents.iter_mut().filter(|agent| placement.members.contains(&agent.id)) {
        assert!(agent.left.holds(&placement.each));
        agent.left = agent.left.saturating_sub(placement.each);
    }
}

/// Asks until nobody gets anything any more: how many did.
fn admitted(wanted: &Wanted, agents: &mut [AgentState]) -> u64 {
    let mut count = 0;
    while let Ok(placement) = place(wanted, agents) {
        book(agents, &placement);
        count += 1;
    }
    count
}

#[test]
fn of_eight_clients_the_five_that_there_is_room_for_are_admitted() {
    // Links of 200 Mbit/s, measured at 90% of that.
    let left = Resources { space_bytes: 1 << 40, device: mb(100), network: Rate(22_500_000) };
    let mut cluster = agents(5, left);
    let wanted = Wanted::new(10 << 30, Rate(16_200_000));
    let mut refused = Vec::new();
    let mut plans = 0;
    for _ in 0..8 {
        match place(&wanted, &cluster) {
            Ok(placement) => {
                assert_eq!((placement.level, placement.members.len()), (Level::Raid5, 5));
                book(&mut cluster, &placement);
                plans += 1;
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    assert_eq!((plans, refused.len()), (5, 3));
    for refusal in &refused {
        assert!(refusal.later);
        let Why::Left { have: 0, lacking, members: 5, .. } = &refusal.why else {
            panic!("{refusal}")
        };
        let all = Lacking { agents: 5, space: 0, device: 0, network: 5 };
        assert_eq!((lacking, lacking.limit()), (&all, "network rate"));
    }
    // One takes the offer, and gets just that; then there is nothing left.
    let offer = refused[0].offer.clone().unwrap();
    let modest = Wanted { rate: offer.rate, ..wanted.clone() };
    assert_eq!(place(&modest, &cluster).as_ref(), Ok(&offer.placement));
    let more = Wanted { rate: Rate(offer.rate.0 + 1), ..wanted };
    assert!(place(&more, &cluster).is_err());
    book(&mut cluster, &offer.placement);
    let rest = place(&modest, &cluster).unwrap_err().offer.map_or(0, |offer| offer.rate.0);
    assert!(rest < 10, "{rest}");
}

#[test]
fn as_many_streams_are_admitted_as_arithmetic_says() {
    for (survives, members) in [(0, 4), (1, 3), (1, 5), (1, 8), (2, 6)] {
        for streams in [1, 2, 3, 5, 7, 19] {
            let left = Resources { space_bytes: 1 << 45, device: mb(97), network: mb(89) };
            // A little less than a member's share of what holds so many.
            let k = members - u64::from(survives);
            let rate = Rate(left.network.0 * k * 90 / 100 / streams);
            let wanted = Wanted {
                survives,
                members: usize::try_from(members).ok(),
                ..Wanted::new(1 << 30, rate)
            };
            let mut cluster = agents(u8::try_from(members).unwrap(), left);
            let (_, network) = shape_of(&wanted).load.rates(rate).unwrap();
            let fit = left.network.0 / network.0;
            assert!(fit == streams || fit == streams + 1, "{fit} {streams}");
            assert_eq!(admitted(&wanted, &mut cluster), fit);
        }
    }
}

/// The only shape, where level and number of members are given.
fn shape_of(wanted: &Wanted) -> Shape {
    shapes(wanted, 64).unwrap().remove(0)
}

#[test]
fn little_takes_few_agents_and_large_units_and_much_takes_many_and_small_ones() {
    let left = Resources { space_bytes: 1 << 44, device: mb(400), network: mb(110) };
    let cluster = agents(40, left);
    let mut last = (0, u32::MAX);
    let mut seen = BTreeSet::new();
    for rate in [1, 20, 60, 120, 250, 500, 900] {
        let placement = place(&Wanted::new(1 << 40, mb(rate)), &cluster).unwrap();
        let (members, unit) = (placement.members.len(), placement.chunk_len);
        assert!(members >= last.0 && unit <= last.1, "{rate}: {placement:?}");
        last = (members, unit);
        seen.insert(last);
    }
    assert_eq!(seen.first(), Some(&(3, 512 << 10)));
    assert!(last.0 > 30 && last.1 <= 32 << 10, "{last:?}");
    // Without a share, no more than carry it.
    let wanted = Wanted { share_percent: 100, ..Wanted::new(1 << 40, mb(500)) };
    let members = place(&wanted, &cluster).unwrap().members.len();
    let fewer = Wanted { members: Some(members - 1), ..wanted };
    assert!(members < 8 && place(&fewer, &cluster).is_err());
}

#[test]
fn levels_follow_what_is_to_be_survived_and_how_many_hosts_there_are() {
    let left = Resources { space_bytes: 1 << 40, device: mb(100), network: mb(100) };
    let level = |survives, hosts| {
        let wanted = Wanted { survives, ..Wanted::new(1 << 30, mb(1)) };
        place(&wanted, &agents(hosts, left)).map(|one| (one.level.number(), one.members.len()))
    };
    assert_eq!(level(0, 3).unwrap(), (0, 1));
    assert_eq!(level(1, 4).unwrap(), (5, 3));
    assert_eq!(level(1, 2).unwrap(), (1, 2));
    assert_eq!(level(2, 5).unwrap(), (6, 4));
    assert_eq!(level(2, 3).unwrap(), (1, 3));
    let alone = level(1, 1).unwrap_err();
    let why = Why::Domains { level: Level::Raid1, members: 2, domain: Domain::Host, domains: 1 };
    assert_eq!((alone.why, alone.offer, alone.later), (why, None, false));
}

#[test]
fn members_share_a_domain_only_where_there_is_no_other_way_and_it_is_allowed() {
    let left = Resources { space_bytes: 1 << 40, device: mb(100), network: mb(100) };
    let mut cluster = agents(6, left);
    for (at, agent) in cluster.iter_mut().enumerate() {
        agent.rack = ["north", "south"][at % 2].into();
    }
    let wanted = Wanted { spread: Domain::Rack, survives: 2, ..Wanted::new(1 << 30, mb(1)) };
    let refused = place(&wanted, &cluster).unwrap_err();
    assert!(matches!(refused.why, Why::Domains { domains: 2, domain: Domain::Rack, .. }));
    let wanted = Wanted { may_share: true, ..wanted };
    let placement = place(&wanted, &cluster).unwrap();
    // Two in each rack, and their loss is survived.
    let shared =
        Reason::Shared { asked: Domain::Rack, distinct: Domain::Host, most: 2, survives: true };
    assert!(placement.reasons.contains(&shared), "{:?}", placement.reasons);
    // Mirrors of level 10 are in different racks.
    let wanted = Wanted { level: Some(Level::Raid10), survives: 1, ..wanted };
    let placement = place(&wanted, &cluster).unwrap();
    let rack = |at: usize| placement.members[at].0[0] % 2;
    assert!(rack(0) != rack(2) && rack(1) != rack(3), "{:?}", placement.members);
    // With a third and fourth rack nothing is shared.
    cluster[0].rack = "east".into();
    cluster[1].rack = "west".into();
    let placement = place(&Wanted { level: None, survives: 2, ..wanted }, &cluster).unwrap();
    assert!(!placement.reasons.iter().any(|one| matches!(one, Reason::Shared { .. })));
}

#[test]
fn who_takes_no_members_gets_none() {
    let left = Resources { space_bytes: 1 << 40, device: mb(100), network: mb(100) };
    let mut cluster = agents(4, left);
    cluster[1].usable = false;
    let placement = place(&Wanted::new(1 << 30, mb(10)), &cluster).unwrap();
    assert_eq!(placement.members, [id(0), id(2), id(3)]);
    cluster[2].usable = false;
    let placement = place(&Wanted::new(1 << 30, mb(10)), &cluster).unwrap();
    assert_eq!((placement.level, placement.members), (Level::Raid1, [id(0), id(3)].into()));
}

#[test]
fn what_cannot_be_had_says_what_is_missing() {
    let left = Resources { space_bytes: 10 << 30, device: mb(50), network: mb(100) };
    let cluster = agents(3, left);
    let text = |wanted: Wanted| place(&wanted, &cluster).unwrap_err().to_string();
    let large = text(Wanted::new(100 << 30, mb(1)));
    assert!(large.starts_with("too little space: level 5 over 3 hosts takes 5"), "{large}");
    assert!(large.ends_with("of 3 agents 3 lack space"), "{large}");
    let fast = place(&Wanted::new(1 << 30, mb(200)), &cluster).unwrap_err();
    assert!(fast.to_string().starts_with("too little device rate: "), "{fast}");
    let offer = fast.offer.unwrap().rate;
    // Two columns of 50 MB/s: a 16th for requests, 1.6% for the log and 1.6% for pages.
    assert!(offer > mb(91) && offer < mb(92), "{offer:?}");
    assert!(!fast.later);
    assert!(text(Wanted::new(0, mb(1))).contains("give a size"));
    assert!(
        text(Wanted { chunk_len: Some(5000), ..Wanted::new(1, mb(1)) }).contains("power of two")
    );
    assert!(text(Wanted::new(u64::MAX, mb(1))).contains("ask for less"));
    let none = place(&Wanted::new(1, mb(1)), &[]).unwrap_err();
    assert!(none.to_string().contains("0 have agents"), "{none}");
}

fn resources() -> impl Strategy<Value = Resources> {
    (0_u64..40, 0_u64..30, 0_u64..30).prop_map(|(gib, device, network)| Resources {
        space_bytes: gib << 29,
        device: mb(device),
        network: mb(network),
    })
}

prop_compose! {
    fn agent()(
        host in 0..4, rack in 0..3, left in resources(), more in resources(), usable in 0..8,
    ) -> AgentState {
        AgentState {
            id: id(0),
            host: format!("host-{host}"),
            rack: format!("rack-{rack}"),
            left,
            total: left.checked_add(more).unwrap(),
            usable: usable > 0,
        }
    }
}

prop_compose! {
    fn cluster(most: usize)(mut agents in prop::collection::vec(agent(), 0..=most)) -> Vec<AgentState> {
        for (at, agent) in (0..).zip(&mut agents) {
            agent.id = id(at);
        }
        agents
    }
}

prop_compose! {
    fn wanted()(
        size in 1_u64..30 << 30,
        rate in prop_oneof![Just(0), 1_u64..60_000_000],
        request in prop_oneof![Just(1_u64 << 20), 1_u64..4 << 20],
        (gathered, degraded, may_share) in any::<(bool, bool, bool)>(),
        survives in 0_u8..4,
        level in prop_oneof![4 => Just(None), 1 => (0_u8..11).prop_map(Level::from_number)],
        members in prop_oneof![4 => Just(None), 1 => (1_usize..6).prop_map(Some)],
        spread in prop::sample::select(&[Domain::Agent, Domain::Host, Domain::Rack][..]),
        share_percent in prop_oneof![Just(25_u8), Just(100), 0_u8..=100],
    ) -> Wanted {
        let chunk_len = None;
        Wanted {
            size_bytes: size, rate: Rate(rate), request_bytes: request, gathered, survives, degraded,
            level, chunk_len, members, share_percent, spread, may_share,
        }
    }
}

/// Whether any agents of any number, at any level that survives enough, could carry that rate with
/// members in different such domains.
fn is_possible(wanted: &Wanted, rate: Rate, domain: Domain, agents: &[AgentState]) -> bool {
    let levels = [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10];
    let allowed = |level, members| match (wanted.level, wanted.survives) {
        (Some(asked), _) => asked == level,
        (None, 0) => level == Level::Raid0,
        (None, 1) => matches!(level, Level::Raid1 | Level::Raid5 | Level::Raid10),
        (None, 2) => matches!(level, Level::Raid1 | Level::Raid6),
        (None, _) => level == Level::Raid1,
    } && wanted.members.is_none_or(|asked| asked == members)
        // Mirrors of more than it takes are not worth it, unless that is asked for.
        && (level != Level::Raid1
            || wanted.members.is_some()
            || members == usize::from(wanted.survives).max(1) + 1);
    levels.into_iter().flat_map(|level| (1..=agents.len()).map(move |n| (level, n))).any(
        |(level, members)| {
            if !allowed(level, members) {
                return false;
            }
            let exact = Wanted { level: Some(level), members: Some(members), ..wanted.clone() };
            let Ok(shapes) = shapes(&exact, 64) else { return false };
            let Some(need) = shapes[0].need(rate) else { return false };
            (0_u32..1 << agents.len()).any(|set| {
                let chosen: Vec<&AgentState> = (0..)
                    .zip(agents)
                    .filter(|(at, _)| set >> at & 1 == 1)
                    .map(|(_, agent)| agent)
                    .collect();
                let domains: BTreeSet<_> = chosen.iter().map(|agent| domain.of(agent)).collect();
                chosen.len() == members
                    && domains.len() == members
                    && chosen.iter().all(|agent| agent.usable && agent.left.holds(&need))
            })
        },
    )
}

/// The kind of domain over which it can be spread, the widest that is allowed.
fn possible_over(wanted: &Wanted, rate: Rate, agents: &[AgentState]) -> Option<Domain> {
    let narrower = [Domain::Rack, Domain::Host, Domain::Agent];
    let allowed =
        |domain: &Domain| *domain == wanted.spread || (wanted.may_share && *domain < wanted.spread);
    narrower.into_iter().filter(allowed).find(|domain| is_possible(wanted, rate, *domain, agents))
}

/// Over what members are spread instead, how many are in one domain, and whether that may be lost.
fn shared(placement: &Placement) -> Option<(Domain, usize, bool)> {
    placement.reasons.iter().find_map(|reason| {
        if let Reason::Shared { distinct, most, survives, .. } = reason {
            return Some((*distinct, *most, *survives));
        }
        None
    })
}

fn check(wanted: &Wanted, placement: &Placement, agents: &[AgentState]) {
    let members: Vec<&AgentState> = placement
        .members
        .iter()
        .map(|id| agents.iter().find(|agent| agent.id == *id).unwrap())
        .collect();
    let distinct: BTreeSet<_> = placement.members.iter().collect();
    assert_eq!(distinct.len(), members.len());
    assert!(members.iter().all(|agent| agent.usable && agent.left.holds(&placement.each)));
    assert!(placement.capacity_bytes >= wanted.size_bytes);
    let Placement { level, chunk_len, .. } = *placement;
    let geometry =
        netraid_raid::geometry::Geometry::new(level, members.len(), chunk_len, 512, 0, 0).unwrap();
    assert!(geometry.tolerance() >= u32::from(wanted.survives));
    // At least what the data itself takes of each.
    let k = u64::from(geometry.data_columns());
    assert!(placement.each.space_bytes * k > wanted.size_bytes);
    let in_domain = |domain: Domain| {
        let all =
            |one: &&AgentState| members.iter().filter(|it| domain.of(it) == domain.of(one)).count();
        members.iter().map(all).max().unwrap()
    };
    match shared(placement) {
        None => assert_eq!(in_domain(wanted.spread), 1),
        Some((distinct, most, survives)) => {
            assert!(wanted.may_share && in_domain(distinct) == 1);
            assert_eq!(in_domain(wanted.spread), most);
            assert_eq!(survives, most <= usize::from(wanted.survives));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn whatever_is_possible_is_found_and_whatever_is_found_is_possible(
        wanted in wanted(), agents in cluster(6), turn in 0_usize..6,
    ) {
        let answer = place(&wanted, &agents);
        let possible = possible_over(&wanted, wanted.rate, &agents);
        match &answer {
            Ok(placement) => {
                check(&wanted, placement, &agents);
                let shared = shared(placement).map(|(distinct, _, _)| distinct);
                prop_assert_eq!(possible, Some(shared.unwrap_or(wanted.spread)));
            }
            Err(refusal) => {
                prop_assert_eq!(possible, None, "{}", refusal);
                match &refusal.offer {
                    Some(offer) => {
                        prop_assert!(offer.rate < wanted.rate && offer.rate > Rate::ZERO);
                        let more = Rate(offer.rate.0 + 1);
                        prop_assert_eq!(possible_over(&wanted, more, &agents), None);
                        let modest = Wanted { rate: offer.rate, ..wanted.clone() };
                        check(&modest, &offer.placement, &agents);
                        prop_assert_eq!(&place(&modest, &agents).unwrap(), &offer.placement);
                    }
                    None => prop_assert_eq!(possible_over(&wanted, Rate(1), &agents), None),
                }
            }
        }
        // Whatever the order in which they come.
        let mut turned = agents.clone();
        turned.rotate_left(turn.min(agents.len()));
        prop_assert_eq!(place(&wanted, &turned), answer);
    }

    /// As many of one kind as there can be at all, whoever has how much left.
    #[test]
    fn no_choice_of_agents_admits_more_of_the_same(
        fits in prop::collection::vec((0_u64..9, 0_u64..100, 0_u8..6), 1..9),
        members in 1_usize..5,
    ) {
        let wanted = Wanted { survives: 0, members: Some(members), ..Wanted::new(1 << 30, mb(10)) };
        let need = shape_of(&wanted).need(wanted.rate).unwrap();
        let mut cluster = agents(u8::try_from(fits.len()).unwrap(), Resources::default());
        let mut hosts = [0_u64; 6];
        for ((times, more, host), agent) in fits.iter().zip(&mut cluster) {
            agent.host = host.to_string();
            agent.left = Resources {
                space_bytes: need.space_bytes * times + need.space_bytes * more / 100,
                device: Rate(need.device.0 * 10),
                network: Rate(need.network.0 * times + more),
            };
            hosts[usize::from(*host)] += times;
        }
        // A host is in each placement once at most.
        let can = |count: u64| {
            hosts.iter().map(|times| (*times).min(count)).sum::<u64>() >= count * members as u64
        };
        let most = (0..=100).take_while(|count| can(*count)).last().unwrap();
        prop_assert_eq!(admitted(&wanted, &mut cluster), most);
    }

    /// Nobody is promised what others were, whatever is asked for one after the other.
    #[test]
    fn agents_are_never_asked_for_more_than_they_have(
        requests in prop::collection::vec(wanted(), 1..12), mut agents in cluster(12),
    ) {
        for wanted in requests {
            match place(&wanted, &agents) {
                Ok(placement) => {
                    check(&wanted, &placement, &agents);
                    book(&mut agents, &placement);
                }
                Err(refusal) => if let Some(offer) = refusal.offer {
                    check(&wanted, &offer.placement, &agents);
                    book(&mut agents, &offer.placement);
                },
            }
        }
    }
}
