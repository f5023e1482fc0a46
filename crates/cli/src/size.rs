//! Sizes and rates as people write and read them.

use anyhow::Result;
use netraid_block::parse_size;

/// Reads `4096`, `64KiB`, `1.5GiB`; the result is in bytes and not zero.
///
/// # Errors
/// When it is no number, has another unit, or does not fit 63 bits.
pub(crate) fn parse(text: &str) -> Result<u64> {
    Ok(parse_size(text)?)
}

/// The same, or `0`.
///
/// # Errors
/// As [`parse`], for all else.
pub(crate) fn parse_or_zero(text: &str) -> Result<u64> {
    if text == "0" { Ok(0) } else { parse(text) }
}

/// `1073741824` as `1.0 GiB`.
pub(crate) fn show(bytes: u64) -> String {
    let units = [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, factor)| bytes >= *factor) {
        Some((name, factor)) => format!("{:.1} {name}", bytes as f64 / *factor as f64),
        None => format!("{bytes} B"),
    }
}

/// Megabytes (10^6) a second.
pub(crate) fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_largest_unit_that_fits() {
        assert_eq!(show(parse("3TiB").unwrap()), "3.0 TiB");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1024), "1.0 KiB");
    }

    #[test]
    fn zero_is_a_size_where_it_turns_something_off() {
        assert_eq!(parse_or_zero("0").unwrap(), 0);
        assert_eq!(parse_or_zero("1KiB").unwrap(), 1024);
        assert!(parse_or_zero("00").is_err());
    }
}
