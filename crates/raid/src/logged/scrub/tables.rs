//! What there is once on each member, or on a few of them: labels, checkpoints, the log, tables.
//!
//! None of it is copied from one member to another: memory has it all, and what writes it in
//! service writes it again. A label by an update, a page of a table by a round, a checkpoint as it
//! is. What the log has of old is brought home by a round, and is not needed any more.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use futures_util::future::join_all;
use netraid_block::{Buf, narrow};

use super::{PAGES_AT_ONCE, Ranges, STILL_WRONG, WRITES_MAX, Wrong};
use crate::{
    checkpoint::Checkpoint,
    copies::Copies,
    label::{LABEL_LEN, Label},
    log::Position,
    log::segment,
    logged::{To, members::decode_stripe_pair, tasks::Array},
    member::{MemberIndex, MemberSet},
    page::ImageKey,
    pages::PAIR_LEN,
    regions::{LABEL_OFFSETS, LIST_LEN, PAGE_LEN},
    stripes::Walker,
};

/// An update of the labels may be under way again and again; each writes them all.
const LABEL_TRIES: u32 = 4;

/// A round writes one of a page's slots, and the next round the other one.
const SLOTS: u32 = 2;

/// What a table's page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Page {
    is_sums: bool,
    index: u64,
}

/// Holders that lack a page's newest image.
#[derive(Debug, Default)]
struct Judged {
    wrong: Vec<MemberIndex>,
    /// No holder has any image of a page that there should be.
    lost: bool,
}

impl Array {
    /// Both copies of the label on every member: as memory has it.
    pub(super) async fn scrub_labels(&self, run: u64) {
        let wrong = self.wrong_labels().await;
        if wrong.is_empty() {
            return;
        }
        for (member, _) in &wrong {
            self.state().scrub_found(run, *member, Wrong::Page);
        }
        let mut still = wrong.clone();
        for _ in 0..WRITES_MAX {
            if still.is_empty() {
                break;
            }
            self.update_labels(|_| {}).await;
            still = self.wrong_labels().await;
        }
        self.settle_pages(run, &wrong, &still, LABEL_LEN as u64);
    }

    /// Members whose copies of the label are not what they should be, with their places. A member that is back is left out
    /// until it is given a label: the stable one was written before it came.
    async fn wrong_labels(&self) -> Vec<(MemberIndex, u64)> {
        for _ in 0..LABEL_TRIES {
            let (number, label, members) = {
                let state = self.state();
                let members = state.live().iter().filter(|one| state.labels.given.contains(*one));
                let members: MemberSet = members.collect();
                (state.labels.quiet(), state.labels.stable.clone(), members)
            };
            let (Some(number), Some(label)) = (number, label) else {
                self.update_labels(|_| {}).await;
                continue;
            };
            let places = members.iter().flat_map(|member| [(member, 0_usize), (member, 1_usize)]);
            let reads = places.map(|(member, copy)| async move {
                let (offset, len) = (LABEL_OFFSETS[copy], narrow(LABEL_LEN));
                let data = self.read_member(member, offset, len, false).await;
                (member, copy, data)
            });
            let found = join_all(reads).await;
            let state = self.state();
            if state.labels.quiet() != Some(number) {
                continue;
            }
            let mut wrong = Vec::new();
            for (member, copy, data) in found {
                let wanted = Label { index: member, ..label.clone() };
                let is_right = data.is_ok_and(|data| {
                    Label::decode(&data.to_contiguous(), copy).is_ok_and(|found| found == wanted)
                });
                if !is_right && state.takes_part(member) {
                    wrong.push((member, LABEL_OFFSETS[copy]));
                }
            }
            return wrong;
        }
        // They were written again each time.
        Vec::new()
    }

    /// The newest checkpoint on every member that is in sync, and the list of snapshots that it names.
    pub(super) async fn scrub_checkpoints(&self, run: u64) {
        let _tables = self.lock_tables().await;
        self.scrub_lists(run).await;
        let wrong = self.wrong_checkpoints().await;
        for (member, _) in &wrong {
            self.state().scrub_found(run, *member, Wrong::Page);
        }
        let (checkpoint, uuid) = {
            let state = self.state();
            (state.checkpoint, state.label.array_uuid)
        };
        let mut still = wrong.clone();
        for _ in 0..WRITES_MAX {
            if still.is_empty() {
                break;
            }
            for (member, offset) in &still {
                let data = Buf::copy_from(&checkpoint.encode(uuid)).into();
                self.write_member_stable(*member, *offset, data).await;
            }
            still = self.wrong_checkpoints().await;
        }
        self.settle_pages(run, &wrong, &still, PAGE_LEN.into());
    }

    /// The list that the newest checkpoint names. The tables are locked.
    async fn scrub_lists(&self, run: u64) {
        let wrong = self.wrong_lists().await;
        for (member, _) in &wrong {
            self.state().scrub_found(run, *member, Wrong::Page);
        }
        let mut still = wrong.clone();
        for _ in 0..WRITES_MAX {
            if still.is_empty() {
                break;
            }
            for (member, _) in &still {
                self.give_list(*member, To::Both).await;
            }
            still = self.wrong_lists().await;
        }
        self.settle_pages(run, &wrong, &still, LIST_LEN.into());
    }

    /// Members whose newest checkpoint is not the one that it should be. The tables are locked.
    async fn wrong_checkpoints(&self) -> Vec<(MemberIndex, u64)> {
        let (checkpoint, uuid, members) = {
            let state = self.state();
            (state.checkpoint, state.label.array_uuid, state.in_sync())
        };
        let offset = checkpoint.offset();
        let reads = members
            .iter()
            .map(|one| async move { (one, self.read_member(one, offset, PAGE_LEN, false).await) });
        let found = join_all(reads).await;
        let state = self.state();
        let is_wrong = |(member, data): &(MemberIndex, Result<netraid_block::SgList, _>)| {
            let right = data.as_ref().is_ok_and(|data| {
                let found = Checkpoint::decode(&data.to_contiguous(), uuid, checkpoint.slot());
                found.map(|found| found.of(state.layout.format)) == Ok(checkpoint)
            });
            !right && state.in_sync().contains(*member)
        };
        let wrong = found.iter().filter(|one| is_wrong(one));
        wrong.map(|(member, _)| (*member, offset)).collect()
    }

    /// The log: each batch that is acknowledged has its copies.
    pub(super) async fn scrub_log(&self, run: u64) {
        // What is in memory of it at once is bounded by bringing the rest home.
        if self.state().writer().used() > PAGES_AT_ONCE * PAGES_AT_ONCE {
            self.next_round().await;
        }
        let wrong = self.wrong_batches().await;
        let Some(last) = wrong.iter().map(|(position, ..)| *position).max() else { return };
        for (_, member, ..) in &wrong {
            self.state().scrub_found(run, *member, Wrong::Page);
        }
        self.next_round().await;
        let is_past = self.state().writer().tail() > last;
        let mut state = self.state();
        let mut ranges = Ranges::default();
        for (_, member, offset, len) in wrong {
            ranges.add(member, offset, len);
            if is_past {
                state.scrub_repaired(run, member, 1);
            } else {
                state.scrub_unrepaired(run, member, 1);
            }
        }
        if is_past {
            state.tell_repaired(ranges)
        } else {
            state.tell_unrepaired(ranges, STILL_WRONG)
        }
    }

    /// Batches of the log that have fewer copies than they were written to, with who lacks one.
    async fn wrong_batches(&self) -> Vec<(Position, MemberIndex, u64, u64)> {
        let _tables = self.lock_tables().await;
        let (checkpoint, upto, epoch) = {
            let mut state = self.state();
            (state.checkpoint, state.writer().acked_link().end, state.label.epoch)
        };
        let found = self.find_acked_log(&checkpoint, upto).await;
        let mut state = self.state();
        // With members coming and going others hold the copies, until the next round.
        let all: u32 = state.layout.geometry.members().into();
        if state.label.epoch != epoch || state.in_sync().len() != all {
            return Vec::new();
        }
        let base = state.layout.regions.log.offset;
        let ring = state.layout.ring;
        let in_sync = state.in_sync();
        let wanted = state.layout.geometry.tolerance() + 1;
        let mut wrong = Vec::new();
        let mut lack =
            |state: &mut super::State, position: Position, whole: MemberSet, blocks: u32| {
                let offset = base + ring.offset(position);
                let holders = Copies::new(&state.layout.geometry).among(segment(position), in_sync);
                for holder in holders.iter().filter(|one| !whole.contains(*one)) {
                    wrong.push((position, holder, offset, u64::from(blocks) * u64::from(PAGE_LEN)));
                }
            };
        for found in &found.batches {
            if found.holders.len() < wanted {
                let batch = &found.batch;
                lack(&mut state, batch.position, found.holders, batch.blocks());
            }
        }
        // What is behind a batch that is missing on all is in memory alone.
        if found.end.end < upto {
            lack(&mut state, found.end.end, MemberSet::default(), 1);
        }
        wrong
    }

    /// All pages of both tables. False when the scrub was stopped.
    pub(super) async fn scrub_tables(&self, run: u64) -> bool {
        let (stripes, sums) = {
            let state = self.state();
            let physical = u64::from(state.layout.physical);
            (state.stripes.pages(), state.layout.sum_layout.pages(physical))
        };
        for (is_sums, pages) in [(false, stripes), (true, sums)] {
            let mut from = 0;
            while from < pages {
                if from > 0 && self.scrub_may_take(run, 1).await.is_none() {
                    return false;
                }
                let until = (from + PAGES_AT_ONCE).min(pages);
                let group = (from..until).map(|index| Page { is_sums, index });
                self.scrub_pages(run, group.collect()).await;
                self.state().stripes.note_extras(Walker::Scrub(run), 1);
                from = until;
            }
        }
        true
    }

    async fn scrub_pages(&self, run: u64, pages: Vec<Page>) {
        let judged = self.judge_pages(&pages).await;
        let mut again: Vec<Page> = Vec::new();
        let mut wrong: Vec<(Page, MemberIndex)> = Vec::new();
        let mut lost = Ranges::default();
        for (page, Judged { wrong: members, lost: is_lost }) in judged {
            for member in &members {
                let mut state = self.state();
                state.scrub_found(run, *member, Wrong::Page);
                if is_lost {
                    state.scrub_unrepaired(run, *member, 1);
                    lost.add(*member, state.page_offset(page, *member), PAIR_LEN);
                } else {
                    wrong.push((page, *member));
                }
            }
            if !is_lost && !members.is_empty() {
                again.push(page);
            }
        }
        self.state().tell_unrepaired(lost, "a page of checksums is lost on all its holders");
        if again.is_empty() {
            return;
        }
        let mut still = BTreeMap::new();
        for _ in 0..SLOTS {
            for page in &again {
                self.note_page(*page).await;
            }
            self.next_round().await;
            still = self.judge_pages(&again).await.into_iter().collect();
            again.retain(|page| still.get(page).is_some_and(|one: &Judged| !one.wrong.is_empty()));
            if again.is_empty() {
                break;
            }
        }
        let is_still = |page: &Page, member: &MemberIndex| {
            still.get(page).is_some_and(|judged| judged.wrong.contains(member))
        };
        let (bad, good): (Vec<_>, Vec<_>) =
            wrong.into_iter().partition(|(page, member)| is_still(page, member));
        let mut state = self.state();
        let (mut repaired, mut left) = (Ranges::default(), Ranges::default());
        for (page, member) in good {
            state.scrub_repaired(run, member, 1);
            repaired.add(member, state.page_offset(page, member), PAIR_LEN);
        }
        for (page, member) in bad {
            state.scrub_unrepaired(run, member, 1);
            left.add(member, state.page_offset(page, member), PAIR_LEN);
        }
        state.tell_repaired(repaired);
        state.tell_unrepaired(left, STILL_WRONG);
    }

    /// Has the next round write a page.
    async fn note_page(&self, page: Page) {
        if !page.is_sums {
            return self.state().stripes.note_page(page.index);
        }
        self.pin_sum_page(page.index).await;
        let mut state = self.state();
        state.sums.changed.insert(page.index);
        state.sums.unpin(page.index);
    }

    /// Who lacks the newest image of which page.
    async fn judge_pages(&self, pages: &[Page]) -> Vec<(Page, Judged)> {
        let _tables = self.lock_tables().await;
        let work = pages.iter().map(|page| async move { (*page, self.judge_page(*page).await) });
        join_all(work).await
    }

    async fn judge_page(&self, page: Page) -> Judged {
        let (table, format, uuid, holders) = {
            let state = self.state();
            let layout = &state.layout;
            let table = if page.is_sums { layout.sum_pages } else { layout.stripe_pages };
            let in_sync = state.in_sync();
            let holders: Vec<MemberIndex> =
                table.holders(page.index).iter().filter(|one| in_sync.contains(*one)).collect();
            (table, layout.format, state.label.array_uuid, holders)
        };
        // Of each holder the images that it has: which, and what the page says.
        let reads = holders.into_iter().map(|holder| async move {
            let offset = table.offset(page.index, holder);
            let pair = self.read_pair(holder, offset).await;
            let images: Vec<(ImageKey, Vec<u8>)> = match pair {
                None => Vec::new(),
                Some(pair) if page.is_sums => {
                    let found = self.state().sum_images(holder, &pair, offset, page.index);
                    found.iter().map(|one| (one.key(), one.encode(uuid, 0))).collect()
                }
                Some(pair) => {
                    let found = decode_stripe_pair(&pair, (format, uuid), offset, page.index);
                    found.iter().map(|one| (one.key(), one.encode(format, uuid, 0))).collect()
                }
            };
            (holder, images)
        });
        let found = join_all(reads).await;
        let state = self.state();
        let in_memory = state.image_key(page);
        let newest = found.iter().flat_map(|(_, images)| images.iter()).max_by_key(|one| one.0);
        let key = in_memory.or(newest.map(|newest| newest.0)).unwrap_or_default();
        if key.counter == 0 {
            let lost = page.is_sums && state.is_sum_page_lost(page.index);
            let holders = found.iter().map(|(holder, _)| *holder);
            return Judged { wrong: if lost { holders.collect() } else { Vec::new() }, lost };
        }
        // A later one than memory knows was not written: who has it is wrong, not all others. Of the stripe table an
        // opening leaves later ones of rounds that were cut short, which the next round writes over.
        let is_forged = |one: &(ImageKey, Vec<u8>)| page.is_sums && one.0 > key;
        let mut all = found.iter().flat_map(|(_, images)| images.iter());
        let image = all.rfind(|one| one.0 == key).map(|one| &one.1);
        let has = |images: &[(ImageKey, Vec<u8>)]| {
            let own = images.iter().find(|one| one.0 == key);
            own.is_some_and(|own| image == Some(&own.1)) && !images.iter().any(is_forged)
        };
        let in_sync = state.in_sync();
        let wrong =
            found.iter().filter(|(holder, images)| in_sync.contains(*holder) && !has(images));
        Judged { wrong: wrong.map(|(holder, _)| *holder).collect(), lost: false }
    }

    /// Tells which of the places that were wrong are right now.
    fn settle_pages(
        &self,
        run: u64,
        wrong: &[(MemberIndex, u64)],
        still: &[(MemberIndex, u64)],
        len: u64,
    ) {
        let mut state = self.state();
        let still: BTreeSet<(MemberIndex, u64)> = still.iter().copied().collect();
        let (mut repaired, mut left) = (Ranges::default(), Ranges::default());
        for (member, offset) in wrong {
            if still.contains(&(*member, *offset)) {
                state.scrub_unrepaired(run, *member, 1);
                left.add(*member, *offset, len);
            } else {
                state.scrub_repaired(run, *member, 1);
                repaired.add(*member, *offset, len);
            }
        }
        state.tell_repaired(repaired);
        state.tell_unrepaired(left, STILL_WRONG);
    }
}

impl super::State {
    fn page_offset(&self, page: Page, holder: MemberIndex) -> u64 {
        let layout = &self.layout;
        let table = if page.is_sums { layout.sum_pages } else { layout.stripe_pages };
        table.offset(page.index, holder)
    }

    /// A page's newest image, if memory knows it.
    fn image_key(&self, page: Page) -> Option<ImageKey> {
        if page.is_sums {
            return self.sums.pages.get(&page.index).map(|cached| cached.image);
        }
        let at: usize = narrow(page.index);
        self.stripe_images.get(at).map(|images| images.newest)
    }
}
