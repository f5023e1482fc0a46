use std::{net::Ipv4Addr, string::ToString as _, vec::Vec};

use super::*;

const LIMITS: Limits = Limits { connections: 8, connections_per_source: 4, ..Limits::DEFAULT };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A token of its own for each connection.
fn token_of(id: ConnectionId) -> TokenKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&id.0.to_be_bytes());
    key
}

fn host(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number).into()
}

fn admitted(arrival: Arrival) -> ConnectionId {
    let Arrival::Admitted(id, _) = arrival else { panic!("{arrival:?}") };
    id
}

/// A peer that said a known token, and was answered.
fn idle_friend(limiter: &mut Limiter, now: Duration, peer: IpAddr) -> ConnectionId {
    let id = busy_friend(limiter, now, peer);
    limiter.handle_answer(now, id);
    limiter.handle_answered(now, id);
    id
}

/// A peer that said a known token, and is being answered.
fn busy_friend(limiter: &mut Limiter, now: Duration, peer: IpAddr) -> ConnectionId {
    let id = admitted(limiter.arrive(now, peer));
    assert_eq!(limiter.handle_header(now, id, Some(token_of(id))), None);
    limiter.handle_body_end(id);
    id
}

#[test]
fn the_oldest_stranger_of_a_source_leaves_for_its_next_one() {
    let mut limiter = Limiter::new(LIMITS);
    let old: Vec<_> = (0..4).map(|n| admitted(limiter.arrive(at(n), host(1)))).collect();
    let Arrival::Admitted(new, loser) = limiter.arrive(at(4), host(1)) else { panic!() };
    assert_eq!(loser, Some(old[0]));
    assert_eq!(limiter.must_close(at(4), old[0]), Some(Ending::GivesWay));
    for stays in [old[1], old[2], old[3], new] {
        assert_eq!(limiter.must_close(at(4), stays), None);
    }
    // It has no place any more, although it is still there.
    let Arrival::Admitted(_, loser) = limiter.arrive(at(4), host(1)) else { panic!() };
    assert_eq!(loser, Some(old[1]));
    assert!(matches!(limiter.arrive(at(4), host(2)), Arrival::Admitted(_, None)));
}

#[test]
fn strangers_leave_before_those_who_said_a_token_and_the_busy_never() {
    let mut limiter = Limiter::new(LIMITS);
    let busy = busy_friend(&mut limiter, at(0), host(1));
    let [first, second] = [1, 2].map(|n| idle_friend(&mut limiter, at(n), host(1)));
    let stranger = admitted(limiter.arrive(at(3), host(1)));
    let mut leaves = |now, id| {
        let Arrival::Admitted(new, loser) = limiter.arrive(at(now), host(1)) else { panic!() };
        assert_eq!(loser, Some(id), "at {now}");
        let _ = limiter.handle_header(at(now), new, Some(token_of(new)));
    };
    leaves(4, stranger);
    leaves(5, first);
    leaves(6, second);
    assert_eq!(limiter.must_close(at(6), busy), None);
    let Arrival::Admitted(told, None) = limiter.arrive(at(7), host(1)) else { panic!() };
    assert_eq!(limiter.handle_header(at(7), told, Some(token_of(told))), Some(Shortage::Source(4)));
    assert!(!limiter.handle_body(told, 1 << 30));
    let text = Shortage::Source(4).to_string();
    assert!(text.contains("all 4 connections") && text.contains("--connections-per-source"));
}

#[test]
fn who_has_no_token_keeps_nobody_out_who_has_one() {
    let mut limiter = Limiter::new(Limits::DEFAULT);
    let friend = idle_friend(&mut limiter, at(0), host(1));
    let mut others = 0;
    for number in 0..5_000_u64 {
        let peer = Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number % 1024).unwrap()).into();
        if let Arrival::Admitted(id, loser) = limiter.arrive(at(1), peer) {
            let _ = limiter.handle_header(at(1), id, None);
            if let Some(loser) = loser {
                assert_ne!(loser, friend);
                limiter.handle_end(loser);
            } else {
                others += 1;
            }
        }
    }
    assert_eq!(others, Limits::DEFAULT.connections - 1);
    let Arrival::Admitted(new, _) = limiter.arrive(at(2), host(1)) else { panic!() };
    assert_eq!(limiter.handle_header(at(2), new, Some(token_of(new))), None);
    assert_eq!(limiter.must_close(at(2), new), None);
}

#[test]
fn when_all_places_are_taken_the_source_with_most_strangers_loses_one() {
    let mut limiter = Limiter::new(LIMITS);
    let lone = admitted(limiter.arrive(at(0), host(9)));
    let many: Vec<_> = (1..5).map(|n| admitted(limiter.arrive(at(n), host(1)))).collect();
    for number in 2..5 {
        let _ = admitted(limiter.arrive(at(5), host(number)));
    }
    let Arrival::Admitted(_, loser) = limiter.arrive(at(6), host(7)) else { panic!() };
    assert_eq!(loser, Some(many[0]));
    assert_eq!(limiter.must_close(at(6), lone), None);
}

#[test]
fn no_more_than_so_many_are_leaving_or_are_told() {
    let mut limiter = Limiter::new(Limits { connections: 2, ..LIMITS });
    let arrivals = (0..1000).map(|_| limiter.arrive(at(0), host(1)));
    let count = arrivals.filter(|arrival| *arrival != Arrival::Refused).count();
    assert_eq!(count, 2 + LEAVING_MAX, "none of them has ended yet");

    let mut limiter = Limiter::new(Limits { connections: 2, ..LIMITS });
    for _ in 0..2 {
        busy_friend(&mut limiter, at(0), host(1));
    }
    let told = (0..1000).filter(|_| limiter.arrive(at(0), host(2)) != Arrival::Refused).count();
    assert_eq!(told, TOLD_MAX);
    let report = limiter.poll_report(at(0)).unwrap();
    assert_eq!((report.told, report.refused), (TOLD_MAX as u64, 1000 - TOLD_MAX as u64));
    assert_eq!(limiter.poll_report(at(60)), None, "nothing has happened since");
}

#[test]
fn a_peer_that_sends_its_header_or_its_body_too_slowly_is_ended() {
    let mut limiter = Limiter::new(LIMITS);
    let id = admitted(limiter.arrive(at(0), host(1)));
    // Each byte alone changes nothing.
    for second in 0..10 {
        limiter.handle_bytes(at(second), id);
        assert_eq!(limiter.must_close(at(second), id), None);
    }
    assert_eq!(limiter.next_timeout(id), Some(at(10)));
    assert_eq!(limiter.must_close(at(10), id), Some(Ending::HeaderTime));

    let id = admitted(limiter.arrive(at(20), host(1)));
    assert_eq!(limiter.handle_header(at(29), id, Some(token_of(id))), None);
    assert!(limiter.handle_body(id, 1000));
    assert_eq!(limiter.next_timeout(id), Some(at(59)));
    assert_eq!((limiter.must_close(at(59), id), limiter.must_answer(at(58), id)), (None, None));
    assert_eq!(limiter.must_answer(at(59), id), Some(Shortage::BodyTime(at(30))));
    assert_eq!(limiter.must_answer(at(60), id), None, "said once");
}

#[test]
fn a_connection_is_kept_between_requests_for_as_long_as_it_may_be_idle() {
    let mut limiter = Limiter::new(LIMITS);
    let id = idle_friend(&mut limiter, at(5), host(1));
    assert_eq!(limiter.must_close(at(64), id), None);
    limiter.handle_bytes(at(64), id);
    assert_eq!(limiter.next_timeout(id), Some(at(74)), "the time of a header");
    let _ = limiter.handle_header(at(64), id, Some(token_of(id)));
    limiter.handle_body_end(id);
    assert_eq!(limiter.next_timeout(id), None, "work takes as long as it takes");
    limiter.handle_answer(at(600), id);
    limiter.handle_sent(at(650), id);
    assert_eq!(limiter.must_close(at(709), id), None);
    assert_eq!(limiter.must_close(at(710), id), Some(Ending::Idle), "the answer is not taken");
}

#[test]
fn what_comes_behind_the_last_answer_is_thrown_away_so_much_of_it_for_so_long() {
    let mut limiter = Limiter::new(LIMITS);
    let [slow, long] = [1, 2].map(|host_number| {
        let id = admitted(limiter.arrive(at(0), host(host_number)));
        limiter.handle_header(at(1), id, None);
        limiter.handle_answer(at(1), id);
        limiter.handle_answered(at(1), id);
        limiter.handle_last_answered(at(2), id);
        id
    });
    // Bytes begin no request, and win no time.
    limiter.handle_bytes(at(11), slow);
    assert!(limiter.handle_thrown_away(slow, 8 << 20));
    assert_eq!(limiter.must_close(at(11), slow), None);
    assert_eq!(limiter.must_close(at(12), slow), Some(Ending::Lingered));
    assert!(limiter.handle_thrown_away(long, LINGER_BYTES_MAX));
    assert!(!limiter.handle_thrown_away(long, 1));
    // Nothing is wrong with that.
    limiter.handle_end(slow);
    assert_eq!(limiter.poll_report(at(20)), None);
    // One that said a token is in nobody's way meanwhile.
    let friends: Vec<_> = (0..4).map(|n| idle_friend(&mut limiter, at(20 + n), host(3))).collect();
    limiter.handle_last_answered(at(24), friends[0]);
    limiter.handle_answer(at(25), friends[1]);
    let Arrival::Admitted(_, loser) = limiter.arrive(at(26), host(3)) else { panic!() };
    assert_eq!(loser, Some(friends[2]), "idle for longest");
    let Arrival::Admitted(_, loser) = limiter.arrive(at(26), host(3)) else { panic!() };
    assert!(loser.is_some_and(|loser| !friends.contains(&loser)), "a stranger");
}

#[test]
fn bodies_hold_no_more_than_they_may_and_strangers_have_none() {
    let mut limiter = Limiter::new(Limits { bodies_bytes: 100, ..LIMITS });
    let [one, two] = [1, 2].map(|n| admitted(limiter.arrive(at(0), host(n))));
    let _ = (
        limiter.handle_header(at(0), one, Some(token_of(one))),
        limiter.handle_header(at(0), two, Some(token_of(two))),
    );
    let other = busy_friend(&mut limiter, at(0), host(5));
    assert!(limiter.handle_body(one, 50));
    assert!(limiter.handle_body(other, 30));
    assert!(!limiter.handle_body(two, 21));
    limiter.handle_end(other);
    limiter.handle_body_end(two);
    assert_eq!(limiter.must_answer(at(0), two), Some(Shortage::Bodies(100)));
    assert_eq!(limiter.must_answer(at(0), one), None);
    // What was asked goes when the answer does.
    limiter.handle_body_end(one);
    limiter.handle_answer(at(1), one);
    let three = busy_friend(&mut limiter, at(1), host(3));
    assert!(limiter.handle_body(three, 50));
    limiter.handle_end(three);
    assert_eq!(limiter.body_bytes, 0);
    let stranger = admitted(limiter.arrive(at(1), host(4)));
    assert_eq!(limiter.handle_header(at(1), stranger, None), None);
    assert_eq!(limiter.next_timeout(stranger), None, "no body of it is waited for");
}

#[test]
fn a_process_without_descriptors_lets_a_stranger_go_and_never_one_that_is_busy() {
    let mut limiter = Limiter::new(LIMITS);
    let friend = busy_friend(&mut limiter, at(0), host(1));
    let stranger = admitted(limiter.arrive(at(0), host(2)));
    assert_eq!(limiter.handle_exhausted(), Some(stranger));
    assert_eq!(limiter.handle_exhausted(), None);
    assert_eq!(limiter.must_close(at(0), friend), None);
    let few = Limits::DEFAULT.within_descriptors(64);
    assert_eq!((few.connections, few.connections_per_source), (16, 16));
    assert_eq!(Limits::DEFAULT.within_descriptors(1 << 20), Limits::DEFAULT);
    assert_eq!(Limits::DEFAULT.within_descriptors(0).connections, 1);
}

#[test]
fn a_network_of_64_bits_is_one_source_of_ipv6() {
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(source_of(parse("2001:db8::1")), source_of(parse("2001:db8::ffff:1")));
    assert_ne!(source_of(parse("2001:db8::1")), source_of(parse("2001:db8:0:1::1")));
    assert_eq!(source_of(parse("::ffff:192.0.2.1")), host(1));
}

/// What one token sends that never ends a request, on so many connections of that host.
fn half_bodies(limiter: &mut Limiter, now: Duration, peer: IpAddr, count: usize) {
    for _ in 0..count {
        let Arrival::Admitted(id, _) = limiter.arrive(now, peer) else { continue };
        let _ = limiter.handle_header(now, id, Some([7; 32]));
        let leaving = limiter.connections.iter().filter(|(_, one)| one.leaves);
        let leaving: Vec<_> = leaving.map(|(id, _)| *id).collect();
        leaving.into_iter().for_each(|id| limiter.handle_end(id));
    }
}

#[test]
fn who_has_one_token_keeps_nobody_out_who_has_another() {
    let mut limiter = Limiter::new(Limits::DEFAULT);
    let friend = idle_friend(&mut limiter, at(0), host(200));
    for number in 1..=20 {
        half_bodies(&mut limiter, at(1), host(number), 64);
    }
    assert_eq!(limiter.must_close(at(1), friend), None);
    // Neither of an address that has connections left, nor of one of which all are in use.
    for peer in [host(201), host(20)] {
        let Arrival::Admitted(new, Some(loser)) = limiter.arrive(at(2), peer) else {
            panic!("{peer} is kept out")
        };
        assert_eq!(limiter.handle_header(at(2), new, Some([8; 32])), None);
        assert_eq!(limiter.must_close(at(2), loser), Some(Ending::GivesWay));
        assert_eq!(limiter.connections[&loser].token, Some([7; 32]));
        limiter.handle_end(loser);
    }
    // Memory for bodies neither.
    let greedy = limiter.connections.iter().find(|(_, one)| one.token == Some([7; 32]));
    let greedy = *greedy.unwrap().0;
    assert!(limiter.handle_body(greedy, 16 << 20));
    assert!(!limiter.handle_body(greedy, 1));
    let _ = limiter.handle_header(at(3), friend, Some(token_of(friend)));
    assert!(limiter.handle_body(friend, 8 << 20));
}
