//! `netraid mediator`: runs a cluster's mediator, and talks to one.

mod ask;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Result;
use ask::{AgentArgs, CheckArgs, LogArgs, NewAccessArgs};
use clap::{Args, Subcommand};
use netraid_mediator::{Config, Mediator, Tls};
use serde::Serialize;

use crate::{
    cluster::{AccessArgs, ApiArgs, parse_duration},
    output::Output,
    runtime,
    signal::{Stop, stop_with_parent},
};

#[derive(Debug, Clone, Args)]
pub(crate) struct MediatorArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Run a mediator until told to stop
    Run(RunArgs),
    /// Make a bearer token, and write the access file for it
    Access(NewAccessArgs),
    /// Compare what agents have booked with what the mediator stores; exit code 1 when that differs
    Check(CheckArgs),
    /// Show who did what, and what came of it; newest last. For administrators
    Log(LogArgs),
    /// Show how the mediator is
    Status(AccessArgs),
    /// List its agents
    Agents(AccessArgs),
    /// Make nothing new on an agent
    Drain(AgentArgs),
    /// Use a drained agent again
    Undrain(AgentArgs),
    /// Let an agent go that has no segments any more
    Retire(AgentArgs),
}

#[derive(Debug, Clone, Args)]
struct RunArgs {
    /// Directory of its store; made if it is not there. At the first start admin.access,
    /// client.access and agent.access are written there: whoever reads one has its rights
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// Host name or address by which others reach it, without it the one that it listens on
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Certificate in PEM with its chain; without it one is made by an authority of its own
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "tls_authority")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate in PEM; nobody but its owner, who is this user or root, and its group may read it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Whom clients are to trust for the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_authority: Option<PathBuf>,
    /// Leave TLS away; on loopback only
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,
    /// How long a plan lasts without renewal, when its client does not say
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_term)]
    term: Duration,
    #[command(flatten)]
    api: ApiArgs,
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

fn parse_term(text: &str) -> Result<Duration, String> {
    let term = parse_duration(text)?;
    match term.as_secs() {
        1..=3600 => Ok(term),
        _ => Err("from 1s to 60m".to_owned()),
    }
}

/// What a mediator says once it serves.
#[derive(Debug, Serialize)]
struct Ready {
    event: &'static str,
    mediator: String,
    url: String,
    admin: PathBuf,
}

pub(crate) fn run(args: &MediatorArgs, output: Output) -> Result<()> {
    match &args.what {
        What::Run(args) => serve(args, output),
        What::Access(args) => ask::access(args, output),
        What::Check(args) => ask::check(args, output),
        What::Log(args) => ask::log(args, output),
        What::Status(args) => ask::status(args, output),
        What::Agents(args) => ask::agents(args, output),
        What::Drain(args) => ask::set_agent(args, "drain", output),
        What::Undrain(args) => ask::set_agent(args, "undrain", output),
        What::Retire(args) => ask::set_agent(args, "retire", output),
    }
}

fn serve(args: &RunArgs, output: Output) -> Result<()> {
    if args.exit_with_parent {
        stop_with_parent()?;
    }
    netraid_private::raise_descriptor_limit();
    let tls = match (&args.tls_cert, &args.tls_key, &args.tls_authority) {
        (Some(cert), Some(key), Some(authority)) => {
            Tls::Given { cert: cert.clone(), key: key.clone(), authority: authority.clone() }
        }
        _ if args.insecure => Tls::None,
        _ => Tls::Own,
    };
    let config = Config {
        directory: args.dir.clone(),
        listen: args.listen,
        advertise: args.advertise.clone(),
        tls,
        term_ms: u64::try_from(args.term.as_millis())?,
        api: args.api.limits(),
    };
    runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let mediator = Mediator::open(config).await?;
        let ready = Ready {
            event: "ready",
            mediator: mediator.id().to_string(),
            url: mediator.url().to_owned(),
            admin: mediator.admin_access().to_owned(),
        };
        output.announce(&ready, || {
            format!(
                "mediator {} at {}\naccess: {}",
                ready.mediator,
                ready.url,
                ready.admin.display()
            )
        });
        Ok(mediator.run(stop.wait()).await?)
    })
}
