//! What is asked of a running array through its control socket, and what it answers.

use netraid_iscsi_proto::chap::Secret;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::Value;

use super::Service;
use crate::array::ArrayHandle;

/// A CHAP secret in a request. The control socket is its owner's alone, and no error shows the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedSecret(pub Secret);

impl Serialize for HandedSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(self.0.expose());
        let text =
            text.map_err(|_| ser::Error::custom("the secret is not UTF-8; choose another"))?;
        serializer.serialize_str(text)
    }
}

impl<'de> Deserialize<'de> for HandedSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // What is no text is not shown either.
        let Value::String(text) = Value::deserialize(deserializer)? else {
            return Err(de::Error::custom("the secret is no text; write it in quotation marks"));
        };
        Secret::new(text).map(Self).map_err(de::Error::custom)
    }
}

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
        /// The CHAP secret of the address's user; none: one that the array was given, or the address's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<HandedSecret>,
        /// Overwrite what is on it.
        #[serde(default)]
        force: bool,
    },
    /// Take a member back that was set aside or missing, and rebuild it.
    Rebuild {
        /// Index or address.
        member: String,
    },
    /// Have the counters of what went wrong with members begin anew.
    ClearErrors {
        /// Index or address; none: of all members.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
    },
    /// Read everything at rest, and write again what is wrong.
    Scrub {
        /// What is to be done.
        action: ScrubAction,
        /// Bytes a second that it may read from all members together; none: as before, or
        /// 100 MiB. 0: as fast as it goes.
        #[serde(default)]
        rate: Option<u64>,
        /// The first physical stripe of one that starts.
        #[serde(default)]
        from: u32,
        /// Take rows whose checksums are lost as they are, when parity confirms them.
        #[serde(default)]
        trust_parity: bool,
    },
    /// Close the array and end its process: answered when it is closed, with how that was.
    Stop {
        /// Although somebody uses its exports.
        #[serde(default)]
        force: bool,
    },
}

/// How an engine is that stands by for the one that has the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyStatus {
    /// `standby`.
    pub kind: String,
    /// Name of the array, where a label can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How the array is: `unreadable`, `alive`, `closed`, `no_heartbeats`, `not_shut_out` or `silent`.
    pub state: String,
    /// The host of the engine that has it, or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The same in words, with what to do where something is to be done.
    pub reason: String,
    /// Why the last attempt to open the array failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<String>,
}

/// What a scrub is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Begin.
    Start,
    /// Wait.
    Pause,
    /// Go on.
    Resume,
    /// End.
    Stop,
}

/// How a scrub is, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// `running`, `paused`, `complete`, or `stopped` before it was.
    pub state: String,
    /// The next physical stripe.
    pub next: u32,
    /// Bytes of all members that need no more reading: of stripes that are mapped, and of tables, of which some dozens
    /// of pages count as a stripe.
    pub done_bytes: u64,
    /// Bytes of all members that are to be read. They change while users write.
    pub total_bytes: u64,
    /// Bytes a second in the last 30 s of work, once a second of it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Milliseconds until it has ended at that rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// Bytes that were read and compared.
    pub checked_bytes: u64,
    /// Blocks and pages that were not as they should be.
    pub wrong: u64,
    /// Those that are right again.
    pub repaired: u64,
    /// Blocks and pages that could not be had from other members.
    pub unrepaired: u64,
    /// Rows whose checksums were made anew.
    pub new_sums: u64,
    /// What was found on each member.
    pub members: Vec<ScrubMemberStatus>,
}

/// What a scrub found on a member, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubMemberStatus {
    /// Index.
    pub index: u8,
    /// Data blocks that were wrong.
    pub wrong_data: u64,
    /// Check blocks that were wrong.
    pub wrong_checks: u64,
    /// Blocks that could not be read.
    pub unreadable: u64,
    /// Labels, checkpoints, copies in the log, and pages of tables that were missing or wrong.
    pub wrong_pages: u64,
    /// What is right again.
    pub repaired: u64,
    /// What is not.
    pub unrepaired: u64,
    /// Blocks that were not checked: the member was absent, or had not caught up.
    pub absent: u64,
}

/// How a running array is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// `array`.
    pub kind: String,
    /// Name; of a volume of a cluster its id.
    pub name: String,
    /// Of a volume of a cluster, its path when it was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
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
    /// Its log, when it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogStatus>,
    /// What it lacks space for, where what was acknowledged waits for some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_space: Option<NoSpaceStatus>,
    /// What came of reading ahead, where that is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_ahead: Option<ReadAheadStatus>,
    /// The scrub that runs, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubStatus>,
    /// Rebuild, catch-up or resync, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// The same of other members that are rebuilt or catch up, or wait for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress_beside: Vec<ProgressStatus>,
    /// Members in order.
    pub members: Vec<MemberStatus>,
    /// Where the spares are that have taken no place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<String>,
}

/// How an array's log is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// Bytes of the log on each member.
    pub size_bytes: u64,
    /// Bytes of it that are in use.
    pub used_bytes: u64,
    /// Bytes of the volume that are in the log and not at their place yet.
    pub dirty_bytes: u64,
    /// The round that the last checkpoint ended.
    pub round: u32,
    /// Bytes of the volume whose stripes have a place on the members.
    pub mapped_bytes: u64,
}

/// Members have no space left, and the array cannot do without them: it serves reads, discards and
/// writes to what has its place, and refuses other writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoSpaceStatus {
    /// Their indices.
    pub members: Vec<u8>,
    /// Bytes of the volume that were acknowledged and wait in the log until there is space.
    pub waiting_bytes: u64,
}

/// What came of reading ahead since the array was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadAheadStatus {
    /// Users' reads that were answered from what was read ahead.
    pub answered: u64,
    /// Bytes of the volume that were read ahead.
    pub read_bytes: u64,
    /// Bytes of these that were let go before anybody asked for them.
    pub unused_bytes: u64,
}

/// How far a rebuild or resync is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressStatus {
    /// `rebuild` of a member that lacked everything, `catch_up` of one of an array with a log that lacked less, `copy` of
    /// one in sync to the device that replaces it, or `resync`.
    pub kind: String,
    /// The member that is rebuilt, catches up, or is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<u8>,
    /// Bytes of the member that need no more work; of a resync, bytes of the volume.
    pub done_bytes: u64,
    /// Bytes of the member that it lacked, as far as they are mapped, and of tables: what is not mapped is not written.
    /// They change while users write. Of a resync, bytes of the volume.
    pub total_bytes: u64,
    /// Bytes of the member that the other members cannot give: while there are any, this does not end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_bytes: u64,
    /// Bytes a second in the last 30 s of work, once a second of it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Milliseconds until it has ended at that rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// How a member is, and what it did since the array was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Index.
    pub index: u8,
    /// Address; empty when it is not known.
    pub url: String,
    /// State; `suspect` when it takes part and has no session at the moment.
    pub state: String,
    /// Address of the device that takes its place: it is being copied to that, or was set aside for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
    /// It answers reads so late that what the others have is not read from it. It takes part.
    #[serde(default)]
    pub slow: bool,
    /// Fenced: only this engine may write to it, by a reservation that it holds there.
    #[serde(default)]
    pub exclusive: bool,
    /// Requests that read.
    pub reads: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads that were late: what they were for was asked of the other members as well. This and the counters that follow
    /// outlive the engine, as far as they could be kept on the member; they begin anew by command, and with another device in
    /// the member's place.
    #[serde(default)]
    pub late: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Blocks and pages of 4 KiB whose bytes were not what they should be.
    #[serde(default)]
    pub wrong_blocks: u64,
    /// Writes that it had answered and did not have.
    #[serde(default)]
    pub lost_writes: u64,
    /// Blocks of 4 KiB that could not be read; in an array without a log, reads.
    #[serde(default)]
    pub unreadable_blocks: u64,
    /// Sessions that were made again.
    #[serde(default)]
    pub reconnects: u64,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Service for ArrayHandle {
    type Request = ControlRequest;

    async fn answer(&self, request: ControlRequest) -> Result<Value, String> {
        self.command(request).await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handed_secret_goes_to_the_array_and_is_shown_nowhere() {
        let secret = Secret::new("hidden-secret-1234").unwrap();
        let request = ControlRequest::Replace {
            member: "0".into(),
            with: "iscsi://joe@h/t/0".into(),
            secret: Some(HandedSecret(secret)),
            force: false,
        };
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<ControlRequest>(&line).unwrap(), request);
        assert!(!format!("{request:?}").contains("hidden"));

        for wrong in ["7741977419", "[\"hidden\"]", "{\"hidden\":1}", "\"\""] {
            let line = line.replace("\"hidden-secret-1234\"", wrong);
            let error = serde_json::from_str::<ControlRequest>(&line).unwrap_err().to_string();
            assert!(!error.contains("hidden") && !error.contains("77419"), "{error}");
        }
    }
}
