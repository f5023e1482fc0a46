//! A device that an engine has a line to: reading and writing its label, fencing, and giving it back, in straight-line
//! code over a [`Desk`].

use core::{fmt, num::NonZeroU64};
use std::collections::BTreeSet;

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError, Op, RequestFlags, SgList, narrow};
use netraid_raid::{
    access::{self, checkpoint_of, label_of},
    array::MemberCaps,
    assemble::AssembleError,
    fencing::{
        hash,
        steps::{Answer as Told, Ask, FenceError, Standing, Step, Steps},
    },
    label::{LABEL_LEN, Label, LabelError, Uuid},
    member::MemberIndex,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, PAGE_LEN, Regions},
    volume::{Device, Report},
};
use netraid_remote::{Order, Reason};
use netraid_scsi::cdb::reserve::{self, Keys, Reservation, ReservationType, ReserveOrder};

use super::script::{Desk, LineNumber};

/// Only registered sessions write, all of them hold it, everybody reads.
const KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;
/// Room for the answer of READ KEYS.
const KEYS_LEN: u16 = 8192;
/// Writes that are repeated from the first one at most so often when the cache was lost before they were stable.
const STABLE_TRIES_MAX: usize = 4;
/// Bytes that are proven to be writable at the end of the data.
const END_LEN: u64 = 4096;
/// Bytes of a part of the tables that is reserved at once.
const RESERVED_AT_ONCE: u64 = 16 << 20;

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
}

/// A device with a line to it.
#[derive(Debug, Clone)]
pub(super) struct Connected {
    desk: Desk,
    pub(super) host: usize,
    pub(super) line: LineNumber,
    pub(super) info: DeviceInfo,
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
            let isid = engine_isid(*former, &array, host);
            let sessions = Self::connect(desk.clone(), host, Some(isid)).await?;
            desk.close(sessions.line).await;
        }
        Self::connect(desk, host, Some(engine_isid(machine, &array, host))).await
    }

    async fn connect(desk: Desk, host: usize, isid: Option<[u8; 6]>) -> Result<Self, Failure> {
        let (line, opened) = desk.dial(host, isid).await;
        let info = opened.map_err(Failure::NoLine)?.info;
        Ok(Self { desk, host, line, info, standing: Standing::default() })
    }

    pub(super) async fn close(&self) {
        self.desk.close(self.line).await;
    }

    pub(super) fn address(&self) -> String {
        address(self.host)
    }

    /// What the machine must know of the device.
    pub(super) const fn caps(&self) -> MemberCaps {
        let DeviceInfo { volatile_cache, can_discard, .. } = self.info;
        MemberCaps { volatile_cache, can_discard }
    }

    /// What a volume must know of it.
    pub(super) fn device(&self) -> Device {
        Device {
            address: self.address(),
            caps: self.caps(),
            max_transfer_len: self.info.max_transfer_len,
            cache_losses: self.cache_losses(),
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

    /// The newest valid copy of the label, or why there is none.
    pub(super) async fn label(&self) -> Result<Result<Label, LabelError>, Failure> {
        let mut copies = Vec::new();
        for offset in LABEL_OFFSETS {
            match self.read(offset, LABEL_LEN as u64, "reading the label").await {
                Ok(bytes) => copies.push(Some(bytes)),
                Err(Failure::Io(_, reason)) if reason.kind() == ErrorKind::Medium => {
                    copies.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(label_of(copies.iter().map(|copy| copy.as_ref().map(|bytes| &bytes[..]))))
    }

    /// The counter of the newest checkpoint of an array with a log.
    pub(super) async fn checkpoint(&self, array: Uuid) -> Option<u64> {
        let mut slots = Vec::new();
        for offset in CHECKPOINT_OFFSETS {
            slots.push(self.read(offset, PAGE_LEN.into(), "reading a checkpoint").await.ok());
        }
        checkpoint_of(array, slots.iter().map(|slot| slot.as_ref().map(|bytes| &bytes[..])))
    }

    pub(super) async fn read(
        &self,
        offset: u64,
        len: u64,
        what: &'static str,
    ) -> Result<Buf, Failure> {
        let mut all = SgList::new();
        let limit = u64::from(self.info.max_transfer_len);
        let mut at = 0;
        while at < len {
            let part = (len - at).min(limit);
            let what_to_do = (Op::Read, offset + at, part);
            let flags = RequestFlags::default();
            let read = self.desk.request(self.line, what_to_do, flags, SgList::new()).await;
            all.append(read.map_err(|reason| Failure::Io(what, reason))?);
            at += part;
        }
        Ok(all.to_contiguous())
    }

    /// Writes all of `writes`, and makes them stable: again from the first one when the device has lost its cache before.
    async fn write_stable(&self, writes: &[(u64, Buf)], what: &'static str) -> Result<(), Failure> {
        let flags = RequestFlags::default();
        for _ in 0..STABLE_TRIES_MAX {
            let losses = self.cache_losses();
            for (offset, bytes) in writes {
                let what_to_do = (Op::Write, *offset, bytes.len() as u64);
                let data = bytes.clone().into();
                let written = self.desk.request(self.line, what_to_do, flags, data).await;
                written.map_err(|reason| Failure::Io(what, reason))?;
            }
            let flush = (Op::Flush, 0, 0);
            let flushed = self.desk.request(self.line, flush, flags, SgList::new()).await;
            flushed.map_err(|reason| Failure::Io("flushing", reason))?;
            if self.cache_losses() == losses {
                return Ok(());
            }
        }
        Err(Failure::Io(what, ErrorKind::Device.into()))
    }

    /// Proves that the device takes writes and makes them stable: it is given the bytes that are there.
    pub(super) async fn prove_writable(&self, data_end: u64) -> Result<(), Failure> {
        let labels = LABEL_OFFSETS.map(|offset| (offset, LABEL_LEN as u64));
        let end = (data_end.saturating_sub(END_LEN), END_LEN);
        let mut there = Vec::new();
        for (offset, len) in labels.into_iter().chain([end]) {
            match self.read(offset, len, "reading what is to be overwritten").await {
                Ok(bytes) => there.push((offset, bytes)),
                Err(Failure::Io(_, reason)) if reason.kind() == ErrorKind::Medium => {}
                Err(error) => return Err(error),
            }
        }
        self.write_stable(&there, "proving that it takes writes").await
    }

    /// Has the device allocate what an array with a log cannot do without.
    pub(super) async fn reserve_tables(&self, regions: &Regions) -> Result<(), Failure> {
        if !self.info.can_discard {
            return Ok(());
        }
        let flags = RequestFlags { no_unmap: true, fua: false };
        let (mut offset, end) = (regions.labels.end(), regions.log.end());
        while offset < end {
            let len = (end - offset).min(RESERVED_AT_ONCE);
            let zeroes = (Op::WriteZeroes, offset, len);
            let part = self.desk.request(self.line, zeroes, flags, SgList::new()).await;
            part.map_err(|reason| Failure::Io("reserving space", reason))?;
            offset += len;
        }
        Ok(())
    }

    /// Refuses a device with a label, or with anything at its beginning or its end.
    pub(super) async fn check_unused(&self) -> Result<(), Failure> {
        if !matches!(self.label().await?, Err(LabelError::Absent)) {
            return Err(Failure::InUse);
        }
        let held = self.reservation().await;
        let is_reserved = match held {
            Ok(held) => held.is_some(),
            Err(error) if error.kind() == ErrorKind::Unsupported => false,
            Err(error) => return Err(Failure::Io("looking for reservations", error)),
        };
        if is_reserved { Err(Failure::InUse) } else { Ok(()) }
    }

    /// Lets no other engine write to the device, by these steps; its standing tells.
    pub(super) async fn fence(&mut self, steps: Steps) -> Result<(), FenceError> {
        let end = self.go(steps).await;
        if end.is_ok() {
            self.desk.note_fenced(self.line, self.standing.exclusive);
        }
        end
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

/// Where a host's disk is.
pub(super) fn address(host: usize) -> String {
    format!("host {host}")
}

/// The ISID of a machine's sessions for an array to a host: of the random kind, but the same each time.
fn engine_isid(machine: Uuid, array: &Uuid, host: usize) -> [u8; 6] {
    let place: u8 = narrow(host);
    let hash = hash(machine.into_iter().chain(*array).chain([place]));
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0x80, a, b, c, d, e]
}
