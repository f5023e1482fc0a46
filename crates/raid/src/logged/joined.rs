//! Reads that come while another one is under way for the same rows: they take its bytes.
//!
//! While members are away, what is computed for one request is read again for its neighbour: both
//! read parts of the stripe between them. At the rate of the slowest link that is rate lost.
//!
//! Invariant: bytes that are taken from another read may be older than the request that takes them.
//! So only who holds them against their checksums may, and reads again for itself where they do not
//! fit. While all members are in sync nobody joins, and nothing is kept.

use alloc::collections::BTreeMap;

use netraid_block::{ErrorKind, IoError, SgList};

use super::{
    Rule,
    state::State,
    tasks::Array,
    waits::{Ticket, WaitId},
};
use crate::member::{MemberIndex, MemberState};

/// Reads that others may join, by member and place: who waits for it, and its length.
#[derive(Debug, Default)]
pub(super) struct JoinableReads(BTreeMap<(MemberIndex, u64), (WaitId, u32)>);

/// A read that others may join, until this is dropped.
struct Joinable {
    array: Array,
    place: (MemberIndex, u64),
    wait: WaitId,
}

/// A read that was begun.
pub(super) struct JoinedRead {
    ticket: Ticket,
    /// Others may join it.
    joinable: Option<Joinable>,
}

impl JoinedRead {
    /// What it brings.
    pub(super) async fn answer(self) -> Result<SgList, IoError> {
        let Self { ticket, joinable } = self;
        let answer = ticket.answer().await;
        drop(joinable);
        answer
    }

    /// What it brings; none when that is late, and may be waited for further.
    pub(super) async fn answer_in_time(&self) -> Option<Result<SgList, IoError>> {
        self.ticket.answer_in_time().await
    }
}

impl Drop for Joinable {
    fn drop(&mut self) {
        let mut state = self.array.state();
        let reads = &mut state.joinable_reads.0;
        // Another read of the same place may have taken over.
        if reads.get(&self.place).is_some_and(|(wait, _)| *wait == self.wait) {
            reads.remove(&self.place);
        }
    }
}

impl Array {
    /// Reads from a member, or takes what another read of it brings, which may have begun before. The
    /// caller verifies.
    pub(super) async fn read_joined(
        &self,
        member: MemberIndex,
        offset: u64,
        len: u32,
    ) -> Result<SgList, IoError> {
        match self.begin_joined(member, offset, len)?.answer().await {
            // The read that this one had joined was given up.
            Err(error) if error.kind() == ErrorKind::Aborted => {
                self.read_member(member, offset, len, true).await
            }
            answer => answer,
        }
    }

    /// The same; it is waited for later.
    ///
    /// # Errors
    /// When the member takes no part.
    pub(super) fn begin_joined(
        &self,
        member: MemberIndex,
        offset: u64,
        len: u32,
    ) -> Result<JoinedRead, IoError> {
        let ticket = self.ticket();
        // While members are slow what is read is read for one computation after the other, too.
        if !self.state().is_any_absent_or_slow() {
            self.state().push_read(ticket.id(), member, offset, len, true)?;
            return Ok(JoinedRead { ticket, joinable: None });
        }
        if self.state().share_read(&ticket, member, offset, len) {
            return Ok(JoinedRead { ticket, joinable: None });
        }
        let joinable = Some(self.read_for_others(&ticket, member, offset, len)?);
        Ok(JoinedRead { ticket, joinable })
    }

    fn read_for_others(
        &self,
        ticket: &Ticket,
        member: MemberIndex,
        offset: u64,
        len: u32,
    ) -> Result<Joinable, IoError> {
        let mut state = self.state();
        state.push_read(ticket.id(), member, offset, len, true)?;
        state.joinable_reads.0.insert((member, offset), (ticket.id(), len));
        Ok(Joinable { array: self.clone(), place: (member, offset), wait: ticket.id() })
    }
}

impl State {
    fn is_any_absent_or_slow(&self) -> bool {
        let is_absent = self.label.members.iter().any(|entry| entry.state != MemberState::InSync);
        is_absent || !self.slow.is_empty()
    }

    /// Has a ticket answered by a read that is under way, if there is one of all these bytes.
    fn share_read(&mut self, ticket: &Ticket, member: MemberIndex, offset: u64, len: u32) -> bool {
        let mut before = self.joinable_reads.0.range((member, 0)..=(member, offset));
        let Some(((_, first), (wait, whole))) = before.next_back() else { return false };
        let Ok(from) = usize::try_from(offset - first) else { return false };
        let (wait, to) = (*wait, from + len as usize);
        let joins = to <= *whole as usize && self.waits.follow(wait, ticket.id(), from..to);
        if joins {
            self.rules.note(Rule::JoinedRead);
        }
        joins
    }
}
