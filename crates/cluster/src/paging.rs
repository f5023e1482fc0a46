//! Lists that come in pages, whoever gives them.
//!
//! A peer that lies may say for ever that there is more. So each page has to go on behind the one before,
//! a page with a next one has to be as full as was asked for, and a list has an end.

/// Entries of one list, at most, where nothing says that it has fewer: more than a mediator or an agent keeps
/// in one place.
pub const LIST_MAX: u64 = 1 << 24;

/// Why the rest of a list is not asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// An entry is not behind the one before it.
    #[error(
        "a page of a list does not go on behind the one before: what sent it is at fault, or lies"
    )]
    Order,
    /// A page has more or fewer entries than was asked for.
    #[error(
        "a page of {found} entries, and {wanted} were asked for: what sent it is at fault, or lies"
    )]
    Count {
        /// Its entries.
        found: usize,
        /// As many were asked for.
        wanted: usize,
    },
    /// It does not end.
    #[error("a list of more than {max} entries: what sent it is at fault, or lies")]
    Endless {
        /// As many it may have.
        max: u64,
    },
}

/// Where one is in a list whose entries have keys `K`, in their order.
#[derive(Debug, Clone)]
pub struct Pages<K> {
    limit: usize,
    last: Option<K>,
    seen: u64,
    max: u64,
}

impl<K: Ord + Clone> Pages<K> {
    /// At the beginning of a list of which pages of `limit` entries are asked for.
    ///
    /// # Panics
    /// When that is none.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self::of_at_most(limit, LIST_MAX)
    }

    /// The same of a list that has no more than `max` entries.
    ///
    /// # Panics
    /// As [`Pages::new`].
    #[must_use]
    pub const fn of_at_most(limit: usize, max: u64) -> Self {
        assert!(limit > 0, "pages of nothing never end");
        Self { limit, last: None, seen: 0, max }
    }

    /// Takes a page with entries of these keys, and says behind which one to go on; nowhere at the end.
    /// `next` is where the page says that one has to go on.
    ///
    /// # Errors
    /// When that would not lead to the end.
    pub fn take(
        &mut self,
        keys: impl IntoIterator<Item = K>,
        next: Option<K>,
    ) -> Result<Option<K>, PageError> {
        let mut found = 0;
        for key in keys {
            if self.last.as_ref().is_some_and(|last| *last >= key) {
                return Err(PageError::Order);
            }
            self.last = Some(key);
            found += 1;
            if found > self.limit {
                return Err(PageError::Count { found, wanted: self.limit });
            }
            self.seen += 1;
        }
        if self.seen > self.max {
            return Err(PageError::Endless { max: self.max });
        }
        match next {
            None => Ok(None),
            Some(_) if found < self.limit => Err(PageError::Count { found, wanted: self.limit }),
            Some(next) if Some(&next) != self.last.as_ref() => Err(PageError::Order),
            Some(next) => Ok(Some(next)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_behind_each_page_and_ends() {
        let mut pages = Pages::new(3);
        assert_eq!(pages.take([1, 2, 3], Some(3)), Ok(Some(3)));
        assert_eq!(pages.take([4, 5, 6], Some(6)), Ok(Some(6)));
        assert_eq!(pages.take([7], None), Ok(None));
        assert_eq!(Pages::<u32>::new(3).take([], None), Ok(None));
    }

    #[test]
    fn a_list_that_leads_nowhere_is_left() {
        let mut again = Pages::new(2);
        assert_eq!(again.take([1, 2], Some(2)), Ok(Some(2)));
        assert_eq!(again.take([1, 2], Some(2)), Err(PageError::Order));
        let count = |found, wanted| Err(PageError::Count { found, wanted });
        assert_eq!(Pages::<u32>::new(2).take([], Some(5)), count(0, 2));
        assert_eq!(Pages::new(2).take([1], Some(1)), count(1, 2));
        assert_eq!(Pages::new(2).take([1, 2, 3], None), count(3, 2));
        // Back, or ahead over what was not shown.
        assert_eq!(Pages::new(2).take([1, 2], Some(1)), Err(PageError::Order));
        assert_eq!(Pages::new(2).take([1, 2], Some(9)), Err(PageError::Order));
        let mut endless = Pages::new(1 << 16);
        let page = |number: u64| (number << 16..(number + 1) << 16, Some(((number + 1) << 16) - 1));
        let taken = (0..=LIST_MAX >> 16).map(|number| endless.take(page(number).0, page(number).1));
        assert_eq!(taken.last(), Some(Err(PageError::Endless { max: LIST_MAX })));
        let mut short = Pages::of_at_most(2, 3);
        assert_eq!(short.take([1, 2], Some(2)), Ok(Some(2)));
        assert_eq!(short.take([3, 4], Some(4)), Err(PageError::Endless { max: 3 }));
    }
}
