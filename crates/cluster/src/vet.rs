//! What an agent says of itself, held against what can be so: at each door by which it comes in, and before
//! any of it is stored.

use std::net::IpAddr;

use axum::http::Uri;
use netraid_control::{
    text::{self, TextError, shown},
    units::{Rate, Resources},
};

use crate::agent::AgentStatus;

/// Bytes of each text that an agent says of itself.
pub const TEXT_LEN_MAX: usize = 512;
/// Bytes of an iSCSI name (RFC 7143, section 4.2.7.1).
pub const ISCSI_NAME_LEN_MAX: usize = 223;
/// Bytes of an agent's devices, at most.
pub const SPACE_MAX: u64 = 1 << 62;
/// The largest rate that a token says.
pub const RATE_MAX: Rate = Rate((1 << 48) - 1);

/// Why what an agent says of itself is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A text is too long, or does something where it is shown.
    #[error("the agent's {what} {why}: '{}'", shown(.text))]
    Text {
        /// Which.
        what: &'static str,
        /// What it says.
        text: String,
        /// Why not.
        why: TextError,
    },
    /// The URL of its API is none.
    #[error("the agent's API '{}': {why}", shown(.url))]
    Api {
        /// The URL.
        url: String,
        /// Why not.
        why: UrlError,
    },
    /// Its portal is none.
    #[error("the agent's portal '{}' is not HOST:PORT", shown(.0))]
    Portal(String),
    /// Its target is none.
    #[error(
        "the agent's target '{}' is no iSCSI name: iqn., eui. or naa., then letters, digits, '-', '.' and \
         ':', {ISCSI_NAME_LEN_MAX} bytes at most",
        shown(.0)
    )]
    Target(String),
    /// It has more than there can be.
    #[error(
        "the agent says that it has {} bytes, devices of {} bytes/s and a network of {} bytes/s; \
         {SPACE_MAX}, {} and {} are the most",
        .0.space_bytes, .0.device.0, .0.network.0, RATE_MAX.0, RATE_MAX.0
    )]
    Capacity(Resources),
    /// It has more left than it has.
    #[error("the agent's {0} is more than all that it has")]
    Left(&'static str),
}

/// Why a daemon is not asked at a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is none of a daemon.
    #[error("is no URL of a daemon: http or https, host, and port")]
    Form,
    /// Everybody on the way would read what passes, the token too.
    #[error("http is for this host alone (127.0.0.1, ::1, localhost); use https")]
    Clear,
}

/// The host of a daemon's URL, without brackets.
///
/// # Errors
/// When it is no such URL, or one of another host without TLS.
pub fn url_host(url: &str) -> Result<String, UrlError> {
    let base: Uri = url.parse().map_err(|_| UrlError::Form)?;
    let authority = base.authority().ok_or(UrlError::Form)?;
    let is_bare = matches!(base.path(), "" | "/") && base.query().is_none();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    // What is behind the host is a port that there can be, or nothing.
    let has_no_port = authority.as_str().len() == authority.host().len();
    let is_asked = has_no_port || authority.port_u16().is_some_and(|port| port > 0);
    if !is_bare || host.is_empty() || !is_asked || authority.as_str().contains('@') {
        return Err(UrlError::Form);
    }
    match base.scheme_str() {
        Some("https") => Ok(host.to_owned()),
        Some("http") if is_loopback(host) => Ok(host.to_owned()),
        Some("http") => Err(UrlError::Clear),
        _ => Err(UrlError::Form),
    }
}

/// Whether a host is this one, whatever a resolver says.
fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Whether all that an agent says of itself can be kept, shown, and worked with.
///
/// # Errors
/// The first that cannot.
pub fn status(status: &AgentStatus) -> Result<(), Unfit> {
    let AgentStatus { host, rack, api, portal, target, capacity, kept, .. } = status;
    let texts =
        [("host", host), ("rack", rack), ("API", api), ("portal", portal), ("target", target)];
    for (what, text) in texts {
        text::check(text, TEXT_LEN_MAX).map_err(|why| Unfit::Text {
            what,
            text: text.clone(),
            why,
        })?;
    }
    url_host(api).map_err(|why| Unfit::Api { url: api.clone(), why })?;
    if !is_portal(portal) {
        return Err(Unfit::Portal(portal.clone()));
    }
    if !is_iscsi_name(target) {
        return Err(Unfit::Target(target.clone()));
    }
    let most = Resources { space_bytes: SPACE_MAX, device: RATE_MAX, network: RATE_MAX };
    if !most.holds(capacity) {
        return Err(Unfit::Capacity(*capacity));
    }
    let parts = [
        ("part for rebuilding", kept),
        ("rest for clients", &status.left),
        ("rest for rebuilding", &status.left_for_rebuild),
    ];
    match parts.into_iter().find(|(_, part)| !capacity.holds(part)) {
        Some((what, _)) => Err(Unfit::Left(what)),
        None => Ok(()),
    }
}

fn is_portal(portal: &str) -> bool {
    let Some((host, port)) = portal.rsplit_once(':') else { return false };
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => {
            let (address, zone) = host.split_once('%').unwrap_or((host, "zone"));
            let is_zone = !zone.is_empty() && zone.chars().all(is_of_names);
            is_zone && address.parse::<std::net::Ipv6Addr>().is_ok()
        }
        None => !host.is_empty() && host.chars().all(is_of_names),
    };
    let is_port = port.bytes().all(|digit| digit.is_ascii_digit());
    is_host && is_port && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Whether a text is an iSCSI name (RFC 7143, section 4.2.7) in ASCII.
#[must_use]
pub fn is_iscsi_name(name: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':');
    name.len() <= ISCSI_NAME_LEN_MAX
        && ["iqn.", "eui.", "naa."].iter().any(|kind| {
            let start = name.get(..kind.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(kind)) && name.len() > kind.len()
        })
        && name.chars().all(is_of_names)
}

#[cfg(test)]
mod tests {
    use netraid_control::units::AgentId;

    use super::*;

    fn good() -> AgentStatus {
        let some = Resources { space_bytes: 10, device: Rate(10), network: Rate(10) };
        AgentStatus {
            agent: AgentId([1; 16]),
            host: "rack 7, größer".to_owned(),
            rack: String::new(),
            api: "https://agent.example:3270".to_owned(),
            portal: "[::1]:3260".to_owned(),
            target: "iqn.2026-01.netraid:agent-1".to_owned(),
            capacity: some,
            kept: Resources::default(),
            left: some,
            left_for_rebuild: some,
            draining: false,
            segments: 0,
            sessions: 0,
        }
    }

    #[test]
    fn what_an_agent_is_goes_through_and_what_none_can_be_does_not() {
        assert_eq!(status(&good()), Ok(()));
        let api = |api: &str| AgentStatus { api: api.to_owned(), ..good() };
        for url in ["http://127.0.0.1:9", "http://[::1]:9/", "http://localhost:9"] {
            assert_eq!(status(&api(url)), Ok(()), "{url}");
        }
        for url in [
            "ftp://x",
            "http://10.0.0.1:80",
            "http://169.254.169.254/",
            "https://host/path",
            "https://user@host",
            "https://host?a=b",
            "host:80",
            "",
        ] {
            assert!(matches!(status(&api(url)), Err(Unfit::Api { .. })), "{url}");
        }
        for portal in ["", "host", ":1", "host:0", "host:+1", "a b:1", "[x]:1", "host:65536"] {
            let wrong = AgentStatus { portal: portal.to_owned(), ..good() };
            assert_eq!(status(&wrong), Err(Unfit::Portal(portal.to_owned())));
        }
        for target in ["", "iqn.", "x:y", "iqn.x y", "iqn.x/1", &format!("iqn.{}", "x".repeat(220))]
        {
            let wrong = AgentStatus { target: target.to_owned(), ..good() };
            assert_eq!(status(&wrong), Err(Unfit::Target(target.to_owned())));
        }
        let long = AgentStatus { host: "h".repeat(1 << 20), ..good() };
        assert!(status(&long).unwrap_err().to_string().len() < 2000);
        let escape = AgentStatus { rack: "\u{1b}[2J".to_owned(), ..good() };
        assert!(status(&escape).unwrap_err().to_string().contains("\\u{1b}[2J"));
    }

    #[test]
    fn an_agent_has_no_more_left_than_it_has() {
        let more = Resources { space_bytes: 11, ..good().capacity };
        assert!(matches!(status(&AgentStatus { left: more, ..good() }), Err(Unfit::Left(_))));
        assert!(matches!(
            status(&AgentStatus { left_for_rebuild: more, ..good() }),
            Err(Unfit::Left(_))
        ));
        assert!(matches!(status(&AgentStatus { kept: more, ..good() }), Err(Unfit::Left(_))));
        let all = Resources { space_bytes: u64::MAX, ..good().capacity };
        let boasts = AgentStatus { capacity: all, left: all, ..good() };
        assert_eq!(status(&boasts), Err(Unfit::Capacity(all)));
    }
}
