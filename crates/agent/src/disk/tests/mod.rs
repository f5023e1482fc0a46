//! The table and its blocks, byte by byte, and segments on a disk that loses power.

mod crashes;
mod files;
mod medium;
mod notes;
mod volumes;
