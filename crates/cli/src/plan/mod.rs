//! `netraid plan`: which layouts of a site's parts meet somebody's wishes, and what each gives.
//!
//! What is proposed is `netraid_model::plan`'s; here are the site's file, the wishes, the threads that
//! try layouts, and what is shown of them.

mod calibrate;
mod show;
mod transfer;

use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand};
use netraid_model::{
    Preset,
    config::read_table,
    plan::{EXAMPLE_FACTS, Layout, Proposal, Site, Wishes, layouts, propose, rank},
};
use serde_json::json;

use crate::{output::Output, size};

/// Largest file of a site.
const SITE_BYTES_MAX: u64 = 1 << 20;

/// What is wished, and of what.
#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["site", "show"])))]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// What the site has, as --show prints it
    #[arg(long, value_name = "FILE")]
    site: Option<PathBuf>,
    /// Print a site's file to begin with, and plan nothing
    #[arg(long)]
    show: bool,
    /// MB to be read a second, with all members there
    #[arg(long, value_name = "MB_PER_SECOND")]
    read: Option<f64>,
    /// MB to be written a second
    #[arg(long, value_name = "MB_PER_SECOND")]
    write: Option<f64>,
    /// Size of the volume: 20TiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    capacity: Option<u64>,
    /// Members that may be lost
    #[arg(long, value_name = "MEMBERS", default_value_t = 1)]
    survive: u32,
    /// Lengths of requests, each of which has to have the rates: 4KiB,1MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1MiB", value_parser = size::parse)]
    request: Vec<u64>,
    /// Hours in which a lost member is to be rebuilt, beside the workload
    #[arg(long, value_name = "HOURS")]
    rebuild_within: Option<f64>,
    /// Years that data is to last on average
    #[arg(long, value_name = "YEARS")]
    mttdl: Option<f64>,
    /// How many layouts to show
    #[arg(long, value_name = "LAYOUTS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Print a site's file made of measurements
    Calibrate(calibrate::CalibrateArgs),
    /// List the transfer plans of a cluster that are in force: who has what open, as far as one may see that
    Ls(transfer::ListArgs),
    /// End a transfer plan of a cluster: whoever has it is shut out, and others may have what it is of at once
    End(transfer::EndArgs),
}

pub(crate) fn run(args: &PlanArgs, output: Output) -> Result<()> {
    match &args.what {
        Some(What::Calibrate(args)) => return calibrate::run(args, output),
        Some(What::Ls(args)) => return transfer::list(args, output),
        Some(What::End(args)) => return transfer::end(args, output),
        None => {}
    }
    let Some(path) = &args.site else {
        let preset = Preset::find("today").context("a preset to begin with")?;
        let text = format!("{}{EXAMPLE_FACTS}", preset.text);
        return output.document(&json!({ "site": read_table(&text)? }), || text);
    };
    let site = read_site(path)?;
    let wishes = args.wishes();
    let mut proposals = try_all(&site, &wishes, &layouts(&site, &wishes)?, output)?;
    rank(&mut proposals);
    proposals.truncate(args.top as usize);
    let is_met = proposals.first().is_some_and(|best| best.unmet.is_empty());
    let document = json!({ "wishes_met": is_met, "proposals": proposals });
    output.document(&document, || show::text(&proposals))
}

fn read_site(path: &Path) -> Result<Site> {
    let shown = || path.display().to_string();
    let len = fs::metadata(path).with_context(shown)?.len();
    if len > SITE_BYTES_MAX {
        bail!("{} has {len} bytes, more than {SITE_BYTES_MAX}; give a site's file", shown());
    }
    let table = read_table(&fs::read_to_string(path).with_context(shown)?).with_context(shown)?;
    Site::from_table(table).with_context(shown)
}

/// Tries all layouts on as many threads as there are cores. Which thread tries what has no influence
/// on any proposal.
fn try_all(
    site: &Site,
    wishes: &Wishes,
    layouts: &[Layout],
    output: Output,
) -> Result<Vec<Proposal>> {
    let bar = output.progress_of_steps("planning", layouts.len() as u64);
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Proposal)>> {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(layout) = layouts.get(index) else { return Ok(done) };
            let proposal = propose(site, wishes, *layout).with_context(|| describe(layout));
            // The others need not go on when one has failed.
            let proposal =
                proposal.inspect_err(|_| next.store(layouts.len(), Ordering::Relaxed))?;
            done.push((index, proposal));
            bar.inc(1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(layouts.len().max(1));
    let mut all: Vec<(usize, Proposal)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for handle in handles {
            all.extend(handle.join().map_err(|_| anyhow!("a thread of the plan panicked"))??);
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    bar.finish_and_clear();
    all.sort_unstable_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, proposal)| proposal).collect())
}

fn describe(layout: &Layout) -> String {
    let Layout { level, members, chunk_bytes } = layout;
    format!("level {level} of {members} members, chunks of {}", size::show(u64::from(*chunk_bytes)))
}

impl PlanArgs {
    fn wishes(&self) -> Wishes {
        Wishes {
            read_mb_s: self.read,
            write_mb_s: self.write,
            capacity_bytes: self.capacity,
            survive: self.survive,
            request_bytes: self.request.clone(),
            rebuild_within_hours: self.rebuild_within,
            mttdl_years: self.mttdl,
        }
    }
}
