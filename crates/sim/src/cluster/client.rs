//! A client: it makes volumes, opens, holds, renews, releases; asks again when it hears nothing; and
//! sometimes forgets what it has, as one that dies does.

use netraid_control::{
    lease::Access,
    units::{Generation, PlanId, Rate, VolumeId},
};
use netraid_raid::geometry::Level;
use rand::RngCore as _;

use super::{
    messages::{Answer, Granted, Open, Request},
    plan::TERM_MS,
};
use crate::dice::Dice;

/// From one asking to the next, in milliseconds.
const RETRY_MS: u64 = 1_100;

/// What it is at.
#[derive(Debug)]
pub enum State {
    /// Nothing.
    Idle,
    /// It waits for an answer.
    Asking {
        /// What it asked.
        request: Request,
        /// When, at first.
        first_ms: u64,
        /// When it asks again.
        next_ms: u64,
        /// When it asks no more.
        give_up_ms: u64,
    },
    /// It has a plan.
    Holding {
        /// Which.
        granted: Box<Granted>,
        /// It counts on it until then.
        end_ms: u64,
        /// Renewals so far.
        round: u64,
        /// When it renews.
        renew_ms: u64,
        /// When it first asked for that one, if it waits for it.
        asked_ms: Option<u64>,
        /// When it has enough.
        leave_ms: u64,
    },
}

/// What a client did that the world has to know.
#[derive(Debug)]
pub enum Deed {
    /// It asks.
    Send(Request),
    /// It has a plan, until then.
    Got(Box<Granted>, u64),
    /// It does not use a plan any more.
    Left(PlanId),
    /// It was told that a plan is over.
    Lost(PlanId),
    /// A volume is there.
    Made(VolumeId),
    /// A volume is gone.
    Removed(VolumeId),
}

/// A client of one mediator.
#[derive(Debug)]
pub struct Client {
    /// Which.
    pub mediator: usize,
    /// What it is at.
    pub state: State,
    dice: Dice,
    shapes: Vec<(Level, usize)>,
    /// It begins nothing new.
    pub is_closing: bool,
}

impl Client {
    /// One that has not begun.
    #[must_use]
    pub const fn new(mediator: usize, dice: Dice, shapes: Vec<(Level, usize)>) -> Self {
        Self { mediator, state: State::Idle, dice, shapes, is_closing: false }
    }

    fn draw(&mut self) -> [u8; 16] {
        let mut id = [0; 16];
        self.dice.fill_bytes(&mut id);
        id
    }

    fn begin(&mut self, now_ms: u64, request: Request, deeds: &mut Vec<Deed>) {
        let patience_ms = 4_000 + self.dice.below(25_000);
        self.state = State::Asking {
            request,
            first_ms: now_ms,
            next_ms: now_ms + RETRY_MS,
            give_up_ms: now_ms + patience_ms,
        };
        deeds.push(Deed::Send(request));
    }

    /// Opens a volume for writing, whatever it was at.
    pub fn prove(&mut self, now_ms: u64, volume: VolumeId) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let plan = PlanId(self.draw());
        let (access, rate) = (Access::Write, Rate(1_000_000));
        let open = Open { plan, volume, access, rate, take_over: None };
        self.begin(now_ms, Request::Open(open), &mut deeds);
        deeds
    }

    /// Gives back what it has.
    pub fn release(&mut self, now_ms: u64) -> Vec<Deed> {
        let mut deeds = Vec::new();
        if let State::Holding { granted, .. } = &self.state {
            let plan = granted.plan;
            deeds.push(Deed::Left(plan));
            self.begin(now_ms, Request::Release(plan), &mut deeds);
        }
        deeds
    }

    /// Time has passed. `volumes` are those of its mediator that are known.
    pub fn handle_time(&mut self, now_ms: u64, volumes: &[VolumeId]) -> Vec<Deed> {
        let mut deeds = Vec::new();
        match &mut self.state {
            State::Idle if !self.is_closing && self.dice.one_in(3) => {
                let request = self.choose(volumes);
                self.begin(now_ms, request, &mut deeds);
            }
            State::Idle => {}
            State::Asking { request, next_ms, give_up_ms, .. } => {
                let request = *request;
                if now_ms >= *give_up_ms {
                    self.give_up(now_ms, &request, &mut deeds);
                } else if now_ms >= *next_ms {
                    *next_ms = now_ms + RETRY_MS;
                    deeds.push(Deed::Send(request));
                }
            }
            State::Holding { granted, end_ms, round, renew_ms, asked_ms, leave_ms } => {
                let plan = granted.plan;
                if now_ms >= *end_ms {
                    deeds.push(Deed::Lost(plan));
                    self.state = State::Idle;
                } else if now_ms >= *leave_ms {
                    if self.dice.one_in(4) {
                        // It dies, and says nothing; what it sent is on its way.
                        self.state = State::Idle;
                    } else {
                        deeds = self.release(now_ms);
                    }
                } else if now_ms >= *renew_ms {
                    asked_ms.get_or_insert(now_ms);
                    *renew_ms = now_ms + RETRY_MS;
                    let (round, generation) = (*round, granted.generation);
                    deeds.push(Deed::Send(Request::Renew { plan, round, generation }));
                }
            }
        }
        deeds
    }

    fn choose(&mut self, volumes: &[VolumeId]) -> Request {
        let known = self.dice.pick(volumes).copied();
        let few = volumes.len() < 3;
        match known {
            Some(volume) if self.dice.one_in(20) => Request::Delete(volume),
            Some(volume) if !(few && self.dice.one_in(4)) => {
                let access = if self.dice.one_in(2) { Access::Write } else { Access::Read };
                let rate = Rate((1 + self.dice.below(20)) * 1_000_000);
                let plan = PlanId(self.draw());
                Request::Open(Open { plan, volume, access, rate, take_over: None })
            }
            Some(_) | None => {
                let volume = VolumeId(self.draw());
                let size_bytes = (1 + self.dice.below(400)) << 20;
                let shape = self.dice.pick(&self.shapes).copied().unwrap_or((Level::Raid1, 2));
                Request::Create { volume, size_bytes, shape }
            }
        }
    }

    fn give_up(&mut self, now_ms: u64, request: &Request, deeds: &mut Vec<Deed>) {
        self.state = State::Idle;
        if let Request::Open(open) = request {
            self.begin(now_ms, Request::Release(open.plan), deeds);
        }
    }

    /// A mediator answers.
    pub fn handle_answer(&mut self, now_ms: u64, answer: Answer) -> Vec<Deed> {
        let mut deeds = Vec::new();
        if let State::Asking { request, first_ms, .. } = &self.state {
            let (request, first_ms) = (*request, *first_ms);
            self.handle_asked(now_ms, &request, first_ms, answer, &mut deeds);
        } else {
            self.handle_held(answer, &mut deeds);
        }
        deeds
    }

    fn handle_asked(
        &mut self,
        now_ms: u64,
        request: &Request,
        first_ms: u64,
        answer: Answer,
        deeds: &mut Vec<Deed>,
    ) {
        match (request, answer) {
            (Request::Create { volume, .. }, Answer::Created(made)) if *volume == made => {
                deeds.push(Deed::Made(made));
                self.state = State::Idle;
            }
            (Request::Create { volume, .. }, Answer::NotCreated(other)) if *volume == other => {
                self.state = State::Idle;
            }
            (Request::Delete(volume), Answer::Deleted(gone, is_gone)) if *volume == gone => {
                if is_gone {
                    deeds.push(Deed::Removed(gone));
                }
                self.state = State::Idle;
            }
            (Request::Open(open), Answer::Opened(granted)) if open.plan == granted.plan => {
                self.hold(now_ms, first_ms, granted, deeds);
            }
            (Request::Open(open), Answer::NotOpened(plan, seen)) if open.plan == plan => {
                self.refused(now_ms, first_ms, open, seen, deeds);
            }
            (Request::Release(plan), Answer::Released(gone)) if *plan == gone => {
                self.state = State::Idle;
            }
            _ => {}
        }
    }

    fn hold(&mut self, now_ms: u64, first_ms: u64, granted: Box<Granted>, deeds: &mut Vec<Deed>) {
        let end_ms = first_ms + TERM_MS;
        if end_ms <= now_ms {
            self.state = State::Idle;
            return;
        }
        deeds.push(Deed::Got(granted.clone(), end_ms));
        let stays_ms = 1_000 + self.dice.below(120_000);
        self.state = State::Holding {
            granted,
            end_ms,
            round: 1,
            renew_ms: first_ms.saturating_add(TERM_MS / 3),
            asked_ms: None,
            leave_ms: now_ms + stays_ms,
        };
    }

    fn refused(
        &mut self,
        now_ms: u64,
        asked_ms: u64,
        open: &Open,
        seen: Option<Generation>,
        deeds: &mut Vec<Deed>,
    ) {
        self.state = State::Idle;
        if self.is_closing {
            return;
        }
        if seen.is_some() && self.dice.one_in(6) {
            let plan = PlanId(self.draw());
            let open = Open { plan, take_over: seen, ..*open };
            self.begin(now_ms, Request::Open(open), deeds);
        } else if seen.is_none() && self.dice.one_in(2) {
            // By the same name: an answer may be one to what was asked before, and counts from then.
            self.begin(now_ms, Request::Open(*open), deeds);
            if let State::Asking { first_ms, .. } = &mut self.state {
                *first_ms = asked_ms;
            }
        }
    }

    fn handle_held(&mut self, answer: Answer, deeds: &mut Vec<Deed>) {
        let State::Holding { granted, end_ms, round, renew_ms, asked_ms, .. } = &mut self.state
        else {
            return;
        };
        match answer {
            Answer::Renewed(of, renewed) if renewed.plan == granted.plan && of == *round => {
                let Some(asked) = asked_ms.take() else { return };
                *granted = renewed;
                *end_ms = asked + TERM_MS;
                *renew_ms = asked + TERM_MS / 3;
                *round += 1;
                deeds.push(Deed::Got(granted.clone(), *end_ms));
            }
            Answer::Gone(plan) if plan == granted.plan => {
                deeds.push(Deed::Lost(plan));
                self.state = State::Idle;
            }
            // Of what it asked for before.
            Answer::Renewed(..)
            | Answer::Gone(_)
            | Answer::Created(_)
            | Answer::NotCreated(_)
            | Answer::Deleted(..)
            | Answer::Opened(_)
            | Answer::NotOpened(..)
            | Answer::Released(_) => {}
        }
    }
}
