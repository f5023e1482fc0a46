//! Whether a disk may be taken; reading the notes on it, and mending them; formatting it.

use netraid_block::{Buf, BufMut, Device, IoError, SgList};
use netraid_control::units::AgentId;
use netraid_engine::{array::signature, backings::BackingError};
use std::sync::{Mutex, atomic::AtomicBool};

use super::{
    Shared,
    block::{
        BLOCK_LEN, DiskId, Fault, PAYLOAD_LEN, open as open_block, open_header, payload,
        payload_mut, seal,
    },
    geometry::{Geometry, GeometryFault, second_header},
    granules::Granules,
    table::Table,
    wait::{flush, read, write_all},
};

/// Bytes at both ends of a disk where others leave their marks.
const SIGNATURE_LEN: u64 = 1 << 20;
/// Bytes that are read or written at a time; whole blocks.
const CHUNK_LEN: usize = 1 << 20;

/// Which disk it is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) agent: AgentId,
    /// The disk that the agent had before; none when it had none, and has no segments.
    pub(crate) disk: Option<DiskId>,
    /// Who it is when it is formatted now.
    pub(crate) new: DiskId,
    /// Format it whatever is on it, unless that is the agent's own.
    pub(crate) force: bool,
}

/// Why a disk is not used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It cannot be opened.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The disk.
        path: String,
        /// Why.
        source: IoError,
    },
    /// A thread was not started.
    #[error("{path}: no thread for it: {source}")]
    Thread {
        /// The disk.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Something else is on it.
    #[error(
        "{path}: there is {what} on it; give another disk, or --force to take it: ALL ON IT IS LOST then"
    )]
    InUse {
        /// The disk.
        path: String,
        /// What.
        what: String,
    },
    /// It is another agent's, or another disk of this one.
    #[error(
        "{path}: it is disk {found} of agent {agent}, which is not the one that the state directory is of \
         ({wanted}); give the state directory that goes with it, or --force to format it: ALL ON IT IS LOST then"
    )]
    Foreign {
        /// The disk.
        path: String,
        /// What it is.
        found: String,
        /// Whose it is.
        agent: AgentId,
        /// What was expected.
        wanted: String,
    },
    /// The agent had a disk, and this one is none.
    #[error(
        "{path}: it was never formatted for an agent, and the state directory is of disk {wanted}, with \
         segments; give that disk, or another state directory"
    )]
    Blank {
        /// The disk.
        path: String,
        /// What was expected.
        wanted: String,
    },
    /// Too small.
    #[error("{path}: has {len} bytes; an agent's disk has {min} at least")]
    Small {
        /// The disk.
        path: String,
        /// Its length.
        len: u64,
        /// How long it has to be.
        min: u64,
    },
    /// It was longer.
    #[error("{path}: has {len} bytes, and had {had} when it was formatted; give it these back")]
    Shrunk {
        /// The disk.
        path: String,
        /// Its length.
        len: u64,
        /// What it was.
        had: u64,
    },
    /// Its table makes no sense, although its checksums do.
    #[error("{path}: {why}; it is left as it is: have somebody look at it")]
    Table {
        /// The disk.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// Reads the notes on a disk, or formats it.
pub(super) fn open(device: Device, name: &str, wanted: Wanted) -> Result<Shared, DiskError> {
    let geometry = match find(&device, name)? {
        Found::Own(geometry) => match check_owner(&geometry, name, wanted) {
            Ok(()) => geometry,
            Err(_) if wanted.force => return format(device, name, wanted),
            Err(error) => return Err(error),
        },
        Found::Unusable(_) if wanted.force => return format(device, name, wanted),
        Found::Unusable(error) => return Err(error),
        Found::Nothing => {
            if let Some(disk) = wanted.disk {
                let (path, wanted) = (name.to_owned(), hex(&disk));
                return Err(DiskError::Blank { path, wanted });
            }
            if !wanted.force {
                check_unused(&device, name)?;
            }
            return format(device, name, wanted);
        }
    };
    load(device, name, geometry)
}

enum Found {
    Own(Geometry),
    /// There is a header, and it cannot be followed.
    Unusable(DiskError),
    Nothing,
}

/// Looks for a header at both ends.
fn find(device: &Device, name: &str) -> Result<Found, DiskError> {
    let len = device.info().capacity;
    let block_len = BLOCK_LEN as u64;
    let (mut unusable, mut unread) = (None, None);
    for place in [Some(0), second_header(len)].into_iter().flatten() {
        if place + block_len > len {
            continue;
        }
        let block = match read(device, place, block_len) {
            Ok(block) => block.to_contiguous(),
            // The other copy may be there.
            Err(source) => {
                unread = Some(DiskError::Io { path: name.to_owned(), source });
                continue;
            }
        };
        match read_header(&block, name, len) {
            Ok(Some(geometry)) => return Ok(Found::Own(geometry)),
            Ok(None) => {}
            Err(fault) => {
                unusable.get_or_insert(fault);
            }
        }
        // Whoever has taken the disk since may have left the other copy: it is not to be mended over that.
        let head = read(device, 0, SIGNATURE_LEN.min(len / block_len * block_len));
        let head = head.map(|head| head.to_contiguous()).unwrap_or(block);
        if let Some(what) = signature(&head).filter(|_| place == 0) {
            let (path, what) = (name.to_owned(), what.to_owned());
            return Ok(Found::Unusable(DiskError::InUse { path, what }));
        }
    }
    match (unusable, unread) {
        (Some(error), _) => Ok(Found::Unusable(error)),
        // Nobody knows what is there: it is not formatted, by force neither.
        (None, Some(error)) => Err(error),
        (None, None) => Ok(Found::Nothing),
    }
}

/// What a header says; none when it is no header.
fn read_header(block: &[u8], name: &str, len: u64) -> Result<Option<Geometry>, DiskError> {
    let path = name.to_owned();
    let unusable = |why: String| DiskError::Table { path: name.to_owned(), why };
    match open_header(block) {
        Ok((disk, payload)) => match Geometry::decode(disk, payload, len) {
            Ok(geometry) => Ok(Some(geometry)),
            Err(GeometryFault::Shrunk(had)) => Err(DiskError::Shrunk { path, len, had }),
            Err(GeometryFault::Impossible) => {
                Err(unusable("its header says what cannot be".to_owned()))
            }
        },
        Err(Fault::Absent) => Ok(None),
        Err(Fault::Version(version)) => {
            Err(unusable(format!("its header is of version {version}; use a newer program")))
        }
        Err(Fault::Damaged | Fault::Elsewhere) => Err(unusable("its header is damaged".to_owned())),
    }
}

fn check_owner(geometry: &Geometry, name: &str, wanted: Wanted) -> Result<(), DiskError> {
    let is_own = geometry.agent == wanted.agent;
    if is_own && wanted.disk.is_none_or(|disk| disk == geometry.disk) {
        return Ok(());
    }
    let disk = wanted.disk.map(|disk| format!("disk {} of ", hex(&disk))).unwrap_or_default();
    Err(DiskError::Foreign {
        path: name.to_owned(),
        found: hex(&geometry.disk),
        agent: geometry.agent,
        wanted: format!("{disk}agent {}", wanted.agent),
    })
}

/// Refuses a disk on which there is anything.
fn check_unused(device: &Device, name: &str) -> Result<(), DiskError> {
    let told = |source| DiskError::Io { path: name.to_owned(), source };
    let (capacity, block_len) = (device.info().capacity, u64::from(device.info().block_len));
    let len = SIGNATURE_LEN.min(capacity) / block_len * block_len;
    let head = read(device, 0, len).map_err(told)?.to_contiguous();
    let tail = read(device, capacity - len, len).map_err(told)?.to_contiguous();
    if head.iter().chain(tail.iter()).all(|byte| *byte == 0) {
        return Ok(());
    }
    let what = signature(&head).unwrap_or("data of unknown kind").to_owned();
    Err(DiskError::InUse { path: name.to_owned(), what })
}

/// Writes notes that say that there is nothing, the headers last.
fn format(device: Device, name: &str, wanted: Wanted) -> Result<Shared, DiskError> {
    let len = device.info().capacity;
    let geometry = Geometry::new(wanted.new, wanted.agent, len).ok_or_else(|| {
        let min = Geometry::disk_len_min();
        DiskError::Small { path: name.to_owned(), len, min }
    })?;
    let empty = || (0..).map(|_| Some(&[0; PAYLOAD_LEN][..]));
    let entries = empty().take(geometry.extent_blocks() as usize);
    let rows = empty().take(geometry.rows as usize);
    let table = Table::load(geometry, entries, rows);
    tracing::warn!("{name}: is formatted for agent {}, as disk {}", wanted.agent, hex(&wanted.new));
    write_empty(&device, &geometry)
        .map_err(|source| DiskError::Io { path: name.to_owned(), source })?;
    Ok(Shared {
        device,
        geometry,
        granules: Granules::new(geometry),
        table: Mutex::new(table),
        failed: AtomicBool::new(false),
    })
}

fn write_empty(device: &Device, geometry: &Geometry) -> Result<(), IoError> {
    // While blocks are written, there is no header that they could be taken for the blocks of.
    let nothing = Buf::copy_from(&[0; BLOCK_LEN]);
    let headers = geometry.block_offsets(0);
    write_all(device, headers.map(|place| (place, nothing.clone().into())).to_vec())?;
    flush(device)?;
    let all: Vec<u32> = (1..geometry.blocks()).collect();
    for blocks in all.chunks(CHUNK_LEN / BLOCK_LEN) {
        let mut bytes = BufMut::zeroed(blocks.len() * BLOCK_LEN);
        for (block, bytes) in blocks.iter().zip(bytes.chunks_exact_mut(BLOCK_LEN)) {
            seal(bytes, geometry.name(*block));
        }
        let bytes = SgList::from(bytes.freeze());
        let places = geometry.block_offsets(blocks[0]);
        write_all(device, places.map(|place| (place, bytes.clone())).to_vec())?;
    }
    flush(device)?;
    let mut header = BufMut::zeroed(BLOCK_LEN);
    geometry.encode(payload_mut(&mut header));
    seal(&mut header, geometry.name(0));
    let header = header.freeze();
    for place in headers {
        write_all(device, vec![(place, header.clone().into())])?;
        flush(device)?;
    }
    Ok(())
}

/// Reads all blocks, makes both copies of each the same, and puts together what they say.
fn load(device: Device, name: &str, geometry: Geometry) -> Result<Shared, DiskError> {
    let told = |source| DiskError::Io { path: name.to_owned(), source };
    let Read { blocks, mends } = read_all(&device, &geometry);
    let payloads: Vec<_> = blocks.iter().map(|block| block.as_deref().map(payload)).collect();
    let (entries, rows) = payloads.split_at(geometry.extent_blocks() as usize);
    let table = Table::load(geometry, entries.iter().copied(), rows.iter().copied());
    if !mends.is_empty() {
        tracing::warn!("{name}: {} blocks of its table are made good", mends.len());
        write_all(&device, mends).and_then(|()| flush(&device)).map_err(told)?;
    }
    let damaged = payloads.iter().filter(|payload| payload.is_none()).count();
    if damaged > 0 {
        tracing::error!("{name}: {damaged} blocks of its table are damaged in both copies");
    }
    let lost = table.damaged_rows();
    if lost > 0 {
        tracing::error!(
            "{name}: {lost} rows of its table are damaged or contradict others; their segments are lost, and what \
             may be theirs is given to nobody until the disk is formatted anew"
        );
    }
    let granules = Granules::new(geometry);
    for (block, payload) in (0..).zip(entries) {
        for (extent, word, bits) in payload.iter().flat_map(|bytes| geometry.marks(block, bytes)) {
            if table.is_owned(extent) {
                granules.load(extent, word, bits);
            }
        }
    }
    let (table, failed) = (Mutex::new(table), AtomicBool::new(false));
    Ok(Shared { device, geometry, granules, table, failed })
}

/// All blocks behind the header; none where both copies are damaged.
struct Read {
    blocks: Vec<Option<Buf>>,
    /// What is to be written, so that both copies are the same.
    mends: Vec<(u64, SgList)>,
}

fn read_all(device: &Device, geometry: &Geometry) -> Read {
    let mut header = BufMut::zeroed(BLOCK_LEN);
    geometry.encode(payload_mut(&mut header));
    seal(&mut header, geometry.name(0));
    let header = header.freeze();
    let empty = Buf::copy_from(&[0; BLOCK_LEN]);
    let (mut blocks, mut mends) = (Vec::new(), Vec::new());
    let all: Vec<u32> = (0..geometry.blocks()).collect();
    // The header is alone: its second copy is not beside the others.
    let (first, rest) = all.split_at(1);
    for chunk in std::iter::once(first).chain(rest.chunks(CHUNK_LEN / BLOCK_LEN)) {
        let copies = [0, 1].map(|copy| read_blocks(device, geometry, chunk, copy));
        let [one, two] = copies;
        for (block, found) in chunk.iter().zip(one.into_iter().zip(two)) {
            let good = |found: &Option<Buf>| {
                let found = found.clone()?;
                open_block(&found, geometry.name(*block)).is_ok().then_some(found)
            };
            let chosen = match block {
                0 => Some(header.clone()),
                _ => good(&found.0).or_else(|| good(&found.1)),
            };
            if let Some(chosen) = &chosen {
                let places = geometry.block_offsets(*block).into_iter().zip([found.0, found.1]);
                for (place, found) in places {
                    if found.is_none_or(|found| *found != **chosen) {
                        mends.push((place, SgList::from(Buf::copy_from(chosen))));
                    }
                }
            }
            if *block > 0 {
                // What is kept holds on to no more than itself.
                blocks.push(chosen.map(|block| {
                    let is_empty = payload(&block).iter().all(|byte| *byte == 0);
                    if is_empty { empty.clone() } else { Buf::copy_from(&block) }
                }));
            }
        }
    }
    Read { blocks, mends }
}

/// One copy of blocks that are beside each other; none of those that cannot be read.
fn read_blocks(
    device: &Device,
    geometry: &Geometry,
    blocks: &[u32],
    copy: usize,
) -> Vec<Option<Buf>> {
    let block_len = BLOCK_LEN as u64;
    let one = |block: &u32| read(device, geometry.block_offsets(*block)[copy], block_len).ok();
    let len = blocks.len() as u64 * block_len;
    match read(device, geometry.block_offsets(blocks[0])[copy], len) {
        Ok(bytes) => {
            let bytes = bytes.to_contiguous();
            let starts = (0..blocks.len()).map(|at| at * BLOCK_LEN);
            starts.map(|at| Some(bytes.slice(at..at + BLOCK_LEN))).collect()
        }
        Err(_) => blocks.iter().map(|block| Some(one(block)?.to_contiguous())).collect(),
    }
}

pub(crate) fn hex(id: &DiskId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
