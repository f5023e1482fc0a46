//! Opens the backings of logical units, and says who the units are.

use std::os::unix::fs::MetadataExt as _;

use anyhow::Result;
use netraid_block::{Device, Pool};
use netraid_engine::{
    backings::{self, FileOptions},
    target::{Identity, Lun},
};

use crate::lun::LunSpec;

/// A logical unit's backing, opened.
pub(super) struct Opened {
    pub(super) spec: LunSpec,
    pub(super) device: Device,
}

impl Opened {
    pub(super) fn open(spec: LunSpec, block_len: u32, pool: &Pool) -> Result<Self> {
        let device = match &spec {
            LunSpec::Ram { len } => backings::ram(*len, block_len, pool.clone())?,
            LunSpec::File { path, len } => {
                let options = FileOptions { size: *len, block_len, ..FileOptions::default() };
                backings::file(path, &options, pool.clone())?
            }
        };
        Ok(Self { spec, device })
    }

    /// The logical unit over it.
    pub(super) fn lun(&self, iqn: &str, number: u16) -> Lun {
        Lun {
            device: self.device.clone(),
            // Backings of ours read as zeros where they were discarded.
            discard_zeroes: true,
            identity: Some(identity(iqn, number, &self.spec)),
            policy: None,
        }
    }
}

/// Who a logical unit is: the same as long as its bytes are, and no other's, although targets on
/// several hosts may have one name.
fn identity(iqn: &str, lun: u16, spec: &LunSpec) -> Identity {
    let place = match spec {
        LunSpec::Ram { .. } => format!("{:032x}", rand::random::<u128>()),
        LunSpec::File { path, .. } => {
            let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            let file = path.metadata().map(|file| (file.dev(), file.ino()));
            format!("{machine} {file:?}")
        }
    };
    let own = Identity::for_lun(&format!("{iqn} {place}"), lun);
    Identity { target_name: iqn.to_string(), ..own }
}
