//! Members that answer in times that the tests say, read from in turns.

use alloc::{collections::BTreeMap, vec::Vec};

use super::*;
use crate::geometry::Level;

const MS: Duration = Duration::from_millis(1);
const LEN: u64 = 4096;

/// Five members of level 5, from which users read without a pause.
struct Rig {
    slowness: Slowness,
    now: Duration,
    /// How long each member takes; none: it does not answer.
    takes: [Option<Duration>; 5],
    /// By when it ends and number: member, read.
    under_way: BTreeMap<(Duration, u64), (MemberIndex, SentRequest)>,
    /// Reads without an answer.
    silent: Vec<(MemberIndex, SentRequest)>,
    probed: MemberSet,
    next: u64,
    reads: u64,
    hedges: u64,
    dues: Vec<(Duration, Due)>,
}

impl Rig {
    fn new() -> Self {
        let geometry = Geometry::new(Level::Raid5, 5, 64 << 10, 512, 1 << 10, 1 << 20).unwrap();
        Self {
            slowness: Slowness::new(&geometry, Deadlines::default()),
            now: Duration::from_secs(100),
            takes: [Some(MS); 5],
            under_way: BTreeMap::new(),
            silent: Vec::new(),
            probed: MemberSet::EMPTY,
            next: 0,
            reads: 0,
            hedges: 0,
            dues: Vec::new(),
        }
    }

    fn send(&mut self, member: MemberIndex) {
        let io = IoId(narrow(self.next));
        let read = self.slowness.note_sent(self.now, member, io, (Op::Read, LEN)).unwrap();
        self.reads += 1;
        match self.takes[member.as_usize()] {
            Some(took) => drop(self.under_way.insert((self.now + took, self.next), (member, read))),
            None => self.silent.push((member, read)),
        }
        self.next += 1;
    }

    /// A member answers everything that it owes.
    fn answer(&mut self, member: u8) {
        let member = MemberIndex(member);
        let (ended, left) = self.silent.drain(..).partition(|(of, _)| *of == member);
        self.silent = left;
        let ended: Vec<(MemberIndex, SentRequest)> = ended;
        for (member, read) in ended {
            self.slowness.note_done(self.now, member, read, true);
        }
    }

    /// Users read every millisecond from the next member; one that is slow is asked by probes alone.
    fn run(&mut self, time: Duration) -> Vec<Due> {
        let (end, begin) = (self.now + time, self.dues.len());
        while self.now < end {
            self.now += MS;
            let member = MemberIndex(narrow(self.now.as_millis() % 5));
            if !self.slowness.slow().contains(member) {
                self.send(member);
            } else if self.probed.contains(member) {
                self.probed.remove(member);
                self.send(member);
            }
            self.pass();
        }
        self.dues[begin..].iter().map(|(_, due)| *due).collect()
    }

    /// What is due now.
    fn pass(&mut self) {
        while let Some(first) =
            self.under_way.first_entry().filter(|first| first.key().0 <= self.now)
        {
            let (member, read) = first.remove();
            self.slowness.note_done(self.now, member, read, true);
        }
        let whole = (0..5).map(MemberIndex).collect();
        while let Some(due) = self.slowness.poll_due(self.now, whole) {
            match due {
                Due::Hedge(member, _) if !self.slowness.slow().contains(member) => {
                    self.slowness.note_hedged(self.now, 4);
                    self.hedges += 4;
                }
                Due::Probe(member) => self.probed.insert(member),
                Due::Hedge(..)
                | Due::Slow(..)
                | Due::NotSlow(_)
                | Due::GiveUp { .. }
                | Due::SuccessorLate(_) => {}
            }
            self.dues.push((self.now, due));
        }
    }

    fn slow(&self) -> Vec<u8> {
        self.slowness.slow().iter().map(|member| member.0).collect()
    }
}

#[test]
fn members_that_answer_alike_are_never_hedged_however_slow_they_are() {
    for takes in [1, 20, 300] {
        let mut rig = Rig::new();
        rig.takes = [Some(MS * takes); 5];
        assert_eq!(rig.run(Duration::from_secs(20)), [], "{takes} ms");
    }
}

#[test]
fn reads_of_a_member_that_hangs_go_elsewhere_after_a_deadline_and_stay_there() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    rig.takes[2] = None;
    let begin = rig.now;
    let dues = rig.run(MS * 60);
    let is_slow = |due: &&Due| matches!(due, Due::Slow(MemberIndex(2), _));
    assert_eq!(dues.iter().filter(is_slow).count(), 1, "{dues:?}");
    assert_eq!(rig.slow(), [2]);
    // Each of its reads is hedged once, within a deadline and a look.
    let hedged = dues.iter().filter(|due| matches!(due, Due::Hedge(MemberIndex(2), _))).count();
    assert_eq!(hedged, rig.silent.len());
    let (first, _) = rig.dues.iter().find(|(_, due)| matches!(due, Due::Hedge(..))).unwrap();
    assert!(*first <= begin + MS * 10 + TICK, "{:?}", *first - begin);

    // While a read is under way there no other is sent.
    rig.run(Duration::from_secs(10));
    assert_eq!((rig.slow(), rig.silent.len()), (alloc::vec![2], hedged));

    // It answers again: it is probed, and slow for twice as long as it was late.
    rig.takes[2] = Some(MS);
    rig.answer(2);
    rig.run(Duration::from_secs(18));
    assert_eq!(rig.slow(), [2]);
    let dues = rig.run(Duration::from_secs(4));
    assert!(dues.contains(&Due::NotSlow(MemberIndex(2))), "{dues:?}");
    assert!(dues.iter().filter(|due| matches!(due, Due::Probe(_))).count() > 10);
    assert_eq!(rig.run(Duration::from_secs(10)), []);
}

#[test]
fn hedges_keep_within_their_share_whatever_is_late() {
    // Now and then a read takes long, of one member after the other: none is slow, as the next one is in time.
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    for _ in 0..60 {
        for step in 0..1000 {
            let is_long = step % 101 == 0;
            rig.takes = [Some(if is_long { MS * 100 } else { MS }); 5];
            rig.run(MS);
        }
        assert!(
            rig.hedges <= (rig.reads / 10).max(HEDGED_MIN) + 4,
            "{} of {}",
            rig.hedges,
            rig.reads
        );
    }
    assert!(rig.hedges > HEDGED_MIN, "{}", rig.hedges);

    // With few reads as well.
    let mut rig = Rig::new();
    for _ in 0..40 {
        rig.send(MemberIndex(1));
    }
    rig.under_way.clear();
    for _ in 0..9000 {
        rig.now += MS;
        rig.pass();
    }
    assert!((HEDGED_MIN - 4..=HEDGED_MIN + 4).contains(&rig.hedges), "{}", rig.hedges);
    assert_eq!(rig.slow(), [], "all of this is one delay");
}

#[test]
fn members_that_all_have_more_to_do_than_before_are_neither_hedged_nor_slow() {
    // Each has a queue, and one is a little behind the others.
    for behind in [0, 3, 10] {
        let mut rig = Rig::new();
        rig.run(Duration::from_secs(5));
        let mut queues = [Duration::ZERO; 5];
        let end = rig.now + Duration::from_secs(2);
        while rig.now < end {
            rig.now += MS;
            for member in (0..5).map(MemberIndex) {
                let queue = &mut queues[member.as_usize()];
                let longest = MS * if member == MemberIndex(2) { 20 + behind } else { 20 };
                if *queue < rig.now + longest {
                    *queue = rig.now.max(*queue) + MS * 2;
                    rig.takes[member.as_usize()] = Some(*queue - rig.now);
                    rig.send(member);
                }
            }
            rig.pass();
        }
        let is_harmless = |due: &(Duration, Due)| matches!(due.1, Due::Hedge(..));
        assert!(rig.dues.iter().all(is_harmless), "{:?}", rig.dues);
        assert!(rig.hedges <= HEDGED_MIN / 2, "{} hedges", rig.hedges);
    }
}

#[test]
fn where_all_are_late_or_too_many_nobody_is_slow() {
    for late in [0..5, 1..3] {
        let mut rig = Rig::new();
        rig.run(Duration::from_secs(5));
        rig.takes[late].fill(None);
        rig.run(Duration::from_secs(30));
        assert!(rig.slow().len() <= 1, "{:?}", rig.slow());
        let slow = rig.slowness.slow();
        let others: MemberSet =
            (0..5).map(MemberIndex).filter(|one| !slow.contains(*one)).collect();
        assert!(rig.slowness.geometry.can_serve_from(others));
    }
    // All at once, as behind a switch that restarts.
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    (0..5).for_each(|member| rig.send(MemberIndex(member)));
    rig.takes = [None; 5];
    for _ in 0..3 {
        (0..5).for_each(|member| rig.send(MemberIndex(member)));
    }
    rig.run(Duration::from_secs(10));
    assert_eq!(rig.slow(), []);
}

#[test]
fn the_time_in_which_the_engine_stands_still_makes_nobody_late() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    (0..5).for_each(|member| rig.send(MemberIndex(member)));
    rig.takes = [None; 5];
    (0..5).for_each(|member| rig.send(MemberIndex(member)));
    rig.now += Duration::from_secs(6);
    // What came meanwhile is looked at before or after the timer.
    for member in 0..3 {
        rig.answer(member);
    }
    rig.pass();
    for member in 3..5 {
        rig.answer(member);
    }
    rig.takes = [Some(MS); 5];
    assert_eq!(rig.run(Duration::from_secs(5)), []);
}

#[test]
fn a_member_that_was_slow_all_along_is_slow_and_one_that_is_a_little_slower_is_not() {
    for (usual, slowest, is_slow) in
        [(1, 30, true), (1, 4, false), (10, 60, false), (10, 120, true)]
    {
        let mut rig = Rig::new();
        rig.takes = [Some(MS * usual); 5];
        rig.takes[4] = Some(MS * slowest);
        rig.run(Duration::from_secs(5));
        assert_eq!(rig.slow() == [4], is_slow, "{slowest} ms beside {usual}");
        if is_slow {
            // It stays so while it is.
            rig.run(Duration::from_secs(20));
            assert_eq!(rig.slow(), [4]);
            rig.takes[4] = Some(MS * usual);
            rig.run(Duration::from_secs(90));
            assert_eq!(rig.slow(), []);
        }
    }
}

#[test]
fn without_reads_there_is_nothing_to_do_and_a_slow_member_is_forgiven_in_time() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    rig.takes[0] = None;
    rig.run(MS * 100);
    assert_eq!(rig.slow(), [0]);
    rig.takes[0] = Some(MS);
    rig.answer(0);
    let mut looks = 0;
    while let Some(at) = rig.slowness.next_timeout() {
        rig.now = at;
        rig.pass();
        looks += 1;
        assert!(looks < 1000);
    }
    assert_eq!(rig.slow(), []);
    assert!(looks < 40, "{looks} looks at an array that is idle");
}

#[test]
fn of_a_member_that_left_nothing_is_known() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    rig.takes[3] = None;
    rig.run(MS * 100);
    assert_eq!(rig.slow(), [3]);
    rig.slowness.forget(MemberIndex(3));
    assert_eq!(rig.slow(), []);
    for (member, read) in rig.silent.drain(..) {
        rig.slowness.note_done(rig.now, member, read, false);
    }
    rig.takes[3] = Some(MS * 80);
    let dues = rig.run(MS * 400);
    assert_eq!(dues, [], "another device may be slower");
}

#[test]
fn among_unequal_members_one_that_is_as_fast_as_most_again_is_not_slow() {
    let mut rig = Rig::new();
    rig.takes = [Some(MS), Some(MS * 9), Some(MS * 9), Some(MS * 9), Some(MS * 8)];
    rig.run(Duration::from_secs(5));
    rig.takes[1] = None;
    rig.run(Duration::from_secs(2));
    assert_eq!(rig.slow(), [1]);
    rig.takes[1] = Some(MS * 9);
    rig.answer(1);
    rig.run(Duration::from_secs(8));
    assert_eq!(rig.slow(), []);
}

#[test]
fn one_delay_makes_nobody_slow_however_many_reads_it_holds() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    rig.takes[1] = None;
    (0..32).for_each(|_| rig.send(MemberIndex(1)));
    rig.takes[1] = Some(MS);
    for _ in 0..12 {
        rig.now += MS;
        rig.pass();
    }
    rig.answer(1);
    rig.run(Duration::from_secs(2));
    assert_eq!(rig.slow(), []);
    assert!(rig.dues.iter().all(|(_, due)| matches!(due, Due::Hedge(..))), "{:?}", rig.dues);
    assert!(rig.hedges > 0);
}

#[test]
fn a_member_that_is_slow_again_and_again_stays_so_longer_each_time() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(5));
    let mut long = Vec::new();
    for _ in 0..5 {
        rig.takes[1] = None;
        rig.run(MS * 200);
        assert_eq!(rig.slow(), [1]);
        rig.takes[1] = Some(MS);
        rig.answer(1);
        let begin = rig.now;
        while rig.slow() == [1] {
            rig.run(MS * 10);
        }
        long.push(rig.now - begin);
        rig.run(Duration::from_secs(1));
    }
    assert!(long.windows(2).all(|two| two[1] * 2 > two[0] * 3), "{long:?}");
}

/// Writes and flushes of members that answer in a millisecond, but for this one; who is to be given up, and when.
fn given_up(op: Op, silent: &[u8], takes: Duration) -> Vec<(u8, Duration)> {
    given_up_where(op, silent, takes, false)
}

/// The same, where it may be that only every other request takes long.
fn given_up_where(
    op: Op,
    silent: &[u8],
    takes: Duration,
    is_every_other: bool,
) -> Vec<(u8, Duration)> {
    let mut rig = Rig::new();
    let begin = rig.now + Duration::from_secs(1);
    let mut under_way: Vec<(Duration, MemberIndex, SentRequest)> = Vec::new();
    let mut found = Vec::new();
    for step in 0..8000_u32 {
        rig.now += MS;
        if step % 4 == 0 {
            for member in (0..5).map(MemberIndex) {
                let io = IoId(narrow(rig.next));
                rig.next += 1;
                let sent = rig.slowness.note_sent(rig.now, member, io, (op, LEN)).unwrap();
                let is_late = rig.now >= begin && silent.contains(&member.0);
                let is_quick = is_every_other && step % 8 == 0;
                let takes = if is_late && !is_quick { takes } else { MS };
                under_way.push((rig.now + takes, member, sent));
            }
        }
        let (ended, left): (Vec<_>, Vec<_>) =
            under_way.drain(..).partition(|(until, ..)| *until <= rig.now);
        under_way = left;
        for (_, member, sent) in ended {
            rig.slowness.note_done(rig.now, member, sent, true);
        }
        let whole = (0..5).map(MemberIndex).collect();
        while let Some(due) = rig.slowness.poll_due(rig.now, whole) {
            let Due::GiveUp { member, took, unheard, is_silent } = due else { panic!("{due:?}") };
            assert!(took >= Duration::from_millis(500) && unheard.is_empty());
            assert_eq!(is_silent, takes > Duration::from_secs(10), "{takes:?}");
            found.push((member.0, rig.now - begin));
            rig.slowness.note_given_up(rig.now, member, is_silent);
            rig.slowness.forget(member);
        }
    }
    found
}

#[test]
fn a_member_that_does_not_answer_writes_is_given_up_where_the_others_answer() {
    let late = |op| {
        let found = given_up(op, &[3], Duration::from_secs(100));
        assert!(found.iter().all(|(member, _)| *member == 3), "{found:?}");
        found[0].1
    };
    let bounds = Deadlines::default();
    assert!((bounds.write.0..bounds.write.0 + MS * 20).contains(&late(Op::Write)));
    assert!((bounds.flush.0..bounds.flush.0 + MS * 20).contains(&late(Op::Flush)));
    // It is back at once, and each time it is given more time.
    let again = given_up(Op::Write, &[3], Duration::from_secs(100));
    let gaps: Vec<Duration> = again.windows(2).map(|two| two[1].1 - two[0].1).collect();
    assert!(gaps.iter().all(|gap| *gap >= MS * 4000), "nothing is known of it: {gaps:?}");
    // One that is behind, and no more than that; more than the array can do without; and all of them.
    assert_eq!(given_up(Op::Write, &[3], MS * 400), []);
    assert_eq!(given_up_where(Op::Write, &[3], MS * 3000, true), [], "it answers others meanwhile");
    assert_eq!(given_up(Op::Write, &[1, 3], Duration::from_secs(100)), []);
    assert_eq!(given_up(Op::Write, &[0, 1, 2, 3, 4], Duration::from_secs(100)), []);
}

#[test]
fn a_member_that_has_answered_a_later_write_and_nothing_since_is_given_up_as_soon() {
    let mut rig = Rig::new();
    let mut found = None;
    let mut under_way: Vec<(Duration, MemberIndex, SentRequest)> = Vec::new();
    let stops_at = rig.now + Duration::from_secs(1);
    while rig.now < stops_at + Duration::from_secs(3) {
        rig.now += MS;
        let is_stopped = rig.now >= stops_at;
        for member in (0..5).map(MemberIndex) {
            let io = IoId(narrow(rig.next));
            rig.next += 1;
            let sent = rig.slowness.note_sent(rig.now, member, io, (Op::Write, LEN)).unwrap();
            // The last one before the stop is never answered, and the one after that is.
            let is_last = rig.now == stops_at - MS * 2;
            let is_never = member == MemberIndex(3) && (is_stopped || is_last);
            let takes = if is_never { Duration::from_secs(100) } else { MS };
            under_way.push((rig.now + takes, member, sent));
        }
        let (ended, left): (Vec<_>, Vec<_>) =
            under_way.drain(..).partition(|(until, ..)| *until <= rig.now);
        under_way = left;
        for (_, member, sent) in ended {
            rig.slowness.note_done(rig.now, member, sent, true);
        }
        let whole = (0..5).map(MemberIndex).collect();
        while let Some(due) = rig.slowness.poll_due(rig.now, whole) {
            let Due::GiveUp { member: MemberIndex(3), .. } = due else { panic!("{due:?}") };
            found.get_or_insert(rig.now - stops_at);
        }
    }
    let found = found.unwrap();
    assert!(found < Deadlines::default().write.0 + MS * 20, "{found:?}");
}

/// When a member is given up to which writes take so long, while they take a millisecond at the others. So many rows of
/// the array are written at a time, one after the other, each when all have answered.
fn crawls(takes: [u32; 5], rows: u32, time: Duration) -> Vec<(u8, Duration, Duration)> {
    crawls_in(Rig::new(), (0..5).map(MemberIndex).collect(), takes, rows, time)
}

/// The same, where these members hold everything.
fn crawls_in(
    mut rig: Rig,
    whole: MemberSet,
    takes: [u32; 5],
    rows: u32,
    time: Duration,
) -> Vec<(u8, Duration, Duration)> {
    let begin = rig.now;
    let mut under_way: Vec<(Duration, u32, MemberIndex, SentRequest)> = Vec::new();
    let mut found = Vec::new();
    while rig.now < begin + time {
        rig.now += MS;
        let (ended, left): (Vec<_>, Vec<_>) =
            under_way.drain(..).partition(|(until, ..)| *until <= rig.now);
        under_way = left;
        for (_, _, member, sent) in ended {
            rig.slowness.note_done(rig.now, member, sent, true);
        }
        for row in 0..rows {
            if under_way.iter().any(|(_, of, ..)| *of == row) {
                continue;
            }
            for member in (0..5).map(MemberIndex) {
                let io = IoId(narrow(rig.next));
                rig.next += 1;
                let sent = rig.slowness.note_sent(rig.now, member, io, (Op::Write, LEN)).unwrap();
                let until = rig.now + MS * takes[member.as_usize()];
                under_way.push((until, row, member, sent));
            }
        }
        while let Some(due) = rig.slowness.poll_due(rig.now, whole) {
            let Due::GiveUp { member, took, unheard, is_silent: false } = due else {
                panic!("{due:?}")
            };
            assert!(unheard.is_empty() && took >= MS * takes[member.as_usize()]);
            let away = rig.slowness.note_given_up(rig.now, member, false);
            found.push((member.0, rig.now - begin, away));
            rig.slowness.forget(member);
        }
    }
    found
}

#[test]
fn a_member_whose_writes_all_take_long_is_given_up_and_stays_away_longer_each_time() {
    for rows in [1, 4, 16] {
        let found = crawls([1, 1, 1500, 1, 1], rows, Duration::from_secs(40));
        assert!(found.iter().all(|(member, ..)| *member == 2), "{found:?}");
        assert!(found[0].1 < Duration::from_secs(6), "{rows} rows: {found:?}");
        let away: Vec<u64> = found.iter().map(|(.., away)| away.as_secs()).collect();
        assert_eq!(away[..5], [20, 40, 80, 160, 240]);
    }
}

#[test]
fn members_are_waited_for_that_have_much_to_do_or_are_slow_together() {
    let time = Duration::from_secs(40);
    assert_eq!(crawls([1, 1, 400, 1, 1], 4, time), [], "none of its writes is late");
    assert_eq!(crawls([1, 1, 1500, 1, 1], 200, time), [], "it answers 130 a second");
    assert_eq!(crawls([1, 1500, 1500, 1, 1], 4, time), [], "the array cannot do without both");
    assert_eq!(crawls([1500; 5], 4, time), []);
    assert_eq!(crawls([200, 200, 1500, 200, 200], 4, time), [], "the others are slow, too");
    assert_eq!(crawls([3000; 5], 1, time), [], "all are, and none has answered lately");
    assert_eq!(crawls([3000, 3001, 3002, 3003, 3004], 3, time), []);
}

#[test]
fn a_member_that_is_silent_again_stays_away_unless_one_of_its_writes_was_in_time() {
    let mut rig = Rig::new();
    let member = MemberIndex(2);
    let mut again = |is_quick: bool| {
        rig.now += Duration::from_secs(10);
        rig.slowness.forget(member);
        if is_quick {
            let io = IoId(narrow(rig.next));
            let sent = rig.slowness.note_sent(rig.now, member, io, (Op::Write, LEN)).unwrap();
            rig.now += MS;
            rig.slowness.note_done(rig.now, member, sent, true);
        }
        rig.slowness.note_given_up(rig.now, member, true).as_secs()
    };
    assert_eq!([false, true, true, false, false, true].map(&mut again), [0, 0, 0, 20, 40, 0]);
}

#[test]
fn a_member_that_catches_up_is_sent_away_only_where_it_is_back_from_that() {
    let member = MemberIndex(2);
    let others: MemberSet = (0..5).map(MemberIndex).filter(|one| *one != member).collect();
    let takes = [1, 1, 1500, 1, 1];
    for was_given_up in [false, true] {
        let mut rig = Rig::new();
        if was_given_up {
            rig.slowness.note_given_up(rig.now, member, true);
            rig.slowness.forget(member);
        }
        let found = crawls_in(rig, others, takes, 4, Duration::from_secs(6));
        assert_eq!(!found.is_empty(), was_given_up, "{found:?}");
    }
}

#[test]
fn a_slow_member_without_which_the_array_cannot_do_any_more_is_read_from() {
    let mut rig = Rig::new();
    rig.run(Duration::from_secs(3));
    rig.takes[1] = None;
    rig.run(Duration::from_secs(2));
    assert_eq!(rig.slow(), [1]);
    rig.slowness.forget(MemberIndex(3));
    let whole = [0, 1, 2, 4].map(MemberIndex).into_iter().collect();
    rig.now += TICK;
    assert_eq!(rig.slowness.poll_due(rig.now, whole), Some(Due::NotSlow(MemberIndex(1))));
    assert_eq!(rig.slow(), []);
}
