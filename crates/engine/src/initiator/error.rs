//! Why a remote disk cannot be used.

use std::{io, time::Duration};

use netraid_iscsi_proto::{initiator::LoginError, machine::Fatal};

use crate::wire::WireError;

/// Why a remote disk cannot be used; names its address.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct InitiatorError {
    place: String,
    reason: Reason,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(&'static str),
    /// The host name means nothing, or the connection was refused.
    #[error("cannot connect: {0}; check that the target runs and listens there")]
    Connect(#[source] io::Error),
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
    Login(#[source] LoginError),
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
    /// The disk had no volatile cache when it was connected first, and has one now.
    #[error(
        "the disk now has a volatile write cache, which it had not before; switch the cache off, or open the disk anew"
    )]
    CacheAppeared,
}

impl InitiatorError {
    pub(super) fn new(place: String, reason: Reason) -> Self {
        Self { place, reason }
    }

    /// What went wrong.
    #[must_use]
    pub const fn reason(&self) -> &Reason {
        &self.reason
    }

    /// What went wrong, without the address.
    #[must_use]
    pub fn into_reason(self) -> Reason {
        self.reason
    }
}

impl From<WireError> for Reason {
    fn from(error: WireError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<Fatal> for Reason {
    fn from(error: Fatal) -> Self {
        Self::Lost(error.to_string())
    }
}
