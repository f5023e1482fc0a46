use super::*;
use crate::record::{
    RedundancyState, RegionPoint, Role, Round, Stream, TapeReport, TargetKind,
    tests::{result, settings, target},
};

fn pairs(what: &str, base: f64, ratios: &[f64]) -> PairTable {
    PairTable {
        what: what.to_owned(),
        base: "a".to_owned(),
        other: "b".to_owned(),
        bytes: 1 << 20,
        pairs: ratios.iter().map(|ratio| (base, base * ratio)).collect(),
    }
}

fn with_pairs(test: TestId, tables: Vec<PairTable>) -> TestResult {
    TestResult { pairs: tables, ..result(test, 0, 1.0) }
}

fn reading(test: TestId, mb_per_s: f64) -> TestResult {
    let stream = Stream {
        role: Role::Read,
        host: String::new(),
        bytes: 1_000_000_000,
        seconds: 1000.0 / mb_per_s,
        mb_per_s,
        flush_s: 0.0,
        tape: None,
    };
    TestResult {
        rounds: vec![Round { mb_per_s, streams: vec![stream] }],
        ..result(test, 0, mb_per_s)
    }
}

fn judge(target: &TargetInfo, results: &[TestResult]) -> Vec<(FindingKind, FindingState)> {
    judge_with(target, results, &settings())
}

fn judge_with(
    target: &TargetInfo,
    results: &[TestResult],
    settings: &Settings,
) -> Vec<(FindingKind, FindingState)> {
    let baseline = |kind, mb_per_s| Baseline {
        kind,
        place: String::new(),
        samples_mb_per_s: vec![mb_per_s],
        mb_per_s,
    };
    let baselines =
        [baseline(BaselineKind::Memory, 8000.0), baseline(BaselineKind::Loopback, 4000.0)];
    let memory_bytes = 64 << 30;
    let evidence = Evidence { target, results, settings, baselines: &baselines, memory_bytes };
    findings(&evidence).into_iter().map(|finding| (finding.kind, finding.state)).collect()
}

fn state(found: &[(FindingKind, FindingState)], kind: FindingKind) -> Option<FindingState> {
    found.iter().find(|(of, _)| *of == kind).map(|(_, state)| *state)
}

const HONEST: [f64; 7] = [1.0, 1.1, 0.9, 1.0, 1.3, 0.8, 1.05];
const TRICK: [f64; 7] = [2.0, 2.1, 1.8, 2.0, 2.3, 1.9, 2.05];
const NOISE: [f64; 7] = [2.0, 0.7, 1.8, 0.6, 2.3, 1.1, 1.3];

#[test]
fn zeros_that_are_faster_are_found_in_either_direction() {
    let of = |write: &[f64], read: &[f64]| {
        let tables = vec![pairs("write", 100.0, write), pairs("read", 100.0, read)];
        let found = judge(&target(0), &[with_pairs(TestId::Compression, tables)]);
        state(&found, FindingKind::Compression)
    };
    assert_eq!(of(&HONEST, &HONEST), Some(FindingState::Clear));
    assert_eq!(of(&TRICK, &HONEST), Some(FindingState::Found));
    assert_eq!(of(&HONEST, &TRICK), Some(FindingState::Found));
    assert_eq!(of(&TRICK, &NOISE), Some(FindingState::Found));
    assert_eq!(of(&HONEST, &NOISE), Some(FindingState::CouldNotTell));
    assert_eq!(state(&judge(&target(0), &[]), FindingKind::Compression), None);
}

#[test]
fn a_cache_is_a_trick_only_where_results_come_from_it() {
    let of = |ratios: &[f64], matrix: f64| {
        let cache = with_pairs(TestId::Cache, vec![pairs("read", 100.0, ratios)]);
        let found = judge(&target(0), &[cache, reading(TestId::Host2, matrix)]);
        state(&found, FindingKind::CacheOnly)
    };
    assert_eq!(of(&[4.0; 7], 390.0), Some(FindingState::Found));
    assert_eq!(of(&[4.0; 7], 110.0), Some(FindingState::Note));
    assert_eq!(of(&HONEST, 100.0), Some(FindingState::Clear));
    assert_eq!(of(&NOISE, 100.0), Some(FindingState::CouldNotTell));
}

#[test]
fn what_fits_into_the_targets_memory_is_not_called_clear() {
    let cache = with_pairs(TestId::Cache, vec![pairs("read", 100.0, &HONEST)]);
    let mut settings = settings();
    settings.target_memory_bytes = Some(16 << 30);
    let found = judge_with(&target(0), std::slice::from_ref(&cache), &settings);
    assert_eq!(state(&found, FindingKind::CacheOnly), Some(FindingState::CouldNotTell));
    settings.target_memory_bytes = Some(2 << 30);
    let found = judge_with(&target(0), std::slice::from_ref(&cache), &settings);
    assert_eq!(state(&found, FindingKind::CacheOnly), Some(FindingState::Clear));
    // A local file through the page cache fits into this machine's memory.
    let mut buffered = target(0);
    buffered.direct = false;
    let found = judge(&buffered, &[cache]);
    assert_eq!(state(&found, FindingKind::CacheOnly), Some(FindingState::CouldNotTell));
}

/// The flush test with its controls: reads of the same shape, short reads after a pause over those
/// without one, and writes in one place that go on as bursts do.
fn flushed(write: &[f64], shape: &[f64], pause: &[f64]) -> TestResult {
    flushed_in_place(write, shape, pause, write)
}

fn flushed_in_place(write: &[f64], shape: &[f64], pause: &[f64], place: &[f64]) -> TestResult {
    let tables = [(WRITE, write), (READ, shape), (READ_SHORT, pause), (REWRITE, place)];
    with_pairs(TestId::Flush, tables.map(|(what, ratios)| pairs(what, 100.0, ratios)).into())
}

/// Far above [`TRICK`].
const FAR: [f64; 7] = [6.0, 6.2, 5.8, 6.1, 6.0, 5.9, 6.3];

#[test]
fn bursts_faster_than_the_device_are_unstable() {
    let of = |ratios: &[f64]| {
        let flush = flushed(ratios, &HONEST, &HONEST);
        state(&judge(&target(0), &[flush]), FindingKind::UnstableWrites)
    };
    assert_eq!(of(&TRICK), Some(FindingState::Found));
    assert_eq!(of(&HONEST), Some(FindingState::Clear));
    assert_eq!(of(&[0.5; 7]), Some(FindingState::Clear));
    assert_eq!(of(&NOISE), Some(FindingState::CouldNotTell));
}

#[test]
fn small_bursts_show_what_bursts_are_too_large_for() {
    let of = |write: &[f64], small: &[f64]| {
        let mut flush = flushed_in_place(write, &HONEST, &HONEST, &FAR);
        flush.pairs.push(pairs(WRITE_SMALL, 100.0, small));
        state(&judge(&target(0), &[flush]), FindingKind::UnstableWrites)
    };
    assert_eq!(of(&HONEST, &TRICK), Some(FindingState::Found));
    assert_eq!(of(&TRICK, &HONEST), Some(FindingState::Found));
    assert_eq!(of(&HONEST, &HONEST), Some(FindingState::Clear));
    // What is so short is noisy: it takes away nothing from what bursts say, unless it may well be faster.
    assert_eq!(of(&HONEST, &NOISE), Some(FindingState::Clear));
    let faster = [2.0, 0.7, 1.8, 0.6, 2.3, 1.9, 1.6];
    assert_eq!(of(&HONEST, &faster), Some(FindingState::CouldNotTell));
    assert_eq!(of(&NOISE, &HONEST), Some(FindingState::CouldNotTell));
    // The larger bursts of which it is true are held against the controls.
    let tables = [pairs(WRITE, 100.0, &HONEST), pairs(WRITE_SMALL, 100.0, &TRICK)];
    assert_eq!(faster_bursts(&tables), Some(1 << 20));
    assert_eq!(faster_bursts(&tables[..1]), None);
}

#[test]
fn a_throttle_is_no_volatile_cache() {
    use FindingState::{Clear, CouldNotTell, Found, Note};
    let of = |results: &[TestResult]| {
        let found = judge(&target(0), results);
        [FindingKind::UnstableWrites, FindingKind::Throttled].map(|kind| state(&found, kind))
    };
    let flush = |write: &[f64], shape: &[f64], pause: &[f64]| of(&[flushed(write, shape, pause)]);
    assert_eq!(flush(&TRICK, &TRICK, &TRICK), [Some(CouldNotTell), Some(Note)]);
    assert_eq!(flush(&TRICK, &HONEST, &HONEST), [Some(Found), Some(Clear)]);
    // A cache answers what is short, whether there was a pause or not: reads are not throttled.
    assert_eq!(flush(&TRICK, &TRICK, &HONEST), [Some(Found), Some(Clear)]);
    assert_eq!(flush(&TRICK, &FAR, &FAR), [Some(CouldNotTell), Some(Note)]);
    // A pause helps writes far more than reads: the throttle explains a part of it.
    assert_eq!(flush(&FAR, &TRICK, &TRICK), [Some(CouldNotTell); 2]);
    assert_eq!(flush(&FAR, &FAR, &TRICK), [Some(CouldNotTell); 2]);
    assert_eq!(flush(&TRICK, &HONEST, &TRICK), [Some(CouldNotTell); 2]);
    assert_eq!(flush(&TRICK, &TRICK, &NOISE), [Some(CouldNotTell); 2]);
    // Without a control nobody is accused, and where bursts are no faster none is needed.
    let alone = |ratios| with_pairs(TestId::Flush, vec![pairs(WRITE, 100.0, ratios)]);
    assert_eq!(of(&[alone(&TRICK)]), [Some(CouldNotTell); 2]);
    assert_eq!(of(&[alone(&HONEST)]), [Some(Clear), None]);
    assert!(faster_bursts(&alone(&TRICK).pairs).is_some());
    assert!(faster_bursts(&alone(&NOISE).pairs).is_none());
}

#[test]
fn a_throttle_of_writes_alone_is_no_volatile_cache() {
    use FindingState::{Clear, CouldNotTell, Found};
    let of = |write: &[f64], place: &[f64]| {
        let flush = flushed_in_place(write, &HONEST, &HONEST, place);
        let found = judge(&target(0), &[flush]);
        [FindingKind::UnstableWrites, FindingKind::Throttled].map(|kind| state(&found, kind))
    };
    assert_eq!(of(&TRICK, &TRICK), [Some(Found), Some(Clear)]);
    assert_eq!(of(&TRICK, &FAR), [Some(Found), Some(Clear)]);
    // Each byte counts, also where it was written before.
    assert_eq!(of(&TRICK, &HONEST), [Some(CouldNotTell); 2]);
    assert_eq!(of(&TRICK, &NOISE), [Some(CouldNotTell); 2]);
    assert_eq!(of(&FAR, &TRICK), [Some(CouldNotTell); 2]);
    let mut without = flushed(&TRICK, &HONEST, &HONEST);
    without.pairs.retain(|table| table.what != REWRITE);
    let found = judge(&target(0), &[without]);
    assert_eq!(state(&found, FindingKind::UnstableWrites), Some(CouldNotTell));
}

#[test]
fn reads_from_a_cache_are_no_control() {
    let of = |first: f64| {
        let cache = with_pairs(TestId::Cache, vec![pairs("read", first, &[4.0; 7])]);
        let found = judge(&target(0), &[flushed(&TRICK, &HONEST, &HONEST), cache]);
        state(&found, FindingKind::UnstableWrites)
    };
    // The control read at 100 MB/s: as slow as first reads, or as fast as reads again.
    assert_eq!(of(100.0), Some(FindingState::Found));
    assert_eq!(of(25.0), Some(FindingState::CouldNotTell));
}

#[test]
fn what_a_cache_may_hide_is_not_called_clear() {
    let honest = || vec![pairs(WRITE, 100.0, &HONEST)];
    let flush = with_pairs(TestId::Flush, honest());
    let unstable =
        |results: &[TestResult]| state(&judge(&target(0), results), FindingKind::UnstableWrites);
    let none = TestResult { notes: vec![NO_FLUSH.to_owned()], ..flush.clone() };
    assert_eq!(unstable(&[none]), Some(FindingState::CouldNotTell));
    // A whole file is written at half the rate of what fits into the cache, or once because of something else.
    let whole = |rates: &[f64]| {
        let rounds = rates.iter().flat_map(|rate| reading(TestId::Flush, *rate).rounds);
        TestResult { rounds: rounds.collect(), ..flush.clone() }
    };
    assert_eq!(unstable(&[whole(&[40.0])]), Some(FindingState::CouldNotTell));
    assert_eq!(unstable(&[whole(&[40.0, 45.0])]), Some(FindingState::CouldNotTell));
    assert_eq!(unstable(&[whole(&[40.0, 95.0])]), Some(FindingState::Clear));
    // Making a file takes longer than writing over it: another test's files say nothing here.
    let made = reading(TestId::Host1, 40.0);
    assert_eq!(unstable(&[whole(&[95.0]), made]), Some(FindingState::Clear));
    let compression = with_pairs(TestId::Compression, honest());
    let cached = with_pairs(TestId::Flush, vec![pairs(WRITE, 100.0, &TRICK)]);
    let found = judge(&target(0), &[compression, cached]);
    assert_eq!(state(&found, FindingKind::Compression), Some(FindingState::CouldNotTell));
}

#[test]
fn memory_is_told_and_is_no_trick() {
    let results = |read: f64, write: f64| {
        [
            with_pairs(TestId::Cache, vec![pairs("read", read, &HONEST)]),
            with_pairs(TestId::Flush, vec![pairs("write", write, &HONEST)]),
        ]
    };
    let of = |target: &TargetInfo, read, write| {
        let found = judge(target, &results(read, write));
        assert!(found.iter().all(|(_, state)| *state != FindingState::Found), "{found:?}");
        state(&found, FindingKind::NoDevice)
    };
    let mut lun = target(0);
    lun.kind = TargetKind::Iscsi;
    assert_eq!(of(&lun, 2400.0, 1500.0), Some(FindingState::Note));
    assert_eq!(of(&lun, 2400.0, 300.0), Some(FindingState::Clear));
    let mut tmpfs = target(0);
    tmpfs.in_memory = true;
    assert_eq!(of(&tmpfs, 100.0, 100.0), Some(FindingState::Note));
}

#[test]
fn redundancy_is_what_its_source_says() {
    let of = |redundancy| {
        let mut target = target(0);
        target.redundancy.state = redundancy;
        state(&judge(&target, &[]), FindingKind::Redundancy)
    };
    assert_eq!(of(RedundancyState::Full), Some(FindingState::Clear));
    assert_eq!(of(RedundancyState::Degraded), Some(FindingState::Found));
    assert_eq!(of(RedundancyState::Off), Some(FindingState::Found));
    assert_eq!(of(RedundancyState::Unknown), Some(FindingState::CouldNotTell));
}

#[test]
fn places_differ_when_all_rounds_do() {
    let of = |outer: [f64; 3], inner: [f64; 3]| {
        let point = |position, samples: [f64; 3]| {
            let mb_per_s = crate::statistics::median(&samples).unwrap();
            RegionPoint { position, samples_mb_per_s: samples.to_vec(), mb_per_s }
        };
        let regions = vec![point(0.0, outer), point(1.0, inner)];
        let result = TestResult { regions, ..result(TestId::Regions, 0, 1.0) };
        state(&judge(&target(0), &[result]), FindingKind::OuterRegion)
    };
    assert_eq!(of([200.0, 210.0, 205.0], [100.0, 110.0, 105.0]), Some(FindingState::Note));
    assert_eq!(of([200.0, 210.0, 100.0], [100.0, 110.0, 105.0]), Some(FindingState::CouldNotTell));
    assert_eq!(of([100.0, 110.0, 100.0], [100.0, 110.0, 105.0]), Some(FindingState::Clear));
}

#[test]
fn tapes_and_marks_are_counted() {
    let of = |starved| {
        let mut result = reading(TestId::Host5, 10.0);
        result.rounds[0].streams[0].tape = Some(TapeReport {
            wanted_mb_per_s: 10.0,
            starved,
            starved_s: 0.1,
            longest_s: 0.1,
            own_late_s: 0.0,
        });
        state(&judge(&target(0), &[result]), FindingKind::TapeStarved)
    };
    assert_eq!(of(0), Some(FindingState::Clear));
    assert_eq!(of(1), Some(FindingState::Found));
    let failed = |reason: &str| {
        let outcome = crate::record::Outcome::Failed { reason: reason.to_owned() };
        let result = TestResult::without(TestId::Host2, 0, outcome);
        state(&judge(&target(0), &[result]), FindingKind::WrongBytes)
    };
    assert_eq!(failed("/f: wrong bytes at 4096"), Some(FindingState::Found));
    assert_eq!(failed("connection lost"), Some(FindingState::Clear));
}

#[test]
fn two_tricks_at_a_time_are_both_found() {
    let results = [
        with_pairs(TestId::Compression, vec![pairs("write", 100.0, &TRICK)]),
        with_pairs(TestId::Cache, vec![pairs("read", 100.0, &TRICK)]),
        flushed(&TRICK, &HONEST, &HONEST),
        reading(TestId::Net4, 200.0),
    ];
    let found = judge(&target(0), &results);
    for kind in [FindingKind::Compression, FindingKind::CacheOnly, FindingKind::UnstableWrites] {
        assert_eq!(state(&found, kind), Some(FindingState::Found), "{kind:?}");
    }
}
