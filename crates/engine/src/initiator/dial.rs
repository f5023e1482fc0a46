//! Makes sessions to one LUN: portals, redirections, and what a new session must show.

use std::{
    net::Ipv6Addr,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use netraid_block::{Pool, Portal, narrow};
use netraid_iscsi_proto::{
    chap::Secret,
    initiator::{LoginError, Mutual, Setup},
};

use super::{
    InitiatorConfig, SESSIONS_MAX,
    error::Reason,
    lane::Made,
    link::Link,
    probe::{self, Probed},
};

/// Sessions that a predecessor can have had.
const LANES: usize = SESSIONS_MAX as usize;
/// Redirections of one login.
const HOPS_MAX: usize = 4;

/// The key that the session must be registered with still, whether the session is new, and whether
/// the disk may have told the nexus of a lost cache without anybody having noted it.
type Probing<'a> = (Option<u64>, bool, &'a AtomicBool);

/// Makes sessions to one LUN.
pub(super) struct Dialer {
    pub(super) config: InitiatorConfig,
    setup: Arc<Setup>,
    /// What the target has to prove.
    target_proof: Option<(Option<String>, Secret)>,
    /// Changed by permanent redirections.
    portals: Mutex<Vec<Portal>>,
    pool: Pool,
}

impl Dialer {
    pub(super) fn new(config: InitiatorConfig, pool: Pool) -> Result<Self, Reason> {
        let (setup, target_proof) = (Arc::new(config.setup()?), config.target_proof()?);
        let portals = Mutex::new(config.uri.portals().collect());
        Ok(Self { config, setup, target_proof, portals, pool })
    }

    /// Number of portals.
    pub(super) fn portals(&self) -> usize {
        self.portals.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Longest that one attempt may take. With several portals none may use up the time that
    /// requests have.
    fn limit(&self) -> Duration {
        if self.portals() > 1 {
            self.config.login_timeout.min(self.config.request_timeout / 4)
        } else {
            self.config.login_timeout
        }
    }

    /// Logs in as session `lane` at a portal, and examines the disk; with a `key`, this session
    /// must be registered with it still.
    pub(super) async fn dial(
        &self,
        lane: usize,
        portal: usize,
        key: Option<u64>,
        untold: &AtomicBool,
    ) -> Made {
        let limit = self.limit();
        let link = self.log_in(lane, portal, limit).await?;
        self.examine_within(link, (key, true, untold), limit).await
    }

    /// Ends the sessions that a predecessor with this ISID may have left beside the one that was
    /// made now at `portal`, in its `group`, and their commands with them: a login with the same
    /// ISID does (RFC 7143, section 6.3.5), for sessions of its portal group. Portals of other
    /// groups are asked, too; one that lets nobody in keeps what it may have.
    pub(super) async fn end_others(&self, portal: usize, group: Option<u16>) -> Result<(), Reason> {
        self.end_lanes(1..LANES, portal).await?;
        let mut groups = vec![group];
        for other in (0..self.portals()).filter(|other| *other != portal) {
            let limit = self.limit();
            let link = match self.log_in(1, other, limit).await {
                Ok(link) => link,
                Err(reason) => {
                    let at = self.portal(other);
                    tracing::warn!(portal = %at, %reason, "sessions of a dead engine may remain");
                    continue;
                }
            };
            let group = link.portal_group();
            link.log_out(limit).await;
            if !groups.contains(&group) {
                groups.push(group);
                self.end_lanes(0..1, other).await?;
                self.end_lanes(2..LANES, other).await?;
            }
        }
        Ok(())
    }

    async fn end_lanes(&self, lanes: Range<usize>, portal: usize) -> Result<(), Reason> {
        let limit = self.limit();
        for lane in lanes {
            self.log_in(lane, portal, limit).await?.log_out(limit).await;
        }
        Ok(())
    }

    /// Makes the first session at the first portal that lets it; which one.
    pub(super) async fn dial_any(&self) -> Result<(usize, (Link, Probed)), Reason> {
        let mut failure = Reason::Config("there is no portal");
        for portal in 0..self.portals() {
            match self.dial(0, portal, None, &AtomicBool::new(false)).await {
                Ok(made) => return Ok((portal, made)),
                Err(reason) => failure = reason,
            }
        }
        Err(failure)
    }

    /// Examines the disk on a session that carries nothing else meanwhile.
    pub(super) async fn examine(&self, link: Link, key: Option<u64>, untold: &AtomicBool) -> Made {
        self.examine_within(link, (key, false, untold), self.config.login_timeout).await
    }

    async fn examine_within(&self, mut link: Link, how: Probing<'_>, limit: Duration) -> Made {
        match tokio::time::timeout(limit, self.probe(&mut link, how)).await {
            Ok(probed) => Ok((link, probed?)),
            Err(_) => Err(Reason::Silent(limit)),
        }
    }

    async fn probe(
        &self,
        link: &mut Link,
        (key, is_new, untold): Probing<'_>,
    ) -> Result<Probed, Reason> {
        let lun = self.config.uri.lun;
        // A unit attention is told once, perhaps to an examination that fails then: what may have
        // been one of a lost cache counts until somebody has noted it.
        let before = untold.swap(true, Ordering::AcqRel);
        let first = match key {
            Some(key) => probe::check_key(link, lun, key, before).await?,
            None => probe::greet(link, lun).await?,
        };
        if !before && !first.cache_lost && (first.nexus_lost || !is_new) {
            untold.store(false, Ordering::Release);
        }
        let mut probed = probe::probe(link, lun).await?;
        probed.heard.cache_lost |= before | first.cache_lost;
        probed.heard.nexus_lost |= first.nexus_lost;
        Ok(probed)
    }

    /// Follows redirections (RFC 7143, section 11.13.5) for a bounded number of hops, and never
    /// to where it has been.
    async fn log_in(&self, lane: usize, portal: usize, limit: Duration) -> Result<Link, Reason> {
        let mut at = self.portal(portal);
        let mut seen = vec![at.clone()];
        // Where the portal has moved to for good; known when somebody lets this side in there.
        let mut moved_to = None;
        loop {
            let setup = Arc::new(self.setup_of(lane, limit));
            let moved = match Link::dial(&at.host, at.port, setup, self.pool.clone()).await {
                Err(Reason::Login(LoginError::Moved { address, permanent })) => {
                    (address, permanent)
                }
                Err(Reason::Login(LoginError::Authentication))
                    if self.config.live_credentials.is_some() =>
                {
                    return Err(Reason::Plan);
                }
                end => {
                    if let (Ok(_), Some(next)) = (&end, moved_to) {
                        let mut portals =
                            self.portals.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(place) = portals.get_mut(portal) {
                            *place = next;
                        }
                    }
                    return end;
                }
            };
            let (address, permanent) = moved;
            let Some(next) = redirected(&address).map(|next| in_zone(next, &at)) else {
                return Err(Reason::Redirection { to: address, what: "which is no address" });
            };
            if seen.contains(&next) {
                return Err(Reason::Redirection { to: address, what: "where it sent here from" });
            }
            if seen.len() > HOPS_MAX {
                return Err(Reason::Redirection { to: address, what: "after too many others" });
            }
            tracing::info!(from = %at, to = %next, permanent, "login redirected");
            if permanent && seen.len() == 1 {
                moved_to = Some(next.clone());
            }
            seen.push(next.clone());
            at = next;
        }
    }

    fn portal(&self, portal: usize) -> Portal {
        let portals = self.portals.lock().unwrap_or_else(PoisonError::into_inner);
        portals[portal % portals.len()].clone()
    }

    /// Each session has an ISID of its own, and each login a challenge of its own.
    fn setup_of(&self, lane: usize, limit: Duration) -> Setup {
        let mut setup = Setup::clone(&self.setup);
        setup.isid = isid_of(setup.isid, lane);
        setup.login_timeout = limit;
        if let Some(live) = &self.config.live_credentials {
            setup.chap = Some(live.borrow().clone());
        }
        if let Some((user, secret)) = self.target_proof.clone() {
            let (identifier, challenge) = (rand::random(), rand::random());
            setup.mutual = Some(Mutual { user, secret, identifier, challenge });
        }
        setup
    }
}

/// The ISID of a session: that of the first one with its number mixed into the qualifier.
fn isid_of(mut first: [u8; 6], lane: usize) -> [u8; 6] {
    first[5] ^= narrow::<_, u8>(lane);
    first
}

/// `host[:port][,portal group]`, as a login response has it (RFC 7143, section 13.8).
fn redirected(address: &str) -> Option<Portal> {
    Portal::parse(address.split_once(',').map_or(address, |(portal, _)| portal))
}

/// An address of the link is in the zone of the portal that names it: others do not know this host's zones.
fn in_zone(next: Portal, from: &Portal) -> Portal {
    let is_of_link = next.host.parse().is_ok_and(|host: Ipv6Addr| host.is_unicast_link_local());
    match from.host.split_once('%') {
        Some((_, zone)) if is_of_link => {
            Portal { host: format!("{}%{zone}", next.host), port: next.port }
        }
        Some(_) | None => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_link_is_in_the_zone_of_who_names_it() {
        let portal = |host: &str| Portal { host: host.into(), port: 1 };
        let from = portal("fe80::1%eth0");
        assert_eq!(in_zone(portal("fe80::2"), &from), portal("fe80::2%eth0"));
        assert_eq!(in_zone(portal("fe80::2"), &portal("2001:db8::1")), portal("fe80::2"));
        for other in ["2001:db8::2", "192.0.2.1", "host"] {
            assert_eq!(in_zone(portal(other), &from), portal(other));
        }
    }

    #[test]
    fn redirections_are_read() {
        let portal = |host: &str, port| Some(Portal { host: host.into(), port });
        assert_eq!(redirected("192.0.2.1:3261,1"), portal("192.0.2.1", 3261));
        assert_eq!(redirected("[::1]:3261"), portal("::1", 3261));
        assert_eq!(redirected("host"), portal("host", 3260));
        for bad in ["", ",1", "host:0", "host:x,1"] {
            assert_eq!(redirected(bad), None, "{bad}");
        }
    }

    #[test]
    fn sessions_have_isids_of_their_own() {
        let first = [0x80, 1, 2, 3, 4, 5];
        let all: std::collections::BTreeSet<_> = (0..8).map(|lane| isid_of(first, lane)).collect();
        assert_eq!(all.len(), 8);
        assert!(all.contains(&first));
    }
}
