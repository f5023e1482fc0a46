//! A page with plots, that needs nothing beside itself.

use anyhow::Result;
use netraid_model::{Interval, Sweep, config::Table, sweep};
use serde_json::Value;

use super::points::{self, PointResults};
use crate::{
    output::Output,
    page::{Axis, Chart, Page, Series, Spread},
};

/// What each figure shows: the result's name, a title, and the vertical axis.
const PLOTS: [(&str, &str, &str); 4] = [
    ("rate_mb_s", "Data rate", "MB/s"),
    ("client_cpu", "Client processor", "busy fraction"),
    ("disk", "Disks", "busy fraction"),
    ("network", "Network", "busy fraction"),
];

/// The parameter that is shown in KiB.
const UNIT: &str = "transfer_unit_bytes";

/// Plots against one parameter.
#[derive(Debug)]
pub(crate) struct Figure {
    title: String,
    axis: String,
    /// For each of [`PLOTS`].
    plots: Vec<Vec<Series>>,
}

/// Figures against disks, transfer unit, mix and processor, around the configuration.
pub(crate) fn standard(table: &Table, seeds: u32, output: Output) -> Result<Vec<Figure>> {
    let number = |path: &[&str]| {
        let mut at = table.get(*path.first()?)?;
        for part in &path[1..] {
            at = at.get(part)?;
        }
        at.as_float().or_else(|| at.as_integer().map(|number| number as f64))
    };
    // A parity engine has no more disks than its agent.
    let least = if table.contains_key("parity_engine") { 1.0 } else { 4.0 };
    let disks = number(&["disks"]).unwrap_or(8.0).max(least);
    let mips = number(&["client", "mips"]).unwrap_or(100.0);
    let speeds: Vec<String> = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
        .iter()
        .map(|times| format!("{:?}", mips * times))
        .collect();
    let sweeps = [
        ("Number of disks", "disks", format!("disks=1..{disks}")),
        ("Transfer unit", "KiB", "transfer_unit_bytes=4096,8192,16384,32768,65536".to_owned()),
        (
            "Mix",
            "part of reads",
            "workload.reads_in_mix=0.0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0".to_owned(),
        ),
        ("Client's processor", "MIPS", format!("client.mips={}", speeds.join(","))),
    ];
    let mut figures = Vec::new();
    for (title, axis, text) in sweeps {
        let sweep: Sweep = text.parse()?;
        let mut table = table.clone();
        if title == "Mix" {
            table.insert("operation".into(), "mix".into());
        }
        let results =
            points::run(&sweep::points(&table, std::slice::from_ref(&sweep))?, seeds, output)?;
        figures.push(figure(title, axis, &sweep.path, &[], &results));
    }
    Ok(figures)
}

/// The figure of what was swept: against the first parameter that is a number, with a line for each
/// combination of the others.
pub(crate) fn of_sweeps(sweeps: &[Sweep], results: &[PointResults]) -> Vec<Figure> {
    let is_number =
        |sweep: &&Sweep| sweep.values.iter().all(|value| value.is_integer() || value.is_float());
    let Some(across) = sweeps.iter().find(is_number) else { return Vec::new() };
    let others: Vec<&str> = sweeps
        .iter()
        .map(|sweep| sweep.path.as_str())
        .filter(|path| *path != across.path && *path != "operation")
        .collect();
    let axis = if across.path == UNIT { "KiB" } else { across.path.as_str() };
    vec![figure(&across.path, axis, &across.path, &others, results)]
}

fn figure(
    title: &str,
    axis: &str,
    across: &str,
    others: &[&str],
    results: &[PointResults],
) -> Figure {
    let plots = PLOTS.map(|(result, ..)| {
        let mut lines: Vec<Series> = Vec::new();
        for point in results {
            let get = |path: &str| point.parameters.get(path).unwrap_or(&Value::Null);
            let (Some(x), Some(y)) = (get(across).as_f64(), point.results.get(result)) else {
                continue;
            };
            let x = if across == UNIT { x / 1024.0 } else { x };
            let mut name = get("operation").as_str().unwrap_or_default().to_owned();
            for path in others {
                name += &format!(" {path}={}", get(path));
            }
            let Interval { mean, low, high } = *y;
            let y = Spread { mean, low, high };
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push((x, y)),
                None => lines.push(Series::new(name, vec![(x, y)])),
            }
        }
        lines
    });
    Figure { title: title.to_owned(), axis: axis.to_owned(), plots: plots.to_vec() }
}

/// The page.
pub(crate) fn page(
    about: &str,
    config: &str,
    seeds: u32,
    figures: &[Figure],
    table: &[Vec<String>],
) -> Result<String> {
    let mut page = Page::new(about);
    page.paragraph(&format!(
        "Simulated by netraid {}; means of {seeds} runs, with 95% confidence intervals.",
        env!("CARGO_PKG_VERSION")
    ));
    for figure in figures {
        page.heading(&figure.title);
        let plots = PLOTS.iter().zip(&figure.plots);
        let charts = plots.map(|((_, title, axis), series)| Chart {
            series: series.clone(),
            ..Chart::new(*title, Axis::new(&figure.axis), Axis::new(*axis))
        });
        page.charts(&charts.collect::<Vec<_>>())?;
    }
    page.heading("Points");
    page.table(table);
    page.heading("Configuration");
    page.text(config);
    Ok(page.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::table;
    use netraid_model::Preset;

    #[test]
    fn a_page_has_four_plots_a_figure() {
        let table = Preset::find("swift-1991").unwrap().table().unwrap();
        let sweeps: Vec<Sweep> = vec!["disks=3,4".parse().unwrap(), "level=0,5".parse().unwrap()];
        let points = sweep::points(&table, &sweeps).unwrap();
        let results = points::run(&points, 2, Output::new(true)).unwrap();
        let figures = of_sweeps(&sweeps, &results);
        let rows = table::rows(&results, &["disks", "level"]);
        let page = page("<script>", "a = \"<b>\"", 2, &figures, &rows).unwrap();
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(figures[0].plots[0].len(), 6, "three operations at two levels");
        assert!(!page.contains("<script>") && !page.contains("<b>"));
        assert_eq!(rows.len(), 1 + 12);
    }
}
