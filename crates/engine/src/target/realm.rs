//! The logical units that some sessions of a target share: all of them, or the one of a segment.
//! Sessions of one realm cannot name anything of another.

use std::sync::Arc;

use netraid_iscsi_proto::target::Realm;
use netraid_scsi::TargetDevice;

use super::{background::BackgroundTable, cells::Guarded, luns::LunTable};

/// One realm.
pub(super) struct ServedRealm {
    pub(super) id: Realm,
    pub(super) units: Guarded<TargetDevice>,
    pub(super) luns: LunTable,
    pub(super) background: BackgroundTable,
}

impl ServedRealm {
    /// A realm without logical units, of a target with so many threads.
    pub(super) fn new(id: Realm, threads: usize) -> Arc<Self> {
        Arc::new(Self {
            id,
            units: Guarded::default(),
            luns: LunTable::new(threads),
            background: BackgroundTable::default(),
        })
    }
}
