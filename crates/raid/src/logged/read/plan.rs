//! What a read is made of: dirty blocks, zeros, and runs of rows at home.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::{Buf, IoError, SgList, narrow};

use crate::{
    bytes,
    logged::{
        Rule,
        state::{BLOCK, State},
    },
    member::MemberSet,
};

/// Where a run of blocks comes from.
pub(super) enum Part {
    Ready(SgList),
    /// Rows of a column at home, with their checksums.
    Home {
        column: u8,
        rows: Range<u32>,
        sums: Vec<u32>,
    },
}

impl Part {
    /// Its bytes, or where they are.
    pub(super) fn home(&self) -> Result<SgList, (u8, Range<u32>)> {
        match self {
            Self::Ready(data) => Ok(data.clone()),
            Self::Home { column, rows, .. } => Err((*column, rows.clone())),
        }
    }

    /// Whether these rows of a column are in it.
    pub(super) fn covers(&self, other: u8, wanted: &Range<u32>) -> bool {
        match self {
            Self::Ready(_) => false,
            Self::Home { column, rows, .. } => {
                *column == other && rows.start <= wanted.start && wanted.end <= rows.end
            }
        }
    }
}

impl State {
    /// Whether a part need not be computed, as far as is known.
    pub(super) fn has_part(&self, physical: u32, part: &Part) -> bool {
        match part {
            Part::Ready(_) => true,
            Part::Home { column, .. } => {
                let (member, _) = self.home(physical, *column, 0);
                self.readable(member, physical)
            }
        }
    }

    /// Whether the members of all parts are asked for them: those that are slow only when they are to be probed.
    pub(super) fn are_asked(&mut self, physical: u32, plan: &[Part]) -> bool {
        if self.slow.is_empty() {
            return true;
        }
        let past = plan.iter().filter(|part| self.is_past(physical, part));
        let past = past.filter_map(|part| match part {
            Part::Ready(_) => None,
            Part::Home { column, .. } => Some(self.home(physical, *column, 0).0),
        });
        let past: MemberSet = past.collect();
        if past.without(self.probed).is_empty() {
            self.probed = self.probed.without(past);
            return true;
        }
        self.rules.note(Rule::PastSlowMember);
        false
    }

    /// Whether a part is computed although its member takes part, because that is slow.
    pub(super) fn is_past(&self, physical: u32, part: &Part) -> bool {
        match part {
            Part::Ready(_) => false,
            Part::Home { column, .. } => self.goes_past(physical, *column),
        }
    }

    /// Rows of columns from which the parts that are not there are computed, except what other parts
    /// have of them.
    pub(super) fn needed_beside(
        &self,
        physical: u32,
        plan: &[Part],
        is_there: &[bool],
    ) -> Vec<(u8, Range<u32>)> {
        let mut needed: Vec<(u8, Range<u32>)> = Vec::new();
        for (part, _) in plan.iter().zip(is_there).filter(|(_, is_there)| !**is_there) {
            let Part::Home { column, rows, .. } = part else { continue };
            let Some(recipe) =
                self.layout.code.recipe(*column, self.usable_columns(physical, *column))
            else {
                continue;
            };
            for (other, _) in recipe.iter() {
                let one = (*other, rows.clone());
                if !needed.contains(&one) && !plan.iter().any(|part| part.covers(*other, rows)) {
                    needed.push(one);
                }
            }
        }
        needed
    }

    /// Blocks of a stripe that is nowhere: what is dirty, and zeros.
    pub(super) fn read_unmapped(&mut self, logical: u32, blocks: Range<u32>) -> SgList {
        let first = self.layout.first_block(logical);
        let mut whole = SgList::new();
        let mut at = first + u64::from(blocks.start);
        let end = first + u64::from(blocks.end);
        for (block, dirty) in self.dirty.range(at..end) {
            append_zeroes(&mut whole, block - at);
            match &dirty.data {
                Some(data) => whole.push(data.clone()),
                None => append_zeroes(&mut whole, 1),
            }
            at = block + 1;
        }
        append_zeroes(&mut whole, end - at);
        whole
    }

    /// How blocks of a stripe are to be read; none when it is elsewhere by now.
    pub(super) fn plan(
        &mut self,
        logical: u32,
        physical: u32,
        blocks: Range<u32>,
    ) -> Result<Option<Vec<Part>>, IoError> {
        if self.stripes.find(logical) != Some(physical) {
            return Ok(None);
        }
        let first = self.layout.first_block(logical);
        let rows = self.layout.rows;
        let mut parts: Vec<Part> = Vec::new();
        let dirty: Vec<(u64, Option<Buf>)> = self
            .dirty
            .range(first + u64::from(blocks.start)..first + u64::from(blocks.end))
            .map(|(block, dirty)| (block, dirty.data.clone()))
            .collect();
        let mut dirty = dirty.into_iter().peekable();
        let end = blocks.end;
        for block in blocks {
            if let Some((_, data)) = dirty.next_if(|(at, _)| *at == first + u64::from(block)) {
                let data = data.map_or_else(|| bytes::zeroes(BLOCK as usize), SgList::from);
                push_ready(&mut parts, data);
                continue;
            }
            let (column, row) = (narrow::<_, u8>(block / rows), block % rows);
            let Some(sums) = self.sums_of_row(physical, row)? else {
                push_ready(&mut parts, bytes::zeroes(BLOCK as usize));
                continue;
            };
            let sum = sums[usize::from(column)];
            match parts.last_mut() {
                Some(Part::Home { column: last, rows, sums })
                    if *last == column && rows.end == row =>
                {
                    rows.end += 1;
                    sums.push(sum);
                }
                _ => {
                    // As many as there can be.
                    let most = (rows - row).min(end - block) as usize;
                    let mut sums = Vec::with_capacity(most);
                    sums.push(sum);
                    parts.push(Part::Home { column, rows: row..row + 1, sums });
                }
            }
        }
        Ok(Some(parts))
    }
}

fn append_zeroes(list: &mut SgList, blocks: u64) {
    // At most a stripe.
    let blocks: usize = narrow(blocks);
    if blocks > 0 {
        list.append(bytes::zeroes(blocks * BLOCK as usize));
    }
}

fn push_ready(parts: &mut Vec<Part>, data: SgList) {
    match parts.last_mut() {
        Some(Part::Ready(list)) => list.append(data),
        _ => parts.push(Part::Ready(data)),
    }
}
