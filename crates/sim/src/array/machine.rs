//! What the world drives: the production machine, or a stand-in that tests of the world know.

use core::fmt::Debug;

use netraid_block::{IoError, SgList};
use netraid_raid::{
    format::{self, Format, Image},
    geometry::Geometry,
    label::{Label, Uuid},
    logged::RuleCounts,
    regions::Regions,
    volume::{self, Logged, PlainOrLogged},
};

use super::{rest, tables::Tables};
use crate::disk::Disk;

/// An array's machine, as a volume drives it, and what the world must know of it.
pub trait Machine: volume::Machine + Debug + Sized {
    /// It survives as many losses as the level promises.
    const SURVIVES_LOSSES: bool = true;

    /// It has a log.
    const HAS_LOG: bool = true;

    /// It may be opened anew when members are back.
    const PAUSES: bool = Self::HAS_LOG;

    /// The machine of an array that the product has opened; for each member in order whether, and where, its device is.
    ///
    /// # Errors
    /// When it cannot go on with these.
    fn take(machine: PlainOrLogged, places: &[Option<usize>]) -> Result<Self, IoError>;

    /// What is on the members of a new array, with this salt.
    fn format(
        format: Format,
        layout: (Regions, Geometry),
        array_uuid: Uuid,
        members: &[Uuid],
        salt: u64,
    ) -> Vec<Vec<Image>> {
        format::format(format, layout, "simulated", array_uuid, members, salt)
    }

    /// What its members' labels say.
    fn label(&self) -> Label;

    /// The last of them that was stable.
    fn stable_label(&self) -> Label {
        self.label()
    }

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
    fn look(
        disks: &[&Disk],
        label: &Label,
        tables: &Tables,
        is_closed: bool,
    ) -> Result<SgList, String> {
        rest::look(disks, label, tables, is_closed)
    }
}

impl Machine for Logged {
    fn take(machine: PlainOrLogged, _places: &[Option<usize>]) -> Result<Self, IoError> {
        match machine {
            PlainOrLogged::Logged(machine) => Ok(*machine),
            PlainOrLogged::Plain(_) => unreachable!("an array with a log is opened as one without"),
        }
    }

    fn label(&self) -> Label {
        self.array().label()
    }

    fn stable_label(&self) -> Label {
        self.array().stable_label()
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
