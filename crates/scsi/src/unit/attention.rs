//! The I_T nexuses that a logical unit knows, and the unit attention conditions of each (SAM-5,
//! section 5.14).
//!
//! A condition is pending or not, so that their number is bounded; the gravest is reported first,
//! one with each command.
//!
//! A nexus that is lost is remembered: when it comes back it hears of the loss and of what
//! happened meanwhile, not of a power on, which would tell it that written data may be gone.

use alloc::{collections::VecDeque, vec::Vec};

use netraid_planted::{Planted, planted};

use super::NexusId;
use crate::{
    ports::{InitiatorPort, Nexus},
    sense::{Additional, Sense, SenseKey},
};

/// Most nexuses that use one logical unit at a time.
pub(crate) const NEXUS_COUNT_MAX: usize = 1024;
/// Most lost nexuses that one logical unit remembers; of more, those lost first are forgotten, and
/// come back as new ones.
pub(crate) const LOST_COUNT_MAX: usize = 256;

/// A condition to be reported once to a nexus, in order of precedence (SAM-5, table 41).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the standard's own")]
pub enum UnitAttention {
    PowerOn,
    DeviceReset,
    NexusLoss,
    CommandsClearedByAnother,
    ReservationsPreempted,
    ReservationsReleased,
    RegistrationsPreempted,
    NotReadyToReady,
    CapacityDataChanged,
    InquiryDataChanged,
    ModeParametersChanged,
    ReportedLunsChanged,
}

const ORDER: [UnitAttention; 12] = [
    UnitAttention::PowerOn,
    UnitAttention::DeviceReset,
    UnitAttention::NexusLoss,
    UnitAttention::CommandsClearedByAnother,
    UnitAttention::ReservationsPreempted,
    UnitAttention::ReservationsReleased,
    UnitAttention::RegistrationsPreempted,
    UnitAttention::NotReadyToReady,
    UnitAttention::CapacityDataChanged,
    UnitAttention::InquiryDataChanged,
    UnitAttention::ModeParametersChanged,
    UnitAttention::ReportedLunsChanged,
];

/// Those of which a graver one says all that a lesser one would.
const RESETS: u16 = UnitAttention::PowerOn.mask()
    | UnitAttention::DeviceReset.mask()
    | UnitAttention::NexusLoss.mask();

impl UnitAttention {
    const fn mask(self) -> u16 {
        1 << self as u8
    }

    /// The sense data that reports this.
    #[must_use]
    pub const fn sense(self) -> Sense {
        let additional = match self {
            // 29h/01h would say more, but initiators in use (libiscsi) retry only after 29h/00h.
            Self::PowerOn => Additional::POWER_ON_OR_RESET,
            Self::DeviceReset => Additional::DEVICE_RESET,
            Self::NexusLoss => Additional::NEXUS_LOSS,
            Self::CommandsClearedByAnother => Additional::COMMANDS_CLEARED_BY_ANOTHER,
            Self::ReservationsPreempted => Additional::RESERVATIONS_PREEMPTED,
            Self::ReservationsReleased => Additional::RESERVATIONS_RELEASED,
            Self::RegistrationsPreempted => Additional::REGISTRATIONS_PREEMPTED,
            Self::NotReadyToReady => Additional::NOT_READY_TO_READY,
            Self::CapacityDataChanged => Additional::CAPACITY_DATA_CHANGED,
            Self::InquiryDataChanged => Additional::INQUIRY_DATA_CHANGED,
            Self::ModeParametersChanged => Additional::MODE_PARAMETERS_CHANGED,
            Self::ReportedLunsChanged => Additional::REPORTED_LUNS_CHANGED,
        };
        Sense::new(SenseKey::UnitAttention, additional)
    }
}

#[derive(Debug)]
struct Live {
    id: NexusId,
    pending: u16,
    nexus: Nexus,
}

/// The nexuses that a logical unit knows, with what each has yet to be told.
#[derive(Debug, Default)]
pub(crate) struct Attentions {
    live: Vec<Live>,
    /// Lost first first.
    lost: VecDeque<(Nexus, u16)>,
}

impl Attentions {
    /// Makes a nexus known; a new one is told of power on, one that was lost, of the loss. False
    /// when there are too many.
    pub(crate) fn add(&mut self, id: NexusId, nexus: &Nexus) -> bool {
        if self.find(id).is_some() {
            return true;
        }
        if self.live.len() >= NEXUS_COUNT_MAX {
            return false;
        }
        // Of one port there is one session: an older one is superseded.
        if let Some(at) = self.live.iter().position(|live| live.nexus == *nexus) {
            self.lose(at);
        }
        let known = self.lost.iter().position(|(lost, _)| lost == nexus);
        let pending = match known.and_then(|at| self.lost.remove(at)) {
            Some((_, pending)) => pending | UnitAttention::NexusLoss.mask(),
            None if planted(Planted::RestartToldAsNexusLoss) => UnitAttention::NexusLoss.mask(),
            None => UnitAttention::PowerOn.mask(),
        };
        self.live.push(Live { id, pending, nexus: nexus.clone() });
        true
    }

    pub(crate) fn remove(&mut self, id: NexusId) {
        if let Some(at) = self.find(id) {
            self.lose(at);
        }
    }

    fn lose(&mut self, at: usize) {
        let Live { nexus, pending, .. } = self.live.swap_remove(at);
        if self.lost.len() >= LOST_COUNT_MAX {
            self.lost.pop_front();
        }
        let pending = if planted(Planted::UntoldForgottenWithNexus) { 0 } else { pending };
        self.lost.push_back((nexus, pending));
    }

    /// Establishes a condition for all nexuses but one.
    pub(crate) fn raise(&mut self, attention: UnitAttention, except: Option<NexusId>) {
        for live in &mut self.live {
            if Some(live.id) != except {
                live.pending |= attention.mask();
            }
        }
        self.lost.iter_mut().for_each(|(_, pending)| *pending |= attention.mask());
    }

    /// Establishes a condition for one nexus.
    pub(crate) fn raise_for(&mut self, attention: UnitAttention, id: NexusId) {
        if let Some(at) = self.find(id) {
            self.live[at].pending |= attention.mask();
        }
    }

    /// Establishes a condition for one nexus, also when it is away.
    pub(crate) fn raise_at(&mut self, attention: UnitAttention, nexus: &Nexus) {
        let live = self.live.iter_mut().find(|live| live.nexus == *nexus);
        let lost = self.lost.iter_mut().find(|(lost, _)| lost == nexus);
        let pending = live.map(|live| &mut live.pending).or(lost.map(|(_, pending)| pending));
        if let Some(pending) = pending {
            *pending |= attention.mask();
        }
    }

    /// The nexuses that are there.
    pub(crate) fn live(&self) -> impl Iterator<Item = (NexusId, &Nexus)> {
        self.live.iter().map(|live| (live.id, &live.nexus))
    }

    /// Which nexus this is, while it is there.
    pub(crate) fn nexus(&self, id: NexusId) -> Option<&Nexus> {
        self.find(id).map(|at| &self.live[at].nexus)
    }

    /// All initiator ports that are remembered.
    pub(crate) fn initiators(&self) -> impl Iterator<Item = &InitiatorPort> {
        let lost = self.lost.iter().map(|(nexus, _)| &nexus.initiator);
        self.live.iter().map(|live| &live.nexus.initiator).chain(lost)
    }

    /// Whether a nexus has yet to be told something; `None` when it is not known.
    pub(crate) fn is_pending(&self, id: NexusId) -> Option<bool> {
        self.find(id).map(|at| self.live[at].pending != 0)
    }

    /// Clears and returns the gravest condition of a nexus. Of resets, the lesser go with it.
    pub(crate) fn take(&mut self, id: NexusId) -> Option<UnitAttention> {
        let at = self.find(id)?;
        let pending = &mut self.live[at].pending;
        let first = ORDER.into_iter().find(|one| *pending & one.mask() != 0)?;
        let told = if first.mask() & RESETS != 0 { RESETS } else { first.mask() };
        *pending &= !told;
        Some(first)
    }

    /// Clears one condition of a nexus that it learned otherwise.
    pub(crate) fn clear(&mut self, id: NexusId, attention: UnitAttention) {
        if let Some(at) = self.find(id) {
            self.live[at].pending &= !attention.mask();
        }
    }

    fn find(&self, id: NexusId) -> Option<usize> {
        self.live.iter().position(|live| live.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::InitiatorPort;

    fn nexus(number: u16) -> Nexus {
        let [high, low] = number.to_be_bytes();
        Nexus::new(InitiatorPort::new("iqn.i", [0, 0, 0, 0, high, low]).unwrap())
    }

    #[test]
    fn what_came_back_hears_of_the_loss_and_what_happened_meanwhile() {
        let mut all = Attentions::default();
        assert!(all.add(NexusId(1), &nexus(1)));
        assert_eq!(all.take(NexusId(1)), Some(UnitAttention::PowerOn));
        all.remove(NexusId(1));
        all.raise(UnitAttention::CapacityDataChanged, None);
        assert!(all.add(NexusId(2), &nexus(1)));
        assert_eq!(all.take(NexusId(2)), Some(UnitAttention::NexusLoss));
        assert_eq!(all.take(NexusId(2)), Some(UnitAttention::CapacityDataChanged));
        assert_eq!(all.take(NexusId(2)), None);
    }

    #[test]
    fn another_isid_is_another_nexus() {
        let mut all = Attentions::default();
        all.add(NexusId(1), &nexus(1));
        all.remove(NexusId(1));
        all.add(NexusId(2), &nexus(2));
        assert_eq!(all.take(NexusId(2)), Some(UnitAttention::PowerOn));
    }

    #[test]
    fn a_power_on_that_was_not_told_stays_and_says_it_all() {
        let mut all = Attentions::default();
        all.add(NexusId(1), &nexus(1));
        all.raise(UnitAttention::DeviceReset, None);
        all.remove(NexusId(1));
        all.add(NexusId(2), &nexus(1));
        assert_eq!(all.take(NexusId(2)), Some(UnitAttention::PowerOn));
        assert_eq!(all.take(NexusId(2)), None);
    }

    #[test]
    fn conditions_come_in_order_of_precedence() {
        let mut all = Attentions::default();
        all.add(NexusId(1), &nexus(1));
        all.take(NexusId(1));
        ORDER.into_iter().rev().for_each(|one| all.raise(one, None));
        let told: Vec<_> = core::iter::from_fn(|| all.take(NexusId(1))).collect();
        let lesser = [UnitAttention::DeviceReset, UnitAttention::NexusLoss];
        let wanted: Vec<_> = ORDER.into_iter().filter(|one| !lesser.contains(one)).collect();
        assert_eq!(told, wanted);
    }

    #[test]
    fn lost_nexuses_are_remembered_up_to_the_limit() {
        let mut all = Attentions::default();
        for number in 0..=u16::try_from(LOST_COUNT_MAX).unwrap() {
            all.add(NexusId(0), &nexus(number));
            all.take(NexusId(0));
            all.remove(NexusId(0));
        }
        all.add(NexusId(1), &nexus(0));
        assert_eq!(all.take(NexusId(1)), Some(UnitAttention::PowerOn), "forgotten");
        all.add(NexusId(2), &nexus(1));
        assert_eq!(all.take(NexusId(2)), Some(UnitAttention::NexusLoss), "remembered");
    }

    #[test]
    fn live_nexuses_are_bounded() {
        let mut all = Attentions::default();
        for number in 0..u16::try_from(NEXUS_COUNT_MAX).unwrap() {
            assert!(all.add(NexusId(u64::from(number)), &nexus(number)));
        }
        assert!(!all.add(NexusId(5000), &nexus(5000)));
        all.remove(NexusId(0));
        assert!(all.add(NexusId(5000), &nexus(5000)));
    }
}
