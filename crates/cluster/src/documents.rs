//! The version of the documents that two programs of a cluster exchange (docs/formats/documents.md).
//!
//! Each request and each answer says the newest version that its program knows, in the header [`HEADER`]; whoever says
//! none has version 1. Two programs speak the smaller of both their versions. A field that a version brought goes
//! into a document only if its reader speaks that version.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue},
    response::Response,
};
use netraid_control::text::shown;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::Problem;

/// The header that says the newest version which a program knows, as a decimal number.
pub const HEADER: HeaderName = HeaderName::from_static("netraid-documents");

/// The version of a program that does not say any.
pub const UNSAID: u32 = 1;

/// What this program knows.
pub const OWN: Versions = Versions { oldest: 1, newest: 3 };

/// The version since which labels have a share, a wrapped key and a sealed path, and agents are listed with the version
/// that is spoken with them.
pub const WITH_SHARES: u32 = 2;

/// The version since which a request to make something is known again by its id, clients of plans are heard of by beats
/// of their own, and agents say what their clocks show.
pub const WITH_BEATS: u32 = 3;

/// The versions of documents that a program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    oldest: u32,
    newest: u32,
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The one who was asked.
    Server,
    /// The one who asks.
    Client,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "the daemon that was asked",
            Self::Client => "the program that asks",
        })
    }
}

/// Why two programs do not speak with each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The other one does not know any version that is known here.
    #[error(
        "{peer} has documents of version {found}, and this one (netraid {}) takes {} at least: upgrade {peer}",
        env!("CARGO_PKG_VERSION"), known.oldest
    )]
    TooOld {
        /// Which.
        peer: Peer,
        /// The newest that it knows.
        found: u32,
        /// What is known here.
        known: Versions,
    },
    /// It is no number.
    #[error("{peer} says '{}' in the header {HEADER}, which is one number from 1", shown(said))]
    Form {
        /// Which.
        peer: Peer,
        /// What it says.
        said: String,
    },
}

impl Versions {
    /// The version that is spoken with a program that says this.
    ///
    /// # Errors
    /// When it says no number, or one that is too small.
    pub fn agree(self, peer: Peer, headers: &HeaderMap) -> Result<u32, VersionError> {
        let said = headers.get_all(HEADER).into_iter().collect::<Vec<_>>();
        let found = match said.as_slice() {
            [] => UNSAID,
            [one] => number(one).ok_or_else(|| wrong(peer, one))?,
            [first, ..] => return Err(wrong(peer, first)),
        };
        if found < self.oldest {
            return Err(VersionError::TooOld { peer, found, known: self });
        }
        Ok(found.min(self.newest))
    }
}

fn number(said: &HeaderValue) -> Option<u32> {
    said.to_str().ok()?.trim().parse().ok().filter(|number| *number > 0)
}

fn wrong(peer: Peer, said: &HeaderValue) -> VersionError {
    let said = String::from_utf8_lossy(said.as_bytes()).chars().take(64).collect();
    VersionError::Form { peer, said }
}

/// The version that is spoken with whoever asks.
///
/// # Errors
/// When it is too old, or says what is no version.
pub fn of_request(headers: &HeaderMap) -> Result<u32, Problem> {
    OWN.agree(Peer::Client, headers).map_err(|error| Problem::invalid(error.to_string()))
}

/// Says in an answer which version is known here.
pub(crate) async fn say(mut answer: Response) -> Response {
    answer.headers_mut().insert(HEADER, own());
    answer
}

/// What this program says of itself.
pub(crate) fn own() -> HeaderValue {
    HeaderValue::from(OWN.newest)
}

/// The version that is spoken with a daemon, as it was told last.
#[derive(Debug, Default)]
pub(crate) struct Spoken(AtomicU32);

impl Spoken {
    /// What an answer says. One without the header counts where it is the daemon's own, and not of something before
    /// it.
    pub(crate) fn handle_answer(
        &self,
        headers: &HeaderMap,
        is_its_own: bool,
    ) -> Result<(), VersionError> {
        if is_its_own || headers.contains_key(HEADER) {
            self.0.store(OWN.agree(Peer::Server, headers)?, Ordering::Relaxed);
        }
        Ok(())
    }

    /// None as long as the daemon has not answered.
    pub(crate) fn version(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|version| *version > 0)
    }
}

/// Reads a request. What is wrong is said by its place, as its text may be secret; a field that is not known is
/// named.
///
/// # Errors
/// When it is none for this `program`.
pub fn request<T: DeserializeOwned>(bytes: &[u8], program: &str) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let what = match error.classify() {
            serde_json::error::Category::Data => not_known(&error.to_string(), program)
                .unwrap_or_else(|| "a field is missing, or of a wrong value".to_owned()),
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => "no JSON".to_owned(),
        };
        Problem::invalid(format!("line {line}, column {column}: {what}"))
    })
}

/// Reads a request that is a list of no more than `max` parts, each by itself: one that is none for this `program` says
/// so as [`request`] does, and all others are read.
///
/// # Errors
/// When it is no list, or has too many parts.
pub fn each<T: DeserializeOwned>(
    bytes: &[u8],
    max: usize,
    program: &str,
) -> Result<Vec<Result<T, Problem>>, Problem> {
    // Takes no memory for any part.
    let count = request::<Vec<IgnoredAny>>(bytes, program)?.len();
    if count > max {
        let detail = format!("a list of {count}; {max} at most: send several documents");
        return Err(Problem::invalid(detail));
    }
    let mut parts = Vec::with_capacity(count);
    let mut rest = bytes.trim_ascii_start();
    for at in 1..=count {
        // Behind the bracket of the list, or the comma after the part before.
        rest = rest.get(1..).unwrap_or_default();
        let mut part = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        if !matches!(part.next(), Some(Ok(IgnoredAny))) {
            return Err(Problem::invalid(format!("part {at} of {count} cannot be read")));
        }
        let (part, after) = rest.split_at(part.byte_offset());
        parts.push(request(part, program).map_err(|problem| Problem {
            detail: format!("part {at} of {count}, {}", problem.detail),
            ..problem
        }));
        rest = after.trim_ascii_start();
    }
    Ok(parts)
}

/// What is to be said where serde says that a field is not known; none where it says something else.
#[must_use]
pub fn not_known(said: &str, program: &str) -> Option<String> {
    let (_, name) = said.split_once("unknown field `")?;
    let (name, _) = name.split_once('`')?;
    Some(format!(
        "the field '{}' is not known to this {program} (netraid {}, documents of version {}), and nothing is done \
         without regard to what is asked: upgrade the {program}, or leave the field away",
        shown(name),
        env!("CARGO_PKG_VERSION"),
        OWN.newest
    ))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn headers(said: &[&str]) -> HeaderMap {
        let value = |said: &&str| (HEADER, HeaderValue::from_str(said).unwrap());
        said.iter().map(value).collect()
    }

    #[test]
    fn two_programs_speak_the_smaller_of_their_versions() {
        let agree = |said: &[&str]| OWN.agree(Peer::Client, &headers(said));
        assert_eq!(agree(&[]), Ok(1));
        assert_eq!(agree(&["1"]), Ok(1));
        assert_eq!(agree(&["2"]), Ok(2));
        assert_eq!(agree(&["99"]), Ok(3));
        for wrong in [&["0"][..], &["two"], &["-1"], &["4294967296"], &["1", "2"], &[""]] {
            let error = agree(wrong).unwrap_err();
            assert!(matches!(error, VersionError::Form { .. }), "{wrong:?}: {error}");
            assert!(error.to_string().contains("netraid-documents"), "{error}");
        }
    }

    #[test]
    fn who_is_too_old_is_told_what_to_upgrade() {
        let later = Versions { oldest: 2, newest: 3 };
        assert_eq!(later.agree(Peer::Server, &headers(&["2"])), Ok(2));
        for (said, peer) in [(&[][..], Peer::Server), (&["1"], Peer::Client)] {
            let error = later.agree(peer, &headers(said)).unwrap_err().to_string();
            assert!(error.contains("version 1") && error.contains("2 at least"), "{error}");
            assert!(error.ends_with(&format!("upgrade {peer}")), "{error}");
        }
    }

    #[test]
    fn an_answer_of_something_before_the_daemon_says_nothing_of_it() {
        let spoken = Spoken::default();
        assert_eq!(spoken.version(), None);
        spoken.handle_answer(&headers(&["7"]), true).unwrap();
        assert_eq!(spoken.version(), Some(3));
        spoken.handle_answer(&headers(&[]), false).unwrap();
        assert_eq!(spoken.version(), Some(3));
        // An older program was started in the place of this one.
        spoken.handle_answer(&headers(&[]), true).unwrap();
        assert_eq!(spoken.version(), Some(1));
    }

    #[test]
    fn a_refusal_names_the_field_that_is_not_known_and_shows_no_value() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Strict {
            _token: u32,
        }
        let read = |text: &str| request::<Strict>(text.as_bytes(), "agent").unwrap_err().detail;
        let told = read("{\"_token\": 1,\n \"only_\\u001bif\": \"secret\"}");
        for part in ["line 2", "'only_\\u{1b}if'", "documents of version 3", "upgrade the agent"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        for wrong in ["{\"_token\": \"secret\"}", "{\"other\": \"secret\"}", "secret"] {
            assert!(!read(wrong).contains("secret"), "{wrong}");
        }
    }

    #[test]
    fn each_part_of_a_list_is_read_by_itself() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Strict {
            a: u32,
        }
        let text = " [ {\"a\": 1} ,\n{\"a\":2,\"x],{\":[\"secret\"]},[[]],{\"a\":3,\"a\":3},4,\"5\", {\"a\":6}\n] ";
        let read = each::<Strict>(text.as_bytes(), 7, "agent").unwrap();
        let known: Vec<_> = read.iter().map(|part| part.as_ref().ok().map(|part| part.a)).collect();
        assert_eq!(known, [Some(1), None, None, None, None, None, Some(6)]);
        let told = read[1].as_ref().unwrap_err().to_string();
        assert!(told.contains("part 2 of 7") && told.contains("'x],{'"), "{told}");
        assert!(!told.contains("secret"), "{told}");
        assert_eq!(each::<Strict>(b"[]", 7, "agent").unwrap().len(), 0);
        for wrong in ["", "{}", "[1,", "[1 2]", "[1]]", "[\"\u{1}\"]"] {
            assert!(each::<Strict>(wrong.as_bytes(), 7, "agent").is_err(), "{wrong}");
        }
        let told = each::<Strict>(text.as_bytes(), 6, "agent").unwrap_err().to_string();
        assert!(told.contains("a list of 7; 6 at most"), "{told}");
    }
}
