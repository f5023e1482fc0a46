//! The world around an array with a log: users, engines that die, targets and a network that fail,
//! and an oracle that knows what may be read.
//!
//! Invariant: a run is a function of its [`plan::Plan`], which is one of a seed. The machine in it
//! is the production one.

pub mod campaign;
pub mod content;
pub mod engine;
mod faults;
mod looks;
pub mod machine;
pub mod oracle;
pub mod plan;
pub mod rest;
pub mod session;
mod space;
pub mod subset;
pub mod trace;
pub mod workload;
pub mod world;

#[cfg(test)]
mod tests;
