//! PERSISTENT RESERVE IN and OUT as an initiator sends them, and the answers as it reads them
//! (SPC-4, sections 6.15 and 6.16).

use alloc::{vec, vec::Vec};

use super::build::CdbBytes;
use crate::bytes::{be16, be32, be64, put};
pub use crate::reservation::ReservationType;

/// Most keys of an answer that are looked at.
const KEYS_MAX: usize = 4096;
/// Bytes of the parameter list of PERSISTENT RESERVE OUT (SPC-4, section 6.16.3).
const PARAMETERS_LEN: usize = 24;

/// A PERSISTENT RESERVE OUT: the command and its parameter list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveOut {
    /// The command.
    pub cdb: CdbBytes,
    /// What it sends.
    pub parameters: Vec<u8>,
}

impl ReserveOut {
    fn new(action: u8, kind: Option<ReservationType>, key: u64, action_key: u64) -> Self {
        let mut cdb = [0; super::CDB_LEN_MAX];
        cdb[0] = 0x5f;
        cdb[1] = action;
        // Scope 0 is the logical unit.
        cdb[2] = kind.map_or(0, |kind| kind as u8);
        put(&mut cdb, 5, 24_u32.to_be_bytes());
        let mut parameters = vec![0; PARAMETERS_LEN];
        put(&mut parameters, 0, key.to_be_bytes());
        put(&mut parameters, 8, action_key.to_be_bytes());
        Self { cdb, parameters }
    }

    /// Registrations and the reservation outlive a loss of power (APTPL); for registering only.
    #[must_use]
    pub fn through_power_loss(mut self) -> Self {
        self.parameters[20] |= 0x01;
        self
    }
}

/// REGISTER: `key` is the key under which the nexus is registered now (0: none), `new` that under
/// which it will be (0: none).
#[must_use]
pub fn register(key: u64, new: u64) -> ReserveOut {
    ReserveOut::new(0x00, None, key, new)
}

/// REGISTER AND IGNORE EXISTING KEY.
#[must_use]
pub fn register_and_ignore(new: u64) -> ReserveOut {
    ReserveOut::new(0x06, None, 0, new)
}

/// RESERVE, for a nexus that is registered with `key`.
#[must_use]
pub fn reserve(key: u64, kind: ReservationType) -> ReserveOut {
    ReserveOut::new(0x01, Some(kind), key, 0)
}

/// RELEASE, by the holder.
#[must_use]
pub fn release(key: u64, kind: ReservationType) -> ReserveOut {
    ReserveOut::new(0x02, Some(kind), key, 0)
}

/// CLEAR: no reservation and no registration is left.
#[must_use]
pub fn clear(key: u64) -> ReserveOut {
    ReserveOut::new(0x03, None, key, 0)
}

/// PREEMPT, or PREEMPT AND ABORT, which ends the commands of the removed nexuses first: removes
/// all registrations with the key `victim`, and takes its reservation over as `kind`.
#[must_use]
pub fn preempt(key: u64, victim: u64, kind: ReservationType, abort: bool) -> ReserveOut {
    ReserveOut::new(if abort { 0x05 } else { 0x04 }, Some(kind), key, victim)
}

/// PERSISTENT RESERVE IN, READ KEYS; the answer is for [`Keys::decode`].
#[must_use]
pub fn read_keys(allocation_len: u16) -> CdbBytes {
    reserve_in(0x00, allocation_len)
}

/// PERSISTENT RESERVE IN, READ RESERVATION; the answer is for [`Reservation::decode`].
#[must_use]
pub fn read_reservation(allocation_len: u16) -> CdbBytes {
    reserve_in(0x01, allocation_len)
}

fn reserve_in(action: u8, allocation_len: u16) -> CdbBytes {
    let mut cdb = [0; super::CDB_LEN_MAX];
    cdb[0] = 0x5e;
    cdb[1] = action;
    put(&mut cdb, 7, allocation_len.to_be_bytes());
    cdb
}

/// The registered keys (SPC-4, section 6.15.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Changes with every registration.
    pub generation: u32,
    /// One for each registration: alike where several nexuses share a key.
    pub keys: Vec<u64>,
    /// There are more than the answer had room for.
    pub is_cut: bool,
}

impl Keys {
    /// Reads the answer; `None` when it is too short.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<Self> {
        let (generation, len) = (be32(data, 0)?, usize::try_from(be32(data, 4)?).ok()?);
        let listed = &data[8..];
        let there = listed.len().min(len);
        let keys: Vec<u64> =
            listed[..there].chunks_exact(8).take(KEYS_MAX).filter_map(|key| be64(key, 0)).collect();
        Some(Self { generation, is_cut: keys.len() < len / 8, keys })
    }
}

/// The reservation that is held (SPC-4, section 6.15.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// The holder's key; 0 when all registrants hold it.
    pub key: u64,
    /// What it excludes.
    pub kind: ReservationType,
}

impl Reservation {
    /// Reads the answer: nothing when there is no reservation. `None` when it is too short, or of
    /// a type that does not exist.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<Option<Self>> {
        if be32(data, 4)? == 0 {
            return Some(None);
        }
        // Obsolete scopes are as long gone as the types 0, 2 and 4.
        let scope_and_type = be16(data, 20)?.to_be_bytes()[1];
        let kind = ReservationType::from_code(scope_and_type & 0x0f)?;
        Some(Some(Self { key: be64(data, 8)?, kind }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPC-4, table 213 (CDB) and section 6.16.3 (parameter list).
    #[test]
    fn orders_are_laid_out_as_the_standard_says() {
        let kind = ReservationType::WriteExclusiveAllRegistrants;
        for (order, action, scope_type, key, action_key) in [
            (register(1, 2), 0, 0, 1, 2),
            (reserve(1, kind), 1, 7, 1, 0),
            (release(1, kind), 2, 7, 1, 0),
            (clear(1), 3, 0, 1, 0),
            (preempt(1, 3, kind, false), 4, 7, 1, 3),
            (preempt(1, 3, kind, true), 5, 7, 1, 3),
            (register_and_ignore(2), 6, 0, 0, 2),
        ] {
            assert_eq!(order.cdb[..3], [0x5f, action, scope_type]);
            assert_eq!(be32(&order.cdb, 5), Some(24));
            assert_eq!(order.parameters.len(), 24);
            assert_eq!(be64(&order.parameters, 0), Some(key));
            assert_eq!(be64(&order.parameters, 8), Some(action_key));
            assert_eq!(order.parameters[20], 0);
        }
        assert_eq!(register(0, 1).through_power_loss().parameters[20], 1);
        assert_eq!(read_keys(0x1234)[..9], [0x5e, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(read_reservation(24)[1], 1);
    }

    #[test]
    fn keys_are_read_as_far_as_they_came() {
        let mut data = vec![0, 0, 0, 9, 0, 0, 0, 16];
        data.extend(7_u64.to_be_bytes());
        data.extend(8_u64.to_be_bytes());
        let all = Keys { generation: 9, keys: vec![7, 8], is_cut: false };
        assert_eq!(Keys::decode(&data), Some(all.clone()));
        data.extend([0xee; 8]);
        assert_eq!(Keys::decode(&data), Some(all), "behind the list is nothing");
        assert_eq!(
            Keys::decode(&data[..20]),
            Some(Keys { generation: 9, keys: vec![7], is_cut: true })
        );
        assert_eq!(Keys::decode(&data[..7]), None);
        let endless = [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff];
        assert!(Keys::decode(&endless).is_some_and(|keys| keys.keys.is_empty() && keys.is_cut));
    }

    #[test]
    fn a_reservation_is_read() {
        assert_eq!(Reservation::decode(&[0; 8]), Some(None));
        let mut data = vec![0, 0, 0, 1, 0, 0, 0, 16];
        data.extend(7_u64.to_be_bytes());
        data.extend([0, 0, 0, 0, 0, 0x07, 0, 0]);
        let kind = ReservationType::WriteExclusiveAllRegistrants;
        assert_eq!(Reservation::decode(&data), Some(Some(Reservation { key: 7, kind })));
        data[21] = 0x02;
        assert_eq!(Reservation::decode(&data), None);
        assert_eq!(Reservation::decode(&data[..20]), None);
    }
}
