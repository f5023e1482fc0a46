//! What is kept of a sanitize operation until it has succeeded (docs/formats/sanitize.md).

use alloc::vec::Vec;
use core::fmt;

use crc::{CRC_32_ISCSI, Crc};
use netraid_block::narrow;

const MAGIC: [u8; 8] = *b"NRSANIT\0";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 16;
const CRC_LEN: usize = 4;
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

const METHOD_OVERWRITE: u8 = 1;
const METHOD_BLOCK_ERASE: u8 = 2;
const FLAG_UNRESTRICTED: u8 = 1 << 0;
const FLAG_FAILED: u8 = 1 << 1;
const FLAG_INVERT: u8 = 1 << 2;

/// How everything is made unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// Written over.
    Overwrite {
        /// 1 byte to one logical block; each block begins with its first byte.
        pattern: Vec<u8>,
        /// 1 to 31.
        passes: u8,
        /// Inverted from pass to pass; the last one writes it as it is.
        invert: bool,
    },
    /// Unmapped, and read as zeros.
    BlockErase,
}

/// What has to be kept of a sanitize operation until it has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// What was asked for.
    pub method: Method,
    /// EXIT FAILURE MODE may end it when it fails (AUSE).
    pub unrestricted: bool,
    /// It has failed.
    pub failed: bool,
}

/// Why bytes are no [`Marker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerError {
    /// Something else, cut off, or with a wrong checksum.
    Corrupt,
    /// Of a version that is not known.
    Version(u16),
}

impl fmt::Display for MarkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt => f.write_str("is damaged, or no marker of a sanitize operation"),
            Self::Version(version) => {
                write!(f, "has version {version} of the format, {VERSION} is known")
            }
        }
    }
}

impl core::error::Error for MarkerError {}

impl Marker {
    /// The bytes to keep.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (method, passes, invert, pattern): (_, _, _, &[u8]) = match &self.method {
            Method::Overwrite { pattern, passes, invert } => {
                (METHOD_OVERWRITE, *passes, *invert, pattern)
            }
            Method::BlockErase => (METHOD_BLOCK_ERASE, 0, false, &[]),
        };
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.unrestricted, FLAG_UNRESTRICTED)
            | flag(self.failed, FLAG_FAILED)
            | flag(invert, FLAG_INVERT);
        let mut out = Vec::with_capacity(HEADER_LEN + pattern.len() + CRC_LEN);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([method, flags, passes, 0]);
        out.extend(narrow::<_, u16>(pattern.len()).to_le_bytes());
        out.extend_from_slice(pattern);
        let crc = CRC.checksum(&out);
        out.extend(crc.to_le_bytes());
        out
    }

    /// Reads what was kept.
    ///
    /// # Errors
    /// When it is damaged, or of another version: then nobody knows what state the medium is in.
    pub fn decode(bytes: &[u8]) -> Result<Self, MarkerError> {
        let body_len = bytes.len().checked_sub(CRC_LEN).ok_or(MarkerError::Corrupt)?;
        let (body, crc) = bytes.split_at(body_len);
        let header: &[u8; HEADER_LEN] = body.first_chunk().ok_or(MarkerError::Corrupt)?;
        if header[..8] != MAGIC || CRC.checksum(body).to_le_bytes() != *crc {
            return Err(MarkerError::Corrupt);
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(MarkerError::Version(version));
        }
        let (flags, passes) = (header[11], header[12]);
        let pattern = &body[HEADER_LEN..];
        let pattern_len = usize::from(u16::from_le_bytes([header[14], header[15]]));
        let invert = flags & FLAG_INVERT != 0;
        let method = match header[10] {
            METHOD_OVERWRITE
                if pattern.len() == pattern_len
                    && (1..=4096).contains(&pattern_len)
                    && (1..=31).contains(&passes) =>
            {
                Method::Overwrite { pattern: pattern.to_vec(), passes, invert }
            }
            METHOD_BLOCK_ERASE if pattern.is_empty() && pattern_len == 0 => Method::BlockErase,
            _ => return Err(MarkerError::Corrupt),
        };
        let unrestricted = flags & FLAG_UNRESTRICTED != 0;
        Ok(Self { method, unrestricted, failed: flags & FLAG_FAILED != 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_marker_is_read_as_it_was_kept() {
        let pattern = vec![1, 2, 3];
        let overwrite = Method::Overwrite { pattern, passes: 31, invert: true };
        for method in [overwrite, Method::BlockErase] {
            for (unrestricted, failed) in [(false, true), (true, false)] {
                let marker = Marker { method: method.clone(), unrestricted, failed };
                let mut bytes = marker.encode();
                assert_eq!(Marker::decode(&bytes), Ok(marker));
                for at in 0..bytes.len() {
                    bytes[at] ^= 0x10;
                    assert_eq!(Marker::decode(&bytes), Err(MarkerError::Corrupt), "byte {at}");
                    bytes[at] ^= 0x10;
                }
            }
        }
    }

    #[test]
    fn another_version_is_told_apart() {
        let marker = Marker { method: Method::BlockErase, unrestricted: false, failed: false };
        let mut bytes = marker.encode();
        bytes[8] = 2;
        let end = bytes.len() - CRC_LEN;
        let crc = CRC.checksum(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
        assert_eq!(Marker::decode(&bytes), Err(MarkerError::Version(2)));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Marker::decode(&bytes);
        }
    }
}
