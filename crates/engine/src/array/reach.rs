//! A device that may be, or become, a member: what [`netraid_raid::access`] asks of it is asked here.

use netraid_block::Pool;
use netraid_raid::{
    access::{Answer, Ask},
    fencing::steps::Steps,
    medium,
};

use super::{
    error::ArrayError,
    member::{Connected, MemberConfig},
};

/// A device, and the sessions to it where there are any.
#[derive(Debug)]
pub(super) struct Reached {
    config: MemberConfig,
    pool: Pool,
    session: Option<Connected>,
}

impl Reached {
    /// How to reach it; there is no session yet.
    pub(super) const fn new(config: MemberConfig, pool: Pool) -> Self {
        Self { config, pool, session: None }
    }

    /// Its address, without secrets.
    pub(super) fn address(&self) -> String {
        self.config.address()
    }

    /// How it is reached.
    pub(super) const fn config(&self) -> &MemberConfig {
        &self.config
    }

    /// The sessions to it.
    ///
    /// # Panics
    /// When there are none.
    pub(super) fn take_session(&mut self) -> Connected {
        let Some(session) = self.session.take() else {
            unreachable!("{} is used, and there is no session to it", self.config.address())
        };
        session
    }

    /// Asks the device.
    pub(super) async fn ask(&mut self, ask: Ask) -> Answer<ArrayError> {
        match ask {
            Ask::Visit => {
                self.connect(Connected::visit(self.config.clone(), self.pool.clone()).await).await
            }
            Ask::TakeOver { array, former } => {
                let config = self.config.clone();
                let end = Connected::take_over(config, &array, &former, self.pool.clone()).await;
                self.connect(end).await
            }
            Ask::Close => {
                if let Some(session) = self.session.take() {
                    session.remote.close().await;
                }
                Answer::Done
            }
            Ask::Leave => {
                if let Some(mut session) = self.session.take() {
                    session.leave().await;
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
            | Ask::Announce { .. }
            | Ask::FenceKnown { .. }
            | Ask::ProveWritable { .. }
            | Ask::ReserveTables(_) => match &mut self.session {
                Some(session) => session.answer(ask).await,
                None => {
                    unreachable!("{} is asked {ask:?} without a session", self.config.address())
                }
            },
        }
    }

    /// The session that was made replaces the one before.
    async fn connect(&mut self, end: Result<Connected, ArrayError>) -> Answer<ArrayError> {
        match end {
            Ok(session) => {
                let info = session.device.info().clone();
                if let Some(visit) = self.session.replace(session) {
                    visit.remote.close().await;
                }
                Answer::Device(info)
            }
            Err(error) => Answer::Failed(error),
        }
    }
}

impl Connected {
    /// Asks the device what needs a session.
    async fn answer(&mut self, ask: Ask) -> Answer<ArrayError> {
        let done = match ask {
            Ask::Label => {
                let label = self.label().await;
                return or_failed(label.map(|label| Answer::Label(label.map(Box::new))));
            }
            Ask::Checkpoint(array) => {
                return Answer::Checkpoint(medium::checkpoint(self, array).await);
            }
            Ask::Read { offset, len, what } => {
                return or_failed(self.read(offset, len, what).await.map(Answer::Bytes));
            }
            Ask::Keys => {
                let keys = self.remote.reservation_keys().await;
                let keys = keys.map_err(|reason| self.fail("reading its reservation keys", reason));
                let keys =
                    keys.map(|found| Answer::Keys { keys: found.keys, is_cut: found.is_cut });
                return or_failed(keys);
            }
            Ask::Fence(fence) => {
                return self.fenced(Steps::fence(self.standing, fence)).await;
            }
            Ask::Announce { fence, known } => {
                return self.fenced(Steps::announce(self.standing, fence, known)).await;
            }
            Ask::FenceAgain { fence, known } => {
                return self.fenced(Steps::fence_again(self.standing, fence, known)).await;
            }
            Ask::FenceKnown { fence, known } => {
                return self.fenced(Steps::fence_known(self.standing, fence, known)).await;
            }
            Ask::Unused => medium::check_unused(self).await,
            Ask::ProveWritable { data_end } => {
                self.cache_losses = self.remote.cache_losses();
                medium::prove_writable(self, data_end).await
            }
            Ask::ReserveTables(regions) => medium::reserve_tables(self, &regions).await,
            Ask::Visit | Ask::TakeOver { .. } | Ask::Close | Ask::Leave => {
                unreachable!("{ask:?} is not asked of a session")
            }
        };
        or_failed(done.map(|()| Answer::Done))
    }

    async fn fenced(&mut self, steps: Steps) -> Answer<ArrayError> {
        match self.fence(steps).await {
            Ok(()) => Answer::Fenced { exclusive: self.standing.exclusive },
            Err(error) => Answer::NotFenced(error),
        }
    }
}

fn or_failed(end: Result<Answer<ArrayError>, ArrayError>) -> Answer<ArrayError> {
    end.unwrap_or_else(Answer::Failed)
}
