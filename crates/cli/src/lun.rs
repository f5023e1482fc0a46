//! What `--lun` takes: the backing of a logical unit.

use std::{fmt, path::PathBuf, str::FromStr};

use anyhow::{Result, bail};

use crate::size;

/// Where a logical unit's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LunSpec {
    /// In memory; gone with the process.
    Ram { len: u64 },
    /// In a file; made, sparse, when a length is given and it is not there.
    File { path: PathBuf, len: Option<u64> },
}

impl LunSpec {
    /// The same for a process in another directory.
    pub(crate) fn absolute(self) -> Result<Self> {
        Ok(match self {
            Self::Ram { .. } => self,
            Self::File { path, len } => Self::File { path: std::path::absolute(path)?, len },
        })
    }
}

impl FromStr for LunSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("ram", len)) => Ok(Self::Ram { len: size::parse(len)? }),
            Some(("file", rest)) if !rest.is_empty() => {
                // A path may contain colons; a size never does.
                let sized = rest.rsplit_once(':').and_then(|(path, len)| {
                    size::parse(len).ok().filter(|_| !path.is_empty()).map(|len| (path, len))
                });
                let (path, len) = sized.map_or((rest, None), |(path, len)| (path, Some(len)));
                Ok(Self::File { path: path.into(), len })
            }
            _ => bail!("backing '{text}': write ram:SIZE or file:PATH[:SIZE]"),
        }
    }
}

impl fmt::Display for LunSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram { len } => write!(f, "ram:{len}"),
            Self::File { path, len: None } => write!(f, "file:{}", path.display()),
            Self::File { path, len: Some(len) } => write!(f, "file:{}:{len}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backings_read_as_they_are_shown() {
        for text in ["ram:1048576", "file:/x/y", "file:/x:y/z", "file:/x:4096"] {
            assert_eq!(text.parse::<LunSpec>().unwrap().to_string(), text);
        }
        let sized = LunSpec::File { path: "/a:b".into(), len: Some(2 << 30) };
        assert_eq!("file:/a:b:2GiB".parse::<LunSpec>().unwrap(), sized);
        for bad in ["", "ram", "ram:", "ram:0", "file:", "block:/dev/sdb", "tape:/dev/st0"] {
            assert!(bad.parse::<LunSpec>().is_err(), "{bad}");
        }
    }
}
