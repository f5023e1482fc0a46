//! An agent's segment at a host: who is let in to it by a token, and what reaches its device. Tokens, grants, permits and the
//! table of segments are the product's.
//!
//! Invariant: what a session's grant does not allow at a moment does not reach the device then; once an order is done, nothing
//! of the sessions that it ends is there; and a device that is closed is left alone.

mod visitor;

use core::{
    cell::{Cell, RefCell, RefMut},
    time::Duration,
};
use std::{rc::Rc, sync::Arc};

use netraid_block::{DeviceInfo, Op};
use netraid_control::{
    derived::Rights,
    token::{self, AgentView, Grant, SegmentInfo},
    units::{Generation, Moment, PlanId},
};
use netraid_iscsi_proto::{
    chap::Secret,
    target::{Claim, ConnectionId, Realm},
};
use netraid_node::{
    Permit, Written,
    segments::{
        Action, Fence, Knocked, OrderId, SegmentKey, Segments, Session as _, Unopened, Why,
    },
};

pub(super) use self::visitor::Visitor;
use super::{
    interface::{AgentConfig, SegmentOrder},
    reach::ServedRealm,
};

type Table = Segments<Rc<Place>, Rc<Visitor>>;

/// The agent of a host: it outlives the programs, and its table of segments does not.
pub(super) struct Agent {
    pub(super) config: AgentConfig,
    info: DeviceInfo,
    /// What the agent has stored.
    generation: Cell<Generation>,
    /// What the table was told: it may lag behind.
    told: Cell<Generation>,
    clock: Cell<Duration>,
    /// Plans that were ended: their tokens let in nobody.
    revoked: RefCell<Vec<PlanId>>,
    table: RefCell<Table>,
    visitors: RefCell<Vec<Rc<Visitor>>>,
    /// Logins that wait for their segment.
    knocks: RefCell<Vec<ConnectionId>>,
    is_open: Cell<bool>,
    /// The owner has ordered it to be closed.
    is_closed: Cell<bool>,
    /// How often a login was told to wait.
    pub(super) waited: Cell<u64>,
    /// The table may have something to be done.
    pub(super) has_changed: Cell<bool>,
}

/// The segment, as its sessions share it.
pub(super) struct Place {
    pub(super) realm: Rc<ServedRealm>,
    fence: Arc<Fence>,
    written: RefCell<Written>,
}

impl Agent {
    pub(super) fn new(config: AgentConfig, info: DeviceInfo) -> Self {
        Self {
            generation: Cell::new(config.generation),
            table: RefCell::new(Segments::new(config.idle_limit)),
            told: Cell::default(),
            config,
            info,
            clock: Cell::default(),
            revoked: RefCell::default(),
            visitors: RefCell::default(),
            knocks: RefCell::default(),
            is_open: Cell::new(false),
            is_closed: Cell::new(false),
            waited: Cell::new(0),
            has_changed: Cell::new(false),
        }
    }

    /// The time since the run began.
    pub(super) fn set_clock(&self, clock: Duration) {
        self.clock.set(clock);
    }

    /// The wall clock.
    fn now(&self) -> Moment {
        let ms = u64::try_from(self.clock.get().as_millis()).unwrap_or(u64::MAX);
        self.config.begins.after_ms(ms)
    }

    /// The generation that the agent has stored.
    pub(super) const fn generation(&self) -> Generation {
        self.generation.get()
    }

    /// The table, which may have something to be done then.
    fn change(&self) -> RefMut<'_, Table> {
        self.has_changed.set(true);
        self.table.borrow_mut()
    }

    /// The table is told of a generation now.
    fn note_told(&self, generation: Generation) {
        self.told.set(generation.max(self.told.get()));
    }

    pub(super) fn key(&self) -> SegmentKey {
        (self.config.mediator, self.config.segment)
    }

    /// The device takes requests from now on, or none.
    pub(super) fn set_open(&self, is_open: bool) {
        self.is_open.set(is_open);
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Whether the owner has ordered it to be closed, and it was not opened since.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// The session of a connection that was let in.
    pub(super) fn visitor(&self, connection: ConnectionId) -> Option<Rc<Visitor>> {
        let visitors = self.visitors.borrow();
        visitors.iter().find(|visitor| visitor.connection() == connection).cloned()
    }

    /// What a token grants that was proven, as the product's agent judges it.
    pub(super) fn admit(&self, claim: &Claim<'_>) -> Option<Grant> {
        let AgentConfig { mediator, agent, segment, ref keys, .. } = self.config;
        let DeviceInfo { capacity, block_len, .. } = self.info;
        let generation = self.generation.get();
        let own = SegmentInfo { generation, capacity, block_len };
        let segment = |whose, which| (whose == mediator && which == segment).then_some(own);
        let is_revoked = |_, plan| self.is_revoked(plan);
        let view = AgentView { agent, keys, segment: &segment, is_revoked: &is_revoked };
        let proves = |secret: &token::Secret| {
            Secret::new(secret.expose()).is_ok_and(|secret| claim.proves(&secret))
        };
        token::admit(claim.name(), claim.initiator(), &view, self.now(), proves).ok()
    }

    pub(super) fn knock(&self, connection: ConnectionId, grant: &Grant) {
        let generation = grant.token().terms.generation;
        let make = |realm: Realm, fence: &Arc<Fence>| {
            let (realm, fence) = (ServedRealm::new(realm), fence.clone());
            Rc::new(Place { realm, fence, written: RefCell::default() })
        };
        let clock = self.clock.get();
        self.note_told(generation);
        self.change().knock(connection, (self.key(), generation), clock, make);
        self.knocks.borrow_mut().push(connection);
    }

    pub(super) fn answer(&self, connection: ConnectionId) -> Knocked<Rc<Place>> {
        let answer = self.table.borrow_mut().answer(connection);
        if matches!(answer, Knocked::Later) {
            self.waited.set(self.waited.get() + 1);
            // Perhaps it was woken, and waits again.
            self.forget_knock(connection);
            self.knocks.borrow_mut().push(connection);
        } else {
            self.forget_knock(connection);
        }
        answer
    }

    /// Lets in whom the table lets in.
    pub(super) fn let_in(
        self: &Rc<Self>,
        connection: ConnectionId,
        place: Rc<Place>,
        grant: Grant,
    ) -> Option<Rc<Visitor>> {
        let (now, terms) = (self.now(), *grant.rule().terms());
        let permit = Permit::new(terms, &self.info, place.fence.generation(), now).ok()?;
        let view = permit.view(&self.info);
        let visitor =
            Rc::new(Visitor::new(self.clone(), connection, (place, grant), (permit, view)));
        let stands = |visitor: &Rc<Visitor>| !self.is_revoked(visitor.plan().1);
        self.change().enter(visitor.clone(), now, stands).ok()?;
        let is_revoked = self.is_revoked(visitor.plan().1).then_some("whose plan was ended");
        if let Some(why) = visitor.why_past().or(is_revoked) {
            unreachable!("{connection:?} is let in as one {why}");
        }
        self.visitors.borrow_mut().push(visitor.clone());
        Some(visitor)
    }

    /// The agent stores that the segment has this generation: the table learns of that by an order or a login.
    pub(super) fn store_generation(&self, generation: Generation) {
        self.generation.set(generation.max(self.generation.get()));
    }

    /// The grants of a plan hold until this moment. Those of ended sessions are extended, too: that must not help them.
    pub(super) fn extend(&self, plan: PlanId, until: Moment) {
        self.table.borrow().extend((self.config.mediator, plan), until);
        let visitors = self.visitors.borrow();
        visitors
            .iter()
            .filter(|visitor| visitor.plan().1 == plan)
            .for_each(|one| one.note_extended(until));
    }

    /// The token of a plan lets in nobody any more.
    pub(super) fn revoke(&self, plan: PlanId) {
        self.revoked.borrow_mut().push(plan);
    }

    pub(super) fn is_revoked(&self, plan: PlanId) -> bool {
        self.revoked.borrow().contains(&plan)
    }

    /// The table is given an order, and tells its end by this number, if it is not done at once. What must end by it is noted
    /// here, too: the table is not asked.
    pub(super) fn order(&self, order: SegmentOrder) -> Option<OrderId> {
        let now = self.clock.get();
        let id = match order {
            SegmentOrder::Raise(generation) => {
                self.note_told(generation);
                Some(self.change().raise(self.key(), generation, now))
            }
            SegmentOrder::EndPlan(plan) => {
                Some(self.change().end_plan((self.config.mediator, plan), now))
            }
            SegmentOrder::Close => {
                self.is_closed.set(true);
                Some(self.change().close(self.key(), now))
            }
            SegmentOrder::Extend(plan, until) => {
                self.extend(plan, until);
                None
            }
        };
        let visitors = self.visitors.borrow();
        visitors.iter().filter(|visitor| visitor.ends_by(order)).for_each(|one| one.note_ended());
        id
    }

    /// Looks whose time is over.
    pub(super) fn poll(&self) {
        let stands = |visitor: &Rc<Visitor>| !self.is_revoked(visitor.plan().1);
        for visitor in self.visitors.borrow().iter() {
            visitor.note_looked_at(!stands(visitor));
        }
        self.change().poll(self.clock.get(), self.now(), stands);
    }

    pub(super) fn settle(&self) {
        self.change().settle();
    }

    pub(super) fn next_action(&self) -> Option<Action<Rc<Place>, Rc<Visitor>>> {
        self.table.borrow_mut().next_action()
    }

    pub(super) fn opened(&self, opened: Result<Generation, Unopened>) {
        if let Ok(generation) = opened {
            self.note_told(generation);
            self.is_closed.set(false);
        }
        self.change().opened(self.key(), opened, self.clock.get());
    }

    pub(super) fn closed(&self, holds_reservations: bool) {
        self.change().closed(self.key(), holds_reservations);
    }

    /// Why a session must not be ended for this, if so.
    pub(super) fn why_not_to_end(&self, visitor: &Visitor, why: Why) -> Option<String> {
        let is_right = match why {
            Why::Fenced => visitor.generation() < self.told.get(),
            Why::Closed => self.is_closed.get(),
            Why::PlanEnded => self.is_revoked(visitor.plan().1),
            Why::Over => visitor.was_past(),
        };
        (!is_right).then(|| format!("{:?} is ended as {why:?}", visitor.connection()))
    }

    /// A login that waits for its segment.
    pub(super) fn waiting_login(&self) -> Option<ConnectionId> {
        self.knocks.borrow().first().copied()
    }

    /// Those that were ended, and have no command at the device, are over. The ones that became so now.
    pub(super) fn newly_over(&self) -> Vec<ConnectionId> {
        let visitors = self.visitors.borrow();
        let over = visitors.iter().filter(|visitor| visitor.is_newly_over());
        over.map(|visitor| visitor.connection()).collect()
    }

    /// A connection is gone.
    pub(super) fn leave(&self, connection: ConnectionId, visitor: Option<&Rc<Visitor>>) {
        self.forget_knock(connection);
        match visitor {
            Some(visitor) => self.change().left(visitor, self.clock.get()),
            None => self.change().gone(connection),
        }
        self.visitors.borrow_mut().retain(|visitor| visitor.connection() != connection);
    }

    /// The program has died, and all sessions with it.
    pub(super) fn forget_all(&self) {
        self.table.replace(Segments::new(self.config.idle_limit));
        self.visitors.borrow_mut().clear();
        self.knocks.borrow_mut().clear();
        self.is_open.set(false);
    }

    /// What is wrong with a request that comes to the device now, if anything is.
    pub(super) fn what_is_wrong(
        &self,
        connection: ConnectionId,
        (op, pieces): (Op, &[(u64, u64)]),
    ) -> Option<String> {
        let visitors = self.visitors.borrow();
        let visitor = visitors.iter().find(|visitor| visitor.connection() == connection);
        let why = match visitor {
            _ if !self.is_open.get() => Some("to a device that is closed"),
            None => Some("of nobody"),
            Some(visitor) => visitor.what_is_wrong(op, pieces),
        };
        why.map(|why| format!("{connection:?}: a {op:?} {why} comes to the device"))
    }

    /// What is wrong with reservations that are stored for a session now, if anything is.
    pub(super) fn why_not_to_reserve(&self, connection: ConnectionId) -> Option<String> {
        let visitors = self.visitors.borrow();
        let visitor = visitors.iter().find(|visitor| visitor.connection() == connection);
        let is_right = visitor.is_some_and(|visitor| {
            visitor.why_past().is_none() && visitor.has_right(Rights::RESERVE)
        });
        (!is_right).then(|| format!("{connection:?} changes reservations without a right to it"))
    }

    /// A login waits no more.
    pub(super) fn forget_knock(&self, connection: ConnectionId) {
        self.knocks.borrow_mut().retain(|known| *known != connection);
    }
}
