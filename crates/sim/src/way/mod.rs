//! The whole way in one simulation: the product's initiator ([`netraid_remote::Remote`]) over byte streams that break,
//! stall and deliver late, to the product's target ([`netraid_node::Service`]) on simulated disks.
//!
//! ```text
//! owner -> Net -> line (Remote) -> stream -> host (Service) -> disk
//!            <- News                       <-
//! ```
//!
//! [`Net`] owns all that is beneath the interface of `Remote`, and one agenda for it and for its owner. The product
//! decides; what is here carries bytes, time and chance.
//!
//! Invariant: a run is a function of the seed, of the calls of the owner, and of the program. Each loop is bounded: what
//! does not come to rest fails.
//!
//! Above [`Net`] are arrays and their users (`world`), and guests of a segment (`guests`). What is right is judged by `watch`,
//! `agent` and `guests`.

mod agent;
pub mod campaign;
mod cases;
mod counts;
mod desk;
mod device;
mod engine;
mod framed;
mod guests;
mod host;
mod interface;
mod joining;
mod line;
mod net;
mod opening;
pub mod plan;
mod quirks;
mod reach;
mod reached;
mod script;
mod served;
mod stream;
#[cfg(test)]
mod tests;
mod watch;
mod wire;
pub mod world;

pub use self::{
    cases::{Case, Cases},
    counts::{Count, Counts},
    interface::{
        Cut, Death, DiskConfig, Effect, EngineId, Fate, HostConfig, HostId, LineConfig, LineId,
        Manners, News, Quirks, Step, StreamId, Way,
    },
    net::Net,
};
