//! iSCSI (RFC 7143): PDUs, negotiation, and the session machines of both sides.
//!
//! [`target`] and [`initiator`] hold the machines; [`machine`] says how they are driven. They
//! handle headers, short texts, ranges and ids, never the bytes that commands move, so that a
//! shell receives those straight into their final place. Digests are computed where the bytes
//! are: machines only say which are in use.
//!
//! This crate does no input or output, knows no clock and draws no random numbers.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod chap;
pub mod framing;
pub mod initiator;
pub mod machine;
pub mod negotiation;
pub mod pdu;
pub mod serial;
pub mod target;
pub mod text;
