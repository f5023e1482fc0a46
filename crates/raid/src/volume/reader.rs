//! A volume that only reads, beside others that may come to write: once somebody has opened the array for writing, this one fails,
//! since what it has read of tables is old.
//!
//! At each look at the members' sessions their labels are read, and a generation that is later than the one by which the volume was
//! opened is a writer's, unless more members contradict. Where members have reservations, the reader is registered there
//! (`crate::fencing::steps`), and the first request after a writer removed that ends with [`ErrorKind::Fenced`]. Reads of labels
//! are nobody's requests: they count nowhere, and nothing waits for them.
//!
//! Invariants: a reader that has heard of a writer answers nothing more but its failure; and it answers nothing while the members
//! whose labels it has not read for [`SILENCE_MAX`] could carry the array alone, since a writer may use these.

use alloc::{format, vec::Vec};
use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op, SgList};

use super::{Action, Life, Look, Tag, Volume, machine::Machine};
use crate::{
    label::{LABEL_LEN, Label, Uuid},
    member::{MemberIndex, MemberSet, MemberState},
    regions::LABEL_OFFSETS,
};

/// The number of these requests: no machine has so many under way.
const LABEL: usize = (1 << 40) - 5;
/// Longest that members which could carry the array alone may not have been read.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(2);

/// What a volume that only reads knows of the array that it was opened as.
#[derive(Debug, Default)]
pub(super) struct Reader {
    opened: Option<(Uuid, u64)>,
    /// Members whose labels are being read.
    under_way: MemberSet,
    /// By place: the reads of its label.
    read: Vec<LabelRead>,
    /// Members that could carry the array when it was opened, wherever they are.
    carriers: MemberSet,
    /// Those whose labels are later than that by which the volume was opened.
    later: MemberSet,
    /// Until then users are answered; none: always.
    until: Option<Duration>,
}

/// The reads of a member's label.
#[derive(Debug, Clone, Copy, Default)]
struct LabelRead {
    /// When the last one began.
    begun: Duration,
    /// When the last one that showed a label began.
    heard: Option<Duration>,
}

impl Reader {
    /// Why users are not answered at this time; none where they are, and of a volume that writes.
    pub(super) fn refusal(&self, now: Duration) -> Option<IoError> {
        self.until.filter(|until| now > *until)?;
        let text = "an engine may have opened the array for writing: the labels of members that could carry it alone cannot be read; \
                    it is answered again when they can";
        Some(IoError::with_detail(ErrorKind::Unreachable, text))
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// The volume only reads, and was opened `now` by labels of this array and generation.
    pub fn watch_labels(&mut self, now: Duration, array: Uuid, generation: u64) {
        self.reader.opened = Some((array, generation));
        let of = |volume: &Self, place: usize| {
            let is_there = volume.places[place].device.is_some();
            LabelRead { begun: now, heard: is_there.then_some(now) }
        };
        self.reader.read = (0..self.places.len()).map(|place| of(self, place)).collect();
        let may_carry = |state| matches!(state, MemberState::InSync | MemberState::Missing);
        let members = self.machine.geometry().member_indices();
        self.reader.carriers = members.filter(|member| may_carry(self.state(*member))).collect();
        // Somebody has said by then that those that are away are not in use.
        self.reader.until = self.known_until();
    }

    /// Has the members' labels read.
    pub(super) fn look_at_labels(&mut self, now: Duration, looks: &[Look]) {
        let has_ended = self.life == Life::Closed || self.machine.failure().is_some();
        if self.reader.opened.is_none() || has_ended {
            return;
        }
        let away = self.suspects(looks);
        for place in 0..self.places.len() {
            let Some(member) = u8::try_from(place).ok().map(MemberIndex) else { return };
            let is_there = self.places[place].device.is_some() && self.state(member).is_live();
            let is_busy = self.reader.under_way.contains(member) || away.contains(member);
            if !is_there || is_busy {
                continue;
            }
            self.reader.under_way.insert(member);
            self.reader.read[place].begun = now;
            let (op, offset, len) = (Op::Read, LABEL_OFFSETS[0], LABEL_LEN as u64);
            let (tag, fua, data) = (Tag::new(member, LABEL, 0), false, SgList::new());
            self.actions.push_back(Action::Submit { tag, member, op, offset, len, fua, data });
        }
    }

    /// Takes the end of any request: of a reader, some tell of a writer. Answers whether it was the read of a label.
    pub(super) fn hear_as_reader(
        &mut self,
        now: Duration,
        tag: Tag,
        result: &Result<SgList, IoError>,
    ) -> bool {
        let Some((array, generation)) = self.reader.opened else { return false };
        let (is_label, member) = (tag.io() == LABEL as u64, tag.member());
        if is_label {
            self.reader.under_way.remove(member);
        }
        match result {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                let text = format!("member {member}: {error}");
                self.end_reading("another engine", &text);
            }
            Ok(data) if is_label => {
                if let Ok(label) = Label::decode(&data.to_contiguous(), 0) {
                    let is_later = label.array_uuid != array || label.generation > generation;
                    self.hear_label(now, member, is_later.then_some(&label));
                }
            }
            Ok(_) | Err(_) => {}
        }
        is_label
    }

    /// A member has shown a label; `later` is it, where it is a writer's.
    fn hear_label(&mut self, now: Duration, member: MemberIndex, later: Option<&Label>) {
        let read = &mut self.reader.read[member.as_usize()];
        read.heard = Some(read.begun);
        if self.reader.until.is_some() {
            self.reader.until = self.known_until();
        }
        let Some(label) = later else { return self.reader.later.remove(member) };
        self.reader.later.insert(member);
        let (later, geometry) = (self.reader.later, self.machine.geometry());
        let others = self.heard_since(now.saturating_sub(SILENCE_MAX)).without(later);
        // One that lies is contradicted by more than agree with it.
        if later.len() < others.len() && !geometry.can_serve_from(later) {
            return;
        }
        let writer = format!("'{}'", label.holder.name);
        let text = format!("member {member}: generation {}", label.generation);
        self.end_reading(&writer, &text);
    }

    /// Members whose labels were read since then.
    fn heard_since(&self, since: Duration) -> MemberSet {
        let read = (0..).map(MemberIndex).zip(&self.reader.read);
        let heard = read.filter(|(_, read)| read.heard.is_some_and(|heard| heard >= since));
        heard.map(|(member, _)| member).collect()
    }

    /// Until when no writer can have come that would not have been heard of; none where that is not known at all.
    fn known_until(&self) -> Option<Duration> {
        let is_enough = |since: &Duration| {
            let unheard = self.reader.carriers.without(self.heard_since(*since));
            !self.machine.geometry().can_serve_from(unheard)
        };
        let heard = self.reader.read.iter().filter_map(|read| read.heard);
        heard.filter(is_enough).max().map(|since| since + SILENCE_MAX)
    }

    fn end_reading(&mut self, writer: &str, how: &str) {
        let text = format!(
            "{writer} has opened the array for writing since it was attached read-only ({how}), and what would be read here may be \
             old; attach it anew when it is closed"
        );
        self.machine.handle_overtaken(IoError::with_detail(ErrorKind::Fenced, text));
    }
}
