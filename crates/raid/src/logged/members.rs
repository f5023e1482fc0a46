//! Members that come back: what they lack is written from the others, in the order of the physical
//! stripes; and blocks that were found wrong are written again.
//!
//! Invariant: a member counts as in sync when everything that it lacked is stable on it, tables
//! included, and not before.

use alloc::vec::Vec;
use core::ops::Range;

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use netraid_block::{Buf, BufMut, IoError, SgList, narrow};

use super::{
    Event, FoundMember, NewDevice, Rule, To,
    locks::Purpose,
    state::{BLOCK, Life, State},
    tasks::{Array, Change},
};
use crate::{
    checkpoint::Checkpoint,
    faults::Fault,
    format::Format,
    lack::Lack,
    member::{MemberIndex, MemberSet, MemberState},
    page::ImageKey,
    pages::TablePages,
    planted::{Planted, planted},
    regions::{CHECKPOINT_OFFSETS, PAGE_LEN},
    stripes::{StripePage, Walked, Walker},
};

/// Stripes that are caught up at a time.
pub(super) const STRIPES_AT_ONCE: usize = 32;
/// Pages that are copied at a time.
const PAGES_AT_ONCE: u64 = 64;
/// Stripes that are counted whenever one was caught up, to know how many are ahead.
const COUNTED_AT_ONCE: u32 = 1 << 14;

/// Images of a page.
type Images = Vec<(ImageKey, Vec<u8>)>;

/// How far a member is that catches up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchUp {
    /// It lacked everything.
    pub lacks_all: bool,
    /// Stripes that it lacks and that are mapped, and pages of tables.
    pub walked: Walked,
}

/// Somebody's way through the stripe table, until it is over.
pub(super) struct Walking {
    array: Array,
    walker: Walker,
}

impl Drop for Walking {
    fn drop(&mut self) {
        self.array.state().stripes.end_walk(self.walker);
    }
}

/// Excludes checkpoints and copying of pages from each other.
pub(super) struct TablesLock(Array);

impl Drop for TablesLock {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.tables_locked = false;
        state.waiters.wake(Change::Pages);
    }
}

impl Array {
    /// Waits until nobody else writes table pages.
    pub(super) async fn lock_tables(&self) -> TablesLock {
        self.until_rule(Change::Pages, Rule::Tables, |state| {
            let free = !state.tables_locked;
            state.tables_locked = true;
            free.then_some(())
        })
        .await;
        TablesLock(self.clone())
    }

    /// A member's device is there again.
    pub(super) async fn member_returned(self, member: MemberIndex, found: FoundMember) {
        let at = member.as_usize();
        let before = self.state().label.members[at].uuid;
        // The labels have to say first that it was away.
        self.until(Change::Labels, |state| (!state.members[at].leaving).then_some(())).await;
        let newest = self.read_checkpoint(member).await;
        {
            let mut state = self.state();
            if state.label.members[at].uuid != before {
                // Another device has its place: that one is told of.
                return;
            }
            let lie = state.suspects.liars.get(&member).cloned();
            if let Some(reason) = lie.or_else(|| state.why_not_ours(member, &found)) {
                state.tell_member(member, &reason);
                return;
            }
            let entry = &mut state.label.members[at];
            // Every member that takes part has each checkpoint: one that lacks the last of its
            // time is an older image of what it was.
            let seen = newest.map_or(0, |checkpoint| checkpoint.round);
            let lack = entry.lack;
            let time =
                [lack.left, lack.left_again].into_iter().filter(|one| *one != u32::MAX).max();
            let is_older = time.is_none_or(|round| seen.saturating_add(1) < round);
            let is_believed =
                planted(Planted::OlderImageAccepted) || planted(Planted::PowerCycleIgnored);
            if is_older && !is_believed {
                entry.lack = Lack::ALL;
                // Where no checkpoint could be read, nobody knows whether writes are lost.
                if time.is_some() && newest.is_some() {
                    state.note_fault(member, Fault::LostWrites, 1);
                }
            }
        }
        self.take_in(member, found.caps, "back").await;
    }

    /// Has a member take part that is not live, when the labels say what it lacks: from then on it
    /// gets checkpoints, and these no longer tell what it is.
    async fn take_in(&self, member: MemberIndex, caps: super::MemberCaps, reason: &str) {
        let uuid = self.state().label.members[member.as_usize()].uuid;
        self.update_labels(|_| {}).await;
        // Held until the member has the list and the checkpoint: no other checkpoint comes before the list.
        let lock = self.lock_tables().await;
        let incarnation = {
            let mut state = self.state();
            let is_same = state.label.members[member.as_usize()].uuid == uuid;
            if state.member_state(member).is_live() || !is_same {
                return;
            }
            state.join(member, caps, reason)
        };
        self.give_checkpoint(member, To::Both).await;
        drop(lock);
        self.catch_up(member, incarnation).await;
    }

    /// Writes the last checkpoint to a member: from now on it is part of this time. The tables are locked.
    pub(super) async fn give_checkpoint(&self, member: MemberIndex, to: To) {
        self.give_list(member, to).await;
        let (checkpoint, uuid) = {
            let state = self.state();
            (state.checkpoint, state.label.array_uuid)
        };
        let data = Buf::copy_from(&checkpoint.encode(uuid)).into();
        self.write_to((member, to), checkpoint.offset(), data, true).await;
    }

    /// A new device takes a member's place.
    pub(super) async fn member_replaced(self, member: MemberIndex, device: NewDevice) {
        let at = member.as_usize();
        self.until(Change::Labels, |state| (!state.members[at].leaving).then_some(())).await;
        let has_copy;
        {
            let mut state = self.state();
            if state.member_state(member).is_live() {
                state.tell_member(member, "there already");
                return;
            }
            let lack = state.lack_of_successor(member, device.uuid);
            has_copy = !lack.lacks_all();
            let entry = &mut state.label.members[at];
            (entry.uuid, entry.lack) = (device.uuid, lack);
            // What the one before it said is no word of this one.
            state.suspects.liars.remove(&member);
            state.forgers.remove(member);
        }
        let reason = if has_copy { "replaced by its copy" } else { "replaced" };
        self.take_in(member, device.caps, reason).await;
    }

    /// The newest checkpoint on a member.
    pub(super) async fn read_checkpoint(&self, member: MemberIndex) -> Option<Checkpoint> {
        let (uuid, format) = {
            let state = self.state();
            (state.label.array_uuid, state.layout.format)
        };
        let mut newest: Option<Checkpoint> = None;
        for (slot, offset) in CHECKPOINT_OFFSETS.into_iter().enumerate() {
            let ticket = self.ticket();
            self.state().push_foreign_read(ticket.id(), member, offset, PAGE_LEN);
            let Ok(data) = ticket.answer().await else { continue };
            let Ok(found) = Checkpoint::decode(&data.to_contiguous(), uuid, slot) else { continue };
            let found = found.of(format);
            let key = |one: &Checkpoint| (one.generation, one.counter);
            if newest.as_ref().is_none_or(|known| key(known) < key(&found)) {
                newest = Some(found);
            }
        }
        newest
    }

    /// Writes what a member lacks, then says that it is in sync.
    async fn catch_up(&self, member: MemberIndex, incarnation: u32) {
        self.update_labels(|_| {}).await;
        // What began before it was there may not have written to it, and may not show yet.
        if !planted(Planted::ReturnBeforeOperations) {
            self.wait_for_operations().await;
        }
        let is_still = |state: &State| {
            state.members[member.as_usize()].incarnation == incarnation
                && state.failed.is_none()
                && state.life == Life::Open
        };
        let physical = self.state().layout.physical;
        let mut next = self.state().label.members[member.as_usize()].lack.caught_up;
        if planted(Planted::LackIgnored) {
            next = physical;
        }
        let mut marked = next;
        let per_mark = self.state().layout.limits.stripes_per_mark;
        let lack = self.state().label.members[member.as_usize()].lack;
        let walking = self.begin_walk(Walker::Member(member, incarnation), lack, next);
        let mut under_way = FuturesUnordered::new();
        loop {
            let end = physical.min(marked.saturating_add(per_mark));
            while under_way.len() < STRIPES_AT_ONCE
                && is_still(&self.state())
                && let Some(stripe) = walking.next_stripe(&lack, &mut next, end)
            {
                under_way.push(self.catch_up_stripe(member, stripe));
            }
            // Also when the member has gone: what is under way keeps its stripe until it has ended.
            if under_way.next().await.is_some() {
                walking.note_stripe();
                continue;
            }
            if !is_still(&self.state()) {
                return;
            }
            if next - marked >= per_mark {
                marked = next;
                if !self.mark(member, incarnation, next).await {
                    return;
                }
            } else if next >= physical {
                break;
            } else {
                self.catch_up_allowed(is_still).await;
            }
        }
        if !is_still(&self.state()) {
            return;
        }
        self.copy_tables(&walking, (member, To::Both), is_still).await;
        if !planted(Planted::JoinsWithoutLog) && !self.join_log(member, incarnation).await {
            return;
        }
        self.flush().await;
        {
            let mut state = self.state();
            if !is_still(&state) {
                return;
            }
            state.log.joining.remove(member);
            let entry = &mut state.label.members[member.as_usize()];
            entry.state.change(MemberState::InSync);
            entry.lack = Lack::NOTHING;
        }
        self.update_labels(|_| {}).await;
        let mut state = self.state();
        if is_still(&state) {
            state.tell_member(member, "caught up");
            state.events.push_back(Event::CaughtUp(member));
        }
    }

    /// From now on it is known how far somebody is that gets what `lack` has, and begins at this stripe.
    pub(super) fn begin_walk(&self, walker: Walker, lack: Lack, from: u32) -> Walking {
        let mut state = self.state();
        let layout = &state.layout;
        let members = u64::from(layout.geometry.members());
        let held = |(table, pages): (TablePages, u64)| {
            (pages * u64::from(table.holders(0).len())).div_ceil(members)
        };
        let stripes = (layout.stripe_pages, state.stripes.pages());
        let sums = (layout.sum_pages, layout.sum_layout.pages(u64::from(layout.physical)));
        let pages = held(stripes) + held(sums);
        state.stripes.begin_walk(walker, lack, from, pages);
        drop(state);
        Walking { array: self.clone(), walker }
    }

    /// Waits until stripes may be caught up, or the allowance changes and the member is not there any more.
    pub(super) async fn catch_up_allowed(&self, is_still: impl Fn(&State) -> bool + Send + Sync) {
        self.until(Change::CatchUp, |state| {
            (state.catch_up_allowance != Some(0) || !is_still(state)).then_some(())
        })
        .await;
    }

    /// Has a member get all of the log from now on, until the log begins with what it got. False
    /// when the member has gone again.
    async fn join_log(&self, member: MemberIndex, incarnation: u32) -> bool {
        let since = {
            let mut state = self.state();
            if state.members[member.as_usize()].incarnation != incarnation {
                return false;
            }
            state.log.joining.insert(member);
            state.writer().link().end
        };
        loop {
            self.next_round().await;
            let mut state = self.state();
            if state.members[member.as_usize()].incarnation != incarnation {
                return false;
            }
            if state.writer().tail() >= since {
                return true;
            }
        }
    }

    /// Makes progress stable. False when the member has gone again.
    async fn mark(&self, member: MemberIndex, incarnation: u32, next: u32) -> bool {
        if !planted(Planted::MarkBeforeStable) {
            self.flush().await;
        }
        {
            let mut state = self.state();
            if state.members[member.as_usize()].incarnation != incarnation {
                return false;
            }
            state.label.members[member.as_usize()].lack.caught_up = next;
        }
        self.update_labels(|_| {}).await;
        true
    }

    async fn catch_up_stripe(&self, member: MemberIndex, physical: u32) {
        let Some(logical) = self.state().stripes.entry(physical).logical else { return };
        let _lock = self.lock(logical, Purpose::Home).await;
        let column = {
            let state = self.state();
            if state.stripes.find(logical) != Some(physical) {
                return;
            }
            state.layout.geometry.column_of(u64::from(physical), member)
        };
        let _pin = self.pin(physical);
        let _sums = self.sums(physical).await;
        let runs = self.state().known_runs(physical);
        for run in runs {
            self.give_run((member, To::Both), (physical, column), run).await;
        }
    }

    /// Writes those rows of a member's column that can be had: all at once, or each by itself. The others are lost, whatever the
    /// device has there: their checksums say so to whoever reads them.
    pub(super) async fn give_run(
        &self,
        whom: (MemberIndex, To),
        (physical, column): (u32, u8),
        run: Range<u32>,
    ) {
        if self.give_rows(whom, (physical, column), run.clone()).await.is_ok() {
            return;
        }
        let (member, _) = whom;
        // Where the lost rows before this one begin.
        let mut lost: Option<u32> = None;
        let tell = |lost: &mut Option<u32>, end: u32| {
            if let Some(first) = lost.take() {
                let (_, offset) = self.state().home(physical, column, first);
                let len = (end - first) * BLOCK;
                self.state().events.push_back(Event::Lost { member, offset, len });
            }
        };
        for row in run.clone() {
            match self.give_rows(whom, (physical, column), row..row + 1).await {
                Ok(()) => tell(&mut lost, row),
                Err(_) => lost = lost.or(Some(row)),
            }
        }
        tell(&mut lost, run.end);
    }

    /// Writes rows of a member's column: what its own device has, where that goes to its successor; else computed from the others.
    async fn give_rows(
        &self,
        (member, to): (MemberIndex, To),
        (physical, column): (u32, u8),
        rows: Range<u32>,
    ) -> Result<(), IoError> {
        let (_, offset) = self.state().home(physical, column, rows.start);
        match to {
            To::Both | To::Member => {
                let data = self.fetch_without(physical, column, rows).await?;
                self.write_member(member, offset, data).await;
            }
            To::Successor(_) => {
                let data = self.fetch_written(physical, column, rows, &mut Vec::new()).await?;
                self.write_to((member, to), offset, data, false).await;
            }
        }
        Ok(())
    }

    /// Gives a member, or its successor, its copies of the table pages, as they are on the members that have the newest.
    /// Ends early when that device is not there any more.
    pub(super) async fn copy_tables(
        &self,
        walking: &Walking,
        (member, to): (MemberIndex, To),
        is_still: impl Fn(&State) -> bool,
    ) {
        let (stripes, sums) = {
            let state = self.state();
            let stripes = state.stripes.pages();
            let sums = state.layout.sum_layout.pages(u64::from(state.layout.physical));
            ((state.layout.stripe_pages, stripes), (state.layout.sum_pages, sums))
        };
        for (is_sums, (table, pages)) in [(false, stripes), (true, sums)] {
            let mut from = 0;
            while from < pages && is_still(&self.state()) {
                let _lock = self.lock_tables().await;
                let until = (from + PAGES_AT_ONCE).min(pages);
                let held = (from..until).filter(|page| table.holders(*page).contains(member));
                let copies = held.map(|page| self.copy_page((member, to), page, is_sums));
                let copied = join_all(copies).await.len();
                self.state().stripes.note_extras(walking.walker, copied as u64);
                from = until;
            }
        }
    }

    /// Copies a page's newest image to a member, and nothing but that.
    async fn copy_page(&self, (member, to): (MemberIndex, To), page: u64, is_sums: bool) {
        let (table, format, uuid) = {
            let state = self.state();
            let layout = &state.layout;
            let table = if is_sums { layout.sum_pages } else { layout.stripe_pages };
            (table, layout.format, state.label.array_uuid)
        };
        let place = |counter| table.slot_offset(page, member, counter);
        let decode = |holder, pair: &[u8], offset| -> Images {
            if is_sums {
                let found = self.state().sum_images(holder, pair, offset, page);
                found.iter().map(|one| (one.key(), one.encode(uuid, place(one.counter)))).collect()
            } else {
                // Memory knows the newest: what is beyond it nobody has written, and no other member gets it.
                let at: usize = narrow(page);
                let newest = self.state().stripe_images[at].newest;
                let mut found = decode_stripe_pair(pair, (format, uuid), offset, page);
                found.retain(|one| one.key() <= newest);
                let image = |one: &StripePage| one.encode(format, uuid, place(one.counter));
                found.iter().map(|one| (one.key(), image(one))).collect()
            }
        };
        // All images of the holder that has the newest: the one before it counts if the next one
        // that is written is torn.
        let mut newest: Option<(ImageKey, Images)> = None;
        for (_, images) in self.read_images(table, page, decode).await {
            let Some(best) = images.iter().map(|(key, _)| *key).max() else { continue };
            if newest.as_ref().is_none_or(|(known, _)| *known < best) {
                newest = Some((best, images));
            }
        }
        self.state().rewrite_if_lost(
            page,
            is_sums,
            newest.as_ref().map(|found| found.0).unwrap_or_default(),
        );
        let own = table.offset(page, member);
        let mut both = BufMut::zeroed(2 * PAGE_LEN as usize);
        for (key, image) in newest.map(|(_, images)| images).unwrap_or_default() {
            let place = table.slot_offset(page, member, key.counter);
            let from: usize = narrow(place - own);
            both[from..from + PAGE_LEN as usize].copy_from_slice(&image);
        }
        self.write_to((member, to), own, SgList::from(both.freeze()), false).await;
    }

    /// Waits until every operation that has begun has ended.
    pub(super) async fn wait_for_operations(&self) {
        let now = self.state().next_operation;
        self.until_rule(Change::Operations, Rule::ReturnAfterOperations, |state| {
            let oldest = state.operations.first().copied();
            oldest.is_none_or(|oldest| oldest >= now).then_some(())
        })
        .await;
    }

    /// Writes blocks again that were found wrong, for as long as the array is open.
    pub(super) async fn repair(self) {
        loop {
            let next = |state: &mut State| state.repairs.pop_first();
            let (logical, physical, column, row) = self.until(Change::Repairs, next).await;
            // An error has been told to whoever read it.
            let _ = self.repair_block(logical, physical, column, row).await;
        }
    }

    pub(super) async fn repair_block(
        &self,
        logical: u32,
        physical: u32,
        column: u8,
        row: u32,
    ) -> Result<(), IoError> {
        let _lock = self.lock(logical, Purpose::Home).await;
        if self.state().stripes.find(logical) != Some(physical) {
            return Ok(());
        }
        let _pin = self.pin(physical);
        let _sums = self.sums(physical).await;
        let rows = row..row + 1;
        if self.state().row_sums(physical, row)?.is_none() {
            return Ok(());
        }
        let now = self.read_column(physical, column, rows.clone(), false).await;
        if let Ok(data) = now
            && self.state().verify(physical, column, &rows, &data)?
        {
            return Ok(());
        }
        let data = self.fetch_without(physical, column, rows).await?;
        let (member, offset) = self.state().home(physical, column, row);
        self.write_member(member, offset, data).await;
        self.state().events.push_back(Event::Repaired { member, offset, len: BLOCK.into() });
        Ok(())
    }
}

impl Walking {
    /// The next stripe that is lacked, as [`State::next_to_catch_up`] says.
    pub(super) fn next_stripe(&self, lack: &Lack, next: &mut u32, end: u32) -> Option<u32> {
        let mut state = self.array.state();
        let stripe = state.next_to_catch_up(lack, next, end);
        state.stripes.walk_to(self.walker, *next);
        stripe
    }

    /// A stripe was caught up.
    pub(super) fn note_stripe(&self) {
        let mut state = self.array.state();
        state.stripes.note_walked(self.walker, 1);
        state.stripes.count_ahead(self.walker, COUNTED_AT_ONCE);
    }
}

impl State {
    /// How far a member is, if it catches up.
    pub(super) fn catch_up_of(&self, member: MemberIndex) -> Option<CatchUp> {
        let at = member.as_usize();
        if self.label.members[at].state != MemberState::CatchingUp {
            return None;
        }
        let lack = self.label.members[at].lack;
        let walker = Walker::Member(member, self.members[at].incarnation);
        let walked = self.stripes.walked(walker).unwrap_or_default();
        Some(CatchUp { lacks_all: lack.lacks_all(), walked })
    }

    /// The next stripe from `next` on and before `end` of which `lack` has something, if one may be caught
    /// up; `next` goes beyond it.
    fn next_to_catch_up(&mut self, lack: &Lack, next: &mut u32, end: u32) -> Option<u32> {
        if self.catch_up_allowance == Some(0) {
            return None;
        }
        while *next < end {
            let stripe = *next;
            *next += 1;
            let entry = self.stripes.entry(stripe);
            if entry.logical.is_some() && lack.has(stripe, entry) {
                self.catch_up_allowance = self.catch_up_allowance.map(|left| left - 1);
                return Some(stripe);
            }
        }
        None
    }

    /// A page whose newest image is not on the members any more is written again, from memory: the
    /// next checkpoint counts on it.
    fn rewrite_if_lost(&mut self, page: u64, is_sums: bool, found: ImageKey) {
        if is_sums {
            if self.sums.pages.get(&page).is_some_and(|cached| cached.image != found) {
                self.sums.changed.insert(page);
            }
        } else {
            let at: usize = narrow(page);
            if self.stripe_images[at].newest != found {
                self.stripes.note_page(page);
            }
        }
    }

    fn why_not_ours(
        &self,
        member: MemberIndex,
        found: &FoundMember,
    ) -> Option<alloc::string::String> {
        let entry = &self.label.members[member.as_usize()];
        let is_ours = found.label.array_uuid == self.label.array_uuid
            && found.label.index == member
            && found.label.members[member.as_usize()].uuid == entry.uuid;
        if !is_ours {
            return Some(alloc::format!(
                "what is in the place of member {member} is not that member; use `replace`"
            ));
        }
        entry.state.is_live().then(|| alloc::format!("member {member} is there already"))
    }

    /// Has a member take part in all that begins now; answers its incarnation.
    fn join(&mut self, member: MemberIndex, caps: super::MemberCaps, reason: &str) -> u32 {
        let at = member.as_usize();
        self.label.members[at].state.change(MemberState::CatchingUp);
        let device = &mut self.members[at];
        device.caps = caps;
        device.incarnation += 1;
        // What is in its cache from before is unknown.
        device.unflushed = caps.volatile_cache;
        // What it was told before it left is older than the labels of all who stayed.
        device.told = MemberSet::EMPTY;
        let incarnation = device.incarnation;
        self.tell_member(member, reason);
        incarnation
    }
}

pub(super) fn decode_stripe_pair(
    pair: &[u8],
    (format, uuid): (Format, crate::label::Uuid),
    offset: u64,
    page: u64,
) -> Vec<StripePage> {
    let places = [offset, offset + u64::from(PAGE_LEN)];
    pair.chunks_exact(PAGE_LEN as usize)
        .zip(places)
        .filter_map(|(bytes, place)| StripePage::decode(bytes, format, uuid, place).ok())
        .filter(|found| found.index == page)
        .collect()
}
