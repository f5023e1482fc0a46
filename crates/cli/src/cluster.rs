//! What all commands to a cluster are given.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use netraid_cluster::{
    access::AccessFile,
    http::{Client, RequestError},
    mediator::{Layout, Mode, Spread, check_rates},
    serve::Limits,
};
use netraid_control::units::Rate;
use netraid_files::{Cluster, VolumeOptions};

use crate::size;

/// Which cluster, and who asks.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessArgs {
    /// Access file: where the mediator is, whom to trust, and a token; `netraid mediator access`
    /// writes one
    #[arg(long, value_name = "FILE", env = "NETRAID_ACCESS", hide_env_values = true)]
    access: Option<PathBuf>,
    /// How long the mediator is waited for where it is not reached, as while it restarts; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_bound)]
    retry: Duration,
}

impl AccessArgs {
    /// The way to the mediator.
    pub(crate) fn cluster(&self) -> Result<Cluster> {
        Ok(Cluster::with_access_file(self.path()?)?.with_patience(self.retry))
    }

    /// The way to the mediator's API, whose answers may take so long.
    pub(crate) fn client(&self, limit: Duration) -> Result<Client> {
        Ok(Client::with_access(&self.file()?, limit)?.with_patience(self.retry))
    }

    /// The access file itself.
    pub(crate) fn file(&self) -> Result<AccessFile> {
        Ok(AccessFile::read(self.path()?)?)
    }

    fn path(&self) -> Result<&Path> {
        self.access.as_deref().context(
            "no access file: give --access FILE or set NETRAID_ACCESS; the mediator wrote \
             admin.access and client.access into its directory",
        )
    }
}

/// What the HTTP API of a daemon lets in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits of the HTTP API")]
pub(crate) struct ApiArgs {
    /// Connections at a time; no more than a quarter of the descriptors that the process may have
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Connections of one IPv4 address, or of one /64 network of IPv6, at a time
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections_per_source: u32,
    /// How long a connection and the header of its first request may take, and that of each later one
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    header_timeout: Duration,
    /// How long the body of a request may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    body_timeout: Duration,
    /// How long a connection may be silent between requests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    idle_timeout: Duration,
    /// What the bodies of all requests may hold in memory at a time
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = size::parse)]
    body_memory: u64,
}

impl ApiArgs {
    /// The limits that they are.
    pub(crate) fn limits(&self) -> Limits {
        let count = |count: u32| count as usize;
        Limits {
            connections: count(self.connections),
            connections_per_source: count(self.connections_per_source),
            header: self.header_timeout,
            body: self.body_timeout,
            idle: self.idle_timeout,
            bodies_bytes: self.body_memory,
        }
    }
}

/// How something new is to be stored.
#[derive(Debug, Clone, Args)]
pub(crate) struct LayoutArgs {
    /// Members that may be lost without loss of data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    survives: u8,
    /// Level: 0, 1, 5, 6 or 10; chosen from --survives and what there is
    #[arg(long)]
    level: Option<u8>,
    /// Number of members; chosen from the rate
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    members: Option<u16>,
    /// Bytes that lie together on one member; chosen from the rate and the size of requests
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    chunk: Option<u64>,
    /// Bytes of the requests by which it will be used
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1MiB")]
    request: u64,
    /// What no two members may share
    #[arg(long, value_enum, default_value = "host")]
    spread: SpreadArg,
    /// Share hosts or racks where there is no other way; an agent is never shared
    #[arg(long)]
    may_share: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SpreadArg {
    Agent,
    Host,
    Rack,
}

impl LayoutArgs {
    /// The layout for this rate.
    pub(crate) fn layout(&self, rates: &RateArgs) -> Result<Layout> {
        let chunk_len = self.chunk.map(u32::try_from).transpose().context("--chunk: too large")?;
        Ok(Layout {
            rate: rates.rate.unwrap_or(Rate::ZERO),
            request_bytes: self.request,
            survives: self.survives,
            degraded: !rates.not_degraded,
            level: self.level,
            chunk_len,
            members: self.members,
            spread: match self.spread {
                SpreadArg::Agent => Spread::Agent,
                SpreadArg::Host => Spread::Host,
                SpreadArg::Rack => Spread::Rack,
            },
            may_share: self.may_share,
        })
    }
}

/// How fast it is to be, whatever others do.
#[derive(Debug, Clone, Args)]
pub(crate) struct RateArgs {
    /// Bytes a second that are to be there whatever others do: granted and then held, or refused
    /// with the most that could be had
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(crate) rate: Option<Rate>,
    /// Bytes a second at most
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    limit: Option<Rate>,
    /// Let the rate end when a member is lost: less is booked then
    #[arg(long)]
    not_degraded: bool,
}

impl RateArgs {
    /// Whether there is a plan for that, whatever is left of agents: asked before anything is changed.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(check_rates(self.rate.unwrap_or(Rate::ZERO), self.limit)?)
    }

    /// How a volume is opened for that.
    pub(crate) fn options(&self, mode: Mode) -> VolumeOptions {
        VolumeOptions {
            rate: self.rate.unwrap_or(Rate::ZERO),
            limit: self.limit,
            degraded: !self.not_degraded,
            ..VolumeOptions::new(mode)
        }
    }
}

/// A rate as people write it: `200MiB/s`.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, String> {
    size::parse(text.strip_suffix("/s").unwrap_or(text))
        .map(Rate)
        .map_err(|error| error.to_string())
}

/// A time as people write it: `500ms`, `30s`, `10m`, `2h`, `30d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let of = |(unit, ms): (&str, u64)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(ms).filter(|ms| *ms > 0)
    };
    let ms = units.into_iter().find_map(of);
    ms.map(Duration::from_millis).ok_or_else(|| format!("'{text}' is no time; write 30s, 10m, 2h"))
}

/// A time that may be none: `0`, or as [`parse_duration`] reads it.
fn parse_bound(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") { Ok(Duration::ZERO) } else { parse_duration(text) }
}

/// A refusal, with what could be had instead.
pub(crate) fn with_offer(error: anyhow::Error) -> anyhow::Error {
    let request =
        error.chain().find_map(|cause| match cause.downcast_ref::<netraid_files::Error>() {
            Some(netraid_files::Error::Mediator(request)) => Some(request),
            _ => cause.downcast_ref::<RequestError>(),
        });
    let offer = request.and_then(RequestError::problem).and_then(|problem| problem.offer.as_ref());
    match offer {
        Some(offer) => {
            let rate = offer.rate.0;
            anyhow::anyhow!("{error}; at most {}/s can be had now: --rate {rate}", size::show(rate))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_is_meant() {
        let ms = |text: &str| parse_duration(text).map(|time| time.as_millis());
        let all = [("500ms", 500), ("30s", 30_000), ("10m", 600_000), ("1d", 86_400_000)];
        for (text, expected) in all {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for wrong in ["", "5", "0s", "-1s", "1.5s", "5 s", "99999999999999999999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
