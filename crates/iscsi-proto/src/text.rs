//! Text of login and text PDUs: `key=value` pairs, each ended by a zero byte (RFC 7143, section 6.1).
//!
//! Everything read here was sent by a peer: lengths and counts are bounded before anything is
//! kept.

use alloc::{string::String, vec::Vec};

/// Longest text of one negotiation step, over all PDUs that continue it.
pub const TEXT_LEN_MAX: usize = 16 * 1024;
/// Longest key name (RFC 7143, section 6.1).
const KEY_LEN_MAX: usize = 63;
/// Most pairs in one negotiation step.
const PAIRS_MAX: usize = 128;
/// Longest binary value that anything here accepts.
const BINARY_LEN_MAX: usize = 1024;

/// Why a text was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text goes on and on.
    #[error("text is longer than {TEXT_LEN_MAX} bytes")]
    TooLong,
    /// Too many pairs.
    #[error("text has more than {PAIRS_MAX} pairs")]
    TooMany,
    /// Not `key=value` in UTF-8 ended by zero bytes.
    #[error("text is not a list of key=value pairs")]
    Malformed,
}

/// Collects a text that several PDUs continue (C bit).
#[derive(Debug, Default)]
pub struct Collector {
    bytes: Vec<u8>,
}

impl Collector {
    /// Appends the data segment of one PDU.
    ///
    /// # Errors
    /// When the text becomes longer than [`TEXT_LEN_MAX`].
    pub fn add(&mut self, data: &[u8]) -> Result<(), TextError> {
        if self.bytes.len() + data.len() > TEXT_LEN_MAX {
            return Err(TextError::TooLong);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// The text so far; the collector is empty after.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.bytes)
    }
}

/// Reads the pairs of a complete text.
///
/// # Errors
/// When it is malformed, or has too many pairs.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let mut found = Vec::new();
    for pair in pairs(text) {
        if found.len() == PAIRS_MAX {
            return Err(TextError::TooMany);
        }
        found.push(pair?);
    }
    Ok(found)
}

/// The key by which a target of ours says in a refusal why a login is refused that proved itself, in words for people:
/// others pass over what follows a status that is none of success.
pub const REFUSAL_KEY: &str = "X-io.netraid.refusal";
/// Bytes of that, at most.
pub const REFUSAL_LEN_MAX: usize = 512;

/// The pairs of a complete text of any length, one by one.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = Result<(&str, &str), TextError>> {
    // Empty items are padding that some initiators count into the data segment.
    text.split(|byte| *byte == 0).filter(|item| !item.is_empty()).map(|item| {
        let item = core::str::from_utf8(item).map_err(|_| TextError::Malformed)?;
        let (key, value) = item.split_once('=').ok_or(TextError::Malformed)?;
        let good = !key.is_empty() && key.len() <= KEY_LEN_MAX;
        if good { Ok((key, value)) } else { Err(TextError::Malformed) }
    })
}

/// The value of a key, when it is there.
#[must_use]
pub fn value<'a>(pairs: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

/// Appends `key=value` and its zero byte.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// A number: decimal, or hexadecimal after `0x`.
#[must_use]
pub fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            u32::from_str_radix(digits, 16).ok()
        }
        None if value.bytes().all(|digit| digit.is_ascii_digit()) => value.parse().ok(),
        Some(_) | None => None,
    }
}

/// `Yes` or `No`.
#[must_use]
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// A binary value: hexadecimal after `0x` or base64 after `0b` (RFC 7143, section 6.1).
#[must_use]
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let (prefix, rest) = value.split_at_checked(2)?;
    if rest.len() > 2 * BINARY_LEN_MAX {
        return None;
    }
    match prefix {
        "0x" | "0X" => hex(rest.as_bytes()),
        "0b" | "0B" => base64(rest.as_bytes()),
        _ => None,
    }
}

fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    // An odd number of digits stands for a leading zero.
    let (head, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    for byte in head {
        bytes.push(digit(*byte)?);
    }
    for pair in pairs.chunks_exact(2) {
        bytes.push(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(bytes)
}

fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    let end = digits.iter().position(|byte| *byte == b'=').unwrap_or(digits.len());
    if digits.len() - end > 2 || digits[end..].iter().any(|byte| *byte != b'=') {
        return None;
    }
    let mut bytes = Vec::with_capacity(end);
    let (mut value, mut bits) = (0_u32, 0);
    for byte in &digits[..end] {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        value = (value << 6 | u32::from(digit)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(value >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// `bytes` as a hexadecimal value.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn reads_pairs_and_refuses_the_rest() {
        assert_eq!(parse(b"A=1\0B=x=y\0\0C=\0").unwrap(), [("A", "1"), ("B", "x=y"), ("C", "")]);
        assert_eq!(parse(b"novalue\0"), Err(TextError::Malformed));
        assert_eq!(parse(b"=x\0"), Err(TextError::Malformed));
        assert_eq!(parse(&[b'a', 0xff, b'=']), Err(TextError::Malformed));
        assert_eq!(parse(&b"k=v\0".repeat(129)), Err(TextError::TooMany));
        let mut collector = Collector::default();
        collector.add(&vec![b'x'; TEXT_LEN_MAX]).unwrap();
        assert_eq!(collector.add(b"y"), Err(TextError::TooLong));
    }

    #[test]
    fn reads_numbers_and_binary() {
        assert_eq!(
            (number("0x10"), number("262144"), number("-1")),
            (Some(16), Some(262_144), None)
        );
        assert_eq!(number("4294967296"), None);
        // RFC 7143, section 6.1: no signs.
        assert_eq!(
            (number("+1"), number("0x+1"), number(""), number("0x")),
            (None, None, None, None)
        );
        assert_eq!(binary("0xAbC"), Some(vec![0x0a, 0xbc]));
        assert_eq!(binary("0bTWFu"), Some(b"Man".to_vec()));
        assert_eq!(binary("0bTWE="), Some(b"Ma".to_vec()));
        assert_eq!(binary("0bTQ=="), Some(b"M".to_vec()));
        for bad in ["", "0", "10", "0xzz", "0bT===", "0b=A", "0b!"] {
            assert_eq!(binary(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn hex_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(binary(&to_hex(&bytes)), Some(bytes));
        }

        #[test]
        fn random_text_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), text in ".{0,40}") {
            let _ = parse(&bytes);
            let _ = (binary(&text), number(&text), boolean(&text));
        }
    }
}
