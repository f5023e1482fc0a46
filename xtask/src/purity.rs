//! The pure crates reach for no operating system.
//!
//! The compiler itself is the proof: each pure crate, with its whole dependency tree and the
//! features that it asks for alone, is compiled against a sysroot that holds `core` and `alloc`
//! and nothing else, so whoever says `std` does not compile. What speaks to the operating system
//! without `std` is refused by name.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::run::{cargo, output, root};

/// The crates that hold protocol, layout and planning, and no sockets, clock or threads.
pub(crate) const PURE: [&str; 9] = [
    "netraid-block",
    "netraid-planted",
    "netraid-scsi",
    "netraid-iscsi-proto",
    "netraid-remote",
    "netraid-node",
    "netraid-parity",
    "netraid-raid",
    "netraid-control",
];

/// Crates that are `no_std` and yet call the operating system or gather entropy.
const SYSTEM: [&str; 6] = ["libc", "linux-raw-sys", "rustix", "getrandom", "nix", "syscalls"];

/// The parts of the standard library that need no operating system.
const FREESTANDING: [&str; 3] = ["libcore-", "liballoc-", "libcompiler_builtins-"];

pub(crate) fn check() -> Result<()> {
    for pure in PURE {
        refuse_system_crates(pure)?;
    }
    let host = host()?;
    let target_dir = root().join("target/purity");
    let sysroot = sysroot_without_std(&target_dir, &host)?;
    let flags = format!("--sysroot={}", sysroot.display());
    let target_dir = target_dir.display().to_string();
    // One crate at a time: together, one crate's features would be switched on for another.
    for pure in PURE {
        let args = ["check", "--quiet", "-p", pure, "--target", &host, "--target-dir", &target_dir];
        cargo(&args, &[("RUSTFLAGS", &flags)])
            .with_context(|| format!("{pure} or a dependency of it needs std"))?;
    }
    println!("purity: {} crates compile without std", PURE.len());
    Ok(())
}

fn refuse_system_crates(pure: &str) -> Result<()> {
    let args = ["tree", "-p", pure, "-e", "normal,no-proc-macro", "--prefix", "none"];
    for line in output("cargo", &args)?.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if SYSTEM.contains(&name) {
            bail!("{pure} depends on {name}, which calls the operating system; pass it in instead");
        }
    }
    Ok(())
}

fn host() -> Result<String> {
    let version = output("rustc", &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_string).context("rustc -vV names no host")
}

/// Makes a directory that the compiler takes for its own, with links to `core` and `alloc` only.
fn sysroot_without_std(target_dir: &Path, host: &str) -> Result<PathBuf> {
    let full = output("rustc", &["--print", "sysroot"])?;
    let library = format!("lib/rustlib/{host}/lib");
    let sysroot = target_dir.join("sysroot");
    let links = sysroot.join(&library);
    if links.exists() {
        fs::remove_dir_all(&links).with_context(|| links.display().to_string())?;
    }
    fs::create_dir_all(&links).with_context(|| links.display().to_string())?;
    let mut count = 0;
    for entry in fs::read_dir(Path::new(full.trim()).join(&library))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        let text = name.to_string_lossy();
        if FREESTANDING.iter().any(|part| text.starts_with(part)) {
            symlink(&path, links.join(name))?;
            count += usize::from(text.ends_with(".rlib"));
        }
    }
    if count != FREESTANDING.len() {
        bail!("{library} of the toolchain has {count} of {FREESTANDING:?}; install rust-std");
    }
    Ok(sysroot)
}
