//! What a command says: one document on standard output, for people or for machines, and
//! progress on a terminal.

use std::{
    io::{ErrorKind, IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netraid_control::text::{is_unseen, shown};
use serde::Serialize;

use crate::{bars, lines};

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

    /// Prints the document for a machine in one line, or what `text` says of it: the outcome of a command, which
    /// fails when it cannot be written.
    pub(crate) fn document(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        let line = self.line(value, text)?;
        write_out(&format!("{}\n", line.trim_end()))
    }

    /// Prints a document that somebody has to have got: a reader who is gone is a failure.
    pub(crate) fn deliver(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        let line = self.line(value, text)?;
        write_all(&format!("{}\n", line.trim_end())).context("standard output")
    }

    /// Prints a document of a process that goes on. Nothing waits for it to be written: a reader who stands still or
    /// is gone, or a full disk, costs lines and nothing else.
    pub(crate) fn announce(self, value: &impl Serialize, text: impl FnOnce() -> String) {
        match self.line(value, text) {
            Ok(line) => {
                lines::events(self.json).push(format!("{}\n", line.trim_end()).as_bytes());
            }
            Err(error) => tracing::warn!("something cannot be said: {error:#}"),
        }
    }

    /// Begins a list that is said as it comes: one document for a machine, a line an entry for a person.
    pub(crate) const fn list(self) -> List {
        List { output: self, is_begun: false }
    }

    fn line(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<String> {
        Ok(match self.json {
            true => readable_json(serde_json::to_string(value)?),
            false => readable(&text()),
        })
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

    /// A bar of bytes whose message, length, and speed (its prefix) are told as they become known.
    pub(crate) fn progress_told(self, what: &str) -> ProgressBar {
        self.bar(what, 0, "{msg} [{wide_bar}] {bytes}/{total_bytes} {prefix}")
    }

    /// The same for anything that is counted.
    pub(crate) fn progress_of_steps(self, what: &str, total: u64) -> ProgressBar {
        self.bar(what, total, "{msg} [{wide_bar}] {pos}/{len} {eta}")
    }

    fn bar(self, what: &str, total: u64, form: &str) -> ProgressBar {
        if self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(total), bars::target());
        let bar = bar.with_message(shown(what).to_string());
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// A list that is said as it comes, so that nobody keeps all of it in memory.
pub(crate) struct List {
    output: Output,
    is_begun: bool,
}

impl List {
    /// Says more entries.
    pub(crate) fn add<T: Serialize>(
        &mut self,
        entries: &[T],
        line: impl Fn(&T) -> String,
    ) -> Result<()> {
        if !self.output.is_json() {
            let lines: Vec<String> = entries.iter().map(line).collect();
            return if lines.is_empty() { Ok(()) } else { self.output.say(&lines.join("\n")) };
        }
        let mut text = String::new();
        for entry in entries {
            text += if std::mem::replace(&mut self.is_begun, true) { "," } else { LIST_BEGIN };
            text += &readable_json(serde_json::to_string(entry)?);
        }
        write_out(&text)
    }

    /// There are no more.
    pub(crate) fn end(self) -> Result<()> {
        match (self.output.is_json(), self.is_begun) {
            (false, _) => Ok(()),
            (true, true) => write_out(LIST_END),
            (true, false) => write_out(&format!("{LIST_BEGIN}{LIST_END}")),
        }
    }
}

/// How the document of a list begins.
const LIST_BEGIN: &str = "{\"entries\":[";
/// How it ends.
const LIST_END: &str = "]}\n";

/// Writes to standard output. Whoever waits for it at the other end of a pipe sees it now.
fn write_out(text: &str) -> Result<()> {
    match write_all(text) {
        // A reader that has seen enough (`| head`) is no failure of what was done.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output"),
    }
}

fn write_all(text: &str) -> std::io::Result<()> {
    lines::finish();
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Lines for a person in which nothing gives orders to the terminal, whoever said it: commands escape what
/// others said where they show it, and this is behind all of them.
fn readable(text: &str) -> String {
    escape(text, |c| c.escape_default().to_string())
}

/// A document for a machine that may also be shown on a terminal: the same document.
fn readable_json(document: String) -> String {
    if !document.chars().any(is_unseen) {
        return document;
    }
    let mut units = [0; 2];
    escape(&document, |c| {
        c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

fn escape(text: &str, mut with: impl FnMut(char) -> String) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unseen(c) && !matches!(c, '\n' | '\t') {
            true => safe.push_str(&with(c)),
            false => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "a\u{1b}[2J b\u{9b}1m c\u{202e}d e\u{7f} f\u{e0041}g";

    #[test]
    fn no_text_of_a_command_gives_orders_to_a_terminal() {
        let text = readable(&format!("one\n\ttwo {WORDS}"));
        let expected = "one\n\ttwo a\\u{1b}[2J b\\u{9b}1m c\\u{202e}d e\\u{7f} f\\u{e0041}g";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_document_that_is_shown_is_the_same_document() {
        let document = serde_json::json!({ "host": WORDS, "name": "größe 機" });
        let line = readable_json(serde_json::to_string(&document).unwrap());
        assert!(!line.chars().any(is_unseen), "{line:?}");
        assert!(line.contains("größe 機"), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), document);
        assert_eq!(readable_json("\"\u{7f}\"".to_owned()), "\"\\u007f\"");
    }
}
