//! Fencing step by step: what is asked of a member's device about its persistent reservations, and in which order.
//!
//! All sessions of an engine are registered with one key, which is new for each run; the reservation lets only registered
//! sessions write, and all of them hold it. Who takes over removes the registrations of others, and waits for what they
//! had under way. A target that restarts forgets that, and is set aside then anyway.
//!
//! Invariant: a member is `exclusive` only after it has said that no other key is registered and that the reservation is
//! in force. Says nothing about members without reservations. Where it is told which keys were registered before the engine
//! made sure that it has the array, no other key is removed: whoever has one came after that, and may have taken the array
//! over.
//!
//! Steps are straight-line code that waits for answers and for nothing else: no thread, no clock, no runtime.

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};
use core::{future::Future, num::NonZeroU64};

use atomic_refcell::AtomicRefCell;
use netraid_block::{ErrorKind, IoError};

use super::{Fence, VACANT, has_engine, is_reader};
use crate::{
    access::Failure as _,
    planted::{Planted, planted},
    talk::{Next, Talk, Work},
};

/// Times that others may come between.
const TRIES_MAX: usize = 4;
/// Times that readers alone may.
const READERS_MAX: usize = 64;

/// What is asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Which keys are registered.
    Keys,
    /// Which reservation is held.
    Reservation,
    /// Whether there is a session, and nobody is known to have taken over.
    Presence,
    /// To register all sessions.
    Register {
        /// With this key.
        key: NonZeroU64,
        /// Whatever they are registered with; else only what this side knows of is replaced.
        ignore: bool,
    },
    /// To take the registrations of all sessions back.
    Unregister,
    /// To reserve it so that only registered sessions write, all of them hold it, and everybody reads.
    Reserve(NonZeroU64),
    /// To give that reservation back.
    Release(NonZeroU64),
    /// To remove the registrations of another, and take its reservation over.
    Preempt {
        /// This side's key.
        key: NonZeroU64,
        /// The other's.
        other: NonZeroU64,
        /// What the other has under way ends before.
        aborts: bool,
    },
    /// To remove the reservation and all registrations.
    Clear(NonZeroU64),
}

/// What a device answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// These keys are registered; there are more where the list `is_cut`.
    Keys {
        /// The keys.
        keys: Vec<u64>,
        /// The list has no room for all.
        is_cut: bool,
    },
    /// The reservation that is held: whether it is of the kind of [`Ask::Reserve`].
    Reservation(Option<bool>),
    /// Whether it is so.
    Presence(bool),
    /// It is not done.
    Failed(IoError),
}

/// How an engine stands at a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Only this engine may write to it.
    pub exclusive: bool,
    /// The key that its sessions may be registered with.
    pub registered: Option<NonZeroU64>,
    /// Somebody who may be alive was removed from it: it is not given back to all.
    pub is_wary: bool,
}

/// Why a member cannot be made an engine's alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceError {
    /// The device failed at this.
    Failed {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        reason: IoError,
    },
    /// Somebody is registered who may be alive.
    Reserved {
        /// With this key.
        key: u64,
    },
    /// Somebody has registered since the engine began to make sure that it has the array.
    Overtaken {
        /// With this key.
        key: u64,
    },
    /// The device takes registrations, and does not keep them.
    Forgetful,
    /// An engine that may be alive could still write: the device has no reservations, or no PREEMPT AND ABORT.
    CannotShutOut,
    /// Others come between again and again.
    Contended,
}

/// What an administrator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The member is used without: its device has no reservations, or cannot keep them.
    NotFenced(IoError),
    /// The device has no PREEMPT AND ABORT: what another engine has under way may still be written.
    NothingAborted,
    /// The member is read without a registration that tells of writers: its device has no reservations.
    ReaderNotRegistered(IoError),
    /// The registration could not be taken back.
    RegistrationStays(IoError),
    /// The reservation could not be removed.
    ReservationStays(IoError),
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Ask the device, and give [`Steps::answer`].
    Ask(Ask),
    /// Tell that.
    Tell(Notice),
    /// Nothing more.
    Done(Result<(), FenceError>),
}

/// Steps at one member.
pub struct Steps {
    work: Work<Ask, Answer, Result<(), FenceError>>,
    said: Arc<AtomicRefCell<Said>>,
    end: Option<Result<(), FenceError>>,
}

impl Steps {
    /// Lets no other engine write to a member, where it has reservations; [`Standing::exclusive`] tells.
    #[must_use]
    pub fn fence(standing: Standing, fence: Fence) -> Self {
        Self::new(standing, (None, false), |member| async move { member.fence(fence).await })
    }

    /// The same once more, when all members are fenced: of those who come between nobody is removed that is not `known`
    /// from before.
    #[must_use]
    pub fn fence_again(standing: Standing, fence: Fence, known: BTreeSet<u64>) -> Self {
        let known = (Some(known), false);
        Self::new(standing, known, |member| async move { member.fence(fence).await })
    }

    /// Registers the engine at a member, beside what is `known` to be registered there, and nothing else: before it makes
    /// sure that it has the array. Who takes the array over looks at all members once more when it has fenced them, and
    /// finds the engine here.
    #[must_use]
    pub fn announce(standing: Standing, fence: Fence, known: BTreeSet<u64>) -> Self {
        let known = (Some(known), false);
        Self::new(standing, known, |member| async move { member.announce(fence).await })
    }

    /// Tries out whether an engine that may be alive can be shut out: who is registered may be removed, this engine can register, and
    /// the device has PREEMPT AND ABORT. Nobody is removed. The registration stays.
    #[must_use]
    pub fn try_out(standing: Standing, fence: Fence) -> Self {
        Self::new(standing, (None, false), |member| async move { member.try_out(fence).await })
    }

    /// Registers who only reads, beside other readers, and reserves nothing: who opens the array for writing removes that, and the
    /// next read tells. A device without reservations is read without.
    #[must_use]
    pub fn attend(standing: Standing, reader: Fence) -> Self {
        Self::new(standing, (None, false), |member| async move { member.attend(reader).await })
    }

    /// The same as [`Self::fence`] for an engine that has the array: `known` was registered at the device before the engine made sure of
    /// that. No other key is removed; and who was announced goes on only while it is registered.
    #[must_use]
    pub fn fence_known(standing: Standing, fence: Fence, known: BTreeSet<u64>) -> Self {
        let known = (Some(known), standing.registered.is_some());
        Self::new(standing, known, |member| async move { member.fence(fence).await })
    }

    /// Makes sure that nobody has taken a member over since it was fenced: its sessions' registrations are made anew,
    /// which only succeeds in their own places.
    #[must_use]
    pub fn check(standing: Standing) -> Self {
        Self::new(standing, (None, false), |member| async move { member.check().await })
    }

    /// Gives a member back: others may write again.
    #[must_use]
    pub fn renounce(standing: Standing) -> Self {
        Self::new(standing, (None, false), |member| async move {
            member.renounce().await;
            Ok(())
        })
    }

    /// Removes the registrations of whomever, waits for what they have under way where the device can, and keeps them out
    /// until [`Self::set_free`]: nothing of theirs is written over what is written meanwhile. Nothing where nobody is
    /// registered. `fence` is [`Fence::against_all`].
    #[must_use]
    pub fn seize(standing: Standing, fence: Fence) -> Self {
        Self::new(standing, (None, false), |member| async move { member.seize(fence).await })
    }

    /// Ends [`Self::seize`]: nobody is registered and nothing reserved any more.
    #[must_use]
    pub fn set_free(standing: Standing) -> Self {
        Self::new(standing, (None, false), |member| async move {
            member.set_free().await;
            Ok(())
        })
    }

    /// How the engine stands at the member now: also what was asked for and not answered counts as registered.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.said.borrow().standing
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Step {
        let question = match self.end {
            Some(_) => None,
            None => match self.work.poll() {
                Next::Ask(ask) => Some(ask),
                Next::Done(end) => {
                    self.end = Some(end);
                    None
                }
            },
        };
        let mut said = self.said.borrow_mut();
        if !said.notices.is_empty() {
            return Step::Tell(said.notices.remove(0));
        }
        match (&self.end, question) {
            (Some(end), _) => Step::Done(end.clone()),
            (None, Some(ask)) => Step::Ask(ask),
            (None, None) => unreachable!("steps ask until they end"),
        }
    }

    /// Takes the answer to what was asked.
    ///
    /// # Panics
    /// When nothing was.
    pub fn answer(&mut self, answer: Answer) {
        self.work.answer(answer);
    }

    fn new<F>(
        standing: Standing,
        (known, is_announced): (Option<BTreeSet<u64>>, bool),
        code: impl FnOnce(Member) -> F,
    ) -> Self
    where
        F: Future<Output = Result<(), FenceError>> + Send + 'static,
    {
        let was_wary = standing.is_wary;
        let said = Said { standing, notices: Vec::new(), has_removed: false };
        let said = Arc::new(AtomicRefCell::new(said));
        let work = Work::new(|talk| {
            code(Member { talk, said: Arc::clone(&said), known, is_announced, was_wary })
        });
        Self { work, said, end: None }
    }
}

/// The member that is asked.
struct Member {
    talk: Talk<Ask, Answer>,
    said: Arc<AtomicRefCell<Said>>,
    /// Where these are given, no other key is removed.
    known: Option<BTreeSet<u64>>,
    /// The engine is registered there, and goes on only while it is.
    is_announced: bool,
    /// Somebody who may be alive was removed before.
    was_wary: bool,
}

/// What steps tell beside what they ask.
struct Said {
    standing: Standing,
    notices: Vec<Notice>,
    /// Another's registration was to be removed: what the other had under way may not have ended, although nobody is
    /// registered any more who would show that.
    has_removed: bool,
}

/// Keys that are registered beside one's own.
struct Others {
    keys: BTreeSet<u64>,
    is_cut: bool,
    /// One's own was read.
    has_own: bool,
}

impl Member {
    async fn fence(&self, fence: Fence) -> Result<(), FenceError> {
        let was_exclusive = self.standing().exclusive;
        match self.try_fence(fence).await {
            Err(FenceError::Failed { reason, .. })
                if !was_exclusive
                    && (!self.has_removed() || planted(Planted::UsedAfterRemovalFailed))
                    && self.may_go_on_after(&reason).await =>
            {
                self.tell(Notice::NotFenced(reason));
                self.note(|standing| standing.is_wary = false);
                self.renounce().await;
                Ok(())
            }
            Err(error) => {
                // Who has removed nobody leaves no memory of it.
                if self.is_announced && !self.has_removed() {
                    self.note(|standing| standing.is_wary = self.was_wary);
                }
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// A device without reservations, or one that cannot keep them (LIO without its state
    /// directory), is used without; but not while somebody else is registered at it, nor one that has not answered: it
    /// may have reservations.
    async fn may_go_on_after(&self, reason: &IoError) -> bool {
        let is_refused = matches!(
            reason.kind(),
            ErrorKind::Unsupported | ErrorKind::Device | ErrorKind::InvalidRequest
        );
        let is_silent = matches!(reason.kind(), ErrorKind::Timeout | ErrorKind::Unreachable);
        let has_answered = is_refused || is_silent && planted(Planted::UsedAfterSilence);
        if !has_answered {
            return false;
        }
        let has_none = reason.kind() == ErrorKind::Unsupported;
        let own = self.standing().registered.map(NonZeroU64::get);
        match self.keys().await {
            Ok((keys, is_cut)) => !is_cut && keys.iter().all(|key| Some(*key) == own),
            Err(error) => has_none && error.kind() == ErrorKind::Unsupported,
        }
    }

    async fn announce(&self, fence: Fence) -> Result<(), FenceError> {
        let none = BTreeSet::new();
        let is_wary = fence.is_wary(self.known.as_ref().unwrap_or(&none));
        // Nobody is removed by this: that somebody will be is said by the key alone.
        self.register(fence.key(is_wary)).await
    }

    async fn try_out(&self, fence: Fence) -> Result<(), FenceError> {
        const WHAT: &str = "trying out PREEMPT AND ABORT at it";
        let registered = self.standing().registered;
        let others = match self.others(fence, registered).await {
            Err(FenceError::Failed { reason, .. }) if reason.kind() == ErrorKind::Unsupported => {
                return Err(FenceError::CannotShutOut);
            }
            others => others?,
        };
        let key = registered.unwrap_or_else(|| fence.key(false));
        self.register(key).await?;
        // Nobody has this key, so that nobody is removed; a device says so by a conflict.
        let nobody = (1..u64::from(u16::MAX)).map(|bits| key.get() ^ (bits << 2));
        let mut nobody = nobody.filter(|other| !others.keys.contains(other));
        let Some(other) = nobody.next().and_then(NonZeroU64::new) else {
            return Err(FenceError::CannotShutOut);
        };
        match tolerate_conflict(self.demand(Ask::Preempt { key, other, aborts: true }).await) {
            Err(reason) if reason.kind() == ErrorKind::Unsupported => {
                Err(FenceError::CannotShutOut)
            }
            end => end.map_err(|reason| failed(WHAT, reason)),
        }
    }

    async fn attend(&self, reader: Fence) -> Result<(), FenceError> {
        let key = reader.key(false);
        self.note(|standing| standing.registered = Some(key));
        match self.demand(Ask::Register { key, ignore: true }).await {
            Err(reason) if reason.kind() == ErrorKind::Unsupported => {
                self.tell(Notice::ReaderNotRegistered(reason));
                self.renounce().await;
                return Ok(());
            }
            registered => {
                registered.map_err(|reason| failed("registering a reader at it", reason))?
            }
        }
        // Who came before removed nobody, and would not hear of this reader.
        let (keys, _) =
            self.keys().await.map_err(|reason| failed("reading its reservation keys", reason))?;
        let writes = |other: &&u64| has_engine(&[**other]) && !reader.may_remove(**other);
        match keys.iter().find(writes) {
            Some(other) => {
                self.renounce().await;
                Err(FenceError::Reserved { key: *other })
            }
            None if keys.contains(&key.get()) => Ok(()),
            None => Err(FenceError::Forgetful),
        }
    }

    /// Registers the engine, or makes sure that it is registered still where it was announced.
    async fn register(&self, key: NonZeroU64) -> Result<(), FenceError> {
        // Whatever becomes of it, some sessions may be registered.
        self.note(|standing| standing.registered = Some(key));
        let ignore = !self.is_announced || planted(Planted::AnnouncedAnew);
        match self.demand(Ask::Register { key, ignore }).await {
            Ok(()) => Ok(()),
            Err(reason) if self.is_announced && reason.kind() == ErrorKind::Fenced => {
                let (keys, _) = self.keys().await.unwrap_or_default();
                let other = keys.into_iter().find(|other| *other != key.get());
                Err(other.map_or(FenceError::Forgetful, |other| self.overtaken(other)))
            }
            Err(reason) => Err(failed("registering at it", reason)),
        }
    }

    async fn try_fence(&self, fence: Fence) -> Result<(), FenceError> {
        const WHAT: &str = "fencing it";
        // Nobody is removed before it is known that all who are there may be.
        let Standing { registered, is_wary: was_wary, .. } = self.standing();
        let others = self.others(fence, registered).await?;
        let told = registered.is_some_and(|key| was_wary || Fence::tells_of_removed(key));
        let is_wary = fence.is_wary(&others.keys) || told;
        self.note(|standing| standing.is_wary = is_wary);
        let key = registered.filter(|_| self.is_announced);
        let key = key.unwrap_or_else(|| fence.key(is_wary));
        self.register(key).await?;
        let (mut tries, mut readers) = (0, 0);
        while tries < TRIES_MAX && readers < READERS_MAX {
            let others = self.others(fence, Some(key)).await?;
            let is_alone = others.keys.is_empty() && !others.is_cut
                || planted(Planted::ExclusiveBesideOthers) && others.has_own;
            if is_alone && !others.has_own {
                return Err(FenceError::Forgetful);
            }
            let held = self.reservation().await.map_err(|reason| failed(WHAT, reason))?;
            let is_held = held == Some(true);
            // Who only reads keeps nobody from anything, however many come.
            match !others.keys.is_empty() && others.keys.iter().all(|other| is_reader(*other)) {
                true => readers += 1,
                false => tries += 1,
            }
            if is_held && is_alone {
                self.note(|standing| standing.exclusive = true);
                return Ok(());
            }
            let is_wary = fence.is_wary(&others.keys);
            self.note(|standing| standing.is_wary |= is_wary);
            for other in others.keys.into_iter().filter_map(NonZeroU64::new) {
                let must_abort = fence.must_abort(other.get());
                let removed = self.remove((key, other), is_held, must_abort).await;
                let is_unsupported =
                    |error: &IoError| must_abort && error.kind() == ErrorKind::Unsupported;
                if removed.as_ref().is_err_and(is_unsupported) {
                    return Err(FenceError::CannotShutOut);
                }
                tolerate_conflict(removed).map_err(|reason| failed(WHAT, reason))?;
            }
            if !is_held {
                let reserved = self.demand(Ask::Reserve(key)).await;
                tolerate_conflict(reserved).map_err(|reason| failed(WHAT, reason))?;
            }
        }
        Err(FenceError::Contended)
    }

    /// Somebody with this key came after it was looked whose the array is.
    fn overtaken(&self, key: u64) -> FenceError {
        // Who came keeps what was found in mind; nobody else was pushed aside.
        if !self.has_removed() {
            self.note(|standing| standing.is_wary = self.was_wary);
        }
        FenceError::Overtaken { key }
    }

    /// The keys beside `own` that are registered, all of which may be removed.
    async fn others(&self, fence: Fence, own: Option<NonZeroU64>) -> Result<Others, FenceError> {
        const WHAT: &str = "reading its reservation keys";
        let (keys, is_cut) = self.keys().await.map_err(|reason| failed(WHAT, reason))?;
        let own = own.map(NonZeroU64::get);
        let has_own = keys.iter().any(|key| Some(*key) == own);
        let keys: BTreeSet<u64> = keys.into_iter().filter(|other| Some(*other) != own).collect();
        // One's own are registered with one of two keys.
        let is_own = |other: u64| own.is_some_and(|own| Fence::keys_of(own).contains(&other));
        let is_new = |other: &&u64| {
            let is_known = |known: &BTreeSet<u64>| known.contains(other) || is_own(**other);
            self.known.as_ref().is_some_and(|known| !is_known(known)) && !is_reader(**other)
        };
        if let Some(other) = keys.iter().find(is_new) {
            return Err(self.overtaken(*other));
        }
        match keys.iter().find(|other| !fence.may_remove(**other)) {
            Some(_) if planted(Planted::LiveEngineRemoved) => Ok(Others { keys, is_cut, has_own }),
            Some(other) => Err(FenceError::Reserved { key: *other }),
            None => Ok(Others { keys, is_cut, has_own }),
        }
    }

    async fn check(&self) -> Result<(), FenceError> {
        let Standing { exclusive, registered, .. } = self.standing();
        let Some(key) = registered.filter(|_| exclusive && !planted(Planted::HolderNotChecked))
        else {
            return Ok(());
        };
        let kept = self.demand(Ask::Register { key, ignore: false }).await;
        kept.map_err(|reason| failed("making sure that it is still this engine's", reason))
    }

    /// Removes another's registrations, and waits for what it has under way where the device can; where it cannot, and `must_abort`
    /// says that it must, nobody is removed.
    async fn remove(
        &self,
        (key, other): (NonZeroU64, NonZeroU64),
        is_held: bool,
        must_abort: bool,
    ) -> Result<(), IoError> {
        self.said.borrow_mut().has_removed = true;
        let aborts = !planted(Planted::RemovedWithoutAborting);
        match self.demand(Ask::Preempt { key, other, aborts }).await {
            Err(error) if error.kind() == ErrorKind::Unsupported && !must_abort => {
                self.tell(Notice::NothingAborted);
                // What all hold belongs to one of them in tgt; when that one is removed, it is a
                // dangling pointer. So it is released before, and made again at once.
                if is_held {
                    self.demand(Ask::Release(key)).await?;
                }
                self.demand(Ask::Preempt { key, other, aborts: false }).await?;
                self.demand(Ask::Reserve(key)).await
            }
            end => end,
        }
    }

    async fn renounce(&self) {
        let registered = self.standing().registered;
        self.note(|standing| (standing.exclusive, standing.registered) = (false, None));
        let Some(key) = registered else { return };
        if self.ask(Ask::Presence).await != Answer::Presence(true) {
            return;
        }
        if let Err(error) = self.give_back(key).await {
            self.tell(Notice::RegistrationStays(error));
        }
    }

    /// Takes this run's registrations back. Some targets (tgt) keep those of sessions that are no
    /// more, which no session could give back: where all are this run's, they go with one command.
    async fn give_back(&self, key: NonZeroU64) -> Result<(), IoError> {
        // A reader that came meanwhile finds this engine, and gives up; it must not inherit the reservation.
        let is_its =
            |other: &u64| *other == key.get() || is_reader(*other) && !is_reader(key.get());
        let all_own = match self.keys().await {
            Ok((keys, is_cut)) => !is_cut && keys.iter().all(is_its),
            Err(error) if error.kind() == ErrorKind::Unsupported => false,
            Err(error) => return Err(error),
        };
        let is_wary = self.standing().is_wary && !planted(Planted::WaryMemberSetFree);
        self.demand(match all_own && !is_wary {
            // An engine may have registered since; who only reads leaves it alone.
            true if !is_reader(key.get()) => Ask::Clear(key),
            true => Ask::Unregister,
            false if is_wary => Ask::Register { key: VACANT, ignore: false },
            false => Ask::Unregister,
        })
        .await
    }

    async fn seize(&self, fence: Fence) -> Result<(), FenceError> {
        let nobody = match self.keys().await {
            Ok((keys, _)) => keys.is_empty(),
            Err(error) if error.kind() == ErrorKind::Unsupported => true,
            Err(error) => return Err(failed("reading its reservation keys", error)),
        };
        // A reservation that cannot be read is removed, too.
        if nobody && self.is_free().await {
            return Ok(());
        }
        let fenced = self.try_fence(fence).await;
        match (fenced, self.standing().registered) {
            (Ok(()), _) => Ok(()),
            // What another has under way may still be written.
            (Err(error), Some(_)) if self.has_removed() && !is_refused(&error) => Err(error),
            // What cannot be taken over in good order can be cleared.
            (Err(_), Some(key)) => {
                let cleared = self.demand(Ask::Clear(key)).await;
                cleared.map_err(|error| failed("removing its reservations", error))?;
                self.note(|standing| standing.registered = None);
                Ok(())
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Whether nobody has reserved the device.
    async fn is_free(&self) -> bool {
        match self.reservation().await {
            Ok(held) => held.is_none(),
            Err(error) => error.kind() == ErrorKind::Unsupported,
        }
    }

    async fn set_free(&self) {
        let registered = self.standing().registered;
        self.note(|standing| (standing.exclusive, standing.registered) = (false, None));
        let Some(key) = registered else { return };
        if let Err(error) = self.demand(Ask::Clear(key)).await {
            self.tell(Notice::ReservationStays(error));
        }
    }

    async fn keys(&self) -> Result<(Vec<u64>, bool), IoError> {
        let answer = self.ask(Ask::Keys).await;
        let Answer::Keys { keys, is_cut } = answer else { return Err(unexpected(answer)) };
        Ok((keys, is_cut))
    }

    async fn reservation(&self) -> Result<Option<bool>, IoError> {
        let answer = self.ask(Ask::Reservation).await;
        let Answer::Reservation(held) = answer else { return Err(unexpected(answer)) };
        Ok(held)
    }

    async fn demand(&self, ask: Ask) -> Result<(), IoError> {
        let answer = self.ask(ask).await;
        if answer == Answer::Done { Ok(()) } else { Err(unexpected(answer)) }
    }

    async fn ask(&self, ask: Ask) -> Answer {
        self.talk.ask(ask).await
    }

    fn standing(&self) -> Standing {
        self.said.borrow().standing
    }

    fn has_removed(&self) -> bool {
        self.said.borrow().has_removed
    }

    fn note(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut self.said.borrow_mut().standing);
    }

    fn tell(&self, notice: Notice) {
        self.said.borrow_mut().notices.push(notice);
    }
}

/// Whether a device has said that it does not do that: then it has not begun it either.
fn is_refused(error: &FenceError) -> bool {
    match error {
        FenceError::Failed { reason, .. } => reason.is_refusal(),
        FenceError::Reserved { .. }
        | FenceError::Overtaken { .. }
        | FenceError::Forgetful
        | FenceError::CannotShutOut
        | FenceError::Contended => true,
    }
}

const fn failed(what: &'static str, reason: IoError) -> FenceError {
    FenceError::Failed { what, reason }
}

/// The error in an answer, which another kind of answer than was asked for is, too.
fn unexpected(answer: Answer) -> IoError {
    match answer {
        Answer::Failed(error) => error,
        Answer::Done | Answer::Keys { .. } | Answer::Reservation(_) | Answer::Presence(_) => {
            ErrorKind::Device.into()
        }
    }
}

/// Others may have come between: what is registered and held then is looked at again.
fn tolerate_conflict(end: Result<(), IoError>) -> Result<(), IoError> {
    match end {
        Err(error) if error.kind() == ErrorKind::Fenced => Ok(()),
        end => end,
    }
}

#[cfg(test)]
pub(crate) mod tests;
