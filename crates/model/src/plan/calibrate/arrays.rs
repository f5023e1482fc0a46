//! What small arrays cost beyond what a model of them says.
//!
//! A mirror of two tells what the array spends on requests and bytes, what requests cost agents that are not alone on
//! their machine, and how much of a machine's time is used at all. An array with check data tells what that takes beside
//! computing it: each stripe, and each row of blocks that the log brings home, is work of its own.
//!
//! Invariant: the model of each of these arrays, calibrated, costs what was measured, where that is more than without.

use super::{LARGE_BYTES, Measurements, Parts, SMALL_BYTES, Shape, Time};
use crate::{
    config::{Offsets, Operation},
    plan::{PlanError, Site},
    run::Model,
};
use netraid_sim::Seed;

/// Requests of 4 KiB of the model of a small array, several times what its log holds: what is brought home later counts as
/// well, as it is in what was measured.
pub(super) const SMALL_REQUESTS: u32 = 10_000;
pub(super) const LOG_BYTES_MAX: u64 = 8 << 20;
/// Large ones.
const LARGE_REQUESTS: u32 = 400;
/// How often the part of a machine's time that is used is corrected, and its least.
const BUSY_STEPS: u32 = 4;
const BUSY_MIN: f64 = 0.5;
/// How often all costs are fitted, as each is a little of others' figures; how often one of them is corrected, and how many
/// times it may be what is missing: a request has at least so small a part of it.
const PASSES: u32 = 2;
const FIT_STEPS: u32 = 2;
const PARTS_MAX: f64 = 64.0;

/// What reads and writes of a small array of one length cost, and their rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ArrayFigures {
    /// Processor seconds of the client for a read, and for a write.
    pub client_s: [f64; 2],
    /// The same of all agents together; zero where it was not measured.
    pub agents_s: [f64; 2],
    /// MB a second.
    pub rate_mb_s: [f64; 2],
}

/// A small array that was measured over the path without a limit of its link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmallArray {
    /// Its level.
    pub level: u8,
    /// Its members.
    pub members: usize,
    /// Requests at once.
    pub outstanding: u32,
    /// Bytes of the volume that they went to.
    pub span_bytes: u64,
    /// Of 4 KiB at random.
    pub small: ArrayFigures,
    /// Of 1 MiB in order: what the bytes cost.
    pub large: Option<ArrayFigures>,
}

impl SmallArray {
    const fn figures(&self, size: Size) -> Option<ArrayFigures> {
        match size {
            Size::Small => Some(self.small),
            Size::Large => self.large,
        }
    }
}

/// What is spent beyond the requests of one member.
#[derive(Debug, Clone)]
pub(super) struct Beyond {
    /// By the client of any array, on each of a user's requests.
    pub(super) array_request_s: f64,
    /// By the client of an array with a log, on a user's reads and writes, and on each byte that is sent or received.
    pub(super) logged: [Time; 2],
    /// By that client, on each piece of check data, beside computing it.
    pub(super) check_piece_s: f64,
    /// By agents beside others, on members' reads and writes.
    pub(super) agents: [Time; 2],
    /// Part of the machine's time that is used.
    pub(super) busy_part: f64,
}

impl Default for Beyond {
    fn default() -> Self {
        Self {
            array_request_s: 0.0,
            logged: [Time::default(); 2],
            check_piece_s: 0.0,
            agents: [Time::default(); 2],
            busy_part: 1.0,
        }
    }
}

/// What is modelled of a small array.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Size {
    Small,
    Large,
}

impl Measurements {
    /// What the arrays that were measured cost beyond what models of them, with these costs of members' requests, say.
    pub(super) fn beyond(
        &self,
        shape: &Shape,
        parts: &[[Parts; 2]; 2],
    ) -> Result<Beyond, PlanError> {
        let mut beyond = Beyond::default();
        // Measured over the path alone.
        let path = Self { link_bytes_s: None, ..self.clone() };
        let shape = Shape { log_bytes: shape.log_bytes.min(LOG_BYTES_MAX), ..shape.of_path() };
        let models = Models { path: &path, shape: &shape, parts };
        let arrays = [&self.parity_array, &self.array].map(Option::as_ref);
        for _ in 0..PASSES {
            // Of bytes the one with more members tells more.
            if let Some(array) = arrays.into_iter().flatten().find(|array| array.large.is_some()) {
                models.fit_bytes(array, &mut beyond)?;
            }
            if let Some(mirror) = &self.array {
                models.fit_requests(mirror, &mut beyond)?;
            }
            if let Some(array) = &self.parity_array {
                let cost: Of = |beyond| &mut beyond.check_piece_s;
                models.fit(array, Size::Small, WRITE, Host::Client, cost, &mut beyond)?;
            }
        }
        if shape.one_machine.is_some() {
            models.fit_busy_part(&arrays, &mut beyond)?;
        }
        Ok(beyond)
    }
}

const READ: usize = 0;
const WRITE: usize = 1;

/// Whose seconds are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Host {
    Client,
    Agents,
}

/// One of the costs.
type Of = fn(&mut Beyond) -> &mut f64;

/// Models of small arrays.
struct Models<'a> {
    path: &'a Measurements,
    shape: &'a Shape,
    parts: &'a [[Parts; 2]; 2],
}

impl Models<'_> {
    /// What bytes cost the client and the agents.
    fn fit_bytes(&self, array: &SmallArray, beyond: &mut Beyond) -> Result<(), PlanError> {
        use Host::{Agents, Client};
        let size = Size::Large;
        self.fit(array, size, READ, Client, |b| &mut b.logged[READ].byte_s, beyond)?;
        self.fit(array, size, READ, Agents, |b| &mut b.agents[READ].byte_s, beyond)?;
        self.fit(array, size, WRITE, Client, |b| &mut b.logged[WRITE].byte_s, beyond)?;
        self.fit(array, size, WRITE, Agents, |b| &mut b.agents[WRITE].byte_s, beyond)
    }

    /// What requests cost the client and the agents of a mirror: a read is one of one member, whatever the array.
    fn fit_requests(&self, mirror: &SmallArray, beyond: &mut Beyond) -> Result<(), PlanError> {
        use Host::{Agents, Client};
        let size = Size::Small;
        self.fit(mirror, size, READ, Client, |b| &mut b.array_request_s, beyond)?;
        self.fit(mirror, size, READ, Agents, |b| &mut b.agents[READ].request_s, beyond)?;
        self.fit(mirror, size, WRITE, Client, |b| &mut b.logged[WRITE].request_s, beyond)?;
        self.fit(mirror, size, WRITE, Agents, |b| &mut b.agents[WRITE].request_s, beyond)
    }

    /// Finds a cost with which a read or a write costs a host what was measured; none where it costs that much without.
    fn fit(
        &self,
        array: &SmallArray,
        size: Size,
        at: usize,
        host: Host,
        cost: Of,
        beyond: &mut Beyond,
    ) -> Result<(), PlanError> {
        let Some(measured) = array.figures(size) else { return Ok(()) };
        let of = |figures: &ArrayFigures| match host {
            Host::Client => figures.client_s[at],
            Host::Agents => figures.agents_s[at],
        };
        let with = |cost_s: f64| {
            let mut beyond = beyond.clone();
            *cost(&mut beyond) = cost_s;
            self.run(array, size, at, &beyond).map(|figures| of(&figures))
        };
        let without = with(0.0)?;
        let more = of(&measured) - without;
        if more <= 0.0 {
            *cost(beyond) = 0.0;
            return Ok(());
        }
        // As if all of it were in one request, or in its bytes; then what requests turned out to have of it.
        let full = if size == Size::Large { f64::from(LARGE_BYTES) } else { 1.0 };
        let mut cost_s = more / full;
        for _ in 0..FIT_STEPS {
            let each = (with(cost_s)? - without) / cost_s;
            cost_s = if each > 0.0 { more / each.max(full / PARTS_MAX) } else { 0.0 };
            if cost_s <= 0.0 {
                break;
            }
        }
        *cost(beyond) = cost_s;
        Ok(())
    }

    /// What part of the machine's time is used: with it, these arrays have the rates that they had, but for small
    /// writes, which wait for the log.
    fn fit_busy_part(
        &self,
        arrays: &[Option<&SmallArray>],
        beyond: &mut Beyond,
    ) -> Result<(), PlanError> {
        let mut cases = Vec::new();
        for array in arrays.iter().flatten() {
            for (size, at) in [(Size::Large, READ), (Size::Large, WRITE), (Size::Small, READ)] {
                let measured = array.figures(size).map_or(0.0, |figures| figures.rate_mb_s[at]);
                if measured > 0.0 {
                    cases.push((*array, size, at, measured));
                }
            }
        }
        for _ in 0..if cases.is_empty() { 0 } else { BUSY_STEPS } {
            let mut sum = 0.0;
            for (array, size, at, measured) in &cases {
                sum += (measured / self.run(array, *size, *at, beyond)?.rate_mb_s[*at]).ln();
            }
            let mean = (sum / cases.len() as f64).exp();
            beyond.busy_part = (beyond.busy_part * mean).clamp(BUSY_MIN, 1.0);
        }
        Ok(())
    }

    /// What a model of a small array says of reads, or of writes.
    fn run(
        &self,
        array: &SmallArray,
        size: Size,
        at: usize,
        beyond: &Beyond,
    ) -> Result<ArrayFigures, PlanError> {
        let table = crate::config::read_table(&self.path.text(self.shape, self.parts, beyond))?;
        let mut config = Site::from_table(table)?.parts;
        (config.level, config.disks) = (array.level, array.members);
        config.operation = Some(if at == READ { Operation::Read } else { Operation::Write });
        let workload = &mut config.workload;
        workload.outstanding = array.outstanding;
        workload.data_set_bytes = array.span_bytes;
        let (bytes, offsets, requests) = match size {
            Size::Small => (SMALL_BYTES, Offsets::Random, SMALL_REQUESTS),
            Size::Large => (LARGE_BYTES, Offsets::Sequential, LARGE_REQUESTS),
        };
        workload.request_bytes = Some(bytes.into());
        (workload.offsets, workload.requests) = (offsets, requests);
        let measures = Model::new(config)?.run(Seed(1))?;
        let mut out = ArrayFigures::default();
        out.client_s[at] = measures["client_s_per_request"];
        out.agents_s[at] = measures["agents_s_per_request"];
        out.rate_mb_s[at] = measures["rate_mb_s"];
        Ok(out)
    }
}
