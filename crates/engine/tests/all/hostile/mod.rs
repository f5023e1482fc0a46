//! Live peers that mean harm, over loopback: what `fuzz/` does to the machines, done to the shells.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is shown on request")]

mod initiators;
mod peer;
mod proxy;
mod targets;

use crate::common;
