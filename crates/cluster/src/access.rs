//! Access files, bearer tokens, roles.
//!
//! An access file is all that a client or a joining agent needs: where the mediator is, whom to trust, and
//! a bearer token. It is a secret: written for its owner alone, and never printed.

use std::{
    fmt,
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use base64ct::{Base64UrlUnpadded, Encoding as _};
use netraid_control::text::shown;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use zeroize::Zeroize as _;

/// Random bytes of a bearer token.
const TOKEN_BYTES: usize = 32;
/// An access file is no longer than this.
const FILE_LEN_MAX: u64 = 1 << 20;
/// An access file with an authority usually has fewer bytes.
const USUAL_LEN: usize = 8 << 10;

/// What whoever has a bearer token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Names, volumes, data and plans.
    Client,
    /// The same, without changing anything.
    Reader,
    /// Joining as an agent.
    Agent,
}

impl Role {
    /// Its name, as in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Client => "client",
            Self::Reader => "reader",
            Self::Agent => "agent",
        }
    }
}

/// A bearer token; shows nothing of itself when printed, and is overwritten when it goes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bearer(String);

impl Bearer {
    /// A new one, from the system's random numbers.
    #[must_use]
    pub fn draw() -> Self {
        let mut bytes: [u8; TOKEN_BYTES] = rand::random();
        let text = Base64UrlUnpadded::encode_string(&bytes);
        bytes.zeroize();
        Self(text)
    }

    /// The token of this text, which somebody gave.
    #[must_use]
    pub const fn from_text(text: String) -> Self {
        Self(text)
    }

    /// The token itself, for the wire.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is stored of it: it has enough random bits that nobody finds it by its digest.
    #[must_use]
    pub fn digest(&self) -> TokenDigest {
        TokenDigest::of(&self.0)
    }
}

impl Drop for Bearer {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(***)")
    }
}

/// What is stored of a bearer token. Looking it up by its digest takes a time that says nothing of
/// the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenDigest(pub [u8; 32]);

impl TokenDigest {
    /// The digest of a token's text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

/// All that it takes to talk to a mediator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessFile {
    /// Of this structure: 1. What has to be understood beside what is here comes with another one.
    pub version: u32,
    /// `http` or `https` URL, without a path.
    pub mediator: String,
    /// Whom to trust, in PEM; none without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// What to say.
    pub token: Bearer,
}

/// Why an access file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read or written.
    #[error("access file {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Others can read it.
    #[error(
        "access file {}: others can read it (mode {mode:o}), and whoever reads it has its rights; chmod 600",
        path.display()
    )]
    Open {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is none.
    #[error("access file {}: {why}; `netraid mediator access` writes one", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl AccessFile {
    /// Reads one.
    ///
    /// # Errors
    /// When it cannot be read, is none, is a symbolic link or somebody else's, or others can read it too.
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let io = |source| AccessError::Io { path: path.to_owned(), source };
        let (file, meta) = netraid_private::open_named(path).map_err(io)?;
        let mode = meta.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(AccessError::Open { path: path.to_owned(), mode });
        }
        let format = |why| AccessError::Format { path: path.to_owned(), why };
        let mut text = String::new();
        file.take(FILE_LEN_MAX + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > FILE_LEN_MAX {
            return Err(format(format!("longer than {FILE_LEN_MAX} bytes")));
        }
        // What serde says of wrong text could show the token: only where it is wrong.
        let this: Result<Self, _> = serde_json::from_str(&text);
        text.zeroize();
        let wrong = |error: serde_json::Error| {
            format(format!("not as expected at line {}, column {}", error.line(), error.column()))
        };
        let this = this.map_err(wrong)?;
        if this.version != 1 {
            return Err(format(format!("version {}, this program reads 1", this.version)));
        }
        crate::vet::url_host(&this.mediator)
            .map_err(|why| format(format!("mediator '{}': {why}", shown(&this.mediator))))?;
        Ok(this)
    }

    /// Closes a daemon's own access file to others, if there is one; whether there is one.
    ///
    /// # Errors
    /// When it is a symbolic link, no regular file, somebody else's, or a file with several names, or cannot
    /// be closed.
    pub fn close(path: &Path) -> Result<bool, AccessError> {
        netraid_private::tighten(path)
            .map_err(|source| AccessError::Io { path: path.to_owned(), source })
    }

    /// Writes one that its owner alone can read, in the place of what was there.
    ///
    /// # Errors
    /// When it cannot be written, or a symbolic link, somebody else's file or no regular file is there.
    pub fn write(&self, path: &Path) -> Result<(), AccessError> {
        AccessPlace::prepare(path)?.write(self)
    }
}

/// The place of an access file that is not written yet. What keeps the file from being written is known before
/// there is a token for it.
#[derive(Debug)]
pub struct AccessPlace {
    place: netraid_private::Replacement,
    path: PathBuf,
}

impl AccessPlace {
    /// Prepares one, with room for what an access file usually has.
    ///
    /// # Errors
    /// When nothing can be written there, or a symbolic link or no regular file is there.
    pub fn prepare(path: &Path) -> Result<Self, AccessError> {
        let io = |source| AccessError::Io { path: path.to_owned(), source };
        let place = netraid_private::prepare(path, USUAL_LEN).map_err(io)?;
        Ok(Self { place, path: path.to_owned() })
    }

    /// Writes the file in the place of what was there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(self, access: &AccessFile) -> Result<(), AccessError> {
        let Self { place, path } = self;
        let mut text = match serde_json::to_string_pretty(access) {
            Ok(text) => text,
            Err(error) => return Err(AccessError::Format { path, why: error.to_string() }),
        };
        text.push('\n');
        let written = place.finish(text.as_bytes());
        text.zeroize();
        written.map_err(|source| AccessError::Io { path, source })
    }
}
