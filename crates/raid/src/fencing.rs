//! Who is fenced out of a member: the keys of engines' persistent reservations (SPC-4, section 5.13), and whose
//! registrations may be removed.
//!
//! A key says whose lock its engine holds, by a fingerprint of machine, array and lock, so that the engine after it, which
//! has the same lock, knows that it is dead. Who is removed without that is remembered in the keys that follow.
//!
//! Invariant: nobody's registration is removed who may be alive, but by an administrator's word.
//!
//! What is asked of members, and in which order, is in [`steps`].

pub mod steps;

use alloc::collections::BTreeSet;
use core::num::NonZeroU64;

use crate::{
    label::{Holder, Label, Uuid},
    volume::Expect,
};

/// The first two bytes of an engine's key.
const TAG: u64 = 0x4e52 << 48;
const TAG_MASK: u64 = 0xffff << 48;
/// What follows: whose lock it holds, then what is random, and these two.
const LOCK_MASK: u64 = 0x00ff_ffff << 24;
const RANDOM_MASK: u64 = 0x00ff_fffc;
/// Somebody was removed from this member who may be alive.
const WARY: u64 = 0b10;
/// An engine's, which lives or has died. Without it: [`VACANT`].
const HELD: u64 = 0b01;
/// Neither this nor [`WARY`]: a reader's, which writes nothing, and which any engine that writes may remove.
const KIND_MASK: u64 = WARY | HELD;
/// Which keys are readers': a mask, and what such a key shows under it.
pub const READER_KEYS: (u64, u64) = (TAG_MASK | KIND_MASK, TAG);
/// Nobody has the array open, and only who takes this key's place may write.
pub const VACANT: NonZeroU64 = NonZeroU64::new(TAG | WARY).unwrap();

/// Keys of a silent engine that are remembered: one for each run of which a registration is left.
pub const SILENT_KEYS_MAX: usize = 8;

/// Whose registrations may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removes {
    /// Those of engines that held this very lock: they are dead.
    Own,
    /// Those, and those of holders (see [`key_of_holder`]) that are proven to be dead: of the label that decides, and
    /// of the member's own.
    Holders([Option<u64>; 2]),
    /// Those, and those of an engine that was found silent: it may be alive, and what it has under way must end before.
    Silent {
        /// Of holders that are proven to be dead.
        proven: [Option<u64>; 2],
        /// The keys that were registered by the silent one while it was judged, as [`keys_of_silent`] tells them.
        keys: [u64; SILENT_KEYS_MAX],
    },
    /// Those of all engines: somebody says that they are dead.
    Engines,
    /// Everybody's, by an administrator's word.
    All,
}

/// This engine's key, and what it may do to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    key: NonZeroU64,
    removes: Removes,
    /// This machine's former identity, by the label that decided.
    former: Option<Uuid>,
}

impl Removes {
    /// For a device that is to take a member's place by command, or is back: `is_holder` says that this engine surely
    /// has the array still.
    #[must_use]
    pub const fn of(expect: Expect, is_holder: bool) -> Self {
        match expect {
            // This engine has the array: whoever else had it is dead.
            Expect::Former if is_holder => Self::Engines,
            Expect::Unused | Expect::Former => Self::Own,
            Expect::Anything => Self::All,
        }
    }
}

impl Fence {
    /// A key for `this` engine, of the array that is opened by the label `truth`; new by what is random in it.
    #[must_use]
    pub fn new(truth: &Label, this: &Holder, removes: Removes, random: u64) -> Self {
        let own = key_of_holder(&truth.array_uuid, this);
        let key = NonZeroU64::MIN | (own | HELD | random & RANDOM_MASK);
        Self { key, removes, former: former_machine(&truth.holder, this) }
    }

    /// A key for `this` reader of the array with the label `truth`, by which it is told of who opens the array for writing;
    /// `removes` says which engines' keys it may read beside, and it removes none.
    #[must_use]
    pub fn of_reader(truth: &Label, this: &Holder, removes: Removes, random: u64) -> Self {
        let key = key_of_holder(&truth.array_uuid, this) | random & RANDOM_MASK;
        let Some(key) = NonZeroU64::new(key) else { unreachable!("a key has a tag: {key:#018x}") };
        Self { key, removes, former: None }
    }

    /// By an administrator's word, for who has no array.
    #[must_use]
    pub fn against_all(random: u64) -> Self {
        let key = NonZeroU64::MIN | (TAG | HELD | random & RANDOM_MASK);
        Self { key, removes: Removes::All, former: None }
    }

    /// What this engine registers with at a member: it tells whether somebody who may be alive was removed there.
    #[must_use]
    pub fn key(self, is_wary: bool) -> NonZeroU64 {
        if is_wary { self.key | WARY } else { self.key }
    }

    /// The identities that this machine had when holders made sessions to a member, whose engines are dead as
    /// `this` engine's lock proves: the holder in the label that decided, and that in the member's own label. A
    /// member that was away knows an earlier engine than the others.
    #[must_use]
    pub fn former_machines(self, own: Option<&Label>, this: &Holder) -> BTreeSet<Uuid> {
        let own = own.and_then(|label| former_machine(&label.holder, this));
        own.into_iter().chain(self.former).collect()
    }

    /// The same key, with another say over others.
    #[must_use]
    pub const fn with(self, removes: Removes) -> Self {
        Self { removes, ..self }
    }

    /// Whether a key tells that somebody was removed who may be alive.
    #[must_use]
    pub const fn tells_of_removed(key: NonZeroU64) -> bool {
        key.get() & WARY != 0
    }

    /// What an engine with this key is registered with at one member or another: some of its keys tell that somebody was
    /// removed there.
    #[must_use]
    pub const fn keys_of(key: u64) -> [u64; 2] {
        [key & !WARY, key | WARY]
    }

    /// Whether the registrations of who has this key may be removed.
    #[must_use]
    pub fn may_remove(self, other: u64) -> bool {
        match self.removes {
            _ if other == VACANT.get() || is_reader(other) || self.is_dead(other) => true,
            Removes::Own | Removes::Holders(_) => false,
            Removes::Silent { keys, .. } => is_engine(other) && keys.contains(&(other & !WARY)),
            Removes::Engines => is_engine(other),
            Removes::All => true,
        }
    }

    /// Whether a member is of use only where PREEMPT AND ABORT ends what who has this key has under way.
    #[must_use]
    pub fn must_abort(self, other: u64) -> bool {
        matches!(self.removes, Removes::Silent { .. }) && has_engine(&[other])
    }

    /// Whether it is proven that who has this key is dead.
    fn is_dead(self, other: u64) -> bool {
        let alike = |key: u64| is_of(key, other);
        let holders = match self.removes {
            Removes::Holders(holders) | Removes::Silent { proven: holders, .. } => holders,
            Removes::Own | Removes::Engines | Removes::All => [None; 2],
        };
        let is_holder = holders.into_iter().flatten().any(alike);
        other != VACANT.get() && (alike(self.key.get()) || is_holder)
    }

    /// Whether somebody may live who was removed from a member with these keys, or now will be.
    #[must_use]
    pub fn is_wary(self, others: &BTreeSet<u64>) -> bool {
        others.iter().any(|other| {
            let told = is_engine(*other) && other & WARY != 0;
            told || !self.is_dead(*other) && !is_reader(*other)
        })
    }
}

/// Whether both are keys of engines that have or had the same lock.
const fn is_of(key: u64, other: u64) -> bool {
    (key ^ other) & (TAG_MASK | LOCK_MASK) == 0
}

/// Whether this is the key of an engine, of whichever machine and array.
#[must_use]
pub const fn is_engine(key: u64) -> bool {
    key & TAG_MASK == TAG
}

/// Whether this is the key of somebody who only reads.
#[must_use]
pub const fn is_reader(key: u64) -> bool {
    key & READER_KEYS.0 == READER_KEYS.1
}

/// Whether an engine that may have its array open for writing is among those with these keys.
#[must_use]
pub fn has_engine(keys: &[u64]) -> bool {
    keys.iter().any(|key| is_engine(*key) && *key != VACANT.get() && !is_reader(*key))
}

/// What the keys of engines with this fingerprint have in common.
const fn key_of(fingerprint: u64) -> u64 {
    TAG | (fingerprint << 24) & LOCK_MASK
}

/// What the keys of this holder's engines of an array have in common.
#[must_use]
pub fn key_of_holder(array: &Uuid, holder: &Holder) -> u64 {
    let (dev, inode) = holder.lock;
    let place = dev.to_be_bytes().into_iter().chain(inode.to_be_bytes());
    key_of(hash(holder.machine_id.into_iter().chain(*array).chain(place)))
}

/// Those of `keys` that are of this holder's engines, without the mark that somebody was removed; so many as are remembered,
/// the rest is zero.
#[must_use]
pub fn keys_of_silent<'a>(
    array: &Uuid,
    holder: &Holder,
    keys: impl Iterator<Item = &'a u64>,
) -> [u64; SILENT_KEYS_MAX] {
    let own = key_of_holder(array, holder);
    let its = keys.filter(|key| has_engine(&[**key]) && is_of(own, **key)).map(|key| key & !WARY);
    let its: BTreeSet<u64> = its.collect();
    let mut found = [0; SILENT_KEYS_MAX];
    found.iter_mut().zip(its).for_each(|(place, key)| *place = key);
    found
}

/// [`key_of_holder`] of the holder in a label, where `this` engine's lock proves that it is dead.
#[must_use]
pub fn key_of_dead_holder(label: &Label, this: &Holder) -> Option<u64> {
    let Label { array_uuid, holder, .. } = label;
    outlives(this, holder).then(|| key_of_holder(array_uuid, holder))
}

/// The identity of this machine by which `holder` made its sessions at the members, where that is not the
/// machine's identity now, and `this` engine's lock proves that the engine of `holder` is dead.
fn former_machine(holder: &Holder, this: &Holder) -> Option<Uuid> {
    let is_other = holder.machine_id != this.machine_id;
    (is_other && outlives(this, holder)).then_some(holder.machine_id)
}

/// Whether `this` engine, which has its lock, proves by its own holder record that the engine of `holder` is dead.
#[must_use]
pub fn outlives(this: &Holder, holder: &Holder) -> bool {
    let same_name = holder.name == truncated(&this.name);
    let is_same = |held: &Uuid, ours: &Uuid| *held != Uuid::default() && held == ours;
    let same_machine = is_same(&holder.machine_id, &this.machine_id);
    match holder.boot_id == this.boot_id {
        // One kernel is one machine, also where a network device has come meanwhile.
        true => {
            let same_kernel = same_machine || is_same(&holder.boot_id, &this.boot_id);
            same_name && same_kernel && holder.lock == this.lock
        }
        false => same_name && same_machine,
    }
}

/// A name as labels keep it.
fn truncated(name: &str) -> &str {
    let mut end = name.len().min(31);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// FNV-1a: it must differ between machines, arrays and places, not be hard to guess.
pub fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The ISID of a machine's sessions for an array to a member, of which `place` tells it from others: of the random
/// kind, but the same each time, so that a new session ends those of a dead predecessor (RFC 7143, section 6.3.5).
#[must_use]
pub fn engine_isid(machine: Uuid, array: Uuid, place: impl IntoIterator<Item = u8>) -> [u8; 6] {
    let hash = hash(machine.into_iter().chain(array).chain(place));
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0x80, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn only_who_is_known_to_be_dead_is_removed() {
        let key = NonZeroU64::new(0x4e52_aaaa_aa01_0201).unwrap();
        let (same_lock, engine, stranger) =
            (0x4e52_aaaa_aa99_9999, 0x4e52_bbbb_bb99_9999, 0x1111_aaaa_aa99_9999);
        for (removes, expected) in [
            (Removes::Own, [true, false, false]),
            (Removes::Holders([Some(key_of(0xbb_bbbb)), None]), [true, true, false]),
            (Removes::Holders([None, Some(key_of(0xbb_bbbb))]), [true, true, false]),
            (Removes::Holders([Some(key_of(0xcc_cccc)), None]), [true, false, false]),
            (silent(engine), [true, true, false]),
            // Another run of the same engine was not judged.
            (silent(engine ^ 0x100), [true, false, false]),
            (silent(stranger), [true, false, false]),
            (Removes::Engines, [true, true, false]),
            (Removes::All, [true; 3]),
        ] {
            let fence = Fence { key, removes, former: None };
            let found = [same_lock, engine, stranger].map(|other| fence.may_remove(other));
            assert_eq!(found, expected, "{removes:?}");
            assert!(fence.may_remove(VACANT.get()));
        }
    }

    fn silent(key: u64) -> Removes {
        let mut keys = [0; SILENT_KEYS_MAX];
        keys[3] = key & !WARY;
        Removes::Silent { proven: [None; 2], keys }
    }

    #[test]
    fn the_keys_of_a_silent_engine_are_those_of_its_lock_and_as_many_as_are_remembered() {
        let its = holder(2, 2, 7);
        let own = key_of_holder(&[9; 16], &its);
        let found = |keys: &[u64]| keys_of_silent(&[9; 16], &its, keys.iter());
        let engine = own | HELD | 0x100;
        let none = [0; SILENT_KEYS_MAX];
        assert_eq!(found(&[0x1234, own, engine ^ 1 << 40, VACANT.get()]), none);
        assert_eq!(found(&[engine | WARY, engine])[..2], [engine, 0]);
        let many: Vec<u64> = (1..100).map(|run| engine + (run << 8)).collect();
        assert_eq!(found(&many)[..], many[..SILENT_KEYS_MAX]);
    }

    #[test]
    fn who_only_reads_keeps_nobody_away_and_is_no_writer() {
        let label = crate::label::tests::sample(crate::geometry::Level::Raid5, 3);
        let reader = Fence::of_reader(&label, &holder(1, 1, 0), Removes::Own, u64::MAX).key(false);
        assert!(is_reader(reader.get()) && !has_engine(&[reader.get(), VACANT.get()]));
        let writer = Fence::new(&label, &holder(2, 2, 7), Removes::Own, 0);
        assert!(writer.may_remove(reader.get()) && !writer.is_wary(&[reader.get()].into()));
        assert!(!is_reader(writer.key(false).get()) && !is_reader(writer.key(true).get()));
        assert!(!is_reader(VACANT.get()));
    }

    #[test]
    fn who_may_live_is_remembered_from_key_to_key() {
        let key = NonZeroU64::new(0x4e52_aaaa_aa01_0201).unwrap();
        let fence = Fence { key, removes: Removes::Engines, former: None };
        let is_wary = |other| fence.is_wary(&[other].into());
        assert!(!fence.is_wary(&BTreeSet::new()));
        assert!(!is_wary(0x4e52_aaaa_aa99_9999), "it held this lock");
        assert!(is_wary(0x4e52_aaaa_aa99_9999 | WARY), "and had removed somebody");
        assert!(is_wary(0x4e52_bbbb_bb99_9999) && is_wary(VACANT.get()));
        // Silence proves nothing.
        let silent = silent(0x4e52_bbbb_bb99_9999);
        assert!(fence.with(silent).is_wary(&[0x4e52_bbbb_bb99_9999].into()));
        let proven = Removes::Holders([Some(key_of(0xbb_bbbb)), None]);
        assert!(!fence.with(proven).is_wary(&[0x4e52_bbbb_bb99_9999].into()));
    }

    fn holder(machine: u8, boot: u8, lock: u64) -> Holder {
        Holder {
            engine_id: [0; 16],
            machine_id: [machine; 16],
            boot_id: [boot; 16],
            name: "host".into(),
            lock: (1, lock),
        }
    }

    #[test]
    fn a_holder_is_dead_whose_lock_is_ours_or_whose_machine_was_booted_anew() {
        let this = holder(1, 1, 7);
        assert!(outlives(&this, &holder(1, 1, 7)));
        assert!(!outlives(&this, &holder(1, 1, 8)), "another mount namespace's");
        assert!(outlives(&this, &holder(1, 2, 8)));
        assert!(!outlives(&this, &holder(2, 2, 7)));
        assert!(!outlives(&holder(0, 0, 7), &holder(0, 0, 7)), "nothing is known of it");
        assert!(!outlives(&holder(1, 0, 7), &holder(1, 0, 8)), "nor of its boot");
        let renamed = Holder { name: "other".into(), ..holder(1, 2, 7) };
        assert!(!outlives(&this, &renamed));
        let changed = holder(3, 1, 7);
        assert!(outlives(&this, &changed), "the same kernel, with another network device");
    }
}
