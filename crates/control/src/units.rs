//! Units and names that all of the cluster shares.

use alloc::{format, string::String};
use core::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A moment of wall-clock time, which hosts of a cluster have in common up to some skew:
/// milliseconds since the beginning of 1970, UTC.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment so many milliseconds later; the last there is when that is beyond it.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this; 0 when that is later.
    #[must_use]
    pub const fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A data rate in bytes a second.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Rate(pub u64);

impl Rate {
    /// None at all.
    pub const ZERO: Self = Self(0);

    /// Both together; none when that is no rate.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// What is left without `other`; zero at least.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The rate of each of `parts` that have this together, rounded up.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub const fn share_of(self, parts: u64) -> Self {
        assert!(parts > 0, "a rate shared by nobody");
        Self(self.0.div_ceil(parts))
    }
}

/// What an agent has, or what of it somebody has: space, and rates of its devices and of its
/// network. The network's rate holds in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Bytes of its devices.
    pub space_bytes: u64,
    /// Of its devices.
    pub device: Rate,
    /// Of its network, in each direction.
    pub network: Rate,
}

impl Resources {
    /// Both together; none when a sum is too large.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        let space_bytes = self.space_bytes.checked_add(other.space_bytes);
        let (device, network) =
            (self.device.checked_add(other.device), self.network.checked_add(other.network));
        match (space_bytes, device, network) {
            (Some(space_bytes), Some(device), Some(network)) => {
                Some(Self { space_bytes, device, network })
            }
            _ => None,
        }
    }

    /// What is left of each without `other`; zero at least.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self {
            space_bytes: self.space_bytes.saturating_sub(other.space_bytes),
            device: self.device.saturating_sub(other.device),
            network: self.network.saturating_sub(other.network),
        }
    }

    /// Whether each is at least what `other` is.
    #[must_use]
    pub const fn holds(&self, other: &Self) -> bool {
        self.space_bytes >= other.space_bytes
            && self.device.0 >= other.device.0
            && self.network.0 >= other.network.0
    }
}

/// Who may write is told by a generation that only grows: raising it fences all before.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// What does not stand for an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no id: 32 hexadecimal digits")]
pub struct IdError(String);

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        /// 16 bytes, drawn at random by whoever makes it; written as 32 hexadecimal digits.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_id(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A storage agent: one host that owns devices.
    AgentId,
    /// A mediator; several may share agents.
    MediatorId,
    /// A volume, or a piece of named data: what a mediator has a name for.
    VolumeId,
    /// An agent's share of a volume.
    SegmentId,
    /// What an agent has booked for a mediator.
    AllotmentId,
    /// A transfer plan: who moves what, where, how fast, until when.
    PlanId,
    /// A request that a client may send more than once, and that is carried out once.
    RequestId,
}

fn parse_id(text: &str) -> Result<[u8; 16], IdError> {
    let wrong = || {
        let shown: String = text.chars().take(40).collect();
        IdError(format!("{}", shown.escape_default()))
    };
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return Err(wrong());
    }
    let mut id = [0_u8; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(wrong());
        };
        *byte = high << 4 | low;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn an_id_reads_as_it_is_written_and_in_no_other_way() {
        let id = VolumeId(core::array::from_fn(|at| u8::try_from(at * 17).unwrap()));
        let text = id.to_string();
        assert_eq!(text, "00112233445566778899aabbccddeeff");
        assert_eq!(text.parse(), Ok(id));
        for wrong in ["", &text[1..], &text.to_uppercase(), "00112233445566778899aabbccddeefg"] {
            assert!(wrong.parse::<VolumeId>().is_err(), "{wrong}");
        }
        // A character of several bytes is no pair of digits.
        assert!("é0112233445566778899aabbccddeeff".parse::<VolumeId>().is_err());
    }

    #[test]
    fn resources_hold_each_of_another_or_not() {
        let all = Resources { space_bytes: 10, device: Rate(5), network: Rate(7) };
        assert!(all.holds(&all));
        for more in [
            Resources { space_bytes: 11, ..all },
            Resources { device: Rate(6), ..all },
            Resources { network: Rate(8), ..all },
        ] {
            assert!(!all.holds(&more), "{more:?}");
        }
        assert_eq!(Resources { space_bytes: u64::MAX, ..all }.checked_add(all), None);
        assert_eq!(Rate(10).share_of(3), Rate(4));
    }
}
