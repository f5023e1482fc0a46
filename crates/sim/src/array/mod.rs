//! The world around an array, with a log or without: users, engines that die, targets and a network that fail,
//! and an oracle that knows what may be read.
//!
//! Invariant: a run is a function of its [`plan::Plan`], which is one of a seed. The machine in it
//! is the production one.

pub mod campaign;
pub mod content;
pub mod engine;
mod faults;
mod healing;
mod looks;
pub mod machine;
pub mod opened;
pub mod oracle;
mod orders;
mod pauses;
pub(crate) mod plain;
pub mod plan;
pub mod rest;
mod restarts;
pub mod session;
mod space;
pub mod subset;
pub mod tables;
pub mod trace;
pub mod workload;
pub mod world;

#[cfg(test)]
mod tests;
