//! What a line promises to its owner and an engine's fencing to the array, checked at the media, at the moment at which it
//! is broken: long before anybody reads what came of it.
//!
//! - What a line applies was submitted there. Nothing is applied after it has ended well, nor over what was submitted after
//!   it had ended otherwise.
//! - Nothing comes to a disk from an engine that was shut out, or on a line that gave its registration back; the latter
//!   sends nothing more, either. A session that was made after its line's registration was removed carries nothing.
//! - A disk is not left to all while an engine lives that was removed there. No line writes to another disk than it found.
//! - A line is told that another has taken over only when somebody removes registrations.
//! - A flush that ended well has made stable what had ended well before, and a FUA write itself, unless the owner can see
//!   that the cache was lost.
//! - After a loss of acknowledged writes nothing that is submitted ends well before the owner can see it.
//! - A request ends in its time once everything before it has ended.
//!
//! Commands are known by their line and the content of each block: where several writes had the same, it is taken for
//! whichever breaks nothing.
//!
//! Invariant: it only looks on. A run is the same with and without it, up to the first promise that is broken.

use core::time::Duration;
use std::collections::BTreeMap;

use netraid_block::{Op, SgList};
use netraid_remote::{Order, OrderId, Request};

use super::interface::{EngineId, HostId, LineId};
use crate::{disk::Disk, time::Time};
use medium::{Medium, Unstable};
use writes::{End, Writes, Wrong};

mod medium;
#[cfg(test)]
mod tests;
mod writes;

/// A request of this size or more is served in turns with others, and has more time.
const BULK_LEN: u64 = 64 << 10;
/// The longest that a bulk request may take, by the time of a request.
const BULK_TIMES_MAX: u32 = 12;
/// The same of a small one, from its turn on: it may have moved bytes when its time is up.
const TIMES_MAX: u32 = 3;
/// What timers and tasks may be late.
const LATE_MAX: Duration = Duration::from_secs(1);

/// Content of a block that was given back or is to hold zeros, by whichever command.
const ZEROES: u64 = 0;

/// Looks after all lines and media.
#[derive(Default)]
pub(super) struct Watch {
    lines: Vec<Line>,
    media: Vec<Medium>,
    /// Grows with each submission and each end: tells what was before what.
    moment: u64,
    violation: Option<String>,
}

/// A line as its owner sees it.
struct Line {
    host: HostId,
    engine: EngineId,
    /// The time of a request.
    time: Duration,
    /// How often the owner was told that the cache may be lost.
    losses: u64,
    writes: Writes,
    /// Requests that have not ended, by the moment of their submission.
    open: BTreeMap<u64, Open>,
    /// Since when the first of them is the first.
    turn: Time,
    /// Acknowledged writes were lost at this moment, when the owner had been told of so many losses.
    owed: Option<(u64, u64)>,
    /// Orders under way that give registrations back.
    returns: Vec<OrderId>,
    /// Orders under way that register.
    registers: Vec<OrderId>,
    has_given_back: bool,
    /// Its sessions are registered, as far as its owner was told.
    is_registered: bool,
    /// The target has its registration, for all that is known.
    has_key: bool,
    /// Another engine has removed its registration.
    is_ousted: bool,
    /// Registrations of its were removed, or forgotten by the target.
    is_removed: bool,
    /// It was opened at the disk that was here before.
    is_of_former: bool,
    has_opened: bool,
    /// Somebody may have removed registrations since it was opened, or another engine may have registered.
    has_rivals: bool,
    is_over: bool,
}

struct Open {
    op: Op,
    first: u64,
    blocks: u64,
    len: u64,
    fua: bool,
}

/// What came to a medium.
pub(super) struct Applied<'a> {
    pub(super) host: HostId,
    pub(super) line: LineId,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) data: &'a SgList,
    pub(super) fua: bool,
    /// Some of its blocks only.
    pub(super) is_torn: bool,
    /// The registration of its line had been removed when its session was made.
    pub(super) is_outsider: bool,
}

/// What lines do.
impl Watch {
    pub(super) fn add_line(&mut self, engine: EngineId, host: HostId, time: Duration) {
        self.lines.push(Line {
            host,
            engine,
            time,
            losses: 0,
            writes: Writes::default(),
            open: BTreeMap::new(),
            turn: Time::START,
            owed: None,
            returns: Vec::new(),
            registers: Vec::new(),
            has_given_back: false,
            is_registered: false,
            has_key: false,
            is_ousted: false,
            is_removed: false,
            is_of_former: false,
            has_opened: false,
            has_rivals: self.media[host.0].has_removals(),
            is_over: false,
        });
    }

    /// A request is submitted; the number by which its end is known.
    pub(super) fn note_request<U>(&mut self, id: LineId, now: Time, request: &Request<U>) -> u64 {
        let Request { op, offset, len, flags, data, .. } = request;
        self.moment += 1;
        let line = &mut self.lines[id.0];
        let block_len = self.media[line.host.0].block_len();
        let first = offset / block_len;
        for (block, content) in (first..).zip(contents(*op, *len, data, block_len)) {
            line.writes.submit(block, self.moment, content);
        }
        if line.open.is_empty() {
            line.turn = line.turn.max(now);
        }
        let blocks = len / block_len;
        let open = Open { op: *op, first, blocks, len: *len, fua: flags.fua };
        line.open.insert(self.moment, open);
        self.moment
    }

    /// A request has ended.
    pub(super) fn note_end(&mut self, id: LineId, now: Time, number: u64, is_well: bool) {
        self.moment += 1;
        let moment = self.moment;
        let line = &mut self.lines[id.0];
        let is_first = line.open.first_key_value().is_some_and(|(first, _)| *first == number);
        let Some(open) = line.open.remove(&number) else { return };
        if is_first {
            line.turn = line.turn.max(now);
        }
        let end = End { moment, is_well, losses: line.losses };
        if writes(open.op) {
            let blocks = open.first..open.first + open.blocks;
            line.writes.end(blocks, number, end, open.op == Op::Discard);
        }
        if !is_well {
            return;
        }
        // A discard is a hint: it ends well also where the disk was not asked, or does not carry it out.
        if let Some((lost_at, losses)) = line.owed
            && open.op != Op::Discard
            && number > lost_at
            && losses == line.losses
        {
            let op = open.op;
            self.fail(format!(
                "{id:?}: a {op:?} ends well that was submitted after acknowledged writes were lost, and nobody was told"
            ));
        }
        if open.op == Op::Flush || open.fua {
            self.check_stable(id, number, open.op == Op::Flush);
        }
    }

    /// A flush, or a write with FUA, has ended well.
    fn check_stable(&mut self, id: LineId, number: u64, is_flush: bool) {
        let line = &self.lines[id.0];
        let is_broken = |block: u64, it: &Unstable| {
            let is_own = it.number == number;
            let is_before = is_flush
                && line.writes.end_of(block, it.number).is_some_and(|end| {
                    end.is_well && end.moment < number && end.losses == line.losses
                });
            it.line == id && (is_own || is_before)
        };
        let mut unstable = self.media[line.host.0].unstable();
        let broken = unstable.find(|(block, it)| is_broken(*block, it));
        drop(unstable);
        let Some((block, it)) = broken else { return };
        let (host, what) = (line.host, if is_flush { "flush" } else { "FUA write" });
        let how = if it.is_lost { "lost" } else { "not stable" };
        self.fail(format!("{id:?}: a {what} ends well, and block {block} of {host:?} is {how}"));
    }

    /// The owner sees how often the cache may be lost.
    pub(super) fn note_losses(&mut self, id: LineId, losses: u64) {
        let line = &mut self.lines[id.0];
        line.losses = losses;
        line.owed = line.owed.filter(|(_, before)| *before == losses);
    }

    /// A line has done what it has to do now.
    pub(super) fn check_time(&mut self, id: LineId, now: Time) {
        let line = &self.lines[id.0];
        let Some((_, open)) = line.open.first_key_value() else { return };
        let times = if open.len >= BULK_LEN { BULK_TIMES_MAX } else { TIMES_MAX };
        if now > line.turn.after(line.time * times + LATE_MAX) {
            let (op, turn) = (open.op, line.turn);
            self.fail(format!("{id:?}: a {op:?} has its turn since {turn}, and does not end"));
        }
    }

    /// An engine does nothing until then.
    pub(super) fn note_hung(&mut self, engine: EngineId, until: Time) {
        for line in self.lines.iter_mut().filter(|line| line.engine == engine) {
            line.turn = line.turn.max(until);
        }
    }

    /// A line is over, or its engine has died: nobody hears of what it had.
    pub(super) fn note_over(&mut self, id: LineId) {
        let line = &mut self.lines[id.0];
        line.open.clear();
        line.owed = None;
        line.is_over = true;
    }
}

/// Whose disks are.
impl Watch {
    /// An order is given.
    pub(super) fn note_order(&mut self, id: LineId, order: OrderId, what: &Order) {
        let line = &mut self.lines[id.0];
        let medium = &mut self.media[line.host.0];
        match what {
            Order::Register { key: 0, .. } | Order::Clear { .. } => {
                line.returns.push(order);
                medium.release(|holder| holder == id || matches!(what, Order::Clear { .. }));
                if matches!(what, Order::Clear { .. }) {
                    self.check_clear(id);
                    self.note_removal(id, order);
                }
            }
            Order::Register { .. } => {
                line.has_given_back = false;
                line.registers.push(order);
                // Where the target has forgotten a registration, there is nothing to remove.
                let (host, engine) = (line.host, line.engine);
                for other in &mut self.lines {
                    other.has_rivals |=
                        other.host == host && other.engine != engine && !other.is_of_former;
                }
            }
            // PERSISTENT RESERVE OUT with CLEAR, PREEMPT, or PREEMPT AND ABORT (SPC-4, section 6.16).
            Order::Once { cdb, .. } => {
                let cdb: &[u8] = cdb.as_ref();
                if cdb[0] == 0x5f && matches!(cdb[1] & 0x1f, 3..=5) {
                    medium.release(|_| true);
                    self.note_removal(id, order);
                }
            }
        }
    }

    /// A line is to leave the disk to all.
    fn check_clear(&mut self, id: LineId) {
        let Line { host, engine, .. } = self.lines[id.0];
        let is_kept_out = |line: &Line| {
            line.host == host && line.engine != engine && line.is_ousted && !line.is_over
        };
        if let Some(at) = self.lines.iter().position(is_kept_out) {
            let other = LineId(at);
            self.fail(format!(
                "{id:?} leaves {host:?} to all, and {other:?} lives, which was removed there"
            ));
        }
    }

    /// Registrations of others are to be removed.
    fn note_removal(&mut self, id: LineId, order: OrderId) {
        let host = self.lines[id.0].host;
        self.media[host.0].begin_removal(id, order);
        for (at, line) in self.lines.iter_mut().enumerate() {
            line.has_rivals |= at != id.0 && line.host == host && !line.is_of_former;
        }
    }

    /// A line has found its disk.
    pub(super) fn note_opened(&mut self, id: LineId) {
        self.lines[id.0].has_opened = true;
    }

    /// A line tells that another has taken over.
    pub(super) fn note_told_fenced(&mut self, id: LineId) {
        let line = &self.lines[id.0];
        if !line.has_rivals {
            let host = line.host;
            self.fail(format!("{id:?} is fenced at {host:?}, and nobody takes the disk over"));
        }
    }

    /// An order has ended.
    pub(super) fn note_answer(&mut self, id: LineId, order: OrderId, is_well: bool) {
        let line = &mut self.lines[id.0];
        let before = line.returns.len();
        line.returns.retain(|returned| *returned != order);
        let is_return = line.returns.len() < before;
        let registers = line.registers.len();
        line.registers.retain(|register| *register != order);
        let is_register = line.registers.len() < registers;
        if is_well && (is_return || is_register) {
            line.has_given_back = is_return;
            (line.is_registered, line.has_key) = (is_register, is_register);
            (line.is_removed, line.is_ousted) = (false, false);
        }
        if is_well {
            self.media[line.host.0].end_removal(id, order);
        }
    }

    /// An engine's fencing of a member has ended: it is exclusive, or the device is used without.
    pub(super) fn note_fenced(&mut self, id: LineId, is_exclusive: bool) {
        let line = &mut self.lines[id.0];
        line.has_given_back = false;
        let (host, engine) = (line.host, line.engine);
        let mut has_ousted = false;
        let others = self.lines.iter_mut().filter(|line| line.host == host);
        for line in others.filter(|line| line.engine != engine) {
            line.is_removed |= line.is_registered && is_exclusive;
            line.is_ousted |= line.has_key;
            has_ousted |= core::mem::take(&mut line.has_key);
        }
        // Whoever was registered is shut out, also where the successor goes on without being registered.
        self.media[host.0].hold((is_exclusive || has_ousted).then_some(id));
    }

    /// Whether a session that a line makes now has no registration behind it.
    pub(super) fn is_outsider(&self, id: LineId) -> bool {
        self.lines[id.0].is_removed
    }

    /// A command that changes the medium comes to a target.
    pub(super) fn note_command(&mut self, id: LineId) {
        if self.lines[id.0].has_given_back {
            self.fail(format!("{id:?} sends a write, and it has given its registration back"));
        }
    }
}

/// What media do.
impl Watch {
    pub(super) fn add_medium(&mut self, disk: &Disk) {
        self.media.push(Medium::new(disk.shape()));
    }

    /// A command has its effect; whether it is a late one that is excused.
    ///
    /// The removal of a dead engine's registration was not answered, and its device was tried again: nothing tells then
    /// that what the dead engine had under way has not ended (docs/faults.md).
    pub(super) fn note_applied(&mut self, applied: &Applied<'_>) -> bool {
        let Applied { host, line: id, op, offset, len, data, fua, is_torn, is_outsider } = *applied;
        let (line, medium) = (&mut self.lines[id.0], &mut self.media[host.0]);
        if is_outsider && line.is_removed {
            self.fail(format!(
                "{id:?}: a {op:?} comes to {host:?} by a session that was made after its registration was removed"
            ));
            return false;
        }
        if !writes(op) {
            return false;
        }
        if line.is_of_former {
            self.fail(format!(
                "{id:?} applies a {op:?} to a disk that is not the one that it found at {host:?}"
            ));
            return false;
        }
        let holder = medium.holder().filter(|holder| *holder != id);
        let is_excused = holder.is_some() && line.is_over && medium.has_removals();
        let holder = holder.filter(|_| !is_excused);
        let mut wrong = match (holder, line.has_given_back) {
            (Some(holder), _) => Some(format!("it is {holder:?}'s alone")),
            (None, true) => Some("it has given its registration back".to_owned()),
            (None, false) => None,
        };
        let block_len = medium.block_len();
        let first = offset / block_len;
        for (block, content) in (first..).zip(contents(op, len, data, block_len)) {
            let number = match line.writes.apply(block, content, is_torn) {
                Ok(number) => number,
                Err(Wrong::Late) => {
                    let text = format!("it had ended, which block {block} counts on");
                    wrong.get_or_insert(text);
                    None
                }
                Err(Wrong::Unknown) => {
                    wrong.get_or_insert(format!("nobody gave it these bytes for block {block}"));
                    None
                }
            };
            let is_cached = op != Op::Discard && !fua && !is_torn;
            let number = number.filter(|_| is_cached);
            let unstable =
                number.map(|number| Unstable { line: id, number, content, is_lost: false });
            medium.write(block, unstable);
        }
        if let Some(wrong) = wrong {
            self.fail(format!("{id:?} applies a {op:?} to {host:?}, and {wrong}"));
        }
        is_excused
    }

    /// A disk makes stable what it has.
    pub(super) fn note_flush(&mut self, host: HostId) {
        self.media[host.0].flush();
    }

    /// A target's program ends; it has forgotten the registrations, unless it keeps them.
    pub(super) fn note_program_over(&mut self, host: HostId, keeps: bool) {
        if !keeps {
            self.media[host.0].release(|_| true);
            for line in self.lines.iter_mut().filter(|line| line.host == host) {
                line.is_removed |= line.is_registered;
                (line.has_key, line.is_ousted) = (false, false);
            }
        }
    }

    /// The power is about to fail.
    pub(super) fn note_power_fails(&mut self, host: HostId, disk: &Disk) {
        self.media[host.0].note_power_fails(|block| content_of(disk, block));
    }

    /// The power has failed.
    pub(super) fn note_power_failed(&mut self, host: HostId, disk: &Disk) {
        self.moment += 1;
        let medium = &mut self.media[host.0];
        medium.note_power_failed(|block| content_of(disk, block));
        for (block, it) in medium.unstable() {
            let line = &mut self.lines[it.line.0];
            let end = line.writes.end_of(block, it.number);
            let is_known = end.is_some_and(|end| end.is_well && end.losses == line.losses);
            if is_known && !line.is_over {
                line.owed = Some((self.moment, line.losses));
            }
        }
    }

    /// Whether a line was not told yet that acknowledged writes were lost.
    pub(super) fn owes_news_of_a_loss(&self, host: HostId) -> bool {
        self.lines.iter().any(|line| line.host == host && line.owed.is_some())
    }

    /// Another disk is in the place of this one.
    pub(super) fn note_replaced(&mut self, host: HostId, disk: &Disk) {
        self.media[host.0] = Medium::new(disk.shape());
        for line in self.lines.iter_mut().filter(|line| line.host == host) {
            line.is_of_former |= line.has_opened;
            // No engine takes over a disk that is gone. A line that was removed before learns of it later.
            line.has_rivals &= !line.is_of_former || line.is_removed;
        }
    }

    /// The first promise that was broken.
    pub(super) const fn violation(&mut self) -> Option<String> {
        self.violation.take()
    }

    fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

const fn writes(op: Op) -> bool {
    matches!(op, Op::Write | Op::WriteZeroes | Op::Discard)
}

/// What each block of a command is to hold; nothing of one that changes none.
fn contents(op: Op, len: u64, data: &SgList, block_len: u64) -> Vec<u64> {
    let count = netraid_block::narrow(len / block_len);
    match op {
        Op::Write => {
            let bytes = data.to_contiguous();
            bytes.chunks_exact(netraid_block::narrow(block_len)).map(content).collect()
        }
        Op::WriteZeroes | Op::Discard => vec![ZEROES; count],
        Op::Read | Op::Flush | Op::Extents => Vec::new(),
    }
}

fn content_of(disk: &Disk, block: u64) -> Option<u64> {
    disk.read(block..block + 1).ok().map(|bytes| content(&bytes.to_contiguous()))
}

/// The bytes of a block as a number, which differs between any two that a run has, but for a chance of no account.
fn content(block: &[u8]) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let mut hash = 0_u64;
    let mut any = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        any |= word;
        hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    if any == 0 { ZEROES } else { hash | 1 }
}
