//! Tests of the performance model: one program, whose modules say what each is about.

mod any_configuration;
mod away;
mod log;
mod plan;
mod presets;
