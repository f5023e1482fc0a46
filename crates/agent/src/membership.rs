//! For whom the agent works: joining a mediator, being heard of by it, its keys, and the end of that.
//!
//! A membership is durable before anybody is told that there is one, and so are new keys before they count.
//! After a restart the agent is heard of again; it joins once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use netraid_cluster::{
    Code, Problem,
    access::{AccessFile, Bearer},
    agent::Fault,
    http::{Client, ClientError, RequestError},
    mediator::{Beat, Beaten, Join, Joined},
    now,
    store::{Store, StoreError},
};
use netraid_control::{
    clocks::Difference,
    keys::{Key, KeyError, MEDIATORS_MAX, Ring},
    text::shown,
    units::{AgentId, MediatorId},
};
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    api::{MemberStatus, StatusSource},
    audit::Audit,
    keeper::Keeper,
    records::{Membership, MembershipAside, put_membership},
    view::{Caller, View},
};

/// How long a mediator has to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Bounds of how often a mediator is to hear of the agent, in milliseconds.
const BEAT_MS: std::ops::RangeInclusive<u64> = 50..=60_000;
/// The longest wait after beats that failed.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The memberships; clones are the same ones.
#[derive(Clone)]
pub(crate) struct Members(Arc<Inner>);

struct Inner {
    agent: AgentId,
    /// Whom mediators are to trust when they call.
    authority: Option<String>,
    store: Store,
    view: Arc<View>,
    keeper: Keeper,
    status: StatusSource,
    audit: Audit,
    members: Mutex<BTreeMap<MediatorId, Member>>,
    /// Mediators whose rows in the store are set aside, until the agent starts again.
    aside: Vec<MembershipAside>,
    /// Mediators for which the agent works no longer, and of which it has segments; and those whose keys are too many.
    former: Mutex<BTreeMap<MediatorId, Membership>>,
}

struct Member {
    membership: Membership,
    is_heard: bool,
    /// The version of documents that is spoken with it; none while it has not answered.
    documents: Option<u32>,
    /// Nothing of it is stored any more.
    is_ending: bool,
    /// Ends its task when it goes.
    _task: oneshot::Sender<()>,
}

/// Why a mediator was not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It refused, or cannot be reached.
    #[error("joining: {0}")]
    Request(#[from] RequestError),
    /// Its access file says nothing of use.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It sent keys that are none.
    #[error("joining: the mediator's keys: {0}")]
    Keys(#[from] KeyError),
    /// It says that it is a mediator that the agent knows, and is not.
    #[error(
        "joining: {} answers as mediator {mediator}, which the agent knows at {} by another key: it is not \
         that one, and gets nothing of it; when it is (its authority and all its signing keys were \
         replaced), give it the authority that it had",
        shown(.url), shown(.known)
    )]
    Stranger {
        /// Who it says that it is.
        mediator: MediatorId,
        /// Where it is.
        url: String,
        /// Where the agent knows that mediator.
        known: String,
    },
    /// What the store has of it was written by a later program.
    #[error("joining: {0}")]
    Aside(String),
    /// It is not kept.
    #[error("joining: {0}")]
    Store(#[from] StoreError),
    /// The agent ends.
    #[error("joining: {0}")]
    Agent(#[from] Fault),
}

/// What memberships need of the agent.
pub(crate) struct Of {
    pub(crate) agent: AgentId,
    pub(crate) authority: Option<String>,
    pub(crate) store: Store,
    pub(crate) view: Arc<View>,
    pub(crate) keeper: Keeper,
    pub(crate) status: StatusSource,
    pub(crate) audit: Audit,
    /// Mediators whose rows are set aside.
    pub(crate) aside: Vec<MembershipAside>,
}

impl Members {
    /// The memberships that a store holds; each is heard of from now on.
    ///
    /// One that cannot be used is named, and lets nobody in until the mediator was heard.
    pub(crate) fn start(of: Of, stored: Vec<(MediatorId, Membership)>) -> Self {
        let Of { agent, authority, store, view, keeper, status, audit, aside } = of;
        let (members, former) = (Mutex::default(), Mutex::default());
        let this = Self(Arc::new(Inner {
            agent,
            authority,
            store,
            view,
            keeper,
            status,
            audit,
            members,
            aside,
            former,
        }));
        for (mediator, membership) in stored {
            if membership.ended {
                this.former().insert(mediator, membership);
                continue;
            }
            if let Err(error) = this.take(mediator, membership.clone()) {
                // Nobody else joins as that mediator.
                this.former().insert(mediator, membership);
                tracing::error!(
                    "mediator {mediator} is set aside, and nobody is let in for it: {error}"
                );
            }
        }
        this
    }

    /// Whether there is a membership of the mediator at this URL.
    pub(crate) fn knows(&self, url: &str) -> bool {
        self.members().values().any(|member| member.membership.url == url)
    }

    pub(crate) fn is_draining(&self, mediator: MediatorId) -> bool {
        self.members().get(&mediator).is_some_and(|member| member.membership.draining)
    }

    /// Asks a mediator to be used.
    pub(crate) async fn join(&self, access: &AccessFile) -> Result<MediatorId, JoinError> {
        // Asked, the mediator would take back the token that the row has.
        let is_its = |aside: &MembershipAside| aside.url.as_ref() == Some(&access.mediator);
        self.check_aside(is_its).map_err(JoinError::Aside)?;
        let (mut mediator, mut membership) = self.ask_to_join(access).await?;
        let is_new = self.check(mediator, &membership);
        let vouched = self.known(mediator).and_then(|known| membership.vouched_by(&known));
        if let (Err(JoinError::Stranger { .. }), Some(authority)) = (&is_new, vouched) {
            // Of the authorities that the access file names the known one may be what vouches for it: then
            // its answer comes also when nobody else is trusted.
            let access = AccessFile { authority: Some(authority), ..access.clone() };
            (mediator, membership) = self.ask_to_join(&access).await?;
            self.check(mediator, &membership)?;
        } else {
            is_new?;
        }
        put_membership(&self.0.store, mediator, Some(membership.clone())).await?;
        self.0.audit.tell("joined", json!({ "mediator": mediator, "url": access.mediator }));
        self.take(mediator, membership)?;
        self.former().remove(&mediator);
        Ok(mediator)
    }

    /// Asks a mediator to be used: who it says that it is, and what it gave.
    async fn ask_to_join(
        &self,
        access: &AccessFile,
    ) -> Result<(MediatorId, Membership), JoinError> {
        let client = Client::with_access(access, ANSWER_LIMIT)?;
        let hears = Bearer::draw();
        let join = Join {
            status: self.0.status.status(false).await?,
            token: hears.expose().to_owned(),
            authority: self.0.authority.clone(),
        };
        let joined: Joined = client.post("/v1/agents", &join).await?;
        let Joined { mediator, token, beat_ms, keys } = joined;
        Ring::<Key>::restore(&keys)?;
        let (url, authority) = (access.mediator.clone(), access.authority.clone());
        let says = Bearer::from_text(token);
        // What it says from now on can be said.
        Client::new(&url, &says, authority.as_deref(), ANSWER_LIMIT)?;
        let membership = Membership::new(url, authority, says, hears.digest(), keys, beat_ms);
        Ok((mediator, membership))
    }

    /// What the agent knows, or knew while it worked for it, of a mediator of that id.
    fn known(&self, mediator: MediatorId) -> Option<Membership> {
        self.membership(mediator).or_else(|| self.former().get(&mediator).cloned())
    }

    /// Refuses a mediator whose row in the store is set aside: the row would be lost, and with it whom the agent knows
    /// by that id.
    fn check_aside(&self, is_its: impl Fn(&MembershipAside) -> bool) -> Result<(), String> {
        let Some(aside) = self.0.aside.iter().find(|aside| is_its(aside)) else { return Ok(()) };
        Err(format!(
            "mediator {}: the row of it in the agent's store (table memberships) is set aside, as this agent (netraid \
             {}) cannot read it, and nobody joins as that mediator: start the program that wrote the row or a later \
             one, or mend the row, and start the agent again",
            aside.mediator,
            env!("CARGO_PKG_VERSION")
        ))
    }

    /// Refuses a mediator that is not the one which the agent knows by that id, and one too many.
    fn check(&self, mediator: MediatorId, new: &Membership) -> Result<(), JoinError> {
        if let Err(why) = self.check_aside(|aside| aside.mediator == mediator) {
            let fields = json!({ "mediator": mediator, "url": new.url });
            self.0.audit.tell("join_refused", fields);
            return Err(JoinError::Aside(why));
        }
        if let Some(known) = self.known(mediator)
            && !known.bond().is_same(&new.bond())
        {
            let (url, known) = (new.url.clone(), known.url);
            let fields = json!({ "mediator": mediator, "url": url, "known": known });
            self.0.audit.tell("join_refused", fields);
            return Err(JoinError::Stranger { mediator, url, known });
        }
        let members = self.members();
        if members.len() >= MEDIATORS_MAX && !members.contains_key(&mediator) {
            return Err(KeyError::Mediators.into());
        }
        Ok(())
    }

    /// Joins, again and again until it is done.
    pub(crate) async fn join_in_time(&self, access: AccessFile) {
        let mut wait = Duration::from_millis(500);
        loop {
            match self.join(&access).await {
                Ok(mediator) => {
                    tracing::info!(%mediator, "joined");
                    return;
                }
                Err(error) => {
                    tracing::warn!("{error}; {} s until the next try", wait.as_secs_f32());
                }
            }
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(BACKOFF_MAX);
        }
    }

    /// Ends a membership.
    pub(crate) async fn leave(&self, mediator: MediatorId, force: bool) -> Result<(), Problem> {
        self.check_aside(|aside| aside.mediator == mediator)
            .map_err(|why| Problem::new(Code::Conflict, why))?;
        if !self.members().contains_key(&mediator) {
            return Err(Problem::absent(format!("the agent does not work for {mediator}")));
        }
        let count = self.0.keeper.change(move |book, _| book.count_segments(mediator)).await;
        let count = count.map_err(|fault| Problem::new(Code::Unavailable, fault.detail))?;
        if count > 0 && !force {
            let detail = format!(
                "mediator {mediator} has {count} segments here; drain the agent there first, or \
                 use --force: their data stays, and serves nobody"
            );
            return Err(Problem::new(Code::Conflict, detail));
        }
        self.end(mediator, "left").await.map_err(Problem::internal)
    }

    pub(crate) async fn report(&self) -> Result<Vec<MemberStatus>, Fault> {
        let members: Vec<_> = self
            .members()
            .iter()
            .map(|(mediator, member)| MemberStatus {
                mediator: *mediator,
                url: member.membership.url.clone(),
                draining: member.membership.draining,
                segments: 0,
                is_heard: member.is_heard,
                documents: member.documents,
            })
            .collect();
        let count = |book: &mut crate::book::Book, _| {
            let count = |member: MemberStatus| MemberStatus {
                segments: book.count_segments(member.mediator),
                ..member
            };
            members.into_iter().map(count).collect()
        };
        self.0.keeper.change(count).await
    }

    /// Lets a mediator in, and is heard of by it.
    fn take(&self, mediator: MediatorId, membership: Membership) -> Result<(), KeyError> {
        let ring = Ring::<Key>::restore(&membership.keys).unwrap_or_else(|error| {
            tracing::error!(%mediator, "its stored keys are of no use until it was heard: {error}");
            Ring::default()
        });
        let mut view = self.0.view.write();
        view.set_keys(mediator, ring, now())?;
        view.callers.retain(|_, caller| *caller != Caller::Mediator(mediator));
        if let Some(digest) = membership.hears() {
            view.callers.insert(digest, Caller::Mediator(mediator));
        }
        drop(view);
        let (task, ended) = oneshot::channel();
        let member =
            Member { membership, is_heard: false, documents: None, is_ending: false, _task: task };
        self.members().insert(mediator, member);
        let this = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = this.beat_on(mediator) => {}
                _ = ended => {}
            }
        });
        Ok(())
    }

    async fn beat_on(&self, mediator: MediatorId) {
        let mut failures = 0_u32;
        loop {
            let Some(membership) = self.membership(mediator) else { return };
            let beaten = self.beat(mediator, &membership).await;
            let is_heard = beaten.is_ok();
            if let Some(member) = self.members().get_mut(&mediator) {
                member.is_heard = is_heard;
            }
            let mut beat_ms = membership.beat_ms;
            match beaten {
                Ok(beaten) => {
                    if failures > 0 {
                        tracing::info!(%mediator, "hears of the agent again");
                    }
                    failures = 0;
                    beat_ms = beaten.beat_ms;
                    if let Err(why) = self.learn(mediator, membership, beaten).await {
                        tracing::error!(%mediator, "what it said is not kept: {why}");
                    }
                }
                Err(why) => {
                    if failures == 0 {
                        tracing::warn!(%mediator, "does not hear of the agent: {why}");
                    }
                    failures = failures.saturating_add(1);
                }
            }
            let pause = Duration::from_millis(beat_ms.clamp(*BEAT_MS.start(), *BEAT_MS.end()));
            let pause = pause * (1 << failures.saturating_sub(1).min(8));
            tokio::time::sleep(jittered(pause.min(BACKOFF_MAX))).await;
        }
    }

    async fn beat(
        &self,
        mediator: MediatorId,
        membership: &Membership,
    ) -> Result<Beaten, JoinError> {
        let Membership { url, says, authority, draining, .. } = membership;
        let client = Client::new(url, says, authority.as_deref(), ANSWER_LIMIT)?;
        let status = self.0.status.status(*draining).await?;
        let keys_mark = self.0.view.read().ring(mediator).map(Ring::mark).unwrap_or_default();
        let path = format!("/v1/agents/{}", self.0.agent);
        let beaten = client.put(&path, &Beat { status, keys_mark, clock: Some(now()) }).await?;
        if let Some(member) = self.members().get_mut(&mediator) {
            member.documents = client.documents();
        }
        Ok(beaten)
    }

    /// Keeps what a mediator said, durably first.
    async fn learn(
        &self,
        mediator: MediatorId,
        mut membership: Membership,
        beaten: Beaten,
    ) -> Result<(), String> {
        let Beaten { beat_ms, keys, draining, retired, clock_ahead_ms } = beaten;
        {
            let mut view = self.0.view.write();
            match clock_ahead_ms {
                Some(ahead_ms) => drop(view.clocks.insert(mediator, Difference { ahead_ms })),
                None => drop(view.clocks.remove(&mediator)),
            }
        }
        if retired {
            return self.end(mediator, "retired").await;
        }
        let ring = keys.as_ref().map(Ring::<Key>::restore).transpose();
        let ring = ring.map_err(|error| error.to_string())?;
        let drains = draining != membership.draining;
        if ring.is_none() && !drains && beat_ms == membership.beat_ms {
            return Ok(());
        }
        (membership.beat_ms, membership.draining) = (beat_ms, draining);
        if let Some(keys) = keys {
            membership.keys = keys;
        }
        if self.members().get(&mediator).is_none_or(|member| member.is_ending) {
            return Ok(());
        }
        let stored = put_membership(&self.0.store, mediator, Some(membership.clone())).await;
        stored.map_err(|error| error.to_string())?;
        if let Some(ring) = ring {
            let set = self.0.view.write().set_keys(mediator, ring, now());
            set.map_err(|error| error.to_string())?;
        }
        if drains {
            let fields = json!({ "mediator": mediator, "draining": draining });
            self.0.audit.tell("draining", fields);
            let set = self.0.keeper.change(move |book, _| book.set_draining(mediator, draining));
            set.await.map_err(|fault| fault.detail)?;
        }
        if let Some(member) = self.members().get_mut(&mediator) {
            member.membership = membership;
        }
        Ok(())
    }

    /// Forgets a mediator: it gets in no more, its tokens open nothing, and what it has booked is free
    /// but for space with data in it.
    async fn end(&self, mediator: MediatorId, how: &str) -> Result<(), String> {
        if let Some(member) = self.members().get_mut(&mediator) {
            member.is_ending = true;
        }
        let count = self.0.keeper.change(move |book, _| book.count_segments(mediator)).await;
        let count = count.map_err(|fault| fault.detail)?;
        let mut former = self.membership(mediator).filter(|_| count > 0);
        former.iter_mut().for_each(|former| former.ended = true);
        let stored = put_membership(&self.0.store, mediator, former.clone()).await;
        stored.map_err(|error| error.to_string())?;
        if let Some(former) = former {
            self.former().insert(mediator, former);
        }
        {
            let mut view = self.0.view.write();
            view.callers.retain(|_, caller| *caller != Caller::Mediator(mediator));
            view.keys.remove(mediator);
            view.clocks.remove(&mediator);
        }
        self.0.audit.tell("membership_ended", json!({ "mediator": mediator, "how": how }));
        let left = self.0.keeper.change(move |book, _| book.forget(mediator)).await;
        let left = left.and_then(|left| left).map_err(|fault| fault.detail)?;
        if left > 0 {
            tracing::error!(%mediator, "is forgotten, and {left} segments of it stay here");
        }
        // The task that may be the one that does this ends with it.
        self.members().remove(&mediator);
        Ok(())
    }

    fn membership(&self, mediator: MediatorId) -> Option<Membership> {
        self.members().get(&mediator).map(|member| member.membership.clone())
    }

    fn former(&self) -> MutexGuard<'_, BTreeMap<MediatorId, Membership>> {
        self.0.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<MediatorId, Member>> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About so long: not all agents at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.9..1.1))
}
