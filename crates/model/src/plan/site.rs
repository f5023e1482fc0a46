//! What a site has, and what is wished of it.

use serde::{Deserialize, Serialize};

use super::PlanError;
use crate::config::{Config, ConfigError, Table, within};

/// Largest disk, in bytes.
const CAPACITY_BYTES_MAX: f64 = (1_u64 << 50) as f64;
/// Highest price.
const PRICE_MAX: f64 = 1e12;
/// Most chunks and lengths of requests to try.
const CHOICES_MAX: usize = 8;

/// What a site has: the parts, of which `disks` is how many there are, and what else counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// As for a simulation. Level, chunk and length of requests are the plan's to choose.
    pub parts: Config,
    /// The table `plan` of the file.
    pub facts: SiteFacts,
}

/// What a plan needs to know besides the parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteFacts {
    /// Bytes of each disk, 1 MiB to 2^50.
    pub disk_capacity_bytes: u64,
    /// Chunks to try, one to eight.
    pub chunk_bytes: Vec<u32>,
    /// As [`crate::Reliability::member_mttf_hours`].
    pub member_mttf_hours: f64,
    /// As [`crate::Reliability::detection_hours`].
    pub detection_hours: f64,
    /// As [`crate::Reliability::unreadable_per_byte`].
    pub unreadable_per_byte: f64,
    /// As [`crate::Reliability::site_mttf_hours`].
    pub site_mttf_hours: Option<f64>,
    /// What an agent costs without disks, in any currency, 0 to 10^12.
    pub price_per_agent: Option<f64>,
    /// What a disk costs.
    pub price_per_disk: Option<f64>,
}

impl Site {
    /// Understands a file's table, and checks it.
    ///
    /// # Errors
    /// When a parameter is missing, unknown, of another kind, or out of its range.
    pub fn from_table(mut table: Table) -> Result<Self, PlanError> {
        let facts = table.remove("plan").ok_or(PlanError::NoFacts)?;
        let facts: SiteFacts = facts.try_into().map_err(|error: toml::de::Error| {
            let text = error.to_string();
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            ConfigError::Syntax(format!("plan: {line}"))
        })?;
        let site = Self { parts: Config::from_table(table)?, facts };
        site.check()?;
        Ok(site)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let facts = &self.facts;
        let capacity = facts.disk_capacity_bytes as f64;
        within("plan.disk_capacity_bytes", capacity, 1048576.0, CAPACITY_BYTES_MAX)?;
        let chunks = facts.chunk_bytes.len() as f64;
        within("plan.chunk_bytes, in number,", chunks, 1.0, CHOICES_MAX as f64)?;
        for chunk in &facts.chunk_bytes {
            let parts = Config { transfer_unit_bytes: *chunk, ..self.parts.clone() };
            parts.geometry()?;
        }
        let prices =
            [("price_per_agent", facts.price_per_agent), ("price_per_disk", facts.price_per_disk)];
        for (name, price) in prices {
            within(&format!("plan.{name}"), price.unwrap_or(0.0), 0.0, PRICE_MAX)?;
        }
        match self.parts.parity_engine {
            Some(_) => Err(ConfigError::AwayWithEngine(1)),
            None => Ok(()),
        }
    }
}

/// What is wished.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wishes {
    /// MB read a second, with all members there, by requests of each length; above 0.
    pub read_mb_s: Option<f64>,
    /// MB written a second.
    pub write_mb_s: Option<f64>,
    /// Bytes of the volume.
    pub capacity_bytes: Option<u64>,
    /// Members whose loss it has to survive.
    pub survive: u32,
    /// Lengths of requests, one to eight.
    pub request_bytes: Vec<u64>,
    /// Hours in which a member is rebuilt, beside the workload.
    pub rebuild_within_hours: Option<f64>,
    /// Mean time to data loss, in years.
    pub mttdl_years: Option<f64>,
}

impl Wishes {
    /// Whether each makes sense.
    ///
    /// # Errors
    /// Names the first that does not, its value and its range.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let lengths = self.request_bytes.len() as f64;
        within("lengths of requests, in number,", lengths, 1.0, CHOICES_MAX as f64)?;
        let wishes = [
            ("the rate of reads", self.read_mb_s),
            ("the rate of writes", self.write_mb_s),
            ("the time of a rebuild", self.rebuild_within_hours),
            ("the mean time to data loss", self.mttdl_years),
        ];
        wishes
            .into_iter()
            .filter_map(|(name, wish)| wish.map(|wish| (name, wish)))
            .try_for_each(|(name, wish)| within(name, wish, 1e-6, 1e18))
    }
}
