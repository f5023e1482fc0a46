//! Which files of shells name a clock, and in how many lines: the list may only shrink. What waits, times out or
//! judges by the time belongs into a pure machine, which the simulator runs; a shell tells it the time.

/// Crates with shells that serve.
const SHELLS: [&str; 7] = ["engine", "export", "agent", "mediator", "cluster", "files", "private"];

/// What names a clock.
const CLOCKS: [&str; 8] = [
    "Instant::now",
    "SystemTime::now",
    ".elapsed()",
    " sleep(",
    "sleep_until(",
    "timeout(",
    "timeout_at(",
    "interval(",
];

/// Files with the lines in them that name a clock, tests aside.
const MAY: [(&str, usize); 48] = [
    ("crates/agent/src/book.rs", 2),
    ("crates/agent/src/calibrate.rs", 15),
    ("crates/agent/src/disk/mod.rs", 2),
    ("crates/agent/src/disk/scribe.rs", 5),
    ("crates/agent/src/keeper.rs", 4),
    ("crates/cluster/src/http.rs", 5),
    ("crates/cluster/src/lib.rs", 1),
    ("crates/cluster/src/serve.rs", 1),
    ("crates/cluster/src/serve/connection.rs", 3),
    ("crates/cluster/src/serve/doors.rs", 3),
    ("crates/cluster/src/store.rs", 1),
    ("crates/engine/src/array/driver.rs", 7),
    ("crates/engine/src/array/standby.rs", 7),
    ("crates/engine/src/control/conversations.rs", 5),
    ("crates/engine/src/control/mod.rs", 3),
    ("crates/engine/src/filters/timer.rs", 2),
    ("crates/engine/src/filters/trace.rs", 4),
    ("crates/engine/src/initiator/driver.rs", 8),
    ("crates/engine/src/target/connection.rs", 4),
    ("crates/engine/src/target/connection/outside.rs", 3),
    ("crates/engine/src/target/control.rs", 3),
    ("crates/engine/src/target/mod.rs", 3),
    ("crates/engine/src/target/pacing.rs", 5),
    ("crates/engine/src/target/reports.rs", 2),
    ("crates/engine/src/target/segments.rs", 7),
    ("crates/engine/src/target/sessions.rs", 1),
    ("crates/engine/src/target/threads.rs", 1),
    ("crates/engine/src/wire.rs", 1),
    ("crates/export/src/fuse/mod.rs", 1),
    ("crates/export/src/fuse/replies.rs", 1),
    ("crates/export/src/fuse/volume.rs", 1),
    ("crates/export/src/nbd/connection.rs", 1),
    ("crates/export/src/nbd/mod.rs", 10),
    ("crates/files/src/keeper.rs", 14),
    ("crates/files/src/keeper/beat.rs", 1),
    ("crates/files/src/takeover.rs", 1),
    ("crates/files/src/volume.rs", 3),
    ("crates/mediator/src/agents.rs", 8),
    ("crates/mediator/src/audit.rs", 3),
    ("crates/mediator/src/book.rs", 3),
    ("crates/mediator/src/clients.rs", 1),
    ("crates/mediator/src/core.rs", 2),
    ("crates/mediator/src/end.rs", 9),
    ("crates/mediator/src/join.rs", 2),
    ("crates/mediator/src/lib.rs", 1),
    ("crates/mediator/src/link.rs", 2),
    ("crates/mediator/src/open.rs", 3),
    ("crates/mediator/src/renew.rs", 1),
];

/// Why a file may not be as it is, if so.
pub(crate) fn check(path: &str, text: &str) -> Option<String> {
    let is_shell = SHELLS.iter().any(|shell| path.starts_with(&format!("crates/{shell}/src/")));
    let listed = MAY.iter().find(|(file, _)| *file == path).map_or(0, |(_, lines)| *lines);
    if !is_shell || path.ends_with("tests.rs") {
        return None;
    }
    let found = lines(text);
    match found.cmp(&listed) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!(
            "{path}: {found} lines name a clock, {listed} may: give a pure machine the time instead"
        )),
        std::cmp::Ordering::Less => Some(format!(
            "{path}: {found} lines name a clock, and {listed} may: lower that in xtask/src/clocks.rs"
        )),
    }
}

/// Files of the list that are no more.
pub(crate) fn gone(exists: impl Fn(&str) -> bool) -> Vec<String> {
    let gone = MAY.iter().filter(|(file, _)| !exists(file));
    gone.map(|(file, _)| format!("{file} is no more: take it out of xtask/src/clocks.rs")).collect()
}

fn lines(text: &str) -> usize {
    let names_one = |line: &&str| {
        let code = line.split("//").next().unwrap_or_default();
        CLOCKS.iter().any(|clock| code.contains(clock)) && !code.contains("fn ")
    };
    text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).filter(names_one).count()
}
