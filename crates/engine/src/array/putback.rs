//! What `create` does so that a refusal changes nothing: what it overwrites is read first, so that it can be put back.

use std::ops::Range;

use netraid_block::{Buf, ErrorKind};
use netraid_raid::regions::LABEL_OFFSETS;

use super::{error::ArrayError, member::Connected};

/// Most bytes of a member that are read to be put back.
const SAVED_MAX: u64 = 16 << 20;
/// Most bytes that are read, and put back, by one request.
const PIECE_MAX: u64 = 256 << 10;
/// Ranges with at most so many bytes between them are read together.
const GAP_MAX: u64 = 64 << 10;

/// Ranges that an error names; tables that are written page by page are many.
const RANGES_SHOWN_MAX: usize = 4;

/// What was on a member before it was overwritten.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// Offsets and bytes, in their order on the member; none overlap.
    pieces: Vec<(u64, Buf)>,
}

impl Connected {
    /// Reads what is in these places, the first group of them first, and 16 MiB at most, so that it can
    /// be put back.
    ///
    /// # Errors
    /// When the device does not answer. What it cannot read is left out.
    pub(super) async fn save(&self, groups: &[Vec<Range<u64>>]) -> Result<Saved, ArrayError> {
        let piece_max = PIECE_MAX.min(u64::from(self.device.info().max_transfer_len));
        let (mut saved, mut left) = (Saved::default(), SAVED_MAX);
        for group in groups {
            for place in saved.lacks(&joined(group, GAP_MAX)) {
                let mut at = place.start;
                while at < place.end && left > 0 {
                    let len = (place.end - at).min(piece_max).min(left);
                    match self.read(at, len, "reading what is to be overwritten").await {
                        Ok(bytes) => saved.pieces.push((at, bytes)),
                        Err(error) if is_medium(&error) => {}
                        Err(error) => return Err(error),
                    }
                    at += len;
                    left -= len;
                }
            }
            saved.pieces.sort_by_key(|(offset, _)| *offset);
        }
        Ok(saved)
    }

    /// Puts back what was saved, the labels last: an old label is to be found again only with what
    /// belongs to it. Answers what of the places that were `overwritten` is not as it was, with the
    /// member's address; none when all is.
    pub(super) async fn put_back(
        &self,
        saved: &Saved,
        overwritten: &[Range<u64>],
    ) -> Option<String> {
        let what = "putting back what was there";
        let is_label = |(offset, _): &&(u64, Buf)| *offset <= LABEL_OFFSETS[1];
        let (labels, others): (Vec<_>, Vec<_>) = saved.pieces.iter().partition(is_label);
        let parts = [others, labels].map(|part| part.into_iter().cloned().collect::<Vec<_>>());
        let (mut lost, mut reason) = (saved.lacks(overwritten), None);
        for part in &parts {
            if let Err(error) = self.write_stable(part, what).await {
                lost.extend(
                    part.iter().map(|(offset, bytes)| *offset..offset + bytes.len() as u64),
                );
                reason = reason.or(Some(error));
            }
        }
        let lost = joined(&lost, 0);
        if lost.is_empty() {
            return None;
        }
        let bytes = format!("{}: bytes {}", self.address(), show_ranges(&lost));
        Some(reason.map_or(bytes.clone(), |reason| format!("{bytes} ({reason})")))
    }
}

/// Ranges in words: of many the first ones, and where the last one ends.
fn show_ranges(ranges: &[Range<u64>]) -> String {
    let shown = ranges.iter().take(RANGES_SHOWN_MAX);
    let shown: Vec<String> =
        shown.map(|range| format!("{} to {}", range.start, range.end - 1)).collect();
    let shown = shown.join(", ");
    match (ranges.len().saturating_sub(RANGES_SHOWN_MAX), ranges.last()) {
        (more @ 1.., Some(last)) => {
            format!("{shown}, and {more} more ranges up to {}", last.end - 1)
        }
        (0, _) | (_, None) => shown,
    }
}

impl Saved {
    /// What of these places is not saved.
    fn lacks(&self, places: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut lacks = Vec::new();
        for place in joined(places, 0) {
            let mut at = place.start;
            for (offset, bytes) in &self.pieces {
                let end = offset + bytes.len() as u64;
                if end <= at || *offset >= place.end {
                    continue;
                }
                if at < *offset {
                    lacks.push(at..*offset);
                }
                at = end;
            }
            if at < place.end {
                lacks.push(at..place.end);
            }
        }
        lacks
    }
}

/// The same places in their order, those joined that have at most `gap` bytes between them.
fn joined(places: &[Range<u64>], gap: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = places.iter().filter(|place| !place.is_empty()).cloned().collect();
    sorted.sort_by_key(|place| place.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for place in sorted {
        match all.last_mut() {
            Some(last) if place.start <= last.end.saturating_add(gap) => {
                last.end = last.end.max(place.end);
            }
            _ => all.push(place),
        }
    }
    all
}

fn is_medium(error: &ArrayError) -> bool {
    matches!(error, ArrayError::Io { reason, .. } if reason.kind() == ErrorKind::Medium)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_joined_where_they_are_near() {
        let places = [50..60, 0..10, 12..20, 5..6, 30..30];
        assert_eq!(joined(&places, 0), [0..10, 12..20, 50..60]);
        assert_eq!(joined(&places, 2), [0..20, 50..60]);
        assert_eq!(joined(&[0..10, 10..20, 30..40], 0), [0..20, 30..40]);
    }

    #[test]
    fn of_many_ranges_an_error_names_the_first_and_where_the_last_ends() {
        let ranges: Vec<Range<u64>> = (0..1000).map(|at| at * 10..at * 10 + 5).collect();
        assert_eq!(show_ranges(&ranges[..2]), "0 to 4, 10 to 14");
        assert_eq!(show_ranges(&ranges[..4]), "0 to 4, 10 to 14, 20 to 24, 30 to 34");
        let many = "0 to 4, 10 to 14, 20 to 24, 30 to 34, and 996 more ranges up to 9994";
        assert_eq!(show_ranges(&ranges), many);
    }

    #[test]
    fn what_was_not_read_is_named_as_lost() {
        let piece = |offset, len| (offset, Buf::copy_from(&vec![1; len]));
        let saved = Saved { pieces: vec![piece(0, 10), piece(20, 10)] };
        assert_eq!(saved.lacks(&[0..10, 20..30]), []);
        assert_eq!(saved.lacks(&[5..25, 28..32]), [10..20, 30..32]);
        assert_eq!(saved.lacks(&[0..40, 50..60]), [10..20, 30..40, 50..60]);
    }
}
