//! What presets have to reproduce: the figures that their sources published.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test, which shows its figures")]

mod iraid;
mod raid;
mod swift;
mod visa;

use netraid_model::{
    Config, Model, Preset, Results,
    config::{read_value, set},
    summarise,
};
use netraid_sim::Seed;

/// The results of a preset with some parameters set, over few seeds.
fn point(preset: &str, settings: &[&str]) -> Results {
    let mut table = Preset::find(preset).unwrap().table().unwrap();
    for setting in settings {
        let (path, value) = setting.split_once('=').unwrap();
        set(&mut table, path, read_value(value)).unwrap();
    }
    let model = Model::new(Config::from_table(table).unwrap()).unwrap();
    let runs: Vec<_> = (0..3).map(|seed| model.run(Seed(seed)).unwrap()).collect();
    summarise(&runs)
}

/// Asserts that a figure is reproduced within a part of it, and shows it (`--nocapture`).
fn within(what: &str, got: f64, published: f64, part: f64) {
    let off = got / published - 1.0;
    println!("{what}: {got:.3}, published {published}, {:+.1}%", off * 100.0);
    assert!(off.abs() <= part, "{what}: {got}, published {published}, {:+.1}%", off * 100.0);
}

/// Asserts that a busy fraction is reproduced within five points.
fn near(what: &str, got: f64, published: f64) {
    let off = got - published;
    println!("{what}: {got:.3}, published {published}, {:+.1} points", off * 100.0);
    assert!(off.abs() <= 0.05, "{what}: {got}, published {published}");
}

#[test]
fn all_presets_run_and_give_fractions_and_rates_that_can_be() {
    for preset in netraid_model::preset::PRESETS {
        for operation in ["read", "write", "mix"] {
            let results = point(preset.name, &[&format!("operation={operation}")]);
            assert!(results["rate_mb_s"].mean > 0.1, "{} {operation}", preset.name);
            for name in ["client_cpu", "agent_cpu", "disk", "network"] {
                let busy = results[name];
                let fraction = (0.0..=1.0 + 1e-9).contains(&busy.mean);
                assert!(fraction, "{} {operation} {name}: {busy:?}", preset.name);
            }
            let (mean, p99) = (results["latency_ms"].mean, results["latency_p99_ms"].mean);
            let ordered = mean > 0.0 && mean <= p99 * 1.001;
            assert!(ordered, "{} {operation}: mean {mean}, p99 {p99}", preset.name);
        }
    }
}
