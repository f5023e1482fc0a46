//! An engine that was found silent by who stands by for it, and what it was judged by: the opening looks at all of that once more
//! before anybody is removed.
//!
//! Invariants: nobody is removed before every member that is to be used has answered, can shut the engine out, and shows what it
//! showed when the engine was judged; and no array is opened that the engine could go on with where it is not shut out.

use alloc::{collections::BTreeSet, vec::Vec};

use super::{OpenError, Opening, own::LeftOut};
use crate::{
    access::{Ask, Failure},
    assemble::AssembleError,
    fencing::{Fence, SILENT_KEYS_MAX, outlives},
    heartbeat::Heartbeat,
    label::{Closure, Label, Uuid},
    member::{MEMBERS_MAX, MemberIndex, MemberSet},
    regions::{HEARTBEAT_OFFSETS, PAGE_LEN},
};

/// An engine that has written nothing for so long that it may be dead; nothing proves that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silent {
    /// The engine's identity, as in labels.
    pub engine: Uuid,
    /// The generation of its labels.
    pub generation: u64,
    /// The epoch of the last label.
    pub epoch: u64,
    /// The keys that it was registered with while it was judged, by [`crate::fencing::keys_of_silent`]. No other key of its lock is
    /// removed: an engine that was started since has another one.
    pub keys: [u64; SILENT_KEYS_MAX],
    /// By member: [`Heartbeat::digest`] of what was read; zero where nothing was.
    pub heartbeats: [u64; MEMBERS_MAX],
}

impl Silent {
    /// Whether this is the label that the silent engine wrote last.
    #[must_use]
    pub fn wrote(&self, label: &Label) -> bool {
        let Self { engine, generation, epoch, .. } = *self;
        (engine, generation, epoch) == (label.holder.engine_id, label.generation, label.epoch)
    }
}

impl<E: Failure> Opening<E> {
    /// The engine to be taken over by silence alone; none where another one has the array, nobody has, or a lock proves that it is dead.
    pub(super) fn silent(&self, truth: &Label) -> Option<Silent> {
        let is_judged = |silent: &Silent| truth.closure == Closure::Open && silent.wrote(truth);
        let is_proven = outlives(&self.this, &truth.holder);
        self.options.silent.filter(|silent| is_judged(silent) && !is_proven)
    }

    /// Tries out whether the silent engine can be shut out of the devices at the places in `used`, and is silent still; those that
    /// fail at it. Nobody is removed.
    ///
    /// # Errors
    /// When the engine is alive, somebody else is registered, or the members that are not used leave it enough to go on.
    pub(super) async fn try_out(
        &self,
        (silent, truth): (&Silent, &Label),
        used: &[(MemberIndex, usize)],
        fence: Fence,
    ) -> Result<LeftOut<E>, OpenError<E>> {
        let places: Vec<usize> = used.iter().map(|(_, at)| *at).collect();
        let (mut failed, mut refused) = (Vec::new(), None);
        for (at, answer) in self.each(places, |_| Ask::TryOut(fence)).await {
            match answer.fenced() {
                Ok(_) => {}
                Err(error) if super::own::is_of_no_use(&error) => {
                    failed.push((at, OpenError::NotFenced(at, error)));
                }
                Err(error) => refused = refused.or(Some(OpenError::NotFenced(at, error))),
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        if !failed.is_empty() {
            return Ok(failed);
        }
        self.check_shut_out(truth, used.iter().map(|(member, _)| *member).collect())?;
        self.find_alive((silent, truth), used).await
    }

    /// Refuses an array whose silent engine could go on without the members in `shut_out`.
    pub(super) fn check_shut_out(
        &self,
        truth: &Label,
        shut_out: MemberSet,
    ) -> Result<(), OpenError<E>> {
        let members = truth.in_sync().without(shut_out);
        if self.silent(truth).is_none() || !truth.geometry.can_serve_from(members) {
            return Ok(());
        }
        let (name, holder) = (truth.name.clone(), truth.holder.name.clone());
        Err(OpenError::NotShutOut { name, holder, members })
    }

    /// Reads heartbeats again; the devices that fail at it.
    ///
    /// # Errors
    /// When one is another than was judged.
    async fn find_alive(
        &self,
        (silent, truth): (&Silent, &Label),
        used: &[(MemberIndex, usize)],
    ) -> Result<LeftOut<E>, OpenError<E>> {
        // Who is not in sync is told no heartbeats.
        let in_sync = truth.in_sync();
        let judged = used.iter().filter(|(member, _)| in_sync.contains(*member));
        let judged: Vec<(MemberIndex, usize)> = judged.copied().collect();
        let mut slots: Vec<Vec<_>> = judged.iter().map(|_| Vec::new()).collect();
        let mut failed = Vec::new();
        for offset in HEARTBEAT_OFFSETS {
            let (len, what) = (u64::from(PAGE_LEN), "reading heartbeats");
            let places = judged.iter().map(|(_, at)| *at).collect();
            let answers = self.each(places, |_| Ask::Read { offset, len, what }).await;
            for ((at, answer), read) in answers.into_iter().zip(&mut slots) {
                match answer.bytes() {
                    Ok(bytes) => read.push(bytes),
                    Err(error) if error.is_conflict() => return Err(OpenError::Failed(error)),
                    Err(error) => failed.push((at, OpenError::Failed(error))),
                }
            }
        }
        let mut told = BTreeSet::new();
        failed.retain(|(at, _)| told.insert(*at));
        for ((member, at), read) in judged.iter().zip(&slots) {
            if told.contains(at) {
                continue;
            }
            let beat = Heartbeat::newest(truth.array_uuid, read.iter().map(|slot| &**slot));
            let digest = beat.map_or(0, |beat| beat.digest());
            if silent.heartbeats.get(member.as_usize()) != Some(&digest) {
                let (name, holder) = (truth.name.clone(), truth.holder.name.clone());
                let generation = truth.generation;
                return Err(OpenError::Assemble(AssembleError::Held { name, holder, generation }));
            }
        }
        Ok(failed)
    }
}
