//! The library by itself: everything through its public interface, against a real mediator and real agents in
//! this process.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod blocking;
mod common;
mod data;
mod loss;
mod mirror;
mod pause;
