//! A disk of any vendor's iSCSI target, from the initiator's side: the pure parent of its sessions.
//!
//! [`Remote`] owns the sessions to one logical unit: one, or several that share the requests. It logs in, examines the
//! disk, makes each session again when that is lost, sends what was under way once more, gives up what takes too long,
//! and keeps the registrations of reservations. [`Finder`] asks a portal which targets it has.
//!
//! Invariant: while the target has not confirmed that a write which was given up is dead, no request is carried out, so
//! that what the user writes next cannot be overtaken by what was given up. The target confirms by the answer to an
//! abort, or by a new session with the lost one's ISID (RFC 7143, section 6.3.5).
//!
//! A shell brings the bytes of connections, the time and random bytes, and does what [`Remote::poll`] and
//! [`Remote::transmit`] say; see [`Action`]. This crate does no input or output, knows no clock and draws no random
//! numbers.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod clock;
mod commands;
mod deadlines;
mod dial;
mod disk;
mod error;
mod examination;
mod finder;
mod interface;
mod lane;
mod link;
mod orders;
mod remote;
mod requests;
mod sessions;
mod takeover;
#[cfg(test)]
mod tests;
mod verdict;
mod visitor;
mod window;

pub use self::{
    error::{ConnectError, Reason},
    examination::RemoteIdentity,
    finder::Finder,
    interface::{
        Action, Event, Fresh, Opened, Order, OrderId, Place, Request, Settings, Status, Transmit,
    },
    link::Link,
    remote::Remote,
};
