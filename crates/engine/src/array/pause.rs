//! An array that pauses: sessions end at once, and it is opened anew when the volume says so
//! ([`netraid_raid::volume`]).

use netraid_raid::{
    member::{MemberIndex, MemberSet},
    opening::Continues,
    volume::{NotReopened, Reopened},
};

use super::{
    ArrayError,
    driver::{Driver, has_left},
    lock::ArrayLock,
    open::{Given, Opened, open_anew},
    slots::places_of,
};

/// The array, opened anew, or why it is not.
pub(super) struct Anew {
    end: Result<Opened, ArrayError>,
    /// It was held all the time.
    lock: Option<ArrayLock>,
}

impl Driver {
    /// Ends the sessions to a member, and to a device that may take its place, at once: what is under way there ends as aborted.
    pub(super) fn cut(&mut self, member: MemberIndex) {
        let slot = &mut self.slots[member.as_usize()];
        let devices = [slot.connected.take(), slot.candidate.take()];
        for device in devices.into_iter().flatten() {
            let before = slot.leaving.take();
            slot.leaving = Some(tokio::spawn(async move {
                device.remote.cut().await;
                has_left(before).await;
            }));
        }
    }

    /// Opens the array anew, but for these members, once the sessions of before have ended.
    pub(super) fn open_anew(&mut self, but: MemberSet) {
        let leaving: Vec<_> = self.slots.iter_mut().map(|slot| slot.leaving.take()).collect();
        let slots = (0..).map(MemberIndex).zip(&self.slots);
        let given = slots.filter_map(|(member, slot)| {
            let config = slot.config.clone()?;
            Some(Given { config, is_looked_for: !but.contains(member) })
        });
        let members = given.collect();
        let known = Continues::of(&self.volume.machine().stable_label());
        let (options, pool, mut lock) = (self.options, self.pool.clone(), self.lock.take());
        let sender = self.anew.0.clone();
        self.opening = Some(tokio::spawn(async move {
            for session in leaving {
                has_left(session).await;
            }
            let end = open_anew(options, known, members, &pool, &mut lock).await;
            // The array's task waits for it, or ends it.
            let _ = sender.send(Anew { end, lock }).await;
        }));
    }

    pub(super) fn take_anew(&mut self, anew: Anew) {
        let Anew { end, lock } = anew;
        (self.opening, self.lock) = (None, lock);
        let end = match end {
            Ok(opened) => Ok(self.take_opened(opened)),
            Err(error) => {
                tracing::info!(%error, "the array cannot go on yet");
                let is_final =
                    matches!(error, ArrayError::TakenOver { .. } | ArrayError::MadeAnew { .. });
                Err(NotReopened { reason: error.to_string(), is_final })
            }
        };
        self.volume.handle_reopened(self.now(), end);
    }

    /// Puts the devices in their places.
    fn take_opened(&mut self, opened: Opened) -> Reopened<netraid_raid::volume::PlainOrLogged> {
        let Opened { machine, members, fence, notes, unused, liars, .. } = opened;
        assert_eq!(members.len(), self.slots.len(), "a place of every member");
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        for unused in unused {
            tokio::spawn(async move { unused.remote.close().await });
        }
        for (slot, connected) in self.slots.iter_mut().zip(members) {
            if let Some(connected) = &connected {
                slot.config = Some(connected.config.clone());
            }
            slot.connected = connected;
        }
        self.fence = fence;
        let places = places_of(&mut self.slots, liars);
        Reopened { machine, places }
    }
}
