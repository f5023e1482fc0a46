//! A disk in memory: bytes behind a volatile cache, unit attentions, and the registrations of nexuses.

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};

use netraid_scsi::{
    Additional, Sense, SenseKey, Status,
    capacity::Capacity,
    inquiry::{self, Identity},
    limits::{BlockLimits, Provisioning},
    sense::SenseFormat,
};

use super::{
    BLOCK, BLOCK_LEN, CLEAR, FLUSH, READ, RESERVE_IN, RESERVE_OUT, UNMAP, WRITE, WRITE_SAME,
};

/// What a session is known by.
pub(super) type Isid = [u8; 6];

/// How a command ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u8,
    pub(super) sense: Vec<u8>,
    pub(super) data: Vec<u8>,
}

impl Answer {
    pub(super) fn data(data: Vec<u8>) -> Self {
        Self { status: 0, sense: Vec::new(), data }
    }

    pub(super) fn good() -> Self {
        Self::data(Vec::new())
    }

    pub(super) fn status(status: Status) -> Self {
        Self { status: status.code(), ..Self::good() }
    }

    pub(super) fn sense(key: SenseKey, additional: Additional) -> Self {
        let sense = Sense::new(key, additional).encode(SenseFormat::Fixed);
        Self { sense, ..Self::status(Status::CheckCondition) }
    }

    pub(super) fn attention(additional: Additional) -> Self {
        Self::sense(SenseKey::UnitAttention, additional)
    }

    pub(super) fn unknown() -> Self {
        Self::sense(SenseKey::IllegalRequest, Additional::INVALID_COMMAND_OPERATION_CODE)
    }

    /// What it needs for it cannot be reached.
    pub(super) fn unreachable_inside() -> Self {
        Self::sense(SenseKey::NotReady, Additional::LOGICAL_UNIT_COMMUNICATION_FAILURE)
    }

    /// An earlier command has failed.
    pub(super) fn deferred() -> Self {
        let sense = Sense::new(SenseKey::MediumError, Additional::WRITE_ERROR);
        let sense = Sense { deferred: true, ..sense }.encode(SenseFormat::Fixed);
        Self { sense, ..Self::status(Status::CheckCondition) }
    }
}

pub(super) struct Medium {
    /// What reads return.
    pub(super) contents: Vec<u8>,
    /// What is left without power.
    pub(super) stable: Vec<u8>,
    pub(super) identity: Identity,
    pub(super) write_cache: bool,
    pub(super) dpofua: bool,
    pub(super) unmaps: bool,
    /// What is still to be told each nexus that is known.
    pub(super) attentions: BTreeMap<Isid, VecDeque<Additional>>,
    pub(super) registrations: BTreeMap<Isid, u64>,
    /// Keys of other hosts.
    pub(super) others: Vec<u64>,
    /// Only who is registered writes.
    pub(super) is_reserved: bool,
    /// Nexuses are known again when they come back.
    pub(super) remembers: bool,
}

impl Medium {
    pub(super) fn new(blocks: usize) -> Self {
        let bytes = vec![0; blocks * BLOCK_LEN];
        Self {
            stable: bytes.clone(),
            contents: bytes,
            identity: Identity::for_lun("iqn.test:target", 0),
            write_cache: true,
            dpofua: false,
            unmaps: false,
            attentions: BTreeMap::new(),
            registrations: BTreeMap::new(),
            others: Vec::new(),
            is_reserved: false,
            remembers: true,
        }
    }

    /// A session begins.
    pub(super) fn greet(&mut self, isid: Isid) {
        let known = self.attentions.contains_key(&isid);
        let told = self.attentions.entry(isid).or_default();
        if !known {
            told.push_back(Additional::POWER_ON_OR_RESET);
        } else if self.remembers {
            told.push_back(Additional::NEXUS_LOSS);
        }
    }

    /// Tells everybody something.
    pub(super) fn tell(&mut self, additional: Additional) {
        self.attentions.values_mut().for_each(|told| told.push_back(additional));
    }

    /// What was not flushed is gone, and everybody will be told.
    pub(super) fn lose_cache(&mut self) {
        self.contents = self.stable.clone();
        self.attentions.values_mut().for_each(VecDeque::clear);
        self.tell(Additional { asc: 0x29, ascq: 0x04 });
    }

    /// Another host takes over: it removes all registrations but its own.
    pub(super) fn take_over(&mut self) {
        self.registrations.clear();
        self.others = vec![99];
        self.is_reserved = true;
        self.tell(Additional::REGISTRATIONS_PREEMPTED);
    }

    /// Carries out a command.
    pub(super) fn execute(&mut self, isid: Isid, cdb: &[u8; 16], data: &[u8]) -> Answer {
        if cdb[0] == 0x12 {
            return self.inquiry(cdb);
        }
        if let Some(told) = self.attentions.get_mut(&isid).and_then(VecDeque::pop_front) {
            return Answer::attention(told);
        }
        let writes = [WRITE, 0x8a, FLUSH, UNMAP, WRITE_SAME].contains(&cdb[0]);
        if writes && self.is_reserved && !self.registrations.contains_key(&isid) {
            return Answer::status(Status::ReservationConflict);
        }
        match cdb[0] {
            0x00 => Answer::good(),
            0x9e => Answer::data(self.capacity().encode_16()),
            0x1a => Answer::data(self.mode()),
            READ => Answer::data(self.contents[range(short(cdb))].to_vec()),
            WRITE => self.write(short(cdb), data, cdb[1] & 0x08 != 0),
            FLUSH => {
                self.stable = self.contents.clone();
                Answer::good()
            }
            UNMAP if self.unmaps => {
                let extent = (be(&data[8..16]), be(&data[16..20]));
                self.fill(extent, &[0; BLOCK_LEN])
            }
            WRITE_SAME if self.unmaps => self.fill((be(&cdb[2..10]), be(&cdb[10..14])), data),
            RESERVE_IN => Answer::data(self.keys()),
            RESERVE_OUT => self.reserve_out(isid, cdb, data),
            _ => Answer::unknown(),
        }
    }

    fn write(&mut self, extent: (u64, u64), data: &[u8], fua: bool) -> Answer {
        self.contents[range(extent)].copy_from_slice(data);
        self.keep(extent, fua)
    }

    /// What was written is stable where nothing is cached.
    fn keep(&mut self, extent: (u64, u64), fua: bool) -> Answer {
        if fua || !self.write_cache {
            let written = self.contents[range(extent)].to_vec();
            self.stable[range(extent)].copy_from_slice(&written);
        }
        Answer::good()
    }

    fn fill(&mut self, extent: (u64, u64), block: &[u8]) -> Answer {
        for place in self.contents[range(extent)].chunks_exact_mut(BLOCK_LEN) {
            place.copy_from_slice(block);
        }
        self.keep(extent, false)
    }

    fn capacity(&self) -> Capacity {
        let blocks = self.contents.len() as u64 / BLOCK;
        let (thin, reads_zeros) = (self.unmaps, self.unmaps);
        Capacity { blocks, block_len: 512, physical_exponent: 0, thin, reads_zeros }
    }

    fn inquiry(&self, cdb: &[u8; 16]) -> Answer {
        let (extents, blocks) = (u32::from(self.unmaps), 1 << 20);
        let limits = BlockLimits {
            unmap_extents_max: extents,
            unmap_blocks_max: blocks,
            ..BlockLimits::default()
        };
        let unmap = self.unmaps;
        let thin =
            Provisioning { unmap, write_same_16: unmap, write_same_10: false, reads_zeros: unmap };
        Answer::data(match (cdb[1], cdb[2]) {
            (0, _) => self.identity.standard(),
            (_, inquiry::PAGE_SERIAL) => self.identity.serial_page(),
            (_, inquiry::PAGE_IDENTIFICATION) => self.identity.identification_page(),
            (_, inquiry::PAGE_BLOCK_LIMITS) => limits.encode(),
            (_, inquiry::PAGE_PROVISIONING) => thin.encode(),
            _ => {
                let field = Additional::INVALID_FIELD_IN_CDB;
                return Answer::sense(SenseKey::IllegalRequest, field);
            }
        })
    }

    fn mode(&self) -> Vec<u8> {
        let mut mode = vec![23, 0, u8::from(self.dpofua) << 4, 0, 0x08, 18];
        mode.push(u8::from(self.write_cache) << 2);
        mode.resize(24, 0);
        mode
    }

    fn keys(&self) -> Vec<u8> {
        let keys = self.registrations.values().chain(&self.others);
        let keys: Vec<u8> = keys.flat_map(|key| key.to_be_bytes()).collect();
        let len = u32::try_from(keys.len()).unwrap();
        [vec![0, 0, 0, 1], len.to_be_bytes().to_vec(), keys].concat()
    }

    fn reserve_out(&mut self, isid: Isid, cdb: &[u8; 16], data: &[u8]) -> Answer {
        let (key, new) = (be(&data[..8]), be(&data[8..16]));
        let own = self.registrations.get(&isid).copied().unwrap_or(0);
        let conflict = Answer::status(Status::ReservationConflict);
        match cdb[1] {
            0x00 if key != own => return conflict,
            0x00 | 0x06 if new == 0 => drop(self.registrations.remove(&isid)),
            0x00 | 0x06 => drop(self.registrations.insert(isid, new)),
            _ if own == 0 || key != own => return conflict,
            0x01 => self.is_reserved = true,
            CLEAR => {
                self.registrations.clear();
                self.is_reserved = false;
            }
            _ => return Answer::unknown(),
        }
        Answer::good()
    }
}

fn range((lba, blocks): (u64, u64)) -> core::ops::Range<usize> {
    let at = |block: u64| usize::try_from(block * BLOCK).unwrap();
    at(lba)..at(lba + blocks)
}

/// First block and number of blocks of a READ or WRITE (10).
fn short(cdb: &[u8; 16]) -> (u64, u64) {
    (be(&cdb[2..6]), be(&cdb[7..9]))
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
