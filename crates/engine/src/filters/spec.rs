//! Filters as people write them: a list with commas, the first sees a request first.

use std::{fmt, ops::Range, path::PathBuf, str::FromStr, time::Duration};

use netraid_block::{ErrorKind, Op, parse_size};

/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// Most filters of one stack.
const FILTERS_MAX: usize = 16;

/// A stack of filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterSpec {
    /// In the order in which a request meets them; at least one, at most 16.
    pub filters: Vec<Filter>,
    /// The bytes that requests must touch for the filters to apply; `None` is all, and flushes.
    pub range: Option<Range<u64>>,
    /// Where the chances begin: one seed and one order of requests give one outcome.
    pub seed: u64,
}

/// One filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// What it does.
    pub kind: FilterKind,
    /// To which requests; `None` is all.
    pub class: Option<OpClass>,
}

/// What a filter does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterKind {
    /// Requests wait before they go on, for a time between both, all equally likely.
    Delay {
        /// Shortest wait.
        from: Duration,
        /// Longest wait, at most an hour.
        to: Duration,
    },
    /// Requests fail without reaching the device.
    Error {
        /// How often.
        chance: Chance,
        /// In which way.
        kind: ErrorKind,
    },
    /// One bit of what is read is flipped.
    Corrupt {
        /// How often.
        chance: Chance,
    },
    /// Requests do not end until the filter is taken away; then they are aborted.
    Hang {
        /// How many pass before.
        after: u64,
    },
    /// Reads and writes wait until their bytes fit the rate.
    Rate {
        /// Bytes a second, above zero.
        bytes_per_s: u64,
    },
    /// The end of each request is told.
    Trace {
        /// To this file, a line a request; `None` is to the log.
        file: Option<PathBuf>,
    },
}

/// How often something happens: parts of a million requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance(u32);

/// A class of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpClass {
    /// Reads.
    Read,
    /// Writes, zeroes and discards.
    Write,
    /// Flushes.
    Flush,
}

/// Why a text is no stack of filters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("filter '{text}': '{part}' {reason}")]
pub struct FilterError {
    text: String,
    part: String,
    reason: &'static str,
}

/// The failures that can be asked for.
const ERRORS: [(&str, ErrorKind); 7] = [
    ("medium", ErrorKind::Medium),
    ("device", ErrorKind::Device),
    ("timeout", ErrorKind::Timeout),
    ("unreachable", ErrorKind::Unreachable),
    ("nospace", ErrorKind::NoSpace),
    ("aborted", ErrorKind::Aborted),
    ("readonly", ErrorKind::ReadOnly),
];
const CLASSES: [(&str, OpClass); 3] =
    [("read", OpClass::Read), ("write", OpClass::Write), ("flush", OpClass::Flush)];

impl Chance {
    /// `millionths` of a million requests.
    ///
    /// # Panics
    /// Above a million.
    #[must_use]
    pub const fn from_millionths(millionths: u32) -> Self {
        assert!(millionths <= 1_000_000, "more than always");
        Self(millionths)
    }

    /// Parts of a million, from 0 to 1,000,000.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// Reads `1%` or `0.025%`: at most four digits behind the point.
    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if fraction.is_empty() || fraction.len() > 4 || fraction.starts_with('+') {
            return None;
        }
        let fraction = format!("{fraction:0<4}").parse::<u32>().ok()?;
        let millionths = whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(fraction)?;
        (millionths <= 1_000_000).then_some(Self(millionths))
    }
}

impl OpClass {
    /// Whether a request is of this class.
    #[must_use]
    pub const fn contains(self, op: Op) -> bool {
        match self {
            Self::Read => matches!(op, Op::Read),
            Self::Write => op.changes(),
            Self::Flush => matches!(op, Op::Flush),
        }
    }
}

impl FromStr for FilterSpec {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut spec = Self { filters: Vec::new(), range: None, seed: 0 };
        for part in text.split(',').map(str::trim) {
            let fail = |reason| FilterError { text: text.into(), part: part.into(), reason };
            match part.split_once('=') {
                Some(("seed", seed)) => {
                    spec.seed = seed.parse().map_err(|_| fail("is not seed=NUMBER"))?;
                }
                Some(("range", range)) => {
                    let range = parse_range(range).ok_or_else(|| {
                        fail("is not range=OFFSET+LENGTH; write range=0+1MiB or range=1GiB+4096")
                    })?;
                    spec.range = Some(range);
                }
                _ if spec.filters.len() == FILTERS_MAX => return Err(fail("is one above 16")),
                _ => spec.filters.push(Filter::parse(part).map_err(fail)?),
            }
        }
        if spec.filters.is_empty() {
            let reason = "has no filter; write delay=5ms, error=1%, corrupt=0.1%, hang, \
                          rate=10MiB/s or trace";
            return Err(FilterError { text: text.into(), part: text.into(), reason });
        }
        Ok(spec)
    }
}

impl Filter {
    fn parse(part: &str) -> Result<Self, &'static str> {
        let (name, rest) = part.find(['=', ':']).map_or((part, ""), |at| part.split_at(at));
        // The name of a file may contain colons.
        let (value, options) = match rest.strip_prefix('=') {
            Some(rest) if name == "trace" => (Some(rest), ""),
            Some(rest) => rest.split_once(':').map_or((Some(rest), ""), |(v, o)| (Some(v), o)),
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let mut filter = Self { kind: FilterKind::parse(name, value)?, class: None };
        for option in options.split(':').filter(|_| !options.is_empty()) {
            let error = ERRORS.iter().find(|(name, _)| *name == option);
            let class = CLASSES.iter().find(|(name, _)| *name == option);
            match (&mut filter.kind, error, class) {
                (FilterKind::Error { kind, .. }, Some((_, wanted)), _) => *kind = *wanted,
                (_, _, Some((_, class))) => filter.class = Some(*class),
                (FilterKind::Error { .. }, _, None) => {
                    return Err("has an unknown option; write read, write or flush, and medium, \
                                device, timeout, unreachable, nospace, aborted or readonly");
                }
                (_, _, None) => return Err("has an unknown option; write read, write or flush"),
            }
        }
        Ok(filter)
    }
}

impl FilterKind {
    fn parse(name: &str, value: Option<&str>) -> Result<Self, &'static str> {
        match (name, value) {
            ("delay", Some(value)) => {
                let (from, to) = value.split_once("..").unwrap_or((value, value));
                let times = parse_duration(from).zip(parse_duration(to));
                let times = times.filter(|(from, to)| from <= to && *to <= DELAY_MAX);
                let (from, to) =
                    times.ok_or("is not delay=TIME or delay=TIME..TIME, up to 3600s; write 5ms")?;
                Ok(Self::Delay { from, to })
            }
            ("error", Some(value)) => {
                let chance = Chance::parse(value).ok_or("is not error=PERCENT%; write 1%")?;
                Ok(Self::Error { chance, kind: ErrorKind::Medium })
            }
            ("corrupt", Some(value)) => {
                let chance = Chance::parse(value).ok_or("is not corrupt=PERCENT%; write 0.1%")?;
                Ok(Self::Corrupt { chance })
            }
            ("hang", None) => Ok(Self::Hang { after: 0 }),
            ("hang", Some(value)) => {
                let after = value.strip_prefix("after").map(|after| after.trim().parse());
                match after {
                    Some(Ok(after)) => Ok(Self::Hang { after }),
                    Some(Err(_)) | None => Err("is not hang or hang=after NUMBER"),
                }
            }
            ("rate", Some(value)) => {
                let rate = value.strip_suffix("/s").map(parse_size);
                match rate {
                    Some(Ok(bytes_per_s)) => Ok(Self::Rate { bytes_per_s }),
                    Some(Err(_)) | None => Err("is not rate=SIZE/s; write rate=10MiB/s"),
                }
            }
            ("trace", None) => Ok(Self::Trace { file: None }),
            ("trace", Some("")) => Err("names no file; write trace or trace=FILE"),
            ("trace", Some(file)) => Ok(Self::Trace { file: Some(file.into()) }),
            _ => Err("is no filter; write delay=5ms, error=1%, corrupt=0.1%, hang, hang=after N, \
                      rate=10MiB/s, trace, and range=OFFSET+LENGTH, seed=NUMBER"),
        }
    }
}

fn parse_range(text: &str) -> Option<Range<u64>> {
    let (offset, len) = text.split_once('+')?;
    let offset = if offset == "0" { 0 } else { parse_size(offset).ok()? };
    // Both are below 2^63.
    Some(offset..offset + parse_size(len).ok()?)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(at);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

impl fmt::Display for FilterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, filter) in self.filters.iter().enumerate() {
            write!(f, "{}{filter}", if index > 0 { "," } else { "" })?;
        }
        if let Some(range) = &self.range {
            write!(f, ",range={}+{}", range.start, range.end - range.start)?;
        }
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FilterKind::Delay { from, to } if from == to => write!(f, "delay={}", Time(*from))?,
            FilterKind::Delay { from, to } => write!(f, "delay={}..{}", Time(*from), Time(*to))?,
            FilterKind::Error { chance, kind } => {
                let name = ERRORS.iter().find(|(_, known)| known == kind);
                write!(f, "error={chance}:{}", name.map_or("medium", |(name, _)| name))?;
            }
            FilterKind::Corrupt { chance } => write!(f, "corrupt={chance}")?,
            FilterKind::Hang { after: 0 } => f.write_str("hang")?,
            FilterKind::Hang { after } => write!(f, "hang=after {after}")?,
            FilterKind::Rate { bytes_per_s } => write!(f, "rate={bytes_per_s}/s")?,
            FilterKind::Trace { file: None } => f.write_str("trace")?,
            FilterKind::Trace { file: Some(file) } => write!(f, "trace={}", file.display())?,
        }
        let class = self.class.and_then(|class| CLASSES.iter().find(|(_, known)| *known == class));
        class.map_or(Ok(()), |(name, _)| write!(f, ":{name}"))
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10_000, self.0 % 10_000) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, rest) => write!(f, "{whole}.{rest:04}%"),
        }
    }
}

struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        if micros.is_multiple_of(1000) {
            write!(f, "{}ms", micros / 1000)
        } else {
            write!(f, "{micros}us")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_read_as_they_are_shown() {
        for text in [
            "delay=5ms",
            "delay=250us..20ms:write",
            "error=1%:medium",
            "error=100%:nospace:write",
            "corrupt=0.1000%",
            "hang",
            "hang=after 7:read",
            "rate=10485760/s",
            "trace",
            "trace=/x/a:b",
            "delay=5ms,error=0.0001%:timeout:flush,trace,range=4096+1048576,seed=7",
        ] {
            assert_eq!(text.parse::<FilterSpec>().unwrap().to_string(), text);
        }
        let spec: FilterSpec = "delay=1s, error=0.5%:read, range=0+1MiB".parse().unwrap();
        assert_eq!(spec.to_string(), "delay=1000ms,error=0.5000%:medium:read,range=0+1048576");
        assert_eq!("rate=10MiB/s".parse::<FilterSpec>().unwrap().to_string(), "rate=10485760/s");
    }

    #[test]
    fn what_is_no_filter_is_refused_by_name() {
        for (text, part) in [
            ("", ""),
            ("seed=1", "seed=1"),
            ("delay", "delay"),
            ("delay=5", "delay=5"),
            ("delay=5ms,", ""),
            ("delay=9ms..5ms", "delay=9ms..5ms"),
            ("delay=3601s", "delay=3601s"),
            ("error=1", "error=1"),
            ("error=101%", "error=101%"),
            ("error=100.0001%", "error=100.0001%"),
            ("error=1.00001%", "error=1.00001%"),
            ("error=1%:nothing", "error=1%:nothing"),
            ("delay=5ms:medium", "delay=5ms:medium"),
            ("hang=5", "hang=5"),
            ("rate=10MiB", "rate=10MiB"),
            ("rate=0/s", "rate=0/s"),
            ("trace=", "trace="),
            ("hang,range=0+0", "range=0+0"),
            ("hang,seed=x", "seed=x"),
            ("slow", "slow"),
        ] {
            let error = text.parse::<FilterSpec>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("filter '{text}': '{part}' ")), "{error}");
        }
        assert!(["hang"; 16].join(",").parse::<FilterSpec>().is_ok());
        assert!(["hang"; 17].join(",").parse::<FilterSpec>().is_err());
    }
}
