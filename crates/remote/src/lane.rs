//! One session of a disk: its link while there is one, or what is done to have one again.
//!
//! Invariant: a write that was under way when the link was lost stays with its lane (`held`, or
//! `suspect` once it was given up) until a session with the same ISID was made in the same portal
//! group. RFC 7143, section 6.3.5: that login ends the old session, and its commands, first.

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use netraid_iscsi_proto::machine::TaskId;

use crate::{
    dial::Dial,
    examination::{Examination, Untold},
    link::Link,
    requests::Ticket,
};

const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// While a restarting peer can be hoped for, and after.
const BACKOFF_SOON: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Times that a session that came late may fail to be registered before it is given up.
pub(crate) const JOINS_MAX: u8 = 5;
/// How long a restarting peer is hoped for.
const SOON: Duration = Duration::from_secs(5);

/// What a lane is doing.
pub(crate) enum Stage {
    /// It carries commands.
    Up(Box<Link>),
    /// A session is being made.
    Dialing(Box<Dial>),
    /// The disk is being examined, on a session that carries nothing else meanwhile.
    Examining(Box<Examining>),
    /// Nothing until then.
    Waiting(Duration),
    /// Never again.
    GivenUp,
}

/// A session on which the disk is examined.
pub(crate) struct Examining {
    pub(crate) link: Box<Link>,
    pub(crate) examination: Examination,
    /// The session has carried nothing yet.
    pub(crate) is_new: bool,
}

pub(crate) struct Lane {
    pub(crate) stage: Stage,
    /// The portal that is used, or tried next.
    pub(crate) portal: usize,
    /// The portal group in which the session of this lane was first made.
    pub(crate) group: Option<Option<u16>>,
    /// Commands under way.
    pub(crate) running: usize,
    /// Bytes that large ones of them move.
    pub(crate) bulk: u64,
    /// Requests whose writes were under way when the link was lost.
    pub(crate) held: Vec<Ticket>,
    /// A write was given up whose end the target has not confirmed.
    pub(crate) suspect: bool,
    /// The disk is to be examined as soon as nothing is under way.
    pub(crate) examine: bool,
    /// The reservation key of this session is registered.
    pub(crate) registered: bool,
    /// It was not there when the others were registered: it carries nothing before it has joined.
    pub(crate) late: bool,
    /// How often it may still try to join.
    pub(crate) joins_left: u8,
    /// How many commands have ended, ever.
    pub(crate) ended: u64,
    /// While commands are under way: when it is looked at whether one has ended since, and how
    /// many had.
    pub(crate) watch: Option<(Duration, u64)>,
    /// Bytes that its session had moved when that was noted last.
    pub(crate) noted: u64,
    /// The command by which the disk is asked why none ends.
    pub(crate) asked: Option<TaskId>,
    /// The disk may have told this nexus that its cache is lost, and nobody has noted it yet.
    pub(crate) untold: Untold,
    backoff: Duration,
    lost_at: Duration,
}

impl Lane {
    pub(crate) fn new(now: Duration, portal: usize) -> Self {
        Self {
            stage: Stage::Waiting(now),
            portal,
            group: None,
            running: 0,
            bulk: 0,
            held: Vec::new(),
            suspect: false,
            examine: false,
            registered: false,
            late: false,
            joins_left: JOINS_MAX,
            ended: 0,
            watch: None,
            noted: 0,
            asked: None,
            untold: Untold::Nothing,
            backoff: BACKOFF_MIN,
            lost_at: now,
        }
    }

    /// The session that carries commands.
    #[inline]
    pub(crate) fn link(&mut self) -> Option<&mut Link> {
        match &mut self.stage {
            Stage::Up(link) => Some(link),
            Stage::Dialing(_) | Stage::Examining(_) | Stage::Waiting(_) | Stage::GivenUp => None,
        }
    }

    /// The session on its connection, whatever it is for.
    #[inline]
    pub(crate) fn connection(&mut self) -> Option<&mut Link> {
        match &mut self.stage {
            Stage::Up(link) => Some(link),
            Stage::Dialing(dial) => dial.link(),
            Stage::Examining(examining) => Some(&mut examining.link),
            Stage::Waiting(_) | Stage::GivenUp => None,
        }
    }

    /// Whether there is a session.
    pub(crate) fn is_connected(&self) -> bool {
        match &self.stage {
            Stage::Up(_) => true,
            Stage::Examining(examining) => !examining.is_new,
            Stage::Dialing(_) | Stage::Waiting(_) | Stage::GivenUp => false,
        }
    }

    /// Whether it has a connection, or makes one.
    #[inline]
    pub(crate) const fn holds_place(&self) -> bool {
        matches!(self.stage, Stage::Up(_) | Stage::Dialing(_) | Stage::Examining(_))
    }

    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self.stage, Stage::GivenUp)
    }

    /// Whether it takes requests, now or when some have ended.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.stage, Stage::Up(_)) && !self.examine && !self.late
    }

    /// Commands for requests that may be submitted now.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        if self.late { 0 } else { self.room() }
    }

    /// Commands that may be submitted now.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        match &self.stage {
            Stage::Up(link) if !self.examine => link.capacity(),
            Stage::Up(_)
            | Stage::Dialing(_)
            | Stage::Examining(_)
            | Stage::Waiting(_)
            | Stage::GivenUp => 0,
        }
    }

    /// When something of this is due.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Up(link) => {
                let watch = self.watch.map(|(at, _)| at);
                link.next_timeout().into_iter().chain(watch).min()
            }
            Stage::Dialing(dial) => dial.next_timeout(),
            Stage::Examining(examining) => {
                let at = examining.examination.next_timeout();
                Some(examining.link.next_timeout().map_or(at, |link| link.min(at)))
            }
            Stage::Waiting(at) => Some(*at),
            Stage::GivenUp => None,
        }
    }

    /// Its link is gone: the other portals are tried first, at once.
    pub(crate) fn lose(&mut self, now: Duration, portals: usize) {
        self.portal = (self.portal + 1) % portals;
        self.backoff = BACKOFF_MIN;
        self.lost_at = now;
        (self.running, self.bulk) = (0, 0);
        (self.watch, self.asked) = (None, None);
        self.examine = false;
        let pause = if portals > 1 { Duration::ZERO } else { self.backoff };
        self.stage = Stage::Waiting(now + pause);
    }

    /// No session could be made: the next portal, after a pause once each was tried.
    pub(crate) fn fail(&mut self, now: Duration, portals: usize) {
        self.portal = (self.portal + 1) % portals;
        self.stage = Stage::Waiting(now + self.backoff);
        let is_soon = now.saturating_sub(self.lost_at) < SOON;
        let limit = if is_soon { BACKOFF_SOON } else { BACKOFF_MAX };
        self.backoff = (self.backoff * 2).min(limit);
    }

    /// The first session of the disk is made, and this lane's is to be: it is hoped for from now on.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.lost_at = now;
        self.hurry(now);
    }

    /// A request comes: an attempt that waits is made soon.
    pub(crate) fn hurry(&mut self, now: Duration) {
        if let Stage::Waiting(at) = &mut self.stage {
            *at = (*at).min(now + BACKOFF_MIN);
        }
    }

    /// This lane is not used any more.
    pub(crate) fn give_up(&mut self) {
        self.stage = Stage::GivenUp;
        self.bulk = 0;
    }
}
