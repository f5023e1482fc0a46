//! The receiving half: headers, data segments, digests.

use alloc::{boxed::Box, vec, vec::Vec};

use netraid_block::narrow;
use netraid_parity::crc;

use super::{Broken, Side};
use crate::{
    machine::Placement,
    pdu::{BHS_LEN, Bhs},
};

/// Receive buffer: holds many small PDUs, and always a header with all its extensions.
const INPUT_LEN: usize = 64 * 1024;
/// Longest header: basic, additional segments, digest.
const HEADER_LEN_MAX: usize = BHS_LEN + 255 * 4 + 4;
/// A data segment from which on the next ones are expected to be long too: then little is read
/// beyond what is waited for, so that data lands in place instead of being copied there.
const LONG_SEGMENT: usize = 16 * 1024;
const SHORT_WINDOW: usize = 512;
/// What is being received.
enum Stage {
    Header,
    Segment(Segment),
}

/// A data segment on its way in.
struct Segment {
    bhs: Bhs,
    placement: Placement,
    len: usize,
    got: usize,
    /// Padding, and the digest when there is one.
    trailer: [u8; 8],
    trailer_len: usize,
    trailer_got: usize,
    pad_len: usize,
    digest: Option<u32>,
    control: Vec<u8>,
}

impl Segment {
    fn new(bhs: Bhs, placement: Placement, with_digest: bool) -> Self {
        let len: usize = narrow(bhs.data_len());
        let pad_len = len.next_multiple_of(4) - len;
        let with_digest = with_digest && len > 0;
        // Else bytes behind it would be taken for its data.
        let is_longer = matches!(placement, Placement::Task { len, .. } if len > bhs.data_len());
        assert!(!is_longer, "{placement:?} is longer than its segment");
        Self {
            bhs,
            placement,
            len,
            got: 0,
            trailer: [0; 8],
            trailer_len: pad_len + if with_digest { 4 } else { 0 },
            trailer_got: 0,
            pad_len,
            digest: with_digest.then_some(0),
            control: Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.got == self.len && self.trailer_got == self.trailer_len
    }

    /// Where the next bytes belong, when they belong to a task.
    fn place<'a>(&self, side: &'a mut impl Side) -> Option<&'a mut [u8]> {
        let Placement::Task { task, offset, len } = self.placement else { return None };
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let range = offset + self.got..offset + len;
        side.buffer(task).get_mut(range).filter(|place| !place.is_empty())
    }

    /// Takes what it can of `bytes`; returns how many it took.
    fn take(&mut self, bytes: &[u8], side: &mut impl Side) -> usize {
        let mut taken = 0;
        if self.got < self.len {
            taken = bytes.len().min(self.len - self.got);
            let mut part = &bytes[..taken];
            if let Some(digest) = &mut self.digest {
                *digest = crc::append(*digest, part);
            }
            if self.placement == Placement::Control {
                self.control.extend_from_slice(part);
            } else if let Some(place) = self.place(side) {
                part = &part[..part.len().min(place.len())];
                place[..part.len()].copy_from_slice(part);
            }
            self.got += taken;
        }
        if self.got == self.len {
            let rest = &bytes[taken..];
            let len = rest.len().min(self.trailer_len - self.trailer_got);
            self.trailer[self.trailer_got..self.trailer_got + len].copy_from_slice(&rest[..len]);
            self.trailer_got += len;
            taken += len;
        }
        taken
    }

    fn digest_is_right(&self) -> bool {
        let Some(digest) = self.digest else { return true };
        let (pad, sent) = self.trailer[..self.trailer_len].split_at(self.pad_len);
        crc::append(digest, pad).to_le_bytes() == sent
    }
}

/// What was received of a stream, up to where it was taken.
pub struct Incoming {
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes worth reading beyond the data that is waited for.
    window: usize,
    stage: Stage,
    is_paused: bool,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            input: vec![0; INPUT_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            window: INPUT_LEN,
            stage: Stage::Header,
            is_paused: false,
        }
    }
}

impl Incoming {
    /// Whether the side wanted no more while there was more; the connection will not tell of that.
    #[inline]
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Gives to `side` what was received, until there is no more, or the side wants no more; false then.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn consume(&mut self, side: &mut impl Side) -> Result<bool, Broken> {
        // So it is until the side has taken all.
        self.is_paused = false;
        loop {
            match &mut self.stage {
                Stage::Header => {
                    if !side.wants_input() {
                        self.is_paused = true;
                        return Ok(false);
                    }
                    let digests = side.receive_digests();
                    let Some(bhs) = self.take_header(digests.header)? else { return Ok(true) };
                    let placement = side.handle_header(&bhs)?;
                    self.stage = Stage::Segment(Segment::new(bhs, placement, digests.data));
                }
                Stage::Segment(segment) => {
                    self.start += segment.take(&self.input[self.start..self.end], side);
                    if !segment.is_complete() {
                        return Ok(true);
                    }
                    self.window =
                        if segment.len >= LONG_SEGMENT { SHORT_WINDOW } else { INPUT_LEN };
                    if segment.digest_is_right() {
                        let control = segment.placement == Placement::Control;
                        side.handle_segment(control.then_some(&segment.control[..]))?;
                    } else {
                        side.handle_bad_digest(&segment.bhs)?;
                    }
                    self.stage = Stage::Header;
                }
            }
        }
    }

    /// Where the next bytes of the stream go: first to the place of a command, then to the buffer for all else.
    pub fn room<'a>(&'a mut self, side: &'a mut impl Side) -> (Option<&'a mut [u8]>, &'a mut [u8]) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if INPUT_LEN - self.end < HEADER_LEN_MAX {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let limit = INPUT_LEN.min(self.end.saturating_add(self.window.max(HEADER_LEN_MAX)));
        let place = match &self.stage {
            Stage::Segment(segment) => segment.place(side),
            Stage::Header => None,
        };
        (place, &mut self.input[self.end..limit])
    }

    /// So many bytes are where [`Self::room`] said, at most `placed_max` of them in the place of a command.
    ///
    /// # Panics
    /// When there was no room for so many.
    #[inline]
    pub fn received(&mut self, count: usize, placed_max: usize, side: &mut impl Side) {
        let placed = count.min(placed_max);
        if let Stage::Segment(segment) = &mut self.stage
            && placed > 0
        {
            if let Some(digest) = segment.digest
                && let Some(place) = segment.place(side)
            {
                segment.digest = Some(crc::append(digest, &place[..placed]));
            }
            segment.got += placed;
        }
        self.end += count - placed;
        assert!(self.end <= INPUT_LEN, "more was received than there was room for");
    }

    fn take_header(&mut self, with_digest: bool) -> Result<Option<Bhs>, Broken> {
        let bytes = &self.input[self.start..self.end];
        let Some((first, _)) = bytes.split_first_chunk::<BHS_LEN>() else { return Ok(None) };
        let bhs = Bhs(*first);
        let len = BHS_LEN + bhs.ahs_len();
        let whole = len + if with_digest { 4 } else { 0 };
        let Some(header) = bytes.get(..whole) else { return Ok(None) };
        if with_digest {
            let (header, sent) = header.split_at(len);
            if crc::append(0, header).to_le_bytes() != sent {
                return Err(Broken::Digest("header"));
            }
        }
        self.start += whole;
        Ok(Some(bhs))
    }
}
