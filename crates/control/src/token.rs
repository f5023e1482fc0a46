//! Capabilities: what a mediator lets one initiator do with one segment, in a form that the
//! segment's agent verifies alone, without a store and without asking anybody.
//!
//! A token goes to the client as a CHAP name and a secret, which every initiator knows how to use.
//! The name *is* the token: its bytes in base64url (docs/formats/token.md). The secret is derived
//! from the token's MAC under the key that mediator and agent share ([`keys`](crate::keys)). The
//! agent computes it anew from the name. So a name opens nothing by itself, a name that was changed
//! goes with another secret, which nobody knows, and a login's proof of the secret is a proof that
//! the mediator said what stands in the name.
//!
//! [`admit`] is the one way from a name to a [`Grant`]: it lets CHAP judge first, whatever the name,
//! and believes what the token says only then. Its [`Denied`] is for the audit log. What the peer
//! gets must be the same for all of them, login status 0x0201 (authentication failure), also where
//! the segment is not there: so nobody learns what there is.
//!
//! What is proven is that the secret is known. The initiator's name is what it says of itself: a
//! token is useless under another name, so that reservations and the audit log name its owner, but
//! name and secret together are as good as its owner to whoever lies about the name. CHAP signs and
//! hides nothing that follows.
//!
//! # Clocks
//!
//! Hosts of a cluster have the time in common up to [`SKEW_MS`]. An agent takes a token so much
//! before it begins, because its clock may be behind the mediator's; never after it has expired by
//! the agent's own clock. So a mediator that counts on nobody holding a token any more waits until
//! [`SKEW_MS`] after its end, or raises the segment's generation and waits for nothing.
//!
//! # Fencing
//!
//! A token is good for exactly one generation of its segment. One of an older generation is fenced.
//! One of a newer generation is refused too: a mediator raises it on the agent, durably, before
//! it hands out tokens for it. Running sessions ask again: [`Grant::still_holds`].
//!
//! One plan alone is taken back by its name: readers share a generation, so raising that would shut out
//! all of them. The agent keeps the name until the plan's tokens have ended, and [`admit`] asks for it.

use alloc::{format, string::String, vec::Vec};
use core::fmt;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use netraid_block::narrow;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

use crate::{
    clocks::{Difference, seconds},
    derived::{
        ByteRange, Lapsed, RANGES_MAX, Ranges, RangesError, Rights, Rule, RuleError, SECTOR_LEN,
        Terms,
    },
    keys::{KEY_LEN, Key, KeyFault, KeyId, Keyring, Ring, RootKey},
    units::{AgentId, Generation, MediatorId, Moment, PlanId, Rate, SegmentId},
};

/// Version of a token's bytes.
pub const TOKEN_VERSION: u8 = 1;
/// Characters of the longest name. RFC 7143 (section 6.1), open-iscsi and libiscsi end at 255; a
/// URL of libiscsi at 255 with the secret, the address and the rest.
pub const NAME_LEN_MAX: usize = (FIXED_LEN + RANGES_MAX * RANGE_LEN) / 3 * 4;
/// Characters of a secret: 144 bits.
pub const SECRET_LEN: usize = SECRET_BYTES / 3 * 4;
/// How far clocks of a cluster's hosts may be apart.
pub const SKEW_MS: u64 = 10_000;

/// Bytes of a token without ranges, and of each range.
const FIXED_LEN: usize = 123;
const RANGE_LEN: usize = 12;
/// Bytes of the MAC that make the secret.
const SECRET_BYTES: usize = 18;
/// The largest number that a field of 48 bits holds.
const MAX_48: u64 = (1 << 48) - 1;
/// What MACs of tokens are made for, and no other is.
const TOKEN_LABEL: &[u8] = b"netraid token\0";
/// The one flag.
const APPEND_ONLY: u8 = 1;

// Whole groups of base64: no bits are left over, and a token has one name only.
const _: () = assert!(FIXED_LEN.is_multiple_of(3) && RANGE_LEN.is_multiple_of(3));
const _: () = assert!(NAME_LEN_MAX <= 255 && SECRET_LEN >= 16 && SECRET_BYTES.is_multiple_of(3));

/// Who may use a token: an initiator's name, of which 16 bytes of a digest are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initiator([u8; 16]);

impl Initiator {
    /// The initiator of this name; case does not count (RFC 7143, section 4.2.7.1).
    #[must_use]
    pub fn named(name: &str) -> Self {
        let mut digest = Sha256::new();
        name.bytes().for_each(|byte| digest.update([byte.to_ascii_lowercase()]));
        let digest: [u8; 32] = digest.finalize().into();
        Self(core::array::from_fn(|at| digest[at]))
    }
}

/// mClock's numbers for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// What it gets whatever others do.
    pub floor: Rate,
    /// What it gets at most; no limit when there is none.
    pub limit: Option<Rate>,
    /// Its part of what is left, in proportion to others' weights. Not 0.
    pub weight: u16,
}

/// What one initiator may do with one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Who says so.
    pub mediator: MediatorId,
    /// The mediator's key under which it does. [`Token::issue`] sets it.
    pub key: KeyId,
    /// The one agent that it is for.
    pub agent: AgentId,
    /// The segment.
    pub segment: SegmentId,
    /// The transfer plan that it belongs to, for the audit log.
    pub plan: PlanId,
    /// The one initiator that it is for.
    pub initiator: Initiator,
    /// What it may do, until when.
    pub terms: Terms,
    /// How fast.
    pub rates: Rates,
    /// It holds from here on, or [`SKEW_MS`] before by the agent's clock.
    pub not_before: Moment,
}

/// What a token cannot say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// A moment that is too far.
    #[error("{} ms is beyond what a token holds, {MAX_48} ms", .0.0)]
    Far(Moment),
    /// A rate that is too large.
    #[error("{} bytes/s are more than a token holds, {MAX_48} bytes/s", .0.0)]
    Fast(Rate),
    /// A limit of nothing.
    #[error("a limit of 0 bytes/s; leave it out for none")]
    NoLimit,
    /// A floor that its limit forbids.
    #[error("a floor of {} bytes/s above the limit of {} bytes/s", floor.0, limit.0)]
    Floor {
        /// The floor.
        floor: Rate,
        /// The limit.
        limit: Rate,
    },
    /// No weight.
    #[error("a weight of 0; the least is 1")]
    Weight,
    /// No time at all.
    #[error("it would expire at {} ms, and begin at {} ms", expires.0, not_before.0)]
    Window {
        /// When it would begin.
        not_before: Moment,
        /// When it would end.
        expires: Moment,
    },
    /// Nothing is allowed.
    #[error("no rights")]
    Rights,
}

/// Why a name is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not base64url, or too long.
    #[error("not base64url of at most {NAME_LEN_MAX} characters")]
    Text,
    /// Not as many bytes as it says.
    #[error("{0} bytes are not a token's length")]
    Len(usize),
    /// Another version.
    #[error("version {0}; this program reads {TOKEN_VERSION}")]
    Version(u8),
    /// Bits that mean nothing are set.
    #[error("reserved bits are set")]
    Reserved,
    /// Ranges that are none.
    #[error("{0}")]
    Ranges(RangesError),
    /// Fields that no token has.
    #[error("{0}")]
    Fields(TokenError),
}

/// Why no token was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// It says what a token cannot.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// There is no key to sign with.
    #[error("no key signs at {} ms; rotate the keys", .0.0)]
    NoKey(Moment),
    /// The key ends before it.
    #[error(
        "it would expire at {} ms, after its key {key}, which ends at {} ms; ask for a shorter term",
        expires.0, until.0
    )]
    Term {
        /// When it would end.
        expires: Moment,
        /// The key that would sign.
        key: KeyId,
        /// When that ends.
        until: Moment,
    },
}

/// What goes to the client: a CHAP name and its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name, which is the token.
    pub name: String,
    /// The secret, which proves it.
    pub secret: Secret,
}

/// The secret that belongs to a token: [`SECRET_LEN`] characters of base64url. It shows nothing of
/// itself when printed, and is overwritten when it goes.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// The secret itself, for CHAP and for the client's eyes.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it is this one; takes the same time for every other of its length.
    #[must_use]
    pub fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// The secret of a token's bytes under a key.
    fn of(token: &[u8], key: &Key) -> Self {
        let mac = key.mac(&[TOKEN_LABEL, token]);
        Self(Base64UrlUnpadded::encode_string(&mac[..SECRET_BYTES]))
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl Token {
    /// Signs the token under the mediator's key of the moment, for the agent that it names.
    ///
    /// # Errors
    /// When it cannot be said, no key signs, or the key ends before the token does.
    pub fn issue(mut self, roots: &Ring<RootKey>, now: Moment) -> Result<Credentials, IssueError> {
        let signer = roots.signer(now).ok_or(IssueError::NoKey(now))?;
        let expires = self.terms.expires;
        if expires > signer.until {
            return Err(IssueError::Term { expires, key: signer.id, until: signer.until });
        }
        self.key = signer.id;
        let bytes = self.encode()?;
        let key = signer.key.of_agent(self.mediator, self.agent, signer.id);
        let secret = Secret::of(&bytes, &key);
        Ok(Credentials { name: Base64UrlUnpadded::encode_string(&bytes), secret })
    }

    /// What a name says, true or not: nothing of it is proven.
    ///
    /// # Errors
    /// When it is no token's name.
    pub fn from_name(name: &str) -> Result<Self, DecodeError> {
        Self::decode(&decode_name(name)?)
    }

    /// The token's bytes (docs/formats/token.md).
    ///
    /// # Errors
    /// When it says what a token cannot.
    pub fn encode(&self) -> Result<Vec<u8>, TokenError> {
        self.check()?;
        let ranges = self.terms.ranges.as_slice();
        let mut out = Vec::with_capacity(FIXED_LEN + ranges.len() * RANGE_LEN);
        let flags = if self.terms.append_only { APPEND_ONLY } else { 0 };
        let count = narrow(ranges.len());
        out.extend([TOKEN_VERSION, self.terms.rights.bits(), flags, count]);
        out.extend(self.key.0.to_le_bytes());
        for id in [self.mediator.0, self.agent.0, self.segment.0, self.plan.0, self.initiator.0] {
            out.extend(id);
        }
        out.extend(self.terms.generation.0.to_le_bytes());
        let limit = self.rates.limit.unwrap_or(Rate::ZERO);
        for number in [self.not_before.0, self.terms.expires.0, self.rates.floor.0, limit.0] {
            put_48(&mut out, number);
        }
        out.extend(self.rates.weight.to_le_bytes());
        out.push(0);
        for range in ranges {
            put_48(&mut out, range.offset / SECTOR_LEN);
            put_48(&mut out, range.len / SECTOR_LEN);
        }
        Ok(out)
    }

    /// The token of these bytes. What [`Token::encode`] gives is read, and nothing else.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader { rest: bytes, len: bytes.len() };
        let [version, rights, flags, count] = reader.take()?;
        if version != TOKEN_VERSION {
            return Err(DecodeError::Version(version));
        }
        let count = usize::from(count);
        if count > RANGES_MAX {
            return Err(DecodeError::Ranges(RangesError::TooMany(count)));
        }
        if bytes.len() != FIXED_LEN + count * RANGE_LEN {
            return Err(DecodeError::Len(bytes.len()));
        }
        let rights = Rights::from_bits(rights).ok_or(DecodeError::Reserved)?;
        let key = KeyId(u32::from_le_bytes(reader.take()?));
        let mediator = MediatorId(reader.take()?);
        let agent = AgentId(reader.take()?);
        let segment = SegmentId(reader.take()?);
        let plan = PlanId(reader.take()?);
        let initiator = Initiator(reader.take()?);
        let generation = Generation(u64::from_le_bytes(reader.take()?));
        let not_before = Moment(reader.take_48()?);
        let expires = Moment(reader.take_48()?);
        let floor = Rate(reader.take_48()?);
        let limit = Some(Rate(reader.take_48()?)).filter(|limit| *limit != Rate::ZERO);
        let weight = u16::from_le_bytes(reader.take()?);
        let [reserved] = reader.take()?;
        if reserved != 0 || flags & !APPEND_ONLY != 0 {
            return Err(DecodeError::Reserved);
        }
        let ranges = reader.take_ranges(count)?;
        let append_only = flags & APPEND_ONLY != 0;
        let terms = Terms { ranges, rights, append_only, generation, expires };
        let rates = Rates { floor, limit, weight };
        let token =
            Self { mediator, key, agent, segment, plan, initiator, terms, rates, not_before };
        token.check().map_err(DecodeError::Fields)?;
        Ok(token)
    }

    /// Whether it says only what a token can.
    fn check(&self) -> Result<(), TokenError> {
        let Rates { floor, limit, weight } = self.rates;
        let (not_before, expires) = (self.not_before, self.terms.expires);
        if let Some(far) = [not_before, expires].into_iter().find(|moment| moment.0 > MAX_48) {
            return Err(TokenError::Far(far));
        }
        let rates = [floor, limit.unwrap_or_default()];
        if let Some(fast) = rates.into_iter().find(|rate| rate.0 > MAX_48) {
            return Err(TokenError::Fast(fast));
        }
        match limit {
            Some(Rate::ZERO) => return Err(TokenError::NoLimit),
            Some(limit) if limit < floor => return Err(TokenError::Floor { floor, limit }),
            Some(_) | None => {}
        }
        if weight == 0 {
            return Err(TokenError::Weight);
        }
        if not_before >= expires {
            return Err(TokenError::Window { not_before, expires });
        }
        if self.terms.rights == Rights::NONE {
            return Err(TokenError::Rights);
        }
        Ok(())
    }
}

/// What an agent knows when an initiator logs in.
#[derive(Clone, Copy)]
pub struct AgentView<'a> {
    /// Who it is.
    pub agent: AgentId,
    /// The keys that it shares with its mediators.
    pub keys: &'a Keyring,
    /// Its segments, by whose they are: mediators that share an agent do not know each other's, and
    /// may use the same id.
    pub segment: &'a dyn Fn(MediatorId, SegmentId) -> Option<SegmentInfo>,
    /// Whether a mediator has taken this plan back before its tokens end.
    pub is_revoked: &'a dyn Fn(MediatorId, PlanId) -> bool,
}

/// What a token is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its generation.
    pub generation: Generation,
    /// Its bytes.
    pub capacity: u64,
    /// Bytes of a logical block.
    pub block_len: u32,
}

/// Why nothing was granted: for the audit log alone, the peer gets one answer for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The name is no token.
    #[error("the name is no token: {0}")]
    Name(DecodeError),
    /// The token says another agent; whether the secret is known was not asked.
    #[error("the token is for agent {0}")]
    OtherAgent(AgentId),
    /// There is no key to verify it by.
    #[error("{0}")]
    Key(KeyFault),
    /// The secret is not known to who logs in: it is not theirs, or the name was changed.
    #[error("the secret of the token was not proven")]
    Unproven,
    /// The token belongs to another initiator.
    #[error("the token is for another initiator")]
    OtherInitiator,
    /// Its plan was taken back.
    #[error("plan {0} of the token was taken back by its mediator")]
    Revoked(PlanId),
    /// It does not hold yet.
    #[error("the token begins at {} ms", .0.0)]
    NotYet(Moment),
    /// It has expired, is fenced, or its segment is not there.
    #[error("{0}")]
    Lapsed(#[from] Lapsed),
    /// It names what its segment does not have.
    #[error("{0}")]
    Rule(#[from] RuleError),
}

impl Denied {
    /// What whoever gave the token is told of it: nothing, unless the secret of the token was proven to be known, since then
    /// they know all that this says but the agent's clock and the segment's generation. `now` is by the agent's clock,
    /// which is off the mediator's by so much, where that is known.
    #[must_use]
    pub fn told(&self, now: Moment, off: Option<Difference>) -> Option<String> {
        match self {
            // Whoever stole a token is not told whose name to give.
            Self::Name(_)
            | Self::OtherAgent(_)
            | Self::Key(_)
            | Self::Unproven
            | Self::OtherInitiator => None,
            Self::Revoked(plan) => Some(format!(
                "plan {plan} was taken back by the mediator: it was ended, or its access was revoked; open the volume again"
            )),
            Self::NotYet(begins) => Some(format!(
                "its token begins in {} s by the agent's clock{}",
                seconds(begins.since_ms(now)),
                because(
                    off.filter(|off| off.ahead_ms < 0),
                    "which is behind the mediator's; set the agent's clock"
                )
            )),
            Self::Lapsed(Lapsed::Expired { at }) => Some(format!(
                "its token ended {} s ago by the agent's clock{}",
                seconds(now.since_ms(*at)),
                because(
                    off.filter(|off| off.ahead_ms > 0),
                    "and was not renewed in time; open the volume again"
                )
            )),
            Self::Lapsed(Lapsed::Fenced { granted, current }) => Some(format!(
                "its plan is fenced: it is of generation {} of the volume, and the agent has generation {}; somebody \
                 else has opened the volume since, or its plan was ended: open it again",
                granted.0, current.0
            )),
            Self::Lapsed(Lapsed::Absent) => Some(String::from(
                "the agent has no such segment: the volume was removed, or its member was replaced",
            )),
            Self::Rule(error) => Some(format!("its token does not fit the segment: {error}")),
        }
    }
}

/// Why a time does not fit: by the clock, where that is known to be off, else what is likely.
fn because(off: Option<Difference>, likely: &str) -> String {
    match off.filter(|off| off.is_told()) {
        Some(off) => format!(": {off}"),
        None => format!(", {likely}"),
    }
}

/// A token that was proven and holds, and the rule that it makes for its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    token: Token,
    rule: Rule,
}

impl Grant {
    /// What was granted.
    #[must_use]
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// What each request of the session is held against.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Whether the session may go on, given the segment's generation, or none when it is gone. To be
    /// asked whenever that changes, and when [`Grant::expires`]; [`Rule::judge`] asks at each
    /// request too. When a key is taken back, the sessions of its tokens are to be ended as well.
    ///
    /// # Errors
    /// When it may not.
    pub fn still_holds(&self, now: Moment, generation: Option<Generation>) -> Result<(), Lapsed> {
        self.rule.holds(generation.ok_or(Lapsed::Absent)?, now)
    }

    /// When the session ends unless it logs in with a newer token.
    #[must_use]
    pub const fn expires(&self) -> Moment {
        self.token.terms.expires
    }
}

/// Grants what a name says to the initiator that gave it, if that is true and holds. `proves` asks
/// CHAP whether the initiator knows this secret; it is asked exactly once, whatever the name is, so
/// that all names take the same steps.
///
/// # Errors
/// When nothing is granted: the reason is for the audit log.
pub fn admit(
    name: &str,
    initiator: &str,
    view: &AgentView<'_>,
    now: Moment,
    proves: impl FnOnce(&Secret) -> bool,
) -> Result<Grant, Denied> {
    let bytes = decode_name(name);
    let token = bytes.as_ref().map_err(|error| *error).and_then(|bytes| Token::decode(bytes));
    let claim = claim(token, view, now);
    // A claim that nothing can come of is worked on all the same, and with a key that anybody could
    // use: what comes out does not count.
    let nobody = Key::new(&[0; KEY_LEN]);
    let key = claim.as_ref().map_or(&nobody, |(_, key)| *key);
    let signed = bytes.as_ref().map_or(name.as_bytes(), |bytes| bytes.as_slice());
    let proven = proves(&Secret::of(signed, key));
    let (token, _) = claim?;
    if !proven {
        return Err(Denied::Unproven);
    }
    hold(token, initiator, view, now)
}

/// A token that this agent may verify, and the key for it.
fn claim<'a>(
    token: Result<Token, DecodeError>,
    view: &AgentView<'a>,
    now: Moment,
) -> Result<(Token, &'a Key), Denied> {
    let token = token.map_err(Denied::Name)?;
    if token.agent != view.agent {
        return Err(Denied::OtherAgent(token.agent));
    }
    let key = view.keys.verifier(token.mediator, token.key, now).map_err(Denied::Key)?;
    Ok((token, key))
}

/// Whether a proven token holds here and now.
fn hold(token: Token, initiator: &str, view: &AgentView<'_>, now: Moment) -> Result<Grant, Denied> {
    if token.initiator != Initiator::named(initiator) {
        return Err(Denied::OtherInitiator);
    }
    if (view.is_revoked)(token.mediator, token.plan) {
        return Err(Denied::Revoked(token.plan));
    }
    if now.after_ms(SKEW_MS) < token.not_before {
        return Err(Denied::NotYet(token.not_before));
    }
    // Proven by a key of this mediator: it says whose segment is meant.
    let segment = (view.segment)(token.mediator, token.segment).ok_or(Lapsed::Absent)?;
    let rule = Rule::new(token.terms, segment.capacity, segment.block_len)?;
    rule.holds(segment.generation, now)?;
    assert_eq!(token.agent, view.agent, "a token of this agent's is granted");
    assert!(rule.capacity() <= segment.capacity, "no more is granted than there is");
    Ok(Grant { token, rule })
}

fn decode_name(name: &str) -> Result<Vec<u8>, DecodeError> {
    if name.len() > NAME_LEN_MAX {
        return Err(DecodeError::Text);
    }
    Base64UrlUnpadded::decode_vec(name).map_err(|_| DecodeError::Text)
}

fn put_48(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes()[..6]);
}

/// Bytes that are left to read.
struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Len(self.len))?;
        self.rest = rest;
        Ok(*head)
    }

    fn take_48(&mut self) -> Result<u64, DecodeError> {
        let low: [u8; 6] = self.take()?;
        Ok(low.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn take_ranges(&mut self, count: usize) -> Result<Ranges, DecodeError> {
        let mut ranges = [ByteRange::default(); RANGES_MAX];
        for range in &mut ranges[..count] {
            let (sector, sectors) = (self.take_48()?, self.take_48()?);
            // 48 bits of sectors are 57 bits of bytes.
            *range = ByteRange { offset: sector * SECTOR_LEN, len: sectors * SECTOR_LEN };
        }
        Ranges::new(&ranges[..count]).map_err(DecodeError::Ranges)
    }
}

#[cfg(test)]
mod tests;
