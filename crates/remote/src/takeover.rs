//! Ends the sessions that a predecessor with this ISID may have left, and their commands with them: a login with the same
//! ISID does (RFC 7143, section 6.3.5), for sessions of its portal group.
//!
//! Portals of other groups are asked, too; one that lets nobody in keeps what it may have.

use alloc::{collections::VecDeque, string::ToString, vec, vec::Vec};
use core::time::Duration;

use netraid_block::Portal;
use netraid_planted::{Planted, planted};

use crate::{
    Reason,
    dial::Dialer,
    interface::{Event, Settings},
    visitor::{self, Visitor},
};

/// Sessions that a predecessor can have had.
const LANES: usize = Settings::SESSIONS_MAX as usize;

/// A takeover on its way, beside the session that was made first.
pub(crate) struct TakeOver {
    visits: VecDeque<Visit>,
    /// Portal groups whose sessions are ended.
    groups: Vec<Option<u16>>,
    current: Visit,
    visitor: Option<Visitor>,
}

/// One login in place of a session of the predecessor.
#[derive(Debug, Clone, Copy)]
struct Visit {
    lane: usize,
    portal: usize,
    /// It shows which group the portal is of.
    is_scout: bool,
}

impl TakeOver {
    /// Begins after the first session was made at `portal`, in its `group`.
    pub(crate) fn new(dialer: &Dialer, portal: usize, group: Option<u16>) -> Self {
        let lanes = match planted(Planted::OnlyOwnCountOfSessionsTakenOver) {
            true => usize::from(dialer.settings.sessions),
            false => LANES,
        };
        let here = (1..lanes).map(|lane| Visit { lane, portal, is_scout: false });
        let others = (0..dialer.portals()).filter(|other| *other != portal);
        let scouts = others.map(|portal| Visit { lane: 1, portal, is_scout: true });
        Self {
            visits: here.chain(scouts).collect(),
            groups: vec![group],
            current: Visit { lane: 0, portal, is_scout: false },
            visitor: None,
        }
    }

    /// The session that is made for the visit at hand.
    pub(crate) const fn visitor(&mut self) -> Option<&mut Visitor> {
        self.visitor.as_mut()
    }

    /// When time is to be told.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        self.visitor.as_ref().and_then(Visitor::next_timeout)
    }

    /// Begins the next visit: where a connection is to be made to. Nothing when all is done.
    pub(crate) fn begin_next(&mut self, now: Duration, dialer: &Dialer) -> Option<Portal> {
        self.current = self.visits.pop_front()?;
        let dial = dialer.dial(now, self.current.lane, self.current.portal);
        let at = dial.at().clone();
        self.visitor = Some(Visitor::new(dial, false, dialer.limit()));
        Some(at)
    }

    /// A visit has ended; what is to be told of it.
    pub(crate) fn end_visit(
        &mut self,
        dialer: &Dialer,
        end: Result<visitor::Visit, Reason>,
    ) -> Result<Option<Event>, Reason> {
        self.visitor = None;
        let Visit { portal, is_scout, .. } = self.current;
        match end {
            Ok(_) if !is_scout => Ok(None),
            Ok(visit) => {
                if !self.groups.contains(&visit.group) {
                    self.groups.push(visit.group);
                    let lanes = (0..LANES).filter(|lane| *lane != 1).rev();
                    for lane in lanes {
                        self.visits.push_front(Visit { lane, portal, is_scout: false });
                    }
                }
                Ok(None)
            }
            Err(reason) if is_scout => {
                let portal = dialer.portal(portal).clone();
                Ok(Some(Event::PredecessorMayRemain { portal, reason: reason.to_string() }))
            }
            Err(reason) => Err(reason),
        }
    }
}
