//! Initiator ports, target ports, and the I_T nexuses between them.
//!
//! An initiator port of iSCSI is an initiator's name with the ISID of a session (RFC 7143, section
//! 4.4.3); it is the same port when it logs in again, and reservations belong to it. A target here
//! has one port, in one target port group: every portal of it leads to that port.

use alloc::{string::String, sync::Arc, vec, vec::Vec};
use core::fmt::Write as _;

use netraid_block::narrow;

use crate::bytes::{be16, put};

/// Relative target port identifier of the one port of a target.
pub const TARGET_PORT: u16 = 1;
/// Target port group of that port.
pub const TARGET_PORT_GROUP: u16 = 1;

/// Longest iSCSI name in bytes (RFC 7143, section 4.2.7.1).
pub const NAME_LEN_MAX: usize = 223;
/// Shortest TransportID in bytes (SPC-4, section 7.6.4.1).
const TRANSPORT_ID_LEN_MIN: usize = 24;
/// Protocol identifier of iSCSI (SPC-4, section 7.6.1).
const PROTOCOL_ISCSI: u8 = 0x05;
/// TPID FORMAT of a TransportID that names one initiator port, in its place in byte 0.
const FORMAT_PORT: u8 = 0x40;
const SEPARATOR: &str = ",i,0x";

/// An initiator port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InitiatorPort {
    name: Arc<str>,
    isid: [u8; 6],
}

impl InitiatorPort {
    /// The port of this name and ISID; names are compared without case. `None` when the name is
    /// empty, longer than 223 bytes, or has a character that no name has.
    #[must_use]
    pub fn new(name: &str, isid: [u8; 6]) -> Option<Self> {
        is_name(name).then(|| Self { name: name.to_ascii_lowercase().into(), isid })
    }

    /// The initiator's iSCSI name, in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Initiator session identifier.
    #[must_use]
    pub const fn isid(&self) -> [u8; 6] {
        self.isid
    }

    /// The TransportID that names this port (SPC-4, section 7.6.4.6).
    #[must_use]
    pub fn transport_id(&self) -> Vec<u8> {
        let mut text = String::with_capacity(self.name.len() + 17);
        text.push_str(&self.name);
        text.push_str(SEPARATOR);
        for byte in self.isid {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        transport_id_of(FORMAT_PORT, &text)
    }
}

/// A TransportID of this format and text, ended by a zero and padded.
fn transport_id_of(format: u8, text: &str) -> Vec<u8> {
    let len = (4 + text.len() + 1).next_multiple_of(4).max(TRANSPORT_ID_LEN_MIN);
    let mut out = vec![0; len];
    out[0] = format | PROTOCOL_ISCSI;
    put(&mut out, 2, narrow::<_, u16>(len - 4).to_be_bytes());
    out[4..4 + text.len()].copy_from_slice(text.as_bytes());
    out
}

/// An I_T nexus: an initiator port and the target port that it uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nexus {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// Relative target port identifier.
    pub target_port: u16,
}

impl Nexus {
    /// The nexus of this initiator port with the target's one port.
    #[must_use]
    pub const fn new(initiator: InitiatorPort) -> Self {
        Self { initiator, target_port: TARGET_PORT }
    }
}

/// What a TransportID of iSCSI names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportId {
    /// Every port of the initiator with this name, in lower case.
    Initiator(String),
    /// One initiator port.
    Port(InitiatorPort),
}

/// What is wrong with a TransportID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportIdError {
    /// It reaches past the bytes that there are.
    CutOff,
    /// It is not of iSCSI, or names nothing; the byte that says so.
    Invalid(usize),
}

impl TransportId {
    /// The TransportID (SPC-4, section 7.6.4.6).
    ///
    /// # Panics
    /// When an initiator's name is none: it is empty, longer than 223 bytes, or has a character that no name has.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Initiator(name) => {
                assert!(is_name(name), "{name:?} is no initiator's name");
                transport_id_of(0, name)
            }
            Self::Port(port) => port.transport_id(),
        }
    }

    /// Reads the TransportID at the start of `bytes`; also how many bytes it has.
    ///
    /// # Errors
    /// When it is cut off, is of another protocol, or names no initiator.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), TransportIdError> {
        let (&first, len) = bytes.first().zip(be16(bytes, 2)).ok_or(TransportIdError::CutOff)?;
        let len = 4 + usize::from(len);
        if first & 0x0f != PROTOCOL_ISCSI || !matches!(first >> 6, 0 | 1) {
            return Err(TransportIdError::Invalid(0));
        }
        if len < TRANSPORT_ID_LEN_MIN || len % 4 != 0 {
            return Err(TransportIdError::Invalid(2));
        }
        let text = bytes.get(4..len).ok_or(TransportIdError::CutOff)?;
        let invalid = TransportIdError::Invalid(4);
        let end = text.iter().position(|byte| *byte == 0).ok_or(invalid)?;
        let text = core::str::from_utf8(&text[..end]).map_err(|_| invalid)?;
        if first & 0xc0 == 0 {
            let id = is_name(text).then(|| Self::Initiator(text.to_ascii_lowercase()));
            return Ok((id.ok_or(invalid)?, len));
        }
        let port = text.rsplit_once(SEPARATOR).and_then(|(name, isid)| {
            let digits =
                matches!(isid.len(), 1..=12) && isid.bytes().all(|d| d.is_ascii_hexdigit());
            let number = digits.then(|| u64::from_str_radix(isid, 16).ok()).flatten()?;
            let [_, _, isid @ ..] = number.to_be_bytes();
            InitiatorPort::new(name, isid)
        });
        Ok((Self::Port(port.ok_or(invalid)?), len))
    }
}

/// Whether this can be an iSCSI name. Its comma would be taken for the end of it.
fn is_name(name: &str) -> bool {
    let possible = |byte: u8| byte > b' ' && byte != b',' && byte != 0x7f;
    matches!(name.len(), 1..=NAME_LEN_MAX) && name.bytes().all(possible)
}

/// REPORT TARGET PORT GROUPS parameter data (SPC-4, section 6.37): one group of one port, which is
/// active and optimized and knows no other state. `extended` is the format with a header.
#[must_use]
pub(crate) fn target_port_groups(extended: bool) -> Vec<u8> {
    let mut out = vec![0; 4];
    if extended {
        // Format type 1; no transition ever takes time.
        out.extend([0x10, 0, 0, 0]);
    }
    let group = TARGET_PORT_GROUP.to_be_bytes();
    let port = TARGET_PORT.to_be_bytes();
    // State 0 is active/optimized; AO_SUP alone is set.
    out.extend([0x00, 0x01, group[0], group[1], 0, 0, 0, 1]);
    out.extend([0, 0, port[0], port[1]]);
    let len: u32 = narrow(out.len() - 4);
    put(&mut out, 0, len.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(name: &str) -> InitiatorPort {
        InitiatorPort::new(name, [0x40, 0, 0, 0x12, 0xab, 0xcd]).unwrap()
    }

    #[test]
    fn a_transport_id_names_the_port() {
        let bytes = port("iqn.a").transport_id();
        // 4 + "iqn.a,i,0x40000012abcd" + NUL, padded.
        assert_eq!(bytes[..4], [0x45, 0, 0, 24]);
        assert_eq!(&bytes[4..27], b"iqn.a,i,0x40000012abcd\0");
        assert_eq!(bytes.len(), 28);
        let decoded = TransportId::decode(&bytes);
        assert_eq!(decoded, Ok((TransportId::Port(port("iqn.a")), 28)));
    }

    #[test]
    fn a_transport_id_without_isid_names_the_initiator() {
        let mut bytes = [0; 24];
        bytes[0] = 0x05;
        bytes[3] = 20;
        bytes[4..9].copy_from_slice(b"IQN.A");
        let decoded = TransportId::decode(&bytes);
        assert_eq!(decoded, Ok((TransportId::Initiator("iqn.a".into()), 24)));
    }

    #[test]
    fn other_protocols_and_broken_lengths_are_refused() {
        let good = port("iqn.a").transport_id();
        let broken = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            TransportId::decode(&bytes).unwrap_err()
        };
        assert_eq!(broken(0, 0x46), TransportIdError::Invalid(0));
        assert_eq!(broken(0, 0x85), TransportIdError::Invalid(0));
        assert_eq!(broken(3, 23), TransportIdError::Invalid(2));
        assert_eq!(broken(3, 16), TransportIdError::Invalid(2));
        assert_eq!(broken(3, 28), TransportIdError::CutOff);
        assert_eq!(broken(4, 0), TransportIdError::Invalid(4));
        assert_eq!(broken(14, b'g'), TransportIdError::Invalid(4));
    }

    #[test]
    fn names_have_both_limits() {
        assert!(InitiatorPort::new("", [0; 6]).is_none());
        assert!(InitiatorPort::new(&"a".repeat(223), [0; 6]).is_some());
        assert!(InitiatorPort::new(&"a".repeat(224), [0; 6]).is_none());
        assert!(InitiatorPort::new("a,b", [0; 6]).is_none());
    }

    #[test]
    fn the_group_reports_its_one_port() {
        let short = target_port_groups(false);
        assert_eq!(short, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
        let long = target_port_groups(true);
        assert_eq!(long[..8], [0, 0, 0, 16, 0x10, 0, 0, 0]);
        assert_eq!(long[8..], short[4..]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = TransportId::decode(&bytes);
        }

        #[test]
        fn every_port_survives(name in "[a-z0-9.:-]{1,223}", isid in any::<[u8; 6]>()) {
            let port = InitiatorPort::new(&name, isid).unwrap();
            let bytes = port.transport_id();
            prop_assert_eq!(TransportId::decode(&bytes), Ok((TransportId::Port(port), bytes.len())));
        }
    }
}
