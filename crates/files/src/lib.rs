//! Volumes and data of a cluster by name, for programs.
//!
//! - [`Cluster`] talks to a mediator: names, plans, agents.
//! - [`Volume`] is the distribution agent: the array engine under a transfer plan. It logs in to the
//!   agents by the plan's tokens, renews the plan, and asks for another segment when an agent is lost.
//! - [`Data`] reads and writes named bytes of an exact length: open, read, write, seek, close.
//!   [`blocking`] is the same for programs without an async runtime.
//! - [`transfer`] moves whole files with many requests under way.
//!
//! Invariant: what was acknowledged with a flush is on as many members as the level promises, also when
//! the mediator is away: it is not on the data path. Who was fenced gets errors, never old bytes.
//!
//! Does not place or book anything: the mediator and its agents do.

mod assemble;
pub mod blocking;
mod cluster;
mod data;
mod error;
mod keeper;
mod takeover;
pub mod transfer;
mod volume;

pub use cluster::{Cluster, ConnectError};
pub use data::Data;
pub use error::Error;
pub use volume::{Volume, VolumeOptions};
