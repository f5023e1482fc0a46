//! How placements are written as data: levels by their numbers, reasons in their words.

use core::fmt::Display;

use netraid_raid::geometry::Level;
use serde::{Serializer, ser::SerializeSeq as _};

/// What decided, or what is missing, for people.
pub(super) fn text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The same, of several.
pub(super) fn texts<T: Display, S: Serializer>(
    values: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(values.len()))?;
    for value in values {
        list.serialize_element(&format_args!("{value}"))?;
    }
    list.end()
}

/// A level as its number: 0, 1, 5, 6 or 10.
pub(super) mod level {
    use super::{Level, Serializer};
    use serde::{Deserialize as _, Deserializer, Serialize as _, de::Error as _};

    pub(in super::super) fn serialize<S: Serializer>(
        level: &Level,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        level.number().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Level, D::Error> {
        let number = u8::deserialize(deserializer)?;
        Level::from_number(number).ok_or_else(|| {
            D::Error::custom(format_args!("level {number}: there are 0, 1, 5, 6 and 10"))
        })
    }
}

/// The same where there may be none.
pub(super) mod level_if_any {
    use super::{Level, Serializer, level};
    use serde::{Deserialize, Deserializer, Serialize as _};

    #[derive(Deserialize)]
    struct Known(#[serde(with = "level")] Level);

    pub(in super::super) fn serialize<S: Serializer>(
        level: &Option<Level>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        level.map(Level::number).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Level>, D::Error> {
        Ok(Option::<Known>::deserialize(deserializer)?.map(|Known(level)| level))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{tests::*, *};
    use serde_json::{from_value, json, to_value};
    use std::string::ToString;

    #[test]
    fn what_is_wanted_is_read_as_it_is_written_and_nothing_else() {
        let usual = Wanted::new(1 << 30, Rate(1_000_000));
        let full = Wanted {
            level: Some(Level::Raid10),
            chunk_len: Some(65_536),
            members: Some(4),
            spread: Domain::Rack,
            ..usual.clone()
        };
        for wanted in [&usual, &full] {
            let written = to_value(wanted).unwrap();
            assert_eq!(from_value::<Wanted>(written).unwrap(), *wanted);
        }
        let written = to_value(&full).unwrap();
        assert_eq!((&written["level"], &written["spread"]), (&json!(10), &json!("rack")));
        assert_eq!(to_value(&usual).unwrap().get("level"), None);
        for (name, value) in [("level", json!(4)), ("level", json!("5")), ("more", json!(1))] {
            let mut wrong = written.clone();
            wrong[name] = value;
            assert!(from_value::<Wanted>(wrong).is_err(), "{name}");
        }
    }

    #[test]
    fn a_refusal_says_why_in_words_and_what_could_be_had() {
        let left = Resources { space_bytes: 1 << 40, device: mb(100), network: mb(20) };
        let refusal = place(&Wanted::new(1 << 30, mb(100)), &agents(5, left)).unwrap_err();
        let written = to_value(&refusal).unwrap();
        assert_eq!(written["why"], json!(refusal.why.to_string()));
        let offer = &written["offer"];
        assert_eq!(offer["placement"]["level"], json!(5));
        let reasons = offer["placement"]["reasons"].as_array().unwrap();
        assert_eq!(reasons[0], json!("level 5: takes the least space of what survives 1 lost"));
    }
}
