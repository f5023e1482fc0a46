//! What befalls the array beside something else: a second thing at a host that is in trouble, or in the way of what comes of
//! it.
//!
//! Invariant: no second member is impaired by it.

use core::time::Duration;

use netraid_raid::member::MemberIndex;

use super::{Case, Happening, Phase, World, faults::Trouble};
use crate::way::plan::Fall;

impl World {
    pub(super) fn plan_later(&mut self, within: Duration, happening: Happening) {
        let within: u64 = netraid_block::narrow(within.as_millis());
        let wait = Duration::from_millis(self.fault_dice.below(within));
        self.net.put_in(wait, happening);
    }

    fn straggles(&self, host: usize) -> bool {
        matches!(self.hosts[host].trouble, Some((Trouble::Straggling, _)))
    }

    /// Sessions are lost whose requests straggle.
    pub(super) fn cut_beside(&mut self, host: usize) {
        if self.phase == Phase::Lives && self.straggles(host) {
            self.count(Case::CutBesideStragglers);
            self.cut(host);
        }
    }

    /// A disk is replaced at which requests straggle.
    pub(super) fn replace_beside(&mut self, host: usize) {
        let member = self.places.iter().position(|place| *place == host);
        let is_fit = self.phase == Phase::Lives && self.straggles(host) && self.replacing.is_none();
        if let Some(member) = member.filter(|_| is_fit) {
            self.count(Case::ReplacedBesideStragglers);
            self.replace_by_spare(host, member);
        }
    }

    /// Another machine takes the array over from an engine that has lost a member.
    pub(super) fn push_aside_degraded(&mut self) {
        if self.phase == Phase::Lives
            && self.plan.falls.contains(&Fall::PushedAside)
            && self.is_degraded()
        {
            self.count(Case::PushedAsideDegraded);
            self.push_aside();
        }
    }

    /// A member that has replaced another one leaves by command, and the other one is offered in its place.
    pub(super) fn offer(&mut self, member: usize) {
        let (host, spare) = (self.places[member], self.spare);
        let others = self.impaired() - usize::from(self.hosts[host].is_impaired);
        let are_well = [host, spare].iter().all(|host| self.hosts[*host].trouble.is_none());
        let is_fit = self.phase == Phase::Lives && self.replacing.is_none() && are_well;
        let may_be = is_fit && !self.serving_stands_still();
        if !may_be || others >= self.tolerance() || self.may_leave_one_out() {
            return;
        }
        self.fail_by_order(host, member);
        let Some(at) = self.serving.and_then(|id| self.position(id)) else { return };
        self.offer_replaced(at, MemberIndex(netraid_block::narrow(member)));
    }

    /// The disk loses its cache, and its sessions go on, but for those that are lost then.
    pub(super) fn reset(&mut self, host: usize) -> Duration {
        if self.net.reset_disk(self.hosts[host].id) {
            self.count(Case::Reset);
            (self.hosts[host].lost_power, self.hosts[host].must_be_noticed) = (true, true);
            if self.fault_dice.one_in(3) {
                // What is told by then comes: an attention whose answer is lost with its connection is told to nobody.
                self.net.drop_sessions(self.hosts[host].id);
            }
        }
        // Whoever has it in sync by then may not have heard of it.
        self.trouble(host, Trouble::Settling, Duration::from_millis(50))
    }
}
