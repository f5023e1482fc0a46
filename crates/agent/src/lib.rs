//! A storage agent: one host's devices, of which mediators book space and rates, and that serves
//! segments to whoever a mediator gave a token.
//!
//! ```text
//! mediators --HTTP--> api -> operations -> keeper (book: ledger, segments) -> store
//!                                 |              |
//!                                 v              v
//! initiators --iSCSI--> target <- gate <------- view      what logins are held against
//!                         |
//!                         v
//!                      segments (files, memory)
//! ```
//!
//! - [`agent`]: puts the parts together, and runs them.
//! - `book`: what is booked and which segments there are; one owner, no lock, no waiting.
//! - `keeper`: the book's task. It stores what changed, many documents at once, and lets an answer
//!   go when all that it rests on is durable.
//! - `operations`: the documents of `netraid_cluster::agent`, and the order of their effects.
//! - `segments`: their files, or memory, or a disk. `disk`: the table of a disk, and segments on it.
//! - `gate`: the target's admission. `view` is all that it knows.
//! - `membership`: joining mediators, and being heard of.
//! - [`calibrate`]: what the devices and the network do.
//! - `audit`: who was refused, and what was changed.
//!
//! Invariants: an answer that left is durable. A segment whose row is not there was never served, and a
//! segment whose data may be lost is not served. A raised generation is durable, and nothing of an older
//! one can happen any more, before it is answered. A mediator reaches nothing of another one.
//!
//! What is booked is decided by `netraid_control::ledger`, and who is let in by
//! `netraid_control::token`.

pub mod agent;
pub mod calibrate;

mod api;
mod audit;
mod book;
mod disk;
mod gate;
mod keeper;
mod membership;
mod operations;
mod records;
mod revoked;
mod segments;
mod view;

pub use agent::{Agent, AgentConfig, AgentError, Medium, Ready};
