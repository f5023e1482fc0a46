//! Arrays with disks away, and their rebuilds.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test, which shows its figures")]

mod degraded;
mod rebuild;

use netraid_model::{
    Config, Preset,
    config::{ConfigError, read_value, set},
};

/// A disk's rate: disks stand for targets in memory behind links of 200 Mbit/s each.
const LINK_MB_S: f64 = 25.0;
/// The client limits nothing.
const BEHIND_LINKS: [&str; 9] = [
    "network.rate_mbit_s=25000",
    "disk.read_mb_s=25",
    "disk.write_mb_s=25",
    "disk.overhead_us=0",
    "disk.write_cache_bytes=0",
    "client.mips=40000",
    "workload.offsets=sequential",
    "workload.outstanding=16",
    "operation=read",
];

/// So many disks behind links, with these settings.
fn config(disks: u8, settings: &[&str]) -> Result<Config, ConfigError> {
    let mut table = Preset::find("today").unwrap().table().unwrap();
    set(&mut table, "disks", disks.into()).unwrap();
    for setting in BEHIND_LINKS.iter().chain(settings) {
        let (path, value) = setting.split_once('=').unwrap();
        set(&mut table, path, read_value(value)).unwrap();
    }
    Config::from_table(table)
}
