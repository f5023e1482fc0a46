//! What `create` writes where a label will be, until the label is written: a text, and random bytes, again
//! and again.
//!
//! - A *test mark* stands there for a moment, to see whether two addresses lead to one device. What it covers
//!   is put back. When that was not done, because the process died, a device that has a test mark and nothing
//!   else is unused still.
//! - A *begun mark* stands there while all else of a new array is written. A device that has one was found
//!   unused before, or was given away by force: whatever else is on it, the device is unused.

use crate::label::LABEL_LEN;

const TEXT_LEN: usize = 16;
const TEST: [u8; TEXT_LEN] = *b"netraid's mark.\n";
const BEGUN: [u8; TEXT_LEN] = *b"netraid: begun.\n";
const PART_LEN: usize = TEXT_LEN + 16;

/// A test mark that no other has, by its random bytes.
#[must_use]
pub fn test(random: [u8; 16]) -> [u8; LABEL_LEN] {
    new(TEST, random)
}

/// A begun mark.
#[must_use]
pub fn begun(random: [u8; 16]) -> [u8; LABEL_LEN] {
    new(BEGUN, random)
}

/// Whether these bytes are a test mark, and nothing else.
#[must_use]
pub fn is_test(bytes: &[u8]) -> bool {
    is_mark(TEST, bytes)
}

/// Whether these bytes are a begun mark, and nothing else.
#[must_use]
pub fn is_begun(bytes: &[u8]) -> bool {
    is_mark(BEGUN, bytes)
}

fn new(text: [u8; TEXT_LEN], random: [u8; 16]) -> [u8; LABEL_LEN] {
    let mut mark = [0; LABEL_LEN];
    for part in mark.chunks_mut(PART_LEN) {
        part[..TEXT_LEN].copy_from_slice(&text);
        part[TEXT_LEN..].copy_from_slice(&random);
    }
    mark
}

fn is_mark(text: [u8; TEXT_LEN], bytes: &[u8]) -> bool {
    let Some((first, _)) = bytes.split_at_checked(PART_LEN) else { return false };
    bytes.len() == LABEL_LEN
        && first.starts_with(&text)
        && bytes.chunks(PART_LEN).all(|part| part == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_and_nothing_else_is() {
        type Kind = (fn([u8; 16]) -> [u8; LABEL_LEN], fn(&[u8]) -> bool);
        let kinds: [Kind; 2] = [(test, is_test), (begun, is_begun)];
        for (new, is_mark) in kinds {
            let mark = new([7; 16]);
            assert!(is_mark(&mark));
            assert_ne!(mark, new([8; 16]));
            for at in [0, 15, 16, 31, 32, LABEL_LEN - 1] {
                let mut other = mark;
                other[at] ^= 1;
                assert!(!is_mark(&other), "byte {at}");
            }
            assert!(!is_mark(&[0; LABEL_LEN]) && !is_mark(&mark[..PART_LEN]) && !is_mark(&[]));
        }
        assert!(!is_test(&begun([7; 16])) && !is_begun(&test([7; 16])));
    }

    #[test]
    fn a_mark_is_no_label() {
        use crate::label::{Label, LabelError};
        for mark in [test([7; 16]), begun([7; 16])] {
            assert!(matches!(Label::decode(&mark, 0), Err(LabelError::Absent)));
        }
    }
}
