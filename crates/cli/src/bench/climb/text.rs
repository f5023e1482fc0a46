//! A climb as tables for people.

use std::fmt::Write as _;

use super::{
    super::{parity, transport},
    record::{Climb, What},
};
use crate::size;

/// All rungs, and what limits.
pub(super) fn text(climb: &Climb) -> String {
    let mut text = format!(
        "## Memory and parity\n\n{}\n## Transport\n\n{}\n",
        parity::text(&climb.parity),
        transport::text(&climb.transport)
    );
    member(climb, &mut text);
    steps(climb, &mut text);
    end_to_end(climb, &mut text);
    text += "\n## What limits\n\n";
    for bend in &climb.bends {
        let _ = writeln!(text, "- {}", bend.sentence);
        if let Some(verdict) = &bend.verdict {
            let _ = writeln!(text, "  {}", verdict.sentence);
        }
    }
    for verdict in &climb.verdicts {
        let _ = writeln!(text, "- {}", verdict.sentence);
    }
    text
}

// Writing to a string cannot fail.

fn member(climb: &Climb, text: &mut String) {
    *text += "## One member\n\n\
        |       | request | in flight |  MB/s |    IOPS | p50 us | p99 us |\n\
        | ----- | ------: | --------: | ----: | ------: | -----: | -----: |\n";
    for one in &climb.member {
        let _ = writeln!(
            text,
            "| {:<5} | {:>7} | {:>9} | {:>5.0} | {:>7.0} | {:>6} | {:>6} |",
            way(one.write),
            size::show(one.request_bytes.into()),
            one.depth,
            one.point.median_mb_per_s,
            one.point.figures.iops,
            one.point.figures.latency_us_p50,
            one.point.figures.latency_us_p99
        );
    }
}

fn steps(climb: &Climb, text: &mut String) {
    let (depth, len) = (climb.depth, size::show(climb.request_bytes.into()));
    let _ = write!(
        text,
        "\n## One to all members, {len}, {depth} in flight\n\n\
         | what             | members |       |  MB/s | the line | of it | processors busy | others |\n\
         | ---------------- | ------: | ----- | ----: | -------: | ----: | --------------: | -----: |\n"
    );
    let mut all: Vec<_> = climb.steps.iter().collect();
    all.sort_by_key(|step| {
        let place = match step.what {
            What::Transport => (0, 0),
            What::Together => (1, 0),
            What::Level(level) => (2, level),
        };
        (place, !step.write, step.members)
    });
    for step in all {
        let what = match step.what {
            What::Transport => "bare TCP".to_owned(),
            What::Together => "at once".to_owned(),
            What::Level(level) => format!("volume, level {level}"),
        };
        let busy = step.point.as_ref().map_or_else(
            || format!("{:>15} | {:>6}", "", ""),
            |point| format!("{:>15.2} | {:>6.2}", point.processors_busy, point.processors_others),
        );
        let _ = writeln!(
            text,
            "| {what:<16} | {:>7} | {:<5} | {:>5.0} | {:>8.0} | {:>5.2} | {busy} |",
            step.members,
            way(step.write),
            step.mb_per_s,
            step.line_mb_per_s,
            step.of_line,
        );
    }
}

fn end_to_end(climb: &Climb, text: &mut String) {
    let (level, members) = (climb.level, climb.count());
    let _ = write!(
        text,
        "\n## End to end: an NBD export of level {level} on {members} members, {} in flight\n\n\
         |       | request |  MB/s |    IOPS | p50 us | p99 us | client CPU s/GB | engine CPU s/GB | all CPU s/GB |\n\
         | ----- | ------: | ----: | ------: | -----: | -----: | --------------: | --------------: | -----------: |\n",
        climb.depth
    );
    for one in &climb.end_to_end {
        let _ = writeln!(
            text,
            "| {:<5} | {:>7} | {:>5.0} | {:>7.0} | {:>6} | {:>6} | {:>15.2} | {:>15.2} | {:>12.2} |",
            way(one.write),
            size::show(one.request_bytes.into()),
            one.point.median_mb_per_s,
            one.point.figures.iops,
            one.point.figures.latency_us_p50,
            one.point.figures.latency_us_p99,
            one.point.figures.client_cpu_s_per_gb,
            one.point.engine_cpu_s_per_gb.unwrap_or(f64::NAN),
            one.point.figures.cpu_s_per_gb()
        );
    }
}

const fn way(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}
