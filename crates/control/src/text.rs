//! Texts of others: which are taken, and how they are shown.
//!
//! A host's name in a heartbeat, a name in a label, a mediator's answer: whoever says one may mean a
//! terminal by it, another line, or another order of the letters around it. So what is kept is checked
//! where it comes in ([`check`]), and what is shown is escaped all the same ([`shown`]): it may be older
//! than the check, or come from somebody who checks nothing.

use core::fmt::{self, Write as _};

/// Characters of a text that are shown, at most; what is longer ends with `…`.
pub const SHOWN_MAX: usize = 256;

/// Why a text is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// It is longer than such texts are.
    #[error("has {len} bytes, {max} at most")]
    Long {
        /// Its bytes.
        len: usize,
        /// How many it may have.
        max: usize,
    },
    /// A character in it is not one to be read.
    #[error("has the character U+{0:04X}, which is not shown as itself")]
    Unseen(u32),
}

/// Whether a text of somebody else's may be kept, and shown: it has at most `max` bytes, and nothing but
/// characters that stand for themselves.
///
/// # Errors
/// When it has more bytes, or another character.
pub fn check(text: &str, max: usize) -> Result<(), TextError> {
    if text.len() > max {
        return Err(TextError::Long { len: text.len(), max });
    }
    match text.chars().find(|c| is_unseen(*c)) {
        Some(unseen) => Err(TextError::Unseen(unseen.into())),
        None => Ok(()),
    }
}

/// Whether a character does something instead of being seen: controls, and what sets the direction of
/// what is around it, separates lines, takes no room, or is a letter that looks like a blank.
#[must_use]
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// A text of somebody else's as it is shown: in one line, with escapes for what is not seen, and cut at
/// [`SHOWN_MAX`] characters.
#[must_use]
pub const fn shown(text: &str) -> Shown<'_> {
    Shown { text, max: SHOWN_MAX }
}

/// The same without a cut: for texts that were bounded where they came in.
#[must_use]
pub const fn escaped(text: &str) -> Shown<'_> {
    Shown { text, max: usize::MAX }
}

/// See [`shown`].
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    text: &'a str,
    max: usize,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.text.chars();
        for c in chars.by_ref().take(self.max) {
            if is_unseen(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        if chars.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, string::ToString as _};

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_not_taken() {
        for (text, expected) in [
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("two\nlines\r", "two\\nlines\\r"),
            ("c1\u{9b}31m", "c1\\u{9b}31m"),
            ("right\u{202e}left", "right\\u{202e}left"),
            ("filler\u{3164}s\u{115f}", "filler\\u{3164}s\\u{115f}"),
            ("line\u{2028}end\u{7f}", "line\\u{2028}end\\u{7f}"),
        ] {
            assert_eq!(shown(text).to_string(), expected);
            assert!(matches!(check(text, 512), Err(TextError::Unseen(_))), "{text:?}");
        }
        for plain in ["", "rack 7, left", "größe-größer", "機架"] {
            assert_eq!((shown(plain).to_string().as_str(), check(plain, 512)), (plain, Ok(())));
        }
    }

    #[test]
    fn a_long_text_is_cut_and_not_taken() {
        let long = "x".repeat(1 << 20);
        assert_eq!(shown(&long).to_string(), format!("{}…", &long[..SHOWN_MAX]));
        assert_eq!(escaped(&long).to_string(), long);
        assert_eq!(check(&long, 512), Err(TextError::Long { len: 1 << 20, max: 512 }));
        assert_eq!(check(&long[..512], 512), Ok(()));
    }
}
