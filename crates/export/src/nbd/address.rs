//! Where an NBD server listens, and how clients name it.

use std::{
    fmt::{self, Write as _},
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
};

/// The TCP port that NBD has from IANA.
const DEFAULT_PORT: u16 = 10809;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    /// A TCP port; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a text names no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no address to listen on; write HOST:PORT or unix:PATH")]
pub struct NbdAddressError {
    text: String,
}

impl FromStr for NbdAddress {
    type Err = NbdAddressError;

    /// Reads `HOST:PORT`, `HOST` (port 10809) or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, NbdAddressError> {
        let error = || NbdAddressError { text: text.into() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(error()) } else { Ok(Self::Unix(path.into())) };
        }
        let first = match text.to_socket_addrs() {
            Ok(mut addresses) => addresses.next(),
            Err(_) => {
                let host = text.trim_start_matches('[').trim_end_matches(']');
                (host, DEFAULT_PORT).to_socket_addrs().map_err(|_| error())?.next()
            }
        };
        first.map(Self::Tcp).ok_or_else(error)
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl NbdAddress {
    /// The URI of the export `name` at this address.
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        // Who reads a URI takes these for steps (RFC 3986, section 5.2.4); the default export is the same.
        let name = if matches!(name, "." | "..") { "" } else { name };
        match self {
            Self::Tcp(address) => format!("nbd://{address}/{}", escape(name.as_bytes())),
            Self::Unix(path) => {
                use std::os::unix::ffi::OsStrExt;
                let path = escape(path.as_os_str().as_bytes());
                format!("nbd+unix:///{}?socket={path}", escape(name.as_bytes()))
            }
        }
    }
}

/// Percent-encodes all but unreserved characters and slashes (RFC 3986, section 2).
fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(*byte));
            }
            // Writing to a string cannot fail.
            other => drop(write!(out, "%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_named() {
        let tcp: NbdAddress = "127.0.0.1:1234".parse().unwrap();
        assert_eq!(tcp.uri("a b"), "nbd://127.0.0.1:1234/a%20b");
        assert_eq!(tcp.uri(".."), "nbd://127.0.0.1:1234/", "no step up");
        let default: NbdAddress = "127.0.0.1".parse().unwrap();
        assert_eq!(default.to_string(), "127.0.0.1:10809");
        let six: NbdAddress = "[::1]:7".parse().unwrap();
        assert_eq!(six.uri("v"), "nbd://[::1]:7/v");
        let unix: NbdAddress = "unix:/tmp/x y".parse().unwrap();
        assert_eq!(unix.uri("v"), "nbd+unix:///v?socket=/tmp/x%20y");
        for bad in ["unix:", "", "127.0.0.1:99999", "[::1]:x"] {
            assert!(bad.parse::<NbdAddress>().is_err(), "{bad}");
        }
    }
}
