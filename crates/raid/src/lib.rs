//! The array as pure logic: what is on the members ([`label`], [`regions`], [`written`]), where
//! a byte is ([`geometry`]), the machine that serves requests from members that fail
//! ([`array`]), what is read before it is asked for ([`read_ahead`]) and how much at once ([`read_window`]), and
//! which writes become whole stripes ([`gathering`]).
//!
//! Nothing here reads, writes, waits or knows the time: [`array::ArrayMachine`] emits actions and
//! is told how they ended; [`executor::Executor`] does what is to be done to bytes, in production
//! and in simulation alike.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod access;
pub mod array;
pub mod assemble;
pub mod bytes;
pub mod checkpoint;
pub mod checksum;
pub mod code;
pub mod copies;
pub mod executor;
pub mod faults;
pub mod fencing;
pub mod format;
pub mod gathering;
pub mod geometry;
pub mod heartbeat;
pub mod label;
pub mod lack;
pub mod log;
pub mod logged;
pub mod mark;
pub mod medium;
pub mod member;
pub mod meter;
pub mod opening;
pub mod page;
pub mod pages;
pub mod presence;
pub mod reach;
pub mod read_ahead;
pub mod read_window;
pub mod regions;
pub mod slowness;
pub mod snapshots;
pub mod standby;
pub mod stripes;
pub mod sums;
mod talk;
pub mod testimony;
pub mod volume;
pub mod write_plan;
pub mod written;

pub use netraid_parity::crc;
use netraid_planted as planted;
