//! A device that may be, or become, a member: what [`netraid_raid::access`] asks of it is asked here, over a line.

use netraid_raid::{
    access::{Answer, Ask},
    fencing::steps::Steps,
    label::Uuid,
    medium,
};

use super::{
    device::{Connected, Failure},
    script::Desk,
};

/// A device, and the line to it where there is one.
#[derive(Debug)]
pub(super) struct Reached {
    desk: Desk,
    host: usize,
    /// The machine that this engine runs on.
    machine: Uuid,
    session: Option<Connected>,
}

impl Reached {
    /// There is no line yet.
    pub(super) const fn new(desk: Desk, host: usize, machine: Uuid) -> Self {
        Self { desk, host, machine, session: None }
    }

    /// The line to it.
    pub(super) fn take_session(&mut self) -> Connected {
        let Some(session) = self.session.take() else {
            unreachable!("host {} is used, and there is no line to it", self.host)
        };
        session
    }

    /// Asks the device.
    pub(super) async fn ask(&mut self, ask: Ask) -> Answer<Failure> {
        match ask {
            Ask::Visit => self.connect(Connected::visit(self.desk.clone(), self.host).await).await,
            Ask::TakeOver { array, former } => {
                let (desk, who) = (self.desk.clone(), (self.machine, array));
                self.connect(Connected::take_over(desk, self.host, who, &former).await).await
            }
            Ask::Close => {
                if let Some(session) = self.session.take() {
                    session.close().await;
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
                Some(session) => answer(session, ask).await,
                None => unreachable!("host {} is asked {ask:?} without a line", self.host),
            },
        }
    }

    /// The line that was made replaces the one before.
    async fn connect(&mut self, end: Result<Connected, Failure>) -> Answer<Failure> {
        match end {
            Ok(session) => {
                let info = session.info.clone();
                if let Some(visit) = self.session.replace(session) {
                    visit.close().await;
                }
                Answer::Device(info)
            }
            Err(failure) => Answer::Failed(failure),
        }
    }
}

/// Asks the device what needs a line.
async fn answer(session: &mut Connected, ask: Ask) -> Answer<Failure> {
    let done = match ask {
        Ask::Label => {
            let label = medium::label(session).await;
            return or_failed(label.map(|label| Answer::Label(label.map(Box::new))));
        }
        Ask::Checkpoint(array) => {
            return Answer::Checkpoint(medium::checkpoint(session, array).await);
        }
        Ask::Read { offset, len, what } => {
            return or_failed(medium::read(session, offset, len, what).await.map(Answer::Bytes));
        }
        Ask::Keys => {
            let keys = session.keys().await;
            let keys = keys.map_err(|error| Failure::Io("reading its reservation keys", error));
            return or_failed(keys.map(|(keys, is_cut)| Answer::Keys { keys, is_cut }));
        }
        Ask::Fence(fence) => {
            let steps = Steps::fence(session.standing, fence);
            return fenced(session, steps).await;
        }
        Ask::Announce { fence, known } => {
            return match session.announce(fence, known).await {
                Ok(()) => Answer::Fenced { exclusive: false },
                Err(error) => Answer::NotFenced(error),
            };
        }
        Ask::FenceAgain { fence, known } => {
            let steps = Steps::fence_again(session.standing, fence, known);
            return fenced(session, steps).await;
        }
        Ask::FenceKnown { fence, known } => {
            let steps = Steps::fence_known(session.standing, fence, known);
            return fenced(session, steps).await;
        }
        Ask::Unused => medium::check_unused(session).await,
        Ask::ProveWritable { data_end } => {
            session.note_losses();
            medium::prove_writable(session, data_end).await
        }
        Ask::ReserveTables(regions) => medium::reserve_tables(session, &regions).await,
        Ask::Visit | Ask::TakeOver { .. } | Ask::Close | Ask::Leave => {
            unreachable!("{ask:?} is not asked over a line")
        }
    };
    or_failed(done.map(|()| Answer::Done))
}

async fn fenced(session: &mut Connected, steps: Steps) -> Answer<Failure> {
    match session.fence(steps).await {
        Ok(()) => Answer::Fenced { exclusive: session.standing.exclusive },
        Err(error) => Answer::NotFenced(error),
    }
}

fn or_failed(end: Result<Answer<Failure>, Failure>) -> Answer<Failure> {
    end.unwrap_or_else(Answer::Failed)
}
