//! The parameter list of PERSISTENT RESERVE OUT (SPC-4, sections 6.16.3 and 6.16.4), both
//! directions.

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use super::{REGISTRATIONS_MAX, invalid_bit};
use crate::{
    bytes::{be16, be32, be64, put},
    cdb::{ReserveOut, ReserveOutAction},
    ports::{TransportId, TransportIdError},
    sense::{Additional, Sense},
};

/// Length of the basic list, and of the one of REGISTER AND MOVE without its TransportID.
const BASIC_LEN: u32 = 24;
/// Where the TransportIDs of SPEC_I_PT begin.
const IDS_AT: usize = 28;
/// Longest list that is taken: every possible registration named by the longest TransportID.
const LEN_MAX: usize = IDS_AT + 248 * REGISTRATIONS_MAX;

/// What a parameter list says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Parameters {
    /// RESERVATION KEY.
    pub(crate) key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(crate) action_key: u64,
    /// What SPEC_I_PT names, each with its place in the list.
    pub(crate) ports: Option<Vec<(u16, TransportId)>>,
    /// ALL_TG_PT.
    pub(crate) all_target_ports: bool,
    /// APTPL.
    pub(crate) persist: bool,
    /// UNREG of REGISTER AND MOVE.
    pub(crate) unregister: bool,
    /// Where REGISTER AND MOVE moves to: relative target port and initiator port.
    pub(crate) destination: Option<(u16, TransportId)>,
}

const fn wrong_len() -> Sense {
    Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR)
}

/// Checks the PARAMETER LIST LENGTH field, as far as that is possible without the list.
pub(crate) fn check_len(out: ReserveOut) -> Result<(), Sense> {
    let right = match out.action {
        ReserveOutAction::Register | ReserveOutAction::RegisterAndMove => {
            let longest = usize::try_from(out.parameter_len).is_ok_and(|len| len <= LEN_MAX);
            longest && out.parameter_len >= BASIC_LEN
        }
        ReserveOutAction::Reserve
        | ReserveOutAction::Release
        | ReserveOutAction::Clear
        | ReserveOutAction::Preempt
        | ReserveOutAction::PreemptAndAbort
        | ReserveOutAction::RegisterAndIgnore => out.parameter_len == BASIC_LEN,
    };
    if right { Ok(()) } else { Err(wrong_len()) }
}

impl Parameters {
    /// The list, for [`Self::decode`] with the same action.
    pub(crate) fn encode(&self, action: ReserveOutAction) -> Vec<u8> {
        let mut out = vec![0; BASIC_LEN as usize];
        put(&mut out, 0, self.key.to_be_bytes());
        put(&mut out, 8, self.action_key.to_be_bytes());
        let flag = |is_set: bool, bit: u8| u8::from(is_set) << bit;
        if action == ReserveOutAction::RegisterAndMove {
            out[17] = flag(self.unregister, 1) | flag(self.persist, 0);
            if let Some((port, id)) = &self.destination {
                put(&mut out, 18, port.to_be_bytes());
                let id = id.encode();
                put(&mut out, 20, len_of(&id).to_be_bytes());
                out.extend(id);
            }
            return out;
        }
        out[20] =
            flag(self.ports.is_some(), 3) | flag(self.all_target_ports, 2) | flag(self.persist, 0);
        if let Some(ports) = &self.ports {
            let ids: Vec<u8> = ports.iter().flat_map(|(_, id)| id.encode()).collect();
            out.extend(len_of(&ids).to_be_bytes());
            out.extend(ids);
        }
        out
    }

    /// Reads the list, all of which has come.
    pub(crate) fn decode(out: ReserveOut, list: &[u8]) -> Result<Self, Sense> {
        if u32::try_from(list.len()) != Ok(out.parameter_len) {
            return Err(wrong_len());
        }
        let key = be64(list, 0).ok_or(wrong_len())?;
        let action_key = be64(list, 8).ok_or(wrong_len())?;
        let basic = Self { key, action_key, ..Self::default() };
        match out.action {
            ReserveOutAction::RegisterAndMove => basic.with_destination(list),
            ReserveOutAction::Register
            | ReserveOutAction::Reserve
            | ReserveOutAction::Release
            | ReserveOutAction::Clear
            | ReserveOutAction::Preempt
            | ReserveOutAction::PreemptAndAbort
            | ReserveOutAction::RegisterAndIgnore => basic.with_flags(out.action, list),
        }
    }

    fn with_flags(mut self, action: ReserveOutAction, list: &[u8]) -> Result<Self, Sense> {
        let flags = *list.get(20).ok_or(wrong_len())?;
        // Where they are not valid these two are ignored; SPEC_I_PT is not.
        self.all_target_ports = flags & 0x04 != 0;
        self.persist = flags & 0x01 != 0;
        if flags & 0x08 != 0 {
            if action != ReserveOutAction::Register {
                return Err(invalid_bit(20, 3));
            }
            self.ports = Some(transport_ids(list)?);
        } else if list.len() != BASIC_LEN as usize {
            return Err(wrong_len());
        }
        Ok(self)
    }

    fn with_destination(mut self, list: &[u8]) -> Result<Self, Sense> {
        let flags = *list.get(17).ok_or(wrong_len())?;
        self.unregister = flags & 0x02 != 0;
        self.persist = flags & 0x01 != 0;
        let port = be16(list, 18).ok_or(wrong_len())?;
        let len = be32(list, 20).ok_or(wrong_len())?;
        let id = &list[BASIC_LEN as usize..];
        if usize::try_from(len) != Ok(id.len()) {
            return Err(wrong_len());
        }
        let (named, used) = TransportId::decode(id).map_err(|error| sense_of(error, 24))?;
        if used != id.len() {
            return Err(Sense::invalid_parameter(20));
        }
        self.destination = Some((port, named));
        Ok(self)
    }
}

fn len_of(ids: &[u8]) -> u32 {
    narrow(ids.len())
}

fn transport_ids(list: &[u8]) -> Result<Vec<(u16, TransportId)>, Sense> {
    let len = be32(list, 24).ok_or(wrong_len())?;
    let mut rest = list.get(IDS_AT..).ok_or(wrong_len())?;
    if usize::try_from(len) != Ok(rest.len()) {
        return Err(wrong_len());
    }
    let mut out = Vec::new();
    while !rest.is_empty() {
        let at = list.len() - rest.len();
        let (id, used) = TransportId::decode(rest).map_err(|error| sense_of(error, at))?;
        out.push((pointer(at), id));
        rest = &rest[used..];
    }
    Ok(out)
}

fn sense_of(error: TransportIdError, at: usize) -> Sense {
    match error {
        TransportIdError::CutOff => wrong_len(),
        TransportIdError::Invalid(byte) => Sense::invalid_parameter(pointer(at + byte)),
    }
}

/// A field pointer to byte `at` of a list.
fn pointer(at: usize) -> u16 {
    // Clamped: what lies beyond its reach is named by its last value.
    u16::try_from(at).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ports::InitiatorPort;

    fn any_id() -> impl Strategy<Value = TransportId> {
        let name = "[a-z0-9.:-]{1,223}";
        prop_oneof![
            name.prop_map(TransportId::Initiator),
            (name, any::<[u8; 6]>()).prop_map(|(name, isid)| TransportId::Port(
                InitiatorPort::new(&name, isid).unwrap()
            )),
        ]
    }

    /// Where each of these begins in a list.
    fn placed(ids: Vec<TransportId>) -> Vec<(u16, TransportId)> {
        let mut at = IDS_AT;
        let place = |id: TransportId| {
            let here = u16::try_from(at).unwrap();
            at += id.encode().len();
            (here, id)
        };
        ids.into_iter().map(place).collect()
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_again(
            code in 0..=7_u8,
            keys in any::<(u64, u64)>(),
            flags in any::<(bool, bool, bool)>(),
            ids in proptest::collection::vec(any_id(), 0..5),
            destination in (any::<u16>(), any_id()),
        ) {
            let action = ReserveOutAction::from_code(code).unwrap();
            let (all_target_ports, persist, unregister) = flags;
            let (key, action_key) = keys;
            let basic = Parameters { key, action_key, persist, ..Parameters::default() };
            let parameters = match action {
                ReserveOutAction::RegisterAndMove => {
                    Parameters { unregister, destination: Some(destination), ..basic }
                }
                ReserveOutAction::Register if !ids.is_empty() => {
                    Parameters { ports: Some(placed(ids)), all_target_ports, ..basic }
                }
                ReserveOutAction::Register
                | ReserveOutAction::RegisterAndIgnore
                | ReserveOutAction::Reserve
                | ReserveOutAction::Release
                | ReserveOutAction::Clear
                | ReserveOutAction::Preempt
                | ReserveOutAction::PreemptAndAbort => Parameters { all_target_ports, ..basic },
            };
            let list = parameters.encode(action);
            let out = ReserveOut { action, scope: 0, kind: 0, parameter_len: len_of(&list) };
            prop_assert_eq!(check_len(out), Ok(()));
            prop_assert_eq!(Parameters::decode(out, &list), Ok(parameters));
        }
    }
}
