//! Why a remote disk cannot be used.

use alloc::string::String;
use core::time::Duration;

use netraid_iscsi_proto::initiator::LoginError;

/// Why no connection was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ConnectError {
    /// What the system says.
    pub text: String,
    /// Nobody is there: the host refuses, or the network has no way to it.
    pub is_refusal: bool,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(&'static str),
    /// The host name means nothing, or the connection was refused.
    #[error("cannot connect: {0}; check that the target runs and listens there")]
    Connect(ConnectError),
    /// The connection was not made in time.
    #[error("no connection within {0:?}; check the address and the network")]
    ConnectTimeout(Duration),
    /// The peer accepted the connection and said nothing more.
    #[error(
        "the peer accepts connections but did not finish the login within {0:?}; check that it is an iscsi target"
    )]
    Silent(Duration),
    /// The target refused the login.
    #[error("login failed: {0}")]
    Login(LoginError),
    /// A login by a plan's token was refused, as the target refuses all that do not hold.
    #[error(
        "the target does not let this plan in: somebody else has taken the volume over, it was removed, access to it \
         was revoked, or the plan is over"
    )]
    Plan,
    /// A login by a plan's token was refused that proved itself, and the target says why.
    #[error("the target does not let this plan in: {0}")]
    PlanDenied(String),
    /// The connection was lost while the disk was examined.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The target has no such logical unit.
    #[error("the target has no such lun; list its luns with iscsi-ls -s")]
    NoLun,
    /// The logical unit is no disk.
    #[error("the lun is no disk but a device of type {0:#04x}")]
    NotADisk(u8),
    /// The disk says of itself what cannot be.
    #[error("the disk's {what} cannot be used: {value}")]
    Geometry {
        /// Which property.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A command that every disk must answer failed.
    #[error("{command} failed: {detail}")]
    Command {
        /// Its name.
        command: &'static str,
        /// How it ended.
        detail: String,
    },
    /// Another disk is now behind the address.
    #[error("another disk than before answers here; check what is behind the address")]
    OtherDisk,
    /// The disk is smaller than its users were told.
    #[error("the disk has shrunk to {blocks} blocks, {told} are in use; give it back its size")]
    Shrunk {
        /// Its size now.
        blocks: u64,
        /// Its size when it was connected first.
        told: u64,
    },
    /// Another portal group than before answers: what the lost session had under way cannot be
    /// ended from there.
    #[error(
        "portal group {new:?} answers instead of {old:?}; give portals of one group, or each group as a member of its own"
    )]
    OtherPortalGroup {
        /// Which answers.
        new: Option<u16>,
        /// Which was there before.
        old: Option<u16>,
    },
    /// A login was redirected to where it cannot go on.
    #[error("the target redirects the login to '{to}', {what}; check the target's portals")]
    Redirection {
        /// Where to.
        to: String,
        /// Why it is not followed.
        what: &'static str,
    },
    /// The registration of this session is gone: another host has taken over.
    #[error("fenced: the registration of this host's key is gone; another host has taken over")]
    Fenced,
    /// The disk has forgotten the registration of this session, and everybody's: it was powered on,
    /// or keeps none longer than sessions.
    #[error("the disk has forgotten this host's registration; register anew")]
    Forgotten,
    /// The disk has forgotten the registration of this session, and another one of this side is registered with its key.
    #[error("the disk has forgotten this host's registration for this session; another one has it")]
    Unregistered,
    /// The disk had no volatile cache when it was connected first, and has one now.
    #[error(
        "the disk now has a volatile write cache, which it had not before; switch the cache off, or open the disk anew"
    )]
    CacheAppeared,
}

impl Reason {
    /// Whether the peer surely is not there, or not what it was: waiting for it is no use beyond
    /// the time that a restart takes.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_refusal,
            Self::OtherDisk
            | Self::Shrunk { .. }
            | Self::OtherPortalGroup { .. }
            | Self::CacheAppeared
            | Self::Forgotten
            | Self::Unregistered
            | Self::Fenced => true,
            Self::Config(_)
            | Self::ConnectTimeout(_)
            | Self::Silent(_)
            | Self::Login(_)
            | Self::Plan
            | Self::PlanDenied(_)
            | Self::Lost(_)
            | Self::NoLun
            | Self::NotADisk(_)
            | Self::Geometry { .. }
            | Self::Command { .. }
            | Self::Redirection { .. } => false,
        }
    }

    /// Whether the peer lets this side in no more: a token is over, or its segment is gone.
    pub(crate) const fn is_denial(&self) -> bool {
        matches!(
            self,
            Self::Plan
                | Self::PlanDenied(_)
                | Self::Login(
                    LoginError::Authentication
                        | LoginError::Denied(_)
                        | LoginError::Forbidden
                        | LoginError::NotFound
                )
        )
    }
}
