//! The processes of a quickstart and where each of them can be reached.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use netraid_raid::{
    geometry::Level,
    regions::{Wish, member_capacity_for},
};
use serde_json::Value;

use super::QuickstartArgs;
use crate::{
    args,
    process::{self, Daemon},
    signal::Stop,
};

pub(super) const NAME: &str = "quickstart";
const CHUNK_LEN: u32 = 64 << 10;
const BLOCK_LEN: u32 = 512;

/// Targets, engine, and the directory that they live in. Dropping it ends all processes.
pub(super) struct House {
    dir: PathBuf,
    level: Level,
    members: u8,
    member_len: u64,
    stop: Stop,
    // The engine goes first, so that it can close the array on members that still answer.
    engine: Option<Daemon>,
    targets: Vec<Option<Daemon>>,
    urls: Vec<String>,
}

impl House {
    /// The level that is asked for, and the bytes of a member.
    pub(super) fn check(args: &QuickstartArgs) -> Result<(Level, u64)> {
        let level = Level::from_number(args.level)
            .with_context(|| format!("level {}: give 0, 1, 5, 6 or 10", args.level))?;
        let members = usize::from(args.members);
        let wish = Wish { level, members, chunk_len: CHUNK_LEN, block_len: BLOCK_LEN };
        let member_len = member_capacity_for(&wish, level != Level::Raid0, args.size)
            .with_context(|| format!("level {} over {members} members", args.level))?;
        Ok((level, member_len))
    }

    pub(super) fn new(args: &QuickstartArgs, dir: &Path, stop: Stop) -> Result<Self> {
        let (level, member_len) = Self::check(args)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            level,
            members: args.members,
            member_len,
            stop,
            engine: None,
            targets: Vec::new(),
            urls: Vec::new(),
        })
    }

    /// Starts all targets; returns whether their files were there before.
    pub(super) fn start_targets(&mut self) -> Result<bool> {
        let were_there = (0..usize::from(self.members)).all(|index| self.file(index).exists());
        for _ in 0..self.members {
            self.start_target()?;
        }
        Ok(were_there)
    }

    /// Starts one more target, with a file of its own, and returns its place.
    pub(super) fn start_target(&mut self) -> Result<usize> {
        self.stop.check()?;
        let index = self.targets.len();
        let lun = format!("file:{}:{}", self.file(index).display(), self.member_len);
        let iqn = format!("iqn.2026-01.netraid.quickstart:member{index}");
        let args = args!["target", "--listen", "127.0.0.1:0", "--iqn", iqn, "--lun", lun];
        let daemon = Daemon::start(format!("target {index}"), &args)?;
        self.urls.push(daemon.ready_text("/luns/0/uri")?);
        self.targets.push(Some(daemon));
        Ok(index)
    }

    /// Makes the array of all targets.
    pub(super) fn create(&self) -> Result<Value> {
        let level = self.level.number();
        let mut args =
            args!["create", NAME, "--level", level, "--chunk", format!("{}KiB", CHUNK_LEN >> 10)]
                .to_vec();
        args.extend(self.urls.iter().cloned());
        process::call(&args, &self.stop)
    }

    /// Runs the array and its export.
    pub(super) fn attach(&mut self) -> Result<()> {
        self.stop.check()?;
        let mut args =
            args!["attach", "--nbd", "127.0.0.1:0", "--control", self.control()].to_vec();
        args.extend(self.urls.iter().cloned());
        self.engine = Some(Daemon::start("engine", &args)?);
        Ok(())
    }

    /// Lets the engine close the array and end.
    pub(super) fn detach(&mut self) -> Result<()> {
        self.engine.take().map_or(Ok(()), Daemon::stop)
    }

    /// SIGKILL for a target.
    pub(super) fn kill_target(&mut self, index: usize) -> Result<()> {
        self.targets[index].take().map_or(Ok(()), Daemon::kill)
    }

    /// From now on the target at `spare` is the member `index`.
    pub(super) fn replace(&mut self, index: usize, spare: usize) -> Result<()> {
        let with = self.urls[spare].clone();
        process::call(&args!["replace", self.control(), index, with], &self.stop)?;
        self.urls[index] = with;
        self.urls.remove(spare);
        Ok(())
    }

    /// The array's status as the engine says it.
    pub(super) fn status(&self) -> Result<Value> {
        process::call(&args!["status", self.control()], &self.stop)
    }

    /// A client process works on the export.
    pub(super) fn load(&self, args: &[String]) -> Result<Value> {
        let mut all = args!["load", args[0], self.nbd()?].to_vec();
        all.extend_from_slice(&args[1..]);
        process::call(&all, &self.stop)
    }

    /// Where the export is.
    pub(super) fn nbd(&self) -> Result<String> {
        let engine = self.engine.as_ref().context("the engine does not run")?;
        engine.ready_text("/exports/0/uri")
    }

    /// Where the engine listens for commands.
    pub(super) fn control(&self) -> String {
        format!("unix:{}", self.dir.join("control.sock").display())
    }

    /// The members' addresses.
    pub(super) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Waits a moment, or fails when told to stop.
    pub(super) fn pause(&self) -> Result<()> {
        std::thread::sleep(Duration::from_millis(50));
        self.stop.check()
    }

    /// Ends the engine, then the targets; each must end cleanly.
    pub(super) fn close(mut self) -> Result<()> {
        self.detach()?;
        self.targets.drain(..).flatten().try_for_each(Daemon::stop)
    }

    fn file(&self, index: usize) -> PathBuf {
        self.dir.join(format!("member{index}.img"))
    }
}
