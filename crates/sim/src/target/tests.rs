use std::collections::BTreeSet;

use netraid_block::Buf;

use super::*;
use crate::{
    dice::Seed,
    disk::{DiskShape, Fill},
    network::{Network, Wire},
    station::Pace,
};

const MS: Duration = Duration::from_millis(1);
const ME: Nexus = Nexus(1);
const OTHER: Nexus = Nexus(2);

fn connections() -> [ConnectionId; 3] {
    let mut network = Network::<()>::new(Seed(0).dice("network"));
    let wire = Wire { pace: Pace::INSTANT, latency: MS..=MS };
    let host = network.add_host(wire);
    [(); 3].map(|()| network.connect(host, host))
}

fn target(seed: u64) -> SimTarget {
    let shape = DiskShape { block_len: 512, blocks: 8, volatile_cache: true, fill: Fill::Zeroes };
    let manners =
        Manners { work: MS..=9 * MS, answer: MS..=2 * MS, linger: 1000 * MS, stragglers: (0, MS) };
    SimTarget::new(Disk::new(shape), manners, Seed(seed).dice("target"))
}

fn block(byte: u8) -> SgList {
    Buf::copy_from(&[byte; 512]).into()
}

fn write(first: u64, byte: u8) -> Command {
    Command::Write { first, data: block(byte), fua: false }
}

fn content(target: &SimTarget, at: u64) -> u8 {
    target.disk().read(at..at + 1).unwrap().to_contiguous()[0]
}

/// Lets everything happen; answers in their order.
fn run(target: &mut SimTarget) -> Vec<(ConnectionId, Reply)> {
    let mut answers = Vec::new();
    while let Some(now) = target.next_timeout() {
        answers.extend(core::iter::from_fn(|| target.poll(now)));
    }
    answers
}

fn send(target: &mut SimTarget, connection: ConnectionId, tag: u64, command: Command) {
    target.handle_request(Time::START, connection, Request::Command(Tag(tag), command));
}

#[test]
fn commands_overtake_each_other_and_each_is_answered_once() {
    let [mine, ..] = connections();
    let mut orders = BTreeSet::new();
    for seed in 0..50 {
        let mut target = target(seed);
        target.handle_request(Time::START, mine, Request::Login(ME));
        for tag in 0..3 {
            send(&mut target, mine, tag, write(0, u8::try_from(tag).unwrap() + 1));
        }
        let mut tags = Vec::new();
        for (_, reply) in run(&mut target) {
            match reply {
                Reply::Done(tag, result) => tags.push((tag, result.is_ok())),
                Reply::LoggedIn { power_failures } => assert_eq!(power_failures, 0),
            }
        }
        assert_eq!(tags.len(), 3);
        orders.insert((content(&target, 0), tags));
    }
    assert!(orders.len() > 5, "orders that were seen: {}", orders.len());
}

#[test]
fn a_command_of_a_lost_session_lands_late_until_its_initiator_comes_back() {
    let [mine, again, _] = connections();
    let (mut late, mut whole, mut never) = (0, 0, 0);
    for seed in 0..100 {
        let mut target = target(seed);
        target.handle_request(Time::START, mine, Request::Login(ME));
        while target.poll(Time::START.after(5 * MS)).is_some() {}
        send(&mut target, mine, 1, write(0, 7));
        target.handle_broken(Time::START, mine);
        if seed % 2 == 0 {
            assert!(run(&mut target).is_empty(), "nobody is there to hear");
            assert_eq!(content(&target, 0), 7);
            late += target.late_effects();
        } else {
            target.handle_request(Time::START, again, Request::Login(ME));
            let after_login = content(&target, 0);
            run(&mut target);
            assert_eq!(content(&target, 0), after_login, "nothing lands after the login");
            assert_eq!(target.waiting(), 0);
            if after_login == 7 { whole += 1 } else { never += 1 }
        }
    }
    assert_eq!(late, 50);
    assert!(whole > 5 && never > 5, "{whole} and {never}");
}

#[test]
fn after_a_fence_nothing_of_another_initiator_has_any_effect() {
    let [mine, theirs, again] = connections();
    for seed in 0..100 {
        let mut target = target(seed);
        target.handle_request(Time::START, mine, Request::Login(ME));
        target.handle_request(Time::START, theirs, Request::Login(OTHER));
        for tag in 0..4 {
            send(&mut target, theirs, tag, write(tag, 9));
        }
        send(&mut target, mine, 9, Command::Fence);
        let mut at_fence = None;
        while let Some(now) = target.next_timeout() {
            while let Some((_, reply)) = target.poll(now) {
                if matches!(reply, Reply::Done(Tag(9), Ok(_))) {
                    at_fence = Some([0, 1, 2, 3].map(|at| content(&target, at)));
                }
            }
        }
        assert_eq!(at_fence, Some([0, 1, 2, 3].map(|at| content(&target, at))));
        target.lose_power(Time::START);
        target.restore_power();
        target.handle_request(Time::START, again, Request::Login(OTHER));
        send(&mut target, again, 20, write(5, 9));
        let refused = |(_, reply): &(ConnectionId, Reply)| {
            matches!(reply, Reply::Done(Tag(20), Err(Refusal::Fenced)))
        };
        assert!(run(&mut target).iter().any(refused));
        assert_eq!(content(&target, 5), 0);
    }
}

#[test]
fn a_power_failure_is_told_at_the_next_login_and_ends_everything() {
    let [mine, again, _] = connections();
    let mut target = target(3);
    target.handle_request(Time::START, mine, Request::Login(ME));
    send(&mut target, mine, 1, write(0, 7));
    target.lose_power(Time::START);
    target.handle_request(Time::START, again, Request::Login(ME));
    assert!(run(&mut target).is_empty(), "a target without power is silent");
    target.restore_power();
    target.handle_request(Time::START, again, Request::Login(ME));
    let answers = run(&mut target);
    let (connection, reply) = &answers[0];
    assert_eq!((answers.len(), *connection), (1, again));
    assert!(matches!(reply, Reply::LoggedIn { power_failures: 1 }));
}

#[test]
fn mischief_befalls_the_next_write_and_is_answered_as_if_nothing_were() {
    let [mine, ..] = connections();
    let mut target = target(4);
    target.handle_request(Time::START, mine, Request::Login(ME));
    target.plan(Mischief::Lose);
    send(&mut target, mine, 1, write(0, 7));
    assert_eq!(run(&mut target).len(), 2);
    target.plan(Mischief::Misdirect { first: 6 });
    let now = target.next_timeout().unwrap_or(Time::START.after(100 * MS));
    target.handle_request(now, mine, Request::Command(Tag(2), write(1, 8)));
    assert_eq!(run(&mut target).len(), 1);
    assert_eq!([0, 1, 6].map(|at| content(&target, at)), [0, 0, 8]);
}

#[test]
fn mischief_that_was_undone_does_not_come_back_with_the_cache_of_its_repair() {
    let [mine, ..] = connections();
    for seed in 0..20 {
        let mut target = target(seed);
        target.handle_request(Time::START, mine, Request::Login(ME));
        target.plan(Mischief::Lose);
        send(&mut target, mine, 1, write(0, 7));
        run(&mut target);
        assert_eq!(content(&target, 0), 0, "lost");
        send(&mut target, mine, 2, write(0, 7));
        run(&mut target);
        target.undo_mischief();
        target.lose_power(Time::START.after(1000 * MS));
        assert_eq!(content(&target, 0), 7, "seed {seed}");
    }
}

#[test]
fn a_fence_takes_over_from_an_older_one() {
    let [mine, theirs, _] = connections();
    let mut target = target(5);
    target.handle_request(Time::START, mine, Request::Login(ME));
    target.handle_request(Time::START, theirs, Request::Login(OTHER));
    send(&mut target, mine, 1, Command::Fence);
    run(&mut target);
    send(&mut target, theirs, 2, Command::Fence);
    run(&mut target);
    send(&mut target, mine, 3, write(0, 7));
    send(&mut target, mine, 4, Command::Reset);
    let answers = run(&mut target);
    let fenced =
        |(_, reply): &(ConnectionId, Reply)| matches!(reply, Reply::Done(_, Err(Refusal::Fenced)));
    assert!(answers.len() == 2 && answers.iter().all(fenced));
    assert_eq!(content(&target, 0), 0);
}

#[test]
fn a_target_that_hangs_answers_when_it_goes_on() {
    let [mine, ..] = connections();
    let mut target = target(6);
    target.handle_request(Time::START, mine, Request::Login(ME));
    target.set_hung(true);
    send(&mut target, mine, 1, write(0, 7));
    assert!(run(&mut target).is_empty());
    assert!(target.poll(Time::START.after(1000 * MS)).is_none());
    target.set_hung(false);
    assert_eq!(run(&mut target).len(), 2);
    assert_eq!(content(&target, 0), 7);
}
