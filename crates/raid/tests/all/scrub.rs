//! Scrub of an array with a log: every kind of damage is found, laid to the right member, and
//! repaired, so that a second scrub finds nothing; a healthy array is never found wrong.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{CHUNK, LEVELS, ROWS, Trick, UUID, World};
use netraid_block::Op;
use netraid_raid::{
    bytes,
    checkpoint::Checkpoint,
    geometry::Level,
    logged::{Event, ScrubCommand, ScrubEvent, ScrubMember, ScrubOptions, ScrubRefusal},
    member::MemberIndex,
    pages::PAIR_LEN,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

fn runs(usual: u64) -> u64 {
    let runs = std::env::var("NETRAID_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok());
    runs.unwrap_or(usual)
}

fn one_page() -> ScrubMember {
    ScrubMember { wrong_pages: 1, repaired: 1, ..ScrubMember::default() }
}

#[test]
fn a_healthy_array_is_found_right_at_rest_and_with_dirty_blocks() {
    for (level, members) in LEVELS {
        let mut empty = World::empty(level, members);
        let status = empty.scrub();
        assert_eq!((status.wrong(), status.checked_blocks), (0, 0));
        let mut world = World::new(level, members);
        let status = world.scrub();
        assert_eq!((status.wrong(), status.unrepaired()), (0, 0), "{status:?}");
        let blocks = world.geometry.stripes() * u64::from(ROWS) * members as u64;
        assert_eq!(status.checked_blocks, blocks);
        assert!(!world.events.iter().any(|event| matches!(event, Event::Repaired { .. })));
        // What is dirty is not home yet: home is right all the same.
        world.write(3, 1, 251);
        world.write(7, 1, 252);
        world.assert_clean();
        world.read_all();
    }
}

#[test]
fn wrong_and_unreadable_data_is_laid_to_its_member_and_repaired() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (member, offset, ..) = world.home(5);
        world.flip(member, offset + 4000);
        let expected = ScrubMember { wrong_data: 1, repaired: 1, ..ScrubMember::default() };
        world.assert_repairs(member, offset, expected);
        world.bad.insert((member, offset / 4096));
        let expected = ScrubMember { unreadable: 1, repaired: 1, ..ScrubMember::default() };
        world.assert_repairs(member, offset, expected);
    }
}

#[test]
fn wrong_check_blocks_are_laid_to_their_member_and_repaired() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        for at in 0..world.geometry.check_columns() {
            let (member, offset) = world.check(5, at);
            world.flip(member, offset);
            let expected = ScrubMember { wrong_checks: 1, repaired: 1, ..ScrubMember::default() };
            world.assert_repairs(member, offset, expected);
        }
    }
}

#[test]
fn a_check_block_that_agrees_with_its_checksum_and_not_with_the_data_is_made_anew() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let last = world.geometry.check_columns() - 1;
        let (member, offset) = world.check(5, last);
        let (.., stripe, _, row) = world.home(5);
        world.disks[member][offset as usize..offset as usize + 4096].fill(0xee);
        let place = world.sum_layout().place(stripe, row);
        for holder in world.sum_pages().holders(place.page).iter() {
            let (at, mut page) = world.newest_sums(place.page, holder);
            let column = world.geometry.data_columns() + last;
            page.set(place.row, column, bytes::sum(&[0xee; 4096]));
            let image = page.encode(UUID, at);
            world.disks[holder.as_usize()][at as usize..at as usize + 4096].copy_from_slice(&image);
        }
        world.reopen();
        let expected = ScrubMember { wrong_checks: 1, repaired: 1, ..ScrubMember::default() };
        world.assert_repairs(member, offset, expected);
        // It is what the data gives now, also for the next engine.
        world.idle();
        world.reopen();
        world.assert_clean();
        let (lost, ..) = world.home(5);
        world.away.insert(lost);
        world.reopen();
        world.read_all();
    }
}

#[test]
fn as_many_wrong_blocks_in_a_row_as_members_may_be_lost_are_repaired() {
    for (level, members) in [(Level::Raid6, 5), (Level::Raid1, 3)] {
        let mut world = World::new(level, members);
        let (first, offset, stripe, column, _) = world.home(0);
        let second = world.geometry.member_of(stripe, column + 1).as_usize();
        world.flip(first, offset);
        world.flip(second, offset + 1);
        let status = world.scrub();
        assert_eq!((status.wrong(), status.repaired(), status.unrepaired()), (2, 2, 0));
        assert_eq!(status.members[first].repaired + status.members[second].repaired, 2);
        world.assert_clean();
        world.read_all();
    }
}

#[test]
fn what_cannot_be_had_is_told_with_member_and_place_and_left_as_it_is() {
    let mut world = World::new(Level::Raid5, 4);
    let (first, offset, stripe, column, _) = world.home(0);
    let second = world.geometry.member_of(stripe, column + 1).as_usize();
    world.flip(first, offset);
    world.flip(second, offset);
    let before = world.disks.clone();
    for _ in 0..2 {
        let status = world.scrub();
        assert_eq!((status.wrong(), status.repaired(), status.unrepaired()), (2, 0, 2));
        for member in [first, second] {
            let is_told = world.events.iter().any(|event| {
                matches!(event, Event::Scrub(ScrubEvent::Unrepaired { member: named, offset: at, len: 4096, .. })
                    if named.as_usize() == member && *at == offset)
            });
            assert!(is_told, "{:?}", world.events);
        }
        let at = offset as usize;
        assert!((0..4).all(|m| world.disks[m][at..at + 4096] == before[m][at..at + 4096]));
    }
    assert!(world.read(0).is_err(), "and nobody gets it");
}

#[test]
fn a_lost_write_is_found_and_laid_to_the_member_that_lost_it() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (member, offset, ..) = world.home(5);
        world.trick = Some(Trick::Lose(member, world.regions.data.offset, u64::MAX));
        world.write(5, 1, 251);
        world.idle();
        world.trick = None;
        let status = world.scrub();
        let found = status.members[member];
        assert_eq!((found.wrong(), found.repaired, status.wrong()), (1, 1, 1), "{status:?}");
        let (at, ..) = world.home(5);
        assert_eq!((at, world.home(5).1), (member, offset));
        world.assert_clean();
        world.read_all();
    }
}

#[test]
fn a_repair_that_the_device_puts_elsewhere_is_written_once_more() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (member, offset, ..) = world.home(0);
        world.flip(member, offset);
        world.trick = Some(Trick::Misdirect(member, offset, offset + 1, u64::from(CHUNK)));
        let status = world.scrub();
        assert!(world.trick.is_none(), "the repair was written");
        // Where it landed may be a stripe that holds nothing.
        let found = status.members[member];
        assert!((1..=2).contains(&found.wrong()), "{status:?}");
        assert_eq!((found.repaired, found.unrepaired), (found.wrong(), 0), "{status:?}");
        world.assert_clean();
        world.read_all();
    }
}

#[test]
fn a_block_that_the_device_does_not_take_is_told_as_that_and_is_not_lost() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (member, offset, ..) = world.home(0);
        world.flip(member, offset);
        world.trick = Some(Trick::Lose(member, offset, offset + 4096));
        let status = world.scrub();
        let found = status.members[member];
        assert_eq!((found.wrong(), found.repaired, found.unrepaired), (1, 0, 1), "{status:?}");
        let reasons: Vec<&str> = world
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Scrub(ScrubEvent::Unrepaired { reason, .. }) => Some(*reason),
                _ => None,
            })
            .collect();
        assert_eq!(reasons, ["wrong, and stays wrong when it is written again"]);
        world.read_all();
        world.trick = None;
        let status = world.scrub();
        assert_eq!(status.unrepaired(), 0, "{status:?}");
        world.assert_clean();
    }
}

#[test]
fn a_misdirected_write_is_found_where_it_is_missing_and_where_it_landed() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (member, offset, ..) = world.home(4);
        let data = world.regions.data.offset;
        let by = if offset < data + 8 * u64::from(CHUNK) { u64::from(CHUNK) } else { 4096 };
        world.trick = Some(Trick::Misdirect(member, offset, offset + 1, by));
        world.write(4, 1, 251);
        world.idle();
        assert!(world.trick.is_none(), "it was written home in place");
        let status = world.scrub();
        // Where it landed may be a stripe that holds nothing.
        let found = status.members[member];
        assert!((1..=2).contains(&found.wrong()), "{status:?}");
        assert_eq!((found.repaired, status.wrong()), (found.wrong(), found.wrong()));
        world.assert_clean();
        world.read_all();
    }
}

#[test]
fn the_newest_image_of_a_page_of_checksums_is_given_back_to_the_holder_that_lacks_it() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        for (page, holder) in world.all_sum_holders() {
            let (at, _) = world.newest_sums(page, holder);
            world.flip(holder.as_usize(), at + 100);
            // Whether the page is in memory or not.
            if world.rng.random() {
                world.reopen();
            }
            world.assert_repairs(holder.as_usize(), at, one_page());
            // The older slot is of no use any more.
            let (at, _) = world.newest_sums(page, holder);
            let pair = world.sum_pages().offset(page, holder);
            world.flip(holder.as_usize(), pair + (4096 - (at - pair)) + 100);
            world.assert_clean();
        }
    }
}

#[test]
fn a_lost_write_of_a_page_of_checksums_is_laid_to_its_member() {
    let mut world = World::new(Level::Raid5, 4);
    let (_, _, stripe, _, row) = world.home(5);
    let page = world.sum_layout().place(stripe, row).page;
    let holder = world.sum_pages().holders(page).iter().next().unwrap();
    let at = world.sum_pages().offset(page, holder);
    world.trick = Some(Trick::Lose(holder.as_usize(), at, at + PAIR_LEN));
    world.write(5, 1, 251);
    world.idle();
    world.trick = None;
    world.assert_repairs(holder.as_usize(), at, one_page());
}

#[test]
fn checksums_that_all_holders_lost_while_memory_has_them_are_written_again() {
    let mut world = World::new(Level::Raid5, 4);
    let (_, _, stripe, _, row) = world.home(5);
    let page = world.sum_layout().place(stripe, row).page;
    world.read(5).unwrap();
    for holder in world.sum_pages().holders(page).iter() {
        let at = world.sum_pages().offset(page, holder) as usize;
        world.disks[holder.as_usize()][at..at + PAIR_LEN as usize].fill(0);
    }
    let status = world.scrub();
    assert_eq!((status.wrong(), status.repaired(), status.unrepaired()), (2, 2, 0), "{status:?}");
    world.assert_clean();
    world.reopen();
    world.read_all();
}

#[test]
fn checksums_that_nobody_has_are_reported_and_made_anew_only_where_parity_is_trusted() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (page, _) = world.all_sum_holders()[0];
        let holders: Vec<MemberIndex> = world.sum_pages().holders(page).iter().collect();
        for holder in &holders {
            let at = world.sum_pages().offset(page, *holder) as usize;
            world.disks[holder.as_usize()][at..at + PAIR_LEN as usize].fill(0);
        }
        world.reopen();
        let status = world.scrub();
        assert_eq!((status.repaired(), status.new_sums), (0, 0));
        let pages: u64 = status.members.iter().map(|one| one.wrong_pages).sum();
        assert_eq!(pages, holders.len() as u64);
        assert!(status.unrepaired() > pages, "the stripes' blocks, too");
        assert!(world.read(5).is_err());
        // The pages that are written meanwhile do not make it look as if nothing was ever there.
        world.write(world.model.len() - 1, 1, 251);
        world.idle();
        world.reopen();
        assert!(world.read(5).is_err());
        let trusting = ScrubOptions { trust_parity: true, ..ScrubOptions::default() };
        let status = world.scrub_with(trusting);
        assert!(status.new_sums > 0, "{status:?}");
        world.idle();
        world.assert_clean();
        world.read_all();
        world.reopen();
        world.assert_clean();
        world.read_all();
    }
}

#[test]
fn parity_that_is_trusted_is_not_where_a_block_is_wrong() {
    let mut world = World::new(Level::Raid5, 4);
    let (member, offset, ..) = world.home(0);
    for (page, holder) in world.all_sum_holders() {
        let at = world.sum_pages().offset(page, holder) as usize;
        world.disks[holder.as_usize()][at..at + PAIR_LEN as usize].fill(0);
    }
    world.flip(member, offset);
    world.reopen();
    let trusting = ScrubOptions { trust_parity: true, ..ScrubOptions::default() };
    let status = world.scrub_with(trusting);
    assert!(status.new_sums > 0);
    assert!(world.read(0).is_err(), "one of its row's blocks is wrong, and nobody knows which");
    assert_eq!(world.read(1).unwrap(), world.model[1]);
}

#[test]
fn pages_of_the_stripe_table_are_written_again() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let table = world.regions.stripe_pages(&world.geometry);
        let holders: Vec<MemberIndex> = table.holders(0).iter().collect();
        for holder in &holders {
            let at = table.offset(0, *holder);
            world.flip(holder.as_usize(), at + 100);
            world.flip(holder.as_usize(), at + 4096 + 100);
            world.assert_repairs(holder.as_usize(), at, one_page());
        }
        // All of them: memory has the table.
        for holder in &holders {
            let at = table.offset(0, *holder) as usize;
            world.disks[holder.as_usize()][at..at + PAIR_LEN as usize].fill(0);
        }
        let status = world.scrub();
        let count = holders.len() as u64;
        assert_eq!((status.wrong(), status.repaired()), (count, count));
        world.assert_clean();
        world.reopen();
        world.read_all();
    }
}

#[test]
fn labels_and_checkpoints_are_written_again() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        for offset in LABEL_OFFSETS {
            world.flip(1, offset + 50);
            world.assert_repairs(1, offset, one_page());
        }
        // The newest checkpoint; the one before it is of no use any more.
        let slot = |world: &World| {
            let read = |slot: usize| {
                let at = CHECKPOINT_OFFSETS[slot] as usize;
                Checkpoint::decode(&world.disks[2][at..at + 4096], UUID, slot).ok()
            };
            (0..2).max_by_key(|slot| read(*slot).map_or(0, |one| one.counter)).unwrap()
        };
        let newest = CHECKPOINT_OFFSETS[slot(&world)];
        world.flip(2, newest + 50);
        world.assert_repairs(2, newest, one_page());
        let older = CHECKPOINT_OFFSETS[1 - slot(&world)];
        world.flip(2, older + 50);
        world.assert_clean();
        world.reopen();
        world.read_all();
    }
}

#[test]
fn a_damaged_copy_in_the_log_is_laid_to_its_member_and_needed_no_more() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        world.write(5, 1, 251);
        let log = world.regions.log;
        let wanted = [251; 4096];
        let holders: Vec<(usize, u64)> = (0..members)
            .flat_map(|m| (log.offset..log.end()).step_by(4096).map(move |at| (m, at)))
            .filter(|(m, at)| world.disks[*m][*at as usize..*at as usize + 4096] == wanted)
            .collect();
        assert_eq!(holders.len() as u32, world.geometry.tolerance() + 1);
        let (member, at) = holders[1];
        // Its payload; then its head, of another one.
        world.flip(member, at + 9);
        world.assert_repairs(member, at, one_page());
        world.write(5, 1, 252);
        let at = (log.offset..log.end()).step_by(4096);
        let wanted = [252; 4096];
        let at = at
            .into_iter()
            .find(|at| world.disks[member][*at as usize..*at as usize + 4096] == wanted);
        if let Some(at) = at {
            world.flip(member, at - 4096 + 20);
            world.assert_repairs(member, at - 4096, one_page());
        }
        world.reopen();
        world.read_all();
    }
}

#[test]
fn with_a_member_absent_the_others_are_scrubbed_and_its_blocks_are_counted() {
    let mut world = World::new(Level::Raid6, 5);
    let (member, offset, stripe, ..) = world.home(5);
    let absent = world.geometry.member_of(stripe, 0).as_usize();
    let absent = if absent == member { (member + 1) % 5 } else { absent };
    world.away.insert(absent);
    world.machine.handle_gone(MemberIndex(absent as u8), "gone");
    world.settle();
    world.flip(member, offset);
    let status = world.scrub();
    assert_eq!((status.wrong(), status.repaired(), status.unrepaired()), (1, 1, 0), "{status:?}");
    assert_eq!(status.members[member].repaired, 1);
    let blocks = world.geometry.stripes() * u64::from(ROWS);
    assert_eq!(status.members[absent].absent, blocks);
    world.assert_clean();
    world.read_all();
    // With nothing left to compute from: told, with the member that is wrong and the one whose
    // block is out of reach.
    let mut world = World::new(Level::Raid5, 4);
    let (member, offset, ..) = world.home(0);
    let absent = (member + 1) % 4;
    world.away.insert(absent);
    world.machine.handle_gone(MemberIndex(absent as u8), "gone");
    world.settle();
    world.flip(member, offset);
    let status = world.scrub();
    assert_eq!((status.members[member].wrong(), status.members[member].unrepaired), (1, 1));
    assert_eq!(status.repaired(), 0);
}

#[test]
fn a_member_that_fails_while_it_is_scrubbed_is_not_called_wrong() {
    for seed in 0..20 {
        let mut world = World::new(Level::Raid5, 4);
        world.rng = StdRng::seed_from_u64(seed);
        world.events.clear();
        let options = ScrubOptions { stripes_at_once: 4, ..ScrubOptions::default() };
        world.machine.handle_scrub(ScrubCommand::Start(options)).unwrap();
        world.machine.handle_scrub_allowance(u32::MAX);
        for _ in 0..world.rng.random_range(0..60) {
            world.step();
        }
        world.away.insert(2);
        world.machine.handle_gone(MemberIndex(2), "gone");
        world.settle();
        let status = world.ended().expect("it ended");
        assert_eq!((status.wrong(), status.unrepaired()), (0, 0), "seed {seed}: {status:?}");
        assert!(status.is_complete());
        world.read_all();
    }
}

#[test]
fn it_goes_no_further_than_it_is_allowed_and_can_be_paused_resumed_and_stopped() {
    let mut world = World::new(Level::Raid5, 4);
    let refused = |world: &mut World, command| world.machine.handle_scrub(command).unwrap_err();
    for command in [ScrubCommand::Pause, ScrubCommand::Resume, ScrubCommand::Stop] {
        assert_eq!(refused(&mut world, command), ScrubRefusal::NotRunning);
    }
    let start = ScrubCommand::Start(ScrubOptions::default());
    world.machine.handle_scrub(start).unwrap();
    assert_eq!(refused(&mut world, start), ScrubRefusal::Running);
    world.settle();
    let now = |world: &World| world.machine.scrub_status().unwrap();
    assert_eq!((now(&world).running, now(&world).checked_blocks), (true, 0));
    // One for what there is once, one for the checksums' first pages, then stripes.
    world.machine.handle_scrub_allowance(3);
    world.settle();
    let blocks = now(&world).checked_blocks;
    assert!((4 * u64::from(ROWS)..=3 * 4 * u64::from(ROWS)).contains(&blocks), "{blocks}");
    assert_eq!(now(&world).allowance, 0);
    world.machine.handle_scrub(ScrubCommand::Pause).unwrap();
    world.machine.handle_scrub_allowance(100);
    world.settle();
    assert_eq!((now(&world).checked_blocks, now(&world).paused), (blocks, true));
    let next = now(&world).next;
    world.machine.handle_scrub(ScrubCommand::Stop).unwrap();
    world.settle();
    assert!(!now(&world).running && !now(&world).is_complete());
    assert_eq!(world.ended().unwrap().next, next);
    // From there on it is the rest.
    let rest = world.scrub_with(ScrubOptions { from: next, ..ScrubOptions::default() });
    let all = world.scrub().checked_blocks;
    assert_eq!(rest.checked_blocks, all - blocks);
    world.machine.handle_scrub(start).unwrap();
    world.machine.handle_scrub(ScrubCommand::Pause).unwrap();
    world.machine.handle_scrub_allowance(u32::MAX);
    world.settle();
    world.machine.handle_scrub(ScrubCommand::Resume).unwrap();
    world.settle();
    assert!(now(&world).is_complete());
}

#[test]
fn closing_ends_a_scrub() {
    let mut world = World::new(Level::Raid5, 4);
    world.events.clear();
    world.machine.handle_scrub(ScrubCommand::Start(ScrubOptions::default())).unwrap();
    world.machine.handle_scrub_allowance(u32::MAX);
    for _ in 0..30 {
        world.step();
    }
    world.machine.handle_close();
    world.settle();
    assert_eq!(world.events.last(), Some(&Event::Closed));
    assert!(!world.ended().unwrap().is_complete());
    world.reopen();
    world.read_all();
}

#[test]
fn a_healthy_array_is_found_right_while_users_write() {
    for seed in 0..runs(80) / 10 {
        for (level, members) in LEVELS {
            // A log that is looked at in one read, and one that takes several, between which users write.
            let log_blocks = if seed % 2 == 0 { 64 } else { 1024 };
            let mut world = World::with_log(level, members, 8, log_blocks);
            world.rng = StdRng::seed_from_u64(seed);
            let mut scrubs = 0;
            for step in 0..4000 {
                let is_running = world.machine.scrub_status().is_some_and(|status| status.running);
                if !is_running {
                    if let Some(status) = world.ended() {
                        assert_eq!(
                            (status.wrong(), status.unrepaired(), status.new_sums),
                            (0, 0, 0),
                            "seed {seed}, step {step}: {:?}",
                            world.events
                        );
                        scrubs += 1;
                    }
                    world.events.clear();
                    let stripes_at_once = world.rng.random_range(1..5);
                    let options = ScrubOptions { stripes_at_once, ..ScrubOptions::default() };
                    world.machine.handle_scrub(ScrubCommand::Start(options)).unwrap();
                }
                if world.rng.random_range(0..4) == 0 {
                    world.machine.handle_scrub_allowance(1);
                }
                if world.next_user < world.completed.len() as u64 + 6
                    && world.rng.random_range(0..3) == 0
                {
                    let op = match world.rng.random_range(0..8) {
                        0 => Op::WriteZeroes,
                        1 => Op::Read,
                        _ => Op::Write,
                    };
                    let count = if world.rng.random() { 1 } else { world.rng.random_range(1..=8) };
                    let first = world.rng.random_range(0..=world.model.len() - count);
                    let content = world.rng.random();
                    world.begin(op, first, count, content);
                }
                world.step();
            }
            assert!(scrubs > 3, "{scrubs} scrubs ended");
            world.machine.handle_scrub_allowance(u32::MAX);
            world.settle();
            assert!(world.completed.iter().all(|(_, end)| end.is_ok()));
            world.assert_clean();
        }
    }
}

#[test]
fn an_array_opens_whichever_copy_of_what_there_is_once_was_damaged() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        for member in (0..members).cycle().take(members * runs(1) as usize) {
            for offset in LABEL_OFFSETS.into_iter().chain(CHECKPOINT_OFFSETS) {
                // The log has turned, and some of it is not home.
                let count = world.rng.random_range(20..80);
                for _ in 0..count {
                    let block = world.rng.random_range(0..world.model.len());
                    let content = world.rng.random();
                    world.write(block, 1, content);
                }
                world.flip(member, offset + 50);
                world.reopen();
                world.read_all();
                world.settle();
                let status = world.scrub();
                assert_eq!(status.unrepaired(), 0, "{status:?}");
                world.assert_clean();
            }
        }
    }
}
