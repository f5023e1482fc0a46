//! What a benchmark works on, and the processes that it starts for it.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use netraid_block::TargetUri;
use netraid_engine::{
    array::{Array, Caches, OpenOptions},
    initiator::{InitiatorConfig, Remote},
};

use super::{
    Options, REQUEST_LEN_MAX,
    drive::Subject,
    measure::{Tally, Until, Used, Workload, machine_cpu_s},
};
use crate::{
    args,
    create::Switch,
    member::configs,
    nbd_client::{NbdClient, NbdUri},
    process::{self, Daemon},
    signal::Stop,
    size,
};

/// What kind of array of our own is made.
pub(super) struct Own {
    pub(super) level: u8,
    pub(super) members: u8,
    pub(super) log: Option<Switch>,
    /// Bytes of the log on each member.
    pub(super) log_size: Option<u64>,
    /// Bytes of each member.
    pub(super) member_size: Option<u64>,
    /// Bytes of memory for checksums.
    pub(super) checksum_cache: Option<u64>,
    /// Bytes of memory for what is read ahead.
    pub(super) read_ahead: Option<u64>,
    /// How often it is overwritten at random before it is measured.
    pub(super) age: u16,
    pub(super) filter: Option<String>,
    /// Through an NBD export.
    pub(super) nbd: bool,
}

/// A subject, and what must be ended after it.
pub(super) struct Bench {
    pub(super) what: String,
    pub(super) subject: Subject,
    pub(super) server_pids: Vec<u32>,
    /// Whether the workloads that write may run.
    pub(super) may_write: bool,
    /// How often it is overwritten at random before it is measured.
    pub(super) age: u16,
    /// The engine, where it is a process of its own that was started for this.
    pub(super) engine_pid: Option<u32>,
    array: Option<Array>,
    remote: Option<Arc<Remote>>,
    // Exports end before the targets that they stand on.
    daemons: Vec<Daemon>,
    _dir: Option<tempfile::TempDir>,
}

impl Bench {
    /// Whether all of it runs on this machine, in memory.
    pub(super) const fn is_own(&self) -> bool {
        !self.daemons.is_empty()
    }

    /// Runs a workload as [`Subject::run`] does.
    pub(super) async fn run(
        &mut self,
        workload: Workload,
        span: u64,
        depth: usize,
        until: Until,
    ) -> Result<(Tally, f64)> {
        self.subject.run(workload, span, depth, until).await.with_context(|| self.what.clone())
    }

    /// A LUN through our initiator.
    pub(super) async fn member(url: Option<&str>, options: &Options) -> Result<Self> {
        let daemons = match url {
            Some(_) => Vec::new(),
            None => vec![ram_target(0, options.span, None)?],
        };
        let url = match url {
            Some(url) => url.to_string(),
            None => daemons[0].ready_text("/luns/0/uri")?,
        };
        let own = !daemons.is_empty();
        let uri = TargetUri::parse(&url)?;
        let member = configs(&[url], &options.secrets)?.remove(0);
        let pool = netraid_engine::pool();
        let mut config = InitiatorConfig::new(uri);
        config.secret = member.secret;
        config.queue_depth = options.depth.max(128);
        config.sessions = options.sessions;
        let remote = Arc::new(Remote::connect(config, pool.clone()).await?);
        let subject = Subject::device(remote.clone().into_device(), &pool, REQUEST_LEN_MAX);
        Ok(Self {
            what: format!("member {}", remote.address()),
            subject,
            server_pids: server_pids(&daemons, options),
            may_write: own || options.overwrite,
            age: 0,
            engine_pid: None,
            array: None,
            remote: Some(remote),
            daemons,
            _dir: None,
        })
    }

    /// A volume: an export, an array of given members, or one of our own.
    pub(super) async fn volume(
        urls: &[String],
        own: &Own,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self> {
        match urls {
            [] => Self::own_volume(own, options, stop).await,
            [uri] if NbdUri::claims(uri) => {
                let client = NbdClient::connect(NbdUri::parse(uri)?)?;
                Ok(Self::export(uri.clone(), client, Vec::new(), options))
            }
            members => {
                let may_write = options.overwrite;
                let what = format!("array of {} members", members.len());
                Self::array(what, members, own, may_write, Vec::new(), options).await
            }
        }
    }

    async fn own_volume(own: &Own, options: &Options, stop: &Stop) -> Result<Self> {
        let Own { level, members, log, log_size, read_ahead, age, filter, nbd, .. } = own;
        // Each member could hold all of the span, which is enough for every level.
        let targets = 0..*members;
        let size = own.member_size.unwrap_or(options.span * 2);
        let targets = targets.map(|index| ram_target(index, size, filter.as_deref()));
        let mut daemons = targets.collect::<Result<Vec<_>>>()?;
        let urls = daemons.iter().map(|daemon| daemon.ready_text("/luns/0/uri"));
        let urls = urls.collect::<Result<Vec<_>>>()?;
        let mut create = args!["create", "bench", "--level", level].to_vec();
        create.extend(log.map(|log| match log {
            Switch::On => "--log=on".to_string(),
            Switch::Off => "--log=off".to_string(),
        }));
        create.extend(log_size.map(|len| format!("--log-size={len}")));
        create.extend(urls.iter().cloned());
        let made = process::call(&create, stop)?;
        let logged = made.get("log_bytes").and_then(serde_json::Value::as_u64) != Some(0);
        let log = if logged { "a log" } else { "no log" };
        let age = match age {
            0 => String::new(),
            age => format!(", {age} times overwritten at random"),
        };
        let ahead = read_ahead.map(|len| format!(", {} for reading ahead", size::show(len)));
        let ahead = ahead.unwrap_or_default();
        let what = format!("level {level} of {members} members in memory, {log}{age}{ahead}");
        if !*nbd {
            let mut bench = Self::array(what, &urls, own, true, daemons, options).await?;
            bench.age = own.age;
            return Ok(bench);
        }
        let attach = read_ahead.map(|len| format!("--read-ahead={len}"));
        let attach = attach.into_iter().collect();
        let mut bench = Self::through_nbd(what, &urls, attach, options)?;
        bench.server_pids.extend(daemons.iter().map(Daemon::pid));
        bench.daemons.append(&mut daemons);
        Ok(bench)
    }

    /// The array of these members through an NBD export by a Unix socket; `arguments` are more of `netraid attach`.
    pub(super) fn through_nbd(
        what: String,
        urls: &[String],
        arguments: Vec<String>,
        options: &Options,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("netraid-bench.").tempdir()?;
        let socket = dir.path().join("nbd.sock");
        let mut attach = args!["attach", "--nbd", format!("unix:{}", socket.display())].to_vec();
        attach.extend(arguments);
        attach.push(format!("--threads={}", options.threads));
        attach.extend(urls.iter().cloned());
        let engine = Daemon::start("engine", &attach)?;
        let client = NbdClient::connect(NbdUri::parse(&engine.ready_text("/exports/0/uri")?)?)?;
        let engine_pid = engine.pid();
        let mut bench = Self::export(format!("{what}, NBD export"), client, vec![engine], options);
        bench.engine_pid = Some(engine_pid);
        bench._dir = Some(dir);
        bench.may_write = true;
        Ok(bench)
    }

    async fn array(
        what: String,
        urls: &[String],
        own: &Own,
        may_write: bool,
        daemons: Vec<Daemon>,
        options: &Options,
    ) -> Result<Self> {
        let pool = netraid_engine::pool();
        let read_only = !may_write;
        let (checksum_len, read_ahead_len) = (own.checksum_cache, own.read_ahead);
        let caches = Caches { checksum_len, read_ahead_len, ..Caches::default() };
        let open = OpenOptions { read_only, caches, ..OpenOptions::default() };
        let mut members = configs(urls, &options.secrets)?;
        members.iter_mut().for_each(|member| member.sessions = options.sessions);
        let array = Array::open(open, members, pool.clone()).await?;
        let subject = Subject::device(array.device().clone(), &pool, REQUEST_LEN_MAX);
        let server_pids = server_pids(&daemons, options);
        let (array, remote) = (Some(array), None);
        Ok(Self {
            what,
            subject,
            server_pids,
            may_write,
            age: 0,
            engine_pid: None,
            array,
            remote,
            daemons,
            _dir: None,
        })
    }

    fn export(what: String, client: NbdClient, daemons: Vec<Daemon>, options: &Options) -> Self {
        Self {
            what,
            subject: Subject::Nbd(Box::new(client)),
            server_pids: server_pids(&daemons, options),
            may_write: options.overwrite,
            age: 0,
            engine_pid: None,
            array: None,
            remote: None,
            daemons,
            _dir: None,
        }
    }

    /// Ends everything in good order.
    pub(super) async fn close(self) -> Result<()> {
        if let Subject::Nbd(client) = self.subject {
            client.disconnect()?;
        }
        if let Some(array) = self.array {
            array.close().await?;
        }
        if let Some(remote) = self.remote {
            remote.close().await;
        }
        self.daemons.into_iter().try_for_each(Daemon::stop)
    }
}

pub(super) fn ram_target(index: u8, len: u64, filter: Option<&str>) -> Result<Daemon> {
    if len > 1 << 36 {
        bail!("--span: a target in memory of {len} bytes; give less than 32GiB");
    }
    let iqn = format!("iqn.2026-01.netraid.bench:member{index}");
    let lun = format!("ram:{}", len.next_multiple_of(1 << 20));
    let mut args = args!["target", "--listen", "127.0.0.1:0", "--iqn", iqn, "--lun", lun].to_vec();
    args.extend(filter.into_iter().flat_map(|filter| ["--filter".into(), filter.into()]));
    Daemon::start(format!("target {index}"), &args)
}

impl Bench {
    /// What this process and the servers have used so far; with `whole_machine`, all of the machine's processor time but
    /// this process's is the servers'.
    pub(super) fn used(&self, whole_machine: bool) -> Result<(Used, Used)> {
        let (own, mut servers) = (Used::by(&[0])?, Used::by(&self.server_pids)?);
        if whole_machine {
            servers.cpu_s = machine_cpu_s()? - own.cpu_s;
        }
        Ok((own, servers))
    }
}

fn server_pids(daemons: &[Daemon], options: &Options) -> Vec<u32> {
    daemons.iter().map(Daemon::pid).chain(options.server_pid.iter().copied()).collect()
}
