//! What leads a member from one state to the next, as one table. The arrays change states by this table alone, and
//! docs/members.md shows it to users.
//!
//! Invariant: a device that was set aside, was missing, or is new becomes in sync only by catching up.
//!
//! The table does not say when an array judges a member: [`presence`](crate::presence) judges sessions, and
//! [`slowness`](crate::slowness) times.

use super::MemberState;

/// The state of a member, or of a spare, as users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A state that the label has.
    Label(MemberState),
    /// The label's state is `in_sync` or `catching_up`, and the member has no session at the moment.
    Suspect,
    /// The device belongs to no member, and may take the place of one.
    Spare,
}

impl Shown {
    /// The state's name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Label(state) => state.name(),
            Self::Suspect => "suspect",
            Self::Spare => "spare",
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: Shown,
    /// The state after.
    pub to: Shown,
    /// What leads from one to the other, for users.
    pub when: &'static str,
}

const fn row(from: Shown, to: Shown, when: &'static str) -> Transition {
    Transition { from, to, when }
}

const IN_SYNC: Shown = Shown::Label(MemberState::InSync);
const FAULTY: Shown = Shown::Label(MemberState::Faulty);
const MISSING: Shown = Shown::Label(MemberState::Missing);
const CATCHING_UP: Shown = Shown::Label(MemberState::CatchingUp);

/// Every way from one state to another.
pub const TRANSITIONS: [Transition; 15] = [
    row(
        IN_SYNC,
        Shown::Suspect,
        "its sessions broke, or the array pauses; it is seen within a second, also while nobody asks for anything",
    ),
    row(Shown::Suspect, IN_SYNC, "a session is there again, and its device has kept its cache"),
    row(
        IN_SYNC,
        FAULTY,
        "a write or a flush failed; its device was restarted and may have lost its cache; it kept writes waiting, or crawls; `netraid fail`",
    ),
    row(
        Shown::Suspect,
        FAULTY,
        "it stays away for longer than a session takes to be made anew, and the array can do without it; or a request to it came to its deadline",
    ),
    row(
        IN_SYNC,
        MISSING,
        "the array was opened or went on after a pause, and it was not there, or not up to date",
    ),
    row(Shown::Suspect, MISSING, "the same"),
    row(
        FAULTY,
        CATCHING_UP,
        "its device answers again (in an array with a log), `netraid rebuild`, `netraid replace`, or a spare in its place",
    ),
    row(MISSING, CATCHING_UP, "the same"),
    row(FAULTY, MISSING, "the array was opened anew, and the member is still not up to date"),
    row(CATCHING_UP, IN_SYNC, "it has everything, and that is stable"),
    row(CATCHING_UP, Shown::Suspect, "as from `in_sync`"),
    row(Shown::Suspect, CATCHING_UP, "a session is there again; it goes on with what it lacks"),
    row(CATCHING_UP, FAULTY, "as from `in_sync`"),
    row(CATCHING_UP, MISSING, "as from `in_sync`"),
    row(
        Shown::Spare,
        CATCHING_UP,
        "a member stayed away for `--spare-after`, or does not come back by itself",
    ),
];

impl MemberState {
    /// Whether the table leads from this state to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        let is_way =
            |row: &Transition| row.from == Shown::Label(self) && row.to == Shown::Label(next);
        TRANSITIONS.iter().any(is_way)
    }

    /// Changes the state.
    ///
    /// # Panics
    /// When the table does not lead from this state to `next`: a member would be read that lacks something.
    pub fn change(&mut self, next: Self) {
        assert!(self.may_become(next), "no member that is {self:?} becomes {next:?}");
        *self = next;
    }
}

#[cfg(test)]
mod tests {
    use std::{format, fs, string::String};

    use super::*;

    const STATES: [MemberState; 4] =
        [MemberState::InSync, MemberState::Faulty, MemberState::Missing, MemberState::CatchingUp];

    #[test]
    fn only_who_caught_up_becomes_in_sync() {
        for state in STATES {
            let may = state == MemberState::CatchingUp;
            assert_eq!(state.may_become(MemberState::InSync), may, "{state:?}");
        }
        assert!(!MemberState::InSync.may_become(MemberState::CatchingUp));
        assert!(!MemberState::Missing.may_become(MemberState::Faulty));
    }

    #[test]
    #[should_panic(expected = "no member that is Missing becomes InSync")]
    fn a_missing_member_that_is_called_in_sync_stops_the_array() {
        MemberState::Missing.change(MemberState::InSync);
    }

    #[test]
    fn every_row_is_there_once() {
        for (at, one) in TRANSITIONS.iter().enumerate() {
            assert_ne!(one.from, one.to);
            let mut others = TRANSITIONS[at + 1..].iter();
            assert!(!others.any(|other| (other.from, other.to) == (one.from, one.to)), "{one:?}");
        }
    }

    /// The table as docs/members.md has it.
    fn table() -> String {
        let head = "| From | To | When |\n|---|---|---|\n";
        TRANSITIONS.iter().fold(head.into(), |text, row| {
            format!("{text}| `{}` | `{}` | {} |\n", row.from.name(), row.to.name(), row.when)
        })
    }

    #[test]
    fn the_table_is_the_one_in_docs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/members.md");
        let text = fs::read_to_string(path).unwrap();
        let begin = text.find("| From | To | When |").unwrap();
        let end = begin + text[begin..].find("\n\n").unwrap() + 1;
        if std::env::var_os("NETRAID_WRITE_DOCS").is_some() {
            fs::write(path, format!("{}{}{}", &text[..begin], table(), &text[end..])).unwrap();
        } else {
            assert_eq!(&text[begin..end], table(), "write it with NETRAID_WRITE_DOCS=1");
        }
    }
}
