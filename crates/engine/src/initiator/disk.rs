//! A SCSI disk as seen from here: which commands a request becomes, and what their ends mean.
//!
//! Plain functions without input or output. A request becomes one command after the other; each
//! is idempotent, so that it can be sent again after a connection was lost.

use netraid_block::{ErrorKind, IoError, Op, RequestFlags};
use netraid_iscsi_proto::initiator::TaskEnd;
use netraid_scsi::{
    Additional, Sense, SenseKey, Status,
    cdb::{Extent, build},
};

/// Blocks of one WRITE SAME or UNMAP to a disk that states no limit.
const UNSTATED_MAX: u32 = 1 << 15;

/// What a disk is and can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) block_len: u32,
    pub(super) blocks: u64,
    pub(super) max_transfer_len: u32,
    pub(super) read_only: bool,
    /// The FUA bit is understood.
    pub(super) fua: bool,
    /// Whether there is a volatile write cache; `None` when the disk does not say.
    pub(super) write_cache: Option<bool>,
    pub(super) synchronize_cache: bool,
    /// A flush has succeeded.
    pub(super) flush_proven: bool,
    /// Blocks of one UNMAP; 0 without.
    pub(super) unmap_max: u32,
    /// Blocks of one WRITE SAME; 0 without.
    pub(super) write_same_max: u32,
    /// WRITE SAME may unmap, and unmapped blocks read as zeros.
    pub(super) zeroes_by_unmap: bool,
}

impl Profile {
    /// Takes a stated limit, or a modest one where 0 states none.
    pub(super) fn limit(stated: u64) -> u32 {
        match u32::try_from(stated) {
            Ok(0) => UNSTATED_MAX,
            Ok(limit) => limit,
            Err(_) => u32::MAX,
        }
    }

    /// The disk does not have a command of this kind, or not in the form that was sent: it gets no
    /// such command any more, and another form first where there is one.
    pub(super) const fn do_without(&mut self, kind: Kind) {
        match kind {
            Kind::Unmap => self.unmap_max = 0,
            Kind::WriteSame if self.zeroes_by_unmap => self.zeroes_by_unmap = false,
            Kind::WriteSame => self.write_same_max = 0,
            Kind::Flush => self.synchronize_cache = false,
            Kind::Write => self.fua = false,
            Kind::Read => {}
        }
    }

    /// What is examined again in the same session goes on without what it refused `before`.
    pub(super) fn without_what_was_refused(mut self, before: &Self) -> Self {
        self.fua &= before.fua;
        self.synchronize_cache &= before.synchronize_cache;
        self.zeroes_by_unmap &= before.zeroes_by_unmap;
        if before.unmap_max == 0 {
            self.unmap_max = 0;
        }
        if before.write_same_max == 0 {
            self.write_same_max = 0;
        }
        self
    }

    pub(super) const fn capacity(&self) -> u64 {
        // Capacity in bytes was checked when the disk was examined.
        self.blocks * self.block_len as u64
    }
}

/// How far a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes done.
    pub(super) at: u64,
    /// A flush is done.
    pub(super) flushed: bool,
    /// Something was written without FUA and not flushed since.
    pub(super) cached: bool,
    /// Zeros are written as any bytes: a shorter command for them has failed.
    pub(super) plainly: bool,
    /// Bytes are written without the FUA bit, and flushed: a write with it has failed.
    pub(super) unforced: bool,
}

/// The bytes that a command sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    Nothing,
    /// Bytes of the request: from where, and how many.
    Request {
        at: u64,
        len: u32,
    },
    /// This many zeros.
    Zeros(u32),
    /// The parameter list of an UNMAP.
    UnmapList(Extent),
}

/// The next command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) cdb: build::CdbBytes,
    pub(super) kind: Kind,
    pub(super) read_len: u32,
    pub(super) write_len: u32,
    /// It has the FUA bit.
    pub(super) fua: bool,
    pub(super) out: Out,
    /// The request's progress once the command has succeeded.
    pub(super) then: Progress,
}

/// What kind of command, for judging its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Unmap,
    WriteSame,
}

/// The next command of a request; `None` when it is done.
pub(super) fn plan(
    profile: &Profile,
    op: Op,
    offset: u64,
    len: u64,
    flags: RequestFlags,
    progress: Progress,
) -> Option<Planned> {
    let left = len - progress.at;
    let lba = (offset + progress.at) / u64::from(profile.block_len);
    let blocks = u32::try_from(left / u64::from(profile.block_len)).unwrap_or(u32::MAX);
    let bytes = |blocks: u32| u64::from(blocks) * u64::from(profile.block_len);
    let wire_len = |blocks| u32::try_from(bytes(blocks)).unwrap_or(u32::MAX);
    let then = |blocks| Progress { at: progress.at + bytes(blocks), ..progress };
    let written = |blocks, fua: bool| Progress { cached: progress.cached || !fua, ..then(blocks) };
    // A disk that came back may take less at once than its users were told.
    let part = Extent { lba, blocks: blocks.min(profile.max_transfer_len / profile.block_len) };
    let fua = flags.fua && profile.fua && !progress.unforced;
    let flush_due = flags.fua
        && progress.cached
        && profile.write_cache != Some(false)
        && profile.synchronize_cache;
    match op {
        Op::Flush if progress.flushed || !profile.synchronize_cache => None,
        Op::Flush => Some(flush(progress)),
        _ if left == 0 => flush_due.then(|| flush(progress)),
        Op::Read => Some(Planned {
            cdb: build::read(part, false),
            kind: Kind::Read,
            read_len: wire_len(part.blocks),
            write_len: 0,
            fua: false,
            out: Out::Nothing,
            then: then(part.blocks),
        }),
        Op::Write => Some(Planned {
            cdb: build::write(part, fua, false),
            kind: Kind::Write,
            read_len: 0,
            write_len: wire_len(part.blocks),
            fua,
            out: Out::Request { at: progress.at, len: wire_len(part.blocks) },
            then: written(part.blocks, fua),
        }),
        // Refused before it comes here: the device says that it cannot map.
        Op::Extents => None,
        Op::Discard if profile.unmap_max == 0 => None,
        Op::Discard => {
            let extent = Extent { lba, blocks: blocks.min(profile.unmap_max) };
            Some(Planned {
                cdb: build::unmap(UNMAP_LIST_LEN),
                kind: Kind::Unmap,
                read_len: 0,
                write_len: u32::from(UNMAP_LIST_LEN),
                fua: false,
                out: Out::UnmapList(extent),
                then: then(extent.blocks),
            })
        }
        Op::WriteZeroes if profile.write_same_max > 0 && !progress.plainly => {
            let extent = Extent { lba, blocks: blocks.min(profile.write_same_max) };
            let unmap = profile.zeroes_by_unmap && !flags.no_unmap;
            Some(Planned {
                cdb: build::write_same_16(extent, unmap),
                kind: Kind::WriteSame,
                read_len: 0,
                write_len: profile.block_len,
                fua: false,
                out: Out::Zeros(profile.block_len),
                // WRITE SAME has no FUA bit.
                then: written(extent.blocks, false),
            })
        }
        Op::WriteZeroes => {
            let len = wire_len(part.blocks);
            Some(Planned {
                cdb: build::write(part, fua, false),
                kind: Kind::Write,
                read_len: 0,
                write_len: len,
                fua,
                out: Out::Zeros(len),
                then: written(part.blocks, fua),
            })
        }
    }
}

/// Bytes of an UNMAP parameter list with one range.
const UNMAP_LIST_LEN: u16 = 24;

fn flush(progress: Progress) -> Planned {
    Planned {
        cdb: build::synchronize_cache(false),
        kind: Kind::Flush,
        read_len: 0,
        write_len: 0,
        fua: false,
        out: Out::Nothing,
        then: Progress { flushed: true, cached: false, ..progress },
    }
}

/// What the end of a command means for its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Go on.
    Success,
    /// Send it again at once; the disk told something first.
    Attention(Attention),
    /// Send it again a little later.
    Later,
    /// The disk does not have this command, or (without `whole`) not in this form.
    NotSupported {
        /// No form of the command is known.
        whole: bool,
    },
    /// The disk calls it a success, but moved other bytes than it was asked to.
    Mismatch(IoError),
    /// The request fails.
    Fail(IoError),
}

/// What becomes of a request whose command was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The disk gets no such command any more; what is left of the request is planned anew.
    Without,
    /// The rest of this request does without such a command; others may have it.
    Plainly,
    /// The rest of this request is written without the FUA bit, and flushed; when that succeeds, the
    /// disk gets the bit no more.
    Unforced,
    /// It was a hint: the request has ended well.
    Ended,
    /// None: the request fails.
    Nothing,
}

/// Times that a command is sent again which the request can do without, before it does.
pub(super) const HINT_TRIES_MAX: u8 = 16;

/// Whether a request can do without a command of this kind, however the disk refuses it.
pub(super) const fn can_do_without(profile: &Profile, kind: Kind, has_fua: bool) -> bool {
    match kind {
        Kind::Unmap | Kind::WriteSame => true,
        Kind::Write => has_fua,
        // What has no cache has nothing to flush.
        Kind::Flush => matches!(profile.write_cache, Some(false)),
        Kind::Read => false,
    }
}

/// What to do about a command that `end` says was not carried out; one that is only to be sent again is judged when
/// that was done [`HINT_TRIES_MAX`] times.
///
/// What UNMAP does is a hint, and WRITE SAME, the FUA bit, and a flush of no cache can be done without, in whatever way
/// a disk refuses them. That another host holds a reservation is told by what is written, too: UNMAP and WRITE SAME can
/// be done without even then, and the next write shows whether it is so.
pub(super) fn remedy(profile: &Profile, kind: Kind, has_fua: bool, end: &Verdict) -> Remedy {
    let (is_conflict, is_new_each_time) = match end {
        Verdict::Success => return Remedy::Nothing,
        Verdict::Fail(error) if error.kind() == ErrorKind::Fenced => (true, false),
        // An ILLEGAL REQUEST of whatever kind: the next one would be one, too.
        Verdict::Fail(error) => {
            let is_illegal =
                matches!(error.kind(), ErrorKind::InvalidRequest | ErrorKind::Unsupported);
            (false, !is_illegal)
        }
        // So many unit attentions in a row are a way to refuse.
        Verdict::NotSupported { .. } | Verdict::Mismatch(_) | Verdict::Attention(_) => {
            (false, false)
        }
        Verdict::Later => (false, true),
    };
    match kind {
        Kind::Unmap if is_new_each_time => Remedy::Ended,
        Kind::WriteSame if is_new_each_time => Remedy::Plainly,
        Kind::Unmap | Kind::WriteSame => Remedy::Without,
        Kind::Write if has_fua && !is_conflict && !matches!(end, Verdict::Mismatch(_)) => {
            Remedy::Unforced
        }
        Kind::Flush if !is_conflict => {
            let is_unknown = matches!(end, Verdict::NotSupported { whole: true });
            match profile.write_cache {
                Some(false) => Remedy::Without,
                // A disk that has flushed before has a cache.
                None if is_unknown && !profile.flush_proven => Remedy::Without,
                Some(true) | None => Remedy::Nothing,
            }
        }
        Kind::Read | Kind::Write | Kind::Flush => Remedy::Nothing,
    }
}

/// Whether a disk that refuses PERSISTENT RESERVE IN with this kind of error has no persistent
/// reservations. One that has carried out a command about them (`is_proven`) has them, and only one
/// that says that the request is illegal has none of this form. A conflict is somebody's reservation.
pub(super) const fn has_no_reservations(refusal: ErrorKind, is_proven: bool) -> bool {
    match refusal {
        ErrorKind::InvalidRequest | ErrorKind::Unsupported => true,
        ErrorKind::Device => !is_proven,
        // Nothing of these says that the command is not known.
        ErrorKind::OutOfRange
        | ErrorKind::Unaligned
        | ErrorKind::ReadOnly
        | ErrorKind::NoSpace
        | ErrorKind::Medium
        | ErrorKind::Corrupt
        | ErrorKind::Timeout
        | ErrorKind::Unreachable
        | ErrorKind::Aborted
        | ErrorKind::Redundancy
        | ErrorKind::Fenced => false,
    }
}

/// What a unit attention condition (SAM-5, section 5.14) means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// It was powered on, or has reset itself: what was not flushed may be gone.
    CacheLost,
    /// It does not know more of this nexus than that it was lost: nothing else is.
    NexusLost,
    /// Something of what was learned of it is no longer so.
    Changed,
    /// Reservations or registrations of others or of this nexus have changed.
    Reservations,
    /// Commands of this nexus were aborted by somebody else, perhaps without an answer (SAM-5,
    /// section 5.6).
    Cleared,
    /// Nothing that matters here.
    Other,
}

impl Attention {
    fn of(additional: Additional) -> Self {
        match (additional.asc, additional.ascq) {
            // A task management function of somebody; SBC-3 has a cache lose nothing by it.
            (0x29, 0x03) | (0x2f, 0x00..=0x02) => Self::Cleared,
            // The transceiver has changed (SPC-4, table F.2): the medium is as it was.
            (0x29, 0x05 | 0x06) => Self::Other,
            (0x29, 0x07) => Self::NexusLost,
            // Power on, bus reset, internal reset, and what later standards may add.
            (0x29, _) => Self::CacheLost,
            (0x2a, 0x03..=0x05) => Self::Reservations,
            // Parameters, mode parameters, capacity; microcode, identification, LUNs.
            (0x2a, 0x00 | 0x01 | 0x09) | (0x3f, 0x01 | 0x03 | 0x05 | 0x0e) => Self::Changed,
            _ => Self::Other,
        }
    }
}

/// Judges the end of a command that was to read and to write so many bytes. Only one that moved
/// exactly those succeeds, whatever the disk calls it.
pub(super) fn judge(end: &TaskEnd, read_len: u32, write_len: u32, shown: &str) -> Verdict {
    let (status, sense, received, sent, residual) = match end {
        TaskEnd::Status { status, sense, received, sent, underflow, overflow } => {
            (*status, sense, *received, *sent, *underflow != 0 || *overflow != 0)
        }
        TaskEnd::TargetFailure(_) | TaskEnd::Aborted => return Verdict::Later,
    };
    let verdict = judge_status(status, sense, shown);
    if verdict != Verdict::Success || (received == read_len && sent == write_len && !residual) {
        return verdict;
    }
    let text = format!(
        "{shown}: disk reports success but moved other bytes than it was asked to: read {received} \
         of {read_len}, took {sent} of {write_len}"
    );
    Verdict::Mismatch(IoError::with_detail(ErrorKind::Device, text))
}

fn judge_status(status: u8, sense: &[u8], shown: &str) -> Verdict {
    let fail =
        |kind, what: &str| Verdict::Fail(IoError::with_detail(kind, format!("{shown}: {what}")));
    match Status::from_code(status) {
        Some(Status::Good | Status::ConditionMet) => Verdict::Success,
        Some(Status::Busy | Status::TaskSetFull | Status::TaskAborted | Status::AcaActive) => {
            Verdict::Later
        }
        Some(Status::ReservationConflict) => {
            const WHAT: &str =
                "another initiator holds a reservation; release it there, or clear it (sg_persist)";
            fail(ErrorKind::Fenced, WHAT)
        }
        Some(Status::CheckCondition) => match Sense::decode(sense) {
            Some(sense) => judge_sense(&sense, shown),
            None => fail(ErrorKind::Device, "disk reports a failure without sense data"),
        },
        None => fail(ErrorKind::Device, &format!("disk answers with unknown status {status:#04x}")),
    }
}

fn judge_sense(sense: &Sense, shown: &str) -> Verdict {
    if sense.deferred {
        // The command at hand was not carried out; an earlier one, whose success was told, has
        // failed since (SPC-4, section 4.5.6): a cache has lost what it held.
        let recovered = matches!(sense.key, SenseKey::RecoveredError | SenseKey::NoSense);
        let attention = if recovered { Attention::Other } else { Attention::CacheLost };
        return Verdict::Attention(attention);
    }
    match (sense.key, sense.additional) {
        (SenseKey::RecoveredError | SenseKey::NoSense, _) => Verdict::Success,
        (SenseKey::UnitAttention, additional) => Verdict::Attention(Attention::of(additional)),
        (SenseKey::AbortedCommand, _)
        | (SenseKey::NotReady, Additional::NOT_READY_BECOMING_READY) => Verdict::Later,
        (SenseKey::IllegalRequest, Additional::INVALID_COMMAND_OPERATION_CODE) => {
            Verdict::NotSupported { whole: true }
        }
        (SenseKey::IllegalRequest, Additional::INVALID_FIELD_IN_CDB) => {
            Verdict::NotSupported { whole: false }
        }
        _ => Verdict::Fail(IoError::with_detail(sense.error_kind(), format!("{shown}: {sense}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netraid_scsi::{cdb, sense::SenseFormat};

    fn profile() -> Profile {
        Profile {
            block_len: 512,
            blocks: 1 << 20,
            max_transfer_len: 1 << 16,
            read_only: false,
            fua: false,
            write_cache: Some(true),
            synchronize_cache: true,
            flush_proven: false,
            unmap_max: 100,
            write_same_max: 1000,
            zeroes_by_unmap: true,
        }
    }

    fn all(profile: &Profile, op: Op, offset: u64, len: u64, fua: bool) -> Vec<Planned> {
        let flags = RequestFlags { fua, ..RequestFlags::default() };
        let mut progress = Progress::default();
        std::iter::from_fn(|| {
            let planned = plan(profile, op, offset, len, flags, progress)?;
            progress = planned.then;
            Some(planned)
        })
        .take(10_000)
        .collect()
    }

    #[test]
    fn fua_becomes_a_bit_or_a_flush() {
        let kinds = |profile: &Profile| -> Vec<Kind> {
            all(profile, Op::Write, 512, 4096, true).iter().map(|one| one.kind).collect()
        };
        assert_eq!(kinds(&profile()), [Kind::Write, Kind::Flush]);
        assert_eq!(kinds(&Profile { fua: true, ..profile() }), [Kind::Write]);
        assert_eq!(kinds(&Profile { write_cache: Some(false), ..profile() }), [Kind::Write]);
        let bit = all(&Profile { fua: true, ..profile() }, Op::Write, 512, 4096, true)[0].cdb;
        let extent = Extent { lba: 1, blocks: 8 };
        assert_eq!(cdb::parse(&bit), Ok(cdb::DataOut::Write { extent, fua: true }.into()));
    }

    #[test]
    fn zeroes_with_fua_are_flushed_unless_each_write_has_the_bit() {
        let kinds = |profile: &Profile| -> Vec<Kind> {
            all(profile, Op::WriteZeroes, 0, 4096, true).iter().map(|one| one.kind).collect()
        };
        let fua = Profile { fua: true, ..profile() };
        assert_eq!(kinds(&fua), [Kind::WriteSame, Kind::Flush], "WRITE SAME has no FUA bit");
        assert_eq!(kinds(&Profile { write_same_max: 0, ..fua.clone() }), [Kind::Write]);
        assert_eq!(kinds(&Profile { write_cache: Some(false), ..fua }), [Kind::WriteSame]);
    }

    #[test]
    fn long_ranges_are_covered_once_within_limits() {
        let len = 12_345 * 512;
        for (op, limit, profile) in [
            (Op::Discard, 100, profile()),
            (Op::WriteZeroes, 1000, profile()),
            (Op::WriteZeroes, 128, Profile { write_same_max: 0, ..profile() }),
        ] {
            let mut at = 7;
            for planned in all(&profile, op, 7 * 512, len, false) {
                let extent = match (planned.out, cdb::parse(&planned.cdb)) {
                    (Out::UnmapList(extent), _) => extent,
                    (_, Ok(cdb::Command::DataOut(cdb::DataOut::WriteSame { extent, .. }))) => {
                        extent
                    }
                    (_, Ok(cdb::Command::DataOut(cdb::DataOut::Write { extent, .. }))) => extent,
                    other => panic!("{other:?}"),
                };
                assert!(extent.lba == at && extent.blocks <= limit && extent.blocks > 0);
                at += u64::from(extent.blocks);
            }
            assert_eq!(at, 7 + 12_345);
        }
        let none = Profile { unmap_max: 0, ..profile() };
        assert!(all(&none, Op::Discard, 0, len, false).is_empty());
    }

    fn status(status: u8, sense: Vec<u8>) -> TaskEnd {
        TaskEnd::Status { status, sense, received: 0, sent: 0, underflow: 0, overflow: 0 }
    }

    #[test]
    fn success_of_any_kind_has_moved_every_byte() {
        let sense = |key| Sense::new(key, Additional::NONE).encode(SenseFormat::Fixed);
        let good = (0, vec![]);
        let recovered = (2, sense(SenseKey::RecoveredError));
        for (status, sense) in [good, recovered, (2, sense(SenseKey::NoSense))] {
            let moved = |received, sent, underflow, overflow| {
                let sense = sense.clone();
                TaskEnd::Status { status, sense, received, sent, underflow, overflow }
            };
            assert_eq!(judge(&moved(512, 0, 0, 0), 512, 0, "m"), Verdict::Success);
            assert_eq!(judge(&moved(0, 512, 0, 0), 0, 512, "m"), Verdict::Success);
            for (read_len, write_len, end) in [
                (512, 0, moved(511, 0, 0, 0)),
                (512, 0, moved(512, 0, 1, 0)),
                (512, 0, moved(512, 0, 0, 1)),
                (0, 512, moved(0, 511, 0, 0)),
                (0, 512, moved(0, 512, 1, 0)),
                (0, 512, moved(0, 512, 0, 1)),
            ] {
                let verdict = judge(&end, read_len, write_len, "m");
                let Verdict::Mismatch(error) = verdict else { panic!("{end:?}: {verdict:?}") };
                assert_eq!(error.kind(), ErrorKind::Device, "{end:?}");
            }
        }
    }

    #[test]
    fn only_a_disk_that_never_flushed_can_do_without() {
        let after = |profile: &Profile, whole| {
            remedy(profile, Kind::Flush, false, &Verdict::NotSupported { whole })
        };
        let unsaid = Profile { write_cache: None, ..profile() };
        assert_eq!(after(&unsaid, true), Remedy::Without);
        assert_eq!(after(&unsaid, false), Remedy::Nothing, "the command is there");
        assert_eq!(after(&profile(), true), Remedy::Nothing, "there is a cache");
        let none = Profile { write_cache: Some(false), ..profile() };
        assert_eq!(after(&none, false), Remedy::Without, "there is nothing to flush");
        let proven = Profile { flush_proven: true, ..unsaid };
        assert_eq!(after(&proven, true), Remedy::Nothing);
    }

    /// The end of a command with this sense data.
    fn refusal(key: SenseKey, asc: u8, ascq: u8) -> Verdict {
        let sense = Sense::new(key, Additional { asc, ascq }).encode(SenseFormat::Descriptor);
        judge(&status(2, sense), 0, 0, "m")
    }

    #[test]
    fn what_a_disk_refuses_in_whatever_way_is_done_without_where_that_is_possible() {
        use Remedy::{Ended, Nothing, Plainly, Unforced, Without};
        use SenseKey::{
            AbortedCommand, DataProtect, HardwareError, IllegalRequest, MediumError, NotReady,
            UnitAttention, VendorSpecific,
        };
        let moved = IoError::with_detail(ErrorKind::Device, "moved other bytes");
        let conflict = judge(&status(0x18, vec![]), 0, 0, "m");
        let bare = judge(&status(2, vec![]), 0, 0, "m");
        let unknown_status = judge(&status(0x77, vec![]), 0, 0, "m");
        let busy = judge(&status(8, vec![]), 0, 0, "m");
        // In order: UNMAP, WRITE SAME, WRITE with FUA.
        for (end, expected) in [
            (refusal(IllegalRequest, 0x20, 0), [Without, Without, Unforced]),
            (refusal(IllegalRequest, 0x24, 0), [Without, Without, Unforced]),
            (refusal(IllegalRequest, 0x26, 0), [Without, Without, Unforced]),
            (refusal(IllegalRequest, 0x1a, 0), [Without, Without, Unforced]),
            (refusal(IllegalRequest, 0x55, 4), [Without, Without, Unforced]),
            (refusal(IllegalRequest, 0x21, 0), [Ended, Plainly, Unforced]),
            (refusal(HardwareError, 0x44, 0), [Ended, Plainly, Unforced]),
            (refusal(MediumError, 0x0c, 0), [Ended, Plainly, Unforced]),
            (refusal(DataProtect, 0x27, 0), [Ended, Plainly, Unforced]),
            (refusal(DataProtect, 0x27, 7), [Ended, Plainly, Unforced]),
            (refusal(NotReady, 4, 0), [Ended, Plainly, Unforced]),
            (refusal(NotReady, 4, 3), [Ended, Plainly, Unforced]),
            (refusal(VendorSpecific, 0x80, 1), [Ended, Plainly, Unforced]),
            (refusal(AbortedCommand, 0, 0), [Ended, Plainly, Unforced]),
            (refusal(UnitAttention, 0x2a, 1), [Without, Without, Unforced]),
            (bare, [Ended, Plainly, Unforced]),
            (unknown_status, [Ended, Plainly, Unforced]),
            (busy, [Ended, Plainly, Unforced]),
            (Verdict::Mismatch(moved), [Without, Without, Nothing]),
            // What is written shows whether another host holds the disk.
            (conflict, [Without, Without, Nothing]),
        ] {
            let kinds = [(Kind::Unmap, false), (Kind::WriteSame, false), (Kind::Write, true)];
            for ((kind, fua), expected) in kinds.into_iter().zip(expected) {
                assert_eq!(remedy(&profile(), kind, fua, &end), expected, "{kind:?}: {end:?}");
                assert!(can_do_without(&profile(), kind, fua));
            }
            for kind in [Kind::Write, Kind::Read, Kind::Flush] {
                assert_eq!(remedy(&profile(), kind, false, &end), Nothing, "{kind:?}: {end:?}");
                assert!(!can_do_without(&profile(), kind, false));
            }
            // What has no cache has nothing to flush, whether it did so before or not.
            let is_conflict =
                matches!(&end, Verdict::Fail(error) if error.kind() == ErrorKind::Fenced);
            for flush_proven in [false, true] {
                let plain = Profile { write_cache: Some(false), flush_proven, ..profile() };
                let expected = if is_conflict { Nothing } else { Without };
                assert_eq!(remedy(&plain, Kind::Flush, false, &end), expected, "{end:?}");
                assert!(can_do_without(&plain, Kind::Flush, false));
            }
        }
    }

    #[test]
    fn only_a_disk_that_never_had_reservations_is_taken_to_have_none() {
        for (refusal, unproven, proven) in [
            (ErrorKind::InvalidRequest, true, true),
            (ErrorKind::Unsupported, true, true),
            (ErrorKind::Device, true, false),
            (ErrorKind::Medium, false, false),
            (ErrorKind::Unreachable, false, false),
            (ErrorKind::ReadOnly, false, false),
            (ErrorKind::Fenced, false, false),
        ] {
            assert_eq!(has_no_reservations(refusal, false), unproven, "{refusal:?}");
            assert_eq!(has_no_reservations(refusal, true), proven, "{refusal:?}");
        }
    }

    #[test]
    fn a_write_whose_fua_bit_was_refused_is_written_plainly_and_flushed() {
        let flags = RequestFlags { fua: true, ..RequestFlags::default() };
        let disk = Profile { fua: true, write_same_max: 0, ..profile() };
        for op in [Op::Write, Op::WriteZeroes] {
            let progress = Progress { unforced: true, ..Progress::default() };
            let write = plan(&disk, op, 512, 4096, flags, progress).unwrap();
            assert_eq!((write.kind, write.fua), (Kind::Write, false));
            let flush = plan(&disk, op, 512, 4096, flags, write.then).unwrap();
            assert_eq!(flush.kind, Kind::Flush);
            assert_eq!(plan(&disk, op, 512, 4096, flags, flush.then), None);
        }
    }

    #[test]
    fn what_a_session_refused_it_is_not_asked_for_again_after_an_examination() {
        let found = Profile { fua: true, ..profile() };
        let mut before = found.clone();
        assert_eq!(found.clone().without_what_was_refused(&before), found);
        for kind in [Kind::Write, Kind::Unmap, Kind::Flush, Kind::WriteSame, Kind::WriteSame] {
            before.do_without(kind);
            assert_eq!(found.clone().without_what_was_refused(&before), before, "{kind:?}");
        }
    }

    #[test]
    fn a_request_goes_on_without_what_was_refused() {
        let mut disk = Profile { fua: true, ..profile() };
        disk.do_without(Kind::Write);
        let kinds = |profile: &Profile, op| -> Vec<Kind> {
            all(profile, op, 0, 4096, true).iter().map(|one| one.kind).collect()
        };
        assert_eq!(kinds(&disk, Op::Write), [Kind::Write, Kind::Flush]);
        // First without unmapping, then as any bytes.
        disk.do_without(Kind::WriteSame);
        assert_eq!(kinds(&disk, Op::WriteZeroes), [Kind::WriteSame, Kind::Flush]);
        assert!(!disk.zeroes_by_unmap);
        disk.do_without(Kind::WriteSame);
        assert_eq!(kinds(&disk, Op::WriteZeroes), [Kind::Write, Kind::Flush]);
        disk.do_without(Kind::Unmap);
        assert_eq!(kinds(&disk, Op::Discard), []);
        let plainly = Progress { plainly: true, ..Progress::default() };
        let flags = RequestFlags::default();
        let planned = plan(&profile(), Op::WriteZeroes, 0, 4096, flags, plainly).unwrap();
        assert_eq!((planned.kind, planned.out), (Kind::Write, Out::Zeros(4096)));
    }

    /// SPC-4, annex F.2.
    #[test]
    fn attentions_are_understood() {
        use Attention::{CacheLost, Changed, Cleared, NexusLost, Other, Reservations};
        for (asc, ascq, expected) in [
            (0x29, 0x00, CacheLost),
            (0x29, 0x01, CacheLost),
            (0x29, 0x02, CacheLost),
            (0x29, 0x03, Cleared),
            (0x29, 0x04, CacheLost),
            (0x29, 0x05, Other),
            (0x29, 0x07, NexusLost),
            (0x29, 0x55, CacheLost),
            (0x2a, 0x01, Changed),
            (0x2a, 0x03, Reservations),
            (0x2a, 0x04, Reservations),
            (0x2a, 0x05, Reservations),
            (0x2a, 0x06, Other),
            (0x2a, 0x09, Changed),
            (0x2f, 0x00, Cleared),
            (0x3f, 0x03, Changed),
            (0x3f, 0x0e, Changed),
        ] {
            let sense = Sense::new(SenseKey::UnitAttention, Additional { asc, ascq });
            for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
                let verdict = judge(&status(2, sense.encode(format)), 0, 0, "m");
                assert_eq!(verdict, Verdict::Attention(expected), "{asc:02x}/{ascq:02x}");
            }
        }
    }

    #[test]
    fn what_was_promised_is_kept_by_a_disk_that_takes_less() {
        let small = Profile { max_transfer_len: 8 * 512, ..profile() };
        for (op, fua) in [(Op::Read, false), (Op::Write, true)] {
            let planned = all(&small, op, 512, 20 * 512, fua);
            let moved: Vec<u32> = planned.iter().map(|one| one.read_len + one.write_len).collect();
            let flush = if fua { &[0][..] } else { &[] };
            assert_eq!(moved, [&[8 * 512, 8 * 512, 4 * 512][..], flush].concat());
            let out: Vec<Out> = planned.iter().map(|one| one.out).collect();
            if op == Op::Write {
                assert_eq!(out[1], Out::Request { at: 8 * 512, len: 8 * 512 });
                assert_eq!(out[2], Out::Request { at: 16 * 512, len: 4 * 512 });
            }
        }
    }

    #[test]
    fn ends_are_judged() {
        let check = |key, additional| {
            let sense = Sense::new(key, additional).encode(SenseFormat::Fixed);
            judge(&status(2, sense), 0, 0, "m")
        };
        assert_eq!(judge(&status(8, vec![]), 0, 0, "m"), Verdict::Later);
        assert!(matches!(judge(&status(2, vec![]), 0, 0, "m"), Verdict::Fail(_)));
        let unknown = check(SenseKey::IllegalRequest, Additional::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(unknown, Verdict::NotSupported { whole: true });
        let medium = check(SenseKey::MediumError, Additional::UNRECOVERED_READ_ERROR);
        assert!(matches!(medium, Verdict::Fail(e) if e.kind() == ErrorKind::Medium));
    }
}
