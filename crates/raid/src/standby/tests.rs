//! When an engine that stands by tries to open the array, and when it does not.

use alloc::{string::ToString as _, vec};

use super::*;
use crate::{
    fencing::key_of_holder,
    geometry::Level,
    label::{Holder, tests::sample},
    member::MemberState,
};

const SECOND: Duration = Duration::from_secs(1);
const ENGINE: [u8; 16] = [5; 16];

fn label(level: Level, members: usize, closure: Closure) -> Label {
    let holder = Holder { engine_id: ENGINE, name: "first".into(), ..Holder::default() };
    Label { closure, holder, ..sample(level, members) }
}

/// The key of the holder's engine in one of its runs.
fn key(label: &Label, run: u64) -> u64 {
    key_of_holder(&label.array_uuid, &label.holder) | run << 8 | 1
}

/// Members, and an engine that stands by.
struct World {
    standby: Standby,
    now: Duration,
    /// By member; none of one that cannot be read.
    members: Vec<Option<Reading>>,
}

impl World {
    fn of(label: &Label) -> Self {
        let beat = Heartbeat { engine: ENGINE, generation: label.generation, counter: 1 };
        let reading = |index: u8| Reading {
            label: Box::new(Label { index: MemberIndex(index), ..label.clone() }),
            heartbeat: Some(beat),
            keys: Some(vec![key(label, 1)]),
        };
        let members = (0..label.geometry.members()).map(|index| Some(reading(index)));
        let members: Vec<Option<Reading>> = members.collect();
        let now = Duration::from_secs(100);
        let standby = Standby::new((members.len(), 0), AFTER_USUAL, 0, now);
        Self { standby, now, members }
    }

    fn open() -> Self {
        Self::of(&label(Level::Raid5, 3, Closure::Open))
    }

    fn each(mut self, change: impl Fn(usize, &mut Reading)) -> Self {
        for (at, reading) in self.members.iter_mut().enumerate() {
            reading.iter_mut().for_each(|reading| change(at, reading));
        }
        self
    }

    fn beat(&mut self, at: usize) {
        if let Some(Reading { heartbeat: Some(beat), .. }) = &mut self.members[at] {
            beat.counter += 1;
        }
    }

    /// All members are read; the attempt that is to be made then.
    fn second(&mut self) -> Option<Attempt> {
        self.now += SECOND;
        for (at, reading) in self.members.iter().enumerate() {
            let Some(reading) = reading.clone() else { continue };
            self.standby.handle_reading(self.now, (at, self.now), reading);
        }
        self.standby.poll(self.now)
    }

    /// After how many seconds an attempt is made; none in a minute.
    fn attempt(&mut self) -> Option<(u32, Attempt)> {
        (1..=60).find_map(|seconds| self.second().map(|attempt| (seconds, attempt)))
    }

    fn silent(&self) -> Silent {
        let label = &self.members[0].as_ref().unwrap().label;
        let keys = keys_of_silent(&label.array_uuid, &label.holder, [key(label, 1)].iter());
        let mut heartbeats = [0; MEMBERS_MAX];
        for (place, reading) in heartbeats.iter_mut().zip(&self.members) {
            *place = reading.as_ref().and_then(|it| it.heartbeat).map_or(0, |beat| beat.digest());
        }
        let (generation, epoch) = (label.generation, label.epoch);
        Silent { engine: ENGINE, generation, epoch, keys, heartbeats }
    }
}

#[test]
fn an_engine_is_taken_over_when_its_heartbeats_have_stopped_for_the_time() {
    let mut world = World::open();
    for _ in 0..30 {
        (0..3).for_each(|at| world.beat(at));
        assert_eq!(world.second(), None);
    }
    let silent = Some(world.silent());
    assert_eq!(world.attempt(), Some((5, Attempt { silent })));
}

#[test]
fn one_member_on_which_heartbeats_go_on_is_enough_to_be_alive() {
    let mut world = World::open();
    for _ in 0..60 {
        world.beat(2);
        assert_eq!(world.second(), None);
    }
    assert!(matches!(world.standby.outlook(world.now), Outlook::Alive { .. }));
}

#[test]
fn a_newer_label_or_another_engine_begins_the_judgement_anew() {
    let mut world = World::open();
    (0..4).for_each(|_| assert_eq!(world.second(), None));
    world = world.each(|_, reading| reading.label.epoch += 1);
    (0..5).for_each(|_| assert_eq!(world.second(), None));
    world = world.each(|_, reading| {
        (reading.label.generation, reading.label.holder.engine_id) = (99, [6; 16]);
        reading.heartbeat = Some(Heartbeat { engine: [6; 16], generation: 99, counter: 4 });
    });
    (0..5).for_each(|_| assert_eq!(world.second(), None));
    let found = world.second().and_then(|attempt| attempt.silent);
    assert_eq!(found.map(|silent| (silent.engine, silent.generation)), Some(([6; 16], 99)));
}

#[test]
fn a_closed_array_is_opened_at_once_and_taken_over_from_nobody() {
    let mut world = World::of(&label(Level::Raid5, 3, Closure::Clean));
    assert_eq!(world.second(), Some(Attempt { silent: None }));
    world.standby.handle_failed(world.now);
    assert_eq!(world.attempt(), Some((5, Attempt { silent: None })), "attempts are bounded");
}

#[test]
fn time_in_which_this_process_stood_still_does_not_count() {
    let mut world = World::open();
    (0..5).for_each(|_| assert_eq!(world.second(), None));
    // A reading from before the standstill is taken after it, and the engine goes on meanwhile.
    let stale = world.members[0].clone().unwrap();
    let begun = world.now;
    world.now += Duration::from_secs(600);
    world.standby.handle_reading(world.now, (0, begun), stale);
    assert_eq!(world.standby.poll(world.now), None);
    assert_eq!(world.attempt().map(|(seconds, _)| seconds), Some(6));
}

#[test]
fn a_reading_that_takes_long_shows_what_was_when_it_began() {
    let mut world = World::open();
    assert_eq!(world.second(), None);
    let first_read = world.now;
    for _ in 0..8 {
        world.now += SECOND;
        for at in 0..3 {
            // What comes now was read before anything could be silent.
            let reading = world.members[at].clone().unwrap();
            world.standby.handle_reading(world.now, (at, first_read + SECOND), reading);
        }
        assert_eq!(world.standby.poll(world.now), None);
    }
}

#[test]
fn who_cannot_be_read_says_nothing_and_enough_must_be_read() {
    let mut world = World::open();
    world.members[2] = None;
    assert_eq!(world.attempt().map(|(seconds, _)| seconds), Some(6));
    // One that comes and goes, and shows nothing new, is no sign of life.
    let mut world = World::open();
    let flaps = world.members[2].clone();
    let found = (1..=20).find_map(|second| {
        world.members[2] = flaps.clone().filter(|_| second % 3 == 0);
        world.second().map(|_| second)
    });
    assert_eq!(found, Some(8));
    let mut world = World::open();
    (world.members[1], world.members[2]) = (None, None);
    assert_eq!(world.attempt(), None);
    assert!(matches!(world.standby.outlook(world.now), Outlook::Unreadable { .. }));
    // A member that was set aside holds nothing of the array.
    let mut aside = label(Level::Raid5, 3, Closure::Open);
    aside.members[0].state = MemberState::Faulty;
    let mut world = World::of(&aside);
    world.members[1] = None;
    assert_eq!(world.attempt(), None);
}

#[test]
fn an_engine_without_heartbeats_is_never_judged_by_time() {
    let of_another = |_: usize, reading: &mut Reading| {
        reading.heartbeat = Some(Heartbeat { engine: [8; 16], generation: 2, counter: 7 });
    };
    let mut world = World::open().each(of_another);
    // Its lock may prove that it is dead.
    assert_eq!(world.attempt(), Some((6, Attempt { silent: None })));
    let outlook = world.standby.outlook(world.now);
    assert!(matches!(outlook, Outlook::NoHeartbeats { .. }), "{outlook:?}");
    let mut world = World::open().each(|_, reading| reading.heartbeat = None);
    assert_eq!(world.attempt(), Some((6, Attempt { silent: None })));
}

#[test]
fn who_could_go_on_where_it_cannot_be_shut_out_is_not_taken_over() {
    let without = |members: &'static [usize]| {
        move |at: usize, reading: &mut Reading| {
            reading.keys = reading.keys.take().filter(|_| !members.contains(&at));
        }
    };
    for (level, count, members, is_taken) in [
        (Level::Raid5, 3, &[0][..], true),
        (Level::Raid5, 3, &[0, 1], false),
        (Level::Raid1, 2, &[1], false),
        (Level::Raid1, 2, &[], true),
    ] {
        let mut world = World::of(&label(level, count, Closure::Open)).each(without(members));
        let (seconds, attempt) = world.attempt().unwrap();
        assert_eq!((seconds, attempt.silent.is_some()), (6, is_taken), "{level:?} {members:?}");
    }
    // Half of a mirror that cannot be read may go on elsewhere.
    let mut world = World::of(&label(Level::Raid1, 2, Closure::Open));
    world.members[1] = None;
    assert_eq!(world.attempt().map(|(_, attempt)| attempt.silent), Some(None));
}

#[test]
fn what_is_known_is_told_once_and_what_cannot_be_read_yet_is_not_told() {
    let mut world = World::open();
    assert_eq!(world.standby.news(world.now), None, "nothing was read yet");
    world.second();
    let news = world.standby.news(world.now).unwrap();
    assert_eq!(news.to_string(), "array 'tank' is open on 'first' (generation 3)");
    assert_eq!((news.word(), news.holder(), news.name()), ("alive", Some("first"), Some("tank")));
    world.second();
    assert_eq!(world.standby.news(world.now), None);
    world.attempt();
    assert!(matches!(world.standby.news(world.now), Some(Outlook::Silent { .. })));
    // A standstill, after which it is not known yet whether the engine is alive.
    world.now += Duration::from_secs(60);
    world.second();
    assert_eq!(world.standby.news(world.now), None);
    (0..3).for_each(|at| world.beat(at));
    world.second();
    assert!(matches!(world.standby.news(world.now), Some(Outlook::Alive { .. })));
    world.members.fill(None);
    for _ in 0..4 {
        world.second();
    }
    assert_eq!(world.standby.news(world.now), Some(Outlook::Unreadable { name: None }));
}

#[test]
fn two_that_stand_by_do_not_try_at_the_same_time_again_and_again() {
    let again = |random: u64| {
        let mut standby = Standby::new((3, 0), AFTER_USUAL, random, SECOND);
        standby.handle_failed(SECOND);
        standby.next_attempt
    };
    assert!(again(1) < again(900) && again(u64::MAX) <= SECOND + 2 * AFTER_USUAL);
    let standby = Standby::new((3, 0), Duration::ZERO, 0, SECOND);
    assert_eq!(standby.after, AFTER_MIN);
}

#[test]
fn an_engine_of_the_same_lock_that_was_started_anew_begins_the_judgement_anew() {
    let mut world = World::open();
    (0..5).for_each(|_| assert_eq!(world.second(), None));
    world = world.each(|at, reading| {
        let again = key(&reading.label, 2);
        reading.keys.iter_mut().filter(|_| at == 1).for_each(|keys| *keys = vec![again]);
    });
    let (seconds, attempt) = world.attempt().unwrap();
    let [first, second] = [1, 2].map(|run| key(&world.members[0].as_ref().unwrap().label, run));
    assert_eq!((seconds, attempt.silent.unwrap().keys[..3].to_vec()), (6, vec![first, second, 0]));
    // Who tries to take over, and only reads, is none.
    let mut world = World::open();
    let strangers = (1..=10).find_map(|run: u64| {
        for reading in world.members.iter_mut().flatten() {
            reading.keys.iter_mut().for_each(|keys| keys.push(0x4e52_cccc_cc00_0001 + (run << 8)));
        }
        world.second().map(|_| run)
    });
    assert_eq!(strangers, Some(6));
}

#[test]
fn devices_that_are_read_slowly_are_judged_all_the_same() {
    for (took, is_judged) in [(2, true), (7, true), (60, false)] {
        let took = Duration::from_secs(took);
        let mut world = World::open();
        let mut found = None;
        for _ in 0..20 {
            let begun = world.now + SECOND;
            // The process itself is asked all the time.
            while world.now < begun + took {
                world.now += SECOND;
                found = found.or(world.standby.poll(world.now));
            }
            for (at, reading) in world.members.iter().enumerate() {
                let reading = reading.clone().unwrap();
                world.standby.handle_reading(world.now, (at, begun), reading);
            }
            found = found.or(world.standby.poll(world.now));
        }
        assert_eq!(found.is_some(), is_judged, "{took:?}");
    }
}

#[test]
fn a_device_of_another_array_and_one_that_the_others_contradict_decide_nothing() {
    let mut world = World::open();
    let mut foreign = world.members[0].clone().unwrap();
    (foreign.label.array_uuid, foreign.label.generation) = ([7; 16], 99);
    world.members.push(Some(foreign));
    world.standby = Standby::new((4, 0), AFTER_USUAL, 0, world.now);
    let found = (1..=20u32).find_map(|second| {
        // It changes all the time.
        world.members[3].as_mut().unwrap().label.epoch += 1;
        world.second().map(|attempt| (second, attempt.silent.is_some()))
    });
    assert_eq!(found, Some((6, true)));

    let mut world = World::of(&label(Level::Raid6, 4, Closure::Open));
    let found = (1..=20u32).find_map(|second| {
        let liar = &mut world.members[3].as_mut().unwrap().label;
        (liar.generation, liar.epoch) = (1 << 40, u64::from(second));
        world.second().map(|attempt| (second, attempt.silent.is_some()))
    });
    assert_eq!(found, Some((6, true)));
}

#[test]
fn a_spare_that_took_a_place_counts_and_the_device_before_it_does_not() {
    let mut world = World::open();
    let former = world.members[2].clone();
    world = world.each(|_, reading| {
        reading.label.members[2].uuid = [77; 16];
        reading.label.epoch += 1;
    });
    let spare = world.members[2].take();
    world.members.extend([former, spare]);
    world.members[1] = None;
    world.standby = Standby::new((5, 2), AFTER_USUAL, 0, world.now);
    assert_eq!(world.attempt().map(|(_, attempt)| attempt.silent.is_some()), Some(true));
    // Two of three, of which one is the device that was replaced.
    world.members[4] = None;
    world.standby = Standby::new((5, 2), AFTER_USUAL, 0, world.now);
    assert_eq!(world.attempt(), None);
    assert!(matches!(world.standby.outlook(world.now), Outlook::Unreadable { .. }));
}
