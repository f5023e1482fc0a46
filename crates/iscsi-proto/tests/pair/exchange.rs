//! Commands and data under all kinds of agreements.

use netraid_iscsi_proto::{
    chap::{Credentials, Secret},
    initiator::{self, LoginError, TaskEnd},
    machine::Fatal,
    negotiation::{DigestPolicy, Wishes},
    pdu::{
        LoginRequest, LoginResponse, Opcode, ScsiResponse, TaskRequest, TaskResponseCode,
        TextResponse,
    },
    target, text,
};
use proptest::prelude::*;

use crate::harness::{
    BAD, Host, Pair, READ, SENSE, TARGET, WRITE, command, connection_at, connection_to,
    initiator_setup, target_setup,
};

fn wishes() -> impl Strategy<Value = Wishes> {
    let len = prop_oneof![Just(512_u32), 512..5000_u32, Just(65_536), Just(262_144)];
    let digest = prop_oneof![Just(DigestPolicy::Allowed), Just(DigestPolicy::Never)];
    (len.clone(), len.clone(), len, any::<(bool, bool)>(), 1..5_u32, digest).prop_map(
        |(max_recv_len, max_burst_len, first, (initial_r2t, immediate_data), r2ts, digest)| {
            Wishes {
                max_recv_len,
                max_burst_len,
                first_burst_len: first,
                initial_r2t,
                immediate_data,
                max_outstanding_r2t: r2ts,
                header_digest: digest,
                data_digest: digest,
            }
        },
    )
}

fn pattern(seed: usize, len: u32) -> Vec<u8> {
    let seed = u32::try_from(seed * 7).unwrap();
    (0..len).map(|at| at.wrapping_mul(31).wrapping_add(seed).to_le_bytes()[0]).collect()
}

fn good(received: u32, sent: u32) -> TaskEnd {
    let sense = Vec::new();
    TaskEnd::Status { status: 0, sense, received, sent, underflow: 0, overflow: 0 }
}

proptest! {
    #[test]
    fn data_arrives_as_it_was_sent(
        target in wishes(),
        initiator in wishes(),
        depths in (1..6_u16, 1..6_u16),
        first_cmd_sn in prop_oneof![any::<u32>(), Just(u32::MAX - 1)],
        budget in prop_oneof![Just(1_u64), Just(30_000), Just(1 << 30)],
        lens in prop::collection::vec(1..40_000_u32, 1..14),
        mut picks in prop::collection::vec(any::<prop::sample::Index>(), 64),
        steps in 1..20_usize,
    ) {
        let target = target::Setup {
            wishes: target, queue_depth: depths.0, data_budget: budget, ..target_setup()
        };
        let initiator = initiator::Setup {
            wishes: initiator, queue_depth: depths.1, first_cmd_sn, ..initiator_setup()
        };
        let mut pair = Pair::new(&target, initiator);
        pair.log_in();
        pair.host.eager = false;
        let place = |index: usize| u32::try_from(index).unwrap() * 65_536;
        for opcode in [WRITE, READ] {
            let mut waiting: Vec<usize> = (0..lens.len()).rev().collect();
            let mut running = Vec::new();
            let mut finished = 0;
            let (mut idle, mut rounds) = (0, 0);
            while finished < lens.len() {
                while let Some(&index) = waiting.last() && pair.guest.machine.capacity() > 0 {
                    waiting.pop();
                    let data = if opcode == WRITE { pattern(index, lens[index]) } else { vec![] };
                    let what = command(opcode, place(index), lens[index]);
                    running.push((pair.guest.submit(pair.now, what, &data), index));
                }
                let mut any = false;
                for _ in 0..steps {
                    any |= pair.step().unwrap();
                }
                // Devices answer in any order.
                if let Some(pick) = picks.pop() && !pair.host.executing.is_empty() {
                    let at = pick.index(pair.host.executing.len());
                    let task = pair.host.executing.remove(at).unwrap();
                    pair.host.execute(task);
                    any = true;
                } else if let Some(task) = pair.host.executing.pop_front() {
                    pair.host.execute(task);
                    any = true;
                }
                for (task, end, data) in std::mem::take(&mut pair.guest.ends) {
                    any = true;
                    let at = running.iter().position(|(id, _)| *id == task).unwrap();
                    let (_, index) = running.remove(at);
                    if matches!(end, TaskEnd::Status { status: 0x28, received: 0, underflow, .. } if underflow == lens[index]) {
                        // Task set full: again, as any initiator does.
                        waiting.push(index);
                        continue;
                    }
                    finished += 1;
                    if opcode == READ {
                        prop_assert_eq!(end, good(lens[index], 0));
                        prop_assert!(data == pattern(index, lens[index]), "read {index}");
                    } else {
                        prop_assert_eq!(end, good(0, lens[index]));
                    }
                }
                rounds += 1;
                prop_assert!(rounds < 50_000, "no end: {} of {} done", finished, lens.len());
                idle = if any { 0 } else { idle + 1 };
                prop_assert!(idle < 10, "nothing moves: {} of {} done", finished, lens.len());
            }
            for (index, len) in lens.iter().enumerate() {
                let at = place(index) as usize;
                prop_assert!(pair.host.disk[at..at + *len as usize] == pattern(index, *len));
            }
        }
        prop_assert!(pair.host.machine.is_idle());
    }
}

#[test]
fn bursts_and_r2ts_keep_to_the_agreement() {
    let both = Wishes {
        max_recv_len: 1000,
        max_burst_len: 3000,
        first_burst_len: 2000,
        max_outstanding_r2t: 2,
        ..Wishes::default()
    };
    for (initial_r2t, immediate_data) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let wishes = Wishes { initial_r2t, immediate_data, ..both.clone() };
        let mut pair = Pair::with_wishes(wishes.clone(), wishes);
        pair.trace.clear();
        pair.guest.submit(pair.now, command(WRITE, 0, 10_000), &pattern(1, 10_000));
        pair.run();
        assert_eq!(pair.guest.ends[0].1, good(0, 10_000));
        assert!(pair.host.disk[..10_000] == pattern(1, 10_000));
        let count =
            |opcode| pair.trace.iter().filter(|(_, bhs)| bhs.opcode() == Some(opcode)).count();
        let immediate = pair.trace[0].1.data_len();
        assert_eq!(immediate, if immediate_data { 1000 } else { 0 });
        let unsolicited = if initial_r2t { immediate } else { 2000 };
        let r2ts = (10_000 - unsolicited).div_ceil(3000) as usize;
        assert_eq!(count(Opcode::R2t), r2ts, "{initial_r2t} {immediate_data}");
        assert_eq!(count(Opcode::ScsiResponse), 1);
    }
}

#[test]
fn status_travels_with_the_last_data() {
    let mut pair = Pair::with_wishes(Wishes::default(), Wishes::default());
    pair.trace.clear();
    pair.guest.submit(pair.now, command(READ, 0, 5000), &[]);
    pair.run();
    assert_eq!(pair.guest.ends[0].1, good(5000, 0));
    let replies: Vec<_> =
        pair.trace.iter().filter(|(out, _)| !out).map(|(_, b)| b.opcode()).collect();
    assert_eq!(replies, [Some(Opcode::DataIn)]);
}

#[test]
fn residuals_and_sense_reach_the_initiator() {
    let mut pair = Pair::with_wishes(Wishes::default(), Wishes::default());
    // The disk ends 100 bytes into the range.
    let end = u32::try_from(pair.host.disk.len()).unwrap();
    pair.guest.submit(pair.now, command(READ, end - 100, 4096), &[]);
    pair.run();
    let TaskEnd::Status { received, underflow, .. } = pair.guest.ends.pop().unwrap().1 else {
        panic!()
    };
    assert_eq!((received, underflow), (100, 3996));
    pair.guest.submit(pair.now, command(BAD, 0, 512), &[]);
    pair.run();
    let end = pair.guest.ends.pop().unwrap().1;
    let (sense, underflow) = (SENSE.into(), 512);
    let expected =
        TaskEnd::Status { status: 2, sense, received: 0, sent: 0, underflow, overflow: 0 };
    assert_eq!(end, expected);
}

#[test]
fn an_early_response_says_what_was_sent_and_what_is_over() {
    let wishes = Wishes { initial_r2t: true, immediate_data: false, ..Wishes::default() };
    let mut pair = Pair::with_wishes(wishes.clone(), wishes);
    pair.guest.submit(pair.now, command(WRITE, 0, 512), &pattern(1, 512));
    let (transmit, _) = pair.guest.transmit().unwrap();
    let response = ScsiResponse {
        overflow: true,
        underflow: false,
        response: 0,
        status: 0,
        itt: transmit.header.itt(),
        exp_data_sn: 0,
        residual: 7,
    };
    let mut response = response.encode();
    response.stamp_stat_sn(pair.next_stat_sn());
    pair.guest.receive(pair.now, &response, &[]).unwrap();
    let end = pair.guest.ends.pop().unwrap().1;
    let (status, sense, underflow) = (0, vec![], 0);
    let expected = TaskEnd::Status { status, sense, received: 0, sent: 0, underflow, overflow: 7 };
    assert_eq!(end, expected);
}

fn chap(user: &str, secret: &[u8]) -> Option<Credentials> {
    Some(Credentials { user: user.into(), secret: Secret::new(secret).unwrap() })
}

#[test]
fn chap_admits_exactly_who_knows() {
    let users = chap("joe", b"a secret of 18 b.").into_iter().collect();
    let target = target::Setup { chap: users, ..target_setup() };
    let open = target_setup();
    let attempt_as = |target: &target::Setup, chap, allow_none| {
        let setup = initiator::Setup { chap, allow_none, ..initiator_setup() };
        let mut pair = Pair::new(target, setup);
        pair.run();
        assert!(pair.guest.machine.capacity() == 0 || pair.node.session_count() == 1);
        pair.guest.events.pop().unwrap()
    };
    let attempt = |target: &target::Setup, chap| attempt_as(target, chap, false);
    let refused = initiator::Event::LoginFailed(LoginError::Authentication);
    assert_eq!(attempt(&target, chap("joe", b"a secret of 18 b.")), initiator::Event::LoggedIn);
    assert_eq!(attempt(&target, chap("joe", b"a secret of 18 c.")), refused);
    assert_eq!(attempt(&target, chap("jim", b"a secret of 18 b.")), refused);
    assert_eq!(attempt(&target, None), refused);
    // Whoever asks for no proof may be another than who was meant.
    let unasked = initiator::Event::LoginFailed(LoginError::Unasked);
    assert_eq!(attempt(&open, chap("joe", b"anything")), unasked);
    let told = attempt_as(&open, chap("joe", b"anything"), true);
    assert_eq!(told, initiator::Event::LoggedIn);
}

#[test]
fn who_wants_in_without_proof_is_refused_at_once() {
    let users = chap("joe", b"a secret of 18 b.").into_iter().collect();
    let target = target::Setup { chap: users, ..target_setup() };
    let mut pair = Pair::new(&target, initiator_setup());
    let request = LoginRequest {
        transit: true,
        more: false,
        current_stage: 0,
        next_stage: 1,
        version_max: 0,
        version_min: 0,
        isid: [0x80; 6],
        tsih: 0,
        itt: 1,
        cid: 1,
    };
    let mut keys = Vec::new();
    text::push(&mut keys, "InitiatorName", "iqn.2026-01.org.example:i");
    text::push(&mut keys, "TargetName", TARGET);
    let len = u32::try_from(keys.len()).unwrap();
    let bhs = request.encode().with_data_len(len);
    pair.host.receive(pair.now, &mut pair.node, &bhs, &keys).unwrap();
    let (answer, _) = pair.host.transmit().unwrap();
    assert_eq!(LoginResponse::parse(&answer.header).status, 0x0201);
    assert!(pair.host.machine.is_finished());
}

#[test]
fn discovery_names_the_target_at_every_portal() {
    let mut pair =
        Pair::new(&target_setup(), initiator::Setup { target_name: None, ..initiator_setup() });
    pair.run();
    let found = pair.guest.events.iter().find_map(|event| {
        if let initiator::Event::Found(found) = event { Some(found.clone()) } else { None }
    });
    let found = found.unwrap();
    assert_eq!(found[0].name, TARGET);
    assert_eq!(found[0].addresses, ["127.0.0.1:3260,1", "192.0.2.1:3260,1"]);
    pair.guest.machine.logout(pair.now);
    pair.run();
    pair.guest.handle_events();
    assert!(pair.guest.events.contains(&initiator::Event::LoggedOut));
    assert!(pair.host.machine.is_finished());
}

#[test]
fn discovery_names_addresses_of_the_link_to_who_came_by_one_and_no_zones() {
    for (asked, named) in [
        ("[fe80::1%3]:3260", &["[fe80::1]:3260,1", "[fe80::2]:3260,1", "[2001:db8::1]:3260,1"][..]),
        ("[2001:db8::1]:3260", &["[2001:db8::1]:3260,1"]),
    ] {
        let discovery = initiator::Setup { target_name: None, ..initiator_setup() };
        let mut setup = target_setup();
        setup.portals =
            ["[fe80::1]:3260", "[fe80::2]:3260", "[2001:db8::1]:3260"].map(String::from).to_vec();
        let mut pair = Pair::new(&setup, discovery);
        pair.node = target::Node::new(target::Limits::default());
        let portal = asked.parse().unwrap();
        pair.host = Host::new(connection_to(portal, &mut pair.node, &setup), 1 << 16);
        pair.run();
        let found = pair.guest.events.iter().find_map(|event| {
            if let initiator::Event::Found(found) = event { Some(found.clone()) } else { None }
        });
        assert_eq!(found.unwrap()[0].addresses, named, "{asked}");
    }
}

#[test]
fn discovery_from_another_host_names_no_loopback_portal() {
    // Appendix C: the addresses at which the target can be reached.
    let discovery = initiator::Setup { target_name: None, ..initiator_setup() };
    let mut setup = target_setup();
    setup.portals = ["127.0.0.1:3260", "[::1]:3260", "192.0.2.1:3260", "192.0.2.2:3260"]
        .map(String::from)
        .to_vec();
    let mut pair = Pair::new(&setup, discovery);
    pair.node = target::Node::new(target::Limits::default());
    pair.host = Host::new(connection_at([192, 0, 2, 1], &mut pair.node, &setup), 1 << 16);
    pair.run();
    let found = pair.guest.events.iter().find_map(|event| {
        if let initiator::Event::Found(found) = event { Some(found.clone()) } else { None }
    });
    assert_eq!(found.unwrap()[0].addresses, ["192.0.2.1:3260,1", "192.0.2.2:3260,1"]);
}

#[test]
fn a_list_of_targets_that_never_ends_is_given_up() {
    let mut pair =
        Pair::new(&target_setup(), initiator::Setup { target_name: None, ..initiator_setup() });
    let itt = loop {
        let (transmit, data) = pair.guest.transmit().unwrap();
        if transmit.header.opcode() == Some(Opcode::TextRequest) {
            break transmit.header.itt();
        }
        pair.host.receive(pair.now, &mut pair.node, &transmit.header, &data).unwrap();
        let (transmit, data) = pair.host.transmit().unwrap();
        pair.trace.push((false, transmit.header));
        pair.guest.receive(pair.now, &transmit.header, &data).unwrap();
    };
    let mut more = TextResponse { last: false, more: true, itt, ttt: 1 }.encode();
    let mut stat_sn = pair.next_stat_sn();
    for _ in 0..10_000 {
        more.stamp_stat_sn(stat_sn);
        stat_sn = stat_sn.next();
        if let Err(error) = pair.guest.receive(pair.now, &more, &[]) {
            assert!(matches!(error, Fatal::Text(_)), "{error}");
            return;
        }
        assert!(pair.guest.transmit().is_some(), "asks on");
    }
    panic!("still asking");
}

#[test]
fn a_logout_after_a_long_silence_has_its_whole_time() {
    let mut pair = Pair::with_wishes(Wishes::default(), Wishes::default());
    let now = std::time::Duration::from_secs(5000);
    pair.guest.machine.logout(now);
    assert!(pair.guest.machine.next_timeout().unwrap() > now);
    assert_eq!(pair.guest.machine.handle_timeout(now), Ok(()));
}

#[test]
fn logging_in_fails_for_the_stated_reason() {
    let mut pair = Pair::new(
        &target_setup(),
        initiator::Setup {
            target_name: Some("iqn.2026-01.org.example:x".into()),
            ..initiator_setup()
        },
    );
    pair.run();
    assert_eq!(pair.guest.events, [initiator::Event::LoginFailed(LoginError::NotFound)]);
    let strict = Wishes { data_digest: DigestPolicy::Required, ..Wishes::default() };
    let never = Wishes { data_digest: DigestPolicy::Never, ..Wishes::default() };
    let mut pair = Pair::new(
        &target::Setup { wishes: strict, ..target_setup() },
        initiator::Setup { wishes: never, ..initiator_setup() },
    );
    pair.run();
    let refused = LoginError::Refused { status: 0x0200 };
    assert_eq!(pair.guest.events, [initiator::Event::LoginFailed(refused)]);
    assert_eq!(pair.node.session_count(), 0);
}

#[test]
fn an_abort_is_confirmed_only_when_the_command_is_dead() {
    let mut pair = Pair::with_wishes(Wishes::default(), Wishes::default());
    pair.host.eager = false;
    let task = pair.guest.submit(pair.now, command(WRITE, 0, 512), &pattern(1, 512));
    pair.run();
    let cmd_sn = pair.trace.last().unwrap().1.cmd_sn().0;
    pair.trace.clear();
    pair.guest.machine.abort(task);
    pair.run();
    assert_eq!(TaskRequest::parse(&pair.trace[0].1).ref_cmd_sn, cmd_sn, "the command's own");
    assert!(pair.guest.ends.is_empty(), "the device still works on it");
    let executing = pair.host.executing.pop_front().unwrap();
    pair.host.execute(executing);
    pair.run();
    assert_eq!(pair.guest.ends.pop().unwrap().1, TaskEnd::Aborted);
    // One that gathers its data dies at once.
    let wishes = Wishes { initial_r2t: true, immediate_data: false, ..Wishes::default() };
    let mut pair = Pair::with_wishes(wishes.clone(), wishes);
    let task = pair.guest.submit(pair.now, command(WRITE, 0, 512), &pattern(1, 512));
    let (transmit, data) = pair.guest.transmit().unwrap();
    pair.host.receive(pair.now, &mut pair.node, &transmit.header, &data).unwrap();
    pair.guest.machine.abort(task);
    pair.run();
    assert_eq!(pair.guest.ends.pop().unwrap().1, TaskEnd::Aborted);
    assert_eq!((pair.host.disk[0], pair.guest.ends.len()), (0, 0));
    // Not sent yet: the target never hears of it.
    let task = pair.guest.submit(pair.now, command(READ, 0, 512), &[]);
    let heard = pair.host.commands;
    pair.guest.machine.abort(task);
    pair.guest.handle_events();
    pair.run();
    assert_eq!((pair.guest.ends.len(), pair.host.commands), (1, heard));
    assert!(!pair.guest.events.iter().any(|event| {
        matches!(event, initiator::Event::AbortFailed(TaskResponseCode::Rejected))
    }));
}
