//! Writes of several ranges at once: all of them took effect, or none did.
//!
//! A range is seen when a read returns its contents, and denied when a read that an opening decides shows that it never
//! took effect. A group of which one range is seen and another one denied was torn.

/// All groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// A range was seen.
    is_seen: bool,
    /// What was seen stays, whatever power fails.
    is_kept: bool,
    is_denied: bool,
}

impl Groups {
    /// Another group; its number.
    pub(super) fn begin(&mut self) -> u32 {
        self.groups.push(Group::default());
        netraid_block::narrow(self.groups.len() - 1)
    }

    /// Another engine has opened the array; with `all`, after a failure of all power, which may have taken what was
    /// seen and not flushed.
    pub(super) fn open(&mut self, all: bool) {
        for group in &mut self.groups {
            group.is_seen &= !all || group.is_kept;
            group.is_kept |= group.is_seen;
        }
    }

    /// Ranges are lost, and told as that: what was seen of them may be gone.
    pub(super) fn lose(&mut self, group: u32) {
        let group = &mut self.groups[group as usize];
        group.is_seen &= group.is_kept;
    }

    /// A range was read; `is_kept`: whatever power fails, it stays.
    ///
    /// # Errors
    /// When another one never took effect.
    pub(super) fn see(&mut self, group: u32, is_kept: bool) -> Result<(), &'static str> {
        let group = &mut self.groups[group as usize];
        group.is_seen = true;
        group.is_kept |= is_kept;
        if group.is_denied { Err("is there, and another one is not") } else { Ok(()) }
    }

    /// A range was shown never to have taken effect.
    ///
    /// # Errors
    /// When another one was read.
    pub(super) fn deny(&mut self, group: u32) -> Result<(), &'static str> {
        let group = &mut self.groups[group as usize];
        group.is_denied = true;
        if group.is_seen { Err("is not there, and another one is") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{A, B, C, ZEROES, flush, reads};
    use super::super::{Oracle, WriteId};

    const RANGES: [core::ops::Range<u64>; 2] = [0..8, 40..48];

    fn oracle() -> Oracle {
        let mut oracle = Oracle::new(64);
        oracle.open(A);
        oracle
    }

    fn begin(oracle: &mut Oracle) -> [WriteId; 2] {
        let ids = oracle.begin_atomic_write(A, &RANGES, false);
        [ids[0], ids[1]]
    }

    #[test]
    fn after_a_crash_all_ranges_are_new_or_all_are_old() {
        for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut oracle = oracle();
            let ids = begin(&mut oracle);
            oracle.open(B);
            let read = |oracle: &mut Oracle, at: usize, is_new: bool| {
                let expected = if is_new { ids[at] } else { ZEROES };
                reads(oracle, RANGES[at].clone(), expected)
            };
            assert!(read(&mut oracle, 0, first));
            assert_eq!(read(&mut oracle, 1, second), first == second, "{first} {second}");
        }
    }

    #[test]
    fn what_was_seen_and_not_flushed_may_go_with_the_power_but_all_of_it() {
        for flushes in [false, true] {
            let mut oracle = oracle();
            let ids = begin(&mut oracle);
            ids.iter().for_each(|id| oracle.end_write(*id, true).unwrap());
            assert!(reads(&mut oracle, 0..8, ids[0]));
            if flushes {
                flush(&mut oracle);
            }
            oracle.lose_power();
            oracle.open(B);
            assert_eq!(reads(&mut oracle, 40..48, ZEROES), !flushes);
            oracle.open(C);
            assert_eq!(reads(&mut oracle, 0..8, ids[0]), flushes);
        }
    }

    #[test]
    fn what_an_opening_found_of_one_range_it_found_of_the_other_also_in_a_later_opening() {
        let mut oracle = oracle();
        let ids = begin(&mut oracle);
        oracle.open(B);
        assert!(reads(&mut oracle, 40..48, ids[1]));
        oracle.lose_power();
        oracle.open(C);
        assert!(!reads(&mut oracle, 0..8, ZEROES));
    }
}
