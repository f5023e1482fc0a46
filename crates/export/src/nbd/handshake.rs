//! Negotiation with a client (newstyle, fixed), up to where requests begin.
//!
//! What a client may send here is bounded: options in number and in length, and the whole by the
//! time-out of its caller. Answers are made by plain functions over bytes.

use netraid_block::{DeviceInfo, narrow};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{PAYLOAD_LEN_MAX, wire::*};

/// Longest option that is read, in bytes; names are at most 4096.
const OPTION_LEN_MAX: u32 = 16 << 10;
/// Most options of one client.
const OPTION_COUNT_MAX: usize = 128;
/// Transfer length in bytes that clients should prefer.
const PREFERRED_LEN: u32 = 4096;

/// What clients are told of the export.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) name: String,
    pub(super) info: DeviceInfo,
}

/// How a negotiation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Requests follow.
    Transmission {
        /// Reads are answered by structured replies.
        structured: bool,
    },
    /// The client said goodbye.
    Closed,
}

/// Why a client is sent away.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("client flags {0:#x} are unknown")]
    ClientFlags(u32),
    #[error("option does not begin with its magic number")]
    Magic,
    #[error("option of {0} bytes is longer than {OPTION_LEN_MAX}")]
    OptionLen(u32),
    #[error("more than {OPTION_COUNT_MAX} options")]
    OptionCount,
    #[error("there is no export of that name")]
    UnknownExport,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Export {
    fn flags(&self, structured: bool) -> u16 {
        // A completed flush covers every connection, so that one client may use several.
        let always =
            HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN;
        always
            | if self.info.read_only { READ_ONLY } else { 0 }
            | if structured { SEND_DF } else { 0 }
    }

    /// The default export has the empty name.
    fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// Negotiates with a client.
pub(super) async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    export: &Export,
) -> Result<Outcome, HandshakeError> {
    let mut hello = Vec::with_capacity(18);
    hello.extend(NBD_MAGIC.to_be_bytes());
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    stream.write_all(&hello).await?;
    let client_flags = stream.read_u32().await?;
    if client_flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
        return Err(HandshakeError::ClientFlags(client_flags));
    }
    let no_zeroes = client_flags & u32::from(FLAG_NO_ZEROES) != 0;
    let mut structured = false;
    let mut data = Vec::new();
    for _ in 0..OPTION_COUNT_MAX {
        let option = read_option(stream, &mut data).await?;
        let (answer, next) = match option {
            OPT_EXPORT_NAME => {
                let answer = old_answer(export, &data, no_zeroes)?;
                (answer, Some(Outcome::Transmission { structured }))
            }
            OPT_ABORT => (reply(option, REP_ACK, &[]), Some(Outcome::Closed)),
            OPT_LIST => (list(export, &data), None),
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                structured = true;
                (reply(option, REP_ACK, &[]), None)
            }
            OPT_STRUCTURED_REPLY => (reply(option, REP_ERR_INVALID, b"takes no data"), None),
            OPT_INFO | OPT_GO => match describe(export, option, &data, structured) {
                Ok(answer) if option == OPT_GO => {
                    (answer, Some(Outcome::Transmission { structured }))
                }
                Ok(answer) | Err(answer) => (answer, None),
            },
            _ => (reply(option, REP_ERR_UNSUP, b"option is not supported"), None),
        };
        stream.write_all(&answer).await?;
        if let Some(outcome) = next {
            return Ok(outcome);
        }
    }
    Err(HandshakeError::OptionCount)
}

/// Reads one option into `data`.
async fn read_option<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    data: &mut Vec<u8>,
) -> Result<u32, HandshakeError> {
    if stream.read_u64().await? != OPTION_MAGIC {
        return Err(HandshakeError::Magic);
    }
    let option = stream.read_u32().await?;
    let len = stream.read_u32().await?;
    if len > OPTION_LEN_MAX {
        stream.write_all(&reply(option, REP_ERR_TOO_BIG, b"option is too long")).await?;
        return Err(HandshakeError::OptionLen(len));
    }
    data.clear();
    let count = stream.take(u64::from(len)).read_to_end(data).await?;
    if count as u64 != u64::from(len) {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(option)
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(20 + data.len());
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(narrow::<_, u32>(data.len()).to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// The answer to NBD_OPT_EXPORT_NAME, which knows no errors.
fn old_answer(export: &Export, name: &[u8], no_zeroes: bool) -> Result<Vec<u8>, HandshakeError> {
    if !export.is_named(name) {
        return Err(HandshakeError::UnknownExport);
    }
    let mut out = Vec::with_capacity(134);
    out.extend(export.info.capacity.to_be_bytes());
    out.extend(export.flags(false).to_be_bytes());
    if !no_zeroes {
        out.resize(134, 0);
    }
    Ok(out)
}

fn list(export: &Export, data: &[u8]) -> Vec<u8> {
    if !data.is_empty() {
        return reply(OPT_LIST, REP_ERR_INVALID, b"takes no data");
    }
    let name = export.name.as_bytes();
    // Its length was checked when the export was made.
    let mut server = narrow::<_, u32>(name.len()).to_be_bytes().to_vec();
    server.extend_from_slice(name);
    let mut out = reply(OPT_LIST, REP_SERVER, &server);
    out.extend(reply(OPT_LIST, REP_ACK, &[]));
    out
}

/// The answer to NBD_OPT_INFO and NBD_OPT_GO, or the refusal.
fn describe(
    export: &Export,
    option: u32,
    data: &[u8],
    structured: bool,
) -> Result<Vec<u8>, Vec<u8>> {
    let invalid = || reply(option, REP_ERR_INVALID, b"lengths do not add up");
    let (name, requests) = split_info(data).ok_or_else(invalid)?;
    if !export.is_named(name) {
        return Err(reply(option, REP_ERR_UNKNOWN, b"there is no export of that name"));
    }
    let asked = |kind: u16| requests.chunks_exact(2).any(|it| it == kind.to_be_bytes());
    let mut info = INFO_EXPORT.to_be_bytes().to_vec();
    info.extend(export.info.capacity.to_be_bytes());
    info.extend(export.flags(structured).to_be_bytes());
    let mut out = reply(option, REP_INFO, &info);
    if asked(INFO_NAME) {
        let mut info = INFO_NAME.to_be_bytes().to_vec();
        info.extend_from_slice(export.name.as_bytes());
        out.extend(reply(option, REP_INFO, &info));
    }
    if asked(INFO_BLOCK_SIZE) {
        let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
        let block_len = export.info.block_len;
        for len in [block_len, PREFERRED_LEN.max(block_len), PAYLOAD_LEN_MAX] {
            info.extend(len.to_be_bytes());
        }
        out.extend(reply(option, REP_INFO, &info));
    }
    out.extend(reply(option, REP_ACK, &[]));
    Ok(out)
}

/// Name and information requests of NBD_OPT_INFO, if the lengths agree.
fn split_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_at_checked(4)?;
    let (name, rest) = rest.split_at_checked(usize::try_from(be32(len, 0)).ok()?)?;
    let (count, requests) = rest.split_at_checked(2)?;
    (requests.len() == usize::from(be16(count, 0)) * 2).then_some((name, requests))
}
