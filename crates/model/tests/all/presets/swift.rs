//! Swift 1991: the simulated token ring.

use super::{near, point, within};

fn rate(settings: &[&str]) -> f64 {
    point("swift-1991", settings)["rate_mb_s"].mean
}

#[test]
fn rates_and_busy_fractions_of_the_base_case() {
    let read = point("swift-1991", &["operation=read"]);
    within("reads, MB/s", read["rate_mb_s"].mean, 20.0, 0.10);
    near("reads, client CPU", read["client_cpu"].mean, 0.30);
    near("reads, disks", read["disk"].mean, 0.58);
    let write = point("swift-1991", &["operation=write"]);
    within("writes, MB/s", write["rate_mb_s"].mean, 9.0, 0.10);
    near("writes, client CPU", write["client_cpu"].mean, 0.60);
    near("writes, disks", write["disk"].mean, 0.27);
    let mix = point("swift-1991", &["operation=mix"])["rate_mb_s"].mean;
    assert!(mix < read["rate_mb_s"].mean && mix > write["rate_mb_s"].mean);
}

/// Coefficient of determination of a straight line through the points.
fn linearity(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let xy = sum(&|point| (point.0 - x) * (point.1 - y));
    let (xx, yy) = (sum(&|point| (point.0 - x).powi(2)), sum(&|point| (point.1 - y).powi(2)));
    xy * xy / (xx * yy)
}

#[test]
fn the_rate_grows_almost_linearly_with_disks_and_transfer_unit() {
    let curve = |operation: &str, parameter: &str, values: &[u32]| -> Vec<(f64, f64)> {
        let at = |value: &u32| {
            let settings = [format!("operation={operation}"), format!("{parameter}={value}")];
            (f64::from(*value), rate(&settings.each_ref().map(String::as_str)))
        };
        values.iter().map(at).collect()
    };
    let units = [4096, 8192, 16384, 32768, 65536];
    let disks = curve("read", "disks", &[1, 4, 8, 16, 24, 32]);
    assert!(linearity(&disks) > 0.99, "{disks:?}");
    let doubled = disks[5].1 / disks[3].1;
    assert!(doubled > 1.8, "from 16 to 32 disks {doubled}");
    let unit = curve("read", "transfer_unit_bytes", &units);
    assert!(linearity(&unit) > 0.97, "{unit:?}");
    // The client's processor bends the curves of writes.
    let disks = curve("write", "disks", &[3, 4, 8, 16, 24, 32]);
    assert!(linearity(&disks) > 0.93, "{disks:?}");
    let unit = curve("write", "transfer_unit_bytes", &units);
    assert!(unit.is_sorted_by(|a, b| a.1 < b.1), "{unit:?}");
}

#[test]
fn writes_follow_the_clients_processor_and_reads_do_not() {
    let [slow, base, fast] = ["50", "100", "200"].map(|mips| format!("client.mips={mips}"));
    let ratio = |operation: &str, a: &str, b: &str| rate(&[operation, a]) / rate(&[operation, b]);
    let writes = ratio("operation=write", &fast, &base);
    assert!((1.3..1.5).contains(&writes), "twice the processor, writes {writes}");
    let reads = ratio("operation=read", &fast, &base);
    assert!((1.0..1.05).contains(&reads), "twice the processor, reads {reads}");
    assert!(ratio("operation=write", &slow, &base) < 0.7);
}

#[test]
fn exponential_arrivals_are_served_one_after_another() {
    // Half of what the base case reads: 10 MB/s is 9.84 requests of 31 units a second.
    let settings = ["operation=read", "workload.arrivals_per_second=9.84"];
    let half = point("swift-1991", &settings);
    within("offered rate, MB/s", half["rate_mb_s"].mean, 10.0, 0.15);
    // M/G/1 with a service of about 48 ms at 47%, that hardly varies: waits of about 22 ms.
    let latency = half["latency_ms"].mean;
    assert!((58.0..85.0).contains(&latency), "{latency} ms");
}
