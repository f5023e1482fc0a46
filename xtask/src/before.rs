//! The program of before: the last one with version 1 of the documents (docs/formats/documents.md), which is run
//! beside this one.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::run::{execute, output, root};

/// Its commit.
const COMMIT: &str = "70da23586f6a16afbb5b44a56dc9b3d934341517";

/// The program, built of its commit in a worktree of its own under `target/`, or another that NETRAID_BEFORE names.
pub(crate) fn netraid_before() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NETRAID_BEFORE") {
        let path = PathBuf::from(path);
        println!("NETRAID_BEFORE says which program is run beside it: {}", path.display());
        return Ok(path);
    }
    let object = format!("{COMMIT}^{{commit}}");
    if output("git", &["cat-file", "-e", &object]).is_err() {
        bail!(
            "the program of before is of commit {COMMIT}, which is not in the history of this clone; \
             'git fetch --unshallow', or say by NETRAID_BEFORE where the program is"
        );
    }
    let directory = root().join("target/before");
    let source = directory.join("source");
    let shown = source.display().to_string();
    // One that was removed by hand is still on git's list.
    output("git", &["worktree", "prune"])?;
    if source.join(".git").exists() {
        output("git", &["-C", &shown, "checkout", "--quiet", "--detach", COMMIT])?;
    } else {
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        output("git", &["worktree", "add", "--quiet", "--detach", &shown, COMMIT])?;
    }
    let target = directory.join("build");
    let manifest = source.join("Cargo.toml").display().to_string();
    let args = ["build", "--locked", "--package", "netraid", "--manifest-path", &manifest];
    let mut command = Command::new("cargo");
    command.env("CARGO_TARGET_DIR", &target);
    execute(command, &args, &[])?;
    Ok(target.join("debug/netraid"))
}
