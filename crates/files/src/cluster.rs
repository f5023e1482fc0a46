//! A mediator, as its clients use it.

use std::{path::Path, time::Duration};

use netraid_cluster::{
    Code, Problem,
    access::{AccessError, AccessFile, Bearer},
    documents::WITH_BEATS,
    http::{Asked, Client, ClientError, RequestError, encode},
    mediator::{
        AccessEntry, AgentEntry, CheckReport, CleanClose, Close, Create, Entry, MediatorStatus,
        NewAccess, NewToken, Open, Page, PlanBeat, PlanBeaten, PlanPage, Rename, Replace, SetState,
        TransferPlan,
    },
};
use netraid_control::units::{AgentId, PlanId, RequestId, VolumeId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::watch;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A mediator; clones share its connections.
#[derive(Debug, Clone)]
pub struct Cluster {
    client: Client,
    /// How many plans were asked for and not given back yet.
    held: watch::Sender<usize>,
}

/// A plan that is to be given back; dropped when it was.
#[derive(Debug)]
pub(crate) struct Held(watch::Sender<usize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.send_modify(|held| *held -= 1);
    }
}

/// Why there is no way to a mediator.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The access file cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// What it says is none.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// An answer without content.
#[derive(Debug, Serialize, Deserialize)]
struct Nothing {}

impl Cluster {
    /// The mediator that an access file leads to. Nothing is asked yet.
    ///
    /// # Errors
    /// When the file is none.
    pub fn with_access_file(path: &Path) -> Result<Self, ConnectError> {
        Ok(Self::with_access(&AccessFile::read(path)?)?)
    }

    /// The mediator that this leads to.
    ///
    /// # Errors
    /// When it is none.
    pub fn with_access(access: &AccessFile) -> Result<Self, ClientError> {
        Ok(Self { client: Client::with_access(access, TIMEOUT)?, held: watch::Sender::new(0) })
    }

    /// The same mediator, which is waited for so long where it is not reached, as while it restarts: each request is sent
    /// again until then, and carried out once. Without this it is asked once.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { client: self.client.with_patience(patience), ..self }
    }

    /// The same mediator, which is asked once: for whoever asks again by rules of its own.
    pub(crate) fn at_once(&self) -> Self {
        self.clone().with_patience(Duration::ZERO)
    }

    /// The version of documents that is spoken with the mediator; none as long as it has not answered.
    #[must_use]
    pub fn documents(&self) -> Option<u32> {
        self.client.documents()
    }

    /// Waits until all that was opened through this or a clone of it was closed and given back, or could
    /// not be: also what was dropped instead. To be awaited before a runtime ends.
    pub async fn settled(&self) {
        // The other end is here.
        let _ = self.held.subscribe().wait_for(|held| *held == 0).await;
    }

    pub(crate) fn hold(&self) -> Held {
        self.held.send_modify(|held| *held += 1);
        Held(self.held.clone())
    }

    /// Makes a volume, data, or a directory.
    ///
    /// # Errors
    /// When it is refused: with an offer, where that is for want of space or rate.
    pub async fn create(&self, create: &Create) -> Result<Entry, RequestError> {
        let id = RequestId(rand::random());
        let Asked { answer, may_be_done } =
            self.client.post_again("/v1/names", create, Some(id)).await;
        let is_known_again = self.documents().is_some_and(|version| version >= WITH_BEATS);
        match answer {
            Err(RequestError::Refused(problem))
                if may_be_done && !is_known_again && problem.code == Code::Exists =>
            {
                let detail = format!(
                    "{}; the answer to the same request was lost before that, so this one may have made it: \
                     look at it with `netraid stat`",
                    problem.detail
                );
                Err(Problem { detail, ..problem }.into())
            }
            answer => answer,
        }
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// When there is none.
    pub async fn stat(&self, path: &str) -> Result<Entry, RequestError> {
        self.client.get(&format!("/v1/name?path={}", encode(path))).await
    }

    /// The upload of a name: what [`Create::upload`] made, and nobody finds by the name yet.
    ///
    /// # Errors
    /// When there is none.
    pub async fn stat_upload(&self, path: &str) -> Result<Entry, RequestError> {
        self.client.get(&format!("/v1/name?path={}&upload=true", encode(path))).await
    }

    /// What is in a directory: a page after some name.
    ///
    /// # Errors
    /// When there is none.
    pub async fn list(&self, path: &str, after: Option<&str>) -> Result<Page, RequestError> {
        let after = after.map(|after| format!("&after={}", encode(after))).unwrap_or_default();
        self.client.get(&format!("/v1/names?path={}{after}", encode(path))).await
    }

    /// The uploads of names in a directory: a page after some name.
    ///
    /// # Errors
    /// When there is no such directory.
    pub async fn list_uploads(
        &self,
        path: &str,
        after: Option<&str>,
    ) -> Result<Page, RequestError> {
        let after = after.map(|after| format!("&after={}", encode(after))).unwrap_or_default();
        self.client.get(&format!("/v1/names?path={}&uploads=true{after}", encode(path))).await
    }

    /// Gives something another name; with an id, if it is still that.
    ///
    /// # Errors
    /// When it is not there, or the other name is taken.
    pub async fn rename(
        &self,
        from: &str,
        to: &str,
        id: Option<VolumeId>,
    ) -> Result<Entry, RequestError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        let rename = Rename { from, to, replace: false, force: false, id, upload: false };
        self.rename_once(rename).await
    }

    /// Gives something another name as [`Cluster::rename`] does, and removes what has that name, in one
    /// step: nobody finds anything under it but the one or the other, whole. With `force`,
    /// although somebody uses what is removed.
    ///
    /// # Errors
    /// When it is not there, or what has the name is in use, or of another kind.
    pub async fn replace_name(
        &self,
        from: &str,
        to: &str,
        id: Option<VolumeId>,
        force: bool,
    ) -> Result<Entry, RequestError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        let rename = Rename { from, to, replace: true, force, id, upload: false };
        self.rename_once(rename).await
    }

    /// Gives the name of an upload to it, all of which is there; with `replace`, removes what has that
    /// name in the same step. Asked again because an answer was lost, it says what it said before.
    ///
    /// # Errors
    /// When the upload is another one by now, is not whole, or somebody writes to it; when the name is
    /// taken and is not to be replaced, or what has it is in use.
    pub async fn publish(
        &self,
        path: &str,
        id: VolumeId,
        replace: bool,
    ) -> Result<Entry, RequestError> {
        let (from, to, id) = (path.to_owned(), path.to_owned(), Some(id));
        let rename = Rename { from, to, replace, force: false, id, upload: true };
        self.rename_once(rename).await
    }

    /// Of what is renamed again although it was, the other name says that it was done.
    async fn rename_once(&self, mut rename: Rename) -> Result<Entry, RequestError> {
        if rename.id.is_none() {
            rename.id = Some(self.stat(&rename.from).await?.id);
        }
        let Asked { answer, may_be_done } =
            self.client.post_again("/v1/rename", &rename, None).await;
        match answer {
            Err(refused @ RequestError::Refused(_)) if may_be_done => {
                let there = self.stat(&rename.to).await.ok();
                there.filter(|there| Some(there.id) == rename.id).ok_or(refused)
            }
            answer => answer,
        }
    }

    /// Removes something; with `force`, although somebody uses it.
    ///
    /// # Errors
    /// When it is not there, is in use, or a directory that is not empty.
    pub async fn remove(&self, path: &str, force: bool) -> Result<(), RequestError> {
        self.remove_with(path, force, None, "").await
    }

    /// Removes a volume; with `force`, although somebody uses it.
    ///
    /// # Errors
    /// When it is not there, is no volume, or is in use.
    pub async fn remove_volume(&self, path: &str, force: bool) -> Result<(), RequestError> {
        self.remove_with(path, force, None, "&kind=volume").await
    }

    /// Removes the upload of a name, with an id, if it is still that; with `force`, although somebody
    /// uses it.
    ///
    /// # Errors
    /// When there is none, it is another one by now, or in use.
    pub async fn remove_upload(
        &self,
        path: &str,
        id: Option<VolumeId>,
        force: bool,
    ) -> Result<(), RequestError> {
        self.remove_with(path, force, id, "&upload=true").await
    }

    /// By its id: what has the name when this is asked again may be something else.
    async fn remove_with(
        &self,
        path: &str,
        force: bool,
        id: Option<VolumeId>,
        what: &str,
    ) -> Result<(), RequestError> {
        let id = match id {
            Some(id) => id,
            None => self.look(path, what).await?.id,
        };
        let named = format!("/v1/name?path={}&force={force}&id={id}{what}", encode(path));
        let Asked { answer, may_be_done } = self.client.delete_again::<Nothing>(&named).await;
        match answer {
            Err(refused @ RequestError::Refused(_)) if may_be_done => {
                match self.look(path, what).await {
                    Ok(there) if there.id == id => Err(refused),
                    Err(lost @ RequestError::Lost { .. }) => Err(lost),
                    Err(RequestError::Refused(problem)) if problem.code != Code::Absent => {
                        Err(refused)
                    }
                    Ok(_) | Err(RequestError::Refused(_)) => Ok(()),
                }
            }
            answer => answer.map(drop),
        }
    }

    async fn look(&self, path: &str, what: &str) -> Result<Entry, RequestError> {
        self.client.get(&format!("/v1/name?path={}{what}", encode(path))).await
    }

    /// Asks for a plan.
    ///
    /// # Errors
    /// When it is refused: with an offer, where that is for want of rate.
    pub async fn open(&self, open: &Open) -> Result<TransferPlan, RequestError> {
        self.open_asked(open).await.answer
    }

    /// As [`Cluster::open`]: the same plan says that it is the same request.
    pub(crate) async fn open_asked(&self, open: &Open) -> Asked<TransferPlan> {
        self.client.post_again("/v1/plans", open, None).await
    }

    /// Prolongs a plan.
    ///
    /// # Errors
    /// When it is not in force any more, or nobody answers.
    pub async fn renew(&self, plan: PlanId) -> Result<TransferPlan, RequestError> {
        self.again(&format!("/v1/plans/{plan}/renew"), &Nothing {}).await
    }

    /// Says that the client of a plan is there.
    ///
    /// # Errors
    /// When the plan is not in force any more, or nobody answers.
    pub(crate) async fn beat(
        &self,
        plan: PlanId,
        beat: &PlanBeat,
    ) -> Result<PlanBeaten, RequestError> {
        self.again(&format!("/v1/plans/{plan}/beat"), beat).await
    }

    /// Whether the mediator is known to hear of clients by beats of their own.
    pub(crate) fn hears_beats(&self) -> bool {
        self.documents().is_some_and(|version| version >= WITH_BEATS)
    }

    /// Says what became of what is open.
    ///
    /// # Errors
    /// When the plan is not in force any more, or nobody answers.
    pub async fn set_state(&self, plan: PlanId, state: &SetState) -> Result<Entry, RequestError> {
        self.again(&format!("/v1/plans/{plan}/state"), state).await
    }

    /// Asks for a segment in the place of a lost one.
    ///
    /// # Errors
    /// When there is none.
    pub async fn replace(
        &self,
        plan: PlanId,
        replace: &Replace,
    ) -> Result<TransferPlan, RequestError> {
        self.again(&format!("/v1/plans/{plan}/replace"), replace).await
    }

    /// Gives a plan back, with the key that was drawn for it: nothing that was asked for under it is
    /// under way any more. Says how a writer left the array, where it closed that in good order.
    ///
    /// # Errors
    /// When it is another key, or nobody answers.
    pub async fn close(
        &self,
        plan: PlanId,
        key: &Bearer,
        clean_close: Option<CleanClose>,
    ) -> Result<(), RequestError> {
        let close = Close { key: key.clone(), clean_close };
        let path = format!("/v1/plans/{plan}/close");
        done_before(self.client.post_again::<_, Nothing>(&path, &close, None).await)
    }

    /// Ends a plan, and shuts out whoever has it.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn end(&self, plan: PlanId) -> Result<(), RequestError> {
        done_before(self.client.delete_again::<Nothing>(&format!("/v1/plans/{plan}")).await)
    }

    /// Plans in force: a page after some plan.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub async fn plans(&self, after: Option<PlanId>) -> Result<PlanPage, RequestError> {
        let after = after.map(|after| format!("?after={after}")).unwrap_or_default();
        self.client.get(&format!("/v1/plans{after}")).await
    }

    /// All agents.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub async fn agents(&self) -> Result<Vec<AgentEntry>, RequestError> {
        self.client.get("/v1/agents").await
    }

    /// `drain`, `undrain` or `retire` an agent.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub async fn change_agent(
        &self,
        agent: AgentId,
        change: &str,
    ) -> Result<AgentEntry, RequestError> {
        self.again(&format!("/v1/agents/{agent}/{change}"), &Nothing {}).await
    }

    /// Asks for what changes nothing more a second time.
    async fn again<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<A, RequestError> {
        self.client.post_again(path, body, None).await.answer
    }

    /// A new bearer token.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub async fn new_access(&self, new: &NewAccess) -> Result<NewToken, RequestError> {
        self.client.post("/v1/access", new).await
    }

    /// All bearer tokens, without themselves.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub async fn access(&self) -> Result<Vec<AccessEntry>, RequestError> {
        self.client.get("/v1/access").await
    }

    /// Compares what agents have booked with what the mediator knows.
    ///
    /// # Errors
    /// When it is refused, or nobody answers.
    pub async fn check(&self) -> Result<CheckReport, RequestError> {
        self.client.get("/v1/check").await
    }

    /// How the mediator is.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn status(&self) -> Result<MediatorStatus, RequestError> {
        self.client.get("/v1/status").await
    }
}

/// What is not there a second time was removed by the first one.
fn done_before(asked: Asked<Nothing>) -> Result<(), RequestError> {
    match asked.answer {
        Err(RequestError::Refused(problem))
            if asked.may_be_done && problem.code == Code::Absent =>
        {
            Ok(())
        }
        answer => answer.map(drop),
    }
}
