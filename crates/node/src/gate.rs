//! The gate of a LUN: whether requests reach its device, and how many commands are there.
//!
//! ```text
//! open -> held -> open                    the device is changed under a command's feet: not
//! open -> leaving -> (removed)            new requests are refused, those under way end first
//! ```
//!
//! Invariant: a command enters before it looks at the gate, and whoever moves the gate looks for commands after: one of
//! the two sees the other. So a device that is taken away once none is there has no command.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

use netraid_scsi::Refusal;

use crate::policy::Moment;

/// Whether requests reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// They do.
    Open,
    /// Not for a short time.
    Held,
    /// Not any more.
    Leaving,
}

/// The gate of one LUN, which all threads look at.
#[derive(Debug, Default)]
pub struct Gatehouse {
    /// The gate, and whether there is a policy: nothing of it where commands only pass.
    guards: AtomicU8,
    /// Counts moves of the gate.
    moves: AtomicU64,
    /// Commands at the device.
    running: AtomicU32,
}

const GATE_BITS: u8 = 3;
const HAS_POLICY: u8 = 4;

impl Gate {
    const fn bits(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Held => 1,
            Self::Leaving => 2,
        }
    }
}

impl Gatehouse {
    /// Whether gate or policy have a say: what a request looks at first.
    #[inline]
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.guards.load(SeqCst) != 0
    }

    /// How the gate is.
    #[must_use]
    pub fn gate(&self) -> Gate {
        match self.guards.load(SeqCst) & GATE_BITS {
            0 => Gate::Open,
            1 => Gate::Held,
            _ => Gate::Leaving,
        }
    }

    /// Moves the gate.
    pub fn set(&self, gate: Gate) {
        self.change(|guards| guards & !GATE_BITS | gate.bits());
        self.moves.fetch_add(1, SeqCst);
    }

    /// Notes whether there is a policy.
    pub fn set_policy(&self, has_policy: bool) {
        self.change(|guards| guards & !HAS_POLICY | if has_policy { HAS_POLICY } else { 0 });
    }

    /// Tells apart what the gate was set to at different times.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves.load(SeqCst)
    }

    /// Commands at the device.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running.load(SeqCst)
    }

    /// A command goes to the device; [`Self::leave`] when it has ended.
    #[inline]
    pub fn enter(&self) {
        self.running.fetch_add(1, SeqCst);
    }

    /// A command has left the device; whether somebody may wait for that.
    ///
    /// # Panics
    /// When none has entered.
    #[inline]
    pub fn leave(&self) -> bool {
        let was = self.running.fetch_sub(1, SeqCst);
        assert!(was > 0, "a command leaves that did not enter");
        was == 1 && self.is_guarded()
    }

    /// Why an access must not happen, by the gate alone. `began`: its command was at the device before this access, which
    /// whoever holds or removes the LUN waits for. What goes to the device has entered when this is asked.
    #[must_use]
    pub fn bars(&self, moment: Moment, began: bool) -> Option<Refusal> {
        let waits = moment == Moment::BeforeRequest && !began;
        match self.gate() {
            Gate::Held if waits => Some(Refusal::Busy),
            Gate::Leaving if waits => Some(Refusal::Gone),
            Gate::Open | Gate::Held | Gate::Leaving => None,
        }
    }

    fn change(&self, change: impl Fn(u8) -> u8) {
        // The closure always has a value for it.
        let _ = self.guards.fetch_update(SeqCst, SeqCst, |guards| Some(change(guards)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_gate_bars_what_has_not_begun() {
        let house = Gatehouse::default();
        assert_eq!(house.bars(Moment::BeforeRequest, false), None);
        for (gate, refusal) in [(Gate::Held, Refusal::Busy), (Gate::Leaving, Refusal::Gone)] {
            house.set(gate);
            assert_eq!(house.gate(), gate);
            assert!(house.is_guarded());
            assert_eq!(house.bars(Moment::BeforeRequest, false), Some(refusal));
            assert_eq!(house.bars(Moment::BeforeRequest, true), None, "it is waited for");
            assert_eq!(house.bars(Moment::BeforeData, false), None, "it is asked again");
        }
    }

    #[test]
    fn a_policy_guards_an_open_gate_and_outlives_its_moves() {
        let house = Gatehouse::default();
        house.set_policy(true);
        house.set(Gate::Held);
        house.set(Gate::Open);
        assert!(house.is_guarded());
        assert_eq!((house.gate(), house.moves()), (Gate::Open, 2));
        house.set_policy(false);
        assert!(!house.is_guarded());
    }

    #[test]
    fn the_last_command_that_leaves_a_guarded_device_is_told() {
        let house = Gatehouse::default();
        house.enter();
        assert!(!house.leave(), "nobody waits at an open gate");
        house.enter();
        house.enter();
        house.set(Gate::Held);
        assert_eq!((house.leave(), house.leave(), house.running()), (false, true, 0));
    }
}
