//! The thread of a ring: what the kernel has of a store's requests.
//!
//! Invariant: memory that the kernel was told of belongs to its [`Slot`], untouched, until the kernel
//! has said that it is done with it. A thread that fails leaves it allocated for good.
//!
//! Only whole ends and errors are told from here: what comes back in part, interrupted or unsupported
//! is given to a thread of the backing, which does all of it again.
//!
//! What is to be stable at its end, flushes and FUA writes, goes through descriptions of the file of
//! which each is used by one request at a time: the kernel tells each of them once what was lost
//! (see [`Store`]).

use std::{
    collections::VecDeque,
    io, mem,
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    thread,
};

use crossbeam_channel::{Receiver, TryRecvError};
use io_uring::{IoUring, Probe, opcode, squeue::Entry, types};
use netraid_block::{BufMut, Op, Request, SgList, narrow};
use rustix::io::{Errno, ReadWriteFlags};

use super::{
    super::{
        store::{Own, Store},
        threads::Threads,
    },
    Door,
};

/// Requests that the kernel has at once.
const DEPTH: usize = 256;
/// Entries of the kernel's queue: each slot has at most one in it, and so has the bell.
const ENTRIES: u32 = 512;
/// Most parts of one write (the kernel's limit).
const PARTS_MAX: usize = 1024;
/// The bell, where slots have their numbers.
const BELL: u64 = u64::MAX;

pub(super) struct Submitter {
    ring: IoUring,
    store: Arc<Store>,
    threads: Arc<Threads>,
    door: Arc<Door>,
    receiver: Receiver<Request>,
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    /// For what is to be stable at its end: those that nobody uses now.
    free_files: Vec<Own>,
    /// Slots that wait for one of them.
    waiting: VecDeque<usize>,
    /// What has ended and was not looked at: slot and result.
    ends: Vec<(u64, i32)>,
}

/// A request that the kernel has, or is to have.
#[derive(Default)]
struct Slot {
    /// None: free.
    request: Option<Request>,
    /// What a read fills.
    read_into: Option<BufMut>,
    /// The parts of a write; its memory stays for the next one.
    parts: Vec<libc::iovec>,
    /// Through which it is done, if it is to be stable at its end.
    file: Option<Own>,
}

impl Submitter {
    pub(super) fn new(
        store: Arc<Store>,
        threads: Arc<Threads>,
        files: Vec<Own>,
        door: Arc<Door>,
        receiver: Receiver<Request>,
    ) -> io::Result<Self> {
        let ring = make_ring()?;
        let mut slots = Vec::new();
        slots.resize_with(DEPTH, Slot::default);
        Ok(Self {
            ring,
            store,
            threads,
            door,
            receiver,
            slots,
            free_slots: (0..DEPTH).rev().collect(),
            free_files: files,
            waiting: VecDeque::with_capacity(DEPTH),
            ends: Vec::with_capacity(DEPTH + 1),
        })
    }

    /// Serves until nobody can give anything any more, and all that was given has ended.
    pub(super) fn run(mut self) {
        self.listen();
        loop {
            let is_open = self.take_requests();
            if !is_open && self.free_slots.len() == DEPTH {
                return;
            }
            self.await_ends();
            let mut ends = mem::take(&mut self.ends);
            for (place, result) in ends.drain(..) {
                match usize::try_from(place) {
                    Ok(slot) if place != BELL => self.end(slot, result),
                    Ok(_) | Err(_) => {
                        self.door.hush();
                        self.listen();
                    }
                }
            }
            self.ends = ends;
        }
    }

    /// Has the kernel tell when the bell is rung the next time.
    fn listen(&mut self) {
        let bell = types::Fd(self.door.bell.as_raw_fd());
        let readable = u32::from(rustix::event::PollFlags::IN.bits());
        self.push(&opcode::PollAdd::new(bell, readable).build().user_data(BELL));
    }

    /// Takes what there is, as far as there are slots; false when there will never be more.
    fn take_requests(&mut self) -> bool {
        while !self.free_slots.is_empty() {
            match self.receiver.try_recv() {
                Ok(request) => self.begin(request),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Gives the kernel what is to be done, and waits for an end unless there is more to give.
    fn await_ends(&mut self) {
        self.door.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let has_more = !self.receiver.is_empty() && !self.free_slots.is_empty();
        let result = self.ring.submit_and_wait(usize::from(!has_more));
        self.door.sleeps.store(false, Ordering::Relaxed);
        if let Err(error) = result {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                // A signal, or ends that have to be taken first.
                Some(Errno::INTR | Errno::BUSY) => {}
                // No memory at the moment.
                Some(Errno::AGAIN) => thread::yield_now(),
                _ => panic!("the kernel refuses to serve its ring: {error}"),
            }
        }
        let ends = self.ring.completion().map(|end| (end.user_data(), end.result()));
        self.ends.extend(ends);
    }

    fn begin(&mut self, mut request: Request) {
        let Request { op, offset, len, .. } = request;
        if op.changes()
            && let Err(error) = self.store.check_end(offset, len)
        {
            return request.completion.finish(Err(error));
        }
        if let Some(whole) = self.store.realigned(&request.data) {
            request.data = whole.into();
        }
        let is_odd = op != Op::Flush && (len == 0 || u32::try_from(len).is_err());
        if is_odd || request.data.parts().len() > PARTS_MAX {
            return self.threads.give(request);
        }
        let Some(slot) = self.free_slots.pop() else {
            unreachable!("requests are taken for slots")
        };
        let is_stable = self.is_stable(&request);
        let before = self.slots[slot].request.replace(request);
        assert!(before.is_none(), "a slot is given to one request at a time");
        if !is_stable {
            self.submit(slot, None);
        } else if let Some(file) = self.free_files.pop() {
            self.submit(slot, Some(file));
        } else {
            self.waiting.push_back(slot);
        }
    }

    /// Whether the request is to be stable at its end.
    fn is_stable(&self, request: &Request) -> bool {
        let fua = request.flags.fua || self.store.is_sync();
        request.op == Op::Flush || (fua && request.op == Op::Write)
    }

    /// Puts a slot's request into the kernel's queue.
    fn submit(&mut self, index: usize, own: Option<Own>) {
        let slot = &mut self.slots[index];
        let Some(Request { op, offset, len, data, .. }) = &slot.request else {
            unreachable!("slot {index} is free")
        };
        let (file, flags) = match &own {
            None => (self.store.file().as_raw_fd(), ReadWriteFlags::empty()),
            Some(own) => (own.as_raw_fd(), ReadWriteFlags::DSYNC),
        };
        assert!(slot.file.is_none() && slot.read_into.is_none(), "the kernel has slot {index}");
        slot.file = own;
        // Not registered: the kernel keeps registered files open for a while when a process is killed,
        // and then nobody else could have them.
        let (file, flags) = (types::Fd(file), flags.bits().cast_signed());
        let offset = *offset;
        let entry = match (op, data.parts()) {
            (Op::Flush, _) => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            (Op::Read, _) => {
                let buf = slot.read_into.insert(self.store.pool().get(narrow(*len)));
                opcode::Read::new(file, buf.as_mut_ptr(), narrow(*len)).offset(offset).build()
            }
            (_, [part]) => {
                let write = opcode::Write::new(file, part.as_ptr(), narrow(part.len()));
                write.offset(offset).rw_flags(flags).build()
            }
            (_, parts) => {
                slot.parts.clear();
                slot.parts.extend(parts.iter().map(|part| libc::iovec {
                    // The kernel only reads what is written from.
                    iov_base: part.as_ptr().cast_mut().cast(),
                    iov_len: part.len(),
                }));
                let write = opcode::Writev::new(file, slot.parts.as_ptr(), narrow(parts.len()));
                write.offset(offset).rw_flags(flags).build()
            }
        };
        self.push(&entry.user_data(index as u64));
    }

    #[allow(unsafe_code)]
    fn push(&mut self, entry: &Entry) {
        // SAFETY: what the entry points to (a read's buffer, a write's parts and the list of them) is
        // memory on the heap, which does not move with its handles. The slot owns these handles, and
        // nobody touches them before the entry's end was taken (`end`); a `Submitter` that is dropped
        // earlier forgets them. The buffer of a read is a `BufMut`, to which there is no other handle.
        // The other entries, of flushes and of the bell, point nowhere.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the kernel's queue has room for every slot and the bell");
    }

    /// The kernel is done with a slot's request.
    fn end(&mut self, index: usize, result: i32) {
        let slot = &mut self.slots[index];
        let (read_into, file) = (slot.read_into.take(), slot.file.take());
        let is_stable = file.is_some();
        let Some(request) = slot.request.take() else { unreachable!("slot {index} ended twice") };
        self.free_slots.push(index);
        if let Some(file) = file {
            match self.waiting.pop_front() {
                Some(next) => self.submit(next, Some(file)),
                None => self.free_files.push(file),
            }
        }
        let whole = if request.op == Op::Flush { 0 } else { request.len };
        let result = match u64::try_from(result) {
            Ok(done) if done == whole && is_stable => self.store.check_stable(),
            Ok(done) if done == whole => Ok(()),
            Ok(_) => return self.threads.give(request),
            Err(_) => {
                let errno = Errno::from_raw_os_error(result.saturating_neg());
                if is_for_a_thread(is_stable, errno) {
                    return self.threads.give(request);
                }
                Err(self.store.failed(request.op, request.offset, is_stable, errno))
            }
        };
        // The buffers go back to their pool before anyone asks for more.
        let Request { data, completion, .. } = request;
        drop(data);
        let filled = read_into.map_or_else(SgList::new, |buf| buf.freeze().into());
        completion.finish(result.map(|()| filled));
    }
}

impl Drop for Submitter {
    /// Requests are left only where the thread fails: they end, but the kernel may still write to
    /// their memory.
    fn drop(&mut self) {
        for slot in &mut self.slots {
            if let Some(Request { data, completion, .. }) = slot.request.take() {
                self.store.distrust();
                mem::forget((data, slot.read_into.take(), mem::take(&mut slot.parts)));
                drop(completion);
            }
        }
    }
}

/// A ring for one thread, which makes the ends when that thread asks for them (Linux 6.1): so all that the
/// kernel holds of a request is let go before its end is seen, and files are free when they seem to be.
fn make_ring() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::PollAdd::CODE,
    ];
    match needed.into_iter().all(|code| probe.is_supported(code)) {
        true => Ok(ring),
        false => Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's ring is too old")),
    }
}

/// Whether a thread is to do again what failed: where nothing was found out about the file. A request that
/// was to be stable may have used up the only report of a loss, and the next one through its file would be
/// called stable: unless it was not begun, its failure is judged here and now, though others wait for that.
const fn is_for_a_thread(is_stable: bool, errno: Errno) -> bool {
    match errno {
        Errno::INTR | Errno::CANCELED => true,
        Errno::AGAIN | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOMEM => !is_stable,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_to_make_stable_is_not_tried_away() {
        let all = [
            Errno::AGAIN,
            Errno::INVAL,
            Errno::OPNOTSUPP,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::ROFS,
            Errno::IO,
        ];
        for errno in all {
            assert!(!is_for_a_thread(true, errno), "{errno:?}");
        }
        assert!(is_for_a_thread(true, Errno::INTR), "it was not begun");
        assert!(is_for_a_thread(false, Errno::AGAIN));
        assert!(!is_for_a_thread(false, Errno::IO));
    }
}
