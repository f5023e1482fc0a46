//! Where the pages of a table stand: each on a few neighbouring members, other ones for each page,
//! in two slots. The stripe table and the checksums are kept so.
//!
//! Invariant: no two slots overlap, and a member's slots have no gaps but in its last group.

use crate::{
    copies::Copies,
    geometry::Geometry,
    member::{MemberIndex, MemberSet},
    regions::PAGE_LEN,
};

/// Bytes of a page's pair of slots.
pub const PAIR_LEN: u64 = 2 * PAGE_LEN as u64;

/// A table's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePages {
    /// Who holds copies.
    pub copies: Copies,
    /// First byte of the table's region on each member.
    pub region_offset: u64,
}

impl TablePages {
    /// A table of an array of that shape, in the region that begins there.
    #[must_use]
    pub fn new(geometry: &Geometry, region_offset: u64) -> Self {
        Self { copies: Copies::new(geometry), region_offset }
    }

    /// Who holds a page.
    #[must_use]
    pub fn holders(&self, page: u64) -> MemberSet {
        self.copies.holders(page)
    }

    /// First byte of a page's pair of slots on a member that holds it.
    ///
    /// # Panics
    /// When the member does not hold it.
    #[must_use]
    pub fn offset(&self, page: u64, member: MemberIndex) -> u64 {
        let Some(rank) = self.copies.rank(page, member) else {
            panic!("member {member} does not hold page {page}")
        };
        let before = page / u64::from(self.copies.groups());
        let local = before * u64::from(self.copies.groups_of_each()) + u64::from(rank);
        self.region_offset + local * PAIR_LEN
    }

    /// First byte of the slot that the image with counter `counter` goes to.
    ///
    /// # Panics
    /// When the member does not hold the page.
    #[must_use]
    pub fn slot_offset(&self, page: u64, member: MemberIndex, counter: u64) -> u64 {
        self.offset(page, member) + counter % 2 * u64::from(PAGE_LEN)
    }

    /// Bytes that `pages` pages take on a member at most.
    #[must_use]
    pub const fn region_len(&self, pages: u64) -> u64 {
        let groups = pages.div_ceil(self.copies.groups() as u64);
        groups * self.copies.groups_of_each() as u64 * PAIR_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn pages_stand_densely_on_as_many_neighbours_as_there_are_copies() {
        for members in 1..=9_u8 {
            for copies in 1..=members {
                let of = Copies::neighbours(members, copies);
                let table = TablePages { copies: of, region_offset: 1 << 20 };
                for pages in [1_u64, 2, u64::from(members), 50, 51] {
                    let mut taken = BTreeSet::new();
                    for page in 0..pages {
                        let holders = table.holders(page);
                        assert_eq!(holders.len(), copies.into());
                        let first = u8::try_from(page % u64::from(members)).unwrap();
                        for at in 0..copies {
                            assert!(holders.contains(MemberIndex((first + at) % members)));
                        }
                        for holder in holders.iter() {
                            let offset = table.offset(page, holder);
                            assert!(taken.insert((holder, offset)), "two pages in one place");
                            assert_eq!((offset - (1 << 20)) % PAIR_LEN, 0);
                            assert!(offset + PAIR_LEN <= (1 << 20) + table.region_len(pages));
                            assert_eq!(table.slot_offset(page, holder, 8), offset);
                            assert_eq!(table.slot_offset(page, holder, 9), offset + 4096);
                        }
                    }
                    let room = table.region_len(pages) / PAIR_LEN * u64::from(members);
                    let gaps = room - pages * u64::from(copies);
                    assert!(gaps < u64::from(members) * u64::from(copies), "only the last group");
                }
            }
        }
    }

    #[test]
    fn whoever_may_be_lost_leaves_a_holder() {
        let table = TablePages { copies: Copies::neighbours(6, 3), region_offset: 0 };
        for (page, lost) in (0..12).flat_map(|page| (0..1_u32 << 6).map(move |lost| (page, lost))) {
            if lost.count_ones() < 3 {
                assert!(table.holders(page).iter().any(|holder| lost >> holder.0 & 1 == 0));
            }
        }
    }

    #[test]
    #[should_panic(expected = "does not hold page 3")]
    fn who_does_not_hold_a_page_has_no_place_for_it() {
        let table = TablePages { copies: Copies::neighbours(4, 2), region_offset: 0 };
        let _ = table.offset(3, MemberIndex(1));
    }
}
