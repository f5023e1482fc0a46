extern crate std;

use std::{cell::Cell, rc::Rc, vec, vec::Vec};

use super::*;

const IDLE: Duration = Duration::from_secs(10);
const KEY: SegmentKey = (MediatorId([1; 16]), SegmentId([2; 16]));
const OTHER: SegmentKey = (MediatorId([1; 16]), SegmentId([3; 16]));
const WALL: Moment = Moment(1000);

/// A session of which only the table wants to know.
#[derive(Debug)]
struct Visit {
    connection: ConnectionId,
    segment: SegmentKey,
    plan: u8,
    generation: Generation,
    expires: Cell<Moment>,
    is_ended: Cell<bool>,
    running: Running,
}

type Guest = Rc<Visit>;

impl Session for Visit {
    fn connection(&self) -> ConnectionId {
        self.connection
    }

    fn segment(&self) -> SegmentKey {
        self.segment
    }

    fn plan(&self) -> PlanKey {
        plan(self.plan)
    }

    fn generation(&self) -> Generation {
        self.generation
    }

    fn running(&self) -> &Running {
        &self.running
    }

    fn holds(&self, generation: Generation, now: Moment) -> bool {
        now < self.expires.get() && self.generation == generation
    }

    fn end_permit(&self) {
        self.is_ended.set(true);
    }

    fn extend_permit(&self, until: Moment) {
        self.expires.set(until.max(self.expires.get()));
    }
}

fn plan(number: u8) -> PlanKey {
    (KEY.0, PlanId([number; 16]))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A table, what it asked for, and a number for the next connection.
struct Desk {
    table: Segments<u64, Guest>,
    connections: u64,
}

impl Desk {
    fn new() -> Self {
        Self { table: Segments::new(IDLE), connections: 0 }
    }

    /// What is to be done, with sessions as numbers.
    fn actions(&mut self) -> Vec<Action<u64, u64>> {
        let mut actions = Vec::new();
        while let Some(action) = self.table.next_action() {
            actions.push(match action {
                Action::Open(key, unit) => Action::Open(key, unit),
                Action::Close(key, unit) => Action::Close(key, unit),
                Action::Remove(key, unit) => Action::Remove(key, unit),
                Action::Forget(unit) => Action::Forget(unit),
                Action::Drop(guest, why) => Action::Drop(guest.connection.0, why),
                Action::Wake(connection) => Action::Wake(connection),
                Action::Done(order, result) => Action::Done(order, result),
            });
        }
        actions
    }

    fn knock(&mut self, key: SegmentKey, generation: u64) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let make = |realm: Realm, _: &Arc<Fence>| realm.0;
        self.table.knock(connection, (key, Generation(generation)), at(0), make);
        connection
    }

    fn guest(connection: ConnectionId, plan: u8, generation: u64) -> Guest {
        Rc::new(Visit {
            connection,
            segment: KEY,
            plan,
            generation: Generation(generation),
            expires: Cell::new(Moment(2000)),
            is_ended: Cell::new(false),
            running: Running::default(),
        })
    }

    /// A session of this plan in the segment, which is open.
    fn let_in(&mut self, plan: u8, generation: u64) -> Guest {
        let connection = self.knock(KEY, generation);
        if self.table.answer(connection) == Knocked::Later {
            self.table.opened(KEY, Ok(Generation(generation)), at(0));
        }
        assert!(matches!(self.table.answer(connection), Knocked::Open(_)));
        let guest = Self::guest(connection, plan, generation);
        self.table.enter(guest.clone(), WALL, |_| true).unwrap();
        self.actions();
        guest
    }

    fn leave(&mut self, guest: &Guest) {
        if guest.running.leave() {
            self.table.settle();
        }
    }
}

#[test]
fn a_segment_is_opened_once_for_all_who_knock_and_closed_when_nobody_has_used_it() {
    let mut desk = Desk::new();
    let (first, second) = (desk.knock(KEY, 1), desk.knock(KEY, 1));
    assert_eq!(desk.actions(), [Action::Open(KEY, 1)]);
    assert_eq!(desk.table.answer(first), Knocked::Later);
    desk.table.opened(KEY, Ok(Generation(1)), at(1));
    assert_eq!(desk.actions(), [Action::Wake(first), Action::Wake(second)]);
    let guest = Desk::guest(first, 1, 1);
    desk.table.enter(guest.clone(), WALL, |_| true).unwrap();

    desk.table.poll(at(60), WALL, |_| true);
    desk.table.gone(second);
    desk.table.poll(at(60), WALL, |_| true);
    assert_eq!(desk.actions(), []);
    desk.table.left(&guest, at(60));
    desk.table.poll(at(69), WALL, |_| true);
    assert_eq!(desk.actions(), []);
    desk.table.poll(at(70), WALL, |_| true);
    assert_eq!(desk.actions(), [Action::Close(KEY, 1)]);
    desk.table.closed(KEY, false);
    desk.knock(KEY, 1);
    assert_eq!(desk.actions(), [Action::Open(KEY, 1)]);
}

#[test]
fn a_login_that_waits_keeps_its_segment_open() {
    let mut desk = Desk::new();
    let connection = desk.knock(KEY, 1);
    desk.table.opened(KEY, Ok(Generation(1)), at(0));
    desk.actions();
    desk.table.poll(at(100), WALL, |_| true);
    assert_eq!(desk.actions(), []);
    desk.table.gone(connection);
    desk.table.poll(at(100), WALL, |_| true);
    assert_eq!(desk.actions(), [Action::Close(KEY, 1)]);
}

#[test]
fn a_login_that_comes_while_the_device_is_closed_waits_until_it_is_opened_again() {
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    desk.table.left(&guest, at(0));
    desk.table.poll(at(10), WALL, |_| true);
    assert_eq!(desk.actions(), [Action::Close(KEY, 1)]);
    let connection = desk.knock(KEY, 1);
    assert_eq!((desk.actions(), desk.table.answer(connection)), (vec![], Knocked::Later));
    desk.table.closed(KEY, true);
    assert_eq!(desk.actions(), [Action::Open(KEY, 1)]);
    desk.table.opened(KEY, Ok(Generation(1)), at(11));
    assert_eq!(desk.table.answer(connection), Knocked::Open(1));
}

#[test]
fn logins_of_a_segment_that_cannot_be_opened_are_told_why_and_it_is_forgotten() {
    for (why, told) in
        [(Unopened::Unusable, Knocked::Refused), (Unopened::Exhausted, Knocked::Exhausted)]
    {
        let mut desk = Desk::new();
        let connection = desk.knock(KEY, 1);
        desk.actions();
        desk.table.opened(KEY, Err(why), at(0));
        assert_eq!(desk.actions(), [Action::Wake(connection), Action::Forget(1)]);
        assert_eq!(desk.table.answer(connection), told);
        // Who was told before does not hear of what comes later.
        let (again, late) = (desk.knock(KEY, 1), desk.knock(KEY, 1));
        assert_eq!(desk.actions(), [Action::Open(KEY, 2)], "it is tried anew");
        desk.table.opened(KEY, Err(why), at(0));
        desk.knock(KEY, 1);
        desk.table.opened(KEY, Ok(Generation(1)), at(0));
        assert_eq!((desk.table.answer(again), desk.table.answer(late)), (told, told));
    }
}

#[test]
fn a_fence_ends_older_sessions_and_is_done_when_their_commands_have_left() {
    let mut desk = Desk::new();
    let (old, new) = (desk.let_in(1, 1), desk.knock(KEY, 2));
    old.running.enter();
    old.running.enter();
    let newer = Desk::guest(new, 2, 2);
    desk.table.enter(newer.clone(), WALL, |_| true).unwrap();
    newer.running.enter();
    let order = desk.table.raise(KEY, Generation(2), at(0));
    assert_eq!(desk.actions(), [Action::Drop(1, Why::Fenced)]);
    assert!(old.is_ended.get() && !newer.is_ended.get());
    desk.leave(&old);
    assert_eq!(desk.actions(), []);
    desk.leave(&old);
    assert_eq!(desk.actions(), [Action::Done(order, Ok(1))]);
}

#[test]
fn an_order_whose_commands_do_not_leave_says_so_in_time() {
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    guest.running.enter();
    let order = desk.table.end_plan(plan(1), at(5));
    assert_eq!(desk.actions(), [Action::Drop(1, Why::PlanEnded)]);
    desk.table.poll(at(24), WALL, |_| true);
    assert_eq!(desk.actions(), []);
    desk.table.poll(at(25), WALL, |_| true);
    let stuck = Stuck { segment: KEY.1, running: 1 };
    assert_eq!(desk.actions(), [Action::Done(order, Err(stuck))]);
    // What is still there is waited for anew.
    let order = desk.table.end_plan(plan(1), at(30));
    assert_eq!(desk.actions(), []);
    desk.leave(&guest);
    assert_eq!(desk.actions(), [Action::Done(order, Ok(0))]);
}

#[test]
fn a_plan_that_is_ended_leaves_others_alone_and_its_extension_revives_nobody() {
    let mut desk = Desk::new();
    let (ended, other) = (desk.let_in(1, 1), desk.let_in(2, 1));
    assert_eq!(desk.table.extend(plan(1), Moment(3000)), 1);
    assert!(ended.holds(Generation(1), Moment(2999)));
    desk.table.end_plan(plan(1), at(0));
    assert_eq!(desk.table.extend(plan(1), Moment(4000)), 0);
    assert!(ended.running.has_ended() && !other.running.has_ended());
}

#[test]
fn a_segment_that_is_closed_is_removed_under_no_command_and_then_known_no_more() {
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    guest.running.enter();
    let order = desk.table.close(KEY, at(0));
    assert_eq!(desk.actions(), [Action::Drop(1, Why::Closed)]);
    let late = desk.knock(KEY, 1);
    assert_eq!(desk.table.answer(late), Knocked::Refused);
    desk.leave(&guest);
    assert_eq!(desk.actions(), [Action::Remove(KEY, 1)]);
    desk.table.closed(KEY, true);
    assert_eq!(desk.actions(), [Action::Forget(1), Action::Done(order, Ok(1))]);
    // Its connection takes its time.
    desk.knock(KEY, 1);
    assert_eq!(desk.actions(), [Action::Open(KEY, 2)]);
    desk.table.left(&guest, at(0));
}

#[test]
fn a_segment_is_closed_whatever_it_is_about() {
    // While it is opened: the device is dropped.
    let mut desk = Desk::new();
    let connection = desk.knock(KEY, 1);
    let order = desk.table.close(KEY, at(0));
    assert_eq!(desk.actions(), [Action::Open(KEY, 1), Action::Wake(connection)]);
    assert_eq!(desk.table.answer(connection), Knocked::Refused);
    desk.table.opened(KEY, Ok(Generation(1)), at(0));
    assert_eq!(desk.actions(), [Action::Close(KEY, 1)]);
    desk.table.closed(KEY, false);
    assert_eq!(desk.actions(), [Action::Forget(1), Action::Done(order, Ok(0))]);

    // While its device is closed, and while somebody waits for it to be opened again.
    for knocks in [false, true] {
        let mut desk = Desk::new();
        let guest = desk.let_in(1, 1);
        desk.table.left(&guest, at(0));
        desk.table.poll(at(10), WALL, |_| true);
        let connection = knocks.then(|| desk.knock(KEY, 1));
        desk.actions();
        let order = desk.table.close(KEY, at(10));
        let told = connection.map(Action::Wake);
        assert_eq!(desk.actions(), told.into_iter().collect::<Vec<_>>());
        desk.table.closed(KEY, false);
        assert_eq!(desk.actions(), [Action::Forget(1), Action::Done(order, Ok(0))]);
    }

    // While it is asleep, and while nobody knows it.
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    desk.table.left(&guest, at(0));
    desk.table.poll(at(10), WALL, |_| true);
    desk.table.closed(KEY, false);
    desk.actions();
    let order = desk.table.close(KEY, at(10));
    assert_eq!(desk.actions(), [Action::Forget(1), Action::Done(order, Ok(0))]);
    let order = desk.table.close(KEY, at(10));
    assert_eq!(desk.actions(), [Action::Done(order, Ok(0))]);
}

#[test]
fn a_login_that_was_told_that_its_segment_is_open_is_late_once_that_is_closed_or_fenced() {
    let mut desk = Desk::new();
    desk.let_in(1, 1);
    let connection = desk.knock(KEY, 1);
    assert_eq!(desk.table.answer(connection), Knocked::Open(1));
    desk.table.close(KEY, at(0));
    assert_eq!(desk.table.enter(Desk::guest(connection, 1, 1), WALL, |_| true), Err(Late));

    let mut desk = Desk::new();
    desk.let_in(1, 1);
    let connection = desk.knock(KEY, 1);
    desk.table.raise(KEY, Generation(2), at(0));
    assert_eq!(desk.table.enter(Desk::guest(connection, 1, 1), WALL, |_| true), Err(Late));

    let connection = desk.knock(KEY, 2);
    assert_eq!(desk.table.enter(Desk::guest(connection, 1, 2), WALL, |_| false), Err(Late));
    let connection = desk.knock(KEY, 2);
    assert_eq!(desk.table.enter(Desk::guest(connection, 1, 2), Moment(2000), |_| true), Err(Late));
}

#[test]
fn a_login_that_was_refused_is_not_let_in_to_what_has_its_segments_key_later() {
    let mut desk = Desk::new();
    let first = desk.let_in(1, 1);
    desk.table.left(&first, at(0));
    let late = desk.knock(KEY, 1);
    assert_eq!(desk.table.answer(late), Knocked::Open(1));
    desk.table.close(KEY, at(0));
    desk.table.closed(KEY, false);
    desk.let_in(1, 1);
    assert_eq!(desk.table.enter(Desk::guest(late, 1, 1), WALL, |_| true), Err(Late));
}

#[test]
fn an_order_whose_last_command_leaves_as_its_time_is_up_is_done() {
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    guest.running.enter();
    let order = desk.table.raise(KEY, Generation(2), at(0));
    desk.actions();
    // It has left, and the table was not told yet.
    assert!(guest.running.leave());
    desk.table.give_up_orders(at(20));
    assert_eq!(desk.actions(), [Action::Done(order, Ok(1))]);
}

#[test]
fn a_segment_is_forgotten_while_a_command_of_an_ended_session_is_about_to_be_refused() {
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    let order = desk.table.close(KEY, at(0));
    desk.actions();
    guest.running.enter();
    desk.table.closed(KEY, false);
    assert_eq!(desk.actions(), [Action::Forget(1), Action::Done(order, Ok(1))]);
    desk.leave(&guest);
    desk.table.left(&guest, at(0));
}

#[test]
fn sessions_end_when_their_time_is_over_or_their_key_is_taken_back() {
    let mut desk = Desk::new();
    let (first, second) = (desk.let_in(1, 1), desk.let_in(2, 1));
    desk.table.poll(at(0), WALL, |guest| guest.plan != 2);
    assert_eq!(desk.actions(), [Action::Drop(second.connection.0, Why::Over)]);
    desk.table.poll(at(0), Moment(2000), |_| true);
    assert_eq!(desk.actions(), [Action::Drop(first.connection.0, Why::Over)]);
}

#[test]
fn only_so_many_segments_are_asleep_but_for_those_with_reservations() {
    let mut desk = Desk::new();
    let mut forgotten = Vec::new();
    for number in 0..ASLEEP_MAX as u64 + 3 {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let key = (KEY.0, SegmentId(id));
        let connection = desk.knock(key, 1);
        desk.table.opened(key, Ok(Generation(1)), at(number));
        desk.table.gone(connection);
        desk.table.poll(at(number) + IDLE, WALL, |_| true);
        desk.table.closed(key, number == 1);
        desk.table.poll(at(number) + IDLE, WALL, |_| true);
        let actions = desk.actions().into_iter();
        forgotten.extend(actions.filter(|action| matches!(action, Action::Forget(_))));
    }
    assert_eq!(forgotten, [1, 3, 4].map(Action::Forget));
}

#[test]
#[should_panic(expected = "under a command")]
fn no_session_leaves_under_a_command() {
    let mut desk = Desk::new();
    let guest = desk.let_in(1, 1);
    guest.running.enter();
    desk.table.left(&guest, at(0));
}

#[test]
fn orders_of_segments_that_nobody_knows_are_done_at_once() {
    let mut desk = Desk::new();
    let orders = [
        desk.table.raise(OTHER, Generation(9), at(0)),
        desk.table.end_plan(plan(9), at(0)),
        desk.table.close(OTHER, at(0)),
    ];
    let done: Vec<_> = orders.map(|order| Action::Done(order, Ok(0))).into();
    assert_eq!(desk.actions(), done);
}
