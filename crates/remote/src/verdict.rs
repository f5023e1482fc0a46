//! What the end of a command to a SCSI disk means for its request, and what is done about one that was
//! refused.
//!
//! Plain functions without input or output. They do not say which command is the next one:
//! [`disk`](crate::disk) does.

use alloc::format;

use netraid_block::{ErrorKind, IoError};
use netraid_iscsi_proto::initiator::TaskEnd;
use netraid_scsi::{Additional, Sense, SenseKey, Status};

use crate::disk::{Kind, Profile};

/// What the end of a command means for its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
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
pub(crate) enum Remedy {
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
pub(crate) const HINT_TRIES_MAX: u8 = 16;

/// Whether a request can do without a command of this kind, however the disk refuses it.
pub(crate) const fn can_do_without(profile: &Profile, kind: Kind, has_fua: bool) -> bool {
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
pub(crate) fn remedy(profile: &Profile, kind: Kind, has_fua: bool, end: &Verdict) -> Remedy {
    let (is_conflict, is_new_each_time) = match end {
        Verdict::Success => return Remedy::Nothing,
        end if is_conflict(end) => (true, false),
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

/// Whether a command met a RESERVATION CONFLICT.
pub(crate) fn is_conflict(end: &Verdict) -> bool {
    matches!(end, Verdict::Fail(error) if error.kind() == ErrorKind::Fenced)
}

/// Whether so many RESERVATION CONFLICTs that one request met contradict what the disk says itself: a registered
/// session that meets a conflict carries nothing more before the disk has said that the session is registered
/// still. So of more conflicts than there are `sessions`, one at least was followed by such an answer. An
/// engine that takes over removes the registration for good.
pub(crate) const fn is_contradiction(conflicts: u8, sessions: usize) -> bool {
    conflicts as usize > sessions
}

/// Commands of one kind that had no end, one after another, after which a disk gets no more of them.
const UNANSWERED_MAX: u8 = 3;

/// Hints that a disk did not answer, one after another: the connection broke under them, or they were given
/// up. Some targets end, or stand still, at a command that they do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unanswered {
    unmap: u8,
    write_same: u8,
}

impl Unanswered {
    /// The kinds that are counted.
    pub(crate) const KINDS: [Kind; 2] = [Kind::Unmap, Kind::WriteSame];

    const fn count(&mut self, kind: Kind) -> Option<&mut u8> {
        match kind {
            Kind::Unmap => Some(&mut self.unmap),
            Kind::WriteSame => Some(&mut self.write_same),
            Kind::Read | Kind::Write | Kind::Flush => None,
        }
    }

    /// A command had no end; whether it is the last one of its kind that the disk gets.
    pub(crate) fn note(&mut self, kind: Kind) -> bool {
        let Some(count) = self.count(kind).filter(|count| **count < UNANSWERED_MAX) else {
            return false;
        };
        *count += 1;
        *count == UNANSWERED_MAX
    }

    /// A command had an end, whichever.
    pub(crate) fn note_answer(&mut self, kind: Kind) {
        if let Some(count) = self.count(kind).filter(|count| **count < UNANSWERED_MAX) {
            *count = 0;
        }
    }

    /// A profile without the commands that the disk gets no more.
    pub(crate) fn without_unanswered(self, mut profile: Profile) -> Profile {
        if self.unmap >= UNANSWERED_MAX {
            profile.do_without(Kind::Unmap);
        }
        if self.write_same >= UNANSWERED_MAX {
            profile.zeroes_by_unmap = false;
            profile.do_without(Kind::WriteSame);
        }
        profile
    }
}

/// Whether a disk that refuses PERSISTENT RESERVE IN with this kind of error has no persistent
/// reservations. One that has carried out a command about them (`is_proven`) has them, and only one
/// that says that the request is illegal has none of this form. A conflict is somebody's reservation.
pub(crate) const fn has_no_reservations(refusal: ErrorKind, is_proven: bool) -> bool {
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
pub(crate) enum Attention {
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
pub(crate) fn judge(end: &TaskEnd, read_len: u32, write_len: u32, shown: &str) -> Verdict {
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

/// Whether a disk that is not ready for this reason will be so by itself, and soon (SPC-4, annex F.2).
fn is_soon_over(additional: Additional) -> bool {
    [
        Additional::NOT_READY_BECOMING_READY,
        Additional::NOT_READY_OPERATION_IN_PROGRESS,
        Additional::NOT_READY_ACCESS_STATE_TRANSITION,
        Additional::NOT_READY_SPACE_ALLOCATION,
    ]
    .contains(&additional)
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
        (SenseKey::AbortedCommand, _) => Verdict::Later,
        (SenseKey::NotReady, additional) if is_soon_over(additional) => Verdict::Later,
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
    use alloc::{vec, vec::Vec};

    use super::*;
    use crate::disk::tests::profile;
    use netraid_scsi::sense::SenseFormat;

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
    fn a_disk_that_answers_no_hint_gets_none_any_more() {
        let mut unanswered = Unanswered::default();
        for kind in Unanswered::KINDS {
            for _ in 0..5 {
                assert!(!unanswered.note(kind) && !unanswered.note(kind));
                unanswered.note_answer(kind);
            }
        }
        assert_eq!(unanswered.without_unanswered(profile()), profile());
        assert!(!unanswered.note(Kind::Write));
        let ends: Vec<bool> = (0..5).map(|_| unanswered.note(Kind::Unmap)).collect();
        assert_eq!(ends, [false, false, true, false, false]);
        unanswered.note_answer(Kind::Unmap);
        let without = unanswered.without_unanswered(profile());
        assert_eq!(without, Profile { unmap_max: 0, ..profile() });
        (0..3).for_each(|_| _ = unanswered.note(Kind::WriteSame));
        let without = unanswered.without_unanswered(profile());
        assert_eq!((without.unmap_max, without.write_same_max), (0, 0));
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
    fn ends_are_judged() {
        let check = |key, additional| {
            let sense = Sense::new(key, additional).encode(SenseFormat::Fixed);
            judge(&status(2, sense), 0, 0, "m")
        };
        assert_eq!(judge(&status(8, vec![]), 0, 0, "m"), Verdict::Later);
        assert!(matches!(judge(&status(2, vec![]), 0, 0, "m"), Verdict::Fail(_)));
        let unknown = check(SenseKey::IllegalRequest, Additional::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(unknown, Verdict::NotSupported { whole: true });
        for (ascq, is_soon) in
            [(1, true), (7, true), (10, true), (0x14, true), (2, false), (3, false)]
        {
            let verdict = check(SenseKey::NotReady, Additional { asc: 4, ascq });
            assert_eq!(verdict == Verdict::Later, is_soon, "04h/{ascq:02x}h: {verdict:?}");
        }
        let medium = check(SenseKey::MediumError, Additional::UNRECOVERED_READ_ERROR);
        assert!(matches!(medium, Verdict::Fail(e) if e.kind() == ErrorKind::Medium));
    }
}
