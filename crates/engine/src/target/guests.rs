//! What a session may do that a token let in: its grant, asked at each request.
//!
//! Invariant: no request of a session goes to the device that its grant does not allow at that
//! moment, with the generation that the segment has then; and none at all once the session was
//! ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use netraid_block::Op;
use netraid_control::{
    derived::Verdict,
    derived::{ByteRange, Denial, Lapsed, Pieces, Rights, Rule, RuleError, SegmentNow, Terms},
    token::Grant,
    units::{MediatorId, Moment, PlanId},
};
use netraid_iscsi_proto::target::{ConnectionId, Party, Standing};
use netraid_node::{Barred, Needs};
use netraid_scsi::View;

use super::{Admission, Admitted, GrantReport, cells::Guarded, segments::Segment};

/// Denials of one session are told so often at most.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// One session that a token let in.
pub(super) struct Guest {
    pub(super) connection: ConnectionId,
    pub(super) segment: Arc<Segment>,
    pub(super) admitted: Admitted,
    /// The grant's, until when it was extended.
    rule: Guarded<Rule>,
    /// What its logical unit looks like to it, where that is not the segment.
    view: Option<View>,
    /// It is to go, and nothing that it asks for happens any more.
    ended: AtomicBool,
    /// Commands at the device.
    running: AtomicU32,
    told: Guarded<Option<Duration>>,
}

impl Guest {
    /// Whoever was admitted, at the segment as it is.
    ///
    /// # Errors
    /// When the grant does not fit it, or does not hold any more.
    pub(super) fn new(
        connection: ConnectionId,
        segment: Arc<Segment>,
        admitted: Admitted,
        now: Moment,
    ) -> Result<Self, GuestError> {
        let terms = *admitted.grant.rule().terms();
        let (info, generation) = (segment.info().ok_or(Lapsed::Absent)?, segment.generation());
        // Computed from the device itself: what the grant was made for may have been another.
        let rule = Rule::new(terms, info.capacity, info.block_len)?;
        rule.holds(generation, now)?;
        let can_discard =
            info.can_discard && terms.rights.contain(Rights::DISCARD) && !terms.append_only;
        let ranges = terms.ranges.as_slice();
        let view = View {
            info: netraid_block::DeviceInfo {
                capacity: rule.capacity(),
                read_only: info.read_only || rule.is_read_only(),
                can_discard,
                can_map: info.can_map && ranges.is_empty(),
                ..info.clone()
            },
            ranges: if ranges.is_empty() {
                core::iter::once(0..info.capacity).collect()
            } else {
                ranges.iter().map(|range| range.offset..range.end()).collect()
            },
        };
        Ok(Self {
            connection,
            segment,
            admitted,
            rule: Guarded::new(rule),
            view: Some(view).filter(|view| view.info != info || !ranges.is_empty()),
            ended: AtomicBool::new(false),
            running: AtomicU32::new(0),
            told: Guarded::new(None),
        })
    }

    pub(super) const fn grant(&self) -> &Grant {
        &self.admitted.grant
    }

    pub(super) fn is_of(&self, (mediator, plan): (MediatorId, PlanId)) -> bool {
        let token = self.grant().token();
        token.mediator == mediator && token.plan == plan
    }

    pub(super) fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// What it may do beside requests to the device. Whoever may write all of it may also say how
    /// the unit behaves for all, and end what others do there.
    pub(super) fn standing(&self) -> Standing {
        let (ends_others, token) = (self.governs(), self.grant().token());
        let mut party = [0; 32];
        party[..16].copy_from_slice(&token.mediator.0);
        party[16..].copy_from_slice(&token.plan.0);
        Standing { realm: self.segment.realm().id, ends_others, party: Some(Party(party)) }
    }

    fn governs(&self) -> bool {
        let rule = self.rule.lock();
        let terms = rule.terms();
        terms.rights.contain(Rights::WRITE) && !terms.append_only
    }

    pub(super) fn report(&self) -> GrantReport {
        let (token, rule) = (self.grant().token(), self.rule.lock());
        GrantReport {
            mediator: token.mediator,
            plan: token.plan,
            segment: token.segment,
            generation: token.terms.generation,
            until: rule.terms().expires,
        }
    }

    /// Commands at the device.
    pub(super) fn running(&self) -> u32 {
        self.running.load(SeqCst)
    }

    /// A command goes to the device; [`Self::leave`] when it has ended.
    pub(super) fn enter(&self) {
        self.running.fetch_add(1, SeqCst);
    }

    pub(super) fn leave(&self) {
        let was = self.running.fetch_sub(1, SeqCst);
        assert!(was > 0, "a command leaves that did not enter");
        if was == 1 && self.ended.load(SeqCst) {
            self.segment.notify();
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Nothing that it asks for happens from now on. False when that was so already.
    pub(super) fn end(&self) -> bool {
        !self.ended.swap(true, SeqCst)
    }

    /// Whether it may only write behind what is written.
    pub(super) const fn appends(&self) -> bool {
        self.admitted.grant.token().terms.append_only
    }

    /// Whether the grant holds.
    pub(super) fn holds(&self, now: Moment) -> Result<(), Lapsed> {
        self.rule.lock().holds(self.segment.generation(), now)
    }

    /// It may go on until then, if that is later.
    pub(super) fn extend(&self, until: Moment) {
        let mut rule = self.rule.lock();
        let terms = Terms { expires: until.max(rule.terms().expires), ..*rule.terms() };
        if let Some(info) = self.segment.info()
            && let Ok(extended) = Rule::new(terms, info.capacity, info.block_len)
        {
            *rule = extended;
        }
    }

    /// Whether a request may go to the device now, and where. The end of what is written moves on
    /// with it.
    pub(super) fn judge(
        &self,
        admission: &dyn Admission,
        (op, offset, len): (Op, u64, u64),
        at: Duration,
    ) -> Result<Pieces, Barred> {
        let pieces = self.weigh(admission, (op, offset, len), at)?;
        if matches!(op, Op::Write | Op::WriteZeroes) {
            self.segment.write_to(pieces.end());
        }
        Ok(pieces)
    }

    /// As [`Self::judge`], and nothing changes: the request may come later.
    pub(super) fn foresee(
        &self,
        admission: &dyn Admission,
        request: (Op, u64, u64),
        at: Duration,
    ) -> Result<(), Barred> {
        // Where that ends is known when the writes before it are on their way.
        if self.rule.lock().terms().append_only && request.0 == Op::Write {
            return Ok(());
        }
        self.weigh(admission, request, at).map(|_| ())
    }

    /// Whether a command may be carried out that is no request to the device, but takes a right.
    pub(super) fn may(
        &self,
        admission: &dyn Admission,
        needs: Needs,
        at: Duration,
    ) -> Result<(), Barred> {
        if self.ended.load(SeqCst) {
            return Err(Barred);
        }
        let (generation, now) = (self.segment.generation(), admission.now());
        let allowed = match needs {
            Needs::Nothing => Ok(()),
            Needs::Reserve => self.rule.lock().may_reserve(generation, now),
            Needs::Govern if !self.governs() => {
                let held = self.rule.lock().terms().rights;
                Err(Denial::Right { needed: Rights::WRITE, held })
            }
            Needs::Govern => self.holds(now).map_err(Denial::from),
        };
        allowed.map_err(|denial| self.tell(admission, &denial, at))
    }

    fn weigh(
        &self,
        admission: &dyn Admission,
        (op, offset, len): (Op, u64, u64),
        at: Duration,
    ) -> Result<Pieces, Barred> {
        if self.ended.load(SeqCst) {
            return Err(Barred);
        }
        let segment =
            SegmentNow { generation: self.segment.generation(), end: self.segment.end_bytes() };
        let range = ByteRange { offset, len };
        let verdict = self.rule.lock().judge(op, range, segment, admission.now());
        match verdict {
            Verdict::Allow(pieces) => Ok(pieces),
            Verdict::Deny(denial) => Err(self.tell(admission, &denial, at)),
        }
    }

    #[cold]
    fn tell(&self, admission: &dyn Admission, denial: &Denial, at: Duration) -> Barred {
        if self.told.get().is_none_or(|told| at.saturating_sub(told) >= TELL_INTERVAL) {
            self.told.set(Some(at));
            admission.denied(self.grant(), denial);
        }
        Barred
    }
}

/// Why nobody is let in to a segment that is open.
#[derive(Debug, thiserror::Error)]
pub(super) enum GuestError {
    #[error(transparent)]
    Lapsed(#[from] Lapsed),
    #[error(transparent)]
    Rule(#[from] RuleError),
}
