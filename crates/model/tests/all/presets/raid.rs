//! RAID-II and its predecessor: parts, and what they make together.

use super::{point, within};

fn rate(settings: &[&str]) -> f64 {
    point("raid-ii", settings)["rate_mb_s"].mean
}

const FAST_DISKS: [&str; 4] =
    ["disk.seek.mean_ms=0", "disk.rotation.mean_ms=0", "disk.read_mb_s=1e6", "disk.write_mb_s=1e6"];
const FAST_NETWORK: [&str; 2] = ["network.rate_mbit_s=1e9", "network.overhead_us_per_packet=0"];

/// All stations but one as if they were not there.
fn alone(station: &str) -> Vec<String> {
    let others = ["string", "controller", "bus", "crossbar_port"];
    let others = others.into_iter().filter(|other| *other != station);
    let fast = |other| ["read", "write"].map(|way| format!("stations.{other}.{way}_mb_s=1e6"));
    others.flat_map(fast).collect()
}

#[test]
fn end_to_end() {
    let (read, write) = (rate(&["operation=read"]), rate(&["operation=write"]));
    within("reads, MB/s", read, 20.9, 0.15);
    within("full-stripe writes, MB/s", write, 18.2, 0.15);
    assert!(write < read);
}

#[test]
fn the_climb_from_part_to_part() {
    let climb = [
        ("string", "disks=3", 2.6, 3.1),
        ("controller", "disks=6", 5.3, 5.6),
        ("bus with two controllers", "disks=12", 6.9, 5.9),
    ];
    for (part, disks, read, write) in climb {
        let mut settings = vec!["level=0", disks, "workload.outstanding=4"];
        if disks == "disks=12" {
            settings.extend(["stations.bus.disks=12", "stations.crossbar_port.disks=12"]);
        }
        for (operation, published) in [("operation=read", read), ("operation=write", write)] {
            settings.push(operation);
            within(&format!("{part}, {operation}, MB/s"), rate(&settings), published, 0.15);
            settings.pop();
        }
    }
    let strings = ["disks=3", "disks=12", "disks=24"]
        .map(|disks| rate(&["operation=read", "level=0", "workload.outstanding=4", disks]));
    within("four strings against one", strings[1] / strings[0], 4.0, 0.1);
    within("eight strings against one", strings[2] / strings[0], 8.0, 0.1);
}

#[test]
fn crossbar_ports_network_and_parity_engine_alone() {
    let alone_port = alone("crossbar_port");
    let mut settings: Vec<&str> = alone_port.iter().map(String::as_str).collect();
    settings.extend(FAST_DISKS);
    settings.extend(FAST_NETWORK);
    settings.extend(["operation=read", "level=0", "disks=18"]);
    within("three crossbar ports, MB/s", rate(&settings), 114.0, 0.15);

    let nothing = alone("");
    let mut settings: Vec<&str> = nothing.iter().map(String::as_str).collect();
    settings.extend(FAST_DISKS);
    let mut network = settings.clone();
    network.extend(["operation=read", "level=0", "disks=1", "workload.request_bytes=122880"]);
    network.push("disk.access_bytes_max=1048576");
    within("packets of 120 KB, of the peak", rate(&network) / 38.5, 0.75, 0.05);

    settings.extend(FAST_NETWORK);
    settings.push("operation=write");
    // 23 units of data and one of parity, at 38.5 MB/s after 0.9 ms.
    let unit = 65536.0;
    let seconds = 0.9e-3 + 24.0 * unit / 38.5e6;
    within("parity engine, MB/s", rate(&settings), 23.0 * unit / 1e6 / seconds, 0.05);
}

#[test]
fn the_predecessor() {
    let old = |operation: &str| point("raid-i", &[operation])["rate_mb_s"].mean;
    let (read, write) = (old("operation=read"), old("operation=write"));
    within("predecessor, reads, MB/s", read, 2.4, 0.15);
    within("predecessor, writes, MB/s", write, 1.2, 0.15);
    within("reads against the predecessor's", rate(&["operation=read"]) / read, 8.7, 0.15);
    within("writes against the predecessor's", rate(&["operation=write"]) / write, 15.2, 0.15);
}
