//! What limits a result: the baseline that it comes near to, the processor, the tape, or the target.

use crate::{
    catalogue::{TestId, Unit},
    plan::{self, FigureOf},
    record::{Baseline, BaselineKind, Limit, Role, Round, TargetInfo, TargetKind, TestResult},
    statistics::median,
};

/// A part limits a result that reaches this share of what it gives alone.
pub const NEAR: f64 = 0.8;
/// The processors limit a result when this share of them was busy.
pub const BUSY: f64 = 0.9;

/// What limits a result; none where it has no rate.
#[must_use]
pub fn limit(result: &TestResult, target: &TargetInfo, baselines: &[Baseline]) -> Option<Limit> {
    if let Some(tape) = tape(result) {
        return Some(tape);
    }
    let rate = rate(result)?;
    let shares = parts(result, target).into_iter().filter_map(|(kind, name, passes)| {
        let of_kind = baselines.iter().filter(|baseline| baseline.kind == kind);
        // With several hosts, what they give in sum.
        let base: f64 = of_kind.map(|baseline| baseline.mb_per_s).sum();
        (base > 0.0).then(|| (name, base, rate * passes / base))
    });
    let nearest = shares.max_by(|a, b| a.2.total_cmp(&b.2));
    let next = nearest.map(|(name, base, share)| {
        format!("; {name} gives {base:.0} MB/s, of which this is {:.0}%", share * 100.0)
    });
    let next = next.unwrap_or_default();
    if let Some((name, base, share)) = nearest.filter(|(_, _, share)| *share >= NEAR) {
        let text = format!("{name}: this is {:.0}% of its {base:.0} MB/s alone", share * 100.0);
        return Some(Limit { part: name.to_owned(), share: Some(share), text });
    }
    if let Some(busy) = result.processor_busy.filter(|busy| *busy >= BUSY) {
        let text = format!("the processors of this machine, {:.0}% busy{next}", busy * 100.0);
        return Some(Limit { part: "processor".to_owned(), share: Some(busy), text });
    }
    let text = format!("the target{next}");
    Some(Limit { part: "target".to_owned(), share: None, text })
}

/// A test whose figure is the tape's rate is limited by the tape, unless the tape had to wait.
fn tape(result: &TestResult) -> Option<Limit> {
    if !matches!(result.test, TestId::Host5 | TestId::Host6) {
        return None;
    }
    let reports = result.rounds.iter().flat_map(|round| &round.streams);
    let reports: Vec<_> = reports.filter_map(|stream| stream.tape).collect();
    let wanted = reports.first()?.wanted_mb_per_s;
    if reports.iter().any(|tape| tape.starved > 0) {
        return None;
    }
    let text = format!("the tape: it takes and gives {wanted:.1} MB/s");
    Some(Limit { part: "tape".to_owned(), share: Some(1.0), text })
}

/// All bytes of a result a second, in MB/s.
fn rate(result: &TestResult) -> Option<f64> {
    if let Some(best) = result.random.iter().map(|point| point.mb_per_s).max_by(f64::total_cmp) {
        return Some(best);
    }
    let all = |round: &Round| match plan::figure_of(result.test) {
        FigureOf::First => round.streams.iter().map(|stream| stream.mb_per_s).sum(),
        FigureOf::Mean => round.mb_per_s * round.streams.len() as f64,
        FigureOf::Total => round.mb_per_s,
    };
    let rounds: Vec<f64> = result.rounds.iter().map(all).collect();
    let is_rate = result.figure.is_some_and(|figure| figure.unit == Unit::MbPerS);
    median(&rounds).filter(|_| is_rate)
}

/// The parts that all bytes of a result pass, and how often.
fn parts(result: &TestResult, target: &TargetInfo) -> Vec<(BaselineKind, &'static str, f64)> {
    let streams = || result.rounds.iter().flat_map(|round| &round.streams);
    let away = streams().any(|stream| !stream.host.is_empty());
    let copies = streams().any(|stream| stream.role == Role::RemoteCopy);
    if away {
        return vec![(BaselineKind::Network, "the network to the clients", 1.0)];
    }
    let mut parts = vec![(BaselineKind::Memory, "memory", 1.0)];
    match target.kind {
        // TCP is on the way of Unix sockets too, or nearly.
        TargetKind::Iscsi | TargetKind::Nbd => {
            parts.push((BaselineKind::Loopback, "TCP over loopback", 1.0));
        }
        TargetKind::Directory | TargetKind::File | TargetKind::Block => {}
    }
    if copies {
        parts.push((BaselineKind::DiskWrite, "the disk that the copy goes to", 1.0));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{
        Stream, TapeReport,
        tests::{result, target},
    };

    fn baselines() -> Vec<Baseline> {
        [(BaselineKind::Memory, 8000.0), (BaselineKind::Loopback, 2000.0)]
            .map(|(kind, mb_per_s)| Baseline {
                kind,
                place: String::new(),
                samples_mb_per_s: vec![mb_per_s],
                mb_per_s,
            })
            .to_vec()
    }

    fn streamed(test: TestId, role: Role, mb_per_s: f64, tape: Option<TapeReport>) -> TestResult {
        let stream = Stream {
            role,
            host: String::new(),
            bytes: 1,
            seconds: 1.0,
            mb_per_s,
            flush_s: 0.0,
            tape,
        };
        TestResult {
            rounds: vec![Round { mb_per_s, streams: vec![stream] }],
            ..result(test, 0, mb_per_s)
        }
    }

    #[test]
    fn what_comes_near_to_a_baseline_is_limited_by_it() {
        let mut lun = target(0);
        lun.kind = TargetKind::Iscsi;
        let part = |rate, target: &TargetInfo| {
            let result = streamed(TestId::Host2, Role::Read, rate, None);
            limit(&result, target, &baselines()).unwrap().part
        };
        assert_eq!(part(1800.0, &lun), "TCP over loopback");
        assert_eq!(part(1000.0, &lun), "target");
        assert_eq!(part(1800.0, &target(0)), "target");
        assert_eq!(part(7000.0, &target(0)), "memory");
    }

    #[test]
    fn busy_processors_limit_what_nothing_else_does() {
        let mut result = streamed(TestId::Host2, Role::Read, 100.0, None);
        result.processor_busy = Some(0.95);
        assert_eq!(limit(&result, &target(0), &baselines()).unwrap().part, "processor");
    }

    #[test]
    fn a_tape_limits_unless_it_waited() {
        let tape = |starved| {
            Some(TapeReport {
                wanted_mb_per_s: 10.0,
                starved,
                starved_s: 0.0,
                longest_s: 0.0,
                own_late_s: 0.0,
            })
        };
        let part = |starved| {
            let result = streamed(TestId::Host5, Role::ToTape, 10.0, tape(starved));
            limit(&result, &target(0), &baselines()).unwrap().part
        };
        assert_eq!(part(0), "tape");
        assert_eq!(part(3), "target");
    }

    #[test]
    fn a_test_without_rates_has_no_limit() {
        assert_eq!(limit(&result(TestId::Cache, 0, 1.0), &target(0), &baselines()), None);
    }
}
