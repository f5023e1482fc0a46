//! Records for tests.

use super::*;

pub(crate) fn settings() -> Settings {
    Settings {
        tests: TestId::select("all").unwrap(),
        file_bytes: 1 << 30,
        net_file_bytes: 500 << 20,
        buffer_bytes: 256 << 10,
        stream_depth: 4,
        stream_s: 120.0,
        depths: vec![1, 4, 16],
        random_s: 5.0,
        rounds: 1,
        pairs: 7,
        tape_bytes_per_s: 10_000_000,
        tape: None,
        tape_buffer_bytes: 8 << 20,
        clients: Vec::new(),
        target_memory_bytes: None,
        fail_member: None,
    }
}

pub(crate) fn target(index: u16) -> TargetInfo {
    TargetInfo {
        index,
        address: format!("/target/{index}"),
        kind: TargetKind::Directory,
        capacity_bytes: 1 << 40,
        direct: true,
        file_system: Some("ext4".to_owned()),
        in_memory: false,
        identity: None,
        redundancy: Redundancy {
            source: "nobody".to_owned(),
            state: RedundancyState::Unknown,
            level: None,
            detail: String::new(),
        },
    }
}

pub(crate) fn result(test: TestId, target: u16, value: f64) -> TestResult {
    let figure = Some(Figure { value, unit: test.test().unit });
    TestResult { figure, ..TestResult::without(test, target, Outcome::Done) }
}

pub(crate) fn run() -> Run {
    Run {
        version: VERSION,
        id: "r1".to_owned(),
        started_at: "2026-11-23T18:00:00Z".to_owned(),
        netraid: "0.1.0".to_owned(),
        machine: Machine {
            host: "here".to_owned(),
            system: "Linux".to_owned(),
            architecture: "x86_64".to_owned(),
            processor: None,
            processors: 2,
            memory_bytes: 1 << 34,
        },
        targets: vec![TargetSpec { address: "/target/0".to_owned(), control: None }],
        settings: settings(),
        data: DataProof {
            source: "generated".to_owned(),
            digest: None,
            places: 8,
            sample_bytes: 1 << 20,
            compressed_bytes: 1 << 20,
            compressor: "zstd".to_owned(),
        },
    }
}
