//! `netraid plan ls` and `netraid plan end`: the transfer plans of a cluster.

use anyhow::Result;
use clap::Args;
use netraid_cluster::{
    mediator::{Mode, PAGE_MAX, PlanEntry},
    paging::Pages,
};
use netraid_control::{
    text::{escaped, shown},
    units::PlanId,
};
use serde_json::json;

use crate::{cluster::AccessArgs, output::Output, runtime, size};

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct EndArgs {
    /// Its id
    #[arg(value_name = "PLAN")]
    plan: PlanId,
    #[command(flatten)]
    access: AccessArgs,
}

/// One line each, or one document with all.
pub(crate) fn list(args: &ListArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let mut list = output.list();
    runtime()?.block_on(async {
        let mut after = None;
        let mut pages = Pages::new(usize::try_from(PAGE_MAX)?);
        loop {
            let page = cluster.plans(after).await?;
            after = pages.take(page.entries.iter().map(|entry| entry.plan), page.next)?;
            list.add(&page.entries, line)?;
            if after.is_none() {
                return anyhow::Ok(());
            }
        }
    })?;
    list.end()
}

pub(crate) fn end(args: &EndArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    runtime()?.block_on(cluster.end(args.plan))?;
    let document = json!({ "ended": args.plan });
    output
        .document(&document, || format!("plan {} has ended; whoever had it is shut out", args.plan))
}

fn line(entry: &PlanEntry) -> String {
    let does = match entry.mode {
        Mode::Read => "read",
        Mode::Write => "written",
    };
    let rate = match entry.rate.0 {
        0 => String::new(),
        rate => format!(" at {}/s", size::show(rate)),
    };
    let who = match (&entry.process, entry.silent_ms) {
        (Some(process), Some(silent_ms)) => {
            format!("{process}, heard of {}.{} s ago", silent_ms / 1000, silent_ms / 100 % 10)
        }
        (Some(process), None) => process.to_string(),
        (None, _) => {
            format!("{}, not heard of since the mediator started", shown(&entry.initiator))
        }
    };
    format!("{}  {}  {does}{rate} by {who}", entry.plan, escaped(&entry.path))
}
