//! What can be known of a target's redundancy: from the control socket of an array of ours, or from
//! what Linux says of its own.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use netraid_engine::control::{self, ArrayStatus, ControlRequest};
use netraid_evaluate::record::{Redundancy, RedundancyState};

use crate::{control::socket_path, runtime};

/// How deep devices may stand on one another.
const DEPTH_MAX: u8 = 8;
/// Where a device names those that it stands on.
const BELOW: &str = concat!("sla", "ves");

/// Nobody tells.
pub(super) fn unknown() -> Redundancy {
    redundancy("nobody", RedundancyState::Unknown, None, String::new())
}

/// What an array says at its control socket.
pub(in crate::evaluate) fn of_control(control: &str) -> Result<Redundancy> {
    Ok(of_status(&status(control)?))
}

/// The status of the array at a control socket.
pub(in crate::evaluate) fn status(control: &str) -> Result<ArrayStatus> {
    let path = socket_path(control)?;
    let answer = runtime()?.block_on(control::call(&path, &ControlRequest::Status))?;
    serde_json::from_value(answer).with_context(|| {
        format!(
            "{control}: is no array's control socket; give the one of `netraid attach --control`"
        )
    })
}

fn of_status(status: &ArrayStatus) -> Redundancy {
    let away: Vec<String> = status
        .members
        .iter()
        .filter(|member| member.state != "in_sync" && member.state != "spare")
        .map(|member| format!("member {} is {}", member.index, member.state))
        .collect();
    let state = match (status.level, status.state.as_str()) {
        (0, _) => RedundancyState::Off,
        (_, "optimal") if away.is_empty() => RedundancyState::Full,
        _ => RedundancyState::Degraded,
    };
    let mut detail = format!("array '{}' is {}", status.name, status.state);
    for line in &away {
        detail += &format!(", {line}");
    }
    redundancy("control socket", state, Some(status.level.to_string()), detail)
}

/// What Linux says of the device with this number: md, the device mapper over md, or nothing.
pub(super) fn of_device(device: u64) -> Redundancy {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    of_sysfs(Path::new(&format!("/sys/dev/block/{major}:{minor}")), 0)
}

fn of_sysfs(device: &Path, depth: u8) -> Redundancy {
    let text =
        |name: &str| fs::read_to_string(device.join(name)).ok().map(|text| text.trim().to_owned());
    if let Some(level) = text("md/level") {
        return of_md(&level, text("md/degraded").as_deref(), text("md/sync_action").as_deref());
    }
    // A partition's directory stands in that of its disk.
    if text("partition").is_some()
        && depth < DEPTH_MAX
        && let Ok(real) = fs::canonicalize(device)
        && let Some(disk) = real.parent()
    {
        return of_sysfs(disk, depth + 1);
    }
    let mapped = text("dm/name");
    let below = fs::read_dir(device.join(BELOW)).into_iter().flatten().flatten();
    let below: Vec<_> = below.map(|entry| entry.path()).collect();
    if depth < DEPTH_MAX
        && let [one] = below.as_slice()
    {
        let mut found = of_sysfs(one, depth + 1);
        if let Some(name) = mapped {
            found.detail = format!("device mapper '{name}' over {}", found.detail);
        }
        return found;
    }
    match mapped {
        Some(name) => {
            let detail = format!("device mapper '{name}' over {} devices", below.len());
            redundancy("device mapper", RedundancyState::Unknown, None, detail)
        }
        None => unknown(),
    }
}

fn of_md(level: &str, degraded: Option<&str>, action: Option<&str>) -> Redundancy {
    let missing = degraded.and_then(|count| count.parse::<u32>().ok());
    let state = match (level, missing) {
        ("raid0" | "linear", _) => RedundancyState::Off,
        (_, Some(0)) => RedundancyState::Full,
        (_, Some(_)) => RedundancyState::Degraded,
        (_, None) => RedundancyState::Unknown,
    };
    let missing = missing.map(|count| format!(", {count} devices missing")).unwrap_or_default();
    let action = action.filter(|action| *action != "idle").map(|action| format!(", {action}"));
    let detail = format!("{level}{missing}{}", action.unwrap_or_default());
    redundancy("md", state, Some(level.to_owned()), detail)
}

fn redundancy(
    source: &str,
    state: RedundancyState,
    level: Option<String>,
    detail: String,
) -> Redundancy {
    Redundancy { source: source.to_owned(), state, level, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device in a made-up sysfs.
    fn device(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn md_is_read_also_through_what_stands_on_it() {
        let sys = tempfile::tempdir().unwrap();
        let md = sys.path().join("md0");
        let state = |missing: &str, level: &str| {
            device(&md, &[("md/level", level), ("md/degraded", missing)]);
            of_sysfs(&md, 0).state
        };
        assert_eq!(state("0", "raid5"), RedundancyState::Full);
        assert_eq!(state("1", "raid5"), RedundancyState::Degraded);
        assert_eq!(state("0", "raid0"), RedundancyState::Off);
        let mapped = sys.path().join("dm-0");
        device(&mapped, &[("dm/name", "vg-home")]);
        fs::create_dir(mapped.join(BELOW)).unwrap();
        std::os::unix::fs::symlink(&md, mapped.join(BELOW).join("md0")).unwrap();
        let found = of_sysfs(&mapped, 0);
        assert_eq!((found.source.as_str(), found.state), ("md", RedundancyState::Off));
        assert!(found.detail.contains("vg-home"), "{found:?}");
        let partition = md.join("md0p1");
        device(&partition, &[("partition", "1")]);
        assert_eq!(of_sysfs(&partition, 0).source, "md");
    }

    #[test]
    fn a_plain_disk_tells_nothing() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(of_sysfs(sys.path(), 0), unknown());
    }
}
