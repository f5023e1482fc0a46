//! `--wait`: a command stays until the work that it began, or found, has ended, and shows how far that is.
//!
//! [`Waiting`] says what each status of the array means for that; the rest asks for statuses and shows what is said.

use std::{
    fmt,
    io::IsTerminal as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use indicatif::ProgressBar;
use netraid_control::text::escaped;
use netraid_engine::control::{self, ArrayStatus, ControlRequest, MemberStatus, ProgressStatus};
use serde_json::Value;

use crate::{lines, output::Output, progress, runtime, scrub, signal::Stop};

/// From one look at the array to the next one, first and later.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(500);
/// How long it is looked often.
const LOOK_OFTEN: Duration = Duration::from_secs(2);
/// Looks at which a member is waited for that is set aside after a pause: ten seconds.
const PATIENCE: u32 = 20;
/// From one line to the next one where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// A member gets everything that it lacks.
    Member(u8),
    /// The device at an address gets everything that the member has, and its place.
    Replaced(u8, String),
    /// The scrub that runs.
    Scrub,
    /// Every member has everything.
    Whole,
}

/// Why the waiting has ended before the work has, or what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotWaited {
    /// A signal ended it; the text says what becomes of the work.
    Interrupted(String),
    /// The array's process does not answer any more, and why.
    Away(String),
}

impl NotWaited {
    /// The status that the command ends with; 1 is for work that has failed, and 2 for wrong command lines.
    pub(crate) const fn status(&self) -> u8 {
        match self {
            Self::Interrupted(_) => 3,
            Self::Away(_) => 4,
        }
    }
}

impl fmt::Display for NotWaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(work) => write!(f, "interrupted by a signal: {work}"),
            Self::Away(why) => write!(
                f,
                "the array's process went away while its work was waited for, how far that came is not known: {why}; \
                 see its log, and `netraid status` once it is attached again"
            ),
        }
    }
}

impl std::error::Error for NotWaited {}

/// What a status says of what is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It goes on.
    Going(Far),
    /// It has ended well.
    Done,
    /// It has ended otherwise.
    Failed(String),
}

/// How far the work is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Far {
    /// In one line.
    pub(crate) text: String,
    /// What it is, and of what.
    pub(crate) what: String,
    /// How fast it goes, and how long it takes yet.
    pub(crate) speed: String,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// Somebody who waits.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    work: Work,
    /// When a line is due.
    line_at: Duration,
    /// When it is looked again less often.
    often_until: Duration,
    /// Looks at which a member that is set aside is waited for still: the array has paused, and takes it back.
    patience: u32,
}

impl Waiting {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, line_at: LINE_EVERY, often_until: LOOK_OFTEN, patience: 0 }
    }

    /// What a status says, so long after the waiting began.
    pub(crate) fn handle_status(&mut self, status: &ArrayStatus) -> Seen {
        if status.state == "failed" {
            let why = status.failure.as_deref().unwrap_or("see its log");
            return Seen::Failed(format!("the array failed while its work was waited for: {why}"));
        }
        let patience = self.patience.saturating_sub(1);
        self.patience = if status.state == "paused" { PATIENCE } else { patience };
        match &self.work {
            Work::Member(member) => member_seen(status, *member, self.patience > 0),
            Work::Replaced(member, with) => {
                replaced_seen(status, (*member, with), self.patience > 0)
            }
            Work::Scrub => scrub_seen(status),
            Work::Whole if status.state == "optimal" => Seen::Done,
            Work::Whole => Seen::Going(far(status, status.progress.as_ref(), "heal")),
        }
    }

    /// Whether a line is due, so long after the waiting began; the next one is later then.
    pub(crate) fn is_line_due(&mut self, waited: Duration) -> bool {
        let is_due = waited >= self.line_at;
        if is_due {
            self.line_at = waited + LINE_EVERY;
        }
        is_due
    }

    /// How long to wait before the next look.
    pub(crate) fn look_after(&self, waited: Duration) -> Duration {
        if waited < self.often_until { LOOK_FIRST } else { LOOK }
    }
}

fn member_seen(status: &ArrayStatus, index: u8, comes_back: bool) -> Seen {
    let Some(member) = status.members.iter().find(|one| one.index == index) else {
        return Seen::Failed(format!("the array has no member {index} any more"));
    };
    let all = status.progress.iter().chain(&status.progress_beside);
    let progress = all.into_iter().find(|one| one.member == Some(index));
    match (member.state.as_str(), progress) {
        ("in_sync", _) => Seen::Done,
        ("faulty" | "missing", _) if !comes_back => Seen::Failed(set_aside(member)),
        (_, Some(progress)) if progress.lost_bytes > 0 => Seen::Failed(format!(
            "member {index} does not get all that it lacks: {}; bring back the members that have it, or write these \
             bytes anew",
            progress::show(progress)
        )),
        (_, progress) => {
            Seen::Going(far(status, progress, &format!("member {index}, {}", member.state)))
        }
    }
}

/// A member may be copied still, or have been set aside for its copy; and its place may have another address than was asked for.
fn replaced_seen(status: &ArrayStatus, (index, with): (u8, &str), comes_back: bool) -> Seen {
    let member = status.members.iter().find(|one| one.index == index);
    match (member, member_seen(status, index, comes_back)) {
        (Some(member), _) if member.successor.is_some() => {
            let all = status.progress.iter().chain(&status.progress_beside);
            let progress = all.into_iter().find(|one| one.member == Some(index));
            Seen::Going(far(status, progress, &format!("copy of member {index}")))
        }
        (Some(member), Seen::Done) if member.url != with => {
            let why = member.last_error.as_deref().unwrap_or("see its log");
            Seen::Failed(format!("member {index} was not replaced, and serves as before: {why}"))
        }
        (_, seen) => seen,
    }
}

fn set_aside(member: &MemberStatus) -> String {
    let MemberStatus { index, state, last_error, .. } = member;
    let why = last_error.as_deref().map(|error| format!(" ({error})")).unwrap_or_default();
    format!(
        "member {index} was set aside before it had everything, and is {state}{why}; it goes on where it was when it is \
         back: see `netraid status`"
    )
}

fn scrub_seen(status: &ArrayStatus) -> Seen {
    let Some(scrub) = &status.scrub else {
        let why = "the scrub has ended with the array's pause; start it again";
        return Seen::Failed(why.to_owned());
    };
    match scrub.state.as_str() {
        "complete" => Seen::Done,
        "stopped" => Seen::Failed(format!(
            "the scrub was stopped before it was complete, at stripe {}; `--start --from {}` goes on there",
            scrub.next, scrub.next
        )),
        state => Seen::Going(Far {
            text: scrub::show_line(scrub),
            what: format!("scrub, {state}"),
            speed: progress::show_speed(scrub.bytes_per_s, scrub.left_ms),
            done_bytes: scrub.done_bytes,
            total_bytes: scrub.total_bytes,
        }),
    }
}

/// How far a rebuild is that may not have begun; `what` says what is waited for until then.
fn far(status: &ArrayStatus, progress: Option<&ProgressStatus>, what: &str) -> Far {
    let Some(progress) = progress else {
        let text = format!("{what}: waits; the array is {}", status.state);
        return Far { text, what: what.to_owned(), ..Far::default() };
    };
    let member = progress.member.map(|member| format!(" of member {member}"));
    Far {
        text: progress::show(progress),
        what: progress.kind.replace('_', "-") + &member.unwrap_or_default(),
        speed: progress::show_speed(progress.bytes_per_s, progress.left_ms),
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
    }
}

/// Shows how far the work is: a bar on a terminal, else a line now and then; nothing to a machine.
pub(crate) struct Shown {
    waiting: Waiting,
    began: Instant,
    bar: ProgressBar,
    has_lines: bool,
}

impl Shown {
    pub(crate) fn new(work: Work, output: Output) -> Self {
        let has_lines = !output.is_json() && !std::io::stderr().is_terminal();
        let bar = output.progress_told("");
        Self { waiting: Waiting::new(work), began: Instant::now(), bar, has_lines }
    }

    /// Shows what a status says, and answers what that is.
    pub(crate) fn show(&mut self, status: &ArrayStatus) -> Seen {
        let seen = self.waiting.handle_status(status);
        if let Seen::Going(far) = &seen {
            self.bar.set_message(escaped(&far.what).to_string());
            self.bar.set_prefix(far.speed.trim_start_matches(", ").to_owned());
            self.bar.set_length(far.total_bytes);
            self.bar.set_position(far.done_bytes);
            if self.has_lines && self.waiting.is_line_due(self.began.elapsed()) {
                lines::errors().push(format!("{}\n", escaped(&far.text)).as_bytes());
            }
        }
        seen
    }

    fn look_after(&self) -> Duration {
        self.waiting.look_after(self.began.elapsed())
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Waits until the work of the array at a control socket has ended, and answers how the array is then.
///
/// # Errors
/// When the work ends otherwise than well; [`NotWaited`] when it is not known how.
pub(crate) fn wait(path: &Path, work: Work, output: Output) -> Result<ArrayStatus> {
    runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let mut shown = Shown::new(work, output);
        loop {
            let look = tokio::select! {
                look = look(path) => look,
                () = stop.wait() => Err(interrupted().into()),
            };
            let status = look?;
            match shown.show(&status) {
                Seen::Done => return Ok(status),
                Seen::Failed(why) => return Err(anyhow!(why)),
                Seen::Going(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(shown.look_after()) => {}
                () = stop.wait() => return Err(interrupted().into()),
            }
        }
    })
}

fn interrupted() -> NotWaited {
    let work = "the waiting has ended, and the work goes on; `netraid status` says how far it is";
    NotWaited::Interrupted(work.to_owned())
}

/// How the array is.
async fn look(path: &Path) -> Result<ArrayStatus> {
    let answer = control::call(path, &ControlRequest::Status).await;
    let answer = answer.map_err(|error| NotWaited::Away(error.to_string()))?;
    if answer.get("kind").and_then(Value::as_str) != Some("array") {
        return Err(anyhow!(NO_ARRAY));
    }
    serde_json::from_value(answer).context("the array's answer")
}

/// What is said where something else listens.
pub(crate) const NO_ARRAY: &str =
    "what listens there is no array; give the control socket of `netraid attach`";

#[cfg(test)]
mod tests {
    use super::*;
    use netraid_engine::control::ScrubStatus;

    fn status(state: &str, members: &[&str]) -> ArrayStatus {
        let member = |(index, state): (u8, &&str)| MemberStatus {
            index,
            state: (*state).to_owned(),
            ..MemberStatus::default()
        };
        let members: Vec<_> = (0..).zip(members).map(member).collect();
        let document = serde_json::json!({
            "kind": "array", "name": "a", "uuid": "", "level": 5, "state": state, "read_only": false,
            "capacity_bytes": 0, "used_bytes": 0, "chunk_bytes": 0, "block_bytes": 0, "generation": 1,
            "epoch": 1, "members": members,
        });
        serde_json::from_value(document).unwrap()
    }

    fn progress(member: u8) -> ProgressStatus {
        ProgressStatus {
            kind: "rebuild".to_owned(),
            member: Some(member),
            done_bytes: 1 << 20,
            total_bytes: 4 << 20,
            lost_bytes: 0,
            bytes_per_s: Some(1 << 20),
            left_ms: Some(3000),
        }
    }

    fn seen(work: Work, status: &ArrayStatus) -> Seen {
        Waiting::new(work).handle_status(status)
    }

    fn failed(seen: Seen) -> String {
        match seen {
            Seen::Failed(why) => why,
            Seen::Going(_) | Seen::Done => panic!("not failed: {seen:?}"),
        }
    }

    #[test]
    fn a_member_is_waited_for_until_it_has_everything_or_is_set_aside() {
        let mut one = status("degraded", &["in_sync", "catching_up", "in_sync"]);
        one.progress = Some(progress(0));
        one.progress_beside = vec![progress(1)];
        let Seen::Going(far) = seen(Work::Member(1), &one) else { panic!() };
        assert_eq!(
            far.text,
            "rebuild of member 1: 25.0% (1.0 MiB of 4.0 MiB), 1.0 MiB/s, 3 s left"
        );
        assert_eq!((far.done_bytes, far.total_bytes), (1 << 20, 4 << 20));
        // A session that is made again, and a pause, are no ends.
        for (array, member) in [("degraded", "suspect"), ("paused", "suspect")] {
            let one = status(array, &["in_sync", member]);
            assert!(matches!(seen(Work::Member(1), &one), Seen::Going(_)), "{array} {member}");
        }
        assert_eq!(seen(Work::Member(0), &one), Seen::Done);
        // When the array goes on after a pause, it takes the member back a little later.
        let mut waiting = Waiting::new(Work::Member(1));
        let mut handle =
            |state, member| waiting.handle_status(&status(state, &["in_sync", member]));
        assert!(matches!(handle("paused", "missing"), Seen::Going(_)));
        for _ in 1..PATIENCE {
            assert!(matches!(handle("degraded", "missing"), Seen::Going(_)));
        }
        assert!(matches!(handle("degraded", "missing"), Seen::Failed(_)), "it does not come back");
        for state in ["faulty", "missing"] {
            let mut one = status("degraded", &["in_sync", state]);
            one.members[1].last_error = Some("no answer".to_owned());
            let why = failed(seen(Work::Member(1), &one));
            assert!(why.contains("member 1") && why.contains("(no answer)"), "{why}");
        }
        assert!(failed(seen(Work::Member(7), &one)).contains("no member 7"));
        one.progress_beside[0].lost_bytes = 65536;
        assert!(failed(seen(Work::Member(1), &one)).contains("64.0 KiB cannot be had"));
        one.state = "failed".to_owned();
        one.failure = Some("too few members".to_owned());
        assert!(failed(seen(Work::Member(1), &one)).contains("too few members"));
    }

    #[test]
    fn a_scrub_is_waited_for_until_it_is_complete() {
        let mut one = status("optimal", &["in_sync"]);
        assert!(failed(seen(Work::Scrub, &one)).contains("start it again"));
        let scrub = serde_json::json!({
            "state": "running", "next": 7, "done_bytes": 1, "total_bytes": 2, "checked_bytes": 0, "wrong": 0,
            "repaired": 0, "unrepaired": 0, "new_sums": 0, "members": [],
        });
        let mut scrub: ScrubStatus = serde_json::from_value(scrub).unwrap();
        for (state, ends) in [("running", false), ("paused", false), ("complete", true)] {
            scrub.state = state.to_owned();
            one.scrub = Some(scrub.clone());
            assert_eq!(seen(Work::Scrub, &one) == Seen::Done, ends, "{state}");
        }
        scrub.state = "stopped".to_owned();
        one.scrub = Some(scrub);
        assert!(failed(seen(Work::Scrub, &one)).contains("--from 7"));
    }

    #[test]
    fn all_members_are_waited_for_until_the_array_is_optimal() {
        assert_eq!(seen(Work::Whole, &status("optimal", &["in_sync"])), Seen::Done);
        let mut one = status("degraded", &["in_sync", "missing"]);
        let Seen::Going(far) = seen(Work::Whole, &one) else { panic!() };
        assert_eq!(far.text, "heal: waits; the array is degraded");
        one.progress = Some(progress(1));
        let Seen::Going(far) = seen(Work::Whole, &one) else { panic!() };
        assert_eq!((far.what.as_str(), far.done_bytes), ("rebuild of member 1", 1 << 20));
    }

    #[test]
    fn a_line_is_due_each_ten_seconds_and_looks_become_rarer() {
        let mut waiting = Waiting::new(Work::Scrub);
        let mut lines = Vec::new();
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(35) {
            if waiting.is_line_due(now) {
                lines.push(now.as_secs());
            }
            now += waiting.look_after(now);
        }
        assert_eq!(lines, [10, 20, 30]);
        assert_eq!(waiting.look_after(Duration::ZERO), LOOK_FIRST);
        assert_eq!(waiting.look_after(Duration::from_secs(3)), LOOK);
    }
}
