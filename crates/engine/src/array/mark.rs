//! What `create` writes for a moment where a label will be, to see whether two addresses lead to one
//! device: a text, and random bytes, again and again.
//!
//! What it covers is put back. When that was not done, because the process died, a device that has a
//! mark and nothing else is unused still.

use netraid_raid::label::LABEL_LEN;

const TEXT: [u8; 16] = *b"netraid's mark.\n";
const PART_LEN: usize = TEXT.len() + 16;

/// A mark that no other has, by its random bytes.
pub(super) fn new(random: [u8; 16]) -> [u8; LABEL_LEN] {
    let mut mark = [0; LABEL_LEN];
    for part in mark.chunks_mut(PART_LEN) {
        part[..TEXT.len()].copy_from_slice(&TEXT);
        part[TEXT.len()..].copy_from_slice(&random);
    }
    mark
}

/// Whether these bytes are a mark, and nothing else.
pub(super) fn is_mark(bytes: &[u8]) -> bool {
    let Some((first, _)) = bytes.split_at_checked(PART_LEN) else { return false };
    bytes.len() == LABEL_LEN
        && first.starts_with(&TEXT)
        && bytes.chunks(PART_LEN).all(|part| part == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_and_nothing_else_is() {
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

    #[test]
    fn a_mark_is_no_label() {
        use netraid_raid::label::{Label, LabelError};
        assert!(matches!(Label::decode(&new([7; 16]), 0), Err(LabelError::Absent)));
    }
}
