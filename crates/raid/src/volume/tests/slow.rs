//! Reads that are late, as the machine is told of them.

use super::*;

impl Rig {
    /// Time passes for the reads that are under way.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.volume.next_timeout() <= end {
            self.now = self.volume.next_timeout().max(self.now);
            let looks = self.looks.clone();
            self.volume.handle_timeout(self.now, &looks);
            self.seen();
        }
        self.now = end;
    }

    /// Reads that each member answers in a millisecond.
    fn read_all(&mut self, count: usize) {
        for _ in 0..count {
            let sent: Vec<Sent> = (0..MEMBERS)
                .flat_map(|member| self.submit(member.into(), member, (Op::Read, 0, 4 * KIB)))
                .collect();
            self.run(Duration::from_millis(1));
            for Sent { tag, .. } in sent {
                self.end(tag, Ok(SgList::zeroes(4 << 10)));
            }
            self.seen();
        }
    }

    /// A member does not answer three reads, one after the other.
    fn hang(&mut self, member: u8) -> Vec<Sent> {
        let mut sent = Vec::new();
        for io in 10..13 {
            sent.extend(self.submit(io, member, (Op::Read, 0, 4 * KIB)));
            self.run(Duration::from_millis(20));
        }
        sent
    }

    fn slow_events(&mut self) -> Vec<(u8, bool)> {
        let slow = |told| {
            let Event::Slow { member, failure } = told else { return None };
            Some((member.0, failure.is_some()))
        };
        self.told().into_iter().filter_map(slow).collect()
    }
}

fn only(member: u8) -> MemberSet {
    [MemberIndex(member)].into_iter().collect()
}

#[test]
fn the_machine_is_told_of_reads_that_are_late_and_of_members_that_are_slow_until_they_are_not() {
    let mut rig = Rig::opened();
    rig.read_all(100);
    rig.calls();
    let write = rig.submit(13, 2, (Op::Write, 0, 4 * KIB));
    let late = rig.hang(2);
    let calls = rig.calls();
    assert_eq!(calls.iter().filter(|call| **call == Call::Slow(only(2))).count(), 1, "{calls:?}");
    for io in 10..13 {
        let count = calls.iter().filter(|call| **call == Call::Late(IoId(io))).count();
        assert_eq!(count, 1, "{calls:?}");
    }
    assert!(!calls.contains(&Call::Late(IoId(13))), "writes are waited for");
    assert_eq!(rig.slow_events(), [(2, true)]);
    assert_eq!(rig.volume.slow(), only(2));
    assert_eq!(rig.volume.stats(MemberIndex(2)).late, 3);

    for Sent { tag, .. } in late.into_iter().chain(write) {
        let result = if tag == Tag::new(MemberIndex(2), 13, 0) {
            SgList::new()
        } else {
            SgList::zeroes(4 << 10)
        };
        rig.end(tag, Ok(result));
    }
    rig.run(Duration::from_millis(200));
    assert!(rig.calls().contains(&Call::Probe(2)));
    rig.run(Duration::from_secs(3));
    assert!(rig.calls().contains(&Call::Slow(MemberSet::EMPTY)));
    assert_eq!(rig.slow_events(), [(2, false)]);
}

#[test]
fn a_slow_member_that_leaves_is_not_slow_when_it_is_back() {
    let mut rig = Rig::opened();
    rig.read_all(100);
    let late = rig.hang(2);
    assert_eq!(rig.volume.slow(), only(2));
    rig.calls();
    rig.machine().say(2, MemberState::Faulty, "gone");
    rig.seen();
    assert_eq!(rig.volume.slow(), MemberSet::EMPTY);
    assert!(rig.calls().contains(&Call::Slow(MemberSet::EMPTY)));
    for Sent { tag, .. } in late {
        rig.end(tag, Err(ErrorKind::Unreachable.into()));
    }
    rig.run(Duration::from_secs(1));
    assert_eq!(rig.volume.slow(), MemberSet::EMPTY);
}

impl Rig {
    /// Members 0 to `upto` answer writes for so long.
    fn write_to(&mut self, upto: u8, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let sent: Vec<Sent> = (0..upto)
                .flat_map(|member| self.submit(member.into(), member, (Op::Write, 0, 4 * KIB)))
                .collect();
            self.run(Duration::from_millis(10));
            for Sent { tag, .. } in sent {
                self.end(tag, Ok(SgList::new()));
            }
            self.seen();
        }
    }

    fn is_gone(&mut self, member: u8) -> bool {
        self.calls().iter().any(|call| matches!(call, Call::Gone(gone, _) if *gone == member))
    }
}

#[test]
fn the_array_goes_on_without_a_member_that_keeps_its_writes_waiting_where_it_can() {
    let last = MEMBERS - 1;
    for bears in [1, 0] {
        let mut rig = Rig::opened_with(|script, _| script.bears = bears);
        rig.write_to(MEMBERS, Duration::from_secs(1));
        let write = rig.submit(10, last, (Op::Write, 0, 4 * KIB))[0].tag;
        rig.write_to(last, Duration::from_millis(480));
        assert!(!rig.is_gone(last));
        rig.write_to(last, Duration::from_millis(200));
        assert_eq!(rig.is_gone(last), bears > 0, "{bears} may be lost");
        // What comes from it now says nothing of its place.
        rig.end(write, Ok(SgList::new()));
        rig.write_to(last, Duration::from_secs(2));
        assert!(!rig.is_gone(last));
    }
}

#[test]
fn no_member_is_given_up_before_something_comes_from_those_that_owe_nothing() {
    let last = MEMBERS - 1;
    let mut rig = Rig::opened();
    rig.write_to(MEMBERS, Duration::from_secs(1));
    rig.submit(10, last, (Op::Write, 0, 4 * KIB));
    let mut asked = Vec::new();
    let end = rig.now + Duration::from_secs(4);
    while rig.now < end {
        rig.now = rig.volume.next_timeout().max(rig.now);
        let looks = rig.looks.clone();
        rig.volume.handle_timeout(rig.now, &looks);
        asked.extend(rig.seen().into_iter().filter_map(|seen| {
            let Seen::Sent(sent) = seen else { return None };
            Some(sent)
        }));
    }
    assert!(!rig.is_gone(last), "all may be cut off");
    // Each of them was asked once. One that fails to answer says nothing; the array needs all of the others.
    assert_eq!(asked.len(), usize::from(last), "{asked:?}");
    let failed = asked.pop().unwrap();
    rig.end(failed.tag, Err(ErrorKind::Unreachable.into()));
    for Sent { tag, .. } in asked {
        rig.end(tag, Ok(SgList::zeroes(4 << 10)));
    }
    rig.run(Duration::from_millis(15));
    assert!(!rig.is_gone(last));
    assert!(rig.machine().failure.is_none());
}

#[test]
fn a_member_that_answers_all_its_writes_late_stays_away_for_a_while() {
    let last = MEMBERS - 1;
    let mut rig = Rig::opened();
    rig.write_to(MEMBERS, Duration::from_secs(1));
    for round in 0..3 {
        let write = rig.submit(10, last, (Op::Write, 0, 4 * KIB))[0].tag;
        // It answers something meanwhile.
        for _ in 0..3 {
            let read = rig.submit(11, last, (Op::Read, 0, 4 * KIB))[0].tag;
            rig.write_to(last, Duration::from_millis(400));
            rig.end(read, Ok(SgList::zeroes(4 << 10)));
        }
        assert!(!rig.is_gone(last), "{round}");
        rig.end(write, Ok(SgList::new()));
    }
    rig.submit(10, last, (Op::Write, 0, 4 * KIB));
    rig.write_to(last, Duration::from_millis(200));
    assert!(rig.is_gone(last));
    let looks = (0..60).take_while(|_| !rig.look().contains(&Seen::LookFor(last))).count();
    assert!((19..=21).contains(&looks), "looked for again after {looks} s");
}
