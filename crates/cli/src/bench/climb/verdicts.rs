//! What limits the volumes of a climb and its export: facts for the judge, from what was measured.

use netraid_raid::geometry::Level;

use super::{
    super::parity::{Report, Work},
    judge::{Facts, ON_LINE, Verdict, bend, judge as judge_point},
    members::CHUNK_LEN,
    record::{Bend, Climb, Point, Step, What},
};

/// Fills in where volumes bend, and what limits the largest, and the export.
pub(super) fn judge(climb: &mut Climb) {
    let (mut bends, mut verdicts) = (Vec::new(), Vec::new());
    for level in climb.levels() {
        for write in [true, false] {
            let steps: Vec<&Step> =
                climb.steps.iter().filter(|step| is_of(step, level, write)).collect();
            let Some(last) = steps.last() else { continue };
            bends.push(bend_of(climb, level, write, &steps));
            verdicts.extend(verdict_of(climb, level, last));
        }
    }
    verdicts.extend([true, false].into_iter().filter_map(|write| of_export(climb, write)));
    (climb.bends, climb.verdicts) = (bends, verdicts);
}

fn is_of(step: &Step, level: Level, write: bool) -> bool {
    step.what == What::Level(level.number()) && step.write == write
}

fn bend_of(climb: &Climb, level: Level, write: bool, steps: &[&Step]) -> Bend {
    let of_line: Vec<(u8, f64)> = steps.iter().map(|step| (step.members, step.of_line)).collect();
    let members = bend(&of_line);
    let step = steps.iter().find(|step| Some(step.members) == members);
    let verdict = step.and_then(|step| verdict_of(climb, level, step));
    let (ways, number) = (ways(write), level.number());
    let percent = ON_LINE * 100.0;
    let sentence = match step {
        Some(step) => format!(
            "{ways} of level {number} leave the line of one member with {} members: {:.0}% of it, less than \
             {percent:.0}%.",
            step.members,
            step.of_line * 100.0
        ),
        None => format!(
            "{ways} of level {number} follow the line of one member up to {} members: {:.0}% of it, not less \
             than {percent:.0}%.",
            steps.last().map_or(0, |step| step.members),
            steps.last().map_or(f64::NAN, |step| step.of_line * 100.0)
        ),
    };
    Bend { level: number, write, threshold: ON_LINE, members, verdict, sentence }
}

fn verdict_of(climb: &Climb, level: Level, step: &Step) -> Option<Verdict> {
    let subject =
        format!("{} of level {} on {} members", ways(step.write), level.number(), step.members);
    let point = step.point.as_ref()?;
    let facts = facts(climb, level, (step.members, step.write), point)?;
    Some(judge_point(subject, step.mb_per_s, &facts))
}

/// The export at the size of requests that the volumes had, or the next.
fn of_export(climb: &Climb, write: bool) -> Option<Verdict> {
    let away = |bytes: u32| bytes.abs_diff(climb.request_bytes);
    let sizes = climb.end_to_end.iter().filter(|size| size.write == write);
    let size = sizes.min_by_key(|size| away(size.request_bytes))?;
    let level = climb.levels().pop()?;
    let members = climb.count();
    let facts = facts(climb, level, (members, write), &size.point)?;
    let subject = format!(
        "{} of {} through the export, level {} on {members} members",
        ways(write),
        crate::size::show(size.request_bytes.into()),
        level.number()
    );
    Some(judge_point(subject, size.point.median_mb_per_s, &facts))
}

fn facts(
    climb: &Climb,
    level: Level,
    (members, write): (u8, bool),
    point: &Point,
) -> Option<Facts> {
    let together = climb.step(What::Together, members, write)?;
    let without = together.point.as_ref()?;
    let processors = f64::from(climb.machine.processors);
    let figures = &point.figures;
    Some(Facts {
        level,
        members,
        write,
        one_mb_per_s: climb.step(What::Together, 1, write)?.mb_per_s,
        together_mb_per_s: together.mb_per_s,
        together_idle: processors - without.processors_busy - without.processors_others,
        transport_mb_per_s: climb.step(What::Transport, members, write).map(|step| step.mb_per_s),
        sums_gb_per_s: sums(&climb.parity, level, members, write),
        engine_cpu_s_per_gb: point.engine_cpu_s_per_gb.unwrap_or(figures.client_cpu_s_per_gb),
        client_cpu_s_per_gb: point.engine_cpu_s_per_gb.map(|_| figures.client_cpu_s_per_gb),
        cpu_s_per_gb: figures.cpu_s_per_gb(),
        threads: climb.threads,
        processors,
        others: point.processors_others,
    })
}

const fn ways(write: bool) -> &'static str {
    if write { "Writes" } else { "Reads" }
}

/// GB/s of users' data that one processor sums up: checksums of all that passes where there is a log, and
/// what redundancy is computed of writes.
fn sums(parity: &Report, level: Level, members: u8, write: bool) -> Option<f64> {
    let work = match level {
        Level::Raid0 => return None,
        Level::Raid1 | Level::Raid10 => None,
        Level::Raid5 => write.then_some((Work::Xor, members.saturating_sub(1))),
        Level::Raid6 => write.then_some((Work::PAndQ, members.saturating_sub(2))),
    };
    let checksum = rate_of(parity, Work::Checksum, 1)?;
    let computed = work.and_then(|(work, sources)| rate_of(parity, work, sources));
    let seconds = checksum.recip() + computed.map_or(0.0, f64::recip);
    Some(seconds.recip())
}

/// The rate of one processor for chunks, with the number of sources that is nearest.
fn rate_of(parity: &Report, work: Work, sources: u8) -> Option<f64> {
    let series = parity.series.iter().filter(|one| one.work == work && one.processors == 1);
    let series = series.min_by_key(|one| one.sources.abs_diff(usize::from(sources)))?;
    let away = |bytes: usize| bytes.abs_diff(CHUNK_LEN as usize);
    series.points.iter().min_by_key(|point| away(point.buffer_bytes)).map(|point| point.gb_per_s)
}
