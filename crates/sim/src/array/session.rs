//! An engine's session with a member: login, commands with deadlines, loss, and the way back.
//!
//! It stands for what a shell has of sessions. A session that looks for a member ends with what it found, or is lost;
//! one that has found it is kept: it logs in again by itself, and sends then what came meanwhile. A kept session counts how
//! often the member lost its power.
//!
//! Invariant: each command that the engine submits ends once, by its answer, by its deadline or
//! with the session. After a session is lost no answer of it counts; it is `Found` only when
//! nothing that it sent can have an effect any more: the same nexus has logged in again and the
//! LUN was reset.

use core::{ops::RangeInclusive, time::Duration};
use std::collections::BTreeMap;

use netraid_block::{Buf, ErrorKind, IoError, SgList};
use netraid_raid::{
    checkpoint::Checkpoint,
    label::{LABEL_LEN, Label},
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, PAGE_LEN},
    volume::Tag as IoTag,
};

use super::plain;
use crate::{
    dice::Dice,
    network::{ConnectionId, End, HostId, Network},
    target::{Command, Nexus, Refusal, Reply, Request, Tag},
    time::Time,
};

/// What goes over the network.
#[derive(Debug, Clone)]
pub enum Message {
    /// To a target.
    Request(Request),
    /// From it.
    Reply(Reply),
}

/// How patient a session is.
#[derive(Debug, Clone)]
pub struct Patience {
    /// For a command.
    pub deadline: Duration,
    /// From a loss to the next login.
    pub retry: RangeInclusive<Duration>,
}

/// What a session works with.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// The moment.
    pub now: Time,
    /// The network.
    pub network: &'a mut Network<Message>,
    /// Chance.
    pub dice: &'a mut Dice,
}

/// What an engine hears from a session.
#[derive(Debug)]
pub enum Outcome {
    /// A command has ended.
    Done(IoTag, Result<SgList, IoError>),
    /// The member is there, with nothing of before in flight; what its label says, if it has one.
    Found {
        /// The newest copy that decodes.
        label: Option<Box<Label>>,
        /// The counter of the newest checkpoint that decodes.
        checkpoint: Option<u64>,
        /// The region of written bits, of an array without a log.
        written: Option<Buf>,
    },
    /// The session is lost with these commands, which may still have an effect.
    Lost(Vec<IoTag>, &'static str),
    /// Another engine has the member now; these commands ended with that.
    Fenced(Vec<IoTag>),
}

#[derive(Debug)]
enum What {
    Io(IoTag),
    Fence,
    Reset,
    Label(usize),
    Checkpoint(usize),
    Written,
    /// Nobody asked for anything: is it there?
    Ping,
}

#[derive(Debug)]
struct Sent {
    what: What,
    command: Command,
    deadline: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not connected; the next try comes.
    Away,
    LoggingIn,
    /// Logged in; fences, resets, reads its label and its checkpoint.
    Preparing,
    Ready,
    /// Another engine has the member.
    Fenced,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    hosts: (HostId, HostId),
    nexus: Nexus,
    block_len: u64,
    phase: Phase,
    connection: Option<ConnectionId>,
    next_tag: u64,
    sent: BTreeMap<Tag, Sent>,
    /// What came while a kept session was away.
    queued: Vec<Sent>,
    /// It has found the member, and is made again when it is lost.
    is_kept: bool,
    /// It looks for the member until it is there.
    keeps_looking: bool,
    /// It ends when what it has sent has ended.
    is_leaving: bool,
    /// Grows with each answer.
    signs: u64,
    /// How often the member lost its power while the session was kept.
    cache_losses: u64,
    /// How often it had done so when it was found: requests rely on what it was given since.
    relied_losses: u64,
    /// For the login; commands have their own.
    login_deadline: Option<Time>,
    retry_at: Option<Time>,
    power_failures: u64,
    labels: [Option<Label>; 2],
    /// The newest of them, while checkpoints are read.
    label: Option<Box<Label>>,
    checkpoint: Option<u64>,
    written: Option<Buf>,
    /// It has never fenced the member: it does so once. When the member comes back later it does
    /// not, for somebody else may have it then.
    fences: bool,
    patience: Patience,
}

impl Session {
    /// A session that begins at once; `hosts` are the engine's and the target's.
    #[must_use]
    pub fn new(
        hosts: (HostId, HostId),
        nexus: Nexus,
        block_len: u32,
        patience: Patience,
        now: Time,
    ) -> Self {
        Self {
            hosts,
            nexus,
            block_len: block_len.into(),
            phase: Phase::Away,
            connection: None,
            next_tag: 0,
            sent: BTreeMap::new(),
            queued: Vec::new(),
            is_kept: false,
            keeps_looking: true,
            is_leaving: false,
            signs: 0,
            cache_losses: 0,
            relied_losses: 0,
            login_deadline: None,
            retry_at: Some(now),
            power_failures: 0,
            labels: [None, None],
            label: None,
            checkpoint: None,
            written: None,
            fences: true,
            patience,
        }
    }

    /// Whether commands are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether another engine has the member.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.phase == Phase::Fenced
    }

    /// The connection in use.
    #[must_use]
    pub const fn connection(&self) -> Option<ConnectionId> {
        self.connection
    }

    /// A count of answers.
    #[must_use]
    pub const fn signs(&self) -> u64 {
        self.signs
    }

    /// How often the member lost its power while the session was kept.
    #[must_use]
    pub const fn cache_losses(&self) -> u64 {
        self.cache_losses
    }

    /// How often the member had lost its power when the session was last made, as the member says.
    #[must_use]
    pub const fn power_failures(&self) -> u64 {
        self.power_failures
    }

    /// Whether it is there, and nothing of it is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_ready() && self.sent.is_empty() && self.queued.is_empty()
    }

    /// Sends a command, at once or when there is a connection again; false when there is no session, or the member lost
    /// its power since it was found.
    pub fn submit(&mut self, around: &mut Surroundings<'_>, io: IoTag, command: Command) -> bool {
        if self.cache_losses != self.relied_losses {
            return false;
        }
        if self.is_ready() {
            return self.send(around, What::Io(io), command);
        }
        if self.is_kept {
            let deadline = around.now.after(self.patience.deadline);
            self.queued.push(Sent { what: What::Io(io), command, deadline });
        }
        self.is_kept
    }

    /// Looks for the member, once.
    pub fn look(&mut self, around: &mut Surroundings<'_>) {
        let ios = self.stop(around);
        assert!(ios.is_empty(), "commands are under way to a member that is looked for");
        self.retry_at = Some(around.now);
    }

    /// What was found does not count: looks for the member again, until it is there.
    pub const fn find_again(&mut self) {
        (self.is_kept, self.keeps_looking) = (false, true);
    }

    /// Ends the session when what it has sent has ended, as far as that may be, and makes no other one; these commands
    /// end now.
    pub fn leave(&mut self, around: &mut Surroundings<'_>) -> Vec<IoTag> {
        if !self.is_ready() || !self.sent.values().any(|sent| matches!(sent.what, What::Io(_))) {
            return self.stop(around);
        }
        (self.is_kept, self.is_leaving) = (false, true);
        self.take_queued()
    }

    /// Whether it ends when what it has sent has ended: until then that may be done.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Ends the session, with these commands of it, and makes no other one.
    pub fn stop(&mut self, around: &mut Surroundings<'_>) -> Vec<IoTag> {
        self.disconnect(around);
        if self.phase != Phase::Fenced {
            self.phase = Phase::Away;
        }
        (self.retry_at, self.is_kept, self.keeps_looking) = (None, false, false);
        self.is_leaving = false;
        let mut ios = self.take_ios();
        ios.extend(self.take_queued());
        ios
    }

    /// Nobody has asked for anything for a while: asks whether the member is there.
    pub fn ping(&mut self, around: &mut Surroundings<'_>) {
        if self.is_ready() && self.is_kept && self.sent.is_empty() {
            let deadline = around.now.after(self.patience.deadline);
            let command = Command::Read { first: 0, count: 1 };
            self.send_until(around, Sent { what: What::Ping, command, deadline });
        }
    }

    /// When it does something by itself.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        [self.oldest(), self.login_deadline, self.retry_at].into_iter().flatten().min()
    }

    /// The first deadline of a command.
    fn oldest(&self) -> Option<Time> {
        self.sent.values().chain(&self.queued).map(|sent| sent.deadline).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, around: &mut Surroundings<'_>) -> Option<Outcome> {
        let deadline = [self.oldest(), self.login_deadline].into_iter().flatten().min();
        if deadline.is_some_and(|deadline| deadline <= around.now) {
            let lost = self.lose(around, "no answer before the deadline");
            let Outcome::Lost(mut ios, reason) = lost else { return Some(lost) };
            ios.extend(self.take_queued());
            return Some(Outcome::Lost(ios, reason));
        }
        if self.retry_at.is_some_and(|at| at <= around.now) {
            self.log_in(around);
        }
        None
    }

    /// The connection broke.
    pub fn handle_broken(&mut self, around: &mut Surroundings<'_>) -> Outcome {
        self.connection = None;
        self.lose(around, "the connection broke")
    }

    /// Gives the session up, with what it has sent; one that is kept, or keeps looking, is made again later.
    fn lose(&mut self, around: &mut Surroundings<'_>, reason: &'static str) -> Outcome {
        self.disconnect(around);
        self.phase = Phase::Away;
        self.is_leaving = false;
        let wait = around.dice.time_in(&self.patience.retry);
        let is_made_again = self.is_kept || self.keeps_looking;
        self.retry_at = is_made_again.then(|| around.now.after(wait));
        Outcome::Lost(self.take_ios(), reason)
    }

    /// An answer came.
    pub fn handle_reply(&mut self, around: &mut Surroundings<'_>, reply: Reply) -> Option<Outcome> {
        self.signs += 1;
        match reply {
            Reply::LoggedIn { power_failures } => {
                if self.phase != Phase::LoggingIn {
                    return None;
                }
                self.login_deadline = None;
                let before = core::mem::replace(&mut self.power_failures, power_failures);
                if self.is_kept {
                    self.cache_losses += u64::from(before != power_failures);
                    self.phase = Phase::Ready;
                    if self.cache_losses != self.relied_losses {
                        let unsent = self.take_queued();
                        return Some(Outcome::Lost(unsent, "the member was restarted"));
                    }
                    for queued in core::mem::take(&mut self.queued) {
                        self.send_until(around, queued);
                    }
                    return None;
                }
                self.phase = Phase::Preparing;
                let (what, command) = if self.fences {
                    (What::Fence, Command::Fence)
                } else {
                    (What::Reset, Command::Reset)
                };
                self.send(around, what, command);
                None
            }
            Reply::Done(tag, result) => {
                let sent = self.sent.remove(&tag)?;
                let is_asked_again = matches!(
                    (&sent.what, &result),
                    (What::Io(_), Err(Refusal::Aborted)) if around.now < sent.deadline
                );
                if is_asked_again {
                    // As an initiator does within a request's time. Who aborted it to fence this engine out
                    // refuses it then.
                    let _ = self.send_until(around, sent);
                    return None;
                }
                self.handle_done(around, sent.what, result)
            }
        }
    }

    fn handle_done(
        &mut self,
        around: &mut Surroundings<'_>,
        what: What,
        result: Result<SgList, Refusal>,
    ) -> Option<Outcome> {
        if matches!(result, Err(Refusal::Fenced)) {
            self.disconnect(around);
            self.phase = Phase::Fenced;
            (self.retry_at, self.keeps_looking, self.is_leaving) = (None, false, false);
            let mut ios = self.take_ios();
            ios.extend(self.take_queued());
            if let What::Io(io) = what {
                ios.push(io);
            }
            return Some(Outcome::Fenced(ios));
        }
        match what {
            What::Io(io) => {
                self.end_leaving(around);
                Some(Outcome::Done(io, result.map_err(in_terms_of_block)))
            }
            What::Ping => {
                self.end_leaving(around);
                None
            }
            What::Fence => {
                self.fences = false;
                self.send(around, What::Reset, Command::Reset);
                None
            }
            What::Reset => {
                if result.is_err() {
                    return Some(self.lose(around, "the reset was ended by another"));
                }
                (self.labels, self.label, self.checkpoint) = ([None, None], None, None);
                self.written = None;
                for (copy, offset) in LABEL_OFFSETS.into_iter().enumerate() {
                    let first = offset / self.block_len;
                    let count = LABEL_LEN as u64 / self.block_len;
                    self.send(around, What::Label(copy), Command::Read { first, count });
                }
                None
            }
            What::Label(copy) => {
                let bytes = result.ok().map(|data| data.to_contiguous());
                self.labels[copy] = bytes.and_then(|bytes| Label::decode(&bytes, copy).ok());
                if !self.sent.is_empty() {
                    return None;
                }
                let newest = self.labels.iter_mut().filter_map(Option::take);
                let label = newest.max_by_key(|label| (label.generation, label.epoch));
                self.label = label.map(Box::new);
                let Some(label) = &self.label else { return Some(self.find()) };
                if label.log.is_none() {
                    let region = label.regions.written;
                    let first = region.offset / self.block_len;
                    let count = plain::written_len(label) / self.block_len;
                    self.send(around, What::Written, Command::Read { first, count });
                    return None;
                }
                for (slot, offset) in CHECKPOINT_OFFSETS.into_iter().enumerate() {
                    let first = offset / self.block_len;
                    let count = u64::from(PAGE_LEN) / self.block_len;
                    self.send(around, What::Checkpoint(slot), Command::Read { first, count });
                }
                None
            }
            What::Checkpoint(slot) => {
                let uuid = self.label.as_ref()?.array_uuid;
                let bytes = result.ok().map(|data| data.to_contiguous());
                let found = bytes.and_then(|bytes| Checkpoint::decode(&bytes, uuid, slot).ok());
                self.checkpoint = self.checkpoint.max(found.map(|found| found.counter));
                self.sent.is_empty().then(|| self.find())
            }
            What::Written => {
                self.written = result.ok().map(|data| data.to_contiguous());
                Some(self.find())
            }
        }
    }

    /// A session that leaves ends when all has ended that it has sent.
    fn end_leaving(&mut self, around: &mut Surroundings<'_>) {
        if self.is_leaving && self.sent.is_empty() {
            let none = self.stop(around);
            assert!(none.is_empty(), "all that was sent has ended");
        }
    }

    /// Nothing is left to be read before the member may be used.
    fn find(&mut self) -> Outcome {
        self.phase = Phase::Ready;
        (self.is_kept, self.keeps_looking) = (true, false);
        self.relied_losses = self.cache_losses;
        let (label, checkpoint) = (self.label.take(), self.checkpoint.take());
        Outcome::Found { label, checkpoint, written: self.written.take() }
    }

    fn log_in(&mut self, around: &mut Surroundings<'_>) {
        self.retry_at = None;
        let connection = around.network.connect(self.hosts.0, self.hosts.1);
        self.connection = Some(connection);
        self.phase = Phase::LoggingIn;
        self.login_deadline = Some(around.now.after(self.patience.deadline));
        let login = Message::Request(Request::Login(self.nexus));
        around.network.send(around.now, connection, End::Opener, login, 48);
    }

    fn send(&mut self, around: &mut Surroundings<'_>, what: What, command: Command) -> bool {
        let deadline = around.now.after(self.patience.deadline);
        self.send_until(around, Sent { what, command, deadline })
    }

    fn send_until(&mut self, around: &mut Surroundings<'_>, sent: Sent) -> bool {
        let Some(connection) = self.connection else { return false };
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        let len = match &sent.command {
            Command::Write { data, .. } => data.len() as u64,
            Command::Read { .. }
            | Command::Flush
            | Command::Discard { .. }
            | Command::Reset
            | Command::Fence => 0,
        };
        let request = Message::Request(Request::Command(tag, sent.command.clone()));
        // On a connection that is broken the command waits for the break to be heard.
        around.network.send(around.now, connection, End::Opener, request, 48 + len);
        self.sent.insert(tag, sent);
        true
    }

    fn disconnect(&mut self, around: &mut Surroundings<'_>) {
        if let Some(connection) = self.connection.take() {
            let within = Duration::from_millis(2);
            around.network.break_connection(around.now, connection, within);
        }
        self.login_deadline = None;
    }

    /// All commands of the engine that were sent, in any order that the dice of a world may change.
    fn take_ios(&mut self) -> Vec<IoTag> {
        core::mem::take(&mut self.sent).into_values().filter_map(Sent::io).collect()
    }

    fn take_queued(&mut self) -> Vec<IoTag> {
        core::mem::take(&mut self.queued).into_iter().filter_map(Sent::io).collect()
    }
}

impl Sent {
    fn io(self) -> Option<IoTag> {
        match self.what {
            What::Io(io) => Some(io),
            What::Fence
            | What::Reset
            | What::Label(_)
            | What::Checkpoint(_)
            | What::Written
            | What::Ping => None,
        }
    }
}

fn in_terms_of_block(refusal: Refusal) -> IoError {
    match refusal {
        Refusal::Unreadable(block) => {
            IoError::with_detail(ErrorKind::Medium, format!("block {block} is unreadable"))
        }
        Refusal::Fenced => ErrorKind::Fenced.into(),
        Refusal::Aborted => ErrorKind::Aborted.into(),
        Refusal::NoSpace => ErrorKind::NoSpace.into(),
    }
}
