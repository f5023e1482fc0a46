//! The written bits of an array without a log, from the members that are in sync.
//!
//! Who lies about them is decided by [`netraid_raid::written::liars`].

use netraid_raid::{
    assemble::{AssembleError, Assembly},
    member::{MemberIndex, MemberSet, MemberState},
    regions::PAGE_LEN,
    written::{Contradiction, WrittenBits, liars},
};

use super::{error::ArrayError, member::Connected};

/// The written bits of an array without a log; and members that lie about them, who are left out.
pub(super) async fn load(
    assembly: &mut Assembly,
    places: &mut [Option<usize>],
    connected: &[Connected],
    notes: &mut Vec<String>,
    force: bool,
) -> Result<(WrittenBits, Vec<usize>), ArrayError> {
    let label = &assembly.label;
    let region = label.regions.written;
    let (uuid, stripes) = (label.array_uuid, label.geometry.stripes());
    let mut written = WrittenBits::new(uuid, stripes);
    let len = written.pages() * 2 * u64::from(PAGE_LEN);
    let mut last_error = None;
    let mut read = Vec::new();
    for (index, place) in (0..).map(MemberIndex).zip(&*places) {
        let Some(at) = place.filter(|_| label.state(index) == MemberState::InSync) else {
            continue;
        };
        match connected[at].read(region.offset, len, "reading the written bits").await {
            Ok(bytes) => read.push((index, at, bytes)),
            Err(error) => last_error = Some(error),
        }
    }

    let regions: Vec<(MemberIndex, &[u8])> =
        read.iter().map(|(index, _, bytes)| (*index, &bytes[..])).collect();
    let address = |index| {
        let member = read.iter().find(|(one, ..)| *one == index);
        member.map_or_else(String::new, |(_, at, _)| connected[*at].address())
    };
    let disagree = |first, second| {
        let (first, second) = (address(first), address(second));
        ArrayError::WrittenBitsDisagree { first, second }
    };
    let liars = liars(uuid, stripes, &region, &regions)
        .map_err(|Contradiction { first, second, .. }| disagree(first, second))?;
    let honest = read.iter().filter(|(index, ..)| !liars.contains(*index));
    let rest: MemberSet = honest.clone().map(|(index, ..)| *index).collect();
    if let Some(liar) = liars.iter().next().filter(|_| !label.geometry.can_serve_from(rest)) {
        let other = rest.iter().next().unwrap_or(liar);
        return Err(disagree(liar, other));
    }
    let is_needed = !liars.is_empty() && !force && assembly.needs_parity(rest);
    if let Some(liar) = liars.iter().next().filter(|_| is_needed) {
        let (name, missing) = (label.name.clone(), address(liar));
        let reason = AssembleError::UncleanDegraded { name, missing };
        let notes = "; its written bits are far ahead of those of the others".to_owned();
        return Err(ArrayError::Assemble { reason, notes });
    }
    honest.for_each(|(.., bytes)| written.offer_all(&region, bytes));

    let mut left_out = Vec::new();
    for (index, at, _) in read.iter().filter(|(index, ..)| liars.contains(*index)) {
        let address = connected[*at].address();
        notes.push(format!(
            "{address}: is left out as member {index}: its written bits are far ahead of those of the other \
             members; find out why, then `netraid replace SOCKET {index} {address} --force` makes it anew \
             from the others"
        ));
        places[index.as_usize()] = None;
        left_out.push((*index, *at));
    }
    for (index, _) in &left_out {
        assembly.found[index.as_usize()] = None;
        let entry = &mut assembly.label.members[index.as_usize()];
        (entry.state, entry.rebuilt_stripes) = (MemberState::Missing, 0);
    }
    match (written.first_missing(), last_error) {
        (None, _) => Ok((written, left_out.into_iter().map(|(_, at)| at).collect())),
        (Some(_), Some(error)) => Err(error),
        (Some(page), None) => Err(ArrayError::WrittenBits { page }),
    }
}
