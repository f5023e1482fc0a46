//! What a copy needs of a logical unit that is its source or destination.

use super::{Identity, LogicalUnit, NexusId, Rules, WriteSlot};
use crate::{
    cdb::{Access, Extent},
    sense::{Additional, Sense},
};

impl LogicalUnit {
    pub(crate) const fn identity(&self) -> &Identity {
        &self.config.identity
    }

    pub(crate) const fn block_len(&self) -> u32 {
        self.config.info.block_len
    }

    /// Longest read or write in bytes.
    pub(crate) const fn transfer_len_max(&self) -> u32 {
        self.config.info.max_transfer_len
    }

    /// The first byte of a range that this nexus may read, or write.
    pub(crate) fn copy_offset(
        &mut self,
        nexus: NexusId,
        extent: Extent,
        access: Access,
    ) -> Result<u64, Sense> {
        self.look_as(nexus);
        if self.conflicts(nexus, access) {
            return Err(Sense::illegal(Additional::ACCESS_DENIED));
        }
        if let Some(sense) = self.not_ready(Rules::STRICTEST) {
            return Err(sense);
        }
        if access == Access::Write {
            self.check_writable()?;
        }
        self.check_range(extent)?;
        Ok(extent.lba * u64::from(self.block_len()))
    }

    /// Whether a copy that began may go on with its next piece here.
    pub(crate) fn admits_copy(&mut self, nexus: NexusId, access: Access) -> bool {
        self.look_as(nexus);
        let is_ready = self.not_ready(Rules::STRICTEST).is_none();
        let is_allowed = access != Access::Write || self.check_writable().is_ok();
        is_ready && is_allowed && !self.conflicts(nexus, access)
    }

    /// Enters a write of these bytes; none when it has to be tried again.
    pub(crate) fn enter_write(
        &mut self,
        nexus: NexusId,
        offset: u64,
        len: u64,
    ) -> Option<WriteSlot> {
        self.look_as(nexus);
        let range = self.on_device(offset..offset + len);
        self.exclusion.enter(range, false)
    }

    /// A write that was entered has ended.
    pub(crate) fn leave_write(&mut self, slot: WriteSlot) {
        self.exclusion.leave(slot);
    }
}
