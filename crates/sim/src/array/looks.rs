//! Looks at the media beside the array's use: what a crash together with a loss would leave, and
//! what is there when nothing is under way. Nothing is changed by a look, and nothing settled by
//! one through some members.

use netraid_block::narrow;
use netraid_raid::{
    label::Closure,
    member::{MemberIndex, MemberState},
};

use super::{
    faults::Trouble,
    machine::Machine,
    oracle::{EngineId, Wrong},
    session::Message,
    subset::{self, Ended, Read},
    world::{Host, World},
};
use crate::{disk::Disk, network::End, target::Request};

impl<M: Machine> World<M> {
    /// An engine that served crashes: could the array also lose members now, as many as the level
    /// survives, and its power?
    pub(super) fn look_at_a_subset(&mut self, id: EngineId) {
        let with_strays = self.subset_dice.one_in(2);
        self.look_without_engine(id, with_strays);
    }

    /// An engine that serves has lost a member: could it die now, and this member be back, and
    /// others be lost?
    pub(super) fn look_at_a_loss(&mut self, id: EngineId) {
        if self.serving == Some(id) {
            self.look_without_engine(id, true);
        }
    }

    /// Reads everything as it is without the engine, and without as many members as the level
    /// survives or fewer.
    ///
    /// One that the engine has lost may be among the others, with all that it completed: where labels
    /// do not exclude it, what was acknowledged is to be had with it too. An array that would not
    /// open is no harm then.
    fn look_without_engine(&mut self, id: EngineId, with_strays: bool) {
        if self.engines.len() > 1 || self.is_excused(id) || !M::SURVIVES_LOSSES {
            return;
        }
        self.forgive();
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let (mut there, mut strays) = (Vec::new(), Vec::new());
        for (at, host) in self.hosts.iter().enumerate() {
            let is_whole = engine.is_in_sync(at) && engine.has(at);
            let has_all = !host.lost_power && !host.is_older;
            match host.trouble {
                None if is_whole && has_all && !host.is_impaired => there.push(at),
                Some(Trouble::Lying | Trouble::Dark) => {}
                _ if has_all => strays.push(at),
                _ => {}
            }
        }
        let least = self.hosts.len() - self.tolerance();
        self.subset_dice.shuffle(&mut there);
        let stray = self.subset_dice.pick(&strays).copied().filter(|_| with_strays);
        let all = there.len() + usize::from(stray.is_some());
        if all < least {
            return;
        }
        let kept = least + self.subset_dice.index(all - least + 1);
        // A stray is of interest where another is not there.
        let kept = if stray.is_some() { least } else { kept };
        if stray.is_some() && self.subset_dice.one_in(2) {
            // Those that have the newest of the log are lost before others.
            there.sort_by_key(|at| self.recent_log_writes(&self.hosts[*at]).count());
        }
        there.splice(0..0, stray);
        there.truncate(kept);
        let loses_power = self.subset_dice.one_in(if stray.is_some() { 5 } else { 2 });
        let engine = self.subset_dice.one_in(2).then_some(id);
        self.look_through(&there, engine, loses_power, stray.is_some());
    }

    /// An engine opens the array: could it crash now, the power fail, and as many members be lost as
    /// the level survives?
    pub(super) fn look_at_a_recovery(&mut self, id: EngineId) {
        let is_sound =
            |host: &Host| !host.is_impaired && host.trouble.is_none() && !host.lost_power;
        let alone = self.engines.len() == 1 && !self.is_excused(id) && M::SURVIVES_LOSSES;
        if !alone {
            return;
        }
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        // One that has no space may have been set aside, also by labels of whom this engine comes after: it is lost then.
        let is_short = self.is_short_of_space();
        let labels =
            || self.hosts.iter().filter_map(|host| subset::newest_label(host.target.disk()));
        let is_called_away =
            |at: usize| labels().any(|label| label.members[at].state != MemberState::InSync);
        let may_be_lost = |at: usize| is_short && (!engine.has(at) || is_called_away(at));
        let takes_part = |at: usize| engine.found(at) && !may_be_lost(at);
        let hosts = self.hosts.iter().enumerate();
        let sound = hosts.filter(|(at, host)| takes_part(*at) && is_sound(host));
        let mut there: Vec<usize> = sound.map(|(at, _)| at).collect();
        let least = self.hosts.len() - self.tolerance();
        if there.len() < least {
            return;
        }
        self.subset_dice.shuffle(&mut there);
        let mut kept = least;
        if self.subset_dice.one_in(4) {
            kept += self.subset_dice.index(there.len() - least + 1);
        } else if self.subset_dice.one_in(2) {
            // What recovery has copied is left to those that it was copied to.
            there.sort_by_key(|at| {
                core::cmp::Reverse(self.recent_log_writes(&self.hosts[*at]).count())
            });
        }
        there.truncate(kept);
        let engine = self.subset_dice.one_in(2).then_some(id);
        self.look_through(&there, engine, true, false);
    }

    /// The array is closed: it can be read through any members that it needs.
    ///
    /// All were in sync when it was asked to close. Who was lost since, because its connection had
    /// broken before and nobody had noticed, is stale and counts as lost: closing does not wait for it.
    pub(super) fn look_at_all_subsets(&mut self) {
        if !M::SURVIVES_LOSSES {
            return;
        }
        let Some(label) = self.serving_label() else { return };
        let members = self.hosts.len();
        let is_stale = |at: &usize| {
            label.members[*at].state != MemberState::InSync && self.hosts[*at].was_lost_in_close()
        };
        let stale: Vec<usize> = (0..members).filter(is_stale).collect();
        for lost in 0_u32..1 << members {
            let there = (0..members).filter(|at| lost >> at & 1 == 0 && !stale.contains(at));
            let there: Vec<usize> = there.collect();
            let set = there.iter().map(|at| MemberIndex(narrow(*at)));
            if there.len() < members && self.plan.geometry.can_serve_from(set.collect()) {
                self.look_through(&there, None, false, false);
            }
        }
    }

    /// Reads everything through these members alone, after what an engine has under way had some
    /// of its effect. Those that `may_refuse` need not open.
    fn look_through(
        &mut self,
        members: &[usize],
        engine: Option<EngineId>,
        loses_power: bool,
        may_refuse: bool,
    ) {
        self.counts.subsets += 1;
        let mut disks: Vec<Option<Disk>> = self.hosts.iter().map(|_| None).collect();
        for member in members {
            let mut disk = self.sound_copy(*member);
            if let Some(engine) = engine {
                self.land_some(engine, *member, &mut disk);
            }
            if loses_power {
                disk.lose_power(&mut self.subset_dice);
            }
            disks[*member] = Some(disk);
        }
        let checked = match subset::read::<M>(disks, &self.fittings, may_refuse) {
            Ok(Read { data, trusts_parity }) => {
                let checked = self.oracle.check_volume(&data, loses_power, trusts_parity);
                checked.map_err(|wrong| wrong.0)
            }
            Err(Ended::Refused(_)) if may_refuse => Ok(()),
            Err(Ended::Refused(text) | Ended::Unread(text)) => Err(text),
        };
        if let Err(text) = checked {
            let power = if loses_power { ", after a failure of all power" } else { "" };
            self.fail(format!("through members {members:?} alone{power}: {text}"));
        }
    }

    /// Some of the writes that an engine has sent to a member, and had no answer to, have their
    /// effect on a copy of it, whole or in part.
    fn land_some(&mut self, engine: EngineId, member: usize, disk: &mut Disk) {
        let Some(engine) = self.engines.iter().find(|one| one.id == engine) else { return };
        let connection = engine.sessions[member].connection();
        let sent = connection.into_iter().flat_map(|id| self.network.on_the_way(id, End::Acceptor));
        let sent = sent.filter_map(|message| match message {
            Message::Request(Request::Command(_, command)) => command.as_write(),
            Message::Request(Request::Login(_)) | Message::Reply(_) => None,
        });
        let waiting = self.hosts[member].target.waiting_writes();
        for (first, data, fua) in waiting.chain(sent) {
            if self.subset_dice.one_in(2) {
                disk.tear(first, data, fua, &mut self.subset_dice);
            }
        }
    }

    pub(super) fn look_at_media(&mut self, is_closed: bool) {
        self.counts.rests += 1;
        let disks: Vec<&Disk> = self.hosts.iter().map(|host| host.target.disk()).collect();
        let Some(label) = self.serving_label() else { return };
        if is_closed && label.closure == Closure::Unsynced {
            // It was closed before a resync had ended.
            return;
        }
        let looked = M::look(&disks, &label, &self.plan.tables, is_closed);
        let checked = looked.and_then(|volume| {
            let submitted = self.oracle.begin_read();
            let engine = self.serving.unwrap_or(EngineId(0));
            self.oracle
                .end_read(engine, submitted, 0, &volume)
                .map_err(|Wrong(text)| format!("on the media: {text}"))
        });
        if let Err(text) = checked {
            self.fail(format!("at rest: {text}"));
        }
    }
}
