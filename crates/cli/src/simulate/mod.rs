//! `netraid simulate`: what a system would give, from a description of its parts.
//!
//! The model is `netraid_model`; here are its configuration, the threads that run its points, and
//! what is shown of them.

mod points;
mod report;
mod table;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, builder::PossibleValuesParser};
use netraid_model::{
    Preset, Sweep,
    config::{Table, read_table, read_value, set},
    preset::PRESETS,
    sweep,
};
use serde_json::json;

use crate::output::Output;
use points::PointResults;

/// Largest configuration file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What is modelled, and what is shown of it.
#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["preset", "config"])))]
pub(crate) struct SimulateArgs {
    /// A description that comes with netraid
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PRESETS.map(|p| p.name)))]
    preset: Option<String>,
    /// A description in a file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Give a parameter another value: client.mips=200; several times for several
    #[arg(long, value_name = "PARAMETER=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Run all of several values of a parameter: disks=1..32, or disks=4,8,16; several times for all
    /// combinations
    #[arg(long, value_name = "PARAMETER=VALUES")]
    sweep: Vec<Sweep>,
    /// Runs of each point, each with other chances: the more, the narrower the confidence intervals
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    seeds: u32,
    /// Write a page with plots: against the first parameter that is swept, or, without a sweep,
    /// against disks, transfer unit, mix and the client's processor
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print the description and run nothing
    #[arg(long, conflicts_with_all = ["sweep", "report"])]
    show: bool,
}

fn setting(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((path, value)) if !path.trim().is_empty() => {
            Ok((path.trim().to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => bail!("give a parameter and its value, as client.mips=200"),
    }
}

pub(crate) fn run(args: &SimulateArgs, output: Output) -> Result<()> {
    let text = args.text()?;
    let mut table = read_table(&text)?;
    for (path, value) in &args.set {
        set(&mut table, path, read_value(value))?;
    }
    if args.show {
        let shown = if args.set.is_empty() { text } else { toml::to_string(&table)? };
        return output.document(&json!({ "configuration": table }), || shown);
    }
    let points = sweep::points(&table, &args.sweep)?;
    // What cannot be written is known before anything is run.
    let mut file = match &args.report {
        Some(path) => {
            let file = fs::File::create(path).with_context(|| path.display().to_string())?;
            Some((path, file))
        }
        None => None,
    };
    let results = points::run(&points, args.seeds, output)?;
    if let Some((path, file)) = &mut file {
        write_report(args, &table, &results, output, file)
            .with_context(|| path.display().to_string())?;
    }
    output.document(&results, || table::show(&results, &args.swept()))
}

fn write_report(
    args: &SimulateArgs,
    table: &Table,
    results: &[PointResults],
    output: Output,
    file: &mut fs::File,
) -> Result<()> {
    let about = table.get("about").and_then(|about| about.as_str()).unwrap_or("simulation");
    let figures = if args.sweep.is_empty() {
        report::standard(table, args.seeds, output)?
    } else {
        report::of_sweeps(&args.sweep, results)
    };
    let shown = table::rows(results, &args.swept());
    let page = report::page(about, &toml::to_string(table)?, args.seeds, &figures, &shown)?;
    std::io::Write::write_all(file, page.as_bytes())?;
    Ok(())
}

impl SimulateArgs {
    fn text(&self) -> Result<String> {
        let preset = self.preset.as_deref().and_then(Preset::find);
        if let Some(preset) = preset {
            return Ok(preset.text.to_owned());
        }
        let Some(path) = &self.config else { bail!("give --preset or --config") };
        let shown = || path.display().to_string();
        let len = fs::metadata(path).with_context(shown)?.len();
        if len > CONFIG_BYTES_MAX {
            bail!(
                "{} has {len} bytes, more than {CONFIG_BYTES_MAX}; give a configuration",
                shown()
            );
        }
        fs::read_to_string(path).with_context(shown)
    }

    fn swept(&self) -> Vec<&str> {
        self.sweep.iter().map(|sweep| sweep.path.as_str()).collect()
    }
}
