//! The netraid binary: one module a command.
//!
//! A command reads what was typed, calls the engine, and says what came of it. Errors go to
//! standard error as "what, which, limit; what to do" with exit code 1, usage errors with 2.

mod agent;
mod attach;
mod bars;
mod bench;
mod cluster;
mod control;
mod create;
mod ending;
mod evaluate;
mod examine;
mod filter;
mod hammer;
mod lines;
mod listen;
mod load;
mod lun;
mod machine;
mod mediator;
mod member;
mod names;
mod nbd_client;
mod output;
mod page;
mod panics;
mod pattern;
mod plan;
mod process;
mod progress;
mod quickstart;
mod scrub;
mod secret;
mod signal;
mod simulate;
mod size;
mod standby;
mod target;
mod volume;
mod wait;

use std::{io::IsTerminal as _, process::ExitCode};

use anyhow::Result;
use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use netraid_block::{redact_addresses, redact_message};
use netraid_control::text::escaped;
use output::Output;
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;
use wait::NotWaited;

/// A small write to an array takes some twenty pieces of memory for its way, and gives them back: with the C library's that is a
/// seventh of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Joins the disks of several hosts into one volume that survives their failure
#[derive(Debug, Parser)]
#[command(name = "netraid", version, max_term_width = 100)]
struct Cli {
    /// Print one machine-readable document on standard output
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start targets on this machine, an array over them and its export
    Quickstart(quickstart::QuickstartArgs),
    /// Serve segments for the mediators of a cluster
    Agent(agent::AgentArgs),
    /// Serve LUNs over iSCSI
    Target(target::TargetArgs),
    /// Label members as a new array
    Create(create::CreateArgs),
    /// Show the labels at some addresses
    Examine(examine::ExamineArgs),
    /// Run an array and export it until told to stop
    Attach(attach::AttachArgs),
    /// Show a running array or target (unix:PATH): its state, and each member, or LUN and session;
    /// or what the labels at some addresses add up to
    Status(control::StatusArgs),
    /// Set a member of a running array aside
    Fail(control::MemberOfArgs),
    /// Put another device in a member's place: a member in sync is copied to it, and serves meanwhile;
    /// else it is rebuilt from the others
    Replace(control::ReplaceArgs),
    /// Take a member back that was set aside or missing, and write what it lacks
    Rebuild(control::RebuildArgs),
    /// Have the counters of what went wrong with members of a running array begin anew
    ClearErrors(control::ClearErrorsArgs),
    /// Read everything at rest of a running array, and write again what is wrong; without a command,
    /// show how that is
    Scrub(scrub::ScrubArgs),
    /// Show, add, resize or remove LUNs of a running target
    Lun(target::LunArgs),
    /// Put filters before a LUN of a running target, or take them away
    Filter(target::FilterArgs),
    /// Show or end the sessions of a running target
    Session(target::SessionArgs),
    /// Close a running array, or stop a running target, and end its process
    Stop(control::StopArgs),
    /// Block volumes of a cluster: make, list, show, remove, run and export them
    Volume(volume::VolumeArgs),
    /// Store a file in a cluster
    Put(Box<names::PutArgs>),
    /// Fetch a file from a cluster
    Get(names::GetArgs),
    /// Write what a cluster has by a name to standard output
    Cat(names::CatArgs),
    /// List a directory of a cluster
    Ls(names::ListArgs),
    /// Show what a name of a cluster stands for, where it is stored, and why
    Stat(names::PathArgs),
    /// Remove names from a cluster, and what they stand for
    Rm(names::RemoveArgs),
    /// Give something in a cluster another name
    Mv(names::MoveArgs),
    /// Make a directory in a cluster
    Mkdir(names::MakeDirectoryArgs),
    /// Run or look after a cluster's mediator
    Mediator(mediator::MediatorArgs),
    /// Measure parts, a member, a volume or a cluster: rates, latencies, processor time
    Bench(bench::BenchArgs),
    /// Test storage of any maker as a buyer does: two matrices, random requests, tricks; a report
    Evaluate(Box<evaluate::EvaluateArgs>),
    /// Model a system from a description of its parts: rates, and how busy each part is
    Simulate(simulate::SimulateArgs),
    /// Propose arrays for what a site has, from wishes: rate, capacity, losses, times
    Plan(plan::PlanArgs),
    /// Run one stream of an evaluation, as standard input says
    #[command(hide = true)]
    EvaluateClient(evaluate::ClientArgs),
    /// Write data that can be verified to an NBD export, or verify it
    #[command(hide = true)]
    Load(load::LoadArgs),
    /// Keep an NBD export busy through its crashes, and verify what it holds after each
    #[command(hide = true)]
    Hammer(hammer::HammerArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    panics::end_the_process();
    start_log();
    let end = match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error);
            match error.downcast_ref::<NotWaited>() {
                Some(why) => ExitCode::from(why.status()),
                None => ExitCode::FAILURE,
            }
        }
    };
    lines::finish();
    end
}

fn run(cli: Cli) -> Result<()> {
    let output = Output::new(cli.json);
    match cli.command {
        Command::Quickstart(args) => quickstart::run(&args, output),
        Command::Agent(args) => agent::run(&args, output),
        Command::Target(args) => target::run(&args, output),
        Command::Create(args) => create::run(&args, output),
        Command::Examine(args) => examine::run(&args, output),
        Command::Attach(args) => attach::run(&args, output),
        Command::Status(args) => control::status(&args, output),
        Command::Fail(args) => control::fail(&args, output),
        Command::Replace(args) => control::replace(&args, output),
        Command::Rebuild(args) => control::rebuild(&args, output),
        Command::ClearErrors(args) => control::clear_errors(&args, output),
        Command::Scrub(args) => scrub::run(&args, output),
        Command::Lun(args) => target::lun(&args, output),
        Command::Filter(args) => target::filter(&args, output),
        Command::Session(args) => target::session(&args, output),
        Command::Stop(args) => control::stop(&args, output),
        Command::Volume(args) => volume::run(&args, output),
        Command::Put(args) => names::put(&args, output),
        Command::Get(args) => names::get(&args, output),
        Command::Cat(args) => names::cat(&args, output),
        Command::Ls(args) => names::list(&args, output),
        Command::Stat(args) => names::stat(&args, output),
        Command::Rm(args) => names::remove(&args, output),
        Command::Mv(args) => names::rename(&args, output),
        Command::Mkdir(args) => names::make_directory(&args, output),
        Command::Mediator(args) => mediator::run(&args, output),
        Command::Bench(args) => bench::run(&args, output),
        Command::Evaluate(args) => evaluate::run(&args, output),
        Command::Simulate(args) => simulate::run(&args, output),
        Command::Plan(args) => plan::run(&args, output),
        Command::EvaluateClient(args) => evaluate::run_client(&args),
        Command::Load(args) => load::run(&args, output),
        Command::Hammer(args) => hammer::run(&args, output),
    }
}

/// One thread does all that a command does.
fn runtime() -> Result<Runtime> {
    runtime_of(1)
}

/// So many threads do all that a command does: members' connections, the array and its exports are
/// tasks, and go to whichever thread is free.
fn runtime_of(threads: u8) -> Result<Runtime> {
    use tokio::runtime::Builder;
    let mut builder = match threads {
        0 | 1 => Builder::new_current_thread(),
        2.. => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(usize::from(threads)).thread_name("netraid-array");
    }
    let runtime = builder.enable_all().build()?;
    let entered = runtime.enter();
    signal::survive_file_limits()?;
    drop(entered);
    Ok(runtime)
}

/// Says why a command failed.
fn tell(error: &anyhow::Error) {
    let why = escaped(&describe(error)).to_string();
    lines::errors().push(format!("netraid: {why}\n").as_bytes());
}

/// An error with its causes, in one line, without the secrets of addresses that it quotes.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Errors of libraries may name their cause in their own text already.
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    redact_addresses(&text)
}

/// Says what is wrong with a command line, or what was asked of it (`--help`). The parser quotes
/// what was typed, which may hold a secret.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    let shown = redact_message(&text, value);
    if shown == text {
        error.exit();
    }
    lines::errors().push(shown.as_bytes());
    lines::finish();
    ExitCode::from(2)
}

/// Warnings go to standard error; NETRAID_LOG asks for more (for example `debug`). Nothing waits for them to be
/// written.
fn start_log() {
    let filter = EnvFilter::try_from_env("NETRAID_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines::errors)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
}
