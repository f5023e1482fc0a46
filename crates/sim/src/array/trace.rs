//! What happened in a run: a hash of all of it, and lines for people when they are asked for.

use core::fmt;
use std::collections::VecDeque;

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

/// A trace.
#[derive(Debug)]
pub struct Trace {
    keep: Keep,
    hash: u64,
    lines: VecDeque<String>,
}

impl Trace {
    /// An empty trace.
    #[must_use]
    pub const fn new(keep: Keep) -> Self {
        Self { keep, hash: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new() }
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
        if self.lines.len() == most {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{now} {}", line()));
    }

    /// The hash of all that happened.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines that were kept, oldest first.
    pub fn into_lines(self) -> impl Iterator<Item = String> {
        self.lines.into_iter()
    }

    #[allow(clippy::print_stdout, clippy::unused_self, reason = "a replay talks to its terminal")]
    fn print(&self, line: fmt::Arguments<'_>) {
        println!("{line}");
    }
}
