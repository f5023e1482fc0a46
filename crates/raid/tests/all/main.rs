//! Tests of the array through its public interface: one program, whose modules say what each is about.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod atomic;
mod degraded;
mod failures;
mod forged;
mod gather;
mod hedges;
mod lists;
mod logged;
mod lost_rows;
mod media;
mod model;
mod older_image;
mod read_ahead;
mod recovery;
mod returns;
mod scrub;
mod space;
mod succession;
mod support;
mod widths;
