use std::vec::Vec;

use netraid_block::{Buf, SgList};

use super::*;
use crate::pdu::Opcode;

/// A side that keeps what it is given; every other PDU's data belongs to a task.
#[derive(Default)]
struct Kept {
    digests: Digests,
    headers: Vec<Bhs>,
    buffer: Vec<u8>,
    segments: Vec<Vec<u8>>,
    bad: usize,
}

const LEN: usize = 70_000;

impl Side for Kept {
    fn receive_digests(&self) -> Digests {
        self.digests
    }

    fn wants_input(&self) -> bool {
        true
    }

    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, Broken> {
        self.headers.push(*bhs);
        self.buffer = std::vec![0; LEN];
        Ok(match self.headers.len() % 3 {
            0 => Placement::Control,
            1 => Placement::Task { task: TaskId(0), offset: 0, len: bhs.data_len() },
            _ => Placement::Discard,
        })
    }

    fn buffer(&mut self, _task: TaskId) -> &mut [u8] {
        &mut self.buffer
    }

    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), Broken> {
        let len = self.headers.last().map_or(0, |bhs| bhs.data_len() as usize);
        let kept = match self.headers.len() % 3 {
            0 => control.unwrap().to_vec(),
            1 => self.buffer[..len].to_vec(),
            _ => Vec::new(),
        };
        self.segments.push(kept);
        Ok(())
    }

    fn handle_bad_digest(&mut self, _bhs: &Bhs) -> Result<(), Broken> {
        self.bad += 1;
        Ok(())
    }
}

fn body(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number * 7).to_le_bytes()[0]).collect()
}

/// PDUs of these lengths as they go over a connection that takes so many bytes at a time.
fn stream(lens: &[usize], digests: Digests, step: usize) -> Vec<u8> {
    let (mut outgoing, mut bytes) = (Outgoing::default(), Vec::new());
    for (number, len) in lens.iter().enumerate() {
        let mut header = Bhs([0; 48]);
        header.0[0] = Opcode::NopIn as u8;
        let header = header.with_data_len(netraid_block::narrow(*len));
        let data: SgList = Buf::copy_from(&body(number, *len)).into();
        outgoing.push(&header, data, digests);
    }
    while !outgoing.is_empty() {
        let mut taken = 0;
        outgoing.slices(|slice| {
            let part = &slice[..slice.len().min(step - taken)];
            bytes.extend_from_slice(part);
            taken += part.len();
            taken < step
        });
        outgoing.advance(taken);
    }
    bytes
}

/// Gives the bytes of a stream, so many at a time.
fn receive(bytes: &[u8], kept: &mut Kept, step: usize) -> Result<(), Broken> {
    let (mut incoming, mut at) = (Incoming::default(), 0);
    while at < bytes.len() {
        let (place, window) = incoming.room(kept);
        let placed_max = place.as_ref().map_or(0, |place| place.len());
        let mut count = 0;
        for room in place.into_iter().chain([window]) {
            let len = room.len().min(step - count).min(bytes.len() - at);
            room[..len].copy_from_slice(&bytes[at..at + len]);
            (at, count) = (at + len, count + len);
        }
        incoming.received(count, placed_max, kept);
        assert!(incoming.consume(kept)?);
    }
    Ok(())
}

const LENS: [usize; 7] = [0, 1, 5, 4096, 65_537, 3, 20_000];

#[test]
fn what_was_sent_is_received_however_the_stream_is_cut() {
    let on = |header, data| Digests { header, data };
    for digests in [on(false, false), on(true, false), on(false, true), on(true, true)] {
        for step in [1, 7, 48, 1000, 1 << 20] {
            let bytes = stream(&LENS, digests, step);
            assert_eq!(bytes, stream(&LENS, digests, 1 << 20), "sent in steps of {step}");
            let mut kept = Kept { digests, ..Kept::default() };
            receive(&bytes, &mut kept, step).unwrap();
            assert_eq!((kept.headers.len(), kept.bad), (LENS.len(), 0), "steps of {step}");
            for (number, segment) in kept.segments.iter().enumerate() {
                let is_kept = (number + 1) % 3 != 2;
                let expected = if is_kept { body(number, LENS[number]) } else { Vec::new() };
                assert!(*segment == expected, "PDU {number} in steps of {step}");
            }
        }
    }
}

#[test]
fn a_changed_byte_is_found_by_its_digest() {
    let digests = Digests { header: true, data: true };
    let good = stream(&[100, 200], digests, 1 << 20);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        for step in [1, 1 << 20] {
            let mut kept = Kept { digests, ..Kept::default() };
            let end = receive(&bytes, &mut kept, step);
            let is_found = end == Err(Broken::Digest("header")) || kept.bad == 1;
            assert!(is_found, "byte {at}: {end:?}");
        }
    }
}
