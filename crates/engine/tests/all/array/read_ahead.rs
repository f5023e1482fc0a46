//! What users read in a row is read ahead.

use netraid_block::Buf;
use netraid_engine::array::Caches;

use super::*;

const STEP: u64 = 64 << 10;

/// Bytes that were asked of all members.
async fn read_of_members(array: &Array) -> u64 {
    let status = array.handle().status().await.unwrap();
    status.members.iter().map(|member| member.read_bytes).sum()
}

/// Whether the bytes from `at` are those of `seed`.
async fn reads(device: &Device, at: u64, all: &[u8]) -> bool {
    let read = completions::read(device, at, STEP).await.unwrap();
    let at = usize::try_from(at).unwrap();
    *read.to_contiguous() == all[at..at + read.len()]
}

async fn walk(log: Log) {
    let (_targets, configs) = members(4).await;
    create(CreateOptions { log, ..options(Level::Raid5) }, configs.clone(), Pool::new())
        .await
        .unwrap();
    let array = open(&configs).await;
    let device = array.device();
    write(device, 1).await;
    let capacity = device.info().capacity;
    let mut all = contents(1, usize::try_from(capacity).unwrap());
    let before = read_of_members(&array).await;
    let mut at = 0;
    while at < capacity / 2 {
        assert!(reads(device, at, &all).await, "at {at}");
        at += STEP;
    }
    let ahead = read_of_members(&array).await - before;
    assert!(ahead > at + STEP, "{ahead} bytes for {at}: nothing was read ahead");
    // In the midst of what was read ahead: the next block, and one further on.
    for changed in [at, at + 3 * STEP + 4096] {
        let buf = Buf::copy_from(&contents(changed, 4096));
        completions::write(device, changed, buf.clone().into(), false).await.unwrap();
        let place = usize::try_from(changed).unwrap();
        all[place..place + 4096].copy_from_slice(&buf);
    }
    while at + STEP <= capacity {
        assert!(reads(device, at, &all).await, "at {at}, after a change");
        at += STEP;
    }
    let ahead = read_of_members(&array).await - before;
    // A change in the midst lets at most what is in its request be read again.
    assert!(ahead < capacity + (4 << 20), "{ahead} bytes for {capacity}");
    let status = array.handle().status().await.unwrap().read_ahead.unwrap();
    assert!(status.answered > capacity / STEP / 2, "{status:?}");
    array.close().await.unwrap();
}

#[tokio::test]
async fn a_stream_is_read_ahead_and_sees_what_changes() {
    walk(Log::Off).await;
    walk(Log::On(Some(4 << 20))).await;
}

/// Without memory for it; and where another engine may write, since nothing keeps it from that.
#[tokio::test]
async fn nothing_is_read_ahead_where_it_must_not_be() {
    let (_targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    array.close().await.unwrap();
    let off = Caches { read_ahead_len: Some(0), ..Caches::default() };
    for (caches, read_only) in [(off, false), (Caches::default(), true)] {
        let options = OpenOptions { caches, read_only, ..OpenOptions::default() };
        let array = Array::open(options, configs.clone(), Pool::new()).await.unwrap();
        let before = read_of_members(&array).await;
        let all = contents(1, 2 << 20);
        for at in 0..16 {
            assert!(reads(array.device(), at * STEP, &all).await);
        }
        assert_eq!(read_of_members(&array).await - before, 16 * STEP);
        assert_eq!(array.handle().status().await.unwrap().read_ahead, None);
        array.close().await.unwrap();
    }
}

/// Closing waits for what is under way, and for nobody else: a close with requests in the machine is a
/// panic of it.
#[tokio::test]
async fn an_array_closes_while_it_reads_ahead() {
    let (_targets, configs) = members(4).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    let all = contents(1, 2 << 20);
    for at in 0..8 {
        assert!(reads(array.device(), at * STEP, &all).await);
    }
    array.close().await.unwrap();
    let array = open(&configs).await;
    verify(array.device(), 1).await;
    array.close().await.unwrap();
}

/// What was read ahead from members that are gone is not shown by an array that has failed.
#[tokio::test]
async fn an_array_that_has_failed_shows_nothing_that_was_read_ahead() {
    let (mut targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    let all = contents(1, 8 << 20);
    for at in 0..16 {
        assert!(reads(array.device(), at * STEP, &all).await);
    }
    for target in &mut targets {
        target.kill().await;
    }
    let buf = Buf::copy_from(&contents(2, 4096));
    let far = array.device().info().capacity - 4096;
    completions::write(array.device(), far, buf.into(), false).await.unwrap_err();
    wait_for(&mut array, |event| matches!(event, Event::State { state: "failed", .. })).await;
    completions::read(array.device(), 16 * STEP, STEP).await.unwrap_err();
    array.close().await.unwrap_err();
}
