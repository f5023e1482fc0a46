//! Arrays with a log, mirrors of pairs, and hosts that share a machine or a link.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use netraid_model::{
    Config, Measures, Model, Preset,
    config::{read_value, set},
};
use netraid_sim::Seed;

/// MB a second of one link's data.
const LINK: f64 = 25.0;

/// Four targets behind links of 200 Mbit/s, disks and processors that nobody waits for; 1 MiB in order, 16 at once.
fn run(settings: &[(&str, &str)]) -> Measures {
    let mut table = Preset::find("today").unwrap().table().unwrap();
    let common = [
        ("disks", "4"),
        ("client.mips", "1e9"),
        ("agent.mips", "1e9"),
        ("network.rate_mbit_s", "200"),
        ("network.client_rate_mbit_s", "100000"),
        ("network.header_bytes_per_packet", "0"),
        ("network.latency_us", "50"),
        ("disk.overhead_us", "0"),
        ("disk.read_mb_s", "1e6"),
        ("disk.write_mb_s", "1e6"),
        ("workload.request_bytes", "1048576"),
        ("workload.outstanding", "16"),
        ("workload.offsets", "sequential"),
        ("workload.data_set_bytes", "67108864"),
        ("operation", "write"),
    ];
    for (path, value) in common.iter().chain(settings) {
        set(&mut table, path, read_value(value)).unwrap();
    }
    if settings.iter().any(|(path, _)| *path == "workload.request_bytes") {
        set(&mut table, "workload.offsets", "random".into()).unwrap();
    }
    table.get_mut("workload").unwrap().as_table_mut().unwrap().remove("request_stripes");
    Model::new(Config::from_table(table).unwrap()).unwrap().run(Seed(1)).unwrap()
}

const LOG: (&str, &str) = ("log", "{ bytes = 16777216 }");
const SMALL: (&str, &str) = ("workload.request_bytes", "4096");

#[test]
fn writes_in_a_row_are_whole_stripes_with_a_log_and_read_before_without() {
    let (with, without) = (run(&[LOG])["rate_mb_s"], run(&[])["rate_mb_s"]);
    // Three links of four have data; what the log says of each stripe is little. Without a log, check data of the stripe that
    // two requests share is written twice: sixteen chunks of data with seven or six of check data instead of five and a third.
    assert!((2.90..=3.0).contains(&(with / LINK)), "with a log {with}");
    assert!((without / LINK - 4.0 * 16.0 / (16.0 + 6.67)).abs() < 0.05, "without {without}");
    let reads = [("operation", "read"), LOG];
    assert!((run(&reads)["rate_mb_s"] / (4.0 * LINK) - 1.0).abs() < 0.02);
}

#[test]
fn whole_stripes_are_as_fast_with_a_disk_away() {
    let away = run(&[LOG, ("away", "1")])["rate_mb_s"];
    assert!((away / LINK - 3.0).abs() < 0.15, "{away}");
}

#[test]
fn small_writes_go_at_the_rate_of_one_link_until_the_log_is_full() {
    // All of the run fits into half of the log: two members have each batch.
    let few = [LOG, SMALL, ("log", "{ bytes = 268435456 }"), ("workload.requests", "4000")];
    let within = run(&few)["rate_mb_s"];
    assert!((0.7..1.0).contains(&(within / LINK)), "within the log {within}");
    // Then each block is also read, logged as parity and written home.
    let sustained = run(&[LOG, SMALL, ("workload.requests", "40000")])["rate_mb_s"];
    assert!(sustained < 0.75 * within, "{sustained} of {within}");
    assert!(sustained > 0.2 * within, "{sustained} of {within}");
}

#[test]
fn a_longer_run_with_a_log_goes_on_at_the_same_rate() {
    let rate = |requests| {
        run(&[LOG, SMALL, ("workload.requests", requests), ("workload.warm_up_requests", "10000")])
            ["rate_mb_s"]
    };
    let (short, long) = (rate("20000"), rate("60000"));
    assert!((long / short - 1.0).abs() < 0.15, "{short} {long}");
}

#[test]
fn pairs_write_everything_twice_and_read_it_once() {
    let ten = ("level", "10");
    let (write, read) = (run(&[ten])["rate_mb_s"], run(&[ten, ("operation", "read")])["rate_mb_s"]);
    assert!((write / (2.0 * LINK) - 1.0).abs() < 0.03, "{write}");
    assert!((read / (4.0 * LINK) - 1.0).abs() < 0.03, "{read}");
    let small = run(&[ten, SMALL, ("workload.requests", "4000")])["rate_mb_s"];
    assert!(small / (2.0 * LINK) > 0.7, "nothing is read before: {small}");
}

#[test]
fn a_clients_link_of_its_own_limits_what_all_members_have() {
    let slow = ("network.client_rate_mbit_s", "400");
    let read = run(&[slow, ("operation", "read")])["rate_mb_s"];
    assert!((read / 50.0 - 1.0).abs() < 0.02, "{read}");
}

#[test]
fn hosts_on_one_machine_share_its_processors() {
    let fast = [
        ("network.rate_mbit_s", "1000000"),
        ("client.mips", "1000"),
        ("agent.mips", "1000"),
        ("level", "0"),
    ];
    let own = run(&[fast.as_slice(), &[("agent.processors", "1")]].concat());
    let shared = run(&[fast.as_slice(), &[("machine", "{ processors = 1 }")]].concat());
    assert!(shared["client_cpu"] > 0.98, "{shared:?}");
    // Client and agents spend as much as each other: four agents beside the client, and all one after the other.
    let ratio = shared["rate_mb_s"] / own["rate_mb_s"];
    assert!((0.4..0.6).contains(&ratio), "{ratio}");
}

#[test]
fn a_machine_that_is_busy_half_of_its_time_does_half_as_much() {
    let fast = [
        ("network.rate_mbit_s", "1000000"),
        ("client.mips", "1000"),
        ("agent.mips", "1000"),
        ("level", "0"),
    ];
    let rate = |machine| run(&[fast.as_slice(), &[("machine", machine)]].concat())["rate_mb_s"];
    let half = rate("{ processors = 1, busy_part = 0.5 }") / rate("{ processors = 1 }");
    assert!((half / 0.5 - 1.0).abs() < 0.02, "{half}");
}

#[test]
fn an_agent_that_answers_requests_together_has_nothing_to_do_until_the_next_come() {
    // Each packet is 10 us of work of the only agent, two of them a request; both ways take 100 us together.
    let settings = [
        ("disks", "1"),
        ("level", "0"),
        ("operation", "read"),
        SMALL,
        ("network.rate_mbit_s", "1000000"),
        ("network.client_rate_mbit_s", "1000000"),
        ("agent.mips", "1000"),
        ("agent.processors", "1"),
        ("agent.costs", "{ all = { instructions_per_packet = 10000 } }"),
    ];
    let busy = |together| {
        let together = [("network.sent_together_bytes", together)];
        run(&[settings.as_slice(), &together].concat())["requests_per_second"] * 20e-6
    };
    assert!(busy("0") > 0.97, "others come while it answers one: {}", busy("0"));
    let together = busy("16384");
    assert!((together / (320.0 / 420.0) - 1.0).abs() < 0.03, "{together}");
    assert!(busy("100") > 0.97, "longer ones leave when they are ready: {}", busy("100"));
}

#[test]
fn check_data_costs_by_the_piece() {
    let cost = ("client.costs", "{ check = { instructions_per_check_piece = 1000 } }");
    let seconds = |settings: &[(&str, &str)]| {
        let mips = ("client.mips", "1000");
        run(&[&[LOG, cost, mips], settings].concat())["client_s_per_request"] * 1e6
    };
    // 1 MiB is five stripes and a third of three chunks of 64 KiB, and nobody writes a stripe twice.
    assert!((seconds(&[]) / (16.0 / 3.0) - 1.0).abs() < 0.05, "{}", seconds(&[]));
    // A block of 4 KiB is one row, or less where a stripe has many of them.
    let small = seconds(&[SMALL, ("workload.requests", "20000")]);
    assert!((0.3..1.05).contains(&small), "{small}");
    let mirror = seconds(&[("level", "10")]);
    assert!(mirror < 1e-9, "copies are not computed: {mirror}");
}
