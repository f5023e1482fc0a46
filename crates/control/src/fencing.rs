//! Whether a volume may be taken from whoever has it: judged by the agents that answer, before anybody
//! is shut out.
//!
//! Who is shut out cannot be let in again. So everything that may refuse the taker is asked first, and
//! this decides of the agents: they are asked before a generation is taken, and again when it was
//! raised on them.
//!
//! ```text
//! take over ──▶ agents answer? ──▶ judge ──▶ rates fit? ──▶ new generation ──▶ raised ──▶ judge
//!                                    `──▶ refused, and the holder goes on
//! ```
//!
//! Does not ask anybody, and knows no time: agents that answered may be gone a moment later.

use netraid_raid::{geometry::Geometry, member::MemberSet};

/// Why nobody is to be shut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The taker could not use the volume.
    #[error("{there} of {all} agents can be reached, too few to serve; ask again")]
    TooFew {
        /// Agents that answer.
        there: u32,
        /// All of the volume.
        all: u32,
    },
    /// The holder could go on with those that do not answer: nothing keeps them from letting it in.
    #[error(
        "{late} of {all} agents cannot be reached, and are enough to serve whoever has the volume; ask \
         again when they can be"
    )]
    Unfenced {
        /// Agents that do not answer.
        late: u32,
        /// All of the volume.
        all: u32,
    },
}

/// Whether those members whose agents answer are enough for the taker, and the others too few for
/// whoever has the volume.
///
/// # Errors
/// When not, and which of both it is.
pub fn judge(geometry: &Geometry, answering: MemberSet) -> Result<(), Unfit> {
    let others = (0..geometry.members())
        .map(netraid_raid::member::MemberIndex)
        .filter(|index| !answering.contains(*index))
        .collect::<MemberSet>();
    let (there, late) = (answering.len(), others.len());
    let all = u32::from(geometry.members());
    if !geometry.can_serve_from(answering) {
        return Err(Unfit::TooFew { there, all });
    }
    if geometry.can_serve_from(others) {
        return Err(Unfit::Unfenced { late, all });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use netraid_raid::{geometry::Level, member::MemberIndex};

    use super::*;

    fn of(level: Level, members: u8, answering: &[u8]) -> Result<(), Unfit> {
        let geometry = Geometry::new(level, usize::from(members), 64 << 10, 512, 0, 0).unwrap();
        judge(&geometry, answering.iter().copied().map(MemberIndex).collect())
    }

    #[test]
    fn level_5_is_taken_with_one_agent_away_and_no_more() {
        assert_eq!(of(Level::Raid5, 5, &[0, 1, 2, 3, 4]), Ok(()));
        assert_eq!(of(Level::Raid5, 5, &[0, 2, 3, 4]), Ok(()));
        assert_eq!(of(Level::Raid5, 5, &[0, 2, 4]), Err(Unfit::TooFew { there: 3, all: 5 }));
    }

    #[test]
    fn half_of_a_mirror_is_not_taken_while_the_other_half_may_serve() {
        assert_eq!(of(Level::Raid1, 2, &[0, 1]), Ok(()));
        assert_eq!(of(Level::Raid1, 2, &[1]), Err(Unfit::Unfenced { late: 1, all: 2 }));
        assert_eq!(of(Level::Raid1, 2, &[]), Err(Unfit::TooFew { there: 0, all: 2 }));
        // Two of four of level 6 serve either side.
        assert_eq!(of(Level::Raid6, 4, &[0, 1]), Err(Unfit::Unfenced { late: 2, all: 4 }));
        assert_eq!(of(Level::Raid6, 4, &[0, 1, 3]), Ok(()));
    }
}
