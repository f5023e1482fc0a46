//! What a keeper does for the members of its array, by what that says of itself: plain functions.
//!
//! Invariant: of an array that pauses or has failed no member is replaced: each may be one that it needs as it is.

use std::time::Duration;

use netraid_engine::control::{ArrayStatus, MemberStatus};
use netraid_raid::member::ArrayState;
use tokio::time::Instant;

use super::Place;

/// From one renewal of the plan to the next one while the array pauses.
const RENEW_IN_PAUSE: Duration = Duration::from_secs(5);

/// How an array is to its keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// It serves.
    Serves,
    /// Requests wait until enough members are back.
    Pauses,
    /// It serves nothing more.
    HasFailed,
}

impl Condition {
    pub(super) fn of(status: &ArrayStatus) -> Self {
        if status.state == ArrayState::Paused.name() {
            return Self::Pauses;
        }
        match &status.failure {
            Some(_) => Self::HasFailed,
            None => Self::Serves,
        }
    }
}

/// What is to be done for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// The mediator is asked for another segment in its place.
    Ask(usize),
    /// The segment that has its place at the mediator is put there in the array.
    Join(usize),
}

/// Takes note of who is away. The time of a pause does not count: an array that goes on has only those back that answered
/// by then, and the others are about to be looked for again.
pub(super) fn take_note(
    places: &mut [Place],
    condition: Condition,
    members: &[MemberStatus],
    (now, is_replacing): (Instant, bool),
) {
    for (place, member) in places.iter_mut().zip(members) {
        match condition {
            Condition::Serves => {
                let is_away = matches!(member.state.as_str(), "faulty" | "missing");
                place.away_since = is_away.then(|| place.away_since.unwrap_or(now));
                if !is_replacing {
                    place.learn(&member.url);
                }
            }
            Condition::Pauses => place.away_since = None,
            Condition::HasFailed => {}
        }
    }
}

/// Who is to be cared for, of an array that serves: a member that is away for that long, or a new one.
pub(super) fn next(
    places: &[Place],
    members: &[MemberStatus],
    (now, replace_after): (Instant, Option<Duration>),
) -> Option<Care> {
    // Who takes a place is written to, and so are all others: one more that is away comes back first, or is
    // set aside itself.
    if members.iter().any(|member| member.state == "suspect") {
        return None;
    }
    let is_late = |place: &Place| {
        let away = place.away_since.map(|since| now.saturating_duration_since(since));
        away.zip(replace_after).is_some_and(|(away, patience)| away >= patience)
    };
    let is_new = |place: &Place| place.fresh && place.away_since.is_some();
    let late = places.iter().position(is_late).map(Care::Ask);
    late.or_else(|| places.iter().position(is_new).map(Care::Join))
}

/// When a plan is to be renewed that was last asked for at one moment, and would be at another one: earlier while the array
/// pauses, so that who has been shut out meanwhile hears of that and does not wait for members that let it in no more,
/// and that members are looked for where they are now; and at once where a pause was in vain, for which that may be
/// the reason.
pub(super) fn renew_at(
    (before, condition): (Condition, Condition),
    (asked_at, renew_at): (Instant, Instant),
    now: Instant,
) -> Instant {
    match (before, condition) {
        (_, Condition::Pauses) => renew_at.min(asked_at + RENEW_IN_PAUSE),
        (Condition::Pauses, Condition::HasFailed) => now,
        (_, Condition::Serves)
        | (Condition::Serves | Condition::HasFailed, Condition::HasFailed) => renew_at,
    }
}
