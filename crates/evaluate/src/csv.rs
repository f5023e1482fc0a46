//! Results as a table for spreadsheets: one number a line, with what it is of (RFC 4180).

use crate::record::{Evaluation, TestResult};

/// Names of the columns.
const HEAD: [&str; 9] =
    ["run", "target", "address", "test", "quantity", "of", "round", "value", "unit"];

/// The table.
#[must_use]
pub fn table(evaluation: &Evaluation) -> String {
    let mut rows = Rows { text: String::new() };
    rows.add(&HEAD.map(str::to_owned));
    let run = &evaluation.run.id;
    for report in &evaluation.targets {
        let target = [run.clone(), report.target.index.to_string(), report.target.address.clone()];
        for result in &report.results {
            rows.result(&target, result);
        }
    }
    rows.text
}

struct Rows {
    text: String,
}

impl Rows {
    fn add(&mut self, cells: &[String]) {
        let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
        self.text += &cells.join(",");
        self.text += "\r\n";
    }

    fn result(&mut self, target: &[String; 3], result: &TestResult) {
        let mut number = |quantity: &str, of: String, round: String, value: f64, unit: &str| {
            let mut cells = target.to_vec();
            let test = result.test.to_string();
            cells.extend([test, quantity.into(), of, round, value.to_string(), unit.into()]);
            self.add(&cells);
        };
        let none = String::new;
        if let Some(figure) = result.figure {
            number("figure", none(), none(), figure.value, figure.unit.name());
        }
        for (index, round) in result.rounds.iter().enumerate() {
            let round_number = || (index + 1).to_string();
            number("rate", "round".into(), round_number(), round.mb_per_s, "MB/s");
            for (place, stream) in round.streams.iter().enumerate() {
                let of = format!("stream {} {:?}", place + 1, stream.role).to_lowercase();
                number("rate", of.clone(), round_number(), stream.mb_per_s, "MB/s");
                if let Some(tape) = stream.tape {
                    number("tape waits", of.clone(), round_number(), tape.starved as f64, "");
                    number("tape waited", of, round_number(), tape.starved_s, "s");
                }
            }
        }
        for point in &result.random {
            let of = format!("depth {}", point.depth);
            let latency = point.latency;
            number("requests", of.clone(), none(), point.iops, "IOPS");
            for (name, us) in [
                ("latency p50", latency.p50_us),
                ("latency p90", latency.p90_us),
                ("latency p99", latency.p99_us),
                ("latency p99.9", latency.p99_9_us),
                ("latency max", latency.max_us),
            ] {
                number(name, of.clone(), none(), us as f64, "us");
            }
        }
        for point in &result.regions {
            let of = format!("at {:.2}", point.position);
            for (index, rate) in point.samples_mb_per_s.iter().enumerate() {
                number("rate", of.clone(), (index + 1).to_string(), *rate, "MB/s");
            }
        }
        for table in &result.pairs {
            for (index, (base, other)) in table.pairs.iter().enumerate() {
                let round = (index + 1).to_string();
                let of = |kind: &str| format!("{} {kind}", table.what);
                number("rate", of(&table.base), round.clone(), *base, "MB/s");
                number("rate", of(&table.other), round, *other, "MB/s");
            }
        }
    }
}

/// A cell, in quotes where it needs them. A leading sign that spreadsheets take for a formula gets a space.
fn quoted(cell: &str) -> String {
    let formula = cell.starts_with(['=', '+', '@', '\t', '\r'])
        || (cell.starts_with('-') && cell.parse::<f64>().is_err());
    let cell = if formula { format!(" {cell}") } else { cell.to_owned() };
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalogue::TestId,
        record::{
            TargetReport,
            tests::{result, run, target},
        },
    };

    #[test]
    fn each_number_is_a_line_with_its_place() {
        let mut at = target(0);
        at.address = "/a, \"b\"".to_owned();
        let report = TargetReport {
            target: at,
            results: vec![result(TestId::Host1, 0, 12.5)],
            findings: Vec::new(),
            sheet: Vec::new(),
        };
        let evaluation = Evaluation {
            run: run(),
            baselines: Vec::new(),
            targets: vec![report],
            requirements: Vec::new(),
            complete: true,
            resumed: 0,
            estimate_s: None,
            estimate_controls_s: 0.0,
            took_s: 1.0,
        };
        let table = table(&evaluation);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "run,target,address,test,quantity,of,round,value,unit");
        assert_eq!(lines[1], "r1,0,\"/a, \"\"b\"\"\",host.1,figure,,,12.5,MB/s");
        assert_eq!(quoted("=1+1"), " =1+1");
        assert_eq!(quoted("-5"), "-5");
    }
}
