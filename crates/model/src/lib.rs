//! The performance model: what rate a striped array gives, and which part of it is busy, from a
//! description of its parts in a file.
//!
//! A [`Config`] says what the client's processor spends on a packet and on a byte, what the
//! network, the agents' processors, the disks and whatever stands between them take, and what is
//! asked for. [`Model`] is a checked one; [`Model::run`] plays requests through it by events
//! and gives [`Measures`], and [`summarise`] puts those of several seeds together. Which bytes go
//! to which disk, and what a small write reads before, is decided by the code that decides it in
//! production: [`netraid_raid::geometry`], [`netraid_raid::write_plan`], [`netraid_raid::code`], and of
//! arrays with a log [`netraid_raid::log::LogWriter`]. [`plan::calibrate`] makes a site's description of
//! measurements.
//!
//! [`Reliability`] says how long data lasts, by a Markov chain of its own.
//!
//! Invariant: a run is a function of the configuration and the seed. Nothing here reads a file,
//! a clock or the system's entropy.
//!
//! It does not model disks that fail during a run (some may be away, or one be rebuilt), caches of
//! clients, reading ahead, collisions on an Ethernet, nor what a disk's arm does beyond a
//! distribution of its times.

pub mod config;
pub mod distribution;
mod layout;
pub mod plan;
mod presence;
pub mod preset;
pub mod reliability;
mod run;
pub mod statistics;
pub mod sweep;

pub use config::{Config, ConfigError, Operation};
pub use preset::Preset;
pub use reliability::{Reliability, ReliabilityError};
pub use run::{Measures, Model, RunError};
pub use statistics::{Interval, Results, summarise};
pub use sweep::Sweep;
