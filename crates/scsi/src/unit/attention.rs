//! Unit attention conditions of each I_T nexus (SAM-5, section 5.14).
//!
//! A condition is pending or not, so that their number is bounded; the gravest is reported first.

use alloc::vec::Vec;

use super::NexusId;
use crate::sense::{Additional, Sense, SenseKey};

/// Most nexuses that one logical unit remembers.
pub(crate) const NEXUS_COUNT_MAX: usize = 1024;

/// A condition to be reported once to a nexus, in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the standard's own")]
pub enum UnitAttention {
    PowerOnOrReset,
    DeviceReset,
    CommandsClearedByAnother,
    CapacityDataChanged,
    ModeParametersChanged,
    ReportedLunsChanged,
}

const ORDER: [UnitAttention; 6] = [
    UnitAttention::PowerOnOrReset,
    UnitAttention::DeviceReset,
    UnitAttention::CommandsClearedByAnother,
    UnitAttention::CapacityDataChanged,
    UnitAttention::ModeParametersChanged,
    UnitAttention::ReportedLunsChanged,
];

impl UnitAttention {
    const fn mask(self) -> u8 {
        1 << self as u8
    }

    /// The sense data that reports this.
    #[must_use]
    pub const fn sense(self) -> Sense {
        let additional = match self {
            Self::PowerOnOrReset => Additional::POWER_ON_OR_RESET,
            Self::DeviceReset => Additional::DEVICE_RESET,
            Self::CommandsClearedByAnother => Additional::COMMANDS_CLEARED_BY_ANOTHER,
            Self::CapacityDataChanged => Additional::CAPACITY_DATA_CHANGED,
            Self::ModeParametersChanged => Additional::MODE_PARAMETERS_CHANGED,
            Self::ReportedLunsChanged => Additional::REPORTED_LUNS_CHANGED,
        };
        Sense::new(SenseKey::UnitAttention, additional)
    }
}

/// The nexuses that a logical unit knows, with what each has yet to be told.
#[derive(Debug, Default)]
pub(crate) struct Attentions {
    nexuses: Vec<(NexusId, u8)>,
}

impl Attentions {
    /// Makes `nexus` known; a new one is told of power on. False when there are too many.
    pub(crate) fn add(&mut self, nexus: NexusId) -> bool {
        if self.find(nexus).is_some() {
            return true;
        }
        if self.nexuses.len() >= NEXUS_COUNT_MAX {
            return false;
        }
        self.nexuses.push((nexus, UnitAttention::PowerOnOrReset.mask()));
        true
    }

    pub(crate) fn remove(&mut self, nexus: NexusId) {
        self.nexuses.retain(|(id, _)| *id != nexus);
    }

    /// Establishes a condition for all nexuses but one.
    pub(crate) fn raise(&mut self, attention: UnitAttention, except: Option<NexusId>) {
        for (id, pending) in &mut self.nexuses {
            if Some(*id) != except {
                *pending |= attention.mask();
            }
        }
    }

    /// Establishes a condition for one nexus.
    pub(crate) fn raise_for(&mut self, attention: UnitAttention, nexus: NexusId) {
        if let Some(at) = self.find(nexus) {
            self.nexuses[at].1 |= attention.mask();
        }
    }

    /// Whether `nexus` has yet to be told something.
    pub(crate) fn is_pending(&self, nexus: NexusId) -> bool {
        self.find(nexus).is_some_and(|at| self.nexuses[at].1 != 0)
    }

    /// Clears and returns the gravest condition of `nexus`.
    pub(crate) fn take(&mut self, nexus: NexusId) -> Option<UnitAttention> {
        let at = self.find(nexus)?;
        let pending = &mut self.nexuses[at].1;
        let first = ORDER.into_iter().find(|one| *pending & one.mask() != 0)?;
        *pending &= !first.mask();
        Some(first)
    }

    /// Clears one condition of `nexus` that it learned otherwise.
    pub(crate) fn clear(&mut self, nexus: NexusId, attention: UnitAttention) {
        if let Some(at) = self.find(nexus) {
            self.nexuses[at].1 &= !attention.mask();
        }
    }

    fn find(&self, nexus: NexusId) -> Option<usize> {
        self.nexuses.iter().position(|(id, _)| *id == nexus)
    }
}
