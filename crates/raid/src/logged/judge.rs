//! Which REMAPs of the log that recovery found count: those that were stable, and those whose
//! stripe is whole. What is not quite right of a stripe that counts is written again.
//!
//! A member may lie when it says that a REMAP was stable. What the labels say, or more members than may lie,
//! counts without a look at the stripe. What fewer say is looked at: the chunks of what was stable are there,
//! but for as many as the level bears, so a stripe that is not whole tells the lie. It does not where blocks
//! cannot be read that are not theirs who say so: then it takes more faults than the level bears either
//! way, and the REMAP counts. So what is lost is an error to who reads it, and never older contents. Who lied is
//! left out before anything of the log is copied: the copies of a head would say the same on more members.
//!
//! Invariant: of a logical stripe one REMAP counts at most, the last one that can.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, SgList};

use super::{
    Event, Rule,
    found_log::FoundLog,
    state::{BLOCK, State},
    tasks::Array,
};
use crate::{
    bytes,
    checkpoint::Checkpoint,
    checksum::Home,
    code::ColumnSet,
    log::{Position, Record},
    member::MemberSet,
    planted::{Planted, planted},
};

/// A row, and columns of it that are wrong.
type BadRow = (u32, Vec<u8>);
/// What is left to be mended when PARITY was redone: physical stripe, column, row.
pub(super) type Left = Vec<(u32, u8, u32)>;

/// Which rows of a stripe are not quite what its REMAP says.
#[derive(Default)]
struct Examined {
    bad: Vec<BadRow>,
    /// Those that a later PARITY of a round that is over names: the REMAP was stable then, and so
    /// is what that PARITY wrote.
    later: Vec<BadRow>,
}

/// What a stripe tells of a REMAP to it.
enum Found {
    /// Every row can be had.
    Whole(Examined),
    /// Some row cannot be had, and that does not tell that it was not stable.
    Lost,
    /// It was never written as a whole.
    Torn,
}

/// A REMAP that was found in the log.
pub(super) struct FoundRemap<'a> {
    pub(super) position: Position,
    pub(super) to: Option<u32>,
    pub(super) void_upto: Position,
    pub(super) written: &'a [bool],
    pub(super) sums: &'a [u32],
}

/// REMAPs that count, by position and logical stripe.
pub(super) type Kept<'a> = BTreeMap<(Position, u32), FoundRemap<'a>>;

/// All REMAPs that were found.
struct Remaps<'a> {
    /// By logical stripe, in their order.
    by_stripe: BTreeMap<u32, Vec<FoundRemap<'a>>>,
    /// Those that an opening before this one dropped.
    dropped: BTreeSet<(Position, u64)>,
}

impl Array {
    /// The log, without who says of a REMAP that it was stable while its stripe was never written.
    ///
    /// # Errors
    /// As [`Self::find_log`].
    pub(super) async fn find_believed_log(&self, base: &Checkpoint) -> Result<FoundLog, IoError> {
        loop {
            let members = self.state().in_sync();
            let log = self.find_log(base).await?;
            if self.state().in_sync() != members {
                // What was read of those that stay may be read better, and be needed now.
                continue;
            }
            let liars = self.refuted(&log).await?;
            let mut state = self.state();
            if liars.is_empty() || !state.can_go_on_without_all(liars) {
                return Ok(log);
            }
            let why = "what it calls stable in the log was never written";
            liars.iter().for_each(|liar| state.leave_out(liar, why));
        }
    }

    /// Who says of a REMAP that it was stable while its stripe was never written.
    async fn refuted(&self, log: &FoundLog) -> Result<MemberSet, IoError> {
        let Remaps { by_stripe, dropped } = self.remaps(log)?;
        let is_claimed = |one: &FoundRemap<'_>| {
            one.position >= log.stable && !log.claimants(one.position).is_empty()
        };
        let claimed = by_stripe.into_iter().filter(|(_, remaps)| remaps.iter().any(is_claimed));
        for (logical, remaps) in claimed {
            // Where the last one counts, the stripes of those before it may have another owner.
            for remap in remaps.iter().rev().take_while(|one| one.position >= log.stable) {
                let Some(to) = remap.to else { break };
                if dropped.contains(&(remap.position, u64::from(logical))) {
                    continue;
                }
                match self.judge_stripe(log, to, remap).await? {
                    Found::Whole(_) | Found::Lost => break,
                    Found::Torn => {}
                }
                let liars = log.claimants(remap.position);
                if !liars.is_empty() {
                    return Ok(liars);
                }
            }
        }
        Ok(MemberSet::EMPTY)
    }

    fn remaps<'a>(&self, log: &'a FoundLog) -> Result<Remaps<'a>, IoError> {
        let mut by_stripe: BTreeMap<u32, Vec<FoundRemap<'a>>> = BTreeMap::new();
        for (position, record) in log.records() {
            match record {
                Record::Remap { stripe, to, void_upto, written, sums } => {
                    let logical = self.checked_stripe(*stripe, false)?;
                    let to = to.map(|to| self.checked_stripe(to, true)).transpose()?;
                    let void_upto = *void_upto;
                    let remap = FoundRemap { position, to, void_upto, written, sums };
                    by_stripe.entry(logical).or_default().push(remap);
                }
                Record::Data { .. }
                | Record::Zeroes { .. }
                | Record::Parity { .. }
                | Record::Open { .. } => {}
            }
        }
        let dropped = if planted(Planted::DroppedRemapsForgotten) {
            BTreeSet::new()
        } else {
            log.dropped(&self.state().beginnings())
        };
        Ok(Remaps { by_stripe, dropped })
    }

    /// Which REMAPs count, by position, and which are dropped: of each logical stripe the last one
    /// that is stable, or whose stripe is whole.
    pub(super) async fn judge_remaps<'a>(
        &self,
        log: &'a FoundLog,
    ) -> Result<(Kept<'a>, Vec<(Position, u64)>, Left), IoError> {
        let Remaps { by_stripe, dropped: dropped_before } = self.remaps(log)?;
        let mut kept = BTreeMap::new();
        let mut dropped = Vec::new();
        let mut left = Vec::new();
        for (logical, remaps) in by_stripe {
            for remap in remaps.into_iter().rev() {
                if dropped_before.contains(&(remap.position, u64::from(logical))) {
                    continue;
                }
                let counts = match remap.to {
                    None => true,
                    Some(_) if planted(Planted::UnverifiedRemap) => true,
                    Some(to) => {
                        let is_stable = remap.position < log.stable;
                        is_stable || self.make_whole(log, to, &remap, &mut left).await?
                    }
                };
                if counts {
                    kept.insert((remap.position, logical), remap);
                    break;
                }
                self.state().rules.note(Rule::RemapDropped);
                dropped.push((remap.position, u64::from(logical)));
            }
        }
        let was_acked = |(position, _): &&(Position, u64)| *position < log.acked_seen;
        let lost = dropped.iter().filter(was_acked).map(|(_, logical)| *logical);
        let lost = lost.collect::<BTreeSet<u64>>().len();
        if lost > 0 {
            let stripes = if lost == 1 { "stripe" } else { "stripes" };
            let text = alloc::format!(
                "writes that were acknowledged and not flushed are lost: of {lost} {stripes} not all was written, and \
                 what was there before counts",
            );
            self.state().events.push_back(Event::Notice(text));
        }
        Ok((kept, dropped, left))
    }

    /// Whether a stripe holds what a REMAP says, or would if more were not lost of it than the level bears.
    /// What is not quite right of it is, afterwards. Who leaves meanwhile may be needed for that, so it is
    /// looked at again without them.
    async fn make_whole(
        &self,
        log: &FoundLog,
        to: u32,
        remap: &FoundRemap<'_>,
        left: &mut Left,
    ) -> Result<bool, IoError> {
        loop {
            let members = self.state().in_sync();
            let Examined { bad, later } = match self.judge_stripe(log, to, remap).await? {
                Found::Whole(examined) => examined,
                Found::Lost => return Ok(true),
                Found::Torn => return Ok(false),
            };
            if !bad.is_empty() || !later.is_empty() {
                self.state().rules.note(Rule::RemapMended);
            }
            self.mend(log, to, remap, bad).await?;
            if self.state().in_sync() == members || self.state().failed.is_some() {
                let each = |(row, columns): BadRow| {
                    columns.into_iter().map(move |column| (to, column, row))
                };
                left.extend(later.into_iter().flat_map(each));
                return Ok(true);
            }
        }
    }

    /// A number of a stripe from the log.
    pub(super) fn checked_stripe(&self, stripe: u64, physical: bool) -> Result<u32, IoError> {
        let state = self.state();
        let count = if physical { state.layout.physical } else { state.layout.logical };
        u32::try_from(stripe).ok().filter(|stripe| *stripe < count).ok_or_else(|| {
            let text = alloc::format!("the log names stripe {stripe}, the array has {count}");
            IoError::with_detail(ErrorKind::Corrupt, text)
        })
    }

    /// As [`Self::examine`], and where that does not find what the REMAP says and members left meanwhile, once more
    /// without them: what was read of the others may be read better.
    async fn judge_stripe(
        &self,
        log: &FoundLog,
        physical: u32,
        remap: &FoundRemap<'_>,
    ) -> Result<Found, IoError> {
        loop {
            let members = self.state().in_sync();
            let found = self.examine(log, physical, remap).await?;
            let state = self.state();
            if matches!(found, Found::Whole(_))
                || state.in_sync() == members
                || state.failed.is_some()
            {
                return Ok(found);
            }
        }
    }

    /// Whether a stripe holds what a REMAP says, so far that every row can be had: and its rows that
    /// are not quite right.
    async fn examine(
        &self,
        log: &FoundLog,
        physical: u32,
        remap: &FoundRemap<'_>,
    ) -> Result<Found, IoError> {
        let (code, rows, columns, closed) = {
            let state = self.state();
            let (code, rows) = (state.layout.code, state.layout.rows);
            (code, rows, state.layout.geometry.members(), state.checkpoint.round)
        };
        let count = remap.written.iter().filter(|written| **written).count();
        if remap.written.len() != rows as usize || remap.sums.len() != count * usize::from(columns)
        {
            let text = alloc::format!("a REMAP to stripe {physical} has another array's shape");
            return Err(IoError::with_detail(ErrorKind::Corrupt, text));
        }
        let in_sync = self.state().in_sync();
        let claimants = log.claimants(remap.position);
        let found = self.stripe_sums(physical, in_sync).await;
        // Who cannot be written to either is set aside: not who is needed.
        let may_mend = |column: u8, sums: &[Option<u32>], row: u32| {
            let state = self.state();
            let (member, _) = state.home(physical, column, row);
            let mut rest = in_sync;
            rest.remove(member);
            sums[row as usize].is_some() || (in_sync.contains(member) && state.can_serve_from(rest))
        };
        let (mut examined, mut is_lost) = (Examined::default(), false);
        let written = (0..rows).zip(remap.written).filter(|(_, written)| **written);
        for (at, (row, _)) in written.enumerate() {
            let later = log.parity_sums(physical, row, remap.position, (closed, false));
            // What is written again anyhow may be old, new, or torn.
            let redone = log.parity_sums(physical, row, remap.position, (closed, true));
            let is_good = |column: u8, sum: Option<u32>| {
                let wanted = remap.sums[usize::from(column) * count + at];
                redone.iter().any(|(one, _)| *one == column)
                    || sum.is_some_and(|sum| sum == wanted || later.contains(&(column, sum)))
            };
            let good: ColumnSet = found
                .iter()
                .filter(|(column, sums)| is_good(*column, sums[row as usize]))
                .map(|(column, _)| *column)
                .collect();
            if !code.can_decode(good) {
                let others = self.state().columns_of_others(physical, row, &found, claimants);
                if claimants.is_empty() || code.can_decode(others) {
                    return Ok(Found::Torn);
                }
                is_lost = true;
                continue;
            }
            let bad: Vec<u8> = found
                .iter()
                .filter(|(column, sums)| !good.contains(*column) && may_mend(*column, sums, row))
                .map(|(column, _)| *column)
                .collect();
            if bad.is_empty() {
                continue;
            }
            let rows = if later.is_empty() { &mut examined.bad } else { &mut examined.later };
            rows.push((row, bad));
        }
        Ok(if is_lost { Found::Lost } else { Found::Whole(examined) })
    }

    /// The checksum of each row of each column on these members; none where it cannot be read.
    async fn stripe_sums(&self, physical: u32, members: MemberSet) -> Vec<(u8, Vec<Option<u32>>)> {
        let (rows, columns) = {
            let state = self.state();
            (state.layout.rows, state.layout.geometry.members())
        };
        let reads = (0..columns).map(|column| async move {
            let (member, _) = self.state().home(physical, column, 0);
            if !members.contains(member) {
                return (column, alloc::vec![None; rows as usize]);
            }
            (column, self.column_sums(physical, column, rows).await)
        });
        join_all(reads).await
    }

    /// The checksum of each row of a column; none where it cannot be read.
    async fn column_sums(&self, physical: u32, column: u8, rows: u32) -> Vec<Option<u32>> {
        let checksum = self.state().layout.checksum;
        let home = |row| Home { physical, row, column };
        if let Ok(data) = self.read_column(physical, column, 0..rows, false).await {
            return checksum.of_column(home(0), &data).into_iter().map(Some).collect();
        }
        let reads = (0..rows).map(|row| self.read_column(physical, column, row..row + 1, false));
        let each = join_all(reads).await;
        let sum = |(row, data): (u32, Result<SgList, IoError>)| {
            data.ok().map(|data| checksum.of_column(home(row), &data)[0])
        };
        (0..).zip(each).map(sum).collect()
    }

    /// Writes blocks of a stripe again that are not what its REMAP says, so that it still counts
    /// when a member is lost later. Unreadable ones of a member that is needed stay as they are. What
    /// a PARITY will write into a row is known already, also for members that are away.
    async fn mend(
        &self,
        log: &FoundLog,
        physical: u32,
        remap: &FoundRemap<'_>,
        bad: Vec<BadRow>,
    ) -> Result<(), IoError> {
        let columns = self.state().layout.geometry.members();
        let count = remap.written.iter().filter(|written| **written).count();
        for (row, bad) in bad {
            let at = remap.written[..row as usize].iter().filter(|written| **written).count();
            let sum_of = |column: u8| remap.sums[usize::from(column) * count + at];
            let (code, checksum) = {
                let state = self.state();
                (state.layout.code, state.layout.checksum)
            };
            let home = |column| Home { physical, row, column };
            let changes = self.row_redo(log, (physical, row), remap.position)?.changes(&code);
            let mut good: Vec<(u8, SgList)> =
                changes.into_iter().map(|(column, data, _)| (column, data)).collect();
            let changed: ColumnSet = good.iter().map(|(column, _)| *column).collect();
            let is_other = |column: &u8| !bad.contains(column) && !changed.contains(*column);
            for column in (0..columns).filter(is_other) {
                let (member, _) = self.state().home(physical, column, 0);
                if !self.state().in_sync().contains(member) {
                    continue;
                }
                if let Ok(data) = self.read_column(physical, column, row..row + 1, false).await
                    && checksum.of_column(home(column), &data)[0] == sum_of(column)
                {
                    good.push((column, data));
                }
            }
            for column in bad {
                let data = self.state().compute_block(column, &good);
                if let Some(data) = data
                    && checksum.at_home(home(column), &data) == sum_of(column)
                {
                    let (member, offset) = self.state().home(physical, column, row);
                    self.write_member(member, offset, data.into()).await;
                }
            }
        }
        assert!(log.end.end >= remap.position, "a REMAP beyond the end of the log");
        Ok(())
    }
}

impl State {
    /// The columns of a row that were read, but for those of some members.
    fn columns_of_others(
        &self,
        physical: u32,
        row: u32,
        found: &[(u8, Vec<Option<u32>>)],
        but_of: MemberSet,
    ) -> ColumnSet {
        let read = found.iter().filter(|(_, sums)| sums[row as usize].is_some());
        let of_others = read.filter(|(column, _)| {
            let (member, _) = self.home(physical, *column, row);
            !but_of.contains(member)
        });
        of_others.map(|(column, _)| *column).collect()
    }

    /// A column's block from those of other columns of its row; none when these do not suffice.
    fn compute_block(&self, column: u8, others: &[(u8, SgList)]) -> Option<Buf> {
        let set: ColumnSet = others.iter().map(|(column, _)| *column).collect();
        let recipe = self.layout.code.recipe(column, set)?;
        let find = |wanted: u8| others.iter().find(|(one, _)| *one == wanted);
        let sources: Vec<(u8, &SgList)> = recipe
            .iter()
            .filter_map(|(one, weight)| find(*one).map(|(_, data)| (*weight, data)))
            .collect();
        Some(bytes::combine(&self.layout.pool, BLOCK as usize, &sources))
    }
}
