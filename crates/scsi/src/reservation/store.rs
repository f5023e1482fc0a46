//! The state that survives a loss of power (APTPL), as bytes: see docs/formats/reservations.md.

use alloc::vec::Vec;
use core::fmt;

use crc::{CRC_32_ISCSI, Crc};
use netraid_block::narrow;

use super::{REGISTRATIONS_MAX, Registration, ReservationType, Reservations};
use crate::ports::{InitiatorPort, Nexus, TARGET_PORT};

const MAGIC: &[u8; 8] = b"NRPRSRV\n";
const VERSION: u16 = 1;
const HEADER_LEN: usize = 32;
const CRC_AT: usize = 12;
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

const FLAG_ALL_TARGET_PORTS: u8 = 0x01;
const FLAG_HOLDER: u8 = 0x02;

/// Why stored reservations cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateError {
    /// The bytes are no stored reservations at all.
    Foreign,
    /// They are of a version that this program does not know.
    Version(u16),
    /// They were damaged or cut off.
    Damaged,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "holds no reservations"),
            Self::Version(found) => {
                write!(f, "holds reservations of format version {found}, known is {VERSION}")
            }
            Self::Damaged => write!(f, "holds reservations that are damaged"),
        }
    }
}

impl core::error::Error for StateError {}

impl Reservations {
    /// The bytes to store; none when there is nothing to keep.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if !self.is_persistent || self.registrations.is_empty() {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(HEADER_LEN + 64 * self.registrations.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.push(self.reserved.map_or(0, ReservationType::code));
        out.resize(HEADER_LEN, 0);
        for one in &self.registrations {
            let initiator = &one.nexus.initiator;
            let mut flags = 0;
            flags |= if one.all_target_ports { FLAG_ALL_TARGET_PORTS } else { 0 };
            flags |= if one.is_holder { FLAG_HOLDER } else { 0 };
            out.extend(one.key.to_le_bytes());
            out.extend(one.nexus.target_port.to_le_bytes());
            out.push(flags);
            // A name is at most 223 bytes.
            out.push(narrow(initiator.name().len()));
            out.extend(initiator.isid());
            out.extend([0; 2]);
            out.extend(initiator.name().as_bytes());
        }
        let len: u32 = narrow(out.len());
        let count: u32 = narrow(self.registrations.len());
        out[16..20].copy_from_slice(&len.to_le_bytes());
        out[20..24].copy_from_slice(&count.to_le_bytes());
        let sum = CRC32C.checksum(&out).to_le_bytes();
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&sum);
        out
    }

    /// Reads what [`Self::encode`] made, as after power on. No bytes mean that nothing was kept.
    ///
    /// # Errors
    /// When the bytes are anything but whole stored reservations of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        if bytes.is_empty() {
            return Ok(Self::new(true));
        }
        if bytes.get(..8) != Some(MAGIC) {
            return Err(StateError::Foreign);
        }
        let mut input = Input(bytes.get(8..).unwrap_or(&[]));
        let version = u16::from_le_bytes(input.take()?);
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let [kind, _] = input.take()?;
        let sum = u32::from_le_bytes(input.take()?);
        let len = u32::from_le_bytes(input.take()?);
        let count = u32::from_le_bytes(input.take()?);
        input.take::<8>()?;
        let mut blank = bytes.to_vec();
        blank[CRC_AT..CRC_AT + 4].fill(0);
        if usize::try_from(len) != Ok(bytes.len()) || CRC32C.checksum(&blank) != sum {
            return Err(StateError::Damaged);
        }
        let count = usize::try_from(count).map_err(|_| StateError::Damaged)?;
        if !(1..=REGISTRATIONS_MAX).contains(&count) {
            return Err(StateError::Damaged);
        }
        let mut state = Self { is_persistent: true, ..Self::new(true) };
        for _ in 0..count {
            let one = input.registration()?;
            if state.find(&one.nexus).is_some() {
                return Err(StateError::Damaged);
            }
            state.registrations.push(one);
        }
        state.reserved = match kind {
            0 => None,
            code => Some(ReservationType::from_code(code).ok_or(StateError::Damaged)?),
        };
        let holders = state.registrations.iter().filter(|one| one.is_holder).count();
        let single = state.reserved.is_some_and(|kind| !kind.is_all_registrants());
        if !input.0.is_empty() || holders != usize::from(single) {
            return Err(StateError::Damaged);
        }
        Ok(state)
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(StateError::Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    fn registration(&mut self) -> Result<Registration, StateError> {
        let key = u64::from_le_bytes(self.take()?);
        let target_port = u16::from_le_bytes(self.take()?);
        let [flags, name_len] = self.take()?;
        let isid = self.take()?;
        self.take::<2>()?;
        let name_len = usize::from(name_len);
        let (name, rest) = self.0.split_at_checked(name_len).ok_or(StateError::Damaged)?;
        self.0 = rest;
        let name = core::str::from_utf8(name).map_err(|_| StateError::Damaged)?;
        let initiator = InitiatorPort::new(name, isid).ok_or(StateError::Damaged)?;
        if target_port != TARGET_PORT || flags & !(FLAG_ALL_TARGET_PORTS | FLAG_HOLDER) != 0 {
            return Err(StateError::Damaged);
        }
        Ok(Registration {
            nexus: Nexus { initiator, target_port },
            key,
            all_target_ports: flags & FLAG_ALL_TARGET_PORTS != 0,
            is_holder: flags & FLAG_HOLDER != 0,
            live: None,
        })
    }
}
