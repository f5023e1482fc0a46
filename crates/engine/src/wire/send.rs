//! The sending half: headers, padding and digests around what is sent from where it lies.

use std::io::{self, IoSlice};

use netraid_block::SgList;
use netraid_iscsi_proto::{
    machine::Digests,
    pdu::{BHS_LEN, Bhs},
};
use netraid_raid::crc;
use smallvec::SmallVec;

use super::{Wire, WireError};

/// Slices of one write; the kernel takes up to 1024.
const SLICES_MAX: usize = 128;
/// Bytes and PDUs that may wait before more are made.
const QUEUED_MAX: usize = 2 << 20;
const ITEMS_MAX: usize = 256;

/// One PDU that waits to be sent.
pub(super) struct Item {
    head: [u8; BHS_LEN + 4],
    head_len: usize,
    body: SgList,
    tail: [u8; 8],
    tail_len: usize,
}

impl Item {
    fn new(header: &Bhs, body: SgList, digests: Digests) -> Self {
        let mut head = [0; BHS_LEN + 4];
        head[..BHS_LEN].copy_from_slice(&header.0);
        let mut head_len = BHS_LEN;
        if digests.header {
            head[BHS_LEN..].copy_from_slice(&crc::append(0, &header.0).to_le_bytes());
            head_len += 4;
        }
        let pad_len = body.len().next_multiple_of(4) - body.len();
        let (mut tail, mut tail_len) = ([0; 8], pad_len);
        if digests.data && !body.is_empty() {
            let parts = body.parts().iter();
            let digest = parts.fold(0, |digest, part| crc::append(digest, part));
            let digest = crc::append(digest, &tail[..pad_len]);
            tail[pad_len..pad_len + 4].copy_from_slice(&digest.to_le_bytes());
            tail_len += 4;
        }
        Self { head, head_len, body, tail, tail_len }
    }

    fn len(&self) -> usize {
        self.head_len + self.body.len() + self.tail_len
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let body = self.body.parts().iter().map(|part| &part[..]);
        let head = std::iter::once(&self.head[..self.head_len]);
        let tail = std::iter::once(&self.tail[..self.tail_len]);
        head.chain(body).chain(tail).filter(|slice| !slice.is_empty())
    }
}

impl Wire {
    /// Whether more may be queued before what waits is sent.
    pub(crate) fn has_room(&self) -> bool {
        self.queued < QUEUED_MAX && self.output.len() < ITEMS_MAX
    }

    /// Whether nothing waits.
    pub(crate) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// Queues one PDU.
    pub(crate) fn push(&mut self, header: &Bhs, body: SgList, digests: Digests) {
        // Else all that follows would be taken for something else.
        assert_eq!(body.len() as u64, u64::from(header.data_len()), "a PDU's data has its length");
        let item = Item::new(header, body, digests);
        self.queued += item.len();
        self.output.push_back(item);
    }

    /// Sends what the socket takes; whether all is gone.
    pub(crate) fn flush(&mut self) -> Result<bool, WireError> {
        while !self.output.is_empty() {
            let mut slices: SmallVec<[IoSlice<'_>; SLICES_MAX]> = SmallVec::new();
            let mut skip = self.sent;
            for slice in self.output.iter().flat_map(Item::slices) {
                if slices.len() == SLICES_MAX {
                    break;
                }
                if skip >= slice.len() {
                    skip -= slice.len();
                    continue;
                }
                slices.push(IoSlice::new(&slice[skip..]));
                skip = 0;
            }
            let result = self.stream.try_write_vectored(&slices);
            drop(slices);
            match result {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.queued, "more was sent than waited");
        self.queued -= count;
        self.sent += count;
        while let Some(first) = self.output.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.output.pop_front();
        }
        if !self.output.is_empty() {
            self.moved = self.moved.wrapping_add(count as u64);
        }
    }
}
