//! How far long work is, in words.

use std::time::Duration;

use netraid_engine::control::ProgressStatus;

use crate::size;

/// A rebuild, catch-up or resync in one line.
pub(crate) fn show(progress: &ProgressStatus) -> String {
    let kind = progress.kind.replace('_', "-");
    let member = progress.member.map(|member| format!(" of member {member}"));
    let part = show_part(progress.done_bytes, progress.total_bytes);
    let speed = show_speed(progress.bytes_per_s, progress.left_ms);
    let lost = match progress.lost_bytes {
        0 => String::new(),
        lost => format!("; {} cannot be had from the other members", size::show(lost)),
    };
    format!("{kind}{}: {part}{speed}{lost}", member.unwrap_or_default())
}

/// How much of all bytes is done.
pub(crate) fn show_part(done: u64, total: u64) -> String {
    let percent = done as f64 / total.max(1) as f64 * 100.0;
    format!("{percent:.1}% ({} of {})", size::show(done), size::show(total))
}

/// How fast it goes, and how long it takes yet, as far as that is known.
pub(crate) fn show_speed(bytes_per_s: Option<u64>, left_ms: Option<u64>) -> String {
    let rate = bytes_per_s.map(|rate| format!(", {}/s", size::show(rate)));
    let left = left_ms.map(|ms| format!(", {} left", show_time(Duration::from_millis(ms))));
    rate.unwrap_or_default() + &left.unwrap_or_default()
}

/// A time, as far as it matters: two units of it.
pub(crate) fn show_time(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_millis() >= 500);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {} s", seconds % 60),
        (1..48, _) => format!("{hours} h {} min", minutes % 60),
        (48.., _) => format!("{} days {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_with_what_is_known_of_it() {
        let mut progress = ProgressStatus {
            kind: "catch_up".to_owned(),
            member: Some(3),
            done_bytes: 1 << 20,
            total_bytes: 8 << 20,
            lost_bytes: 0,
            bytes_per_s: None,
            left_ms: None,
        };
        assert_eq!(show(&progress), "catch-up of member 3: 12.5% (1.0 MiB of 8.0 MiB)");
        (progress.bytes_per_s, progress.left_ms) = (Some(1 << 20), Some(7100));
        assert_eq!(
            show(&progress),
            "catch-up of member 3: 12.5% (1.0 MiB of 8.0 MiB), 1.0 MiB/s, 7 s left"
        );
        (progress.lost_bytes, progress.left_ms) = (65536, None);
        let told = show(&progress);
        assert!(
            told.ends_with(", 1.0 MiB/s; 64.0 KiB cannot be had from the other members"),
            "{told}"
        );
    }

    #[test]
    fn times_have_two_units() {
        let shown = |seconds| show_time(Duration::from_secs(seconds));
        assert_eq!(shown(0), "0 s");
        assert_eq!(show_time(Duration::from_millis(59_600)), "1 min 0 s");
        assert_eq!(shown(3599), "59 min 59 s");
        assert_eq!(shown(3600 + 61), "1 h 1 min");
        assert_eq!(shown(50 * 3600), "2 days 2 h");
    }
}
