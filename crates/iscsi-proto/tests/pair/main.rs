//! Initiator and target joined in memory, with a clock that only the tests move.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod claims;
mod exchange;
mod fields;
mod harness;
mod hostile;
mod keys;
mod liar;
mod logins;
mod management;
mod order;
mod paced;
mod preempt;
mod sequences;
mod texts;
