use alloc::{borrow::ToOwned, string::String, vec, vec::Vec};
use core::cell::{Cell, RefCell};

use futures_util::FutureExt;
use netraid_block::{DeviceInfo, ErrorKind};

use super::*;
use crate::{geometry::Level, label::tests::sample, regions::LABEL_OFFSETS};

/// A disk in memory that answers at once.
struct Disk {
    info: DeviceInfo,
    bytes: RefCell<Vec<u8>>,
    seen: RefCell<Vec<(Op, u64, u64)>>,
    /// So many more flushes find that the cache was lost.
    losses_to_come: Cell<u64>,
    losses: Cell<u64>,
    /// Whoever reads here fails so.
    bad: Option<(u64, ErrorKind)>,
    reserved: Result<bool, IoError>,
}

#[derive(Debug, PartialEq, Eq)]
enum Why {
    Failed(&'static str, ErrorKind),
    InUse(String),
}

impl Failure for Why {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Failed(_, ErrorKind::Fenced))
    }

    fn is_refusal(&self) -> bool {
        matches!(self, Self::Failed(_, ErrorKind::Unsupported))
    }
}

const LEN: usize = 4 << 20;

impl Disk {
    fn new() -> Self {
        let info = DeviceInfo {
            capacity: LEN as u64,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 8192,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        };
        Self {
            info,
            bytes: RefCell::new(vec![0; LEN]),
            seen: RefCell::default(),
            losses_to_come: Cell::new(0),
            losses: Cell::new(0),
            bad: None,
            reserved: Ok(false),
        }
    }

    fn with(self, offset: usize, bytes: &[u8]) -> Self {
        self.bytes.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn check_unused(&self) -> Result<(), Why> {
        check_unused(self).now_or_never().unwrap()
    }
}

impl Medium for Disk {
    type Error = Why;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn cache_losses(&self) -> u64 {
        self.losses.get()
    }

    async fn request(
        &self,
        what: (Op, u64, u64),
        _flags: RequestFlags,
        data: SgList,
    ) -> Result<SgList, IoError> {
        self.seen.borrow_mut().push(what);
        let (op, offset, len) = what;
        let from = usize::try_from(offset).unwrap();
        let range = from..from + usize::try_from(len).unwrap();
        if let Some((bad, kind)) = self.bad
            && op == Op::Read
            && (offset..offset + len).contains(&bad)
        {
            return Err(kind.into());
        }
        match op {
            Op::Read => return Ok(Buf::copy_from(&self.bytes.borrow()[range]).into()),
            Op::Write => self.bytes.borrow_mut()[range].copy_from_slice(&data.to_contiguous()),
            Op::WriteZeroes => self.bytes.borrow_mut()[range].fill(0),
            Op::Flush => {
                if let Some(left) = self.losses_to_come.get().checked_sub(1) {
                    self.losses_to_come.set(left);
                    self.losses.set(self.losses.get() + 1);
                }
            }
            Op::Discard | Op::Extents => unreachable!("{what:?}"),
        }
        Ok(SgList::new())
    }

    async fn is_reserved(&self) -> Result<bool, IoError> {
        self.reserved.clone()
    }

    fn failure(&self, what: &'static str, reason: IoError) -> Why {
        Why::Failed(what, reason.kind())
    }

    fn in_use(&self, what: String) -> Why {
        Why::InUse(what)
    }
}

#[test]
fn long_reads_are_cut_and_put_together() {
    let disk = Disk::new().with(8190, b"abcd");
    let bytes = read(&disk, 512, 20_480, "reading").now_or_never().unwrap().unwrap();
    assert_eq!((bytes.len(), &bytes[7678..7682]), (20_480, &b"abcd"[..]));
    let seen = [(Op::Read, 512, 8192), (Op::Read, 8704, 8192), (Op::Read, 16_896, 4096)];
    assert_eq!(*disk.seen.borrow(), seen);
}

#[test]
fn what_a_lost_cache_took_is_written_again_from_the_first_one() {
    let writes = [(0, Buf::copy_from(&[1; 512])), (512, Buf::copy_from(&[2; 512]))];
    for (losses, turns) in [(0, 1), (1, 2), (3, 4)] {
        let disk = Disk::new();
        disk.losses_to_come.set(losses);
        write_stable(&disk, &writes, "writing").now_or_never().unwrap().unwrap();
        let turn = [(Op::Write, 0, 512), (Op::Write, 512, 512), (Op::Flush, 0, 0)];
        assert_eq!(*disk.seen.borrow(), turn.repeat(turns));
    }
    let disk = Disk::new();
    disk.losses_to_come.set(u64::MAX);
    let end = write_stable(&disk, &writes, "writing").now_or_never().unwrap();
    assert_eq!(end, Err(Why::Failed("writing", ErrorKind::Device)));
    assert_eq!(disk.seen.borrow().len(), 3 * 4);
}

#[test]
fn a_device_proves_that_it_takes_writes_with_its_own_bytes() {
    let end = 3 << 20;
    let disk = Disk::new().with(10, b"first").with(40_000, b"second").with(end - 9, b"last");
    let before = disk.bytes.borrow().clone();
    prove_writable(&disk, end as u64).now_or_never().unwrap().unwrap();
    assert_eq!(*disk.bytes.borrow(), before);
    let writes = |disk: &Disk| {
        let seen = disk.seen.borrow();
        seen.iter().filter(|what| what.0 == Op::Write).map(|what| what.1).collect::<Vec<_>>()
    };
    let (one, two, last) = (LABEL_OFFSETS[0], LABEL_OFFSETS[1], end as u64 - END_LEN);
    assert_eq!(writes(&disk), [one, two, last]);

    // What cannot be read proves nothing, and is no error.
    let disk = Disk { bad: Some((two, ErrorKind::Medium)), ..Disk::new() };
    prove_writable(&disk, end as u64).now_or_never().unwrap().unwrap();
    assert_eq!(writes(&disk), [one, last]);
    let disk = Disk { bad: Some((two, ErrorKind::Device)), ..Disk::new() };
    let failed = prove_writable(&disk, end as u64).now_or_never().unwrap();
    assert_eq!(failed, Err(Why::Failed("reading what is to be overwritten", ErrorKind::Device)));
    assert_eq!(writes(&disk), []);
}

#[test]
fn a_device_is_unused_where_nothing_is_or_what_a_look_or_a_beginning_left() {
    assert_eq!(Disk::new().check_unused(), Ok(()));
    let (first, second) = (0, usize::try_from(LABEL_OFFSETS[1]).unwrap());
    // A look at it was interrupted.
    let test = mark::test([7; 16]);
    assert_eq!(Disk::new().with(first, &test).check_unused(), Ok(()));
    // A new array was begun, and some of it was written.
    let begun = mark::begun([7; 16]);
    let disk = Disk::new().with(first, &begun);
    assert_eq!(disk.check_unused(), Ok(()));
    let disk = Disk::new().with(first, &begun).with(second, &begun).with(700_000, b"tables");
    assert_eq!(disk.check_unused(), Ok(()));
}

#[test]
fn whatever_else_is_on_a_device_is_named() {
    let in_use = |what: &str| Err(Why::InUse(what.to_owned()));
    // The first one is the magic of a label.
    for (offset, bytes, what) in &SIGNATURES[1..] {
        let offset = *offset;
        assert_eq!(Disk::new().with(offset, bytes).check_unused(), in_use(what));
    }
    let unknown = in_use("data of unknown kind");
    assert_eq!(Disk::new().with(700_000, b"x").check_unused(), unknown);
    assert_eq!(Disk::new().with(LEN - 1, b"x").check_unused(), unknown);
    let (test, begun) = (mark::test([7; 16]), mark::begun([7; 16]));
    assert_eq!(Disk::new().with(0, &test).with(LABEL_LEN, b"x").check_unused(), unknown);
    // One mark of two: somebody has used the device since.
    assert_eq!(Disk::new().with(0, &begun).with(700_000, b"x").check_unused(), unknown);
    let second = usize::try_from(LABEL_OFFSETS[1]).unwrap();
    let both = Disk::new().with(0, &begun).with(second, &begun);
    let swap = both.with(4086, b"SWAPSPACE2").check_unused();
    assert_eq!(swap, in_use("swap space"));
    let both = Disk::new().with(0, &begun).with(second, &begun);
    let btrfs = both.with(0x1_0040, b"_BHRfS_M").check_unused();
    assert_eq!(btrfs, in_use("a btrfs file system"));
}

#[test]
fn a_label_is_named_also_where_it_is_damaged() {
    let label = sample(Level::Raid5, 4);
    let bytes = label.encode(0);
    let what = alloc::format!("member {} of array '{}'", label.index, label.name);
    assert_eq!(Disk::new().with(0, &bytes).check_unused(), Err(Why::InUse(what)));
    let mut damaged = bytes;
    damaged[100] ^= 1;
    let Err(Why::InUse(what)) = Disk::new().with(0, &damaged).check_unused() else {
        panic!("unused")
    };
    assert!(what.starts_with("a netraid label ("), "{what}");
    // The other copy is enough.
    let second = usize::try_from(LABEL_OFFSETS[1]).unwrap();
    let disk = Disk { bad: Some((0, ErrorKind::Medium)), ..Disk::new() };
    let found = super::label(&disk.with(second, &label.encode(1))).now_or_never().unwrap();
    assert_eq!(found, Ok(Ok(label)));
}

#[test]
fn a_reserved_device_is_in_use_also_where_it_cannot_be_read() {
    let reserved = Err(Why::InUse("a reservation of another host or engine".to_owned()));
    let disk = Disk { reserved: Ok(true), ..Disk::new() };
    assert_eq!(disk.check_unused(), reserved);
    let disk = Disk { bad: Some((0, ErrorKind::Fenced)), reserved: Ok(true), ..Disk::new() };
    assert_eq!(disk.check_unused(), reserved);
    let disk = Disk { bad: Some((0, ErrorKind::Fenced)), ..Disk::new() };
    let why = Why::Failed("reading the label", ErrorKind::Fenced);
    assert_eq!(disk.check_unused(), Err(why));
    // One that has no reservations is not reserved; whether another one is must be known.
    let disk = Disk { reserved: Err(ErrorKind::Unsupported.into()), ..Disk::new() };
    assert_eq!(disk.check_unused(), Ok(()));
    let disk = Disk { reserved: Err(ErrorKind::Device.into()), ..Disk::new() };
    let why = Why::Failed("looking for reservations", ErrorKind::Device);
    assert_eq!(disk.check_unused(), Err(why));
    // A disk that fails is not called reserved.
    let disk = Disk { bad: Some((0, ErrorKind::Device)), reserved: Ok(true), ..Disk::new() };
    let why = Why::Failed("reading the label", ErrorKind::Device);
    assert_eq!(disk.check_unused(), Err(why));
}
