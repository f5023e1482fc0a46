//! Asks a portal which targets it has (RFC 7143, section 4.3, and appendix C).

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use netraid_block::Pool;
use netraid_iscsi_proto::{
    framing::{Outgoing, Side as _},
    initiator::FoundTarget,
};

use crate::{
    Reason,
    dial::{Dialer, Redirected},
    interface::{Action, Event, Fresh, Place, Settings},
    link::Link,
    visitor::{Progress, Visitor},
};

/// A discovery session. It has one connection, of place 0; it says [`Action::Closed`] when it is over.
pub struct Finder {
    dialer: Dialer,
    visitor: Visitor,
    actions: VecDeque<Action<()>>,
    end: Option<Result<Vec<FoundTarget>, Reason>>,
}

impl Finder {
    const PLACE: Place = Place(0);

    /// Begins to ask the first of the portals.
    #[must_use]
    pub fn new(settings: Settings, now: Duration) -> Self {
        let dialer = Dialer::new(settings, Pool::new());
        let dial = dialer.dial(now, 0, 0);
        let connect = Action::Connect { place: Self::PLACE, portal: dial.at().clone() };
        let visitor = Visitor::new(dial, true, dialer.limit());
        Self { dialer, visitor, actions: [connect].into(), end: None }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Action<()>> {
        self.actions.pop_front()
    }

    /// The session, to which goes what is received `now`.
    pub fn receiver(&mut self, now: Duration) -> Option<&mut Link> {
        self.visitor.connection().map(|link| link.hear(now))
    }

    /// Whether the next PDU may be taken; else send first.
    pub fn wants_input(&mut self) -> bool {
        self.visitor.connection().is_some_and(|link| link.wants_input())
    }

    /// Queues what there is to send while there is room for it; whether there was anything.
    pub fn transmit(&mut self, outgoing: &mut Outgoing) -> bool {
        self.visitor.connection().is_some_and(|link| link.transmit(outgoing))
    }

    /// The connection is made.
    pub fn handle_connected(&mut self, now: Duration, fresh: Fresh) {
        self.visitor.handle_connected(now, &self.dialer, fresh);
    }

    /// No connection could be made.
    pub fn handle_not_connected(&mut self, reason: Reason) {
        let progress = self.visitor.handle_not_connected(reason);
        self.go_on(progress);
    }

    /// Something was received, up to this end.
    pub fn handle_received(&mut self, now: Duration, end: Result<(), Reason>) {
        let progress = self.visitor.handle_received(now, &mut self.dialer, end);
        self.go_on(progress);
    }

    /// When [`Self::handle_timeout`] is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.visitor.next_timeout()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        let progress = self.visitor.handle_timeout(now, &self.dialer);
        self.go_on(progress);
    }

    /// What was found, once it is over.
    ///
    /// # Errors
    /// When the portal cannot be reached, or refuses.
    pub const fn take_end(&mut self) -> Option<Result<Vec<FoundTarget>, Reason>> {
        self.end.take()
    }

    fn go_on(&mut self, progress: Progress) {
        let portal = match progress {
            Progress::Wait => return,
            Progress::Over(end) => {
                self.end = Some(end.map(|visit| visit.found));
                self.actions.push_back(Action::Disconnect(Self::PLACE));
                return self.actions.push_back(Action::Closed);
            }
            Progress::Connect(portal) => portal,
            Progress::Redirect(Redirected { from, to, permanent }) => {
                let event = Event::Redirected { from, to: to.clone(), permanent };
                self.actions.push_back(Action::Tell(event));
                to
            }
        };
        self.actions.push_back(Action::Disconnect(Self::PLACE));
        self.actions.push_back(Action::Connect { place: Self::PLACE, portal });
    }
}
