//! How an engine opens the array: with whom it does, and when it asks an administrator before.

use netraid_raid::{
    label::{Holder, Label},
    logged::{FoundMember, OpenConfig},
    member::{MemberSet, MemberState},
    testimony::judge,
    volume::{Config, Found as FoundPlace, Volume},
};

use super::{Context, Engine, Found, Notice, Stage, address, index};
use crate::array::machine::{Machine, Opening};

impl<M: Machine> Engine<M> {
    /// The answer to [`Notice::Asks`].
    pub fn handle_word(&mut self, context: &mut Context<'_>, may_open: bool) {
        let Stage::Asking { found } = &mut self.stage else { return };
        let found = core::mem::take(found);
        if may_open {
            self.open(context, &found, true);
            self.drive(context);
        } else {
            self.stage = Stage::Over;
            let why = "members that are not there could carry the array alone".into();
            context.notices.push_back((self.id, Notice::Refused(why)));
        }
    }

    /// Everybody has answered, or has had time to.
    pub(super) fn try_to_open(&mut self, context: &mut Context<'_>) {
        let Stage::Opening { until, found } = &mut self.stage else { return };
        let members = found.len();
        if found.iter().flatten().count() < members && context.around.now < *until {
            return;
        }
        let found = core::mem::take(found);
        match doubt(&found) {
            None => {
                self.stage = Stage::Over;
                let why = "no member has a label".into();
                context.notices.push_back((self.id, Notice::Refused(why)));
            }
            Some(Doubt::None) => self.open(context, &found, false),
            Some(Doubt::OthersMayBeNewer(generation, epoch)) => {
                self.stage = Stage::Asking { found };
                context.notices.push_back((self.id, Notice::Asks(generation, epoch)));
            }
        }
    }

    fn open(&mut self, context: &mut Context<'_>, found: &[Option<Found>], is_forced: bool) {
        let newest = newest(found);
        let written = |found: &Option<Found>| match found {
            Some(Found::Member(found)) => found.written.clone(),
            Some(Found::Stranger) | None => None,
        };
        let written = found.iter().map(written).collect();
        // A member that was replaced since is a stranger too.
        let is_ours = |at: usize, label: &Label| {
            newest.is_some_and(|newest| newest.members[at].uuid == label.members[at].uuid)
        };
        let member = |(at, found): (usize, &Option<Found>)| match found {
            Some(Found::Member(found)) if is_ours(at, &found.label) => Some(FoundMember {
                caps: self.fittings.caps[at],
                label: found.label.clone(),
                checkpoint: found.checkpoint,
            }),
            Some(Found::Member(..) | Found::Stranger) | None => None,
        };
        let members: Vec<_> = found.iter().enumerate().map(member).collect();
        for (at, member) in members.iter().enumerate() {
            let is_there = member.is_some();
            self.places[at].was_found = is_there;
            if is_there {
                self.take_place(at);
            } else {
                let ios = self.sessions[at].stop(&mut context.around);
                assert!(ios.is_empty(), "commands are under way before the array is open");
            }
        }
        let (members, found) = (members.len(), members);
        let mut engine_id = [0; 16];
        engine_id[..4].copy_from_slice(&self.id.0.to_le_bytes());
        engine_id[15] = 1;
        let config = OpenConfig {
            members: found,
            holder: Holder { engine_id, name: "simulation".into(), ..Holder::default() },
            max_io_len: self.fittings.max_io_len,
            pool: self.fittings.pool.clone(),
            limits: self.fittings.limits,
        };
        context.trace.note(context.around.now, || {
            let there: Vec<bool> = self.places.iter().map(|place| place.has).collect();
            format!("engine {}: opens with members {there:?}", self.id.0)
        });
        let opening = Opening { config, written, is_forced };
        self.trusts_parity = M::trusts_parity(&opening);
        self.stage = match M::open(opening) {
            Ok(machine) => {
                self.stop_without_place(context, &machine);
                let place = |at: usize| match self.places[at].has {
                    true => FoundPlace::Device(self.device(at)),
                    false => FoundPlace::Nobody(Some(address(index(at)))),
                };
                let places = (0..members).map(place).collect();
                let (reads_under_way, large_from) = self.fittings.read_window.unzip();
                let read_ahead = self.fittings.read_ahead;
                let config = Config { places, read_ahead, reads_under_way, large_from };
                Stage::Open(Volume::new(machine, config))
            }
            Err(error) => {
                let why = format!("the array cannot be opened: {error}");
                context.notices.push_back((self.id, Notice::Refused(why)));
                Stage::Over
            }
        };
    }

    /// Ends sessions with members that are there and have no place in the array as it is.
    fn stop_without_place(&mut self, context: &mut Context<'_>, machine: &M) {
        for at in (0..self.places.len()).filter(|at| !machine.has_place(index(*at))) {
            if core::mem::take(&mut self.places[at].has) {
                self.places[at].was_found = false;
                let ios = self.sessions[at].stop(&mut context.around);
                assert!(ios.is_empty(), "commands are under way before the array is open");
            }
        }
    }
}

/// What stands against opening the array with the members that were found.
enum Doubt {
    None,
    /// Others are in sync and could have carried the array without these since this generation
    /// and epoch.
    OthersMayBeNewer(u64, u64),
}

fn newest(found: &[Option<Found>]) -> Option<&Label> {
    let members = found.iter().filter_map(|found| match found {
        Some(Found::Member(found)) => Some((&found.label, found.checkpoint)),
        Some(Found::Stranger) | None => None,
    });
    let (labels, checkpoints): (Vec<&Label>, Vec<Option<u64>>) = members.unzip();
    let newest = labels.iter().copied().max_by_key(|it| (it.generation, it.epoch))?;
    // The machine says so when it is not clear which one counts.
    Some(judge(&labels, &checkpoints).map_or(newest, |verdict| labels[verdict.truth]))
}

/// None when there is no label at all.
fn doubt(found: &[Option<Found>]) -> Option<Doubt> {
    let newest = newest(found)?;
    let is_elsewhere = |at: &usize| {
        newest.members[*at].state == MemberState::InSync
            && !matches!(found[*at], Some(Found::Member(..)))
    };
    let others: MemberSet = (0..found.len()).filter(is_elsewhere).map(index).collect();
    Some(if newest.geometry.can_serve_from(others) {
        Doubt::OthersMayBeNewer(newest.generation, newest.epoch)
    } else {
        Doubt::None
    })
}
