//! What is left of the rate of an array with disks away.

use netraid_model::{Config, Measures, Model, config::ConfigError};
use netraid_sim::Seed;

fn config(settings: &[&str]) -> Result<Config, ConfigError> {
    super::config(4, settings)
}

fn run(settings: &[&str]) -> Measures {
    Model::new(config(settings).unwrap()).unwrap().run(Seed(1)).unwrap()
}

fn ratio(name: &str, settings: &[&str], away: &str) -> f64 {
    let healthy = run(settings)[name];
    let degraded = run(&[settings, &[away]].concat())[name];
    println!("{settings:?} {away}: {healthy:.2}, then {degraded:.2}");
    degraded / healthy
}

#[test]
fn large_reads_in_order_lose_the_rate_of_the_disks_that_are_away() {
    for request in ["workload.request_stripes=4", "workload.request_bytes=1048576"] {
        let one = ratio("rate_mb_s", &[request], "away=1");
        assert!((one / 0.75 - 1.0).abs() < 0.04, "{request}: {one}");
        // Long accesses share what their stripes have in common all the same.
        let long = ratio("rate_mb_s", &[request, "disk.access_bytes_max=1048576"], "away=1");
        assert!((long / 0.75 - 1.0).abs() < 0.04, "{request}: {long}");
        let two = ratio("rate_mb_s", &["disks=6", "level=6", request], "away=2");
        assert!((two * 6.0 / 4.0 - 1.0).abs() < 0.04, "{request}: {two}");
    }
}

#[test]
fn writes_of_whole_stripes_keep_their_rate() {
    let whole = ratio("rate_mb_s", &["operation=write"], "away=1");
    assert!((whole - 1.0).abs() < 0.03, "{whole}");
}

#[test]
fn small_random_reads_cost_what_the_geometry_says() {
    // One of N chunks is away and takes N - 1 reads: 2 (N - 1) / N on average, over N - 1 disks.
    let small = [
        "workload.request_bytes=4096",
        "workload.offsets=random",
        "workload.outstanding=1",
        "workload.requests=4000",
    ];
    for (disks, accesses) in [("disks=4", 1.5), ("disks=8", 1.75)] {
        let settings = [&small[..], &[disks]].concat();
        let n: f64 = disks.split_once('=').unwrap().1.parse().unwrap();
        let each = |away: &str, there: f64| {
            let measures = run(&[&settings[..], &[away]].concat());
            measures["disk"] * there / measures["requests_per_second"]
        };
        let cost = each("away=1", n - 1.0) / each("away=0", n);
        println!("{disks}: {cost:.3} accesses");
        assert!((cost / accesses - 1.0).abs() < 0.04, "{disks}: {cost}");
    }
}

#[test]
fn more_away_than_the_level_survives_is_refused() {
    let refused = |settings: &[&str]| config(settings).unwrap_err();
    let level_0 = refused(&["level=0", "away=1"]);
    assert_eq!(level_0, ConfigError::Away { away: 1, level: 0, disks: 4, survives: 0 });
    assert!(level_0.to_string().contains("survives the loss of 0"), "{level_0}");
    assert!(matches!(refused(&["away=2"]), ConfigError::Away { .. }));
    assert!(matches!(refused(&["level=6", "away=3"]), ConfigError::Away { .. }));
    assert!(matches!(refused(&["disks=1", "away=1"]), ConfigError::Away { .. }));
    // Two disks of level 5 are copies, and three of level 6.
    assert!(config(&["disks=2", "away=1"]).is_ok());
    assert!(config(&["disks=3", "level=6", "away=2"]).is_ok());
    let engine = r#"parity_engine={ overhead_us = 1, mb_s = 10 }"#;
    let with_engine = refused(&["agent.disks=4", engine, "away=1"]);
    assert_eq!(with_engine, ConfigError::AwayWithEngine(1));
}
