//! How long a run takes, from rates that were probed before it.
//!
//! Every test is bounded in bytes or in time, so that its length follows from the rates; those beside a
//! tape and the random ones have a length of their own.

use serde::{Deserialize, Serialize};

use crate::{
    catalogue::{Kind, TestId},
    plan::{self, SLOTS},
    record::{Role, Settings},
};

/// Rates of a target, probed for a second or two each, in MB/s; those of three streams are sums.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// One stream writing.
    pub write: f64,
    /// One stream reading.
    pub read: f64,
    /// Three streams writing.
    pub write_three: f64,
    /// Three streams reading.
    pub read_three: f64,
    /// Seconds to start a client's process and open the target in it.
    pub start_s: f64,
}

/// Rates below this are taken for it, in MB/s: what stands still ends by its time bound.
const RATE_MIN: f64 = 0.01;

/// Seconds that `tests` take at a target of these rates. `written` are bytes of each file that are there
/// already.
#[must_use]
pub fn seconds(
    tests: &[TestId],
    settings: &Settings,
    probe: &Probe,
    mut written: [u64; SLOTS as usize],
) -> f64 {
    tests.iter().map(|test| test_s(*test, settings, probe, &mut written)).sum()
}

fn test_s(
    test: TestId,
    settings: &Settings,
    probe: &Probe,
    written: &mut [u64; SLOTS as usize],
) -> f64 {
    let mut sum = 0.0;
    for (slot, bytes) in plan::reads(test, settings) {
        let had = &mut written[usize::from(slot)];
        if *had < bytes {
            sum += bounded(bytes, probe.write, settings);
            *had = bytes;
        }
    }
    let Some(plan) = plan::streams(test, settings) else {
        return sum + special_s(test, settings, probe, written);
    };
    for stream in &plan.streams {
        match stream.role {
            Role::Write => written[usize::from(stream.slot)] = stream.bytes,
            Role::FromTape => written[usize::from(stream.slot)] = 0,
            Role::Read | Role::ToTape | Role::RemoteCopy => {}
        }
    }
    let round_s = plan.seconds.unwrap_or_else(|| together_s(&plan, settings, probe));
    let start_s = if plan.clients { probe.start_s * plan.streams.len() as f64 } else { 0.0 };
    let rounds = if repeats(test) { f64::from(settings.rounds.max(1)) } else { 1.0 };
    sum + rounds * (round_s + start_s)
}

/// Whether a test is repeated [`Settings::rounds`] times.
#[must_use]
pub fn repeats(test: TestId) -> bool {
    matches!(test.group(), "host" | "net")
}

fn together_s(plan: &plan::StreamsPlan, settings: &Settings, probe: &Probe) -> f64 {
    let of = |wanted: Role| plan.streams.iter().filter(move |stream| stream.role == wanted);
    let bytes = |wanted| of(wanted).map(|stream| stream.bytes).sum::<u64>();
    let alone = plan.streams.len() == 1;
    let (write, read) =
        if alone { (probe.write, probe.read) } else { (probe.write_three, probe.read_three) };
    let s = seconds_of(bytes(Role::Write), write) + seconds_of(bytes(Role::Read), read);
    s.min(settings.stream_s)
}

fn special_s(
    test: TestId,
    settings: &Settings,
    probe: &Probe,
    written: &mut [u64; SLOTS as usize],
) -> f64 {
    let pairs = f64::from(settings.pairs);
    let piece = plan::piece_bytes(settings);
    match test.kind() {
        Kind::Random => settings.random_s * settings.depths.len() as f64,
        Kind::Regions => {
            let points = plan::REGION_BANDS.len() as f64 * f64::from(REGION_ROUNDS);
            points * seconds_of(piece, probe.read).min(PIECE_S)
        }
        Kind::Compression => {
            written[3] = 0;
            let both = seconds_of(piece, probe.write).min(PIECE_S)
                + seconds_of(piece, probe.read).min(PIECE_S);
            2.0 * pairs * both
        }
        Kind::Cache => {
            // The other data in between is written and read.
            let mut between = 0.0;
            for slot in plan::FILLERS {
                written[usize::from(slot)] = settings.file_bytes;
                between += bounded(settings.file_bytes, probe.write, settings)
                    + bounded(settings.file_bytes, probe.read, settings);
            }
            between + 2.0 * pairs * seconds_of(piece, probe.read).min(PIECE_S)
        }
        Kind::Flush => {
            written[3] = 0;
            let (burst, long) = plan::burst_bytes(settings);
            let burst_s = seconds_of(burst, probe.write).min(PIECE_S);
            let long_s = seconds_of(long, probe.write).min(LONG_S);
            // A pause lets a cache drain before the burst; one long write comes before all pairs.
            long_s + pairs * (burst_s + long_s + pause_s(long, probe.write))
        }
        Kind::Streams => 0.0,
    }
}

/// Rounds of the regions test.
pub const REGION_ROUNDS: u16 = 3;
/// Longest that a piece of a trick test may take, in seconds.
pub const PIECE_S: f64 = 5.0;
/// Longest that a long write of the flush test may take.
pub const LONG_S: f64 = 20.0;
/// Longest pause before a burst.
const PAUSE_S: f64 = 2.0;

/// How long a cache is given to drain `bytes` at `mb_per_s`, in seconds: twice what that takes.
#[must_use]
pub fn pause_s(bytes: u64, mb_per_s: f64) -> f64 {
    (2.0 * seconds_of(bytes, mb_per_s)).min(PAUSE_S)
}

fn bounded(bytes: u64, mb_per_s: f64, settings: &Settings) -> f64 {
    seconds_of(bytes, mb_per_s).min(settings.stream_s)
}

fn seconds_of(bytes: u64, mb_per_s: f64) -> f64 {
    bytes as f64 / 1e6 / mb_per_s.max(RATE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::settings;

    const PROBE: Probe =
        Probe { write: 100.0, read: 200.0, write_three: 150.0, read_three: 300.0, start_s: 0.0 };

    fn of(tests: &[TestId], settings: &Settings) -> f64 {
        seconds(tests, settings, &PROBE, [0; 4])
    }

    #[test]
    fn streams_take_their_bytes_over_their_rate() {
        let mut settings = settings();
        settings.file_bytes = 1_000_000_000;
        settings.stream_s = 60.0;
        assert!((of(&[TestId::Host1], &settings) - 10.0).abs() < 1e-9);
        // What nobody wrote is written first.
        assert!((of(&[TestId::Host2], &settings) - 15.0).abs() < 1e-9);
        assert!((of(&[TestId::Host1, TestId::Host2], &settings) - 15.0).abs() < 1e-9);
        assert!((of(&[TestId::Host3], &settings) - 20.0).abs() < 1e-9);
        settings.stream_s = 4.0;
        assert!((of(&[TestId::Host1], &settings) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn tapes_and_random_tests_have_lengths_of_their_own() {
        let mut settings = settings();
        settings.file_bytes = 200_000_000;
        settings.tape_bytes_per_s = 10_000_000;
        settings.stream_s = 60.0;
        settings.depths = vec![1, 8];
        settings.random_s = 3.0;
        assert!((of(&[TestId::Host6], &settings) - 20.0).abs() < 1e-9);
        assert!((of(&[TestId::Host1, TestId::RandomRead], &settings) - 2.0 - 6.0).abs() < 1e-9);
        settings.rounds = 3;
        assert!((of(&[TestId::Host6], &settings) - 60.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_takes_for_ever() {
        let mut settings = settings();
        settings.stream_s = 10.0;
        let still =
            Probe { write: 0.0, read: 0.0, write_three: 0.0, read_three: 0.0, start_s: 0.0 };
        let tests = TestId::select("all").unwrap();
        assert!(seconds(&tests, &settings, &still, [0; 4]) < 3600.0);
    }
}
