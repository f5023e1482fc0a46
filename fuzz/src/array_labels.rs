//! Labels of hostile members: valid ones with changed bytes under a right checksum, and what they
//! add up to. An array that may be opened names every member once, has enough that are current,
//! and addresses only what its labels say is there.

use arbitrary::Arbitrary;
use netraid_raid::{
    assemble::{CleanClose, Found, Permissions, assemble, choose_array},
    checksum::ChecksumKind,
    format::Format,
    geometry::Level,
    label::{Closure, Holder, LABEL_LEN, Label, LogLabel, MemberEntry},
    lack::Lack,
    log::{Begin, Beginnings, Position},
    member::{MemberIndex, MemberState},
    regions::{LABEL_OFFSETS, Wish, plan, plan_logged},
};

use crate::operations;

/// Where a label's checksum is.
const CRC: std::ops::Range<usize> = 12..16;

#[derive(Debug, Arbitrary)]
struct Shape {
    level: u8,
    members: u8,
    chunk: u8,
    block: bool,
    capacity_mib: u16,
    has_log: u8,
}

/// One member's label: how it differs from that of the array.
#[derive(Debug, Arbitrary)]
struct Member {
    index: u8,
    generation: u8,
    epoch: u8,
    closure: u8,
    states: [u8; 4],
    checkpoint: u16,
    engine: u8,
    changes: Vec<(u16, u8)>,
    copy: bool,
    checksum: bool,
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let mut source = arbitrary::Unstructured::new(input);
    let Ok(shape) = source.arbitrary::<Shape>() else { return };
    let rest = source.take_rest();
    let Some(label) = first_label(&shape) else { return };
    let mut found = Vec::new();
    for (number, member) in operations::<Member>(rest, 20).enumerate() {
        if let Some(label) = differ(&label, &member) {
            found.push(Found { address: format!("m{number}"), label, checkpoint: None });
        }
    }
    let labels = || found.iter().map(|one| &one.label);
    if let Some(chosen) = choose_array(labels()) {
        assert!(labels().any(|label| label.array_uuid == chosen));
        assert!(labels().all(|label| label.array_uuid == chosen || !label.was_opened()));
    }
    let closed = labels().find_map(CleanClose::of);
    for bits in 0..16 {
        let permissions = Permissions {
            clean_close: closed.filter(|_| bits & 8 != 0),
            read_only: bits & 1 != 0,
            holder_is_dead: bits & 2 != 0,
            force: bits & 4 != 0,
            ..Permissions::default()
        };
        judge(&found, permissions);
    }
}

fn first_label(shape: &Shape) -> Option<Label> {
    let level = [Level::Raid0, Level::Raid1, Level::Raid5][usize::from(shape.level % 3)];
    let members = usize::from(shape.members % 66);
    let chunk_len = 4096 << (shape.chunk % 14);
    let block_len = if shape.block { 4096 } else { 512 };
    let wish = Wish { level, members, chunk_len, block_len };
    let (capacity, has_log) = (u64::from(shape.capacity_mib) << 20, shape.has_log & 1 != 0);
    let (regions, geometry) = if has_log {
        plan_logged(&wish, capacity, None).ok()?
    } else {
        plan(&wish, capacity).ok()?
    };
    let beginnings = Beginnings::new(vec![Begin { generation: 1, position: Position(5) }]).ok()?;
    let entry = |index: u8| MemberEntry {
        uuid: [index; 16],
        state: MemberState::InSync,
        last_checkpoint: 0,
        rebuilt_stripes: 0,
        lack: Lack::NOTHING,
    };
    let holder = Holder {
        engine_id: [1; 16],
        machine_id: [2; 16],
        boot_id: [3; 16],
        name: "host".into(),
        lock: (1, 2),
    };
    Some(Label {
        array_uuid: [7; 16],
        name: "vol".into(),
        index: MemberIndex(0),
        geometry,
        regions,
        generation: 1,
        epoch: 1,
        holder,
        closure: Closure::Clean,
        members: (0..geometry.members()).map(entry).collect(),
        log: has_log.then_some(LogLabel {
            format: Format::Two,
            checksum: ChecksumKind::Crc32c,
            salt: 99,
            beginnings,
        }),
        compatible: 0,
        read_only_compatible: 0,
    })
}

/// The member's label by way of its bytes, if they are one still.
fn differ(label: &Label, member: &Member) -> Option<Label> {
    let mut label = label.clone();
    let count = label.members.len();
    label.index = MemberIndex(u8::try_from(usize::from(member.index) % count).ok()?);
    label.generation += u64::from(member.generation % 3);
    label.epoch += u64::from(member.epoch % 3);
    label.holder.engine_id = [member.engine % 3; 16];
    label.closure = match member.closure % 3 {
        0 => Closure::Clean,
        1 => Closure::Open,
        _ => Closure::Unsynced,
    };
    for (at, state) in member.states.iter().enumerate().take(count) {
        label.members[at].state = MemberState::from_u8(state % 4)?;
        if label.log.is_some() {
            label.members[at].lack = Lack::since(u32::from(member.checkpoint % 4));
        } else {
            label.members[at].last_checkpoint = u64::from(member.checkpoint % 4);
        }
    }
    let copy = usize::from(member.copy);
    let mut bytes = label.encode(copy);
    for (at, value) in member.changes.iter().take(6) {
        bytes[usize::from(*at) % LABEL_LEN] = *value;
    }
    if member.checksum || member.changes.is_empty() {
        bytes[CRC].fill(0);
        let seed = crc32c::crc32c(&LABEL_OFFSETS[copy].to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &bytes);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }
    let decoded = Label::decode(&bytes, copy);
    if member.changes.is_empty() {
        assert_eq!(decoded.as_ref().expect("a label as it was written"), &label);
    }
    let decoded = decoded.ok()?;
    let again = Label::decode(&decoded.encode(1), 1).expect("our own label");
    assert_eq!(again, decoded);
    Some(decoded)
}

fn judge(found: &[Found], permissions: Permissions) {
    let assembly = match assemble(found, permissions) {
        Ok(assembly) => assembly,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let geometry = &assembly.label.geometry;
    let members = usize::from(geometry.members());
    assert_eq!((assembly.found.len(), assembly.label.members.len()), (members, members));
    let mut current = 0;
    for (index, which) in assembly.found.iter().enumerate() {
        let state = assembly.label.members[index].state;
        let Some(which) = which else {
            assert!(!state.is_live(), "member {index} is not there and counts");
            continue;
        };
        let one = &found[*which].label;
        assert_eq!(usize::from(one.index.0), index, "a member stands in another's place");
        assert_eq!(one.array_uuid, assembly.label.array_uuid);
        assert_eq!(one.geometry, *geometry, "members of different shapes");
        current += usize::from(state == MemberState::InSync);
    }
    assert!(
        current + geometry.tolerance() as usize >= members,
        "opened with {current} of {members}"
    );
    let mut seen: Vec<_> = assembly.found.iter().flatten().chain(&assembly.stale).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "one device counts twice");
    // Nothing is addressed past the data region.
    if geometry.stripes() > 0 {
        let last = geometry.stripes() - 1;
        let end = geometry.member_offset(last, 0) + u64::from(geometry.chunk_len());
        assert!(end <= assembly.label.regions.data.end(), "the last stripe is past the end");
        let capacity = geometry.capacity();
        for offset in [0, capacity / 2, capacity.saturating_sub(u64::from(geometry.block_len()))] {
            let stripe = offset / geometry.stripe_data_len();
            for column in 0..geometry.data_columns() {
                let member = geometry.member_of(stripe, column);
                assert!(member.as_usize() < members);
                assert_eq!(geometry.column_of(stripe, member), column);
            }
        }
    }
}
