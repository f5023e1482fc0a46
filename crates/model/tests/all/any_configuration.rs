//! Whatever passes the checks runs to its end, and no part of it is busier than it can be.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use netraid_model::{
    Config, Model, Preset, RunError,
    config::{read_value, set},
    preset::PRESETS,
};
use netraid_sim::{Dice, Seed};

/// Parameters and values that together reach every branch of a run.
const CHOICES: [(&str, &[&str]); 33] = [
    ("disks", &["1", "2", "3", "4", "5", "24", "64"]),
    ("transfer_unit_bytes", &["4096", "65536", "1048576"]),
    ("level", &["0", "5", "6", "10"]),
    ("log", &["{ bytes = 4194304, dirty_blocks = 1024 }", "{ bytes = 16777216 }"]),
    ("machine", &["{ processors = 2 }", "{ processors = 1, busy_part = 0.4 }"]),
    ("network.sent_together_bytes", &["0", "16384"]),
    ("away", &["0", "1", "2"]),
    (
        "rebuild",
        &[
            "{ used_bytes = 1000000, idle = true }",
            "{ used_bytes = 1000000000000, sample_stripes = 50, rate_limit_mb_s = 5 }",
            "{ used_bytes = 4096, stripes_at_once = 1 }",
        ],
    ),
    ("operation", &["read", "write", "mix"]),
    ("workload.request_bytes", &["512", "5120", "65536", "300032", "2097152"]),
    ("workload.request_stripes", &["1", "2", "3"]),
    ("workload.outstanding", &["1", "2", "7", "64"]),
    ("workload.arrivals_per_second", &["0.5", "50"]),
    ("workload.offsets", &["sequential", "random"]),
    ("workload.data_set_bytes", &["1073741824", "281474976710656"]),
    ("workload.warm_up_requests", &["0", "5"]),
    ("client.processors", &["1", "3"]),
    ("client.mips", &["1", "100", "1e6"]),
    ("agent.disks", &["1", "2", "5", "64"]),
    ("agent.processors", &["1", "4"]),
    ("agent.reply", &["each_access", "whole"]),
    ("agent.cache_bytes", &["0", "536870912", "2147483648"]),
    ("network.topology", &["token_ring", "ethernet", "line", "switched"]),
    ("network.client_rate_mbit_s", &["1", "10000"]),
    ("network.segment_bytes", &["1448"]),
    ("network.packet_bytes", &["576", "9000", "1048576"]),
    ("network.control_bytes", &["1", "570"]),
    ("network.multicast", &["true", "false"]),
    ("network.control_latency_us", &["0", "700"]),
    ("disk.sequential_without_seek", &["true", "false"]),
    ("disk.access_bytes_max", &["1048576", "8388608"]),
    ("disk.write_cache_bytes", &["0", "65536", "8388608"]),
    ("parity_engine", &["{ overhead_us = 900, mb_s = 38.5 }"]),
];

fn draw(dice: &mut Dice) -> Result<Config, String> {
    let preset: &Preset = dice.pick(&PRESETS).unwrap();
    let mut table = preset.table().unwrap();
    let mut said = preset.name.to_owned();
    for (path, values) in CHOICES {
        if dice.one_in(3) {
            let value = dice.pick(values).unwrap();
            said += &format!(" {path}={value}");
            set(&mut table, path, read_value(value)).unwrap();
        }
    }
    set(&mut table, "workload.requests", 20.into()).unwrap();
    Config::from_table(table).map_err(|error| format!("{said}: {error}"))
}

#[test]
fn whatever_passes_the_checks_runs_to_its_end() {
    let mut dice = Seed(1).dice("configurations");
    let mut ran = 0;
    for _ in 0..300 {
        let Ok(config) = draw(&mut dice) else { continue };
        let shown = format!("{config:?}");
        let measures = match Model::new(config).unwrap().run(Seed(2)) {
            Ok(measures) => measures,
            Err(RunError::Overload | RunError::RebuildStarved { .. }) => continue,
        };
        ran += 1;
        for (name, value) in &measures {
            let units = ["_mb_s", "_per_second", "_ms", "_seconds", "_s_per_request"];
            let is_rate = units.iter().any(|unit| name.ends_with(unit));
            // Shares of parts count work when it is given out, not when it is done.
            let most = if is_rate || name.contains('.') { f64::INFINITY } else { 1.0 + 1e-6 };
            let possible = value.is_finite() && (0.0..=most).contains(value);
            assert!(possible, "{name} is {value}: {shown}");
        }
        let rate = measures.get("rebuild_mb_s").unwrap_or(&measures["rate_mb_s"]);
        assert!(*rate > 0.0, "{shown}");
    }
    assert!(ran > 100, "only {ran} configurations made sense");
}

#[test]
fn numbers_without_sense_are_refused() {
    let numbers = ["nan", "inf", "-1", "1e300", "0", "-0.0", "9223372036854775807"];
    let paths = [
        "disks",
        "transfer_unit_bytes",
        "workload.reads_in_mix",
        "workload.request_bytes",
        "workload.outstanding",
        "workload.arrivals_per_second",
        "workload.data_set_bytes",
        "workload.requests",
        "client.mips",
        "client.processors",
        "client.costs.protocol.instructions_per_byte",
        "agent.disks",
        "network.rate_mbit_s",
        "network.latency_us",
        "network.packet_bytes",
        "disk.seek.mean_ms",
        "disk.read_mb_s",
        "disk.write_cache_bytes",
    ];
    for path in paths {
        for number in numbers {
            let mut table = Preset::find("swift-1991").unwrap().table().unwrap();
            set(&mut table, path, read_value(number)).unwrap();
            set(&mut table, "operation", "write".into()).unwrap();
            let zero_is_fine = number.ends_with('0') || number == "-0.0";
            match Config::from_table(table) {
                Err(error) => assert!(error.to_string().len() > 20, "{path}={number}: {error}"),
                Ok(_) => assert!(zero_is_fine, "{path}={number} was taken"),
            }
        }
    }
}
