#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| netraid_fuzz::token::run(input));
