//! VISA 1998: rates from what the client's processor spends.

use super::{point, within};

const LOCAL: [&str; 3] = [
    "client.costs.network.instructions_per_byte=0",
    "client.costs.copy.instructions_per_byte=0",
    "client.costs.copy_read.instructions_per_byte=0",
];

fn mbit_s(settings: &[&str]) -> f64 {
    point("visa-1998", settings)["rate_mb_s"].mean * 8.0
}

/// The settings of a local disk, and an operation.
fn local(operation: &'static str) -> Vec<&'static str> {
    LOCAL.into_iter().chain([operation]).collect()
}

#[test]
fn rates_follow_from_processor_costs() {
    let write = mbit_s(&["operation=write"]);
    within("writes, Mbit/s", write, 72.0, 0.15);
    within("writes to a local disk, Mbit/s", mbit_s(&local("operation=write")), 110.0, 0.15);
    let read = mbit_s(&["operation=read"]);
    within("reads, Mbit/s", read, 71.0, 0.15);
    within("reads from a local disk, Mbit/s", mbit_s(&local("operation=read")), 133.0, 0.15);
    within("writes, of local", write / mbit_s(&local("operation=write")), 0.65, 0.15);
    let without_copy = mbit_s(&["operation=write", "client.costs.copy.instructions_per_byte=0"]);
    within(
        "without a copy, of local",
        without_copy / mbit_s(&local("operation=write")),
        0.81,
        0.15,
    );
}

#[test]
fn processor_seconds_a_gigabyte() {
    let seconds = |settings: &[&str], part: &str| {
        let results = point("visa-1998", settings);
        results[part].mean / (results["rate_mb_s"].mean * 1e6) * f64::from(1 << 30)
    };
    within("seconds a GB", seconds(&["operation=write"], "client_cpu"), 131.0, 0.15);
    within("of which copy", seconds(&["operation=write"], "client_cpu.copy"), 25.0, 0.15);
    let network = seconds(&["operation=write"], "client_cpu.network");
    let files = seconds(&["operation=write"], "client_cpu.file_system");
    within("network against file system", network / files, 0.5, 0.15);
    let tcp = ["operation=write", "client.costs.tcp.instructions_per_byte=27.9"];
    within("with TCP", seconds(&tcp, "client_cpu"), 161.0, 0.15);
}
