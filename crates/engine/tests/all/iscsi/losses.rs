//! A cache that is lost between a write and the flush that was to make it stable.

use std::sync::{Arc, Mutex, OnceLock};

use netraid_block::{
    BlockDevice, Buf, Device, DeviceInfo, ErrorKind, Op, Pool, Request, RequestFlags, SgList,
    TargetUri,
};
use netraid_engine::{
    array::{Array, CreateOptions, Log, MemberConfig, OpenOptions, create},
    backings, completions,
    initiator::{InitiatorConfig, Remote},
};
use netraid_raid::{
    geometry::Level,
    label::{LABEL_LEN, Label},
    regions::LABEL_OFFSETS,
};
use netraid_scsi::{Additional, SenseKey};

use crate::iscsi::{
    common::{NAME, Running, config},
    meddler::Meddler,
};

const WRITE_10: u8 = 0x2a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const LEN: usize = 16 << 20;

/// A disk with a volatile cache, which it loses at the moment that a flush comes: the answer says
/// so.
struct Forgetful {
    contents: Mutex<Contents>,
    portal: OnceLock<Arc<Meddler>>,
}

struct Contents {
    /// What is seen.
    cache: Vec<u8>,
    /// What is stable.
    medium: Vec<u8>,
    /// Flushes that succeed before the cache is lost, and how often it is lost then.
    loses: (usize, usize),
    /// The flush before this one has met a loss: it is that one, sent again.
    lost: bool,
    /// Flushes that succeeded.
    flushes: usize,
}

impl Forgetful {
    fn new() -> Arc<Self> {
        let (cache, medium) = (vec![0; LEN], vec![0; LEN]);
        let contents = Contents { cache, medium, loses: (0, 0), lost: false, flushes: 0 };
        Arc::new(Self { contents: Mutex::new(contents), portal: OnceLock::new() })
    }

    /// After so many flushes, the cache is lost before each of so many; the same flush, sent again,
    /// succeeds.
    fn lose(&self, after: usize, times: usize) {
        self.contents.lock().unwrap().loses = (after, times);
    }

    fn flushes(&self) -> usize {
        self.contents.lock().unwrap().flushes
    }

    /// What is stable at the start.
    fn stable(&self, len: usize) -> Vec<u8> {
        self.contents.lock().unwrap().medium[..len].to_vec()
    }
}

impl Contents {
    fn is_to_lose(&self) -> bool {
        self.loses.0 == 0 && self.loses.1 > 0 && !self.lost
    }

    fn serve(&mut self, op: Op, at: u64, len: u64, flags: RequestFlags, data: &SgList) -> SgList {
        let at = usize::try_from(at).unwrap();
        let range = at..at + usize::try_from(len).unwrap();
        match op {
            Op::Read => return Buf::copy_from(&self.cache[range]).into(),
            Op::Write => {
                self.cache[range.clone()].copy_from_slice(&data.to_contiguous());
                if flags.fua {
                    self.medium[range.clone()].copy_from_slice(&self.cache[range]);
                }
            }
            Op::WriteZeroes | Op::Discard => self.cache[range].fill(0),
            Op::Flush if self.is_to_lose() => {
                self.loses.1 -= 1;
                self.lost = true;
                self.cache.clone_from(&self.medium);
            }
            Op::Flush => {
                self.loses.0 = self.loses.0.saturating_sub(1);
                self.lost = false;
                self.flushes += 1;
                self.medium.clone_from(&self.cache);
            }
            Op::Extents => unreachable!("this disk cannot map"),
        }
        SgList::new()
    }
}

impl BlockDevice for Forgetful {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            capacity: LEN as u64,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: false,
            can_map: false,
        }
    }

    fn submit(&self, request: Request) {
        let Request { op, offset, len, flags, data, completion } = request;
        let mut contents = self.contents.lock().unwrap();
        if op == Op::Flush && contents.is_to_lose() {
            let portal = self.portal.get().unwrap();
            portal.attention(SYNCHRONIZE_CACHE_10, 0x29, 0x00);
        }
        completion.finish(Ok(contents.serve(op, offset, len, flags, &data)));
    }
}

async fn start(disk: &Arc<Forgetful>) -> (Running, Arc<Meddler>, TargetUri) {
    let luns = [Device::new(disk.clone()), backings::ram(LEN as u64, 512, Pool::new()).unwrap()];
    let target = Running::start(config(), &luns);
    let portal = Arc::new(Meddler::start(target.address).await);
    assert!(disk.portal.set(portal.clone()).is_ok());
    let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", portal.address)).unwrap();
    (target, portal, uri)
}

/// Ways in which disks refuse a bit that they told of.
const REFUSALS: [(SenseKey, u8); 10] = [
    (SenseKey::IllegalRequest, 0x24),
    (SenseKey::IllegalRequest, 0x20),
    (SenseKey::IllegalRequest, 0x21),
    (SenseKey::HardwareError, 0x44),
    (SenseKey::MediumError, 0x0c),
    (SenseKey::DataProtect, 0x27),
    (SenseKey::AbortedCommand, 0x00),
    (SenseKey::NotReady, 0x04),
    (SenseKey::VendorSpecific, 0x80),
    (SenseKey::CopyAborted, 0x00),
];

/// A disk that told of the FUA bit and refuses it gets a flush instead, from then on.
#[tokio::test]
async fn a_disk_that_refuses_the_fua_bit_which_it_told_of_is_flushed_instead() {
    let data = |byte: u8| Buf::copy_from(&[byte; 8192]).into();
    for (key, asc) in REFUSALS {
        let disk = Forgetful::new();
        let (target, portal, uri) = start(&disk).await;
        let remote = Remote::connect(InitiatorConfig::new(uri), Pool::new()).await.unwrap();
        let device = Arc::new(remote).into_device();
        portal.refuse_always(WRITE_10, true, key, Additional { asc, ascq: 0 });
        completions::write(&device, 0, data(7), true).await.unwrap();
        assert!(disk.flushes() == 1 && disk.stable(8192) == [7; 8192], "{key:?}: not stable");
        let refused = portal.refused();
        assert!(refused > 0, "{key:?}");
        completions::write(&device, 0, data(8), true).await.unwrap();
        assert!(disk.flushes() == 2 && disk.stable(8192) == [8; 8192], "{key:?}: not stable");
        assert_eq!(portal.refused(), refused, "{key:?}: it is asked again");
        portal.refuse(SYNCHRONIZE_CACHE_10, SenseKey::MediumError, Additional::WRITE_ERROR, 1);
        let failed = completions::write(&device, 0, data(9), true).await;
        assert!(failed.is_err(), "{key:?}: its flush has failed");
        target.stop().await;
    }
}

/// Only a write that succeeds without the bit shows that the bit was what the disk refused.
#[tokio::test]
async fn a_disk_that_fails_any_write_still_gets_the_fua_bit() {
    let disk = Forgetful::new();
    let (target, portal, uri) = start(&disk).await;
    let remote = Remote::connect(InitiatorConfig::new(uri), Pool::new()).await.unwrap();
    let device = Arc::new(remote).into_device();
    let data = || Buf::copy_from(&[7; 8192]).into();
    portal.refuse(WRITE_10, SenseKey::HardwareError, Additional { asc: 0x44, ascq: 0 }, 1);
    portal.refuse(WRITE_10, SenseKey::MediumError, Additional::WRITE_ERROR, 1);
    let error = completions::write(&device, 0, data(), true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Medium, "{error}");
    assert_eq!(portal.lies_left(), 0);
    completions::write(&device, 0, data(), true).await.unwrap();
    assert_eq!((disk.flushes(), disk.stable(8192)), (0, vec![7; 8192]));
    target.stop().await;
}

#[tokio::test]
async fn an_array_serves_though_a_member_refuses_the_fua_bit_in_whatever_way() {
    for (key, asc) in REFUSALS {
        let disk = Forgetful::new();
        let (target, portal, uri) = start(&disk).await;
        portal.refuse_always(WRITE_10, true, key, Additional { asc, ascq: 0 });
        let members = members(&target, uri);
        create(options(), members.clone(), Pool::new()).await.unwrap();
        let array = Array::open(OpenOptions::default(), members, Pool::new()).await.unwrap();
        let data = Buf::copy_from(&[1; 4096]).into();
        completions::write(array.device(), 0, data, true).await.unwrap();
        let status = array.handle().status().await.unwrap();
        let states = status.members.iter().map(|member| &*member.state);
        assert_eq!(states.collect::<Vec<_>>(), ["in_sync"; 2], "{key:?}");
        assert!(portal.refused() > 0, "{key:?}");
        array.close().await.unwrap();
        target.stop().await;
    }
}

/// FUA is a write and a flush where a disk does not know the bit, and for WRITE SAME everywhere.
#[tokio::test]
async fn what_a_cache_lost_before_the_flush_that_stands_for_fua_is_written_again() {
    let disk = Forgetful::new();
    let (target, portal, uri) = start(&disk).await;
    portal.hide_fua();
    let remote = Arc::new(Remote::connect(InitiatorConfig::new(uri), Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    disk.lose(0, 2);
    completions::write(&device, 0, Buf::copy_from(&[7; 8192]).into(), true).await.unwrap();
    assert_eq!((portal.lies_left(), remote.cache_losses()), (0, 2));
    assert!(disk.stable(8192) == [7; 8192], "it is not on the medium");
    disk.lose(0, 1);
    let fua = RequestFlags { fua: true, ..RequestFlags::default() };
    let zeroes = completions::request(&device, Op::WriteZeroes, 0, 8192, fua, SgList::new());
    zeroes.await.unwrap();
    assert_eq!(remote.cache_losses(), 3);
    assert!(disk.stable(8192) == [0; 8192], "it is not on the medium");
    // Without a loss nothing is done twice.
    let before = disk.flushes();
    completions::write(&device, 0, Buf::copy_from(&[8; 512]).into(), true).await.unwrap();
    assert_eq!((disk.flushes(), disk.stable(512)), (before + 1, vec![8; 512]));
    remote.close().await;
    target.stop().await;
}

fn options() -> CreateOptions {
    let (name, level, log) = ("test".into(), Level::Raid1, Log::Off);
    CreateOptions { name, level, chunk_len: Some(64 << 10), force: true, keep_opened: false, log }
}

fn members(target: &Running, uri: TargetUri) -> Vec<MemberConfig> {
    [uri, target.uri(1)].map(|uri| MemberConfig::new(uri, None)).to_vec()
}

#[tokio::test]
async fn a_label_that_was_lost_with_a_cache_before_its_flush_is_written_again() {
    /// The former label's end, the written bits, and two copies of the label.
    const FLUSHES: usize = 4;
    for after in 0..FLUSHES {
        let disk = Forgetful::new();
        let (target, _, uri) = start(&disk).await;
        let members = members(&target, uri);
        disk.lose(after, 1);
        create(options(), members, Pool::new()).await.unwrap();
        assert!(disk.flushes() >= FLUSHES, "{after}");
        let medium = disk.stable(LEN);
        for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
            let at = usize::try_from(offset).unwrap();
            let label = Label::decode(&medium[at..at + LABEL_LEN], copy);
            assert!(label.is_ok(), "flush {after}: copy {copy}: {label:?}");
            let written = label.unwrap().regions.written;
            let at = usize::try_from(written.offset).unwrap();
            let pages = &medium[at..usize::try_from(written.end()).unwrap()];
            assert!(pages.iter().any(|byte| *byte != 0), "flush {after}: no written bits");
        }
        target.stop().await;
    }
}

#[tokio::test]
async fn a_device_that_loses_its_cache_before_every_flush_is_not_labelled() {
    let disk = Forgetful::new();
    let (target, _, uri) = start(&disk).await;
    disk.lose(0, 100);
    let error = create(options(), members(&target, uri), Pool::new()).await.unwrap_err();
    assert!(error.to_string().contains("lost its cache"), "{error}");
    target.stop().await;
}

/// The label by which an array is opened is written by its machine.
#[tokio::test]
async fn a_member_that_loses_its_cache_before_a_label_is_stable_is_set_aside() {
    for after in 0..2 {
        let disk = Forgetful::new();
        let (target, portal, uri) = start(&disk).await;
        portal.hide_fua();
        let members = members(&target, uri);
        create(options(), members.clone(), Pool::new()).await.unwrap();
        disk.lose(after, 1);
        let array = Array::open(OpenOptions::default(), members, Pool::new()).await.unwrap();
        let data = Buf::copy_from(&[1; 4096]).into();
        completions::write(array.device(), 0, data, true).await.unwrap();
        let status = array.handle().status().await.unwrap();
        assert_eq!(status.members[0].state, "faulty", "{after}");
        array.close().await.unwrap();
        target.stop().await;
    }
}
