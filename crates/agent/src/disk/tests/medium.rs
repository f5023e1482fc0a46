//! A disk in memory with a cache that forgets: what was not flushed is lost in part when power is.

use std::sync::{Arc, Condvar, Mutex};

use netraid_block::{
    BlockDevice, Buf, Complete, Completion, Device, DeviceInfo, ErrorKind, IoError, Op, Request,
    RequestFlags, SgList,
};
use netraid_control::units::{AgentId, MediatorId, SegmentId};
use rand::{Rng, rngs::StdRng};

use super::super::{Disk, DiskError, Wanted};
use crate::records::Key;

pub(super) const SECTOR: usize = 512;
pub(super) const AGENT: AgentId = AgentId([0xA6; 16]);
pub(super) const MIB: u64 = 1 << 20;

/// What is on the medium, and what is in its cache.
#[derive(Default)]
struct State {
    stable: Vec<u8>,
    /// Behind what is stable, oldest first, with whether it is stable all the same.
    cached: Vec<(usize, Vec<u8>, bool)>,
    /// Requests until power is lost.
    left: Option<u64>,
    is_off: bool,
    /// Requests that are not carried out until they are let through, and what the cache held before them.
    held: Vec<(Request, usize)>,
    holds: Option<Op>,
    can_discard: bool,
    seen: Vec<(Op, u64, u64)>,
}

#[derive(Clone, Default)]
pub(super) struct Medium(Arc<Mutex<State>>);

impl Medium {
    /// A disk full of somebody's bytes, but for both ends, where nothing stands.
    pub(super) fn used(len: u64) -> Self {
        let mut stable = vec![0x5E; usize::try_from(len).unwrap()];
        let end = stable.len();
        stable[..1 << 20].fill(0);
        stable[end - (1 << 20)..].fill(0);
        Self(Arc::new(Mutex::new(State { stable, can_discard: true, ..State::default() })))
    }

    pub(super) fn device(&self) -> Device {
        Device::new(Arc::new(self.clone()))
    }

    pub(super) fn open(&self) -> Result<Disk, DiskError> {
        let wanted = Wanted { agent: AGENT, disk: None, new: [0xD1; 16], force: false };
        Disk::open(self.device(), "disk", wanted)
    }

    pub(super) fn set_discard(&self, can_discard: bool) {
        self.0.lock().unwrap().can_discard = can_discard;
    }

    /// Power is lost after so many requests.
    pub(super) fn lose_power_after(&self, requests: u64) {
        self.0.lock().unwrap().left = Some(requests);
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.lock().unwrap().is_off
    }

    /// Power comes back: of what was in the cache a part is there, sector by sector.
    pub(super) fn power_on(&self, random: &mut StdRng) {
        let mut state = self.0.lock().unwrap();
        let kept = random.random_range(0..=4);
        for (at, bytes, is_stable) in std::mem::take(&mut state.cached) {
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                if is_stable || random.random_range(0..4) < kept {
                    let at = at + sector * SECTOR;
                    state.stable[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        (state.left, state.is_off) = (None, false);
    }

    /// The bytes as they are read.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.0.lock().unwrap().read(at, len)
    }

    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap();
        state.cached.push((at, bytes.to_vec(), true));
        let count = state.cached.len();
        state.flush(count);
    }

    /// Keeps requests of this kind until [`Self::release`].
    pub(super) fn hold(&self, op: Op) {
        self.0.lock().unwrap().holds = Some(op);
    }

    /// Lets through what was held.
    pub(super) fn release(&self) {
        let held = {
            let mut state = self.0.lock().unwrap();
            state.holds = None;
            std::mem::take(&mut state.held)
        };
        for (request, cached) in held {
            let ended = self.0.lock().unwrap().carry_out(&request, cached);
            request.completion.finish(ended);
        }
    }

    pub(super) fn held(&self) -> usize {
        self.0.lock().unwrap().held.len()
    }

    /// Requests since this was asked last.
    pub(super) fn seen(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.0.lock().unwrap().seen)
    }
}

impl State {
    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = self.stable[at..at + len].to_vec();
        for (from, written, _) in &self.cached {
            let (first, end) = ((*from).max(at), (from + written.len()).min(at + len));
            if first < end {
                bytes[first - at..end - at].copy_from_slice(&written[first - from..end - from]);
            }
        }
        bytes
    }

    fn flush(&mut self, count: usize) {
        for (at, bytes, _) in self.cached.drain(..count) {
            self.stable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// A flush is of what the cache held when it was submitted.
    fn carry_out(&mut self, request: &Request, cached: usize) -> Result<SgList, IoError> {
        if self.is_off || self.left == Some(0) {
            self.is_off = true;
            return Err(ErrorKind::Unreachable.into());
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        let (at, len) =
            (usize::try_from(request.offset).unwrap(), usize::try_from(request.len).unwrap());
        self.seen.push((request.op, request.offset, request.len));
        match request.op {
            Op::Read => return Ok(Buf::copy_from(&self.read(at, len)).into()),
            Op::Flush => self.flush(cached),
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let mut bytes = vec![0; len];
                if request.op == Op::Write {
                    request.data.copy_to(&mut bytes);
                }
                self.cached.push((at, bytes, request.flags.fua));
            }
            Op::Extents => return Err(ErrorKind::Unsupported.into()),
        }
        Ok(SgList::new())
    }
}

impl BlockDevice for Medium {
    fn info(&self) -> DeviceInfo {
        let state = self.0.lock().unwrap();
        DeviceInfo {
            capacity: state.stable.len() as u64,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 2 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: state.can_discard,
            can_map: false,
        }
    }

    fn submit(&self, request: Request) {
        let mut state = self.0.lock().unwrap();
        if state.holds == Some(request.op) {
            let cached = state.cached.len();
            return state.held.push((request, cached));
        }
        let cached = state.cached.len();
        let ended = state.carry_out(&request, cached);
        drop(state);
        request.completion.finish(ended);
    }
}

pub(super) fn key(number: u8) -> Key {
    (MediatorId([1; 16]), SegmentId([number; 16]))
}

#[derive(Default)]
pub(super) struct Ended(Mutex<Option<Result<SgList, IoError>>>, Condvar);

impl Complete for Ended {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        assert!(self.0.lock().unwrap().replace(result).is_none(), "a request ends once");
        self.1.notify_all();
    }
}

impl Ended {
    pub(super) fn has_ended(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub(super) fn wait(&self) -> Result<Vec<u8>, IoError> {
        let ended = self.1.wait_while(self.0.lock().unwrap(), |ended| ended.is_none()).unwrap();
        ended.clone().unwrap().map(|data| data.to_contiguous().to_vec())
    }
}

/// Begins a request.
pub(super) fn begin(
    device: &Device,
    op: Op,
    (offset, len): (u64, u64),
    fua: bool,
    bytes: &[u8],
) -> Arc<Ended> {
    let ended = Arc::new(Ended::default());
    let completion = Completion::new(Arc::clone(&ended) as Arc<dyn Complete>, 0);
    let data = if bytes.is_empty() { SgList::new() } else { Buf::copy_from(bytes).into() };
    let flags = RequestFlags { fua, no_unmap: false };
    device.submit(Request { op, offset, len, flags, data, completion });
    ended
}

pub(super) fn write(device: &Device, offset: u64, bytes: &[u8]) -> Result<Vec<u8>, IoError> {
    begin(device, Op::Write, (offset, bytes.len() as u64), false, bytes).wait()
}

pub(super) fn read(device: &Device, offset: u64, len: u64) -> Result<Vec<u8>, IoError> {
    begin(device, Op::Read, (offset, len), false, &[]).wait()
}

pub(super) fn flush(device: &Device) -> Result<Vec<u8>, IoError> {
    begin(device, Op::Flush, (0, 0), false, &[]).wait()
}
