//! A member whose tables have numbers, under right checksums, that the array has never written.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{LEVELS, ROWS, UUID, World};
use netraid_block::{ErrorKind, Op};
use netraid_raid::{
    bytes,
    checkpoint::Checkpoint,
    format::Format,
    geometry::Level,
    label::Label,
    lack::ROUND_MAX,
    log::{Basis, Batch, HEAD_BLOCKS_MAX, Link, LogKey, Position, Record},
    logged::{Event, ScrubMember},
    member::{MemberIndex, MemberState},
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS},
    stripes::{Entry, Interval, StripePage},
    sums::{SumLayout, SumPage},
};

/// Gives the images of a member's pages of checksums other numbers; how many there were.
fn forge(world: &mut World, member: usize, change: impl Fn(&mut SumPage)) -> usize {
    let layout = SumLayout::new(world.geometry.members(), ROWS);
    let region = world.regions.sums;
    let mut forged = 0;
    for place in (region.offset..region.end()).step_by(4096) {
        let at = place as usize;
        let image = &mut world.disks[member][at..at + 4096];
        if let Ok(mut page) = SumPage::decode(image, layout, UUID, place) {
            change(&mut page);
            image.copy_from_slice(&page.encode(UUID, place));
            forged += 1;
        }
    }
    forged
}

#[test]
fn a_page_of_checksums_whose_number_cannot_be_is_none_and_its_member_is_left_out() {
    let beyond_all_counters = |page: &mut SumPage| page.counter += (1 << 60) - 64;
    let beyond_all_rounds = |page: &mut SumPage| page.round += 10_000;
    for (level, members) in LEVELS {
        for change in [&beyond_all_counters as &dyn Fn(&mut SumPage), &beyond_all_rounds] {
            let mut world = World::new(level, members);
            // All holders of one page have it; any of them will do.
            let liar = (0..members).find(|member| forge(&mut world, *member, change) > 0).unwrap();
            world.reopen();
            for block in 0..world.model.len() {
                world.write(block, 1, 7);
            }
            world.read_all();
            let index = MemberIndex(u8::try_from(liar).unwrap());
            assert_eq!(world.machine.member_state(index), MemberState::Faulty, "{level:?}");
            let told = world.events.iter().any(|event| match event {
                Event::Member { member, reason, .. } => {
                    *member == index && reason.starts_with("left out: its page")
                }
                _ => false,
            });
            assert!(told, "{level:?}: {:?}", world.events);
            // What the array writes it can read, with that member and without it.
            world.idle();
            world.away.insert(liar);
            world.reopen();
            world.read_all();
            world.away.clear();
            world.reopen();
            world.read_all();
            assert_eq!(world.machine.member_state(index), MemberState::InSync, "{level:?}");
            world.assert_clean();
        }
    }
}

/// A number that may just be so is believed; what the array writes on from it is no forged one then.
#[test]
fn numbers_that_may_just_be_so_make_no_forgers_of_those_who_write_on_from_them() {
    let counters = (4080..4120).step_by(3).map(|lead| (lead, 0));
    let rounds = [2040, 2048, 2060, 4030, 4090, 4096, 4100].map(|lead| (0, lead));
    for (lead, rounds) in counters.chain(rounds) {
        // More pages than are kept in memory.
        let mut world = World::with_log(Level::Raid5, 4, 300, 256);
        let count = usize::from(world.geometry.data_columns()) * ROWS as usize;
        let fill = |world: &mut World, content: u8| {
            for stripe in 0..300 {
                let id = world.begin(Op::Write, stripe * count, count, content);
                world.finish(id).unwrap();
            }
            world.model.fill(content);
            world.idle();
        };
        fill(&mut world, 1);
        let beyond = |page: &mut SumPage| {
            page.counter += lead;
            page.round += rounds;
        };
        let liar = (0..4).find(|member| forge(&mut world, *member, beyond) > 0).unwrap();
        for content in 2..5 {
            world.reopen();
            fill(&mut world, content);
            for block in (0..world.model.len()).step_by(7) {
                assert_eq!(
                    world.read(block).unwrap(),
                    content,
                    "lead {lead}, {rounds}, block {block}"
                );
            }
            for honest in (0..4).filter(|member| *member != liar) {
                let index = MemberIndex(u8::try_from(honest).unwrap());
                let state = world.machine.member_state(index);
                assert_eq!(state, MemberState::InSync, "lead {lead}, {rounds}, member {honest}");
            }
        }
    }
}

/// A member says of a page of the stripe table, which has no image yet, that it has had as many as can be told, or
/// one of a round that is far ahead. Whenever the engine dies after that, the array opens again.
#[test]
fn an_image_of_the_stripe_table_that_was_never_written_keeps_no_array_shut() {
    for (level, members) in LEVELS {
        let numbers = [1 << 31, (1 << 31) + 1, u32::MAX - 1, u32::MAX].map(|number| (number, 100));
        let rounds = [64, 2048, 2049, 4096, 4097].map(|round| (1, round));
        for (number, round) in numbers.into_iter().chain(rounds) {
            let mut world = World::empty(level, members);
            let table = world.regions.stripe_pages(&world.geometry);
            let liar = table.holders(0).iter().next().unwrap();
            let counter = u64::from(number);
            // All stripes elsewhere, where nothing is: what it says is not taken, whatever its number.
            let stripes = u32::try_from(world.geometry.stripes()).unwrap();
            let entry =
                |logical| Entry { logical: Some(logical), round: 0, interval: Interval::FIRST };
            let entries = (0..stripes).rev().map(entry).collect();
            let lie = StripePage { index: 0, counter, round, uncounted: number, entries };
            let place = table.slot_offset(0, liar, counter);
            let image = lie.encode(Format::Two, UUID, place);
            let at = place as usize;
            world.disks[liar.as_usize()][at..at + image.len()].copy_from_slice(&image);
            let media = world.media();
            for steps in 0.. {
                world.restore(&media);
                world.reopen();
                world.write(5, 1, 7);
                world.machine.handle_idle();
                let is_short = (0..steps).all(|_| world.step());
                world.under_way.clear();
                world.reopen();
                world.read_all();
                world.idle();
                world.reopen();
                world.read_all();
                if !is_short {
                    break;
                }
            }
        }
    }
}

/// The checkpoint of a member that counts.
fn newest_checkpoint(world: &World, member: usize) -> Checkpoint {
    let slots = CHECKPOINT_OFFSETS.into_iter().enumerate().filter_map(|(slot, offset)| {
        let at = offset as usize;
        Checkpoint::decode(&world.disks[member][at..at + 4096], UUID, slot).ok()
    });
    slots.max_by_key(|one| (one.generation, one.counter)).unwrap()
}

/// What the array writes after a checkpoint that lies about its round can be read and opened, and makes no
/// forgers of those who hold it, whenever the engine dies.
#[test]
fn a_checkpoint_of_a_round_that_never_was_harms_nobody_but_who_says_so() {
    let ahead = [64, 65, 2048, 2049, 4029, 4030, 4094, 4160, 4161].map(|rounds| (true, rounds));
    let behind = [65, 4094, 5000, u32::MAX].map(|rounds| (false, rounds));
    for (is_ahead, rounds) in ahead.into_iter().chain(behind) {
        for steps in [0, 3, 10, 30, 100, 1000, 100_000] {
            // More pages of checksums than are kept in memory.
            let mut world = World::with_log(Level::Raid5, 4, 300, 256);
            let count = usize::from(world.geometry.data_columns()) * ROWS as usize;
            for stripe in (0..300).step_by(9) {
                world.write(stripe * count, count, stripe as u8);
            }
            world.idle();
            let newest = newest_checkpoint(&world, 1);
            let round = newest.round.saturating_add(rounds).min(ROUND_MAX);
            let lie = match is_ahead {
                true => Checkpoint { counter: newest.counter + 1, round, ..newest },
                false => Checkpoint {
                    counter: newest.counter - 1,
                    generation: newest.generation + 1,
                    round,
                    ..newest
                },
            };
            let at = lie.offset() as usize;
            let image = lie.encode(UUID);
            world.disks[1][at..at + image.len()].copy_from_slice(&image);
            for turn in 0..3 {
                world.reopen();
                for stripe in (0..300).step_by(7) {
                    world.write(stripe * count + turn, 1, turn as u8 + 100);
                }
                world.machine.handle_idle();
                let read = |block| (block, world.model[block]);
                let wanted: Vec<_> = (0..world.model.len()).step_by(61).map(read).collect();
                let reads: Vec<(u64, u8)> = wanted
                    .into_iter()
                    .map(|(block, content)| (world.begin(Op::Read, block, 1, 0), content))
                    .collect();
                let is_whole = turn > 0 || !(0..steps).all(|_| world.step());
                if is_whole {
                    for (id, content) in reads {
                        let data = world.finish(id).unwrap().to_contiguous();
                        assert!(data.iter().all(|byte| *byte == content), "{is_ahead} {rounds}");
                    }
                }
                world.under_way.clear();
                for honest in [0, 2, 3] {
                    let state = world.machine.member_state(MemberIndex(honest));
                    assert_eq!(state, MemberState::InSync, "{is_ahead} {rounds}: {honest}");
                }
            }
            world.reopen();
            world.read_all();
        }
    }
}

/// A page of the stripe table that was never written has no image of a round that is over: what one of a later round
/// says is not true.
#[test]
fn an_image_of_a_page_that_was_never_written_takes_no_stripe_away() {
    let mut world = World::with_log(Level::Raid5, 4, 300, 64);
    for block in 0..40 {
        world.write(block, 1, block as u8 + 1);
    }
    world.idle();
    let table = world.regions.stripe_pages(&world.geometry);
    let liar = table.holders(1).iter().next().unwrap();
    let round = newest_checkpoint(&world, 0).round + 1;
    let entry = |logical| Entry { logical: Some(logical), round: 0, interval: Interval::FIRST };
    let entries = (0..40).map(entry).collect();
    let lie = StripePage { index: 1, counter: 1, round, uncounted: 1, entries };
    let place = table.slot_offset(1, liar, 1);
    let image = lie.encode(Format::Two, UUID, place);
    let at = place as usize;
    world.disks[liar.as_usize()][at..at + image.len()].copy_from_slice(&image);
    for content in [100, 200] {
        world.reopen();
        world.read_all();
        world.write(7, 1, content);
        world.idle();
    }
    world.reopen();
    world.read_all();
    world.assert_clean();
}

/// Where a position of the log is on each member.
fn place_in_log(world: &World, at: Position) -> usize {
    let log = world.regions.log;
    (log.offset + at.0 * 4096 % log.len) as usize
}

/// What members have of the log, and what the next batch would follow.
fn log_of(world: &World, key: &LogKey) -> (Vec<Batch>, Link) {
    let mut link = newest_checkpoint(world, 0).tail;
    let mut batches = Vec::new();
    loop {
        let place = place_in_log(world, link.end);
        let heads = world.disks.iter().flat_map(|disk| {
            (1..=HEAD_BLOCKS_MAX as usize)
                .filter_map(move |blocks| disk.get(place..place + blocks * 4096))
        });
        let mut found = heads.filter_map(|head| Batch::decode(head, link.end, key).ok());
        let Some((next, crc)) = found.find(|(batch, _)| batch.previous == link) else {
            return (batches, link);
        };
        link = Link { end: next.end(), crc };
        batches.push(next);
    }
}

/// What batches of an array's log are made with, and the generation that writes it.
fn writer_of(world: &World) -> (LogKey, u64) {
    let at = LABEL_OFFSETS[0] as usize;
    let label = Label::decode(&world.disks[0][at..at + 4096], 0).unwrap();
    let log = label.log.unwrap();
    let generation = log.beginnings.as_slice().last().unwrap().generation;
    (LogKey { array_uuid: UUID, salt: log.salt }, generation)
}

/// Gives a member a batch behind the end of the log, which says that all before it was stable.
fn forge_batch(world: &mut World, liar: usize, records: Vec<Record>) {
    let (key, generation) = writer_of(world);
    let (_, end) = log_of(world, &key);
    let lie = Batch {
        generation,
        position: end.end,
        previous: end,
        stable_upto: end.end,
        acked_upto: end.end,
        records,
    };
    let image = lie.encode(&key).0;
    let place = place_in_log(world, end.end);
    world.disks[liar][place..place + image.len()].copy_from_slice(&image);
}

/// An array whose volume holds something else in each stripe, all of it at home, and nothing in the log.
fn world_of_stripes(level: Level, members: usize) -> (World, usize) {
    let mut world = World::with_log(level, members, 8, 256);
    let count = usize::from(world.geometry.data_columns()) * ROWS as usize;
    for stripe in 0..8 {
        world.write(stripe * count, count, stripe as u8 + 1);
    }
    world.idle();
    world.reopen();
    (world, count)
}

/// A member has a batch behind the end of the log whose PARITY names DATA that is not in the log.
#[test]
fn a_batch_that_nobody_could_bring_home_keeps_no_array_shut() {
    for (level, members) in LEVELS {
        for rounds in [1, 2055, 2056, 2057, 4032, 5000] {
            let mut world = World::with_log(level, members, 8, 256);
            for block in 0..20 {
                world.write(block, 1, block as u8 + 1);
            }
            world.idle();
            world.reopen();
            world.write(3, 1, 99);
            let (key, generation) = writer_of(&world);
            let (_, end) = log_of(&world, &key);
            assert!(end.end > newest_checkpoint(&world, 0).tail.end, "a write is in the log");
            let is_copies = matches!(level, Level::Raid1 | Level::Raid10);
            let checks = if is_copies { 0 } else { world.geometry.tolerance() as usize };
            let check = vec![7; 4096];
            let round = newest_checkpoint(&world, 0).round + rounds;
            let position = Some(Position(0));
            let parity = Record::Parity {
                stripe: 0,
                row: 0,
                round,
                checks: vec![bytes::sum(&check); checks],
                basis: vec![Basis { column: 0, crc: bytes::sum(&check), position, zeroes: false }],
            };
            let lie = Batch {
                generation,
                position: end.end,
                previous: end,
                stable_upto: end.end,
                acked_upto: end.end,
                records: vec![parity],
            };
            let mut image = lie.encode(&key).0;
            (0..checks).for_each(|_| image.extend_from_slice(&check));
            let place = place_in_log(&world, end.end);
            let liar = members - 1;
            world.disks[liar][place..place + image.len()].copy_from_slice(&image);
            for _ in 0..3 {
                world.reopen();
                world.read_all();
                world.write(4, 1, 100);
                world.idle();
            }
            world.away.insert(liar);
            world.reopen();
            world.read_all();
        }
    }
}

/// Power fails, and what was written of a stripe is lost everywhere, while its REMAP is in the log. A member says that
/// it was stable.
#[test]
fn one_member_alone_makes_no_stripe_count_that_is_not_there() {
    for (level, members) in LEVELS.into_iter().chain([(Level::Raid1, 2)]) {
        for liar in 0..members {
            let (mut world, count) = world_of_stripes(level, members);
            let data = world.regions.data.offset as usize;
            let before = world.disks.clone();
            let id = world.begin(Op::Write, 3 * count, count, 99);
            world.finish(id).unwrap();
            for (disk, before) in world.disks.iter_mut().zip(&before) {
                assert_ne!(disk[data..], before[data..], "{level:?}");
                disk[data..].copy_from_slice(&before[data..]);
            }
            forge_batch(&mut world, liar, Vec::new());
            let (media, model) = (world.media(), world.model.clone());
            for steps in (0..).step_by(7) {
                world.restore(&media);
                world.model.clone_from(&model);
                let is_short = world.crash_in_opening(steps);
                world.reopen();
                world.read_all();
                let state = world.machine.member_state(MemberIndex(liar as u8));
                assert!(steps > 0 || state == MemberState::Faulty, "{level:?}: {state:?}");
                world.write(4, 1, 100);
                world.idle();
                world.assert_clean();
                if !is_short {
                    break;
                }
            }
        }
    }
}

/// That a REMAP was stable is on one member alone: the batch that says so was cut short. More blocks cannot be read than
/// the level bears: that is an error, and nobody reads what was there before.
#[test]
fn what_was_stable_is_not_what_was_before_it_where_too_much_of_it_is_lost() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let (mut world, count) = world_of_stripes(level, members);
        world.write(3 * count, count, 99);
        let id = world.begin(Op::Flush, 0, 0, 0);
        world.finish(id).unwrap();
        // Without the second copy.
        let before = world.disks.clone();
        world.write(0, 1, 100);
        let (first, last) = {
            let log = world.regions.log;
            (log.offset as usize, log.end() as usize)
        };
        let holders = (0..members)
            .filter(|one| world.disks[*one][first..last] != before[*one][first..last])
            .collect::<Vec<_>>();
        for holder in &holders[1..] {
            world.disks[*holder][first..last].copy_from_slice(&before[*holder][first..last]);
        }
        let homes =
            (3 * count..4 * count).step_by(ROWS as usize).map(|block| (block, world.home(block)));
        let (block, home) = homes.into_iter().find(|(_, home)| home.0 != holders[0]).unwrap();
        let others = (0..members).filter(|one| *one != home.0 && *one != holders[0]);
        let bad = others.take(world.geometry.tolerance() as usize).chain([home.0]);
        bad.for_each(|one| {
            world.bad.insert((one, home.1 / 4096));
        });
        world.reopen();
        assert_eq!(world.read(block).unwrap_err().kind(), ErrorKind::Redundancy, "{level:?}");
        for block in (3 * count..4 * count).filter(|one| one % ROWS as usize != 0) {
            assert_eq!(world.read(block).unwrap(), 99, "{level:?}");
        }
    }
}

/// Where the REMAP of a stripe is in the log.
fn remap_of(world: &World, logical: u64) -> Position {
    let (key, _) = writer_of(world);
    let (batches, _) = log_of(world, &key);
    let records = batches.iter().flat_map(Batch::records_at);
    let is_it =
        |record: &Record| matches!(record, Record::Remap { stripe, .. } if *stripe == logical);
    records.filter(|(_, record)| is_it(record)).map(|(position, _)| position).last().unwrap()
}

/// A member says behind the end of the log that an opening dropped a REMAP, which was stable.
#[test]
fn what_was_dropped_is_said_where_a_generation_begins_and_nowhere_else() {
    for (level, members) in LEVELS.into_iter().chain([(Level::Raid1, 2)]) {
        let (mut world, count) = world_of_stripes(level, members);
        world.write(3 * count, count, 99);
        let id = world.begin(Op::Flush, 0, 0, 0);
        world.finish(id).unwrap();
        let dropped = vec![(remap_of(&world, 3), 3)];
        forge_batch(&mut world, members - 1, vec![Record::Open { dropped }]);
        for _ in 0..3 {
            world.reopen();
            world.read_all();
        }
        world.idle();
        world.reopen();
        world.read_all();
        world.assert_clean();
    }
}

/// All members are of numbers behind which there are not enough that can be read: nothing is written.
#[test]
fn no_array_goes_on_to_numbers_that_nobody_could_read() {
    let (lead, most) = (1 << 32, 1 << 60);
    type Change = fn(&mut Checkpoint, u64);
    let cases: [(&str, u64, Change); 3] = [
        ("checkpoint", most - lead, |one, to| one.counter = to),
        ("round", (1 << 31) - (1 << 28) - 3, |one, to| one.round = to as u32),
        ("log position", most - (1 << 48), |one, to| one.tail.end = Position(to)),
    ];
    for (what, last, change) in cases {
        for to in [last, last + 1] {
            let mut world = World::empty(Level::Raid5, 4);
            world.idle();
            let mut newest = newest_checkpoint(&world, 0);
            change(&mut newest, to);
            for disk in &mut world.disks {
                for slot in CHECKPOINT_OFFSETS {
                    disk[slot as usize..slot as usize + 4096].fill(0);
                }
                let at = newest.offset() as usize;
                disk[at..at + 4096].copy_from_slice(&newest.encode(UUID));
            }
            let before = world.disks.clone();
            world.crash_in_opening(100_000);
            let text = world.machine.failure().map(|error| error.to_string()).unwrap_or_default();
            let is_refused = text.contains(&format!("is of {what} "));
            assert_eq!(is_refused, to > last, "{what} {to}: {text}");
            assert_eq!(world.disks == before, to > last, "{what} {to}");
        }
    }
}

/// A member has a later image of a page of checksums than was ever written, beside the newest one or over it, while memory
/// has the page.
#[test]
fn a_page_of_checksums_that_was_never_written_is_laid_to_the_member_that_has_it() {
    for (level, members) in LEVELS {
        for lead in [1, 2, 3] {
            let mut world = World::new(level, members);
            world.write(0, 1, 7);
            world.idle();
            let (page, holder) = world.all_sum_holders()[0];
            let (_, mut newest) = world.newest_sums(page, holder);
            newest.counter += lead;
            let place = world.sum_pages().slot_offset(page, holder, newest.counter);
            let at = place as usize;
            let liar = holder.as_usize();
            world.disks[liar][at..at + 4096].copy_from_slice(&newest.encode(UUID, place));
            let wrong = ScrubMember { wrong_pages: 1, repaired: 1, ..ScrubMember::default() };
            world.assert_repairs(liar, place, wrong);
            world.reopen();
            world.read_all();
        }
    }
}

/// Mirrors with some blocks, all of them at home.
fn mirrors_at_home(members: usize) -> World {
    let mut world = World::with_log(Level::Raid1, members, 8, 256);
    for block in 0..20 {
        world.write(block, 1, block as u8 + 1);
    }
    world.idle();
    world.reopen();
    world.idle();
    world
}

/// What the volume held is there, also after what the array writes then.
fn open_and_use_twice(world: &mut World) {
    for _ in 0..2 {
        world.reopen();
        world.read_all();
        world.write(4, 1, 100);
        world.idle();
    }
}

/// One of several mirrors has the next checkpoint, as if it had been under way, whose log begins at a true end of a
/// batch, at the log's end, or where no batch ever was.
#[test]
fn the_next_checkpoint_of_one_mirror_takes_nothing_away_that_is_in_the_log_alone() {
    for (members, lead) in (3..=4).flat_map(|members| (0..6).map(move |lead| (members, lead))) {
        for liar in [0, members - 1] {
            let mut world = mirrors_at_home(members);
            let (key, _) = writer_of(&world);
            let base = newest_checkpoint(&world, liar);
            let mut tail = base.tail;
            for block in 0..5 {
                world.write(block, 1, 90 + block as u8);
                if block <= lead {
                    tail = log_of(&world, &key).1;
                }
            }
            if lead == 5 {
                tail = Link { end: Position(tail.end.0 + 3), crc: 7 };
            }
            let lie = Checkpoint { counter: base.counter + 1, round: base.round + 1, tail, ..base };
            let at = lie.offset() as usize;
            world.disks[liar][at..at + 4096].copy_from_slice(&lie.encode(UUID));
            open_and_use_twice(&mut world);
            world.assert_clean();
        }
    }
}

/// One of several mirrors has the checkpoint before the newest, as if a later opening had written it: of a later round,
/// or with a log that begins later.
#[test]
fn the_checkpoint_before_the_newest_of_one_mirror_takes_nothing_away() {
    for (members, rounds, is_later) in [(3, 65, false), (3, 0, true), (4, 65, true), (3, 0, false)]
    {
        for liar in [0, members - 1] {
            let mut world = mirrors_at_home(members);
            for block in 0..5 {
                world.write(block, 1, 90 + block as u8);
            }
            let (key, _) = writer_of(&world);
            let newest = newest_checkpoint(&world, liar);
            let lie = Checkpoint {
                counter: newest.counter - 1,
                generation: newest.generation + 1,
                round: newest.round + rounds,
                tail: if is_later { log_of(&world, &key).1 } else { newest.tail },
                ..newest
            };
            let at = lie.offset() as usize;
            world.disks[liar][at..at + 4096].copy_from_slice(&lie.encode(UUID));
            open_and_use_twice(&mut world);
            for honest in (0..members).filter(|one| *one != liar) {
                let state = world.machine.member_state(MemberIndex(honest as u8));
                assert_eq!(state, MemberState::InSync, "member {honest} of {members}");
            }
            world.assert_clean();
        }
    }
}

/// A batch behind the end of the log, whose PARITY is of the last round that is believed, is adopted, as a write that was
/// under way. What the array writes after that is believed, too, whenever it dies.
#[test]
fn rounds_that_go_on_from_a_forged_one_are_no_forged_ones() {
    for (level, members) in LEVELS {
        let is_copies = matches!(level, Level::Raid1 | Level::Raid10);
        for (rounds, steps) in [2056, 2058]
            .into_iter()
            .flat_map(|rounds| (0..80).step_by(3).map(move |steps| (rounds, steps)))
        {
            let mut world = World::with_log(level, members, 8, 256);
            for block in 0..20 {
                world.write(block, 1, block as u8 + 1);
            }
            world.idle();
            world.reopen();
            let checks = if is_copies { 0 } else { world.geometry.tolerance() as usize };
            let round = newest_checkpoint(&world, 0).round + rounds;
            let block = vec![7; 4096];
            let checks = vec![bytes::sum(&block); checks];
            let count = checks.len();
            let parity = Record::Parity { stripe: 7, row: 0, round, checks, basis: Vec::new() };
            forge_batch(&mut world, members - 1, vec![parity]);
            let (key, _) = writer_of(&world);
            let end = place_in_log(&world, log_of(&world, &key).1.end);
            world.disks[members - 1][end - count * 4096..end].fill(7);
            for turn in 0..2 {
                world.reopen();
                for block in 0..10 {
                    world.write(block, 1, 100 + turn);
                }
                let id = world.begin(Op::Flush, 0, 0, 0);
                world.finish(id).unwrap();
                world.machine.handle_idle();
                (0..steps).all(|_| world.step());
                world.under_way.clear();
            }
            world.reopen();
            world.read_all();
            world.assert_clean();
        }
    }
}
