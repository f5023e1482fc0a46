//! The written bits of an array without a log, from the members that are in sync.
//!
//! Who lies about them is decided by [`crate::written::liars`].

use alloc::vec::Vec;

use netraid_block::Buf;

use super::{Note, OpenError, Opening, own::Held};
use crate::{
    access::{Ask, Failure},
    assemble::Assembly,
    member::{MemberIndex, MemberSet, MemberState},
    regions::PAGE_LEN,
    written::{Contradiction, WrittenBits, liars},
};

/// Members with the places of their devices, and what was read from these.
type Read = Vec<(MemberIndex, usize, Buf)>;

impl<E: Failure> Opening<E> {
    /// The written bits; and members that lie about them, with their devices, which are left out.
    pub(super) async fn load_written(
        &mut self,
        held: &mut Held,
    ) -> Result<(WrittenBits, Vec<(MemberIndex, usize)>), OpenError<E>> {
        let label = &held.assembly.label;
        let region = label.regions.written;
        let (uuid, stripes) = (label.array_uuid, label.geometry.stripes());
        let mut written = WrittenBits::new(uuid, stripes);
        let (read, last_error) = self.read_written(held, &written).await;

        let regions: Vec<(MemberIndex, &[u8])> =
            read.iter().map(|(member, _, bytes)| (*member, &bytes[..])).collect();
        let place = |member| read.iter().find(|(one, ..)| *one == member).map(|(_, at, _)| *at);
        let disagree = |first, second| match (place(first), place(second)) {
            (Some(first), Some(second)) => OpenError::WrittenBitsDisagree { first, second },
            places => unreachable!("written bits of {first} and {second} were read: {places:?}"),
        };
        let liars = liars(uuid, stripes, &region, &regions)
            .map_err(|Contradiction { first, second, .. }| disagree(first, second))?;
        let honest = read.iter().filter(|(member, ..)| !liars.contains(*member));
        let rest: MemberSet = honest.clone().map(|(member, ..)| *member).collect();
        let mut lying = read.iter().filter(|(member, ..)| liars.contains(*member));
        if let Some((liar, place, _)) = lying.clone().next() {
            if !label.geometry.can_serve_from(rest) {
                return Err(disagree(*liar, rest.iter().next().unwrap_or(*liar)));
            }
            if !self.options.force && held.assembly.needs_parity(rest) {
                return Err(OpenError::Forged { name: label.name.clone(), place: *place });
            }
        }
        honest.for_each(|(.., bytes)| written.offer_all(&region, bytes));

        let mut left_out = Vec::new();
        for (member, place, _) in lying.by_ref() {
            self.notes.push(Note::Forger { place: *place, member: *member });
            leave_out(held, *member);
            left_out.push((*member, *place));
        }
        match (written.first_missing(), last_error) {
            (None, _) => Ok((written, left_out)),
            (Some(_), Some(error)) => Err(OpenError::Failed(error)),
            (Some(page), None) => Err(OpenError::WrittenBits { page }),
        }
    }

    /// The regions of written bits of members that are in sync; and why one cannot be read.
    async fn read_written(&self, held: &Held, written: &WrittenBits) -> (Read, Option<E>) {
        let Assembly { label, .. } = &held.assembly;
        let len = written.pages() * 2 * u64::from(PAGE_LEN);
        let offset = label.regions.written.offset;
        let members = (0..).map(MemberIndex).zip(&held.places);
        let members = members.filter(|(member, _)| label.state(*member) == MemberState::InSync);
        let used: Vec<(MemberIndex, usize)> =
            members.filter_map(|(member, place)| Some((member, (*place)?))).collect();
        let places = used.iter().map(|(_, at)| *at).collect();
        let ask = |_| Ask::Read { offset, len, what: "reading the written bits" };
        let (mut read, mut last_error) = (Vec::new(), None);
        for ((member, at), (_, answer)) in used.iter().zip(self.each(places, ask).await) {
            match answer.bytes() {
                Ok(bytes) => read.push((*member, *at, bytes)),
                Err(error) => last_error = Some(error),
            }
        }
        (read, last_error)
    }
}

/// Takes a member out of the array.
fn leave_out(held: &mut Held, member: MemberIndex) {
    let at = member.as_usize();
    (held.places[at], held.assembly.found[at]) = (None, None);
    let entry = &mut held.assembly.label.members[at];
    (entry.state, entry.rebuilt_stripes) = (MemberState::Missing, 0);
}
