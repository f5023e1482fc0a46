//! The control sockets of an array and of a target, and a client that sends lines of any bytes:
//! requests with changed bytes, others, long ones, cut off ones.
//!
//! Each line gets one answer, in its order, that is one line and either says `ok` or `error`;
//! a line that is too long gets one and ends the conversation. What is understood is written as it
//! was read. No answer shows the secret of an address. The next client is served.

use std::{cell::RefCell, path::PathBuf};

use arbitrary::Arbitrary;
use netraid_block::{Device, Pool, TargetUri};
use netraid_engine::{
    backings::{self, BackingSpec, Place},
    control::{ControlRequest, ControlServer, Service, TargetRequest},
    filters::{FilterKind, FilterSpec, Filters},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    runtime::Runtime,
    task::LocalSet,
};

use crate::operations;

/// Longest line that is read, in bytes.
const LINE_LEN_MAX: usize = 64 << 10;
/// Longest answer: some lines quote what they were asked, and each byte may take six.
const ANSWER_LEN_MAX: usize = 8 * LINE_LEN_MAX;
/// The secret of the addresses here.
const SECRET: &str = "s3cr3t-of-m1ne";

#[derive(Debug, Arbitrary)]
enum Line {
    Request { command: u8, fields: Vec<(u8, u8)>, changes: Vec<(u8, u8)> },
    Text(Text),
    Anything(Vec<u8>),
    Nested { depth: u16, bracket: u8 },
    Long { bytes: u16, filler: u8 },
}

/// A request with one text of the client's own.
#[derive(Debug, Arbitrary)]
struct Text {
    command: u8,
    start: u8,
    text: String,
}

struct World {
    runtime: Runtime,
    local: LocalSet,
    array: PathBuf,
    target: PathBuf,
    _directory: tempfile::TempDir,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let Some((mode, input)) = input.split_first() else { return };
    let lines: Vec<Line> = operations(input, 40).collect();
    WORLD.with_borrow_mut(|world| world.converse(*mode, &lines));
}

/// An array's side: what a request names is read as far as it can be without one.
#[derive(Clone)]
struct ArrayService;

impl Service for ArrayService {
    type Request = ControlRequest;

    async fn answer(&self, request: ControlRequest) -> Result<Value, String> {
        same_again(&request);
        match request {
            ControlRequest::Status
            | ControlRequest::Scrub { .. }
            | ControlRequest::Stop { .. }
            | ControlRequest::ClearErrors { member: None } => Ok(Value::Null),
            ControlRequest::Fail { member }
            | ControlRequest::Rebuild { member }
            | ControlRequest::ClearErrors { member: Some(member) } => address(&member),
            ControlRequest::Replace { member, with, .. } => {
                address(&member)?;
                address(&with)
            }
        }
    }
}

/// A target's side: opens memory only.
#[derive(Clone)]
struct TargetService(Device);

impl Service for TargetService {
    type Request = TargetRequest;

    async fn answer(&self, request: TargetRequest) -> Result<Value, String> {
        same_again(&request);
        match request {
            TargetRequest::AddLun { backing, block_bytes, .. } => {
                let spec: BackingSpec = backing.parse().map_err(shown)?;
                let again: BackingSpec = spec.to_string().parse().map_err(shown)?;
                assert_eq!(again, spec, "a backing is shown as another");
                match spec.place {
                    Place::Ram { size: ..=0x10_0000 } => {
                        let opened = spec.open(block_bytes, Pool::new()).map_err(shown)?;
                        Ok(json!(opened.used_bytes()))
                    }
                    Place::Ram { .. } | Place::File { .. } | Place::Disk { .. } => {
                        Err(format!("{backing}: is not opened here"))
                    }
                }
            }
            TargetRequest::SetFilter { filter: Some(filter), .. } => {
                let spec: FilterSpec = filter.parse().map_err(shown)?;
                let again: FilterSpec = spec.to_string().parse().map_err(shown)?;
                assert_eq!(again, spec, "filters are shown as others");
                let to_file =
                    |kind: &FilterKind| matches!(kind, FilterKind::Trace { file: Some(_) });
                if spec.filters.iter().any(|one| to_file(&one.kind)) {
                    return Err(format!("{filter}: no files here"));
                }
                let mut filters = Filters::new(&self.0, spec).map_err(shown)?;
                filters.end();
                Ok(Value::Null)
            }
            TargetRequest::Status
            | TargetRequest::ResizeLun { .. }
            | TargetRequest::RemoveLun { .. }
            | TargetRequest::SetFilter { filter: None, .. }
            | TargetRequest::DropSession { .. }
            | TargetRequest::Stop { .. } => Ok(Value::Null),
        }
    }
}

fn shown(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn address(text: &str) -> Result<Value, String> {
    let uri = TargetUri::parse(text).map_err(shown)?;
    assert!(!uri.to_string().contains(SECRET), "an address shows its secret");
    Ok(json!(uri.portals().count()))
}

fn same_again<T: Serialize + DeserializeOwned + PartialEq>(request: &T) {
    let text = serde_json::to_string(request).expect("a request can be written");
    let again: T = serde_json::from_str(&text).expect("our own request");
    assert!(again == *request, "{text} is read as another");
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let local = LocalSet::new();
        let (array, target) = (directory.path().join("array"), directory.path().join("target"));
        let entered = runtime.enter();
        let server = ControlServer::bind(&array).expect("a socket");
        local.spawn_local(async move { server.run(&ArrayService, std::future::pending()).await });
        let device = backings::ram(64 << 10, 512, Pool::new()).expect("a device");
        let server = ControlServer::bind(&target).expect("a socket");
        local.spawn_local(async move {
            server.run(&TargetService(device), std::future::pending()).await
        });
        drop(entered);
        Self { runtime, local, array, target, _directory: directory }
    }

    /// A mode with bit 0 talks to the target; without bit 1 the last line is whole.
    fn converse(&mut self, mode: u8, lines: &[Line]) {
        let path = if mode & 1 != 0 { &self.target } else { &self.array };
        let mut bytes = Vec::new();
        for line in lines {
            line.write(&mut bytes);
            bytes.push(b'\n');
        }
        if mode & 2 != 0 {
            bytes.pop();
        }
        let answers = self.local.block_on(&self.runtime, async {
            let stream = UnixStream::connect(path).await.expect("the server listens");
            let (mut from, mut to) = stream.into_split();
            let write = async {
                // The server may have closed already.
                let _ = to.write_all(&bytes).await;
                let _ = to.shutdown().await;
            };
            let read = async {
                let mut answers = Vec::new();
                // What was sent before the server closed is read; the rest of ours is an error.
                let _ = from.read_to_end(&mut answers).await;
                answers
            };
            tokio::join!(write, read).1
        });
        check(&bytes, &answers);
    }
}

/// As many answers as lines, up to the first that is too long.
fn check(asked: &[u8], answers: &[u8]) {
    let answers = str::from_utf8(answers).expect("answers are UTF-8");
    assert!(answers.is_empty() || answers.ends_with('\n'), "the last answer is cut off");
    let answers: Vec<&str> = answers.lines().collect();
    let mut lines: Vec<&[u8]> = asked.split_inclusive(|byte| *byte == b'\n').collect();
    let too_long = |line: &&[u8]| {
        line.len() > LINE_LEN_MAX || (line.len() == LINE_LEN_MAX && !line.ends_with(b"\n"))
    };
    let last = lines.iter().position(too_long);
    lines.truncate(last.map_or(lines.len(), |last| last + 1));
    assert_eq!(answers.len(), lines.len(), "lines and answers");
    for (at, answer) in answers.iter().enumerate() {
        assert!(answer.len() <= ANSWER_LEN_MAX, "an answer of {} bytes", answer.len());
        assert!(!answer.contains(SECRET), "an answer shows a secret: {answer}");
        let value: Value = serde_json::from_str(answer).expect("an answer is JSON");
        let object = value.as_object().expect("an answer is an object");
        let says = object.len() == 1
            && (object.contains_key("ok")
                || object["error"].as_str().is_some_and(|e| !e.is_empty()));
        assert!(says, "{answer}");
        if last == Some(at) {
            assert!(object.contains_key("error"), "a line that is too long is understood");
        }
    }
}

impl Line {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Request { command, fields, changes } => {
                let mut object = serde_json::Map::new();
                object.insert("command".into(), json!(pick(&COMMANDS, *command)));
                for (field, value) in fields.iter().take(4) {
                    object.insert(pick(&FIELDS, *field).into(), value_of(*value));
                }
                let mut text = Value::Object(object).to_string().into_bytes();
                for (at, value) in changes.iter().take(3) {
                    let at = usize::from(*at) % text.len();
                    text[at] = *value;
                }
                out.extend(text);
            }
            Self::Text(Text { command, start, text }) => {
                let text = [pick(&STARTS, *start), text].concat();
                let request = match command % 4 {
                    0 => json!({ "command": "fail", "member": text }),
                    1 => json!({ "command": "replace", "member": "0", "with": text }),
                    2 => json!({ "command": "add_lun", "backing": text }),
                    _ => json!({ "command": "set_filter", "lun": 0, "filter": text }),
                };
                out.extend(request.to_string().into_bytes());
            }
            Self::Anything(bytes) => out.extend(bytes),
            Self::Nested { depth, bracket } => {
                let open: &[u8] = match bracket % 3 {
                    0 => b"[",
                    1 => b"{\"command\":",
                    _ => b"{\"command\":\"status\",\"x\":[",
                };
                out.extend(open.repeat(usize::from(*depth) % 8192));
            }
            Self::Long { bytes, filler } => {
                // Around the longest line more often than not.
                let len = LINE_LEN_MAX - 512 + usize::from(*bytes) % 1024;
                out.extend(b"{\"command\":\"fail\",\"member\":\"");
                let filler = if *filler == b'\n' { b' ' } else { *filler };
                out.resize(out.len() + len, filler);
                out.extend(b"\"}");
            }
        }
    }
}

const COMMANDS: [&str; 12] = [
    "status",
    "fail",
    "replace",
    "rebuild",
    "clear_errors",
    "stop",
    "add_lun",
    "resize_lun",
    "remove_lun",
    "set_filter",
    "drop_session",
    "",
];

const FIELDS: [&str; 13] = [
    "member",
    "with",
    "force",
    "backing",
    "lun",
    "block_bytes",
    "size",
    "shrink",
    "filter",
    "session",
    "command",
    "other",
    "",
];

/// What a text of the client's own begins with.
const STARTS: [&str; 13] = [
    "",
    "iscsi://joe%s3cr3t-of-m1ne@h/iqn.x:y/0",
    "iscsi://joe%s3cr3t-of-m1ne@",
    "iscsi://joe%s3cr3t-of-m1ne",
    "iscsi://",
    "ram:64K",
    "ram:",
    "file:/x",
    "block:/dev/x",
    "delay=1ms",
    "error=1%",
    "range=0+64K,",
    "hang",
];

fn value_of(value: u8) -> Value {
    match value % 16 {
        0 => json!(0),
        1 => json!(1),
        2 => json!(-1),
        3 => json!(1_u64 << 32),
        4 => json!(u64::MAX),
        5 => json!(1.5),
        6 => json!(true),
        7 => Value::Null,
        8 => json!("ram:64K"),
        9 => json!("ram:18446744073709551615"),
        10 => json!("file:/nowhere:1M,direct"),
        11 => json!("delay=1ms..2ms,error=1%:read:timeout,rate=1M/s"),
        12 => json!("hang=after 3,trace,corrupt=100%:read,range=0+4K,seed=1"),
        13 => json!("iscsi://joe%s3cr3t-of-m1ne@[::1]:3260/iqn.2026-01.org.example:t/0"),
        14 => json!(["iscsi://joe%s3cr3t-of-m1ne@h"]),
        _ => json!({ "": {} }),
    }
}

fn pick<'a>(from: &[&'a str], which: u8) -> &'a str {
    from[usize::from(which) % from.len()]
}
