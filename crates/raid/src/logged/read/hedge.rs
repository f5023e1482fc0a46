//! Reads that are late: what they are for is computed from the other members meanwhile, and the first to come counts.
//!
//! Invariant: what is computed is given to users only with the checksums of the read that it stands for, and was computed while
//! nobody changed what is at home: columns of different moments have no sum that means anything.

use alloc::boxed::Box;
use core::{ops::Range, pin::pin};

use futures_util::future::{Either, select};
use netraid_block::{IoError, SgList};

use crate::{
    checksum::Home,
    logged::{Rule, locks::Purpose, state::BLOCK, tasks::Array},
    planted::{Planted, planted},
};

impl Array {
    /// Rows of a column at home with these checksums, from its member, or computed from the others when it is late.
    pub(super) async fn read_home(
        &self,
        (logical, physical): (u32, u32),
        column: u8,
        rows: Range<u32>,
        sums: &[u32],
    ) -> Option<SgList> {
        let home = Home { physical, row: rows.start, column };
        let (member, offset) = self.state().home(physical, column, rows.start);
        let len = (rows.end - rows.start) * BLOCK;
        let read = self.begin_joined(member, offset, len).ok()?;
        let data = match read.answer_in_time().await {
            Some(answer) => answer.ok()?,
            None => {
                let beside = self.compute_beside((logical, physical), column, rows);
                // Few reads are late: the others do not carry the room for this.
                let beside = Box::pin(self.first_of(read.answer(), beside, home, sums));
                beside.await?
            }
        };
        self.has_sums(home, &data, sums).then_some(data)
    }

    /// What comes first: the answer that is late, or what is computed from other members.
    async fn first_of(
        &self,
        late: impl Future<Output = Result<SgList, IoError>>,
        beside: impl Future<Output = Option<SgList>>,
        home: Home,
        sums: &[u32],
    ) -> Option<SgList> {
        match select(pin!(late), pin!(beside)).await {
            Either::Left((Ok(data), _)) => Some(data),
            Either::Left((Err(_), beside)) => beside.await,
            Either::Right((Some(data), _)) => {
                // What is right by now, and not what was to be read, has been written since: it is read anew.
                let is_it = self.has_sums(home, &data, sums);
                if is_it {
                    self.state().rules.note(Rule::HedgedRead);
                }
                is_it.then_some(data)
            }
            Either::Right((None, late)) => late.await.ok(),
        }
    }

    /// Rows of a column, computed from other members while nobody changes them; none where that cannot be.
    async fn compute_beside(
        &self,
        (logical, physical): (u32, u32),
        column: u8,
        rows: Range<u32>,
    ) -> Option<SgList> {
        let _lock = self.lock(logical, Purpose::Rely).await;
        let usable = self.state().usable_columns(physical, column);
        let mut had = alloc::vec::Vec::new();
        self.compute_run(physical, column, &rows, usable, &mut had).await.ok()?
    }

    fn has_sums(&self, home: Home, data: &SgList, sums: &[u32]) -> bool {
        self.state().layout.checksum.of_column(home, data).as_slice() == sums
            || planted(Planted::ComputedNotVerified)
    }
}
