//! What an engine that stands by says of the array.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

use crate::{member::MemberIndex, opening::Silent};

/// How an array is, by what an engine that stands by reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// Too few members can be read to serve from them.
    Unreadable {
        /// Name of the array, where any label can be read.
        name: Option<String>,
    },
    /// An engine has it, or may have it: it was not silent for long enough.
    Alive {
        /// Name of the array.
        name: String,
        /// The engine's host.
        holder: String,
        /// The generation of its labels.
        generation: u64,
    },
    /// Nobody has it.
    Closed {
        /// Name of the array.
        name: String,
    },
    /// The engine that has it never wrote a heartbeat: nothing tells whether it is alive.
    NoHeartbeats {
        /// Name of the array.
        name: String,
        /// The engine's host.
        holder: String,
    },
    /// The engine that has it is silent, and could go on where it cannot be shut out.
    NotShutOut {
        /// Name of the array.
        name: String,
        /// The engine's host.
        holder: String,
        /// Members that cannot be read, or have no persistent reservations.
        members: Vec<MemberIndex>,
    },
    /// The engine that has it is silent, and is to be taken over.
    Silent {
        /// Name of the array.
        name: String,
        /// The engine's host.
        holder: String,
        /// The engine.
        silent: Box<Silent>,
    },
}

impl Outlook {
    /// The word for documents.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::Alive { .. } => "alive",
            Self::Closed { .. } => "closed",
            Self::NoHeartbeats { .. } => "no_heartbeats",
            Self::NotShutOut { .. } => "not_shut_out",
            Self::Silent { .. } => "silent",
        }
    }

    /// The array's name, where it is known.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Unreadable { name } => name.as_deref(),
            Self::Alive { name, .. }
            | Self::Closed { name }
            | Self::NoHeartbeats { name, .. }
            | Self::NotShutOut { name, .. }
            | Self::Silent { name, .. } => Some(name),
        }
    }

    /// The host of the engine that has it, or had it last.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        match self {
            Self::Unreadable { .. } | Self::Closed { .. } => None,
            Self::Alive { holder, .. }
            | Self::NoHeartbeats { holder, .. }
            | Self::NotShutOut { holder, .. }
            | Self::Silent { holder, .. } => Some(holder),
        }
    }
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { name: None } => f.write_str(
                "no member can be read; check their addresses, and that their targets serve",
            ),
            Self::Unreadable { name: Some(name) } => write!(
                f,
                "array '{name}': too few members can be read to serve from them; bring back what is away"
            ),
            Self::Alive { name, holder, generation } => {
                write!(f, "array '{name}' is open on '{holder}' (generation {generation})")
            }
            Self::Closed { name } => write!(f, "array '{name}' is closed, and is to be opened"),
            Self::NoHeartbeats { name, holder } => write!(
                f,
                "array '{name}' is open on '{holder}', or was not closed there, and that engine was attached without \
                 --standby: nothing tells whether it is alive; stop it, or, when it is dead, attach the array once with \
                 --take-over"
            ),
            Self::NotShutOut { name, holder, members } => {
                write!(
                    f,
                    "array '{name}': the engine of '{holder}' is silent, and could go on with member"
                )?;
                f.write_str(if members.len() == 1 { "" } else { "s" })?;
                for (at, member) in members.iter().enumerate() {
                    write!(f, "{} {member}", if at == 0 { "" } else { "," })?;
                }
                f.write_str(
                    " alone, which cannot be read or have no persistent reservations; bring them back, or make sure that the \
                     engine is dead, and attach the array with --take-over",
                )
            }
            Self::Silent { name, holder, .. } => {
                write!(
                    f,
                    "array '{name}': the engine of '{holder}' is silent, and is to be taken over"
                )
            }
        }
    }
}
