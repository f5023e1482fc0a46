//! `netraid quickstart --cluster`: a mediator and agents, a volume that is attached, and data by name,
//! all on this machine, each a process of its own; with `--check` taken through the loss of an agent
//! and of the mediator.

use std::{
    fs::File,
    io::{BufReader, Read as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use serde_json::{Value, json};

use super::QuickstartArgs;
use crate::{
    args,
    load::Loaded,
    output::Output,
    process::{self, Daemon},
    signal::Stop,
    size,
};

const VOLUME: &str = "/quickstart/volume";
const DATA: &str = "/quickstart/data";
const SEED: u64 = 0x636c_7573_7465_7200;
/// Bytes of the file that is put.
const DATA_LEN: u64 = (64 << 20) + 12_345;
/// What each agent says that it has beyond the volume's size.
const ROOM: u64 = 8 << 30;
/// What each agent says that it does, in bytes a second: on one machine there is nothing to share out.
const AGENT_RATE: &str = "1GiB/s";
/// How long a lost agent is waited for before another takes its place.
const REPLACE_AFTER: &str = "2s";
/// Longest from the loss of an agent to the end of the rebuild on another.
const REBUILD_LIMIT: Duration = Duration::from_secs(120);
/// Longest until all agents are known.
const JOIN_LIMIT: Duration = Duration::from_secs(20);

/// The processes of a cluster. Dropping it ends all of them: who uses agents first.
pub(super) struct Cluster {
    dir: PathBuf,
    stop: Stop,
    engine: Option<Daemon>,
    mediator: Option<Daemon>,
    mediator_url: String,
    agents: Vec<Option<Daemon>>,
    agent_ids: Vec<String>,
    size: u64,
}

impl Cluster {
    /// Starts the mediator, then so many agents, and waits until it knows them.
    pub(super) fn start(args: &QuickstartArgs, dir: &Path, stop: Stop) -> Result<Self> {
        let mut this = Self {
            dir: dir.to_path_buf(),
            stop,
            engine: None,
            mediator: None,
            mediator_url: String::new(),
            agents: Vec::new(),
            agent_ids: Vec::new(),
            size: args.size,
        };
        this.start_mediator("127.0.0.1:0")?;
        for _ in 0..args.members {
            this.start_agent()?;
        }
        let began = Instant::now();
        while this.reachable()? < u64::from(args.members) {
            if began.elapsed() > JOIN_LIMIT {
                bail!("the mediator does not know all agents after {} s", JOIN_LIMIT.as_secs());
            }
            this.pause()?;
        }
        Ok(this)
    }

    fn start_mediator(&mut self, listen: &str) -> Result<()> {
        self.stop.check()?;
        let dir = self.dir.join("mediator").display().to_string();
        let daemon =
            Daemon::start("mediator", &args!["mediator", "run", "--dir", dir, "--listen", listen])?;
        self.mediator_url = daemon.ready_text("/url")?;
        self.mediator = Some(daemon);
        Ok(())
    }

    fn start_agent(&mut self) -> Result<()> {
        self.stop.check()?;
        let index = self.agents.len();
        let dir = self.dir.join(format!("agent{index}")).display().to_string();
        let join = self.dir.join("mediator/agent.access").display().to_string();
        let host = format!("host{index}");
        let space = self.size + ROOM;
        let args = args![
            "agent",
            "run",
            "--dir",
            dir,
            "--space",
            space,
            "--rate",
            AGENT_RATE,
            "--listen",
            "127.0.0.1:0",
            "--portal",
            "127.0.0.1:0",
            "--host",
            host,
            "--mediator",
            join
        ];
        let daemon = Daemon::start(format!("agent {index}"), &args)?;
        self.agent_ids.push(daemon.ready_text("/agent")?);
        self.agents.push(Some(daemon));
        Ok(())
    }

    fn access(&self, role: &str) -> String {
        self.dir.join(format!("mediator/{role}.access")).display().to_string()
    }

    /// A command of this program, with a client's rights.
    fn call(&self, args: &[String]) -> Result<Value> {
        let mut all = args.to_vec();
        all.extend(args!["--access", self.access("client")]);
        process::call(&all, &self.stop)
    }

    fn admin(&self, args: &[String]) -> Result<Value> {
        let mut all = args.to_vec();
        all.extend(args!["--access", self.access("admin")]);
        process::call(&all, &self.stop)
    }

    fn reachable(&self) -> Result<u64> {
        let status = self.admin(&args!["mediator", "status"])?;
        status["reachable"].as_u64().with_context(|| format!("no count of agents in {status}"))
    }

    fn create_volume(&self) -> Result<Value> {
        self.call(&args!["volume", "create", VOLUME, "--size", self.size, "--parents"])
    }

    fn attach(&mut self) -> Result<()> {
        self.stop.check()?;
        let args = args![
            "volume",
            "attach",
            VOLUME,
            "--nbd",
            "127.0.0.1:0",
            "--control",
            self.control(),
            "--replace-after",
            REPLACE_AFTER,
            "--access",
            self.access("client")
        ];
        self.engine = Some(Daemon::start("volume", &args)?);
        Ok(())
    }

    fn control(&self) -> String {
        format!("unix:{}", self.dir.join("control.sock").display())
    }

    fn nbd(&self) -> Result<String> {
        self.engine.as_ref().context("the volume is not attached")?.ready_text("/exports/0/uri")
    }

    fn status(&self) -> Result<Value> {
        process::call(&args!["status", self.control()], &self.stop)
    }

    fn load(&self, action: &str, len: u64) -> Result<Loaded> {
        let args = args!["load", action, self.nbd()?, "--len", len, "--seed", SEED];
        Ok(serde_json::from_value(process::call(&args, &self.stop)?)?)
    }

    /// Puts a file that can be made again.
    fn put(&self) -> Result<Loaded> {
        let path = self.dir.join("data.bin");
        let mut bytes = vec![0; usize::try_from(DATA_LEN)?];
        StdRng::seed_from_u64(SEED).fill_bytes(&mut bytes);
        // The directory may be one in which others make files.
        netraid_private::replace(&path, &bytes)?;
        timed(DATA_LEN, || self.call(&args!["put", "-p", path.display(), DATA]))
    }

    /// Gets it back, and compares.
    fn get(&self) -> Result<Loaded> {
        let path = self.dir.join("data.back");
        let loaded = timed(DATA_LEN, || self.call(&args!["get", "--force", DATA, path.display()]))?;
        let (mut back, mut put) = (
            BufReader::new(File::open(&path)?),
            BufReader::new(File::open(self.dir.join("data.bin"))?),
        );
        let (mut one, mut other) = (Vec::new(), Vec::new());
        back.read_to_end(&mut one)?;
        put.read_to_end(&mut other)?;
        if one != other {
            bail!("{DATA}: what came back is not what was put");
        }
        Ok(loaded)
    }

    /// Waits a moment, or fails when told to stop.
    fn pause(&self) -> Result<()> {
        std::thread::sleep(Duration::from_millis(50));
        self.stop.check()
    }

    /// Ends who uses agents, then them, then the mediator; each must end cleanly.
    pub(super) fn close(mut self) -> Result<()> {
        self.engine.take().map_or(Ok(()), Daemon::stop)?;
        self.agents.drain(..).flatten().try_for_each(Daemon::stop)?;
        self.mediator.take().map_or(Ok(()), Daemon::stop)
    }
}

fn timed(bytes: u64, work: impl FnOnce() -> Result<Value>) -> Result<Loaded> {
    let began = Instant::now();
    work()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Loaded { bytes, seconds, mb_per_s: size::mb_per_s(bytes, seconds) })
}

/// Makes a volume, attaches it, puts a file and gets it back, and shows where all is.
pub(super) fn show(cluster: &mut Cluster, output: Output) -> Result<()> {
    if cluster.call(&args!["stat", VOLUME]).is_err() {
        cluster.create_volume()?;
    }
    cluster.attach()?;
    if cluster.call(&args!["stat", DATA]).is_err() {
        cluster.put()?;
    }
    cluster.get()?;
    let (nbd, control, access) = (cluster.nbd()?, cluster.control(), cluster.access("client"));
    let document = json!({
        "event": "ready",
        "mediator": cluster.mediator_url,
        "access": access,
        "agents": cluster.agent_ids,
        "volume": VOLUME,
        "data": DATA,
        "exports": [{"kind": "nbd", "uri": nbd}],
        "control": control,
    });
    output.announce(&document, || {
        format!(
            "mediator {}, {} agents; volume {VOLUME} of {}: {nbd}\n\n\
             try:  export NETRAID_ACCESS={access}\n      netraid ls /quickstart\n      \
             netraid stat {VOLUME}\n      netraid put -p FILE /some/name\n      \
             netraid status {control}\nCtrl-C ends it",
            cluster.mediator_url,
            cluster.agents.len(),
            size::show(cluster.size),
        )
    });
    Ok(())
}

/// What `quickstart --cluster --check` reports.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    agents: usize,
    size_bytes: u64,
    steps: Vec<Step>,
    /// What agents have booked against what the mediator knows, at the end.
    check: Value,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    bytes: u64,
    seconds: f64,
    mb_per_s: f64,
}

struct Check<'a> {
    cluster: &'a mut Cluster,
    output: Output,
    steps: Vec<Step>,
}

/// Takes a cluster through the loss of an agent and of the mediator, and compares all data.
pub(super) fn check(mut cluster: Cluster, output: Output) -> Result<()> {
    let began = Instant::now();
    let mut check = Check { cluster: &mut cluster, output, steps: Vec::new() };
    check.work()?;
    let steps = check.steps;
    let compared = cluster.admin(&args!["mediator", "check"])?;
    let report = Report {
        ok: true,
        agents: cluster.agent_ids.len(),
        size_bytes: cluster.size,
        steps,
        check: compared,
        seconds: began.elapsed().as_secs_f64(),
    };
    cluster.close()?;
    output.document(&report, || {
        format!("all data verified, nothing leaked; {:.1} s in all", report.seconds)
    })
}

impl Check<'_> {
    fn work(&mut self) -> Result<()> {
        self.cluster.create_volume()?;
        self.cluster.attach()?;
        let size = self.cluster.size;
        self.step("write the volume", |cluster| cluster.load("write", size))?;
        self.step("put a file", |cluster| cluster.put())?;
        self.step("get it", |cluster| cluster.get())?;
        let victim = self.victim()?;
        self.cluster.agents[victim].take().map_or(Ok(()), Daemon::kill)?;
        self.step("verify, an agent lost", |cluster| cluster.load("verify", size))?;
        self.step("get, an agent lost", |cluster| cluster.get())?;
        self.step("rebuild on another", Cluster::rebuilt)?;
        self.step("verify after it", |cluster| cluster.load("verify", size))?;
        self.cluster.mediator.take().map_or(Ok(()), Daemon::kill)?;
        self.step("verify, no mediator", |cluster| cluster.load("verify", size))?;
        let listen = self.cluster.mediator_url.rsplit('/').next().unwrap_or_default().to_owned();
        self.cluster.start_mediator(&listen)?;
        self.step("get, mediator back", |cluster| cluster.get())
    }

    /// The agent that has the volume's first member.
    fn victim(&self) -> Result<usize> {
        let entry = self.cluster.call(&args!["stat", VOLUME])?;
        let agent = entry.pointer("/stored/members/0/agent").and_then(Value::as_str);
        let found = self.cluster.agent_ids.iter().position(|id| Some(id.as_str()) == agent);
        found.with_context(|| format!("no agent of ours in {entry}"))
    }

    fn step(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Cluster) -> Result<Loaded>,
    ) -> Result<()> {
        let Loaded { bytes, seconds, mb_per_s } = work(self.cluster).context(name)?;
        let shown = size::show(bytes);
        self.output.say(&format!("{name:<22} {shown:>9} {seconds:>6.2} s {mb_per_s:>6.0} MB/s"))?;
        self.steps.push(Step { name, bytes, seconds, mb_per_s });
        Ok(())
    }
}

impl Cluster {
    /// Waits until the volume is whole again, on other agents.
    fn rebuilt(&mut self) -> Result<Loaded> {
        let began = Instant::now();
        loop {
            let status = self.status()?;
            if status["state"] == "optimal" {
                let bytes = status["used_bytes"].as_u64().unwrap_or_default();
                let seconds = began.elapsed().as_secs_f64();
                return Ok(Loaded { bytes, seconds, mb_per_s: size::mb_per_s(bytes, seconds) });
            }
            if began.elapsed() > REBUILD_LIMIT {
                bail!("not whole after {} s: {status}", REBUILD_LIMIT.as_secs());
            }
            self.pause()?;
        }
    }
}
