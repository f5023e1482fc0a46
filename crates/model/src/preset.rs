//! Descriptions of published systems, and of one of today, that come with the program.

use crate::config::{Config, ConfigError, Table, read_table};

/// A description that comes with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// What it is asked for by.
    pub name: &'static str,
    /// The file: TOML, with where each number comes from.
    pub text: &'static str,
}

/// All of them.
pub const PRESETS: [Preset; 6] = [
    Preset { name: "swift-1991", text: include_str!("../presets/swift-1991.toml") },
    Preset { name: "raid-i", text: include_str!("../presets/raid-i.toml") },
    Preset { name: "raid-ii", text: include_str!("../presets/raid-ii.toml") },
    Preset { name: "visa-1998", text: include_str!("../presets/visa-1998.toml") },
    Preset { name: "iraid-2003", text: include_str!("../presets/iraid-2003.toml") },
    Preset { name: "today", text: include_str!("../presets/today.toml") },
];

impl Preset {
    /// The preset of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        PRESETS.into_iter().find(|preset| preset.name == name)
    }

    /// Its parameters, to be changed before they are understood.
    ///
    /// # Errors
    /// None in a program that was tested.
    pub fn table(&self) -> Result<Table, ConfigError> {
        read_table(self.text)
    }

    /// Its parameters.
    ///
    /// # Errors
    /// None in a program that was tested.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::from_table(self.table()?)
    }
}
