//! Parameters by their dotted paths: what is typed replaces what the file says.

use toml::Value;

use super::{Config, ConfigError};

/// A configuration before it is understood.
pub type Table = toml::Table;

/// Parameters that stand for others.
const INSTEAD: [(&str, &str); 2] =
    [("request_bytes", "request_stripes"), ("request_stripes", "request_bytes")];

/// Reads a configuration file.
///
/// # Errors
/// When it is not TOML.
pub fn read_table(text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        ConfigError::Syntax(format!("line {line}: {}", error.message()))
    })
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
/// spelt wrong is not taken for a new one. Where one parameter is given instead of another
/// (`workload.request_bytes`, `workload.request_stripes`), the other goes.
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
    if let Some((_, other)) = INSTEAD.iter().find(|(this, _)| *this == last) {
        at.remove(*other);
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
        let config: Self = table.try_into().map_err(|error: toml::de::Error| {
            // It says in lines where the parameter is.
            let text = error.to_string();
            ConfigError::Syntax(text.split_whitespace().collect::<Vec<_>>().join(" "))
        })?;
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;

    fn with(preset: &str, path: &str, value: &str) -> Result<Config, ConfigError> {
        let mut table = Preset::find(preset).unwrap().table().unwrap();
        set(&mut table, path, read_value(value))?;
        Config::from_table(table)
    }

    #[test]
    fn a_parameter_is_set_by_its_path_and_a_station_by_its_name_or_number() {
        assert_eq!(with("swift-1991", "client.mips", "200").unwrap().client.mips, 200.0);
        let named = with("raid-ii", "stations.bus.read_mb_s", "7.5").unwrap();
        assert_eq!(named, with("raid-ii", "stations.2.read_mb_s", "7.5").unwrap());
        assert_eq!(named.stations[2].read_mb_s, 7.5);
        let seek = r#"{ distribution = "constant", mean_ms = 1 }"#;
        let disk = with("swift-1991", "disk.seek", seek).unwrap().disk;
        assert_eq!(disk.seek.mean_ms(), 1.0);
        let bytes = with("swift-1991", "workload.request_bytes", "65536").unwrap().workload;
        assert_eq!((bytes.request_bytes, bytes.request_stripes), (Some(65536), None));
        let tcp = "client.costs.protocol.instructions_per_packet";
        assert!(with("swift-1991", tcp, "0").is_ok());
    }

    #[test]
    fn a_path_that_leads_nowhere_says_what_is_there() {
        let refused = |path: &str| with("raid-ii", path, "1").unwrap_err().to_string();
        assert!(refused("stations.buss.read_mb_s").contains("crossbar_port"));
        assert!(refused("stations.9.read_mb_s").contains("string"));
        assert!(refused("stations.bus").contains("stations.bus"));
        assert!(refused("clint.mips").contains("client"));
        assert!(refused("disks.x").contains("disks"));
        assert!(refused("").contains("unknown field"));
    }

    #[test]
    fn what_cannot_be_understood_is_said_in_one_line_with_its_place() {
        let wrong = read_table("about = 1\ndisks = = 2\n").unwrap_err().to_string();
        assert!(wrong.contains("line 2") && !wrong.contains('\n'), "{wrong}");
        let unknown = with("swift-1991", "client.mops", "1").unwrap_err().to_string();
        assert!(unknown.contains("mops") && unknown.contains("client"), "{unknown}");
        assert!(!unknown.contains('\n'));
    }

    #[test]
    fn what_is_typed_is_a_value_or_text() {
        assert_eq!(read_value("200"), Value::Integer(200));
        assert_eq!(read_value("true"), Value::Boolean(true));
        assert_eq!(read_value("write"), Value::String("write".into()));
        // No second parameter comes in with a value.
        assert_eq!(read_value("1\ndisks = 2"), Value::String("1\ndisks = 2".into()));
    }
}
