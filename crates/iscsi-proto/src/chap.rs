//! CHAP (RFC 1994, RFC 7143 section 12.1.3): the target proves that the initiator knows a secret.
//!
//! One-way only. The challenge is never shorter than the digest, and answers are compared in
//! constant time.

use alloc::{string::String, vec::Vec};
use core::fmt;

use md5::Digest as _;
use subtle::ConstantTimeEq as _;

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

/// Digest algorithms (`CHAP_A`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, which every implementation has.
    Md5,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    /// All algorithms, the preferred first.
    pub const PREFERENCE: [Self; 2] = [Self::Sha256, Self::Md5];

    /// Its number in `CHAP_A` (IANA, PPP authentication algorithms).
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
        }
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
            Self::Md5 => md5::Md5::new()
                .chain_update([identifier])
                .chain_update(&secret.0)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
            Self::Sha256 => sha2::Sha256::new()
                .chain_update([identifier])
                .chain_update(&secret.0)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
        }
    }

    /// Whether `answer` is the right one; takes the same time for every answer of one length.
    #[must_use]
    pub fn verify(self, identifier: u8, secret: &Secret, challenge: &[u8], answer: &[u8]) -> bool {
        self.answer(identifier, secret, challenge).ct_eq(answer).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    #[test]
    fn known_answers() {
        // md5 and sha256 of 0x01 "secret" 0xaa 0xbb, computed with coreutils.
        let secret = Secret::new(*b"secret").unwrap();
        let md5 = Algorithm::Md5.answer(1, &secret, &[0xaa, 0xbb]);
        let sha = Algorithm::Sha256.answer(1, &secret, &[0xaa, 0xbb]);
        assert_eq!(crate::text::to_hex(&md5), "0x52b84dd1a7253536d2f969cd661a25de");
        assert_eq!(
            crate::text::to_hex(&sha),
            "0xc779f2085cfc26ecbce7b258493f9eaae5c948256dc87839664bbfa69e08f43c"
        );
        assert!(Algorithm::Md5.verify(1, &secret, &[0xaa, 0xbb], &md5));
        assert!(!Algorithm::Md5.verify(2, &secret, &[0xaa, 0xbb], &md5));
        assert!(!Algorithm::Sha256.verify(1, &secret, &[0xaa, 0xbb], &md5));
        assert!(!Algorithm::Md5.verify(1, &secret, &[0xaa, 0xbb], &[]));
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
