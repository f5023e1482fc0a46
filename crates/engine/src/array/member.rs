//! One member from the shell's side: connecting, what is on it, its label.

use std::{sync::Arc, time::Duration};

use netraid_block::{Buf, Device, DeviceInfo, IoError, Op, Pool, RequestFlags, SgList, TargetUri};
use netraid_raid::{
    access::Needs,
    fencing::READER_KEYS,
    label::{Label, LabelError, Uuid},
    mark,
    medium::{self, Medium},
    reach::{self, Dial, Hold},
    regions::LABEL_OFFSETS,
};
use tokio::sync::watch;

use super::{error::ArrayError, lock::machine_id};
use crate::{
    completions,
    initiator::{Credentials, InitiatorConfig, REFUSAL_LIMIT, Remote, Secret},
};

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
    /// Longest that a request to it may take before it is set aside. In an array with a log a write may take from a tenth of it on,
    /// where the member answers nothing at all and the others do ([`netraid_raid::slowness::Deadlines::within`]).
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
    /// What this engine has of it.
    pub(super) hold: Hold,
}

/// A device that may be a member, and the sessions to it where there are any.
pub(super) type Reached = reach::Reached<Dialer>;

/// Makes sessions to a device.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) config: MemberConfig,
    pub(super) pool: Pool,
}

impl Dial for Dialer {
    type Sessions = Connected;

    async fn dial(&self, isid: Option<[u8; 6]>) -> Result<Connected, ArrayError> {
        Connected::connect(self.config.clone(), isid, self.pool.clone()).await
    }

    fn machine(&self) -> Uuid {
        machine_id()
    }

    fn place(&self) -> impl Iterator<Item = u8> {
        let uri = &self.config.uri;
        uri.target.bytes().chain(uri.lun.to_be_bytes())
    }

    fn address(&self) -> String {
        self.config.address()
    }
}

impl Connected {
    /// Connects beside whatever sessions there are, to look at the member.
    pub(super) async fn visit(config: MemberConfig, pool: Pool) -> Result<Self, ArrayError> {
        Self::connect(config, None, pool).await
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
        initiator.reader_keys = Some(READER_KEYS);
        initiator.isid = isid;
        // A visit looks at a label or two.
        initiator.sessions = if isid.is_some() { config.sessions } else { 1 };
        initiator.allow_none = config.allow_none;
        initiator.header_digest = config.digests;
        initiator.data_digest = config.digests;
        let remote = Arc::new(Remote::connect(initiator, pool).await?);
        let device = remote.clone().into_device();
        Ok(Self { config, remote, device, hold: Hold::default() })
    }

    pub(super) fn address(&self) -> String {
        self.config.address()
    }

    pub(super) fn capacity(&self) -> u64 {
        self.device.info().capacity
    }

    /// The newest valid copy of the label, or why there is none.
    pub(super) async fn label(&self) -> Result<Result<Label, LabelError>, ArrayError> {
        medium::label(self).await
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
        medium::read(self, offset, len, what).await
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

    pub(super) async fn write_stable(
        &self,
        writes: &[(u64, Buf)],
        what: &'static str,
    ) -> Result<(), ArrayError> {
        medium::write_stable(self, writes, what).await
    }

    pub(super) fn fail(&self, what: &'static str, reason: IoError) -> ArrayError {
        ArrayError::Io { address: self.address(), what, reason }
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
}

impl Medium for Connected {
    type Error = ArrayError;

    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn cache_losses(&self) -> u64 {
        self.remote.cache_losses()
    }

    async fn request(
        &self,
        (op, offset, len): (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) -> Result<SgList, IoError> {
        completions::request(&self.device, op, offset, len, flags, data).await
    }

    async fn is_reserved(&self) -> Result<bool, IoError> {
        Ok(self.remote.reservation().await?.is_some())
    }

    fn failure(&self, what: &'static str, reason: IoError) -> ArrayError {
        self.fail(what, reason)
    }

    fn in_use(&self, what: String) -> ArrayError {
        ArrayError::InUse { address: self.address(), what }
    }
}
