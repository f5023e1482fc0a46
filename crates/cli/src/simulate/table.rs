//! Points as a table for people.

use netraid_model::Interval;
use serde_json::Value;

use super::points::PointResults;
use crate::size;

/// Results that the table has; all others are in the machine-readable document.
const COLUMNS: [(&str, &str); 8] = [
    ("rate_mb_s", "MB/s"),
    ("client_cpu", "client CPU"),
    ("disk", "disks"),
    ("network", "network"),
    ("latency_ms", "latency ms"),
    ("latency_p99_ms", "p99 ms"),
    ("rebuild_mb_s", "rebuild MB/s"),
    ("rebuild_seconds", "rebuild s"),
];

/// The points in lines, with means and half of their confidence intervals.
pub(crate) fn show(points: &[PointResults], swept: &[&str]) -> String {
    let rows = rows(points, swept);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..).map_while(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells.map(|(cell, width)| format!("{cell:>width$}")).collect();
        cells.join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

/// The table's cells, its head first.
pub(crate) fn rows(points: &[PointResults], swept: &[&str]) -> Vec<Vec<String>> {
    let known = ["disks", "transfer_unit_bytes", "client.mips", "operation"];
    let others: Vec<&str> = swept.iter().copied().filter(|path| !known.contains(path)).collect();
    // Without a rebuild there are no results of one.
    let is_known = |name: &str| points.iter().any(|point| point.results.contains_key(name));
    let columns: Vec<_> = COLUMNS.into_iter().filter(|(name, _)| is_known(name)).collect();
    let fixed = ["operation", "disks", "unit", "client MIPS"].into_iter();
    let head = fixed.chain(others.iter().copied()).chain(columns.iter().map(|(_, title)| *title));
    let mut rows = vec![head.map(str::to_owned).collect()];
    for point in points {
        let get = |name: &str| point.parameters.get(name).unwrap_or(&Value::Null);
        let mut row = vec![
            text(get("operation")),
            text(get("disks")),
            size::show(get("transfer_unit_bytes").as_u64().unwrap_or_default()),
            text(get("client_mips")),
        ];
        row.extend(others.iter().map(|path| text(get(path))));
        let cells = columns.iter().map(|(name, _)| {
            point.results.get(*name).map_or(String::new(), |interval| cell(name, interval))
        });
        row.extend(cells);
        rows.push(row);
    }
    rows
}

fn text(value: &Value) -> String {
    match (value.as_str(), value.as_f64()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(number)) => number.to_string(),
        (None, None) => value.to_string(),
    }
}

fn cell(name: &str, interval: &Interval) -> String {
    let half = interval.high - interval.mean;
    if name.ends_with("_mb_s") || name.starts_with("latency") || name.ends_with("_seconds") {
        return format!("{:.2} ±{half:.2}", interval.mean);
    }
    format!("{:.1}% ±{:.1}", interval.mean * 100.0, half * 100.0)
}
