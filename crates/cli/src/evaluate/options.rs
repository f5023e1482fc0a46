//! What was typed, and the settings of a run that follow from it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use netraid_evaluate::{
    catalogue::TestId,
    plan::LONG_TO_BURST,
    record::{Settings, TargetSpec},
    requirements::Requirements,
    statistics::PAIRS_MIN,
};

use crate::{nbd_client::NbdUri, secret::SecretArgs, size};

#[derive(Debug, Clone, Args)]
pub(crate) struct EvaluateArgs {
    /// Targets: a directory, or, with --destroy-data, a block device, a file that stands for one,
    /// iscsi://..., nbd://... or nbd+unix://...; several make a comparison
    // Read later and not by clap, which would repeat a secret in its message.
    #[arg(value_name = "TARGET", required_unless_present = "resume")]
    pub(super) targets: Vec<String>,
    /// Control socket of the array behind a target: TARGET=unix:PATH, or unix:PATH with one target
    #[arg(long, value_name = "[TARGET=]unix:PATH")]
    control: Vec<String>,
    /// Tests: all, host, net, random, trick, degraded, rebuild, or numbers of these: host.1,net.3
    #[arg(long, value_name = "TESTS", value_delimiter = ',', default_value = "all")]
    tests: Vec<String>,
    /// Bytes of a file of the host tests: more than every cache holds
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1GiB")]
    file_size: u64,
    /// Bytes of a file of the network tests
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "500MiB")]
    net_file_size: u64,
    /// Bytes of a request of a stream
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256KiB")]
    buffer: u64,
    /// Requests that a stream keeps in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    stream_depth: u16,
    /// Longest that a stream may run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    stream_seconds: f64,
    /// Depths of the random tests
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16,64",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    depths: Vec<u16>,
    /// Seconds of each depth
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = positive)]
    random_seconds: f64,
    /// How often each test of the matrices runs; their figures are medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Pairs of each trick test
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(PAIRS_MIN as i64..=8))]
    pairs: u16,
    /// Rate of the tape: bytes a second
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "10000000")]
    tape_rate: u64,
    /// A tape drive that rewinds when it is closed, or a file: what is on it is lost. Without it, a paced
    /// source and sink in memory
    #[arg(long, value_name = "PATH")]
    tape: Option<String>,
    /// Bytes between target and tape
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8MiB")]
    tape_buffer: u64,
    /// Host of a client, reached by `ssh HOST netraid`; may be given more than once. Without it, clients
    /// are processes of this machine
    #[arg(long, value_name = "HOST")]
    client: Vec<String>,
    /// Write what this file holds instead of data that is made; it must not compress
    #[arg(long, value_name = "FILE")]
    pub(super) data: Option<PathBuf>,
    /// Memory of the machine behind the targets: results whose files fit into it may come from its cache
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    target_memory: Option<u64>,
    /// Member of the array, by its index, that is failed and rebuilt for the tests degraded and rebuild
    #[arg(long, value_name = "INDEX", requires = "control")]
    fail_member: Option<u16>,
    /// Log to which each run is appended
    #[arg(long, value_name = "FILE", default_value = "netraid-evaluate.jsonl")]
    pub(super) log: PathBuf,
    /// Write a page with score sheets
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,
    /// Write all figures as a table
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Requirements (TOML): the command fails when one is not met
    #[arg(long, value_name = "FILE")]
    pub(super) requirements: Option<PathBuf>,
    /// Overwrite what is on devices, exports and existing files that are given as targets, and on --tape
    #[arg(long)]
    pub(super) destroy_data: bool,
    /// Overwrite even what bears the label of a netraid member
    #[arg(long, requires = "destroy_data")]
    pub(super) force: bool,
    /// Go on with the last run of the log, with its targets and settings
    #[arg(long, conflicts_with_all = ["dry_run", "tests", "file_size", "net_file_size", "buffer", "rounds",
          "pairs", "client", "tape", "fail_member"])]
    pub(super) resume: bool,
    /// Probe the targets, say how long it would take, and leave it at that
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) secrets: SecretArgs,
}

/// A path that means the same when the run is resumed elsewhere; addresses stay as they are.
fn absolute(address: &str) -> Result<String> {
    if address.starts_with("iscsi:") || NbdUri::claims(address) || address.is_empty() {
        return Ok(address.to_owned());
    }
    let path = std::path::absolute(address)?;
    Ok(path.to_str().unwrap_or(address).to_owned())
}

fn positive(text: &str) -> Result<f64> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 && value <= 86_400.0 => Ok(value),
        Ok(_) | Err(_) => bail!("give seconds above 0, at most 86400"),
    }
}

/// Smallest and largest request of a stream.
const BUFFER: [u64; 2] = [4096, 4 << 20];
/// Buffers that a file has at least, so that its pieces are whole ones.
const FILE_BUFFERS_MIN: u64 = 4 * LONG_TO_BURST;

impl EvaluateArgs {
    /// Targets with their control sockets, as they were typed.
    pub(super) fn targets(&self) -> Result<Vec<TargetSpec>> {
        let spec = |address: &String| TargetSpec { address: address.clone(), control: None };
        let mut specs: Vec<TargetSpec> = self.targets.iter().map(spec).collect();
        for control in &self.control {
            let (target, path) = match control.rsplit_once("=unix:") {
                Some((target, path)) => (Some(target), format!("unix:{path}")),
                None => (None, control.clone()),
            };
            let found = match (target, specs.as_mut_slice()) {
                (None, [one]) => Some(one),
                (None, _) => bail!("--control {control}: say which target: TARGET=unix:PATH"),
                (Some(target), specs) => specs.iter_mut().find(|spec| spec.address == target),
            };
            let Some(spec) = found else {
                bail!("--control {control}: that is no target; give TARGET as it is given above");
            };
            spec.control = Some(path);
        }
        for (index, spec) in specs.iter().enumerate() {
            if specs.iter().take(index).any(|other| other.address == spec.address) {
                bail!("targets: one is given twice; give each once");
            }
        }
        for spec in &mut specs {
            spec.address = absolute(&spec.address)?;
        }
        Ok(specs)
    }

    /// Fails when a report would be written over the log.
    pub(super) fn refuse_overwriting_the_log(&self) -> Result<()> {
        let real = |path: &PathBuf| path.canonicalize().or_else(|_| std::path::absolute(path));
        let log = real(&self.log)?;
        for path in [&self.report, &self.csv].into_iter().flatten() {
            if real(path)? == log {
                bail!(
                    "{}: is the log, which is never rewritten; give another name",
                    path.display()
                );
            }
        }
        Ok(())
    }

    /// The settings of a new run.
    pub(super) fn settings(&self, requirements: &Requirements) -> Result<Settings> {
        let [least, most] = BUFFER;
        if !(least..=most).contains(&self.buffer) || !self.buffer.is_multiple_of(least) {
            bail!("--buffer {}: give a multiple of {least} of at most {most}", self.buffer);
        }
        let buffer_bytes = u32::try_from(self.buffer)?;
        let whole = |name: &str, bytes: u64| {
            let least = FILE_BUFFERS_MIN * self.buffer;
            if bytes < least {
                bail!("{name} {bytes}: with buffers of {} give at least {least}", self.buffer);
            }
            Ok(bytes / self.buffer * self.buffer)
        };
        let mut tests = Vec::new();
        for text in &self.tests {
            tests.extend(TestId::select(text)?);
        }
        tests.extend(requirements.tests());
        let in_order = |id: &TestId| {
            let all = &netraid_evaluate::catalogue::CATALOGUE;
            all.iter().position(|test| test.id == *id)
        };
        tests.sort_by_key(in_order);
        tests.dedup();
        if self.tape.is_some() && !self.destroy_data {
            bail!(
                "--tape: what is on it would be overwritten; give --destroy-data if nobody needs it"
            );
        }
        let mut depths = self.depths.clone();
        depths.sort_unstable();
        depths.dedup();
        Ok(Settings {
            tests,
            file_bytes: whole("--file-size", self.file_size)?,
            net_file_bytes: whole("--net-file-size", self.net_file_size)?,
            buffer_bytes,
            stream_depth: self.stream_depth,
            stream_s: self.stream_seconds,
            depths,
            random_s: self.random_seconds,
            rounds: self.rounds,
            pairs: self.pairs,
            tape_bytes_per_s: self.tape_rate,
            tape: self.tape.as_deref().map(absolute).transpose()?,
            tape_buffer_bytes: self.tape_buffer.max(2 * self.buffer),
            clients: self.client.clone(),
            target_memory_bytes: self.target_memory,
            fail_member: self.fail_member,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: EvaluateArgs,
    }

    fn parsed(line: &str) -> EvaluateArgs {
        Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap().args
    }

    pub(in super::super) fn settings() -> Settings {
        parsed("/a").settings(&Requirements::default()).unwrap()
    }

    #[test]
    fn the_usual_sizes_are_those_of_the_method() {
        let settings = settings();
        assert_eq!((settings.file_bytes, settings.net_file_bytes), (1 << 30, 500 << 20));
        assert_eq!(settings.buffer_bytes, 256 << 10);
        assert_eq!(settings.tape_bytes_per_s, 10_000_000);
        assert_eq!(settings.tests.len(), 20);
    }

    #[test]
    fn control_sockets_go_to_their_targets() {
        let specs = parsed("/a /b --control /b=unix:/s").targets().unwrap();
        assert_eq!(
            (specs[0].control.as_deref(), specs[1].control.as_deref()),
            (None, Some("unix:/s"))
        );
        let uri = "nbd+unix:///v?socket=/n";
        let specs = parsed(&format!("{uri} --control {uri}=unix:/s")).targets().unwrap();
        assert_eq!(specs[0].control.as_deref(), Some("unix:/s"));
        assert!(parsed("/a --control unix:/s").targets().unwrap()[0].control.is_some());
        assert!(parsed("/a /b --control unix:/s").targets().is_err());
        assert!(parsed("/a --control /c=unix:/s").targets().is_err());
        assert!(parsed("/a /a").targets().is_err());
        let here = parsed("disk.img").targets().unwrap().remove(0).address;
        assert!(here.starts_with('/') && here.ends_with("/disk.img"), "{here}");
    }

    #[test]
    fn what_is_required_is_tested() {
        let wishes = Requirements::parse("[[require]]\ntest = \"net.4\"\nat_least = 1.0").unwrap();
        let settings = parsed("/a --tests random,host.2").settings(&wishes).unwrap();
        let names: Vec<&str> = settings.tests.iter().map(|test| test.name()).collect();
        assert_eq!(names, ["host.2", "net.4", "random.read", "random.write"]);
    }

    #[test]
    fn the_log_is_no_report() {
        assert!(parsed("/a --log /l --report /l").refuse_overwriting_the_log().is_err());
        assert!(parsed("/a --log /l --report /r").refuse_overwriting_the_log().is_ok());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for line in
            ["/a --buffer 1000", "/a --buffer 8MiB", "/a --file-size 1MiB", "/a --tape /dev/st0"]
        {
            assert!(parsed(line).settings(&Requirements::default()).is_err(), "{line}");
        }
    }
}
