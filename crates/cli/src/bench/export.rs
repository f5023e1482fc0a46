//! `netraid bench export`: memory over NBD or FUSE, so that an export can be measured alone, beside other servers.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use netraid_engine::backings;
use netraid_export::{
    Users,
    fuse::FuseMount,
    nbd::{NbdAddress, NbdServer},
};
use serde::Serialize;

use crate::{output::Output, signal::Stop, size};

/// Logical block of what is exported, in bytes.
const BLOCK_LEN: u32 = 512;
/// What it is called.
const NAME: &str = "memory";

#[derive(Debug, Clone, Args)]
pub(super) struct ExportArgs {
    /// Address and port, or unix:PATH
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "fuse")]
    nbd: Option<NbdAddress>,
    /// An empty directory, where it becomes a file, instead
    #[arg(long, value_name = "DIR", conflicts_with = "nbd")]
    fuse: Option<PathBuf>,
    /// Bytes of memory
    #[arg(long, default_value = "256MiB", value_parser = size::parse)]
    size: u64,
}

#[derive(Debug, Serialize)]
struct Ready {
    event: &'static str,
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    capacity_bytes: u64,
}

/// Serves until told to stop.
pub(super) async fn run(args: &ExportArgs, output: Output) -> Result<()> {
    let mut stop = Stop::listen()?;
    let pool = netraid_engine::pool();
    let device = backings::ram(args.size, BLOCK_LEN, pool.clone())?;
    let announce = |uri: Option<String>, path: Option<PathBuf>| {
        let ready = Ready { event: "ready", name: NAME, uri, path, capacity_bytes: args.size };
        let at = ready.path.iter().map(|path| path.display().to_string());
        let at: String = ready.uri.iter().cloned().chain(at).collect();
        output.announce(&ready, || format!("{} in memory as {at}", size::show(args.size)));
    };
    if let Some(directory) = &args.fuse {
        let mount = FuseMount::mount(directory, device, NAME, pool, Users::default())?;
        announce(None, Some(mount.file().to_path_buf()));
        return Ok(mount.run(stop.wait()).await?);
    }
    let Some(address) = &args.nbd else { bail!("give --nbd or --fuse") };
    if let NbdAddress::Tcp(address) = address
        && !address.ip().is_loopback()
    {
        bail!("{address}: is not on this machine alone; give an address of the loopback");
    }
    let server = NbdServer::bind(address, device, NAME, pool).await?;
    announce(Some(server.uri()), None);
    Ok(server.run(stop.wait()).await?)
}
