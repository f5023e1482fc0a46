//! What happened in a run: a hash of all of it, and lines for people when they are asked for.

use core::fmt;
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use crate::time::Time;

/// How much of a trace is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Its hash.
    Hash,
    /// And the last lines.
    Last(usize),
    /// All of it goes to the terminal as well.
    All,
}

/// Lines of a trace, oldest first.
pub type Lines = Rc<RefCell<VecDeque<String>>>;

/// A trace.
#[derive(Debug)]
pub struct Trace {
    keep: Keep,
    hash: u64,
    lines: Lines,
}

impl Trace {
    /// An empty trace.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self { keep, hash: 0xcbf2_9ce4_8422_2325, lines: Lines::default() }
    }

    /// Takes numbers that tell this run from others.
    pub fn mix(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
        }
    }

    /// Takes a line.
    pub fn note(&mut self, now: Time, line: impl FnOnce() -> String) {
        let most = match self.keep {
            Keep::Hash => return,
            Keep::Last(most) => most,
            Keep::All => {
                self.print(format_args!("{now} {}", line()));
                return;
            }
        };
        let mut lines = self.lines.borrow_mut();
        if lines.len() == most {
            lines.pop_front();
        }
        lines.push_back(format!("{now} {}", line()));
    }

    /// The hash of all that happened.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines that are kept.
    #[must_use]
    pub fn lines(&self) -> Lines {
        self.lines.clone()
    }

    #[allow(clippy::print_stdout, clippy::unused_self, reason = "a replay talks to its terminal")]
    fn print(&self, line: fmt::Arguments<'_>) {
        println!("{line}");
    }
}
