//! A device that may be, or become, a member, as an engine reaches it over a line: [`netraid_raid::reach`] does what is asked,
//! and the watch is told which devices an engine has fenced.

use netraid_block::narrow;
use netraid_raid::{
    access::{Answer, Ask},
    label::Uuid,
    reach::{self, Dial},
};

use super::{
    device::{Connected, Failure, address},
    script::Desk,
};

/// A device, and the line to it where there is one.
#[derive(Debug)]
pub(super) struct Reached(reach::Reached<Dialer>);

/// Makes lines to a device.
#[derive(Debug)]
struct Dialer {
    desk: Desk,
    host: usize,
    /// The machine that this engine runs on.
    machine: Uuid,
}

impl Reached {
    /// There is no line yet.
    pub(super) const fn new(desk: Desk, host: usize, machine: Uuid) -> Self {
        Self(reach::Reached::new(Dialer { desk, host, machine }))
    }

    /// The line to it.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn take_sessions(&mut self) -> Connected {
        self.0.take_sessions()
    }

    /// Asks the device.
    pub(super) async fn ask(&mut self, ask: Ask) -> Answer<Failure> {
        let fences = matches!(ask, Ask::Fence(_) | Ask::FenceAgain { .. } | Ask::FenceKnown { .. });
        let answer = self.0.ask(ask).await;
        if let (true, Answer::Fenced { exclusive }) = (fences, &answer)
            && let Some(connected) = self.0.sessions()
        {
            connected.note_fenced(*exclusive);
        }
        answer
    }
}

impl Dial for Dialer {
    type Sessions = Connected;

    async fn dial(&self, isid: Option<[u8; 6]>) -> Result<Connected, Failure> {
        Connected::connect(self.desk.clone(), self.host, isid).await
    }

    fn machine(&self) -> Uuid {
        self.machine
    }

    fn place(&self) -> impl Iterator<Item = u8> {
        core::iter::once(narrow(self.host))
    }

    fn address(&self) -> String {
        address(self.host)
    }
}
