//! How an engine prepares a device for a member's place beside the running array: what is asked, and in which order, is in
//! [`netraid_raid::volume::preparing`]; here it is asked over lines.

use netraid_raid::{
    label::Label,
    member::MemberIndex,
    reach::Sessions as _,
    volume::{
        Expect, NotFormer,
        preparing::{self, Answer, Ask, Locked, Other, Refusal, Step, Steps},
    },
};

use super::{
    device::{Connected, Failure},
    reached::Reached,
    script::{Desk, join_all},
};

/// The running array that a device is to join.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) array: preparing::Beside,
    /// The devices that serve.
    pub(super) others: Vec<Connected>,
}

/// Makes a session to a device for the array, when it is what is expected; with the label of a member of an array with
/// a log that is back.
pub(super) async fn join(
    desk: Desk,
    host: usize,
    member: MemberIndex,
    expect: Expect,
    beside: Beside,
) -> Result<(Connected, Option<Label>), Failure> {
    let mut device = Reached::new(desk, host, beside.array.this.machine_id);
    let mut steps = Steps::new(member, expect, beside.array.clone());
    loop {
        let answer = match steps.poll() {
            Step::Ask(Ask::Device(ask)) => Answer::Device(device.ask(ask).await),
            Step::Ask(Ask::Others) => Answer::Others(check(&beside.others).await),
            // There is one array.
            Step::Ask(Ask::Lock(_)) => Answer::Lock(Locked::Taken),
            Step::Done(Ok(label)) => {
                return Ok((device.take_sessions(), label.map(|label| *label)));
            }
            Step::Done(Err(refusal)) => return Err(refused(refusal)),
        };
        steps.answer(answer);
    }
}

/// Asks all that serve whether they are this engine's still.
async fn check(others: &[Connected]) -> Vec<Other> {
    let checked = others.iter().map(|other| async move {
        let end = other.check_fenced().await;
        Other { exclusive: other.hold().standing.exclusive, end, is_fenced: other.is_fenced() }
    });
    join_all(checked).await
}

fn refused(refusal: Refusal<Failure>) -> Failure {
    match refusal {
        Refusal::Failed(failure) => failure,
        Refusal::NotFenced(error) | Refusal::NotHolder { error, .. } => error.into(),
        Refusal::Unfit(unfit) => Failure::Unfit(unfit.what),
        Refusal::Serves(member) => Failure::Serves(member),
        Refusal::OpenHere { .. } => Failure::InUse,
        Refusal::NotFormer(NotFormer::NotThatMember) => Failure::NotThatMember,
        Refusal::NotFormer(NotFormer::WentOn) => Failure::WentOn,
    }
}
