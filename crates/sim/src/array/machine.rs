//! What the world drives: the production machine, or a stand-in that tests of the world know.

use core::fmt::Debug;

use netraid_block::{IoError, SgList};
use netraid_raid::{
    label::Label,
    logged::{LoggedArray, OpenConfig, RuleCounts},
    volume::{self, Logged},
};

use super::rest;
use crate::disk::Disk;

/// An array's machine, as a volume drives it, and what the world must know of it.
pub trait Machine: volume::Machine + Debug + Sized {
    /// It survives as many losses as the level promises.
    const SURVIVES_LOSSES: bool = true;

    /// Opens an array.
    ///
    /// # Errors
    /// When it does not open.
    fn open(config: OpenConfig) -> Result<Self, IoError>;

    /// What its members' labels say.
    fn label(&self) -> Label;

    /// Whether it says that members lack space.
    fn is_short_of_space(&self) -> bool {
        false
    }

    /// How often each of its rules was followed.
    fn rules(&self) -> RuleCounts {
        RuleCounts::default()
    }

    /// What it is waiting for, for those who look for a fault.
    fn describe(&self) -> String {
        String::new()
    }

    /// What the media hold when the machine has nothing under way.
    ///
    /// # Errors
    /// What is not as it should be.
    fn look(disks: &[&Disk], label: &Label, is_closed: bool) -> Result<SgList, String> {
        rest::look(disks, label, is_closed)
    }
}

impl Machine for Logged {
    fn open(config: OpenConfig) -> Result<Self, IoError> {
        let max_io_len = config.max_io_len;
        Ok(Self::new(LoggedArray::open(config)?, false, max_io_len))
    }

    fn label(&self) -> Label {
        self.array().label()
    }

    fn is_short_of_space(&self) -> bool {
        self.array().shortage().is_some()
    }

    fn rules(&self) -> RuleCounts {
        self.array().rules()
    }

    fn describe(&self) -> String {
        format!("{:?}", self.array())
    }
}
