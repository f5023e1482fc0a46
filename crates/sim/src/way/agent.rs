//! An agent's segment at a host: who is let in to it by a token, and what reaches its device. Tokens, grants and permits
//! are the product's.
//!
//! Invariant: what a session's grant does not allow at a moment does not reach the device then; and once the session is
//! said to be over, nothing of it does.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use netraid_block::{DeviceInfo, Op};
use netraid_control::{
    derived::{Pieces, Rights, SegmentNow},
    token::{self, AgentView, Grant, SegmentInfo},
    units::{Generation, Moment, PlanId},
};
use netraid_iscsi_proto::{
    chap::Secret,
    target::{Claim, ConnectionId, Party, Realm, Standing},
};
use netraid_node::{Barred, Entry, Guest, Needs, Permit, Refused};
use netraid_scsi::View;

use super::interface::AgentConfig;

/// Where the logical unit of the segment is.
pub(super) const REALM: Realm = Realm(1);

/// The agent of a host: it outlives the programs.
pub(super) struct Agent {
    config: AgentConfig,
    info: DeviceInfo,
    generation: Cell<Generation>,
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
    /// The owner was told that nothing of it is at the device.
    is_over: Cell<bool>,
}

impl Agent {
    pub(super) fn new(config: AgentConfig, info: DeviceInfo) -> Self {
        let (generation, now) = (Cell::new(config.generation), Cell::new(config.begins));
        let (revoked, visitors) = (RefCell::default(), RefCell::default());
        Self { config, info, generation, now, revoked, visitors }
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
            is_over: Cell::new(false),
        });
        self.visitors.borrow_mut().push(visitor.clone());
        Some(visitor)
    }

    /// The segment has this generation from now on; the sessions that end by it.
    pub(super) fn raise(&self, generation: Generation) -> Vec<ConnectionId> {
        self.generation.set(generation.max(self.generation.get()));
        self.end_where(|visitor| visitor.holds().is_err())
    }

    /// A plan ends; the sessions that end by it.
    pub(super) fn end_plan(&self, plan: PlanId) -> Vec<ConnectionId> {
        self.revoked.borrow_mut().push(plan);
        self.end_where(|visitor| visitor.grant.token().plan == plan)
    }

    /// Sessions whose time is over end.
    pub(super) fn end_lapsed(&self) -> Vec<ConnectionId> {
        self.end_where(|visitor| visitor.holds().is_err())
    }

    fn end_where(&self, is_over: impl Fn(&Visitor) -> bool) -> Vec<ConnectionId> {
        let visitors = self.visitors.borrow();
        let over = visitors.iter().filter(|visitor| is_over(visitor));
        over.filter(|visitor| visitor.permit.borrow_mut().end())
            .map(|visitor| visitor.connection)
            .collect()
    }

    /// Those that were ended, and have no command at the device, are over. The ones that became so now.
    pub(super) fn newly_over(&self) -> Vec<ConnectionId> {
        let visitors = self.visitors.borrow();
        let over = visitors.iter().filter(|visitor| {
            let has_left = visitor.permit.borrow().has_ended() && visitor.running.get() == 0;
            has_left && !visitor.is_over.replace(true)
        });
        over.map(|visitor| visitor.connection).collect()
    }

    /// Whether a session that was ended has a command at the device.
    pub(super) fn drains(&self) -> bool {
        self.visitors
            .borrow()
            .iter()
            .any(|visitor| visitor.permit.borrow().has_ended() && visitor.running.get() > 0)
    }

    /// A session is gone.
    pub(super) fn forget(&self, connection: ConnectionId) {
        self.visitors.borrow_mut().retain(|visitor| visitor.connection != connection);
    }

    /// The program has died, and all sessions with it.
    pub(super) fn forget_all(&self) {
        self.visitors.borrow_mut().clear();
    }

    /// What is wrong with a request that comes to the device, if anything is.
    pub(super) fn is_wrong(
        &self,
        connection: ConnectionId,
        (op, pieces): (Op, &[(u64, u64)]),
    ) -> Option<String> {
        let visitors = self.visitors.borrow();
        let visitor = visitors.iter().find(|visitor| visitor.connection == connection)?;
        let terms = visitor.grant.token().terms;
        let why =
            if visitor.is_over.get() {
                "of a session that is over"
            } else if self.now.get() >= terms.expires {
                "of a session whose time is over"
            } else if self.generation.get() != terms.generation {
                "of a session of another generation"
            } else if !terms.rights.contain(Rights::for_op(op)) {
                "of a session without a right to it"
            } else if pieces.iter().any(|(offset, len)| {
                !terms.ranges.as_slice().iter().any(|range| {
                    range.offset <= *offset && offset.saturating_add(*len) <= range.end()
                })
            }) {
                "to bytes that were not granted"
            } else {
                return None;
            };
        Some(format!("{connection:?}: a {op:?} comes to the device {why}"))
    }

    /// What is wrong with reservations that are stored for a session, if anything is.
    pub(super) fn is_wrong_to_reserve(&self, connection: ConnectionId) -> Option<String> {
        let visitors = self.visitors.borrow();
        let visitor = visitors.iter().find(|visitor| visitor.connection == connection)?;
        let has_right = visitor.grant.token().terms.rights.contain(Rights::RESERVE);
        let is_right = has_right && visitor.holds().is_ok() && !visitor.is_over.get();
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

    fn holds(&self) -> Result<(), ()> {
        let held = self.permit.borrow().holds(self.agent.generation.get(), self.agent.now.get());
        held.map_err(|_| ())
    }

    fn segment(&self) -> SegmentNow {
        // No grant here is of one that only appends.
        SegmentNow { generation: self.agent.generation.get(), end: 0 }
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
        let judged = self.permit.borrow().judge(request, self.segment(), self.agent.now.get());
        judged.map(|pieces| (pieces, None)).map_err(barred)
    }

    fn take_back(&self, before: u64, end: u64) {
        unreachable!("{:?} has moved no end: {before}, {end}", self.connection)
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
