//! What agents answer to a generation, and which of them are believed.
//!
//! An agent that has a generation which the mediator does not know is taken at its word: the mediator may
//! go on from an older copy of its store, and whoever had the volume meanwhile is to be shut out
//! ([`LeaseState::surpassed`]). But it is believed once for each volume. After that its segment has been
//! asked to take a generation above all that it ever said, and an honest agent takes it. One that names
//! another again would keep the volume closed for ever: it counts as one that does not answer, and is
//! named. Whether the volume can do without it is then told as for any agent that is away.
//!
//! Invariant: among `n` agents of a volume there are `n` words at most that raise its generation.

use alloc::collections::BTreeSet;

use crate::{
    lease::LeaseState,
    units::{AgentId, Generation, PlanId, VolumeId},
};

/// Generations that a store may lack, at most: so many were never taken, and whoever says more would use
/// them all up.
pub const LEAD_MAX: u64 = 1 << 32;

/// What an agent says that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// The generation in force.
    pub generation: Generation,
    /// For which plan it was taken.
    pub taken_by: PlanId,
}

/// What that comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It has the lease's generation.
    Raised,
    /// It has this one, for somebody whom the store does not know.
    Surpassed(Generation),
    /// It cannot be so, or was believed before.
    Contradicts,
    /// It does not answer.
    Nothing,
}

/// Whom a mediator has believed since it started, and whom it has named.
#[derive(Debug, Default)]
pub struct Beliefs {
    believed: BTreeSet<(VolumeId, AgentId)>,
    named: BTreeSet<(VolumeId, AgentId)>,
}

impl Beliefs {
    /// What an agent's answer to the lease's generation comes to; `said` is none when there was none.
    #[must_use]
    pub fn judge(
        &self,
        (volume, agent): (VolumeId, AgentId),
        lease: &LeaseState,
        said: Option<Said>,
    ) -> Told {
        let Some(Said { generation, taken_by }) = said else { return Told::Nothing };
        let wanted = lease.generation();
        if (generation, taken_by) == (wanted, lease.taken_by()) {
            return Told::Raised;
        }
        // Asked to take a larger one, it still has a smaller one.
        let is_below = generation < wanted;
        let is_beyond = generation.0.saturating_sub(wanted.0) > LEAD_MAX;
        if is_below || is_beyond || self.believed.contains(&(volume, agent)) {
            return Told::Contradicts;
        }
        Told::Surpassed(generation)
    }

    /// The volume's generation goes beyond what this agent said. To be called before the agents are asked
    /// to take that.
    pub fn believe(&mut self, volume: VolumeId, agent: AgentId) {
        self.believed.insert((volume, agent));
    }

    /// The agent contradicts; whether that is to be told: it was not yet.
    pub fn name(&mut self, volume: VolumeId, agent: AgentId) -> bool {
        self.named.insert((volume, agent))
    }

    /// The volume is gone.
    pub fn forget(&mut self, volume: VolumeId) {
        self.believed.retain(|(of, _)| *of != volume);
        self.named.retain(|(of, _)| *of != volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lease::{Access, Request, nobody},
        units::Moment,
    };

    const VOLUME: VolumeId = VolumeId([1; 16]);
    const NOW: Moment = Moment(1_000_000);

    const fn agent(number: u8) -> AgentId {
        AgentId([number; 16])
    }

    fn written() -> LeaseState {
        let plan = PlanId([9; 16]);
        let request = Request { plan, access: Access::Write, term_ms: 1000, take_over: None };
        LeaseState::default().open(NOW, &request).unwrap().0
    }

    fn said(generation: u64) -> Option<Said> {
        Some(Said { generation: Generation(generation), taken_by: PlanId([7; 16]) })
    }

    #[test]
    fn an_agent_is_believed_once_for_a_volume() {
        let (mut beliefs, mut lease) = (Beliefs::default(), written());
        let told = beliefs.judge((VOLUME, agent(1)), &lease, said(5));
        assert_eq!(told, Told::Surpassed(Generation(5)));
        beliefs.believe(VOLUME, agent(1));
        lease = lease.surpassed(NOW, Generation(5), lease.taken_by()).unwrap();
        assert_eq!(lease.generation(), Generation(6));
        // It says more each time it is asked.
        assert_eq!(beliefs.judge((VOLUME, agent(1)), &lease, said(7)), Told::Contradicts);
        // The same number for another plan is another generation.
        assert_eq!(beliefs.judge((VOLUME, agent(1)), &lease, said(6)), Told::Contradicts);
        // Another agent, and another volume, are not concerned.
        let surpassed = Told::Surpassed(Generation(7));
        assert_eq!(beliefs.judge((VOLUME, agent(2)), &lease, said(7)), surpassed);
        assert_eq!(beliefs.judge((VolumeId([2; 16]), agent(1)), &lease, said(7)), surpassed);
        beliefs.forget(VOLUME);
        assert_eq!(beliefs.judge((VOLUME, agent(1)), &lease, said(7)), surpassed);
    }

    #[test]
    fn an_agent_that_was_believed_and_takes_the_generation_counts_again() {
        let (mut beliefs, lease) = (Beliefs::default(), written());
        beliefs.believe(VOLUME, agent(1));
        let (generation, taken_by) = (lease.generation(), lease.taken_by());
        let told = beliefs.judge((VOLUME, agent(1)), &lease, Some(Said { generation, taken_by }));
        assert_eq!(told, Told::Raised);
        assert_eq!(beliefs.judge((VOLUME, agent(1)), &lease, None), Told::Nothing);
    }

    #[test]
    fn what_cannot_be_leads_nowhere() {
        let (beliefs, lease) = (Beliefs::default(), written());
        let wanted = lease.generation().0;
        for generation in [0, wanted + LEAD_MAX + 1, u64::MAX] {
            let told = beliefs.judge((VOLUME, agent(1)), &lease, said(generation));
            assert_eq!(told, Told::Contradicts, "{generation}");
        }
        let told = beliefs.judge((VOLUME, agent(1)), &lease, said(wanted + LEAD_MAX));
        assert_eq!(told, Told::Surpassed(Generation(wanted + LEAD_MAX)));
        // A segment that was never raised, and was just asked to.
        let never = Some(Said { generation: Generation(0), taken_by: nobody() });
        assert_eq!(beliefs.judge((VOLUME, agent(1)), &lease, never), Told::Contradicts);
    }
}
