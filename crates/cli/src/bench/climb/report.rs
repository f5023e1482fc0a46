//! A climb as a page: what limits first, then a figure of each rung.

use anyhow::Result;
use netraid_raid::geometry::Level;

use super::{
    super::{
        measure::Workload,
        parity::Work,
        transport::{self, median},
    },
    judge::Part,
    record::{Climb, DepthPoint, Point, Step, What},
};
use crate::{
    page::{Axis, Chart, Page, Scale, Series, Spread},
    size,
};

/// The page.
///
/// # Errors
/// When a figure cannot be drawn.
pub(super) fn page(climb: &Climb) -> Result<String> {
    let mut page = Page::new("netraid bench climb");
    page.findings(&sentences(climb));
    parts(climb, &mut page);
    volumes(climb, &mut page)?;
    end_to_end(climb, &mut page)?;
    one_member(climb, &mut page)?;
    network(climb, &mut page)?;
    memory(climb, &mut page)?;
    about(climb, &mut page);
    Ok(page.finish())
}

/// What limits, and where volumes bend.
fn sentences(climb: &Climb) -> Vec<String> {
    let verdicts = climb.verdicts.iter().map(|verdict| verdict.sentence.clone());
    let bends = climb.bends.iter().map(|bend| match &bend.verdict {
        Some(verdict) => format!("{} {}", bend.sentence, verdict.sentence),
        None => bend.sentence.clone(),
    });
    verdicts.chain(bends).collect()
}

fn parts(climb: &Climb, page: &mut Page) {
    page.heading("What each part would allow");
    page.paragraph(
        "MB/s of users' data. The part that allows the least limits, where at least 75% of that is used.",
    );
    let mut rows =
        vec![["of", "measured", "part", "would allow", "used"].map(str::to_owned).to_vec()];
    for verdict in &climb.verdicts {
        for (place, part) in verdict.parts.iter().enumerate() {
            let (subject, rate) = match place {
                0 => (verdict.subject.clone(), format!("{:.0}", verdict.mb_per_s)),
                1.. => (String::new(), String::new()),
            };
            let Part { kind, bound_mb_per_s } = part;
            let used = format!("{:.0}%", verdict.mb_per_s / bound_mb_per_s * 100.0);
            let bound = format!("{bound_mb_per_s:.0}");
            rows.push(vec![subject, rate, kind.name().to_owned(), bound, used]);
        }
    }
    page.table(&rows);
}

fn volumes(climb: &Climb, page: &mut Page) -> Result<()> {
    page.heading("One to all members");
    page.paragraph(&format!(
        "Requests of {}, {} in flight, in order. The dashed line is the rate of one member in the same \
         rounds, times the number of members, less redundancy. Bars show the slowest and the fastest round.",
        size::show(climb.request_bytes.into()),
        climb.depth
    ));
    for write in [true, false] {
        let mut charts = vec![volume_chart(climb, What::Together, write)];
        for level in climb.levels() {
            charts.push(volume_chart(climb, What::Level(level.number()), write));
        }
        page.charts(&charts)?;
    }
    let head = ["", "", "members", "MB/s", "the line", "of it", "processors busy", "by others"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for step in &climb.steps {
        let busy = |of: fn(&Point) -> f64| {
            step.point.as_ref().map_or(String::new(), |point| format!("{:.2}", of(point)))
        };
        rows.push(vec![
            name_of(step.what),
            way(step.write).to_owned(),
            step.members.to_string(),
            format!("{:.0}", step.mb_per_s),
            format!("{:.0}", step.line_mb_per_s),
            format!("{:.2}", step.of_line),
            busy(|point| point.processors_busy),
            busy(|point| point.processors_others),
        ]);
    }
    page.table(&rows);
    Ok(())
}

fn volume_chart(climb: &Climb, what: What, write: bool) -> Chart {
    let steps = |what: What| {
        climb.steps.iter().filter(move |step| step.what == what && step.write == write)
    };
    let rate = |step: &Step| {
        let rounds = step.point.as_ref().map_or(&[][..], |point| &point.figures.rounds_mb_per_s);
        (f64::from(step.members), Spread::around(step.mb_per_s, rounds))
    };
    let line = |step: &Step| (f64::from(step.members), step.line_mb_per_s);
    let title = format!("{}, {}", name_of(what), ways(write));
    let chart = Chart::new(title, Axis::by("members", Scale::Counts), Axis::new("MB/s"))
        .with(Series::new("measured", steps(what).map(rate).collect()))
        .with(Series::dashed("the line of one member", steps(what).map(line).collect(), 6));
    let bare: Vec<(f64, f64)> = steps(What::Transport)
        .filter(|step| steps(what).any(|other| other.members == step.members))
        .map(|step| (f64::from(step.members), step.mb_per_s))
        .collect();
    if bare.is_empty() {
        return chart;
    }
    chart.with(Series::dashed("bare TCP over loopback, as many connections", bare, 1))
}

fn end_to_end(climb: &Climb, page: &mut Page) -> Result<()> {
    let Some(level) = climb.levels().pop() else { return Ok(()) };
    if climb.end_to_end.is_empty() {
        return Ok(());
    }
    page.heading("End to end");
    page.paragraph(&format!(
        "Level {} on {} members through an NBD export (Unix socket), {} requests in flight, in order.",
        Level::number(level),
        climb.count(),
        climb.depth
    ));
    let series = |name: &str, of: fn(&Point) -> Spread| {
        let lines = [true, false].map(|write| {
            let sizes = climb.end_to_end.iter().filter(|size| size.write == write);
            let points = sizes.map(|size| (f64::from(size.request_bytes), of(&size.point)));
            Series::new(ways(write), points.collect())
        });
        let chart = Chart::new(name, Axis::by("bytes of a request", Scale::Bytes), Axis::new(name));
        Chart { series: lines.into(), ..chart }
    };
    page.charts(&[
        series("MB/s", |point| {
            Spread::around(point.median_mb_per_s, &point.figures.rounds_mb_per_s)
        }),
        series("requests a second", |point| Spread::of(point.figures.iops)),
        series("processor seconds a GB, all processes", |point| {
            Spread::of(point.figures.cpu_s_per_gb())
        }),
    ])?;
    let head = [
        "",
        "request",
        "MB/s",
        "a second",
        "p50 us",
        "p99 us",
        "client s/GB",
        "engine s/GB",
        "all s/GB",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for size in &climb.end_to_end {
        let figures = &size.point.figures;
        rows.push(vec![
            way(size.write).to_owned(),
            size::show(size.request_bytes.into()),
            format!("{:.0}", size.point.median_mb_per_s),
            format!("{:.0}", figures.iops),
            figures.latency_us_p50.to_string(),
            figures.latency_us_p99.to_string(),
            format!("{:.2}", figures.client_cpu_s_per_gb),
            size.point.engine_cpu_s_per_gb.map_or(String::new(), |cost| format!("{cost:.2}")),
            format!("{:.2}", figures.cpu_s_per_gb()),
        ]);
    }
    page.table(&rows);
    Ok(())
}

fn one_member(climb: &Climb, page: &mut Page) -> Result<()> {
    page.heading("One member");
    let large = |point: &&DepthPoint| point.request_bytes == climb.request_bytes;
    let series = |is_large: bool, of: fn(&Point) -> Spread| {
        [true, false].map(|write| {
            let points = climb.member.iter().filter(|point| large(point) == is_large);
            let points = points.filter(|point| point.write == write);
            let points = points.map(|point| (f64::from(point.depth), of(&point.point)));
            Series::new(ways(write), points.collect())
        })
    };
    let chart = |title: &str, y: &str, series: [Series; 2]| Chart {
        series: series.into(),
        ..Chart::new(title, Axis::by("requests in flight", Scale::Powers), Axis::new(y))
    };
    let rate =
        |point: &Point| Spread::around(point.median_mb_per_s, &point.figures.rounds_mb_per_s);
    let len = size::show(climb.request_bytes.into());
    page.charts(&[
        chart(&format!("{len} in order"), "MB/s", series(true, rate)),
        chart("4 KiB at random", "a second", series(false, |point| Spread::of(point.figures.iops))),
        chart(
            "4 KiB at random, median latency",
            "us",
            series(false, |point| Spread::of(point.figures.latency_us_p50 as f64)),
        ),
    ])?;
    let head = ["", "in flight", "MB/s", "a second", "p50 us", "p99 us"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in &climb.member {
        let figures = &one.point.figures;
        let is_large = large(&one);
        let workload = Workload { write: one.write, random: !is_large, len: one.request_bytes };
        rows.push(vec![
            workload.name(),
            one.depth.to_string(),
            format!("{:.0}", one.point.median_mb_per_s),
            format!("{:.0}", figures.iops),
            figures.latency_us_p50.to_string(),
            figures.latency_us_p99.to_string(),
        ]);
    }
    page.table(&rows);
    Ok(())
}

fn network(climb: &Climb, page: &mut Page) -> Result<()> {
    page.heading("Transport");
    page.paragraph(
        "iSCSI to a target in memory of this machine, beside bare requests over TCP. Dashed is what was \
         fitted: a fixed time a request, and a peak rate.",
    );
    let mut charts = Vec::new();
    for write in [true, false] {
        let axis = Axis::by("bytes of a request", Scale::Bytes);
        let mut chart = Chart::new(ways(write), axis, Axis::new("MB/s"));
        let points = || climb.transport.points.iter().filter(|point| point.write == write);
        for (number, name) in ["raw TCP", "iSCSI"].into_iter().enumerate() {
            let rates = points().map(|point| {
                let rounds = if number == 0 { &point.raw } else { &point.iscsi };
                let all: Vec<f64> = rounds.iter().map(|round| round.mb_per_s).collect();
                let middle = median(rounds, |round| round.mb_per_s);
                (f64::from(point.request_bytes), Spread::around(middle, &all))
            });
            chart = chart.with(Series::new(name, rates.collect()));
        }
        for (number, name) in ["raw TCP", "iSCSI"].into_iter().enumerate() {
            let is_it = |fit: &&transport::Fit| fit.write == write && fit.transport == name;
            let Some(fit) = climb.transport.fits.iter().find(is_it) else { continue };
            let fitted = points().map(|point| {
                let len = f64::from(point.request_bytes);
                (len, len / (fit.overhead_us + len / fit.peak_mb_per_s))
            });
            chart = chart.with(Series::dashed(format!("{name}, fitted"), fitted.collect(), number));
        }
        charts.push(chart);
    }
    page.charts(&charts)?;
    let head = ["", "", "us a request", "peak MB/s", "75% of it with"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for fit in &climb.transport.fits {
        rows.push(vec![
            fit.transport.to_owned(),
            way(fit.write).to_owned(),
            format!("{:.1}", fit.overhead_us),
            format!("{:.0}", fit.peak_mb_per_s),
            format!("{:.0} KiB", fit.bytes_for_three_quarters / 1024.0),
        ]);
    }
    page.table(&rows);
    Ok(())
}

fn memory(climb: &Climb, page: &mut Page) -> Result<()> {
    page.heading("Memory and parity");
    page.paragraph("GB/s of what goes in, in the cache, beside copying in the same run.");
    let mut processors: Vec<usize> =
        climb.parity.series.iter().map(|series| series.processors).collect();
    processors.dedup();
    for count in processors {
        let of = |work: Work| {
            let all = climb.parity.series.iter();
            all.filter(move |series| series.processors == count && series.work == work)
        };
        let plural = if count == 1 { "" } else { "s" };
        let charts = [Work::Xor, Work::PAndQ].map(|work| {
            let title = format!("{}, {count} processor{plural}", work.name());
            let axis = Axis::by("bytes of a buffer", Scale::Bytes);
            let lines = of(work).chain(of(Work::Copy)).chain(of(Work::Checksum)).map(|series| {
                let name = match series.work {
                    Work::Xor | Work::PAndQ => format!("{} sources", series.sources),
                    Work::Copy | Work::Checksum => series.work.name().to_owned(),
                };
                let points = series.points.iter();
                let points =
                    points.map(|point| (point.buffer_bytes as f64, Spread::of(point.gb_per_s)));
                Series::new(name, points.collect())
            });
            Chart { series: lines.collect(), ..Chart::new(title, axis, Axis::new("GB/s")) }
        });
        page.charts(&charts)?;
    }
    let head = ["", "sources", "processors", "overhead ns", "peak GB/s of one"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for series in &climb.parity.series {
        rows.push(vec![
            series.work.name().to_owned(),
            series.sources.to_string(),
            series.processors.to_string(),
            format!("{:.0}", series.overhead_ns),
            format!("{:.1}", series.peak_gb_per_s),
        ]);
    }
    page.table(&rows);
    Ok(())
}

fn about(climb: &Climb, page: &mut Page) {
    page.heading("The run");
    let machine = &climb.machine;
    page.facts(&[
        ("began", climb.began.clone()),
        ("took", format!("{:.0} s", climb.took_s)),
        ("rounds", format!("{} of {} s a point", climb.rounds, climb.seconds)),
        ("threads of the engine", climb.threads.to_string()),
        ("machine", machine.host.clone()),
        (
            "processors",
            format!(
                "{}, {}",
                machine.processors,
                machine.processor.as_ref().unwrap_or(&machine.architecture)
            ),
        ),
        ("memory", size::show(machine.memory_bytes)),
        ("kernel", machine.system.clone()),
        ("netraid", climb.version.to_owned()),
    ]);
    page.text(&climb.command);
    page.text(&climb.members.join("\n"));
}

fn name_of(what: What) -> String {
    match what {
        What::Transport => "bare TCP".to_owned(),
        What::Together => "members at once".to_owned(),
        What::Level(level) => format!("level {level}"),
    }
}

const fn way(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

const fn ways(write: bool) -> &'static str {
    if write { "writes" } else { "reads" }
}
