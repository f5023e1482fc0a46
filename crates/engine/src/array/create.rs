//! Making an array: the members are checked first, all of them, and labelled last.

use std::{collections::BTreeMap, ops::Range};

use futures_util::future::{join_all, try_join_all};
use netraid_block::{Buf, BufMut, ErrorKind, Pool};
use netraid_raid::{
    access::{Failure as _, Needs},
    format::{Format, Image, first_label, format},
    geometry::{Geometry, Level},
    label::{LABEL_LEN, Label, NAME_LEN_MAX, Uuid},
    lack::Lack,
    mark, medium,
    member::{MemberIndex, MemberState},
    regions::{CHUNK_USUAL, LABEL_OFFSETS, Wish, plan, plan_logged, usual_chunk},
    written::{PageImage, WrittenBits},
};
use serde::Serialize;

use super::{
    error::ArrayError,
    examine::format_number,
    lock::{ArrayLock, hex},
    member::{Connected, MemberConfig},
    putback::Saved,
};

/// The smallest member may have this share of the largest, in percent.
const EQUAL_PERCENT: u64 = 75;

/// Smallest logical block, in bytes.
const BLOCK_LEN_MIN: u32 = 512;

/// Bytes of a block of a log.
const LOG_BLOCK: u64 = 4096;

/// What kind of array to make.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The array's name.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// Bytes of a chunk; the usual ones for members of their size where none are given.
    pub chunk_len: Option<u32>,
    /// Overwrite what is on the members, and accept unequal ones.
    pub force: bool,
    /// All the same, refuse members of an array that was ever opened.
    pub keep_opened: bool,
    /// Whether it has a log.
    pub log: Log,
}

/// Whether a new array has a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// None.
    Off,
    /// One of so many bytes on each member, or of the usual share of it.
    On(Option<u64>),
}

/// What was made.
#[derive(Debug, Clone, Serialize)]
pub struct CreateReport {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Its level.
    pub level: u8,
    /// Its members, in order.
    pub members: Vec<String>,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Bytes of the volume.
    pub capacity_bytes: u64,
    /// Bytes of the log on each member; 0 without one.
    pub log_bytes: u64,
    /// Bytes of memory that its stripe table takes of the host that has it open; 0 without a log.
    pub memory_bytes: u64,
    /// Bytes of each member that labels, tables and log take, which are reserved there; 0 without a log.
    pub reserved_bytes: u64,
    /// The format of the members' tables ([`Format`]); 1 without a log, too.
    pub format: u8,
    /// Bytes of tables that are read from each member when it is opened; 0 without a log.
    pub opening_bytes: u64,
}

/// Labels `members` as a new array.
///
/// # Errors
/// When a member cannot be reached, is in use, given twice, too small, too unequal, or takes no
/// writes; then all bytes are what they were. When a later write fails, what was there is put back;
/// what cannot be is named by [`ArrayError::NotPutBack`].
pub async fn create(
    options: CreateOptions,
    members: Vec<MemberConfig>,
    pool: Pool,
) -> Result<CreateReport, ArrayError> {
    let count = members.len();
    create_of(options, members, pool, |places| places.len() == count).await
}

/// Labels those of `members` that answer as a new array, which lacks the others: its labels say that
/// they are missing, and have nothing. As many may lack as its level can do without.
///
/// # Errors
/// As [`create`], and when too few answer.
pub async fn create_degraded(
    options: CreateOptions,
    members: Vec<MemberConfig>,
    pool: Pool,
) -> Result<CreateReport, ArrayError> {
    let (level, count) = (options.level, members.len());
    // Who can serve does not depend on it.
    let chunk_len = options.chunk_len.unwrap_or(CHUNK_USUAL);
    let geometry = Geometry::new(level, count, chunk_len, BLOCK_LEN_MIN, 0, 0);
    let can_serve = |places: &[usize]| match &geometry {
        Ok(geometry) => {
            let places = places.iter().filter_map(|place| u8::try_from(*place).ok());
            geometry.can_serve_from(places.map(MemberIndex).collect())
        }
        // What is wrong with it is found when it is laid out.
        Err(_) => places.len() == count,
    };
    create_of(options, members, pool, can_serve).await
}

/// Makes an array of those members that answer, if these places of it are enough.
async fn create_of(
    options: CreateOptions,
    members: Vec<MemberConfig>,
    pool: Pool,
    are_enough: impl FnOnce(&[usize]) -> bool,
) -> Result<CreateReport, ArrayError> {
    check(&options, &members)?;
    let addresses = members.iter().map(MemberConfig::address).collect();
    let mut given = Given { addresses, places: Vec::new() };
    let connect = |config: MemberConfig| Connected::visit(config, pool.clone());
    let (mut connected, mut refusal) = (Vec::new(), None);
    for (place, end) in join_all(members.into_iter().map(connect)).await.into_iter().enumerate() {
        match end {
            Ok(member) => {
                given.places.push(place);
                connected.push(member);
            }
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    match refusal {
        Some(refusal) if !are_enough(&given.places) => {
            join_all(connected.iter().map(|member| member.remote.close())).await;
            Err(refusal)
        }
        Some(_) | None => make_and_leave(&options, given, connected).await,
    }
}

/// The members that a new array is to have.
struct Given {
    /// All of them.
    addresses: Vec<String>,
    /// Which of them are there.
    places: Vec<usize>,
}

fn check(options: &CreateOptions, members: &[MemberConfig]) -> Result<(), ArrayError> {
    check_name(&options.name)?;
    match (options.log, options.level) {
        (Log::Off, level) if level.needs_log() => return Err(ArrayError::NeedsLog(level.number())),
        (Log::On(_), Level::Raid0) => return Err(ArrayError::NoUseForLog(0)),
        (Log::Off | Log::On(_), _) => {}
    }
    for (at, member) in members.iter().enumerate() {
        if let Some(first) = members[..at].iter().find(|first| first.uri == member.uri) {
            return Err(ArrayError::Twice { first: first.address(), second: member.address() });
        }
    }
    Ok(())
}

async fn make_and_leave(
    options: &CreateOptions,
    given: Given,
    members: Vec<Connected>,
) -> Result<CreateReport, ArrayError> {
    let mut members = members;
    let result = make(options, given, &mut members).await;
    for member in &mut members {
        member.set_free().await;
        member.remote.close().await;
    }
    result
}

async fn make(
    options: &CreateOptions,
    given: Given,
    members: &mut [Connected],
) -> Result<CreateReport, ArrayError> {
    let _locks = lock_former(members).await?;
    let images = lay_out(options, members, given.addresses.len())?;
    let label = images.label.clone();
    check_members(options, members, label.regions.data.end()).await?;
    // Of members that were found unused, log and tables are so, too.
    let reserves = |member: &Connected| {
        options.force && label.log.is_some() && medium::reserves_tables(member)
    };
    let tables = label.regions.labels.end()..label.regions.log.end();
    let placed = || members.iter().zip(&given.places);
    let saved = placed().map(async |(member, place)| {
        // Whoever knows that nothing was ever opened there wants nothing back.
        if options.keep_opened {
            return Ok(Saved::default());
        }
        let mut groups = vec![images.places(*place, Step::Metadata)];
        groups.extend(reserves(member).then(|| vec![tables.clone()]));
        member.save(&groups).await
    });
    let saved: Vec<Saved> = join_all(saved).await.into_iter().collect::<Result<_, _>>()?;
    let mut step = Step::Labels;
    if let Err(error) = write(members, &images, &given, &mut step).await {
        if options.keep_opened {
            return Err(error);
        }
        let undone = placed().zip(&saved).map(async |((member, place), saved)| {
            let mut overwritten = images.places(*place, step);
            if step >= Step::Tables && reserves(member) {
                overwritten.push(tables.clone());
            }
            member.put_back(saved, &overwritten).await
        });
        let lost: Vec<String> = join_all(undone).await.into_iter().flatten().collect();
        return Err(match lost.is_empty() {
            true => error,
            false => ArrayError::NotPutBack { reason: Box::new(error), lost: lost.join("; ") },
        });
    }
    let needs = label.log.as_ref().map(|log| label.regions.needs(&label.geometry, log.format));
    Ok(CreateReport {
        name: label.name.clone(),
        uuid: hex(&label.array_uuid),
        level: label.geometry.level().number(),
        members: given.addresses,
        chunk_bytes: label.geometry.chunk_len(),
        block_bytes: label.geometry.block_len(),
        capacity_bytes: label.geometry.capacity(),
        log_bytes: label.log.as_ref().map_or(0, |_| label.regions.log.len),
        memory_bytes: needs.map_or(0, |needs| needs.memory),
        reserved_bytes: label.log.as_ref().map_or(0, |_| label.regions.log.end()),
        format: format_number(&label),
        opening_bytes: needs.map_or(0, |needs| needs.read),
    })
}

/// The locks of the arrays that `members` belong to: until the new labels are there, no process of this
/// machine opens one of these arrays.
///
/// # Errors
/// When one of them is open in a process of this machine.
async fn lock_former(members: &[Connected]) -> Result<BTreeMap<Uuid, ArrayLock>, ArrayError> {
    let labels = join_all(members.iter().map(Connected::label)).await;
    let mut locks = BTreeMap::new();
    for (member, label) in members.iter().zip(labels) {
        // What cannot be read, or is no label, is of no array that is open.
        let Ok(Ok(label)) = label else { continue };
        if locks.contains_key(&label.array_uuid) {
            continue;
        }
        if let Some(lock) = member.check_not_open_here(&label).await? {
            locks.insert(label.array_uuid, lock);
        }
    }
    Ok(locks)
}

/// How far the writes of [`write`] have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The labels.
    Labels,
    /// Log and tables, where their space is reserved.
    Tables,
    /// All else.
    Metadata,
}

/// All that may refuse, before anything is changed that is not put back. `data_end` is the end of
/// what the array has on each.
async fn check_members(
    options: &CreateOptions,
    members: &mut [Connected],
    data_end: u64,
) -> Result<(), ArrayError> {
    if !options.force {
        check_equal(members)?;
        try_join_all(members.iter().map(medium::check_unused)).await?;
        return check_not_refused(options, members, data_end).await;
    }
    match check_not_refused(options, members, data_end).await {
        // Who has reserved a member is pushed aside before anything can be said about it.
        Err(error) if error.is_conflict() => {
            try_join_all(members.iter_mut().map(Connected::seize)).await?;
            check_not_refused(options, members, data_end).await
        }
        Err(error) => Err(error),
        Ok(()) => try_join_all(members.iter_mut().map(Connected::seize)).await.map(drop),
    }
}

/// What refuses members also by force.
async fn check_not_refused(
    options: &CreateOptions,
    members: &[Connected],
    data_end: u64,
) -> Result<(), ArrayError> {
    if options.keep_opened {
        try_join_all(members.iter().map(Connected::check_never_opened)).await?;
    }
    check_distinct(members).await?;
    if options.keep_opened {
        return Ok(());
    }
    all(members.iter().map(|member| medium::prove_writable(member, data_end))).await
}

/// Writes all that makes members an array, labels last. `step` says what it has begun with.
async fn write(
    members: &[Connected],
    images: &Images,
    given: &Given,
    step: &mut Step,
) -> Result<(), ArrayError> {
    let label = &images.label;
    all(members.iter().map(Connected::mark_begun)).await?;
    if label.log.is_some() {
        *step = Step::Tables;
        let regions = &label.regions;
        all(members.iter().map(|member| medium::reserve_tables(member, regions))).await?;
    }
    *step = Step::Metadata;
    let what = "writing the array's metadata";
    let placed = || members.iter().zip(&given.places);
    let writes = placed()
        .map(async |(member, place)| member.write_stable(&images.written[*place], what).await);
    all(writes).await?;
    let labels = labels(label, given);
    let labelled = placed().map(async |(member, place)| member.write_label(&labels[*place]).await);
    all(labelled).await
}

/// Waits for all, also when one fails: nothing is to land later.
fn all<F: Future<Output = Result<(), ArrayError>>>(
    ends: impl IntoIterator<Item = F>,
) -> impl Future<Output = Result<(), ArrayError>> {
    let ends = join_all(ends);
    async move { ends.await.into_iter().collect() }
}

/// The first labels of all members: those that are not there lack everything, so that nobody takes
/// what they carry later for a part of this array.
fn labels(first: &Label, given: &Given) -> Vec<Label> {
    let mut first = first.clone();
    for (place, entry) in first.members.iter_mut().enumerate() {
        if !given.places.contains(&place) {
            entry.state = MemberState::Missing;
            entry.lack = if first.log.is_some() { Lack::ALL } else { Lack::NOTHING };
        }
    }
    let members = first.geometry.member_indices();
    members.map(|index| Label { index, ..first.clone() }).collect()
}

fn check_name(name: &str) -> Result<(), ArrayError> {
    let fits = (1..=NAME_LEN_MAX).contains(&name.len());
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    // Where it is a file, these are its directory and the one above.
    if fits && plain && !matches!(name, "." | "..") {
        Ok(())
    } else {
        Err(ArrayError::Name(name.into()))
    }
}

/// Two addresses of one LUN would be no redundancy at all. Targets of some vendors give every
/// host's LUNs the same identity, so where two are alike a mark on one must show on the other.
async fn check_distinct(members: &[Connected]) -> Result<(), ArrayError> {
    for (at, member) in members.iter().enumerate() {
        let identity = member.remote.identity();
        let alike = members[..at].iter().filter(|other| other.remote.identity() == identity);
        for first in alike {
            if shows_mark(first, member).await? {
                let (first, second) = (first.address(), member.address());
                return Err(ArrayError::Twice { first, second });
            }
        }
    }
    Ok(())
}

/// Whether what is written where `one`'s label will be can be read from `other`. What was there is
/// put back; were that never done, [`mark::is_test`] still tells that nothing of value is there.
pub(super) async fn shows_mark(one: &Connected, other: &Connected) -> Result<bool, ArrayError> {
    let (offset, len) = (LABEL_OFFSETS[0], LABEL_LEN as u64);
    let before = match one.read(offset, len, "reading what a mark will cover").await {
        Ok(before) => before,
        // There is nothing to put back.
        Err(ArrayError::Io { reason, .. }) if reason.kind() == ErrorKind::Medium => {
            BufMut::zeroed(LABEL_LEN).freeze()
        }
        Err(error) => return Err(error),
    };
    let mark = Buf::copy_from(&mark::test(rand::random()));
    let marked = one.write(offset, mark.clone(), "marking it").await;
    let seen = match &marked {
        Ok(()) => other.read(offset, len, "looking for a mark").await.map(Some),
        Err(_) => Ok(None),
    };
    // Whatever came of it: a write that failed may have been done.
    let restored = one.write_stable(&[(offset, before)], "putting back what a mark covered").await;
    marked.and(restored)?;
    Ok(seen?.is_some_and(|seen| *seen == *mark))
}

fn check_equal(members: &[Connected]) -> Result<(), ArrayError> {
    let small = members.iter().min_by_key(|member| member.capacity());
    let large = members.iter().max_by_key(|member| member.capacity());
    let (Some(small), Some(large)) = (small, large) else { return Ok(()) };
    if small.capacity() / EQUAL_PERCENT >= large.capacity() / 100 {
        return Ok(());
    }
    Err(ArrayError::Unequal {
        small: small.address(),
        small_bytes: small.capacity(),
        large: large.address(),
        large_bytes: large.capacity(),
    })
}

/// A new array.
struct Images {
    /// The label of member 0.
    label: Label,
    /// What is written to each member before its label.
    written: Vec<Vec<(u64, Buf)>>,
}

impl Images {
    /// Where the member in this place of the array was written to when `step` had been begun, beside
    /// the space that is reserved for log and tables.
    fn places(&self, place: usize, step: Step) -> Vec<Range<u64>> {
        let range = |offset: u64, len: usize| offset..offset + len as u64;
        let mut places = LABEL_OFFSETS.map(|offset| range(offset, LABEL_LEN)).to_vec();
        if step == Step::Metadata {
            places.extend(self.written[place].iter().map(|(at, bytes)| range(*at, bytes.len())));
        }
        places
    }
}

fn lay_out(
    options: &CreateOptions,
    members: &[Connected],
    count: usize,
) -> Result<Images, ArrayError> {
    let smallest = members.iter().map(Connected::capacity).min().unwrap_or(0);
    let has_log = options.log != Log::Off;
    let transfers = members.iter().map(|member| member.device.info().max_transfer_len);
    let transfer_len = transfers.min().unwrap_or(u32::MAX);
    let usual = || usual_chunk(options.level, count, smallest, transfer_len, has_log);
    let wish = Wish {
        level: options.level,
        members: count,
        chunk_len: options.chunk_len.unwrap_or_else(usual),
        block_len: members.iter().map(|m| m.device.info().block_len).max().unwrap_or(512),
    };
    let layout = match options.log {
        Log::Off => plan(&wish, smallest)?,
        Log::On(len) => plan_logged(&wish, smallest, len.map(|len| len / LOG_BLOCK))?,
    };
    let (regions, geometry) = layout;
    let needs = Needs {
        capacity: regions.data.end(),
        transfer_len: geometry.chunk_len(),
        block_len: geometry.block_len(),
        writes: true,
    };
    members.iter().try_for_each(|member| member.check_fit(&needs))?;
    let array_uuid: Uuid = rand::random();
    let uuids: Vec<Uuid> = (0..count).map(|_| rand::random()).collect();
    let salt = rand::random();
    let label = first_label(Format::Two, layout, &options.name, array_uuid, &uuids, salt);
    let buf = |(offset, bytes): (u64, Vec<u8>)| (offset, Buf::copy_from(&bytes));
    if has_log {
        let images = format(Format::Two, layout, &options.name, array_uuid, &uuids, salt);
        let is_label = |(offset, _): &Image| LABEL_OFFSETS.contains(offset);
        let others = |images: Vec<Image>| {
            images.into_iter().filter(|image| !is_label(image)).map(buf).collect()
        };
        return Ok(Images { label, written: images.into_iter().map(others).collect() });
    }
    let mut written = WrittenBits::new(array_uuid, geometry.stripes());
    let images = written.images(&regions.written, &(0..written.pages()).collect());
    let page =
        |image: PageImage| buf((regions.written.offset + image.offset, image.bytes.to_vec()));
    let pages: Vec<(u64, Buf)> = images.into_iter().map(page).collect();
    let written = vec![pages; count];
    Ok(Images { label: Label { log: None, ..label }, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_file_or_cannot_be_shown_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0", "a\n", "\u{e4}", &"x".repeat(NAME_LEN_MAX + 1)] {
            let error = check_name(name).unwrap_err();
            assert!(matches!(error, ArrayError::Name(_)), "{name:?}: {error}");
        }
        for name in ["a", "...", ".a", "vol-1_2.x", &"x".repeat(NAME_LEN_MAX)] {
            check_name(name).unwrap();
        }
    }
}
