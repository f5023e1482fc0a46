//! `netraid status`, `fail`, `replace`, `rebuild` and `stop`: commands to a running array, or a
//! running target, through its control socket.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use netraid_block::TargetUri;
use netraid_control::text::{escaped, shown};
use netraid_engine::{
    array::{self, SurveyReport},
    control::{
        self, ArrayStatus, ControlRequest, ControlServer, HandedSecret, MemberStatus,
        StandbyStatus, TargetStatus,
    },
};
use serde::Serialize;
use serde_json::Value;

use crate::{
    create::show_log,
    examine::show_holder,
    member::MemberArgs,
    output::Output,
    progress, runtime, scrub,
    secret::{SecretArgs, Secrets},
    size, standby, target,
    wait::{self, NO_ARRAY, Work},
};

/// How long a process may take to end when it has said that it has closed all.
const CLOSE: Duration = Duration::from_secs(60);

/// Where a running array or target listens.
#[derive(Debug, Clone, Args)]
pub(crate) struct ControlArgs {
    /// Control socket of the running array or target: unix:PATH
    control: String,
}

impl ControlArgs {
    /// The control socket, as it was given.
    pub(crate) fn path(&self) -> &str {
        &self.control
    }
}

/// What a status is wanted of.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    of: MemberArgs,
}

/// Which member of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct MemberOfArgs {
    #[command(flatten)]
    at: ControlArgs,
    /// The member: its index or its address
    member: String,
}

/// Whether a command stays until its work is done.
#[derive(Debug, Clone, Copy, Args)]
struct WaitArgs {
    /// Stay until the member has everything, and show how far that is. Ends with 1 when the member is set aside before,
    /// with 3 after a signal, which does not end the work, and with 4 when the array's process goes away
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RebuildArgs {
    #[command(flatten)]
    of: MemberOfArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    of: MemberOfArgs,
    /// Address of the device that takes its place
    with: String,
    /// File with the CHAP secret of the address's user, or with lines `user:secret`, as `attach` takes it.
    /// Without it the secret is taken from NETRAID_SECRET_USER (user in capitals) or NETRAID_SECRET; when
    /// none is found, `attach` uses one that it was given. No other user's secret is handed to `attach`
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Take the device although it is in use: what is on it is lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ClearErrorsArgs {
    #[command(flatten)]
    at: ControlArgs,
    /// The member: its index or its address; without it, all members
    member: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    at: ControlArgs,
    /// Although somebody uses its exports, or is logged in: they are cut off, and what they have not
    /// written yet is LOST
    #[arg(long)]
    force: bool,
}

/// A running array or target is asked; otherwise the labels at the addresses tell.
pub(crate) fn status(args: &StatusArgs, output: Output) -> Result<()> {
    if let [control] = args.of.urls()
        && !control.starts_with("iscsi:")
    {
        return status_of_running(&ControlArgs { control: control.clone() }, output);
    }
    let members = args.of.configs()?;
    let report = runtime()?.block_on(array::survey(members, netraid_engine::pool()))?;
    output.document(&report, || show_survey(&report))
}

fn status_of_running(args: &ControlArgs, output: Output) -> Result<()> {
    let answer = call(args, &ControlRequest::Status)?;
    if answer.get("kind").and_then(Value::as_str) == Some("target") {
        let status: TargetStatus = serde_json::from_value(answer).context("the target's answer")?;
        return output.document(&status, || target::show(&status));
    }
    if answer.get("kind").and_then(Value::as_str) == Some("standby") {
        let status: StandbyStatus =
            serde_json::from_value(answer).context("the engine's answer")?;
        return output.document(&status, || standby::show(&status));
    }
    let status: ArrayStatus = serde_json::from_value(answer).context("the array's answer")?;
    output.document(&status, || show(&status))
}

pub(crate) fn fail(args: &MemberOfArgs, output: Output) -> Result<()> {
    let answer = call(&args.at, &ControlRequest::Fail { member: args.member.clone() })?;
    output.document(&answer, || format!("member {} is set aside", args.member))
}

pub(crate) fn replace(args: &ReplaceArgs, output: Output) -> Result<()> {
    let MemberOfArgs { at, member } = &args.of;
    let secret = secret_for(&args.with, args.secret_file.as_ref())?;
    // Another address may be the member's afterwards.
    let waited = args.wait.wait.then(|| index_of(at, member)).transpose()?;
    let (member, with) = (member.clone(), args.with.clone());
    let answer = call(at, &ControlRequest::Replace { member, with, secret, force: args.force })?;
    let with = TargetUri::parse(&args.with).map(|uri| uri.to_string()).unwrap_or_default();
    let work = waited.map(|member| Work::Replaced(member, with));
    let text = match wait_for(at, work, output)? {
        true => "is replaced and has everything; attach the array with the new address from now on",
        false => {
            "is being replaced; `netraid status` says how far that is, and the new address is the member's from then on"
        }
    };
    output.document(&answer, || format!("member {} {text}", args.of.member))
}

/// The index of a member that is given by index or address.
fn index_of(at: &ControlArgs, given: &str) -> Result<u8> {
    let answer = call(at, &ControlRequest::Status)?;
    let status: ArrayStatus = serde_json::from_value(answer).map_err(|_| anyhow!(NO_ARRAY))?;
    let address = TargetUri::parse(given).map(|uri| uri.to_string()).ok();
    let by_index = |member: &&MemberStatus| given.parse::<u8>() == Ok(member.index);
    let by_address = |member: &&MemberStatus| address.as_deref() == Some(member.url.as_str());
    let members = || status.members.iter();
    let found = members().find(by_index).or_else(|| members().find(by_address));
    let last = status.members.len().saturating_sub(1);
    found.map(|member| member.index).with_context(|| {
        format!("no member '{}'; give an index from 0 to {last}, or its address", escaped(given))
    })
}

/// Waits for work, if that is asked for; whether it was.
fn wait_for(at: &ControlArgs, work: Option<Work>, output: Output) -> Result<bool> {
    let Some(work) = work else { return Ok(false) };
    wait::wait(&socket_path(&at.control)?, work, output)?;
    Ok(true)
}

/// The secret that the running array is handed for an address: none when the address has its own, or none is
/// known here.
fn secret_for(address: &str, secret_file: Option<&PathBuf>) -> Result<Option<HandedSecret>> {
    let secret_file = secret_file.cloned();
    let secrets = Secrets::load(&SecretArgs { secret_file, ..SecretArgs::default() })?;
    let Ok(uri) = TargetUri::parse(address) else {
        // The array says what is wrong with it.
        return Ok(None);
    };
    if uri.secret.is_some() {
        return Ok(None);
    }
    Ok(secrets.known(&uri)?.map(HandedSecret))
}

pub(crate) fn rebuild(args: &RebuildArgs, output: Output) -> Result<()> {
    let MemberOfArgs { at, member } = &args.of;
    let waited = args.wait.wait.then(|| index_of(at, member)).transpose()?;
    let answer = call(at, &ControlRequest::Rebuild { member: member.clone() })?;
    let is_done = wait_for(at, waited.map(Work::Member), output)?;
    let now = if is_done { "has everything" } else { "is rebuilt now" };
    output.document(&answer, || format!("member {member} {now}"))
}

pub(crate) fn clear_errors(args: &ClearErrorsArgs, output: Output) -> Result<()> {
    let member = args.member.clone();
    let answer = call(&args.at, &ControlRequest::ClearErrors { member })?;
    output.document(&answer, || match &args.member {
        Some(member) => format!("the counters of member {member} begin anew"),
        None => "the counters of all members begin anew".to_owned(),
    })
}

pub(crate) fn stop(args: &StopArgs, output: Output) -> Result<()> {
    let path = socket_path(&args.at.control)?;
    // Of an array and of a target it is the same.
    let end = call(&args.at, &ControlRequest::Stop { force: args.force })?;
    // The socket goes with the process.
    let deadline = Instant::now() + CLOSE;
    while std::os::unix::net::UnixStream::connect(&path).is_ok() {
        if Instant::now() > deadline {
            bail!("it does not end within {} s; see its log", CLOSE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    output.document(&end, || format!("it has ended{}", show_cut_off(&end)))
}

/// Who was cut off by force, for people.
fn show_cut_off(end: &Value) -> String {
    let counts = end.get("cut_off").and_then(Value::as_object).into_iter().flatten();
    let some = counts.filter(|(_, count)| count.as_u64() != Some(0));
    let shown: Vec<_> =
        some.map(|(who, count)| format!("{count} {}", who.replace('_', " "))).collect();
    if shown.is_empty() { String::new() } else { format!("; cut off: {}", shown.join(", ")) }
}

/// The path in `unix:PATH`.
pub(crate) fn socket_path(text: &str) -> Result<PathBuf> {
    let path = text.strip_prefix("unix:").filter(|path| !path.is_empty());
    let path = path.with_context(|| format!("control socket '{text}': write unix:PATH"))?;
    Ok(path.into())
}

/// Listens at `unix:PATH` for commands.
pub(crate) fn bind_control(address: &str) -> Result<ControlServer> {
    let path = socket_path(address)?;
    ControlServer::bind(&path).with_context(|| {
        format!("control socket {}: cannot listen; choose another path", path.display())
    })
}

/// Sends a command to a running array or target.
pub(crate) fn call(args: &ControlArgs, request: &impl Serialize) -> Result<Value> {
    let path = socket_path(&args.control)?;
    Ok(runtime()?.block_on(control::call(&path, request))?)
}

/// What labels add up to, for people.
fn show_survey(report: &SurveyReport) -> String {
    let SurveyReport { name, level, state, holder, .. } = report;
    let left = if report.clean { "closed" } else { "open there, or not closed" };
    let capacity = size::show(report.capacity_bytes);
    let log = show_log(report.log_bytes);
    let (name, holder) = (shown(name), show_holder(holder));
    let mut text =
        format!("array '{name}', level {level}, {state}, {capacity}, {log}; {holder}, {left}\n");
    for member in &report.members {
        let url = escaped(&member.url);
        text += &format!("  {:>2}  {:<11}  {url}\n", member.index, member.state);
    }
    report.notes.iter().fold(text, |text, note| text + &format!("  {}\n", escaped(note)))
}

/// What went wrong with a member, as far as anything did.
fn show_faults(member: &MemberStatus) -> String {
    let counts = [
        (member.wrong_blocks, "wrong blocks"),
        (member.lost_writes, "lost writes"),
        (member.unreadable_blocks, "unreadable blocks"),
        (member.late, "late reads"),
        (member.reconnects, "reconnects"),
    ];
    let told = counts.into_iter().filter(|(count, _)| *count > 0);
    told.fold(format!("{} errors", member.errors), |text, (count, what)| {
        text + &format!(", {count} {what}")
    })
}

/// A status for people.
pub(crate) fn show(status: &ArrayStatus) -> String {
    let named = match &status.path {
        Some(path) => format!("volume {}", shown(path)),
        None => format!("array '{}'", shown(&status.name)),
    };
    let mut text = format!(
        "{named}, level {}, {}, {} of {} used{}\n",
        status.level,
        status.state,
        size::show(status.used_bytes),
        size::show(status.capacity_bytes),
        if status.read_only { ", read-only" } else { "" }
    );
    if let Some(failure) = &status.failure {
        text += &format!("  {}\n", escaped(failure));
    }
    if let Some(log) = &status.log {
        let of = |bytes| size::show(bytes);
        text += &format!(
            "  log: {} of {} used, {} to be brought home, round {}\n",
            of(log.used_bytes),
            of(log.size_bytes),
            of(log.dirty_bytes),
            log.round
        );
    }
    if let Some(lack) = &status.no_space {
        let members: Vec<String> = lack.members.iter().map(u8::to_string).collect();
        text += &format!(
            "  no space left on members {}: {} wait in the log, and writes that need more space are \
             refused; discard what is not needed, or give these members space\n",
            members.join(", "),
            size::show(lack.waiting_bytes)
        );
    }
    if let Some(scrub) = &status.scrub {
        text += &format!("  {}\n", scrub::show_line(scrub));
    }
    for progress in status.progress.iter().chain(&status.progress_beside) {
        text += &format!("  {}\n", progress::show(progress));
    }
    for member in &status.members {
        let (read, written) = (size::show(member.read_bytes), size::show(member.written_bytes));
        let serves = ["in_sync", "catching_up"].contains(&member.state.as_str());
        let is_open = serves && !member.exclusive && !status.read_only;
        text += &format!(
            "  {:>2}  {:<11}  {}  read {read}, written {written}, {}{}{}\n",
            member.index,
            member.state,
            escaped(&member.url),
            show_faults(member),
            if member.slow { ", slow: what it has is read from the others" } else { "" },
            if is_open { ", not fenced" } else { "" }
        );
        if let Some(successor) = &member.successor {
            text +=
                &format!("      {} takes its place when it has everything\n", escaped(successor));
        }
        if let Some(error) = &member.last_error {
            text += &format!("      last error: {}\n", escaped(error));
        }
    }
    for spare in &status.spares {
        text += &format!("   -  {:<11}  {}\n", "spare", escaped(spare));
    }
    text
}
