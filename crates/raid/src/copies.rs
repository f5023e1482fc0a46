//! Which members hold the copies of what is not striped: batches of the log, pages of tables.
//!
//! Invariant: any set of members that can serve holds a copy, and any set that lacks no more than
//! the level promises to survive.

use netraid_block::narrow;

use crate::{
    geometry::{Geometry, Level},
    member::{MemberIndex, MemberSet},
};

/// Copies on members that stand a fixed way apart: neighbours, or the two halves of a pair where
/// members mirror each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    members: u8,
    copies: u8,
    apart: u8,
}

impl Copies {
    /// For an array of that shape.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        let members = geometry.members();
        if geometry.level() == Level::Raid10 {
            return Self { members, copies: 2, apart: members / 2 };
        }
        let wanted = geometry.tolerance() + 1;
        Self::neighbours(members, narrow::<_, u8>(wanted).min(members))
    }

    /// `copies` on neighbours among `members`.
    ///
    /// # Panics
    /// When there are no copies, or more than members.
    #[must_use]
    pub const fn neighbours(members: u8, copies: u8) -> Self {
        assert!(copies > 0 && copies <= members, "copies and members");
        Self { members, copies, apart: 1 }
    }

    /// How many copies there are.
    #[must_use]
    pub const fn count(self) -> u8 {
        self.copies
    }

    /// How many different sets of holders there are.
    #[must_use]
    pub const fn groups(self) -> u8 {
        if self.apart == 1 { self.members } else { self.members / self.copies }
    }

    /// How many groups a member is in.
    #[must_use]
    pub const fn groups_of_each(self) -> u8 {
        if self.apart == 1 { self.copies } else { 1 }
    }

    /// Which of its groups a member is in with group `number`, counted from 0; none when it is not.
    #[must_use]
    pub fn rank(self, number: u64, member: MemberIndex) -> Option<u8> {
        let first = self.first(number);
        let way = (member.0 + self.members - first) % self.members;
        let is_holder = way.is_multiple_of(self.apart) && way / self.apart < self.copies;
        is_holder.then_some(if self.apart == 1 { way } else { 0 })
    }

    /// The holders of group `number`; numbers go round.
    #[must_use]
    pub fn holders(self, number: u64) -> MemberSet {
        (0..self.members)
            .map(MemberIndex)
            .filter(|member| self.rank(number, *member).is_some())
            .collect()
    }

    /// Who among `members` gets a batch of the log: as many as there are copies, if there are so
    /// many; other ones for each `number`.
    #[must_use]
    pub fn among(self, number: u64, members: MemberSet) -> MemberSet {
        if self.apart > 1 {
            let there = |group| -> MemberSet {
                self.holders(group).iter().filter(|one| members.contains(*one)).collect()
            };
            let groups = (0..u64::from(self.groups())).map(|more| there(number + more));
            return groups.into_iter().find(|one| !one.is_empty()).unwrap_or(MemberSet::EMPTY);
        }
        let count = u64::from(members.len());
        if count == 0 {
            return MemberSet::EMPTY;
        }
        let first = number % count;
        let wanted = u64::from(self.copies).min(count);
        let is_holder = |at: u64| (at + count - first) % count < wanted;
        (0..).zip(members.iter()).filter(|(at, _)| is_holder(*at)).map(|(_, one)| one).collect()
    }

    /// Who among `members` is still to get a batch that `holders` have.
    #[must_use]
    pub fn missing(self, number: u64, members: MemberSet, holders: MemberSet) -> MemberSet {
        if self.apart > 1 {
            let wanted = self.among(number, members);
            return wanted.iter().filter(|one| !holders.contains(*one)).collect();
        }
        let have = members.iter().filter(|one| holders.contains(*one)).count();
        let wanted = usize::from(self.copies).min(members.len() as usize);
        let others = members.iter().filter(|one| !holders.contains(*one));
        others.take(wanted.saturating_sub(have)).collect()
    }

    fn first(self, number: u64) -> u8 {
        // Less than the number of members, which is a byte.
        narrow(number % u64::from(self.groups()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    #[test]
    fn whoever_can_serve_holds_a_copy() {
        for (level, members) in [
            (Level::Raid0, 3),
            (Level::Raid1, 3),
            (Level::Raid5, 4),
            (Level::Raid6, 6),
            (Level::Raid10, 4),
            (Level::Raid10, 6),
        ] {
            let geometry = Geometry::new(level, members, 4096, 512, 8, 0).unwrap();
            let (code, copies) = (Code::new(&geometry), Copies::new(&geometry));
            for there in 0..1_u32 << members {
                let there: MemberSet =
                    geometry.member_indices().filter(|one| there >> one.0 & 1 == 1).collect();
                let readable = |column: &u8| there.contains(geometry.member_of(0, *column));
                if !code.can_decode((0..geometry.members()).filter(readable).collect()) {
                    continue;
                }
                for number in 0..12 {
                    assert!(copies.holders(number).iter().any(|one| there.contains(one)));
                    assert!(!copies.among(number, there).is_empty());
                }
            }
        }
    }
}
