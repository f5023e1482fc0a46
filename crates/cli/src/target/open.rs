//! Opens the backings of logical units, and says who the units are, and where their persistent
//! reservations and the markers of their sanitize operations are kept.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use netraid_block::{Device, Pool};
use netraid_engine::{
    backings::{Backing, Place, Shrink},
    filters::{FilterSpec, Filters},
    target::{Identity, Lun, ReservationStore, Sanitizing},
};

use crate::lun::LunSpec;

/// A logical unit's backing, opened.
pub(super) struct Opened {
    pub(super) spec: LunSpec,
    pub(super) backing: Backing,
    /// The first sees a request first.
    filters: Vec<Filters>,
}

impl Opened {
    pub(super) fn open(spec: LunSpec, block_len: Option<u32>, pool: &Pool) -> Result<Self> {
        let backing = spec.open(block_len, pool.clone())?;
        Ok(Self { spec, backing, filters: Vec::new() })
    }

    /// What initiators reach: the backing, behind the filters where there are any.
    pub(super) fn device(&self) -> &Device {
        self.filters.first().map_or(self.backing.device(), Filters::device)
    }

    /// Ends the filters that are there, and puts others in their place, the first one first. When
    /// those cannot be made, the ones that are there stay.
    pub(super) fn set_filters<'s>(
        &mut self,
        specs: impl DoubleEndedIterator<Item = &'s FilterSpec>,
    ) -> Result<()> {
        let mut stack: Vec<Filters> = Vec::new();
        for spec in specs.rev() {
            let below = stack.first().map_or(self.backing.device(), Filters::device);
            let filters = Filters::new(below, spec.clone())?;
            stack.insert(0, filters);
        }
        self.end_filters();
        self.filters = stack;
        Ok(())
    }

    /// The filters that are there, the first one first.
    pub(super) fn filters(&self) -> impl Iterator<Item = &FilterSpec> {
        self.filters.iter().map(Filters::spec)
    }

    /// Ends the filters: what hangs is aborted, what waits goes on.
    pub(super) fn end_filters(&mut self) {
        // Those above first: what they let go on meets those below.
        self.filters.drain(..).for_each(drop);
    }

    /// Changes its size: see [`Backing::resize`].
    pub(super) fn resize(&mut self, size: u64, shrink: Shrink) -> Result<Device> {
        if !self.filters.is_empty() {
            bail!(
                "{}: has filters; take them away first: netraid filter CONTROL LUN none",
                self.spec
            );
        }
        let device = self.backing.resize(size, shrink)?;
        match &mut self.spec.place {
            Place::Ram { size: shown } | Place::File { size: Some(shown), .. } => *shown = size,
            Place::File { size: None, .. } | Place::Disk { .. } => {}
        }
        Ok(device)
    }

    /// The logical unit over it. `state` is where that is kept which goes beside no file.
    pub(super) fn lun(
        &self,
        iqn: &str,
        number: u16,
        removable: bool,
        state: Option<&Path>,
    ) -> Result<Lun> {
        let reservations = self.kept(iqn, number, state, "reservations")?;
        Ok(Lun {
            device: self.device().clone(),
            // Backings of ours read as zeros where they were discarded.
            discard_zeroes: true,
            physical_len: self.physical_len(),
            removable,
            atomic_len: self.atomic_len(),
            sanitizing: self.sanitizing(iqn, number, state)?,
            identity: Some(identity(iqn, number, &self.backing)),
            policy: None,
            reservations: reservations.map(ReservationStore::open).transpose()?,
        })
    }

    /// A marker makes the next start erase what it is found for: it has to be known that this is
    /// the same medium.
    fn sanitizing(
        &self,
        iqn: &str,
        number: u16,
        state: Option<&Path>,
    ) -> Result<Option<Sanitizing>> {
        match &self.spec.place {
            Place::Ram { .. } => return Ok(Some(Sanitizing::volatile())),
            Place::Disk { path } if state.is_some() && self.backing.name().is_none() => {
                let path = path.display();
                tracing::warn!(%path, "no SANITIZE: the kernel knows no name of this device");
                return Ok(None);
            }
            Place::File { .. } | Place::Disk { .. } => {}
        }
        let path = self.kept(iqn, number, state, "sanitize")?;
        Ok(path.map(Sanitizing::kept_in).transpose()?)
    }

    /// Where something is kept of the unit. Beside a file, also one that links lead to; of all
    /// else in the directory for state: of a disk by what it is, so that it follows the disk to
    /// another LUN and stays with no other disk, and of memory by LUN.
    fn kept(
        &self,
        iqn: &str,
        number: u16,
        state: Option<&Path>,
        what: &str,
    ) -> Result<Option<PathBuf>> {
        if let Place::File { path, .. } = &self.spec.place {
            return beside(path, what).map(Some);
        }
        let Some(state) = state else { return Ok(None) };
        ensure!(state.is_dir(), "directory '{}': is not there; make it first", state.display());
        ensure!(!iqn.contains('/'), "target name '{iqn}': has a '/', and cannot name a file");
        let name = match self.backing.identity() {
            Some(bytes) => format!("disk-{:015x}", Identity::for_lun(&bytes, 0).naa),
            None => format!("lun-{number}"),
        };
        Ok(Some(state.join(format!("{iqn}.{name}.{what}"))))
    }

    /// Memory has no blocks larger than what is written; files are written by pages.
    fn physical_len(&self) -> u32 {
        let info = self.backing.device().info();
        match self.spec.place {
            Place::Ram { .. } => info.block_len,
            Place::File { .. } | Place::Disk { .. } => info.optimal_len.max(info.block_len),
        }
    }

    /// What a backing writes as a whole: memory does, and what it holds ends with the process; a
    /// file may keep a part of a write when power fails.
    fn atomic_len(&self) -> u32 {
        match self.spec.place {
            Place::Ram { .. } => self.backing.device().info().max_transfer_len,
            Place::File { .. } | Place::Disk { .. } => 0,
        }
    }
}

/// The path of what is kept of a file, whichever links lead to it.
fn beside(path: &Path, what: &str) -> Result<PathBuf> {
    let path = path.canonicalize().with_context(|| format!("file '{}'", path.display()))?;
    let mut name = path.into_os_string();
    name.push(".");
    name.push(what);
    Ok(name.into())
}

/// Who a logical unit is: the same as long as its bytes are, and no other's, although targets on
/// several hosts may have one name.
fn identity(iqn: &str, lun: u16, backing: &Backing) -> Identity {
    let place = match backing.identity() {
        None => format!("{:032x}", rand::random::<u128>()),
        Some(bytes) => {
            let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            format!("{machine} {bytes}")
        }
    };
    let own = Identity::for_lun(&format!("{iqn} {place}"), lun);
    Identity { target_name: iqn.to_string(), ..own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_cannot_be_made_leave_those_that_are_there() {
        let mut opened =
            Opened::open("ram:1MiB".parse().unwrap(), None, &netraid_engine::pool()).unwrap();
        let specs = |all: &[&str]| -> Vec<FilterSpec> {
            all.iter().map(|spec| spec.parse().unwrap()).collect()
        };
        let shown = |opened: &Opened| -> Vec<String> {
            opened.filters().map(ToString::to_string).collect()
        };
        opened.set_filters(specs(&["corrupt=1%", "delay=5ms"]).iter()).unwrap();
        let before = shown(&opened);
        let bad = specs(&["delay=1ms", "trace=/nonexistent/trace"]);
        opened.set_filters(bad.iter()).unwrap_err();
        assert_eq!(shown(&opened), before);
        opened.set_filters(specs(&["delay=1ms"]).iter()).unwrap();
        assert_eq!(shown(&opened), ["delay=1ms"]);
        opened.set_filters([].iter()).unwrap();
        assert_eq!(opened.filters().count(), 0);
    }
}
