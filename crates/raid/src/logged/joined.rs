//! Reads that come while another one is under way for the same rows: they take its bytes.
//!
//! While members are away, what is computed for one request is read again for its neighbour: both
//! read parts of the stripe between them. At the rate of the slowest link that is rate lost.
//!
//! Invariant: bytes that are taken from another read may be older than the request that takes them.
//! So only who holds them against their checksums may, and reads again for itself where they do not
//! fit. While all members are in sync nobody joins, and nothing is kept.

use alloc::collections::BTreeMap;

use netraid_block::{IoError, SgList};

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
        if !self.state().is_any_absent() {
            return self.read_member(member, offset, len, true).await;
        }
        let ticket = self.ticket();
        if self.state().share_read(&ticket, member, offset, len) {
            return ticket.answer().await;
        }
        let joinable = self.read_for_others(&ticket, member, offset, len)?;
        let answer = ticket.answer().await;
        drop(joinable);
        answer
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
    fn is_any_absent(&self) -> bool {
        self.label.members.iter().any(|entry| entry.state != MemberState::InSync)
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
