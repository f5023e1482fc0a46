//! Rebuilds of a replaced disk, alone and beside a workload.

use netraid_model::{Config, Measures, Model, RunError, config::ConfigError};
use netraid_sim::Seed;

use super::LINK_MB_S;

fn config(rebuild: &str, settings: &[&str]) -> Result<Config, ConfigError> {
    let rebuild = format!("rebuild={rebuild}");
    super::config(5, &[&[rebuild.as_str()], settings].concat())
}

fn run(rebuild: &str, settings: &[&str]) -> Measures {
    let measures = Model::new(config(rebuild, settings).unwrap()).unwrap().run(Seed(1)).unwrap();
    let [rebuilt, seconds, rate] =
        ["rebuild_mb_s", "rebuild_seconds", "rate_mb_s"].map(|name| measures[name]);
    println!("{rebuild} {settings:?}: {rebuilt:.2} MB/s, {seconds:.0} s, beside {rate:.2} MB/s");
    measures
}

#[test]
fn an_idle_array_is_rebuilt_at_nearly_the_rate_of_a_link() {
    for settings in [&["level=5"][..], &["level=6", "disks=6"], &["level=6", "away=1"]] {
        let idle = run("{ used_bytes = 10000000000, idle = true }", settings);
        let part = idle["rebuild_mb_s"] / LINK_MB_S;
        assert!((0.9..=1.0).contains(&part), "{settings:?}: {part}");
        let seconds = 10_000.0 / idle["rebuild_mb_s"];
        assert!((idle["rebuild_seconds"] / seconds - 1.0).abs() < 1e-9);
        assert_eq!(idle["rate_mb_s"], 0.0);
    }
    // One stripe after the other leaves the disks idle in turn.
    let one = run("{ used_bytes = 10000000000, idle = true, stripes_at_once = 1 }", &[]);
    assert!(one["rebuild_mb_s"] < 0.6 * LINK_MB_S);
}

#[test]
fn what_a_run_rebuilds_stands_for_all() {
    let all = run("{ used_bytes = 655360000, idle = true, sample_stripes = 100000 }", &[]);
    let some = run("{ used_bytes = 655360000, idle = true, sample_stripes = 1000 }", &[]);
    assert!((some["rebuild_seconds"] / all["rebuild_seconds"] - 1.0).abs() < 0.03);
}

#[test]
fn rebuild_and_workload_both_get_something() {
    for operation in ["operation=read", "operation=write"] {
        let beside = run("{ used_bytes = 10000000000 }", &[operation]);
        let rebuilt = beside["rebuild_mb_s"] / LINK_MB_S;
        assert!((0.1..0.9).contains(&rebuilt), "{operation}: {rebuilt}");
        assert!(beside["rate_mb_s"] > LINK_MB_S, "{operation}: {}", beside["rate_mb_s"]);
    }
}

#[test]
fn a_rate_limit_is_kept_and_leaves_the_rest_to_the_workload() {
    let limited = run("{ used_bytes = 10000000000, rate_limit_mb_s = 2 }", &[]);
    assert!((1.9..=2.0).contains(&limited["rebuild_mb_s"]));
    let free = run("{ used_bytes = 10000000000 }", &[]);
    assert!(limited["rate_mb_s"] > 1.1 * free["rate_mb_s"]);
    let idle = run("{ used_bytes = 10000000000, rate_limit_mb_s = 2, idle = true }", &[]);
    assert!((1.98..=2.0).contains(&idle["rebuild_mb_s"]));
}

#[test]
fn arrivals_go_on_beside_a_rebuild() {
    let calm = ["workload.arrivals_per_second=20", "workload.offsets=random"];
    let beside = run("{ used_bytes = 10000000000, sample_stripes = 20000 }", &calm);
    assert!((beside["requests_per_second"] / 20.0 - 1.0).abs() < 0.1);
    assert!(beside["rebuild_mb_s"] > 0.5 * LINK_MB_S);
}

#[test]
fn a_rebuild_without_sense_is_refused() {
    let refused = |rebuild: &str, settings: &[&str]| {
        let error = config(rebuild, settings).unwrap_err();
        (error.clone(), error.to_string())
    };
    let missing = refused("{ used_bytes = 1000000 }", &["level=0"]).0;
    assert_eq!(missing, ConfigError::Away { away: 1, level: 0, disks: 5, survives: 0 });
    assert!(matches!(
        refused("{ used_bytes = 1000000 }", &["away=1"]).0,
        ConfigError::Away { away: 2, .. }
    ));
    for (wrong, name) in [
        ("{ used_bytes = 0 }", "used_bytes"),
        ("{ used_bytes = 1000000, stripes_at_once = 0 }", "stripes_at_once"),
        ("{ used_bytes = 1000000, sample_stripes = 1000000 }", "sample_stripes"),
        ("{ used_bytes = 1000000, rate_limit_mb_s = 0 }", "rate_limit_mb_s"),
        ("{ used_bytes = 1000000, rate_limit_mb_s = nan }", "rate_limit_mb_s"),
    ] {
        let text = refused(wrong, &[]).1;
        assert!(text.contains(&format!("rebuild.{name} is ")), "{wrong}: {text}");
    }
}

#[test]
fn a_rebuild_that_does_not_end_beside_its_workload_is_given_up() {
    let slow = "{ used_bytes = 10000000000, rate_limit_mb_s = 0.01, sample_stripes = 100000 }";
    let fast = ["workload.request_bytes=512", "disk.read_mb_s=1000000", "network.latency_us=0"];
    let model = Model::new(config(slow, &fast).unwrap()).unwrap();
    let error = model.run(Seed(1)).unwrap_err();
    assert!(matches!(error, RunError::RebuildStarved { .. }), "{error}");
    assert!(error.to_string().contains("rebuild.rate_limit_mb_s"));
}
