//! Finds the end of the log after a crash: from a checkpoint's position on, batch by batch.
//!
//! Invariant: what is adopted is a chain, each batch written by the generation that owned its
//! place. It does not read: whoever walks looks at [`Walk::places`] on every member, and hands in
//! what decodes there.

use alloc::vec::Vec;

use super::{Batch, Link, Position, Ring};
use crate::planted::{Planted, planted};

/// A generation, and where its part of the log begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The generation.
    pub generation: u64,
    /// Its first position.
    pub position: Position,
}

/// Which generation owns which part of the log, oldest first. Labels have room for
/// [`Beginnings::MAX`]; those that end before the log's tail are forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beginnings(Vec<Begin>);

impl Beginnings {
    /// How many a label holds.
    pub const MAX: usize = 32;

    /// Takes what a label says.
    ///
    /// # Errors
    /// When there are too many, or one is not later than the one before it.
    pub fn new(begins: Vec<Begin>) -> Result<Self, &'static str> {
        let later = |pair: &[Begin]| {
            pair[0].generation < pair[1].generation && pair[0].position <= pair[1].position
        };
        if begins.len() <= Self::MAX && begins.windows(2).all(later) {
            Ok(Self(begins))
        } else {
            Err("beginnings of generations")
        }
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Begin] {
        &self.0
    }

    /// Who alone may have written at `position`.
    #[must_use]
    pub fn owner(&self, position: Position) -> Option<u64> {
        // Of two that begin at one place the later one owns it.
        let last = self.0.iter().rev().find(|begin| begin.position <= position);
        last.map(|begin| begin.generation)
    }

    /// How many are older than a generation.
    #[must_use]
    pub fn older_than(&self, generation: u64) -> usize {
        self.0.iter().take_while(|begin| begin.generation < generation).count()
    }

    /// Whether one more has room, wherever it begins.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.0.len() < Self::MAX
    }

    /// Whether one that begins there has room.
    #[must_use]
    pub fn has_room_at(&self, position: Position) -> bool {
        self.has_room() || self.0.last().is_some_and(|last| last.position == position)
    }

    /// Adds a generation. One that begins at the same place owns nothing and is forgotten.
    ///
    /// # Panics
    /// When there is no room, or it is not later than all others.
    pub fn begin(&mut self, begin: Begin) {
        let is_later =
            |last: &Begin| last.generation < begin.generation && last.position <= begin.position;
        assert!(self.0.last().is_none_or(is_later), "{begin:?} after {:?}", self.0.last());
        self.0.pop_if(|last| last.position == begin.position);
        assert!(self.has_room(), "more than {} generations begin in one log", Self::MAX);
        self.0.push(begin);
    }

    /// Forgets generations whose part lies before `tail`.
    pub fn forget_before(&mut self, tail: Position) {
        let ended = self.0.windows(2).take_while(|pair| pair[1].position <= tail).count();
        self.0.drain(..ended);
    }
}

/// A walk along the log.
#[derive(Debug)]
pub struct Walk<'a> {
    ring: Ring,
    beginnings: &'a Beginnings,
    tail: Position,
    link: Link,
}

impl<'a> Walk<'a> {
    /// A walk that begins where a checkpoint says that the log does.
    #[must_use]
    pub const fn new(ring: Ring, beginnings: &'a Beginnings, tail: Link) -> Self {
        Self { ring, beginnings, tail: tail.end, link: tail }
    }

    /// What the next batch follows: the end of the log, once there is none.
    #[must_use]
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Where the next batch can be: right there, or at the ring's next turn. None when the ring
    /// is full.
    pub fn places(&self) -> impl Iterator<Item = Position> + use<> {
        let (end, turn) = (self.link.end, self.ring.turn(self.link.end));
        let (tail, blocks) = (self.tail, self.ring.blocks());
        let other = if turn == end { None } else { Some(turn) };
        [Some(end), other].into_iter().flatten().filter(move |at| at.0 - tail.0 < blocks)
    }

    /// Whether a batch is the next one.
    #[must_use]
    pub fn would_take(&self, batch: &Batch) -> bool {
        u64::from(batch.blocks()) <= self.ring.blocks()
            && batch.previous == self.link
            && self.ring.place(self.link.end, batch.blocks()) == batch.position
            && (self.beginnings.owner(batch.position) == Some(batch.generation)
                || planted(Planted::PositionBeforeGeneration))
            && batch.end().0 - self.tail.0 <= self.ring.blocks()
    }

    /// Whether a batch would be the next one, if the generation that wrote it owned its place.
    #[must_use]
    pub fn is_of_another(&self, batch: &Batch) -> bool {
        batch.previous == self.link
            && self.beginnings.owner(batch.position) != Some(batch.generation)
    }

    /// Whether a batch, with its head's checksum, is the next one; then the walk goes past it.
    /// Whoever calls has made sure that its payload is whole on some members.
    pub fn take(&mut self, batch: &Batch, crc: u32) -> bool {
        let is_next = self.would_take(batch);
        if is_next {
            self.link = Link { end: batch.end(), crc };
        }
        is_next
    }
}
