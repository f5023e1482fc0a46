//! Why a volume is placed as it is, or is not, in words.

use core::fmt;

use netraid_raid::{geometry::Level, regions::RegionsError};

use super::{Domain, UnitWhy};
use crate::units::{Rate, Resources};

/// What decided something of a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Why this level.
    Level {
        /// The level.
        level: Level,
        /// Losses that the volume survives.
        survives: u8,
        /// What decided.
        why: LevelWhy,
    },
    /// Why so many members.
    Members {
        /// How many.
        members: usize,
        /// What decided.
        why: MembersWhy,
    },
    /// Why this striping unit.
    Unit {
        /// Bytes of it.
        chunk_len: u32,
        /// Data columns: units of a stripe that hold the volume's data.
        data_columns: u64,
        /// Bytes of a request.
        request_bytes: u64,
        /// What decided.
        why: UnitWhy,
    },
    /// What is booked of each member's rates, and for what.
    Load {
        /// The rate of the volume.
        rate: Rate,
        /// What is booked of each member.
        each: Resources,
        /// Members that may be lost meanwhile.
        lost: u8,
        /// Per cent of what is written that goes through the log in parts of stripes.
        through_log_percent: u64,
    },
    /// Members that share a domain, because there are not enough of these.
    Shared {
        /// The domains asked for.
        asked: Domain,
        /// The domains of which none has two members.
        distinct: Domain,
        /// Members in the one that has most.
        most: usize,
        /// Whether the volume survives the loss of any one.
        survives: bool,
    },
}

/// What decided a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelWhy {
    /// The caller.
    Asked,
    /// It takes the least space of all that survive as many losses.
    LeastSpace,
    /// The one that would take less space cannot be had.
    Instead(Level),
}

/// What decided a number of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembersWhy {
    /// The caller.
    Asked,
    /// It is the least of the level, and enough.
    Least,
    /// Even so many would give more than their share, and there are no more.
    Most {
        /// Per cent of its rates that each should give at most.
        share_percent: u8,
    },
    /// Fewer would have to give more than enough of them have, or should.
    Fewest {
        /// One fewer, or two at level 10.
        fewer: usize,
        /// What each of them would have to give.
        need: Resources,
        /// How many domains have that.
        have: usize,
        /// Of what kind.
        domain: Domain,
        /// Per cent of its rates that each should give at most.
        share_percent: u8,
    },
}

/// What a request lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// No bytes at all were asked for.
    Size,
    /// The level asked for does not survive so much.
    Resilience {
        /// Level.
        level: Level,
        /// With so many members.
        members: usize,
        /// Losses it should survive.
        survives: u8,
    },
    /// There is no such array.
    Shape(RegionsError),
    /// There are not enough domains with agents that take members, whatever they have left.
    Domains {
        /// Level.
        level: Level,
        /// Members that it takes.
        members: usize,
        /// Of what kind.
        domain: Domain,
        /// How many there are.
        domains: usize,
    },
    /// Agents have too little left.
    Left {
        /// Level of the shape that comes nearest.
        level: Level,
        /// Its members.
        members: usize,
        /// What each would have to give.
        need: Resources,
        /// Of what kind domains are.
        domain: Domain,
        /// How many have that.
        have: usize,
        /// What agents lack.
        lacking: Lacking,
    },
    /// No number of members could hold so much, or be asked for such a rate.
    Beyond {
        /// Level of the widest shape.
        level: Level,
        /// Its members.
        members: usize,
    },
}

/// How many agents lack what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lacking {
    /// All that take members.
    pub agents: usize,
    /// Those with too little space.
    pub space: usize,
    /// Those whose devices have too little rate left.
    pub device: usize,
    /// Those whose network has.
    pub network: usize,
}

impl Lacking {
    /// What most of them lack.
    #[must_use]
    pub fn limit(&self) -> &'static str {
        if self.space >= self.device.max(self.network) {
            "space"
        } else if self.device >= self.network {
            "device rate"
        } else {
            "network rate"
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level { level, survives, why } => {
                let number = level.number();
                match why {
                    LevelWhy::Asked => write!(f, "level {number}: asked for"),
                    LevelWhy::LeastSpace => write!(
                        f,
                        "level {number}: takes the least space of what survives {survives} lost"
                    ),
                    LevelWhy::Instead(level) => write!(
                        f,
                        "level {number}: level {} would take less space, but cannot be had",
                        level.number()
                    ),
                }
            }
            Self::Members { members, why } => write_members(f, *members, why),
            Self::Unit { chunk_len, data_columns, request_bytes, why } => {
                write_unit(f, *chunk_len, *data_columns, *request_bytes, *why)
            }
            Self::Load { rate, each, lost, through_log_percent } => {
                if *rate == Rate::ZERO {
                    return write!(f, "no rate: none was asked for");
                }
                let (device, network) = (ShowRate(each.device), ShowRate(each.network));
                write!(f, "{device} of each device, {network} of each network")?;
                let rate = ShowRate(*rate);
                match lost {
                    0 => write!(f, ": {rate} while nothing is lost")?,
                    lost => write!(f, ": {rate} also with {lost} lost")?,
                }
                match through_log_percent {
                    0 => Ok(()),
                    percent => write!(f, "; {percent}% is written in parts of stripes"),
                }
            }
            Self::Shared { asked, distinct, most, survives } => {
                write!(f, "up to {most} members in one {asked}, none in one {distinct}: ")?;
                let end = if *survives { "survives" } else { "does not survive" };
                write!(f, "there are too few, and it {end} the loss of any {asked}")
            }
        }
    }
}

fn write_members(f: &mut fmt::Formatter<'_>, members: usize, why: &MembersWhy) -> fmt::Result {
    match why {
        MembersWhy::Asked => write!(f, "{members} members: asked for"),
        MembersWhy::Least => write!(f, "{members} members: the fewest of the level"),
        MembersWhy::Most { share_percent } => write!(
            f,
            "{members} members: as many as can be had; even so each gives more than \
             {share_percent}% of its rate"
        ),
        MembersWhy::Fewest { fewer, need, have, domain, share_percent } => {
            write!(f, "{members} members: the fewest that carry it; ")?;
            write!(f, "{fewer} would have to give {} each, ", ShowResources(need))?;
            write!(f, "which {} left", Have(*have, *domain))?;
            match share_percent {
                100.. => Ok(()),
                percent => write!(f, " within {percent}% of its rate"),
            }
        }
    }
}

fn write_unit(
    f: &mut fmt::Formatter<'_>,
    chunk_len: u32,
    columns: u64,
    request: u64,
    why: UnitWhy,
) -> fmt::Result {
    let request = ShowBytes(request);
    write!(f, "unit of {}: ", ShowBytes(chunk_len.into()))?;
    match why {
        UnitWhy::Asked => write!(f, "asked for"),
        UnitWhy::Request => write!(f, "the largest of which {request} fills {columns}"),
        UnitWhy::Least => {
            write!(f, "the least there is; {request} does not fill {columns} of them")
        }
        UnitWhy::Most => write!(f, "the largest there is"),
        UnitWhy::SmallVolume => write!(f, "a larger one is too large for so small a volume"),
        UnitWhy::LargeVolume => write!(f, "with a smaller one there would be too many stripes"),
        UnitWhy::Record => {
            write!(f, "with a larger one checksums of a stripe fill more than a record")
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size => write!(f, "a volume of 0 bytes; give a size"),
            Self::Resilience { level, members, survives } => write!(
                f,
                "level {} of {members} members does not survive {survives} lost; give another \
                 level, or none",
                level.number()
            ),
            Self::Shape(error) => error.fmt(f),
            Self::Domains { level, members, domain, domains } => write!(
                f,
                "level {} takes {members} {domain}s, and {domains} have agents that take members; \
                 add agents, or spread over something smaller",
                level.number()
            ),
            Self::Left { level, members, need, domain, have, lacking } => {
                write!(
                    f,
                    "too little {}: level {} over {members} {domain}s takes {} of each, which {} \
                     left",
                    lacking.limit(),
                    level.number(),
                    ShowResources(need),
                    Have(*have, *domain)
                )?;
                let Lacking { agents, space, device, network } = *lacking;
                let each = [(space, "space"), (device, "device rate"), (network, "network rate")];
                for (at, (count, what)) in each.iter().filter(|(count, _)| *count > 0).enumerate() {
                    match at {
                        0 => write!(f, "; of {agents} agents {count} lack {what}")?,
                        _ => write!(f, ", {count} {what}")?,
                    }
                }
                Ok(())
            }
            Self::Beyond { level, members } => write!(
                f,
                "even level {} over {members} members cannot be so large or so fast; ask for less",
                level.number()
            ),
        }
    }
}

impl core::error::Error for Why {}

/// "3 hosts have".
struct Have(usize, Domain);

impl fmt::Display for Have {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, domain) = self;
        match count {
            0 => write!(f, "no {domain} has"),
            1 => write!(f, "1 {domain} has"),
            count => write!(f, "{count} {domain}s have"),
        }
    }
}

pub(super) struct ShowResources<'a>(pub(super) &'a Resources);

impl fmt::Display for ShowResources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Resources { space_bytes, device, network } = self.0;
        write!(f, "{}", ShowBytes(*space_bytes))?;
        if *device == Rate::ZERO && *network == Rate::ZERO {
            return Ok(());
        }
        write!(f, ", device {}, network {}", ShowRate(*device), ShowRate(*network))
    }
}

/// Bytes in the largest unit of 1024 that they fill, rounded up to a tenth.
pub(super) struct ShowBytes(pub(super) u64);

impl fmt::Display for ShowBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 5] = [
            ("PiB", 1 << 50),
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        show(f, self.0, &UNITS, "B")
    }
}

/// A rate in the largest unit of 1000 that it fills, rounded up to a tenth.
pub(super) struct ShowRate(pub(super) Rate);

impl fmt::Display for ShowRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] =
            [("GB/s", 1_000_000_000), ("MB/s", 1_000_000), ("kB/s", 1_000)];
        show(f, self.0.0, &UNITS, "B/s")
    }
}

fn show(
    f: &mut fmt::Formatter<'_>,
    value: u64,
    units: &[(&str, u64)],
    smallest: &str,
) -> fmt::Result {
    let Some((name, unit)) = units.iter().find(|(_, unit)| value >= *unit) else {
        return write!(f, "{value} {smallest}");
    };
    let tenths = (u128::from(value) * 10).div_ceil(u128::from(*unit));
    match tenths % 10 {
        0 => write!(f, "{} {name}", tenths / 10),
        tenth => write!(f, "{}.{tenth} {name}", tenths / 10),
    }
}
