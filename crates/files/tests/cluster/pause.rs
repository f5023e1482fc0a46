//! Agents that are away together: requests wait, and what is open goes on.

use std::time::Duration;

use crate::common::{House, LIMIT, assert_holds, bytes, data, open, to_write, until};
use netraid_block::Pool;
use netraid_engine::control::ControlRequest;
use netraid_files::{Data, Error, VolumeOptions};

const LEN: usize = 3 << 20;
/// How much longer than the term agents take tokens.
const GRACE: Duration = Duration::from_secs(10);

async fn create(house: &House, level: u8, members: u16, options: VolumeOptions) -> Data {
    let create = data("/x", LEN as u64, level, members);
    let mut made = Data::create(&house.cluster, &create, options, &Pool::new()).await.unwrap();
    assert_eq!(made.write(&bytes(1, 0, LEN)).await.unwrap(), LEN);
    made.flush().await.unwrap();
    made
}

async fn state(data: &Data) -> String {
    data.volume().unwrap().handle().status().await.unwrap().state
}

/// Overwrites all of it: what is written while it pauses waits.
async fn overwrite(data: &mut Data, version: u64) -> Result<(), Error> {
    assert_eq!(data.write_at(0, &bytes(version, 0, LEN)).await?, LEN);
    data.flush().await
}

/// Segments of its members, as the mediator has them.
async fn segments(house: &House) -> Vec<String> {
    let members = house.cluster.stat("/x").await.unwrap().stored.unwrap().members;
    members.iter().map(|member| member.segment.to_string()).collect()
}

/// Tokens of before have ended by then, members may be away for less than that else, and agents are elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_outlasts_tokens_and_finds_agents_where_they_are() {
    let mut house = House::new(4).await;
    let term = Duration::from_secs(4);
    let replace_after = Some(Duration::from_secs(5));
    let options = VolumeOptions { term: Some(term), replace_after, ..to_write() };
    let mut writing = create(&house, 5, 4, options).await;
    let before = segments(&house).await;
    for at in 0..4 {
        house.stop_agent(at);
    }
    let handle = writing.volume().unwrap().handle().clone();
    let watched = async {
        until("it pauses", || async { handle.status().await.unwrap().state == "paused" }).await;
        tokio::time::sleep(term + GRACE).await;
        assert_eq!(handle.status().await.unwrap().state, "paused");
        for at in 0..4 {
            house.move_agent(at);
        }
    };
    let ((), written) = tokio::join!(watched, overwrite(&mut writing, 2));
    written.unwrap();
    assert_holds(&writing, &bytes(2, 0, LEN)).await;
    assert!(writing.volume().unwrap().whole(LIMIT).await.unwrap());
    assert_eq!(segments(&house).await, before, "members that were away with the others");
    writing.close().await.unwrap();
    house.nothing_is_open().await;
}

/// A member that is not looked for does not move those behind it to places that are not theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_ends_without_the_member_that_was_set_aside() {
    let mut house = House::new(6).await;
    let options = VolumeOptions { replace_after: None, ..to_write() };
    let mut writing = create(&house, 6, 6, options).await;
    let handle = writing.volume().unwrap().handle().clone();
    handle.command(ControlRequest::Fail { member: "4".to_owned() }).await.unwrap();
    overwrite(&mut writing, 2).await.unwrap();
    let urls = || async {
        let members = handle.status().await.unwrap().members;
        members.into_iter().map(|member| member.url).collect::<Vec<_>>()
    };
    let before = urls().await;
    let members = writing.volume().unwrap().entry().stored.clone().unwrap().members;
    let away: Vec<usize> = members.iter().map(|one| house.place_of(one.agent)).collect();
    for at in &away[..2] {
        house.stop_agent(*at);
    }
    let watched = async {
        until("it pauses", || async { handle.status().await.unwrap().state == "paused" }).await;
        // Until it is tried every two seconds only: then both are back at the next attempt.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for at in &away[..2] {
            house.start_agent(*at);
        }
    };
    let ((), written) = tokio::join!(watched, overwrite(&mut writing, 3));
    written.unwrap();
    assert_holds(&writing, &bytes(3, 0, LEN)).await;
    let is_back = || async {
        let members = handle.status().await.unwrap().members;
        members.iter().all(|one| (one.state == "in_sync") == (one.index != 4))
    };
    until("all but one are in sync", is_back).await;
    assert_eq!(urls().await, before, "where members are");
    writing.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_shut_out_while_it_waits_is_told_so() {
    let mut house = House::new(3).await;
    let options = VolumeOptions { pause: 2 * LIMIT, ..to_write() };
    let mut writing = create(&house, 5, 3, options).await;
    for at in 0..3 {
        house.stop_agent(at);
    }
    let (plan, cluster) = (writing.volume().unwrap().plan(), house.cluster.clone());
    let handle = writing.volume().unwrap().handle().clone();
    let ended = async {
        until("it pauses", || async { handle.status().await.unwrap().state == "paused" }).await;
        let _ = cluster.end(plan).await;
    };
    let overwritten = tokio::time::timeout(LIMIT, overwrite(&mut writing, 2));
    let ((), written) = tokio::join!(ended, overwritten);
    let error = written.expect("it goes on waiting").unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(tokio::time::timeout(LIMIT, writing.close()).await.expect("it hangs").is_err());
}

/// What closes waits for no agent.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_closed_while_it_pauses_ends() {
    let mut house = House::new(3).await;
    let options = VolumeOptions { pause: 2 * LIMIT, ..to_write() };
    let mut writing = create(&house, 5, 3, options).await;
    for at in 0..3 {
        house.stop_agent(at);
    }
    // Nobody waits for it any more when it pauses.
    let handle = writing.volume().unwrap().handle().clone();
    let is_paused =
        until("it pauses", || async { handle.status().await.unwrap().state == "paused" });
    tokio::select! {
        () = is_paused => {}
        written = overwrite(&mut writing, 2) => panic!("it does not wait: {written:?}"),
    }
    assert_eq!(state(&writing).await, "paused");
    assert!(tokio::time::timeout(LIMIT, writing.close()).await.expect("it hangs").is_err());
    for at in 0..3 {
        house.start_agent(at);
    }
    house.nothing_is_open().await;
    let writing = open(&house.cluster, "/x", to_write()).await;
    writing.close().await.unwrap();
}
