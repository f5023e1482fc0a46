//! Our initiator against our target over loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;
mod faults;
mod raw;
mod sessions;
