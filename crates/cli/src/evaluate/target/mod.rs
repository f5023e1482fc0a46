//! What is evaluated: how it is reached, what it is, and that nothing is touched which is somebody's.
//!
//! A directory gets one of its own for the run, with files in it. Anything else is overwritten, over all of
//! its address range, and only with `--destroy-data`.

mod guard;
mod local;
mod redundancy;
mod store;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use netraid_block::{Op, RequestFlags, SgList, TargetUri, redact_addresses};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Remote},
};
use netraid_evaluate::{
    places::Places,
    plan::SLOTS,
    record::{TargetInfo, TargetKind},
};
use serde::{Deserialize, Serialize};

use self::store::{At, FileStore, LunStore, NbdStore};
pub(super) use self::{
    guard::{same, tape},
    redundancy::{of_control, status},
    store::Store,
};
use crate::{
    member::configs,
    nbd_client::{Command, Job, NbdClient, NbdUri, Source},
    runtime,
    secret::SecretArgs,
};

/// How a target is reached: all that another process needs to open its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Reach {
    pub(super) kind: TargetKind,
    /// As it was given: an address may carry a secret, and is never shown.
    address: String,
    /// Directory of this run.
    directory: Option<PathBuf>,
    /// Bytes of a device.
    capacity: u64,
    /// Largest file and request, from which the map of a device follows.
    file_bytes: u64,
    request: u32,
    /// Whether files are opened for direct I/O.
    direct: bool,
    secret_file: Option<PathBuf>,
    #[serde(default)]
    allow_none: bool,
    /// The boot of the machine that began: a path to a device means that machine's.
    boot: String,
}

/// A target that is open for a run. Dropping it takes its directory away.
pub(super) struct Target {
    pub(super) reach: Reach,
    pub(super) info: TargetInfo,
    pub(super) control: Option<String>,
    /// Held open, so that nobody mounts it meanwhile.
    _exclusive: Option<File>,
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Open {
    /// A new one; the one before it goes.
    New,
    /// One that is there.
    Old,
}

/// What the user allows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    /// Devices, files and exports may be overwritten.
    pub(super) destroy: bool,
    /// Even members of arrays.
    pub(super) force: bool,
    /// Clients of other hosts take part.
    pub(super) remote: bool,
}

/// Sizes that say where files lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) file_bytes: u64,
    pub(super) request: u32,
}

impl Target {
    /// Opens a target. `run` names its directory; one of an earlier sitting of the same run is taken away.
    pub(super) fn open(
        (index, address): (u16, &str),
        control: Option<&str>,
        run: &str,
        sizes: Sizes,
        allowed: Allowed,
        secrets: &SecretArgs,
    ) -> Result<Self> {
        let mut reach = Reach {
            kind: kind_of(address)?,
            address: address.to_owned(),
            directory: None,
            capacity: 0,
            file_bytes: sizes.file_bytes,
            request: sizes.request,
            direct: false,
            secret_file: secrets.secret_file.clone(),
            allow_none: secrets.allow_none,
            boot: guard::boot(),
        };
        let shown = redact_addresses(address);
        if reach.is_local_device() && allowed.remote {
            bail!(
                "{shown}: its path may name another device on the hosts of --client; give an address \
                 (iscsi://..., nbd://...) or a directory that is mounted there, or no --client"
            );
        }
        if reach.kind != TargetKind::Directory && !allowed.destroy {
            bail!(
                "{shown}: everything on it would be overwritten; give --destroy-data if nobody needs it, or a \
                 directory on a file system"
            );
        }
        let mut info = TargetInfo {
            index,
            address: shown,
            kind: reach.kind,
            capacity_bytes: 0,
            direct: true,
            file_system: None,
            in_memory: false,
            identity: None,
            redundancy: redundancy::unknown(),
        };
        match reach.begin(&mut info, run, control, allowed) {
            Ok(exclusive) => {
                let control = control.map(str::to_owned);
                Ok(Self { reach, info, control, _exclusive: exclusive })
            }
            Err(error) => {
                // What fails tells more than what is left.
                let _ = reach.clean();
                Err(error)
            }
        }
    }

    /// Asks for the state of its redundancy again.
    pub(super) fn look_at_redundancy(&mut self) -> Result<()> {
        match &self.control {
            Some(control) => self.info.redundancy = of_control(control)?,
            None => local::redundancy(&self.reach.address, &mut self.info),
        }
        Ok(())
    }

    /// Takes away what the run left there.
    pub(super) fn clean(&self) -> Result<()> {
        self.reach.clean()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Said where it matters: `clean` is called before, on every way that can say something.
        let _ = self.clean();
    }
}

impl Reach {
    /// Finds out what it is; gives what is to be held open.
    fn begin(
        &mut self,
        info: &mut TargetInfo,
        run: &str,
        control: Option<&str>,
        allowed: Allowed,
    ) -> Result<Option<File>> {
        let mut exclusive = None;
        match self.kind {
            TargetKind::Directory => local::directory(self, info, run)?,
            TargetKind::File | TargetKind::Block => {
                exclusive = local::device(self, info, allowed)?;
            }
            TargetKind::Nbd => self.begin_export(&info.address, allowed)?,
            TargetKind::Iscsi => self.begin_lun(&info.address, allowed)?,
        }
        if self.kind != TargetKind::Directory {
            info.capacity_bytes = self.capacity;
            self.places().with_context(|| info.address.clone())?;
        }
        if let Some(control) = control {
            info.redundancy = of_control(control)?;
        }
        Ok(exclusive)
    }

    fn begin_export(&mut self, shown: &str, allowed: Allowed) -> Result<()> {
        let mut client = NbdClient::connect(NbdUri::parse(&self.address)?)?;
        self.capacity = client.size();
        guard::refuse_label(shown, self.capacity, allowed.force, |offset| {
            let mut read = OneRead { offset: Some(offset), bytes: Vec::new() };
            client.run(1, &mut read)?;
            Ok(read.bytes)
        })?;
        client.disconnect()
    }

    fn begin_lun(&mut self, shown: &str, allowed: Allowed) -> Result<()> {
        let lun = self.lun(0)?;
        self.capacity = lun.device.info().capacity;
        guard::refuse_label(shown, self.capacity, allowed.force, |offset| {
            let (len, flags) = (u64::from(guard::LABEL_READ), RequestFlags::default());
            let read =
                completions::request(&lun.device, Op::Read, offset, len, flags, SgList::new());
            let data = lun.runtime.block_on(read)?;
            let mut bytes = vec![0; data.len()];
            data.copy_to(&mut bytes);
            Ok(bytes)
        })
    }

    /// Whether its path means something on one machine only.
    const fn is_local_device(&self) -> bool {
        match self.kind {
            TargetKind::File | TargetKind::Block => true,
            TargetKind::Directory | TargetKind::Iscsi | TargetKind::Nbd => false,
        }
    }

    /// Opens a file of the run.
    pub(super) fn open(&self, slot: u16, how: Open) -> Result<Box<dyn Store>> {
        if self.is_local_device() && self.boot != guard::boot() {
            bail!("{}: is a device of another machine; give no --client", self.address);
        }
        let at = At { slot, places: self.places()? };
        Ok(match self.kind {
            TargetKind::Directory => {
                let path = self.path(slot)?;
                let file = local::open_file(&path, how, self.direct)?;
                Box::new(FileStore { file, name: path.display().to_string(), at })
            }
            TargetKind::File | TargetKind::Block => {
                let path = Path::new(&self.address);
                let file = local::open_file(path, Open::Old, self.direct)?;
                Box::new(FileStore { file, name: self.address.clone(), at })
            }
            TargetKind::Nbd => {
                let client = NbdClient::connect(NbdUri::parse(&self.address)?)?;
                Box::new(NbdStore { client, at })
            }
            TargetKind::Iscsi => Box::new(self.lun(slot)?),
        })
    }

    /// Takes a file of a directory away; what lies on a device stays until it is overwritten.
    pub(super) fn remove(&self, slot: u16) -> Result<()> {
        match self.kind {
            TargetKind::Directory => local::remove(&self.path(slot)?),
            TargetKind::File | TargetKind::Block | TargetKind::Nbd | TargetKind::Iscsi => Ok(()),
        }
    }

    /// Where files lie; none where a file system decides.
    pub(super) fn places(&self) -> Result<Option<Places>> {
        match self.kind {
            TargetKind::Directory => Ok(None),
            TargetKind::File | TargetKind::Block | TargetKind::Nbd | TargetKind::Iscsi => {
                Ok(Some(Places::new(self.capacity, SLOTS, self.file_bytes, self.request)?))
            }
        }
    }

    fn path(&self, slot: u16) -> Result<PathBuf> {
        let directory = self.directory.as_ref().context("a directory without one for this run")?;
        Ok(directory.join(format!("file-{slot}")))
    }

    fn lun(&self, slot: u16) -> Result<LunStore> {
        let (secret_file, allow_none) = (self.secret_file.clone(), self.allow_none);
        let secrets = SecretArgs { secret_file, allow_none };
        let uri = TargetUri::parse(&self.address)?;
        let member = configs(std::slice::from_ref(&self.address), &secrets)?.remove(0);
        let mut config = InitiatorConfig::new(uri);
        (config.secret, config.allow_none) = (member.secret, member.allow_none);
        if let Some((user, secret)) = member.mutual {
            (config.target_user, config.target_secret) = (user, Some(secret));
        }
        // A device that is late is measured, not given up.
        config.request_timeout = std::time::Duration::from_secs(60);
        let runtime = runtime()?;
        let pool = netraid_engine::pool();
        let remote = runtime.block_on(Remote::connect(config, pool.clone()))?;
        let remote = std::sync::Arc::new(remote);
        let device = remote.clone().into_device();
        let most = device.info().max_transfer_len;
        if self.request > most {
            bail!(
                "{}: takes requests of at most {most} bytes, {} are wanted; give a smaller --buffer",
                redact_addresses(&self.address),
                self.request
            );
        }
        let at = At { slot, places: if self.capacity > 0 { self.places()? } else { None } };
        Ok(LunStore { runtime, remote, device, pool, at })
    }

    /// Takes the directory of the run away.
    pub(super) fn clean(&self) -> Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        for slot in 0..SLOTS {
            self.remove(slot)?;
        }
        local::remove(&directory.join(local::PROBE))?;
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result.with_context(|| directory.display().to_string()),
        }
    }
}

/// Reads the beginning of a label.
struct OneRead {
    offset: Option<u64>,
    bytes: Vec<u8>,
}

impl Source for OneRead {
    fn next(&mut self) -> Option<Job> {
        let offset = self.offset.take()?;
        Some(Job { command: Command::Read, offset, len: guard::LABEL_READ })
    }

    fn fill(&mut self, _job: &Job, _data: &mut [u8]) {}

    fn done(&mut self, _job: &Job, _latency: std::time::Duration, data: &[u8]) -> Result<()> {
        data.clone_into(&mut self.bytes);
        Ok(())
    }
}

/// Which kind of target an address or path is.
fn kind_of(address: &str) -> Result<TargetKind> {
    use std::os::unix::fs::FileTypeExt as _;
    if address.starts_with("iscsi:") {
        TargetUri::parse(address)?;
        return Ok(TargetKind::Iscsi);
    }
    if NbdUri::claims(address) {
        return Ok(TargetKind::Nbd);
    }
    let kind = fs::metadata(address)
        .with_context(|| {
            format!(
                "{}: give a directory, a block device, a file that exists, iscsi://... or nbd://...",
                redact_addresses(address)
            )
        })?
        .file_type();
    if kind.is_dir() {
        Ok(TargetKind::Directory)
    } else if kind.is_block_device() {
        Ok(TargetKind::Block)
    } else if kind.is_file() {
        Ok(TargetKind::File)
    } else {
        bail!("{address}: is no directory, block device or file; give one of these")
    }
}
