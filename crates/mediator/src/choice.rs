//! How often the members of a new volume are chosen, and which agents the next choice leaves out.

use netraid_cluster::{Problem, agent::FaultCode};
use netraid_control::{placement::AgentState, units::AgentId};

/// Choices of one request, at most: each one leaves out one agent more, and what it booked is taken back.
const CHOICES_MAX: usize = 8;
/// Agents that one request waits for in vain, at most: each of them takes seconds.
const WAITS_MAX: usize = 3;

/// The choices of one request.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    left_out: Vec<AgentId>,
    /// Agents that had too little once.
    short: Vec<AgentId>,
    failed: usize,
    waited: usize,
    last: Option<Problem>,
}

impl Choices {
    /// An agent was chosen, and it came to nothing: the agent's fault, or none when the agent was silent, and
    /// what the user is told of it. Answers whether members are chosen again.
    ///
    /// An agent that has too little says so anew before the next choice, which then goes by that. Only an
    /// agent that refuses what it says it has is left out.
    pub(crate) fn handle_failed(
        &mut self,
        agent: AgentId,
        fault: Option<FaultCode>,
        problem: Problem,
    ) -> bool {
        let (is_waited, is_first_short) = match fault {
            None | Some(FaultCode::Busy | FaultCode::Failed) => (true, false),
            Some(FaultCode::Short) => (false, !self.short.contains(&agent)),
            Some(
                FaultCode::Full
                | FaultCode::Absent
                | FaultCode::Conflict
                | FaultCode::Invalid
                | FaultCode::Draining,
            ) => (false, false),
        };
        if is_first_short {
            self.short.push(agent);
        } else {
            self.left_out.push(agent);
        }
        self.failed += 1;
        self.waited += usize::from(is_waited);
        self.last = Some(problem);
        self.failed < CHOICES_MAX && self.waited < WAITS_MAX
    }

    /// The agents of which the next members are chosen.
    pub(crate) fn usable(&self, mut agents: Vec<AgentState>) -> Vec<AgentState> {
        for agent in agents.iter_mut().filter(|agent| self.left_out.contains(&agent.id)) {
            agent.usable = false;
        }
        agents
    }

    /// What the user is told when there are no members to choose: the agent that failed last is named, as
    /// the others would not have to be enough without it.
    pub(crate) fn refusal(&self, none: Problem) -> Problem {
        match &self.last {
            Some(last) if !self.left_out.is_empty() => {
                let detail = format!("{}; without it: {}", last.detail, none.detail);
                Problem { detail, ..last.clone() }
            }
            _ => none,
        }
    }
}

#[cfg(test)]
mod tests {
    use netraid_cluster::Code;
    use netraid_control::units::Resources;

    use super::*;

    fn agent(number: usize) -> AgentId {
        AgentId([u8::try_from(number).unwrap(); 16])
    }

    fn problem() -> Problem {
        Problem::new(Code::Short, "its disk is full")
    }

    fn usable(choices: &Choices, count: usize) -> Vec<usize> {
        let state = |number| AgentState {
            id: agent(number),
            host: String::new(),
            rack: String::new(),
            left: Resources::default(),
            total: Resources::default(),
            usable: true,
        };
        let states = choices.usable((0..count).map(state).collect());
        (0..count).filter(|number| states[*number].usable).collect()
    }

    #[test]
    fn an_agent_with_a_full_disk_is_left_out_of_the_next_choice() {
        let mut choices = Choices::default();
        assert!(choices.handle_failed(agent(1), Some(FaultCode::Full), problem()));
        assert_eq!(usable(&choices, 3), [0, 2]);

        let told = choices.refusal(Problem::new(Code::Short, "3 agents are needed, 2 are there"));
        assert_eq!(told.detail, "its disk is full; without it: 3 agents are needed, 2 are there");
    }

    #[test]
    fn an_agent_that_has_too_little_is_left_out_once_it_contradicts_itself() {
        let mut choices = Choices::default();
        assert!(choices.handle_failed(agent(1), Some(FaultCode::Short), problem()));
        assert_eq!(usable(&choices, 2), [0, 1]);
        assert!(choices.handle_failed(agent(1), Some(FaultCode::Short), problem()));
        assert_eq!(usable(&choices, 2), [0]);
    }

    #[test]
    fn choices_end_however_agents_fail() {
        for (fault, most) in [
            (None, WAITS_MAX),
            (Some(FaultCode::Failed), WAITS_MAX),
            (Some(FaultCode::Full), CHOICES_MAX),
            (Some(FaultCode::Short), CHOICES_MAX),
        ] {
            let mut choices = Choices::default();
            let failed = (0..100).find(|at| !choices.handle_failed(agent(*at), fault, problem()));
            assert_eq!(failed, Some(most - 1), "{fault:?}");
        }
    }
}
