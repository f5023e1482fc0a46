//! The logical units that some sessions of a target share: all of them, or the one of a segment.
//! Sessions of one realm cannot name anything of another.

use std::{cell::RefCell, rc::Rc};

use netraid_iscsi_proto::target::Realm;
use netraid_scsi::TargetDevice;

use super::{background::BackgroundTable, luns::LunTable};

/// One realm.
pub(super) struct ServedRealm {
    pub(super) id: Realm,
    pub(super) units: RefCell<TargetDevice>,
    pub(super) luns: LunTable,
    pub(super) background: BackgroundTable,
}

impl ServedRealm {
    /// A realm without logical units.
    pub(super) fn new(id: Realm) -> Rc<Self> {
        Rc::new(Self {
            id,
            units: RefCell::default(),
            luns: LunTable::default(),
            background: BackgroundTable::default(),
        })
    }
}
