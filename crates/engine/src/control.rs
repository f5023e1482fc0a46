//! The control socket of a running array: one JSON request a line, one JSON answer a line.
//!
//! A request is [`ControlRequest`]; the answer is `{"ok": ...}` or `{"error": "..."}`. The socket
//! is for its owner only (mode 0600).

use std::{
    io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
};

use crate::array::ArrayHandle;

/// Longest request in bytes.
const REQUEST_LEN_MAX: u64 = 64 << 10;
/// Longest that an answer may take: a replacement must be connected first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What can be asked of a running array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// How the array is: answered with [`ArrayStatus`].
    Status,
    /// Set a member aside.
    Fail {
        /// Index or address.
        member: String,
    },
    /// Put another device in the place of a member, and rebuild it.
    Replace {
        /// Index or address; set aside first when it still serves.
        member: String,
        /// Address of the new device.
        with: String,
        /// Overwrite what is on it.
        #[serde(default)]
        force: bool,
    },
    /// Take a member back that was set aside or missing, and rebuild it.
    Rebuild {
        /// Index or address.
        member: String,
    },
    /// Close the array and end its process.
    Stop,
}

/// How a running array is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Name.
    pub name: String,
    /// Identity.
    pub uuid: String,
    /// Level.
    pub level: u8,
    /// `optimal`, `degraded` or `failed`.
    pub state: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whether it is open for reading only.
    pub read_only: bool,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
    /// Bytes of the volume in stripes that hold data.
    pub used_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Generation of the labels.
    pub generation: u64,
    /// Epoch of the labels.
    pub epoch: u64,
    /// Rebuild or resync, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// Members in order.
    pub members: Vec<MemberStatus>,
}

/// How far a rebuild or resync is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressStatus {
    /// `rebuild` or `resync`.
    pub kind: String,
    /// The member that is rebuilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<u8>,
    /// Bytes of the volume that need no more work.
    pub done_bytes: u64,
    /// Bytes of the volume.
    pub total_bytes: u64,
}

/// How a member is, and what it did since the array was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Index.
    pub index: u8,
    /// Address; empty when it is not known.
    pub url: String,
    /// State.
    pub state: String,
    /// Requests that read.
    pub reads: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Why a command did not reach a running array, or was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens there.
    #[error(
        "control socket {path}: {source}; check that the array is attached with --control there"
    )]
    Connect {
        /// The socket.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The conversation broke.
    #[error("control socket {path}: {reason}")]
    Broken {
        /// The socket.
        path: String,
        /// Why.
        reason: String,
    },
    /// The array refuses.
    #[error("{0}")]
    Refused(String),
}

/// Sends one command to a running array and awaits its answer.
///
/// # Errors
/// When nobody listens, the conversation breaks or takes over a minute, or the array refuses.
pub async fn call(path: &Path, request: &ControlRequest) -> Result<Value, ControlError> {
    let shown = || path.display().to_string();
    let connected = UnixStream::connect(path).await;
    let stream = connected.map_err(|source| ControlError::Connect { path: shown(), source })?;
    let broken = |reason: String| ControlError::Broken { path: shown(), reason };
    let talk = async {
        let mut stream = BufReader::new(stream);
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        serde_json::from_str::<Value>(&answer).map_err(io::Error::from)
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, talk).await;
    let answer = answer.map_err(|_| broken(format!("no answer within {ANSWER_TIMEOUT:?}")))?;
    let mut answer = answer.map_err(|error| broken(error.to_string()))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(ControlError::Refused(error.into())),
        None => Ok(answer.get_mut("ok").map(Value::take).unwrap_or_default()),
    }
}

/// A control socket that listens; removed when dropped.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlServer {
    /// Listens at `path`; a socket that a dead process left there is replaced, nothing else is.
    ///
    /// # Errors
    /// When the path is in use or cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|at| at.file_type().is_socket());
        let connected = std::os::unix::net::UnixStream::connect(path);
        let refused = connected.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if is_socket && refused {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.to_path_buf() })
    }

    /// Serves commands to `array` until dropped.
    pub async fn run(&self, array: &ArrayHandle) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let array = array.clone();
                    tokio::spawn(async move {
                        if let Err(error) = converse(stream, &array).await {
                            tracing::debug!(%error, "control conversation ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "control socket does not accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn converse(stream: UnixStream, array: &ArrayHandle) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = String::new();
        let mut limited = (&mut read).take(REQUEST_LEN_MAX);
        if limited.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str::<ControlRequest>(&line) {
            Ok(request) => match array.command(request).await {
                Ok(value) => json!({ "ok": value }),
                Err(error) => json!({ "error": error.to_string() }),
            },
            Err(error) => json!({ "error": format!("request is not understood: {error}") }),
        };
        let mut answer = answer.to_string();
        answer.push('\n');
        write.write_all(answer.as_bytes()).await?;
    }
}
