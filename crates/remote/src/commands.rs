//! The requests: which command is sent for one, and what its end means.

use alloc::format;
use core::time::Duration;

use netraid_block::{Buf, BufMut, ErrorKind, IoError, Op, SgList, narrow};
use netraid_iscsi_proto::{
    initiator::{Command, Moves, TaskEnd},
    machine::TaskId,
    pdu::LunField,
};
use netraid_planted::{Planted, planted};
use netraid_scsi::cdb::build;

use crate::{
    Remote,
    deadlines::{Expired, TIMES_MAX},
    disk::{self, Kind, Out, Planned, Progress},
    interface::{Action, Event},
    link::{Done, Link},
    remote::{ABORT_LIMIT, Aborting, BUSY_PAUSE, PATIENCE_SHARE},
    requests::{Left, Moved, Running, Ticket, work},
    verdict::{self, Attention, HINT_TRIES_MAX, Remedy, Verdict},
    window::{Class, LaneView},
};

/// So many more bytes give a request more time: who sends a byte now and then, or the same ones again, gets none.
const MOVED_MIN: u64 = 64 << 10;

impl<U> Remote<U> {
    /// Whether something that was given up may still change the disk.
    pub(crate) fn is_barred(&self) -> bool {
        self.aborting.iter().any(|aborting| aborting.writes)
            || self.lanes.iter().any(|lane| lane.suspect)
    }

    /// The lane that takes the next command of a class.
    fn roomy(&mut self, class: Class) -> Option<usize> {
        // Requests would take all room as it comes, for as long as there are some.
        let kept = usize::from(self.orders.want_room());
        let views = |at: usize| LaneView {
            has_room: self.lanes[at].capacity() > kept,
            is_usable: self.lanes[at].is_usable(),
            bulk: self.lanes[at].bulk,
            running: self.lanes[at].running,
        };
        let lane = self.window.lane(class, self.turn, self.lanes.len(), views)?;
        self.turn = (lane + 1) % self.lanes.len();
        Some(lane)
    }

    /// What can be sent next, and where: small requests first, but not for ever.
    fn next_command(&mut self) -> Option<(Class, usize)> {
        let under_way = self.lanes.iter().map(|lane| lane.bulk).sum();
        let waits = self.requests.is_ready(Class::Bulk);
        let mut may_send = |class| match class {
            Class::Express => self.requests.is_ready(Class::Express),
            Class::Bulk => waits && self.window.has_room(under_way),
        };
        let order = Class::order(self.went_before);
        let order = order.map(|class| may_send(class).then_some(class));
        let next = order.into_iter().flatten().find_map(|class| {
            let lane = self.roomy(class)?;
            Some((class, lane))
        });
        self.went_before = match next {
            Some((Class::Express, _)) if waits => self.went_before.saturating_add(1),
            _ => 0,
        };
        next
    }

    /// Sends commands for the requests that are ready.
    pub(crate) fn issue(&mut self) {
        if self.status.is_fenced {
            return self.end_ready(Self::fail_idle);
        }
        if self.is_relied_on_in_vain() {
            return self.end_ready(Self::end_unsent);
        }
        if self.is_barred() || self.orders.give_back() {
            return;
        }
        if self.has_left() {
            return self.end_ready(Self::abort_idle);
        }
        if self.window.is_bounded() && self.requests.is_ready(Class::Bulk) {
            self.window.look(self.now);
        }
        while let Some((class, lane)) = self.next_command() {
            if let Some(ticket) = self.requests.pop_ready(class) {
                self.issue_one(ticket, lane);
            }
        }
    }

    /// Whether this side has given its registration back for good: sent now, a write would be one that whoever registers
    /// next cannot have aborted.
    #[inline]
    fn has_left(&self) -> bool {
        self.is_leaving
            && self.orders.were_given_back()
            && !planted(Planted::IdleWritesOutliveRegistration)
    }

    /// Whether the disk has lost its cache since that was written on which the requests rely.
    #[inline]
    fn is_relied_on_in_vain(&self) -> bool {
        self.relied_losses.is_some_and(|losses| losses != self.status.cache_losses)
            && !planted(Planted::SentAfterCacheLoss)
    }

    /// Ends all requests that have nothing under way, where some are ready.
    fn end_ready(&mut self, end_idle: impl Fn(&mut Self)) {
        for class in [Class::Express, Class::Bulk] {
            if self.requests.is_ready(class) {
                end_idle(self);
                // None is left: what is popped has ended.
                while self.requests.pop_ready(class).is_some() {}
            }
        }
    }

    fn issue_one(&mut self, ticket: Ticket, at: usize) {
        assert!(
            !self.status.is_fenced,
            "nothing is sent any more once another host has taken over"
        );
        let Some(pending) = self.requests.get(ticket) else { return };
        // Two of one request could end in another order than they were sent.
        assert!(pending.running.is_none(), "a request has one command under way");
        assert!(pending.held.is_none(), "a write that may still land is not sent again");
        let request = &pending.request;
        let (op, offset, len, flags) = (request.op, request.offset, request.len, request.flags);
        let planned = disk::plan(&self.profile, op, offset, len, flags, pending.progress);
        let Some(planned) = planned else { return self.conclude(ticket) };
        assert!(planned.then.at <= len, "a command goes no further than its request");
        let data_out = match planned.out {
            Out::Nothing => SgList::new(),
            Out::Request { at: 0, len } if u64::from(len) == request.len => request.data.clone(),
            Out::Request { at, len } => {
                let (at, len): (usize, usize) = (narrow(at), narrow(len));
                request.data.slice(at..at + len)
            }
            Out::Zeros(len) => zeros(&mut self.zeros, len),
            Out::UnmapList(extent) => Buf::copy_from(&build::unmap_list(&[extent])).into(),
        };
        let command = Command {
            lun: LunField::from_number(self.dialer.settings.lun),
            cdb: planned.cdb,
            read_len: planned.read_len,
            write_len: planned.write_len,
        };
        let lane = &mut self.lanes[at];
        let Some(link) = lane.link() else { return self.requests.push_first(ticket) };
        let bulk = match Class::of(request) {
            Class::Express => 0,
            Class::Bulk => u64::from(planned.read_len) + data_out.len() as u64,
        };
        let task = link.submit(self.now, command, data_out, ticket.tag());
        if flags.fua && planned.then.cached && pending.losses.is_none() {
            pending.losses = Some(self.status.cache_losses);
        }
        pending.running = Some(Running { planned, lane: at, task });
        if bulk > 0 {
            link.set_bulk(task, bulk);
            lane.bulk += bulk;
            self.window.begin(bulk);
        }
        lane.running += 1;
        if lane.watch.is_none() {
            let patience = self.dialer.settings.request_timeout / PATIENCE_SHARE;
            lane.watch = Some((self.now + patience, lane.ended));
        }
    }

    /// Whether a request whose time is up has more: the disk goes on, and either has lately moved a good part of this
    /// one, or since then no more than others have to move, so that it may be their turn.
    pub(crate) fn has_more_time(&mut self, expired: Expired, now: Duration) -> bool {
        let time = self.dialer.settings.request_timeout;
        let until = (self.moved_at + time).min(expired.handed_over + time * TIMES_MAX);
        let open = self.requests.open_work();
        let Some(pending) = self.requests.get(expired.ticket) else { return false };
        let Some(Running { lane, task, .. }) = pending.running else {
            return pending.held.is_some() && planted(Planted::HeldWriteNeverExpires);
        };
        let Some(link) = self.lanes[lane].link() else { return false };
        let Moves { bytes, last } = link.moves(task);
        let own = pending.progress.at + bytes;
        let is_moved = own >= pending.moved.own + MOVED_MIN;
        let is_others_turn = self.moved - pending.moved.all <= pending.moved.others;
        if is_moved {
            let others = open.saturating_sub(work(&pending.request));
            pending.moved = Moved { own, all: self.moved, others };
        }
        let has_more = until > now && ((is_moved && last + time > now) || is_others_turn);
        if has_more {
            self.requests.note_progress(self.moved_at);
            self.requests.extend(expired, until);
        }
        has_more
    }

    /// A request has no more time.
    pub(crate) fn give_up(&mut self, expired: Expired, now: Duration) {
        let running = self.requests.get(expired.ticket).and_then(|pending| pending.running);
        let kind = running.map(|running| running.planned.kind);
        if let Some(kind) = kind {
            self.note_unanswered(kind);
        }
        let end = if kind == Some(Kind::Unmap) {
            // A discard is a hint; the disk is asked to end what is still under way.
            Ok(SgList::new())
        } else {
            Err(self.failure(Some(now.saturating_sub(expired.handed_over))))
        };
        let left = self.end(expired.ticket, end);
        self.leave(left);
    }

    /// A command of this kind had no end.
    pub(crate) fn note_unanswered(&mut self, kind: Kind) {
        if self.unanswered.note(kind) {
            self.profile = self.unanswered.without_unanswered(self.profile.clone());
            self.tell(Event::Unanswered { kind: kind.name() });
        }
    }

    /// Asks the disk where commands are under way and none has ended for a while: those that
    /// another initiator had aborted get no answer (TAS 0), and only the end of another command
    /// tells why.
    pub(crate) fn ask_silent(&mut self, now: Duration) {
        let patience = self.dialer.settings.request_timeout / PATIENCE_SHARE;
        let lun = LunField::from_number(self.dialer.settings.lun);
        for lane in &mut self.lanes {
            let Some((_, ended)) = lane.watch.filter(|(at, _)| *at <= now) else { continue };
            if lane.running == 0 {
                lane.watch = None;
                continue;
            }
            lane.watch = Some((now + patience, lane.ended));
            let silent = ended == lane.ended && lane.asked.is_none() && lane.room() > 0;
            if let Some(link) = lane.link().filter(|_| silent) {
                let cdb = build::test_unit_ready();
                let command = Command { lun, cdb, read_len: 0, write_len: 0 };
                lane.asked = Some(link.submit(now, command, SgList::new(), Ticket::CONTROL));
                lane.running += 1;
            }
        }
    }

    pub(crate) fn handle_done(&mut self, at: usize, done: Done) {
        let lane = &mut self.lanes[at];
        assert!(lane.running > 0 && done.bulk <= lane.bulk, "a command ends that was not sent");
        lane.running -= 1;
        lane.bulk -= done.bulk;
        if done.bulk > 0 && self.window.is_bounded() {
            let under_way = self.lanes.iter().map(|lane| lane.bulk).sum();
            self.window.end(done.bulk, under_way, self.now);
        }
        let lane = &mut self.lanes[at];
        lane.ended = lane.ended.wrapping_add(1);
        lane.asked = lane.asked.filter(|task| *task != done.task);
        self.aborting.retain(|aborting| aborting.lane != at || aborting.task != done.task);
        let ticket = Ticket::from_tag(done.tag);
        if ticket.is_control() {
            return self.handle_order_done(at, done);
        }
        // A request that expired meanwhile has ended.
        let Some(pending) = self.requests.get(ticket) else { return self.heed_late(at, &done.end) };
        let Some(Running { planned, .. }) = pending.running.take() else { return };
        self.unanswered.note_answer(planned.kind);
        let verdict = verdict::judge(&done.end, planned.read_len, planned.write_len, &self.place);
        let is_again = matches!(verdict, Verdict::Attention(_) | Verdict::Later);
        if is_again {
            pending.tries = pending.tries.saturating_add(1);
            let can_end = verdict::can_do_without(&self.profile, planned.kind, planned.fua);
            if can_end && pending.tries >= HINT_TRIES_MAX {
                return self.remedy(ticket, planned, verdict, at);
            }
        }
        match verdict {
            Verdict::Success => {
                pending.progress = planned.then;
                self.profile.flush_proven |= planned.kind == Kind::Flush;
                if planned.kind == Kind::Read {
                    let data = done.data.map(BufMut::freeze).into_iter().collect();
                    if pending.data.is_empty() {
                        pending.data = data;
                    } else {
                        pending.data.append(data);
                    }
                }
                let request = &pending.request;
                let (op, offset, len) = (request.op, request.offset, request.len);
                let progress = pending.progress;
                let next = disk::plan(&self.profile, op, offset, len, request.flags, progress);
                match next {
                    Some(_) => self.requests.push_first(ticket),
                    None => self.conclude(ticket),
                }
            }
            Verdict::Attention(attention) => {
                self.requests.push_first(ticket);
                self.heed(at, attention);
            }
            Verdict::Later => self.requests.push_later(ticket, self.now + BUSY_PAUSE),
            Verdict::NotSupported { .. } | Verdict::Mismatch(_) | Verdict::Fail(_) => {
                self.remedy(ticket, planned, verdict, at);
            }
        }
    }

    /// All commands of a request have succeeded. Where a flush stood for FUA, the disk may have lost
    /// its cache before: then what was written is written again, until the deadline.
    fn conclude(&mut self, ticket: Ticket) {
        let losses = self.status.cache_losses;
        let Some(pending) = self.requests.get(ticket) else { return };
        if pending.losses.take().is_some_and(|before| before != losses) {
            let unforced = pending.progress.unforced;
            pending.progress = match planted(Planted::OnlyFlushRepeatedAfterLoss) {
                true => Progress { flushed: false, cached: true, ..pending.progress },
                false => Progress { unforced, ..Progress::default() },
            };
            return self.requests.push_first(ticket);
        }
        // A disk that was busy for the write without the bit, too, may not have meant the bit.
        if pending.progress.unforced && pending.tries == 0 && self.profile.fua {
            self.profile.do_without(Kind::Write);
            self.actions.push_back(Action::Tell(Event::NoForcedWrites));
        }
        let data = core::mem::take(&mut pending.data);
        let read_len = if pending.request.op == Op::Read { pending.request.len } else { 0 };
        assert_eq!(data.len() as u64, read_len, "what was read is what was asked for");
        self.requests.note_progress(self.heard_at);
        self.end(ticket, Ok(data));
    }

    /// The disk did not carry out a command: another one does it, or nothing needs to, or the request fails.
    fn remedy(&mut self, ticket: Ticket, planned: Planned, end: Verdict, at: usize) {
        let Some(pending) = self.requests.get(ticket) else { return };
        match verdict::remedy(&self.profile, planned.kind, planned.fua, &end) {
            Remedy::Without => {
                self.profile.do_without(planned.kind);
                self.requests.push_first(ticket);
                let text = format!("{end:?}");
                self.tell(match planned.kind {
                    Kind::Flush => Event::NoCache { end: text },
                    kind @ (Kind::Read | Kind::Write | Kind::Unmap | Kind::WriteSame) => {
                        Event::DoneWithout { kind: kind.name(), end: text }
                    }
                });
            }
            Remedy::Plainly => {
                pending.progress.plainly = true;
                self.requests.push_first(ticket);
            }
            Remedy::Unforced => {
                pending.progress.unforced = true;
                pending.tries = 0;
                self.requests.push_first(ticket);
            }
            Remedy::Ended => self.conclude(ticket),
            Remedy::Nothing if verdict::is_conflict(&end) && self.lanes[at].registered => {
                return self.meet_conflict(ticket, planned.kind);
            }
            Remedy::Nothing => return self.end_badly(ticket, planned, end),
        }
        match end {
            Verdict::Attention(attention) => self.heed(at, attention),
            // Whether this session is still registered is asked, since no request may tell. The
            // request goes on after that, or over another session.
            Verdict::Fail(error) if error.kind() == ErrorKind::Fenced => {
                self.lanes[at].examine |= self.lanes[at].registered;
            }
            Verdict::Success
            | Verdict::Later
            | Verdict::NotSupported { .. }
            | Verdict::Mismatch(_)
            | Verdict::Fail(_) => {}
        }
    }

    /// A request met a RESERVATION CONFLICT on a registered session. It is sent again when the disk has said that
    /// the session is registered still; a disk that contradicts itself has failed, and nobody has taken over.
    fn meet_conflict(&mut self, ticket: Ticket, kind: Kind) {
        let sessions = self.lanes.len();
        // Nothing goes on over another session before that one was asked, too.
        self.lanes.iter_mut().for_each(|lane| lane.examine |= lane.registered);
        let Some(pending) = self.requests.get(ticket) else { return };
        pending.conflicts = pending.conflicts.saturating_add(1);
        if verdict::is_contradiction(pending.conflicts, sessions) {
            let text = format!(
                "{}: disk answers {kind:?} with RESERVATION CONFLICT, and says that this side is registered; \
                 look at its reservations (sg_persist), and replace it",
                self.place
            );
            self.end(ticket, Err(IoError::with_detail(ErrorKind::Device, text)));
            return;
        }
        self.requests.push_first(ticket);
        for at in 0..sessions {
            self.send_again(at);
        }
    }

    /// A request fails.
    fn end_badly(&mut self, ticket: Ticket, planned: Planned, end: Verdict) {
        let error = match end {
            Verdict::Mismatch(error) | Verdict::Fail(error) => error,
            Verdict::NotSupported { .. } => {
                let text = format!("{}: disk does not support {:?}", self.place, planned.kind);
                IoError::with_detail(ErrorKind::Unsupported, text)
            }
            Verdict::Success | Verdict::Attention(_) | Verdict::Later => ErrorKind::Device.into(),
        };
        let is_conflict = error.kind() == ErrorKind::Fenced;
        let fenced = is_conflict && self.orders.key().is_some();
        let has_left = is_conflict && !fenced && self.is_leaving;
        let error = if has_left {
            let text = format!("{}: this side has given its registration back", self.place);
            IoError::with_detail(ErrorKind::Device, text)
        } else {
            error
        };
        self.end(ticket, Err(error));
        if fenced {
            self.fence();
        }
    }

    /// A command that was given up has ended: what the disk tells by it, it tells nobody else.
    pub(crate) fn heed_late(&mut self, at: usize, end: &TaskEnd) {
        if let Verdict::Attention(attention) = verdict::judge(end, 0, 0, &self.place)
            && !planted(Planted::LateAttentionIgnored)
        {
            self.heed(at, attention);
        }
    }

    /// The disk told something.
    pub(crate) fn heed(&mut self, at: usize, attention: Attention) {
        match attention {
            Attention::CacheLost => {
                self.status.cache_losses +=
                    u64::from(!planted(Planted::CacheLossInSessionForgotten));
                // A disk that was powered on may have come back as another one.
                self.lanes[at].examine = true;
                self.send_again(at);
            }
            Attention::Cleared => self.send_again(at),
            Attention::Changed => self.lanes[at].examine = true,
            // The examination begins with the registration, where there is one. Who removed it may
            // have aborted what is under way, and it begins when nothing is.
            Attention::Reservations if self.lanes[at].registered => {
                self.lanes[at].examine = true;
                self.send_again(at);
            }
            Attention::Reservations => {}
            Attention::NexusLost | Attention::Other => {}
        }
    }

    /// What this lane has under way may have ended without an answer: it is aborted, and sent again
    /// when the target says that it has ended.
    fn send_again(&mut self, at: usize) {
        // So may have the question why nothing ends.
        let asked = self.lanes[at].asked.map(|task| (task, false));
        for (task, writes) in self.requests.running_on(at).into_iter().chain(asked) {
            let is_new = |aborting: &Aborting| aborting.lane != at || aborting.task != task;
            if self.aborting.iter().all(is_new) {
                self.abort(at, task, writes);
            }
        }
    }

    /// A request was ended of which something may still be under way.
    pub(crate) fn leave(&mut self, left: Option<Left>) {
        match left {
            None => {}
            Some(Left::Held(lane)) => {
                self.lanes[lane].suspect |= !planted(Planted::HeldGivenUpForgotten);
            }
            Some(Left::Running(_)) if planted(Planted::GivenUpNotAborted) => {}
            Some(Left::Running(Running { planned, lane, task })) => {
                self.abort(lane, task, planned.kind != Kind::Read);
            }
        }
    }

    pub(crate) fn abort(&mut self, lane: usize, task: TaskId, writes: bool) {
        if let Some(link) = self.lanes[lane].link() {
            let limit = self.now + ABORT_LIMIT;
            self.aborting.push_back(Aborting { limit, lane, task, writes });
            link.abort(task);
        }
        // A command that never left ends by this alone.
        while let Some(done) = self.lanes[lane].link().and_then(Link::poll_done) {
            self.handle_done(lane, done);
        }
    }
}

/// A list of `len` zeros, which share memory.
fn zeros(kept: &mut Buf, len: u32) -> SgList {
    let len = narrow(len);
    if kept.len() < len {
        *kept = BufMut::zeroed(len).freeze();
    }
    kept.slice(0..len).into()
}
