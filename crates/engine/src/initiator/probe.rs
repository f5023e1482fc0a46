//! What a logical unit says of itself: asked once a session, in straight-line code.

use std::time::Duration;

use netraid_block::{Buf, SgList, narrow};
use netraid_iscsi_proto::{
    initiator::{Command, TaskEnd},
    pdu::LunField,
};
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

use super::{
    disk::Profile,
    error::Reason,
    link::Link,
    verdict::{self, Attention, Verdict},
};

/// Largest transfer that is used, in bytes; also the largest buffer that a pool keeps.
const TRANSFER_LEN_MAX: u32 = 2 << 20;
/// Times that a command is sent again because the disk told something first, or is busy.
const TRIES_MAX: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(20);

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
pub(super) struct Probed {
    pub(super) identity: RemoteIdentity,
    pub(super) profile: Profile,
    pub(super) heard: Heard,
}

/// What a disk told while it was examined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// It was reset or restarted, or this session is new to it.
    pub(super) cache_lost: bool,
    /// It has missed this session, and remembers it.
    pub(super) nexus_lost: bool,
}

impl Heard {
    /// Whether what was written before this session and not flushed may be gone. A disk that
    /// remembers the session has kept its memory; of one that says nothing, nothing is known.
    pub(super) const fn may_have_lost_its_cache(self) -> bool {
        self.cache_lost || !self.nexus_lost
    }
}

impl Probed {
    /// Whether this is the disk that was found `first`, and still as its users were told.
    pub(super) fn check_successor(&self, first: &Self) -> Result<(), Reason> {
        let (new, old) = (&self.profile, &first.profile);
        let distinct = first.identity.serial.is_some() || first.identity.designator.is_some();
        // A disk may grow; one without a name of its own is known by its size, too.
        let may_differ = distinct && self.identity == first.identity;
        if may_differ && new.block_len == old.block_len && new.blocks < old.blocks {
            return Err(Reason::Shrunk { blocks: new.blocks, told: old.blocks });
        }
        let size_fits = new.blocks == old.blocks || may_differ;
        if self.identity != first.identity || new.block_len != old.block_len || !size_fits {
            return Err(Reason::OtherDisk);
        }
        if old.write_cache == Some(false) && new.write_cache != Some(false) {
            return Err(Reason::CacheAppeared);
        }
        Ok(())
    }
}

struct Probe<'a> {
    link: &'a mut Link,
    lun: LunField,
    heard: Heard,
}

/// Whether this session is registered with `key` still: registering it anew in its own place
/// succeeds only then (SPC-4, section 6.16.2). What the disk told meanwhile.
/// `cache_lost` when it may have been powered on since the session before.
pub(super) async fn check_key(
    link: &mut Link,
    lun: u16,
    key: u64,
    cache_lost: bool,
) -> Result<Heard, Reason> {
    let heard = Heard { cache_lost, nexus_lost: false };
    let mut probe = Probe { link, lun: LunField::from_number(lun), heard };
    let command = register(key, key);
    match probe.order(command.cdb, command.parameters).await? {
        Ok(()) => Ok(probe.heard),
        // Without memory of the time before it says nothing of who took over.
        Err(Refusal::Conflict) if probe.heard.cache_lost => Err(Reason::Forgotten),
        Err(Refusal::Conflict) if probe.has_no_keys().await? => Err(Reason::Forgotten),
        Err(Refusal::Conflict) => Err(Reason::Fenced),
        Err(refusal) => {
            Err(Reason::Command { command: "PERSISTENT RESERVE OUT", detail: refusal.to_string() })
        }
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

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflict => f.write_str("another initiator holds a reservation"),
            Self::Sense(sense) => sense.fmt(f),
            Self::Bare => f.write_str("no sense data"),
        }
    }
}

/// Lets the disk tell what it has to tell first.
pub(super) async fn greet(link: &mut Link, lun: u16) -> Result<Heard, Reason> {
    let mut probe = Probe { link, lun: LunField::from_number(lun), heard: Heard::default() };
    probe.demand("TEST UNIT READY", build::test_unit_ready(), 0).await?;
    Ok(probe.heard)
}

/// Asks the logical unit for everything that is needed.
pub(super) async fn probe(link: &mut Link, lun: u16) -> Result<Probed, Reason> {
    let mut probe = Probe { link, lun: LunField::from_number(lun), heard: Heard::default() };
    probe.demand("TEST UNIT READY", build::test_unit_ready(), 0).await?;
    let data = probe.demand("INQUIRY", build::inquiry(None, 255), 255).await?;
    let standard = StandardInquiry::decode(&data).ok_or_else(|| unreadable("INQUIRY"))?;
    if standard.qualifier != 0 {
        return Err(Reason::NoLun);
    }
    if standard.device_type != 0 {
        return Err(Reason::NotADisk(standard.device_type));
    }
    let identity = probe.identity(&standard).await?;
    let profile = probe.profile().await?;
    Ok(Probed { identity, profile, heard: probe.heard })
}

impl Probe<'_> {
    /// Whether nobody is registered: who had taken over would be. A disk that keeps registrations no
    /// longer than sessions has forgotten this one.
    async fn has_no_keys(&mut self) -> Result<bool, Reason> {
        const LEN: u16 = 64;
        let answer = self.ask(read_keys(LEN), u32::from(LEN)).await?;
        let keys = answer.ok().as_deref().and_then(Keys::decode);
        Ok(keys.is_some_and(|keys| keys.keys.is_empty() && !keys.is_cut))
    }

    async fn identity(&mut self, standard: &StandardInquiry) -> Result<RemoteIdentity, Reason> {
        let serial = self.page(inquiry::PAGE_SERIAL).await?;
        let serial = serial.as_deref().and_then(inquiry::decode_serial);
        let names = self.page(inquiry::PAGE_IDENTIFICATION).await?;
        let names = names.as_deref().and_then(inquiry::decode_designators).unwrap_or_default();
        let best = |kind| names.iter().find(|name| name.association == 0 && name.kind == kind);
        let designator = best(3).or_else(|| best(2)).or_else(|| best(1));
        Ok(RemoteIdentity {
            vendor: standard.vendor.clone(),
            product: standard.product.clone(),
            serial: serial.filter(|serial| !serial.is_empty()),
            designator: designator.map(|name| name.value.clone()),
        })
    }

    async fn profile(&mut self) -> Result<Profile, Reason> {
        let capacity = self.capacity().await?;
        let limits = self.page(inquiry::PAGE_BLOCK_LIMITS).await?;
        let limits = limits.as_deref().and_then(BlockLimits::decode).unwrap_or_default();
        let thin = self.page(inquiry::PAGE_PROVISIONING).await?;
        let thin = thin.as_deref().and_then(Provisioning::decode).unwrap_or_default();
        let mode = self.ask(build::mode_sense_6(0x08, 255), 255).await?;
        let mode = mode.ok().as_deref().and_then(ModeData::decode_6);
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
            read_only: mode.is_some_and(|mode| mode.write_protected),
            fua: mode.is_some_and(|mode| mode.dpofua),
            write_cache: mode.and_then(|mode| mode.write_cache),
            synchronize_cache: true,
            flush_proven: false,
            unmap_max: if can_unmap { limits.unmap_blocks_max } else { 0 },
            write_same_max: Profile::limit(limits.write_same_max),
            zeroes_by_unmap: thin.write_same_16 && (thin.reads_zeros || capacity.reads_zeros),
        })
    }

    async fn capacity(&mut self) -> Result<Capacity, Reason> {
        let long = self.ask(build::read_capacity_16(32), 32).await?;
        let capacity = match long.ok().as_deref().and_then(Capacity::decode_16) {
            Some(capacity) => capacity,
            None => {
                let data = self.demand("READ CAPACITY", build::read_capacity_10(), 8).await?;
                Capacity::decode_10(&data).ok_or_else(|| unreadable("READ CAPACITY"))?
            }
        };
        match capacity.blocks.checked_mul(u64::from(capacity.block_len)) {
            Some(1..) => Ok(capacity),
            Some(0) | None => {
                Err(Reason::Geometry { what: "number of blocks", value: capacity.blocks })
            }
        }
    }

    /// A page of vital product data; `None` when the disk does not have it.
    async fn page(&mut self, page: u8) -> Result<Option<Vec<u8>>, Reason> {
        // 255 bytes is what every disk takes; pages that are longer are read as far as they come.
        self.ask(build::inquiry(Some(page), 255), 255).await.map(Result::ok)
    }

    /// What a command that must succeed reads.
    async fn demand(
        &mut self,
        command: &'static str,
        cdb: CdbBytes,
        read_len: u32,
    ) -> Result<Vec<u8>, Reason> {
        self.ask(cdb, read_len).await?.map_err(|refusal| match refusal {
            Refusal::Sense(sense) if sense.additional == Additional::LOGICAL_UNIT_NOT_SUPPORTED => {
                Reason::NoLun
            }
            Refusal::Conflict | Refusal::Sense(_) | Refusal::Bare => {
                Reason::Command { command, detail: refusal.to_string() }
            }
        })
    }

    /// Sends a command that reads until the disk has nothing to tell first.
    async fn ask(
        &mut self,
        cdb: CdbBytes,
        read_len: u32,
    ) -> Result<Result<Vec<u8>, Refusal>, Reason> {
        let command = Command { lun: self.lun, cdb, read_len, write_len: 0 };
        self.send(command, SgList::new()).await
    }

    /// Sends a command with parameters.
    async fn order(
        &mut self,
        cdb: CdbBytes,
        parameters: Vec<u8>,
    ) -> Result<Result<(), Refusal>, Reason> {
        let write_len = narrow(parameters.len());
        let command = Command { lun: self.lun, cdb, read_len: 0, write_len };
        let data_out = Buf::copy_from(&parameters).into();
        Ok(self.send(command, data_out).await?.map(drop))
    }

    async fn send(
        &mut self,
        command: Command,
        data_out: SgList,
    ) -> Result<Result<Vec<u8>, Refusal>, Reason> {
        let mut failure = Refusal::Bare;
        for _ in 0..TRIES_MAX {
            let (end, data) = self.link.execute(command, data_out.clone()).await?;
            let end = without_residual(end);
            let (refusal, received, sent) = match &end {
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
            };
            // An answer may be shorter or longer than what it was given room for.
            match verdict::judge(&end, received, sent, "") {
                Verdict::Success => return Ok(Ok(data)),
                Verdict::Attention(Attention::CacheLost) => self.heard.cache_lost = true,
                Verdict::Attention(Attention::NexusLost) => self.heard.nexus_lost = true,
                Verdict::Attention(_) => {}
                Verdict::Later => tokio::time::sleep(RETRY_PAUSE).await,
                Verdict::NotSupported { .. } | Verdict::Mismatch(_) | Verdict::Fail(_) => {
                    return Ok(Err(refusal));
                }
            }
            failure = refusal;
        }
        Ok(Err(failure))
    }
}

pub(super) fn without_residual(end: TaskEnd) -> TaskEnd {
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
