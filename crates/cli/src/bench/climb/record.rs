//! What a climb measured: the document of `netraid bench climb --json`.

use netraid_evaluate::record::Machine;
use netraid_raid::geometry::Level;
use serde::Serialize;

use super::{
    super::{
        measure::{Figures, median},
        parity, transport,
    },
    judge::Verdict,
};

/// All rungs, from memory to an export's client.
#[derive(Debug, Serialize)]
pub(crate) struct Climb {
    /// Version of the program.
    pub(crate) version: &'static str,
    /// When it began.
    pub(crate) began: String,
    /// The command line.
    pub(crate) command: String,
    /// How long all of it took.
    pub(crate) took_s: f64,
    pub(crate) machine: Machine,
    /// The members: addresses, or that they are in memory.
    pub(crate) members: Vec<String>,
    /// The level beside 0.
    pub(crate) level: u8,
    /// Requests in flight, but where a rung says otherwise.
    pub(crate) depth: u16,
    pub(crate) threads: u8,
    pub(crate) seconds: f64,
    pub(crate) rounds: u16,
    /// Bytes of a request, but where a rung says otherwise.
    pub(crate) request_bytes: u32,
    pub(crate) parity: parity::Report,
    pub(crate) transport: transport::Report,
    pub(crate) member: Vec<DepthPoint>,
    /// By the number of members.
    pub(crate) steps: Vec<Step>,
    pub(crate) end_to_end: Vec<SizePoint>,
    pub(crate) bends: Vec<Bend>,
    /// Of the largest volumes, and of the export.
    pub(crate) verdicts: Vec<Verdict>,
}

/// A point, over all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Point {
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// The median of the rounds.
    pub(crate) median_mb_per_s: f64,
    /// Processor seconds a GB of the engine, where it is a process of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) engine_cpu_s_per_gb: Option<f64>,
    /// Processors that all processes which take part were busy with.
    pub(crate) processors_busy: f64,
    /// Processors that other processes of this machine were busy with, and what its host took away.
    pub(crate) processors_others: f64,
}

/// One member, by the number of requests in flight.
#[derive(Debug, Serialize)]
pub(crate) struct DepthPoint {
    pub(crate) write: bool,
    pub(crate) request_bytes: u32,
    pub(crate) depth: u16,
    #[serde(flatten)]
    pub(crate) point: Point,
}

/// What so many members do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// Bare TCP with so many connections.
    Transport,
    /// So many members at once, without an array.
    Together,
    /// An array of them, of the level with this number.
    Level(u8),
}

/// So many members, one way.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) what: What,
    pub(crate) members: u8,
    pub(crate) write: bool,
    /// What so many times the rate of one member in the same round would be, less redundancy; median.
    pub(crate) line_mb_per_s: f64,
    /// The rate over that line in the same round; median.
    pub(crate) of_line: f64,
    pub(crate) mb_per_s: f64,
    /// Bare TCP has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) point: Option<Point>,
}

/// An export's client, by the size of its requests.
#[derive(Debug, Serialize)]
pub(crate) struct SizePoint {
    pub(crate) write: bool,
    pub(crate) request_bytes: u32,
    #[serde(flatten)]
    pub(crate) point: Point,
}

/// Where a volume leaves the line of one member, and why.
#[derive(Debug, Serialize)]
pub(crate) struct Bend {
    pub(crate) level: u8,
    pub(crate) write: bool,
    /// What has less than this part of the line has left it.
    pub(crate) threshold: f64,
    /// The first count of members; none where all are on the line.
    pub(crate) members: Option<u8>,
    /// What limits there.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) sentence: String,
}

impl Climb {
    /// A step.
    pub(crate) fn step(&self, what: What, members: u8, write: bool) -> Option<&Step> {
        let is_it = |step: &&Step| (step.what, step.members, step.write) == (what, members, write);
        self.steps.iter().find(is_it)
    }

    /// The levels of its volumes: 0, and the one that was asked for.
    pub(crate) fn levels(&self) -> Vec<Level> {
        let mut numbers = vec![0, self.level];
        numbers.dedup();
        numbers.into_iter().filter_map(Level::from_number).collect()
    }

    /// How many members there are.
    pub(crate) fn count(&self) -> u8 {
        self.steps.iter().map(|step| step.members).max().unwrap_or(0)
    }
}

impl Step {
    /// From the rates of its rounds, and those of one member in the same rounds.
    pub(crate) fn new(
        (what, members, write): (What, u8, bool),
        share: f64,
        one: &[f64],
        rounds: &[f64],
        point: Option<Point>,
    ) -> Self {
        let times = f64::from(members) * share;
        let of_line = rounds.iter().zip(one).map(|(rate, one)| rate / (one * times));
        Self {
            what,
            members,
            write,
            line_mb_per_s: median(one.to_vec()) * times,
            of_line: median(of_line.collect()),
            mb_per_s: median(rounds.to_vec()),
            point,
        }
    }
}
