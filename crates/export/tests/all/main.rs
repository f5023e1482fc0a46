//! Tests of exports by clients of their own: one program, a module for each export.

mod fuse;
mod nbd;
