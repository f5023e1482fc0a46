//! Which disks take part in a request.
//!
//! Invariant: no more disks are missing from a stripe than its level survives; the configuration
//! was checked for it. Knows nothing of where data is: that is [`crate::layout`]'s.

/// The disks that are there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Presence {
    /// The first so many disks are not.
    away: usize,
    /// Of the next disk, while it is rebuilt: the stripes below this one are done.
    rebuilt_below: Option<u64>,
}

impl Presence {
    /// All disks but the first `away`.
    pub(crate) const fn without(away: usize) -> Self {
        Self { away, rebuilt_below: None }
    }

    /// The same, with the next disk rebuilt up to a stripe.
    pub(crate) const fn rebuilt_below(self, stripe: u64) -> Self {
        Self { rebuilt_below: Some(stripe), ..self }
    }

    /// Whether every disk has all that it should have.
    pub(crate) const fn is_whole(self) -> bool {
        self.away == 0 && self.rebuilt_below.is_none()
    }

    /// Whether `disk` has what it should have of a stripe.
    pub(crate) const fn is_readable(self, disk: usize, stripe: u64) -> bool {
        match self.rebuilt_below {
            Some(below) if disk == self.away => stripe < below,
            Some(_) | None => disk >= self.away,
        }
    }

    /// Whether `disk` takes writes; one that is rebuilt does.
    pub(crate) const fn is_written(self, disk: usize) -> bool {
        disk >= self.away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_rebuilt_is_read_where_it_is_done_and_written_everywhere() {
        let presence = Presence::without(1).rebuilt_below(10);
        assert!(!presence.is_readable(0, 0) && !presence.is_written(0));
        assert!(presence.is_readable(1, 9) && !presence.is_readable(1, 10));
        assert!(presence.is_written(1) && presence.is_readable(2, 10));
        assert!(!presence.is_whole() && !Presence::without(0).rebuilt_below(10).is_whole());
        assert!(Presence::without(0).is_whole());
    }
}
