//! A run for people, as text.

use std::fmt::Write as _;

use netraid_evaluate::{
    estimate::Estimate,
    record::{Baseline, BaselineKind, Evaluation, Figure, Finding, FindingState, TargetReport},
};

use crate::size;

/// Seconds as people say them.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// How long a run takes.
pub(super) fn estimate(estimate: Estimate) -> String {
    let Estimate { seconds, controls_s } = estimate;
    let text = time(seconds);
    if controls_s > 0.0 {
        let controls = time(controls_s);
        return format!(
            "{text}, and {controls} more if trick.flush finds bursts faster and needs its controls"
        );
    }
    text
}

/// A figure with its unit.
pub(super) fn figure(figure: Figure) -> String {
    let Figure { value, unit } = figure;
    match value {
        value if value >= 100.0 => format!("{value:.0} {}", unit.name()),
        value if value >= 10.0 => format!("{value:.1} {}", unit.name()),
        value => format!("{value:.2} {}", unit.name()),
    }
}

/// What a baseline is of.
pub(super) fn baseline(baseline: &Baseline) -> String {
    let place = &baseline.place;
    match baseline.kind {
        BaselineKind::Memory => "memory copy".to_owned(),
        BaselineKind::Loopback => "TCP over loopback".to_owned(),
        BaselineKind::Network => format!("network to {place}"),
        BaselineKind::DiskWrite => format!("writing to {place}"),
        BaselineKind::DiskRead => format!("reading from {place}"),
    }
}

/// How a finding begins.
pub(super) const fn mark(state: FindingState) -> &'static str {
    match state {
        FindingState::Found => "FOUND",
        FindingState::Note => "note",
        FindingState::Clear => "clear",
        FindingState::CouldNotTell => "unknown",
    }
}

/// All of it.
pub(super) fn evaluation(evaluation: &Evaluation) -> String {
    let run = &evaluation.run;
    let mut text = format!(
        "run {} of {} on {}, netraid {}\n",
        run.id, run.started_at, run.machine.host, run.netraid
    );
    for line in &evaluation.baselines {
        let _ = writeln!(text, "  {:<28} {:>8.0} MB/s", baseline(line), line.mb_per_s);
    }
    for report in &evaluation.targets {
        text += "\n";
        target(&mut text, report);
    }
    if !evaluation.requirements.is_empty() {
        text += "\nrequirements\n";
    }
    for verdict in &evaluation.requirements {
        let met = verdict.mark();
        let several = evaluation.targets.len() > 1;
        let of = if several { format!("target {}: ", verdict.target) } else { String::new() };
        let _ = writeln!(text, "  {met:<14} {of}{}; found {}", verdict.requirement, verdict.found);
    }
    if let Some(expected) = expected(evaluation) {
        let _ = writeln!(text, "\ntook {}, {expected}", time(evaluation.took_s));
    }
    text
}

/// What the time that a run took is held against.
pub(super) fn expected(evaluation: &Evaluation) -> Option<String> {
    let text = format!("{} were expected", time(evaluation.estimate_s?));
    Some(match evaluation.estimate_controls_s {
        controls_s if controls_s > 0.0 => {
            format!("{text}, and {} more with the controls of trick.flush", time(controls_s))
        }
        _ => text,
    })
}

fn target(text: &mut String, report: &TargetReport) {
    let info = &report.target;
    let system = info.file_system.as_deref().map(|name| format!(", {name}")).unwrap_or_default();
    let kind = format!("{:?}", info.kind).to_lowercase();
    let capacity = size::show(info.capacity_bytes);
    let _ = writeln!(text, "target {}: {} ({kind}{system}, {capacity})", info.index, info.address);
    for line in &report.sheet {
        let value = line.figure.map(figure).unwrap_or_default();
        let of_best = line.of_best.map(|share| format!(" {:.0}%", share * 100.0));
        let limit = line.limit.as_deref().map(|part| format!("  limit: {part}"));
        let remarks = line.remarks.join("; ");
        let row = format!(
            "  {:<17} {:<44} {value:>13}{:<5}{}  {remarks}",
            line.test,
            line.title,
            of_best.unwrap_or_default(),
            limit.unwrap_or_default()
        );
        *text += row.trim_end();
        *text += "\n";
    }
    for Finding { state, text: said, evidence, .. } in &report.findings {
        let _ = writeln!(text, "  {:<8} {said}", mark(*state));
        if matches!(state, FindingState::Found | FindingState::CouldNotTell) {
            for line in evidence {
                let _ = writeln!(text, "             {line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netraid_evaluate::catalogue::Unit;

    #[test]
    fn figures_have_three_digits() {
        let shown = |value| figure(Figure { value, unit: Unit::MbPerS });
        assert_eq!(
            [shown(1.234), shown(12.34), shown(1234.5)],
            ["1.23 MB/s", "12.3 MB/s", "1234 MB/s"]
        );
        assert_eq!([time(12.3), time(600.0), time(7200.0)], ["12 s", "10 min", "2.0 h"]);
    }
}
