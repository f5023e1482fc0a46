//! Plans: tokens, leases, rates, renewals, releases, members that are lost.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{CAPACITY, House, code, copy_store, opening, reachable};
use netraid_cluster::{
    Code,
    access::Role,
    agent::{FaultCode, Operation, rates_of},
    mediator::{
        CheckReport, Entry, Mode, Open, PlanBeat, PlanBeaten, PlanPage, Replace, SetState,
        TransferPlan,
    },
    now,
};
use netraid_control::{
    clients::Process,
    derived::Rights,
    keys::{KEY_LEN, Ring, RootKey, Rotation},
    lease::READERS_OF_ONE_MAX,
    ledger::{Hold, Purpose},
    token::{AgentView, Denied, Initiator, Secret, SegmentInfo, Token, admit},
    units::{AllotmentId, Generation, MediatorId, Moment, PlanId, Rate, Resources, SegmentId},
};
use serde::de::IgnoredAny;

/// What the agent of a member makes of its token.
pub(crate) fn token(house: &House, plan: &TransferPlan, at: usize) -> Token {
    admitted(house, plan, at, now()).unwrap()
}

/// The same by the agent's clock.
pub(crate) fn admitted(
    house: &House,
    plan: &TransferPlan,
    at: usize,
    now: Moment,
) -> Result<Token, Denied> {
    let member = &plan.members[at];
    let inner = &house.agent(member.agent).inner;
    let keys = inner.keys.lock().unwrap();
    let mediator = inner.mediator.lock().unwrap().unwrap();
    let segment = |whose, id| {
        assert_eq!(whose, mediator);
        let report = inner.segments.lock().unwrap().get(&id).cloned()?;
        let (generation, capacity) = (report.generation, report.len_bytes);
        Some(SegmentInfo { generation, capacity, block_len: 512 })
    };
    let is_revoked = |_, plan| inner.revoked.lock().unwrap().contains_key(&plan);
    let (agent, is_revoked) = (member.agent, &is_revoked);
    let view = AgentView { agent, keys: &keys, segment: &segment, is_revoked };
    let initiator = "iqn.2026-01.netraid:client";
    let proves = |secret: &Secret| secret.is(&member.chap_secret);
    let grant = admit(&member.chap_name, initiator, &view, now, proves)?;
    assert_eq!((grant.token().segment, grant.token().plan), (member.segment, plan.plan));
    Ok(*grant.token())
}

async fn check(house: &House) -> CheckReport {
    house.admin.get("/v1/check").await.unwrap()
}

#[tokio::test]
async fn a_plan_is_booked_renewed_and_released() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let plan = house.open(&opening("/x", Mode::Write, 20_000_000)).await.unwrap();
    assert_eq!(
        (plan.members.len(), plan.generation, plan.rate),
        (3, Generation(1), Rate(20_000_000))
    );
    for at in 0..3 {
        let token = token(&house, &plan, at);
        assert_eq!(token.initiator, Initiator::named("iqn.2026-01.netraid:client"));
        assert_eq!((token.terms.generation, token.terms.rights), (Generation(1), Rights::ALL));
        let agent = house.agent(plan.members[at].agent);
        let (ledger, id) = (agent.inner.ledger.lock().unwrap(), rates_of(plan.plan));
        let rates = ledger.entries().find(|entry| entry.id == id).unwrap();
        assert_eq!(rates.resources.device, token.rates.floor);
        assert!(rates.resources.device >= Rate(10_000_000));
        let segments = agent.inner.segments.lock().unwrap();
        assert_eq!(segments[&plan.members[at].segment].generation, Generation(1));
    }
    let report = check(&house).await;
    assert_eq!((report.differences, report.segments, report.allotments), (vec![], 3, 6));
    let renewed: TransferPlan =
        house.client.post(&format!("/v1/plans/{}/renew", plan.plan), &()).await.unwrap();
    assert_eq!((renewed.plan, renewed.generation), (plan.plan, plan.generation));
    // Asked again because the answer was lost, it is the same plan.
    let again = Open { plan: Some(plan.plan), ..opening("/x", Mode::Write, 20_000_000) };
    assert_eq!(house.open(&again).await.unwrap().generation, Generation(1));
    let other = Open { rate: Rate(1), ..again };
    assert_eq!(code(house.open(&other).await), Code::Conflict);
    let page: PlanPage = house.client.get("/v1/plans").await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.plan).collect::<Vec<_>>(), [plan.plan]);
    house.close(plan.plan).await.unwrap();
    for agent in &house.agents {
        assert_eq!(agent.booked().device, Rate(0));
        assert_eq!(*agent.inner.ended.lock().unwrap(), [plan.plan]);
    }
    let gone = format!("/v1/plans/{}/renew", plan.plan);
    assert_eq!(code(house.client.post::<_, TransferPlan>(&gone, &()).await), Code::Absent);
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_with_the_most_that_can() {
    let house = House::new(3).await;
    for path in ["/a", "/b", "/c"] {
        house.create(path, 1 << 30).await.unwrap();
    }
    // Each member gives half of it and a bit, and a sixteenth more for rebuilds: two fit in 100 MB/s,
    // three do not.
    let ask = |path: &str, rate| opening(path, Mode::Write, rate);
    let mut plans = Vec::new();
    for path in ["/a", "/b"] {
        plans.push(house.open(&ask(path, 75_000_000)).await.unwrap());
    }
    let refused = house.open(&ask("/c", 75_000_000)).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Short);
    let offer = problem.offer.as_ref().unwrap().rate;
    assert!(offer > Rate(20_000_000) && offer < Rate(75_000_000), "{offer:?}");
    // It is exact.
    assert_eq!(code(house.open(&ask("/c", offer.0 + 1)).await), Code::Short);
    plans.push(house.open(&ask("/c", offer.0)).await.unwrap());
    // Nothing is left of what was refused.
    assert_eq!(check(&house).await.differences, []);
    // For the placement as well.
    let create = crate::common::data("/d", 1 << 30);
    let layout = netraid_cluster::mediator::Layout { rate: Rate(10_000_000), ..create.layout };
    let create = netraid_cluster::mediator::Create { layout, ..create };
    let refused = house.client.post::<_, Entry>("/v1/names", &create).await.unwrap_err();
    assert_eq!(refused.problem().unwrap().code, Code::Short);
    for plan in plans {
        house.close(plan.plan).await.unwrap();
    }
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
}

/// What was booked on some when another one refuses does not count against the offer.
#[tokio::test]
async fn the_offer_is_what_the_weakest_agent_has_left() {
    let mut house = House::new(2).await;
    let less = Rate(CAPACITY.device.0 / 2);
    house.add(3, Resources { device: less, network: less, ..CAPACITY }).await;
    house.create("/x", 1 << 30).await.unwrap();
    // Half of it and a bit of each member: too much for the third.
    let refused = house.open(&opening("/x", Mode::Write, 99_000_000)).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Short);
    let offer = problem.offer.as_ref().unwrap().rate;
    assert!(offer > Rate(80_000_000) && offer < Rate(99_000_000), "{offer:?}");
    assert!(house.agents.iter().all(|agent| agent.booked().device == Rate(0)));
    assert_eq!(code(house.open(&opening("/x", Mode::Write, offer.0 + 1)).await), Code::Short);
    let plan = house.open(&opening("/x", Mode::Write, offer.0)).await.unwrap();
    house.close(plan.plan).await.unwrap();
    assert_eq!(check(&house).await.differences, []);
}

/// What is booked at once is ended where it was booked when another agent refuses, however long that takes.
#[tokio::test]
async fn a_refused_rate_is_ended_on_an_agent_that_cannot_do_so_at_first() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    // The mediator of others takes all that the third has.
    let hold = Hold {
        id: AllotmentId([9; 16]),
        segment: SegmentId([9; 16]),
        generation: None,
        purpose: Purpose::Client,
        resources: Resources { space_bytes: 0, ..CAPACITY },
        for_ms: 60_000,
    };
    let full = &house.agents[2].inner.ledger;
    full.lock().unwrap().hold(now(), MediatorId([9; 16]), &hold).unwrap();
    let slow = &house.agents[0];
    slow.inner.keeps_plans.store(true, Ordering::Relaxed);
    let plan = PlanId([7; 16]);
    let open = Open { plan: Some(plan), ..opening("/x", Mode::Write, 20_000_000) };
    assert_eq!(code(house.open(&open).await), Code::Short);
    assert_eq!((slow.booked().device > Rate(0), house.agents[1].booked().device), (true, Rate(0)));
    assert_eq!(check(&house).await.differences, [], "the plan is known");
    let again = code(house.open(&open).await);
    assert_eq!(again, Code::Conflict, "what is left of it would be taken for the new one's");
    slow.inner.keeps_plans.store(false, Ordering::Relaxed);
    for _ in 0..100 {
        if slow.booked().device == Rate(0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(slow.booked().device, Rate(0));
    // Its lease is free.
    house.close(house.open(&opening("/x", Mode::Write, 0)).await.unwrap().plan).await.unwrap();
}

#[tokio::test]
async fn many_who_ask_at_once_get_what_there_is_and_no_more() {
    let house = House::new(5).await;
    let mut each = Vec::new();
    for number in 0..8 {
        let path = format!("/v{number}");
        let mut create = crate::common::data(&path, 1 << 30);
        create.layout.members = Some(5);
        house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
        each.push(opening(&path, Mode::Write, 65_000_000));
    }
    // 65 MB/s over four data columns are some 18.9 MB/s of each of five, with a sixteenth for
    // rebuilds: five of eight.
    let opened = futures_util::future::join_all(each.iter().map(|open| house.open(open))).await;
    let granted = opened.iter().filter(|opened| opened.is_ok()).count();
    assert_eq!(granted, 5, "{opened:?}");
    for refused in opened.into_iter().filter(Result::is_err) {
        assert_eq!(code(refused), Code::Short);
    }
    assert!(house.agents.iter().all(|agent| agent.booked().network <= CAPACITY.network));
    assert_eq!(check(&house).await.differences, []);
}

#[tokio::test]
async fn a_writer_is_alone_and_readers_are_many() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let write = opening("/x", Mode::Write, 0);
    let first = house.open(&write).await.unwrap();
    assert_eq!(code(house.open(&write).await), Code::Conflict);
    assert_eq!(code(house.open(&opening("/x", Mode::Read, 0)).await), Code::Conflict);
    let taken = house.open(&Open { take_over: true, ..write.clone() }).await.unwrap();
    assert_eq!((first.generation, taken.generation), (Generation(1), Generation(2)));
    // The agents know it before the new one has its tokens.
    for agent in &house.agents {
        let segments = agent.inner.segments.lock().unwrap();
        assert!(segments.values().all(|segment| segment.generation == Generation(2)));
    }
    let renew = |plan: PlanId| {
        let path = format!("/v1/plans/{plan}/renew");
        let client = house.client.clone();
        async move { client.post::<_, TransferPlan>(&path, &()).await }
    };
    assert_eq!(code(renew(first.plan).await), Code::Absent);
    renew(taken.plan).await.unwrap();
    let state = SetState { formatted: true, length_bytes: Some(5), rebuilt: vec![] };
    let path = format!("/v1/plans/{}/state", taken.plan);
    let entry: Entry = house.client.post(&path, &state).await.unwrap();
    assert_eq!((entry.length_bytes, entry.stored.unwrap().formatted), (5, true));
    house.close(taken.plan).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(house.open(&opening("/x", Mode::Read, 1_000_000)).await.unwrap());
    }
    assert!(readers.iter().all(|reader| reader.generation == Generation(2)));
    let rights = token(&house, &readers[0], 0).terms.rights;
    assert!(!rights.contain(Rights::WRITE) && rights.contain(Rights::READ));
    assert_eq!(code(house.open(&write).await), Code::Conflict);
    let state = format!("/v1/plans/{}/state", readers[0].plan);
    let set = SetState { formatted: false, length_bytes: Some(9), rebuilt: vec![] };
    assert_eq!(code(house.client.post::<_, Entry>(&state, &set).await), Code::Conflict);
    // Somebody uses it; by force it goes all the same.
    assert_eq!(code(house.client.delete::<IgnoredAny>("/v1/name?path=/x").await), Code::Conflict);
    house.client.delete::<IgnoredAny>("/v1/name?path=/x&force=true").await.unwrap();
    assert!(house.agents.iter().all(|agent| agent.booked() == Resources::default()));
    assert_eq!(code(renew(readers[0].plan).await), Code::Absent);
}

/// The largest limit, by requests that cost each member more than they move.
#[tokio::test]
async fn a_limit_that_no_token_can_say_is_none() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let open = Open {
        limit: Some(Rate((1 << 48) - 1)),
        request_bytes: Some(512),
        ..opening("/x", Mode::Write, 0)
    };
    for _ in 0..2 {
        let plan = house.open(&open).await.unwrap();
        assert_eq!(token(&house, &plan, 0).rates.limit, None);
        house.close(plan.plan).await.unwrap();
    }
}

/// Who has it goes on, at the same generation, with the tokens that it has.
async fn goes_on(house: &House, plan: &TransferPlan) {
    let renew = format!("/v1/plans/{}/renew", plan.plan);
    let renewed: TransferPlan = house.client.post(&renew, &()).await.unwrap();
    assert_eq!((renewed.generation, renewed.rate), (plan.generation, plan.rate));
    for at in 0..plan.members.len() {
        assert_eq!(token(house, plan, at).terms.generation, plan.generation);
    }
    assert_eq!(house.plans().await, [plan.plan]);
}

#[tokio::test]
async fn a_take_over_that_is_refused_leaves_the_holder_as_it_is() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let holder = house.open(&opening("/x", Mode::Write, 75_000_000)).await.unwrap();
    let take = |mode, rate| Open { take_over: true, ..opening("/x", mode, rate) };
    // More than there is, also with what the holder would give up.
    let refused = house.open(&take(Mode::Write, 250_000_000)).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Short);
    let offer = problem.offer.as_ref().unwrap().rate;
    assert!(offer > Rate(100_000_000) && offer < Rate(250_000_000), "{offer:?}");
    goes_on(&house, &holder).await;
    // Agents that nobody knows yet to be gone: one of three is enough neither to serve nor to shut out.
    let deaf = |is_deaf| house.agents[..2].iter().for_each(|agent| agent.set_deaf(is_deaf));
    deaf(true);
    for mode in [Mode::Write, Mode::Read] {
        assert_eq!(code(house.open(&take(mode, 0)).await), Code::Unavailable);
    }
    deaf(false);
    reachable(&house, 3).await;
    goes_on(&house, &holder).await;
    // What fits beside what the holder gives up is given.
    let taken = house.open(&take(Mode::Write, offer.0)).await.unwrap();
    assert_eq!((taken.generation, taken.rate), (Generation(2), offer));
    let renew = format!("/v1/plans/{}/renew", holder.plan);
    assert_eq!(code(house.client.post::<_, TransferPlan>(&renew, &()).await), Code::Absent);
}

/// Opens it to write, and says that it has labels, and so a log where its level has one.
async fn write_formatted(house: &House, path: &str) -> TransferPlan {
    let writing = house.open(&opening(path, Mode::Write, 0)).await.unwrap();
    let state = SetState { formatted: true, length_bytes: None, rebuilt: Vec::new() };
    let says = format!("/v1/plans/{}/state", writing.plan);
    house.client.post::<_, Entry>(&says, &state).await.unwrap();
    writing
}

#[tokio::test]
async fn a_reader_does_not_shut_out_a_writer_whose_log_it_could_not_bring_home() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let holder = write_formatted(&house, "/x").await;
    let read = Open { take_over: true, ..opening("/x", Mode::Read, 0) };
    let refused = house.open(&read).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Conflict);
    assert!(problem.detail.contains("its log must be brought home"), "{}", problem.detail);
    goes_on(&house, &holder).await;
    // A writer brings it home; and once it was closed there is nothing to bring.
    let write = Open { take_over: true, ..opening("/x", Mode::Write, 0) };
    let taken = house.open(&write).await.unwrap();
    house.close(taken.plan).await.unwrap();
    house.open(&read).await.unwrap();
    // Without a log nothing is in the way.
    let mut create = crate::common::data("/bare", 1 << 20);
    (create.layout.level, create.layout.survives) = (Some(0), 0);
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
    let holder = write_formatted(&house, "/bare").await;
    let read = Open { take_over: true, ..opening("/bare", Mode::Read, 0) };
    assert!(house.open(&read).await.unwrap().generation > holder.generation);
}

/// Whether an agent's answer to a token is that its plan was taken back, or that it is fenced.
#[tokio::test]
async fn a_lost_member_is_replaced_elsewhere_and_its_segment_removed_later() {
    let house = House::new(4).await;
    let mut create = crate::common::data("/x", 1 << 30);
    create.layout.members = Some(3);
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
    let plan = house.open(&opening("/x", Mode::Write, 10_000_000)).await.unwrap();
    let lost = plan.members[1].clone();
    house.agent(lost.agent).set_deaf(true);
    let path = format!("/v1/plans/{}/replace", plan.plan);
    let replace = Replace { member: 1, segment: lost.segment };
    let replaced: TransferPlan = house.client.post(&path, &replace).await.unwrap();
    let new = &replaced.members[1];
    assert!(new.fresh && new.reachable && !replaced.members[0].fresh);
    assert!(plan.members.iter().all(|member| member.agent != new.agent));
    assert_eq!(new.rate, lost.rate);
    let spare = house.agent(new.agent);
    assert_eq!(spare.inner.segments.lock().unwrap()[&new.segment].generation, plan.generation);
    // Asked again, nothing more happens.
    let again: TransferPlan = house.client.post(&path, &replace).await.unwrap();
    assert_eq!(again.members[1].segment, new.segment);
    let rebuilt = SetState { formatted: false, length_bytes: None, rebuilt: vec![new.segment] };
    let state = format!("/v1/plans/{}/state", plan.plan);
    house.client.post::<_, Entry>(&state, &rebuilt).await.unwrap();
    let renewed: TransferPlan =
        house.client.post(&format!("/v1/plans/{}/renew", plan.plan), &()).await.unwrap();
    assert!(!renewed.members[1].fresh);
    // The lost one comes back, and has nothing of it any more.
    house.agent(lost.agent).set_deaf(false);
    let old = house.agent(lost.agent);
    for _ in 0..100 {
        if old.inner.segments.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(old.allotments(), 0);
    assert_eq!(check(&house).await.differences, []);
}

#[tokio::test]
async fn a_volume_is_opened_without_an_agent_that_is_away_but_not_against_an_old_writer() {
    let house = House::new(3).await;
    house.create("/five", 1 << 30).await.unwrap();
    let mut create = crate::common::data("/one", 1 << 30);
    create.layout.level = Some(1);
    create.layout.members = Some(2);
    let mirror: Entry = house.client.post("/v1/names", &create).await.unwrap();
    let old = house.open(&Open { for_ms: Some(600_000), ..opening("/one", Mode::Write, 0) }).await;
    old.unwrap();
    let away = mirror.stored.unwrap().members[0].agent;
    house.agent(away).set_deaf(true);
    // One of three: what is left of them cannot serve anybody.
    let plan = house.open(&opening("/five", Mode::Write, 1_000_000)).await.unwrap();
    for member in &plan.members {
        assert_eq!(member.reachable, member.agent != away);
        assert_eq!(member.rate > Rate::ZERO, member.agent != away);
    }
    // One of a mirror serves the old writer as well as the new one.
    let take = Open { take_over: true, ..opening("/one", Mode::Write, 0) };
    assert_eq!(code(house.open(&take).await), Code::Unavailable);
    // The one that was away learns the generation when it is back.
    house.agent(away).set_deaf(false);
    let segment = plan.members.iter().find(|member| member.agent == away).unwrap().segment;
    let generation = || house.agent(away).inner.segments.lock().unwrap()[&segment].generation;
    for _ in 0..150 {
        if generation() == plan.generation {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(generation(), plan.generation);
    house.open(&take).await.unwrap();
}

#[tokio::test]
async fn rates_that_ended_on_an_agent_are_booked_again() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let plan = house.open(&opening("/x", Mode::Read, 10_000_000)).await.unwrap();
    let agent = house.agent(plan.members[2].agent);
    let mediator = agent.inner.mediator.lock().unwrap().unwrap();
    agent.inner.ledger.lock().unwrap().release(mediator, rates_of(plan.plan)).unwrap();
    assert_eq!(check(&house).await.differences.len(), 1);
    let path = format!("/v1/plans/{}/renew", plan.plan);
    let renewed: TransferPlan = house.client.post(&path, &()).await.unwrap();
    assert_eq!(renewed.members[2].rate, plan.members[2].rate);
    assert_eq!(check(&house).await.differences, []);
}

#[tokio::test]
async fn the_store_is_all_that_a_mediator_needs() {
    let mut house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let plan = house.open(&opening("/x", Mode::Write, 10_000_000)).await.unwrap();
    house.stop().await;
    house.start().await;
    let path = format!("/v1/plans/{}/renew", plan.plan);
    let renewed: TransferPlan = house.client.post(&path, &()).await.unwrap();
    assert_eq!((renewed.generation, renewed.rate), (plan.generation, plan.rate));
    assert_eq!(check(&house).await.differences, []);
    assert!(house.agents.iter().all(|agent| !agent.inner.is_deaf.load(Ordering::Relaxed)));
}

#[tokio::test]
async fn a_mediator_of_an_older_store_gives_no_generation_twice() {
    let mut house = House::new(3).await;
    house.create("/written", 1 << 30).await.unwrap();
    house.create("/read", 1 << 30).await.unwrap();
    let write = |path| opening(path, Mode::Write, 0);
    // As it is with most: written once before.
    for path in ["/written", "/read"] {
        house.close(house.open(&write(path)).await.unwrap().plan).await.unwrap();
    }
    let older = tempfile::tempdir().unwrap();
    house.stop().await;
    copy_store(house.directory.path(), older.path()).await;
    house.start().await;
    let forgotten = house.open(&write("/written")).await.unwrap();
    let read = house.open(&write("/read")).await.unwrap();
    house.stop().await;
    copy_store(older.path(), house.directory.path()).await;
    house.start().await;
    // The same number would be next.
    let id = PlanId([77; 16]);
    let again = Open { plan: Some(id), ..write("/written") };
    let plan = house.open(&again).await.unwrap();
    assert!(plan.generation > forgotten.generation);
    for at in 0..3 {
        assert!(admitted(&house, &forgotten, at, now()).is_err());
        assert!(admitted(&house, &plan, at, now()).is_ok());
    }
    // Asked again, since the answer was lost, it is the same one; also by a mediator that starts anew.
    assert_eq!(house.open(&again).await.unwrap().generation, plan.generation);
    house.stop().await;
    house.start().await;
    assert_eq!(house.open(&again).await.unwrap().generation, plan.generation);
    // Who only reads does not read beside a writer that nobody knows.
    let reads = house.open(&opening("/read", Mode::Read, 0)).await.unwrap();
    assert!(admitted(&house, &reads, 0, now()).is_ok());
    assert!(admitted(&house, &read, 0, now()).is_err());
}

#[tokio::test]
async fn an_agent_with_other_keys_of_the_same_numbers_gets_its_mediators() {
    let house = House::new(1).await;
    let inner = &house.agents[0].inner;
    let mark = inner.keys_mark();
    // As if the store were an older copy, in which other keys have these numbers.
    let mut other = Ring::<RootKey>::default();
    other.rotate(now(), &Rotation::default(), &[1; KEY_LEN]).unwrap();
    let mediator = inner.mediator.lock().unwrap().unwrap();
    inner.keys.lock().unwrap().set(mediator, other.of_agent(mediator, inner.id)).unwrap();
    assert_ne!(inner.keys_mark(), mark);
    let learnt = async {
        while inner.keys_mark() != mark {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), learnt).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_says_absurd_generations_uses_none_up() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let segments = &house.agents[0].inner.segments;
    segments.lock().unwrap().values_mut().for_each(|one| one.generation = Generation(u64::MAX));
    let plan = house.open(&opening("/x", Mode::Write, 0)).await.unwrap();
    assert!(plan.generation < Generation(100), "{:?}", plan.generation);
    let unreachable = plan.members.iter().filter(|member| !member.reachable);
    let agents: Vec<_> = unreachable.map(|member| member.agent).collect();
    assert_eq!(agents, [house.agents[0].inner.id]);
}

#[tokio::test]
async fn an_agent_that_names_larger_generations_again_and_again_is_left_out_and_named() {
    let house = House::new(3).await;
    house.create("/five", 1 << 30).await.unwrap();
    let mut create = crate::common::data("/one", 1 << 30);
    (create.layout.level, create.layout.members) = (Some(1), Some(2));
    let mirror: Entry = house.client.post("/v1/names", &create).await.unwrap();
    let liar = mirror.stored.unwrap().members[0].agent;
    house.agent(liar).inner.boasts.store(1, Ordering::Relaxed);
    // Two of three are enough, and the third one cannot serve anybody.
    for turn in 0..3 {
        let write = Open { take_over: true, ..opening("/five", Mode::Write, 0) };
        let plan = house.open(&write).await.unwrap();
        let left_out = plan.members.iter().filter(|member| !member.reachable);
        assert_eq!(left_out.map(|member| member.agent).collect::<Vec<_>>(), [liar]);
        // What it said counted once.
        assert_eq!(plan.generation, Generation(turn + 3));
        for (at, member) in plan.members.iter().enumerate().filter(|(_, one)| one.reachable) {
            assert_eq!(token(&house, &plan, at).terms.generation, plan.generation, "{member:?}");
        }
    }
    // One of a mirror could serve whoever was shut out, by what it says itself: who it is, is told.
    let refused = house.open(&opening("/one", Mode::Write, 0)).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Unavailable);
    assert!(problem.detail.contains(&format!("agent {liar} contradicts")), "{problem}");
    // It is believed again when it takes what it is asked to take.
    house.agent(liar).inner.boasts.store(0, Ordering::Relaxed);
    let plan = house.open(&opening("/one", Mode::Write, 0)).await.unwrap();
    assert!(plan.members.iter().all(|member| member.reachable));
}

#[tokio::test]
async fn who_may_only_read_shuts_nobody_out() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let (reader, _) = house.client_of(Role::Reader, None).await;
    let written = house.open(&opening("/x", Mode::Write, 0)).await.unwrap();
    for mode in [Mode::Read, Mode::Write] {
        let take = Open { take_over: true, ..opening("/x", mode, 0) };
        assert_eq!(code(reader.post::<_, TransferPlan>("/v1/plans", &take).await), Code::Forbidden);
    }
    let read = opening("/x", Mode::Read, 0);
    assert_eq!(code(reader.post::<_, TransferPlan>("/v1/plans", &read).await), Code::Conflict);
    // The writer's generation is in force still, on all agents.
    for (at, member) in written.members.iter().enumerate() {
        assert_eq!(token(&house, &written, at).terms.generation, written.generation);
        let segments = house.agent(member.agent).inner.segments.lock().unwrap();
        assert_eq!(segments[&member.segment].generation, written.generation);
    }
    // Whoever may write may read by force.
    let take = Open { take_over: true, ..read };
    assert!(house.open(&take).await.unwrap().generation > written.generation);
}

#[tokio::test]
async fn one_bearer_token_does_not_take_all_places_of_readers() {
    let house = House::new(1).await;
    let mut create = crate::common::data("/x", 1 << 20);
    (create.layout.level, create.layout.survives) = (Some(0), 0);
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
    let (eve, _) = house.client_of(Role::Reader, None).await;
    let read = opening("/x", Mode::Read, 0);
    for _ in 0..READERS_OF_ONE_MAX {
        eve.post::<_, TransferPlan>("/v1/plans", &read).await.unwrap();
    }
    let refused = eve.post::<_, TransferPlan>("/v1/plans", &read).await.unwrap_err();
    let detail = &refused.problem().unwrap().detail;
    assert!(detail.contains("128 plans of the same bearer token read /x"), "{detail}");
    house.open(&read).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_refuses_to_prolong_a_plan_is_not_taken_for_one_that_did() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let plan = house.open(&opening("/x", Mode::Write, 0)).await.unwrap();
    let refuses = |operation: &Operation| matches!(operation, Operation::ExtendPlan { .. });
    let agent = house.agent(plan.members[1].agent);
    agent.refuse(refuses, FaultCode::Invalid);
    let renew = format!("/v1/plans/{}/renew", plan.plan);
    let renewed: TransferPlan = house.client.post(&renew, &()).await.unwrap();
    let reachable = |plan: &TransferPlan| -> Vec<bool> {
        plan.members.iter().map(|member| member.reachable).collect()
    };
    assert_eq!(reachable(&renewed), [true, false, true]);
    *agent.inner.refuses.lock().unwrap() = None;
    let renewed: TransferPlan = house.client.post(&renew, &()).await.unwrap();
    assert_eq!(reachable(&renewed), [true; 3]);
}

#[tokio::test]
async fn the_clients_of_plans_are_heard_of_and_named_to_whoever_wants_what_they_have() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let refusal = async |path: &str| {
        let refused = house.open(&opening(path, Mode::Write, 0)).await.unwrap_err();
        refused.problem().unwrap().detail.clone()
    };
    let plan = house.open(&opening("/x", Mode::Write, 0)).await.unwrap().plan;
    let told = refusal("/x").await;
    assert!(told.contains("not heard of since the mediator started"), "{told}");
    let process = Process { host: "h7".to_owned(), pid: 4711 };
    let beats = format!("/v1/plans/{plan}/beat");
    let beat = PlanBeat { process: process.clone() };
    let beaten: PlanBeaten = house.client.post(&beats, &beat).await.unwrap();
    assert_eq!(beaten.beat_ms, 2000);
    let ends = format!("`netraid plan end {plan}`");
    for refused in [
        refusal("/x").await,
        house.client.delete::<IgnoredAny>("/v1/name?path=/x").await.unwrap_err().to_string(),
    ] {
        assert!(
            refused.contains("process 4711 on host h7") && refused.contains(&ends),
            "{refused}"
        );
    }
    let page: PlanPage = house.client.get("/v1/plans").await.unwrap();
    assert_eq!(page.entries[0].process, Some(process));
    assert!(page.entries[0].silent_ms.unwrap() < 5000);
    // Nobody speaks for another's plan, nor for one that has ended.
    let other = house.client_of(Role::Client, None).await.0;
    assert_eq!(code(other.post::<_, PlanBeaten>(&beats, &beat).await), Code::Absent);
    house.close(plan).await.unwrap();
    assert_eq!(code(house.client.post::<_, PlanBeaten>(&beats, &beat).await), Code::Absent);
    house.open(&opening("/x", Mode::Write, 0)).await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_silent_for_ten_seconds_is_shut_out_for_who_wants_what_it_has() {
    let house = House::new(3).await;
    for path in ["/silent", "/unheard"] {
        house.create(path, 1 << 30).await.unwrap();
    }
    let silent = house.open(&opening("/silent", Mode::Write, 0)).await.unwrap();
    let unheard = house.open(&opening("/unheard", Mode::Write, 0)).await.unwrap();
    let renew = |plan: &TransferPlan| format!("/v1/plans/{}/renew", plan.plan);
    let beat = PlanBeat { process: Process { host: "h7".to_owned(), pid: 4711 } };
    let beats = format!("/v1/plans/{}/beat", silent.plan);
    house.client.post::<_, PlanBeaten>(&beats, &beat).await.unwrap();
    assert_eq!(code(house.open(&opening("/silent", Mode::Write, 0)).await), Code::Conflict);
    tokio::time::sleep(Duration::from_millis(6000)).await;
    // A renewal is a sign of life, too.
    house.client.post::<_, TransferPlan>(&renew(&silent), &()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5000)).await;
    assert_eq!(code(house.open(&opening("/silent", Mode::Write, 0)).await), Code::Conflict);
    tokio::time::sleep(Duration::from_millis(5300)).await;
    // Nothing that a silent client has is removed, or gets another name, without a word of force.
    let removed = house.client.delete::<IgnoredAny>("/v1/name?path=/silent").await;
    assert_eq!(removed.unwrap_err().problem().map(|problem| problem.code), Some(Code::Conflict));
    let next = house.open(&opening("/silent", Mode::Write, 0)).await.unwrap();
    assert!(next.generation > silent.generation);
    assert!(admitted(&house, &silent, 0, now()).is_err(), "its tokens open nothing any more");
    assert_eq!(code(house.client.post::<_, PlanBeaten>(&beats, &beat).await), Code::Absent);
    // A program of before, which says nothing of itself, keeps its plan for its term.
    assert_eq!(code(house.open(&opening("/unheard", Mode::Write, 0)).await), Code::Conflict);
    house.client.post::<_, TransferPlan>(&renew(&unheard), &()).await.unwrap();
}
