//! What straight-line code of an engine asks of its lines, and how it waits for the answers.
//!
//! A script is a future that waits for answers of the desk and for nothing else: there is no runtime, no clock and no
//! thread in it. Whoever has the desk carries out what is wanted, in order, and polls the script again.

use core::{
    cell::RefCell,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use netraid_block::{ErrorKind, IoError, Op, RequestFlags, SgList};
use netraid_remote::{Opened, Order, Reason, Status};
use rand::RngCore as _;

use crate::dice::Dice;

/// A line of an engine, by a number that is never given twice in an engine's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineNumber(pub(super) u64);

/// Whom an answer goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(pub(super) u64);

/// What is to be done.
#[derive(Debug)]
pub(super) enum Want {
    /// Make a line to a host, with the ISID of a predecessor whose sessions end, where there is one; answered when it is
    /// open or cannot be.
    Dial { line: LineNumber, host: usize, isid: Option<[u8; 6]>, ticket: Ticket },
    /// A request to its disk.
    Request {
        line: LineNumber,
        op: Op,
        offset: u64,
        len: u64,
        flags: RequestFlags,
        data: SgList,
        ticket: Ticket,
    },
    /// An order.
    Order { line: LineNumber, order: Order, ticket: Ticket },
    /// Its registrations are given back, for good.
    Leaving(LineNumber),
    /// Requests rely on what its disk was given when that had lost its cache so often.
    Reliance(LineNumber, u64),
    /// Its disk is fenced: it is this engine's alone, or used without that.
    Fenced { line: LineNumber, is_exclusive: bool },
    /// It ends when all that is under way has ended; answered then.
    Close { line: LineNumber, ticket: Ticket },
}

/// How what was wanted has ended.
#[derive(Debug)]
pub(super) enum Answer {
    Opened(Result<Opened, Reason>),
    Data(Result<SgList, IoError>),
    Bytes(Result<Vec<u8>, IoError>),
    Closed,
}

/// The desk of an engine: all its scripts share it.
#[derive(Clone)]
pub(super) struct Desk(Rc<RefCell<Inner>>);

struct Inner {
    next: u64,
    wants: VecDeque<Want>,
    answers: BTreeMap<Ticket, Answer>,
    /// As last seen, of each line that is open.
    seen: BTreeMap<LineNumber, Status>,
    notes: Vec<String>,
    dice: Dice,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    pub(super) fn new(dice: Dice) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            next: 1,
            wants: VecDeque::new(),
            answers: BTreeMap::new(),
            seen: BTreeMap::new(),
            notes: Vec::new(),
            dice,
        })))
    }

    /// The next thing that is wanted.
    pub(super) fn take_want(&self) -> Option<Want> {
        self.0.borrow_mut().wants.pop_front()
    }

    /// Takes an answer.
    pub(super) fn answer(&self, ticket: Ticket, answer: Answer) {
        self.0.borrow_mut().answers.insert(ticket, answer);
    }

    /// Shows how a line is now.
    pub(super) fn show(&self, line: LineNumber, status: Status) {
        self.0.borrow_mut().seen.insert(line, status);
    }

    /// How a line is.
    pub(super) fn status(&self, line: LineNumber) -> Status {
        self.0.borrow().seen.get(&line).copied().unwrap_or_default()
    }

    /// A line for the trace.
    pub(super) fn note(&self, line: String) {
        self.0.borrow_mut().notes.push(line);
    }

    pub(super) fn take_notes(&self) -> Vec<String> {
        core::mem::take(&mut self.0.borrow_mut().notes)
    }

    /// What is random.
    pub(super) fn random(&self) -> u64 {
        self.0.borrow_mut().dice.next_u64()
    }

    pub(super) async fn dial(
        &self,
        host: usize,
        isid: Option<[u8; 6]>,
    ) -> (LineNumber, Result<Opened, Reason>) {
        let line = LineNumber(self.number());
        let answer = self.ask(|ticket| Want::Dial { line, host, isid, ticket }).await;
        let opened = match answer {
            Answer::Opened(opened) => opened,
            Answer::Data(_) | Answer::Bytes(_) | Answer::Closed => {
                Err(Reason::Lost("the line is over".into()))
            }
        };
        (line, opened)
    }

    pub(super) async fn request(
        &self,
        line: LineNumber,
        (op, offset, len): (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) -> Result<SgList, IoError> {
        let want = |ticket| Want::Request { line, op, offset, len, flags, data, ticket };
        match self.ask(want).await {
            Answer::Data(data) => data,
            Answer::Opened(_) | Answer::Bytes(_) | Answer::Closed => Err(ErrorKind::Aborted.into()),
        }
    }

    pub(super) async fn order(&self, line: LineNumber, order: Order) -> Result<Vec<u8>, IoError> {
        match self.ask(|ticket| Want::Order { line, order, ticket }).await {
            Answer::Bytes(bytes) => bytes,
            Answer::Opened(_) | Answer::Data(_) | Answer::Closed => Err(ErrorKind::Aborted.into()),
        }
    }

    pub(super) fn note_leaving(&self, line: LineNumber) {
        self.0.borrow_mut().wants.push_back(Want::Leaving(line));
    }

    pub(super) fn rely_on(&self, line: LineNumber, cache_losses: u64) {
        self.0.borrow_mut().wants.push_back(Want::Reliance(line, cache_losses));
    }

    pub(super) fn note_fenced(&self, line: LineNumber, is_exclusive: bool) {
        self.0.borrow_mut().wants.push_back(Want::Fenced { line, is_exclusive });
    }

    pub(super) async fn close(&self, line: LineNumber) {
        self.ask(|ticket| Want::Close { line, ticket }).await;
    }

    fn number(&self) -> u64 {
        let inner = &mut self.0.borrow_mut();
        inner.next += 1;
        inner.next
    }

    async fn ask(&self, want: impl FnOnce(Ticket) -> Want) -> Answer {
        let ticket = Ticket(self.number());
        let want = want(ticket);
        self.0.borrow_mut().wants.push_back(want);
        poll_fn(|_| match self.0.borrow_mut().answers.remove(&ticket) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }
}

/// Straight-line code that waits for answers of a desk.
pub(super) struct Script<T>(Option<Pin<Box<dyn Future<Output = T>>>>);

impl<T> fmt::Debug for Script<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Script" } else { "Script (over)" })
    }
}

impl<T> Script<T> {
    pub(super) fn new(work: impl Future<Output = T> + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }

    /// Goes on as far as there are answers; what came of it, once.
    pub(super) fn poll(&mut self) -> Option<T> {
        let work = self.0.as_mut()?;
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(end) => {
                self.0 = None;
                Some(end)
            }
            Poll::Pending => None,
        }
    }
}

impl<T> Future for Script<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        Self::poll(&mut self).map_or(Poll::Pending, Poll::Ready)
    }
}

/// Does several things side by side; their ends in the order of the things.
pub(super) async fn join_all<F: Future>(works: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut works: Vec<_> = works.into_iter().map(|work| (Box::pin(work), None)).collect();
    poll_fn(move |context| {
        let mut all_ended = true;
        for (work, end) in &mut works {
            if end.is_none() {
                match work.as_mut().poll(context) {
                    Poll::Ready(output) => *end = Some(output),
                    Poll::Pending => all_ended = false,
                }
            }
        }
        match all_ended {
            true => Poll::Ready(works.iter_mut().filter_map(|(_, end)| end.take()).collect()),
            false => Poll::Pending,
        }
    })
    .await
}
