//! A device that an engine has a line to: reading and writing its label, fencing, and giving it back, in straight-line
//! code over a [`Desk`].

use core::{fmt, num::NonZeroU64};

use netraid_block::{DeviceInfo, ErrorKind, IoError, Op, RequestFlags, SgList};
use netraid_raid::{
    access,
    assemble::AssembleError,
    fencing::steps::{Answer as Told, Ask, FenceError, Notice},
    label::LabelError,
    medium::Medium,
    member::MemberIndex,
    reach::{Hold, Sessions},
    volume::Report,
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
    /// It cannot shut out an engine that may be alive.
    CannotShutOut,
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
            Self::CannotShutOut => f.write_str("it cannot shut out an engine that may be alive"),
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
            Self::NoLine(reason) => {
                matches!(reason, Reason::Plan | Reason::PlanDenied(_) | Reason::Fenced)
            }
            Self::Label(_)
            | Self::NoLabels
            | Self::Reserved(_)
            | Self::Overtaken(_)
            | Self::Forgetful
            | Self::CannotShutOut
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
            FenceError::CannotShutOut => Self::CannotShutOut,
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
    info: DeviceInfo,
    /// What the engine has of it.
    hold: Hold,
}

impl Connected {
    /// Makes a line to the device; `isid` tells whose it is, if anybody's.
    pub(super) async fn connect(
        desk: Desk,
        host: usize,
        isid: Option<[u8; 6]>,
    ) -> Result<Self, Failure> {
        let (line, opened) = desk.dial(host, isid).await;
        let info = opened.map_err(Failure::NoLine)?.info;
        Ok(Self { desk, host, line, info, hold: Hold::default() })
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
            reconnects: status.reconnects,
            request_timeout,
            failure: if has_session { String::new() } else { "no session".into() },
        }
    }

    /// This engine has fenced the device.
    pub(super) fn note_fenced(&self, is_exclusive: bool) {
        self.desk.note_fenced(self.line, is_exclusive);
    }

    /// The keys that are registered; there are more where the list is cut.
    async fn keys(&self) -> Result<(Vec<u64>, bool), IoError> {
        let answer = self.inquire(reserve::read_keys(KEYS_LEN), KEYS_LEN).await?;
        let keys = Keys::decode(&answer).ok_or(ErrorKind::Device)?;
        Ok((keys.keys, keys.is_cut))
    }

    async fn told_of(&self, ask: Ask) -> Told {
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

impl Sessions for Connected {
    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }

    fn address(&self) -> String {
        address(self.host)
    }

    async fn ask(&self, ask: Ask) -> Told {
        let told = self.told_of(ask).await;
        self.desk.note(format!("host {}: {ask:x?}: {told:x?}", self.host));
        told
    }

    fn tell(&self, notice: Notice) {
        self.desk.note(format!("host {}: {notice:?}", self.host));
    }

    fn rely_on(&self, cache_losses: u64) {
        self.desk.rely_on(self.line, cache_losses);
    }

    fn note_leaving(&self) {
        self.desk.note_leaving(self.line);
    }

    async fn close(&self) {
        self.desk.close(self.line).await;
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
