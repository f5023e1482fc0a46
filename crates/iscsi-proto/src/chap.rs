//! CHAP (RFC 1994, RFC 7143 sections 9.2.1 and 12.1.3): one side proves that it knows a secret, or
//! each side proves that it knows its own.
//!
//! [`Challenge`] is what a side asks, [`Question`] what it is asked. A login in which both are
//! proven uses two secrets: [`check_distinct`] refuses one for both directions, with which a peer
//! could have its question answered by whom it asks. Answers are compared in constant time.
//!
//! CHAP proves who logs in, and nothing after that: it neither hides nor signs what follows.

use alloc::{
    string::{String, ToString as _},
    vec::Vec,
};
use core::fmt;

use subtle::ConstantTimeEq as _;

use crate::text;

/// Bytes of a challenge that a target sends.
pub const CHALLENGE_LEN: usize = 32;

/// A CHAP secret. It shows nothing of itself when printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Why a secret was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("chap secret of {len} bytes: 1 to 255 are possible; use 12 to 32")]
pub struct SecretError {
    len: usize,
}

impl Secret {
    /// A secret of 1 to 255 bytes.
    ///
    /// # Errors
    /// When it has another length.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = bytes.into();
        match bytes.len() {
            1..=255 => Ok(Self(bytes)),
            len => Err(SecretError { len }),
        }
    }

    /// Its length in bytes: 1 to 255.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The secret itself, for whoever has to prove it: not to be shown.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Whether the secret is shorter than the 96 bits that RFC 7143 (section 9.2.1) demands
    /// outside IPsec.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.len() < 12
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// A user name and its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// CHAP name (`CHAP_N`).
    pub user: String,
    /// What both sides know.
    pub secret: Secret,
}

/// Why a proof was refused, or none can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChapError {
    /// Keys are missing, or their values cannot be read.
    #[error("chap keys are missing or cannot be read")]
    Malformed,
    /// The peer asks what it was asked.
    #[error("the peer sent this side's own challenge back")]
    Reflected,
    /// Wrong name, or wrong answer.
    #[error("the peer gave a wrong name or answer")]
    Wrong,
    /// Both directions have one secret.
    #[error("both directions of chap have the same secret; give each its own")]
    SameSecret,
}

/// Checks that a login in which both sides prove themselves uses two secrets (RFC 7143, section
/// 9.2.1).
///
/// # Errors
/// [`ChapError::SameSecret`] when it does not.
pub fn check_distinct(one: &Credentials, other: &Credentials) -> Result<(), ChapError> {
    let same: bool = one.secret.0.ct_eq(&other.secret.0).into();
    if same { Err(ChapError::SameSecret) } else { Ok(()) }
}

/// What this side asks the other: identifier and random bytes, new for each login.
#[derive(Clone)]
pub struct Challenge {
    /// `CHAP_I`.
    pub identifier: u8,
    /// `CHAP_C`.
    pub bytes: [u8; CHALLENGE_LEN],
}

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Challenge(***)")
    }
}

impl Challenge {
    /// Appends `CHAP_I` and `CHAP_C`.
    pub fn push(&self, out: &mut Vec<u8>) {
        text::push(out, "CHAP_I", &self.identifier.to_string());
        text::push(out, "CHAP_C", &text::to_hex(&self.bytes));
    }

    /// Checks the peer's `CHAP_N` and `CHAP_R` against all that may be it.
    ///
    /// # Errors
    /// When a key is missing, or name or answer are wrong.
    pub fn verify(
        &self,
        algorithm: Algorithm,
        known: &[Credentials],
        pairs: &[(&str, &str)],
    ) -> Result<(), ChapError> {
        let answer = text::value(pairs, "CHAP_R").and_then(text::binary);
        let (Some(user), Some(answer)) = (text::value(pairs, "CHAP_N"), answer) else {
            return Err(ChapError::Malformed);
        };
        let named = known.iter().find(|one| one.user == user);
        // One digest is computed for a wrong name too, so that both take the same time.
        let Some(one) = named.or(known.first()) else { return Err(ChapError::Wrong) };
        let right = algorithm.verify(self.identifier, &one.secret, &self.bytes, &answer);
        if right && named.is_some() { Ok(()) } else { Err(ChapError::Wrong) }
    }
}

/// What the peer asks this side.
#[derive(Clone)]
pub struct Question {
    identifier: u8,
    bytes: Vec<u8>,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Question(***)")
    }
}

impl Question {
    /// Reads `CHAP_I` and `CHAP_C`; `None` when neither is there.
    ///
    /// # Errors
    /// When one is missing, or cannot be read.
    pub fn read(pairs: &[(&str, &str)]) -> Result<Option<Self>, ChapError> {
        let (identifier, bytes) = match (text::value(pairs, "CHAP_I"), text::value(pairs, "CHAP_C"))
        {
            (None, None) => return Ok(None),
            (Some(identifier), Some(bytes)) => (text::number(identifier), text::binary(bytes)),
            (Some(_), None) | (None, Some(_)) => return Err(ChapError::Malformed),
        };
        let identifier = identifier.and_then(|number| u8::try_from(number).ok());
        let bytes = bytes.filter(|bytes| !bytes.is_empty());
        let (Some(identifier), Some(bytes)) = (identifier, bytes) else {
            return Err(ChapError::Malformed);
        };
        Ok(Some(Self { identifier, bytes }))
    }

    /// Appends `CHAP_N` and `CHAP_R`: who this side is, and the proof. `asked` is what this side
    /// asked in the same login.
    ///
    /// # Errors
    /// When the peer asks what it was asked (RFC 7143, section 12.1.3).
    pub fn answer(
        &self,
        algorithm: Algorithm,
        own: &Credentials,
        asked: Option<&Challenge>,
        out: &mut Vec<u8>,
    ) -> Result<(), ChapError> {
        if asked.is_some_and(|asked| asked.bytes[..] == self.bytes[..]) {
            return Err(ChapError::Reflected);
        }
        let answer = algorithm.answer(self.identifier, &own.secret, &self.bytes);
        text::push(out, "CHAP_N", &own.user);
        text::push(out, "CHAP_R", &text::to_hex(&answer));
        Ok(())
    }
}

/// Digest algorithms (`CHAP_A`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, which every implementation has.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA3-256.
    Sha3,
}

impl Algorithm {
    /// All algorithms, the preferred first.
    pub const PREFERENCE: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// Its number in `CHAP_A` (IANA, PPP authentication algorithms).
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
            Self::Sha3 => 8,
        }
    }

    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha3 => "sha3-256",
        }
    }

    /// The algorithm with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::PREFERENCE.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The first of a list in `CHAP_A` that is one of `allowed`: the peer's order counts (RFC 7143,
    /// section 12.1.3).
    #[must_use]
    pub fn choose(list: &str, allowed: &[Self]) -> Option<Self> {
        let known = |item| text::number(item).and_then(Self::from_number);
        list.split(',').filter_map(known).find(|algorithm| allowed.contains(algorithm))
    }

    /// The algorithm with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::PREFERENCE.into_iter().find(|algorithm| algorithm.number() == number)
    }

    /// The answer to a challenge: digest of identifier, secret and challenge.
    #[must_use]
    pub fn answer(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => digest::<md5::Md5>(identifier, secret, challenge),
            Self::Sha1 => digest::<sha1::Sha1>(identifier, secret, challenge),
            Self::Sha256 => digest::<sha2::Sha256>(identifier, secret, challenge),
            Self::Sha3 => digest::<sha3::Sha3_256>(identifier, secret, challenge),
        }
    }

    /// Whether `answer` is the right one; takes the same time for every answer of one length.
    #[must_use]
    pub fn verify(self, identifier: u8, secret: &Secret, challenge: &[u8], answer: &[u8]) -> bool {
        self.answer(identifier, secret, challenge).ct_eq(answer).into()
    }
}

fn digest<D: md5::Digest>(identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
    let digest = D::new().chain_update([identifier]).chain_update(&secret.0);
    digest.chain_update(challenge).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    #[test]
    fn known_answers() {
        // md5, sha256 and sha3-256 of 0x01 "secret" 0xaa 0xbb, computed with coreutils and openssl.
        let secret = Secret::new(*b"secret").unwrap();
        let md5 = Algorithm::Md5.answer(1, &secret, &[0xaa, 0xbb]);
        let sha = Algorithm::Sha256.answer(1, &secret, &[0xaa, 0xbb]);
        assert_eq!(crate::text::to_hex(&md5), "0x52b84dd1a7253536d2f969cd661a25de");
        assert_eq!(
            crate::text::to_hex(&sha),
            "0xc779f2085cfc26ecbce7b258493f9eaae5c948256dc87839664bbfa69e08f43c"
        );
        let sha1 = Algorithm::Sha1.answer(1, &secret, &[0xaa, 0xbb]);
        assert_eq!(crate::text::to_hex(&sha1), "0xa71b07f33bbbe3cec7d153e052bd8e9167cb19d5");
        let sha3 = Algorithm::Sha3.answer(1, &secret, &[0xaa, 0xbb]);
        assert_eq!(
            crate::text::to_hex(&sha3),
            "0x1660fd124190cfd97424ae3fcaba39ee56ac1bec04a7d56220a7a0b2940271f9"
        );
        assert!(Algorithm::Md5.verify(1, &secret, &[0xaa, 0xbb], &md5));
        assert!(!Algorithm::Md5.verify(2, &secret, &[0xaa, 0xbb], &md5));
        assert!(!Algorithm::Sha256.verify(1, &secret, &[0xaa, 0xbb], &md5));
        assert!(!Algorithm::Md5.verify(1, &secret, &[0xaa, 0xbb], &[]));
    }

    fn credentials(user: &str, secret: &str) -> Credentials {
        Credentials { user: user.into(), secret: Secret::new(secret).unwrap() }
    }

    #[test]
    fn a_question_is_answered_but_not_ones_own() {
        let joe = credentials("joe", "joe's own secret");
        let challenge = Challenge { identifier: 9, bytes: [3; CHALLENGE_LEN] };
        let mut asked = Vec::new();
        challenge.push(&mut asked);
        let question = Question::read(&text::parse(&asked).unwrap()).unwrap().unwrap();
        for algorithm in Algorithm::PREFERENCE {
            let mut proof = Vec::new();
            question.answer(algorithm, &joe, None, &mut proof).unwrap();
            let pairs = text::parse(&proof).unwrap();
            let jim = credentials("jim", "joe's own secret");
            let other = credentials("joe", "quite another one");
            let verify = |known: &[&Credentials], pairs: &[(&str, &str)]| {
                let known: Vec<_> = known.iter().map(|one| (*one).clone()).collect();
                challenge.verify(algorithm, &known, pairs)
            };
            assert_eq!(verify(&[&joe], &pairs), Ok(()));
            assert_eq!(verify(&[&jim, &joe], &pairs), Ok(()), "each of several");
            assert_eq!(verify(&[&jim], &pairs), Err(ChapError::Wrong));
            assert_eq!(verify(&[&jim, &other], &pairs), Err(ChapError::Wrong));
            assert_eq!(verify(&[], &pairs), Err(ChapError::Wrong));
            assert_eq!(verify(&[&joe], &pairs[..1]), Err(ChapError::Malformed));
        }
        // RFC 7143, section 12.1.3: a challenge that comes back is refused.
        let mut out = Vec::new();
        let reflected = question.answer(Algorithm::Md5, &joe, Some(&challenge), &mut out);
        assert_eq!((reflected, out.len()), (Err(ChapError::Reflected), 0));
    }

    #[test]
    fn the_peers_order_decides_and_what_is_allowed_bounds_it() {
        use Algorithm::{Md5, Sha1, Sha3, Sha256};
        let all = &Algorithm::PREFERENCE[..];
        for (list, allowed, chosen) in [
            ("5,6,7,8", all, Some(Md5)),
            ("8,7,6,5", all, Some(Sha3)),
            ("6,5", all, Some(Sha1)),
            ("1,x,,0x7,5", all, Some(Sha256)),
            ("5,6,7", &[Sha3, Sha256][..], Some(Sha256)),
            ("5,6", &[Sha3, Sha256], None),
            ("", all, None),
        ] {
            assert_eq!(Algorithm::choose(list, allowed), chosen, "{list}");
        }
        for algorithm in Algorithm::PREFERENCE {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        }
    }

    #[test]
    fn questions_are_read_whole_or_not_at_all() {
        let read = |pairs: &[(&str, &str)]| Question::read(pairs).map(|found| found.is_some());
        assert_eq!(read(&[("CHAP_N", "joe")]), Ok(false));
        assert_eq!(read(&[("CHAP_I", "255"), ("CHAP_C", "0x00")]), Ok(true));
        assert_eq!(read(&[("CHAP_I", "256"), ("CHAP_C", "0x00")]), Err(ChapError::Malformed));
        assert_eq!(read(&[("CHAP_I", "1"), ("CHAP_C", "0x")]), Err(ChapError::Malformed));
        assert_eq!(read(&[("CHAP_I", "1")]), Err(ChapError::Malformed));
        assert_eq!(read(&[("CHAP_C", "0x00")]), Err(ChapError::Malformed));
    }

    #[test]
    fn one_secret_for_both_directions_is_refused() {
        let joe = credentials("joe", "one secret for both");
        let target = credentials("target", "one secret for both");
        assert_eq!(check_distinct(&joe, &target), Err(ChapError::SameSecret));
        assert_eq!(check_distinct(&joe, &credentials("joe", "another secret of")), Ok(()));
    }

    #[test]
    fn secrets_have_bounds_and_hide() {
        assert!(Secret::new(vec![]).is_err() && Secret::new(vec![0; 256]).is_err());
        let secret = Secret::new(*b"elevenbytes").unwrap();
        assert!(secret.is_short());
        let credentials = Credentials { user: "u".into(), secret };
        assert!(!format!("{credentials:?}").contains("eleven"));
    }
}
