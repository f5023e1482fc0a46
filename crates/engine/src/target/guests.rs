//! Sessions that a token let in: their permits ([`Permit`]), asked at each request, and their commands at the device.

use std::{sync::Arc, time::Duration};

use netraid_block::Op;
use netraid_control::{
    derived::{Pieces, SegmentNow},
    token::Grant,
    units::{Generation, Moment},
};
use netraid_iscsi_proto::target::{ConnectionId, Standing};
use netraid_node::{
    Barred, Needs, Permit, Refused,
    segments::{PlanKey, Running, SegmentKey, Session, party},
};
use netraid_scsi::View;

use super::{
    Admission, Admitted, GrantReport,
    cells::Guarded,
    segments::{NotLetIn, Segment},
};

/// Denials of one session are told so often at most.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// One session that a token let in.
pub(super) struct Guest {
    pub(super) connection: ConnectionId,
    pub(super) segment: Arc<Segment>,
    pub(super) admitted: Admitted,
    pub(super) running: Running,
    permit: Guarded<Permit>,
    /// What its logical unit looks like to it, where that is not the segment.
    view: Option<View>,
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
    ) -> Result<Self, NotLetIn> {
        let info = segment.info().ok_or(NotLetIn::Closed)?;
        let terms = *admitted.grant.rule().terms();
        let permit = Permit::new(terms, &info, segment.generation(), now)?;
        Ok(Self {
            connection,
            segment,
            admitted,
            running: Running::default(),
            view: permit.view(&info),
            permit: Guarded::new(permit),
            told: Guarded::new(None),
        })
    }

    pub(super) const fn grant(&self) -> &Grant {
        &self.admitted.grant
    }

    pub(super) fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// What it may do beside requests to the device. Whoever may write all of it may also say how
    /// the unit behaves for all, and end what others do there.
    pub(super) fn standing(&self) -> Standing {
        let (ends_others, party) = (self.permit.lock().governs(), party(self.plan()));
        Standing { realm: self.segment.realm().id, ends_others, party: Some(party) }
    }

    pub(super) fn report(&self) -> GrantReport {
        let (token, permit) = (self.grant().token(), self.permit.lock());
        GrantReport {
            mediator: token.mediator,
            plan: token.plan,
            segment: token.segment,
            generation: token.terms.generation,
            until: permit.rule().terms().expires,
        }
    }

    /// Whether a request may go to the device now, and where: see [`Permit::send`].
    pub(super) fn judge(
        &self,
        admission: &dyn Admission,
        request: (Op, u64, u64),
        at: Duration,
    ) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        let (generation, now) = (self.segment.generation(), admission.now());
        let permit = self.permit.lock();
        let judged = if permit.appends() {
            permit.send(request, (generation, &mut self.segment.written().lock()), now)
        } else {
            permit
                .judge(request, SegmentNow { generation, end: 0 }, now)
                .map(|pieces| (pieces, None))
        };
        drop(permit);
        let (pieces, moved) = judged.map_err(|refused| self.tell(admission, refused, at))?;
        if moved.is_none() && matches!(request.0, Op::Write | Op::WriteZeroes) {
            self.segment.write_to(pieces.end());
        }
        Ok((pieces, moved))
    }

    /// As [`Self::judge`], and nothing changes: the request may come later.
    pub(super) fn foresee(
        &self,
        admission: &dyn Admission,
        request: (Op, u64, u64),
        at: Duration,
    ) -> Result<(), Barred> {
        let judged = self.permit.lock().foresee(request, self.segment_now(), admission.now());
        judged.map_err(|refused| self.tell(admission, refused, at))
    }

    /// Whether a command may be carried out that is no request to the device, but takes a right.
    pub(super) fn may(
        &self,
        admission: &dyn Admission,
        needs: Needs,
        at: Duration,
    ) -> Result<(), Barred> {
        let judged = self.permit.lock().may(needs, self.segment.generation(), admission.now());
        judged.map_err(|refused| self.tell(admission, refused, at))
    }

    fn segment_now(&self) -> SegmentNow {
        SegmentNow {
            generation: self.segment.generation(),
            end: self.segment.written().lock().end(),
        }
    }

    #[cold]
    fn tell(&self, admission: &dyn Admission, refused: Refused, at: Duration) -> Barred {
        let Some(denial) = refused else { return Barred };
        if self.told.get().is_none_or(|told| at.saturating_sub(told) >= TELL_INTERVAL) {
            self.told.set(Some(at));
            admission.denied(self.grant(), &denial);
        }
        Barred
    }
}

impl Session for Guest {
    fn connection(&self) -> ConnectionId {
        self.connection
    }

    fn segment(&self) -> SegmentKey {
        self.segment.key
    }

    fn plan(&self) -> PlanKey {
        let token = self.grant().token();
        (token.mediator, token.plan)
    }

    fn generation(&self) -> Generation {
        self.grant().token().terms.generation
    }

    fn running(&self) -> &Running {
        &self.running
    }

    fn holds(&self, generation: Generation, now: Moment) -> bool {
        self.permit.lock().holds(generation, now).is_ok()
    }

    fn end_permit(&self) {
        self.permit.lock().end();
    }

    fn extend_permit(&self, until: Moment) {
        if let Some(info) = self.segment.info() {
            self.permit.lock().extend(until, info.capacity, info.block_len);
        }
    }
}
