//! Sequence numbers, windows, time, and sessions that replace each other.

use std::time::Duration;

use netraid_iscsi_proto::{
    initiator,
    machine::Fatal,
    negotiation::Wishes,
    pdu::{
        AsyncEvent, AsyncMessage, Bhs, LogoutReason, LogoutRequest, LogoutResponse, LunField,
        NO_TAG, NopIn, NopOut, Opcode, Reject, RejectReason, ScsiCommand, TaskFunction,
        TaskRequest, TaskResponse, TaskResponseCode, TextRequest,
    },
    serial::Serial,
    target,
};

use crate::{
    harness::{Host, Pair, READ, command, connection, initiator_setup, target_setup},
    management::abort,
};

pub(crate) fn pair() -> Pair {
    Pair::with_wishes(Wishes::default(), Wishes::default())
}

/// A read by hand.
pub(crate) fn read(cmd_sn: Serial, itt: u32, immediate: bool) -> Bhs {
    let bhs = ScsiCommand {
        immediate,
        last: true,
        read: true,
        write: false,
        attribute: 1,
        lun: LunField::from_number(0),
        itt,
        expected_len: 512,
        cdb: command(READ, 0, 512).cdb,
    };
    let mut bhs = bhs.encode();
    bhs.stamp_command(cmd_sn, Serial(0));
    bhs
}

pub(crate) fn give(pair: &mut Pair, bhs: &Bhs) -> Result<(), Fatal> {
    pair.host.receive(pair.now, &mut pair.node, bhs, &[])
}

pub(crate) fn replies(pair: &mut Pair) -> Vec<Bhs> {
    std::iter::from_fn(|| pair.host.transmit()).map(|(transmit, _)| transmit.header).collect()
}

#[test]
fn commands_outside_the_window_are_ignored_silently() {
    let depth = 4;
    let target = target::Setup { queue_depth: depth, ..target_setup() };
    let mut pair =
        Pair::new(&target, initiator::Setup { first_cmd_sn: u32::MAX, ..initiator_setup() });
    pair.log_in();
    pair.host.eager = false;
    let next = Serial(u32::MAX);
    for wrong in [next.plus(u32::from(depth)), next.plus(u32::MAX), next.plus(1 << 30)] {
        give(&mut pair, &read(wrong, 1, false)).unwrap();
    }
    assert_eq!((pair.host.commands, replies(&mut pair).len()), (0, 0));
    for step in 0..u32::from(depth) {
        give(&mut pair, &read(next.plus(step), step, false)).unwrap();
    }
    assert_eq!(pair.host.commands, 4, "over the wrap");
    give(&mut pair, &read(next.plus(u32::from(depth)), 9, false)).unwrap();
    assert_eq!(pair.host.commands, 4, "the window is closed");
    give(&mut pair, &read(next.plus(u32::from(depth)), 10, true)).unwrap();
    assert_eq!(pair.host.commands, 5, "immediate commands pass");
    let task = pair.host.executing.pop_front().unwrap();
    pair.host.execute(task);
    let window: Vec<_> = replies(&mut pair).iter().map(Bhs::max_cmd_sn).collect();
    assert_eq!(window, [next.plus(4)], "a response gives its place back");
}

#[test]
fn a_gap_and_a_used_tag_are_refused() {
    let mut pair = pair();
    pair.host.eager = false;
    let gap = give(&mut pair, &read(Serial(3), 1, false));
    assert!(matches!(gap, Err(Fatal::Protocol(_))), "{gap:?}");
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    give(&mut pair, &read(Serial(2), 5, false)).unwrap();
    let reply = replies(&mut pair)[0];
    assert_eq!(reply.opcode(), Some(Opcode::Reject));
    assert_eq!(Reject::parse(&reply).reason, RejectReason::TaskInProgress);
    assert_eq!(pair.host.commands, 1);
}

/// A request that no target knows.
fn unknown(cmd_sn: Serial) -> Bhs {
    let mut bhs = read(cmd_sn, 5, false);
    bhs.0[0] = 0x1f;
    bhs
}

#[test]
fn the_number_of_a_rejected_request_may_come_again() {
    // RFC 7143, section 7.3: it was not received, and the initiator must use it.
    let mut pair = pair();
    give(&mut pair, &unknown(Serial(1))).unwrap();
    let reply = replies(&mut pair)[0];
    assert_eq!(reply.opcode(), Some(Opcode::Reject));
    assert_eq!(reply.expected_sn(), Serial(1));
    give(&mut pair, &read(Serial(1), 6, false)).unwrap();
    assert_eq!(pair.host.commands, 1);
    assert_eq!(replies(&mut pair)[0].expected_sn(), Serial(2));
}

#[test]
fn every_rejected_request_leaves_its_number() {
    // RFC 7143, section 7.3, whatever the request was.
    let task = |function| {
        let (lun, itt) = (LunField::from_number(0), 5);
        TaskRequest { immediate: false, function, lun, itt, referenced_itt: 5, ref_cmd_sn: 1 }
    };
    let reason = LogoutReason::Unknown(9);
    let text = TextRequest { immediate: false, last: true, more: true, itt: 7, ..text() };
    for mut request in [
        read(Serial(2), 5, false),
        task(TaskFunction::AbortTask).encode(),
        LogoutRequest { immediate: false, reason, itt: 7, cid: 1 }.encode(),
        text.encode(),
    ] {
        let mut pair = pair();
        pair.host.eager = false;
        give(&mut pair, &read(Serial(1), 5, false)).unwrap();
        request.stamp_command(Serial(2), Serial(0));
        give(&mut pair, &request).unwrap();
        let reply = replies(&mut pair)[0];
        assert_eq!(reply.opcode(), Some(Opcode::Reject), "{request:?}");
        assert_eq!(reply.expected_sn(), Serial(2), "{request:?}");
    }
}

fn text() -> TextRequest {
    let (lun, itt) = (LunField::default(), 7);
    TextRequest { immediate: false, last: true, more: false, lun, itt, ttt: NO_TAG }
}

#[test]
fn who_takes_the_numbers_of_rejected_requests_for_used_may_go_on() {
    // Not after RFC 7143, section 7.3, but as most initiators do.
    let mut pair = pair();
    give(&mut pair, &unknown(Serial(1))).unwrap();
    give(&mut pair, &unknown(Serial(2))).unwrap();
    give(&mut pair, &read(Serial(3), 6, false)).unwrap();
    assert_eq!(pair.host.commands, 1);
    assert_eq!(replies(&mut pair).last().unwrap().expected_sn(), Serial(4));
    // What was not rejected is missing all the same.
    give(&mut pair, &unknown(Serial(4))).unwrap();
    let gap = give(&mut pair, &read(Serial(6), 7, false));
    assert!(matches!(gap, Err(Fatal::Protocol(_))), "{gap:?}");
}

#[test]
fn an_abort_plugs_the_gap_of_a_rejected_request() {
    // RFC 7143, sections 7.3 and 11.6.1 (b).
    let mut pair = pair();
    give(&mut pair, &unknown(Serial(1))).unwrap();
    replies(&mut pair);
    give(&mut pair, &abort(5, 1)).unwrap();
    let reply = replies(&mut pair)[0];
    assert_eq!(TaskResponse::parse(&reply).code, TaskResponseCode::Complete);
    assert_eq!(reply.expected_sn(), Serial(2));
    give(&mut pair, &read(Serial(2), 6, false)).unwrap();
    assert_eq!(pair.host.commands, 1);
}

#[test]
fn requests_that_no_target_knows_are_rejected() {
    let mut pair = pair();
    give(&mut pair, &unknown(Serial(1))).unwrap();
    let reply = replies(&mut pair)[0];
    assert_eq!(Reject::parse(&reply).reason, RejectReason::Unsupported);
}

#[test]
fn a_snack_is_refused() {
    // RFC 7143, section 11.16: recovery is for later levels.
    let mut pair = pair();
    let mut snack = unknown(Serial(1));
    snack.0[0] = 0x10;
    give(&mut pair, &snack).unwrap();
    assert_eq!(Reject::parse(&replies(&mut pair)[0]).reason, RejectReason::Snack);
}

#[test]
fn status_numbers_have_no_gaps() {
    let mut pair = pair();
    for _ in 0..20 {
        pair.guest.submit(pair.now, command(READ, 0, 4096), &[]);
    }
    pair.run();
    let numbers: Vec<_> =
        pair.trace.iter().filter(|(out, _)| !out).map(|(_, bhs)| bhs.stat_sn().0).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
}

#[test]
fn silence_is_pinged_and_then_fatal_on_both_sides() {
    let mut pair = pair();
    pair.guest.submit(pair.now, command(READ, 0, 512), &[]);
    pair.run();
    pair.now = pair.host.machine.next_timeout().unwrap();
    pair.host.machine.handle_timeout(pair.now).unwrap();
    pair.guest.machine.handle_timeout(pair.now).unwrap();
    pair.trace.clear();
    pair.run();
    let pings: Vec<_> = pair
        .trace
        .iter()
        .filter_map(|(out, bhs)| match bhs.opcode() {
            Some(Opcode::NopIn) => Some((*out, NopIn::parse(bhs).ttt == NO_TAG)),
            Some(Opcode::NopOut) => Some((*out, NopOut::parse(bhs).itt == NO_TAG)),
            _ => None,
        })
        .collect();
    assert_eq!(pings.len(), 4, "{pings:?}: each side asks, each answers");
    // Now nobody answers.
    for _ in 0..2 {
        pair.now = pair.host.machine.next_timeout().unwrap();
        if pair.host.machine.handle_timeout(pair.now) == Err(Fatal::Silent) {
            let later = pair.now + Duration::from_secs(100);
            assert_eq!(pair.guest.machine.handle_timeout(later), Ok(()), "asks first");
            let later = later + Duration::from_secs(100);
            assert_eq!(pair.guest.machine.handle_timeout(later), Err(Fatal::Silent));
            return;
        }
        while pair.host.transmit().is_some() {}
    }
    panic!("the target never gave up");
}

#[test]
fn a_login_that_does_not_end_is_cut_off() {
    let mut node = target::Node::new(target::Limits::default());
    let mut machine = connection(&mut node, &target_setup());
    let deadline = machine.next_timeout().unwrap();
    assert_eq!(machine.handle_timeout(deadline - Duration::from_nanos(1)), Ok(()));
    assert_eq!(machine.handle_timeout(deadline), Err(Fatal::LoginTimeout));
}

#[test]
fn a_new_session_waits_for_what_the_old_one_still_executes() {
    let mut pair = pair();
    pair.host.eager = false;
    pair.guest.submit(pair.now, command(READ, 0, 512), &[]);
    pair.run();
    let fresh = Pair::new(&target_setup(), initiator_setup());
    let machine = connection(&mut pair.node, &target_setup());
    let old = std::mem::replace(&mut pair.guest, fresh.guest);
    let mut old_host = std::mem::replace(&mut pair.host, Host::new(machine, 1 << 16));
    drop(old);
    pair.run();
    assert!(pair.guest.events.is_empty(), "admitted too early");
    assert_eq!(pair.node.poll_wake(), Some(old_host.machine.id()));
    old_host.machine.handle_wake(&mut pair.node);
    while old_host.transmit().is_some() {}
    assert!(old_host.machine.is_finished() && !old_host.machine.is_idle());
    let task = old_host.executing.pop_front().unwrap();
    old_host.execute(task);
    old_host.handle_events();
    assert!(old_host.machine.is_idle());
    pair.node.closed(old_host.machine.id());
    while let Some(id) = pair.node.poll_wake() {
        assert_eq!(id, pair.host.machine.id());
        pair.host.machine.handle_wake(&mut pair.node);
    }
    pair.log_in();
    assert_eq!(pair.node.session_count(), 1);
}

#[test]
fn task_management_answers_each_function() {
    let mut pair = pair();
    pair.node.add_lun(netraid_iscsi_proto::target::Realm::HOME, 1);
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    give(&mut pair, &read(Serial(2), 6, false)).unwrap();
    let mut ask = |function, referenced_itt, lun| {
        let lun = LunField::from_number(lun);
        let request =
            TaskRequest { immediate: true, function, lun, itt: 99, referenced_itt, ref_cmd_sn: 0 };
        give(&mut pair, &request.encode()).unwrap();
        let sent = replies(&mut pair);
        sent.first().map(|bhs| TaskResponse::parse(bhs).code)
    };
    assert_eq!(ask(TaskFunction::AbortTask, 7, 0), Some(TaskResponseCode::NoTask));
    assert_eq!(ask(TaskFunction::AbortTask, 5, 1), Some(TaskResponseCode::NoTask));
    assert_eq!(ask(TaskFunction::TaskReassign, 5, 0), Some(TaskResponseCode::NoReassignment));
    assert_eq!(ask(TaskFunction::ClearAca, 5, 0), Some(TaskResponseCode::Unsupported));
    assert_eq!(ask(TaskFunction::AbortTaskSet, 0, 1), Some(TaskResponseCode::Complete));
    for function in
        [TaskFunction::AbortTaskSet, TaskFunction::ClearTaskSet, TaskFunction::LogicalUnitReset]
    {
        assert_eq!(ask(function, 0, 2), Some(TaskResponseCode::NoLun));
    }
    assert_eq!(ask(TaskFunction::LogicalUnitReset, 0, 0), None, "two commands execute");
    for left in [1, 0] {
        let task = pair.host.executing.pop_front().unwrap();
        pair.host.execute(task);
        pair.host.handle_events();
        let sent: Vec<_> = replies(&mut pair).iter().map(Bhs::opcode).collect();
        let expected = if left == 0 { vec![Some(Opcode::TaskResponse)] } else { vec![] };
        assert_eq!(sent, expected, "aborted commands have no response of their own");
    }
    assert_eq!(pair.host.resets, 1);
}

#[test]
fn a_reset_waits_for_what_other_sessions_execute() {
    let mut pair = pair();
    pair.host.eager = false;
    pair.guest.submit(pair.now, command(READ, 0, 512), &[]);
    pair.run();
    let other = initiator::Setup { isid: [0x81; 6], ..initiator_setup() };
    let fresh = Pair::new(&target_setup(), other);
    let machine = connection(&mut pair.node, &target_setup());
    let mut first = std::mem::replace(&mut pair.host, Host::new(machine, 1 << 16));
    pair.guest = fresh.guest;
    pair.log_in();
    for (round, function) in
        [TaskFunction::LogicalUnitReset, TaskFunction::ClearTaskSet].into_iter().enumerate()
    {
        // The flat form of LUN 0, which the command named in the peripheral form.
        let lun = LunField([0x40, 0, 0, 0, 0, 0, 0, 0]);
        let request = TaskRequest {
            immediate: true,
            function,
            lun,
            itt: 99,
            referenced_itt: NO_TAG,
            ref_cmd_sn: 0,
        };
        give(&mut pair, &request.encode()).unwrap();
        assert_eq!(pair.node.poll_wake(), Some(first.machine.id()));
        first.machine.handle_wake(&mut pair.node);
        first.handle_events();
        if round == 0 {
            assert_eq!((pair.node.poll_wake(), replies(&mut pair).len()), (None, 0), "it runs");
            let task = first.executing.pop_front().unwrap();
            first.execute(task);
            first.handle_events();
            assert_eq!(first.settled, 1);
            first.machine.handle_wake(&mut pair.node);
        }
        assert_eq!(pair.node.poll_wake(), Some(pair.host.machine.id()));
        pair.host.machine.handle_wake(&mut pair.node);
        let codes: Vec<_> =
            replies(&mut pair).iter().map(|bhs| TaskResponse::parse(bhs).code).collect();
        assert_eq!(codes, [TaskResponseCode::Complete]);
    }
    // One that closes has nothing under way any more either.
    let reset = TaskRequest {
        immediate: true,
        function: TaskFunction::TargetWarmReset,
        lun: LunField::default(),
        itt: 98,
        referenced_itt: NO_TAG,
        ref_cmd_sn: 0,
    };
    give(&mut pair, &reset.encode()).unwrap();
    assert_eq!(replies(&mut pair).len(), 0);
    pair.node.closed(first.machine.id());
    pair.host.machine.handle_wake(&mut pair.node);
    assert_eq!(replies(&mut pair).len(), 1);
}

#[test]
fn shutting_down_asks_for_a_logout() {
    let mut pair = pair();
    pair.host.eager = false;
    pair.guest.submit(pair.now, command(READ, 0, 512), &[]);
    pair.run();
    pair.host.machine.handle_shutdown(pair.now);
    pair.run();
    assert_eq!(pair.guest.events, [initiator::Event::Ending]);
    assert_eq!(pair.guest.machine.capacity(), 0);
    let task = pair.host.executing.pop_front().unwrap();
    pair.host.execute(task);
    pair.run();
    assert_eq!(pair.guest.ends.len(), 1, "what was under way ends");
    assert_eq!(pair.guest.events.last(), Some(&initiator::Event::LoggedOut));
    assert!(pair.host.machine.is_finished());
}

#[test]
fn who_does_not_log_out_is_told_of_the_drop() {
    // RFC 7143, section 11.9.1: events 1 (with the seconds left) and 3.
    let mut pair = pair();
    pair.host.machine.handle_shutdown(pair.now);
    let asked = AsyncMessage::parse(&replies(&mut pair)[0]);
    assert_eq!((asked.event, asked.parameter3), (AsyncEvent::LogoutRequested, 1));
    pair.now = Duration::from_secs(1);
    pair.host.machine.handle_timeout(pair.now).unwrap();
    let dropped = AsyncMessage::parse(&replies(&mut pair)[0]);
    assert_eq!(dropped.event, AsyncEvent::SessionDropped);
    assert!(pair.host.machine.is_finished());
}

#[test]
fn a_session_that_is_dropped_is_told() {
    let mut pair = pair();
    let tsih = pair.node.sessions().next().unwrap().tsih;
    assert!(pair.node.drop_session(tsih));
    assert_eq!(pair.node.poll_wake(), Some(pair.host.machine.id()));
    pair.host.machine.handle_wake(&mut pair.node);
    let dropped = AsyncMessage::parse(&replies(&mut pair)[0]);
    assert_eq!(dropped.event, AsyncEvent::SessionDropped);
    assert!(pair.host.machine.is_finished());
}

#[test]
fn logouts_have_reasons() {
    // RFC 7143, sections 11.14.1 and 11.15.1: level 0 recovers no connection.
    for (reason, response, ends) in [
        (LogoutReason::CloseSession, 0, true),
        (LogoutReason::CloseConnection, 0, true),
        (LogoutReason::Recovery, 2, false),
    ] {
        let mut pair = pair();
        let logout = LogoutRequest { immediate: true, reason, itt: 9, cid: 1 };
        give(&mut pair, &logout.encode()).unwrap();
        let reply = replies(&mut pair)[0];
        assert_eq!(LogoutResponse::parse(&reply).response, response, "{reason:?}");
        assert_eq!(pair.host.machine.is_finished(), ends);
    }
    let mut pair = pair();
    let reason = LogoutReason::Unknown(9);
    give(&mut pair, &LogoutRequest { immediate: true, reason, itt: 9, cid: 1 }.encode()).unwrap();
    assert_eq!(Reject::parse(&replies(&mut pair)[0]).reason, RejectReason::InvalidField);
}

#[test]
fn a_logout_names_its_connection() {
    // RFC 7143, section 11.15.1, response 1: CID not found.
    let mut pair = pair();
    let reason = LogoutReason::CloseConnection;
    give(&mut pair, &LogoutRequest { immediate: true, reason, itt: 9, cid: 2 }.encode()).unwrap();
    assert_eq!(LogoutResponse::parse(&replies(&mut pair)[0]).response, 1);
    assert!(!pair.host.machine.is_finished());
}
