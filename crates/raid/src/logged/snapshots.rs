//! The list of snapshots: found when an array is opened, and kept wherever the checkpoint goes that names it.
//!
//! Invariant: a member that has a checkpoint has the list that this checkpoint names, byte for byte as it was found. A list
//! that no checkpoint names is void, whoever has it.
//!
//! No snapshots are taken: an array that has some is not opened.

use alloc::vec::Vec;

use futures_util::future::join_all;
use netraid_block::{Buf, ErrorKind, IoError, SgList};

use super::{To, state::State, suspects::nobody_can_tell, tasks::Array};
use crate::{
    checkpoint::{Checkpoint, ListName},
    format::Format,
    member::{MemberIndex, MemberSet},
    page::PageError,
    planted::{Planted, planted},
    regions::{LIST_LEN, LIST_OFFSETS},
    snapshots::SnapshotList,
};

/// The list that a checkpoint names, with its bytes; none where no snapshot was ever taken.
#[derive(Debug, Clone, Default)]
pub(super) struct FoundList {
    found: Option<(ListName, SnapshotList, Buf)>,
}

impl FoundList {
    /// The number that the next snapshot will have.
    pub(super) fn next_number(&self) -> u32 {
        self.found.as_ref().map_or(SnapshotList::EMPTY.next_number, |(_, list, _)| list.next_number)
    }
}

/// Members that have one image of a list.
struct Holders {
    list: SnapshotList,
    image: Buf,
    members: MemberSet,
}

impl State {
    /// The list that a checkpoint names; none where the array's format has none.
    fn list_of(&self, checkpoint: &Checkpoint) -> Option<ListName> {
        let name = checkpoint.list;
        (self.layout.format == Format::Two && name != ListName::NONE).then_some(name)
    }
}

impl Array {
    /// The list that a checkpoint names, as most of the members have it that take part. Who has another one under
    /// that name is not believed.
    ///
    /// # Errors
    /// When none of them has the list, two contradict each other and it is not clear which one lies, or the list has what
    /// this version does not know.
    pub(super) async fn find_list(
        &self,
        base: &Checkpoint,
        there: MemberSet,
    ) -> Result<FoundList, IoError> {
        let members = self.state().in_sync();
        if planted(Planted::UnnamedListBelieved) {
            return Ok(self.newest_list(members).await);
        }
        let Some(name) = self.state().list_of(base) else { return Ok(FoundList::default()) };
        let (Holders { list, image, .. }, others) =
            self.choose_list(name, base, members, there.without(members)).await?;
        let why = "its list of snapshots contradicts that of the others";
        others.iter().for_each(|liar| self.state().leave_out(liar, why));
        if list.is_in_use() {
            let text = alloc::format!(
                "array '{}' has {} snapshots, or something else in its list of snapshots, which this program does not \
                 keep; use a later version",
                self.state().label.name,
                list.snapshots.len(),
            );
            return Err(IoError::with_detail(ErrorKind::Unsupported, text));
        }
        Ok(FoundList { found: Some((name, list, image)) })
    }

    /// The number that the next snapshot will have, where a checkpoint counts: no stripe is born later.
    ///
    /// # Errors
    /// As [`Self::find_list`].
    pub(super) async fn next_number_of(
        &self,
        base: &Checkpoint,
        members: MemberSet,
    ) -> Result<u32, IoError> {
        let (name, known) = {
            let state = self.state();
            let known = state.list.found.as_ref().map(|(name, ..)| *name);
            (state.list_of(base), known)
        };
        let Some(name) = name.filter(|name| Some(*name) != known) else {
            return Ok(self.state().stripes.next_number());
        };
        let (chosen, _) = self.choose_list(name, base, members, MemberSet::EMPTY).await?;
        Ok(chosen.list.next_number)
    }

    /// Gives the list to those in sync that lack it. It is stable then.
    pub(super) async fn level_lists(&self) {
        let (list, members) = {
            let state = self.state();
            (state.list.clone(), state.in_sync())
        };
        let Some((name, ..)) = list.found else { return };
        let found = self.read_lists(name, members).await;
        let lacking = found.iter().filter(|(_, image)| !list.is(image.as_ref()));
        let writes = lacking.map(|(member, _)| self.give_list(*member, To::Both));
        join_all(writes).await;
    }

    /// Gives the list of today to a member, before the checkpoint that names it.
    pub(super) async fn give_list(&self, member: MemberIndex, to: To) {
        let list = self.state().list.clone();
        let Some((name, _, image)) = list.found else { return };
        if !planted(Planted::ListNotGiven) {
            self.write_to((member, to), LIST_OFFSETS[name.slot()], image.into(), true).await;
        }
    }

    /// Members in sync that lack the list that the last checkpoint names, with its place. The tables are locked.
    pub(super) async fn wrong_lists(&self) -> Vec<(MemberIndex, u64)> {
        let (list, members) = {
            let state = self.state();
            (state.list.clone(), state.in_sync())
        };
        let Some((name, ..)) = list.found else { return Vec::new() };
        let found = self.read_lists(name, members).await;
        let in_sync = self.state().in_sync();
        let is_wrong = |(member, image): &&(MemberIndex, Option<(SnapshotList, Buf)>)| {
            !list.is(image.as_ref()) && in_sync.contains(*member)
        };
        let wrong = found.iter().filter(is_wrong);
        wrong.map(|(member, _)| (*member, LIST_OFFSETS[name.slot()])).collect()
    }

    /// The list with that name that most members have, and those that have another one: fewer, and the array can do
    /// without them. Where none of `members` has it, `elsewhere` is looked at: members that are there and not in sync were
    /// given the list, too, and its name tells it from every other one.
    async fn choose_list(
        &self,
        name: ListName,
        base: &Checkpoint,
        members: MemberSet,
        elsewhere: MemberSet,
    ) -> Result<(Holders, MemberSet), IoError> {
        let mut groups: Vec<Holders> = Vec::new();
        let mut found = self.read_lists(name, members).await;
        if found.iter().all(|(_, found)| found.is_none()) {
            found = self.read_lists(name, elsewhere).await;
        }
        for (member, found) in found {
            let Some((list, image)) = found else { continue };
            match groups.iter_mut().find(|group| group.image[..] == image[..]) {
                Some(group) => group.members.insert(member),
                None => groups.push(Holders {
                    list,
                    image,
                    members: core::iter::once(member).collect(),
                }),
            }
        }
        groups.sort_by_key(|group| core::cmp::Reverse(group.members.len()));
        let mut groups = groups.into_iter();
        let Some(most) = groups.next() else {
            self.check_version(name, members).await?;
            let text = alloc::format!(
                "the list of snapshots {} that the checkpoint {} names is on no member that is there; {}",
                name.counter,
                base.counter,
                self.state().remedy_of_lost_tables(),
            );
            return Err(IoError::with_detail(ErrorKind::Redundancy, text));
        };
        let mut others = MemberSet::EMPTY;
        for group in groups {
            if group.members.len() == most.members.len() {
                let why = ErrorKind::Corrupt.into();
                let what = "the list of snapshots";
                return Err(nobody_can_tell(most.members, group.members, what, &why));
            }
            group.members.iter().for_each(|member| others.insert(member));
        }
        if !self.state().can_serve_from(members.without(others)) {
            let why = ErrorKind::Corrupt.into();
            return Err(nobody_can_tell(most.members, others, "the list of snapshots", &why));
        }
        Ok((most, others))
    }

    /// What each of these members has under that name: the list and its bytes, or nothing.
    async fn read_lists(
        &self,
        name: ListName,
        members: MemberSet,
    ) -> Vec<(MemberIndex, Option<(SnapshotList, Buf)>)> {
        let uuid = self.state().label.array_uuid;
        let reads = members.iter().map(|member| async move {
            let data = self.read_list_slot(member, name.slot()).await;
            let found = data.and_then(|data| {
                let image = data.to_contiguous();
                let (list, found) = SnapshotList::decode(&image, uuid, name.slot()).ok()?;
                (found == name).then_some((list, image))
            });
            (member, found)
        });
        join_all(reads).await
    }

    /// Reads from a member, which need not take part.
    async fn read_list_slot(&self, member: MemberIndex, slot: usize) -> Option<SgList> {
        if self.state().in_sync().contains(member) {
            return self.read_member(member, LIST_OFFSETS[slot], LIST_LEN, false).await.ok();
        }
        let ticket = self.ticket();
        self.state().push_foreign_read(ticket.id(), member, LIST_OFFSETS[slot], LIST_LEN);
        ticket.answer().await.ok()
    }

    /// # Errors
    /// Where the list would be, a member has one of another version.
    async fn check_version(&self, name: ListName, members: MemberSet) -> Result<(), IoError> {
        let uuid = self.state().label.array_uuid;
        for member in members.iter() {
            let Some(data) = self.read_list_slot(member, name.slot()).await else { continue };
            let found = SnapshotList::decode(&data.to_contiguous(), uuid, name.slot());
            if let Err(error @ PageError::Version { .. }) = found {
                let text = alloc::format!("array '{}': {error}", self.state().label.name);
                return Err(IoError::with_detail(ErrorKind::Unsupported, text));
            }
        }
        Ok(())
    }

    /// The list with the largest counter, whether it is named or not, for an error that is planted.
    async fn newest_list(&self, members: MemberSet) -> FoundList {
        let uuid = self.state().label.array_uuid;
        let mut newest = FoundList::default();
        for (member, slot) in members.iter().flat_map(|member| [(member, 0), (member, 1)]) {
            let Some(data) = self.read_list_slot(member, slot).await else { continue };
            let image = data.to_contiguous();
            let Ok((list, name)) = SnapshotList::decode(&image, uuid, slot) else { continue };
            let counter = newest.found.as_ref().map_or(0, |(name, ..)| name.counter);
            if name.counter > counter {
                newest.found = Some((name, list, image));
            }
        }
        newest
    }
}

impl FoundList {
    /// Whether a member's image is this one.
    fn is(&self, image: Option<&(SnapshotList, Buf)>) -> bool {
        match (&self.found, image) {
            (Some((.., wanted)), Some((_, found))) => wanted[..] == found[..],
            (Some(_), None) => false,
            (None, _) => true,
        }
    }
}
