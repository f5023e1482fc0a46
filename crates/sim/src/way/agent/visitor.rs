//! A session that a token let in: its permit is the product's; when it is over, and what it may do, is noted here once more.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use netraid_block::Op;
use netraid_control::{
    derived::{Pieces, Rights, SegmentNow, Terms},
    token::Grant,
    units::{Generation, Moment},
};
use netraid_iscsi_proto::target::{ConnectionId, Standing};
use netraid_node::{
    Barred, Entry, Guest, Needs, Permit, Refused,
    segments::{PlanKey, Running, SegmentKey, Session, party},
};
use netraid_scsi::View;

use super::{Agent, Place};
use crate::way::interface::SegmentOrder;

/// A session that a token let in.
pub(in crate::way) struct Visitor {
    agent: Rc<Agent>,
    connection: ConnectionId,
    place: Rc<Place>,
    grant: Grant,
    permit: RefCell<Permit>,
    view: Option<View>,
    running: Running,
    /// The simulation's own record of when the grant ends, and whether the session must have ended: neither the permit nor the
    /// table is asked.
    expires: Cell<Moment>,
    must_have_ended: Cell<bool>,
    /// Its time was over, or its plan ended, when the table looked last.
    was_past: Cell<bool>,
    /// It was noted that nothing of it is at the device.
    is_over: Cell<bool>,
}

impl Visitor {
    pub(super) fn new(
        agent: Rc<Agent>,
        connection: ConnectionId,
        (place, grant): (Rc<Place>, Grant),
        (permit, view): (Permit, Option<View>),
    ) -> Self {
        Self {
            agent,
            connection,
            place,
            expires: Cell::new(grant.token().terms.expires),
            grant,
            permit: RefCell::new(permit),
            view,
            running: Running::default(),
            must_have_ended: Cell::new(false),
            was_past: Cell::new(false),
            is_over: Cell::new(false),
        }
    }

    pub(in crate::way) fn place(&self) -> &Place {
        &self.place
    }

    /// What its session is let in to.
    pub(in crate::way) fn entry(&self) -> Entry {
        let (ends_others, realm) = (self.permit.borrow().governs(), self.place.realm.id);
        Entry::Granted(Standing { realm, ends_others, party: Some(party(self.plan())) })
    }

    pub(super) fn note_extended(&self, until: Moment) {
        self.expires.set(until.max(self.expires.get()));
    }

    /// The table looks now; its plan was ended, or not.
    pub(super) fn note_looked_at(&self, is_revoked: bool) {
        self.was_past.set(is_revoked || self.why_past().is_some());
    }

    pub(super) const fn was_past(&self) -> bool {
        self.was_past.get()
    }

    pub(in crate::way) fn note_ended(&self) {
        self.must_have_ended.set(true);
    }

    /// Whether an order ends it.
    pub(in crate::way) fn ends_by(&self, order: SegmentOrder) -> bool {
        match order {
            SegmentOrder::Raise(generation) => self.terms().generation < generation,
            SegmentOrder::EndPlan(plan) => self.grant.token().plan == plan,
            SegmentOrder::Close => true,
            SegmentOrder::Extend(..) => false,
        }
    }

    /// Why nothing may be asked for any more, if so.
    pub(super) fn why_past(&self) -> Option<&'static str> {
        if self.must_have_ended.get() {
            Some("of a session that was ended")
        } else if self.agent.now() >= self.expires.get() {
            Some("of a session whose time is over")
        } else if self.agent.told.get() > self.terms().generation {
            Some("of a session of another generation")
        } else {
            None
        }
    }

    pub(super) fn has_right(&self, right: Rights) -> bool {
        self.terms().rights.contain(right)
    }

    pub(super) fn what_is_wrong(&self, op: Op, pieces: &[(u64, u64)]) -> Option<&'static str> {
        if let Some(why) = self.why_past() {
            return Some(why);
        }
        if !self.has_right(Rights::for_op(op)) {
            return Some("without a right to it");
        }
        let is_granted = |(offset, len): &(u64, u64)| {
            let mut ranges = self.terms().ranges.as_slice().iter();
            ranges.any(|range| range.offset <= *offset && offset + len <= range.end())
        };
        let are_granted = pieces.iter().all(is_granted);
        (!are_granted).then_some("to bytes that were not granted")
    }

    /// Whether it has ended, and left the device, since this was asked last.
    pub(super) fn is_newly_over(&self) -> bool {
        let has_left = self.must_have_ended.get() && self.running.count() == 0;
        has_left && !self.is_over.replace(true)
    }

    fn terms(&self) -> &Terms {
        &self.grant.token().terms
    }

    fn segment_now(&self) -> SegmentNow {
        SegmentNow {
            generation: self.place.fence.generation(),
            end: self.place.written.borrow().end(),
        }
    }
}

impl Session for Visitor {
    fn connection(&self) -> ConnectionId {
        self.connection
    }

    fn segment(&self) -> SegmentKey {
        self.agent.key()
    }

    fn plan(&self) -> PlanKey {
        let token = self.grant.token();
        (token.mediator, token.plan)
    }

    fn generation(&self) -> Generation {
        self.terms().generation
    }

    fn running(&self) -> &Running {
        &self.running
    }

    fn holds(&self, generation: Generation, now: Moment) -> bool {
        self.permit.borrow().holds(generation, now).is_ok()
    }

    fn end_permit(&self) {
        self.permit.borrow_mut().end();
    }

    fn extend_permit(&self, until: Moment) {
        let info = &self.agent.info;
        self.permit.borrow_mut().extend(until, info.capacity, info.block_len);
    }
}

fn barred(_: Refused) -> Barred {
    Barred
}

impl Guest for Visitor {
    fn may(&self, needs: Needs) -> Result<(), Barred> {
        let permit = self.permit.borrow();
        permit.may(needs, self.place.fence.generation(), self.agent.now()).map_err(barred)
    }

    fn foresee(&self, request: (Op, u64, u64)) -> Result<(), Barred> {
        let permit = self.permit.borrow();
        permit.foresee(request, self.segment_now(), self.agent.now()).map_err(barred)
    }

    fn judge(&self, request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        let written = &mut self.place.written.borrow_mut();
        let segment = (self.place.fence.generation(), &mut **written);
        self.permit.borrow().send(request, segment, self.agent.now()).map_err(barred)
    }

    fn take_back(&self, before: u64, end: u64) {
        self.place.written.borrow_mut().take_back(before, end);
    }

    fn enter(&self) {
        self.running.enter();
    }

    fn leave(&self) {
        if self.running.leave() {
            self.agent.settle();
        }
    }

    fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
}
