//! One session of a disk: its link while there is one, or what is done to have one again.
//!
//! Invariant: a write that was under way when the link was lost stays with its lane (`held`, or
//! `suspect` once it was given up) until a session with the same ISID was made in the same portal
//! group. RFC 7143, section 6.3.5: that login ends the old session, and its commands, first.

use std::{
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll},
    time::Duration,
};

use netraid_iscsi_proto::machine::TaskId;
use tokio::{task::JoinHandle, time::Instant};

use super::{error::Reason, link::Link, probe::Probed, requests::Ticket};

const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// While a restarting peer can be hoped for, and after.
const BACKOFF_SOON: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Times that a session that came late may fail to be registered before it is given up.
pub(super) const JOINS_MAX: u8 = 5;
/// How long a restarting peer is hoped for.
const SOON: Duration = Duration::from_secs(5);

/// A session that was made, or examined again, and what was found.
pub(super) type Made = Result<(Link, Probed), Reason>;

/// What a lane is doing.
pub(super) enum Stage {
    /// It carries commands.
    Up(Box<Link>),
    /// A session is being made.
    Dialing(JoinHandle<Made>),
    /// The disk is being examined, on a session that carries nothing else meanwhile.
    Examining(JoinHandle<Made>),
    /// Nothing until then.
    Waiting(Instant),
    /// Never again.
    GivenUp,
}

/// What a lane has to tell.
pub(super) enum News {
    /// The socket has something, or takes something.
    Ready(Result<(), Reason>),
    /// A session was made, or not.
    Dialed(Made),
    /// The disk was examined again.
    Examined(Made),
}

pub(super) struct Lane {
    pub(super) stage: Stage,
    /// The portal that is used, or tried next.
    pub(super) portal: usize,
    /// The portal group in which the session of this lane was first made.
    pub(super) group: Option<Option<u16>>,
    /// Commands under way.
    pub(super) running: usize,
    /// Bytes that large ones of them move.
    pub(super) bulk: u64,
    /// Requests whose writes were under way when the link was lost.
    pub(super) held: Vec<Ticket>,
    /// A write was given up whose end the target has not confirmed.
    pub(super) suspect: bool,
    /// The disk is to be examined as soon as nothing is under way.
    pub(super) examine: bool,
    /// The reservation key of this session is registered.
    pub(super) registered: bool,
    /// It was not there when the others were registered: it carries nothing before it has joined.
    pub(super) late: bool,
    /// How often it may still try to join.
    pub(super) joins_left: u8,
    /// How many commands have ended, ever.
    pub(super) ended: u64,
    /// While commands are under way: when it is looked at whether one has ended since, and how
    /// many had.
    pub(super) watch: Option<(Instant, u64)>,
    /// Bytes that its session had moved when that was noted last.
    pub(super) noted: u64,
    /// The command by which the disk is asked why none ends.
    pub(super) asked: Option<TaskId>,
    /// The disk may have told this nexus that its cache is lost, and nobody has noted it yet.
    pub(super) untold: Arc<AtomicBool>,
    backoff: Duration,
    lost_at: Instant,
}

impl Lane {
    pub(super) fn new(stage: Stage, portal: usize) -> Self {
        Self {
            stage,
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
            untold: Arc::default(),
            backoff: BACKOFF_MIN,
            lost_at: Instant::now(),
        }
    }

    pub(super) fn link(&mut self) -> Option<&mut Link> {
        match &mut self.stage {
            Stage::Up(link) => Some(link),
            Stage::Dialing(_) | Stage::Examining(_) | Stage::Waiting(_) | Stage::GivenUp => None,
        }
    }

    /// Whether there is a session.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.stage, Stage::Up(_) | Stage::Examining(_))
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.stage, Stage::GivenUp)
    }

    /// Whether it takes requests, now or when some have ended.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.stage, Stage::Up(_)) && !self.examine && !self.late
    }

    /// Commands for requests that may be submitted now.
    pub(super) fn capacity(&self) -> usize {
        if self.late { 0 } else { self.room() }
    }

    /// Commands that may be submitted now.
    pub(super) fn room(&self) -> usize {
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
    pub(super) fn next_wake(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Up(link) => {
                let watch = self.watch.map(|(at, _)| at);
                link.next_timeout().into_iter().chain(watch).min()
            }
            Stage::Waiting(at) => Some(*at),
            Stage::Dialing(_) | Stage::Examining(_) | Stage::GivenUp => None,
        }
    }

    /// Its link is gone: the other portals are tried first, at once.
    pub(super) fn lose(&mut self, portals: usize) {
        let now = Instant::now();
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
    pub(super) fn fail(&mut self, portals: usize) {
        let now = Instant::now();
        self.portal = (self.portal + 1) % portals;
        self.stage = Stage::Waiting(now + self.backoff);
        let limit = if now - self.lost_at < SOON { BACKOFF_SOON } else { BACKOFF_MAX };
        self.backoff = (self.backoff * 2).min(limit);
    }

    /// A request comes: an attempt that waits is made soon.
    pub(super) fn hurry(&mut self) {
        if let Stage::Waiting(at) = &mut self.stage {
            *at = (*at).min(Instant::now() + BACKOFF_MIN);
        }
    }

    /// Waits for news; nothing is lost when it is not polled to the end.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<News> {
        let broken = |error: tokio::task::JoinError| Err(Reason::Lost(error.to_string()));
        match &mut self.stage {
            Stage::Up(link) => link.poll_ready(context).map(News::Ready),
            Stage::Dialing(task) => {
                Pin::new(task).poll(context).map(|end| News::Dialed(end.unwrap_or_else(broken)))
            }
            Stage::Examining(task) => {
                Pin::new(task).poll(context).map(|end| News::Examined(end.unwrap_or_else(broken)))
            }
            Stage::Waiting(_) | Stage::GivenUp => Poll::Pending,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Stage::Dialing(task) | Stage::Examining(task) = &self.stage {
            task.abort();
        }
    }
}
