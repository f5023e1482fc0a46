//! Members that are given up, since writes and flushes wait for them: those that answer nothing, and those that crawl.
//!
//! Invariant: the members that are left could serve alone, answered meanwhile or owe nothing, and none of them is as slow. What
//! comes of it is not decided here ([`crate::volume`] looks at sessions first).

use core::time::Duration;

use super::{
    ClassRequests, Due, LONGER, MemberRequests, READ_CLASSES, RELAPSE_MAX, RELAPSES_MAX, Slowness,
};
use crate::member::{MemberIndex, MemberSet};

/// From one attempt to give a member up to the next one, where the array could not do without it, or others are asked first.
const GIVE_UP_EVERY: Duration = Duration::from_millis(20);
/// A member crawls when all of its writes were late for so many times the least time after which a write is late.
const CRAWLS_FOR: u32 = 6;
/// A crawl has so many late writes at least.
const CRAWLED_MIN: u32 = 3;
/// A member that answers more writes a second has much to do; a disk with moving heads answers twice as many.
const CRAWLED_MAX: u32 = 50;
/// How long a member that crawled stays away the first time, and at most; each relapse doubles it. The first time is shorter than
/// a cluster's keeper waits before it replaces a member.
const AWAY_MIN: Duration = Duration::from_secs(20);
const AWAY_MAX: Duration = Duration::from_secs(240);
/// A member that is to stay away so soon after the last time has a relapse.
const CRAWL_RELAPSE_MAX: Duration = Duration::from_secs(900);

/// Writes of a member that took long, with none among them that did not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crawl {
    /// When the first was sent.
    since: Duration,
    /// When the last one was answered, and how long it took.
    last: Duration,
    took: Duration,
    count: u32,
}

impl Slowness {
    /// A member was given up; how long it is to stay away. If that happens again soon, a silent one is given more time; one that
    /// was not silent, or of which no write was in time since it was back, stays away for longer.
    pub fn note_given_up(
        &mut self,
        now: Duration,
        member: MemberIndex,
        is_silent: bool,
    ) -> Duration {
        let own = self.own_time(now);
        let requests = &mut self.members[member.as_usize()];
        let is_relapse = requests.gave_up_at.is_some_and(|at| own < at + RELAPSE_MAX);
        let crawls = !is_silent || (is_relapse && !requests.is_quick);
        if crawls {
            let is_relapse = requests.crawled_at.is_some_and(|at| own < at + CRAWL_RELAPSE_MAX);
            requests.crawls = if is_relapse { (requests.crawls + 1).min(RELAPSES_MAX) } else { 0 };
            (requests.crawled_at, requests.gave_up_at) = (Some(own), Some(own));
            return (AWAY_MIN * (1 << requests.crawls)).min(AWAY_MAX);
        }
        requests.give_ups = if is_relapse { requests.give_ups + 1 } else { 1 };
        requests.gave_up_at = Some(own);
        Duration::ZERO
    }

    /// A member that has answered nothing for as long as a write or a flush that is late may take, while others answer.
    pub(super) fn poll_give_up(&mut self, own: Duration, whole: MemberSet) -> Option<Due> {
        for member in (0..self.geometry.members()).map(MemberIndex) {
            let requests = &self.members[member.as_usize()];
            let due = ClassRequests::due_first(&requests.classes[READ_CLASSES..]);
            let Some((sent, due)) = due else { continue };
            // Requests sent together end one after the other: it may have answered one that was sent later.
            let silence = own.saturating_sub(requests.answered_at);
            let longer = self.deadlines.write.0 * (1 << requests.give_ups.min(RELAPSES_MAX));
            let longer = longer.min(self.deadlines.write.1).max(due - sent);
            let is_silent = silence >= longer && own >= sent + longer;
            if !is_silent || requests.give_up_at > own {
                continue;
            }
            // Where the others are slow, too, it may answer a little later than they do. A request has an end in any case.
            let took = own.saturating_sub(sent);
            let is_alike = |other: MemberIndex| {
                let requests = &self.members[other.as_usize()];
                let longest = requests.longest.lately(own).max(requests.longest_write.lately(own));
                longest * LONGER > took && took < self.deadlines.write.1
            };
            let others = whole
                .iter()
                .filter(|other| *other != member && !self.owes(*other) && !is_alike(*other));
            // Who answered so long after it was sent was not cut off together with it.
            let since = sent + (due - sent) / 2;
            let answered =
                |other: &MemberIndex| self.members[other.as_usize()].answered_at >= since;
            let others: MemberSet = others.collect();
            let unheard = others.iter().filter(|other| !answered(other)).collect();
            if self.geometry.can_serve_from(others) {
                self.members[member.as_usize()].give_up_at = own + GIVE_UP_EVERY;
                return Some(Due::GiveUp { member, took, unheard, is_silent: true });
            }
        }
        None
    }

    /// A member that answers its writes, all of them so late that hardly any are done, while those of the others are in time.
    pub(super) fn poll_crawl(&mut self, own: Duration, whole: MemberSet) -> Option<Due> {
        let late = self.deadlines.write.0;
        for member in (0..self.geometry.members()).map(MemberIndex) {
            let requests = &self.members[member.as_usize()];
            // One that catches up gets nothing done by being sent away; unless it is back from that, and no better.
            let is_back = requests.gave_up_at.is_some_and(|at| own < at + CRAWL_RELAPSE_MAX);
            if !whole.contains(member) && !is_back {
                continue;
            }
            let Some(Crawl { since, last, took, count }) = requests.crawl else { continue };
            let long = last.saturating_sub(since);
            let is_rare = u128::from(count) * 1000 <= long.as_millis() * u128::from(CRAWLED_MAX);
            let is_crawl = long >= late * CRAWLS_FOR && count >= CRAWLED_MIN && is_rare;
            // A crawl is over when no write follows.
            let oldest = requests.oldest_write();
            let is_waited_for = oldest.is_some_and(|sent| sent <= last + late);
            if !is_crawl || !is_waited_for || requests.give_up_at > own {
                continue;
            }
            let is_fast = |other: &MemberIndex| {
                let requests = &self.members[other.as_usize()];
                let is_short = requests.longest_write.lately(own) < late / LONGER;
                let is_behind =
                    requests.oldest_write().is_some_and(|sent| own >= sent + late / LONGER);
                *other != member && is_short && !is_behind && !self.owes(*other)
            };
            let others: MemberSet = whole.iter().filter(is_fast).collect();
            let answered =
                |other: &MemberIndex| self.members[other.as_usize()].answered_at >= since;
            let unheard = others.iter().filter(|other| !answered(other)).collect();
            if self.geometry.can_serve_from(others) {
                self.members[member.as_usize()].give_up_at = own + GIVE_UP_EVERY;
                return Some(Due::GiveUp { member, took, unheard, is_silent: false });
            }
        }
        None
    }

    /// Whether a member owes an answer that is late.
    pub(super) fn owes(&self, member: MemberIndex) -> bool {
        let requests = &self.members[member.as_usize()];
        requests.classes[READ_CLASSES..].iter().any(|class| !class.late.is_empty())
    }
}

impl MemberRequests {
    /// A write was answered that took so long. Those that take as long as is late for their class are counted, where none in
    /// between was quick.
    pub(super) fn note_written(
        &mut self,
        own: Duration,
        took: Duration,
        (late, late_of_class): (Duration, Duration),
    ) {
        self.longest_write.note(own, took);
        if took < late {
            (self.crawl, self.is_quick) = (None, true);
            return;
        }
        if took < late_of_class {
            return;
        }
        let sent = own.saturating_sub(took);
        match &mut self.crawl {
            // A pause between writes ends a crawl.
            Some(crawl) if sent <= crawl.last + late => {
                (crawl.last, crawl.took) = (own, took);
                crawl.count = crawl.count.saturating_add(1);
            }
            crawl => *crawl = Some(Crawl { since: sent, last: own, took, count: 1 }),
        }
    }
}
