//! Between an engine and its lines: what is wanted goes down, and what lines tell comes up.

use netraid_block::{Op, RequestFlags, SgList};
use netraid_raid::volume::Tag;
use netraid_remote::{Event, Request};

use super::{Case, Context, Engine, LineNumber};
use crate::way::{
    interface::{LineId, News},
    script::{Answer, Ticket, Want},
};

/// Whose a request to a disk is.
#[derive(Debug, Clone, Copy)]
pub(in crate::way) enum User {
    /// The volume's.
    Volume(Tag),
    /// A script's.
    Script(Ticket),
}

impl Engine {
    /// Something of one of its lines.
    pub(in crate::way) fn handle_news(
        &mut self,
        context: &mut Context<'_>,
        line: LineId,
        news: News<User>,
    ) {
        let Some(number) = self.numbers.get(&line).copied() else { return };
        self.refresh(context);
        match news {
            News::Opened(opened) => {
                if let Some(ticket) = self.dialing.remove(&number) {
                    self.desk.answer(ticket, Answer::Opened(opened));
                }
            }
            News::Ended { user: User::Volume(tag), result } => {
                context.net.trace().mix(&[1, tag.0, u64::from(result.is_ok())]);
                if let Err(error) = &result {
                    context.cases.add(Case::MemberRequestFailed);
                    if error.kind() == netraid_block::ErrorKind::Timeout {
                        context.cases.add(Case::DeadlinePassed);
                    }
                    let (id, now) = (self.id.0, context.net.now());
                    let text = || format!("engine {id}: {:#x}: {error}", tag.0);
                    context.net.trace().note(now, text);
                }
                self.end_io(context.now(), tag, result);
            }
            News::Ended { user: User::Script(ticket), result } => {
                self.desk.answer(ticket, Answer::Data(result));
            }
            News::Answered { order, result } => {
                if let Some(ticket) = self.orders.remove(&(line, order)) {
                    self.desk.answer(ticket, Answer::Bytes(result));
                }
            }
            News::Told(event) => self.hear(context, number, &event),
            News::Closed => {
                self.numbers.remove(&line);
                self.lines.remove(&number);
                let tickets = self.closing.remove(&number).unwrap_or_default();
                for ticket in tickets {
                    self.desk.answer(ticket, Answer::Closed);
                }
            }
        }
        self.drive(context);
    }

    fn hear(&self, context: &mut Context<'_>, number: LineNumber, event: &Event) {
        let (id, now) = (self.id.0, context.net.now());
        let text = || format!("engine {id}: line {}: {event:?}", number.0);
        context.net.trace().note(now, text);
        let case = match event {
            Event::Lost { .. } => Case::SessionLost,
            Event::NotMade { .. } => Case::SessionNotMade,
            Event::Reconnected { .. } => {
                if self.outstanding > 0 {
                    context.cases.add(Case::Reissued);
                }
                Case::SessionAgain
            }
            Event::Fenced => Case::LineFenced,
            Event::NotRegistered { .. } => Case::NotRegistered,
            Event::GivenUp { .. } => Case::SessionGivenUp,
            Event::StoodStill { .. }
            | Event::Ending { .. }
            | Event::Redirected { .. }
            | Event::PredecessorMayRemain { .. }
            | Event::Grown { .. }
            | Event::Unanswered { .. }
            | Event::DoneWithout { .. }
            | Event::NoCache { .. }
            | Event::NoForcedWrites => return,
        };
        context.cases.add(case);
    }

    /// Takes note of how all lines are.
    pub(super) fn refresh(&self, context: &Context<'_>) {
        for (number, line) in &self.lines {
            self.desk.show(*number, *context.net.status(*line));
        }
    }

    /// Does what scripts want; whether something was answered at once.
    pub(super) fn fulfil(&mut self, context: &mut Context<'_>) -> bool {
        let mut is_answered = false;
        while let Some(want) = self.desk.take_want() {
            match want {
                Want::Dial { line, host, isid, ticket } => {
                    let mut config = self.line_config.clone();
                    config.isid = isid;
                    if isid.is_none() {
                        config.sessions = 1;
                    }
                    let id = context.net.open(self.seat, context.hosts[host], config);
                    self.lines.insert(line, id);
                    self.numbers.insert(id, line);
                    self.dialing.insert(line, ticket);
                }
                Want::Request { line, op, offset, len, flags, data, ticket } => {
                    let user = User::Script(ticket);
                    self.send(context, line, user, (op, offset, len), flags, data);
                }
                Want::Order { line, order, ticket } => match self.lines.get(&line) {
                    Some(id) => {
                        let order = context.net.order(*id, order);
                        self.orders.insert((*id, order), ticket);
                    }
                    None => {
                        let aborted = Err(netraid_block::ErrorKind::Aborted.into());
                        self.desk.answer(ticket, Answer::Bytes(aborted));
                        is_answered = true;
                    }
                },
                Want::Leaving(line) => {
                    if let Some(id) = self.lines.get(&line) {
                        context.net.note_leaving(*id);
                    }
                }
                Want::Reliance(line, losses) => {
                    if let Some(id) = self.lines.get(&line) {
                        context.net.rely_on(*id, losses);
                    }
                }
                Want::Fenced { line, is_exclusive } => {
                    if let Some(id) = self.lines.get(&line) {
                        context.net.note_fenced(*id, is_exclusive);
                    }
                }
                Want::Close { line, ticket } => match self.lines.get(&line) {
                    Some(id) => {
                        self.closing.entry(line).or_default().push(ticket);
                        context.net.close(*id);
                    }
                    None => {
                        self.desk.answer(ticket, Answer::Closed);
                        is_answered = true;
                    }
                },
            }
        }
        is_answered
    }

    /// Sends a request on a line.
    pub(super) fn send(
        &mut self,
        context: &mut Context<'_>,
        line: LineNumber,
        user: User,
        (op, offset, len): (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) {
        match self.lines.get(&line) {
            Some(id) => {
                context.net.submit(*id, Request { op, offset, len, flags, data, user });
            }
            None => self.ended.push_back((user, Err(netraid_block::ErrorKind::Aborted.into()))),
        }
    }
}
