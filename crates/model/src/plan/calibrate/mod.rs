//! A site's description from what was measured of one member.
//!
//! Two hosts of one link stand for all: what the initiator and the target spend on requests of several
//! lengths, what a link moves, how long a small request takes alone, how fast parity and checksums are. What a host spends
//! on each batch of requests, however many are in it, is what makes a request cost more that comes alone. What the array
//! itself spends on a request is what a small array's requests cost beyond what a model of it without that says.
//!
//! Invariant: nothing of it knows the arrays that are to be planned. It does not measure, nor read files.

use core::fmt::Write as _;

mod arrays;

use super::{EXAMPLE_FACTS, PlanError};
use crate::{
    config::{Offsets, Operation},
    run::Model,
};
use arrays::Beyond;
pub use arrays::{ArrayFigures, SmallArray};
use netraid_sim::Seed;

/// Bytes of data of a TCP segment on an Ethernet, with time stamps, and of its headers.
const SEGMENT_BYTES: u32 = 1448;
const SEGMENT_HEADERS: u32 = 66;
/// Bytes that leave at once.
const PACKET_BYTES: u32 = 65_536;
/// Packets up to this are sent when all that has come is dealt with; longer ones fill a call by themselves.
const SENT_TOGETHER_BYTES: u32 = 16_384;
/// Instructions a second of a processor: costs are times, and this is only their unit.
const MIPS: f64 = 1000.0;
/// Rate of a disk that is memory: nothing waits for it.
pub const MEMORY_MB_S: f64 = 1e6;
/// Rate of a link that was not measured: memory's, which nothing waits for.
const LOOPBACK_MBIT_S: f64 = 1e6;

/// Processor time of a member's request, as a fixed part and one for each byte, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Time {
    /// Of each request.
    pub request_s: f64,
    /// Of each byte.
    pub byte_s: f64,
}

impl Time {
    fn of_small(self) -> f64 {
        self.request_s + f64::from(SMALL_BYTES) * self.byte_s
    }
}

/// The same, with what is spent on each batch of requests.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    time: Time,
    batch_s: f64,
}

impl Parts {
    /// What a small request by itself costs beyond this one's request and bytes.
    fn more_alone(&self, alone: Time) -> f64 {
        (alone.of_small() - self.time.of_small()).max(0.0)
    }
}

/// What reads, or writes, of a member cost on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Costs {
    /// The initiator's.
    pub client: Time,
    /// The target's.
    pub agent: Time,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurements {
    /// Of reads and of writes, many at once.
    pub costs: [Costs; 2],
    /// How many.
    pub costs_at: u32,
    /// Of reads and of writes, one at a time.
    pub alone: Option<[Costs; 2]>,
    /// Bytes of one source that go into parity in a second.
    pub xor_bytes_s: f64,
    /// Bytes of which checksums are computed in a second.
    pub checksum_bytes_s: f64,
    /// Bytes of data a second through a member's link, from and to the member, where the link was what limited.
    pub link_bytes_s: Option<[f64; 2]>,
    /// Seconds of a read of 4 KiB, one at a time.
    pub small_read_s: Option<f64>,
    /// A mirror, to tell what the array spends.
    pub array: Option<SmallArray>,
    /// An array with check data, to tell what that takes beside computing it.
    pub parity_array: Option<SmallArray>,
}

/// What is not measured: what the site is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Disks of the site, one at each agent.
    pub disks: usize,
    /// Bytes of each.
    pub disk_bytes: u64,
    /// Rates of each in MB a second, of reads and writes.
    pub disk_mb_s: [f64; 2],
    /// Milliseconds that an access of a disk takes before its bytes, if it does not begin where the last one ended.
    pub disk_seek_ms: f64,
    /// Bytes of the log on each.
    pub log_bytes: u64,
    /// Requests at once.
    pub outstanding: u32,
    /// Where they are.
    pub offsets: Offsets,
    /// Processors of the machine that all hosts are on; none for hosts of their own.
    pub one_machine: Option<usize>,
    /// Rate of the client's link, where it is known.
    pub client_rate_mbit_s: Option<f64>,
    /// Processors of an agent that is a host of its own.
    pub agent_processors: usize,
}

impl Shape {
    /// Where costs were measured: memory at the end of a path without a limit.
    fn of_path(&self) -> Self {
        Self {
            disk_mb_s: [MEMORY_MB_S; 2],
            disk_seek_ms: 0.0,
            client_rate_mbit_s: None,
            ..self.clone()
        }
    }
}

impl Measurements {
    /// The site's file.
    ///
    /// # Errors
    /// When a measurement makes no model: rates or times that are not above zero.
    pub fn site(&self, shape: &Shape) -> Result<String, PlanError> {
        let parts = self.parts(shape)?;
        let beyond = self.beyond(shape, &parts)?;
        let text = self.text(shape, &parts, &beyond);
        super::Site::from_table(crate::config::read_table(&text)?)?;
        Ok(text)
    }

    /// What the initiator and the target spend, by reads and writes: on a request, on a byte, and on a batch, so
    /// that a model of one member costs what was measured, alone and many at once.
    fn parts(&self, shape: &Shape) -> Result<[[Parts; 2]; 2], PlanError> {
        let hosts = |costs: Costs| [costs.client, costs.agent];
        let mut parts =
            self.costs.map(|costs| hosts(costs).map(|time| Parts { time, batch_s: 0.0 }));
        let Some(alone) = self.alone else { return Ok(parts) };
        for at in 0..2 {
            for (host, part) in parts[at].iter_mut().enumerate() {
                part.batch_s = part.more_alone(hosts(alone[at])[host]);
            }
        }
        for _ in 0..FIT_STEPS {
            for (at, operation) in [Operation::Read, Operation::Write].into_iter().enumerate() {
                let among_many = self.member_s(shape, &parts, operation, self.costs_at)?;
                let by_itself = self.member_s(shape, &parts, operation, 1)?;
                for (host, part) in parts[at].iter_mut().enumerate() {
                    let many = hosts(self.costs[at])[host];
                    // How many batches a request by itself is.
                    let more = by_itself[host] - part.time.of_small();
                    let batches =
                        if part.batch_s > 0.0 { (more / part.batch_s).max(1.0) } else { 1.0 };
                    let request_s = part.time.request_s + many.of_small() - among_many[host];
                    let least = many.request_s * REQUEST_PART_MIN;
                    part.time.request_s = request_s.clamp(least, many.request_s);
                    part.batch_s = part.more_alone(hosts(alone[at])[host]) / batches;
                }
            }
        }
        Ok(parts)
    }

    /// What the client and the agent of a model of one member spend on a small request, with so many at once: over the
    /// path alone, without a log or a limit of the link.
    fn member_s(
        &self,
        shape: &Shape,
        parts: &[[Parts; 2]; 2],
        operation: Operation,
        outstanding: u32,
    ) -> Result<[f64; 2], PlanError> {
        let path = Self { link_bytes_s: None, ..self.clone() };
        let shape = Shape { log_bytes: 0, outstanding, ..shape.of_path() };
        let table = crate::config::read_table(&path.text(&shape, parts, &Beyond::default()))?;
        let mut config = super::Site::from_table(table)?.parts;
        (config.level, config.disks, config.operation) = (0, 1, Some(operation));
        config.workload.offsets = Offsets::Random;
        config.workload.request_bytes = Some(SMALL_BYTES.into());
        config.workload.requests = FIT_REQUESTS;
        let measures = Model::new(config)?.run(Seed(1))?;
        Ok(["client_s_per_request", "agents_s_per_request"].map(|name| measures[name]))
    }

    fn text(&self, shape: &Shape, parts: &[[Parts; 2]; 2], beyond: &Beyond) -> String {
        let mut out = format!(
            "# Calibrated by measurements of one member and, if given, of small arrays.\n\
             about = \"calibrated\"\ndisks = {}\ntransfer_unit_bytes = 65536\nlevel = 5\n",
            shape.disks
        );
        if shape.log_bytes > 0 {
            // Writing to a string cannot fail.
            let _ = write!(out, "\n[log]\nbytes = {}\n", shape.log_bytes);
        }
        if let Some(processors) = shape.one_machine {
            let busy_part = beyond.busy_part;
            let _ =
                write!(out, "\n[machine]\nprocessors = {processors}\nbusy_part = {busy_part}\n");
        }
        let offsets = match shape.offsets {
            Offsets::Sequential => "sequential",
            Offsets::Random => "random",
        };
        let _ = write!(
            out,
            "\n[workload]\nreads_in_mix = 0.7\nrequest_bytes = 1048576\noutstanding = {}\n\
             offsets = \"{offsets}\"\ndata_set_bytes = {}\nrequests = 400\nwarm_up_requests = 40\n",
            shape.outstanding,
            shape.disk_bytes.clamp(1 << 26, 1 << 40),
        );
        out += &self.client(shape, parts, beyond);
        let _ = write!(
            out,
            "\n[agent]\ndisks = 1\nprocessors = {}\nmips = {MIPS}\nreply = \"each_access\"\n",
            shape.agent_processors
        );
        for (operation, [_, agent]) in ["read", "write"].into_iter().zip(parts) {
            out += &member("agent", operation, *agent);
        }
        for (operation, Time { request_s, byte_s }) in
            ["read", "write"].into_iter().zip(beyond.agents)
        {
            let _ = write!(
                out,
                "\n[agent.costs.beside_others_{operation}]\nbeside_others = true\noperation = \"{operation}\"\n\
                 instructions_per_packet = {}\ninstructions_per_byte = {}\n",
                instructions(request_s / packets_of(operation)),
                instructions(byte_s)
            );
        }
        out += &self.network(shape);
        let _ = write!(
            out,
            "\n[disk]\nseek = {{ distribution = \"constant\", mean_ms = {} }}\nsequential_without_seek = true\n\
             rotation = {{ distribution = \"constant\", mean_ms = 0 }}\noverhead_us = 0\n\
             read_mb_s = {}\nwrite_mb_s = {}\naccess_bytes_max = 1048576\n",
            shape.disk_seek_ms, shape.disk_mb_s[0], shape.disk_mb_s[1]
        );
        let facts = EXAMPLE_FACTS.replace(
            "disk_capacity_bytes = 4000000000000",
            &format!("disk_capacity_bytes = {}", shape.disk_bytes),
        );
        out + "\n" + facts.trim_start()
    }

    fn client(&self, shape: &Shape, parts: &[[Parts; 2]; 2], beyond: &Beyond) -> String {
        let mut out =
            format!("\n# One thread drives an array.\n[client]\nprocessors = 1\nmips = {MIPS}\n");
        for (operation, [client, _]) in ["read", "write"].into_iter().zip(parts) {
            out += &member("client", operation, *client);
        }
        let _ = write!(
            out,
            "\n[client.costs.array]\ninstructions_per_request = {}\n",
            instructions(beyond.array_request_s)
        );
        for (operation, time) in ["read", "write"].into_iter().zip(beyond.logged) {
            let _ = write!(
                out,
                "\n[client.costs.logged_{operation}]\nlogged = true\noperation = \"{operation}\"\n\
                 instructions_per_request = {}\ninstructions_per_byte = {}\n",
                instructions(time.request_s),
                instructions(time.byte_s)
            );
        }
        let _ = write!(
            out,
            "\n[client.costs.parity]\ninstructions_per_parity_byte = {}\ninstructions_per_check_piece = {}\n",
            instructions(self.xor_bytes_s.recip()),
            instructions(beyond.check_piece_s)
        );
        // Bytes of every member's request are looked at once.
        if shape.log_bytes > 0 {
            let _ = write!(
                out,
                "\n[client.costs.checksums]\nlogged = true\ninstructions_per_byte = {}\n",
                instructions(self.checksum_bytes_s.recip())
            );
        }
        out
    }

    fn network(&self, shape: &Shape) -> String {
        let headers = f64::from(SEGMENT_HEADERS) / f64::from(SEGMENT_BYTES);
        let rate = self.link_bytes_s.map_or(LOOPBACK_MBIT_S, |[read, write]| {
            f64::midpoint(read, write) * 8.0 / 1e6 * (1.0 + headers)
        });
        let client = shape.client_rate_mbit_s.unwrap_or(LOOPBACK_MBIT_S);
        // Both ways, without what processors and wires are known to take.
        let read = self.alone.map_or(self.costs[0], |[read, _]| read);
        let bytes = f64::from(SMALL_BYTES);
        let known = read.client.of_small()
            + read.agent.of_small()
            + bytes * 8.0 * (1.0 + headers) / 1e6 * (rate.recip() + client.recip());
        let latency = self.small_read_s.map_or(0.0, |seconds| (seconds - known).max(0.0) / 2.0);
        format!(
            "\n[network]\ntopology = \"switched\"\nrate_mbit_s = {rate}\nclient_rate_mbit_s = {client}\n\
             latency_us = {}\noverhead_us_per_packet = 0\npacket_bytes = {PACKET_BYTES}\n\
             segment_bytes = {SEGMENT_BYTES}\nheader_bytes_per_packet = {SEGMENT_HEADERS}\n\
             control_bytes = 48\nmulticast = false\nsent_together_bytes = {SENT_TOGETHER_BYTES}\n",
            latency * 1e6
        )
    }
}

/// Bytes of a small request, and of a large one.
const SMALL_BYTES: u32 = 4096;
const LARGE_BYTES: u32 = 1 << 20;
/// Requests of a model of one member that is fitted, and how often its costs are corrected.
const FIT_REQUESTS: u32 = 4000;
const FIT_STEPS: u32 = 12;
/// Part of what a request costs among many that is the request's at least, and not its batch's.
const REQUEST_PART_MIN: f64 = 0.05;

/// Costs of a member's requests: of a read, a command and an answer; of a write, a command, data and an answer.
fn member(host: &str, operation: &str, Parts { time, batch_s }: Parts) -> String {
    let packet_s = time.request_s / packets_of(operation);
    // What a byte costs has that of its packet in it.
    let byte_s = (time.byte_s - packet_s / f64::from(PACKET_BYTES)).max(0.0);
    format!(
        "\n[{host}.costs.iscsi_{operation}]\noperation = \"{operation}\"\ninstructions_per_packet = {}\n\
         instructions_per_batch = {}\ninstructions_per_byte = {}\n",
        instructions(packet_s),
        instructions(batch_s),
        instructions(byte_s)
    )
}

/// Packets of a request that a host sends and gets.
fn packets_of(operation: &str) -> f64 {
    if operation == "read" { 2.0 } else { 3.0 }
}

fn instructions(seconds: f64) -> f64 {
    seconds * MIPS * 1e6
}

#[cfg(test)]
mod tests {
    use super::{
        arrays::{LOG_BYTES_MAX, SMALL_REQUESTS},
        *,
    };
    use crate::config::Config;

    const MB: f64 = 1e6;

    fn measurements() -> Measurements {
        let time = Time { request_s: 5e-6, byte_s: 1e-10 };
        Measurements {
            costs: [Costs { client: time, agent: time }; 2],
            costs_at: 16,
            alone: None,
            xor_bytes_s: 2e10,
            checksum_bytes_s: 2e10,
            link_bytes_s: Some([23.9 * MB, 23.9 * MB]),
            small_read_s: Some(1e-3),
            array: None,
            parity_array: None,
        }
    }

    fn shape() -> Shape {
        Shape {
            disks: 4,
            disk_bytes: 1 << 28,
            disk_mb_s: [1e6, 1e6],
            disk_seek_ms: 0.0,
            log_bytes: 16 << 20,
            outstanding: 16,
            offsets: Offsets::Sequential,
            one_machine: None,
            client_rate_mbit_s: None,
            agent_processors: 1,
        }
    }

    fn measure(text: &str, change: impl Fn(&mut Config)) -> crate::Measures {
        let mut config =
            super::super::Site::from_table(crate::config::read_table(text).unwrap()).unwrap().parts;
        change(&mut config);
        Model::new(config).unwrap().run(Seed(1)).unwrap()
    }

    #[test]
    fn one_member_gives_again_what_was_measured_of_it() {
        let text = measurements().site(&shape()).unwrap();
        for operation in [Operation::Read, Operation::Write] {
            let large = measure(&text, |config| {
                (config.level, config.disks, config.operation) = (0, 1, Some(operation));
            });
            assert!(
                (large["rate_mb_s"] / 23.9 - 1.0).abs() < 0.01,
                "{operation:?} {}",
                large["rate_mb_s"]
            );
        }
        let small = measure(&text, |config| {
            (config.level, config.disks) = (0, 1);
            config.workload.outstanding = 1;
            config.workload.request_bytes = Some(4096);
        });
        assert!((small["latency_ms"] - 1.0).abs() < 0.02, "{}", small["latency_ms"]);
        assert!((small["client_s_per_request"] / 5.41e-6 - 1.0).abs() < 0.05, "{small:?}");
    }

    #[test]
    fn one_member_costs_what_it_did_alone_and_among_many() {
        let many = Costs {
            client: Time { request_s: 3e-6, byte_s: 2e-10 },
            agent: Time { request_s: 2e-6, byte_s: 4e-10 },
        };
        let alone = Costs {
            client: Time { request_s: 20e-6, byte_s: 2e-10 },
            agent: Time { request_s: 15e-6, byte_s: 4e-10 },
        };
        let (link_bytes_s, small_read_s) = (None, Some(80e-6));
        let costs = [many; 2];
        let measured = Measurements {
            costs,
            alone: Some([alone; 2]),
            link_bytes_s,
            small_read_s,
            ..measurements()
        };
        let text = measured.site(&Shape { log_bytes: 0, ..shape() }).unwrap();
        for operation in [Operation::Read, Operation::Write] {
            for (depth, costs) in [(16, many), (1, alone)] {
                let measures = measure(&text, |config| {
                    (config.level, config.disks, config.operation) = (0, 1, Some(operation));
                    config.workload.offsets = Offsets::Random;
                    config.workload.request_bytes = Some(4096);
                    config.workload.outstanding = depth;
                    config.workload.requests = 4000;
                });
                let off = |name: &str, time: Time| measures[name] / time.of_small() - 1.0;
                let client = off("client_s_per_request", costs.client);
                let agent = off("agents_s_per_request", costs.agent);
                let both = (operation, depth, client, agent);
                assert!(client.abs() < 0.1 && agent.abs() < 0.1, "{both:?}");
            }
        }
    }

    #[test]
    fn what_a_small_array_costs_beyond_its_members_requests_is_the_arrays() {
        let mut measured = Measurements { link_bytes_s: None, ..measurements() };
        let site = measured.site(&shape()).unwrap();
        let cost = |text: &str, operation| {
            measure(text, |config| {
                (config.level, config.disks, config.operation) = (10, 2, Some(operation));
                config.workload.offsets = Offsets::Random;
                config.workload.request_bytes = Some(4096);
                config.workload.requests = SMALL_REQUESTS;
            })["client_s_per_request"]
        };
        let of_parts = [Operation::Read, Operation::Write].map(|operation| cost(&site, operation));
        let (small, large) = (ArrayFigures::default(), None);
        let client_s = of_parts.map(|part| part + 3e-6);
        let small = ArrayFigures { client_s, ..small };
        measured.array = Some(SmallArray { small, large, ..small_array(10, 2) });
        let site = measured.site(&shape()).unwrap();
        for (operation, part) in [Operation::Read, Operation::Write].into_iter().zip(of_parts) {
            let more = cost(&site, operation) - part;
            assert!((more / 3e-6 - 1.0).abs() < 0.1, "{operation:?} {more}");
        }
        // A byte more dear: large requests have it whole, and small ones have their part of it.
        let cost_of_large = |text: &str, operation| {
            measure(text, |config| {
                (config.level, config.disks, config.operation) = (10, 2, Some(operation));
            })["client_s_per_request"]
        };
        let operations = [Operation::Read, Operation::Write];
        let of_large = operations.map(|operation| cost_of_large(&site, operation));
        let client_large_s = of_large.map(|part| part + 1e-4);
        let large = Some(ArrayFigures { client_s: client_large_s, ..ArrayFigures::default() });
        measured.array = Some(SmallArray { small, large, ..small_array(10, 2) });
        let site = measured.site(&shape()).unwrap();
        for ((operation, part), small) in operations.into_iter().zip(of_large).zip(client_s) {
            let more = cost_of_large(&site, operation) - part;
            assert!((more / 1e-4 - 1.0).abs() < 0.1, "{operation:?} {more}");
            let small = cost(&site, operation) / small;
            assert!((small - 1.0).abs() < 0.1, "{operation:?} {small}");
        }
    }

    fn small_array(level: u8, members: usize) -> SmallArray {
        let (outstanding, span_bytes) = (16, 1 << 28);
        let small = ArrayFigures::default();
        SmallArray { level, members, outstanding, span_bytes, small, large: None }
    }

    /// An array by a model of `text`, as if it had been measured: what changes of its figures is up to the caller.
    fn modelled(text: &str, level: u8, members: usize) -> SmallArray {
        let of = |request_bytes, offsets, requests| {
            let mut out = ArrayFigures::default();
            for (at, operation) in [Operation::Read, Operation::Write].into_iter().enumerate() {
                let measures = measure(text, |config| {
                    (config.level, config.disks) = (level, members);
                    config.operation = Some(operation);
                    config.workload.offsets = offsets;
                    config.workload.request_bytes = Some(request_bytes);
                    config.workload.requests = requests;
                });
                out.client_s[at] = measures["client_s_per_request"];
                out.agents_s[at] = measures["agents_s_per_request"];
                out.rate_mb_s[at] = measures["rate_mb_s"];
            }
            out
        };
        let small = of(4096, Offsets::Random, SMALL_REQUESTS);
        let large = Some(of(1 << 20, Offsets::Sequential, 400));
        SmallArray { small, large, ..small_array(level, members) }
    }

    #[test]
    fn what_agents_spend_more_beside_others_and_check_data_is_found_again() {
        let mut measured = Measurements { link_bytes_s: None, ..measurements() };
        let shape = || Shape { one_machine: Some(4), log_bytes: LOG_BYTES_MAX, ..shape() };
        let without = measured.site(&shape()).unwrap();
        let mut mirror = modelled(&without, 10, 2);
        let mut parity = modelled(&without, 5, 5);
        mirror.small.agents_s = mirror.small.agents_s.map(|s| s + 8e-6);
        parity.small.client_s[1] += 15e-6;
        let large = parity.large.as_mut().unwrap();
        large.client_s[1] += 3e-4;
        large.agents_s = large.agents_s.map(|s| s + 2e-4);
        (measured.array, measured.parity_array) = (Some(mirror), Some(parity));
        let site = measured.site(&shape()).unwrap();
        let (mirror_now, parity_now) = (modelled(&site, 10, 2), modelled(&site, 5, 5));
        let near = |now: f64, wanted: f64| {
            assert!((now / wanted - 1.0).abs() < 0.05, "{now} instead of {wanted}");
        };
        for at in 0..2 {
            near(parity_now.large.unwrap().agents_s[at], parity.large.unwrap().agents_s[at]);
            near(mirror_now.small.agents_s[at], mirror.small.agents_s[at]);
        }
        near(parity_now.large.unwrap().client_s[1], parity.large.unwrap().client_s[1]);
        near(parity_now.small.client_s[1], parity.small.client_s[1]);
    }

    #[test]
    fn a_cost_that_another_one_explains_does_not_stay() {
        let mut measured = Measurements { link_bytes_s: None, ..measurements() };
        let mut parity = modelled(&measured.site(&shape()).unwrap(), 5, 5);
        // Pieces of check data are so dear that large writes would cost more than they did, without any cost of bytes.
        parity.small.client_s[1] += 30e-6;
        parity.large.as_mut().unwrap().client_s[1] += 5e-6;
        measured.parity_array = Some(parity);
        let table = crate::config::read_table(&measured.site(&shape()).unwrap()).unwrap();
        let cost = |name: &str, what: &str| table["client"]["costs"][name][what].clone();
        let number = |value: toml::Value| {
            value.as_float().or(value.as_integer().map(|whole| whole as f64)).unwrap()
        };
        assert!(number(cost("parity", "instructions_per_check_piece")) > 0.0);
        assert!(number(cost("logged_write", "instructions_per_byte")) < 1e-12);
    }

    #[test]
    fn a_machine_on_which_a_mirror_is_slower_than_its_costs_is_not_always_busy() {
        let mut measured = Measurements { link_bytes_s: None, ..measurements() };
        let shape = Shape { one_machine: Some(2), ..shape() };
        let mut mirror = modelled(&measured.site(&shape).unwrap(), 10, 2);
        let large = mirror.large.as_mut().unwrap();
        large.rate_mb_s = large.rate_mb_s.map(|rate| rate * 0.8);
        mirror.small.rate_mb_s = mirror.small.rate_mb_s.map(|rate| rate * 0.8);
        measured.array = Some(mirror);
        let now = modelled(&measured.site(&shape).unwrap(), 10, 2).large.unwrap();
        let ratio = now.rate_mb_s[0] / mirror.large.unwrap().rate_mb_s[0];
        assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
    }
}
