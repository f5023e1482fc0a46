//! Who is let in by a token, and what a target asks of whoever knows.
//!
//! A target with an [`Admission`] has no LUNs of its own. A login proves a token (CHAP, with the
//! token as its name), and is served exactly one LUN, 0: the derived device of the token's segment,
//! which is opened when it is first wanted. Nothing that a session sends names another segment, and
//! whoever proves nothing learns nothing: every refusal is the same (docs/target.md).

use std::{fmt::Debug, net::SocketAddr};

use netraid_control::{
    derived::Denial,
    token::{Grant, Secret},
    units::{Generation, MediatorId, Moment, SegmentId},
};

use super::{Lun, Pace};

/// Knows tokens and segments: an agent. Asked at each login of a target that has one.
pub trait Admission: Send + Sync + Debug {
    /// Whom a login that gives this CHAP name lets in, to what. `name` is at most
    /// 255 bytes of whatever the peer sent, `initiator` the iSCSI name that it says it has, in
    /// lower case. `proves` says whether the peer knows a secret, and is to be asked once, whatever
    /// the name is ([`netraid_control::token::admit`] does so).
    ///
    /// # Errors
    /// When nobody is let in.
    ///
    /// Called on the target's thread, once for each login that comes so far: must not block. The
    /// refusal's reason is for the audit log; the peer gets the same answer for all, unless it has proven that it knows the
    /// secret, and is to be told.
    fn admit(
        &self,
        name: &str,
        initiator: &str,
        peer: SocketAddr,
        proves: &mut dyn FnMut(&Secret) -> bool,
    ) -> Result<Admitted, NotAdmitted>;

    /// Opens a segment that is not open, for all sessions that come. May block: it is called on a
    /// thread of its own, and never twice at a time for one segment. A segment that nobody has used
    /// for a while is closed, and opened again when it is wanted. The error is for the log.
    ///
    /// # Errors
    /// When it is not there, or cannot be opened.
    fn open(&self, mediator: MediatorId, segment: SegmentId) -> Result<Opened, NotOpened>;

    /// Whether a session may begin or go on for what its rule does not know of: its mediator has keys, and neither the
    /// token's key nor its plan was taken back. Called on the target's thread as a session is let in, and for each session
    /// several times a second, while the table of segments is locked: must neither block nor command the target.
    fn stands(&self, _grant: &Grant) -> bool {
        true
    }

    /// A request of a session was denied by its grant's rule; for the audit log. Called on the
    /// target's thread, for each session at most once a second.
    fn denied(&self, grant: &Grant, denial: &Denial);

    /// The wall clock by which grants expire. Called on the target's thread, for each request, and while the table of
    /// segments is locked.
    fn now(&self) -> Moment;
}

/// Nobody was let in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotAdmitted {
    /// Why, for who has proven that it knows the secret; nobody else is told anything.
    pub told: Option<String>,
}

/// Who was let in.
#[derive(Debug, Clone, Copy)]
pub struct Admitted {
    /// What the session may do.
    pub grant: Grant,
    /// How fast all sessions of the grant's plan may go together, where the target is paced; that
    /// of the latest login counts. A floor that does not fit is made as large as fits.
    pub pace: Pace,
}

/// Why a segment was not opened, with the reason for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// It is not there, or is not what it should be: its logins are refused as all others.
    #[error("{0}")]
    Unusable(String),
    /// The host has run out of something that it takes: its logins are told so.
    #[error("{0}")]
    Exhausted(String),
}

impl NotOpened {
    /// The reason is an error: whether descriptors or memory have run out, what caused it says.
    #[must_use]
    pub fn from_error(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(one) = cause {
            let io = one.downcast_ref::<std::io::Error>();
            if io.is_some_and(netraid_private::is_out_of_descriptors) {
                let limit = netraid_private::descriptor_limit();
                return Self::Exhausted(format!(
                    "{error}; the process may have {limit} files and sockets open (LimitNOFILE, ulimit -n)"
                ));
            }
            if io.is_some_and(netraid_private::is_shortage) {
                return Self::Exhausted(format!("{error}; the host has no memory left for it"));
            }
            cause = one.source();
        }
        Self::Unusable(error.to_string())
    }
}

impl From<String> for NotOpened {
    fn from(reason: String) -> Self {
        Self::Unusable(reason)
    }
}

impl From<&str> for NotOpened {
    fn from(reason: &str) -> Self {
        Self::Unusable(reason.to_owned())
    }
}

/// A segment that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its device, and what goes with it. Its policy, if there is one, is asked with offsets as the
    /// session sees them. A segment cannot be sanitized, nor ejected. Without an identity it gets one
    /// that follows from mediator and segment.
    pub lun: Lun,
    /// Its generation at this moment. A generation is raised here first, durably, and then by
    /// [`TargetHandle::raise_generation`](super::TargetHandle::raise_generation).
    pub generation: Generation,
    /// Behind the last of its bytes that was ever written, where append-only tokens go on.
    pub end_bytes: u64,
}
