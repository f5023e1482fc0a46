//! What a target serves to one initiator: the pure parent of a connection.
//!
//! A [`Service`] owns the machine of one connection and the places of its commands. It takes each command to the logical
//! units, looks at the gate of its LUN and at the grant of its session before anything goes to a device, asks for its share
//! of a pace, and brings the answer back. What connections share (logical units, the node that knows all sessions, LUNs) is
//! reached through [`Outside`].
//!
//! Invariant: nothing reaches a device before it has entered its LUN, and then found the gate open and policy and grant
//! willing: whoever closes a gate sees what has entered, or is seen by it.
//!
//! ```text
//! connection -> machine -> Command -> units -> Plan
//!               machine -> Submit  -> units -> gate, grant -> device
//! device -> end -> units -> Outcome -> machine -> connection
//! ```
//!
//! This crate does no input or output, knows no clock and draws no random numbers.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod commands;
mod gate;
mod outside;
mod permit;
mod policy;
pub mod segments;
mod service;
mod slot;
#[cfg(test)]
mod tests;
mod written;

pub use self::{
    gate::{Gate, Gatehouse},
    outside::{
        Barred, Counted, Entry, Guest, LoggedIn, Lun, Needs, Outside, Pacing, Place, Ticket,
    },
    permit::{NoPermit, Permit, Refused},
    policy::{Access, Moment, Policy, Verdict},
    service::{Receiver, Service},
    written::Written,
};
