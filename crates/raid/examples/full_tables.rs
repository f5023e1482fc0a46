//! Writes the stripe table of a full volume onto the members of a new array with a log, which are files: each logical
//! stripe is in the physical one of the same number, in an image of round 1. No data is written, and no checksums:
//! what is measured is how long such an array takes to be opened, and how much memory.
//!
//! `cargo run --release -p netraid-raid --example full_tables -- FILE...`, of all members in any order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for one measurement"
)]

use std::{env, fs::File, os::unix::fs::FileExt};

use netraid_raid::{
    checkpoint::Checkpoint,
    label::{LABEL_LEN, Label},
    member::MemberIndex,
    regions::{CHECKPOINT_OFFSETS, PAGE_LEN},
    stripes::{Entry, Interval, StripePage},
};

fn main() {
    let mut members: Vec<(MemberIndex, File, Label)> = env::args().skip(1).map(open).collect();
    members.sort_by_key(|(index, ..)| *index);
    let label = members.first().expect("files of members").2.clone();
    assert_eq!(members.len(), usize::from(label.geometry.members()), "a file for each member");
    let format = label.log.as_ref().expect("an array with a log").format;
    let table = label.regions.stripe_pages(&label.geometry);
    let physical = label.regions.physical_stripes(&label.geometry);
    let per_page = u64::from(format.stripes_per_page());
    let pages = physical.div_ceil(per_page);
    for index in 0..pages {
        let stripes = index * per_page..((index + 1) * per_page).min(label.geometry.stripes());
        let entry = |stripe: u64| Entry {
            logical: Some(u32::try_from(stripe).unwrap()),
            round: 1,
            interval: Interval::FIRST,
        };
        let entries = stripes.map(entry).collect();
        let page = StripePage { index, counter: 1, round: 1, uncounted: 1, entries };
        for holder in table.holders(index).iter() {
            let place = table.slot_offset(index, holder, 1);
            let image = page.encode(format, label.array_uuid, place);
            members[holder.as_usize()].1.write_all_at(&image, place).unwrap();
        }
    }
    for (_, file, _) in &members {
        let first = read_checkpoint(file, &label);
        let next =
            Checkpoint { counter: first.counter + 1, round: 1, stripe_images: pages, ..first };
        file.write_all_at(&next.encode(label.array_uuid), next.offset()).unwrap();
    }
    println!("{physical} stripes, {pages} pages");
}

fn open(path: String) -> (MemberIndex, File, Label) {
    let file = File::options().read(true).write(true).open(&path).expect("a member's file");
    let mut bytes = vec![0; LABEL_LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let label = Label::decode(&bytes, 0).unwrap_or_else(|error| panic!("{path}: {error}"));
    (label.index, file, label)
}

fn read_checkpoint(file: &File, label: &Label) -> Checkpoint {
    let read = |slot: usize| {
        let mut bytes = vec![0; PAGE_LEN as usize];
        file.read_exact_at(&mut bytes, CHECKPOINT_OFFSETS[slot]).unwrap();
        Checkpoint::decode(&bytes, label.array_uuid, slot).ok()
    };
    (0..2).find_map(read).expect("the checkpoint of a new array")
}
