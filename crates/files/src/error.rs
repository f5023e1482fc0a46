//! What goes wrong, for who uses this library.

use netraid_block::IoError;
use netraid_cluster::http::{ClientError, RequestError};
use netraid_control::units::PlanId;
use netraid_engine::array::{ArrayError, Who};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mediator refused, or could not be asked.
    #[error(transparent)]
    Mediator(#[from] RequestError),
    /// The access file is none.
    #[error(transparent)]
    Access(#[from] ClientError),
    /// The array that the agents make up.
    #[error("{path}: {source}")]
    Array {
        /// What was opened.
        path: String,
        /// Why not.
        source: Box<ArrayError>,
    },
    /// Members that are away may have what the others lack: its last writer did not close it.
    #[error(
        "{path}: not usable: {missing}; whoever wrote last did not close it, and may have gone on with \
         those that are away: start their agents again, and open it then"
    )]
    Contested {
        /// What was opened.
        path: String,
        /// The members that are away.
        missing: String,
    },
    /// Another process of this machine writes to it.
    #[error(
        "{path}: is open to write in {who} of this machine (lock {lock}), which goes on; stop it first"
    )]
    InUse {
        /// What was to be opened.
        path: String,
        /// The lock's file.
        lock: String,
        /// Who has it.
        who: Who,
    },
    /// It could not be used if it was taken over.
    #[error("{path}: is not taken over, since from here {why}; whoever has it goes on")]
    NotTaken {
        /// What was to be taken over.
        path: String,
        /// Why not.
        why: String,
    },
    /// All of it is stable, and the mediator does not know that it is not open any more.
    #[error(
        "{path}: is closed, but the mediator was not told: others wait until plan {plan} ends, or until \
         it is opened once more, to write with --take-over or --resume: {why}"
    )]
    Kept {
        /// What was open.
        path: String,
        /// Under which plan.
        plan: PlanId,
        /// Why nobody was told.
        why: String,
    },
    /// A request to an open volume failed.
    #[error("{path}: {source}")]
    Io {
        /// What is open.
        path: String,
        /// Why.
        source: IoError,
    },
    /// The plan says what this program cannot use.
    #[error("{path}: the mediator's plan is none: {why}")]
    Plan {
        /// What was opened.
        path: String,
        /// Why not.
        why: String,
    },
    /// Somebody else has it now, or the mediator was away for too long.
    #[error("{path}: is no longer open: {why}")]
    Lost {
        /// What was open.
        path: String,
        /// Why not any more.
        why: String,
    },
    /// Beyond what there is.
    #[error("{path}: {what} ends at {end}, limit {limit}")]
    Beyond {
        /// What is open.
        path: String,
        /// What was wanted.
        what: &'static str,
        /// Where that would end.
        end: u64,
        /// Where it has to.
        limit: u64,
    },
    /// It is a directory, or something else of another kind than is meant.
    #[error("{path}: {what}")]
    Kind {
        /// What was named.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// A file of this host.
    #[error("{path}: {source}")]
    Local {
        /// Which.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}
