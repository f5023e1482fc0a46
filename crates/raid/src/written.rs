//! Which stripes hold data: one bit a stripe, kept on every member.
//!
//! A stripe whose bit is clear reads as zeros, whatever is on the members; so a new array needs
//! no first resync. Invariant: a bit becomes visible to readers only after every live member
//! holds it, and it is sent to the members only after the stripe's chunks are stable.
//!
//! Pages have two slots each; the one not written last is overwritten. Byte map:
//! docs/formats/array.md.

use alloc::{collections::BTreeSet, vec, vec::Vec};

use netraid_block::narrow;

use crate::{
    label::Uuid,
    member::{MemberIndex, MemberSet},
    page::{About, Kind},
    regions::{PAGE_LEN, PAGE_PAYLOAD_LEN, Region},
};

const KIND: Kind =
    Kind { magic: *b"NRWRITN\n", version: 1, what: "page of written bits", len: PAGE_LEN };
/// Images by which a member's page may be ahead of the others': those that are in sync get each image
/// together.
const LEAD_MAX: u64 = 1 << 32;
const BITS_PER_PAGE: u64 = PAGE_PAYLOAD_LEN as u64 * 8;

/// The written bits of all stripes.
#[derive(Debug, Clone)]
pub struct WrittenBits {
    array_uuid: Uuid,
    stripes: u64,
    /// What readers see.
    visible: Vec<u8>,
    /// What the next page images hold.
    staged: Vec<u8>,
    /// Counter of each page's newest image; 0: none was ever seen.
    counters: Vec<u64>,
    /// How many visible bits are set.
    count: u64,
}

/// A page image to be written to every live member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageImage {
    /// Where it goes, relative to the region.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Two members in sync whose images of a page cannot both be the array's, and none of the others can tell
/// which one lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradiction {
    /// The page.
    pub page: u64,
    /// The member whose image is far ahead.
    pub first: MemberIndex,
    /// One of the others.
    pub second: MemberIndex,
}

/// Which members have an image of a page that is far ahead of those of most others: they lie. Each member
/// comes with its region of written bits.
///
/// # Errors
/// When as many say the one as the other.
pub fn liars(
    array_uuid: Uuid,
    stripes: u64,
    region: &Region,
    members: &[(MemberIndex, &[u8])],
) -> Result<MemberSet, Contradiction> {
    let mut counters = Vec::with_capacity(members.len());
    for (member, bytes) in members {
        let mut own = WrittenBits::new(array_uuid, stripes);
        own.offer_all(region, bytes);
        counters.push((*member, own.counters));
    }
    let mut liars = MemberSet::EMPTY;
    for page in 0..page_count(stripes) {
        let counter = |own: &[u64]| own[to_usize(page)];
        let seen = counters.iter().filter(|(_, own)| counter(own) > 0);
        let least = seen.clone().map(|(_, own)| counter(own)).min().unwrap_or(0);
        let is_far = |own: &[u64]| counter(own) - least > LEAD_MAX;
        let (far, near): (Vec<_>, Vec<_>) = seen.partition(|(_, own)| is_far(own));
        match (far.first(), near.first()) {
            (Some(_), Some(_)) if near.len() > far.len() => {
                far.iter().for_each(|(member, _)| liars.insert(*member));
            }
            (Some((first, _)), Some((second, _))) if near.len() == far.len() => {
                return Err(Contradiction { page, first: *first, second: *second });
            }
            // What is behind most others does not count anyhow.
            _ => {}
        }
    }
    Ok(liars)
}

impl WrittenBits {
    /// No stripe written, no page seen.
    #[must_use]
    pub fn new(array_uuid: Uuid, stripes: u64) -> Self {
        let len = to_usize(stripes.div_ceil(8));
        let pages = to_usize(page_count(stripes));
        let (visible, staged) = (vec![0; len], vec![0; len]);
        Self { array_uuid, stripes, visible, staged, counters: vec![0; pages], count: 0 }
    }

    /// How many pages there are.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.counters.len() as u64
    }

    /// Takes a slot's bytes as read from a member; the newest valid image of each page wins.
    /// Returns whether the bytes were a valid image.
    pub fn offer(&mut self, region: &Region, offset: u64, bytes: &[u8]) -> bool {
        let (page, _) = split(offset);
        let Ok((about, bits)) = KIND.decode(bytes, self.array_uuid, region.offset + offset) else {
            return false;
        };
        let counter = about.counter;
        let Some(known) = self.counters.get_mut(to_usize(page)) else { return false };
        if counter > *known {
            *known = counter;
            let range = payload_range(page, self.visible.len());
            let (new, old) = (&bits[..range.len()], &mut self.visible[range.clone()]);
            self.count = self.count - ones(old) + ones(new);
            old.copy_from_slice(new);
            self.staged[range].copy_from_slice(new);
        }
        true
    }

    /// Takes all slots of the region, as read from a member.
    pub fn offer_all(&mut self, region: &Region, bytes: &[u8]) {
        for (slot, bytes) in (0_u64..).zip(bytes.chunks(PAGE_LEN as usize)) {
            self.offer(region, slot * u64::from(PAGE_LEN), bytes);
        }
    }

    /// The first page of which no valid image was seen.
    #[must_use]
    pub fn first_missing(&self) -> Option<u64> {
        self.counters.iter().position(|counter| *counter == 0).map(|page| page as u64)
    }

    /// Whether readers see data in `stripe`.
    #[must_use]
    pub fn get(&self, stripe: u64) -> bool {
        bit(&self.visible, stripe)
    }

    /// How many stripes hold data.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// How many stripes at or after `from` hold data.
    #[must_use]
    pub fn count_from(&self, from: u64) -> u64 {
        let whole = from.div_ceil(8);
        let first = (from..self.stripes.min(whole * 8)).filter(|stripe| self.get(*stripe)).count();
        let rest = self.visible.get(to_usize(whole)..).unwrap_or_default();
        first as u64 + ones(rest)
    }

    /// The first stripe at or after `from` that holds data.
    #[must_use]
    pub fn next_written(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.stripes {
            match self.visible[to_usize(at / 8)] >> (at % 8) {
                0 => at = (at / 8 + 1) * 8,
                rest => return Some(at + u64::from(rest.trailing_zeros())),
            }
        }
        None
    }

    /// Sets or clears the bit for the next images; readers do not see it yet. Returns its page.
    pub fn stage(&mut self, stripe: u64, written: bool) -> u64 {
        assert!(stripe < self.stripes, "stripe {stripe} of {}", self.stripes);
        set_bit(&mut self.staged, stripe, written);
        stripe / BITS_PER_PAGE
    }

    /// Lets readers see the staged bit of `stripe`.
    pub fn publish(&mut self, stripe: u64) {
        let (old, new) = (self.get(stripe), bit(&self.staged, stripe));
        set_bit(&mut self.visible, stripe, new);
        self.count = self.count + u64::from(new) - u64::from(old);
    }

    /// New images of `pages`, in the slots that do not hold the newest ones.
    pub fn images(&mut self, region: &Region, pages: &BTreeSet<u64>) -> Vec<PageImage> {
        pages.iter().map(|page| self.image(region, *page)).collect()
    }

    fn image(&mut self, region: &Region, page: u64) -> PageImage {
        let counter = self.counters[to_usize(page)] + 1;
        self.counters[to_usize(page)] = counter;
        let offset = (page * 2 + counter % 2) * u64::from(PAGE_LEN);
        let range = payload_range(page, self.staged.len());
        let (about, place) =
            (About { index: page, counter, ..About::default() }, region.offset + offset);
        let bytes = KIND.encode(about, self.array_uuid, place, &self.staged[range]);
        PageImage { offset, bytes }
    }
}

/// How many pages hold one bit for each stripe.
#[must_use]
pub const fn page_count(stripes: u64) -> u64 {
    stripes.div_ceil(BITS_PER_PAGE)
}

/// Page and slot at an offset into the region.
const fn split(offset: u64) -> (u64, u64) {
    let slot = offset / PAGE_LEN as u64;
    (slot / 2, slot % 2)
}

/// The bytes of a bitmap of `len` bytes that page `page` holds.
fn payload_range(page: u64, len: usize) -> core::ops::Range<usize> {
    let start = to_usize(page * u64::from(PAGE_PAYLOAD_LEN));
    start..len.min(start + PAGE_PAYLOAD_LEN as usize)
}

fn ones(bits: &[u8]) -> u64 {
    bits.iter().map(|byte| u64::from(byte.count_ones())).sum()
}

fn bit(bits: &[u8], at: u64) -> bool {
    bits[to_usize(at / 8)] >> (at % 8) & 1 == 1
}

fn set_bit(bits: &mut [u8], at: u64, value: bool) {
    let byte = &mut bits[to_usize(at / 8)];
    *byte = *byte & !(1 << (at % 8)) | u8::from(value) << (at % 8);
}

/// Sizes in memory fit the machine's word, or the array could not be opened on it.
#[track_caller]
fn to_usize(value: u64) -> usize {
    narrow(value)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const REGION: Region = Region { offset: 65536, len: 1 << 20 };

    #[test]
    fn bits_become_visible_when_published_and_survive_in_pages() {
        let mut bits = WrittenBits::new([1; 16], 100_000);
        assert_eq!(bits.pages(), 4);
        let pages: BTreeSet<u64> =
            [3, 40_000, 99_999].into_iter().map(|stripe| bits.stage(stripe, true)).collect();
        assert!(!bits.get(3) && bits.next_written(0).is_none());
        [3, 40_000, 99_999].into_iter().for_each(|stripe| bits.publish(stripe));
        assert_eq!((bits.count(), bits.next_written(4)), (3, Some(40_000)));
        let images = bits.images(&REGION, &pages);
        let mut copy = WrittenBits::new([1; 16], 100_000);
        for image in &images {
            assert!(copy.offer(&REGION, image.offset, &image.bytes));
            assert!(!copy.offer(&REGION, image.offset ^ 4096, &image.bytes), "another slot");
        }
        assert_eq!((copy.count(), copy.first_missing()), (3, Some(2)));
        assert!(copy.get(99_999));
    }

    /// The region of a member that has seen so many images of each page.
    pub(crate) fn region_of(
        array_uuid: Uuid,
        stripes: u64,
        region: &Region,
        images: &[u64],
    ) -> Vec<u8> {
        let mut bytes = vec![0; images.len() * 2 * PAGE_LEN as usize];
        for (page, images) in (0..).zip(images) {
            let mut bits = WrittenBits::new(array_uuid, stripes);
            bits.counters[to_usize(page)] = images - 1;
            let image = bits.image(region, page);
            let at = to_usize(image.offset);
            bytes[at..at + PAGE_LEN as usize].copy_from_slice(&image.bytes);
        }
        bytes
    }

    fn region_after(images: [u64; 2]) -> Vec<u8> {
        region_of([1; 16], 40_000, &REGION, &images)
    }

    #[test]
    fn a_member_whose_page_is_far_ahead_of_the_others_lies() {
        let judge = |members: &[[u64; 2]]| {
            let regions: Vec<Vec<u8>> = members.iter().map(|one| region_after(*one)).collect();
            let members = (0..).map(MemberIndex).zip(regions.iter().map(Vec::as_slice));
            liars([1; 16], 40_000, &REGION, &members.collect::<Vec<_>>())
        };
        let only = |member| Ok([MemberIndex(member)].into_iter().collect());
        assert_eq!(judge(&[[3, 8], [4, 8], [4, 7]]), Ok(MemberSet::EMPTY));
        assert_eq!(judge(&[[3, 8], [1 << 60, 8], [4, 7]]), only(1));
        assert_eq!(judge(&[[3, 8], [4, 8], [4, 9 + LEAD_MAX]]), only(2));
        // One that is far behind is not believed anyhow.
        assert_eq!(judge(&[[3 + (1 << 40), 8], [4, 8], [4 + (1 << 40), 7]]), Ok(MemberSet::EMPTY));
        let (first, second) = (MemberIndex(1), MemberIndex(0));
        assert_eq!(judge(&[[3, 8], [3, 1 << 59]]), Err(Contradiction { page: 1, first, second }));
    }

    #[test]
    fn stripes_with_data_are_counted_from_any_stripe_on() {
        let mut bits = WrittenBits::new([1; 16], 50);
        for stripe in [0, 3, 8, 9, 31, 49] {
            bits.stage(stripe, true);
            bits.publish(stripe);
        }
        for from in 0..=50 {
            let expected = (from..50).filter(|stripe| bits.get(*stripe)).count() as u64;
            assert_eq!(bits.count_from(from), expected, "from {from}");
        }
    }

    #[test]
    fn the_newest_image_of_a_page_wins_and_a_torn_one_is_ignored() {
        let mut bits = WrittenBits::new([1; 16], 50);
        bits.stage(7, true);
        let old = bits.images(&REGION, &BTreeSet::from([0]));
        bits.stage(7, false);
        let mut new = bits.images(&REGION, &BTreeSet::from([0]));
        assert_ne!(old[0].offset, new[0].offset, "the newest image is never overwritten");
        let mut copy = WrittenBits::new([1; 16], 50);
        copy.offer(&REGION, new[0].offset, &new[0].bytes);
        copy.offer(&REGION, old[0].offset, &old[0].bytes);
        assert!(!copy.get(7));
        new[0].bytes[100] ^= 1;
        let mut copy = WrittenBits::new([1; 16], 50);
        assert!(!copy.offer(&REGION, new[0].offset, &new[0].bytes));
        assert!(copy.offer(&REGION, old[0].offset, &old[0].bytes));
        assert!(copy.get(7));
    }
}
