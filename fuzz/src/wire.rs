//! What the harnesses of both sides of a session share.

use netraid_iscsi_proto::{
    chap::{Credentials, Secret},
    negotiation::Wishes,
    pdu::Bhs,
    text,
};

pub(crate) const TARGET: &str = "iqn.2026-01.org.example:target";
pub(crate) const INITIATOR: &str = "iqn.2026-01.org.example:i";

/// Bytes of a header that are replaced: where, by what.
pub(crate) type Changes = Vec<(u8, u8)>;

/// Replaces some bytes of a header.
pub(crate) fn change(bhs: &mut Bhs, changes: &Changes) {
    for (at, value) in changes.iter().take(3) {
        bhs.0[usize::from(*at) % 48] = *value;
    }
}

/// Small limits, so that they are met often.
pub(crate) fn wishes(mode: u8) -> Wishes {
    Wishes {
        max_recv_len: 2048,
        max_burst_len: 3072,
        first_burst_len: 1536,
        initial_r2t: mode & 2 != 0,
        immediate_data: mode & 4 == 0,
        max_outstanding_r2t: 1 + u32::from(mode >> 3 & 3),
        ..Wishes::default()
    }
}

pub(crate) fn credentials() -> Credentials {
    let secret = Secret::new(*b"0123456789abcdef").expect("a length that is possible");
    Credentials { user: "joe".into(), secret }
}

/// A key that means something to one side or the other, with a value that may.
pub(crate) fn push_key(out: &mut Vec<u8>, key: u8, value: u8) {
    const KEYS: [&str; 29] = [
        "InitiatorName",
        "TargetName",
        "SessionType",
        "AuthMethod",
        "CHAP_A",
        "CHAP_N",
        "CHAP_R",
        "CHAP_I",
        "CHAP_C",
        "HeaderDigest",
        "DataDigest",
        "MaxRecvDataSegmentLength",
        "MaxBurstLength",
        "FirstBurstLength",
        "InitialR2T",
        "ImmediateData",
        "MaxOutstandingR2T",
        "MaxConnections",
        "DefaultTime2Wait",
        "DefaultTime2Retain",
        "ErrorRecoveryLevel",
        "DataPDUInOrder",
        "DataSequenceInOrder",
        "SendTargets",
        "TargetPortalGroupTag",
        "TargetAlias",
        "TargetAddress",
        "IFMarker",
        "X-org.example.z",
    ];
    const VALUES: [&str; 29] = [
        "",
        TARGET,
        INITIATOR,
        "Normal",
        "Discovery",
        "CHAP,None",
        "CHAP",
        "None",
        "1",
        "5",
        "7",
        "8",
        "7,5",
        "joe",
        "0x00",
        "0x00112233445566778899aabbccddeeff",
        "0b////",
        "All",
        "CRC32C,None",
        "CRC32C",
        "Yes",
        "No",
        "512",
        "16777215",
        "0",
        "4294967296",
        "-1",
        "Reject",
        "[fe80::1]:1,1",
    ];
    let key = KEYS[usize::from(key) % KEYS.len()];
    match VALUES.get(usize::from(value)) {
        Some(known) => text::push(out, key, known),
        None if value < 128 => text::push(out, key, &"9".repeat(usize::from(value))),
        None => text::push(out, key, &"a".repeat(usize::from(value) * 8)),
    }
}

/// A data segment as long as its header says: these bytes, and zeroes.
pub(crate) fn padded(data: &[u8], len: usize) -> Vec<u8> {
    data.iter().copied().chain(std::iter::repeat(0)).take(len).collect()
}
