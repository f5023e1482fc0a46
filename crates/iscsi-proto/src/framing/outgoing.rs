//! The sending half: headers, padding and digests around what is sent from where it lies.

use alloc::collections::VecDeque;

use netraid_block::SgList;
use netraid_parity::crc;

use crate::{
    machine::Digests,
    pdu::{BHS_LEN, Bhs},
};

/// Bytes and PDUs that may wait before more are made.
const QUEUED_MAX: usize = 2 << 20;
const ITEMS_MAX: usize = 256;

/// One PDU that waits to be sent.
struct Item {
    head: [u8; BHS_LEN + 4],
    head_len: usize,
    body: SgList,
    tail: [u8; 8],
    tail_len: usize,
}

impl Item {
    #[inline]
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
        let head = core::iter::once(&self.head[..self.head_len]);
        let tail = core::iter::once(&self.tail[..self.tail_len]);
        head.chain(body).chain(tail).filter(|slice| !slice.is_empty())
    }
}

/// What waits to be sent.
#[derive(Default)]
pub struct Outgoing {
    items: VecDeque<Item>,
    /// Bytes of the first item that are gone.
    sent: usize,
    /// Bytes that wait, those that are gone aside.
    queued: usize,
}

impl Outgoing {
    /// Whether more may be queued before what waits is sent.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queued < QUEUED_MAX && self.items.len() < ITEMS_MAX
    }

    /// Whether nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Queues one PDU.
    ///
    /// # Panics
    /// When the data does not have the length that the header says.
    #[inline]
    pub fn push(&mut self, header: &Bhs, body: SgList, digests: Digests) {
        // Else all that follows would be taken for something else.
        assert_eq!(body.len() as u64, u64::from(header.data_len()), "a PDU's data has its length");
        let item = Item::new(header, body, digests);
        self.queued += item.len();
        self.items.push_back(item);
    }

    /// Gives the bytes that wait, in order, to `take`, until that wants no more.
    #[inline]
    pub fn slices<'a>(&'a self, mut take: impl FnMut(&'a [u8]) -> bool) {
        let mut skip = self.sent;
        for item in &self.items {
            for slice in item.slices() {
                if skip >= slice.len() {
                    skip -= slice.len();
                    continue;
                }
                if !take(&slice[skip..]) {
                    return;
                }
                skip = 0;
            }
        }
    }

    /// So many bytes are gone.
    ///
    /// # Panics
    /// When fewer waited.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.queued, "more was sent than waited");
        self.queued -= count;
        self.sent += count;
        while let Some(first) = self.items.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.items.pop_front();
        }
    }
}
