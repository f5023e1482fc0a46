//! A simulated target: one LUN on a [`Disk`], with sessions that come and go, commands that wait,
//! run in any order and land late, fencing, and power that fails.
//!
//! It keeps the promises that the array relies on, and no others:
//! - a command has its effect at one moment between its arrival and its answer;
//! - a command whose session is gone may still have it, at any time, until the same initiator logs
//!   in again, the LUN is reset or the power fails; then it has it, has it in part (each block
//!   written or not), or never has;
//! - after [`Command::Fence`] was answered, no write of another initiator has any effect, also not
//!   after a power failure (persistent reservations with APTPL);
//! - a login tells how often the power failed, which is what a unit attention would tell.

use core::{ops::RangeInclusive, time::Duration};
use std::collections::{BTreeMap, VecDeque};

use netraid_block::{Buf, SgList};
use netraid_planted::{Planted, planted};

use crate::{
    dice::Dice,
    disk::{Disk, Unreadable},
    network::ConnectionId,
    time::Time,
};

/// Who sends commands: an engine's session survives its connections under this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nexus(pub u64);

/// A command's number within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// What an initiator sends.
#[derive(Debug, Clone)]
pub enum Request {
    /// Begins the session of a nexus, and ends an older one with its commands.
    Login(Nexus),
    /// Does something.
    Command(Tag, Command),
}

/// What a LUN does. Blocks are the disk's.
#[derive(Debug, Clone)]
pub enum Command {
    /// Reads.
    Read {
        /// First block.
        first: u64,
        /// Number of blocks.
        count: u64,
    },
    /// Writes.
    Write {
        /// First block.
        first: u64,
        /// Whole blocks.
        data: SgList,
        /// Stable when answered.
        fua: bool,
    },
    /// Makes everything that was answered stable.
    Flush,
    /// Gives space back.
    Discard {
        /// First block.
        first: u64,
        /// Number of blocks.
        count: u64,
    },
    /// Aborts all commands of all others; answered when none of them can have any effect.
    Reset,
    /// The same, and from now on only this initiator writes, whoever fenced the others before.
    Fence,
}

impl Command {
    /// First block, data, and whether it is to be stable at once, of one that writes.
    #[must_use]
    pub const fn as_write(&self) -> Option<(u64, &SgList, bool)> {
        match self {
            Self::Write { first, data, fua } => Some((*first, data, *fua)),
            Self::Read { .. } | Self::Flush | Self::Discard { .. } | Self::Reset | Self::Fence => {
                None
            }
        }
    }

    const fn changes_the_medium(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. })
    }
}

/// What a target answers.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The session has begun.
    LoggedIn {
        /// How often the power failed, ever: unflushed writes from before the last time are lost.
        power_failures: u64,
    },
    /// A command's end.
    Done(Tag, Result<SgList, Refusal>),
}

/// An error that is planted: what a session left behind outlives logins and resets.
fn late_writes_are_allowed() -> bool {
    planted(Planted::LateWriteAllowed)
}

/// Why a command was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The medium cannot read a block.
    Unreadable(u64),
    /// Another initiator has fenced this one.
    Fenced,
    /// Another initiator's reset ended it.
    Aborted,
    /// There is no space for it.
    NoSpace,
}

/// How fast, and in which order, a target works.
#[derive(Debug, Clone)]
pub struct Manners {
    /// From a command's arrival to its effect, drawn for each: so commands overtake each other.
    pub work: RangeInclusive<Duration>,
    /// From the effect to the answer.
    pub answer: RangeInclusive<Duration>,
    /// How much longer commands may linger whose session is gone.
    pub linger: Duration,
    /// One command in so many takes up to so much longer, as where a disk tries again; 0: none.
    pub stragglers: (u32, Duration),
}

/// What the world may do to a write that is about to have its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mischief {
    /// It is answered and not done.
    Lose,
    /// It is done elsewhere, and answered.
    Misdirect {
        /// Its first block.
        first: u64,
    },
}

#[derive(Debug)]
struct Task {
    nexus: Nexus,
    /// Where the answer goes; none when the session is gone.
    connection: Option<ConnectionId>,
    tag: Tag,
    command: Command,
}

/// Writes that a target remembers.
const RECENT_WRITES: usize = 8;

/// When a task has its effect; the number tells tasks of one moment apart.
type Turn = (Time, u64);

/// A target with one LUN.
#[derive(Debug)]
pub struct SimTarget {
    disk: Disk,
    manners: Manners,
    dice: Dice,
    is_on: bool,
    is_hung: bool,
    power_failures: u64,
    fenced_for: Option<Nexus>,
    sessions: BTreeMap<ConnectionId, Nexus>,
    tasks: BTreeMap<Turn, Task>,
    next_task: u64,
    answers: BTreeMap<Turn, (ConnectionId, Reply)>,
    mischief: VecDeque<Mischief>,
    /// Blocks that mischief has left, and what should be there.
    undone: Vec<Undone>,
    late_effects: u64,
    /// First blocks of the last writes, the newest first.
    recent_writes: VecDeque<u64>,
}

/// A block that mischief has left.
#[derive(Debug)]
struct Undone {
    block: u64,
    /// What is there instead.
    bad: Buf,
    /// What should be there.
    good: Buf,
}

impl SimTarget {
    /// A target that is switched on.
    #[must_use]
    pub const fn new(disk: Disk, manners: Manners, dice: Dice) -> Self {
        Self {
            disk,
            manners,
            dice,
            is_on: true,
            is_hung: false,
            power_failures: 0,
            fenced_for: None,
            sessions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_task: 0,
            answers: BTreeMap::new(),
            mischief: VecDeque::new(),
            undone: Vec::new(),
            late_effects: 0,
            recent_writes: VecDeque::new(),
        }
    }

    /// The disk.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The disk, to do harm to it.
    pub const fn disk_mut(&mut self) -> &mut Disk {
        &mut self.disk
    }

    /// Changes how fast it works from now on; commands that wait keep their turn.
    pub fn set_manners(&mut self, manners: Manners) {
        self.manners = manners;
    }

    /// Harms the next write that has its effect.
    pub fn plan(&mut self, mischief: Mischief) {
        self.mischief.push_back(mischief);
    }

    /// Mischief ends: what was planned never happens, and what has happened is put right where
    /// nothing else was written since.
    pub fn undo_mischief(&mut self) {
        self.mischief.clear();
        for Undone { block, bad, good } in core::mem::take(&mut self.undone).into_iter().rev() {
            if self.disk.is_untouched(block) {
                self.disk.set(block, &good);
            } else {
                // What was written since may be lost with the cache.
                self.disk.put_right_below(block, &bad, &good);
            }
        }
    }

    /// First blocks of the last writes that had their effect, the newest first.
    pub fn recent_writes(&self) -> impl Iterator<Item = u64> {
        self.recent_writes.iter().copied()
    }

    /// Writes that wait for their turn, and that no fence keeps from it: first block, data, and
    /// whether they are to be stable at once.
    pub fn waiting_writes(&self) -> impl Iterator<Item = (u64, &SgList, bool)> {
        let may = |task: &&Task| self.fenced_for.is_none_or(|holder| holder == task.nexus);
        self.tasks.values().filter(may).filter_map(|task| task.command.as_write())
    }

    /// How many commands changed the medium when their session was gone.
    #[must_use]
    pub const fn late_effects(&self) -> u64 {
        self.late_effects
    }

    /// Commands that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.tasks.len()
    }

    /// A message came.
    pub fn handle_request(&mut self, now: Time, connection: ConnectionId, request: Request) {
        if !self.is_on {
            return;
        }
        match request {
            Request::Login(nexus) => {
                self.abort(|task| task.nexus == nexus, now, None);
                self.sessions.retain(|_, other| *other != nexus);
                self.sessions.insert(connection, nexus);
                let power_failures = self.power_failures;
                self.answer(now, connection, Reply::LoggedIn { power_failures });
            }
            Request::Command(tag, command) => {
                // A session that was ended by a newer one hears nothing.
                let Some(nexus) = self.sessions.get(&connection).copied() else { return };
                let mut turn = now.after(self.dice.time_in(&self.manners.work));
                let (one_in, most) = self.manners.stragglers;
                if self.dice.one_in(one_in) {
                    turn = turn.after(self.dice.time_in(&(Duration::ZERO..=most)));
                }
                self.tasks.insert(
                    (turn, self.next_task),
                    Task { nexus, connection: Some(connection), tag, command },
                );
                self.next_task += 1;
            }
        }
    }

    /// A connection broke: its commands go on, some of them late.
    pub fn handle_broken(&mut self, now: Time, connection: ConnectionId) {
        self.sessions.remove(&connection);
        let its = |task: &Task| task.connection == Some(connection);
        let turns: Vec<Turn> =
            self.tasks.iter().filter(|(_, task)| its(task)).map(|(turn, _)| *turn).collect();
        for turn in turns {
            let Some(mut task) = self.tasks.remove(&turn) else { continue };
            task.connection = None;
            let late = self.dice.time_in(&(Duration::ZERO..=self.manners.linger));
            let time = if self.dice.one_in(2) { turn.0 } else { turn.0.max(now).after(late) };
            self.tasks.insert((time, turn.1), task);
        }
    }

    /// The power fails: the cache is lost in part, and every command that waits is done, done in
    /// part, or never will be.
    pub fn lose_power(&mut self, now: Time) {
        if !self.is_on {
            return;
        }
        self.is_on = false;
        self.abort(|_| true, now, None);
        self.disk.lose_power(&mut self.dice);
        self.sessions.clear();
        self.answers.clear();
        self.power_failures += 1;
    }

    /// It stops as if it had lost its power, but for its disk, which keeps its cache: the program alone ends. It begins
    /// again by [`Self::restore_power`], and knows no more than after a failure of its power.
    pub fn restart(&mut self, now: Time) {
        if !self.is_on {
            return;
        }
        self.is_on = false;
        self.abort(|_| true, now, None);
        self.sessions.clear();
        self.answers.clear();
        self.power_failures += 1;
    }

    /// The power is back.
    pub const fn restore_power(&mut self) {
        self.is_on = true;
    }

    /// Stops working, or goes on: it takes commands meanwhile, and answers none.
    pub const fn set_hung(&mut self, is_hung: bool) {
        self.is_hung = is_hung;
    }

    /// Whether it has stopped working.
    #[must_use]
    pub const fn is_hung(&self) -> bool {
        self.is_hung
    }

    /// How often the power failed, ever.
    #[must_use]
    pub const fn power_failures(&self) -> u64 {
        self.power_failures
    }

    /// Whether the power is on.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// When something happens next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        if self.is_hung {
            return None;
        }
        let task = self.tasks.keys().next().map(|(time, _)| *time);
        let answer = self.answers.keys().next().map(|(time, _)| *time);
        task.into_iter().chain(answer).min()
    }

    /// Does what is due, and gives the next answer that leaves.
    pub fn poll(&mut self, now: Time) -> Option<(ConnectionId, Reply)> {
        if self.is_hung {
            return None;
        }
        while let Some(entry) = self.tasks.first_entry().filter(|entry| entry.key().0 <= now) {
            let task = entry.remove();
            self.perform(now, task);
        }
        let entry = self.answers.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    fn perform(&mut self, now: Time, task: Task) {
        let Task { nexus, connection, tag, command } = task;
        let changes = command.changes_the_medium();
        let fenced = self.fenced_for.is_some_and(|holder| holder != nexus);
        self.late_effects += u64::from(changes && connection.is_none() && !fenced);
        let result = match command {
            _ if fenced && changes => Err(Refusal::Fenced),
            Command::Read { first, count } => self
                .disk
                .read(first..first + count)
                .map_err(|Unreadable { block }| Refusal::Unreadable(block)),
            Command::Write { first, data, fua } => {
                let count = data.len() as u64 / u64::from(self.disk.shape().block_len);
                if self.disk.has_space(first..first + count) {
                    self.write(first, &data, fua);
                    Ok(SgList::new())
                } else {
                    Err(Refusal::NoSpace)
                }
            }
            Command::Flush => {
                self.disk.flush();
                Ok(SgList::new())
            }
            Command::Discard { first, count } => {
                self.disk.discard(first..first + count);
                Ok(SgList::new())
            }
            Command::Reset if fenced => Err(Refusal::Fenced),
            Command::Reset => {
                self.abort(|task| task.nexus != nexus, now, Some(Refusal::Aborted));
                Ok(SgList::new())
            }
            Command::Fence => {
                self.abort(|task| task.nexus != nexus, now, Some(Refusal::Fenced));
                self.fenced_for = Some(nexus);
                Ok(SgList::new())
            }
        };
        if let Some(connection) = connection {
            self.answer(now, connection, Reply::Done(tag, result));
        }
    }

    fn write(&mut self, first: u64, data: &SgList, fua: bool) {
        self.recent_writes.truncate(RECENT_WRITES - 1);
        self.recent_writes.push_front(first);
        let mischief = self.mischief.pop_front();
        let blocks = (data.len() / self.disk.shape().block_len as usize) as u64;
        match mischief {
            None => self.disk.write(first, data, fua),
            Some(Mischief::Lose) => self.leave(first, data.clone()),
            Some(Mischief::Misdirect { first: elsewhere }) => {
                let elsewhere = elsewhere.min(self.disk.shape().blocks - blocks);
                let there = self.disk.read(elsewhere..elsewhere + blocks);
                self.disk.write(elsewhere, data, fua);
                self.leave(first, data.clone());
                // Where both overlap, what was to be written comes first.
                if let Ok(there) = there {
                    self.leave(elsewhere, there);
                }
            }
        }
    }

    /// Notes what should be at `first`, for as long as nothing else is written there.
    fn leave(&mut self, first: u64, good: SgList) {
        let len = self.disk.shape().block_len as usize;
        let good = good.to_contiguous();
        for at in 0..good.len() / len {
            let block = first + at as u64;
            self.disk.watch(block);
            // What cannot be read has nothing that could come back.
            let there = self.disk.read(block..block + 1);
            let bad = there.map_or(Buf::empty(), |there| there.to_contiguous());
            let good = good.slice(at * len..(at + 1) * len);
            self.undone.push(Undone { block, bad, good });
        }
    }

    /// Ends commands: one that changes the medium may have done so, or done so in part.
    fn abort(&mut self, whose: impl Fn(&Task) -> bool, now: Time, told: Option<Refusal>) {
        let is_spared =
            |task: &Task| self.is_on && task.connection.is_none() && late_writes_are_allowed();
        let its = |task: &Task| whose(task) && !is_spared(task);
        let turns: Vec<Turn> =
            self.tasks.iter().filter(|(_, task)| its(task)).map(|(turn, _)| *turn).collect();
        for turn in turns {
            let Some(task) = self.tasks.remove(&turn) else { continue };
            let fenced = self.fenced_for.is_some_and(|holder| holder != task.nexus);
            match &task.command {
                Command::Write { first, data, fua } if !fenced && self.dice.one_in(2) => {
                    self.disk.tear(*first, data, *fua, &mut self.dice);
                }
                Command::Write { .. }
                | Command::Read { .. }
                | Command::Flush
                | Command::Discard { .. }
                | Command::Reset
                | Command::Fence => {}
            }
            if let (Some(connection), Some(refusal)) = (task.connection, told) {
                self.answer(now, connection, Reply::Done(task.tag, Err(refusal)));
            }
        }
    }

    fn answer(&mut self, now: Time, connection: ConnectionId, reply: Reply) {
        let time = now.after(self.dice.time_in(&self.manners.answer));
        self.answers.insert((time, self.next_task), (connection, reply));
        self.next_task += 1;
    }
}

#[cfg(test)]
mod tests;
