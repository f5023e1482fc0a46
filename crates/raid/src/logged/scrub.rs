//! Scrub: reads everything at rest, and writes again what is wrong and can be had from the rest.
//!
//! First what there is once: labels, checkpoints, the log, pages of the tables ([`tables`]). Then
//! all physical stripes in order ([`rows`]). What is checked is what is at home; what is dirty is
//! checked as what it will replace.
//!
//! Invariant: a block is written again only with bytes that have its checksum, a check block also
//! with what data columns give that all have theirs. What is passed over is counted or told.
//!
//! Does not know time: it takes a stripe for each that [`LoggedArray::handle_scrub_allowance`]
//! allows, and waits.

mod rows;
mod tables;

use alloc::vec::Vec;

use futures_util::future::join_all;

use super::{
    Event, LoggedArray,
    state::{Life, State},
    tasks::{Array, Change},
};
use crate::{faults::Fault, lack::Lack, member::MemberIndex, stripes::Walker};

/// Stripes that are checked at a time at most.
pub const SCRUB_STRIPES_AT_ONCE_MAX: u32 = 16;
/// Pages of a table, or blocks of the log, that are taken for one allowed stripe.
const PAGES_AT_ONCE: u64 = 64;

/// Times that a scrub writes the same again at most: a device that loses one write, or puts it elsewhere, takes the next.
const WRITES_MAX: u32 = 2;

/// Why something is told as not repaired that the other members have.
const STILL_WRONG: &str = "wrong, and stays wrong when it is written again";

/// What a scrub is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubCommand {
    /// Begin.
    Start(ScrubOptions),
    /// Wait, when the stripes under way are done.
    Pause,
    /// Go on.
    Resume,
    /// End, when the stripes under way are done.
    Stop,
}

/// How to scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubOptions {
    /// The first physical stripe. What there is once is checked in any case.
    pub from: u32,
    /// Stripes at a time, from 1 to [`SCRUB_STRIPES_AT_ONCE_MAX`].
    pub stripes_at_once: u32,
    /// Take a row whose checksums are lost on all members as it is, when its check columns
    /// confirm it. It may be what another stripe left there, if the row was never written.
    pub trust_parity: bool,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self { from: 0, stripes_at_once: 1, trust_parity: false }
    }
}

/// Why a command was not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub enum ScrubRefusal {
    /// There is one already.
    Running,
    /// There is none.
    NotRunning,
    /// The array does not serve.
    NotOpen,
}

impl ScrubRefusal {
    /// The same for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Running => "a scrub is running; stop it first",
            Self::NotRunning => "no scrub is running; start one first",
            Self::NotOpen => "the array is not open",
        }
    }
}

/// What a scrub found on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubMember {
    /// Data blocks that were not what they should be.
    pub wrong_data: u64,
    /// Check blocks that were not what they should be.
    pub wrong_checks: u64,
    /// Blocks that the medium did not give.
    pub unreadable: u64,
    /// Labels, checkpoints, copies of log batches and pages of tables that were missing or wrong.
    pub wrong_pages: u64,
    /// How many of all these are right now.
    pub repaired: u64,
    /// How many are not.
    pub unrepaired: u64,
    /// Blocks that were not checked, because the member was absent or had not caught up.
    pub absent: u64,
}

impl ScrubMember {
    /// Everything that was not as it should be.
    #[must_use]
    pub const fn wrong(&self) -> u64 {
        self.wrong_data + self.wrong_checks + self.unreadable + self.wrong_pages
    }
}

/// How far a scrub is, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScrubStatus {
    /// It has not ended.
    pub running: bool,
    /// It waits to be resumed.
    pub paused: bool,
    /// Stripes that it may still take.
    pub allowance: u64,
    /// The next physical stripe; all below it are done, from the first one on.
    pub next: u32,
    /// All physical stripes.
    pub total: u32,
    /// How much of what there is to be done is done, in stripes: of those that are mapped, and of tables, of which
    /// some dozens of pages count as one.
    pub done: u64,
    /// What there is to be done. It changes while users write.
    pub to_do: u64,
    /// Blocks of 4 KiB of stripes that were read and compared.
    pub checked_blocks: u64,
    /// Rows whose checksums were made anew, because they were lost or contradicted the data.
    pub new_sums: u64,
    /// By member.
    pub members: Vec<ScrubMember>,
}

impl ScrubStatus {
    /// Whether it went through everything.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        !self.running && self.total > 0 && self.next >= self.total
    }

    /// Everything that was not as it should be.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.members.iter().map(ScrubMember::wrong).sum()
    }

    /// What is right again.
    #[must_use]
    pub fn repaired(&self) -> u64 {
        self.members.iter().map(|one| one.repaired).sum()
    }

    /// What is not.
    #[must_use]
    pub fn unrepaired(&self) -> u64 {
        self.members.iter().map(|one| one.unrepaired).sum()
    }
}

/// What a scrub tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScrubEvent {
    /// Bytes on a member are wrong, unreadable or unknown and cannot be had from the others.
    Unrepaired {
        /// Which.
        member: MemberIndex,
        /// Where on it.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What is the matter.
        reason: &'static str,
    },
    /// It ended: went through everything, or was stopped.
    Ended(ScrubStatus),
}

/// The scrub of an array.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    status: ScrubStatus,
    options: ScrubOptions,
    /// Raised with each start and stop: whoever works for an older one ends.
    run: u64,
    /// Somebody works for it.
    busy: bool,
}

impl Scrub {
    /// Nobody works for it any more.
    pub(super) const fn is_idle(&self) -> bool {
        !self.busy
    }
}

/// A kind of wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Data,
    Check,
    Unreadable,
    Page,
}

/// Adjacent places of one member make one event.
#[derive(Debug, Default)]
struct Ranges(Vec<(MemberIndex, u64, u64)>);

impl Ranges {
    fn add(&mut self, member: MemberIndex, offset: u64, len: u64) {
        self.0.push((member, offset, len));
    }

    fn merged(mut self) -> Vec<(MemberIndex, u64, u64)> {
        self.0.sort_unstable();
        let mut merged: Vec<(MemberIndex, u64, u64)> = Vec::new();
        for (member, offset, len) in self.0 {
            match merged.last_mut() {
                Some((last, first, so_far)) if *last == member && *first + *so_far >= offset => {
                    *so_far = (*so_far).max(offset + len - *first);
                }
                _ => merged.push((member, offset, len)),
            }
        }
        merged
    }
}

impl LoggedArray {
    /// Starts, pauses, resumes or stops a scrub. [`ScrubEvent::Ended`] follows when it has ended;
    /// one that has found nothing has told nothing else.
    ///
    /// # Errors
    /// When there is one already, or none.
    pub fn handle_scrub(&mut self, command: ScrubCommand) -> Result<(), ScrubRefusal> {
        let run = {
            let mut state = self.array.state();
            if state.life != Life::Open || state.failed.is_some() {
                return Err(ScrubRefusal::NotOpen);
            }
            state.command_scrub(command)?
        };
        if let Some(run) = run {
            let array = self.array.clone();
            self.array.spawn(array.scrub(run));
        }
        self.input = true;
        Ok(())
    }

    /// Lets a running scrub take so many stripes more. Pages of tables count as stripes, some
    /// dozens for one.
    pub fn handle_scrub_allowance(&mut self, stripes: u32) {
        {
            let mut state = self.array.state();
            if !state.scrub.status.running {
                return;
            }
            let status = &mut state.scrub.status;
            status.allowance = status.allowance.saturating_add(stripes.into());
            state.waiters.wake(Change::Scrub);
        }
        self.input = true;
    }

    /// How far the scrub is that runs, or how the last one ended; none before the first.
    #[must_use]
    pub fn scrub_status(&self) -> Option<ScrubStatus> {
        let state = self.array.state();
        let mut status = (state.scrub.run > 0).then(|| state.scrub_status())?;
        status.running &= state.failed.is_none();
        Some(status)
    }

    /// Bytes that checking one physical stripe reads, on all members together.
    #[must_use]
    pub fn scrub_stripe_len(&self) -> u64 {
        let state = self.array.state();
        let geometry = &state.layout.geometry;
        u64::from(geometry.chunk_len()) * u64::from(geometry.members())
    }
}

impl State {
    /// Notes a command; answers the number of the scrub to begin.
    fn command_scrub(&mut self, command: ScrubCommand) -> Result<Option<u64>, ScrubRefusal> {
        let is_running = self.scrub.status.running;
        match command {
            ScrubCommand::Start(_) if is_running => return Err(ScrubRefusal::Running),
            ScrubCommand::Start(options) => {
                self.scrub.run += 1;
                self.begin_scrub_walk(options.from);
                let at_once = options.stripes_at_once.clamp(1, SCRUB_STRIPES_AT_ONCE_MAX);
                self.scrub.options = ScrubOptions { stripes_at_once: at_once, ..options };
                self.scrub.status = ScrubStatus {
                    running: true,
                    next: options.from.min(self.layout.physical),
                    total: self.layout.physical,
                    members: self.members.iter().map(|_| ScrubMember::default()).collect(),
                    ..ScrubStatus::default()
                };
                return Ok(Some(self.scrub.run));
            }
            _ if !is_running => return Err(ScrubRefusal::NotRunning),
            ScrubCommand::Pause => self.scrub.status.paused = true,
            ScrubCommand::Resume => {
                self.scrub.status.paused = false;
                self.waiters.wake(Change::Scrub);
            }
            ScrubCommand::Stop => self.stop_scrub(),
        }
        Ok(None)
    }

    /// From now on it is known how far the scrub is that begins at this stripe.
    fn begin_scrub_walk(&mut self, from: u32) {
        let pages = self.layout.sum_layout.pages(u64::from(self.layout.physical));
        let groups = |pages: u64| pages.div_ceil(PAGES_AT_ONCE);
        let extras = groups(self.stripes.pages()) + groups(pages);
        let (walker, from) = (Walker::Scrub(self.scrub.run), from.min(self.layout.physical));
        self.stripes.begin_walk(walker, Lack::ALL, from, extras);
        // What is before the first one is none of it.
        self.stripes.walk_to(walker, from);
    }

    /// The scrub, with how far it is now.
    fn scrub_status(&self) -> ScrubStatus {
        let mut status = self.scrub.status.clone();
        if let Some(walked) = self.stripes.walked(Walker::Scrub(self.scrub.run)) {
            status.done = walked.done + walked.extras_done;
            status.to_do = walked.total + walked.extras;
        }
        status
    }

    /// Ends a scrub that runs.
    pub(super) fn stop_scrub(&mut self) {
        if self.scrub.status.running {
            self.end_scrub();
            self.scrub.run += 1;
        }
    }

    fn end_scrub(&mut self) {
        self.scrub.status = self.scrub_status();
        self.stripes.end_walk(Walker::Scrub(self.scrub.run));
        let status = &mut self.scrub.status;
        if status.next >= status.total {
            status.to_do = status.done;
        }
        (status.running, status.paused, status.allowance) = (false, false, 0);
        let told = ScrubEvent::Ended(status.clone());
        self.events.push_back(Event::Scrub(told));
        self.waiters.wake(Change::Scrub);
    }

    /// Counts for a scrub that has not been stopped meanwhile.
    fn scrub_counts(&mut self, run: u64, count: impl FnOnce(&mut ScrubStatus)) {
        if self.scrub.run == run {
            count(&mut self.scrub.status);
        }
    }

    fn scrub_found(&mut self, run: u64, member: MemberIndex, wrong: Wrong) {
        let fault = match wrong {
            Wrong::Data | Wrong::Check | Wrong::Page => Fault::WrongBlocks,
            Wrong::Unreadable => Fault::UnreadableBlocks,
        };
        self.note_fault(member, fault, 1);
        self.scrub_counts(run, |status| {
            let member = &mut status.members[member.as_usize()];
            match wrong {
                Wrong::Data => member.wrong_data += 1,
                Wrong::Check => member.wrong_checks += 1,
                Wrong::Unreadable => member.unreadable += 1,
                Wrong::Page => member.wrong_pages += 1,
            }
        });
    }

    fn scrub_repaired(&mut self, run: u64, member: MemberIndex, count: u64) {
        self.scrub_counts(run, |status| status.members[member.as_usize()].repaired += count);
    }

    fn scrub_unrepaired(&mut self, run: u64, member: MemberIndex, count: u64) {
        self.scrub_counts(run, |status| status.members[member.as_usize()].unrepaired += count);
    }

    fn tell_repaired(&mut self, ranges: Ranges) {
        for (member, offset, len) in ranges.merged() {
            self.events.push_back(Event::Repaired { member, offset, len });
        }
    }

    fn tell_unrepaired(&mut self, ranges: Ranges, reason: &'static str) {
        for (member, offset, len) in ranges.merged() {
            let told = ScrubEvent::Unrepaired { member, offset, len, reason };
            self.events.push_back(Event::Scrub(told));
        }
    }
}

/// Says when nobody works for a scrub any more.
struct Busy(Array);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.scrub.busy = false;
        state.waiters.wake(Change::Scrub);
        // A close waits for that.
        state.waiters.wake(Change::Operations);
    }
}

impl Array {
    async fn scrub(self, run: u64) {
        self.until(Change::Scrub, |state| {
            let free = !state.scrub.busy;
            state.scrub.busy = true;
            free.then_some(())
        })
        .await;
        let _busy = Busy(self.clone());
        let whole = self.scrub_everything(run).await;
        let mut state = self.state();
        if whole && state.scrub.run == run {
            state.end_scrub();
        }
    }

    /// Whether it went through everything: nobody stopped it.
    async fn scrub_everything(&self, run: u64) -> bool {
        if self.scrub_may_take(run, 1).await.is_none() {
            return false;
        }
        self.scrub_labels(run).await;
        self.scrub_checkpoints(run).await;
        self.scrub_log(run).await;
        if !self.scrub_tables(run).await {
            return false;
        }
        let (total, at_once, mut next) = {
            let state = self.state();
            let scrub = &state.scrub;
            (state.layout.physical, scrub.options.stripes_at_once, scrub.status.next)
        };
        while next < total {
            // What is not mapped is nothing to wait for.
            let mapped = {
                let state = self.state();
                (next..total).find(|one| state.stripes.entry(*one).logical.is_some())
            };
            let Some(first) = mapped else { break };
            let Some(count) = self.scrub_may_take(run, at_once.min(total - first)).await else {
                return false;
            };
            let work = (first..first + count).map(|one| self.scrub_stripe(run, one));
            let taken = self.state().stripes.walk_to(Walker::Scrub(run), first + count);
            join_all(work).await;
            next = first + count;
            let mut state = self.state();
            state.stripes.note_walked(Walker::Scrub(run), taken);
            state.scrub_counts(run, |status| status.next = next);
        }
        // What was written again is stable before it is said to be right.
        self.flush().await;
        let mut state = self.state();
        state.scrub_counts(run, |status| status.next = total);
        state.scrub.run == run
    }

    /// Waits until some stripes may be taken, up to `most`; none when the scrub was stopped.
    async fn scrub_may_take(&self, run: u64, most: u32) -> Option<u32> {
        self.until(Change::Scrub, |state| {
            if state.scrub.run != run {
                return Some(None);
            }
            let status = &mut state.scrub.status;
            let count = status.allowance.min(most.into());
            if status.paused || count == 0 {
                return None;
            }
            status.allowance -= count;
            Some(u32::try_from(count).ok())
        })
        .await
    }
}
