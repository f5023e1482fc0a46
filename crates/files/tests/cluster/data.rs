//! Named bytes: against a vector of them, at their ends, by several at a time, renamed and removed.

use std::io::SeekFrom;

use crate::common::{House, bytes, code, data, to_read, to_write};
use netraid_block::Pool;
use netraid_cluster::{
    Code,
    mediator::{Create, Kind, Mode, Open},
};
use netraid_control::units::Rate;
use netraid_files::{Cluster, Data, Error, Volume, VolumeOptions, transfer};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

async fn open(cluster: &Cluster, path: &str, options: VolumeOptions) -> Result<Data, Error> {
    Data::open(cluster, path, options, &Pool::new()).await
}

async fn create(cluster: &Cluster, create: &Create) -> Data {
    Data::create(cluster, create, to_write(), &Pool::new()).await.unwrap()
}

async fn write_all(data: &mut Data, mut at: u64, mut from: &[u8]) -> Result<(), Error> {
    while !from.is_empty() {
        let len = data.write_at(at, from).await?;
        assert!(len > 0);
        at += len as u64;
        from = &from[len..];
    }
    Ok(())
}

async fn read_all(data: &Data, mut at: u64, mut into: &mut [u8]) -> Result<usize, Error> {
    let whole = into.len();
    while !into.is_empty() {
        let len = data.read_at(at, into).await?;
        if len == 0 {
            break;
        }
        at += len as u64;
        into = &mut into[len..];
    }
    Ok(whole - into.len())
}

/// All of it, to its end.
async fn all_of(data: &Data) -> Vec<u8> {
    // A byte more than there is: the end is an end.
    let mut all = vec![0xee; usize::try_from(data.length()).unwrap() + 1];
    let len = read_all(data, 0, &mut all).await.unwrap();
    assert_eq!(len as u64, data.length());
    all.truncate(len);
    all
}

/// Where the first difference is.
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!((differs, found.len()), (None, expected.len()), "{what}");
}

/// Bytes that are asked for; there is room for somewhat more, in whole stripes.
const CAPACITY: u64 = (9 << 20) + 777;

/// A place that is often near something.
fn place(random: &mut StdRng, length: u64, capacity: u64) -> u64 {
    let near = [0, length, capacity, 4096, 65_536, 1 << 20, random.random_range(0..capacity)];
    let at = near[random.random_range(0..near.len())];
    at.saturating_add_signed(random.random_range(-3..4)).min(capacity + 2)
}

fn size(random: &mut StdRng) -> usize {
    match random.random_range(0..10) {
        0 => 0,
        1..5 => random.random_range(1..9000),
        5..9 => random.random_range(1..300_000),
        _ => random.random_range((4 << 20) - 5..(4 << 20) + 5),
    }
}

async fn follows_a_vector(cluster: &Cluster, path: &str, level: u8, members: u16) {
    let mut random = StdRng::seed_from_u64(u64::from(level));
    let mut open_now = create(cluster, &data(path, CAPACITY, level, members)).await;
    let capacity = open_now.capacity();
    assert!((CAPACITY..CAPACITY + (4 << 20)).contains(&capacity), "{capacity}");
    let (mut model, mut position) = (Vec::<u8>::new(), 0_u64);
    for step in 0..250 {
        let what = format!("level {level}, step {step}");
        assert_eq!(open_now.length(), model.len() as u64, "{what}");
        let (at, len) = (place(&mut random, model.len() as u64, capacity), size(&mut random));
        match random.random_range(0..20) {
            0..7 => {
                let from = bytes(step, at, len);
                let end = at + from.len().min(4 << 20) as u64;
                match write_all(&mut open_now, at, &from).await {
                    Ok(()) if len > 0 => {
                        let end = usize::try_from(at).unwrap() + len;
                        model.resize(model.len().max(end), 0);
                        model[end - len..end].copy_from_slice(&from);
                    }
                    Ok(()) => {}
                    Err(Error::Beyond { limit, .. }) => {
                        assert_eq!(limit, capacity, "{what}");
                        assert!(at + len as u64 > capacity, "{what}: {end}");
                        // What fitted before may be there: whole requests are.
                        let done = usize::try_from(open_now.length()).unwrap();
                        if done > model.len() {
                            let start = usize::try_from(at).unwrap();
                            model.resize(done.max(start), 0);
                            model[start..].copy_from_slice(&from[..done - start]);
                        } else if len > 4 << 20 && end <= capacity {
                            let start = usize::try_from(at).unwrap();
                            model[start..start + (4 << 20)].copy_from_slice(&from[..4 << 20]);
                        }
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            }
            7..13 => {
                let mut into = vec![0xaa; len];
                let got = read_all(&open_now, at, &mut into).await.unwrap();
                let start = usize::try_from(at).unwrap().min(model.len());
                let expected = &model[start..model.len().min(start + len)];
                assert_same(&into[..got], expected, &what);
                assert!(into[got..].iter().all(|byte| *byte == 0xaa), "{what}: beyond the end");
            }
            13..16 => {
                let by = random.random_range(-70_000..70_000_i64);
                let (to, expected) = match random.random_range(0..3) {
                    0 => (SeekFrom::Start(at), Some(at)),
                    1 => (SeekFrom::End(by), (model.len() as u64).checked_add_signed(by)),
                    _ => (SeekFrom::Current(by), position.checked_add_signed(by)),
                };
                match (open_now.seek(to), expected) {
                    (Ok(now), Some(expected)) => assert_eq!(now, expected, "{what}"),
                    (Err(Error::Beyond { .. }), None) => {}
                    (end, expected) => panic!("{what}: {end:?}, not {expected:?}"),
                }
                position = expected.unwrap_or(position);
                let mut into = [0; 100];
                let got = open_now.read(&mut into).await.unwrap();
                let start = usize::try_from(position).unwrap().min(model.len());
                let expected = &model[start..model.len().min(start + 100)];
                assert_same(&into[..got], expected, &what);
                position += got as u64;
            }
            16..18 if position + 100 <= capacity => {
                let from = bytes(step, position, 100);
                assert_eq!(open_now.write(&from).await.unwrap(), 100, "{what}");
                let start = usize::try_from(position).unwrap();
                model.resize(model.len().max(start + 100), 0);
                model[start..start + 100].copy_from_slice(&from);
                position += 100;
            }
            18 => open_now.flush().await.unwrap(),
            _ => {
                open_now.close().await.unwrap();
                let reading = open(cluster, path, to_read()).await.unwrap();
                assert_same(&all_of(&reading).await, &model, &what);
                reading.close().await.unwrap();
                open_now = open(cluster, path, to_write()).await.unwrap();
                position = 0;
            }
        }
    }
    assert_same(&all_of(&open_now).await, &model, "at the end");
    open_now.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_a_vector_of_bytes() {
    let house = House::new(4).await;
    for (level, members) in [(0, 3), (1, 2), (5, 3), (6, 4), (10, 4)] {
        follows_a_vector(&house.cluster, &format!("/level/{level}"), level, members).await;
    }
    house.nothing_is_open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_are_exact() {
    let house = House::new(3).await;
    let cluster = &house.cluster;
    // No bytes at all: nothing is stored, and everything works.
    let mut none = create(cluster, &data("/none", 0, 5, 3)).await;
    assert!(none.volume().is_none());
    assert_eq!((none.length(), none.capacity(), none.write(&[]).await.unwrap()), (0, 0, 0));
    assert!(matches!(none.write(&[1]).await, Err(Error::Beyond { end: 1, limit: 0, .. })));
    none.flush().await.unwrap();
    none.close().await.unwrap();

    let mut odd = create(cluster, &data("/odd", 4097, 5, 3)).await;
    let all = bytes(1, 0, 4097);
    let capacity = odd.capacity();
    let beyond = odd.write_at(capacity - 4096, &all).await;
    assert!(
        matches!(beyond, Err(Error::Beyond { end, limit, .. }) if (end, limit) == (capacity + 1, capacity)),
        "{beyond:?}"
    );
    assert_eq!(odd.length(), 0);
    // Nothing is written yet: there is nothing to read, wherever.
    let mut into = [7; 9];
    assert_eq!(odd.read_at(0, &mut into).await.unwrap(), 0);
    assert_eq!(odd.read_at(u64::MAX, &mut into).await.unwrap(), 0);
    assert!(odd.write_at(u64::MAX, &[1]).await.is_err());
    // The last byte first: what is before it reads as zeros.
    assert_eq!(odd.write_at(4096, &[9]).await.unwrap(), 1);
    assert_eq!(odd.length(), 4097);
    let found = all_of(&odd).await;
    assert!(found[..4096].iter().all(|byte| *byte == 0) && found[4096] == 9);
    assert_eq!(odd.write_at(0, &all).await.unwrap(), 4097);
    odd.close().await.unwrap();
    assert_eq!(cluster.stat("/odd").await.unwrap().length_bytes, 4097);

    let mut reading = open(cluster, "/odd", to_read()).await.unwrap();
    assert_eq!(reading.seek(SeekFrom::End(-1)).unwrap(), 4096);
    assert_eq!(reading.read(&mut into).await.unwrap(), 1);
    assert_eq!((into[0], into[1]), (all[4096], 7));
    assert_eq!(reading.read(&mut into).await.unwrap(), 0);
    assert!(reading.seek(SeekFrom::Current(-4098)).is_err());
    assert_eq!(reading.seek(SeekFrom::Current(0)).unwrap(), 4097);
    // Who reads does not write, and what is open to read stays as long as it is.
    assert!(reading.write_at(0, &[1]).await.is_err());
    reading.close().await.unwrap();
    assert_eq!(cluster.stat("/odd").await.unwrap().length_bytes, 4097);

    // Data that was made and closed without a byte.
    create(cluster, &data("/empty", 1 << 20, 5, 3)).await.close().await.unwrap();
    let empty = open(cluster, "/empty", to_read()).await.unwrap();
    assert_eq!((empty.length(), empty.read_at(0, &mut into).await.unwrap()), (0, 0));
    empty.close().await.unwrap();
    assert_eq!(code(&open(cluster, "/nowhere", to_read()).await.unwrap_err()), Code::Absent);
    assert!(matches!(open(cluster, "/", to_read()).await, Err(Error::Kind { .. })));
    let taken = Data::create(cluster, &data("/odd", 1, 5, 3), to_write(), &Pool::new()).await;
    assert_eq!(code(&taken.unwrap_err()), Code::Exists);
    house.nothing_is_open().await;
}

/// What nobody was told the length of is no part of the data, and never shows through.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_said_to_be_there_does_not_show_through_a_gap() {
    let house = House::new(3).await;
    let cluster = &house.cluster;
    create(cluster, &data("/x", 1 << 20, 5, 3)).await.close().await.unwrap();
    // As by a writer that crashed before it said how many bytes there are.
    let lost = Volume::open(cluster, "/x", to_write(), &Pool::new()).await.unwrap();
    let source = std::io::Cursor::new(bytes(1, 0, 1 << 20));
    transfer::put(&lost, source, (0, 1 << 20), &Pool::new(), |_| {}).await.unwrap();
    lost.close(None).await.unwrap();
    let mut next = open(cluster, "/x", to_write()).await.unwrap();
    assert_eq!(next.length(), 0);
    next.write_at(300_001, &[5; 10]).await.unwrap();
    next.write_at(700_003, &[6; 10]).await.unwrap();
    next.close().await.unwrap();
    let found = all_of(&open(cluster, "/x", to_read()).await.unwrap()).await;
    let mut expected = vec![0; 700_013];
    expected[300_001..300_011].fill(5);
    expected[700_003..].fill(6);
    assert_same(&found, &expected, "after the crash");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_are_many_and_a_writer_is_alone() {
    let house = House::new(3).await;
    let cluster = &house.cluster;
    let all = bytes(1, 0, 3 << 20);
    let mut first = create(cluster, &data("/x", 4 << 20, 5, 3)).await;
    write_all(&mut first, 0, &all).await.unwrap();
    // Second writers and readers are refused while one writes.
    for options in [to_write(), to_read()] {
        // A reader of what has no length yet has nothing to open.
        match open(cluster, "/x", options).await {
            Ok(reading) => assert!(reading.volume().is_none() && reading.length() == 0),
            Err(error) => assert_eq!(code(&error), Code::Conflict),
        }
    }
    first.close().await.unwrap();

    let reading = || async {
        let reading = open(cluster, "/x", to_read()).await.unwrap();
        // At once, from several places of one, and by several.
        let parts = (0..8).map(|part| {
            let (reading, all) = (&reading, &all);
            async move {
                let (at, mut into) = (part * 391_000, vec![0; 391_000]);
                let got = read_all(reading, at as u64, &mut into).await.unwrap();
                assert_same(&into[..got], &all[at..(at + 391_000).min(all.len())], "a part");
            }
        });
        futures_util::future::join_all(parts).await;
        reading
    };
    let readers = futures_util::future::join_all((0..3).map(|_| reading())).await;
    assert_eq!(code(&open(cluster, "/x", to_write()).await.unwrap_err()), Code::Conflict);
    for reader in readers {
        reader.close().await.unwrap();
    }

    // Whoever is fenced changes nothing any more, and is told why. Its own machine lets nobody else open
    // an array that it has open: the other one asks for the plan alone.
    let mut old = open(cluster, "/x", to_write()).await.unwrap();
    old.write_at(0, &[1; 5000]).await.unwrap();
    old.flush().await.unwrap();
    let taking = Open {
        path: "/x".to_owned(),
        mode: Mode::Write,
        initiator: "iqn.2026-01.test:other".to_owned(),
        rate: Rate::ZERO,
        limit: None,
        request_bytes: None,
        degraded: true,
        for_ms: None,
        take_over: true,
        plan: None,
        close_key: None,
        upload: false,
        id: None,
        kind: None,
    };
    let taken = cluster.open(&taking).await.unwrap();
    let fenced = async {
        loop {
            match old.write_at(10_000, &[2; 5000]).await {
                Ok(_) => assert!(old.flush().await.is_err(), "stable after it was fenced"),
                Err(error) => return error,
            }
        }
    };
    let fenced = tokio::time::timeout(crate::common::LIMIT, fenced).await.unwrap();
    assert!(matches!(fenced, Error::Io { .. } | Error::Lost { .. }), "{fenced}");
    assert!(tokio::time::timeout(crate::common::LIMIT, old.close()).await.unwrap().is_err());
    cluster.end(taken.plan).await.unwrap();
    let mut new = open(cluster, "/x", to_write()).await.unwrap();
    new.write_at(20_000, &[3; 5000]).await.unwrap();
    let mut expected = all;
    expected[..5000].fill(1);
    expected[20_000..25_000].fill(3);
    assert_same(&all_of(&new).await, &expected, "after it was taken over");
    new.close().await.unwrap();
    house.nothing_is_open().await;
}

/// Another process of this machine, as far as the locks of this machine can tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_that_is_refused_here_leaves_the_writer_alone() {
    let house = House::new(3).await;
    let cluster = house.cluster.clone();
    let mut writing = create(&cluster, &data("/x", 1 << 20, 5, 3)).await;
    writing.write_at(0, &[1; 5000]).await.unwrap();
    let generation = || async { cluster.stat("/x").await.unwrap().stored.unwrap().generation };
    let before = generation().await;
    let take = VolumeOptions { take_over: true, ..to_write() };
    let refused = Volume::open(&cluster, "/x", take.clone(), &Pool::new()).await.unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    let unwritten = create(&cluster, &data("/y", 1 << 20, 5, 3)).await;
    cluster.rename("/y", "/z", None).await.unwrap();
    let read = VolumeOptions { take_over: true, ..to_read() };
    let other = VolumeOptions { id: Some(writing.volume().unwrap().entry().id), ..take };
    // What is in its log is not brought home by a reader: it would have to be written.
    for (path, options) in [("/x", read.clone()), ("/y", read.clone()), ("/z", other)] {
        Volume::open(&cluster, path, options, &Pool::new()).await.unwrap_err();
    }
    writing.write_at(5000, &[2; 5000]).await.unwrap();
    writing.flush().await.unwrap();
    assert_eq!(generation().await, before);
    unwritten.close().await.unwrap();
    writing.close().await.unwrap();
    let found = all_of(&open(&cluster, "/x", read).await.unwrap()).await;
    assert_same(&found, &[[1; 5000], [2; 5000]].concat(), "after the refusal");
}

/// Blocks have no length, and directories have no bytes.
#[tokio::test(flavor = "multi_thread")]
async fn data_alone_is_opened_as_data_and_volumes_alone_as_volumes() {
    let house = House::new(3).await;
    let cluster = &house.cluster;
    let volume = Create { kind: Kind::Volume, ..data("/v", 1 << 20, 5, 3) };
    let refused = Data::create(cluster, &volume, to_write(), &Pool::new()).await.unwrap_err();
    assert!(matches!(refused, Error::Kind { .. }), "{refused}");
    cluster.create(&volume).await.unwrap();
    for options in [to_read(), to_write(), VolumeOptions { take_over: true, ..to_write() }] {
        let refused = open(cluster, "/v", options).await.unwrap_err();
        assert!(matches!(refused, Error::Kind { .. }), "{refused}");
    }
    let mut writing = create(cluster, &data("/x", 1 << 20, 5, 3)).await;
    let kind = Some(Kind::Volume);
    for take_over in [false, true] {
        let options = VolumeOptions { kind, take_over, ..to_write() };
        let refused = Volume::open(cluster, "/x", options, &Pool::new()).await.unwrap_err();
        assert_eq!(code(&refused), Code::Invalid, "{refused}");
    }
    write_all(&mut writing, 0, &[1; 5000]).await.unwrap();
    writing.close().await.unwrap();
    house.nothing_is_open().await;
}

/// Who says that something is closed says so when others can have it.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_wait_for_is_not_called_closed() {
    let mut house = House::new(3).await;
    let cluster = house.cluster.clone();
    create(&cluster, &data("/x", 1 << 20, 5, 3)).await.close().await.unwrap();
    let volume = Volume::open(&cluster, "/x", to_write(), &Pool::new()).await.unwrap();
    house.stop_mediator();
    let closed = volume.close(None).await;
    assert!(matches!(closed, Err(Error::Kept { .. })), "{closed:?}");
    house.start_mediator();
    // Asked again for as long as the mediator is away, it is told.
    let next = VolumeOptions { take_over: true, ..to_write() };
    let next = Volume::open(&cluster, "/x", next, &Pool::new()).await.unwrap();
    house.stop_mediator();
    let closing = tokio::spawn(next.close(Some(0)));
    house.start_mediator();
    closing.await.unwrap().unwrap();
    house.nothing_is_open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_is_renamed_but_not_removed() {
    let house = House::new(3).await;
    let cluster = &house.cluster;
    let mut writing = create(cluster, &data("/d/x", 1 << 20, 5, 3)).await;
    let id = cluster.stat("/d/x").await.unwrap().id;
    writing.write(&[1; 70_000]).await.unwrap();
    cluster.rename("/d/x", "/y", Some(id)).await.unwrap();
    writing.write(&[2; 70_000]).await.unwrap();
    let refused = cluster.remove("/y", false).await.unwrap_err();
    assert_eq!(refused.problem().unwrap().code, Code::Conflict);
    // Another with its old name is another.
    let mut other = create(cluster, &data("/d/x", 1 << 20, 5, 3)).await;
    other.write(&[3; 10]).await.unwrap();
    other.close().await.unwrap();
    writing.close().await.unwrap();
    let found = all_of(&open(cluster, "/y", to_read()).await.unwrap()).await;
    assert_same(&found, &[[1; 70_000], [2; 70_000]].concat(), "under its new name");

    house.nothing_is_open().await;
}

/// Whoever goes without a word gives back what it had.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_dropped_is_given_back() {
    let house = House::new(3).await;
    let cluster = &house.cluster;
    let mut writing = create(cluster, &data("/x", 1 << 20, 5, 3)).await;
    writing.write(&[1; 5000]).await.unwrap();
    drop(writing);
    house.nothing_is_open().await;
    let options = VolumeOptions { mode: Mode::Write, ..to_write() };
    for at in 0..20 {
        // Given up at whatever instant of its opening.
        let limit = std::time::Duration::from_millis(at * 3);
        let opening = open(cluster, "/x", options.clone());
        drop(tokio::time::timeout(limit, opening).await);
        house.nothing_is_open().await;
    }
}
