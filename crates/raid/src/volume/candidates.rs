//! What the label of a device says for or against taking that device in a member's place.

use crate::{
    assemble::has_diverged,
    label::Label,
    member::{MemberIndex, MemberState},
    planted::{Planted, planted},
};

/// Why a device is not taken back as the member that it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotFormer {
    /// It has no label of this member, or another device has had the member's place since.
    #[error("it is not the device that this member had")]
    NotThatMember,
    /// It knows of more than the members that serve, or may have served without them.
    #[error("it went on without the members that serve")]
    WentOn,
}

/// Whether a device with the label `found` is the one that `member` had, by the label of the array that serves; with a
/// log, a device that went on without the others is not.
///
/// # Errors
/// When it is not.
pub fn check_former(
    array: &Label,
    member: MemberIndex,
    found: Option<&Label>,
) -> Result<(), NotFormer> {
    let is_its = |label: &&Label| label.array_uuid == array.array_uuid && label.index == member;
    let label = found.filter(is_its).ok_or(NotFormer::NotThatMember)?;
    if array.log.is_none() {
        return Ok(());
    }
    let at = member.as_usize();
    let is_replaced = label.members.get(at).map(|entry| entry.uuid) != Some(array.members[at].uuid);
    if is_replaced && !planted(Planted::ReplacedDeviceTakenBack) {
        return Err(NotFormer::NotThatMember);
    }
    let went_on = |index| has_diverged(&Label { index, ..array.clone() }, label);
    let is_newer = (label.generation, label.epoch) > (array.generation, array.epoch);
    let in_sync = |index: &MemberIndex| array.state(*index) == MemberState::InSync;
    if planted(Planted::WentOnTakenBack) {
        return Ok(());
    }
    match is_newer || array.geometry.member_indices().filter(in_sync).any(went_on) {
        true => Err(NotFormer::WentOn),
        false => Ok(()),
    }
}

/// As which member a device with the label `found` serves in the array; nothing when it does not.
#[must_use]
pub fn serves_as(array: &Label, found: &Label) -> Option<MemberIndex> {
    let at = found.index.as_usize();
    let current = array.members.get(at).filter(|entry| entry.state.is_live())?;
    let own = found.members.get(at)?;
    (found.array_uuid == array.array_uuid && current.uuid == own.uuid).then_some(found.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        geometry::Level,
        label::tests::{logged_sample, sample},
        lack::Lack,
    };

    /// The label of a member of four; the second one is away.
    fn label(index: u8, with_log: bool) -> Label {
        let mut label = match with_log {
            true => logged_sample(Level::Raid5, 4),
            false => sample(Level::Raid5, 4),
        };
        for entry in &mut label.members {
            (entry.state, entry.lack) = (MemberState::InSync, Lack::NOTHING);
        }
        label.members[1].state = MemberState::Faulty;
        Label { index: MemberIndex(index), ..label }
    }

    const SECOND: MemberIndex = MemberIndex(1);

    #[test]
    fn only_the_members_own_device_is_taken_back() {
        let array = label(0, true);
        let own = label(1, true);
        assert_eq!(check_former(&array, SECOND, Some(&own)), Ok(()));
        assert_eq!(check_former(&array, SECOND, None), Err(NotFormer::NotThatMember));
        let another_place = label(2, true);
        assert_eq!(
            check_former(&array, SECOND, Some(&another_place)),
            Err(NotFormer::NotThatMember)
        );
        let another_array = Label { array_uuid: [8; 16], ..own.clone() };
        assert_eq!(
            check_former(&array, SECOND, Some(&another_array)),
            Err(NotFormer::NotThatMember)
        );
        let mut replaced = own;
        replaced.members[1].uuid = [77; 16];
        assert_eq!(check_former(&array, SECOND, Some(&replaced)), Err(NotFormer::NotThatMember));
        // Without a log it is written from the beginning, whatever it holds.
        replaced.log = None;
        assert_eq!(check_former(&label(0, false), SECOND, Some(&replaced)), Ok(()));
    }

    #[test]
    fn a_device_that_went_on_without_the_others_is_not_taken_back() {
        let array = label(0, true);
        let mut newer = label(1, true);
        newer.epoch += 1;
        assert_eq!(check_former(&array, SECOND, Some(&newer)), Err(NotFormer::WentOn));
        newer.log = None;
        assert_eq!(check_former(&label(0, false), SECOND, Some(&newer)), Ok(()));
    }

    #[test]
    fn a_device_serves_as_the_member_that_the_array_has_it_for() {
        let array = label(0, true);
        assert_eq!(serves_as(&array, &label(2, true)), Some(MemberIndex(2)));
        assert_eq!(serves_as(&array, &label(1, true)), None, "it was set aside");
        let mut former = label(2, true);
        former.members[2].uuid = [77; 16];
        assert_eq!(serves_as(&array, &former), None, "another device has its place");
        let another_array = Label { array_uuid: [8; 16], ..label(2, true) };
        assert_eq!(serves_as(&array, &another_array), None);
    }
}
