//! The production machine and executor over members in memory, with every end of a member
//! request in the hands of the test.

use std::collections::{BTreeMap, BTreeSet};

use netraid_block::{ErrorKind, IoError, Op, Pool, SgList};
use netraid_raid::{
    array::{Action, ArrayMachine, Event, IoId, MemberCaps, OpenConfig, RequestId, UserRequest},
    assemble::{AssembleError, Assembly, Found, Permissions, assemble},
    executor::Executor,
    geometry::{Geometry, Level},
    label::{Closure, Holder, LABEL_LEN, Label, MemberEntry},
    lack::Lack,
    member::{MemberIndex, MemberState},
    regions::{LABEL_OFFSETS, PAGE_LEN, Wish, plan},
    written::WrittenBits,
};
use rand::{Rng, rngs::StdRng};

use super::media::Medium;

/// What one run's array looks like.
#[derive(Debug, Clone)]
pub struct Shape {
    pub level: Level,
    pub members: usize,
    pub chunk_len: u32,
    pub block_len: u32,
    pub volatile: bool,
    pub can_discard: bool,
    pub max_io_chunks: u32,
}

/// A member request that the machine waits for.
pub enum Pending {
    Read {
        io: IoId,
        member: MemberIndex,
        offset: u64,
        parts: Vec<(netraid_raid::array::BufferId, u32)>,
    },
    Write {
        io: IoId,
        member: MemberIndex,
        offset: u64,
        bytes: Vec<u8>,
        fua: bool,
        meta: bool,
    },
    Flush {
        io: IoId,
        member: MemberIndex,
    },
    Discard {
        io: IoId,
        member: MemberIndex,
        offset: u64,
        len: u64,
    },
}

impl Pending {
    pub fn member(&self) -> MemberIndex {
        match self {
            Self::Read { member, .. } | Self::Write { member, .. } => *member,
            Self::Flush { member, .. } | Self::Discard { member, .. } => *member,
        }
    }

    pub fn io(&self) -> IoId {
        match self {
            Self::Read { io, .. } | Self::Write { io, .. } => *io,
            Self::Flush { io, .. } | Self::Discard { io, .. } => *io,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "member read",
            Self::Write { meta: true, .. } => "member metadata write",
            Self::Write { fua: true, .. } => "member write with FUA",
            Self::Write { .. } => "member write",
            Self::Flush { .. } => "member flush",
            Self::Discard { .. } => "member discard",
        }
    }
}

/// A user's request that has ended.
pub type Ended = (RequestId, Result<SgList, IoError>);

/// Media, and the machine that runs on them.
pub struct Model {
    pub shape: Shape,
    pub media: Vec<Medium>,
    pub machine: ArrayMachine,
    executor: Executor,
    pub pending: Vec<Pending>,
    pub ended: Vec<Ended>,
    pub events: Vec<Event>,
    /// Actions seen, by kind.
    pub seen: BTreeMap<&'static str, u64>,
    /// Ranges of a member that its medium cannot read until they are written.
    pub bad: BTreeSet<(u8, u64)>,
    capacity: u64,
    pub orphans: BTreeMap<usize, usize>,
    pub graveyard: Vec<Medium>,
}

impl Model {
    pub fn create(shape: Shape, rng: &mut StdRng) -> Self {
        let capacity = (1 << 20) + 640_000 + rng.random_range(20..60) * u64::from(shape.chunk_len);
        let wish = Wish {
            level: shape.level,
            members: shape.members,
            chunk_len: shape.chunk_len,
            block_len: shape.block_len,
        };
        let (regions, geometry) = plan(&wish, capacity).unwrap();
        let mut media: Vec<Medium> = (0..shape.members)
            .map(|_| Medium::new(capacity as usize, shape.volatile, rng))
            .collect();
        let entry = |_| MemberEntry {
            uuid: rng.random(),
            state: MemberState::InSync,
            last_checkpoint: 0,
            rebuilt_stripes: 0,
            lack: Lack::NOTHING,
        };
        let label = Label {
            array_uuid: [3; 16],
            name: "model".into(),
            index: MemberIndex(0),
            geometry,
            regions,
            generation: 1,
            epoch: 1,
            holder: Holder::default(),
            closure: Closure::Clean,
            members: (0..shape.members).map(entry).collect(),
            log: None,
            compatible: 0,
            read_only_compatible: 0,
        };
        let mut written = WrittenBits::new(label.array_uuid, geometry.stripes());
        let images = written.images(&regions.written, &(0..written.pages()).collect());
        for (at, medium) in media.iter_mut().enumerate() {
            let label = Label { index: MemberIndex(at as u8), ..label.clone() };
            for image in &images {
                medium.write(regions.written.offset + image.offset, &image.bytes, true);
            }
            for copy in [0, 1] {
                medium.write(LABEL_OFFSETS[copy], &label.encode(copy), true);
            }
        }
        let indices: Vec<usize> = (0..shape.members).collect();
        let permissions = Permissions { holder_is_dead: true, ..Permissions::default() };
        let (machine, _) = open(&shape, &media, &indices, permissions).unwrap();
        let mut model = Self {
            shape,
            media,
            machine,
            executor: Executor::new(Pool::new()),
            pending: Vec::new(),
            ended: Vec::new(),
            events: Vec::new(),
            seen: BTreeMap::new(),
            bad: BTreeSet::new(),
            capacity,
            orphans: BTreeMap::new(),
            graveyard: Vec::new(),
        };
        model.pump();
        model
    }

    pub fn geometry(&self) -> Geometry {
        *self.machine.geometry()
    }

    /// Opens the array again from what is on the media, with the members in `here`.
    pub fn reopen(
        &mut self,
        here: &[usize],
        permissions: Permissions,
    ) -> Result<Assembly, AssembleError> {
        let (machine, assembly) = open(&self.shape, &self.media, here, permissions)?;
        self.machine = machine;
        self.executor = Executor::new(Pool::new());
        self.pending.clear();
        self.orphans.clear();
        self.graveyard.clear();
        self.pump();
        Ok(assembly)
    }

    pub fn submit(&mut self, request: RequestId, user: UserRequest, data: SgList) {
        if user.op == Op::Write {
            self.executor.begin_request(request, data);
        }
        self.machine.handle_request(request, user);
        self.pump();
    }

    /// Ends one member request, with success or with an error.
    pub fn finish(&mut self, at: usize, error: Option<ErrorKind>, rng: &mut StdRng) {
        let pending = self.pending.swap_remove(at);
        let orphan = self.orphans.remove(&pending.io().0);
        let medium = match orphan {
            Some(g) => &mut self.graveyard[g],
            None => &mut self.media[pending.member().as_usize()],
        };
        let mut error = error;
        match &pending {
            Pending::Read { member, offset, parts, .. } => {
                let len: usize = parts.iter().map(|(_, len)| *len as usize).sum();
                let sectors = (*offset / 512..(*offset + len as u64) / 512).map(|s| (member.0, s));
                if orphan.is_none() && sectors.clone().any(|sector| self.bad.contains(&sector)) {
                    error.get_or_insert(ErrorKind::Medium);
                }
                if error.is_none() {
                    let bytes = netraid_block::Buf::copy_from(medium.read(*offset, len));
                    self.executor.fill(parts, &bytes.into());
                }
            }
            Pending::Write { member, offset, bytes, fua, .. } => match error {
                None => {
                    medium.write(*offset, bytes, *fua);
                    if orphan.is_none() {
                        for sector in *offset / 512..(*offset + bytes.len() as u64) / 512 {
                            self.bad.remove(&(member.0, sector));
                        }
                    }
                }
                Some(_) => medium.tear(*offset, bytes, rng),
            },
            Pending::Flush { .. } if error.is_none() => medium.flush(),
            Pending::Discard { offset, len, .. } if error.is_none() => {
                medium.write(*offset, &vec![rng.random(); *len as usize], false);
            }
            Pending::Flush { .. } | Pending::Discard { .. } => {}
        }
        let result = error.map_or(Ok(()), |kind| Err(kind.into()));
        self.machine.handle_io_done(pending.io(), result);
        self.pump();
    }

    /// Another device, full of garbage, for a member.
    pub fn swap_medium(&mut self, member: usize, rng: &mut StdRng) {
        let new = Medium::new(self.capacity as usize, self.shape.volatile, rng);
        let old = std::mem::replace(&mut self.media[member], new);
        let g = self.graveyard.len();
        self.graveyard.push(old);
        for p in &self.pending {
            if p.member().as_usize() == member && !self.orphans.contains_key(&p.io().0) {
                self.orphans.insert(p.io().0, g);
            }
        }
        self.bad.retain(|(bad, _)| usize::from(*bad) != member);
    }

    /// Whether the member's own label says that the member is in sync.
    pub fn label_says_in_sync(&self, member: usize) -> bool {
        let label = read_label(&self.media, member).map(|found| found.label);
        label.is_some_and(|label| label.members[member].state == MemberState::InSync)
    }

    pub fn caps(&self) -> MemberCaps {
        MemberCaps { volatile_cache: self.shape.volatile, can_discard: self.shape.can_discard }
    }

    /// Executes what can be executed at once, and queues what members must do.
    pub fn pump(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Xor { into, len, sources } => {
                    self.count("xor");
                    self.executor.xor(into, len, &sources);
                }
                Action::Free { buffer } => self.executor.free(buffer),
                Action::Read { io, member, offset, parts } => {
                    self.queue(Pending::Read { io, member, offset, parts });
                }
                Action::Write { io, member, offset, fua, sources } => {
                    let list = self.executor.gather(&sources);
                    let bytes = list.to_contiguous().to_vec();
                    self.queue(Pending::Write { io, member, offset, bytes, fua, meta: false });
                }
                Action::WriteMeta { io, member, offset, bytes } => {
                    let bytes = bytes.to_vec();
                    self.queue(Pending::Write { io, member, offset, bytes, fua: true, meta: true });
                }
                Action::Flush { io, member } => self.queue(Pending::Flush { io, member }),
                Action::Discard { io, member, offset, len } => {
                    self.queue(Pending::Discard { io, member, offset, len });
                }
                Action::Complete { request, result } => {
                    let result = result.map(|sources| self.executor.gather(&sources));
                    self.executor.end_request(request);
                    self.ended.push((request, result));
                }
            }
        }
        while let Some(event) = self.machine.poll_event() {
            self.events.push(event);
        }
    }

    fn queue(&mut self, pending: Pending) {
        self.count(pending.name());
        self.pending.push(pending);
    }

    pub fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}

fn open(
    shape: &Shape,
    media: &[Medium],
    here: &[usize],
    permissions: Permissions,
) -> Result<(ArrayMachine, Assembly), AssembleError> {
    let found: Vec<Found> = here.iter().filter_map(|at| read_label(media, *at)).collect();
    let assembly = assemble(&found, permissions)?;
    let label = &assembly.label;
    let region = label.regions.written;
    let mut written = WrittenBits::new(label.array_uuid, label.geometry.stripes());
    for (index, place) in assembly.found.iter().enumerate() {
        if place.is_some() && label.members[index].state == MemberState::InSync {
            let medium = &media[index];
            for slot in 0..written.pages() * 2 {
                let offset = slot * u64::from(PAGE_LEN);
                let bytes = medium.read(region.offset + offset, PAGE_LEN as usize);
                written.offer(&region, offset, bytes);
            }
        }
    }
    assert_eq!(written.first_missing(), None, "a page of written bits has no valid copy");
    let caps = MemberCaps { volatile_cache: shape.volatile, can_discard: shape.can_discard };
    let config = OpenConfig {
        read_only: permissions.read_only,
        trust_parity: permissions.force,
        holder: Holder::default(),
        caps: vec![caps; shape.members],
        max_io_len: shape.chunk_len * shape.max_io_chunks,
    };
    Ok((ArrayMachine::open(&assembly, written, config), assembly))
}

fn read_label(media: &[Medium], at: usize) -> Option<Found> {
    let labels =
        [0, 1].map(|copy| Label::decode(media[at].read(LABEL_OFFSETS[copy], LABEL_LEN), copy).ok());
    let label = labels.into_iter().flatten().max_by_key(|l| (l.generation, l.epoch))?;
    Some(Found { address: format!("m{at}"), label, checkpoint: None })
}
