//! `netraid examine`: what the labels at some addresses say, each for itself.

use anyhow::{Result, bail};
use clap::Args;
use netraid_control::text::shown;
use netraid_engine::array::{self, ExamineReport};

use crate::{create::show_log, member::MemberArgs, output::Output, runtime, size};

#[derive(Debug, Clone, Args)]
pub(crate) struct ExamineArgs {
    #[command(flatten)]
    members: MemberArgs,
}

pub(crate) fn run(args: &ExamineArgs, output: Output) -> Result<()> {
    let members = args.members.configs()?;
    let reports = runtime()?.block_on(array::examine(members, netraid_engine::pool()));
    output.document(&reports, || reports.iter().map(show).collect())?;
    if reports.iter().all(|report| report.label.is_none()) {
        let reasons = reports.iter().filter_map(|report| report.error.clone());
        bail!("no member of an array: {}", reasons.collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

fn show(report: &ExamineReport) -> String {
    let address = &report.address;
    if let Some(error) = &report.error {
        return format!("{address}\n  {error}\n");
    }
    let Some(label) = &report.label else { return format!("{address}\n  no label\n") };
    let states: String = label
        .members
        .iter()
        .enumerate()
        .map(|(index, state)| {
            let own = if index == usize::from(label.member) { " (this one)" } else { "" };
            format!("  member {index}: {state}{own}\n")
        })
        .collect();
    format!(
        "{address}\n  array '{}' ({}), level {}, {}, chunk {}, {}, format {}\n  generation {}, epoch {}, {}, {}\n{states}",
        shown(&label.name),
        label.array_uuid,
        label.level,
        size::show(label.capacity_bytes),
        size::show(u64::from(label.chunk_bytes)),
        show_log(label.log_bytes),
        label.format,
        label.generation,
        label.epoch,
        show_holder(&label.holder),
        if label.clean { "closed" } else { "not closed" }
    )
}

/// Who had an array open last, in words.
pub(crate) fn show_holder(holder: &str) -> String {
    if holder.is_empty() {
        "never opened".into()
    } else {
        format!("last opened on '{}'", shown(holder))
    }
}
