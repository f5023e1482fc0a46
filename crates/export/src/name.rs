//! What a volume may be called where it is exported.

use std::fmt;

/// Longest name of a file, in bytes.
const FILE_NAME_LEN_MAX: usize = 255;
/// Longest name of an NBD export, in bytes (NBD, string limits).
const EXPORT_NAME_LEN_MAX: usize = 4096;
/// Characters of a wrong name that are shown.
const SHOWN_MAX: usize = 64;

/// A name under which a volume cannot be exported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("name '{}' {fault}", Shown(name))]
pub struct NameError {
    name: String,
    fault: NameFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum NameFault {
    #[error("is empty; a file needs a name")]
    Empty,
    #[error("is {len} bytes long, {max} at most; choose a shorter one")]
    Long { len: usize, max: usize },
    #[error("has a control character, which no client can be told; choose another one")]
    Control,
    #[error("has a slash, which no name of a file may have; export it over NBD")]
    Slash,
    #[error("stands for a directory and can be no file; export it over NBD")]
    Directory,
}

/// A name as it can be shown: without control characters, and not endless.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.chars().take(SHOWN_MAX);
        shown.flat_map(char::escape_debug).try_for_each(|c| write!(f, "{c}"))?;
        f.write_str(if self.0.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" })
    }
}

/// Whether a volume can be a file of that name.
pub(crate) fn check_file_name(name: &str) -> Result<(), NameError> {
    let fault = match name {
        "" => Some(NameFault::Empty),
        "." | ".." => Some(NameFault::Directory),
        other if other.contains('/') => Some(NameFault::Slash),
        other => fault_of(other, FILE_NAME_LEN_MAX),
    };
    refuse(name, fault)
}

/// Whether a volume can be an NBD export of that name.
pub(crate) fn check_export_name(name: &str) -> Result<(), NameError> {
    refuse(name, fault_of(name, EXPORT_NAME_LEN_MAX))
}

fn fault_of(name: &str, max: usize) -> Option<NameFault> {
    if name.len() > max {
        Some(NameFault::Long { len: name.len(), max })
    } else if name.chars().any(char::is_control) {
        Some(NameFault::Control)
    } else {
        None
    }
}

fn refuse(name: &str, fault: Option<NameFault>) -> Result<(), NameError> {
    fault.map_or(Ok(()), |fault| Err(NameError { name: name.into(), fault }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        for name in ["", ".", "..", "a/b", "/", "a\0b", "a\nb", "\u{1b}[2J", &"x".repeat(256)] {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "...", ".hidden", "a b", "\u{e4}", &"x".repeat(255)] {
            assert_eq!(check_file_name(name), Ok(()));
        }
    }

    #[test]
    fn names_that_no_nbd_client_can_be_told_are_refused() {
        for name in ["a\0b", "a\nb", "\u{1b}[2J", "\u{85}", &"x".repeat(4097)] {
            assert!(check_export_name(name).is_err(), "{name:?}");
        }
        for name in ["", "a/b", "..", &"x".repeat(4096)] {
            assert_eq!(check_export_name(name), Ok(()));
        }
    }

    #[test]
    fn errors_show_no_control_characters_and_end() {
        let name = format!("\u{1b}[2J{}", "x".repeat(5000));
        let text = check_export_name(&name).unwrap_err().to_string();
        assert!(!text.chars().any(char::is_control) && text.len() < 200, "{text}");
        assert!(text.contains("is 5004 bytes long, 4096 at most"), "{text}");
    }
}
