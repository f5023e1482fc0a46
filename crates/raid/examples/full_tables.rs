//! Makes members of a large array with a log, as sparse files: labels, a checkpoint, and the stripe table of a volume that
//! was written whole, each logical stripe in the physical one of the same number. Nothing else is written, and no space
//! is reserved: what is measured is how long such an array takes to be opened, and how much memory.
//!
//! `cargo run --release -p netraid-raid --example full_tables -- LEVEL TIB FILE...`, a file for each member.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for one measurement"
)]

use std::{env, fs::File, os::unix::fs::FileExt};

use netraid_raid::{
    checkpoint::Checkpoint,
    format::{Format, Image, format},
    geometry::Level,
    label::Uuid,
    regions::{CHECKPOINT_OFFSETS, Wish, plan_logged, usual_chunk},
    stripes::{Entry, Interval, StripePage},
};

const UUID: Uuid = *b"an array's uuid.";

fn main() {
    let mut args = env::args().skip(1);
    let level = args.next().and_then(|text| Level::from_number(text.parse().ok()?));
    let level = level.expect("a level");
    let tib: u64 = args.next().and_then(|text| text.parse().ok()).expect("TiB of a member");
    let paths: Vec<String> = args.collect();
    let (capacity, members) = (tib << 40, paths.len());
    let chunk_len = usual_chunk(level, members, capacity, 2 << 20, true);
    let wish = Wish { level, members, chunk_len, block_len: 512 };
    let (regions, geometry) = plan_logged(&wish, capacity, None).expect("a layout");
    let uuids: Vec<Uuid> = (1..=64).map(|at| [at; 16]).take(members).collect();
    let images = format(Format::Two, (regions, geometry), "large", UUID, &uuids, 1);
    let files: Vec<File> = paths.iter().map(|path| File::create_new(path).unwrap()).collect();

    let table = regions.stripe_pages(&geometry);
    let physical = regions.physical_stripes(&geometry);
    let per_page = u64::from(Format::Two.stripes_per_page());
    let pages = physical.div_ceil(per_page);
    for index in 0..pages {
        let stripes = index * per_page..((index + 1) * per_page).min(geometry.stripes());
        let entry = |stripe: u64| Entry {
            logical: Some(u32::try_from(stripe).unwrap()),
            round: 1,
            interval: Interval::FIRST,
        };
        let entries = stripes.map(entry).collect();
        let page = StripePage { index, counter: 1, round: 1, uncounted: 1, entries };
        for holder in table.holders(index).iter() {
            let place = table.slot_offset(index, holder, 1);
            let image = page.encode(Format::Two, UUID, place);
            files[holder.as_usize()].write_all_at(&image, place).unwrap();
        }
    }
    for (file, images) in files.iter().zip(images) {
        file.set_len(capacity).unwrap();
        for (offset, image) in images {
            let (offset, image) = with_tables((offset, image), pages);
            file.write_all_at(&image, offset).unwrap();
        }
    }
    let needs = regions.needs(&geometry, Format::Two);
    println!(
        "{} TiB in {physical} stripes with chunks of {} KiB: {} MiB of memory for the table, {} MiB read from each member",
        geometry.capacity() >> 40,
        chunk_len >> 10,
        needs.memory >> 20,
        needs.read >> 20
    );
}

/// The checkpoint counts an image of each page, and closes the round that they are of; all else stays.
fn with_tables((offset, image): Image, pages: u64) -> Image {
    let slot = CHECKPOINT_OFFSETS.iter().position(|at| *at == offset);
    let found = slot.and_then(|slot| Checkpoint::decode(&image, UUID, slot).ok());
    match found {
        Some(found) => {
            let counted = Checkpoint { round: 1, stripe_images: pages, ..found };
            (offset, counted.encode(UUID))
        }
        None => (offset, image),
    }
}
