//! Numbers and layouts of the NBD protocol (doc/proto.md of the NBD project); all big-endian.

pub(super) const NBD_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(super) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags: fixed newstyle, and no padding after NBD_OPT_EXPORT_NAME.
pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(super) const FLAG_NO_ZEROES: u16 = 2;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub(super) const REP_ERR_INVALID: u32 = 0x8000_0003;
pub(super) const REP_ERR_UNKNOWN: u32 = 0x8000_0006;
pub(super) const REP_ERR_TOO_BIG: u32 = 0x8000_0009;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags.
pub(super) const HAS_FLAGS: u16 = 1;
pub(super) const READ_ONLY: u16 = 1 << 1;
pub(super) const SEND_FLUSH: u16 = 1 << 2;
pub(super) const SEND_FUA: u16 = 1 << 3;
pub(super) const SEND_TRIM: u16 = 1 << 5;
pub(super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const SEND_DF: u16 = 1 << 7;
pub(super) const CAN_MULTI_CONN: u16 = 1 << 8;

/// Command flags.
pub(super) const CMD_FLAG_FUA: u16 = 1;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(super) const CMD_FLAG_DF: u16 = 1 << 2;

const REPLY_FLAG_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_ERROR: u16 = 0x8001;

pub(super) const REQUEST_LEN: usize = 28;
/// The longest head of a reply without a text.
pub(super) const HEAD_LEN: usize = 28;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandType {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    /// A command that was not offered.
    Other(u16),
}

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) flags: u16,
    pub(super) command: CommandType,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl RequestHead {
    /// Reads a request's head; `None` when it does not begin with the magic number.
    pub(super) fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let head = Self {
            flags: be16(bytes, 4),
            command: match be16(bytes, 6) {
                0 => CommandType::Read,
                1 => CommandType::Write,
                2 => CommandType::Disconnect,
                3 => CommandType::Flush,
                4 => CommandType::Trim,
                6 => CommandType::WriteZeroes,
                other => CommandType::Other(other),
            },
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            len: be32(bytes, 24),
        };
        (be32(bytes, 0) == REQUEST_MAGIC).then_some(head)
    }
}

/// The head of a reply, and how much of it is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyHead {
    bytes: [u8; HEAD_LEN],
    len: usize,
}

impl ReplyHead {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// A simple reply; of a read that succeeded, the data follows.
    pub(super) fn simple(cookie: u64, errno: u32) -> Self {
        let mut head = Self { bytes: [0; HEAD_LEN], len: 16 };
        head.bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head.bytes[4..8].copy_from_slice(&errno.to_be_bytes());
        head.bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        head
    }

    /// The only chunk of a structured reply to a read: `len` bytes of data follow.
    pub(super) fn data_chunk(cookie: u64, offset: u64, len: u32) -> Self {
        if len == 0 {
            return Self::chunk(cookie, CHUNK_NONE, 0);
        }
        let mut head = Self::chunk(cookie, CHUNK_OFFSET_DATA, len.saturating_add(8));
        head.bytes[20..28].copy_from_slice(&offset.to_be_bytes());
        head.len = 28;
        head
    }

    /// The only chunk of a structured reply that failed: a text of `text_len` bytes follows.
    pub(super) fn error_chunk(cookie: u64, errno: u32, text_len: u16) -> Self {
        let mut head = Self::chunk(cookie, CHUNK_ERROR, 6 + u32::from(text_len));
        head.bytes[20..24].copy_from_slice(&errno.to_be_bytes());
        head.bytes[24..26].copy_from_slice(&text_len.to_be_bytes());
        head.len = 26;
        head
    }

    fn chunk(cookie: u64, kind: u16, payload_len: u32) -> Self {
        let mut head = Self { bytes: [0; HEAD_LEN], len: 20 };
        head.bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        head.bytes[4..6].copy_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
        head.bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        head.bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        head.bytes[16..20].copy_from_slice(&payload_len.to_be_bytes());
        head
    }
}

/// The number at `at`; zero past the end, which callers rule out by length.
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    field(bytes, at).map_or(0, u16::from_be_bytes)
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at).map_or(0, u32::from_be_bytes)
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    field(bytes, at).map_or(0, u64::from_be_bytes)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}
