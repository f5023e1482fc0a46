//! What a run measures, between the end of its warm-up and its last request.

use core::time::Duration;
use std::collections::BTreeMap;

use netraid_sim::{Time, station::Station};

use super::{RunError, World, host::Counts, wires::Wires};

/// Results of a run by name. Of each station the part of the time that it was busy, 0 to 1;
/// `rate_mb_s` in 10^6 bytes of users' data a second; latencies in milliseconds; `client_s_per_request` in seconds of
/// the client's processor for each user's request, with what else it did meanwhile, and `agents_s_per_request` of all
/// agents' together. With a rebuild,
/// `rebuild_mb_s` in 10^6 bytes written to the disk a second, and `rebuild_seconds` for all of it.
pub type Measures = BTreeMap<String, f64>;

/// What has been counted.
#[derive(Debug, Default)]
pub(super) struct Meter {
    ended: u32,
    over: bool,
    bytes: u64,
    latencies: Vec<Duration>,
    begin: Snapshot,
    end: Snapshot,
}

/// What everything had done by some moment.
#[derive(Debug, Default)]
struct Snapshot {
    at: Time,
    /// Seconds of work and number of servers, by name of the result.
    worked: BTreeMap<String, f64>,
    client: [Counts; 2],
    /// Of all agents.
    agents: [Counts; 2],
}

impl Meter {
    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    /// A request has ended.
    pub(super) fn end(&mut self, latency: Duration, bytes: u64) {
        self.ended += 1;
        self.bytes += bytes;
        self.latencies.push(latency);
    }
}

impl World<'_> {
    /// Begins or ends to measure, when that many requests have ended.
    pub(super) fn mark_if_due(&mut self) {
        let config = &self.model.config;
        let warm = config.warm_up();
        if self.meter.ended == warm {
            self.meter.begin = self.snapshot();
            self.meter.bytes = 0;
            self.meter.latencies.clear();
            self.begin_rebuild();
        } else if self.rebuild.is_none() && self.meter.ended == warm + config.workload.requests {
            self.mark_end();
        }
    }

    /// Ends to measure.
    pub(super) fn mark_end(&mut self) {
        self.meter.end = self.snapshot();
        self.meter.over = true;
    }

    /// Gives up when a rebuild would take longer than can be waited for.
    pub(super) fn check_rebuild(&self) -> Result<(), RunError> {
        let Some(state) = &self.rebuild else { return Ok(()) };
        let requests = self.meter.ended.saturating_sub(self.model.config.warm_up());
        if f64::from(requests) < self.model.requests_beside_rebuild_max {
            return Ok(());
        }
        Err(RunError::RebuildStarved { requests, part: state.part() * 100.0 })
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.agenda.now();
        let each = |stations: &[&Station]| {
            let worked =
                |station: &&Station| station.worked(now).as_secs_f64() / station.servers() as f64;
            stations.iter().map(worked).sum::<f64>() / stations.len() as f64
        };
        let mut worked = BTreeMap::new();
        let mut put = |name: &str, stations: &[&Station]| {
            worked.insert(name.to_owned(), each(stations));
        };
        let client = self.machine.as_ref().unwrap_or(&self.client.processors);
        put("client_cpu", &[client]);
        // The first disks are those that are away, and with them their agents.
        let away = self.model.config.away;
        let agents = self.agents.iter().skip(away / self.model.config.agent.disks);
        let of_agents: Vec<&Station> = match &self.machine {
            Some(machine) => vec![machine],
            None => agents.map(|agent| &agent.processors).collect(),
        };
        put("agent_cpu", &of_agents);
        put("disk", &self.disks.iter().skip(away).map(|disk| &disk.arm).collect::<Vec<_>>());
        match &self.wires {
            Wires::Shared(wire) => put("network", &[wire]),
            Wires::Switched(links) => {
                put("client_sends", &[&links.client_sends]);
                put("client_receives", &[&links.client_receives]);
            }
        }
        if self.model.config.parity_engine.is_some() {
            put("parity_engine", &[&self.engine]);
        }
        for (layer, shared) in self.layers.iter().zip(&self.model.config.stations) {
            // Those behind which there are disks: the array may have fewer than the agent could.
            let used = self.model.config.disks.div_ceil(shared.disks).min(layer.len());
            put(&shared.name, &layer[..used].iter().collect::<Vec<_>>());
        }
        let mut agents = [Counts::default(); 2];
        for (kind, sum) in agents.iter_mut().enumerate() {
            self.agents.iter().for_each(|agent| sum.add(&agent.counts[kind]));
        }
        Snapshot { at: now, worked, client: self.client.counts, agents }
    }

    pub(super) fn measures(mut self) -> Measures {
        let Meter { begin, end, bytes, latencies, .. } = &mut self.meter;
        let seconds = end.at.since(begin.at).as_secs_f64().max(1e-9);
        let mut out = Measures::new();
        for (name, worked) in &end.worked {
            let before = begin.worked.get(name).copied().unwrap_or_default();
            out.insert(name.clone(), (worked - before) / seconds);
        }
        if let (Some(sends), Some(receives)) =
            (out.get("client_sends").copied(), out.get("client_receives").copied())
        {
            out.insert("network".to_owned(), f64::max(sends, receives));
        }
        out.insert("rate_mb_s".to_owned(), *bytes as f64 / 1e6 / seconds);
        out.insert("requests_per_second".to_owned(), latencies.len() as f64 / seconds);
        let chunk = self.model.config.transfer_unit_bytes;
        if let (Some(state), Some(rebuild)) = (&self.rebuild, &self.model.config.rebuild) {
            let bytes_per_second = state.bytes(chunk) / seconds;
            out.insert("rebuild_mb_s".to_owned(), bytes_per_second / 1e6);
            let all = rebuild.used_bytes as f64 / bytes_per_second;
            out.insert("rebuild_seconds".to_owned(), all);
        }
        latencies.sort_unstable();
        let count = latencies.len();
        let total: Duration = latencies.iter().sum();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        out.insert("latency_ms".to_owned(), ms(total) / count.max(1) as f64);
        let p99 = latencies.get((count * 99).div_ceil(100).saturating_sub(1));
        out.insert("latency_p99_ms".to_owned(), ms(p99.copied().unwrap_or_default()));
        let capacity = seconds * self.model.config.client.processors as f64;
        let (mut spent, mut agents_spent) = (0.0, 0.0);
        for kind in 0..2 {
            let counts = end.agents[kind].since(&begin.agents[kind]);
            agents_spent += counts.seconds(&self.model.agent[kind].all);
            let counts = end.client[kind].since(&begin.client[kind]);
            for (name, each) in &self.model.client[kind].parts {
                let busy = counts.seconds(each) / capacity;
                spent += counts.seconds(each);
                *out.entry(format!("client_cpu.{name}")).or_default() += busy;
            }
        }
        out.insert("client_s_per_request".to_owned(), spent / count.max(1) as f64);
        out.insert("agents_s_per_request".to_owned(), agents_spent / count.max(1) as f64);
        out
    }
}
