//! Shells: target, initiator, array driver, backings. They move bytes between sockets, files and
//! the pure machines, and decide nothing themselves.

pub mod array;
pub mod backings;
pub mod bytes;
pub mod completions;
pub mod control;
pub mod filters;
pub mod initiator;
mod pool;
mod sockets;
pub mod target;
mod wire;

pub use pool::pool;
