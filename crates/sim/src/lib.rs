//! Simulation: a clock that jumps from event to event, and models of what the product runs on,
//! with all their faults: disks ([`disk`]), networks ([`network`]), and whatever serves one
//! request after another ([`station`]).
//!
//! Invariant: a run is a function of its [`Seed`] and of the program. Nothing here reads a clock,
//! a socket or the system's entropy, and no container is walked in an order that depends on
//! addresses or on a random hash.
//!
//! The models are machines in the product's dialect, and know nothing of each other: the world
//! that uses them puts their outputs on its [`agenda::Agenda`]. They hold no opinion of what is
//! right: that is for the checkers of each world.

pub mod agenda;
pub mod array;
pub mod campaign;
pub mod cluster;
pub mod dice;
pub mod disk;
pub mod liars;
pub mod network;
pub mod pace;
pub mod station;
pub mod target;
pub mod time;
pub mod way;

pub use dice::{Dice, Seed};
pub use time::Time;
