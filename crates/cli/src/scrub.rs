//! `netraid scrub`: has a running array read everything at rest and repair what is wrong.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use netraid_engine::control::{
    ArrayStatus, ControlRequest, ScrubAction, ScrubMemberStatus, ScrubStatus,
};
use serde_json::Value;

use crate::{
    control::{ControlArgs, call, socket_path},
    output::Output,
    progress, size,
    wait::{self, NO_ARRAY, Work},
};

/// What a scrub is to do.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScrubArgs {
    #[command(flatten)]
    at: ControlArgs,
    /// Begin one
    #[arg(long, group = "action")]
    start: bool,
    /// Have it wait
    #[arg(long, group = "action")]
    pause: bool,
    /// Have it go on
    #[arg(long, group = "action")]
    resume: bool,
    /// End it
    #[arg(long, group = "action")]
    stop: bool,
    /// Bytes a second to read from all members together, or `max`; 100MiB unless given
    #[arg(long, value_parser = rate, requires = "action")]
    rate: Option<u64>,
    /// With --start: the first physical stripe, as where another one was stopped
    #[arg(long, value_name = "STRIPE", requires = "start")]
    from: Option<u32>,
    /// With --start: rows whose checksums are lost on all members are taken as they are when parity
    /// confirms them; what was never written there may show old bytes then
    #[arg(long, requires = "start")]
    trust_parity: bool,
    /// Stay until it has ended, and show how far it is. Ends with 1 when something could not be repaired, or it is stopped
    /// before it is complete (what could not be checked, because its member is away, is told and is no failure), with 3
    /// after a signal, which does not end the scrub, and with 4 when the array's process goes away
    #[arg(long)]
    wait: bool,
}

fn rate(text: &str) -> Result<u64> {
    if text == "max" { Ok(0) } else { size::parse(text) }
}

pub(crate) fn run(args: &ScrubArgs, output: Output) -> Result<()> {
    let chosen = [
        (args.start, ScrubAction::Start),
        (args.pause, ScrubAction::Pause),
        (args.resume, ScrubAction::Resume),
        (args.stop, ScrubAction::Stop),
    ];
    if let Some((_, action)) = chosen.into_iter().find(|(chosen, _)| *chosen) {
        let (rate, trust_parity) = (args.rate, args.trust_parity);
        let from = args.from.unwrap_or_default();
        call(&args.at, &ControlRequest::Scrub { action, rate, from, trust_parity })?;
    }
    let mut scrub = look(args)?;
    if args.wait && scrub.as_ref().is_some_and(|scrub| !is_over(scrub)) {
        scrub = wait::wait(&socket_path(args.at.path())?, Work::Scrub, output)?.scrub;
    }
    let Some(scrub) = scrub else {
        return output.document(&Value::Null, || "no scrub since the array was opened".to_owned());
    };
    output.document(&scrub, || show(&scrub))?;
    if args.wait && scrub.unrepaired > 0 {
        bail!(
            "{} blocks or pages could not be repaired; the log of the array names them",
            scrub.unrepaired
        );
    }
    Ok(())
}

fn look(args: &ScrubArgs) -> Result<Option<ScrubStatus>> {
    let answer = call(&args.at, &ControlRequest::Status)?;
    if answer.get("kind").and_then(Value::as_str) != Some("array") {
        bail!(NO_ARRAY);
    }
    let status: ArrayStatus = serde_json::from_value(answer).context("the array's answer")?;
    Ok(status.scrub)
}

fn is_over(scrub: &ScrubStatus) -> bool {
    !["running", "paused"].contains(&scrub.state.as_str())
}

/// A scrub in one line.
pub(crate) fn show_line(scrub: &ScrubStatus) -> String {
    let far = if is_over(scrub) && scrub.state == "complete" {
        String::new()
    } else {
        let speed = progress::show_speed(scrub.bytes_per_s, scrub.left_ms);
        let far = progress::show_part(scrub.done_bytes, scrub.total_bytes);
        format!(" at {far}{speed}, stripe {}", scrub.next)
    };
    let new_sums = match scrub.new_sums {
        0 => String::new(),
        rows => format!(", {rows} rows with new checksums"),
    };
    format!(
        "scrub: {}{far}, {} checked, {} wrong, {} repaired, {} not{new_sums}",
        scrub.state,
        size::show(scrub.checked_bytes),
        scrub.wrong,
        scrub.repaired,
        scrub.unrepaired
    )
}

fn show(scrub: &ScrubStatus) -> String {
    let mut text = show_line(scrub) + "\n";
    for member in &scrub.members {
        let counts = [
            (member.wrong_data, "wrong data blocks"),
            (member.wrong_checks, "wrong check blocks"),
            (member.unreadable, "unreadable blocks"),
            (member.wrong_pages, "wrong pages"),
            (member.repaired, "repaired"),
            (member.unrepaired, "not repaired"),
            (member.absent, "blocks not checked"),
        ];
        let told: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let ScrubMemberStatus { index, .. } = member;
        if !told.is_empty() {
            text += &format!("  {index:>2}  {}\n", told.join(", "));
        }
    }
    text
}
