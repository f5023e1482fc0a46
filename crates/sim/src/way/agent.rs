//! An agent's segment at a host: who is let in to it by a token, and what reaches its device. Tokens, grants and permits
//! are the product's.
//!
//! Invariant: what a session's grant does not allow at a moment does not reach the device then; and once the session is
//! said to be over, nothing of it does.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use netraid_block::{DeviceInfo, Op};
use netraid_control::{
    derived::{Pieces, Rights, SegmentNow, Terms},
    token::{self, AgentView, Grant, SegmentInfo},
    units::{Generation, Moment, PlanId},
};
use netraid_iscsi_proto::{
    chap::Secret,
    target::{Claim, ConnectionId, Party, Realm, Standing},
};
use netraid_node::{Barred, Entry, Guest, Needs, Permit, Refused, Written};
use netraid_scsi::View;

use super::interface::AgentConfig;

/// Where the logical unit of the segment is.
pub(super) const REALM: Realm = Realm(1);

/// The agent of a host: it outlives the programs.
pub(super) struct Agent {
    config: AgentConfig,
    info: DeviceInfo,
    generation: Cell<Generation>,
    written: RefCell<Written>,
    now: Cell<Moment>,
    /// Plans that were ended: their tokens let in nobody.
    revoked: RefCell<Vec<PlanId>>,
    visitors: RefCell<Vec<Rc<Visitor>>>,
}

/// A session that a token let in.
pub(super) struct Visitor {
    agent: Rc<Agent>,
    connection: ConnectionId,
    grant: Grant,
    permit: RefCell<Permit>,
    view: Option<View>,
    /// Commands at the device.
    running: Cell<u32>,
    /// The simulation's own record of when the grant ends, and whether the session was ended: the permit is not asked.
    expires: Cell<Moment>,
    has_ended: Cell<bool>,
    /// The owner was told that nothing of it is at the device.
    is_over: Cell<bool>,
}

impl Agent {
    pub(super) fn new(config: AgentConfig, info: DeviceInfo) -> Self {
        let (generation, now) = (Cell::new(config.generation), Cell::new(config.begins));
        let (revoked, visitors) = (RefCell::default(), RefCell::default());
        let written = RefCell::default();
        Self { config, info, generation, written, now, revoked, visitors }
    }

    /// The wall clock, by the time since the run began.
    pub(super) fn set_clock(&self, clock: core::time::Duration) {
        let ms = u64::try_from(clock.as_millis()).unwrap_or(u64::MAX);
        self.now.set(self.config.begins.after_ms(ms));
    }

    /// Lets in who proves a token, as the product's agent does.
    pub(super) fn let_in(
        self: &Rc<Self>,
        connection: ConnectionId,
        claim: &Claim<'_>,
    ) -> Option<Rc<Visitor>> {
        let AgentConfig { mediator, agent, segment, ref keys, .. } = self.config;
        let DeviceInfo { capacity, block_len, .. } = self.info;
        let generation = self.generation.get();
        let own = SegmentInfo { generation, capacity, block_len };
        let segment = |whose, which| (whose == mediator && which == segment).then_some(own);
        let is_revoked = |_, plan| self.revoked.borrow().contains(&plan);
        let view = AgentView { agent, keys, segment: &segment, is_revoked: &is_revoked };
        let proves = |secret: &token::Secret| {
            Secret::new(secret.expose()).is_ok_and(|secret| claim.proves(&secret))
        };
        let admitted = token::admit(claim.name(), claim.initiator(), &view, self.now.get(), proves);
        let grant = admitted.ok()?;
        let permit = Permit::new(*grant.rule());
        let visitor = Rc::new(Visitor {
            agent: self.clone(),
            connection,
            grant,
            view: permit.view(&self.info),
            permit: RefCell::new(permit),
            running: Cell::new(0),
            expires: Cell::new(grant.token().terms.expires),
            has_ended: Cell::new(false),
            is_over: Cell::new(false),
        });
        self.visitors.borrow_mut().push(visitor.clone());
        Some(visitor)
    }

    /// The segment has this generation from now on.
    pub(super) fn raise(&self, generation: Generation) {
        self.generation.set(generation.max(self.generation.get()));
    }

    /// The grants of a plan hold until this moment. Those of ended sessions are extended, too: that must not help them.
    pub(super) fn extend(&self, plan: PlanId, until: Moment) {
        let DeviceInfo { capacity, block_len, .. } = self.info;
        let visitors = self.visitors.borrow();
        for visitor in visitors.iter().filter(|visitor| visitor.grant.token().plan == plan) {
            visitor.permit.borrow_mut().extend(until, capacity, block_len);
            visitor.expires.set(until.max(visitor.expires.get()));
        }
    }

    /// A plan ends; the sessions that end by it.
    pub(super) fn end_plan(&self, plan: PlanId) -> Vec<ConnectionId> {
        self.revoked.borrow_mut().push(plan);
        self.end_where(|visitor| visitor.grant.token().plan == plan)
    }

    /// Sessions whose grants hold no more end.
    pub(super) fn end_lapsed(&self) -> Vec<ConnectionId> {
        self.end_where(|visitor| visitor.is_past().is_some())
    }

    fn end_where(&self, is_over: impl Fn(&Visitor) -> bool) -> Vec<ConnectionId> {
        let visitors = self.visitors.borrow();
        let over = visitors.iter().filter(|visitor| is_over(visitor));
        over.filter(|visitor| visitor.end()).map(|visitor| visitor.connection).collect()
    }

    /// Those that were ended, and have no command at the device, are over. The ones that became so now.
    pub(super) fn newly_over(&self) -> Vec<ConnectionId> {
        let visitors = self.visitors.borrow();
        let over = visitors.iter().filter(|visitor| {
            let has_left = visitor.has_ended.get() && visitor.running.get() == 0;
            has_left && !visitor.is_over.replace(true)
        });
        over.map(|visitor| visitor.connection).collect()
    }

    /// Whether a session that was ended has a command at the device.
    pub(super) fn drains(&self) -> bool {
        self.visitors
            .borrow()
            .iter()
            .any(|visitor| visitor.has_ended.get() && visitor.running.get() > 0)
    }

    /// A session is gone.
    pub(super) fn forget(&self, connection: ConnectionId) {
        let mut visitors = self.visitors.borrow_mut();
        let before = visitors.len();
        visitors.retain(|visitor| {
            let is_gone = visitor.connection == connection;
            let running = visitor.running.get();
            assert!(!is_gone || running == 0, "{connection:?} leaves under {running} commands");
            !is_gone
        });
        assert!(before - visitors.len() <= 1, "{connection:?} was let in more than once");
    }

    /// The program has died, and all sessions with it.
    pub(super) fn forget_all(&self) {
        self.visitors.borrow_mut().clear();
    }

    /// What is wrong with a request that comes to the device now, if anything is.
    pub(super) fn is_wrong(
        &self,
        connection: ConnectionId,
        (op, pieces): (Op, &[(u64, u64)]),
    ) -> Option<String> {
        let visitors = self.visitors.borrow();
        let visitor = visitors.iter().find(|visitor| visitor.connection == connection);
        let why = match visitor {
            None => Some("of nobody"),
            Some(visitor) => visitor.is_wrong(op, pieces),
        };
        why.map(|why| format!("{connection:?}: a {op:?} {why} comes to the device"))
    }

    /// What is wrong with reservations that are stored for a session now, if anything is.
    pub(super) fn is_wrong_to_reserve(&self, connection: ConnectionId) -> Option<String> {
        let visitors = self.visitors.borrow();
        let visitor = visitors.iter().find(|visitor| visitor.connection == connection);
        let is_right = visitor.is_some_and(|visitor| {
            let has_right = visitor.terms().rights.contain(Rights::RESERVE);
            has_right && visitor.is_past().is_none()
        });
        (!is_right).then(|| format!("{connection:?} changes reservations without a right to it"))
    }
}

impl Visitor {
    /// What its session is let in to.
    pub(super) fn entry(&self) -> Entry {
        let token = self.grant.token();
        let mut party = [0; 32];
        party[..16].copy_from_slice(&token.mediator.0);
        party[16..].copy_from_slice(&token.plan.0);
        let ends_others = self.permit.borrow().governs();
        Entry::Granted(Standing { realm: REALM, ends_others, party: Some(Party(party)) })
    }

    /// Nothing of the session may happen from now on. False when that was so already.
    fn end(&self) -> bool {
        self.permit.borrow_mut().end();
        !self.has_ended.replace(true)
    }

    fn terms(&self) -> &Terms {
        &self.grant.token().terms
    }

    /// Why nothing may be asked for any more, if so: judged here, whatever the permit says.
    fn is_past(&self) -> Option<&'static str> {
        if self.has_ended.get() {
            Some("of a session that was ended")
        } else if self.agent.now.get() >= self.expires.get() {
            Some("of a session whose time is over")
        } else if self.agent.generation.get() != self.terms().generation {
            Some("of a session of another generation")
        } else {
            None
        }
    }

    fn is_wrong(&self, op: Op, pieces: &[(u64, u64)]) -> Option<&'static str> {
        if let Some(why) = self.is_past() {
            return Some(why);
        }
        if !self.terms().rights.contain(Rights::for_op(op)) {
            return Some("without a right to it");
        }
        let is_granted = |(offset, len): &(u64, u64)| {
            let mut ranges = self.terms().ranges.as_slice().iter();
            ranges.any(|range| range.offset <= *offset && offset + len <= range.end())
        };
        let are_granted = pieces.iter().all(is_granted);
        (!are_granted).then_some("to bytes that were not granted")
    }

    fn segment(&self) -> SegmentNow {
        SegmentNow {
            generation: self.agent.generation.get(),
            end: self.agent.written.borrow().end(),
        }
    }
}

fn barred(_: Refused) -> Barred {
    Barred
}

impl Guest for Visitor {
    fn may(&self, needs: Needs) -> Result<(), Barred> {
        let permit = self.permit.borrow();
        permit.may(needs, self.agent.generation.get(), self.agent.now.get()).map_err(barred)
    }

    fn foresee(&self, request: (Op, u64, u64)) -> Result<(), Barred> {
        let permit = self.permit.borrow();
        permit.foresee(request, self.segment(), self.agent.now.get()).map_err(barred)
    }

    fn judge(&self, request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        let written = &mut self.agent.written.borrow_mut();
        let segment = (self.agent.generation.get(), &mut **written);
        self.permit.borrow().send(request, segment, self.agent.now.get()).map_err(barred)
    }

    fn take_back(&self, before: u64, end: u64) {
        self.agent.written.borrow_mut().take_back(before, end);
    }

    fn enter(&self) {
        self.running.set(self.running.get() + 1);
    }

    fn leave(&self) {
        let running = self.running.get();
        assert!(running > 0, "{:?}: a command leaves that did not enter", self.connection);
        self.running.set(running - 1);
    }

    fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
}
