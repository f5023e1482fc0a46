//! Which layouts a site's parts allow, what each of them gives, and which wishes it does not meet.
//!
//! Rates and rebuilds are the simulator's ([`crate::Model`]), the mean time to data loss is
//! [`crate::Reliability`]'s. Rates are wished with all members there; what is left with one away and
//! beside a rebuild is told, and left to whoever reads it.
//!
//! Invariant: a proposal is a function of site, wishes and layout. It does not choose parts that the
//! site does not have, nor more than one array.

pub mod calibrate;
mod site;

use netraid_raid::geometry::{Geometry, Level};
use netraid_sim::Seed;
use serde::Serialize;

use crate::{
    config::{Config, ConfigError, Operation, Rebuild},
    reliability::{HOURS_PER_YEAR, Reliability, ReliabilityError},
    run::{Measures, Model, RunError},
};
pub use site::{Site, SiteFacts, Wishes};

/// The table `plan` that a site's file has besides the parts, to begin with.
pub const EXAMPLE_FACTS: &str = include_str!("../../presets/plan.toml");

/// Stripes that are rebuilt in a run.
const SAMPLE_STRIPES: u32 = 400;
/// A part that is busy for less than this is not what limits.
const LIMITS_FROM: f64 = 0.8;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A file without what a plan needs.
    #[error("the site's file has no table 'plan'; `netraid plan --show` prints one to begin with")]
    NoFacts,
    /// A site or a wish that makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Members that do not make a level, or times out of their range.
    #[error(transparent)]
    Reliability(#[from] ReliabilityError),
    /// A run without result.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No layout of these disks survives so many losses.
    #[error(
        "no layout of {disks} disks survives the loss of {survive}; wish at most 2 (levels 5 and 10 survive 1, 6 survives 2), and give level 5 two disks or more, level 6 three"
    )]
    Survive {
        /// Disks that the site has.
        disks: usize,
        /// The wish.
        survive: u32,
    },
}

/// A way to build the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// As [`Config::level`]: two or three members of levels 5 and 6 are copies.
    pub level: u8,
    /// Disks of the array.
    pub members: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
}

/// What is expected of reads or writes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rate {
    /// MB a second.
    pub mb_s: f64,
    /// The busiest part by its name in results, or `requests_at_once` when none is busy: more
    /// requests at once would give more.
    pub limit: String,
}

/// What is expected of both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// Reads alone.
    pub read: Rate,
    /// Writes alone.
    pub write: Rate,
}

/// What is expected with requests of one length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Expected {
    /// Their length.
    pub request_bytes: u64,
    /// All members there.
    pub healthy: Rates,
    /// One away; none where the level survives no loss.
    pub degraded: Option<Rates>,
    /// While one is rebuilt.
    pub rebuilding: Option<Rates>,
}

/// A wish that a layout does not meet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unmet {
    /// `read_mb_s`, `write_mb_s`, `capacity_bytes`, `rebuild_hours` or `mttdl_years`.
    pub wish: &'static str,
    /// What was wished.
    pub wished: f64,
    /// What is expected; none for a rebuild of what cannot be rebuilt.
    pub expected: Option<f64>,
}

/// A layout, and what it gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proposal {
    /// How the array is built.
    pub layout: Layout,
    /// Losses that it survives.
    pub survives: u32,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
    /// By length of requests, as they were wished.
    pub rates: Vec<Expected>,
    /// A member's rebuild beside the workload that leaves it least.
    pub rebuild_hours: Option<f64>,
    /// Mean time to data loss.
    pub mttdl_years: f64,
    /// Of agents and disks.
    pub price: Option<f64>,
    /// That, for each 10^12 bytes of the volume.
    pub price_per_usable_tb: Option<f64>,
    /// Wishes that are not met.
    pub unmet: Vec<Unmet>,
}

/// Layouts that are worth a look: those that survive as many losses as wished, and hold the capacity;
/// if none holds it, those of all disks.
///
/// # Errors
/// When a wish makes no sense, or no layout survives as many losses.
pub fn layouts(site: &Site, wishes: &Wishes) -> Result<Vec<Layout>, PlanError> {
    wishes.check()?;
    let disks = site.parts.disks;
    let mut all = Vec::new();
    for level in [0_u8, 5, 6, 10] {
        for members in 1..=disks {
            for chunk_bytes in site.facts.chunk_bytes.iter().copied() {
                let layout = Layout { level, members, chunk_bytes };
                if level == 10 && (members < 4 || !members.is_multiple_of(2)) {
                    continue;
                }
                let geometry = layout.geometry(site)?;
                // Too few members for a level are another one's layout.
                let is_another = match geometry.level() {
                    Level::Raid0 => level != 0,
                    Level::Raid1 => level == 6 && members == 2,
                    Level::Raid5 | Level::Raid6 | Level::Raid10 => false,
                };
                if !is_another && geometry.tolerance() >= wishes.survive {
                    all.push((layout, site.capacity_bytes(&geometry)));
                }
            }
        }
    }
    if all.is_empty() {
        return Err(PlanError::Survive { disks, survive: wishes.survive });
    }
    let wished = wishes.capacity_bytes.unwrap_or(0);
    let holds = |(_, capacity): &&(Layout, u64)| *capacity >= wished;
    let is_any_enough = all.iter().any(|layout| holds(&layout));
    let keep = |of: &&(Layout, u64)| if is_any_enough { holds(of) } else { of.0.members == disks };
    Ok(all.iter().filter(keep).map(|(layout, _)| *layout).collect())
}

/// What a layout gives.
///
/// # Errors
/// When the site's parts and a wish make no sense together, or a run has no result.
pub fn propose(site: &Site, wishes: &Wishes, layout: Layout) -> Result<Proposal, PlanError> {
    let geometry = layout.geometry(site)?;
    let survives = geometry.tolerance();
    let mut rebuild_hours: Option<f64> = None;
    let mut rates = Vec::new();
    let rebuild = Rebuild {
        used_bytes: site.used_bytes(&geometry, wishes),
        stripes_at_once: 32,
        rate_limit_mb_s: None,
        idle: false,
        sample_stripes: SAMPLE_STRIPES,
    };
    for request_bytes in wishes.request_bytes.iter().copied() {
        let healthy = layout.config(site, request_bytes);
        let degraded = Config { away: 1, ..healthy.clone() };
        let rebuilding = Config { rebuild: Some(rebuild.clone()), ..healthy.clone() };
        let mut expected = Expected {
            request_bytes,
            healthy: both(&healthy)?.0,
            degraded: None,
            rebuilding: None,
        };
        if survives > 0 {
            expected.degraded = Some(both(&degraded)?.0);
            let (rates, seconds) = both(&rebuilding)?;
            expected.rebuilding = Some(rates);
            let hours = seconds / 3600.0;
            rebuild_hours = Some(rebuild_hours.map_or(hours, |slowest| slowest.max(hours)));
        }
        rates.push(expected);
    }
    let mttdl_years = site.mttdl_years(&geometry, rebuild.used_bytes, rebuild_hours)?;
    let capacity_bytes = site.capacity_bytes(&geometry);
    let price = site.price(layout);
    let price_per_usable_tb = price.map(|price| price / (capacity_bytes as f64 / 1e12));
    let mut proposal = Proposal {
        layout,
        survives,
        capacity_bytes,
        rates,
        rebuild_hours,
        mttdl_years,
        price,
        price_per_usable_tb,
        unmet: Vec::new(),
    };
    proposal.unmet = proposal.unmet(wishes);
    Ok(proposal)
}

/// Puts the best first: who meets most wishes, then who costs least (without prices, has fewest
/// members), then who reads and writes fastest.
pub fn rank(proposals: &mut [Proposal]) {
    let cost = |proposal: &Proposal| proposal.price.unwrap_or(proposal.layout.members as f64);
    let rate = |proposal: &Proposal| proposal.slowest(true) + proposal.slowest(false);
    proposals.sort_by(|one, other| {
        let unmet = one.unmet.len().cmp(&other.unmet.len());
        unmet.then(cost(one).total_cmp(&cost(other))).then(rate(other).total_cmp(&rate(one)))
    });
}

/// Reads and writes of a configuration, and the longer time of a rebuild beside either.
fn both(config: &Config) -> Result<(Rates, f64), PlanError> {
    let run = |operation| -> Result<Measures, PlanError> {
        let config = Config { operation: Some(operation), ..config.clone() };
        Ok(Model::new(config)?.run(Seed(1))?)
    };
    let (read, write) = (run(Operation::Read)?, run(Operation::Write)?);
    let seconds = |measures: &Measures| measures.get("rebuild_seconds").copied().unwrap_or(0.0);
    let longest = seconds(&read).max(seconds(&write));
    Ok((Rates { read: rate(&read), write: rate(&write) }, longest))
}

fn rate(measures: &Measures) -> Rate {
    let is_part = |name: &str| {
        let not_busy = ["_mb_s", "_per_second", "_ms", "_seconds", "_s_per_request"];
        !name.contains('.') && not_busy.iter().all(|unit| !name.ends_with(unit))
    };
    let parts = measures.iter().filter(|(name, busy)| is_part(name) && **busy >= LIMITS_FROM);
    let busiest = parts.max_by(|one, other| one.1.total_cmp(other.1));
    let limit = busiest.map_or("requests_at_once", |(name, _)| name);
    Rate { mb_s: measures["rate_mb_s"], limit: limit.to_owned() }
}

impl Layout {
    fn config(self, site: &Site, request_bytes: u64) -> Config {
        let mut config = site.parts.clone();
        config.level = self.level;
        config.disks = self.members;
        config.transfer_unit_bytes = self.chunk_bytes;
        config.workload.request_bytes = Some(request_bytes);
        config.workload.request_stripes = None;
        (config.away, config.rebuild) = (0, None);
        // The longest access is never shorter than the chunk.
        config.disk.access_bytes_max =
            config.disk.access_bytes_max.map(|max| max.max(self.chunk_bytes));
        config
    }

    fn geometry(self, site: &Site) -> Result<Geometry, ConfigError> {
        Ok(self.config(site, 4096).geometry()?)
    }
}

impl Site {
    fn capacity_bytes(&self, geometry: &Geometry) -> u64 {
        self.facts.disk_capacity_bytes.saturating_mul(u64::from(geometry.data_columns()))
    }

    /// Bytes that a member has in use when the volume has as much as was wished, or all.
    fn used_bytes(&self, geometry: &Geometry, wishes: &Wishes) -> u64 {
        let columns = u64::from(geometry.data_columns());
        let used = wishes.capacity_bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(columns));
        used.clamp(4096, self.facts.disk_capacity_bytes)
    }

    fn price(&self, layout: Layout) -> Option<f64> {
        let (agent, disk) = (self.facts.price_per_agent, self.facts.price_per_disk);
        let agents = layout.members.div_ceil(self.parts.agent.disks) as f64;
        (agent.is_some() || disk.is_some())
            .then(|| agents * agent.unwrap_or(0.0) + layout.members as f64 * disk.unwrap_or(0.0))
    }

    fn mttdl_years(
        &self,
        geometry: &Geometry,
        used_bytes: u64,
        rebuild_hours: Option<f64>,
    ) -> Result<f64, ReliabilityError> {
        let reliability = Reliability {
            level: geometry.level(),
            members: usize::from(geometry.members()),
            member_mttf_hours: self.facts.member_mttf_hours,
            detection_hours: self.facts.detection_hours,
            // Without redundancy nothing is rebuilt, and this does not count.
            rebuild_hours: rebuild_hours.unwrap_or(1.0),
            rebuild_read_bytes: used_bytes as f64 * f64::from(geometry.data_columns()),
            unreadable_per_byte: self.facts.unreadable_per_byte,
            site_mttf_hours: self.facts.site_mttf_hours,
        };
        Ok(reliability.mean_hours_to_data_loss()? / HOURS_PER_YEAR)
    }
}

impl Proposal {
    /// The lowest rate of all lengths of requests, with all members there.
    #[must_use]
    pub fn slowest(&self, is_read: bool) -> f64 {
        let rate = |expected: &Expected| {
            let Rates { read, write } = &expected.healthy;
            if is_read { read.mb_s } else { write.mb_s }
        };
        self.rates.iter().map(rate).fold(f64::INFINITY, f64::min)
    }

    fn unmet(&self, wishes: &Wishes) -> Vec<Unmet> {
        let at_least = |wish, wished: Option<f64>, expected: f64| {
            let wished = wished.filter(|wished| expected < *wished)?;
            Some(Unmet { wish, wished, expected: Some(expected) })
        };
        let rebuild = wishes.rebuild_within_hours.and_then(|wished| {
            let is_met = self.rebuild_hours.is_some_and(|hours| hours <= wished);
            let unmet = Unmet { wish: "rebuild_hours", wished, expected: self.rebuild_hours };
            (!is_met).then_some(unmet)
        });
        let capacity = wishes.capacity_bytes.map(|bytes| bytes as f64);
        let all = [
            at_least("read_mb_s", wishes.read_mb_s, self.slowest(true)),
            at_least("write_mb_s", wishes.write_mb_s, self.slowest(false)),
            at_least("capacity_bytes", capacity, self.capacity_bytes as f64),
            rebuild,
            at_least("mttdl_years", wishes.mttdl_years, self.mttdl_years),
        ];
        all.into_iter().flatten().collect()
    }
}
