//! A mediator's audit log, as administrators read it: who did what, and what came of it.

use netraid_control::units::Moment;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Asks for a part of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ReadLog {
    /// Milliseconds since 1970, by the mediator's clock: nothing that was before.
    pub since: Option<u64>,
    /// Lines after this one; from the first when none.
    pub after: Option<u64>,
    /// As many at most; 1000 when none, and at most.
    pub limit: Option<u32>,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogEntry {
    /// Its number: later lines have larger ones.
    pub id: u64,
    /// Milliseconds since 1970, by the mediator's clock.
    #[schema(value_type = u64)]
    pub at: Moment,
    /// For whom the bearer token was made; empty for whoever had none that is known.
    pub who: String,
    /// The role, or nothing.
    pub role: String,
    /// What was asked for.
    pub what: String,
    /// What came of it.
    pub outcome: String,
}

/// A part of the log, newest last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// In order.
    pub entries: Vec<LogEntry>,
    /// Ask for what comes after this; none at the end.
    pub next: Option<u64>,
}
