//! What a command says: one document on standard output, for people or for machines, and
//! progress on a terminal.

use std::{
    io::{ErrorKind, IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// How the user wants to be spoken to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the reader is a machine.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints the document for a machine in one line, or what `text` says of it.
    pub(crate) fn document(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        let line = if self.json { serde_json::to_string(value)? } else { text() };
        let mut out = std::io::stdout().lock();
        // Whoever waits for this line at the other end of a pipe must see it now.
        match writeln!(out, "{}", line.trim_end()).and_then(|()| out.flush()) {
            // A reader that has seen enough (`| head`) is no failure of what was done.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result.context("standard output"),
        }
    }

    /// Says something to a person only.
    pub(crate) fn say(self, text: &str) -> Result<()> {
        if self.json { Ok(()) } else { self.document(&(), || text.to_string()) }
    }

    /// A bar on a terminal, `total` bytes long; nothing elsewhere.
    pub(crate) fn progress(self, what: &str, total: u64) -> ProgressBar {
        let form = "{msg} [{wide_bar}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        self.bar(what, total, form)
    }

    /// The same for anything that is counted.
    pub(crate) fn progress_of_steps(self, what: &str, total: u64) -> ProgressBar {
        self.bar(what, total, "{msg} [{wide_bar}] {pos}/{len} {eta}")
    }

    fn bar(self, what: &str, total: u64, form: &str) -> ProgressBar {
        if self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(total).with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}
