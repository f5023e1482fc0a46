//! Opens the backings of logical units, and says who the units are, and where their persistent
//! reservations and the markers of their sanitize operations are kept.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use netraid_block::{Device, Pool};
use netraid_engine::{
    backings::{Backing, FoundIdentity, IdentityOffer, Origin, Place, Shrink},
    filters::{FilterSpec, Filters},
    target::{Identity, Lun, ReservationStore, Sanitizing},
};

use crate::lun::LunSpec;

/// Where a machine keeps what belongs to no service.
const MACHINE_DIRECTORY: &str = "/var/lib/netraid";

/// A logical unit's backing, opened.
pub(super) struct Opened {
    pub(super) spec: LunSpec,
    pub(super) backing: Backing,
    /// By which initiators know the unit; empty until [`Self::identify`].
    pub(super) serial: String,
    /// What is to be kept of that.
    found: Option<Identified>,
    /// The first sees a request first.
    filters: Vec<Filters>,
}

/// Who a unit is, and where that is to be kept.
struct Identified {
    found: FoundIdentity,
    derived: String,
    directory: Option<PathBuf>,
}

impl Opened {
    pub(super) fn open(spec: LunSpec, block_len: Option<u32>, pool: &Pool) -> Result<Self> {
        let backing = spec.open(block_len, pool.clone())?;
        Ok(Self { spec, backing, serial: String::new(), found: None, filters: Vec::new() })
    }

    /// Finds out who the unit is. `state` is where that is kept of a block device; without one, where this
    /// program may keep such things.
    pub(super) fn identify(&mut self, iqn: &str, number: u16, state: Option<&Path>) -> Result<()> {
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let derived = derived(iqn, number, &machine, self.backing.identity().as_deref());
        let random = format!("{:016x}", rand::random::<u64>());
        let directory = state.map(Path::to_path_buf).or_else(own_directory);
        let found = self.backing.find_identity(&IdentityOffer {
            given: self.spec.serial.as_deref(),
            derived: &derived,
            derived_is_own: is_known(&machine),
            machine: Some(Path::new(MACHINE_DIRECTORY)),
            random: &random,
            directory: directory.as_deref(),
        })?;
        self.serial.clone_from(&found.serial);
        self.found = Some(Identified { found, derived, directory });
        Ok(())
    }

    /// Keeps who the unit is, once nothing refuses it any more.
    pub(super) fn keep_identity(&mut self) {
        let Some(Identified { found, derived, directory }) = self.found.take() else { return };
        let kept = self.backing.keep_identity(&found, directory.as_deref());
        warn(&self.spec, &found, &derived, kept.err());
    }

    /// Refuses one identity for two units: initiators would take them for two ways to one disk.
    pub(super) fn check_alone<'o>(
        &self,
        number: u16,
        others: impl Iterator<Item = (u16, &'o Self)>,
    ) -> Result<()> {
        let bytes = self.backing.identity();
        for (other, unit) in others.filter(|(_, unit)| unit.serial == self.serial) {
            // A file that is only read may be served twice, and is one disk.
            ensure!(
                bytes.is_some() && bytes == unit.backing.identity(),
                "LUN {number}: has the serial number of LUN {other}, '{}', and is another disk; \
                 give one of them its own by serial=NUMBER",
                self.serial
            );
        }
        Ok(())
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
            identity: Some(Identity::with_serial(iqn, &self.serial)),
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

/// The serial number that programs gave which kept none: by the target's name, machine, device and
/// LUN.
fn derived(iqn: &str, lun: u16, machine: &str, bytes: Option<&str>) -> String {
    let bytes = bytes.unwrap_or_default();
    Identity::for_lun(&format!("{iqn} {machine} {bytes}"), lun).serial
}

/// Whether a machine can be told from others by this: guests that were made from one image may
/// have none yet.
fn is_known(machine: &str) -> bool {
    let id = machine.trim();
    id.len() == 32
        && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        && id.bytes().any(|b| b != b'0')
}

/// Where identities of block devices are kept when nobody says: of a service its directory for
/// state, else the machine's.
fn own_directory() -> Option<PathBuf> {
    let service = std::env::var("STATE_DIRECTORY").ok();
    let service = service.and_then(|all| all.split(':').next().map(PathBuf::from));
    let machine = || rustix::process::geteuid().is_root().then(|| MACHINE_DIRECTORY.into());
    service.filter(|path| path.is_absolute()).or_else(machine)
}

/// Says what somebody may have to know of an identity.
fn warn(spec: &LunSpec, found: &FoundIdentity, derived: &str, not_kept: Option<std::io::Error>) {
    let FoundIdentity { serial, origin, copied_from, beside, .. } = found;
    let moved = beside.as_ref().map_or_else(String::new, |beside| {
        format!(
            "; its file system keeps no attributes: where the file was renamed, its identity is \
             beside its old name, in OLDNAME.identity; end the target, and rename that to '{}'",
            beside.display()
        )
    });
    match (origin, copied_from) {
        (Origin::Copied, Some(from)) => tracing::warn!(
            "{spec}: is a copy of the disk '{from}', and gets an identity of its own, '{serial}'; \
             where it takes that disk's place, give serial={from}"
        ),
        (Origin::Unsure, _) => tracing::warn!(
            "{spec}: gets a new identity, '{serial}', because nothing proves that the one that \
             earlier versions gave is not another disk's, too; where initiators know this disk by \
             that, give --lun {spec},serial={derived}{moved}"
        ),
        (Origin::Later, _) if !moved.is_empty() => {
            tracing::warn!("{spec}: gets a new identity, '{serial}'{moved}")
        }
        (Origin::Later, _) => tracing::info!(
            "{spec}: gets a new identity, '{serial}'; where an earlier version has served it \
             meanwhile, give --lun {spec},serial={derived}"
        ),
        (Origin::Derived, _) if !moved.is_empty() => tracing::warn!(
            "{spec}: keeps the identity that earlier versions gave, '{serial}'{moved}"
        ),
        (Origin::Derived, _) => {
            tracing::info!("{spec}: keeps the identity that earlier versions gave, '{serial}'")
        }
        (Origin::Given | Origin::Kept | Origin::New | Origin::Copied, _) => {}
    }
    let lasts = matches!(spec.place, Place::Ram { .. }) || *origin == Origin::Given;
    if let Some(error) = not_kept.filter(|_| !lasts) {
        tracing::warn!(
            "{spec}: its identity, '{serial}', cannot be kept ({error}), and may be another one \
             after the next start; give it by serial=NUMBER, or a block device by --state DIR"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_an_id_of_its_own() {
        assert!(is_known("3d1219c7c4c5404aaa1f6d2a48adfda4\n"));
        for id in ["", "\n", "uninitialized\n", &"0".repeat(32), "3d1219c7"] {
            assert!(!is_known(id), "{id}");
        }
    }

    #[test]
    fn the_identity_of_earlier_versions_is_as_they_made_it() {
        let machine = "3d1219c7c4c5404aaa1f6d2a48adfda4\n";
        let found = derived("iqn.2026-01.netraid:target", 1, machine, Some("file 2049 12"));
        // FNV-1a of name, machine, device, inode and LUN, computed by another program.
        assert_eq!(found, "9ac768d0af98d134");
    }

    #[test]
    fn two_units_of_one_identity_are_refused() {
        let open = |spec: &str| {
            let mut unit =
                Opened::open(spec.parse().unwrap(), None, &netraid_engine::pool()).unwrap();
            unit.identify("iqn.x", 0, None).unwrap();
            unit
        };
        let (one, two) = (open("ram:1MiB,serial=A"), open("ram:1MiB,serial=A"));
        let error = two.check_alone(1, [(0, &one)].into_iter()).unwrap_err().to_string();
        assert!(error.contains("LUN 1") && error.contains("LUN 0"), "{error}");
        let other = open("ram:1MiB");
        other.check_alone(1, [(0, &one)].into_iter()).unwrap();
    }

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
