//! The members that are climbed on: targets of our own, or those that were given, which are left empty.

use anyhow::{Context as _, Result};
use netraid_block::{BufMut, TargetUri, narrow};
use netraid_engine::{
    array::{self, CreateOptions, Log, MemberConfig},
    completions,
    initiator::{InitiatorConfig, Remote},
};
use netraid_raid::{
    geometry::{Geometry, Level},
    regions::SIGNATURE_LEN,
};
use std::sync::Arc;

use super::{
    super::{
        Options,
        subject::{Bench, Own, ram_target},
    },
    ClimbArgs,
};
use crate::{member::configs, process::Daemon, signal::Stop};

/// Bytes of a chunk.
pub(super) const CHUNK_LEN: u32 = 64 << 10;
/// Least size of a target of our own: a log needs its place.
const OWN_LEN_MIN: u64 = 128 << 20;

/// Members, in order.
pub(super) struct Members {
    urls: Vec<String>,
    options: Options,
    daemons: Vec<Daemon>,
}

impl Members {
    /// Starts targets, or takes those that were given, if nothing is on them.
    ///
    /// # Errors
    /// When a member cannot be reached or is in use, or members are of very different sizes: then
    /// nothing was written.
    pub(super) async fn gather(args: &ClimbArgs) -> Result<Self> {
        let mut daemons = Vec::new();
        if args.urls.is_empty() {
            // A volume of one member has room for all that is used, and a log beside it.
            let len = (2 * args.span).max(OWN_LEN_MIN);
            for index in 0..args.members {
                daemons.push(ram_target(index, len, args.filter.as_deref())?);
            }
        }
        let own = daemons.iter().map(|daemon| daemon.ready_text("/luns/0/uri"));
        let own: Vec<String> = own.collect::<Result<_>>()?;
        let urls = if own.is_empty() { args.urls.clone() } else { own };
        let pids = daemons.iter().map(Daemon::pid).chain(args.server_pid.iter().copied());
        let options = args.options(pids.collect(), args.depth);
        let members = Self { urls, options, daemons };
        if !members.are_own() {
            members.create(Level::Raid0, members.count()).await?;
            members.wipe(members.count()).await?;
        }
        Ok(members)
    }

    /// Whether they are targets of our own, in memory of this machine.
    pub(super) fn are_own(&self) -> bool {
        !self.daemons.is_empty()
    }

    pub(super) fn count(&self) -> u8 {
        narrow(self.urls.len())
    }

    /// Their addresses, without secrets.
    pub(super) fn shown(&self) -> Vec<String> {
        let shown = |url: &String| {
            TargetUri::parse(url).map_or_else(|_| String::new(), |uri| uri.to_string())
        };
        self.urls.iter().map(shown).collect()
    }

    /// Those of the counts up to all for which there are volumes of this level.
    pub(super) fn counts(&self, level: Level) -> Vec<u8> {
        let fits =
            |count: &u8| Geometry::new(level, usize::from(*count), CHUNK_LEN, 512, 1, 0).is_ok();
        (1..=self.count()).filter(fits).collect()
    }

    /// The first members, without an array.
    pub(super) async fn raw(&self, count: u8) -> Result<Vec<Bench>> {
        let mut benches = Vec::new();
        for url in self.first(count) {
            benches.push(Bench::member(Some(url), &self.options).await?);
        }
        Ok(benches)
    }

    /// A volume of the first members, driven by this process.
    pub(super) async fn volume(&self, level: Level, count: u8, stop: &Stop) -> Result<Bench> {
        self.create(level, count).await?;
        let own = Own {
            level: level.number(),
            members: count,
            log: None,
            log_size: None,
            member_size: None,
            checksum_cache: None,
            read_ahead: None,
            age: 0,
            filter: None,
            nbd: false,
        };
        Bench::volume(self.first(count), &own, &self.options, stop).await
    }

    /// A volume of all members through an NBD export, driven by a process of its own.
    pub(super) async fn export(&self, level: Level) -> Result<Bench> {
        self.create(level, self.count()).await?;
        let what = format!("level {} of {} members", level.number(), self.count());
        let mut arguments = vec![format!("--sessions={}", self.options.sessions)];
        if let Some(path) = &self.options.secrets.secret_file {
            arguments.push("--secret-file".into());
            arguments.push(path.to_str().context("--secret-file: is not UTF-8")?.into());
        }
        if self.options.secrets.allow_none {
            arguments.push("--allow-none".into());
        }
        Bench::through_nbd(what, &self.urls, arguments, &self.options)
    }

    /// Takes the labels of arrays away, and what makes a member look used.
    ///
    /// # Errors
    /// When a member cannot be reached or written.
    pub(super) async fn wipe(&self, count: u8) -> Result<()> {
        for config in configs(self.first(count), &self.options.secrets)? {
            let address = config.address();
            wipe(config).await.with_context(|| format!("{address}: emptying it"))?;
        }
        Ok(())
    }

    /// Leaves given members empty, and ends targets of our own.
    pub(super) async fn leave(&self) -> Result<()> {
        if self.are_own() { Ok(()) } else { self.wipe(self.count()).await }
    }

    async fn create(&self, level: Level, count: u8) -> Result<()> {
        let options = CreateOptions {
            name: "bench".into(),
            level,
            chunk_len: Some(CHUNK_LEN),
            force: false,
            keep_opened: false,
            log: if level == Level::Raid0 { Log::Off } else { Log::On(None) },
        };
        let members = configs(self.first(count), &self.options.secrets)?;
        array::create(options, members, netraid_engine::pool()).await?;
        Ok(())
    }

    fn first(&self, count: u8) -> &[String] {
        &self.urls[..usize::from(count).min(self.urls.len())]
    }
}

async fn wipe(member: MemberConfig) -> Result<()> {
    let mut config = InitiatorConfig::new(member.uri);
    config.secret = member.secret;
    if let Some((user, secret)) = member.mutual {
        (config.target_user, config.target_secret) = (user, Some(secret));
    }
    let remote = Arc::new(Remote::connect(config, netraid_engine::pool()).await?);
    let device = remote.clone().into_device();
    let info = device.info();
    let (capacity, part) = (info.capacity, u64::from(info.max_transfer_len).min(SIGNATURE_LEN));
    let zeros = BufMut::zeroed(usize::try_from(part)?);
    let zeros = zeros.freeze();
    for start in [0, capacity.saturating_sub(SIGNATURE_LEN)] {
        let end = (start + SIGNATURE_LEN).min(capacity);
        let mut at = start;
        while at < end {
            let len = (end - at).min(part);
            let data = zeros.slice(0..usize::try_from(len)?);
            completions::write(&device, at, data.into(), false).await?;
            at += len;
        }
    }
    completions::flush(&device).await?;
    remote.close().await;
    Ok(())
}
