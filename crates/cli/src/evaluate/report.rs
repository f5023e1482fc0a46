//! An evaluation as a page that is made to be compared: verdicts and findings first, then a score sheet with
//! a column for each target, plots, and what every result rests on.

use anyhow::Result;
use netraid_evaluate::{
    catalogue::{TestId, Unit},
    record::{
        BaselineKind, Evaluation, Figure, Finding, FindingKind, FindingState, Outcome, PairTable,
        RandomPoint, RedundancyState, Role, SheetLine, Stream, TargetInfo, TargetKind,
        TargetReport, TestResult,
    },
    requirements::Tally,
};

use crate::{
    page::{Axis, Bar, Bars, Chart, Page, Scale, Series, Spread, Tone},
    size,
};

/// Characters of a target's name; longer ones lose their middle.
const NAME_CHARS: usize = 48;

/// The page.
///
/// # Errors
/// When a figure cannot be drawn.
pub(super) fn page(evaluation: &Evaluation) -> Result<String> {
    let mut page = Page::new("netraid evaluate");
    summary(evaluation, &mut page);
    requirements(evaluation, &mut page);
    findings(evaluation, &mut page);
    scores(evaluation, &mut page);
    rates(evaluation, &mut page);
    random(evaluation, &mut page)?;
    regions(evaluation, &mut page)?;
    for report in &evaluation.targets {
        target(report, &mut page);
    }
    baselines(evaluation, &mut page);
    run(evaluation, &mut page);
    Ok(page.finish())
}

fn summary(evaluation: &Evaluation, page: &mut Page) {
    let run = &evaluation.run;
    let resumed = match evaluation.resumed {
        0 => String::new(),
        1 => ", interrupted and resumed once".to_owned(),
        times => format!(", interrupted and resumed {times} times"),
    };
    let estimate = super::show::expected(evaluation).map(|expected| format!(" ({expected})"));
    page.paragraph(&format!(
        "Run {} of {}, {} on {}; {:.0} s{}{resumed}.",
        run.id,
        run.started_at,
        counted(evaluation.targets.len(), "target"),
        run.machine.host,
        evaluation.took_s,
        estimate.unwrap_or_default()
    ));
    if !evaluation.complete {
        let text = "It was not run to its end: what is missing here is not known.".to_owned();
        page.notice(Tone::Bad, "Incomplete", &[text]);
    }
}

fn requirements(evaluation: &Evaluation, page: &mut Page) {
    if evaluation.requirements.is_empty() {
        return;
    }
    let tally = Tally::of(&evaluation.requirements);
    page.heading("Requirements");
    let (tone, title) = match (tally.missed, tally.untold) {
        (0, 0) => (Tone::Good, "Pass"),
        (0, _) => (Tone::Note, "Could not tell"),
        (_, _) => (Tone::Bad, "Fail"),
    };
    page.notice(tone, title, &[format!("Of the requirements, {}.", tally.text())]);
    let mut rows = vec![row(["target", "requirement", "found", ""])];
    for verdict in &evaluation.requirements {
        rows.push(vec![
            name_of(evaluation, verdict.target),
            verdict.requirement.clone(),
            verdict.found.clone(),
            verdict.mark().to_owned(),
        ]);
    }
    page.table(&rows);
}

fn findings(evaluation: &Evaluation, page: &mut Page) {
    page.heading("Findings");
    let of = |state: FindingState| {
        evaluation.targets.iter().flat_map(move |report| {
            let found = report.findings.iter().filter(move |finding| finding.state == state);
            found.map(move |finding| (report, finding))
        })
    };
    let (found, untold) = (of(FindingState::Found).count(), of(FindingState::CouldNotTell).count());
    let nothing = "Nothing that was looked for was found to speak against a target or its figures.";
    match (found, untold) {
        (0, 0) => page.notice(Tone::Good, "No trick was found", &[nothing.to_owned()]),
        (0, 1..) => {
            let text = format!("{nothing} {untold} times the measurements do not say.");
            page.notice(Tone::Note, "Not everything could be told", &[text]);
        }
        (1.., _) => {}
    }
    let shown = [
        (FindingState::Found, Tone::Bad),
        (FindingState::Note, Tone::Note),
        (FindingState::CouldNotTell, Tone::Note),
    ];
    for (state, tone) in shown {
        for (report, finding) in of(state) {
            notice(tone, report, finding, page);
        }
    }
    let mut rows = vec![row(["target", "looked for, and not there", "", "threshold"])];
    for (report, finding) in of(FindingState::Clear) {
        rows.push(vec![
            name(&report.target),
            kind_of(finding.kind).to_owned(),
            finding.text.clone(),
            finding.threshold.clone(),
        ]);
    }
    if rows.len() > 1 {
        page.table(&rows);
    }
}

fn notice(tone: Tone, report: &TargetReport, finding: &Finding, page: &mut Page) {
    let doubt = match finding.state {
        FindingState::CouldNotTell => " (could not tell)",
        FindingState::Found | FindingState::Note | FindingState::Clear => "",
    };
    let title = format!("{}: {}{doubt}", name(&report.target), kind_of(finding.kind));
    let mut lines = vec![finding.text.clone()];
    lines.extend(finding.evidence.iter().cloned());
    if !finding.threshold.is_empty() {
        lines.push(format!("Threshold: {}", finding.threshold));
    }
    page.notice(tone, &title, &lines);
}

/// Tests by number, a column for each target.
fn scores(evaluation: &Evaluation, page: &mut Page) {
    page.heading("Score sheet");
    page.paragraph(
        "By test, for each target: its figure, with several targets also of the best one's, and what limits it.",
    );
    let mut rows = vec![row(["test", "what"])];
    rows[0].extend(evaluation.targets.iter().map(|report| name(&report.target)));
    for test in &evaluation.run.settings.tests {
        let mut cells = vec![test.name().to_owned(), test.test().title.to_owned()];
        cells.extend(evaluation.targets.iter().map(|report| {
            report.sheet.iter().find(|line| line.test == *test).map_or(String::new(), score)
        }));
        rows.push(cells);
    }
    page.table(&rows);
}

fn score(line: &SheetLine) -> String {
    let Some(figure) = &line.figure else {
        return line.remarks.first().cloned().unwrap_or_else(|| "-".to_owned());
    };
    let of_best = line.of_best.map(|part| format!(" ({:.0}%)", part * 100.0));
    let limit = line.limit.as_ref().map(|limit| format!(" {limit}"));
    format!("{}{}{}", shown(figure), of_best.unwrap_or_default(), limit.unwrap_or_default())
}

/// Rates as bars, a group for each test.
fn rates(evaluation: &Evaluation, page: &mut Page) {
    for (unit, title) in [(Unit::MbPerS, "Rates, MB/s"), (Unit::Iops, "Random requests a second")] {
        let mut bars = Vec::new();
        for test in &evaluation.run.settings.tests {
            for (place, report) in evaluation.targets.iter().enumerate() {
                let figure = result(report, *test).and_then(|result| result.figure);
                let Some(figure) = figure.filter(|figure| figure.unit == unit) else { continue };
                let Figure { value, .. } = figure;
                let name = test.name().to_owned();
                bars.push(Bar { name, of: place, value, shown: number(value) });
            }
        }
        if !bars.is_empty() {
            let series = evaluation.targets.iter().map(|report| name(&report.target)).collect();
            page.bars(&Bars { title: title.to_owned(), bars, series });
        }
    }
}

fn random(evaluation: &Evaluation, page: &mut Page) -> Result<()> {
    let has = |test| {
        let results = evaluation.targets.iter().filter_map(move |report| result(report, test));
        results.filter(|result| !result.random.is_empty()).count() > 0
    };
    let tests = [(TestId::RandomRead, "Random reads"), (TestId::RandomWrite, "Random writes")];
    for (test, title) in tests {
        if !has(test) {
            continue;
        }
        page.heading(title);
        let chart = |name_of_chart: &str, y: &str, of: fn(&RandomPoint) -> f64| {
            let axis = Axis::by("requests in flight", Scale::Powers);
            let mut chart = Chart::new(name_of_chart, axis, Axis::new(y));
            for report in &evaluation.targets {
                let points = result(report, test).map_or(&[][..], |result| &result.random);
                let points =
                    points.iter().map(|point| (f64::from(point.depth), Spread::of(of(point))));
                chart = chart.with(Series::new(name(&report.target), points.collect()));
            }
            chart
        };
        page.charts(&[
            chart("Rate", "a second", |point| point.iops),
            chart("Median latency", "us", |point| point.latency.p50_us as f64),
            chart("99 in 100 take no longer than", "us", |point| point.latency.p99_us as f64),
        ])?;
        let head =
            ["target", "in flight", "a second", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"];
        let mut rows = vec![row(head)];
        for report in &evaluation.targets {
            for point in result(report, test).map_or(&[][..], |result| &result.random) {
                let latency = point.latency;
                let mut cells =
                    vec![name(&report.target), point.depth.to_string(), number(point.iops)];
                let all = [
                    latency.p50_us,
                    latency.p90_us,
                    latency.p99_us,
                    latency.p99_9_us,
                    latency.max_us,
                ];
                cells.extend(all.iter().map(u64::to_string));
                rows.push(cells);
            }
        }
        page.table(&rows);
    }
    Ok(())
}

fn regions(evaluation: &Evaluation, page: &mut Page) -> Result<()> {
    let axis = Axis::new("place, % of the capacity");
    let mut chart = Chart::new("Reading by place", axis, Axis::new("MB/s"));
    for report in &evaluation.targets {
        let places = result(report, TestId::Regions).map_or(&[][..], |result| &result.regions);
        let points = places.iter().map(|place| {
            (place.position * 100.0, Spread::around(place.mb_per_s, &place.samples_mb_per_s))
        });
        let points: Vec<_> = points.collect();
        if !points.is_empty() {
            chart = chart.with(Series::new(name(&report.target), points));
        }
    }
    if chart.series.is_empty() {
        return Ok(());
    }
    page.heading("Outer and inner places");
    page.paragraph(
        "A disk is faster where its address range begins. Bars show the slowest and the fastest round.",
    );
    page.charts(&[chart])
}

/// What all results of a target rest on.
fn target(report: &TargetReport, page: &mut Page) {
    let info = &report.target;
    page.heading(&name(info));
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let redundancy = &info.redundancy;
    page.facts(&[
        fact("address", &info.address),
        fact("kind", kind_of_target(info.kind)),
        fact("capacity", &size::show(info.capacity_bytes)),
        fact("past this machine's page cache", &yes(info.direct)),
        fact("file system", info.file_system.as_deref().unwrap_or("-")),
        fact("in this machine's memory", &yes(info.in_memory)),
        fact(
            "redundancy",
            &format!(
                "{}{}, told by {}. {}",
                state_of(redundancy.state),
                redundancy.level.as_ref().map_or(String::new(), |level| format!(", level {level}")),
                redundancy.source,
                redundancy.detail
            ),
        ),
    ]);
    let head = ["test", "figure", "took s", "moved", "processors busy", "what limits", "notes"];
    let mut rows = vec![row(head)];
    for result in &report.results {
        let busy = result.processor_busy.map(|part| format!("{:.0}%", part * 100.0));
        rows.push(vec![
            result.test.name().to_owned(),
            outcome(result),
            format!("{:.1}", result.seconds),
            size::show(result.bytes),
            busy.unwrap_or_default(),
            result.limit.as_ref().map_or(String::new(), |limit| limit.text.clone()),
            result.notes.join(" "),
        ]);
    }
    page.table(&rows);
    streams(report, page);
    pairs(report, page);
}

fn streams(report: &TargetReport, page: &mut Page) {
    let head = ["test", "round", "stream", "host", "MB/s", "s", "flush s", "tape"];
    let mut rows = vec![row(head)];
    for result in &report.results {
        for (number, round) in result.rounds.iter().enumerate() {
            for stream in &round.streams {
                rows.push(vec![
                    result.test.name().to_owned(),
                    (number + 1).to_string(),
                    role(stream.role).to_owned(),
                    if stream.host.is_empty() { "-".to_owned() } else { stream.host.clone() },
                    format!("{:.1}", stream.mb_per_s),
                    format!("{:.2}", stream.seconds),
                    format!("{:.2}", stream.flush_s),
                    tape(stream),
                ]);
            }
        }
    }
    if rows.len() > 1 {
        page.subheading("Streams");
        page.table(&rows);
    }
}

fn pairs(report: &TargetReport, page: &mut Page) {
    let tables: Vec<(&TestResult, &PairTable)> = report
        .results
        .iter()
        .flat_map(|result| result.pairs.iter().map(move |table| (result, table)))
        .collect();
    if tables.is_empty() {
        return;
    }
    page.subheading("Pairs");
    for (result, table) in tables {
        let mut rows =
            vec![vec![String::new(), table.base.clone(), table.other.clone(), "ratio".to_owned()]];
        for (number, (base, other)) in table.pairs.iter().enumerate() {
            let rates = [base, other].map(|rate| format!("{rate:.1} MB/s"));
            let [base_shown, other_shown] = rates;
            let ratio = format!("{:.2}", other / base);
            rows.push(vec![(number + 1).to_string(), base_shown, other_shown, ratio]);
        }
        let (test, len) = (result.test.name(), size::show(table.bytes));
        page.paragraph(&format!("{test}, {}, {len} a piece:", table.what));
        page.table(&rows);
    }
}

fn baselines(evaluation: &Evaluation, page: &mut Page) {
    if evaluation.baselines.is_empty() {
        return;
    }
    page.heading("Baselines");
    page.paragraph("What this machine gives without any target: no result can be more.");
    let mut rows = vec![row(["what", "where", "MB/s", "rounds"])];
    for baseline in &evaluation.baselines {
        let rounds: Vec<String> =
            baseline.samples_mb_per_s.iter().map(|rate| number(*rate)).collect();
        rows.push(vec![
            baseline_of(baseline.kind).to_owned(),
            baseline.place.clone(),
            number(baseline.mb_per_s),
            rounds.join(", "),
        ]);
    }
    page.table(&rows);
}

fn run(evaluation: &Evaluation, page: &mut Page) {
    let run = &evaluation.run;
    let (machine, settings, data) = (&run.machine, &run.settings, &run.data);
    page.heading("The run");
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let clients = match settings.clients.as_slice() {
        [] => "processes of this machine".to_owned(),
        hosts => hosts.join(", "),
    };
    let depths: Vec<String> = settings.depths.iter().map(u16::to_string).collect();
    let memory = settings.target_memory_bytes.map_or_else(|| "-".to_owned(), size::show);
    let part = data.compressed_bytes as f64 / data.sample_bytes.max(1) as f64;
    page.facts(&[
        fact("netraid", &run.netraid),
        fact("began", &run.started_at),
        fact("machine", &machine.host),
        fact("system", &format!("{}, {}", machine.system, machine.architecture)),
        fact("processors", &format!("{}, {}", machine.processors, or_none(&machine.processor))),
        fact("memory", &size::show(machine.memory_bytes)),
        fact("files, host tests", &size::show(settings.file_bytes)),
        fact("files, network tests", &size::show(settings.net_file_bytes)),
        fact(
            "buffers of streams",
            &format!(
                "{}, {} in flight",
                size::show(settings.buffer_bytes.into()),
                settings.stream_depth
            ),
        ),
        fact("longest stream", &format!("{} s", settings.stream_s)),
        fact("depths of random tests", &depths.join(", ")),
        fact("rounds, pairs", &format!("{}, {}", settings.rounds, settings.pairs)),
        fact(
            "tape",
            &format!(
                "{:.1} MB/s, {}",
                settings.tape_bytes_per_s as f64 / 1e6,
                settings.tape.as_deref().unwrap_or("paced, in memory")
            ),
        ),
        fact("clients", &clients),
        fact("memory behind the targets", &memory),
        fact(
            "data",
            &format!(
                "{}; {} became {:.1}% by {}",
                data.source,
                size::show(data.sample_bytes),
                part * 100.0,
                data.compressor
            ),
        ),
    ]);
}

fn result(report: &TargetReport, test: TestId) -> Option<&TestResult> {
    report.results.iter().find(|result| result.test == test)
}

fn outcome(result: &TestResult) -> String {
    match &result.outcome {
        Outcome::Done => result.figure.as_ref().map_or_else(|| "-".to_owned(), shown),
        Outcome::Skipped { reason } => format!("skipped: {reason}"),
        Outcome::Failed { reason } => format!("FAILED: {reason}"),
    }
}

fn tape(stream: &Stream) -> String {
    let Some(tape) = &stream.tape else { return String::new() };
    let wanted = format!("{:.1} MB/s wanted", tape.wanted_mb_per_s);
    let late = match tape.own_late_s {
        late if late > 0.0 => format!(", itself late by {late:.2} s"),
        _ => String::new(),
    };
    match tape.starved {
        0 => format!("{wanted}, never waited{late}"),
        times => format!(
            "{wanted}, waited {times} times, {:.2} s in all, {:.2} s at most{late}",
            tape.starved_s, tape.longest_s
        ),
    }
}

fn name_of(evaluation: &Evaluation, target: u16) -> String {
    let report = evaluation.targets.iter().find(|report| report.target.index == target);
    report.map_or_else(|| format!("{}", u32::from(target) + 1), |report| name(&report.target))
}

/// A target's number, from 1, and its address without its middle where it is long.
fn name(target: &TargetInfo) -> String {
    let characters: Vec<char> = target.address.chars().collect();
    let address = match characters.len() {
        0..=NAME_CHARS => target.address.clone(),
        len => {
            let half = NAME_CHARS / 2;
            let ends = [&characters[..half], &characters[len - half..]];
            ends.map(|end| end.iter().collect::<String>()).join("…")
        }
    };
    format!("{}: {address}", u32::from(target.index) + 1)
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn fact<'a>(name: &'a str, value: &str) -> (&'a str, String) {
    (name, value.to_owned())
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("one {what}") } else { format!("{count} {what}s") }
}

fn shown(figure: &Figure) -> String {
    match figure.unit {
        Unit::Ratio => format!("{:.2}", figure.value),
        Unit::MbPerS | Unit::Iops => format!("{} {}", number(figure.value), figure.unit.name()),
    }
}

fn number(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

const fn kind_of(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Compression => "data that compresses is faster",
        FindingKind::CacheOnly => "results from a cache",
        FindingKind::Redundancy => "redundancy off or degraded",
        FindingKind::UnstableWrites => "writes that are not stable when they are said to be",
        FindingKind::Throttled => "a throttle that lets bursts pass",
        FindingKind::OuterRegion => "outer places are faster",
        FindingKind::NoDevice => "as fast as memory",
        FindingKind::WrongBytes => "wrong bytes",
        FindingKind::TapeStarved => "a tape that had to wait",
    }
}

const fn kind_of_target(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Directory => "directory",
        TargetKind::File => "file",
        TargetKind::Block => "block device",
        TargetKind::Iscsi => "iSCSI",
        TargetKind::Nbd => "NBD",
    }
}

const fn state_of(state: RedundancyState) -> &'static str {
    match state {
        RedundancyState::Full => "full",
        RedundancyState::Degraded => "degraded",
        RedundancyState::Off => "none",
        RedundancyState::Unknown => "not known",
    }
}

const fn baseline_of(kind: BaselineKind) -> &'static str {
    match kind {
        BaselineKind::Memory => "copying in memory, one thread",
        BaselineKind::Loopback => "TCP over loopback",
        BaselineKind::Network => "TCP to a client's host",
        BaselineKind::DiskWrite => "writing to the local disk",
        BaselineKind::DiskRead => "reading from the local disk",
    }
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::Write => "write",
        Role::Read => "read",
        Role::ToTape => "to tape",
        Role::FromTape => "from tape",
        Role::RemoteCopy => "to a remote disk",
    }
}
