//! What hosts spend on requests, packets, bytes and check data.

use core::time::Duration;
use std::collections::BTreeMap;

use netraid_sim::{Time, station::Station};

use crate::config::{Cost, Machine, Operation};

/// What a batch costs a host that is awake, of what it costs one that sleeps until it comes: calls to a socket of its own, but no
/// waking. By comparing arrays of three and four members behind links of 1,000 Mbit/s (docs/plan.md).
const BATCH_AWAKE: f64 = 0.25;

/// Seconds that a host's software spends in requests of one kind, and what each part has of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Spend {
    pub(super) all: Seconds,
    pub(super) parts: Vec<(String, Seconds)>,
}

/// Seconds of one processor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seconds {
    request: f64,
    packet: f64,
    batch: f64,
    byte: f64,
    parity_byte: f64,
    check_piece: f64,
}

/// What an array has, and where it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Setting {
    pub(super) has_log: bool,
    /// Several agents are on one machine.
    pub(super) has_others: bool,
}

impl Spend {
    /// What `costs` come to at `mips`, in reads or in writes.
    pub(super) fn of(
        costs: &BTreeMap<String, Cost>,
        mips: f64,
        is_read: bool,
        Setting { has_log, has_others }: Setting,
    ) -> Self {
        let seconds = |instructions: f64| instructions / (mips * 1e6);
        let applies = |cost: &Cost| {
            let is_of_kind = match cost.operation {
                None | Some(Operation::Mix) => true,
                Some(Operation::Read) => is_read,
                Some(Operation::Write) => !is_read,
            };
            is_of_kind && (has_log || !cost.logged) && (has_others || !cost.beside_others)
        };
        let mut spend = Self::default();
        for (name, cost) in costs {
            let part = if applies(cost) {
                Seconds {
                    request: seconds(cost.instructions_per_request),
                    packet: seconds(cost.instructions_per_packet),
                    batch: seconds(cost.instructions_per_batch),
                    byte: seconds(cost.instructions_per_byte),
                    parity_byte: seconds(cost.instructions_per_parity_byte),
                    check_piece: seconds(cost.instructions_per_check_piece),
                }
            } else {
                Seconds::default()
            };
            spend.all.request += part.request;
            spend.all.packet += part.packet;
            spend.all.batch += part.batch;
            spend.all.byte += part.byte;
            spend.all.parity_byte += part.parity_byte;
            spend.all.check_piece += part.check_piece;
            spend.parts.push((name.clone(), part));
        }
        spend
    }
}

/// What a host has had to do.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) requests: f64,
    pub(super) packets: f64,
    pub(super) batches: f64,
    pub(super) bytes: f64,
    pub(super) parity_bytes: f64,
    pub(super) check_pieces: f64,
}

impl Counts {
    /// Seconds that this takes.
    pub(super) fn seconds(&self, each: &Seconds) -> f64 {
        self.requests * each.request
            + self.packets * each.packet
            + self.batches * each.batch
            + self.bytes * each.byte
            + self.parity_bytes * each.parity_byte
            + self.check_pieces * each.check_piece
    }

    /// Adds what another has had to do.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.packets += other.packets;
        self.batches += other.batches;
        self.bytes += other.bytes;
        self.parity_bytes += other.parity_bytes;
        self.check_pieces += other.check_pieces;
    }

    /// What has come since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            packets: self.packets - earlier.packets,
            batches: self.batches - earlier.batches,
            bytes: self.bytes - earlier.bytes,
            parity_bytes: self.parity_bytes - earlier.parity_bytes,
            check_pieces: self.check_pieces - earlier.check_pieces,
        }
    }
}

/// A host's processors.
#[derive(Debug, Clone)]
pub(super) struct HostState {
    pub(super) processors: Station,
    /// By how much longer a processor of the machine takes, for all that goes by unused.
    stretch: f64,
    /// In reads, and in writes.
    pub(super) counts: [Counts; 2],
    /// By peer, until when it is busy with what that one sent or gets.
    busy_with: Vec<Time>,
    /// When all that it has to do now will be done.
    pub(super) busy_until: Time,
}

impl HostState {
    pub(super) fn new(processors: usize, peers: usize, machine: Option<Machine>) -> Self {
        Self {
            processors: Station::new(processors),
            stretch: machine.map_or(1.0, |machine| machine.busy_part.recip()),
            counts: [Counts::default(); 2],
            busy_with: vec![Time::START; peers],
            busy_until: Time::START,
        }
    }

    /// Works on something, for a peer or by itself; says when that is done. What comes from a peer of which nothing waits
    /// is a batch, which costs less if the host is at work for another one. As a process of a `machine` it
    /// waits for its own turn and for one of the machine's processors.
    pub(super) fn work(
        &mut self,
        machine: Option<&mut Station>,
        now: Time,
        spend: &[Spend; 2],
        is_read: bool,
        peer: Option<usize>,
        mut what: Counts,
    ) -> Time {
        if let Some(peer) = peer
            && self.busy_with[peer] < now
        {
            what.batches = if self.busy_until < now { 1.0 } else { BATCH_AWAKE };
        }
        let kind = usize::from(!is_read);
        self.counts[kind].add(&what);
        let seconds = what.seconds(&spend[kind].all);
        let work = Duration::from_secs_f64(seconds);
        let mut done = self.processors.serve(now, work);
        if let Some(machine) = machine {
            let work = Duration::from_secs_f64(seconds * self.stretch);
            done = done.max(machine.serve(now, work));
        }
        if let Some(peer) = peer {
            self.busy_with[peer] = self.busy_with[peer].max(done);
        }
        self.busy_until = self.busy_until.max(done);
        done
    }
}

/// One packet.
pub(super) fn packet(len: u32) -> Counts {
    Counts { packets: 1.0, bytes: f64::from(len), ..Counts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_costs_less_if_the_host_need_not_be_woken_for_it() {
        let mut host = HostState::new(1, 2, None);
        let cost = Cost { instructions_per_batch: 1000.0, ..Cost::default() };
        let costs = BTreeMap::from([("socket".to_owned(), cost)]);
        let spend =
            [true, false].map(|is_read| Spend::of(&costs, 1.0, is_read, Setting::default()));
        let mut batches = |now, peer| {
            let before = host.counts[0].batches;
            let done = host.work(None, now, &spend, true, Some(peer), packet(0));
            (host.counts[0].batches - before, done)
        };
        let now = Time::START.after(Duration::from_secs(1));
        let (first, _) = batches(now, 0);
        assert!((first - 1.0).abs() < 1e-9, "it slept: {first}");
        let (other, _) = batches(now, 1);
        assert!((other - BATCH_AWAKE).abs() < 1e-9, "it was at work for another one: {other}");
        let (more, done) = batches(now, 0);
        assert!(more.abs() < 1e-9, "it was at work for this one: {more}");
        let (later, _) = batches(done.after(Duration::from_secs(1)), 1);
        assert!((later - 1.0).abs() < 1e-9, "it slept again: {later}");
    }
}
