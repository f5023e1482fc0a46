//! Where bars are drawn: a terminal on standard error that may stand still.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use console::Term;
use indicatif::{ProgressDrawTarget, TermLike};

use crate::lines;

/// How often a bar is drawn in a second, at most.
const RATE: u8 = 20;

/// Draws on the terminal of standard error, without waiting for it.
pub(crate) fn target() -> ProgressDrawTarget {
    let bars = Bars { term: Term::stderr(), drawn: Mutex::default() };
    ProgressDrawTarget::term_like_with_hz(Box::new(bars), RATE)
}

#[derive(Debug)]
struct Bars {
    /// Asked for its size alone.
    term: Term,
    /// What is to be drawn at once.
    drawn: Mutex<String>,
}

impl Bars {
    #[allow(clippy::unnecessary_wraps, reason = "as the callers have it")]
    fn draw(&self, text: &str) -> io::Result<()> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    fn go(&self, count: usize, way: char) -> io::Result<()> {
        if count == 0 { Ok(()) } else { self.draw(&format!("\x1b[{count}{way}")) }
    }
}

impl TermLike for Bars {
    fn width(&self) -> u16 {
        self.term.size().1
    }

    fn height(&self) -> u16 {
        self.term.size().0
    }

    fn move_cursor_up(&self, count: usize) -> io::Result<()> {
        self.go(count, 'A')
    }

    fn move_cursor_down(&self, count: usize) -> io::Result<()> {
        self.go(count, 'B')
    }

    fn move_cursor_right(&self, count: usize) -> io::Result<()> {
        self.go(count, 'C')
    }

    fn move_cursor_left(&self, count: usize) -> io::Result<()> {
        self.go(count, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(text)?;
        self.draw("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
        lines::errors().redraw(drawn.as_bytes());
        Ok(())
    }
}
