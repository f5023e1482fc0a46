//! An agent over real sockets: documents, restarts, crashes, tokens, several mediators.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod crash;
mod disk;
mod documents;
mod mediators;
mod support;
mod tokens;
mod versions;
