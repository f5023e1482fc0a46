//! The segments of a target that lets in by tokens: which are open, which sessions use them, and what their owners order.
//!
//! ```text
//! (unknown) -> opening -> open -> closing -> asleep      nobody has used it for a while: its device is closed, its
//!              opening <------------+----------+         reservations are remembered until a login comes
//! open -> draining -> closing -> (unknown)               its owner has closed it
//! opening -> closing -> (unknown), asleep -> (unknown)   the same
//! opening -> asleep                                      it cannot be opened now, and has been open
//! opening -> (unknown)                                   it cannot be opened, and never was, or is not wanted
//! asleep -> (unknown)                                    too many are asleep
//! ```
//!
//! The table decides; its owner begins what [`Segments::next_action`] says, in that order: opens and closes devices, and drops
//! connections. A segment is a realm of its own, with one logical unit, LUN 0.
//!
//! Invariants: a session is in the table until none of its commands is at the device, whatever has become of its connection.
//! An order is done when nothing of the sessions that it ends is at the device, and the table lets in none of them after. A
//! device is closed under no command. A generation never goes back.
//!
//! Not here: the permit of a session, which is asked at each request ([`crate::Permit`]).

mod orders;
#[cfg(test)]
mod tests;

use alloc::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    vec::Vec,
};
use core::{
    ops::Deref,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use netraid_control::units::{Generation, MediatorId, Moment, PlanId, SegmentId};
use netraid_iscsi_proto::target::{ConnectionId, Party, Realm};
use netraid_planted::{Planted, planted};

use self::orders::Order;
pub use self::orders::{OrderId, Stuck};

/// How often the table looks whose time is over ([`Segments::poll`]).
pub const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// How long an order waits for commands at a device.
pub const ORDER_LIMIT: Duration = Duration::from_secs(20);
/// Segments that are asleep, and hold no reservations, are forgotten beyond so many.
const ASLEEP_MAX: usize = 1024;

/// A segment, by its mediator and its id.
pub type SegmentKey = (MediatorId, SegmentId);
/// A plan, by its mediator and its id.
pub type PlanKey = (MediatorId, PlanId);

/// The party of a plan's sessions, by which logical units tell them from others: mediator and plan.
#[must_use]
pub fn party((mediator, plan): PlanKey) -> Party {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&mediator.0);
    bytes[16..].copy_from_slice(&plan.0);
    Party(bytes)
}

/// A session that a token let in, as the table holds it: the connection that serves it has the same.
pub trait Session {
    /// Its connection.
    fn connection(&self) -> ConnectionId;
    /// Its segment.
    fn segment(&self) -> SegmentKey;
    /// The plan of its token.
    fn plan(&self) -> PlanKey;
    /// The generation of its token.
    fn generation(&self) -> Generation;
    /// Its commands at the device.
    fn running(&self) -> &Running;
    /// Whether its permit holds: [`crate::Permit::holds`].
    fn holds(&self, generation: Generation, now: Moment) -> bool;
    /// Ends its permit: [`crate::Permit::end`].
    fn end_permit(&self);
    /// Extends its permit: [`crate::Permit::extend`].
    fn extend_permit(&self, until: Moment);
}

/// The generation of a segment, as all its sessions see it: it never goes back.
#[derive(Debug, Default)]
pub struct Fence(AtomicU64);

impl Fence {
    /// The present generation.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> Generation {
        Generation(self.0.load(SeqCst))
    }

    fn raise(&self, generation: Generation) {
        if planted(Planted::GenerationSetBack) {
            return self.0.store(generation.0, SeqCst);
        }
        self.0.fetch_max(generation.0, SeqCst);
    }
}

/// The commands of one session at its device.
///
/// Invariant: a command is counted before its permit is asked, and a permit ends before the commands are counted: whoever ends
/// a permit, and then finds no command, knows that nothing of the session reaches the device any more.
#[derive(Debug, Default)]
pub struct Running {
    commands: AtomicU32,
    has_ended: AtomicBool,
}

impl Running {
    /// A command goes to the device; [`Self::leave`] when it has ended.
    #[inline]
    pub fn enter(&self) {
        self.commands.fetch_add(1, SeqCst);
    }

    /// A command has left. Whether it was the last one of a session that was ended: then [`Segments::settle`] is to be called.
    ///
    /// # Panics
    /// When no command has entered.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
        let was = self.commands.fetch_sub(1, SeqCst);
        assert!(was > 0, "a command leaves that did not enter");
        was == 1 && self.has_ended.load(SeqCst)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.commands.load(SeqCst)
    }

    /// Whether the table has ended the session.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }

    /// False when the session was ended before.
    fn end(&self) -> bool {
        !self.has_ended.swap(true, SeqCst)
    }
}

/// What is to be done for the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<U, S> {
    /// The device of the segment is to be opened: [`Segments::opened`] says how that went.
    Open(SegmentKey, U),
    /// The device of the segment is to be closed, at which no command is; then [`Segments::closed`].
    Close(SegmentKey, U),
    /// The gate of the LUN is to be shut, and its last commands waited for: those of ended sessions enter for a moment before
    /// their permits refuse them. Then the device is to be closed, and then [`Segments::closed`].
    Remove(SegmentKey, U),
    /// The segment is known no more: its logical unit is to be removed.
    Forget(U),
    /// The connection of a session that was ended is to be dropped.
    Drop(S, Why),
    /// The login of this connection is to look again: [`Segments::answer`].
    Wake(ConnectionId),
    /// An order is done, and has ended so many sessions, or does not get done in time.
    Done(OrderId, Result<usize, Stuck>),
}

/// Why a session was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its segment has a newer generation.
    Fenced,
    /// Its segment is closed.
    Closed,
    /// Its plan was ended.
    PlanEnded,
    /// Its grant is over, or does not stand any more.
    Over,
}

/// What becomes of a login that was admitted to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knocked<U> {
    /// The segment is being opened.
    Later,
    /// The segment is open: [`Segments::enter`].
    Open(U),
    /// The segment is not served.
    Refused,
    /// The host lacks what the segment takes.
    Exhausted,
}

/// Why the device of a segment was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unopened {
    /// It is not there, or is not what it should be.
    Unusable,
    /// The host has run out of something that it takes.
    Exhausted,
}

/// A session is not let in any more: its segment, its plan or its time was over before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its device is being opened; its owner has closed it meanwhile where it is not wanted.
    Opening {
        is_wanted: bool,
    },
    Open,
    /// Its device is being closed.
    Closing(Then),
    Asleep,
    /// Its owner has closed it; commands are still at its device.
    Draining,
}

/// What is next when a device is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Sleep,
    Reopen,
    Forget,
}

#[derive(Debug)]
struct Segment<U, S> {
    unit: U,
    realm: Realm,
    stage: Stage,
    fence: Arc<Fence>,
    sessions: Vec<S>,
    /// Since when there are no sessions.
    idle_since: Duration,
    /// It has been open: its logical unit is there.
    has_unit: bool,
    /// Of its logical unit, while it is asleep.
    holds_reservations: bool,
}

/// A login that was admitted to a segment, and is not let in yet.
#[derive(Debug)]
struct Knock {
    segment: SegmentKey,
    /// That of the segment: another one may have its key later.
    realm: Realm,
    answer: Answer,
}

type Answer = Knocked<()>;

/// The segments of a target, its sessions, and orders. `U` is what the owner keeps of a segment, `S` a session.
#[derive(Debug)]
pub struct Segments<U, S> {
    idle_limit: Duration,
    segments: BTreeMap<SegmentKey, Segment<U, S>>,
    knocks: BTreeMap<ConnectionId, Knock>,
    orders: BTreeMap<OrderId, Order>,
    last_realm: u64,
    last_order: u64,
    actions: VecDeque<Action<U, S>>,
}

impl<U: Clone, S: Deref<Target: Session> + Clone> Segments<U, S> {
    /// An empty table. A segment that no session and no login uses falls asleep after `idle_limit`.
    #[must_use]
    pub const fn new(idle_limit: Duration) -> Self {
        Self {
            idle_limit,
            segments: BTreeMap::new(),
            knocks: BTreeMap::new(),
            orders: BTreeMap::new(),
            last_realm: 0,
            last_order: 0,
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn next_action(&mut self) -> Option<Action<U, S>> {
        self.actions.pop_front()
    }

    /// A login was admitted to a segment, by a token of this generation: what becomes of it says [`Self::answer`]. Of a
    /// segment that is not known yet, `make` makes what its owner keeps.
    pub fn knock(
        &mut self,
        connection: ConnectionId,
        (key, generation): (SegmentKey, Generation),
        now: Duration,
        make: impl FnOnce(Realm, &Arc<Fence>) -> U,
    ) {
        let last_realm = &mut self.last_realm;
        let segment = self.segments.entry(key).or_insert_with(|| {
            *last_realm += 1;
            let (realm, fence) = (Realm(*last_realm), Arc::<Fence>::default());
            Segment {
                unit: make(realm, &fence),
                realm,
                stage: Stage::Asleep,
                fence,
                sessions: Vec::new(),
                idle_since: now,
                has_unit: false,
                holds_reservations: false,
            }
        });
        // The agent has stored this generation before it admits by it; its order may come later.
        segment.fence.raise(generation);
        let answer = match segment.stage {
            Stage::Open => Answer::Open(()),
            Stage::Opening { is_wanted: true } | Stage::Closing(Then::Reopen) => Answer::Later,
            Stage::Asleep => {
                segment.stage = Stage::Opening { is_wanted: true };
                self.actions.push_back(Action::Open(key, segment.unit.clone()));
                Answer::Later
            }
            Stage::Closing(Then::Sleep) => {
                if !planted(Planted::ParkedLoginForgotten) {
                    segment.stage = Stage::Closing(Then::Reopen);
                }
                Answer::Later
            }
            Stage::Opening { is_wanted: false }
            | Stage::Closing(Then::Forget)
            | Stage::Draining => Answer::Refused,
        };
        let realm = segment.realm;
        self.knocks.insert(connection, Knock { segment: key, realm, answer });
    }

    /// What becomes of a login that has knocked.
    pub fn answer(&mut self, connection: ConnectionId) -> Knocked<U> {
        let Some(knock) = self.knocks.get(&connection) else { return Knocked::Refused };
        let answered = match knock.answer {
            Answer::Later => return Knocked::Later,
            Answer::Open(()) => {
                let Some(segment) = self.segments.get(&knock.segment) else {
                    unreachable!("a segment is forgotten for which a login waits")
                };
                assert_eq!(segment.realm, knock.realm, "a login waits for it");
                // The knock stays until the session is let in: nobody closes the device before.
                return Knocked::Open(segment.unit.clone());
            }
            Answer::Exhausted => Knocked::Exhausted,
            Answer::Refused => Knocked::Refused,
        };
        self.knocks.remove(&connection);
        answered
    }

    /// Lets in a session whose login has knocked, and was told that its segment is open. `stands` says whether its plan and
    /// its key stand.
    ///
    /// # Errors
    /// When the segment was closed or fenced, or the plan ended, while the login waited.
    ///
    /// # Panics
    /// When it has knocked at another segment.
    pub fn enter(
        &mut self,
        session: S,
        now: Moment,
        stands: impl FnOnce(&S) -> bool,
    ) -> Result<(), Late> {
        let (key, connection) = (session.segment(), session.connection());
        let knock = self.knocks.remove(&connection).ok_or(Late)?;
        assert_eq!(knock.segment, key, "a session is let in where its login has knocked");
        let segment = self.segments.get_mut(&key).filter(|_| knock.answer == Answer::Open(()));
        let segment = segment.ok_or(Late)?;
        assert_eq!(segment.stage, Stage::Open, "a login waits for it");
        let stands = stands(&session) || planted(Planted::EndedPlanLetIn);
        if !stands || !session.holds(segment.fence.generation(), now) {
            return Err(Late);
        }
        segment.sessions.push(session);
        Ok(())
    }

    /// A connection is gone whose login has perhaps knocked, and was not let in.
    pub fn gone(&mut self, connection: ConnectionId) {
        self.knocks.remove(&connection);
    }

    /// A session is gone, and none of its commands runs any more.
    ///
    /// # Panics
    /// When one does, or the session was not let in, or has left before.
    pub fn left(&mut self, session: &S, now: Duration) {
        let connection = session.connection();
        assert_eq!(session.running().count(), 0, "a session leaves its segment under a command");
        let Some(segment) = self.segments.get_mut(&session.segment()) else {
            // That was closed, and waited for commands alone.
            return assert!(session.running().has_ended(), "{connection:?}: its segment is gone");
        };
        let before = segment.sessions.len();
        segment.sessions.retain(|known| known.connection() != connection);
        let is_known = before > segment.sessions.len();
        assert!(is_known || session.running().has_ended(), "{connection:?} leaves once");
        if is_known && segment.sessions.is_empty() {
            segment.idle_since = now;
        }
        self.settle();
    }

    /// How the opening of a device went. False when the segment's owner has closed it meanwhile.
    ///
    /// # Panics
    /// When it was not to be opened.
    pub fn opened(
        &mut self,
        key: SegmentKey,
        opened: Result<Generation, Unopened>,
        now: Duration,
    ) -> bool {
        let Some(segment) = self.segments.get_mut(&key) else { unreachable!("opened unasked") };
        let Stage::Opening { is_wanted } = segment.stage else {
            unreachable!("a device is opened of a segment that is {:?}", segment.stage)
        };
        let realm = segment.realm;
        match opened {
            Ok(generation) => {
                segment.fence.raise(generation);
                (segment.idle_since, segment.has_unit) = (now, true);
                if is_wanted {
                    segment.stage = Stage::Open;
                    self.answer_all(realm, Answer::Open(()));
                } else {
                    segment.stage = Stage::Closing(Then::Forget);
                    self.actions.push_back(Action::Close(key, segment.unit.clone()));
                }
            }
            Err(why) => {
                segment.stage = Stage::Asleep;
                let is_kept = is_wanted && segment.has_unit;
                let answer = match why {
                    Unopened::Unusable => Answer::Refused,
                    Unopened::Exhausted => Answer::Exhausted,
                };
                self.answer_all(realm, answer);
                if !is_kept {
                    self.forget(key);
                    self.settle();
                }
            }
        }
        is_wanted
    }

    /// The device of a segment is closed, and somebody is registered with its logical unit, or nobody is.
    ///
    /// # Panics
    /// When it was not to be closed.
    pub fn closed(&mut self, key: SegmentKey, holds_reservations: bool) {
        let Some(segment) = self.segments.get_mut(&key) else { unreachable!("closed unasked") };
        let Stage::Closing(then) = segment.stage else {
            unreachable!("a device is closed of a segment that is {:?}", segment.stage)
        };
        segment.holds_reservations = holds_reservations;
        match then {
            Then::Sleep => segment.stage = Stage::Asleep,
            Then::Reopen => {
                segment.stage = Stage::Opening { is_wanted: true };
                self.actions.push_back(Action::Open(key, segment.unit.clone()));
            }
            Then::Forget => {
                self.forget(key);
                self.settle();
            }
        }
    }

    /// To be called each [`WATCH_INTERVAL`]: ends the sessions whose grants are over, or do not stand any more, closes the
    /// devices that nobody uses, and gives up orders that have waited for too long. `wall` is the wall clock.
    pub fn poll(&mut self, now: Duration, wall: Moment, stands: impl Fn(&S) -> bool) {
        let Self { segments, actions, knocks, .. } = self;
        for (key, segment) in segments.iter_mut() {
            let generation = segment.fence.generation();
            for session in &segment.sessions {
                if session.generation() < generation {
                    end(session, Why::Fenced, actions);
                } else if !session.holds(generation, wall) || !stands(session) {
                    end(session, Why::Over, actions);
                }
            }
            let uses = |session: &S| {
                !(session.running().has_ended() && planted(Planted::EndedSessionUsesNothing))
            };
            let is_used = segment.sessions.iter().any(uses)
                || knocks.values().any(|knock| knock.realm == segment.realm);
            let is_idle = now.saturating_sub(segment.idle_since) >= self.idle_limit;
            if segment.stage == Stage::Open && !is_used && is_idle {
                segment.stage = Stage::Closing(Then::Sleep);
                actions.push_back(Action::Close(*key, segment.unit.clone()));
            }
        }
        self.forget_excess();
        self.settle();
        self.give_up_orders(now);
    }

    /// How many sessions of a plan go on; each holds until then, if that is later than what it has.
    pub fn extend(&self, plan: PlanKey, until: Moment) -> usize {
        let sessions = self.sessions_of(plan);
        sessions
            .inspect(|session| session.extend_permit(until))
            .filter(|session| !session.running().has_ended())
            .count()
    }

    /// The sessions of a plan, also those that were ended.
    pub fn sessions_of(&self, plan: PlanKey) -> impl Iterator<Item = &S> {
        self.sessions().filter(move |session| session.plan() == plan)
    }

    fn sessions(&self) -> impl Iterator<Item = &S> {
        self.segments.values().flat_map(|segment| &segment.sessions)
    }

    /// Tells the logins that wait for a segment, or were told that it is open.
    fn answer_all(&mut self, realm: Realm, answer: Answer) {
        for (connection, knock) in &mut self.knocks {
            if knock.realm == realm && matches!(knock.answer, Answer::Later | Answer::Open(())) {
                knock.answer = answer;
                self.actions.push_back(Action::Wake(*connection));
            }
        }
    }

    fn forget(&mut self, key: SegmentKey) {
        let Some(segment) = self.segments.remove(&key) else { return };
        // Their connections may still be there, and commands that their permits are about to refuse.
        let have_ended = segment.sessions.iter().all(|session| session.running().has_ended());
        assert!(have_ended, "segment {} is forgotten under a session", key.1);
        self.actions.push_back(Action::Forget(segment.unit));
    }

    fn forget_excess(&mut self) {
        let asleep = self.segments.iter().filter(|(_, segment)| segment.stage == Stage::Asleep);
        let count = asleep.clone().count();
        if count <= ASLEEP_MAX {
            return;
        }
        let mut idle: Vec<(Duration, SegmentKey)> = asleep
            .filter(|(_, segment)| !segment.holds_reservations)
            .map(|(key, segment)| (segment.idle_since, *key))
            .collect();
        idle.sort_unstable();
        idle.truncate(count - ASLEEP_MAX);
        idle.into_iter().for_each(|(_, key)| self.forget(key));
    }
}

/// Nothing of the session begins any more. False when that was so already.
fn end<U, S: Deref<Target: Session> + Clone>(
    session: &S,
    why: Why,
    actions: &mut VecDeque<Action<U, S>>,
) -> bool {
    session.end_permit();
    let is_first = session.running().end();
    if is_first {
        actions.push_back(Action::Drop(session.clone(), why));
    }
    is_first
}
