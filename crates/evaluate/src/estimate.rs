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

/// How long tests take, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// What is measured in any case.
    pub seconds: f64,
    /// What comes on top where bursts of writes ask for controls.
    pub controls_s: f64,
}

impl core::iter::Sum for Estimate {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            seconds: sum.seconds + one.seconds,
            controls_s: sum.controls_s + one.controls_s,
        })
    }
}

/// How long `tests` take at a target of these rates. `written` are bytes of each file that are there
/// already.
#[must_use]
pub fn estimate(
    tests: &[TestId],
    settings: &Settings,
    probe: &Probe,
    mut written: [u64; SLOTS as usize],
) -> Estimate {
    let mut sum = Estimate::default();
    for test in tests {
        sum.seconds += test_s(*test, settings, probe, &mut written);
        if test.kind() == Kind::Flush {
            // Files that they leave behind are not counted on: they may not run.
            sum.controls_s += controls_s(settings, probe, written);
        }
    }
    sum
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
            // The whole file comes before all pairs.
            let whole_s = bounded(settings.file_bytes, probe.write, settings);
            // Pauses let a cache drain before what is short.
            let small_s = plan::small_burst_bytes(settings).map_or(0.0, |small| {
                pause_s(burst, probe.write) + seconds_of(small, probe.write).min(PIECE_S)
            });
            let burst_s = pause_s(long, probe.write) + seconds_of(burst, probe.write).min(PIECE_S);
            let first_s = pause_s(settings.file_bytes, probe.write) - pause_s(long, probe.write);
            whole_s + first_s + pairs * (burst_s + small_s + long_s(long, probe.write))
        }
        Kind::Streams => 0.0,
    }
}

/// The controls of the flush test: writes in one place, and reads of the shape of the bursts.
fn controls_s(settings: &Settings, probe: &Probe, written: [u64; SLOTS as usize]) -> f64 {
    let pairs = f64::from(settings.pairs);
    let (burst, long) = plan::burst_bytes(settings);
    let place_s = seconds_of(burst, probe.write).min(PIECE_S) + long_s(long, probe.write);
    let rewrites_s = pairs * (long_s(long, probe.write) + place_s);
    let there = |slot: &u16| written[usize::from(*slot)] >= settings.file_bytes;
    let files = plan::LONG_SLOTS.iter().chain([&plan::SHORT_SLOT]).filter(|slot| !there(slot));
    // One more lies in between.
    let files = files.count() as f64 + 1.0;
    let files_s = files * bounded(settings.file_bytes, probe.write, settings);
    let short_s = 2.0 * seconds_of(burst, probe.read).min(PIECE_S);
    let reads_s = pairs * (pause_s(long, probe.write) + short_s + long_s(long, probe.read));
    rewrites_s + files_s + reads_s
}

fn long_s(long: u64, mb_per_s: f64) -> f64 {
    seconds_of(long, mb_per_s).min(LONG_S)
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
        estimate(tests, settings, &PROBE, [0; 4]).seconds
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
        let Estimate { seconds, controls_s } = estimate(&tests, &settings, &still, [0; 4]);
        assert!(seconds + controls_s < 3600.0, "{seconds} and {controls_s}");
    }

    #[test]
    fn controls_of_bursts_come_on_top() {
        let mut settings = settings();
        (settings.file_bytes, settings.buffer_bytes) = (320_000_000, 1_000_000);
        settings.stream_s = 60.0;
        let estimate = |tests: &[TestId]| estimate(tests, &settings, &PROBE, [0; 4]);
        assert_eq!(estimate(&[TestId::Host1, TestId::Cache]).controls_s, 0.0);
        // Long writes of 80 MB, bursts of 10, small ones of 1; the file is made, and written over once.
        let Estimate { seconds, controls_s } = estimate(&[TestId::Flush]);
        let pairs_s = 7.0 * (1.6 + 0.1 + 0.2 + 0.01 + 0.8);
        assert!((seconds - (3.2 + 3.2 + 0.4 + pairs_s)).abs() < 1e-9, "{seconds}");
        let pairs_s = 7.0 * (0.8 + 0.1 + 0.8 + 1.6 + 0.1 + 0.4);
        assert!((controls_s - (4.0 * 3.2 + pairs_s)).abs() < 1e-9, "{controls_s}");
        // Files that are there need not be made.
        let there = estimate(&[TestId::Host3, TestId::Flush]);
        assert!((there.controls_s - (3.2 + pairs_s)).abs() < 1e-9, "{}", there.controls_s);
    }
}
