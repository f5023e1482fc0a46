//! The distribution agent: a volume that is open under a transfer plan.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    time::Duration,
};

use netraid_block::{Device, Pool, TargetUri, narrow};
use netraid_cluster::{
    Code,
    access::Bearer,
    http::Asked,
    mediator::{Entry, Kind, Mode, Open, PlanMember, SetState, TransferPlan},
};
use netraid_control::units::{PlanId, Rate, VolumeId};
use netraid_engine::{
    array::{Array, ArrayHandle, Caches, Event, HostLock, MemberConfig},
    bytes::ByteDevice,
    control::ArrayStatus,
    initiator::{Credentials, Secret},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
    time::Instant,
};

use crate::{
    Cluster, Error,
    assemble::{Failed, assemble},
    cluster::Held,
    keeper::{GIVE_BACK, Keeper, Place, give_back},
    takeover,
};

/// Bytes of requests that one member has at a time, at most, as whole files are moved.
const UNDER_WAY_MAX: u64 = 16 << 20;
/// How often it is looked whether all members hold everything.
const LOOK: Duration = Duration::from_millis(100);
/// How long requests wait for members, as is usual.
const PAUSE: Duration = Duration::from_secs(60);
/// Plans that are asked for one after the other where a mediator ended in the middle, at most; from one to the next.
const PLANS_MAX: u32 = 5;
const AGAIN: Duration = Duration::from_millis(500);
/// Events that wait to be fetched; more are dropped, they are in the log too.
const EVENTS_MAX: usize = 1024;

/// How a volume is opened.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// To read, or to write.
    pub mode: Mode,
    /// Bytes a second that are to be there whatever others do; zero for no promise.
    pub rate: Rate,
    /// Bytes a second at most; none for no limit.
    pub limit: Option<Rate>,
    /// Bytes of the requests that it is used by, where a rate is promised.
    pub request_bytes: u64,
    /// Whether the rate is promised while members are lost, too.
    pub degraded: bool,
    /// How long it stays open when the mediator is not heard of; its usual when none.
    pub term: Option<Duration>,
    /// Whether whoever has it now is fenced, unless a process of this machine has it. Nobody is where the
    /// volume could not be opened then, as far as that can be told before.
    pub take_over: bool,
    /// Whether the upload of the name is meant.
    pub upload: bool,
    /// Refused when the name stands for anything else than this; for whatever it is when none.
    pub id: Option<VolumeId>,
    /// Refused when it is of another kind; of whatever kind it is when none.
    pub kind: Option<Kind>,
    /// How long a member may be away before another segment takes its place; never when none.
    pub replace_after: Option<Duration>,
    /// How long requests wait while so many members are away that the others cannot serve; zero: the volume fails at once. One
    /// without a log, or to read, always does.
    pub pause: Duration,
    /// iSCSI name of this side; one of this host when none.
    pub initiator: Option<String>,
    /// What the array keeps in memory.
    pub caches: Caches,
}

impl VolumeOptions {
    /// The usual for that mode.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            rate: Rate::ZERO,
            limit: None,
            request_bytes: 1 << 20,
            degraded: true,
            term: None,
            take_over: false,
            upload: false,
            id: None,
            kind: None,
            replace_after: Some(Duration::from_secs(30)),
            pause: PAUSE,
            initiator: None,
            caches: Caches::default(),
        }
    }
}

/// An open volume. Dropped without [`Volume::close`] it is closed by its keeper, as long as the
/// runtime goes on ([`Cluster::settled`]), and nobody hears of an error.
#[derive(Debug)]
pub struct Volume {
    path: String,
    plan: PlanId,
    entry: Entry,
    device: Device,
    bytes: ByteDevice,
    handle: ArrayHandle,
    notes: Vec<String>,
    events: mpsc::Receiver<Event>,
    lost: watch::Receiver<Option<String>>,
    orders: mpsc::Sender<Order>,
    keeper: JoinHandle<()>,
}

/// What the keeper of a volume is told.
pub(crate) enum Order {
    /// Say something of the volume to the mediator.
    State(SetState, oneshot::Sender<Result<Entry, Error>>),
    /// Close the array, then give the plan back.
    Close(Option<u64>, oneshot::Sender<Result<(), Error>>),
}

/// Asks for a plan; with what was asked for, the key by which it is closed, and when that was asked.
async fn ask_for_plan(
    cluster: &Cluster,
    path: &str,
    options: &VolumeOptions,
    id: Option<VolumeId>,
) -> Result<(TransferPlan, Open, Bearer, Instant), Error> {
    let mut attempts = 0;
    loop {
        let (plan, close_key) = (PlanId(rand::random()), Bearer::draw());
        let open = Open {
            path: path.to_owned(),
            mode: options.mode,
            initiator: options.initiator.clone().unwrap_or_else(|| initiator_name(plan)),
            rate: options.rate,
            limit: options.limit,
            request_bytes: Some(options.request_bytes),
            degraded: options.degraded,
            // Clamped: so long is as good as for ever.
            for_ms: options.term.map(|term| u64::try_from(term.as_millis()).unwrap_or(u64::MAX)),
            take_over: options.take_over,
            plan: Some(plan),
            close_key: Some(close_key.clone()),
            upload: options.upload,
            id,
            kind: options.kind,
        };
        let began = Instant::now();
        let Asked { answer, may_be_done } = cluster.open_asked(&open).await;
        let error = match answer {
            Ok(granted) => return Ok((granted, open, close_key, began)),
            Err(error) => error,
        };
        // It may have been granted all the same: then nobody else is to wait for its end.
        let code = error.problem().map(|problem| problem.code);
        if may_be_done || matches!(code, None | Some(Code::Internal | Code::Unavailable)) {
            let _ = cluster.at_once().close(plan, &close_key, None).await;
        }
        attempts += 1;
        // A mediator that ended in the middle took the plan back at its next start, and that does not come again.
        let is_taken_back = may_be_done && code == Some(Code::Conflict);
        if !is_taken_back || attempts == PLANS_MAX {
            return Err(error.into());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Volume {
    /// Opens what has this name: asks for a plan, logs in to its agents, writes the labels if that was
    /// never done, and runs the array. When this is dropped before its end, what it opens is closed by
    /// itself.
    ///
    /// # Errors
    /// When the plan is refused, or its agents do not make up the array.
    pub async fn open(
        cluster: &Cluster,
        path: &str,
        options: VolumeOptions,
        pool: &Pool,
    ) -> Result<Self, Error> {
        // Whoever does not wait for its end leaves it to this task: it is closed then.
        let (cluster, held, pool) = (cluster.clone(), cluster.hold(), pool.clone());
        let opening = tokio::spawn({
            let path = path.to_owned();
            async move { Self::open_held((cluster, held), &path, options, &pool).await }
        });
        let ended =
            |error: JoinError| Error::Lost { path: path.to_owned(), why: error.to_string() };
        opening.await.map_err(ended)?
    }

    async fn open_held(
        (cluster, held): (Cluster, Held),
        path: &str,
        options: VolumeOptions,
        pool: &Pool,
    ) -> Result<Self, Error> {
        let (mut id, mut lock) = (options.id, None);
        if options.take_over {
            let prepared = takeover::prepare(&cluster, path, &options).await?;
            (id, lock) = (id.or(Some(prepared.0)), prepared.1);
        }
        let (granted, open, close_key, began) = ask_for_plan(&cluster, path, &options, id).await?;
        let (plan, initiator) = (granted.plan, open.initiator);
        let opened = match (lock, options.mode) {
            (None, Mode::Write) => takeover::lock(path, granted.entry.id).map(Some),
            (lock, _) => Ok(lock),
        };
        let opened = match opened {
            Ok(lock) => assemble(&cluster, &granted, &initiator, &options, pool)
                .await
                .map(|(array, places)| (array, places, lock)),
            Err(error) => Err(Failed { error, is_as_before: true }),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(Failed { error, is_as_before }) => {
                // What it sent last may still be under way, unless it only looked.
                let stopped = is_as_before.then_some((&close_key, granted.clean_close));
                // Why it is not open is said before that it was not given back.
                let _ = give_back(&cluster.at_once(), plan, stopped, GIVE_BACK).await;
                return Err(error);
            }
        };
        let keeps = (initiator, options.replace_after);
        Ok(Self::keep((cluster, held), (granted, close_key), opened, keeps, began))
    }

    fn keep(
        cluster: (Cluster, Held),
        (granted, close_key): (TransferPlan, Bearer),
        (array, places, lock): (Array, Vec<Place>, Option<HostLock>),
        (initiator, replace_after): (String, Option<Duration>),
        began: Instant,
    ) -> Self {
        let (device, handle) = (array.device().clone(), array.handle().clone());
        let notes = array.notes().to_vec();
        let (orders, order_receiver) = mpsc::channel(16);
        let (event_sender, events) = mpsc::channel(EVENTS_MAX);
        let (lost_sender, lost) = watch::channel(None);
        let (path, plan, entry) = (granted.entry.path.clone(), granted.plan, granted.entry.clone());
        let keeper = Keeper::new(
            cluster,
            (array, lock),
            places,
            (granted, close_key),
            (initiator, replace_after),
            (event_sender, lost_sender),
            began,
        );
        let keeper = tokio::spawn(keeper.run(order_receiver));
        let bytes = ByteDevice::new(device.clone());
        Self { path, plan, entry, device, bytes, handle, notes, events, lost, orders, keeper }
    }

    /// Whether this host has what it takes to open something of the shape of `entry` to write: asked before
    /// `entry` is thrown away for it. Its own lock may be held.
    ///
    /// # Errors
    /// When locks cannot be taken here, or this process may open too few files and sockets.
    pub fn check_host(entry: &Entry) -> Result<(), Error> {
        takeover::check_host(entry)
    }

    /// Its path when it was opened.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What it was when it was opened.
    #[must_use]
    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The plan that it is open under.
    #[must_use]
    pub const fn plan(&self) -> PlanId {
        self.plan
    }

    /// The array's blocks.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The array's bytes. All writers of partial blocks have to share this.
    #[must_use]
    pub const fn bytes(&self) -> &ByteDevice {
        &self.bytes
    }

    /// A way to command the array.
    #[must_use]
    pub const fn handle(&self) -> &ArrayHandle {
        &self.handle
    }

    /// What was noticed while it was opened, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The next event; cancel safe. None when the array has ended.
    pub async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Waits until all members hold everything, or `limit` has passed: whether they do.
    ///
    /// # Errors
    /// When the array has ended.
    pub async fn whole(&self, limit: Duration) -> Result<bool, Error> {
        self.whole_shown(limit, |_| {}).await
    }

    /// The same; each look at how the array is is shown.
    ///
    /// # Errors
    /// As of [`Self::whole`].
    pub async fn whole_shown(
        &self,
        limit: Duration,
        mut show: impl FnMut(&ArrayStatus),
    ) -> Result<bool, Error> {
        let end = Instant::now() + limit;
        loop {
            let status = self.handle.status().await.map_err(|_| self.ended())?;
            show(&status);
            match (status.state.as_str(), Instant::now() < end) {
                ("optimal", _) => return Ok(true),
                ("failed", _) | (_, false) => return Ok(false),
                (_, true) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Why it is no longer open, if so: it was fenced, or the mediator was away for too long.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lost.borrow().clone()
    }

    /// Says something of it to the mediator.
    ///
    /// # Errors
    /// When the plan is not in force any more, or nobody answers.
    pub async fn set_state(&self, state: SetState) -> Result<Entry, Error> {
        let (reply, answer) = oneshot::channel();
        // What cannot be sent is dropped, and its reply with it: that ends the wait.
        drop(self.orders.send(Order::State(state, reply)).await);
        answer.await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Makes all stable, says of how many bytes the data is, closes the array, and gives the plan
    /// back: others may have it at once. A mediator that does not answer is asked again for half a minute
    /// where there is a length to say, else for a few seconds.
    ///
    /// # Errors
    /// When the array has failed, or the length could not be said; [`Error::Kept`] of a writer when all is
    /// done but that the mediator does not know that the plan was given back.
    pub async fn close(self, length_bytes: Option<u64>) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        // What cannot be sent is dropped, and its reply with it: that ends the wait.
        drop(self.orders.send(Order::Close(length_bytes, reply)).await);
        let end = answer.await.unwrap_or_else(|_| Err(self.ended()));
        // It ends right after it answered.
        let _ = self.keeper.await;
        end
    }

    /// Closes it in the background: of so many bytes the data is.
    pub(crate) fn let_go(self, length_bytes: Option<u64>) {
        let (reply, _) = oneshot::channel();
        // Where there is no room for it, it is closed all the same when the last order is done.
        let _ = self.orders.try_send(Order::Close(length_bytes, reply));
    }

    fn ended(&self) -> Error {
        let why = self.lost().unwrap_or_else(|| "the array has ended".to_owned());
        Error::Lost { path: self.path.clone(), why }
    }
}

/// The name of this side in a plan: one of its own, so that nobody else's sessions are mixed up
/// with it.
fn initiator_name(plan: PlanId) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let host = host.trim().to_ascii_lowercase();
    let host: String = host.chars().filter(|c| plain(*c)).take(60).collect();
    format!("iqn.2026-01.io.netraid:client.{host}.{plan}")
}

/// How long a member of a promised rate may refuse connections: its client has a second of buffer, and the
/// others give what it does not.
const REFUSAL_LIMIT_OF_A_RATE: Duration = Duration::from_millis(200);

impl Place {
    /// How a member of a plan is reached.
    pub(crate) fn new(path: &str, member: &PlanMember, initiator: &str) -> Result<Self, Error> {
        let uri = member_uri(path, member)?;
        let (credentials, live) = watch::channel(credentials(path, member)?);
        let mut config = MemberConfig::new(uri, None);
        config.live_credentials = Some(live);
        config.initiator_name = Some(initiator.to_owned());
        config.request_timeout = patience(member.rate);
        if member.rate.0 > 0 {
            config.refusal_limit = REFUSAL_LIMIT_OF_A_RATE;
        }
        Ok(Self {
            segment: member.segment,
            credentials,
            config,
            away_since: None,
            fresh: member.fresh,
            in_array: Some(member.segment),
            is_untold: member.fresh,
        })
    }
}

/// Longest that an agent may take for a request of a client to whom it has promised so much: what may
/// be under way at a time takes its time at a low rate, and without one others go first. An agent that
/// does not answer at all is noticed before.
fn patience(promised: Rate) -> Duration {
    // No rate: the longest.
    let ms = (UNDER_WAY_MAX * 1000).checked_div(promised.0).unwrap_or(u64::MAX);
    Duration::from_millis(ms).clamp(Duration::from_secs(5), Duration::from_secs(30))
}

/// Where a member of a plan is.
pub(crate) fn member_uri(path: &str, member: &PlanMember) -> Result<TargetUri, Error> {
    let address = format!("iscsi://{}/{}/0", member.portal, member.target);
    let wrong = |why: String| Error::Plan { path: path.to_owned(), why };
    TargetUri::parse(&address).map_err(|error| wrong(error.to_string()))
}

/// The token that opens a member of a plan.
pub(crate) fn credentials(path: &str, member: &PlanMember) -> Result<Credentials, Error> {
    let secret = Secret::new(member.chap_secret.as_bytes())
        .map_err(|error| Error::Plan { path: path.to_owned(), why: error.to_string() })?;
    Ok(Credentials { user: member.chap_name.clone(), secret })
}

/// Something between zero and one that is the same for a plan each time: so that renewals of many
/// plans do not come at one moment.
pub(crate) fn spread(plan: PlanId) -> f64 {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    f64::from(narrow::<_, u16>(hasher.finish() & 0xffff)) / 65_536.0
}
