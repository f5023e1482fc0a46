//! A device that an engine has a line to: reading and writing its label, fencing, and giving it back, in straight-line
//! code over a [`Desk`].

use core::{fmt, num::NonZeroU64};
use std::collections::BTreeSet;

use netraid_block::{DeviceInfo, ErrorKind, IoError, Op, RequestFlags, SgList, narrow};
use netraid_raid::{
    access,
    array::MemberCaps,
    assemble::AssembleError,
    fencing::{
        Fence, engine_isid,
        steps::{Answer as Told, Ask, FenceError, Standing, Step, Steps},
    },
    label::{LabelError, Uuid},
    medium::Medium,
    member::MemberIndex,
    volume::{Device, Report},
};
use netraid_remote::{Order, Reason};
use netraid_scsi::cdb::reserve::{self, Keys, Reservation, ReservationType, ReserveOrder};

use super::script::{Desk, LineNumber};

/// Only registered sessions write, all of them hold it, everybody reads.
const KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;
/// Room for the answer of READ KEYS.
const KEYS_LEN: u16 = 8192;

/// Why something that an engine does with a member, or with the array as a whole, cannot be done.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    NoLine(Reason),
    Io(&'static str, IoError),
    Label(LabelError),
    NoLabels,
    Reserved(u64),
    Overtaken(u64),
    Forgetful,
    Contended,
    LabelChanged(u64, u64),
    Changed,
    Unfit(&'static str),
    NotThatMember,
    WentOn,
    Serves(MemberIndex),
    InUse,
    Assemble(AssembleError),
    WrittenBits(&'static str),
    Machine(&'static str, IoError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLine(reason) => write!(f, "no line: {reason}"),
            Self::Io(what, reason) | Self::Machine(what, reason) => write!(f, "{what}: {reason}"),
            Self::Label(reason) => write!(f, "{reason}"),
            Self::NoLabels => f.write_str("no labels"),
            Self::Reserved(key) => write!(f, "key {key:#x} is registered"),
            Self::Overtaken(key) => write!(f, "key {key:#x} came meanwhile"),
            Self::Forgetful => f.write_str("it does not keep registrations"),
            Self::Contended => f.write_str("others come between again and again"),
            Self::LabelChanged(generation, epoch) => {
                write!(f, "the label is another one by now: {generation}.{epoch}")
            }
            Self::Changed => f.write_str("somebody else has opened the array meanwhile"),
            Self::Unfit(what) => write!(f, "{what} does not suffice"),
            Self::NotThatMember => f.write_str("it is not the device that this member had"),
            Self::WentOn => f.write_str("it went on without the others"),
            Self::Serves(member) => write!(f, "it serves as member {member}"),
            Self::InUse => f.write_str("it is in use"),
            Self::Assemble(reason) => write!(f, "{reason}"),
            Self::WrittenBits(what) => write!(f, "written bits: {what}"),
        }
    }
}

impl Failure {
    /// Whether somebody else has the device now.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Io(_, reason) => reason.kind() == ErrorKind::Fenced,
            Self::NoLine(reason) => matches!(reason, Reason::Plan | Reason::Fenced),
            Self::Label(_)
            | Self::NoLabels
            | Self::Reserved(_)
            | Self::Overtaken(_)
            | Self::Forgetful
            | Self::Contended
            | Self::LabelChanged(..)
            | Self::Changed
            | Self::Unfit(_)
            | Self::NotThatMember
            | Self::WentOn
            | Self::Serves(_)
            | Self::InUse
            | Self::Assemble(_)
            | Self::WrittenBits(_)
            | Self::Machine(..) => false,
        }
    }
}

impl From<FenceError> for Failure {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Failed { what, reason } => Self::Io(what, reason),
            FenceError::Reserved { key } => Self::Reserved(key),
            FenceError::Overtaken { key } => Self::Overtaken(key),
            FenceError::Forgetful => Self::Forgetful,
            FenceError::Contended => Self::Contended,
        }
    }
}

impl access::Failure for Failure {
    fn is_conflict(&self) -> bool {
        Self::is_conflict(self)
    }

    fn is_refusal(&self) -> bool {
        matches!(self, Self::Io(_, reason) if reason.is_refusal())
    }
}

/// A device with a line to it.
#[derive(Debug, Clone)]
pub(super) struct Connected {
    desk: Desk,
    pub(super) host: usize,
    pub(super) line: LineNumber,
    pub(super) info: DeviceInfo,
    /// How often it had lost its cache before anything was read of it, or written to it.
    losses_before: u64,
    /// Whether only this engine may write to it, and what is to be given back.
    pub(super) standing: Standing,
}

impl Connected {
    /// Connects beside whatever sessions there are, to look at the device.
    pub(super) async fn visit(desk: Desk, host: usize) -> Result<Self, Failure> {
        Self::connect(desk, host, None).await
    }

    /// Connects as the array's engine on this machine: a session of a dead predecessor is ended, and its commands with
    /// it, before this one begins; also those that it made while this machine had an identity of `former`.
    pub(super) async fn take_over(
        desk: Desk,
        host: usize,
        (machine, array): (Uuid, Uuid),
        former: &BTreeSet<Uuid>,
    ) -> Result<Self, Failure> {
        for former in former {
            let isid = engine_isid(*former, array, place(host));
            let sessions = Self::connect(desk.clone(), host, Some(isid)).await?;
            desk.close(sessions.line).await;
        }
        Self::connect(desk, host, Some(engine_isid(machine, array, place(host)))).await
    }

    async fn connect(desk: Desk, host: usize, isid: Option<[u8; 6]>) -> Result<Self, Failure> {
        let (line, opened) = desk.dial(host, isid).await;
        let info = opened.map_err(Failure::NoLine)?.info;
        let losses_before = desk.status(line).cache_losses;
        Ok(Self { desk, host, line, info, losses_before, standing: Standing::default() })
    }

    pub(super) async fn close(&self) {
        self.desk.close(self.line).await;
    }

    pub(super) fn address(&self) -> String {
        address(self.host)
    }

    /// What is written from now on is what counts.
    pub(super) fn note_losses(&mut self) {
        self.losses_before = self.cache_losses();
    }

    /// What the machine must know of the device.
    pub(super) const fn caps(&self) -> MemberCaps {
        let DeviceInfo { volatile_cache, can_discard, .. } = self.info;
        MemberCaps { volatile_cache, can_discard }
    }

    /// What a volume must know of it; its requests rely from now on on what is there.
    pub(super) fn device(&self) -> Device {
        self.desk.rely_on(self.line, self.losses_before);
        Device {
            address: self.address(),
            caps: self.caps(),
            max_transfer_len: self.info.max_transfer_len,
            cache_losses: self.losses_before,
        }
    }

    pub(super) fn cache_losses(&self) -> u64 {
        self.desk.status(self.line).cache_losses
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.desk.status(self.line).is_fenced
    }

    /// What its sessions say now.
    pub(super) fn report(&self, request_timeout: core::time::Duration) -> Report {
        let status = self.desk.status(self.line);
        let has_session = status.is_connected && !status.is_fenced;
        Report {
            is_fenced: status.is_fenced,
            is_connected: status.is_connected,
            is_gone: status.is_gone,
            signs: status.signs,
            cache_losses: status.cache_losses,
            request_timeout,
            failure: if has_session { String::new() } else { "no session".into() },
        }
    }

    /// Lets no other engine write to the device, by these steps; its standing tells.
    pub(super) async fn fence(&mut self, steps: Steps) -> Result<(), FenceError> {
        let end = self.go(steps).await;
        if end.is_ok() {
            self.desk.note_fenced(self.line, self.standing.exclusive);
        }
        end
    }

    /// Registers this engine beside what is known to be registered.
    pub(super) async fn announce(
        &mut self,
        fence: Fence,
        known: BTreeSet<u64>,
    ) -> Result<(), FenceError> {
        self.go(Steps::announce(self.standing, fence, known)).await
    }

    /// Makes sure that nobody has taken the device over since it was fenced.
    pub(super) async fn check_fenced(&self) -> Result<(), FenceError> {
        let mut this = self.clone();
        this.go(Steps::check(self.standing)).await
    }

    /// Ends the session; others may write again.
    pub(super) async fn leave(&mut self) {
        self.desk.note_leaving(self.line);
        // It says itself what stays.
        let _ = self.go(Steps::renounce(self.standing)).await;
        self.close().await;
    }

    async fn go(&mut self, mut steps: Steps) -> Result<(), FenceError> {
        loop {
            let step = steps.poll();
            self.standing = steps.standing();
            match step {
                Step::Ask(ask) => {
                    let told = self.ask(ask).await;
                    self.desk.note(format!("host {}: {ask:x?}: {told:x?}", self.host));
                    steps.answer(told);
                }
                Step::Tell(notice) => self.desk.note(format!("host {}: {notice:?}", self.host)),
                Step::Done(end) => return end,
            }
        }
    }

    /// The keys that are registered; there are more where the list is cut.
    pub(super) async fn keys(&self) -> Result<(Vec<u64>, bool), IoError> {
        let answer = self.inquire(reserve::read_keys(KEYS_LEN), KEYS_LEN).await?;
        let keys = Keys::decode(&answer).ok_or(ErrorKind::Device)?;
        Ok((keys.keys, keys.is_cut))
    }

    async fn ask(&self, ask: Ask) -> Told {
        let done = match ask {
            Ask::Keys => {
                return match self.keys().await {
                    Ok((keys, is_cut)) => Told::Keys { keys, is_cut },
                    Err(error) => Told::Failed(error),
                };
            }
            Ask::Reservation => {
                return match self.reservation().await {
                    Ok(held) => Told::Reservation(held.map(|held| held.kind == KIND)),
                    Err(error) => Told::Failed(error),
                };
            }
            Ask::Presence => {
                let status = self.desk.status(self.line);
                return Told::Presence(status.is_connected && !status.is_fenced);
            }
            Ask::Register { key, ignore } => self.register(key.get(), ignore).await,
            Ask::Unregister => self.register(0, true).await,
            Ask::Reserve(key) => self.demand(reserve::reserve(key.get(), KIND)).await,
            Ask::Release(key) => self.demand(reserve::release(key.get(), KIND)).await,
            Ask::Preempt { key, other, aborts } => self.preempt(key, other, aborts).await,
            Ask::Clear(key) => {
                self.desk.order(self.line, Order::Clear { key: key.get() }).await.map(drop)
            }
        };
        match done {
            Ok(()) => Told::Done,
            Err(error) => Told::Failed(error),
        }
    }

    async fn preempt(
        &self,
        key: NonZeroU64,
        other: NonZeroU64,
        aborts: bool,
    ) -> Result<(), IoError> {
        self.demand(reserve::preempt(key.get(), other.get(), KIND, aborts)).await
    }

    async fn register(&self, key: u64, ignore: bool) -> Result<(), IoError> {
        self.desk.order(self.line, Order::Register { key, ignore }).await.map(drop)
    }

    async fn reservation(&self) -> Result<Option<Reservation>, IoError> {
        let answer = self.inquire(reserve::read_reservation(24), 24).await?;
        Reservation::decode(&answer).ok_or_else(|| ErrorKind::Device.into())
    }

    async fn inquire(
        &self,
        cdb: netraid_scsi::cdb::build::CdbBytes,
        len: u16,
    ) -> Result<Vec<u8>, IoError> {
        let read_len = u32::from(len);
        self.desk.order(self.line, Order::Once { cdb, parameters: Vec::new(), read_len }).await
    }

    async fn demand(&self, order: ReserveOrder) -> Result<(), IoError> {
        let ReserveOrder { cdb, parameters } = order;
        self.desk.order(self.line, Order::Once { cdb, parameters, read_len: 0 }).await.map(drop)
    }
}

impl Medium for Connected {
    type Error = Failure;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn cache_losses(&self) -> u64 {
        self.desk.status(self.line).cache_losses
    }

    async fn request(
        &self,
        what: (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) -> Result<SgList, IoError> {
        self.desk.request(self.line, what, flags, data).await
    }

    async fn is_reserved(&self) -> Result<bool, IoError> {
        Ok(self.reservation().await?.is_some())
    }

    fn failure(&self, what: &'static str, reason: IoError) -> Failure {
        Failure::Io(what, reason)
    }

    fn in_use(&self, _what: String) -> Failure {
        Failure::InUse
    }
}

/// Where a host's disk is.
pub(super) fn address(host: usize) -> String {
    format!("host {host}")
}

/// The place of a host's disk, for what tells sessions apart.
fn place(host: usize) -> [u8; 1] {
    [narrow(host)]
}
