//! Sweeps: each of several values of a parameter, and all combinations of several sweeps.

use core::str::FromStr;

use toml::Value;

use crate::config::{Config, ConfigError, Operation, Table, read_value, set};

/// Most points of all sweeps together.
pub const POINTS_MAX: usize = 100_000;

/// A parameter and its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The parameter's dotted path.
    pub path: String,
    /// What it is to be, in order.
    pub values: Vec<Value>,
}

/// Why a sweep or a setting was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SweepError {
    /// Not of the form `parameter=values`.
    #[error("'{0}' is no sweep; give a parameter and its values: disks=1..32, or disks=4,8,16")]
    Form(String),
    /// A range that has no values, or too many.
    #[error("the range {range} has {count} values; give one that has 1 to {POINTS_MAX}")]
    Range {
        /// As it was given.
        range: String,
        /// How many there would be.
        count: i128,
    },
    /// Too many points.
    #[error("the sweeps make {0} points, more than {POINTS_MAX}; sweep fewer values at a time")]
    Points(usize),
    /// A point that makes no sense.
    #[error("{at}: {error}")]
    Point {
        /// What was set there.
        at: String,
        /// What is wrong.
        error: ConfigError,
    },
}

impl FromStr for Sweep {
    type Err = SweepError;

    /// Reads `disks=1..32` (both ends are values) or `disks=4,8,16`.
    fn from_str(text: &str) -> Result<Self, SweepError> {
        let form = || SweepError::Form(text.to_owned());
        let (path, values) = text.split_once('=').ok_or_else(form)?;
        let (path, values) = (path.trim(), values.trim());
        if path.is_empty() || values.is_empty() {
            return Err(form());
        }
        let values = match range(values)? {
            Some(values) => values,
            None => values.split(',').map(|value| read_value(value.trim())).collect(),
        };
        Ok(Self { path: path.to_owned(), values })
    }
}

/// The values of `1..32`, or none when it is no range of whole numbers.
fn range(text: &str) -> Result<Option<Vec<Value>>, SweepError> {
    let Some((first, last)) = text.split_once("..") else { return Ok(None) };
    let (Ok(first), Ok(last)) = (first.trim().parse::<i64>(), last.trim().parse::<i64>()) else {
        return Err(SweepError::Form(text.to_owned()));
    };
    let count = i128::from(last) - i128::from(first) + 1;
    if !(1..=POINTS_MAX as i128).contains(&count) {
        return Err(SweepError::Range { range: text.to_owned(), count });
    }
    Ok(Some((first..=last).map(Value::Integer).collect()))
}

/// One point: what was swept there, and all parameters.
#[derive(Debug, Clone)]
pub struct Point {
    /// The parameters that are swept, with their values here.
    pub swept: Vec<(String, Value)>,
    /// All parameters; the operation is given.
    pub config: Config,
}

/// All points of `table` under `sweeps`, the last one changing first. Where no operation is given,
/// each of the three.
///
/// # Errors
/// When a point makes no sense, or there are too many.
pub fn points(table: &Table, sweeps: &[Sweep]) -> Result<Vec<Point>, SweepError> {
    let count = sweeps.iter().try_fold(1_usize, |all, sweep| all.checked_mul(sweep.values.len()));
    let count = count.unwrap_or(usize::MAX);
    if count > POINTS_MAX {
        return Err(SweepError::Points(count));
    }
    let mut points = Vec::new();
    for index in 0..count {
        let (mut rest, mut swept) = (index, Vec::new());
        for sweep in sweeps.iter().rev() {
            let value = sweep.values[rest % sweep.values.len()].clone();
            rest /= sweep.values.len();
            swept.insert(0, (sweep.path.clone(), value));
        }
        add_point(table, swept, &mut points)?;
    }
    Ok(points)
}

fn add_point(
    table: &Table,
    swept: Vec<(String, Value)>,
    points: &mut Vec<Point>,
) -> Result<(), SweepError> {
    let at = || {
        let parts: Vec<String> =
            swept.iter().map(|(path, value)| format!("{path}={value}")).collect();
        if parts.is_empty() { "the configuration".to_owned() } else { parts.join(" ") }
    };
    let mut table = table.clone();
    for (path, value) in &swept {
        set(&mut table, path, value.clone())
            .map_err(|error| SweepError::Point { at: at(), error })?;
    }
    let config =
        Config::from_table(table).map_err(|error| SweepError::Point { at: at(), error })?;
    let operations = config.operation.map_or(Operation::ALL.to_vec(), |operation| vec![operation]);
    for operation in operations {
        let config = Config { operation: Some(operation), ..config.clone() };
        points.push(Point { swept: swept.clone(), config });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;

    #[test]
    fn sweeps_are_ranges_and_lists() {
        let values = |text: &str| text.parse::<Sweep>().map(|sweep| sweep.values);
        let integers = |list: &[i64]| Ok(list.iter().copied().map(Value::Integer).collect());
        assert_eq!(values("disks=1..3"), integers(&[1, 2, 3]));
        assert_eq!(values("disks=4, 8"), integers(&[4, 8]));
        assert_eq!(values("operation=read"), Ok(vec![Value::String("read".into())]));
        assert_eq!(values("client.mips=1.5"), Ok(vec![Value::Float(1.5)]));
        for bad in ["disks", "disks=", "=3", "disks=3..1", "disks=1..99999999999", "disks=a..b"] {
            assert!(values(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_combinations_are_points_and_the_last_sweep_changes_first() {
        let table = Preset::find("swift-1991").unwrap().table().unwrap();
        let sweeps = ["disks=3,4", "operation=read,write"].map(|text| text.parse().unwrap());
        let points = points(&table, &sweeps).unwrap();
        let seen: Vec<_> =
            points.iter().map(|point| (point.config.disks, point.config.operation)).collect();
        let (read, write) = (Some(Operation::Read), Some(Operation::Write));
        assert_eq!(seen, [(3, read), (3, write), (4, read), (4, write)]);
        let all = super::points(&table, &[]).unwrap();
        assert_eq!(all.len(), 3, "one for each operation");
    }

    #[test]
    fn a_point_that_makes_no_sense_is_named() {
        let table = Preset::find("swift-1991").unwrap().table().unwrap();
        let refused =
            |text: &str| super::points(&table, &[text.parse().unwrap()]).unwrap_err().to_string();
        assert!(refused("disks=32,65").contains("disks=65"));
        assert!(refused("client.mips=0").contains("client.mips is 0"));
        assert!(refused("client.mips=nan").contains("NaN"));
        assert!(refused("client.mops=1").contains("mops"));
        assert!(refused("client.costs.parrity.instructions_per_byte=1").contains("parrity"));
        assert!(refused("level=7").contains("level 7"));
        assert!(refused("transfer_unit_bytes=5000").contains("power of two"));
    }
}
