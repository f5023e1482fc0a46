//! The cluster's decisions as pure logic: who may have how much of what, where, for how long, and
//! what that allows.
//!
//! Nothing here reads, writes, waits, knows the time or draws lots: time and random bytes come in
//! as parameters, and what is to be kept goes out as data that a shell stores. The mediator, the
//! agents, the target and the simulator run the same code.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod booking;
pub mod clients;
pub mod clocks;
pub mod derived;
pub mod fencing;
pub mod keys;
pub mod lease;
pub mod ledger;
pub mod limiter;
pub mod mclock;
pub mod membership;
pub mod placement;
pub mod promise;
pub mod raise;
pub mod retry;
pub mod text;
pub mod token;
pub mod units;
