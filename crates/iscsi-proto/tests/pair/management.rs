//! Task management (RFC 7143, sections 11.5 and 11.6).

use std::time::Duration;

use netraid_iscsi_proto::{
    machine::Fatal,
    negotiation::Wishes,
    pdu::{
        Bhs, DataOut, LogoutReason, LogoutRequest, LunField, NO_TAG, Opcode, R2t, Reject,
        RejectReason, TaskFunction, TaskRequest,
    },
    serial::Serial,
    target,
};

use crate::{
    harness::{Host, Pair, READ, WRITE, command, connection, initiator_setup, target_setup},
    order::{give, pair, read, replies},
};

pub(crate) fn request(function: TaskFunction, referenced_itt: u32, ref_cmd_sn: u32) -> TaskRequest {
    let lun = LunField::from_number(0);
    TaskRequest { immediate: true, function, lun, itt: 900, referenced_itt, ref_cmd_sn }
}

/// ABORT TASK, immediate, sent when the next command is number 2.
pub(crate) fn abort(itt: u32, ref_cmd_sn: u32) -> Bhs {
    abort_at(Serial(2), itt, ref_cmd_sn)
}

fn abort_at(cmd_sn: Serial, itt: u32, ref_cmd_sn: u32) -> Bhs {
    let mut bhs = request(TaskFunction::AbortTask, itt, ref_cmd_sn).encode();
    bhs.stamp_command(cmd_sn, Serial(0));
    bhs
}

/// The codes of all responses that are sent now.
pub(crate) fn codes(pair: &mut Pair) -> Vec<u8> {
    replies(pair)
        .iter()
        .map(|bhs| {
            assert_eq!(bhs.opcode(), Some(Opcode::TaskResponse), "{bhs:?}");
            bhs.0[2]
        })
        .collect()
}

fn finish_one(pair: &mut Pair) {
    let task = pair.host.executing.pop_front().unwrap();
    pair.host.execute(task);
    pair.host.handle_events();
}

#[test]
fn a_task_that_has_ended_does_not_exist() {
    // Section 11.6.1 (c): its number is below the window.
    let mut pair = pair();
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    replies(&mut pair);
    give(&mut pair, &abort(5, 1)).unwrap();
    assert_eq!(codes(&mut pair), [1]);
    // Beyond the window.
    give(&mut pair, &abort_at(Serial(2000), 5, 1999)).unwrap();
    assert_eq!(codes(&mut pair), [1]);
}

#[test]
fn a_task_that_was_never_sent_counts_as_received() {
    // Section 11.6.1 (b): within the window and before the request itself.
    let mut pair = pair();
    give(&mut pair, &abort_at(Serial(4), 5, 3)).unwrap();
    give(&mut pair, &abort_at(Serial(4), 6, 2)).unwrap();
    assert_eq!(codes(&mut pair), [0, 0]);
    give(&mut pair, &read(Serial(1), 7, false)).unwrap();
    let reply = replies(&mut pair)[0];
    assert_eq!(reply.expected_sn(), Serial(4), "numbers 2 and 3 are used up");
    // The command itself, should it come after all, is ignored.
    give(&mut pair, &read(Serial(2), 6, false)).unwrap();
    assert!(replies(&mut pair).is_empty());
    give(&mut pair, &read(Serial(4), 8, false)).unwrap();
    assert_eq!(pair.host.commands, 2);
}

#[test]
fn an_abort_does_not_use_up_its_own_number() {
    // An immediate command's abort names its own number, which the next command has too.
    let mut pair = pair();
    give(&mut pair, &read(Serial(1), 5, true)).unwrap();
    replies(&mut pair);
    give(&mut pair, &abort_at(Serial(1), 5, 1)).unwrap();
    assert_eq!(codes(&mut pair), [1]);
    give(&mut pair, &read(Serial(1), 6, false)).unwrap();
    assert_eq!(pair.host.commands, 2);
}

#[test]
fn aborting_twice_answers_twice_when_the_task_is_dead() {
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    give(&mut pair, &abort(5, 1)).unwrap();
    let mut second = abort(5, 1);
    second.0[19] = 1;
    give(&mut pair, &second).unwrap();
    assert!(replies(&mut pair).is_empty());
    finish_one(&mut pair);
    assert_eq!(codes(&mut pair), [0, 0]);
    assert_eq!(pair.node.counters().aborted_tasks.get(), 1);
}

#[test]
fn a_hung_device_does_not_hold_the_answer_for_ever() {
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    give(&mut pair, &abort(5, 1)).unwrap();
    let limit = target_setup().task_function_timeout;
    assert_eq!(pair.host.machine.next_timeout(), Some(limit));
    pair.host.machine.handle_timeout(limit - Duration::from_nanos(1)).unwrap();
    assert!(replies(&mut pair).is_empty());
    pair.host.machine.handle_timeout(limit).unwrap();
    assert_eq!(codes(&mut pair), [255], "function rejected: it still runs");
    assert_eq!(pair.node.counters().task_functions_failed.get(), 1);
    finish_one(&mut pair);
    assert!(replies(&mut pair).is_empty(), "one answer, and none of the command");
    assert!(pair.host.machine.is_idle());
}

#[test]
fn who_is_gone_is_told_nothing() {
    // A function waits for a command when the socket breaks.
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    give(&mut pair, &abort(5, 1)).unwrap();
    pair.host.machine.handle_disconnect();
    finish_one(&mut pair);
    assert!(pair.host.machine.is_idle() && pair.host.machine.is_finished());
    assert!(replies(&mut pair).is_empty());
}

#[test]
fn nothing_follows_the_answer_to_a_logout() {
    // Section 11.15: it is the last that is said on a connection.
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    give(&mut pair, &abort(5, 1)).unwrap();
    let reason = LogoutReason::CloseSession;
    give(&mut pair, &LogoutRequest { immediate: true, reason, itt: 9, cid: 1 }.encode()).unwrap();
    finish_one(&mut pair);
    let sent: Vec<_> = replies(&mut pair).iter().map(Bhs::opcode).collect();
    assert_eq!(sent, [Some(Opcode::LogoutResponse)]);
}

#[test]
fn functions_in_progress_are_bounded() {
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    for itt in 0..17 {
        let mut bhs = abort(5, 1);
        bhs.0[19] = itt;
        give(&mut pair, &bhs).unwrap();
    }
    let over = replies(&mut pair);
    assert_eq!(over.len(), 1);
    assert_eq!(Reject::parse(&over[0]).reason, RejectReason::OutOfResources);
    // Those that were answered as failed take their place until the task has ended.
    pair.host.machine.handle_timeout(target_setup().task_function_timeout).unwrap();
    assert_eq!(codes(&mut pair).len(), 16);
    give(&mut pair, &abort(5, 1)).unwrap();
    assert_eq!(replies(&mut pair)[0].opcode(), Some(Opcode::Reject));
    finish_one(&mut pair);
    give(&mut pair, &abort(5, 1)).unwrap();
    assert_eq!(codes(&mut pair), [1]);
}

#[test]
fn a_tag_in_use_is_refused() {
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 900, false)).unwrap();
    give(&mut pair, &abort(900, 1)).unwrap();
    assert_eq!(Reject::parse(&replies(&mut pair)[0]).reason, RejectReason::TaskInProgress);
}

#[test]
fn functions_of_later_levels_are_not_supported() {
    // RFC 7144's QUERY TASK (9) to QUERY ASYNCHRONOUS EVENT (12) need iSCSIProtocolLevel 2.
    let mut pair = pair();
    for function in [3, 9, 10, 11, 12, 0x7f] {
        let mut bhs = request(TaskFunction::AbortTaskSet, NO_TAG, 0).encode();
        bhs.0[1] = 0x80 | function;
        give(&mut pair, &bhs).unwrap();
        assert_eq!(codes(&mut pair), [5], "{function}");
    }
}

/// A second session beside the pair's own, which stays as the first element.
fn beside(pair: &mut Pair) -> Host {
    let other = netraid_iscsi_proto::initiator::Setup { isid: [0x81; 6], ..initiator_setup() };
    let fresh = Pair::new(&target_setup(), other);
    let machine = connection(&mut pair.node, &target_setup());
    let first = std::mem::replace(&mut pair.host, Host::new(machine, 1 << 16));
    pair.guest = fresh.guest;
    pair.log_in();
    first
}

#[test]
fn only_who_lost_tasks_hears_of_a_cleared_task_set() {
    // SAM-5, section 5.14.2 and 7.4, TAS=0: unit attention instead of a status.
    for busy in [false, true] {
        let mut pair = pair();
        pair.host.eager = false;
        if busy {
            pair.guest.submit(pair.now, command(READ, 0, 512), &[]);
            pair.run();
        }
        let mut first = beside(&mut pair);
        give(&mut pair, &request(TaskFunction::ClearTaskSet, NO_TAG, 0).encode()).unwrap();
        while pair.node.poll_wake().is_some() {}
        first.machine.handle_wake(&mut pair.node);
        first.handle_events();
        assert_eq!((first.cleared, pair.host.cleared), (usize::from(busy), 0));
        if let Some(task) = first.executing.pop_front() {
            first.execute(task);
            first.handle_events();
            first.machine.handle_wake(&mut pair.node);
        }
        pair.host.machine.handle_wake(&mut pair.node);
        assert_eq!(codes(&mut pair), [0]);
        assert!(first.transmit().is_none(), "cleared commands have no response");
    }
}

#[test]
fn a_cold_reset_ends_all_sessions_and_then_its_own() {
    // Section 11.5.1: all sessions are closed.
    let mut pair = pair();
    let mut first = beside(&mut pair);
    give(&mut pair, &request(TaskFunction::TargetColdReset, NO_TAG, 0).encode()).unwrap();
    assert_eq!((pair.host.resets, replies(&mut pair).len()), (1, 0));
    first.machine.handle_wake(&mut pair.node);
    while first.transmit().is_some() {}
    assert!(first.machine.is_finished());
    pair.host.machine.handle_wake(&mut pair.node);
    assert!(replies(&mut pair).is_empty(), "it is not gone yet");
    pair.node.closed(first.machine.id());
    pair.host.machine.handle_wake(&mut pair.node);
    assert_eq!(codes(&mut pair), [0]);
    assert!(pair.host.machine.is_finished());
}

#[test]
fn data_of_an_aborted_task_goes_to_nobody() {
    let wishes = Wishes { initial_r2t: true, immediate_data: false, ..Wishes::default() };
    let mut pair = Pair::with_wishes(wishes.clone(), wishes);
    pair.guest.submit(pair.now, command(WRITE, 0, 512), &[7; 512]);
    let (write, data) = pair.guest.transmit().unwrap();
    pair.host.receive(pair.now, &mut pair.node, &write.header, &data).unwrap();
    let (r2t, data) = pair.host.transmit().unwrap();
    pair.guest.receive(pair.now, &r2t.header, &data).unwrap();
    let (late, data) = pair.guest.transmit().unwrap();
    give(&mut pair, &abort(write.header.itt(), 1)).unwrap();
    assert_eq!(codes(&mut pair), [0]);
    // The place is taken by another write, and the late data still names the old one.
    pair.guest.submit(pair.now, command(WRITE, 0, 512), &[9; 512]);
    let (fresh, data_fresh) = pair.guest.transmit().unwrap();
    pair.host.receive(pair.now, &mut pair.node, &fresh.header, &data_fresh).unwrap();
    pair.host.receive(pair.now, &mut pair.node, &late.header, &data).unwrap();
    let asked = R2t::parse(&replies(&mut pair)[0]);
    let out = DataOut {
        last: true,
        lun: LunField::from_number(0),
        itt: asked.itt,
        ttt: asked.ttt,
        data_sn: 0,
        offset: 0,
    };
    let out = out.encode().with_data_len(512);
    pair.host.receive(pair.now, &mut pair.node, &out, &[9; 512]).unwrap();
    assert!(pair.host.disk[..512].iter().all(|byte| *byte == 9));
}

#[test]
fn one_session_does_not_starve_another_of_memory() {
    // Both want more than the target has: each goes on with one command at a time.
    let mut pair = pair();
    let limits = target::Limits { data_budget: 1024, ..target::Limits::default() };
    pair.node = target::Node::new(limits);
    let mut hosts: Vec<_> = (0..2)
        .map(|isid| {
            let setup = netraid_iscsi_proto::initiator::Setup {
                isid: [0x80 + isid; 6],
                ..initiator_setup()
            };
            let machine = connection(&mut pair.node, &target_setup());
            pair.host = Host::new(machine, 1 << 16);
            pair.guest = Pair::new(&target_setup(), setup).guest;
            pair.log_in();
            pair.host.eager = false;
            let machine = connection(&mut pair.node, &target_setup());
            std::mem::replace(&mut pair.host, Host::new(machine, 1))
        })
        .collect();
    for host in &mut hosts {
        for (itt, cmd_sn) in (1..=4).zip(1..) {
            let bhs = read(Serial(cmd_sn), itt, false);
            host.receive(pair.now, &mut pair.node, &bhs, &[]).unwrap();
        }
    }
    let running: Vec<_> = hosts.iter().map(|host| host.executing.len()).collect();
    assert_eq!((running, pair.node.data_held()), (vec![2, 1], 1536));
    for _ in 0..4 {
        for host in &mut hosts {
            if let Some(task) = host.executing.pop_front() {
                host.execute(task);
                while host.transmit().is_some() {}
            }
        }
    }
    assert!(hosts.iter().all(|host| host.machine.is_idle() && host.executing.is_empty()));
    assert_eq!(pair.node.data_held(), 0);
}

/// Only the larger of what a command takes and of what it holds besides was counted.
#[test]
fn what_a_write_holds_besides_its_data_is_counted_too() {
    let wishes = Wishes { initial_r2t: true, immediate_data: false, ..Wishes::default() };
    for (besides, served) in [(512, 2), (513, 1)] {
        let setup = target::Setup { wishes: wishes.clone(), data_budget: 2048, ..target_setup() };
        let mut pair = Pair::new(&setup, initiator_setup());
        pair.log_in();
        pair.host.besides = besides;
        for _ in 0..2 {
            pair.guest.submit(pair.now, command(WRITE, 0, 512), &[7; 512]);
            let (write, data) = pair.guest.transmit().unwrap();
            pair.host.receive(pair.now, &mut pair.node, &write.header, &data).unwrap();
        }
        assert_eq!(pair.node.data_held(), served * (512 + besides));
        let asked = replies(&mut pair);
        assert!(asked.iter().all(|bhs| bhs.opcode() == Some(Opcode::R2t)), "{asked:?}");
        assert_eq!(asked.len() as u64, served, "the other waits");
    }
}

#[test]
fn who_waits_for_its_commands_is_alive() {
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    // Nothing is heard of it, not even an answer to pings, while its command runs.
    for _ in 0..10 {
        pair.now = pair.host.machine.next_timeout().unwrap();
        pair.host.machine.handle_timeout(pair.now).unwrap();
    }
    replies(&mut pair);
    finish_one(&mut pair);
    replies(&mut pair);
    pair.now = pair.host.machine.next_timeout().unwrap();
    assert_eq!(pair.host.machine.handle_timeout(pair.now), Err(Fatal::Silent), "it has ended");
}

#[test]
fn who_moves_bytes_is_alive() {
    let mut pair = pair();
    let timeout = target_setup().ping_timeout;
    for (moved, blocked, patience) in [(true, false, 100), (false, true, 2), (false, false, 1)] {
        let machine = connection(&mut pair.node, &target_setup());
        pair.host = Host::new(machine, 1 << 16);
        pair.guest = Pair::new(&target_setup(), initiator_setup()).guest;
        let start = pair.now;
        // A session of the same port is admitted at once where no other one is.
        pair.node = target::Node::new(target::Limits::default());
        pair.host = Host::new(connection(&mut pair.node, &target_setup()), 1 << 16);
        pair.log_in();
        let mut rounds = 0;
        let end = loop {
            pair.now = pair.host.machine.next_timeout().unwrap();
            pair.host.machine.handle_progress(pair.now, moved, blocked);
            if pair.host.machine.handle_timeout(pair.now).is_err() || rounds == 100 {
                break pair.now;
            }
            rounds += 1;
        };
        let took = (end - start).as_secs() / timeout.as_secs();
        assert!(took >= patience && took <= patience + 2, "{moved} {blocked}: {took}");
        pair.now += Duration::from_secs(1);
    }
}
