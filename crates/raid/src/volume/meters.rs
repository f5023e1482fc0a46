//! How fast rebuilds and scrubs go: [`crate::meter`] measures each of them, from look to look.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Life, Progress, Volume, machine::Machine};
use crate::{
    logged::ScrubStatus,
    member::MemberIndex,
    meter::{Meter, Speed},
};

/// What is measured of the work of a volume.
#[derive(Debug, Default)]
pub(super) struct Meters {
    /// By kind and member, of what goes on.
    works: Vec<((&'static str, Option<MemberIndex>), Meter)>,
    scrub: Meter,
}

impl Meters {
    fn find(&self, work: &Progress) -> Option<&Meter> {
        let is_it = |(key, _): &&(_, Meter)| *key == (work.kind, work.member);
        self.works.iter().find(is_it).map(|(_, meter)| meter)
    }

    fn note_works(&mut self, now: Duration, works: &[Progress], goes_on: bool) {
        let is_there = |key| works.iter().any(|work| key == (work.kind, work.member));
        self.works.retain(|(key, _)| is_there(*key));
        for work in works {
            let key = (work.kind, work.member);
            let found = self.works.iter_mut().find(|(one, _)| *one == key);
            match found {
                Some((_, meter)) => meter.note(now, work.done, goes_on),
                None => {
                    let mut meter = Meter::default();
                    meter.note(now, work.done, goes_on);
                    self.works.push((key, meter));
                }
            }
        }
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// How far rebuilds, catch-ups or a resync are, and how fast they go: what is done now comes first.
    #[must_use]
    pub fn works(&self, now: Duration) -> Vec<(Progress, Speed)> {
        let speed = |work: &Progress| {
            let meter = self.meters.find(work);
            meter.map(|meter| meter.speed(now, work.done, work.total)).unwrap_or_default()
        };
        self.machine.progress().into_iter().map(|work| (work, speed(&work))).collect()
    }

    /// How fast a scrub goes that has come so far, by bytes of all members.
    #[must_use]
    pub fn scrub_speed(&self, now: Duration, scrub: &ScrubStatus, stripe_len: u64) -> Speed {
        match scrub.running {
            true => self.meters.scrub.speed(now, scrub.done * stripe_len, scrub.to_do * stripe_len),
            false => Speed::default(),
        }
    }

    /// Looks how far all of it is.
    pub(super) fn measure(&mut self, now: Duration) {
        let goes_on = self.life == Life::Open && self.machine.failure().is_none();
        self.meters.note_works(now, &self.machine.progress(), goes_on);
        let Some(machine) = self.machine.scrubbed() else { return };
        let stripe_len = machine.scrub_stripe_len();
        match machine.scrub_status().filter(|scrub| scrub.running) {
            Some(scrub) => {
                let goes_on = goes_on && !scrub.paused;
                self.meters.scrub.note(now, scrub.done * stripe_len, goes_on);
            }
            None => self.meters.scrub = Meter::default(),
        }
    }
}
