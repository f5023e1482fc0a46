//! A station: servers of one kind behind one queue, first come, first served. A disk's mechanics,
//! a network card's wire, a processor's cores are stations.

use core::time::Duration;

use crate::time::Time;

/// Fixed cost of a request, and what a second moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Time that each request takes whatever its size.
    pub overhead: Duration,
    /// Bytes a second after that; infinite for none.
    pub bytes_per_second: f64,
}

impl Pace {
    /// Nothing takes any time.
    pub const INSTANT: Self = Self { overhead: Duration::ZERO, bytes_per_second: f64::INFINITY };

    /// How long a request of `len` bytes takes.
    ///
    /// # Panics
    /// When the pace is not above zero.
    #[must_use]
    pub fn time(&self, len_bytes: u64) -> Duration {
        assert!(self.bytes_per_second > 0.0, "a pace of {} bytes/s", self.bytes_per_second);
        self.overhead + Duration::from_secs_f64(len_bytes as f64 / self.bytes_per_second)
    }
}

/// Servers behind one queue, and what they did.
#[derive(Debug, Clone)]
pub struct Station {
    /// When each server is free.
    free_at: Vec<Time>,
    busy: Duration,
    waited: Duration,
    served: u64,
}

impl Station {
    /// A station of `servers`.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn new(servers: usize) -> Self {
        assert!(servers > 0, "a station without servers");
        Self {
            free_at: vec![Time::START; servers],
            busy: Duration::ZERO,
            waited: Duration::ZERO,
            served: 0,
        }
    }

    /// Queues work that comes now; answers when it will be done. Calls come in order of time.
    pub fn serve(&mut self, now: Time, work: Duration) -> Time {
        let Some(server) = self.free_at.iter_mut().min() else {
            unreachable!("a station has servers")
        };
        let begin = now.max(*server);
        *server = begin.after(work);
        self.busy += work;
        self.waited += begin.since(now);
        self.served += 1;
        *server
    }

    /// Forgets what is queued: the servers are free now. What was counted stays.
    pub fn reset(&mut self, now: Time) {
        self.free_at.fill(now);
    }

    /// Share of the servers' time since the start that was work, from 0 to 1, with all that is
    /// queued counted as done.
    #[must_use]
    pub fn utilisation(&self, now: Time) -> f64 {
        let until = self.free_at.iter().copied().max().unwrap_or(now).max(now);
        let span = until.since(Time::START).as_secs_f64() * self.free_at.len() as f64;
        if span == 0.0 { 0.0 } else { self.busy.as_secs_f64() / span }
    }

    /// Work that the servers have done by `now`, which is not before the last call of
    /// [`Station::serve`]: what is still queued is left out.
    #[must_use]
    pub fn worked(&self, now: Time) -> Duration {
        let left: Duration = self.free_at.iter().map(|free_at| free_at.since(now)).sum();
        self.busy.saturating_sub(left)
    }

    /// How many servers there are.
    #[must_use]
    pub const fn servers(&self) -> usize {
        self.free_at.len()
    }

    /// Mean time that requests waited for a server.
    #[must_use]
    pub fn mean_wait(&self) -> Duration {
        if self.served == 0 { Duration::ZERO } else { self.waited.div_f64(self.served as f64) }
    }

    /// How many requests came.
    #[must_use]
    pub const fn served(&self) -> u64 {
        self.served
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agenda::Agenda, dice::Seed};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_server_works_off_its_queue_in_order() {
        let mut station = Station::new(1);
        let done: Vec<Time> = (0..3).map(|_| station.serve(Time::START, 2 * MS)).collect();
        assert_eq!(done, [2 * MS, 4 * MS, 6 * MS].map(|at| Time::START.after(at)));
        assert_eq!(station.worked(Time::START.after(5 * MS)), 5 * MS);
        let idle = Time::START.after(10 * MS);
        assert_eq!(station.worked(idle), 6 * MS);
        assert_eq!(station.serve(idle, MS), idle.after(MS));
        assert_eq!(station.mean_wait(), 6 * MS / 4);
    }

    #[test]
    fn two_servers_take_the_next_request_when_one_is_free() {
        let mut station = Station::new(2);
        let done: Vec<Time> = [5, 1, 1].map(|work| station.serve(Time::START, work * MS)).to_vec();
        assert_eq!(done, [5 * MS, MS, 2 * MS].map(|at| Time::START.after(at)));
        assert!((station.utilisation(Time::START.after(5 * MS)) - 0.7).abs() < 1e-9);
    }

    /// Random arrivals at a server with random work: the mean wait is that of queueing theory,
    /// M/M/1: rho / (1 - rho) times the mean work.
    #[test]
    fn waits_are_those_of_queueing_theory() {
        let mut dice = Seed(3).dice("queue");
        let (mut agenda, mut station) = (Agenda::default(), Station::new(1));
        for _ in 0..200_000 {
            agenda.put_in(dice.time_to_next(2 * MS), ());
            agenda.pop();
            let work = dice.time_to_next(MS);
            station.serve(agenda.now(), work);
        }
        let wait = station.mean_wait().as_secs_f64() / MS.as_secs_f64();
        assert!((wait - 1.0).abs() < 0.06, "mean wait {wait} of the mean work");
    }

    #[test]
    fn a_pace_is_overhead_and_rate() {
        let pace = Pace { overhead: MS, bytes_per_second: 1e6 };
        assert_eq!(pace.time(1000), 2 * MS);
        assert_eq!(Pace::INSTANT.time(u64::MAX), Duration::ZERO);
    }
}
