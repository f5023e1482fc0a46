//! What a nexus sees of the device: all of it, or a part.
//!
//! A view has a description of its own and names the ranges of the device that it shows, one after
//! the other, as bytes from 0 on. Requests of a nexus with a view carry its own offsets: whoever
//! submits them knows where on the device that is. All else of the logical unit (reservations, unit
//! attentions, mode pages) is shared by all nexuses.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::DeviceInfo;

use super::{LogicalUnit, NexusId};

/// What one nexus sees of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// What it is like: the device's, but for `capacity`, `read_only`, `can_discard` and
    /// `can_map`.
    pub info: DeviceInfo,
    /// Ranges of the device, ascending, whose lengths add up to the capacity.
    pub ranges: Vec<Range<u64>>,
}

impl View {
    /// The least range of the device that holds these bytes of the view. They are on it.
    fn hull(&self, shown: Range<u64>) -> Range<u64> {
        let (first, last) = (self.place(shown.start), self.place(shown.end.saturating_sub(1)));
        first..last.saturating_add(1).max(first)
    }

    /// Where a byte of the view is; the end of the device's bytes when it is not on it.
    fn place(&self, at: u64) -> u64 {
        let mut skip = at;
        for range in &self.ranges {
            let len = range.end - range.start;
            if skip < len {
                return range.start + skip;
            }
            skip -= len;
        }
        u64::MAX
    }
}

/// The views of nexuses that do not see the device as it is.
#[derive(Debug, Default)]
pub(super) struct Views {
    views: Vec<(NexusId, View)>,
    /// The one of the nexus whose command is at hand.
    current: Option<usize>,
}

impl LogicalUnit {
    /// A nexus sees this instead of the device as it is, until it is lost.
    ///
    /// # Panics
    /// When the view's blocks are not the device's: block addresses would mean other bytes.
    pub fn set_view(&mut self, nexus: NexusId, view: View) {
        assert_eq!(self.config.info.block_len, view.info.block_len, "the logical block of a view");
        self.forget_view(nexus);
        self.views.views.push((nexus, view));
    }

    pub(super) fn forget_view(&mut self, nexus: NexusId) {
        self.views.views.retain(|(known, _)| *known != nexus);
        self.views.current = None;
    }

    /// What follows is done for this nexus.
    #[inline]
    pub(super) fn look_as(&mut self, nexus: NexusId) {
        if !self.views.views.is_empty() {
            self.views.current = self.views.views.iter().position(|(known, _)| *known == nexus);
        }
    }

    /// The device as the nexus sees it whose command is at hand.
    #[inline]
    pub(super) fn info(&self) -> &DeviceInfo {
        match self.views.current {
            None => &self.config.info,
            Some(at) => &self.views.views[at].1.info,
        }
    }

    /// Whether what the nexus sees is not one range of the device.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.views.current.is_some_and(|at| self.views.views[at].1.ranges.len() > 1)
    }

    /// The range of the device that holds these bytes of what the nexus sees.
    #[inline]
    pub(super) fn on_device(&self, range: Range<u64>) -> Range<u64> {
        match self.views.current {
            None => range,
            Some(at) => self.views.views[at].1.hull(range),
        }
    }
}
