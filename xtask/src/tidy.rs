//! Rules of the house that no lint knows. Each says which mistake it prevents; one that has not
//! fired usefully for long goes.

use std::{fs, path::Path};

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, Metadata, Package};

use crate::{
    clocks,
    purity::PURE,
    run::{output, root},
};

/// A file past this length is listed: it may hold more than one thing.
const LONG_FILE_LINES: usize = 600;

struct File {
    path: String,
    text: String,
}

pub(crate) fn check(metadata: &Metadata) -> Result<()> {
    let files = tracked_files()?;
    let mut faults = Vec::new();
    for package in metadata.workspace_packages() {
        dependency_direction(package, &mut faults);
        pure_crates_say_so(package, &mut faults);
    }
    for file in &files {
        leftover_markers(file, &mut faults);
        fenced_unsafe(file, &mut faults);
        one_word_per_thing(file, &mut faults);
        scripts_are_strict(file, &mut faults);
        links_lead_somewhere(file, &mut faults);
        faults.extend(clocks::check(&file.path, &file.text));
        report_length(file);
    }
    faults.extend(clocks::gone(|path| files.iter().any(|file| file.path == path)));
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    println!("tidy: {} files", files.len());
    Ok(())
}

fn tracked_files() -> Result<Vec<File>> {
    let mut files = Vec::new();
    let listed = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    for path in listed.lines() {
        let known = [".rs", ".sh", ".md", ".toml"].iter().any(|ending| path.ends_with(ending));
        // What is not UTF-8 text, or was deleted and not committed yet, has no rules here.
        if let (true, Ok(text)) = (known, fs::read_to_string(root().join(path))) {
            files.push(File { path: path.to_string(), text });
        }
    }
    Ok(files)
}

/// Prevents: a pure crate that gets a socket through the back door, and cycles of concepts.
fn dependency_direction(package: &Package, faults: &mut Vec<String>) {
    let name = package.name.as_str();
    let allowed: &[&str] = match name {
        "netraid-block" | "netraid-planted" => &[],
        "netraid-parity" => &["netraid-block"],
        "netraid-scsi" => &["netraid-block", "netraid-planted"],
        "netraid-iscsi-proto" => {
            &["netraid-block", "netraid-scsi", "netraid-parity", "netraid-planted"]
        }
        "netraid-remote" => {
            &["netraid-block", "netraid-scsi", "netraid-iscsi-proto", "netraid-planted"]
        }
        "netraid-node" => &[
            "netraid-block",
            "netraid-scsi",
            "netraid-iscsi-proto",
            "netraid-control",
            "netraid-planted",
        ],
        "netraid-raid" => &["netraid-block", "netraid-parity", "netraid-planted"],
        "netraid-control" => &["netraid-block", "netraid-raid"],
        "netraid-sim" => &PURE,
        "netraid-private" => &[],
        "netraid-engine" => &[
            "netraid-block",
            "netraid-scsi",
            "netraid-iscsi-proto",
            "netraid-remote",
            "netraid-node",
            "netraid-raid",
            "netraid-control",
            "netraid-private",
        ],
        "netraid-evaluate" => &[],
        "netraid-model" => &["netraid-block", "netraid-raid", "netraid-sim"],
        "netraid-export" => &["netraid-block", "netraid-engine", "netraid-private"],
        "netraid-cluster" => &["netraid-control", "netraid-private"],
        "netraid-agent" => &[
            "netraid-block",
            "netraid-cluster",
            "netraid-control",
            "netraid-engine",
            "netraid-private",
        ],
        "netraid-mediator" => {
            &["netraid-block", "netraid-cluster", "netraid-control", "netraid-raid"]
        }
        "netraid-files" => &[
            "netraid-block",
            "netraid-cluster",
            "netraid-control",
            "netraid-engine",
            "netraid-private",
            "netraid-raid",
        ],
        // The binary and the tasks know everybody.
        _ => return,
    };
    for dependency in &package.dependencies {
        let ours = dependency.name.starts_with("netraid");
        let normal = dependency.kind == DependencyKind::Normal;
        if ours && normal && !allowed.contains(&dependency.name.as_str()) {
            faults
                .push(format!("{name} depends on {}; it may on {allowed:?} only", dependency.name));
        }
    }
}

/// Prevents: a pure crate that loses its attribute in a merge and compiles all the same.
fn pure_crates_say_so(package: &Package, faults: &mut Vec<String>) {
    if !PURE.contains(&package.name.as_str()) {
        return;
    }
    for target in package.targets.iter().filter(|target| target.is_lib()) {
        let text = fs::read_to_string(&target.src_path).unwrap_or_default();
        if !text.contains("#![no_std]") {
            faults.push(format!("{}: a pure crate says #![no_std]", target.src_path));
        }
    }
}

/// Prevents: work that was put off and forgotten, and tests that nobody runs.
fn leftover_markers(file: &File, faults: &mut Vec<String>) {
    // Put together here, so that this file does not find itself.
    let markers = ["TO DO", "FIX ME", "HA CK:", "#[ig nore]", "db g!("];
    for marker in markers.map(|marker| marker.replace(' ', "")) {
        at_lines(file, &marker, "do it, or open an issue and take the marker out", faults);
    }
}

/// Prevents: unsafe code that spreads beyond the kernels that need it.
fn fenced_unsafe(file: &File, faults: &mut Vec<String>) {
    let places = [
        "crates/parity/",
        "crates/block/src/buf/memory.rs",
        "crates/engine/src/pool.rs",
        "crates/engine/src/backings/ring/",
    ];
    let may = places.iter().any(|place| file.path.starts_with(place));
    if file.path.ends_with(".rs") && !may {
        let marker = ["allow(", "unsafe_code"].concat();
        at_lines(
            file,
            &marker,
            "unsafe stands in crates/parity, the buffer pool and the io_uring ring only",
            faults,
        );
    }
}

/// Prevents: two words for one thing, so that a search finds half of it.
fn one_word_per_thing(file: &File, faults: &mut Vec<String>) {
    let words = [
        ("resil ver", "rebuild"),
        ("hot sp are", "spare"),
        ("sla ve", "member"),
        ("initi ater", "initiator"),
        ("recons truction write", "rcw"),
        ("kilo byte", "KiB"),
    ];
    for (word, better) in words {
        at_lines(file, &word.replace(' ', ""), &format!("the word here is '{better}'"), faults);
    }
}

/// Prevents: a script that goes on after a failed step and passes.
fn scripts_are_strict(file: &File, faults: &mut Vec<String>) {
    if file.path.starts_with("tests/")
        && file.path.ends_with(".sh")
        // The guest's first process goes on, so that it can tell what went wrong.
        && !file.path.ends_with("/vm/init.sh")
        && !file.text.contains("set -euo pipefail")
        && !file.text.contains("lib.sh\"")
    {
        faults.push(format!("{}: begin with '. \"$(dirname \"$0\")/lib.sh\"'", file.path));
    }
}

/// Prevents: a document that sends its reader to a file that has moved.
fn links_lead_somewhere(file: &File, faults: &mut Vec<String>) {
    if !file.path.ends_with(".md") {
        return;
    }
    let base = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    for piece in file.text.split("](").skip(1) {
        let link = piece.split([')', '#', ' ']).next().unwrap_or_default();
        let local = !link.is_empty() && !link.contains("://");
        if local && !root().join(base).join(link).exists() {
            faults.push(format!("{}: the link to {link} leads nowhere", file.path));
        }
    }
    for piece in file.text.split('`').skip(1).step_by(2) {
        let path = piece.split([' ', ':', '*', '{']).next().unwrap_or_default();
        if piece.starts_with("crates/") && !root().join(path).exists() {
            faults.push(format!("{}: there is no {path}", file.path));
        }
    }
}

fn report_length(file: &File) {
    let lines = file.text.lines().count();
    if file.path.ends_with(".rs") && lines > LONG_FILE_LINES {
        println!("note: {} has {lines} lines; split where the interface narrows", file.path);
    }
}

fn at_lines(file: &File, word: &str, remedy: &str, faults: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        if line.contains(word) {
            faults.push(format!("{}:{}: '{word}': {remedy}", file.path, number + 1));
        }
    }
}
