//! Keeps a volume open: renews its plan, and has lost members replaced.
//!
//! Invariant: no request is made to the mediator while data waits for it: this task and the array's are two.

mod beat;
mod care;

use std::{mem, time::Duration};

use netraid_block::narrow;
use netraid_cluster::{
    Code,
    access::Bearer,
    http::RequestError,
    mediator::{CleanClose, Mode, Replace, SetState, TransferPlan},
};
use netraid_control::{
    promise,
    units::{PlanId, Rate, SegmentId},
};
use netraid_engine::{
    array::{self, Array, ArrayError, ArrayHandle, Event, HostLock, LabelReport, MemberConfig},
    control::MemberStatus,
    initiator::Credentials,
};
use netraid_raid::{assemble, member::MemberIndex};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    Cluster, Error,
    cluster::Held,
    volume::{Order, credentials, member_uri, spread},
};
use beat::Beat;
use care::{Care, Condition};

/// From a renewal that had no answer to the next one.
const RETRY: Duration = Duration::from_secs(1);
/// How often members that are away are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// From a replacement that was refused to the next attempt.
const REPLACE_RETRY: Duration = Duration::from_secs(10);
/// A rebuild is not slower than this, in bytes a second.
const REBUILD_RATE_MIN: u64 = 512 << 10;
/// Why a plan is over of which nothing was heard.
const NOT_PROLONGED: &str = "the mediator did not prolong the plan in time";
/// How long a last word to the mediator is tried.
const LAST_WORD: Duration = Duration::from_secs(30);
/// How long it is tried to give a plan back of which nobody says that others can use what it is of.
pub(crate) const GIVE_BACK: Duration = Duration::from_secs(2);

/// A member's place in an open array.
pub(crate) struct Place {
    pub(crate) segment: SegmentId,
    /// Replaced by each renewal.
    pub(crate) credentials: watch::Sender<Credentials>,
    pub(crate) config: MemberConfig,
    pub(crate) away_since: Option<Instant>,
    /// It took the place of a lost one, and the array does not have it yet.
    pub(crate) fresh: bool,
    /// The segment that the array has there; none while that is not certain.
    pub(crate) in_array: Option<SegmentId>,
    /// It took the place of a lost one, and the mediator was not told that it is rebuilt.
    pub(crate) is_untold: bool,
}

impl Place {
    /// Whether the mediator is to be told that its segment is rebuilt. Another one that is in sync in its
    /// place says nothing: who was given up may be back before the new one takes part.
    fn is_rebuilt_untold(&self, state: &str) -> bool {
        self.is_untold && self.in_array == Some(self.segment) && state == "in_sync"
    }

    /// Its segment is about to be put in its place. Whatever comes of that, an array that has it already
    /// goes on having it.
    fn begin_join(&mut self) {
        self.in_array = self.in_array.filter(|own| *own == self.segment);
    }

    /// Whether the array has its segment, and looks for it at an address where it is not.
    fn is_elsewhere(&self, address: &str) -> bool {
        self.in_array == Some(self.segment) && self.config.address() != address
    }

    /// What a join that failed left uncertain is seen by the address that the array has there.
    fn learn(&mut self, address: &str) {
        if self.in_array.is_none() && address == self.config.address() {
            self.in_array = Some(self.segment);
        }
    }
}

/// A segment that is put in its place.
#[derive(Clone, Copy)]
enum Whose {
    /// It took the place of a lost one.
    New,
    /// It was there before.
    Own,
}

pub(crate) struct Keeper {
    /// Asked once: what has no answer is asked again by rules of the keeper's own.
    cluster: Cluster,
    /// Waited for as long as who opened the volume waits.
    patient: Cluster,
    /// Until the plan is given back.
    held: Held,
    array: Array,
    /// Keeps others of this machine out, where it writes.
    lock: Option<HostLock>,
    places: Vec<Place>,
    plan: TransferPlan,
    /// By which the plan is given back.
    close_key: Bearer,
    initiator: String,
    replace_after: Option<Duration>,
    events: mpsc::Sender<Event>,
    lost: watch::Sender<Option<String>>,
    /// When the plan ends unless it is renewed: counted from before it was asked for.
    ends_at: Instant,
    /// When the mediator was last asked for the plan.
    asked_at: Instant,
    renew_at: Instant,
    look_at: Instant,
    replace_at: Instant,
    /// Asked of the mediator, each in a task of its own.
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    renewing: bool,
    replacing: bool,
    telling: bool,
    /// How the array was when it was last looked at.
    condition: Condition,
    /// Says that this client is there, until this is dropped.
    _beat: Beat,
}

/// What the mediator said, and when it was asked; or what became of a replacement.
enum Answer {
    Renewed(Instant, Result<TransferPlan, RequestError>),
    Replaced(Instant, usize, Result<TransferPlan, RequestError>),
    Joined(usize, SegmentId, Result<(), NotJoined>),
    /// It says that the plan is not there any more.
    Gone,
    /// Whether it knows now that these are rebuilt.
    Told(Vec<SegmentId>, Result<(), RequestError>),
}

/// Why a segment does not take part in the array.
#[derive(Debug, PartialEq, Eq)]
enum NotJoined {
    /// The array pauses: nothing is said of the segment by that.
    Paused,
    /// In words.
    Refused(String),
}

impl From<ArrayError> for NotJoined {
    fn from(error: ArrayError) -> Self {
        if let ArrayError::Paused = error {
            return Self::Paused;
        }
        Self::Refused(error.to_string())
    }
}

impl Keeper {
    pub(crate) fn new(
        (cluster, held): (Cluster, Held),
        (array, lock): (Array, Option<HostLock>),
        places: Vec<Place>,
        (plan, close_key): (TransferPlan, Bearer),
        (initiator, replace_after): (String, Option<Duration>),
        (events, lost): (mpsc::Sender<Event>, watch::Sender<Option<String>>),
        began: Instant,
    ) -> Self {
        let now = Instant::now();
        let answers = mpsc::channel(16);
        let beat = Beat::start(cluster.at_once(), plan.plan, answers.0.clone());
        let mut this = Self {
            cluster: cluster.at_once(),
            patient: cluster,
            held,
            array,
            lock,
            places,
            plan,
            close_key,
            initiator,
            replace_after,
            events,
            lost,
            ends_at: now,
            asked_at: began,
            renew_at: now,
            look_at: now,
            replace_at: now,
            answers,
            renewing: false,
            replacing: false,
            telling: false,
            condition: Condition::Serves,
            _beat: beat,
        };
        this.holds_from(began);
        this
    }

    /// Until it is told to close, or the array or the plan has ended.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let rate = self.plan.rate;
        let limit = (rate > Rate::ZERO).then(|| promise::rebuild(rate).0.max(REBUILD_RATE_MIN));
        if self.array.handle().limit_rebuild(limit).await.is_err() {
            return self.end_with_array().await;
        }
        loop {
            let next = self.renew_at.min(self.look_at).min(self.ends_at);
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::State(state, reply)) => {
                        let (cluster, plan) = (self.patient.clone(), self.plan.plan);
                        tokio::spawn(async move {
                            let end = cluster.set_state(plan, &state).await;
                            // Whoever asked may have gone.
                            let _ = reply.send(end.map_err(Error::from));
                        });
                    }
                    Some(Order::Close(length, reply)) => return self.close(length, Some(reply)).await,
                    None => return self.close(None, None).await,
                },
                event = self.array.event() => match event {
                    Some(event) => self.take_event(event),
                    None => return self.end_with_array().await,
                },
                Some(answer) = self.answers.1.recv() => {
                    if let Err(why) = self.take_answer(answer) {
                        return self.give_up(&why).await;
                    }
                }
                () = sleep_until(next) => {
                    let now = Instant::now();
                    if now >= self.ends_at {
                        return self.give_up(NOT_PROLONGED).await;
                    }
                    if now >= self.renew_at {
                        self.renew(now);
                    }
                    if now >= self.look_at {
                        self.look(now).await;
                    }
                }
            }
        }
    }

    fn term(&self) -> Duration {
        Duration::from_millis(self.plan.for_ms.max(1))
    }

    /// The plan holds for its term from this moment on.
    fn holds_from(&mut self, asked: Instant) {
        let term = self.term();
        self.ends_at = asked + term;
        self.renew_at = asked + term.mul_f64(0.25 + 0.1 * spread(self.plan.plan));
    }

    fn renew(&mut self, now: Instant) {
        self.renew_at = now + RETRY.min(self.term() / 4);
        if self.renewing {
            return;
        }
        self.renewing = true;
        self.asked_at = now;
        let (cluster, plan, sender) =
            (self.cluster.clone(), self.plan.plan, self.answers.0.clone());
        tokio::spawn(async move {
            // The keeper has ended: nobody needs it.
            let _ = sender.send(Answer::Renewed(now, cluster.renew(plan).await)).await;
        });
    }

    /// Looks for members that are away for too long, or new.
    async fn look(&mut self, now: Instant) {
        self.look_at = now + LOOK;
        let Ok(status) = self.array.handle().status().await else { return };
        if status.read_only {
            return;
        }
        let condition = Condition::of(&status);
        let before = mem::replace(&mut self.condition, condition);
        self.renew_at = care::renew_at((before, condition), (self.asked_at, self.renew_at), now);
        let members = &status.members;
        care::take_note(&mut self.places, condition, members, (now, self.replacing));
        self.tell_moves(members).await;
        if condition != Condition::Serves {
            return;
        }
        self.tell_rebuilt(members);
        if self.replacing || now < self.replace_at {
            return;
        }
        match care::next(&self.places, members, (now, self.replace_after)) {
            Some(Care::Ask(at)) => self.ask_for_another(at, now),
            Some(Care::Join(at)) => self.join(at, Whose::New),
            None => {}
        }
    }

    /// Tells the array where its members are, until it has them there: what it learns by looking for one may be older.
    async fn tell_moves(&self, members: &[MemberStatus]) {
        for (at, (place, member)) in self.places.iter().zip(members).enumerate() {
            if place.is_elsewhere(&member.url) {
                // The array may be closing: then nobody looks for members.
                let told = self.array.handle().moved(MemberIndex(narrow(at)), place.config.clone());
                let _ = told.await;
            }
        }
    }

    /// Tells the mediator what is rebuilt, until it knows.
    fn tell_rebuilt(&mut self, members: &[MemberStatus]) {
        if self.telling {
            return;
        }
        let places = self.places.iter().zip(members);
        let untold = places.filter(|(place, member)| place.is_rebuilt_untold(&member.state));
        let rebuilt: Vec<SegmentId> = untold.map(|(place, _)| place.segment).collect();
        if rebuilt.is_empty() {
            return;
        }
        self.telling = true;
        let (cluster, plan, sender) =
            (self.cluster.clone(), self.plan.plan, self.answers.0.clone());
        tokio::spawn(async move {
            let state = SetState { formatted: false, length_bytes: None, rebuilt: rebuilt.clone() };
            let end = cluster.set_state(plan, &state).await.map(drop);
            // The keeper has ended: whoever opens it next finds the member whole, and says so.
            let _ = sender.send(Answer::Told(rebuilt, end)).await;
        });
    }

    fn ask_for_another(&mut self, at: usize, now: Instant) {
        self.replacing = true;
        let member = narrow::<_, u16>(at);
        let replace = Replace { member, segment: self.places[at].segment };
        let (cluster, plan, sender) =
            (self.cluster.clone(), self.plan.plan, self.answers.0.clone());
        tracing::info!(member, "a member is away; another segment is asked for");
        tokio::spawn(async move {
            let answer = cluster.replace(plan, &replace).await;
            // The keeper has ended: nobody needs it.
            let _ = sender.send(Answer::Replaced(now, at, answer)).await;
        });
    }

    /// Puts a member's segment in its place in the array. Its own one only where it has nothing of the
    /// array, as it was away when that was made: one that has something comes back by itself.
    fn join(&mut self, at: usize, whose: Whose) {
        self.replacing = true;
        let (handle, sender) = (self.array.handle().clone(), self.answers.0.clone());
        let place = &mut self.places[at];
        let (config, segment) = (place.config.clone(), place.segment);
        place.begin_join();
        let member = MemberIndex(narrow(at));
        tokio::spawn(async move {
            let end = match whose {
                Whose::New => handle.replace(member, config).await.map_err(NotJoined::from),
                Whose::Own => replace_if_empty(&handle, member, config).await,
            };
            // The keeper has ended: nobody needs it.
            let _ = sender.send(Answer::Joined(at, segment, end)).await;
        });
    }

    /// # Errors
    /// When the plan is over.
    fn take_answer(&mut self, answer: Answer) -> Result<(), String> {
        match answer {
            Answer::Renewed(asked, answer) => {
                self.renewing = false;
                match answer {
                    Ok(plan) => self.adopt(asked, plan)?,
                    Err(error) => Self::is_over(&error)?,
                }
            }
            // A renewal says so for certain, and why.
            Answer::Gone => self.renew_at = Instant::now(),
            Answer::Told(segments, end) => {
                self.telling = false;
                match end {
                    Ok(()) => {
                        for place in &mut self.places {
                            place.is_untold &= !segments.contains(&place.segment);
                        }
                    }
                    Err(error) => {
                        tracing::warn!("the mediator does not know yet what is rebuilt: {error}");
                    }
                }
            }
            Answer::Replaced(asked, at, answer) => {
                self.replacing = false;
                match answer {
                    Ok(plan) => {
                        self.adopt(asked, plan)?;
                        // An array that does not serve would refuse it; it is put there when it does.
                        if self.places[at].fresh && self.condition == Condition::Serves {
                            self.join(at, Whose::New);
                        }
                    }
                    Err(error) => {
                        self.replace_at = Instant::now() + REPLACE_RETRY;
                        tracing::warn!(
                            member = at,
                            "no segment in the place of a lost one: {error}"
                        );
                        Self::is_over(&error)?;
                        if error.problem().is_some() && self.condition == Condition::Serves {
                            self.join(at, Whose::Own);
                        }
                    }
                }
            }
            Answer::Joined(at, segment, end) => {
                self.replacing = false;
                match end {
                    Ok(()) => {
                        let place = &mut self.places[at];
                        place.fresh &= place.segment != segment;
                        place.in_array = Some(segment);
                    }
                    Err(NotJoined::Paused) => {
                        tracing::info!(member = at, "a new segment waits until the array goes on");
                    }
                    Err(NotJoined::Refused(error)) => {
                        self.replace_at = Instant::now() + REPLACE_RETRY;
                        tracing::warn!(member = at, "a new segment does not take part: {error}");
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a refusal says that the plan is in force no more.
    fn is_over(error: &RequestError) -> Result<(), String> {
        match error.problem().map(|problem| problem.code) {
            Some(Code::Absent | Code::Unauthorized) => Err(error.to_string()),
            _ => {
                tracing::warn!("the plan is not prolonged yet: {error}");
                Ok(())
            }
        }
    }

    /// Goes on under what the mediator says now.
    fn adopt(&mut self, asked: Instant, plan: TransferPlan) -> Result<(), String> {
        if plan.members.len() != self.places.len() || plan.generation != self.plan.generation {
            return Err("the mediator speaks of another array".to_owned());
        }
        let path = &plan.entry.path;
        for (at, (place, member)) in self.places.iter_mut().zip(&plan.members).enumerate() {
            let told = |error: Error| error.to_string();
            if place.segment == member.segment {
                place.fresh &= member.fresh;
                place.is_untold &= member.fresh;
                place.credentials.send_replace(credentials(path, member).map_err(told)?);
                // A mediator that has lost sight of an agent does not say where that is: it stays where it was.
                if let Ok(uri) = member_uri(path, member) {
                    place.config.uri = uri;
                    self.look_at = asked;
                }
            } else {
                match Place::new(path, member, &self.initiator) {
                    Ok(new) => {
                        let (fresh, is_untold, in_array) = (true, true, place.in_array);
                        *place = Place { fresh, is_untold, in_array, ..new };
                    }
                    // Its agent is out of sight: the next renewal says where it is.
                    Err(error) => {
                        tracing::warn!(member = at, "a new segment is not reached yet: {error}");
                    }
                }
            }
        }
        self.plan = plan;
        self.holds_from(asked);
        Ok(())
    }

    fn take_event(&self, event: Event) {
        // Nobody fetches them, or not fast enough: they are in the log.
        let _ = self.events.try_send(event);
    }

    async fn close(self, length: Option<u64>, reply: Option<oneshot::Sender<Result<(), Error>>>) {
        let path = self.plan.entry.path.clone();
        let end = self.close_all(length).await;
        if let Err(error) = &end {
            tracing::debug!(path, "closed with: {error}");
        }
        if let Some(reply) = reply {
            // Whoever asked may have gone.
            let _ = reply.send(end);
        }
    }

    /// The array first: what it says of data has to be stable before the mediator says it. Whatever
    /// becomes of that, nobody else has to wait for the plan's end.
    async fn close_all(self, length: Option<u64>) -> Result<(), Error> {
        let Self { cluster, held, array, lock, places, plan, close_key, renew_at, ends_at, .. } =
            self;
        let (path, plan, writes) = (plan.entry.path, plan.plan, plan.mode == Mode::Write);
        let shown = path.clone();
        let handle = array.handle().clone();
        // What closes does not wait for members; an array that has ended is told so below.
        let _ = handle.pause_no_more().await;
        let closed = tokio::select! {
            closed = array.close() => match closed {
                Ok(clean_close) => Ok(clean_close),
                Err(source) => Err(Error::Array { path, source: Box::new(source) }),
            },
            // Closing may take longer than the plan lasts.
            why = keep_renewing(&cluster, plan, (renew_at, ends_at)) => {
                handle.abandon().await;
                Err(Error::Lost { path, why })
            }
        };
        let said = match &closed {
            Ok(close) => {
                let rebuilt = close.as_ref().map(|close| rebuilt_untold(close, &places));
                let last = (length, rebuilt.unwrap_or_default());
                say_last(&cluster, plan, last, ends_at).await
            }
            Err(_) => Ok(()),
        };
        let (stopped, end) = match closed {
            Ok(clean_close) => {
                let close = clean_close.map(|close| by_segment(&close, &places));
                (Some((&close_key, close)), Ok(()))
            }
            Err(error) => (None, Err(error)),
        };
        // Whoever has the plan next may be on this machine.
        drop(lock);
        let patience = if length.is_some() { LAST_WORD } else { GIVE_BACK };
        let given_back = give_back(&cluster, plan, stopped, patience).await;
        drop(held);
        end?;
        said?;
        match given_back {
            Err(why) if writes => Err(Error::Kept { path: shown, plan, why: why.to_string() }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Nobody can read or write any more: nobody else is to wait for the plan's end.
    async fn end_with_array(self) {
        self.fail("the array has ended");
        let Self { cluster, array, lock, plan, .. } = self;
        drop((array, lock));
        // That it has ended is what there is to say.
        let _ = give_back(&cluster, plan.plan, None, GIVE_BACK).await;
    }

    fn fail(&self, why: &str) {
        self.lost.send_replace(Some(why.to_owned()));
    }

    /// The plan is over: agents let this side in no more.
    async fn give_up(self, why: &str) {
        tracing::error!(path = self.plan.entry.path, "no longer open: {why}");
        self.fail(why);
        // What is not stable yet cannot be made so.
        self.array.handle().abandon().await;
    }
}

/// Puts a segment in a member's place, unless it has something that was written, and that is believed.
async fn replace_if_empty(
    handle: &ArrayHandle,
    member: MemberIndex,
    config: MemberConfig,
) -> Result<(), NotJoined> {
    // It is held against how the array is afterwards: an array that pauses meanwhile, and goes on with it, gives it a newer
    // label.
    let found = array::examine(vec![config.clone()], netraid_engine::pool()).await;
    let array = handle.status().await?;
    if Condition::of(&array) == Condition::Pauses {
        return Err(NotJoined::Paused);
    }
    let own = found.into_iter().find_map(|one| one.label).filter(|own| own.name == array.name);
    let is_ahead =
        |own: &LabelReport| (own.generation, own.epoch) > (array.generation, array.epoch);
    match own {
        // What it says the array never was: it was left out, and nothing that it has counts.
        Some(own) if own.array_uuid == array.uuid && is_ahead(&own) => {
            Ok(handle.replace(member, config).await?)
        }
        Some(own) if own.array_uuid == array.uuid => Ok(()),
        // Its making was cut short, and nobody ever opened it.
        Some(own) if !own.was_opened() => Ok(handle.replace(member, config).await?),
        Some(own) => Err(NotJoined::Refused(format!(
            "it has data of another array '{}' ({}): it is left as it is",
            own.name, own.array_uuid
        ))),
        None => Ok(handle.replace(member, config).await?),
    }
}

/// Says of how many bytes data is, until the mediator knows or the plan has ended; and what is rebuilt, which
/// whoever opens it next would say too.
async fn say_last(
    cluster: &Cluster,
    plan: PlanId,
    (length_bytes, rebuilt): (Option<u64>, Vec<SegmentId>),
    ends_at: Instant,
) -> Result<(), RequestError> {
    if length_bytes.is_none() && rebuilt.is_empty() {
        return Ok(());
    }
    let state = SetState { formatted: false, length_bytes, rebuilt };
    let until = match length_bytes {
        Some(_) => ends_at.max(Instant::now() + LAST_WORD),
        None => Instant::now() + GIVE_BACK,
    };
    loop {
        match cluster.set_state(plan, &state).await {
            Err(RequestError::Lost { .. }) if Instant::now() < until => {
                tokio::time::sleep(RETRY).await;
            }
            Err(error) if length_bytes.is_none() => {
                tracing::warn!("the mediator does not know yet what is rebuilt: {error}");
                return Ok(());
            }
            said => return said.map(drop),
        }
    }
}

/// Segments that took the place of lost ones and hold everything, of which the mediator was not told.
fn rebuilt_untold(close: &assemble::CleanClose, places: &[Place]) -> Vec<SegmentId> {
    let whole = (0..).map(MemberIndex).zip(places).filter(|(at, _)| close.in_sync.contains(*at));
    let untold = whole.filter(|(_, place)| place.is_rebuilt_untold("in_sync"));
    untold.map(|(_, place)| place.segment).collect()
}

/// Who held everything when the array was closed, by the segments that it had.
fn by_segment(close: &assemble::CleanClose, places: &[Place]) -> CleanClose {
    let held_all = (0..).map(MemberIndex).zip(places).filter(|(at, _)| close.in_sync.contains(*at));
    let in_sync = held_all.filter_map(|(_, place)| place.in_array).collect();
    CleanClose { generation: close.generation, epoch: close.epoch, in_sync }
}

/// Gives a plan back: with its key, and how the array was left, where nothing is under way any more;
/// else whatever is late is shut out. A mediator that does not answer is asked again for that long.
pub(crate) async fn give_back(
    cluster: &Cluster,
    plan: PlanId,
    stopped: Option<(&Bearer, Option<CleanClose>)>,
    patience: Duration,
) -> Result<(), RequestError> {
    let until = Instant::now() + patience;
    loop {
        let end = match &stopped {
            Some((key, clean_close)) => cluster.close(plan, key, clean_close.clone()).await,
            None => cluster.end(plan).await,
        };
        let Err(error) = end else { return Ok(()) };
        match error.problem().map(|problem| problem.code) {
            // It was given back, and the answer was lost; or others took it.
            Some(Code::Absent) => return Ok(()),
            None | Some(Code::Unavailable | Code::Conflict) if Instant::now() < until => {
                tokio::time::sleep(RETRY.min(patience / 4)).await;
            }
            _ => {
                tracing::warn!(%plan, "the plan ends by itself: {error}");
                return Err(error);
            }
        }
    }
}

/// Prolongs a plan until that is over: why it is.
async fn keep_renewing(
    cluster: &Cluster,
    plan: PlanId,
    (mut renew_at, mut ends_at): (Instant, Instant),
) -> String {
    loop {
        sleep_until(renew_at.min(ends_at)).await;
        let asked = Instant::now();
        if asked >= ends_at {
            return NOT_PROLONGED.to_owned();
        }
        renew_at = asked + RETRY;
        match timeout_at(ends_at, cluster.renew(plan)).await {
            Ok(Ok(renewed)) => {
                let term = Duration::from_millis(renewed.for_ms.max(1));
                (renew_at, ends_at) = (asked + (term / 3).max(RETRY), asked + term);
            }
            Ok(Err(error)) => {
                if let Err(why) = Keeper::is_over(&error) {
                    return why;
                }
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
