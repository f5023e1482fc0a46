//! SANITIZE (SBC-3, sections 4.11 and 5.22): everything is overwritten or erased, and nothing can
//! be had of the medium until that has succeeded.
//!
//! ```text
//! idle -> ordered -> draining -> erasing -> finishing -> idle
//!            |           |          |           |
//!            v           +----------+-----------+--> failing -> failed -> (ordered, or idle)
//!   idle, or failed if it was: the marker could not be kept, nothing happened
//! ```
//!
//! The work belongs to the logical unit, not to the command that asked for it: it goes on when its
//! task is aborted, its session gone, or the logical unit reset. `poll_background` gives what is to
//! be done, one thing at a time, and `handle_background_done` takes how it went.
//!
//! Invariant: from the moment when something may have been erased until all is, a [`Marker`] is
//! kept where a restart finds it; a logical unit that begins with one goes on, or is failed.

use alloc::vec::Vec;

use netraid_block::{Buf, BufMut, ErrorKind, IoError, Op, RequestFlags, SgList, narrow};

use super::{
    LogicalUnit, MediumRequest, Step, Stop, Task, exclusion,
    marker::{Marker, Method},
    medium::{State, check_complete, internal_failure},
    respond_good,
};
use crate::{
    bytes::be16,
    cdb::{DataOut, Sanitize, SanitizeAction, WhileSanitizing},
    sense::{Additional, Sense, SenseKey},
};

/// Longest write of an overwrite pass, in bytes.
const OVERWRITE_LEN: u64 = 1 << 20;
/// Longest range that is erased at a time, so that progress shows.
const ERASE_LEN: u64 = 256 << 20;
/// How whoever waits is told of a failure.
const FAILED: ErrorKind = ErrorKind::Medium;
/// Header of the parameter list of OVERWRITE.
const HEADER_LEN: usize = 4;

/// Work of a logical unit that no task waits for, or not only one task.
#[derive(Debug)]
pub enum Background {
    /// Keep this where a restart finds it, durably, in place of what was kept; `None`: keep
    /// nothing.
    Keep(Option<Marker>),
    /// Commands that began before are still at the device: ask again in a few milliseconds.
    Pause,
    /// Submit this to the device.
    Submit(MediumRequest),
    /// End the wait of the tasks that [`Step::Wait`] was given to, by this; report success.
    Wake(Result<(), ErrorKind>),
}

/// How a sanitize operation is that has not succeeded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanitizeState {
    /// It goes on.
    UnderWay {
        /// 65,536ths that are done.
        progress: u16,
    },
    /// Another one has to succeed.
    Failed,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// The marker is to be kept before anything is touched.
    Ordered,
    /// It is kept; who wants an immediate answer gets it.
    Begun,
    /// Writes that began before have to end.
    Draining,
    /// Bytes from `next` on are to come in this pass.
    Erasing { pass: u8, next: u64 },
    /// Everything is written, and has to be stable.
    Flushing { pass: u8 },
    /// Everything is erased; the marker has to go.
    Finishing,
    /// It went wrong; the marker has to say so.
    Failing,
    /// It has failed.
    Failed,
    /// Whoever waits is to be told: success, or why not.
    Telling { error: Option<ErrorKind> },
}

/// The sanitize operation of a logical unit.
#[derive(Debug, Default)]
pub(super) struct Sanitizer {
    phase: Phase,
    order: Option<Marker>,
    /// What failed before the order, and is failed again when nothing comes of it.
    failed_before: Option<Marker>,
    /// The answer does not wait for the end.
    immediate: bool,
    /// Counts orders, so that a task knows its own.
    number: u64,
    /// What an overwrite pass writes.
    fill: Option<Buf>,
    /// Keeps all other writes out.
    slot: Option<exclusion::Slot>,
    /// Its task does not wait yet: it may be refused, as if nothing had been ordered.
    held_back: bool,
    /// Something that `poll_background` gave is under way.
    polled: bool,
    progress: u16,
}

impl Sanitizer {
    /// Whether commands are kept from the medium.
    pub(super) fn is_active(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Why a command that is not allowed meanwhile is refused (SBC-3, section 4.11.2).
    pub(super) fn refusal(&self, allowed: WhileSanitizing) -> Option<Sense> {
        let failed = self.has_failed();
        match allowed {
            _ if !self.is_active() => return None,
            WhileSanitizing::Allowed => return None,
            WhileSanitizing::AllowedAfterFailure if failed => return None,
            WhileSanitizing::AllowedAfterFailure | WhileSanitizing::Refused => {}
        }
        if failed {
            return Some(failure());
        }
        let sense = Sense::new(SenseKey::NotReady, Additional::SANITIZE_IN_PROGRESS);
        Some(sense.with_progress(self.progress))
    }

    /// Nothing comes of the order: what was the case before is again.
    fn give_up(&mut self) {
        self.order = self.failed_before.take();
    }

    /// The phase in which nothing is done.
    const fn rest(&self) -> Phase {
        if self.order.is_some() { Phase::Failed } else { Phase::Idle }
    }

    /// Those who wait have not been told yet.
    const fn tells(&self) -> bool {
        self.polled || matches!(self.phase, Phase::Telling { .. })
    }

    fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed | Phase::Telling { error: Some(FAILED) })
    }
}

impl LogicalUnit {
    /// The sanitize operation that keeps commands from the medium, if one does.
    #[must_use]
    pub fn sanitize_state(&self) -> Option<SanitizeState> {
        if self.sanitize.has_failed() {
            return Some(SanitizeState::Failed);
        }
        let progress = self.sanitize.progress;
        self.sanitize.is_active().then_some(SanitizeState::UnderWay { progress })
    }

    /// Begins with what was kept of a sanitize operation when the target last ended: it goes on
    /// from its start, or is failed.
    pub fn resume_sanitize(&mut self, marker: Marker) {
        self.sanitize.phase = if marker.failed { Phase::Failed } else { Phase::Draining };
        self.sanitize.held_back = false;
        self.sanitize.order = Some(marker);
        self.settle_blocked();
    }

    pub(super) fn start_sanitize(
        &mut self,
        task: &mut Task,
        request: Sanitize,
    ) -> Result<Step, Stop> {
        self.check_sanitize(&request)?;
        match request.action {
            SanitizeAction::Overwrite => {
                let len = u32::from(request.parameter_len);
                if !(5..self.config.info.block_len + 5).contains(&len) {
                    return Err(Sense::invalid_cdb(7, None).into());
                }
                task.state = State::Collect(DataOut::Sanitize(request));
                Ok(Step::DataOut { len, memory: 0 })
            }
            SanitizeAction::BlockErase => self.order(task, request, Method::BlockErase),
            SanitizeAction::ExitFailureMode => {
                if !self.sanitize.has_failed() {
                    return Ok(respond_good());
                }
                if self.sanitize.tells() {
                    return Err(Stop::BUSY);
                }
                // It ends as if it had succeeded: what is left of the marker has to go.
                self.sanitize.phase = Phase::Finishing;
                Ok(self.wait(task))
            }
        }
    }

    fn check_sanitize(&self, request: &Sanitize) -> Result<(), Sense> {
        let action = request.action;
        if action != SanitizeAction::Overwrite && request.parameter_len != 0 {
            return Err(Sense::invalid_cdb(7, None));
        }
        self.check_writable()?;
        // After a failure in restricted completion mode only another operation in that mode helps
        // (SBC-3, section 4.11.3).
        let restricted = self.sanitize.order.as_ref().is_some_and(|order| !order.unrestricted);
        if self.sanitize.has_failed() && restricted {
            if action == SanitizeAction::ExitFailureMode {
                return Err(Sense::invalid_cdb(1, Some(4)));
            }
            if request.unrestricted {
                return Err(Sense::invalid_cdb(1, Some(5)));
            }
        }
        Ok(())
    }

    /// Goes on with the parameter list of OVERWRITE (SBC-3, section 5.22.2).
    pub(super) fn sanitize_overwrite(
        &mut self,
        task: &mut Task,
        request: Sanitize,
        data: &SgList,
    ) -> Result<Step, Stop> {
        check_complete(data, u64::from(request.parameter_len))?;
        self.check_sanitize(&request)?;
        let list = data.to_contiguous();
        let (flags, passes) = (list[0], list[0] & 0x1f);
        let pattern_len = be16(&list, 2).map_or(0, usize::from);
        // TEST: only that nothing is to be tested.
        if flags & 0x60 != 0 || passes == 0 {
            return Err(Sense::invalid_parameter(0).into());
        }
        let pattern = list.get(HEADER_LEN..HEADER_LEN + pattern_len);
        let fits = (1..=self.config.info.block_len as usize).contains(&pattern_len);
        let Some(pattern) = pattern.filter(|_| fits) else {
            return Err(Sense::invalid_parameter(2).into());
        };
        let invert = flags & 0x80 != 0;
        let method = Method::Overwrite { pattern: pattern.to_vec(), passes, invert };
        self.order(task, request, method)
    }

    fn order(&mut self, task: &mut Task, request: Sanitize, method: Method) -> Result<Step, Stop> {
        // Whoever is preempted by the change that is being stored must not erase anything after it;
        // and those who wait for an operation that has failed are told of it first.
        if self.is_storing || self.sanitize.tells() {
            return Err(Stop::BUSY);
        }
        let unrestricted = request.unrestricted;
        self.sanitize.failed_before = self.sanitize.order.take();
        self.sanitize.phase = Phase::Ordered;
        self.sanitize.order = Some(Marker { method, unrestricted, failed: false });
        self.sanitize.immediate = request.immediate;
        self.sanitize.progress = 0;
        self.settle_blocked();
        Ok(self.wait(task))
    }

    fn wait(&mut self, task: &mut Task) -> Step {
        self.sanitize.number += 1;
        self.sanitize.held_back = true;
        task.state = State::Wait { order: self.sanitize.number };
        Step::Wait
    }

    /// Takes an order back that nothing was done for yet.
    pub(super) fn cancel_order(&mut self, number: u64) {
        if self.sanitize.number != number || self.sanitize.polled {
            return;
        }
        let failed = self.sanitize.order.as_ref().is_some_and(|order| order.failed);
        if self.sanitize.phase == Phase::Ordered {
            self.sanitize.give_up();
        } else if self.sanitize.phase != Phase::Finishing || !failed {
            // What is not EXIT FAILURE MODE goes on.
            return;
        }
        self.sanitize.held_back = false;
        self.sanitize.phase = self.sanitize.rest();
        self.settle_blocked();
    }

    /// Why a task that waited was woken.
    pub(super) const fn wait_failed(&self, kind: ErrorKind) -> Sense {
        if matches!(kind, FAILED) {
            return failure();
        }
        if matches!(kind, ErrorKind::Aborted) {
            return Sense::new(SenseKey::AbortedCommand, Additional::NONE);
        }
        internal_failure()
    }

    /// A task waits that was told to by [`Step::Wait`]: what it waits for may begin.
    pub const fn begin_background(&mut self) {
        self.sanitize.held_back = false;
    }

    /// The next thing to do that belongs to no task; `None` when there is nothing, or when the
    /// last thing is still under way. Ask after each `begin_background`, and after each
    /// `handle_background_done`.
    pub fn poll_background(&mut self) -> Option<Background> {
        if self.sanitize.polled || self.sanitize.held_back {
            return None;
        }
        let next = self.next_background()?;
        self.sanitize.polled = true;
        Some(next)
    }

    fn next_background(&mut self) -> Option<Background> {
        if self.sanitize.phase == Phase::Draining && self.sanitize.slot.is_none() {
            let capacity = self.config.info.capacity;
            self.sanitize.slot = self.exclusion.enter(0..capacity, true);
            if self.sanitize.slot.is_none() {
                return Some(Background::Pause);
            }
            self.sanitize.phase = Phase::Erasing { pass: 0, next: 0 };
        }
        match self.sanitize.phase {
            Phase::Idle | Phase::Failed | Phase::Draining => None,
            Phase::Ordered => Some(Background::Keep(self.sanitize.order.clone())),
            Phase::Begun => Some(Background::Wake(Ok(()))),
            Phase::Telling { error } => Some(Background::Wake(error.map_or(Ok(()), Err))),
            Phase::Erasing { pass, next } => Some(Background::Submit(self.erase(pass, next))),
            Phase::Flushing { .. } => Some(Background::Submit(MediumRequest {
                op: Op::Flush,
                offset: 0,
                len: 0,
                flags: RequestFlags::default(),
                data: SgList::new(),
            })),
            Phase::Finishing => Some(Background::Keep(None)),
            Phase::Failing => Some(Background::Keep(self.sanitize.order.clone())),
        }
    }

    /// How what `poll_background` gave has ended.
    pub fn handle_background_done(&mut self, result: Result<SgList, IoError>) {
        assert!(core::mem::take(&mut self.sanitize.polled), "nothing is under way");
        let failed = result.is_err();
        self.sanitize.phase = match self.sanitize.phase {
            Phase::Ordered if failed => {
                // Nothing was touched.
                self.sanitize.give_up();
                Phase::Telling { error: Some(ErrorKind::Device) }
            }
            Phase::Ordered if self.sanitize.immediate => Phase::Begun,
            Phase::Ordered | Phase::Begun | Phase::Draining => Phase::Draining,
            Phase::Erasing { .. } | Phase::Flushing { .. } | Phase::Finishing if failed => {
                if let Some(order) = &mut self.sanitize.order {
                    order.failed = true;
                }
                Phase::Failing
            }
            Phase::Erasing { pass, next } => self.erased(pass, next),
            Phase::Flushing { pass } if pass + 1 < self.passes() => {
                self.sanitize.fill = None;
                Phase::Erasing { pass: pass + 1, next: 0 }
            }
            Phase::Flushing { .. } => Phase::Finishing,
            Phase::Finishing => {
                self.sanitize.order = None;
                Phase::Telling { error: None }
            }
            // If that could not be kept either, a restart finds the older marker, and erases again.
            Phase::Failing => Phase::Telling { error: Some(FAILED) },
            Phase::Telling { error: Some(FAILED) } | Phase::Failed => Phase::Failed,
            Phase::Telling { .. } | Phase::Idle => self.sanitize.rest(),
        };
        let at_medium =
            matches!(self.sanitize.phase, Phase::Erasing { .. } | Phase::Flushing { .. });
        if !at_medium {
            self.sanitize.fill = None;
            if let Some(slot) = self.sanitize.slot.take() {
                self.exclusion.leave(slot);
            }
        }
        self.settle_blocked();
    }

    fn passes(&self) -> u8 {
        match self.sanitize.order.as_ref().map(|order| &order.method) {
            Some(Method::Overwrite { passes, .. }) => *passes,
            Some(Method::BlockErase) | None => 1,
        }
    }

    fn erased(&mut self, pass: u8, next: u64) -> Phase {
        let capacity = self.config.info.capacity;
        let next = next + self.piece_len(next);
        let done = u128::from(pass) * u128::from(capacity) + u128::from(next);
        let all = u128::from(self.passes()) * u128::from(capacity).max(1);
        // Clamped: all of it would be 65,536 of them.
        self.sanitize.progress = u16::try_from((done << 16) / all).unwrap_or(u16::MAX);
        if next < capacity { Phase::Erasing { pass, next } } else { Phase::Flushing { pass } }
    }

    /// Bytes that are done at once, from `next` on.
    fn piece_len(&self, next: u64) -> u64 {
        let info = &self.config.info;
        let block_len = u64::from(info.block_len);
        let most = match self.sanitize.order.as_ref().map(|order| &order.method) {
            Some(Method::Overwrite { .. }) => {
                OVERWRITE_LEN.min(u64::from(info.max_transfer_len)) / block_len * block_len
            }
            Some(Method::BlockErase) | None => ERASE_LEN,
        };
        most.min(info.capacity.saturating_sub(next))
    }

    fn erase(&mut self, pass: u8, next: u64) -> MediumRequest {
        let len = self.piece_len(next);
        let overwrite = match self.sanitize.order.as_ref().map(|order| &order.method) {
            Some(Method::Overwrite { pattern, passes, invert }) => {
                Some((pattern, *invert && (passes - 1 - pass) % 2 == 1))
            }
            Some(Method::BlockErase) | None => None,
        };
        let Some((pattern, inverted)) = overwrite else {
            let flags = RequestFlags::default();
            let op = Op::WriteZeroes;
            return MediumRequest { op, offset: next, len, flags, data: SgList::new() };
        };
        let fill = match &self.sanitize.fill {
            Some(fill) if fill.len() as u64 >= len => fill.clone(),
            Some(_) | None => fill_of(pattern, inverted, self.config.info.block_len as usize, len),
        };
        let data = fill.slice(0..narrow(len)).into();
        self.sanitize.fill = Some(fill);
        let flags = RequestFlags::default();
        MediumRequest { op: Op::Write, offset: next, len, flags, data }
    }
}

/// `len` bytes of logical blocks that each begin with the pattern and repeat it.
fn fill_of(pattern: &[u8], inverted: bool, block_len: usize, len: u64) -> Buf {
    let mask = if inverted { 0xff } else { 0 };
    let block: Vec<u8> = pattern.iter().cycle().take(block_len).map(|byte| byte ^ mask).collect();
    let mut fill = BufMut::zeroed(narrow(len));
    fill.chunks_exact_mut(block_len).for_each(|place| place.copy_from_slice(&block));
    fill.freeze()
}

const fn failure() -> Sense {
    Sense::new(SenseKey::MediumError, Additional::SANITIZE_COMMAND_FAILED)
}
