//! Members: their numbers, sets of them, and their states.

mod transitions;

use core::fmt;

pub use transitions::{Shown, TRANSITIONS, Transition};

/// Most members that an array may have; sets of members are one word.
pub const MEMBERS_MAX: usize = 64;

/// A member's place in the array, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberIndex(pub u8);

impl MemberIndex {
    /// The index as a position in a list.
    #[must_use]
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for MemberIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the array thinks of a member; the number is the one on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    /// Holds everything that it should; is read and written.
    InSync = 0,
    /// Set aside after a failure; neither read nor written.
    Faulty = 1,
    /// Was not there when the array was opened; neither read nor written.
    Missing = 2,
    /// Takes all writes; is read only where it has caught up.
    CatchingUp = 3,
}

impl MemberState {
    /// The state with this number on the medium.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::InSync),
            1 => Some(Self::Faulty),
            2 => Some(Self::Missing),
            3 => Some(Self::CatchingUp),
            _ => None,
        }
    }

    /// The state's name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InSync => "in_sync",
            Self::Faulty => "faulty",
            Self::Missing => "missing",
            Self::CatchingUp => "catching_up",
        }
    }

    /// Whether writes go to a member in this state.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::InSync | Self::CatchingUp)
    }
}

/// What the array can do at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayState {
    /// Every member is in sync.
    Optimal,
    /// Serves, with less redundancy than its level gives.
    Degraded,
    /// Serves nothing for the moment: users' requests wait until enough members are back.
    Paused,
    /// Serves nothing: more members failed than the level survives.
    Failed,
}

impl ArrayState {
    /// The state's name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Degraded => "degraded",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

/// A set of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemberSet(u64);

impl MemberSet {
    /// No members.
    pub const EMPTY: Self = Self(0);

    /// Adds a member.
    pub const fn insert(&mut self, member: MemberIndex) {
        self.0 |= 1 << member.0;
    }

    /// Takes a member out.
    pub const fn remove(&mut self, member: MemberIndex) {
        self.0 &= !(1 << member.0);
    }

    /// Whether `member` is in the set.
    #[must_use]
    pub const fn contains(self, member: MemberIndex) -> bool {
        self.0 >> member.0 & 1 == 1
    }

    /// The members that are not in another set.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// How many members are in the set.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the set has no members.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members of the set in ascending order.
    pub fn iter(self) -> impl Iterator<Item = MemberIndex> {
        (0..64).map(MemberIndex).filter(move |member| self.contains(*member))
    }
}

impl FromIterator<MemberIndex> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberIndex>>(iter: I) -> Self {
        let mut set = Self::EMPTY;
        iter.into_iter().for_each(|member| set.insert(member));
        set
    }
}
