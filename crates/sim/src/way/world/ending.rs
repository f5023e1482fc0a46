//! How a run ends: nothing befalls the array any more, all members come back, everything is read, it closes; it is opened
//! once more, read, scrubbed and closed; and after each close the media hold what they should.

use core::time::Duration;

use netraid_raid::{
    label::{Closure, Label},
    volume::{Logged, Plain, ScrubOrder},
};

use super::{Happening, MACHINES, Phase, World};
use crate::{
    array::{
        machine::Machine,
        oracle::{EngineId, Wrong},
    },
    disk::Disk,
};

/// The longest that it may take until an array is closed that nothing befalls.
const REST_MAX: Duration = Duration::from_secs(600);

impl World {
    pub(super) fn begin_healing(&mut self) {
        if self.phase != Phase::Lives {
            return;
        }
        self.note(|| "nothing befalls the array any more".into());
        self.phase = Phase::Healing;
        self.refusals = 0;
        self.mend_everything();
        self.forgive();
        self.net.put_in(REST_MAX, Happening::Late);
    }

    pub(super) fn fail_late(&mut self) {
        let (states, phase) = (self.states(), self.phase);
        let away = &self.ticks_away;
        let engines: Vec<String> = self.engines.iter().map(|it| it.describe()).collect();
        let under_way: Vec<usize> =
            self.host_ids.iter().map(|it| self.net.under_way(*it)).collect();
        let text = format!("it does not come to rest ({phase:?}); members are {states}, {away:?}");
        self.note(|| format!("engines {engines:?}, at the disks {under_way:?}"));
        self.fail(text);
    }

    /// Nothing befalls the array: what is to be done next?
    pub(super) fn go_on_ending(&mut self) {
        let Some(id) = self.serving else { return };
        if self.engines.len() != 1 || self.told_to_close.is_some() || !self.is_whole() {
            return;
        }
        if self.in_flight(id) > 0 || self.sweep.is_some() {
            return;
        }
        if !self.has_swept {
            self.note(|| "everything is read".into());
            (self.sweep, self.has_swept) = (Some(0), true);
            return self.look_after_users();
        }
        let scrubs = self.plan.has_log && self.phase == Phase::Again && !self.has_scrubbed;
        if scrubs {
            if !self.is_scrubbing {
                self.is_scrubbing = true;
                let Some(at) = self.position(id) else { return };
                let order = ScrubOrder::Start { from: 0, trust_parity: false };
                self.with(at, |engine, context| engine.handle_scrub(context, order));
            }
            return;
        }
        self.note(|| "the array is to close".into());
        if self.phase == Phase::Healing {
            self.phase = Phase::Closing;
        }
        self.close(id);
    }

    /// The array is closed in good order.
    pub(super) fn end_closing(&mut self, id: EngineId, phase: Phase, label: Option<Label>) {
        if let Some(label) = label {
            self.look_at_media(id, &label);
        }
        match phase {
            Phase::Again => self.phase = Phase::Over,
            Phase::Closing => {
                self.phase = Phase::Again;
                let next = self.last_machine + usize::from(self.plan.reserves);
                self.net.put_in(Duration::ZERO, Happening::Start(next % MACHINES));
            }
            Phase::Lives | Phase::Healing | Phase::Over => {}
        }
    }

    fn look_at_media(&mut self, id: EngineId, label: &Label) {
        if label.closure == Closure::Unsynced {
            // It was closed before a resync had ended.
            return;
        }
        let disks: Vec<&Disk> =
            self.places.iter().map(|host| self.net.disk(self.hosts[*host].id)).collect();
        let tables = &self.plan.tables;
        let looked = match self.plan.has_log {
            true => <Logged as Machine>::look(&disks, label, tables, true),
            false => <Plain as Machine>::look(&disks, label, tables, true),
        };
        let checked = looked.and_then(|volume| {
            let submitted = self.oracle.begin_read();
            let end = self.oracle.end_read(id, submitted, 0, &volume);
            end.map_err(|Wrong(text)| format!("on the media: {text}"))
        });
        if let Err(text) = checked {
            self.fail(format!("at rest: {text}"));
        }
    }
}
