//! The order of requests by CmdSN, and the window in which they may come (RFC 7143, section
//! 4.2.2.1).
//!
//! Invariant: each number is taken once; what has no number, because it is immediate, passes. The
//! end of the window never moves back.

use alloc::vec::Vec;

use crate::{machine::Fatal, pdu::Bhs, serial::Serial};

#[derive(Debug, Default)]
pub(super) struct Window {
    /// The number of the next request (`ExpCmdSN`).
    next: Serial,
    /// The last that may come (`MaxCmdSN`), as the initiator was told.
    last: Serial,
    /// The request of the next number came and was rejected.
    gap: bool,
    /// Numbers beyond the next one that will never come.
    skipped: Vec<Serial>,
}

impl Window {
    /// A window for the first `len` requests.
    pub(super) fn new(first: Serial, len: u32) -> Self {
        Self { next: first, last: end(first, len), ..Self::default() }
    }

    /// Whether a request is to be looked at: those outside the window are ignored, silently. It is
    /// then taken, or rejected.
    pub(super) fn admits(&mut self, bhs: &Bhs) -> Result<bool, Fatal> {
        if bhs.immediate() {
            return Ok(true);
        }
        let number = bhs.cmd_sn();
        if number.before(self.next) || self.last.before(number) {
            return Ok(false);
        }
        self.pass_gap(number);
        if number != self.next {
            // With one connection, which delivers in order, what is missing never comes.
            return Err(Fatal::Protocol("a command is missing"));
        }
        Ok(true)
    }

    pub(super) fn take(&mut self, bhs: &Bhs) {
        if !bhs.immediate() {
            self.advance();
        }
    }

    /// A request is rejected of which nothing was done: its number counts as not received (RFC
    /// 7143, section 7.3), so that the initiator may use it again.
    pub(super) fn reject(&mut self, bhs: &Bhs) {
        if !bhs.immediate() {
            self.pass_gap(bhs.cmd_sn());
            self.gap |= bhs.cmd_sn() == self.next;
        }
    }

    /// A request of this number, earlier than `own`, is not to come any more. False when it is not
    /// in the window, or has come.
    pub(super) fn skip(&mut self, number: Serial, own: Serial) -> bool {
        if number.before(self.next) || self.last.before(number) || !number.before(own) {
            return false;
        }
        if number == self.next {
            self.advance();
        } else if !self.skipped.contains(&number) {
            // Within the window, so there are fewer than the queue is deep.
            self.skipped.push(number);
        }
        true
    }

    /// Tells the initiator that `len` more requests may come, unless it was told of more.
    pub(super) fn stamp(&mut self, header: &mut Bhs, len: u32) {
        let last = end(self.next, len);
        if self.last.before(last) {
            self.last = last;
        }
        header.stamp_window(self.next, self.last);
    }

    /// Many initiators take the number of a rejected request for used, and go on after it.
    fn pass_gap(&mut self, number: Serial) {
        if self.gap && number == self.after_next() {
            self.advance();
        }
    }

    /// The next request is here; and those after it that will never come.
    fn advance(&mut self) {
        self.next = self.after_next();
        self.gap = false;
        if !self.skipped.is_empty() {
            self.skipped.retain(|number| self.next.before(*number));
        }
    }

    fn after_next(&self) -> Serial {
        let mut number = self.next.next();
        while self.skipped.contains(&number) {
            number = number.next();
        }
        number
    }
}

/// The last of `len` numbers from `first`.
fn end(first: Serial, len: u32) -> Serial {
    first.plus(len).plus(u32::MAX)
}
