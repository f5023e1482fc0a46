//! The tables on the members: what a checkpoint writes, and what is loaded when an array is
//! opened.
//!
//! Invariant: a page's image is written from a state that is stable, into the slot that does not
//! hold the newest one, which all holders have by then: who finds that one lacks it, because a
//! checkpoint was cut short or a copy is spoilt, gives it that first.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, SgList, narrow};

use super::{
    state::State,
    suspects::{LIARS_MAX, nobody_can_tell},
    tasks::Array,
};
use crate::{
    checkpoint::Checkpoint,
    log::Beginnings,
    member::{MemberIndex, MemberSet},
    page::{ImageKey, PageError},
    pages::{PAIR_LEN, TablePages},
    planted::{Planted, planted},
    regions::PAGE_LEN,
    stripes::StripePage,
    sums::SumPage,
};

/// Page images under way at a time.
const PAGES_AT_ONCE: usize = 256;
/// Rounds beyond the last checkpoint's that an image may be of and still be believed in that: others are not
/// counted on from. What this array writes must be believed, too: [`ROUND_LEAD_FOUND`].
pub(super) const ROUND_LEAD_MAX: u32 = 1 << 12;
/// The same of images and checkpoints that are found when an array is opened: its rounds are numbered after them.
pub(super) const ROUND_LEAD_FOUND: u32 = ROUND_LEAD_MAX / 2;
/// Rounds that one opening goes on at most until its first checkpoint, after those that it finds.
const ROUNDS_PER_OPENING: u32 = 8;
/// Rounds of one opening, at most, until the first checkpoint of its own, and those that it leaves out.
pub(super) const ROUNDS_OPEN_MAX: u32 = 64;
/// The largest number of uncounted images that an image may tell of and still be believed: each opening that is cut
/// short makes one image, and no array is opened so often. The next image after the last one that is believed still
/// has a number that fits.
const UNCOUNTED_MAX: u32 = 1 << 31;
/// Bytes of a table that are read at once when an array is opened.
const LOAD_LEN: u64 = 1 << 20;

/// Images of a page of the stripe table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Images {
    /// The newest one.
    pub(super) newest: ImageKey,
    /// How many the last checkpoint counted.
    pub(super) counted: u64,
}

impl State {
    /// The number of images of the stripe table's pages, all together. It may wrap around.
    pub(super) fn count_images(&self, which: impl Fn(&Images) -> u64) -> u64 {
        self.stripe_images.iter().map(which).fold(0, u64::wrapping_add)
    }
}

/// Pages as they were at one moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    stripes: Vec<StripePage>,
    sums: Vec<SumPage>,
}

impl Snapshot {
    pub(super) fn is_empty(&self) -> bool {
        self.stripes.is_empty() && self.sums.is_empty()
    }
}

impl Array {
    /// All pages that changed since this was called last, as they are now, at the end of the round
    /// that is `closed` by that. Whoever calls writes them when everything is stable that is acknowledged now.
    pub(super) fn take_snapshot(&self, closed: u32) -> Snapshot {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut snapshot = Snapshot::default();
        for index in state.stripes.take_changed_pages() {
            let at: usize = narrow(index);
            let Images { newest, counted } = state.stripe_images[at];
            // No more than `UNCOUNTED_MAX` when it was loaded, and each checkpoint counts those since.
            let uncounted = narrow(newest.counter + 1 - counted);
            let entries = state.stripes.page(index);
            let counter = newest.counter + 1;
            snapshot.stripes.push(StripePage { index, counter, round: closed, uncounted, entries });
        }
        for page in core::mem::take(&mut state.sums.changed) {
            // Kept until it is written: what is on the members is older meanwhile.
            state.sums.pin(page);
            if let Some(cached) = state.sums.pages.get(&page) {
                let mut page = cached.page.clone();
                page.counter = cached.image.counter + 1;
                page.round = closed;
                snapshot.sums.push(page);
            }
        }
        snapshot
    }

    /// Writes a snapshot to all holders of its pages. It is not stable then.
    pub(super) async fn write_snapshot(&self, snapshot: Snapshot) {
        let (uuid, format, stripe_table, sum_table) = {
            let state = self.state();
            let layout = &state.layout;
            (state.label.array_uuid, layout.format, layout.stripe_pages, layout.sum_pages)
        };
        for pages in snapshot.stripes.chunks(PAGES_AT_ONCE) {
            let places = pages.iter().map(|page| (page, page.index, page.counter));
            self.write_images(stripe_table, places, |page, at| page.encode(format, uuid, at)).await;
            let mut state = self.state();
            for page in pages {
                let at: usize = narrow(page.index);
                state.stripe_images[at].newest = page.key();
            }
        }
        for pages in snapshot.sums.chunks(PAGES_AT_ONCE) {
            let places = pages.iter().map(|page| (page, page.index, page.counter));
            self.write_images(sum_table, places, |page, at| page.encode(uuid, at)).await;
            let mut state = self.state();
            for page in pages {
                if let Some(cached) = state.sums.pages.get_mut(&page.index) {
                    cached.image = page.key();
                }
                state.sums.unpin(page.index);
            }
        }
    }

    /// Writes images of pages, each with its index and counter, to all of their holders.
    async fn write_images<'a, P: 'a>(
        &self,
        table: TablePages,
        pages: impl Iterator<Item = (&'a P, u64, u64)>,
        encode: impl Fn(&P, u64) -> Vec<u8>,
    ) {
        let mut writes = Vec::new();
        for (page, index, counter) in pages {
            for holder in table.holders(index).iter() {
                let at = table.slot_offset(index, holder, counter);
                let data = Buf::copy_from(&encode(page, at)).into();
                writes.push(self.write_member(holder, at, data));
            }
        }
        join_all(writes).await;
    }

    /// The images of a page on its holders in sync, as `decode` finds them in what a holder has at an offset.
    ///
    /// While they are read, who was asked may leave, or turn out to lack the newest one, and another one may have
    /// caught up, which has it: whoever is in sync by then is asked too, and who stays is asked again, for what was read
    /// badly there may be read better, and is needed now. Nowhere is only what none of them has.
    pub(super) async fn read_images<I>(
        &self,
        table: TablePages,
        page: u64,
        decode: impl Fn(MemberIndex, &[u8], u64) -> Vec<I>,
    ) -> Vec<(MemberIndex, Vec<I>)> {
        let most = if planted(Planted::PageFromOneCopy) { 1 } else { usize::MAX };
        let mut found: Vec<(MemberIndex, Vec<I>)> = Vec::new();
        let mut left = MemberSet::EMPTY;
        loop {
            let in_sync = self.state().in_sync();
            let asked = found.iter().map(|(asked, _)| *asked);
            let gone: MemberSet = asked.filter(|asked| !in_sync.contains(*asked)).collect();
            if !gone.without(left).is_empty() {
                found.retain(|(asked, _)| gone.contains(*asked));
            }
            left = gone;
            let is_new = |holder: &MemberIndex| {
                in_sync.contains(*holder) && found.iter().all(|(asked, _)| asked != holder)
            };
            let new = table.holders(page).iter().filter(is_new).take(most - found.len());
            let decode = &decode;
            let reads = new.map(|holder| async move {
                let offset = table.offset(page, holder);
                let pair = self.read_pair(holder, offset).await;
                (holder, pair.map_or_else(Vec::new, |pair| decode(holder, &pair, offset)))
            });
            let reads: Vec<_> = reads.collect();
            if reads.is_empty() {
                return found;
            }
            found.extend(join_all(reads).await);
        }
    }

    /// Writes a checkpoint to all live members. It is stable then.
    pub(super) async fn write_checkpoint(&self, checkpoint: &Checkpoint) {
        let (uuid, members): (_, Vec<MemberIndex>) = {
            let state = self.state();
            (state.label.array_uuid, state.layout.geometry.member_indices().collect())
        };
        let data: SgList = Buf::copy_from(&checkpoint.encode(uuid)).into();
        let offset = checkpoint.offset();
        let writes = members
            .into_iter()
            .map(|member| self.write_member_stable(member, offset, data.clone()));
        join_all(writes).await;
    }

    /// Takes in the whole stripe table, as it was at a checkpoint or is newer.
    ///
    /// # Errors
    /// As [`Self::read_stripes`].
    pub(super) async fn load_stripes(&self, base: &Checkpoint) -> Result<(), IoError> {
        let FoundStripes { newest, unreadable, last_round } = self.read_stripes(base).await?;
        let (table, format, members, uuid) = {
            let state = self.state();
            let layout = &state.layout;
            (layout.stripe_pages, layout.format, state.in_sync(), state.label.array_uuid)
        };
        let is_over = |page: &StripePage| page.round <= base.round;
        let lacking: Vec<(&StripePage, MemberIndex)> = newest
            .values()
            .filter(|(page, _)| is_over(page))
            .flat_map(|(page, have)| {
                let holders = table.holders(page.index).iter();
                let lack = |one: &MemberIndex| members.contains(*one) && !have.contains(*one);
                holders.filter(lack).map(move |holder| (page, holder))
            })
            .collect();
        for some in lacking.chunks(PAGES_AT_ONCE) {
            let writes = some.iter().map(|(page, holder)| {
                let at = table.slot_offset(page.index, *holder, page.counter);
                let image = Buf::copy_from(&page.encode(format, uuid, at)).into();
                self.write_member(*holder, at, image)
            });
            join_all(writes).await;
        }
        let mut state = self.state();
        // Images of a round that was cut short have numbers that are given again: by their rounds they are told from
        // what is written from now on.
        state.round = state.round.max(last_round.saturating_add(3));
        for (index, (page, _)) in newest {
            let at: usize = narrow(index);
            let counted = page.counted(base.round);
            state.stripe_images[at] = Images { newest: page.key(), counted };
            // An image of a round that was cut short gives its number alone: the log has its contents, if they are
            // true.
            if is_over(&page) {
                state.stripes.load(&page);
            }
        }
        for index in unreadable {
            state.stripes.note_page(index);
        }
        Ok(())
    }

    /// Reads the whole stripe table: the image of each page that counts, and who has it. A member without
    /// whose images they add up is not believed.
    ///
    /// # Errors
    /// When the newest image of a page is nowhere: what it said of its stripes cannot be known. When
    /// members contradict each other, and it is not clear which one lies.
    pub(super) async fn read_stripes(&self, base: &Checkpoint) -> Result<FoundStripes, IoError> {
        let members = self.state().in_sync();
        let error = match self.read_stripes_of(base, members).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::Unsupported {
            return Err(error);
        }
        for size in 1..=LIARS_MAX {
            let mut without: Option<(MemberSet, FoundStripes)> = None;
            // Not in the loop's head: the state would be held while members are waited for.
            let suspects = self.state().who_may_lie(members, size);
            for liars in suspects {
                let rest = members.without(liars);
                let Ok(found) = self.read_stripes_of(base, rest).await else { continue };
                if let Some((others, _)) = without.replace((liars, found)) {
                    return Err(nobody_can_tell(others, liars, "the stripe table", &error));
                }
            }
            if let Some((liars, found)) = without {
                let why = "what it has of the stripe table contradicts the others";
                liars.iter().for_each(|liar| self.state().leave_out(liar, why));
                return Ok(found);
            }
        }
        Err(error)
    }

    /// As [`Self::read_stripes`], of these members.
    pub(super) async fn read_stripes_of(
        &self,
        base: &Checkpoint,
        members: MemberSet,
    ) -> Result<FoundStripes, IoError> {
        let (table, format, pages, uuid) = {
            let state = self.state();
            let (layout, pages) = (&state.layout, state.stripes.pages());
            (layout.stripe_pages, layout.format, pages, state.label.array_uuid)
        };
        let next_number = self.next_number_of(base, members).await?;
        let region = table.region_len(pages);
        let mut images = StripeImages { round: base.round, ..StripeImages::default() };
        let mut unreadable = BTreeSet::new();
        let mut from = 0;
        while from < region {
            let len = LOAD_LEN.min(region - from);
            let most = if planted(Planted::PageFromOneCopy) { 1 } else { usize::MAX };
            let reads = members.iter().take(most).map(|member| async move {
                (member, self.read_table(member, table.region_offset + from, len).await)
            });
            for (member, (bytes, is_whole)) in join_all(reads).await {
                if !is_whole {
                    let here = table.region_offset + from..table.region_offset + from + len;
                    let held = (0..pages).filter(|page| table.holders(*page).contains(member));
                    let is_here = |page: &u64| here.contains(&table.offset(*page, member));
                    unreadable.extend(held.filter(is_here));
                }
                for (place, bytes) in bytes {
                    let page = match StripePage::decode(&bytes, format, uuid, place) {
                        Ok(page) => page,
                        Err(PageError::Later { .. }) => {
                            if let Some((page, key)) =
                                StripePage::later(&bytes, format, uuid, place)
                            {
                                images.add_later(page, key, member);
                            }
                            continue;
                        }
                        Err(
                            PageError::Absent(_)
                            | PageError::Version { .. }
                            | PageError::Field { .. },
                        ) => continue,
                    };
                    if page.index < pages {
                        images.add(page, member, next_number);
                    }
                }
            }
            from += len;
        }
        let later = images.with_later();
        // One that says so alone lies, where the others do without it.
        if later.len() > LIARS_MAX {
            let text = "stripes are shared with snapshots, or have another width, which this program does not know; use a \
                        later version";
            return Err(IoError::with_detail(ErrorKind::Unsupported, text));
        }
        let last_round = images.last_round;
        let newest = images.choose(&mut unreadable)?;
        let found = count_all(newest.values().map(|(page, _)| page.counted(base.round)));
        if found == base.stripe_images.into() || planted(Planted::PageFromOneCopy) {
            return Ok(FoundStripes { newest, unreadable, last_round });
        }
        let hint = match later.is_empty() {
            true => "",
            false => {
                "; or use a later version of the program, which shared stripes with snapshots or widened them"
            }
        };
        let text = alloc::format!(
            "of the {} images that the pages of the stripe table have had {found} are found: the \
             newest ones of some pages are on no member that is there; {}{hint}",
            base.stripe_images,
            self.state().remedy_of_lost_tables(),
        );
        Err(IoError::with_detail(ErrorKind::Redundancy, text))
    }

    /// Slots of a table, with their places; those that cannot be read are left out, and whether there
    /// are none of these.
    async fn read_table(
        &self,
        member: MemberIndex,
        offset: u64,
        len: u64,
    ) -> (Vec<(u64, Buf)>, bool) {
        let whole = narrow(len);
        let places = (0..len / u64::from(PAGE_LEN)).map(|at| offset + at * u64::from(PAGE_LEN));
        match self.read_member(member, offset, whole, false).await {
            Ok(data) => {
                let slot = |(at, place)| {
                    let from = at * PAGE_LEN as usize;
                    (place, data.slice(from..from + PAGE_LEN as usize).to_contiguous())
                };
                (places.enumerate().map(slot).collect(), true)
            }
            Err(_) => {
                let mut found = Vec::new();
                for place in places.step_by(2) {
                    if let Some(pair) = self.read_pair(member, place).await {
                        let half = PAGE_LEN as usize;
                        found.push((place, pair.slice(0..half)));
                        found.push((place + u64::from(PAGE_LEN), pair.slice(half..2 * half)));
                    }
                }
                (found, false)
            }
        }
    }
}

/// All images together. Forged numbers must not wrap around to the right one.
fn count_all(counts: impl Iterator<Item = u64>) -> u128 {
    counts.map(u128::from).sum()
}

/// The stripe table as it is on the members.
pub(super) struct FoundStripes {
    /// By index: the newest image, and who has it.
    newest: BTreeMap<u64, (StripePage, MemberSet)>,
    /// Pages of which something may be newer that could not be read: it must not come to light
    /// later, so these are written again.
    unreadable: BTreeSet<u64>,
    /// The last round of which there is an image, whether it was cut short or not.
    last_round: u32,
}

/// Images of the pages of the stripe table, as they are found.
#[derive(Default)]
struct StripeImages {
    /// The last round that is over.
    round: u32,
    /// The last round of which there is an image.
    last_round: u32,
    /// By index: the newest image of a round that is over, and who has it.
    counted: BTreeMap<u64, (StripePage, MemberSet)>,
    /// The newest image of a round that was cut short, and who has it.
    uncounted: BTreeMap<u64, (StripePage, MemberSet)>,
    /// Pages of which there is an image that cannot be: they are written again.
    forged: BTreeSet<u64>,
    /// By index: the newest image that only a later version knows, of a round that is over, and the members that have
    /// one.
    later: BTreeMap<u64, (ImageKey, MemberSet)>,
    /// A page of which two members have different images under one number.
    contradicted: Option<(u64, MemberSet)>,
}

impl StripeImages {
    /// Takes in an image that a member has. `next_number` is what the next snapshot will have: no stripe is born later.
    fn add(&mut self, page: StripePage, member: MemberIndex, next_number: u32) {
        let is_over = page.round <= self.round;
        if page.entries.last_born() > next_number || (!is_over && page.uncounted > UNCOUNTED_MAX) {
            self.forged.insert(page.index);
            return;
        }
        if page.round <= self.round.saturating_add(ROUND_LEAD_FOUND) {
            self.last_round = self.last_round.max(page.round);
        }
        let images = if is_over { &mut self.counted } else { &mut self.uncounted };
        let own: MemberSet = core::iter::once(member).collect();
        match images.get_mut(&page.index) {
            Some((known, have)) if *known == page => have.insert(member),
            Some((known, have)) if known.key() == page.key() => {
                have.insert(member);
                if is_over {
                    self.contradicted = Some((page.index, *have));
                }
            }
            Some((known, _)) if known.key() > page.key() => {}
            Some(slot) => *slot = (page, own),
            None => {
                images.insert(page.index, (page, own));
            }
        }
    }

    /// Takes in that a member has an image that only a later version knows. What a round wrote that was cut short is in
    /// the log, too.
    fn add_later(&mut self, page: u64, key: ImageKey, member: MemberIndex) {
        if key.round > self.round {
            return;
        }
        let (newest, members) = self.later.entry(page).or_default();
        *newest = key.max(*newest);
        members.insert(member);
    }

    /// Members with images that only a later version knows, of pages of which no newer one is known: one that was
    /// written over says nothing.
    fn with_later(&self) -> MemberSet {
        let is_newest = |page: &u64, key: &ImageKey| {
            self.counted.get(page).is_none_or(|(known, _)| known.key() < *key)
        };
        let newest = self.later.iter().filter(|(page, (key, _))| is_newest(page, key));
        newest.flat_map(|(_, (_, members))| members.iter()).collect()
    }

    /// The image of each page that counts. What a round wrote that was cut short is in the log, too: so the image
    /// before it is as good, and one member alone has not made it. It is written over by the next one. Where
    /// there is none before it, its number alone is used.
    fn choose(
        self,
        written_again: &mut BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, (StripePage, MemberSet)>, IoError> {
        if let Some((index, members)) = self.contradicted {
            let members: Vec<MemberIndex> = members.iter().collect();
            let text = alloc::format!(
                "page {index} of the stripe table is not the same on members {members:?}, under one number"
            );
            return Err(IoError::with_detail(ErrorKind::Corrupt, text));
        }
        written_again.extend(self.forged);
        let mut chosen = self.counted;
        for (index, image) in self.uncounted {
            written_again.insert(index);
            chosen.entry(index).or_insert(image);
        }
        Ok(chosen)
    }
}

/// The same of PARITY that the n-th generation of the log has written, from 0: it went on from such images, or from
/// what those before it have written. So what a member forges there is bounded, and the next one still goes on.
pub(super) const fn round_lead_logged(nth: usize) -> u32 {
    assert!(nth < Beginnings::MAX, "a log has so many generations at most");
    #[expect(clippy::cast_possible_truncation, reason = "less than that")]
    let openings = nth as u32 + 1;
    ROUND_LEAD_FOUND + ROUNDS_PER_OPENING * openings
}

const _: () = assert!(
    round_lead_logged(Beginnings::MAX - 1) + ROUNDS_OPEN_MAX <= ROUND_LEAD_MAX,
    "what is written after the log's rounds is believed"
);
const _: () = assert!(LOAD_LEN.is_multiple_of(PAIR_LEN), "pairs are read whole");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::COUNTER_MAX;

    #[test]
    fn forged_numbers_of_images_do_not_add_up_to_the_right_one() {
        let honest = [7, 5, 9];
        let forged = [COUNTER_MAX; 16].into_iter().chain(honest);
        assert_eq!(count_all(honest.into_iter()), 21);
        assert_ne!(count_all(forged), 21);
    }
}
