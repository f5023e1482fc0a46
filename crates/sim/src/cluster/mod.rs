//! A cluster in simulation: mediators with stores of their own, agents that they share, and clients
//! who create volumes, open, renew, release, take over, forget and die. The network loses, doubles
//! and delays; everybody crashes, at any instant, and loses what was not synced; clocks are apart.
//!
//! What decides is the product's: `booking`, `ledger`, `lease`, `placement` and `token` of
//! `netraid_control`. What stands around them here, [`agent`] and [`mediator`], does what the daemons
//! do, in the order in which they have to: it says which answer waits for what.
//!
//! [`check`] says what has to hold:
//!
//! - no agent ever has more booked than it has, in memory or in its store;
//! - a plan that a client was given is usable until its end, unless it was taken over: each of its
//!   agents that is up admits its tokens, at their generation, and has its rates booked;
//! - of two plans of which one writes, agents admit one only in such numbers that it could serve;
//! - when all are up again and all terms are over, the agents have exactly what the mediators'
//!   stores say, and every volume can be opened for writing.

pub mod agent;
pub mod campaign;
pub mod check;
pub mod client;
pub mod mediator;
pub mod messages;
pub mod plan;
pub mod rows;
pub mod world;
