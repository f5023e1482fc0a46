//! Tests of a running mediator: one program, whose modules say what each is about.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod agents;
mod aside;
mod closes;
mod common;
mod crash;
mod ends;
mod names;
mod plans;
mod versions;
