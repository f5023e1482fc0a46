//! Arrays of which half is away when they are made or opened.

use super::*;

/// The levels of which half serves, with and without a log, and which members are lost.
fn mirrors() -> [(CreateOptions, usize, &'static [usize]); 4] {
    let logged = |level| CreateOptions { log: Log::On(Some(4 << 20)), ..options(level) };
    [
        (options(Level::Raid1), 2, &[0]),
        (logged(Level::Raid1), 2, &[1]),
        (logged(Level::Raid10), 4, &[0, 3]),
        (logged(Level::Raid6), 4, &[1, 2]),
    ]
}

/// Why labels do not add up.
fn reason<T>(end: Result<T, ArrayError>) -> Option<AssembleError> {
    match end {
        Err(ArrayError::Assemble { reason, .. }) => Some(reason),
        Ok(_) | Err(_) => None,
    }
}

#[tokio::test]
async fn half_of_what_was_closed_opens_to_whoever_knows_that() {
    for (create_options, count, lost) in mirrors() {
        let (mut targets, configs) = members(count).await;
        create(create_options, configs.clone(), Pool::new()).await.unwrap();
        let array = open(&configs).await;
        write(array.device(), 1).await;
        let close = array.close().await.unwrap().unwrap();
        assert_eq!(close.in_sync.len() as usize, count);
        for at in lost {
            targets[*at].kill().await;
        }
        let open_half = |clean_close, read_only| {
            let options = OpenOptions { clean_close, read_only, ..OpenOptions::default() };
            Array::open(options, configs.clone(), Pool::new())
        };
        let refused = reason(open_half(None, false).await);
        assert!(matches!(refused, Some(AssembleError::Contested { .. })), "{refused:?}");
        let reading = open_half(Some(close), true).await.unwrap();
        verify(reading.device(), 1).await;
        assert_eq!(reading.close().await.unwrap(), None, "who reads knows nothing of its own");
        let array = open_half(Some(close), false).await.unwrap();
        verify(array.device(), 1).await;
        write(array.device(), 2).await;
        let later = array.close().await.unwrap().unwrap();
        assert_eq!(later.in_sync.len() as usize, count - lost.len());
        assert!(later.generation > close.generation);
        // The labels say it now.
        let array = open_half(None, false).await.unwrap();
        verify(array.device(), 2).await;
        array.close().await.unwrap();
    }
}

#[tokio::test]
async fn what_was_made_without_some_members_opens_without_them() {
    for (create_options, count, lost) in mirrors() {
        let (mut targets, configs) = members(count).await;
        for at in lost {
            targets[*at].kill().await;
        }
        create_degraded(create_options, configs.clone(), Pool::new()).await.unwrap();
        let array = open(&configs).await;
        let status = array.handle().status().await.unwrap();
        for (at, member) in status.members.iter().enumerate() {
            assert_eq!(member.state == "missing", lost.contains(&at), "member {at}");
        }
        write(array.device(), 1).await;
        array.close().await.unwrap();
        // What they carry when they are back is none of it: each gets its place as any other device.
        for at in lost {
            targets[*at].restart().await;
        }
        let mut array = open(&configs).await;
        for at in lost {
            let index = u8::try_from(*at).unwrap();
            array.handle().replace(MemberIndex(index), configs[*at].clone()).await.unwrap();
            wait_for(&mut array, |event| *event == Event::Rebuilt { member: index }).await;
        }
        verify(array.device(), 1).await;
        array.close().await.unwrap();
        // The others are not needed any more.
        for at in (0..count).filter(|at| !lost.contains(at)).take(1) {
            targets[at].kill().await;
        }
        let array = Array::open(
            OpenOptions { force: true, ..OpenOptions::default() },
            configs.clone(),
            Pool::new(),
        );
        verify(array.await.unwrap().device(), 1).await;
    }
}

/// As of a plan that names a member more than the array has.
#[tokio::test]
async fn a_member_at_a_place_that_the_array_does_not_have_is_left_out() {
    let (_targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let more = configs.iter().chain(&configs[2..]).cloned().collect();
    let placed = OpenOptions { is_placed: true, ..OpenOptions::default() };
    let array = Array::open(placed, more, Pool::new()).await.unwrap();
    assert!(array.notes().iter().any(|note| note.contains("is left out as member 3")));
    let status = array.handle().status().await.unwrap();
    assert!(status.members.iter().all(|member| member.state == "in_sync"), "{status:?}");
    write(array.device(), 1).await;
    verify(array.device(), 1).await;
    array.close().await.unwrap();
}

/// Made once on each half, as its making was cut short, and opened on one of them, or on none.
#[tokio::test]
async fn an_array_that_was_made_twice_is_the_one_that_was_opened() {
    let ignore = OpenOptions { is_placed: true, ..OpenOptions::default() };
    for was_opened in [false, true] {
        let (mut targets, configs) = members(2).await;
        for at in [0, 1] {
            targets[1 - at].kill().await;
            create_degraded(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
            if was_opened && at == 0 {
                let array = open(&configs).await;
                write(array.device(), 1).await;
                array.close().await.unwrap();
            }
            targets[1 - at].restart().await;
        }
        let different = Array::open(OpenOptions::default(), configs.clone(), Pool::new()).await;
        let different = reason(different);
        assert!(matches!(different, Some(AssembleError::DifferentArrays { .. })), "{different:?}");
        let array = Array::open(ignore, configs.clone(), Pool::new()).await.unwrap();
        let status = array.handle().status().await.unwrap();
        let missing = status.members.iter().filter(|member| member.state == "missing");
        assert_eq!(missing.count(), 1);
        if was_opened {
            assert_eq!(status.members[0].state, "in_sync");
            verify(array.device(), 1).await;
        }
        array.close().await.unwrap();
        // Two that hold something are nobody's to choose from.
        let chosen = status.members.iter().position(|member| member.state == "in_sync").unwrap();
        targets[chosen].kill().await;
        open(&configs).await.close().await.unwrap();
        targets[chosen].restart().await;
        let different = Array::open(ignore, configs.clone(), Pool::new()).await;
        let different = reason(different);
        assert!(matches!(different, Some(AssembleError::DifferentArrays { .. })), "{different:?}");
    }
}

#[tokio::test]
async fn what_was_opened_is_not_made_again_where_that_is_to_be_kept() {
    let (_targets, configs) = members(2).await;
    let again = CreateOptions { force: true, keep_opened: true, ..options(Level::Raid1) };
    for _ in 0..2 {
        create(again.clone(), configs.clone(), Pool::new()).await.unwrap();
    }
    let array = open(&configs).await;
    write(array.device(), 1).await;
    array.close().await.unwrap();
    let refused = create(again, configs.clone(), Pool::new()).await;
    assert!(matches!(refused, Err(ArrayError::WasOpened { .. })));
    let array = open(&configs).await;
    verify(array.device(), 1).await;
    array.close().await.unwrap();
}
