//! Licences and sources of everything that goes into the build.

use anyhow::{Result, bail};
use cargo_metadata::{Metadata, Package};
use spdx::Expression;

const ALLOWED: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "0BSD",
    "Zlib",
    "Unicode-3.0",
    "MPL-2.0",
];

pub(crate) fn check(metadata: &Metadata) -> Result<()> {
    let faults: Vec<String> = metadata.packages.iter().filter_map(fault).collect();
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    println!("licences: {} packages, all allowed", metadata.packages.len());
    Ok(())
}

fn fault(package: &Package) -> Option<String> {
    let who = format!("{} {}", package.name, package.version);
    if let Some(source) = &package.source
        && !source.is_crates_io()
    {
        return Some(format!("{who} comes from {source}; take a published version"));
    }
    let Some(licence) = &package.license else {
        return Some(format!("{who} names no licence; choose another"));
    };
    // "A/B" is how older packages wrote "A OR B".
    match Expression::parse(&licence.replace('/', " OR ")) {
        Err(error) => Some(format!("{who} has the licence '{licence}': {error}")),
        Ok(expression) => {
            let good = expression.evaluate(|requirement| {
                requirement.license.id().is_some_and(|id| ALLOWED.contains(&id.name))
            });
            (!good).then(|| format!("{who} has the licence '{licence}'; allowed: {ALLOWED:?}"))
        }
    }
}
