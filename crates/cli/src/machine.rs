//! What a machine is, as far as it matters to what is measured on it.

use std::{fs, thread};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// The machine that this runs on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// Its host name.
    pub(crate) name: String,
    /// The model of its first processor.
    pub(crate) processor: String,
    /// Processors that this process may use.
    pub(crate) processors: usize,
    pub(crate) memory_bytes: u64,
    /// Name and release of its kernel.
    pub(crate) kernel: String,
}

impl Machine {
    /// Looks at it.
    ///
    /// # Errors
    /// When it does not say how many processors it has.
    pub(crate) fn look() -> Result<Self> {
        let uname = rustix::system::uname();
        let text = |of: &std::ffi::CStr| of.to_string_lossy().into_owned();
        // Not all architectures name a model.
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
        let info = rustix::system::sysinfo();
        Ok(Self {
            name: text(uname.nodename()),
            processor: model.unwrap_or_else(|| text(uname.machine())),
            processors: thread::available_parallelism().context("number of processors")?.get(),
            memory_bytes: info.totalram.saturating_mul(info.mem_unit.into()),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
        })
    }
}
