//! The tests by their numbers.
//!
//! `host.*` and `net.*` are the two matrices of the Jefferson Lab's evaluation of RAID systems (1998),
//! in their order; the others are added.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A test. In text, and in records, it is its number: `host.1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TestId {
    /// One stream from memory to the target.
    #[serde(rename = "host.1")]
    Host1,
    /// One stream from the target to memory.
    #[serde(rename = "host.2")]
    Host2,
    /// Three streams at once to the target; the mean a process.
    #[serde(rename = "host.3")]
    Host3,
    /// Three streams at once from the target; the mean a process.
    #[serde(rename = "host.4")]
    Host4,
    /// Target to tape.
    #[serde(rename = "host.5")]
    Host5,
    /// Tape to target.
    #[serde(rename = "host.6")]
    Host6,
    /// Memory to target while target to tape.
    #[serde(rename = "host.7")]
    Host7,
    /// Target to memory while tape to target.
    #[serde(rename = "host.8")]
    Host8,
    /// Target to a remote disk while tape to target.
    #[serde(rename = "host.9")]
    Host9,
    /// Three clients writing, in sum.
    #[serde(rename = "net.1")]
    Net1,
    /// Three clients reading, in sum.
    #[serde(rename = "net.2")]
    Net2,
    /// One client writing.
    #[serde(rename = "net.3")]
    Net3,
    /// One client reading.
    #[serde(rename = "net.4")]
    Net4,
    /// Two clients reading and two writing at once, in sum.
    #[serde(rename = "net.5")]
    Net5,
    /// Random reads of 4 KiB at several depths.
    #[serde(rename = "random.read")]
    RandomRead,
    /// Random writes of 4 KiB at several depths.
    #[serde(rename = "random.write")]
    RandomWrite,
    /// Reads at places spread over the address range: outer against inner.
    #[serde(rename = "trick.regions")]
    Regions,
    /// Zeros against random data, in pairs.
    #[serde(rename = "trick.compression")]
    Compression,
    /// First reads against reads again, in pairs.
    #[serde(rename = "trick.cache")]
    Cache,
    /// Short bursts with a flush against long writes, in pairs.
    #[serde(rename = "trick.flush")]
    Flush,
    /// One stream to an array without one of its members.
    #[serde(rename = "degraded.write")]
    DegradedWrite,
    /// One stream from an array without one of its members.
    #[serde(rename = "degraded.read")]
    DegradedRead,
    /// One stream to an array while a member is rebuilt.
    #[serde(rename = "rebuild.write")]
    RebuildWrite,
    /// One stream from an array while a member is rebuilt.
    #[serde(rename = "rebuild.read")]
    RebuildRead,
}

/// What is known of a test beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Its number.
    pub id: TestId,
    /// The number as text.
    pub name: &'static str,
    /// What it does, in a few words.
    pub title: &'static str,
    /// Unit of its figure.
    pub unit: Unit,
}

/// How a test works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Streams at the same time.
    Streams,
    /// Random requests.
    Random,
    /// Reads at several places.
    Regions,
    /// Pairs of random data and zeros.
    Compression,
    /// Pairs of first reads and reads again.
    Cache,
    /// Pairs of long writes and bursts.
    Flush,
}

/// Units of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// 10^6 bytes a second.
    #[serde(rename = "MB/s")]
    MbPerS,
    /// Requests a second.
    #[serde(rename = "IOPS")]
    Iops,
    /// One figure over another.
    #[serde(rename = "ratio")]
    Ratio,
}

/// A text that names no test.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no test '{0}'; give a group (host, net, random, trick, degraded, rebuild, all) or a number of \
     it: host.1"
)]
pub struct UnknownTest(String);

const fn test(id: TestId, name: &'static str, title: &'static str, unit: Unit) -> Test {
    Test { id, name, title, unit }
}

/// All tests, in the order in which they run: what writes files comes before what reads them, and
/// what fails a member comes last.
pub const CATALOGUE: [Test; 24] = [
    test(TestId::Host1, "host.1", "memory to target", Unit::MbPerS),
    test(TestId::Host2, "host.2", "target to memory", Unit::MbPerS),
    test(TestId::Host3, "host.3", "three at once to the target, mean a process", Unit::MbPerS),
    test(TestId::Host4, "host.4", "three at once from the target, mean a process", Unit::MbPerS),
    test(TestId::Host5, "host.5", "target to tape", Unit::MbPerS),
    test(TestId::Host6, "host.6", "tape to target", Unit::MbPerS),
    test(TestId::Host7, "host.7", "memory to target while target to tape", Unit::MbPerS),
    test(TestId::Host8, "host.8", "target to memory while tape to target", Unit::MbPerS),
    test(TestId::Host9, "host.9", "target to remote disk while tape to target", Unit::MbPerS),
    test(TestId::Net1, "net.1", "three clients writing, total", Unit::MbPerS),
    test(TestId::Net2, "net.2", "three clients reading, total", Unit::MbPerS),
    test(TestId::Net3, "net.3", "one client writing", Unit::MbPerS),
    test(TestId::Net4, "net.4", "one client reading", Unit::MbPerS),
    test(TestId::Net5, "net.5", "two clients reading and two writing, total", Unit::MbPerS),
    test(TestId::RandomRead, "random.read", "random reads of 4 KiB", Unit::Iops),
    test(TestId::RandomWrite, "random.write", "random writes of 4 KiB", Unit::Iops),
    test(TestId::Regions, "trick.regions", "outer over inner places, reading", Unit::Ratio),
    test(TestId::Flush, "trick.flush", "flushed bursts over long writes", Unit::Ratio),
    test(TestId::Cache, "trick.cache", "reading again over the first time", Unit::Ratio),
    test(TestId::Compression, "trick.compression", "zeros over random data", Unit::Ratio),
    test(TestId::DegradedWrite, "degraded.write", "memory to target, a member away", Unit::MbPerS),
    test(TestId::DegradedRead, "degraded.read", "target to memory, a member away", Unit::MbPerS),
    test(TestId::RebuildWrite, "rebuild.write", "memory to target during rebuild", Unit::MbPerS),
    test(TestId::RebuildRead, "rebuild.read", "target to memory during rebuild", Unit::MbPerS),
];

impl TestId {
    /// What is known of it.
    #[must_use]
    pub fn test(self) -> &'static Test {
        // Every number has its entry; the first stands in for none.
        CATALOGUE.iter().find(|test| test.id == self).unwrap_or(&CATALOGUE[0])
    }

    /// The number as text.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.test().name
    }

    /// The group: what stands before the point.
    #[must_use]
    pub fn group(self) -> &'static str {
        self.name().split_once('.').map_or("", |(group, _)| group)
    }

    /// How it works.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Host1
            | Self::Host2
            | Self::Host3
            | Self::Host4
            | Self::Host5
            | Self::Host6
            | Self::Host7
            | Self::Host8
            | Self::Host9
            | Self::Net1
            | Self::Net2
            | Self::Net3
            | Self::Net4
            | Self::Net5
            | Self::DegradedWrite
            | Self::DegradedRead
            | Self::RebuildWrite
            | Self::RebuildRead => Kind::Streams,
            Self::RandomRead | Self::RandomWrite => Kind::Random,
            Self::Regions => Kind::Regions,
            Self::Compression => Kind::Compression,
            Self::Cache => Kind::Cache,
            Self::Flush => Kind::Flush,
        }
    }

    /// Whether a member of the array must be failed for it.
    #[must_use]
    pub fn fails_a_member(self) -> bool {
        matches!(self.group(), "degraded" | "rebuild")
    }

    /// The tests that a text means: a number, a group, or `all` (all but those that fail a member).
    ///
    /// # Errors
    /// When it is none of these.
    pub fn select(text: &str) -> Result<Vec<Self>, UnknownTest> {
        let wanted = |test: &&Test| match text {
            "all" => !test.id.fails_a_member(),
            _ => text == test.name || text == test.id.group(),
        };
        let found: Vec<Self> = CATALOGUE.iter().filter(wanted).map(|test| test.id).collect();
        if found.is_empty() { Err(UnknownTest(text.to_owned())) } else { Ok(found) }
    }
}

impl fmt::Display for TestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TestId {
    type Err = UnknownTest;

    fn from_str(text: &str) -> Result<Self, UnknownTest> {
        let found = CATALOGUE.iter().find(|test| test.name == text);
        found.map(|test| test.id).ok_or_else(|| UnknownTest(text.to_owned()))
    }
}

impl Unit {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MbPerS => "MB/s",
            Self::Iops => "IOPS",
            Self::Ratio => "ratio",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_its_number_everywhere() {
        for test in CATALOGUE {
            assert_eq!(serde_json::to_value(test.id).unwrap(), test.name);
            assert_eq!(test.name.parse(), Ok(test.id));
            assert_eq!(test.id.test().title, test.title);
        }
    }

    #[test]
    fn groups_and_numbers_select() {
        assert_eq!(TestId::select("host").unwrap().len(), 9);
        assert_eq!(TestId::select("net").unwrap().len(), 5);
        assert_eq!(TestId::select("net.3"), Ok(vec![TestId::Net3]));
        assert!(TestId::select("all").unwrap().iter().all(|id| !id.fails_a_member()));
        assert_eq!(TestId::select("all").unwrap().len(), 20);
        assert!(TestId::select("host.10").is_err());
    }
}
