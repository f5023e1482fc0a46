//! A member whose tables have numbers, under right checksums, that the array has never written.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{LEVELS, ROWS, UUID, World};
use netraid_block::Op;
use netraid_raid::{
    geometry::Level,
    logged::Event,
    member::{MemberIndex, MemberState},
    stripes::StripePage,
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
            let lie = StripePage { index: 0, counter, round, uncounted: number, entries: vec![] };
            let place = table.slot_offset(0, liar, counter);
            let image = lie.encode(UUID, place);
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
