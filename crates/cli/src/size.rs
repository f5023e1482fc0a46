//! Sizes and rates as people write them.

use anyhow::{Context as _, Result, bail};

const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Reads `4096`, `64KiB`, `1.5GiB`; the result is in bytes and not zero.
///
/// # Errors
/// When it is no number, has another unit, or does not fit 63 bits.
pub(crate) fn parse(text: &str) -> Result<u64> {
    let unit = UNITS.iter().find(|(name, _)| text.ends_with(name));
    let (number, factor) = match unit {
        Some((name, factor)) => (text.trim_end_matches(name).trim_end(), *factor),
        None => (text.strip_suffix('B').unwrap_or(text), 1),
    };
    let bytes = match number.split_once('.') {
        None => number.parse::<u64>().ok().and_then(|whole| whole.checked_mul(factor)),
        Some((whole, fraction)) => fractional(whole, fraction, factor),
    };
    let bytes = bytes.filter(|bytes| *bytes <= i64::MAX as u64).with_context(|| {
        format!("size '{text}': not a number of bytes below 2^63; write 512MiB, 1.5GiB, 2TiB")
    })?;
    if bytes == 0 {
        bail!("size '{text}': is zero; write 512MiB, 1.5GiB, 2TiB");
    }
    Ok(bytes)
}

fn fractional(whole: &str, fraction: &str, factor: u64) -> Option<u64> {
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let scale = 10_u64.pow(digits);
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor) / u128::from(scale);
    whole.checked_add(u64::try_from(part).ok()?)
}

/// `1073741824` as `1.0 GiB`.
pub(crate) fn show(bytes: u64) -> String {
    match UNITS.iter().find(|(_, factor)| bytes >= *factor) {
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
    fn reads_units_and_fractions() {
        assert_eq!(parse("4096").unwrap(), 4096);
        assert_eq!(parse("512B").unwrap(), 512);
        assert_eq!(parse("64KiB").unwrap(), 65536);
        assert_eq!(parse("1.5GiB").unwrap(), 3 << 29);
        assert_eq!(parse("0.25 MiB").unwrap(), 1 << 18);
        assert_eq!(show(parse("3TiB").unwrap()), "3.0 TiB");
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
            "9223372036854775808",
            "8388608TiB",
            "1.GiB",
            ".5GiB",
            "1.5.5GiB",
            "1.0000000000GiB",
            "18446744073709551615TiB",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
