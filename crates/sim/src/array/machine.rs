//! What the world drives: the production machine, or a stand-in that tests of the world know.

use core::fmt::Debug;

use netraid_block::{Buf, IoError, SgList};
use netraid_raid::{
    format::{self, Image},
    geometry::Geometry,
    label::{Label, Uuid},
    logged::{LoggedArray, OpenConfig, RuleCounts},
    member::MemberIndex,
    regions::Regions,
    volume::{self, Logged},
};

use super::rest;
use crate::disk::Disk;

/// What an array is opened with.
#[derive(Debug)]
pub struct Opening {
    /// Who is there, and how the machine is to work.
    pub config: OpenConfig,
    /// The region of written bits of each member that is there, of an array without a log.
    pub written: Vec<Option<Buf>>,
    /// An administrator's word against all doubts.
    pub is_forced: bool,
}

/// An array's machine, as a volume drives it, and what the world must know of it.
pub trait Machine: volume::Machine + Debug + Sized {
    /// It survives as many losses as the level promises.
    const SURVIVES_LOSSES: bool = true;

    /// It has a log.
    const HAS_LOG: bool = true;

    /// Opens an array.
    ///
    /// # Errors
    /// When it does not open.
    fn open(opening: Opening) -> Result<Self, IoError>;

    /// Whether an opening takes parity as it is, though it may not match.
    fn trusts_parity(_opening: &Opening) -> bool {
        false
    }

    /// Whether a member that is there has its place when the array is opened; another one has to be taken back.
    fn has_place(&self, _member: MemberIndex) -> bool {
        true
    }

    /// What is on the members of a new array, with this salt.
    fn format(
        layout: (Regions, Geometry),
        array_uuid: Uuid,
        members: &[Uuid],
        salt: u64,
    ) -> Vec<Vec<Image>> {
        format::format(layout, "simulated", array_uuid, members, salt)
    }

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

    /// Whether parity is being made to match, because the array was not closed.
    fn is_resyncing(&self) -> bool {
        false
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
    fn open(Opening { config, .. }: Opening) -> Result<Self, IoError> {
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
