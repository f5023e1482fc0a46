//! How fast initiators may go.

use anyhow::{Result, bail};
use clap::Args;
use netraid_engine::target::{Pace, Pacing, Rate, TargetConfig};

use super::access::initiator_name;
use crate::size;

#[derive(Debug, Clone, Args)]
pub(super) struct RateArgs {
    /// What devices and network do together, a second: it is shared among initiators, by floors,
    /// limits and weights, and nothing is sent or asked for faster
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    rate: Option<Rate>,
    /// What an initiator gets at least and at most, a second, and its weight where that leaves a
    /// choice: FLOOR (0 for none), LIMIT (none when empty), WEIGHT (1); may be given several times
    #[arg(long, value_name = "IQN=FLOOR[,LIMIT[,WEIGHT]]", value_parser = pace)]
    pace: Vec<(String, Pace)>,
}

impl RateArgs {
    /// Puts it into the configuration.
    pub(super) fn apply(&self, config: &mut TargetConfig) -> Result<()> {
        config.pacing = self.rate.map(|rate| Pacing::new(rate, rate));
        match &mut config.pacing {
            Some(pacing) => pacing.paces.extend(self.pace.iter().cloned()),
            None if !self.pace.is_empty() => {
                bail!("--pace shares what --rate says that there is; give that too")
            }
            None => {}
        }
        Ok(())
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    size::parse(text.strip_suffix("/s").unwrap_or(text))
        .map(Rate)
        .map_err(|error| error.to_string())
}

fn pace(text: &str) -> Result<(String, Pace), String> {
    let (name, numbers) =
        text.split_once('=').ok_or("is not IQN=FLOOR[,LIMIT[,WEIGHT]]".to_owned())?;
    let mut numbers = numbers.split(',');
    let floor = match numbers.next() {
        None | Some("" | "0") => Rate::ZERO,
        Some(floor) => rate(floor)?,
    };
    let limit = numbers.next().filter(|limit| !limit.is_empty()).map(rate).transpose()?;
    let weight = match numbers.next() {
        None => 1,
        Some(weight) => weight.parse().map_err(|_| format!("'{weight}' is not a weight"))?,
    };
    if numbers.next().is_some() {
        return Err("has more than FLOOR, LIMIT and WEIGHT".to_owned());
    }
    let pace = Pace { floor, limit, weight };
    pace.check().map_err(|error| error.to_string())?;
    Ok((initiator_name(name)?, pace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_read_as_it_is_meant() {
        let name = "iqn.2026-01.org.example:a";
        let read = |numbers: &str| pace(&format!("{name}={numbers}")).map(|(_, pace)| pace);
        let mib = 1 << 20;
        let all = [
            ("0", Pace::FREE),
            ("2MiB/s", Pace { floor: Rate(2 * mib), ..Pace::FREE }),
            ("0,3MiB", Pace { limit: Some(Rate(3 * mib)), ..Pace::FREE }),
            ("0,,7", Pace { weight: 7, ..Pace::FREE }),
            ("1MiB,3MiB,2", Pace { floor: Rate(mib), limit: Some(Rate(3 * mib)), weight: 2 }),
        ];
        for (text, expected) in all {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for wrong in ["x", "2MiB,1MiB", "0,0", "0,,0", "0,1MiB,1,1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(pace("1MiB").is_err() && pace("somebody=1MiB").is_err());
    }
}
