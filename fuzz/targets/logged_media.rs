#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| netraid_fuzz::logged_media::run(input));
