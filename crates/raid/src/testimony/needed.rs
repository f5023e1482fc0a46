//! When the newest label of an array without a log is needed: the members that lack it are too few to serve from.

use super::{age, follows, identity, is_called_in_sync, is_of_one_shape, says_the_same};
use crate::{label::Label, member::MemberIndex};

/// Whether the newest label, of an array without a log, is of openings that were cut short, and the members that lack it
/// are too few to serve from.
///
/// Such a label has a member back in sync that the label before it sets aside, since it was found that too few members
/// had that one. Where the member is away again, none of those that are here may be lost as a liar; they hold the same
/// by either label.
///
/// # Panics
/// When `newest` is no place in `labels`.
pub(crate) fn is_needed(labels: &[&Label], newest: usize) -> bool {
    let label = labels[newest];
    let others = || labels.iter().filter(|other| !says_the_same(label, other));
    let comes_after = |older: &&Label| {
        age(older) < age(label)
            && follows(age(label), age(older), false)
            && is_of_one_shape(label, older)
    };
    let is_back = |member: &MemberIndex| {
        let was_away = |older: &&Label| {
            !older.state(*member).is_live() && identity(older, *member) == identity(label, *member)
        };
        others().any(was_away)
    };
    let in_sync = label.in_sync();
    let mut back = in_sync.iter().filter(is_back).peekable();
    let has_any_back = back.peek().is_some();
    let are_away = back.all(|member| others().all(|older| older.index != member));
    let current = labels.iter().filter(|one| is_called_in_sync(label, one)).map(|one| one.index);
    let without = others().map(|other| other.index);
    label.log.is_none()
        && others().all(comes_after)
        && has_any_back
        && are_away
        && label.geometry.can_serve_from(current.collect())
        && !label.geometry.can_serve_from(without.collect())
}
