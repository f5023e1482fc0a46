//! Coverage-guided fuzzing: builds `fuzz/targets/` with the nightly compiler and runs its targets.
//!
//! No tool is installed for it: libFuzzer comes with the `libfuzzer-sys` library, and the flags
//! below are those that make the compiler count what is reached.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::run::{output, root};

/// Every target, as in `fuzz/targets/Cargo.toml`, and the longest input that makes sense for it in bytes.
const TARGETS: [(&str, u32); 10] = [
    ("codecs", 4200),
    ("target_session", 4096),
    ("initiator_session", 4096),
    ("scsi_device", 4096),
    ("array_labels", 4096),
    ("logged_media", 4096),
    ("stored_state", 4096),
    ("control_requests", 2048),
    ("nbd", 2048),
    ("token", 2048),
];

/// Coverage as libFuzzer reads it, and the address sanitizer, which also bounds single allocations.
const FLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Zsanitizer=address";

/// Memory of a fuzzer, and its longest single allocation, in MiB.
const RSS_MAX_MIB: u32 = 1024;
const ALLOCATION_MAX_MIB: u32 = 64;
/// Longest run of one input in seconds.
const INPUT_TIMEOUT_S: u32 = 10;

/// Runs every target, or those whose names contain `name`, for so many seconds each.
pub(crate) fn run(seconds: u32, name: &str) -> Result<()> {
    if output("cargo", &["+nightly", "--version"]).is_err() {
        if std::env::var_os("CI").is_some() {
            bail!("fuzzing needs a nightly compiler: rustup toolchain install nightly");
        }
        println!(
            "fuzz: skipped, as there is no nightly compiler (rustup toolchain install nightly)"
        );
        return Ok(());
    }
    let programs = build()?;
    let mut findings = Vec::new();
    for (target, len_max) in TARGETS.iter().filter(|(target, _)| target.contains(name)) {
        if !fuzz(&programs.join(target), target, *len_max, seconds)? {
            findings.push(*target);
        }
    }
    if !findings.is_empty() {
        bail!("fuzz: findings in {findings:?}; the inputs are in fuzz/artifacts");
    }
    Ok(())
}

/// Longest seed that is kept, in bytes, and most seeds of a target: a clone stays small, and the
/// first inputs of a run already reach most of what is known.
const SEED_LEN_MAX: u32 = 2048;
const SEEDS_MAX: usize = 25;

/// Makes the committed seeds anew of what they and earlier runs have found: of the inputs that
/// together reach what all of them reach, those that reach most.
pub(crate) fn seeds(name: &str) -> Result<()> {
    let programs = build()?;
    for (target, _) in TARGETS.iter().filter(|(target, _)| target.contains(name)) {
        let corpus = root().join("target/fuzz/corpus").join(target);
        let seeds = root().join("fuzz/seeds").join(target);
        let chosen = root().join("target/fuzz/seeds").join(target);
        if chosen.exists() {
            fs::remove_dir_all(&chosen).with_context(|| chosen.display().to_string())?;
        }
        for directory in [&corpus, &seeds, &chosen] {
            fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        // What reaches most is chosen first; edges alone count, not how often.
        let status = Command::new(programs.join(target))
            .args(["-set_cover_merge=1", "-use_counters=0", "-verbosity=0"])
            .arg(format!("-max_len={SEED_LEN_MAX}"))
            .args([&chosen, &seeds, &corpus])
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .stderr(Stdio::null())
            .status();
        if !status.with_context(|| format!("cannot run {target}"))?.success() {
            bail!("{target}: the seeds cannot be made; run the target and mend what it finds");
        }
        replace_seeds(&seeds, &chosen).with_context(|| seeds.display().to_string())?;
    }
    Ok(())
}

/// Puts the first of what was chosen in the place of the seeds.
fn replace_seeds(seeds: &Path, chosen: &Path) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(chosen)? {
        let path = entry?.path();
        found.push((fs::metadata(&path)?.modified()?, path));
    }
    found.sort();
    fs::remove_dir_all(seeds)?;
    fs::create_dir_all(seeds)?;
    let mut bytes = 0;
    for (_, path) in found.iter().take(SEEDS_MAX) {
        bytes += fs::copy(path, seeds.join(path.file_name().unwrap_or_default()))?;
    }
    println!(
        "{}: {} of {} inputs, {bytes} bytes",
        seeds.display(),
        found.len().min(SEEDS_MAX),
        found.len()
    );
    Ok(())
}

/// The lock file of the targets fits what they are built of, and their format is the house's. Their
/// programs are a line each; the harnesses belong to the workspace, and are looked at with it.
pub(crate) fn check() -> Result<()> {
    for args in [&["fmt", "--check"][..], &["tree", "--quiet", "--locked"]] {
        println!("+ cargo {} (in fuzz/targets)", args.join(" "));
        let mut cargo = Command::new("cargo");
        cargo.args(args).current_dir(root().join("fuzz/targets")).stdout(Stdio::null());
        let status = cargo.status().context("cannot run cargo")?;
        if !status.success() {
            bail!("cargo {} in fuzz/targets: {status}", args.join(" "));
        }
    }
    Ok(())
}

/// Builds all targets; the directory where they are.
fn build() -> Result<PathBuf> {
    let target_dir = root().join("target/fuzz");
    let version = output("rustc", &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    println!("+ cargo +nightly build --release (in fuzz/targets, with coverage)");
    let status = Command::new("cargo")
        .args(["+nightly", "build", "--quiet", "--release", "--target", host])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", &target_dir)
        .current_dir(root().join("fuzz/targets"))
        .status();
    if !status.context("cannot run cargo")?.success() {
        bail!("the fuzz targets do not build");
    }
    Ok(target_dir.join(host).join("release"))
}

/// Runs one target; false on a finding.
fn fuzz(program: &Path, target: &str, len_max: u32, seconds: u32) -> Result<bool> {
    // What is found grows outside the tree; the committed seeds are only read.
    let corpus = root().join("target/fuzz/corpus").join(target);
    let seeds = root().join("fuzz/seeds").join(target);
    let artifacts = root().join("fuzz/artifacts").join(target);
    for directory in [&corpus, &seeds, &artifacts] {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    println!("+ {target} for {seconds} s");
    let status = Command::new(program)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={len_max}"))
        .arg(format!("-rss_limit_mb={RSS_MAX_MIB}"))
        .arg(format!("-malloc_limit_mb={ALLOCATION_MAX_MIB}"))
        .arg(format!("-timeout={INPUT_TIMEOUT_S}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        // Inputs are lists of operations: long ones from the start.
        .args(["-print_final_stats=1", "-verbosity=0", "-len_control=0", "-print_funcs=0"])
        .arg(&corpus)
        .arg(&seeds)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .status();
    Ok(status.with_context(|| format!("cannot run {target}"))?.success())
}
