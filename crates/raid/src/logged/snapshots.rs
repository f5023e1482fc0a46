//! The list of snapshots: found when an array is opened, and kept wherever the checkpoint goes that names it.
//!
//! Invariant: a member that has a checkpoint has the list that this checkpoint names. A list that no
//! checkpoint names is void, whoever has it.
//!
//! No snapshots are taken: an array that has some is not opened.

use alloc::vec::Vec;

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, SgList};

use super::{state::State, tasks::Array};
use crate::{
    checkpoint::{Checkpoint, ListName},
    format::Format,
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
    regions::{LIST_LEN, LIST_OFFSETS},
    snapshots::SnapshotList,
};

impl State {
    /// The list that a checkpoint names; none where the array's format has none.
    fn list_of(&self, checkpoint: &Checkpoint) -> Option<ListName> {
        let name = checkpoint.list;
        (self.layout.format == Format::Two && name != ListName::NONE).then_some(name)
    }
}

impl Array {
    /// The list that a checkpoint names, from one of these members.
    ///
    /// # Errors
    /// When none of them has the list, or the list has what this version does not know.
    pub(super) async fn find_list(
        &self,
        base: &Checkpoint,
        members: MemberSet,
    ) -> Result<SnapshotList, IoError> {
        if planted(Planted::UnnamedListBelieved) {
            return Ok(self.newest_list(members).await);
        }
        let Some(name) = self.state().list_of(base) else { return Ok(SnapshotList::EMPTY) };
        let found = self.read_lists(name, members).await;
        let Some(list) = found.into_iter().find_map(|(_, list)| list) else {
            let text = alloc::format!(
                "the list of snapshots {} that the checkpoint {} names is on no member that is there; bring the \
                 members that are away",
                name.counter,
                base.counter,
            );
            return Err(IoError::with_detail(ErrorKind::Redundancy, text));
        };
        if list.is_in_use() {
            let text = alloc::format!(
                "array '{}' has {} snapshots, which this program does not keep; use a later version",
                self.state().label.name,
                list.snapshots.len(),
            );
            return Err(IoError::with_detail(ErrorKind::Unsupported, text));
        }
        Ok(list)
    }

    /// Gives the list that a checkpoint names to those of these members that lack it. It is stable then.
    pub(super) async fn level_lists(
        &self,
        base: &Checkpoint,
        list: &SnapshotList,
        members: MemberSet,
    ) {
        let Some(name) = self.state().list_of(base) else { return };
        let found = self.read_lists(name, members).await;
        let lacking = found.iter().filter(|(_, list)| list.is_none());
        let writes = lacking.map(|(member, _)| self.write_list(*member, list));
        join_all(writes).await;
    }

    /// Gives the list of today to a member, before the checkpoint that names it.
    pub(super) async fn give_list(&self, member: MemberIndex) {
        let (checkpoint, list) = {
            let state = self.state();
            (state.checkpoint, state.list.clone())
        };
        if self.state().list_of(&checkpoint).is_some() && !planted(Planted::ListNotGiven) {
            self.write_list(member, &list).await;
        }
    }

    /// Members in sync that lack the list that the last checkpoint names, with its place. The tables are locked.
    pub(super) async fn wrong_lists(&self) -> Vec<(MemberIndex, u64)> {
        let (name, members) = {
            let state = self.state();
            (state.list_of(&state.checkpoint), state.in_sync())
        };
        let Some(name) = name else { return Vec::new() };
        let found = self.read_lists(name, members).await;
        let in_sync = self.state().in_sync();
        let wrong =
            found.iter().filter(|(member, list)| list.is_none() && in_sync.contains(*member));
        wrong.map(|(member, _)| (*member, LIST_OFFSETS[name.slot()])).collect()
    }

    async fn write_list(&self, member: MemberIndex, list: &SnapshotList) {
        let (image, _) = list.encode(self.state().label.array_uuid);
        self.write_member_stable(member, list.offset(), Buf::copy_from(&image).into()).await;
    }

    /// What each of these members has of the list with that name: the list, or nothing.
    async fn read_lists(
        &self,
        name: ListName,
        members: MemberSet,
    ) -> Vec<(MemberIndex, Option<SnapshotList>)> {
        let uuid = self.state().label.array_uuid;
        let reads = members.iter().map(|member| async move {
            let data = self.read_list_slot(member, name.slot()).await;
            let list = data.and_then(|data| {
                SnapshotList::decode(&data.to_contiguous(), uuid, name.slot()).ok()
            });
            (member, list.filter(|(_, found)| *found == name).map(|(list, _)| list))
        });
        join_all(reads).await
    }

    async fn read_list_slot(&self, member: MemberIndex, slot: usize) -> Option<SgList> {
        self.read_member(member, LIST_OFFSETS[slot], LIST_LEN, false).await.ok()
    }

    /// The list with the largest counter, whether it is named or not, for an error that is planted.
    async fn newest_list(&self, members: MemberSet) -> SnapshotList {
        let uuid = self.state().label.array_uuid;
        let mut newest = SnapshotList::EMPTY;
        for (member, slot) in members.iter().flat_map(|member| [(member, 0), (member, 1)]) {
            let Some(data) = self.read_list_slot(member, slot).await else { continue };
            let found = SnapshotList::decode(&data.to_contiguous(), uuid, slot);
            if let Ok((list, _)) = found
                && list.counter > newest.counter
            {
                newest = list;
            }
        }
        newest
    }
}
