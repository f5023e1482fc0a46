//! Files that a target finds when it starts: stored reservations and the marker of a sanitize
//! operation, as they were written, with changed bytes under a right checksum, or anything.
//!
//! What is read is written again as it was read. Reservations that are read keep out whom they
//! name, before anybody has logged in; a marker that is read is worked off to its end.

use arbitrary::Arbitrary;
use netraid_block::{DeviceInfo, Op, SgList};
use netraid_scsi::{
    Background, Identity, InitiatorPort, Marker, Method, Nexus, NexusId, Reservations, Sense,
    Status, Step, TargetDevice, UnitConfig,
    cdb::reserve::{Keys, read_keys},
    unit::encode_lun,
};

use crate::operations;

const CAPACITY: u64 = 16 << 10;
/// Most registrations of a logical unit (docs/formats/reservations.md).
const REGISTRATIONS_MAX: usize = 1024;
/// Longest file that is read, in bytes.
const FILE_LEN_MAX: usize = 1 << 20;
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

#[derive(Debug, Arbitrary)]
enum File {
    Reservations { kind: u8, registrations: Vec<Registration>, changes: Changes, checksum: bool },
    Marker { method: u8, flags: u8, passes: u8, len: u16, changes: Changes, checksum: bool },
    Anything { start: u8, bytes: Vec<u8> },
}

/// Where, by what.
type Changes = Vec<(u16, u8)>;

#[derive(Debug, Arbitrary)]
struct Registration {
    key: u8,
    isid: u8,
    name: u8,
    flags: u8,
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    for file in operations::<File>(input, 8) {
        match file {
            File::Reservations { kind, registrations, changes, checksum } => {
                let mut bytes = reservations(kind, &registrations);
                let changed = change(&mut bytes, &changes);
                if checksum || !changed {
                    seal_reservations(&mut bytes);
                }
                read_reservations(&bytes, !changed && is_valid(kind, &registrations));
            }
            File::Marker { method, flags, passes, len, changes, checksum } => {
                let len = usize::from(len) % 4200;
                let mut bytes = marker(method, flags, passes, len);
                let changed = change(&mut bytes, &changes);
                if checksum || !changed {
                    seal_marker(&mut bytes);
                }
                let valid = match method {
                    1 => (1..=4096).contains(&len) && (1..=31).contains(&passes),
                    2 => len == 0,
                    _ => false,
                };
                read_marker(&bytes, !changed && valid);
            }
            File::Anything { start, bytes } => {
                let start: &[u8] = match start % 3 {
                    0 => b"NRPRSRV\n\x01\0",
                    1 => b"NRSANIT\0\x01\0",
                    _ => b"",
                };
                let bytes = [start, &bytes].concat();
                read_reservations(&bytes, false);
                read_marker(&bytes, false);
            }
        }
    }
}

/// Changes bytes, or cuts off at one; whether there was anything to do.
fn change(bytes: &mut Vec<u8>, changes: &Changes) -> bool {
    for (at, value) in changes.iter().take(4) {
        let at = usize::from(*at);
        match at.checked_rem(bytes.len()) {
            Some(place) if at < 0xf000 => bytes[place] = *value,
            Some(place) => bytes.truncate(place),
            None => {}
        }
    }
    !changes.is_empty()
}

fn name(number: u8) -> String {
    match number % 8 {
        0 => format!("iqn.2026-01.org.example:{}", "n".repeat(usize::from(number) % 200)),
        1 => "eui.02004567a425678d".into(),
        2 => "IQN.2026-01.ORG.EXAMPLE:I".into(),
        _ => format!("iqn.2026-01.org.example:i{number}"),
    }
}

fn reservations(kind: u8, registrations: &[Registration]) -> Vec<u8> {
    let mut out = b"NRPRSRV\n\x01\0".to_vec();
    out.push(kind);
    out.resize(32, 0);
    for one in registrations {
        let name = name(one.name);
        out.extend(u64::from(one.key).to_le_bytes());
        out.extend([1, 0, one.flags % 5, name.len() as u8]);
        out.extend([0x80, 0, 0, 0, 0, one.isid % 4, 0, 0]);
        out.extend(name.as_bytes());
    }
    let count = registrations.len() as u32;
    out[20..24].copy_from_slice(&count.to_le_bytes());
    out
}

/// Makes length and checksum right.
fn seal_reservations(bytes: &mut [u8]) {
    let len = bytes.len() as u32;
    if let Some(field) = bytes.get_mut(16..20) {
        field.copy_from_slice(&len.to_le_bytes());
        bytes[12..16].fill(0);
        let crc = crc32c::crc32c(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Whether these are reservations as a target stores them.
fn is_valid(kind: u8, registrations: &[Registration]) -> bool {
    let mut nexuses: Vec<_> =
        registrations.iter().map(|one| (name(one.name).to_lowercase(), one.isid % 4)).collect();
    nexuses.sort();
    let count = nexuses.len();
    nexuses.dedup();
    let holders = registrations.iter().filter(|one| (one.flags % 5) & 2 != 0).count();
    let single = matches!(kind, 1 | 3 | 5 | 6);
    let known = single || matches!(kind, 0 | 7 | 8);
    let flags = registrations.iter().all(|one| one.flags % 5 < 4);
    (1..=REGISTRATIONS_MAX).contains(&count)
        && nexuses.len() == count
        && holders == usize::from(single)
        && known
        && flags
}

fn read_reservations(bytes: &[u8], valid: bool) {
    let state = match Reservations::decode(bytes) {
        Ok(state) => state,
        Err(error) => {
            assert!(!valid, "a file as a target writes it is refused: {error}");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again = state.encode();
    assert!(again.len() <= FILE_LEN_MAX, "stores {} bytes, more than it reads", again.len());
    assert_eq!(Reservations::decode(&again).expect("our own file"), state);
    let count = state.registration_count();
    assert!(count <= REGISTRATIONS_MAX && state.is_persistent() != bytes.is_empty());
    let kind = state.reserved();
    let mut units = TargetDevice::new([unit(512, state)]);
    let stranger = NexusId(1);
    let port = InitiatorPort::new("iqn.2026-01.org.example:stranger", [0x40, 9, 9, 9, 9, 9]);
    units.add_nexus(stranger, &Nexus::new(port.expect("a name")));
    // Unit attentions of a restart come first.
    let ends = (0..8).any(|_| status(&mut units, stranger, &[0; 6], 0) == Some(Status::Good));
    assert!(ends, "TEST UNIT READY needs no reservation");
    // Whom the file names may bear the stranger's name: nobody it makes up here does.
    let kind = kind.map_or(0, |kind| kind as u8);
    let conflict = Some(Status::ReservationConflict);
    assert_eq!(status(&mut units, stranger, &WRITE, 512) == conflict, kind != 0, "a write");
    let no_reads = matches!(kind, 3 | 6 | 8);
    assert_eq!(status(&mut units, stranger, &READ, 512) == conflict, no_reads, "a read");
    let (_, step) = units.handle_command(stranger, encode_lun(0), &read_keys(0xffff), 0xffff);
    let Step::Respond(response) = step else { panic!("{step:?}") };
    let keys = Keys::decode(&response.data_in.to_contiguous()).expect("keys");
    assert_eq!(keys.keys.len(), count, "a registration is lost");
}

/// How a command ends at once; none if it does not.
fn status(units: &mut TargetDevice, nexus: NexusId, cdb: &[u8], len: u32) -> Option<Status> {
    let (task, step) = units.handle_command(nexus, encode_lun(0), cdb, len);
    match step {
        Step::Respond(response) => {
            let failed = response.status == Status::CheckCondition;
            assert_eq!(failed, Sense::decode(&response.sense).is_some());
            Some(response.status)
        }
        Step::DataOut { .. }
        | Step::Submit(_)
        | Step::SubmitTo { .. }
        | Step::Wait
        | Step::Persist(_)
        | Step::Abort { .. } => {
            units.handle_abort(task);
            None
        }
    }
}

fn unit(block_len: u32, reservations: Reservations) -> UnitConfig {
    UnitConfig {
        info: DeviceInfo {
            capacity: CAPACITY,
            block_len,
            optimal_len: 4096,
            max_transfer_len: 8 << 10,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        },
        discard_zeroes: true,
        physical_len: 4096,
        atomic_len: 0,
        can_sanitize: true,
        removable: false,
        identity: Identity::for_lun("iqn.2026-01.org.example:t", 0),
        reservations,
    }
}

fn marker(method: u8, flags: u8, passes: u8, len: usize) -> Vec<u8> {
    let mut out = b"NRSANIT\0\x01\0".to_vec();
    out.extend([method, flags, passes, 0]);
    out.extend((len as u16).to_le_bytes());
    out.resize(out.len() + len, flags ^ 0x5a);
    out.extend([0; 4]);
    out
}

fn seal_marker(bytes: &mut [u8]) {
    if let Some((body, field)) = bytes.split_last_chunk_mut::<4>() {
        *field = crc32c::crc32c(body).to_le_bytes();
    }
}

fn read_marker(bytes: &[u8], valid: bool) {
    let marker = match Marker::decode(bytes) {
        Ok(marker) => marker,
        Err(error) => {
            assert!(!valid, "a marker as a target writes it is refused: {error}");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(Marker::decode(&marker.encode()).expect("our own marker"), marker);
    for block_len in [512, 4096] {
        let mut units = TargetDevice::new([unit(block_len, Reservations::new(true))]);
        units.resume_sanitize(0, marker.clone());
        work_off(&mut units, &marker);
    }
}

/// The unit does what is left; then everything is erased, or it says that it has failed.
fn work_off(units: &mut TargetDevice, marker: &Marker) {
    let passes = match &marker.method {
        Method::Overwrite { passes, .. } => u64::from(*passes),
        Method::BlockErase => 1,
    };
    let (mut changed, mut kept) = (0, true);
    for _ in 0..1000 {
        let Some(next) = units.poll_background(0) else {
            assert_eq!(kept, marker.failed, "the marker stays, or goes before the end");
            let wanted = if marker.failed { 0 } else { passes * CAPACITY };
            assert_eq!(changed, wanted, "bytes changed");
            return;
        };
        match next {
            Background::Keep(marker) => kept = marker.is_some(),
            Background::Pause | Background::Wake(_) => {}
            Background::Submit(request) => {
                assert!(request.offset + request.len <= CAPACITY, "erases past the end");
                match request.op {
                    Op::Write => assert_eq!(request.data.len() as u64, request.len),
                    Op::WriteZeroes | Op::Discard | Op::Flush => {}
                    Op::Read | Op::Extents => panic!("{:?} to sanitize", request.op),
                }
                changed += if request.op == Op::Flush { 0 } else { request.len };
            }
        }
        units.handle_background_done(0, Ok(SgList::new()));
    }
    panic!("background work does not end");
}
