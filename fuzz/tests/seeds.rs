//! Every seed that fuzzing kept, run once by the harness that it belongs to: what was reached before
//! still holds, on a stable compiler and without a fuzzer. `cargo xtask fuzz` looks for new inputs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

/// Runs all seeds of a target, in the order of their names, and fails where there are none.
fn replay(target: &str, run: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = fs::read_dir(&directory).unwrap();
    let mut seeds: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{} holds no seed", directory.display());

    for seed in seeds {
        // A panic does not say which input it comes from.
        println!("{}", seed.display());
        run(&fs::read(&seed).unwrap());
    }
}

macro_rules! targets {
    ($($target:ident)*) => {$(
        #[test]
        fn $target() {
            replay(stringify!($target), netraid_fuzz::$target::run);
        }
    )*};
}

targets! {
    array_labels
    codecs
    control_requests
    initiator_session
    logged_media
    nbd
    scsi_device
    stored_state
    target_session
    token
}

/// A target that has seeds and no test above would be replayed nowhere.
#[test]
fn every_directory_of_seeds_is_replayed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(here.join("tests/seeds.rs")).unwrap();
    for entry in fs::read_dir(here.join("seeds")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(text.contains(&format!("\n    {name}\n")), "seeds/{name} has no test");
    }
}
