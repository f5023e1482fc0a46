//! Shells: the ways out of a block device, NBD and FUSE.
//!
//! Both speak in bytes; `netraid_engine::bytes::ByteDevice` turns that into whole blocks, and is shared by all exports
//! of one device. Invariant: a request of a client ends exactly once, or its connection does; what
//! a client sends is bounded before it is taken.

mod flush;
pub mod fuse;
mod name;
pub mod nbd;
mod users;

use flush::flush;
pub use name::NameError;
pub use users::{InUse, Users};
