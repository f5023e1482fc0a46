//! How an open array is, and what happened to it, in the words of the control socket and of the log.

use std::time::Duration;

use netraid_block::Completion;
use netraid_raid::{
    array::Background,
    logged::{ScrubMember, ScrubStatus as Found, Shortage, Usage},
    member::{ArrayState, MemberIndex, MemberSet},
    meter::Speed,
    volume::{Event as VolumeEvent, Machine, PlainOrLogged, Progress, Status, Volume},
};

use super::Event;
use crate::control::{
    ArrayStatus, LogStatus, MemberStatus, NoSpaceStatus, ProgressStatus, ReadAheadStatus,
    ScrubMemberStatus, ScrubStatus,
};

/// Bytes of a block of the log and of a member.
const BLOCK: u64 = 4096;
/// The state of a member that takes part and has no session, as it is shown.
const SUSPECT: &str = "suspect";
/// Why it is suspect no longer.
const CONNECTED_AGAIN: &str = "connected again";

/// The array with its members, of which some are `suspects`.
pub(super) fn shown(
    volume: &Volume<PlainOrLogged, Completion>,
    now: Duration,
    suspects: MemberSet,
    members: Vec<MemberStatus>,
) -> ArrayStatus {
    let Status { label, state, failure, is_read_only, used, usage, shortage, scrub } =
        volume.machine().status();
    let geometry = label.geometry;
    let stripe_len = geometry.stripe_data_len();
    // One with a suspect member may not survive a loss now.
    let state = match state {
        ArrayState::Optimal if !suspects.is_empty() => ArrayState::Degraded,
        ArrayState::Optimal | ArrayState::Degraded | ArrayState::Paused | ArrayState::Failed => {
            state
        }
    };
    let pause = volume.pause().map(|(failure, since, last)| {
        let last = last.map(|last| format!("; the last attempt to go on: {last}"));
        let (long, last) = (now.saturating_sub(since).as_secs_f64(), last.unwrap_or_default());
        format!("{failure}; requests have waited for {long:.1} s{last}")
    });
    let (state, failure) = match pause {
        Some(why) => (ArrayState::Paused, Some(why)),
        None => (state, failure.map(|failure| failure.to_string())),
    };
    let mut works = volume.works(now).into_iter().map(|(work, speed)| progress(work, speed));
    ArrayStatus {
        kind: "array".to_owned(),
        name: label.name.clone(),
        path: None,
        uuid: super::lock::hex(&label.array_uuid),
        level: geometry.level().number(),
        state: state.name().into(),
        failure,
        read_only: is_read_only,
        capacity_bytes: geometry.capacity(),
        used_bytes: used * stripe_len,
        chunk_bytes: geometry.chunk_len(),
        block_bytes: geometry.block_len(),
        generation: label.generation,
        epoch: label.epoch,
        log: usage.map(|usage| log_status(usage, stripe_len)),
        no_space: shortage.map(no_space),
        read_ahead: volume.read_ahead_stats().map(|stats| ReadAheadStatus {
            answered: stats.answered,
            read_bytes: stats.read_bytes,
            unused_bytes: stats.unused_bytes,
        }),
        scrub: scrub.map(|(found, stripe_len)| {
            let speed = volume.scrub_speed(now, &found, stripe_len);
            scrub_status(&found, stripe_len, speed)
        }),
        progress: works.next(),
        progress_beside: works.collect(),
        members,
        spares: volume.spares().map(str::to_owned).collect(),
    }
}

/// A member, but for how it is reached.
pub(super) fn member(
    volume: &Volume<PlainOrLogged, Completion>,
    index: MemberIndex,
    suspects: MemberSet,
) -> MemberStatus {
    let stats = volume.stats(index).clone();
    let faults = volume.faults(index);
    // While the array pauses there are no sessions.
    let state = volume.machine().member_state(index);
    let is_suspect = suspects.contains(index) || (volume.is_paused() && state.is_live());
    let state = if is_suspect { SUSPECT } else { state.name() };
    MemberStatus {
        index: index.0,
        url: String::new(),
        state: state.into(),
        successor: volume.successor(index).map(str::to_owned),
        slow: volume.slow().contains(index),
        exclusive: false,
        reads: stats.reads,
        writes: stats.writes,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        late: faults.late_reads,
        errors: faults.errors,
        wrong_blocks: faults.wrong_blocks,
        lost_writes: faults.lost_writes,
        unreadable_blocks: faults.unreadable_blocks,
        reconnects: faults.reconnects,
        last_error: stats.last_error,
    }
}

fn log_status(usage: Usage, stripe_len: u64) -> LogStatus {
    LogStatus {
        size_bytes: usage.log_blocks * BLOCK,
        used_bytes: usage.log_used * BLOCK,
        dirty_bytes: usage.dirty_blocks * BLOCK,
        round: usage.round,
        mapped_bytes: u64::from(usage.mapped) * stripe_len,
    }
}

fn no_space(Shortage { members, blocks }: Shortage) -> NoSpaceStatus {
    let members = members.iter().map(|member| member.0).collect();
    NoSpaceStatus { members, waiting_bytes: blocks * BLOCK }
}

fn progress(work: Progress, speed: Speed) -> ProgressStatus {
    let Progress { kind, member, done, total, lost } = work;
    ProgressStatus {
        kind: kind.into(),
        member: member.map(|member| member.0),
        done_bytes: done,
        total_bytes: total,
        lost_bytes: lost,
        bytes_per_s: speed.rate,
        left_ms: speed.left.map(in_ms),
    }
}

/// Milliseconds of a time, clamped: no estimate is as long as that.
fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn scrub_status(found: &Found, stripe_len: u64, speed: Speed) -> ScrubStatus {
    let state = match (found.running, found.paused) {
        (true, true) => "paused",
        (true, false) => "running",
        (false, _) if found.is_complete() => "complete",
        (false, _) => "stopped",
    };
    let member = |(index, one): (u8, &ScrubMember)| ScrubMemberStatus {
        index,
        wrong_data: one.wrong_data,
        wrong_checks: one.wrong_checks,
        unreadable: one.unreadable,
        wrong_pages: one.wrong_pages,
        repaired: one.repaired,
        unrepaired: one.unrepaired,
        absent: one.absent,
    };
    ScrubStatus {
        state: state.into(),
        next: found.next,
        done_bytes: found.done * stripe_len,
        total_bytes: found.to_do * stripe_len,
        bytes_per_s: speed.rate,
        left_ms: speed.left.map(in_ms),
        checked_bytes: found.checked_blocks * BLOCK,
        wrong: found.wrong(),
        repaired: found.repaired(),
        unrepaired: found.unrepaired(),
        new_sums: found.new_sums,
        members: (0..).zip(&found.members).map(member).collect(),
    }
}

/// What users of the array are told of an event; nothing of one that is for the log alone. `address` is that of a
/// member.
pub(super) fn event(
    told: VolumeEvent,
    machine: &PlainOrLogged,
    address: impl Fn(MemberIndex) -> String,
) -> Option<Event> {
    Some(match told {
        VolumeEvent::Member { member, state, reason } => {
            Event::Member { member: member.0, url: address(member), state: state.name(), reason }
        }
        VolumeEvent::Suspect { member, failure } => {
            let (state, reason) = match failure {
                Some(failure) => (SUSPECT, format!("no session: {failure}")),
                None => (machine.member_state(member).name(), CONNECTED_AGAIN.to_owned()),
            };
            Event::Member { member: member.0, url: address(member), state, reason }
        }
        VolumeEvent::Slow { member, failure } => {
            let (slow, reason) = match failure {
                Some(failure) => (true, failure),
                None => (false, "fast again".to_owned()),
            };
            Event::Slow { member: member.0, url: address(member), slow, reason }
        }
        VolumeEvent::State(state) => {
            let failure = machine.failure().map(|failure| failure.to_string());
            Event::State { state: state.name(), failure }
        }
        VolumeEvent::Repaired { member, offset } => Event::Repaired { member: member.0, offset },
        VolumeEvent::Rebuilt(member) => Event::Rebuilt { member: member.0 },
        VolumeEvent::Resynced => Event::Resynced,
        VolumeEvent::Incomplete { background, stripes } => {
            let member = match background {
                Background::Resync => None,
                Background::Rebuild(member) => Some(member.0),
            };
            Event::Incomplete { member, stripes }
        }
        VolumeEvent::Unrepaired { member, offset, len, reason } => {
            Event::Unrepaired { member: member.0, offset, len, reason }
        }
        VolumeEvent::Scrubbed { status, stripe_len } => {
            Event::Scrubbed { scrub: scrub_status(&status, stripe_len, Speed::default()) }
        }
        VolumeEvent::Notice(text) => Event::Notice { text },
        VolumeEvent::NotBack { member, reason } => {
            tracing::info!(%member, error = %reason, "a member cannot come back yet");
            return None;
        }
    })
}

/// Writes an event to the log.
pub(super) fn log(event: &Event) {
    match event {
        Event::Member { member, url, state, reason } => match reason.as_str() {
            CONNECTED_AGAIN => tracing::info!(member, %url, state, %reason, "member"),
            _ => tracing::warn!(member, %url, state, %reason, "member"),
        },
        Event::Slow { member, url, slow: true, reason } => {
            tracing::warn!(member, %url, %reason, "slow member");
        }
        Event::Slow { member, url, slow: false, reason } => {
            tracing::info!(member, %url, %reason, "member");
        }
        Event::State { state: "paused", failure } => {
            tracing::warn!(state = "paused", failure, "array")
        }
        Event::State { state, failure: Some(failure) } => {
            tracing::error!(state, failure, "array");
        }
        Event::State { state, failure: None } => tracing::info!(state, "array"),
        Event::Repaired { member, offset } => tracing::warn!(member, offset, "range written back"),
        Event::Incomplete { member, stripes } => {
            tracing::error!(member, stripes, "stripes that other members could not give");
        }
        Event::Notice { text } => tracing::warn!("{text}"),
        Event::Unrepaired { member, offset, len, reason } => {
            tracing::error!(member, offset, len, reason, "cannot be repaired");
        }
        Event::Scrubbed { scrub } => {
            let (state, wrong) = (&scrub.state, scrub.wrong);
            let (repaired, unrepaired) = (scrub.repaired, scrub.unrepaired);
            tracing::info!(state, wrong, repaired, unrepaired, "scrub");
        }
        Event::Rebuilt { .. } | Event::Resynced => {}
    }
}
