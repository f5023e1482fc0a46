//! Writes of partial blocks: read, modify, write, one after the other, on a thread of their own.
//!
//! Whole-block writes that found the gate closed come here too; they are submitted in their turn
//! and not waited for. This is the slow way: clients are told the block length to avoid it.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use crossbeam_channel::{Receiver, Sender};
use netraid_block::{
    Buf, BufMut, Complete, Completion, Device, ErrorKind, IoError, Op, RequestFlags, SgList, narrow,
};

use super::{ByteRequest, Completer, HOLDS_GATE, gate::Gate, submit, submit_write, whole_blocks};

/// A request for the aligner; its range is within the capacity.
pub(super) struct Job {
    pub(super) request: ByteRequest,
    pub(super) consumer: Arc<Completer>,
    pub(super) tag: u64,
}

/// Starts the thread of a gate; it ends with the last sender. `None` when there is no thread.
pub(super) fn start(device: Device, gate: Arc<Gate>) -> Option<Sender<Job>> {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let builder = thread::Builder::new().name("netraid-align".into());
    builder.spawn(move || run(&device, &gate, &receiver)).ok()?;
    Some(sender)
}

fn run(device: &Device, gate: &Gate, jobs: &Receiver<Job>) {
    gate.bind();
    for Job { request, consumer, tag } in jobs {
        let end = request.offset + request.len;
        let whole = whole_blocks(device.info(), request.offset, end) == (request.offset..end);
        let rewritten = if whole {
            gate.enter_closed();
            submit_write(device, request, consumer.clone(), tag | HOLDS_GATE);
            None
        } else {
            gate.close();
            Some(rewrite(device, request))
        };
        // Clients that send partial blocks send many: stay closed while more are waiting.
        if jobs.is_empty() {
            gate.open();
        }
        if let Some(result) = rewritten {
            consumer.complete(tag, result);
        }
    }
}

/// Writes a range that begins or ends within a block.
fn rewrite(device: &Device, request: ByteRequest) -> Result<SgList, IoError> {
    let ByteRequest { op, offset, len, flags, data } = request;
    let info = device.info();
    let end = offset + len;
    if op == Op::Write {
        return write_within(device, offset, data, flags);
    }
    let block_len = u64::from(info.block_len);
    let inner = offset.next_multiple_of(block_len)..end - end % block_len;
    let zeros = |len: u64| -> SgList { BufMut::zeroed(narrow(len)).freeze().into() };
    if inner.is_empty() {
        return write_within(device, offset, zeros(len), flags);
    }
    write_within(device, offset, zeros(inner.start - offset), flags)?;
    let middle = ByteRequest {
        op,
        offset: inner.start,
        len: inner.end - inner.start,
        flags,
        data: SgList::new(),
    };
    wait(device, middle)?;
    write_within(device, inner.end, zeros(end - inner.end), flags)
}

/// Writes `data` at `offset`, with what the first and the last block hold around it.
fn write_within(
    device: &Device,
    offset: u64,
    data: SgList,
    flags: RequestFlags,
) -> Result<SgList, IoError> {
    if data.is_empty() {
        return Ok(data);
    }
    let info = device.info();
    let end = offset + data.len() as u64;
    let whole = whole_blocks(info, offset, end);
    let mut list = SgList::new();
    if whole.start < offset {
        let block = read_block(device, whole.start)?;
        list.push(block.slice(0..narrow(offset - whole.start)));
    }
    list.append(data);
    if end < whole.end {
        let block_len = u64::from(info.block_len);
        let block = read_block(device, whole.end - block_len)?;
        list.push(block.slice(narrow(block_len - (whole.end - end))..block.len()));
    }
    assert_eq!(list.len() as u64, whole.end - whole.start, "whole blocks");
    let flags = RequestFlags { no_unmap: false, ..flags };
    let step = u64::from(info.max_transfer_len - info.max_transfer_len % info.block_len);
    let mut done = 0;
    while done < list.len() as u64 {
        let len = step.min(list.len() as u64 - done);
        let data = list.slice(narrow(done)..narrow(done + len));
        wait(device, ByteRequest { op: Op::Write, offset: whole.start + done, len, flags, data })?;
        done += len;
    }
    Ok(SgList::new())
}

fn read_block(device: &Device, offset: u64) -> Result<Buf, IoError> {
    let len = u64::from(device.info().block_len);
    let flags = RequestFlags::default();
    let data = SgList::new();
    let read = wait(device, ByteRequest { op: Op::Read, offset, len, flags, data })?;
    Ok(read.to_contiguous())
}

struct Waiter(mpsc::Sender<Result<SgList, IoError>>);

impl Complete for Waiter {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        // The receiver waits until this has happened.
        let _ = self.0.send(result);
    }
}

/// Submits a request and waits for its end; only on a thread that may wait.
fn wait(device: &Device, request: ByteRequest) -> Result<SgList, IoError> {
    let (sender, receiver) = mpsc::channel();
    submit(device, request, Completion::new(Arc::new(Waiter(sender)), 0));
    receiver.recv().unwrap_or_else(|_| Err(ErrorKind::Aborted.into()))
}
