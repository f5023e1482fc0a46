//! What `--filter` takes: filters for a LUN, or for all.

use std::str::FromStr;

use anyhow::{Context as _, Result};
use netraid_engine::filters::FilterSpec;

/// Filters, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilterArg {
    /// `None` is every LUN.
    pub(crate) lun: Option<u16>,
    pub(crate) spec: FilterSpec,
}

impl FilterArg {
    /// Whether they are for this LUN.
    pub(crate) fn is_for(&self, lun: u16) -> bool {
        self.lun.is_none_or(|wanted| wanted == lun)
    }
}

impl FromStr for FilterArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        // No filter begins with a digit.
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let (lun, spec) = text
                .split_once(':')
                .and_then(|(lun, spec)| Some((lun.parse().ok()?, spec)))
                .with_context(|| {
                    format!("filter '{text}': is not LUN:FILTERS; write 0:delay=5ms")
                })?;
            return Ok(Self { lun: Some(lun), spec: spec.parse()? });
        }
        Ok(Self { lun: None, spec: text.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_may_name_its_lun() {
        let all: FilterArg = "delay=5ms,error=1%:read".parse().unwrap();
        assert!(all.is_for(0) && all.is_for(7));
        let one: FilterArg = "12:hang".parse().unwrap();
        assert!(one.is_for(12) && !one.is_for(1));
        for bad in ["", "12", "12:", ":hang", "99999:hang", "1x:hang", "slow"] {
            assert!(bad.parse::<FilterArg>().is_err(), "{bad}");
        }
    }
}
