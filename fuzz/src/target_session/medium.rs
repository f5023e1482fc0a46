//! The medium: what is done for commands, how it ends, and what it must have been.

use std::rc::Rc;

use netraid_block::{Buf, ErrorKind, IoError, Op, SgList};
use netraid_node::{Gate, Place};
use netraid_scsi::{Background, MediumRequest};

use super::{
    BLOCK_LEN, BLOCKS, World,
    grant::pieces_of,
    lun::ServedLun,
    outside::{Command, CopyOrder, Flying, What},
};
use crate::{named, pattern};

impl World {
    /// Ends one of the things that are under way.
    pub(super) fn complete(&mut self, which: u8, failure: u8) {
        if let Some(index) = self.end_one(which, failure) {
            self.take_ends(index);
        }
    }

    /// Ends several, and each connection that they belong to looks at them together.
    pub(super) fn complete_some(&mut self, which: u8, count: u8, failure: u8) {
        let ended: Vec<_> = (0..=count % 8).filter_map(|_| self.end_one(which, failure)).collect();
        for index in 0..self.served.len() {
            if ended.contains(&index) {
                self.take_ends(index);
            }
        }
    }

    fn take_ends(&mut self, index: usize) {
        let served = &mut self.served[index];
        served.service.handle_ends_taken(&mut served.reach);
        self.look(index);
    }

    /// Whose it was, unless nobody hears of it.
    fn end_one(&mut self, which: u8, failure: u8) -> Option<usize> {
        let which = usize::from(which).checked_rem(self.shared.flying.borrow().len())?;
        let waits =
            matches!(self.shared.flying.borrow()[which].what, What::Wait { result: None, .. });
        if waits {
            return None;
        }
        let one = self.shared.flying.borrow_mut().remove(which);
        let index = self.served.iter().position(|served| served.id == one.connection);
        let index = index.expect("a connection waits for what it began");
        let Flying { task, what, .. } = one;
        let (result, appended) = carry_out(what, failure);
        let served = &mut self.served[index];
        if served.is_broken {
            return None;
        }
        if let (Some(command), Ok(data)) = (served.reach.commands.get_mut(&task.index()), &result) {
            command.latest = Some(data.clone());
        }
        let expected = appended.filter(|_| result.is_err());
        served.service.handle_completed(&mut served.reach, task.index(), result);
        if let Some(guest) = &served.reach.guest {
            assert_eq!(guest.taken_back.take(), expected, "what a failure takes back");
        }
        Some(index)
    }

    /// Stores end at once where nothing is to be late.
    pub(super) fn end_stores(&mut self) {
        let store = |one: &Flying| match one.what {
            What::Store { .. } => true,
            What::Request { .. } | What::Wait { .. } => false,
        };
        while let Some(which) = { self.shared.flying.borrow().iter().position(store) } {
            // There are never so many.
            self.complete(which as u8, 0);
        }
    }

    /// Does some of the work that a LUN has of its own.
    pub(super) fn work(&mut self, number: u16, steps: u8, failure: u8) {
        let Some(lun) = self.shared.find(number) else { return };
        for _ in 0..=steps {
            if lun.house.gate() != Gate::Open {
                return;
            }
            let next = self.shared.units.borrow_mut().poll_background(number);
            let Some(next) = next else { return };
            let result = match next {
                Background::Submit(request) => carry_out_at(&lun, request, &Place::Same, failure),
                Background::Keep(_) if failure == 5 => Err(ErrorKind::Device.into()),
                Background::Keep(_) | Background::Pause => Ok(SgList::new()),
                Background::Wake(result) => {
                    self.end_waits(number, result);
                    Ok(SgList::new())
                }
            };
            self.shared.units.borrow_mut().handle_background_done(number, result);
        }
    }

    /// Whoever waits for a LUN need not any more.
    pub(super) fn end_waits(&self, number: u16, end: Result<(), ErrorKind>) {
        for one in self.shared.flying.borrow_mut().iter_mut() {
            if let What::Wait { lun, result } = &mut one.what
                && *lun == number
            {
                result.get_or_insert(end);
            }
        }
    }

    /// Who is at a LUN has entered it.
    pub(super) fn check_running(&self, lun: &Rc<ServedLun>) {
        let is_there = |one: &&Flying| match &one.what {
            What::Request { lun: at, .. } | What::Store { lun: Some(at), .. } => {
                Rc::ptr_eq(at, lun)
            }
            What::Store { lun: None, .. } | What::Wait { .. } => false,
        };
        let there = self.shared.flying.borrow().iter().filter(is_there).count();
        let running = lun.house.running() as usize;
        assert!(running >= there, "{running} commands run at LUN {}, {there} there", lun.number);
        if running == 0 {
            // Whoever closed the gate knows that nothing comes any more.
            lun.there.borrow_mut().clear();
        }
    }
}

/// How something ends, and what a failure takes back.
fn carry_out(what: What, failure: u8) -> (Result<SgList, IoError>, Option<(u64, u64)>) {
    let result = match what {
        What::Request { lun, request, place, appended, .. } => {
            return (carry_out_at(&lun, request, &place, failure), appended);
        }
        What::Store { lun: None, .. } => Err(ErrorKind::Aborted.into()),
        What::Store { lun: Some(_), bytes } => match failure_of(failure) {
            Some(error) => Err(error.into()),
            // A store that fails now and then.
            None if bytes.len().is_multiple_of(7) && !bytes.is_empty() => {
                Err(ErrorKind::Device.into())
            }
            None => Ok(SgList::new()),
        },
        What::Wait { result, .. } => {
            let result = result.expect("it has ended");
            result.map(|()| SgList::new()).map_err(IoError::from)
        }
    };
    (result, None)
}

fn failure_of(failure: u8) -> Option<ErrorKind> {
    match failure {
        1 => Some(ErrorKind::Medium),
        2 => Some(ErrorKind::NoSpace),
        3 => Some(ErrorKind::Timeout),
        4 => Some(ErrorKind::Fenced),
        _ => None,
    }
}

fn carry_out_at(
    lun: &ServedLun,
    request: MediumRequest,
    place: &Place,
    failure: u8,
) -> Result<SgList, IoError> {
    if let Some(error) = failure_of(failure) {
        return Err(error.into());
    }
    let mut medium = lun.medium.borrow_mut();
    let (mut answer, mut from) = (SgList::new(), 0);
    for piece in pieces_of(&request, place) {
        let range = piece.offset as usize..piece.end() as usize;
        let len = range.len();
        match request.op {
            Op::Read => answer.push(Buf::copy_from(&medium[range])),
            Op::Write => request.data.slice(from..from + len).copy_to(&mut medium[range]),
            Op::WriteZeroes | Op::Discard => medium[range].fill(0),
            Op::Flush | Op::Extents => {}
        }
        from += len;
    }
    let is_flush = matches!(request.op, Op::Flush);
    assert!(is_flush || from as u64 == request.len, "the pieces of a request are all of it");
    Ok(answer)
}

/// A request that changes the medium changes what its command names, to what the command brings.
pub(super) fn check_request(command: &Command, request: &MediumRequest) {
    let MediumRequest { op, offset, len, data, .. } = request;
    let end = check_bounds(request);
    let range = named(&command.cdb, BLOCK_LEN as u64, (BLOCKS * BLOCK_LEN) as u64);
    let opcode = command.cdb[0];
    match op {
        Op::Read | Op::Flush | Op::Extents => return,
        Op::Discard | Op::WriteZeroes if opcode == 0x42 => return,
        Op::Write | Op::Discard | Op::WriteZeroes => {}
    }
    let inside = range.start <= *offset && end <= range.end;
    assert!(inside, "{opcode:#x} of {range:?} changes {offset} to {end}");
    if *op == Op::Write {
        assert_eq!(data.len() as u64, *len);
        check_bytes(
            command,
            &data.to_contiguous(),
            (range.end - range.start, offset - range.start),
        );
    }
}

/// What a command writes from `start` on, within what it names, are the bytes that came with it.
fn check_bytes(command: &Command, bytes: &[u8], (named_len, start): (u64, u64)) {
    let opcode = command.cdb[0];
    let start = start as usize;
    for (at, byte) in bytes.iter().enumerate() {
        let from = match opcode {
            0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c => start + at,
            0x41 | 0x93 => (start + at) % BLOCK_LEN,
            0x89 => named_len as usize + start + at,
            // ORWRITE: what was there counts too.
            0x8b => return,
            _ => panic!("{opcode:#x} writes"),
        };
        assert!(from < command.received, "{opcode:#x}: byte {from} has not come");
        assert_eq!(*byte, pattern(command.pattern, from), "{opcode:#x}: byte {at}");
    }
}

fn check_bounds(request: &MediumRequest) -> u64 {
    let MediumRequest { op, offset, len, data, .. } = request;
    let end = offset.checked_add(*len).expect("no end");
    assert!(end <= (BLOCKS * BLOCK_LEN) as u64, "{op:?} past the end");
    assert_eq!(data.len() as u64, if *op == Op::Write { *len } else { 0 });
    end
}

/// A copy reads where it was told to, and writes that where it was told to.
pub(super) fn check_copy(command: &Command, lun: u16, request: &MediumRequest) {
    let end = check_bounds(request);
    let CopyOrder { from, to, lba, onto, blocks } = command.copy.expect("a copy was ordered");
    let (at, first) = match request.op {
        Op::Read => (from, lba),
        Op::Write => (to, onto),
        op @ (Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents) => {
            panic!("a copy does {op:?}")
        }
    };
    assert_eq!(lun, at, "a copy reaches another LUN");
    let start = u64::from(first) * BLOCK_LEN as u64;
    let inside = start <= request.offset && end <= start + u64::from(blocks) * BLOCK_LEN as u64;
    assert!(inside, "a copy reaches {} to {end}", request.offset);
    if request.op == Op::Write {
        let read = command.latest.as_ref().expect("a copy reads first").to_contiguous();
        assert_eq!(request.data.to_contiguous()[..], read[..], "a copy writes what it read");
    }
}
