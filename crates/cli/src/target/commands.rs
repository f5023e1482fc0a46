//! `netraid lun` and `netraid session`: commands to a running target through its control socket.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use netraid_control::text::shown;
use netraid_engine::{
    control::{
        LunStatus, PaceStatus, RegistrantStatus, SanitizeStatus, SessionStatus, TargetRequest,
        TargetStatus,
    },
    target::CommandCounts,
};
use serde_json::Value;

use crate::{
    control::{ControlArgs, call},
    lun::LunSpec,
    output::Output,
    size,
};

#[derive(Debug, Clone, Args)]
pub(crate) struct LunArgs {
    #[command(subcommand)]
    what: LunCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum LunCommand {
    /// Show the LUNs
    List {
        #[command(flatten)]
        at: ControlArgs,
    },
    /// Serve one more LUN; initiators that are logged in are told
    Add {
        #[command(flatten)]
        at: ControlArgs,
        /// What it stores on: as `netraid target --lun` takes it
        backing: LunSpec,
        /// Its number; the lowest free one if none is given
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
        /// Logical block in bytes; as the target's other LUNs if none is given
        #[arg(long, value_parser = ["512", "4096"])]
        block_len: Option<String>,
    },
    /// Give a LUN another size; initiators that are logged in are told
    Resize {
        #[command(flatten)]
        at: ControlArgs,
        /// Number of the LUN
        lun: u16,
        /// The size that it shall have, as 64GiB or 64G (powers of 1024)
        #[arg(value_parser = size::parse)]
        size: u64,
        /// Also when that is less than it has: what is beyond is LOST
        #[arg(long)]
        shrink: bool,
    },
    /// Stop serving a LUN; what it stores on stays as it is
    Remove {
        #[command(flatten)]
        at: ControlArgs,
        /// Number of the LUN
        lun: u16,
        /// Although sessions use it
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SessionArgs {
    #[command(subcommand)]
    what: SessionCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum SessionCommand {
    /// Show who is logged in
    List {
        #[command(flatten)]
        at: ControlArgs,
    },
    /// End a session; its initiator may log in again
    Drop {
        #[command(flatten)]
        at: ControlArgs,
        /// Number of the session; all of them if none is given
        session: Option<u64>,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct FilterArgs {
    #[command(flatten)]
    at: ControlArgs,
    /// Number of the LUN
    lun: u16,
    /// Filters as `netraid target --filter` takes them, for example delay=5ms; or 'none'
    #[arg(value_name = "SPEC|none")]
    filter: String,
}

pub(crate) fn filter(args: &FilterArgs, output: Output) -> Result<()> {
    let filter = Some(args.filter.clone()).filter(|filter| filter != "none");
    let answer = call(&args.at, &TargetRequest::SetFilter { lun: args.lun, filter })?;
    let lun: LunStatus = serde_json::from_value(answer).context("the target's answer")?;
    output.document(&lun, || show_lun(&lun))
}

pub(crate) fn lun(args: &LunArgs, output: Output) -> Result<()> {
    match &args.what {
        LunCommand::List { at } => {
            let luns = target_status(at)?.luns;
            output.document(&luns, || show_all(&luns, show_lun, "there is no LUN"))
        }
        LunCommand::Add { at, backing, lun, block_len } => {
            let block_bytes = block_len.as_deref().map(str::parse).transpose()?;
            // The target may run in another directory.
            let backing = backing.clone().absolute()?.to_string();
            let answer = call(at, &TargetRequest::AddLun { backing, lun: *lun, block_bytes })?;
            let lun: LunStatus = serde_json::from_value(answer).context("the target's answer")?;
            output.document(&lun, || show_lun(&lun))
        }
        LunCommand::Resize { at, lun, size, shrink } => {
            let (lun, size, shrink) = (*lun, *size, *shrink);
            let answer = call(at, &TargetRequest::ResizeLun { lun, size, shrink })?;
            let lun: LunStatus = serde_json::from_value(answer).context("the target's answer")?;
            output.document(&lun, || show_lun(&lun))
        }
        LunCommand::Remove { at, lun, force } => {
            call(at, &TargetRequest::RemoveLun { lun: *lun, force: *force })?;
            output.document(&Value::Null, || format!("LUN {lun} is removed"))
        }
    }
}

pub(crate) fn session(args: &SessionArgs, output: Output) -> Result<()> {
    match &args.what {
        SessionCommand::List { at } => {
            let sessions = target_status(at)?.sessions;
            output.document(&sessions, || show_all(&sessions, show_session, "nobody is logged in"))
        }
        SessionCommand::Drop { at, session } => {
            let answer = call(at, &TargetRequest::DropSession { session: *session })?;
            output.document(&answer, || match answer.get("dropped").and_then(Value::as_u64) {
                Some(1) => "1 session is ended".to_owned(),
                dropped => format!("{} sessions are ended", dropped.unwrap_or(0)),
            })
        }
    }
}

fn target_status(at: &ControlArgs) -> Result<TargetStatus> {
    let answer = call(at, &TargetRequest::Status)?;
    serde_json::from_value(answer).context("no target's answer")
}

fn show_all<T>(all: &[T], show: impl Fn(&T) -> String, none: &str) -> String {
    if all.is_empty() { none.to_owned() } else { all.iter().map(show).collect() }
}

/// A target's status for people.
pub(crate) fn show(status: &TargetStatus) -> String {
    let TargetStatus { iqn, addresses, uptime_s, .. } = status;
    let luns: String = status.luns.iter().map(show_lun).collect();
    let sessions: String = status.sessions.iter().map(show_session).collect();
    let counters: Vec<_> = status.counters.iter().filter(|(_, count)| **count > 0).collect();
    let counters = counters.iter().map(|(name, count)| format!("{count} {name}"));
    let counters = counters.collect::<Vec<_>>().join(", ").replace('_', " ");
    format!(
        "target '{iqn}' on {}, for {uptime_s} s\n{luns}{sessions}  {counters}\n",
        addresses.join(", ")
    )
}

fn show_lun(lun: &LunStatus) -> String {
    let LunStatus { state, backing, uri, serial, .. } = lun;
    let (number, capacity) = (lun.lun, size::show(lun.capacity_bytes));
    let used = lun.used_bytes.map(|used| format!("{} used of ", size::show(used)));
    let used = used.unwrap_or_default();
    let filters: String = lun.filters.iter().map(|spec| format!(", filters {spec}")).collect();
    let read_only = if lun.read_only { ", read-only" } else { "" };
    let counts = show_counts(&lun.commands);
    let free = lun.free_bytes.map(|free| format!(" ({} free below)", size::show(free)));
    let free = free.unwrap_or_default();
    let troubles = show_troubles(lun);
    format!(
        "  LUN {number}  {state}{read_only}  {used}{capacity}{free} in blocks of {}  {backing}{filters}\n      {uri}  \
         serial {serial}\n      {} sessions, {} commands at the device; {counts}\n{troubles}",
        lun.block_bytes, lun.sessions, lun.running
    )
}

/// What keeps somebody from using a LUN as usual, a line each.
fn show_troubles(lun: &LunStatus) -> String {
    let mut text = String::new();
    if lun.flush_failed {
        text +=
            "      A FLUSH FAILED: what was written before may be lost; open it again, check it\n";
    }
    match &lun.sanitize {
        Some(SanitizeStatus { failed: true, .. }) => text += "      a SANITIZE FAILED\n",
        Some(SanitizeStatus { done_percent, .. }) => {
            text += &format!("      is sanitized: {done_percent}%\n");
        }
        None => {}
    }
    if let Some(reservation) = &lun.reservation {
        text += &format!("      reserved: {reservation}\n");
    }
    for RegistrantStatus { initiator, isid, key, holds } in &lun.registrants {
        let holds = if *holds { ", holds the reservation" } else { "" };
        let initiator = shown(initiator);
        text += &format!("      registered: {initiator} (ISID {isid}) by key {key}{holds}\n");
    }
    text
}

fn show_session(session: &SessionStatus) -> String {
    let SessionStatus { initiator, peer, kind, age_s, .. } = session;
    let initiator = shown(initiator);
    let chap =
        session.chap.as_deref().map_or("no CHAP".to_owned(), |digest| format!("CHAP {digest}"));
    let counts = show_counts(&session.commands);
    let kind = if kind == "normal" { "" } else { " (discovery)" };
    let pace = session.pace.as_ref().map_or(String::new(), show_pace);
    format!(
        "  session {}{kind}  {initiator}  from {peer}, {chap}, for {age_s} s\n      {counts}\n{pace}",
        session.session
    )
}

fn show_pace(pace: &PaceStatus) -> String {
    let PaceStatus { weight, waiting, granted, waited_us, waited_us_max, .. } = *pace;
    let limit = pace.limit.map_or("none".to_owned(), |limit| size::show(limit) + "/s");
    let mean_us = waited_us / granted.max(1);
    format!(
        "      floor {}/s, limit {limit}, weight {weight}: {waiting} wait, {granted} granted ({}, \
         {} by the floor), after {mean_us} us, {waited_us_max} at most\n",
        size::show(pace.floor),
        size::show(pace.granted_bytes),
        size::show(pace.floor_bytes),
    )
}

fn show_counts(counts: &CommandCounts) -> String {
    let CommandCounts { reads, writes, flushes, unmaps, others, .. } = counts;
    let CommandCounts { check_conditions, reservation_conflicts, busy, aborted, .. } = counts;
    format!(
        "{reads} reads of {}, {writes} writes of {}, {flushes} flushes, {unmaps} unmaps, {others} \
         others; {check_conditions} check conditions, {reservation_conflicts} conflicts, {busy} \
         busy, {aborted} aborted",
        size::show(counts.read_bytes),
        size::show(counts.written_bytes)
    )
}
