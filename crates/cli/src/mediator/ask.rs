//! Commands to a running mediator.

use std::{
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use netraid_cluster::{
    Code,
    access::{AccessFile, AccessPlace, Bearer, Role},
    audit::{LogEntry, LogPage},
    http::{Asked, Client, RequestError},
    mediator::{
        AgentEntry, AgentState, CheckReport, DifferenceKind, MediatorStatus, NewAccess, NewToken,
        PAGE_MAX,
    },
    now,
    paging::Pages,
};
use netraid_control::{
    clocks::Difference,
    retry::Failure,
    text::{escaped, shown},
    units::AgentId,
};
use serde::{Serialize, de::IgnoredAny};
use serde_json::json;

use crate::{
    cluster::{AccessArgs, parse_duration},
    output::Output,
    runtime, size,
};

/// How long a command waits for an answer; a check looks at everything.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const CHECK_LIMIT: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Args)]
pub(crate) struct NewAccessArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// What whoever has it may do
    #[arg(long, value_enum)]
    role: RoleArg,
    /// Who that is, for the audit log
    #[arg(long)]
    name: String,
    /// How long it is good; for ever when that is not given
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    term: Option<Duration>,
    /// File to write, readable for its owner alone. A file of yours that is there is replaced; a link, a device and
    /// somebody else's file are refused. Standard output when none
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleArg {
    /// Everything
    Admin,
    /// Names, volumes, data and plans
    Client,
    /// The same without changing anything
    Reader,
    /// Joining as an agent
    Agent,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// Its id
    #[arg(value_name = "AGENT")]
    agent: AgentId,
}

pub(crate) fn access(args: &NewAccessArgs, output: Output) -> Result<()> {
    let own = args.access.file()?;
    // Also has writes beyond a limit of files fail, instead of ending the process.
    let runtime = runtime()?;
    // Before there is a token that nobody would have.
    let place = args.output.as_deref().map(prepare).transpose()?;
    let client = args.access.client(ANSWER_LIMIT)?;
    let role = match args.role {
        RoleArg::Admin => Role::Admin,
        RoleArg::Client => Role::Client,
        RoleArg::Reader => Role::Reader,
        RoleArg::Agent => Role::Agent,
    };
    let for_ms = args.term.map(|term| u64::try_from(term.as_millis())).transpose()?;
    let new = NewAccess { role, name: args.name.clone(), for_ms };
    let made: Result<NewToken, RequestError> = runtime.block_on(client.post("/v1/access", &new));
    let made = made.map_err(perhaps_made)?;
    let id = made.entry.id;
    let made = AccessFile { token: Bearer::from_text(made.token), ..own };
    let delivered = match place {
        Some(place) => place.write(&made).map_err(anyhow::Error::from),
        None => output.deliver(&made, || serde_json::to_string_pretty(&made).unwrap_or_default()),
    };
    delivered.map_err(|error| {
        let removed = runtime.block_on(take_back(&client, id));
        match removed {
            Ok(()) => anyhow!("{error:#}; the bearer token {id} was taken back"),
            Err(failed) => anyhow!(
                "{error:#}; and the bearer token {id}, which nobody has, is still good: {failed}; DELETE \
                 /v1/access/{id} takes it back"
            ),
        }
    })
}

fn prepare(path: &Path) -> Result<AccessPlace> {
    let shown = path.display();
    let other = "without -o the access file goes to standard output";
    if let Err(error) = netraid_private::check_replaceable(path) {
        bail!("-o {shown}: {error}; {other}");
    }
    AccessPlace::prepare(path).map_err(|error| anyhow!("-o {error}; {other}"))
}

/// A request for a token that reached the mediator is not sent again: that would make another one.
fn perhaps_made(error: RequestError) -> anyhow::Error {
    match error.failure() {
        Failure::Broken => anyhow!(
            "{error}; a bearer token may have been made that nobody has: `netraid mediator log` says so, with its \
             number, and DELETE /v1/access/NUMBER takes it back"
        ),
        Failure::Unreached | Failure::Final => error.into(),
    }
}

async fn take_back(client: &Client, id: u64) -> Result<(), RequestError> {
    client.delete::<IgnoredAny>(&format!("/v1/access/{id}")).await.map(drop)
}

pub(crate) fn check(args: &CheckArgs, output: Output) -> Result<()> {
    let client = args.access.client(CHECK_LIMIT)?;
    let report: CheckReport = runtime()?.block_on(client.get("/v1/check"))?;
    output.document(&report, || {
        let mut text = format!(
            "{} agents, {} segments, {} allotments\n",
            report.agents, report.segments, report.allotments
        );
        for agent in &report.silent {
            text += &format!("agent {agent} does not answer, and was not compared\n");
        }
        for difference in &report.differences {
            let kind = match difference.kind {
                DifferenceKind::Leaked => "leaked",
                DifferenceKind::Missing => "missing",
                DifferenceKind::Different => "different",
                DifferenceKind::Lost => "lost",
                DifferenceKind::Implausible => "implausible",
            };
            let (agent, id, detail) = (difference.agent, &difference.id, &difference.detail);
            let (id, detail) = (shown(id), shown(detail));
            text += &format!("{kind} {id} on agent {agent}: {detail}\n");
        }
        text
    })?;
    match report.differences.len() {
        0 => Ok(()),
        differences => bail!("{differences} differences between agents and the mediator's store"),
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// So far back; all there is without it
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    since: Option<Duration>,
}

/// One line each, or one document with all.
pub(crate) fn log(args: &LogArgs, output: Output) -> Result<()> {
    let client = args.access.client(ANSWER_LIMIT)?;
    let since = args.since.map(|since| u64::try_from(since.as_millis())).transpose()?;
    let since = since.map(|since| now().0.saturating_sub(since));
    let since = since.map(|since| format!("&since={since}")).unwrap_or_default();
    let mut list = output.list();
    runtime()?.block_on(async {
        let mut after = String::new();
        let mut pages = Pages::new(usize::try_from(PAGE_MAX)?);
        loop {
            let path = format!("/v1/log?limit={PAGE_MAX}{since}{after}");
            let page: LogPage = client.get(&path).await?;
            let next = pages.take(page.entries.iter().map(|entry| entry.id), page.next)?;
            list.add(&page.entries, log_line)?;
            match next {
                Some(next) => after = format!("&after={next}"),
                None => return anyhow::Ok(()),
            }
        }
    })?;
    list.end()
}

fn log_line(entry: &LogEntry) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(entry.at.0));
    let at = at.map_or_else(|| entry.at.0.to_string(), httpdate::fmt_http_date);
    let who = if entry.who.is_empty() { "somebody" } else { &entry.who };
    let line = format!("{at}  {who} ({}): {}: {}", entry.role, entry.what, entry.outcome);
    // What clients said is in it, and is not to be taken for lines, nor for orders to a terminal.
    escaped(&line).to_string()
}

pub(crate) fn status(access: &AccessArgs, output: Output) -> Result<()> {
    let client = access.client(ANSWER_LIMIT)?;
    let (status, agents): (MediatorStatus, Vec<AgentEntry>) = runtime()?.block_on(async {
        anyhow::Ok((client.get("/v1/status").await?, client.get("/v1/agents").await?))
    })?;
    let wrong = agents.iter().filter_map(|entry| clock(entry).map(|clock| (&entry.status, clock)));
    let clocks: String = wrong
        .map(|(agent, clock)| format!("\nagent {} on {}: {clock}", agent.agent, shown(&agent.host)))
        .collect();
    output.document(&status, || {
        let MediatorStatus { mediator, names, plans, agents, reachable, bookings } = &status;
        format!(
            "mediator {mediator}: {names} names, {plans} plans, {bookings} bookings under way, \
             {reachable} of {agents} agents reachable{clocks}"
        )
    })
}

/// What is wrong with an agent's clock, if people are to know.
fn clock(entry: &AgentEntry) -> Option<Difference> {
    let difference = Difference { ahead_ms: entry.clock_ahead_ms? };
    (entry.state != AgentState::Away && difference.is_told()).then_some(difference)
}

/// An agent in one line.
fn line(entry: &AgentEntry) -> String {
    let state = match entry.state {
        AgentState::InService => "in service",
        AgentState::Draining => "draining",
        AgentState::Away => "away",
    };
    let status = &entry.status;
    let (left, all) = (status.left, status.capacity);
    let clock = clock(entry).map(|clock| format!(", but {clock}")).unwrap_or_default();
    format!(
        "{}  {state}{clock}  {} {}  {} segments  left: space {} of {}, device {}/s of {}/s, network {}/s of {}/s",
        status.agent,
        shown(&status.host),
        shown(&status.portal),
        entry.segments,
        size::show(left.space_bytes),
        size::show(all.space_bytes),
        size::show(left.device.0),
        size::show(all.device.0),
        size::show(left.network.0),
        size::show(all.network.0),
    )
}

#[derive(Debug, Serialize)]
struct Agents {
    agents: Vec<AgentEntry>,
}

pub(crate) fn agents(access: &AccessArgs, output: Output) -> Result<()> {
    let client = access.client(ANSWER_LIMIT)?;
    let agents: Vec<AgentEntry> = runtime()?.block_on(client.get("/v1/agents"))?;
    let agents = Agents { agents };
    output.document(&agents, || {
        let lines: Vec<String> = agents.agents.iter().map(line).collect();
        lines.join("\n")
    })
}

pub(crate) fn set_agent(args: &AgentArgs, what: &str, output: Output) -> Result<()> {
    let client = args.access.client(ANSWER_LIMIT)?;
    let path = format!("/v1/agents/{}/{what}", args.agent);
    let asked: Asked<AgentEntry> = runtime()?.block_on(client.post_again(&path, &(), None));
    match asked.answer {
        // It was retired, and the answer to that was lost.
        Err(RequestError::Refused(problem))
            if asked.may_be_done && problem.code == Code::Absent =>
        {
            output.document(&json!({ "agent": args.agent }), || format!("{}  is gone", args.agent))
        }
        answer => {
            let entry = answer?;
            output.document(&entry, || line(&entry))
        }
    }
}

#[cfg(test)]
mod tests {
    use netraid_control::units::Moment;

    use super::*;

    #[test]
    fn what_a_client_said_makes_no_line_of_the_log_of_its_own() {
        let entry = LogEntry {
            id: 1,
            at: Moment(0),
            who: "eve".to_owned(),
            role: "client".to_owned(),
            what: "renames /a\nThu, 01 Jan 1970 00:00:00 GMT  admin (admin): drains\u{1b}[2J"
                .to_owned(),
            outcome: "refused".to_owned(),
        };
        let line = log_line(&entry);
        assert!(!line.chars().any(char::is_control), "{line}");
        assert!(
            line.starts_with("Thu, 01 Jan 1970 00:00:00 GMT  eve (client): renames /a\\nThu"),
            "{line}"
        );
    }
}
