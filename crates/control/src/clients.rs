//! Which clients of transfer plans are there: each says so by a heartbeat of its own, every two seconds.
//!
//! A plan lasts for minutes, so that data goes on while the mediator is away. Whoever wants what a client has that died
//! would wait for as long. So a client that was heard of and is silent for some seconds counts as gone, and its plan ends
//! when somebody else wants what it is of: it is shut out as if it might go on.
//!
//! Of a client that was not heard of since the mediator began nobody knows whether it is there: its plan lasts for its
//! term, as that of a program which says nothing of itself.
//!
//! A mediator that stood still has heard of nobody meanwhile, and that is no client's fault: it says at each tick that it runs, and
//! after a gap between two ticks all clients have their time once more.
//!
//! Times are milliseconds of one clock of the caller's, which begins anywhere.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{text::shown, units::PlanId};

/// From one heartbeat to the next.
pub const BEAT_MS: u64 = 2000;
/// A client that is silent for longer is gone.
pub const SILENT_MS: u64 = 10_000;
/// A mediator whose last tick was so long ago stands still, or did.
const TICK_LATE_MS: u64 = 3000;
/// Of a client that is silent for so long nothing is kept: its plan is over.
const FORGOTTEN_MS: u64 = 2 * 3_600_000;
/// Characters of the name of a host, at most.
const HOST_LEN_MAX: usize = 255;

/// A process that has something open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The name of its host.
    pub host: String,
    /// Its id there.
    pub pid: u32,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on host {}", self.pid, shown(&self.host))
    }
}

#[derive(Debug)]
struct Heard {
    at_ms: u64,
    process: Process,
}

/// All clients that were heard of.
#[derive(Debug, Default)]
pub struct Clients {
    heard: BTreeMap<PlanId, Heard>,
    ticked_ms: u64,
}

impl Clients {
    /// The client of a plan says that it is there.
    pub fn handle_beat(&mut self, now_ms: u64, plan: PlanId, mut process: Process) {
        if let Some((end, _)) = process.host.char_indices().nth(HOST_LEN_MAX) {
            process.host.truncate(end);
        }
        self.heard.insert(plan, Heard { at_ms: now_ms, process });
    }

    /// The client of a plan asks for something else: it is there.
    pub fn handle_sign(&mut self, now_ms: u64, plan: PlanId) {
        if let Some(heard) = self.heard.get_mut(&plan) {
            heard.at_ms = now_ms;
        }
    }

    /// The mediator runs; to be said each second.
    pub fn handle_tick(&mut self, now_ms: u64) {
        if self.stands_still(now_ms) {
            self.heard.values_mut().for_each(|heard| heard.at_ms = now_ms);
        }
        self.ticked_ms = now_ms;
        self.heard.retain(|_, heard| now_ms.saturating_sub(heard.at_ms) < FORGOTTEN_MS);
    }

    const fn stands_still(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.ticked_ms) > TICK_LATE_MS
    }

    /// A plan is over.
    pub fn handle_ended(&mut self, plan: PlanId) {
        self.heard.remove(&plan);
    }

    /// Clients that are gone; none where the mediator itself stood still until now.
    #[must_use]
    pub fn gone(&self, now_ms: u64) -> Vec<PlanId> {
        if self.stands_still(now_ms) {
            return Vec::new();
        }
        let silent = |heard: &Heard| now_ms.saturating_sub(heard.at_ms) > SILENT_MS;
        self.heard.iter().filter(|(_, heard)| silent(heard)).map(|(plan, _)| *plan).collect()
    }

    /// The process that has a plan, and for how long it has been silent; none where it was not heard of.
    #[must_use]
    pub fn find(&self, now_ms: u64, plan: PlanId) -> Option<(&Process, u64)> {
        let heard = self.heard.get(&plan)?;
        Some((&heard.process, now_ms.saturating_sub(heard.at_ms)))
    }
}

/// Who has something open, and what ends that.
#[must_use]
pub fn held_by(plan: PlanId, process: Option<(&Process, u64)>) -> String {
    match process {
        Some((process, silent_ms)) => alloc::format!(
            "{process} has it, heard of {}.{} s ago: stop that process, or `netraid plan end {plan}` shuts it out",
            silent_ms / 1000,
            silent_ms / 100 % 10
        ),
        None => alloc::format!(
            "its process was not heard of since the mediator started: `netraid plan end {plan}` shuts it out"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: PlanId = PlanId([1; 16]);
    const OTHER: PlanId = PlanId([2; 16]);

    fn process() -> Process {
        Process { host: "h1".into(), pid: 42 }
    }

    /// The mediator runs from one moment to another one.
    fn run(clients: &mut Clients, from_ms: u64, to_ms: u64) {
        (from_ms..=to_ms).step_by(1000).for_each(|now| clients.handle_tick(now));
    }

    #[test]
    fn a_client_that_is_silent_for_ten_seconds_is_gone_and_one_that_was_never_heard_of_is_not() {
        let mut clients = Clients::default();
        run(&mut clients, 0, 1000);
        assert_eq!(clients.gone(1000), []);
        clients.handle_beat(1000, PLAN, process());
        clients.handle_beat(8000, OTHER, process());
        run(&mut clients, 2000, 11_000);
        assert_eq!(clients.gone(11_000), [], "four heartbeats may be lost");
        assert_eq!(clients.gone(11_001), [PLAN]);
        // It was only slow; and what it asks for else is a sign of it.
        clients.handle_beat(11_002, PLAN, process());
        assert_eq!(clients.gone(11_003), []);
        clients.handle_sign(17_000, OTHER);
        run(&mut clients, 12_000, 22_000);
        assert_eq!(clients.gone(22_000), [PLAN]);
        clients.handle_ended(PLAN);
        assert!(clients.find(22_000, PLAN).is_none());
        run(&mut clients, 23_000, 28_000);
        assert_eq!(clients.gone(28_000), [OTHER]);
        // Nothing is a sign of a client that was not heard of.
        clients.handle_sign(28_000, PLAN);
        assert!(clients.find(28_000, PLAN).is_none());
    }

    #[test]
    fn while_the_mediator_stood_still_no_client_was_silent() {
        let mut clients = Clients::default();
        run(&mut clients, 0, 5000);
        clients.handle_beat(5000, PLAN, process());
        // What waited is heard before the first tick, or after that.
        assert_eq!(clients.gone(60_000), []);
        clients.handle_tick(60_000);
        assert_eq!(clients.gone(60_001), []);
        run(&mut clients, 61_000, 70_000);
        assert_eq!(clients.gone(70_000), []);
        assert_eq!(clients.gone(70_001), [PLAN]);
    }

    #[test]
    fn what_is_kept_of_clients_is_bounded() {
        let mut clients = Clients::default();
        clients.handle_beat(0, PLAN, Process { host: "x".repeat(100_000), pid: 1 });
        let (process, _) = clients.find(0, PLAN).unwrap();
        assert_eq!(process.host.len(), HOST_LEN_MAX);
        run(&mut clients, 0, FORGOTTEN_MS);
        assert!(clients.find(FORGOTTEN_MS, PLAN).is_none(), "its plan ended long ago");
    }

    #[test]
    fn a_refusal_names_host_process_and_the_command_that_ends_it() {
        let mut clients = Clients::default();
        clients.handle_beat(1000, PLAN, process());
        let told = held_by(PLAN, clients.find(2500, PLAN));
        assert!(told.starts_with("process 42 on host h1 has it, heard of 1.5 s ago"), "{told}");
        let ends = alloc::format!("`netraid plan end {PLAN}`");
        assert!(told.contains(&ends), "{told}");
        assert!(held_by(OTHER, clients.find(0, OTHER)).contains("was not heard of"));
    }
}
