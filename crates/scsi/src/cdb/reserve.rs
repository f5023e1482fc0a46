//! PERSISTENT RESERVE IN and OUT (SPC-4, sections 6.15 and 6.16): the CDBs, which an initiator
//! encodes and a target parses, the orders that an initiator gives, and the answers that it reads.

use alloc::vec::Vec;

use netraid_block::narrow;

use super::{Cdb, build::CdbBytes};
pub use crate::reservation::ReservationType;
use crate::{
    bytes::{be16, be32, be64, put},
    reservation::Parameters,
    sense::Sense,
};

/// Most keys of an answer that are looked at.
const KEYS_MAX: usize = 4096;

/// Declares service actions by their codes.
macro_rules! actions {
    ($(#[$doc:meta])* $name:ident { $($action:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the names are the standard's own")]
        pub enum $name {
            $($action = $code,)*
        }

        impl $name {
            /// The action with this code, if there is one.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$action),)*
                    _ => None,
                }
            }

            /// The code of this action.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }
        }
    };
}

actions! {
    /// Service actions of PERSISTENT RESERVE IN (SPC-4, table 184).
    ReserveInAction {
        ReadKeys = 0x00,
        ReadReservation = 0x01,
        ReportCapabilities = 0x02,
        ReadFullStatus = 0x03,
    }
}

actions! {
    /// Service actions of PERSISTENT RESERVE OUT (SPC-4, table 195).
    ReserveOutAction {
        Register = 0x00,
        Reserve = 0x01,
        Release = 0x02,
        Clear = 0x03,
        Preempt = 0x04,
        PreemptAndAbort = 0x05,
        RegisterAndIgnore = 0x06,
        RegisterAndMove = 0x07,
    }
}

/// Fields of PERSISTENT RESERVE IN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveIn {
    /// What is asked.
    pub action: ReserveInAction,
    /// Most bytes to return.
    pub allocation_len: u16,
}

impl ReserveIn {
    /// The CDB.
    #[must_use]
    pub fn encode(self) -> CdbBytes {
        let mut cdb = [0; super::CDB_LEN_MAX];
        (cdb[0], cdb[1]) = (0x5e, self.action.code());
        put(&mut cdb, 7, self.allocation_len.to_be_bytes());
        cdb
    }

    pub(super) fn parse(cdb: &Cdb) -> Result<Self, Sense> {
        let action = ReserveInAction::from_code(cdb.byte(1) & 0x1f);
        let action = action.ok_or(Sense::invalid_cdb(1, Some(4)))?;
        Ok(Self { action, allocation_len: cdb.be16(7) })
    }
}

/// Fields of PERSISTENT RESERVE OUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveOut {
    /// What is to be done.
    pub action: ReserveOutAction,
    /// SCOPE field, 0 to 15; 0 is the logical unit.
    pub scope: u8,
    /// TYPE field, 0 to 15.
    pub kind: u8,
    /// Bytes of parameters.
    pub parameter_len: u32,
}

impl ReserveOut {
    /// The CDB.
    #[must_use]
    pub fn encode(self) -> CdbBytes {
        let mut cdb = [0; super::CDB_LEN_MAX];
        (cdb[0], cdb[1]) = (0x5f, self.action.code());
        cdb[2] = self.scope << 4 | (self.kind & 0x0f);
        put(&mut cdb, 5, self.parameter_len.to_be_bytes());
        cdb
    }

    pub(super) fn parse(cdb: &Cdb) -> Result<Self, Sense> {
        let action = ReserveOutAction::from_code(cdb.byte(1) & 0x1f);
        let action = action.ok_or(Sense::invalid_cdb(1, Some(4)))?;
        let (scope, kind) = (cdb.byte(2) >> 4, cdb.byte(2) & 0x0f);
        Ok(Self { action, scope, kind, parameter_len: cdb.be32(5) })
    }
}

/// A PERSISTENT RESERVE OUT as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReserveOrder {
    /// The command.
    pub cdb: CdbBytes,
    /// Its data-out.
    pub parameters: Vec<u8>,
}

fn order(
    action: ReserveOutAction,
    kind: Option<ReservationType>,
    key: u64,
    action_key: u64,
) -> ReserveOrder {
    let parameters = Parameters { key, action_key, ..Parameters::default() }.encode(action);
    let parameter_len = narrow(parameters.len());
    let kind = kind.map_or(0, ReservationType::code);
    let out = ReserveOut { action, scope: 0, kind, parameter_len };
    ReserveOrder { cdb: out.encode(), parameters }
}

/// REGISTER: `key` is the key under which the nexus is registered now (0: none), `new` that under
/// which it will be (0: none).
#[must_use]
pub fn register(key: u64, new: u64) -> ReserveOrder {
    order(ReserveOutAction::Register, None, key, new)
}

/// REGISTER AND IGNORE EXISTING KEY.
#[must_use]
pub fn register_and_ignore(new: u64) -> ReserveOrder {
    order(ReserveOutAction::RegisterAndIgnore, None, 0, new)
}

/// RESERVE, for a nexus that is registered with `key`.
#[must_use]
pub fn reserve(key: u64, kind: ReservationType) -> ReserveOrder {
    order(ReserveOutAction::Reserve, Some(kind), key, 0)
}

/// RELEASE, by the holder.
#[must_use]
pub fn release(key: u64, kind: ReservationType) -> ReserveOrder {
    order(ReserveOutAction::Release, Some(kind), key, 0)
}

/// CLEAR: no reservation and no registration is left.
#[must_use]
pub fn clear(key: u64) -> ReserveOrder {
    order(ReserveOutAction::Clear, None, key, 0)
}

/// PREEMPT, or PREEMPT AND ABORT, which ends the commands of the removed nexuses first: removes
/// all registrations with the key `victim`, and takes its reservation over as `kind`.
#[must_use]
pub fn preempt(key: u64, victim: u64, kind: ReservationType, abort: bool) -> ReserveOrder {
    let action = if abort { ReserveOutAction::PreemptAndAbort } else { ReserveOutAction::Preempt };
    order(action, Some(kind), key, victim)
}

/// PERSISTENT RESERVE IN, READ KEYS; the answer is for [`Keys::decode`].
#[must_use]
pub fn read_keys(allocation_len: u16) -> CdbBytes {
    ReserveIn { action: ReserveInAction::ReadKeys, allocation_len }.encode()
}

/// PERSISTENT RESERVE IN, READ RESERVATION; the answer is for [`Reservation::decode`].
#[must_use]
pub fn read_reservation(allocation_len: u16) -> CdbBytes {
    ReserveIn { action: ReserveInAction::ReadReservation, allocation_len }.encode()
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
    use std::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::cdb::{Command, DataOut, parse};

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed_again(
            codes in (0..=3_u8, 0..=7_u8),
            scope in 0..16_u8,
            kind in 0..16_u8,
            allocation_len: u16,
            parameter_len: u32,
        ) {
            let action = ReserveInAction::from_code(codes.0).unwrap();
            let request = ReserveIn { action, allocation_len };
            prop_assert_eq!(parse(&request.encode()), Ok(Command::PersistentReserveIn(request)));
            let action = ReserveOutAction::from_code(codes.1).unwrap();
            let out = ReserveOut { action, scope, kind, parameter_len };
            prop_assert_eq!(parse(&out.encode()), Ok(DataOut::PersistentReserveOut(out).into()));
        }
    }

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
