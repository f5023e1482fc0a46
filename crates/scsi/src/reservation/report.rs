//! What PERSISTENT RESERVE IN returns (SPC-4, section 6.15).

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use super::{ReservationType, Reservations};
use crate::bytes::put;

/// PRGENERATION, and room for the length of what follows.
fn header(state: &Reservations) -> Vec<u8> {
    let mut out = state.generation.to_be_bytes().to_vec();
    out.extend([0; 4]);
    out
}

fn with_len(mut out: Vec<u8>) -> Vec<u8> {
    let len: u32 = narrow(out.len() - 8);
    put(&mut out, 4, len.to_be_bytes());
    out
}

/// READ KEYS (SPC-4, section 6.15.2).
pub(crate) fn keys(state: &Reservations) -> Vec<u8> {
    let mut out = header(state);
    state.registrations.iter().for_each(|one| out.extend(one.key.to_be_bytes()));
    with_len(out)
}

/// READ RESERVATION (SPC-4, section 6.15.3).
pub(crate) fn reservation(state: &Reservations) -> Vec<u8> {
    let mut out = header(state);
    if let Some(kind) = state.reserved {
        // Of all registrants none is named.
        let holder = state.registrations.iter().find(|one| one.is_holder);
        out.extend(holder.map_or(0, |holder| holder.key).to_be_bytes());
        out.extend([0, 0, 0, 0, 0, kind.code(), 0, 0]);
    }
    with_len(out)
}

/// REPORT CAPABILITIES (SPC-4, section 6.15.4).
pub(crate) fn capabilities(state: &Reservations) -> Vec<u8> {
    // CRH, SIP_C and ATP_C.
    let flags = 0x10 | 0x08 | 0x04 | u8::from(state.can_persist);
    // TMV; nothing is said of single commands.
    let valid = 0x80 | u8::from(state.is_persistent);
    // Types: WR_EX_AR, EX_AC_RO, WR_EX_RO, EX_AC and WR_EX; EX_AC_AR.
    vec![0, 8, flags, valid, 0x80 | 0x40 | 0x20 | 0x08 | 0x02, 0x01, 0, 0]
}

/// READ FULL STATUS (SPC-4, section 6.15.5).
pub(crate) fn full_status(state: &Reservations) -> Vec<u8> {
    let mut out = header(state);
    for (at, one) in state.registrations.iter().enumerate() {
        let id = one.nexus.initiator.transport_id();
        let holds = state.reserved.filter(|_| state.holds(at));
        out.extend(one.key.to_be_bytes());
        out.extend([0; 4]);
        out.push(u8::from(one.all_target_ports) << 1 | u8::from(holds.is_some()));
        out.push(holds.map_or(0, ReservationType::code));
        out.extend([0; 4]);
        out.extend(one.nexus.target_port.to_be_bytes());
        out.extend(narrow::<_, u32>(id.len()).to_be_bytes());
        out.extend(id);
    }
    with_len(out)
}
