//! Persistent reservations of one logical unit (SPC-4, sections 5.13, 6.15 and 6.16).
//!
//! [`Reservations`] is who is registered with which key, and what is reserved. A PERSISTENT
//! RESERVE OUT is computed into a [`Change`], which holds the state that follows, whom to tell and
//! whose commands to abort; its owner stores the new state first where it is to survive a loss of
//! power, then puts it in place. So a change that cannot be stored has not happened.
//!
//! Registrations belong to a [`Nexus`]; while its session is there they carry its [`NexusId`] too,
//! so that the check of a command compares numbers.
//!
//! Invariant: of a reservation that is not for all registrants exactly one registration is the
//! holder; without a reservation none is; without registrations there is no reservation.

mod parameters;
mod report;
mod store;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

pub use self::store::StateError;
pub(crate) use self::{
    parameters::{Parameters, check_len},
    report::{capabilities, full_status, keys, reservation},
};
use crate::{
    cdb::{Access, ReserveOut, ReserveOutAction},
    ports::{InitiatorPort, Nexus, TARGET_PORT, TransportId},
    sense::{Additional, FieldPointer, Sense},
    unit::{NexusId, Stop, UnitAttention},
};

/// Most registrations of one logical unit.
pub const REGISTRATIONS_MAX: usize = 1024;

/// What a persistent reservation lets others do (SPC-4, section 6.15.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder writes; everybody reads.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registered nexuses write; one of them holds it.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registered nexuses read and write; one of them holds it.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only registered nexuses write; all of them hold it.
    WriteExclusiveAllRegistrants = 7,
    /// Only registered nexuses read and write; all of them hold it.
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    /// The type with this code, if there is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrantsOnly,
            6 => Self::ExclusiveAccessRegistrantsOnly,
            7 => Self::WriteExclusiveAllRegistrants,
            8 => Self::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// The code of this type.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name that SPC-4 (section 6.15.3) gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteExclusive => "Write Exclusive",
            Self::ExclusiveAccess => "Exclusive Access",
            Self::WriteExclusiveRegistrantsOnly => "Write Exclusive - Registrants Only",
            Self::ExclusiveAccessRegistrantsOnly => "Exclusive Access - Registrants Only",
            Self::WriteExclusiveAllRegistrants => "Write Exclusive - All Registrants",
            Self::ExclusiveAccessAllRegistrants => "Exclusive Access - All Registrants",
        }
    }

    /// Whether others may not even read.
    const fn excludes_readers(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess
                | Self::ExclusiveAccessRegistrantsOnly
                | Self::ExclusiveAccessAllRegistrants
        )
    }

    const fn is_registrants_only(self) -> bool {
        matches!(self, Self::WriteExclusiveRegistrantsOnly | Self::ExclusiveAccessRegistrantsOnly)
    }

    const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether every registered nexus may do as the holder may.
    const fn admits_registrants(self) -> bool {
        self.is_registrants_only() || self.is_all_registrants()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Registration {
    nexus: Nexus,
    key: u64,
    /// It was made for all target ports, of which there is one.
    all_target_ports: bool,
    /// The one holder of a reservation that is not for all registrants.
    is_holder: bool,
    /// Its session, while there is one.
    live: Option<NexusId>,
}

/// Registrations and reservation of one logical unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservations {
    /// PRGENERATION, which begins at 0 with each power on.
    generation: u32,
    registrations: Vec<Registration>,
    reserved: Option<ReservationType>,
    /// APTPL: the state is to survive a loss of power.
    is_persistent: bool,
    can_persist: bool,
}

/// What a PERSISTENT RESERVE OUT leads to.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) next: Reservations,
    /// Whom to tell what.
    pub(crate) told: Vec<(Nexus, UnitAttention)>,
    /// Whose commands to abort; by name, since sessions come and go while the change is stored.
    pub(crate) aborted: Vec<Nexus>,
}

/// INVALID FIELD IN PARAMETER LIST at a bit.
pub(crate) const fn invalid_bit(byte: u16, bit: u8) -> Sense {
    let mut sense = Sense::illegal(Additional::INVALID_FIELD_IN_PARAMETER_LIST);
    sense.field = Some(FieldPointer { in_cdb: false, byte, bit: Some(bit) });
    sense
}

impl Reservations {
    /// Whether somebody is registered by one who is not by the other, or with another key, or holds something else.
    #[must_use]
    pub(crate) fn differs(&self, other: &Self) -> bool {
        *self != Self { generation: self.generation, ..other.clone() }
    }

    /// Nobody is registered. `can_persist`: there is a place where the state survives a loss of
    /// power (PTPL_C).
    #[must_use]
    pub fn new(can_persist: bool) -> Self {
        Self { can_persist, ..Self::default() }
    }

    /// Whether the state is to survive a loss of power (APTPL).
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Number of registrations.
    #[must_use]
    pub fn registration_count(&self) -> usize {
        self.registrations.len()
    }

    /// The registrations: nexus, key, and whether it holds a reservation that is there.
    pub fn registrants(&self) -> impl Iterator<Item = (&Nexus, u64, bool)> {
        let all_hold = self.reserved.is_some_and(ReservationType::is_all_registrants);
        let holds = move |one: &Registration| one.is_holder || all_hold;
        self.registrations.iter().map(move |one| (&one.nexus, one.key, holds(one)))
    }

    /// The type of the reservation, if there is one.
    #[must_use]
    pub const fn reserved(&self) -> Option<ReservationType> {
        self.reserved
    }

    pub(crate) const fn is_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// Whether a command of this nexus may run.
    #[cold]
    pub(crate) fn allows(&self, nexus: NexusId, access: Access) -> bool {
        let Some(kind) = self.reserved else { return true };
        match access {
            Access::Always | Access::Query => return true,
            Access::Read if !kind.excludes_readers() => return true,
            Access::Read | Access::Write => {}
        }
        let own = self.registrations.iter().find(|one| one.live == Some(nexus));
        own.is_some_and(|own| own.is_holder || kind.admits_registrants())
    }

    /// Whether RESERVE and RELEASE of this nexus succeed without effect (SPC-4, section 5.13.3).
    pub(crate) fn ignores_reserve(&self, nexus: NexusId) -> bool {
        self.reserved.is_some() && self.allows(nexus, Access::Write)
    }

    /// A session of this nexus is there.
    pub(crate) fn bind(&mut self, nexus: &Nexus, id: NexusId) {
        if let Some(at) = self.find(nexus) {
            self.registrations[at].live = Some(id);
        }
    }

    /// A session is gone.
    pub(crate) fn unbind(&mut self, id: NexusId) {
        for one in &mut self.registrations {
            one.live.take_if(|live| *live == id);
        }
    }

    /// The sessions that are there of registered nexuses.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = NexusId> {
        self.registrations.iter().filter_map(|one| one.live)
    }

    /// Notes anew which sessions are there.
    pub(crate) fn rebind<'a>(&mut self, live: impl Iterator<Item = (NexusId, &'a Nexus)>) {
        self.registrations.iter_mut().for_each(|one| one.live = None);
        live.for_each(|(id, nexus)| self.bind(nexus, id));
    }

    /// Computes a PERSISTENT RESERVE OUT of `issuer`. `known` are initiator ports that a
    /// TransportID without ISID may mean.
    pub(crate) fn compute(
        &self,
        issuer: &Nexus,
        out: ReserveOut,
        parameters: &Parameters,
        known: &[InitiatorPort],
    ) -> Result<Change, Stop> {
        let next = self.clone();
        let mut change = Change { next, told: Vec::new(), aborted: Vec::new() };
        if let ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore = out.action {
            change.register(issuer, out.action, parameters, known)?;
            return Ok(change);
        }
        let own = change.next.registered_with(issuer, parameters.key)?;
        match out.action {
            ReserveOutAction::Reserve => change.reserve(own, out)?,
            ReserveOutAction::Release => change.release(own, out)?,
            ReserveOutAction::Clear => change.clear(issuer),
            ReserveOutAction::Preempt => change.preempt(own, out, parameters.action_key, false)?,
            ReserveOutAction::PreemptAndAbort => {
                change.preempt(own, out, parameters.action_key, true)?;
            }
            ReserveOutAction::RegisterAndMove => change.move_to(own, parameters, known)?,
            ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore => {}
        }
        change.next.check();
        Ok(change)
    }

    fn find(&self, nexus: &Nexus) -> Option<usize> {
        self.registrations.iter().position(|one| one.nexus == *nexus)
    }

    /// Where the issuer's registration is, when it has one with this key.
    fn registered_with(&self, issuer: &Nexus, key: u64) -> Result<usize, Stop> {
        let own = self.find(issuer).ok_or(Stop::CONFLICT)?;
        if self.registrations[own].key == key { Ok(own) } else { Err(Stop::CONFLICT) }
    }

    /// Whether this registration holds the reservation.
    fn holds(&self, at: usize) -> bool {
        let for_all = self.reserved.is_some_and(ReservationType::is_all_registrants);
        for_all || self.registrations[at].is_holder
    }

    fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn set_holder(&mut self, holder: Option<usize>, kind: Option<ReservationType>) {
        let single = !kind.is_some_and(ReservationType::is_all_registrants);
        for (at, one) in self.registrations.iter_mut().enumerate() {
            one.is_holder = single && holder == Some(at);
        }
        self.reserved = kind;
    }

    fn push(&mut self, nexus: Nexus, key: u64, all_target_ports: bool) -> Result<usize, Sense> {
        if self.registrations.len() >= REGISTRATIONS_MAX {
            return Err(Sense::illegal(Additional::INSUFFICIENT_REGISTRATION_RESOURCES));
        }
        let (is_holder, live) = (false, None);
        self.registrations.push(Registration { nexus, key, all_target_ports, is_holder, live });
        Ok(self.registrations.len() - 1)
    }

    /// Panics when the invariant does not hold: what follows would let the wrong nexus write.
    fn check(&self) {
        let holders = self.registrations.iter().filter(|one| one.is_holder).count();
        let wanted = usize::from(self.reserved.is_some_and(|kind| !kind.is_all_registrants()));
        assert!(holders == wanted, "{holders} holders of {:?}", self.reserved);
        let nobody = self.registrations.is_empty();
        assert!(!nobody || self.reserved.is_none(), "{:?} of nobody", self.reserved);
    }

    /// The nexuses that a TransportID names.
    fn named(id: &TransportId, known: &[InitiatorPort]) -> Vec<Nexus> {
        match id {
            TransportId::Port(port) => Vec::from([Nexus::new(port.clone())]),
            TransportId::Initiator(name) => {
                let ports = known.iter().filter(|port| port.name() == name);
                ports.cloned().map(Nexus::new).collect()
            }
        }
    }
}

impl Change {
    fn tell(&mut self, attention: UnitAttention, but: &Nexus) {
        let others = self.next.registrations.iter().filter(|one| one.nexus != *but);
        self.told.extend(others.map(|one| (one.nexus.clone(), attention)));
    }

    /// REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4, sections 5.13.7 and 5.13.11.3).
    fn register(
        &mut self,
        issuer: &Nexus,
        action: ReserveOutAction,
        parameters: &Parameters,
        known: &[InitiatorPort],
    ) -> Result<(), Stop> {
        if parameters.persist && !self.next.can_persist {
            return Err(invalid_bit(20, 0).into());
        }
        let own = self.next.find(issuer);
        if action == ReserveOutAction::Register {
            let key = own.map_or(0, |own| self.next.registrations[own].key);
            if parameters.key != key {
                return Err(Stop::CONFLICT);
            }
        }
        match own {
            None if parameters.action_key == 0 => return Ok(()),
            None => {
                let mut nexuses = Vec::from([issuer.clone()]);
                if let Some(ids) = &parameters.ports {
                    self.name_all(&mut nexuses, ids, known)?;
                }
                for nexus in nexuses {
                    self.next.push(nexus, parameters.action_key, parameters.all_target_ports)?;
                }
            }
            Some(_) if parameters.ports.is_some() => return Err(invalid_bit(20, 3).into()),
            Some(own) if parameters.action_key == 0 => self.unregister(own),
            Some(own) => {
                let own = &mut self.next.registrations[own];
                own.key = parameters.action_key;
                own.all_target_ports = parameters.all_target_ports;
            }
        }
        self.next.is_persistent = parameters.persist;
        self.next.count();
        self.next.check();
        Ok(())
    }

    /// Adds those that SPEC_I_PT names, who must not be registered or named twice.
    fn name_all(
        &self,
        nexuses: &mut Vec<Nexus>,
        ids: &[(u16, TransportId)],
        known: &[InitiatorPort],
    ) -> Result<(), Stop> {
        for (at, id) in ids {
            let named = Reservations::named(id, known);
            if named.is_empty() {
                return Err(Sense::invalid_parameter(*at).into());
            }
            for nexus in named {
                if self.next.find(&nexus).is_some() || nexuses.contains(&nexus) {
                    return Err(Sense::invalid_parameter(*at).into());
                }
                if nexuses.len() >= REGISTRATIONS_MAX {
                    let full = Additional::INSUFFICIENT_REGISTRATION_RESOURCES;
                    return Err(Sense::illegal(full).into());
                }
                nexuses.push(nexus);
            }
        }
        Ok(())
    }

    /// Removes one's own registration, and the reservation with it when it is its last holder.
    fn unregister(&mut self, own: usize) {
        let gone = self.next.registrations.remove(own);
        let Some(kind) = self.next.reserved else { return };
        let last = kind.is_all_registrants() && self.next.registrations.is_empty();
        if gone.is_holder || last {
            self.next.set_holder(None, None);
            if kind.is_registrants_only() {
                self.tell(UnitAttention::ReservationsReleased, &gone.nexus);
            }
        }
    }

    /// RESERVE (SPC-4, section 5.13.9).
    fn reserve(&mut self, own: usize, out: ReserveOut) -> Result<(), Stop> {
        let kind = valid_type(out)?;
        match self.next.reserved {
            None => self.next.set_holder(Some(own), Some(kind)),
            Some(held) if held == kind && self.next.holds(own) => {}
            Some(_) => return Err(Stop::CONFLICT),
        }
        Ok(())
    }

    /// RELEASE (SPC-4, section 5.13.11.2); of whoever holds nothing it has no effect.
    fn release(&mut self, own: usize, out: ReserveOut) -> Result<(), Stop> {
        let Some(kind) = self.next.reserved else { return Ok(()) };
        if !self.next.holds(own) {
            return Ok(());
        }
        if out.scope != 0 || out.kind != kind.code() {
            return Err(Sense::illegal(Additional::INVALID_RELEASE).into());
        }
        let issuer = self.next.registrations[own].nexus.clone();
        self.next.set_holder(None, None);
        if kind.admits_registrants() {
            self.tell(UnitAttention::ReservationsReleased, &issuer);
        }
        Ok(())
    }

    /// CLEAR (SPC-4, section 5.13.11.6).
    fn clear(&mut self, issuer: &Nexus) {
        self.tell(UnitAttention::ReservationsPreempted, issuer);
        self.next.registrations.clear();
        self.next.reserved = None;
        self.next.count();
    }

    /// PREEMPT and PREEMPT AND ABORT (SPC-4, sections 5.13.11.4 and 5.13.11.5).
    fn preempt(&mut self, own: usize, out: ReserveOut, key: u64, abort: bool) -> Result<(), Stop> {
        let for_all = self.next.reserved.is_some_and(ReservationType::is_all_registrants);
        if key == 0 && !for_all {
            return Err(Sense::invalid_parameter(8).into());
        }
        let holder = self.next.registrations.iter().find(|one| one.is_holder);
        let takes = if for_all { key == 0 } else { holder.is_some_and(|one| one.key == key) };
        if !takes && self.next.registrations.iter().all(|one| one.key != key) {
            return Err(Stop::CONFLICT);
        }
        let kind = if takes { Some(valid_type(out)?) } else { None };
        let issuer = self.next.registrations[own].nexus.clone();
        let before = self.next.reserved;
        let all = core::mem::take(&mut self.next.registrations);
        let gone = |one: &Registration| match takes {
            true => one.nexus != issuer && (key == 0 || one.key == key),
            false => one.key == key,
        };
        let (gone, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(gone);
        self.next.registrations = kept;
        if let Some(kind) = kind {
            let own = self.next.find(&issuer);
            self.next.set_holder(own, Some(kind));
            if before != Some(kind) {
                self.tell(UnitAttention::ReservationsReleased, &issuer);
            }
        } else if self.next.registrations.is_empty() {
            // Its last holder, one of all registrants, took its own registration away.
            self.next.reserved = None;
        }
        if abort {
            self.aborted.extend(gone.iter().map(|one| one.nexus.clone()));
        }
        let others = gone.into_iter().filter(|one| one.nexus != issuer);
        let told = others.map(|one| (one.nexus, UnitAttention::RegistrationsPreempted));
        self.told.extend(told);
        self.next.count();
        Ok(())
    }

    /// REGISTER AND MOVE (SPC-4, section 5.13.8).
    fn move_to(
        &mut self,
        own: usize,
        parameters: &Parameters,
        known: &[InitiatorPort],
    ) -> Result<(), Stop> {
        if self.next.reserved.is_some_and(ReservationType::is_all_registrants) {
            return Err(Stop::CONFLICT);
        }
        if !self.next.holds(own) {
            return Err(Sense::invalid_cdb(1, Some(4)).into());
        }
        if parameters.action_key == 0 {
            return Err(Sense::invalid_parameter(8).into());
        }
        if parameters.persist && !self.next.can_persist {
            return Err(invalid_bit(17, 0).into());
        }
        let invalid = Stop::Check(Sense::invalid_parameter(24));
        let (port, id) = parameters.destination.as_ref().ok_or(invalid)?;
        if *port != TARGET_PORT {
            return Err(Sense::invalid_parameter(18).into());
        }
        // To move to several ports at once makes no sense.
        let [nexus] = &Reservations::named(id, known)[..] else { return Err(invalid) };
        if *nexus == self.next.registrations[own].nexus {
            return Err(invalid);
        }
        let kind = self.next.reserved;
        self.next.set_holder(None, None);
        let issuer = self.next.registrations[own].nexus.clone();
        if parameters.unregister {
            self.next.registrations.remove(own);
        }
        let to = match self.next.find(nexus) {
            Some(to) => to,
            None => self.next.push(nexus.clone(), parameters.action_key, false)?,
        };
        assert!(self.next.registrations[to].nexus != issuer, "a reservation moves to its holder");
        self.next.registrations[to].key = parameters.action_key;
        self.next.set_holder(Some(to), kind);
        self.next.is_persistent = parameters.persist;
        self.next.count();
        Ok(())
    }
}

/// The type of a reservation of the logical unit, which is the only scope.
fn valid_type(out: ReserveOut) -> Result<ReservationType, Sense> {
    if out.scope != 0 {
        return Err(Sense::invalid_cdb(2, Some(7)));
    }
    ReservationType::from_code(out.kind).ok_or(Sense::invalid_cdb(2, Some(3)))
}

/// Initiator ports without duplicates, for TransportIDs that name an initiator.
pub(crate) fn distinct<'a>(ports: impl Iterator<Item = &'a InitiatorPort>) -> Vec<InitiatorPort> {
    let mut all: Vec<_> = ports.cloned().collect();
    all.sort();
    all.dedup();
    all
}
