//! A device that may be, or become, a member of an array, as an engine reaches it: what [`crate::access`] asks of the device
//! is done here, over sessions that a shell makes.
//!
//! Invariants: how often a device had lost its cache is counted before anything is read of it by the sessions that are kept,
//! and anew before the device is proven to take writes, as nothing that was written earlier counts then. A key is in the
//! hold before a device is asked to register it, so that whoever has the hold can give the registration back also where no
//! answer came.
//!
//! Straight-line code that waits for the shell's answers and for nothing else. Not here: what is asked, and in which order
//! ([`crate::opening`], [`crate::volume::preparing`], [`crate::fencing::steps`]), nor how a session is made.

use alloc::{boxed::Box, collections::BTreeSet, string::String};

use netraid_block::DeviceInfo;

use crate::{
    access::{Answer, Ask},
    array::MemberCaps,
    fencing::{
        engine_isid,
        steps::{self, FenceError, Notice, Standing, Step, Steps},
    },
    label::Uuid,
    medium::{self, Medium},
    volume::Device,
};

/// What an engine has of a device while it has sessions to it. Losses of the cache are counted by [`Reached`] alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hold {
    /// Whether only this engine may write to it, and what is to be given back.
    pub standing: Standing,
    /// How often the device had lost its cache before the first thing that counts was read of it, or written to it.
    cache_losses: u64,
}

/// The sessions to a device.
pub trait Sessions: Medium + Clone {
    /// What this engine has of the device.
    fn hold(&self) -> &Hold;

    /// The same, to change it.
    fn hold_mut(&mut self) -> &mut Hold;

    /// Where the device is, without secrets.
    fn address(&self) -> String;

    /// Asks the device about its reservations.
    fn ask(&self, ask: steps::Ask) -> impl Future<Output = steps::Answer>;

    /// Tells an administrator.
    fn tell(&self, notice: Notice);

    /// From now on requests rely on what the device had when it had lost its cache this often: once it has lost it again,
    /// they end unsent.
    fn rely_on(&self, cache_losses: u64);

    /// This engine is about to take its registrations back: that they are gone is no sign of another engine.
    fn note_leaving(&self);

    /// Ends the sessions.
    fn close(&self) -> impl Future<Output = ()>;

    /// Makes sure that nobody has taken the device over since it was fenced; nothing is asked where it is not this
    /// engine's alone.
    ///
    /// # Errors
    /// Somebody has, or why it cannot be told.
    fn check_fenced(&self) -> impl Future<Output = Result<(), FenceError>> {
        async { carry_out(&mut self.clone(), Steps::check).await }
    }

    /// Gives the device back, and ends the sessions: others may write to it again.
    fn leave(&mut self) -> impl Future<Output = ()> {
        async {
            self.note_leaving();
            // The steps tell what stays.
            let _ = carry_out(self, Steps::renounce).await;
            self.close().await;
        }
    }
}

/// How a device is reached.
pub trait Dial {
    /// The sessions to it.
    type Sessions: Sessions;

    /// Makes sessions to it. With an initiator session id, the sessions that had that id end, and what they had under way
    /// ends before; without one, it is a session beside whatever there are, to look at the device.
    fn dial(
        &self,
        isid: Option<[u8; 6]>,
    ) -> impl Future<Output = Result<Self::Sessions, ErrorOf<Self>>>;

    /// The identity of the machine that this engine runs on.
    fn machine(&self) -> Uuid;

    /// What tells the device from others: the same by whichever way it is reached.
    fn place(&self) -> impl Iterator<Item = u8>;

    /// Where the device is, without secrets.
    fn address(&self) -> String;
}

/// Why a device cannot be reached, or used.
type ErrorOf<D> = <<D as Dial>::Sessions as Medium>::Error;

/// A device, and the sessions to it where there are any.
#[derive(Debug)]
pub struct Reached<D: Dial> {
    dial: D,
    sessions: Option<D::Sessions>,
}

impl<D: Dial> Reached<D> {
    /// There is no session yet.
    pub const fn new(dial: D) -> Self {
        Self { dial, sessions: None }
    }

    /// How it is reached.
    pub const fn dial(&self) -> &D {
        &self.dial
    }

    /// The sessions to it, where there are any.
    pub const fn sessions(&self) -> Option<&D::Sessions> {
        self.sessions.as_ref()
    }

    /// The sessions to it.
    ///
    /// # Panics
    /// When there are none.
    pub fn take_sessions(&mut self) -> D::Sessions {
        let Some(sessions) = self.sessions.take() else {
            unreachable!("{} is used, and there is no session to it", self.dial.address())
        };
        sessions
    }

    /// Asks the device. Only whoever holds the array's lock asks it to be taken over, as that ends the sessions of this
    /// machine's engine.
    ///
    /// # Panics
    /// When what is asked needs sessions, and there are none.
    pub async fn ask(&mut self, ask: Ask) -> Answer<ErrorOf<D>> {
        match ask {
            Ask::Visit => {
                let end = self.dial.dial(None).await;
                self.connect(end).await
            }
            Ask::TakeOver { array, former } => {
                let end = self.take_over(array, &former).await;
                self.connect(end).await
            }
            Ask::Close => {
                if let Some(sessions) = self.sessions.take() {
                    sessions.close().await;
                }
                Answer::Done
            }
            Ask::Leave => {
                if let Some(mut sessions) = self.sessions.take() {
                    sessions.leave().await;
                }
                Answer::Done
            }
            Ask::Label
            | Ask::Checkpoint(_)
            | Ask::Read { .. }
            | Ask::Unused
            | Ask::Keys
            | Ask::Fence(_)
            | Ask::FenceAgain { .. }
            | Ask::Attend(_)
            | Ask::TryOut(_)
            | Ask::Announce { .. }
            | Ask::FenceKnown { .. }
            | Ask::ProveWritable { .. }
            | Ask::ReserveTables(_) => match &mut self.sessions {
                Some(sessions) => answer(sessions, ask).await,
                None => {
                    unreachable!("{} is asked {ask:?} without a session", self.dial.address())
                }
            },
        }
    }

    /// Ends the sessions that this machine made under its former identities, then those under today's by making new ones.
    async fn take_over(
        &self,
        array: Uuid,
        former: &BTreeSet<Uuid>,
    ) -> Result<D::Sessions, ErrorOf<D>> {
        for machine in former {
            let isid = engine_isid(*machine, array, self.dial.place());
            self.dial.dial(Some(isid)).await?.close().await;
        }
        let isid = engine_isid(self.dial.machine(), array, self.dial.place());
        self.dial.dial(Some(isid)).await
    }

    /// The sessions that were made replace those before. Whatever is read from now on may be gone when the cache is lost.
    async fn connect(&mut self, end: Result<D::Sessions, ErrorOf<D>>) -> Answer<ErrorOf<D>> {
        match end {
            Ok(mut sessions) => {
                sessions.hold_mut().cache_losses = sessions.cache_losses();
                let info = sessions.info().clone();
                if let Some(visit) = self.sessions.replace(sessions) {
                    visit.close().await;
                }
                Answer::Device(info)
            }
            Err(error) => Answer::Failed(error),
        }
    }
}

/// Asks the device what needs a session.
async fn answer<S: Sessions>(sessions: &mut S, ask: Ask) -> Answer<S::Error> {
    let done = match ask {
        Ask::Label => {
            let label = medium::label(sessions).await;
            return or_failed(label.map(|label| Answer::Label(label.map(Box::new))));
        }
        Ask::Checkpoint(array) => {
            return Answer::Checkpoint(medium::checkpoint(sessions, array).await);
        }
        Ask::Read { offset, len, what } => {
            return or_failed(medium::read(sessions, offset, len, what).await.map(Answer::Bytes));
        }
        Ask::Keys => return keys(sessions).await,
        Ask::Fence(fence) => {
            return fenced(sessions, |standing| Steps::fence(standing, fence)).await;
        }
        Ask::Attend(reader) => {
            return fenced(sessions, |standing| Steps::attend(standing, reader)).await;
        }
        Ask::TryOut(fence) => {
            return fenced(sessions, |standing| Steps::try_out(standing, fence)).await;
        }
        Ask::Announce { fence, known } => {
            return fenced(sessions, |standing| Steps::announce(standing, fence, known)).await;
        }
        Ask::FenceAgain { fence, known } => {
            return fenced(sessions, |standing| Steps::fence_again(standing, fence, known)).await;
        }
        Ask::FenceKnown { fence, known } => {
            return fenced(sessions, |standing| Steps::fence_known(standing, fence, known)).await;
        }
        Ask::Unused => medium::check_unused(sessions).await,
        Ask::ProveWritable { data_end } => {
            // What is written from now on is what counts.
            sessions.hold_mut().cache_losses = sessions.cache_losses();
            medium::prove_writable(sessions, data_end).await
        }
        Ask::ReserveTables(regions) => medium::reserve_tables(sessions, &regions).await,
        Ask::Visit | Ask::TakeOver { .. } | Ask::Close | Ask::Leave => {
            unreachable!("{ask:?} is not asked of a session")
        }
    };
    or_failed(done.map(|()| Answer::Done))
}

async fn keys<S: Sessions>(sessions: &S) -> Answer<S::Error> {
    match sessions.ask(steps::Ask::Keys).await {
        steps::Answer::Keys { keys, is_cut } => Answer::Keys { keys, is_cut },
        steps::Answer::Failed(reason) => {
            Answer::Failed(sessions.failure("reading its reservation keys", reason))
        }
        other @ (steps::Answer::Done
        | steps::Answer::Reservation(_)
        | steps::Answer::Presence(_)) => {
            unreachable!("asked for its keys, {} answers {other:?}", sessions.address())
        }
    }
}

async fn fenced<S: Sessions>(
    sessions: &mut S,
    steps: impl FnOnce(Standing) -> Steps,
) -> Answer<S::Error> {
    match carry_out(sessions, steps).await {
        Ok(()) => Answer::Fenced { exclusive: sessions.hold().standing.exclusive },
        Err(error) => Answer::NotFenced(error),
    }
}

fn or_failed<E>(end: Result<Answer<E>, E>) -> Answer<E> {
    end.unwrap_or_else(Answer::Failed)
}

/// Does what steps ask of a device about its reservations, to their end; they begin from how this engine stands there, and
/// the hold tells how it stands then.
///
/// # Errors
/// As the steps say.
pub async fn carry_out<S: Sessions>(
    sessions: &mut S,
    steps: impl FnOnce(Standing) -> Steps,
) -> Result<(), FenceError> {
    let mut steps = steps(sessions.hold().standing);
    loop {
        let step = steps.poll();
        sessions.hold_mut().standing = steps.standing();
        match step {
            Step::Ask(ask) => {
                let answer = sessions.ask(ask).await;
                steps.answer(answer);
            }
            Step::Tell(notice) => sessions.tell(notice),
            Step::Done(end) => return end,
        }
    }
}

/// What a volume must know of a member's device. From now on requests rely on what the device has, since the count that
/// [`Reached`] made.
pub fn device_of<S: Sessions>(sessions: &S) -> Device {
    let (info, cache_losses) = (sessions.info(), sessions.hold().cache_losses);
    sessions.rely_on(cache_losses);
    Device {
        address: sessions.address(),
        caps: caps_of(info),
        max_transfer_len: info.max_transfer_len,
        cache_losses,
    }
}

/// What an array's machine must know of a member's device.
const fn caps_of(info: &DeviceInfo) -> MemberCaps {
    MemberCaps { volatile_cache: info.volatile_cache, can_discard: info.can_discard }
}

#[cfg(test)]
mod tests;
