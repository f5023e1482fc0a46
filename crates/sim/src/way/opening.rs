//! How an engine opens the array: what is asked of devices, and in which order, is in [`netraid_raid::opening`]; here it is
//! asked over lines.
//!
//! Whose lock is held is the world's to know: an engine starts on a machine when no other one of that machine lives.

use netraid_block::Pool;
use netraid_raid::{
    access,
    fencing::Fence,
    label::Holder,
    logged::Limits,
    member::{MemberIndex, MemberState},
    opening::{self, Answer, Ask, OpenError, Refused, Step, Steps},
    volume::{Machine as _, PlainOrLogged},
};

use super::{
    device::{Connected, Failure, address},
    reached::Reached,
    script::{Desk, join_all},
};

/// Who opens the array, and how.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) this: Holder,
    /// Where its members are, in order.
    pub(super) hosts: Vec<usize>,
    /// The machine that has it open is dead.
    pub(super) take_over: bool,
    /// An administrator's word, against all doubts.
    pub(super) force: bool,
    pub(super) limits: Limits,
    pub(super) pool: Pool,
}

/// Everything that the engine starts with.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) machine: PlainOrLogged,
    pub(super) members: Vec<Option<Connected>>,
    pub(super) fence: Fence,
    /// Devices that are not part of the array now.
    pub(super) unused: Vec<Connected>,
    /// Members that are left out, because the others contradict what they say.
    pub(super) liars: Vec<(MemberIndex, usize)>,
    /// It may have taken parity as it was.
    pub(super) trusts_parity: bool,
}

/// Opens the array that the hosts' disks make up.
pub(super) async fn open(desk: Desk, options: Options) -> Result<Opened, Failure> {
    let Options { this, hosts, take_over, force, limits, pool } = options;
    let mut devices: Vec<Reached> =
        hosts.iter().map(|host| Reached::new(desk.clone(), *host, this.machine_id)).collect();
    let lock = this.lock;
    let engine = opening::Engine { this, random: desk.random(), pool, limits };
    let names = hosts.iter().map(|host| address(*host)).collect();
    let how = opening::Options {
        read_only: false,
        take_over,
        force,
        clean_close: None,
        is_placed: true,
        continues: None,
        wants_all: false,
        spares: 0,
        silent: None,
    };
    let mut steps = Steps::open(how, names, engine);
    let opened = loop {
        let answer = match steps.poll() {
            Step::Ask(Ask::Each(asks)) => Answer::Each(each(&mut devices, asks).await),
            Step::Ask(Ask::Lock(_)) => Answer::Lock(Ok(lock)),
            Step::Done(Ok(opened)) => break *opened,
            Step::Done(Err(refused)) => {
                let Refused { error, notes } = *refused;
                desk.note(format!("refused, with {notes:?}"));
                return Err(failure(error));
            }
        };
        steps.answer(answer);
    };
    let opening::Opened { machine, fence, places, liars, unused, notes, .. } = opened;
    for note in notes {
        desk.note(format!("{note:?}"));
    }
    let mut members: Vec<_> = machine.geometry().member_indices().zip(&places).collect();
    members.retain(|(member, place)| {
        place.is_none() || machine.member_state(*member) != MemberState::InSync
    });
    let trusts_parity = force && !machine.has_log() && !members.is_empty();
    let Some(fence) = fence else {
        unreachable!("an array is opened to write, and its members are not fenced")
    };
    let mut take = |at: usize| devices[at].take_sessions();
    Ok(Opened {
        members: places.into_iter().map(|place| place.map(&mut take)).collect(),
        unused: unused.into_iter().map(&mut take).collect(),
        liars: liars.into_iter().map(|(member, at)| (member, hosts[at])).collect(),
        machine,
        fence,
        trusts_parity,
    })
}

/// Asks devices, all at once.
async fn each(
    devices: &mut [Reached],
    asks: Vec<(usize, access::Ask)>,
) -> Vec<access::Answer<Failure>> {
    let mut devices: Vec<Option<&mut Reached>> = devices.iter_mut().map(Some).collect();
    let asked = asks.into_iter().map(|(at, ask)| {
        let Some(device) = devices[at].take() else {
            unreachable!("the device at place {at} is asked twice at once")
        };
        device.ask(ask)
    });
    join_all(asked).await
}

fn failure(error: OpenError<Failure>) -> Failure {
    match error {
        OpenError::Failed(failure) => failure,
        OpenError::NoLabels => Failure::NoLabels,
        OpenError::Assemble(reason) => Failure::Assemble(reason),
        OpenError::NotFenced(_, error) => error.into(),
        OpenError::Unfit(_, unfit) => Failure::Unfit(unfit.what),
        OpenError::Label(_, reason) => Failure::Label(reason),
        OpenError::LabelChanged { generation, epoch, .. } => {
            Failure::LabelChanged(generation, epoch)
        }
        OpenError::Changed { .. } => Failure::Changed,
        OpenError::Behind { .. } | OpenError::MadeAnew { .. } | OpenError::TakenOver { .. } => {
            unreachable!("nobody goes on with an array in this world")
        }
        OpenError::Fewer { .. } => unreachable!("nobody wants all members in this world"),
        OpenError::NotShutOut { .. } => unreachable!("nobody stands by in this world"),
        OpenError::NotClosed { .. } => Failure::InUse,
        OpenError::WrittenBits { .. } => Failure::WrittenBits("a page is on no member"),
        OpenError::WrittenBitsDisagree { .. } => Failure::WrittenBits("two members disagree"),
        OpenError::Forged { .. } => Failure::WrittenBits("those of a member are far ahead"),
        OpenError::Stopped => unreachable!("no opening is stopped here"),
        OpenError::Machine(reason) => Failure::Machine("its machine", reason),
    }
}
