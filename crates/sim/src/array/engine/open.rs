//! How an engine opens the array: with what its sessions found, and by an administrator's word where the product has a doubt.

use core::time::Duration;

use netraid_raid::{
    label::{Closure, Holder, Label},
    member::MemberState,
    slowness::Deadlines,
    volume::{Config, Found as FoundPlace, Volume},
};

use super::{Context, Engine, Notice, Stage, address, index};
use crate::array::{
    machine::Machine,
    opened::{self, FoundDevice, Opened},
};

/// When writes and flushes are late, in the volume's time: a straggler of a member that nothing has befallen is not. So who is
/// given up counts among those that something has befallen.
const WRITE_DEADLINE: (Duration, Duration) = (Duration::from_millis(2600), Duration::from_secs(5));

impl<M: Machine> Engine<M> {
    /// The answer to [`Notice::Asks`].
    pub fn handle_word(&mut self, context: &mut Context<'_>, may_open: bool) {
        let Stage::Asking { found } = &mut self.stage else { return };
        let found = core::mem::take(found);
        if may_open {
            self.open_by_force(context, &found);
            self.drive(context);
        } else {
            self.refuse(context, "members that are not there could carry the array alone".into());
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
        match opened::open(&found, self.holder(), &self.fittings, false) {
            Ok(opened) => self.begin(context, opened),
            Err(refusal) if opened::is_doubt_of_others(&refusal) => {
                let Some(Label { generation, epoch, .. }) = newest(&found) else {
                    unreachable!("others may be newer than no label: {refusal:?}")
                };
                context.notices.push_back((self.id, Notice::Asks(*generation, *epoch)));
                self.stage = Stage::Asking { found };
            }
            // The administrator waits for who is in sync by the labels, and takes parity as it is where all of these
            // are here.
            Err(refusal) if opened::is_doubt_of_parity(&refusal) => match awaited(&found) {
                Some(member) => {
                    self.refuse(context, format!("it was not closed, and member {member} is away"));
                }
                None => self.open_by_force(context, &found),
            },
            Err(refusal) if opened::left_behind(&refusal).is_some() => {
                self.open_by_force(context, &found);
            }
            Err(refusal) => self.refuse(context, format!("{refusal:?}")),
        }
    }

    /// Opens the array by an administrator's word, who knows that nobody has gone on alone: of two that say so, the one
    /// with the older label is an older image, and is made anew later.
    fn open_by_force(&mut self, context: &mut Context<'_>, found: &[Option<FoundDevice>]) {
        let (opened, left_behind) = opened::open_by_force(found, || self.holder(), &self.fittings);
        for member in left_behind {
            context.trace.note(context.around.now, || {
                format!("engine {}: is given the members without {member}", self.id.0)
            });
        }
        match opened {
            Ok(opened) => {
                let is_clean = newest(found).is_some_and(|label| label.closure == Closure::Clean);
                self.trusts_parity = !M::HAS_LOG && !is_clean;
                self.begin(context, opened);
            }
            Err(refusal) => self.refuse(context, format!("{refusal:?}")),
        }
    }

    fn refuse(&mut self, context: &mut Context<'_>, why: String) {
        self.stage = Stage::Over;
        context.notices.push_back((self.id, Notice::Refused(why)));
    }

    /// The machine begins, with the devices that it uses.
    fn begin(&mut self, context: &mut Context<'_>, opened: Opened) {
        let Opened { machine, places, liars, .. } = opened;
        for (at, place) in places.iter().enumerate() {
            let is_used = place.is_some();
            self.places[at].was_found = is_used;
            if is_used {
                self.take_place(at);
            } else {
                let ios = self.sessions[at].stop(&mut context.around);
                assert!(ios.is_empty(), "commands are under way before the array is open");
            }
        }
        context.trace.note(context.around.now, || {
            let there: Vec<bool> = self.places.iter().map(|place| place.has).collect();
            format!("engine {}: opens with members {there:?}", self.id.0)
        });
        let is_liar = |at: usize| liars.iter().any(|(member, _)| *member == index(at));
        let place = |at: usize| match (self.places[at].has, is_liar(at)) {
            (true, _) => FoundPlace::Device(self.device(at)),
            (false, true) => FoundPlace::Liar(address(index(at))),
            (false, false) => FoundPlace::Nobody(Some(address(index(at)))),
        };
        let found = (0..places.len()).map(place).collect();
        let (reads_under_way, large_from) = self.fittings.read_window.unzip();
        let read_ahead = self.fittings.read_ahead;
        let pause = self.fittings.pause;
        let deadlines =
            Deadlines { write: WRITE_DEADLINE, flush: WRITE_DEADLINE, ..Deadlines::default() };
        let config =
            Config { places: found, read_ahead, reads_under_way, large_from, pause, deadlines };
        match M::take(machine, &places) {
            Ok(machine) => self.stage = Stage::Open(Volume::new(machine, config)),
            Err(error) => self.refuse(context, format!("the array cannot be opened: {error}")),
        }
    }

    pub(super) fn holder(&self) -> Holder {
        let mut engine_id = [0; 16];
        engine_id[..4].copy_from_slice(&self.id.0.to_le_bytes());
        engine_id[15] = 1;
        Holder { engine_id, name: "simulation".into(), ..Holder::default() }
    }
}

fn newest(found: &[Option<FoundDevice>]) -> Option<&Label> {
    let labels = found.iter().flatten().filter_map(|device| device.label.as_deref());
    labels.max_by_key(|label| (label.generation, label.epoch))
}

/// A member that is away, and in sync by the newest label.
fn awaited(found: &[Option<FoundDevice>]) -> Option<usize> {
    let newest = newest(found)?;
    let is_away = |at: &usize| found[*at].as_ref().is_none_or(|device| device.label.is_none());
    let is_in_sync = |at: &usize| newest.members[*at].state == MemberState::InSync;
    (0..found.len()).find(|at| is_away(at) && is_in_sync(at))
}
