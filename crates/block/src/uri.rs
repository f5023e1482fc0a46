//! Addresses of LUNs: `iscsi://[user[%secret]@]host[:port]/iqn/lun[?option=value&...]`, as libiscsi,
//! QEMU and fio write them. A secret in an address is taken and never shown. Options of libiscsi are
//! `header_digest`, `target_user` and `target_password`; `data_digest` is the same for data, and
//! further portals of the target follow as `portal=host[:port]`.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use crate::redact::redact_whole;

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

/// Largest LUN that an address can name.
const LUN_MAX: u16 = (1 << 14) - 1;
/// LUNs from this one on have a form of their own in addresses: see [`lun_in_addresses`].
const FLAT_FROM: u16 = 256;
const FLAT: u16 = 1 << 14;

/// A LUN as addresses have it: from 256 on with the mark of flat space addressing (SAM-5, section
/// 4.7.7.3), as Linux and libiscsi write it, which put the number into a command as it is.
#[must_use]
pub const fn lun_in_addresses(lun: u16) -> u16 {
    if lun >= FLAT_FROM && lun <= LUN_MAX { FLAT | lun } else { lun }
}

/// Where a LUN is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TargetUri {
    /// CHAP name.
    pub user: Option<String>,
    /// CHAP secret, when the address carried one.
    pub secret: Option<String>,
    /// Host name or address, without the brackets of an IPv6 address; a zone stands behind a `%`.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Where the target listens beside `host` and `port`, in the order in which they are tried.
    pub more_portals: Vec<Portal>,
    /// iSCSI name of the target.
    pub target: String,
    /// Logical unit number, 0 to 16383.
    pub lun: u16,
    /// What follows behind the `?` beside portals.
    pub options: UriOptions,
}

/// How the target is to be logged in to, where the address says so.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct UriOptions {
    /// Header digests are insisted on (`header_digest=crc32c`).
    pub header_digest: bool,
    /// Data digests are insisted on (`data_digest=crc32c`).
    pub data_digest: bool,
    /// The CHAP name that the target must give (`target_user=`).
    pub target_user: Option<String>,
    /// What the target must prove that it knows (`target_password=`).
    pub target_secret: Option<String>,
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
    /// Reads an address, in all forms that libiscsi takes: `user:secret@` as well as `user%secret@`,
    /// a secret with any characters, `%3a` in the target's name, and a LUN with the mark of flat space addressing.
    ///
    /// A name with a colon is one name where it begins as iSCSI names do (`iqn.`, `eui.`, `naa.`).
    ///
    /// # Errors
    /// When it is not `iscsi://[user[%secret]@]host[:port]/name/lun[?option=value&...]`, or
    /// has more than 8 portals; the text names the part, and never shows a secret.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let fail = |reason| UriError { shown: redact_whole(text), reason };
        let rest =
            text.strip_prefix("iscsi://").ok_or_else(|| fail("does not begin with iscsi://"))?;
        let (login, rest) = split_login(rest);
        let (user, secret) = match login.map(split_secret) {
            None => (None, None),
            Some(("", _)) => return Err(fail("has an empty user name")),
            Some((user, None | Some(""))) => (Some(user.to_string()), None),
            Some((user, Some(secret))) => (Some(user.to_string()), Some(secret.to_string())),
        };
        let (place, query) =
            rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        let (address, path) = place.split_once('/').ok_or_else(|| fail("has no target name"))?;
        if address.contains('%') && !address.starts_with('[') {
            return Err(fail("has a % but no @ before the host"));
        }
        let (host, port) = split_port(address).ok_or_else(|| fail("has no valid host and port"))?;
        let (target, lun) = path.split_once('/').ok_or_else(|| fail("has no LUN number"))?;
        let target = decoded(target).ok_or_else(|| {
            fail("has a target name with a % that two hexadecimal digits of a character do not follow")
        })?;
        let unfit = |c: char| c.is_whitespace() || c.is_control();
        if target.is_empty() || target.len() > 223 || target.contains(unfit) {
            return Err(fail("has a target name that is not 1 to 223 printable characters"));
        }
        let (more_portals, options) = read_options(query).map_err(fail)?;
        let lun = lun.parse().ok().filter(|lun| *lun <= FLAT | LUN_MAX);
        let lun: u16 = lun.ok_or_else(|| fail("has a LUN that is not a number from 0 to 16383"))?;
        let (host, lun) = (host.into(), lun & LUN_MAX);
        Ok(Self { user, secret, host, port, more_portals, target, lun, options })
    }

    /// All portals, in the order in which they are tried.
    pub fn portals(&self) -> impl Iterator<Item = Portal> {
        let first = Portal { host: self.host.clone(), port: self.port };
        core::iter::once(first).chain(self.more_portals.iter().cloned())
    }
}

/// Parts an address behind its scheme into login and place. A secret may hold any character, and a
/// place no `@`: what is before the last `@` that a place follows is the login.
fn split_login(rest: &str) -> (Option<&str>, &str) {
    if is_place(rest) {
        return (None, rest);
    }
    let parts = |at: usize| (Some(&rest[..at]), &rest[at + 1..]);
    let mut all = rest.rmatch_indices('@').map(|(at, _)| at);
    let found = all.find(|at| is_place(&rest[at + 1..])).or_else(|| rest.rfind('@'));
    found.map_or((None, rest), parts)
}

/// Whether this has the form `host[:port]/name/lun[?options]`.
pub(crate) fn is_place(text: &str) -> bool {
    let place = text.split_once('?').map_or(text, |(place, _)| place);
    let Some((address, path)) = place.split_once('/') else { return false };
    !place.contains('@') && path.contains('/') && is_host(address)
}

fn is_host(address: &str) -> bool {
    let is_plain = address.starts_with('[') || !address.contains('%');
    is_plain && split_port(address).is_some()
}

/// Parts a login into user and secret: at the first `%` or `:`. Names of iSCSI have colons of their own.
fn split_secret(login: &str) -> (&str, Option<&str>) {
    let is_iscsi_name = ["iqn.", "eui.", "naa."].iter().any(|kind| login.starts_with(kind));
    let mark = login.find(|c| c == '%' || c == ':' && !is_iscsi_name);
    mark.map_or((login, None), |at| (&login[..at], Some(&login[at + 1..])))
}

/// `text` with `%xx` as the bytes that they stand for; none when one is no such thing, or they are
/// no UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// Further portals, and all else behind the `?`.
fn read_options(query: Option<&str>) -> Result<(Vec<Portal>, UriOptions), &'static str> {
    let (mut portals, mut options) = (Vec::new(), UriOptions::default());
    let digest = |value| match value {
        "crc32c" => Ok(true),
        "none" | "none-crc32c" | "crc32c-none" => Ok(false),
        _ => Err("has a digest that is neither crc32c nor none"),
    };
    let parts = query.into_iter().flat_map(|query| query.split('&'));
    for part in parts.filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("portal", portal)) => {
                if portals.len() + 1 == PORTALS_MAX {
                    return Err("has more than 8 portals");
                }
                portals.push(Portal::parse(portal).ok_or("has a portal that is no host and port")?);
            }
            Some(("header_digest", value)) => options.header_digest = digest(value)?,
            Some(("data_digest", value)) => options.data_digest = digest(value)?,
            Some(("target_user" | "target_password", "")) => {
                return Err("has an empty name or secret of the target");
            }
            Some(("target_user", user)) => options.target_user = Some(user.to_string()),
            Some(("target_password", secret)) => options.target_secret = Some(secret.to_string()),
            None | Some(_) if part == "iser" || part.starts_with("iser=") => {
                return Err("wants iser, which is not supported");
            }
            None | Some(_) => return Err("has an unknown option after the ?"),
        }
    }
    Ok((portals, options))
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
        write!(f, ":{}/", self.port)?;
        for c in self.target.chars() {
            match c {
                '%' | '/' | '?' | '#' | '@' => write!(f, "%{:02x}", u32::from(c))?,
                _ => write!(f, "{c}")?,
            }
        }
        write!(f, "/{}", lun_in_addresses(self.lun))?;
        let mut mark = '?';
        let mut option = |f: &mut fmt::Formatter<'_>, key: &str, value: &dyn fmt::Display| {
            write!(f, "{mark}{key}={value}")?;
            mark = '&';
            Ok(())
        };
        for portal in &self.more_portals {
            option(f, "portal", portal)?;
        }
        let UriOptions { header_digest, data_digest, target_user, .. } = &self.options;
        for (set, key) in [(header_digest, "header_digest"), (data_digest, "data_digest")] {
            if *set {
                option(f, key, &"crc32c")?;
            }
        }
        target_user.as_ref().map_or(Ok(()), |user| option(f, "target_user", user))
    }
}

impl fmt::Debug for UriOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header_digest, data_digest, target_user, .. } = self;
        f.debug_struct("UriOptions")
            .field("header_digest", header_digest)
            .field("data_digest", data_digest)
            .field("target_user", target_user)
            .finish_non_exhaustive()
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
    use alloc::format;

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
    fn reads_every_form_that_libiscsi_reads() {
        let parse = |text: &str| TargetUri::parse(text).unwrap();
        let login = |text: &str| {
            let uri = parse(&format!("iscsi://{text}@h:1/iqn.x:y/0"));
            assert_eq!((uri.host.as_str(), uri.target.as_str()), ("h", "iqn.x:y"), "{text}");
            (uri.user.unwrap(), uri.secret.unwrap_or_default())
        };
        for (text, user, secret) in [
            ("joe%a/b", "joe", "a/b"),
            ("joe:a/b:c", "joe", "a/b:c"),
            ("joe%a@b/c", "joe", "a@b/c"),
            ("joe%a?b", "joe", "a?b"),
            ("joe%a%25", "joe", "a%25"),
            ("joe:a%21b", "joe", "a%21b"),
            ("iqn.2026-01.x:y%a:b", "iqn.2026-01.x:y", "a:b"),
            ("iqn.2026-01.x:y", "iqn.2026-01.x:y", ""),
        ] {
            assert_eq!(login(text), (user.into(), secret.into()), "{text}");
        }
        assert_eq!(parse("iscsi://h/iqn.x%3ay/0").target, "iqn.x:y");
        assert_eq!(parse("iscsi://h/iqn.x/+0").lun, 0);
        for query in ["?", "?&", "?&&portal=b&", "?portal=b&&data_digest=none"] {
            let uri = parse(&format!("iscsi://h/iqn.x/7{query}"));
            assert_eq!(uri.lun, 7, "{query}");
            assert_eq!(uri.more_portals.len(), query.matches("portal").count(), "{query}");
        }
        assert_eq!(parse("iscsi://h/iqn.x/00").lun, 0);
        let all = "header_digest=crc32c&data_digest=none&target_user=t&target_password=p@/q/r";
        let uri = parse(&format!("iscsi://joe%secret@h/iqn.x/0?{all}"));
        let UriOptions { header_digest, data_digest, target_user, target_secret } = &uri.options;
        assert!(*header_digest && !*data_digest);
        assert_eq!((target_user.as_deref(), target_secret.as_deref()), (Some("t"), Some("p@/q/r")));
        assert_eq!(
            uri.to_string(),
            "iscsi://joe@h:3260/iqn.x/0?header_digest=crc32c&target_user=t"
        );
        assert_eq!(format!("{uri} {uri:?} {:?}", uri.options).matches("p@").count(), 0);
        let alone = parse(&format!("iscsi://h/iqn.x/0?{all}"));
        assert_eq!((alone.user.as_ref(), alone.host.as_str()), (None, "h"));
    }

    #[test]
    fn luns_from_256_on_are_written_as_libiscsi_puts_them_into_commands() {
        // libiscsi writes the number as the first two bytes; SAM-5: 01b in the first two bits.
        for (lun, written) in [(0, "0"), (255, "255"), (256, "16640"), (16383, "32767")] {
            let uri = TargetUri::parse(&format!("iscsi://h/iqn.x/{lun}")).unwrap();
            assert_eq!(uri.lun, lun);
            let shown = uri.to_string();
            assert_eq!(shown, format!("iscsi://h:3260/iqn.x/{written}"));
            assert_eq!(TargetUri::parse(&shown).unwrap(), uri);
        }
        assert_eq!(TargetUri::parse("iscsi://h/iqn.x/16389").unwrap().lun, 5, "flat, too");
    }

    #[test]
    fn names_and_zones_are_read_as_they_are_shown() {
        for text in [
            "iscsi://[fe80::1%eth0]:3260/iqn.x/0",
            "iscsi://joe@[fe80::1%eth0]:3260/iqn.x/0?portal=[fe80::2%eth0]:1",
            "iscsi://h:3260/iqn.x%25y%2fz%3f%40/0",
        ] {
            assert_eq!(TargetUri::parse(text).unwrap().to_string(), text);
        }
        let name = TargetUri::parse("iscsi://h/iqn.x%25y%2fz%3f%40/0").unwrap().target;
        assert_eq!(name, "iqn.x%y/z?@");
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
            "iscsi://h/t/32768",
            "iscsi://h/t/0/",
            "iscsi://h/t%3/0",
            "iscsi://h/t%zz/0",
            "iscsi://h/t%20x/0",
            "iscsi://h/t%ff/0",
            "iscsi://h/t/0?iser",
            "iscsi://h/t/0?header_digest=md5",
            "iscsi://[::1/t/0",
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
            "iscsi://u:hidden@h/t/x",
            "iscsi://u:hidden@h:/t/0",
            "iscsi://u:hidden/t/0",
            "iscsi://u:hidden",
            "iscsi://u%hid/hidden/t/0",
            "iscsi://h/t/x?target_password=hidden",
            "iscsi://h/t/0?target_password=hidden&other=1",
        ] {
            let text = TargetUri::parse(bad).unwrap_err().to_string();
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
