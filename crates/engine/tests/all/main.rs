//! Tests of the engine over sockets: one program, whose modules say what each is about.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod array;
mod common;
mod hostile;
mod iscsi;
mod tgt;
