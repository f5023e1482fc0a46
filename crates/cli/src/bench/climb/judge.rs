//! Which part of a volume limits it, by how much, and what would be next: plain functions of what was
//! measured of each part.
//!
//! Each part has a bound: the rate of users' data that it would allow if it alone counted. The part with
//! the least bound limits, if it is used; where no part is, requests wait for one another.

use netraid_raid::geometry::Level;
use serde::Serialize;

/// Below this part of the line through nothing and one member, a volume has left it.
pub(crate) const ON_LINE: f64 = 0.9;
/// What has less than this part of its bound does not limit.
pub(crate) const FULL: f64 = 0.75;
/// Processors that others may be busy with, of all, before it is said.
const OTHERS: f64 = 0.1;

/// A part of the way of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartKind {
    /// The members, each by itself.
    Members,
    /// What all members are reached by: less comes from all at once than from each.
    Network,
    /// TCP of this machine, with as many connections.
    Transport,
    /// Parity and checksums.
    Sums,
    /// The threads that drive the array.
    Engine,
    /// The thread of the client of an export.
    Client,
    /// The processors of this machine.
    Processors,
}

impl PartKind {
    /// It in words, at the beginning of a sentence.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Members => "The members",
            Self::Network => "The network to the members",
            Self::Transport => "TCP over loopback",
            Self::Sums => "Parity and checksums",
            Self::Engine => "The engine's threads",
            Self::Client => "The client's thread",
            Self::Processors => "The processors of this machine",
        }
    }

    fn within(self) -> String {
        match self {
            // A name.
            Self::Transport => self.name().to_owned(),
            Self::Members
            | Self::Network
            | Self::Sums
            | Self::Engine
            | Self::Client
            | Self::Processors => {
                let mut name = self.name().to_owned();
                name[..1].make_ascii_lowercase();
                name
            }
        }
    }
}

/// A part, and the rate of users' data that it would allow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Part {
    pub(crate) kind: PartKind,
    pub(crate) bound_mb_per_s: f64,
}

/// What was measured around one point of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) level: Level,
    pub(crate) members: u8,
    pub(crate) write: bool,
    /// One member alone.
    pub(crate) one_mb_per_s: f64,
    /// As many members at once, without an array.
    pub(crate) together_mb_per_s: f64,
    /// Processors that were left to nobody meanwhile, of all.
    pub(crate) together_idle: f64,
    /// Bare TCP on this machine with as many connections, where the members are on it.
    pub(crate) transport_mb_per_s: Option<f64>,
    /// Of one thread, by bytes of users' data; none where nothing is computed.
    pub(crate) sums_gb_per_s: Option<f64>,
    /// Processor seconds a GB of what drives the array.
    pub(crate) engine_cpu_s_per_gb: f64,
    /// The same of the client of an export.
    pub(crate) client_cpu_s_per_gb: Option<f64>,
    /// The same of all processes on this machine that take part.
    pub(crate) cpu_s_per_gb: f64,
    /// Threads that drive the array.
    pub(crate) threads: u8,
    /// Processors of this machine.
    pub(crate) processors: f64,
    /// How many of them were busy with other things.
    pub(crate) others: f64,
}

/// Users' data in what members move.
pub(crate) fn data_share(level: Level, members: u8, write: bool) -> f64 {
    let members = f64::from(members);
    match (level, write) {
        (_, false) | (Level::Raid0, true) => 1.0,
        (Level::Raid1, true) => 1.0 / members,
        (Level::Raid5, true) => (members - 1.0) / members,
        (Level::Raid6, true) => (members - 2.0) / members,
        (Level::Raid10, true) => 0.5,
    }
}

/// What each part would allow.
pub(crate) fn parts(facts: &Facts) -> Vec<Part> {
    let share = data_share(facts.level, facts.members, facts.write);
    let all = f64::from(facts.members) * facts.one_mb_per_s;
    let threads = f64::from(facts.threads);
    // Where processors are full, they are why all members together give less than each.
    let is_network =
        facts.together_mb_per_s < ON_LINE * all && facts.together_idle > OTHERS * facts.processors;
    let by_cpu = |processors: f64, cpu_s_per_gb: f64| processors / cpu_s_per_gb * 1e3;
    let known = [
        (PartKind::Members, Some(all * share)),
        (PartKind::Network, is_network.then_some(facts.together_mb_per_s * share)),
        (PartKind::Transport, facts.transport_mb_per_s.map(|rate| rate * share)),
        (PartKind::Sums, facts.sums_gb_per_s.map(|rate| rate * threads * 1e3)),
        (PartKind::Engine, Some(by_cpu(threads, facts.engine_cpu_s_per_gb))),
        (PartKind::Client, facts.client_cpu_s_per_gb.map(|cost| by_cpu(1.0, cost))),
        (PartKind::Processors, Some(by_cpu(facts.processors, facts.cpu_s_per_gb))),
    ];
    let known = known.into_iter().filter_map(|(kind, bound)| {
        // Too short a time has no processor time.
        bound
            .filter(|bound| bound.is_finite() && *bound > 0.0)
            .map(|bound_mb_per_s| Part { kind, bound_mb_per_s })
    });
    let mut parts: Vec<Part> = known.collect();
    parts.sort_by(|one, other| one.bound_mb_per_s.total_cmp(&other.bound_mb_per_s));
    parts
}

/// The count of members at which a volume leaves the line of one member, and stays below; steps are
/// counts with the part of the line that they have, in order.
pub(crate) fn bend(steps: &[(u8, f64)]) -> Option<u8> {
    let below = steps.iter().rev().take_while(|(_, of_line)| *of_line < ON_LINE);
    below.last().map(|(members, _)| *members)
}

/// What limits a point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Verdict {
    /// What of.
    pub(crate) subject: String,
    pub(crate) mb_per_s: f64,
    /// The part that limits; none where none is full.
    pub(crate) limit: Option<PartKind>,
    /// What the point has of the least bound.
    pub(crate) used: Option<f64>,
    /// All parts, by their bounds.
    pub(crate) parts: Vec<Part>,
    /// All of that in words.
    pub(crate) sentence: String,
}

/// Judges a point by its parts, as [`parts`] gives them.
pub(crate) fn judge(subject: String, mb_per_s: f64, facts: &Facts) -> Verdict {
    let parts = parts(facts);
    let used = parts.first().map(|least| mb_per_s / least.bound_mb_per_s);
    let limit = parts.first().filter(|_| used.is_some_and(|used| used >= FULL));
    let mut sentence = format!("{subject}: {}. ", rate(mb_per_s));
    sentence += &match (parts.as_slice(), used) {
        ([], _) | (_, None) => "Nothing is known of its parts.".to_owned(),
        ([least, rest @ ..], Some(used)) if limit.is_some() => limited(*least, rest, used),
        ([least, ..], Some(used)) => format!(
            "No part is full: {} would allow the least, {}, of which this is {}.",
            least.kind.within(),
            rate(least.bound_mb_per_s),
            percent(used)
        ),
    };
    let (others, all) = (facts.others, facts.processors);
    // What others take is not counted in bounds: nobody knows how much of it this could have had.
    sentence += &match (others > OTHERS * all, limit) {
        (true, Some(_)) => format!(" Other work took {others:.1} of {all} processors meanwhile."),
        (true, None) => format!(
            " Other work took {others:.1} of {all} processors meanwhile, which may be why: measure again \
             without it."
        ),
        (false, Some(_)) => String::new(),
        (false, None) => {
            " The rest is waiting: more requests in flight, or larger ones, would show the \
                          limit."
                .to_owned()
        }
    };
    let limit = limit.map(|part| part.kind);
    Verdict { subject, mb_per_s, limit, used, parts, sentence }
}

fn limited(limit: Part, rest: &[Part], used: f64) -> String {
    let verb = match limit.kind {
        PartKind::Network | PartKind::Transport | PartKind::Client => ("limits", "It allows"),
        PartKind::Members | PartKind::Sums | PartKind::Engine | PartKind::Processors => {
            ("limit", "They allow")
        }
    };
    let first = format!(
        "{} {}. {} {}, of which this is {}.",
        limit.kind.name(),
        verb.0,
        verb.1,
        rate(limit.bound_mb_per_s),
        percent(used)
    );
    match rest.first() {
        Some(next) => format!(
            "{first} Without that limit the next would be {}: {}, {:.1} times as much.",
            next.kind.within(),
            rate(next.bound_mb_per_s),
            next.bound_mb_per_s / limit.bound_mb_per_s
        ),
        None => first,
    }
}

fn rate(mb_per_s: f64) -> String {
    if mb_per_s < 10.0 { format!("{mb_per_s:.1} MB/s") } else { format!("{mb_per_s:.0} MB/s") }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four members of 100 MB/s on hosts of their own, written as level 5 by an idle machine.
    const EASY: Facts = Facts {
        level: Level::Raid5,
        members: 4,
        write: true,
        one_mb_per_s: 100.0,
        together_mb_per_s: 396.0,
        together_idle: 7.0,
        transport_mb_per_s: None,
        sums_gb_per_s: Some(10.0),
        engine_cpu_s_per_gb: 0.5,
        client_cpu_s_per_gb: None,
        cpu_s_per_gb: 0.5,
        threads: 1,
        processors: 8.0,
        others: 0.0,
    };

    fn kinds(facts: &Facts) -> Vec<PartKind> {
        parts(facts).iter().map(|part| part.kind).collect()
    }

    #[test]
    fn slow_members_limit_and_the_engine_would_be_next() {
        let verdict = judge("Writes".into(), 291.0, &EASY);
        assert_eq!(verdict.limit, Some(PartKind::Members));
        assert_eq!(
            verdict.sentence,
            "Writes: 291 MB/s. The members limit. They allow 300 MB/s, of which this is 97%. Without that \
             limit the next would be the engine's threads: 2000 MB/s, 6.7 times as much."
        );
        assert_eq!(
            kinds(&EASY),
            [PartKind::Members, PartKind::Engine, PartKind::Sums, PartKind::Processors]
        );
    }

    #[test]
    fn what_all_members_share_is_the_network_unless_processors_are_full() {
        let shared = Facts { together_mb_per_s: 118.0, ..EASY };
        let verdict = judge("Writes".into(), 86.0, &shared);
        assert_eq!(verdict.limit, Some(PartKind::Network));
        assert!((verdict.parts[0].bound_mb_per_s - 88.5).abs() < 1e-9, "parity takes its share");
        assert_eq!(verdict.parts[1].kind, PartKind::Members);
        let full = Facts { together_idle: 0.1, ..shared };
        assert!(!kinds(&full).contains(&PartKind::Network));
    }

    #[test]
    fn fast_members_on_this_machine_leave_its_processors() {
        let facts = Facts {
            one_mb_per_s: 4000.0,
            together_mb_per_s: 4100.0,
            together_idle: 0.0,
            transport_mb_per_s: Some(4500.0),
            cpu_s_per_gb: 0.8,
            processors: 2.0,
            ..EASY
        };
        let verdict = judge("Writes".into(), 1900.0, &facts);
        // The engine allows 2000, the processors 2500.
        assert_eq!(
            (verdict.limit, verdict.parts[1].kind),
            (Some(PartKind::Engine), PartKind::Processors)
        );
        let more = Facts { threads: 2, ..facts };
        assert_eq!(judge("Writes".into(), 2400.0, &more).limit, Some(PartKind::Processors));
        let busy = Facts { others: 1.0, ..more };
        let verdict = judge("Writes".into(), 1200.0, &busy);
        assert_eq!(verdict.limit, None, "nobody knows what others would have left");
        assert!(verdict.sentence.contains("took 1.0 of 2 processors meanwhile, which may be why"));
    }

    #[test]
    fn where_nothing_is_full_no_part_is_blamed() {
        let verdict = judge("Reads of 4 KiB".into(), 9.0, &EASY);
        assert_eq!(verdict.limit, None);
        assert!(verdict.sentence.contains("9.0 MB/s. No part is full: the members would allow"));
        assert!(verdict.sentence.contains("The rest is waiting"));
        // A rate without processor time, as very short runs have.
        let short = Facts { engine_cpu_s_per_gb: 0.0, cpu_s_per_gb: f64::NAN, ..EASY };
        assert_eq!(kinds(&short), [PartKind::Members, PartKind::Sums]);
    }

    #[test]
    fn a_client_counts_where_there_is_an_export() {
        let facts = Facts { client_cpu_s_per_gb: Some(4.0), ..EASY };
        let verdict = judge("Writes".into(), 240.0, &facts);
        assert_eq!(verdict.limit, Some(PartKind::Client));
        assert!(verdict.sentence.contains("The client's thread limits. It allows 250 MB/s"));
    }

    #[test]
    fn a_volume_bends_where_it_leaves_the_line_for_good() {
        assert_eq!(bend(&[(1, 1.0), (2, 0.99), (3, 0.95), (4, 0.91)]), None);
        assert_eq!(bend(&[(1, 1.0), (2, 0.97), (3, 0.8), (4, 0.6)]), Some(3));
        // A disturbed point is no bend.
        assert_eq!(bend(&[(1, 1.0), (2, 0.85), (3, 0.96), (4, 0.7)]), Some(4));
        assert_eq!(bend(&[]), None);
    }

    #[test]
    fn data_is_what_redundancy_leaves_of_writes() {
        let share = |level, write| data_share(level, 4, write);
        assert_eq!([share(Level::Raid0, true), share(Level::Raid5, false)], [1.0, 1.0]);
        assert_eq!([share(Level::Raid1, true), share(Level::Raid5, true)], [0.25, 0.75]);
        assert_eq!([share(Level::Raid6, true), share(Level::Raid10, true)], [0.5, 0.5]);
    }
}
