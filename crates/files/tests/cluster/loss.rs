//! Agents that are lost while data is written and read, and a mediator that is away.

use std::time::{Duration, Instant};

use crate::common::{
    House, LIMIT, assert_holds, bytes, data, open, soon, to_read, to_write, until,
};
use netraid_block::Pool;
use netraid_files::{Data, Error, VolumeOptions};

const LEN: usize = 3 << 20;
/// Bytes of one write.
const STEP: usize = 50_000;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_lost_while_writing_and_reading() {
    let mut house = House::new(4).await;
    let cluster = house.cluster.clone();
    let create = data("/x", LEN as u64, 5, 3);
    let mut writing = Data::create(&cluster, &create, soon(), &Pool::new()).await.unwrap();
    let agents = |entry: &netraid_cluster::mediator::Entry| {
        let members = &entry.stored.as_ref().unwrap().members;
        members.iter().map(|member| member.agent).collect::<Vec<_>>()
    };
    let before = agents(writing.volume().unwrap().entry());
    let mut expected = Vec::new();
    while expected.len() < LEN {
        if expected.len() == 10 * STEP {
            house.stop_agent(house.place_of(before[1]));
        }
        let from = bytes(1, expected.len() as u64, STEP.min(LEN - expected.len()));
        assert_eq!(writing.write(&from).await.unwrap(), from.len());
        expected.extend_from_slice(&from);
    }
    assert_holds(&writing, &expected).await;
    // Rebuilt elsewhere, while it is written on.
    let began = Instant::now();
    let mut version = 2;
    loop {
        let at = usize::try_from(version * 77_777).unwrap() % (LEN - STEP);
        let from = bytes(version, at as u64, STEP);
        writing.write_at(at as u64, &from).await.unwrap();
        expected[at..at + STEP].copy_from_slice(&from);
        version += 1;
        let after = agents(&cluster.stat("/x").await.unwrap());
        if after != before && writing.volume().unwrap().whole(Duration::ZERO).await.unwrap() {
            break;
        }
        assert!(began.elapsed() < LIMIT, "not rebuilt");
    }
    writing.close().await.unwrap();
    // That it is rebuilt is known, although it was closed before anybody looked.
    let members = cluster.stat("/x").await.unwrap().stored.unwrap().members;
    assert!(members.iter().all(|member| !member.fresh), "{members:?}");

    // What is there now stands the loss of another, that a reader does not notice.
    let reading = open(&cluster, "/x", to_read()).await;
    house.stop_agent(house.place_of(before[0]));
    assert_holds(&reading, &expected).await;
    reading.close().await.unwrap();
    // Nor one that comes after.
    let reading = open(&cluster, "/x", to_read()).await;
    assert_holds(&reading, &expected).await;
    reading.close().await.unwrap();
    house.nothing_is_open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mediator_that_is_away_is_not_missed_until_the_plan_ends() {
    let mut house = House::new(3).await;
    let cluster = house.cluster.clone();
    let term = Duration::from_secs(6);
    let options = VolumeOptions { term: Some(term), ..to_write() };
    let create = data("/x", LEN as u64, 5, 3);
    let began = Instant::now();
    let mut writing = Data::create(&cluster, &create, options.clone(), &Pool::new()).await.unwrap();
    let mut expected = vec![0; LEN];
    let mut version = 1;
    let mut work = async |writing: &mut Data, until: Duration| {
        while began.elapsed() < until {
            let at = usize::try_from(version * 77_777).unwrap() % (LEN - STEP);
            let from = bytes(version, at as u64, STEP);
            writing.write_at(at as u64, &from).await?;
            expected[at..at + STEP].copy_from_slice(&from);
            let mut into = vec![0; STEP];
            writing.read_at(at as u64, &mut into).await?;
            assert!(into == from);
            version += 1;
        }
        Ok::<_, Error>(())
    };
    house.stop_mediator();
    // Longer than to the renewal, less than to the end.
    work(&mut writing, term.mul_f64(0.6)).await.unwrap();
    house.start_mediator();
    // It is renewed: it lasts for longer than it was asked for.
    work(&mut writing, term * 2).await.unwrap();
    let length = writing.length();
    writing.close().await.unwrap();
    let mut writing = open(&cluster, "/x", options).await;
    assert_eq!(writing.length(), length);
    // Away for too long: it is said so, and nothing hangs.
    house.stop_mediator();
    let began_again = began.elapsed();
    let error = tokio::time::timeout(2 * LIMIT, work(&mut writing, began_again + LIMIT)).await;
    let error = error.expect("it hangs").unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    // Whoever runs it may have ended before it is asked to.
    tokio::time::timeout(LIMIT, async {
        while writing.volume().unwrap().handle().status().await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert!(tokio::time::timeout(LIMIT, writing.close()).await.expect("it hangs").is_err());
    house.start_mediator();
    house.nothing_is_open().await;
    // Nobody closed it: only a writer can bring it in order.
    let reading = open(&cluster, "/x", to_write()).await;
    assert_eq!(reading.length(), length);
    reading.close().await.unwrap();
}

/// An idle volume did not look, so that the next agent that was lost took it along.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_volume_has_a_lost_member_replaced() {
    let mut house = House::new(4).await;
    let cluster = house.cluster.clone();
    let create = data("/x", LEN as u64, 5, 3);
    let mut writing = Data::create(&cluster, &create, soon(), &Pool::new()).await.unwrap();
    let expected = bytes(1, 0, LEN);
    assert_eq!(writing.write(&expected).await.unwrap(), LEN);
    writing.flush().await.unwrap();
    let agents = || async {
        let members = cluster.stat("/x").await.unwrap().stored.unwrap().members;
        members.iter().map(|member| member.agent).collect::<Vec<_>>()
    };
    let before = agents().await;
    // Until the array has nothing to do any more, which takes it about a second.
    let volume = writing.volume().unwrap();
    let is_idle =
        || async { volume.handle().status().await.unwrap().log.unwrap().dirty_bytes == 0 };
    until("the log is home", is_idle).await;
    house.stop_agent(house.place_of(before[1]));
    let (agents, before) = (&agents, &before);
    let is_replaced = || async move {
        agents().await[1] != before[1] && volume.whole(Duration::ZERO).await.unwrap()
    };
    until("the lost member is rebuilt elsewhere", is_replaced).await;
    house.stop_agent(house.place_of(before[0]));
    assert_holds(&writing, &expected).await;
    writing.close().await.unwrap();
    house.nothing_is_open().await;
}

/// Who has open what is removed by force is told, and keeps nobody from anything.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_by_force_is_lost_to_who_has_it_open() {
    let house = House::new(3).await;
    let cluster = house.cluster.clone();
    let create = data("/x", LEN as u64, 5, 3);
    let mut writing = Data::create(&cluster, &create, soon(), &Pool::new()).await.unwrap();
    let from = bytes(1, 0, STEP);
    assert_eq!(writing.write(&from).await.unwrap(), STEP);
    writing.flush().await.unwrap();
    cluster.remove("/x", true).await.unwrap();
    let lost = async {
        while writing.write_at(0, &from).await.is_ok() && writing.flush().await.is_ok() {}
    };
    tokio::time::timeout(LIMIT, lost).await.expect("it is written to what is gone");
    assert!(tokio::time::timeout(LIMIT, writing.close()).await.expect("it hangs").is_err());
    house.nothing_is_open().await;
    // Another of that name is another.
    let mut again = Data::create(&cluster, &create, soon(), &Pool::new()).await.unwrap();
    assert_eq!(again.length(), 0);
    assert_eq!(again.write(&from).await.unwrap(), STEP);
    again.close().await.unwrap();
    house.nothing_is_open().await;
}

/// An array that was never made lacks who is lost before it is.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_opened_is_opened_without_a_lost_agent() {
    let mut house = House::new(4).await;
    let cluster = house.cluster.clone();
    let expected = bytes(1, 0, LEN);
    for (level, members, survives) in [(1, 2, 1), (5, 3, 1), (6, 4, 2), (10, 4, 1)] {
        let path = format!("/level/{level}");
        let made = cluster.create(&data(&path, LEN as u64, level, members)).await.unwrap();
        let agents = made.stored.unwrap().members;
        let lost: Vec<_> = agents[..survives].iter().map(|one| house.place_of(one.agent)).collect();
        for at in &lost {
            house.stop_agent(*at);
        }
        let mut writing = open(&cluster, &path, to_write()).await;
        assert_eq!(writing.write(&expected).await.unwrap(), LEN);
        writing.close().await.unwrap();
        assert_holds(&open(&cluster, &path, to_read()).await, &expected).await;
        for at in lost {
            house.start_agent(at);
        }
        house.nothing_is_open().await;
        // Nothing of it is on the one that is back: it is rebuilt there, or elsewhere.
        let writing = open(&cluster, &path, soon()).await;
        assert!(writing.volume().unwrap().whole(LIMIT).await.unwrap(), "level {level}");
        writing.close().await.unwrap();
        let other = house.place_of(agents[survives].agent);
        house.stop_agent(other);
        assert_holds(&open(&cluster, &path, to_read()).await, &expected).await;
        house.start_agent(other);
    }
    // Without redundancy there is nothing to go on with.
    let made = cluster.create(&data("/level/0", LEN as u64, 0, 2)).await.unwrap();
    let lost = house.place_of(made.stored.unwrap().members[0].agent);
    house.stop_agent(lost);
    let refused = Data::open(&cluster, "/level/0", to_write(), &Pool::new()).await;
    assert!(matches!(refused, Err(Error::Mediator(_) | Error::Array { .. })), "{refused:?}");
}
