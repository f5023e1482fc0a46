//! A session that only logs in, perhaps asks which targets there are, and logs out.

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use netraid_block::Portal;
use netraid_iscsi_proto::initiator::FoundTarget;

use crate::{
    Reason,
    dial::{Dial, Dialer, Redirected, Step},
    interface::Fresh,
    link::Link,
};

/// Such a session.
pub(crate) struct Visitor {
    stage: Stage,
    /// It asks for targets.
    asks: bool,
    limit: Duration,
    group: Option<u16>,
    found: Vec<FoundTarget>,
}

enum Stage {
    Dialing(Box<Dial>),
    Asking(Box<Link>, Duration),
    Leaving(Box<Link>, Duration),
    Over,
}

/// What becomes of a visitor.
pub(crate) enum Progress {
    /// Nothing yet.
    Wait,
    /// It goes on by another connection.
    Connect(Portal),
    /// The same, to where it is redirected, perhaps for good.
    Redirect(Redirected),
    /// It has logged in and out, or could not log in.
    Over(Result<Visit, Reason>),
}

/// What a visitor has seen.
pub(crate) struct Visit {
    /// The portal group that it was let in to.
    pub(crate) group: Option<u16>,
    /// The targets that there are.
    pub(crate) found: Vec<FoundTarget>,
}

impl Visitor {
    pub(crate) fn new(dial: Dial, asks: bool, limit: Duration) -> Self {
        let stage = Stage::Dialing(Box::new(dial));
        Self { stage, asks, limit, group: None, found: Vec::new() }
    }

    /// The session on its connection.
    pub(crate) fn connection(&mut self) -> Option<&mut Link> {
        match &mut self.stage {
            Stage::Dialing(dial) => dial.link(),
            Stage::Asking(link, _) | Stage::Leaving(link, _) => Some(link),
            Stage::Over => None,
        }
    }

    /// The connection is made.
    pub(crate) fn handle_connected(&mut self, now: Duration, dialer: &Dialer, fresh: Fresh) {
        match &mut self.stage {
            Stage::Dialing(dial) => dial.handle_connected(now, dialer, fresh),
            Stage::Asking(..) | Stage::Leaving(..) | Stage::Over => {}
        }
    }

    /// Something was received, up to this end.
    pub(crate) fn handle_received(
        &mut self,
        now: Duration,
        dialer: &mut Dialer,
        end: Result<(), Reason>,
    ) -> Progress {
        match &mut self.stage {
            Stage::Dialing(dial) => {
                let step = dial.handle_received(now, dialer, end);
                self.go_on(now, step)
            }
            Stage::Asking(link, _) => match link.end_of_input(end) {
                Err(reason) => self.finish(Err(reason)),
                Ok(()) => match link.take_found() {
                    Some(found) => {
                        self.found = found;
                        self.leave(now);
                        Progress::Wait
                    }
                    None => Progress::Wait,
                },
            },
            // A target that answers no more is left alone.
            Stage::Leaving(link, _) if end.is_err() || link.is_logged_out() => self.finish(Ok(())),
            Stage::Leaving(..) | Stage::Over => Progress::Wait,
        }
    }

    /// No connection could be made.
    pub(crate) fn handle_not_connected(&mut self, reason: Reason) -> Progress {
        self.finish(Err(reason))
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Dialing(dial) => dial.next_timeout(),
            Stage::Asking(link, until) | Stage::Leaving(link, until) => {
                Some(link.next_timeout().map_or(*until, |at| at.min(*until)))
            }
            Stage::Over => None,
        }
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Duration, dialer: &Dialer) -> Progress {
        let limit = self.limit;
        match &mut self.stage {
            Stage::Dialing(dial) => {
                let step = dial.handle_timeout(now, dialer);
                self.go_on(now, step)
            }
            Stage::Asking(_, until) if *until <= now => self.finish(Err(Reason::Silent(limit))),
            Stage::Asking(link, _) => match link.handle_timeout(now) {
                Ok(()) => Progress::Wait,
                Err(reason) => self.finish(Err(reason)),
            },
            Stage::Leaving(link, until) => {
                if *until <= now || link.handle_timeout(now).is_err() {
                    return self.finish(Ok(()));
                }
                Progress::Wait
            }
            Stage::Over => Progress::Wait,
        }
    }

    fn go_on(&mut self, now: Duration, step: Step) -> Progress {
        match step {
            Step::Wait => Progress::Wait,
            Step::Connect(portal) => Progress::Connect(portal),
            Step::Redirect(redirected) => Progress::Redirect(redirected),
            Step::Failed(reason) => self.finish(Err(reason)),
            Step::LoggedIn(link) => {
                self.group = link.portal_group();
                self.stage = Stage::Asking(link, now + self.limit);
                if !self.asks {
                    self.leave(now);
                }
                Progress::Wait
            }
        }
    }

    fn leave(&mut self, now: Duration) {
        if let Stage::Asking(mut link, _) = core::mem::replace(&mut self.stage, Stage::Over) {
            link.begin_logout(now);
            self.stage = Stage::Leaving(link, now + self.limit);
        }
    }

    fn finish(&mut self, end: Result<(), Reason>) -> Progress {
        self.stage = Stage::Over;
        let found = core::mem::take(&mut self.found);
        Progress::Over(end.map(|()| Visit { group: self.group, found }))
    }
}
