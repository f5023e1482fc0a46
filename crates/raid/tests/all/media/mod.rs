//! Members of arrays with a log, in memory: as earlier versions left them, and as nobody honest
//! would.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod array;
mod golden;
mod hostile;
mod image;
