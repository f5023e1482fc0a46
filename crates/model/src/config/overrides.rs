//! Parameters by their dotted paths: what is typed replaces what the file says.

use toml::Value;

use super::{Config, ConfigError};

/// A configuration before it is understood.
pub type Table = toml::Table;

/// Reads a configuration file.
///
/// # Errors
/// When it is not TOML.
pub fn read_table(text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax(error.to_string()))
}

/// A value as it is typed: what TOML takes for one (`200`, `true`, `"x"`, `{...}`), or else the
/// text as it is.
#[must_use]
pub fn read_value(text: &str) -> Value {
    let table = format!("value = {text}").parse::<Table>();
    let value = table.ok().filter(|table| table.len() == 1).and_then(|mut t| t.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Sets the parameter at `path`, such as `client.mips`. Elements of a list are meant by their
/// number or their `name`. All but the last part must be there already, so that a part that is
/// spelt wrong is not taken for a new one.
///
/// # Errors
/// When there is no such place.
pub fn set(table: &mut Table, path: &str, value: Value) -> Result<(), ConfigError> {
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = &mut *table;
    for part in parents.split('.').filter(|part| !part.is_empty()) {
        let known: Vec<String> = at.keys().cloned().collect();
        let lost =
            || ConfigError::NoSuchParameter { path: path.to_owned(), part: part.into(), known };
        at = match at.get_mut(part) {
            Some(Value::Table(table)) => table,
            Some(Value::Array(list)) => {
                // The list itself is replaced by what the next part names in it.
                return set_in_list(list, path, part, value);
            }
            Some(_) | None => return Err(lost()),
        };
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

fn set_in_list(
    list: &mut [Value],
    path: &str,
    list_name: &str,
    value: Value,
) -> Result<(), ConfigError> {
    let rest = path.split_once(&format!("{list_name}.")).map_or("", |(_, rest)| rest);
    let (element, rest) = rest.split_once('.').unwrap_or((rest, ""));
    let names: Vec<String> = list.iter().map(name_of).collect();
    let index = element.parse().ok().or_else(|| names.iter().position(|name| name == element));
    match index.and_then(|index: usize| list.get_mut(index)) {
        Some(Value::Table(table)) if !rest.is_empty() => set(table, rest, value),
        Some(_) | None => Err(ConfigError::NoSuchParameter {
            path: path.to_owned(),
            part: element.to_owned(),
            known: names,
        }),
    }
}

fn name_of(element: &Value) -> String {
    element.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Config {
    /// Understands a table, and checks it.
    ///
    /// # Errors
    /// When a parameter is missing, unknown, of another kind, or out of its range.
    pub fn from_table(table: Table) -> Result<Self, ConfigError> {
        let config: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError::Syntax(error.to_string()))?;
        config.check()?;
        Ok(config)
    }
}
