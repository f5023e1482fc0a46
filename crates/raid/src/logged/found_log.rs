//! The log as it is found after a crash: batches from the checkpoint's tail on, each from whatever
//! members have a whole copy.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, SgList, narrow};

use super::{
    Rule,
    suspects::{LIARS_MAX, nobody_can_tell},
    tables::round_lead_logged,
    tasks::Array,
};
use crate::{
    checkpoint::Checkpoint,
    checksum::{ChecksumKind, Home},
    code::Code,
    log::{
        BATCHES_IN_FLIGHT_MAX, Basis, Batch, Begin, Beginnings, Bounds, LOG_BLOCK_LEN, Link,
        LogKey, Position, Record, Ring, Walk, head_blocks,
    },
    member::{MemberIndex, MemberSet},
};

/// Blocks that are read at once.
const WINDOW_BLOCKS: u32 = 64;

/// A batch that counts.
pub(super) struct Adopted {
    pub(super) batch: Batch,
    /// Head and payload, as every copy has them.
    pub(super) data: SgList,
    /// Who has a whole copy.
    pub(super) holders: MemberSet,
}

/// What was found of the log.
pub(super) struct FoundLog {
    pub(super) batches: Vec<Adopted>,
    pub(super) end: Link,
    /// Everything below this was stable, says some head. One member alone may have it say so: only the check
    /// that the log does not end before it goes by that.
    stable_seen: Position,
    /// Everything below this was stable: the labels say so, or heads on more members than may lie.
    pub(super) stable: Position,
    /// By member: everything below this was stable, says some head on it.
    claims: BTreeMap<MemberIndex, Position>,
    /// Everything below this was acknowledged, says some head.
    pub(super) acked_seen: Position,
    /// What batches hold is kept, for whoever brings it home.
    keeps_data: bool,
    /// The last round that is over.
    closed: u32,
    /// Where members have different batches of one generation, if anywhere.
    contradicted: Option<Position>,
    code: Code,
    /// Payload by position.
    payload: BTreeMap<Position, Buf>,
    /// Where PARITY records of a row are, by physical stripe and row: batch, and place in it.
    parities: BTreeMap<(u64, u32), Vec<(usize, usize)>>,
}

impl FoundLog {
    /// Nothing is found yet behind `tail`; rounds up to `closed` are over.
    const fn new(tail: Link, closed: u32, code: Code) -> Self {
        Self {
            batches: Vec::new(),
            end: tail,
            stable_seen: tail.end,
            stable: tail.end,
            claims: BTreeMap::new(),
            acked_seen: tail.end,
            keeps_data: true,
            closed,
            contradicted: None,
            code,
            payload: BTreeMap::new(),
            parities: BTreeMap::new(),
        }
    }

    /// All records, with their positions.
    pub(super) fn records(&self) -> impl Iterator<Item = (Position, &Record)> {
        self.batches.iter().flat_map(|one| one.batch.records_at())
    }

    /// REMAPs that openings dropped, by position and logical stripe. An opening says so where its generation
    /// begins, before anything else is written: what says so elsewhere was written by no engine.
    pub(super) fn dropped(&self, beginnings: &Beginnings) -> BTreeSet<(Position, u64)> {
        let mut dropped = BTreeSet::new();
        let mut opening: Option<Begin> = None;
        for batch in self.batches.iter().map(|one| &one.batch) {
            let here = Begin { generation: batch.generation, position: batch.previous.end };
            let all: Option<Vec<_>> = batch.records.iter().map(Record::dropped).collect();
            let is_opening = beginnings.as_slice().contains(&here) || opening == Some(here);
            opening = None;
            if let Some(all) = all.filter(|_| is_opening) {
                opening = Some(Begin { position: batch.end(), ..here });
                dropped.extend(all.into_iter().flatten().copied());
            }
        }
        dropped
    }

    /// The PARITY records of a row, in their order.
    pub(super) fn parities(
        &self,
        physical: u32,
        row: u32,
    ) -> impl Iterator<Item = (Position, &Record)> {
        let places = self.parities.get(&(u64::from(physical), row)).into_iter().flatten();
        places.filter_map(|(batch, at)| self.batches.get(*batch)?.batch.records_at().nth(*at))
    }

    /// Notes where PARITY records are.
    fn index_parities(&mut self) {
        for (batch, adopted) in self.batches.iter().enumerate() {
            for (at, record) in adopted.batch.records.iter().enumerate() {
                if let Record::Parity { stripe, row, .. } = record {
                    self.parities.entry((*stripe, *row)).or_default().push((batch, at));
                }
            }
        }
    }

    /// Block `at` of the payload that begins at a position.
    pub(super) fn payload(&self, position: Position, at: u32) -> Option<Buf> {
        self.payload.get(&position.after(at)).cloned()
    }

    /// What PARITY records after `after` make of a row: column and checksum, of rounds that are
    /// open (`closed` is the last one that is not), or of those that are over.
    pub(super) fn parity_sums(
        &self,
        physical: u32,
        row: u32,
        after: Position,
        (closed, open): (u32, bool),
    ) -> Vec<(u8, u32)> {
        let mut sums = Vec::new();
        for (position, record) in self.parities(physical, row) {
            if let Record::Parity { round, checks, basis, .. } = record
                && (*round > closed) == open
                && position > after
            {
                sums.extend(self.changed_sums(checks, basis));
            }
        }
        sums
    }

    /// The columns that a PARITY record changes, and their checksums.
    pub(super) fn changed_sums(
        &self,
        checks: &[u32],
        basis: &[crate::log::Basis],
    ) -> Vec<(u8, u32)> {
        let mut sums: Vec<(u8, u32)> = basis.iter().map(|one| (one.column, one.crc)).collect();
        let code = self.code;
        if code.is_copies() {
            for one in basis {
                let copies = code.data_columns()..code.columns();
                let copies = copies.filter(|check| code.check_weight(*check, one.column) != 0);
                sums.extend(copies.map(|check| (check, one.crc)));
            }
        } else {
            sums.extend((code.data_columns()..).zip(checks.iter().copied()));
        }
        sums
    }
}

/// Part of the log as one member has it.
#[derive(Clone, Default)]
struct Window {
    start: Position,
    bytes: Option<Buf>,
    /// Before this there is something that cannot be read: no more is read there than is asked for. A disk may take
    /// seconds to say so of a block, and would be asked for it with each batch that stands before it.
    is_bad_before: Position,
}

impl Window {
    fn get(&self, position: Position, blocks: u32) -> Option<Buf> {
        let bytes = self.bytes.as_ref()?;
        let from = position.0.checked_sub(self.start.0)?;
        let from = usize::try_from(from).ok()?.checked_mul(LOG_BLOCK_LEN as usize)?;
        let to = from.checked_add(blocks as usize * LOG_BLOCK_LEN as usize)?;
        (to <= bytes.len()).then(|| bytes.slice(from..to))
    }
}

/// A copy of a batch on one member.
struct Copy {
    member: MemberIndex,
    batch: Batch,
    crc: u32,
    bytes: Buf,
}

impl Copy {
    fn is_same(&self, other: &Self) -> bool {
        self.crc == other.crc && self.batch == other.batch
    }
}

struct Reader {
    array: Array,
    ring: Ring,
    key: LogKey,
    bounds: Bounds,
    base: u64,
    windows: Vec<(MemberIndex, Window)>,
}

impl Reader {
    /// All copies of batches that begin at `position`.
    async fn copies(&mut self, position: Position) -> Vec<Copy> {
        let windows = core::mem::take(&mut self.windows);
        let reads = windows.into_iter().map(|(member, mut window)| {
            let this = &*self;
            async move {
                let copy = this.copy(member, &mut window, position).await;
                (member, window, copy)
            }
        });
        let ends = join_all(reads).await;
        let mut copies = Vec::new();
        for (member, window, copy) in ends {
            self.windows.push((member, window));
            copies.extend(copy);
        }
        copies
    }

    async fn copy(
        &self,
        member: MemberIndex,
        window: &mut Window,
        position: Position,
    ) -> Option<Copy> {
        let first = self.read(member, window, position, 1).await?;
        let head = head_blocks(&first, position, &self.key).ok()?;
        let head_bytes = self.read(member, window, position, head).await?;
        let (batch, crc) = Batch::decode(&head_bytes, position, &self.key).ok()?;
        // A member may hold what no engine wrote: that is no copy.
        self.bounds.check(&batch).ok()?;
        if u64::from(batch.blocks()) > self.left(position) {
            return None;
        }
        let bytes = self.read(member, window, position, batch.blocks()).await?;
        Some(Copy { member, batch, crc, bytes })
    }

    /// Blocks from a position to the end of the ring.
    fn left(&self, position: Position) -> u64 {
        self.ring.blocks() - position.0 % self.ring.blocks()
    }

    async fn read(
        &self,
        member: MemberIndex,
        window: &mut Window,
        position: Position,
        blocks: u32,
    ) -> Option<Buf> {
        if let Some(bytes) = window.get(position, blocks) {
            return Some(bytes);
        }
        let left = self.left(position);
        if u64::from(blocks) > left {
            return None;
        }
        let is_bad = position < window.is_bad_before;
        let wanted = if is_bad { blocks } else { blocks.max(WINDOW_BLOCKS) };
        let most = u64::from(wanted).min(left);
        let offset = self.base + self.ring.offset(position);
        let block = u64::from(LOG_BLOCK_LEN);
        match self.array.read_long(member, offset, most * block).await {
            Ok(data) => {
                (window.start, window.bytes) = (position, Some(data.to_contiguous()));
                window.get(position, blocks)
            }
            Err(_) if most > u64::from(blocks) => {
                window.is_bad_before = Position(position.0 + most);
                // A bad block takes away what is in it, and nothing before it.
                let data =
                    self.array.read_long(member, offset, u64::from(blocks) * block).await.ok()?;
                Some(data.to_contiguous())
            }
            Err(_) => None,
        }
    }
}

impl Array {
    /// Walks the log from a checkpoint's tail to its end. A member without whose copies it is whole,
    /// and is not with them, is not believed.
    ///
    /// # Errors
    /// When what was stable is not there, or copies contradict each other and it is not clear whose are
    /// right.
    pub(super) async fn find_log(&self, base: &Checkpoint) -> Result<FoundLog, IoError> {
        let members = self.state().in_sync();
        let error = match self.find_log_of(base, members).await {
            Ok(log) => match log.contradicted {
                None => return Ok(log),
                Some(at) => {
                    let text = alloc::format!("copies of the log at {at} contradict each other");
                    IoError::with_detail(ErrorKind::Corrupt, text)
                }
            },
            // Who is away may have what is missing.
            Err(error) if self.state().is_anybody_away() => return Err(error),
            Err(error) => error,
        };
        for size in 1..=LIARS_MAX {
            let mut without: Option<(MemberSet, FoundLog)> = None;
            // Not in the loop's head: the state would be held while members are waited for.
            let suspects = self.state().who_may_lie(members, size);
            for liars in suspects {
                let Ok(log) = self.find_log_of(base, members.without(liars)).await else {
                    continue;
                };
                if log.contradicted.is_some() || log.acked_seen > log.end.end {
                    continue;
                }
                if let Some((others, _)) = without.replace((liars, log)) {
                    return Err(nobody_can_tell(others, liars, "the log", &error));
                }
            }
            if let Some((liars, log)) = without {
                let why = "what it has of the log contradicts the others";
                liars.iter().for_each(|liar| self.state().leave_out(liar, why));
                return Ok(log);
            }
        }
        Err(error)
    }

    /// The batches of a running array from a checkpoint's tail to `upto`, where all is acknowledged. It ends
    /// earlier where a batch is missing on all.
    ///
    /// Nothing behind `upto` is looked at, and nobody is judged: users write there meanwhile, so that what is
    /// read of it at two times does not fit together. What the batches hold is not kept.
    pub(super) async fn find_acked_log(&self, base: &Checkpoint, upto: Position) -> FoundLog {
        let members = self.state().in_sync();
        let (mut reader, beginnings, mut log) = self.begin_log(base, members);
        log.keeps_data = false;
        let mut walk = Walk::new(reader.ring, &beginnings, base.tail);
        self.walk_log(&mut reader, &mut log, (&mut walk, &beginnings), upto).await;
        log
    }

    /// Where the log ends that these members have from a checkpoint's tail on. What its batches hold is not kept.
    pub(super) async fn end_of_log(&self, base: &Checkpoint, members: MemberSet) -> Position {
        let (mut reader, beginnings, mut log) = self.begin_log(base, members);
        log.keeps_data = false;
        let mut walk = Walk::new(reader.ring, &beginnings, base.tail);
        let upto = Position(u64::MAX);
        self.walk_log(&mut reader, &mut log, (&mut walk, &beginnings), upto).await;
        log.end.end
    }

    /// As [`Self::find_log`], of these members.
    async fn find_log_of(
        &self,
        base: &Checkpoint,
        members: MemberSet,
    ) -> Result<FoundLog, IoError> {
        let (mut reader, beginnings, mut log) = self.begin_log(base, members);
        let mut walk = Walk::new(reader.ring, &beginnings, base.tail);
        let upto = Position(u64::MAX);
        self.walk_log(&mut reader, &mut log, (&mut walk, &beginnings), upto).await;
        log.index_parities();
        self.look_beyond(&mut reader, &mut log, (base.tail.end, &beginnings)).await;
        if log.stable_seen > log.end.end {
            let remedy = if self.state().is_anybody_away() {
                "bring the members that are away"
            } else {
                "nobody is away, so more of them is spoilt than the level bears"
            };
            let text = alloc::format!(
                "the log ends at {}, and everything below {} was stable: too many members lack their copies; \
                 {remedy}",
                log.end.end,
                log.stable_seen,
            );
            return Err(IoError::with_detail(ErrorKind::Redundancy, text));
        }
        let state = self.state();
        log.believe_claims(|liars| state.can_serve_from(members.without(liars)));
        drop(state);
        Ok(log)
    }

    /// What a walk along the log of these members begins with.
    fn begin_log(&self, base: &Checkpoint, members: MemberSet) -> (Reader, Beginnings, FoundLog) {
        let state = self.state();
        let windows = members.iter().map(|member| (member, Window::default())).collect();
        let reader = Reader {
            array: self.clone(),
            ring: state.layout.ring,
            key: state.layout.key,
            bounds: Bounds::new(&state.layout.geometry, &state.layout.regions),
            base: state.layout.regions.log.offset,
            windows,
        };
        let mut beginnings = state.beginnings();
        beginnings.forget_before(base.tail.end);
        // A generation was decided when everything before it was stable.
        let last = beginnings.as_slice().last();
        let mut log = FoundLog::new(base.tail, base.round, state.layout.code);
        log.stable = last.map_or(base.tail.end, |last| last.position.max(base.tail.end));
        log.stable_seen = log.stable;
        (reader, beginnings, log)
    }

    /// Takes batches one after the other, until one ends at `upto`, or there is none.
    async fn walk_log(
        &self,
        reader: &mut Reader,
        log: &mut FoundLog,
        (walk, beginnings): (&mut Walk<'_>, &Beginnings),
        upto: Position,
    ) {
        let checked_by = {
            let state = self.state();
            (state.layout.checksum, state.layout.geometry.data_columns())
        };
        while walk.link().end < upto {
            let places: Vec<Position> = walk.places().collect();
            let mut went_on = false;
            for place in places {
                let mut copies = reader.copies(place).await;
                log.note_heads(&copies, beginnings);
                copies.retain(|copy| log.may_have(&copy.batch, beginnings));
                log.note_contradiction(&copies, walk);
                if copies.iter().any(|copy| walk.is_of_another(&copy.batch)) {
                    self.state().rules.note(Rule::BatchOfAnotherGeneration);
                }
                if let Some((mut adopted, crc)) =
                    assemble(checked_by, &copies, walk, &mut log.payload)
                    && walk.take(&adopted.batch, crc)
                {
                    if !log.keeps_data {
                        log.payload.clear();
                        adopted.data = SgList::new();
                    }
                    log.batches.push(adopted);
                    went_on = true;
                    break;
                }
            }
            if !went_on {
                break;
            }
        }
        log.end = walk.link();
    }

    /// Looks for heads beyond the end, which may say that more was stable than was found.
    async fn look_beyond(
        &self,
        reader: &mut Reader,
        log: &mut FoundLog,
        (tail, beginnings): (Position, &Beginnings),
    ) {
        let ring = reader.ring;
        let reach = u64::from(ring.batch_blocks_max()) * (BATCHES_IN_FLIGHT_MAX as u64 + 1);
        let until = (log.end.end.0 + reach).min(tail.0 + ring.blocks());
        for at in log.end.end.0..until {
            let copies = reader.copies(Position(at)).await;
            log.note_heads(&copies, beginnings);
        }
    }
}

impl FoundLog {
    /// Whether this array can have written a batch behind what was found: its PARITY is of rounds that can be, and
    /// the log has the DATA that PARITY of a round that is not over names. Else nobody could bring it home, and
    /// once it is on all members the array would stay shut.
    fn may_have(&self, batch: &Batch, beginnings: &Beginnings) -> bool {
        let nth = beginnings.older_than(batch.generation).min(Beginnings::MAX - 1);
        let most = self.closed.saturating_add(round_lead_logged(nth));
        batch.records.iter().all(|record| match record {
            Record::Parity { round, basis, .. } => {
                let is_there = |one: &Basis| {
                    let data = one.position.filter(|_| !one.zeroes);
                    data.is_none_or(|data| self.payload.contains_key(&data))
                };
                let is_over = *round <= self.closed;
                *round <= most && (is_over || !self.keeps_data || basis.iter().all(is_there))
            }
            Record::Data { .. }
            | Record::Zeroes { .. }
            | Record::Remap { .. }
            | Record::Open { .. } => true,
        })
    }

    /// No generation writes two batches to one place. The checksum alone does not tell: it can be had for other
    /// contents, too.
    fn note_contradiction(&mut self, copies: &[Copy], walk: &Walk<'_>) {
        let mut next = copies.iter().filter(|copy| walk.would_take(&copy.batch));
        if let Some(first) = next.next()
            && next.any(|other| !other.is_same(first))
        {
            self.contradicted = Some(first.batch.position);
        }
    }

    /// Takes for stable what so many members say that they cannot all lie.
    fn believe_claims(&mut self, may_lie: impl Fn(MemberSet) -> bool) {
        let mut claims: Vec<(Position, MemberIndex)> =
            self.claims.iter().map(|(member, upto)| (*upto, *member)).collect();
        claims.sort_unstable_by(|one, other| other.cmp(one));
        let mut who = MemberSet::EMPTY;
        for (upto, member) in claims {
            who.insert(member);
            if !may_lie(who) {
                self.stable = self.stable.max(upto);
                return;
            }
        }
    }

    /// Who says that the record at a position was stable.
    pub(super) fn claimants(&self, position: Position) -> MemberSet {
        let claim = self.claims.iter().filter(|(_, upto)| position < **upto);
        claim.map(|(member, _)| *member).collect()
    }

    /// Heads of a generation that does not own its place any more have no say: what they told of was
    /// looked at when the owner began.
    fn note_heads(&mut self, copies: &[Copy], beginnings: &Beginnings) {
        let has_say =
            |copy: &&Copy| beginnings.owner(copy.batch.position) == Some(copy.batch.generation);
        for copy in copies.iter().filter(has_say) {
            self.stable_seen = self.stable_seen.max(copy.batch.stable_upto);
            let claim = self.claims.entry(copy.member).or_default();
            *claim = copy.batch.stable_upto.max(*claim);
            self.acked_seen = self.acked_seen.max(copy.batch.acked_upto);
        }
    }
}

/// One whole batch from its copies: payload blocks may come from different ones.
fn assemble(
    checked_by: (ChecksumKind, u8),
    copies: &[Copy],
    walk: &Walk<'_>,
    payload: &mut BTreeMap<Position, Buf>,
) -> Option<(Adopted, u32)> {
    let (checksum, data_columns) = checked_by;
    for candidate in copies {
        let same = || copies.iter().filter(|copy| copy.is_same(candidate));
        if !walk.would_take(&candidate.batch) {
            continue;
        }
        let head = candidate.batch.blocks() - payload_blocks(&candidate.batch);
        let block_of = |copy: &Copy, at: u32| {
            let from = at as usize * LOG_BLOCK_LEN as usize;
            copy.bytes.slice(from..from + LOG_BLOCK_LEN as usize)
        };
        let wanted = payload_sums(&candidate.batch, data_columns);
        let mut data = SgList::from(candidate.bytes.slice(0..(head * LOG_BLOCK_LEN) as usize));
        let mut found: Vec<(Position, Buf)> = Vec::new();
        let mut whole = true;
        for one in &wanted {
            let at = narrow(one.position.0 - candidate.batch.position.0);
            let good = same().map(|copy| block_of(copy, at)).find(|block| one.is(checksum, block));
            match good {
                Some(block) => {
                    data.push(block.clone());
                    found.push((one.position, block));
                }
                None => {
                    whole = false;
                    break;
                }
            }
        }
        if !whole {
            continue;
        }
        let is_whole = |copy: &&Copy| {
            wanted.iter().all(|one| {
                let at = one.position.0 - candidate.batch.position.0;
                one.is(checksum, &block_of(copy, narrow(at)))
            })
        };
        let holders: MemberSet = same().filter(is_whole).map(|copy| copy.member).collect();
        payload.extend(found);
        let adopted = Adopted { batch: candidate.batch.clone(), data, holders };
        return Some((adopted, candidate.crc));
    }
    None
}

fn payload_blocks(batch: &Batch) -> u32 {
    batch.records.iter().map(Record::payload_blocks).sum()
}

/// A block of payload: what it is of, and the checksum that it has to have.
struct Payload {
    position: Position,
    of: PayloadOf,
    sum: u32,
}

enum PayloadOf {
    /// A block of the volume, in 4 KiB.
    Volume(u64),
    /// What is to stand at a home.
    Home(Home),
}

impl Payload {
    fn is(&self, checksum: ChecksumKind, block: &[u8]) -> bool {
        let found = match self.of {
            PayloadOf::Volume(number) => checksum.in_log(number, block),
            PayloadOf::Home(home) => checksum.at_home(home, block),
        };
        found == self.sum
    }
}

/// The checksum that each block of payload has to have. Check columns are behind `data_columns`.
fn payload_sums(batch: &Batch, data_columns: u8) -> Vec<Payload> {
    let mut sums = Vec::new();
    for (position, record) in batch.records_at() {
        match record {
            Record::Data { block, crc } => {
                sums.push(Payload { position, of: PayloadOf::Volume(*block), sum: *crc });
            }
            Record::Parity { stripe, row, checks, .. } => {
                for (at, sum) in (0_u8..).zip(checks) {
                    // A stripe that the array does not have is refused when it is applied.
                    let physical = u32::try_from(*stripe).unwrap_or(u32::MAX);
                    let home =
                        Home { physical, row: *row, column: data_columns.saturating_add(at) };
                    let position = position.after(at.into());
                    sums.push(Payload { position, of: PayloadOf::Home(home), sum: *sum });
                }
            }
            Record::Zeroes { .. } | Record::Remap { .. } | Record::Open { .. } => {}
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes;
    use crate::geometry::{Geometry, Level};

    fn copy(member: u8, records: Vec<Record>) -> Copy {
        let link = Link { end: Position(0), crc: 9 };
        let (generation, position, nothing) = (1, Position(0), Position(0));
        let (stable_upto, acked_upto) = (nothing, nothing);
        let batch =
            Batch { generation, position, previous: link, stable_upto, acked_upto, records };
        let len = batch.blocks() * LOG_BLOCK_LEN;
        let bytes = Buf::copy_from(&alloc::vec![member; len as usize]);
        // The same checksum for whatever it says.
        Copy { member: MemberIndex(member), batch, crc: 77, bytes }
    }

    fn data(member: u8) -> Record {
        let block = alloc::vec![member; LOG_BLOCK_LEN as usize];
        Record::Data { block: 5, crc: bytes::sum(&block) }
    }

    #[test]
    fn a_copy_with_the_checksum_of_another_one_is_no_copy_of_it() {
        let mut beginnings = Beginnings::default();
        beginnings.begin(Begin { generation: 1, position: Position(0) });
        let walk = Walk::new(Ring::new(64), &beginnings, Link { end: Position(0), crc: 9 });
        let honest = |member| Copy { member: MemberIndex(member), ..copy(1, Vec::from([data(1)])) };
        let lies = [Vec::new(), Vec::from([data(7)]), Vec::from([data(1), data(1)])];
        for lie in lies {
            let copies = [honest(1), copy(7, lie.clone()), honest(2)];
            let mut payload = BTreeMap::new();
            let (adopted, _) =
                assemble((ChecksumKind::Crc32c, 3), &copies, &walk, &mut payload).unwrap();
            assert_eq!(adopted.batch.records, [data(1)]);
            assert_eq!(adopted.holders, [1, 2].map(MemberIndex).into_iter().collect());
            for copies in [copies, [copy(7, lie), honest(1), honest(2)]] {
                let geometry = Geometry::new(Level::Raid5, 4, 65_536, 512, 100, 0).unwrap();
                let tail = Link { end: Position(0), crc: 9 };
                let mut log = FoundLog::new(tail, 0, Code::new(&geometry));
                log.note_contradiction(&copies, &walk);
                assert_eq!(log.contradicted, Some(Position(0)));
            }
        }
    }

    #[test]
    fn a_batch_whose_parity_nobody_could_bring_home_is_none() {
        let geometry = Geometry::new(Level::Raid5, 4, 65_536, 512, 100, 0).unwrap();
        let tail = Link { end: Position(0), crc: 9 };
        let mut log = FoundLog::new(tail, 10, Code::new(&geometry));
        log.payload.insert(Position(3), Buf::copy_from(&[0; LOG_BLOCK_LEN as usize]));
        let parity = |round, position, zeroes| {
            let basis = Vec::from([Basis { column: 0, crc: 0, position, zeroes }]);
            let parity = Record::Parity { stripe: 0, row: 0, round, checks: Vec::from([0]), basis };
            copy(0, Vec::from([parity])).batch
        };
        let mut beginnings = Beginnings::default();
        beginnings.begin(Begin { generation: 1, position: Position(0) });
        let may_have = |batch: &Batch| log.may_have(batch, &beginnings);
        assert!(may_have(&parity(11, Some(Position(3)), false)));
        assert!(!may_have(&parity(11, Some(Position(2)), false)));
        assert!(may_have(&parity(11, Some(Position(2)), true)));
        assert!(may_have(&parity(11, None, false)));
        assert!(may_have(&parity(10, Some(Position(2)), false)), "its round is over");
        let most = 10 + round_lead_logged(0);
        assert!(may_have(&parity(most, Some(Position(3)), false)));
        assert!(!may_have(&parity(most + 1, Some(Position(3)), false)));
        let next = Batch { generation: 2, ..parity(most + 8, Some(Position(3)), false) };
        assert!(!may_have(&Batch { generation: 1, ..next.clone() }) && may_have(&next), "goes on");
    }
}
