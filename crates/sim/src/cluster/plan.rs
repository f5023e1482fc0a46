//! What a seed makes of a run: who there is, what they have, what befalls them.

use core::time::Duration;

use netraid_control::units::{Rate, Resources};
use netraid_raid::geometry::Level;

use crate::dice::Seed;

/// Longest difference of two clocks.
pub const SKEW_MS: u64 = netraid_control::token::SKEW_MS;
/// What a plan is for, in milliseconds, from when it was asked for.
pub const TERM_MS: u64 = 30_000;
/// How long something is held.
pub const HOLD_MS: u64 = 10_000;
/// How long a mediator waits for agents: less than a hold lasts.
pub const PATIENCE_MS: u64 = 6_000;

/// An error in what stands around the machines, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// An agent answers before its store has it.
    AnswerBeforeStored,
    /// A mediator has agents commit before its decision is stored.
    CommitBeforeStored,
    /// A mediator answers clients before its store has it.
    OpenBeforeStored,
    /// A mediator hands out tokens before agents have their generation.
    NotRaised,
    /// A mediator takes agents that did not answer as raised.
    RaisedTooFew,
    /// A mediator goes on with no booking after a restart.
    NotResumed,
    /// Tokens and allotments end when the plan does, whatever clocks say.
    NoMargin,
    /// A plan that is taken over stays booked.
    NotTurnedRound,
    /// A lease is given without being stored.
    LeaseNotStored,
    /// A renewal goes on with whatever has the plan's name now.
    RenewedAcross,
    /// A plan that is asked for again takes the names that its allotments had before.
    NamesAgain,
    /// A mediator shuts a holder out before it asked whether agents are there for the taker.
    FencedUnasked,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::AnswerBeforeStored,
        Self::CommitBeforeStored,
        Self::OpenBeforeStored,
        Self::NotRaised,
        Self::RaisedTooFew,
        Self::NotResumed,
        Self::NoMargin,
        Self::NotTurnedRound,
        Self::LeaseNotStored,
        Self::RenewedAcross,
        Self::NamesAgain,
        Self::FencedUnasked,
    ];
}

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What decides it.
    pub seed: Seed,
    /// What each agent has.
    pub capacities: Vec<Resources>,
    /// What of it is for rebuilding.
    pub kept: Resources,
    /// How many mediators.
    pub mediators: usize,
    /// How many clients.
    pub clients: usize,
    /// Levels and members of volumes.
    pub shapes: Vec<(Level, usize)>,
    /// How long there are faults.
    pub busy: Duration,
    /// One message in so many is lost; 0 for none.
    pub loss: u32,
    /// One in so many comes twice.
    pub twice: u32,
    /// One in so many comes late.
    pub late: u32,
    /// How late.
    pub late_by: Duration,
    /// From one crash of anybody to the next.
    pub crash_every: Duration,
    /// How long who crashed is away.
    pub down: Duration,
    /// From one failure of a store to the next sync that fails: one in so many.
    pub sync_fails: u32,
    /// What is wrong on purpose.
    pub planted: Option<Planted>,
}

impl Plan {
    /// What the seed says.
    #[must_use]
    pub fn new(seed: Seed, planted: Option<Planted>) -> Self {
        let mut dice = seed.dice("plan");
        let agents = 4 + dice.index(3);
        let mb = |rate: u64| Rate(rate * 1_000_000);
        let capacities = (0..agents)
            .map(|_| Resources {
                space_bytes: (2 + dice.below(4)) << 30,
                device: mb(20 + dice.below(80)),
                network: mb(20 + dice.below(80)),
            })
            .collect();
        let pick = |dice: &mut crate::Dice, of: &[u64]| dice.pick(of).copied().unwrap_or(0);
        let rare = |dice: &mut crate::Dice| {
            let of = dice.pick(&[0, 5, 12, 40]).copied();
            of.unwrap_or(0)
        };
        Self {
            seed,
            capacities,
            kept: Resources { space_bytes: 0, device: mb(5), network: mb(5) },
            mediators: 2,
            clients: 4 + dice.index(9),
            shapes: vec![
                (Level::Raid0, 2),
                (Level::Raid1, 2),
                (Level::Raid1, 2),
                (Level::Raid5, 3),
                (Level::Raid5, 4),
                (Level::Raid10, 4),
            ],
            busy: Duration::from_secs(60 + dice.below(180)),
            loss: rare(&mut dice),
            twice: rare(&mut dice),
            late: rare(&mut dice),
            late_by: Duration::from_millis(pick(&mut dice, &[500, 5_000, 20_000])),
            crash_every: Duration::from_millis(pick(&mut dice, &[300, 1_000, 4_000, 20_000])),
            down: Duration::from_millis(pick(&mut dice, &[10, 500, 4_000, 15_000])),
            sync_fails: rare(&mut dice) * 10,
            planted,
        }
    }
}
