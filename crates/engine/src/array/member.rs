//! One member from the shell's side: connecting, what is on it, its label.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use netraid_block::{
    Buf, Device, ErrorKind, IoError, Op, Pool, RequestFlags, SgList, TargetUri, narrow,
};
use netraid_raid::{
    access::{Failure as _, Needs, checkpoint_of, label_of},
    fencing::hash,
    fencing::steps::Standing,
    label::{LABEL_LEN, Label, LabelError, Uuid},
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, Regions, SIGNATURE_LEN},
};

use tokio::sync::watch;

use super::{error::ArrayError, lock::machine_id, mark};
use crate::{
    completions,
    initiator::{Credentials, InitiatorConfig, REFUSAL_LIMIT, Remote, Secret},
};

/// Times that something is written to a device that loses its cache before it is flushed.
const STABLE_TRIES_MAX: usize = 4;
/// Bytes of an image of a checkpoint.
const CHECKPOINT_LEN: u64 = 4096;
/// Bytes of log and tables whose space is reserved by one request.
const RESERVED_AT_ONCE: u64 = 16 << 20;

/// The CHAP secrets of users by whom an array may reach devices that take a member's place later.
#[derive(Clone)]
pub struct Keyring(Arc<SecretOf>);

/// The secret for an address; none where the address names no user. The error says what to do.
type SecretOf = dyn Fn(&TargetUri) -> Result<Option<Secret>, String> + Send + Sync;

impl Keyring {
    /// What `secret_of` knows. It is called by the array's task, and must not block.
    pub fn new(
        secret_of: impl Fn(&TargetUri) -> Result<Option<Secret>, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(secret_of))
    }

    pub(super) fn secret_of(&self, uri: &TargetUri) -> Result<Option<Secret>, ArrayError> {
        (self.0)(uri).map_err(ArrayError::NoSecret)
    }
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keyring")
    }
}

/// How to reach a member.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// Where it is.
    pub uri: TargetUri,
    /// Its CHAP secret.
    pub secret: Option<Secret>,
    /// Where the secret of a device is found that takes the member's place; without it, such a device has the
    /// secret of a member with the same user.
    pub keyring: Option<Keyring>,
    /// CHAP user and secret that may be replaced while it is in use; before the address's and `secret`.
    pub live_credentials: Option<watch::Receiver<Credentials>>,
    /// iSCSI name of this side; the usual when none.
    pub initiator_name: Option<String>,
    /// Whether it may let this side in without a proof although there is a secret.
    pub allow_none: bool,
    /// What it has to prove in turn: its name, when that matters, and its secret.
    pub mutual: Option<(Option<String>, Secret)>,
    /// Longest that a request to it may take before it is set aside.
    pub request_timeout: Duration,
    /// How long requests wait for a peer that refuses connections; see [`InitiatorConfig::refusal_limit`].
    pub refusal_limit: Duration,
    /// Insist on header and data digests.
    pub digests: bool,
    /// Sessions that share its requests: 1 to 8.
    pub sessions: u8,
}

impl MemberConfig {
    /// A member with the usual deadline.
    #[must_use]
    pub const fn new(uri: TargetUri, secret: Option<Secret>) -> Self {
        let mutual = None;
        Self {
            uri,
            secret,
            keyring: None,
            live_credentials: None,
            initiator_name: None,
            allow_none: false,
            mutual,
            request_timeout: Duration::from_secs(5),
            refusal_limit: REFUSAL_LIMIT,
            digests: false,
            sessions: 1,
        }
    }

    /// Its address, without secrets.
    #[must_use]
    pub fn address(&self) -> String {
        self.uri.to_string()
    }
}

/// A member that answers.
#[derive(Debug, Clone)]
pub(super) struct Connected {
    pub(super) config: MemberConfig,
    pub(super) remote: Arc<Remote>,
    pub(super) device: Device,
    /// Whether only this engine may write to it, and what is to be given back.
    pub(super) standing: Standing,
}

impl Connected {
    /// Connects beside whatever sessions there are, to look at the member.
    pub(super) async fn visit(config: MemberConfig, pool: Pool) -> Result<Self, ArrayError> {
        Self::connect(config, None, pool).await
    }

    /// Connects as the array's engine on this machine: a session of a dead predecessor is ended,
    /// and its commands with it, before this one begins; also those that it made while this machine had an
    /// identity of `former`. Only for who holds the array's lock.
    pub(super) async fn take_over(
        config: MemberConfig,
        array: &Uuid,
        former: &BTreeSet<Uuid>,
        pool: Pool,
    ) -> Result<Self, ArrayError> {
        for former in former {
            let isid = engine_isid(*former, array, &config.uri);
            let sessions = Self::connect(config.clone(), Some(isid), pool.clone()).await?;
            sessions.remote.close().await;
        }
        let isid = engine_isid(machine_id(), array, &config.uri);
        Self::connect(config, Some(isid), pool).await
    }

    async fn connect(
        config: MemberConfig,
        isid: Option<[u8; 6]>,
        pool: Pool,
    ) -> Result<Self, ArrayError> {
        let mut initiator = InitiatorConfig::new(config.uri.clone());
        initiator.secret.clone_from(&config.secret);
        initiator.live_credentials.clone_from(&config.live_credentials);
        if let Some(name) = &config.initiator_name {
            initiator.initiator_name.clone_from(name);
        }
        if let Some((user, secret)) = config.mutual.clone() {
            (initiator.target_user, initiator.target_secret) = (user, Some(secret));
        }
        initiator.request_timeout = config.request_timeout;
        initiator.refusal_limit = config.refusal_limit;
        initiator.isid = isid;
        // A visit looks at a label or two.
        initiator.sessions = if isid.is_some() { config.sessions } else { 1 };
        initiator.allow_none = config.allow_none;
        initiator.header_digest = config.digests;
        initiator.data_digest = config.digests;
        let remote = Arc::new(Remote::connect(initiator, pool).await?);
        let device = remote.clone().into_device();
        Ok(Self { config, remote, device, standing: Standing::default() })
    }

    pub(super) fn address(&self) -> String {
        self.config.address()
    }

    pub(super) fn capacity(&self) -> u64 {
        self.device.info().capacity
    }

    /// The newest valid copy of the label, or why there is none.
    pub(super) async fn label(&self) -> Result<Result<Label, LabelError>, ArrayError> {
        let mut copies = Vec::new();
        for offset in LABEL_OFFSETS {
            if offset + LABEL_LEN as u64 > self.capacity() {
                return Ok(Err(LabelError::Absent));
            }
            match self.read(offset, LABEL_LEN as u64, "reading the label").await {
                Ok(bytes) => copies.push(Some(bytes)),
                Err(ArrayError::Io { reason, .. }) if reason.kind() == ErrorKind::Medium => {
                    copies.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(label_of(copies.iter().map(Option::as_deref)))
    }

    /// The counter of the newest checkpoint that an array with a log has here; none where none can be read.
    pub(super) async fn checkpoint(&self, array: Uuid) -> Option<u64> {
        let mut slots = Vec::new();
        for offset in CHECKPOINT_OFFSETS {
            slots.push(self.read(offset, CHECKPOINT_LEN, "reading a checkpoint").await.ok());
        }
        checkpoint_of(array, slots.iter().map(Option::as_deref))
    }

    /// Refuses a device that could not do what an array needs.
    pub(super) fn check_fit(&self, needs: &Needs) -> Result<(), ArrayError> {
        needs.check(self.device.info()).map_err(|unfit| ArrayError::unfit(self.address(), unfit))
    }

    pub(super) async fn write_label(&self, label: &Label) -> Result<(), ArrayError> {
        for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
            let bytes = Buf::copy_from(&label.encode(copy));
            self.write_stable(&[(offset, bytes)], "writing the label").await?;
        }
        Ok(())
    }

    /// Writes begun marks over both copies of the label, first of all: when the rest is cut short, the
    /// device is unused.
    pub(super) async fn mark_begun(&self) -> Result<(), ArrayError> {
        let mark = Buf::copy_from(&mark::begun(rand::random()));
        let writes = LABEL_OFFSETS.map(|offset| (offset, mark.clone()));
        self.write_stable(&writes, "erasing the label").await
    }

    pub(super) async fn read(
        &self,
        offset: u64,
        len: u64,
        what: &'static str,
    ) -> Result<Buf, ArrayError> {
        let mut all = SgList::new();
        let limit = u64::from(self.device.info().max_transfer_len);
        let mut at = 0;
        while at < len {
            let part = (len - at).min(limit);
            let bytes = completions::read(&self.device, offset + at, part).await;
            all.append(bytes.map_err(|reason| self.fail(what, reason))?);
            at += part;
        }
        Ok(all.to_contiguous())
    }

    pub(super) async fn write(
        &self,
        offset: u64,
        bytes: Buf,
        what: &'static str,
    ) -> Result<(), ArrayError> {
        let end = completions::write(&self.device, offset, bytes.into(), false).await;
        end.map_err(|reason| self.fail(what, reason))
    }

    /// Writes all of `writes`, and makes them stable: again from the first one when the device has
    /// lost its cache before it was flushed.
    pub(super) async fn write_stable(
        &self,
        writes: &[(u64, Buf)],
        what: &'static str,
    ) -> Result<(), ArrayError> {
        for _ in 0..STABLE_TRIES_MAX {
            let losses = self.remote.cache_losses();
            for (offset, bytes) in writes {
                self.write(*offset, bytes.clone(), what).await?;
            }
            let flushed = completions::flush(&self.device).await;
            flushed.map_err(|reason| self.fail("flushing", reason))?;
            if self.remote.cache_losses() == losses {
                return Ok(());
            }
        }
        let text = format!("lost its cache before each of {STABLE_TRIES_MAX} flushes");
        Err(self.fail(what, IoError::with_detail(ErrorKind::Device, text)))
    }

    /// Has a device that may allocate space only when it is written, allocate what an array with a
    /// log cannot do without: then one that runs out of space refuses what users write, and
    /// nothing else. Everything there reads as zeros afterwards.
    pub(super) async fn reserve_tables(&self, regions: &Regions) -> Result<(), ArrayError> {
        if !self.reserves_tables() {
            return Ok(());
        }
        let flags = RequestFlags { no_unmap: true, fua: false };
        let (mut offset, end) = (regions.labels.end(), regions.log.end());
        while offset < end {
            // A slow device has its deadline for each part.
            let len = (end - offset).min(RESERVED_AT_ONCE);
            let (device, none) = (&self.device, SgList::new());
            let part = completions::request(device, Op::WriteZeroes, offset, len, flags, none);
            part.await.map_err(|reason| {
                self.fail("reserving space for the log and the tables", reason)
            })?;
            offset += len;
        }
        Ok(())
    }

    /// Whether [`Self::reserve_tables`] writes anything.
    pub(super) fn reserves_tables(&self) -> bool {
        self.device.info().can_discard
    }

    pub(super) fn fail(&self, what: &'static str, reason: IoError) -> ArrayError {
        ArrayError::Io { address: self.address(), what, reason }
    }

    /// Refuses a device on which there is anything, with its name where it is known, or that
    /// somebody has reserved.
    pub(super) async fn check_unused(&self) -> Result<(), ArrayError> {
        match self.check_empty().await {
            Err(error) if !error.is_conflict() => Err(error),
            // What is reserved may not even be readable.
            Ok(()) | Err(_) if self.is_reserved().await? => {
                let what = "a reservation of another host or engine".to_owned();
                Err(ArrayError::InUse { address: self.address(), what })
            }
            end => end,
        }
    }

    /// Refuses a member of an array that was ever opened.
    pub(super) async fn check_never_opened(&self) -> Result<(), ArrayError> {
        match self.label().await? {
            Ok(label) if label.was_opened() => {
                Err(ArrayError::WasOpened { address: self.address(), name: label.name })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn check_empty(&self) -> Result<(), ArrayError> {
        let in_use = |what| ArrayError::InUse { address: self.address(), what };
        match self.label().await? {
            Ok(label) => {
                let what = format!("member {} of array '{}'", label.index, label.name);
                return Err(in_use(what));
            }
            Err(LabelError::Absent) => {}
            Err(other) => return Err(in_use(format!("a netraid label ({other})"))),
        }
        let len = SIGNATURE_LEN.min(self.capacity());
        let head = self.read(0, len, "looking for signatures").await?;
        let tail = self.read(self.capacity() - len, len, "looking for signatures").await?;
        let copies =
            LABEL_OFFSETS.map(|offset| head.get(narrow::<_, usize>(offset)..)?.get(..LABEL_LEN));
        let first = copies[0];
        // Whoever has used the device since has not left both marks, or has put something else there.
        let is_begun = copies[0] == copies[1] && first.is_some_and(mark::is_begun);
        if is_begun && signature(&head).is_none() {
            return Ok(());
        }
        // A test mark is what is left of a look at it that was interrupted; a begun mark alone, of a beginning.
        let marked = first.is_some_and(|first| mark::is_test(first) || mark::is_begun(first));
        let rest = if marked { &head[LABEL_LEN..] } else { &head[..] };
        if rest.iter().chain(tail.iter()).all(|byte| *byte == 0) {
            return Ok(());
        }
        Err(in_use(signature(&head).unwrap_or("data of unknown kind").into()))
    }
}

/// The ISID of a machine's sessions for an array to a member: of the random kind, but the same each time, by
/// whichever portal it is reached.
fn engine_isid(machine: Uuid, array: &Uuid, uri: &TargetUri) -> [u8; 6] {
    let place = uri.target.bytes().chain(uri.lun.to_be_bytes());
    let bytes = machine.into_iter().chain(*array).chain(place);
    let hash = hash(bytes);
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0x80, a, b, c, d, e]
}

/// What the first bytes of a disk are usually known by: offset, bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 11] = [
    (0, b"NETRAID\n", "a member of a netraid array"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an xfs file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a gpt partition table"),
    (512, b"LABELONE", "an lvm physical volume"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "an md member (metadata 1.2)"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "an md member (metadata 1.1)"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (luks)"),
    (4086, b"SWAPSPACE2", "swap space"),
    (510, &[0x55, 0xaa], "a boot sector or partition table"),
];

/// What the first bytes of a disk say that is on it, where that is something well known.
#[must_use]
pub fn signature(head: &[u8]) -> Option<&'static str> {
    let carried = |(offset, bytes, _): &&(usize, &[u8], &str)| {
        head.get(*offset..offset + bytes.len()) == Some(*bytes)
    };
    SIGNATURES.iter().find(carried).map(|(_, _, name)| *name)
}
