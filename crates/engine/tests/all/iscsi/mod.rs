//! Our initiator against our target over loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod attentions;
mod faults;
mod fencing;
mod logins;
mod losses;
mod luns;
pub(crate) mod meddler;
mod paces;
mod portals;
mod raw;
mod sanitize;
mod segments;
mod sessions;
mod threads;

use crate::common;
