//! Who takes part: members set aside and replaced, labels that say so, opening and closing.
//!
//! A label update writes copy 0 on every live member, with FUA, and then copy 1. While one is
//! wanted or running, no write or flush is acknowledged: what the acknowledgement relies on must
//! be on the members first.

use alloc::{string::ToString, sync::Arc, vec::Vec};

use netraid_block::{ErrorKind, IoError, narrow};

use super::{ArrayMachine, Event, Life, MemberCaps, op::Owner};
use crate::{
    label::{Closure, Label, MemberEntry, Uuid},
    lack::Lack,
    member::{MemberIndex, MemberSet, MemberState},
    regions::LABEL_OFFSETS,
};

#[derive(Debug, Default)]
pub(super) struct LabelUpdate {
    wanted: bool,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    label: Label,
    /// The devices that were live when the update began. One that has taken a member's place since
    /// must not get this label: it would pass for the member that it replaced.
    devices: Vec<(MemberIndex, u32)>,
    copy: usize,
    outstanding: u32,
}

impl LabelUpdate {
    pub(super) const fn is_pending(&self) -> bool {
        self.wanted || self.running.is_some()
    }

    pub(super) const fn request(&mut self) {
        self.wanted = true;
    }
}

impl ArrayMachine {
    pub(super) fn begin_open(&mut self, unclean: bool) {
        if self.read_only {
            self.opened();
            return;
        }
        self.labels.request();
        if unclean {
            // Copies may differ: one image of each page is made good on all before it is served.
            self.commit.write_every_page();
        }
    }

    fn opened(&mut self) {
        self.life = Life::Open;
        self.shown_state = self.state();
        self.events.push_back(Event::Opened);
    }

    /// Whether the array can serve without `member`.
    pub(super) fn can_lose(&self, member: MemberIndex) -> bool {
        self.label.state(member) != MemberState::InSync
            || self.can_serve_without(core::iter::once(member).collect())
    }

    /// Whether the members in sync suffice without `members`.
    pub(super) fn can_serve_without(&self, members: MemberSet) -> bool {
        let in_sync = self.geometry.member_indices().filter(|other| {
            !members.contains(*other) && self.label.state(*other) == MemberState::InSync
        });
        let needed = u32::from(self.geometry.members()) - self.geometry.tolerance();
        u32::try_from(in_sync.count()).is_ok_and(|count| count >= needed)
    }

    /// Sets a live member aside, or fails the array when it cannot serve without it.
    pub(super) fn fail_member(&mut self, member: MemberIndex, reason: &str) {
        if !self.label.state(member).is_live() || self.failed.is_some() {
            return;
        }
        if !self.can_lose(member) {
            return self.fail_array(member, reason);
        }
        let entry = &mut self.label.members[member.as_usize()];
        entry.state.change(MemberState::Faulty);
        entry.rebuilt_stripes = 0;
        let reason = reason.to_string();
        self.events.push_back(Event::Member { member, state: MemberState::Faulty, reason });
        self.background.member_failed(member);
        if !self.read_only {
            self.labels.request();
        }
    }

    /// Another engine has opened the array for writing, and this one only reads: it fails with this error.
    pub fn handle_overtaken(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
        self.run();
    }

    /// Stops serving at once: `member` says that another engine has the array now. Nothing that
    /// is not acknowledged yet will be, and labels are the other engine's.
    pub(super) fn fence(&mut self, member: MemberIndex, error: &IoError) {
        if self.failed.as_ref().is_some_and(|failed| failed.kind() == ErrorKind::Fenced) {
            return;
        }
        let text = alloc::format!(
            "array '{}' is fenced: another engine has taken it over (member {member}: {error}); \
             stop this one",
            self.label.name,
        );
        self.failed = Some(IoError::with_detail(ErrorKind::Fenced, text));
    }

    /// Stops serving. Labels stay as they are: the members may all come back.
    fn fail_array(&mut self, member: MemberIndex, reason: &str) {
        let away = self
            .geometry
            .member_indices()
            .filter(|other| *other == member || self.label.state(*other) != MemberState::InSync);
        let text = alloc::format!(
            "array '{}' failed: level {} cannot serve without members {} (last: member {member}: \
             {reason}); bring them back and attach again",
            self.label.name,
            self.geometry.level().number(),
            Self::member_list(away),
        );
        self.failed = Some(IoError::with_detail(ErrorKind::Redundancy, text));
    }

    pub(super) fn begin_replace(&mut self, member: MemberIndex, uuid: Uuid, caps: MemberCaps) {
        let device = &mut self.members[member.as_usize()];
        device.caps = caps;
        device.incarnation += 1;
        self.label.members[member.as_usize()] = MemberEntry {
            uuid,
            state: MemberState::CatchingUp,
            last_checkpoint: 0,
            rebuilt_stripes: 0,
            lack: Lack::NOTHING,
        };
        let reason = "replaced".to_string();
        self.events.push_back(Event::Member { member, state: MemberState::CatchingUp, reason });
        self.labels.request();
        self.commit.write_every_page();
        let running = self.ops.iter().map(|(id, _)| super::op::OpId(id)).collect();
        self.background.restart_rebuild(member, running);
    }

    /// A member holds everything now.
    pub(super) fn member_caught_up(&mut self, member: MemberIndex) {
        let entry = &mut self.label.members[member.as_usize()];
        entry.state.change(MemberState::InSync);
        entry.rebuilt_stripes = 0;
        let reason = "rebuilt".to_string();
        self.events.push_back(Event::Member { member, state: MemberState::InSync, reason });
        self.labels.request();
    }

    pub(super) fn start_label_update(&mut self) {
        if !self.labels.wanted || self.labels.running.is_some() {
            return;
        }
        self.labels.wanted = false;
        if self.failed.is_some() || self.read_only {
            return;
        }
        self.label.epoch += 1;
        let label = self.label.clone();
        let live = self.live_members();
        let device = |member: MemberIndex| (member, self.members[member.as_usize()].incarnation);
        let devices = live.iter().map(device).collect();
        self.labels.running = Some(Running { label, devices, copy: 0, outstanding: 0 });
        self.write_label_copy();
    }

    fn write_label_copy(&mut self) {
        let live = self.live_members();
        let Some(running) = &mut self.labels.running else { return };
        let (mut label, copy) = (running.label.clone(), running.copy);
        let is_same = |(member, incarnation): &&(MemberIndex, u32)| {
            live.contains(*member) && self.members[member.as_usize()].incarnation == *incarnation
        };
        let devices: Vec<MemberIndex> =
            running.devices.iter().filter(is_same).map(|(member, _)| *member).collect();
        running.outstanding = narrow(devices.len());
        for member in devices {
            label.index = member;
            let bytes: Arc<[u8]> = label.encode(copy).into();
            self.push_meta(Owner::Labels, member, LABEL_OFFSETS[copy], bytes);
        }
        if self.labels.running.as_ref().is_some_and(|running| running.outstanding == 0) {
            self.labels.running = None;
        }
    }

    pub(super) fn label_io_done(&mut self) {
        let Some(running) = &mut self.labels.running else { return };
        running.outstanding -= 1;
        if running.outstanding > 0 {
            return;
        }
        running.copy += 1;
        if running.copy < LABEL_OFFSETS.len() && self.failed.is_none() {
            return self.write_label_copy();
        }
        self.labels.running = None;
    }

    /// Goes on with opening or closing when everything that it waits for is done.
    pub(super) fn continue_close(&mut self) {
        let quiet = !self.labels.is_pending() && self.commit.is_idle();
        match self.life {
            Life::Opening if quiet && self.failed.is_none() => self.opened(),
            Life::Opening if self.failed.is_some() && self.ios.is_empty() => self.closed(),
            Life::Closing if quiet && self.ops.is_empty() && self.background.is_quiet() => {
                self.close_labels();
            }
            Life::Opening | Life::Open | Life::Closing | Life::Closed => {}
        }
    }

    fn closed(&mut self) {
        self.life = Life::Closed;
        self.events.push_back(Event::Closed);
    }

    /// First a flush, then labels that say how the array was left, then the end.
    fn close_labels(&mut self) {
        if self.read_only || self.failed.is_some() || self.label.closure != Closure::Open {
            return if self.ios.is_empty() {
                self.closed()
            };
        }
        match self.background.closing_flush {
            None => {
                let live = self.live_members();
                self.background.closing_flush = Some(live.len());
                live.iter().for_each(|member| self.push_flush(Owner::Close, member));
            }
            Some(0) => {
                let clean = self.unsynced.count == 0;
                self.label.closure = if clean { Closure::Clean } else { Closure::Unsynced };
                self.note_rebuild_progress();
                self.labels.request();
                self.start_label_update();
            }
            Some(_) => {}
        }
    }

    pub(super) fn close_io_done(&mut self) {
        if let Some(left) = &mut self.background.closing_flush {
            *left -= 1;
        }
    }
}
