//! `netraid target`: serves LUNs over iSCSI.

use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use netraid_block::{Device, Pool};
use netraid_engine::{
    backings::{self, FileOptions},
    target::{DigestPolicy, Identity, Lun, Target, TargetConfig},
};
use serde::Serialize;

use crate::{
    lun::LunSpec,
    output::Output,
    runtime,
    secret::{ChapFile, read_chap_file},
    signal::{Stop, stop_with_parent},
    size,
};

#[derive(Debug, Clone, Args)]
pub(crate) struct TargetArgs {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3260")]
    listen: Vec<String>,
    /// iSCSI name of the target
    #[arg(long, default_value = "iqn.2026-01.netraid:target")]
    iqn: String,
    /// LUN 0, 1, ...: ram:SIZE, or file:PATH[:SIZE] (made, sparse, when a size is given)
    #[arg(long, value_name = "BACKING", required = true)]
    lun: Vec<LunSpec>,
    /// Logical block in bytes
    #[arg(long, default_value = "512", value_parser = ["512", "4096"])]
    block_len: String,
    /// Let in only who knows this: 'user:secret' in one line, or user and secret in two; a last
    /// line 'mutual:user:secret' is the target's own proof for initiators that ask for one
    #[arg(long, value_name = "FILE")]
    chap_file: Option<PathBuf>,
    /// Digests that initiators may, or must, use
    #[arg(long, value_enum, default_value_t = Digests::Allowed)]
    digests: Digests,
    /// Allow everybody in, also from other hosts
    #[arg(long)]
    insecure: bool,
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Digests {
    Never,
    Allowed,
    Required,
}

/// What the target says once it serves.
#[derive(Debug, Serialize)]
struct Ready {
    event: &'static str,
    iqn: String,
    addresses: Vec<String>,
    luns: Vec<ReadyLun>,
}

#[derive(Debug, Serialize)]
struct ReadyLun {
    lun: usize,
    uri: String,
    backing: String,
    capacity_bytes: u64,
}

pub(crate) fn run(args: &TargetArgs, output: Output) -> Result<()> {
    if args.exit_with_parent {
        stop_with_parent()?;
    }
    let mut config = TargetConfig::new(args.iqn.clone());
    config.listen = listen_addresses(args)?;
    let chap = args.chap_file.as_deref().map(read_chap_file).transpose()?;
    let user = chap.as_ref().map(|chap| chap.initiators.user.clone());
    if let Some(ChapFile { initiators, target }) = chap {
        config.chap = Some(initiators);
        config.mutual_chap = target;
    }
    config.header_digest = args.digests.policy();
    config.data_digest = args.digests.policy();
    let pool = Pool::new();
    let devices = args.lun.iter().map(|lun| open(lun, args, &pool)).collect::<Result<Vec<_>>>()?;
    let luns = (0..).zip(args.lun.iter().zip(&devices));
    let luns = luns.map(|(number, (spec, device))| Lun {
        device: device.clone(),
        // Backings of ours read as zeros where they were discarded.
        discard_zeroes: true,
        identity: Some(identity(&args.iqn, number, spec)),
        policy: None,
    });
    let target = Target::bind(config, luns.collect(), pool)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut stop = Stop::listen()?;
        announce(args, user.as_deref(), &target, &devices, output)?;
        target.run(async { stop.wait().await }).await?;
        anyhow::Ok(())
    })
}

fn listen_addresses(args: &TargetArgs) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for text in &args.listen {
        let found = text.to_socket_addrs().with_context(|| {
            format!("address '{text}': is not HOST:PORT; write 127.0.0.1:3260 or [::1]:3260")
        })?;
        addresses.extend(found);
    }
    let open = addresses.iter().find(|address| !address.ip().is_loopback());
    if let (Some(open), None, false) = (open, &args.chap_file, args.insecure) {
        bail!(
            "address {open}: other hosts could read and write without a secret; give \
             --chap-file FILE, or --insecure where everybody is trusted"
        );
    }
    Ok(addresses)
}

fn open(lun: &LunSpec, args: &TargetArgs, pool: &Pool) -> Result<Device> {
    let block_len = args.block_len.parse()?;
    Ok(match lun {
        LunSpec::Ram { len } => backings::ram(*len, block_len, pool.clone())?,
        LunSpec::File { path, len } => {
            let options = FileOptions { size: *len, block_len, ..FileOptions::default() };
            backings::file(path, &options, pool.clone())?
        }
    })
}

/// Who a logical unit is: the same as long as its bytes are, and no other's, although targets on
/// several hosts may have one name.
fn identity(iqn: &str, lun: u16, spec: &LunSpec) -> Identity {
    let place = match spec {
        LunSpec::Ram { .. } => format!("{:032x}", rand::random::<u128>()),
        LunSpec::File { path, .. } => {
            let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            let file = path.metadata().map(|file| (file.dev(), file.ino()));
            format!("{machine} {file:?}")
        }
    };
    let own = Identity::for_lun(&format!("{iqn} {place}"), lun);
    Identity { target_name: iqn.to_string(), ..own }
}

fn announce(
    args: &TargetArgs,
    user: Option<&str>,
    target: &Target,
    devices: &[Device],
    output: Output,
) -> Result<()> {
    let addresses: Vec<String> = target.local_addrs().iter().map(ToString::to_string).collect();
    let first = addresses.first().context("the target listens nowhere")?;
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let luns = args.lun.iter().zip(devices).enumerate().map(|(lun, (spec, device))| ReadyLun {
        lun,
        uri: format!("iscsi://{user}{first}/{}/{lun}", args.iqn),
        backing: spec.to_string(),
        capacity_bytes: device.info().capacity,
    });
    let luns = luns.collect();
    let ready = Ready { event: "ready", iqn: args.iqn.clone(), addresses, luns };
    output.document(&ready, || {
        let line = |lun: &ReadyLun| {
            format!("{}  {}  {}\n", lun.uri, size::show(lun.capacity_bytes), lun.backing)
        };
        ready.luns.iter().map(line).collect()
    })
}

impl Digests {
    const fn policy(self) -> DigestPolicy {
        match self {
            Self::Never => DigestPolicy::Never,
            Self::Allowed => DigestPolicy::Allowed,
            Self::Required => DigestPolicy::Required,
        }
    }
}
