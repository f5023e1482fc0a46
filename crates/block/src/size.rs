//! Sizes as people write them: `4096`, `64KiB`, `64M`, `1.5GiB`.
//!
//! Units are powers of 1024, also the single letters, as storage tools (qemu-img, LVM) take them.
//! `MB` is 10^6 to some and 2^20 to others, and is refused.

use alloc::string::{String, ToString};

/// Each unit by its name, and by its letter in either case.
const UNITS: [([&str; 3], u64); 4] = [
    (["TiB", "T", "t"], 1 << 40),
    (["GiB", "G", "g"], 1 << 30),
    (["MiB", "M", "m"], 1 << 20),
    (["KiB", "K", "k"], 1 << 10),
];

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("size '{text}': {reason}; write 512MiB, 1.5GiB, 2TiB, or 512M, 1.5G, 2T for the same")]
pub struct SizeError {
    text: String,
    reason: &'static str,
}

/// Reads a size in bytes, which is not zero and below 2^63.
///
/// # Errors
/// When it is no number, has another unit than KiB, MiB, GiB, TiB, their letters or B, or is out of
/// range.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let fail = |reason| SizeError { text: text.to_string(), reason };
    let with_unit = UNITS.iter().find_map(|(names, factor)| {
        let number = names.iter().find_map(|unit| text.strip_suffix(unit));
        number.map(|number| (number.trim_end(), *factor))
    });
    let (number, factor) = with_unit.unwrap_or_else(|| (text.strip_suffix('B').unwrap_or(text), 1));
    let bytes = match number.split_once('.') {
        None => number.parse::<u64>().ok().and_then(|whole| whole.checked_mul(factor)),
        Some((whole, fraction)) => fractional(whole, fraction, factor),
    };
    match bytes.filter(|bytes| *bytes < 1 << 63) {
        Some(0) => Err(fail("is zero")),
        Some(bytes) => Ok(bytes),
        None => Err(fail("not a number of bytes below 2^63")),
    }
}

fn fractional(whole: &str, fraction: &str, factor: u64) -> Option<u64> {
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let scale = 10_u64.pow(digits);
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor) / u128::from(scale);
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units_and_fractions() {
        assert_eq!(parse_size("4096").unwrap(), 4096);
        assert_eq!(parse_size("512B").unwrap(), 512);
        assert_eq!(parse_size("64KiB").unwrap(), 65536);
        assert_eq!(parse_size("1.5GiB").unwrap(), 3 << 29);
        assert_eq!(parse_size("0.25 MiB").unwrap(), 1 << 18);
        assert_eq!(parse_size("9223372036854775807").unwrap(), (1 << 63) - 1);
    }

    #[test]
    fn letters_are_powers_of_1024() {
        for (letter, same) in [("64M", "64MiB"), ("1.5g", "1.5GiB"), ("2T", "2TiB"), ("4k", "4KiB")]
        {
            assert_eq!(parse_size(letter), parse_size(same), "{letter}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for bad in [
            "",
            "0",
            "0GiB",
            "x",
            "-1",
            "1GB",
            "1gib",
            "1GiBGiB",
            "1MK",
            "M",
            "9223372036854775808",
            "8388608TiB",
            "1.GiB",
            ".5GiB",
            "1.5.5GiB",
            "1.0000000000GiB",
            "18446744073709551615TiB",
        ] {
            let error = parse_size(bad).unwrap_err().to_string();
            assert!(error.contains(&alloc::format!("'{bad}'")), "{error}");
        }
    }
}
