//! Running cargo and finding the workspace.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Runs cargo at the root with extra environment, showing what is run.
pub(crate) fn cargo(args: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    execute(Command::new("cargo"), args, environment)
}

/// The same; fails, with all that it started ended, when it takes longer than so many seconds.
pub(crate) fn cargo_within(
    seconds: u32,
    args: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=30", &seconds.to_string(), "cargo"]);
    execute(command, args, environment)
        .with_context(|| format!("it may take {seconds} s (status 124 says that it took longer)"))
}

/// Runs a command at the root with extra arguments and environment, showing what is run, and
/// how long it took.
pub(crate) fn execute(
    mut command: Command,
    args: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    println!("+ {program} {}", args.join(" "));
    command.args(args).envs(environment.iter().copied()).current_dir(root());
    let began = Instant::now();
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} {}: {status}", args.join(" "));
    }
    println!("took {:.0} s: {program} {}", began.elapsed().as_secs_f64(), args.join(" "));
    Ok(())
}

/// Which build of the program is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// The one that tests use, with debug assertions and checks for overflow: no further compilation
    /// after `cargo xtask test`.
    Tests,
    /// The one that is packaged and measured, optimised when it is linked.
    Dist,
}

/// The program, built, or another that NETRAID names.
pub(crate) fn netraid(build: Build) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NETRAID") {
        let path = PathBuf::from(path);
        println!("NETRAID says which program is tried: {}", path.display());
        return Ok(path);
    }
    let tests_were_built = std::env::var_os("CI").is_some();
    let (args, directory): (&[&str], _) = match build {
        Build::Dist => (&["build", "--profile", "dist", "--package", "netraid"], "dist"),
        // Built alone, the program's dependencies have other features than beside the tests, and are
        // built anew.
        Build::Tests if tests_were_built => {
            (&["test", "--workspace", "--no-run", "--quiet"], "debug")
        }
        Build::Tests => (&["build", "--package", "netraid"], "debug"),
    };
    cargo(args, &[])?;
    Ok(root().join("target").join(directory).join("netraid"))
}

/// The workspace and all its dependencies, exactly as locked.
pub(crate) fn metadata() -> Result<Metadata> {
    let mut command = MetadataCommand::new();
    command.current_dir(root()).other_options(vec!["--locked".to_string()]);
    command.exec().context("cargo metadata")
}

/// What a program prints.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).current_dir(root()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}: {text}", args.join(" "), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no UTF-8"))
}
