//! Text requests after the login (RFC 7143, sections 6.4 and 11.10, appendix C): `SendTargets`, and
//! the one key that may still change.

use alloc::{
    string::{String, ToString as _},
    vec::Vec,
};

use core::net::SocketAddr;

use super::Connection;
use crate::{
    machine::Fatal,
    negotiation::{Negotiation, SessionType},
    pdu::{Bhs, NO_TAG, RejectReason, TextRequest, TextResponse},
    text::{self, Collector},
};

/// A text exchange that several requests or responses carry; one at a time.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    collector: Collector,
    /// What is left of a long answer.
    left: Vec<u8>,
    /// What the next request of the exchange carries; none when none goes on.
    tags: Option<(u32, u32)>,
}

impl Connection {
    pub(super) fn handle_text(&mut self, bhs: &Bhs, data: &[u8]) -> Result<(), Fatal> {
        let request = TextRequest::parse(bhs);
        if !self.window.admits(bhs)? {
            return Ok(());
        }
        let known = self.exchange.tags.take() == Some((request.itt, request.ttt));
        if request.ttt == NO_TAG {
            self.exchange = Exchange::default();
        }
        // A text that goes on cannot be the last of its exchange; an answer that goes on is only
        // asked for.
        let waits = !self.exchange.left.is_empty();
        let wrong = (request.more && request.last)
            || (request.ttt != NO_TAG && !known)
            || (waits && (request.more || !data.is_empty()));
        if wrong || request.itt == NO_TAG {
            self.exchange = Exchange::default();
            self.reject_request(bhs, RejectReason::Protocol);
            return Ok(());
        }
        if !waits {
            self.exchange.collector.add(data)?;
            if request.more {
                self.window.take(bhs);
                self.answer_text(request.itt, Vec::new(), false, false);
                return Ok(());
            }
            let text = self.exchange.collector.take();
            let pairs = text::parse(&text)?;
            if repeats(&pairs) {
                self.reject_request(bhs, RejectReason::Protocol);
                return Ok(());
            }
            self.exchange.left = self.take_pairs(&pairs);
        }
        self.window.take(bhs);
        // Clamped: whatever is there is shorter.
        let limit = usize::try_from(self.params.max_send_len).unwrap_or(usize::MAX);
        let rest = self.exchange.left.split_off(self.exchange.left.len().min(limit));
        let part = core::mem::replace(&mut self.exchange.left, rest);
        let more = !self.exchange.left.is_empty();
        self.answer_text(request.itt, part, request.last && !more, more);
        Ok(())
    }

    fn answer_text(&mut self, itt: u32, part: Vec<u8>, last: bool, more: bool) {
        let ttt = if last { NO_TAG } else { self.take_tag() };
        self.exchange.tags = (!last).then_some((itt, ttt));
        self.push_control(TextResponse { last, more, itt, ttt }.encode(), part, true);
    }

    fn take_pairs(&mut self, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut late = Negotiation::resume(self.params.clone());
        for (key, value) in pairs {
            if *key == "SendTargets" {
                self.send_targets(value, &mut out);
            } else if late.answer_late(key, value, &mut out) {
                self.params.max_send_len = late.params().max_send_len;
            }
        }
        out
    }

    /// Names the target and where it is: first the portal that was asked (RFC 7143, appendix C).
    fn send_targets(&self, wanted: &str, out: &mut Vec<u8>) {
        let found = match (wanted, self.session) {
            ("All", SessionType::Discovery) | ("", SessionType::Normal) => true,
            ("All" | "", _) => return text::push(out, "SendTargets", "Reject"),
            (name, _) => name.eq_ignore_ascii_case(&self.setup.name),
        };
        if !found {
            return;
        }
        text::push(out, "TargetName", &self.setup.name);
        let asked = self.link.portal.to_string();
        // Whoever came from another host has no use for this one's loopback addresses.
        let is_local = |portal: &str| {
            portal.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
        };
        // Nor for an address of this host's link, unless it came by one.
        let is_of_link = |portal: &str| match portal.parse() {
            Ok(SocketAddr::V6(address)) => address.ip().is_unicast_link_local(),
            Ok(SocketAddr::V4(_)) | Err(_) => false,
        };
        let (from_here, from_link) = (is_local(&asked), is_of_link(&asked));
        let is_of_use = |portal: &&String| {
            **portal != asked
                && (from_here || !is_local(portal))
                && (from_link || !is_of_link(portal))
        };
        let others = self.setup.portals.iter().filter(is_of_use);
        for portal in core::iter::once(&asked).chain(others) {
            let address: String = alloc::format!("{portal},1");
            text::push(out, "TargetAddress", &address);
        }
    }
}

/// Whether a key comes twice.
fn repeats(pairs: &[(&str, &str)]) -> bool {
    pairs.iter().enumerate().any(|(at, (key, _))| pairs[..at].iter().any(|(old, _)| old == key))
}
