//! Why a remote disk cannot be used, with its address.

use netraid_remote::Reason;

use crate::wire::WireError;

/// Why a remote disk cannot be used; names its address.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct InitiatorError {
    place: String,
    reason: Reason,
}

impl InitiatorError {
    pub(super) const fn new(place: String, reason: Reason) -> Self {
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
