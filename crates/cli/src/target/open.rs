//! Opens the backings of logical units, and says who the units are.

use anyhow::Result;
use netraid_block::Pool;
use netraid_engine::{
    backings::{Backing, Place},
    target::{Identity, Lun},
};

use crate::lun::LunSpec;

/// A logical unit's backing, opened.
pub(super) struct Opened {
    pub(super) spec: LunSpec,
    pub(super) backing: Backing,
}

impl Opened {
    pub(super) fn open(spec: LunSpec, block_len: Option<u32>, pool: &Pool) -> Result<Self> {
        let backing = spec.open(block_len, pool.clone())?;
        Ok(Self { spec, backing })
    }

    /// The logical unit over it.
    pub(super) fn lun(&self, iqn: &str, number: u16, removable: bool) -> Lun {
        Lun {
            device: self.backing.device().clone(),
            // Backings of ours read as zeros where they were discarded.
            discard_zeroes: true,
            removable,
            atomic_len: self.atomic_len(),
            identity: Some(identity(iqn, number, &self.backing)),
            policy: None,
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
