//! Addresses of LUNs: `iscsi://[user[%secret]@]host[:port]/iqn/lun`, as libiscsi, QEMU and fio
//! write them. A secret in an address is taken and never shown. Further portals of the same
//! target follow as `?portal=host[:port]&portal=...`.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// The TCP port that iSCSI has from IANA (RFC 7143, section 4.1).
const DEFAULT_PORT: u16 = 3260;

/// Most portals of one address.
const PORTALS_MAX: usize = 8;

/// Where a target listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Portal {
    /// Host name or address, without the brackets of an IPv6 address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Portal {
    /// Reads `host[:port]`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        split_port(text).map(|(host, port)| Self { host: host.into(), port })
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Where a LUN is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TargetUri {
    /// CHAP name.
    pub user: Option<String>,
    /// CHAP secret, when the address carried one.
    pub secret: Option<String>,
    /// Host name or address, without the brackets of an IPv6 address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Where the target listens beside `host` and `port`, in the order in which they are tried.
    pub more_portals: Vec<Portal>,
    /// iSCSI name of the target.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
}

/// Why an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "address '{shown}': {reason}; write iscsi://[user@]host[:port]/target-name/lun[?portal=host:port]"
)]
pub struct UriError {
    shown: String,
    reason: &'static str,
}

impl TargetUri {
    /// Reads an address.
    ///
    /// # Errors
    /// When it is not `iscsi://[user[%secret]@]host[:port]/name/lun[?portal=host[:port]&...]`, or
    /// has more than 8 portals; the text names the part, and never shows a secret.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let fail = |reason| UriError { shown: redact(text), reason };
        let rest =
            text.strip_prefix("iscsi://").ok_or_else(|| fail("does not begin with iscsi://"))?;
        let (authority, path) = rest.split_once('/').ok_or_else(|| fail("has no target name"))?;
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (user, secret) = match login.map(|login| login.split_once('%').unwrap_or((login, ""))) {
            None => (None, None),
            Some(("", _)) => return Err(fail("has an empty user name")),
            Some((user, "")) => (Some(user.to_string()), None),
            Some((user, secret)) => (Some(user.to_string()), Some(secret.to_string())),
        };
        if address.contains('%') && !address.starts_with('[') {
            return Err(fail("has a % but no @ before the host"));
        }
        let (host, port) = split_port(address).ok_or_else(|| fail("has no valid host and port"))?;
        let (target, lun) = path.split_once('/').ok_or_else(|| fail("has no LUN number"))?;
        if target.is_empty() || target.len() > 223 || target.contains(|c: char| c.is_whitespace()) {
            return Err(fail("has a target name that is not 1 to 223 printable characters"));
        }
        let (lun, query) =
            lun.split_once('?').map_or((lun, None), |(lun, query)| (lun, Some(query)));
        let more_portals = more_portals(query).map_err(fail)?;
        let lun = lun.parse().ok().filter(|lun| *lun < 1 << 14);
        let lun = lun.ok_or_else(|| fail("has a LUN that is not a number from 0 to 16383"))?;
        let (host, target) = (host.into(), target.into());
        Ok(Self { user, secret, host, port, more_portals, target, lun })
    }

    /// All portals, in the order in which they are tried.
    pub fn portals(&self) -> impl Iterator<Item = Portal> {
        let first = Portal { host: self.host.clone(), port: self.port };
        core::iter::once(first).chain(self.more_portals.iter().cloned())
    }
}

fn more_portals(query: Option<&str>) -> Result<Vec<Portal>, &'static str> {
    let Some(query) = query else { return Ok(Vec::new()) };
    let mut portals = Vec::new();
    for part in query.split('&') {
        let portal = part.strip_prefix("portal=").ok_or("has an unknown option after the ?")?;
        if portals.len() + 1 == PORTALS_MAX {
            return Err("has more than 8 portals");
        }
        portals.push(Portal::parse(portal).ok_or("has a portal that is no host and port")?);
    }
    Ok(portals)
}

fn split_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
    } else {
        match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        }
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None => DEFAULT_PORT,
    };
    (!host.is_empty()).then_some((host, port))
}

/// `text` without what may be a secret in an address: in each line, everything from the first `%`
/// behind `iscsi:/`, in small or large letters, up to the last `@`, or to the end, is hidden. For
/// texts that quote what a user typed, before it was understood, and perhaps as a path.
#[must_use]
pub fn redact_addresses(text: &str) -> String {
    let mut shown = String::new();
    for line in text.split_inclusive('\n') {
        let scheme = line.to_ascii_lowercase().find("iscsi:/");
        let percent = scheme.and_then(|at| Some(at + line[at..].find('%')?));
        let Some(percent) = percent else {
            shown.push_str(line);
            continue;
        };
        let after = &line[percent..];
        let end = after.rfind('@').unwrap_or(after.trim_end_matches('\n').len());
        shown.push_str(&line[..percent]);
        shown.push_str("%***");
        shown.push_str(&after[end..]);
    }
    shown
}

/// `text` with everything hidden from `%` up to `@`; without one, up to `/` or the end.
fn redact(text: &str) -> String {
    let Some(percent) = text.find('%') else { return text.to_string() };
    let after = &text[percent..];
    let end = after.rfind('@').or_else(|| after.find('/')).unwrap_or(after.len());
    format!("{}%***{}", &text[..percent], &after[end..])
}

impl fmt::Display for TargetUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        write!(f, ":{}/{}/{}", self.port, self.target, self.lun)?;
        let marks = core::iter::once('?').chain(core::iter::repeat('&'));
        self.more_portals
            .iter()
            .zip(marks)
            .try_for_each(|(portal, mark)| write!(f, "{mark}portal={portal}"))
    }
}

impl fmt::Debug for TargetUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_libiscsi_writes() {
        let uri = TargetUri::parse("iscsi://joe%s3cret@[::1]:3261/iqn.2026-01.org.x:y/3").unwrap();
        assert_eq!((uri.host.as_str(), uri.port, uri.lun), ("::1", 3261, 3));
        assert_eq!(uri.secret.as_deref(), Some("s3cret"));
        assert_eq!(format!("{uri} {uri:?}").matches("s3cret").count(), 0);
        let plain = TargetUri::parse("iscsi://h/iqn.x/0").unwrap();
        assert_eq!((plain.port, &plain.user), (3260, &None));
        assert_eq!(TargetUri::parse(&plain.to_string()).unwrap(), plain);
    }

    #[test]
    fn further_portals_follow_as_options() {
        let text = "iscsi://a:1/iqn.x/2?portal=[::1]:7&portal=b";
        let uri = TargetUri::parse(text).unwrap();
        let portals: Vec<String> = uri.portals().map(|portal| portal.to_string()).collect();
        assert_eq!(portals, ["a:1", "[::1]:7", "b:3260"]);
        assert_eq!(uri.lun, 2);
        assert_eq!(uri.to_string(), "iscsi://a:1/iqn.x/2?portal=[::1]:7&portal=b:3260");
        assert_eq!(TargetUri::parse(&uri.to_string()).unwrap(), uri);
        let with = |count: usize| {
            let portals: Vec<&str> = core::iter::repeat_n("portal=h", count).collect();
            TargetUri::parse(&format!("iscsi://h/t/0?{}", portals.join("&")))
        };
        assert_eq!(with(7).unwrap().portals().count(), 8);
        assert!(with(8).is_err());
    }

    #[test]
    fn refuses_and_hides_the_secret() {
        for bad in [
            "http://h/t/0",
            "iscsi://h",
            "iscsi://h/t",
            "iscsi://h/t/x",
            "iscsi:///t/0",
            "iscsi://h:0/t/0",
            "iscsi://h:99999/t/0",
            "iscsi://h/t/16384",
            "iscsi://[::1/t/0",
            "iscsi://h/t/0?",
            "iscsi://h/t/0?portal=",
            "iscsi://h/t/0?portal=h:0",
            "iscsi://h/t/0?other=h",
            "iscsi://u%hidden@h/t/x",
            "iscsi://u%hidden@h:/t/0",
            "iscsi://u%hidden/h/t/0",
            "iscsi://u%hidden",
            "iscsi://u%hidden/iqn.x/0",
            "u%hidden@h/t/0",
            "iscsi://u%hid/hidden@h",
        ] {
            let text = TargetUri::parse(bad).unwrap_err().to_string();
            assert!(!text.contains("hidden"), "{text}");
        }
    }

    #[test]
    fn texts_that_quote_addresses_show_no_secret() {
        for (text, shown) in [
            ("no address, 50% done", "no address, 50% done"),
            ("'iscsi://joe@h/t/0' is wrong", "'iscsi://joe@h/t/0' is wrong"),
            ("a\n'iscsi://joe%s/e c'r@h/t/0' x\nb", "a\n'iscsi://joe%***@h/t/0' x\nb"),
            ("iscsi://joe%secret\nb", "iscsi://joe%***\nb"),
            ("iscsi://j%one@h/t/0 iscsi://k%two@h/t/1", "iscsi://j%***@h/t/1"),
            ("'ISCSI://joe%secret@h/t/0' is wrong", "'ISCSI://joe%***@h/t/0' is wrong"),
            (
                "/home/iscsi:/joe%secret@h/t/0: no such file",
                "/home/iscsi:/joe%***@h/t/0: no such file",
            ),
        ] {
            assert_eq!(redact_addresses(text), shown);
        }
    }
}
