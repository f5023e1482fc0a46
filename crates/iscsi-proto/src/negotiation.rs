//! Operational keys (RFC 7143, section 13): what each side offers, what a responder answers,
//! and what an originator accepts.
//!
//! One table says for each key its kind and range; the result functions stand here. A key is
//! negotiated at most once in a login.

mod keys;
#[cfg(test)]
mod tests;

use alloc::{
    borrow::Cow,
    string::{String, ToString},
    vec::Vec,
};

use self::keys::{
    Digest, Flag, KEYS, Key, Kind, LEN_MAX, LEN_MIN, Number, PROTOCOL_LEVEL, PROTOCOL_LEVEL_MAX,
    TOLD_LEN_MAX, find,
};
use crate::text;

/// Whether a digest is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestPolicy {
    /// No digest.
    Never,
    /// What the peer prefers; an initiator prefers a digest.
    #[default]
    Allowed,
    /// No session without the digest.
    Required,
}

/// Parameters of a session: before a login what a side wants, after it what holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Longest data segment that this side takes, in bytes.
    pub max_recv_len: u32,
    /// Longest data segment that the peer takes, in bytes.
    pub max_send_len: u32,
    /// Longest sequence of solicited data or Data-In, in bytes.
    pub max_burst_len: u32,
    /// Most unsolicited data of one command, in bytes, immediate data included.
    pub first_burst_len: u32,
    /// No unsolicited Data-Out.
    pub initial_r2t: bool,
    /// Data may come with the command.
    pub immediate_data: bool,
    /// R2Ts of one command in flight.
    pub max_outstanding_r2t: u32,
    /// Headers carry CRC32C.
    pub header_digest: bool,
    /// Data segments carry CRC32C.
    pub data_digest: bool,
}

impl Params {
    /// What holds when nothing is negotiated.
    pub const DEFAULT: Self = Self {
        max_recv_len: 8192,
        max_send_len: 8192,
        max_burst_len: 262_144,
        first_burst_len: 65_536,
        initial_r2t: true,
        immediate_data: true,
        max_outstanding_r2t: 1,
        header_digest: false,
        data_digest: false,
    };
}

/// What one side wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// Longest data segment that this side takes, in bytes: 512 to 2^24 - 1.
    pub max_recv_len: u32,
    /// As [`Params::max_burst_len`].
    pub max_burst_len: u32,
    /// As [`Params::first_burst_len`].
    pub first_burst_len: u32,
    /// As [`Params::initial_r2t`].
    pub initial_r2t: bool,
    /// As [`Params::immediate_data`].
    pub immediate_data: bool,
    /// As [`Params::max_outstanding_r2t`].
    pub max_outstanding_r2t: u32,
    /// Header digest.
    pub header_digest: DigestPolicy,
    /// Data digest.
    pub data_digest: DigestPolicy,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            max_recv_len: 1 << 20,
            max_burst_len: 1 << 20,
            first_burst_len: 1 << 18,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 8,
            header_digest: DigestPolicy::Allowed,
            data_digest: DigestPolicy::Allowed,
        }
    }
}

/// What kind of session a login opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionType {
    /// SCSI commands.
    Normal,
    /// `SendTargets` only.
    Discovery,
}

/// Why a negotiation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The peer sent a key again.
    #[error("key {0} was negotiated twice")]
    Repeated(&'static str),
    /// The peer answered with a value that was not offered.
    #[error("key {key} was answered with '{value}', which was not offered")]
    BadAnswer {
        /// The key.
        key: &'static str,
        /// The answer, shortened.
        value: String,
    },
    /// The sides have no value in common.
    #[error("no value of key {0} suits both sides; change the digest policy")]
    NothingInCommon(&'static str),
}

/// One side's negotiation of one login.
#[derive(Debug, Clone)]
pub struct Negotiation {
    wishes: Wishes,
    params: Params,
    seen: u32,
    declared: bool,
}

impl Negotiation {
    /// A negotiation in which nothing was said yet.
    #[must_use]
    pub fn new(wishes: Wishes) -> Self {
        let params = Params { max_recv_len: wishes.max_recv_len, ..Params::DEFAULT };
        Self { wishes, params, seen: 0, declared: false }
    }

    /// A negotiation after the login, which left these parameters: for [`Self::answer_late`].
    #[must_use]
    pub fn resume(params: Params) -> Self {
        Self { wishes: Wishes::default(), params, seen: 0, declared: true }
    }

    /// What holds now.
    #[must_use]
    pub fn params(&self) -> Params {
        let mut params = self.params.clone();
        // FirstBurstLength may not exceed MaxBurstLength (RFC 7143, section 13.14), also when
        // only one of them was negotiated.
        params.first_burst_len = params.first_burst_len.min(params.max_burst_len);
        params
    }

    /// Appends this side's declaration of its own limit, once.
    pub fn declare(&mut self, out: &mut Vec<u8>) {
        if !self.declared {
            self.declared = true;
            text::push(out, "MaxRecvDataSegmentLength", &self.wishes.max_recv_len.to_string());
        }
    }

    /// Takes a key that the peer offered or declared, and appends this side's answer.
    ///
    /// # Errors
    /// When the key came before, or nothing suits both sides.
    pub fn answer(
        &mut self,
        name: &str,
        value: &str,
        session: SessionType,
        out: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        let Some((number, key)) = find(name) else {
            // Constants that answer an offer of ours, which never happens here, end the exchange.
            if !matches!(value, "NotUnderstood" | "Irrelevant" | "Reject") {
                text::push(out, name, "NotUnderstood");
            }
            return Ok(());
        };
        self.mark(number, key.name)?;
        if session == SessionType::Discovery && key.normal_only {
            text::push(out, name, "Irrelevant");
            return Ok(());
        }
        let answer = self.result(key.kind, value);
        match (key.kind, &answer) {
            (Kind::Digest(_), None) => return Err(NegotiationError::NothingInCommon(key.name)),
            (Kind::Declared | Kind::Told, Some(_)) => {}
            (_, answer) => text::push(out, name, answer.as_deref().unwrap_or("Reject")),
        }
        Ok(())
    }

    /// Takes a key that the peer sent after the login, where only its own limit may still change
    /// (RFC 7143, section 13.12), and appends what is answered: everything that is negotiated at
    /// login is refused, and stays as it is. Whether the limit has changed.
    pub fn answer_late(&mut self, name: &str, value: &str, out: &mut Vec<u8>) -> bool {
        let Some((_, key)) = find(name) else {
            text::push(out, name, "NotUnderstood");
            return false;
        };
        let taken = match key.kind {
            Kind::Declared | Kind::Told => self.result(key.kind, value).is_some(),
            Kind::Digest(_)
            | Kind::Min(..)
            | Kind::Max(..)
            | Kind::And(_)
            | Kind::Or(_)
            | Kind::Only(_)
            | Kind::Fixed(_)
            | Kind::Level => false,
        };
        if !taken {
            text::push(out, name, "Reject");
        }
        taken && matches!(key.kind, Kind::Declared)
    }

    /// The offers of an initiator.
    pub fn offer(&mut self, session: SessionType, out: &mut Vec<u8>) {
        for Key { name, kind, normal_only } in &KEYS {
            if *normal_only && session == SessionType::Discovery {
                continue;
            }
            match *kind {
                Kind::Digest(digest) => text::push(out, name, self.policy(digest).offer()),
                Kind::Declared => self.declare(out),
                Kind::And(flag) | Kind::Or(flag) => {
                    text::push(out, name, yes_no(self.wished_flag(flag)));
                }
                Kind::Min(number, ..) | Kind::Max(number, ..) => {
                    text::push(out, name, &self.wished_number(number).to_string());
                }
                Kind::Only(_) | Kind::Fixed(_) | Kind::Level | Kind::Told => {}
            }
        }
    }

    /// Takes the answer to a key that [`Self::offer`] offered, or the peer's declaration. Keys
    /// that this side did not offer are answered into `out`.
    ///
    /// # Errors
    /// When the key came before, or the answer is none that may be given.
    pub fn accept(
        &mut self,
        name: &str,
        value: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        let offered = find(name).filter(|(_, key)| match key.kind {
            Kind::Only(_) | Kind::Fixed(_) | Kind::Level | Kind::Told => false,
            Kind::Digest(_)
            | Kind::Declared
            | Kind::Min(..)
            | Kind::Max(..)
            | Kind::And(_)
            | Kind::Or(_) => true,
        });
        let Some((number, Key { name, kind, .. })) = offered else {
            return self.answer(name, value, SessionType::Normal, out);
        };
        self.mark(number, name)?;
        let digest = match *kind {
            Kind::Digest(digest) => Some(self.policy(digest)),
            Kind::Declared
            | Kind::Min(..)
            | Kind::Max(..)
            | Kind::And(_)
            | Kind::Or(_)
            | Kind::Only(_)
            | Kind::Fixed(_)
            | Kind::Level
            | Kind::Told => None,
        };
        if matches!(value, "Irrelevant" | "NotUnderstood" | "Reject") {
            return match digest {
                Some(DigestPolicy::Required) => Err(NegotiationError::NothingInCommon(name)),
                Some(DigestPolicy::Allowed | DigestPolicy::Never) | None => Ok(()),
            };
        }
        let given = self.result(*kind, value);
        // The result function is idempotent: an answer that it changes was never a right one.
        let same = given.as_deref().is_some_and(|given| given == value || number_eq(given, value));
        if same || (matches!(kind, Kind::Declared) && given.is_some()) {
            return Ok(());
        }
        if digest.is_some() {
            return Err(NegotiationError::NothingInCommon(name));
        }
        let value = value.chars().take(40).collect();
        Err(NegotiationError::BadAnswer { key: name, value })
    }

    fn mark(&mut self, number: usize, name: &'static str) -> Result<(), NegotiationError> {
        let bit = 1 << number;
        if self.seen & bit != 0 {
            return Err(NegotiationError::Repeated(name));
        }
        self.seen |= bit;
        Ok(())
    }

    /// Computes and keeps the result of `value` and this side's wish; `None` when there is none.
    fn result(&mut self, kind: Kind, value: &str) -> Option<Cow<'static, str>> {
        Some(match kind {
            Kind::Digest(digest) => {
                let on = self.policy(digest).choose(value)?;
                match digest {
                    Digest::Header => self.params.header_digest = on,
                    Digest::Data => self.params.data_digest = on,
                }
                Cow::Borrowed(if on { "CRC32C" } else { "None" })
            }
            Kind::Declared => {
                let len = text::number(value).filter(|len| (LEN_MIN..=LEN_MAX).contains(len))?;
                self.params.max_send_len = len;
                Cow::Borrowed("")
            }
            Kind::Min(number, low, high) | Kind::Max(number, low, high) => {
                let given = text::number(value).filter(|given| (low..=high).contains(given))?;
                let wish = self.wished_number(number);
                let result =
                    if matches!(kind, Kind::Max(..)) { given.max(wish) } else { given.min(wish) };
                match number {
                    Number::MaxBurst => self.params.max_burst_len = result,
                    Number::FirstBurst => self.params.first_burst_len = result,
                    Number::OutstandingR2T => self.params.max_outstanding_r2t = result,
                    Number::Constant(_) => {}
                }
                Cow::Owned(result.to_string())
            }
            Kind::And(flag) | Kind::Or(flag) => {
                let (given, wish) = (text::boolean(value)?, self.wished_flag(flag));
                let result =
                    if matches!(kind, Kind::And(_)) { given && wish } else { given || wish };
                match flag {
                    Flag::InitialR2T => self.params.initial_r2t = result,
                    Flag::ImmediateData => self.params.immediate_data = result,
                    Flag::InOrder => {}
                }
                Cow::Borrowed(yes_no(result))
            }
            Kind::Only(known) => {
                value.split(',').find(|item| *item == known)?;
                Cow::Borrowed(known)
            }
            Kind::Fixed(answer) => Cow::Borrowed(answer),
            Kind::Level => {
                let given = text::number(value).filter(|given| *given <= PROTOCOL_LEVEL_MAX)?;
                Cow::Owned(given.min(PROTOCOL_LEVEL).to_string())
            }
            Kind::Told => Cow::Borrowed(value_of_told(value)?),
        })
    }

    const fn policy(&self, digest: Digest) -> DigestPolicy {
        match digest {
            Digest::Header => self.wishes.header_digest,
            Digest::Data => self.wishes.data_digest,
        }
    }

    const fn wished_flag(&self, flag: Flag) -> bool {
        match flag {
            Flag::InitialR2T => self.wishes.initial_r2t,
            Flag::ImmediateData => self.wishes.immediate_data,
            Flag::InOrder => true,
        }
    }

    fn wished_number(&self, number: Number) -> u32 {
        match number {
            Number::MaxBurst => self.wishes.max_burst_len,
            Number::FirstBurst => self.wishes.first_burst_len.min(self.wishes.max_burst_len),
            Number::OutstandingR2T => self.wishes.max_outstanding_r2t,
            Number::Constant(value) => value,
        }
    }
}

/// What is told is kept nowhere.
const fn value_of_told(value: &str) -> Option<&'static str> {
    if value.len() <= TOLD_LEN_MAX { Some("") } else { None }
}

impl DigestPolicy {
    const fn offer(self) -> &'static str {
        match self {
            Self::Never => "None",
            Self::Allowed => "CRC32C,None",
            Self::Required => "CRC32C",
        }
    }

    /// The first of the peer's list that this side takes: whether it is a digest.
    fn choose(self, list: &str) -> Option<bool> {
        list.split(',').find_map(|item| match (item, self) {
            ("CRC32C", Self::Allowed | Self::Required) => Some(true),
            ("None", Self::Allowed | Self::Never) => Some(false),
            _ => None,
        })
    }
}

const fn yes_no(flag: bool) -> &'static str {
    if flag { "Yes" } else { "No" }
}

fn number_eq(left: &str, right: &str) -> bool {
    matches!((text::number(left), text::number(right)), (Some(left), Some(right)) if left == right)
}
