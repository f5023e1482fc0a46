//! Members of an array with a log that were away come back by themselves: they are connected to
//! again at a bounded pace, and what they missed is written to them.
//!
//! Invariant: a member is handed to the machine when a new session has ended all that was under way
//! on its old one, when it is fenced, and when its label says that it is that member and did not go
//! on without the others.

use std::time::Duration;

use netraid_block::{ErrorKind, IoError};
use netraid_raid::{label::Label, member::MemberIndex};
use tokio::{task::JoinHandle, time::timeout};

use super::{
    ArrayError,
    driver::Driver,
    member::Connected,
    open::caps,
    replace::{Expect, join},
};

/// Ticks that a member waits at most which leaves again and again.
const PAUSE_MAX: u32 = 64;

/// Longest that an array that closes waits for an attempt to end.
const END_MAX: Duration = Duration::from_secs(5);

/// How a member comes back.
#[derive(Debug)]
pub(super) struct Returning {
    /// It does so by itself: nobody set it aside, and its device did not fail.
    pub(super) by_itself: bool,
    /// Looks for it.
    pub(super) attempt: Option<JoinHandle<()>>,
    /// Ticks until the next attempt.
    wait: u32,
    /// Ticks to wait when it leaves the next time: more each time, until it has caught up.
    pause: u32,
    /// Why the last attempt failed.
    told: Option<String>,
}

impl Default for Returning {
    fn default() -> Self {
        Self { by_itself: true, attempt: None, wait: 0, pause: 0, told: None }
    }
}

impl Returning {
    /// A request failed. A device that answers with a failure would do so again; blocks that cannot be read are
    /// repaired, and set no member aside.
    pub(super) const fn note(&mut self, error: &IoError, is_read: bool) {
        let kind = error.kind();
        self.by_itself &= !matches!(kind, ErrorKind::NoSpace | ErrorKind::Device)
            && (is_read || !matches!(kind, ErrorKind::Medium));
    }

    pub(super) fn has_left(&mut self) {
        self.wait = self.pause;
        self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
    }

    pub(super) const fn has_caught_up(&mut self) {
        self.pause = 0;
    }
}

/// What came of looking for a member.
pub(super) struct Returned {
    member: MemberIndex,
    /// The number of the slot's device then.
    number: u32,
    end: Result<(Connected, Option<Label>), ArrayError>,
}

impl Returned {
    pub(super) async fn let_go(self) {
        if let Ok((mut connected, _)) = self.end {
            connected.leave().await;
        }
    }
}

impl Driver {
    /// Looks for members that are away and come back by themselves.
    pub(super) fn begin_returns(&mut self) {
        // A member that comes back is written to, and so are all others: an array of which one more is away
        // could fail by that.
        if self.asked.is_some() || !self.suspects().is_empty() {
            return;
        }
        for member in self.machine.geometry().member_indices() {
            let is_live = self.state(member).is_live();
            let slot = &mut self.slots[member.as_usize()];
            let returning = &mut slot.returning;
            let has_left = slot.leaving.as_ref().is_none_or(JoinHandle::is_finished);
            let is_away = !is_live && slot.connected.is_none() && !slot.joining && has_left;
            if !is_away || !returning.by_itself || returning.attempt.is_some() {
                continue;
            }
            if returning.wait > 0 {
                returning.wait -= 1;
                continue;
            }
            let Some(config) = slot.config.clone() else { continue };
            let number = slot.number;
            let beside = self.beside(member);
            let (pool, sender) = (self.pool.clone(), self.returned.0.clone());
            self.slots[member.as_usize()].returning.attempt = Some(tokio::spawn(async move {
                let end = join(config, member, Expect::Former, &beside, pool).await;
                // The array's task waits for it, or ends it.
                let _ = sender.send(Returned { member, number, end }).await;
            }));
        }
    }

    /// Ends what is looked for, before the sessions end by which it is proven whose the array is.
    pub(super) async fn end_returns(&mut self) {
        for slot in &mut self.slots {
            if let Some(mut attempt) = slot.returning.attempt.take()
                && timeout(END_MAX, &mut attempt).await.is_err()
            {
                attempt.abort();
                // A task that was ended has ended.
                let _ = attempt.await;
            }
        }
        while let Ok(returned) = self.returned.1.try_recv() {
            returned.let_go().await;
        }
    }

    /// A member is back, or could not be reached.
    pub(super) fn take_returned(&mut self, returned: Returned) {
        let Returned { member, number, end } = returned;
        let is_live = self.state(member).is_live();
        let closing = self.is_closing();
        let all_there = self.suspects().is_empty();
        let slot = &mut self.slots[member.as_usize()];
        slot.returning.attempt = None;
        let is_wanted = slot.number == number && slot.returning.by_itself && !slot.joining;
        match end {
            Ok((connected, label)) if is_wanted && !is_live && !closing && all_there => {
                slot.returning.told = None;
                let taken = self.machine.handle_device(member, [0; 16], caps(&connected), label);
                match taken {
                    Ok(()) => self.slots[member.as_usize()].take(connected),
                    Err(error) => {
                        tracing::warn!(%member, %error, "a member that is back is not taken");
                        self.let_go(member, connected);
                    }
                }
            }
            Ok((connected, _)) => self.let_go(member, connected),
            Err(error) => {
                let text = error.to_string();
                if slot.returning.told.as_ref() != Some(&text) {
                    tracing::info!(%member, error = %text, "a member cannot come back yet");
                    slot.returning.told = Some(text);
                }
            }
        }
        if self.slots.iter().all(|slot| slot.returning.attempt.is_none())
            && let Some(asked) = self.asked.take()
        {
            self.begin_join_now(asked);
        }
    }
}
