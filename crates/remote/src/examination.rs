//! What a logical unit says of itself: asked when a session is made, and when the disk says that something has changed.
//!
//! Invariant: one command after the other, on a session that carries nothing else meanwhile. Who is registered is asked
//! before anything that may write could be sent.

use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};
use core::time::Duration;

use netraid_block::{Buf, SgList, narrow};
use netraid_iscsi_proto::{
    initiator::{Command, TaskEnd},
    pdu::LunField,
};
use netraid_planted::{Planted, planted};
use netraid_scsi::{
    Additional, Sense, Status,
    capacity::Capacity,
    cdb::{
        build::{self, CdbBytes},
        reserve::{Keys, read_keys, register},
    },
    inquiry::{self, StandardInquiry},
    limits::{BlockLimits, Provisioning},
    mode::ModeData,
};

use crate::{
    Reason,
    disk::Profile,
    link::Done,
    verdict::{self, Attention, Verdict},
};

/// Largest transfer that is used, in bytes; also the largest buffer that a pool keeps.
const TRANSFER_LEN_MAX: u32 = 2 << 20;
/// Times that a command is sent again because the disk told something first, or is busy.
const TRIES_MAX: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of an answer about the keys that are registered.
const KEYS_LEN: u16 = 8 + 8 * 64;

/// Who a disk says that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteIdentity {
    /// Vendor.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Unit serial number (VPD page 80h).
    pub serial: Option<String>,
    /// The designator of the logical unit that is best: NAA, else EUI-64, else T10 vendor
    /// (VPD page 83h).
    pub designator: Option<Vec<u8>>,
}

/// What was learned of a disk.
pub(crate) struct Probed {
    pub(crate) identity: RemoteIdentity,
    pub(crate) profile: Profile,
    pub(crate) heard: Heard,
}

/// What a disk told while it was examined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// It was reset or restarted, or this session is new to it.
    pub(crate) cache_lost: bool,
    /// It has missed this session, and remembers it.
    pub(crate) nexus_lost: bool,
}

impl Heard {
    /// Whether what was written before this session and not flushed may be gone. A disk that
    /// remembers the session has kept its memory; of one that says nothing, nothing is known.
    pub(crate) const fn may_have_lost_its_cache(self) -> bool {
        self.cache_lost || !self.nexus_lost
    }
}

impl Probed {
    /// Whether this is the disk that was found `first`, and still as its users were told.
    pub(crate) fn check_successor(&self, first: &Self) -> Result<(), Reason> {
        let (new, old) = (&self.profile, &first.profile);
        let distinct = first.identity.serial.is_some() || first.identity.designator.is_some();
        // A disk may grow; one without a name of its own is known by its size, too.
        let may_differ = distinct && self.identity == first.identity;
        if may_differ && new.block_len == old.block_len && new.blocks < old.blocks {
            return Err(Reason::Shrunk { blocks: new.blocks, told: old.blocks });
        }
        let size_fits = new.blocks == old.blocks || may_differ;
        let is_other =
            self.identity != first.identity && !planted(Planted::OtherDiskAcceptedAfterReconnect);
        if is_other || new.block_len != old.block_len || !size_fits {
            return Err(Reason::OtherDisk);
        }
        if old.write_cache == Some(false) && new.write_cache != Some(false) {
            return Err(Reason::CacheAppeared);
        }
        Ok(())
    }
}

/// How a disk is to be examined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Examine {
    /// The number of the logical unit.
    pub(crate) lun: u16,
    /// The key that the session must be registered with still.
    pub(crate) key: Option<u64>,
    /// As [`crate::Settings::reader_keys`].
    pub(crate) reader_keys: Option<(u64, u64)>,
    /// The session is new.
    pub(crate) is_new: bool,
    /// What was told to examinations before.
    pub(crate) untold: Untold,
    /// Longest that it may take.
    pub(crate) limit: Duration,
}

/// What the disk may have told the nexus of a lost cache without anybody having noted it. A unit attention is told once,
/// perhaps to an examination that fails then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untold {
    /// Nothing.
    Nothing,
    /// Nobody knows what.
    Something,
    /// That it was lost.
    Loss,
}

/// The examination of a disk, on its way.
pub(crate) struct Examination {
    how: Examine,
    until: Duration,
    step: Step,
    heard: Heard,
    /// What the disk told before the examination proper.
    first: Heard,
    /// How often the command at hand was sent.
    tries: u32,
    is_under_way: bool,
    /// Not before: the disk was busy.
    not_before: Option<Duration>,
    found: Found,
}

/// The command at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Is the session registered still?
    Key,
    /// It is not: is anybody?
    KeysLeft,
    /// Lets the disk tell what it has to tell first.
    Greeting,
    Ready,
    Standard,
    Serial,
    Names,
    Capacity,
    ShortCapacity,
    Limits,
    Provisioning,
    Mode,
}

/// What was found so far.
#[derive(Default)]
struct Found {
    standard: Option<StandardInquiry>,
    serial: Option<String>,
    designator: Option<Vec<u8>>,
    capacity: Option<Capacity>,
    limits: BlockLimits,
    provisioning: Provisioning,
}

impl Examination {
    pub(crate) fn new(now: Duration, how: Examine) -> Self {
        let step = if how.key.is_some() { Step::Key } else { Step::Greeting };
        Self {
            how,
            until: now + how.limit,
            step,
            heard: Heard::default(),
            first: Heard::default(),
            tries: 0,
            is_under_way: false,
            not_before: None,
            found: Found::default(),
        }
    }

    /// The command that is to be sent now, where the session has room for it.
    pub(crate) fn next_command(&mut self, now: Duration) -> Option<(Command, SgList)> {
        if self.is_under_way || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        self.is_under_way = true;
        self.not_before = None;
        let lun = LunField::from_number(self.how.lun);
        if let (Step::Key, Some(key)) = (self.step, self.how.key) {
            // Registering it anew in its own place succeeds only when it is registered (SPC-4, section 6.16.2).
            let order = register(key, key);
            let write_len = narrow(order.parameters.len());
            let command = Command { lun, cdb: order.cdb, read_len: 0, write_len };
            return Some((command, Buf::copy_from(&order.parameters).into()));
        }
        let (cdb, read_len) = self.inquiry();
        Some((Command { lun, cdb, read_len, write_len: 0 }, SgList::new()))
    }

    /// A command has ended; what was learned, when it was the last one.
    pub(crate) fn handle_done(
        &mut self,
        now: Duration,
        done: Done,
    ) -> Result<Option<Probed>, Reason> {
        assert!(self.is_under_way, "an answer that was not asked for");
        self.is_under_way = false;
        self.tries += 1;
        let end = without_residual(done.end);
        let (refusal, received, sent) = read_end(&end);
        // An answer may be shorter or longer than what it was given room for.
        match verdict::judge(&end, received, sent, "") {
            Verdict::Success => {
                return self.take(Ok(done.data.as_deref().unwrap_or_default()));
            }
            Verdict::Attention(Attention::CacheLost) => self.heard.cache_lost = true,
            Verdict::Attention(Attention::NexusLost) => self.heard.nexus_lost = true,
            Verdict::Attention(
                Attention::Changed
                | Attention::Reservations
                | Attention::Cleared
                | Attention::Other,
            ) => {}
            Verdict::Later => self.not_before = Some(now + RETRY_PAUSE),
            Verdict::NotSupported { .. } | Verdict::Mismatch(_) | Verdict::Fail(_) => {
                return self.take(Err(refusal));
            }
        }
        if self.tries < TRIES_MAX { Ok(None) } else { self.take(Err(refusal)) }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(crate) fn next_timeout(&self) -> Duration {
        self.not_before.map_or(self.until, |at| at.min(self.until))
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Duration) -> Result<(), Reason> {
        self.not_before = self.not_before.filter(|at| now < *at);
        if now < self.until { Ok(()) } else { Err(Reason::Silent(self.how.limit)) }
    }

    /// What the disk may have told of a lost cache that only this examination knows, and those before.
    pub(crate) const fn untold(&self) -> Untold {
        let has_greeted = !matches!(self.step, Step::Key | Step::KeysLeft | Step::Greeting);
        let Examine { untold, is_new, .. } = self.how;
        // Any target tells a session that is new to it that it was powered on.
        let is_unknown = is_new && !self.first.nexus_lost;
        match untold {
            _ if self.first.cache_lost || self.heard.cache_lost => Untold::Loss,
            Untold::Nothing if has_greeted && !is_unknown => Untold::Nothing,
            Untold::Nothing | Untold::Something => Untold::Something,
            Untold::Loss => Untold::Loss,
        }
    }

    fn inquiry(&self) -> (CdbBytes, u32) {
        // 255 bytes is what every disk takes; pages that are longer are read as far as they come.
        let page = |page| (build::inquiry(Some(page), 255), 255);
        match self.step {
            Step::Key | Step::Greeting | Step::Ready => (build::test_unit_ready(), 0),
            Step::KeysLeft => (read_keys(KEYS_LEN), u32::from(KEYS_LEN)),
            Step::Standard => (build::inquiry(None, 255), 255),
            Step::Serial => page(inquiry::PAGE_SERIAL),
            Step::Names => page(inquiry::PAGE_IDENTIFICATION),
            Step::Capacity => (build::read_capacity_16(32), 32),
            Step::ShortCapacity => (build::read_capacity_10(), 8),
            Step::Limits => page(inquiry::PAGE_BLOCK_LIMITS),
            Step::Provisioning => page(inquiry::PAGE_PROVISIONING),
            Step::Mode => (build::mode_sense_6(0x08, 255), 255),
        }
    }

    /// Takes the answer to the command at hand, and goes on to the next one.
    fn take(&mut self, answer: Result<&[u8], Refusal>) -> Result<Option<Probed>, Reason> {
        self.tries = 0;
        let found = &mut self.found;
        self.step = match self.step {
            Step::Key => match answer {
                Ok(_) => self.begin_proper(),
                // Without memory of the time before it says nothing of who took over.
                Err(Refusal::Conflict)
                    if self.heard.cache_lost || self.how.untold == Untold::Loss =>
                {
                    return Err(Reason::Forgotten);
                }
                Err(Refusal::Conflict) => Step::KeysLeft,
                Err(refusal) => return Err(failed("PERSISTENT RESERVE OUT", &refusal)),
            },
            Step::KeysLeft => {
                return Err(self.loss_of_key(answer));
            }
            Step::Greeting => {
                demand("TEST UNIT READY", answer)?;
                self.begin_proper()
            }
            Step::Ready => {
                demand("TEST UNIT READY", answer)?;
                Step::Standard
            }
            Step::Standard => {
                found.standard = Some(check_standard(demand("INQUIRY", answer)?)?);
                Step::Serial
            }
            Step::Serial => {
                let serial = answer.ok().and_then(inquiry::decode_serial);
                found.serial = serial.filter(|serial| !serial.is_empty());
                Step::Names
            }
            Step::Names => {
                found.designator = answer.ok().and_then(best_designator);
                Step::Capacity
            }
            Step::Capacity => match answer.ok().and_then(Capacity::decode_16) {
                Some(capacity) => found.take_capacity(capacity)?,
                None => Step::ShortCapacity,
            },
            Step::ShortCapacity => {
                const COMMAND: &str = "READ CAPACITY";
                let capacity = Capacity::decode_10(demand(COMMAND, answer)?);
                found.take_capacity(capacity.ok_or_else(|| unreadable(COMMAND))?)?
            }
            Step::Limits => {
                found.limits = answer.ok().and_then(BlockLimits::decode).unwrap_or_default();
                Step::Provisioning
            }
            Step::Provisioning => {
                found.provisioning = answer.ok().and_then(Provisioning::decode).unwrap_or_default();
                Step::Mode
            }
            Step::Mode => return self.conclude(answer.ok().and_then(ModeData::decode_6)).map(Some),
        };
        Ok(None)
    }

    /// Why this session is not registered any more, by the keys that are left.
    fn loss_of_key(&self, left: Result<&[u8], Refusal>) -> Reason {
        let keys = match left {
            // A logical unit that is gone does not tell its keys: the next session reads them.
            Err(refusal) if refusal.is_without_lun() => return Reason::NoLun,
            left => left.ok().and_then(Keys::decode).filter(|keys| !keys.is_cut),
        };
        // Who had taken over would be registered. A disk that keeps registrations no longer than sessions has forgotten
        // this one, and another session of this side may have been registered anew since.
        let is_own = |key: &u64| Some(*key) == self.how.key;
        let Some(Keys { mut keys, .. }) = keys else { return Reason::Fenced };
        // Who only reads takes nothing over.
        let is_reader = |key: u64| self.how.reader_keys.is_some_and(|(mask, of)| key & mask == of);
        keys.retain(|key| is_own(key) || !is_reader(*key));
        match &keys[..] {
            [] => Reason::Forgotten,
            keys if keys.iter().all(is_own) => Reason::Unregistered,
            _ => Reason::Fenced,
        }
    }

    fn begin_proper(&mut self) -> Step {
        self.first = core::mem::take(&mut self.heard);
        Step::Ready
    }

    fn conclude(&mut self, mode: Option<ModeData>) -> Result<Probed, Reason> {
        let Found { standard, serial, designator, capacity, limits, provisioning } =
            core::mem::take(&mut self.found);
        let (Some(standard), Some(capacity)) = (standard, capacity) else {
            return Err(unreadable("INQUIRY"));
        };
        let profile = profile(capacity, &limits, &provisioning, mode)?;
        let identity = RemoteIdentity {
            vendor: standard.vendor,
            product: standard.product,
            serial,
            designator,
        };
        let mut heard = self.heard;
        heard.cache_lost |= self.how.untold != Untold::Nothing || self.first.cache_lost;
        heard.nexus_lost |= self.first.nexus_lost;
        Ok(Probed { identity, profile, heard })
    }
}

impl Found {
    fn take_capacity(&mut self, capacity: Capacity) -> Result<Step, Reason> {
        match capacity.blocks.checked_mul(u64::from(capacity.block_len)) {
            Some(1..) => {
                self.capacity = Some(capacity);
                Ok(Step::Limits)
            }
            Some(0) | None => {
                Err(Reason::Geometry { what: "number of blocks", value: capacity.blocks })
            }
        }
    }
}

fn profile(
    capacity: Capacity,
    limits: &BlockLimits,
    thin: &Provisioning,
    mode: Option<ModeData>,
) -> Result<Profile, Reason> {
    let Capacity { blocks, block_len, .. } = capacity;
    if !block_len.is_power_of_two() || !(512..=1 << 16).contains(&block_len) {
        return Err(Reason::Geometry { what: "logical block", value: u64::from(block_len) });
    }
    let stated = u64::from(limits.transfer_max) * u64::from(block_len);
    let stated = if stated == 0 { u64::from(TRANSFER_LEN_MAX) } else { stated };
    let max: u32 = narrow(stated.min(u64::from(TRANSFER_LEN_MAX)));
    let can_unmap = thin.unmap && limits.unmap_extents_max > 0;
    Ok(Profile {
        block_len,
        blocks,
        max_transfer_len: max / block_len * block_len,
        read_only: mode.as_ref().is_some_and(|mode| mode.write_protected),
        fua: mode.as_ref().is_some_and(|mode| mode.dpofua),
        write_cache: mode.and_then(|mode| mode.write_cache),
        synchronize_cache: true,
        flush_proven: false,
        unmap_max: if can_unmap { limits.unmap_blocks_max } else { 0 },
        write_same_max: Profile::limit(limits.write_same_max),
        zeroes_by_unmap: thin.write_same_16 && (thin.reads_zeros || capacity.reads_zeros),
    })
}

fn check_standard(data: &[u8]) -> Result<StandardInquiry, Reason> {
    let standard = StandardInquiry::decode(data).ok_or_else(|| unreadable("INQUIRY"))?;
    if standard.qualifier != 0 {
        return Err(Reason::NoLun);
    }
    if standard.device_type != 0 {
        return Err(Reason::NotADisk(standard.device_type));
    }
    Ok(standard)
}

fn best_designator(data: &[u8]) -> Option<Vec<u8>> {
    let names = inquiry::decode_designators(data)?;
    let best = |kind| names.iter().find(|name| name.association == 0 && name.kind == kind);
    let designator = best(3).or_else(|| best(2)).or_else(|| best(1));
    designator.map(|name| name.value.clone())
}

/// What a command that must succeed has read.
fn demand<'a>(
    command: &'static str,
    answer: Result<&'a [u8], Refusal>,
) -> Result<&'a [u8], Reason> {
    answer.map_err(|refusal| match refusal.is_without_lun() {
        true => Reason::NoLun,
        false => failed(command, &refusal),
    })
}

fn failed(command: &'static str, refusal: &Refusal) -> Reason {
    Reason::Command { command, detail: refusal.to_string() }
}

/// How a command was refused, if it was, and how many bytes it moved each way.
fn read_end(end: &TaskEnd) -> (Refusal, u32, u32) {
    match end {
        TaskEnd::Status { status, sense, received, sent, .. } => {
            let conflict = *status == Status::ReservationConflict.code();
            let refusal = match Sense::decode(sense) {
                _ if conflict => Refusal::Conflict,
                Some(sense) => Refusal::Sense(sense),
                None => Refusal::Bare,
            };
            (refusal, *received, *sent)
        }
        TaskEnd::TargetFailure(_) | TaskEnd::Aborted => (Refusal::Bare, 0, 0),
    }
}

/// How a command failed.
enum Refusal {
    /// Another initiator holds a reservation.
    Conflict,
    Sense(Sense),
    /// Without sense data.
    Bare,
}

impl Refusal {
    /// Whether it says that there is no such logical unit.
    fn is_without_lun(&self) -> bool {
        matches!(self, Self::Sense(sense) if sense.additional == Additional::LOGICAL_UNIT_NOT_SUPPORTED)
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Conflict => f.write_str("another initiator holds a reservation"),
            Self::Sense(sense) => sense.fmt(f),
            Self::Bare => f.write_str("no sense data"),
        }
    }
}

pub(crate) fn without_residual(end: TaskEnd) -> TaskEnd {
    match end {
        TaskEnd::Status { status, sense, received, sent, .. } => {
            TaskEnd::Status { status, sense, received, sent, underflow: 0, overflow: 0 }
        }
        other @ (TaskEnd::TargetFailure(_) | TaskEnd::Aborted) => other,
    }
}

fn unreadable(command: &'static str) -> Reason {
    Reason::Command { command, detail: "the answer is too short".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(serial: Option<&str>, blocks: u64, write_cache: Option<bool>) -> Probed {
        let identity = RemoteIdentity {
            vendor: "V".into(),
            product: "P".into(),
            serial: serial.map(Into::into),
            designator: None,
        };
        let profile = Profile {
            block_len: 512,
            blocks,
            max_transfer_len: 1 << 16,
            read_only: false,
            fua: false,
            write_cache,
            synchronize_cache: true,
            flush_proven: false,
            unmap_max: 0,
            write_same_max: 0,
            zeroes_by_unmap: false,
        };
        Probed { identity, profile, heard: Heard::default() }
    }

    #[test]
    fn only_a_disk_that_remembers_the_session_has_kept_its_cache() {
        for (cache_lost, nexus_lost, expected) in
            [(false, false, true), (true, false, true), (true, true, true), (false, true, false)]
        {
            let heard = Heard { cache_lost, nexus_lost };
            assert_eq!(heard.may_have_lost_its_cache(), expected, "{heard:?}");
        }
    }

    #[test]
    fn only_the_same_disk_as_it_was_told_succeeds() {
        let (cached, plain) = (Some(true), Some(false));
        let first = probed(Some("1"), 100, cached);
        assert!(probed(Some("1"), 100, plain).check_successor(&first).is_ok());
        assert!(probed(Some("1"), 101, None).check_successor(&first).is_ok(), "it grew");
        let other = probed(Some("2"), 100, cached).check_successor(&first);
        assert!(matches!(other, Err(Reason::OtherDisk)));
        let shrunk = probed(Some("1"), 99, cached).check_successor(&first);
        assert!(matches!(shrunk, Err(Reason::Shrunk { blocks: 99, told: 100 })));
        let nameless = probed(None, 100, cached);
        assert!(probed(None, 100, cached).check_successor(&nameless).is_ok());
        let grown = probed(None, 101, cached).check_successor(&nameless);
        assert!(matches!(grown, Err(Reason::OtherDisk)), "nothing else tells them apart");
        let safe = probed(Some("1"), 100, plain);
        for write_cache in [cached, None] {
            let risen = probed(Some("1"), 100, write_cache).check_successor(&safe);
            assert!(matches!(risen, Err(Reason::CacheAppeared)));
        }
    }
}
