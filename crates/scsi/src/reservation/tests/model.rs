//! The machine against a model, and against any bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The rules once more, as simply as they can be said.
#[derive(Debug, Clone, Default)]
struct Model {
    keys: BTreeMap<u8, u64>,
    /// Type, and holder unless it is for all.
    reserved: Option<(u8, Option<u8>)>,
}

impl Model {
    fn is_holder(&self, nexus: u8) -> bool {
        match self.reserved {
            Some((_, Some(holder))) => holder == nexus,
            Some((_, None)) => self.keys.contains_key(&nexus),
            None => false,
        }
    }

    fn drop(&mut self, nexus: u8) {
        self.keys.remove(&nexus);
        let ends = match self.reserved {
            Some((_, Some(holder))) => holder == nexus,
            Some((_, None)) => self.keys.is_empty(),
            None => false,
        };
        if ends {
            self.reserved = None;
        }
    }

    fn take(&mut self, nexus: u8, kind: u8) {
        self.reserved = Some((kind, (kind < WEAR).then_some(nexus)));
    }

    fn out(&mut self, nexus: u8, action: u8, kind: u8, key: u64, other: u64) -> End {
        let own = self.keys.get(&nexus).copied();
        if action == REGISTER && own.unwrap_or(0) != key {
            return End::Conflict;
        }
        if action == REGISTER || action == REGISTER_AND_IGNORE {
            if other == 0 {
                self.drop(nexus);
            } else {
                self.keys.insert(nexus, other);
            }
            return End::Good;
        }
        if own != Some(key) {
            return End::Conflict;
        }
        match action {
            RESERVE => match self.reserved {
                None => self.take(nexus, kind),
                Some((held, _)) if held == kind && self.is_holder(nexus) => {}
                Some(_) => return End::Conflict,
            },
            RELEASE if self.is_holder(nexus) => {
                if self.reserved.is_some_and(|(held, _)| held != kind) {
                    return End::Sense(SenseKey::IllegalRequest, Additional::INVALID_RELEASE);
                }
                self.reserved = None;
            }
            CLEAR => *self = Self::default(),
            PREEMPT | PREEMPT_AND_ABORT => return self.preempt(nexus, kind, other),
            _ => {}
        }
        End::Good
    }

    fn preempt(&mut self, nexus: u8, kind: u8, other: u64) -> End {
        let for_all = matches!(self.reserved, Some((_, None)));
        if other == 0 && !for_all {
            return INVALID_LIST;
        }
        let hit: Vec<u8> = self
            .keys
            .iter()
            .filter(|(_, key)| other == 0 || **key == other)
            .map(|(n, _)| *n)
            .collect();
        if hit.is_empty() {
            return End::Conflict;
        }
        let takes = match self.reserved {
            Some((_, Some(holder))) => self.keys[&holder] == other,
            Some((_, None)) => other == 0,
            None => false,
        };
        for one in hit {
            if !takes || one != nexus {
                self.drop(one);
            }
        }
        if takes {
            self.take(nexus, kind);
        }
        End::Good
    }

    fn may(&self, nexus: u8, write: bool) -> bool {
        match self.reserved {
            None => true,
            Some((WE | WERO | WEAR, _)) if !write => true,
            Some((WE | EA, _)) => self.is_holder(nexus),
            Some(_) => self.keys.contains_key(&nexus),
        }
    }
}

proptest! {
    #[test]
    fn the_machine_does_as_the_model(
        steps in proptest::collection::vec((1..=3_u8, 0..=6_u8, 0..6_usize, 0..4_u64, 0..4_u64, any::<bool>()), 1..60)
    ) {
        let (mut bed, mut model) = (Bed::new(), Model::default());
        for (nexus, action, kind, key, other, right_key) in steps {
            let kind = TYPES[kind];
            // Mostly the right key, so that states are reached.
            let key = if right_key { model.keys.get(&nexus).copied().unwrap_or(0) } else { key };
            let wanted = model.out(nexus, action, kind, key, other);
            prop_assert_eq!(bed.out(nexus, action, kind, key, other), wanted);
            for nexus in [A, B, C] {
                bed.attentions(nexus);
            }
            let mut keys = bed.keys();
            keys.sort_unstable();
            let mut wanted: Vec<_> = model.keys.values().copied().collect();
            wanted.sort_unstable();
            prop_assert_eq!(keys, wanted);
            let wanted = model.reserved.map(|(kind, holder)| (holder.map_or(0, |h| model.keys[&h]), kind));
            prop_assert_eq!(bed.reservation(), wanted);
            for nexus in [A, B, C] {
                prop_assert_eq!(bed.may_read(nexus), model.may(nexus, false));
                prop_assert_eq!(bed.may_write(nexus), model.may(nexus, true));
            }
        }
    }

    #[test]
    fn any_parameter_list_is_answered(
        action in 0..=7_u8,
        kind in any::<u8>(),
        mut bytes in proptest::collection::vec(any::<u8>(), 24..200),
        fit in any::<bool>(),
        registered in any::<bool>(),
    ) {
        let mut bed = Bed::new();
        if registered {
            bed.register(A, 1);
            bed.reserve(A, 1, WE);
            bytes[..8].copy_from_slice(&1_u64.to_be_bytes());
        }
        if fit {
            let at = if action == REGISTER_AND_MOVE { 20 } else { 24 };
            let len = u32::try_from(bytes.len().saturating_sub(at + 4)).unwrap();
            if let Some(place) = bytes.get_mut(at..at + 4) {
                place.copy_from_slice(&len.to_be_bytes());
            }
        }
        bed.out_list(A, action, kind, &bytes);
        bed.input(3);
    }

    #[test]
    fn any_stored_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Reservations::decode(&bytes);
        let mut bytes = bytes;
        bytes.splice(0..0, *b"NRPRSRV\n\x01\x00");
        prop_assert!(Reservations::decode(&bytes).is_err());
    }
}
