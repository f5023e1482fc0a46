//! Arrays of which half is lost: what is left serves where it is known that nobody went on without it.

use std::time::{Duration, Instant};

use netraid_block::Pool;
use netraid_cluster::{Code, mediator::Entry};
use netraid_files::{Cluster, Data, Error, VolumeOptions};

use crate::common::{
    House, LIMIT, assert_holds, bytes, code, data, soon, to_read, to_write, writer_that_dies,
};

const LEN: usize = 3 << 20;

/// Where the members of something are now.
async fn members(house: &House, path: &str) -> Vec<usize> {
    let entry: Entry = house.cluster.stat(path).await.unwrap();
    let members = entry.stored.unwrap().members;
    members.iter().map(|member| house.place_of(member.agent)).collect()
}

/// Opens something, as soon as the mediator sees that agents are back.
async fn opened(cluster: &Cluster, path: &str, options: VolumeOptions) -> Result<Data, Error> {
    let began = Instant::now();
    loop {
        let end = Data::open(cluster, path, options.clone(), &Pool::new()).await;
        match end {
            Err(Error::Mediator(error)) if began.elapsed() < LIMIT => {
                assert_eq!(error.problem().map(|problem| problem.code), Some(Code::Unavailable));
            }
            end => return end,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes all of it, and closes it.
async fn write_whole(cluster: &Cluster, path: &str, options: VolumeOptions, from: &[u8]) {
    let mut writing = opened(cluster, path, options).await.unwrap();
    assert_eq!(writing.write_at(0, from).await.unwrap(), from.len());
    writing.close().await.unwrap();
}

/// Waits until all members hold everything.
async fn heal(house: &House, path: &str) {
    house.nothing_is_open().await;
    let writing = opened(&house.cluster, path, soon()).await.unwrap();
    assert!(writing.volume().unwrap().whole(LIMIT).await.unwrap(), "{path} is not whole");
    writing.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_closed_is_opened_without_one_half() {
    let mut house = House::new(4).await;
    let cluster = house.cluster.clone();
    for (level, count, half) in [(1, 2, 1), (10, 4, 2), (6, 4, 2)] {
        let path = format!("/level/{level}");
        cluster.create(&data(&path, LEN as u64, level, count)).await.unwrap();
        let first = bytes(1, 0, LEN);
        write_whole(&cluster, &path, to_write(), &first).await;
        let lost = members(&house, &path).await[..half].to_vec();
        lost.iter().for_each(|at| house.stop_agent(*at));
        // Who reads takes nothing from whoever reads later, or writes.
        for _ in 0..2 {
            assert_holds(&opened(&cluster, &path, to_read()).await.unwrap(), &first).await;
        }
        house.nothing_is_open().await;
        let second = bytes(2, 0, LEN);
        write_whole(&cluster, &path, to_write(), &second).await;
        lost.iter().for_each(|at| house.start_agent(*at));
        heal(&house, &path).await;
        // Those that were lost hold what was written without them.
        let others = members(&house, &path).await[half..].to_vec();
        others.iter().for_each(|at| house.stop_agent(*at));
        assert_holds(&opened(&cluster, &path, to_read()).await.unwrap(), &second).await;
        others.iter().for_each(|at| house.start_agent(*at));
        house.nothing_is_open().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_what_was_not_closed_is_not_opened() {
    let mut house = House::new(2).await;
    let cluster = house.cluster.clone();
    cluster.create(&data("/x", LEN as u64, 1, 2)).await.unwrap();
    write_whole(&cluster, "/x", to_write(), &bytes(1, 0, LEN)).await;
    let expected = bytes(2, 0, LEN);
    let plan = writer_that_dies(&house, "/x", &expected);
    cluster.end(plan).await.unwrap();
    let [one, other] = members(&house, "/x").await[..] else { panic!("two members") };
    for (lost, left) in [(one, other), (other, one)] {
        house.stop_agent(lost);
        let error = opened(&cluster, "/x", to_read()).await.unwrap_err();
        assert!(matches!(error, Error::Contested { .. }), "{error}");
        assert!(error.to_string().contains("start their agents"), "{error}");
        // It is as it was.
        house.start_agent(lost);
        house.nothing_is_open().await;
        assert!(members(&house, "/x").await.contains(&left));
    }
    heal(&house, "/x").await;
    house.stop_agent(one);
    assert_holds(&opened(&cluster, "/x", to_read()).await.unwrap(), &expected).await;
}

/// The half that was left behind when somebody wrote to the other one does not serve its old bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_that_was_away_while_a_writer_died_is_not_opened_alone() {
    let mut house = House::new(2).await;
    let cluster = house.cluster.clone();
    cluster.create(&data("/x", LEN as u64, 1, 2)).await.unwrap();
    write_whole(&cluster, "/x", to_write(), &bytes(1, 0, LEN)).await;
    let [old, new] = members(&house, "/x").await[..] else { panic!("two members") };
    house.stop_agent(old);
    let expected = bytes(2, 0, LEN);
    let plan = writer_that_dies(&house, "/x", &expected);
    cluster.end(plan).await.unwrap();
    house.stop_agent(new);
    house.start_agent(old);
    for options in [to_read(), to_write()] {
        match Data::open(&cluster, "/x", options, &Pool::new()).await {
            Err(Error::Contested { .. }) => {}
            Err(error) => assert_eq!(code(&error), Code::Unavailable),
            Ok(_) => panic!("opened with what was left behind"),
        }
    }
    house.start_agent(new);
    heal(&house, "/x").await;
    house.stop_agent(new);
    assert_holds(&opened(&cluster, "/x", to_read()).await.unwrap(), &expected).await;
}

/// An opening that did not get as far as writing leaves what is known of the last close.
#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_fails_takes_nothing_away() {
    let mut house = House::new(2).await;
    let cluster = house.cluster.clone();
    cluster.create(&data("/x", LEN as u64, 1, 2)).await.unwrap();
    let expected = bytes(1, 0, LEN);
    write_whole(&cluster, "/x", to_write(), &expected).await;
    let [one, other] = members(&house, "/x").await[..] else { panic!("two members") };
    // Nobody is there.
    house.stop_agent(one);
    house.stop_agent(other);
    let refused = Data::open(&cluster, "/x", to_write(), &Pool::new()).await.unwrap_err();
    assert_eq!(code(&refused), Code::Unavailable);
    house.start_agent(other);
    house.nothing_is_open().await;
    assert_holds(&opened(&cluster, "/x", to_write()).await.unwrap(), &expected).await;
}
