//! Several portals and sessions, and what is found behind them when a session is made again.

use super::*;

fn at_portals(portals: &[&str]) -> World {
    World::opened_with(|settings, _| {
        settings.portals = portals.iter().map(|host| portal(host)).collect();
    })
}

/// Where connections were to be made since then.
fn tried(world: &World, since: Duration) -> Vec<String> {
    let late = world.connects.iter().filter(|connect| connect.2 >= since);
    late.map(|connect| connect.1.clone()).collect()
}

#[test]
fn the_next_portal_is_tried_at_once() {
    let mut world = at_portals(&["a", "b"]);
    world.pass(SECOND);
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.set_door("a", Door::Refuses);
    world.cut(0);
    world.release();
    assert_eq!(world.conn(0).portal.host, "b");
    world.assert_done(write);
    assert_eq!(world.remote.status().failures, 1);
}

#[test]
fn each_portal_is_tried_in_its_turn_and_no_attempt_uses_up_the_time_of_requests() {
    let mut world = at_portals(&["a", "b", "c"]);
    world.set_door("b", Door::Lost);
    world.set_door("c", Door::Mute);
    let since = world.now;
    world.cut(0);
    world.pass(TIME / 4 * 2 + SECOND / 2);
    assert_eq!(tried(&world, since + MILLI / 2)[..1], ["c"]);
    assert!(world.is_connected(0));
    assert_eq!(world.target.logins.last().unwrap().1, "a");
}

#[test]
fn sessions_begin_at_a_portal_each_with_an_isid_of_its_own() {
    let mut world = World::wide(3);
    world.pass(SECOND);
    let logins = world.target.logins.clone();
    let expected = [(isid(0), "a"), (isid(1), "b"), (isid(2), "c")];
    assert_eq!(logins, expected.map(|(isid, host)| (isid, host.into())));
}

#[test]
fn several_sessions_share_large_requests() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    let user = world.request(Op::Read, 0, 1 << 20, false, Vec::new());
    let other = world.request(Op::Read, 0, 1 << 20, false, Vec::new());
    world.drive();
    assert_eq!(world.places(READ), [0, 1]);
    assert!(world.has_ended(user) && world.has_ended(other));
}

#[test]
fn another_portal_group_is_refused() {
    let mut world = World::opened_with(|settings, target| {
        settings.portals = vec![portal("a"), portal("b")];
        target.groups.insert("b".into(), 2);
    });
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.set_door("a", Door::Refuses);
    world.cut(0);
    world.release();
    world.pass(SECOND);
    assert!(!world.has_ended(write));
    assert_eq!(world.count(WRITE), 1);
    let is_meant = |event: &Event| matches!(event, Event::NotMade { reason, .. } if reason.contains("portal group"));
    assert!(world.told(is_meant) > 0);
    // Neither comes back by waiting.
    world.pass(2 * SECOND);
    assert!(world.remote.status().is_gone);
    world.assert_failed(write, ErrorKind::Unreachable);
    world.set_door("a", Door::Open);
    world.pass(SECOND);
    world.assert_read(1, 0);
}

#[test]
fn another_disk_is_refused() {
    let mut world = World::opened();
    world.target.medium.identity.serial = "another".into();
    world.cut(0);
    world.pass(3 * SECOND);
    assert!(!world.remote.status().is_connected && world.remote.status().is_gone);
    assert!(world.remote.last_failure().contains("another disk"));
    let read = world.read(1);
    world.pass(SECOND);
    world.assert_failed(read, ErrorKind::Unreachable);
}

#[test]
fn another_disk_is_noticed_under_a_session_that_stays() {
    let mut world = World::opened();
    world.target.medium.identity.serial = "another".into();
    world.target.medium.tell(Additional::INQUIRY_DATA_CHANGED);
    let write = world.write(1, 0x11);
    world.pass(3 * SECOND);
    world.assert_failed(write, ErrorKind::Unreachable);
    assert_eq!(world.target.medium.contents[512..1024], full(0));
}

#[test]
fn a_disk_that_has_shrunk_is_refused() {
    let mut world = World::opened();
    world.target.medium.contents.truncate(BLOCKS / 2 * 512);
    world.cut(0);
    world.pass(SECOND);
    assert!(!world.remote.status().is_connected);
    assert!(world.remote.last_failure().contains("shrunk"));
}

#[test]
fn a_disk_that_has_grown_serves_on_and_tells_it() {
    let mut world = World::opened();
    let capacity = BLOCKS as u64 * BLOCK;
    world.target.medium.contents.resize(BLOCKS * 1024, 0);
    world.target.medium.tell(Additional::CAPACITY_DATA_CHANGED);
    let write = world.write(1, 0x11);
    world.assert_done(write);
    assert_eq!(world.remote.status().capacity, 2 * capacity);
    assert_eq!(world.told(|event| *event == Event::Grown { blocks: 2 * BLOCKS as u64 }), 1);
    assert_eq!(world.losses(), 0);
}

#[test]
fn a_disk_without_a_cache_that_has_one_now_is_refused() {
    let mut world = World::opened_with(|_, target| target.medium.write_cache = false);
    let info = world.opened.clone().unwrap().unwrap().info;
    assert!(!info.volatile_cache);
    world.target.medium.write_cache = true;
    world.cut(0);
    world.pass(SECOND);
    assert!(!world.remote.status().is_connected);
    assert!(world.remote.last_failure().contains("volatile write cache"));
}

#[test]
fn a_peer_that_refuses_is_gone_after_the_time_of_a_restart() {
    let mut world = World::opened();
    world.set_door("a", Door::Refuses);
    world.cut(0);
    let read = world.read(1);
    world.pass(2 * SECOND - 200 * MILLI);
    assert!(!world.has_ended(read) && !world.remote.status().is_gone);
    world.pass(400 * MILLI);
    world.assert_failed(read, ErrorKind::Unreachable);
    assert!(world.remote.status().is_gone);
    world.set_door("a", Door::Open);
    world.pass(2 * SECOND);
    assert!(!world.remote.status().is_gone && world.remote.status().is_connected);
    world.assert_read(1, 0);
}

#[test]
fn who_asks_a_peer_that_is_gone_waits_for_one_attempt_which_is_made_soon() {
    let mut world = World::opened();
    world.set_door("a", Door::Refuses);
    world.cut(0);
    // Attempts are rare by now.
    world.pass(10 * SECOND);
    let next = world.remote.next_timeout().unwrap();
    world.pass(next - world.now);
    let before = world.connects.len();
    let read = world.read(1);
    assert!(!world.has_ended(read));
    world.pass(10 * MILLI);
    assert_eq!(world.connects.len(), before + 1);
    world.assert_failed(read, ErrorKind::Unreachable);
    world.set_door("a", Door::Open);
    let read = world.read(1);
    world.pass(10 * MILLI);
    assert_eq!(world.result(read), Ok(full(0)));
}

#[test]
fn one_portal_that_is_not_surely_gone_is_waited_for() {
    let mut world = at_portals(&["a", "b"]);
    world.set_door("a", Door::Refuses);
    world.set_door("b", Door::Lost);
    world.cut(0);
    let read = world.read(1);
    world.pass(TIME - MILLI);
    assert!(!world.has_ended(read) && !world.remote.status().is_gone);
    world.pass(MILLI);
    world.assert_failed(read, ErrorKind::Unreachable);
}

#[test]
fn a_target_that_lets_nobody_in_is_waited_for_longer() {
    let mut world = World::opened();
    world.set_door("a", Door::Denies(0x0201));
    world.cut(0);
    world.pass(10 * SECOND - 200 * MILLI);
    assert!(!world.remote.status().is_gone);
    world.pass(2 * SECOND);
    assert!(world.remote.status().is_gone);
    assert!(world.remote.last_failure().contains("authentication"));
}

#[test]
fn a_target_that_cannot_serve_now_is_not_gone() {
    let mut world = World::opened();
    world.set_door("a", Door::Denies(0x0301));
    world.cut(0);
    world.pass(60 * SECOND);
    assert!(!world.remote.status().is_gone);
}

#[test]
fn attempts_grow_rarer() {
    let mut world = World::opened();
    world.set_door("a", Door::Refuses);
    let since = world.now;
    world.cut(0);
    world.pass(5 * SECOND);
    let soon = tried(&world, since + MILLI).len();
    assert!((40..=60).contains(&soon), "{soon}");
    world.pass(60 * SECOND);
    let late = tried(&world, since + MILLI).len() - soon;
    assert!((55..=70).contains(&late), "{late}");
}

#[test]
fn a_login_is_redirected_for_once() {
    let mut world = World::opened_with(|_, target| {
        let door = Door::Redirects { to: "c:3260,1".into(), permanent: false };
        target.doors.insert("a".into(), door);
    });
    assert_eq!(world.target.logins.last().unwrap().1, "c");
    let since = world.now;
    world.pass(SECOND);
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(tried(&world, since + SECOND), ["a", "c"]);
}

#[test]
fn a_login_is_redirected_for_good() {
    let mut world = World::opened_with(|_, target| {
        let door = Door::Redirects { to: "c:3260,1".into(), permanent: true };
        target.doors.insert("a".into(), door);
    });
    let since = world.now;
    world.pass(SECOND);
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(tried(&world, since + SECOND), ["c"]);
}

#[test]
fn redirections_go_not_in_circles_and_not_for_ever() {
    let circle = [("a", "b:3260"), ("b", "a:3260")];
    let chain =
        [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "g"), ("g", "h")];
    let nowhere = [("a", "b:x")];
    for (doors, connections) in [(&circle[..], 2), (&chain, 5), (&nowhere, 1)] {
        let mut world = World::opening_with(|_, target| {
            for (from, to) in doors {
                let door = Door::Redirects { to: (*to).into(), permanent: false };
                target.doors.insert((*from).into(), door);
            }
        });
        world.drive();
        let is_refused = matches!(world.opened, Some(Err(Reason::Redirection { .. })));
        assert!(is_refused, "{:?}", world.opened);
        assert!(world.is_closed);
        assert_eq!(world.connects.len(), connections);
    }
}

#[test]
fn who_breaks_off_a_login_by_a_better_algorithm_is_tried_with_md5() {
    let mut world = World::opening_with(|settings, target| {
        let secret = netraid_iscsi_proto::chap::Secret::new(*b"a long secret").unwrap();
        let user = "joe".into();
        settings.setup.chap = Some(netraid_iscsi_proto::chap::Credentials { user, secret });
        (target.wants_chap, target.md5_only) = (true, true);
    });
    world.drive();
    assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
    assert_eq!(world.connects.len(), 2);
}

#[test]
fn who_has_a_secret_is_not_let_in_without() {
    let mut world = World::opening_with(|settings, _| {
        let secret = netraid_iscsi_proto::chap::Secret::new(*b"a long secret").unwrap();
        let user = "joe".into();
        settings.setup.chap = Some(netraid_iscsi_proto::chap::Credentials { user, secret });
    });
    world.drive();
    assert!(matches!(world.opened, Some(Err(Reason::Login(_)))), "{:?}", world.opened);
}

#[test]
fn a_plan_that_does_not_hold_any_more_is_told_as_such() {
    let mut world = World::opening_with(|settings, target| {
        settings.goes_by_plan = true;
        target.doors.insert("a".into(), Door::Denies(0x0201));
    });
    world.drive();
    assert!(matches!(world.opened, Some(Err(Reason::Plan))), "{:?}", world.opened);
}
