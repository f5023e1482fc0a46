//! Simulated worlds run by their seeds: one program, a module for each world.

mod array;
mod cluster;
mod way;
