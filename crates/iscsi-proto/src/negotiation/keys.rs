//! The table of keys: for each its kind and range.

/// Smallest and largest lengths that the length keys can have.
pub(super) const LEN_MIN: u32 = 512;
pub(super) const LEN_MAX: u32 = (1 << 24) - 1;

/// RFC 7143 without RFC 7144 (section 13.24); values are 0 to 31.
pub(super) const PROTOCOL_LEVEL: u32 = 1;
pub(super) const PROTOCOL_LEVEL_MAX: u32 = 31;
/// Longest text that a peer tells of itself (RFC 7143, sections 13.6 and 13.26).
pub(super) const TOLD_LEN_MAX: usize = 255;

/// A digest key.
#[derive(Clone, Copy)]
pub(super) enum Digest {
    Header,
    Data,
}

/// A boolean key's place in [`super::Params`].
#[derive(Clone, Copy)]
pub(super) enum Flag {
    InitialR2T,
    ImmediateData,
    /// Always wished for, and without a place: data arrives in order here.
    InOrder,
}

/// A numerical key's place in [`super::Params`].
#[derive(Clone, Copy)]
pub(super) enum Number {
    MaxBurst,
    FirstBurst,
    OutstandingR2T,
    /// Always wished for, and without a place.
    Constant(u32),
}

/// How two values become one.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Digest(Digest),
    /// Each side declares its own.
    Declared,
    Min(Number, u32, u32),
    Max(Number, u32, u32),
    And(Flag),
    Or(Flag),
    /// Never offered; a list of which this side knows one value.
    Only(&'static str),
    /// Never offered; always answered so.
    Fixed(&'static str),
    /// Never offered; the smaller one, and this side's is [`PROTOCOL_LEVEL`].
    Level,
    /// Declared by the peer, and not answered.
    Told,
}

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Irrelevant in a discovery session (RFC 7143, section 13).
    pub(super) normal_only: bool,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind, normal_only: false }
}

const fn normal(name: &'static str, kind: Kind) -> Key {
    Key { name, kind, normal_only: true }
}

/// Error recovery level 0, one connection, and no state kept once a connection is gone.
pub(super) const KEYS: [Key; 23] = [
    key("HeaderDigest", Kind::Digest(Digest::Header)),
    key("DataDigest", Kind::Digest(Digest::Data)),
    key("MaxRecvDataSegmentLength", Kind::Declared),
    normal("MaxBurstLength", Kind::Min(Number::MaxBurst, LEN_MIN, LEN_MAX)),
    normal("FirstBurstLength", Kind::Min(Number::FirstBurst, LEN_MIN, LEN_MAX)),
    normal("InitialR2T", Kind::Or(Flag::InitialR2T)),
    normal("ImmediateData", Kind::And(Flag::ImmediateData)),
    normal("MaxOutstandingR2T", Kind::Min(Number::OutstandingR2T, 1, 65_535)),
    normal("MaxConnections", Kind::Min(Number::Constant(1), 1, 65_535)),
    normal("DataPDUInOrder", Kind::Or(Flag::InOrder)),
    normal("DataSequenceInOrder", Kind::Or(Flag::InOrder)),
    key("ErrorRecoveryLevel", Kind::Min(Number::Constant(0), 0, 2)),
    key("DefaultTime2Wait", Kind::Max(Number::Constant(0), 0, 3600)),
    key("DefaultTime2Retain", Kind::Min(Number::Constant(0), 0, 3600)),
    normal("TaskReporting", Kind::Only("RFC3720")),
    normal("iSCSIProtocolLevel", Kind::Level),
    key("OFMarker", Kind::Fixed("No")),
    key("IFMarker", Kind::Fixed("No")),
    key("OFMarkInt", Kind::Fixed("Reject")),
    key("IFMarkInt", Kind::Fixed("Reject")),
    key("InitiatorAlias", Kind::Told),
    key("TargetAlias", Kind::Told),
    key("X#NodeArchitecture", Kind::Told),
];

/// A key of the table, and its number there.
pub(super) fn find(name: &str) -> Option<(usize, &'static Key)> {
    KEYS.iter().enumerate().find(|(_, key)| key.name == name)
}
