//! The first session, and the end of what a predecessor left.

use super::*;

fn taking_over(portals: &[&str], prepare: impl FnOnce(&mut Target)) -> World {
    let mut world = World::opening_with(|settings, target| {
        settings.portals = portals.iter().map(|host| portal(host)).collect();
        settings.takes_over = true;
        prepare(target);
    });
    world.drive();
    world
}

/// Whose logins came through at a portal.
fn logins(world: &World, host: &str) -> Vec<Isid> {
    let here = world.target.logins.iter().filter(|login| login.1 == host);
    here.map(|login| login.0).collect()
}

#[test]
fn a_disk_tells_what_it_is() {
    let world = World::opened();
    let opened = world.opened.unwrap().unwrap();
    assert_eq!(opened.info.capacity, BLOCKS as u64 * BLOCK);
    assert_eq!(opened.info.block_len, 512);
    assert!(opened.info.volatile_cache && !opened.info.read_only && !opened.info.can_discard);
    assert_eq!(opened.identity.vendor, "NETRAID");
    assert_eq!(opened.identity.serial, Some(world.target.medium.identity.serial));
    assert!(world.remote.status().is_connected);
    assert_eq!(world.remote.status().capacity, BLOCKS as u64 * BLOCK);
    assert_eq!(world.remote.status().cache_losses, 0, "a session that is new loses nothing");
}

#[test]
fn a_disk_opens_at_the_second_portal_when_the_first_does_not_answer() {
    for door in [Door::Refuses, Door::Lost, Door::Mute, Door::Denies(0x0301)] {
        let mut world = World::opening_with(|settings, target| {
            settings.portals = vec![portal("a"), portal("b")];
            target.doors.insert("a".into(), door);
        });
        world.pass(TIME / 4);
        assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
        assert_eq!(logins(&world, "b"), [ISID]);
    }
}

#[test]
fn a_disk_that_is_nowhere_does_not_open() {
    for (door, after) in [
        (Door::Refuses, Duration::ZERO),
        (Door::Lost, 5 * SECOND),
        (Door::Mute, 5 * SECOND),
        (Door::Denies(0x0203), Duration::ZERO),
    ] {
        let mut world = World::opening_with(|_, target| {
            target.doors.insert("a".into(), door);
        });
        if !after.is_zero() {
            world.pass(after - MILLI);
            assert!(world.opened.is_none());
            world.pass(MILLI);
        }
        world.drive();
        assert!(matches!(world.opened, Some(Err(_))), "{:?}", world.opened);
        assert!(world.is_closed && !world.is_connected(0));
        assert_eq!(world.remote.next_timeout(), None);
    }
}

#[test]
fn a_disk_whose_examination_is_not_answered_does_not_open() {
    let mut world = World::opening_with(|_, target| target.holds = vec![INQUIRY]);
    world.pass(5 * SECOND);
    assert_eq!(world.opened, Some(Err(Reason::Silent(5 * SECOND))));
    assert!(world.is_closed);
}

#[test]
fn a_disk_that_becomes_ready_is_waited_for() {
    let mut world = World::opening_with(|_, target| {
        let answer = Answer::sense(SenseKey::NotReady, Additional::NOT_READY_BECOMING_READY);
        target.refuse(READY, 10, answer);
    });
    world.drive();
    assert!(world.opened.is_none());
    world.pass(SECOND);
    assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
}

#[test]
fn every_session_that_a_predecessor_can_have_had_is_ended_before_the_disk_opens() {
    let world = taking_over(&["a"], |_| {});
    assert!(matches!(world.opened, Some(Ok(_))));
    assert_eq!(logins(&world, "a"), [0, 1, 2, 3, 4, 5, 6, 7].map(isid));
    assert_eq!(world.got(Opcode::LogoutRequest), 7);
    let places: Vec<usize> = world.connects.iter().map(|connect| connect.0).collect();
    assert_eq!(places, [0, 1, 1, 1, 1, 1, 1, 1]);
    assert!(!world.is_connected(1));
}

#[test]
fn what_a_predecessor_had_under_way_is_dead_when_the_disk_opens() {
    for lane in [0, 5] {
        let mut world = World::wide(1);
        // Of the same name: the lane's ISID is that of one that comes later.
        world.target.holds = vec![WRITE];
        world.write(1, 0x11);
        let Line::Open(mut conn) = mem::replace(&mut world.lines[0], Line::Closed) else {
            panic!("no connection")
        };
        conn.isid = isid(lane);
        let next = taking_over(&["a"], |target| target.orphans.push(conn));
        assert!(matches!(next.opened, Some(Ok(_))));
        let left = next.target.orphans.iter().filter(|conn| !conn.tasks.is_empty()).count();
        assert_eq!(left, 0);
    }
}

#[test]
fn other_portal_groups_are_visited_too() {
    let world = taking_over(&["a", "b", "c"], |target| {
        target.groups.insert("b".into(), 2);
        target.groups.insert("c".into(), 2);
    });
    assert!(matches!(world.opened, Some(Ok(_))));
    assert_eq!(logins(&world, "a").len(), 8);
    assert_eq!(logins(&world, "b"), [1, 0, 2, 3, 4, 5, 6, 7].map(isid));
    assert_eq!(logins(&world, "c"), [isid(1)], "its group has been visited");
}

#[test]
fn a_portal_that_lets_nobody_in_is_told_and_the_disk_opens() {
    for door in [Door::Refuses, Door::Lost, Door::Denies(0x0201)] {
        let mut world = taking_over(&["a", "b"], |target| {
            target.doors.insert("b".into(), door);
        });
        world.pass(2 * SECOND);
        assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
        let is_meant = |event: &Event| matches!(event, Event::PredecessorMayRemain { portal, .. } if portal.host == "b");
        assert_eq!(world.told(is_meant), 1);
    }
}

#[test]
fn a_portal_that_let_in_one_session_and_no_other_does_not_open() {
    let mut world = World::opening_with(|settings, _| settings.takes_over = true);
    world.is_slow = true;
    world.drive();
    world.connect(0);
    world.drive();
    world.set_door("a", Door::Denies(0x0202));
    world.is_slow = false;
    world.drive();
    assert!(matches!(world.opened, Some(Err(Reason::Login(_)))), "{:?}", world.opened);
    assert!(world.is_closed && !world.is_connected(0) && !world.is_connected(1));
}

#[test]
fn visits_that_are_not_answered_end_in_time() {
    let mut world = World::opening_with(|settings, target| {
        settings.takes_over = true;
        target.answers_logout = false;
    });
    world.pass(60 * SECOND);
    assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
}

#[test]
fn the_session_that_was_made_first_may_be_lost_during_the_takeover() {
    let mut world = World::opening_with(|settings, _| settings.takes_over = true);
    world.is_slow = true;
    world.drive();
    world.connect(0);
    world.drive();
    assert!(world.opened.is_none() && world.is_connected(0));
    world.cut(0);
    world.is_slow = false;
    world.pass(SECOND);
    assert!(matches!(world.opened, Some(Ok(_))), "{:?}", world.opened);
    world.assert_read(1, 0);
}
