//! What stands beside a segment: what it is of (docs/agent.md).
//!
//! Fields that belong together stand in one object: an agent that does not know them keeps each field by itself, and
//! would otherwise put a part of an old label beside a part of a new one.
//!
//! A label is never the only copy of a wrapped key. A member that is replaced gets a label of whoever replaces it,
//! without the key where that one does not know of keys. Whoever writes keys keeps them in the record of the volume
//! too, which programs that cannot carry them on refuse.

use std::{collections::BTreeMap, fmt};

use base64ct::{Base64UrlUnpadded, Encoding as _};
use netraid_control::units::{Generation, VolumeId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;

use crate::{documents::WITH_SHARES, mediator::Kind};

/// The version of labels that is known.
const VERSION: u32 = 1;
/// Bytes of a label's path, at most.
pub const NAME_LEN_MAX: usize = 4096;
/// Bytes of a label's wrapped key, at most.
pub const WRAPPED_KEY_LEN_MAX: usize = 512;
/// Bytes of a label's sealed path, at most: so it fits into a row of a disk's table, where it cannot be cut.
pub const SEALED_PATH_LEN_MAX: usize = 1024;
/// Bytes of all that a label says beside the fields that are known, in JSON, at most.
pub const MORE_LEN_MAX: usize = 1024;

/// What a segment belongs to: so that all can be found again from the agents alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Of this structure: 1.
    pub version: u32,
    /// Which volume, or data.
    pub volume: VolumeId,
    /// Its path when this was written; empty where it is sealed.
    pub path: String,
    /// Whether it is a block volume, or data of an exact length.
    pub kind: Kind,
    /// Which member, from 0.
    pub member: u16,
    /// How many there are.
    pub members: u16,
    /// Level: 0, 1, 5, 6 or 10.
    pub level: u8,
    /// Bytes of the striping unit.
    pub chunk_len: u32,
    /// Whether the array has a log.
    pub logged: bool,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
    /// Bytes of data, exactly; for a block volume its capacity.
    pub length_bytes: u64,
    /// The volume's generation when this was written. The newest label of all members counts.
    pub generation: Generation,
    /// Of data that is cut in shares, each with members of its own: which one, from 0. None of what is in one piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
    /// The key of the segment's data, wrapped by one that the agent does not have: [`WRAPPED_KEY_LEN_MAX`] bytes at
    /// most. None of what is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapped_key: Option<Opaque>,
    /// The path, encrypted by the client: [`SEALED_PATH_LEN_MAX`] bytes at most, so that a longer path is cut before it
    /// is sealed. None where [`Self::path`] says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_path: Option<Opaque>,
    /// What a later program says beside these: kept, handed out, and not understood. [`MORE_LEN_MAX`] bytes at
    /// most in a label that is sent to an agent.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// What is not known may be secret.
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            volume,
            path,
            kind,
            member,
            members,
            level,
            chunk_len,
            logged,
            capacity_bytes,
            length_bytes,
            generation,
            share,
            wrapped_key,
            sealed_path,
            more,
        } = self;
        f.debug_struct("Label")
            .field("version", version)
            .field("volume", volume)
            .field("path", path)
            .field("kind", kind)
            .field("member", member)
            .field("members", members)
            .field("level", level)
            .field("chunk_len", chunk_len)
            .field("logged", logged)
            .field("capacity_bytes", capacity_bytes)
            .field("length_bytes", length_bytes)
            .field("generation", generation)
            .field("share", share)
            .field("wrapped_key", wrapped_key)
            .field("sealed_path", sealed_path)
            .field("more", &Lengths(more))
            .finish()
    }
}

/// Shows names, and bytes of what goes with them.
struct Lengths<'a>(&'a BTreeMap<String, Value>);

impl fmt::Debug for Lengths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Value| format!("{} bytes", json_len(value));
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, shown(value)))).finish()
    }
}

/// Bytes that mean something to clients alone; in JSON as base64 for URLs, without padding.
#[derive(Clone, PartialEq, Eq)]
pub struct Opaque(pub Vec<u8>);

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opaque({} bytes)", self.0.len())
    }
}

impl Serialize for Opaque {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Base64UrlUnpadded::encode_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Opaque {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = Base64UrlUnpadded::decode_vec(&text);
        bytes.map(Self).map_err(|_| D::Error::custom("not base64 for URLs without padding"))
    }
}

/// Why a label is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// It is of another version.
    #[error("a label of version {0}; this agent keeps version {VERSION}")]
    Version(u32),
    /// A field is too long.
    #[error("the label's {field} has {len} bytes; {max} at most")]
    TooLong {
        /// Which.
        field: &'static str,
        /// Its length.
        len: usize,
        /// How long it may be.
        max: usize,
    },
    /// It says the path that it seals.
    #[error(
        "the label has a path of {len} bytes in clear beside a sealed one: leave one of them away"
    )]
    TwoPaths {
        /// Length of the one in clear.
        len: usize,
    },
}

impl Label {
    /// Whether an agent keeps it: then it fits beside a segment in each kind of store.
    ///
    /// # Errors
    /// When it is too long, contradicts itself, or is of another version.
    pub fn check(&self) -> Result<(), LabelError> {
        if self.version != VERSION {
            return Err(LabelError::Version(self.version));
        }
        let of = |opaque: &Option<Opaque>| opaque.as_ref().map_or(0, |opaque| opaque.0.len());
        for (field, len, max) in [
            ("path", self.path.len(), NAME_LEN_MAX),
            ("wrapped_key", of(&self.wrapped_key), WRAPPED_KEY_LEN_MAX),
            ("sealed_path", of(&self.sealed_path), SEALED_PATH_LEN_MAX),
            ("rest of unknown fields", self.more_len(), MORE_LEN_MAX),
        ] {
            if len > max {
                return Err(LabelError::TooLong { field, len, max });
            }
        }
        if self.sealed_path.is_some() && !self.path.is_empty() {
            return Err(LabelError::TwoPaths { len: self.path.len() });
        }
        Ok(())
    }

    /// Bytes of what is not known, in JSON; nothing of nothing.
    fn more_len(&self) -> usize {
        if self.more.is_empty() { 0 } else { json_len(&self.more) }
    }

    /// This label in the place of another one of the same segment, with what it says nothing of: who does not know of
    /// a key or of a share does not take it away. A path in clear takes the place of a sealed one. A sealed path may be
    /// sealed by the old key, and does not stay beside another one; what is not known may belong to the key or to the
    /// sealed path, and does not either. Limits are of what comes
    /// in: what this label and the old one say together, and would be too long together, is what this one says.
    #[must_use]
    pub fn keeping(mut self, before: &Self) -> Self {
        if self.volume != before.volume {
            return self;
        }
        let brings = |new: &Option<Opaque>, old| new.is_some() && new != old;
        let has_other_key = brings(&self.wrapped_key, &before.wrapped_key);
        if !has_other_key && !brings(&self.sealed_path, &before.sealed_path) {
            self.keep_more(&before.more);
        }
        self.share = self.share.or(before.share);
        self.wrapped_key = self.wrapped_key.or_else(|| before.wrapped_key.clone());
        if self.path.is_empty() && !has_other_key {
            self.sealed_path = self.sealed_path.or_else(|| before.sealed_path.clone());
        }
        self
    }

    fn keep_more(&mut self, before: &BTreeMap<String, Value>) {
        let mut both = before.clone();
        both.extend(self.more.iter().map(|(name, value)| (name.clone(), value.clone())));
        // What a later program put there by its own limits is not taken away by who says nothing of it.
        if self.more.is_empty() || json_len(&both) <= MORE_LEN_MAX {
            self.more = both;
        }
    }

    /// As it is told to whoever speaks this version of documents.
    #[must_use]
    pub fn as_of(self, version: u32) -> Self {
        if version >= WITH_SHARES {
            return self;
        }
        Self { share: None, wrapped_key: None, sealed_path: None, more: BTreeMap::new(), ..self }
    }
}

fn json_len(value: &impl Serialize) -> usize {
    // What came as JSON can be written as JSON.
    serde_json::to_string(value).unwrap_or_default().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an agent of version 1 writes it.
    const BEFORE: &str = r#"{"version":1,"volume":"02020202020202020202020202020202","path":"/a","kind":"data","member":1,"members":3,"level":5,"chunk_len":65536,"logged":true,"capacity_bytes":1048576,"length_bytes":77,"generation":4}"#;

    fn before() -> Label {
        serde_json::from_str(BEFORE).unwrap()
    }

    fn sealed() -> Label {
        Label {
            path: String::new(),
            share: Some(3),
            wrapped_key: Some(Opaque(vec![7; 40])),
            sealed_path: Some(Opaque(vec![255; 60])),
            ..before()
        }
    }

    #[test]
    fn a_label_without_anything_new_is_written_as_the_program_before_reads_it() {
        assert_eq!(serde_json::to_string(&before()).unwrap(), BEFORE);
        assert_eq!(serde_json::to_string(&sealed().as_of(1)).unwrap(), {
            BEFORE.replace("\"/a\"", "\"\"")
        });
        assert_eq!(sealed().as_of(2), sealed());
    }

    #[test]
    fn what_a_label_says_of_itself_comes_back() {
        let text = serde_json::to_string(&sealed()).unwrap();
        assert!(text.contains(r#""share":3,"wrapped_key":"BwcH"#), "{text}");
        assert_eq!(serde_json::from_str::<Label>(&text).unwrap(), sealed());
        let wrong = text.replace("BwcH", "B===");
        assert!(serde_json::from_str::<Label>(&wrong).is_err());
    }

    #[test]
    fn what_a_later_program_says_is_kept() {
        let later =
            BEFORE.replace("\"level\"", "\"codec\":{\"name\":\"x\",\"at\":[1,2]},\"level\"");
        let label: Label = serde_json::from_str(&later).unwrap();
        assert_eq!(label.check(), Ok(()));
        let again = serde_json::to_string(&label).unwrap();
        assert!(again.contains(r#""codec":{"at":[1,2],"name":"x"}"#), "{again}");
        // Also through a label of somebody who does not know it.
        assert_eq!(before().keeping(&label), label);
        assert_eq!(label.as_of(1), before());
    }

    #[test]
    fn a_label_of_who_does_not_know_of_a_key_leaves_the_key() {
        let relabelled = Label { path: String::new(), length_bytes: 99, ..before() };
        let kept = relabelled.keeping(&sealed());
        assert_eq!(kept, Label { length_bytes: 99, ..sealed() });
        // A path in clear is the path from then on.
        let clear = before().keeping(&sealed());
        assert_eq!((clear.path.as_str(), &clear.sealed_path), ("/a", &None));
        assert_eq!(clear.wrapped_key, sealed().wrapped_key);
        // What is new counts, and another volume's is none of it.
        let new = Label { share: Some(9), wrapped_key: Some(Opaque(vec![1])), ..sealed() };
        assert_eq!(new.clone().keeping(&sealed()), new);
        let other = Label { volume: VolumeId([9; 16]), ..before() };
        assert_eq!(other.clone().keeping(&sealed()), other);
    }

    #[test]
    fn a_sealed_path_does_not_stay_beside_another_key_which_may_not_open_it() {
        let other_key = Label {
            path: String::new(),
            sealed_path: None,
            wrapped_key: Some(Opaque(vec![9; 40])),
            ..sealed()
        };
        assert_eq!(other_key.clone().keeping(&sealed()), other_key);
        let same_key = Label { wrapped_key: sealed().wrapped_key, ..other_key };
        assert_eq!(same_key.keeping(&sealed()), sealed());
        let none = Label { path: String::new(), ..before() };
        assert_eq!(none.keeping(&sealed()), sealed());
    }

    fn with_more(label: Label, name: &str, value: &str) -> Label {
        let value = Value::String(value.to_owned());
        Label { more: BTreeMap::from([(name.to_owned(), value)]), ..label }
    }

    #[test]
    fn what_is_not_known_does_not_stay_beside_another_key_or_another_sealed_path() {
        let old = with_more(sealed(), "nonce", "x");
        let other_key = Label { wrapped_key: Some(Opaque(vec![9; 40])), ..sealed() };
        assert_eq!(other_key.clone().keeping(&old), other_key);
        let other_path = Label { sealed_path: Some(Opaque(vec![9; 60])), ..sealed() };
        assert_eq!(other_path.clone().keeping(&old), other_path);
        let first_key = Label { path: "/a".to_owned(), sealed_path: None, ..sealed() };
        assert_eq!(first_key.clone().keeping(&with_more(before(), "x", "y")).more, first_key.more);
        // The same ones again are no other ones.
        assert_eq!(sealed().keeping(&old), old);
        assert_eq!(Label { path: String::new(), ..before() }.keeping(&old), old);
    }

    #[test]
    fn unknown_fields_that_are_too_long_together_are_those_of_the_new_label() {
        let long = "x".repeat(600);
        let (old, new) = (with_more(before(), "a", &long), with_more(before(), "b", &long));
        assert_eq!(new.clone().keeping(&old), new);
        // Whatever they are, who says none takes none away.
        let longer = with_more(before(), "a", &"x".repeat(3000));
        assert_eq!(before().keeping(&longer), longer);
        assert_eq!(new.clone().keeping(&longer), new);
        let short = with_more(before(), "b", "y");
        assert_eq!(short.keeping(&old).more.len(), 2);
    }

    #[test]
    fn a_label_shows_of_what_is_not_known_names_and_lengths_alone() {
        let shown = format!("{:?}", with_more(sealed(), "later_key", "secret"));
        assert!(shown.contains(r#"more: {"later_key": "8 bytes"}"#), "{shown}");
        assert!(shown.contains("wrapped_key: Some(Opaque(40 bytes))"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_label_that_is_too_long_is_refused_by_field_length_and_limit() {
        let opaque = |len| Some(Opaque(vec![0; len]));
        let more = |len: usize| {
            // Beside the value: braces, two pairs of quotation marks, the name, the colon.
            let value = Value::String("x".repeat(len - 8));
            BTreeMap::from([("a".to_owned(), value)])
        };
        let longest = Label {
            wrapped_key: opaque(WRAPPED_KEY_LEN_MAX),
            sealed_path: opaque(SEALED_PATH_LEN_MAX),
            more: more(MORE_LEN_MAX),
            ..sealed()
        };
        assert_eq!(longest.check(), Ok(()));
        let longer = [
            (Label { wrapped_key: opaque(513), ..sealed() }, "wrapped_key has 513 bytes; 512"),
            (Label { sealed_path: opaque(1025), ..sealed() }, "sealed_path has 1025 bytes; 1024"),
            (Label { more: more(1025), ..sealed() }, "unknown fields has 1025 bytes; 1024"),
            (Label { path: "x".repeat(4097), ..before() }, "path has 4097 bytes; 4096"),
            (Label { path: "/a".to_owned(), ..sealed() }, "path of 2 bytes in clear"),
            (Label { version: 2, ..before() }, "version 2; this agent keeps version 1"),
        ];
        for (label, expected) in longer {
            let told = label.check().unwrap_err().to_string();
            assert!(told.contains(expected), "{expected}: {told}");
        }
    }
}
