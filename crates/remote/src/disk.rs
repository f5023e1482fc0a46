//! A SCSI disk as seen from here: which commands a request becomes.
//!
//! Plain functions without input or output. A request becomes one command after the other; each
//! is idempotent, so that it can be sent again after a connection was lost. What their ends mean is in
//! [`verdict`](crate::verdict).

use netraid_block::{Op, RequestFlags, narrow};
use netraid_planted::{Planted, planted};
use netraid_scsi::cdb::{Extent, build};

/// Blocks of one WRITE SAME or UNMAP to a disk that states no limit.
const UNSTATED_MAX: u32 = 1 << 15;

/// What a disk is and can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) block_len: u32,
    pub(crate) blocks: u64,
    pub(crate) max_transfer_len: u32,
    pub(crate) read_only: bool,
    /// The FUA bit is understood.
    pub(crate) fua: bool,
    /// Whether there is a volatile write cache; `None` when the disk does not say.
    pub(crate) write_cache: Option<bool>,
    pub(crate) synchronize_cache: bool,
    /// A flush has succeeded.
    pub(crate) flush_proven: bool,
    /// Blocks of one UNMAP; 0 without.
    pub(crate) unmap_max: u32,
    /// Blocks of one WRITE SAME; 0 without.
    pub(crate) write_same_max: u32,
    /// WRITE SAME may unmap, and unmapped blocks read as zeros.
    pub(crate) zeroes_by_unmap: bool,
}

impl Profile {
    /// Takes a stated limit, or a modest one where 0 states none.
    pub(crate) fn limit(stated: u64) -> u32 {
        match u32::try_from(stated) {
            Ok(0) => UNSTATED_MAX,
            Ok(limit) => limit,
            Err(_) => u32::MAX,
        }
    }

    /// The disk does not have a command of this kind, or not in the form that was sent: it gets no
    /// such command any more, and another form first where there is one.
    pub(crate) const fn do_without(&mut self, kind: Kind) {
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
    pub(crate) fn without_what_was_refused(mut self, before: &Self) -> Self {
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

    /// A disk that nobody has examined yet: nothing is asked of it.
    pub(crate) const UNKNOWN: Self = Self {
        block_len: 512,
        blocks: 0,
        max_transfer_len: 512,
        read_only: true,
        fua: false,
        write_cache: None,
        synchronize_cache: true,
        flush_proven: false,
        unmap_max: 0,
        write_same_max: 0,
        zeroes_by_unmap: false,
    };

    pub(crate) const fn capacity(&self) -> u64 {
        // Capacity in bytes was checked when the disk was examined.
        self.blocks * self.block_len as u64
    }
}

/// How far a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes done.
    pub(crate) at: u64,
    /// A flush is done.
    pub(crate) flushed: bool,
    /// Something was written without FUA and not flushed since.
    pub(crate) cached: bool,
    /// Zeros are written as any bytes: a shorter command for them has failed.
    pub(crate) plainly: bool,
    /// Bytes are written without the FUA bit, and flushed: a write with it has failed.
    pub(crate) unforced: bool,
}

/// The bytes that a command sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Out {
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
pub(crate) struct Planned {
    pub(crate) cdb: build::CdbBytes,
    pub(crate) kind: Kind,
    pub(crate) read_len: u32,
    pub(crate) write_len: u32,
    /// It has the FUA bit.
    pub(crate) fua: bool,
    pub(crate) out: Out,
    /// The request's progress once the command has succeeded.
    pub(crate) then: Progress,
}

/// What kind of command, for judging its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Unmap,
    WriteSame,
}

impl Kind {
    /// Its name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Flush => "SYNCHRONIZE CACHE",
            Self::Unmap => "UNMAP",
            Self::WriteSame => "WRITE SAME",
        }
    }
}

/// The next command of a request; `None` when it is done.
pub(crate) fn plan(
    profile: &Profile,
    op: Op,
    offset: u64,
    len: u64,
    flags: RequestFlags,
    progress: Progress,
) -> Option<Planned> {
    let left = len - progress.at;
    let lba = (offset + progress.at) / u64::from(profile.block_len);
    // Clamped: a command takes as many as it can, and the next one goes on.
    let blocks = u32::try_from(left / u64::from(profile.block_len)).unwrap_or(u32::MAX);
    let bytes = |blocks: u32| u64::from(blocks) * u64::from(profile.block_len);
    let wire_len = |blocks| narrow::<_, u32>(bytes(blocks));
    let then = |blocks| Progress { at: progress.at + bytes(blocks), ..progress };
    let written = |blocks, fua: bool| Progress { cached: progress.cached || !fua, ..then(blocks) };
    // A disk that came back may take less at once than its users were told.
    let part = Extent { lba, blocks: blocks.min(profile.max_transfer_len / profile.block_len) };
    let fua = flags.fua && profile.fua && !progress.unforced;
    let flush_due = flags.fua
        && !planted(Planted::ForcedWriteNotFlushed)
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

#[cfg(test)]
pub(crate) mod tests {
    use alloc::vec::Vec;

    use super::*;
    use netraid_scsi::cdb;

    pub(crate) fn profile() -> Profile {
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
}
