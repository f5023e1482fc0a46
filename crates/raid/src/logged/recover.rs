//! Recovery: from labels, checkpoints and the log to an array that serves. The order of its steps
//! and why each is where it is stands in docs/decisions/0008-log-rounds-and-map.md.
//!
//! Invariant: until the label says that this generation begins at the end of the log that was
//! found, nothing is served and nothing of the log is lost: whoever crashes begins again from the
//! same state.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString as _},
    vec::Vec,
};

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, SgList};

use super::{
    Event, FoundMember, Rule,
    dirty::Dirty,
    found_log::{Adopted, FoundLog},
    is_older_image,
    judge::Kept,
    log::Remaps,
    redo::Redo,
    state::{Life, State},
    suspects::Base,
    tasks::{Array, Change},
};
use crate::{
    checkpoint::Checkpoint,
    copies::Copies,
    label::{Closure, Holder},
    lack::Lack,
    log::{Begin, Beginnings, DROPPED_MAX, LogWriter, Position, Record, segment},
    member::{MemberIndex, MemberSet, MemberState},
    planted::{Planted, planted},
    regions::LABEL_OFFSETS,
};

impl Array {
    /// Opens the array; whatever goes wrong makes it fail.
    pub(super) async fn open(self, found: Vec<Option<FoundMember>>, holder: Holder) {
        if let Err(error) = self.recover(&found, holder).await {
            let mut state = self.state();
            state.fail(error);
            return;
        }
        self.spawn(self.clone().serve_rounds());
        self.spawn(self.clone().repair());
        self.spawn(self.clone().discard_left());
        let (begun, most) = {
            let state = self.state();
            (state.beginnings().as_slice().len(), state.layout.limits.beginnings)
        };
        if begun > most.min(Beginnings::MAX / 2) {
            self.renew_log().await;
        }
        {
            let mut state = self.state();
            // It may have failed while the last of this was done: then it was never open.
            if state.failed.is_some() {
                return;
            }
            state.life = Life::Open;
            state.shown_state = state.array_state();
            state.events.push_back(Event::Opened);
        }
        for (member, found) in (0..).map(MemberIndex).zip(found) {
            let stays_out = {
                let state = self.state();
                // Who was set aside since has no device any more: it is told when that is back.
                let has_left = state.members[member.as_usize()].incarnation > 0;
                has_left || state.member_state(member).is_live() || state.suspects.contains(member)
            };
            if let Some(found) = found.filter(|_| !stays_out) {
                self.spawn(self.clone().member_returned(member, found));
            }
        }
    }

    async fn recover(&self, found: &[Option<FoundMember>], holder: Holder) -> Result<(), IoError> {
        let (base, contested) = self.choose_members(found).await?;
        let there: MemberSet = {
            let state = self.state();
            let is_there = |(member, found): &(MemberIndex, &Option<FoundMember>)| {
                found.is_some() && !state.suspects.contains(*member)
            };
            let there = (0..).map(MemberIndex).zip(found).filter(is_there);
            there.map(|(member, _)| member).collect()
        };
        let list = self.find_list(&base, there).await?;
        {
            let mut state = self.state();
            state.stripes.set_next_number(list.next_number());
            state.list = list;
        }
        if let Some(holders) = contested {
            // Whoever is left behind may have what the others lack: then nothing may say yet that
            // they go on without. And a checkpoint that lies goes onto no other member.
            let name = |error: IoError| error.context(&holders);
            self.read_stripes(&base).await.map_err(name)?;
            self.find_log(&base).await.map_err(name)?;
        }
        self.state().check_numbers()?;
        self.level_labels().await;
        let generation = self.state().suspects.generation;
        self.update_labels(|label| {
            label.generation = generation + 1;
            label.holder = holder;
            label.closure = Closure::Open;
        })
        .await;
        self.flush().await;
        self.level_lists().await;
        self.level_checkpoints(&base).await;
        self.load_stripes(&base).await?;
        let log = self.find_believed_log(&base).await?;
        if log.acked_seen > log.end.end {
            let text = alloc::format!(
                "writes that were acknowledged and not flushed are lost: the log ends at {}, {} \
                 was acknowledged",
                log.end.end,
                log.acked_seen,
            );
            self.state().events.push_back(Event::Notice(text));
        }
        self.state().number_rounds_after(&log);
        let (kept, dropped, left) = self.judge_remaps(&log).await?;
        let (end, lacks) = (log.end.end, dropped.iter().map(|(position, _)| *position).min());
        self.state().recovered_upto = Some(lacks.map_or(end, |lacks| lacks.min(end)));
        if !planted(Planted::CopiesNotMade) {
            self.copy_batches(&log).await;
        }
        if planted(Planted::RedoBeforeDecision) {
            let redo = self.apply(&log, &kept).await?;
            self.redo(redo).await?;
            return self.begin_generation(&base, &log, dropped).await;
        }
        self.begin_generation(&base, &log, dropped).await?;
        let redo = self.apply(&log, &kept).await?;
        self.redo(redo).await?;
        for (physical, column, row) in left {
            let Some(logical) = self.state().stripes.entry(physical).logical else { continue };
            // A block that cannot be had is an error to who reads it.
            let _ = self.repair_block(logical, physical, column, row).await;
        }
        Ok(())
    }

    /// Which members take part, and the checkpoint that counts for them; and where some that were in sync
    /// do not have it, who has.
    async fn choose_members(
        &self,
        found: &[Option<FoundMember>],
    ) -> Result<(Checkpoint, Option<String>), IoError> {
        let there = (0..).map(MemberIndex).zip(found).filter(|(_, found)| found.is_some());
        let reads =
            there.map(|(member, _)| async move { (member, self.read_checkpoint(member).await) });
        let mut checkpoints: BTreeMap<MemberIndex, Checkpoint> = BTreeMap::new();
        for (member, checkpoint) in join_all(reads).await {
            checkpoints.extend(checkpoint.map(|checkpoint| (member, checkpoint)));
        }
        let current = self.state().current(found, &checkpoints);
        let chosen = self.choose_checkpoint(&current).await?;
        let mut state = self.state();
        let newest = state.label.clone();
        // One checkpoint may have been under way, or its place be spoiled: who has the one before it
        // is as good, because what a checkpoint tells of was stable on all before it was written.
        // Who has not even that is an older image.
        let Some(Base { members: set, checkpoint: base, last_round }) =
            chosen.and_then(|chosen| state.choose_base(&current, chosen))
        else {
            let here = current.iter().map(|(member, _)| *member);
            let here: MemberSet = here.filter(|one| !state.suspects.contains(*one)).collect();
            let needed =
                u32::from(state.layout.geometry.members()) - state.layout.geometry.tolerance();
            let text = alloc::format!(
                "array '{}' has {} of {} members that hold all, level {} needs {needed}; not usable: {}",
                state.label.name,
                here.len(),
                state.layout.geometry.members(),
                state.layout.geometry.level().number(),
                state.describe_absent(found, &checkpoints, here),
            );
            return Err(IoError::with_detail(ErrorKind::Redundancy, text));
        };
        state.checkpoint = base;
        // Beyond every round that may have been open.
        state.round = last_round.saturating_add(3);
        let mut leaves_some = false;
        for member in state.layout.geometry.member_indices() {
            if set.contains(member) {
                let volatile = state.members[member.as_usize()].caps.volatile_cache;
                state.members[member.as_usize()].unflushed = volatile;
                continue;
            }
            let own = checkpoints.get(&member).map(|checkpoint| checkpoint.round);
            // In sync, and yet with a label from long ago: an older image, of whatever it was then.
            let found = found[member.as_usize()].as_ref();
            let is_older = found.is_some_and(|found| is_older_image(&found.label, &newest));
            leaves_some |= state.member_state(member) == MemberState::InSync;
            let lies = state.suspects.contains(member);
            let entry = &mut state.label.members[member.as_usize()];
            entry.lack = match entry.state {
                _ if lies => Lack::ALL,
                MemberState::InSync if is_older => Lack::ALL,
                // What it has that is older than the last checkpoint counts as far as it goes.
                MemberState::InSync => Lack::since(own.unwrap_or(base.round).min(base.round)),
                MemberState::CatchingUp => entry.lack.leave_again(base.round),
                MemberState::Faulty | MemberState::Missing => entry.lack,
            };
            if entry.state != MemberState::Missing {
                entry.state.change(MemberState::Missing);
            }
            let why = state.suspects.liars.get(&member).cloned();
            let usual = "not there, or not up to date, when the array was opened";
            state.tell_member(member, why.as_deref().unwrap_or(usual));
        }
        let has_base = |(_, one): &&(MemberIndex, Checkpoint)| *one == base;
        let holders: Vec<String> =
            current.iter().filter(has_base).map(|(member, _)| member.to_string()).collect();
        let contested = (leaves_some || holders.len() < current.len()).then(|| {
            alloc::format!("by the checkpoint {} of members {}", base.counter, holders.join(", "))
        });
        Ok((base, contested))
    }

    /// The checkpoint to begin from: the newest one that counts. Where more members have the one before it, and can
    /// serve by themselves, the newest one may be the word of a liar, or have been under way. Then the one before it is
    /// as good, if the log that follows it holds all that follows the newest one: where later batches have taken the
    /// place of earlier ones, it does not. And if the log has room for what a recovery appends: the room that is kept
    /// for that may have been used where the newest one was complete.
    ///
    /// # Errors
    /// When two contradict each other, and it is not clear which one lies.
    async fn choose_checkpoint(
        &self,
        current: &[(MemberIndex, Checkpoint)],
    ) -> Result<Option<Checkpoint>, IoError> {
        let (chosen, before, ring) = {
            let state = self.state();
            let chosen = state.choose_checkpoint(current)?;
            let before = chosen.and_then(|chosen| state.checkpoint_before(current, &chosen));
            (chosen, before, state.layout.ring)
        };
        let (Some(newest), Some((before, holders))) = (chosen, before) else { return Ok(chosen) };
        if self.read_stripes_of(&before, holders).await.is_err() {
            return Ok(chosen);
        }
        let members: MemberSet = current.iter().map(|(member, _)| *member).collect();
        let end = self.end_of_log(&before, members).await;
        let other = self.end_of_log(&newest, members).await;
        let has_all = end >= other || other == newest.tail.end;
        let taken = end.0 - before.tail.end.0 + u64::from(ring.batch_blocks_max());
        let has_room = taken + ring.open_blocks() <= ring.blocks();
        Ok(if has_all && has_room { Some(before) } else { chosen })
    }

    /// Gives the base to members that lack it, in the place of the one before the last that they
    /// have: then the next one may be written over that.
    async fn level_checkpoints(&self, base: &Checkpoint) {
        let members = self.state().in_sync();
        let reads = members
            .iter()
            .map(|member| async move { (member, self.read_checkpoint(member).await) });
        // One of the same number that an earlier generation was writing counts as little.
        let age = |one: &Checkpoint| (one.counter, one.generation);
        let is_behind =
            |found: &Option<Checkpoint>| found.is_none_or(|found| age(&found) < age(base));
        let ends = join_all(reads).await;
        let behind = ends.iter().filter(|(_, found)| is_behind(found)).map(|(member, _)| *member);
        let uuid = self.state().label.array_uuid;
        let data: SgList = Buf::copy_from(&base.encode(uuid)).into();
        let writes =
            behind.map(|member| self.write_member_stable(member, base.offset(), data.clone()));
        join_all(writes).await;
    }

    /// Gives the newest label to all members that take part, both copies: an update that was cut
    /// short may have left it to some, and in one copy. So a member that takes part is never more
    /// than one update behind, whichever of its copies the next one spoils.
    async fn level_labels(&self) {
        let (label, members) = {
            let state = self.state();
            (state.found_label.clone(), state.in_sync())
        };
        for copy in 0..LABEL_OFFSETS.len() {
            // Who fails here is excluded by the next update.
            self.write_labels_once(&label, copy, members).await;
        }
        let mut state = self.state();
        state.labels.level = true;
        state.waiters.wake(Change::Labels);
    }

    /// Gives every batch as many copies as it would get today.
    async fn copy_batches(&self, log: &FoundLog) {
        let mut lacking: BTreeMap<MemberIndex, u64> = BTreeMap::new();
        for Adopted { batch, data, holders, .. } in &log.batches {
            let (targets, offset) = {
                let state = self.state();
                let in_sync = state.in_sync();
                let number = segment(batch.position);
                let copies = Copies::new(&state.layout.geometry);
                let targets = copies.missing(number, in_sync, *holders);
                let all = in_sync.len() == u32::from(state.layout.geometry.members());
                if all && !targets.is_empty() && batch.position < log.stable {
                    let had = copies.among(number, in_sync);
                    for member in had.iter().filter(|one| !holders.contains(*one)) {
                        *lacking.entry(member).or_default() += 1;
                    }
                }
                let base = state.layout.regions.log.offset;
                (targets, base + state.layout.ring.offset(batch.position))
            };
            let writes =
                targets.iter().map(|member| self.write_member(member, offset, data.clone()));
            join_all(writes).await;
        }
        for (member, count) in lacking {
            let text = alloc::format!(
                "member {member} had wrong or no copies of {count} batches of the log that were \
                 stable; they were copied from others"
            );
            self.state().events.push_back(Event::Notice(text));
        }
    }

    /// The decision: what was found is the array's state, and this generation goes on from there.
    async fn begin_generation(
        &self,
        base: &Checkpoint,
        log: &FoundLog,
        dropped: Vec<(Position, u64)>,
    ) -> Result<(), IoError> {
        let generation = {
            let mut state = self.state();
            let generation = state.label.generation;
            let copies = Copies::new(&state.layout.geometry);
            let (ring, key) = (state.layout.ring, state.layout.key);
            let at = (base.tail.end, log.stable, log.end);
            state.log.writer = Some(LogWriter::new(ring, key, generation, copies, at));
            log.batches.iter().for_each(|adopted| state.remember_cut(adopted.batch.previous));
            generation
        };
        // Who drops nothing adds nothing: so an array may be opened and killed any number of times.
        for dropped in dropped.chunks(DROPPED_MAX as usize) {
            let record = Record::Open { dropped: dropped.to_vec() };
            let blocks = u64::from(LogWriter::<()>::blocks_of(&record));
            if self.state().writer().room_for_recovery() < blocks {
                let text = "the array was opened and killed too often before it could write one \
                            checkpoint; its log is full";
                return Err(IoError::with_detail(ErrorKind::Device, text));
            }
            self.log_record(record, SgList::new(), Remaps::Moved).await;
        }
        self.flush().await;
        let checkpoint = Checkpoint { generation, counter: base.counter + 1, ..*base };
        self.write_checkpoint(&checkpoint).await;
        {
            let mut state = self.state();
            state.checkpoint = checkpoint;
            let mut beginnings = state.beginnings();
            beginnings.forget_before(base.tail.end);
            if !beginnings.has_room_at(log.end.end) {
                let text = "the array was opened and killed too often before it could write one \
                            checkpoint; its log has no room for another beginning";
                return Err(IoError::with_detail(ErrorKind::Device, text));
            }
            beginnings.begin(Begin { generation, position: log.end.end });
            state.set_beginnings(beginnings);
        }
        if planted(Planted::ServesBeforeDecision) {
            self.state().ask_for_labels();
            return Ok(());
        }
        self.update_labels(|_| {}).await;
        Ok(())
    }

    /// Puts what the log says into map, checksums and dirty blocks; answers the rows whose PARITY
    /// is to be written home.
    async fn apply(&self, log: &FoundLog, kept: &Kept<'_>) -> Result<Redo, IoError> {
        let mut owned_since: BTreeMap<u32, Position> = BTreeMap::new();
        for ((position, logical), remap) in kept {
            {
                let mut state = self.state();
                let round = state.round;
                let to = remap.to.map(u64::from);
                let replayed = state.stripes.replay(u64::from(*logical), to, round);
                assert!(replayed.is_ok(), "a stripe that was checked");
            }
            if let Some(to) = remap.to {
                owned_since.insert(to, *position);
                let _sums = self.sums(to).await;
                self.state().set_stripe_sums(to, remap.written, remap.sums);
            }
        }
        let mut redo = Redo::new();
        let closed = self.state().checkpoint.round;
        for (position, record) in log.records() {
            match record {
                Record::Data { block, crc } => {
                    let data = log.payload(position, 0);
                    let dirty = Dirty { position, data, sum: *crc, is_joined: false };
                    self.state().dirty.insert(*block, dirty);
                }
                Record::Zeroes { block, count } => {
                    let mut state = self.state();
                    let capacity = state.layout.first_block(state.layout.logical);
                    let end = block.saturating_add(*count).min(capacity);
                    for block in *block..end {
                        let zeros = Dirty::zeros(state.layout.checksum, block, position);
                        state.dirty.insert(block, zeros);
                    }
                }
                Record::Remap { stripe, .. } => {
                    let logical = self.checked_stripe(*stripe, false)?;
                    if let Some(remap) = kept.get(&(position, logical)) {
                        let mut state = self.state();
                        let first = state.layout.first_block(logical);
                        let blocks = first..first + u64::from(state.layout.stripe_blocks());
                        state.dirty.void(blocks, remap.void_upto);
                    }
                }
                Record::Parity { stripe, row, round, checks, basis } => {
                    let physical = self.checked_stripe(*stripe, true)?;
                    let (logical, known) = {
                        let state = self.state();
                        (state.stripes.entry(physical).logical, *row < state.layout.rows)
                    };
                    // Only what was logged for the stripe's owner of today.
                    let since = owned_since.get(&physical);
                    let is_newer = since.is_none_or(|since| *since < position)
                        || planted(Planted::RedoIgnoresOwner);
                    let is_current = logical.is_some() && is_newer;
                    if !is_current || !known {
                        self.state().rules.note(Rule::ParityOfAnotherOwner);
                        continue;
                    }
                    if *round <= closed && !planted(Planted::RedoOfClosedRounds) {
                        self.state().end_basis(physical, *row, basis);
                        if since.is_some() {
                            // What is home is newer than the REMAP, whose checksums were taken.
                            let _sums = self.sums(physical).await;
                            let changed = log.changed_sums(checks, basis);
                            self.state().change_row_sums(physical, *row, changed);
                        }
                        continue;
                    }
                    let checksum = self.state().layout.checksum;
                    let entry = redo.entry((physical, *row)).or_default();
                    entry.add(log, (checksum, physical, *row), position, (checks, basis))?;
                }
                Record::Open { .. } => {}
            }
        }
        Ok(redo)
    }
}

impl State {
    /// Members that are current by the labels that were found, and their checkpoints.
    fn current(
        &self,
        found: &[Option<FoundMember>],
        checkpoints: &BTreeMap<MemberIndex, Checkpoint>,
    ) -> Vec<(MemberIndex, Checkpoint)> {
        let is_current = |member: &MemberIndex| {
            let found = found[member.as_usize()].as_ref();
            let entry = &self.label.members[member.as_usize()];
            found.is_some_and(|found| {
                entry.state == MemberState::InSync
                    && found.label.members[member.as_usize()].uuid == entry.uuid
                    // One update may have been under way; who lacks more is an older image.
                    && (!is_older_image(&found.label, &self.label)
                        || planted(Planted::OlderImageAccepted))
            })
        };
        let here = checkpoints.iter().filter(|(member, _)| is_current(member));
        here.map(|(member, checkpoint)| (*member, *checkpoint)).collect()
    }

    /// The members that are not current, with why.
    fn describe_absent(
        &self,
        found: &[Option<FoundMember>],
        checkpoints: &BTreeMap<MemberIndex, Checkpoint>,
        current: MemberSet,
    ) -> String {
        let why = |member: MemberIndex| {
            let is_here = found[member.as_usize()].is_some();
            if let Some(lie) = self.suspects.liars.get(&member) {
                return lie.clone();
            }
            match self.member_state(member) {
                MemberState::InSync if !is_here => "not here".to_string(),
                MemberState::InSync if !checkpoints.contains_key(&member) => {
                    "it has no checkpoint that can be read".to_string()
                }
                MemberState::InSync => "an older image of itself".to_string(),
                state @ (MemberState::CatchingUp | MemberState::Faulty | MemberState::Missing) => {
                    alloc::format!("{} by the labels", state.name())
                }
            }
        };
        let absent = self.layout.geometry.member_indices().filter(|one| !current.contains(*one));
        let each = absent.map(|member| alloc::format!("member {member} ({})", why(member)));
        each.collect::<Vec<String>>().join(", ")
    }

    /// Gives rounds of this opening larger numbers than all PARITY of the log has: the checkpoint that ends
    /// the first round says that the older rounds are over, too, and the log may then begin between a
    /// PARITY and its DATA. The log may have later rounds than images and checkpoints tell of, where an
    /// opening before this one found more images; [`FoundLog`] has bounded them.
    fn number_rounds_after(&mut self, log: &FoundLog) {
        let rounds = log.records().filter_map(|(_, record)| match record {
            Record::Parity { round, .. } => Some(*round),
            Record::Data { .. }
            | Record::Zeroes { .. }
            | Record::Remap { .. }
            | Record::Open { .. } => None,
        });
        let last = rounds.max().unwrap_or(0);
        self.round = self.round.max(last.saturating_add(1));
    }

    pub(super) fn beginnings(&self) -> Beginnings {
        self.label.log.as_ref().map(|log| log.beginnings.clone()).unwrap_or_default()
    }

    fn set_beginnings(&mut self, beginnings: Beginnings) {
        if let Some(log) = &mut self.label.log {
            log.beginnings = beginnings;
        }
    }
}
