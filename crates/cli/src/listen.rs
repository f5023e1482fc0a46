//! Addresses to listen on, as people write and read them: zones of IPv6 by name.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
};

use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name, socket};

/// The addresses that `HOST:PORT` stands for; `[fe80::1%eth0]:3260` is one.
pub(crate) fn resolve(text: &str) -> io::Result<Vec<SocketAddr>> {
    let zoned = || {
        let (host, port) = text.strip_prefix('[')?.split_once("]:")?;
        Some((host, port.parse::<u16>().ok()?)).filter(|(host, _)| host.contains('%'))
    };
    match zoned() {
        Some(place) => place.to_socket_addrs().map(Iterator::collect),
        None => text.to_socket_addrs().map(Iterator::collect),
    }
}

/// An address as other programs of this host read it: a zone by its name, which stays when the numbers
/// of interfaces change.
pub(crate) fn show(address: &SocketAddr) -> String {
    let zone = match address {
        SocketAddr::V6(address) => Some(address.scope_id()).filter(|zone| *zone != 0),
        SocketAddr::V4(_) => None,
    };
    let name = |zone| {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
        index_to_name(socket, zone).ok()
    };
    match zone.and_then(name) {
        Some(name) => format!("[{}%{name}]:{}", address.ip(), address.port()),
        None => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_names() {
        // Every Linux host has it, as its first interface.
        let all = resolve("[fe80::1%lo]:3260").unwrap();
        assert_eq!(all, ["[fe80::1%1]:3260".parse().unwrap()]);
        assert_eq!(show(&all[0]), "[fe80::1%lo]:3260");
        for plain in ["127.0.0.1:0", "[::1]:3260"] {
            assert_eq!(show(&resolve(plain).unwrap()[0]), plain);
        }
        for bad in ["", "x", "[fe80::1%lo]", "[fe80::1%none-such]:1", "[fe80::1%lo]:x"] {
            assert!(resolve(bad).is_err(), "{bad}");
        }
    }
}
