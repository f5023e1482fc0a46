//! SCSI: commands, sense data, and the logical unit machine (SPC-4, SBC-3).
//!
//! Target side: [`TargetDevice`] routes commands to [`LogicalUnit`]s; each command becomes a
//! [`Task`] that its caller drives by [`Step`]s: give data-out, submit a medium request, respond.
//! Initiator side: [`cdb::build`] writes commands; [`inquiry`], [`limits`], [`capacity`] and
//! [`mode`] read what a peer says about itself; [`Sense`] says how a command failed.
//!
//! What a peer sends is never trusted: every field is checked against the table of supported
//! commands before a command is acted upon. This crate moves no bytes, knows no transport, and
//! does no input or output.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bytes;
pub mod capacity;
pub mod cdb;
mod copy;
pub mod identity;
pub mod inquiry;
pub mod limits;
pub mod mode;
pub mod ports;
pub mod reservation;
pub mod sense;
mod target;
pub mod unit;

pub use ports::{InitiatorPort, Nexus};
pub use reservation::Reservations;
pub use sense::{Additional, Sense, SenseKey, Status};
pub use target::{AddUnitError, LUN_MAX, TargetDevice};
pub use unit::{
    Background, Identity, LogicalUnit, Marker, MarkerError, MediumRequest, Method, NexusId,
    Refusal, Response, SanitizeState, Step, Task, UnitAttention, UnitConfig, View,
};
