//! The buyer's test without its I/O: which tests there are, how long they take, what is kept of
//! them, and what they say.
//!
//! [`catalogue`] names the tests. [`record`] is what a run leaves, and [`log`] the lines in which
//! it is kept and from which an interrupted one goes on. [`estimate`] says how long a run takes.
//! [`judge`] tells tricks from honest results, [`limits`] what a result is limited by,
//! [`data`] what of data is proved, [`requirements`] whether wishes are met, [`sheet`] puts a target's results on one sheet, and
//! [`csv`] all of them into a table. [`places`] says where files lie on a target without a file
//! system.
//!
//! Invariant: everything here is a function of its arguments. Nothing reads a file, a clock or the
//! system's entropy; whoever measures hands measurements in.

pub mod catalogue;
pub mod csv;
pub mod data;
pub mod estimate;
pub mod judge;
pub mod limits;
pub mod log;
pub mod places;
pub mod plan;
pub mod record;
pub mod requirements;
pub mod sheet;
pub mod statistics;
