//! Who an agent takes a mediator for.
//!
//! A mediator's id is no secret: it stands in each token. What an agent keeps for a mediator (segments,
//! bookings, keys) is that mediator's because of what nobody else has: its authority's key, by which it is
//! known over TLS, and the signing keys that it shares with this agent alone. Whoever answers with an id
//! that the agent knows has to show one of these ([`Bond::is_same`]), or is somebody else.

use alloc::{collections::BTreeSet, string::String};

use crate::keys::{Key, Ring};

/// What an agent knows a mediator by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bond {
    /// Digests of the public keys of the authorities that are trusted to say who it is; none without TLS.
    pub authority: BTreeSet<[u8; 32]>,
    /// Whether a mediator made that authority for itself: then it vouches for no other mediator.
    pub is_own: bool,
    /// The host at which it is reached, as its URL says.
    pub host: String,
    /// Its keys for this agent.
    pub keys: Ring<Key>,
}

impl Bond {
    /// Whether whoever `said` describes is the mediator that this describes.
    ///
    /// - A signing key in common: nobody else ever had it.
    /// - Or an authority that the mediator is known by has vouched for it. Any of those that were trusted
    ///   may have done so: so each of them has to be known. An authority that may vouch for several
    ///   mediators (a company's) does so by their hosts, and the host has to be the same one.
    ///
    /// Without TLS signing keys alone count.
    #[must_use]
    pub fn is_same(&self, said: &Self) -> bool {
        let shares = |held: &crate::keys::Held<Key>| {
            said.keys.held().iter().any(|other| other.id == held.id && other.key == held.key)
        };
        let vouches = self.is_own || self.host.eq_ignore_ascii_case(&said.host);
        let is_vouched_for =
            !said.authority.is_empty() && said.authority.is_subset(&self.authority);
        self.keys.held().iter().any(shares) || (vouches && is_vouched_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keys::{Held, KeyId, RootKey},
        units::{AgentId, MediatorId, Moment},
    };

    fn ring(secret: u8, numbers: core::ops::RangeInclusive<u32>) -> Ring<Key> {
        let mut roots = Ring::default();
        for id in numbers {
            let bytes = [secret ^ u8::try_from(id).unwrap(); 32];
            let (id, key) = (KeyId(id), RootKey::new(&bytes));
            roots.add(Held { id, from: Moment(0), until: Moment(9), key }).unwrap();
        }
        roots.of_agent(MediatorId([1; 16]), AgentId([2; 16]))
    }

    fn bond(authority: &[u8], is_own: bool, host: &str, keys: Ring<Key>) -> Bond {
        let authority = authority.iter().map(|byte| [*byte; 32]).collect();
        Bond { authority, is_own, host: host.into(), keys }
    }

    #[test]
    fn a_mediator_with_the_id_of_another_is_not_that_one() {
        let known = bond(&[1], true, "a", ring(64, 1..=3));
        assert!(!known.is_same(&bond(&[2], true, "a", ring(128, 1..=3))));
        // No authority and no keys prove nothing, on neither side.
        assert!(!known.is_same(&bond(&[], false, "a", Ring::default())));
        let bare = bond(&[], false, "a", ring(64, 1..=1));
        assert!(!bare.is_same(&bond(&[], false, "a", ring(128, 1..=1))));
        assert!(!Bond::default().is_same(&Bond::default()));
        // The same bytes under another number are another key.
        assert!(!bare.is_same(&bond(&[], false, "a", ring(64 ^ 3, 2..=2))));
    }

    #[test]
    fn an_authority_that_is_trusted_beside_the_known_one_does_not_vouch() {
        let known = bond(&[1], true, "a", ring(64, 1..=3));
        assert!(!known.is_same(&bond(&[1, 5], true, "a", ring(128, 1..=3))));
        // By keys it is known whatever is trusted.
        assert!(known.is_same(&bond(&[1, 5], true, "a", ring(64, 3..=5))));
    }

    #[test]
    fn a_mediator_is_itself_after_it_moved_and_after_its_keys_changed() {
        let known = bond(&[1], true, "a", ring(64, 1..=3));
        assert!(known.is_same(&bond(&[1], true, "b", ring(64, 7..=9))));
        assert!(known.is_same(&bond(&[2], true, "b", ring(64, 3..=5))));
        let two = bond(&[1, 5], true, "a", ring(64, 1..=3));
        assert!(two.is_same(&bond(&[5], true, "b", ring(64, 7..=9))));
        assert!(bond(&[], false, "a", ring(64, 1..=3)).is_same(&bond(
            &[],
            false,
            "a",
            ring(64, 2..=4)
        )));
    }

    #[test]
    fn an_authority_of_several_mediators_vouches_by_host() {
        let known = bond(&[1], false, "a.example", ring(64, 1..=3));
        assert!(!known.is_same(&bond(&[1], false, "b.example", ring(128, 1..=3))));
        assert!(known.is_same(&bond(&[1], false, "A.example", ring(64, 7..=9))));
    }
}
