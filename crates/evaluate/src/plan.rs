//! What each test does: its streams, the files that they use, and the pieces of the trick tests.
//!
//! Files are numbered: [`SLOTS`] of them are all that a run keeps on a target at any time. A test that
//! reads a file which nobody wrote in this run has it written first.

use crate::{
    catalogue::{Kind, TestId},
    record::{Role, Settings},
};

/// Files of a run on one target.
pub const SLOTS: u16 = 4;

/// Pieces of a file in the trick tests: pairs of them must fit beside one another.
pub const PIECES: u64 = 16;

/// A long write of the flush test is so many times a burst.
pub const LONG_TO_BURST: u64 = 8;

/// A burst of the flush test is so many times a small one, where buffers are as small.
const BURST_TO_SMALL: u64 = 8;

/// Files that are written and read between the first time that a file is used and the next: what was used
/// last is not in a cache that holds the latest bytes, unless it is larger than all of these.
pub const FILLERS: [u16; 2] = [1, 2];

/// One stream of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPlan {
    /// What it does.
    pub role: Role,
    /// The file that it uses.
    pub slot: u16,
    /// Bytes after which it ends; with [`StreamsPlan::seconds`], bytes after which it begins anew.
    pub bytes: u64,
}

/// The streams of a test, which run at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamsPlan {
    /// The streams.
    pub streams: Vec<StreamPlan>,
    /// For tests beside a tape: all streams run for so long, so that they meet all the time.
    pub seconds: Option<f64>,
    /// Whether each stream is a process of its own, on the clients' hosts where there are any.
    pub clients: bool,
}

impl StreamsPlan {
    fn new(streams: &[(Role, u16)], bytes: u64) -> Self {
        let streams =
            streams.iter().map(|(role, slot)| StreamPlan { role: *role, slot: *slot, bytes });
        Self { streams: streams.collect(), seconds: None, clients: false }
    }
}

/// What a test's figure is of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureOf {
    /// The rate of the first stream.
    First,
    /// The mean of all streams' rates.
    Mean,
    /// All bytes over the time from the first start to the last end.
    Total,
}

/// The streams of a test; none where it has no streams.
#[must_use]
pub fn streams(test: TestId, settings: &Settings) -> Option<StreamsPlan> {
    use Role::{FromTape, Read, RemoteCopy, ToTape, Write};
    let host = |streams: &[(Role, u16)]| StreamsPlan::new(streams, settings.file_bytes);
    let at_once = |streams| StreamsPlan { clients: true, ..host(streams) };
    let net = |streams: &[(Role, u16)]| StreamsPlan {
        clients: true,
        ..StreamsPlan::new(streams, settings.net_file_bytes)
    };
    let beside_tape = |streams| StreamsPlan { seconds: Some(tape_s(settings)), ..host(streams) };
    Some(match test {
        TestId::Host1 => host(&[(Write, 0)]),
        TestId::Host2 => host(&[(Read, 0)]),
        TestId::Host3 => at_once(&[(Write, 0), (Write, 1), (Write, 2)]),
        TestId::Host4 => at_once(&[(Read, 0), (Read, 1), (Read, 2)]),
        TestId::Host5 => beside_tape(&[(ToTape, 0)]),
        TestId::Host6 => beside_tape(&[(FromTape, 3)]),
        TestId::Host7 => beside_tape(&[(Write, 1), (ToTape, 0)]),
        TestId::Host8 => beside_tape(&[(Read, 0), (FromTape, 3)]),
        TestId::Host9 => beside_tape(&[(RemoteCopy, 0), (FromTape, 3)]),
        TestId::Net1 => net(&[(Write, 0), (Write, 1), (Write, 2)]),
        TestId::Net2 => net(&[(Read, 0), (Read, 1), (Read, 2)]),
        TestId::Net3 => net(&[(Write, 0)]),
        TestId::Net4 => net(&[(Read, 0)]),
        TestId::Net5 => net(&[(Read, 0), (Read, 1), (Write, 2), (Write, 3)]),
        TestId::DegradedWrite | TestId::RebuildWrite => host(&[(Write, 1)]),
        TestId::DegradedRead | TestId::RebuildRead => host(&[(Read, 0)]),
        TestId::RandomRead
        | TestId::RandomWrite
        | TestId::Regions
        | TestId::Compression
        | TestId::Cache
        | TestId::Flush => return None,
    })
}

/// What a test's figure is.
#[must_use]
pub fn figure_of(test: TestId) -> FigureOf {
    match test.group() {
        "host" if matches!(test, TestId::Host3 | TestId::Host4) => FigureOf::Mean,
        "net" => FigureOf::Total,
        _ => FigureOf::First,
    }
}

/// Seconds that a tape runs: those of one file, or the bound of a stream where that is less.
#[must_use]
pub fn tape_s(settings: &Settings) -> f64 {
    let file_s = settings.file_bytes as f64 / settings.tape_bytes_per_s.max(1) as f64;
    file_s.min(settings.stream_s)
}

/// Files that a test reads and that must be there before.
#[must_use]
pub fn reads(test: TestId, settings: &Settings) -> Vec<(u16, u64)> {
    match streams(test, settings) {
        Some(plan) => {
            let reading = plan.streams.iter().filter(|stream| match stream.role {
                Role::Read | Role::ToTape | Role::RemoteCopy => true,
                Role::Write | Role::FromTape => false,
            });
            reading.map(|stream| (stream.slot, stream.bytes)).collect()
        }
        None => match test.kind() {
            Kind::Random | Kind::Cache => vec![(0, settings.file_bytes)],
            Kind::Regions => vec![(3, largest_file(settings))],
            Kind::Compression | Kind::Flush => vec![(3, settings.file_bytes)],
            Kind::Streams => Vec::new(),
        },
    }
}

/// Bytes of a piece of the trick tests: whole buffers.
#[must_use]
pub fn piece_bytes(settings: &Settings) -> u64 {
    let buffer = u64::from(settings.buffer_bytes).max(1);
    (settings.file_bytes / PIECES / buffer).max(1) * buffer
}

/// Bytes of a burst of the flush test, and of the long write beside it.
#[must_use]
pub fn burst_bytes(settings: &Settings) -> (u64, u64) {
    let buffer = u64::from(settings.buffer_bytes).max(1);
    let long = (settings.file_bytes / 4 / buffer).max(LONG_TO_BURST) * buffer;
    ((long / LONG_TO_BURST / buffer).max(1) * buffer, long)
}

/// Bytes of a small burst of the flush test: what a cache holds in which no burst has room. None where a
/// burst is one buffer.
#[must_use]
pub fn small_burst_bytes(settings: &Settings) -> Option<u64> {
    let buffer = u64::from(settings.buffer_bytes).max(1);
    let (burst, _) = burst_bytes(settings);
    let small = (burst / BURST_TO_SMALL / buffer).max(1) * buffer;
    (small < burst).then_some(small)
}

/// Reads of one pair of the control beside the flush test. No byte is read twice by any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlReads {
    /// File of the long read.
    pub long_slot: u16,
    /// Where it begins.
    pub long_begin: u64,
    /// Where the short read begins that comes after a pause.
    pub rested: u64,
    /// Where the one begins that comes directly after the long one.
    pub hurried: u64,
}

/// The file of the control's short reads.
pub const SHORT_SLOT: u16 = 2;
/// The files of its long reads.
pub const LONG_SLOTS: [u16; 2] = [0, 1];
/// Each short read of the control is so many places behind the one before, of 16 with a gap behind each:
/// reading ahead does not help.
const SHORT_STEP: u64 = 5;

/// Where the control of the flush test reads for one pair, of at most 8.
#[must_use]
pub fn control_reads(pair: u64, settings: &Settings) -> ControlReads {
    let (short, long) = burst_bytes(settings);
    let longs = LONG_SLOTS.len() as u64;
    let at = |index: u64| index * SHORT_STEP % 16 * 2 * short;
    // Which of both is first alternates.
    let (first, second) = (at(pair * 2), at(pair * 2 + 1));
    let (rested, hurried) = if pair.is_multiple_of(2) { (first, second) } else { (second, first) };
    let long_slot = if pair.is_multiple_of(longs) { LONG_SLOTS[0] } else { LONG_SLOTS[1] };
    ControlReads { long_slot, long_begin: pair / longs * long, rested, hurried }
}

/// Bands of the address range whose pieces of a file the regions test reads ([`crate::places`]).
pub const REGION_BANDS: [u64; 5] = [0, 4, 8, 12, 15];

/// Bytes of the largest file.
#[must_use]
pub fn largest_file(settings: &Settings) -> u64 {
    settings.file_bytes.max(settings.net_file_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::settings;

    #[test]
    fn small_bursts_are_whole_buffers() {
        let of = |file_bytes| {
            small_burst_bytes(&Settings { file_bytes, buffer_bytes: 64 << 10, ..settings() })
        };
        assert_eq!([of(1 << 30), of(8 << 20), of(2 << 20)], [Some(4 << 20), Some(64 << 10), None]);
    }

    #[test]
    fn a_control_reads_nothing_twice() {
        for file_bytes in [2 << 20, 8 << 20, 35 << 20, 1 << 30] {
            let settings = Settings { file_bytes, buffer_bytes: 64 << 10, ..settings() };
            let (short, long) = burst_bytes(&settings);
            let mut read = Vec::new();
            for pair in 0..8 {
                let reads = control_reads(pair, &settings);
                read.push((reads.long_slot, reads.long_begin, long));
                read.push((SHORT_SLOT, reads.rested, short));
                read.push((SHORT_SLOT, reads.hurried, short));
            }
            assert!(read.iter().all(|(_, begin, bytes)| begin + bytes <= file_bytes), "{read:?}");
            read.sort_unstable();
            let apart =
                |two: &[(u16, u64, u64)]| two[0].0 != two[1].0 || two[0].1 + two[0].2 <= two[1].1;
            assert!(read.windows(2).all(apart), "{read:?}");
        }
    }
}
