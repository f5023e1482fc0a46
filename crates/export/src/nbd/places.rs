//! Which client gives way when another one needs its place, or the memory that it keeps.
//!
//! A machine: it is told who has a place and, from time to time, what each does; it says who gives
//! way. Clients give way only when there is need. Invariants: one for whom the device works gives
//! way to nobody, and one that has written never for its silence: it may be a disk that is mounted,
//! and idle.

use std::time::Duration;

/// Most clients at once; more wait until one leaves or gives way.
pub(super) const CLIENTS_MAX: usize = 256;
/// Clients have so large a part of the files and sockets that the process may have open: members, the control
/// socket, and files have the rest.
const SHARE_OF_DESCRIPTORS: u64 = 2;
/// How often it is told that clients cannot be accepted, at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a connection may negotiate while another client needs its place.
const NEGOTIATES_MAX: Duration = Duration::from_secs(1);
/// How long a client may have asked for nothing yet.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// How long a client that has only read may ask for nothing more.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long a client may take for [`MOVED_MIN`] bytes that it is waited for, while its place is needed.
const STALLED_MAX: Duration = Duration::from_secs(30);
/// The same while the memory is needed that it keeps.
const KEEPS_MAX: Duration = Duration::from_secs(10);
/// What a client that is waited for has to take or send in that time.
const MOVED_MIN: u64 = 64 << 10;
/// While memory is needed it is at least such a part of what the client keeps: memory is given back within
/// four times [`KEEPS_MAX`].
const MOVED_PART: u64 = 4;
/// Clients are looked at each second. After a longer time, in which this process stood still, nobody knows for how
/// long a client was waited for that has moved something since.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It has not agreed with its client yet.
    Negotiates,
    /// Its client has asked for nothing yet.
    Silent,
    /// Nothing is under way; its client has only read.
    Idle,
    /// Nothing is under way; its client has written.
    IdleWriter,
    /// The device works for it, or its turn has not come.
    Works,
    /// Its client has to take replies, or to send what it has announced.
    WaitsForClient,
}

/// What a connection does, how many bytes it has exchanged with its client, and how many bytes of memory its
/// requests have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) doing: Doing,
    pub(super) moved: u64,
    pub(super) keeps: u64,
}

/// What somebody needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Place,
    Memory,
}

/// How many clients a server has at most that may take so many files and sockets together with what else is open.
pub(super) fn places_within(descriptors: u64) -> usize {
    let share = usize::try_from(descriptors / SHARE_OF_DESCRIPTORS);
    share.map_or(CLIENTS_MAX, |share| share.clamp(1, CLIENTS_MAX))
}

/// All clients of a server.
#[derive(Debug)]
pub(super) struct Places<K> {
    clients: Vec<Place<K>>,
    limit: usize,
    /// A client was not accepted for want of descriptors, and nobody has given way for it yet.
    is_exhausted: bool,
    /// Times that no client could be accepted since that was told.
    failed: u64,
    told: Option<Duration>,
}

#[derive(Debug)]
struct Place<K> {
    client: K,
    last: Look,
    looked: Duration,
    /// What it does for those that need its place, and for those that need the memory that it keeps.
    for_place: Progress,
    for_memory: Progress,
}

/// Since when a client has moved less than it had to, and what it had moved then.
#[derive(Debug, Clone, Copy)]
struct Progress {
    since: Duration,
    moved_then: u64,
}

impl<K: Copy + PartialEq> Places<K> {
    /// Nobody is there, and `limit` clients may come.
    pub(super) const fn new(limit: usize) -> Self {
        Self { clients: Vec::new(), limit, is_exhausted: false, failed: 0, told: None }
    }

    /// A client has connected.
    pub(super) fn handle_begin(&mut self, client: K, now: Duration) {
        let last = Look { doing: Doing::Negotiates, moved: 0, keeps: 0 };
        let progress = Progress { since: now, moved_then: 0 };
        let (for_place, for_memory) = (progress, progress);
        self.clients.push(Place { client, last, looked: now, for_place, for_memory });
    }

    /// A client has left, or was sent away.
    pub(super) fn handle_end(&mut self, client: K) {
        self.clients.retain(|place| place.client != client);
        self.is_exhausted = false;
    }

    /// A client was accepted; it may have to wait for its place.
    pub(super) const fn handle_accepted(&mut self) {
        self.is_exhausted = false;
    }

    /// A client could not be accepted; for want of descriptors or memory, if `is_shortage`.
    pub(super) const fn handle_not_accepted(&mut self, is_shortage: bool) {
        self.is_exhausted |= is_shortage;
        self.failed = self.failed.saturating_add(1);
    }

    /// It is tried again to accept a client: until that fails, too, nobody is known to wait.
    pub(super) const fn handle_new_try(&mut self) {
        self.is_exhausted = false;
    }

    /// How often clients could not be accepted since that was told, when it is time to tell it.
    pub(super) fn poll_report(&mut self, now: Duration) -> Option<u64> {
        let is_early = self.told.is_some_and(|told| now.saturating_sub(told) < REPORT_INTERVAL);
        if self.failed == 0 || is_early {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.failed))
    }

    /// Whether somebody has to give way for one more client: one that waits for a place, or one that could not be
    /// accepted.
    pub(super) const fn needs_place(&self, one_waits: bool) -> bool {
        self.is_exhausted || (one_waits && self.clients.len() >= self.limit)
    }

    /// What a client does now. All are looked at each second, or more often, also while nobody needs anything:
    /// else a client would be blamed for a time in which nobody knows what it did.
    pub(super) fn handle_look(&mut self, client: K, look: Look, now: Duration) {
        if let Some(place) = self.clients.iter_mut().find(|place| place.client == client) {
            place.handle_look(look, now);
        }
    }

    /// Who gives way, if anybody: those that have done nothing yet first.
    pub(super) fn gives_way(&self, need: Need, now: Duration) -> Option<(K, Doing)> {
        let ranked = self.clients.iter().filter_map(|place| Some((place, place.rank(need, now)?)));
        let first = ranked.min_by_key(|(place, rank)| (*rank, place.progress(need).since));
        first.map(|(place, _)| (place.client, place.last.doing))
    }
}

impl<K> Place<K> {
    fn handle_look(&mut self, look: Look, now: Duration) {
        let waits = look.doing == Doing::WaitsForClient;
        let is_late = now.saturating_sub(self.looked) > LOOKS_WITHIN;
        let is_unknown = waits && is_late && look.moved != self.last.moved;
        let is_other = waits != (self.last.doing == Doing::WaitsForClient) || is_unknown;
        let memory_min = MOVED_MIN.max(look.keeps / MOVED_PART);
        for (progress, moved_min) in
            [(&mut self.for_place, MOVED_MIN), (&mut self.for_memory, memory_min)]
        {
            let has_moved = match waits {
                true => look.moved.saturating_sub(progress.moved_then) >= moved_min,
                false => look.moved != progress.moved_then,
            };
            if has_moved || is_other {
                *progress = Progress { since: now, moved_then: look.moved };
            }
        }
        (self.last, self.looked) = (look, now);
    }

    const fn progress(&self, need: Need) -> &Progress {
        match need {
            Need::Place => &self.for_place,
            Need::Memory => &self.for_memory,
        }
    }

    /// Its turn to give way, or none while it has not done too little for long enough.
    fn rank(&self, need: Need, now: Duration) -> Option<u8> {
        let (rank, limit) = match (self.last.doing, need) {
            (Doing::WaitsForClient, Need::Memory) => (0, KEEPS_MAX),
            (Doing::Negotiates, Need::Place) => (0, NEGOTIATES_MAX),
            (Doing::Silent, Need::Place) => (1, SILENT_MAX),
            (Doing::WaitsForClient, Need::Place) => (2, STALLED_MAX),
            (Doing::Idle, Need::Place) => (3, IDLE_MAX),
            (Doing::Negotiates | Doing::Silent | Doing::Idle, Need::Memory)
            | (Doing::IdleWriter | Doing::Works, _) => return None,
        };
        (now.saturating_sub(self.progress(need).since) >= limit).then_some(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Places of clients 0, 1, ... that have connected at second 0.
    fn places(count: u32) -> Places<u32> {
        let mut places = Places::new(CLIENTS_MAX);
        (0..count).for_each(|client| places.handle_begin(client, at(0)));
        places
    }

    fn look(places: &mut Places<u32>, client: u32, doing: Doing, moved: u64, second: u64) {
        places.handle_look(client, Look { doing, moved, keeps: 0 }, at(second));
    }

    fn for_place(places: &Places<u32>, second: u64) -> Option<u32> {
        places.gives_way(Need::Place, at(second)).map(|(client, _)| client)
    }

    fn for_memory(places: &Places<u32>, second: u64) -> Option<u32> {
        places.gives_way(Need::Memory, at(second)).map(|(client, _)| client)
    }

    #[test]
    fn who_negotiates_slowly_gives_way_first_and_the_oldest_of_them() {
        let mut places = places(2);
        places.handle_begin(2, at(3));
        assert_eq!(for_place(&places, 0), None);
        look(&mut places, 0, Doing::Silent, 0, 20);
        assert_eq!(for_place(&places, 20), Some(1));
        places.handle_end(1);
        assert_eq!(for_place(&places, 20), Some(2));
        places.handle_end(2);
        assert_eq!(for_place(&places, 20), Some(0));
        places.handle_end(0);
        assert_eq!(for_place(&places, 20), None);
    }

    #[test]
    fn a_client_that_has_asked_for_nothing_gives_way_after_a_time() {
        let mut places = places(1);
        look(&mut places, 0, Doing::Silent, 0, 1);
        assert_eq!(for_place(&places, 9), None);
        assert_eq!(for_place(&places, 10), Some(0), "since it has connected");
        look(&mut places, 0, Doing::Idle, 28, 10);
        assert_eq!(for_place(&places, 10), None, "it asks");
    }

    #[test]
    fn a_client_that_has_only_read_gives_way_after_a_longer_time() {
        let mut places = places(1);
        look(&mut places, 0, Doing::Idle, 1000, 5);
        look(&mut places, 0, Doing::Idle, 1000, 64);
        assert_eq!(for_place(&places, 64), None);
        assert_eq!(for_place(&places, 65), Some(0));
        look(&mut places, 0, Doing::Idle, 1028, 65);
        assert_eq!(for_place(&places, 100), None);
    }

    #[test]
    fn a_client_that_has_written_or_is_worked_for_keeps_its_place() {
        let mut places = places(2);
        look(&mut places, 0, Doing::IdleWriter, 1000, 1);
        look(&mut places, 1, Doing::Works, 1000, 1);
        assert_eq!(for_place(&places, 1_000_000), None);
        assert_eq!(for_memory(&places, 1_000_000), None);
    }

    #[test]
    fn a_client_that_takes_no_replies_gives_way() {
        let mut places = places(1);
        look(&mut places, 0, Doing::Works, 1000, 5);
        // The device has done its part, and nothing has moved since.
        look(&mut places, 0, Doing::WaitsForClient, 1000, 100);
        assert_eq!(for_memory(&places, 109), None);
        assert_eq!(for_memory(&places, 110), Some(0));
        assert_eq!(for_place(&places, 129), None);
        assert_eq!(for_place(&places, 130), Some(0));
    }

    #[test]
    fn a_client_that_takes_too_little_gives_way_and_a_slow_one_does_not() {
        let mut places = places(2);
        for second in 0..=30 {
            look(&mut places, 0, Doing::WaitsForClient, second * 100, second);
            look(&mut places, 1, Doing::WaitsForClient, second * MOVED_MIN / 8, second);
        }
        assert_eq!(for_memory(&places, 30), Some(0));
        places.handle_end(0);
        assert_eq!(for_memory(&places, 30), None);
    }

    #[test]
    fn a_client_that_keeps_much_memory_and_sends_little_gives_way() {
        const KEEPS: u64 = 32 << 20;
        let mut places = places(2);
        let mut look = |client, moved, second| {
            let look = Look { doing: Doing::WaitsForClient, moved, keeps: KEEPS };
            places.handle_look(client, look, at(second));
            (for_memory(&places, second), for_place(&places, second))
        };
        for second in 0..10 {
            // The first is far above what a client of a small request has to send.
            assert_eq!(look(0, second * MOVED_MIN, second), (None, None));
            assert_eq!(look(1, second * (1 << 20), second), (None, None));
        }
        assert_eq!(look(1, 10 << 20, 10), (Some(0), None));
        places.handle_end(0);
        assert_eq!(for_memory(&places, 10), None);
    }

    #[test]
    fn a_client_is_not_blamed_for_the_time_in_which_the_process_stood_still() {
        let mut places = places(1);
        let mut look = |moved, second| {
            let look = Look { doing: Doing::WaitsForClient, moved, keeps: 32 << 20 };
            places.handle_look(0, look, at(second));
            for_memory(&places, second)
        };
        assert_eq!(look(0, 0), None);
        assert_eq!(look(4 << 10, 3600), None);
        assert_eq!((3601..3610).find_map(|second| look(4 << 10, second)), None);
        assert_eq!(look(4 << 10, 3610), Some(0));
        // Who has moved nothing since is waited for as it was then.
        assert_eq!(look(4 << 10, 7200), Some(0));
    }

    #[test]
    fn silence_does_not_give_memory_back() {
        let mut places = places(2);
        look(&mut places, 1, Doing::Idle, 28, 1);
        assert_eq!(for_memory(&places, 1_000), None);
    }

    #[test]
    fn clients_have_half_of_the_descriptors_at_most() {
        assert_eq!(places_within(64), 32);
        assert_eq!(places_within(511), 255);
        assert_eq!(places_within(512), CLIENTS_MAX);
        assert_eq!(places_within(u64::MAX), CLIENTS_MAX);
        assert_eq!(places_within(0), 1, "somebody is served");
    }

    #[test]
    fn one_gives_way_for_each_that_is_not_accepted_for_want_of_descriptors() {
        let mut places = places(3);
        places.handle_not_accepted(false);
        assert!(!places.needs_place(false), "the client itself is gone");
        for client in 0..3 {
            places.handle_not_accepted(true);
            assert!(places.needs_place(false), "though there are places");
            assert_eq!(for_place(&places, 0), None, "they may negotiate still");
            assert_eq!(for_place(&places, 1), Some(client));
            places.handle_end(client);
            assert!(!places.needs_place(false));
        }
        places.handle_not_accepted(true);
        places.handle_accepted();
        assert!(!places.needs_place(false), "descriptors are there again");
    }

    #[test]
    fn nobody_gives_way_while_there_are_places() {
        let mut places = Places::new(2);
        places.handle_begin(0, at(0));
        assert!(!places.needs_place(true));
        places.handle_begin(1, at(0));
        assert!(places.needs_place(true) && !places.needs_place(false));
    }

    #[test]
    fn clients_that_are_not_accepted_are_told_of_once_in_a_while() {
        let mut places = places(0);
        assert_eq!(places.poll_report(at(0)), None);
        let mut told = Vec::new();
        for second in 0..25 {
            (0..10).for_each(|_| places.handle_not_accepted(true));
            told.extend(places.poll_report(at(second)));
        }
        assert_eq!(told, [10, 100, 100]);
        assert_eq!(places.poll_report(at(30)), Some(40), "none is left out");
        assert_eq!(places.poll_report(at(99)), None);
    }
}
