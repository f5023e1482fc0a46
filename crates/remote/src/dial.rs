//! Logins to one LUN: portals, redirections, and what each login says of this side.

use alloc::{boxed::Box, format, string::String, sync::Arc, vec, vec::Vec};
use core::{net::Ipv6Addr, time::Duration};

use netraid_block::{Pool, Portal, narrow};
use netraid_iscsi_proto::{
    chap::Algorithm,
    initiator::{LoginError, Mutual, Setup},
};

use crate::{
    Reason,
    interface::{Fresh, Settings},
    link::Link,
};

/// Redirections of one login.
const HOPS_MAX: usize = 4;

/// What all logins to one LUN share.
pub(crate) struct Dialer {
    pub(crate) settings: Settings,
    /// Changed by permanent redirections.
    portals: Vec<Portal>,
    pool: Pool,
}

/// One login on its way: to a portal, and to where that redirects.
pub(crate) struct Dial {
    /// Which of this side's sessions it is to be.
    lane: usize,
    portal: usize,
    /// Longest that connecting may take, and again logging in.
    limit: Duration,
    at: Portal,
    seen: Vec<Portal>,
    /// Where the portal has moved to for good; known when somebody lets this side in there.
    moved_to: Option<Portal>,
    /// Only the last of the algorithms is offered.
    offers_last: bool,
    /// Since when the connection is being made, or the login goes on.
    since: Duration,
    link: Option<Box<Link>>,
}

/// A login is sent elsewhere.
pub(crate) struct Redirected {
    pub(crate) from: Portal,
    pub(crate) to: Portal,
    pub(crate) permanent: bool,
}

/// What becomes of a login.
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// It goes on by another connection.
    Connect(Portal),
    /// The same, to where it is redirected, perhaps for good.
    Redirect(Redirected),
    /// The target has let this side in.
    LoggedIn(Box<Link>),
    /// It has failed.
    Failed(Reason),
}

impl Dialer {
    pub(crate) fn new(settings: Settings, pool: Pool) -> Self {
        let portals = settings.portals.clone();
        assert!(!portals.is_empty(), "a disk has a portal");
        Self { settings, portals, pool }
    }

    /// Number of portals.
    pub(crate) const fn portals(&self) -> usize {
        self.portals.len()
    }

    pub(crate) fn portal(&self, portal: usize) -> &Portal {
        &self.portals[portal % self.portals.len()]
    }

    /// Longest that one attempt may take. With several portals none may use up the time that
    /// requests have.
    pub(crate) fn limit(&self) -> Duration {
        let Settings { login_timeout, request_timeout, .. } = &self.settings;
        if self.portals() > 1 { (*login_timeout).min(*request_timeout / 4) } else { *login_timeout }
    }

    /// Begins to log in as session `lane` at a portal: a connection is to be made to [`Dial::at`].
    pub(crate) fn dial(&self, now: Duration, lane: usize, portal: usize) -> Dial {
        let at = self.portal(portal).clone();
        Dial {
            lane,
            portal,
            limit: self.limit(),
            seen: vec![at.clone()],
            at,
            moved_to: None,
            offers_last: false,
            since: now,
            link: None,
        }
    }

    /// Each session has an ISID of its own, and each login a challenge of its own.
    fn setup_of(&self, dial: &Dial, fresh: Fresh) -> Setup {
        let mut setup = self.settings.setup.clone();
        setup.isid = isid_of(setup.isid, dial.lane);
        setup.login_timeout = dial.limit;
        let Fresh { credentials, identifier, challenge } = fresh;
        if self.settings.goes_by_plan {
            setup.chap = credentials;
        }
        if dial.offers_last {
            setup.algorithms = &[Algorithm::Md5];
        }
        if let Some((user, secret)) = self.settings.target_proof.clone() {
            setup.mutual = Some(Mutual { user, secret, identifier, challenge });
        }
        setup
    }

    /// Whether a login offers more than one algorithm.
    fn has_choice(&self) -> bool {
        let Settings { setup, goes_by_plan, .. } = &self.settings;
        (setup.chap.is_some() || *goes_by_plan) && setup.algorithms.len() > 1
    }
}

impl Dial {
    /// Where a connection is made to, or was.
    pub(crate) const fn at(&self) -> &Portal {
        &self.at
    }

    /// Its session, from the connection on.
    pub(crate) fn link(&mut self) -> Option<&mut Link> {
        self.link.as_deref_mut()
    }

    /// The connection is made.
    pub(crate) fn handle_connected(&mut self, now: Duration, dialer: &Dialer, fresh: Fresh) {
        assert!(self.link.is_none(), "a login has one connection");
        let setup = Arc::new(dialer.setup_of(self, fresh));
        self.since = now;
        self.link = Some(Box::new(Link::new(now, setup, dialer.pool.clone())));
    }

    /// Something was received, up to this end.
    pub(crate) fn handle_received(
        &mut self,
        now: Duration,
        dialer: &mut Dialer,
        end: Result<(), Reason>,
    ) -> Step {
        let Some(link) = &mut self.link else { return Step::Wait };
        match link.end_of_input(end) {
            Err(reason) => self.fail(now, dialer, reason),
            Ok(()) if link.is_logged_in() => self.finish(dialer),
            Ok(()) => Step::Wait,
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        match &self.link {
            Some(link) => link.next_timeout(),
            None => Some(self.since + self.limit),
        }
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Duration, dialer: &Dialer) -> Step {
        let end = match &mut self.link {
            Some(link) => link.handle_timeout(now),
            None if now >= self.since + self.limit => Err(Reason::ConnectTimeout(self.limit)),
            None => Ok(()),
        };
        match end {
            Ok(()) => Step::Wait,
            Err(reason) => self.fail(now, dialer, reason),
        }
    }

    fn finish(&mut self, dialer: &mut Dialer) -> Step {
        if let (Some(next), Some(place)) =
            (self.moved_to.take(), dialer.portals.get_mut(self.portal))
        {
            *place = next;
        }
        match self.link.take() {
            Some(link) => Step::LoggedIn(link),
            None => Step::Wait,
        }
    }

    /// What becomes of the login when a connection brought it no further. A target that breaks the login off after it
    /// took SHA-256 is tried again with MD5: tgt gives SHA-256's number to SHA-1.
    fn fail(&mut self, now: Duration, dialer: &Dialer, reason: Reason) -> Step {
        let has_link = self.link.take().is_some();
        let took = now.saturating_sub(self.since);
        self.since = now;
        if matches!(reason, Reason::Lost(_)) && has_link && took >= self.limit {
            return Step::Failed(Reason::Silent(self.limit));
        }
        let Reason::Login(error) = reason else { return Step::Failed(reason) };
        let may_choose = !self.offers_last && dialer.has_choice();
        if matches!(error, LoginError::Refused { .. }) && may_choose {
            self.offers_last = true;
            return Step::Connect(self.at.clone());
        }
        if let LoginError::Moved { address, permanent } = error {
            return self.redirect(address, permanent);
        }
        Step::Failed(match (error, dialer.settings.goes_by_plan) {
            (LoginError::Authentication, true) => Reason::Plan,
            (LoginError::Denied(why), true) => Reason::PlanDenied(why),
            (error, _) => Reason::Login(error),
        })
    }

    /// Follows a redirection (RFC 7143, section 11.13.5), for a bounded number of hops, and never to where it has been.
    fn redirect(&mut self, to: String, permanent: bool) -> Step {
        let refuse = |to, what| Step::Failed(Reason::Redirection { to, what });
        let Some(next) = redirected(&to).map(|next| in_zone(next, &self.at)) else {
            return refuse(to, "which is no address");
        };
        if self.seen.contains(&next) {
            return refuse(to, "where it sent here from");
        }
        if self.seen.len() > HOPS_MAX {
            return refuse(to, "after too many others");
        }
        if permanent && self.seen.len() == 1 {
            self.moved_to = Some(next.clone());
        }
        self.seen.push(next.clone());
        let from = core::mem::replace(&mut self.at, next.clone());
        self.offers_last = false;
        Step::Redirect(Redirected { from, to: next, permanent })
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
