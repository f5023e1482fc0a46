//! `netraid bench export`: memory over NBD, so that an export can be measured alone, beside other NBD servers.

use anyhow::{Result, bail};
use clap::Args;
use netraid_engine::backings;
use netraid_export::nbd::{NbdAddress, NbdServer};
use serde::Serialize;

use crate::{output::Output, signal::Stop, size};

/// Logical block of what is exported, in bytes.
const BLOCK_LEN: u32 = 512;
/// What it is called.
const NAME: &str = "memory";

#[derive(Debug, Clone, Args)]
pub(super) struct ExportArgs {
    /// Address and port, or unix:PATH
    #[arg(long, value_name = "ADDR:PORT")]
    nbd: NbdAddress,
    /// Bytes of memory
    #[arg(long, default_value = "256MiB", value_parser = size::parse)]
    size: u64,
}

#[derive(Debug, Serialize)]
struct Ready {
    event: &'static str,
    name: &'static str,
    uri: String,
    capacity_bytes: u64,
}

/// Serves until told to stop.
pub(super) async fn run(args: &ExportArgs, output: Output) -> Result<()> {
    if let NbdAddress::Tcp(address) = &args.nbd
        && !address.ip().is_loopback()
    {
        bail!("{address}: is not on this machine alone; give an address of the loopback");
    }
    let mut stop = Stop::listen()?;
    let pool = netraid_engine::pool();
    let device = backings::ram(args.size, BLOCK_LEN, pool.clone())?;
    let server = NbdServer::bind(&args.nbd, device, NAME, pool).await?;
    let uri = server.uri();
    let ready = Ready { event: "ready", name: NAME, uri, capacity_bytes: args.size };
    output.document(&ready, || format!("{} in memory as {}", size::show(args.size), ready.uri))?;
    Ok(server.run(stop.wait()).await?)
}
