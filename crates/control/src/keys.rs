//! Keys that a mediator and an agent share, and their rotation.
//!
//! A mediator draws root keys, and keeps them to itself. Of each, every agent has a key of its own
//! ([`Ring::of_agent`]): HKDF-Expand (RFC 5869) of the root key with mediator, agent and key id. So
//! an agent that is broken into gives away what opens that agent alone, and a mediator has one
//! secret to keep however many agents there are.
//!
//! The newest key that has begun signs; an older one verifies until it ends, and whatever it has
//! signed ends no later than itself. A new key begins some time after it was made
//! ([`Rotation::lead_ms`]), which is the time to hand it to all agents: there is no moment at which
//! one side signs with what the other lacks. An agent is handed the whole [`Ring`], which takes the
//! place of the one it has, so that a key that was taken back is gone there too.
//!
//! Secret bytes stand in one place on the heap, are overwritten when they go, and are neither
//! printed nor serialized: [`Ring::expose`] alone gives them out, for the store and for the agent.
//!
//! Not here: where keys are stored, random bytes, and the way on which agents get them, which must
//! be secret.

use alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};
use core::fmt;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::units::{AgentId, MediatorId, Moment};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Most keys of a ring.
pub const KEYS_MAX: usize = 8;
/// Most mediators whose keys an agent holds.
pub const MEDIATORS_MAX: usize = 64;
/// Version of a stored ring.
pub const RING_VERSION: u32 = 1;

/// Bytes that HMAC-SHA256 works on at once; a shorter key is filled up with zeros (RFC 2104).
const HMAC_BLOCK_LEN: usize = 64;
/// What [`Ring::mark`] is made for, and nothing else is.
const MARK_LABEL: &[u8] = b"netraid ring mark\0";
/// Bytes of a mark.
const MARK_LEN: usize = 12;
/// What an agent's keys are derived for, and nothing else is.
const AGENT_KEY_LABEL: &[u8] = b"netraid agent key\0";

/// Names a key of a mediator; a newer one has a larger number.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct KeyId(pub u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key that a mediator shares with one agent.
#[derive(Clone)]
pub struct Key(Box<[u8; KEY_LEN]>);

impl Key {
    /// A key of these bytes, which whoever drew them overwrites.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_LEN]) -> Self {
        Self(Box::new(*bytes))
    }

    /// HMAC-SHA256 (RFC 2104) under this key over all parts, one after the other.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut block = Zeroizing::new([0; HMAC_BLOCK_LEN]);
        block[..KEY_LEN].copy_from_slice(&*self.0);
        let mut mac = Hmac::<Sha256>::new((&*block).into());
        parts.iter().for_each(|part| mac.update(part));
        Zeroizing::new(mac.finalize().into_bytes().into())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&*other.0).into()
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

/// A mediator's own key, of which those of its agents are derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootKey(Key);

impl RootKey {
    /// A key of these bytes, which whoever drew them overwrites.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_LEN]) -> Self {
        Self(Key::new(bytes))
    }

    /// The agent's key: the first block of HKDF-Expand (RFC 5869, section 2.3).
    #[must_use]
    pub fn of_agent(&self, mediator: MediatorId, agent: AgentId, id: KeyId) -> Key {
        let id = id.0.to_le_bytes();
        let derived = self.0.mac(&[AGENT_KEY_LABEL, &mediator.0, &agent.0, &id, &[1]]);
        Key::new(&derived)
    }
}

/// What a ring may hold: [`Key`] and [`RootKey`].
pub trait Material: Clone + Eq + sealed::Sealed {
    /// Which kind it is.
    const KIND: Kind;
}

impl Material for Key {
    const KIND: Kind = Kind::Agent;
}

impl Material for RootKey {
    const KIND: Kind = Kind::Root;
}

mod sealed {
    use super::{Key, RootKey};

    pub trait Sealed {
        fn key(&self) -> &Key;
        fn of(key: Key) -> Self;
    }

    impl Sealed for Key {
        fn key(&self) -> &Key {
            self
        }

        fn of(key: Key) -> Self {
            key
        }
    }

    impl Sealed for RootKey {
        fn key(&self) -> &Key {
            &self.0
        }

        fn of(key: Key) -> Self {
            Self(key)
        }
    }
}

/// A key of a ring, and when it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<K> {
    /// Its number.
    pub id: KeyId,
    /// It signs from here on, until a newer one does.
    pub from: Moment,
    /// From here on it neither signs nor verifies.
    pub until: Moment,
    /// The key.
    pub key: K,
}

/// How long keys sign and verify. Lead and term together are at most five times what a key signs, or
/// there is no room for all that still verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// A key that is so old gets a successor.
    pub every_ms: u64,
    /// A new key begins so long after it was made: the time to hand it to all agents.
    pub lead_ms: u64,
    /// The longest term of what is signed: for so long a key verifies after its successor has begun.
    pub term_ms: u64,
}

impl Default for Rotation {
    /// A key a day, an hour to hand it out, terms up to a day.
    fn default() -> Self {
        const HOUR_MS: u64 = 60 * 60 * 1000;
        Self { every_ms: 24 * HOUR_MS, lead_ms: HOUR_MS, term_ms: 24 * HOUR_MS }
    }
}

/// Why a key was not taken, or a ring not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No room.
    #[error("a ring holds {KEYS_MAX} keys; remove one, or wait until one ends")]
    Full,
    /// No room for another mediator.
    #[error("an agent holds keys of {MEDIATORS_MAX} mediators; remove one")]
    Mediators,
    /// Numbers grow, and none comes again.
    #[error("key {id} does not come after key {last}; newer keys have larger numbers")]
    Order {
        /// Of the key that was not taken.
        id: KeyId,
        /// The last one that there was.
        last: KeyId,
    },
    /// There are no more numbers.
    #[error("key {} is the last that there can be", u32::MAX)]
    Last,
    /// It would never count.
    #[error("key {0} ends before it begins")]
    Window(KeyId),
    /// Another one has this number.
    #[error("key {0} is there with other contents; make one with a new number")]
    Differs(KeyId),
    /// A stored ring of another version.
    #[error("stored keys have version {0}; this program reads {RING_VERSION}")]
    Version(u32),
    /// A stored ring of the other kind.
    #[error("stored keys are of kind {0:?}, which does not belong here")]
    Kind(Kind),
    /// A stored key whose bytes cannot be read.
    #[error("stored key {0} is not {KEY_LEN} bytes in base64url")]
    Secret(KeyId),
}

/// Why nothing is verified by a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// The mediator has no keys here.
    #[error("mediator {0} has no keys here")]
    Mediator(MediatorId),
    /// There is none with this number, or none any more.
    #[error("there is no key {0}")]
    Unknown(KeyId),
    /// It has ended.
    #[error("key {id} ended at {} ms", until.0)]
    Ended {
        /// The key.
        id: KeyId,
        /// When it ended.
        until: Moment,
    },
}

/// Keys of one mediator: its own, or those that it shares with one agent; at most [`KEYS_MAX`], in
/// the order of their numbers, which begin at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring<K> {
    held: Vec<Held<K>>,
    /// The largest number that was ever given away; 0 before the first. None comes again.
    last: KeyId,
}

impl<K> Default for Ring<K> {
    fn default() -> Self {
        Self { held: Vec::new(), last: KeyId(0) }
    }
}

impl<K: Material> Ring<K> {
    /// The key that signs: the newest that has begun and not ended.
    #[must_use]
    pub fn signer(&self, now: Moment) -> Option<&Held<K>> {
        self.held.iter().rev().find(|held| held.from <= now && now < held.until)
    }

    /// The key that verifies what one with this number has signed. That it has not begun here is
    /// no reason against it: the signer's clock may be ahead.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub fn verifier(&self, id: KeyId, now: Moment) -> Result<&K, KeyFault> {
        let held = self.held.iter().find(|held| held.id == id).ok_or(KeyFault::Unknown(id))?;
        if now < held.until {
            Ok(&held.key)
        } else {
            Err(KeyFault::Ended { id, until: held.until })
        }
    }

    /// All keys, the newest last.
    #[must_use]
    pub fn held(&self) -> &[Held<K>] {
        &self.held
    }

    /// Adds a key that is newer than all others. One that is there already, with the same contents,
    /// changes nothing.
    ///
    /// # Errors
    /// When it is not newer, never counts, or there is no room: nothing has changed then.
    pub fn add(&mut self, new: Held<K>) -> Result<(), KeyError> {
        if let Some(there) = self.held.iter().find(|held| held.id == new.id) {
            return if *there == new { Ok(()) } else { Err(KeyError::Differs(new.id)) };
        }
        if new.id <= self.last {
            return Err(KeyError::Order { id: new.id, last: self.last });
        }
        if new.from >= new.until {
            return Err(KeyError::Window(new.id));
        }
        if self.held.len() == KEYS_MAX {
            return Err(KeyError::Full);
        }
        self.last = new.id;
        self.held.push(new);
        Ok(())
    }

    /// Takes a key back at once, as for one that has become known; whether it was there. What it has
    /// signed opens nothing any more; sessions that were opened by it are for the caller to end.
    pub fn remove(&mut self, id: KeyId) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.id != id);
        self.held.len() < before
    }

    /// Tells this ring from any other, and nothing of its secrets: two sides that have the same one
    /// have the same keys, for the same times. Empty without keys.
    #[must_use]
    pub fn mark(&self) -> String {
        let chain = |before: Zeroizing<[u8; 32]>, held: &Held<K>| {
            let (id, from) = (held.id.0.to_le_bytes(), held.from.0.to_le_bytes());
            let until = held.until.0.to_le_bytes();
            held.key.key().mac(&[MARK_LABEL, &*before, &id, &from, &until])
        };
        if self.held.is_empty() {
            return String::new();
        }
        let mark = self.held.iter().fold(Zeroizing::new([0; 32]), chain);
        Base64UrlUnpadded::encode_string(&mark[..MARK_LEN])
    }

    /// Removes keys that have ended.
    pub fn prune(&mut self, now: Moment) {
        self.held.retain(|held| now < held.until);
    }

    /// Everything with its secrets, to be stored or handed to the agent.
    #[must_use]
    pub fn expose(&self) -> StoredRing {
        let keys = self.held.iter().map(|held| StoredKey {
            id: held.id,
            from: held.from,
            until: held.until,
            secret: Exposed(Base64UrlUnpadded::encode_string(&*held.key.key().0)),
        });
        StoredRing { version: RING_VERSION, kind: K::KIND, last: self.last, keys: keys.collect() }
    }

    /// The ring that was exposed.
    ///
    /// # Errors
    /// When it is not one, or one of another kind or version.
    pub fn restore(stored: &StoredRing) -> Result<Self, KeyError> {
        if stored.version != RING_VERSION {
            return Err(KeyError::Version(stored.version));
        }
        if stored.kind != K::KIND {
            return Err(KeyError::Kind(stored.kind));
        }
        let mut ring = Self::default();
        for stored in &stored.keys {
            let mut bytes = Zeroizing::new([0; KEY_LEN]);
            let decoded = Base64UrlUnpadded::decode(&stored.secret.0, &mut *bytes);
            if decoded.map(<[u8]>::len) != Ok(KEY_LEN) {
                return Err(KeyError::Secret(stored.id));
            }
            let (id, key) = (stored.id, K::of(Key::new(&bytes)));
            if id <= ring.last {
                return Err(KeyError::Order { id, last: ring.last });
            }
            ring.add(Held { id, from: stored.from, until: stored.until, key })?;
        }
        if stored.last < ring.last {
            return Err(KeyError::Order { id: ring.last, last: stored.last });
        }
        ring.last = stored.last;
        Ok(ring)
    }
}

impl Ring<RootKey> {
    /// What the agent gets: its key of each that is here.
    #[must_use]
    pub fn of_agent(&self, mediator: MediatorId, agent: AgentId) -> Ring<Key> {
        let held = self.held.iter().map(|held| Held {
            id: held.id,
            from: held.from,
            until: held.until,
            key: held.key.of_agent(mediator, agent, held.id),
        });
        Ring { held: held.collect(), last: self.last }
    }

    /// When the next key is to be made; at once when there is none.
    #[must_use]
    pub fn next_timeout(&self, rotation: &Rotation) -> Moment {
        self.held.last().map_or(Moment(0), |newest| newest.from.after_ms(rotation.every_ms))
    }

    /// Makes a key of these random bytes, and says which it is. It begins after
    /// [`Rotation::lead_ms`], or as soon as no other signs. Keys that have ended are removed. The ring is to be
    /// stored, and handed to all agents, before anything is signed.
    ///
    /// # Errors
    /// When there is no room or no number left: no key was added then.
    pub fn rotate(
        &mut self,
        now: Moment,
        rotation: &Rotation,
        bytes: &[u8; KEY_LEN],
    ) -> Result<KeyId, KeyError> {
        let id = KeyId(self.last.0.checked_add(1).ok_or(KeyError::Last)?);
        let from =
            self.signer(now).map_or(now, |signer| now.after_ms(rotation.lead_ms).min(signer.until));
        let signs_ms = rotation.every_ms.saturating_add(rotation.lead_ms);
        let until = from.after_ms(signs_ms).after_ms(rotation.term_ms);
        let new = Held { id, from, until, key: RootKey::new(bytes) };
        let mut next = self.clone();
        next.prune(now);
        next.add(new)?;
        *self = next;
        Ok(id)
    }
}

/// What an agent holds: a ring of each mediator that it works for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring {
    rings: BTreeMap<MediatorId, Ring<Key>>,
}

impl Keyring {
    /// Takes the mediator's ring in the place of the one that is there.
    ///
    /// # Errors
    /// When there are too many mediators.
    pub fn set(&mut self, mediator: MediatorId, ring: Ring<Key>) -> Result<(), KeyError> {
        if self.rings.len() >= MEDIATORS_MAX && !self.rings.contains_key(&mediator) {
            return Err(KeyError::Mediators);
        }
        self.rings.insert(mediator, ring);
        Ok(())
    }

    /// Forgets a mediator's keys; whether there were any.
    pub fn remove(&mut self, mediator: MediatorId) -> bool {
        self.rings.remove(&mediator).is_some()
    }

    /// The ring of each mediator.
    pub fn rings(&self) -> impl Iterator<Item = (MediatorId, &Ring<Key>)> {
        self.rings.iter().map(|(mediator, ring)| (*mediator, ring))
    }

    /// The key that verifies what the mediator's one with this number has signed.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub fn verifier(&self, mediator: MediatorId, id: KeyId, now: Moment) -> Result<&Key, KeyFault> {
        let ring = self.rings.get(&mediator).ok_or(KeyFault::Mediator(mediator))?;
        ring.verifier(id, now)
    }
}

/// Whose keys a ring holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A mediator's own.
    Root,
    /// Those that it shares with one agent.
    Agent,
}

/// A ring with its secrets, as it is stored and handed over (docs/formats/token.md). Its secrets
/// are overwritten when it goes, but whoever serializes it has them in a text that is to be
/// overwritten too.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredRing {
    version: u32,
    kind: Kind,
    last: KeyId,
    keys: Vec<StoredKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredKey {
    id: KeyId,
    from: Moment,
    until: Moment,
    secret: Exposed,
}

/// A secret that is on its way to a store.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Exposed(String);

impl Drop for Exposed {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests;
