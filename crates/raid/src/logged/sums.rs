//! Checksums in memory: pages that are loaded when they are needed, kept while they are in use or
//! not written yet, and forgotten when there are too many.
//!
//! Invariant: a page in memory says what is, or will be, on the media when all that was begun has
//! ended; a page on the media says what was stable when its image was taken.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Range;

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, narrow};

use super::{
    Event, Rule,
    state::State,
    tables::ROUND_LEAD_MAX,
    tasks::{Array, Change},
};
use crate::{
    lack::Lack,
    member::{MEMBERS_MAX, MemberIndex},
    page::ImageKey,
    pages::PAIR_LEN,
    regions::PAGE_LEN,
    sums::SumPage,
};

/// So much more than the round and the array's generation an image's counter may be; it never is.
const COUNTER_LEAD_MAX: u64 = 1 << 12;

#[derive(Debug)]
pub(super) struct Cached {
    pub(super) page: SumPage,
    /// Its newest image, which all holders have.
    pub(super) image: ImageKey,
    pub(super) pins: u32,
    /// Used since the hand passed.
    used: bool,
    /// Rows of mapped stripes whose checksums no member has any more.
    lost: BTreeSet<u32>,
}

#[derive(Debug, Default)]
pub(super) struct SumCache {
    pub(super) pages: BTreeMap<u64, Cached>,
    pub(super) changed: BTreeSet<u64>,
    loading: BTreeSet<u64>,
    hand: u64,
}

/// Pages of a stripe's checksums, kept in memory.
pub(super) struct PinnedSums {
    array: Array,
    pages: Range<u64>,
}

impl Drop for PinnedSums {
    fn drop(&mut self) {
        let mut state = self.array.state();
        for page in self.pages.clone() {
            state.sums.unpin(page);
        }
        let limit = state.layout.limits.sum_pages;
        state.sums.shrink(limit);
    }
}

impl SumCache {
    pub(super) fn pin(&mut self, page: u64) -> bool {
        match self.pages.get_mut(&page) {
            Some(cached) => {
                cached.pins += 1;
                cached.used = true;
                true
            }
            None => false,
        }
    }

    pub(super) fn unpin(&mut self, page: u64) {
        if let Some(cached) = self.pages.get_mut(&page) {
            cached.pins -= 1;
        }
    }

    /// Forgets pages that nobody uses while there are more than `limit`: those first that were
    /// not used since they were looked at last.
    fn shrink(&mut self, limit: usize) {
        let mut looked_at = 0;
        while self.pages.len() > limit && looked_at < 2 * limit + 16 {
            looked_at += 1;
            let next = self.pages.range(self.hand..).next().or_else(|| self.pages.iter().next());
            let Some((page, cached)) = next else { return };
            let (page, used) = (*page, cached.used);
            let keep = cached.pins > 0 || self.changed.contains(&page);
            self.hand = page + 1;
            if keep {
                continue;
            }
            if used {
                if let Some(cached) = self.pages.get_mut(&page) {
                    cached.used = false;
                }
            } else {
                self.pages.remove(&page);
            }
        }
    }
}

impl State {
    fn sum_pages_of(&self, physical: u32) -> Range<u64> {
        let layout = self.layout.sum_layout;
        let first = layout.place(u64::from(physical), 0).page;
        let last = layout.place(u64::from(physical), self.layout.rows - 1).page;
        first..last + 1
    }

    /// As [`Self::sums_of_row`], to be kept.
    pub(super) fn row_sums(&self, physical: u32, row: u32) -> Result<Option<Vec<u32>>, IoError> {
        Ok(self.sums_of_row(physical, row)?.map(<[u32]>::to_vec))
    }

    /// A row's checksums by column, data columns first; none when it was never written. Its
    /// stripe's pages are pinned.
    pub(super) fn sums_of_row(&self, physical: u32, row: u32) -> Result<Option<&[u32]>, IoError> {
        let place = self.layout.sum_layout.place(u64::from(physical), row);
        let Some(cached) = self.sums.pages.get(&place.page) else {
            unreachable!("checksums of stripe {physical} are used and not pinned")
        };
        if cached.lost.contains(&place.row) {
            let text = alloc::format!(
                "checksums of physical stripe {physical}, row {row}, are lost on all members that \
                 held them (page {}); what is there cannot be trusted",
                place.page,
            );
            return Err(IoError::with_detail(ErrorKind::Corrupt, text));
        }
        Ok(cached.page.row(place.row))
    }

    /// A stripe changes in this round, and with it the pages of its checksums, which are pinned:
    /// each has an image at least as new as what it tells of.
    pub(super) fn touch(&mut self, physical: u32) {
        let round = self.round;
        self.stripes.touch(physical, round);
        let pages = self.sum_pages_of(physical);
        self.sums.changed.extend(pages);
    }

    /// Sets a row's checksums.
    pub(super) fn set_row_sums(&mut self, physical: u32, row: u32, sums: Option<&[u32]>) {
        let place = self.layout.sum_layout.place(u64::from(physical), row);
        let Some(cached) = self.sums.pages.get_mut(&place.page) else {
            unreachable!("checksums of stripe {physical} are set and not pinned")
        };
        cached.page.set_row(place.row, sums);
        cached.lost.remove(&place.row);
        self.sums.changed.insert(place.page);
    }

    /// Changes the checksums of some columns of a row, which may have none yet.
    pub(super) fn change_row_sums(&mut self, physical: u32, row: u32, changed: Vec<(u8, u32)>) {
        let columns = usize::from(self.layout.geometry.members());
        let old = self.row_sums(physical, row).ok().flatten();
        let mut sums = old.unwrap_or_else(|| alloc::vec![0; columns]);
        for (column, sum) in changed {
            sums[usize::from(column)] = sum;
        }
        self.set_row_sums(physical, row, Some(&sums));
    }

    /// Sets the checksums of a whole stripe: of the rows that are `written`, column after column.
    pub(super) fn set_stripe_sums(&mut self, physical: u32, written: &[bool], sums: &[u32]) {
        let columns = usize::from(self.layout.geometry.members());
        let count = written.iter().filter(|written| **written).count();
        assert_eq!(sums.len(), count * columns, "checksums of stripe {physical}");
        let mut at = 0;
        let mut row_sums = [0; MEMBERS_MAX];
        let row_sums = &mut row_sums[..columns];
        for (row, written) in (0..self.layout.rows).zip(written) {
            if *written {
                (0..columns).for_each(|column| row_sums[column] = sums[column * count + at]);
                at += 1;
                self.set_row_sums(physical, row, Some(row_sums));
            } else {
                self.set_row_sums(physical, row, None);
            }
        }
    }

    /// Whether no member has a page any more that there should be.
    pub(super) fn is_sum_page_lost(&self, page: u64) -> bool {
        match self.sums.pages.get(&page) {
            Some(cached) => !cached.lost.is_empty(),
            None => !self.rows_changed_since(0, page).is_empty(),
        }
    }

    /// Puts in what was found of a page.
    fn loaded(&mut self, page: u64, newest: Option<SumPage>) {
        let layout = self.layout.sum_layout;
        let image = newest.as_ref().map(SumPage::key).unwrap_or_default();
        let mut lost = self.rows_changed_since(image.round, page);
        if let Some(newest) = &newest {
            lost.extend((0..layout.rows_per_page()).filter(|row| newest.is_row_lost(*row)));
        }
        let mut page_now = newest.unwrap_or_else(|| SumPage::new(layout, page));
        // So that they are lost for whoever reads what is written of it, too.
        lost.iter().for_each(|row| page_now.lose_row(*row));
        let cached = Cached { page: page_now, image, pins: 0, used: true, lost };
        self.sums.pages.insert(page, cached);
        self.sums.loading.remove(&page);
        self.waiters.wake(Change::Pages);
    }

    /// The images of a page that a member has, of both slots as they were read.
    ///
    /// An image of a later round than this one, or with a larger counter than so many rounds and openings can
    /// have made, is forged: it is none, and its member is left out where the array can do without it.
    pub(super) fn sum_images(
        &mut self,
        member: MemberIndex,
        pair: &[u8],
        offset: u64,
        page: u64,
    ) -> Vec<SumPage> {
        let (layout, uuid) = (self.layout.sum_layout, self.label.array_uuid);
        let places = [offset, offset + u64::from(PAGE_LEN)];
        let mut images: Vec<SumPage> = pair
            .chunks_exact(PAGE_LEN as usize)
            .zip(places)
            .filter_map(|(bytes, place)| SumPage::decode(bytes, layout, uuid, place).ok())
            .filter(|found| found.index == page)
            .collect();
        let forged = images.iter().map(SumPage::key).find(|key| !self.may_be_written(*key));
        if let Some(key) = forged {
            images.retain(|image| self.may_be_written(image.key()));
            self.leave_out_forger(member, page, key);
        }
        images
    }

    /// Whether an image can have been written: each opening of the array writes one of a page in each round,
    /// and begins a few rounds behind those that it finds.
    ///
    /// What the array writes on from such an image is one, too: each image that it writes is of a round, and
    /// the bound of the counter rises with the rounds.
    fn may_be_written(&self, ImageKey { counter, round }: ImageKey) -> bool {
        let most = u64::from(self.round).saturating_add(self.label.generation);
        round <= self.checkpoint.round.saturating_add(ROUND_LEAD_MAX)
            && counter <= most.saturating_add(COUNTER_LEAD_MAX)
    }

    fn leave_out_forger(&mut self, member: MemberIndex, page: u64, key: ImageKey) {
        if !self.in_sync().contains(member) || self.forgers.contains(member) {
            return;
        }
        self.forgers.insert(member);
        let ImageKey { counter, round } = key;
        let text = alloc::format!(
            "left out: its page {page} of checksums is image {counter} of round {round}, which this array, in round {} \
             of generation {}, has not written: the member lies",
            self.round,
            self.label.generation,
        );
        if self.can_go_on_without_all([member].into_iter().collect()) {
            self.member_gone(member, &text);
            self.label.members[member.as_usize()].lack = Lack::ALL;
            self.suspects.liars.insert(member, text);
            return;
        }
        let text = alloc::format!("member {member} should be {text}; nothing serves without it");
        self.events.push_back(Event::Notice(text));
    }

    /// Rows that changed after a round, in one that is over: an image of that round, or none, means
    /// that the newest one is lost.
    fn rows_changed_since(&self, round: u32, page: u64) -> BTreeSet<u32> {
        let layout = self.layout.sum_layout;
        let per_page = u64::from(layout.rows_per_page());
        let first = page * per_page;
        let mut lost = BTreeSet::new();
        for at in first..first + per_page {
            let Ok(physical) = u32::try_from(at / u64::from(self.layout.rows)) else { break };
            if physical >= self.layout.physical {
                break;
            }
            let entry = self.stripes.entry(physical);
            let is_closed = entry.round <= self.checkpoint.round;
            if entry.logical.is_some() && is_closed && entry.round > round {
                lost.insert(narrow(at - first));
            }
        }
        lost
    }
}

impl Array {
    /// Keeps a physical stripe's checksums in memory, and loads them if they are not.
    pub(super) async fn sums(&self, physical: u32) -> PinnedSums {
        let pages = self.state().sum_pages_of(physical);
        let mut pinned = PinnedSums { array: self.clone(), pages: pages.start..pages.start };
        for page in pages {
            self.pin_sum_page(page).await;
            pinned.pages.end = page + 1;
        }
        pinned
    }

    pub(super) async fn pin_sum_page(&self, page: u64) {
        loop {
            let load = self
                .until_rule(Change::Pages, Rule::PageLoads, |state| {
                    if state.sums.pin(page) {
                        return Some(false);
                    }
                    // Whoever asks first loads it.
                    state.sums.loading.insert(page).then_some(true)
                })
                .await;
            if !load {
                return;
            }
            let found = self.read_sum_page(page).await;
            self.state().loaded(page, found);
        }
    }

    /// The newest image of a page. Holders that lack it have it afterwards.
    async fn read_sum_page(&self, page: u64) -> Option<SumPage> {
        let (pages, uuid) = {
            let state = self.state();
            (state.layout.sum_pages, state.label.array_uuid)
        };
        let decode =
            |holder, pair: &[u8], offset| self.state().sum_images(holder, pair, offset, page);
        let found = self.read_images(pages, page, decode).await;
        let images = found.iter().flat_map(|(_, images)| images);
        let newest = images.max_by_key(|image| image.key())?.clone();
        let has = |images: &[SumPage]| images.iter().any(|one| one.key() == newest.key());
        let lacking = found.iter().filter(|(_, images)| !has(images));
        let writes = lacking.map(|(holder, _)| {
            let at = pages.slot_offset(page, *holder, newest.counter);
            self.write_member(*holder, at, Buf::copy_from(&newest.encode(uuid, at)).into())
        });
        join_all(writes).await;
        Some(newest)
    }

    /// Both slots of a page on a member; none when they cannot be read.
    pub(super) async fn read_pair(
        &self,
        member: crate::member::MemberIndex,
        offset: u64,
    ) -> Option<Buf> {
        let whole = self.read_member(member, offset, narrow(PAIR_LEN), false).await;
        match whole {
            Ok(data) => Some(data.to_contiguous()),
            Err(error) if super::io::is_medium(&error) => {
                // One bad block takes only its own slot away.
                let mut both = netraid_block::BufMut::zeroed(2 * PAGE_LEN as usize);
                for slot in 0..2_u32 {
                    let at = offset + u64::from(slot * PAGE_LEN);
                    if let Ok(data) = self.read_member(member, at, PAGE_LEN, false).await {
                        let from = (slot * PAGE_LEN) as usize;
                        data.copy_to(&mut both[from..from + PAGE_LEN as usize]);
                    }
                }
                Some(both.freeze())
            }
            Err(_) => None,
        }
    }
}
