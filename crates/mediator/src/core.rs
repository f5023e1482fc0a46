//! What all requests share: the store, agents, keys, who may do what, and what is under way.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use netraid_block::narrow;
use netraid_cluster::{Problem, now, store::Store};
use netraid_control::{
    clients::Clients,
    keys::{KEY_LEN, Ring, RootKey, Rotation},
    raise::Beliefs,
    units::{AgentId, MediatorId, Moment, PlanId, VolumeId},
};
use rusqlite::Connection;
use tokio::sync::Notify;

use crate::{
    access::{AccessBook, Caller},
    agents::Agents,
    audit::Audit,
    lock,
    store::{Sql, change, decode, encode, meta, set_meta},
};

/// What is shared.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: MediatorId,
    pub(crate) store: Store,
    pub(crate) agents: Arc<Agents>,
    pub(crate) access: AccessBook,
    pub(crate) keys: Mutex<Ring<RootKey>>,
    pub(crate) rotation: Rotation,
    /// How long a plan lasts when nobody says, in milliseconds.
    pub(crate) term_ms: u64,
    pub(crate) names: AtomicU64,
    pub(crate) bookings: Counter,
    /// Plans that a request works on.
    pub(crate) busy_plans: Busy<PlanId>,
    /// Volumes that are being made, or get another member.
    pub(crate) busy_volumes: Busy<VolumeId>,
    /// Volumes whose agents were asked, since the mediator started, whether they have the generation
    /// that its store says: it may be an older copy.
    pub(crate) known: Mutex<HashSet<VolumeId>>,
    /// Agents that were believed to have a later generation than the store.
    pub(crate) beliefs: Mutex<Beliefs>,
    /// Agents that were told of plans that are over and whose rows are set aside, until those are forgotten.
    pub(crate) told_aside: Mutex<BTreeMap<PlanId, (Moment, BTreeSet<AgentId>)>>,
    /// Clients of plans that were heard of since the mediator started.
    pub(crate) clients: Mutex<Clients>,
    /// When that was.
    pub(crate) began: Instant,
    /// Something is to be done in the background.
    pub(crate) wake: Notify,
    pub(crate) audit: Audit,
}

/// How many of something there are.
#[derive(Debug, Default)]
pub(crate) struct Counter(Arc<AtomicU64>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicU64>);

impl Counter {
    pub(crate) fn count(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.0))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let were = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(were > 0, "one goes that was not counted");
    }
}

/// Things that somebody works on, alone.
#[derive(Debug)]
pub(crate) struct Busy<T: Ord>(Arc<Mutex<BTreeSet<T>>>);

/// Until this is dropped.
#[derive(Debug)]
pub(crate) struct BusyGuard<T: Ord + Copy> {
    set: Arc<Mutex<BTreeSet<T>>>,
    id: T,
}

impl<T: Ord> Default for Busy<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Ord + Copy> Busy<T> {
    /// Alone with it from now on; none when somebody else is.
    pub(crate) fn enter(&self, id: T) -> Option<BusyGuard<T>> {
        let is_new = lock(&self.0).insert(id);
        is_new.then(|| BusyGuard { set: Arc::clone(&self.0), id })
    }
}

impl<T: Ord + Copy> Drop for BusyGuard<T> {
    fn drop(&mut self) {
        let was_there = lock(&self.set).remove(&self.id);
        assert!(was_there, "somebody else was let in meanwhile");
    }
}

/// Who this mediator is; drawn at its first start.
pub(crate) fn identity(connection: &Connection) -> Sql<MediatorId> {
    if let Some(text) = meta(connection, "mediator")? {
        return decode(&text);
    }
    let id = MediatorId(rand::random());
    set_meta(connection, "mediator", &encode(&id)?)?;
    Ok(id)
}

/// The mediator's keys, as they are stored.
pub(crate) fn load_keys(connection: &Connection) -> Sql<Ring<RootKey>> {
    let Some(text) = meta(connection, "keys")? else { return Ok(Ring::default()) };
    Ring::restore(&decode(&text)?)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

impl Core {
    /// Makes a new key if it is time for one: stored before anything is signed with it.
    pub(crate) async fn rotate(&self) -> Result<(), Problem> {
        let mut ring = lock(&self.keys).clone();
        if ring.next_timeout(&self.rotation) > now() {
            return Ok(());
        }
        let bytes: [u8; KEY_LEN] = rand::random();
        let made = ring.rotate(now(), &self.rotation, &bytes);
        made.map_err(|error| Problem::internal(error.to_string()))?;
        let stored = ring.expose();
        change(&self.store, move |connection| {
            set_meta(connection, "keys", &encode(&stored)?)?;
            Ok(Ok(()))
        })
        .await?;
        *lock(&self.keys) = ring;
        Ok(())
    }

    /// Milliseconds since the mediator started.
    pub(crate) fn running_ms(&self) -> u64 {
        narrow(self.began.elapsed().as_millis())
    }

    /// Notes what somebody did, and what came of it.
    pub(crate) fn note<T>(&self, caller: &Caller, what: &str, outcome: &Result<T, Problem>) {
        let text = match outcome {
            Ok(_) => "done".to_owned(),
            Err(problem) => format!("{:?}: {}", problem.code, problem.detail),
        };
        self.audit.note(&self.store, &caller.name, caller.role.name(), what, &text);
    }
}
