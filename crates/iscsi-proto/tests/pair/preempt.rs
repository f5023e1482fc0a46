//! Commands that abort the tasks of other sessions (SPC-4, section 5.13.11.5).

use netraid_iscsi_proto::{machine::TaskId, serial::Serial};

use crate::{
    harness::{Pair, connection, target_setup},
    management::abort,
    order::{give, pair, read},
};

/// A session with a command that executes.
fn executing() -> (Pair, TaskId) {
    let mut pair = pair();
    pair.host.eager = false;
    give(&mut pair, &read(Serial(1), 5, false)).unwrap();
    let task = pair.host.executing[0];
    (pair, task)
}

#[test]
fn a_preemption_waits_for_the_other_session() {
    let (mut pair, task) = executing();
    let mut other = connection(&mut pair.node, &target_setup());
    pair.host.machine.handle_preempt(&mut pair.node, task, 0, &[other.id()]);
    pair.host.handle_events();
    assert!(pair.host.preempted.is_empty());
    assert_eq!(pair.node.poll_wake(), Some(other.id()));
    other.handle_wake(&mut pair.node);
    pair.host.machine.handle_wake(&mut pair.node);
    pair.host.handle_events();
    assert_eq!(pair.host.preempted, [task]);
}

#[test]
fn a_preemption_of_nobody_who_is_there_ends_at_once() {
    let (mut pair, task) = executing();
    pair.host.machine.handle_preempt(&mut pair.node, task, 0, &[]);
    pair.host.handle_events();
    assert_eq!(pair.host.preempted, [task]);
}

#[test]
fn of_its_own_session_it_aborts_all_but_itself() {
    let (mut pair, task) = executing();
    give(&mut pair, &read(Serial(2), 6, false)).unwrap();
    let own = pair.host.machine.id();
    pair.host.machine.handle_preempt(&mut pair.node, task, 0, &[own]);
    pair.host.handle_events();
    assert!(pair.host.preempted.is_empty(), "the other command still runs");
    let second = pair.host.executing.pop_back().unwrap();
    assert!(pair.host.machine.is_aborted(second) && !pair.host.machine.is_aborted(task));
    pair.host.execute(second);
    pair.host.handle_events();
    assert_eq!(pair.host.preempted, [task]);
}

#[test]
fn a_command_that_is_aborted_while_it_waits_need_not_wait() {
    // Two that preempt each other would never end.
    let (mut pair, task) = executing();
    let other = connection(&mut pair.node, &target_setup());
    pair.host.machine.handle_preempt(&mut pair.node, task, 0, &[other.id()]);
    give(&mut pair, &abort(5, 1)).unwrap();
    pair.host.handle_events();
    assert_eq!(pair.host.preempted, [task]);
}

#[test]
fn a_preemption_waits_for_what_copies_have_at_its_logical_unit() {
    // A command to LUN 0, which has a request at LUN 7; who preempts there has its own session.
    let (mut pair, copy) = executing();
    pair.host.machine.handle_visit(copy, Some(7));
    give(&mut pair, &read(Serial(2), 6, false)).unwrap();
    let preempts = pair.host.executing[1];
    let own = pair.host.machine.id();
    for lun in [6, 7] {
        pair.host.machine.handle_preempt(&mut pair.node, preempts, lun, &[own]);
        pair.host.handle_events();
        assert_eq!(pair.host.preempted, [preempts], "only that of LUN 6 has ended");
    }
    assert!(!pair.host.machine.is_aborted(copy), "the next request is refused instead");
    pair.host.machine.handle_visit(copy, None);
    pair.host.handle_events();
    assert_eq!(pair.host.preempted, [preempts, preempts]);
}
