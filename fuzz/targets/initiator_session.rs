#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| netraid_fuzz::initiator_session::run(input));
