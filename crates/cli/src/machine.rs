//! The machine that measures, as reports and records name it.

use std::{fs, num::NonZero, thread};

use netraid_evaluate::record::Machine;

/// This machine.
pub(crate) fn this() -> Machine {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    Machine {
        host: text(uname.nodename()),
        system: format!("{} {}", text(uname.sysname()), text(uname.release())),
        architecture: text(uname.machine()),
        processor: field("/proc/cpuinfo", "model name"),
        // Clamped: no machine has more.
        processors: u32::try_from(processors).unwrap_or(u32::MAX),
        memory_bytes: memory().unwrap_or_default(),
    }
}

/// Bytes of memory.
fn memory() -> Option<u64> {
    let text = field("/proc/meminfo", "MemTotal")?;
    let kib: u64 = text.strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The first value of a name in a file of lines `name : value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_a_name_and_memory() {
        let machine = super::this();
        assert!(!machine.host.is_empty() && machine.memory_bytes > 1 << 20, "{machine:?}");
    }
}
